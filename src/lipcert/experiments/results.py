"""The mean and spread of a figure over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lipcert.runs import Run


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the latter is None for one seed."""

    mean: float
    deviation: float | None

    def percent(self) -> str:
        return f"{100 * self.mean:.1f}" + ("" if self.deviation is None else f" ± {100 * self.deviation:.1f}")


def spread(values: Sequence[float | None]) -> Spread:
    """Of the values that are known; there must be one."""
    numbers = [value for value in values if value is not None]
    return Spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None)


def checked(folder: Path) -> Run:
    """A run folder whose files belong together: certified ≤ attacked ≤ natural at every radius."""
    run = Run(folder)
    run.check()
    return run
