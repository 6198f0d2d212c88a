"""Which operation a module is: the layers of lipcert once frozen, and what torch.nn offers beside them.

A rule looks at the exact type, the stored tensors and the shape that arrives; a subclass of a product of torch.nn
that replaces nothing but its construction, as parametrised layers do, is what it inherits. A module without a rule
is refused by name, never counted as 1. A user may add a rule for a type; its constant is then ASSUMED, and every
report says so.

Rounding: constants up.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipcert import frozen
from lipcert.errors import NotCertified
from lipcert.layers.contract import LipschitzLayer, require_no_hooks
from lipcert.proofs import elementary, pools, products
from lipcert.proofs import operation as op
from lipcert.proofs.elementary import shape_after
from lipcert.proofs.operation import Operation, Shape
from lipcert.proofs.products import PRODUCTS
from lipcert.verified.rounding import U32, U64

ROOM = 1 + 2.0**-28
_HARMLESS = ("__init__", "__module__", "__doc__", "__annotations__", "__dict__", "__weakref__", "extra_repr")
_RULES = elementary.RULES | pools.RULES | products.RULES
_ASSUMED: dict[type, Callable[[Any], float]] = {}


def register_rule(kind: type, constant: Callable[[Any], float]) -> None:
    """Vouch for modules of exactly this type: ``constant(module)`` is its Lipschitz constant, marked ASSUMED."""
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ValueError(f"expected a subclass of nn.Module; got {kind!r}. Pass the class, not an object.")
    _ASSUMED[kind] = constant


def operations(
    model: nn.Module, input_shape: Shape, dtype: torch.dtype = torch.float64, block: int | None = None
) -> list[tuple[str, Operation]]:
    """The named operations of a frozen, foreign or training network, in order."""
    found: list[tuple[str, Operation]] = []
    current = tuple(int(size) for size in input_shape)
    for name, module in _leaves(model, ""):
        try:
            one = rule(module, current, dtype, block)
            with torch.no_grad():
                one.forward(torch.zeros(1, *current, dtype=dtype))  # the shapes fit
        except NotCertified as refusal:
            raise NotCertified(f"{name or 'the network'} ({type(module).__qualname__}): {refusal}") from None
        except (RuntimeError, IndexError) as error:  # how torch says that shapes do not fit
            reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
            raise ValueError(
                f"{name or 'the network'} ({type(module).__qualname__}) must accept inputs of shape {current}; "
                f"got: {reason}. Check the shape of the input and the layers before it."
            ) from None
        if one.lipschitz != 1.0:  # room for a checker whose own proof rounds otherwise
            one = replace(one, lipschitz=one.lipschitz * ROOM)
        found.append((name, one))
        current = one.shape
    return found


def _leaves(module: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """Children of nn.Sequential in order; torch.compile's wrapper opened; lipcert's training layers frozen."""
    kind = type(module)
    if (kind.__module__, kind.__qualname__) == ("torch._dynamo.eval_frame", "OptimizedModule"):
        require_no_hooks(module, patches=False)  # the wrapper sets its own forward
        return _leaves(module.get_submodule("_orig_mod"), name)
    if kind is nn.Sequential:
        require_no_hooks(module)
        return [
            leaf
            for key, child in module._modules.items()
            if child is not None
            for leaf in _leaves(child, f"{name}.{key}" if name else key)
        ]
    if parametrize.is_parametrized(module):
        return _leaves(_present_values(module), name)
    if kind in frozen.RULES:
        return _leaves(frozen.freeze(module), name)
    base = None if kind in _ASSUMED else _inherited(kind)
    if base is not None:
        module = copy.deepcopy(module)
        module.__class__ = base
    return [(name, module)]


def _present_values(module: nn.Module) -> nn.Module:
    """A parametrised module as one of its original type with the values of this moment.

    Not by ``remove_parametrizations``: that changes the class, which a copy shares with the module of the caller.
    """
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
        if not torch.equal(first, again):
            raise NotCertified(
                f"{kind.__qualname__} must have the same {tensor} at every call; got one that its parametrization "
                "changes. Call .eval(), or store the present one with parametrize.remove_parametrizations."
            )
        plain._parameters[tensor] = nn.Parameter(again, requires_grad=False)
    return plain


def _inherited(kind: type) -> type | None:
    """The product of torch.nn that ``kind`` is a subclass of, if it adds methods at most and replaces none."""
    for index, base in enumerate(kind.__mro__):
        if base in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d):
            inherits = base is not kind and kind.__mro__[index:] == base.__mro__  # else a mixin comes after it
            return base if inherits else None
        for name, value in vars(base).items():
            if name not in _HARMLESS and (not isinstance(value, FunctionType) or hasattr(nn.ConvTranspose2d, name)):
                return None
    return None


def rule(
    module: nn.Module, shape_in: Shape, dtype: torch.dtype = torch.float64, block: int | None = None
) -> Operation:
    """The operation that ``module`` is for inputs of that shape (without the batch)."""
    kind = type(module)
    if kind in _ASSUMED:
        require_no_hooks(module)
        constant = float(_ASSUMED[kind](module))
        if not 0 <= constant < math.inf:
            raise NotCertified(
                f"the rule registered for it must give a finite constant ≥ 0; got {constant}. Correct it."
            )
        module = _as(module, dtype)
        out = shape_after(module, shape_in)
        return Operation(_name(kind), out, constant, "assumed", module, None, None, constant, assumed=True)
    require_no_hooks(module)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            wide = _as(module, dtype)
            out = shape_after(wide, shape_in)
            return Operation(_name(kind), out, math.inf, "NaN or infinity in its tensors", wide, None, None)
    if isinstance(module, frozen.FrozenCombination) and kind is frozen.FrozenCombination:
        return _combination(copy.deepcopy(module), shape_in, dtype, block)
    made = _RULES.get(kind)
    if made is None and kind not in PRODUCTS and isinstance(module, LipschitzLayer):
        constant, wide = module.lipschitz_bound(), _as(module, dtype)
        out = shape_after(wide, shape_in)
        return Operation(_name(kind), out, constant, "its author's", wide, None, None, constant, assumed=True)
    if made is None and kind not in PRODUCTS:
        raise NotCertified(
            "no rule proves a constant for this module. Replace it, or vouch for it with lipcert.register_rule."
        )
    if kind in PRODUCTS:
        return PRODUCTS[kind](copy.deepcopy(module), shape_in, block)  # a proof about numbers that stay
    assert made is not None
    return made(_as(module, dtype), shape_in)


def _as(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same numbers in that dtype, with nothing to train: what the operation runs."""
    made = copy.deepcopy(module).to(dtype).requires_grad_(False)
    frozen.out_of_place(made)
    return made


