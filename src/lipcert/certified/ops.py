"""The ops: one class for each step that a frozen network can have. ``OPS`` is the registry of their names.

A new step is one class here (what runs, what is proved, its fields) and one in ``check.py``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from lipcert.activations import SLOPE_RESTRICTED, ULPS, SlopeRestricted
from lipcert.certified import operators
from lipcert.certified.functions import FUNCTIONS, Scalar
from lipcert.certified.norms import norm_of_ones, rows_up
from lipcert.certified.op import (
    CASTS,
    ROUND,
    UNDERFLOW,
    Error,
    Op,
    Proof,
    Shape,
    affine_error,
    array,
    bias_norm,
    example_axis,
    g,
    largest,
    per_channel,
    relative_error,
    require,
    require_one_each,
    residual_error,
)
from lipcert.certified.operators import Operator, Weights, placed
from lipcert.errors import NotCertified
from lipcert.intact import all_finite
from lipcert.verified.dense import Bound, RowSums, norm_bound
from lipcert.verified.rounding import U32, U64, down, exponents, ldexp_up, scaled, up

MOST = 2**23  # what a size in a file may be
LARGE_MATRIX = 2**20  # entries of the matrix of a pool: it takes seconds to prove the norm of a larger one
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Index = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Stride = Annotated[int, Field(strict=True, ge=1, le=2**10)]  # torch crashes where strides multiply to 2³¹
Place = Annotated[int, Field(strict=True, ge=-1, le=MOST)]  # −1: none of them
Axis = Annotated[int, Field(strict=True, ge=-8, le=8)]  # of one example
Flag = Annotated[bool, Field(strict=True)]


def _from_hex(value: object) -> float:
    """A number as files have it, written by float.hex."""
    if not isinstance(value, str):
        raise ValueError("real numbers are written by float.hex")
    number = float.fromhex(value)
    if not math.isfinite(number):
        raise ValueError("real numbers must be finite")
    return number


Real = Annotated[float, BeforeValidator(_from_hex)]
Window = tuple[Index, Count]
Steps = tuple[Index, Count, Count]


class Product(Op):
    """An op with a weight that an operator applies."""

    operator: Operator
    weight: Tensor
    bias: Tensor | None
    parts: tuple[str, ...] = ("weight",)  # the names of the tensors that the operator needs

    def _set_up(self, operator: Operator, **tensors: Tensor | None) -> None:
        self.operator = operator
        self.store(**tensors)
        missing = [name for name in self.parts if self._buffers[name] is None]
        require(not missing, f"its {', '.join(missing)} is missing. Load weights.")
        self.operator.require(self.weights())
        require_one_each(operator.outputs(self.weights()), bias=self.bias)

    def weights(self, dtype: torch.dtype | None = None) -> Weights:
        tensors = [self.get_buffer(name) for name in self.parts]
        return tuple(tensor if dtype is None else tensor.to(dtype) for tensor in tensors)

    def shifted(self, y: Tensor) -> Tensor:
        """y + b."""
        return y if self.bias is None else y + self.operator.spread(self.bias, y)

    def room(self, shape: Shape) -> int:
        return self.operator.room(self.weights(), shape)


class Affine(Product):
    """x ↦ Vx + b."""

    product = 0  # V is the operator; 1: its adjoint
    by_rows = False  # whether each output is a sum with one row of the stored weight, or with a part of it

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.operator.apply(self.weights(x.dtype), x, self.bias)

    def evaluate(self, x: Tensor, block: int | None) -> Tensor:
        return self.shifted(self.operator.multiply(self.weights(x.dtype), x, block))

    def output_shape(self, shape: Shape) -> Shape:
        return self.operator.output_shape(self.weights(), shape)

    def norm(self, shape: Shape | None) -> Bound:
        """A proved bound of ‖V‖."""
        where = None if shape is None else self.operator.where(shape)
        bound: Bound = self.remember("norm", where, lambda: self.operator.norm(self.weights(), shape))
        return bound

    def kappa(self, shape: Shape) -> float:
        """At least ‖|V|‖, for rounding errors."""
        operator, weights = self.operator, self.weights()
        ones, where = np.ones(operator.outputs(weights)), operator.where(shape)
        kappa: float = self.remember("kappa", where, lambda: operator.kappa(weights, ones, shape))
        return kappa

    def constant(self) -> float:
        return self.norm(None).value

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        operator, weights = self.operator, self.weights()
        out, norm = self.output_shape(shape), self.norm(shape)
        beta = bias_norm(self.bias, None, math.prod(out))
        error = affine_error(operator.sums(weights, block)[self.product], self.kappa(shape), beta)
        biggest = largest(self.weight, self.bias) * operator.scale
        return Proof(out, norm.value, norm.method, error, largest=biggest)

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        """Into L∞: the largest sum of magnitudes in a row, or from L1 the largest entry. |V| has the same norm."""
        if norm == "l2" or not self.by_rows:
            return super().prove_in(norm, shape, block)
        out, rows = self.output_shape(shape), array(self.weight).reshape(len(self.weight), -1)
        # Around a circular image, several taps may meet one input and add up.
        method = "largest entry" if norm == "l1" and not getattr(self.operator, "circular", False) else "row sums"
        constant = float(rows_up(rows, "linf" if method == "largest entry" else "l1").max())
        error = affine_error(self.operator.sums(self.weights(), block)[0], constant, largest(self.bias))
        return Proof(out, constant, method, error, largest=largest(self.weight, self.bias), norm="linf")


class Linear(Affine):
    """Vx + b along one axis; ``axis`` is that of one example."""

    op = "linear"
    by_rows = True

    def __init__(self, weight: Tensor, bias: Tensor | None, axis: Axis = -1, groups: Count = 1) -> None:
        super().__init__()
        self.axis, self.groups = axis, groups
        self._set_up(operators.Dense(axis, groups), weight=weight, bias=bias)


class Conv(Affine):
    """The convolution of ``torch.nn`` with 1, 2 or 3 spatial axes."""

    op = "conv"
    by_rows = True

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[Stride, ...],
        padding: tuple[tuple[Index, Index], ...],
        dilation: tuple[Count, ...],
        padding_mode: str = "zeros",
        groups: Count = 1,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.padding_mode, self.groups = padding_mode, groups
        self._set_up(operators.Conv(stride, padding, dilation, padding_mode, groups), weight=weight, bias=bias)


class ConvTranspose(Affine):
    """The adjoint of a zero-padded convolution on images of ``size``: weight (inputs, outputs/groups, taps…)."""

    op = "conv_transpose"
    product = 1

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[Stride, ...],
        padding: tuple[tuple[Index, Index], ...],
        dilation: tuple[Count, ...],
        groups: Count,
        size: tuple[Count, ...],
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.dilation, self.groups, self.size = stride, padding, dilation, groups, size
        self.operator: operators.Conv = operators.Conv(stride, padding, dilation, "zeros", groups)
        self.store(weight=weight, bias=bias)
        self.operator.require(self.weights())
        require_one_each(self.weight.shape[1] * groups, bias=self.bias)

    def size_for(self, shape: Shape) -> Shape:
        return self.size

    def output_shape(self, shape: Shape) -> Shape:
        inputs, outputs, *taps = self.weight.shape
        require(
            len(shape) == 1 + len(taps) and shape[0] == inputs,
            f"it needs images with {inputs} channels and {len(taps)} sizes, got shape {shape}.",
        )
        size = self.size_for(shape)
        fits = len(size) == len(taps) and min(size) > 0 and self.operator.places(tuple(taps), size) == shape[1:]
        require(fits, f"the convolution on images of size {size} does not give inputs of shape {shape}.")
        return (outputs * self.groups, *size)

    def room(self, shape: Shape) -> int:
        return super().room(self.output_shape(shape))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.shifted(self.operator.adjoint(self.weights(x.dtype), x, self._like(x)))

    def evaluate(self, x: Tensor, block: int | None) -> Tensor:
        return self.shifted(self.operator.multiply_adjoint(self.weights(x.dtype), x, self._like(x), block))

    def _like(self, x: Tensor) -> Tensor:
        return torch.empty(1, *self.output_shape(tuple(x.shape[1:])), device="meta")


class OpenConvTranspose(ConvTranspose):
    """A transposed convolution as in ``torch.nn``, whose size follows from the input's and an output padding."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[tuple[int, int], ...],
        dilation: tuple[int, ...],
        groups: int,
        output_padding: tuple[int, ...],
    ) -> None:
        super().__init__(weight, bias, stride, padding, dilation, groups, ())
        self.output_padding = output_padding

    def size_for(self, shape: Shape) -> Shape:
        taps = self.weight.shape[2:]
        axes = zip(shape[1:], self.stride, self.padding, self.dilation, taps, self.output_padding, strict=True)
        return tuple((n - 1) * s - sum(p) + d * (k - 1) + 1 + more for n, s, p, d, k, more in axes)

    def at(self, shape: Shape, *others: Shape) -> Op:
        _, *size = self.output_shape(shape)
        settings = (self.stride, self.padding, self.dilation, self.groups, tuple(size))
        written = ConvTranspose(self.weight, self.bias, *settings)
        written._proofs = self._proofs
        return written


