"""What public code of GloRo and LiResNet calls a bound, rebuilt in a few lines from its description, and refuted.

Each test takes the smallest network or input on which the shipped number is false, shows two points or a value that
contradict it, and then holds lipcert to the same case.
"""

import math

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.layers import LinearHead, TrackedLinear, lipschitz_estimate
from lipcert.losses import GloRoTrades, _bottom


def linear(matrix, kind=TrackedLinear):
    """x ↦ Mx in float64."""
    weight = torch.as_tensor(matrix, dtype=torch.float64)
    layer = kind(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.zero_()
    return layer


def shipped_radius(logits, constants):
    """min over rivals of margin/K_ij; every class whose logit equals the largest is left out."""
    best = logits.max()
    radii = [math.inf if logits[i] == best else (best - logits[i]) / constants[i] for i in range(len(logits))]
    return float(min(radii))


def power_iteration(matrix, start, steps):
    x = torch.as_tensor(start, dtype=torch.float64)
    for _ in range(steps):
        x = matrix.T @ (matrix @ x)
        x = x / x.norm()
    return float((matrix @ x).norm())


def certified(network, x):
    """lipcert's answer and radius, from the frozen network."""
    frozen = lc.freeze(network.eval())
    result = lc.certify(frozen, x.float(), frozen(x.float()).argmax(dim=1))
    return result.radii[0].item()


def test_power_iteration_from_ones_is_no_bound_after_any_number_of_steps():
    """(1, 1) is the *second* singular vector here, so the iteration starts at 1 and stays; the norm is 4."""
    matrix = torch.tensor([[2.5, -1.5], [-1.5, 2.5]], dtype=torch.float64)  # exact: eigenvalues 1 and 4
    claim = power_iteration(matrix, (1.0, 1.0), 500)
    assert claim == pytest.approx(1.0, rel=1e-12)
    network = nn.Sequential(linear(matrix), linear(torch.eye(2), LinearHead))
    x = torch.tensor([[1.0, 0.75]], dtype=torch.float64)
    logits = network(x)[0].detach()
    radius = shipped_radius(logits, [claim * math.sqrt(2)] * 2)
    away = x + torch.tensor([[-1.0, 1.0]]) * (0.3 * radius)  # well inside: its length is 0.43 of the radius
    assert (away - x).norm() < 0.5 * radius
    assert network(away).argmax() != logits.argmax()
    assert lc.lipschitz_bound(network[0]) >= 4 * (1 - 1e-12)
    ours = certified(network, x)
    assert 0 < ours <= float(logits[0] - logits[1]) / (4 * math.sqrt(2))


def test_a_few_steps_see_too_little_where_two_singular_values_are_close():
    """Ten steps from a vector near the second direction: 1 where the norm is 1.02. The certificate has the norm."""
    matrix = torch.diag(torch.tensor([1.0, 1.02], dtype=torch.float64))
    assert power_iteration(matrix, (1.0, 0.01), 10) < 1.001
    layer = linear(matrix)
    layer.iterate.copy_(torch.tensor([1.0, 0.01]))
    assert layer.norm_estimate(10).item() < 1.001  # ours is no better: that is why it is called an estimate
    assert lc.lipschitz_bound(layer) >= 1.02 * (1 - 1e-12)


def test_a_tie_has_radius_zero_not_infinity():
    """The mask takes every class that equals the largest, and so the rival that ties: nobody is left to fear."""
    network = nn.Sequential(linear(torch.eye(2)), linear(torch.eye(2), LinearHead))
    x = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    logits = network(x)[0].detach()
    assert shipped_radius(logits, [math.sqrt(2)] * 2) == math.inf
    answers = {int(network(x + shift).argmax()) for shift in torch.tensor([[1e-6, 0.0], [0.0, 1e-6]]).double()}
    assert answers == {0, 1}
    assert certified(network, x) == 0
    bottom = _bottom(logits[None], 0.0, math.sqrt(2))  # not −∞: the tie counts, at every ε
    assert bottom.item() == logits.max()


def test_a_tie_of_three_does_not_hide_a_rival():
    logits = torch.tensor([[2.0, 2.0, 1.0]])
    assert shipped_radius(logits[0], [1.0] * 3) == 1.0  # by the third class
    assert lc.certified_radii(logits, torch.tensor([0]), torch.ones(3, 3))[0] == 0


class Tenfold(nn.Module):
    """A layer that no library knows."""

    def forward(self, x):
        return 10 * x


def test_an_unknown_layer_does_not_count_as_one():
    network = nn.Sequential(Tenfold(), linear(torch.eye(2), LinearHead))
    x = torch.tensor([[0.2, 0.1]], dtype=torch.float64)
    logits = network(x)[0].detach()
    radius = shipped_radius(logits, [1.0 * math.sqrt(2)] * 2)  # 1 for Tenfold
    away = x + torch.tensor([[-0.08, 0.08]])
    assert (away - x).norm() < 0.2 * radius
    assert network(away).argmax() != logits.argmax()
    assert lc.lipschitz_bound(network, (2,)) >= 10
    assert certified(network, x) <= (away - x).norm()
    for ask in (lambda: lc.lipschitz_bound(network), lambda: lipschitz_estimate(network)):
        with pytest.raises(lc.NotCertified, match="Pass the shape"):
            ask()


def test_overlapping_max_pooling_does_not_count_as_one():
    """One pixel is the largest of nine windows: the output moves three times as far as the input."""
    network = nn.Sequential(nn.MaxPool2d(3, stride=1), nn.Flatten(), linear([[1.0] * 9, [0.0] * 9], LinearHead))
    x = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    network[2].bias.data.copy_(
        torch.tensor([-4.5, 0.0])
    )  # class 1, unless the sum of the pooled pixels exceeds 4.5
    logits = network(x)[0].detach()
    radius = shipped_radius(logits, [1.0 * 3.0] * 2)  # 1 for the pool, ‖w_0 − w_1‖ = 3
    away = x.clone()
    away[0, 0, 2, 2] = 0.51
    assert radius == 1.5
    assert (away - x).norm() < 0.4 * radius
    assert network(away).argmax() != logits.argmax()
    assert lc.lipschitz_bound(network[0], (1, 5, 5)) >= 3
    assert certified(network, x) <= 0.5


def test_a_product_in_float32_does_not_vanish():
    """stem · neck · conv · linear in float32 is 0, since 1e-25 · 1e-25 is; the network is the identity."""
    sizes = {"stem": 1e-25, "conv": 1e25, "neck": 1e-25, "linear": 1e25}
    product = torch.tensor(1.0)
    for name in ("stem", "neck", "conv", "linear"):
        product = product * torch.tensor(sizes[name])
    assert product == 0  # so every K_ij is 0 and every radius infinite
    layers = [linear(size * torch.eye(2)).float() for size in sizes.values()]
    network = nn.Sequential(*layers, linear(torch.eye(2), LinearHead).float())
    x = torch.tensor([[1.0, 0.0]])
    assert network(x).argmax() != network(x - torch.tensor([[0.6, -0.6]])).argmax()
    exact = math.prod(float(layer.weight[0, 0].detach()) for layer in layers)
    assert lc.lipschitz_bound(network[:4]) >= exact * (1 - 1e-12)
    assert lipschitz_estimate(network[:4]).item() == pytest.approx(exact, rel=1e-4)
    assert certified(network, x) <= 1 / (exact * math.sqrt(2))


def test_a_temperature_belongs_to_the_logits_not_to_the_softmax():
    """KL(p ‖ q/T) = KL(p ‖ q) + log T: below 0 for T < 1, and its gradient does not depend on T at all."""

    def shipped(logits, bottom, temperature):
        p = logits.softmax(dim=1)
        q = torch.cat((logits, bottom), dim=1).softmax(dim=1)[:, :-1] / temperature
        return (p * (p / q).log()).sum(dim=1).mean()

    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    bottom = _bottom(logits, 0.1, math.sqrt(2))
    assert shipped(logits, bottom, 0.25) < 0
    gradients = [
        torch.autograd.grad(shipped(logits, bottom, t), logits, retain_graph=True)[0] for t in (0.25, 1, 4)
    ]
    torch.testing.assert_close(gradients[0], gradients[2], rtol=0, atol=1e-12)
    labels = torch.tensor([0])
    divergence = GloRoTrades(0.1, 1.0)(logits, labels) - nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(divergence, shipped(logits, bottom, 1.0))
    assert divergence > 0


def test_the_bottom_logit_certifies_exactly_the_radius():
    """f_j > f_⊥(ε) if and only if ε < min (f_j − f_i)/K_ij: 4,000 cases with ties and rivals that do not move."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-3, 4, (4000, 4), generator=generator).double()
    constants = torch.randint(0, 3, (4, 4), generator=generator).double()
    constants = constants.triu(1) + constants.triu(1).T
    answers = logits.argmax(dim=1)
    radii = lc.certified_radii(logits, answers, constants)
    for epsilon in (0.1, 0.5, 0.99, 1.01, 2.3, 10.0):
        wins = logits.max(dim=1).values > _bottom(logits, epsilon, constants)[:, 0]
        assert torch.equal(wins, radii > epsilon)
