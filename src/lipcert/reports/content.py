"""Everything a report says, as one JSON object: the page, the figures and the Markdown only show it.

Shares are in [0, 1], over all certified test images unless a field says otherwise. Curves are sampled at multiples
of 1/255, so that 36/255 is a point of them and no value is interpolated.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from lipcert.records import AttackRow
from lipcert.records import RunFolder as Run
from lipcert.reports.commands import commands, versions
from lipcert.reports.network import Network
from lipcert.reports.pictures import Pictures, TestData
from lipcert.reports.verdict import status, verdict

RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "0.5": 0.5, "1": 1.0}
FARTHEST = 8.0  # beyond it no curve is drawn: 2,040 points
BINS = (0.005, 0.01, 0.02, 0.025, 0.05, 0.1, 0.2, 0.25)
CLAIM = (
    "For each test image with certified radius r, no change of the image of Euclidean (L2) norm up to r alters the "
    "answer of the network: in real arithmetic, and in a float64 evaluation of the stored weights. Images have "
    "values in [0, 1]."
)


def content(parts: list[tuple[Run, Network, TestData, Pictures]]) -> dict[str, Any]:
    """The report of several runs; figures and files are added by whoever writes them."""
    runs = [run for run, *_ in parts]
    radii = radii_of(runs)
    steps = _steps(runs)
    whole = {
        "format": "lipcert-report-1",
        "claim": CLAIM,
        "radii": [{"eps": eps, "radius": radius} for eps, radius in radii.items()],
        "curve_step": 1 / 255,
        "largest_radius": steps / 255,
        "runs": [_run(run, network, data, images, radii, steps) for run, network, data, images in parts],
        "made_with": versions(),
    }
    return dict(json.loads(json.dumps(whole, allow_nan=False)))  # as whoever reads the file will have it


def radii_of(runs: list[Run]) -> dict[str, float]:
    """The usual radii and those that were attacked, ascending."""
    names = {row.radius: row.eps for run in runs if run.attacked for row in run.attacked.rows}
    names |= {radius: eps for eps, radius in RADII.items()}
    return {names[radius]: radius for radius in sorted(names)}


def attack_at(run: Run, radius: float) -> AttackRow | None:
    rows = run.attacked.rows if run.attacked is not None else ()
    return next((row for row in rows if row.radius == radius), None)


def _run(
    run: Run, network: Network, data: TestData, images: Pictures, radii: dict[str, float], steps: int
) -> dict[str, Any]:
    rows = [attack_at(run, radius) for radius in radii.values()]
    return {
        "name": run.name,
        "folder": run.where,
        "data": run.data,
        "model": run.model_name,
        "architecture": run.architecture,
        "parameters": network.parameters,
        "images": len(run.examples) if run.examples is not None else None,
        "status": status(run),
        "verdict": verdict(run),
        "natural": run.natural,
        "certified": [run.certified(radius) for radius in radii.values()],
        "attacked": [row and row.model_dump() for row in rows],
        "attack": run.attacked and run.attacked.model_dump(exclude={"rows", "format"}),
        "median_radius": float(np.median(run.radii[run.correct])) if run.correct.any() else None,
        "curve": [run.certified(step / 255) for step in range(steps + 1)] if run.examples else [],
        "histogram": _histogram(run, steps / 255),
        "training": [{key: _finite(value) for key, value in row.items()} for row in run.metrics],
        "audit": _audit(run),
        "layers": _layers(run, network),
        "most_robust": [_example(row, data) for row in images.most],
        "least_robust": [_example(row, data) for row in images.least],
        "images_missing": images.missing,
        "data_missing": data.missing,
        "commands": commands(run, data.count),
        "config": run.config if run.config is not None else run.imported and run.imported.model_dump(),
        "sha256": run.sha256,
        "data_sha256": data.sha256,
    }


def _steps(runs: list[Run]) -> int:
    """Up to the radius, in 255ths, at which every curve is below 0.2 %: a few far images would squeeze the rest."""
    ends = [float(np.quantile(run.radii, 0.998)) for run in runs if len(run.radii)]
    return max(1, math.ceil(255 * min(FARTHEST, max([*ends, 108 / 255]))))


def _histogram(run: Run, largest: float) -> dict[str, Any] | None:
    """Shares of all images: right answers by radius in equal bins, those beyond the last, and wrong answers."""
    if not len(run.radii):
        return None
    width = next((bin for bin in BINS if largest / bin <= 48), BINS[-1])
    edges = np.arange(math.ceil(largest / width - 1e-9) + 1) * width
    right = run.radii[run.correct]
    counts, _ = np.histogram(right, edges)
    total = len(run.radii)
    return {
        "width": width,
        "shares": (counts / total).tolist(),
        "beyond": float((right > edges[-1]).sum() / total),
        "wrong": float((~run.correct).sum() / total),
    }


def _audit(run: Run) -> dict[str, Any] | None:
    if run.audited is None:
        return None
    record = run.audited.model_dump()
    record["layers"] = [{key: _finite(value) for key, value in row.items()} for row in record["layers"]]
    return {key: _finite(value) for key, value in record.items()}


def _layers(run: Run, network: Network) -> list[dict[str, Any]]:
    """Spectra beside what the audit proved; the share of the squared constant that is allowed, as an estimate."""
    audited = {row.name: row for row in run.audited.layers} if run.audited is not None else {}
    found = []
    for spectrum in network.spectra:
        row = audited.get(spectrum.name)
        upper = row.upper if row is not None else None
        allowed = 1.0 if spectrum.kind == "residual" else upper
        found.append(
            {
                "name": spectrum.name,
                "op": row.op if row is not None else spectrum.kind,
                "kind": spectrum.kind,
                "shape": list(spectrum.shape),
                "grid": spectrum.grid,
                "dead_neurons": spectrum.dead,
                "quantiles": [round(value, 6) for value in spectrum.quantiles],
                "largest_estimate": spectrum.largest_estimate,
                "share_estimate": (spectrum.largest_estimate / allowed) ** 2 if allowed else None,
                "mean_share_estimate": spectrum.mean_share_estimate / allowed**2 if allowed else None,
                "proved_upper": _finite(upper),
            }
        )
    return found


def _example(row: Any, data: TestData) -> dict[str, Any]:
    return {"index": row.index, "label": row.label, "class": data.class_name(row.label), "radius": row.radius}


def _finite(value: Any) -> Any:
    """JSON has no infinity: a constant that nobody bounded is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
