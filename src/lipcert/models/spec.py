"""What a network is, without torch: a frozen, checked record that fits in a config file.

One layout covers the paper's models: space-to-depth stem, zero channels up to the width, convolutions, scaled
average pooling, dense layers, normalised head. The others are those of its rivals (``families``). The method says
which layer and which T.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lipcert.errors import ReadableErrors

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
    "aol_affine",  # as published: affine, MaxMin between the layers
    "orthogonal",  # Cayley, dense, on every pixel
    "cayley",
    "soc",
    "soc_plus",  # with Householder activations
    "lot",
    "eco",
    "bro",
    "bcop",
    "sandwich",
    "gloro",  # plain layers, whose norms are tracked and not divided
    "local",  # the same with clipped activations, for constants that hold in a ball
    "local_maxmin",  # with MaxMin before the clipping
    "liresnet",  # I + γV/√L on images, tracked; dense layers orthogonal by Cholesky
    "lipnext",  # shifts between orthogonal maps of the channels, whose matrices are stored, and |x| on half of them
]


class ModelSpec(ReadableErrors, BaseModel):
    """An architecture and a method. Unknown fields are errors."""

    model_config = ConfigDict(title="a model", extra="forbid", frozen=True, use_attribute_docstrings=True)

    method: Method = "sll"
    """Which layer, and which bound T."""
    layout: Literal["flat", "kw_large", "lipconvnet", "patches", "c2f", "liresnet", "lipnext"] = "flat"
    """The paper uses flat; Cayley, BCOP and Sandwich use kw_large; SOC and LOT use lipconvnet; AOL uses patches;
    GloRo uses c2f; LiResNet and LipNeXt have their own."""
    head: Literal["normalized", "plain", "first"] = "normalized"
    """How logits are made: by rows of norm 1, by rows of any norm, or as the first coordinates of the network."""
    stem: int = Field(default=1, ge=1)
    """Block of the space-to-depth stem: 1 keeps the image, 2 gives a quarter of the pixels and 4× the channels."""
    channels: int = Field(ge=1)
    """Number of channels after the stem; missing ones are filled with zeros."""
    conv_layers: int = Field(ge=0, le=10_000)
    """Number of convolutions."""
    conv_hidden: int = Field(default=5, ge=1)
    """Neurons per pixel of each convolution."""
    kernel_size: int = Field(default=3, ge=1)
    """Size of the convolution kernels; odd ones are centered."""
    pool: int = Field(default=4, ge=1)
    """Window of the scaled average pooling between convolutions and dense layers; 1 for none."""
    dense_layers: int = Field(ge=0, le=10_000)
    """Number of dense layers."""
    dense_hidden: int = Field(default=2048, ge=1)
    """Neurons of each dense layer."""
    activation: str = "relu"
    """Activation of the residual layers, with slopes in [0, 1]."""
    rank: float | None = Field(default=None, gt=0, lt=1)
    """Columns of the reflectors of bro, as a share of the channels; None for two reflectors from all columns."""
    between: Literal["maxmin", "relu"] = "maxmin"
    """What follows an affine layer: MaxMin, or ReLU, for which lipsdp and sdp-crown have proofs."""
    lipschitz: float | Literal["learned"] = 1.0
    """Factor before the head, so that a 1-Lipschitz backbone gets this constant; learned starts at 1."""
    init: Literal["xavier", "orthogonal"] = "xavier"
    """Xavier (the paper), or orthonormal columns, which start with T = 1 and preserve the signal."""
    num_classes: int = Field(default=10, ge=2)
    """Number of classes; lipcert train takes it from the data."""
    image_shape: tuple[int, ...] = (3, 32, 32)
    """Channels, height and width of an image, or the number of columns of a table; lipcert train takes them from
    the data."""
    mean: tuple[float, ...] | None = None
    """Mean of each channel, subtracted inside the model; None for 0.5."""
    std: tuple[float, ...] | None = None
    """Divisor of each channel inside the model, which multiplies every radius by min(std); None for no division."""

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _one_channel(cls, value: Any) -> Any:
        return (value,) if isinstance(value, (int, float)) else value

    @field_validator("lipschitz", mode="before")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        if value != "learned" and not (isinstance(value, (int, float)) and 0 < value <= 1e6):
            raise ValueError(f"lipschitz must be a number above 0 and at most 1e6, or 'learned'; got {value!r}")
        return value

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelSpec:
        if len(self.image_shape) not in (1, 3) or min(self.image_shape) < 1:
            raise ValueError(
                "image_shape must be (channels, height, width), or (columns,) for a table, all positive; got "
                f"{self.image_shape}"
            )
        colors = self.image_shape[0]
        dense = (self.layout, self.stem, self.conv_layers, self.pool) == ("flat", 1, 0, 1)
        if len(self.image_shape) == 1 and not dense:
            raise ValueError(
                "a table needs a model without convolutions, with layout flat, stem 1, conv_layers 0 and pool 1, "
                "such as sll_table"
            )
        if self.channels < colors * self.stem**2:
            raise ValueError(
                f"channels must be at least the channels of the image, or the columns of the table, times stem², "
                f"{colors * self.stem**2}; got {self.channels}"
            )
        if self.rank is not None and self.method != "bro":
            raise ValueError(
                f"rank is a setting of the reflectors of bro; got method {self.method!r}. Leave it out"
            )
        if self.layout != "flat":
            self._require_layout()
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != colors:
                raise ValueError(f"{name} must have one value per image channel, {colors}; got {len(values)}")
        return self

    def _require_layout(self) -> None:
        stem, pool = 1 if self.layout == "c2f" else self.stem, self.pool if self.layout == "liresnet" else 1
        fixed = {
            "kw_large": (1, 1, 4, 2),
            "lipconvnet": (1, 1, self.conv_layers, 0),
            "lipnext": (self.stem, 1, self.conv_layers, 0),
        }
        want = fixed.get(self.layout, (stem, pool, self.conv_layers, self.dense_layers))
        have = (self.stem, self.pool, self.conv_layers, self.dense_layers)
        if have != want:
            raise ValueError(
                f"layout {self.layout} has (stem, pool, conv_layers, dense_layers) = {want}; got {have}"
            )
        if self.method.startswith(("sll", "cpl", "rescaled")) or self.method == "aol":
            raise ValueError(f"layout {self.layout} changes its width, which a residual cannot; got {self.method}")
        owners = {"c2f": ("gloro", "local", "local_maxmin"), "liresnet": ("liresnet",), "lipnext": ("lipnext",)}
        if self.method not in owners.get(self.layout, (self.method,)):
            only = owners[self.layout]
            raise ValueError(f"layout {self.layout} is that of {' and '.join(only)}; got {self.method}")
        if self.method == "lipnext" != self.layout:
            raise ValueError(f"method lipnext has the layouts flat and lipnext; got {self.layout}")
        if self.layout == "lipconvnet" and (self.conv_layers % 5 or not self.conv_layers):
            raise ValueError(f"lipconvnet has five groups of convolutions; got conv_layers {self.conv_layers}")
        if self.layout == "lipconvnet" and self.head == "first" and self.features > 32 * self.channels:
            raise ValueError(f"head 'first' needs one pixel at the end, of 32 × 32; got images {self.image_shape}")
        if self.layout == "c2f" and (self.conv_layers < 2 or self.conv_layers % 3 == 1):
            raise ValueError(f"c2f has groups of three convolutions, the last maybe of two; got {self.conv_layers}")
        pixels = self.pixels[0] * self.pixels[1]
        if self.layout == "patches" and self.dense_hidden % pixels:
            raise ValueError(f"dense_hidden must be a multiple of the pixels, {pixels}; got {self.dense_hidden}")

    @property
    def block(self) -> int:
        """Height and width of the image are padded with zeros to a multiple of this."""
        halvings = {"kw_large": 2, "lipconvnet": 5, "c2f": self.groups}
        return 2 ** halvings[self.layout] if self.layout in halvings else self.stem * self.pool

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image; a table has one pixel, whose channels are the columns."""
        return (1, 1) if len(self.image_shape) == 1 else (self.image_shape[1], self.image_shape[2])

    @property
    def groups(self) -> int:
        """Of convolutions in c2f, each of which ends by halving the image."""
        return -(-self.conv_layers // 3)

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width of what the first convolution sees."""
        high, wide = self.size
        each = self.block // self.stem
        return -(-high // self.block) * each, -(-wide // self.block) * each

    @property
    def features(self) -> int:
        """Inputs of the dense layers, or of the head where there are none."""
        if self.layout in ("patches", "lipnext"):
            return self.dense_hidden if self.layout == "patches" else self.channels
        high, wide = self.size
        doublings = {"kw_large": 1, "lipconvnet": 5, "c2f": self.groups - 1}.get(self.layout, 0)
        channels = 2**doublings * self.channels
        return channels * -(-high // self.block) * -(-wide // self.block)


class OwnNetwork(ReadableErrors, BaseModel):
    """A network that a function of the user's builds: its name and what it is called with, never code."""

    model_config = ConfigDict(title="a network of your own", extra="forbid", frozen=True)

    builder: str
    """A registered name, or module:function; empty for a network that was passed to lipcert.train."""
    image_shape: tuple[int, ...] = (3, 32, 32)
    num_classes: int = Field(default=10, ge=2)
    options: dict[str, int | float | str | tuple[float, ...]] = {}


Architecture = ModelSpec | OwnNetwork
