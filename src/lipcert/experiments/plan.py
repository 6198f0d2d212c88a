"""What compare and reproduce share: run folders to fill, what that costs, and how it is done and continued.

A job is one run folder: a training, then stages such as ``lipcert certify``, each a process. What is done is not
done again, and a training that stopped half-way is resumed bit for bit. Costs are measured once on this machine and
stored, so that the time can be told before anything starts. Logs and configs are in ``jobs/``, so that ``runs/``
holds run folders and nothing else. Importing this loads no torch.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from lipcert.files import write_json
from lipcert.jobs import KEPT, Store, Workers, call, locked_log
from lipcert.records import RunFolder
from lipcert.training.config import TrainConfig

if TYPE_CHECKING:
    from lipcert.data.dataset import ImageData

START = 4.0  # CPU seconds to start a process
PASSES = {"autoattack": 5000.0, "pgd": 800.0, "quick": 150.0}
"""Forward passes that cost as much as one test image attacked at all radii."""

Key = tuple[str, str]  # data, model
Sizes = Mapping[str, Mapping[str, int]]  # by data set and split


class Show(Protocol):
    """How a command reports its progress: ``show(done, total, note)``."""

    def __call__(self, done: int, total: int | None, note: str = "", *, log: bool = False) -> None:
        """Show that ``done`` of ``total`` are done (None if nobody knows how many there are).

        Args:
            done: what is finished.
            total: what there is to do.
            note: a few words behind the bar, such as "loss 0.413".
            log: write a line now if stderr is no terminal, such as once per epoch; no effect on a terminal.
        """


class Failed(ValueError):
    """A process of a run ended with an error that is not a result: exit code 2, like any other bad input."""


@dataclass(frozen=True)
class Stage:
    """``lipcert COMMAND RUN FLAGS`` after the training.

    It costs ``passes`` forward passes of each of the first ``images`` test images (None for all), shared by
    ``processes``.
    """

    command: str
    flags: tuple[str, ...] = ()
    passes: float = 0.0
    images: int | None = None
    processes: int = 1
    method: str = ""
    """Of an attack, or of a certification."""

    def finished(self, run: RunFolder) -> bool:
        certified = run.by(self.method if self.command == "certify" and self.method else "lipschitz")
        files = {
            "certify": certified.certified_file,
            "audit": run.audit_file,
            "attack": run.attack_file(self.method),
        }
        return files[self.command].is_file()


CERTIFY = Stage("certify", passes=1.3)  # the bounds of rounding are the 0.3
CERTIFY_LOCALLY = Stage("certify", ("--method", "local"), passes=40.0, method="local")  # five balls
AUDIT = Stage("audit")


def smoothing_stage(sigma: float, samples: int, examples: int) -> Stage:
    words = ("--method", "smoothing", "--sigma", f"{sigma:g}", "--n", str(samples), "--examples", str(examples))
    return Stage("certify", words, samples + 100.0, examples, method="smoothing")


def attack_stage(method: str, examples: int, *flags: str, processes: int = 1) -> Stage:
    words = ("--method", method, "--examples", str(examples), *flags, "--jobs", str(processes))
    return Stage("attack", words, PASSES[method], examples, processes, method)


@dataclass(frozen=True)
class Job:
    """One run folder to fill, ``name`` below the folder of the experiment."""

    name: str
    config: TrainConfig
    stages: tuple[Stage, ...] = ()
    kind: str = ""
    """What has the same cost; by default its model."""

    @property
    def key(self) -> Key:
        return self.config.data, self.kind or self.config.model

    def steps(self, sizes: Sizes) -> int:
        config = self.config
        return config.steps or config.epochs * -(-sizes[config.data]["train"] // config.batch_size)

    def missing(self, out: Path) -> tuple[bool, list[Stage]]:
        """Whether it must be trained, and which stages must follow."""
        if diverged(out, self):
            return False, []
        run = RunFolder(out / self.name)
        trained = run.exists and run.unfinished is None
        return not trained, [stage for stage in self.stages if not stage.finished(run)]


def diverged(out: Path, job: Job) -> bool:
    """Whether the training ended because its loss became NaN or infinite: a result, not a failure."""
    return _beside(out, job, "diverged.json").is_file()


def _beside(out: Path, job: Job, kind: str) -> Path:
    return out / "jobs" / f"{job.name}.{kind}"


# Costs


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one thread: a training step, and the forward pass of one image in float64."""

    data: str
    model: str
    step_seconds: float
    forward_seconds: float


