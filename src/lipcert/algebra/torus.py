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

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.algebra.orthogonal import orthonormal

MAPS = {"bcop": "bjorck", "cayley": "cayley", "eco": "exp", "exp": "exp", "lot": "bjorck", "reflector": "reflector"}
Size = tuple[int, int]


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


def block_composition(matrix: Tensor, projections: Tensor, method: str, training: bool = False) -> Tensor:
    """BCOP: (n, m) orthonormalized, composed with two taps a step, rows first; → (n, m, k, k), k − 1 = steps/2.

    ``projections`` is (steps, c, r) with c = max(n, m): P = VVᵀ, V orthonormal from the c × r of a step.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    start = orthonormal(matrix.mT if tall else matrix, method, training=training)
    kernel = start[:, :, None, None]  # (min, c, 1, 1)
    for step, basis in enumerate(orthonormal(projections, method, training=training)):
        axis = 2 + step % 2
        first = torch.einsum("nmhw,mk->nkhw", kernel, basis @ basis.mT)  # KP
        blank = torch.zeros_like(kernel.narrow(axis, 0, 1))
        kernel = torch.cat([first, blank], dim=axis) + torch.cat([blank, kernel - first], dim=axis)
    return kernel.transpose(0, 1) if tall else kernel
