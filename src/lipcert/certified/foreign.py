"""Modules of torch.nn as ops. A module is known by its exact type; what has no proof has no entry in ``FOREIGN``.

A converter reads what the module computes with at this moment and returns the ops that do the same, one after the
other. Sizes that follow from the input's shape are filled in later (``ops.Flexible``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipcert.certified import ops
from lipcert.certified.op import Op, Shape, example_axis, require
from lipcert.certified.ops import Flexible, Function
from lipcert.errors import NotCertified
from lipcert.intact import inner_module, require_intact

Converter = Callable[[Any], list[Op]]
LEAST_THRESHOLD = 20  # of a softplus that can be frozen: it jumps by less than 2.1e-9/β, and the op does not


def flexible(make: Callable[..., Op], *settings: Any) -> Op:
    """An op whose sizes follow from the shape of its input: make(*settings, shape)."""
    return Flexible(make, settings, make in ISOMETRIES or (make is pad and settings[0] == "constant"))


def settings_of(module: nn.Module) -> SimpleNamespace:
    """A copy of the settings of a module, so that a later change of the module changes nothing here."""
    return SimpleNamespace(**{key: copy.deepcopy(v) for key, v in vars(module).items() if not key.startswith("_")})


def inner_axis(dim: int) -> int:
    """The axis of an example that is dimension ``dim`` of a batch."""
    require(dim != 0, "it must not mix the examples of a batch, got dimension 0. Channels are dimension 1.")
    return dim - 1 if dim > 0 else dim


# --- Shapes that follow from the input ---


def reshape(shape: Shape, out: Shape) -> Op:
    return ops.Rearrange(shape, tuple(range(len(shape))), out)


def flatten(start: int, end: int, shape: Shape) -> Op:
    first, last = example_axis(inner_axis(start), shape), example_axis(inner_axis(end), shape)
    require(first <= last, f"it cannot flatten from dimension {start} to dimension {end} of examples {shape}.")
    return reshape(shape, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


def unflatten(dim: Any, sizes: Sequence[int], shape: Shape) -> Op:
    axis = example_axis(inner_axis(dim), shape)
    product = math.prod(size for size in sizes if size != -1)
    filled = tuple(shape[axis] // max(product, 1) if size == -1 else int(size) for size in sizes)
    require(math.prod(filled) == shape[axis], f"{shape[axis]} entries cannot be arranged as {tuple(sizes)}.")
    return reshape(shape, (*shape[:axis], *filled, *shape[axis + 1 :]))


def space_to_depth(block: int, shape: Shape) -> Op:
    """(c, b·h + i, b·w + j) ↦ (c·b² + i·b + j, h, w)."""
    require(
        len(shape) == 3 and shape[1] % block == shape[2] % block == 0,
        f"it needs images whose sides are divisible by {block}, got shape {shape}.",
    )
    c, high, wide = shape[0], shape[1] // block, shape[2] // block
    return ops.Rearrange((c, high, block, wide, block), (0, 2, 4, 1, 3), (c * block**2, high, wide))


def depth_to_space(block: int, shape: Shape) -> Op:
    require(len(shape) == 3 and shape[0] % block**2 == 0, f"it needs {block}² channels each, got shape {shape}.")
    c, (high, wide) = shape[0] // block**2, shape[1:]
    return ops.Rearrange((c, block, block, high, wide), (0, 3, 1, 4, 2), (c, high * block, wide * block))


def shuffle(groups: int, shape: Shape) -> Op:
    require(shape[0] % groups == 0, f"{shape[0]} channels are not {groups} groups.")
    split = (groups, shape[0] // groups, *shape[1:])
    return ops.Rearrange(split, (1, 0, *range(2, len(split))), shape)


def along(axis: int, index: Sequence[int], shape: Shape, value: float = 0.0) -> Op:
    """The entries ``index`` of one axis."""
    return ops.Select(tuple(tuple(index) if a == axis else None for a in range(len(shape))), value)


def pad_channels(channels: int, dim: int, shape: Shape) -> Op:
    axis = example_axis(inner_axis(dim), shape)
    size = shape[axis]
    require(size <= channels, f"it pads to {channels} channels and cannot drop any, got inputs of shape {shape}.")
    return along(axis, [*range(size), *[-1] * (channels - size)], shape)


def take_channels(first: int, count: int, dim: int, shape: Shape) -> Op:
    axis = example_axis(inner_axis(dim), shape)
    require(first + count <= shape[axis], f"it takes channels up to {first + count}, got inputs of shape {shape}.")
    return along(axis, range(first, first + count), shape)


def pad_image(multiple: int, shape: Shape) -> Op:
    require(len(shape) == 3, f"it needs images, got inputs of shape {shape}.")
    padded = [[*range(size), *[-1] * (-size % multiple)] for size in shape[1:]]
    return ops.Select((None, *(tuple(index) if -1 in index else None for index in padded)))


def pad(mode: str, sides: Sequence[int], value: float, shape: Shape) -> Op:
    """``sides`` as in F.pad: before and after of the last axis first; negative sides crop."""
    indices: list[tuple[int, ...] | None] = [None] * len(shape)
    axes = len(shape) - (mode != "constant")  # torch copies no channels
    require(
        len(sides) <= 2 * axes,
        f"it pads {len(sides) // 2} axes, and examples of shape {shape} have {axes} that it may pad.",
    )
    for place in range(len(sides) // 2):
        axis, (before, after) = len(shape) - 1 - place, sides[2 * place : 2 * place + 2]
        size = shape[axis]
        wraps = mode != "circular" or max(before, after) <= size
        # torch crops first, and then wraps what is left
        crops = mode == "circular" and min(before, after) < 0 < max(before, after)
        require(not crops, f"circular padding must not crop the other side of an axis, got {tuple(sides)}.")
        require(
            wraps and (mode != "reflect" or max(before, after) < size), f"{mode} padding is larger than the image."
        )
        indices[axis] = tuple(_source(mode, place, size) for place in range(-before, size + after))
    return ops.Select(tuple(indices), value)


def _source(mode: str, place: int, size: int) -> int:
    """From where a padded entry is copied; −1 for a constant."""
    if mode == "circular":
        return place % size
    if mode == "replicate":
        return min(max(place, 0), size - 1)
    if mode == "reflect":
        place = abs(place)
        return place if place < size else 2 * (size - 1) - place
    return place if 0 <= place < size else -1


def upsample(module: Any, shape: Shape) -> Op:
    require(len(shape) > 1, f"it needs axes behind the channels, got inputs of shape {shape}.")
    indices: list[tuple[int, ...] | None] = [None]
    for axis, size in enumerate(shape[1:]):
        wanted = _each(module.size, len(shape) - 1)[axis] if module.size is not None else None
        factor = _each(module.scale_factor, len(shape) - 1)[axis] if wanted is None else wanted / size
        require(
            factor == int(factor) and factor >= 1,
            f"nearest up-sampling is proved for whole factors, got {factor} on inputs of shape {shape}.",
        )
        index = tuple(place // int(factor) for place in range(size * int(factor)))
        require(
            all(
                _sources(size, int(factor), module.mode, dtype) == index for dtype in (torch.float32, torch.float64)
            ),
            f"torch rounds 1/{int(factor)} and moves some pixels. Up-sample twice, by smaller factors.",
        )
        indices.append(index)
    return ops.Select(tuple(indices))


def _sources(size: int, factor: int, mode: str, dtype: torch.dtype) -> tuple[int, ...]:
    """From where torch copies when it up-samples one axis; by a factor and to a size are the same."""
    row = torch.arange(size, dtype=dtype)[None, None]
    by_size, by_factor = (
        F.interpolate(row, mode=mode, **setting).flatten().long().tolist()
        for setting in ({"size": size * factor}, {"scale_factor": float(factor)})
    )
    return tuple(by_size) if by_size == by_factor else ()


def _each(value: Any, axes: int) -> tuple[Any, ...]:
    """What torch.nn writes as one number or one for each axis."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes
    require(len(values) == axes, f"expected one number for each of {axes} axes, got {value!r}.")
    return values


