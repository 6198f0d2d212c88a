"""Functions and methods of torch as ops: what ``x + y``, ``torch.cat`` or ``F.relu`` is in a graph.

``find`` gives for a function or the name of a method what makes its ops. A value that depends on the input is a
``Ref``, the name of a node; everything else is a constant. Sizes that follow from the input's shape are written as
``ops.Size`` and filled in when the shape is known. Functions that have a module in torch.nn become what that module
becomes.

Nothing here mixes the examples of a batch: axis 0 of a batch stays first and whole, or the call is refused.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from lipcert.certified import foreign, ops
from lipcert.certified.foreign import along, inner_axis, reshape
from lipcert.certified.op import Op, Shape, example_axis, require
from lipcert.certified.ops import BATCH, Flexible, Function, Size
from lipcert.errors import NotCertified

KEEP_BATCH = "Keep the batch as axis 0: x.view(x.size(0), -1), x.flatten(1), x.mean(dim=1)."
NO_QUOTIENT = (
    "it divides by a value that depends on the input, which has no Lipschitz constant. Divide by a number, or "
    "multiply by a parameter."
)
# What to write instead of calls without a proof.
INSTEAD = {
    **dict.fromkeys(("max", "min"), "Write x.amax(dim), x.amin(dim), torch.maximum(x, y) or torch.minimum(x, y)."),
    **dict.fromkeys(("clamp_min", "clamp_max"), "Write x.clamp(min=a) or x.clamp(max=b)."),
    **dict.fromkeys(("sort", "argsort", "topk"), "Use lipcert.layers.GroupSort, which sorts."),
    **dict.fromkeys(("where", "masked_fill"), "Multiply by a stored tensor of zeros and ones."),
    **dict.fromkeys(("zeros_like", "new_zeros", "ones_like", "new_ones"), "Use F.pad for constants."),
    **dict.fromkeys(("einsum", "bmm", "baddbmm", "addmm", "mm"), "Use nn.Linear, or x @ W with a stored matrix W."),
    **dict.fromkeys(
        ("to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"),
        "Convert the input before it is passed to the network.",
    ),
    "index_select": "Write x[:, [0, 2]] with plain numbers.",
}


@dataclass(frozen=True)
class Ref:
    """A value that depends on the input: what that node computes.

    ``form`` says what it is of another node: ("half", node, axis, which), ("max" or "min" of both, node, axis) or
    ("circular", node, padding).
    """

    name: str
    form: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """The shape of a value, or a slice of it; the batch comes first."""

    ref: Ref
    part: slice | None = None

    def __getitem__(self, index: Any) -> Any:
        require(self.part is None, "a part of a shape is indexed again. Index the whole shape.")
        if isinstance(index, slice):
            return Sizes(self.ref, index)
        return BATCH if index == 0 else Size(self.ref.name, index)


@dataclass(frozen=True)
class Pieces:
    """What ``chunk``, ``split`` and ``unbind`` give: ``take(i)`` is the i-th."""

    take: Callable[[int], Ref]
    count: int | None  # None: it depends on the shape

    def all(self) -> list[Ref]:
        require(self.count is not None, "the number of pieces depends on the shape. Name each piece.")
        assert self.count is not None
        return [self.take(index) for index in range(self.count)]


def depends(value: Any) -> bool:
    """Whether an argument holds a value or a size that depends on the input."""
    if isinstance(value, (tuple, list)):
        return any(map(depends, value))
    if isinstance(value, slice):
        return depends((value.start, value.stop, value.step))
    if isinstance(value, dict):
        return depends(list(value.values()))
    return isinstance(value, (Ref, Sizes, Pieces, Size)) or (isinstance(value, str) and value == BATCH)


@dataclass(frozen=True)
class Maker:
    """Appends the ops of one call; ``hint`` is the name of the call."""

    append: Callable[[Op, tuple[str, ...], str], str]
    convert: Callable[[nn.Module], list[Op]]
    hint: str

    def emit(self, op: Op, *refs: Ref, hint: str = "") -> Ref:
        op, sources = _bound(op, refs)
        return Ref(self.append(op, sources, hint or self.hint))

    def flexible(self, make: Callable[..., Op], x: Ref, *settings: Any, isometry: bool = False) -> Ref:
        return self.emit(Flexible(make, settings, isometry), x)

    def module(self, x: Ref, module: nn.Module) -> Ref:
        """What a module of torch.nn becomes."""
        for op in self.convert(module):
            x = self.emit(op, x)
        return x


def _bound(op: Op, refs: Sequence[Ref]) -> tuple[Op, tuple[str, ...]]:
    """The op with the nodes that it reads: those from which it takes nothing but a size come last."""
    names = [ref.name for ref in refs]
    if not isinstance(op, Flexible):
        return op, tuple(names)

    def numbered(value: Any) -> Any:
        if isinstance(value, Sizes):
            value = Size(value.ref.name, value.part or slice(None))
        if isinstance(value, Size):
            if value.function is not None:
                return replace(value, operands=numbered(value.operands))
            name = str(value.source)
            if name not in names:
                names.append(name)
            return replace(value, source=names.index(name))
        if isinstance(value, (tuple, list)):
            return type(value)(map(numbered, value))
        if isinstance(value, SimpleNamespace):
            return SimpleNamespace(**{key: numbered(item) for key, item in vars(value).items()})
        return value

    settings = numbered(tuple(op.settings))
    return Flexible(op.make, settings, op.isometry, len(names)), tuple(names)


# --- Numbers and axes ---


def number(value: Any) -> float | None:
    """A constant that is one number, whatever it is combined with; None for all others."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and value.ndim <= 1 and not value.is_complex():
        return float(value)
    return None


def _whole(value: Any) -> int:
    require(isinstance(value, int), f"an axis or a number of entries must be a plain integer, got {value!r:.60}.")
    return int(value)


