"""What a network is, without torch: a frozen, checked record that fits in a config file.

One architecture family covers the paper's models: space-to-depth stem, zero channels up to the width,
convolutions, scaled average pooling, dense layers, normalised head. The method says which layer and
which T.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Method = Literal[
    "sll",
    "sll_shifted",
    "sll_surrogate",
    "sll_sampled_gradient",
    "sll_sampled_surrogate",
    "sll_inert",  # as in the paper's code: q of the convolutions cancels, so their T is AOL's
    "aol",
    "cpl",
    "cpl_surrogate",
    "rescaled",
    "sn",
    "sn_surrogate",
    "orthogonal",  # Cayley, dense, on every pixel
    "cayley",
    "soc",
    "soc_plus",  # with Householder activations
    "lot",
    "eco",
    "bro",
    "bcop",
    "sandwich",
]


class ModelSpec(BaseModel):
    """An architecture and a method. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    method: Method = "sll"
    """Which layer, and which T."""
    stem: int = Field(default=1, ge=1)
    """Block of the space-to-depth stem: 1 keeps the image, 2 gives a quarter of the pixels and 4× the channels."""
    channels: int = Field(ge=1)
    """Of the image after the stem, filled up with zeros."""
    conv_layers: int = Field(ge=0, le=10_000)
    """How many convolutions."""
    conv_hidden: int = Field(default=5, ge=1)
    """Neurons per pixel of each convolution."""
    kernel_size: int = Field(default=3, ge=1)
    """Of the convolutions, odd."""
    pool: int = Field(default=4, ge=1)
    """Window of the scaled average pooling between convolutions and dense layers; 1 for none."""
    dense_layers: int = Field(ge=0, le=10_000)
    """How many dense layers."""
    dense_hidden: int = Field(default=2048, ge=1)
    """Neurons of each dense layer."""
    activation: str = "relu"
    """Of the residual layers, with slope in [0, 1]."""
    init: Literal["xavier", "orthogonal"] = "xavier"
    """The paper's, or orthonormal columns: T = 1, no residual starts near x ↦ x, no convolution shrinks."""
    num_classes: int = Field(default=10, ge=2)
    """From the data, when trained."""
    image_shape: tuple[int, int, int] = (3, 32, 32)
    """Channels, height, width: from the data, when trained."""
    mean: tuple[float, ...] | None = None
    """Subtracted inside the model, per channel; None for 0.5."""
    std: tuple[float, ...] | None = None
    """Divided by inside the model, per channel: every radius is divided by 1/min(std). None for no division."""

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _one_channel(cls, value: Any) -> Any:
        return (value,) if isinstance(value, (int, float)) else value

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelSpec:
        colours = self.image_shape[0]
        if min(self.image_shape) < 1:
            raise ValueError(f"image_shape must be (channels, height, width), all positive; got {self.image_shape}")
        if self.channels < colours * self.stem**2:
            raise ValueError(
                f"channels must be at least the image channels times stem², {colours * self.stem**2}; got "
                f"{self.channels}"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != colours:
                raise ValueError(f"{name} must have one value per image channel, {colours}; got {len(values)}")
        return self

    @property
    def block(self) -> int:
        """Height and width of the image are padded with zeros to a multiple of this."""
        return self.stem * self.pool

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width of what the convolutions see."""
        _, high, wide = self.image_shape
        return -(-high // self.block) * self.pool, -(-wide // self.block) * self.pool

    @property
    def features(self) -> int:
        """Inputs of the dense layers."""
        _, high, wide = self.image_shape
        return self.channels * -(-high // self.block) * -(-wide // self.block)
