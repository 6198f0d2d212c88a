"""Mistakes of published code for local constants and smoothing, each on the smallest network that shows it.

First the mistake is made in a few lines and a point inside the claimed radius changes the answer; then lipcert's
radius at the same point holds.
"""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import lipcert as lc


def network(weight, bias, last, activation=None):
    first, head = nn.Linear(2, len(weight)), nn.Linear(len(weight), 2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor(weight))
        first.bias.copy_(torch.tensor(bias))
        head.weight.copy_(torch.tensor(last))
        head.bias.copy_(-head(torch.tensor([max(value, 0.0) for value in bias])) + head.bias)  # f(0) = 0
    return nn.Sequential(first, activation or nn.ReLU(), head).double().eval()


def shipped_constant(matrix, moving, v, steps, *, nan_is_zero=True):
    """‖D W v‖ after a power iteration with the mask D and a stored start; NaN becomes 0, as published."""
    masked = matrix * moving[:, None]
    for _ in range(steps):
        v = masked.mT @ (masked @ v)
        v = v / v.norm()
    return float(torch.nan_to_num((masked @ v).norm(), nan=0.0 if nan_is_zero else math.nan))


def shipped_radius(net, x, epsilon, moving, start, steps=2000):
    """ε if the shift ε·L·‖w_y − w_j‖ is below the margin."""
    constant = shipped_constant(net[0].weight.detach(), moving, start, steps)
    logits = net(x)[0].detach()
    last = net[2].weight.detach()
    shift = epsilon * constant * float((last[0] - last[1]).norm())
    return epsilon if float((logits[0] - logits[1]).abs()) > shift else 0.0


def flips(net, x, other):
    return int(net(x).argmax()) != int(net(other).argmax())


def our_radius(net, x, epsilon):
    return lc.certify(net, x, method="local", eps=(epsilon / 8, epsilon / 4, epsilon)).radii[0].item()


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Hardtanh(0.0, 10.0)], ids=["relu", "clipped"])
def test_nan_is_not_a_shift_of_zero(activation):
    """The stored vector is e₁, whose neuron cannot move in this ball: 0/0. The other neuron moves all the same."""
    net = network([[2.0, 0.0], [0.0, 1.0]], [-8.0, 5.0], [[0.0, 1.0], [0.0, 0.0]], activation)
    x, other = torch.tensor([[0.0, 0.125]]).double(), torch.tensor([[0.0, -0.125]]).double()
    moving, start = torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 0.0]).double()
    assert math.isnan(shipped_constant(net[0].weight.detach(), moving, start, 5, nan_is_zero=False))
    claim = shipped_radius(net, x, 1.0, moving, start)
    assert claim == 1.0
    assert flips(net, x, other)
    assert (other - x).norm() <= 0.25 * claim
    # The constant of the neuron that moves is 1, so that ours is the distance itself.
    assert 0.1249 < our_radius(net, x, 1.0) <= 0.125


def test_a_power_iteration_for_each_image_is_no_bound():
    """All neurons move, and (1, 1) is the second singular vector: 2,000 steps give 1, and the norm is 4."""
    net = network([[2.5, -1.5], [-1.5, 2.5]], [20.0, 20.0], [[1.0, 0.0], [0.0, 1.0]])
    x = torch.tensor([[0.25, 0.0]]).double()
    claim = shipped_radius(net, x, 0.5, torch.ones(2).double(), torch.ones(2).double())
    assert claim == 0.5
    other = x + torch.tensor([[-0.13, 0.13]]).double()
    assert flips(net, x, other)
    assert (other - x).norm() < 0.4 * claim
    # Exact: the margin is 4(x₁ − x₂), whose gradient has the norm 4√2.
    assert 0.99 * 0.25 / math.sqrt(2) < our_radius(net, x, 0.5) <= 0.25 / math.sqrt(2)


def test_a_radius_in_float32_exceeds_the_distance_to_a_hyperplane():
    """Jin et al. (2022): |wᵀx|/‖w‖ in floats is above the exact distance for half of all points."""
    generator = torch.Generator().manual_seed(0)
    head, exceeded = nn.Linear(2, 2, bias=False), 0
    for _ in range(40):
        w, x = (torch.randn(2, generator=generator) for _ in range(2))
        with torch.no_grad():
            head.weight.copy_(torch.stack([w, torch.zeros(2)]))
        dot = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(w, x, strict=True))
        square = dot**2 / sum(Fraction(float(a)) ** 2 for a in w)  # of the distance to the hyperplane
        shipped = (w @ x).abs() / w.norm()
        exceeded += Fraction(float(shipped)) ** 2 > square  # a point within the claim has another class
        for method in ("lipschitz", "local"):
            options = {"eps": (8.0,)} if method == "local" else {}
            ours = lc.certify(head.eval(), x[None], method=method, **options).radii[0].item()
            assert Fraction(ours) ** 2 < square
            assert ours > 0.999 * float(shipped) - 1e-5
    assert exceeded >= 10
