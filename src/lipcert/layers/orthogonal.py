"""Orthogonal layers Qx + b, the case T = I of Theorem 1 (dense)."""

from __future__ import annotations

import torch

from lipcert.algebra.bounds import Orthogonal
from lipcert.layers.affine import AffineLinear


class OrthogonalLinear(AffineLinear):
    """g(x) = Qx + b with orthonormal rows or columns in Q, whichever are fewer.

    An ``AffineLinear`` whose bound replaces the weight by an orthonormal one; the name is for readers.
    The residual form x − 2Qσ(Qᵀx + b) is ``ResidualLinear(m, n, bound="orthogonal")``, or
    ``bound=lipcert.bounds.Orthogonal(method)``.

    Args:
        method: ``cayley``, ``exp`` (SOC), ``bjorck``, ``cholesky`` or ``reflector`` (BRO).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        method: str = "cayley",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        bound = Orthogonal(method)
        super().__init__(in_features, out_features, bound=bound, bias=bias, device=device, dtype=dtype)