class Circular(Affine):
    """TᵀBTx + b: a circular convolution in a Fourier basis, on images of one size."""

    op = "circular"
    parts = ("weight", "rows", "columns")

    def __init__(self, rows: Tensor, columns: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._set_up(operators.Circular(), weight=weight, bias=bias, rows=rows, columns=columns)


class Residual(Product):
    """x − W(2γ·σ(Wᵀx + b)), L = max(1, 2ρ − 1) with ρ = λmax(WΓWᵀ); the operator applies Wᵀ.

    2γ is exact, and both products use the same stored W, so that the Jacobian I − 2WΓDWᵀ is symmetric. Two rounded
    tensors, W and 2WΓ, would not do. With a ``witness`` q > 0 row sums prove ρ; without one another method must.
    """

    gamma: Tensor
    witness: Tensor | None
    activation: str
    most_rho = math.inf  # in float32

    def _set_up(self, operator: Operator, **tensors: Tensor | None) -> None:
        super()._set_up(operator, **tensors)
        count = operator.outputs(self.weights())
        require_one_each(count, gamma=self.gamma, witness=self.witness)
        require(
            self.activation in SLOPE_RESTRICTED,
            f"the activation inside a residual layer must be one of {sorted(SLOPE_RESTRICTED)}, "
            f"got {self.activation!r:.40}.",
        )

    @property
    def sigma(self) -> SlopeRestricted:
        return SLOPE_RESTRICTED[self.activation]

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        weights = self.weights(x.dtype)
        z = self.sigma.function(self.operator.apply(weights, x, self.bias))
        return x - self.operator.adjoint(weights, z * self.operator.spread(2 * self.gamma, z), x)

    def evaluate(self, x: Tensor, block: int | None) -> Tensor:
        weights = self.weights(x.dtype)
        z = self.sigma.function(self.shifted(self.operator.multiply(weights, x, block)))
        z = z * self.operator.spread(2 * self.gamma, z)
        return x - self.operator.multiply_adjoint(weights, z, x, block)

    def output_shape(self, shape: Shape) -> Shape:
        self.operator.output_shape(self.weights(), shape)
        return shape

    def rho(self, shape: Shape) -> Bound:
        """A proved bound of ρ: by the witness if that gives 1, else by whatever proves least."""
        operator, weights, gamma = self.operator, self.weights(), array(self.gamma)
        sums = self.row_sums(shape)
        value = math.inf if sums is None else sums.rho(gamma.astype(np.float64))
        if value <= 1:
            return Bound(value, "row sums")
        q, where = None if sums is None else array(self.get_buffer("witness")), operator.where(shape)
        bound: Bound = self.remember("rho", where, lambda: operator.rho(weights, gamma, q, shape))
        return bound

    def row_sums(self, shape: Shape | None) -> RowSums | None:
        """The T_i of the witness for the neurons with γ_i > 0, whatever these γ_i are; None without a witness."""
        if self.witness is None or not all_finite(self.witness) or not bool((self.witness > 0).all()):
            return None  # a network in half precision may have lost it
        weights, q, kept = self.weights(), array(self.witness).astype(np.float64), array(self.gamma) > 0
        # On a circular image that the stride does not divide, more filters meet than at other sizes.
        stride = self.operator.proved_stride(weights, shape)
        where, names = (stride, kept.tobytes()), (*self.parts, "witness")
        sums: RowSums = self.remember(
            "row sums", where, lambda: self.operator.row_sums(weights, q, kept, stride), names
        )
        return sums

    def _overflows(self) -> bool:
        """Whether γ_i·w_i or γ_i·w_i² could leave float32 on the way of an input of norm 2⁶⁰."""
        if isinstance(self.operator, operators.Circular):
            rows = self.weight.unflatten(1, (4, -1)).abs().amax(dim=(0, 1, 3))
        else:
            rows = self.weight.flatten(1).abs().amax(dim=1)
        rows = rows.double()
        return not bool((self.gamma.double().abs() * rows * (1 + rows) <= 2.0**20).all())

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        operator, weights, gamma, sigma = self.operator, self.weights(), array(self.gamma), self.sigma
        out, rho = self.output_shape(shape), self.rho(shape)
        kappa = self.remember("kappa", operator.where(shape), lambda: operator.kappa(weights, gamma, shape))
        hidden = math.prod(operator.output_shape(weights, shape))
        beta = bias_norm(self.bias, gamma, hidden)
        start = bias_norm(torch.full((len(gamma),), sigma.start, dtype=torch.float64), gamma, hidden)
        upper = max(1.0, math.nextafter(2 * rho.value - 1, math.inf))
        error: Error | None = None
        if math.isfinite(kappa + beta + rho.value + start):
            sums = operator.sums(weights, block)
            error = residual_error(rho.value, kappa, beta, sums, sigma.roundings, start)
            if rho.value > self.most_rho or self._overflows():
                error = _only_float64(error)
        biggest = largest(self.weight, self.gamma, self.bias) * operator.scale
        return Proof(out, upper, rho.method, error, claim=1.0, largest=biggest, assumes=sigma.assumes)


def _only_float64(error: Error) -> Error:
    return lambda norms, u: error(norms, u) if u == U64 else torch.full_like(norms, math.inf)


class ResidualLinear(Residual):
    """A residual with a dense weight along one axis, in groups of neighbors."""

    op = "residual_linear"

    def __init__(
        self,
        weight: Tensor,
        gamma: Tensor,
        bias: Tensor | None,
        witness: Tensor | None,
        activation: str,
        axis: Axis = -1,
        groups: Count = 1,
    ) -> None:
        super().__init__()
        self.activation, self.axis, self.groups = activation, axis, groups
        dense = operators.Dense(axis, groups)
        self._set_up(dense, weight=weight, gamma=gamma, bias=bias, witness=_wide(witness))


class ResidualConv(Residual):
    """A residual with Wᵀ a convolution and W its exact adjoint."""

    op = "residual_conv"

    def __init__(
        self,
        weight: Tensor,
        gamma: Tensor,
        bias: Tensor | None,
        witness: Tensor | None,
        activation: str,
        stride: tuple[Stride, ...],
        padding: tuple[tuple[Index, Index], ...],
        dilation: tuple[Count, ...],
        padding_mode: str = "zeros",
        groups: Count = 1,
    ) -> None:
        super().__init__()
        self.activation, self.stride, self.padding, self.dilation = activation, stride, padding, dilation
        self.padding_mode, self.groups = padding_mode, groups
        conv = operators.Conv(stride, padding, dilation, padding_mode, groups)
        self._set_up(conv, weight=weight, gamma=gamma, bias=bias, witness=_wide(witness))


class ResidualCircular(Residual):
    """A residual with Wᵀ = TᵀBT, a circular convolution in a Fourier basis."""

    op = "residual_circular"
    witness = None  # its blocks are proved one by one
    parts = ("weight", "rows", "columns")
    most_rho = 4.0  # in float32, what underflows in the first product must not grow by more in the second

    def __init__(
        self, rows: Tensor, columns: Tensor, weight: Tensor, gamma: Tensor, bias: Tensor | None, activation: str
    ) -> None:
        super().__init__()
        self.activation = activation
        tensors = {"weight": weight, "gamma": gamma, "bias": bias, "rows": rows, "columns": columns}
        self._set_up(operators.Circular(), **tensors)


def _wide(witness: Tensor | None) -> Tensor | None:
    return None if witness is None else witness.double()


class Move(Op):
    """An op without tensors, which moves entries and rounds nothing."""

    in_any_norm = True

    def constant(self) -> float:
        return 1.0

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        return Proof(self.output_shape(shape), 1.0, "exact")


class Rearrange(Move):
    """Reshape to ``split``, transpose by ``order``, reshape to ``shape``: a permutation of the entries."""

    op = "rearrange"

    def __init__(self, split: tuple[Count, ...], order: tuple[Index, ...], shape: tuple[Count, ...]) -> None:
        super().__init__()
        self.split, self.order, self.shape = split, order, shape
        require(
            sorted(order) == list(range(len(split))) and math.prod(split) == math.prod(shape),
            f"{split} in the order {order} is no rearrangement to {shape}.",
        )
        self.moves = order != tuple(range(len(order)))

    def output_shape(self, shape: Shape) -> Shape:
        require(math.prod(shape) == math.prod(self.split), f"it needs inputs of {self.split}, got shape {shape}.")
        return self.shape

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        if self.moves:
            x = x.reshape(x.shape[0], *self.split).permute(0, *(axis + 1 for axis in self.order))
        return x.reshape(x.shape[0], *self.shape)


class Select(Op):
    """Take entries along axes: entry i of the output is entry ``indices[i]`` of the input, or ``value`` for −1.

    An entry that is taken k times counts √k. So padding, cropping, repeating (nearest up-sampling) and circular,
    reflecting or replicating padding are all of this kind.
    """

    op = "select"

    def __init__(self, indices: tuple[tuple[Place, ...] | None, ...], value: Real = 0.0) -> None:
        super().__init__()
        self.indices, self.value = indices, value
        require(math.isfinite(value), f"the value of padding must be finite, got {value}.")
        require(all(index is None or len(index) > 0 for index in indices), "no axis may become empty.")

    def output_shape(self, shape: Shape) -> Shape:
        fits = len(shape) == len(self.indices) and all(
            index is None or max(index) < size for index, size in zip(self.indices, shape, strict=True)
        )
        require(fits, f"its indices do not fit inputs of shape {shape}.")
        return tuple(size if index is None else len(index) for size, index in zip(shape, self.indices, strict=True))

    def room(self, shape: Shape) -> int:
        """The largest array between two axes."""
        sizes, most = list(shape), math.prod(shape)
        for axis, index in enumerate(self.indices):
            sizes[axis] = sizes[axis] if index is None else len(index)
            most = max(most, math.prod(sizes))
        return most

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        times = math.prod(_most_frequent(index) for index in self.indices if index is not None)
        constant = float(times) if times <= 1 else root_up(Fraction(times))
        return self._proof(shape, constant, "l2")

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        if norm == "l2":
            return self.prove(shape, block)
        times = math.prod(_most_frequent(index) for index in self.indices if index is not None)
        return self._proof(shape, float(min(times, 1) if norm == "linf" else times), norm)

    def _proof(self, shape: Shape, constant: float, norm: str) -> Proof:
        out, size = self.output_shape(shape), abs(self.value)
        return Proof(out, constant, "exact", cast_error(size, out, norm), largest=max(1.0, size), norm=norm)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        for axis, index in enumerate(self.indices, start=1):
            if index is not None:
                x = _taken(x, axis, index, self.value)
        return x


def _most_frequent(index: Sequence[int]) -> int:
    """How often the most frequent entry is taken; −1 is none."""
    return max(Counter(place for place in index if place >= 0).values(), default=0)


def _taken(x: Tensor, axis: int, index: tuple[int, ...], value: float) -> Tensor:
    """x with the entries ``index`` along ``axis``."""
    inside = [place for place, taken in enumerate(index) if taken >= 0]
    if not inside:
        return x.narrow(axis, 0, 1).expand(*x.shape[:axis], len(index), *x.shape[axis + 1 :]) * 0 + value
    first, last = inside[0], inside[-1]
    core = index[first : last + 1]
    if core == tuple(range(core[0], core[0] + len(core))):
        x = x.narrow(axis, core[0], len(core))
    else:
        places = torch.tensor(core, device=x.device)
        x = x.index_select(axis, places.clamp_min(0))
        if min(core) < 0:
            x = torch.where((places >= 0).view(-1, *[1] * (x.ndim - 1 - axis)), x, value)
    if first == 0 and last == len(index) - 1:
        return x
    return F.pad(x, (0, 0) * (x.ndim - 1 - axis) + (first, len(index) - 1 - last), value=value)


class Flexible(Op):
    """A step without tensors whose sizes follow from the shape of its input: the op is make(*settings, shape).

    ``isometry``: whether it only moves, drops or adds entries, so that its constant is 1 for every shape. Of all
    ``inputs`` but the first only the shapes matter: a ``Size`` among the settings names one of their axes.
    """

    op = "flexible"

    def __init__(
        self, make: Callable[..., Op], settings: tuple[Any, ...] = (), isometry: bool = False, inputs: int = 1
    ) -> None:
        super().__init__()
        self.make, self.settings, self.isometry, self.inputs = make, settings, isometry, inputs
        self._made: dict[tuple[Shape, ...], Op] = {}

    def at(self, shape: Shape, *others: Shape) -> Op:
        shapes = (shape, *others)
        if shapes not in self._made:
            self._made[shapes] = self.make(*resolved(self.settings, shapes), shape)
        return self._made[shapes]

    def output_shape(self, shape: Shape) -> Shape:
        return self.at(shape).output_shape(shape)

    def constant(self) -> float:
        return 1.0 if self.isometry else super().constant()

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:  # type: ignore[override]
        result: Tensor = self.at(*(tuple(value.shape[1:]) for value in (x, *others)))(x)
        return result

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        return self.at(shape).prove(shape, block)

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        return self.at(shape).prove_in(norm, shape, block)

    def extra_repr(self) -> str:
        return ", ".join([self.make.__name__, *map(repr, self.settings)])


BATCH = "batch"  # the number of examples, among the sizes of a batch


@dataclass(frozen=True)
class Size:
    """A whole number that is known with the shapes of the inputs of a ``Flexible``.

    It is a size of the ``source``-th input, whose axis counts from the batch, or ``function`` of such numbers.
    """

    source: int | str = 0  # a number in a ``Flexible``; the name of a node before
    axis: Any = 0  # or a slice of axes
    function: Callable[..., Any] | None = None
    operands: tuple[Any, ...] = ()

    def value(self, shapes: Sequence[Shape]) -> Any:
        if self.function is None:
            assert isinstance(self.source, int)
            size = (BATCH, *shapes[self.source])[self.axis]
            require(size != BATCH, "the number of examples is read by a negative index. Write x.shape[0].")
            return size
        numbers = resolved(self.operands, shapes)
        require(BATCH not in numbers, "a size is computed from the number of examples. Keep the batch as it is.")
        return self.function(*numbers)


def resolved(value: Any, shapes: Sequence[Shape]) -> Any:
    """``value`` with numbers in the place of each ``Size``."""
    if isinstance(value, Size):
        return value.value(shapes)
    if isinstance(value, (tuple, list)):
        return type(value)(resolved(item, shapes) for item in value)
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**{key: resolved(item, shapes) for key, item in vars(value).items()})
    return value


