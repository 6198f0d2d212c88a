"""The last layer: normalized (each row of norm 1, Singla et al. 2022), plain, or the first coordinates.

The margin between two classes changes by at most ‖w_i − w_j‖ per unit of the input, a constant per *pair*; the
constant of the whole map is another, larger number. Certificates use the pairs. ``rows()`` are the w_i.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.algebra.gram import dense_columns
from lipcert.algebra.scale import at_least_float32, no_autocast, tiny
from lipcert.algebra.spectral import squared_norm_bound
from lipcert.errors import positive_int
from lipcert.layers.contract import LipschitzLayer, require_finite, require_stated
from lipcert.layers.operators import Dense
from lipcert.layers.shape import TakeChannels


class _Head(LipschitzLayer):
    """logits_i = v_iᵀx + b_i with the rows v_i of a weight."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = positive_int("in_features", in_features)
        self.num_classes = positive_int("num_classes", num_classes)
        self.weight = nn.Parameter(torch.empty(num_classes, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_classes, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def rows(self) -> Tensor:  # (num_classes, in_features)
        """The rows v_i, in float32 or better."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        Dense(self.in_features, self.num_classes).require(x, self)
        weight = self.rows()
        wide = x if self.weight.dtype in (torch.float32, torch.float64) else at_least_float32(x)
        bias = None if self.bias is None else self.bias.to(weight.dtype)
        logits = F.linear(wide, weight, bias)
        return logits if wide is x else logits.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}, bias={self.bias is not None}"


class NormalizedHead(_Head):
    """logits_i = w_iᵀx/‖w_i‖ + b_i. A row w_i = 0 gives the constant logit b_i.

    ``lipschitz_bound()`` is the constant to all logits at once; for radii use ``pairwise_bound()``.

    Shape:
        (*, in_features) → (*, num_classes).
    """

    def rows(self) -> Tensor:  # (num_classes, in_features)
        """The rows w_i/‖w_i‖."""
        with no_autocast(self.weight):
            return self._unit_rows(at_least_float32(self.weight))

    def _unit_rows(self, weight: Tensor) -> Tensor:
        """w_i/‖w_i‖, each row divided by its largest entry first so that no norm overflows or underflows.

        A row with no entry above tiny^¼ of the dtype the head *runs in* counts as 0, since its gradient would
        overflow; the bounds, computed in float64, must see the same rows.
        """
        dtype = at_least_float32(self.weight).dtype
        largest = weight.detach().abs().amax(dim=1, keepdim=True)
        alive = largest > tiny(dtype) ** 0.25
        unit = torch.where(alive, weight, 0.0) / torch.where(alive, largest, 1.0)
        norm = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
        return unit / torch.where(alive, norm, 1.0)

    def proved_constant(self) -> float:
        """Of the map to all logits at once, ‖Ŵ‖ ≤ √num_classes; for radii use ``pairwise_bound``."""
        with torch.no_grad():
            rows = self._unit_rows(self.weight.double())
            squared = float(squared_norm_bound(dense_columns(rows), iterations=8)[0])
        return math.sqrt(squared) * self._rounding()

    def pairwise_bound(self) -> Tensor:  # (num_classes, num_classes) float64
        """‖w_i − w_j‖ of the unit rows, rounded up: how fast the margin between classes i and j can change."""
        require_stated(self, "pairwise_bound")
        require_finite(self)
        with torch.no_grad():
            rows = self._unit_rows(self.weight.double())
            distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")  # of true differences
            return distances + 2 * (self._rounding() - 1)

    def _rounding(self) -> float:
        """1 + c·eps, c = 4(in_features + num_classes + 8): norms of unit rows in float64, and room to spare."""
        return 1.0 + 4 * (self.in_features + self.num_classes + 8) * torch.finfo(torch.float64).eps


class LinearHead(_Head):
    """logits_i = w_iᵀx + b_i with rows of any norm: GloRo's last layer.

    It also lets a 1-Lipschitz network learn the scale of its logits. The scale changes the loss and no radius.
    ``lipschitz_bound()`` is the constant to all logits at once; for radii use ``pairwise_bound()``.

    Shape:
        (*, in_features) → (*, num_classes).
    """

    def rows(self) -> Tensor:  # (num_classes, in_features)
        return at_least_float32(self.weight)

    def proved_constant(self) -> float:
        """The verified norm of the map to all logits at once; for radii use ``pairwise_bound``."""
        from lipcert.certified.freeze import constant_of  # which imports this module

        return constant_of(self)

    def pairwise_bound(self) -> Tensor:  # (num_classes, num_classes) float64
        """‖w_i − w_j‖, rounded up."""
        require_stated(self, "pairwise_bound")
        require_finite(self)
        with torch.no_grad():
            rows = self.weight.double()
            distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")  # of true differences
        # A difference is rounded once, a sum of n squares at most n + 2 times; squares below 2⁻¹⁰²² may vanish.
        up = 1 + 4 * (self.in_features + 8) * torch.finfo(torch.float64).eps
        lost = math.sqrt(self.in_features) * 2.0**-510
        return (distances * up + lost) * (1 - torch.eye(self.num_classes, device=rows.device, dtype=torch.float64))


class FirstLogits(TakeChannels):
    """The first coordinates of a 1-Lipschitz map as logits, as AOL's networks end: no parameters.

    Shape:
        (N, C) with C ≥ num_classes → (N, num_classes).
    """

    place: Tensor

    def __init__(self, num_classes: int, *, device: torch.device | str | None = None) -> None:
        super().__init__(num_classes)
        self.num_classes = num_classes
        place = torch.get_default_device() if device is None else torch.device(device)
        # Its constants are where this buffer is. They have values, so they are never on meta at the start.
        empty = torch.empty(0, device="cpu" if place.type == "meta" else place)
        self.register_buffer("place", empty, persistent=False)

    def rows(self) -> Tensor:  # (num_classes, num_classes)
        """The rows that logits are: unit vectors."""
        return torch.eye(self.num_classes, device=self.place.device)

    def pairwise_bound(self) -> Tensor:  # (num_classes, num_classes) float64
        """√2 for each pair, rounded up, and 0 on the diagonal."""
        require_stated(self, "pairwise_bound")
        up = math.nextafter(math.sqrt(2), 2.0)
        return up * (1 - torch.eye(self.num_classes, device=self.place.device, dtype=torch.float64))

    def extra_repr(self) -> str:
        return f"{self.num_classes}"
