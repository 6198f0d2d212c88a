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

    from lipcert.training.loop import CountHits, Step

RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "1": 1.0}


class Train(TrainConfig):
    """Train a certified network. Interrupted, --resume continues it bit for bit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: Path = Path("runs/latest")
    """The run folder: config, metrics, weights, state."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its own config."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A config.json whose values become the defaults of the other flags."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the last row as JSON instead of the table."""

    def settings(self) -> TrainConfig:
        return TrainConfig(**self.model_dump(include=set(TrainConfig.model_fields)))

    def run(self) -> int:
        import json

        from lipcert.data.registry import load_data
        from lipcert.training.loop import Diverged, train

        settings = self.settings()
        if self.resume:
            stored = self.out / "config.json"
            if settings != TrainConfig():
                raise ValueError("--resume takes its settings from the run folder; got other flags too. Drop them.")
            if not stored.is_file():
                raise ValueError(f"--resume needs a run in {self.out}; got no config.json there. Check --out.")
            settings = TrainConfig(**json.loads(stored.read_text(encoding="utf-8")))
        else:
            require_new(self.out)
        data = (
            load_data(settings.data, "train", root=settings.data_root),
            load_data(settings.data, "test", root=settings.data_root),
        )
        bar = _Bar(settings)
        try:
            outcome = train(settings, self.out, data, certified_sums, resume=self.resume, show=bar.show)
        except Diverged as error:
            print(f"lipcert: {error}", file=sys.stderr)
            return 1
        finally:
            bar.stop()
        if not _first_process():
            return 0
        if not outcome.complete:
            print(f"Interrupted at step {outcome.step}; saved. Resume with:")
            print(f"  lipcert train --resume --out {shlex.quote(str(self.out))}")
            return 0
        if self.as_json:
            print(json.dumps(outcome.metrics[-1], indent=2))
        else:
            print_outcome(outcome.metrics[-1], self.out)
        return 0


def require_new(folder: Path) -> None:
    """Raise ValueError unless ``folder`` can be filled without losing anything."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"--out must be a new or empty folder; got {folder}, which is not. Choose another, or, to go on with a "
            "training, add --resume."
        )


def parse_train(arguments: list[str]) -> Train:
    """The flags of ``lipcert train``; values of a --config file take the place of the defaults."""
    import json

    default = Train()
    for position, word in enumerate(arguments):
        if word == "--config" or word.startswith("--config="):
            name = word.partition("=")[2] or " ".join(arguments[position + 1 : position + 2])
            path = Path(name)
            if not path.is_file():
                raise ValueError(f"--config must name a config.json; got {name or 'nothing'}. Check the path.")
            try:
                default = Train(**json.loads(path.read_text(encoding="utf-8")), config=path)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}: {error} See lipcert train --help for the fields.") from None
    from lipcert.cli.parse import parse

    return parse(Train, arguments, "lipcert train", default)


def certified_sums(model: nn.Module) -> CountHits:
    """Return a function that finds the natural and certified hits of a batch, in real arithmetic.

    ``model`` is nn.Sequential(backbone, head). It is frozen once, so that no batch computes T again.
    """
    from torch import nn

    import lipcert as lc
    from lipcert.certified.radius import certified_radii

    backbone, head = model.children()
    assert isinstance(head, (lc.NormalizedHead, lc.layers.FirstLogits))  # what models.build makes
    pairwise = head.pairwise_bound() * lc.lipschitz_bound(backbone)
    # A new Sequential: mixed precision replaces the forward of the one it trains.
    frozen = lc.freeze(nn.Sequential(backbone, head))

    def count_hits(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = frozen(inputs)
        radii = certified_radii(logits, labels, pairwise)
        certified = {f"certified {name}": radii > radius for name, radius in RADII.items()}
        return {"natural": logits.argmax(dim=1) == labels, **certified}

    return count_hits


class _Bar:
    """Progress on stderr from the first step on: a run that is refused shows nothing but why."""

    def __init__(self, settings: TrainConfig) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.settings = settings
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        loss = TextColumn("loss {task.fields[loss]:.3f}")
        self.progress = Progress(*columns, loss, console=Console(stderr=True), disable=not _first_process())
        self.task = self.progress.add_task(settings.model, loss=float("nan"))

    def stop(self) -> None:
        if self.progress.live.is_started:  # one that never started would still print an empty line
            self.progress.stop()

    def show(self, step: Step) -> None:
        self.progress.start()  # once; a second call does nothing
        last = f"/{self.settings.epochs}" if self.settings.steps is None else ""
        epoch = f"{self.settings.model} epoch {step.epoch + 1}{last}"
        self.progress.update(self.task, total=step.total, completed=step.step, loss=step.loss, description=epoch)


def _first_process() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def print_outcome(row: dict[str, float], out: Path) -> None:
    """Natural and certified accuracy in one small table, and where the run is."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Accuracy, and accuracy certified within an L2 radius (%)")
    for name in ("natural", *RADII):
        table.add_column(name, justify="right")
    table.add_row(*(f"{100 * row[name]:.1f}" for name in ("natural", *(f"certified {r}" for r in RADII))))
    console = Console()
    console.print(table)
    console.print(f"In real arithmetic; logits in float32. Run folder: {out}", highlight=False, soft_wrap=True)
