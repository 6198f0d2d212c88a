"""The norms in which an input may move: L2, L∞ and L1. What depends on the norm of a vector is here.

In L2 every value of a network is measured in L2. In L∞ every value is measured in L∞. An input in L1 is measured in
L1 up to the first op that needs more than slopes, and in L∞ from there on: |v·x| ≤ max|v_j|·‖x‖₁.

Rounding: up, apart from ``measure``, which rounds to nearest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lipcert.errors import one_of
from lipcert.verified.rounding import norm_up, up

NORMS = {"l2": "L2", "linf": "Linf", "l1": "L1"}  # as arguments and as in certificates
NAMES = {"l2": "L2", "linf": "L∞", "l1": "L1"}
DUAL = {"l2": "l2", "linf": "l1", "l1": "linf"}  # |v·x| ≤ ‖v‖ in the dual norm times ‖x‖


def known_norm(norm: str) -> str:
    """The norm, or ValueError."""
    return one_of("norm", norm, tuple(NORMS))


def measure(x: Tensor, norm: str) -> Tensor:  # (N, …) → (N,)
    """‖x‖ of each example, rounded to nearest."""
    flat = x.flatten(1)
    if norm == "l2":
        return flat.norm(dim=1)
    return flat.abs().amax(dim=1) if norm == "linf" else flat.abs().sum(dim=1)


def norm_of_ones(count: int, norm: str) -> float:
    """The norm of a vector of ones, rounded to nearest."""
    return {"l2": math.sqrt(count), "linf": 1.0, "l1": float(count)}[norm]


def rows_up(rows: npt.ArrayLike, norm: str) -> npt.NDArray[np.float64]:  # (n, m) → (n,)
    """The norm of each row, rounded up."""
    if norm == "l2":
        return norm_up(rows, axis=1)
    values = np.abs(np.asarray(rows, np.float64))
    with np.errstate(all="ignore"):
        return values.max(axis=1) if norm == "linf" else up(values.sum(axis=1), values.shape[1])


def apart(norm: str) -> float:
    """The constant of f_i − f_j where f has the constant 1 in that norm of its output, rounded up."""
    return {"l2": up(math.sqrt(2.0), 1), "linf": 2.0, "l1": 1.0}[norm]


def common(norms: Iterable[str]) -> str:
    """The norm that bounds hold in where values meet; L∞ is at most L1."""
    met = set(norms)
    return met.pop() if len(met) == 1 else "linf"
