"""``write_report``: from runs to the page and the folder of files beside it.

Every file is written under a temporary name and renamed, the page last: a page that is there has its files. Equal
runs give equal reports without a date, byte for byte except for PDF files, whose writer orders entries at random.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lipcert.files import atomic_file
from lipcert.records import RunFolder
from lipcert.reports.figures import figures
from lipcert.reports.report import Report, describe
from lipcert.reports.robustbench import robustbench_entry
from lipcert.reports.templates import fill, read_packaged
from lipcert.reports.theme import COLORS, COMPACT, WIDE, Drawing, render, run_style
from lipcert.runs import Run

SECTIONS = {
    "summary": "Summary",
    "guide": "How to read this",
    "verify": "Verify the certificate",
    "certified": "Accuracy by radius",
    "classes": "Classes",
    "radii": "Radii",
    "images": "Test images",
    "layers": "Layers",
    "training": "Training",
    "reproduce": "Reproduce",
}


@dataclass(frozen=True)
class Written:
    """What was written, and whether no audit contradicts it."""

    page: Path
    files: list[Path]
    report: Report
    ok: bool


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The run folders among ``paths``, and all runs in other folders, such as a comparison. Files are ignored.

    Raises:
        ValueError: if there is no path, or a folder without a run.
    """
    folders = []
    for path in paths:
        if not path.is_dir():
            if path.is_file() and len(paths) > 1:
                continue  # cmp/runs/* matches the logs and the settings beside the runs too
            raise ValueError(f"{path} is not a run folder. Train one with lipcert train.")
        inside = path / "runs" if (path / "runs").is_dir() else path  # beside runs/ a comparison has its trials
        here = [path] if RunFolder(path).exists else sorted(file.parent for file in inside.glob("*/run.json"))
        if not here:
            RunFolder(path).require()  # says what is wrong
        folders += here
    if not folders:
        raise ValueError("Name at least one run folder: lipcert report RUN.")
    return folders


def write_report(
    runs: Sequence[Run], out: Path, show: Callable[[int, int], object] = lambda done, total: None
) -> Written:
    """Write ``out``, an .html file, and beside it the folder ``<out without .html>_files``.

    Raises:
        ValueError: where the files of a run contradict each other; nothing is written.
    """
    total = 2 * len(runs) + 6
    report = describe(runs, lambda done: show(done, total))
    drawings = []
    for done, figure in enumerate(figures(report)):
        show(len(runs) + done, total)
        drawings.append(render(figure))
    files = {name: data for drawing in drawings for name, data in drawing.files.items()}
    proved = [run for run in report.runs if run.kind == "deterministic"]
    for name, run in zip(file_names([run.name for run in proved]), proved, strict=True):
        entry = json.dumps(robustbench_entry(report, run), indent=1, ensure_ascii=False)
        files[f"robustbench/{name}.json"] = f"{entry}\n".encode()
    for name in ("report.md", "report.tex"):
        files[name] = fill(name, report=report, figures=[drawing.figure for drawing in drawings]).encode()
    files["report.json"] = f"{report.model_dump_json(indent=1)}\n".encode()
    page = _page(report, drawings)
    folder = out.with_name(f"{out.stem}_files")
    (folder / "robustbench").mkdir(parents=True, exist_ok=True)
    for path, data in (*((folder / name, data) for name, data in files.items()), (out, page.encode())):
        with atomic_file(path) as temporary:
            temporary.write_bytes(data)
    show(total, total)
    return Written(out, [folder / name for name in files], report, all(run.holds for run in runs))


def _page(report: Report, drawings: Sequence[Drawing]) -> str:
    """One HTML file that needs no network: its policy forbids every request, and every script but ours."""
    script = read_packaged("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    curves = {  # what the sliders need
        "steps": round(report.largest_radius * 255),
        "widths": {"wide": WIDE, "compact": COMPACT},
        "runs": [
            {
                "name": run.name,
                "attacks": [
                    [row.radius, row.eps, row.examples, row.certified, row.attacked] for row in run.attacked
                ],
                "classes": [{"images": c.images, "correct": c.correct, "levels": c.levels} for c in run.classes],
            }
            for run in report.runs
        ],
    }
    return fill(
        "report.html",
        report=report,
        runs=report.runs,
        styles=[run_style(position) for position in range(len(report.runs))],
        figures={drawing.figure.name: drawing for drawing in drawings},
        colors=COLORS,
        sections=SECTIONS,
        curves=curves,
        script=script,
        script_hash=f"sha256-{digest}",
        style=read_packaged("report.css"),
    )


def file_names(names: Sequence[str]) -> list[str]:
    """Names of runs as names of files: letters, digits and a few signs, none of them twice."""
    chosen: list[str] = []
    for name in names:
        safe = re.sub(r"[^\w.-]+", "_", name).strip("._") or "run"
        candidates = (safe, *(f"{safe}~{number}" for number in range(2, len(names) + 2)))
        chosen.append(next(candidate for candidate in candidates if candidate not in chosen))
    return chosen
