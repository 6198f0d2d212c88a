"""Data: every format read back, everything damaged or hostile refused, augmentation as its formulas say."""

import colorsys
import contextlib
import errno
import gzip
import hashlib
import http.server
import io
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import time
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import lipcert.cli
from lipcert.data import augment, fetch, npz
from lipcert.data.augment import PRESETS, augmentation
from lipcert.data.catalog import CATALOG, Entry, prepared_path
from lipcert.data.dataset import ImageData, image_data
from lipcert.data.files import Files, open_files
from lipcert.data.images import decode, decode_all
from lipcert.data.npz import open_npz
from lipcert.data.pickles import read_pickle
from lipcert.data.readers import parse_idx
from lipcert.data.registry import load_data, prepare, verify
from lipcert.errors import DataNotFound

SPLITS = ("train", "test")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"}


def some_images(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def some_labels(count, classes):
    return (np.arange(count) % classes).astype(np.uint8)


@pytest.fixture
def main(monkeypatch, capsys):
    """``main(*words)``: exit code, stdout and stderr of the command line in this process; torch is here already."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["lipcert", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            lipcert.cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return run


# The files, in the formats of their authors


def idx_bytes(array, *, shape=None):
    shape = array.shape if shape is None else shape
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + array.tobytes()


def write_idx(folder, data, *, ending="", separator="-"):
    folder.mkdir(parents=True, exist_ok=True)
    pack = gzip.compress if ending else bytes
    for prefix, split in (("train", "train"), ("t10k", "test")):
        images, labels = data[split]
        (folder / f"{prefix}-images{separator}idx3-ubyte{ending}").write_bytes(pack(idx_bytes(images[:, 0])))
        (folder / f"{prefix}-labels{separator}idx1-ubyte{ending}").write_bytes(pack(idx_bytes(labels)))


def python2_pickle(value):
    """Protocol 2 as Python 2 and its numpy wrote it: str is bytes, an array is reconstructed."""

    def emit(item):
        if isinstance(item, dict):
            return b"}(" + b"".join(emit(k) + emit(v) for k, v in item.items()) + b"u"
        if isinstance(item, list):
            return b"](" + b"".join(map(emit, item)) + b"e"
        if isinstance(item, tuple):
            return b"(" + b"".join(map(emit, item)) + b"t"
        if isinstance(item, bytes):
            return (
                b"U" + bytes([len(item)]) + item if len(item) < 256 else b"T" + struct.pack("<i", len(item)) + item
            )
        if isinstance(item, int):
            if 0 <= item < 256:
                return b"K" + bytes([item])
            return b"M" + struct.pack("<H", item) if 0 <= item < 65536 else b"J" + struct.pack("<i", item)
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        return start + b"(K\x01" + emit(item.shape) + dtype + b"\x89" + emit(item.tobytes()) + b"tb"

    return b"\x80\x02" + emit(value) + b"."


def write_cifar10_python(folder, data):
    folder.mkdir(parents=True, exist_ok=True)
    for name, images, labels in cifar_parts(data):
        content = {
            b"batch_label": name.encode(),
            b"labels": labels.tolist(),
            b"data": images.reshape(len(images), -1),
            b"filenames": [b"image_%d.png" % number for number in range(len(images))],
        }
        (folder / name).write_bytes(python2_pickle(content))
    meta = {b"num_cases_per_batch": 10000, b"label_names": [b"airplane"], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(python2_pickle(meta))


def write_cifar10_binary(folder, data):
    folder.mkdir(parents=True, exist_ok=True)
    for name, images, labels in cifar_parts(data):
        rows = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def write_cifar10_sheets(folder, data):
    folder.mkdir(parents=True, exist_ok=True)
    for name, images, _ in cifar_parts(data):
        sheet = images.reshape(len(images), 3, 1024).transpose(0, 2, 1)
        Image.fromarray(np.ascontiguousarray(sheet)).save(folder / f"{name}.png")
    for split in SPLITS:
        (folder / f"{split}_lables.json").write_text(json.dumps(data[split][1].tolist()))


def cifar_parts(data):
    images, labels = data["train"]
    for number, rows in enumerate(np.array_split(np.arange(len(images)), 5), start=1):
        yield f"data_batch_{number}", images[rows], labels[rows]
    yield "test_batch", *data["test"]


def write_cifar100(folder, data):
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        images, labels = data[split]
        content = {
            b"filenames": [b"x.png"] * len(images),
            b"batch_label": b"training batch 1 of 1",
            b"fine_labels": labels.tolist(),
            b"coarse_labels": [0] * len(images),
            b"data": images.reshape(len(images), -1),
        }
        (folder / split).write_bytes(python2_pickle(content))
    names = [b"class_%d" % number for number in range(100)]
    (folder / "meta").write_bytes(python2_pickle({b"fine_label_names": names, b"coarse_label_names": [b"all"]}))


def write_cifar100_binary(folder, data):
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        images, labels = data[split]
        rows = np.concatenate([labels[:, None] // 5, labels[:, None], images.reshape(len(images), -1)], axis=1)
        (folder / f"{split}.bin").write_bytes(rows.tobytes())
    for kind, count in (("fine", 100), ("coarse", 20)):
        names = "".join(f"{kind}_{number}\n" for number in range(count))
        (folder / f"{kind}_label_names.txt").write_text(f"{names}\n")


def write_image_folder(folder, data, *, ending=".png"):
    for split in SPLITS:
        for number, (image, label) in enumerate(zip(*data[split], strict=True)):
            place = folder / split / f"class_{label}"
            place.mkdir(parents=True, exist_ok=True)
            pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
            Image.fromarray(pixels).save(place / f"{number:04}{ending}")


def write_npz(folder, data):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {f"{axis}_{split}": data[split][i] for split in SPLITS for i, axis in enumerate("xy")}
    np.savez_compressed(folder / "set.npz", **arrays)
    return folder / "set.npz"


def tarred(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    return path


def zipped(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*"):
            archive.write(file, Path(folder.name) / file.relative_to(folder))
    return path


def gray(count=12):
    return {split: (some_images(count, (1, 28, 28), i), some_labels(count, 10)) for i, split in enumerate(SPLITS)}


def color(count=15, classes=10):
    return {
        split: (some_images(count, (3, 32, 32), i), some_labels(count, classes)) for i, split in enumerate(SPLITS)
    }


WRITERS = {
    "idx": (gray, write_idx),
    "idx.gz": (gray, lambda folder, data: write_idx(folder, data, ending=".gz")),
    "idx with dots": (gray, lambda folder, data: write_idx(folder, data, separator=".")),
    "cifar-10-python": (color, write_cifar10_python),
    "cifar-10-binary": (color, write_cifar10_binary),
    "sheets": (color, write_cifar10_sheets),
    "cifar-100-python": (lambda: color(100, 100), write_cifar100),
    "cifar-100-binary": (lambda: color(101, 100), write_cifar100_binary),
    "npz": (color, write_npz),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("pack", [lambda folder, _: folder, tarred, zipped], ids=["folder", "tar.gz", "zip"])
def test_every_format_reads_back_what_was_written(kind, pack, tmp_path):
    make, write = WRITERS[kind]
    data = make()
    path = write(tmp_path / "files", data)
    if path is None:
        path = pack(tmp_path / "files", tmp_path / "packed")
    for split in SPLITS:
        found = load_data(path, split)
        images, labels = data[split]
        assert torch.equal(found.images, torch.from_numpy(images))
        assert found.labels.tolist() == labels.tolist()
        assert found.sha256.images == hashlib.sha256(images.tobytes()).hexdigest()
        assert found.sha256.labels == hashlib.sha256(labels.tobytes()).hexdigest()
        assert found.split == split
        assert len(found.classes) == (100 if "100" in kind else 10)


@pytest.mark.parametrize("pack", [lambda folder, _: folder, tarred, zipped], ids=["folder", "tar.gz", "zip"])
@pytest.mark.parametrize("make", [gray, color])
def test_image_folders_are_sorted_by_class(make, pack, tmp_path):
    data = make()
    write_image_folder(tmp_path / "images", data)
    path = pack(tmp_path / "images", tmp_path / "packed")
    for split in SPLITS:
        images, labels = data[split]
        order = np.lexsort((np.arange(len(labels)), labels))
        found = load_data(path, split)
        assert torch.equal(found.images, torch.from_numpy(images[order]))
        assert found.labels.tolist() == labels[order].tolist()
        assert found.classes == tuple(f"class_{number}" for number in range(10))


def test_a_single_folder_is_a_test_set_only(tmp_path):
    write_image_folder(tmp_path, color())
    whole = load_data(tmp_path / "test", "test")
    assert torch.equal(whole.images, load_data(tmp_path, "test").images)
    with pytest.raises(ValueError, match="read as a test set only"):
        load_data(tmp_path / "test", "train")


def test_gray_images_among_colored_ones_become_colored(tmp_path):
    folder = tmp_path / "test" / "all"
    folder.mkdir(parents=True)
    Image.new("L", (5, 4), 7).save(folder / "a.png")
    Image.new("RGB", (5, 4), (1, 2, 3)).save(folder / "b.png")
    Image.new("RGBA", (5, 4), (1, 2, 3, 0)).save(folder / "c.png")
    found = load_data(tmp_path, "test")
    assert found.images[:, :, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3], [1, 2, 3]]


def write_tiny_imagenet(folder):
    """Two classes, in an order of wnids.txt that is not sorted, one JPEG grey, as in the original."""
    rng = np.random.default_rng(0)
    written = {}
    for name in ("n02124075", "n01443537"):
        place = folder / "train" / name / "images"
        place.mkdir(parents=True)
        for number in range(3):
            written[name, number] = place / f"{name}_{number}.JPEG"
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(
                written[name, number], quality=95
            )
    Image.new("L", (64, 64), 9).save(written["n01443537", 0])
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number, name in enumerate(("n02124075", "n01443537", "n02124075")):
        Image.new("RGB", (64, 64), (number, 0, 0)).save(
            folder / "val" / "images" / f"val_{number}.JPEG", quality=95
        )
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "test" / "images").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(folder / "test" / "images" / "test_0.JPEG")
    (folder / "wnids.txt").write_text("n02124075\nn01443537\n")
    (folder / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn99999999\tnothing\n")
    return written


@pytest.mark.parametrize("pack", [lambda folder, _: folder, tarred, zipped], ids=["folder", "tar.gz", "zip"])
def test_tiny_imagenet(pack, tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    written = write_tiny_imagenet(folder)
    path = pack(folder, tmp_path / "packed")
    train, test = (load_data(path, split) for split in SPLITS)
    assert train.classes == test.classes == ("goldfish", "n02124075")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert test.labels.tolist() == [1, 0, 1]
    assert train.image_shape == test.image_shape == (3, 64, 64)
    assert train.images[0].unique().tolist() == [9]
    expected = np.asarray(Image.open(written["n02124075", 1])).transpose(2, 0, 1)
    assert np.array_equal(train.images[4].numpy(), expected)


def test_npz_shapes_and_names(tmp_path):
    images, labels = some_images(4, (8, 9, 3)), np.array([[0], [1], [2], [0]])
    np.savez(tmp_path / "a.npz", images=images, labels=labels, classes=["x", "y", "z"])
    found = load_data(tmp_path / "a.npz", "test")
    assert np.array_equal(found.images.numpy(), images.transpose(0, 3, 1, 2))
    assert (found.classes, found.name) == (("x", "y", "z"), "a")
    np.savez(tmp_path / "b.npz", train_images=images[..., 0], train_labels=labels[:, 0], test_labels=np.array([6]))
    found = load_data(tmp_path / "b.npz", "train")
    assert found.image_shape == (1, 8, 9)
    assert len(found.classes) == 7  # a class may be absent from one split


BAD_NPZ = {
    "float": ({"images": np.zeros((2, 4, 4)), "labels": np.zeros(2, int)}, "expected uint8 images; got float64"),
    "pickle": ({"images": np.array([{}, {}]), "labels": np.zeros(2, int)}, "expected a plain array"),
    "channels": ({"images": np.zeros((2, 3, 4, 3), np.uint8), "labels": np.zeros(2, int)}, "with C = 1 or 3"),
    "five": ({"images": np.zeros((2, 5, 4, 4), np.uint8), "labels": np.zeros(2, int)}, "with C = 1 or 3"),
    "lengths": ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.zeros(3, int)}, "one label an image"),
    "labels": ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.zeros(2)}, "expected integer labels"),
    "table": ({"images": np.zeros((2, 30), np.float32), "labels": np.zeros(2, int)}, "save it as a .csv file"),
    "negative": ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.array([-1, 0])}, "expected labels 0 to"),
    "huge": ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.array([0, 2**60])}, "numbered from 0"),
    "empty": ({"images": np.zeros((0, 4, 4), np.uint8), "labels": np.zeros(0, int)}, "at least one image"),
    "names": ({"pictures": np.zeros(1)}, r"got \['pictures'\]"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_npz_that_says_something_else_is_refused(case, tmp_path):
    arrays, message = BAD_NPZ[case]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_data(tmp_path / "bad.npz", "test")


def test_a_test_set_has_no_class_that_training_lacks(tmp_path):
    images, train, test = some_images(4, (8, 9)), np.array([0, 1, 2, 0]), np.array([0, 1, 3, 3])
    np.savez(tmp_path / "a.npz", x_train=images, y_train=train, x_test=images, y_test=test)
    np.savez(
        tmp_path / "b.npz", x_train=images, y_train=test, x_test=images, y_test=train % 2
    )  # the other way round
    data = {"train": (images[:, None], train.astype(np.uint8)), "test": (images[:, None], test.astype(np.uint8))}
    write_idx(tmp_path / "idx", data)
    for path in (tmp_path / "a.npz", tmp_path / "idx"):
        with pytest.raises(ValueError, match="got 3 in test alone"):
            load_data(path, "test")
    assert [len(load_data(tmp_path / "b.npz", split).classes) for split in SPLITS] == [4, 4]


# Larger than memory


def write_photographs(folder, count=12, side=48):
    """Class folders of JPEGs of different sizes, one of them gray, and a PNG with a palette."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for number in range(count):
            place = folder / split / f"class_{number % 3}"
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (side + number % 5, 2 * side, 3), dtype=np.uint8)
            image = Image.fromarray(pixels)
            image = image.convert("L") if number == 1 else image.convert("P") if number == 2 else image
            image.save(place / f"{number:04}.{'png' if number == 2 else 'jpg'}")
    return folder


