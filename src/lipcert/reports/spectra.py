"""Singular values of WΓ^½ in every layer: how close T is to WᵀW. Estimates, never part of a proof.

They are about the frozen network, so about the numbers that the proof is about. WᵀW ⪯ T says that no singular value
of WT^(−½) exceeds 1. The square of the largest one, ρ, is what all of T could be multiplied by. T_i ≥ ‖w_i‖² is
necessary, so the mean of ‖w_i‖²/T_i is at most 1, and it is 1 only where T = WᵀW, which needs orthogonal columns. A
convolution is sampled on a grid of frequencies.
"""

from __future__ import annotations

import math

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from lipcert.algebra.gram import Columns, dense_columns, residual_columns, symbol
from lipcert.certified.network import Network
from lipcert.certified.operators import Circular, Conv, Dense
from lipcert.certified.ops import Affine, Product, Residual

GRIDS = (16, 12, 8, 6, 4)  # points per axis
WORK = 4e9  # multiplications that a layer may cost before its grid is made coarser
QUANTILES = 33


class Spectrum(BaseModel):
    """The singular values of a layer's linear part, scaled by T where it has one."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: str  # residual or plain
    shape: tuple[int, ...]  # of the stored weight
    grid: int | None  # frequencies per axis; None for a dense weight
    dead_neurons: int  # neurons with Γ_i = 0
    quantiles: tuple[float, ...]  # from the largest to the smallest
    largest_estimate: float
    mean_square_estimate: float  # mean over i of ‖w_i‖²/T_i, or of ‖w_i‖² without T


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
    neurons = weight.shape[1] // 4 if isinstance(operator, Circular) else len(weight)
    scale = weight.new_ones(neurons) if gamma is None else gamma.double().cpu().sqrt()
    grid: int | None
    if isinstance(operator, Circular):
        # The stored blocks stand between waves that are nearly orthonormal.
        height, width = op.get_buffer("rows").shape[1], op.get_buffer("columns").shape[1]
        scaled, grid, squares = weight * scale.repeat(4)[:, None], height, neurons * height * width
        values = torch.linalg.svdvals(scaled).flatten()
    else:
        scaled = weight * scale.view(-1, *[1] * (weight.ndim - 1))
        columns, grid = _columns(operator, scaled)
        values, squares = _singular_values(columns, grid), neurons
    # Nearest ranks, since torch.quantile refuses more than 2²⁴ values.
    ranks = (torch.linspace(1, 0, QUANTILES, dtype=torch.float64) * (len(values) - 1)).round().long()
    return Spectrum(
        name=name,
        kind=kind,
        shape=tuple(weight.shape),
        grid=grid,
        dead_neurons=int((scale == 0).sum()),
        quantiles=tuple(values.sort().values[ranks].tolist()),
        largest_estimate=float(values.max()),
        mean_square_estimate=float(scaled.square().sum()) / squares,
    )


def _columns(operator: Dense | Conv, scaled: Tensor) -> tuple[Columns, int | None]:
    """The columns of a dense or convolutional weight, and how many frequencies per axis to sample."""
    if isinstance(operator, Conv):
        stride = tuple(s // math.gcd(s, d) for s, d in zip(operator.stride, operator.dilation, strict=True))
        columns = residual_columns(scaled, stride, operator.groups)
        groups, count, rows, *kernel = columns.taps.shape
        work = groups * min(count, rows) ** 2 * max(count, rows) / 2
        grid = next((points for points in GRIDS if points ** len(kernel) * work <= WORK), GRIDS[-1])
        return columns, None if max(kernel) == 1 else grid
    if operator.groups > 1:
        return residual_columns(scaled[:, :, None], (1,), operator.groups), None
    return dense_columns(scaled), None


def _singular_values(columns: Columns, grid: int | None) -> Tensor:
    """All of them, over groups and frequencies: roots of the eigenvalues of the smaller Gram matrix."""
    matrices = symbol(columns, (grid or 1,) * (columns.taps.ndim - 3))  # (groups, frequencies, n, rows)
    adjoint = matrices.mH
    gram = matrices @ adjoint if matrices.shape[-2] <= matrices.shape[-1] else adjoint @ matrices
    return torch.linalg.eigvalsh(gram).clamp_min(0.0).sqrt().flatten()
