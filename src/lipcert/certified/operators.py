"""Stored operators: how the weight of a frozen op is applied to its input, and what is proved about it.

``Dense``, ``Conv`` and ``Circular`` each know a linear map and its exact adjoint, twice: ``apply`` and ``adjoint``
run fast, ``multiply`` and ``multiply_adjoint`` compute plain sums of products (im2col and matrix products, no
Winograd, no Fourier transform), which is what the rounding bounds are about. The rest bounds norms with
``verified``.

``weights`` is what the op stores for its operator: the weight, and for ``Circular`` also the waves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.algebra.gram import CONVOLVE
from lipcert.certified.op import Shape, array, example_axis, largest, require
from lipcert.errors import NotCertified
from lipcert.layers.operators import TRANSPOSE, pad_circular, unpad_circular
from lipcert.verified import convolution, dense
from lipcert.verified.dense import Bound, RowSums
from lipcert.verified.torus import torus_kappa, torus_norm_bound, torus_rho_bound

Weights = tuple[Tensor, ...]
Product = Callable[[Tensor, Tensor], Tensor]


def blocked(a: Tensor, b: Tensor, block: int | None) -> Tensor:
    """a @ b, its sums in blocks of ``block`` terms that are then added one after the other."""
    length = a.shape[-1]
    if block is None or length <= block:
        return a @ b
    total = a[..., :block] @ b[..., :block, :]
    for start in range(block, length, block):
        total = total + a[..., start : start + block] @ b[..., start : start + block, :]
    return total


def chained(length: int, block: int | None) -> int:
    """The additions on the longest path through a sum of ``blocked``."""
    return length if block is None or length <= block else block + -(-length // block)


def batch_axis(axis: int) -> int:
    """The axis of a batch that is ``axis`` of one example; negative axes count from the end in both."""
    return axis + 1 if axis >= 0 else axis


def placed(axis: int, x: Tensor) -> int:
    """The axis of the batch ``x`` that is ``axis`` of one example, counted from 0."""
    place = batch_axis(axis)
    require(-x.ndim <= place < x.ndim, f"it acts on dimension {place} of a batch, got shape {tuple(x.shape)}.")
    return place % x.ndim


@dataclass(frozen=True)
class Dense:
    """x ↦ Vx along one axis, in groups of neighbors; every other axis is a position."""

    axis: int = -1
    groups: int = 1
    scale = 1.0  # of the entries, for underflow

    def require(self, weights: Weights) -> None:
        shape = tuple(weights[0].shape)
        require(
            len(shape) == 2 and min(shape) > 0 and shape[0] % self.groups == 0,
            f"the weight must be a matrix whose rows are {self.groups} groups, got shape {shape}.",
        )

    def outputs(self, weights: Weights) -> int:
        return len(weights[0])

    def output_shape(self, weights: Weights, shape: Shape) -> Shape:
        axis, inputs = example_axis(self.axis, shape), weights[0].shape[1] * self.groups
        require(
            shape[axis] == inputs,
            f"it needs {inputs} inputs along axis {axis}, got examples of shape {shape}. Check the shape of the "
            "input and the layers before it.",
        )
        return (*shape[:axis], len(weights[0]), *shape[axis + 1 :])

    def room(self, weights: Weights, shape: Shape) -> int:
        return math.prod(self.output_shape(weights, shape))

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        """One number for each output, shaped to be combined with a batch of outputs."""
        behind = -1 - self.axis if self.axis < 0 else like.ndim - 2 - self.axis
        return values.to(like.dtype).view(-1, *[1] * behind)

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.groups == 1 and batch_axis(self.axis) in (-1, x.ndim - 1):
            return F.linear(x, weights[0], None if bias is None else bias.to(x.dtype))
        y = self.multiply(weights, x, None)
        return y if bias is None else y + self.spread(bias, y)

    def adjoint(self, weights: Weights, z: Tensor, like: Tensor) -> Tensor:
        return self.multiply_adjoint(weights, z, like, None)

    def multiply(self, weights: Weights, x: Tensor, block: int | None) -> Tensor:
        return self._product(weights[0].unflatten(0, (self.groups, -1)), x, block)

    def multiply_adjoint(self, weights: Weights, z: Tensor, like: Tensor, block: int | None) -> Tensor:
        return self._product(weights[0].unflatten(0, (self.groups, -1)).mT, z, block)

    def _product(self, weight: Tensor, x: Tensor, block: int | None) -> Tensor:  # weight (groups, n, m)
        if self.groups > 1:
            return self._grouped(weight, x)
        axis = batch_axis(self.axis)
        if axis in (-1, x.ndim - 1):
            return blocked(x, weight[0].mT, block)
        return blocked(x.movedim(axis, -1), weight[0].mT, block).movedim(-1, axis)

    def _grouped(self, weight: Tensor, x: Tensor) -> Tensor:  # weight (groups, n, m)
        # Groups are many and small (pairs of channels), so entries are multiplied one by one.
        axis, inputs = placed(self.axis, x), self.groups * weight.shape[2]
        require(
            x.shape[axis] == inputs, f"it needs {inputs} channels in dimension {axis}, got shape {tuple(x.shape)}."
        )
        members = x.unflatten(axis, (self.groups, -1)).unbind(axis + 1)
        behind = [1] * (x.ndim - axis - 1)
        rows = []
        for row in weight.unbind(1):
            terms = [
                factor.reshape(-1, *behind) * member for factor, member in zip(row.unbind(1), members, strict=True)
            ]
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            rows.append(total)
        return torch.stack(rows, axis + 1).flatten(axis, axis + 1)

    def sums(self, weights: Weights, block: int | None) -> tuple[int, int]:
        """The lengths of the sums of the map and of its adjoint."""
        rows, columns = weights[0].shape
        if self.groups > 1:  # these are added one by one
            return columns, rows // self.groups
        return chained(columns, block), chained(rows, block)

    def where(self, shape: Shape) -> Any:
        """On what of the input's shape the proofs below depend."""
        return None

    def proved_stride(self, weights: Weights, shape: Shape | None) -> Shape:
        """The stride for which the proofs hold on an image of that shape; without one, that of the operator."""
        return ()

    def row_sums(self, weights: Weights, q: np.ndarray, kept: np.ndarray, stride: Shape) -> RowSums:
        """The T_i of the witness q for the outputs that are kept."""
        if self.groups > 1:
            return convolution.conv_row_sums(self._kernel(weights), q, kept, groups=self.groups)
        return dense.row_sums(array(weights[0]), q, kept)

    def rho_without(self, weights: Weights, gamma: np.ndarray, shape: Shape | None = None) -> float:
        """ρ without a witness, by the method that is near tight."""
        if self.groups > 1:
            return convolution.conv_rho_bound(self._kernel(weights), gamma, groups=self.groups).value
        return dense.rho_cholesky(array(weights[0]), gamma)

    def rho(self, weights: Weights, gamma: np.ndarray, q: np.ndarray | None, shape: Shape) -> Bound:
        """The smallest proved bound of ρ."""
        if self.groups > 1:
            return convolution.conv_rho_bound(self._kernel(weights), gamma, q, groups=self.groups)
        return dense.rho_bound(array(weights[0]), gamma, q)

    def norm(self, weights: Weights, shape: Shape | None) -> Bound:
        if self.groups > 1:
            return convolution.conv_norm_bound(self._kernel(weights), groups=self.groups)
        return dense.norm_bound(array(weights[0]))

    def kappa(self, weights: Weights, gamma: np.ndarray, shape: Shape | None) -> float:
        """At least ‖|W|Γ^½‖."""
        if self.groups > 1:
            return convolution.conv_kappa(self._kernel(weights), gamma, groups=self.groups)
        return dense.kappa(array(weights[0]), gamma)

    def _kernel(self, weights: Weights) -> np.ndarray:
        return array(weights[0])[:, :, None, None]  # a grouped matrix is a grouped 1×1 convolution


