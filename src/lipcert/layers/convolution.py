"""What convolutional layers share: which padding has a proof, circular padding and its adjoint.

Zero padding deletes rows and columns of the infinite operator, which cannot raise its norm, whatever
the amount. Circular padding wraps the image; it keeps the norm only if no output position occurs twice.
Reflect and replicate padding repeat pixels: one corner tap of a 3×3 kernel has norm 2 under a bound of 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.algebra.gram import PADDING_MODES
from lipcert.algebra.scale import transformed
from lipcert.errors import NotCertified, positive_int


def check_padding_mode(mode: str, padding: tuple[int, int], kernel_size: tuple[int, int]) -> str:
    """``mode`` if a proof covers it with this padding and kernel."""
    if mode in ("reflect", "replicate"):
        raise NotCertified(
            f"padding_mode must be one of {list(PADDING_MODES)}; got {mode!r}, which repeats pixels and can "
            "double the norm, or worse, under any of our bounds. Use padding_mode='zeros' or 'circular'."
        )
    if mode not in PADDING_MODES:
        raise ValueError(f"padding_mode must be one of {list(PADDING_MODES)}; got {mode!r}. Use 'zeros'.")
    if mode == "circular" and any(2 * p > k - 1 for p, k in zip(padding, kernel_size, strict=True)):
        raise NotCertified(
            f"circular padding must be at most (kernel − 1)/2 on each side, or outputs repeat; got padding "
            f"{padding} for kernel {kernel_size}. Use an odd kernel, less padding, or padding_mode='zeros'."
        )
    return mode


def check_groups(groups: int, **channels: int) -> int:
    """``groups`` if it divides both numbers of channels."""
    positive_int("groups", groups)
    if any(count % groups for count in channels.values()):
        counts = " and ".join(f"{name}={count}" for name, count in channels.items())
        raise ValueError(
            f"groups must divide {' and '.join(channels)}; got groups={groups} for {counts}. "
            "Choose a common divisor."
        )
    return groups


def check_image(
    x: Tensor, channels: int, kernel_size: tuple[int, int], padding: tuple[int, int], layer: nn.Module
) -> None:
    """Raise ValueError unless ``x`` is (N, channels, H, W) or (channels, H, W) and not smaller than the kernel."""
    if x.ndim not in (3, 4) or x.shape[-3] != channels:
        raise ValueError(
            f"{type(layer).__name__} expects (N, {channels}, H, W); got {tuple(x.shape)}. "
            "Put PadChannels before it, or build the layer for the channels there are."
        )
    if any(size + 2 * p < k for size, p, k in zip(x.shape[-2:], padding, kernel_size, strict=True)):
        raise ValueError(
            f"{type(layer).__name__} expects images that, padded by {padding}, hold a kernel of {kernel_size}; got "
            f"{x.shape[-2]}×{x.shape[-1]}. Use a smaller kernel or more padding."
        )


def check_divides(x: Tensor, stride: tuple[int, int]) -> None:
    """Raise ``NotCertified`` where a circular image is not a whole number of strides."""
    if x.shape[-2] % stride[0] or x.shape[-1] % stride[1]:
        raise NotCertified(
            f"circular padding needs an image divisible by the stride {stride}; got {x.shape[-2]}×{x.shape[-1]}, "
            "where positions meet across the border at lags the bound does not cover. Use padding_mode='zeros', or "
            "resize the image."
        )


def channels_last(x: Tensor) -> Tensor:
    """x with its channels side by side in memory: the same numbers, faster products (docs/speed.md).

    Not in float64, for which CPUs have no such convolution, nor for a compiler, an exporter or a transform.
    """
    if x.ndim != 4 or x.dtype == torch.float64 or transformed(x):
        return x
    return x.contiguous(memory_format=torch.channels_last)


def pad_circular(x: Tensor, padding: tuple[int, int]) -> Tensor:
    """x wrapped around by ``padding`` (height, width) on each side."""
    high, wide = padding
    if high > x.shape[-2] or wide > x.shape[-1]:
        raise ValueError(
            f"circular padding wraps at most once: expected an image of at least {high}×{wide}; got "
            f"{x.shape[-2]}×{x.shape[-1]}. Use a smaller kernel or a larger image."
        )
    return F.pad(x, (wide, wide, high, high), mode="circular")


def unpad_circular(y: Tensor, padding: tuple[int, int]) -> Tensor:
    """The adjoint of ``pad_circular``: what was copied into the margins is added back where it came from."""
    for dim, p in zip((-2, -1), padding, strict=True):
        if p:
            size = y.shape[dim] - 2 * p
            before, core, after = y.split([p, size, p], dim=dim)
            zeros = list(core.shape)
            zeros[dim] = size - p
            gap = torch.zeros(zeros, device=y.device, dtype=y.dtype)
            y = core + torch.cat([after, gap], dim=dim) + torch.cat([gap, before], dim=dim)
    return y
