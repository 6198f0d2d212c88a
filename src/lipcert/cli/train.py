"""``lipcert train``: one run, from its flags or from a config file, into a folder that can be resumed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from pydantic import ConfigDict

from lipcert.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "1": 1.0}


class Train(TrainConfig):
    """Train a certified network. Interrupt it at any time; --resume continues bit for bit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: Path = Path("runs/latest")
    """The run folder: config, metrics, weights, state."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its own config."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A config.json whose values become the defaults of the other flags."""

    def settings(self) -> TrainConfig:
        return TrainConfig(**self.model_dump(exclude={"out", "resume", "config"}))

    def run(self) -> int:
        import json

        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from lipcert.data.registry import load_data
        from lipcert.training.loop import Diverged, Step, train

        settings = self.settings()
        if self.resume:
            stored = self.out / "config.json"
            if settings != TrainConfig():
                raise ValueError("--resume takes its settings from the run folder; got other flags too. Drop them.")
            if not stored.is_file():
                raise ValueError(f"--resume needs a run in {self.out}; got no config.json there. Check --out.")
            settings = TrainConfig(**json.loads(stored.read_text(encoding="utf-8")))
        elif self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ValueError(
                f"--out must be a new or empty folder; got {self.out}, which is not. Choose another, or "
                "add --resume."
            )
        data = (
            load_data(settings.data, "train", root=settings.data_root),
            load_data(settings.data, "test", root=settings.data_root),
        )
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
        )
        with Progress(*columns, console=Console(stderr=True), disable=not _first_process()) as progress:
            task = progress.add_task(settings.model, total=None, loss=float("nan"))

            def show(step: Step) -> None:
                epoch = f"epoch {step.epoch + 1}/{settings.epochs}"
                progress.update(
                    task,
                    total=step.total,
                    completed=step.step,
                    loss=step.loss,
                    description=f"{settings.model} {epoch}",
                )

            try:
                outcome = train(settings, self.out, data, certified_sums, resume=self.resume, show=show)
            except Diverged as error:
                print(f"lipcert: {error}", file=sys.stderr)
                return 1
        if not _first_process():
            return 0
        if not outcome.complete:
            print(f"Interrupted at step {outcome.step}; saved. Resume with:")
            print(f"  lipcert train --resume --out {shlex.quote(str(self.out))}")
            return 0
        Console().print(_table(outcome.metrics[-1], self.out), highlight=False)
        return 0


def parse_train(arguments: list[str]) -> Train:
    """The flags of ``lipcert train``; values of a --config file take the place of the defaults."""
    import json

    from pydantic import ValidationError

    default = Train()
    for position, word in enumerate(arguments):
        if word == "--config" or word.startswith("--config="):
            name = word.partition("=")[2] or " ".join(arguments[position + 1 : position + 2])
            path = Path(name)
            if not path.is_file():
                raise ValueError(f"--config must name a config.json; got {name or 'nothing'}. Check the path.")
            try:
                default = Train(**json.loads(path.read_text(encoding="utf-8")), config=path)
            except (json.JSONDecodeError, TypeError, ValidationError) as error:
                raise ValueError(
                    f"{path}: {one_line_of(error)}. See lipcert train --help for the fields."
                ) from None
    return tyro.cli(Train, default=default, args=arguments, prog="lipcert train")


def one_line_of(error: Exception) -> str:
    """A pydantic or JSON error in one line: the first thing that is wrong."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0]


def certified_sums(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Natural and certified hits of one batch, in real arithmetic, for nn.Sequential(backbone, head)."""
    import lipcert as lc
    from lipcert.certification.radius import certified_radii

    backbone, head = model.children()
    logits = model(inputs)
    assert isinstance(head, lc.NormalizedHead)  # what models.build makes
    radii = certified_radii(logits, labels, head.pairwise_bound() * lc.lipschitz_bound(backbone))
    certified = {f"certified {name}": radii > radius for name, radius in RADII.items()}
    return {"natural": logits.argmax(dim=1) == labels, **certified}


def _first_process() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def _table(row: dict[str, float], out: Path) -> str:
    figures = "  ".join(
        f"{name} {100 * row[name]:.1f} %" for name in ("natural", *(f"certified {r}" for r in RADII))
    )
    return f"{figures}\n{out}"