@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize("pack", [lambda folder, _: folder, zipped], ids=["folder", "zip"])
def test_photographs_are_resized_once(gray, pack, main, tmp_path):
    source = pack(write_photographs(tmp_path / "photos"), tmp_path / "photos.zip")
    out = tmp_path / "new" / "photos.npz"
    words = ["--size", 16, 20, "--out", out, *(["--gray"] if gray else []), "--json"]
    code, said, err = main("data", "prepare", source, *words)
    assert (code, err) == (0, "")
    train, test = (load_data(out, split) for split in SPLITS)
    assert json.loads(said)["prepared_now"]["train"] == {"images": 12, "sha256": train.sha256.images}
    assert train.image_shape == test.image_shape == (1 if gray else 3, 16, 20)
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert train.classes == ("class_0", "class_1", "class_2")
    place = tmp_path / "photos" / "train" / "class_2" / "0005.jpg"
    image = Image.open(place).convert("L" if gray else "RGB")
    image.draft(None, (40, 32))
    expected = np.asarray(ImageOps.fit(image, (20, 16), Image.Resampling.BICUBIC), np.int16)
    found = train.images[9].numpy().astype(np.int16)
    assert np.abs(found - (expected[None] if gray else expected.transpose(2, 0, 1))).max() <= 1
    if not gray:
        assert (train.images[4] == train.images[4, :1]).all()  # the gray photograph became colored


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", 0, "--out", "x.npz"], "--size"),
        (["--size", 1, 2, 3, "--out", "x.npz"], "--size"),
        (["--size", 8, "--out", "x.npy"], ".npz"),
        (["--size", 8, "--out", "broken.npz"], "0003.jpg: expected an 8-bit image"),
    ],
)
def test_photographs_that_cannot_be_prepared_change_nothing(words, message, main, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write_photographs(tmp_path / "photos")
    if "broken.npz" in words:
        (source / "train" / "class_0" / "0003.jpg").write_bytes(b"nothing")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = main("data", "prepare", source, *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_stored_is_mapped_and_a_change_stays_in_memory(tmp_path):
    images = some_images(4, (3, 8, 8))
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(4))
    content = (tmp_path / "a.npz").read_bytes()
    data = load_data(tmp_path / "a.npz", "test")
    data.images[0] = 0
    assert int(data.images[0].sum()) == 0
    assert (tmp_path / "a.npz").read_bytes() == content
    assert torch.equal(load_data(tmp_path / "a.npz", "test").images, torch.from_numpy(images))
    position = content.index(images[1].tobytes())
    (tmp_path / "b.npz").write_bytes(content[:position] + bytes([~images[1, 0, 0, 0]]) + content[position + 1 :])
    with pytest.raises(ValueError, match="damaged"):
        load_data(tmp_path / "b.npz", "test")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count what is mapped")
def test_an_array_may_be_larger_than_memory(tmp_path):
    """A file of 1 TB, nearly all of it a hole that takes no space on the disk."""
    np.savez(tmp_path / "a.npz", images=some_images(1, (4, 4)))
    with npz.open_npz(tmp_path / "a.npz") as arrays, (tmp_path / "a.npz").open("r+b") as file:
        file.truncate(1 << 40)
        mapped = np.frombuffer(arrays._mapping, np.uint8)
        mapped[-1] = 1
    assert len(mapped) == 1 << 40
    assert mapped[-2:].tolist() == [0, 1]


STREAM = """
import sys, threading, time
from pathlib import Path
import torch
from lipcert.data.registry import load_data, prepare_images
from lipcert.training.config import TrainConfig
from lipcert.training.loop import _order, _split, spec_of

def anonymous():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)

source, target = map(Path, sys.argv[1:])
start = anonymous()
peak = [start]
threading.Thread(target=watch, daemon=True).start()
prepare_images(source, target, (256, 256))
train, test = (load_data(target, split) for split in ("train", "test"))
config = TrainConfig(model="sll_nano", validation=20)
training, held = _split(config, train, test)
assert len(training) + len(held) == len(train) and len(held) == 20
spec_of(config, training), training.sha256
first = [float(training[batch][0].sum()) for batch in _order(3, 0, len(training)).split(4)]
order = torch.cat([training.rows[batch] for batch in _order(3, 0, len(training)).split(4)])
again = train.take(order, split="again")
assert first == [float(again[slice(k, k + 4)][0].sum()) for k in range(0, len(again), 4)]
stored = train.stored.numel() / 2**20
assert stored > 160, stored
assert peak[0] - start < 80, (start, peak[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_preparing_and_training_take_little_memory_whatever_the_size(tmp_path):
    """900 photographs, 169 MB resized, with less than 80 MB of anonymous memory at any moment."""
    source = tmp_path / "photos"
    for split, count in (("train", 900), ("test", 20)):
        for label in "ab":
            (source / split / label).mkdir(parents=True)
        for number in range(count):
            place = source / split / "ab"[number % 2] / f"{number:04}.png"
            Image.new("RGB", (64, 48), (number % 256, 7, 9)).save(place)
    command = [sys.executable, "-c", STREAM, str(source), str(tmp_path / "photos.npz")]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert result.returncode == 0, result.stderr


def test_a_data_loader_reads_it():
    data = load_data("digits", "train")
    image, label = data[3]
    assert torch.equal(image, data.inputs()[3])
    assert label == data.labels[3]
    loader = torch.utils.data.DataLoader(data, batch_size=100)
    inputs, labels = next(iter(loader))
    assert torch.equal(inputs, data.inputs()[:100])
    assert torch.equal(labels, data.labels[:100])
    assert len(loader) == 14
    assert sum(1 for _ in data) == 1400


def test_parts_of_parts_are_what_was_chosen():
    data = load_data("digits", "train")
    order = torch.randperm(1400, generator=torch.Generator().manual_seed(0))
    part = data.take(order[:500], split="some").take(slice(100, 200), split="fewer")
    chosen = order[100:200]
    assert part.stored is data.stored  # nothing was copied
    assert torch.equal(part.images, data.images[chosen])
    assert torch.equal(part.inputs(), data.inputs()[chosen])
    assert torch.equal(part[torch.tensor([7, 3])][0], data.inputs()[chosen[[7, 3]]])
    assert part.labels.tolist() == data.labels[chosen].tolist()
    copied = ImageData(part.images, part.labels, part.classes, "digits", "fewer")
    assert part.sha256 == copied.sha256
    assert part.channel_means() == copied.channel_means()
    exact = data.images[chosen].double().mean() / 255
    assert part.channel_means()[0] == pytest.approx(float(exact), rel=1e-14)
    mask = torch.zeros(100, dtype=torch.bool)
    mask[5] = True
    assert torch.equal(part.take(mask, split="one").images[0], part.images[5])


# Damage


def member_of_declared_size(path, shape):
    """An .npz whose array claims ``shape`` but holds ten bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(10))
        archive.writestr("labels.npy", b"")


