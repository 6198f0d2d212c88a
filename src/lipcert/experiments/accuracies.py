"""The tables of accuracies: jobs, costs, runs, and rows of the record from the run folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lipcert.data.dataset import ImageData
from lipcert.data.registry import load_data
from lipcert.errors import DataNotFound
from lipcert.experiments import budget
from lipcert.experiments.paper import PAPER, RADII, record_row
from lipcert.experiments.plan import Job
from lipcert.experiments.results import RunResult, read_run, spread
from lipcert.experiments.runner import Stage, diverged, run_all
from lipcert.experiments.scales import Planned, Settings, planned, scale_of
from lipcert.files import write_json

Show = Callable[[Sequence[Job], Callable[[], None]], None]  # the jobs, and what runs them


def accuracies(
    settings: Settings,
    out: Path,
    parallel: int,
    say: Callable[[str], object],
    show: Show,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run what is missing; the rows of the record, and its notes."""
    rows = planned(settings)
    training, missing = _data([row.source for row in rows if row.jobs], settings)
    jobs = [job for row in rows for job in row.jobs if row.source not in missing]
    scale = scale_of(settings.table, settings.scale)
    attack = scale.attack if settings.table == "table5" else None
    stages = [Stage("certify", "certified.jsonl")]
    if attack is not None:
        flags = ("--method", attack[0], "--examples", str(attack[1]), "--eps", *RADII)
        stages.append(
            Stage("attack", "attack.json", (*flags, "--jobs", str(max(1, parallel // max(1, len(jobs))))))
        )
    costs: dict[budget.Key, budget.Cost] = {}
    if settings.scale == "full":
        note_interrupted(out, jobs)
        hours = budget.paper_seconds(jobs) / 3600
        say(f"{len(jobs)} trainings: {hours:,.0f} hours by the paper's seconds per epoch, on its GPUs")
    elif jobs:
        costs = budget.measure(out, jobs, training)
        say(_stated(budget.estimate(out, jobs, costs, parallel, attack), parallel))
    training.clear()  # the processes read it themselves
    begun = {job.name for job in jobs if not (out / job.name / stages[-1].file).is_file()}

    def done(job: Job) -> None:
        if job.name in begun:
            say(f"{job.name} done")

    if jobs:
        show(jobs, lambda: run_all(jobs, out, stages=tuple(stages), parallel=parallel, show=done))
    made = [_accuracy_row(settings, out, row, costs, missing) for row in rows]
    return made, _notes(settings, made, attack)


def _data(names: Sequence[str], settings: Settings) -> tuple[dict[str, ImageData], dict[str, str]]:
    """The training images of each data set, or why there are none."""
    found, missing = {}, {}
    for name in dict.fromkeys(names):
        try:
            found[name] = load_data(name, "train", root=settings.data_root)
        except DataNotFound:
            missing[name] = f"not run: data not prepared (lipcert data get {name})"
    return found, missing


def _stated(left: budget.Estimate, parallel: int) -> str:
    if not left.cpu:
        return "nothing left to run"
    work = f"{left.trainings} training{'s' * (left.trainings != 1)} with certificates"
    return f"{work}: about {_minutes(left.cpu)} of CPU time, {_minutes(left.clock)} with --jobs {parallel}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def note_interrupted(out: Path, jobs: Sequence[Job]) -> None:
    """Remember which trainings are continued: the seconds of their last process are not those of the training."""
    path = out / "interrupted.json"
    names = set(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else set()
    for job in jobs:
        folder = out / job.name
        if (folder / "state.pt").is_file() and not (folder / "summary.json").is_file():
            names.add(job.name)
    write_json(path, sorted(names))


def _accuracy_row(
    settings: Settings,
    out: Path,
    row: Planned,
    costs: Mapping[budget.Key, budget.Cost],
    missing: Mapping[str, str],
) -> dict[str, Any]:
    columns = PAPER[settings.table].columns
    if not row.jobs or row.source in missing:
        return record_row(row.data, row.group, row.model, row.paper, columns, note=missing.get(row.source, ""))
    good = [job for job in row.jobs if not diverged(out / job.name)]
    results = [read_run(out / job.name) for job in good]
    values = [
        {column: _value(settings, column, result, job, out, costs) for column in columns}
        for job, result in zip(good, results, strict=True)
    ]
    ours = {column: _spread([value[column] for value in values]) for column in columns} if values else None
    return record_row(
        row.data,
        row.group,
        row.model,
        row.paper,
        columns,
        ours=ours,
        note="" if good else "diverged: the loss of every seed became no number",
        seeds=len(good),
        diverged=len(row.jobs) - len(good),
        runs=[_run(settings, job) for job in row.jobs],
    )


def _value(
    settings: Settings,
    column: str,
    result: RunResult,
    job: Job,
    out: Path,
    costs: Mapping[budget.Key, budget.Cost],
) -> float | None:
    """One number of one run, in the unit of the paper's column."""
    if column == "parameters":
        return result.parameters / 1e6
    if column == "seconds":
        return epoch_seconds(settings, job, out, costs)
    if column == "natural":
        return 100 * result.natural
    return 100 * (result.attacked[column].attacked if settings.table == "table5" else result.certified[column])


def epoch_seconds(settings: Settings, job: Job, out: Path, costs: Mapping[budget.Key, budget.Cost]) -> float | None:
    """Measured steps on a CPU; at full scale the clock of a training that was not interrupted."""
    if settings.scale != "full":
        return costs[budget.key_of(job.config)].step * budget.steps_of(job.config) / job.config.epochs
    if job.name in json.loads((out / "interrupted.json").read_text(encoding="utf-8")):
        return None
    summary = json.loads((out / job.name / "summary.json").read_text(encoding="utf-8"))
    return float(summary["this_process"]["seconds"]) / job.config.epochs


def _spread(values: Sequence[float | None]) -> dict[str, float | None] | None:
    numbers = [value for value in values if value is not None]
    return asdict(spread(numbers)) if numbers else None


def _run(settings: Settings, job: Job) -> dict[str, Any]:
    """A run with the commands that repeat it, in the folder of table.json."""
    commands = [
        f"lipcert train --config {job.name}.config.json --out {job.name}",
        f"lipcert certify {job.name}",
    ]
    if settings.table == "table5":
        method, examples = scale_of(settings.table, settings.scale).attack
        commands.append(
            f"lipcert attack {job.name} --method {method} --examples {examples} --eps {' '.join(RADII)}"
        )
    return {"folder": job.name, "config": job.config.model_dump(mode="json"), "commands": commands}


def _notes(settings: Settings, rows: Sequence[Mapping[str, Any]], attack: tuple[str, int] | None) -> list[str]:
    notes = []
    if any(row["ours"] for row in rows):
        form = "" if settings.table == "corrected" else " with exponential scaling (Appendix D),"
        notes.append(f"Ours: SLL{form} certified in floating point by lipcert certify.")
    if settings.table == "table1":
        unit = "on the machine of the runs" if settings.scale == "full" else "CPU time of one thread"
        notes.append(f"Time by epoch: the paper's on GPUs, ours {unit}.")
    if settings.table == "offsets" and settings.scale != "full":
        notes.append("The offset √2/2 is not in the paper; short trainings want a smaller one than its three.")
    if attack is not None:
        notes.append("Certified answers are not attacked: no attack can change them.")
    return notes
