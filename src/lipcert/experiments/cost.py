"""What networks cost: a training step, a forward pass, a whole test set. CPU time, the minimum of repeats.

One thread unless more are asked for. Rounds go through all networks before the next, so that a busy machine slows
them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from lipcert.certified.freeze import freeze, prove
from lipcert.certified.radius import certified_radii
from lipcert.certifiers.methods import certify
from lipcert.data.dataset import ImageData
from lipcert.layers.contract import lipschitz_bound
from lipcert.layers.head import FirstLogits, LinearHead, NormalizedHead
from lipcert.models.build import build
from lipcert.models.presets import model_spec
from lipcert.models.spec import ModelSpec
from lipcert.training.config import TrainConfig
from lipcert.training.loop import spec_of
from lipcert.training.objective import make_loss
from lipcert.training.optimizers import make_optimizer

Name = TypeVar("Name")
Configs = Mapping[Name, tuple[TrainConfig, ImageData]]
FORWARD_BATCH = 64  # of lipcert certify
TIMED_BATCH = 256


def step_seconds(configs: Configs[Name], repeats: int = 5, threads: int = 1) -> dict[Name, float]:
    """CPU seconds of one training step of each config: forward, loss, backward, update."""
    steps = {name: _training_step(config, data) for name, (config, data) in configs.items()}
    return _minimum(steps, repeats, threads)


def inference_seconds(
    networks: Mapping[Name, nn.Module], inputs: torch.Tensor, repeats: int = 5, threads: int = 1
) -> dict[Name, float]:
    """CPU seconds of one forward pass of each network, without gradients."""
    with torch.no_grad():
        return _minimum({name: partial(net, inputs) for name, net in networks.items()}, repeats, threads)


def forward_seconds(configs: Configs[Name]) -> dict[Name, float]:
    """CPU seconds of each frozen network for one image in float64, as ``lipcert certify`` runs it."""
    seconds = {}
    for name, (config, data) in configs.items():
        network = freeze(_new(spec_of(config, data)).eval()).double()
        inputs = data.images[:FORWARD_BATCH].double() / 255
        seconds[name] = inference_seconds({name: network}, inputs, repeats=2)[name] / len(inputs)
    return seconds


def _minimum(calls: Mapping[Name, Callable[[], object]], repeats: int, threads: int) -> dict[Name, float]:
    best = dict.fromkeys(calls, float("inf"))
    with _threads(threads):
        for _ in range(repeats + 1):  # the first warms up; it can hardly be the fastest
            for name, call in calls.items():
                began = time.process_time()
                call()
                best[name] = min(best[name], time.process_time() - began)
    return best


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _new(spec: ModelSpec) -> nn.Sequential:
    """A network of fixed weights; the caller's random numbers are left as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(spec)


def _training_step(config: TrainConfig, data: ImageData) -> Callable[[], object]:
    model = _new(spec_of(config, data))
    optimizer = make_optimizer(model, config.model_copy(update={"learning_rate": 1e-4}), torch.device("cpu"))
    loss_of, labels = make_loss(config), data.labels[: config.batch_size]
    images = (data.images[: config.batch_size].float() / 255).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        model.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
            logits = model(images)
        loss = loss_of(model, images, logits.float(), labels, 0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@dataclass(frozen=True)
class Times:
    """Seconds for the whole test set: CPU time of one thread, or wall time on a GPU for the forward pass."""

    images: int
    forward: float
    certificate: float
    certified: int
    """So many images were certified; the time is that of all, in proportion."""
    device: str


def time_test_set(model: str, test: ImageData, *, examples: int | None = None, method: str = "lipschitz") -> Times:
    """How long a named architecture takes for ``test``, with the weights it starts with.

    ``forward`` is what the paper times: logits in float32 and margins over constants. ``certificate`` is
    ``certify``: proofs of every layer, float64, and a bound of all rounding, on the CPU. It is slower, so
    ``examples`` limits what is certified. The balls of the method "local" have the radius 36/255.
    """
    spec = model_spec(model, image_shape=test.image_shape, num_classes=len(test.classes))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = min(len(test), examples or len(test))
    with _threads(1):
        network = _new(spec).eval()
        forward = _forward(network, test, device)
        began = time.process_time()
        links = prove(freeze(network), test.image_shape)
        proved = time.process_time()
        balls: dict[str, Any] = {"eps": (36 / 255,)} if method == "local" else {}
        certify(links, test.images[:count].double() / 255, test.labels[:count], method=method, **balls)
        ended = time.process_time()
    certificate = (proved - began) + (ended - proved) * len(test) / count
    return Times(len(test), forward, certificate, count, device.type)


@torch.no_grad()
def _forward(network: torch.nn.Sequential, test: ImageData, device: torch.device) -> float:
    backbone, head = network
    assert isinstance(head, (NormalizedHead, FirstLogits, LinearHead))  # what models.build makes
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    began = clock()
    pairwise = head.pairwise_bound() * lipschitz_bound(backbone)
    frozen = freeze(network).to(device)
    for start in range(0, len(test), TIMED_BATCH):
        part = slice(start, start + TIMED_BATCH)
        logits = frozen((test.images[part].float() / 255).to(device))
        certified_radii(logits.cpu(), test.labels[part], pairwise)
    return clock() - began
