"""Estimates of local Lipschitz constants, for training alone (Local-Lip-B, Huang et al. 2021).

Certificates never see them: ``lipcert.certifiers.local`` proves its own constants for the frozen network. Here the
boxes are not rounded outwards, and the norms of masked layers are ‖D W D' v‖ for a vector v of a few steps of power
iteration, which is at most the norm. Both are differentiable and cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.algebra.scale import at_least_float32, no_autocast
from lipcert.errors import NotCertified
from lipcert.layers.activation import Clipped, MaxMin
from lipcert.layers.contract import lipschitz_bound
from lipcert.layers.shape import Center, Normalize, Scale
from lipcert.layers.tracked import Tracked, chain_of

COMMON_STEPS = 30  # of power iteration for a layer without masks, on one example: cheap beside a batch
STEPS = 3  # from there with the masks of each example
DEAD = 0.1  # weight of the distance to θ beside that to 0, as published


@dataclass(frozen=True)
class LocalEstimate:
    """Constants of the examples inside their balls, and how far their neurons are from being constant there."""

    constants: Tensor  # (N,)
    activity: Tensor  # (): mean of max(u, 0) + 0.1·max(θ − l, 0) over all clipped neurons


@dataclass(frozen=True)
class _State:
    value: Tensor
    low: Tensor
    high: Tensor
    moving: Tensor  # 1.0 where the value can move, else 0.0
    constant: Tensor  # (N,)
    before: _State | None = None
    layer: Tracked | None = None


def local_estimate(backbone: nn.Module, x: Tensor, radius: float) -> LocalEstimate:
    """L(x) ≈ ∏ ‖D_k W_k D_{k−1}‖ in the ball of that radius, for a Sequential of tracked layers: no bound."""
    with no_autocast(x):
        x = at_least_float32(x)
        state = _State(x, x - radius, x + radius, torch.ones_like(x), x.new_ones(len(x)))
        activity: list[Tensor] = []
        layers = chain_of(backbone)
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            if isinstance(layer, Clipped):
                activity.append(_activity(layer, state))
            state = _through(layer, state, radius, clipped_next=isinstance(following, Clipped))
    terms = torch.stack(activity).mean() if activity else x.new_zeros(())
    return LocalEstimate(state.constant, terms)


def _through(layer: nn.Module, state: _State, radius: float, clipped_next: bool) -> _State:
    value = layer(state.value)
    if isinstance(layer, Tracked):
        return _through_tracked(layer, state, value, radius, clipped_next)
    low, high = layer(state.low), layer(state.high)  # every layer below is monotone
    if isinstance(layer, Clipped):
        moving = state.moving * (low < high)
        constant = state.constant
        if state.before is not None and state.layer is not None:
            constant = state.before.constant * masked_estimate(state.layer, state.before.moving, moving)
        return _State(value, low, high, moving, constant)
    if isinstance(layer, MaxMin):
        pairs = state.moving.unflatten(1, (-1, 2))
        moving = pairs.amax(dim=2, keepdim=True).expand_as(pairs).flatten(1, 2)
    elif isinstance(layer, (Center, Normalize)):
        moving = state.moving
    else:  # shapes, pads and pools of lipcert.models
        moving = (layer(state.moving) > 0).to(state.moving.dtype)
    constant = state.constant * lipschitz_bound(layer) if isinstance(layer, Normalize) else state.constant
    if isinstance(layer, Scale):
        constant = constant * layer.current()
    return _State(value, low, high, moving, constant)


def _through_tracked(layer: Tracked, state: _State, value: Tensor, radius: float, clipped_next: bool) -> _State:
    operator, weight = layer.operator, layer.plain_weight()
    if layer.training and getattr(layer, "center", False):
        raise NotCertified("local bounds need layers whose output depends on one input. Use TrackedConv2d.")
    center, half = (state.low + state.high) / 2, (state.high - state.low) / 2
    middle = operator.apply(weight, center, layer.plain_bias())
    spread = operator.apply(weight.abs(), half)
    squares = operator.apply(weight.square(), state.moving)
    reach = squares.clamp_min(1e-24).sqrt() * _spread(state.constant * radius, value)
    low, high = torch.maximum(middle - spread, value - reach), torch.minimum(middle + spread, value + reach)
    moving = (squares.detach() > 0).to(value.dtype)
    # A clipped activation replaces this constant by that of the rows that move behind it.
    constant = state.constant if clipped_next else state.constant * masked_estimate(layer, state.moving, None)
    return _State(value, torch.minimum(low, value), torch.maximum(high, value), moving, constant, state, layer)


def masked_estimate(layer: Tracked, columns: Tensor, rows: Tensor | None) -> Tensor:  # → (N,)
    """An estimate of ‖D W D'‖ from unit vectors v, one for each example, differentiable in W."""
    operator, weight = layer.operator, layer.plain_weight()
    kernel = weight.detach()
    with torch.no_grad():
        common = torch.randn_like(columns[:1])
        for _ in range(COMMON_STEPS):
            common = _unit(operator.adjoint(kernel, operator.apply(kernel, common), like=common))
        v = _unit(common * columns)
        for _ in range(STEPS):
            z = operator.apply(kernel, v)
            v = _unit(operator.adjoint(kernel, z if rows is None else z * rows, like=v) * columns)
        whole = operator.apply(kernel, common).flatten(1).norm(dim=1)
    z = operator.apply(weight, v)
    z = z if rows is None else z * rows
    masked = (z.flatten(1).square().sum(dim=1) + 1e-24).sqrt()
    # What is certified of a convolution is its norm on the plane, which exceeds that on a small image. The masks
    # count by what they take off the norm on the image.
    return masked * (layer.norm_estimate().detach() / whole.clamp_min(1e-12))


def _activity(layer: Clipped, state: _State) -> Tensor:
    low, high = layer.limits()
    return (F.relu(state.high - low) + DEAD * F.relu(high - state.low)).mean()


def _unit(v: Tensor) -> Tensor:
    return v / _spread(v.flatten(1).norm(dim=1).clamp_min(1e-12), v)


def _spread(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))
