"""The training loop: paper's optimiser and schedule, one process or many, interrupted and resumed bit for bit.

Nothing random is carried along: the order of an epoch and the augmentation of a step are functions of
(seed, epoch, step), so a run that resumes in the middle of an epoch takes the very same steps. Every process sees
the global batch and keeps its share, so the number of processes changes sums only by rounding.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from lipcert.data.augment import Augmentation, augmentation
from lipcert.data.dataset import ImageData
from lipcert.models.build import build
from lipcert.models.presets import model_spec
from lipcert.models.spec import ModelSpec
from lipcert.training.board import Board
from lipcert.training.checkpoint import (
    load_state,
    read_metrics,
    save_state,
    save_weights,
    write_json,
    write_metrics,
)
from lipcert.training.config import TrainConfig, learning_rate_factor
from lipcert.training.memory import peak_bytes
from lipcert.training.objective import make_loss

CountHits = Callable[[Tensor, Tensor], dict[str, Tensor]]  # inputs, labels → for each name, what each example adds
Evaluate = Callable[[nn.Module], CountHits]  # called once per evaluation, so that it can prepare the network


class Diverged(ValueError):
    """The loss is no longer a number; the last good state is kept."""


@dataclass(frozen=True)
class Step:
    """What the caller may show after each step."""

    step: int
    total: int
    epoch: int
    loss: float


@dataclass(frozen=True)
class Finished:
    """How a call of ``train`` ended: complete, or interrupted with its state saved."""

    complete: bool
    step: int
    metrics: list[dict[str, Any]]


def spec_of(config: TrainConfig, train: ImageData) -> ModelSpec:
    """The architecture, fitted to the images: their shape, classes and mean, unless the overrides say otherwise."""
    fitted: dict[str, Any] = {
        "image_shape": train.image_shape,
        "num_classes": len(train.classes),
        "mean": tuple(round(mean, 6) for mean in train.channel_means()),
    }
    return model_spec(config.model, **{**fitted, **config.overrides})


def train(
    config: TrainConfig,
    folder: Path,
    data: tuple[ImageData, ImageData],
    evaluate: Evaluate,
    *,
    resume: bool = False,
    show: Callable[[Step], object] = lambda step: None,
) -> Finished:
    """Train into ``folder``; on SIGINT or SIGTERM save and return, on NaN stop with the last good state kept."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    training, testing = _split(config, *data)
    AcceleratorState._reset_state()  # else a second run in one process keeps the precision of the first
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=config.precision)
    main = accelerator.is_main_process
    spec = spec_of(config, training)
    torch.manual_seed(config.seed)
    model = build(spec)
    optimizer = torch.optim.Adam(model.parameters(), config.learning_rate, (config.beta1, config.beta2))
    model, optimizer = accelerator.prepare(model, optimizer)
    plain = accelerator.unwrap_model(model)
    average = {k: v.clone() for k, v in plain.state_dict().items()} if config.ema is not None else None

    steps_per_epoch = -(-len(training.labels) // config.batch_size)
    total = steps_per_epoch * config.epochs if config.steps is None else config.steps
    step, sums, rows = 0, {"loss": 0.0, "seen": 0.0}, []
    if resume:
        state = load_state(folder)
        if state["config"] != config.model_dump_json() or state["spec"] != spec.model_dump_json():
            raise ValueError(
                f"{folder} holds a run with another config; got changed settings. Resume it as it was, or choose "
                "another --out."
            )
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimiser"])
        average = {k: v.clone() for k, v in state["average"].items()} if average is not None else None
        step, sums = state["step"], state["sums"]
        rows = [row for row in read_metrics(folder) if row["step"] <= step]
    elif main:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", config.model_dump())

    def checkpoint() -> None:
        if not main:
            return
        state = {
            "format": "lipcert-state-1",
            "config": config.model_dump_json(),
            "spec": spec.model_dump_json(),
            "model": plain.state_dict(),
            "average": average or {},
            "optimiser": optimizer.state_dict(),
            "step": step,
            "sums": dict(sums),
        }
        save_weights(folder, average or plain.state_dict(), spec)
        write_metrics(folder, rows)
        save_state(folder, state)  # last: what a resumed run reads beside it is at least as new

    loss_of = make_loss(config)
    augment = augmentation(config.augment)
    board = Board(folder if config.tensorboard and main else None)
    saved = began = time.monotonic()
    cpu = time.process_time()
    with _stop_signals() as stopped:
        while step < total:
            epoch, index = divmod(step, steps_per_epoch)
            batch = _order(config.seed, epoch, len(training))[index * config.batch_size :][: config.batch_size]
            inputs, labels = _share(config, augment, accelerator, training, batch, step)
            for group in optimizer.param_groups:
                factor = learning_rate_factor((step + 1) / total, config.schedule)
                group["lr"] = config.learning_rate * factor
            model.train()
            torch.manual_seed(config.seed * 1_000_003 + 700_001 * (step + 1))  # for layers that draw at random
            with accelerator.autocast():
                logits = model(inputs)
            loss = loss_of(plain, logits.float(), labels, (step + 1) / total)
            value = float(accelerator.reduce(loss.detach(), "mean"))
            if not value < float("inf"):
                raise Diverged(
                    f"the loss must stay finite; got {value} at step {step} of {total}. The state before is in "
                    f"{folder}. Lower --learning-rate or set --clip-norm."
                )
            optimizer.zero_grad()
            accelerator.backward(loss)
            if config.clip_norm is not None:
                accelerator.clip_grad_norm_(model.parameters(), config.clip_norm)
            optimizer.step()
            if average is not None and config.ema is not None:
                _blend(average, plain.state_dict(), config.ema)
            step += 1
            sums = {"loss": sums["loss"] + value * len(batch), "seen": sums["seen"] + len(batch)}
            show(Step(step, total, epoch, value))
            if index + 1 == steps_per_epoch or step == total:
                row = {"epoch": epoch + 1, "step": step, "loss": sums["loss"] / sums["seen"]}
                sums = {"loss": 0.0, "seen": 0.0}
                if (epoch + 1) % config.evaluate_every == 0 or step == total:
                    row |= _evaluate(accelerator, plain, average, testing, evaluate, config)
                rows.append(row)
                board.write(row)
            interrupted = bool(accelerator.reduce(torch.tensor(float(stopped())), "sum"))
            due = index + 1 == steps_per_epoch or step == total
            if due or interrupted or time.monotonic() - saved > config.checkpoint_every:
                checkpoint()
                saved = time.monotonic()
            if interrupted and step < total:
                _leave(accelerator)
                return Finished(False, step, rows)
    if main:
        spent = {
            "seconds": time.monotonic() - began,
            "cpu_seconds": time.process_time() - cpu,
            "peak_bytes": peak_bytes(),
        }
        write_json(folder / "summary.json", {"this_process": spent, **rows[-1]})
    _leave(accelerator)
    return Finished(True, step, rows)


def _leave(accelerator: Accelerator) -> None:
    """All processes leave together: one that exits while another still writes can abort it."""
    accelerator.wait_for_everyone()
    accelerator.end_training()


def _split(config: TrainConfig, train: ImageData, test: ImageData) -> tuple[ImageData, ImageData]:
    """The training images and those that are evaluated: the test set, or a held-out part of the training set."""
    if not config.validation:
        return train, test
    if config.validation >= len(train.labels):
        raise ValueError(
            f"validation must leave some of the {len(train.labels)} training images; got {config.validation}. "
            "Choose a smaller number."
        )
    order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(0))  # one split for all seeds
    held, kept = order[: config.validation], order[config.validation :]
    return train.take(kept, split="train"), train.take(held, split="validation")