class GroupSort(Move):
    """Sort each group of ``size`` neighbors along ``axis``. MaxMin is size 2, descending."""

    op = "group_sort"

    def __init__(
        self, size: Annotated[int, Field(strict=True, ge=1, le=2**10)], axis: Axis = 0, descending: Flag = False
    ) -> None:
        super().__init__()
        self.size, self.axis, self.descending = size, axis, descending

    def output_shape(self, shape: Shape) -> Shape:
        axis = example_axis(self.axis, shape)
        require(shape[axis] % self.size == 0, f"{shape[axis]} channels are not groups of {self.size}.")
        return shape

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        axis = placed(self.axis, x)
        groups = x.unflatten(axis, (-1, self.size))
        if self.size == 2:
            a, b = groups.unbind(axis + 1)
            both = torch.maximum(a, b), torch.minimum(a, b)
            return torch.stack(both if self.descending else both[::-1], axis + 1).flatten(axis, axis + 1)
        return groups.sort(dim=axis + 1, descending=self.descending).values.flatten(axis, axis + 1)


class PerChannel(Op):
    """A shift and a factor for each channel."""

    mean: Tensor

    def _set_up(self, **tensors: Tensor | None) -> None:
        self.store(**tensors)
        require(self.mean.ndim == 1, "its mean must be a vector.")
        require_one_each(len(self.mean), **self._buffers)

    def output_shape(self, shape: Shape) -> Shape:
        require(
            shape[0] == len(self.mean), f"it is made for {len(self.mean)} channels, got inputs of shape {shape}."
        )
        return shape

    def constant(self) -> float:
        return self.prove((len(self.mean),)).lipschitz


