"""Proved bounds for a circular convolution that is stored in a basis of waves: A = TᵀBT.

T is x ↦ RxCᵀ on each channel of an image, R (2h, H) and C (2w, W). B has one block (4n, 4m) for each of the h·w
pairs of two rows of R and two rows of C, its entries in the order (row, column, channel). R and C are near
orthonormal, but no proof needs that: ‖A‖ ≤ ‖R‖²‖C‖² max‖B_g‖, and Γ, one number for each output channel, commutes
with Tᵀ, so that ρ = ‖Γ^½A‖² ≤ ‖R‖⁴‖C‖⁴ max‖Γ^½B_g‖².

Rounding: up. Infinite where nothing is proved.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lipcert.verified.dense import Bound, kappa, norm_bound, rho_cholesky, sqrt_up
from lipcert.verified.rounding import prod_up

METHOD = "waves"


def torus_rho_bound(
    rows: npt.ArrayLike, columns: npt.ArrayLike, blocks: npt.ArrayLike, gamma: npt.ArrayLike
) -> Bound:  # (2h, H), (2w, W), (h·w, 4n, 4m), (n,)
    """ρ = λmax(AᵀΓA)."""
    waves = [norm_bound(part).value for part in (rows, columns)]
    each = np.tile(np.asarray(gamma, np.float64), 4)
    found = [rho_cholesky(block, each) for block in np.asarray(blocks)]
    return _found(prod_up([max(found, default=math.inf), *waves, *waves, *waves, *waves]))


def torus_norm_bound(rows: npt.ArrayLike, columns: npt.ArrayLike, blocks: npt.ArrayLike) -> Bound:
    """‖A‖₂."""
    waves = [norm_bound(part).value for part in (rows, columns)]
    one = np.ones(np.asarray(blocks).shape[1])
    found = [rho_cholesky(block, one) for block in np.asarray(blocks)]
    return _found(prod_up([sqrt_up(max(found, default=math.inf)), *waves, *waves]))


def torus_kappa(rows: npt.ArrayLike, columns: npt.ArrayLike, blocks: npt.ArrayLike, gamma: npt.ArrayLike) -> float:
    """At least ‖|T|ᵀ Γ^½|B| |T|‖₂, for the rounding errors of the five products."""
    waves = [kappa(part, np.ones(len(part))) for part in (np.asarray(rows), np.asarray(columns))]
    each = np.tile(np.asarray(gamma, np.float64), 4)
    found = [kappa(block, each) for block in np.asarray(blocks)]
    return prod_up([max(found, default=math.inf), *waves, *waves])


def _found(value: float) -> Bound:
    return Bound(value, METHOD) if math.isfinite(value) else Bound(math.inf, "none")
