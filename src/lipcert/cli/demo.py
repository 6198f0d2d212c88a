"""``lipcert demo``: a certified convolutional network on the embedded digits, and a dense one per choice of T.

The first is ``lipcert train --model sll_nano`` with its run folder. The others are the same stack with another
layer in it. The table says how many test digits keep their answer within each radius, whatever the perturbation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table
    from torch import Tensor, nn

    from lipcert.data.dataset import ImageData

RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "1": 1.0}
WIDTH, DEPTH, BATCH, PEAK_RATE, OFFSET, TEMPERATURE = 96, 4, 128, 0.02, 2**-0.5, 0.1


@dataclass(frozen=True)
class Demo:
    """Train sll_nano, and a dense network of each bound, on the embedded digits; print one table."""

    epochs: int = 30
    """Passes over the 1,400 training digits, for each network."""
    seed: int = 0
    """Of the initial weights and of the order of the examples."""
    out: Path = Path("runs/demo")
    """Run folder of sll_nano; a number is added if it exists."""

    def run(self) -> int:
        from functools import partial

        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from lipcert.errors import positive_int

        positive_int("epochs", self.epochs)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie from 0 to 2^63 − 1; got {self.seed}. Pass a smaller number.")
        import torch

        torch.set_num_threads(1)  # networks this small only wait for a second thread
        errors, rows = Console(stderr=True), []
        with Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=errors,
        ) as progress:
            networks = methods()
            total = progress.add_task("all networks", total=(len(networks) + 1) * self.epochs)
            folder = unused(self.out)
            task = progress.add_task("sll_nano", total=None)
            rows.append(("sll_nano (convolutions)", train_nano(self, folder, partial(progress.update, task))))
            progress.advance(total, self.epochs)
            progress.remove_task(task)
            for name, make in networks.items():
                task = progress.add_task(name, total=self.epochs)
                rows.append((name, train_and_certify(make, self, partial(progress.advance, task))))
                progress.advance(total, self.epochs)
                progress.remove_task(task)
        Console().print(table(rows))
        Console().print(
            "Certified: no change of the image of that L2 norm (pixels in [0, 1]) changes\n"
            "the answer; share of all 397 test digits. Proved in real arithmetic, with\n"
            "margins computed in float64. One seed: a demonstration, not a comparison.\n"
            f"sll_nano is a run folder: {folder}",
            highlight=False,
            soft_wrap=True,
        )
        return 0


@dataclass(frozen=True)
class Outcome:
    """What one network reached on the test digits."""

    natural: float
    certified: dict[str, float]
    seconds: float


def methods() -> dict[str, Callable[[], list[nn.Module]]]:
    """The middle layers of each network: the paper's methods, each a form and a choice of T."""
    import lipcert as lc
    from lipcert.algebra.bounds import Bound

    def residual(bound: str | Callable[[], Bound]) -> Callable[[], list[nn.Module]]:
        return lambda: [
            lc.ResidualLinear(WIDTH, WIDTH, bound=bound if isinstance(bound, str) else bound())
            for _ in range(DEPTH)
        ]

    def affine(bound: str) -> Callable[[], list[nn.Module]]:
        return lambda: [
            layer for _ in range(DEPTH) for layer in (lc.AffineLinear(WIDTH, WIDTH, bound=bound), lc.MaxMin())
        ]

    return {
        "SN (affine)": affine("spectral"),
        "AOL (affine)": affine("aol"),
        "Cayley (affine)": affine("orthogonal"),
        "CPL (residual)": residual("spectral"),
        "AOL (residual)": residual("aol"),
        "Cayley (residual)": residual("orthogonal"),
        "SLL": residual("sll"),
        "SLL (shifted)": residual("sll_shifted"),
        "SLL (surrogate)": residual("sll_surrogate"),
        "Rescaled (order 2)": residual(lambda: lc.bounds.Rescaled(WIDTH, order=2)),
        "Optimal (trace)": residual("optimal"),
    }