class Normalize(PerChannel):
    """(x − mean)/std per channel: its constant is 1/min(std)."""

    op = "normalize"
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self._set_up(mean=mean, std=std)
        require(bool((self.std > 0).all()), "std must be positive.")

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return (x - per_channel(self.mean, x)) / per_channel(self.std, x)

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        return self.prove_in("l2", shape, block)

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        out = self.output_shape(shape)
        constant = above(1 / Fraction(float(self.std.double().min())))
        error = relative_error(2, constant, bias_norm(self.mean, None, math.prod(shape), norm))
        biggest = max(largest(self.mean, self.std), constant)
        return Proof(out, constant, "1/min std", error, largest=biggest, norm=norm)


class BatchNorm(PerChannel):
    """(x − μ)·w/√(v + ε) + b per channel, as in evaluation mode: its constant is the largest factor.

    Factors are bounded by their mantissas and exponents, so that none overflows or underflows. Rounding has a bound
    only while everything computed on the way stays within range: ``largest`` holds each v + ε and each factor
    together with its reciprocal, and the entries of the tensors.
    """

    op = "batch_norm"
    variance: Tensor
    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: Real
    ) -> None:
        super().__init__()
        self.eps = eps
        self._set_up(mean=mean, variance=variance, weight=weight, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        weight, bias = (None if t is None else t.to(x.dtype) for t in (self.weight, self.bias))
        mean, variance = self.mean.to(x.dtype), self.variance.to(x.dtype)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, self.eps)

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        return self.prove_in("l2", shape, block)

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        out = self.output_shape(shape)
        if not bool((self.variance >= 0).all()) or not 0 <= self.eps < math.inf:
            return Proof(out, math.inf, "a negative variance or ε", None)
        ones, zeros = torch.ones_like(self.variance), torch.zeros_like(self.variance)
        weight, bias = ones if self.weight is None else self.weight, zeros if self.bias is None else self.bias
        w, v = (np.abs(array(tensor).astype(np.float64)) for tensor in (weight, self.variance))
        with np.errstate(all="ignore"):
            sums = v + self.eps
        if not bool((sums > 0).all()):
            return Proof(out, math.inf, "v + ε is 0", None)
        factors = _factors_up(w, v, self.eps)
        constant = float(factors.max(initial=0.0))
        if not math.isfinite(constant):
            return Proof(out, math.inf, "a factor is beyond float64", None)
        with np.errstate(all="ignore"):
            inside = np.concatenate([sums, factors[w > 0]])
            widest = float(np.maximum(inside, 1 / inside).max())
        shift = factors * np.abs(array(self.mean).astype(np.float64))
        offset = bias_norm(
            torch.from_numpy(np.abs(array(bias).astype(np.float64)) + 2 * shift), None, math.prod(shape), norm
        )
        error = affine_error(11, constant, 2 * offset)
        biggest = max(widest, largest(self.mean, self.variance, weight, bias))
        return Proof(out, constant, "largest factor", error, largest=biggest, norm=norm)


