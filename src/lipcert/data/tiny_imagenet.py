"""TinyImageNet (tiny-imagenet-200): 200 classes of 64×64 JPEGs, as the folder or as its zip.

``train/<wnid>/images/*.JPEG`` is the training set; ``val/images`` with ``val_annotations.txt`` is the test set,
since the labels of the original test set were never published. Classes are numbered in the order of their WordNet
identifiers, as an image folder would be; images in the order of their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from lipcert.data.dataset import ImageData, Split, image_data
from lipcert.data.files import Files
from lipcert.data.images import decode_all
from lipcert.errors import DataNotFound

TRAIN = re.compile(r"(?:.*/)?train/(n\d+)/images/[^/]+\.JPEG")
VALIDATION = re.compile(r"(?:.*/)?val/images/([^/]+\.JPEG)")


def recognizes(names: Iterable[str]) -> bool:
    return any(name.rsplit("/", 1)[-1] == "wnids.txt" for name in names)


def read(files: Files, split: Split) -> ImageData:
    """One split, 3×64×64; the few grey images are made coloured."""
    identifiers = sorted(_text(files, "wnids.txt").split())
    number = {identifier: index for index, identifier in enumerate(identifiers)}
    if split == "train":
        found = [(n, match[1]) for n in files.names if (match := TRAIN.fullmatch(n))]
    else:
        lines = (line.split() for line in _text(files, "val_annotations.txt").splitlines())
        annotation = {words[0]: words[1] for words in lines if len(words) > 1}
        found = [(n, annotation.get(match[1], "none")) for n in files.names if (match := VALIDATION.fullmatch(n))]
    if not found:
        folder = {"train": "train/<wnid>/images", "test": "val/images"}[split]
        raise DataNotFound(
            f"{files.path}: expected JPEGs in {folder}; got none. The copy is incomplete: fetch it again."
        )
    for name, identifier in found:
        if identifier not in number:
            raise ValueError(
                f"{files.path}: {name}: expected one of the {len(number)} classes of wnids.txt; got {identifier}. "
                "The copy is damaged: fetch it again."
            )
    images = decode_all((n for n, _ in found), len(found), files.read, str(files.path))
    if images.shape[1] == 1:
        images = np.repeat(images, 3, axis=1)
    labels = np.array([number[identifier] for _, identifier in found], np.uint16)
    return image_data(images, labels, _names(files, identifiers), files.path.name, split)


def _text(files: Files, name: str) -> str:
    return files.read(files.ending(name)).decode("utf-8", "replace")


def _names(files: Files, identifiers: list[str]) -> tuple[str, ...]:
    """The first of the words of each identifier, or the identifier where words.txt has none."""
    if not any(name.rsplit("/", 1)[-1] == "words.txt" for name in files.names):
        return tuple(identifiers)
    lines = (line.split("\t", 1) for line in _text(files, "words.txt").splitlines())
    words = {parts[0]: parts[1].split(",")[0].strip() for parts in lines if len(parts) == 2}
    return tuple(words.get(identifier) or identifier for identifier in identifiers)
