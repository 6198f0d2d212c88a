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

COARSE = 4  # frequencies for each tap on the grid of an estimate


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


def iterate_of(columns: Columns) -> Tensor:  # (groups, frequencies, rows, 1 or 2)
    """Where ``squared_norm_estimate`` begins: a vector without a pattern for each frequency of a coarse grid.

    The last axis holds the real and the imaginary part; a dense weight has no imaginary part.
    """
    groups, _, rows = columns.taps.shape[:3]
    grid, _ = torus_grid(columns, oversampling=COARSE)
    frequencies = 1 if columns.pointwise else math.prod(grid[:-1]) * (grid[-1] // 2 + 1)
    shape = (groups, frequencies, rows, 1 if columns.pointwise else 2)
    vector = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64).square().cos().reshape(shape)
    vector = vector / torch.linalg.vector_norm(vector, dim=(-2, -1), keepdim=True)
    return vector.to(columns.taps)


def squared_norm_estimate(columns: Columns, iterate: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """(‖H(ω)v‖², next iterate) for the ω of a coarse grid where that is largest: below ‖W‖², evidence only.

    v is what ``steps`` steps of power iteration make of ``iterate``, one vector for each frequency. The gradient is
    that of a simple singular value, 2·(Wv)vᵀ, and v has none.
    """
    grid, _ = torus_grid(columns, oversampling=COARSE)
    with torch.no_grad():
        iterate = iterate.to(columns.taps.dtype)
        matrix = symbol(columns, grid)  # (groups, frequencies, N, rows)
        v = torch.view_as_complex(iterate)[..., None] if matrix.is_complex() else iterate
        for _ in range(steps):
            image = matrix @ v
            back = matrix.mH @ image
            size = torch.linalg.vector_norm(back, dim=(-2, -1), keepdim=True)
            usable = (size > 0) & torch.isfinite(size)  # a zero matrix keeps v, and so does one with NaN
            v = torch.where(usable, back / torch.where(usable, size, 1.0), v)
        iterate = torch.view_as_real(v[..., 0]) if matrix.is_complex() else v
        # One number for each frequency is enough to choose: that of the vector before the last step.
        largest = torch.linalg.vector_norm(image, dim=(-2, -1)).argmax(dim=-1)  # (groups,)
        chosen = v[torch.arange(len(largest), device=largest.device), largest]  # (groups, rows, 1)
    image = columns.taps.flatten(2) @ _plane_wave(chosen, largest, columns.kernel, grid)
    return image.square().sum(dim=(-2, -1)), iterate


def _plane_wave(v: Tensor, frequency: Tensor, kernel: tuple[int, ...], grid: tuple[int, ...]) -> Tensor:
    """v ⊗ e^(−iω·u) over the taps u, so that taps times this is H(ω)v: (groups, rows·taps, 1 or 2)."""
    if not v.is_complex():
        return v
    angles = torch.zeros(len(frequency), 1, device=v.device, dtype=torch.float64)
    sizes = (*grid[:-1], grid[-1] // 2 + 1)
    for axis, taps in enumerate(kernel):
        index = frequency // math.prod(sizes[axis + 1 :]) % sizes[axis]
        places = torch.arange(taps, device=v.device, dtype=torch.float64)
        step = index[:, None, None] * places * (2 * math.pi / grid[axis])
        angles = (angles[..., None] + step).flatten(1)
    wave = torch.polar(torch.ones_like(angles), -angles).to(v.dtype)  # (groups, taps)
    return torch.view_as_real((v * wave[:, None]).flatten(1))


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
