"""Trials of recipes on a validation split, from run folders to rows; and the table of them in docs/training.md.

Each trial is one `lipcert train --validation 5000 …`: 5,000 training images are held out, the test set is not read.
Run: python benchmarks/search.py RUN … --out results/training/deep.jsonl
     python benchmarks/search.py --docs docs/training.md
A run that has a row already is passed over. Rows: the command without what is the default, steps, CPU seconds of
the whole command with its evaluations, parameters, natural and certified accuracy (36, 72, 108 of 255, and 1) on
the validation images, %.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lipcert.runs import Run
from lipcert.training.config import TrainConfig

ROWS = Path(__file__).parent.parent / "results" / "training" / "deep.jsonl"
COLUMNS = ("natural", "certified 36/255", "certified 72/255", "certified 108/255", "certified 1")
IMPLIED = (
    "threads",
    "evaluate_every",
    "checkpoint_every",
    "validation",
    "steps",
    "data",
    "seed",
)  # not in the table


def command(config: TrainConfig) -> str:
    """`lipcert train` with the flags that differ from their defaults."""
    words = ["lipcert train"]
    for name, value in config.model_dump().items():
        if name == "overrides" and value:
            words += ["--overrides", *(f"{field}={number}" for field, number in value.items())]
        elif value != TrainConfig.model_fields[name].default:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return " ".join(words)


def row(folder: Path) -> dict[str, object]:
    run = Run(folder)
    config, found = run.settings, run.metrics[-1]
    if not config.validation:
        raise SystemExit(f"{folder} looked at the test set: it is no trial. Train with --validation 5000.")
    return {
        "command": command(config),
        "steps": run.record.steps,
        "cpu_seconds": round(run.record.cpu_seconds),
        "parameters": run.parameters,
        "validation": [round(100 * found[name], 1) for name in COLUMNS],
    }


def table(rows: list[dict]) -> str:
    """One line per trial, those of a data set together, the best at 36/255 first."""
    lines = ["| data | settings | steps | CPU s | natural | 36/255 | 72/255 | 108/255 | 1 |", "|---" * 9 + "|"]
    for found in sorted(rows, key=lambda row: (dataset(row), -row["validation"][1])):
        figures = " | ".join(f"{value:.1f}" for value in found["validation"])
        lines.append(
            f"| {dataset(found)} | {settings(found)} | {found['steps']} | {found['cpu_seconds']} | {figures} |"
        )
    return "\n".join(lines)


def dataset(found: dict) -> str:
    return found["command"].split("--data ")[1].split()[0]


def settings(found: dict) -> str:
    """The flags, without those that all trials share or that have a column."""
    words = found["command"].split()[2:]
    pairs: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            pairs.append([word])
        else:
            pairs[-1].append(word)
    kept = [" ".join(pair) for pair in pairs if pair[0][2:].replace("-", "_") not in IMPLIED]
    return f"`{' '.join(kept)}`"


def page(text: str) -> str:
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    before, rest = text.split("<!-- trials:begin -->")
    return (
        f"{before}<!-- trials:begin -->\n{table(rows)}\n<!-- trials:end -->{rest.split('<!-- trials:end -->')[1]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=ROWS)
    parser.add_argument("--docs", type=Path, help="only write the table of this page anew")
    arguments = parser.parse_args()
    if arguments.docs:
        arguments.docs.write_text(page(arguments.docs.read_text(encoding="utf-8")), encoding="utf-8")
        return
    have = arguments.out.read_text(encoding="utf-8") if arguments.out.is_file() else ""
    known = {json.loads(line)["command"] for line in have.splitlines()}
    with arguments.out.open("a", encoding="utf-8") as file:
        for folder in arguments.runs:
            found = row(folder)
            if found["command"] not in known:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
