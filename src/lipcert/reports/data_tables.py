"""The numbers behind each figure as a table, for those who read rather than look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lipcert.reports.verdict import percent

MOST_ROWS = 15


@dataclass(frozen=True)
class DataTable:
    """A caption, a header, and rows of text whose first cell names the row."""

    caption: str
    header: list[str]
    rows: list[list[str]]


def data_tables(report: dict[str, Any]) -> dict[str, DataTable]:
    """Figure → its table; the figures of the layers share one per run."""
    runs = report["runs"]
    names = [run["name"] for run in runs]
    found = {
        "certified": DataTable("Certified accuracy at some radii", ["radius", *names], _curve_rows(report)),
        "radii": DataTable("Share of the images by certified radius", ["radius", *names], _histogram_rows(runs)),
        "training": DataTable("Loss, natural and certified accuracy", TRAINING, _training_rows(runs)),
    }
    for position, run in enumerate(runs, start=1):
        caption = f"{run['name']}: singular values and how tight T is (estimates), and the proved constant"
        found[f"layers-{position}"] = DataTable(caption, LAYERS, [_layer(row) for row in run["layers"]])
    return found


def _curve_rows(report: dict[str, Any]) -> list[list[str]]:
    steps = round(report["largest_radius"] * 255)
    every = max(1, -(-steps // MOST_ROWS))
    chosen = sorted({*range(0, steps + 1, every), *(step for step in (36, 72, 108, 255) if step <= steps)})
    return [
        [
            f"{step}/255 = {step / 255:.3f}",
            *(percent(run["curve"][step] if run["curve"] else None, 2) for run in report["runs"]),
        ]
        for step in chosen
    ]


def _histogram_rows(runs: list[dict[str, Any]]) -> list[list[str]]:
    known = [run["histogram"] for run in runs]
    bins: dict[str, Any] = next((one for one in known if one), {"shares": [], "width": 1.0})
    rows = [
        [f"{i * bins['width']:.3g} to {(i + 1) * bins['width']:.3g}"]
        + [percent(one["shares"][i] if one else None, 2) for one in known]
        for i in range(len(bins["shares"]))
    ]
    for label, key in (("beyond", "beyond"), ("wrong answer", "wrong")):
        rows.append([label, *(percent(one[key] if one else None, 2) for one in known)])
    return rows


TRAINING = ["run and epoch", "loss", "natural", "certified 36/255", "certified 1"]


def _training_rows(runs: list[dict[str, Any]]) -> list[list[str]]:
    """At most MOST_ROWS epochs a run, the last one among them."""
    found = []
    for run in runs:
        history = run["training"]
        every = max(1, -(-len(history) // MOST_ROWS))
        for row in [row for row in history if (history[-1]["epoch"] - row["epoch"]) % every == 0]:
            loss = row.get("loss")
            shares = [percent(row.get(key)) for key in ("natural", "certified 36/255", "certified 1")]
            found.append([f"{run['name']}, {row['epoch']}", "–" if loss is None else f"{loss:.4g}", *shares])
    return found


LAYERS = [
    *("layer", "operation", "weight", "frequencies", "dead neurons", "largest singular value"),
    *("share of the allowed", "mean ‖w‖²/T", "proved L"),
]


def _layer(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        row["op"],
        "×".join(map(str, row["shape"])),
        f"{row['grid']}×{row['grid']}" if row["grid"] else "dense",
        str(row["dead_neurons"]),
        *(
            _number(row[key])
            for key in ("largest_estimate", "share_estimate", "mean_share_estimate", "proved_upper")
        ),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.5f}"
