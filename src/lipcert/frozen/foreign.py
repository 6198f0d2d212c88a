"""Modules of torch.nn that come in disguise: compiled, parametrized, or as subclasses that only add methods.

``unwrapped`` gives the plain module behind them. Parametrized tensors are taken as they are at this moment.
"""

from __future__ import annotations

import copy
from types import FunctionType

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipcert.errors import NotCertified
from lipcert.intact import compiled_module, require_intact

_HARMLESS = (
    "__init__",
    "__module__",
    "__qualname__",
    "__doc__",
    "__annotations__",
    "__dict__",
    "__weakref__",
    "__static_attributes__",  # of Python 3.13
    "__firstlineno__",
    "extra_repr",
)
_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)


def unwrapped(module: nn.Module, *, parametrized: bool) -> nn.Module:
    """The plain module that ``module`` is. ``parametrized``: whether present values may stand for a formula.

    A parametrized weight is computed anew at every call, in the precision of the network: a proof about the present
    numbers says nothing about a network that was converted to float64.
    """
    inner = compiled_module(module)
    if inner is not None:
        return unwrapped(inner, parametrized=parametrized)
    if parametrize.is_parametrized(module):
        if not parametrized:
            raise NotCertified(
                "its weight is computed anew at every call, by a parametrization. Store the present numbers: use "
                "lipcert.freeze(model), or call torch.nn.utils.parametrize.remove_parametrizations first."
            )
        return unwrapped(_present_values(module), parametrized=parametrized)
    base = _inherited(type(module))
    if base is None:
        return module
    require_intact(module)
    plain = copy.copy(module)  # shares its tensors; whoever stores them clones them
    plain.__class__ = base
    return plain


def _present_values(module: nn.Module) -> nn.Module:
    """A parametrized module as one of its original type with the values of this moment.

    Not by ``remove_parametrizations``: that changes the class, which a copy shares with the module of the caller.
    """
    for part in module.modules():
        require_intact(part)
    source = copy.deepcopy(module)  # evaluating a parametrization may move its buffers
    kind = parametrize.type_before_parametrizations(source)
    plain: nn.Module = object.__new__(kind)
    plain.__dict__ = {
        key: copy.copy(value) if key in ("_parameters", "_buffers", "_modules") else value
        for key, value in source.__dict__.items()
    }
    del plain._modules["parametrizations"]
    for tensor in source.parametrizations:  # type: ignore[union-attr]
        first, again = (getattr(source, tensor).detach().clone() for _ in range(2))
        if type(again) is not Tensor or not torch.equal(first, again):
            raise NotCertified(
                f"{kind.__qualname__} must have the same plain {tensor} at every call, but its parametrization "
                "changes it. Call .eval(), or store the present one with parametrize.remove_parametrizations."
            )
        plain._parameters[tensor] = nn.Parameter(again, requires_grad=False)
    return plain


def _inherited(kind: type) -> type | None:
    """The product of torch.nn that ``kind`` is a subclass of, if it adds methods at most and replaces none."""
    for index, base in enumerate(kind.__mro__):
        if base in _PRODUCTS:
            inherits = base is not kind and kind.__mro__[index:] == base.__mro__  # else a mixin comes after it
            return base if inherits else None
        for name, value in vars(base).items():
            replaces = name.startswith("__") or not isinstance(value, FunctionType)
            if name not in _HARMLESS and (replaces or hasattr(nn.ConvTranspose2d, name)):
                return None
    return None
