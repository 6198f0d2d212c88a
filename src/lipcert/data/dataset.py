"""The one type of this package: images or rows of numbers, labels, class names and their checksums.

Images stay 8-bit, as published; a network sees them as ``inputs()``, float32 in [0, 1]. Other data, such as the
rows of a table or signals, are float32 and are seen as they are. Images may be a file that is
mapped into memory, which can be larger than memory: whatever visits all images here does so in blocks. A checksum
is over the values, not over a file: images as N rows of C·H·W bytes, labels as one byte each (two, little-endian,
beyond 256 classes), so that every file format of one data set has the same one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lipcert.files import atomic_file

Split = Literal["train", "test"]
OWN = "own data"  # the name of data that were passed as tensors
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
    In place of images there may be float32 inputs of any shape (N, …), such as rows of a table.
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
        fits = (self.stored.dtype, self.stored.ndim) == (torch.uint8, 4) or (
            self.stored.dtype == torch.float32 and self.stored.ndim > 1
        )
        if not fits or (self.labels.dtype, self.labels.shape) != (torch.int64, (count,)):
            raise ValueError(
                f"{self.name} {self.split}: expected uint8 images (N, C, H, W), or float32 inputs (N, …), and "
                f"int64 labels (N,); got {found}. Convert with .to, one label an image."
            )
        if self.stored.dtype == torch.float32 and not bool(torch.isfinite(self.stored).all()):
            raise ValueError(f"{self.name} {self.split}: the inputs must be finite. Remove NaN and infinity.")
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
        return images.float() / 255 if self.of_bytes else images, self.labels[index]

    def __repr__(self) -> str:
        what = "images" if self.of_bytes else "inputs"
        return (
            f"ImageData({self.name} {self.split}: {len(self):,} {what} {'×'.join(map(str, self.image_shape))}, "
            f"{len(self.classes)} classes)"
        )

    @property
    def of_bytes(self) -> bool:
        """Whether these are 8-bit images, which a network sees divided by 255."""
        return self.stored.dtype == torch.uint8

    @property
    def image_shape(self) -> tuple[int, ...]:  # (C, H, W), or that of one float32 input
        return tuple(self.stored.shape[1:])

    @cached_property
    def images(self) -> Tensor:
        """All images, uint8 (N, C, H, W), or float32 inputs; a copy if ``take`` chose them by their indices."""
        return self.stored if self.rows is None else self.stored[self.rows]

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Visit all images in their order, a few megabytes at a time."""
        size = max(1, BLOCK // self.stored[0].nbytes)
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield self.stored[part if self.rows is None else self.rows[part]].numpy()

    @cached_property
    def sha256(self) -> Checksums:
        """Computed once, over the values."""
        labels = labels_as_bytes(self.labels.numpy(), len(self.classes))
        return Checksums(images=sha256_of(self.blocks()), labels=sha256_of([labels]))

    def inputs(self) -> Tensor:  # (N, C, H, W) float32 in [0, 1], or the float32 inputs
        """Return all images as a network sees them."""
        return self.images.float() / 255 if self.of_bytes else self.images

    def channel_means(self) -> tuple[float, ...]:
        """Return the mean of each channel over all images, in [0, 1], or of each column of a table."""
        if not self.of_bytes:
            return tuple(self.images.double().transpose(0, 1).flatten(1).mean(dim=1).tolist())
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
    images: NDArray[Any], labels: NDArray[np.integer], classes: tuple[str, ...], name: str, split: str
) -> ImageData:
    """Make ``ImageData`` from numpy arrays, uint8 images (N, C, H, W) or float32 inputs (N, …)."""
    stored = torch.from_numpy(np.require(images, requirements=("C", "W")))
    return ImageData(stored, torch.from_numpy(labels.astype(np.int64)), classes, name, split)


def own_data(inputs: Tensor, labels: Tensor, split: str, classes: tuple[str, ...] | None = None) -> ImageData:
    """Tensors of the user's as a data set: uint8 images or floating inputs (N, …), and integer labels (N,)."""
    if labels.is_floating_point() or labels.ndim != 1 or not len(labels) or int(labels.min()) < 0:
        raise ValueError(
            f"{OWN} {split}: expected integer labels (N,) from 0; got {labels.dtype} {tuple(labels.shape)}. Number "
            "the classes from 0."
        )
    stored = inputs if inputs.dtype == torch.uint8 else inputs.float()
    names = classes or tuple(map(str, range(int(labels.max()) + 1)))
    return ImageData(stored.detach().cpu(), labels.detach().cpu().long(), names, OWN, split)


def save_data(file: Path, data: ImageData) -> None:
    """Keep data that no name and no path stands for, in a file that ``read_data`` reads."""
    with atomic_file(file) as path:
        content = {"inputs": data.images.contiguous(), "labels": data.labels.contiguous()}
        about = {"classes": list(data.classes), "name": data.name, "split": data.split}
        save_file(content, path, metadata={"lipcert_data": json.dumps(about)})


def read_data(file: Path) -> ImageData:
    try:
        with safe_open(file, framework="pt") as archive:
            about = json.loads((archive.metadata() or {})["lipcert_data"])
            inputs, labels = archive.get_tensor("inputs"), archive.get_tensor("labels")
        return ImageData(inputs, labels, tuple(map(str, about["classes"])), str(about["name"]), str(about["split"]))
    except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, json.JSONDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(f"{file} is damaged or holds no data of lipcert ({reason}). Train again.") from None


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
