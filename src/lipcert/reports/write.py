"""``write_report``: from run folders to the page and the folder of files beside it.

Every file is written under a temporary name and renamed, the page last: a page that is there has its files. Equal
runs give equal reports, byte for byte but for the PDF files, whose writer orders entries at random: no date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipcert.files import atomic_file
from lipcert.records import RunFolder as Run
from lipcert.reports.content import content
from lipcert.reports.figures import figures
from lipcert.reports.markdown import markdown
from lipcert.reports.network import examine
from lipcert.reports.page import html
from lipcert.reports.pictures import pictures, test_data
from lipcert.reports.render import render
from lipcert.reports.robustbench import robustbench_entry


@dataclass(frozen=True)
class Written:
    """What was written, and whether no audit contradicts it."""

    page: Path
    files: list[Path]
    report: dict[str, Any]
    ok: bool


def write_report(
    runs: Sequence[Run], out: Path, show: Callable[[int, int], object] = lambda done, total: None
) -> Written:
    """Write ``out``, an .html file, and beside it the folder ``<out without .html>_files``.

    Raises:
        ValueError: where a certificate is about other weights than the run has.
    """
    total = 2 * len(runs) + 6
    parts = []
    for done, run in enumerate(runs):
        show(done, total)
        run.check()
        parts.append((run, examine(run), test_data(run), pictures(run)))
    report = content(parts)
    rendered = []
    for done, figure in enumerate(figures(report)):
        show(len(runs) + done, total)
        rendered.append(render(figure))
    names = file_names([run.name for run in runs])
    files = {name: data for one in rendered for name, data in one.files.items()}
    for name, run_content in zip(names, report["runs"], strict=True):
        files[f"robustbench/{name}.json"] = _json(robustbench_entry(report, run_content))
    files["report.md"] = markdown(report, [one.figure for one in rendered]).encode()
    files["report.json"] = _json(report)
    page = html(report, rendered, [images for *_, images in parts])
    folder = out.with_name(f"{out.stem}_files")
    (folder / "robustbench").mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        _write(folder / name, data)
    _write(out, page.encode())
    show(total, total)
    return Written(out, [folder / name for name in files], report, all(run.holds for run in runs))


def file_names(names: list[str]) -> list[str]:
    """Names of runs as names of files: letters, digits and a few signs, none of them twice."""
    found: list[str] = []
    for name in names:
        safe = re.sub(r"[^\w.-]+", "_", name).strip("._") or "run"
        number = 2
        while safe in found:
            safe = f"{safe.rsplit('~', 1)[0]}~{number}"
            number += 1
        found.append(safe)
    return found


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _write(path: Path, data: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)
