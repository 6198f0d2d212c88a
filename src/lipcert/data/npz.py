"""Any ``.npz`` file: images and labels under the usual names, read without pickle and within declared sizes.

Images are uint8, (N, H, W), (N, C, H, W) or (N, H, W, C) with C = 1 or 3; labels integers (N,) or (N, 1). Names:
``x_train y_train x_test y_test``, ``train_images train_labels test_images test_labels``, or one set, ``images
labels`` or ``x y``, which is read as a test set and refused as a training set; optionally ``classes``.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lipcert.data.dataset import ImageData, Split, image_data
from lipcert.data.files import LARGEST_ARRAY, check_size, damaged, open_zip
from lipcert.errors import DataNotFound

SPLIT_NAMES = (("x_{}", "y_{}"), ("X_{}", "y_{}"), ("{}_images", "{}_labels"), ("images_{}", "labels_{}"))
WHOLE_NAMES = (("images", "labels"), ("x", "y"), ("X", "y"))
CLASS_NAMES = ("classes", "class_names", "label_names")


class Arrays:
    """The arrays of an open ``.npz`` file, each read when asked for."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        self.names = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def read(self, name: str) -> NDArray[Any]:
        if name not in self.names:
            raise ValueError(
                f"{self.path}: expected an array {name}; got {sorted(self.names)}. Fetch or save it again."
            )
        info, where = self.names[name], f"{self.path}: {name}"
        check_size(where, info.file_size, info.compress_size, largest=LARGEST_ARRAY)
        try:
            with damaged(where), self.archive.open(info) as member:
                version = npy.read_magic(member)
                header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, _, dtype = header(member)
                if not dtype.hasobject:  # an empty item counts as a byte: there may be 10¹² of them
                    check_size(where, math.prod(shape) * max(1, dtype.itemsize), largest=info.file_size)
            with damaged(where), self.archive.open(info) as member:
                return np.asarray(npy.read_array(member, allow_pickle=False))
        except (ValueError, SyntaxError, TypeError, LookupError, RecursionError, TokenError) as error:
            if str(error).startswith(where):
                raise
            reason = " ".join(str(error).split())[:120]
            raise ValueError(f"{where}: expected a plain array; got one that cannot be read ({reason}).") from error


@contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    if not path.is_file():
        raise DataNotFound(f"{path}: expected an .npz file; got nothing. Check the path.")
    with open_zip(path) as archive:
        yield Arrays(path, archive)


def read(path: Path, split: Split) -> ImageData:
    """One split of any ``.npz`` file."""
    with open_npz(path) as arrays:
        names = _names(arrays, split)
        images, labels = _images(arrays.read(names[0]), path), _labels(arrays.read(names[1]), path)
        classes = _classes(arrays, labels)
    if len(images) != len(labels):
        raise ValueError(f"{path}: expected one label an image; got {len(images)} images and {len(labels)} labels.")
    return image_data(images, labels, classes, path.stem, split)


def _names(arrays: Arrays, split: Split) -> tuple[str, str]:
    for pair in SPLIT_NAMES:
        images, labels = (name.format(split) for name in pair)
        if images in arrays.names and labels in arrays.names:
            return images, labels
    for images, labels in WHOLE_NAMES:
        if images in arrays.names and labels in arrays.names:
            if split == "train":
                raise ValueError(
                    f"{arrays.path}: expected x_train and y_train; got one set, {images} and {labels}, which is "
                    "read as a test set only. Save x_train, y_train, x_test and y_test to train on it."
                )
            return images, labels
    raise DataNotFound(
        f"{arrays.path}: expected x_{split} and y_{split}, {split}_images and {split}_labels, or images and "
        f"labels; got {sorted(arrays.names)}. Save it again under such names."
    )


def _images(images: NDArray[Any], path: Path) -> NDArray[np.uint8]:  # (N, C, H, W)
    if images.dtype != np.uint8:
        raise ValueError(
            f"{path}: expected uint8 images; got {images.dtype}. Save round(255·x) as uint8, so that it is clear "
            "which images a certificate is about."
        )
    if images.ndim == 3:
        return images[:, None]
    first, last = images.ndim == 4 and images.shape[1] in (1, 3), images.ndim == 4 and images.shape[3] in (1, 3)
    if first == last:
        raise ValueError(
            f"{path}: expected images (N, H, W), (N, C, H, W) or (N, H, W, C) with C = 1 or 3; got {images.shape}. "
            "Save it again in one of these shapes."
        )
    return images if first else images.transpose(0, 3, 1, 2)


def _labels(labels: NDArray[Any], path: Path) -> NDArray[np.integer]:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"{path}: expected integer labels (N,); got {labels.dtype} {labels.shape}. Save them again."
        )
    return labels


def _classes(arrays: Arrays, labels: NDArray[np.integer]) -> tuple[str, ...]:
    """The saved names, or the numbers up to the largest label of any split."""
    for name in CLASS_NAMES:
        if name in arrays.names:
            names = arrays.read(name).ravel()
            if len(names) > 1 << 20:
                raise ValueError(f"{arrays.path}: expected names of classes; got {len(names):,} of them.")
            return tuple(str(label) for label in names)
    others = [name.format(split) for _, name in SPLIT_NAMES for split in ("train", "test")]
    every = [labels, *(_labels(arrays.read(name), arrays.path) for name in others if name in arrays.names)]
    largest = max(int(values.max(initial=0)) for values in every)
    if largest >= 1 << 20:
        raise ValueError(
            f"{arrays.path}: expected labels numbered from 0; got {largest}. Number the classes again."
        )
    return tuple(str(number) for number in range(largest + 1))
