"""How long a table will take, said before it starts: measured costs × what is left to do.

One training step and one forward pass are measured for each network, on one thread, and stored (cost.json), so
that a continued table keeps them. At full scale nothing is measured: the paper's own seconds per epoch are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lipcert.certified.freeze import freeze
from lipcert.data.catalog import CATALOG
from lipcert.data.dataset import ImageData
from lipcert.experiments.cost import inference_seconds, step_seconds
from lipcert.experiments.paper import SIZES, TABLE_1
from lipcert.experiments.plan import Job
from lipcert.experiments.runner import diverged
from lipcert.files import write_json
from lipcert.models.build import build
from lipcert.records import RunFolder
from lipcert.training.config import TrainConfig
from lipcert.training.loop import spec_of

BATCH = 64  # of lipcert certify
START = 4.0  # seconds to start a process
CERTIFY = 1.3  # of the forward passes in float64; the bounds of rounding are the rest
PASSES = {
    "autoattack": 5000,
    "quick": 150,
}  # forward passes that cost as much as a test image attacked at all radii

Key = tuple[str, str]  # data, model


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one thread: a training step, and the forward pass of one image in float64."""

    step: float
    forward: float


def measure(out: Path, jobs: Sequence[Job], training: Mapping[str, ImageData]) -> dict[Key, Cost]:
    """The costs of all networks of the jobs; those in cost.json are not measured again."""
    path = out / "cost.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    known = {(row["data"], row["model"]): Cost(row["step_seconds"], row["forward_seconds"]) for row in rows}
    configs = {key_of(job.config): job.config for job in jobs}
    missing = {key: config for key, config in configs.items() if key not in known}
    if missing:
        steps = step_seconds({key: (config, training[key[0]]) for key, config in missing.items()}, repeats=3)
        known |= {key: Cost(steps[key], _forward(config, training[key[0]])) for key, config in missing.items()}
        rows = [
            {"data": data, "model": model, "step_seconds": cost.step, "forward_seconds": cost.forward}
            for (data, model), cost in known.items()
        ]
        write_json(path, {"threads": 1, "clock": "CPU, minimum of repeats; forward: one image", "rows": rows})
    return known


def key_of(config: TrainConfig) -> Key:
    return config.data, config.model


def _forward(config: TrainConfig, data: ImageData) -> float:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = freeze(build(spec_of(config, data)).eval()).double()
    inputs = data.images[:BATCH].double() / 255
    return inference_seconds({"": network}, inputs, repeats=2)[""] / len(inputs)


def steps_of(config: TrainConfig) -> int:
    return config.epochs * -(-CATALOG[config.data].images["train"] // config.batch_size)


def steps_done(out: Path, jobs: Sequence[Job]) -> int:
    """Steps in the metrics of the run folders: whole epochs."""
    return sum(rows[-1]["step"] for job in jobs if (rows := RunFolder(out / job.name).metrics))


@dataclass(frozen=True)
class Estimate:
    """What is left: trainings, and seconds of CPU time and of the clock."""

    trainings: int
    cpu: float
    clock: float


def estimate(
    out: Path,
    jobs: Sequence[Job],
    costs: Mapping[Key, Cost],
    parallel: int,
    attack: tuple[str, int] | None,
) -> Estimate:
    """Of the jobs that are not finished."""
    loads, cpu, trainings = [0.0] * parallel, 0.0, 0
    for job in jobs:
        folder, cost = out / job.name, costs[key_of(job.config)]
        test = CATALOG[job.config.data].images["test"]
        alone = shared = 0.0
        if not (folder / "summary.json").is_file():
            if diverged(folder):
                continue
            trainings += 1
            alone += START + (steps_of(job.config) - steps_done(out, [job])) * cost.step
        if not (folder / "certified.jsonl").is_file():
            alone += START + CERTIFY * test * cost.forward
        if attack is not None and not (folder / "attack.json").is_file():
            method, examples = attack
            shared += START + min(examples, test) * PASSES[method] * cost.forward
        cpu += alone + shared
        loads[loads.index(min(loads))] += alone + shared / max(1, parallel // len(jobs))
    return Estimate(trainings, cpu, max(loads))


def paper_seconds(jobs: Sequence[Job]) -> float:
    """Training time of the jobs on the paper's machine, by Table 1; an epoch of TinyImageNet counts as eight."""
    by_model = {row.model: row.numbers[-1] or 0.0 for row in TABLE_1.rows}
    return sum(
        by_model[SIZES[job.config.model.rpartition("_")[2]]]
        * job.config.epochs
        * (8 if job.config.data == "tiny_imagenet" else 1)
        for job in jobs
    )
