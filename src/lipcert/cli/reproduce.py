"""``lipcert reproduce TABLE``: a table of the paper with ours beside it; killed at any time, it continues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from lipcert.experiments.plan import Job
    from lipcert.experiments.scales import Settings


@dataclass(frozen=True)
class Reproduce:
    """Make a table of the paper, its numbers beside ours. Repeat to continue.

    full: the paper's experiment to the letter, for GPUs.

    cpu: a small network on the same data, at most half an hour on two cores.

    quick: a first look on the embedded digits, about a minute or two.
    """

    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]
    """table1 (CIFAR-10), table2 (CIFAR-100, TinyImageNet), table3 (the architectures), table5 (AutoAttack),
    offsets (Table 6), corrected (Table 7: the erratum's three ways of training), inference (Table 4)."""
    scale: Annotated[str, tyro.conf.arg(metavar="full|cpu|quick")] = "cpu"
    """What is scaled is said below the table."""
    seeds: int | None = None
    """Runs of each row; by default three at full scale and one at the others."""
    jobs: int = 2
    """Runs at a time, each on one thread."""
    out: Path | None = None
    """Folder of the table and its runs; runs/reproduce/TABLE by default."""
    data_root: Path | None = None
    """Where prepared data live."""
    json: bool = False
    """Print table.json instead of tables."""

    def run(self) -> int:
        import json

        settings = self.settings()

        from lipcert.experiments.reproduce import reproduce
        from lipcert.files import write_text
        from lipcert.reports.paper_latex import latex_table
        from lipcert.reports.paper_layout import markdown

        out = Path("runs/reproduce") / self.table if self.out is None else self.out

        def say(words: str) -> None:
            print(f"{self.table} at scale {self.scale}: {words}", file=sys.stderr, flush=True)

        record = reproduce(settings, out, parallel=self.jobs, say=say, show=progress(out))
        for name, content in (("table.md", markdown(record)), ("table.tex", latex_table(record))):
            write_text(out / name, content)
        if self.json:
            print(json.dumps(record, indent=2))
        else:
            print_record(record, out)
        return 0

    def settings(self) -> Settings:
        """The checked flags; ValueError for those that make no sense, before torch is loaded."""
        from typing import cast, get_args

        from lipcert.errors import one_of, positive_int
        from lipcert.experiments.scales import ScaleName, Settings, TableName, scale_of

        table = cast(TableName, one_of("TABLE", self.table, get_args(TableName)))
        scale = cast(ScaleName, one_of("--scale", self.scale, get_args(ScaleName)))
        seeds = scale_of(table, scale).seeds if self.seeds is None else positive_int("--seeds", self.seeds)
        positive_int("--jobs", self.jobs)
        return Settings(table, scale, seeds, None if self.data_root is None else str(self.data_root))


def progress(out: Path) -> Callable[[Sequence[Job], Callable[[], None]], None]:
    """Shows the steps that the jobs have taken while they run: they report whole epochs."""

    def show(jobs: Sequence[Job], run: Callable[[], None]) -> None:
        from threading import Event, Thread

        from lipcert.cli.common import progress as progress_bar
        from lipcert.experiments.budget import steps_done, steps_of

        total, finished = sum(steps_of(job.config) for job in jobs), Event()
        with progress_bar("steps") as update:

            def watch() -> None:
                while not finished.wait(1):
                    update(steps_done(out, jobs), total)

            update(steps_done(out, jobs), total)
            watcher = Thread(target=watch, daemon=True)
            watcher.start()
            try:
                run()
            finally:
                finished.set()
                watcher.join()

    return show


def print_record(record: dict[str, Any], out: Path) -> None:
    from textwrap import fill

    from rich.console import Console

    from lipcert.reports.paper_layout import footnotes, rich_tables

    console = Console()
    for table in rich_tables(record):
        console.print(table)
    for note in footnotes(record):
        console.print(
            fill(note, min(console.width, 80), subsequent_indent="  "),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    console.print(
        f"As Markdown, LaTeX and JSON: {out}/table.md, .tex, .json", highlight=False, markup=False, soft_wrap=True
    )
