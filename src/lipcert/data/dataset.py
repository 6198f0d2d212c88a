"""The one type of this package: images, labels, class names and their checksums.

Images stay 8-bit, as published; a network sees them as ``inputs()``, float32 in [0, 1]. They may be a file that is
mapped into memory, which can be larger than memory: whatever visits all images here does so in blocks. A checksum
is over the values, not over a file: images as N rows of C·H·W bytes, labels as one byte each (two, little-endian,
beyond 256 classes), so that every file format of one data set has the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Split = Literal["train", "test"]
BLOCK = 1 << 22  # bytes of images that are visited at a time


@dataclass(frozen=True)
class Checksums:
    """sha256, in hexadecimal, of the images and of the labels."""

    images: str
    labels: str


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """Images as uint8 (N, C, H, W), labels as int64 (N,), the names of the classes, and where it all came from.

    ``data[i]`` is the input of a network, float32 (C, H, W) in [0, 1], and its label, so that a
    ``torch.utils.data.DataLoader`` can read it; ``i`` may also be a slice or a tensor of indices.
    """

    stored: Tensor
    """The images as they are stored, of which ``rows`` may choose some."""
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    split: str
    rows: Tensor | None = None
    """Which of the stored images these are, int64 (N,); None: all of them."""

    def __post_init__(self) -> None:
        count = len(self.stored if self.rows is None else self.rows)
        found = f"{self.stored.dtype} {tuple(self.stored.shape)} and {self.labels.dtype} {tuple(self.labels.shape)}"
        if (self.stored.dtype, self.stored.ndim) != (torch.uint8, 4) or (
            (self.labels.dtype, self.labels.shape) != (torch.int64, (count,))
        ):
            raise ValueError(
                f"{self.name} {self.split}: expected uint8 images (N, C, H, W) and int64 labels (N,); got {found}. "
                "Convert with .to(torch.uint8) and .to(torch.int64), one label an image."
            )
        if not count or not self.stored.numel():
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

    def __getitem__(self, index: int | slice | Tensor) -> tuple[Tensor, Tensor]:
        images = self.stored[index if self.rows is None else self.rows[index]]
        return images.float() / 255, self.labels[index]

    def __repr__(self) -> str:
        return (
            f"ImageData({self.name} {self.split}: {len(self):,} images {'×'.join(map(str, self.image_shape))}, "
            f"{len(self.classes)} classes)"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:  # (C, H, W)
        channels, height, width = self.stored.shape[1:]
        return channels, height, width

    @cached_property
    def images(self) -> Tensor:
        """All images, uint8 (N, C, H, W); a copy if ``take`` chose them by their indices."""
        return self.stored if self.rows is None else self.stored[self.rows]

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Visit all images in their order, a few megabytes at a time."""
        size = max(1, BLOCK // self.stored[0].numel())
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield self.stored[part if self.rows is None else self.rows[part]].numpy()

    @cached_property
    def sha256(self) -> Checksums:
        """Computed once, over the values."""
        labels = labels_as_bytes(self.labels.numpy(), len(self.classes))
        return Checksums(images=sha256_of(self.blocks()), labels=sha256_of([labels]))

    def inputs(self) -> Tensor:  # (N, C, H, W) float32 in [0, 1]
        """Return all images as a network sees them."""
        return self.images.float() / 255

    def channel_means(self) -> tuple[float, ...]:
        """Return the mean of each channel over all images, in [0, 1]."""
        sums = np.zeros(len(self.stored[0]), np.int64)
        for block in self.blocks():
            sums += block.sum(axis=(0, 2, 3), dtype=np.int64)
        return tuple(total / (255 * len(self) * self.stored[0, 0].numel()) for total in sums.tolist())

    def take(self, index: Tensor | slice, *, split: str) -> ImageData:
        """Return the chosen images as a data set of their own, under the name ``split``; none is copied."""
        if self.rows is None and isinstance(index, slice):
            stored, rows = self.stored[index], None
        else:
            stored, rows = self.stored, (torch.arange(len(self)) if self.rows is None else self.rows)[index]
        return ImageData(stored, self.labels[index], self.classes, self.name, split, rows)


def image_data(
    images: NDArray[np.uint8], labels: NDArray[np.integer], classes: tuple[str, ...], name: str, split: str
) -> ImageData:
    """Make ``ImageData`` from numpy arrays, images (N, C, H, W)."""
    stored = torch.from_numpy(np.require(images, requirements=("C", "W")))
    return ImageData(stored, torch.from_numpy(labels.astype(np.int64)), classes, name, split)


def require_seen(path: object, train: Iterable[object], test: Iterable[object]) -> None:
    """Refuse a test set with classes that no training image has."""
    if unseen := sorted(set(test) - set(train), key=str):
        raise ValueError(
            f"{path}: expected the classes of train in test; got {unseen[0]!r} in test alone. "
            "Use the same classes in both."
        )


def labels_as_bytes(labels: NDArray[Any], classes: int) -> NDArray[np.integer]:
    """Return labels in the width that is hashed and stored."""
    return labels.astype(np.uint8 if classes <= 256 else np.dtype("<u2"))


def sha256_of(blocks: Iterable[NDArray[np.generic]]) -> str:
    """Hash the bytes of arrays, one after the other."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
