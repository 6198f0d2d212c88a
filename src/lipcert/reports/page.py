"""The page: one HTML file that asks the network for nothing. Text from a run is escaped; only our script may run.

The policy in its head forbids every request and every script but the one whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from lipcert.reports.data_tables import data_tables
from lipcert.reports.pictures import Pictures
from lipcert.reports.render import COMPACT, WIDE, Rendered
from lipcert.reports.theme import COLORS, MARKERS, SHAPES, dash, run_color
from lipcert.reports.verdict import percent

SECTIONS = {
    "summary": "Summary",
    "certified": "Certified accuracy",
    "radii": "Radii",
    "training": "Training",
    "audit": "Audit",
    "images": "Test images",
    "layers": "Layers",
    "reproduce": "Reproduce",
}


def html(report: dict[str, Any], rendered: list[Rendered], images: list[Pictures]) -> str:
    """The whole page."""
    environment = Environment(
        loader=FunctionLoader(_packaged),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "constant": constant,
        "short": short,
        "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        "count": lambda number: f"{number:,}",
        "millions": lambda number: f"{number / 1e6:.2g} M",
    }
    script = _packaged("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    figures = {one.figure.name: one for one in rendered}
    return environment.get_template("report.html.jinja").render(
        report=report,
        runs=report["runs"],
        styles=[_style(position) for position in range(len(report["runs"]))],
        figures=figures,
        spectra=[one for name, one in figures.items() if name.startswith("spectra-")],
        tables=data_tables(report),
        pictures=images,
        colors=COLORS,
        sections=SECTIONS,
        curves=_curves(report),
        script=script,
        script_hash=f"sha256-{digest}",
        style=_packaged("report.css"),
    )


def constant(value: float | None) -> str:
    """A Lipschitz constant; nobody bounded it where it is None."""
    return "∞" if value is None else f"{value:.9f}"


def short(radius: float) -> str:
    """Three decimals, or two digits of a radius that has none of them."""
    return f"{radius:.3f}" if radius >= 0.01 or not radius else f"{radius:.2g}"


def _style(position: int) -> dict[str, Any]:
    lengths = dash(position)
    return {
        "color": run_color(position),
        "dash": "none" if lengths == [1, 0] else " ".join(map(str, lengths)),
        "marker": MARKERS[SHAPES[position % len(SHAPES)]],
    }


def _curves(report: dict[str, Any]) -> dict[str, Any]:
    """What the readout under the curves needs."""
    runs = [
        {
            "curve": [round(share, 6) for share in run["curve"]],
            "attacks": [
                [row["radius"], row["attacked"], row["eps"], row["examples"]] for row in run["attacked"] if row
            ],
        }
        for run in report["runs"]
    ]
    return {
        "steps": round(report["largest_radius"] * 255),
        "widths": {"wide": WIDE, "compact": COMPACT},
        "runs": runs,
    }


def _packaged(name: str) -> str:
    return (resources.files("lipcert.reports") / name).read_text(encoding="utf-8")
