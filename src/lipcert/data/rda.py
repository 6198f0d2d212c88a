"""Data frames of R: the ``.rda`` files that ``save`` writes, read without R and without running anything.

A file is one pairlist of named objects in R's binary format (XDR), compressed by gzip, bzip2 or xz. Only what a
data frame is made of is read: numbers, texts, factors and lists of them. Functions, environments and other objects
are refused by name. Lengths are compared with the bytes that are left before anything is allocated.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from lipcert.data.files import LARGEST_FILE, RATIO, SLACK, check_size, name_damage

MAGIC = {b"RDX2\nX\n": 2, b"RDX3\nX\n": 3}
_PACKERS: dict[bytes, Callable[[], Any]] = {
    b"\xfd7zXZ": lzma.LZMADecompressor,
    b"BZh": bz2.BZ2Decompressor,
    b"\x1f\x8b": partial(zlib.decompressobj, 31),
}
DEPTH = 32  # lists within lists; a data frame needs two
NA_INTEGER = -(2**31)
OTHERS = {3: "a function", 4: "an environment", 5: "a promise", 6: "a call", 15: "complex numbers", 24: "bytes",
          20: "an expression", 22: "an external pointer", 25: "an S4 object"}  # fmt: skip


class Vector(NamedTuple):
    """A vector of R with its attributes, such as the levels of a factor."""

    values: Any
    attributes: dict[str, Any]


def vector(values: Any, attributes: Any) -> Vector:
    """A vector whose attributes are a pairlist or none."""
    if not isinstance(attributes, dict | NoneType):
        raise EOFError("attributes that are no list")
    return Vector(values, attributes or {})


def texts(item: Any) -> list[str] | None:
    """The entries of a vector of texts, or None for any other object."""
    is_texts = isinstance(item, Vector) and isinstance(item.values, list)
    return item.values if is_texts and all(isinstance(text, str) for text in item.values) else None


def read_frame(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the rows, as the texts of a table.

    Raises:
        ValueError: if the file is damaged, or does not hold exactly one data frame.
    """
    content = _unpacked(path)
    version = MAGIC.get(content[:7])
    if version is None:
        raise ValueError(
            f"{path}: expected a file that R's save() wrote in binary. Save the table as .csv instead."
        )
    with name_damage(path):
        try:
            objects = _Reader(path, content, version).bindings()
        except (struct.error, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise EOFError(f"{type(error).__name__}: {error}") from error
    frames = [item for item in objects.values() if _is_frame(item)]
    if len(frames) != 1:
        raise ValueError(f"{path}: expected one data frame, got {len(frames)} of {len(objects)} objects. Save one.")
    names = texts(frames[0].attributes["names"]) or []
    columns = [_cells(path, name, column) for name, column in zip(names, frames[0].values, strict=False)]
    if len(names) != len(frames[0].values) or len({len(column) for column in columns}) != 1:
        raise ValueError(f"{path}: the columns of the data frame differ in length. Save it again.")
    return names, [list(row) for row in zip(*columns, strict=True)]


def _unpacked(path: Path) -> bytes:
    packed_size = path.stat().st_size
    check_size(path, packed_size)
    packed = path.read_bytes()
    limit = min(LARGEST_FILE, SLACK + RATIO * packed_size)
    content = packed
    for magic, opened in _PACKERS.items():
        if packed.startswith(magic):
            with name_damage(path):
                try:
                    unpacker = opened()
                    content = unpacker.decompress(packed, limit + 1)
                except lzma.LZMAError as error:
                    raise EOFError(str(error)) from error
                if not unpacker.eof and len(content) <= limit:
                    raise EOFError("cut short")
    check_size(path, len(content), largest=limit)
    return content


def _is_frame(item: Any) -> bool:
    if not isinstance(item, Vector) or not isinstance(item.values, list):
        return False
    return "names" in item.attributes and "data.frame" in (texts(item.attributes.get("class")) or ())


def _cells(path: Path, name: str, column: Any) -> list[str]:
    """The cells of a column as texts; a missing one is "NA"."""
    values = column.values if isinstance(column, Vector) else None
    if (words := texts(column)) is not None:
        return words
    if not isinstance(values, np.ndarray):
        raise ValueError(f"{path}, column {name!r}: expected numbers, texts or a factor. Drop the column.")
    if values.dtype.kind == "f":
        return ["NA" if cell != cell else repr(cell) for cell in values.tolist()]
    if "levels" not in column.attributes:
        return ["NA" if cell == NA_INTEGER else str(cell) for cell in values.tolist()]
    levels = texts(column.attributes["levels"]) or []
    if not all(cell == NA_INTEGER or 1 <= cell <= len(levels) for cell in values.tolist()):
        raise ValueError(f"{path}, column {name!r}: a cell has a level that does not exist. Save the table again.")
    return ["NA" if cell == NA_INTEGER else levels[cell - 1] for cell in values.tolist()]


class _Reader:
    """R's serialization, from the first item to the last."""

    def __init__(self, path: Path, content: bytes, version: int) -> None:
        self.path, self.content, self.place = path, content, 7
        self.symbols: list[str] = []
        self.integers(3)  # the format, and the versions of R that wrote it and can read it
        if version == 3:
            self.bytes(self.length())  # the name of an encoding

    def bindings(self) -> dict[str, Any]:
        """Every named object of the file."""
        found = self.item(0)
        if not isinstance(found, dict):
            raise EOFError("no named objects")
        return found

    def item(self, depth: int) -> Any:
        """One object: a dictionary for a pairlist, a string for a symbol or a text, None for NULL, or a Vector."""
        if depth > DEPTH:
            raise EOFError("lists within lists")
        return self.item_of(self.integers(1)[0], depth)

    def item_of(self, flags: int, depth: int) -> Any:
        """The object whose flags were read."""
        kind, attributed = flags & 255, bool(flags & 512)
        if kind == 254:
            return None
        if kind == 2:
            return self.pairlist(flags, depth)
        if kind == 1:
            self.symbols.append(self.item(depth + 1))
            return self.symbols[-1]
        if kind == 255:
            return self.symbols[(flags >> 8 or self.integers(1)[0]) - 1]
        if kind == 9:
            size = self.integers(1)[0]
            return "NA" if size == -1 else self.bytes(size).decode()
        if kind == 238:
            return self.compact(depth)
        values = self.values(kind, depth)
        return vector(values, self.item(depth + 1) if attributed else None)

    def pairlist(self, flags: int, depth: int) -> dict[str, Any]:
        """The named values of a list; its links are followed in a loop, not by recursion."""
        found: dict[str, Any] = {}
        while flags & 255 == 2:
            if flags & 512:
                self.item(depth + 1)
            name = self.item(depth + 1) if flags & 1024 else str(len(found))
            found[name] = self.item(depth + 1)
            flags = self.integers(1)[0]
        if flags & 255 != 254:  # a pair, whose second half is no list
            found["rest"] = self.item_of(flags, depth + 1)
        return found

    def values(self, kind: int, depth: int) -> Any:
        """The entries of a vector."""
        if kind not in (10, 13, 14, 16, 19):
            what = OTHERS.get(kind, f"an object of type {kind}")
            raise ValueError(f"{self.path}: expected a data frame alone, and the file has {what}. Save one table.")
        length = self.length()
        if kind in (16, 19):
            if 4 * length > len(self.content) - self.place:
                raise EOFError("cut short")
            return [self.item(depth + 1) for _ in range(length)]
        dtype = np.dtype(">f8" if kind == 14 else ">i4")
        return np.frombuffer(self.bytes(length * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))

    def compact(self, depth: int) -> Any:
        """A vector that R stored in another way: a range of integers, or another vector behind a wrapper."""
        info, state, attributes = (self.item(depth + 1) for _ in range(3))
        name = str(next(iter(info.values()), ""))
        if name == "compact_intseq":
            length, start, step = state.values.tolist()
            if not 0 <= length <= len(self.content):
                raise EOFError("a range that is longer than the file")
            return vector(int(start) + int(step) * np.arange(int(length)), attributes)
        if name.startswith("wrap_"):
            inner = next(iter(state.values()))  # a pair of the vector and what R knows about its order
            return vector(inner.values, attributes or inner.attributes)
        raise ValueError(f"{self.path}: the file has a column of R's kind {name!r:.40}. Save the table as .csv.")

    def integers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f">{count}i", self.bytes(4 * count))

    def length(self) -> int:
        size = self.integers(1)[0]
        if size < 0:
            raise EOFError("a vector of more than two billion entries")
        return size

    def bytes(self, size: int) -> bytes:
        if not 0 <= size <= len(self.content) - self.place:
            raise EOFError("cut short")
        self.place += size
        return self.content[self.place - size : self.place]
