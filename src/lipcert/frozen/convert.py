"""``freeze``: which frozen module each layer becomes. An affine layer keeps the one matrix V that it multiplies by.

A frozen network has no link to the one it came from. Rounding: see ``rounded``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.algebra.scale import scaled_bias
from lipcert.errors import NotCertified
from lipcert.frozen.modules import (
    FROZEN,
    FrozenCombination,
    FrozenHouseholder,
    FrozenResidualConv2d,
    FrozenResidualLinear,
    plain_conv2d,
    plain_linear,
    with_buffers,
)
from lipcert.frozen.rounded import Sought, contraction, frozen_expansion, frozen_residual
from lipcert.layers import (
    activation,
    affine,
    general,
    head,
    orthogonal,
    orthogonal_conv,
    residual,
    sandwich,
    shape,
)
from lipcert.layers.contract import require_finite, require_no_hooks, require_vouched
from lipcert.verified import convolution, dense

KEPT = (
    nn.Identity,
    nn.Linear,
    nn.Conv2d,
    nn.Flatten,
    nn.Unflatten,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.Tanh,
    nn.Sigmoid,
    shape.PadChannels,
    shape.TakeChannels,
    shape.PadImage,
    shape.SpaceToDepth,
    shape.ScaledAvgPool2d,
    shape.L2Pool2d,
    shape.Centre,
    shape.Normalize,
    shape.Scale,
    activation.MaxMin,
    activation.GroupSort,
    activation.Abs,
)


def freeze(model: nn.Module) -> nn.Module:
    """The network as plain modules with buffers, in evaluation mode and float32; ``model`` is not changed.

    Raises:
        NotCertified: for a module that lipcert does not know, a hook, or a parameter that is not finite.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch module; got {type(model).__name__}. Pass the network itself.")
    was, threads = [(module, module.training) for module in model.modules()], torch.get_num_threads()
    try:
        model.eval()  # the exact ratio of a surrogate SLL
        torch.set_num_threads(1)  # sums in one order: the same bits for whoever certifies, attacks or exports
        with torch.no_grad():
            frozen = _freeze(model, "the network")
    finally:
        torch.set_num_threads(threads)
        for module, mode in was:
            module.training = mode
    return frozen.eval()


def _freeze(module: nn.Module, name: str) -> nn.Module:
    kind = type(module)
    if kind is nn.Sequential:
        require_no_hooks(module)
        made = nn.Sequential()
        for key, child in module._modules.items():
            assert child is not None
            made.add_module(key, _freeze(child, f"{name}.{key}" if name != "the network" else key))
        return made
    if kind is nn.Dropout or kind is nn.Dropout2d:
        return nn.Identity()
    if kind not in KEPT and kind not in RULES and not isinstance(module, FROZEN):
        raise NotCertified(
            f"freeze knows the layers of lipcert, Sequential and simple activations; got {kind.__qualname__} at "
            f"{name}. Replace it, or write its function with those."
        )
    for part in module.modules():
        require_no_hooks(part)
        if hasattr(part, "require_sound"):
            require_vouched(part, "require_sound")
    require_finite(module)
    if kind in RULES:
        return RULES[kind](module)
    kept = copy.deepcopy(module)
    out_of_place(kept)
    if isinstance(kept, (nn.Linear, nn.Conv2d)):  # plain already; its constant is for the audit to find
        return with_buffers(kept, kept.weight.float(), kept.bias)
    return kept if isinstance(kept, FROZEN) else kept.float()


def out_of_place(module: nn.Module) -> None:
    """No part of ``module`` overwrites its input any more: an input may be someone's, or another branch's."""
    for part in module.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]


def _linear(layer: affine.AffineLinear) -> nn.Module:
    double = copy.deepcopy(layer).double()
    weight = contraction(double.scaled_weight(), lambda w: dense.norm_bound(w).value)
    return plain_linear(weight, layer.bias)


