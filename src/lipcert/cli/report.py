"""``lipcert report RUN…``: one HTML page about one run or several, with figures, Markdown and JSON beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from lipcert.reports.write import Written


@dataclass(frozen=True)
class Report:
    """Write one offline page of what runs have proved. Exit 1 if one is refuted."""

    run_folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(name="runs", metavar="RUN")]
    """Run folders, or folders with runs in them, such as a comparison."""
    out: Path | None = None
    """The page, an .html file; by default report.html in the run folder, for several runs in the current folder."""
    json: bool = False
    """Print the content of report.json instead of a summary."""

    def run(self) -> int:
        from lipcert.cli.common import progress
        from lipcert.records import distinct_names
        from lipcert.reports.write import run_folders, write_report
        from lipcert.runs import Run

        alone = len(self.run_folders) == 1
        out = self.out or Run(self.run_folders[0] if alone else Path()).report_file
        if out.suffix != ".html":
            raise ValueError(f"--out must name an .html file, got {out}.")
        folders = run_folders(self.run_folders)
        runs = [Run(folder, name) for folder, name in zip(folders, distinct_names(folders), strict=True)]
        with progress("reporting") as show:
            written = write_report(runs, out, show)
        if self.json:
            print(written.report.model_dump_json(indent=1))
        else:
            print_written(written)
        return 0 if written.ok else 1


def print_written(written: Written) -> None:
    """The summary table, and where everything is."""
    from rich.console import Console
    from rich.markup import escape

    from lipcert.reports.tables import decimals, rich_table

    header = ["run", "images", "natural", *(entry.eps for entry in written.report.radii)]
    lines = [
        [escape(run.name), f"{run.images:,}", *(decimals(share) for share in (run.natural, *run.certified))]
        for run in written.report.runs
    ]
    console = Console()
    console.print(rich_table("Accuracy, natural and certified (%)", header, lines))
    folder = written.page.with_name(f"{written.page.stem}_files")
    console.print(
        f"{written.page}: open it in a browser.\n{folder}: figures as SVG, PNG and PDF; report.md, report.tex, "
        "report.json, robustbench/.",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
