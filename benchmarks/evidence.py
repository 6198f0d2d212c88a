"""Comparison of methods and attack: from run folders to results/, and from there to the tables of the pages.

Run: lipcert compare … --out OUT              (the command is in each file of results/comparison)
     python benchmarks/evidence.py --collect OUT --out results/comparison/NAME.json
     python benchmarks/evidence.py --continue results/comparison/NAME.json --out OUT    (see below)
     python benchmarks/evidence.py --memory results/comparison/NAME.json    (peaks alone, by three steps of each)
     python benchmarks/evidence.py --inference results/comparison/NAME.json    (frozen networks anew, side by side)
     python benchmarks/evidence.py --attacked RUN --out results/attacked/NAME
     python benchmarks/evidence.py --steps results/step-cost.json
     python benchmarks/evidence.py --docs     (the generated tables and figures of the pages, from results/)
A comparison that is not finished yet gives the rows of what is. To continue one whose folder is gone, --continue
writes a folder with its costs and its trials of learning rates and prints the command that runs what it lacks;
--collect adds those rows to the file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from lipcert.certified.freeze import freeze
from lipcert.data.registry import load_data
from lipcert.experiments.compare import Row, finished_rows
from lipcert.experiments.comparison import Comparison
from lipcert.experiments.cost import inference_seconds, step_seconds
from lipcert.experiments.paper import PAPER
from lipcert.experiments.plan import Spread, spread
from lipcert.files import atomic_file, write_json
from lipcert.models.build import build
from lipcert.records import METHODS, RADII, RunFolder
from lipcert.reports.tables import markdown_table
from lipcert.runs import Run
from lipcert.training.loop import spec_of

ROOT = Path(__file__).parent.parent
TITLES = {
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "TinyImageNet",
}
PAGES = ("README.md", "docs/results.md", "docs/speed.md", "results/comparison.md", "results/reviews.md")


def command(plan: Comparison) -> str:
    flags = " ".join(
        f"--{name.replace('_', '-')} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in plan.model_dump().items()
        if value is not None and value != Comparison.model_fields[name].default
    )
    return f"lipcert compare {flags}"


def collect(out: Path) -> dict:
    """A comparison folder in one record: what was planned, measured and found."""
    plan = Comparison(**json.loads((out / "settings.json").read_text(encoding="utf-8")))
    rates, rows = out / "rates.json", finished_rows(plan, out)
    return {
        "command": command(plan) + ("" if any(row.attacked for row in rows) else " --attack none"),
        "plan": plan.model_dump(mode="json"),
        "cost": json.loads((out / "cost.json").read_text(encoding="utf-8")),
        "rates": json.loads(rates.read_text(encoding="utf-8")) if rates.is_file() else None,
        "rows": [asdict(row) for row in rows],
        "runs": [run_record(path.parent) for path in sorted(out.glob("runs/*/certified.json"))],
    }


def continue_from(path: Path, out: Path) -> str:
    """A folder in which ``lipcert compare`` runs the methods that the record lacks, at its prices and its rates."""
    record = json.loads(path.read_text(encoding="utf-8"))
    done = {row["method"] for row in record["rows"]}
    missing = [method for method in record["plan"]["methods"] if method not in done]
    out.mkdir(parents=True)
    plan = record["plan"] | {"methods": missing}
    write_json(out / "settings.json", plan)
    rows = [
        {"data": data, "model": model, "step_seconds": seconds, "forward_seconds": 0.0}
        for (data, model), seconds in prices(record).items()
    ]
    write_json(out / "cost.json", {"rows": rows})
    if record["rates"]:
        write_json(out / "rates.json", record["rates"])
    return f"{command(Comparison(**plan))} --out {out}"


def prices(record: dict) -> dict[tuple[str, str], float]:
    """CPU seconds of a training step by data set and model; older records name the method instead."""
    size = record["plan"]["size"]
    return {
        (row["data"], row.get("model") or f"{row['method']}_{size}"): row["step_seconds"]
        for row in record["cost"]["rows"]
    }


def joined(record: dict, path: Path) -> dict:
    """``record`` with the rows that the file at ``path`` has of the same plan and prices and the record lacks."""
    if not path.is_file():
        return record
    old = json.loads(path.read_text(encoding="utf-8"))
    if {**old["plan"], "methods": 0} != {**record["plan"], "methods": 0} or prices(old) != prices(record):
        return record
    new = {row["method"] for row in record["rows"]}
    rows = [row for row in old["rows"] if row["method"] not in new] + record["rows"]
    runs = {run["run"]: run for run in old["runs"] + record["runs"]}
    order = old["plan"]["methods"].index
    return old | {
        "rows": sorted(rows, key=lambda row: order(row["method"])),
        "runs": [runs[k] for k in sorted(runs)],
    }


def run_record(folder: Path) -> dict:
    run, shares = Run(folder).check(), {"examples", "natural", "certified", "attacked"}
    rows = run.attacked.rows if run.attacked else ()
    return {
        "run": folder.name,
        "natural": run.natural,
        "certified": {name: run.certified(radius) for name, radius in RADII.items()},
        "attacked": {row.eps: row.model_dump(include=shares) for row in rows},
        "cpu_seconds": run.record.cpu_seconds,
    }


def measure_memory(path: Path) -> dict:
    """The record with each peak measured anew: three steps and the evaluation, in a process of their own."""
    record = json.loads(path.read_text(encoding="utf-8"))
    plan = Comparison(**record["plan"])
    for row in record["rows"]:
        config = plan.config(row["data"], row["method"], row["learning_rate"], 3)
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "lipcert", "train", "--out", f"{folder}/run", "--threads", "1"]
            for name in ("model", "data", "steps", "batch_size", "learning_rate", "schedule", "offset", "augment"):
                words += [f"--{name.replace('_', '-')}", str(getattr(config, name))]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            row["peak_bytes"] = RunFolder(f"{folder}/run").record.peak_bytes
    return record | {"memory": f"python benchmarks/evidence.py --memory {path}"}


def measure_inference(path: Path) -> dict:
    """The record with the inference of each frozen network measured anew, as built: weights do not change it."""
    record = json.loads(path.read_text(encoding="utf-8"))
    plan = Comparison(**record["plan"])
    for name in plan.data:
        data, test = load_data(name, "train", root=plan.data_root), load_data(name, "test", root=plan.data_root)
        mine = [row for row in record["rows"] if row["data"] == name]
        configs = {row["method"]: plan.config(name, row["method"], row["learning_rate"], 1) for row in mine}
        frozen = {method: freeze(build(spec_of(config, data))) for method, config in configs.items()}
        seconds = inference_seconds(frozen, test.images[: plan.batch_size].float() / 255)
        for row in mine:
            row["inference_seconds"] = seconds[row["method"]]
    return record | {"inference": f"python benchmarks/evidence.py --inference {path}"}


def rows_of(record: dict) -> list[Row]:
    """The rows of a record as the command has them."""
    made = []
    for row in record["rows"]:
        spreads = {name: {k: Spread(**v) for k, v in row[name].items()} for name in ("certified", "attacked")}
        runs = [run for run in record["runs"] if run["run"].rpartition("-")[0] == f"{row['data']}-{row['method']}"]
        first = [next(iter(run["attacked"].values()))["natural"] for run in runs if run["attacked"]]
        spreads["attacked_natural"] = spread(first) if first else None
        made.append(Row(**{**row, "natural": Spread(**row["natural"]), **spreads}))
    return made


def merged(path: Path) -> list[dict]:
    """The record at ``path``, and those of NAME+more.json, whose rows take the place of its own."""
    return [
        json.loads(one.read_text(encoding="utf-8")) for one in (path, *sorted(path.parent.glob(f"{path.stem}+*")))
    ]


def merged_rows(path: Path) -> list[Row]:
    rows = {(row.data, row.method): row for record in merged(path) for row in rows_of(record)}
    return list(rows.values())


def summary_block(folder: Path) -> str:
    """The methods on both data sets at equal time."""
    columns = [("fashion_mnist", ("36/255", "108/255")), ("cifar10", ("36/255", "108/255"))]
    rows = {name: {row.method: row for row in merged_rows(folder / f"{name}.json")} for name, _ in columns}
    head, lines = ["method"], []
    for name, radii in columns:
        head += [f"{TITLES[name]}: natural", *(f"certified {radius}" for radius in radii)]
    for method in rows["cifar10"]:
        line = [method]
        for name, radii in columns:
            row = rows[name][method]
            line += [row.natural.percent(), *(row.certified[radius].percent() for radius in radii)]
        lines.append(line)
    files = ", ".join(
        f"`results/comparison/{path.name}`" for name, _ in columns for path in sorted(folder.glob(f"{name}*.json"))
    )
    return f"{markdown_table(head, lines)}\n\n`lipcert compare`, the commands are in {files}"


def headline_block(folder: Path) -> str:
    """The best network of each data set and three methods on two of them, each with its budget, for the README."""
    radii, lines = ("36/255", "72/255", "108/255"), []
    best = {row.data: (row, record) for row, record in budget_rows(folder.parent / "budgets")}
    for name, title in TITLES.items():
        named: list[tuple[str, Row, float]] = []
        if (path := folder / f"{name}.json").is_file():
            plan = json.loads(path.read_text(encoding="utf-8"))["plan"]
            rows = {row.method: row for row in merged_rows(path)}
            named = [
                (f"{m}_{plan['size']}", rows[m], plan["seconds"]) for m in ("sll", "cpl_surrogate", "orthogonal")
            ]
        if name in best:
            row, record = best[name]
            named.insert(0, (f"{row.method}_{record['plan']['size']}", row, spent(row, record)))
        for network, row, seconds in named:
            budget = f"{seconds / 60:.3g} CPU minutes, {row.seeds} seed{'s' * (row.seeds > 1)}"
            shares = [row.natural.percent(), *(row.certified[radius].percent() for radius in radii)]
            lines.append([title, f"`{network}`", budget, *shares])
    head = ["data", "network", "budget", "natural", "certified 36/255", "72/255", "108/255"]
    return markdown_table(head, lines)


def budget_rows(folder: Path) -> list[tuple[Row, dict]]:
    """Each row of the files in ``folder`` with its record, the smallest budget first."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    pairs = [(row, record) for record in records for row in rows_of(record)]
    return sorted(pairs, key=lambda pair: pair[1]["plan"]["seconds"])