def test_declared_sizes_are_checked_before_anything_is_allocated(tmp_path):
    member_of_declared_size(tmp_path / "big.npz", (1 << 40,))
    with pytest.raises(ValueError, match=r"expected at most .* got 1,099,511,627,776 declared"):
        load_data(tmp_path / "big.npz", "test")
    for data in (bytes(10), gzip.compress(bytes(10))):
        promise = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
        hostile = promise + data if data == bytes(10) else gzip.compress(promise + bytes(10))
        with pytest.raises(ValueError, match="declared"):
            parse_idx(hostile, "hostile")
    for side in (9000, 10000, 20000):
        header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
        with pytest.raises(ValueError, match=r"bomb\.png: expected .*pixels"):
            decode(png + struct.pack(">I", 0) + b"IDAT", "bomb.png")


def test_what_expands_without_end_is_refused(tmp_path):
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("train-images-idx3-ubyte")
        info.size = 80 << 20
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train-images-idx3-ubyte", bytes(80 << 20))
    for name in ("bomb.tar.gz", "bomb.zip"):
        with pytest.raises(ValueError, match="expected at most"):
            load_data(tmp_path / name, "train")


def test_gzip_must_hold_exactly_what_the_header_promises():
    array = some_images(3, (4, 4))
    for shape, message in (
        ((4, 4, 4), "expected 64 values .* got 48"),
        ((2, 4, 4), "expected 32 values .* got more"),
    ):
        for pack in (bytes, gzip.compress):
            with pytest.raises(ValueError, match=message):
                parse_idx(pack(idx_bytes(array, shape=shape)), "idx")
    packed = gzip.compress(idx_bytes(array))
    assert np.array_equal(parse_idx(packed, "idx"), array)
    for cut in range(len(packed)):
        with pytest.raises(ValueError, match=r"idx: (expected|the file is damaged)"):
            parse_idx(packed[:cut], "idx")
    flipped = packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]  # the check value at the end
    with pytest.raises(ValueError, match="damaged"):
        parse_idx(flipped, "idx")
    for head in (b"", b"\0\0", b"\0\0\x0d\x03", b"\0\0\x08\x09", b"\0\0\x08\x03\0\0", b"\x89PNG"):
        with pytest.raises(ValueError, match="expected"):
            parse_idx(head, "idx")


