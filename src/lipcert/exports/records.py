"""Describe a frozen network by records and tensors, and rebuild it from them: no pickle, no training layer.

The records are the ``layers`` of docs/certificate.md. A file may come from anyone, so ``rebuild`` refuses whatever
``describe`` would not have written: an unknown op, a missing or additional field, a tensor of another name, shape
or dtype, a tensor that no layer uses, layers in another order than their names. It also follows the shape of an
input through the layers and refuses a network that does not fit together or that needs too much memory. All of this
happens before anything large is allocated.

Rounding: none. Tensors are stored as the proof has them. A mean is float64 there and float32 in the network, and
both are the same number.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipcert.activations import SLOPE_RESTRICTED, SlopeRestricted
from lipcert.certification.certificate import layer_record
from lipcert.frozen import (
    FrozenHouseholder,
    FrozenResidualConv2d,
    FrozenResidualLinear,
    FrozenResidualTorus,
    FrozenTorus,
    plain_conv2d,
    plain_linear,
)
from lipcert.layers.activation import Abs, GroupSort, MaxMin
from lipcert.layers.shape import (
    Center,
    Normalize,
    PadChannels,
    PadImage,
    Scale,
    ScaledAvgPool2d,
    SpaceToDepth,
    TakeChannels,
)
from lipcert.proofs.audit import Chain

Shape = tuple[int, ...]

# What a file may ask for. An image of 224×224 with 64 channels has 2^21.6 entries, its 3×3 patches 2^24.8.
MOST_LAYERS = 2**12
MOST_ENTRIES = 2**23  # of one example between two layers
MOST_PATCHES = 2**25  # entries of the patches of one example that a convolution multiplies
LARGEST_GROUP = 2**10  # channels that GroupSort sorts together
MOST_CLASSES = 2**14  # an audit has a constant for each pair of classes
LONGEST_NAME, DEEPEST_NAME = 256, 32  # characters of a name, and parts between its dots


@dataclass(frozen=True)
class Records:
    """The ``layers``, the ``tensors`` and the ``input_shape`` of a certificate."""

    layers: list[Any]
    tensors: dict[str, Tensor]
    input_shape: Shape


def describe(links: Chain) -> Records:
    """The records of a network; raises ``NotCertified`` for an operation that the format does not have."""
    tensors: dict[str, Tensor] = {}
    layers = [layer_record(name, part, tensors) for name, part in zip(links.names, links.parts, strict=True)]
    return Records(layers, tensors, links.input_shape)


def rebuild(records: Records) -> nn.Sequential:
    """The frozen network that the records describe, in evaluation mode.

    Raises:
        ValueError: if the records do not describe a network; the message names the layer.
    """
    layers, tensors, shape = records.layers, records.tensors, records.input_shape
    if not 0 < len(layers) <= MOST_LAYERS:
        raise ValueError(f"a network must have 1 to {MOST_LAYERS} layers; got {len(layers)}. Export it again.")
    network, names = nn.Sequential(), []
    for index, record in enumerate(layers):
        op = record.get("op") if isinstance(record, dict) else record
        if not isinstance(record, dict) or not isinstance(op, str) or op not in _MAKERS:
            raise ValueError(f"layer {index} must be one of {sorted(_MAKERS)}; got {show(op)}. Export it again.")
        fields = _Fields(record, tensors, shape, f"layer {index} ({op})")
        module = _MAKERS[op](fields)
        fields.end()
        _add(network, module, fields)
        shape = _shape_after(module, fields)
        names.append(fields.name)
    if len(shape) == 1 and shape[0] > MOST_CLASSES:
        raise ValueError(f"a network must have at most {MOST_CLASSES} classes; got {shape[0]}. Use fewer.")
    if [name for name, module in network.named_modules() if type(module) is not nn.Sequential] != names:
        raise ValueError(f"layers must come in the order of their names; got {show(names)}. Export it again.")
    if odd := set(network.state_dict()) ^ set(tensors):
        raise ValueError(
            f"every tensor must belong to one layer; got a difference in {show(sorted(odd))}. Export it again."
        )
    return network.eval()


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


def show(value: object) -> str:
    """A short ``repr`` for a message, whatever the size and the depth of ``value``."""
    return _SHORT.repr(value)[:100]


def _add(network: nn.Sequential, module: nn.Module, fields: _Fields) -> None:
    """Put ``module`` where its name says, inside of Sequentials only: nothing else would run it."""
    *folders, last = fields.name.split(".")
    place: nn.Module = network
    try:
        for folder in folders:
            if folder not in place._modules:
                place.add_module(folder, nn.Sequential())
            place = place.get_submodule(folder)
            if type(place) is not nn.Sequential:
                raise KeyError(folder)
        if last in place._modules:
            raise KeyError(last)
        place.add_module(last, module)
    except KeyError:  # torch raises it too, for names that a module cannot have
        raise fields.wrong("name", fields.name, "a free place in a Sequential") from None


def _shape_after(module: nn.Module, fields: _Fields) -> Shape:
    """The shape of one output, computed on the meta device of torch, where tensors have shapes but no entries."""
    blank = {name: tensor.to("meta") for name, tensor in module.state_dict().items()}
    try:
        with torch.no_grad():
            inputs = torch.empty(2, *fields.shape, device="meta")
            outputs = torch.func.functional_call(module, blank, (inputs,))
    except (RuntimeError, IndexError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(
            f"{fields.where} must accept inputs of shape {fields.shape}; got: {reason} Export the network again."
        ) from None
    fields.require_size("entries of its output", outputs.shape[1:], MOST_ENTRIES)
    return tuple(outputs.shape[1:])


class _Fields:
    """One record, from which the fields are taken one by one; ``end`` raises if some are left over."""

    def __init__(self, record: dict[str, Any], tensors: dict[str, Tensor], shape: Shape, where: str) -> None:
        self.rest, self.tensors, self.shape, self.where = dict(record), tensors, shape, where
        self.text("op")
        self.name = self.take("name", f"a name of at most {DEEPEST_NAME} parts", _is_name) or "network"
        if self.number("lipschitz") < 0:
            raise self.wrong("lipschitz", record["lipschitz"], "at least 0")

    def wrong(self, key: str, value: object, expected: str) -> ValueError:
        return ValueError(f"{self.where}: {key} must be {expected}; got {show(value)}. Export the network again.")

    def take(self, key: str, expected: str, good: Callable[[Any], bool]) -> Any:
        value = self.rest.pop(key, None)
        if not good(value):
            raise self.wrong(key, value, expected)
        return value

    def text(self, key: str) -> str:
        return str(self.take(key, "a string", lambda v: isinstance(v, str)))

    def integer(self, key: str, least: int = 1, most: int = MOST_ENTRIES) -> int:
        return int(self.take(key, f"an integer from {least} to {most}", lambda v: _is_size(v, least, most)))

    def pair(self, key: str, least: int = 1) -> tuple[int, int]:
        def good(value: Any) -> bool:
            return isinstance(value, list) and len(value) == 2 and all(_is_size(v, least) for v in value)

        high, wide = self.take(key, f"two integers from {least} to {MOST_ENTRIES}", good)
        return high, wide

    def number(self, key: str) -> float:
        text = self.text(key)
        try:
            value = float.fromhex(text)
        except (ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            raise self.wrong(key, text, "a finite number written by float.hex")
        return value

    def tensor(self, key: str, *sizes: int | None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor of that shape, where None stands for any positive size; its entries are finite."""
        # Only the layer's own tensor: otherwise many layers could each copy the same large one.
        name = self.take(key, f"{self.name}.{key}", lambda v: v == f"{self.name}.{key}")
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.wrong(key, name, "the name of a stored tensor")
        fits = tensor.ndim == len(sizes) and all(
            size > 0 and wanted in (None, size) for size, wanted in zip(tensor.shape, sizes, strict=True)
        )
        if tensor.dtype != dtype or not fits:
            shape = tuple("any" if size is None else size for size in sizes)
            raise self.wrong(key, f"{tensor.dtype} {tuple(tensor.shape)}", f"{dtype} {shape}")
        if not bool(torch.isfinite(tensor).all()):
            raise self.wrong(key, "NaN or infinity", "a tensor of finite numbers")
        return tensor

    def maybe(self, key: str, *sizes: int | None, dtype: torch.dtype = torch.float32) -> Tensor | None:
        if key in self.rest and self.rest[key] is None:
            del self.rest[key]
            return None
        return self.tensor(key, *sizes, dtype=dtype)

    def narrow(self, key: str) -> Tensor:
        """A float64 vector with one float32 number per channel, as float32."""
        wide = self.tensor(key, self.shape[0], dtype=torch.float64)
        if not torch.equal(wide.float().double(), wide):
            raise self.wrong(key, "other numbers", "a tensor of float32 numbers")
        return wide.float()

    def weights(self, key: str, size: int) -> Tensor:
        """γ, of which no entry is negative."""
        gamma = self.tensor(key, size)
        if bool((gamma < 0).any()):
            raise self.wrong(key, "a negative one", "a tensor of numbers that are at least 0")
        return gamma

    def activation(self) -> SlopeRestricted:
        known = sorted(SLOPE_RESTRICTED)
        name = self.take("activation", f"one of {known}", lambda v: isinstance(v, str) and v in SLOPE_RESTRICTED)
        return SLOPE_RESTRICTED[name]

    def require_size(self, what: str, sizes: tuple[int, ...], most: int) -> None:
        """Raise ValueError unless ``sizes`` are positive and their product is at most ``most``."""
        if min(sizes, default=1) < 1 or math.prod(sizes) > most:
            shape = "×".join(str(size) for size in sizes)
            raise ValueError(
                f"{self.where} must have from 1 to {most:,} {what}; got {shape}. Export a smaller network."
            )

    def end(self) -> None:
        if self.rest:
            raise ValueError(
                f"{self.where} must have no other fields; got {show(sorted(self.rest))}. Export the network again."
            )