def spent(row: Row, record: dict) -> float:
    """The most CPU seconds that a run of a row took, one evaluation included."""
    prefix = f"{row.data}-{row.method}"
    return max(run["cpu_seconds"] for run in record["runs"] if run["run"].rpartition("-")[0] == prefix)


def budgets_block(folder: Path) -> str:
    """What a budget of one CPU thread gives on each data set, and below it the paper's smallest network."""
    images = {"fashion_mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000}
    radii, tables = ("36/255", "72/255", "108/255", "1"), (PAPER.tables["table1"], PAPER.tables["table2"])
    found, lines = budget_rows(folder), []
    for data, title in TITLES.items():
        mine = [pair for pair in found if pair[0].data == data]
        for row, record in mine:
            plan = record["plan"]
            epochs = row.steps * plan["batch_size"] / images[data]
            budget = f"{spent(row, record) / 60:.1f} CPU minutes, {epochs:.0f} epochs"
            shares = [row.natural.percent(), *(row.certified[name].percent() for name in radii)]
            lines.append([title, f"`{row.method}_{plan['size']}`", str(row.seeds), budget, *shares])
        for one in (one for table in tables for one in table.rows if mine and one.model == "SLL Small"):
            if one.data == data:
                shares = ["–" if number is None else f"{number:.1f}" for number in one.numbers[:5]]
                lines.append([title, "SLL Small, the paper", "3", "GPUs, 1000 epochs", *shares])
    commands = {
        path: json.loads(path.read_text(encoding="utf-8"))["command"] for path in sorted(folder.glob("*.json"))
    }
    files = "\n".join(f"- `{command}` → `{path.relative_to(ROOT)}`" for path, command in commands.items())
    return f"{markdown_table(['data', 'network', 'seeds', 'budget', 'natural', *radii], lines)}\n\n{files}"


def comparison_block(path: Path) -> str:
    """One table of accuracy, attacks and costs, a line for each method; several data sets have a column."""
    rows, radii = merged_rows(path), [name for name in RADII if name != "0.5"]
    sets, attacked = list(dict.fromkeys(row.data for row in rows)), any(row.attacked for row in rows)
    head = ["data"] * (len(sets) > 1) + ["method", "natural", *radii]
    if attacked:
        head += [f"first {max(row.attack_examples for row in rows)}: natural", "attacked, 108/255"]
    head += ["rate", "steps", "step (ms)", "inference (ms)", "memory (GB)", "parameters (M)"]
    lines = []
    for row in rows:
        shares = [row.natural, *(row.certified[name] for name in radii)]
        if attacked:
            shares += [row.attacked_natural, row.attacked.get("108/255")]
        cells = ["–" if share is None else share.percent().replace(" ± ", "±") for share in shares]
        cost = [f"{row.learning_rate:g}", str(row.steps), f"{1000 * row.step_seconds:.0f}"]
        cost += [
            f"{1000 * row.inference_seconds:.0f}",
            f"{row.peak_bytes / 1e9:.2f}",
            f"{row.parameters / 1e6:.2f}",
        ]
        lines.append([row.data] * (len(sets) > 1) + [row.method, *cells, *cost])
    parts = [markdown_table(head, lines), ""]
    files = (path, *sorted(path.parent.glob(f"{path.stem}+*")))
    for record, file in zip(merged(path), files, strict=True):
        later = "".join(f"; {name}: `{record[name]}`" for name in ("memory", "inference") if name in record)
        parts.append(f"`{record['command']}` → `{file.relative_to(ROOT)}`{later}")
    return "\n".join(parts)


def attacked_block(path: Path) -> str:
    record = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        [
            row["eps"],
            *(f"{100 * row[key]:.1f}" for key in ("natural", "certified", "attacked")),
            str(row["points_attacked"]),
        ]
        for row in record["rows"]
    ]
    table = markdown_table(["radius", "natural", "certified", "attacked", "points attacked"], lines)
    return f"{table}\n\n`{record['command']}`, {record['examples']} images → `{path.relative_to(ROOT)}`"


