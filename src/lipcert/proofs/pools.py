"""Averages, maxima and norms over windows: which operation each pool is.

Rounding: constants up. Windows that overlap are counted, or the pool has no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from lipcert.errors import NotCertified
from lipcert.layers import shape
from lipcert.proofs.elementary import shape_after
from lipcert.proofs.geometry import pair
from lipcert.proofs.operation import Operation, Shape, relative_error
from lipcert.verified.dense import norm_bound
from lipcert.verified.rounding import U32, U64, up


def _scaled_pool(module: shape.ScaledAvgPool2d, shape_in: Shape) -> Operation:
    size = math.prod(module.kernel_size)
    factor = math.sqrt(size) / size
    exact = math.isqrt(size) ** 2 == size and math.log2(size).is_integer()
    constant = 1.0 if exact else up(factor * math.sqrt(size), 4)
    fields = {"kernel": list(module.kernel_size), "factor": factor.hex()}
    out = shape_after(module, shape_in)
    return Operation("sum_pool", out, constant, "blocks", module, relative_error(size + 2, constant), fields)


def _avg_pool(module: Any, shape_in: Shape) -> Operation:
    """A product of two maps, one per axis: windows that may overlap, each divided by its own size."""
    kernel, stride, padding = _placed(module)
    one_d = isinstance(module, nn.AvgPool1d)
    out = shape_after(module, shape_in)
    override = getattr(module, "divisor_override", None)
    if override is not None and override <= 0:
        return Operation("avg_pool", out, math.inf, "a divisor below 1", module, None, None)
    sizes = (1, shape_in[-1]) if one_d else (shape_in[-2], shape_in[-1])
    counts = (1, out[-1]) if one_d else (out[-2], out[-1])
    norms = []
    for k, s, p, size, count in zip(kernel, stride, padding, sizes, counts, strict=True):
        matrix = np.zeros((count, size))
        for index in range(count):
            start, end = index * s - p, min(index * s - p + k, size + p)
            inside = max(start, 0), min(end, size)
            if inside[0] >= inside[1]:
                continue  # a window of padding alone: 0
            divisor = 1 if override else end - start if module.count_include_pad else inside[1] - inside[0]
            matrix[index, inside[0] : inside[1]] = 1 / divisor
        norms.append(norm_bound(matrix).value)
    constant = up(math.prod(norms) / (override or 1), 8)  # entries and products are rounded: 8 units cover them
    error = relative_error(math.prod(kernel) + 2, constant)
    return Operation("avg_pool", out, constant, "windows", module, error, None)


def _max_pool(module: Any, shape_in: Shape) -> Operation:
    """Without overlap each maximum is 1-Lipschitz in its own window; with it an entry may count several times."""
    kernel, stride, padding = _placed(module)
    dilation = pair(module.dilation)
    sizes = shape_in[-2:] if len(shape_in) > 1 else (1, *shape_in)
    if isinstance(module, nn.MaxPool1d):
        dilation, sizes = (1, dilation[0]), (1, shape_in[-1])
    for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True):
        _require_pixels(size, k, s, p, d, module.ceil_mode)
    times = [math.ceil(k / (s // math.gcd(s, d))) for k, s, d in zip(kernel, stride, dilation, strict=True)]
    constant = 1.0 if math.prod(times) == 1 else up(math.sqrt(math.prod(times)), 2)
    return Operation("max_pool", shape_after(module, shape_in), constant, "windows", module, fields=None)


def _placed(module: Any) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Kernel, stride and padding on two axes; a pool along one axis has a first one of size 1."""
    stride = module.kernel_size if module.stride is None else module.stride
    kernel, steps, padding = (pair(v) for v in (module.kernel_size, stride, module.padding))
    if isinstance(module, (nn.AvgPool1d, nn.MaxPool1d)):
        return (1, kernel[0]), (1, steps[0]), (0, padding[0])
    return kernel, steps, padding


def _require_pixels(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> None:
    """Raise ``NotCertified`` if some window holds padding alone: its maximum is −∞, and torch reads beyond it."""
    reach = dilation * (kernel - 1) + 1
    count = (size + 2 * padding - reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    for index in range(count):
        start = index * stride - padding
        if not any(0 <= start + dilation * tap < size for tap in range(kernel)) and start < size:
            raise NotCertified(
                f"a window of the pool covers no pixel of an axis of {size}, so its maximum is −∞. Use less "
                "padding or dilation."
            )


def _l2_pool(module: shape.L2Pool2d, shape_in: Shape) -> Operation:
    size = math.prod(module.kernel_size)
    root = math.sqrt(math.prod(shape_in))

    def error(norms: Tensor, u: float) -> Tensor:  # squares underflow below 2⁻⁵¹¹ (2⁻⁶³)
        lost = {U64: 2.0**-500, U32: 2.0**-58}[u] * root
        return relative_error(size + 4, 1.0)(norms, u) + lost

    return Operation("l2_pool", shape_after(module, shape_in), 1.0, "norms", module, error, None)


RULES: dict[type, Callable[[Any, Shape], Operation]] = {
    nn.AvgPool1d: _avg_pool,
    nn.AvgPool2d: _avg_pool,
    nn.MaxPool1d: _max_pool,
    nn.MaxPool2d: _max_pool,
    shape.ScaledAvgPool2d: _scaled_pool,
    shape.L2Pool2d: _l2_pool,
}
