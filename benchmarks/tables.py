"""Methods on tables of numbers, at equal parameters and equal CPU time: 4 folds × 3 seeds.

The question is that of LDLT (arXiv:2512.05915), which reports 3 to 13 % over SLL on such tables: what is left of it
when every method has the same number of parameters, the same CPU time and a learning rate of its own?

- Rows are split into four folds, each class alike; columns are standardized by the training folds, outside the
  network, so a radius is in standard deviations.
- A network has four layers and a normalized head. The width of each method is chosen so that it has as many
  parameters as residual layers with 64 features and 64 neurons.
- The cost of a step is measured for each method and data set, the methods in turn; every training has as many
  steps as fit into the budget.
- The learning rate is the best of three by certified accuracy at 36/255 on a quarter of the training rows of the
  first fold, which no test row takes part in.

Run: python benchmarks/tables.py FOLDER --out results/tables.jsonl --docs
FOLDER holds the .rda files of Debian's r-cran-mlbench. Rows that are in --out already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import lipcert as lc

SETS = {
    "Glass": "Type",
    "PimaIndiansDiabetes": "diabetes",
    "Satellite": "classes",
    "Sonar": "Class",
    "Vehicle": "Class",
    "Vowel": "Class",
}
RADII = {"natural": 0.0, "36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "1": 1.0}
RATES = (0.003, 0.01, 0.03)
DEPTH, WIDTH, FOLDS, SEEDS, BATCH = 4, 64, 4, 3, 64
BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"


Made = tuple[nn.Module, int]  # a backbone and the number of its outputs


def residual(bound: str) -> Callable[[int, int], Made]:
    """Four residual layers of one width on the padded columns."""

    def make(columns: int, width: int) -> Made:
        size = max(columns, WIDTH)
        layers = [lc.ResidualLinear(size, width, bound=bound) for _ in range(DEPTH)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight)
        return nn.Sequential(lc.layers.PadChannels(size), *layers), size

    return make


def affine(layer: Callable[[int, int], nn.Module]) -> Callable[[int, int], Made]:
    """Four affine layers with MaxMin between them."""

    def make(columns: int, width: int) -> Made:
        sizes = [columns, *(DEPTH * [width])]
        steps = [step for a, b in pairwise(sizes) for step in (layer(a, b), lc.layers.MaxMin())]
        return nn.Sequential(*steps), width

    return make


def sandwich(columns: int, width: int) -> Made:
    sizes = [columns, *(DEPTH * [width])]
    layers = [lc.SandwichLinear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(*layers), width


METHODS: dict[str, Callable[[int, int], Made]] = {
    "SLL": residual("sll"),
    "AOL, residual": residual("aol"),
    "CPL": residual("spectral"),
    "Rescaled": residual("rescaled"),
    "AOL, affine": affine(lambda a, b: lc.AffineLinear(a, b, bound="aol")),
    "SN": affine(lambda a, b: lc.AffineLinear(a, b, bound="spectral")),
    "LDLT's full T": affine(lambda a, b: lc.AffineLinear(a, b, bound="full")),
    "Cayley": affine(lc.OrthogonalLinear),
    "Sandwich": sandwich,
}


def network(method: str, columns: int, classes: int, width: int) -> nn.Module:
    backbone, features = METHODS[method](columns, width)
    return nn.Sequential(backbone, lc.NormalizedHead(features, classes))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def width_of(method: str, columns: int, classes: int) -> int:
    """The even width whose number of parameters is nearest to that of SLL with WIDTH neurons."""
    with torch.device("meta"):
        goal = count(network("SLL", columns, classes, WIDTH))
        sizes = range(8, 4 * WIDTH, 2)
        return min(sizes, key=lambda width: abs(count(network(method, columns, classes, width)) - goal))


def rows_of(path: Path, label: str) -> tuple[Tensor, Tensor, int]:
    parts = [lc.load_data(path, split, label=label) for split in ("train", "test")]
    values, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("images", "labels"))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return values[order], labels[order], len(parts[0].classes)


def folds_of(labels: Tensor) -> Tensor:
    """The fold of each row: the rows of a class go round."""
    fold = torch.empty_like(labels)
    for label in labels.unique():
        places = (labels == label).nonzero().flatten()
        fold[places] = torch.arange(len(places)) % FOLDS
    return fold


def standardized(train: Tensor, *others: Tensor) -> list[Tensor]:
    mean, std = train.mean(0), train.std(0)
    return [(x - mean) / torch.where(std > 0, std, 1.0) for x in (train, *others)]


def step_of(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    lc.losses.OffsetCrossEntropy(offset=0.4, temperature=0.25)(module(x), labels).backward()
    optimizer.step()


def trained(method: str, x: Tensor, labels: Tensor, classes: int, rate: float, steps: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = network(method, x.shape[1], classes, width_of(method, x.shape[1], classes))
    optimizer = torch.optim.Adam(module.parameters(), lr=rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.1)
    for _ in range(steps):
        rows = torch.randint(len(x), (min(BATCH, len(x)),))
        step_of(module, optimizer, x[rows], labels[rows])
        schedule.step()
    return module.eval()


def certified(module: nn.Module, x: Tensor, labels: Tensor) -> dict[str, float]:
    result = lc.certify(lc.freeze(module), x, labels)
    return {
        name: float(result.correct.double().mean()) if name == "natural" else result.certified_accuracy(radius)
        for name, radius in RADII.items()
    }


def step_seconds(x: Tensor, labels: Tensor, classes: int) -> dict[str, float]:
    """CPU seconds of a training step of each method, the methods in turn, the minimum of 15 rounds of 5 steps."""
    made = {name: network(name, x.shape[1], classes, width_of(name, x.shape[1], classes)) for name in METHODS}
    optimizers = {name: torch.optim.Adam(module.parameters(), lr=1e-3) for name, module in made.items()}
    best = dict.fromkeys(METHODS, math.inf)
    for _ in range(15):
        for name, module in made.items():
            start = time.thread_time()
            for _ in range(5):
                step_of(module, optimizers[name], x[:BATCH], labels[:BATCH])
            best[name] = min(best[name], (time.thread_time() - start) / 5)
    return best


def trials(folder: Path, budget: float, done: list[dict]) -> Iterator[dict]:
    """One row for each cost, rate and run that is not there yet."""
    for data, label in SETS.items():
        values, labels, classes = rows_of(folder / f"{data}.rda", label)
        fold = folds_of(labels)
        known = {row["method"]: row for row in done if row["data"] == data and row["kind"] == "cost"}
        if len(known) < len(METHODS):
            seconds = step_seconds(*standardized(values), labels, classes)
            for method in METHODS:
                width = width_of(method, values.shape[1], classes)
                known[method] = {
                    "kind": "cost", "data": data, "method": method, "width": width, "step_seconds": seconds[method],
                    "parameters": count(network(method, values.shape[1], classes, width)),
                    "steps": max(1, round(budget / seconds[method])), "budget": budget,
                }  # fmt: skip
                yield known[method]
        for method in METHODS:
            steps = known[method]["steps"]
            mine = [row for row in done if (row["data"], row["method"]) == (data, method)]
            rates = {row["rate"]: row["validation"] for row in mine if row["kind"] == "rate"}
            train = (fold != 0).nonzero().flatten()
            held, rest = train[::4], torch.tensor([i for place, i in enumerate(train.tolist()) if place % 4])
            for rate in RATES:
                if rate not in rates:
                    x, test = standardized(values[rest], values[held])
                    module = trained(method, x, labels[rest], classes, rate, steps, seed=0)
                    rates[rate] = certified(module, test, labels[held])["36/255"]
                    yield {"kind": "rate", "data": data, "method": method, "rate": rate, "validation": rates[rate]}
            rate = max(RATES, key=lambda rate: rates[rate])
            finished = {(row["fold"], row["seed"]) for row in mine if row["kind"] == "run"}
            for number, seed in ((number, seed) for number in range(FOLDS) for seed in range(SEEDS)):
                if (number, seed) not in finished:
                    x, test = standardized(values[fold != number], values[fold == number])
                    module = trained(method, x, labels[fold != number], classes, rate, steps, seed)
                    accuracy = certified(module, test, labels[fold == number])
                    yield {
                        "kind": "run", "data": data, "method": method, "fold": number, "seed": seed, "rate": rate,
                        "accuracy": accuracy,
                    }  # fmt: skip


def table(rows: list[dict]) -> str:
    """Certified accuracy at 36/255 for each set, and the mean difference to SLL over folds, seeds and sets."""
    runs = {(r["data"], r["method"], r["fold"], r["seed"]): r["accuracy"] for r in rows if r["kind"] == "run"}
    sets = [data for data in SETS if any(key[0] == data for key in runs)]
    lines = [
        "| method | " + " | ".join(sets) + " | minus SLL, 36/255 | minus SLL, 1 |",
        "|---|" + "---:|" * (len(sets) + 2),
    ]
    for method in METHODS:
        cells = []
        for data in sets:
            values = [100 * a["36/255"] for (d, m, _, _), a in runs.items() if (d, m) == (data, method)]
            cells.append(
                f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else "–"
            )
        for radius in ("36/255", "1"):
            gains = [
                statistics.mean(
                    100 * (a[radius] - runs[data, "SLL", f, s][radius])
                    for (d, m, f, s), a in runs.items()
                    if (d, m) == (data, method) and (data, "SLL", f, s) in runs
                )
                for data in sets
                if any((d, m) == (data, method) for d, m, _, _ in runs)
            ]
            cells.append(f"{statistics.mean(gains):+.1f}" if gains else "–")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=1.5, help="CPU seconds of one training")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/results.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    for row in trials(args.folder, args.budget, list(done)):
        done.append(row)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    print(table(done))
    if args.docs:
        page = Path(__file__).parents[1] / "docs" / "results.md"
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        command = "`python benchmarks/tables.py FOLDER --out results/tables.jsonl --docs` → `results/tables.jsonl`"
        made = f"{BEGIN}\n{table(done)}\n\n{command}\n{END}"
        page.write_text(f"{before}{made}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