def _is_size(value: object, least: int, most: int = MOST_ENTRIES) -> bool:
    return type(value) is int and least <= value <= most


def _is_name(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= LONGEST_NAME
        and value.count(".") < DEEPEST_NAME
        and value.isprintable()
    )


def _normalize(fields: _Fields) -> nn.Module:
    mean, std = fields.narrow("mean"), fields.narrow("std")
    if not bool((std > 0).all()):
        raise fields.wrong("std", "0 or a negative one", "a tensor of positive numbers")
    return Normalize(mean, std)


def _householder(fields: _Fields) -> nn.Module:
    first = fields.tensor("first", None)
    return FrozenHouseholder(first, fields.tensor("second", len(first)), 1)


def _take(fields: _Fields) -> nn.Module:
    first = fields.integer("first", least=0)
    return TakeChannels(fields.integer("count"), first)


def _sum_pool(fields: _Fields) -> nn.Module:
    kernel, factor = fields.pair("kernel"), fields.number("factor")
    size = math.prod(kernel)
    if factor != math.sqrt(size) / size:
        raise fields.wrong("factor", factor, f"1/√{size}, that of ScaledAvgPool2d")
    return ScaledAvgPool2d(kernel)


def _scale(fields: _Fields) -> nn.Module:
    factor = fields.number("factor")
    if factor == 0:
        raise fields.wrong("factor", factor, "a number other than 0")
    return Scale(factor)