@np.errstate(all="ignore")
def _factors_up(w: np.ndarray, v: np.ndarray, eps: float) -> np.ndarray:  # (C,), (C,) → (C,)
    """At least w/√(v + ε), for w, v, ε ≥ 0 and v + ε > 0."""
    # v + ε is moved by a power of four to where it neither overflows nor is subnormal: one rounding is left.
    shift = np.where(v + eps < 2.0**-900, 200, -2)
    below = down(np.ldexp(v, shift) + np.ldexp(eps, shift), 2)
    powers = exponents(below)
    powers = powers + powers % 2  # even, so that the root of the power is a power
    roots = np.sqrt(scaled(below, powers))  # in [½, 1)
    tops = exponents(w)
    bounds = ldexp_up(up(scaled(w, tops) / roots, 3), tops - powers // 2 + shift // 2)
    return np.where(w == 0, 0.0, bounds)


class Scale(Op):
    """x ↦ factor·x."""

    op = "scale"
    in_any_norm = True

    def __init__(self, factor: Real) -> None:
        super().__init__()
        self.factor = factor
        require(factor != 0 and math.isfinite(factor), f"the factor must be finite and not 0, got {factor}.")

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.factor * x

    def constant(self) -> float:
        return self.prove((1,)).lipschitz

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        size = abs(self.factor)
        return Proof(shape, size, "exact", relative_error(1, size), largest=size)


class Pool(Op):
    """Sums over windows times ``factor``, each divided by the product of the ``divisors`` of its axes.

    ``windows`` has for each axis the [start, stop) of each output, or None for an axis that is kept. The map is a
    product of one matrix per axis, so its norm is the product of theirs. Average pools of every kind are of this
    form.
    """

    op = "pool"

    def __init__(
        self,
        windows: tuple[tuple[Window, ...] | None, ...],
        divisors: tuple[tuple[Count, ...] | None, ...],
        factor: Real = 1.0,
    ) -> None:
        super().__init__()
        self.windows, self.divisors, self.factor = windows, divisors, factor
        require(2.0**-100 <= factor <= 2.0**100, f"the factor must lie between 2^-100 and 2^100, got {factor}.")
        require(
            len(windows) == len(divisors)
            and all(
                (spans is None and parts is None)
                or (spans is not None and parts is not None and 0 < len(spans) == len(parts))
                for spans, parts in zip(windows, divisors, strict=True)
            ),
            "a pool needs one divisor for each of its windows.",
        )
        require_windows(tuple(None if spans is None else tuple((*s, 1) for s in spans) for spans in windows))
        biggest = math.prod(max(parts) for parts in divisors if parts is not None)
        require(biggest <= 2**53, f"the product of its divisors must be at most 2^53, got {biggest}.")
        sizes = [_regular(spans) for spans in windows]
        self.blocks: tuple[int, ...] | None = None  # of a plain pool over the last two axes of an image
        # With a factor and divisors together the shortcut would round once more than is counted.
        plain = factor == 1 or all(parts is None or set(parts) == {1} for parts in divisors)
        constant = plain and all(parts is None or len(set(parts)) == 1 for parts in divisors)
        if len(windows) == 3 and windows[0] is None and sizes[1] and sizes[2] and constant:
            self.blocks = (sizes[1], sizes[2])

    def output_shape(self, shape: Shape) -> Shape:
        return windowed(self.windows, shape)

    def room(self, shape: Shape) -> int:
        sizes, most = list(shape), 0
        for axis, spans in enumerate(self.windows):
            if spans is not None:
                size, sizes[axis] = sizes[axis], len(spans)
                one_by_one = math.prod(sizes) * _longest(spans)
                most = max(most, one_by_one if _few_of_many(spans, size) else len(spans) * size, math.prod(sizes))
        return most

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        if self.blocks is not None and _covered(self.windows, tuple(x.shape[1:])):
            divided = math.prod(row[0] for row in self.divisors if row is not None)
            return F.avg_pool2d(x, self.blocks) * (math.prod(self.blocks) * self.factor / divided)
        divisor = torch.ones((), dtype=x.dtype, device=x.device)
        for axis, (spans, parts) in enumerate(zip(self.windows, self.divisors, strict=True), start=1):
            if spans is not None and parts is not None:
                x = _window_sums(x, axis, spans)
                counts = torch.tensor(parts, device=x.device).to(x.dtype)
                divisor = divisor * counts.view(-1, *[1] * (x.ndim - 1 - axis))
        x = x / divisor
        return x if self.factor == 1 else x * self.factor

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        out, square, rest = self.output_shape(shape), Fraction(self.factor) ** 2, 1.0
        size, axes = 1, 0
        for spans, parts, length in zip(self.windows, self.divisors, shape, strict=True):
            if spans is None or parts is None:
                continue
            size, axes = size * _longest(spans), axes + 1
            if all(a[1] <= b[0] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False)):
                square *= max(Fraction(b - a, d * d) for (a, b), d in zip(spans, parts, strict=True))
                continue
            if len(spans) * length > LARGE_MATRIX:
                square *= _row_times_column(spans, parts)
                continue
            matrix = np.zeros((len(spans), length))
            for row, (start, stop), divisor in zip(matrix, spans, parts, strict=True):
                row[start:stop] = 1 / divisor
            rest = up(rest * norm_bound(matrix).value, 3)  # 1/divisor is rounded once
        constant = root_up(square) if rest == 1 else up(root_up(square) * rest, 1)
        biggest = max(self.factor, 1 / self.factor)
        error = relative_error(_pool_roundings(size, axes), constant)
        return Proof(out, constant, "windows", error, largest=biggest)

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        """Into L∞: the largest sum of a row, a product over the axes; an input in L1 is no larger in L∞."""
        if norm == "l2":
            return self.prove(shape, block)
        rows = [
            (max(Fraction(b - a, d) for (a, b), d in zip(spans, parts, strict=True)), _longest(spans))
            for spans, parts in zip(self.windows, self.divisors, strict=True)
            if spans is not None and parts is not None
        ]
        constant = above(Fraction(self.factor) * math.prod(total for total, _ in rows))
        roundings = _pool_roundings(math.prod(size for _, size in rows), len(rows))
        biggest, error = max(self.factor, 1 / self.factor), relative_error(roundings, constant)
        return Proof(self.output_shape(shape), constant, "windows", error, largest=biggest, norm="linf")


