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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lipcert import frozen
from lipcert.errors import NotCertified
from lipcert.frozen.foreign import unwrapped
from lipcert.intact import all_finite, require_intact
from lipcert.layers.contract import LipschitzLayer
from lipcert.layers.head import NormalizedHead
from lipcert.layers.shape import Scale
from lipcert.proofs import elementary, pools, products
from lipcert.proofs import operation as op
from lipcert.proofs.elementary import shape_after
from lipcert.proofs.operation import Operation, Shape
from lipcert.proofs.products import PRODUCTS
from lipcert.verified.rounding import U32, U64, prod_up

ROOM = 1 + 2.0**-28
_RULES = elementary.RULES | pools.RULES | products.RULES
_ASSUMED: dict[type, Callable[[Any], float]] = {}


def register_rule(kind: type, constant: float | Callable[[Any], float]) -> None:
    """Vouch for modules of exactly this type: their Lipschitz constant, or a function of the module that gives it.

    What rests on it is marked ASSUMED. Rounding errors of such a module are unknown, so that ``certify`` needs
    ``arithmetic="real"``.
    """
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ValueError(f"expected a subclass of nn.Module; got {kind!r}. Pass the class, not an object.")
    if callable(constant):
        _ASSUMED[kind] = constant
        return
    if isinstance(constant, bool) or not isinstance(constant, (int, float)) or not 0 <= constant < math.inf:
        raise ValueError(
            f"the constant must be a finite number of at least 0, or a function of the module that gives one; got "
            f"{constant!r}."
        )
    value = float(constant)
    _ASSUMED[kind] = lambda module: value


def operations(
    model: nn.Module,
    input_shape: Shape,
    dtype: torch.dtype = torch.float64,
    block: int | None = None,
    *,
    parametrized: bool = False,
) -> list[tuple[str, Operation]]:
    """The named operations of a frozen, foreign or training network, in order."""
    found: list[tuple[str, Operation]] = []
    current = tuple(int(size) for size in input_shape)
    for leaf in _leaves(model, "", parametrized):
        name, module = leaf.name, leaf.module
        try:
            one = rule(module, current, dtype, block)
            with torch.no_grad():
                out = one.forward(torch.zeros(1, *current, dtype=dtype))
            if not one.shape:
                raise NotCertified("it must keep an axis for features behind the batch. Flatten from dimension 1.")
            if tuple(out.shape) != (1, *one.shape):  # torch broadcast something
                raise NotCertified(
                    f"it must give outputs of shape {one.shape}, but it gives {tuple(out.shape[1:])}. Check the "
                    "shapes of its tensors."
                )
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


@dataclass(frozen=True)
class _Leaf:
    name: str
    module: nn.Module
    head: bool = False  # a normalized head that was frozen here


def _leaves(module: nn.Module, name: str, parametrized: bool) -> list[_Leaf]:
    """Children of nn.Sequential in order; wrappers of torch opened; lipcert's training layers frozen."""
    kind = type(module)
    if kind in _ASSUMED:
        return [_Leaf(name, module)]
    try:
        plain = unwrapped(module, parametrized=parametrized)
        if type(plain) is nn.Sequential:
            require_intact(plain)
        opened = frozen.freeze(plain) if type(plain) in frozen.RULES else plain
    except NotCertified as refusal:
        raise NotCertified(f"{name or 'the network'} ({kind.__qualname__}): {refusal}") from None
    if type(opened) is not nn.Sequential:
        return [_Leaf(name, opened, type(plain) is NormalizedHead)]
    leaves = [
        leaf
        for key, child in opened._modules.items()
        if child is not None
        for leaf in _leaves(child, f"{name}.{key}" if name else key, parametrized)
    ]
    if not name and len(leaves) > 1 and leaves[-2].head and type(leaves[-1].module) is Scale:
        joined = frozen.scaled_linear(leaves[-2].module, leaves[-1].module)  # as ``freeze`` does it
        if joined is not None:
            leaves[-2:] = [_Leaf(leaves[-2].name, joined, head=True)]
    return leaves


def rule(
    module: nn.Module, shape_in: Shape, dtype: torch.dtype = torch.float64, block: int | None = None
) -> Operation:
    """The operation that ``module`` is for inputs of that shape (without the batch)."""
    kind = type(module)
    if kind in _ASSUMED:
        require_intact(module, tensors=False)
        constant = float(_ASSUMED[kind](module))
        if not 0 <= constant < math.inf:
            raise NotCertified(
                f"the rule registered for it must give a finite constant ≥ 0; got {constant}. Correct it."
            )
        module = _as(module, dtype)
        out = shape_after(module, shape_in)
        return Operation(_name(kind), out, constant, "assumed", module, None, None, constant, assumed=True)
    require_intact(module)
    for tensor_name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor_name == "witness":  # proves something or nothing; it is no part of the function
            continue
        if tensor.is_complex():
            raise NotCertified("its tensors are complex, and the proofs are about real numbers.")
        if tensor.is_floating_point() and not all_finite(tensor):
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
        if not isinstance(module.weight, Tensor):
            raise NotCertified("it has no weight. Build it anew.")
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
    require_intact(module.branches)
    if type(module.branches) is not nn.ModuleList:
        raise NotCertified("its branches must be a plain ModuleList. Build it anew.")
    weights = [float(value) for value in module.weights]
    if not weights or len(weights) != len(module.branches):
        raise NotCertified(f"it has {len(module.branches)} branches and {len(weights)} weights. Build it anew.")
    branches = [[one for _, one in operations(branch, shape_in, dtype, block)] for branch in module.branches]
    out, *others = (branch[-1].shape if branch else shape_in for branch in branches)
    if any(shape != out for shape in others):
        raise NotCertified(
            f"its branches must give one shape, but they give {[out, *others]}. Change the branches."
        )
    starts = [_offsets(branch, shape_in, dtype) for branch in branches]
    constants = [prod_up(one.lipschitz for one in branch if one.lipschitz != 1) for branch in branches]
    # Each term and the sum are rounded once more; what underflows loses at most 2⁻¹⁰⁷⁴ a term.
    total = math.fsum(w * c for w, c in zip(weights, constants, strict=True)) * op.ROUND + 2.0**-1060

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

    if not min(weights) >= 0:
        return Operation("combination", out, math.inf, "a negative weight", forward, None, None)
    parts = [one for branch in branches for one in branch]
    assumed = any(one.assumed for one in parts)
    return Operation(
        "combination",
        out,
        total,
        "branches",
        forward,
        error,
        None,
        claim=total if assumed else None,
        assumed=assumed,
        assumes=tuple(sorted({text for one in parts for text in one.assumes})),
    )


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
