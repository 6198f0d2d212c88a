"""Data frames of R: what R wrote is what arrives, and hostile files end in one sentence."""

import bz2
import gzip
import lzma
import struct

import numpy as np
import pytest

import lipcert as lc
from lipcert.data.rda import read_frame

NULL = struct.pack(">i", 254)


def integers(*values):
    return struct.pack(f">{len(values)}i", *values)


def text(value):
    data = value.encode()
    return integers(9, len(data)) + data


def symbol(name):
    return integers(1) + text(name)


def pairlist(**items):
    return b"".join(integers(2 | 1024) + symbol(name) + value for name, value in items.items()) + NULL


def vector(kind, values, **attributes):
    encoded = {13: lambda: integers(*values), 14: lambda: struct.pack(f">{len(values)}d", *values)}.get(
        kind, lambda: b"".join(text(value) if kind == 16 else value for value in values)
    )()
    flags = kind | (512 if attributes else 0)
    return integers(flags, len(values)) + encoded + (pairlist(**attributes) if attributes else b"")


def factor(codes, levels):
    return vector(13, codes, levels=vector(16, levels), **{"class": vector(16, ["factor"])})


def frame(**columns):
    rows = integers(13, 2, -(2**31), -4)
    return vector(
        19, list(columns.values()), **{"names": vector(16, list(columns)), "class": vector(16, ["data.frame"])},
        **{"row.names": rows},
    )  # fmt: skip


def document(version=2, **objects):
    encoding = integers(5) + b"UTF-8" if version == 3 else b""
    return f"RDX{version}\nX\n".encode() + integers(version, 262657, 131840) + encoding + pairlist(**objects)


def flowers():
    return frame(
        length=vector(14, [1.5, -2.25, 1e-3, 4.0]),
        count=vector(13, [1, 2, 3, 4]),
        grade=factor([2, 1, 2, 2], ["5", "7"]),
        kind=vector(16, ["a", "b", "a", "b"]),
    )


ROWS = [["1.5", "1", "7", "a"], ["-2.25", "2", "5", "b"], ["0.001", "3", "7", "a"], ["4.0", "4", "7", "b"]]


def write(tmp_path, content, name="flowers.rda"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("version", [2, 3])
def test_every_cell_arrives(pack, version, tmp_path):
    path = write(tmp_path, pack(document(version, flowers=flowers())))
    assert read_frame(path) == (["length", "count", "grade", "kind"], ROWS)


def test_it_is_a_table_with_a_label(tmp_path):
    path = write(tmp_path, document(flowers=flowers()), "FLOWERS.RDA")
    train, test = (lc.load_data(path, split, label="kind") for split in ("train", "test"))
    assert train.classes == ("a", "b")
    assert train.image_shape == (3,)
    found = sorted([*train.images.tolist(), *test.images.tolist()])
    assert found == sorted([float(np.float32(cell)) for cell in row[:3]] for row in ROWS)
    with pytest.raises(ValueError, match="say with --label which column"):
        lc.load_data(path, "train")


def test_a_missing_value_is_named(tmp_path):
    path = write(tmp_path, document(d=frame(x=vector(13, [1, -(2**31)]), y=vector(16, ["a", "b"]))))
    with pytest.raises(ValueError, match="row 2, column 'x': the value is missing"):
        lc.load_data(path, "train", label="y")


def test_ranges_and_wrappers_are_read(tmp_path):
    def info(kind):  # the class, its package and the type of the vector
        return b"".join(
            (integers(2), symbol(kind), integers(2), symbol("base"), integers(2), vector(13, [13]), NULL)
        )

    span = integers(238) + info("compact_intseq") + vector(14, [4.0, 7.0, -1.0]) + NULL
    wrapped = (
        integers(238) + info("wrap_integer") + integers(2) + vector(13, [4, 5, 6, 7]) + vector(13, [1, 0]) + NULL
    )
    path = write(tmp_path, document(3, d=frame(x=span, y=wrapped)))
    assert read_frame(path)[1] == [["7", "4"], ["6", "5"], ["5", "6"], ["4", "7"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"width,height\n1,2\n", "expected a file that R's save"),
        (b"", "expected a file that R's save"),
        (document(f=integers(3) + NULL), "has a function"),
        (document(e=integers(4)), "has an environment"),
        (document(a=flowers(), b=flowers()), "expected one data frame, got 2 of 2 objects"),
        (document(x=vector(14, [1.0])), "expected one data frame, got 0 of 1"),
        (document(d=frame(x=vector(13, [1, 2]), y=vector(13, [1]))), "differ in length"),
        (document(d=frame(x=factor([1, 3], ["a", "b"]))), "column 'x': a cell has a level that does not exist"),
        (document(d=frame(x=vector(19, [NULL, NULL]))), "column 'x': expected numbers, texts or a factor"),
        (document(d=integers(13, 2**31 - 1)), "damaged"),
        (document(d=integers(19, 2**31 - 1)), "damaged"),
        (document(d=integers(13, -1, 1, 0)), "damaged"),
        (document(d=integers(255 | 9 << 8)), "damaged"),
        (document(d=integers(19, 1) * 1000), "damaged"),
        (document(d=integers(238) + NULL + NULL + NULL), "damaged"),
        (lzma.compress(document(d=flowers()))[:-30], "damaged"),
        (b"\x1f\x8b" + b"\0" * 20, "damaged"),
    ],
)
def test_what_is_no_data_frame_is_refused(content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_frame(write(tmp_path, content))


def test_a_bomb_stops_at_the_limit(tmp_path):
    with pytest.raises(ValueError, match="expected at most"):
        read_frame(write(tmp_path, lzma.compress(bytes(1 << 28))))


def test_damage_is_always_a_value_error(tmp_path):
    content = document(3, flowers=flowers())
    generator = np.random.default_rng(0)
    outcomes = set()
    for _ in range(2000):
        damaged = bytearray(content)
        for place in generator.integers(7, len(content), size=generator.integers(1, 4)):
            damaged[place] = generator.integers(256)
        try:
            end = generator.choice([len(content), generator.integers(7, len(content))])
            read_frame(write(tmp_path, bytes(damaged[:end])))
            outcomes.add("read")
        except ValueError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
