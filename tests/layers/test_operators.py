"""Operators: the columns of every geometry bound the operator, and W is the exact adjoint of Wᵀ."""

import itertools
import math

import pytest
import torch

import lipcert as lc
from lipcert.layers.forms import Affine, Residual
from lipcert.layers.operators import Conv, Dense, sizes
from table import HOSTILE, jacobian

GEOMETRIES = [
    (axes, kernel, stride, dilation, mode, groups)
    for axes, kernel, stride, dilation, mode, groups in itertools.product(
        (1, 2, 3), (1, 2, 3), (1, 2, 3), (1, 2, 3), ("zeros", "circular"), (1, 2)
    )
    if (kernel, stride, dilation) != (3, 3, 3) or axes < 3
]


def conv(axes, kernel, stride, dilation, mode, groups):
    margin = dilation * (kernel - 1) // 2
    return Conv(2, 4, *((size,) * axes for size in (kernel, stride, margin, dilation)), mode, groups)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("form", ["affine", "residual"])
def test_every_geometry_is_bounded(axes, form):
    """Stride, dilation, groups and padding, with every neuron active: where a wrong lag shows."""
    image = {1: 12, 2: 6, 3: 4}[axes]
    worst = 0.0
    for geometry in (g for g in GEOMETRIES if g[0] == axes):
        operator = conv(*geometry)
        make = {"affine": lambda op: Affine(op, "aol", True, None, None),
                "residual": lambda op: Residual(op, "sll", "relu", True, None, None)}[form]  # fmt: skip
        layer = make(operator).double()
        HOSTILE["all active"](layer)
        torch.nn.init.constant_(layer.bias, 30.0)
        x = torch.randn(1, 2, *[image] * axes, dtype=torch.float64)
        if geometry[4] == "circular" and image % geometry[2]:
            with pytest.raises(lc.NotCertified, match="divisible"):
                layer(x)
            continue
        norm = torch.linalg.matrix_norm(jacobian(layer, x), 2).item()
        assert norm <= 1 + 1e-12, geometry
        worst = max(worst, norm)
    assert worst > 0.9, "the bound must be reached, or nothing was tested"


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_adjoint_is_exact(axes):
    image = {1: 7, 2: 6, 3: 4}[axes]
    for geometry in (g for g in GEOMETRIES if g[0] == axes):
        operator = conv(*geometry)
        if geometry[4] == "circular" and image % geometry[2]:
            continue
        weight = torch.randn(operator.weight_shape, dtype=torch.float64)
        x = torch.randn(1, 2, *[image] * axes, dtype=torch.float64)
        y = operator.apply(weight, x)
        z = torch.randn_like(y)
        left, right = (y * z).sum(), (x * operator.adjoint(weight, z, x)).sum()
        assert math.isclose(left.item(), right.item(), rel_tol=1e-10, abs_tol=1e-10), geometry


def test_operators_are_records():
    assert Dense(3, 2) == Dense(3, 2)
    assert conv(2, 3, 1, 1, "zeros", 1) != conv(2, 3, 2, 1, "zeros", 1)
    assert sizes("stride", 2, 3) == (2, 2, 2)
    for value in (0, (1, 2), "2", True, None):
        with pytest.raises(ValueError, match="stride"):
            sizes("stride", value, 3)
