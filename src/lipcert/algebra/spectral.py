"""Norms and row sums of the powers G^(2^k) of a Gram matrix: Gram iteration, dense and convolutional.

‖G‖ = ‖G^(2^k)‖^(1/2^k) for Hermitian G, and any norm that dominates the spectral one turns this into an
upper bound that tightens as k grows. A convolution is treated frequency by frequency: squaring the
symbol is convolving the lags with themselves, uncropped.

Every squaring is preceded by a division by the largest entry. The factors are detached: the result
does not depend on them.
Rounding: relative errors stay relative; underflow of the powers would shrink T, so ``power_row_sums``
adds what underflow can have removed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcert.algebra.gram import Columns, symbol, torus_grid

BLOCK = 4  # vectors that a Krylov space begins with


def squared_norm_bound(columns: Columns, iterations: int) -> Tensor:  # (groups,)
    """An upper bound of ‖W‖² for each group, differentiable."""
    grid, factor = torus_grid(columns)
    return factor * squared_norms_bound(symbol(columns, grid), iterations).amax(dim=-1)


def squared_norms_bound(matrix: Tensor, iterations: int) -> Tensor:  # (…, n, m) → (…)
    """An upper bound of ‖M‖² for each of a batch of matrices, real or complex, differentiable."""
    small = matrix @ matrix.mH if matrix.shape[-2] <= matrix.shape[-1] else matrix.mH @ matrix
    power, scale = _normalized_power(small, iterations, dims=(-2, -1))
    frobenius = torch.linalg.matrix_norm(power)
    row_sum = modulus(power).sum(dim=-1).amax(dim=-1)
    # The largest entry of a non-zero power is 1, so both norms are at least 1; a zero matrix has scale 0.
    norm = torch.minimum(frobenius, row_sum).clamp_min(1.0) ** (0.5**iterations)
    return scale[..., 0, 0] * norm


def modulus(matrix: Tensor) -> Tensor:
    """|z|, or where z is complex |Re z| + |Im z| ≥ |z|, whose gradient is finite at subnormal numbers too."""
    return torch.view_as_real(matrix.resolve_conj()).abs().sum(dim=-1) if matrix.is_complex() else matrix.abs()


def squared_norm_estimate(columns: Columns, iterations: int) -> Tensor:  # (groups,)
    """‖H(ω)v‖² for one ω of a coarse grid and v near its first singular vector: below ‖W‖², evidence only.

    The gradient is that of a simple singular value, 2·(Wv)vᵀ, and v has none. Finding ω and v costs a forward pass
    of ``squared_norm_bound`` on a sixteenth of its frequencies; for a dense weight, products with a few vectors.
    """
    grid, _ = torus_grid(columns, oversampling=4)
    matrix = symbol(columns, grid)  # (groups, frequencies, N, rows)
    if matrix.shape[-2] <= matrix.shape[-1]:
        matrix = matrix.mH  # so that the Gram matrix is the small one
    with torch.no_grad():
        vector = _leading(matrix, iterations) if columns.pointwise else _widest(matrix, iterations)
        largest = (matrix @ vector).abs().square().sum(dim=(-2, -1)).argmax(dim=-1)  # (groups,)
    group = torch.arange(len(largest), device=largest.device)
    image = matrix[group, largest] @ vector[group, largest]
    return (image * image.conj()).real.sum(dim=(-2, -1))  # not abs(), whose gradient at a small entry overflows


def _widest(matrix: Tensor, iterations: int) -> Tensor:  # (…, m, n) → (…, n, 1)
    """A column of (MᴴM)^(2^iterations) ≈ σ²vvᴴ, not a small one; for many small matrices."""
    power, _ = _normalized_power(matrix.mH @ matrix, iterations, dims=(-2, -1))
    widest = torch.linalg.vector_norm(power, dim=-2).argmax(dim=-1)
    vector = power.gather(-1, widest[..., None, None].expand(*power.shape[:-1], 1))
    return vector / torch.linalg.vector_norm(vector, dim=-2, keepdim=True).clamp_min(1e-30)


def _leading(matrix: Tensor, iterations: int) -> Tensor:  # (…, m, n) → (…, n, 1)
    """The best vector of a block Krylov space, from a fixed basis without a pattern; for one large matrix."""
    n = matrix.shape[-1]
    numbers = torch.arange(1, n + 1, device=matrix.device)
    angles = numbers[:, None] * numbers[:BLOCK].to(matrix)
    bases = [torch.cos(angles).expand(*matrix.shape[:-2], -1, -1)]
    for _ in range(2 * iterations):
        bases.append(torch.linalg.qr(matrix.mH @ (matrix @ bases[-1]))[0])
    space = torch.linalg.qr(torch.cat(bases[1:], dim=-1))[0]
    right = torch.linalg.svd(matrix @ space, full_matrices=False)[2]
    vector: Tensor = space @ right[..., :1, :].mH
    return vector


def power_row_sums(columns: Columns, q: Tensor, order: int) -> Tensor:  # (groups, N)
    """(Σ_j Σ_d |(WᵀW)^(2^order)|_ij[d] q_j/q_i)^(1/2^order), order ≥ 1 and q ≥ 1."""
    grid = tuple(2 ** (order + 1) * (taps - 1) + 1 for taps in columns.kernel)  # lags of the full power
    matrix = symbol(columns, grid)  # (groups, frequencies, N, rows)
    power, scale = _normalized_power(matrix @ matrix.mH, order, dims=(-3, -2, -1))
    if columns.pointwise:
        absolute = power[:, 0].abs()
    else:
        axes = tuple(range(-len(grid), 0))
        half = power.permute(0, 2, 3, 1).unflatten(-1, (*grid[:-1], grid[-1] // 2 + 1))
        absolute = torch.fft.irfftn(half, s=grid, dim=axes).abs().sum(dim=axes)  # (groups, N, N)
    # Underflow takes at most ``tiny`` from each product of the last squaring: n·lags of them per entry, and
    # an entry per lag (docs/soundness.md). Losses of earlier squarings vanish beside it.
    lags = math.prod(grid)
    lost = 4.0 * q.shape[-1] * lags * lags * torch.finfo(q.dtype).tiny
    sums = ((absolute + lost) @ q[..., None])[..., 0] / q
    return scale[:, 0, 0] * sums ** (0.5**order)


def _normalized_power(gram: Tensor, squarings: int, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(P, s) with gram^(2^squarings) = s^(2^squarings)·P and the largest entry of P equal to 1."""
    scale = torch.ones_like(gram.real.detach().amax(dim=dims, keepdim=True))
    power = gram
    for step in range(squarings + 1):
        if step:
            power = power @ power
        power = 0.5 * (power + power.mH)  # rounding leaves it not quite Hermitian; the row sums need it
        largest = power.detach().abs().amax(dim=dims, keepdim=True)
        power = power / torch.where(largest > 0, largest, 1.0)
        scale = scale * largest ** (0.5**step)
    return power, scale
