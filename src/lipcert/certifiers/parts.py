"""A certification in parts: a few images at a time, in whatever process, by methods that take long for an image."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lipcert.certified.freeze import prove
from lipcert.certified.network import Network, Proved
from lipcert.certified.op import Shape
from lipcert.certifiers.methods import certify


@dataclass(frozen=True)
class Task:
    """A few images and their labels. Arrays, since those travel by themselves."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Answers:
    """What is known of the images of a task."""

    rows: list[dict[str, Any]]  # label, prediction and radius
    rounding: float  # the most that rounding took of a margin
    cpu_seconds: float


@dataclass(frozen=True)
class Solver:
    """Certifies tasks; the network is proved once in each process."""

    network: Network
    shape: Shape
    method: str
    settings: Mapping[str, Any]

    @cached_property
    def proved(self) -> Proved:
        return prove(self.network, self.shape)

    def __call__(self, task: Task) -> dict[str, Any]:
        """What is known of the images of a task, as JSON, with the CPU seconds that it took."""
        torch.set_num_threads(1)  # sums in the same order, however many processes work
        began = time.process_time()
        images, labels = torch.from_numpy(task.images), torch.from_numpy(task.labels)
        size = len(labels)
        result = certify(self.proved, images, labels, method=self.method, batch_size=size, **self.settings)
        return {
            "predictions": result.predictions.tolist(),
            "radii": result.radii.tolist(),
            "rounding": 0.0 if result.errors is None else float(result.errors.max()),
            "cpu_seconds": time.process_time() - began,
        }


def answers_of(stored: Mapping[str, Any], task: Task) -> Answers:
    """Stored answers; ValueError if they cannot be those of the task."""
    labels = task.labels.tolist()
    rows = [
        {"label": label, "prediction": int(prediction), "radius": float(radius)}
        for label, prediction, radius in zip(labels, stored["predictions"], stored["radii"], strict=True)
    ]
    for row in rows:
        if not 0 <= row["radius"] < math.inf or (row["radius"] > 0 and row["prediction"] != row["label"]):
            raise ValueError("the radius of a stored answer does not fit its prediction.")
    return Answers(rows, float(stored["rounding"]), float(stored["cpu_seconds"]))
