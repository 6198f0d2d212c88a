"""A table of the paper with ours beside it: the runs that it needs, then one record from which all else is made.

The record, table.json, has the paper's numbers and ours in the same units, what was scaled, every config and every
command. A killed table continues where it was; finished runs are not repeated, and the record is the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lipcert.experiments.accuracies import Show, accuracies
from lipcert.experiments.paper import PAPER
from lipcert.experiments.scales import Settings, scaled
from lipcert.experiments.untrained import architectures, inference
from lipcert.files import write_json

FORMAT = "lipcert-reproduce-1"


def reproduce(
    settings: Settings,
    out: Path,
    *,
    parallel: int = 1,
    say: Callable[[str], object] = lambda text: None,
    show: Show = lambda jobs, run: run(),
) -> dict[str, Any]:
    """Run what is missing in ``out``, write table.json and return it.

    Args:
        say: told, before anything is trained, how long it will take.
        show: called with the jobs and a function that runs them; may show progress meanwhile.
    """
    _same_settings(settings, out)
    paper, changed = PAPER[settings.table], scaled(settings)
    columns, notes = paper.columns, list(paper.notes)
    if settings.table == "table3":
        columns, rows = architectures()
    elif settings.table == "inference":
        rows, more = inference(settings, out)
        changed += more
    else:
        rows, more = accuracies(settings, out, parallel, say, show)
        notes += more
    record = {
        "format": FORMAT,
        "table": settings.table,
        "scale": settings.scale,
        "seeds": settings.seeds,
        "paper": {"number": paper.number, "label": paper.label, "caption": paper.caption},
        "stubs": list(paper.stubs),
        "columns": list(columns),
        "side_by_side": paper.side_by_side,
        "rows": rows,
        "scaled": changed,
        "notes": notes,
    }
    write_json(out / "table.json", record)
    return record


def _same_settings(settings: Settings, out: Path) -> None:
    path, now = out / "plan.json", asdict(settings)
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored != now:
            changed = ", ".join(name for name in now if stored.get(name) != now[name])
            raise ValueError(
                f"{out} holds a table with other settings ({changed}); got changed ones. Continue it as it was, or "
                "choose another --out."
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out must be new, empty or such a table; got {out}, which is none. Choose another.")
    else:
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, now)
