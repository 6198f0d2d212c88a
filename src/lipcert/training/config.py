"""Everything that decides a run, without torch: one frozen record, saved as ``config.json`` in its folder.

The defaults are the paper's: Adam(0.01, β = 0.5, 0.9), batch 256, cross entropy with offset 3√2/2 and
temperature 1/4, a piecewise triangular schedule. Two runs with the same config on the same machine and number of
processes are equal bit for bit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import tyro
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lipcert.errors import ReadableErrors

Augmentation = Literal["none", "flip", "crop-flip", "sll", "aol"]
Loss = Literal[
    "offset",
    "multi-margin",
    "margin-boosting",
    "logit-annealing",
    "emma",
    "certificate",
    "kr",
    "hkr",
]
LOSS_SETTINGS: dict[Loss, tuple[str, ...]] = {  # fields below that each loss of ``lipcert.losses`` takes
    "offset": ("offset", "temperature"),
    "multi-margin": ("margin",),
    "margin-boosting": ("weight",),
    "logit-annealing": ("offset", "temperature", "beta"),
    "emma": ("epsilon",),
    "certificate": ("gamma",),
    "kr": (),
    "hkr": ("alpha", "margin"),
}


class TrainConfig(ReadableErrors, BaseModel):
    """One training run. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = "sll_tiny"
    """A name from `lipcert models`."""
    overrides: dict[str, int | float | str | tuple[float, ...]] = {}
    """Fields of the architecture to change, such as dense_layers 3; `lipcert models NAME` shows them all."""
    data: str = "digits"
    """A data set from `lipcert data list`, or a path."""
    data_root: str | None = None
    """Where prepared data live; None for the default."""
    epochs: int = Field(default=10, ge=1)
    steps: int | None = Field(default=None, ge=1)
    """Stop after so many steps, wherever in an epoch that is; None for the epochs above."""
    batch_size: int = Field(default=256, ge=1)
    """Over all processes."""
    learning_rate: Annotated[float, tyro.conf.arg(aliases=("--lr",))] = Field(default=0.01, gt=0)
    schedule: Literal["triangular", "linear"] = "triangular"
    """Of the learning rate: the paper's, or up over a tenth of the run and down to 0, better for short runs."""
    beta1: float = Field(default=0.5, ge=0, lt=1)
    beta2: float = Field(default=0.9, ge=0, lt=1)
    loss: Loss = "offset"
    """Each is described in `lipcert.losses`; its settings are the next flags, None for the published value."""
    offset: float | None = Field(default=None, ge=0)
    """offset, logit-annealing: the margin asked for. Larger trades natural for certified accuracy."""
    temperature: float | None = Field(default=None, gt=0)
    """offset, logit-annealing: smaller looks at the nearest rival only."""
    beta: float | None = Field(default=None, ge=0)
    """logit-annealing: how fast the confident stop pulling."""
    margin: float | None = Field(default=None, ge=0)
    """multi-margin, hkr: of the hinge."""
    weight: float | None = Field(default=None, ge=0)
    """margin-boosting: of the rivals' term."""
    epsilon: float | None = Field(default=None, gt=0)
    """emma: the radius trained for, reached after half of the run; None for 108/255."""
    gamma: float | None = Field(default=None, ge=0)
    """certificate: weight of the radius beside the cross entropy."""
    alpha: float | None = Field(default=None, ge=0, le=1)
    """hkr: share of the hinge."""
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
    """Also write TensorBoard events into the run folder (extra 'train')."""

    @model_validator(mode="after")
    def _settings_are_of_the_loss(self) -> TrainConfig:
        known = LOSS_SETTINGS[self.loss]
        for name in sorted({name for names in LOSS_SETTINGS.values() for name in names}):
            if name not in known and getattr(self, name) is not None:
                takes = ", ".join(known) or "no settings"
                raise ValueError(f"{name} is no setting of the loss {self.loss!r}, which takes {takes}; drop it.")
        return self

    def loss_settings(self) -> dict[str, float]:
        """The settings of the loss that were given; the others keep their published values."""
        given = {name: getattr(self, name) for name in LOSS_SETTINGS[self.loss]}
        return {name: value for name, value in given.items() if value is not None}


SCHEDULES = {
    "triangular": ((0.0, 0.0), (0.4, 1.0), (0.8, 0.05), (1.0, 0.0)),  # the paper's
    "linear": ((0.0, 0.0), (0.1, 1.0), (1.0, 0.0)),
}


def learning_rate_factor(progress: float, schedule: Literal["triangular", "linear"] = "triangular") -> float:
    """What the learning rate is multiplied by: linear between the points of the schedule."""
    for (x0, y0), (x1, y1) in pairwise(SCHEDULES[schedule]):
        if progress <= x1:
            return y0 + (y1 - y0) * (progress - x0) / (x1 - x0)
    return 0.0


def radius_factor(progress: float) -> float:
    """EMMA's share of its radius: from 1/30 linearly to 1 at half of the run (LiResNet's released schedule)."""
    return min(1.0, (1 + 29 * 2 * progress) / 30)
