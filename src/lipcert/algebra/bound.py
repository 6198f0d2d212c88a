"""What a bound is: a map from the columns of W to a diagonal T with WᵀW ⪯ T."""

from __future__ import annotations

import abc

import numpy as np
from torch import Tensor

from lipcert.algebra.gram import Columns
from lipcert.algebra.scale import normalize
from lipcert.intact import Fixed


class Bound(Fixed, abc.ABC):
    """A choice of T. ``size``, where a bound has one, is the number of columns it was made for."""

    size: int | None = None
    dense_only: bool = False

    @abc.abstractmethod
    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        """The columns to use and diag(T), one entry per column, with WᵀW ⪯ T."""

    def prepare(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(Ŵ, s) with W = s·Ŵ, in float32 or better: what the columns are taken from."""
        return normalize(weight)

    def require_sound(self) -> None:
        """Raise ``NotCertified`` where T is no bound in the present mode; most bounds always are."""

    def witness(self, count: int) -> np.ndarray | None:  # (count,) float64
        """The q of T_i = Σ_j A_ij q_j/q_i for ``count`` columns; None for bounds of another kind."""
        return None
