"""``lipcert attack RUN``: AutoAttack or PGD on the frozen network, in parts that survive a kill."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lipcert.records import RADII

UNSAID = ("run_folder", "jobs", "cluster", "restart", "json")  # what does not change the record


@dataclass(frozen=True)
class Attack:
    """Attack correct answers without a certificate. Exit 1 if a certified one falls.

    Run the same command again to continue an interrupted attack.
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder of lipcert train or lipcert import."""
    data: str | None = None
    """Name of a data set, or a path. None means the one that the run was trained on."""
    data_root: Path | None = None
    """Folder of prepared data sets."""
    examples: int = 200
    """Number of test images. AutoAttack needs thousands of evaluations for each."""
    eps: tuple[str, ...] = tuple(RADII)
    """L2 radii, as numbers or fractions."""
    method: Literal["autoattack", "pgd", "quick"] = "autoattack"
    """AutoAttack's standard four, PGD with 5 restarts, or a quick look (short APGD-CE, PGD and Square)."""
    all: bool = False
    """Attack the certified answers too; none of them can fall."""
    seed: int = 0
    """Random seed."""
    jobs: int = 1
    """Number of processes, with one thread each; it changes the time only."""
    cluster: str | None = None
    """Address of a Dask scheduler whose workers run the processes instead."""
    restart: bool = False
    """Drop the attack of this method that is in the run folder, and begin again."""
    json: bool = False
    """Print the record as JSON instead of a table."""

    def run(self) -> int:
        from lipcert.attacks.evidence import contradictions
        from lipcert.cli.common import emit, make_table, progress
        from lipcert.runs import Run

        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed must lie between 0 and 2^63 - 1, got {self.seed}.")
        run = Run(self.run_folder)
        with progress("certifying") as certifying, progress("attacking") as show:
            record = run.attack(
                self.method,
                examples=self.examples,
                eps=self.eps,
                everything=self.all,
                seed=self.seed,
                data=self.data,
                data_root=self.data_root,
                jobs=self.jobs,
                cluster=self.cluster,
                restart=self.restart,
                command=self.command(),
                show=lambda done, total, worked: show(done, total),
                certifying=certifying,
            )
        rows = [
            [
                row.eps,
                *(f"{100 * s:.1f}" for s in (row.natural, row.certified, row.attacked)),
                str(row.points_attacked),
            ]
            for row in record.rows
        ]
        header = ["radius", "natural", "certified", "attacked", "points attacked"]
        emit(
            record,
            self.json,
            make_table(f"{record.data}: accuracy within an L2 radius (%)", header, rows),
            f"{record.examples:,} images; {record.method}: {', '.join(record.attacks)}. "
            f"CPU time: {record.cpu_seconds:,.0f} s.",
            *([f"Left out: {'; '.join(record.left_out)}."] if record.left_out else []),
            "No attack can push the accuracy below certified; a stronger one may push it",
            "below attacked.",
        )
        found = run.attack_examples(self.method) or []
        wrong = contradictions([example.model_dump() for example in found])
        for line in wrong:
            print(f"lipcert: {line}", file=sys.stderr)
        return 1 if wrong else 0

    def command(self) -> str:
        """What a user types for this attack, whoever started it."""
        import shlex
        from dataclasses import fields

        from lipcert.reports.commands import flags

        where = self.run_folder.name if self.run_folder.is_absolute() else str(self.run_folder)  # no machine's path
        default = {field.name: field.default for field in fields(self)}
        values = {name: getattr(self, name) for name in default if name not in UNSAID}
        return shlex.join(["lipcert", "attack", where, *flags(values, default)])