def _pool_roundings(size: int, axes: int) -> int:
    """``size`` − 1 sums, a quotient, a product with the factor, and ``axes`` − 1 products of divisors.

    float32 rounds these products; it rounds the factor and up to two divisors, too: ``g`` counts these.
    """
    return size + max(2, axes)


def _longest(spans: tuple[Window, ...]) -> int:
    return max(stop - start for start, stop in spans)


def _few_of_many(spans: tuple[Window, ...], size: int) -> bool:
    """Whether the sums of these windows of a long axis cost less one by one than by a product with a matrix."""
    return len(spans) * size > LARGE_MATRIX and 16 * _longest(spans) <= size


def _window_sums(x: Tensor, axis: int, spans: tuple[Window, ...]) -> Tensor:
    """The sum of each window along ``axis``, of no more terms than the window has: zeros are added exactly."""
    start, stop = torch.tensor(spans, device=x.device).unbind(1)  # whole numbers, also in a program
    if not _few_of_many(spans, x.shape[axis]):
        places = torch.arange(x.shape[axis], device=x.device)
        inside = (places >= start[:, None]) & (places < stop[:, None])
        return (x.movedim(axis, -1) @ inside.to(x.dtype).mT).movedim(-1, axis)
    total = x.index_select(axis, start)
    for step in range(1, _longest(spans)):
        inside = (start + step < stop).view(-1, *[1] * (x.ndim - 1 - axis))
        entries = x.index_select(axis, torch.minimum(start + step, stop - 1))
        total = total + torch.where(inside, entries, 0.0)
    return total


