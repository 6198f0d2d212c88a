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

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING_MODES = ("zeros", "circular")


@dataclass(frozen=True)
class Columns:
    """The columns of W as stride-1 filters, groups side by side.

    ``taps`` is (groups, n·phases, rows, kernel_h, kernel_w); filter i·phases + φ is phase φ of column i.
    """

    taps: Tensor
    phases: int = 1

    @property
    def count(self) -> int:
        """How many entries diag(T) has: one per column, over all groups."""
        return self.taps.shape[0] * self.taps.shape[1] // self.phases

    @property
    def is_dense(self) -> bool:
        return self.phases == 1 and self.taps.shape[0] == 1 and self.taps.shape[3:] == (1, 1)

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


def residual_columns(kernel: Tensor, stride: tuple[int, int], groups: int = 1) -> Columns:
    """Columns are the outputs of the convolution Wᵀ, kernel (n, c/groups, kh, kw); phases become rows."""
    split = _polyphase(kernel, stride)  # (n, c/groups, phases, uh, uw)
    return Columns(split.reshape(groups, kernel.shape[0] // groups, -1, *split.shape[-2:]))


def affine_columns(kernel: Tensor, stride: tuple[int, int], groups: int) -> Columns:
    """Columns are the inputs of the convolution W, kernel (out, in/groups, kh, kw); phases become columns."""
    split = _polyphase(kernel, stride)  # (out, in/groups, phases, uh, uw)
    per_group = split.reshape(groups, -1, *split.shape[1:])  # (g, out/g, in/g, phases, uh, uw)
    taps = per_group.permute(0, 2, 3, 1, 4, 5)  # (g, in/g, phases, out/g, uh, uw)
    return Columns(taps.reshape(groups, -1, *taps.shape[3:]), phases=split.shape[2])


def _polyphase(kernel: Tensor, stride: tuple[int, int]) -> Tensor:
    """K[…, s·u + φ] as (a, b, s_h·s_w, ⌈k_h/s_h⌉, ⌈k_w/s_w⌉); taps past the kernel's end are zero.

    A stride beyond the kernel only skips pixels: phases without a tap are left out, or memory would grow with s².
    """
    kh, kw = kernel.shape[-2:]
    sh, sw = min(stride[0], kh), min(stride[1], kw)
    kernel = F.pad(kernel, (0, -kw % sw, 0, -kh % sh))
    split = kernel.unflatten(-1, (-1, sw)).unflatten(-3, (-1, sh))  # (a, b, uh, sh, uw, sw)
    return split.permute(0, 1, 3, 5, 2, 4).flatten(2, 3)


Overlap = tuple[tuple[slice, slice], tuple[slice, slice]]


def half_lags(kernel: tuple[int, ...]) -> Iterator[Overlap]:
    """Where K_i[t + d] and K_j[t] overlap, for each lag d of a half plane, 0 first; C_ij[−d] = C_ji[d]."""
    kh, kw = kernel
    for dy in range(kh):
        for dx in range(1 - kw if dy else 0, kw):
            left = slice(dy, kh), slice(max(dx, 0), min(kw + dx, kw))
            right = slice(0, kh - dy), slice(max(-dx, 0), min(kw - dx, kw))
            yield left, right


def taps_of(taps: Tensor, where: tuple[slice, slice]) -> Tensor:  # (groups, N, rows·taps there)
    """Each filter's taps at some places, as one row."""
    return taps[..., where[0], where[1]].flatten(2)


def absolute_gram(columns: Columns) -> Tensor:  # (groups, N, N), N = n·phases
    """A_ij = Σ_d |C_ij[d]|, the sum over spatial lags of |WᵀW|; for a dense weight, |WᵀW| itself."""
    # Matrix products rather than a convolution, which GPUs may silently run in TF32.
    taps, total = columns.taps, None
    for left, right in half_lags(taps.shape[3:]):
        lag = (taps_of(taps, left) @ taps_of(taps, right).mT).abs()
        total = lag if total is None else total + lag + lag.mT
    assert total is not None
    return total


def symbol(columns: Columns, grid: tuple[int, int]) -> Tensor:  # (groups, frequencies, N, rows)
    """H(ω) = Σ_u K[u] e^(−iω·u) on a uniform grid; for a dense weight, the real matrix Wᵀ.

    Half the grid suffices: K is real, so H(−ω) is the conjugate of H(ω) and has the same norm.
    """
    if columns.taps.shape[3:] == (1, 1):
        return columns.taps[..., 0, 0][:, None]
    transformed = torch.fft.rfft2(columns.taps, s=grid)  # (g, N, rows, grid_h, grid_w//2 + 1)
    return transformed.flatten(-2).permute(0, 3, 1, 2)


def torus_grid(columns: Columns, oversampling: int = 16) -> tuple[tuple[int, int], float]:
    """A grid and the factor c with sup_ω ‖H(ω)‖² ≤ c · max over the grid of ‖H(ω)‖².

    |v*H(ω)u|² is a trigonometric polynomial with values in [0, M] and degree d = taps − 1 per axis.
    By Riesz's lemma it stays above M cos²(dδ/2) at distance δ from its maximum, and a grid of N points
    has one within π/N (docs/soundness.md).
    """
    grid, factor = [], 1.0
    for taps in columns.taps.shape[3:]:
        degree = taps - 1
        points = max(1, oversampling * degree)
        grid.append(points)
        factor /= math.cos(math.pi * degree / (2 * points)) ** 2
    return (grid[0], grid[1]), factor
