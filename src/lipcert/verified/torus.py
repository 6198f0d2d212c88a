"""Proved bounds for a circular convolution that is stored in a Fourier basis: A = TᵀBT.

T is x ↦ RxCᵀ on each channel of an image, R (2h, H) and C (2w, W). B has one block (4n, 4m) for each of the h·w
pairs of two rows of R and two rows of C, its entries in the order (row, column, channel). R and C are near
orthonormal, but no proof needs that: ‖A‖ ≤ ‖R‖²‖C‖² max‖B_g‖, and Γ, one number for each output channel, commutes
with Tᵀ, so that ρ = ‖Γ^½A‖² ≤ ‖R‖⁴‖C‖⁴ max‖Γ^½B_g‖².

Only the largest norm of a block counts. So all blocks share a power of two and a number r, and V_gV_gᵀ ⪯ rI is
proved by a Cholesky factor that is checked, as in ``dense``. Eigenvalues are computed only where a factorisation
fails: such blocks raise r.

Rounding: up. Infinite where nothing is proved.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lipcert.verified.cholesky import defect_up, gram
from lipcert.verified.dense import Bound, kappa, norm_bound, sqrt_up
from lipcert.verified.rounding import ETA, U64, Array, g, ldexp_up, norm_up, prod_up, real, up
from lipcert.verified.rowsums import nonnegative_norm_up
from lipcert.verified.scale import Scaled, scaled_rows

METHOD = "waves"
ENTRIES = 2**15  # of the blocks that are treated at once, so that they stay in the cache


def torus_rho_bound(
    rows: npt.ArrayLike, columns: npt.ArrayLike, blocks: npt.ArrayLike, gamma: npt.ArrayLike
) -> Bound:  # (2h, H), (2w, W), (h·w, 4n, 4m), (n,)
    """ρ = λmax(AᵀΓA)."""
    waves = [norm_bound(part).value for part in (rows, columns)]
    found = _largest_rho(_scaled_blocks(blocks, np.tile(np.asarray(gamma, np.float64), 4)))
    return _found(prod_up([found, *waves, *waves, *waves, *waves]))


def torus_norm_bound(rows: npt.ArrayLike, columns: npt.ArrayLike, blocks: npt.ArrayLike) -> Bound:
    """‖A‖₂."""
    waves = [norm_bound(part).value for part in (rows, columns)]
    found = _largest_rho(_scaled_blocks(blocks, None))
    return _found(prod_up([sqrt_up(found), *waves, *waves]))


def torus_kappa(rows: npt.ArrayLike, columns: npt.ArrayLike, blocks: npt.ArrayLike, gamma: npt.ArrayLike) -> float:
    """At least ‖|T|ᵀ Γ^½|B| |T|‖₂, for the rounding errors of the five products."""
    waves = [kappa(part, np.ones(len(part))) for part in (np.asarray(rows), np.asarray(columns))]
    each, found = np.tile(np.asarray(gamma, np.float64), 4), []
    for some in _few_at_once(np.asarray(blocks)):
        parts = _scaled_blocks(some, each)
        largest = math.inf if parts is None else nonnegative_norm_up(np.abs(parts.rows), 2)
        found.append(ldexp_up(largest, 0 if parts is None else parts.exponent))
    return prod_up([max(found, default=math.inf), *waves, *waves])


def _scaled_blocks(blocks: npt.ArrayLike, gamma: Array | None) -> Scaled | None:  # (b, n, m), (n,)
    """The V of all blocks, with one exponent; None where nothing can be proved, or without any block."""
    array = real("blocks", blocks, 3)
    if not len(array):
        return None
    count, n, m = array.shape
    parts = scaled_rows(array.reshape(count * n, m), None if gamma is None else np.tile(gamma, count))
    return None if parts is None else Scaled(parts.rows.reshape(array.shape), parts.exponent)


def _few_at_once(blocks: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    step = max(1, ENTRIES // max(1, math.prod(blocks.shape[1:])))
    return [blocks[start : start + step] for start in range(0, len(blocks), step)]


@np.errstate(all="ignore")
def _largest_rho(parts: Scaled | None) -> float:
    """The largest ‖V_g + Δ_g‖², with the terms of ``dense.rho_cholesky``."""
    if parts is None:
        return math.inf
    if not parts.rows.any():
        return 0.0
    r, largest, moved = 2.0**-5, 0.0, 0.0  # some entry is at least ¼, so the answer is at least 1/16
    for some in _few_at_once(parts.rows):
        r, found = _proved(some if some.shape[1] <= some.shape[2] else some.swapaxes(1, 2), r)
        largest, moved = max(largest, found), max(moved, float(norm_up(some, axis=(1, 2)).max()))
    root = math.sqrt(largest) + (g(2) * moved + 8.0 * math.sqrt(parts.rows[0].size) * ETA)
    return ldexp_up(up(root * root, 12), 2 * parts.exponent)


def _proved(stack: Array, r: float) -> tuple[float, float]:  # (b, p, k)
    """An r that is as large or larger, and a number close to it that is at least every ‖V_g‖²."""
    product, error = gram(stack)
    p = product.shape[-1]
    margin = 0.5 * p * U64
    for attempt in range(24):
        shift = np.maximum(r - error, 0.0)  # each block is left its own room for the error of its product
        try:
            factor = np.linalg.cholesky(shift[:, None, None] * np.eye(p) - product)
            return r, float(up(shift + (defect_up(-product, -shift, factor) + error), 2).max())
        except np.linalg.LinAlgError:
            pass
        try:
            top = float((np.linalg.eigvalsh(product)[:, -1] + error).max()) if attempt == 0 else r
        except np.linalg.LinAlgError:
            break
        r, margin = max(r, top * (1.0 + margin)), 2.0 * margin
    return r, math.inf


def _found(value: float) -> Bound:
    return Bound(value, METHOD) if math.isfinite(value) else Bound(math.inf, "none")
