"""Which recipe is best in a few minutes of one CPU thread? Tried on a validation split, never on the test set.

Trains on 45,000 images of CIFAR-10 or 55,000 of Fashion-MNIST until the budget of CPU time is spent, the schedule
following that time, and evaluates the 5,000 images held out. One row per call, appended.

Run: python benchmarks/recipe.py --budget 180 --out results/training/search.jsonl schedule=linear augment=flip
     python benchmarks/recipe.py --docs docs/training.md     (the tables of the page, from results/training)
Rows: settings, steps, epochs, CPU seconds, parameters; natural and certified accuracy (36, 72, 108 of 255, and 1)
on the validation images and on 5,000 training images, %. Shared noisy cores: rows differ in the steps they got.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from lipcert.data.augment import augmentation
from lipcert.data.registry import load_data
from lipcert.models.build import build
from lipcert.models.presets import model_spec
from lipcert.training.config import TrainConfig, learning_rate_factor
from lipcert.training.objective import certified_hits, make_loss

RADII = ("36/255", "72/255", "108/255", "1")


def accuracy(model: torch.nn.Module, data: object) -> list[float]:
    """Natural, then certified at each radius, %, of the first 5,000 images."""
    sums = torch.zeros(1 + len(RADII))
    with torch.no_grad():
        count_hits = certified_hits(model)
        for start in range(0, 5000, 500):
            part = slice(start, start + 500)
            inputs = (data.images[part].float() / 255).contiguous(memory_format=torch.channels_last)
            hits = count_hits(inputs, data.labels[part])
            names = ("natural", *(f"certified {radius}" for radius in RADII))
            sums += torch.stack([hits[name].sum() for name in names])
    return [round(float(value) / 50, 1) for value in sums]


COLUMNS = ("natural", *RADII)


def offsets_table(rows: list[dict]) -> str:
    """One row per offset, of the runs that differ in nothing else."""
    same = {"data": "cifar10", "model": "sll_tiny", "augment": "flip", "schedule": "linear"}
    chosen = {
        row["settings"]["offset"]: row
        for row in rows
        if row["budget"] == 180 and {k: v for k, v in row["settings"].items() if k != "offset"} == same
    }
    lines = [f"| offset | {' | '.join(COLUMNS)} | steps |", "|---" * (len(COLUMNS) + 2) + "|"]
    for offset, row in sorted(chosen.items()):
        lines.append(f"| {offset:g} | {' | '.join(f'{v:.1f}' for v in row['validation'])} | {row['steps']} |")
    return "\n".join(lines)


def final_table(results: list[dict]) -> str:
    """The runs evaluated on their test sets."""
    lines = [f"| run | data | {' | '.join(COLUMNS)} | CPU minutes | file |", "|---" * (len(COLUMNS) + 4) + "|"]
    for result in results:
        row = result["metrics"][-1]
        figures = [row["natural"], *(row[f"certified {name}"] for name in RADII)]
        minutes = result["summary"]["this_process"]["cpu_seconds"] / 60
        shown = " | ".join(f"{100 * value:.1f}" for value in figures)
        data = f"{result['config']['data']} test"
        lines.append(f"| `{result['config']['model']}` | {data} | {shown} | {minutes:.1f} | `{result['file']}` |")
    return "\n".join(lines)


def page(text: str, folder: Path) -> str:
    """``text`` with its two tables written anew from the files in ``folder``."""
    rows = [json.loads(line) for line in (folder / "search.jsonl").read_text(encoding="utf-8").splitlines()]
    finals = [
        {"file": f"results/training/{path.name}", **json.loads(path.read_text(encoding="utf-8"))}
        for path in sorted(folder.glob("final-*.json"))
    ]
    for name, table in (("offsets", offsets_table(rows)), ("final", final_table(finals))):
        before, rest = text.split(f"<!-- {name}:begin -->")
        text = f"{before}<!-- {name}:begin -->\n{table}\n<!-- {name}:end -->{rest.split(f'<!-- {name}:end -->')[1]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=180, help="CPU seconds of training")
    parser.add_argument("--out", type=Path, default=Path("results/training/search.jsonl"))
    parser.add_argument("--docs", type=Path, help="only write the tables of this page anew")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("settings", nargs="*", help="fields of TrainConfig or of the architecture, name=value")
    arguments = parser.parse_args()
    if arguments.docs:
        text = arguments.docs.read_text(encoding="utf-8")
        arguments.docs.write_text(page(text, arguments.out.parent), encoding="utf-8")
        return
    given = dict(word.split("=", 1) for word in arguments.settings)
    given = {
        k: v if not v.replace(".", "", 1).isdigit() else float(v) if "." in v else int(v) for k, v in given.items()
    }
    known = {k: v for k, v in given.items() if k in TrainConfig.model_fields}
    config = TrainConfig(**{"offset": 0.7071, "data": arguments.data, **known})
    torch.set_num_threads(1)
    whole = load_data(config.data, "train")
    order = torch.randperm(len(whole.labels), generator=torch.Generator().manual_seed(0))
    train, held = whole.take(order[5000:], split="train"), whole.take(order[:5000], split="validation")
    torch.manual_seed(config.seed)
    shape = {"image_shape": tuple(train.images.shape[1:]), "num_classes": len(train.classes)}
    mean = tuple(round(float(m), 6) for m in train.inputs().mean(dim=(0, 2, 3)))
    others = {k: v for k, v in given.items() if k not in known}
    model = build(model_spec(config.model, mean=mean, **shape, **others))
    loss_of, augment, step = make_loss(config), augmentation(config.augment), 0
    optimizer = torch.optim.Adam(model.parameters(), config.learning_rate, (config.beta1, config.beta2))
    per_epoch, began, progress = -(-len(train.labels) // config.batch_size), time.process_time(), 0.0
    while progress < 1:
        epoch, index = divmod(step, per_epoch)
        if index == 0:
            order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(epoch))
        batch = order[index * config.batch_size :][: config.batch_size]
        numbers = augment.draw(len(batch), torch.Generator().manual_seed(step))
        inputs = augment.apply(train.images[batch].float() / 255, numbers)
        progress = min(1.0, (time.process_time() - began) / arguments.budget)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * learning_rate_factor(progress, config.schedule)
        logits = model(inputs.contiguous(memory_format=torch.channels_last))
        loss = loss_of(
            model, inputs.contiguous(memory_format=torch.channels_last), logits, train.labels[batch], progress
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    seconds = time.process_time() - began
    model.eval()
    row = {
        "settings": {"data": config.data, "model": config.model, "offset": config.offset, **given},
        "budget": arguments.budget,
        "steps": step,
        "epochs": round(step / per_epoch, 2),
        "cpu_seconds": round(seconds),
        "parameters": sum(p.numel() for p in model.parameters()),
        "validation": accuracy(model, held),
        "training": accuracy(model, train),
    }
    with arguments.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))


if __name__ == "__main__":
    main()
