"""Activations that are 1-Lipschitz without having slopes in [0, 1]: for stacks of affine or orthogonal layers.

MaxMin, GroupSort and Householder act on groups of channels, an isometry on each piece and continuous between the
pieces; |·| has slope −1. None of them may stand inside a residual layer.
"""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor, nn

from lipcert.algebra.scale import at_least_float32
from lipcert.errors import finite, positive_int
from lipcert.layers.contract import NonExpansive


class _Grouped(NonExpansive):
    """A 1-Lipschitz map of every group of ``group_size`` neighbors along ``dim``."""

    def __init__(self, group_size: int, dim: int) -> None:
        super().__init__()
        self.group_size, self.dim = positive_int("group_size", group_size), dim

    def forward(self, x: Tensor) -> Tensor:
        if not -x.ndim <= self.dim < x.ndim:
            raise ValueError(
                f"{type(self).__name__} acts on dimension {self.dim}; got shape {tuple(x.shape)} without it. "
                "Pass another dim."
            )
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


class MaxMin(_Grouped):
    """(a, b) ↦ (max(a, b), min(a, b)) on neighboring channels (Anil et al. 2019): a permutation at every point."""

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
            raise ValueError(
                f"channels must be even, because each pair has an angle; got {channels}. Add a channel."
            )
        self.channels = channels
        self.theta = nn.Parameter(torch.full((channels // 2,), math.pi / 2, device=device, dtype=dtype))

    def act(self, members: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
        a, b = members
        if a.shape[dim] != self.channels // 2:
            raise ValueError(
                f"Householder was made for {self.channels} channels; got {2 * a.shape[dim]}. "
                f"Pass Householder({2 * a.shape[dim]})."
            )
        theta = self.theta.to(torch.promote_types(at_least_float32(self.theta).dtype, a.dtype))
        half = (theta / 2).view(-1, *[1] * (a.ndim - dim - 1))
        sine, cosine = half.sin(), half.cos()
        behind = (a * sine - b * cosine).clamp_max(0.0)
        return (a - 2 * sine * behind).to(a.dtype), (b + 2 * cosine * behind).to(b.dtype)

    def extra_repr(self) -> str:
        return f"{self.channels}, dim={self.dim}"


class Abs(NonExpansive):
    """x ↦ |x|, entry by entry: 1-Lipschitz, slopes −1 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


class PartialAbs(NonExpansive):
    """|x| on the first channels (dimension 1), x on the others: the β-Abs of LipNeXt (Hu et al. 2026).

    Args:
        channels: of x.
        share: β, the share of the channels with |x|. Half of them give MaxMin up to rotations before and after.
    """

    def __init__(self, channels: int, share: float = 0.5) -> None:
        super().__init__()
        self.channels, self.share = positive_int("channels", channels), finite("share", share, cure="Use 0.5.")
        if not 0 < share <= 1:
            raise ValueError(f"share must lie above 0 and be at most 1; got {share!r}. Use 0.5.")

    @property
    def count(self) -> int:
        """How many channels have |x|."""
        return max(1, int(self.share * self.channels))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"PartialAbs expects (N, {self.channels}, …); got {tuple(x.shape)}. Build it for these channels."
            )
        return torch.cat((x[:, : self.count].abs(), x[:, self.count :]), dim=1)

    def extra_repr(self) -> str:
        return f"{self.channels}, share={self.share}"


class Clipped(NonExpansive):
    """x ↦ min(max(x, a), b), entry by entry, with learned ends a ≤ b: constant outside them."""

    @abc.abstractmethod
    def limits(self) -> tuple[Tensor, Tensor]:
        """a and b."""

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.limits()
        return torch.minimum(torch.maximum(x, low.to(x.dtype)), high.to(x.dtype))


class ClippedReLU(Clipped):
    """x ↦ min(max(x, 0), θ) with the modulus θ of a learned number (ReLUθ, Huang et al. 2021)."""

    def __init__(
        self, theta: float = 2.0, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(float(theta), device=device, dtype=dtype))

    def limits(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.theta), self.theta.abs()


class Clip(Clipped):
    """x ↦ min(max(x, −θ₀), θ₁), θ the moduli of learned numbers. After MaxMin it is a clipped MaxMin."""

    def __init__(
        self, theta: float = 2.0, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((2,), float(theta), device=device, dtype=dtype))

    def limits(self) -> tuple[Tensor, Tensor]:
        low, high = self.theta.abs().unbind()
        return -low, high
