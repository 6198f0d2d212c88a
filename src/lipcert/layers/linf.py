"""A dense layer that is 1-Lipschitz in the L∞ norm: what it may grow is a sum of magnitudes, row by row."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.algebra.scale import at_least_float32, no_autocast
from lipcert.errors import one_of, positive_int
from lipcert.layers.contract import LipschitzLayer
from lipcert.layers.operators import Dense


class LinfLinear(LipschitzLayer):
    """x ↦ Vx + b with v_i = w_i/max(1, ‖w_i‖): 1-Lipschitz from L∞ to L∞, with ‖w_i‖ = Σ_j |w_ij|.

    For a first layer and inputs in L1, ``norm="l1"``: from L1 to L∞, with ‖w_i‖ = max_j |w_ij|.
    ``lipschitz_bound()`` is the constant in L2, as for every layer; ``audit(…, norm="linf")`` proves that in L∞.

    Shape:
        (*, in_features) → (*, out_features).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        norm: str = "linf",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = positive_int("in_features", in_features)
        self.out_features = positive_int("out_features", out_features)
        self.norm = one_of("norm", norm, ("linf", "l1"), cure="It is the norm of the inputs.")
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def scaled_weight(self) -> Tensor:
        """V, in float32 or better."""
        with no_autocast(self.weight):
            weight = at_least_float32(self.weight)
            largest = weight.abs().amax(dim=1, keepdim=True)
            if self.norm == "l1":
                return weight / largest.clamp_min(1.0)
            # A sum of magnitudes could overflow; divided by the largest of them it cannot.
            top = largest.detach().clamp_min(1.0)
            unit = weight / top
            return unit / unit.abs().sum(dim=1, keepdim=True).clamp_min(1 / top)

    def forward(self, x: Tensor) -> Tensor:
        Dense(self.in_features, self.out_features).require(x, self)
        weight = self.scaled_weight()
        wide = x if self.weight.dtype == weight.dtype else x.to(weight.dtype)
        bias = None if self.bias is None else self.bias.to(weight.dtype)
        return F.linear(wide, weight, bias).to(x.dtype)

    def proved_constant(self) -> float:
        """The verified L2 norm of V, as computed in float64, with what that may have lost entry by entry."""
        from lipcert.certified.freeze import constant_of  # which imports this module

        weight = copy.deepcopy(self).double().scaled_weight().detach()
        plain = nn.Linear(self.in_features, self.out_features, bias=False, device="meta", dtype=torch.float64)
        plain.weight = nn.Parameter(weight)
        lost = 4 * (self.in_features + 8) * math.sqrt(self.out_features) * torch.finfo(torch.float64).eps
        return constant_of(plain) * (1 + lost)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, norm={self.norm!r}, bias={self.bias is not None}"
