"""``freeze``: which frozen module each layer becomes. An affine layer keeps the one matrix V that it multiplies by.

A frozen network has no link to the one it came from. Rounding: see ``rounded``.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from lipcert.algebra.scale import dead_as_in
from lipcert.errors import NotCertified
from lipcert.frozen import circular
from lipcert.frozen.foreign import unwrapped
from lipcert.frozen.modules import (
    FrozenCombination,
    FrozenHouseholder,
    FrozenResidual,
    FrozenResidualConv2d,
    FrozenResidualLinear,
    plain_conv2d,
    plain_linear,
    with_buffers,
)
from lipcert.frozen.rounded import contraction, frozen_expansion, frozen_residual
from lipcert.frozen.torus import FrozenTorus
from lipcert.intact import all_finite, require_intact
from lipcert.layers import (
    activation,
    forms,
    head,
    shape,
)
from lipcert.layers.contract import require_finite, require_no_loop, require_vouched
from lipcert.layers.operators import Conv
from lipcert.verified import convolution, dense

FROZEN = (FrozenResidual, FrozenTorus, FrozenHouseholder, FrozenCombination)
_ONE_AT_A_TIME = threading.RLock()
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
    shape.Center,
    shape.Normalize,
    shape.Scale,
    activation.MaxMin,
    activation.GroupSort,
    activation.Abs,
)


def freeze(model: nn.Module) -> nn.Module:
    """The network as plain modules with buffers, in evaluation mode and float32; ``model`` is not changed.

    Parametrized modules of torch.nn are stored with their present weights. A ``Scale`` behind a last linear map
    joins it, so that it costs no radius.

    Raises:
        NotCertified: for a module that lipcert does not know, a hook, or a parameter that is not finite.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch module; got {type(model).__name__}. Pass the network itself.")
    require_no_loop(model)
    with _ONE_AT_A_TIME:  # modes and the number of threads are set for a moment
        return _frozen(model)


def _frozen(model: nn.Module) -> nn.Module:
    was, threads = [(module, module.training) for module in model.modules()], torch.get_num_threads()
    try:
        model.eval()  # the exact ratio of a surrogate SLL
        torch.set_num_threads(1)  # sums in one order: the same bits for whoever certifies, attacks or exports
        with torch.no_grad():
            frozen = _fold_scale(_freeze(model, "the network"))
    finally:
        torch.set_num_threads(threads)
        for module, mode in was:
            module.training = mode
    return frozen.eval()


def _freeze(module: nn.Module, name: str) -> nn.Module:
    module = unwrapped(module, parametrized=True)
    kind = type(module)
    if kind is nn.Sequential:
        require_intact(module)
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
        require_intact(part)
        if hasattr(part, "require_sound"):
            require_vouched(part, "require_sound")
    require_finite(module)
    if kind in RULES:
        with dead_as_in(_dtype(module)):
            return _within_float32(RULES[kind](module), name)
    kept = copy.deepcopy(module)
    out_of_place(kept)
    if isinstance(kept, (nn.Linear, nn.Conv2d)):  # plain already; its constant is for the audit to find
        return _within_float32(with_buffers(kept, kept.weight.float(), kept.bias), name)
    return kept if isinstance(kept, FROZEN) else _within_float32(kept.float(), name)


def _dtype(module: nn.Module) -> torch.dtype:
    """What the layer computes in."""
    floating = [tensor.dtype for tensor in module.parameters() if tensor.is_floating_point()]
    return floating[0] if floating else torch.float32


def _within_float32(frozen: nn.Module, name: str) -> nn.Module:
    """``frozen``, if its numbers survived the conversion to float32."""
    for part in frozen.modules():
        tensors = [*part._parameters.values(), *part._buffers.values()]
        finite = all(all_finite(tensor) for tensor in tensors if tensor is not None)
        if not finite or (isinstance(part, shape.Normalize) and not bool((part.std > 0).all())):
            raise NotCertified(
                f"{name} holds numbers that float32 cannot store (beyond 3e38, or a std below 1e-45). Rescale it."
            )
    return frozen


