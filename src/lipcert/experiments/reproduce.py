"""A table of the paper with ours beside it: the runs that it needs, then one record from which all else is made.

The record, table.json, has the paper's numbers and ours in the same units, what was scaled, every config and every
command. A killed table continues where it was; finished runs are not repeated, and the record is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lipcert.data.catalog import CATALOG
from lipcert.data.dataset import ImageData
from lipcert.data.registry import load_data
from lipcert.errors import DataNotFound
from lipcert.experiments.cost import Times, time_test_set
from lipcert.experiments.paper import PAPER, PaperRow
from lipcert.experiments.plan import CERTIFY_LOCALLY, Cost, Job, Key, Show, diverged, expected, measure, run, spread
from lipcert.experiments.scales import Planned, Settings, planned, scale_of, scaled
from lipcert.jobs import Store, Workers, open_store
from lipcert.models.build import parameters
from lipcert.models.presets import model_spec
from lipcert.records import RADII
from lipcert.runs import Run
from lipcert.training.config import own_loss

FORMAT = "lipcert-reproduce-1"
CERTIFIED_AT_FULL = 256  # images of the certificate that is timed at full scale: it runs on the CPU
SIZES = {name: entry.images for name, entry in CATALOG.items()}


@dataclass
class Table:
    """What a table is made of: its rows, and in words what was scaled and what else to know."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    scaled: list[str]
    notes: list[str]
    ratio: dict[str, float] | None = None  # of two of its rows


def reproduce(
    settings: Settings,
    out: Path,
    workers: Workers,
    *,
    say: Callable[[str], object],
    show: Show,
    restart: bool = False,
) -> dict[str, Any]:
    """Run what is missing in ``out``, write table.json and return it.

    Args:
        say: told what is left to do and how long it will take, before anything is trained.
        show: hears how many training steps are done.
    """
    paper = PAPER.tables[settings.table]
    with open_store(out, asdict(settings), what="a table", restart=restart) as store:
        if paper.kind == "architectures":
            table = _architectures(settings)
        elif paper.kind == "inference":
            table = _inference(settings, store)
        else:
            table = _accuracies(settings, store, workers, say, show)
        record = {
            "format": FORMAT,
            "table": settings.table,
            "scale": settings.scale,
            "seeds": settings.seeds,
            "paper": {"number": paper.number, "label": paper.label, "caption": paper.caption},
            "stubs": list(paper.stubs),
            "columns": list(table.columns),
            "side_by_side": paper.side_by_side,
            "rows": table.rows,
            "scaled": scaled(settings) + table.scaled,
            "notes": PAPER.notes_of(settings.table) + table.notes,
            **({} if table.ratio is None else {"ratio": table.ratio}),
        }
        store.save("table.json", record)
    return record


def record_row(
    data: str, group: str, model: str, paper: PaperRow | None, columns: Sequence[str], **ours: Any
) -> dict[str, Any]:
    """A row of table.json: the paper's numbers by column, and ours, which are none unless given."""
    empty: dict[str, Any] = {"ours": None, "note": "", "seeds": 0, "diverged": 0, "runs": []}
    return {
        "data": PAPER.data[data],
        "group": group,
        "model": model,
        "citation": "" if paper is None else paper.citation,
        "paper": None if paper is None else dict(zip(columns, paper.numbers, strict=True)),
        **empty,
        **ours,
    }


# The tables of accuracies


