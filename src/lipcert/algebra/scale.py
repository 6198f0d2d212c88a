"""Scales and reciprocals at which nothing overflows and no gradient is NaN (Theorem 6).

A layer is the same function of W = s·Ŵ for every s > 0: T = s²·T̂ and WT⁻¹σ(·) = ŴT̂⁻¹σ(·)/s. So the
Gram of Ŵ, with a largest entry near 1, serves weights of any size. A column so small that T̂_i would
leave the range in which 1/T̂ and its gradient are finite is dead: Γ_i = 0, which Theorem 6 allows.

Rounding: Γ = 1/T is rounded to nearest; declaring a neuron dead only makes Γ smaller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd import forward_ad

_narrow: torch.dtype | None = None  # of the autocast that ``no_autocast`` has switched off
_runs_in: torch.dtype | None = None  # the dtype whose smallest number decides, if another than that of the tensor


@contextlib.contextmanager
def dead_as_in(dtype: torch.dtype) -> Iterator[None]:
    """Inside, what counts as zero is what counts as zero in ``dtype``, whatever the precision of the computation.

    ``freeze`` computes T in float64 for a layer that runs in float32: both must drop the same neurons.
    """
    global _runs_in
    before, _runs_in = _runs_in, dtype if dtype in (torch.float32, torch.float64) else torch.float32
    try:
        yield
    finally:
        _runs_in = before


def tiny(dtype: torch.dtype) -> float:
    """The smallest normal number of ``dtype``, or of the dtype that ``dead_as_in`` names."""
    return float(torch.finfo(_runs_in or dtype).tiny)


def normalize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(Ŵ, s) with W = s·Ŵ in float32 or better, s a power of two and max|Ŵ| in [1, 2).

    No gradient flows through s: the layer does not depend on it. A weight with no entry above tiny^¼
    (3e-10 in float32) counts as zero, since gradients of size 1/s² would overflow.
    """
    weight = at_least_float32(weight)
    least, most = weight.detach().aminmax()
    largest = torch.maximum(-least, most)
    living = largest > tiny(weight.dtype) ** 0.25
    exponent = torch.frexp(torch.where(living, largest, 1.0)).exponent - 1
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    return torch.where(living, weight, 0.0) / scale, scale


def normalize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``normalize`` for a matrix whose rows are the columns of W; one of ordinary size is taken as it is, s = 1.

    That saves two passes over it. Ordinary: the longest row in [2⁻⁸, 2⁸), none so short that it might be dead at
    either scale. Only where looking at a number costs little: on a CPU, where there is a number to look at.
    """
    weight = at_least_float32(weight)
    if weight.device.type == "cpu" and type(weight.detach()) is Tensor and not transformed(weight):
        least, most = (float(x) for x in torch.linalg.vector_norm(weight.detach(), dim=1).aminmax())
        if 2.0**-8 <= most < 2.0**8 and least**2 > 2.0**32 * dead_below(weight.dtype):
            return weight, torch.ones((), dtype=weight.dtype)
    return normalize(weight)


def transformed(*tensors: Tensor) -> bool:
    """Whether a compiler, a tracer, ``torch.func`` or a forward derivative is at work: they want plain formulas."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None  # vmap over inputs wraps no weight
        or any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors)
    )


def dead_below(dtype: torch.dtype) -> float:
    """T̂_i at or below tiny^⅜ (7e-15 relative in float32): then 1/T̂² stays finite, with room to spare."""
    return tiny(dtype) ** 0.375


def alive(t: Tensor) -> Tensor:
    """Which neurons have a T that is finite and not too small to be inverted."""
    return (t > dead_below(t.dtype)) & torch.isfinite(t)


def inverse(t: Tensor) -> Tensor:
    """Γ = T⁻¹, zero for dead neurons, with finite gradients (masked before the division, not after)."""
    living = alive(t)
    return torch.where(living, torch.where(living, t, 1.0).reciprocal(), 0.0)


def inverse_sqrt(t: Tensor) -> Tensor:
    """Γ^½ = T^(−½), zero for dead neurons, with finite gradients."""
    living = alive(t)
    return torch.where(living, torch.where(living, t, 1.0).rsqrt(), 0.0)


def scaled_bias(bias: Tensor | None, scale: Tensor, t: Tensor) -> Tensor | None:
    """b/s for Ŵᵀx + b/s: zero for dead neurons, and clamped to √max so that nothing after it overflows.

    A bias does not enter the Lipschitz constant: any finite value is sound.
    """
    if bias is None:
        return None
    limit = torch.finfo(t.dtype).max ** 0.5
    return torch.where(alive(t), (at_least_float32(bias) / scale).clamp(-limit, limit), 0.0)


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def no_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """T is computed in float32 or better even when the layer runs under bf16 or fp16 autocast."""
    kind = tensor.device.type
    if not torch.amp.is_autocast_available(kind):
        return contextlib.nullcontext()
    if not torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _wide(kind)


@contextlib.contextmanager
def _wide(kind: str) -> Iterator[None]:
    global _narrow
    before, _narrow = _narrow, torch.get_autocast_dtype(kind)
    try:
        with torch.autocast(kind, enabled=False):
            yield
    finally:
        _narrow = before


def narrow_gradients() -> torch.dtype | None:
    """The dtype of autocast inside ``no_autocast``: gradients of T may use it, T itself never does."""
    return _narrow


def autocasting(tensor: Tensor) -> bool:
    """Whether autocast may narrow a product of ``tensor``."""
    kind = tensor.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
