"""Orthogonal convolutions on a circular image: a matrix for each frequency, and the kernel that has these symbols.

On a circular image of H × W pixels a convolution is block diagonal in the Fourier basis, one block M(ω) for each
of the H·W frequencies, and orthogonal if all its blocks are. Five published maps make them so, by the dense maps of
``orthogonal`` at each frequency:

- ``cayley``    Trockman & Kolter 2021.
- ``exp``       SOC (Singla & Feizi 2021): the exponential of a skew convolution is that of its symbols.
- ``lot``       (MMᵀ)^(−½)M, by Björck's iteration, which has the same limit (Xu et al. 2022).
- ``eco``       ``exp`` on a circle of as many pixels as the kernel has taps, dilated to the image (Yu et al. 2022).
- ``reflector`` block reflectors (BRO, Lai et al. 2025).

``bcop`` (Li et al. 2019) composes kernels of two taps, P and I − P with P an orthogonal projection, along both
axes: PP + (I − P)(I − P) = I and P(I − P) = 0 make the symbol P + (I − P)e^(iω) orthogonal at every frequency.

Rounding: none is directed; layers divide by a bound of the norm of what was computed (``orthogonal.squared_norm``).
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.algebra.orthogonal import squared_norm

MAPS = {"bcop": "bjorck", "cayley": "cayley", "eco": "exp", "exp": "exp", "lot": "bjorck", "reflector": "reflector"}
Size = tuple[int, int]
FEW_PIXELS = 64  # up to which products with all waves are faster than a transform


def symbols(kernel: Tensor, torus: Size) -> Tensor:  # (n, m, kh, kw) → (frequencies, n, m), complex
    """M(ω) = Σ_t K[t] e^(iω(t − c)), c the tap ⌊k/2⌋, at half of the frequencies; the others are conjugate."""
    height, width = kernel.shape[2:]
    rounds = (
        -(-height // torus[0]),
        -(-width // torus[1]),
    )  # taps beyond the image meet those a whole circle before
    room = F.pad(kernel, (0, rounds[1] * torus[1] - width, 0, rounds[0] * torus[0] - height))
    room = room.unflatten(3, (rounds[1], torus[1])).unflatten(2, (rounds[0], torus[0])).sum(dim=(2, 4))
    room = room.roll((-(height // 2), -(width // 2)), dims=(2, 3))
    return torch.fft.rfft2(room).conj().flatten(2).permute(2, 0, 1)


def kernel_of(symbols: Tensor, torus: Size, dilation: Size = (1, 1)) -> Tensor:  # → (n, m, K, K′), both odd
    """The kernel with these symbols for a circular ``nn.Conv2d``, padding (K − 1)/2, its taps ``dilation`` apart.

    A tap for each pixel; with an even number of them one more, zero, which makes the kernel odd.
    """
    spectrum = symbols.permute(1, 2, 0).unflatten(2, (torus[0], torus[1] // 2 + 1)).conj()
    taps = torch.fft.irfft2(spectrum, s=torus).roll((torus[0] // 2, torus[1] // 2), dims=(2, 3))
    sizes = [2 * (n // 2) * d + 1 for n, d in zip(torus, dilation, strict=True)]
    made = taps.new_zeros(*taps.shape[:2], *sizes)
    high, wide = torus[0] * dilation[0], torus[1] * dilation[1]
    made[:, :, : high : dilation[0], : wide : dilation[1]] = taps
    return made


def apply(matrices: Tensor, x: Tensor) -> Tensor:  # (frequencies, n, m), (N, m, H, W) → (N, n, H, W)
    """The circular convolution with these symbols."""
    size = x.shape[-2:]
    if not len(x):  # which no transform takes
        return x.new_zeros(0, matrices.shape[1], *size)
    spectrum = torch.fft.rfft2(x)
    moved = matrices @ spectrum.flatten(2).permute(2, 1, 0)
    return torch.fft.irfft2(moved.permute(2, 1, 0).unflatten(2, spectrum.shape[2:]), s=size)


def apply_by_products(matrices: Tensor, x: Tensor) -> Tensor:  # as ``apply``
    """The same without transforms, for small images: the batch comes last, so that every product is a large one."""
    batch, inputs, *size = x.shape
    forward, back = waves(size[0], size[1], x.dtype)
    frequencies, outputs = matrices.shape[:2]
    # A complex product as a real one, [Re −Im; Im Re].
    real, imaginary = matrices.real, matrices.imag
    blocks = torch.cat((torch.cat((real, -imaginary), dim=2), torch.cat((imaginary, real), dim=2)), dim=1)
    v = forward @ x.flatten(2).permute(2, 1, 0).reshape(len(back), inputs * batch)
    v = blocks @ v.view(frequencies, 2 * inputs, batch)
    v = back @ v.reshape(2 * frequencies, outputs * batch)
    return v.view(*size, outputs, batch).permute(3, 2, 0, 1)


def apply_whole(kernel: Tensor, x: Tensor) -> Tensor:  # (n, m, k, k′), (N, m, H, W) → (N, n, H, W)
    """The circular convolution with taps H/k and W/k′ apart, which go round the image: one product.

    Only pixels at a multiple of that distance meet, so that one (nkk′, mkk′) matrix serves all of them.
    """
    (outputs, inputs, *taps), (batch, _, *size) = kernel.shape, x.shape
    # Tap t of output place p reads place p + t − ⌊k/2⌋.
    (high, wide) = (torch.arange(k, device=x.device) for k in taps)
    rows, columns = ((place - place[:, None] + len(place) // 2) % len(place) for place in (high, wide))
    matrix = kernel[:, :, rows[:, :, None, None], columns].permute(0, 2, 4, 1, 3, 5)
    places = [part for n, k in zip(size, taps, strict=True) for part in (k, n // k)]
    v = x.reshape(batch, inputs, *places).permute(1, 2, 4, 0, 3, 5)
    few, many = taps[0] * taps[1], places[1] * places[3]
    y = matrix.reshape(outputs * few, inputs * few) @ v.reshape(inputs * few, batch * many)
    y = y.view(outputs, *taps, batch, places[1], places[3]).permute(3, 0, 1, 4, 2, 5)
    return y.reshape(batch, outputs, *size)


@functools.lru_cache(maxsize=16)
def waves(height: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of ``rfft2`` as rows, (2·frequencies, pixels), and the matrix of ``irfft2``."""
    with torch.inference_mode(False), torch.device("cpu"):  # what is kept serves gradients, too
        half = width // 2 + 1
        high = torch.arange(height).outer(torch.arange(height)).double() % height / height
        wide = torch.arange(half).outer(torch.arange(width)).double() % width / width
        angle = 2 * math.pi * (high[:, None, :, None] + wide[None, :, None, :])
        rows = torch.stack((angle.cos(), -angle.sin()), dim=2).reshape(-1, height * width)
        twice = torch.full((half,), 2.0, dtype=torch.float64)  # of the frequencies that are left out
        twice[0] = 1
        if width % 2 == 0:
            twice[-1] = 1
        weights = twice.repeat_interleave(2).repeat(height) / (height * width)
        return rows.to(dtype), (rows * weights[:, None]).T.contiguous().to(dtype)


