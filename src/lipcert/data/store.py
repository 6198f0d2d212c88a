"""The prepared form of a data set: one plain ``.npz`` file, written whole or not at all, verified when read.

It holds ``train_images train_labels test_images test_labels classes`` and ``sha256``, a line a split. The file is
written under a temporary name in the same folder, flushed to the disk and renamed: a reader finds the old file or
the new one, never a part of either.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lipcert.data import npz
from lipcert.data.dataset import Checksums, ImageData, Split, image_data, labels_as_bytes

ELSEWHERE = "choose another folder with --root or LIPCERT_DATA"


def write(path: Path, splits: Mapping[str, ImageData]) -> None:
    """Replace the file at ``path`` by these splits, atomically."""
    classes = next(iter(splits.values())).classes
    arrays = {"classes": np.array(classes)}
    for split, data in splits.items():
        arrays[f"{split}_images"] = data.images.numpy()
        arrays[f"{split}_labels"] = labels_as_bytes(data.labels, len(classes))
    arrays["sha256"] = np.array(
        [f"{split} {data.sha256.images} {data.sha256.labels}" for split, data in splits.items()]
    )
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # the stubs take any further argument for allow_pickle
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        reason = f"{error.strerror or error}; nothing was changed. Free some space or {ELSEWHERE}"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def check_room(path: Path, size: int) -> None:
    """Refuse before a long download what cannot be written after it."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{path.parent}: expected a folder that can be written; got none; {ELSEWHERE}.")
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ValueError(f"{path.parent}: expected {size:,} bytes free; got {free:,}; {ELSEWHERE}.")


def read(path: Path, name: str, split: Split) -> ImageData:
    """One split of a prepared data set, checked against the sha256 stored beside it."""
    with npz.open_npz(path) as arrays:
        lines = (str(line).split() for line in arrays.read("sha256").ravel())
        recorded = {words[0]: Checksums(*words[1:]) for words in lines if len(words) == 3}
        images, labels = arrays.read(f"{split}_images"), arrays.read(f"{split}_labels")
        classes = tuple(str(label) for label in arrays.read("classes").ravel())
    data = image_data(images, labels, classes, name, split)
    if data.sha256 != recorded.get(split):
        raise ValueError(
            f"{path}: expected the sha256 recorded in it for {split}; got another. The file is damaged: "
            f"run lipcert data get {name} again."
        )
    return data
