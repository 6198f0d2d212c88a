"""How a convolution meets its image: im2col and one matrix product, and the adjoint of that.

Sums are classical, in any order: no Winograd, no Fourier transform (docs/rounding.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lipcert.layers.operators import pad_circular, unpad_circular
from lipcert.verified import convolution


@dataclass(frozen=True)
class Geometry:
    """A 2-d convolution: how it meets the image, in im2col and its adjoint."""

    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, bottom, left, right
    dilation: tuple[int, int]
    padding_mode: str
    groups: int

    def padded(self, image: tuple[int, int]) -> tuple[int, int]:
        top, bottom, left, right = self.padding
        return image[0] + top + bottom, image[1] + left + right

    def outputs(self, image: tuple[int, int]) -> tuple[int, int]:
        high, wide = (
            (size - d * (k - 1) - 1) // s + 1
            for size, d, k, s in zip(self.padded(image), self.dilation, self.kernel_size, self.stride, strict=True)
        )
        return high, wide

    def patches(self, x: Tensor) -> Tensor:  # (N, C, H, W) → (N, groups, C/groups·taps, positions)
        top, bottom, left, right = self.padding
        if self.padding_mode == "circular":
            x = pad_circular(x, (top, left))
        elif any(self.padding):
            x = F.pad(x, (left, right, top, bottom))
        columns = F.unfold(x, self.kernel_size, self.dilation, 0, self.stride)
        return columns.unflatten(1, (self.groups, -1))

    def image(self, columns: Tensor, size: tuple[int, int]) -> Tensor:
        """The adjoint of ``patches``: every pixel collects what was copied from it."""
        back = F.fold(columns.flatten(1, 2), self.padded(size), self.kernel_size, self.dilation, 0, self.stride)
        top, bottom, left, right = self.padding
        if self.padding_mode == "circular":
            return unpad_circular(back, (top, left))
        return back[:, :, top : back.shape[2] - bottom, left : back.shape[3] - right]

    def rows(self, weight: Tensor) -> Tensor:  # (n, c, kh, kw) → (groups, n/groups, c·taps)
        return weight.flatten(1).unflatten(0, (self.groups, -1))

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, block: int | None) -> Tensor:
        y = matmul(self.rows(weight), self.patches(x), block).flatten(1, 2)
        y = y.unflatten(2, self.outputs((x.shape[2], x.shape[3])))
        return y if bias is None else y + bias[:, None, None]

    def transpose(self, y: Tensor, weight: Tensor, size: tuple[int, int], block: int | None) -> Tensor:
        columns = matmul(self.rows(weight).mT, y.flatten(2).unflatten(1, (self.groups, -1)), block)
        return self.image(columns, size)

    def proved_stride(self, image: tuple[int, int]) -> tuple[int, int]:
        """The stride that a proof of its norm may use; refused where there is none."""
        top, bottom, left, right = self.padding
        if self.padding_mode == "circular" and (top != bottom or left != right):
            return convolution.proved_stride(self.kernel_size, image, padding_mode="asymmetric circular")  # refuses
        return convolution.proved_stride(
            self.kernel_size,
            image,
            stride=self.stride,
            padding=(top, left),
            dilation=self.dilation,
            padding_mode=self.padding_mode,
        )

    def torus(self, image: tuple[int, int]) -> tuple[int, int] | None:
        """The circular image in strides, where its frequencies are the only ones; None with zeros or a dilation."""
        if self.padding_mode != "circular" or self.dilation != (1, 1):
            return None
        (high, wide), (s1, s2) = image, self.proved_stride(image)
        return high // s1, wide // s2

    def in_format(self, image: tuple[int, int]) -> bool:
        """Whether a certificate file can say it."""
        top, bottom, left, right = self.padding
        divides = all(size % s == 0 for size, s in zip(image, self.stride, strict=True))
        small = all(2 * p < k for p, k in zip((top, left), self.kernel_size, strict=True))
        placed = self.padding_mode == "zeros" or (divides and small)
        return self.dilation == (1, 1) and (top, left) == (bottom, right) and placed

    def placed(self) -> dict[str, Any]:
        """As a certificate file says it."""
        return {
            "stride": list(self.stride),
            "padding": [self.padding[0], self.padding[2]],
            "padding_mode": self.padding_mode,
            "groups": self.groups,
        }


def matmul(a: Tensor, b: Tensor, block: int | None) -> Tensor:
    """a @ b, its sums in blocks of ``block`` terms that are then added one after the other."""
    length = a.shape[-1]
    if block is None or length <= block:
        return a @ b
    total = a[..., :block] @ b[..., :block, :]
    for start in range(block, length, block):
        total = total + a[..., start : start + block] @ b[..., start : start + block, :]
    return total


def chained(length: int, block: int | None) -> int:
    """The additions on the longest path through a sum of ``matmul``."""
    return length if block is None or length <= block else block + -(-length // block)


def pair(value: Any) -> tuple[int, int]:
    """(height, width) of what torch.nn writes as one number or two."""
    if isinstance(value, int):
        return value, value
    return (int(value[0]), int(value[0])) if len(value) == 1 else (int(value[0]), int(value[1]))