def _accuracies(
    settings: Settings, store: Store, workers: Workers, say: Callable[[str], object], show: Show
) -> Table:
    rows = planned(settings)
    sources = dict.fromkeys(row.source for row in rows if row.jobs)
    training = {name: images for name in sources if (images := _load(name, "train", settings)) is not None}
    missing = {
        name: f"not run: data not prepared (lipcert data get {name})" for name in sources if name not in training
    }
    count = sum(len(row.jobs) for row in rows if row.source in training)
    if workers.local:  # those without a run of their own help with attacks
        rows = planned(settings, processes=max(1, workers.slots // max(1, count)))
    jobs = [job for row in rows for job in row.jobs if row.source not in missing]
    costs: dict[Key, Cost] = {}
    if settings.scale == "full":
        hours = paper_seconds(jobs) / 3600
        say(f"{len(jobs)} trainings: {hours:,.0f} hours by the paper's seconds per epoch, on its GPUs")
    elif jobs:
        costs = measure(store, jobs, training, say)
        say(expected(store.folder, jobs, costs, SIZES, workers.slots))
    training.clear()  # the processes read it themselves
    if jobs:
        run(jobs, store.folder, workers, SIZES, show)
    made = [_accuracy_row(settings, store.folder, row, costs, missing) for row in rows]
    paper, notes = PAPER.tables[settings.table], []
    if any(row["ours"] for row in made):
        form = "" if paper.varies == "training" else " with exponential scaling (Appendix D),"
        notes.append(f"Ours: SLL{form} certified in floating point by lipcert certify.")
    losses = {own_loss(job.config.model) for row in rows for job in row.jobs}
    if "local" in losses:
        notes.append(
            "Our Local-Lip-B: its loss for 36/255, learning rate 0.001, lipcert certify --method local in balls of "
            "the radii of the table."
        )
    if "gloro" in losses:
        notes.append("Our GloRo: its loss for 36/255, learning rate 0.001, verified norms in the certificate.")
    notes += [paper.ours[settings.scale]] if settings.scale in paper.ours else []
    if paper.kind == "attacked":
        notes.append("Certified answers are not attacked: no attack can change them.")
    return Table(paper.columns, made, [], notes)


def _load(name: str, split: Literal["train", "test"], settings: Settings) -> ImageData | None:
    """The images of a data set, or None if it is not prepared."""
    try:
        return load_data(name, split, root=settings.data_root)
    except DataNotFound:
        return None


def paper_seconds(jobs: Sequence[Job]) -> float:
    """Training time of the jobs on the paper's machine, by Table 1; an epoch of TinyImageNet counts as eight."""
    seconds = {row.model: row.numbers[-1] or 0.0 for row in _first_table()}
    return sum(
        seconds[PAPER.printed(job.config.model).partition(" (")[0]]  # Local-Lip-B (+MaxMin)
        * job.config.epochs
        * (8 if job.config.data == "tiny_imagenet" else 1)
        for job in jobs
    )


def _first_table() -> tuple[PaperRow, ...]:
    """Rows whose last numbers are parameters (M) and seconds per epoch."""
    return next(table.rows for table in PAPER.tables.values() if table.columns[-2:] == ("parameters", "seconds"))


def _accuracy_row(
    settings: Settings, out: Path, row: Planned, costs: Mapping[Key, Cost], missing: Mapping[str, str]
) -> dict[str, Any]:
    columns = PAPER.tables[settings.table].columns
    if not row.jobs or row.source in missing:
        return record_row(row.data, row.group, row.model, row.paper, columns, note=missing.get(row.source, ""))
    good = [job for job in row.jobs if not diverged(out, job)]
    values = [_values(settings, out, job, costs) for job in good]
    ours = {column: asdict(spread([value[column] for value in values])) for column in columns} if values else None
    return record_row(
        row.data,
        row.group,
        row.model,
        row.paper,
        columns,
        ours=ours,
        note="" if good else "diverged: the loss became NaN for every seed",
        seeds=len(good),
        diverged=len(row.jobs) - len(good),
        runs=[_commands(job) for job in row.jobs],
    )


def _values(settings: Settings, out: Path, job: Job, costs: Mapping[Key, Cost]) -> dict[str, float]:
    """The numbers of one run, in the units of the paper's columns."""
    run = Run(out / job.name).check()
    run = run.by("local") if CERTIFY_LOCALLY in job.stages else run
    if PAPER.tables[settings.table].kind == "attacked":
        attack = run.attack_with(job.stages[-1].method)
        return {row.eps: 100 * row.attacked for row in attack.rows} if attack else {}
    seconds = run.record.seconds / job.config.epochs
    if settings.scale != "full":  # measured steps: what else runs on a CPU does not count
        seconds = costs[job.key].step_seconds * job.steps(SIZES) / job.config.epochs
    return {
        "natural": 100 * (run.natural or 0),
        **{name: 100 * (run.certified(radius) or 0) for name, radius in RADII.items()},
        "parameters": run.parameters / 1e6,
        "seconds": seconds,
    }


def _commands(job: Job) -> dict[str, Any]:
    """A run with the commands that repeat it, in the folder of table.json."""
    commands = [f"lipcert train --config jobs/{job.name}.config.json --out {job.name}"]
    commands += [" ".join(("lipcert", stage.command, job.name, *stage.flags)) for stage in job.stages]
    return {"folder": job.name, "config": job.config.model_dump(mode="json"), "commands": commands}


# The tables that train nothing


def _architectures(settings: Settings) -> Table:
    """Columns S, M, L, XL; the printed sizes beside those that have the printed number of parameters."""
    paper = PAPER.tables[settings.table]
    columns = tuple(row.model for row in paper.rows)
    specs = [model_spec(f"sll_{size}") for size in PAPER.sizes]
    millions = {row.model: row.numbers[-2] for row in _first_table()}
    fields = ("conv_layers", "channels", "dense_layers", "dense_hidden")
    lines: list[tuple[str, list[Any] | None, list[Any]]] = [
        (name, [row.numbers[index] for row in paper.rows], [getattr(spec, field) for spec in specs])
        for index, (name, field) in enumerate(zip(paper.columns, fields, strict=True))
    ]
    ours, printed = (
        [parameters(model_spec(f"{kind}_{size}")) / 1e6 for size in PAPER.sizes] for kind in ("sll", "sll_table3")
    )
    lines.append(("Parameters (M), Table 1", [millions[name] for name in PAPER.sizes.values()], ours))
    lines.append(("… of the printed sizes", None, printed))
    rows = []
    for name, theirs, mine in lines:
        row = record_row(paper.rows[0].data, "", name, None, columns)
        row["paper"] = None if theirs is None else dict(zip(columns, theirs, strict=True))
        row["ours"] = {c: {"mean": v, "deviation": None} for c, v in zip(columns, mine, strict=True)}
        rows.append(row)
    return Table(columns, rows, [], [])


def _inference(settings: Settings, store: Store) -> Table:
    """The paper's two times and ours."""
    paper, scale = PAPER.tables[settings.table], scale_of(settings.table, settings.scale)
    data, columns = paper.rows[0].data, paper.columns
    rows = [record_row(data, "", row.model, row, columns) for row in paper.rows]
    made = Table(columns, rows, [], [])
    test = _load(scale.data[data], "test", settings) or _load("cifar10", "test", settings)
    if test is None:
        rows[-1]["note"] = f"not run: data not prepared (lipcert data get {data}, or cifar10)"
        return made
    if test.name == "cifar10":
        made.scaled.append(
            f"the test images of CIFAR10 instead of those of {PAPER.data[data]}, which are not prepared"
        )
    for size in scale.sizes:
        times = _times(f"sll_{size}", test, settings, store, f"inference-{test.name}-{size}.json")
        title = PAPER.sizes.get(size, f"SLL {size}")
        if test.name != data:
            title += f", {PAPER.data.get(test.name, test.name)}"
        mine = next((row for row in rows if row["model"] == title), None)
        if mine is None:
            mine = record_row(data, "", title, None, columns)
            rows.append(mine)
        mine |= {"ours": {columns[0]: {"mean": times.forward, "deviation": None}}, "seeds": 1}
        certificate = {columns[0]: {"mean": times.certificate, "deviation": None}}
        rows.append(record_row(data, "", f"{title}, certificate", None, columns, ours=certificate, seeds=1))
        if times.device == "cpu":
            made.scaled.append("one CPU thread instead of 4 GPUs")
        if times.certified < times.images:
            made.scaled.append(f"the certificate is timed on {times.certified} images, in proportion")
    _time_rival(made, test, times, settings, store)
    return made


def _time_rival(made: Table, test: ImageData, sll: Times, settings: Settings, store: Store) -> None:
    """The row of Local-Lip-B, and how much longer its certificate takes than that of SLL, on the same machine."""
    name, paper = "Local-Lip-B", PAPER.tables[settings.table]
    scale = scale_of(settings.table, settings.scale)
    size = "8c2f" if settings.scale == "full" else scale.sizes[-1]
    file = f"inference-{test.name}-local-{size}.json"
    times = _times(f"local_{size}", test, settings, store, file, method="local")
    ours = {paper.columns[0]: {"mean": times.certificate, "deviation": None}}
    if settings.scale == "full" and test.name == paper.rows[0].data:
        next(row for row in made.rows if row["model"] == name).update(ours=ours, seeds=1)
    else:
        where = "" if test.name == paper.rows[0].data else f", {PAPER.data.get(test.name, test.name)}"
        made.rows.append(
            record_row(paper.rows[0].data, "", f"{name} {size}{where}", None, paper.columns, ours=ours, seeds=1)
        )
    if times.certified < times.images and times.certified != sll.certified:
        made.scaled.append(f"{name} is timed on {times.certified} images, in proportion")
    printed = {row.model: row.numbers[0] or 0.0 for row in paper.rows}
    made.ratio = {
        "paper": printed[name] / printed[PAPER.sizes["xlarge"]],
        "ours": times.certificate / sll.certificate,
    }
    made.notes.append(
        f"{name} takes {made.ratio['ours']:.2g} times as long as the certificate of SLL on this machine, and "
        f"{made.ratio['paper']:.0f} times as long as SLL in the paper."
    )


def _times(
    model: str, test: ImageData, settings: Settings, store: Store, name: str, *, method: str = "lipschitz"
) -> Times:
    """Measured once: a repeated command gives the same rows."""
    stored = store.load(name)
    if stored is None:
        limit = CERTIFIED_AT_FULL if settings.scale == "full" or method == "local" else None
        stored = asdict(time_test_set(model, test, examples=limit, method=method))
        store.save(name, stored)
    return Times(**stored)