def _name(kind: type) -> str:
    return f"<{kind.__qualname__}>"  # never the name of an operation that is known


def _combination(
    module: frozen.FrozenCombination, shape_in: Shape, dtype: torch.dtype, block: int | None
) -> Operation:
    """Σ_k α_k f_k with α ≥ 0: L = Σ_k α_k L_k. Within a branch ‖z‖ ≤ L‖z before‖ + ‖f(0)‖."""
    weights = [float(value) for value in module.weights]
    branches = [[one for _, one in operations(branch, shape_in, dtype, block)] for branch in module.branches]
    starts = [_offsets(branch, shape_in, dtype) for branch in branches]
    constants = [math.prod(one.lipschitz for one in branch) * op.ROUND for branch in branches]
    total = math.fsum(w * c for w, c in zip(weights, constants, strict=True)) * op.ROUND

    def forward(x: Tensor) -> Tensor:
        mixed = torch.zeros((), dtype=x.dtype)
        for weight, branch in zip(weights, branches, strict=True):
            z = x
            for one in branch:
                z = one.forward(z)
            mixed = mixed + weight * z
        return mixed

    def error(norms: Tensor, u: float) -> Tensor:
        lost, reached = torch.zeros_like(norms), torch.zeros_like(norms)
        for weight, branch, offsets in zip(weights, branches, starts, strict=True):
            size, err = norms, torch.zeros_like(norms)
            for one, offset in zip(branch, offsets, strict=True):
                err = (one.lipschitz * err + one.error_bound((size + err) * op.ROUND, u)) * op.ROUND
                size = (one.lipschitz * size + offset) * op.ROUND
            lost, reached = lost + weight * err, reached + weight * (size + err)
        return (lost + op.g(len(weights) + 2, u) * reached) * op.ROUND + op.UNDERFLOW[u]

    if not weights or min(weights) < 0:
        return Operation("combination", shape_in, math.inf, "no weights, or a negative one", forward, None, None)
    out = branches[0][-1].shape if branches[0] else shape_in
    assumed = any(one.assumed for branch in branches for one in branch)
    return Operation("combination", out, total, "branches", forward, error, None, assumed=assumed)


@torch.no_grad()
def _offsets(branch: list[Operation], shape_in: Shape, dtype: torch.dtype) -> list[float]:
    """‖f(0)‖ of every operation of a branch, rounded up."""
    found, u = [], U64 if dtype == torch.float64 else U32
    for one in branch:
        value = one.forward(torch.zeros(1, *shape_in, dtype=dtype)).double()
        rounded = float(one.error_bound(torch.zeros(1, dtype=torch.float64), u))
        found.append(float(value.norm()) * (1 + 2.0**-20) + rounded + 2.0**-400)
        shape_in = one.shape
    return found
