"""Scales and reciprocals at which nothing overflows and no gradient is NaN (Theorem 6).

A layer is the same function of W = s·Ŵ for every s > 0: T = s²·T̂ and WT⁻¹σ(·) = ŴT̂⁻¹σ(·)/s. So the
Gram of Ŵ, with a largest entry near 1, serves weights of any size. A column so small that T̂_i would
leave the range in which 1/T̂ and its gradient are finite is dead: Γ_i = 0, which Theorem 6 allows.

Rounding: Γ = 1/T is rounded to nearest; declaring a neuron dead only makes Γ smaller.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def normalise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(Ŵ, s) with W = s·Ŵ in float32 or better, s a power of two and max|Ŵ| in [1, 2).

    No gradient flows through s: the layer does not depend on it. A weight with no entry above tiny^¼
    (3e-10 in float32) counts as zero, since gradients of size 1/s² would overflow.
    """
    weight = at_least_float32(weight)
    largest = weight.detach().abs().amax()
    living = largest > torch.finfo(weight.dtype).tiny ** 0.25
    exponent = torch.frexp(torch.where(living, largest, 1.0)).exponent - 1
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    return torch.where(living, weight, 0.0) / scale, scale


def dead_below(dtype: torch.dtype) -> float:
    """T̂_i at or below tiny^⅜ (7e-15 relative in float32): then 1/T̂² stays finite, with room to spare."""
    return float(torch.finfo(dtype).tiny ** 0.375)


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
    return torch.autocast(kind, enabled=False)