def _dims(dim: Any) -> tuple[int, ...]:
    require(dim is not None, f"it takes all axes together, the batch among them. {KEEP_BATCH}")
    return tuple(inner_axis(_whole(one)) for one in (dim if isinstance(dim, (tuple, list)) else (dim,)))


def _one(value: Any) -> Ref:
    require(isinstance(value, Ref), "it must read a tensor that depends on the input.")
    assert isinstance(value, Ref)
    return value


# --- Sums, differences, products ---


def add(make: Maker, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(x, Ref) and not isinstance(y, Ref):
        return _size(operator.add, x, y)
    y = y if alpha == 1 else mul(make, y, alpha)
    if isinstance(x, Ref) and isinstance(y, Ref):
        return make.emit(ops.Combination(torch.ones(2)), x, y)
    return shift(make, x, y) if isinstance(x, Ref) else shift(make, _one(y), x)


def sub(make: Maker, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(x, Ref) and not isinstance(y, Ref):
        return _size(operator.sub, x, y)
    if isinstance(y, Size):
        return add(make, x, _size(operator.mul, y, -alpha))
    return add(make, x, mul(make, y, -alpha) if isinstance(y, Ref) else -alpha * y)


def rsub(make: Maker, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return sub(make, y, x, alpha=alpha)


def mul(make: Maker, x: Any, y: Any) -> Any:
    if not isinstance(x, Ref) and not isinstance(y, Ref):
        return _size(operator.mul, x, y)
    if isinstance(x, Ref) and isinstance(y, Ref):
        raise NotCertified(
            "two values that depend on the input are multiplied, and a product has no Lipschitz constant. Multiply "
            "by a parameter or a number."
        )
    x, y = (x, y) if isinstance(x, Ref) else (_one(y), x)
    if isinstance(y, Size):
        return make.flexible(_scale, x, y)
    factor = number(y)
    if factor is None:
        return diagonal(make, x, y, factors=True)
    return make.emit(_scale(factor), x)


def _scale(factor: float, shape: Shape = ()) -> Op:
    """A factor of 0 has a constant of its own: a ``Scale`` has none."""
    return ops.Scale(float(factor)) if factor else ops.Combination(torch.zeros(1))


def div(make: Maker, x: Any, y: Any, *, rounding_mode: Any = None) -> Any:
    require(
        rounding_mode is None, "a quotient that is rounded to whole numbers jumps. Divide without rounding_mode."
    )
    if not isinstance(x, Ref):
        if isinstance(y, Ref):
            raise NotCertified(NO_QUOTIENT)
        return _size(operator.truediv, x, y)
    require(not isinstance(y, Ref), NO_QUOTIENT)
    if isinstance(y, Size):
        return make.flexible(_quotient, x, y)
    divisor = number(y)
    if divisor is None:
        raise NotCertified("it divides by a tensor. Multiply by a tensor of reciprocals, which is stored.")
    require(divisor != 0 and math.isfinite(divisor), f"it divides by {divisor}.")
    x = make.emit(_quotient(abs(divisor)), x)
    return x if divisor > 0 else make.emit(ops.Scale(-1.0), x)


def _quotient(divisor: float, shape: Shape = ()) -> Op:
    require(divisor > 0, f"it divides by {divisor}.")
    return Function("divide", (float(divisor),))


def neg(make: Maker, x: Any) -> Any:
    return _size(operator.neg, x) if isinstance(x, Size) else make.emit(ops.Scale(-1.0), _one(x))


def shift(make: Maker, x: Ref, constant: Any) -> Ref:
    """x plus a number or a tensor."""
    if isinstance(constant, Size):
        return make.flexible(_shift, x, constant)
    value = number(constant)
    return diagonal(make, x, constant, factors=False) if value is None else make.emit(_shift(value), x)


def _shift(value: float, shape: Shape = ()) -> Op:
    return Function("shift", (float(value) + 0.0,))  # no negative zero


def diagonal(make: Maker, x: Ref, constant: Any, *, factors: bool) -> Ref:
    """x times a constant tensor, or plus it, where nothing of x is repeated: a diagonal matrix, or a bias."""
    require(
        isinstance(constant, Tensor) and constant.is_floating_point() and constant.numel() > 0,
        f"it must be combined with real numbers or tensors of them, got {constant!r:.60}. Store them as floats.",
    )
    sizes = tuple(constant.shape)
    leading = next((place for place, size in enumerate(sizes) if size > 1), len(sizes))
    wide = [place - len(sizes) for place, size in enumerate(sizes) if size > 1]
    if leading:  # torch would add axes to a smaller x
        x = make.flexible(_with_axes, x, len(sizes) - 1)
    if not wide:
        value = float(constant)
        return make.emit(_scale(value) if factors else _shift(value), x)
    whole = x
    if len(wide) > 1:
        x = make.flexible(_flat, x, sizes[leading:])
    entries = constant.flatten()
    weight = entries if factors else torch.ones_like(entries)
    axis = wide[0] if len(wide) == 1 else -1
    x = make.emit(ops.Linear(weight[:, None], None if factors else entries, axis, len(entries)), x)
    return x if len(wide) == 1 else make.flexible(reshaped, x, Sizes(whole), isometry=True)


def _with_axes(axes: int, shape: Shape) -> Op:
    require(len(shape) >= axes, f"a constant with {axes} axes behind the batch meets examples of shape {shape}.")
    return Function("identity")


def _flat(wanted: Shape, shape: Shape) -> Op:
    first = next((axis for axis, size in enumerate(shape) if size > 1), len(shape))
    require(
        shape[first:] == wanted,
        f"a constant of shape {wanted} meets examples of shape {shape}, and nothing is broadcast along several "
        "axes. Expand the constant.",
    )
    return reshape(shape, (math.prod(shape),))


def matmul(make: Maker, x: Any, weight: Any) -> Ref:
    require(
        isinstance(x, Ref) and isinstance(weight, Tensor) and weight.ndim == 2,
        "a product of matrices is proved for x @ W with a constant matrix W. Use nn.Linear.",
    )
    return make.emit(ops.Linear(weight.mT, None), x)


def linear(make: Maker, x: Any, weight: Any, bias: Any = None) -> Ref:
    _require_constants(weight, bias)
    return make.emit(ops.Linear(weight, bias), _one(x))


def _require_constants(*tensors: Any) -> None:
    require(
        all(tensor is None or isinstance(tensor, Tensor) for tensor in tensors),
        "its weight must be a parameter or a buffer, and it depends on the input.",
    )


def _size(function: Callable[..., Any], *operands: Any) -> Any:
    """A number computed from sizes."""
    require(BATCH not in operands, f"a size is computed from the number of examples. {KEEP_BATCH}")
    require(
        not any(isinstance(one, Ref) for one in operands),
        f"{function.__name__} of a value that depends on the input jumps, or its slope grows. Remove it.",
    )
    known = all(isinstance(one, (int, float, Size)) for one in operands)
    require(known, "a shape is combined with something else than numbers.")
    return Size(function=function, operands=tuple(operands))


def power(make: Maker, x: Any, exponent: Any) -> Any:
    require(
        not isinstance(x, Ref), "a power has no Lipschitz constant, because its slope grows. Clip its input first."
    )
    return _size(operator.pow, x, exponent)


def _of_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda make, *operands: _size(function, *operands)


# --- Two values that meet ---


def concatenate(make: Maker, tensors: Any, dim: Any = 0) -> Ref:
    refs, axis = _refs(tensors), inner_axis(_whole(dim))
    kinds = [ref.form[:1] for ref in refs]
    if kinds in ([("max",), ("min",)], [("min",), ("max",)]) and refs[0].form[1:] == refs[1].form[1:]:
        _, source, split = refs[0].form
        if split == axis:
            return _max_min(make, Ref(source), axis, descending=kinds[0] == ("max",))
    return make.emit(ops.Concat(axis, len(refs)), *refs)


def _max_min(make: Maker, x: Ref, axis: int, *, descending: bool) -> Ref:
    """The maxima of the halves of x, then the minima: x sorted in pairs, so that its constant is 1 and not 2."""
    halves = make.flexible(_halved, x, axis, isometry=True)
    pairs = axis if axis >= 0 else axis - 1  # there is one more axis now
    return make.flexible(_joined, make.emit(ops.GroupSort(2, pairs, descending), halves), pairs, isometry=True)


def _halved(axis: int, shape: Shape) -> Op:
    place = example_axis(axis, shape)
    require(shape[place] % 2 == 0, f"an axis of {shape[place]} has no two halves of one size.")
    return reshape(shape, (*shape[:place], 2, shape[place] // 2, *shape[place + 1 :]))


def _joined(axis: int, shape: Shape) -> Op:
    place = example_axis(axis, shape)
    return reshape(shape, (*shape[:place], 2 * shape[place + 1], *shape[place + 2 :]))


def _refs(tensors: Any) -> list[Ref]:
    if isinstance(tensors, Pieces):
        tensors = tensors.all()
    require(
        isinstance(tensors, (tuple, list)) and len(tensors) > 0 and all(isinstance(one, Ref) for one in tensors),
        "tensors that are put together must all depend on the input. Use F.pad for constants.",
    )
    return list(tensors)


def stack(make: Maker, tensors: Any, dim: Any = 0) -> Ref:
    refs = [make.flexible(unsqueeze, ref, _whole(dim), isometry=True) for ref in _refs(tensors)]
    return make.emit(ops.Concat(inner_axis(_whole(dim)), len(refs)), *refs)


def maximum(make: Maker, x: Any, y: Any) -> Ref:
    """The larger of two values is the maximum over an axis along which they are stacked."""
    if number(y) is not None:
        return make.emit(Function("maximum", (number(y),)), _one(x))  # type: ignore[arg-type]
    if number(x) is not None:
        return maximum(make, y, x)
    both = stack(make, [x, y], dim=1)
    result = make.flexible(_drop, make.flexible(_maxima, both, (0,)), (0,), isometry=True)
    return replace(result, form=_of_halves("max", x, y))


def _of_halves(name: str, x: Any, y: Any) -> tuple[Any, ...]:
    """The form of the maximum or minimum of both halves of one value."""
    forms = [value.form if isinstance(value, Ref) and value.form[:1] == ("half",) else None for value in (x, y)]
    same = None not in forms and forms[0][1:3] == forms[1][1:3] and {forms[0][3], forms[1][3]} == {0, 1}  # type: ignore[index]
    return (name, *forms[0][1:3]) if same else ()  # type: ignore[index]


def minimum(make: Maker, x: Any, y: Any) -> Ref:
    negated = [-value if number(value) is not None else neg(make, value) for value in (x, y)]
    result: Ref = neg(make, maximum(make, *negated))
    return replace(result, form=_of_halves("min", x, y))


def clamp(make: Maker, x: Any, min: Any = None, max: Any = None) -> Ref:
    low, high = (None if end is None else number(end) for end in (min, max))
    require(
        (min is None or low is not None) and (max is None or high is not None),
        "it clamps by a tensor. Use numbers, or torch.maximum and torch.minimum.",
    )
    if low is not None and high is not None:
        return make.emit(Function("hardtanh", (low, high)), _one(x))
    if high is not None:
        return minimum(make, x, high)
    require(low is not None, "it clamps by nothing.")
    return maximum(make, x, low)


# --- Shapes ---


def _sequence(sizes: tuple[Any, ...]) -> Any:
    """f(a, b) and f((a, b)) are the same."""
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list, Sizes)) else sizes


def view(make: Maker, x: Any, *sizes: Any) -> Ref:
    wanted = _sequence(sizes)
    if not isinstance(wanted, Sizes):
        require(
            all(isinstance(size, (int, Size, str)) for size in wanted), f"its sizes must be integers. {KEEP_BATCH}"
        )
        first = wanted[0] if wanted else None
        require(
            (isinstance(first, str) and first == BATCH) or first == -1 or isinstance(first, Size),
            f"its first size is {first}, but the number of examples is not fixed. {KEEP_BATCH}",
        )
        wanted = tuple(wanted)
    return make.flexible(reshaped, _one(x), wanted, isometry=True)


def view_as(make: Maker, x: Any, other: Any) -> Ref:
    return view(make, x, Sizes(_one(other)))


def reshaped(sizes: Sequence[Any], shape: Shape) -> Op:
    """As ``view`` with these sizes, of which the first stands for the batch."""
    first, *rest = sizes
    size = math.prod(shape)
    if isinstance(first, str):
        known = math.prod(one for one in rest if one != -1)
        rest = [size // max(known, 1) if one == -1 else one for one in rest]
    require(
        (isinstance(first, str) or first == -1)
        and all(isinstance(one, int) and one > 0 for one in rest)
        and math.prod(rest) == size,
        f"examples of shape {shape} cannot become {tuple(rest)}, or the number of examples changes. {KEEP_BATCH}",
    )
    return reshape(shape, tuple(rest))


def flatten(make: Maker, x: Any, start_dim: int = 0, end_dim: int = -1) -> Ref:
    inner_axis(start_dim)
    return make.flexible(foreign.flatten, _one(x), start_dim, end_dim, isometry=True)


def unflatten(make: Maker, x: Any, dim: int, sizes: Any) -> Ref:
    inner_axis(dim)
    return make.flexible(foreign.unflatten, _one(x), dim, tuple(sizes), isometry=True)


def permute(make: Maker, x: Any, *dims: Any) -> Ref:
    return make.flexible(permuted, _one(x), tuple(_sequence(dims)), isometry=True)


def permuted(dims: Sequence[int], shape: Shape) -> Op:
    order = [dim % (len(shape) + 1) if -len(shape) - 1 <= dim else dim for dim in dims]
    require(
        sorted(order) == list(range(len(shape) + 1)) and order[0] == 0,
        f"{tuple(dims)} must be all axes of a batch of examples {shape}, the batch first.",
    )
    return ops.Rearrange(shape, tuple(dim - 1 for dim in order[1:]), tuple(shape[dim - 1] for dim in order[1:]))


def transpose(make: Maker, x: Any, dim0: int, dim1: int) -> Ref:
    return make.flexible(_exchanged, _one(x), inner_axis(_whole(dim0)), inner_axis(_whole(dim1)), isometry=True)


def _exchanged(first: int, second: int, shape: Shape) -> Op:
    order = list(range(len(shape)))
    a, b = example_axis(first, shape), example_axis(second, shape)
    order[a], order[b] = order[b], order[a]
    return permuted((0, *(axis + 1 for axis in order)), shape)


def movedim(make: Maker, x: Any, source: Any, destination: Any) -> Ref:
    return make.flexible(_moved, _one(x), _dims(source), _dims(destination), isometry=True)


def _moved(source: Sequence[int], destination: Sequence[int], shape: Shape) -> Op:
    axes = torch.empty(shape, device="meta", dtype=torch.bool)
    froms, tos = ([example_axis(axis, shape) for axis in some] for some in (source, destination))
    order = list(range(axes.ndim))
    left = [axis for axis in order if axis not in froms]
    for place, axis in sorted(zip(tos, froms, strict=True)):
        left.insert(place, axis)
    return permuted((0, *(axis + 1 for axis in left)), shape)


def squeezed(make: Maker, x: Any, dim: Any = None) -> Ref:
    require(dim is not None, f"squeeze() without an axis drops a batch of one. {KEEP_BATCH}")
    return make.flexible(_drop, _one(x), _dims(dim), isometry=True)


def _drop(axes: Sequence[int], shape: Shape) -> Op:
    """Without these axes, where they have one entry."""
    places = {example_axis(axis, shape) for axis in axes}
    return reshape(shape, tuple(size for axis, size in enumerate(shape) if axis not in places or size != 1))


def unsqueezed(make: Maker, x: Any, dim: int) -> Ref:
    return make.flexible(unsqueeze, _one(x), _whole(dim), isometry=True)


def unsqueeze(dim: int, shape: Shape) -> Op:
    axis = dim - 1 if dim > 0 else dim + len(shape) + 1
    require(
        dim != 0 and 0 <= axis <= len(shape),
        f"a new axis {dim} cannot stand before the batch of examples {shape}. {KEEP_BATCH}",
    )
    return reshape(shape, (*shape[:axis], 1, *shape[axis:]))


def expand(make: Maker, x: Any, *sizes: Any) -> Ref:
    wanted = _sequence(sizes)
    if not isinstance(wanted, Sizes):
        first = wanted[0] if wanted else None
        require(
            first == -1 or (isinstance(first, str) and first == BATCH), f"its first size is {first}. {KEEP_BATCH}"
        )
        wanted = tuple(wanted)
    return make.flexible(_expanded, _one(x), wanted)


def expand_as(make: Maker, x: Any, other: Any) -> Ref:
    return expand(make, x, Sizes(_one(other)))


def _expanded(sizes: Sequence[Any], shape: Shape) -> Op:
    wanted = tuple(sizes)[1:]
    require(len(wanted) == len(shape), f"examples of shape {shape} cannot be expanded to {wanted}. Add axes first.")
    out = [size if new == -1 else new for size, new in zip(shape, wanted, strict=True)]
    fits = all(old in (1, new) for old, new in zip(shape, out, strict=True))
    require(fits, f"examples of shape {shape} cannot be expanded to {tuple(out)}.")
    return ops.Select(tuple(None if old == new else (0,) * new for old, new in zip(shape, out, strict=True)))


def same(make: Maker, x: Any, **settings: Any) -> Ref:
    require(all(value in (None, torch.contiguous_format) for value in settings.values()), "it changes the layout.")
    return _one(x)


def attribute(make: Maker, x: Any, name: str) -> Any:
    if isinstance(x, Ref) and name == "shape":
        return Sizes(x)
    if isinstance(x, Ref) and name == "mT":
        return transpose(make, x, -1, -2)
    raise NotCertified(f"the attribute .{name} of a tensor has no meaning here. Use .shape[1] and the like.")


def size(make: Maker, x: Any, dim: Any = None) -> Any:
    return Sizes(_one(x)) if dim is None else Sizes(_one(x))[dim]


# --- Entries ---


def item(make: Maker, x: Any, index: Any) -> Any:
    if isinstance(x, Pieces):
        place = _whole(index)
        if place < 0:
            require(x.count is not None, "the number of pieces depends on the shape. Count from 0.")
            place += x.count or 0
        return x.take(place)
    if isinstance(x, Sizes):
        return x[index]
    indices = list(index) if isinstance(index, tuple) else [index]
    first = indices[0] if indices else None
    whole = first is Ellipsis or (isinstance(first, slice) and first == slice(None))
    require(whole, f"its index begins with {first!r:.60}, which selects examples of the batch. Begin with [:, …].")
    plain = all(one is None or one is Ellipsis or isinstance(one, slice) or _is_place(one) for one in indices)
    require(
        plain and not any(map(depends, indices)),
        "an index must be made of plain numbers, slices and lists of numbers. Write x[:, [0, 2]].",
    )
    written = tuple(_written(one) for one in indices)
    x = make.flexible(_taken, _one(x), written)
    if all(isinstance(one, tuple) or one == "…" for one in written):
        return x
    return make.flexible(_indexed, x, written, isometry=True)


def _is_place(index: Any) -> bool:
    """Whether an index is a whole number or a list of them: True and False select in another way."""
    if isinstance(index, list):
        return all(_is_place(one) and not isinstance(one, list) for one in index)
    return isinstance(index, int) and not isinstance(index, bool)


def _written(index: Any) -> Any:
    """An index without slices and None, which cannot be compared or stored."""
    if index is Ellipsis:
        return "…"
    if index is None:
        return "new"
    if isinstance(index, slice):
        return ("slice", index.start, index.stop, index.step)
    return ("list", *index) if isinstance(index, list) else index


def _per_axis(written: Sequence[Any], shape: Shape) -> list[Any]:
    """One entry for each axis of an example, and "new" for each new one."""
    taken = [one for one in written if one != "new"]
    missing = len(shape) + 1 - sum(one != "…" for one in taken)
    require(
        missing >= 0 and taken.count("…") <= 1, f"an index has more entries than examples of shape {shape} axes."
    )
    whole = ("slice", None, None, None)
    if "…" not in taken:
        written = (*written, "…")
    full: list[Any] = []
    for one in written:
        full += [whole] * missing if one == "…" else [one]
    require(full[0] == whole, "an index selects examples of the batch. Begin with [:, …].")
    return full[1:]


def _taken(written: Sequence[Any], shape: Shape) -> Op:
    """The entries that an index selects; axes stay."""
    indices: list[tuple[int, ...] | None] = []
    entries = [one for one in _per_axis(written, shape) if one != "new"]
    lists = sum(isinstance(one, tuple) and one[0] == "list" for one in entries)
    require(lists <= 1 and not (lists and any(isinstance(one, int) for one in entries)), "lists are combined.")
    for one, size in zip(entries, shape, strict=True):
        if isinstance(one, int):
            require(-size <= one < size, f"the index {one} is outside of an axis of {size}.")
            indices.append((one % size,))
        elif one[0] == "list":
            require(all(-size <= place < size for place in one[1:]), f"an index is outside of an axis of {size}.")
            indices.append(tuple(place % size for place in one[1:]))
        else:
            places = tuple(range(size)[slice(*one[1:])])
            indices.append(None if places == tuple(range(size)) else places)
    return ops.Select(tuple(indices))


def _indexed(written: Sequence[Any], shape: Shape) -> Op:
    """Without the axes of which one entry was taken by a number, and with the new ones."""
    sizes, out = iter(shape), []
    for one in _per_axis(written, shape):
        if one == "new":
            out.append(1)
        elif isinstance(one, int):
            next(sizes)
        else:
            out.append(next(sizes))
    return reshape(shape, tuple(out))


def chunk(make: Maker, x: Any, chunks: int, dim: int = 0) -> Pieces:
    x, axis, count = _one(x), inner_axis(_whole(dim)), _whole(chunks)
    require(count > 0, f"the number of chunks must be positive, got {count}.")
    return Pieces(
        lambda index: replace(
            make.flexible(_chunk, x, index, count, axis, isometry=True),
            form=("half", x.name, axis, index) if count == 2 else (),
        ),
        count,
    )


def _chunk(index: int, count: int, axis: int, shape: Shape) -> Op:
    size = shape[example_axis(axis, shape)]
    return _piece(index * -(-size // count), -(-size // count), axis, shape)


def split(make: Maker, x: Any, sizes: Any, dim: int = 0) -> Pieces:
    x, axis = _one(x), inner_axis(_whole(dim))
    if not isinstance(sizes, (tuple, list)):
        return Pieces(lambda index: make.flexible(_equal_piece, x, index, sizes, axis, isometry=True), None)
    starts = [sum(map(_whole, sizes[:place])) for place in range(len(sizes))]
    halves = len(sizes) == 2 and sizes[0] == sizes[1]
    return Pieces(
        lambda index: replace(
            make.flexible(_exact_piece, x, starts[index], sizes[index], sum(sizes), axis, isometry=True),
            form=("half", x.name, axis, index) if halves else (),
        ),
        len(sizes),
    )


def _equal_piece(index: int, size: int, axis: int, shape: Shape) -> Op:
    return _piece(index * size, size, axis, shape)


def _exact_piece(start: int, count: int, total: int, axis: int, shape: Shape) -> Op:
    size = shape[example_axis(axis, shape)]
    require(size == total, f"{size} entries along an axis cannot be split into pieces of {total} together.")
    return _piece(start, count, axis, shape)


def _piece(start: int, count: int, axis: int, shape: Shape) -> Op:
    """At most ``count`` entries along an axis, from ``start`` on."""
    place = example_axis(axis, shape)
    stop = min(start + count, shape[place])
    require(0 <= start < stop, f"an axis of {shape[place]} has no piece from {start} to {start + count}.")
    return along(place, range(start, stop), shape)


def narrow(make: Maker, x: Any, dim: int, start: int, length: int) -> Ref:
    return make.flexible(_narrowed, _one(x), _whole(start), length, inner_axis(_whole(dim)), isometry=True)


def _narrowed(start: int, count: int, axis: int, shape: Shape) -> Op:
    size = shape[example_axis(axis, shape)]
    start = start if start >= 0 else start + size
    require(start + count <= size, f"an axis of {size} has no entries from {start} to {start + count}.")
    return _piece(start, count, axis, shape)


def select(make: Maker, x: Any, dim: int, index: int) -> Ref:
    axis = inner_axis(_whole(dim))
    x = make.flexible(_entry, _one(x), _whole(index), axis, isometry=True)
    return make.flexible(_drop, x, (axis,), isometry=True)


def _entry(index: int, axis: int, shape: Shape) -> Op:
    size = shape[example_axis(axis, shape)]
    require(-size <= index < size, f"the index {index} is outside of an axis of {size}.")
    return _piece(index % size, 1, axis, shape)


def flip(make: Maker, x: Any, *dims: Any) -> Ref:
    return make.flexible(_flipped, _one(x), _dims(_sequence(dims)), isometry=True)


def _flipped(axes: Sequence[int], shape: Shape) -> Op:
    places = {example_axis(axis, shape) for axis in axes}
    indices = (tuple(reversed(range(size))) if axis in places else None for axis, size in enumerate(shape))
    return ops.Select(tuple(indices))


def roll(make: Maker, x: Any, shifts: Any, dims: Any = None) -> Ref:
    steps = tuple(shifts) if isinstance(shifts, (tuple, list)) else (shifts,)
    return make.flexible(_rolled, _one(x), steps, _dims(dims), isometry=True)


def _rolled(steps: Sequence[int], axes: Sequence[int], shape: Shape) -> Op:
    require(len(steps) == len(axes), "roll needs one shift for each axis.")
    moved = {example_axis(axis, shape): step for step, axis in zip(steps, axes, strict=True)}
    require(len(moved) == len(axes), "roll needs different axes.")
    indices = (
        tuple((place - moved[axis]) % size for place in range(size)) if axis in moved else None
        for axis, size in enumerate(shape)
    )
    return ops.Select(tuple(indices))


# --- Means, sums and maxima over axes ---


def mean(make: Maker, x: Any, dim: Any = None, keepdim: bool = False) -> Ref:
    return _reduced(make, _means, x, dim, keepdim)


def total(make: Maker, x: Any, dim: Any = None, keepdim: bool = False) -> Ref:
    return _reduced(make, _sums, x, dim, keepdim)


def amax(make: Maker, x: Any, dim: Any = None, keepdim: bool = False) -> Ref:
    return _reduced(make, _maxima, x, dim, keepdim)


def amin(make: Maker, x: Any, dim: Any = None, keepdim: bool = False) -> Ref:
    return make.emit(ops.Scale(-1.0), amax(make, make.emit(ops.Scale(-1.0), _one(x)), dim, keepdim))


def _reduced(make: Maker, function: Callable[..., Op], x: Any, dim: Any, keepdim: bool) -> Ref:
    axes = _dims(dim)
    x = make.flexible(function, _one(x), axes)
    return x if keepdim else make.flexible(_drop, x, axes, isometry=True)


def _windows(axes: Sequence[int], shape: Shape) -> list[Any]:
    places = {example_axis(axis, shape) for axis in axes}
    require(bool(places), f"it names no axis. {KEEP_BATCH}")
    return [((0, size),) if axis in places else None for axis, size in enumerate(shape)]


def _means(axes: Sequence[int], shape: Shape) -> Op:
    windows = _windows(axes, shape)
    return ops.Pool(tuple(windows), tuple(None if spans is None else (spans[0][1],) for spans in windows))


def _sums(axes: Sequence[int], shape: Shape) -> Op:
    windows = _windows(axes, shape)
    return ops.Pool(tuple(windows), tuple(None if spans is None else (1,) for spans in windows))


def _maxima(axes: Sequence[int], shape: Shape) -> Op:
    windows = _windows(axes, shape)
    return ops.MaxPool(tuple(None if spans is None else ((0, spans[0][1], 1),) for spans in windows))


# --- Functions that have a module in torch.nn ---


def _module(build: Callable[..., nn.Module]) -> Callable[..., Ref]:
    def call(make: Maker, x: Any, *args: Any, **options: Any) -> Ref:
        return make.module(_one(x), build(*args, **options))

    return call


def _bare(kind: type[nn.Module], **settings: Any) -> Any:
    """A module with these attributes and without parameters of its own."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    module.eval()
    for name, value in settings.items():
        if isinstance(value, Tensor):
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)
    return module


def _convolution(kind: type[nn.Module], axes: int) -> Callable[..., Ref]:
    def call(
        make: Maker,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Ref:
        _require_constants(weight, bias)
        require(weight.ndim == axes + 2, f"its kernel must have {axes} axes for taps, got {tuple(weight.shape)}.")
        settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        mode, x = "zeros", _one(x)
        if x.form[:1] == ("circular",) and padding in (0, (0,) * axes, [0] * axes, "valid"):
            _, source, sides = x.form
            apart = dilation if isinstance(dilation, (tuple, list)) else (dilation,) * axes
            reach = [d * (k - 1) for d, k in zip(apart, weight.shape[2:], strict=True)]
            fits = len(sides) == 2 * axes and sides[::2] == sides[1::2]
            if fits and all(2 * side <= r for side, r in zip(sides[::-2], reach, strict=True)):  # no output twice
                mode, x = "circular", Ref(source)
                settings["_reversed_padding_repeated_twice"] = sides
        return make.module(x, _bare(kind, weight=weight, bias=bias, padding_mode=mode, **settings))

    return call


def _transposed(kind: type[nn.Module], axes: int) -> Callable[..., Ref]:
    def call(
        make: Maker,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Ref:
        _require_constants(weight, bias)
        require(weight.ndim == axes + 2, f"its kernel must have {axes} axes for taps, got {tuple(weight.shape)}.")
        settings = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
        module = _bare(kind, weight=weight, bias=bias, padding_mode="zeros", groups=groups, **settings)
        return make.module(_one(x), module)

    return call


def batch_norm(
    make: Maker,
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Ref:
    _require_constants(running_mean, running_var, weight, bias)
    module = _bare(
        nn.BatchNorm2d, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias, eps=eps
    )
    return make.module(_one(x), module.train(training))


def dropout(make: Maker, x: Any, p: float = 0.5, training: bool = True) -> Ref:
    return make.module(_one(x), nn.Dropout(p).train(bool(training)))


def prelu(make: Maker, x: Any, weight: Any) -> Ref:
    _require_constants(weight)
    return make.emit(ops.PReLU(weight.flatten()), _one(x))


def padded(make: Maker, x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Ref:
    sides = tuple(pad)
    require(len(sides) % 2 == 0, f"it pads by {sides}.")
    value = 0.0 if value is None else float(value)
    modes = ("constant", "circular", "reflect", "replicate")
    require(mode in modes and math.isfinite(value), f"padding has no proof for mode {mode!r} and value {value}.")
    x = _one(x)
    padding = make.emit(foreign.flexible(foreign.pad, mode, sides, value), x)
    wraps = mode == "circular" and all(isinstance(side, int) and side >= 0 for side in sides)
    return replace(padding, form=("circular", x.name, sides) if wraps else ())


def interpolate(
    make: Maker,
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: bool = False,
) -> Ref:
    require(not align_corners and not antialias, "up-sampling is proved for mode 'nearest'.")
    return make.module(_one(x), nn.Upsample(size, scale_factor, mode))


def normalize(make: Maker, x: Any, *args: Any, **options: Any) -> Ref:
    raise NotCertified("a value is divided by its own norm, whose slope near 0 is unbounded or 1/eps. Remove it.")


def layer_norm(make: Maker, x: Any, *args: Any, **options: Any) -> Ref:
    raise NotCertified(foreign.NO_NORMALIZATION)


FUNCTIONALS: dict[str, Callable[..., nn.Module]] = {
    "relu": lambda: nn.ReLU(),
    "relu6": lambda: nn.ReLU6(),
    "hardtanh": lambda min_val=-1.0, max_val=1.0: nn.Hardtanh(min_val, max_val),
    "leaky_relu": lambda negative_slope=0.01: nn.LeakyReLU(negative_slope),
    "elu": lambda alpha=1.0: nn.ELU(alpha),
    "celu": lambda alpha=1.0: nn.CELU(alpha),
    "selu": lambda: nn.SELU(),
    "gelu": lambda approximate="none": nn.GELU(approximate),
    "silu": lambda: nn.SiLU(),
    "mish": lambda: nn.Mish(),
    "hardswish": lambda: nn.Hardswish(),
    "hardsigmoid": lambda: nn.Hardsigmoid(),
    "softplus": lambda beta=1.0, threshold=20.0: nn.Softplus(beta, threshold),
    "softsign": lambda: nn.Softsign(),
    "logsigmoid": lambda: nn.LogSigmoid(),
    "softshrink": lambda lambd=0.5: nn.Softshrink(lambd),
    "tanhshrink": lambda: nn.Tanhshrink(),
    "threshold": lambda threshold, value: nn.Threshold(threshold, value),
    "tanh": lambda: nn.Tanh(),
    "sigmoid": lambda: nn.Sigmoid(),
    "softmax": lambda dim=None, _stacklevel=3, dtype=None: _soft(nn.Softmax, dim, dtype),
    "log_softmax": lambda dim=None, _stacklevel=3, dtype=None: _soft(nn.LogSoftmax, dim, dtype),
    "avg_pool1d": lambda kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True: nn.AvgPool1d(
        kernel_size, stride, padding, ceil_mode, count_include_pad
    ),
    "avg_pool2d": lambda *args, **options: nn.AvgPool2d(*args, **options),
    "avg_pool3d": lambda *args, **options: nn.AvgPool3d(*args, **options),
    "max_pool1d": lambda *args, **options: _max_pool(nn.MaxPool1d, *args, **options),
    "max_pool2d": lambda *args, **options: _max_pool(nn.MaxPool2d, *args, **options),
    "max_pool3d": lambda *args, **options: _max_pool(nn.MaxPool3d, *args, **options),
    "adaptive_avg_pool1d": lambda output_size: nn.AdaptiveAvgPool1d(output_size),
    "adaptive_avg_pool2d": lambda output_size: nn.AdaptiveAvgPool2d(output_size),
    "adaptive_avg_pool3d": lambda output_size: nn.AdaptiveAvgPool3d(output_size),
    "adaptive_max_pool1d": lambda output_size, return_indices=False: nn.AdaptiveMaxPool1d(
        output_size, return_indices
    ),
    "adaptive_max_pool2d": lambda output_size, return_indices=False: nn.AdaptiveMaxPool2d(
        output_size, return_indices
    ),
    "adaptive_max_pool3d": lambda output_size, return_indices=False: nn.AdaptiveMaxPool3d(
        output_size, return_indices
    ),
    "pixel_shuffle": lambda upscale_factor: nn.PixelShuffle(upscale_factor),
    "pixel_unshuffle": lambda downscale_factor: nn.PixelUnshuffle(downscale_factor),
    "channel_shuffle": lambda groups: nn.ChannelShuffle(groups),
    "unfold": lambda kernel_size, dilation=1, padding=0, stride=1: nn.Unfold(
        kernel_size, dilation, padding, stride
    ),
}


def _max_pool(
    kind: Callable[..., nn.Module],
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    """The function and the module have their arguments in different orders."""
    return kind(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


def _soft(kind: type[nn.Module], dim: Any, dtype: Any) -> nn.Module:
    require(dtype is None, "it converts to another dtype. Leave dtype out.")
    return kind(dim)


# What each function is called in torch, torch.nn.functional, operator and as a method.
_CALLS: dict[str, Callable[..., Any]] = {
    **{name: _module(build) for name, build in FUNCTIONALS.items()},
    **dict.fromkeys(("add", "__add__"), add),
    **dict.fromkeys(("sub", "subtract"), sub),
    "rsub": rsub,
    **dict.fromkeys(("mul", "multiply"), mul),
    **dict.fromkeys(("div", "divide", "truediv", "true_divide"), div),
    "pow": power,
    "floordiv": _of_sizes(operator.floordiv),
    "mod": _of_sizes(operator.mod),
    **dict.fromkeys(("neg", "negative"), neg),
    **dict.fromkeys(("abs", "absolute"), lambda make, x: make.emit(Function("abs"), _one(x))),
    "matmul": matmul,
    "linear": linear,
    **dict.fromkeys(("cat", "concat", "concatenate"), concatenate),
    "stack": stack,
    "maximum": maximum,
    "minimum": minimum,
    **dict.fromkeys(("clamp", "clip"), clamp),
    **dict.fromkeys(("view", "reshape"), view),
    **dict.fromkeys(("view_as", "reshape_as"), view_as),
    "flatten": flatten,
    "unflatten": unflatten,
    "permute": permute,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), transpose),
    **dict.fromkeys(("movedim", "moveaxis"), movedim),
    "squeeze": squeezed,
    "unsqueeze": unsqueezed,
    "expand": expand,
    "expand_as": expand_as,
    **dict.fromkeys(("contiguous", "clone", "detach"), same),
    "getattr": attribute,
    "size": size,
    "getitem": item,
    "chunk": chunk,
    "split": split,
    "narrow": narrow,
    "select": select,
    "flip": flip,
    "roll": roll,
    "mean": mean,
    "sum": total,
    "amax": amax,
    "amin": amin,
    "conv1d": _convolution(nn.Conv1d, 1),
    "conv2d": _convolution(nn.Conv2d, 2),
    "conv3d": _convolution(nn.Conv3d, 3),
    "conv_transpose1d": _transposed(nn.ConvTranspose1d, 1),
    "conv_transpose2d": _transposed(nn.ConvTranspose2d, 2),
    "conv_transpose3d": _transposed(nn.ConvTranspose3d, 3),
    "batch_norm": batch_norm,
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), dropout),
    "prelu": prelu,
    "pad": padded,
    "interpolate": interpolate,
    "normalize": normalize,
    **dict.fromkeys(("layer_norm", "group_norm", "instance_norm"), layer_norm),
}
# Functions of torch that have the name of one above, but other arguments.
_OTHERS = (torch.dropout, torch.alpha_dropout, torch.batch_norm, torch.max_pool1d, torch.threshold)
VIEWS = (_taken, _expanded)
# In place these change a shape that may be read later.
_RESHAPING = (squeezed, unsqueezed, transpose)


def _names() -> dict[Any, str]:
    """The name above of every function that has it in a library."""
    names: dict[Any, str] = {getattr: "getattr", abs: "abs"}
    for library in (operator, torch, F):
        for name in _CALLS:
            for written in (name, f"{name}_"):
                function = vars(library).get(written)
                if callable(function) and not inspect.isclass(function):
                    names.setdefault(function, name)
    return {
        function: name for function, name in names.items() if function not in _OTHERS or function is F.threshold
    }


_NAMES = _names()


def find(target: Any) -> Callable[..., Any] | None:
    """What makes the ops of a function, or of the method of that name; None for what has no proof here."""
    if isinstance(target, str):
        in_place = target.endswith("_") and not target.endswith("__")
        call = _CALLS.get(target.removesuffix("_") if in_place else target)
        return None if in_place and call in _RESHAPING else call
    return _CALLS.get(_NAMES.get(target, ""))


def copies(node: fx.Node) -> bool:
    """Whether a note gives a value in new memory, though nothing is computed."""
    return node.target in ("clone", torch.clone)


def reads_a_shape(node: fx.Node) -> bool:
    """Whether a note reads nothing but the shape of a value."""
    return node.target == "size" or (node.target is getattr and len(node.args) == 2 and node.args[1] == "shape")


def count_of_pieces(node: fx.Node) -> int | None:
    """How many pieces a note gives, if that is known without a shape."""
    target = node.target if isinstance(node.target, str) else _NAMES.get(node.target, "")
    given = (
        node.args[1] if len(node.args) > 1 else node.kwargs.get("chunks", node.kwargs.get("split_size_or_sections"))
    )
    if target == "chunk" and isinstance(given, int):
        return given
    return len(given) if target == "split" and isinstance(given, (tuple, list)) else None