def train_and_certify(make: Callable[[], list[nn.Module]], demo: Demo, tick: Callable[[], object]) -> Outcome:
    """Train one network with the paper's loss and optimiser, then certify it on the test digits."""
    import time

    import torch
    from torch import nn

    import lipcert as lc
    from lipcert.data.digits import load_digits

    began = time.perf_counter()
    train, test = load_digits("train"), load_digits("test")
    generator = torch.Generator().manual_seed(demo.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(demo.seed)
        mean = [float(train.inputs().mean())]
        backbone = nn.Sequential(lc.Centre(mean), nn.Flatten(), lc.PadChannels(WIDTH), *make())
        head = lc.NormalizedHead(WIDTH, len(train.classes))
    model = nn.Sequential(backbone, head)
    loss = lc.losses.OffsetCrossEntropy(offset=OFFSET, temperature=TEMPERATURE)
    steps = demo.epochs * -(-len(train.labels) // BATCH)
    optimiser = torch.optim.Adam(model.parameters(), lr=PEAK_RATE, betas=(0.5, 0.9))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps, cycle_momentum=False)
    inputs = train.inputs()
    for epoch in range(demo.epochs):
        if epoch == demo.epochs // 2:
            fit_optimal(model)
        for batch in torch.randperm(len(inputs), generator=generator).split(BATCH):
            optimiser.zero_grad()
            loss(model(inputs[batch]), train.labels[batch]).backward()
            optimiser.step()
            schedule.step()
        tick()
    return outcome(model, test, began)


def outcome(model: nn.Sequential, test: ImageData, began: float) -> Outcome:
    """The network in float64 on the test digits."""
    import time

    import torch

    import lipcert as lc
    from lipcert.certification.radius import certified_radii

    model.eval().double()
    backbone, head = model
    assert isinstance(head, lc.NormalizedHead)
    with torch.no_grad():
        logits = model(test.inputs().double())
    radii = certified_radii(logits, test.labels, head.pairwise_bound() * lc.lipschitz_bound(backbone))
    return Outcome(
        natural=share(logits.argmax(dim=1) == test.labels),
        certified={name: share(radii > radius) for name, radius in RADII.items()},
        seconds=time.perf_counter() - began,
    )


def unused(folder: Path) -> Path:
    """``folder``, or with the first number after it that makes it new."""
    from itertools import count

    names = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return folder if not folder.exists() else next(name for name in names if not name.exists())


def train_nano(demo: Demo, folder: Path, update: Callable[..., object]) -> Outcome:
    """``lipcert train`` of the smallest preset, evaluated like the others."""
    import time

    from lipcert.cli.train import certified_sums
    from lipcert.data.digits import load_digits
    from lipcert.training.checkpoint import load_model
    from lipcert.training.config import TrainConfig
    from lipcert.training.loop import train

    began = time.perf_counter()
    config = TrainConfig(
        model="sll_nano",
        data="digits",
        epochs=demo.epochs,
        batch_size=BATCH,
        learning_rate=PEAK_RATE,
        offset=OFFSET,
        temperature=TEMPERATURE,
        evaluate_every=demo.epochs,
        seed=demo.seed,
        threads=1,
    )
    data = load_digits("train"), load_digits("test")
    finished = train(
        config, folder, data, certified_sums, show=lambda step: update(completed=step.step, total=step.total)
    )
    if not finished.complete:
        raise KeyboardInterrupt
    return outcome(load_model(folder), data[1], began)


def fit_optimal(model: nn.Module) -> None:
    """Solve for the best T of every layer that asks for it; the other bounds need no solver."""
    import lipcert as lc

    for layer in model.modules():
        if isinstance(layer, lc.ResidualLinear) and isinstance(layer.bound, lc.bounds.Optimal):
            layer.bound.fit(layer.columns())


def share(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


def table(rows: list[tuple[str, Outcome]]) -> Table:
    """One row per network, percentages of the test digits."""
    from rich.table import Table

    result = Table(title="Digits: accuracy, and accuracy certified within an L2 radius (%)")
    result.add_column("method")
    for column in ("natural", *RADII, "time"):
        result.add_column(column, justify="right")
    for name, outcome in rows:
        certified = [f"{value:.1f}" for value in outcome.certified.values()]
        result.add_row(name, f"{outcome.natural:.1f}", *certified, f"{outcome.seconds:.1f} s")
    return result
