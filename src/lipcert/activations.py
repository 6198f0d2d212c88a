"""Activations by what they allow: slope in [0, 1] for residual layers, 1-Lipschitz for affine stacks.

Statement 2 of Theorem 1 needs a *scalar* function with slopes in [0, 1]. MaxMin, GroupSort and
Householder mix coordinates and |·| has slope −1: they are 1-Lipschitz and belong after affine or
orthogonal layers. GELU, SiLU, Mish and Hardswish have slopes outside [0, 1] and are refused everywhere.

Rounding: none; a function with slope in [0, 1] stays so under clamping its argument.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.errors import positive_int


@dataclass(frozen=True)
class SlopeRestricted:
    """A scalar σ with every difference quotient in ``slope`` ⊂ [0, 1]."""

    name: str
    function: Callable[[Tensor], Tensor]
    slope: tuple[float, float]
    homogeneous: bool  # σ(s·u) = s·σ(u) for s > 0

    def scaled(self, u: Tensor, scale: Tensor) -> Tensor:
        """σ(s·u)/s, the σ that acts on Ŵ = W/s; the slopes are those of σ."""
        if self.homogeneous:
            return self.function(u)
        largest = torch.finfo(u.dtype).max
        return self.function((u * scale).clamp(-largest, largest)) / scale


def _softplus(x: Tensor) -> Tensor:
    # torch's softplus jumps by 2e-9 at its threshold, where no slope bounds it.
    return torch.logaddexp(x, torch.zeros_like(x))


SLOPE_RESTRICTED: dict[str, SlopeRestricted] = {
    activation.name: activation
    for activation in (
        SlopeRestricted("relu", F.relu, (0.0, 1.0), homogeneous=True),
        SlopeRestricted("leaky_relu", F.leaky_relu, (0.01, 1.0), homogeneous=True),
        SlopeRestricted("elu", F.elu, (0.0, 1.0), homogeneous=False),
        SlopeRestricted("softplus", _softplus, (0.0, 1.0), homogeneous=False),
        SlopeRestricted("tanh", torch.tanh, (0.0, 1.0), homogeneous=False),
        SlopeRestricted("sigmoid", torch.sigmoid, (0.0, 0.25), homogeneous=False),
    )
}


def slope_restricted(name: str) -> SlopeRestricted:
    """The activation of that name, for use inside a residual layer."""
    if not isinstance(name, str) or name not in SLOPE_RESTRICTED:
        raise ValueError(
            f"activation must have slope in [0, 1], one of {sorted(SLOPE_RESTRICTED)}; got {name!r}. "
            "MaxMin, GroupSort, Householder and Abs are 1-Lipschitz but not of that kind: use them after "
            "AffineLinear or OrthogonalLinear."
        )
    return SLOPE_RESTRICTED[name]


class _Grouped(nn.Module, abc.ABC):
    """A 1-Lipschitz map of every group of ``group_size`` neighbours along ``dim``."""

    def __init__(self, group_size: int, dim: int) -> None:
        super().__init__()
        self.group_size, self.dim = positive_int("group_size", group_size), dim

    def forward(self, x: Tensor) -> Tensor:
        dim = self.dim % x.ndim
        if x.shape[dim] % self.group_size:
            raise ValueError(
                f"{type(self).__name__} needs a multiple of {self.group_size} channels in dimension {self.dim}; "
                f"got {x.shape[dim]} in shape {tuple(x.shape)}. Change the width of the layer before it."
            )
        groups = x.unflatten(dim, (-1, self.group_size))
        return torch.stack(self.act(groups.unbind(dim + 1), dim), dim + 1).flatten(dim, dim + 1)

    @abc.abstractmethod
    def act(self, members: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        """The new members of the groups, each of the shape of x with ``dim`` shortened to the groups."""

    def lipschitz_bound(self) -> float:
        return 1.0


class MaxMin(_Grouped):
    """(a, b) ↦ (max(a, b), min(a, b)) on neighbouring channels (Anil et al. 2019): a permutation at every point."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__(2, dim)

    def act(self, members: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        a, b = members
        return torch.maximum(a, b), torch.minimum(a, b)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class GroupSort(_Grouped):
    """Sorts every group of ``group_size`` channels upwards (Anil et al. 2019): a permutation at every point."""

    def __init__(self, group_size: int, dim: int = 1) -> None:
        super().__init__(group_size, dim)

    def act(self, members: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        return torch.stack(members, -1).sort(dim=-1).values.unbind(-1)

    def extra_repr(self) -> str:
        return f"group_size={self.group_size}, dim={self.dim}"


class Householder(_Grouped):
    """z ↦ z − 2v·min(0, vᵀz) on pairs, v = (sin θ/2, −cos θ/2) with a learned θ (Singla et al. 2022).

    The identity on one side of a line through 0 and the reflection on the other: the two agree on the
    line, so it is 1-Lipschitz. θ = π/2, the start, is MaxMin.
    """

    def __init__(
        self,
        channels: int,
        dim: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(2, dim)
        if positive_int("channels", channels) % 2:
            raise ValueError(f"channels must be even, a θ per pair; got {channels}. Add a channel.")
        self.channels = channels
        self.theta = nn.Parameter(torch.full((channels // 2,), math.pi / 2, device=device, dtype=dtype))

    def act(self, members: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        a, b = members
        if a.shape[dim] != self.channels // 2:
            raise ValueError(
                f"Householder was made for {self.channels} channels; got {2 * a.shape[dim]}. "
                f"Pass Householder({2 * a.shape[dim]})."
            )
        half = (self.theta / 2).view(-1, *[1] * (a.ndim - dim - 1))
        sine, cosine = half.sin(), half.cos()
        behind = (a * sine - b * cosine).clamp_max(0.0)
        return a - 2 * sine * behind, b + 2 * cosine * behind

    def extra_repr(self) -> str:
        return f"{self.channels}, dim={self.dim}"


class Abs(nn.Module):
    """x ↦ |x|, entry by entry: 1-Lipschitz, slopes −1 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()

    def lipschitz_bound(self) -> float:
        return 1.0
