"""Any folder or archive of images: ``train/<class>/*.png`` and ``test/<class>/*.png``, or ``<class>/*.png`` alone.

``val`` and ``validation`` are read as ``test``. A folder without these names is one set of images; it is read as
a test set and refused as a training set, since the same images would then be used for both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from lipcert.data.dataset import ImageData, Split, image_data
from lipcert.data.files import Files
from lipcert.data.images import ENDINGS, decode_all
from lipcert.errors import DataNotFound

SPLITS = {"train": "train", "test": "test", "val": "test", "validation": "test"}
LAYOUT = "train/<class>/*.png and test/<class>/*.png"


def recognizes(names: Iterable[str]) -> bool:
    return any(_place(name) for name in names)


def read(files: Files, split: Split) -> ImageData:
    """One split; classes are numbered in the order of the names of the training folders."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)  # split → (class, name)
    for name in files.names:
        if place := _place(name):
            found[place[0]].append((place[1], name))
    if split not in found and set(found) == {"all"}:
        if split == "train":
            raise ValueError(
                f"{files.path}: expected {LAYOUT}; got one set of class folders, which is read as a test set only. "
                "Divide it into train and test folders to train on it."
            )
        found["test"] = found["all"]
    if split not in found:
        raise DataNotFound(f"{files.path}: expected {LAYOUT}; got no images for {split}. Add that folder.")
    classes = tuple(sorted({label for label, _ in found.get("train", found[split])}))
    number = {label: index for index, label in enumerate(classes)}
    chosen = sorted(found[split])
    if unknown := sorted({label for label, _ in chosen} - set(classes)):
        raise ValueError(
            f"{files.path}: expected the classes of train, {len(classes)} names; got {unknown[0]!r} in test alone. "
            "Use the same class folders in both."
        )
    images = decode_all((name for _, name in chosen), len(chosen), files.read, str(files.path))
    labels = np.array([number[label] for label, _ in chosen], np.int64)
    return image_data(images, labels, classes, files.path.name, split)


def _place(name: str) -> tuple[str, str] | None:
    """(split or 'all', class) of an image file, from the folders above it; None for anything else."""
    *folders, last = name.split("/")
    if not last.lower().endswith(ENDINGS) or last.startswith(".") or not folders:
        return None
    split = SPLITS.get(folders[-2]) if len(folders) > 1 else None
    return split or "all", folders[-1]
