"""``lc.parametrize``: a layer of torch.nn becomes 1-Lipschitz in place, by ``torch.nn.utils.parametrize``.

Its weight W is replaced by WT^(−½) at every call, as in the affine layers (``forms.Affine``). T is that of the map,
a convolution with its stride, dilation and groups, and not of the kernel reshaped to a matrix.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize as parametrizations

from lipcert.algebra.bounds import Bound, Orthogonal, make_bound
from lipcert.errors import NotCertified
from lipcert.intact import Fixed, require_intact
from lipcert.layers.contract import require_finite, require_stated
from lipcert.layers.forms import scaled_weight
from lipcert.layers.operators import Conv, ConvTranspose, Dense

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
KINDS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)


class OneLipschitz(Fixed):
    """W ↦ WT^(−½), the weight of a map of norm at most 1."""

    def __init__(self, operator: Dense | Conv | ConvTranspose, bound: Bound) -> None:
        super().__init__()
        self.operator, self.bound = operator, bound

    def forward(self, weight: Tensor) -> Tensor:
        self.require_bound()
        return scaled_weight(self.operator, self.bound, weight).to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """W itself: a weight that is loaded or assigned is divided, not kept."""
        return weight

    def require_bound(self) -> None:
        """Raise ``NotCertified`` if the bound is not made for this operator: a user may have assigned another."""
        make_bound(self.bound, self.operator.inputs, convolution=self.operator.axes > 0)

    def extra_repr(self) -> str:
        return str(self.operator)


def parametrize(
    module: nn.Module, bound: str | Bound = "aol", *, where: Callable[[str, nn.Module], bool] | None = None
) -> nn.Module:
    """Make a linear or convolutional layer of torch.nn 1-Lipschitz in place, or all of them in a network.

    From now on ``layer.weight`` is WT^(−½), where W is the weight that the layer had and that training changes.
    ``torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")`` undoes it and keeps WT^(−½). A
    ``state_dict`` of the plain layer can be loaded; that of the parametrized layer has W under
    ``parametrizations.weight.original``.

    The constant 1 holds in real arithmetic, for every W. A certificate is about the numbers that ``lipcert.freeze``
    stores, whose norm is proved again.

    Args:
        module: an ``nn.Linear``, ``nn.Conv1d/2d/3d`` or ``nn.ConvTranspose1d/2d/3d``, or a network that has some.
        bound: the choice of T, a name or an object of ``lipcert.bounds``; each layer gets a copy.
        where: of a network, the layers for which ``where(name, layer)`` is true. By default all.

    Returns:
        ``module``.

    Raises:
        NotCertified: for a layer without a proof, such as one with reflect padding. No layer is changed then.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"expected a torch module, got {type(module).__name__}. Pass the layer or the network.")
    chosen: dict[str, tuple[nn.Module, OneLipschitz]] = {}
    for name, layer in module.named_modules():
        inside = "parametrizations" in name.split(".")
        if isinstance(layer, KINDS) and not inside and (where is None or where(name, layer)):
            try:
                chosen[name] = (layer, _one_lipschitz(layer, bound))
            except NotCertified as refusal:
                raise NotCertified(f"{name or 'the layer'} ({type(layer).__name__}): {refusal}") from None
    if not chosen:
        raise ValueError(
            f"{type(module).__name__} has no layer to parametrize: expected nn.Linear, nn.Conv1d/2d/3d or "
            "nn.ConvTranspose1d/2d/3d. Layers of lipcert are 1-Lipschitz as they are."
        )
    for layer, one in chosen.values():
        parametrizations.register_parametrization(layer, "weight", one)
        layer.register_load_state_dict_pre_hook(_load_plain)
        type(layer).__deepcopy__ = _copy  # type: ignore[attr-defined]
    return module


def is_dropped_in(module: nn.Module) -> bool:
    """Whether the weight of ``module``, and nothing else of it, is computed by ``parametrize``."""
    if not parametrizations.is_parametrized(module, "weight") or len(module.parametrizations) > 1:  # type: ignore[arg-type]
        return False
    steps = module.parametrizations.weight  # type: ignore[union-attr]
    return len(steps) == 1 and type(steps[0]) is OneLipschitz  # type: ignore[arg-type,index]


