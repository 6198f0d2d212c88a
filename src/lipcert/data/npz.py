"""``.npz`` files: images and labels under the usual names, and the prepared form of a data set.

Images are uint8, (N, H, W), (N, C, H, W) or (N, H, W, C) with C = 1 or 3; labels integers (N,) or (N, 1). Names:
``x_train y_train x_test y_test``, ``train_images train_labels test_images test_labels``, or one set, ``images
labels`` or ``x y``, which is read as a test set and refused as a training set; optionally ``classes``.

An array that is stored without compression is mapped into memory, not read, so that it may be larger than memory.
The prepared form is such a file, with ``sha256``, one line for each split, against which it is checked when it is
read. It is written under a temporary name in the same folder, flushed to the disk and renamed: a reader finds the
old file or the new one, never a part of either.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import mmap
import os
import shutil
import struct
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lipcert.data.dataset import ImageData, Split, image_data, labels_as_bytes, require_seen, sha256_of
from lipcert.data.files import LARGEST_ARRAY, check_size, name_damage, open_zip
from lipcert.errors import DataNotFound
from lipcert.files import atomic_file

SPLIT_NAMES = (("x_{}", "y_{}"), ("X_{}", "y_{}"), ("{}_images", "{}_labels"), ("images_{}", "labels_{}"))
WHOLE_NAMES = (("images", "labels"), ("x", "y"), ("X", "y"))
CLASS_NAMES = ("classes", "class_names", "label_names")
MOST_CLASSES = 1 << 20
Blocks = tuple[tuple[int, ...], Iterable[NDArray[np.uint8]], NDArray[Any]]  # shape, images, labels
ELSEWHERE = "choose another folder with --root or LIPCERT_DATA"


class Arrays:
    """The arrays of an open ``.npz`` file, each read or mapped when asked for."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        self.names = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def read(self, name: str) -> NDArray[Any]:
        if name not in self.names:
            raise ValueError(
                f"{self.path}: expected an array {name}; got {sorted(self.names)}. Fetch or save it again."
            )
        info, where = self.names[name], f"{self.path}: {name}"
        check_size(where, info.file_size, info.compress_size, largest=max(LARGEST_ARRAY, info.compress_size))
        try:
            with name_damage(where), self.archive.open(info) as member:
                version = npy.read_magic(member)
                header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, fortran, dtype = header(member)
                # An empty item counts as a byte: there may be 10¹² of them.
                check_size(where, math.prod(shape) * max(1, dtype.itemsize), largest=info.file_size)
                content: mmap.mmap | bytes = self._mapping
                if info.compress_type == zipfile.ZIP_STORED:
                    offset = self._start(info) + member.tell()
                    while "sha256" not in self.names and member.read(1 << 20):
                        pass  # the zip's check value comes last
                else:
                    content, offset = member.read(), 0
                flat = np.frombuffer(content, dtype, math.prod(shape), offset)  # refuses objects
                return flat.reshape(shape, order="F" if fortran else "C")
        except (ValueError, SyntaxError, TypeError, LookupError, RecursionError, TokenError) as error:
            if str(error).startswith(where):
                raise
            reason = " ".join(str(error).split())[:120]
            raise ValueError(f"{where}: expected a plain array; got one that cannot be read ({reason}).") from error

    @cached_property
    def _mapping(self) -> mmap.mmap:
        """The whole file. Writing to it changes the memory of this process only."""
        with self.path.open("rb") as file:
            if sys.platform != "linux":
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            # Without MAP_NORESERVE, which Python names from 3.13 on, Linux refuses more than there is memory.
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
            return mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of a stored member begin: after its header, its name and its extra field."""
        name, extra = struct.unpack_from("<HH", self._mapping, info.header_offset + 26)
        return int(info.header_offset + 30 + name + extra)


@contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    if not path.is_file():
        raise DataNotFound(f"{path}: there is no such file. Check the path.")
    with open_zip(path) as archive:
        yield Arrays(path, archive)


def read(path: Path, split: Split) -> ImageData:
    """Return one split of any ``.npz`` file, checked against its sha256 if the file has it."""
    with open_npz(path) as arrays:
        names = _names(arrays, split)
        images, labels = _images(arrays.read(names[0]), path), _labels(arrays.read(names[1]), path)
        classes = _classes(arrays, labels, split)
        lines = [str(line).split() for line in arrays.read("sha256").ravel()] if "sha256" in arrays.names else None
    if len(images) != len(labels):
        raise ValueError(f"{path}: expected one label an image; got {len(images)} images and {len(labels)} labels.")
    data = image_data(images, labels, classes, path.stem, split)
    if lines is not None and [split, data.sha256.images, data.sha256.labels] not in lines:
        raise ValueError(
            f"{path}: expected the sha256 recorded in it for {split}; got another. The file is damaged: "
            "prepare it again (lipcert data get or lipcert data prepare)."
        )
    return data


def _names(arrays: Arrays, split: Split) -> tuple[str, str]:
    pairs = [(images.format(split), labels.format(split)) for images, labels in SPLIT_NAMES]
    for images, labels in (*pairs, *WHOLE_NAMES):
        if images in arrays.names and labels in arrays.names:
            if split == "train" and (images, labels) in WHOLE_NAMES:
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
    first, last = images.ndim == 4 and images.shape[1] in (1, 3), images.ndim == 4 and images.shape[3] in (1, 3)
    if images.ndim != 3 and first == last:
        table = (
            " A table of numbers is no data set of images: save it as a .csv file with a column of classes."
            if images.ndim == 2
            else ""
        )
        raise ValueError(
            f"{path}: expected images (N, H, W), (N, C, H, W) or (N, H, W, C) with C = 1 or 3; got {images.shape}."
            f"{table or ' Save it again in one of these shapes.'}"
        )
    if images.dtype != np.uint8:
        raise ValueError(
            f"{path}: expected uint8 images; got {images.dtype}. Save round(255·x) as uint8, so that it is clear "
            "which images a certificate is about."
        )
    if images.ndim == 3:
        return images[:, None]
    return images if first else images.transpose(0, 3, 1, 2)


def _labels(labels: NDArray[Any], path: Path) -> NDArray[np.integer]:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"{path}: expected integer labels (N,); got {labels.dtype} {labels.shape}. Save them again."
        )
    return labels


def _classes(arrays: Arrays, labels: NDArray[np.integer], split: Split) -> tuple[str, ...]:
    """The saved names, or the numbers up to the largest label of any split."""
    every: dict[str, NDArray[np.integer]] = {split: labels}
    for other, (_, name) in itertools.product(("train", "test"), SPLIT_NAMES):
        if other not in every and name.format(other) in arrays.names:
            every[other] = _labels(arrays.read(name.format(other)), arrays.path)
    if split == "test" and "train" in every:
        require_seen(arrays.path, every["train"].tolist(), labels.tolist())
    saved = next((arrays.read(name).ravel() for name in CLASS_NAMES if name in arrays.names), None)
    count = max(int(values.max(initial=0)) for values in every.values()) + 1 if saved is None else len(saved)
    if count > MOST_CLASSES:
        raise ValueError(
            f"{arrays.path}: expected classes numbered from 0; got {count:,} of them. Number the classes again."
        )
    return tuple(map(str, range(count) if saved is None else saved))


def save(path: Path, splits: Mapping[str, ImageData]) -> None:
    """Replace the file at ``path`` by the prepared form of these splits, atomically."""
    blocks = {
        split: ((len(data), *data.image_shape), data.blocks(), data.labels.numpy())
        for split, data in splits.items()
    }
    write(path, next(iter(splits.values())).classes, blocks)


def write(
    path: Path,
    classes: tuple[str, ...],
    splits: Mapping[str, Blocks],
) -> None:
    """Replace the file at ``path`` by a prepared data set, atomically.

    Args:
        path: the ``.npz`` file.
        classes: the names of the classes.
        splits: for each split the shape of its images, (N, C, H, W), the images in blocks, and the labels. The
            blocks are written as they come, so the images need not fit into memory.
    """
    arrays: dict[str, NDArray[Any]] = {"classes": np.array(classes)}
    lines = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as part, zipfile.ZipFile(part, "w") as archive:
            for split, (shape, blocks, labels) in splits.items():
                digest = hashlib.sha256()
                with archive.open(f"{split}_images.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": shape})
                    for block in blocks:
                        content = np.ascontiguousarray(block).data
                        member.write(content)
                        digest.update(content)
                narrow = arrays[f"{split}_labels"] = labels_as_bytes(labels, len(classes))
                lines.append(f"{split} {digest.hexdigest()} {sha256_of([narrow])}")
            for name, array in {**arrays, "sha256": np.array(lines)}.items():
                with archive.open(f"{name}.npy", "w") as member:
                    npy.write_array(member, array, allow_pickle=False)
    except OSError as error:
        if error.filename is not None and Path(error.filename).parent not in (path.parent, path.parent.parent):
            raise  # from the source of the blocks
        reason = f"{error.strerror or error}; nothing was changed. Free some space or {ELSEWHERE}"
        raise OSError(error.errno, reason, str(path)) from error


def check_room(path: Path, size: int) -> None:
    """Refuse before a long download what cannot be written after it."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{path.parent}: the folder cannot be written; {ELSEWHERE}.")
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ValueError(f"{path.parent}: expected {size:,} bytes free; got {free:,}; {ELSEWHERE}.")
