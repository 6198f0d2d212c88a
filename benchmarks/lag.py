"""How far is the estimate of a spectral surrogate behind the norm while a network trains?

    python benchmarks/lag.py --out results/lag.json      (two short trainings on the digits; about a CPU minute)
    python benchmarks/lag.py --docs                      (the table of results/speed.md, from that file)

The layers train with √T of a few steps of power iteration, continued from the step before. Every 20 steps T is
compared with the proved one of the same weight, which is at most 1 % above the norm of a dense weight and 2 % above
that of a convolution, so the ratios are too small by that. The coarse grid of a convolution is part of its lag.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

import lipcert as lc
from lipcert.files import write_json
from lipcert.layers.forms import Form
from lipcert.records import RunFolder
from lipcert.training.loop import Trainer
from lipcert.training.objective import certified_hits

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("sn_surrogate_nano", "cpl_surrogate_nano")
EVERY, COMMAND = 20, "python benchmarks/lag.py --out results/lag.json"


def ratio(layer: Form) -> float:
    """Estimate / proved norm for the weight of this moment; the vector is left as it is."""
    bound = layer.bound
    assert isinstance(bound, lc.bounds.Spectral)
    with torch.no_grad():
        columns, before = layer.arrange(layer.prepared()[0]), bound.iterate.clone()
        estimate = bound.train()(columns)[1].amax()
        bound.iterate.copy_(before)
        proved = bound.eval()(columns)[1].amax()
    bound.train()
    return float((estimate / proved).sqrt())


def measure(name: str, steps: int) -> dict[str, object]:
    config = lc.TrainConfig(
        model=name, data="digits", steps=steps, augment="flip", threads=1, device="cpu", evaluate_every=1000
    )
    data = lc.load_data("digits", "train"), lc.load_data("digits", "test")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, RunFolder(folder), data, certified_hits)
        trainer.begin()
        layers = [m for m in trainer.plain.modules() if isinstance(getattr(m, "bound", None), lc.bounds.Spectral)]
        kinds = {"dense": [], "convolution": []}
        while trainer.step < trainer.total - 1:  # the last step would evaluate
            trainer.plain.train()
            trainer.advance()
            if trainer.step % EVERY == 0:
                for layer in layers:
                    kinds["dense" if layer.weight.ndim == 2 else "convolution"].append(round(ratio(layer), 5))
    return {"model": name, "steps": steps, "ratios": kinds}


def page(record: dict) -> str:
    """Markdown: the ratios of all layers and moments."""
    from lipcert.reports.tables import markdown_table

    rows = []
    for row in record["rows"]:
        for kind, ratios in row["ratios"].items():
            if ratios:
                numbers = [f"{value:.3f}" for value in (min(ratios), statistics.median(ratios), max(ratios))]
                rows.append([f"`{row['model']}`, {kind}", f"{row['steps']:,}", *numbers])
    titles = ["layers", "steps", "estimate / proved norm, least", "median", "largest"]
    return f"{markdown_table(titles, rows)}\n\n`{record['command']}` → `results/lag.json`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.out:
        write_json(arguments.out, {"command": COMMAND, "rows": [measure(n, arguments.steps) for n in MODELS]})
    if arguments.docs:
        from speed import rewrite

        record = json.loads((ROOT / "results/lag.json").read_text(encoding="utf-8"))
        rewrite("results/speed.md", "lag", page(record))


if __name__ == "__main__":
    main()
