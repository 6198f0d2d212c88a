"""The fused residual is the plain formula: outputs, gradients and second gradients, and near it under autocast."""

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.layers import fused

LAYERS = {
    "dense": (lambda: lc.ResidualLinear(6, 5), (3, 6)),
    "no bias": (lambda: lc.ResidualLinear(6, 5, bias=False), (3, 6)),
    "conv": (lambda: lc.ResidualConv2d(4, 6, 3), (2, 4, 5, 6)),
    "even, stride": (lambda: lc.ResidualConv2d(4, 6, (2, 3), stride=(2, 3)), (2, 4, 7, 5)),
    "groups, dilation": (lambda: lc.ResidualConv2d(4, 6, 3, groups=2, dilation=2, bias=False), (2, 4, 7, 6)),
    "signals": (lambda: lc.ResidualConv1d(4, 3, 3, stride=2), (2, 4, 7)),
    "volumes": (lambda: lc.ResidualConv3d(2, 3, 3), (2, 2, 4, 3, 4)),
}


@pytest.fixture(params=LAYERS)
def layer_and_input(request):
    torch.manual_seed(0)
    make, shape = LAYERS[request.param]
    return make(), torch.randn(shape)


def gradients(layer: nn.Module, x: torch.Tensor, seed: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], seed.to(y.dtype))]


def test_the_fused_step_is_the_plain_one(layer_and_input, monkeypatch):
    layer, x = layer_and_input
    layer, x, seed = layer.double(), x.double(), torch.randn(x.shape).double()
    calls = []
    for name in ("_ReluResidual", "_ReluResidualConv"):
        apply = getattr(fused, name).apply
        monkeypatch.setattr(getattr(fused, name), "apply", lambda *a, f=apply: calls.append(f) or f(*a))
    new = gradients(layer, x, seed)
    assert len(calls) == 1, "the layer did not take the fused step"
    monkeypatch.setattr("lipcert.layers.operators.fits", lambda *tensors: False)
    old = gradients(layer, x, seed)
    for a, b in zip(new, old, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_second_gradients(layer_and_input):
    layer, x = layer_and_input
    layer, x = layer.double(), x.double().requires_grad_()

    def slope(x):
        return torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)[0]

    direction, step = torch.randn_like(x), 1e-6
    (exact,) = torch.autograd.grad(slope(x), x, direction)
    near = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)  # the Hessian is symmetric
    torch.testing.assert_close(exact, near.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(6,), (2, 3, 6)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: lc.ResidualLinear(6, 5),
        lambda: lc.ResidualLinear(6, 64, bound="sll_sampled_surrogate"),
        lambda: lc.ResidualLinear(6, 64, bound="sll_sampled_gradient"),
        lambda: lc.AffineLinear(6, 5, bound="spectral_surrogate"),
    ],
)
def test_a_dense_layer_takes_any_number_of_axes(make, shape):
    """Also while it trains, when a batch of vectors would take the fused step."""
    layer, x = make(), torch.randn(shape)
    torch.manual_seed(1)
    y = layer(x)
    assert y.shape[:-1] == shape[:-1]
    y.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters() if parameter.requires_grad)
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x.reshape(-1, 6)).reshape(y.shape))


def test_under_autocast_products_are_narrow_and_the_rest_is_not(layer_and_input):
    layer, x = layer_and_input
    seed = torch.randn(x.shape)
    exact = gradients(layer, x, seed)
    with torch.autocast("cpu", torch.bfloat16):
        near = gradients(layer, x, seed)
    assert not torch.equal(near[0], exact[0]), "the products are still those of float32"
    for a, b in zip(near, exact, strict=True):
        assert a.dtype == torch.float32
        # bfloat16 keeps 8 bits, and a gradient is a sum of a few products of such numbers.
        assert (a - b).norm() <= 2**-5 * b.norm() + 1e-6


def test_a_gradient_of_t_is_narrow_only_under_autocast():
    torch.manual_seed(0)
    layer = lc.ResidualLinear(40, 30)

    def gradient(narrow):
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            unit, _ = layer.prepared()
            with fused.no_autocast(unit):
                _, t = layer.bounded(unit)
        return t.detach(), torch.autograd.grad(t.square().sum(), layer.weight)[0]

    (t, exact), (same, near) = gradient(False), gradient(True)
    assert torch.equal(t, same)
    assert 0 < (near - exact).norm() <= 2**-6 * exact.norm()
