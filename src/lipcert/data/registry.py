"""From a name or a path to ``ImageData``, and from the files of a data set to its prepared form.

Names are looked up in the catalogue and read from the store; a path may be anything a reader recognises. A name
never depends on the current folder: a folder called ``cifar10`` is ``./cifar10``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from lipcert.data import cifar, folder, idx, npz, store, tiny_imagenet
from lipcert.data.catalog import CATALOG, Entry, entry, prepared_path, unknown
from lipcert.data.dataset import Checksums, ImageData, Split
from lipcert.data.digits import load_digits
from lipcert.data.files import Files, open_files
from lipcert.errors import DataNotFound, one_of

SPLITS: tuple[Split, Split] = ("train", "test")
FORMATS = (idx, cifar, tiny_imagenet, folder)  # asked in this order


def load_data(
    name_or_path: str | os.PathLike[str], split: Split, *, root: str | os.PathLike[str] | None = None
) -> ImageData:
    """The training or the test images of a named data set or of a path.

    Args:
        name_or_path: a name of the catalogue, or a folder, an archive or an ``.npz`` file.
        split: "train" or "test".
        root: where prepared data live; $LIPCERT_DATA or ~/.cache/lipcert by default.
    """
    one_of("split", split, SPLITS)
    name = os.fspath(name_or_path)
    if name in CATALOG and isinstance(name_or_path, str):
        return _load_named(name, split, root)
    path = Path(name).expanduser()
    if not path.exists():
        is_path = not isinstance(name_or_path, str) or "/" in name or os.sep in name or path.suffix
        raise DataNotFound(
            f"{path}: expected a folder, an archive or an .npz file; got nothing. Check the path."
            if is_path
            else unknown(name)
        )
    return _load_path(path, split)


def prepare(
    name: str,
    source: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, ImageData]:
    """Read a named data set from its files, verify it, and store it; what was stored before stays until then."""
    known = entry(name)
    target = prepared_path(name, root)
    store.check_room(target, known.stored_bytes)
    if source.suffix == ".npz":
        splits: dict[str, ImageData] = {split: npz.read(source, split) for split in SPLITS}
    else:
        with open_files(source) as files:
            counted = _counted(files, progress)
            splits = {split: _reader(files)(counted, split) for split in SPLITS}
    for split, data in splits.items():
        splits[split] = dataclasses.replace(data, name=name, classes=known.class_names or data.classes)
        verify(known, splits[split])
    store.write(target, splits)
    return splits


def verify(known: Entry, data: ImageData) -> None:
    """Refuse data that is not the published data set: sizes first, then sha256."""
    expected = (known.images[data.split], known.shape, known.classes)
    found = (len(data), data.image_shape, len(data.classes))
    if found != expected:
        raise ValueError(
            f"{data.name} {data.split}: expected {_size(*expected)}; got {_size(*found)}. "
            "To use other data, give its path instead of a name."
        )
    if known.sha256 and data.sha256 != Checksums(*known.sha256[data.split]):
        images, labels = known.sha256[data.split]
        part, want, got = (
            ("images", images, data.sha256.images)
            if data.sha256.images != images
            else ("labels", labels, data.sha256.labels)
        )
        raise ValueError(
            f"{data.name} {data.split} {part}: expected sha256 {want[:12]}…, got {got[:12]}…. "
            "The copy is damaged, changed or compressed with loss: fetch it again."
        )


def _size(images: int, shape: tuple[int, int, int], classes: int) -> str:
    return f"{images:,} images {'×'.join(map(str, shape))} of {classes} classes"


def _load_named(name: str, split: Split, root: str | os.PathLike[str] | None) -> ImageData:
    if name == "digits":
        return load_digits(split)
    path = prepared_path(name, root)
    if not path.exists():
        raise DataNotFound(
            f"{name}: expected its prepared form, {path}; got nothing. Run lipcert data get {name}, "
            "or set LIPCERT_DATA to the folder that has it."
        )
    data = store.read(path, name, split)
    verify(CATALOG[name], data)
    return data


def _load_path(path: Path, split: Split) -> ImageData:
    if path.suffix == ".npz":
        return npz.read(path, split)
    with open_files(path) as files:
        return _reader(files)(files, split)


def _reader(files: Files) -> Callable[[Files, Split], ImageData]:
    for form in FORMATS:
        if form.recognizes(files.names):
            return form.read
    raise DataNotFound(
        f"{files.path}: expected idx, CIFAR or TinyImageNet files, or {folder.LAYOUT}; got {len(files.names)} "
        "files of other kinds. Name the folder or the archive of a data set, or an .npz file."
    )


def _counted(files: Files, progress: Callable[[int, int], object]) -> Files:
    """The same files, reporting how many of them were read."""
    done = 0

    def read(name: str) -> bytes:
        nonlocal done
        content = files.read(name)
        done += 1
        progress(done, len(files.names))
        return content

    return dataclasses.replace(files, read=read)
