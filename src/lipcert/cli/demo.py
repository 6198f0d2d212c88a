"""``lipcert demo``: the whole story on the embedded digits, with the commands that a user would type.

train → audit → certify → check → attack → report; training ends with freezing. Each command prints
into demo.log of the run folder; the demo itself prints one table and where the report is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = 32


@dataclass(frozen=True)
class Demo:
    """Train on the embedded digits, prove, check, attack, and write the report."""

    epochs: int = 30
    """Passes over the 1,400 training digits."""
    seed: int = 0
    """Random seed."""
    out: Path = Path("runs/demo")
    """Run folder; a number is added if it exists."""
    json: bool = False
    """Print the shares as JSON instead of a table."""

    def run(self) -> int:
        from contextlib import redirect_stderr, redirect_stdout

        from rich.console import Console

        from lipcert.cli.common import emit, radii_table
        from lipcert.errors import positive_int
        from lipcert.records import RunFolder

        positive_int("epochs", self.epochs)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie from 0 to 2^63 − 1; got {self.seed}. Pass a smaller number.")
        import torch

        torch.set_num_threads(1)  # a network this small only waits for a second thread
        folder, told = unused(self.out), Console(stderr=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.with_name(f"{folder.name}.log")
        for words, command in commands(self, folder).items():
            with (
                told.status(words),
                log.open("a", encoding="utf-8") as file,
                redirect_stdout(file),
                redirect_stderr(file),
            ):
                print(f"$ {words}", flush=True)
                code = command()
            told.print(f"{'✓' if code == 0 else '✗'} {words}", highlight=False, soft_wrap=True)
            if code != 0:
                told.print(f"That must not happen; what it said is in {log}", highlight=False, soft_wrap=True)
                return code
        log.replace(folder / "demo.log")
        rows = shares(folder)
        emit(
            {"shares": rows, "report": str(RunFolder(folder).report_file)},
            self.json,
            radii_table(rows, "Digits: accuracy within an L2 radius (%)"),
            "Certified: proved, no change of the image of that L2 norm changes the answer.\n"
            "Attacked: still right after short APGD-CE, PGD and Square attacks, on the first\n"
            f"{POINTS} images only; `lipcert attack` is the full one. One seed, a toy data set.\n"
            f"Report, open it in a browser: {RunFolder(folder).report_file}",
        )
        return 0


def commands(demo: Demo, folder: Path) -> dict[str, Callable[[], int]]:
    """What a user would type, and the same as a call."""
    import shlex

    from lipcert.cli.attack import Attack
    from lipcert.cli.audit import Audit
    from lipcert.cli.certify import Certify
    from lipcert.cli.check import Check
    from lipcert.cli.report import Report
    from lipcert.cli.train import Train

    settings: dict[str, Any] = {
        "model": "sll_nano",
        "data": "digits",
        "epochs": demo.epochs,
        "batch_size": 128,
        "learning_rate": 0.02,
        "offset": 0.7,
        "temperature": 0.1,
        "evaluate_every": max(1, demo.epochs // 6),
        "seed": demo.seed,
        "threads": 1,
    }
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())
    where = shlex.quote(str(folder))
    return {
        f"lipcert train {flags} --out {where}": Train(**settings, out=folder).run,
        f"lipcert audit {where}": Audit(folder).run,
        f"lipcert certify {where}": Certify(folder).run,
        f"lipcert check {where}": Check(folder).run,
        f"lipcert attack {where} --method quick --examples {POINTS}": Attack(
            folder, method="quick", examples=POINTS
        ).run,
        f"lipcert report {where}": Report((folder,)).run,
    }


def unused(folder: Path) -> Path:
    """``folder``, or with the first number after it that makes it new."""
    from itertools import count

    names = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return folder if not folder.exists() else next(name for name in names if not name.exists())


def shares(folder: Path) -> dict[str, dict[str, Any]]:
    """Natural, certified and attacked accuracy of a run folder, from its rows."""
    from lipcert.records import RADII, RunFolder

    run = RunFolder(folder)
    run.check()
    assert run.attacked is not None
    attacked = {row.eps: row for row in run.attacked.rows}
    first = attacked[next(iter(RADII))].natural
    return {
        "certified, all images": {"natural": run.natural, **{n: run.certified(eps) for n, eps in RADII.items()}},
        f"certified, first {POINTS}": {"natural": first, **{name: attacked[name].certified for name in RADII}},
        f"attacked, first {POINTS}": {"natural": first, **{name: attacked[name].attacked for name in RADII}},
    }
