"""What a comparison trains, without torch: methods × data × seeds, each method at its own best learning rate.

The budget is CPU time, but a run is a number of *steps*: the cost of a step is measured once, side by side for all
methods, stored, and divided into the budget. So a run that was killed continues with the very same steps, and
the table does not depend on what else the machine was doing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lipcert.experiments.plan import CERTIFY, CERTIFY_LOCALLY, Job, Stage, smoothing_stage
from lipcert.training.config import Augmentation, Loss, Optimizer, TrainConfig, own_loss

Key = tuple[str, str]  # data, method
METHODS = (
    "sn_surrogate",
    "cpl_surrogate",
    "aol",
    "sll",
    "sll_shifted",
    "sll_surrogate",
    "rescaled",
    "orthogonal",
)

NOISE = 0.25  # of smoothing
SMOOTHED = smoothing_stage(NOISE, samples=1000, examples=200)


@dataclass(frozen=True)
class Recipe:
    """What a name of ``--methods`` stands for: a model, how it is trained, and how it is certified."""

    model: str
    loss: Loss | None = None
    """None means that of the model, or the cross entropy with an offset."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the training."""
    certified_by: str = "lipschitz"

    def stages(self, common: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """What follows the training. Attacks are on the network, not on a smoothed classifier."""
        if self.certified_by == "smoothing":
            return (SMOOTHED, *(stage for stage in common if stage.command == "audit"))
        return (*common, CERTIFY_LOCALLY) if self.certified_by == "local" and CERTIFY in common else common


RECIPES = {
    "local": Recipe("local", certified_by="local"),
    "smoothing": Recipe(
        "gloro", "offset", {"offset": 0.0, "temperature": 1.0, "noise": NOISE}, certified_by="smoothing"
    ),
}


def recipe(method: str) -> Recipe:
    """The recipe of a method: one of RECIPES, a model, or MODEL+LOSS."""
    if method in RECIPES:
        return RECIPES[method]
    model, _, loss = method.partition("+")
    if loss and loss not in get_args(Loss):
        raise ValueError(
            f"{method!r} must be a model and a loss, such as liresnet+emma-annealing; {loss!r} is no loss."
        )
    return Recipe(model, cast(Loss, loss) if loss else None)


class Comparison(BaseModel):
    """What decides the training of a comparison."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: tuple[str, ...] = METHODS
    """The first part of a model's name, which `lipcert models` lists; MODEL+LOSS for another loss; or smoothing."""
    size: str = "tiny"
    """The last part of a model's name: one architecture family for all methods."""
    data: tuple[str, ...] = ("digits",)
    """Data sets from `lipcert data list`, or paths."""
    data_root: str | None = None
    """Folder of prepared data sets. None means the default."""
    seconds: float | None = Field(default=None, gt=0)
    """CPU seconds of one thread for each run. None means 60, unless epochs are given."""
    epochs: int | None = Field(default=None, ge=1)
    """Number of epochs instead of a time: equal steps, not equal cost."""
    seeds: int = Field(default=3, ge=1)
    """Runs of each method, with seeds 0, 1, …"""
    learning_rates: tuple[Annotated[float, Field(gt=0, lt=math.inf)], ...] = (0.001, 0.003, 0.01, 0.03)
    """Learning rates to try for each method on held-out training images. A single one is not tried first."""
    sweep_share: float = Field(default=0.5, gt=0, le=1)
    """Budget of one trial of a learning rate, as a share of the budget of a run."""
    validation: int = Field(default=5000, ge=1)
    """Training images held out in those trials, at most a fifth of them."""
    batch_size: int = Field(default=256, ge=1)
    """Images in a step."""
    schedule: Literal["triangular", "linear"] = "linear"
    """Schedule of the learning rate, see `lipcert train --help`."""
    offset: float = Field(default=2**-0.5, ge=0)
    """The margin that the cross entropy asks for; gloro and liresnet have their own losses."""
    augment: Augmentation = "none"
    """Data augmentation of the training images."""
    optimizer: Optimizer = "adam"
    """Adam for all, or Muon for the kernels of residual convolutions."""
    precision: Literal["no", "bf16"] = "no"
    """Mixed precision of the products in training; certificates are always about float64."""

    @field_validator("methods", "data", "learning_rates")
    @classmethod
    def _each_once(cls, value: tuple[object, ...]) -> tuple[object, ...]:
        if not value or len(set(value)) < len(value):
            raise ValueError(f"name at least one, and each of them once, got {list(value)}")
        return value

    @model_validator(mode="after")
    def _one_budget(self) -> Comparison:
        if self.seconds is not None and self.epochs is not None:
            raise ValueError("give --seconds or --epochs, not both.")
        return self

    def steps(self, step_seconds: float, images: int) -> int:
        """How many steps a run takes, from the cost of one and the number of training images."""
        if self.epochs is not None:
            return self.epochs * -(-images // self.batch_size)
        return max(1, int((self.seconds or 60.0) / step_seconds))

    def config(
        self, data: str, method: str, learning_rate: float, steps: int, *, seed: int = 0, validation: int = 0
    ) -> TrainConfig:
        """One run, single-threaded, evaluated at its end; methods whose norms are tracked have their own losses."""
        made = recipe(method)
        model = f"{made.model}_{self.size}"
        loss = made.loss or own_loss(model) or "offset"
        settings: dict[str, Any] = {"loss": loss} | ({"offset": self.offset} if loss == "offset" else {})
        settings |= made.settings
        return TrainConfig(
            model=model,
            data=data,
            data_root=self.data_root,
            steps=steps,
            batch_size=self.batch_size,
            learning_rate=learning_rate,
            schedule=self.schedule,
            augment=self.augment,
            optimizer=self.optimizer,
            precision=self.precision,
            evaluate_every=10**9,
            validation=validation,
            seed=seed,
            threads=1,
            **settings,
        )


def sweep(plan: Comparison, steps: Mapping[Key, int], held: Mapping[str, int]) -> list[Job]:
    """The trials of learning rates, on held-out training images; none where there is nothing to choose."""
    if len(plan.learning_rates) == 1:
        return []
    return [
        Job(
            f"sweep/{slug(data)}-{method}-{rate:g}",
            plan.config(
                data, method, rate, max(1, round(steps[data, method] * plan.sweep_share)), validation=held[data]
            ),
            kind=f"{method}_{plan.size}",
        )
        for data in plan.data
        for rate in plan.learning_rates
        for method in plan.methods
    ]


def finals(
    plan: Comparison, steps: Mapping[Key, int], rates: Mapping[Key, float], stages: tuple[Stage, ...] = ()
) -> list[Job]:
    """The runs of the table; all methods of one seed before the next, so that a part is a fair part."""
    return [
        Job(
            f"runs/{slug(data)}-{method}-{seed}",
            plan.config(data, method, rates[data, method], steps[data, method], seed=seed),
            recipe(method).stages(stages),
            kind=f"{method}_{plan.size}",
        )
        for data in plan.data
        for seed in range(plan.seeds)
        for method in plan.methods
    ]


def slug(data: str) -> str:
    """A data set's name, or the end of its path, as part of a folder's name."""
    last = data.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(letter if letter.isalnum() or letter in "_." else "_" for letter in last) or "data"