def require_one_lipschitz(layer: nn.Module) -> None:
    """Raise ``NotCertified`` unless a layer that ``parametrize`` changed still computes what it did then."""
    for part in layer.modules():
        require_intact(part)
    require_finite(layer)
    one: Any = layer.parametrizations.weight[0]  # type: ignore[union-attr,index]
    one.require_bound()
    require_stated(one.bound, "require_sound")
    one.bound.require_sound()
    if parametrizations.type_before_parametrizations(layer) not in KINDS or _operator(layer) != one.operator:
        raise NotCertified(
            f"the settings of {type(layer).__name__} are not those that it was parametrized with. Build a new "
            "layer."
        )


def _one_lipschitz(layer: nn.Module, bound: str | Bound) -> OneLipschitz:
    """The parametrization of a layer as it is set now; ``NotCertified`` if it has no proof."""
    if parametrizations.is_parametrized(layer) or layer._parameters.get("weight") is None:
        raise NotCertified("its weight is computed by something else already. Remove that first.")
    if type(layer) not in KINDS:
        raise NotCertified(
            "it is a subclass, which may compute something else than its torch class. Parametrize a plain layer, "
            "or leave it out by where=."
        )
    weight, operator = layer.get_parameter("weight"), _operator(layer)
    convolution = operator.axes > 0
    if convolution and (bound == "orthogonal" or isinstance(bound, Orthogonal)):
        raise NotCertified(
            "a convolution is orthogonal only on images of one size, which the layer does not know. Use "
            "lipcert.OrthogonalConv2d(..., image_size=...) in its place, or bound='aol'."
        )
    own = copy.deepcopy(bound) if isinstance(bound, Bound) else bound
    dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
    made = make_bound(own, operator.inputs, convolution=convolution, device=weight.device, dtype=dtype)
    made.start(operator.input_columns(made.prepare(weight.detach())[0]))
    return OneLipschitz(operator, made)


def _operator(layer: Any) -> Dense | Conv | ConvTranspose:
    """What the layer applies its weight as; paddings only decide whether there is a proof."""
    if isinstance(layer, nn.Linear):
        return Dense(layer.in_features, layer.out_features)
    kernel, stride, dilation, groups = layer.kernel_size, layer.stride, layer.dilation, layer.groups
    margin = layer.padding
    if isinstance(margin, str):  # zeros never raise the norm, however many
        margin = (0,) * len(kernel)
    if layer.padding_mode == "circular":  # torch pads by what it noted at construction, the last axis first
        before, after = layer._reversed_padding_repeated_twice[::2], layer._reversed_padding_repeated_twice[1::2]
        if before != after:
            raise NotCertified(
                f"circular padding must be the same on both sides; got {before} and {after}. Use an odd kernel."
            )
        margin = tuple(reversed(before))
    if isinstance(layer, TRANSPOSED):
        conv = Conv(layer.out_channels, layer.in_channels, kernel, stride, margin, dilation, groups=groups)
        return ConvTranspose(conv, layer.output_padding)
    conv = Conv(layer.in_channels, layer.out_channels, kernel, stride, margin, dilation, layer.padding_mode, groups)
    # On a circle whose length the stride does not divide, positions meet at other lags than on the plane. With
    # stride 1 all lags count, and a stride keeps some of the rows.
    return dataclasses.replace(conv, stride=(1,) * len(kernel)) if conv.circular else conv


def _copy(layer: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy with a class of its own.

    A parametrized layer has a class to itself, from which ``remove_parametrizations`` deletes ``weight``. Torch's
    own copies share that class, so that removing it from one would break the others.
    """
    kind = type(layer)
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    copied: nn.Module = object.__new__(type(kind.__name__, kind.__bases__, own))
    memo[id(layer)] = copied
    copied.__dict__ = copy.deepcopy(layer.__dict__, memo)
    return copied


def _load_plain(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before ``load_state_dict``: the weight of a plain layer becomes W, and a bound keeps its own parameters."""
    plain, place = f"{prefix}weight", f"{prefix}parametrizations.weight."
    if not is_dropped_in(module) or plain not in state or f"{place}original" in state:
        return
    state[f"{place}original"] = state.pop(plain)
    for name, tensor in module.parametrizations.weight.state_dict().items():  # type: ignore[union-attr]
        state.setdefault(f"{place}{name}", tensor)