def reproduced_block(path: Path) -> str:
    """Our rows of a table of the paper, below the paper's first of the same group."""
    record = json.loads(path.read_text(encoding="utf-8"))
    columns, first = record["columns"], {}
    for row in record["rows"]:
        if row["paper"]:
            first.setdefault((row["data"], row["group"]), (f"{row['model']}, paper", row["paper"]))
    lines = []
    for row in record["rows"]:
        if row["ours"]:
            ours = (f"{row['model']}, ours", {c: row["ours"][c]["mean"] for c in columns})
            for name, values in filter(None, (first.get((row["data"], row["group"])), ours)):
                cells = ("–" if values[c] is None else f"{values[c]:.1f}" for c in columns)
                lines.append([row["group"], name, *cells])
    head = [record["stubs"][0], "network", *columns]
    return f"{markdown_table(head, lines)}\n\n`{record['command']}` → `{path.relative_to(ROOT)}`"


def measure_steps() -> dict:
    """CPU seconds of a training step of each method, side by side on one thread."""
    methods = ("sll", "sn", "sn_surrogate", "cpl", "cpl_surrogate")
    plan, data = Comparison(), load_data("cifar10", "train")
    seconds = step_seconds({method: (plan.config("cifar10", method, 0.01, 1), data) for method in methods})
    return {
        "command": "python benchmarks/evidence.py --steps results/step-cost.json",
        "what": "CPU seconds of one training step, *_tiny, batch 256, minimum of 6 interleaved repeats",
        "threads": 1,
        "machine": f"{platform.machine()}, torch {torch.__version__}",
        "step_seconds": seconds,
    }


