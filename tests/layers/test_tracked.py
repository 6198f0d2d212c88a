"""Layers whose norm is tracked: the bound is the norm, the estimate is below it, and never enters a certificate."""

import copy
import math

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.layers import LinearHead, LinearResidualConv2d, TrackedConv2d, TrackedLinear, lipschitz_estimate
from lipcert.layers.tracked import PER_TAP, circle_of, on_circle
from lipcert.testing import HOSTILE, jacobian

LAYERS = {
    "linear": (lambda: TrackedLinear(7, 5), (7,)),
    "conv": (lambda: TrackedConv2d(2, 3, 3, padding=1), (2, 9, 9)),
    "conv-halving": (lambda: TrackedConv2d(2, 3, 4, stride=2, padding=1), (2, 8, 8)),
    "conv-stem": (lambda: TrackedConv2d(1, 4, 5, stride=2, padding=2), (1, 8, 8)),
    "conv-point": (lambda: TrackedConv2d(3, 3, 1), (3, 2, 2)),
    "conv-groups": (lambda: TrackedConv2d(4, 6, (3, 1), groups=2), (4, 5, 5)),
    "identity-conv": (lambda: LinearResidualConv2d(3, depth=2), (3, 9, 9)),
    "identity-conv-centered": (lambda: LinearResidualConv2d(3, depth=2, center=True), (3, 9, 9)),
}


def layer_of(name, kind="random", seed=0):
    torch.manual_seed(seed)
    layer = LAYERS[name][0]().double().eval()
    HOSTILE[kind](layer)
    return layer


def norm_on_the_circle(layer):
    """‖W‖ on the circle of the iteration, from the explicit matrix."""
    operator = on_circle(layer.operator)
    shape = (operator.inputs, *circle_of(layer.operator))
    columns = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    return torch.linalg.matrix_norm(operator.apply(layer.plain_weight(), columns).flatten(1), 2).item()


@pytest.mark.parametrize("name", LAYERS)
def test_the_estimate_converges_from_below_and_the_bound_is_above(name):
    for kind in ("random", "scale 1e30", "scale 1e-30", "equal columns", "zero column", "graded columns"):
        layer = layer_of(name, kind)
        exact, bound = norm_on_the_circle(layer), lc.lipschitz_bound(layer)
        above = 1 + 1e-12
        assert layer.norm_estimate(1).item() <= exact * above, kind
        assert layer.norm_estimate(1000).item() == pytest.approx(exact, rel=1e-3), kind  # the first two may be near
        assert exact <= bound * above, kind
        # What lies between the points of the circle, and what the grid of the proof loses.
        between = math.cos(math.pi / (2 * PER_TAP)) ** -2
        assert bound <= exact * between * 1.02, kind
        x = torch.randn(1, *LAYERS[name][1], dtype=torch.float64)
        assert torch.linalg.matrix_norm(jacobian(layer, x), 2).item() <= bound * above, kind


@pytest.mark.parametrize("name", LAYERS)
def test_the_gradient_of_the_estimate_is_that_of_the_norm(name):
    """Of a simple singular value: ∂‖W‖ = ⟨u vᵀ, ∂W⟩, compared with a difference quotient of converged estimates."""
    layer = layer_of(name)
    layer.norm_estimate(2000).backward()
    for parameter in (layer.weight, *([layer.gain] if hasattr(layer, "gain") else [])):
        step = torch.randn_like(parameter)
        with torch.no_grad():
            values = []
            for side in (1e-6, -1e-6):
                moved = copy.deepcopy(layer)
                dict(moved.named_parameters())["weight" if parameter is layer.weight else "gain"].add_(side * step)
                values.append(moved.norm_estimate(2000))
        slope = (values[0] - values[1]).item() / 2e-6
        assert (parameter.grad * step).sum().item() == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_the_iterate_is_kept_in_training_mode_alone_and_is_part_of_the_state():
    torch.manual_seed(0)
    layer = TrackedConv2d(2, 3, 3)
    HOSTILE["random"](layer)
    start = layer.iterate.clone()
    layer.eval().norm_estimate()
    assert torch.equal(layer.iterate, start)
    first = layer.train().norm_estimate()
    assert not torch.equal(layer.iterate, start)
    again = TrackedConv2d(2, 3, 3).train()
    again.load_state_dict(layer.state_dict())
    second = layer.norm_estimate()
    assert second > first  # it goes on from where it was
    assert torch.equal(again.norm_estimate(), second)


def test_a_zero_weight_has_the_estimate_zero_and_a_finite_gradient():
    layer = TrackedLinear(3, 2)
    nn.init.zeros_(layer.weight)
    estimate = lipschitz_estimate(nn.Sequential(layer, TrackedLinear(2, 2)))
    estimate.backward()
    assert estimate < 1e-30
    assert torch.isfinite(layer.weight.grad).all()
    assert torch.isfinite(layer.iterate).all()
    assert lc.lipschitz_bound(layer) < 1e-30


def test_the_product_of_many_small_norms_does_not_vanish():
    layers = [TrackedLinear(2, 2) for _ in range(40)]
    for index, layer in enumerate(layers):
        with torch.no_grad():
            layer.weight.copy_(torch.eye(2) * (1e-8 if index < 20 else 1e8))  # 1e-160 in the middle
    assert lipschitz_estimate(nn.Sequential(*layers)).item() == pytest.approx(1.0, rel=1e-4)


