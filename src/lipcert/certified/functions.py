"""Scalar functions that stand alone in a network: σ(x), entry by entry, with a proved slope.

A function has |σ(x) − σ(y)| ≤ L|x − y|, and (σ(x) − σ(y))/(x − y) is at least its ``low``. What is computed
differs from σ(x) by at most g_s·(L|x| + |σ(0)|), for s roundings. Comparisons and single products are counted.
The functions that need exp, log, tanh or erf are *assumed* to be within 8 units in the last place, and every
audit and certificate that rests on it says so.

Where the slopes come from: the derivative of GELU is Φ(x) + xφ(x), largest at √2, where it is 1.128904…; that of
SiLU is largest at 2.3993…, 1.099839…; that of Mish at 1.4905…, 1.088498…; that of Hardswish at 3, 1.5; that of SELU
is s·α·eˣ below 0, at most sα. Constants are rounded up; tests/certified/test_rules.py proves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.activations import ULPS

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
LOG_2 = 0.69314718056  # rounded up


@dataclass(frozen=True)
class Scalar:
    """One family of functions x ↦ σ(x, *parameters)."""

    function: Callable[..., Tensor]
    slope: Callable[..., float]  # of the parameters: L, rounded up; not finite if there is none
    roundings: int = 0
    start: Callable[..., float] = lambda *parameters: 0.0  # at least |σ(0)|
    parameters: int = 0
    smooth: bool = False  # computed with exp, log, tanh or erf
    low: Callable[..., float] = lambda *parameters: 0.0  # the smallest slope, rounded down


def _one(*parameters: float) -> float:
    return 1.0


def _steep(a: float) -> float:
    return 1.0 if abs(a) <= 1 else abs(a)  # NaN stays NaN


def _where(good: bool) -> float:
    return 1.0 if good else math.nan


def _softplus(x: Tensor, b: float) -> Tensor:
    # torch's softplus jumps by 2e-9 at its threshold, where no slope bounds it.
    return torch.logaddexp(b * x, torch.zeros_like(x)) / b


def _celu(x: Tensor, a: float) -> Tensor:
    return torch.where(x < 0, a * torch.expm1(x.clamp_max(0) / a), x)


def _softshrink(x: Tensor, a: float) -> Tensor:
    return x - x.clamp(-a, a)


SMOOTH = 2 * ULPS
FUNCTIONS: dict[str, Scalar] = {
    "identity": Scalar(lambda x: x.clone(), _one, low=_one),
    "relu": Scalar(F.relu, _one),
    "abs": Scalar(torch.abs, _one, low=lambda: -1.0),
    "hardtanh": Scalar(
        lambda x, low, high: x.clamp(low, high), lambda low, high: _where(low <= high), parameters=2
    ),
    "maximum": Scalar(lambda x, t: x.clamp_min(t), _one, parameters=1),
    "shift": Scalar(lambda x, c: x + c, _one, 1, abs, 1, low=_one),
    "divide": Scalar(
        lambda x, d: x / d,
        lambda d: math.nextafter(1 / d, math.inf) if d > 0 else math.nan,
        1,
        parameters=1,
        low=lambda d: math.nextafter(1 / d, 0.0),
    ),
    "leaky_relu": Scalar(F.leaky_relu, _steep, 1, parameters=1, low=lambda a: min(1.0, a)),
    "softshrink": Scalar(_softshrink, lambda a: _where(a >= 0), 1, parameters=1),
    "softsign": Scalar(lambda x: x / (1 + x.abs()), _one, 3),
    "hardsigmoid": Scalar(lambda x: (x + 3).clamp(0, 6) / 6, lambda: math.nextafter(1 / 6, 1), 4, lambda: 0.5),
    "hardswish": Scalar(lambda x: x * ((x + 3).clamp(0, 6) / 6), lambda: 1.5, 6, low=lambda: -0.5),
    "elu": Scalar(F.elu, _steep, SMOOTH + 1, parameters=1, smooth=True, low=lambda a: min(0.0, a)),
    "celu": Scalar(_celu, lambda a: _where(a > 0), SMOOTH + 4, parameters=1, smooth=True),
    "selu": Scalar(F.selu, lambda: 1.758099340847377, SMOOTH + 4, smooth=True),
    "tanh": Scalar(torch.tanh, _one, SMOOTH + 1, smooth=True),
    "sigmoid": Scalar(torch.sigmoid, lambda: 0.25, SMOOTH + 1, lambda: 0.5, smooth=True),
    "softplus": Scalar(_softplus, lambda b: _where(b > 0), SMOOTH + 4, lambda b: LOG_2 / b, 1, smooth=True),
    "logsigmoid": Scalar(F.logsigmoid, _one, SMOOTH + 1, lambda: LOG_2, smooth=True),
    "gelu": Scalar(F.gelu, lambda: 1.1290, SMOOTH + 4, smooth=True, low=lambda: -0.1290),
    "silu": Scalar(F.silu, lambda: 1.0999, SMOOTH + 4, smooth=True, low=lambda: -0.0999),
    "mish": Scalar(F.mish, lambda: 1.0885, SMOOTH + 4, smooth=True, low=lambda: -0.1126),
    "tanhshrink": Scalar(lambda x: x - torch.tanh(x), _one, SMOOTH + 2, smooth=True),
}