def steps_block(path: Path) -> str:
    record = json.loads(path.read_text(encoding="utf-8"))
    base = record["step_seconds"]["sll"]
    lines = [[name, f"{s:.2f} s", f"{s / base:.1f}"] for name, s in record["step_seconds"].items()]
    table = markdown_table(["method, `tiny`", "step", "of `sll`"], lines)
    return f"{table}\n\n`{record['command']}` → `{path.relative_to(ROOT)}`"


def reviews_block(path: Path) -> str:
    """What a hostile review tried, by claim, and how many cases broke something before the repairs."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    counts: dict[str, list[int]] = {}
    for row in rows:
        for claim in (str(row["claim"]), "all"):
            areas, cases, broken = counts.get(claim, [0, 0, 0])
            counts[claim] = [areas + 1, cases + row["cases"], broken + row["found"]]
    lines = [[claim, *(f"{number:,}" for number in counts[claim])] for claim in sorted(counts)]
    return f"{markdown_table(['claim', 'areas', 'cases', 'found'], lines)}\n\n`{path.relative_to(ROOT)}`"


def times_block(path: Path) -> str:
    """The time that ``lipcert reproduce`` states before it starts."""
    record = json.loads(path.read_text(encoding="utf-8"))
    rows = [(row["command"], row["cpu_minutes"], row["two_jobs_minutes"]) for row in record["rows"]]
    lines = [[f"`{command}`", f"{cpu:g} min", f"{two:g} min"] for command, cpu, two in rows]
    table = markdown_table(["command", "CPU time", "time with `--jobs 2`"], lines)
    return f"{table}\n\n`{path.relative_to(ROOT)}` ({record['machine']})"


def rivals_block(path: Path) -> str:
    """Every certifier on Fashion-MNIST, as far as ``benchmarks/rivals.py`` is."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [
        [
            row["network"],
            row["method"],
            f"{row['images']:,}",
            f"{100 * row['natural']:.1f}",
            *(f"{100 * share:.1f}" for share in row["certified"].values()),
            f"{row['milliseconds_per_image']:.3g} ms",
        ]
        for row in sorted(rows, key=lambda row: (row["network"], row["images"], row["method"]))
    ]
    header = ["network", "method", "images", "natural", *rows[0]["certified"], "CPU per image"]
    return f"{markdown_table(header, lines)}\n\n`python benchmarks/rivals.py` → `{path.relative_to(ROOT)}`"


