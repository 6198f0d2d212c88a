"""``lipcert compare``: methods side by side at equal budget, from one command that can be killed and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from pydantic import ConfigDict, Field

from lipcert.experiments.plan import Comparison

if TYPE_CHECKING:
    from lipcert.experiments.compare import Row


class Compare(Comparison):
    """Compare methods at equal budget, each at its best rate. Repeat to continue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: Path = Path("runs/comparison")
    """Folder of the comparison; every run in it is a run folder."""
    attack: Literal["none", "quick", "pgd", "autoattack"] = "pgd"
    """Attack on each run of the table."""
    attack_examples: int = Field(default=100, ge=1)
    """Test images that are attacked."""
    jobs: int = Field(default=1, ge=1)
    """Runs at a time, each on one thread."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the rows as JSON instead of tables."""

    def run(self) -> int:
        import json

        from lipcert.experiments.compare import compare, plain
        from lipcert.experiments.runner import Stage
        from lipcert.models.presets import model_spec

        plan = Comparison(**self.model_dump(include=set(Comparison.model_fields)))
        for method in plan.methods:
            model_spec(f"{method}_{plan.size}")  # an unknown name is said before anything starts
        stages = [Stage("certify", "certified.jsonl"), Stage("audit", "audit.json")]
        if self.attack != "none":
            flags = ("--method", self.attack, "--examples", str(self.attack_examples))
            stages.append(Stage("attack", "attack.json", flags))
        with _Bar() as bar:
            rows = compare(plan, self.out, stages=tuple(stages), parallel=self.jobs, show=bar.show)
        if self.as_json:
            print(json.dumps([plain(row) for row in rows], indent=2))
        else:
            print_rows(rows, self.out)
        return 0


class _Bar:
    """Phases on stderr, with the time they will take."""

    def __enter__(self) -> _Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=Console(stderr=True))
        self.tasks: dict[str, object] = {}
        return self

    def show(self, phase: str, done: int, total: int) -> None:
        self.progress.start()  # once; what is refused before shows nothing but why
        if phase not in self.tasks:
            self.tasks[phase] = self.progress.add_task(phase, total=total)
        self.progress.update(self.tasks[phase], completed=done, total=total)  # type: ignore[arg-type]

    def __exit__(self, *exception: object) -> None:
        if self.tasks:  # one that never started would still print an empty line
            self.progress.stop()


def print_rows(rows: list[Row], out: Path) -> None:
    from rich.console import Console

    from lipcert.reports.tables import rich_table

    console = Console()
    for title, header, lines in tables(rows):
        console.print(rich_table(title, header, lines))
    console.print(f"Runs, rates and costs: {out}", highlight=False, soft_wrap=True)


def tables(rows: list[Row]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Accuracy, attacked accuracy and cost of each data set: title, header, lines."""
    from lipcert.experiments.results import RADII

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
                        row.method,
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
