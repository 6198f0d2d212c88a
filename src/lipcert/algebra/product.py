"""A·a for A = |WᵀW|, summed over lags, without forming what symmetry gives for free.

C_ij[−d] = C_ji[d], so half of the lags suffice, and at lag 0 half of the blocks. At a lag d only the taps that
overlap are multiplied. The gradient is one product per lag: for E = Σ_i u_i (Aa)_i

    ∂E/∂K_i[t] = Σ_d Σ_j S_ij[d] K_j[t − d],   S_ij[d] = (u_i a_j + a_i u_j) sign C_ij[d],

where differentiating the formula as it is written would take two, with more temporaries of the size of A.

Rounding: to nearest, as in ``gram``; sums of absolute values have small relative errors only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from lipcert.algebra.gram import CONVOLVE, Columns, absolute_gram, half_lags, taps_of
from lipcert.algebra.scale import narrow_gradients, no_autocast, transformed

IN_WEIGHT: dict[int, Any] = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}
BLOCK = 256  # rows of the Gram matrix at a time: large enough for BLAS, small enough for half the work


def absolute_product(columns: Columns, a: Tensor, sample: int | None = None) -> Tensor:  # (groups, N) → (groups, N)
    """A·a. With ``sample``, the gradient through a dense weight takes that many columns, drawn anew each time.

    The value is exact in either case, and so is the gradient in ``a``. The sampled one in the weight,
    S_ii w_i + (n/k) Σ_{j drawn, j ≠ i} S_ij w_j, is right on average: each j is drawn with probability k/n.
    """
    if transformed(columns.taps, a):
        return (absolute_gram(columns) @ a[..., None])[..., 0]
    taps, drawn = columns.taps, None
    if not columns.pointwise and taps.device.type == "cpu" and taps.dtype == torch.float32:
        return _Convolved.apply(taps, a)[0]  # type: ignore[no-untyped-call]
    if sample is not None and columns.is_dense and 2 * sample <= taps.shape[1]:
        drawn = torch.randperm(taps.shape[1], device=taps.device)[:sample]
    return _AbsoluteProduct.apply(taps, a, drawn)[0]  # type: ignore[no-untyped-call]


def estimated_product(columns: Columns, a: Tensor, sample: int) -> Tensor:  # (1, N) → (1, N)
    """A·a of a dense weight from ``sample`` of its columns, the diagonal exact: right on average, and no bound.

    The gradient is that of ``absolute_product`` with the same sample, which spreads over all rows; differentiating
    the estimate itself would put half of it on the rows drawn.
    """
    weight = columns.matrix()  # (n, m)
    drawn = torch.randperm(len(weight), device=weight.device)[:sample]
    if transformed(weight, a):
        return sampled_sums(*sampled_overlaps(weight, drawn), a[0], drawn)[None]
    return _Estimate.apply(weight, a[0], drawn)[None]  # type: ignore[no-untyped-call]


class _AbsoluteProduct(torch.autograd.Function):
    """(taps, a, drawn) → (A·a, C[0], C[d₁], …); only the first is differentiable."""

    @staticmethod
    def forward(taps: Tensor, a: Tensor, drawn: Tensor | None) -> tuple[Tensor, ...]:
        zero, *others = half_lags(taps.shape[3:])
        lags = [_symmetric(taps_of(taps, zero[0]))]
        lags += [taps_of(taps, left) @ taps_of(taps, right).mT for left, right in others]
        return (_apply(lags, a), *lags)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        taps, a, drawn = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.narrow = narrow_gradients()
        ctx.save_for_backward(taps, a, drawn, *output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        taps, a, drawn, *lags = ctx.saved_tensors
        u = gradients[0]
        if u is None:
            return None, None, None
        with no_autocast(taps):
            if torch.is_grad_enabled():  # for a second derivative
                return *_plain_gradients(taps, a, u), None
            in_taps = in_a = None
            if ctx.needs_input_grad[0]:
                if drawn is None:
                    in_taps = _in_taps(taps, a, u, lags, ctx.narrow)
                else:
                    weight, rows = taps.view(taps.shape[1], -1), _without_diagonal(lags[0][0][drawn], drawn)
                    in_taps = _in_sample(weight, a[0], u[0], rows, drawn).view_as(taps)
            if ctx.needs_input_grad[1]:
                in_a = _apply(lags, u)
        return in_taps, in_a, None


class _Convolved(torch.autograd.Function):
    """(taps, a) → (A·a, lags) by a convolution of the filters with themselves, all lags at once.

    On CPUs alone: a GPU may run convolutions in TF32. It needs no symmetry to be faster than a product per lag.
    """

    @staticmethod
    def forward(taps: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        groups, count, _, *kernel = taps.shape
        images, filters = taps.transpose(0, 1).flatten(1, 2), taps.flatten(0, 1)
        margin = [k - 1 for k in kernel]
        lags = CONVOLVE[len(kernel)](images, filters, padding=margin, groups=groups)  # (N, groups·N, *lags)
        lags = lags.unflatten(1, (groups, count))
        return torch.einsum("jgi,gj->gi", lags.abs().flatten(3).sum(dim=3), a), lags

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        taps, a, lags = ctx.saved_tensors
        u = gradients[0]
        if u is None:
            return None, None
        with no_autocast(taps):
            if torch.is_grad_enabled():
                return _plain_gradients(taps, a, u)
            in_taps = in_a = None
            if ctx.needs_input_grad[0]:
                slopes = torch.einsum("gi,gj->jgi", u, a) + torch.einsum("gi,gj->jgi", a, u)
                axes = taps.ndim - 3
                slopes = (slopes.view(*slopes.shape, *[1] * axes) * lags.sign()).flatten(1, 2)
                images, filters = taps.transpose(0, 1).flatten(1, 2), taps.flatten(0, 1)
                margin = [k - 1 for k in taps.shape[3:]]
                in_taps = IN_WEIGHT[axes](images, filters.shape, slopes, padding=margin, groups=len(taps))
                in_taps = in_taps.view_as(taps)
            if ctx.needs_input_grad[1]:
                in_a = torch.einsum("jgi,gi->gj", lags.abs().flatten(3).sum(dim=3), u)
        return in_taps, in_a


def _plain_gradients(taps: Tensor, a: Tensor, u: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of A·a with a graph of their own, for a second derivative."""
    with torch.enable_grad():
        product = (absolute_gram(Columns(taps)) @ a[..., None])[..., 0]
    wanted = [tensor for tensor in (taps, a) if tensor.requires_grad]
    found = iter(torch.autograd.grad(product, wanted, u, create_graph=True))
    return (next(found) if taps.requires_grad else None), (next(found) if a.requires_grad else None)