def _fold_scale(network: nn.Module) -> nn.Module:
    """A last Scale joins the linear map before it."""
    leaves = [
        (name, part)
        for name, part in network.named_modules(remove_duplicate=False)
        if type(part) is not nn.Sequential and ("." not in name or _in_sequentials(network, name))
    ]
    if len(leaves) < 2 or type(leaves[-1][1]) is not shape.Scale or type(leaves[-2][1]) is not nn.Linear:
        return network
    joined = scaled_linear(leaves[-2][1], leaves[-1][1])
    if joined is not None:
        network.set_submodule(leaves[-2][0], joined)
        folder, _, last = leaves[-1][0].rpartition(".")
        del network.get_submodule(folder)._modules[last]
    return network


def _in_sequentials(network: nn.Module, name: str) -> bool:
    """Whether a part is reached through nn.Sequential alone, not as a branch of something."""
    folder = name.rpartition(".")[0]
    return type(network.get_submodule(folder)) is nn.Sequential and (
        "." not in folder or _in_sequentials(network, folder)
    )


def scaled_linear(linear: nn.Module, scale: nn.Module) -> nn.Linear | None:
    """K·(Vx + b) as one linear map; None where K·V or K·b leaves the range in which float32 is accurate."""
    assert isinstance(linear, nn.Linear)
    assert isinstance(scale, shape.Scale)
    weight = (linear.weight.double() * scale.factor).float()
    bias = None if linear.bias is None else (linear.bias.double() * scale.factor).float()
    for old, new in ((linear.weight, weight), (linear.bias, bias)):
        if new is not None and not bool(((new.abs() >= 2.0**-100) & torch.isfinite(new) | (old == 0)).all()):
            return None
    return plain_linear(weight, bias)


def out_of_place(module: nn.Module) -> None:
    """No part of ``module`` overwrites its input any more: an input may be someone's, or another branch's."""
    for part in module.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]


def _linear(layer: forms.Affine) -> nn.Module:
    double = copy.deepcopy(layer).double()
    weight = contraction(double.scaled_weight(), lambda w: dense.norm_bound(w).value)
    return plain_linear(weight, layer.bias)


def _conv(layer: forms.Affine) -> nn.Module:
    double = copy.deepcopy(layer).double()
    weight = double.scaled_weight().float()  # its constant is what the audit proves, near 1
    operator = layer.operator
    assert isinstance(operator, Conv)
    return plain_conv2d(
        weight, layer.bias, operator.stride, operator.padding, operator.padding_mode, operator.groups
    )


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


def _general(layer: forms.General) -> nn.Module:
    """U·(x − WΛσ(z), Λ^½σ(z)) with ‖U‖ ≤ 1: zeros behind x, a residual (``frozen_expansion``), a product with U."""
    image = layer.operator.axes > 0

    def norm(matrix: np.ndarray) -> float:  # as the audit proves it
        one = matrix[:, :, None, None] if image else matrix
        return (convolution.conv_norm_bound(one) if image else dense.norm_bound(one)).value

    mixing = contraction(torch.cat(copy.deepcopy(layer).double().contraction(), dim=1), norm)
    last = plain_conv2d(mixing[:, :, None, None], None) if image else plain_linear(mixing, None)
    pad = shape.PadChannels(layer.operator.inputs + layer.operator.outputs, -3 if image else -1)
    return nn.Sequential(pad, frozen_expansion(layer), last)


def _combination(layer: shape.ConvexCombination) -> nn.Module:
    weights = layer.logits.double().softmax(dim=0) * (1 - 2.0**-22)  # rounding adds less: the sum stays below 1
    return FrozenCombination(weights.float(), [_freeze(branch, "a branch") for branch in layer.branches])


RULES: dict[type, Callable[[Any], nn.Module]] = {
    forms.ResidualLinear: frozen_residual,
    forms.ResidualConv2d: frozen_residual,
    forms.AffineLinear: _linear,
    forms.OrthogonalLinear: _linear,
    forms.AffineConv2d: _conv,
    forms.OrthogonalConv2d: circular.orthogonal_conv,
    forms.OrthogonalResidualConv2d: circular.orthogonal_residual,
    forms.GeneralLinear: _general,
    forms.GeneralConv2d: _general,
    forms.SandwichLinear: circular.sandwich_linear,
    forms.SandwichConv2d: circular.sandwich_conv,
    head.NormalizedHead: _head,
    head.FirstLogits: lambda layer: shape.TakeChannels(layer.num_classes),
    shape.Pixelwise: _pixelwise,
    activation.Householder: _householder,
    shape.ConvexCombination: _combination,
}
