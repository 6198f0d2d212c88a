"""Orthogonal and sandwich layers frozen: circular convolutions in the basis of their image's waves (``torus``), or
where they have few taps as plain ones. The size of the image is part of each.

Rounding: see ``rounded``.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.algebra.scale import scaled_bias
from lipcert.errors import NotCertified
from lipcert.frozen.modules import FrozenResidualConv2d, plain_conv2d
from lipcert.frozen.rounded import Sought, contraction
from lipcert.frozen.torus import FrozenResidualTorus, FrozenTorus, blocks_of, waves
from lipcert.layers import shape
from lipcert.layers.forms import (
    OnCircle,
    OrthogonalConv2d,
    OrthogonalResidualConv2d,
    Sandwich,
    SandwichConv2d,
    SandwichLinear,
)
from lipcert.verified import convolution
from lipcert.verified.torus import torus_norm_bound, torus_rho_bound

FEW_TAPS = 9  # a direct convolution with no more costs no more than five products
MANY_NUMBERS = 2**26  # in the blocks of one layer: what a checker takes


def orthogonal_conv(layer: OrthogonalConv2d) -> nn.Module:
    _require_torus(layer)
    kernel, basis = copy.deepcopy(layer).double().kernel(), _basis(layer)
    if basis is None:
        weight = contraction(kernel, lambda w: convolution.conv_norm_bound(w, torus=layer.operator.image).value)
        padding = (weight.shape[2] // 2, weight.shape[3] // 2)
        made: nn.Module = plain_conv2d(weight, layer.bias, padding=padding, padding_mode="circular")
    else:
        rows, columns = (part.cpu().numpy() for part in basis)
        weight = contraction(
            blocks_of(kernel, layer.operator.image), lambda w: torus_norm_bound(rows, columns, w).value
        )
        made = FrozenTorus(*basis, weight, None if layer.bias is None else layer.bias.float())
    return made if layer.stride == 1 else nn.Sequential(shape.SpaceToDepth(layer.stride), made)


def _basis(layer: OnCircle) -> tuple[Tensor, Tensor] | None:
    """The waves of the layer's image, in which a kernel as large as it costs little; None where it has few taps."""
    high, wide = (2 * (size // 2) + 1 for size in layer.operator.image)
    large = 4 * math.prod(layer.operator.image) * layer.operator.outputs * layer.operator.inputs > MANY_NUMBERS
    if layer.operator.method == "bcop" or high * wide <= FEW_TAPS or large:
        return None
    device = layer.weight.device
    return waves(layer.operator.image[0]).float().to(device), waves(layer.operator.image[1]).float().to(device)


def _require_torus(layer: OnCircle) -> None:
    """Refused where the proof would be of another operator: on the plane only ``bcop`` is orthogonal."""
    operator = layer.operator
    fits = convolution.torus_fits(operator.image, operator.outputs, operator.inputs)
    if not fits and operator.method != "bcop":
        raise NotCertified(
            "an orthogonal convolution must be small enough to be proved at each frequency of its image; got "
            f"{(operator.outputs, operator.inputs)} channels on {operator.image}. Use fewer, a smaller image, or "
            "bcop."
        )


def orthogonal_residual(layer: OrthogonalResidualConv2d) -> nn.Module:
    _require_torus(layer)
    kernel, basis = copy.deepcopy(layer).double().kernel(), _basis(layer)
    ones = torch.ones(layer.operator.outputs, device=layer.weight.device, dtype=torch.float32)

    def norm(weight: np.ndarray) -> float:  # a hair above √ρ: ρ of the result leaves room for a checker's own proof
        if basis is None:
            rho = convolution.conv_rho_bound(weight, ones.cpu().numpy(), torus=layer.operator.image).value
        else:
            rows, columns = (part.cpu().numpy() for part in basis)
            rho = torus_rho_bound(rows, columns, weight, ones.cpu().numpy()).value
        return math.sqrt(rho) * (1 + 2.0**-30)

    weight = contraction(kernel if basis is None else blocks_of(kernel, layer.operator.image), norm)
    bias = None if layer.bias is None else scaled_bias(layer.bias.float(), ones[0], ones)
    if basis is not None:
        return FrozenResidualTorus(*basis, weight, ones, bias, layer.activation)
    parts = (weight, ones, bias, layer.activation, None)
    padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    return FrozenResidualConv2d(*parts, padding=padding, padding_mode="circular")


def sandwich_linear(layer: SandwichLinear) -> nn.Module:
    residue = _sandwiched(layer, copy.deepcopy(layer).double().kernel(), None)
    pad = shape.PadChannels(layer.operator.inputs + layer.operator.outputs, -1)
    return nn.Sequential(pad, residue, shape.TakeChannels(layer.operator.outputs, layer.operator.inputs, dim=-1))


def sandwich_conv(layer: SandwichConv2d) -> nn.Module:
    _require_torus(layer)
    kernel = copy.deepcopy(layer).double().kernel()
    residue = _sandwiched(layer, kernel, layer.operator.image)
    take = shape.TakeChannels(layer.operator.outputs, kernel.shape[1] - layer.operator.outputs, dim=-3)
    moved = [shape.SpaceToDepth(layer.stride)] if layer.stride > 1 else []
    return nn.Sequential(*moved, shape.PadChannels(kernel.shape[1], -3), residue, take)


def _sandwiched(
    layer: Sandwich,
    joined: Tensor,  # [A B], dense or a kernel
    torus: tuple[int, int] | None,
) -> nn.Module:
    """√2AᵀΨσ(√2Ψ⁻¹Bx + b) is what the residual of W = √2[B −A]ᵀΨ⁻¹ and γ = Ψ²/2 makes of zeros behind x.

    A positively homogeneous σ does not see Ψ but in b: W = [B −A]ᵀ, γ = 1, the bias Ψb/√2.
    """
    psi, one = layer.psi().double(), torch.ones(len(joined), device=joined.device, dtype=torch.float32)
    weight, target = (
        torch.cat((joined[:, layer.operator.outputs :], -joined[:, : layer.operator.outputs]), dim=1),
        one.double(),
    )
    bias = scaled_bias(layer.bias, 1 / psi, one)
    if not layer.activation.homogeneous:
        weight = weight * (math.sqrt(2) / psi).view(-1, *[1] * (weight.ndim - 1))
        target, bias = psi.square() / 2, scaled_bias(layer.bias, one[0], one)
    elif bias is not None:
        bias = bias / math.sqrt(2)
    bias = None if bias is None else bias.float()
    basis = _basis(layer) if isinstance(layer, SandwichConv2d) else None
    geometry: dict[str, Any] | None = None
    if basis is not None and torus is not None:
        weight = blocks_of(weight, torus)
    elif torus is not None:
        padding = (weight.shape[2] // 2, weight.shape[3] // 2)
        geometry = {"stride": (1, 1), "padding": padding, "padding_mode": "circular", "groups": 1}
    parts = (weight.float(), target.cpu().numpy(), bias, layer.activation, None, geometry)
    return Sought(*parts, torus=torus, basis=basis).frozen()
