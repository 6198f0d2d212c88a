"""``lipcert compare``: methods side by side at equal budget, from one command that can be killed and repeated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from pydantic import ConfigDict, Field

from lipcert.experiments.comparison import Comparison, recipe

if TYPE_CHECKING:
    from lipcert.experiments.compare import Row


class Compare(Comparison):
    """Compare methods at equal budget, each at its best learning rate.

    Run the same command again to continue an interrupted comparison.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: Path = Path("runs/comparison")
    """Folder of the comparison; every run in it is a run folder."""
    attack: Literal["none", "quick", "pgd", "autoattack"] = "pgd"
    """Attack on each run of the table."""
    attack_examples: int = Field(default=100, ge=1)
    """Number of test images to attack."""
    jobs: int = Field(default=1, ge=1)
    """Number of runs at a time, each on one thread."""
    cluster: str | None = None
    """Address of a Dask scheduler whose workers take the runs instead, one per thread of a worker."""
    restart: bool = False
    """Delete the comparison in the folder and begin again."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the rows as JSON instead of tables."""

    def run(self) -> int:
        from dataclasses import asdict

        from lipcert.cli.common import emit, make_table, progress
        from lipcert.experiments.compare import compare
        from lipcert.experiments.plan import AUDIT, CERTIFY, attack_stage
        from lipcert.jobs import open_workers
        from lipcert.models.presets import model_spec

        plan = Comparison(**self.model_dump(include=set(Comparison.model_fields)))
        for method in plan.methods:
            model_spec(f"{recipe(method).model}_{plan.size}")  # an unknown name is said before anything starts
        attacks = [attack_stage(self.attack, self.attack_examples)] if self.attack != "none" else []
        with open_workers(self.jobs, self.cluster, self.out) as workers, progress("training steps") as show:
            stages = (CERTIFY, AUDIT, *attacks)
            rows = compare(
                plan, self.out, workers, stages=stages, say=say("compare"), show=show, restart=self.restart
            )
        shown = [make_table(*table) for table in tables(rows)]
        emit(
            [asdict(row) for row in rows], self.as_json, *shown, *notes(rows), f"Runs, rates and costs: {self.out}"
        )
        return 0


def say(title: str) -> Callable[[str], None]:
    """Prints what is about to happen, on a terminal and into a log alike."""
    return lambda words: print(f"{title}: {words}", file=sys.stderr, flush=True)


def notes(rows: list[Row]) -> list[str]:
    """What must be known before rows are compared."""
    chance = sorted({(row.method, row.images, row.probability) for row in rows if row.probability is not None})
    return [
        fill(
            f"{method} is probabilistic: its accuracies are those of a smoothed classifier on {images} images, and "
            f"each of its radii holds with probability at least {probability}. The others are proved.",
            80,
        )
        for method, images, probability in chance
    ]


def name(row: Row) -> str:
    """The method, with what must not be overlooked."""
    return row.method if row.probability is None else f"{row.method} (probabilistic)"


def tables(rows: list[Row]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Accuracy, attacked accuracy and cost of each data set: title, header, lines."""
    from lipcert.records import RADII

    made = []
    for data in dict.fromkeys(row.data for row in rows):
        mine = [row for row in rows if row.data == data]
        fewest, most = min(row.seeds for row in mine), max(row.seeds for row in mine)
        seeds = f"{most} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"
        made.append(
            (
                f"{data}: accuracy, natural and certified (%), {seeds}",
                ["method", "natural", *(name for name in RADII if name != "0.5")],
                [
                    [
                        name(row),
                        row.natural.percent(),
                        *(row.certified[name].percent() for name in RADII if name != "0.5"),
                    ]
                    for row in mine
                ],
            )
        )
        if any(row.attacked for row in mine):
            names = list(next(row.attacked for row in mine if row.attacked))
            made.append(
                (
                    f"{data}: accuracy under attack (%), first {max(row.attack_examples for row in mine)} images",
                    ["method", "natural", *names],
                    [
                        [
                            row.method,
                            "–" if row.attacked_natural is None else row.attacked_natural.percent(),
                            *(row.attacked[name].percent() if name in row.attacked else "–" for name in names),
                        ]
                        for row in mine
                    ],
                )
            )
        made.append(
            (
                f"{data}: cost (CPU time of one thread)",
                ["method", "rate", "steps", "parameters", "step", "inference", "memory"],
                [
                    [
                        row.method,
                        f"{row.learning_rate:g}",
                        str(row.steps),
                        f"{row.parameters / 1e6:.2f} M",
                        f"{1000 * row.step_seconds:.0f} ms",
                        f"{1000 * row.inference_seconds:.0f} ms",
                        f"{row.peak_bytes / 1e9:.2f} GB",
                    ]
                    for row in mine
                ],
            )
        )
    return made
