"""A circular convolution as it is stored: in a basis of waves, where it has one small block for each frequency.

An orthogonal convolution has a kernel as large as its image, which a direct convolution pays for tap by tap. In the
basis T of cosines and sines along both axes it is A = TᵀBT with B of one block for each pair of frequencies: five
products, each a plain sum, for which ``proofs`` has error bounds (a fast Fourier transform has none there). Blocks
are (4n, 4m), in the order (cosine or sine of rows, of columns, channel).

Rounding: none here; ``verified.torus`` is about the stored numbers, whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lipcert.activations import SlopeRestricted
from lipcert.frozen.modules import FrozenResidual

Product = Callable[[Tensor, Tensor], Tensor]


def waves(size: int) -> Tensor:  # (2⌈size/2⌉, size), float64
    """Two orthonormal waves for each frequency; a row of zeros where there is one alone, for an odd size."""
    place, pairs = torch.arange(size, dtype=torch.float64), (size + 1) // 2
    made = torch.zeros(2 * pairs, size, dtype=torch.float64)
    made[0] = size**-0.5
    if size % 2 == 0:
        made[1] = (1 - 2 * (place % 2)) * size**-0.5
    for k in range(1, pairs):
        angle = 2 * math.pi * ((k * place) % size) / size
        made[2 * k], made[2 * k + 1] = math.sqrt(2 / size) * angle.cos(), math.sqrt(2 / size) * angle.sin()
    return made


def blocks_of(kernel: Tensor, image: tuple[int, int]) -> Tensor:  # (n, m, K, K′), odd → (h·w, 4n, 4m), float64
    """The blocks of ``nn.Conv2d`` with circular padding (K − 1)/2 on that image."""
    response = kernel.double()
    for axis, size in ((2, image[0]), (3, image[1])):  # tap t reaches from place o to o + t − (K − 1)/2
        taps = response.shape[axis]
        places = (taps // 2 - torch.arange(taps, device=kernel.device)) % size
        shape = [size if a == axis else n for a, n in enumerate(response.shape)]
        response = torch.zeros(shape, device=kernel.device, dtype=torch.float64).index_add_(axis, places, response)
    high, wide = (_moved(size).to(kernel.device) for size in image)
    half = torch.einsum("nmst,kbdt->nmskbd", response, wide)
    made = torch.einsum("gacs,nmskbd->gkabncdm", high, half)
    outputs, inputs = kernel.shape[:2]
    return made.reshape(len(high) * len(wide), 4 * outputs, 4 * inputs)


def _moved(size: int) -> Tensor:  # (frequencies, 2, 2, size)
    """⟨wave a, wave b moved by s places⟩ for the two waves of each frequency."""
    pairs = waves(size).unflatten(0, (-1, 2))
    moved = torch.stack([pairs.roll(s, dims=2) for s in range(size)], dim=3)  # (frequencies, b, place, s)
    return torch.einsum("gap,gbps->gabs", pairs, moved)


def expand(rows: Tensor, columns: Tensor, blocks: Tensor, x: Tensor, product: Product = torch.matmul) -> Tensor:
    """TᵀBTx, (N, m, H, W) → (N, n, H, W); the batch comes last on the way, so that every product is a large one."""
    batch, inputs, high, wide = x.shape
    h, w, outputs = len(rows) // 2, len(columns) // 2, blocks.shape[1] // 4
    v = product(rows, x.permute(2, 3, 1, 0).reshape(high, wide * inputs * batch))
    v = product(columns, v.reshape(2 * h, wide, inputs * batch))
    v = v.reshape(h, 2, w, 2, inputs * batch).permute(0, 2, 1, 3, 4)
    v = product(blocks, v.reshape(h * w, 4 * inputs, batch))
    v = v.reshape(h, w, 2, 2, outputs * batch).permute(0, 2, 1, 3, 4)
    v = product(columns.mT, v.reshape(2 * h, 2 * w, outputs * batch))
    v = product(rows.mT, v.reshape(2 * h, wide * outputs * batch))
    return v.reshape(high, wide, outputs, batch).permute(3, 2, 0, 1)


def require_image(rows: Tensor, columns: Tensor, blocks: Tensor, x: Tensor, name: str) -> None:
    expected = (blocks.shape[2] // 4, rows.shape[1], columns.shape[1])
    if x.ndim not in (3, 4) or tuple(x.shape[-3:]) != expected:
        raise ValueError(
            f"{name} expects (N, {', '.join(map(str, expected))}); got {tuple(x.shape)}. The size of the image is "
            "part of it: build it for the images there are."
        )


class FrozenTorus(nn.Module):
    """TᵀBTx + b, (N, m, H, W) → (N, n, H, W)."""

    rows: Tensor
    columns: Tensor
    weight: Tensor
    bias: Tensor | None

    def __init__(self, rows: Tensor, columns: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        for name, tensor in (("rows", rows), ("columns", columns), ("weight", weight), ("bias", bias)):
            self.register_buffer(name, None if tensor is None else tensor.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        require_image(self.rows, self.columns, self.weight, x, "FrozenTorus")
        y = expand(self.rows, self.columns, self.weight, x if x.ndim == 4 else x[None])
        y = y if self.bias is None else y + self.bias[:, None, None]
        return y if x.ndim == 4 else y[0]

    def extra_repr(self) -> str:
        return described(self)


class FrozenResidualTorus(FrozenResidual):
    """x − W(2γ·σ(Wᵀx + b)) with Wᵀ = TᵀBT, (N, m, H, W) → the same."""

    rows: Tensor
    columns: Tensor

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        weight: Tensor,
        gamma: Tensor,
        bias: Tensor | None,
        sigma: SlopeRestricted,
    ) -> None:
        super().__init__(weight, gamma, bias, sigma, None)
        self.register_buffer("rows", rows.detach().clone())
        self.register_buffer("columns", columns.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        require_image(self.rows, self.columns, self.weight, x, "FrozenResidualTorus")
        batch = x if x.ndim == 4 else x[None]
        z = expand(self.rows, self.columns, self.weight, batch)
        z = self.sigma.function(z if self.bias is None else z + self.bias[:, None, None])
        y = batch - expand(self.rows, self.columns, self.weight.mT, z * (2 * self.gamma[:, None, None]))
        return y if x.ndim == 4 else y[0]

    def extra_repr(self) -> str:
        return f"{described(self)}, activation={self.sigma.name!r}"


def described(module: FrozenTorus | FrozenResidualTorus) -> str:
    outputs, inputs = module.weight.shape[1] // 4, module.weight.shape[2] // 4
    return f"{inputs}, {outputs}, image_size={(module.rows.shape[1], module.columns.shape[1])}"