def _placed(fields: _Fields, weight: Tensor) -> dict[str, Any]:
    """Stride, padding and groups of a convolution that fits its image."""
    outputs, inputs, *kernel = weight.shape
    stride, padding = fields.pair("stride"), fields.pair("padding", least=0)
    mode = fields.take("padding_mode", "zeros or circular", lambda v: v in ("zeros", "circular"))
    groups = fields.take("groups", "a divisor of the channels", lambda v: _is_size(v, 1) and outputs % v == 0)
    if len(fields.shape) != 3 or fields.shape[0] != inputs * groups:
        raise fields.wrong("weight", tuple(weight.shape), f"for inputs of shape {fields.shape}")
    # Padding beyond the image and the kernel adds nothing but work.
    if any(p > max(size, k) for p, size, k in zip(padding, fields.shape[1:], kernel, strict=True)):
        raise fields.wrong(
            "padding", padding, f"at most the image {fields.shape[1:]} or the kernel {tuple(kernel)}"
        )
    # A residual layer returns to the size of its input, so what it computes on the way is bounded here.
    padded = [size + 2 * p for size, p in zip(fields.shape[1:], padding, strict=True)]
    fields.require_size("entries of the padded image", (fields.shape[0], *padded), MOST_ENTRIES)
    # Beyond the image a stride changes nothing, but torch crashes where both multiply to more than 2³¹.
    if any(s > size for s, size in zip(stride, padded, strict=True)):
        raise fields.wrong("stride", stride, f"at most the padded image {tuple(padded)}")
    positions = tuple((size - k) // s + 1 for size, k, s in zip(padded, kernel, stride, strict=True))
    fields.require_size("entries after the convolution", (outputs, *positions), MOST_ENTRIES)
    fields.require_size("entries of its patches", (*weight.shape[1:], groups, *positions), MOST_PATCHES)
    if mode == "circular" and any(
        2 * p >= k or size % s for p, k, size, s in zip(padding, kernel, fields.shape[1:], stride, strict=True)
    ):
        raise fields.wrong("padding", padding, "at most (kernel − 1)/2, on an image that the stride divides")
    return {"stride": stride, "padding": padding, "padding_mode": mode, "groups": groups}


def _residual(fields: _Fields, *sizes: int | None) -> tuple[Any, ...]:
    weight = fields.tensor("weight", *sizes)
    hidden = len(weight)
    gamma, bias = fields.weights("gamma", hidden), fields.maybe("bias", hidden)
    witness = fields.maybe("witness", hidden, dtype=torch.float64)
    if witness is not None and not bool((witness > 0).all()):
        raise fields.wrong("witness", "0 or a negative one", "a tensor of positive numbers")
    return weight, gamma, bias, fields.activation(), witness


def _residual_conv(fields: _Fields) -> nn.Module:
    parts = _residual(fields, None, None, None, None)
    return FrozenResidualConv2d(*parts, **_placed(fields, parts[0]))


def _waves(fields: _Fields) -> tuple[Tensor, Tensor, Tensor, int]:
    """rows, columns, blocks and the number of output channels."""
    rows, columns = fields.tensor("rows", None, None), fields.tensor("columns", None, None)
    weight = fields.tensor("weight", len(rows) * len(columns) // 4, None, None)
    if any(len(part) % 2 for part in (rows, columns)) or any(size % 4 for size in weight.shape[1:]):
        raise fields.wrong("weight", tuple(weight.shape), "blocks (hw, 4n, 4m) for pairs of rows and of columns")
    return rows, columns, weight, weight.shape[1] // 4


def _torus(fields: _Fields) -> nn.Module:
    rows, columns, weight, outputs = _waves(fields)
    return FrozenTorus(rows, columns, weight, fields.maybe("bias", outputs))


def _residual_torus(fields: _Fields) -> nn.Module:
    rows, columns, weight, hidden = _waves(fields)
    gamma, bias = fields.weights("gamma", hidden), fields.maybe("bias", hidden)
    return FrozenResidualTorus(rows, columns, weight, gamma, bias, fields.activation())


def _linear(fields: _Fields) -> nn.Module:
    weight = fields.tensor("weight", None, None)
    return plain_linear(weight, fields.maybe("bias", len(weight)))


def _conv(fields: _Fields) -> nn.Module:
    weight = fields.tensor("weight", None, None, None, None)
    return plain_conv2d(weight, fields.maybe("bias", len(weight)), **_placed(fields, weight))


_MAKERS: dict[str, Callable[[_Fields], nn.Module]] = {
    "centre": lambda fields: Center(fields.narrow("mean")),
    "normalize": _normalize,
    "pad_channels": lambda fields: PadChannels(fields.integer("channels")),
    "pad_image": lambda fields: PadImage(fields.integer("multiple")),
    "space_to_depth": lambda fields: SpaceToDepth(fields.integer("block")),
    "sum_pool": _sum_pool,
    "flatten": lambda fields: nn.Flatten(),
    "relu": lambda fields: nn.ReLU(),
    "abs": lambda fields: Abs(),
    "group_sort": lambda fields: GroupSort(fields.integer("size", most=LARGEST_GROUP)),
    "max_min": lambda fields: MaxMin(),
    "householder": _householder,
    "take_channels": _take,
    "scale": _scale,
    "residual_linear": lambda fields: FrozenResidualLinear(*_residual(fields, None, None)),
    "residual_conv": _residual_conv,
    "torus": _torus,
    "residual_torus": _residual_torus,
    "linear": _linear,
    "conv": _conv,
}