def blocks() -> dict[str, str]:
    """The generated blocks of the pages, by name."""
    found = {"steps": steps_block(ROOT / "results/step-cost.json")}
    found["summary"] = summary_block(ROOT / "results/comparison")
    found["headline"] = headline_block(ROOT / "results/comparison")
    found["budgets"] = budgets_block(ROOT / "results/budgets")
    found["reviews"] = reviews_block(ROOT / "results/hostile.json")
    found["times"] = times_block(ROOT / "results/reproduce-times.json")
    found["rivals"] = rivals_block(ROOT / "results/rivals.jsonl")
    for path in (ROOT / "results/comparison").glob("*.json"):
        if "+" not in path.name:  # otherwise it is part of another
            found[f"comparison-{path.stem}"] = comparison_block(path)
    for path in (ROOT / "results/reproduced").glob("*.json"):
        found[f"reproduced-{path.stem}"] = reproduced_block(path)
    found |= {f"attacked-{path.stem}": attacked_block(path) for path in (ROOT / "results/attacked").glob("*.json")}
    return found


def page(text: str) -> str:
    """``text`` with every marked block written anew; a mark without a result is an error."""
    found = blocks()
    names = r"(?:comparison|attacked|reproduced)-\S+|steps|summary|headline|budgets|reviews|times|rivals"
    for name in re.findall(rf"<!-- ({names}):begin -->", text):
        if name not in found:
            raise ValueError(f"no result for {name}; results/ has {', '.join(sorted(found))}")
    for name, block in found.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin in text:
            before, rest = text.split(begin)
            text = f"{before}{begin}\n{block}\n{end}{rest.split(end)[1]}"
    return text


