"""``lipcert reproduce TABLE``: a table of the paper with ours beside it; killed at any time, it continues."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Annotated, cast, get_args

import tyro

from lipcert.errors import one_of, positive_int
from lipcert.experiments.paper import PAPER
from lipcert.experiments.scales import ScaleName, Settings, scale_of


@dataclass(frozen=True)
class Reproduce:
    """Make a table of the paper, with its numbers beside ours.

    Run the same command again to continue an interrupted table.

    full: the paper's experiment to the letter, for GPUs.

    cpu: a small network on the same data, at most half an hour on two cores.

    quick: a first look on the embedded digits, about a minute or two.
    """

    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]
    """table1 (CIFAR-10), table2 (CIFAR-100, TinyImageNet), table3 (architectures), table5 (AutoAttack), offsets
    (Table 6), corrected (Table 7: the erratum's three ways of training), inference (Table 4)."""
    scale: Annotated[str, tyro.conf.arg(metavar="full|cpu|quick")] = "cpu"
    """Size of the experiment, see above. The notes below the table say what was scaled."""
    seeds: int | None = None
    """Number of runs of each row. None means three at full scale and one at the others."""
    jobs: int = 2
    """Number of runs at a time, each on one thread."""
    cluster: str | None = None
    """Address of a Dask scheduler whose workers take the runs instead, one per thread of a worker."""
    out: Path | None = None
    """Folder of the table and its runs; runs/reproduce/TABLE by default."""
    restart: bool = False
    """Delete the table in the folder and begin again."""
    data_root: Path | None = None
    """Folder of prepared data sets."""
    json: bool = False
    """Print table.json instead of tables."""

    def run(self) -> int:
        table = one_of("TABLE", self.table, PAPER.tables)
        scale = cast(ScaleName, one_of("--scale", self.scale, get_args(ScaleName)))
        seeds = scale_of(table, scale).seeds if self.seeds is None else positive_int("--seeds", self.seeds)
        positive_int("--jobs", self.jobs)
        settings = Settings(table, scale, seeds, None if self.data_root is None else str(self.data_root))

        from lipcert.cli.common import emit, progress
        from lipcert.cli.compare import say
        from lipcert.experiments.reproduce import reproduce
        from lipcert.files import write_text
        from lipcert.jobs import open_workers
        from lipcert.reports.paper_layout import footnotes, latex_table, markdown, rich_tables

        out = Path("runs/reproduce") / self.table if self.out is None else self.out
        title = f"{self.table} at scale {self.scale}"
        with open_workers(self.jobs, self.cluster, out) as workers, progress("training steps") as show:
            record = reproduce(settings, out, workers, say=say(title), show=show, restart=self.restart)
        for name, content in (("table.md", markdown(record)), ("table.tex", latex_table(record))):
            write_text(out / name, content)
        notes = [fill(note, 80, subsequent_indent="  ") for note in footnotes(record)]
        files = f"As Markdown, LaTeX and JSON: {out}/table.md, .tex, .json"
        emit(record, self.json, *rich_tables(record), *notes, files)
        return 0
