"""Directed rounding in IEEE 754 double precision, round to nearest: the lemmas every other bound stands on.

With u = 2⁻⁵³ and g_n = nu/(1 − nu): a number computed from non-negative data by sums and products with at most n
roundings on each path is at least its exact value divided by 1 + g_n, wherever nothing underflows. What underflows
loses at most ``ETA`` per operation (this covers flushing to zero), and callers scale by powers of two, which is
exact, so that ETA is negligible.

Rounding: names say the direction, ``*_up`` or ``*_down``. NaN, and a negative number where none may be, become +∞
in an upper bound and 0 in a lower one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

U64 = 2.0**-53  # half the distance from 1 to the next float64
U32 = 2.0**-24
ETA = 2.0**-1022  # no single underflow loses more, flushed to zero or not


def g(n: int, u: float = U64) -> float:
    """An upper bound of nu/(1 − nu); infinite unless nu < ½."""
    if n < 0:
        raise ValueError(f"n counts roundings, at least 0; got {n}. Pass the number of operations.")
    product = n * u  # exact below 2⁵³ operations, and above it nu ≥ ½
    return product / (1.0 - product) * (1.0 + 4 * U64) if product < 0.5 else math.inf


@overload
def up(x: float, k: int = 1) -> float: ...
@overload
def up(x: Array, k: int = 1) -> Array: ...
def up(x: float | Array, k: int = 1) -> float | Array:
    """At least x(1 + g_k) = x/(1 − ku), for x ≥ 0: repairs k roundings. NaN and negative x give +∞."""
    with np.errstate(all="ignore"):
        larger = np.nextafter(x * (1.0 + g(k + 2)), np.inf)
        result = np.where(np.asarray(x) > 0, larger, np.where(np.asarray(x) == 0, 0.0, np.inf))
    return result if isinstance(x, np.ndarray) else float(result)


@overload
def down(x: float, k: int = 1) -> float: ...
@overload
def down(x: Array, k: int = 1) -> Array: ...
def down(x: float | Array, k: int = 1) -> float | Array:
    """At most x(1 − ku), for x ≥ 0, and never negative. NaN and negative x give 0."""
    with np.errstate(all="ignore"):
        factor = max(0.0, 1.0 - (k + 2) * U64)
        smaller = np.nextafter(x * factor, -np.inf)
        result = np.where(np.asarray(x) > 0, np.maximum(smaller, 0.0), 0.0)
        result = np.where(np.asarray(x) == np.inf, np.finfo(np.float64).max, result)
    return result if isinstance(x, np.ndarray) else float(result)


@overload
def ldexp_up(x: float, exponent: int) -> float: ...
@overload
def ldexp_up(x: Array, exponent: int | npt.NDArray[np.int64]) -> Array: ...
def ldexp_up(x: float | Array, exponent: int | npt.NDArray[np.int64]) -> float | Array:
    """At least x·2^exponent, for x ≥ 0: exact, but for underflow (one step up) and overflow (+∞)."""
    with np.errstate(all="ignore"):
        shift = np.clip(exponent, -3000, 3000).astype(np.int32)  # beyond, every float64 under- or overflows
        shifted = np.ldexp(np.asarray(x, np.float64), shift)
        lossy = (np.asarray(x) > 0) & (shifted < ETA)
        result = np.where(np.asarray(x) >= 0, np.where(lossy, np.nextafter(shifted, np.inf), shifted), np.inf)
    return result if isinstance(x, np.ndarray) else float(result)


def float32_down(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The largest float32 numbers that are at most x: towards −∞, so towards 0 for x ≥ 0. NaN stays NaN."""
    exact = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        return np.where(near.astype(np.float64) > exact, np.nextafter(near, np.float32(-np.inf)), near)


def exponents(magnitudes: Array) -> npt.NDArray[np.int64]:
    """e with 2^(e−1) ≤ x < 2^e for each x > 0, and 0 for x = 0."""
    return np.frexp(magnitudes)[1].astype(np.int64)


def scaled(x: Array, exponent: int | npt.NDArray[np.int64]) -> Array:
    """x·2^−exponent: exact, but for underflow, which loses at most ETA in each entry."""
    shift = np.clip(-np.asarray(exponent), -3000, 3000).astype(np.int32)
    with np.errstate(all="ignore"):
        return np.ldexp(x, shift)


@overload
def norm_up(v: npt.ArrayLike, axis: None = None) -> float: ...
@overload
def norm_up(v: npt.ArrayLike, axis: int | tuple[int, ...]) -> Array: ...
def norm_up(v: npt.ArrayLike, axis: int | tuple[int, ...] | None = None) -> float | Array:
    """At least ‖v‖₂, of the whole array or along ``axis``; neither overflows nor underflows on the way."""
    values = np.abs(np.asarray(v, np.float64))
    top = exponents(values.max(axis=axis, keepdims=True, initial=0.0))
    with np.errstate(all="ignore"):
        squares = np.sum(scaled(values, top) ** 2, axis=axis)  # at least ¼ unless v = 0
    count = values.size // max(1, squares.size)
    result = ldexp_up(up(np.asarray(np.sqrt(squares)), count + 2), np.reshape(top, squares.shape))
    return float(result) if axis is None else result


def sum_up(values: npt.ArrayLike) -> float:
    """At least Σ v, for v ≥ 0. NaN or a negative number gives +∞."""
    terms = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        return up(float(terms.sum()), terms.size) if bool((terms >= 0).all()) else math.inf


def prod_up(values: Iterable[float]) -> float:
    """At least Π v, for v ≥ 0, with no underflow or overflow on the way. NaN, ∞ or a negative number gives +∞."""
    mantissa, exponent, count = 1.0, 0, 0
    for value in values:
        if not 0 <= value < math.inf:
            return math.inf
        factor, shift = math.frexp(value)
        mantissa, more = math.frexp(mantissa * factor)  # a product of numbers in [½, 1), or 0
        exponent, count = exponent + shift + more, count + 1
    return ldexp_up(up(mantissa, count), exponent)


def real(name: str, x: npt.ArrayLike, ndim: int) -> Array:
    """``x`` as float64, exactly, if it holds floating-point numbers in ``ndim`` axes; else a ValueError."""
    array: npt.NDArray[Any] = np.asarray(x)
    if array.ndim != ndim or array.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(
            f"{name} must be a float32 or float64 array with {ndim} axes; got {array.dtype} of shape "
            f"{array.shape}. Convert it, and add axes of length 1 where some are missing."
        )
    return array.astype(np.float64)


def usable(*arrays: Array) -> bool:
    """Whether all numbers are finite and this thread computes as IEEE 754 says: to nearest, with subnormals."""
    one, tiny = np.ones(2), np.full(2, 5e-324)
    with np.errstate(all="ignore"):
        ieee = (
            (one + U64 == one)
            & (-one - U64 == -one)
            & (one + 1.5 * U64 == one + 2 * U64)
            & (tiny * one + tiny > tiny)
        )
        return bool(ieee.all()) and all(bool(np.isfinite(array).all()) for array in arrays)
