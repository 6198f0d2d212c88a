"""What each table of the paper trains at each scale, without torch, and in words what is not as in the paper.

``full`` is the paper to the letter: 1000 epochs, batch 256, Adam(0.01; 0.5, 0.9), triangular schedule, its
augmentation, offset 3√2/2, temperature 1/4, three seeds, four sizes. ``cpu`` takes its data with a small network
and the best short recipe known here (results/training). ``quick`` only shows that everything works, on digits.

Tables 1, 2, 5 and 6 are trained with the exponential form of q (Appendix D): what the paper trained is not
1-Lipschitz, and nothing can be certified of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from lipcert.experiments.paper import DATA, MODES, OFFSETS, PAPER, SIZES, PaperRow
from lipcert.experiments.plan import Job
from lipcert.models.presets import model_spec
from lipcert.training.config import Augmentation, TrainConfig

TableName = Literal["table1", "table2", "table3", "table5", "offsets", "corrected", "inference"]
ScaleName = Literal["full", "cpu", "quick"]

ALL_OFFSETS = {"√2/2": 2**-0.5, **OFFSETS}  # the first is for short trainings
ALL_MODES = {
    **MODES,
    "sll_shifted": "Shifted (q_j + ε)/(q_i + ε)",
}  # the third of Appendix D, without numbers there


@dataclass(frozen=True)
class Settings:
    """What decides a table; the same settings continue it, others need another folder."""

    table: TableName
    scale: ScaleName
    seeds: int
    data_root: str | None


@dataclass(frozen=True)
class Scale:
    """How a table is run; the defaults are the paper's."""

    sizes: tuple[str, ...] = tuple(SIZES)
    epochs: int = 1000
    long_epochs: int = 1000
    """For TinyImageNet, whose epoch costs eight of CIFAR-10's."""
    seeds: int = 3
    schedule: Literal["triangular", "linear"] = "triangular"
    augment: Augmentation = "sll"
    offset: str = "3√2/2"
    offsets: tuple[str, ...] = tuple(OFFSETS)
    data: Mapping[str, str] = field(default_factory=lambda: {name: name for name in DATA})
    """The paper's data sets, and what stands for each."""
    attack: tuple[str, int] = ("autoattack", 10_000)
    """Method and number of test images."""
    threads: int | None = None

    def config(self, data: str, method: str, size: str, offset: str, seed: int, root: str | None) -> TrainConfig:
        """One run, evaluated at its end."""
        return TrainConfig(
            model=f"{method}_{size}",
            data=self.data[data],
            data_root=root,
            epochs=self.long_epochs if data == "tiny_imagenet" else self.epochs,
            batch_size=256,
            learning_rate=0.01,
            schedule=self.schedule,
            beta1=0.5,
            beta2=0.9,
            loss="offset",
            offset=ALL_OFFSETS[offset],
            temperature=0.25,
            augment=self.augment,
            evaluate_every=10**9,
            seed=seed,
            threads=self.threads,
        )


_PAPER = Scale()
_CPU = Scale(
    sizes=("tiny",),
    epochs=7,
    long_epochs=1,
    seeds=1,
    schedule="linear",
    augment="flip",
    offset="√2/2",
    offsets=tuple(ALL_OFFSETS),
    attack=("autoattack", 64),
    threads=1,
)
_QUICK = replace(_CPU, sizes=("nano",), epochs=15, augment="none", attack=("quick", 32))


def scale_of(table: TableName, name: ScaleName) -> Scale:
    """The scale by name; tables with more runs take fewer epochs on a CPU, so that none exceeds half an hour."""
    if name == "quick":
        first = PAPER[table].rows[0].data  # the others are not run
        return replace(_QUICK, data={first: "digits"})
    if name == "full":
        return _PAPER if table != "inference" else replace(_PAPER, sizes=("xlarge",))
    changes: dict[str, Scale] = {
        "table1": replace(_CPU, sizes=("nano", "tiny")),
        "offsets": replace(_CPU, epochs=4),
        "corrected": replace(_CPU, epochs=5),
    }
    return changes.get(table, _CPU)


