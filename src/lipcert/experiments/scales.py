"""What each table of the paper trains at each scale, without torch, and in words what is not as in the paper.

``full`` is the paper to the letter: 1000 epochs, batch 256, Adam(0.01; 0.5, 0.9), triangular schedule, its
augmentation, offset 3√2/2, temperature 1/4, three seeds, four sizes. ``cpu`` takes its data with a small network
and the best short recipe known here (results/training). ``quick`` only shows that everything works, on digits.

All tables but the seventh are trained with the exponential form of q (Appendix D): what the paper trained is not
1-Lipschitz, and nothing can be certified of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lipcert.experiments.paper import PAPER, PaperRow
from lipcert.experiments.plan import CERTIFY, CERTIFY_LOCALLY, Job, attack_stage
from lipcert.models.presets import model_spec
from lipcert.training.config import Augmentation, TrainConfig, own_loss

ScaleName = Literal["full", "cpu", "quick"]

OFFSETS = {"√2/2": 2**-0.5, **PAPER.offsets}  # the first is for short trainings
MODES = {**PAPER.modes, "sll_shifted": "Shifted (q_j + ε)/(q_i + ε)"}  # the last has no numbers in Appendix D
RADII = ("36/255", "72/255", "108/255", "1")


@dataclass(frozen=True)
class Settings:
    """What decides a table."""

    table: str
    scale: ScaleName
    seeds: int
    data_root: str | None


@dataclass(frozen=True)
class Scale:
    """How a table is run; the defaults are the paper's."""

    sizes: tuple[str, ...] = tuple(PAPER.sizes)
    epochs: int = 1000
    long_epochs: int = 1000
    """For TinyImageNet, whose epoch costs eight of CIFAR-10's."""
    seeds: int = 3
    schedule: Literal["triangular", "linear"] = "triangular"
    augment: Augmentation = "sll"
    offset: str = "3√2/2"
    offsets: tuple[str, ...] = tuple(PAPER.offsets)
    data: Mapping[str, str] = field(default_factory=lambda: {name: name for name in PAPER.data})
    """The paper's data sets, and what stands for each."""
    attack: tuple[str, int] = ("autoattack", 10_000)
    """Method and number of test images."""
    threads: int | None = None

    def config(self, data: str, model: str, offset: str, seed: int, root: str | None) -> TrainConfig:
        """One run, evaluated at its end; a model whose norms are tracked has its own loss and a smaller rate."""
        own = own_loss(model)
        recipe: dict[str, Any] = {"loss": own or "offset", "learning_rate": 0.001 if own else 0.01}
        if own is None:
            recipe |= {"offset": OFFSETS[offset], "temperature": 0.25}
        return TrainConfig(
            model=model,
            data=self.data[data],
            data_root=root,
            epochs=self.long_epochs if data == "tiny_imagenet" else self.epochs,
            batch_size=256,
            schedule=self.schedule,
            beta1=0.5,
            beta2=0.9,
            augment=self.augment,
            evaluate_every=10**9,
            seed=seed,
            threads=self.threads,
            **recipe,
        )


_CPU = Scale(
    sizes=("tiny",),
    epochs=7,
    long_epochs=1,
    seeds=1,
    schedule="linear",
    augment="flip",
    offset="√2/2",
    offsets=tuple(OFFSETS),
    attack=("autoattack", 64),
    threads=1,
)
_QUICK = replace(_CPU, sizes=("nano",), epochs=15, augment="none", attack=("quick", 32))


def scale_of(table: str, name: ScaleName) -> Scale:
    """The scale by name; tables with more runs take fewer epochs on a CPU, so that none exceeds half an hour."""
    paper = PAPER.tables[table]
    quick = replace(_QUICK, data={paper.rows[0].data: "digits"})  # the other data sets are not run
    changes: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in paper.scales.get(name, {}).items()
    }
    return replace({"full": Scale(), "cpu": _CPU, "quick": quick}[name], **changes)


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


