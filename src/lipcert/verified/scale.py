"""Γ^½Wᵀ brought to a common power of two: V with entries of modulus at most 1, the largest at least ¼.

ρ = λmax(WΓWᵀ) is ‖Γ^½Wᵀ‖², and only the products √γ_i·w_i matter: γ_i = 10³⁰⁰ and w_i = 10⁻¹⁵⁰ are harmless
together and overflow apart. So exponents are added as integers and only mantissas are multiplied.

Rounding: with Γ^½Wᵀ = 2^E(V + Δ) exactly, |Δ_ij| ≤ g_2|V_ij| + 4·ETA. Rows with γ_i = 0 become zero rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipcert.verified.rounding import Array, exponents, real, scaled, usable


@dataclass(frozen=True)
class Scaled:
    """Γ^½Wᵀ = 2^exponent·(rows + Δ), |Δ| ≤ g_2|rows| + 4·ETA entry by entry."""

    rows: Array  # (n, …): V
    exponent: int


def scaled_rows(weight: Array, gamma: npt.ArrayLike | None) -> Scaled | None:  # (n, …), (n,)
    """V and E for ``weight`` = Wᵀ; None where nothing can be proved: NaN, infinities, a negative γ.

    ``gamma=None`` means γ = 1; then Δ is underflow alone.
    """
    count = weight.shape[0]
    weights = np.ones(count) if gamma is None else real("gamma", gamma, 1)
    if weights.shape != (count,):
        raise ValueError(
            f"gamma must have one entry per row, {count}; got {weights.shape[0]}. Pass γ of shape (n,)."
        )
    if not usable(weight, weights) or bool((weights < 0).any()):
        return None
    flat = weight.reshape(count, math.prod(weight.shape[1:]))
    largest = np.abs(flat).max(axis=1, initial=0.0)
    tops = exponents(largest)
    mantissas = scaled(flat, tops[:, None])  # largest entry of each row in [½, 1)
    halves = (exponents(weights) + 1) // 2  # γ = 4^half·rest with rest in [¼, 1)
    roots = np.sqrt(scaled(weights, 2 * halves))
    alive = (weights > 0) & (largest > 0)
    if not alive.any():
        return Scaled(np.zeros_like(weight), 0)
    shift = tops + halves
    exponent = int(shift[alive].max())
    rows = scaled(mantissas * (roots * alive)[:, None], (exponent - np.where(alive, shift, exponent))[:, None])
    return Scaled(rows.reshape(weight.shape), exponent)
