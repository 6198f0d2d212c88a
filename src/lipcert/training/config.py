"""Everything that decides a run, without torch: one frozen record, saved as ``config.json`` in its folder.

The defaults are the paper's: Adam(0.01, β = 0.5, 0.9), batch 256, cross entropy with offset 3√2/2 and
temperature 1/4, a piecewise triangular schedule. Two runs with the same config on the same machine and number of
processes are equal bit for bit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

import tyro
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lipcert.errors import ReadableErrors

Growth = Literal["fixed", "linear", "half"]
Optimizer = Literal["adam", "muon"]
Augmentation = Literal["none", "flip", "crop-flip", "sll", "aol"]
Loss = Literal[
    "offset",
    "multi-margin",
    "margin-boosting",
    "logit-annealing",
    "emma",
    "emma-annealing",
    "gloro",
    "gloro-trades",
    "local",
    "certificate",
    "kr",
    "hkr",
]
LOSS_SETTINGS: dict[Loss, tuple[str, ...]] = {  # fields below that each loss of ``lipcert.losses`` takes
    "offset": ("offset", "temperature"),
    "multi-margin": ("margin",),
    "margin-boosting": ("weight",),
    "logit-annealing": ("offset", "temperature", "beta"),
    "emma": ("epsilon", "epsilon_schedule"),
    "emma-annealing": ("epsilon", "epsilon_schedule", "offset", "temperature", "beta"),
    "gloro": ("epsilon", "epsilon_schedule"),
    "gloro-trades": ("epsilon", "epsilon_schedule", "weight", "weight_schedule"),
    "local": ("epsilon", "epsilon_schedule", "weight"),
    "certificate": ("gamma",),
    "kr": (),
    "hkr": ("alpha", "margin"),
}
OWN_LOSS: dict[str, Loss] = {
    "gloro": "gloro",
    "liresnet": "emma",
    "local": "local",
}  # of methods whose norms are tracked


def own_loss(model: str) -> Loss | None:
    """The loss that a model is published with, if it cannot do without one that sees its constant."""
    return OWN_LOSS.get(model.partition("_")[0])


class TrainConfig(ReadableErrors, BaseModel):
    """One training run. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, tyro.conf.arg(aliases=("--network",))] = "sll_tiny"
    """Name of an architecture, see `lipcert models`, or module:function of your own, which is called with
    image_shape, num_classes and the overrides. A table has sll_table instead of sll_tiny."""
    overrides: Annotated[
        dict[str, int | float | str | tuple[float, ...]], tyro.conf.arg(metavar="FIELD=VALUE ...")
    ] = {}
    """Fields of the architecture to change, such as dense_layers=3. `lipcert models NAME` lists them."""
    data: str = "digits"
    """Name of a data set, see `lipcert data list`, or a path; a table is a .csv or .rda file."""
    label: str | None = None
    """Column of a table that holds the classes."""
    data_root: str | None = None
    """Folder of prepared data sets. None means the default."""
    init: str | None = None
    """Start from these weights: a run folder or a model.safetensors of the same architecture."""
    epochs: int = Field(default=10, ge=1)
    """Passes over the training images."""
    steps: int | None = Field(default=None, ge=1)
    """Number of steps, instead of a number of epochs."""
    batch_size: int = Field(default=256, ge=1)
    """Images in a step, over all processes."""
    learning_rate: Annotated[float, tyro.conf.arg(aliases=("--lr",))] = Field(default=0.01, gt=0)
    """Largest learning rate of the schedule."""
    schedule: Literal["triangular", "linear"] = "triangular"
    """Schedule of the learning rate: the paper's, or a linear one that is better for short runs."""
    optimizer: Optimizer = "adam"
    """The paper's Adam, or Muon for the kernels of residual convolutions, with Adam for the rest: better in short
    runs."""
    beta1: float = Field(default=0.5, ge=0, lt=1)
    """Adam's decay of the mean gradient."""
    beta2: float = Field(default=0.9, ge=0, lt=1)
    """Adam's decay of the mean squared gradient."""
    loss: Loss = "offset"
    """Training loss, see `lipcert.losses`. The next flags are its settings; None means the value after the loss."""
    offset: float | None = Field(default=None, ge=0)
    """Margin to ask for (offset: 3√2/2, annealing: 2). Larger values trade natural for certified accuracy."""
    temperature: float | None = Field(default=None, gt=0)
    """Temperature of the softmax (offset: 1/4, annealing: 3/4). Smaller values look at the nearest rival."""
    beta: float | None = Field(default=None, ge=0)
    """How fast confident examples stop contributing (logit-annealing, emma-annealing: 5)."""
    margin: float | None = Field(default=None, ge=0)
    """Hinge margin (multi-margin: 1, hkr: 1)."""
    weight: float | None = Field(default=None, ge=0)
    """Weight of the rivals' term (margin-boosting: 1), of the divergence (gloro-trades: 1)
    or of the activity of neurons (local: 0)."""
    weight_schedule: Growth | None = None
    """How that weight grows, as the radius (gloro-trades: fixed)."""
    epsilon: float | None = Field(default=None, gt=0)
    """Radius to train for (emma, emma-annealing: 108/255, gloro, gloro-trades, local: 36/255)."""
    epsilon_schedule: Growth | None = None
    """How that radius grows: fixed, linear (from 1/100, to the end) or half (from 1/30, to the middle of the run).
    The losses of gloro have linear, those of emma and local half."""
    gamma: float | None = Field(default=None, ge=0)
    """Weight of the radius beside the cross entropy (certificate: 0.1)."""
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Share of the hinge (hkr: 0.99)."""
    augment: Augmentation = "none"
    """Data augmentation of the training images."""
    noise: float | None = Field(default=None, gt=0)
    """Standard deviation of Gaussian noise added to the training images, for smoothing. None means no noise."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient. None means no clipping."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision of the products; T is always computed in float32. fp16 needs a CUDA device."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of an average of the weights, which is then evaluated and saved. None means no average."""
    validation: int = Field(default=0, ge=0)
    """Number of training images to hold out and evaluate instead of the test set."""
    evaluate_every: int = Field(default=1, ge=1)
    """Epochs between two evaluations. The last epoch is always evaluated."""
    checkpoint_every: float = Field(default=60.0, gt=0)
    """Seconds between two checkpoints within an epoch. The end of an epoch is always saved."""
    seed: int = 0
    """Random seed."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on; auto takes CUDA where there is one. Certification always runs on the CPU."""
    threads: int | None = Field(default=None, ge=1)
    """Number of CPU threads. None leaves the choice to torch."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run folder (extra 'train')."""

    @model_validator(mode="after")
    def _settings_are_of_the_loss(self) -> TrainConfig:
        known = LOSS_SETTINGS[self.loss]
        for name in sorted({name for names in LOSS_SETTINGS.values() for name in names}):
            if name not in known and getattr(self, name) is not None:
                takes = ", ".join(known) or "no settings"
                raise ValueError(f"{name} is not a setting of the loss {self.loss!r}, which takes {takes}.")
        return self

    def loss_settings(self) -> dict[str, Any]:
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


GROWTHS: dict[Growth, tuple[float, float]] = {  # the share at the start, and the progress where it is whole
    "fixed": (1.0, 1.0),
    "linear": (1 / 100, 1.0),
    "half": (1 / 30, 0.5),  # LiResNet's released schedule
}


def growth_factor(progress: float, growth: Growth) -> float:
    """The share of a radius or weight of the loss: linear from a part of it to the whole."""
    start, end = GROWTHS[growth]
    return min(1.0, start + (1 - start) * progress / end)
