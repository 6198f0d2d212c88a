"""What a training step and an inference of each network cost: measured side by side, the minimum of repeats.

CPU time, of one thread unless more are asked for; rounds go through all networks before the next, so that a busy
machine slows them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import nn

from lipcert.data.dataset import ImageData
from lipcert.models.build import build
from lipcert.training.config import TrainConfig
from lipcert.training.loop import spec_of
from lipcert.training.objective import make_loss

Name = TypeVar("Name")


def step_seconds(
    configs: Mapping[Name, tuple[TrainConfig, ImageData]], repeats: int = 5, threads: int = 1
) -> dict[Name, float]:
    """CPU seconds of one training step of each config: forward, loss, backward, update."""
    steps = {name: _training_step(config, data) for name, (config, data) in configs.items()}
    return _minimum(steps, repeats, threads)


def inference_seconds(
    networks: Mapping[Name, nn.Module], inputs: torch.Tensor, repeats: int = 5, threads: int = 1
) -> dict[Name, float]:
    """CPU seconds of one forward pass of each network, without gradients."""

    def forward(network: nn.Module) -> Callable[[], object]:
        def call() -> None:
            with torch.no_grad():
                network(inputs)

        return call

    return _minimum({name: forward(network) for name, network in networks.items()}, repeats, threads)


def _minimum(calls: dict[Name, Callable[[], object]], repeats: int, threads: int) -> dict[Name, float]:
    before, best = torch.get_num_threads(), dict.fromkeys(calls, float("inf"))
    torch.set_num_threads(threads)
    try:
        for _ in range(repeats + 1):  # the first warms up; it can hardly be the fastest
            for name, call in calls.items():
                began = time.process_time()
                call()
                best[name] = min(best[name], time.process_time() - began)
    finally:
        torch.set_num_threads(before)
    return best


def _training_step(config: TrainConfig, data: ImageData) -> Callable[[], object]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(spec_of(config, data))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (config.beta1, config.beta2))
    loss_of, labels = make_loss(config), data.labels[: config.batch_size]
    images = (data.images[: config.batch_size].float() / 255).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        model.train()
        loss = loss_of(model, model(images), labels, 0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