def planned(settings: Settings, processes: int = 1) -> list[Planned]:
    """The rows of a table of accuracies in the paper's order; ours of other sizes after the paper's of a group.

    An attack may use so many ``processes``.
    """
    scale, paper = scale_of(settings.table, settings.scale), PAPER.tables[settings.table]
    stages = [CERTIFY]
    if paper.kind == "attacked":
        stages.append(attack_stage(*scale.attack, "--eps", *RADII, processes=processes))
    rows = []
    for data, group, method, offset in _groups(settings.table, scale):
        printed = [row for row in paper.rows if (row.data, row.group) == (data, group)]
        mine = {}
        names = [row.model for row in printed]
        for title, model in _models(scale, data, names, method) if data in scale.data else ():
            source = scale.data[data]
            words = (source, *model.rsplit("_", 1), *([offset] if paper.varies == "offset" else []))
            slug = "-".join(words).replace("√", "sqrt").replace("/", "_")
            jobs = [
                Job(
                    f"runs/{slug}-{seed}",
                    scale.config(data, model, offset, seed, settings.data_root),
                    (*stages, CERTIFY_LOCALLY) if own_loss(model) == "local" else tuple(stages),
                )
                for seed in range(settings.seeds)
            ]
            mine[title] = Planned(data, group, title, None, tuple(jobs), source)
        rows += [
            replace(mine.pop(row.model), paper=row) if row.model in mine else Planned(data, group, row.model, row)
            for row in printed
        ]
        rows += mine.values()
    return rows


def _models(scale: Scale, data: str, printed: list[str], method: str) -> Iterator[tuple[str, str]]:
    """Title and name of each model to train: rivals that the paper prints for this data, in the largest size, then
    SLL in all sizes.
    """
    source = scale.data[data]
    for name, rival in PAPER.rivals.items():
        if name in printed and scale.sizes == Scale.sizes:
            yield name, rival.models[data]
        elif name in printed:
            size = scale.sizes[-1]
            yield f"{name} {size}" if source == data else f"{name} {size}, {source}", f"{rival.method}_{size}"
    for size in scale.sizes:
        title = PAPER.sizes.get(size, f"SLL {size}") if source == data else f"{size}, {source}"
        yield title, f"{method}_{size}"


def _groups(table: str, scale: Scale) -> Iterator[tuple[str, str, str, str]]:
    """Data set, group as printed, method, offset: in the paper's order."""
    kinds = {
        "": [("", "sll", scale.offset)],
        "offset": [(offset, "sll", offset) for offset in scale.offsets],
        "training": [(mode, method, scale.offset) for method, mode in MODES.items()],
    }
    paper = PAPER.tables[table]
    for data in dict.fromkeys(row.data for row in paper.rows):
        for kind in kinds[paper.varies]:
            yield data, *kind


def scaled(settings: Settings) -> list[str]:
    """What differs from the paper's experiment, in words; empty at full scale with its three seeds."""
    table, seeds = PAPER.tables[settings.table], settings.seeds
    scale, full = scale_of(settings.table, settings.scale), scale_of(settings.table, "full")
    if table.kind == "architectures":
        return []
    printed = {row.data for row in table.rows}
    sizes = ", ".join(PAPER.sizes[size].removeprefix("SLL ") for size in full.sizes)
    words = [f"size {' and '.join(scale.sizes)} instead of {sizes}"] if scale.sizes != full.sizes else []
    words += [
        f"{source} instead of {PAPER.data[data]}"
        for data, source in scale.data.items()
        if source != data and data in printed
    ]
    if table.kind == "inference":
        return words
    long = f" ({scale.long_epochs} on TinyImageNet)" if "tiny_imagenet" in printed & set(scale.data) else ""
    start = any(model_spec(f"sll_{size}").init == "orthogonal" for size in scale.sizes)
    attack = {"autoattack": "AutoAttack", "quick": "lipcert attack --method quick"}[scale.attack[0]]
    changes: dict[str, Any] = {
        f"{scale.epochs} epochs{long} instead of {full.epochs}": scale.epochs != full.epochs,
        f"{seeds} seed{'s' * (seeds > 1)} instead of {full.seeds}": seeds != full.seeds,
        f"{scale.schedule} schedule instead of {full.schedule}": scale.schedule != full.schedule,
        f"augmentation {scale.augment} instead of crops, flips and color jitter": scale.augment != full.augment,
        f"offset {scale.offset} instead of {full.offset}": scale.offset != full.offset and table.varies != "offset",
        "orthonormal start instead of Xavier": start,
        f"{attack} on the first {scale.attack[1]} test images instead of AutoAttack on all": (
            table.kind == "attacked" and scale.attack != full.attack
        ),
    }
    return words + [text for text, changed in changes.items() if changed]
