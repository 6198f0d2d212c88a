"""Row sums of absolute overlaps: Gershgorin's theorem with a witness, which is Collatz and Wielandt's.

Columns k_a[r, u], a < n, r < R, have taps u in any number of axes: u is a tuple with one index for each. A dense
weight has no axis and one tap. Columns overlap by C_ab[d] = Σ_{r,u} k_a[r, u+d] k_b[r, u]. With x > 0,
T_i = Σ_j Σ_d |C_ij[d]| x_j/x_i dominates the Gram symbol at every frequency, so max_i T_i bounds its largest
eigenvalue. Any x is a witness; a bad one is loose, never wrong.

Rounding: up. The error of all overlaps of one row is g_l·Σ_j Σ_r a_ir a_jr x_j, l the terms of one overlap and
a_ir = Σ_u |k_i[r, u]|: two products of a matrix and a vector, exact zeros where supports are disjoint.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipcert.verified.rounding import ETA, Array, exponents, g, scaled, up

FLOOR = 2.0**-960  # below this a witness would underflow; larger entries only enlarge T
STEPS = 60


@dataclass(frozen=True)
class Overlaps:
    """|C| summed over lags, the sums |k| over taps, and what their computation may have lost."""

    total: Array  # (n, n): Σ_d |C_ij[d]|, computed
    taps: Array  # (n, R): Σ_u |k_i[r, u]|, computed
    length: int  # terms in one overlap, at most
    roundings: int  # on each path to one entry of ``total`` or, squared, of ``taps``


@np.errstate(all="ignore")
def overlaps(columns: Array) -> Overlaps:  # (n, R, *taps), entries of modulus at most 1
    """The overlaps of all pairs of columns, over all lags; a lag has one entry for each axis of taps."""
    n, rows, *taps = columns.shape
    total, zero = np.zeros(0), (0,) * len(taps)
    for lag in itertools.product(*(range(1 - k, k) for k in taps)):
        if lag < zero:  # half of the lags, those that are not before 0 in the dictionary: C_ij[−d] = C_ji[d]
            continue
        ahead = tuple(slice(max(d, 0), k + min(d, 0)) for d, k in zip(lag, taps, strict=True))
        behind = tuple(slice(max(-d, 0), k - max(d, 0)) for d, k in zip(lag, taps, strict=True))
        first, second = (columns[:, :, *part].reshape(n, -1) for part in (ahead, behind))
        size = first @ second.T
        np.abs(size, out=size)
        total = size if lag == zero else total + (size + size.T)  # the lag 0 comes first
    area, lags = math.prod(taps), math.prod(2 * k - 1 for k in taps)
    sums = np.abs(columns)
    sums = sums.sum(axis=tuple(range(2, columns.ndim))) if taps else sums
    return Overlaps(total, sums, rows * area, max(4 * area, lags) + 2 * area)  # up to two axes lags < 4·area


@np.errstate(all="ignore")
def weighted_sums_up(parts: Overlaps, x: Array, *, relative: int = 0) -> Array:  # x (n,) in (0, 1] → (n,)
    """At least Σ_j Σ_d |C_ij[d]| x_j for columns that differ from the given ones by |Δ| ≤ g_relative|k| + 4·ETA."""
    n, rows = parts.taps.shape
    error = g(parts.length + 2 * relative) * (parts.taps @ (parts.taps.T @ x))
    lost = 2.0**6 * n * parts.roundings * parts.length * ETA
    return up(parts.total @ x + error + lost, n + rows + parts.roundings + 4)


@np.errstate(all="ignore")
def witness(total: Array) -> Array:  # (n, n) → (n,)
    """A good x for max_i (total·x)_i/x_i: power iteration on a non-negative symmetric matrix, kept positive."""
    x = np.ones(total.shape[0])
    for _ in range(STEPS):
        image = total @ x
        top = float(image.max(initial=0.0))
        if not 0 < top < np.inf:
            return np.ones(total.shape[0])
        x = np.maximum(image / top, 2.0**-40)
    return x


@np.errstate(all="ignore")
def largest_up(parts: Overlaps, *, relative: int) -> float:
    """At least sup λmax of the Gram symbol, with a witness found here."""
    x = witness(parts.total)
    return float(up(weighted_sums_up(parts, x, relative=relative) / x, 1).max(initial=0.0))


@np.errstate(all="ignore")
def split_row_sums(
    columns: Array, tops: npt.NDArray[np.int64], q: Array
) -> tuple[Array, Array, npt.NDArray[np.int64]]:  # (n, R, *taps), (n,), (n,) → (n,), (n,), (n,)
    """t, s, e with t_i·2^e_i ≥ Σ_j Σ_d |C_ij[d]| q_j/q_i for the columns 2^tops·columns; zero columns have t = 0.

    s is the same sum as it is computed, which proves nothing.

    ``columns`` are scaled so that the largest modulus of each is in [½, 1), or 0. Exponents stay integers: no row
    sum overflows before the caller puts t and e together.
    """
    alive = columns.any(axis=tuple(range(1, columns.ndim)))
    if not alive.any():
        return np.zeros(len(q)), np.zeros(len(q)), np.zeros(len(q), np.int64)
    powers = exponents(q)
    mantissas = scaled(q, powers)
    shift = tops + powers
    most = int(shift[alive].max())
    x = np.where(alive, np.maximum(scaled(mantissas, most - shift), FLOOR), FLOOR)
    parts = overlaps(columns)
    sums, computed = weighted_sums_up(parts, x), parts.total @ x
    return np.where(alive, up(sums / mantissas, 1), 0.0), computed / mantissas * alive, tops + most - powers


@np.errstate(all="ignore")
def nonnegative_norm_up(matrix: Array, roundings: int) -> float:  # (…, n, R), entries in [0, 2⁴⁰]
    """At least ‖S‖₂ for every S with 0 ≤ S ≤ (1 + g_roundings)(matrix + 2⁶⁰·ETA) entry by entry; 0 if matrix = 0.

    Of a stack of matrices it is the largest.

    ‖S‖² is the spectral radius of SᵀS, at most max_k (SᵀSx)_k/x_k for any x > 0 (Collatz, Wielandt). The largest
    entry is 0 or not small: callers scale it, so a zero matrix means S = 0.
    """
    if not matrix.any():
        return 0.0
    *stack, n, rows = matrix.shape
    x = np.ones((*stack, rows, 1))
    for _ in range(STEPS):
        image = matrix.swapaxes(-1, -2) @ (matrix @ x)
        # The bound that this x gives is within 0.1 % of a Rayleigh quotient, which no bound is below.
        quotient = (x * image).sum(axis=(-2, -1)) / (x * x).sum(axis=(-2, -1))
        if bool(((image / x).max(axis=(-2, -1)) <= 1.001 * quotient).all()):
            break
        x = np.fmax(image / image.max(axis=(-2, -1), keepdims=True), 2.0**-40)  # 2⁻⁴⁰ for NaN: any x > 0 serves
    lost = 2.0**200 * (n + 1) * (rows + 1) * ETA
    ratios = (matrix.swapaxes(-1, -2) @ (matrix @ x) + lost) / x
    return up(float(np.sqrt(ratios.max(initial=0.0))), n + rows + 2 * roundings + 8)
