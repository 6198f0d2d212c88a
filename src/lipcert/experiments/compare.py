"""The fair comparison: every method with the same architecture family, data, loss and budget, over several seeds.

Four phases, each stored when done: the cost of a step (cost.json), the learning rates (rates.json), the runs
(runs/, each a run folder), the table (comparison.json). A killed comparison continues where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lipcert.data.registry import load_data
from lipcert.experiments.comparison import Comparison, Key, finals, recipe, slug, sweep
from lipcert.experiments.cost import inference_seconds
from lipcert.experiments.plan import CERTIFY, Job, Show, Spread, Stage, diverged, expected, measure, run, spread
from lipcert.files import write_json
from lipcert.jobs import Store, Workers, open_store
from lipcert.records import RADII, RunFolder
from lipcert.runs import Run

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
    certified_by: str = "lipschitz"  # a method of lipcert certify
    images: int | None = None  # that were certified
    probability: float | None = None  # with which each radius holds; None: it holds, without chance


def compare(
    plan: Comparison,
    out: Path,
    workers: Workers,
    *,
    stages: tuple[Stage, ...],
    say: Callable[[str], object],
    show: Show,
    restart: bool = False,
) -> list[Row]:
    """Run what is missing in ``out`` and return its table; ``stages`` come after each training of the table.

    Args:
        say: told what is left to do and how long it will take, before anything is trained.
        show: hears how many training steps are done.
    """
    both = {data: {s: load_data(data, s, root=plan.data_root) for s in ("train", "test")} for data in plan.data}
    sizes = {data: {split: len(images) for split, images in splits.items()} for data, splits in both.items()}
    training = {data: splits["train"] for data, splits in both.items()}
    settings = plan.model_dump(mode="json")
    with open_store(out, settings, what="a comparison", restart=restart) as store:
        keys = [(data, method) for data in plan.data for method in plan.methods]
        guess = dict.fromkeys(keys, plan.learning_rates[0])
        costs = measure(store, finals(plan, dict.fromkeys(keys, 1), guess), training, say)
        del both, training  # the processes read it themselves
        seconds = {key: costs[key[0], f"{key[1]}_{plan.size}"].step_seconds for key in keys}
        steps = {key: plan.steps(seconds[key], sizes[key[0]]["train"]) for key in keys}
        held = {data: min(plan.validation, sizes[data]["train"] // 5) for data in plan.data}
        stored = store.load("rates.json")
        trials = [] if stored else sweep(plan, steps, held)
        everything = [*trials, *finals(plan, steps, guess, stages)]
        trying = f"{len(trials)} trials of learning rates, then the table; " if trials else ""
        say(trying + expected(out, everything, costs, sizes, workers.slots))
        run(trials, out, workers, sizes, show)
        if trials:
            stored = _chosen(plan, out, trials)
            store.save("rates.json", stored)
        rates = {(row["data"], row["method"]): row["chosen"] for row in stored["rows"]} if stored else guess
        run(finals(plan, steps, rates, stages), out, workers, sizes, show)
        rows = finished_rows(plan, out)
        write_json(out / "comparison.json", [asdict(row) for row in rows])
    return rows


def _chosen(plan: Comparison, out: Path, trials: list[Job]) -> dict[str, Any]:
    """rates.json: for each method the rate with the best held-out certified accuracy, the smaller one of a tie."""
    scores: dict[Key, dict[float, float]] = {}
    for job in trials:
        method = job.key[1].removesuffix(f"_{plan.size}")
        # The constant of a network that will be smoothed says nothing.
        measure = "natural" if recipe(method).certified_by == "smoothing" else CHOSEN_BY
        score = -1.0 if diverged(out, job) else RunFolder(out / job.name).metrics[-1][measure]
        scores.setdefault((job.config.data, method), {})[job.config.learning_rate] = score
    rows = [
        {"data": data, "method": method, "chosen": max(sorted(tried), key=tried.__getitem__), CHOSEN_BY: tried}
        for (data, method), tried in scores.items()
    ]
    return {"validation": True, "rows": rows}


def finished_rows(plan: Comparison, out: Path) -> list[Row]:
    """The rows of what is finished; inference is measured once, all methods of a data set side by side."""
    measured = Store(out).load("cost.json") or {"rows": []}
    costs = {(row["data"], row["model"]): row["step_seconds"] for row in measured["rows"]}
    nothing = {(data, method): 1 for data in plan.data for method in plan.methods}
    jobs = finals(plan, nothing, dict.fromkeys(nothing, 1.0), (CERTIFY,))  # for their names
    rows = []
    for data in plan.data:
        runs = {
            method: [job for job in jobs if job.key == (data, f"{method}_{plan.size}")] for method in plan.methods
        }
        done = {
            method: [out / job.name for job in mine if not diverged(out, job) and not any(job.missing(out))]
            for method, mine in runs.items()
        }
        done = {method: folders for method, folders in done.items() if folders}
        inference = _inference(plan, data, {method: folders[0] for method, folders in done.items()}, out)
        for method, folders in done.items():
            by = recipe(method).certified_by
            results = [Run(folder).check().by(by) for folder in folders]
            about, smoothed = results[0].about, results[0].smoothed_about
            config = results[0].settings
            attacks = [{row.eps: row for row in run.attacked.rows} if run.attacked else {} for run in results]
            names = [eps for eps in attacks[0] if all(eps in attack for attack in attacks)]
            rows.append(
                Row(
                    data=data,
                    method=method,
                    learning_rate=config.learning_rate,
                    steps=results[0].record.steps,
                    seeds=len(results),
                    diverged=sum(diverged(out, job) for job in runs[method]),
                    natural=spread([run.natural for run in results]),
                    certified={
                        name: spread([run.certified(eps) for run in results]) for name, eps in RADII.items()
                    },
                    attacked={name: spread([attack[name].attacked for attack in attacks]) for name in names},
                    attacked_natural=spread([attack[names[0]].natural for attack in attacks]) if names else None,
                    attack_examples=min((row.examples for attack in attacks for row in attack.values()), default=0),
                    parameters=results[0].parameters,
                    step_seconds=costs[data, f"{method}_{plan.size}"],
                    inference_seconds=inference[method],
                    peak_bytes=max(run.record.peak_bytes for run in results),
                    certified_by=by,
                    images=None if about is None else about.examples,
                    probability=None if smoothed is None else smoothed.confidence,
                )
            )
    return rows


def _inference(plan: Comparison, data: str, folders: Mapping[str, Path], out: Path) -> dict[str, float]:
    """CPU seconds of a batch for the frozen network of each method."""
    store, name = Store(out), f"inference-{slug(data)}.json"
    stored = store.load(name) or {}
    if set(stored) != set(folders):
        frozen = {method: Run(folder).frozen() for method, folder in folders.items()}
        test = load_data(data, "test", root=plan.data_root)
        stored = inference_seconds(frozen, test.images[: plan.batch_size].float() / 255)
        store.save(name, stored)
    return dict(stored)