def _row_times_column(spans: tuple[Window, ...], parts: tuple[int, ...]) -> Fraction:
    """The largest row sum times the largest column sum of the matrix of a pool: at least its squared norm."""
    row = max(Fraction(stop - start, divisor) for (start, stop), divisor in zip(spans, parts, strict=True))
    # 1/divisor in whole units: exact if the unit is a common multiple of all divisors, otherwise rounded up.
    unit = 1
    for divisor in set(parts):
        unit = math.lcm(unit, divisor)
        if unit > 2**200:
            unit = 2**80
            break
    # The sum of column k is that of column k − 1, plus the windows that start at k, less those that stopped there.
    changes: dict[int, int] = {}
    for (start, stop), divisor in zip(spans, parts, strict=True):
        share = -(-unit // divisor)
        changes[start] = changes.get(start, 0) + share
        changes[stop] = changes.get(stop, 0) - share
    column = max(itertools.accumulate(changes[place] for place in sorted(changes)))
    return row * Fraction(column, unit)


def _regular(spans: tuple[Window, ...] | None) -> int | None:
    """The length of windows of one length that follow each other from 0."""
    if spans is None:
        return None
    length = spans[0][1] - spans[0][0]
    regular = all(span == (i * length, (i + 1) * length) for i, span in enumerate(spans))
    return length if regular else None


def _covered(windows: tuple[tuple[Window, ...] | None, ...], shape: Shape) -> bool:
    return all(spans is None or spans[-1][1] == size for spans, size in zip(windows, shape, strict=True))


def require_windows(windows: tuple[tuple[Steps, ...] | None, ...]) -> None:
    require(any(spans is not None for spans in windows), "a pool needs windows on at least one axis.")
    for spans in windows:
        require(spans is None or (len(spans) > 0 and all(a < b for a, b, _ in spans)), "no window may be empty.")


def windowed(windows: Sequence[Sequence[Sequence[int]] | None], shape: Shape) -> Shape:
    """The shape after a pool with these windows."""
    fits = len(windows) == len(shape) and all(
        spans is None or max(span[1] for span in spans) <= size for spans, size in zip(windows, shape, strict=True)
    )
    require(fits, f"its windows do not fit inputs of shape {shape}.")
    return tuple(size if spans is None else len(spans) for spans, size in zip(windows, shape, strict=True))


class Windowed(Op):
    """A 1-Lipschitz function of each window. An entry counts once for each of its windows."""

    def __init__(self, windows: tuple[tuple[Steps, ...] | None, ...]) -> None:
        super().__init__()
        self.windows = windows
        require_windows(windows)

    def output_shape(self, shape: Shape) -> Shape:
        return windowed(self.windows, shape)

    def room(self, shape: Shape) -> int:
        """How many entries are copied into windows, one axis after the other."""
        sizes, most = list(shape), 0
        for axis, spans in enumerate(self.windows):
            if spans is not None:
                sizes[axis] = len(spans) * max(len(range(*span)) for span in spans)
                most = max(most, math.prod(sizes))
                sizes[axis] = len(spans)
        return most

    def times(self) -> float:
        """The root of the number of windows in which the most frequent entry lies."""
        places = [
            [place for span in spans for place in range(*span)] for spans in self.windows if spans is not None
        ]
        return root_up(Fraction(math.prod(map(_most_frequent, places))))


class MaxPool(Windowed):
    """The maximum of each window."""

    op = "max_pool"

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        for axis, spans in enumerate(self.windows, start=1):
            if spans is not None:
                x = _windows(x, axis, spans).amax(dim=axis + 1)
        return x

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        return Proof(self.output_shape(shape), self.times(), "windows")

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        """Into L∞: a maximum moves by at most the largest change; an input in L1 is no larger in L∞."""
        return self.prove(shape) if norm == "l2" else Proof(self.output_shape(shape), 1.0, "windows", norm="linf")


class L2Pool(Windowed):
    """√(Σ x²) over each window: | ‖u‖ − ‖v‖ | ≤ ‖u − v‖."""

    op = "l2_pool"

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        for axis, spans in enumerate(self.windows, start=1):
            if spans is not None:
                counts = torch.tensor([len(range(*span)) for span in spans], device=x.device)
                entries = _windows(x, axis, spans)
                inside = torch.arange(entries.shape[axis + 1], device=x.device) < counts[:, None]
                entries = torch.where(inside.view(*inside.shape, *[1] * (x.ndim - 1 - axis)), entries, 0.0)
                x = torch.linalg.vector_norm(entries, dim=axis + 1)
        return x

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        size = math.prod(max(len(range(*span)) for span in spans) for spans in self.windows if spans is not None)
        root = max(1.0, self.times()) * math.sqrt(math.prod(shape)) * ROUND
        inner = relative_error(size + 8, self.times())

        def error(norms: Tensor, u: float) -> Tensor:  # squares underflow below 2⁻⁵¹¹ (2⁻⁶³)
            return inner(norms, u) + {U64: 2.0**-500, U32: 2.0**-58}[u] * root

        return Proof(self.output_shape(shape), self.times(), "norms", error)


def _windows(x: Tensor, axis: int, spans: tuple[Steps, ...]) -> Tensor:
    """The entries of each window along a new axis; a short window repeats its last one."""
    places = [list(range(*span)) for span in spans]
    longest = max(map(len, places))
    index = torch.tensor([row + row[-1:] * (longest - len(row)) for row in places], device=x.device)
    return x.index_select(axis, index.flatten()).unflatten(axis, (len(spans), longest))


def cast_error(size: float, shape: Shape, norm: str = "l2") -> Error:
    """What float32 loses where entries are compared with numbers or replaced by them: these are rounded first."""
    root = norm_of_ones(math.prod(shape), norm) * ROUND

    def error(norms: Tensor, u: float) -> Tensor:
        smallest = 2.0**-149 if u == U32 and size else 0.0  # a subnormal number is rounded to a multiple of it
        return torch.full_like(norms, (CASTS[u] * u * size + smallest) * root)

    return error


class Function(Op):
    """A scalar function of every entry; ``op`` is its name in ``FUNCTIONS``."""

    op: str  # type: ignore[misc]

    def __init__(self, op: str, parameters: tuple[Real, ...] = ()) -> None:
        super().__init__()
        self.op, self.numbers = op, parameters  # modules of torch have a method called parameters
        require(op in FUNCTIONS, f"the function {op!r:.40} is not known here.")
        require(
            len(parameters) == FUNCTIONS[op].parameters and all(map(math.isfinite, parameters)),
            f"{op} needs {FUNCTIONS[op].parameters} finite parameters, got {parameters}.",
        )

    def fields(self) -> dict[str, Any]:
        return {"op": self.op, "parameters": self.numbers}

    @property
    def scalar(self) -> Scalar:
        return FUNCTIONS[self.op]

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.scalar.function(x, *self.numbers)

    def constant(self) -> float:
        return self.prove((1,)).lipschitz

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        return self.prove_in("l2", shape, block)

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        scalar = self.scalar
        slope = scalar.slope(*self.numbers)
        if not math.isfinite(slope):
            return Proof(shape, math.inf, "its parameters allow no slope", None)
        size = max(map(abs, self.numbers), default=0.0)
        # |σ(0)| too: it is log 2/β of a softplus, whose β could vanish in float32.
        biggest, cast = max(1.0, size, slope, scalar.start(*self.numbers)), cast_error(size, shape, norm)
        if scalar.roundings == 0:
            return Proof(shape, slope, "exact", cast, largest=biggest, norm=norm)
        start = scalar.start(*self.numbers) * norm_of_ones(math.prod(shape), norm) * ROUND
        inner = relative_error(scalar.roundings, 1.0)
        assumes = (f"{self.op} within {ULPS} ulp",) if scalar.smooth else ()

        def error(norms: Tensor, u: float) -> Tensor:
            return inner(slope * norms + start, u) + cast(norms, u)

        return Proof(shape, slope, "slope", error, largest=biggest, assumes=assumes, norm=norm)


class PReLU(Op):
    """x for x ≥ 0 and w·x below, with one w or one for each channel."""

    op = "prelu"
    in_any_norm = True
    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.store(weight=weight)
        require(self.weight.ndim == 1 and len(self.weight) > 0, "its weight must be a vector.")

    def output_shape(self, shape: Shape) -> Shape:
        require(
            len(self.weight) in (1, shape[0]),
            f"it has slopes for {len(self.weight)} channels, got inputs of shape {shape}.",
        )
        return shape

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return torch.where(x < 0, per_channel(self.weight, x) * x, x)

    def constant(self) -> float:
        return self.prove((len(self.weight),)).lipschitz

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        slope = max(1.0, largest(self.weight))
        return Proof(self.output_shape(shape), slope, "slope", relative_error(1, slope), largest=slope)


class AlongAxis(Op):
    """A function of the vectors along one axis."""

    def __init__(self, axis: Axis) -> None:
        super().__init__()
        self.axis = axis

    def output_shape(self, shape: Shape) -> Shape:
        example_axis(self.axis, shape)
        return shape

    def sizes(self, shape: Shape) -> tuple[int, float]:
        """The length of the vectors, and the root of their number."""
        n = shape[example_axis(self.axis, shape)]
        return n, math.sqrt(math.prod(shape) // n) * ROUND


class Softmax(AlongAxis):
    """exp(x_i)/Σ_j exp(x_j). Its Jacobian diag(p) − ppᵀ has norm at most 1/2."""

    op = "softmax"

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.softmax(placed(self.axis, x))

    def constant(self) -> float:
        return 0.5

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        n, others = self.sizes(shape)

        def error(norms: Tensor, u: float) -> Tensor:
            size = g(n + 24, u) * (1 + math.sqrt(n)) * others * ROUND + UNDERFLOW[u]
            return torch.full_like(norms, size)

        return Proof(shape, 0.5, "slope", error, assumes=(f"softmax within {ULPS} ulp",))


class LogSoftmax(AlongAxis):
    """x_i − log Σ_j exp(x_j) for vectors of length n. Its Jacobian I − 1pᵀ has norm √n·‖p‖ ≤ √n."""

    op = "log_softmax"

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.log_softmax(placed(self.axis, x))

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        n, others = self.sizes(shape)
        shift = (n + 4) * math.sqrt(n) * others

        def error(norms: Tensor, u: float) -> Tensor:
            return g(n + 40, u) * (4 * norms + shift) * ROUND + UNDERFLOW[u]

        return Proof(shape, root_up(Fraction(n)), "slope", error, assumes=(f"log_softmax within {ULPS} ulp",))


class Combination(Op):
    """Σ_k α_k x_k of several inputs of one shape, with stored α ≥ 0."""

    op = "combination"
    in_any_norm = True
    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.store(weights=weights)
        require(self.weights.ndim == 1 and len(self.weights) > 0, "a combination needs at least one input.")
        require(bool((self.weights >= 0).all()), "the weights of a combination must not be negative.")
        self.inputs = len(self.weights)

    def forward(self, *inputs: Tensor) -> Tensor:
        weights = self.weights.to(inputs[0].dtype)
        total = weights[0] * inputs[0]
        for weight, x in zip(weights[1:], inputs[1:], strict=True):
            total = total + weight * x
        return total

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        gains = tuple(float(value) for value in self.weights)
        total = above(sum((Fraction(gain) for gain in gains), Fraction(0)))
        error = relative_error(len(gains) + 2, 1.0)  # of Σ α_k Z_k
        return Proof(shape, total, "weights", error, largest=max(1.0, largest(self.weights)), gains=gains)


class Concat(Op):
    """``count`` inputs one after the other along ``axis``.

    ‖(u, v)‖² = ‖u‖² + ‖v‖²: squares of constants, of norms and of errors add up.
    """

    op = "concat"

    def __init__(self, axis: Axis, count: Count) -> None:
        super().__init__()
        self.axis, self.count = axis, count
        self.inputs = count

    def meet(self, shapes: Sequence[Shape]) -> Shape:
        axis, first = example_axis(self.axis, shapes[0]), shapes[0]
        others = [(*shape[:axis], 0, *shape[axis + 1 :]) for shape in shapes]
        require(
            all(len(shape) == len(first) for shape in shapes) and len(set(others)) == 1,
            f"what is put together along axis {axis} must agree on every other axis, but the shapes are "
            f"{' and '.join(map(str, shapes))}.",
        )
        return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, placed(self.axis, inputs[0]))

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        gains = (1.0,) * self.count
        return Proof(shape, root_up(Fraction(self.count)), "squares", gains=gains, side_by_side=True)


class Assumed(Op):
    """A module whose constant is only declared: it is run, never stored, and every report says so."""

    op = "assumed"

    def __init__(self, module: nn.Module, declared: float, method: str) -> None:
        super().__init__()
        self.module, self.declared, self.method = module, declared, method

    def output_shape(self, shape: Shape) -> Shape:
        with torch.no_grad():
            tensors = [*self.module.parameters(), *self.module.buffers()]
            like = next((t for t in tensors if t.is_floating_point()), torch.zeros(()))
            out = self.module(torch.zeros(2, *shape, dtype=like.dtype, device=like.device))
        if not isinstance(out, Tensor) or out.ndim == 0 or len(out) != 2:
            raise NotCertified("it must map each example to a tensor of its own. Keep the batch.")
        return tuple(out.shape[1:])

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        # A copy: a module that works in place must not change what others read.
        result: Tensor = self.module(x.clone())
        return result

    def constant(self) -> float:
        return self.declared

    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        return Proof(self.output_shape(shape), self.declared, self.method, None, self.declared, assumed=True)


def above(value: Fraction) -> float:
    """The smallest float that is at least the value."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def root_up(square: Fraction) -> float:
    """The smallest float whose square is at least the value, or the next one."""
    root = math.sqrt(float(square))
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root


CLASSES: tuple[type[Op], ...] = (
    Linear,
    Conv,
    ConvTranspose,
    Circular,
    ResidualLinear,
    ResidualConv,
    ResidualCircular,
    Rearrange,
    Select,
    GroupSort,
    Normalize,
    BatchNorm,
    Scale,
    Pool,
    MaxPool,
    L2Pool,
    PReLU,
    Softmax,
    LogSoftmax,
    Combination,
    Concat,
)
OPS: dict[str, type[Op]] = {kind.op: kind for kind in CLASSES} | dict.fromkeys(FUNCTIONS, Function)