@dataclass(frozen=True)
class Planned:
    """One row to make for one data set: the paper's, ours, or both; ``jobs`` has one run for each seed."""

    data: str
    group: str
    model: str
    paper: PaperRow | None
    jobs: tuple[Job, ...] = ()
    source: str = ""
    """The data set that the jobs train on."""


def planned(settings: Settings) -> list[Planned]:
    """The rows of a table of accuracies in the paper's order; ours of other sizes after the paper's of a group."""
    table = settings.table
    scale, paper = scale_of(table, settings.scale), PAPER[table]
    rows = []
    for data, group, method, offset in _groups(table, scale):
        printed = [row for row in paper.rows if (row.data, row.group) == (data, group)]
        mine = {}
        if data in scale.data:
            for size in scale.sizes:
                source = scale.data[data]
                title = SIZES.get(size, f"SLL {size}") if source == data else f"{size}, {source}"
                parts = (source, method, size, *([offset] if table == "offsets" else []))
                slug = "-".join(parts).replace("√", "sqrt").replace("/", "_")
                jobs = [
                    Job(f"runs/{slug}-{seed}", scale.config(data, method, size, offset, seed, settings.data_root))
                    for seed in range(settings.seeds)
                ]
                mine[title] = Planned(data, group, title, None, tuple(jobs), source)
        rows += [
            replace(mine.pop(row.model), paper=row) if row.model in mine else Planned(data, group, row.model, row)
            for row in printed
        ]
        rows += mine.values()
    return rows


def _groups(table: TableName, scale: Scale) -> Iterator[tuple[str, str, str, str]]:
    """Data set, group as printed, method, offset: in the paper's order."""
    for data in dict.fromkeys(row.data for row in PAPER[table].rows):
        if table == "offsets":
            for offset in scale.offsets:
                yield data, offset, "sll", offset
        elif table == "corrected":
            for method, mode in ALL_MODES.items():
                yield data, mode, method, scale.offset
        else:
            yield data, "", "sll", scale.offset


def scaled(settings: Settings) -> list[str]:
    """What differs from the paper's experiment, in words; empty at full scale with its three seeds."""
    table, seeds = settings.table, settings.seeds
    if table == "table3":
        return []
    scale, paper = scale_of(table, settings.scale), scale_of(table, "full")
    words = []
    if scale.sizes != paper.sizes:
        old = ", ".join(SIZES[size].removeprefix("SLL ") for size in paper.sizes)
        words.append(f"size {' and '.join(scale.sizes)} instead of {old}")
    for data, source in scale.data.items():
        if source != data and data in {row.data for row in PAPER[table].rows}:
            words.append(f"{source} instead of {DATA[data]}")
    if table == "inference":
        return words
    if scale.epochs != paper.epochs:
        used = f"{scale.epochs} epochs"
        if table == "table2" and "tiny_imagenet" in scale.data:
            used += f" ({scale.long_epochs} on TinyImageNet)"
        words.append(f"{used} instead of {paper.epochs}")
    if seeds != paper.seeds:
        words.append(f"{seeds} seed{'s' * (seeds > 1)} instead of {paper.seeds}")
    if scale.schedule != paper.schedule:
        words.append(f"{scale.schedule} schedule instead of {paper.schedule}")
    if scale.augment != paper.augment:
        words.append(f"augmentation {scale.augment} instead of crops, flips and colour jitter")
    if scale.offset != paper.offset and table != "offsets":
        words.append(f"offset {scale.offset} instead of {paper.offset}")
    if any(model_spec(f"sll_{size}").init == "orthogonal" for size in scale.sizes):
        words.append("orthonormal start instead of Xavier")
    if table == "table5" and scale.attack != paper.attack:
        attack = {"autoattack": "AutoAttack", "quick": "lipcert attack --method quick"}[scale.attack[0]]
        words.append(f"{attack} on the first {scale.attack[1]} test images instead of AutoAttack on all")
    return words
