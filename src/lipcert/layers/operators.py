"""Wᵀ and its exact adjoint W: how a weight meets its input. A layer is a form (``forms``) of one of these.

An operator is a frozen record of sizes. It knows the shape of its weight, applies Wᵀ and W, arranges the weight as
``Columns`` for a bound, and checks inputs. Zero padding deletes rows and columns of the infinite operator, which
never raises the norm. Circular padding wraps the image and keeps the norm only if no output position occurs twice.
Reflect and replicate padding repeat pixels: one corner tap of a 3×3 kernel then has norm 2 under a bound of 1. They
are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.activations import SlopeRestricted
from lipcert.algebra.gram import CONVOLVE, PADDING_MODES, Columns, affine_columns, dense_columns, residual_columns
from lipcert.algebra.orthogonal import low_rank_reflector, orthonormal, require_rank, squared_norm
from lipcert.algebra.scale import at_least_float32, autocasting, normalize, transformed
from lipcert.algebra.torus import (
    FEW_PIXELS,
    MAPS,
    apply_by_products,
    apply_whole,
    block_composition,
    composition_norm,
    kernel_of,
    symbols,
)
from lipcert.algebra.torus import apply as apply_symbols
from lipcert.errors import NotCertified, one_of, positive_int
from lipcert.layers.fused import fits, relu_residual, relu_residual_conv

Sizes = tuple[int, ...]
TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def sizes(name: str, value: object, axes: int, *, least: int = 1) -> Sizes:
    """``value`` as one integer for each axis, from a single one or a tuple."""
    values = (value,) * axes if isinstance(value, int) else value
    if (
        not isinstance(values, (tuple, list))
        or len(values) != axes
        or any(isinstance(v, bool) or not isinstance(v, int) or v < least for v in values)
    ):
        many = {1: "a tuple with one integer", 2: "a pair of integers"}.get(axes, f"{axes} integers")
        raise ValueError(
            f"{name} must be one integer or {many} of at least {least}; got {value!r}. Pass {name}={max(least, 1)}."
        )
    return tuple(values)


def require_image(x: Tensor, axes: int, channels: int, name: str) -> None:
    """Raise ValueError unless ``x`` is (N, channels, *image), or without N."""
    if x.ndim in (axes + 1, axes + 2) and x.shape[-1 - axes] == channels:
        return
    if x.ndim not in (axes + 1, axes + 2):
        cure = f"An input has {axes + 2} dimensions, or {axes + 1} without the batch."
    elif x.shape[-1] == channels:
        cure = "The channels come before the positions: x.movedim(-1, 1) moves them there."
    elif x.ndim == axes + 1:
        cure = f"{x.ndim} dimensions are one input without a batch; its channels come first."
    else:
        cure = "Put PadChannels before it, or build the layer for that number of channels."
    shape = ", ".join(["N", str(channels), *("L", "HW", "DHW")[axes - 1]])
    raise ValueError(f"{name} expects ({shape}); got {tuple(x.shape)}. {cure}")


@dataclass(frozen=True)
class Dense:
    """Wᵀ is a matrix, (outputs, inputs), and acts on the last axis.

    With a ``rank`` it is a block of a reflector, whose parameters are as many columns.
    """

    inputs: int
    outputs: int
    rank: int | None = None
    axes: ClassVar[int] = 0  # spatial axes behind the channels

    def __post_init__(self) -> None:
        positive_int("inputs", self.inputs)
        positive_int("outputs", self.outputs)

    @property
    def weight_shape(self) -> Sizes:
        return (self.outputs, self.inputs) if self.rank is None else (max(self.outputs, self.inputs), self.rank)

    def require(self, x: Tensor, layer: nn.Module) -> None:
        """Raise ValueError unless ``x`` is (*, inputs)."""
        if x.ndim < 1 or x.shape[-1] != self.inputs:
            raise ValueError(
                f"{type(layer).__name__} expects (*, {self.inputs}); got {tuple(x.shape)}. Flatten images first, "
                "or build the layer for that number of features."
            )

    def output_columns(self, weight: Tensor) -> Columns:
        """The columns of W in a residual: a column is one output of Wᵀ."""
        return dense_columns(weight)

    def input_columns(self, weight: Tensor) -> Columns:
        """The columns of the map itself in an affine layer: a column is one input."""
        return dense_columns(weight.mT)

    def weight_of(self, columns: Columns, weight: Tensor, *, of_inputs: bool = False) -> Tensor:
        """The weight to use, given what a bound returned: an orthogonal bound replaces it."""
        return columns.matrix().mT if of_inputs else columns.matrix()

    def per_output(self, values: Tensor) -> Tensor:
        """One value for each output, shaped to multiply the weight."""
        return values[:, None]

    def per_input(self, values: Tensor) -> Tensor:
        """One value for each input, shaped to multiply the weight."""
        return values

    def apply(self, weight: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Wᵀx + b."""
        return F.linear(x, weight, bias)

    def adjoint(self, weight: Tensor, z: Tensor, like: Tensor) -> Tensor:
        """Wz, of the shape of ``like``."""
        return F.linear(z, weight.mT)

    def laid_out(self, x: Tensor) -> Tensor:
        """x in the memory layout in which the products are fastest."""
        return x

    def mix(self, matrix: Tensor, x: Tensor) -> Tensor:
        """A matrix applied to the channels."""
        return F.linear(x, matrix)

    def residual(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor, sigma: SlopeRestricted, scale: Tensor
    ) -> Tensor:
        """x − W(gain∘σ(s·(Wᵀx + b))/s)."""
        if sigma.name == "relu" and x.ndim == 2 and fits(x, weight, gain, *([] if bias is None else [bias])):
            return relu_residual(x, weight, bias, gain)
        z = sigma.scaled(F.linear(x, weight, bias), scale) * gain
        if x.ndim == 2 and x.dtype == z.dtype and not autocasting(x):  # the difference within the product
            return torch.addmm(x, z, weight, alpha=-1)
        return x - F.linear(z, weight.mT)

    def start(self, weight: Tensor) -> Sequence[Tensor]:
        """The parts of a weight that are orthonormal in an orthogonal start."""
        return [weight]

    def __str__(self) -> str:
        return f"{self.inputs}, {self.outputs}" + ("" if self.rank is None else f", rank={self.rank}")