def _conv(layer: affine.AffineConv2d) -> nn.Module:
    double = copy.deepcopy(layer).double()
    weight = double.scaled_weight().float()  # its constant is what the audit proves, near 1
    return plain_conv2d(weight, layer.bias, layer.stride, layer.padding, layer.padding_mode, layer.groups)


def _orthogonal_conv(layer: orthogonal_conv.OrthogonalConv2d) -> nn.Module:
    _require_torus(layer)
    kernel = copy.deepcopy(layer).double().kernel()
    weight = contraction(kernel, lambda w: convolution.conv_norm_bound(w, torus=layer.inner).value)
    padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    conv = plain_conv2d(weight, layer.bias, padding=padding, padding_mode="circular")
    return conv if layer.stride == 1 else nn.Sequential(shape.SpaceToDepth(layer.stride), conv)


def _require_torus(layer: orthogonal_conv.OnTorus) -> None:
    """Refused where the proof would be of another operator: on the plane only ``bcop`` is orthogonal."""
    if not convolution.torus_fits(layer.inner, layer.rows, layer.columns) and layer.method != "bcop":
        raise NotCertified(
            "an orthogonal convolution must be small enough to be proved at each frequency of its image; got "
            f"{(layer.rows, layer.columns)} channels on {layer.inner}. Use fewer, a smaller image, or bcop."
        )


def _orthogonal_residual(layer: orthogonal_conv.OrthogonalResidualConv2d) -> nn.Module:
    _require_torus(layer)
    ones = torch.ones(layer.hidden, device=layer.weight.device, dtype=torch.float32)

    def norm(kernel: np.ndarray) -> float:  # a hair above √ρ: ρ of the result leaves room for a checker's own proof
        rho = convolution.conv_rho_bound(kernel, ones.cpu().numpy(), torus=layer.inner).value
        return math.sqrt(rho) * (1 + 2.0**-30)

    weight = contraction(copy.deepcopy(layer).double().kernel(), norm)
    bias = None if layer.bias is None else scaled_bias(layer.bias.float(), ones[0], ones)
    parts = (weight, ones, bias, layer.activation, None)
    padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    return FrozenResidualConv2d(*parts, padding=padding, padding_mode="circular")


def _head(layer: head.NormalizedHead) -> nn.Module:
    rows = copy.deepcopy(layer).double().unit_weight()
    return plain_linear(rows.float(), layer.bias)


def _pixelwise(layer: shape.Pixelwise) -> nn.Module:
    """A dense layer on every pixel is a 1×1 convolution."""
    inner = _freeze(layer.layer, "Pixelwise")
    if isinstance(inner, nn.Linear):
        return plain_conv2d(inner.weight[:, :, None, None], inner.bias)
    if isinstance(inner, FrozenResidualLinear):
        kernel = inner.weight[:, :, None, None].clone()
        return FrozenResidualConv2d(kernel, inner.gamma, inner.bias, inner.sigma, inner.witness)
    raise NotCertified(
        f"freeze knows Pixelwise of a dense layer; got one of {type(layer.layer).__qualname__}. Use a 1×1 "
        "convolution."
    )


def _householder(layer: activation.Householder) -> nn.Module:
    half = layer.theta.double() / 2
    vectors = torch.stack((half.sin(), -half.cos()))
    stored = (vectors * (1 - 2.0**-22)).float()  # rounding adds at most 2⁻²⁴ to a norm of 1 − 2⁻²²
    return FrozenHouseholder(stored[0].contiguous(), stored[1].contiguous(), layer.dim)


def _general(layer: general.GeneralLinear | general.GeneralConv2d) -> nn.Module:
    """U·(x − WΛσ(z), Λ^½σ(z)) with ‖U‖ ≤ 1: zeros behind x, a residual (``frozen_expansion``), a product with U."""
    image = isinstance(layer, general.GeneralConv2d)

    def norm(matrix: np.ndarray) -> float:  # as the audit proves it
        one = matrix[:, :, None, None] if image else matrix
        return (convolution.conv_norm_bound(one) if image else dense.norm_bound(one)).value

    mixing = contraction(torch.cat(copy.deepcopy(layer).double().contraction(), dim=1), norm)
    last = plain_conv2d(mixing[:, :, None, None], None) if image else plain_linear(mixing, None)
    pad = shape.PadChannels(layer.inputs + layer.hidden, -3 if image else -1)
    return nn.Sequential(pad, frozen_expansion(layer), last)