def measure(
    store: Store, jobs: Sequence[Job], training: Mapping[str, ImageData], say: Callable[[str], object]
) -> dict[Key, Cost]:
    """The costs of all networks of the jobs, side by side; those in cost.json are not measured again."""
    from lipcert.experiments.cost import forward_seconds, step_seconds

    stored = store.load("cost.json") or {"rows": []}
    costs = {(row["data"], row["model"]): Cost(**row) for row in stored["rows"]}
    new = {job.key: (job.config, training[job.key[0]]) for job in jobs if job.key not in costs}
    if new:
        say(f"measuring what a training step of {len(new)} network{'s' * (len(new) > 1)} costs")
        steps, forward = step_seconds(new), forward_seconds(new)
        costs |= {key: Cost(*key, steps[key], forward[key]) for key in new}
        clock = "CPU, minimum of interleaved repeats; forward: one image in float64"
        rows = [asdict(cost) for cost in costs.values()]
        store.save("cost.json", {"threads": 1, "clock": clock, "rows": rows})
    return costs


def expected(out: Path, jobs: Sequence[Job], costs: Mapping[Key, Cost], sizes: Sizes, slots: int) -> str:
    """What is left to do and how long it will take, in words."""
    loads, cpu, trainings, stages = [0.0] * slots, 0.0, 0, dict[str, None]()
    for job in jobs:
        train, missing = job.missing(out)
        cost = costs[job.key]
        seconds, trainings = 0.0, trainings + train
        if train:
            seconds += START + (job.steps(sizes) - steps_done(out, job)) * cost.step_seconds
        clock = seconds
        for stage in missing:
            test = sizes[job.config.data]["test"]
            work = START + stage.passes * min(stage.images or test, test) * cost.forward_seconds
            seconds, clock = seconds + work, clock + work / stage.processes
        stages |= dict.fromkeys(stage.command for stage in missing)
        cpu += seconds
        loads[loads.index(min(loads))] += clock
    if not cpu:
        return "nothing left to run"
    words = f"{trainings} training{'s' * (trainings != 1)}" + "".join(f", {name}" for name in stages)
    return f"{words}: about {duration(cpu)} of CPU time, {duration(max(loads))} with {slots} at a time"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:,.1f} hours"


def steps_done(out: Path, job: Job) -> int:
    """Training steps that are saved."""
    run = RunFolder(out / job.name)
    return run.record.step if run.exists else 0


# Running


def run(jobs: Sequence[Job], out: Path, workers: Workers, sizes: Sizes, show: Show) -> None:
    """Fill the run folders of all jobs. The first failure stops the rest."""
    steps = {job.name: job.steps(sizes) for job in jobs}
    waiting = {job.name: job for job in jobs if any(job.missing(out))}

    def update(note: str = "") -> None:
        taken = sum(steps_done(out, waiting[name]) if name in waiting else steps[name] for name in steps)
        show(taken, sum(steps.values()), note, log=bool(note))

    def done(job: Job) -> None:
        del waiting[job.name]
        end = "diverged" if diverged(out, job) else "done"
        update(f"{job.name} {end}, {len(jobs) - len(waiting)} of {len(jobs)} runs")

    workers.run(partial(fill, out=out.resolve(), cwd=str(Path.cwd())), list(waiting.values()), done, update)


def fill(job: Job, out: Path, cwd: str | None = None) -> None:
    """Do what is missing of one job."""
    with locked_log(_beside(out, job, "log")) as log:
        if job.missing(out)[0]:
            _train(job, out, log, cwd)
        for stage in job.missing(out)[1]:
            code, last = call([stage.command, str(out / job.name), *stage.flags], log, cwd=cwd)
            if code != 0 or stage in job.missing(out)[1]:
                raise _failed(job, stage.command, code, last)


def _train(job: Job, out: Path, log: TextIO, cwd: str | None) -> None:
    run, config = RunFolder(out / job.name), _beside(out, job, "config.json")
    folder = str(run.folder)
    if run.state_file.is_file():
        if run.config != job.config.model_dump(mode="json"):
            raise Failed(f"{folder} holds another run than the planned one. Choose another folder.")
        words = ["train", "--resume", "--out", folder]
    else:
        shutil.rmtree(folder, ignore_errors=True)  # nothing was trained yet
        config.parent.mkdir(parents=True, exist_ok=True)
        write_json(config, job.config.model_dump())
        words = ["train", "--config", str(config), "--out", folder]
    code, last = call(words, log, cwd=cwd)
    if code == 1:
        write_json(_beside(out, job, "diverged.json"), {"message": last})
    elif code != 0 or job.missing(out)[0]:
        raise _failed(job, "train", code, last)


def _failed(job: Job, command: str, code: int, last: str) -> Failed:
    if code < 0 or code in (130, 143):
        return Failed(f"{job.name}: lipcert {command} was interrupted (exit code {code}); {KEPT}")
    return Failed(f"{job.name}: lipcert {command} failed with exit code {code}: {last}")


# Results


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
