"""A frozen network as records and tensors, and the same network from them: no pickle, no training layer.

The records are the ``layers`` of docs/certificate.md. What is not exactly such a record is refused: another op, a
missing or spare field, a tensor of another shape or dtype, one that no layer uses, layers in another order than
their names run in.

Rounding: none. Tensors are stored as the proof has them; a mean is float64 there, float32 in the network, and the
same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipcert.activations import SLOPE_RESTRICTED
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
    Centre,
    Normalize,
    PadChannels,
    PadImage,
    Scale,
    ScaledAvgPool2d,
    SpaceToDepth,
    TakeChannels,
)
from lipcert.proofs.audit import Chain


@dataclass(frozen=True)
class Records:
    """``layers`` and ``tensors`` of a certificate."""

    layers: list[dict[str, Any]]
    tensors: dict[str, Tensor]


def describe(links: Chain) -> Records:
    """The records of a network; ``NotCertified`` names an operation that the format does not have."""
    tensors: dict[str, Tensor] = {}
    layers = [layer_record(name, part, tensors) for name, part in zip(links.names, links.parts, strict=True)]
    return Records(layers, tensors)


def rebuild(layers: list[Any], tensors: dict[str, Tensor]) -> nn.Sequential:
    """The frozen network that the records describe, in evaluation mode.

    Raises:
        ValueError: where they do not describe one, naming the layer.
    """
    network, names = nn.Sequential(), []
    for index, record in enumerate(layers):
        if not isinstance(record, dict) or record.get("op") not in _MAKERS:
            found = record.get("op") if isinstance(record, dict) else record
            raise ValueError(f"layer {index} must be one of {sorted(_MAKERS)}; got {found!r:.60}. Export again.")
        fields = _Fields(record, tensors, f"layer {index} ({record['op']})")
        fields.number("lipschitz")
        name = fields.text("name") or "network"
        module = _MAKERS[fields.text("op")](fields)
        fields.end()
        _add(network, name, module, fields)
        names.append(name)
    if [n for n, m in network.named_modules() if not isinstance(m, nn.Sequential)] != names:
        raise ValueError(f"layers must come in the order of their names; got {names}. Export again.")
    if set(network.state_dict()) != set(tensors):
        odd = sorted(set(network.state_dict()) ^ set(tensors))
        raise ValueError(
            f"tensors must be those of the layers, by name; got a difference in {odd[:3]}. Export again."
        )
    return network.eval()


def _add(network: nn.Sequential, name: str, module: nn.Module, fields: _Fields) -> None:
    *folders, last = name.split(".")
    place: nn.Module = network
    try:
        for folder in folders:
            if folder not in place._modules:
                place.add_module(folder, nn.Sequential())
            place = place.get_submodule(folder)
        if type(place) is not nn.Sequential or last in place._modules:
            raise KeyError(name)
        place.add_module(last, module)
    except KeyError:  # also torch's word for a name that a module may not have
        raise fields.wrong("name", name, "a free place in a Sequential") from None


class _Fields:
    """One record, taken apart field by field; what is left over is an error."""

    def __init__(self, record: dict[str, Any], tensors: dict[str, Tensor], where: str) -> None:
        self.rest, self.tensors, self.where = dict(record), tensors, where

    def wrong(self, key: str, value: object, expected: str) -> ValueError:
        return ValueError(f"{self.where}: {key} must be {expected}; got {value!r:.60}. Export again.")

    def take(self, key: str, expected: str, good: Callable[[Any], bool]) -> Any:
        value = self.rest.pop(key, None)
        if not good(value):
            raise self.wrong(key, value, expected)
        return value

    def text(self, key: str) -> str:
        return str(self.take(key, "a string", lambda v: isinstance(v, str)))

    def integer(self, key: str) -> int:
        return int(self.take(key, "a positive integer", lambda v: type(v) is int and v > 0))

    def pair(self, key: str, least: int = 1) -> tuple[int, int]:
        def good(value: Any) -> bool:
            return isinstance(value, list) and len(value) == 2 and all(type(v) is int and v >= least for v in value)

        high, wide = self.take(key, f"two integers of at least {least}", good)
        return high, wide

    def number(self, key: str) -> float:
        try:
            value = float.fromhex(self.text(key))
        except (ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            raise self.wrong(key, value, "a finite number written by float.hex")
        return value

    def tensor(self, key: str, *sizes: int | None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor of that shape, where None is any positive size."""
        name = self.text(key)
        found = self.tensors.get(name)
        if found is None:
            raise self.wrong(key, name, "the name of a stored tensor")
        fits = found.ndim == len(sizes) and all(
            n > 0 and s in (None, n) for n, s in zip(found.shape, sizes, strict=True)
        )
        if found.dtype != dtype or not fits:
            shape = tuple("any" if size is None else size for size in sizes)
            raise self.wrong(key, f"{found.dtype} {tuple(found.shape)}", f"{dtype} {shape}")
        return found

    def maybe(self, key: str, *sizes: int | None, dtype: torch.dtype = torch.float32) -> Tensor | None:
        if key in self.rest and self.rest[key] is None:
            del self.rest[key]
            return None
        return self.tensor(key, *sizes, dtype=dtype)

    def narrow(self, key: str, size: int | None = None) -> Tensor:
        """A float64 vector of float32 numbers, as such."""
        wide = self.tensor(key, size, dtype=torch.float64)
        if not torch.equal(wide.float().double(), wide):
            raise self.wrong(key, "others", "numbers of float32")
        return wide.float()

    def end(self) -> None:
        if self.rest:
            raise ValueError(f"{self.where}: got unknown fields {sorted(self.rest)}. Export again.")