@dataclass(frozen=True)
class Conv:
    """The convolution of ``torch.nn`` with 1, 2 or 3 spatial axes, on images (channels, sizes…)."""

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # (before, after) of each axis
    dilation: tuple[int, ...]
    padding_mode: str
    groups: int
    scale = 1.0

    @property
    def axes(self) -> int:
        return len(self.stride)

    @property
    def circular(self) -> bool:
        return self.padding_mode == "circular"

    @property
    def margin(self) -> tuple[int, ...] | None:
        """The padding of each axis; None if the two sides differ."""
        same = all(before == after for before, after in self.padding)
        return tuple(before for before, _ in self.padding) if same else None

    def require(self, weights: Weights) -> None:
        shape = tuple(weights[0].shape)
        require(
            self.axes in CONVOLVE
            and len(self.padding) == len(self.dilation) == self.axes
            and len(shape) == 2 + self.axes
            and min(shape) > 0
            and shape[0] % self.groups == 0
            and min(self.stride) > 0
            and min(self.dilation) > 0
            and min(min(sides) for sides in self.padding) >= 0,
            f"a weight of shape {shape} does not fit a convolution with stride {self.stride}, padding "
            f"{self.padding}, dilation {self.dilation} and {self.groups} groups.",
        )
        require(
            self.padding_mode in ("zeros", "circular"),
            f"padding_mode {self.padding_mode!r} repeats pixels, which can multiply the norm, and has no proof "
            "here. Use 'zeros' or 'circular'.",
        )
        require(
            not self.circular or self.margin is not None,
            f"circular padding must be the same on both sides, got {self.padding}. Use zeros, or an odd kernel.",
        )

    def outputs(self, weights: Weights) -> int:
        return len(weights[0])

    def padded(self, image: Shape) -> Shape:
        return tuple(size + sum(sides) for size, sides in zip(image, self.padding, strict=True))

    def places(self, taps: Shape, image: Shape) -> Shape:
        """The size of the output on an image of that size."""
        axes = zip(self.padded(image), self.dilation, taps, self.stride, strict=True)
        return tuple((size - d * (k - 1) - 1) // s + 1 for size, d, k, s in axes)

    def output_shape(self, weights: Weights, shape: Shape) -> Shape:
        count, inputs, *taps = weights[0].shape
        require(
            len(shape) == self.axes + 1 and shape[0] == inputs * self.groups,
            f"it needs images with {inputs * self.groups} channels and {self.axes} spatial axes, got shape "
            f"{shape}. Check the shape of the input and the layers before it.",
        )
        places = self.places(tuple(taps), shape[1:])
        require(min(places) > 0, f"its kernel {tuple(taps)} is larger than the padded image of shape {shape}.")
        if self.circular and self.margin is not None:
            fits = all(p <= size for p, size in zip(self.margin, shape[1:], strict=True))
            require(fits, f"circular padding {self.margin} wraps at most once around an image, got shape {shape}.")
        return (count, *places)

    def room(self, weights: Weights, shape: Shape) -> int:
        out = self.output_shape(weights, shape)
        patches = math.prod(weights[0].shape[1:]) * self.groups * math.prod(out[1:])
        return max(patches, shape[0] * math.prod(self.padded(shape[1:])), math.prod(out))

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        return values.to(like.dtype).view(-1, *[1] * self.axes)

    def _padded(self, x: Tensor) -> Tensor:
        if self.circular and self.margin is not None:
            return pad_circular(x, self.margin)
        sides = [side for pair in reversed(self.padding) for side in pair]
        return F.pad(x, sides) if any(sides) else x

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None = None) -> Tensor:
        padding = (0,) * self.axes if self.circular or self.margin is None else self.margin  # what torch takes
        x = x if any(padding) else self._padded(x)
        bias = None if bias is None else bias.to(x.dtype)
        return CONVOLVE[self.axes](x, weights[0], bias, self.stride, padding, self.dilation, self.groups)

    def adjoint(self, weights: Weights, z: Tensor, like: Tensor) -> Tensor:
        (weight,), margin = weights, self.margin
        taps, image = tuple(weight.shape[2:]), tuple(like.shape[2:])
        ones = (1,) * self.axes
        odd = margin is not None and all(2 * p + 1 == k for p, k in zip(margin, taps, strict=True))
        if self.circular and margin and odd and self.stride == self.dilation == ones and self.groups == 1:
            # The circular convolution with the taps at opposite places: faster than a transpose.
            mirrored = weight.transpose(0, 1).flip(tuple(range(2, weight.ndim)))
            return CONVOLVE[self.axes](pad_circular(z, margin), mirrored)
        inner = self.padded(image) if self.circular or margin is None else image
        padding = (0,) * self.axes if self.circular or margin is None else margin
        axes = zip(inner, z.shape[2:], self.stride, padding, self.dilation, taps, strict=True)
        missing = [size - ((out - 1) * s - 2 * p + d * (k - 1) + 1) for size, out, s, p, d, k in axes]
        transpose = TRANSPOSE[self.axes]
        back = transpose(z, weight, None, self.stride, padding, missing, self.groups, self.dilation)
        return self._cropped(back, image) if self.circular or margin is None else back

    def _cropped(self, back: Tensor, image: Shape) -> Tensor:
        """The adjoint of padding."""
        if self.circular and self.margin is not None:
            return unpad_circular(back, self.margin)
        inside = [slice(before, before + size) for (before, _), size in zip(self.padding, image, strict=True)]
        return back[(slice(None), slice(None), *inside)]

    def multiply(self, weights: Weights, x: Tensor, block: int | None) -> Tensor:
        (weight,), image = weights, tuple(x.shape[2:])
        taps = tuple(weight.shape[2:])
        columns = self._patches(self._padded(x), taps).unflatten(1, (self.groups, -1))
        y = blocked(self._rows(weight), columns, block).flatten(1, 2)
        return y.unflatten(2, self.places(taps, image))

    def multiply_adjoint(self, weights: Weights, z: Tensor, like: Tensor, block: int | None) -> Tensor:
        (weight,), image = weights, tuple(like.shape[2:])
        columns = blocked(self._rows(weight).mT, z.flatten(2).unflatten(1, (self.groups, -1)), block)
        return self._cropped(self._collected(columns.flatten(1, 2), tuple(weight.shape[2:]), image), image)

    def _rows(self, weight: Tensor) -> Tensor:  # (n, c, taps…) → (groups, n/groups, c·taps)
        return weight.flatten(1).unflatten(0, (self.groups, -1))

    def _patches(self, x: Tensor, taps: Shape) -> Tensor:  # (N, C, sizes…) → (N, C·taps, positions)
        if self.axes == 2:
            return F.unfold(x, taps, self.dilation, 0, self.stride)
        for axis, (k, d, s) in enumerate(zip(taps, self.dilation, self.stride, strict=True)):
            x = x.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
        places, inner = range(2, 2 + self.axes), range(2 + self.axes, 2 + 2 * self.axes)
        return x.permute(0, 1, *inner, *places).flatten(1, 1 + self.axes).flatten(2)

    def _collected(self, columns: Tensor, taps: Shape, image: Shape) -> Tensor:
        """The adjoint of ``_patches``: every pixel of the padded image collects what was copied from it."""
        size = self.padded(image)
        if self.axes == 2:
            return F.fold(columns, size, taps, self.dilation, 0, self.stride)
        places = self.places(taps, image)
        columns = columns.unflatten(2, places).unflatten(1, (-1, *taps))
        back = columns.new_zeros(columns.shape[0], columns.shape[1], *size)
        for tap in itertools.product(*map(range, taps)):
            spans = zip(tap, self.dilation, self.stride, places, strict=True)
            window = tuple(slice(d * t, d * t + s * (count - 1) + 1, s) for t, d, s, count in spans)
            everything = (slice(None), slice(None))
            back[everything + window] += columns[everything + tap]
        return back

    def sums(self, weights: Weights, block: int | None) -> tuple[int, int]:
        weight = weights[0]
        taps, hidden = math.prod(weight.shape[2:]), len(weight) // self.groups
        down = hidden * taps if block is None else chained(hidden, block) + taps  # products, then ``_collected``
        return chained(math.prod(weight.shape[1:]), block), down

    def where(self, shape: Shape) -> Any:
        return shape[1:] if self.circular else None

    def _placed(self, weights: Weights, shape: Shape | None) -> dict[str, Any]:
        """The geometry as ``verified`` takes it; refused where a circular image has no proof."""
        stride = self.stride
        if self.circular:
            if shape is None:
                raise NotCertified(
                    "the norm of a circular convolution depends on its image. Pass the input's shape."
                )
            assert self.margin is not None
            taps = tuple(weights[0].shape[2:])
            settings: dict[str, Any] = {"stride": stride, "padding": self.margin, "dilation": self.dilation}
            stride = convolution.proved_stride(taps, shape[1:], **settings, padding_mode="circular")
        return {"stride": stride, "dilation": self.dilation, "groups": self.groups}

    def _torus(self, weights: Weights, shape: Shape | None) -> Shape | None:
        """The circular image in strides, where its frequencies are the only ones."""
        if not self.circular or shape is None or self.dilation != (1,) * self.axes:
            return None
        stride = self._placed(weights, shape)["stride"]
        return tuple(size // s for size, s in zip(shape[1:], stride, strict=True))

    def proved_stride(self, weights: Weights, shape: Shape | None) -> Shape:
        return self.stride if shape is None else self._placed(weights, shape)["stride"]

    def row_sums(self, weights: Weights, q: np.ndarray, kept: np.ndarray, stride: Shape) -> RowSums:
        geometry: dict[str, Any] = {"stride": stride, "dilation": self.dilation, "groups": self.groups}
        return convolution.conv_row_sums(array(weights[0]), q, kept, **geometry)

    def rho_without(self, weights: Weights, gamma: np.ndarray, shape: Shape | None = None) -> float:
        geometry: dict[str, Any] = {"stride": self.stride, "dilation": self.dilation, "groups": self.groups}
        kernel, torus = array(weights[0]), self._torus(weights, shape)
        bound = convolution.conv_rho_bound(kernel, gamma, **geometry, torus=torus)
        return convolution.by_grid_too(bound, kernel, 2, **geometry).value

    def rho(self, weights: Weights, gamma: np.ndarray, q: np.ndarray | None, shape: Shape) -> Bound:
        geometry, kernel = self._placed(weights, shape), array(weights[0])
        bound = convolution.conv_rho_bound(kernel, gamma, q, **geometry, torus=self._torus(weights, shape))
        return convolution.by_grid_too(bound, kernel, 2, **geometry)

    def norm(self, weights: Weights, shape: Shape | None) -> Bound:
        geometry, kernel = self._placed(weights, shape), array(weights[0])
        bound = convolution.conv_norm_bound(kernel, **geometry, torus=self._torus(weights, shape))
        return convolution.by_grid_too(bound, kernel, 1, **geometry)

    def kappa(self, weights: Weights, gamma: np.ndarray, shape: Shape | None) -> float:
        return convolution.conv_kappa(array(weights[0]), gamma, **self._placed(weights, shape))


MOST_WAVES = 2**10  # along one axis of an image


@dataclass(frozen=True)
class Circular:
    """TᵀBT: a circular convolution in a Fourier basis, where it has one small block for each frequency.

    An orthogonal convolution has a kernel as large as its image, which a direct convolution pays for tap by tap. In
    the basis T of cosines and sines along both axes it is A = TᵀBT, with one block of B for each pair of
    frequencies. These are five products, each a plain sum, for which there are error bounds (a fast Fourier
    transform has none here). Blocks are (4n, 4m), in the order (cosine or sine of rows, of columns, channel).
    """

    # Entries must be smaller than elsewhere: 2⁻¹²⁶·(2¹⁰)⁵·2¹⁴ for each of 2²⁴ outputs is below 2⁻⁴⁰.
    scale = 2.0**30

    def require(self, weights: Weights) -> None:
        """Waves have modulus at most 1: what underflows in one product must not grow in the next."""
        weight, rows, columns = weights
        fits = rows.ndim == columns.ndim == 2 and weight.ndim == 3 and min(*rows.shape, *columns.shape) > 0
        fits = fits and len(rows) % 2 == len(columns) % 2 == weight.shape[1] % 4 == weight.shape[2] % 4 == 0
        fits = fits and len(weight) == len(rows) * len(columns) // 4 and min(weight.shape) > 0
        shapes = tuple(rows.shape), tuple(columns.shape), tuple(weight.shape)
        require(fits, f"waves of shapes {shapes[0]} and {shapes[1]} do not fit blocks of shape {shapes[2]}.")
        require(
            largest(rows, columns) <= 1 and max(*rows.shape, *columns.shape) <= MOST_WAVES,
            f"its waves must be at most 1 in modulus and {MOST_WAVES} in number.",
        )

    def outputs(self, weights: Weights) -> int:
        return weights[0].shape[1] // 4

    def output_shape(self, weights: Weights, shape: Shape) -> Shape:
        weight, rows, columns = weights
        expected = (weight.shape[2] // 4, rows.shape[1], columns.shape[1])
        require(
            shape == expected,
            f"it needs images of shape {expected}, which are part of the layer, got shape {shape}.",
        )
        return (weight.shape[1] // 4, *shape[1:])

    def room(self, weights: Weights, shape: Shape) -> int:
        weight, rows, columns = weights
        channels = max(weight.shape[1:]) // 4
        return channels * max(rows.shape) * max(columns.shape)

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        return values.to(like.dtype)[:, None, None]

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = self.multiply(weights, x, None)
        return y if bias is None else y + self.spread(bias, y)

    def adjoint(self, weights: Weights, z: Tensor, like: Tensor) -> Tensor:
        return self.multiply_adjoint(weights, z, like, None)

    def multiply(self, weights: Weights, x: Tensor, block: int | None) -> Tensor:
        weight, rows, columns = weights
        self.output_shape(weights, tuple(x.shape[1:]))
        return expand(rows, columns, weight, x, lambda a, b: blocked(a, b, block))

    def multiply_adjoint(self, weights: Weights, z: Tensor, like: Tensor, block: int | None) -> Tensor:
        weight, rows, columns = weights
        return expand(rows, columns, weight.mT, z, lambda a, b: blocked(a, b, block))

    def sums(self, weights: Weights, block: int | None) -> tuple[int, int]:
        """A path through five products has as many roundings as all their sums are long, and five casts."""
        weight, rows, columns = weights
        waves = sum(chained(length, block) for length in (*rows.shape, *columns.shape)) + 2
        return waves + chained(weight.shape[2], block), waves + chained(weight.shape[1], block)

    def where(self, shape: Shape) -> Any:
        return None

    def _arrays(self, weights: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weight, rows, columns = (array(tensor) for tensor in weights)
        return rows, columns, weight

    def proved_stride(self, weights: Weights, shape: Shape | None) -> Shape:
        return ()

    def row_sums(self, weights: Weights, q: np.ndarray, kept: np.ndarray, stride: Shape) -> RowSums:
        raise NotImplementedError("its blocks are proved one by one, without a witness")

    def rho_without(self, weights: Weights, gamma: np.ndarray, shape: Shape | None = None) -> float:
        return torus_rho_bound(*self._arrays(weights), gamma).value

    def rho(self, weights: Weights, gamma: np.ndarray, q: np.ndarray | None, shape: Shape) -> Bound:
        return torus_rho_bound(*self._arrays(weights), gamma)

    def norm(self, weights: Weights, shape: Shape | None) -> Bound:
        return torus_norm_bound(*self._arrays(weights))

    def kappa(self, weights: Weights, gamma: np.ndarray, shape: Shape | None) -> float:
        return torus_kappa(*self._arrays(weights), gamma)


Operator = Dense | Conv | Circular


def waves(size: int) -> Tensor:  # (2⌈size/2⌉, size), float64
    """Two orthonormal waves for each frequency; a row of zeros where there is one alone, for an odd size."""
    place, pairs = torch.arange(size, dtype=torch.float64), (size + 1) // 2
    basis = torch.zeros(2 * pairs, size, dtype=torch.float64)
    basis[0] = size**-0.5
    if size % 2 == 0:
        basis[1] = (1 - 2 * (place % 2)) * size**-0.5
    for k in range(1, pairs):
        angle = 2 * math.pi * ((k * place) % size) / size
        basis[2 * k], basis[2 * k + 1] = math.sqrt(2 / size) * angle.cos(), math.sqrt(2 / size) * angle.sin()
    return basis


def blocks_of(kernel: Tensor, image: tuple[int, int]) -> Tensor:  # (n, m, K, K′), odd → (h·w, 4n, 4m), float64
    """The blocks of ``nn.Conv2d`` with circular padding (K − 1)/2 on that image."""
    response = kernel.double()
    for axis, size in ((2, image[0]), (3, image[1])):  # tap t reaches from place o to o + t − (K − 1)/2
        taps = response.shape[axis]
        places = (taps // 2 - torch.arange(taps, device=kernel.device)) % size
        shape = [size if a == axis else n for a, n in enumerate(response.shape)]
        response = torch.zeros(shape, device=kernel.device, dtype=torch.float64).index_add_(axis, places, response)
    high, wide = (_moved(size).to(kernel.device) for size in image)
    half = torch.einsum("nmst,kbdt->nmskbd", response, wide)
    blocks = torch.einsum("gacs,nmskbd->gkabncdm", high, half)
    outputs, inputs = kernel.shape[:2]
    return blocks.reshape(len(high) * len(wide), 4 * outputs, 4 * inputs)


def _moved(size: int) -> Tensor:  # (frequencies, 2, 2, size)
    """⟨wave a, wave b moved by s places⟩ for the two waves of each frequency."""
    pairs = waves(size).unflatten(0, (-1, 2))
    moved = torch.stack([pairs.roll(s, dims=2) for s in range(size)], dim=3)  # (frequencies, b, place, s)
    return torch.einsum("gap,gbps->gabs", pairs, moved)


def expand(rows: Tensor, columns: Tensor, blocks: Tensor, x: Tensor, product: Product = torch.matmul) -> Tensor:
    """TᵀBTx, (N, m, H, W) → (N, n, H, W); the batch comes last on the way, so that every product is a large one."""
    batch, inputs, high, wide = x.shape
    h, w, outputs = len(rows) // 2, len(columns) // 2, blocks.shape[1] // 4
    v = product(rows, x.permute(2, 3, 1, 0).reshape(high, wide * inputs * batch))
    v = product(columns, v.reshape(2 * h, wide, inputs * batch))
    v = v.reshape(h, 2, w, 2, inputs * batch).permute(0, 2, 1, 3, 4)
    v = product(blocks, v.reshape(h * w, 4 * inputs, batch))
    v = v.reshape(h, w, 2, 2, outputs * batch).permute(0, 2, 1, 3, 4)
    v = product(columns.mT, v.reshape(2 * h, 2 * w, outputs * batch))
    v = product(rows.mT, v.reshape(2 * h, wide * outputs * batch))
    return v.reshape(high, wide, outputs, batch).permute(3, 2, 0, 1)
