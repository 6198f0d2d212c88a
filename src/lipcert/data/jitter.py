"""Colour jitter: brightness, contrast, saturation and hue of each image by a factor of its own.

The usual definitions of PyTorch's image transforms, x in [0, 1], clamped after every step:

- brightness: b·x
- contrast: c·x + (1 − c)·(the mean of the grey image)
- saturation: s·x + (1 − s)·(the grey image), grey = 0.2989 R + 0.587 G + 0.114 B
- hue: the hue of HSV, a number modulo 1, shifted by h; value and saturation stay.

The factors are (N, 4) in this order, the order of the steps (N, 4): each image has its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

GRAY = (0.2989, 0.587, 0.114)
CHUNK = 256  # images at a time: the planes of a step stay in the cache


def color_jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:  # (N, C, H, W), (N, 4), (N, 4)
    """All four steps in each image's own order; of a grey image brightness and contrast only."""
    result = images.clone()
    steps = STEPS if images.shape[1] == 3 else STEPS[:2]
    for part, factor, turns in zip(*(t.split(CHUNK) for t in (result, factors, order)), strict=True):
        for turn in turns.unbind(1):
            for number, step in enumerate(steps):
                chosen = (turn == number).nonzero()[:, 0]
                part.index_copy_(0, chosen, step(part.index_select(0, chosen), factor[chosen, number]))
    return result


def scale_brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor[:, None, None, None]).clamp_(0, 1)


def scale_contrast(images: Tensor, factor: Tensor) -> Tensor:
    mean = gray(images).mean(dim=(2, 3), keepdim=True)
    return torch.lerp(mean, images, factor[:, None, None, None]).clamp_(0, 1)


def blend_with_gray(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(gray(images), images, factor[:, None, None, None]).clamp_(0, 1)


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """The hue of HSV plus h, for |h| ≤ 1/6, without computing it.

    At constant max and min each channel is a trapezoid of the hue: a triangle wave of slope ±6·(max − min), clamped
    to [min, max]. For red the wave is R + max + min − G − B and its slope has the sign of B − G, so red becomes
    clamp(R + max + min − G − B + 6h·(max − min)·sign(B − G), min, max); green and blue likewise, in turn.
    """
    red, green, blue = images.unbind(1)
    largest = torch.maximum(torch.maximum(red, green), blue)
    smallest = torch.minimum(torch.minimum(red, green), blue)
    step = (largest - smallest).mul_(6 * shift[:, None, None])
    rest = (largest + smallest).sub_(red).sub_(green).sub_(blue)
    result = torch.empty_like(images)
    for channel, (own, before, after) in enumerate(((red, blue, green), (green, red, blue), (blue, green, red))):
        moved = (before - after).sign_().mul_(step).add_(own, alpha=2).add_(rest)
        result[:, channel] = torch.minimum(torch.maximum(moved, smallest), largest)
    return result


def scale_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """The saturation of HSV, (max − min)/max, times the factor and at most 1; hue and value stay."""
    largest, smallest = images.amax(dim=1, keepdim=True), images.amin(dim=1, keepdim=True)
    limit = largest / (largest - smallest).clamp(min=torch.finfo(images.dtype).tiny)  # 1 / saturation
    return torch.lerp(largest, images, torch.minimum(factor[:, None, None, None], limit)).clamp_(0, 1)


def gray(images: Tensor) -> Tensor:  # (N, C, H, W) → (N, 1, H, W)
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return (GRAY[0] * red).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])


STEPS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    scale_brightness,
    scale_contrast,
    blend_with_gray,
    shift_hue,
)
