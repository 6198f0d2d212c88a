"""Orthonormal weights in training: ``quick`` has the values and gradients of the maps that ``freeze`` takes."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import lipcert as lc
from lipcert.algebra import quick
from lipcert.algebra.orthogonal import MAPS, METHODS, QUICK, gram_deviation, orthonormal, squared_norm

SHAPES = [(7, 5), (6, 6), (3, 9, 4), (2, 33, 33), (300, 300)]


def near_orthonormal(shape, dtype, away=0.03):
    torch.manual_seed(sum(shape))
    return torch.linalg.qr(torch.randn(shape, dtype=dtype))[0] + away * torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", [method for method in METHODS if method != "exp"])
def test_values_and_gradients_are_those_of_the_plain_map(method, shape, dtype):
    """Up to the ridge of ``cholesky``, 1e-10 of the squares here, and half of the digits of a gradient."""
    weight = near_orthonormal(shape, dtype).requires_grad_()
    ours, theirs = QUICK[method](weight), MAPS[method](weight)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    along = torch.randn_like(theirs)
    (one,) = torch.autograd.grad((ours * along).real.sum(), weight)
    (other,) = torch.autograd.grad((theirs * along).real.sum(), weight)
    assert (one - other).norm() <= 1e-6 * other.norm()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_exponential_in_float32(shape):
    """Its degree is enough for 7e-6, doubled by each squaring; float64 takes the plain map."""
    weight = near_orthonormal(shape, torch.float32).requires_grad_()
    ours, theirs = QUICK["exp"](weight), MAPS["exp"](weight.double())
    assert (ours - theirs).abs().amax() <= 3e-5
    along = torch.randn_like(ours)
    (one,) = torch.autograd.grad((ours * along).sum(), weight)
    (other,) = torch.autograd.grad((theirs * along).sum(), weight)
    assert (one - other).norm() <= 1e-4 * other.norm()
    assert QUICK["exp"](weight.double()) is None
    assert QUICK["exp"](100 * weight) is None


@pytest.mark.parametrize("method", ["bjorck", "cayley", "cholesky", "reflector"])
def test_derivatives_of_derivatives_exist(method):
    weight = near_orthonormal((4, 3), torch.float64).requires_grad_()
    assert gradcheck(QUICK[method], weight, atol=1e-6)
    assert gradgradcheck(QUICK[method], weight, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spread", [1.0, 1e-1, 1e-3, 1e-7, 0.0])
def test_the_norm_in_training_is_at_most_one(method, spread):
    """Whatever the condition of the weight: one that ``quick`` does not take is mapped as in evaluation mode."""
    torch.manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(40, 40))[0] for _ in range(2))
    weight = u @ torch.linspace(1.0, spread, 40).diag() @ v
    for tall in (weight, weight[:, :30], 1e12 * weight, 1e-12 * weight):
        q = orthonormal(tall, method, training=True)
        norm = torch.linalg.matrix_norm(q.double(), 2) / squared_norm(q, method, training=True).double().sqrt()
        assert norm <= 1 + 1e-6
        plain = orthonormal(tall, method)
        assert (q - plain).abs().amax() <= 1e-4


def test_ill_conditioned_weights_are_left_to_the_plain_maps():
    torch.manual_seed(1)
    weight = torch.randn(20, 20)
    weight[:, 0] = 1e-4 * weight[:, 0] + weight[:, 1]
    for method in ("bjorck", "cholesky"):
        assert QUICK[method](weight) is None
        assert torch.equal(orthonormal(weight, method, training=True), orthonormal(weight, method))
    for method in METHODS:
        for bad in (torch.zeros(4, 4), torch.full((4, 4), 1e30)):
            assert torch.isfinite(orthonormal(bad, method, training=True)).all()


def test_half_of_the_gram_matrix_has_the_whole_deviation():
    weight = near_orthonormal((700, 600), torch.float64)
    torch.testing.assert_close(quick.deviation(weight), gram_deviation(weight))


def test_inverse_by_blocks():
    torch.manual_seed(2)
    matrix = torch.randn(601, 601, dtype=torch.float64)
    matrix = (torch.eye(601, dtype=torch.float64) + matrix - matrix.T).requires_grad_()
    along = torch.randn_like(matrix)
    ours, theirs = quick.inverse(matrix), torch.linalg.inv(matrix)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    (one,) = torch.autograd.grad((ours * along).sum(), matrix)
    (other,) = torch.autograd.grad((theirs * along).sum(), matrix)
    assert (one - other).norm() <= 1e-12 * other.norm()


@pytest.mark.parametrize("method", METHODS)
def test_a_trained_layer_is_frozen_as_it_was_trained(method):
    """After Adam the frozen layer has L ≤ 1 + 1e-6 in float64, and the outputs of the training layer."""
    torch.manual_seed(3)
    x, target = torch.randn(64, 24), torch.randn(64, 24)
    layer = nn.Sequential(lc.OrthogonalLinear(24, 24, method=method), lc.layers.MaxMin())
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    before = copy.deepcopy(layer)
    for _ in range(40):
        optimizer.zero_grad()
        (layer.train()(x) - target).square().mean().backward()
        optimizer.step()
    assert not torch.equal(before[0].weight, layer[0].weight)
    frozen = lc.freeze(layer)
    assert lc.audit(frozen, (24,)).lipschitz <= 1 + 1e-6
    torch.testing.assert_close(frozen(x), layer(x), rtol=0, atol=1e-4)
    assert lc.lipschitz_bound(layer.train()) <= 1 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_that_power_iteration_misses_turns_no_singular_value(dtype):
    """The largest singular vector is orthogonal to the start of the iteration, and 2 > √3 would become −1."""
    start = torch.arange(1.0, 33, dtype=torch.float64).square().cos()
    torch.manual_seed(1)
    basis = torch.linalg.qr(torch.cat([start[:, None], torch.randn(32, 31).double()], dim=1))[0]
    sizes = torch.ones(32).double()
    sizes[1] = 2
    weight = ((basis * sizes) @ basis.T).to(dtype)
    eye = torch.eye(32, dtype=dtype)
    torch.testing.assert_close(orthonormal(weight, "bjorck", training=True), eye, rtol=0, atol=1e-5)
