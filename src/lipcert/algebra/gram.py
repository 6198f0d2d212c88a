"""Columns of W and how they overlap: the Gram matrix WᵀW of dense and convolutional operators.

Every operator is brought to one shape, ``Columns``: stride-1 filters, one per column of W. A dense
weight is a 1×1 filter. A strided convolution becomes a stride-1 one by splitting the kernel index
t = s·u + φ into taps u and phases φ (polyphase); the *form* decides where the phases go:

- residual, x − 2WT⁻¹σ(Wᵀx + b): a column is one output of the convolution Wᵀ, phases join the rows.
  Only lags that are multiples of the stride meet.
- affine, WT^(−½)x: a column is one *input* of the convolution W, phases join the columns and T_i is
  the largest over them. The rule of the residual form would be unsound here (docs/soundness.md).

On the infinite image WᵀW is a Laurent operator with lags C_ij[d] = Σ_{c,t} K_i[c,t+d] K_j[c,t]; zero
padding of any amount deletes rows and columns of it, which keeps WᵀW ⪯ T for a T constant on channels.

Rounding: nothing is rounded in one direction here; the numbers are those of the working precision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING_MODES = ("zeros", "circular")
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}  # by the number of spatial axes


@dataclass(frozen=True)
class Columns:
    """The columns of W as stride-1 filters, groups side by side.

    ``taps`` is (groups, n·phases, rows, *kernel); filter i·phases + φ is phase φ of column i. A dense weight is one
    tap.
    """

    taps: Tensor
    phases: int = 1

    @property
    def count(self) -> int:
        """How many entries diag(T) has: one per column, over all groups."""
        return self.taps.shape[0] * self.taps.shape[1] // self.phases

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.taps.shape[3:])

    @property
    def pointwise(self) -> bool:
        """Whether every filter has a single tap."""
        return math.prod(self.kernel) == 1

    @property
    def is_dense(self) -> bool:
        return self.phases == 1 and self.taps.shape[0] == 1 and self.pointwise

    def matrix(self) -> Tensor:  # (n, m), row i is column i of W
        """The plain matrix Wᵀ of a dense weight."""
        if not self.is_dense:
            raise ValueError(
                f"expected the columns of a dense weight; got filters of shape {tuple(self.taps.shape)}. "
                "Use a bound that is defined for convolutions: aol, sll, spectral or rescaled."
            )
        return self.taps.reshape(self.taps.shape[1], -1)  # a view, whose gradient is one too; indexing copies

    def spread(self, per_column: Tensor) -> Tensor:  # (count,) → (groups, n·phases)
        """Repeat a value per column over the phases of that column."""
        return per_column.view(self.taps.shape[0], -1).repeat_interleave(self.phases, dim=1)

    def collect(self, per_filter: Tensor) -> Tensor:  # (groups, n·phases) → (count,)
        """The largest value over the phases of each column: T constant on a channel must cover them all."""
        return per_filter.reshape(-1, self.phases).amax(dim=1)


def dense_columns(weight: Tensor) -> Columns:  # (n, m): Wᵀ, one row per column of W
    return Columns(weight.reshape(1, *weight.shape, 1, 1))


def residual_columns(kernel: Tensor, stride: tuple[int, ...], groups: int = 1) -> Columns:
    """Columns are the outputs of the convolution Wᵀ, kernel (n, c/groups, *taps); phases become rows."""
    split = _polyphase(kernel, stride)  # (n, c/groups, phases, *taps)
    return Columns(split.reshape(groups, kernel.shape[0] // groups, -1, *split.shape[3:]))


def affine_columns(kernel: Tensor, stride: tuple[int, ...], groups: int) -> Columns:
    """Columns are the inputs of the convolution W, kernel (out, in/groups, *taps); phases become columns."""
    split = _polyphase(kernel, stride)  # (out, in/groups, phases, *taps)
    per_group = split.reshape(groups, -1, *split.shape[1:])  # (g, out/g, in/g, phases, *taps)
    taps = per_group.movedim(1, 3)  # (g, in/g, phases, out/g, *taps)
    return Columns(taps.reshape(groups, -1, *taps.shape[3:]), phases=split.shape[2])


def _polyphase(kernel: Tensor, stride: tuple[int, ...]) -> Tensor:
    """K[…, s·u + φ] as (a, b, ∏s, *⌈k/s⌉); taps past the kernel's end are zero.

    A stride beyond the kernel only skips pixels: phases without a tap are left out, or memory would grow with s².
    """
    taps = kernel.shape[2:]
    steps = [min(s, k) for s, k in zip(stride, taps, strict=True)]
    axes = len(steps)
    kernel = F.pad(kernel, [n for k, s in zip(reversed(taps), reversed(steps), strict=True) for n in (0, -k % s)])
    for axis in reversed(range(axes)):
        kernel = kernel.unflatten(2 + axis, (-1, steps[axis]))  # (a, b, u₁, φ₁, u₂, φ₂, …)
    phases, places = range(3, 3 + 2 * axes, 2), range(2, 2 + 2 * axes, 2)
    return kernel.permute(0, 1, *phases, *places).flatten(2, 1 + axes)


Overlap = tuple[tuple[slice, ...], tuple[slice, ...]]


def half_lags(kernel: tuple[int, ...]) -> Iterator[Overlap]:
    """Where K_i[t + d] and K_j[t] overlap, for each lag d of a half space, 0 first; C_ij[−d] = C_ji[d]."""
    zero = (0,) * len(kernel)
    for lag in itertools.product(*(range(1 - k, k) for k in kernel)):
        if lag >= zero:  # lexicographically
            pairs = list(zip(lag, kernel, strict=True))
            left = tuple(slice(max(d, 0), min(k + d, k)) for d, k in pairs)
            right = tuple(slice(max(-d, 0), min(k - d, k)) for d, k in pairs)
            yield left, right


def taps_of(taps: Tensor, where: tuple[slice, ...]) -> Tensor:  # (groups, N, rows·taps there)
    """Each filter's taps at some places, as one row."""
    place: tuple[Any, ...] = (..., *where)
    return taps[place].flatten(2)


