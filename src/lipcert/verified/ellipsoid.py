"""Ellipsoids that hold the differences of two inputs, layer by layer: LipSDP in floating point.

If two inputs differ by at most 1, the differences z of what a linear map computes have zzᵀ ⪯ P, with P = WWᵀ.
Through an activation with slopes in [α, β] they have zzᵀ ⪯ P′ = m²D(D − P)⁻¹D − αβD, m = (α + β)/2, for *every*
diagonal D ≻ P (docs/certifiers.md has the proof). So K² = cᵀPc bounds how fast cᵀz changes. D is found elsewhere:
it is trusted for nothing.

Rounding: what is kept is P ⪯ M + eI, with M exactly the numbers of ``matrix`` and e rounded up. B = mWD and
A = D − M − (e + s)I are eliminated together: A ≈ FFᵀ and B = ZFᵀ + N, both defects bounded. With what is left of s

    m²WD(D − P)⁻¹DWᵀ ⪯ (ZFᵀ + N)(FFᵀ + sI)⁻¹(ZFᵀ + N)ᵀ ⪯ (1 + t)ZZᵀ + (1 + 1/t)‖N‖²/s·I   for every t > 0.

None where nothing is proved: D is not above P, or a number is NaN or out of range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipcert.verified.cholesky import smallest_eigenvalue_down
from lipcert.verified.dense import sqrt_up
from lipcert.verified.rounding import U64, Array, g, real, up, usable

LARGEST = 2.0**100  # modulus of multipliers and of their reciprocals
WEIGHTS = 2.0**50  # Frobenius norm of a weight, and modulus of slopes
BLOCK = 64  # columns that are eliminated at once
ROOM = 2.0**-28  # s relative to the largest diagonal entry of D − P
TINY = 2.0**-480  # more than everything that underflows


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
    if not (usable() and _norm(rows) <= WEIGHTS):
        return None
    return Ellipsoid(*_gram(rows))


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
    bounded = _norm(rows) <= WEIGHTS and _norm(before.matrix) <= LARGEST**2 and math.isfinite(before.excess)
    if not (usable() and fits and bounded):
        return None
    # A = D − M − (e + s)I above B = m·WD: m is rounded up, which makes P′ larger, and each entry of B twice more.
    n = len(multipliers)
    mean = up(abs(low + high) / 2, 2) if low != -high else 0.0
    stacked = np.empty((n + len(rows), n))
    np.negative(before.matrix, out=stacked[:n])
    np.multiply(rows, mean * multipliers, out=stacked[n:])
    gap = multipliers - before.matrix.diagonal()
    shift = before.excess + ROOM * float(gap.max())
    np.fill_diagonal(stacked[:n], gap - shift)
    size = _norm(stacked[n:])
    reduced = eliminate(stacked)
    if reduced is None:
        return None
    z, defect, residual = reduced
    # D − P ⪰ FFᵀ + room·I.
    lost = up(defect + 2 * U64 * (float(np.abs(gap).max()) + shift) + before.excess, 4)
    room = math.nextafter(shift - lost, -math.inf)
    if not room > 0:
        return None
    product, error = _gram(z)
    nu = up(residual + 4 * U64 * size, 4)
    length = _norm(z)
    t = min(1.0, max(2.0**-50, nu / math.sqrt(room) / length))
    matrix = (1 + t) * product
    excess = (1 + t) * error + (1 + 1 / t) * nu / room * nu + 4 * U64 * _norm(matrix)
    if low * high != 0:
        # − αβ WDWᵀ must not be left out where αβ < 0.
        halves = np.sqrt(multipliers) * rows
        more, wrong = _gram(halves)
        change = -low * high * more
        weight_of = up(abs(low * high), 2)
        matrix = matrix + change
        excess += weight_of * (wrong + 8 * U64 * _norm(halves) ** 2) + 8 * U64 * _norm(change)
        excess += 4 * U64 * _norm(matrix)
    excess = up(excess + TINY, 40)
    return Ellipsoid(matrix, excess) if _norm(matrix) <= LARGEST**2 and math.isfinite(excess) else None


@np.errstate(all="ignore")
def eliminate(stacked: Array) -> tuple[Array, float, float] | None:  # (n + m, n) → (m, n)
    """Z, α, β with ‖A − FFᵀ‖ ≤ α and ‖B − ZFᵀ‖ ≤ β for a lower triangular F, from A above B, overwritten.

    Cholesky's factorization of A, continued through the rows of B, by blocks of columns. With the columns of blocks
    before j done, S = [A; B]_j − [F; Z]F_jᵀ is what is left, F_jj is the factor of its first block, V ≈ F_jj⁻¹, and
    SVᵀ the new columns. Both witnesses are checked block by block, for a small part of the whole cost. A must be
    exactly symmetric. None if it is not positive definite.
    """
    n = stacked.shape[1]
    given = _norm(stacked[:n]), _norm(stacked[n:])
    squares, wrong = np.zeros(2), np.zeros(2)  # of F and Z; of what the blocks are off: for A and B each
    for start in range(0, n, BLOCK):
        here = slice(start, min(start + BLOCK, n))
        rest = stacked[start:, here] - stacked[start:, :start] @ stacked[here, :start].T
        width = rest.shape[1]
        try:
            head: Array = np.asarray(np.linalg.cholesky(rest[:width]), np.float64)
            inverse: Array = np.asarray(np.linalg.inv(head), np.float64)
        except np.linalg.LinAlgError:
            return None
        block = rest @ inverse.T
        block[:width] = head
        stacked[start:, here] = block
        # S − (SVᵀ + E)F_jjᵀ = S(I − F_jjV)ᵀ − EF_jjᵀ with |E| ≤ g|S||V|ᵀ, and S = F_jjF_jjᵀ for the block itself.
        size, lost = _absolute_norm(head), g(width + 2)
        turned = _norm(np.eye(width) - head @ inverse) + 2 * lost * (size * _absolute_norm(inverse) + 1)
        own = _norm(rest[:width] - head @ head.T) + lost * (size * _norm(head) + _norm(rest[:width]))
        parts = rest[width : n - start], rest[n - start :]
        wrong += np.square([turned * _norm(part) for part in parts])
        wrong[0] += own**2
        squares += [_norm(part) ** 2 for part in (block[: n - start], block[n - start :])]
    if not np.isfinite([squares, wrong]).all():
        return None
    # The products that make S err by g|[F; Z]||F_j|ᵀ, all of them by the product of the norms (Cauchy, Schwarz).
    lengths = np.sqrt(squares)
    alpha, beta = (g(n + 2) * (given + lengths * lengths[0]) + np.sqrt(wrong)) * (1 + 2.0**-40) + TINY
    return stacked[n:], 1.5 * float(alpha), float(beta)  # ‖X‖_F² is at most twice that of its lower triangle


def _gram(rows: Array) -> tuple[Array, float]:  # (m, n) → (m, m)
    """RRᵀ, exactly symmetric, and a bound of the 2-norm of its error: |R||R|ᵀ has at most the norm ‖R‖_F²."""
    product = np.empty((len(rows),) * 2)
    for start in range(0, len(rows), BLOCK):
        here = slice(start, start + BLOCK)
        below = rows[here] @ rows[: start + BLOCK].T
        corner = np.tril(below[:, start:])
        below[:, start:] = corner + np.tril(corner, -1).T
        product[here, : start + BLOCK], product[:start, here] = below, below[:, :start].T
    return product, up(g(rows.shape[1]) * _norm(rows) ** 2 + TINY, 4)


def _norm(x: Array) -> float:
    """At least ‖x‖_F, for entries of at most 2²⁰⁰; what underflows loses less than TINY."""
    return float(np.linalg.norm(x)) * (1 + g(x.size + 4)) + TINY


def _absolute_norm(x: Array) -> float:
    """At least ‖|x|‖₂ ≤ √(largest row sum · largest column sum), with the limits of ``_norm``."""
    sizes = np.abs(x)
    sums = float(sizes.sum(axis=0).max()), float(sizes.sum(axis=1).max())
    return math.sqrt(sums[0]) * math.sqrt(sums[1]) * (1 + g(len(x) + 6)) + TINY