class _Estimate(torch.autograd.Function):
    """(weight, a, drawn) → ‖w_i‖² a_i + (n/k) Σ_{j drawn, j ≠ i} A_ij a_j."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, a: Tensor, drawn: Tensor) -> Tensor:
        overlaps, squares = sampled_overlaps(weight, drawn)
        ctx.save_for_backward(weight, a, drawn, overlaps, squares)
        return sampled_sums(overlaps, squares, a, drawn)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, a, drawn, overlaps, squares = ctx.saved_tensors
        (u,) = gradients
        with no_autocast(weight):
            return _in_sample(weight, a, u, overlaps, drawn), sampled_sums(overlaps, squares, u, drawn), None


def sampled_overlaps(weight: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:  # (k, n), (n,)
    """The rows of WᵀW that were drawn, 0 on the diagonal, and the whole diagonal."""
    overlaps = _without_diagonal(weight[drawn] @ weight.mT, drawn)
    return overlaps, torch.linalg.vector_norm(weight, dim=1).square()


def sampled_sums(overlaps: Tensor, squares: Tensor, a: Tensor, drawn: Tensor) -> Tensor:  # (n,)
    """A·a, estimated."""
    return squares * a + (len(squares) / len(drawn)) * (overlaps.abs().mT @ a[drawn])


def sampled_slopes(overlaps: Tensor, a: Tensor, u: Tensor, drawn: Tensor) -> Tensor:  # (k, n)
    """(n/k) S_ij for the rows i drawn."""
    scale = len(a) / len(drawn)
    return torch.outer(a[drawn] * scale, u).addr_(u[drawn] * scale, a).mul_(overlaps.sign())


def _symmetric(rows: Tensor) -> Tensor:  # (groups, N, M) → (groups, N, N)
    """rows·rowsᵀ, the blocks below the diagonal copied from those above."""
    count = rows.shape[1]
    if count < 2 * BLOCK:
        return rows @ rows.mT
    gram = rows.new_empty(len(rows), count, count)
    for part in _blocks(count):
        strip = rows[:, part] @ rows[:, part.start :].mT
        gram[:, part, part.start :] = strip
        gram[:, part.stop :, part] = strip[:, :, part.stop - part.start :].mT
    return gram


def _apply(lags: list[Tensor], a: Tensor) -> Tensor:  # (groups, N, N) each, (groups, N) → (groups, N)
    """|C[0]|a + Σ_d (|C[d]|a + |C[d]|ᵀa)."""
    column = a[..., None]
    zero = lags[0]
    if len(lags) == 1 and zero.shape[1] >= 2 * BLOCK:  # a block of |C| at a time
        return torch.cat([zero[:, part].abs() @ column for part in _blocks(zero.shape[1])], dim=1)[..., 0]
    total = zero.abs() @ column
    for lag in lags[1:]:
        absolute = lag.abs()
        total = total + absolute @ column + absolute.mT @ column
    return total[..., 0]


def _in_taps(taps: Tensor, a: Tensor, u: Tensor, lags: list[Tensor], narrow: torch.dtype | None) -> Tensor:
    """Σ_d S[d]K[· − d]: for a lag and its opposite, S[d] times the right taps and S[d]ᵀ times the left ones."""
    if narrow is not None and len(lags) == 1 and len(taps) == 1:
        slopes = (u[0, :, None] * a + a[0, :, None] * u).mul_(lags[0][0].sign())
        return (slopes.to(narrow) @ taps[0].flatten(1).to(narrow)).to(taps.dtype).view_as(taps)
    gradient = torch.empty_like(taps, memory_format=torch.contiguous_format)
    tall, wide = torch.stack((u, a), dim=-1), torch.stack((a, u), dim=-2)  # their product is u aᵀ + a uᵀ
    for index, (lag, (left, right)) in enumerate(zip(lags, half_lags(taps.shape[3:]), strict=True)):
        from_right = taps_of(taps, right)
        for part in _blocks(lag.shape[1], 4 * BLOCK):
            slopes = (tall[:, part] @ wide).mul_(lag[:, part].sign())
            if index == 0:
                torch.bmm(slopes, from_right, out=gradient.flatten(2)[:, part])
                continue
            at_left: tuple[Any, ...] = (slice(None), part, slice(None), *left)
            at_right: tuple[Any, ...] = (..., *right)
            into_left, into_right = gradient[at_left], gradient[at_right]
            into_left += (slopes @ from_right).view_as(into_left)
            into_right += (slopes.mT @ taps_of(taps[:, part], left)).view_as(into_right)
    return gradient


def _in_sample(weight: Tensor, a: Tensor, u: Tensor, overlaps: Tensor, drawn: Tensor) -> Tensor:
    """S_ii w_i + (n/k) Σ_{j drawn, j ≠ i} S_ij w_j."""
    return (sampled_slopes(overlaps, a, u, drawn).mT @ weight[drawn]).addcmul_((2 * a * u)[:, None], weight)


def _without_diagonal(rows: Tensor, drawn: Tensor) -> Tensor:  # (k, n)
    rows[torch.arange(len(drawn), device=drawn.device), drawn] = 0.0
    return rows


def _blocks(count: int, size: int = BLOCK) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
