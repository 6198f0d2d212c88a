"""Diagonal solutions T of WᵀW ⪯ T: a published method is a choice of T (Theorems 1, 3, 6, 7).

A bound maps the columns of W to (columns, diag T). It sees columns scaled to a largest entry near 1
(``scale.normalize``), so nothing overflows; T of W = s·Ŵ is s²·T̂. Three families:

- row sums of |WᵀW|·r with r_ij r_ji ≥ 1 (AOL, SLL), since 2|x_i x_j| ≤ r x_i² + x_j²/r;
- the same for the power (WᵀW)^(2^k), then the 2^k-th root: Löwner–Heinz (Rescaled);
- one number for all columns, a proved upper bound of ‖W‖² (Spectral), or of ‖WΓ^½‖² for a fixed
  shape Γ (Optimal). Power iteration gives lower bounds and is never used.

Rounding: T may be enlarged, never shrunk, since T ≤ T′ keeps WᵀW ⪯ T′. The theorems here are those of
real arithmetic. T_i = 0 or ∞ stands for a dead neuron: Γ_i = 0 (Theorem 6).
"""

from __future__ import annotations

from typing import cast, get_args

import torch

from lipcert.algebra.bound import Bound
from lipcert.algebra.norms import Optimal, Orthogonal, Spectral
from lipcert.algebra.rowsums import AOL, SLL, Form, Rescaled
from lipcert.errors import NotCertified, one_of

__all__ = ["AOL", "SLL", "Bound", "Optimal", "Orthogonal", "Rescaled", "Spectral"]

SLL_FORMS: tuple[Form, ...] = get_args(Form)
CONVOLUTIONAL = (
    "aol",
    "rescaled",
    "sll",
    *(f"sll_{form}" for form in SLL_FORMS if form != "exp"),
    "spectral",
    "spectral_surrogate",
)
NAMES = (*CONVOLUTIONAL, "optimal", "orthogonal")


def make_bound(
    bound: str | Bound,
    size: int,
    *,
    convolution: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Bound:
    """A bound from its name or from an object, for a weight with ``size`` columns."""
    made = bound if isinstance(bound, Bound) else _named_bound(bound, size, device, dtype)
    if made.size is not None and made.size != size:
        raise ValueError(
            f"bound must be made for the layer's {size} columns; got {type(made).__name__} for "
            f"{made.size}. Pass {type(made).__name__}({size})."
        )
    if convolution and made.dense_only:
        raise NotCertified(
            f"bound must be one that is proved for convolutions, one of {list(CONVOLUTIONAL)}; got "
            f"{type(made).__name__}, which is for dense weights. Use bound='sll'."
        )
    return made


def _named_bound(bound: str, size: int, device: torch.device | str | None, dtype: torch.dtype | None) -> Bound:
    name = one_of("bound", bound, NAMES, cure="Or pass an object, such as lipcert.bounds.Rescaled(n, order=2).")
    match name:
        case "spectral":
            return Spectral()
        case "spectral_surrogate":
            return Spectral(form="surrogate")
        case "aol":
            return AOL()
        case "sll":
            return SLL(size, device=device, dtype=dtype)
        case "rescaled":
            return Rescaled(size, device=device, dtype=dtype)
        case "optimal":
            return Optimal(size, device=device, dtype=dtype)
        case "orthogonal":
            return Orthogonal()
        case _:
            return SLL(size, cast(Form, name.removeprefix("sll_")), device=device, dtype=dtype)