def test_other_layers_count_with_their_constants():
    assert lipschitz_estimate(nn.Sequential(nn.Flatten(), lc.layers.MaxMin())).item() == 1.0
    scaled = nn.Sequential(lc.layers.Normalize([0.5], [0.25]), nn.Sequential(lc.layers.Scale(-3.0)))
    assert lipschitz_estimate(scaled).item() == pytest.approx(12.0)
    with pytest.raises(lc.NotCertified):
        lipschitz_estimate(nn.Sequential(nn.TransformerEncoderLayer(4, 2)))  # unknown never counts as 1


def test_a_centered_layer_is_certified_in_evaluation_mode_only():
    torch.manual_seed(0)
    layer = LinearResidualConv2d(2, depth=3, center=True)
    HOSTILE["random"](layer)
    x = torch.randn(16, 2, 4, 4)
    network = nn.Sequential(layer, nn.Flatten(), LinearHead(32, 3))
    alone, together = layer(x[:1]), layer(x)[:1]
    assert not torch.allclose(alone, together, atol=1e-3)  # an output depends on the batch
    for refused in (lambda: lc.lipschitz_bound(layer), lambda: lc.certify(network, x, torch.zeros(16).long())):
        with pytest.raises(lc.NotCertified, match=r"batch in training mode.*eval\(\)"):
            refused()
    frozen = lc.freeze(network)  # which freezes what evaluation mode computes
    network.eval()
    assert lc.lipschitz_bound(layer) > 1
    torch.testing.assert_close(frozen(x), network(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(x[:1]), layer(x)[:1])
    assert lc.certify(network, x, network(x).argmax(dim=1)).radii.min() > 0


def test_the_running_mean_follows_the_branch():
    torch.manual_seed(0)
    layer = LinearResidualConv2d(2, center=True, bias=False)
    HOSTILE["random"](layer)
    x = torch.randn(8, 2, 6, 6) + 1
    for _ in range(200):
        centered = layer(x)
    torch.testing.assert_close(layer.eval()(x), centered, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((centered - x).mean(dim=(0, 2, 3)), torch.zeros(2), rtol=0, atol=1e-5)
    one = layer(x[0])  # without a batch
    torch.testing.assert_close(one, layer(x[:1])[0])


def test_an_estimate_that_a_certificate_used_would_be_too_small():
    """A start near the smaller singular direction: five steps see 1, and the norm is 1.25."""
    layer = TrackedLinear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 1.25])))
        layer.iterate.copy_(torch.tensor([1.0, 1e-4]))
    assert layer.norm_estimate().item() < 1.001
    assert lc.lipschitz_bound(layer) > 1.249999
    network = nn.Sequential(layer, LinearHead(2, 2)).eval()
    with torch.no_grad():
        network[1].weight.copy_(torch.eye(2))
        network[1].bias.zero_()
    x = torch.tensor([[1.0, 0.0]])
    radius = lc.certify(network, x, torch.tensor([0])).radii[0].item()
    assert 1 / (1.25 * math.sqrt(2)) * 0.999 < radius <= 1 / (1.25 * math.sqrt(2))
    assert lc.audit(lc.freeze(network), (2,)).backbone > 1.249999


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_the_pairs_of_a_plain_head(scale):
    torch.manual_seed(0)
    head = LinearHead(6, 4).double()
    with torch.no_grad():
        head.weight.mul_(scale)
    pairs, rows = head.pairwise_bound(), head.rows().detach()
    for i in range(4):
        for j in range(4):
            exact = math.hypot(*(rows[i] - rows[j]).tolist())
            assert exact <= pairs[i, j].item() <= exact * (1 + 1e-12)
    assert lc.lipschitz_bound(head) >= torch.linalg.matrix_norm(rows, 2).item() * (1 - 1e-12)
    assert torch.equal(pairs, pairs.T)


def test_a_learned_scale_changes_no_radius():
    torch.manual_seed(0)
    network = lc.create_model("sll_nano", image_shape=(1, 8, 8), head="plain").eval()
    images = torch.rand(8, 1, 8, 8)
    labels = network(images).argmax(dim=1)
    before = lc.certify(lc.freeze(network), images, labels).radii
    with torch.no_grad():
        for parameter in network[1].parameters():
            parameter.mul_(64.0)
    torch.testing.assert_close(lc.certify(lc.freeze(network), images, labels).radii, before, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LinearResidualConv2d(3, 2), r"kernel_size must be odd.*got \(2, 2\)"),
        (lambda: LinearResidualConv2d(3, depth=0), "depth"),
        (lambda: TrackedConv2d(3, 4, 3, groups=2), "groups must divide"),
        (lambda: TrackedLinear(3, 4)(torch.rand(2, 5)), r"expects \(\*, 3\); got \(2, 5\)"),
        (lambda: LinearHead(3, 4)(torch.rand(2, 5)), r"expects \(\*, 3\); got \(2, 5\)"),
    ],
)
def test_mistakes_get_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