def composition_norm(start: Tensor, bases: Tensor, method: str) -> Tensor:
    """A bound of ‖Q‖² for BCOP from its parts, in training: those of the start and of each P + (I − P)e^(iω).

    With ‖V‖² ≤ b ≥ 1 the eigenvalues λ of P = VVᵀ lie in [0, b], and |λ| + |1 − λ| ≤ 2b − 1.
    """
    step = 2 * squared_norm(bases, method, training=True) - 1
    return squared_norm(start, method, training=True) * step ** (2 * len(bases))


def block_composition(start: Tensor, bases: Tensor) -> Tensor:
    """BCOP: an orthonormal (n, m) composed with two taps a step, rows first; → (n, m, k, k), k − 1 = steps/2.

    ``bases`` is (steps, c, r) with c = max(n, m): P = VVᵀ for the orthonormal V of a step.
    """
    tall = start.shape[0] > start.shape[1]
    kernel = (start.mT if tall else start)[:, :, None, None]  # (min, c, 1, 1)
    for step, basis in enumerate(bases):
        axis = 2 + step % 2
        first = torch.einsum("nmhw,mk->nkhw", kernel, basis @ basis.mT)  # KP
        blank = torch.zeros_like(kernel.narrow(axis, 0, 1))
        kernel = torch.cat([first, blank], dim=axis) + torch.cat([blank, kernel - first], dim=axis)
    return kernel.transpose(0, 1) if tall else kernel
