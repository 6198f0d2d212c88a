"""The maps of ``orthogonal`` for steps of training on a CPU: the same Q with fewer products.

A map here answers None for a weight that is too badly conditioned; ``orthogonal`` then takes its own. Gradients
are those of the limit, solved for instead of traced back through every step:

- ``polar``       Q = W(WᴴW)^(−½), Björck's limit. With W = QP, dQ is a Sylvester equation in P.
- ``triangular``  Q = VL^(−ᴴ), LLᴴ = VᴴV, in the precision of V.
- ``reflectors``  the product of two block reflectors from their orthonormal bases, without forming either.
- ``inverse``     of I + A, for Cayley's map, by blocks.
- ``rotation``    exp A with a Taylor polynomial of degree 8 in three products (Bader, Blanes & Casas 2019).

Nothing here is proved: layers divide by ``deviation`` of what was computed, and ``freeze`` takes the maps of
``orthogonal`` in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BLOCK = 256  # columns of a Gram matrix at a time, of which half is computed
POWER_STEPS = 8
NEWTON_STEPS = 12  # to which a weight with singular values 50 times apart converges
SYLVESTER_STEPS = 60
ANGLE = 1.1  # where the first term left out, 1.1⁹/9!, is 7e-6
ROOT = math.sqrt(177)
THIRD = 2 / 3
Map = Callable[[Tensor], Tensor]


def deviation(weight: Tensor) -> Tensor:  # (…, m, n), m ≥ n → ()
    """The largest ‖QᴴQ − I‖_∞ of a batch, from half of the Gram matrix where that is worth it."""
    n = weight.shape[-1]
    if weight.ndim > 2 or n < 2 * BLOCK:
        return _magnitude(weight.mH @ weight - _eye(weight)).sum(dim=-1).amax()
    sums = weight.new_zeros(n, dtype=weight.real.dtype)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        rows = weight[:, start:stop].mH @ weight[:, start:]
        rows.diagonal().sub_(1)
        rows = _magnitude(rows)
        sums[start:stop] += rows.sum(dim=1)
        sums[stop:] += rows[:, stop - start :].sum(dim=0)
    return sums.amax()


def norm_estimate(gram: Tensor) -> Tensor:  # (…, n, n) Hermitian → (…)
    """The largest eigenvalue by a few steps of power iteration: from below, evidence only."""
    n = gram.shape[-1]
    v = torch.arange(1.0, n + 1, device=gram.device, dtype=torch.float64).square().cos().to(gram.dtype)
    v = v.expand(gram.shape[:-1])[..., None]
    size = torch.ones(())
    for _ in range(POWER_STEPS):
        v = v / torch.linalg.vector_norm(v, dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(gram.dtype).tiny)
        v = gram @ v
        size = torch.linalg.vector_norm(v, dim=(-2, -1))
    return size


# --- The polar factor ---


def polar(tall: Tensor, plain: Map) -> Tensor | None:
    """W(WᴴW)^(−½) by Newton's and Schulz's iteration from a scale near the middle of the singular values."""
    with torch.no_grad():
        weight = tall.detach()
        gram = weight.mH @ weight
        mean = gram.diagonal(dim1=-2, dim2=-1).real.mean(dim=-1)
        # Singular values up to 1.3 converge at once, and beyond √3 they would not.
        square = torch.maximum(mean, norm_estimate(gram) / 1.5)
        if not bool(((square > 2.0**-40) & (square < 2.0**40)).all()):
            return None
        square = square[..., None, None]
        q, gram, eye = weight * square.rsqrt(), gram / square, _eye(gram)
        eps = torch.finfo(gram.dtype).eps
        for _ in range(NEWTON_STEPS):
            away = float((gram - eye).abs().amax())
            if away <= 8 * eps:
                break
            step = torch.addmm if q.ndim == 2 else torch.baddbmm
            q = step(q, q, gram, beta=1.5, alpha=-0.5)
            if away <= eps**0.5:  # a step squares the deviation
                break
            gram = q.mH @ q
        else:
            return None
        factor = q.mH @ weight  # P
        factor = 0.5 * (factor + factor.mH)
        # A singular value beyond √3, which the estimate of the norm can miss, may have turned into −1.
        if bool(torch.linalg.cholesky_ex(factor).info.any()):
            return None
    return _Polar.apply(tall, q, factor, plain)  # type: ignore[no-untyped-call]


class _Polar(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, q: Tensor, factor: Tensor, plain: Map) -> Tensor:
        ctx.save_for_backward(weight, q, factor)
        ctx.plain = plain
        return q.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (out,), (weight, q, factor) = gradients, ctx.saved_tensors
        if torch.is_grad_enabled():
            return _again(ctx.plain, weight, out), None, None, None
        inner = q.mH @ out
        to_weight = q @ _sylvester(factor, inner - inner.mH)
        if q.shape[-2] > q.shape[-1]:
            to_weight = to_weight + torch.linalg.solve(factor, out - q @ inner, left=False)
        return to_weight, None, None, None


def _sylvester(p: Tensor, right: Tensor) -> Tensor:
    """Y with PY + YP = right, P Hermitian and positive, both sides skew: conjugate gradients, a product each."""
    y, middle = torch.zeros_like(right), 2 * p.diagonal(dim1=-2, dim2=-1).real.mean(dim=-1)[..., None, None]
    # The first step is known: P is close to a multiple of I.
    residual = right
    direction, size = right / middle, _inner(right, right)
    goal, tiny = size * torch.finfo(p.dtype).eps, torch.finfo(p.dtype).tiny
    energy = size / middle
    for _ in range(SYLVESTER_STEPS):
        half = p @ direction
        image = half - half.mH
        step = energy / _inner(direction, image).clamp_min(tiny)
        y = y + step * direction
        residual = residual - step * image
        left = _inner(residual, residual)
        if bool((left <= goal).all()):
            break
        better = left / middle
        direction = residual / middle + better / energy.clamp_min(tiny) * direction
        energy = better
    return y


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).real.sum(dim=(-2, -1), keepdim=True) if a.is_complex() else (a * b).sum((-2, -1), True)


# --- Triangular factors ---


def triangular(tall: Tensor, plain: Map) -> Tensor | None:
    """VL^(−ᴴ) with LLᴴ = VᴴV; a triangle whose diagonal spans a factor of 16 would lose digits."""
    with torch.no_grad():
        weight = tall.detach()
        factor, failed = torch.linalg.cholesky_ex(weight.mH @ weight)
        diagonal = factor.diagonal(dim1=-2, dim2=-1).real
        least, most = diagonal.amin(dim=-1), diagonal.amax(dim=-1)
        usable = (failed == 0) & (least > 0.0625 * most) & (least > 2.0**-20) & (most < 2.0**20)
        if not bool(usable.all()):
            return None
        q = torch.linalg.solve_triangular(factor, weight.mH, upper=False).mH
    return _Triangular.apply(tall, q, factor, plain)  # type: ignore[no-untyped-call]


class _Triangular(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, q: Tensor, factor: Tensor, plain: Map) -> Tensor:
        ctx.save_for_backward(weight, q, factor)
        ctx.plain = plain
        return q.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (out,), (weight, q, factor) = gradients, ctx.saved_tensors
        if torch.is_grad_enabled():
            return _again(ctx.plain, weight, out), None, None, None
        upper = (q.mH @ out).triu()
        upper.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        to_q = out - q @ (upper + upper.mH)
        return torch.linalg.solve_triangular(factor, to_q, upper=False, left=False), None, None, None


def reflectors(tall: Tensor, plain: Map) -> Tensor | None:
    """The first n columns of (I − 2H₁H₁ᴴ)(I − 2H₂H₂ᴴ), H an orthonormal basis of each half of the columns."""
    m, n = tall.shape[-2:]
    if n < 2:
        return None
    first, second = (triangular(half, plain) for half in tall.split((n + 1) // 2, dim=-1))
    if first is None or second is None:
        return None
    rows = second.mH[..., :n]
    left = torch.cat((first.mH[..., :n] - 2 * (first.mH @ second) @ rows, rows), dim=-2)
    eye = torch.eye(m, n, device=tall.device, dtype=tall.dtype)
    return eye - 2 * torch.cat((first, second), dim=-1) @ left


# --- The inverse ---


def inverse(matrix: Tensor) -> Tensor:
    """M⁻¹ of a matrix with positive definite symmetric part, by blocks: products are faster than substitutions."""
    return _Inverse.apply(matrix) if matrix.ndim == 2 else torch.linalg.inv(matrix)  # type: ignore[no-untyped-call]


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        inverse = _block_inverse(matrix)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -inverse.mH @ gradients[0] @ inverse.mH


def _block_inverse(matrix: Tensor) -> Tensor:
    """By the Schur complement S = D − CA⁻¹B of the first half, whose symmetric part is positive definite too."""
    half = len(matrix) // 2
    if half < BLOCK // 2:
        return torch.linalg.inv(matrix)
    first, result = _block_inverse(matrix[:half, :half]), torch.empty_like(matrix)
    left, above = matrix[half:, :half] @ first, matrix[:half, half:]
    last = _block_inverse(torch.addmm(matrix[half:, half:], left, above, alpha=-1))
    right = first @ above
    result[half:, half:] = last
    result[half:, :half] = minus = -last @ left
    result[:half, half:] = -right @ last
    result[:half, :half] = torch.addmm(first, right, minus, alpha=-1)
    return result


# --- The exponential ---


def rotation(skew: Tensor, largest: float) -> Tensor | None:  # (…, m, m)
    """exp A for skew A, where its norm is surely below ``largest``; in float32, where the degree is enough."""
    with torch.no_grad():
        small = skew.detach()
        norm = float(_skew_norm(small).amax())
    if skew.real.dtype != torch.float32 or not 1.25 * norm < largest:
        return None
    squarings = max(0, math.ceil(math.log2(max(1.1 * norm, 2.0**-40) / ANGLE)))
    a = skew / 2.0**squarings
    a2 = a @ a
    a4 = a2 @ (THIRD * (1 + ROOT) / 88 * (a + a2 / 4))
    left = THIRD * a2 + a4
    right = 11 * (ROOT - 1) / 1260 * a + 11 * (ROOT - 9) / 5040 * a2 + (89 - ROOT) / (5040 * THIRD) * a4
    right = right / THIRD
    right.diagonal(dim1=-2, dim2=-1).add_((29 * ROOT - 271) / (315 * THIRD))
    result = a + (857 - 58 * ROOT) / 630 * a2 + left @ right
    result.diagonal(dim1=-2, dim2=-1).add_(1)
    for _ in range(squarings):
        result = result @ result
    return result


def _skew_norm(skew: Tensor) -> Tensor:
    """‖A‖ from below; A² is Hermitian, so two products with a vector are a step."""
    v = torch.arange(1.0, skew.shape[-1] + 1, device=skew.device, dtype=torch.float64).square().cos()
    v = v.to(skew.dtype).expand(skew.shape[:-1])[..., None]
    size = torch.zeros(())
    for _ in range(2 * POWER_STEPS):
        v = v / torch.linalg.vector_norm(v, dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(skew.dtype).tiny)
        v = skew @ v
        size = torch.linalg.vector_norm(v, dim=(-2, -1))
    return size


def _again(plain: Map, weight: Tensor, out: Tensor) -> Tensor:
    """The gradient by the plain map, for derivatives of derivatives."""
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(plain(weight), weight, out, create_graph=True)
    return gradient


def _magnitude(matrix: Tensor) -> Tensor:
    """|z|, or |Re z| + |Im z| ≥ |z| where z is complex."""
    return torch.view_as_real(matrix.resolve_conj()).abs().sum(dim=-1) if matrix.is_complex() else matrix.abs()


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], device=like.device, dtype=like.dtype)
