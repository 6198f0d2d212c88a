"""The fair comparison: every method with the same architecture family, data, loss and budget, over several seeds.

Four phases, each stored when done: the cost of a step (cost.json), the learning rates (rates.json), the runs
(runs/, each a run folder), the table (comparison.json). A killed comparison continues where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from lipcert.certified.freeze import freeze
from lipcert.data.dataset import ImageData
from lipcert.data.registry import load_data
from lipcert.experiments.cost import inference_seconds, step_seconds
from lipcert.experiments.plan import Comparison, Job, Key, finals, slug, sweep
from lipcert.experiments.results import RADII, RunResult, Spread, read_run, spread
from lipcert.experiments.runner import Stage, diverged, run_all
from lipcert.files import write_json
from lipcert.records import RunFolder
from lipcert.training.checkpoint import load_model

CHOSEN_BY = "certified 36/255"  # the field's headline number, on held-out training images


@dataclass(frozen=True)
class Row:
    """One method on one data set; shares in [0, 1], over its seeds."""

    data: str
    method: str
    learning_rate: float
    steps: int
    seeds: int
    diverged: int
    natural: Spread
    certified: dict[str, Spread]
    attacked: dict[str, Spread]
    attack_examples: int
    parameters: int
    step_seconds: float
    inference_seconds: float
    peak_bytes: int
    attacked_natural: Spread | None = None  # of the attacked images, which may be easier than all


def compare(
    plan: Comparison,
    out: Path,
    *,
    stages: tuple[Stage, ...],
    parallel: int = 1,
    show: Callable[[str, int, int], object] = lambda phase, done, total: None,
) -> list[Row]:
    """Run what is missing in ``out`` and give its table; ``stages`` come after each training of the table."""
    new = _is_new(plan, out)
    training = {data: load_data(data, "train", root=_root(plan)) for data in plan.data}
    if new:  # only now: what is refused writes nothing
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "plan.json", plan.model_dump(mode="json"))
    cost = _costs(plan, out, training, show)
    steps = {key: plan.steps(cost[key], len(training[key[0]].labels)) for key in cost}
    held = {data: min(plan.validation, len(training[data].labels) // 5) for data in plan.data}
    trials = list(sweep(plan, steps, held))
    _run("learning rates", trials, out, (), parallel, show)
    rates = _rates(plan, out, trials)
    _run("runs", list(finals(plan, steps, rates)), out, stages, parallel, show)
    rows = finished_rows(plan, out)
    write_json(out / "comparison.json", [plain(row) for row in rows])
    return rows


def _is_new(plan: Comparison, out: Path) -> bool:
    """Whether there is no comparison in ``out`` yet; ValueError for one with other settings, or something else."""
    path, now = out / "plan.json", plan.model_dump(mode="json")
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored != now:
            changed = sorted(name for name in now if stored.get(name) != now[name])
            raise ValueError(
                f"{out} holds a comparison with other settings ({', '.join(changed)}); got changed ones. Continue "
                "it as it was, or choose another --out."
            )
        return False
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out must be new, empty or a comparison; got {out}, which is none. Choose another.")
    return True


def _root(plan: Comparison) -> Path | None:
    return None if plan.data_root is None else Path(plan.data_root)


def _costs(
    plan: Comparison, out: Path, training: dict[str, ImageData], show: Callable[[str, int, int], object]
) -> dict[Key, float]:
    path = out / "cost.json"
    if not path.is_file():
        show("cost of a step", 0, 1)
        configs = {
            (data, method): (plan.config(data, method, 0.01, 1), training[data])
            for data in plan.data
            for method in plan.methods
        }
        measured = step_seconds(configs)
        rows = [{"data": data, "method": method, "step_seconds": s} for (data, method), s in measured.items()]
        write_json(path, {"threads": 1, "clock": "CPU, minimum of interleaved repeats", "rows": rows})
        show("cost of a step", 1, 1)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {(row["data"], row["method"]): row["step_seconds"] for row in rows}


def _run(
    phase: str,
    jobs: list[Job],
    out: Path,
    stages: tuple[Stage, ...],
    parallel: int,
    show: Callable[[str, int, int], object],
) -> None:
    done = 0

    def tick(job: Job) -> None:
        nonlocal done
        done += 1
        show(phase, done, len(jobs))

    show(phase, 0, len(jobs))
    run_all(jobs, out, stages=stages, parallel=parallel, show=tick)


def _rates(plan: Comparison, out: Path, trials: list[Job]) -> dict[Key, float]:
    """The learning rate of each method with the best held-out certified accuracy; the smaller one of a tie."""
    if not trials:
        return {(data, method): plan.learning_rates[0] for data in plan.data for method in plan.methods}
    scores: dict[Key, dict[float, float]] = {}
    for job in trials:
        method = job.config.model.removesuffix(f"_{plan.size}")
        folder = out / job.name
        score = -1.0 if diverged(folder) else RunFolder(folder).metrics[-1][CHOSEN_BY]
        scores.setdefault((job.config.data, method), {})[job.config.learning_rate] = score
    rates = {key: max(sorted(tried), key=lambda rate: tried[rate]) for key, tried in scores.items()}
    rows = [
        {"data": data, "method": method, "chosen": rates[data, method], CHOSEN_BY: tried}
        for (data, method), tried in scores.items()
    ]
    write_json(out / "rates.json", {"validation": True, "rows": rows})
    return rates


def finished_rows(plan: Comparison, out: Path) -> list[Row]:
    """The rows of what is finished; inference is measured once, all methods of a data set side by side."""
    cost = {
        (row["data"], row["method"]): row["step_seconds"]
        for row in json.loads((out / "cost.json").read_text(encoding="utf-8"))["rows"]
    }
    rows = []
    for data in plan.data:
        folders = {
            method: [out / f"runs/{slug(data)}-{method}-{seed}" for seed in range(plan.seeds)]
            for method in plan.methods
        }
        done = {
            method: [folder for folder in runs if (folder / "certified.jsonl").is_file()]
            for method, runs in folders.items()
        }
        test = load_data(data, "test", root=_root(plan))
        finished = [method for method, runs in done.items() if runs]
        stored = out / f"inference-{slug(data)}.json"
        inference = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
        if set(inference) != set(finished):
            frozen = {method: freeze(load_model(done[method][0])) for method in finished}
            inference = inference_seconds(frozen, test.images[: plan.batch_size].float() / 255)
            write_json(stored, inference)
        for method in finished:
            results = [read_run(folder) for folder in done[method]]
            config = json.loads((done[method][0] / "config.json").read_text(encoding="utf-8"))
            rows.append(
                Row(
                    data=data,
                    method=method,
                    learning_rate=config["learning_rate"],
                    steps=config["steps"],
                    seeds=len(results),
                    diverged=sum(diverged(folder) for folder in folders[method]),
                    natural=spread([result.natural for result in results]),
                    certified={name: spread([result.certified[name] for result in results]) for name in RADII},
                    attacked=_attacked(results),
                    attacked_natural=_attacked_natural(results),
                    attack_examples=min(
                        (r.examples for result in results for r in result.attacked.values()), default=0
                    ),
                    parameters=results[0].parameters,
                    step_seconds=cost[data, method],
                    inference_seconds=inference[method],
                    peak_bytes=max(result.peak_bytes for result in results),
                )
            )
    return rows


def _attacked(results: list[RunResult]) -> dict[str, Spread]:
    names = list(dict.fromkeys(chain.from_iterable(result.attacked for result in results)))
    return {
        name: spread([result.attacked[name].attacked for result in results])
        for name in names
        if all(name in result.attacked for result in results)
    }


def _attacked_natural(results: list[RunResult]) -> Spread | None:
    firsts = [next(iter(result.attacked.values())).natural for result in results if result.attacked]
    return spread(firsts) if len(firsts) == len(results) else None


def plain(row: Row) -> dict[str, Any]:
    return asdict(row)