@dataclass(frozen=True)
class Conv:
    """Wᵀ is a convolution as in ``nn.Conv1d``, ``Conv2d`` and ``Conv3d``: weight (outputs, inputs/groups, *kernel).

    A dilation changes nothing in the columns but the stride: of the lags t′ − t between taps only multiples of
    s/gcd(s, dilation) meet.
    """

    inputs: int
    outputs: int
    kernel_size: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    padding_mode: str = "zeros"
    groups: int = 1

    def __post_init__(self) -> None:
        positive_int("in_channels", self.inputs)
        positive_int("out_channels", self.outputs)
        if positive_int("groups", self.groups) > 1 and (self.inputs % self.groups or self.outputs % self.groups):
            raise ValueError(
                f"groups must divide the channels; got groups={self.groups} for {self.inputs} and {self.outputs} "
                "channels. Choose a common divisor."
            )
        if self.padding_mode in ("reflect", "replicate"):
            raise NotCertified(
                f"padding_mode must be one of {list(PADDING_MODES)}; got {self.padding_mode!r}, which repeats "
                "pixels and can double the norm, or worse, under any of our bounds. Use 'zeros' or 'circular'."
            )
        if self.padding_mode not in PADDING_MODES:
            raise ValueError(f"padding_mode must be one of {list(PADDING_MODES)}; got {self.padding_mode!r}.")
        if self.circular and any(2 * p > r for p, r in zip(self.padding, self.reach, strict=True)):
            raise NotCertified(
                "circular padding must be at most half of what the kernel reaches, (kernel − 1)/2 on each side "
                f"without a dilation, or outputs repeat; got padding {self.padding} for kernel {self.kernel_size}. "
                "Use an odd kernel, less padding, or padding_mode='zeros'."
            )

    @property
    def axes(self) -> int:
        return len(self.kernel_size)

    @property
    def circular(self) -> bool:
        return self.padding_mode == "circular"

    @property
    def reach(self) -> Sizes:
        """How far the last tap is from the first, on each axis."""
        return tuple(d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True))

    @property
    def steps(self) -> Sizes:
        """The stride in units of taps."""
        return tuple(s // math.gcd(s, d) for s, d in zip(self.stride, self.dilation, strict=True))

    @property
    def weight_shape(self) -> Sizes:
        return self.outputs, self.inputs // self.groups, *self.kernel_size

    def require(self, x: Tensor, layer: nn.Module) -> None:
        """Raise an error unless ``x`` is (N, inputs, *image), or without N, and the image holds the kernel."""
        name, image = type(layer).__name__, tuple(x.shape[-self.axes :])
        require_image(x, self.axes, self.inputs, name)
        if any(n + 2 * p <= r for n, p, r in zip(image, self.padding, self.reach, strict=True)):
            raise ValueError(
                f"{name} expects images that, padded by {self.padding}, hold a kernel of {self.kernel_size}; got "
                f"{'×'.join(map(str, image))}. Use a smaller kernel or more padding."
            )
        if self.circular and any(n % s for n, s in zip(image, self.stride, strict=True)):
            raise NotCertified(
                f"circular padding needs an image divisible by the stride {self.stride}; got "
                f"{'×'.join(map(str, image))}, where positions meet across the border at lags the bound does not "
                "cover. Use padding_mode='zeros', or resize the image."
            )

    def output_columns(self, weight: Tensor) -> Columns:
        return residual_columns(weight, self.steps, self.groups)

    def input_columns(self, weight: Tensor) -> Columns:
        return affine_columns(weight, self.steps, self.groups)

    def weight_of(self, columns: Columns, weight: Tensor, *, of_inputs: bool = False) -> Tensor:
        return weight

    def per_output(self, values: Tensor) -> Tensor:
        return values.view(-1, *[1] * (1 + self.axes))

    def per_input(self, values: Tensor) -> Tensor:
        each = values.view(self.groups, 1, -1).expand(-1, self.outputs // self.groups, -1).flatten(0, 1)
        return each.view(*each.shape, *[1] * self.axes)

    def laid_out(self, x: Tensor) -> Tensor:
        return channels_last(x)

    def apply(self, weight: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x, padding = channels_last(x), self.padding
        if self.circular:
            x, padding = pad_circular(x, padding), (0,) * self.axes
        return CONVOLVE[self.axes](x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def adjoint(self, weight: Tensor, z: Tensor, like: Tensor) -> Tensor:
        """The transpose of ``apply`` on images of the size of ``like``: what a stride skips comes back as zeros."""
        image, padding = tuple(like.shape[-self.axes :]), self.padding
        if self.circular:
            image, padding = tuple(n + 2 * p for n, p in zip(image, padding, strict=True)), (0,) * self.axes
        missing = [
            n - ((out - 1) * s - 2 * p + r + 1)
            for n, out, s, p, r in zip(image, z.shape[-self.axes :], self.stride, padding, self.reach, strict=True)
        ]
        back = TRANSPOSE[self.axes](z, weight, None, self.stride, padding, missing, self.groups, self.dilation)
        return unpad_circular(back, self.padding) if self.circular else back

    def in_weight(self, x: Tensor, out: Tensor) -> Tensor:
        """The gradient of ⟨apply(weight, x), out⟩ in the weight, with zeros around the image."""
        none = [0] * self.axes
        settings = ([*self.stride], [*self.padding], [*self.dilation], False, none, self.groups)
        like = x.new_empty(1).expand(self.weight_shape)  # of which only the shape counts
        _, gradient, _ = torch.ops.aten.convolution_backward(out, x, like, None, *settings, [False, True, False])
        return gradient

    def mix(self, matrix: Tensor, x: Tensor) -> Tensor:
        return CONVOLVE[self.axes](x, matrix.view(*matrix.shape, *[1] * self.axes))

    def residual(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor, sigma: SlopeRestricted, scale: Tensor
    ) -> Tensor:
        x = channels_last(x)
        parameters = [weight, gain, *([] if bias is None else [bias])]
        if sigma.name == "relu" and not self.circular and x.ndim == 2 + self.axes and fits(x, *parameters):
            return relu_residual_conv(self, x, weight, bias, gain)
        back = weight * self.per_output(-gain)  # −WΓ: a kernel is smaller than an image
        z = sigma.scaled(self.apply(weight, x, bias), scale)
        return x + self.adjoint(back, z, x)

    def start(self, weight: Tensor) -> Sequence[Tensor]:
        if all(s == 1 for s in self.stride):  # an orthogonal matrix at the center keeps norms on every image
            middle: tuple[Any, ...] = (slice(None), slice(None), *(k // 2 for k in self.kernel_size))
            weight = weight[middle]
        return weight.flatten(1).chunk(self.groups)  # with a stride, an orthogonal map of each patch

    def __str__(self) -> str:
        text = (
            f"{self.inputs}, {self.outputs}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, padding_mode={self.padding_mode!r}, groups={self.groups}"
        )
        return text if all(d == 1 for d in self.dilation) else f"{text}, dilation={self.dilation}"


@dataclass(frozen=True)
class ConvTranspose:
    """The adjoint of a zero-padded convolution, as in torch: weight (inputs, outputs/groups, *kernel).

    ``conv`` is that convolution, from the outputs of this map to its inputs. A finite image keeps some rows and
    columns of the operator on the plane, which never raises the norm.
    """

    conv: Conv
    output_padding: Sizes

    def __post_init__(self) -> None:
        if self.conv.circular:
            raise NotCertified("padding_mode of a transposed convolution must be 'zeros'; got 'circular'.")
        if any(more >= s for more, s in zip(self.output_padding, self.conv.stride, strict=True)):
            raise ValueError(
                "output_padding must be smaller than the stride, or no convolution has that output as its image; "
                f"got output_padding {self.output_padding} and stride {self.conv.stride}. Use less."
            )

    @property
    def inputs(self) -> int:
        return self.conv.outputs

    @property
    def outputs(self) -> int:
        return self.conv.inputs

    @property
    def axes(self) -> int:
        return self.conv.axes

    @property
    def weight_shape(self) -> Sizes:
        return self.conv.weight_shape

    def image(self, image: Sizes) -> Sizes:
        """The size of the output for inputs of that size."""
        conv = self.conv
        settings = zip(image, conv.stride, conv.padding, conv.reach, self.output_padding, strict=True)
        return tuple((n - 1) * s - 2 * p + r + 1 + more for n, s, p, r, more in settings)

    def require(self, x: Tensor, layer: nn.Module) -> None:
        """Raise ValueError unless ``x`` is (N, inputs, *image), or without N, and the output is not empty."""
        require_image(x, self.axes, self.inputs, type(layer).__name__)
        if min(self.image(tuple(x.shape[-self.axes :]))) < 1:
            raise ValueError(
                f"{type(layer).__name__} has a padding {self.conv.padding} that leaves nothing of its output for "
                f"inputs of shape {tuple(x.shape)}. Use less padding."
            )

    def input_columns(self, weight: Tensor) -> Columns:
        """A column is one input, that is one output of the convolution: its columns in a residual."""
        return self.conv.output_columns(weight)

    def output_columns(self, weight: Tensor) -> Columns:
        return self.conv.input_columns(weight)

    def weight_of(self, columns: Columns, weight: Tensor, *, of_inputs: bool = False) -> Tensor:
        return weight

    def per_input(self, values: Tensor) -> Tensor:
        return self.conv.per_output(values)

    def apply(self, weight: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
        conv = self.conv
        settings = (conv.stride, conv.padding, self.output_padding, conv.groups, conv.dilation)
        return TRANSPOSE[self.axes](channels_last(x), weight, bias, *settings)

    def start(self, weight: Tensor) -> Sequence[Tensor]:
        return self.conv.start(weight)

    def __str__(self) -> str:
        return f"{self.conv}, transposed, output_padding={self.output_padding}"


Operator = Dense | Conv


def channels_last(x: Tensor) -> Tensor:
    """x with its channels side by side in memory: the same numbers, faster products (docs/speed.md).

    Not in float64, for which CPUs have no such convolution, nor for a compiler, an exporter or a transform.
    """
    if x.ndim != 4 or x.dtype == torch.float64 or transformed(x):
        return x
    return x.contiguous(memory_format=torch.channels_last)


def pad_circular(x: Tensor, padding: Sizes) -> Tensor:
    """x wrapped around by ``padding`` on each side of the last axes."""
    image = tuple(x.shape[-len(padding) :])
    if any(p > n for p, n in zip(padding, image, strict=True)):
        raise ValueError(
            f"circular padding wraps at most once: expected an image of at least {'×'.join(map(str, padding))}; "
            f"got {'×'.join(map(str, image))}. Use a smaller kernel or a larger image."
        )
    return F.pad(x, [p for p in reversed(padding) for _ in range(2)], mode="circular")


def unpad_circular(y: Tensor, padding: Sizes) -> Tensor:
    """The adjoint of ``pad_circular``: what was copied into the margins is added back where it came from."""
    for dim, p in zip(range(-len(padding), 0), padding, strict=True):
        if p:
            size = y.shape[dim] - 2 * p
            before, core, after = y.split([p, size, p], dim=dim)
            zeros = list(core.shape)
            zeros[dim] = size - p
            gap = torch.zeros(zeros, device=y.device, dtype=y.dtype)
            y = core + torch.cat([after, gap], dim=dim) + torch.cat([gap, before], dim=dim)
    return y


@dataclass(frozen=True)
class Circular:
    """Wᵀ is a circular convolution that is orthogonal at every frequency of its image (``algebra.torus``).

    The size of the image is part of it: on another one, or with zeros around it, the same kernel would not be
    orthogonal. ``weight`` holds free parameters; ``orthonormal`` makes of them the Q that ``apply`` and ``adjoint``
    take.
    """

    inputs: int
    outputs: int
    kernel_size: tuple[int, int]
    image: tuple[int, int]
    method: str
    rank: int | None = None
    axes: ClassVar[int] = 2

    def __post_init__(self) -> None:
        one_of("method", self.method, tuple(sorted(MAPS)))
        require_rank(self.rank, self.method, self.outputs, self.inputs)
        pairs = list(zip(self.kernel_size, self.image, strict=True))
        if self.method == "eco" and any(n % k for k, n in pairs):
            raise NotCertified(
                f"method 'eco' needs an image that its kernel divides; got a kernel {self.kernel_size} on "
                f"{self.image}. Use kernel_size=2 or 4, or another method."
            )
        if self.method == "bcop" and any(k // 2 > n for k, n in pairs):
            raise ValueError(
                f"method 'bcop' needs a kernel that goes round the image at most once; got {self.kernel_size} on "
                f"{self.image} after the stride. Use a smaller one."
            )
        if self.method == "bcop" and (self.kernel_size[0] != self.kernel_size[1] or self.kernel_size[0] % 2 == 0):
            raise ValueError(
                f"method 'bcop' needs a square kernel with an odd side; got {self.kernel_size}. Use kernel_size=3."
            )

    @property
    def torus(self) -> tuple[int, int]:
        """Where the symbols live: a circle of the kernel's size for ``eco``, else the image."""
        return self.kernel_size if self.method == "eco" else self.image

    @property
    def apart(self) -> tuple[int, int]:
        """How far apart the taps of ``eco`` are; 1 for the others."""
        return self.image[0] // self.torus[0], self.image[1] // self.torus[1]

    @property
    def weight_shape(self) -> Sizes:
        taps = (1, 1) if self.method == "bcop" else self.kernel_size
        square = max(self.inputs, self.outputs)  # of which the exponential maps and one reflector take a block
        if self.rank is not None:
            return square, self.rank, *taps
        channels = (square, square) if MAPS[self.method] == "exp" else (self.outputs, self.inputs)
        return *channels, *taps

    @property
    def projections_shape(self) -> Sizes | None:
        """Of the second parameter of ``bcop``, where there is something to compose."""
        channels, steps = max(self.inputs, self.outputs), 2 * (self.kernel_size[0] - 1)
        return (steps, channels, channels // 2) if self.method == "bcop" and channels > 1 and steps else None

    def matrices(self, weight: Tensor, training: bool = False) -> Tensor:  # (frequencies, outputs, inputs), complex
        """Q at half of the frequencies, of norm at most 1 but for rounding; not for ``bcop``."""
        unit, scale = normalize(weight)  # sums over taps must not overflow; no map tells 2⁴⁰ from more
        method, free = MAPS[self.method], symbols(unit * scale.clamp_max(2.0**40), self.torus)
        if self.rank is None:
            matrices = orthonormal(free, method, training=training)
        else:
            matrices = low_rank_reflector(free, self.outputs, self.inputs)
        matrices = matrices * squared_norm(matrices.detach(), method, training=training).rsqrt()
        return matrices[..., : self.outputs, : self.inputs]

    def kernel(self, weight: Tensor, projections: Tensor | None, training: bool = False) -> Tensor:
        """Q as a kernel of ``nn.Conv2d`` with circular padding (K − 1)/2: (outputs, inputs, K, K′), both odd."""
        if self.method != "bcop":
            return kernel_of(self.matrices(weight, training), self.torus, self.apart)
        matrix, method = at_least_float32(weight)[:, :, 0, 0], MAPS["bcop"]
        start = orthonormal(matrix, method, training=training)
        if projections is None:
            kernel = start[:, :, None, None]
        else:
            bases = orthonormal(at_least_float32(projections), method, training=training)
            kernel = block_composition(start, bases)
            if training and not transformed(start):
                return kernel * composition_norm(start.detach(), bases.detach(), method).rsqrt()
        return kernel * squared_norm(symbols(kernel.detach(), self.torus), method, training=training).rsqrt()

    def orthonormal(self, weight: Tensor, projections: Tensor | None, training: bool) -> Tensor:
        """Q by its matrices, or where it has few taps, (outputs, inputs, taps, taps), by those."""
        if self.method == "bcop":
            return self.kernel(weight, projections, training)
        matrices = self.matrices(weight, training)
        if self.method == "eco":
            return kernel_of(matrices, self.torus)[..., : self.torus[0], : self.torus[1]]
        return matrices

    def apply(
        self, q: Tensor, x: Tensor, training: bool = False
    ) -> Tensor:  # (N, inputs, H, W) → (N, outputs, H, W)
        if q.ndim == 3:
            few = x.device.type == "cpu" and math.prod(self.image) <= FEW_PIXELS and len(x) > 0
            return apply_by_products(q, x) if training and few and not transformed(x, q) else apply_symbols(q, x)
        if self.method == "eco":
            return apply_whole(q, x)
        (high, wide), (up, left) = q.shape[2:], (size // 2 for size in q.shape[2:])
        margins = (left, wide - 1 - left, up, high - 1 - up)
        return F.conv2d(F.pad(x, margins, mode="circular"), q)

    def adjoint(self, q: Tensor, z: Tensor, training: bool = False) -> Tensor:
        """Qᵀz: taps at opposite places, counted round the circle where their number is even."""
        if q.ndim == 3:
            return self.apply(q.mH, z, training)
        even = [1 - size % 2 for size in q.shape[2:]]
        return self.apply(q.transpose(0, 1).flip(2, 3).roll(even, (2, 3)), z)

    def __str__(self) -> str:
        return (
            f"{self.inputs}, {self.outputs}, kernel_size={self.kernel_size}, image={self.image}, "
            f"method={self.method!r}" + ("" if self.rank is None else f", rank={self.rank}")
        )