@pytest.mark.parametrize("kind", [k for k in WRITERS if k != "npz"])
def test_no_file_may_be_missing_or_cut_short(kind, tmp_path):
    make, write = WRITERS[kind]
    write(tmp_path / "files", make())
    optional = {"batches.meta", "coarse_label_names.txt"}
    for path in sorted((tmp_path / "files").iterdir()):
        if path.name in optional:
            continue
        content = path.read_bytes()
        for damage in (content[: len(content) // 2], b""):
            path.write_bytes(damage)
            with pytest.raises(ValueError, match=r"expected|there is no file|damaged"):
                [load_data(tmp_path / "files", split) for split in SPLITS]
        path.unlink()
        with pytest.raises(ValueError, match=r"expected|there is no file|damaged"):
            [load_data(tmp_path / "files", split) for split in SPLITS]
        path.write_bytes(content)
    [load_data(tmp_path / "files", split) for split in SPLITS]


@pytest.mark.parametrize("pack", [tarred, zipped], ids=["tar.gz", "zip"])
def test_archives_cut_short_are_refused(pack, tmp_path):
    write_cifar10_binary(tmp_path / "files", color())
    path = pack(tmp_path / "files", tmp_path / "packed")
    content = path.read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ValueError, match=r"expected|damaged"):
            [load_data(path, split) for split in SPLITS]
    for seed in range(20):  # one byte changed: refused, or without effect on the data
        position = int(np.random.default_rng(seed).integers(len(content)))
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        try:
            found = [load_data(path, split) for split in SPLITS]
        except ValueError:
            continue
        assert [torch.from_numpy(color()[d.split][0]).equal(d.images) for d in found] == [True, True]


BROKEN_IMAGES = {
    "text": b"not an image",
    "nothing": b"",
    "header": b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 13, b"IHDR") + bytes(13),
}


def test_a_damaged_tag_is_no_crash():
    content = io.BytesIO()
    Image.new("RGB", (2, 2)).save(content, "TIFF")
    whole = content.getvalue()
    for place in range(len(whole)):
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(ValueError):
            decode(whole[:place] + b"\2" + whole[place + 1 :], "damaged.tiff")


@pytest.mark.parametrize("case", BROKEN_IMAGES)
def test_broken_images_are_named(case, tmp_path):
    folder = tmp_path / "test" / "a"
    folder.mkdir(parents=True)
    (folder / "broken.png").write_bytes(BROKEN_IMAGES[case])
    with pytest.raises(ValueError, match=r"broken\.png: expected an 8-bit image"):
        load_data(tmp_path, "test")


def test_image_folders_that_do_not_fit_are_refused(tmp_path):
    write_image_folder(tmp_path / "a", color())
    Image.new("RGB", (31, 32)).save(tmp_path / "a" / "test" / "class_9" / "z.png")
    with pytest.raises(ValueError, match=r"z\.png: expected 32×32 pixels like the first image; got 32×31"):
        load_data(tmp_path / "a", "test")
    write_image_folder(tmp_path / "b", color())
    (tmp_path / "b" / "test" / "class_9").rename(tmp_path / "b" / "test" / "other")
    with pytest.raises(ValueError, match="got 'other' in test alone"):
        load_data(tmp_path / "b", "test")
    Image.new("I;16", (8, 8)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match="kind I;16"):
        decode((tmp_path / "deep.png").read_bytes(), "deep.png")


# Pickles


def test_pickles_of_python_2_and_3_are_read():
    content = {b"data": some_images(3, (3072,)), b"labels": [3, 1, 70000], b"batch_label": b"x" * 300}
    written = python2_pickle(content)
    reference = pickle.loads(written, encoding="bytes")  # the writer above writes true pickles
    again = [read_pickle(pickle.dumps(content, protocol=protocol), "x") for protocol in (2, 3, 4)]
    for found in (reference, read_pickle(written, "x"), *again):
        assert np.array_equal(found[b"data"], content[b"data"])
        assert {key: found[key] for key in (b"labels", b"batch_label")} == {
            key: content[key] for key in (b"labels", b"batch_label")
        }


