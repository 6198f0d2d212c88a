"""The one type of this room: images, labels, class names and their checksums.

Images stay 8-bit, as published; a network sees them as ``inputs()``, float32 in [0, 1]. A checksum is over the
values, not over a file: images as N rows of C·H·W bytes, labels as one byte each (two, little-endian, beyond 256
classes), so that every file format of one data set has the same one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Checksums:
    """sha256, in hexadecimal, of the images and of the labels."""

    images: str
    labels: str


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """Images as uint8 (N, C, H, W), labels as int64 (N,), the names of the classes, and where it all came from."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    split: str

    def __post_init__(self) -> None:
        found = f"{self.images.dtype} {tuple(self.images.shape)} and {self.labels.dtype} {tuple(self.labels.shape)}"
        if (self.images.dtype, self.images.ndim) != (torch.uint8, 4) or (
            (self.labels.dtype, self.labels.shape) != (torch.int64, self.images.shape[:1])
        ):
            raise ValueError(
                f"{self.name} {self.split}: expected uint8 images (N, C, H, W) and int64 labels (N,); got {found}. "
                "Convert with .to(torch.uint8) and .to(torch.int64), one label an image."
            )
        if not self.images.numel():
            raise ValueError(
                f"{self.name} {self.split}: expected at least one image; got {found}. Check the source."
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise ValueError(
                f"{self.name} {self.split}: expected labels 0 to {len(self.classes) - 1}; got {low} to {high}. "
                "Number the classes from 0 and name every one of them."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"ImageData({self.name} {self.split}: {len(self):,} images {'×'.join(map(str, self.image_shape))}, "
            f"{len(self.classes)} classes)"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:  # (C, H, W)
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @cached_property
    def sha256(self) -> Checksums:
        """Computed once, over the values."""
        return Checksums(
            images=sha256_of(self.images.numpy()), labels=sha256_of(labels_as_bytes(self.labels, len(self.classes)))
        )

    def inputs(self) -> Tensor:  # (N, C, H, W) float32 in [0, 1]
        return self.images.float() / 255

    def take(self, index: Tensor | slice, *, split: str) -> ImageData:
        """The chosen images as a data set of their own, under the name ``split``."""
        return ImageData(self.images[index], self.labels[index], self.classes, self.name, split)


def image_data(
    images: NDArray[np.uint8], labels: NDArray[np.integer], classes: tuple[str, ...], name: str, split: str
) -> ImageData:
    """``ImageData`` from numpy arrays, images (N, C, H, W)."""
    return ImageData(
        images=torch.from_numpy(np.require(images, requirements=("C", "W"))),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=classes,
        name=name,
        split=split,
    )


def labels_as_bytes(labels: Tensor, classes: int) -> NDArray[np.integer]:
    """Labels in the width that is hashed and stored."""
    return labels.numpy().astype(np.uint8 if classes <= 256 else np.dtype("<u2"))


def sha256_of(array: NDArray[np.generic]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
