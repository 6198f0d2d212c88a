"""What is assumed of this platform's elementary functions: at most 8 units in the last place (docs/rounding.md).

The rounding bounds of smooth activations rest on it, and so do their certificates. It cannot be proved here, so
these tests look for a violation, against enclosures of arbitrary precision: in float32 and float64, for vectors,
single numbers and strided tensors (which run other code), near 0, near the ends of the range and in between.
"""

import math

import flint
import numpy as np
import pytest
import torch

from lipcert.activations import SLOPE_RESTRICTED, ULPS

EXACT = {
    "elu": lambda x: x if x > 0 else x.expm1(),
    "softplus": lambda x: x + (-x).exp().log1p() if x > 0 else x.exp().log1p(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
}
CHECKER = {  # as check.py computes them
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def points(dtype):
    """Magnitudes from the smallest normal number to 1000, both signs, thick around 1 and around the thresholds."""
    generator = torch.Generator().manual_seed(7)
    tiny = math.log10(torch.finfo(dtype).tiny)
    spread = 10 ** (torch.rand(600, generator=generator, dtype=torch.float64) * (3 - tiny) + tiny)
    usual = torch.rand(900, generator=generator, dtype=torch.float64) * 40
    ends = torch.tensor([0.0, 1.0, 20.0, 36.7, 88.7, 103.9, 709.7, 745.1, 0.625, 0.549306, 1e-8, 2.0**-27])
    sizes = torch.cat([spread, usual, ends.double(), ends.double().nextafter(torch.zeros(1).double())])
    return torch.cat([sizes, -sizes]).to(dtype)


def worst_ulps(name, x, y):
    """The largest error of y in units of 2u·|σ(x)|, leaving out what underflow explains."""
    u, tiny = torch.finfo(x.dtype).eps / 2, torch.finfo(x.dtype).tiny
    found = 0.0
    flint.ctx.prec = 200
    for value, computed in zip(x.tolist(), y.tolist(), strict=True):
        exact = EXACT[name](flint.arb(value))
        off = abs(flint.arb(computed) - exact) - tiny
        found = max(found, float((off / (abs(exact) * 2 * u + tiny)).upper()))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", EXACT)
def test_torch_is_within_the_assumed_accuracy(name, dtype):
    function, x = SLOPE_RESTRICTED[name].function, points(dtype)
    strided = torch.stack([x, x], dim=1)[:, 0]
    assert worst_ulps(name, x, function(x)) <= ULPS
    assert worst_ulps(name, x, function(strided)) <= ULPS
    some = x[::7]
    assert worst_ulps(name, some, torch.stack([function(one) for one in some])) <= ULPS


@pytest.mark.parametrize("name", EXACT)
def test_numpy_is_within_the_assumed_accuracy(name):
    x = points(torch.float64)
    with np.errstate(over="ignore"):
        assert worst_ulps(name, x, torch.from_numpy(CHECKER[name](x.numpy()))) <= ULPS


def test_the_search_would_find_a_violation():
    x = points(torch.float64)
    off = torch.tanh(x) * (1 + 2.0**-48)
    assert worst_ulps("tanh", x, off) > ULPS


def test_slopes_and_starts_are_as_stated():
    for sigma in SLOPE_RESTRICTED.values():
        assert float(sigma.function(torch.zeros(1, dtype=torch.float64)).abs()) <= sigma.start < 0.7
        assert bool(sigma.assumes) == (sigma.name in EXACT)
    assert float(flint.arb(2).log().upper()) <= SLOPE_RESTRICTED["softplus"].start