def _normalize(fields: _Fields) -> nn.Module:
    mean = fields.narrow("mean")
    return Normalize(mean, fields.narrow("std", len(mean)))


def _householder(fields: _Fields) -> nn.Module:
    first = fields.tensor("first", None)
    return FrozenHouseholder(first, fields.tensor("second", len(first)), 1)


def _take(fields: _Fields) -> nn.Module:
    first = fields.take("first", "an integer of at least 0", lambda v: type(v) is int and v >= 0)
    return TakeChannels(fields.integer("count"), first)


def _sum_pool(fields: _Fields) -> nn.Module:
    kernel, factor = fields.pair("kernel"), fields.number("factor")
    size = math.prod(kernel)
    if factor != math.sqrt(size) / size:
        raise fields.wrong("factor", factor, f"1/√{size}, that of ScaledAvgPool2d")
    return ScaledAvgPool2d(kernel)


def _placed(fields: _Fields, outputs: int) -> dict[str, Any]:
    placed: dict[str, Any] = {"stride": fields.pair("stride"), "padding": fields.pair("padding", least=0)}
    placed["padding_mode"] = fields.take("padding_mode", "zeros or circular", lambda v: v in ("zeros", "circular"))
    placed["groups"] = fields.take(
        "groups", "a divisor of the channels", lambda v: type(v) is int and v > 0 and outputs % v == 0
    )
    return placed


def _residual(fields: _Fields, *sizes: int | None) -> tuple[Any, ...]:
    weight = fields.tensor("weight", *sizes)
    hidden = len(weight)
    gamma, bias = fields.tensor("gamma", hidden), fields.maybe("bias", hidden)
    witness = fields.maybe("witness", hidden, dtype=torch.float64)
    fields.take("activation", "relu", lambda v: v == "relu")
    return weight, gamma, bias, SLOPE_RESTRICTED["relu"], witness


def _residual_conv(fields: _Fields) -> nn.Module:
    parts = _residual(fields, None, None, None, None)
    return FrozenResidualConv2d(*parts, **_placed(fields, len(parts[0])))


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
    gamma, bias = fields.tensor("gamma", hidden), fields.maybe("bias", hidden)
    fields.take("activation", "relu", lambda v: v == "relu")
    return FrozenResidualTorus(rows, columns, weight, gamma, bias, SLOPE_RESTRICTED["relu"])


def _linear(fields: _Fields) -> nn.Module:
    weight = fields.tensor("weight", None, None)
    return plain_linear(weight, fields.maybe("bias", len(weight)))


def _conv(fields: _Fields) -> nn.Module:
    weight = fields.tensor("weight", None, None, None, None)
    return plain_conv2d(weight, fields.maybe("bias", len(weight)), **_placed(fields, len(weight)))


_MAKERS: dict[str, Callable[[_Fields], nn.Module]] = {
    "centre": lambda fields: Centre(fields.narrow("mean")),
    "normalize": _normalize,
    "pad_channels": lambda fields: PadChannels(fields.integer("channels")),
    "pad_image": lambda fields: PadImage(fields.integer("multiple")),
    "space_to_depth": lambda fields: SpaceToDepth(fields.integer("block")),
    "sum_pool": _sum_pool,
    "flatten": lambda fields: nn.Flatten(),
    "relu": lambda fields: nn.ReLU(),
    "abs": lambda fields: Abs(),
    "group_sort": lambda fields: GroupSort(fields.integer("size")),
    "max_min": lambda fields: MaxMin(),
    "householder": _householder,
    "take_channels": _take,
    "scale": lambda fields: Scale(fields.number("factor")),
    "residual_linear": lambda fields: FrozenResidualLinear(*_residual(fields, None, None)),
    "residual_conv": _residual_conv,
    "torus": _torus,
    "residual_torus": _residual_torus,
    "linear": _linear,
    "conv": _conv,
}
