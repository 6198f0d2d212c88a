"""The training loop: the paper's optimizer and schedule, one process or many, interrupted and resumed bit for bit.

Nothing random is carried along: the order of an epoch and the augmentation of a step are functions of
(seed, epoch, step), so a run that resumes in the middle of an epoch takes the very same steps. Every process sees
the global batch and keeps its share, so the number of processes changes sums only by rounding.

On an accelerator the loop does not wait for the device in a step: losses are read every ``READ_EVERY`` steps and
before each checkpoint, and the loss must be finite then.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from lipcert.certified.freeze import freeze, prove
from lipcert.data.augment import augmentation
from lipcert.data.dataset import ImageData
from lipcert.errors import name_extra
from lipcert.files import sha256_file, write_json
from lipcert.models.build import build_any
from lipcert.models.presets import BUILDERS, architecture, model_spec
from lipcert.models.spec import Architecture, ModelSpec, OwnNetwork
from lipcert.records import RunFolder
from lipcert.training.checkpoint import load_state, load_weights, model_file, save_state, save_weights
from lipcert.training.config import TrainConfig, learning_rate_factor
from lipcert.training.objective import Evaluate, certified_hits, make_loss
from lipcert.training.optimizers import make_optimizer

READ_EVERY = 10  # steps between two looks at the loss, on an accelerator


class Diverged(ValueError):
    """The loss became NaN or infinite; the last good state is kept."""


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM came; the state is saved, and training can be resumed."""

    def __init__(self, step: int, total: int, number: int) -> None:
        super().__init__(f"training stopped at step {step} of {total}; its state is saved")
        self.step, self.total, self.signal = step, total, number


@dataclass(frozen=True)
class Step:
    """What the caller may show after a step; ``row`` is that of metrics.jsonl at the end of an epoch."""

    step: int
    total: int
    epoch: int
    loss: float
    row: dict[str, Any] | None = None


def spec_of(config: TrainConfig, train: ImageData) -> ModelSpec:
    """The architecture, fitted to the images: their shape, classes and mean, unless the overrides say otherwise."""
    fitted: dict[str, Any] = {
        "image_shape": train.image_shape,
        "num_classes": len(train.classes),
        "mean": tuple(round(mean, 6) for mean in train.channel_means()),
    }
    if len(train.image_shape) == 1:  # columns of a table have units of their own
        columns = train.inputs().double()
        fitted |= {"mean": train.channel_means(), "std": tuple(s or 1.0 for s in columns.std(0, False).tolist())}
    return model_spec(config.model, **{**fitted, **config.overrides})


def architecture_of(config: TrainConfig, train: ImageData, network: nn.Module | None = None) -> Architecture:
    """What is trained: a preset fitted to the data, a function of the user's own, or the ``network`` itself."""
    if network is None and config.model not in BUILDERS and ":" not in config.model:
        return spec_of(config, train)
    data: dict[str, Any] = {"image_shape": train.image_shape, "num_classes": len(train.classes)}
    if network is None:
        return architecture(config.model, **{**data, **config.overrides})
    return OwnNetwork(builder="", **data)


def train(
    config: TrainConfig,
    run: RunFolder,
    data: tuple[ImageData, ImageData],
    *,
    network: nn.Module | None = None,
    evaluate: Evaluate = certified_hits,
    resume: bool = False,
    show: Callable[[Step], object] = lambda step: None,
) -> list[dict[str, Any]]:
    """Train into the folder of ``run`` and return the rows of metrics.jsonl.

    Args:
        network: the network to train, in place of the one that ``config.model`` names.

    Raises:
        Diverged: if the loss is no longer finite; the last good state is kept.
        Stopped: after SIGINT or SIGTERM, with the state saved.
    """
    trainer = Trainer(config, run, data, evaluate, network)
    if resume and run.state_file.is_file():
        trainer.restore()
    else:  # also where a run was killed before its first checkpoint
        trainer.begin()
    with _stop_signals() as stopped:
        while trainer.step < trainer.total:
            show(trainer.advance())
            if trainer.interrupted(stopped()) and trainer.step < trainer.total:
                trainer.checkpoint()
                trainer.leave()
                raise Stopped(trainer.step, trainer.total, stopped() or signal.SIGTERM)
    trainer.leave()
    return trainer.rows


