"""What a finished run folder says, and the mean and spread over seeds.

Every figure derives from the rows: certified.jsonl for natural and certified accuracy, attack.json for attacked
accuracy. certified ≤ attacked ≤ natural is checked for every row; a folder that violates it is refused.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lipcert.records import RADII as RADII
from lipcert.records import RunFolder
from lipcert.training.checkpoint import load_model


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
    run = RunFolder(folder)
    run.check()
    assert run.natural is not None
    certified = {name: run.certified(radius) or 0.0 for name, radius in RADII.items()}
    attack = run.attacked
    attacked = {
        row.eps: Attacked(row.examples, row.natural, row.certified, row.attacked)
        for row in (attack.rows if attack is not None else ())
    }
    parameters = sum(parameter.numel() for parameter in load_model(folder).parameters())
    return RunResult(run.natural, certified, attacked, parameters, run.record.cpu_seconds, run.record.peak_bytes)