class Command:
    """Pickles to a call of os.system."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_not_run(protocol, tmp_path):
    marker = tmp_path / "marker"
    payload = pickle.dumps({b"data": Command(f"touch '{marker}'"), b"labels": [0]}, protocol=protocol)
    pickle.loads(payload)
    assert marker.exists()  # the payload is live
    marker.unlink()
    with pytest.raises(ValueError, match=r"It was not executed"):
        read_pickle(payload, "payload")
    write_cifar10_python(tmp_path / "files", color())
    (tmp_path / "files" / "test_batch").write_bytes(payload)
    with pytest.raises(ValueError, match=r"test_batch: expected a pickle of CIFAR.*It was not executed"):
        load_data(tmp_path / "files", "test")
    assert not marker.exists()


HOSTILE = {
    "eval": b"\x80\x02cbuiltins\neval\nU\x011\x85R.",
    "numpy function": b"\x80\x02cnumpy\nload\nU\x011\x85R.",
    "inst": b"(S'1'\nios\nsystem\n.",
    "array of 2**40": b"\x80\x02cnumpy\nndarray\n\x8a\x06\0\0\0\0\0\x01\x85\x85R.",
    "bytearray of 2**40": b"\x80\x05\x96\0\0\0\0\0\x01\0\0.",
    "string of 2**31": b"\x80\x02T\xff\xff\xff\x7f.",
    "persistent": b"\x80\x02U\x011Q.",
    "extension": b"\x80\x02\x82\x01.",
    "class": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "unhashable key": b"\x80\x02}]K\x01s.",
    "empty stack": b"\x80\x02R.",
    "no mark": b"\x80\x02}u.",
    "build of a dictionary": b"\x80\x02}}b.",
    "append to a tuple": b"\x80\x02)K\x01a.",
    "a list": b"\x80\x02].",
    "nothing": b"",
    "no end": b"\x80\x02}",
    "wrong length": python2_pickle({b"data": np.zeros((2, 3), np.uint8)}).replace(b"K\x02K\x03t", b"K\x02K\x04t"),
    "object array": python2_pickle({b"data": np.zeros((2, 3), np.uint8)}).replace(b"u1", b"O8"),
}


def nested(start, deeper, ends=b""):
    """``start`` wrapped 200,000 times, which is deeper than C can recurse."""
    return start + deeper * 200_000 + ends


RECONSTRUCTED = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nK\x00\x85U\x01b\x87q\x02R"
UINT8 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
HUGE_INTEGER = b"\x8a\xff" + b"\x7f" * 255
TOO_LARGE = {
    "a nested tuple as key": b"\x80\x02}" + nested(b")", b"\x85") + b"K\x01s.",
    "a nested tuple as value": b"\x80\x02}U\x01a" + nested(b")", b"\x85") + b"s.",
    "a nested list": b"\x80\x02}U\x01a" + nested(b"]", b"]", b"a" * 200_000) + b"s.",
    "a nested dictionary": b"\x80\x02" + nested(b"}", b"U\x01a}", b"s" * 200_000) + b".",
    "a name that is a nested list": b"\x80\x04" + nested(b"]", b"]", b"a" * 200_000) + b"U\x01a\x93.",
    "a list in itself": b"\x80\x02}U\x01a]q\x00h\x00as.",
    "a dictionary in itself": b"\x80\x02}q\x00U\x01ah\x00s.",
    "a doubled list": b"\x80\x04]q\x00" + b"]q\x01h\x00ah\x00a]q\x00h\x01ah\x01a" * 50 + b"U\x01a\x93.",
    "a long tuple": b"\x80\x02}U\x01a(" + b"N" * 100 + b"ts.",
    "many instructions": b"\x80\x02}U\x01a(" + b"]" * 1_100_000 + b"ts.",
    "many copies of one string": (
        b"\x80\x02" + RECONSTRUCTED + b"(K\x01J\x40\x0d\x03\x00\x85" + UINT8 + b"\x89"
        b"T\x40\x0d\x03\x00" + bytes(200_000) + b"tq\x03b}(" + b"h\x01h\x02Rh\x03b" * 1000 + b"u."
    ),
    "a product of huge sizes": (
        b"\x80\x02"
        + RECONSTRUCTED
        + b"(K\x01("
        + HUGE_INTEGER
        + b"q\x03"
        + b"h\x03" * 100_000
        + b"t"
        + UINT8
        + b"\x89U\x00tb."
    ),
    "a huge size and a zero": (
        b"\x80\x02" + RECONSTRUCTED + b"(K\x01K\x00" + HUGE_INTEGER + b"\x86" + UINT8 + b"\x89U\x00tb."
    ),
    "text that is not Unicode": b"\x80\x02}X\x03\x00\x00\x00\xed\xa0\x80K\x01s.",
    "a number as key": b"\x80\x02}K\x01K\x01s.",
    "an array as key": b"\x80\x02}" + RECONSTRUCTED + b"K\x01s.",
    "a name as key": b"\x80\x02}cnumpy\nndarray\nK\x01s.",
    "one key twice": b"\x80\x02}U\x01aK\x01sX\x01\x00\x00\x00aK\x02s.",
    "bytes beyond the end": b"\x80\x03}C\x01aB\xff\xff\xff\xffxs.",
    "text beyond the end": b"\x80\x04}\x8d" + b"\xff" * 8 + b"a.",
    "a number beyond the end": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
    "a number of many digits": b"L" + b"9" * 100_000 + b"L\n.",
    "an object that was never stored": b"\x80\x02h\x07.",
    "a frame that lies about its length": b"\x80\x04\x95" + b"\xff" * 8 + b"}.",
    "a frame that is a little too long": b"\x80\x04\x95\x03" + b"\0" * 7 + b"}.",
    "a number for 64 GB of memo": b"\x80\x02}r\xff\xff\xff\xff.",
    "a state for a function": b"\x80\x02}U\x01acnumpy\ndtype\nN}U\x0c__defaults__)s\x86bs.",
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_pickle_that_would_build_something_huge_or_deep_is_refused(case):
    start = time.monotonic()
    with pytest.raises(
        ValueError, match=r"^x: expected a pickle of CIFAR .*; got .*\. It was not executed"
    ) as refusal:
        read_pickle(TOO_LARGE[case], "x")
    assert type(refusal.value) is ValueError
    assert len(str(refusal.value)) < 400
    assert time.monotonic() - start < 20  # a loaded machine included; the attacks took hours, or crashed


def test_a_pickle_as_large_as_the_largest_of_cifar_is_read():
    count = 50_000  # the training file of CIFAR-100
    content = {
        b"filenames": [b"bos_taurus_s_%06d.png" % number for number in range(count)],
        b"fine_labels": [number % 100 for number in range(count)],
        b"coarse_labels": [number % 20 for number in range(count)],
    }
    assert read_pickle(pickle.dumps(content, protocol=4), "x") == content


def test_class_names_that_repeat_one_long_string_are_refused(tmp_path):
    write_cifar100(tmp_path / "files", color(100, 100))
    names = b"X\x40\x0d\x03\x00" + b"a" * 200_000 + b"q\x00" + b"h\x00" * 100_000
    (tmp_path / "files" / "meta").write_bytes(b"\x80\x02}U\x10fine_label_names](" + names + b"es.")
    with pytest.raises(ValueError, match=r"meta: expected .*fine_label_names.*Fetch it again"):
        load_data(tmp_path / "files", "test")


@pytest.mark.parametrize("case", HOSTILE)
def test_instructions_cifar_does_not_need_are_refused(case):
    with pytest.raises(ValueError, match=r"x: expected a"):
        read_pickle(HOSTILE[case], "x")


def test_no_cut_or_changed_pickle_escapes():
    written = python2_pickle({b"data": np.zeros((2, 6), np.uint8), b"labels": [1, 2]})
    for cut in range(len(written)):
        with pytest.raises(ValueError, match="x: expected"):
            read_pickle(written[:cut], "x")
    rng = np.random.default_rng(0)
    for _ in range(2000):
        changed = bytearray(written)
        changed[rng.integers(len(changed))] = rng.integers(256)
        with contextlib.suppress(ValueError):  # and nothing else
            read_pickle(bytes(changed), "x")


# Names, the store, preparation


def small_entry(**changes):
    data = color()
    sha256 = {
        split: tuple(hashlib.sha256(array.tobytes()).hexdigest() for array in data[split]) for split in SPLITS
    }
    fields = {
        "name": "cifar10",
        "classes": 10,
        "images": {"train": 15, "test": 15},
        "shape": (3, 32, 32),
        "home": "https://example.org",
        "accepts": "files",
        "class_names": CATALOG["cifar10"].class_names,
        "sha256": sha256,
    }
    return Entry(**{**fields, **changes})


@pytest.fixture
def small_cifar10(monkeypatch, tmp_path):
    """The name cifar10 stands for fifteen random images a split, so that preparing it takes no time."""
    monkeypatch.setitem(CATALOG, "cifar10", small_entry())
    write_cifar10_binary(tmp_path / "files", color())
    return tmp_path / "files"


def test_prepared_data_are_loaded_by_name(small_cifar10, tmp_path):
    seen = []
    prepare(
        "cifar10", small_cifar10, root=tmp_path / "root", progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(number, 6) for number in range(1, 7)]
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["cifar10.npz"]
    for split in SPLITS:
        found = load_data("cifar10", split, root=tmp_path / "root")
        assert torch.equal(found.images, torch.from_numpy(color()[split][0]))
        assert (found.name, found.split, found.classes[3]) == ("cifar10", split, "cat")
        assert repr(found) == f"ImageData(cifar10 {split}: 15 images 3×32×32, 10 classes)"
        again = load_data(tmp_path / "root" / "cifar10.npz", split)  # the prepared form is an ordinary .npz
        assert torch.equal(found.images, again.images)
        assert found.images[:1].clone().add_(1) is not None  # and writable


def test_the_root_comes_from_the_environment(small_cifar10, tmp_path, monkeypatch):
    monkeypatch.setenv("LIPCERT_DATA", str(tmp_path / "elsewhere"))
    prepare("cifar10", small_cifar10)
    assert (tmp_path / "elsewhere" / "cifar10.npz").is_file()
    assert len(load_data("cifar10", "test")) == 15
    monkeypatch.delenv("LIPCERT_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert prepared_path("mnist") == tmp_path / "home" / ".cache" / "lipcert" / "mnist.npz"


def test_wrong_data_change_nothing(small_cifar10, tmp_path):
    root = tmp_path / "root"
    prepare("cifar10", small_cifar10, root=root)
    before = (root / "cifar10.npz").read_bytes()
    path = small_cifar10 / "data_batch_3.bin"
    content = path.read_bytes()
    labels = bytearray(content)
    labels[0] ^= 1
    for damage, message in (
        (content[:-1] + bytes([content[-1] ^ 1]), r"cifar10 train images: expected sha256 \w{12}…, got"),
        (bytes(labels), r"cifar10 train labels: expected sha256"),
        (content[:3073], r"expected 15 images 3×32×32 of 10 classes; got 13 images"),
    ):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=message):
            prepare("cifar10", small_cifar10, root=root)
        assert (root / "cifar10.npz").read_bytes() == before
        assert len(list(root.iterdir())) == 1


def test_damaged_prepared_data_are_refused(small_cifar10, tmp_path):
    root = tmp_path / "root"
    prepare("cifar10", small_cifar10, root=root)
    path = root / "cifar10.npz"
    content = path.read_bytes()
    for damage in (b"", content[:100], content[: len(content) // 2], content[:-30]):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=r"cifar10\.npz.*: (expected|the file is damaged)"):
            load_data("cifar10", "train", root=root)
    arrays = dict(np.load(io.BytesIO(content)))
    arrays["train_images"][0, 0, 0, 0] ^= 1
    np.savez(path, **arrays)  # a sound file with other pixels
    with pytest.raises(ValueError, match="expected the sha256 recorded"):
        load_data("cifar10", "train", root=root)
    data = {
        split: image_data(*color()[split], CATALOG["cifar10"].class_names, "cifar10", split) for split in SPLITS
    }
    data["train"].images[0] ^= 1
    npz.save(path, data)  # whose recorded sha256 agrees with it, but not with the published one
    with pytest.raises(ValueError, match="train images: expected sha256"):
        load_data("cifar10", "train", root=root)
    assert len(load_data("cifar10", "test", root=root)) == 15


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    old, new = (
        {"test": image_data(some_images(2, (1, 4, 4), seed), np.zeros(2, int), ("a",), "set", "test")}
        for seed in range(2)
    )
    npz.save(tmp_path / "set.npz", old)

    def full_disk(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left on device; nothing was changed"):
        npz.save(tmp_path / "set.npz", new)
    assert [path.name for path in tmp_path.iterdir()] == ["set.npz"]
    assert torch.equal(npz.read(tmp_path / "set.npz", "test").images, old["test"].images)


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    path = tmp_path / "set.npz"
    code = (
        "import sys, torch; from pathlib import Path; from lipcert.data import npz;"
        "from lipcert.data.dataset import ImageData\n"
        "for k in range(10**6):\n"
        "    data = ImageData(torch.full((500, 3, 32, 32), k % 256, dtype=torch.uint8),\n"
        "                     torch.zeros(500, dtype=torch.long), ('a',), 'set', 'test')\n"
        "    npz.save(Path(sys.argv[1]), {'test': data})"
    )
    for delay in (0.0, 0.013):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)], env=ENVIRONMENT)
        try:
            while not path.exists():
                assert writer.poll() is None
                time.sleep(0.001)
            time.sleep(delay)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        assert len(npz.read(path, "test").images.unique()) == 1


def test_room_is_looked_for_before_the_work(tmp_path):
    with pytest.raises(ValueError, match="bytes free"):
        npz.check_room(tmp_path / "x" / "y.npz", 1 << 62)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="the folder cannot be written"):
        npz.check_room(tmp_path / "file" / "y.npz", 1)


def test_a_read_only_folder_is_refused(small_cifar10, tmp_path):
    (tmp_path / "root").mkdir(mode=0o555)
    if os.access(tmp_path / "root", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(ValueError, match="the folder cannot be written"):
        prepare("cifar10", small_cifar10, root=tmp_path / "root")
    with pytest.raises(PermissionError, match="nothing was changed"):
        npz.save(tmp_path / "root" / "set.npz", {"test": load_data("digits", "test")})


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("cifar-10", "cifar10"),
        ("CIFAR100", "cifar100"),
        ("fashion", "fashion_mnist"),
        ("TinyImageNet", "tiny_imagenet"),
    ],
)
def test_unknown_names_get_suggestions(name, suggestion):
    with pytest.raises(DataNotFound, match=rf"got '{name}'. Did you mean .*{suggestion}"):
        load_data(name, "test")


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(DataNotFound, match=r"expected the name of a data set.*got 'zzz'. A folder"):
        load_data("zzz", "test")
    with pytest.raises(DataNotFound, match=r"Run lipcert data get cifar10"):
        load_data("cifar10", "test", root=tmp_path)
    for path in (tmp_path / "none", "./none", str(tmp_path / "none.npz"), Path("cifar10")):
        with pytest.raises(DataNotFound, match="Check the path"):
            load_data(path, "test")
    with pytest.raises(DataNotFound, match="got 0 files of other kinds"):
        load_data(tmp_path, "test")
    with pytest.raises(ValueError, match=r"split must be one of \['test', 'train'\]; got 'val'"):
        load_data("digits", "val")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(some_images(1, (2, 2)))))
    with pytest.raises(ValueError, match="Name the folder that holds it"):
        load_data(tmp_path / "train-images-idx3-ubyte.gz", "train")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="neither a folder nor a regular file"):
        load_data(tmp_path / "pipe", "train")


def test_digits_have_the_one_type():
    train = load_data("digits", "train")
    assert repr(train) == "ImageData(digits train: 1,400 images 1×8×8, 10 classes)"
    inputs = train.inputs()
    assert (inputs.dtype, float(inputs.min()), float(inputs.max())) == (torch.float32, 0.0, 1.0)
    part = train.take(torch.arange(100, 1400), split="validation")
    assert (len(part), part.split, part.name) == (1300, "validation", "digits")
    assert torch.equal(part.images, train.images[100:])


BAD_DATA = {
    "double images": (torch.zeros(2, 1, 4, 4).double(), torch.zeros(2, dtype=torch.long), "expected uint8 images"),
    "inputs with NaN": (torch.full((2, 4), torch.nan), torch.zeros(2, dtype=torch.long), "must be finite"),
    "no channels": (
        torch.zeros(2, 4, 4, dtype=torch.uint8),
        torch.zeros(2, dtype=torch.long),
        "expected uint8 images",
    ),
    "int32": (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32), "int64 labels"),
    "length": (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.long), "int64 labels"),
    "range": (
        torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        torch.full((2,), 3),
        "expected labels 0 to 1; got 3 to 3",
    ),
    "none": (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.long), "at least one image"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_the_one_type_checks_itself(case):
    images, labels, message = BAD_DATA[case]
    with pytest.raises(ValueError, match=message):
        ImageData(images, labels, ("a", "b"), "set", "test")


def test_many_classes_are_stored_in_two_bytes(tmp_path):
    labels = np.array([0, 255, 256, 299])
    data = image_data(some_images(4, (1, 2, 2)), labels, tuple(map(str, range(300))), "set", "test")
    assert data.sha256.labels == hashlib.sha256(labels.astype("<u2").tobytes()).hexdigest()
    npz.save(tmp_path / "set.npz", {"test": data})
    assert npz.read(tmp_path / "set.npz", "test").labels.tolist() == labels.tolist()


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet"])
def test_real_data(name):
    if not prepared_path(name).is_file():
        pytest.skip(f"{name} is not prepared: lipcert data get {name}")
    for split in SPLITS:
        data = load_data(name, split)  # verified: number, size, classes, sha256
        verify(CATALOG[name], data)
        counts = data.labels.bincount(minlength=len(data.classes))
        assert counts.min() > 0
        if name != "mnist":  # all others are balanced
            assert counts.unique().tolist() == [len(data) // len(data.classes)]


# Fetching


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server for the files in tmp_path/web; /short promises more than it sends."""
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "web").mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path / "web"))

        def log_message(self, *words):
            pass

        def do_GET(self):
            if self.path != "/short":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(bytes(10))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_downloads(server, tmp_path):
    write_cifar10_python(tmp_path / "cifar-10-batches-py", color())
    archive = tarred(tmp_path / "cifar-10-batches-py", tmp_path / "web" / "cifar.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    target = tmp_path / "downloads"
    target.mkdir()
    seen = []

    def get(url, **changes):
        entry = small_entry(urls=(url,), package="a package", **changes)
        return fetch.download(entry, target, lambda *numbers: seen.append(numbers))

    for check in (("sha256", digest), None):
        path = get(f"{server}/cifar.tar.gz", archive=check)
        assert seen[-1] == (archive.stat().st_size,) * 2
        assert torch.equal(load_data(path, "test").images, torch.from_numpy(color()["test"][0]))
    with pytest.raises(ValueError, match=r"expected sha256 0{12}…, got"):
        get(f"{server}/cifar.tar.gz", archive=("sha256", 64 * "0"))
    cure = r"Get files from https://example.org, or a package, then run: lipcert data get cifar10 --from PATH"
    for place, reason in (("/none", "HTTP Error 404"), ("/short", "IncompleteRead")):
        with pytest.raises(DataNotFound, match=rf"{place} cannot be reached \(.*{reason}.*\)\. {cure}"):
            get(f"{server}{place}")
    with pytest.raises(DataNotFound, match=r"cannot be reached \(.*Connection refused\)"):
        get("http://127.0.0.1:9/closed")
    write_idx(tmp_path / "web", gray(), ending=".gz")
    several = small_entry(urls=tuple(f"{server}/{url.rsplit('/')[-1]}" for url in CATALOG["mnist"].urls))
    path = fetch.download(several, target, lambda *numbers: None)
    assert torch.equal(load_data(path, "train").images, torch.from_numpy(gray()["train"][0]))


def test_installed_packages_are_found(tmp_path):
    entry = CATALOG["fashion_mnist"]
    assert fetch.installed(entry, tmp_path) is None
    (tmp_path / "doc" / "dataset-fashion-mnist").mkdir(parents=True)
    assert fetch.installed(entry, tmp_path) is None
    write_idx(tmp_path / "dataset-fashion-mnist", gray(), ending=".gz")
    assert fetch.installed(entry, tmp_path) == tmp_path / "dataset-fashion-mnist"
    write_idx(tmp_path / "datasets" / "fashion-mnist", gray(), ending=".gz")
    assert fetch.installed(entry, tmp_path) == tmp_path / "datasets" / "fashion-mnist"


# The command line


def test_data_list_shows_what_there_is_without_torch(tmp_path):
    code = (
        "import sys; import lipcert.cli\n"
        f"sys.argv = ['lipcert', 'data', 'list', '--root', {str(tmp_path)!r}]\n"
        "try: lipcert.cli.main()\n"
        "except SystemExit as end: sys.exit(end.code or 3 * ('torch' in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == list(CATALOG)
    assert [row[-1].strip() for row in rows] == ["in the package"] + 5 * ["no"]
    assert str(tmp_path) in result.stdout


def test_bad_input_is_one_line_and_changes_nothing(main, tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path / "files", color())
    (tmp_path / "text").write_text("hello")
    (tmp_path / "file").write_text("")
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    root = tmp_path / "root"
    cases = [
        (["cifar-10"], root, "Did you mean cifar10"),
        (["cifar10", "--from", tmp_path / "files"], root, "expected 50,000 images"),
        (["cifar10", "--from", tmp_path / "none"], root, "there is no such folder"),
        (["mnist", "--from", tmp_path / "text"], root, "another kind of file"),
        (["cifar100"], root, "Connection refused). Get cifar-100-python"),
        (
            ["cifar10", "--from", tmp_path / "files"],
            tmp_path / "file",
            "file: the folder cannot be written",
        ),
        (["cifar100"], tmp_path / "file", "file: the folder cannot be written"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for words, place, message in cases:
        code, out, err = main("data", "get", *words, "--root", place)
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("lipcert: ")
        assert message in line
        assert sorted(tmp_path.rglob("*")) == before


def test_the_command_itself_fails_in_one_line(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "lipcert", "data", "get", "fashion-mnist", "--root", str(tmp_path)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "got 'fashion-mnist'. Did you mean fashion_mnist" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_get_prepares_once_and_repairs(main, small_cifar10, tmp_path, monkeypatch):
    monkeypatch.setenv("LIPCERT_DATA", str(tmp_path / "root"))
    path = tmp_path / "root" / "cifar10.npz"
    code, out, err = main("data", "get", "cifar10", "--from", small_cifar10)
    assert (code, err) == (0, "")
    assert "cifar10 train: 15 images, sha256 " in out
    assert f"prepared: {path}" in out
    content = path.read_bytes()
    assert main("data", "get", "cifar10") == (0, f"cifar10: already prepared and intact, {path}\n", "")
    assert path.read_bytes() == content
    code, out, err = main("data", "get", "digits")
    assert (code, err) == (0, "")
    assert "already prepared and intact" in out
    code, out, err = main("data", "get", "digits", "--from", small_cifar10)
    assert (code, out) == (2, "")
    assert "comes with the package" in err
    code, out, err = main("data", "get", "cifar10", "--from", small_cifar10, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["path"] == str(path)
    assert json.loads(out)["prepared_now"]["train"]["images"] == 15
    path.write_bytes(content[:1000])
    monkeypatch.setattr(fetch, "installed", lambda known: small_cifar10)
    code, out, err = main("data", "get", "cifar10")
    assert code == 0
    assert "Preparing it again" in err
    assert len(load_data("cifar10", "test")) == 15


FULL_DISK = """
import resource, sys
from pathlib import Path
import lipcert.cli
from lipcert.data import npz, registry
from lipcert.data.registry import load_data
def prepare(name, source, root, progress):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))  # no file may grow beyond: as on a full disk
    npz.save(Path(root) / "mnist.npz", {"train": load_data("digits", "train")})
registry.prepare = prepare
sys.argv[0] = "lipcert"
lipcert.cli.main()
"""


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    words = ["data", "get", "mnist", "--from", tmp_path, "--root", tmp_path / "root"]
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *map(str, words)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr == (
        f"lipcert: {tmp_path / 'root' / 'mnist.npz'}: File too large; nothing was changed. "
        "Free some space or choose another folder with --root or LIPCERT_DATA\n"
    )
    assert list((tmp_path / "root").iterdir()) == []


# Augmentation


def batch(count=64, channels=3, size=32, dtype=torch.float32):
    return torch.rand(count, channels, size, size, dtype=dtype, generator=torch.Generator().manual_seed(7))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_augmentation_is_a_function_of_the_seed_and_stays_in_the_box(name, channels, dtype):
    images = batch(300, channels, 8, dtype)
    images[0], images[1], images[2] = 0, 1, images[2].round()
    before = images.clone()
    preset = augmentation(name)
    result = preset(images, seeded())
    assert torch.equal(images, before)  # the input is left alone
    assert (result.shape, result.dtype) == (images.shape, dtype)
    assert result.min() >= 0
    assert result.max() <= 1
    assert torch.equal(result, preset(images, seeded()))
    assert torch.equal(result, images) == (name == "none")
    assert name == "none" or not torch.equal(result, preset(images, seeded(1)))


@pytest.mark.parametrize("name", PRESETS)
def test_augmentation_of_an_image_does_not_depend_on_the_others(name):
    images, preset = batch(600, size=8), augmentation(name)
    numbers = preset.draw(600, seeded())
    whole = preset.apply(images, numbers)
    for part in (slice(0, 600, 2), slice(1, 600, 2), slice(17, 18)):  # as two processes would divide it
        assert torch.allclose(preset.apply(images[part], numbers[part]), whole[part], rtol=0, atol=1e-6)


def test_crops_and_flips_are_uniform():
    side, count = 32, 20000
    places = torch.arange(side * side, dtype=torch.float64).view(1, 1, side, side).expand(count, 1, side, side)
    result = augmentation("crop-flip")(places, seeded())
    padded = np.pad(places[0, 0].numpy(), 4, mode="reflect")
    known = {}
    for row in range(9):
        for column in range(9):
            crop = padded[row : row + side, column : column + side]
            known[crop.tobytes()], known[crop[:, ::-1].tobytes()] = (row, column, 0), (row, column, 1)
    found = np.array([known[np.ascontiguousarray(image[0]).tobytes()] for image in result.numpy()])
    counts = np.bincount(found[:, 0] * 9 + found[:, 1], minlength=81)
    assert counts.min() > 0
    assert ((counts - count / 81) ** 2 / (count / 81)).sum() < 80 + 5 * np.sqrt(160)  # χ², 80 degrees of freedom
    assert abs(found[:, 2].mean() - 0.5) < 5 * 0.5 / np.sqrt(count)


def test_flip_mirrors_half_of_the_images():
    images = torch.arange(12.0).view(1, 1, 3, 4).expand(2000, 1, 3, 4)
    result = augmentation("flip")(images, seeded())
    mirrored = (result == images.flip(3)).flatten(1).all(dim=1)
    assert ((result == images).flatten(1).all(dim=1) ^ mirrored).all()
    assert abs(mirrored.double().mean() - 0.5) < 5 * 0.5 / np.sqrt(2000)


def slow_jitter(image, factors, order):
    """One image at a time, straight from the formulas, hue by way of HSV."""

    def luma(x):
        return 0.2989 * x[0] + 0.587 * x[1] + 0.114 * x[2] if len(x) == 3 else x[0]

    for step in order:
        factor = float(factors[step])
        if step == 0:
            image = factor * image
        elif step == 1:
            image = factor * image + (1 - factor) * luma(image).mean()
        elif len(image) == 1:
            continue
        elif step == 2:
            image = factor * image + (1 - factor) * luma(image)
        else:
            image = turned(image, lambda h, s, v, by=factor: ((h + by) % 1, s, v))
        image = image.clip(0, 1)
    return image


def turned(image, change):
    result = np.empty_like(image)
    for place in np.ndindex(image.shape[1:]):
        result[:, *place] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*image[:, *place])))
    return result


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_agrees_with_the_formulas(channels):
    images = batch(48, channels, 6, torch.float64)
    images[:8] = (images[:8] * 2).round() / 2  # ties between channels, grey, black and white
    preset = augmentation("sll")
    numbers = preset.draw(48, seeded()).double()
    cropped = augmentation("crop-flip").apply(images, numbers[:, :3])
    low, high = np.array([0.9, 0.5, 0.3, -0.02]), np.array([1.1, 2.0, 2.0, 0.02])
    factors = low + numbers[:, 3:7].numpy() * (high - low)
    orders = numbers[:, 7:].argsort(dim=1).tolist()
    assert len(set(map(tuple, orders))) > 15  # of 24
    found = preset.apply(images, numbers).numpy()
    for image, factor, order, result in zip(cropped.numpy(), factors, orders, found, strict=True):
        assert np.abs(slow_jitter(image, factor, order) - result).max() < 1e-13


@pytest.mark.parametrize("shift", [0.0, 0.02, -0.1, 1 / 6, -1 / 6])
def test_hue_agrees_with_hsv(shift):
    images = batch(6, 3, 8, torch.float64)
    images[:2] = (images[:2] * 2).round() / 2
    found = augment.shift_hue(images, torch.full((6,), shift, dtype=torch.float64)).numpy()
    for image, result in zip(images.numpy(), found, strict=True):
        assert np.abs(turned(image, lambda h, s, v: ((h + shift) % 1, s, v)) - result).max() < 1e-13


def test_aol_agrees_with_the_formulas():
    images = batch(16, 3, 6, torch.float64)
    preset = augmentation("aol")
    still = preset.draw(16, seeded()).double()
    still[:, :4] = torch.tensor([0.5, 0.5, 0.5, 0.9])  # no rotation, no shift, no flip
    low, high = np.array([-0.02, 0.3, -0.1, 0.5]), np.array([0.02, 2.0, 0.1, 2.0])
    factors = low + still[:, 4:].numpy() * (high - low)
    found = preset.apply(images, still).numpy()
    for image, (hue, saturation, brightness, contrast), result in zip(images.numpy(), factors, found, strict=True):
        x = turned(image, lambda h, s, v, by=hue: ((h + by) % 1, s, v))
        x = turned(x, lambda h, s, v, by=saturation: (h, min(1, s * by), v)) + brightness
        mean = x.mean(axis=(1, 2), keepdims=True)
        assert np.abs((mean + contrast * (x - mean)).clip(0, 1) - result).max() < 1e-13


def test_aol_moves_by_whole_pixels_exactly_and_flips():
    images = batch(2, 1, 20, torch.float64)
    numbers = torch.full((2, 8), 0.5, dtype=torch.float64)
    numbers[:, 7] = 1 / 3  # contrast 1
    numbers[:, 1], numbers[:, 3] = 1.0, 0.9  # 10 % of 20 pixels to the left
    result = augmentation("aol").apply(images, numbers)
    assert torch.allclose(result[..., :-2], images[..., 2:], rtol=0, atol=1e-13)
    assert torch.allclose(result[..., -2:], images[..., -2:].flip(-1), rtol=0, atol=1e-13)  # symmetric reflection
    numbers[:, 1], numbers[:, 3] = 0.5, 0.1
    assert torch.allclose(augmentation("aol").apply(images, numbers), images.flip(-1), rtol=0, atol=1e-13)


def test_aol_turns_by_at_most_five_degrees():
    side = 65
    line = torch.zeros(1, 1, side, side, dtype=torch.float64)
    line[..., side // 2, :] = 1
    for uniform in (0.0, 1.0):
        numbers = torch.full((1, 8), 0.5, dtype=torch.float64)
        numbers[:, 0], numbers[:, 7], numbers[:, 3] = uniform, 1 / 3, 0.9
        result = augmentation("aol").apply(line, numbers)[0, 0, :, 8:-8]
        rows = (result * torch.arange(side)[:, None]).sum(0) / result.sum(0)
        slope = float((rows[-1] - rows[0]) / (result.shape[1] - 1))
        assert abs(np.degrees(np.arctan(slope))) == pytest.approx(5, abs=0.1)


def test_augmentation_refuses_what_it_cannot_do():
    preset = augmentation("sll")
    with pytest.raises(
        ValueError, match=r"augmentation must be one of \['aol', 'crop-flip', 'flip', 'none', 'sll'\]"
    ):
        augmentation("autoaugment")
    for images in (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, 4, 8, 8), torch.zeros(3, 8, 8)):
        with pytest.raises(ValueError, match="expects floating images"):
            preset(images, seeded())
    with pytest.raises(ValueError, match="larger than that; got 4×4"):
        preset(torch.zeros(2, 3, 4, 4), seeded())
    with pytest.raises(ValueError, match=r"expects random numbers \(2, 11\)"):
        preset.apply(torch.zeros(2, 3, 8, 8), torch.zeros(3, 11))


def test_files_keep_their_order(tmp_path):
    write_cifar10_binary(tmp_path / "files", color())
    with open_files(tmp_path / "files") as files:
        assert files.names == tuple(sorted(files.names))
        assert zlib.crc32(files.read("test_batch.bin")) == zlib.crc32(
            (tmp_path / "files/test_batch.bin").read_bytes()
        )


# ---------------------------------------------------------------- what a second hostile review found


def test_a_png_that_is_postscript_starts_no_program(tmp_path, monkeypatch):
    """Pillow runs Ghostscript for EPS files, whatever their name."""
    tools, started = tmp_path / "bin", tmp_path / "started"
    tools.mkdir()
    (tools / "gs").write_text(f"#!/bin/sh\ntouch {started}\n")
    (tools / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    for split in ("train", "test"):
        folder = tmp_path / "data" / split / "cat"
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(eps)
    with pytest.raises(ValueError, match="image"):
        load_data(str(tmp_path / "data"), "test")
    assert not started.exists()


def test_a_sparse_tar_is_refused(tmp_path):
    """A hole of 3 GB takes no space in the archive."""
    header = tarfile.TarInfo("test_batch")
    header.size = 512
    header.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(header.tobuf(format=tarfile.GNU_FORMAT))
    block[386:398], block[398:410] = b"%011o\0" % (3 << 30), b"%011o\0" % 512
    block[483:495] = b"%011o\0" % ((3 << 30) + 512)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    path = tmp_path / "cifar.tar"
    path.write_bytes(bytes(block) + b"x" * 512 + bytes(1024))
    with pytest.raises(ValueError, match="sparse"):
        load_data(str(path), "test")


def npz_with(path, name, header):
    """An .npz file with one array whose header is given as text."""
    text = header.encode("latin1")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    return path


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|S0', 'fortran_order': False, 'shape': (1000000000000,), }\n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (",
        "-" * 9000 + "1",
        "{'descr': (), 'fortran_order': False, 'shape': (3,), }\n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 1180591620717411303424, 4), }\n",
    ],
)
def test_hostile_headers_of_arrays(header, tmp_path):
    with (
        open_npz(npz_with(tmp_path / "x.npz", "classes", header)) as arrays,
        pytest.raises(ValueError, match="classes"),
    ):
        arrays.read("classes")


def test_one_large_image_and_many_names(tmp_path):
    """6,824 bytes that would have been 11 GB of pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (8192, 8192)).save(buffer, "PNG", compress_level=9)
    names = ("a.png", *(f"z{index}.png" for index in range(59)))
    files = Files(Path("here"), names, lambda name: buffer.getvalue()[: None if name == "a.png" else 1])
    with pytest.raises(ValueError, match="at most"):
        decode_all(files, names)


def test_links_back_are_followed_once(tmp_path):
    (tmp_path / "x.txt").write_text("x")
    for index in range(9):
        (tmp_path / f"link{index}").symlink_to(tmp_path, target_is_directory=True)
    with open_files(tmp_path) as files:
        assert files.names == ("x.txt",)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_of_other_kinds_are_refused(method, tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.png", b"x" * 1000)
    with pytest.raises(ValueError, match="deflated"), open_files(path):
        pass
