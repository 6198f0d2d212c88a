"""Proved bounds of ρ = λmax(WΓWᵀ) for a dense weight, given as ``weight`` = Wᵀ, (n, m), and γ ≥ 0, (n,).

Two methods. *Row sums* with a witness q: ρ ≤ max_i γ_i Σ_j |w_i·w_j| q_j/q_i, one Gram matrix; for SLL the learned
q is the witness, and the bound is as tight as the layer. *Cholesky*: rI − VVᵀ factored and the factor checked, for
V = Γ^½Wᵀ or its transpose, whichever Gram matrix is smaller; near tight for every γ.

Rounding: up. Infinite where nothing is proved: NaN, infinities, γ < 0. Rows with γ_i = 0 are dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipcert.verified.cholesky import gram, smallest_eigenvalue_down
from lipcert.verified.rounding import ETA, Array, exponents, g, ldexp_up, norm_up, real, scaled, up, usable
from lipcert.verified.rowsums import largest_up, nonnegative_norm_up, overlaps, split_row_sums
from lipcert.verified.scale import scaled_rows

CHOLESKY_UP_TO = 4096  # rows of the smaller Gram matrix; beyond, its cost is minutes


@dataclass(frozen=True)
class Bound:
    """A proved number and what proved it; infinite, by "none", where no proof was found."""

    value: float
    method: str


def best(*bounds: Bound) -> Bound:
    """The smallest of several bounds of one number."""
    smallest = min(bounds, key=lambda bound: bound.value)
    return smallest if math.isfinite(smallest.value) else Bound(math.inf, "none")


@dataclass(frozen=True)
class RowSums:
    """T_i = values_i·2^powers_i ≥ Σ_j Σ_d |C_ij[d]| q_j/q_i; the exponents are apart, so that nothing overflows."""

    values: Array  # (n,)
    powers: npt.NDArray[np.int64]
    computed: Array  # the same sums, not rounded up

    def total(self) -> Array:
        """T as float64, rounded up."""
        return ldexp_up(self.values, self.powers)

    def estimate(self) -> Array:
        """T as it is computed in float64, which proves nothing."""
        return scaled(self.computed, -self.powers)

    @np.errstate(all="ignore")
    def rho(self, gamma: Array) -> float:
        """max_i γ_i T_i ≥ ρ, if no row with γ_i > 0 was left out of the sums."""
        if not usable(gamma) or bool((gamma < 0).any()):
            return math.inf
        shift = exponents(gamma)
        products = up(self.values * scaled(gamma, shift), 1)  # mantissas in [½, 1) times sums that cannot overflow
        return float(ldexp_up(products, self.powers + shift).max(initial=0.0))


def rho_weighted(weight: npt.ArrayLike, gamma: npt.ArrayLike, q: npt.ArrayLike | None = None) -> float:
    """ρ ≤ max_i γ_i T_i with the T_i of ``row_sums`` for the rows with γ_i > 0; q is found here if not given.

    A q that is not positive and finite proves nothing: the bound is infinite.
    """
    rows = real("weight", weight, 2)
    if q is not None:
        weights = per_row("gamma", gamma, rows)
        return row_sums(rows, q, weights > 0).rho(weights)
    parts = scaled_rows(rows, gamma)
    return math.inf if parts is None else ldexp_up(_by_row_sums(parts.rows), 2 * parts.exponent)


def row_sums(weight: npt.ArrayLike, q: npt.ArrayLike, kept: npt.NDArray[np.bool_]) -> RowSums:
    """T of the rows that are ``kept``, (n,), for a dense weight; the others do not count and have T_i = 0."""
    rows = real("weight", weight, 2)
    return column_sums(rows, per_row("q", q, rows), kept)


def column_sums(columns: Array, q: Array, kept: npt.NDArray[np.bool_]) -> RowSums:  # (n, R, *taps), (n,), (n,)
    """``row_sums`` for dense and convolutional columns; all infinite where the input proves nothing."""
    values, computed, powers = np.zeros(len(q)), np.zeros(len(q)), np.zeros(len(q), np.int64)
    if not usable(columns, q) or bool((q <= 0).any()):
        infinite = np.full_like(values, np.inf)
        return RowSums(infinite, powers, infinite)
    some = slice(None) if kept.all() else kept  # a slice copies nothing
    values[some], computed[some], powers[some] = split_row_sums(*_unit_columns(columns[some]), q[some])
    return RowSums(values, powers, computed)


def row_sums_up(weight: npt.ArrayLike, q: npt.ArrayLike) -> Array:  # (n, m), (n,) → (n,)
    """T_i ≥ Σ_j |w_i·w_j| q_j/q_i, exactly; then WᵀW ⪯ T, so γ_i = down(1/T_i, 1) has ρ ≤ 1.

    Any finite q > 0 is sound. For a learned log q pass q = exp(log_q − mean), the exponent clamped to ±40; the
    rounding of exp is harmless, q being only a witness. A zero row has T_i = 0. Where the ‖w_j‖q_j
    differ by more than a factor of about 2⁹⁰⁰ the smallest get a T_i that is too large.
    """
    return row_sums(weight, q, np.ones(len(np.asarray(weight)), bool)).total()


def rho_cholesky(weight: npt.ArrayLike, gamma: npt.ArrayLike) -> float:  # (n, m), (n,)
    """ρ by a checked Cholesky factor; infinite if the factorisation fails."""
    parts = scaled_rows(real("weight", weight, 2), gamma)
    return math.inf if parts is None else ldexp_up(_by_cholesky(parts.rows), 2 * parts.exponent)


def rho_bound(weight: npt.ArrayLike, gamma: npt.ArrayLike, q: npt.ArrayLike | None = None) -> Bound:
    """The smallest proved bound of ρ, and the method that proved it."""
    parts = scaled_rows(real("weight", weight, 2), gamma)
    if parts is None:
        return Bound(math.inf, "none")
    found = _squared_norm(parts.rows)
    found = Bound(ldexp_up(found.value, 2 * parts.exponent), found.method)
    return found if q is None else best(found, Bound(rho_weighted(weight, gamma, q), "row sums"))


def norm_bound(matrix: npt.ArrayLike) -> Bound:  # (n, m)
    """The smallest proved bound of the spectral norm ‖A‖₂; the scale of A does not matter."""
    parts = scaled_rows(real("matrix", matrix, 2), None)
    if parts is None:
        return Bound(math.inf, "none")
    found = _squared_norm(parts.rows)
    return Bound(ldexp_up(sqrt_up(found.value), parts.exponent), found.method)


def kappa(weight: npt.ArrayLike, gamma: npt.ArrayLike) -> float:  # (n, m), (n,)
    """At least ‖|W|Γ^½‖₂, for the rounding errors of a forward pass."""
    parts = scaled_rows(real("weight", weight, 2), gamma)
    if parts is None:
        return math.inf
    return ldexp_up(nonnegative_norm_up(np.abs(parts.rows), 2), parts.exponent)


def sqrt_up(x: float) -> float:
    """At least √x, for x ≥ 0."""
    return up(math.sqrt(x), 1) if x < math.inf else math.inf


def per_row(name: str, values: npt.ArrayLike, rows: Array) -> Array:
    """``values`` as float64, one for each row."""
    vector = real(name, values, 1)
    if len(vector) != len(rows):
        raise ValueError(f"{name} must have one entry per row, {len(rows)}; got {len(vector)}. Pass shape (n,).")
    return vector


def _unit_columns(columns: Array) -> tuple[Array, npt.NDArray[np.int64]]:  # (n, …) → (n, …), (n,)
    """m, e with columns 2^e_i·m_i, the largest modulus of each m_i in [½, 1), or 0."""
    others = tuple(range(1, columns.ndim))
    tops = exponents(np.abs(columns).max(axis=others, initial=0.0))
    return scaled(columns, np.expand_dims(tops, others)), tops


def _squared_norm(rows: Array) -> Bound:
    """‖V + Δ‖² for the V and Δ of ``scaled_rows``."""
    bounds = [Bound(_by_row_sums(rows), "row sums")]
    if min(rows.shape) <= CHOLESKY_UP_TO:
        bounds.append(Bound(_by_cholesky(rows), "cholesky"))
    return best(*bounds)


def _by_row_sums(rows: Array) -> float:
    return largest_up(overlaps(rows), relative=2) if rows.any() else 0.0


@np.errstate(all="ignore")
def _by_cholesky(rows: Array) -> float:
    """(√(λ + e) + δ)²: λ of the computed Gram matrix, e its error, δ ≥ ‖Δ‖ the error of V itself."""
    if not rows.any():
        return 0.0
    v = rows if rows.shape[0] <= rows.shape[1] else rows.T
    product, error = gram(v)
    largest = max(0.0, -smallest_eigenvalue_down(-product))
    moved = g(2) * norm_up(v) + 8.0 * math.sqrt(v.size) * ETA
    root = math.sqrt(largest + float(error)) + moved
    return up(root * root, 12)
