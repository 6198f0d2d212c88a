"""Singular values of WΓ^½ in every layer: how close T is to WᵀW. Estimates, never part of a proof.

Of the frozen network, so of the numbers that the proof is about. WᵀW ⪯ T says that no singular value of WT^(−½)
exceeds 1. The square of the largest, ρ, is what all of T could be multiplied by. T_i ≥ ‖w_i‖² is necessary, so the
mean of ‖w_i‖²/T_i is at most 1, and 1 only where T = WᵀW, for orthogonal columns. A convolution is sampled on a
grid of frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.algebra.gram import Columns, dense_columns, residual_columns, symbol
from lipcert.certified.network import Network
from lipcert.certified.operators import Circular, Conv
from lipcert.certified.ops import Affine, Product, Residual

GRIDS = (16, 12, 8, 6, 4)  # points per axis
WORK = 4e9  # multiplications a layer may cost, before its grid is made coarser
QUANTILES = 33


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a layer's linear part, scaled by T where it has one."""

    name: str
    kind: str  # residual or plain
    shape: tuple[int, ...]  # of the stored weight
    grid: int | None  # frequencies per axis; None for a dense weight
    dead: int  # neurons with Γ_i = 0
    quantiles: tuple[float, ...]  # from the largest to the smallest
    largest_estimate: float
    mean_share_estimate: float  # mean over i of ‖w_i‖²/T_i, or of ‖w_i‖² without T


@torch.no_grad()
def spectra_estimates(frozen: Network) -> list[Spectrum]:
    """One entry for each weight of a frozen network, in its order."""
    spectra = []
    for node in frozen.nodes:
        if isinstance(node.op, Residual):
            spectra.append(_spectrum(node.name, node.op, "residual", node.op.gamma))
        elif isinstance(node.op, Affine):
            spectra.append(_spectrum(node.name, node.op, "plain", None))
    return spectra


def _spectrum(name: str, op: Product, kind: str, gamma: Tensor | None) -> Spectrum:
    weight, operator = op.weight.double().cpu(), op.operator
    grid = None
    if isinstance(operator, Circular):  # near orthonormal waves around these blocks
        rows, columns = op.get_buffer("rows"), op.get_buffer("columns")
        scale = torch.ones(weight.shape[1] // 4).double() if gamma is None else gamma.double().cpu().sqrt()
        blocks = weight * scale.repeat(4)[:, None]
        values, grid = torch.linalg.svdvals(blocks).flatten(), rows.shape[1]
        pixels = rows.shape[1] * columns.shape[1]
        share = float(blocks.square().sum()) / (len(scale) * pixels)
        return _described(name, kind, weight, grid, scale, values, share)
    scale = torch.ones(len(weight)).double() if gamma is None else gamma.double().cpu().sqrt()
    scaled = weight * scale.view(-1, *[1] * (weight.ndim - 1))
    if isinstance(operator, Conv):
        stride = tuple(s // math.gcd(s, d) for s, d in zip(operator.stride, operator.dilation, strict=True))
        filters = residual_columns(scaled, stride, operator.groups)
        grid = None if max(filters.taps.shape[3:]) == 1 else _grid(filters)
    elif operator.groups > 1:
        filters = residual_columns(scaled[:, :, None], (1,), operator.groups)
    else:
        filters = dense_columns(scaled)
    share = float(scaled.flatten(1).square().sum(dim=1).mean())
    return _described(name, kind, weight, grid, scale, _singular_values(filters, grid), share)


def _described(
    name: str, kind: str, weight: Tensor, grid: int | None, scale: Tensor, values: Tensor, share: float
) -> Spectrum:
    levels = torch.linspace(1, 0, QUANTILES, dtype=torch.float64)
    return Spectrum(
        name=name,
        kind=kind,
        shape=tuple(weight.shape),
        grid=grid,
        dead=int((scale == 0).sum()),
        quantiles=tuple(_quantiles(values, levels).tolist()),
        largest_estimate=float(values.max()),
        mean_share_estimate=share,
    )


def _grid(columns: Columns) -> int:
    """The finest grid within the work allowed."""
    groups, count, rows = columns.taps.shape[:3]
    each = groups * min(count, rows) ** 2 * max(count, rows)
    return next((points for points in GRIDS if points ** (columns.taps.ndim - 3) / 2 * each <= WORK), GRIDS[-1])


def _singular_values(columns: Columns, grid: int | None) -> Tensor:
    """All of them, over groups and frequencies: roots of the eigenvalues of the smaller Gram matrix."""
    matrices = symbol(columns, (grid or 1,) * (columns.taps.ndim - 3))  # (groups, frequencies, n, rows)
    adjoint = matrices.mH
    gram = matrices @ adjoint if matrices.shape[-2] <= matrices.shape[-1] else adjoint @ matrices
    return torch.linalg.eigvalsh(gram).clamp_min(0.0).sqrt().flatten()


def _quantiles(values: Tensor, levels: Tensor) -> Tensor:
    """Nearest ranks, since torch.quantile refuses more than 2²⁴ values."""
    ordered = values.sort().values
    return ordered[(levels * (len(ordered) - 1)).round().long()]