def figure(certified: Path, attacked: Path):
    """Certified accuracy against the radius, of all images and of the attacked ones; the latter under attack."""
    import altair as alt

    rows = [json.loads(line) for line in gzip.decompress(certified.read_bytes()).decode().splitlines()]
    record = json.loads(attacked.read_text(encoding="utf-8"))
    few = record["examples"]
    names = [
        f"certified, all {len(rows):,} test images",
        f"certified, the first {few}",
        f"AutoAttack, the first {few}",
    ]
    curves = [
        {
            "radius": step / 255,
            "share": 100 * sum(row["radius"] > step / 255 for row in part) / len(part),
            "what": name,
        }
        for name, part in zip(names, (rows, rows[:few]), strict=False)
        for step in range(0, 257, 3)
    ]
    points = [
        {"radius": row["radius"], "share": 100 * row["attacked"], "eps": row["eps"], "what": names[2]}
        for row in record["rows"]
    ]
    x = alt.X(
        "radius:Q", title="L2 radius of the perturbation (pixels in [0, 1])", scale=alt.Scale(domain=[0, 1.02])
    )
    y = alt.Y("share:Q", title="accuracy (%)", scale=alt.Scale(domain=[0, 80]))
    color = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(domain=names, range=["#0067a3", "#5bb8ef", "#b84700"]),
        legend=alt.Legend(orient="top-right", labelLimit=400),
    )
    lines = alt.Chart(alt.Data(values=curves)).mark_line(strokeWidth=2.5, interpolate="step-after")
    dots = alt.Chart(alt.Data(values=points)).mark_point(filled=True, size=70, opacity=1)
    texts = dots.mark_text(dy=-12, fontSize=12, color="#b84700").encode(x=x, y=y, text="eps:N")
    layers = (lines.encode(x=x, y=y, color=color), dots.encode(x=x, y=y, color=color), texts)
    return alt.layer(*layers).properties(width=560, height=280, background="#ffffff", title="CIFAR-10, sll_tiny")


FAMILIES = {
    "residual": ("sll", "cpl", "aol", "rescaled"),
    "affine": ("sn", "aol_affine"),
    "orthogonal": ("cayley", "soc", "lot", "eco", "bro", "bcop", "orthogonal"),
    "sandwich": ("sandwich",),
}
COLORS = ["#0067a3", "#7a5195", "#b84700", "#2e7d32"]
COSTS = {  # title → what a row of a comparison says of it
    "training step (ms)": lambda row: 1000 * row["step_seconds"],
    "inference of 256 images (ms)": lambda row: 1000 * row["inference_seconds"],
    "peak memory of a training (GB)": lambda row: row["peak_bytes"] / 1e9,
    "parameters (millions)": lambda row: row["parameters"] / 1e6,
}


def family(method: str) -> str:
    exact = [name for name, members in FAMILIES.items() if method in members]
    return exact[0] if exact else next(n for n, m in FAMILIES.items() if method.startswith(m))


def spread_labels(points: list[dict]) -> None:
    """A height for each name: its point's, moved up until no name nearby is in the way."""
    low, high = min(p["share"] for p in points), max(p["share"] for p in points)
    widest = math.log(max(p["cost"] for p in points) / min(p["cost"] for p in points) * 2)
    placed: list[dict] = []
    for point in sorted(points, key=lambda p: p["share"]):
        point["label"] = point["share"]
        near = [q for q in placed if abs(math.log(q["cost"] / point["cost"])) < widest / 4]
        point["label"] = max([point["share"], *(q["label"] + (high - low) / 20 for q in near)])
        placed.append(point)


