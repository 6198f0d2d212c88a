"""From a name or a path to ``ImageData``, and from the files of a data set to its prepared form.

Names are looked up in the catalog and read from the store; a path may be anything a reader recognizes. A name
never depends on the current folder: a folder called ``cifar10`` is ``./cifar10``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lipcert.data import npz, tables
from lipcert.data.catalog import CATALOG, Entry, entry, prepared_path, unknown
from lipcert.data.dataset import ImageData, Split
from lipcert.data.files import Files, open_files
from lipcert.data.readers import find_images, reader
from lipcert.errors import DataNotFound, one_of

SPLITS: tuple[Split, Split] = ("train", "test")
Progress = Callable[[int, int], object]  # done, total


def load_data(
    name_or_path: str | os.PathLike[str],
    split: Split,
    *,
    root: str | os.PathLike[str] | None = None,
    label: str | None = None,
) -> ImageData:
    """Return the training or the test images of a named data set or of a path, or the rows of a table.

    Args:
        name_or_path: a name of the catalog, or a folder, an archive, an ``.npz`` file, or a table: ``.csv`` or
            ``.rda``.
        split: "train" or "test".
        root: where prepared data live; $LIPCERT_DATA or ~/.cache/lipcert by default.
        label: the column of a table that holds the classes.
    """
    one_of("split", split, SPLITS)
    name = os.fspath(name_or_path)
    if label is not None and not tables.is_table(name):
        raise ValueError(f"a label is a column of a .csv or .rda file; got {name}. Leave it out.")
    if name in tables.FROM_SCIKIT_LEARN and isinstance(name_or_path, str):
        return tables.from_scikit_learn(name, split)
    if name in CATALOG and isinstance(name_or_path, str):
        path = prepared_path(name, root)
        if not path.exists():
            raise DataNotFound(
                f"{name} is not prepared: there is no {path}. Run lipcert data get {name}, "
                "or set LIPCERT_DATA to the folder that has it."
            )
        data = npz.read(path, split)
        verify(CATALOG[name], data)
        return data
    path = Path(name).expanduser()
    if not path.exists():
        is_path = not isinstance(name_or_path, str) or "/" in name or os.sep in name or path.suffix
        raise DataNotFound(
            f"{path}: there is no such folder, archive or .npz file. Check the path." if is_path else unknown(name)
        )
    if path.suffix == ".npz":
        return npz.read(path, split)
    if tables.is_table(name):
        return tables.read(path, label, split)
    with open_files(path) as files:
        return reader(files)(files, split)


def prepare(
    name: str,
    source: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, ImageData]:
    """Read a named data set from its files, verify it, and store it; what was stored before stays until then."""
    known = entry(name)
    target = prepared_path(name, root)
    if known.embedded:
        raise ValueError(f"{name} comes with the package and is never prepared from files. Use it by its name.")
    npz.check_room(target, known.stored_bytes)
    if source.suffix == ".npz":
        found: dict[str, ImageData] = {split: npz.read(source, split) for split in SPLITS}
    else:
        with open_files(source) as files:
            counted = _counted(files, progress)
            found = {split: reader(files)(counted, split) for split in SPLITS}
    for split, data in found.items():
        found[split] = dataclasses.replace(data, name=name, classes=known.class_names or data.classes)
        verify(known, found[split])
    npz.save(target, found)
    return found


def prepare_images(
    source: Path,
    target: Path,
    size: tuple[int, int],
    *,
    gray: bool = False,
    progress: Progress = lambda done, total: None,
) -> dict[str, ImageData]:
    """Resize a folder or an archive of images, once, and store them; they need not fit into memory.

    Args:
        source: ``train/<class>/*.jpg`` and ``test/<class>/*.jpg``.
        target: the ``.npz`` file to write. ``load_data`` maps it into memory.
        size: height and width. Where the proportions differ, the middle of an image is cut out.
        gray: store one channel instead of three.
        progress: called with the number of images read and the number of files.
    """
    from lipcert.data.images import decode_resized

    if target.suffix != ".npz":
        raise ValueError(f"{target}: the prepared file must end in .npz.")
    with open_files(source) as files:
        counted = _counted(files, progress)
        splits: dict[str, npz.Blocks] = {}
        for split in SPLITS:
            names, labels, classes = find_images(files, split)
            shape = (len(names), 1 if gray else 3, *size)
            images = decode_resized(counted, names, size, gray=gray)
            splits[split] = (shape, (np.broadcast_to(image, shape[1:]) for image in images), labels)
        npz.check_room(target, sum(int(np.prod(shape)) for shape, _, _ in splits.values()))
        npz.write(target, classes, splits)
    return {split: npz.read(target, split) for split in SPLITS}


def verify(known: Entry, data: ImageData) -> None:
    """Refuse data that is not the published data set: sizes first, then sha256."""
    expected = (known.images[data.split], known.shape, known.classes)
    found = (len(data), data.image_shape, len(data.classes))
    if found != expected:
        raise ValueError(
            f"{data.name} {data.split}: expected {_size(*expected)}; got {_size(*found)}. "
            "To use other data, give its path instead of a name."
        )
    for part, want in zip(("images", "labels"), (known.sha256 or {}).get(data.split, ()), strict=False):
        if (got := getattr(data.sha256, part)) != want:
            raise ValueError(
                f"{data.name} {data.split} {part}: expected sha256 {want[:12]}…, got {got[:12]}…. "
                "The copy is damaged, changed or compressed with loss: fetch it again."
            )


def _size(images: int, shape: tuple[int, ...], classes: int) -> str:
    return f"{images:,} images {'×'.join(map(str, shape))} of {classes} classes"


def _counted(files: Files, progress: Progress) -> Files:
    """The same files, reporting how many of them were read."""
    done = 0

    def read(name: str) -> bytes:
        nonlocal done
        content = files.read(name)
        done += 1
        progress(done, len(files.names))
        return content

    return dataclasses.replace(files, read=read)