def absolute_gram(columns: Columns) -> Tensor:  # (groups, N, N), N = n·phases
    """A_ij = Σ_d |C_ij[d]|, the sum over spatial lags of |WᵀW|; for a dense weight, |WᵀW| itself."""
    # Matrix products rather than a convolution, which GPUs may silently run in TF32.
    taps, total = columns.taps, None
    for left, right in half_lags(columns.kernel):
        lag = (taps_of(taps, left) @ taps_of(taps, right).mT).abs()
        total = lag if total is None else total + lag + lag.mT
    assert total is not None
    return total


def symbol(columns: Columns, grid: tuple[int, ...]) -> Tensor:  # (groups, frequencies, N, rows)
    """H(ω) = Σ_u K[u] e^(−iω·u) on a uniform grid; for a dense weight, the real matrix Wᵀ.

    Half the grid suffices: K is real, so H(−ω) is the conjugate of H(ω) and has the same norm.
    """
    if columns.pointwise:
        return columns.taps.flatten(2)[:, None]
    transformed = torch.fft.rfftn(columns.taps, s=grid, dim=tuple(range(-len(grid), 0)))
    return transformed.flatten(3).permute(0, 3, 1, 2)


def torus_grid(columns: Columns, oversampling: int = 16) -> tuple[tuple[int, ...], float]:
    """A grid and the factor c with sup_ω ‖H(ω)‖² ≤ c · max over the grid of ‖H(ω)‖².

    |v*H(ω)u|² is a trigonometric polynomial with values in [0, M] and degree d = taps − 1 per axis.
    By Riesz's lemma it stays above M cos²(dδ/2) at distance δ from its maximum, and a grid of N points
    has one within π/N (docs/soundness.md).
    """
    grid, factor = [], 1.0
    for taps in columns.kernel:
        degree = taps - 1
        points = max(1, oversampling * degree)
        grid.append(points)
        factor /= math.cos(math.pi * degree / (2 * points)) ** 2
    return tuple(grid), factor
