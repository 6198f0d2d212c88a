"""Ellipsoids that hold the differences of two inputs, layer by layer: LipSDP in floating point.

If two inputs differ by at most 1, the differences z of what a linear map computes have zzᵀ ⪯ P, with P = WWᵀ.
Through an activation with slopes in [α, β] they have zzᵀ ⪯ P′ = m²D(D − P)⁻¹D − αβD, m = (α + β)/2, for *every*
diagonal D ≻ P (docs/certifiers.md has the proof). So K² = cᵀPc bounds how fast cᵀz changes. D is found elsewhere:
it is trusted for nothing.

Rounding: what is kept is P ⪯ M + eI, with M exactly the numbers of ``matrix`` and e rounded up. D − M − eI is
factored as FFᵀ + sI, s > 0, and the defect of F is bounded (``cholesky.defect_up``). With any Y and N = m·DWᵀ −
FY,

    m²WD(D − P)⁻¹DWᵀ ⪯ (FY + N)ᵀ(FFᵀ + sI)⁻¹(FY + N) ⪯ (1 + t)YᵀY + (1 + 1/t)‖N‖²/s·I   for every t > 0.

None where nothing is proved: D is not above P, or a number is NaN or out of range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipcert.verified.cholesky import defect_up, gram, smallest_eigenvalue_down
from lipcert.verified.dense import sqrt_up
from lipcert.verified.rounding import U64, Array, g, norm_up, real, up, usable

LARGEST = 2.0**100  # modulus of multipliers and of their reciprocals
WEIGHTS = 2.0**50  # modulus of weights
BLOCK = 64  # rows that are solved for at once
ROOM = 2.0**-28  # s relative to the largest diagonal entry of D − P
TINY = 2.0**-700  # more than everything that underflows


@dataclass(frozen=True)
class Ellipsoid:
    """P ⪯ matrix + excess·I."""

    matrix: Array  # (n, n), exactly symmetric
    excess: float

    def lipschitz(self) -> float:
        """At least √λmax(P): the constant of the whole map."""
        return sqrt_up(up(max(0.0, -smallest_eigenvalue_down(-self.matrix)) + self.excess, 2))

    def pairs(self) -> Array:  # (n, n)
        """At least √((e_i − e_j)ᵀP(e_i − e_j)): the constants of the differences of two outputs."""
        diagonal, size = self.matrix.diagonal(), np.abs(self.matrix)
        squares = diagonal[:, None] + diagonal - 2 * self.matrix
        slack = 4 * U64 * (size.diagonal()[:, None] + size.diagonal() + 2 * size) + 2 * self.excess
        return up(np.sqrt(up(np.maximum(squares, 0.0) + slack, 6)), 2)


@np.errstate(all="ignore")
def of_weight(weight: npt.ArrayLike) -> Ellipsoid | None:  # (n, m)
    """P = WWᵀ, the differences behind a first linear map of inputs that differ by at most 1."""
    rows = real("weight", weight, 2)
    if not _moderate(rows):
        return None
    product, error = gram(rows)
    return Ellipsoid(product, up(float(error) + TINY, 1))


@np.errstate(all="ignore")
def through(
    before: Ellipsoid, d: npt.ArrayLike, low: float, high: float, weight: npt.ArrayLike
) -> Ellipsoid | None:  # (n, n), (n,), (m, n) → (m, m)
    """W P′ Wᵀ with P′ = m²D(D − P)⁻¹D − αβD: an activation with slopes in [low, high], then a linear map."""
    multipliers, rows = real("d", d, 1), real("weight", weight, 2)
    if rows.shape[1] != len(multipliers) or len(before.matrix) != len(multipliers):
        raise ValueError(
            f"D has {len(multipliers)} entries, P {len(before.matrix)} rows, W {rows.shape[1]} columns."
        )
    fits = (
        bool(((multipliers >= 1 / LARGEST) & (multipliers <= LARGEST)).all()) and -WEIGHTS <= low <= high <= WEIGHTS
    )
    if not (fits and _moderate(rows) and usable(before.matrix) and math.isfinite(before.excess)):
        return None
    # D − P ⪰ D − M − eI ⪰ FFᵀ + sI.
    gap = -before.matrix
    np.fill_diagonal(gap, multipliers - before.matrix.diagonal())
    top = float(gap.diagonal().max())
    shift = before.excess + ROOM * top
    try:
        factor: Array = np.asarray(np.linalg.cholesky(gap - shift * np.eye(len(gap))), np.float64)
    except np.linalg.LinAlgError:
        return None
    lost = up(float(defect_up(gap, shift, factor)) + U64 * float(np.abs(gap.diagonal()).max()) + before.excess, 4)
    room = math.nextafter(shift - lost, -math.inf)
    if not room > 0:
        return None
    # m is rounded up, which makes P′ larger; each entry of m·DWᵀ takes two more roundings.
    mean = up(abs(low + high) / 2, 2) if low != -high else 0.0
    target = (mean * multipliers)[:, None] * rows.T
    y = _solve(factor, target)
    if not usable(y) or float(np.abs(y).max(initial=0.0)) > LARGEST:
        return None
    product, error = gram(y.T)
    size, left = norm_up(y), norm_up(factor)
    residual = norm_up(target - factor @ y)
    nu = up(residual + g(len(gap)) * left * size + 4 * U64 * norm_up(target) + TINY, 8)
    t = min(1.0, max(2.0**-50, nu / math.sqrt(room) / size)) if size else 1.0
    matrix = (1 + t) * product
    excess = (1 + t) * float(error) + (1 + 1 / t) * nu / room * nu + 4 * U64 * norm_up(matrix)
    if low * high != 0:
        # − αβ WDWᵀ must not be left out where αβ < 0.
        halves = np.sqrt(multipliers) * rows
        more, wrong = gram(halves)
        change = -low * high * more
        weight_of = up(abs(low * high), 2)
        matrix = matrix + change
        excess += weight_of * (float(wrong) + 8 * U64 * norm_up(halves) ** 2) + 8 * U64 * norm_up(change)
        excess += 4 * U64 * norm_up(matrix)
    if not usable(matrix) or float(np.abs(matrix).max(initial=0.0)) > LARGEST**2:
        return None
    return Ellipsoid(matrix, up(excess + TINY, 40))


def _moderate(rows: Array) -> bool:
    return usable(rows) and float(np.abs(rows).max(initial=0.0)) <= WEIGHTS


def _solve(factor: Array, target: Array) -> Array:
    """About F⁻¹B for a lower triangular F, by blocks; nothing is assumed of how near."""
    y = np.empty_like(target)
    for start in range(0, len(factor), BLOCK):
        rows = slice(start, start + BLOCK)
        rest = target[rows] - factor[rows, :start] @ y[:start]
        y[rows] = np.linalg.inv(factor[rows, rows]) @ rest
    return y