def _order(seed: int, epoch: int, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def _share(
    config: TrainConfig,
    augment: Augmentation,
    accelerator: Accelerator,
    data: ImageData,
    batch: Tensor,
    step: int,
) -> tuple[Tensor, Tensor]:
    """The augmented inputs of this process: the random numbers are those of the global batch, a row per image."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + 500_009 * (step + 1))
    numbers = augment.draw(len(batch), generator)
    world, rank = accelerator.num_processes, accelerator.process_index
    part = slice(rank, len(batch) // world * world, world) if len(batch) >= world else slice(None)
    images, labels = data[batch[part]]
    inputs = augment.apply(images, numbers[part]).to(accelerator.device)
    # Channels last: the same products, 1.4 times as fast on a CPU, and what tensor cores want.
    return inputs.contiguous(memory_format=torch.channels_last), labels.to(accelerator.device)


def _blend(average: dict[str, Tensor], weights: dict[str, Tensor], decay: float) -> None:
    for name, value in weights.items():
        average[name].lerp_(value.to(average[name].dtype), 1 - decay)


def _evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    average: dict[str, Tensor] | None,
    data: ImageData,
    evaluate: Evaluate,
    config: TrainConfig,
) -> dict[str, float]:
    """The evaluator's sums over this process's share of the data, gathered, per example."""
    model.eval()
    kept = {k: v.clone() for k, v in model.state_dict().items()} if average is not None else None
    if average is not None:
        model.load_state_dict(average)
    share = torch.arange(accelerator.process_index, len(data), accelerator.num_processes)
    sums: dict[str, Tensor] = {}
    with torch.no_grad():
        count_hits = evaluate(model)
        for batch in share.split(512):
            images, labels = data[batch]
            inputs = images.to(accelerator.device, memory_format=torch.channels_last)
            for name, value in count_hits(inputs, labels.to(accelerator.device)).items():
                sums[name] = sums.get(name, 0) + value.double().sum()
    if kept is not None:
        model.load_state_dict(kept)
    return {name: float(accelerator.reduce(value, "sum")) / len(data.labels) for name, value in sums.items()}


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came; a second SIGINT ends the process as usual."""
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
