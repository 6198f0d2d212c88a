"""x − W(g∘relu(Wᵀx + b)) and Wx/‖W‖ + b, with all gradients of W in one product.

The products share the weight, so autograd would form several gradients of its size and add them; stacked, they are
one product of greater depth. Everything else is what autograd does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.algebra.product import sampled_overlaps, sampled_slopes, sampled_sums
from lipcert.algebra.scale import autocasting, inverse, no_autocast, transformed

if TYPE_CHECKING:
    from lipcert.layers.operators import Conv


def relu_residual(x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor) -> Tensor:  # (B, m), (n, m), (n,)
    """x − (gain∘relu(x·weightᵀ + bias))·weight of matrices; under autocast the products are narrow."""
    narrow = torch.get_autocast_dtype(x.device.type) if autocasting(x) else None
    with no_autocast(x):
        return _ReluResidual.apply(x, weight, bias, gain, narrow)  # type: ignore[no-untyped-call]


def fits(x: Tensor, *parameters: Tensor) -> bool:
    """Whether these are plain tensors that want a gradient; compilers and transforms do it their way."""
    return (
        torch.is_grad_enabled()
        and any(parameter.requires_grad for parameter in parameters)
        and all(parameter.dtype == x.dtype for parameter in parameters)
        and not transformed(x, *parameters)
    )


def normalized_linear(x: Tensor, weight: Tensor, bias: Tensor | None, v: Tensor) -> Tensor | None:
    """Wx/σ + b with σ = ‖Wᵀv‖, an estimate of ‖W‖ for a unit vector v; None where σ is far from 1.

    The gradient is that of σ with v held, dσ = v(Wᵀv)ᵀ/σ, as it is for a first singular vector.
    """
    with torch.no_grad():
        image = weight.mT @ v  # (m,)
        sigma = torch.linalg.vector_norm(image)
        if not 2.0**-40 < float(sigma) < 2.0**40:
            return None
        u = image / sigma
    return _NormalizedLinear.apply(x, weight, bias, v, u, sigma)  # type: ignore[no-untyped-call]


def _plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None, v: Tensor) -> Tensor:
    return F.linear(x, weight / torch.linalg.vector_norm(weight.mT @ v), bias)


class _NormalizedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, v: Tensor, u: Tensor, sigma: Tensor
    ) -> Tensor:
        y = F.linear(x, weight).div_(sigma)
        ctx.save_for_backward(x, weight, bias, v, u, sigma, y)
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, v, u, sigma, y = ctx.saved_tensors
        (out,) = gradients
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():
            given = [x, weight, bias]
            wanted = [tensor for tensor, need in zip(given, needed, strict=False) if need]
            again = _plain_linear(x, weight, bias, v)
            results = iter(torch.autograd.grad(again, wanted, out, create_graph=True))
            return *(next(results) if need else None for need in needed[:3]), None, None, None
        to_product = out / sigma
        to_x = to_product @ weight if needed[0] else None
        to_sigma = -(out * y).sum() / sigma
        stack = torch.cat((to_product, (to_sigma * v)[None]))
        to_weight = stack.mT @ torch.cat((x, u[None])) if needed[1] else None
        return to_x, to_weight, out.sum(dim=0) if needed[2] else None, None, None, None


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor) -> Tensor:
    return x - (F.relu(F.linear(x, weight, bias)) * gain) @ weight


def sampled_residual(x: Tensor, weight: Tensor, bias: Tensor | None, q: Tensor, sample: int) -> Tensor:
    """``relu_residual`` with the gain 2/T, T estimated from ``sample`` columns drawn anew: no bound."""
    drawn = torch.randperm(len(weight), device=weight.device)[:sample]
    return _SampledResidual.apply(x, weight, bias, q, drawn)  # type: ignore[no-untyped-call]


class _SampledResidual(torch.autograd.Function):
    """The gradient through T adds the columns drawn to the stack (``algebra.product`` has the formulas)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, q: Tensor, drawn: Tensor) -> Tensor:
        z = F.linear(x, weight, bias).relu_()
        overlaps, squares = sampled_overlaps(weight, drawn)
        sums = sampled_sums(overlaps, squares, q, drawn)
        gain = 2 * inverse(sums / q)
        ctx.save_for_backward(x, weight, q, drawn, z, overlaps, squares, sums, gain)
        return torch.addmm(x, z * gain, weight, alpha=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, q, drawn, z, overlaps, squares, sums, gain = ctx.saved_tensors
        (out,) = gradients
        needed = ctx.needs_input_grad
        to_z = out @ weight.mT  # minus the gradient of g∘z, (B, n)
        to_t = (to_z * z).sum(dim=0) * gain.square() / 2  # g = 2/T
        u = to_t / q
        to_q = sampled_sums(overlaps, squares, u, drawn) - u * sums / q
        to_u = to_z.mul_(-gain).mul_(z > 0)  # the gradient of Wᵀx + b
        to_x = torch.addmm(out, to_u, weight) if needed[0] else None
        slopes = sampled_slopes(overlaps, q, u, drawn)
        stack = torch.cat((to_u, z * -gain, slopes))
        to_weight = (stack.mT @ torch.cat((x, out, weight[drawn]))).addcmul_((2 * q * u)[:, None], weight)
        return to_x, to_weight, to_u.sum(dim=0) if needed[2] else None, to_q, None


class _ReluResidual(torch.autograd.Function):
    """The products of x, z and W, and no other, are in ``narrow`` if that is given."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor, narrow: torch.dtype | None
    ) -> Tensor:
        ctx.narrow = narrow
        if narrow is None:
            z = F.linear(x, weight, bias).relu_()
            ctx.save_for_backward(x, weight, bias, gain, z)
            return torch.addmm(x, z * gain, weight, alpha=-1)
        near_x, near_weight = x.to(narrow), weight.to(narrow)
        z = F.linear(near_x, near_weight, None if bias is None else bias.to(narrow)).relu_()
        ctx.save_for_backward(x, weight, bias, gain, z, near_x, near_weight)
        return x - (z * gain.to(narrow)) @ near_weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, gain, z, *near = ctx.saved_tensors
        (out,) = gradients
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():
            given = (x, weight, bias, gain)
            wanted = [tensor for tensor, want in zip(given, needed, strict=False) if want]
            results = iter(torch.autograd.grad(_plain(*given), wanted, out, create_graph=True))
            return *(next(results) if want else None for want in needed[:4]), None
        factor, whole = gain, out
        if ctx.narrow is not None:
            (x, weight), factor, out = near, gain.to(ctx.narrow), out.to(ctx.narrow)
        to_z = out @ weight.mT  # minus the gradient of g∘z, (B, n)
        to_gain = -(to_z * z).sum(dim=0, dtype=gain.dtype) if needed[3] else None
        to_u = torch.ops.aten.threshold_backward(to_z.mul_(-factor), z, 0)  # the gradient of Wᵀx + b
        to_x = None
        if needed[0]:
            to_x = torch.addmm(out, to_u, weight) if ctx.narrow is None else whole + to_u @ weight
        to_weight = None
        if needed[1]:
            to_weight = (torch.cat((to_u, z * -factor)).mT @ torch.cat((x, out))).to(gain.dtype)
        return to_x, to_weight, to_u.sum(dim=0, dtype=gain.dtype) if needed[2] else None, to_gain, None


def relu_residual_conv(
    operator: Conv, x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor
) -> Tensor:  # (B, m, …), (n, m/groups, …), (n,)
    """x − W(gain∘relu(Wᵀx + bias)) of a convolution; under autocast the products are narrow."""
    narrow = torch.get_autocast_dtype(x.device.type) if autocasting(x) else None
    with no_autocast(x):
        return _ReluResidualConv.apply(x, weight, bias, gain, operator, narrow)  # type: ignore[no-untyped-call]


class _ReluResidualConv(torch.autograd.Function):
    """As ``_ReluResidual``; the two gradients of W are not stacked, since a convolution gains nothing by that."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gain: Tensor,
        operator: Conv,
        narrow: torch.dtype | None,
    ) -> Tensor:
        ctx.operator, near_x, near_weight = operator, x.to(narrow or x.dtype), weight.to(narrow or weight.dtype)
        z = operator.apply(near_weight, near_x, None if bias is None else bias.to(near_x.dtype)).relu_()
        ctx.save_for_backward(x, weight, bias, gain, z, near_x, near_weight)
        return x - operator.adjoint(near_weight, z * _per_channel(gain, z), near_x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, gain, z, near_x, near_weight = ctx.saved_tensors
        (out,), operator, needed = gradients, ctx.operator, ctx.needs_input_grad
        if torch.is_grad_enabled():
            given = (x, weight, bias, gain)
            wanted = [tensor for tensor, want in zip(given, needed, strict=False) if want]
            again = _plain_conv(operator, *given)
            results = iter(torch.autograd.grad(again, wanted, out, create_graph=True))
            return *(next(results) if want else None for want in needed[:4]), None, None
        near_out = out.to(z.dtype)
        factor = _per_channel(gain, z)
        to_z = operator.apply(near_weight, near_out)  # minus the gradient of g∘z
        others = (0, *range(2, z.ndim))
        to_gain = -(to_z * z).sum(dim=others, dtype=gain.dtype) if needed[3] else None
        to_u = torch.ops.aten.threshold_backward(to_z.mul_(-factor), z, 0)  # the gradient of Wᵀx + b
        to_x = out + operator.adjoint(near_weight, to_u, out) if needed[0] else None
        to_weight = None
        if needed[1]:
            to_weight = operator.in_weight(near_x, to_u).to(gain.dtype)
            to_weight += operator.in_weight(near_out, z * -factor)
        return to_x, to_weight, to_u.sum(dim=others, dtype=gain.dtype) if needed[2] else None, to_gain, None, None


def _per_channel(values: Tensor, image: Tensor) -> Tensor:
    return values.to(image.dtype).view(-1, *[1] * (image.ndim - 2))


def _plain_conv(operator: Conv, x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor) -> Tensor:
    z = F.relu(operator.apply(weight, x, bias))
    return x - operator.adjoint(weight, z * _per_channel(gain, z), x)
