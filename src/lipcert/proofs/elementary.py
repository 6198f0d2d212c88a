"""Steps that move, clamp, shift or scale single entries: which operation each module is.

Rounding: constants up. What mixes the examples of a batch has no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipcert import frozen
from lipcert.errors import NotCertified
from lipcert.layers import activation, shape
from lipcert.proofs import operation as op
from lipcert.proofs.operation import Operation, Shape, relative_error
from lipcert.verified.rounding import down, exponents, ldexp_up, scaled, up


@torch.no_grad()
def shape_after(module: nn.Module, shape_in: Shape) -> Shape:
    like = next((t for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()), torch.zeros(()))
    out = module(torch.zeros(2, *shape_in, dtype=like.dtype, device=like.device))
    if not isinstance(out, Tensor) or out.ndim == 0 or len(out) != 2:
        raise NotCertified("it must map each example to a tensor of its own; got something else. Keep the batch.")
    return tuple(out.shape[1:])


def _exact(name: str, **fields: str) -> Callable[[Any, Shape], Operation]:
    """A move or a selection of entries: constant 1, no rounding; ``fields`` maps certificate to attribute."""

    def made(module: Any, shape_in: Shape) -> Operation:
        stored = {key: getattr(module, attribute) for key, attribute in fields.items()}
        return Operation(name, shape_after(module, shape_in), 1.0, "exact", module, fields=stored)

    return made


def _elementwise(name: str) -> Callable[[Any, Shape], Operation]:
    """A permutation or a clamp: constant 1 and exact, but no operation of the certificate."""
    return lambda module, shape_in: Operation(
        name, shape_after(module, shape_in), 1.0, "exact", module, fields=None
    )


def _flatten(module: nn.Flatten, shape_in: Shape) -> Operation:
    plain = module.start_dim == 1 and module.end_dim in (-1, len(shape_in))
    return Operation("flatten", shape_after(module, shape_in), 1.0, "exact", module, fields={} if plain else None)


def _unflatten(module: nn.Unflatten, shape_in: Shape) -> Operation:
    _require_own_batch(module.dim, shape_in)
    return Operation("unflatten", shape_after(module, shape_in), 1.0, "exact", module, fields=None)


def _identity(module: nn.Module, shape_in: Shape) -> Operation:
    if module.training and not isinstance(module, nn.Identity):
        raise NotCertified("it is random in training mode. Call .eval() first.")
    return Operation("identity", shape_in, 1.0, "exact", nn.Identity(), fields=None)


def _smooth(name: str, slope: Callable[[Any], float], ulps: int) -> Callable[[Any, Shape], Operation]:
    """A scalar function with |σ(x)| ≤ slope·|x| + |σ(0)|, computed within ``ulps`` units of its value."""

    def made(module: Any, shape_in: Shape) -> Operation:
        constant = slope(module)
        if not math.isfinite(constant):
            return Operation(name, shape_in, math.inf, "its slope is not finite", module, None, None)
        assumes = (f"{name} within {ulps} ulp",) if ulps > 1 else ()
        start = float(module(torch.zeros(1, dtype=torch.float64)).abs()) * math.sqrt(math.prod(shape_in)) * op.ROUND
        error = relative_error(2 * ulps + 1, 1.0, 0.0)

        def bound(norms: Tensor, u: float) -> Tensor:
            return error(constant * norms + start, u)

        big = max(1.0, constant)
        return Operation(name, shape_in, constant, "slope", module, bound, None, largest=big, assumes=assumes)

    return made


def _at_least_1(slope: float) -> float:
    size = abs(float(slope))
    return 1.0 if size <= 1 else size  # NaN stays NaN


def _centre(module: shape.Center, shape_in: Shape) -> Operation:
    op.require_one_each(shape_in[0], mean=module.mean)
    error = relative_error(2, 1.0, op.bias_norm(module.mean, None, math.prod(shape_in[1:])))
    fields = {"mean": module.mean}
    return Operation("centre", shape_in, 1.0, "exact", module, error, fields, largest=op.largest(module.mean))


def _normalize(module: shape.Normalize, shape_in: Shape) -> Operation:
    op.require_one_each(shape_in[0], mean=module.mean, std=module.std)
    smallest = float(module.std.double().min())
    constant = up(1 / smallest, 1) if smallest > 0 else math.inf
    error = relative_error(2, constant, op.bias_norm(module.mean, None, math.prod(shape_in[1:])))
    fields = {"mean": module.mean, "std": module.std}
    biggest = max(op.largest(module.mean, module.std), constant)
    return Operation("normalize", shape_in, constant, "1/min std", module, error, fields, largest=biggest)


def _batch_norm(module: Any, shape_in: Shape) -> Operation:
    """In evaluation mode x ↦ (x − μ)·w/√(v + ε) + b, per channel: its constant is the largest factor.

    Factors are bounded by their mantissas and exponents, so that none overflows or underflows. Rounding has a bound
    only while everything computed on the way stays within range: ``largest`` holds each v + ε and each factor
    together with its reciprocal, and the entries of the tensors.
    """
    mean, variance = module.running_mean, module.running_var
    if module.training or variance is None or mean is None:
        raise NotCertified("it uses the statistics of the batch. Call .eval(), with tracked statistics.")
    if not bool((variance >= 0).all()) or not 0 <= module.eps < math.inf:
        return Operation("batch_norm", shape_in, math.inf, "a negative variance or ε", module, None, None)
    weight = torch.ones_like(variance) if module.weight is None else module.weight
    bias = torch.zeros_like(variance) if module.bias is None else module.bias
    op.require_one_each(shape_in[0], running_mean=mean, running_var=variance, weight=weight, bias=bias)
    w, v = (np.abs(op.array(tensor).astype(np.float64)) for tensor in (weight, variance))
    with np.errstate(all="ignore"):
        sums = v + module.eps
    if not bool((sums > 0).all()):
        return Operation("batch_norm", shape_in, math.inf, "v + ε is 0", module, None, None)
    factors = _factors_up(w, v, module.eps)
    constant = float(factors.max(initial=0.0))
    if not math.isfinite(constant):
        return Operation("batch_norm", shape_in, math.inf, "a factor is beyond float64", module, None, None)
    with np.errstate(all="ignore"):
        inside = np.concatenate([sums, factors[w > 0]])
        widest = float(np.maximum(inside, 1 / inside).max())
    positions = math.prod(shape_in[1:])
    shift = factors * np.abs(op.array(mean).astype(np.float64))
    offset = op.bias_norm(torch.from_numpy(np.abs(op.array(bias).astype(np.float64)) + 2 * shift), None, positions)

    def error(norms: Tensor, u: float) -> Tensor:
        return relative_error(12, 1.0)(constant * norms + 2 * offset, u)

    big = max(widest, op.largest(mean, variance, weight, bias))
    return Operation("batch_norm", shape_in, constant, "largest factor", module, error, None, largest=big)


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
    found = ldexp_up(up(scaled(w, tops) / roots, 3), tops - powers // 2 + shift // 2)
    return np.where(w == 0, 0.0, found)


def _scale(module: shape.Scale, shape_in: Shape) -> Operation:
    factor = abs(module.factor)
    fields = {"factor": float(module.factor).hex()} if 2.0**-100 <= factor <= 2.0**100 else None
    return Operation("scale", shape_in, factor, "exact", module, relative_error(1, factor), fields, largest=factor)


def _group_sort(module: Any, shape_in: Shape) -> Operation:
    _require_own_batch(module.dim, shape_in)
    name, fields = (
        ("max_min", {}) if isinstance(module, activation.MaxMin) else ("group_sort", {"size": module.group_size})
    )
    kept = fields if _channels(module.dim, shape_in) else None
    return Operation(name, shape_in, 1.0, "exact", module, fields=kept)


def _householder(module: frozen.FrozenHouseholder, shape_in: Shape) -> Operation:
    _require_own_batch(module.dim, shape_in)
    if len(module.first) != len(module.second) or shape_after(module, shape_in) != shape_in:
        raise NotCertified("it must have one vector for each pair of channels; got others. Build it for them.")
    squares = module.first.double().square() + module.second.double().square()
    rho = up(float(squares.max()), 4)
    error = op.residual_error(rho, math.sqrt(rho) * op.ROUND, 0.0, (2, 2))  # κ = ‖|v|‖ = √ρ
    constant = max(1.0, math.nextafter(2 * rho - 1, math.inf))
    big, fields = op.largest(module.first, module.second), None
    stored = {"first": module.first.float(), "second": module.second.float()}
    exact = all(torch.equal(half.double(), getattr(module, name).double()) for name, half in stored.items())
    if exact and _channels(module.dim, shape_in):
        fields = stored
    return Operation("householder", shape_in, constant, "vectors", module, error, fields, claim=1.0, largest=big)


def _pad(module: shape.PadChannels, shape_in: Shape) -> Operation:
    _require_own_batch(module.dim, shape_in)
    fields = {"channels": module.channels} if _channels(module.dim, shape_in) else None
    return Operation("pad_channels", shape_after(module, shape_in), 1.0, "exact", module, fields=fields)


def _take(module: shape.TakeChannels, shape_in: Shape) -> Operation:
    _require_own_batch(module.dim, shape_in)
    fields = {"first": module.first, "count": module.count} if _channels(module.dim, shape_in) else None
    return Operation("take_channels", shape_after(module, shape_in), 1.0, "exact", module, fields=fields)


def _channels(dim: int, shape_in: Shape) -> bool:
    """Whether ``dim`` is the first axis of an example, as the certificate has it."""
    return dim in (1, -len(shape_in))


def _require_own_batch(dim: int | str, shape_in: Shape) -> None:
    if dim in (0, -1 - len(shape_in)):
        raise NotCertified(f"it must not mix the examples of a batch; got dim={dim}. Channels are dimension 1.")


RULES: dict[type, Callable[[Any, Shape], Operation]] = {
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.Dropout1d: _identity,
    nn.Dropout2d: _identity,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.ReLU: _exact("relu"),
    nn.ReLU6: _elementwise("relu6"),
    nn.PixelShuffle: _elementwise("pixel_shuffle"),
    nn.PixelUnshuffle: _elementwise("pixel_unshuffle"),
    nn.LeakyReLU: _smooth("leaky_relu", lambda m: _at_least_1(m.negative_slope), 1),
    nn.ELU: _smooth("elu", lambda m: _at_least_1(m.alpha), 8),
    nn.Tanh: _smooth("tanh", lambda m: 1.0, 8),
    nn.Sigmoid: _smooth("sigmoid", lambda m: 0.25, 8),
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    shape.PadChannels: _pad,
    shape.TakeChannels: _take,
    shape.PadImage: _exact("pad_image", multiple="multiple"),
    shape.SpaceToDepth: _exact("space_to_depth", block="block"),
    shape.Center: _centre,
    shape.Normalize: _normalize,
    shape.Scale: _scale,
    activation.MaxMin: _group_sort,
    activation.GroupSort: _group_sort,
    activation.Abs: _exact("abs"),
    frozen.FrozenHouseholder: _householder,
}
