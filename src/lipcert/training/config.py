"""Everything that decides a run, without torch: one frozen record, saved as ``config.json`` in its folder.

The defaults are the paper's: Adam(0.01, β = 0.5, 0.9), batch 256, offset 3√2/2, temperature 1/4, a piecewise
triangular schedule. Two runs with the same config on the same machine and number of processes are equal bit for
bit.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Augmentation = Literal["none", "crop-flip", "sll", "aol"]


class TrainConfig(BaseModel):
    """One training run. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = "sll_tiny"
    """A name from `lipcert models`."""
    overrides: dict[str, Any] = {}
    """Fields of the architecture to change, such as {"dense_layers": 3}."""
    data: str = "digits"
    """A data set from `lipcert data list`, or a path."""
    data_root: str | None = None
    """Where prepared data live; None for the default."""
    epochs: int = Field(default=10, ge=1)
    batch_size: int = Field(default=256, ge=1)
    """Over all processes."""
    learning_rate: float = Field(default=0.01, gt=0)
    beta1: float = Field(default=0.5, ge=0, lt=1)
    beta2: float = Field(default=0.9, ge=0, lt=1)
    offset: float = Field(default=1.5 * math.sqrt(2), ge=0)
    """Of the loss: larger trades natural for certified accuracy."""
    temperature: float = Field(default=0.25, gt=0)
    augment: Augmentation = "none"
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient; None for no clipping."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Autocast of the products; T is computed in float32 whatever this says."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of an average of the weights, which is then what is evaluated and saved; None for none."""
    validation: int = Field(default=0, ge=0)
    """Training images held out and evaluated instead of the test set; 0 evaluates the test set."""
    evaluate_every: int = Field(default=1, ge=1)
    """Epochs between evaluations; the last epoch is always evaluated."""
    checkpoint_every: float = Field(default=60.0, gt=0)
    """Seconds between checkpoints, beside the one at the end of each epoch."""
    seed: int = 0
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch; None leaves torch's choice."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run folder."""


def learning_rate_factor(progress: float) -> float:
    """Piecewise triangular: 0 → 1 at 2/5 of the run, → 1/20 at 4/5, → 0 at the end."""
    points = ((0.0, 0.0), (0.4, 1.0), (0.8, 0.05), (1.0, 0.0))
    for (x0, y0), (x1, y1) in pairwise(points):
        if progress <= x1:
            return y0 + (y1 - y0) * (progress - x0) / (x1 - x0)
    return 0.0
