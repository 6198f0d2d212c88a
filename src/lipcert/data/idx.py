"""The idx format of MNIST and Fashion-MNIST, plain or gzipped.

Two zero bytes, the type (8: uint8), the number of dimensions, each as a big-endian 32-bit size, then the values.
The header promises a length; exactly that many bytes must follow, no more and no fewer.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from lipcert.data.dataset import ImageData, Split, image_data
from lipcert.data.files import Files, check_size, damaged
from lipcert.errors import DataNotFound

NAME = re.compile(r"(train|t10k)-(images|labels)[-.]idx[13]-ubyte(?:\.gz)?")
PREFIX = {"train": "train", "test": "t10k"}


def recognizes(names: Iterable[str]) -> bool:
    return any(NAME.fullmatch(name.rsplit("/", 1)[-1]) for name in names)


def read(files: Files, split: Split) -> ImageData:
    """Images (N, 1, H, W) and labels of one split; the classes are called by their numbers."""
    images, labels = (_part(files, PREFIX[split], part) for part in ("images", "labels"))
    if (images.ndim, labels.ndim) != (3, 1) or len(images) != len(labels):
        raise ValueError(
            f"{files.path}: expected idx images (N, H, W) and labels (N,) of one length; got {images.shape} and "
            f"{labels.shape}. The files do not belong together: fetch them again."
        )
    largest = max(int(_part(files, PREFIX[other], "labels").max(initial=0)) for other in _splits(files))
    classes = tuple(str(number) for number in range(largest + 1))
    return image_data(images[:, None], labels, classes, files.path.name, split)


def _splits(files: Files) -> list[str]:
    """The splits that have labels: a class may be absent from one of them."""
    matches = (NAME.fullmatch(name.rsplit("/", 1)[-1]) for name in files.names)
    found = {match[1] for match in matches if match and match[2] == "labels"}
    return [split for split, prefix in PREFIX.items() if prefix in found]


def _part(files: Files, prefix: str, part: str) -> NDArray[np.uint8]:
    found = [(n, NAME.fullmatch(n.rsplit("/", 1)[-1])) for n in files.names]
    names = [n for n, match in found if match and match.groups() == (prefix, part)]
    if not names:
        dimensions = {"images": 3, "labels": 1}[part]
        raise DataNotFound(
            f"{files.path}: expected {prefix}-{part}-idx{dimensions}-ubyte or the same with .gz; got neither. "
            "Name the folder that holds all four idx files."
        )
    name = min(names, key=len)  # the plain file before the gzipped one
    return parse_idx(files.read(name), f"{files.path}: {name}")


def parse_idx(data: bytes, name: str) -> NDArray[np.uint8]:
    """The uint8 array in the bytes of an idx file; gzipped bytes are inflated as far as the header promises."""
    with damaged(name):
        return _parse(*_taker(data), len(data), name)


def _taker(data: bytes) -> tuple[Callable[[int], bytes], Callable[[], bool]]:
    """``take(n)``, at most the next n bytes, and ``whole()``, whether the end was reached and is sound."""
    position = 0
    if not data.startswith(b"\x1f\x8b"):

        def take(count: int) -> bytes:
            nonlocal position
            position += count
            return data[position - count : position]

        return take, lambda: position >= len(data)
    engine, rest = zlib.decompressobj(wbits=31), data

    def inflate(count: int) -> bytes:
        nonlocal rest
        if not count:  # zero would mean "without limit"
            return b""
        piece = engine.decompress(rest, count)
        rest = engine.unconsumed_tail
        return piece

    return inflate, lambda: engine.eof


def _parse(take: Callable[[int], bytes], whole: Callable[[], bool], size: int, name: str) -> NDArray[np.uint8]:
    head = take(4)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
        raise ValueError(
            f"{name}: expected an idx file of uint8 (first bytes 00 00 08 and a dimension of 1 to 4); "
            f"got {head.hex(' ') or 'nothing'}. Fetch it again."
        )
    sizes = take(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise ValueError(f"{name}: expected {head[3]} sizes in the header; got its end. Fetch it again.")
    shape = struct.unpack(f">{head[3]}I", sizes)
    promised = math.prod(shape)
    check_size(name, promised, size)
    values = take(promised)
    if len(values) < promised:
        raise ValueError(f"{name}: expected {promised:,} values of {shape}; got {len(values):,}. Fetch it again.")
    if take(1):
        raise ValueError(f"{name}: expected {promised:,} values of {shape}; got more. Fetch it again.")
    if not whole():
        raise ValueError(f"{name}: expected a whole gzip file; got one that is cut short. Fetch it again.")
    return np.frombuffer(bytearray(values), np.uint8).reshape(shape)
