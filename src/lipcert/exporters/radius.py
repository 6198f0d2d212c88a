"""A frozen network whose second output is the certified radius of its answer, as a program can compute it.

The formula is that of ``certify``, with the bounds of the rounding errors of the arithmetic of the program. Where
``certify`` takes off three error terms, five are taken off here: the logits of another evaluation differ by up to
two of them, so no radius of the program is larger than that of ``certify``. Everything after the logits is computed
in float64.

A program has to keep the numbers of the formula. torch.onnx writes every Python number as float32, so numbers that
float32 does not have become entries of a tensor, ``radius_numbers``, which is compared after writing as all others.
onnxruntime leaves out a product with a number that float32 rounds to 1, and a sum with one that it rounds to 0. So
factors of the formula near 1 are moved away from it, upwards, and radii are smaller by a millionth. That is far
more than the sums that are left out: their terms are below 2⁻¹⁴⁹, and radii below 2⁻¹⁰⁰ become 0.

Rounding: radii down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lipcert.certified.certify import errors_along, norms_up
from lipcert.certified.network import INPUT, Network, Node, Proved
from lipcert.certified.op import ROUND, UNDERFLOW, g
from lipcert.errors import NotCertified
from lipcert.verified.rounding import U32, U64

Pair = tuple[int, int]
Precision = Literal["float64", "float32"]
TIMES = 5
FACTOR = 1 - 2.0**-20
LARGER = 1 + 2.0**-22  # the least factor above 1
ROUNDOFF = {"float64": U64, "float32": U32}
ARITHMETIC = {
    "float64": "IEEE 754 binary64, rounded to nearest, with subnormal numbers",
    "float32": "IEEE 754 binary32, rounded to nearest, with subnormal numbers; binary64 after the logits",
}
SUMS = "sums in any order, fused or not; no TF32, no Winograd, no FFT, no Strassen"
TAKE_TENSORS = ("add", "sub", "mul", "div", "le", "ge", "lt", "gt", "where", "minimum", "maximum")


def dtype_of(name: str) -> torch.dtype:
    return torch.float64 if name == "float64" else torch.float32


class WithRadius(Network):
    """(logits, radius) of a proved network; its tensors have the names that they have in the network."""

    def __init__(self, proved: Proved, precision: Precision) -> None:
        if precision == "float64" and proved.assumes:
            raise NotCertified(
                f"a radius in float64 cannot be written for this network, because {proved.assumes[0]} is assumed "
                "and runtimes may use float32 numbers in such functions. Write it in float32."
            )
        places = [
            [INPUT if place < 0 else proved.parts[place].name for place in part.inputs] for part in proved.parts
        ]
        super().__init__(
            Node(part.name, part.step, tuple(names)) for part, names in zip(proved.parts, places, strict=True)
        )
        self._proved, self._u, self._exact = proved, ROUNDOFF[precision], precision == "float64"
        constants = proved.distances * (proved.backbone * ROUND)
        if proved.joint_pairs is not None:
            constants = torch.minimum(constants, proved.joint_pairs)
        # Buffers, so that the file names every number that is no part of the graph itself.
        self.register_buffer("radius_constants", constants.clamp_min(2.0**-1000).contiguous())
        self.register_buffer("radius_distances", proved.distances.clone())
        if proved.head is not None:
            self.register_buffer("radius_rows", proved.head.norms.clone())
            self.register_buffer("radius_biases", proved.head.bias.abs())
        self._numbers: dict[float, int] = {}
        self.register_buffer("radius_numbers", None)
        with torch.no_grad():
            self(torch.zeros(1, *proved.input_shape, dtype=dtype_of(precision)))
        self.register_buffer("radius_numbers", torch.tensor([*self._numbers, 0.0], dtype=torch.float64))

    def extra_tensors(self) -> dict[str, Tensor]:
        """Those that the network itself does not have."""
        return {name: value for name, value in self.state_dict().items() if name.startswith("radius_")}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        with _Precise(self._number):
            values = self._values(x)
        with _Precise(self._number, factors=True):
            parts = self._proved.parts
            sizes = [norms_up(values[index], part.proof.norm) for index, part in enumerate(parts[:-1])]
            logits = values[len(parts) - 1]
            return logits, self._radius(logits.double(), [*sizes, norms_up(x, self._proved.norm)], x)

    def _number(self, value: float) -> Tensor:
        """A number as a tensor: an entry of the buffer, which is filled when the network is built."""
        stored = self._buffers["radius_numbers"]
        if stored is None:
            self._numbers.setdefault(value, len(self._numbers))
            return torch.tensor(value, dtype=torch.float64)
        return stored[self._numbers[value]]

    def _values(self, x: Tensor) -> dict[int, Tensor]:
        """What every part computes."""
        values: dict[int, Tensor] = {-1: x}
        for index, part in enumerate(self._proved.parts):
            inputs = [values[place] for place in part.inputs]
            # A convolution of float64 numbers is no operator of every runtime: it becomes a product of matrices.
            values[index] = part.forward(*inputs) if self._exact else part.step(*inputs)
        return values

    def _radius(self, logits: Tensor, sizes: list[Tensor], x: Tensor) -> Tensor:
        margins, constants, chosen = self._rivals(logits)
        ball = (margins / constants).amin(dim=1) * ROUND
        ball = torch.where(torch.isfinite(ball), ball, 0.0)
        err, norms = errors_along(self._proved, sizes, ball, self._u)
        terms = self._terms(err, norms, chosen)
        radius = ((margins * FACTOR - TIMES * terms) * FACTOR / constants).amin(dim=1)
        finite = torch.isfinite(logits).all(dim=1) & torch.isfinite(x).flatten(1).all(dim=1)
        radius = torch.where(finite & torch.isfinite(radius) & (radius > 2.0**-100), radius, 0.0)
        radius = torch.where(radius > 2.0**100, 2.0**100, radius)
        return radius if self._exact else (radius * FACTOR).float()

    def _rivals(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """f_y − f_j and its constants, (N, C), with ∞ and 1 at j = y; and y."""
        constants = self.get_buffer("radius_constants")
        if logits.shape[1] == 1:
            return logits.abs(), constants.expand(logits.shape[0], 1), (logits[:, 0] > 0).long()
        chosen = logits.argmax(dim=1)
        own = chosen[:, None] == torch.arange(logits.shape[1])
        margins = logits.amax(dim=1, keepdim=True) - logits
        return torch.where(own, torch.inf, margins), torch.where(own, 1.0, constants[chosen]), chosen

    def _terms(self, err: Tensor, norms: Tensor, chosen: Tensor) -> Tensor:
        """E_yj of all j, as ``certify`` has them; infinite where a number is too large for the bound."""
        proved, distances = self._proved, self.get_buffer("radius_distances")
        each = torch.zeros_like(norms)[:, None].expand(norms.shape[0], len(distances))
        if proved.head is not None:
            known = torch.isfinite(proved.parts[-1].proof.error_bound(norms, self._u))[:, None]
            size = self.get_buffer("radius_rows") * norms[:, None] + self.get_buffer("radius_biases")
            lost = g(proved.head.weight.shape[1] + 1, self._u) * size * ROUND + UNDERFLOW[self._u]
            each = torch.where(known, lost, torch.inf)
        if len(distances) == 1:
            return (distances[0] * err[:, None] + each) * ROUND
        return (distances[chosen] * err[:, None] + each.gather(1, chosen[:, None]) + each) * ROUND


class _Precise(TorchFunctionMode):
    """Write numbers that float32 does not have as tensors, and operators that lack float64 by others."""

    def __init__(self, number: Callable[[float], Tensor], *, factors: bool = False) -> None:
        super().__init__()
        self.number = number
        self.factors = factors  # whether numbers bound errors, so that larger ones are as good

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        wide = any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in args)
        if not wide:
            return func(*args, **kwargs)
        if func is F.fold:
            return _fold(*args, **kwargs)
        if func is F.avg_pool2d:
            return _average(*args, **kwargs)
        if self.factors:
            args = tuple(map(_away_from_1, args))
        if any(_is_lost(value) for value in [*args, *kwargs.values()]):
            name = func.__name__.strip("_")
            if name.removeprefix("r").replace("truediv", "div") not in TAKE_TENSORS:
                raise NotCertified(f"a program cannot keep the numbers of {name} in float64. Write it in float32.")
            args = tuple(self.number(value) if _is_lost(value) else value for value in args)
            kwargs = {key: self.number(value) if _is_lost(value) else value for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _away_from_1(value: Any) -> Any:
    """1 itself or a factor that float32 does not round to 1, for one near 1; it is not smaller."""
    if not isinstance(value, float) or not 2 - LARGER < value < LARGER:
        return value
    return LARGER if value > 1 else 1.0


def _is_lost(value: object) -> bool:
    """Whether float32 lacks this number."""
    return isinstance(value, float) and value == value and float(torch.tensor(value, dtype=torch.float32)) != value


def _fold(
    input: Tensor, output_size: Pair, kernel_size: Pair, dilation: Pair, padding: int, stride: Pair
) -> Tensor:
    """``F.fold`` without padding: sums of shifted images, with zeros between the pixels where there is a stride."""
    columns, taps, (high, wide), (d1, d2), (s1, s2) = input, kernel_size, output_size, dilation, stride
    rows, cols = (high - d1 * (taps[0] - 1) - 1) // s1 + 1, (wide - d2 * (taps[1] - 1) - 1) // s2 + 1
    images = columns.unflatten(2, (rows, cols)).unflatten(1, (-1, *taps))
    total: Tensor | None = None
    for i in range(taps[0]):
        for j in range(taps[1]):
            image = images[:, :, i, j]
            if s1 > 1 or s2 > 1:
                image = F.pad(image[..., None, :, None], (0, s2 - 1, 0, 0, 0, s1 - 1)).flatten(-2).flatten(2, 3)
                image = image[:, :, : s1 * (rows - 1) + 1, : s2 * (cols - 1) + 1]
            left, top = d2 * j, d1 * i
            image = F.pad(image, (left, wide - left - image.shape[3], top, high - top - image.shape[2]))
            total = image if total is None else total + image
    assert total is not None
    return total


def _average(x: Tensor, window: Pair) -> Tensor:
    """``F.avg_pool2d`` of windows that do not overlap."""
    high, wide = x.shape[-2] // window[0], x.shape[-1] // window[1]
    x = x[..., : high * window[0], : wide * window[1]]
    return x.unflatten(-1, (wide, window[1])).unflatten(-3, (high, window[0])).sum(dim=(-3, -1)) / (
        window[0] * window[1]
    )