def unfold(module: Any, shape: Shape) -> Op:
    """Patches by copying rows and columns; ``patches`` puts them in torch's order."""
    require(len(shape) == 3, f"it needs images, got inputs of shape {shape}.")
    indices: list[tuple[int, ...] | None] = [None]
    settings = (_each(v, 2) for v in (module.kernel_size, module.dilation, module.padding, module.stride))
    for size, k, d, p, s in zip(shape[1:], *settings, strict=True):
        count = (size + 2 * p - d * (k - 1) - 1) // s + 1
        require(count > 0, f"its kernel is larger than inputs of shape {shape}.")
        places = [i * s - p + d * tap for tap in range(k) for i in range(count)]
        indices.append(tuple(place if 0 <= place < size else -1 for place in places))
    return ops.Select(tuple(indices))


def patches(kernel: tuple[int, int], shape: Shape) -> Op:
    c, (high, wide) = shape[0], (size // k for size, k in zip(shape[1:], kernel, strict=True))
    split = (c, kernel[0], high, kernel[1], wide)
    return ops.Rearrange(split, (0, 1, 3, 2, 4), (c * math.prod(kernel), high * wide))


ISOMETRIES = (flatten, unflatten, space_to_depth, depth_to_space, shuffle, pad_channels, take_channels, pad_image)


# --- Pools ---


def _count(size: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    """The number of windows along one axis, as torch counts them."""
    require(min(k, s, d) > 0 and p >= 0, f"its windows must have positive sizes, got kernel {k} and stride {s}.")
    span = size + 2 * p - d * (k - 1) - 1
    count = -(-span // s) + 1 if ceil_mode else span // s + 1
    if ceil_mode and (count - 1) * s >= size + p:
        count -= 1  # the last window must begin in the image or in the padding before it
    require(count > 0, f"its windows of {k} are larger than an axis of {size}.")
    return count


def avg_pool(axes: int, module: Any, shape: Shape) -> Op:
    """Windows that may overlap, each divided by its own size."""
    require(len(shape) > axes, f"it needs {axes} axes behind the channels, got inputs of shape {shape}.")
    stride = module.kernel_size if module.stride is None else module.stride
    settings = (_each(v, axes) for v in (module.kernel_size, stride, module.padding))
    override = getattr(module, "divisor_override", None)
    require(override is None or override > 0, f"its divisor must be positive, got {override}.")
    leading = len(shape) - axes
    windows: list[Any] = [None] * leading
    divisors: list[Any] = [None] * leading
    for size, k, s, p in zip(shape[leading:], *settings, strict=True):
        spans, parts = [], []
        for index in range(_count(size, k, s, p, 1, module.ceil_mode)):
            start, end = index * s - p, min(index * s - p + k, size + p)
            span = max(start, 0), min(end, size)
            require(span[0] < span[1], "one of its windows covers padding alone. Use less padding.")
            spans.append(span)
            parts.append(1 if override else end - start if module.count_include_pad else span[1] - span[0])
        windows.append(tuple(spans))
        divisors.append(tuple(parts))
    if override:
        divisors[-1] = (int(override),) * len(divisors[-1])
    return ops.Pool(tuple(windows), tuple(divisors))


def _adaptive(axes: int, module: Any, shape: Shape) -> list[Any]:
    require(len(shape) > axes, f"it needs {axes} axes behind the channels, got inputs of shape {shape}.")
    sizes = shape[-axes:]
    counts = [size if n is None else n for size, n in zip(sizes, _each(module.output_size, axes), strict=True)]
    windows = [
        tuple((i * size // n, -(-(i + 1) * size // n)) for i in range(n))
        for size, n in zip(sizes, counts, strict=True)
    ]
    return [None] * (len(shape) - axes) + windows


def adaptive_avg_pool(axes: int, module: Any, shape: Shape) -> Op:
    windows = _adaptive(axes, module, shape)
    parts = [None if spans is None else tuple(b - a for a, b in spans) for spans in windows]
    return ops.Pool(tuple(windows), tuple(parts))


def adaptive_max_pool(axes: int, module: Any, shape: Shape) -> Op:
    require(not module.return_indices, "it returns indices beside the maxima.")
    windows = _adaptive(axes, module, shape)
    return ops.MaxPool(tuple(None if w is None else tuple((a, b, 1) for a, b in w) for w in windows))


def max_pool(axes: int, module: Any, shape: Shape) -> Op:
    require(len(shape) > axes, f"it needs {axes} axes behind the channels, got inputs of shape {shape}.")
    require(not module.return_indices, "it returns indices beside the maxima.")
    stride = module.kernel_size if module.stride is None else module.stride
    settings = (_each(v, axes) for v in (module.kernel_size, stride, module.padding, module.dilation))
    windows: list[Any] = [None] * (len(shape) - axes)
    for size, k, s, p, d in zip(shape[-axes:], *settings, strict=True):
        spans = []
        for index in range(_count(size, k, s, p, d, module.ceil_mode)):
            places = [
                place for place in range(index * s - p, index * s - p + d * (k - 1) + 1, d) if 0 <= place < size
            ]
            require(bool(places), f"a window covers no entry of an axis of {size}, so its maximum is −∞. Pad less.")
            spans.append((places[0], places[-1] + 1, d))
        windows.append(tuple(spans))
    return ops.MaxPool(tuple(windows))


def l2_blocks(axes: int, kernel: tuple[int, ...], stride: tuple[int, ...], shape: Shape) -> Op:
    require(len(shape) > axes, f"it needs {axes} axes behind the channels, got inputs of shape {shape}.")
    windows: list[Any] = [None] * (len(shape) - axes)
    for size, k, s in zip(shape[-axes:], kernel, stride, strict=True):
        windows.append(tuple((i * s, i * s + k, 1) for i in range(_count(size, k, s, 0, 1, False))))
    return ops.L2Pool(tuple(windows))


def _lp_pool(axes: int, module: Any) -> list[Op]:
    require(module.norm_type == 2 and not module.ceil_mode, "LPPool is proved for norm_type=2 without ceil_mode.")
    kernel = _each(module.kernel_size, axes)
    stride = kernel if module.stride is None else _each(module.stride, axes)
    return [flexible(l2_blocks, axes, kernel, stride)]


# --- Products ---


def _conv(module: Any) -> list[Op]:
    axes = module.weight.ndim - 2
    stride, dilation = _each(module.stride, axes), _each(module.dilation, axes)
    reach = [d * (k - 1) for d, k in zip(dilation, module.weight.shape[2:], strict=True)]
    if module.padding_mode != "zeros":  # torch pads by what it noted at construction
        noted = list(module._reversed_padding_repeated_twice)
        padding = [(noted[2 * i], noted[2 * i + 1]) for i in reversed(range(axes))]
    elif module.padding == "same":
        padding = [(r // 2, r - r // 2) for r in reach]
    elif module.padding == "valid":
        padding = [(0, 0)] * axes
    else:
        padding = [(p, p) for p in _each(module.padding, axes)]
    settings = (stride, tuple(padding), dilation, module.padding_mode, module.groups)
    return [ops.Conv(module.weight, module.bias, *settings)]


def _conv_transpose(module: Any) -> list[Op]:
    require(module.padding_mode == "zeros", f"padding_mode {module.padding_mode!r} has no proof here. Use zeros.")
    axes = module.weight.ndim - 2
    stride, dilation, more = (_each(v, axes) for v in (module.stride, module.dilation, module.output_padding))
    padding = tuple((p, p) for p in _each(module.padding, axes))
    settings = (stride, padding, dilation, module.groups, more)
    return [ops.OpenConvTranspose(module.weight, module.bias, *settings)]


def _batch_norm(module: Any) -> list[Op]:
    mean, variance = module.running_mean, module.running_var
    require(
        not module.training and variance is not None and mean is not None,
        "it uses the statistics of the batch. Call .eval(), with tracked statistics.",
    )
    return [ops.BatchNorm(mean, variance, module.weight, module.bias, float(module.eps))]


# --- Functions ---


def function(name: str, *attributes: str) -> Converter:
    return lambda module: [Function(name, tuple(float(getattr(module, attribute)) for attribute in attributes))]


def _not_random(convert: Converter) -> Converter:
    def converted(module: Any) -> list[Op]:
        require(not module.training, "it is random in training mode. Call .eval() first.")
        return convert(module)

    return converted


def _threshold(module: nn.Threshold) -> list[Op]:
    require(
        module.value == module.threshold,
        f"it jumps from {module.value} to {module.threshold}, so it has no Lipschitz constant.",
    )
    return [Function("maximum", (float(module.threshold),))]


def require_no_jump(module: nn.Module) -> None:
    """Raise ``NotCertified`` for a module that jumps where its op does not.

    At x = threshold/β torch's softplus jumps by log(1 + exp(−threshold))/β. From a threshold of 37 on, that is less
    than 2⁻⁵⁸·x, whatever β is: less than the rounding of a float64.
    """
    if type(module) is nn.Softplus and LEAST_THRESHOLD <= module.threshold < 37:
        raise NotCertified(
            f"torch's softplus jumps by {math.exp(-module.threshold):.2g}/beta at its threshold. Freeze the "
            "network, which stores softplus without the jump, or use threshold=40."
        )


def _softplus(module: nn.Softplus) -> list[Op]:
    require(
        module.threshold >= LEAST_THRESHOLD,
        f"it jumps where β·x exceeds its threshold {module.threshold}. Use threshold=40.",
    )
    return [Function("softplus", (float(module.beta),))]


def _gelu(module: nn.GELU) -> list[Op]:
    require(module.approximate == "none", "GELU is proved in its exact form. Use approximate='none'.")
    return [Function("gelu")]


def _softmax(kind: type[Op]) -> Converter:
    def converted(module: Any) -> list[Op]:
        require(module.dim is not None, "it must name its dimension. Pass dim=1.")
        return [kind(inner_axis(module.dim))]  # type: ignore[call-arg]

    return converted


def _upsample(module: Any) -> list[Op]:
    require(
        module.mode in ("nearest", "nearest-exact"),
        f"up-sampling is proved for mode 'nearest', got {module.mode!r}.",
    )
    return [flexible(upsample, settings_of(module))]


def _padding(mode: str) -> Converter:
    def converted(module: Any) -> list[Op]:
        value = float(getattr(module, "value", 0.0))
        require(math.isfinite(value), f"the value of padding must be finite, got {value}.")
        return [flexible(pad, mode, tuple(module.padding), value)]

    return converted


FOREIGN: dict[type, Converter] = {
    nn.Identity: function("identity"),
    **dict.fromkeys(
        (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
        _not_random(function("identity")),
    ),
    nn.ReLU: function("relu"),
    nn.ReLU6: lambda module: [Function("hardtanh", (0.0, 6.0))],
    nn.Hardtanh: function("hardtanh", "min_val", "max_val"),
    nn.LeakyReLU: function("leaky_relu", "negative_slope"),
    nn.RReLU: _not_random(lambda module: [Function("leaky_relu", ((module.lower + module.upper) / 2,))]),
    nn.PReLU: lambda module: [ops.PReLU(module.weight)],
    nn.ELU: function("elu", "alpha"),
    nn.CELU: function("celu", "alpha"),
    nn.SELU: function("selu"),
    nn.Tanh: function("tanh"),
    nn.Sigmoid: function("sigmoid"),
    nn.Softplus: _softplus,
    nn.Softsign: function("softsign"),
    nn.LogSigmoid: function("logsigmoid"),
    nn.Hardsigmoid: function("hardsigmoid"),
    nn.Hardswish: function("hardswish"),
    nn.Softshrink: function("softshrink", "lambd"),
    nn.Tanhshrink: function("tanhshrink"),
    nn.Threshold: _threshold,
    nn.GELU: _gelu,
    nn.SiLU: function("silu"),
    nn.Mish: function("mish"),
    nn.Softmax: _softmax(ops.Softmax),
    nn.LogSoftmax: _softmax(ops.LogSoftmax),
    nn.Softmax2d: lambda module: [ops.Softmax(-3)],  # of an image; with fewer axes torch takes the batch
    nn.Flatten: lambda module: [flexible(flatten, module.start_dim, module.end_dim)],
    nn.Unflatten: lambda module: [flexible(unflatten, module.dim, tuple(module.unflattened_size))],
    nn.PixelShuffle: lambda module: [flexible(depth_to_space, module.upscale_factor)],
    nn.PixelUnshuffle: lambda module: [flexible(space_to_depth, module.downscale_factor)],
    nn.ChannelShuffle: lambda module: [flexible(shuffle, module.groups)],
    nn.Upsample: _upsample,
    nn.UpsamplingNearest2d: _upsample,
    nn.Unfold: lambda module: [
        flexible(unfold, settings_of(module)),
        flexible(patches, _each(module.kernel_size, 2)),
    ],
    **dict.fromkeys(
        (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
        _padding("constant"),
    ),
    **dict.fromkeys((nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d), _padding("circular")),
    **dict.fromkeys((nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d), _padding("reflect")),
    **dict.fromkeys((nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d), _padding("replicate")),
    nn.AvgPool1d: lambda module: [flexible(avg_pool, 1, settings_of(module))],
    nn.AvgPool2d: lambda module: [flexible(avg_pool, 2, settings_of(module))],
    nn.AvgPool3d: lambda module: [flexible(avg_pool, 3, settings_of(module))],
    nn.AdaptiveAvgPool1d: lambda module: [flexible(adaptive_avg_pool, 1, settings_of(module))],
    nn.AdaptiveAvgPool2d: lambda module: [flexible(adaptive_avg_pool, 2, settings_of(module))],
    nn.AdaptiveAvgPool3d: lambda module: [flexible(adaptive_avg_pool, 3, settings_of(module))],
    nn.AdaptiveMaxPool1d: lambda module: [flexible(adaptive_max_pool, 1, settings_of(module))],
    nn.AdaptiveMaxPool2d: lambda module: [flexible(adaptive_max_pool, 2, settings_of(module))],
    nn.AdaptiveMaxPool3d: lambda module: [flexible(adaptive_max_pool, 3, settings_of(module))],
    nn.MaxPool1d: lambda module: [flexible(max_pool, 1, settings_of(module))],
    nn.MaxPool2d: lambda module: [flexible(max_pool, 2, settings_of(module))],
    nn.MaxPool3d: lambda module: [flexible(max_pool, 3, settings_of(module))],
    nn.LPPool1d: lambda module: _lp_pool(1, module),
    nn.LPPool2d: lambda module: _lp_pool(2, module),
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
    nn.SyncBatchNorm: _batch_norm,
    nn.Linear: lambda module: [ops.Linear(module.weight, module.bias)],
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.ConvTranspose1d: _conv_transpose,
    nn.ConvTranspose2d: _conv_transpose,
    nn.ConvTranspose3d: _conv_transpose,
}


# --- Modules that come in disguise: wrapped, parametrized, or as subclasses that only add methods ---

_HARMLESS = (
    "__init__",
    "__module__",
    "__qualname__",
    "__doc__",
    "__annotations__",
    "__dict__",
    "__weakref__",
    "__static_attributes__",  # of Python 3.13
    "__firstlineno__",
    "extra_repr",
)
_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


NO_NORMALIZATION = (
    "it divides by a norm of its input, so its slope is unbounded, or 1/√eps near 0. Use batch normalization, or "
    "lipcert.layers.LayerCentering, which does not divide."
)
_NORMALIZATIONS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_PRODUCTS_OF_VALUES = (nn.Bilinear, nn.GLU, nn.MultiheadAttention, nn.RNNBase, nn.TransformerEncoderLayer)


def refusal(kind: type) -> str:
    """Why modules of this type are not proved, and what to do."""
    if kind in _NORMALIZATIONS:
        return NO_NORMALIZATION
    if issubclass(kind, _PRODUCTS_OF_VALUES):
        return (
            "it multiplies values that depend on its input, whose slope is unbounded. Replace it by another layer."
        )
    if kind in (nn.ModuleList, nn.ModuleDict):
        return "it has no forward method. Pass an nn.Sequential, or the module that uses it."
    return "no rule proves a constant for this module. Replace it, or declare one with lipcert.register_rule."


def unwrapped(module: nn.Module, *, parametrized: bool) -> nn.Module:
    """The plain module that ``module`` is. ``parametrized``: whether present values may stand for a formula.

    A parametrized weight is computed again at every call, in the network's precision: a proof about the present
    numbers says nothing about a network that was converted to float64.
    """
    inner = inner_module(module)
    if inner is not None:
        return unwrapped(inner, parametrized=parametrized)
    if parametrize.is_parametrized(module):
        if not parametrized:
            raise NotCertified(
                "its weight is computed again at every call, by a parametrization. Store the present numbers: use "
                "lipcert.freeze(model), or call torch.nn.utils.parametrize.remove_parametrizations first."
            )
        return unwrapped(_present_values(module), parametrized=parametrized)
    base = inherited(type(module))
    if base is None:
        return module
    require_intact(module)
    plain = copy.copy(module)  # shares its tensors; whoever stores them clones them
    plain.__class__ = base
    return plain


def _present_values(module: nn.Module) -> nn.Module:
    """A parametrized module as one of its original type with the values of this moment.

    Not by ``remove_parametrizations``: that changes the class, which a copy shares with the module of the caller.
    """
    for part in module.modules():
        require_intact(part)
    source = copy.deepcopy(module)  # evaluating a parametrization may move its buffers
    kind = parametrize.type_before_parametrizations(source)
    plain: nn.Module = object.__new__(kind)
    plain.__dict__ = {
        key: copy.copy(value) if key in ("_parameters", "_buffers", "_modules") else value
        for key, value in source.__dict__.items()
    }
    del plain._modules["parametrizations"]
    for tensor in source.parametrizations:  # type: ignore[union-attr]
        first, again = (getattr(source, tensor).detach().clone() for _ in range(2))
        if type(again) is not Tensor or not torch.equal(first, again):
            raise NotCertified(
                f"{kind.__qualname__} must have the same plain {tensor} at every call, but its parametrization "
                "changes it. Call .eval(), or store the present one with parametrize.remove_parametrizations."
            )
        plain._parameters[tensor] = nn.Parameter(again, requires_grad=False)
    return plain


def inherited(kind: type) -> type | None:
    """The product of torch.nn that ``kind`` is a subclass of, if it adds methods at most and replaces none."""
    base = next((base for base in kind.__mro__ if base in _PRODUCTS), kind)
    own = kind.__mro__[: kind.__mro__.index(base)]
    if (*own, *base.__mro__) != kind.__mro__:  # a mixin comes after it
        return None
    added = {name: value for part in own for name, value in vars(part).items() if name not in _HARMLESS}
    methods = all(isinstance(value, FunctionType) and not name.startswith("__") for name, value in added.items())
    return base if own and methods and not any(hasattr(nn.ConvTranspose2d, name) for name in added) else None
