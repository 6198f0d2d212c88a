"""What a finished run folder says, and the mean and spread over seeds.

Every figure derives from the rows: certified.jsonl for natural and certified accuracy, attack.json for attacked
accuracy. certified ≤ attacked ≤ natural is checked for every row; a folder that violates it is refused.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipcert.training.checkpoint import load_model

RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "0.5": 0.5, "1": 1.0}


@dataclass(frozen=True)
class Attacked:
    """Shares of the first ``examples`` test images at one radius."""

    examples: int
    natural: float
    certified: float
    attacked: float


@dataclass(frozen=True)
class RunResult:
    """One run: shares of all its test images, and of the attacked ones."""

    natural: float
    certified: dict[str, float]  # by name of the radius
    attacked: dict[str, Attacked]
    parameters: int
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the latter is None for one seed."""

    mean: float
    deviation: float | None

    def percent(self) -> str:
        return f"{100 * self.mean:.1f}" + ("" if self.deviation is None else f" ± {100 * self.deviation:.1f}")


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def read_run(folder: Path) -> RunResult:
    """The figures of a run folder that was trained and certified, and perhaps attacked."""
    rows = [json.loads(line) for line in (folder / "certified.jsonl").read_text(encoding="utf-8").splitlines()]
    natural = sum(row["prediction"] == row["label"] for row in rows) / len(rows)
    certified = {name: sum(row["radius"] > eps for row in rows) / len(rows) for name, eps in RADII.items()}
    spent = _json(folder / "summary.json")["this_process"]
    attacked = {}
    if (folder / "attack.json").is_file():
        for row in _json(folder / "attack.json")["rows"]:
            attacked[row["eps"]] = Attacked(row["examples"], row["natural"], row["certified"], row["attacked"])
    parameters = sum(parameter.numel() for parameter in load_model(folder).parameters())
    result = RunResult(natural, certified, attacked, parameters, spent["cpu_seconds"], spent["peak_bytes"])
    _require_ordered(folder, result)
    return result


def _require_ordered(folder: Path, result: RunResult) -> None:
    wrong = [name for name, share in result.certified.items() if share > result.natural]
    wrong += [name for name, row in result.attacked.items() if not row.certified <= row.attacked <= row.natural]
    if wrong:
        raise ValueError(
            f"{folder} must have certified ≤ attacked ≤ natural accuracy at every radius; got another order at "
            f"{', '.join(wrong)}. Its files do not belong together, or a certificate is wrong: report it."
        )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