def pareto(path: Path):
    """Certified accuracy against each cost; the line joins the methods that no other beats in both."""
    import altair as alt

    record = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in record["rows"] if row["certified"]]
    color = alt.Color(
        "family:N",
        title=None,
        scale=alt.Scale(domain=list(FAMILIES), range=COLORS),
        legend=alt.Legend(orient="top", symbolSize=90),
    )
    panels = []
    for title, cost in COSTS.items():
        points = [
            {
                "method": row["method"],
                "family": family(row["method"]),
                "cost": cost(row),
                "share": 100 * row["certified"]["36/255"]["mean"],
            }
            for row in rows
        ]
        spread_labels(points)
        best = [p for p in points if not any(q["cost"] <= p["cost"] and q["share"] > p["share"] for q in points)]
        reach = [min(p["cost"] for p in points) / 1.3, max(p["cost"] for p in points) * 1.6]
        ticks = alt.Axis(tickCount=4, format="~s" if reach[0] >= 10 else "~g", labelOverlap=True)
        x = alt.X("cost:Q", title=title, axis=ticks, scale=alt.Scale(type="log", domain=reach, nice=False))
        y = alt.Y("share:Q", title="certified at 36/255 (%)", scale=alt.Scale(zero=False, padding=14))
        front = alt.Chart(alt.Data(values=best)).mark_line(
            color="#9aa0a6", interpolate="step-after", strokeWidth=1.5
        )
        dots = alt.Chart(alt.Data(values=points)).mark_point(filled=True, size=80, opacity=1)
        names = alt.Chart(alt.Data(values=points)).mark_text(align="left", dx=7, dy=-5, fontSize=11)
        words = names.encode(x=x, y=alt.Y("label:Q"), text="method:N", color=color)
        layers = (front.encode(x=x, y=y), dots.encode(x=x, y=y, color=color), words)
        panels.append(alt.layer(*layers).properties(width=380, height=260))
    about = f"{record['plan']['data'][0]}, {record['plan']['seconds']:g} s of one thread for each method"
    grid = alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:]))
    return grid.properties(background="#ffffff", title=about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collect", type=Path, help="a folder of lipcert compare")
    parser.add_argument("--continue", type=Path, dest="proceed", help="a file of --collect whose folder is gone")
    parser.add_argument("--memory", type=Path, help="a file of --collect whose peaks are measured again")
    parser.add_argument("--inference", type=Path, help="a file of --collect whose inference is measured again")
    parser.add_argument("--attacked", type=Path, help="a run folder after lipcert attack")
    parser.add_argument("--reproduced", type=Path, help="a folder of lipcert reproduce")
    parser.add_argument("--steps", type=Path, help="measure training steps into this file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the pages anew")
    arguments = parser.parse_args()
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if arguments.steps:
        write_json(arguments.steps, measure_steps())
    if arguments.collect:
        write_json(arguments.out, joined(collect(arguments.collect), arguments.out))
    if arguments.proceed:
        print(continue_from(arguments.proceed, arguments.out))
    if arguments.memory:
        write_json(arguments.memory, measure_memory(arguments.memory))
    if arguments.inference:
        write_json(arguments.inference, measure_inference(arguments.inference))
    if arguments.reproduced:
        record = json.loads((arguments.reproduced / "table.json").read_text(encoding="utf-8"))
        command = f"lipcert reproduce {record['table']} --scale {record['scale']} --seeds {record['seeds']}"
        write_json(arguments.out, {"command": command, **record})
    if arguments.attacked:
        run = RunFolder(arguments.attacked)
        file = next(path for path in map(run.attack_file, METHODS) if path.is_file())
        write_json(arguments.out.with_suffix(".json"), json.loads(file.read_text(encoding="utf-8")))
        with atomic_file(arguments.out.with_suffix(".jsonl.gz")) as path:
            path.write_bytes(gzip.compress(file.with_suffix(".jsonl").read_bytes(), mtime=0))
    if arguments.docs:
        for name in PAGES:
            path = ROOT / name
            path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
        import vl_convert

        drawn = figure(
            ROOT / "results/certified/cifar10-sll_tiny-9-epochs.jsonl.gz",
            ROOT / "results/attacked/cifar10-sll_tiny-9-epochs.json",
        )
        (ROOT / "docs/certified.svg").write_text(vl_convert.vegalite_to_svg(drawn.to_dict()), encoding="utf-8")
        drawn = pareto(ROOT / "results/comparison/rivals.json")
        (ROOT / "docs/pareto.svg").write_text(vl_convert.vegalite_to_svg(drawn.to_dict()), encoding="utf-8")


if __name__ == "__main__":
    main()
