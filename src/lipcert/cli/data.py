"""``lipcert data``: which data sets there are, and how one gets here.

``lipcert data get`` reads the published files, compares their sha256 and writes the prepared form in one step:
a failure changes nothing. What it says about progress goes to stderr, the outcome to stdout.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lipcert.data.catalog import Entry
    from lipcert.data.dataset import ImageData


@dataclass(frozen=True)
class ListData:
    """The named data sets: what they hold, and whether they are prepared."""

    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where prepared data live; $LIPCERT_DATA or ~/.cache/lipcert by default."""
    json: bool = False
    """Print the list as JSON instead of a table."""

    def run(self) -> int:
        import json

        from rich.console import Console
        from rich.table import Table

        from lipcert.data.catalog import CATALOG, data_root, prepared_path

        if self.json:
            listed = {
                known.name: {
                    "classes": known.classes,
                    "images": dict(known.images),
                    "shape": list(known.shape),
                    "prepared": known.name == "digits" or prepared_path(known.name, self.root).is_file(),
                }
                for known in CATALOG.values()
            }
            print(json.dumps(listed, indent=2))
            return 0

        table = Table("name", "classes", "images", "size", "prepared")
        for known in CATALOG.values():
            path = prepared_path(known.name, self.root)
            table.add_row(
                known.name,
                str(known.classes),
                "+".join(f"{count:,}" for count in known.images.values()),
                "×".join(map(str, known.shape)),
                "in the package" if known.name == "digits" else path.name if path.is_file() else "no",
            )
        console = Console()
        console.print(table)
        console.print(
            f"Images: training+test. Prepared data live in {data_root(self.root)}\n"
            "lipcert data get NAME prepares one; a folder of images or an .npz file needs no preparation.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return 0


@dataclass(frozen=True)
class GetData:
    """Prepare a named data set: from files at hand, an installed package, or its home page."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """One of the names that lipcert data list shows."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="PATH")] = None
    """The published files: a folder, a .tar.gz, a .zip. Without it: an installed package, else a download."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where prepared data live; $LIPCERT_DATA or ~/.cache/lipcert by default."""
    json: bool = False
    """Print where it is and its checksums as JSON instead of lines."""

    def run(self) -> int:
        from tempfile import TemporaryDirectory

        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        from lipcert.data.catalog import entry, prepared_path

        known = entry(self.name)
        if known.name == "digits":
            return self.tell(None, {}, ["digits: embedded in the package; nothing to get"])
        path = prepared_path(known.name, self.root)
        console = Console(stderr=True)
        if self.source is None and path.is_file() and self.intact():
            return self.tell(path, {}, [f"{known.name}: already prepared and intact, {path}"])
        columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        with bars as progress, TemporaryDirectory() as folder:
            source = self.source.expanduser() if self.source else find(known, path, Path(folder), progress)
            splits = read_and_store(known, source, self.root, progress)
        lines = [
            f"{known.name} {split}: {len(data):,} images, sha256 {data.sha256.images[:16]}… {outcome(known)}"
            for split, data in splits.items()
        ]
        return self.tell(path, splits, [*lines, f"prepared: {path}"])

    def tell(self, path: Path | None, splits: dict[str, ImageData], lines: list[str]) -> int:
        import json

        if self.json:
            sums = {name: {"images": len(data), "sha256": data.sha256.images} for name, data in splits.items()}
            lines = [json.dumps({"name": self.name, "path": path and str(path), "prepared_now": sums}, indent=2)]
        print("\n".join(lines))
        return 0

    def intact(self) -> bool:
        """Whether what is prepared already can be read; if not, it is prepared again."""
        import sys

        from lipcert.data.registry import SPLITS, load_data

        try:
            for split in SPLITS:
                load_data(self.name, split, root=self.root)
        except (ValueError, OSError) as error:
            print(f"lipcert: {error} Preparing it again.", file=sys.stderr)
            return False
        return True


@dataclass(frozen=True)
class Data:
    """Data sets: list the named ones, or get one ready."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[ListData, tyro.conf.subcommand("list")] | Annotated[GetData, tyro.conf.subcommand("get")]
    ]

    def run(self) -> int:
        return self.command.run()


def find(known: Entry, path: Path, folder: Path, progress: Progress) -> Path:
    """The files of an installed package, or downloaded ones."""
    from functools import partial

    from lipcert.data.fetch import download, installed
    from lipcert.data.store import check_room

    if (found := installed(known)) is not None:
        return found
    check_room(path, known.stored_bytes)
    return download(known, folder, partial(show, progress, progress.add_task(f"fetching {known.name}", total=None)))


def read_and_store(known: Entry, source: Path, root: Path | None, progress: Progress) -> dict[str, ImageData]:
    from functools import partial

    from lipcert.data.registry import prepare

    task = progress.add_task(f"reading {known.name}", total=None)
    splits = prepare(known.name, source, root=root, progress=partial(show, progress, task))
    progress.update(task, total=1, completed=1)
    return splits


def show(progress: Progress, task: TaskID, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total or None)


def outcome(known: Entry) -> str:
    return "as published" if known.sha256 else "recorded"
