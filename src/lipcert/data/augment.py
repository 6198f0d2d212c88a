"""Augmentation of whole batches, every image with random numbers of its own.

Images are floating, (N, C, H, W), in [0, 1], and stay so. An augmentation is a function of the images and of
uniform random numbers, one row an image: ``draw`` makes the rows, ``apply`` is deterministic. So a batch divided
among processes is augmented as it would be in one (each takes its rows), whatever its size.

- ``none``: the images themselves.
- ``flip``: a horizontal flip, for runs too short to profit from more.
- ``crop-flip``: a crop of the original size out of the image padded by 4 reflected pixels; a horizontal flip.
- ``sll``: crop-flip, then color jitter (``color_jitter``) as in the paper's code, the four steps in a random order
  for each image; gray images get brightness and contrast only.
- ``aol``: as AOL's code (Prach & Lampert 2022): rotation by ±5°, translation by ±10 %, flip, then hue,
  saturation, additive brightness and contrast in this order, clamped at the end. Rotation and translation are one
  bilinear interpolation here, two there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lipcert.errors import one_of

PADDING = 4
GRAY = (0.2989, 0.587, 0.114)
CHUNK = 256  # images at a time: the planes of a step stay in the cache
BRIGHTNESS, CONTRAST, SATURATION, HUE = (0.9, 1.1), (0.5, 2.0), (0.3, 2.0), (-0.02, 0.02)
ADDED_BRIGHTNESS, ROTATION, TRANSLATION = (-0.1, 0.1), math.radians(5), 0.1


@dataclass(frozen=True)
class Augmentation:
    """A preset: how many uniform numbers an image takes, and what is done with them."""

    name: str
    numbers: int
    function: Callable[[Tensor, Tensor], Tensor]

    def draw(self, count: int, generator: torch.Generator) -> Tensor:  # (count, numbers), uniform in [0, 1)
        return torch.rand(count, self.numbers, generator=generator, device=generator.device)

    def apply(self, images: Tensor, numbers: Tensor) -> Tensor:  # (N, C, H, W), (N, numbers) → (N, C, H, W)
        if images.ndim != 4 or not images.is_floating_point() or images.shape[1] not in (1, 3):
            raise ValueError(
                f"augmentation expects floating images (N, C, H, W) with C = 1 or 3; got {images.dtype} "
                f"{tuple(images.shape)}. Pass data.inputs()[batch]."
            )
        if numbers.shape != (len(images), self.numbers):
            raise ValueError(
                f"{self.name} expects random numbers ({len(images)}, {self.numbers}); got {tuple(numbers.shape)}. "
                "Pass draw(len(images), generator)."
            )
        return self.function(images, numbers.to(images.device, images.dtype))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.apply(images, self.draw(len(images), generator))


def flip(images: Tensor, numbers: Tensor) -> Tensor:
    """One number: below ½ mirrors the image."""
    return torch.where(numbers[:, :, None, None] < 0.5, images.flip(3), images)


def crop_flip(images: Tensor, numbers: Tensor) -> Tensor:
    """Numbers: row, column, flip. One gather; the padded images are never made."""
    count, channels, height, width = images.shape
    if min(height, width) <= PADDING:
        raise ValueError(
            f"crops with {PADDING} reflected pixels expect images larger than that; got {height}×{width}. "
            "Use the preset none."
        )
    rows = _reflected(numbers[:, 0], height)  # (N, H)
    columns = _reflected(numbers[:, 1], width)  # (N, W)
    columns = torch.where(numbers[:, 2:3] < 0.5, columns.flip(1), columns)
    index = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, -1)
    return images.reshape(count, channels, -1).gather(2, index.expand(-1, channels, -1)).view(images.shape)


def _reflected(uniform: Tensor, size: int) -> Tensor:  # (N,) → (N, size), the pixels that a crop shows
    places = 2 * PADDING + 1
    offset = (uniform * places).long().clamp_(max=places - 1) - PADDING
    index = (torch.arange(size, device=uniform.device) + offset[:, None]).abs()
    return size - 1 - (size - 1 - index).abs()


def paper(images: Tensor, numbers: Tensor) -> Tensor:
    """Numbers: three of ``crop_flip``, four factors, four whose order is the order of the steps."""
    factors = _between(numbers[:, 3:7], BRIGHTNESS, CONTRAST, SATURATION, HUE)
    return color_jitter(crop_flip(images, numbers[:, :3]), factors, numbers[:, 7:].argsort(dim=1))


def almost_orthogonal(images: Tensor, numbers: Tensor) -> Tensor:
    """Numbers: angle, two shifts, flip; hue, saturation, brightness, contrast."""
    moved = _moved(images, numbers[:, :4])
    hue, saturation, brightness, contrast = _between(
        numbers[:, 4:], HUE, SATURATION, ADDED_BRIGHTNESS, CONTRAST
    ).unbind(1)
    if moved.shape[1] == 3:
        moved = scale_saturation(shift_hue(moved, hue), saturation)
    moved = moved + brightness[:, None, None, None]
    mean = moved.mean(dim=(2, 3), keepdim=True)  # of every channel on its own
    return torch.lerp(mean, moved, contrast[:, None, None, None]).clamp_(0, 1)


def _moved(images: Tensor, numbers: Tensor) -> Tensor:
    """Rotated, shifted and flipped about the center, with symmetric reflection at the border."""
    height, width = images.shape[2:]
    angle = (2 * numbers[:, 0] - 1) * ROTATION
    shift = (2 * numbers[:, 1:3] - 1) * (2 * TRANSLATION)  # the image spans [−1, 1]
    sign = torch.where(numbers[:, 3] < 0.5, -1.0, 1.0)
    cosine, sine = angle.cos(), angle.sin()
    matrix = torch.stack(
        [
            torch.stack([sign * cosine, -sine * (height / width), shift[:, 0]], dim=1),
            torch.stack([sign * sine * (width / height), cosine, shift[:, 1]], dim=1),
        ],
        dim=1,
    )  # (N, 2, 3), from output to input
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False).clamp_(0, 1)


def _between(numbers: Tensor, *ranges: tuple[float, float]) -> Tensor:
    low, high = numbers.new_tensor(ranges).unbind(1)
    return low + numbers * (high - low)


# Color jitter


def color_jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:  # (N, C, H, W), (N, 4), (N, 4)
    """All four steps in each image's own order; of a gray image brightness and contrast only.

    The usual definitions of PyTorch's image transforms, x in [0, 1], clamped after every step:

    - brightness: b·x
    - contrast: c·x + (1 − c)·(the mean of the gray image)
    - saturation: s·x + (1 − s)·(the gray image), gray = 0.2989 R + 0.587 G + 0.114 B
    - hue: the hue of HSV, a number modulo 1, shifted by h; value and saturation stay.

    The factors are (N, 4) in this order, the order of the steps (N, 4): each image has its own.
    """
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


PRESETS = {
    preset.name: preset
    for preset in (
        Augmentation("none", 0, lambda images, numbers: images),
        Augmentation("flip", 1, flip),
        Augmentation("crop-flip", 3, crop_flip),
        Augmentation("sll", 11, paper),
        Augmentation("aol", 8, almost_orthogonal),
    )
}


def augmentation(name: str) -> Augmentation:
    """The preset called ``name``."""
    return PRESETS[one_of("augmentation", name, PRESETS)]
