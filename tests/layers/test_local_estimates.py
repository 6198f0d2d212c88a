"""Local estimates, which only training sees: boxes, masks and norms against points and explicit matrices."""

import math

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.layers.local import local_estimate, masked_estimate
from lipcert.layers.tracked import TrackedConv2d, TrackedLinear
from lipcert.losses import WorstCase
from mutants import norm


def backbone():
    torch.manual_seed(3)
    layers = [
        lc.layers.Center([0.5]),
        TrackedConv2d(1, 4, 3, padding=1),
        lc.layers.MaxMin(),
        lc.layers.Clip(0.2),
        lc.layers.SpaceToDepth(2),
        nn.Flatten(),
        TrackedLinear(64, 12),
        lc.layers.ClippedReLU(0.3),
        TrackedLinear(12, 6),
        lc.layers.ClippedReLU(0.3),
    ]
    network = nn.Sequential(*layers)
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, (TrackedConv2d, TrackedLinear)):
                layer.weight.normal_().mul_(1.5 / math.sqrt(layer.weight[0].numel()))
                layer.bias.normal_().mul_(0.2)
    return network.eval()


def test_a_masked_estimate_is_near_the_norm_of_the_masked_matrix_and_never_above():
    torch.manual_seed(0)
    layer = TrackedLinear(9, 7)
    nn.init.normal_(layer.weight)
    layer.norm_estimate(steps=200)
    columns, rows = (torch.rand(20, 9) < 0.6).float(), (torch.rand(20, 7) < 0.6).float()
    rows[0], columns[1] = 0.0, 0.0
    for _ in range(3):
        estimates = masked_estimate(layer, columns, rows)
        for estimate, row, column in zip(estimates.tolist(), rows, columns, strict=True):
            exact = norm(layer.weight.detach() * row[:, None] * column)
            assert 0.6 * exact <= estimate <= exact * (1 + 1e-3) + 1e-6
    assert estimates[0] < 1e-6
    assert estimates[1] < 1e-6


def test_estimates_grow_with_the_ball_and_stay_below_what_is_proved():
    network, x = backbone(), torch.rand(6, 1, 4, 4)
    with torch.no_grad():
        small, large = (local_estimate(network, x, radius) for radius in (0.001, 2.0))
    assert bool((small.constants < large.constants * (1 + 1e-3)).all())
    assert float(small.constants.mean()) < 0.8 * float(large.constants.mean())
    assert float(small.activity) < float(large.activity)
    everything = lc.lipschitz_bound(network)
    assert float(large.constants.max()) <= everything * (1 + 1e-4)


def test_the_gradient_reaches_every_weight_and_every_theta():
    network, x = backbone(), torch.rand(6, 1, 4, 4)
    local = local_estimate(network, x, 0.3)
    (local.constants.sum() + local.activity).backward()
    for name, parameter in network.named_parameters():
        if "bias" not in name:
            assert parameter.grad is not None, name
            assert float(parameter.grad.abs().max()) > 0, name


def test_the_worst_case_loss_is_its_formula():
    torch.manual_seed(1)
    logits, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 1])
    rows, constants = torch.randn(4, 3), torch.rand(5) + 0.5
    distances = torch.cdist(rows, rows)
    loss = WorstCase(0.3, kappa=0.25, weight=2.0)
    value = loss(logits, labels, distances, constants, torch.tensor(0.7))
    worst = logits.clone()
    for n, label in enumerate(labels):
        for j in range(4):
            if j != label:
                worst[n, j] += 0.3 * constants[n] * (rows[j] - rows[label]).norm()
    entropy = nn.functional.cross_entropy
    expected = 0.25 * entropy(logits, labels) + 0.75 * entropy(worst, labels) + 1.4
    assert torch.allclose(value, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="kappa"):
        WorstCase(0.3, kappa=2.0)


def test_clipped_layers_are_the_functions_that_freeze_stores():
    x = torch.linspace(-3, 3, 101)[:, None]
    for layer, low, high in ((lc.layers.ClippedReLU(0.7), 0.0, 0.7), (lc.layers.Clip(0.4), -0.4, 0.4)):
        assert torch.equal(layer(x), x.clamp(low, high))
        with torch.no_grad():
            layer.theta.mul_(-1.0)  # the ends are moduli
        assert torch.equal(layer(x), x.clamp(low, high))
        assert torch.equal(lc.freeze(nn.Sequential(layer))(x), x.clamp(low, high))
