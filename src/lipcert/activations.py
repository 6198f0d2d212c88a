"""Activations with slope in [0, 1], the only kind a residual layer allows.

Statement 2 of Theorem 1 needs a *scalar* function with slopes in [0, 1]. MaxMin, GroupSort and
Householder mix coordinates and |·| has slope −1: they are 1-Lipschitz and belong after affine or
orthogonal layers (``layers.activation``). GELU, SiLU, Mish and Hardswish have slopes outside [0, 1] and are
refused everywhere.

Rounding: none; a function with slope in [0, 1] stays so under clamping its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import NotCertified


@dataclass(frozen=True)
class SlopeRestricted:
    """A scalar σ with every difference quotient in ``slope`` ⊂ [0, 1].

    ``roundings`` bounds the relative error of computing σ, in units of the roundoff u: 0 for a comparison, 1 for a
    product. The smooth functions are *assumed* to be within ``ULPS`` units in the last place, which is twice as
    many roundings; every audit and certificate that rests on it says so (docs/rounding.md).
    """

    name: str
    function: Callable[[Tensor], Tensor]
    slope: tuple[float, float]
    homogeneous: bool  # σ(s·u) = s·σ(u) for s > 0
    roundings: int
    start: float = 0.0  # at least |σ(0)|

    @property
    def assumes(self) -> tuple[str, ...]:
        """What its rounding bound assumes of the platform; empty for comparisons and products."""
        return (f"{self.name} within {ULPS} ulp",) if self.roundings >= 2 * ULPS else ()

    def scaled(self, u: Tensor, scale: Tensor) -> Tensor:
        """σ(s·u)/s, the σ that acts on Ŵ = W/s; the slopes are those of σ."""
        if self.homogeneous:
            return self.function(u)
        largest = torch.finfo(u.dtype).max
        return self.function((u * scale).clamp(-largest, largest)) / scale


ULPS = 8


def _softplus(x: Tensor) -> Tensor:
    # torch's softplus jumps by 2e-9 at its threshold, where no slope bounds it.
    return torch.logaddexp(x, torch.zeros_like(x))


SLOPE_RESTRICTED: dict[str, SlopeRestricted] = {
    activation.name: activation
    for activation in (
        SlopeRestricted("relu", F.relu, (0.0, 1.0), True, 0),
        SlopeRestricted("leaky_relu", F.leaky_relu, (0.01, 1.0), True, 1),
        SlopeRestricted("elu", F.elu, (0.0, 1.0), False, 2 * ULPS),
        SlopeRestricted("softplus", _softplus, (0.0, 1.0), False, 2 * ULPS, start=0.69314718056),  # log 2, up
        SlopeRestricted("tanh", torch.tanh, (0.0, 1.0), False, 2 * ULPS),
        SlopeRestricted("sigmoid", torch.sigmoid, (0.0, 0.25), False, 2 * ULPS, start=0.5),
    )
}


# Slopes outside [0, 1], rounded to two digits, for the message that refuses them.
_STEEP = {
    "gelu": "−0.13 and 1.13",
    "silu": "−0.10 and 1.10",
    "mish": "−0.11 and 1.09",
    "hardswish": "−0.50 and 1.50",
}
_GROUPED = ("maxmin", "groupsort", "householder", "abs")


def slope_restricted(name: str) -> SlopeRestricted:
    """The activation of that name, for use inside a residual layer."""
    known = sorted(SLOPE_RESTRICTED)
    if not isinstance(name, str):
        raise ValueError(
            f"activation must be the name of a function with slope in [0, 1], one of {known}; got {name!r}. "
            "Pass a string such as 'relu'."
        )
    if name not in SLOPE_RESTRICTED:
        key = name.lower().replace("_", "")
        if key in _STEEP:
            raise NotCertified(
                f"activation must have slope in [0, 1], one of {known}; got {name!r}, whose slopes reach "
                f"{_STEEP[key]}: the layer would not be 1-Lipschitz. Use 'relu', 'elu' or 'softplus'."
            )
        if key in _GROUPED:
            raise NotCertified(
                f"activation must be a scalar function with slope in [0, 1], one of {known}; got {name!r}, which "
                "is 1-Lipschitz but not of that kind. Use it after AffineLinear or OrthogonalLinear."
            )
        raise ValueError(f"activation must be one of {known}; got {name!r}. Choose a name from the list.")
    return SLOPE_RESTRICTED[name]
