"""The surrogate of a norm: a power iteration that continues from step to step, and what is fused with it."""

import copy

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import lipcert as lc
from lipcert.algebra.spectral import squared_norm_estimate
from lipcert.layers.fused import normalized_linear

LAYERS = {
    "affine dense": lambda: lc.AffineLinear(9, 7, bound="spectral_surrogate"),
    "residual dense": lambda: lc.ResidualLinear(9, 7, bound="spectral_surrogate"),
    "affine strided": lambda: lc.AffineConv2d(4, 6, 3, stride=2, padding=1, bound="spectral_surrogate"),
    "affine groups": lambda: lc.AffineConv2d(4, 6, 3, padding=1, groups=2, bound="spectral_surrogate"),
    "residual conv": lambda: lc.ResidualConv2d(4, 6, bound="spectral_surrogate"),
    "residual 1-D": lambda: lc.ResidualConv1d(4, 6, bound="spectral_surrogate"),
    "residual 3-D": lambda: lc.ResidualConv3d(3, 2, bound="spectral_surrogate"),
}


def estimate_and_bound(layer):
    """T in both modes; the ratio says how far the estimate is behind."""
    columns = layer.arrange(layer.prepared()[0].detach())
    proved = layer.eval().bound(columns)[1].amax()
    return layer.train().bound(columns)[1].amax(), proved


@pytest.mark.parametrize("name", LAYERS)
def test_a_new_layer_starts_with_a_close_estimate(name):
    """A coarse grid loses at most cos²(π/8) on each axis with three taps, the steps and Gram iteration the rest."""
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    estimate, proved = estimate_and_bound(layer)
    axes = layer.weight.ndim - 2
    assert 0.9 * 0.85**axes * proved <= estimate <= proved * (1 + 1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_the_estimate_follows_a_weight_in_training(name):
    """After 200 small random steps it is as close as at the start, with one step of power iteration for each."""
    torch.manual_seed(1)
    layer = LAYERS[name]().double().train()
    axes = layer.weight.ndim - 2
    for _ in range(200):
        with torch.no_grad():
            layer.weight.add_(0.02 * layer.weight.std() * torch.randn_like(layer.weight))
        estimate_and_bound(layer)
    estimate, proved = estimate_and_bound(layer)
    assert 0.9 * 0.85**axes * proved <= estimate <= proved * (1 + 1e-12)


def test_the_vector_moves_in_training_alone():
    torch.manual_seed(2)
    layer, x = lc.AffineLinear(9, 7, bound="spectral_surrogate"), torch.randn(3, 9)
    torch.nn.init.normal_(layer.weight)
    before = layer.bound.iterate.clone()
    layer.eval()(x)
    assert torch.equal(layer.bound.iterate, before)
    layer.train()(x)
    assert not torch.equal(layer.bound.iterate, before)
    again = copy.deepcopy(layer)
    assert again.bound.iterate.data_ptr() != layer.bound.iterate.data_ptr()
    assert torch.equal(again(x), layer(x))
    exact = lc.AffineLinear(9, 7, bound="spectral")
    exact.load_state_dict(layer.state_dict())
    layer.load_state_dict(exact.state_dict())
    assert torch.equal(layer.bound.iterate, again.bound.iterate)
    assert "bound.iterate" in layer.state_dict()


def test_a_bound_with_a_vector_belongs_to_one_layer():
    bound = lc.bounds.Spectral(form="surrogate")
    lc.AffineLinear(9, 7, bound=bound)
    with pytest.raises(ValueError, match="each layer"):
        lc.AffineLinear(9, 7, bound=bound)


@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_layer_is_the_formula(bias):
    """Outputs and gradients are those of Wx/‖Wᵀv‖ + b, and second derivatives exist."""
    torch.manual_seed(3)
    layer = lc.AffineLinear(6, 4, bias=bias, bound="spectral_surrogate").double().train()
    torch.nn.init.normal_(layer.weight)
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    plain = copy.deepcopy(layer)
    fused = layer(x)
    again = torch.nn.functional.linear(x, plain.scaled_weight(), plain.bias)
    torch.testing.assert_close(fused, again, rtol=1e-14, atol=1e-14)
    weights = torch.randn_like(fused)
    inputs = [x, layer.weight, *([layer.bias] if bias else [])]
    others = [x, plain.weight, *([plain.bias] if bias else [])]
    ours = torch.autograd.grad((fused * weights).sum(), inputs)
    theirs = torch.autograd.grad((again * weights).sum(), others)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    v = layer.bound.iterate.flatten()
    given = [tensor.detach().requires_grad_() for tensor in inputs]

    def function(x, weight, b=None):
        return normalized_linear(x, weight, b, v)

    assert gradcheck(function, given)
    assert gradgradcheck(function, given)


@pytest.mark.parametrize("size", [1e-30, 1e-14, 1e14, 1e30])
def test_weights_of_any_size_stay_finite(size):
    torch.manual_seed(4)
    layer, x = lc.AffineLinear(6, 4, bound="spectral_surrogate").train(), torch.randn(5, 6)
    with torch.no_grad():
        layer.weight.copy_(size * torch.randn(4, 6))
    for _ in range(3):
        out = layer(x)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(layer.weight.grad).all()
    assert torch.isfinite(layer.bound.iterate).all()


def test_the_lag_is_made_up_at_freeze():
    """A layer whose estimate is behind is above 1 in training; frozen it is not."""
    torch.manual_seed(5)
    layer = lc.AffineLinear(60, 60, bound="spectral_surrogate").train()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(60, 60))
    assert torch.linalg.matrix_norm(layer.scaled_weight().detach(), 2) > 1.01
    assert lc.audit(lc.freeze(layer), (60,)).lipschitz <= 1 + 1e-6


def test_a_dense_estimate_lags_less_than_after_one_step():
    """A weight that moves fast: the rest of the lag is made up at freeze."""
    torch.manual_seed(6)
    layer = lc.AffineLinear(40, 40, bound="spectral_surrogate").double().train()
    before, ratios, single = layer.bound.iterate.clone(), [], []
    for _ in range(50):
        with torch.no_grad():
            layer.weight.add_(0.1 * torch.randn_like(layer.weight))
        columns = layer.arrange(layer.weight.detach())
        norm = torch.linalg.matrix_norm(layer.weight.detach(), 2) ** 2
        estimate, before = squared_norm_estimate(columns, before, 1)
        single.append(float(estimate / norm))
        ratios.append(float(layer.bound(columns)[1][0] / norm))
    assert sum(ratios) > sum(single)
    assert max(ratios) <= 1 + 1e-12
