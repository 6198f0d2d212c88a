"""``lipcert demo``: the whole story on the embedded digits, with the commands that a user would type.

train → audit → certify → check → attack → report; training ends with freezing. Each command prints
into demo.log of the run folder; the demo itself prints one table and where the report is.
"""

from __future__ import annotations

import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from lipcert.cli import run
from lipcert.cli.common import emit, radii_table
from lipcert.errors import positive_int
from lipcert.records import RADII, RunFolder

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
        from rich.console import Console

        positive_int("epochs", self.epochs)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie from 0 to 2^63 − 1; got {self.seed}. Pass a smaller number.")
        import torch

        torch.set_num_threads(1)  # a network this small only waits for a second thread
        folder, terminal = unused(self.out), Console(stderr=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        log, done = folder.with_name(f"{folder.name}.log"), RunFolder(folder)
        for words in self.commands(str(folder)):
            command = shlex.join(["lipcert", *words])
            with (
                terminal.status(command),
                log.open("a", encoding="utf-8") as file,
                redirect_stdout(file),
                redirect_stderr(file),
            ):
                print(f"$ {command}", flush=True)
                code = run(words)
            terminal.print(f"{'✗' if code else '✓'} {command}", highlight=False, soft_wrap=True)
            if code:
                terminal.print(f"This must not happen. Its output is in {log}", highlight=False, soft_wrap=True)
                return int(code)
        log.replace(folder / "demo.log")
        rows = shares(done)
        emit(
            {"shares": rows, "report": str(done.report_file)},
            self.json,
            radii_table(rows, "Digits: accuracy within an L2 radius (%)"),
            "Certified: proved, no change of the image of that L2 norm changes the answer.\n"
            "Attacked: still right after short APGD-CE, PGD and Square attacks, on the first\n"
            f"{POINTS} images only; `lipcert attack` is the full one. One seed, a toy data set.\n"
            f"Report, open it in a browser: {done.report_file}",
        )
        return 0

    def commands(self, folder: str) -> list[list[str]]:
        """What a user would type, without the word lipcert."""
        settings = {
            "model": "sll_nano",
            "data": "digits",
            "epochs": self.epochs,
            "batch-size": 128,
            "learning-rate": 0.02,
            "offset": 0.7,
            "temperature": 0.1,
            "evaluate-every": max(1, self.epochs // 6),
            "seed": self.seed,
            "threads": 1,
        }
        flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return [
            ["train", *flags, "--out", folder],
            ["audit", folder],
            ["certify", folder],
            ["check", folder],
            ["attack", folder, "--method", "quick", "--examples", str(POINTS)],
            ["report", folder],
        ]


def unused(folder: Path) -> Path:
    """``folder``, or with the first number after it that makes it new."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return folder if not folder.exists() else next(name for name in names if not name.exists())


def shares(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Natural, certified and attacked accuracy of a run folder, from its rows."""
    run = folder.check()
    assert run.attacked is not None
    attacked = {row.eps: row for row in run.attacked.rows}
    first = attacked[next(iter(RADII))].natural
    return {
        "certified, all images": {"natural": run.natural, **{n: run.certified(eps) for n, eps in RADII.items()}},
        f"certified, first {POINTS}": {"natural": first, **{name: attacked[name].certified for name in RADII}},
        f"attacked, first {POINTS}": {"natural": first, **{name: attacked[name].attacked for name in RADII}},
    }