def _sandwich_linear(layer: sandwich.SandwichLinear) -> nn.Module:
    residue = _sandwiched(layer, copy.deepcopy(layer).double().matrix(), None, None)
    pad = shape.PadChannels(layer.in_features + layer.hidden, -1)
    return nn.Sequential(pad, residue, shape.TakeChannels(layer.hidden, layer.in_features, dim=-1))


def _sandwich_conv(layer: sandwich.SandwichConv2d) -> nn.Module:
    _require_torus(layer)
    kernel = copy.deepcopy(layer).double().kernel()
    padding = (kernel.shape[2] // 2, kernel.shape[3] // 2)
    geometry = {"stride": (1, 1), "padding": padding, "padding_mode": "circular", "groups": 1}
    residue = _sandwiched(layer, kernel, geometry, layer.inner)
    take = shape.TakeChannels(layer.hidden, kernel.shape[1] - layer.hidden, dim=-3)
    moved = [shape.SpaceToDepth(layer.stride)] if layer.stride > 1 else []
    return nn.Sequential(*moved, shape.PadChannels(kernel.shape[1], -3), residue, take)


def _sandwiched(
    layer: sandwich.SandwichLinear | sandwich.SandwichConv2d,
    joined: Tensor,  # [A B]
    geometry: dict[str, Any] | None,
    torus: tuple[int, int] | None,
) -> nn.Module:
    """√2AᵀΨσ(√2Ψ⁻¹Bx + b) is what the residual of W = √2[B −A]ᵀΨ⁻¹ and γ = Ψ²/2 makes of zeros behind x.

    A positively homogeneous σ does not see Ψ but in b: W = [B −A]ᵀ, γ = 1, the bias Ψb/√2.
    """
    psi, one = layer.psi().double(), torch.ones(len(joined), device=joined.device, dtype=torch.float32)
    weight, target = torch.cat((joined[:, layer.hidden :], -joined[:, : layer.hidden]), dim=1), one.double()
    bias = scaled_bias(layer.bias, 1 / psi, one)
    if not layer.activation.homogeneous:
        weight = weight * (math.sqrt(2) / psi).view(-1, *[1] * (weight.ndim - 1))
        target, bias = psi.square() / 2, scaled_bias(layer.bias, one[0], one)
    elif bias is not None:
        bias = bias / math.sqrt(2)
    bias = None if bias is None else bias.float()
    return Sought(weight.float(), target.cpu().numpy(), bias, layer.activation, None, geometry, torus).frozen()


def _combination(layer: shape.ConvexCombination) -> nn.Module:
    weights = layer.logits.double().softmax(dim=0) * (1 - 2.0**-22)  # rounding adds less: the sum stays below 1
    return FrozenCombination(weights.float(), [_freeze(branch, "a branch") for branch in layer.branches])


RULES: dict[type, Callable[[Any], nn.Module]] = {
    residual.ResidualLinear: frozen_residual,
    residual.ResidualConv2d: frozen_residual,
    affine.AffineLinear: _linear,
    orthogonal.OrthogonalLinear: _linear,
    affine.AffineConv2d: _conv,
    orthogonal_conv.OrthogonalConv2d: _orthogonal_conv,
    orthogonal_conv.OrthogonalResidualConv2d: _orthogonal_residual,
    general.GeneralLinear: _general,
    general.GeneralConv2d: _general,
    sandwich.SandwichLinear: _sandwich_linear,
    sandwich.SandwichConv2d: _sandwich_conv,
    head.NormalizedHead: _head,
    head.FirstLogits: lambda layer: shape.TakeChannels(layer.num_classes),
    shape.Pixelwise: _pixelwise,
    activation.Householder: _householder,
    shape.ConvexCombination: _combination,
}