class Trainer:
    """One training: its network, optimizer, data and progress."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunFolder,
        data: tuple[ImageData, ImageData],
        evaluate: Evaluate,
        network: nn.Module | None = None,
    ) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.config, self.run, self.evaluate = config, run, evaluate
        self.training, self.testing = _split(config, *data)
        self.test = data[1]
        shape = self.training.image_shape
        if config.augment != "none" and (len(shape) != 3 or shape[0] not in (1, 3)):
            raise ValueError(
                f"--augment {config.augment} is for images of 1 or 3 channels; these inputs are {shape}."
            )
        self.accelerator = _accelerator(config)
        self.main = self.accelerator.is_main_process
        self.spec = architecture_of(config, self.training, network)
        torch.manual_seed(config.seed)
        model = build_any(self.spec) if network is None else network
        if isinstance(self.spec, OwnNetwork):
            require_logits(model, self.spec)
        self.init = _load_weights(model, config.init)
        self.model, self.optimizer = self.accelerator.prepare(
            model, make_optimizer(model, config, self.accelerator.device)
        )
        self.plain: nn.Module = self.accelerator.unwrap_model(self.model)
        weights = self.plain.state_dict()
        self.average = {k: v.clone() for k, v in weights.items()} if config.ema is not None else None
        self.loss_of, self.augment = make_loss(config), augmentation(config.augment)
        self.board = _board(run.folder if config.tensorboard and self.main else None)

        self.steps_per_epoch = -(-len(self.training) // config.batch_size)
        self.total = self.steps_per_epoch * config.epochs if config.steps is None else config.steps
        self.step, self.loss = 0, float("nan")
        self.sums = {"loss": 0.0, "seen": 0.0}
        self.rows: list[dict[str, Any]] = []
        self.pending: list[
            tuple[Tensor, int]
        ] = []  # losses that were not read yet, with the sizes of their batches
        self.spent = (0.0, 0.0, 0)  # seconds, CPU seconds and bytes of earlier processes
        self.saved = self.began = time.monotonic()
        self.cpu = time.process_time()

    def begin(self) -> None:
        """Write what a new run folder holds from the start."""
        if self.main:
            self.run.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.run.config_file, self.config.model_dump())
            self.run.write_record(lipcert=version("lipcert"), init=self.init, steps=self.total)
            if not self.test.of_bytes:
                self.run.write_record(test=self.test.sha256.images)

    def restore(self) -> None:
        """Go on from the last checkpoint."""
        state = load_state(self.run.state_file)
        if state["config"] != self.config.model_dump_json() or state["spec"] != self.spec.model_dump_json():
            raise ValueError(
                f"{self.run.folder} holds a run with other settings. Resume it as it was, or choose another --out."
            )
        self.plain.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average = {k: v.to(self.average[k].device, copy=True) for k, v in state["average"].items()}
        self.step, self.sums = state["step"], state["sums"]
        self.rows = [row for row in self.run.metrics if row["step"] <= self.step]
        record = self.run.record
        self.spent = (record.seconds, record.cpu_seconds, record.peak_bytes)

    def advance(self) -> Step:
        """Take one step; at the end of an epoch evaluate, and save when it is due."""
        config, epoch, index = self.config, *divmod(self.step, self.steps_per_epoch)
        batch = _order(config.seed, epoch, len(self.training))[index * config.batch_size :]
        batch = batch[: config.batch_size]
        inputs, labels = self._share(batch)
        progress = (self.step + 1) / self.total
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * learning_rate_factor(progress, config.schedule)
        self.model.train()
        torch.manual_seed(config.seed * 1_000_003 + 700_001 * (self.step + 1))  # for layers that draw at random
        with self.accelerator.autocast():
            logits = self.model(inputs)
        loss = self.loss_of(self.plain, inputs, logits.float(), labels, progress)
        self.pending.append((self.accelerator.reduce(loss.detach(), "mean"), len(batch)))
        last = index + 1 == self.steps_per_epoch or self.step + 1 == self.total
        looks = last or self.accelerator.device.type == "cpu" or (self.step + 1) % READ_EVERY == 0
        if looks:
            self._read_losses()  # before the step: a state with a NaN is never saved
        self.optimizer.zero_grad()
        self.accelerator.backward(loss)
        if config.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        self.optimizer.step()
        if self.average is not None and config.ema is not None:
            _blend(self.average, self.plain.state_dict(), config.ema)
        self.step += 1
        row = self._end_epoch(epoch) if last else None
        if last or (looks and time.monotonic() - self.saved > config.checkpoint_every):
            self.checkpoint()
        return Step(self.step, self.total, epoch, self.loss, row)

    def _read_losses(self) -> None:
        values = torch.stack([loss for loss, _ in self.pending]).tolist()
        for value, (_, count) in zip(values, self.pending, strict=True):
            if not value < float("inf"):
                raise Diverged(
                    f"the loss became {value} within {len(values)} steps of step {self.step} of {self.total}. The "
                    f"last good state is in {self.run.folder}. Lower --learning-rate or set --clip-norm."
                )
            self.sums = {"loss": self.sums["loss"] + value * count, "seen": self.sums["seen"] + count}
        self.pending, self.loss = [], values[-1]

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        row = {"epoch": epoch + 1, "step": self.step, "loss": self.sums["loss"] / self.sums["seen"]}
        self.sums = {"loss": 0.0, "seen": 0.0}
        if (epoch + 1) % self.config.evaluate_every == 0 or self.step == self.total:
            row |= self._evaluate()
        self.rows.append(row)
        if self.board is not None:
            for name, value in row.items():
                self.board.add_scalar(name, value, self.step)
            self.board.flush()
        return row

    def interrupted(self, signal_number: int | None) -> bool:
        """Whether any process was asked to stop; all of them leave after the same step."""
        if self.accelerator.num_processes == 1:
            return signal_number is not None
        if self.pending:  # this step did not wait for the device
            return False
        flag = torch.tensor(float(signal_number is not None), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum"))

    def checkpoint(self) -> None:
        """Save everything; ``state.pt`` last, so that what lies beside it is at least as new."""
        self.saved = time.monotonic()
        if self.pending:
            self._read_losses()
        if not self.main:
            return
        state = {
            "format": "lipcert-state-2",
            "config": self.config.model_dump_json(),
            "spec": self.spec.model_dump_json(),
            "model": self.plain.state_dict(),
            "average": self.average or {},
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "sums": dict(self.sums),
        }
        save_weights(self.run.model_file, self.average or self.plain.state_dict(), self.spec)
        for path in self.run.results():  # they are about the weights that were there before
            path.unlink()
        self.run.write_metrics(self.rows)
        self.run.write_record(
            step=self.step,
            seconds=self.spent[0] + time.monotonic() - self.began,
            cpu_seconds=self.spent[1] + time.process_time() - self.cpu,
            peak_bytes=max(self.spent[2], peak_bytes()),
        )
        save_state(self.run.state_file, state)

    def leave(self) -> None:
        """All processes leave together: one that exits while another still writes can abort it."""
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()
        self.accelerator.unwrap_model(
            self.model, keep_fp32_wrapper=False
        )  # a network of the user's stays as it was

    def _share(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The augmented inputs of this process: random numbers are those of the global batch, a row per image."""
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + 500_009 * (self.step + 1))
        numbers = self.augment.draw(len(batch), generator)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        part = slice(rank, len(batch) // world * world, world) if len(batch) >= world else slice(None)
        images, labels = self.training[batch[part]]
        device = self.accelerator.device
        inputs = self.augment.apply(images, numbers[part]) if self.augment.numbers else images
        if self.config.noise is not None:
            # Drawn for the global batch, like the numbers of the augmentation, and never clipped.
            noise = torch.randn(len(batch), *inputs.shape[1:], generator=generator)
            inputs = inputs + self.config.noise * noise[part]
        return _channels_last(inputs.to(device)), labels.to(device)

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        """Shares of hits over the evaluated images; every process counts its part."""
        self.plain.eval()
        kept = {k: v.clone() for k, v in self.plain.state_dict().items()} if self.average is not None else None
        if self.average is not None:
            self.plain.load_state_dict(self.average)
        device = self.accelerator.device
        share = torch.arange(self.accelerator.process_index, len(self.testing), self.accelerator.num_processes)
        count_hits = self.evaluate(self.plain)
        sums: dict[str, Tensor] = {}
        for batch in share.split(512):
            images, labels = self.testing[batch]
            for name, hits in count_hits(_channels_last(images.to(device)), labels.to(device)).items():
                sums[name] = sums.get(name, 0) + hits.sum()
        if kept is not None:
            self.plain.load_state_dict(kept)
        total = len(self.testing)
        return {name: float(self.accelerator.reduce(value, "sum")) / total for name, value in sums.items()}


def require_logits(network: nn.Module, spec: OwnNetwork) -> None:
    """Raise, before any training, unless the network has a proof and gives a logit for each class."""
    training = network.training
    shape = prove(freeze(network.eval()), spec.image_shape).shape
    network.train(training)
    if shape != (spec.num_classes,):
        raise ValueError(
            f"the network must give {spec.num_classes} logits, one for each class, for inputs of shape "
            f"{spec.image_shape}; it gives outputs of shape {shape}."
        )


def _channels_last(inputs: Tensor) -> Tensor:
    """The same products, 1.4 times as fast on a CPU, and what tensor cores want."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


def _accelerator(config: TrainConfig) -> Accelerator:
    """The device and the precision that the config asks for; ValueError if this machine does not have them."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    device = config.device if config.device != "auto" else "cuda" if available["cuda"] else "cpu"
    if not available[device]:
        raise ValueError(f"--device {device} is not available to this build of torch. Use --device cpu.")
    if config.precision == "fp16" and device != "cuda":
        raise ValueError(f"--precision fp16 needs a CUDA device, and this run uses {device}. Use bf16 or no.")
    AcceleratorState._reset_state()  # else a second run in one process keeps the precision of the first
    return Accelerator(cpu=device == "cpu", mixed_precision=config.precision)


def _load_weights(model: nn.Module, path: str | None) -> str | None:
    """Start from the weights of another run; return the sha256 of their file."""
    if path is None:
        return None
    file = model_file(Path(path))
    try:
        load_weights(model, file)
    except ValueError as error:
        raise ValueError(f"--init {path}: {error}") from None
    return sha256_file(file)


def _board(folder: Path | None) -> Any:
    """A writer of TensorBoard events, or None."""
    if folder is None:
        return None
    with name_extra("--tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter(str(folder / "tensorboard"))


def peak_bytes() -> int:
    """The most memory that this process has had at once; 0 where the platform does not count it."""
    status = Path("/proc/self/status")  # Linux: getrusage would count the process that started this one too
    text = status.read_text(encoding="ascii", errors="replace") if status.is_file() else ""
    if found := re.search(r"VmHWM:\s*(\d+)", text):
        return 1024 * int(found[1])
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _split(config: TrainConfig, train: ImageData, test: ImageData) -> tuple[ImageData, ImageData]:
    """The training images and those that are evaluated: the test set, or a held-out part of the training set."""
    if not config.validation:
        return train, test
    if config.validation >= len(train.labels):
        raise ValueError(
            f"validation must be below the {len(train.labels)} training images, got {config.validation}."
        )
    order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(0))  # one split for all seeds
    held, kept = order[: config.validation], order[config.validation :]
    return train.take(kept, split="train"), train.take(held, split="validation")


def _order(seed: int, epoch: int, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def _blend(average: dict[str, Tensor], weights: dict[str, Tensor], decay: float) -> None:
    for name, value in weights.items():
        if value.is_floating_point():
            average[name].lerp_(value.to(average[name].dtype), 1 - decay)
        else:  # such as the number of batches that a normalization has seen
            average[name].copy_(value)


@contextmanager
def _stop_signals() -> Iterator[Callable[[], int | None]]:
    """The number of a SIGINT or SIGTERM that came, else None; a second SIGINT ends the process as usual."""
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():  # only the main thread hears signals
        yield lambda: None
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came[0] if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
