"""``lipcert train``: one run, from its flags or from a config file, into a folder that can be resumed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from pydantic import ConfigDict

from lipcert.cli.common import emit, progress, radii_table
from lipcert.records import RADII
from lipcert.training.config import TrainConfig

if TYPE_CHECKING:
    from lipcert.experiments.plan import Show
    from lipcert.training.loop import Step


class Train(TrainConfig):
    """Train a certified network; --resume continues an interrupted training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: Path = Path("runs/latest")
    """Run folder to write: settings, metrics, weights and the frozen network."""
    resume: bool = False
    """Continue the training in --out from its last checkpoint, with its own settings."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A config.json whose values become the defaults of the other flags."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the last row of the metrics as JSON."""

    def settings(self) -> TrainConfig:
        return TrainConfig(**self.model_dump(include=set(TrainConfig.model_fields)))

    def run(self) -> int:
        import shlex

        from lipcert.runs import IN_PYTHON, Run, first_process, train
        from lipcert.training.loop import Diverged, Stopped

        settings = self.settings()
        if self.resume:
            stored = Run(self.out)
            stored.require()
            own = ":" in stored.settings.model  # whose module is imported only if it is named again
            if settings != TrainConfig().model_copy(update={"model": stored.settings.model} if own else {}):
                also = f" and --network {stored.settings.model}" if own else ""
                raise ValueError(
                    "--resume continues with the settings of the run, so it takes no other flags than "
                    f"--out{also}. To train longer or otherwise, start a new run with --init."
                )
            settings = stored.settings
            if settings.model == IN_PYTHON:
                raise ValueError(
                    f"the network of {self.out} was passed in Python. Resume there: lipcert.train(network, ..., "
                    "resume=True)."
                )
            if stored.unfinished and stored.results() and first_process():
                step = stored.record.step
                print(f"lipcert: the results of step {step} are dropped as training goes on.", file=sys.stderr)
        try:
            with progress(settings.model) as show:
                run = train(
                    settings, self.out, resume=self.resume, show=_shown(show, settings, log=not self.as_json)
                )
        except Diverged as error:
            print(f"lipcert: {error}", file=sys.stderr)
            return 1
        except Stopped as stop:
            if first_process():
                print(f"lipcert: {stop}. Resume with:", file=sys.stderr)
                also = f" --network {settings.model}" if ":" in settings.model else ""
                print(f"  lipcert train --resume --out {shlex.quote(str(self.out))}{also}", file=sys.stderr)
            return 128 + stop.signal
        if first_process():
            row = run.metrics[-1]
            columns = {"natural": "natural", **{name: f"certified {name}" for name in RADII}}
            shares = {name: row[key] for name, key in columns.items() if key in row}
            emit(
                row,
                self.as_json,
                radii_table({"certified": shares}, f"{settings.data}: accuracy within an L2 radius (%)"),
                f"In real arithmetic; lipcert certify proves it in float64. Run folder: {self.out}",
            )
        return 0


def _shown(show: Show, settings: TrainConfig, *, log: bool) -> Any:
    """A function of ``Step`` that shows the progress, with one line per epoch where stdout is a log file."""
    from lipcert.runs import first_process

    last = f"/{settings.epochs}" if settings.steps is None else ""
    measured = ""

    def shown(step: Step) -> None:
        nonlocal measured
        row = step.row or {}
        if "natural" in row:
            measured = f", natural {100 * row['natural']:.1f} %, certified {100 * row['certified 36/255']:.1f} %"
        note = f"epoch {step.epoch + 1}{last}, loss {step.loss:.3f}{measured}"
        show(step.step, step.total, note)
        if step.row and log and first_process() and not sys.stdout.isatty():
            print(f"epoch {row['epoch']}{last}, step {step.step}, loss {row['loss']:.4f}{measured}", flush=True)

    return shown


def parse_words(arguments: list[str]) -> Train:
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
