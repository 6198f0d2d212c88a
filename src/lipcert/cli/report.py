"""``lipcert report RUN…``: one HTML page about one run or several, and a folder of figures and tables beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Report:
    """Write one offline page about runs. Exit 1 if an audit refutes one of them."""

    run_folders: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(name="runs", metavar="RUN [RUN ...]", help_behavior_hint="(required)"),
    ]
    """Run folders, or folders with runs in them, such as a comparison."""
    out: Path | None = None
    """The page, an .html file. By default report.html in the named folder, or here if there are several."""
    json: bool = False
    """Print the content of report.json instead of a summary."""

    def run(self) -> int:
        import json

        from lipcert.cli.common import emit, make_table, progress
        from lipcert.records import distinct_names
        from lipcert.reports.tables import decimals
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
        report = written.report
        lines = [
            [run.name, f"{run.images:,}", *(decimals(share) for share in (run.natural, *run.certified))]
            for run in report.runs
        ]
        header = ["run", "images", "natural", *(entry.eps for entry in report.radii)]
        emit(
            json.loads(report.model_dump_json()),  # null where a number is not finite
            self.json,
            make_table("Accuracy, natural and certified (%)", header, lines),
            *(f"Note: {run.name}: {run.unfinished}." for run in report.runs if run.unfinished),
            f"{out}: open it in a browser.",
            f"{out.with_name(f'{out.stem}_files')}: figures as SVG, PNG and PDF; report.md, report.tex, "
            "report.json and robustbench/.",
        )
        return 0 if written.ok else 1
