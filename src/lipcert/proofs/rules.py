"""Which operation a module is: the layers of lipcert once frozen, and what torch.nn offers beside them.

A rule looks at the exact type, the stored tensors and the shape that arrives; a subclass of a product of torch.nn
that replaces nothing but its construction, as parametrised layers do, is what it inherits. A module without a rule
is refused by name, never counted as 1. A user may add a rule for a type; its constant is then ASSUMED, and every
report says so.

Rounding: constants up. An unknown geometry (reflect padding, overlapping maxima) has no rule.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipcert import frozen
from lipcert.errors import NotCertified
from lipcert.layers import activation, shape
from lipcert.layers.contract import LipschitzLayer, require_no_hooks
from lipcert.proofs import operation as op
from lipcert.proofs.operation import Geometry, Operation, Shape, relative_error
from lipcert.verified.convolution import conv_kappa
from lipcert.verified.dense import kappa as dense_kappa
from lipcert.verified.dense import norm_bound
from lipcert.verified.rounding import U32, U64, up

ROOM = 1 + 2.0**-28
_HARMLESS = ("__init__", "__module__", "__doc__", "__annotations__", "__dict__", "__weakref__", "extra_repr")
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
        out = _shape_after(module, shape_in)
        return Operation(_name(kind), out, constant, "assumed", module, None, None, constant, assumed=True)
    require_no_hooks(module)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            wide = _as(module, dtype)
            out = _shape_after(wide, shape_in)
            return Operation(_name(kind), out, math.inf, "NaN or infinity in its tensors", wide, None, None)
    if isinstance(module, frozen.FrozenCombination) and kind is frozen.FrozenCombination:
        return _combination(copy.deepcopy(module), shape_in, dtype, block)
    made = _RULES.get(kind)
    if made is None and kind not in _PRODUCTS and isinstance(module, LipschitzLayer):
        constant, wide = module.lipschitz_bound(), _as(module, dtype)
        out = _shape_after(wide, shape_in)
        return Operation(_name(kind), out, constant, "its author's", wide, None, None, constant, assumed=True)
    if made is None and kind not in _PRODUCTS:
        raise NotCertified(
            "no rule proves a constant for this module. Replace it, or vouch for it with lipcert.register_rule."
        )
    if kind in _PRODUCTS:
        return _PRODUCTS[kind](copy.deepcopy(module), shape_in, block)  # a proof about numbers that stay
    assert made is not None
    return made(_as(module, dtype), shape_in)


def _as(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same numbers in that dtype, with nothing to train: what the operation runs."""
    made = copy.deepcopy(module).to(dtype).requires_grad_(False)
    frozen.out_of_place(made)
    return made


def _name(kind: type) -> str:
    return f"<{kind.__qualname__}>"  # never the name of an operation that is known


@torch.no_grad()
def _shape_after(module: nn.Module, shape_in: Shape) -> Shape:
    like = next((t for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()), torch.zeros(()))
    out = module(torch.zeros(2, *shape_in, dtype=like.dtype, device=like.device))
    if not isinstance(out, Tensor) or out.ndim == 0 or len(out) != 2:
        raise NotCertified("it must map each example to a tensor of its own; got something else. Keep the batch.")
    return tuple(out.shape[1:])


def _exact(name: str, **fields: str) -> Callable[[Any, Shape], Operation]:
    """A move or a selection of entries: constant 1, no rounding; ``fields`` maps certificate to attribute."""

    def made(module: Any, shape_in: Shape) -> Operation:
        stored = {key: getattr(module, attribute) for key, attribute in fields.items()}
        return Operation(name, _shape_after(module, shape_in), 1.0, "exact", module, fields=stored)

    return made


def _elementwise(name: str) -> Callable[[Any, Shape], Operation]:
    """A permutation or a clamp: constant 1 and exact, but no operation of the certificate."""
    return lambda module, shape_in: Operation(
        name, _shape_after(module, shape_in), 1.0, "exact", module, fields=None
    )


def _flatten(module: nn.Flatten, shape_in: Shape) -> Operation:
    plain = module.start_dim == 1 and module.end_dim in (-1, len(shape_in))
    return Operation("flatten", _shape_after(module, shape_in), 1.0, "exact", module, fields={} if plain else None)


def _unflatten(module: nn.Unflatten, shape_in: Shape) -> Operation:
    _require_own_batch(module.dim, shape_in)
    return Operation("unflatten", _shape_after(module, shape_in), 1.0, "exact", module, fields=None)


def _identity(module: nn.Module, shape_in: Shape) -> Operation:
    if module.training and not isinstance(module, nn.Identity):
        raise NotCertified("it is random in training mode. Call .eval() first.")
    return Operation("identity", shape_in, 1.0, "exact", nn.Identity(), fields=None)


def _smooth(name: str, slope: Callable[[Any], float], ulps: int) -> Callable[[Any, Shape], Operation]:
    """A scalar function with |σ(x)| ≤ slope·|x| + |σ(0)|, computed within ``ulps`` units of its value."""

    def made(module: Any, shape_in: Shape) -> Operation:
        constant = slope(module)
        if not math.isfinite(constant):
            return Operation(name, shape_in, math.inf, "its slope is not finite", module, None, None)
        start = float(module(torch.zeros(1, dtype=torch.float64)).abs()) * math.sqrt(math.prod(shape_in)) * op.ROUND
        error = relative_error(2 * ulps + 1, 1.0, 0.0)

        def bound(norms: Tensor, u: float) -> Tensor:
            return error(constant * norms + start, u)

        return Operation(name, shape_in, constant, "slope", module, bound, None)

    return made


def _at_least_1(slope: float) -> float:
    return 1.0 if abs(slope) <= 1 else abs(slope)  # NaN stays NaN


def _centre(module: shape.Centre, shape_in: Shape) -> Operation:
    error = relative_error(2, 1.0, op.bias_norm(module.mean, None, math.prod(shape_in[1:])))
    fields = {"mean": module.mean}
    return Operation("centre", shape_in, 1.0, "exact", module, error, fields, largest=op.largest(module.mean))


def _normalize(module: shape.Normalize, shape_in: Shape) -> Operation:
    smallest = float(module.std.double().min())
    constant = up(1 / smallest, 1) if smallest > 0 else math.inf
    error = relative_error(2, constant, op.bias_norm(module.mean, None, math.prod(shape_in[1:])))
    fields = {"mean": module.mean, "std": module.std}
    biggest = max(op.largest(module.mean, module.std), constant)
    return Operation("normalize", shape_in, constant, "1/min std", module, error, fields, largest=biggest)


def _batch_norm(module: Any, shape_in: Shape) -> Operation:
    """In evaluation mode x ↦ x·w/√(v + ε) + …, per channel: its constant is the largest factor."""
    if module.training or module.running_var is None:
        raise NotCertified("it uses the statistics of the batch. Call .eval(), with tracked statistics.")
    scale = 1 / (module.running_var.double() + module.eps).sqrt()
    if not bool((module.running_var >= 0).all()):
        return Operation("batch_norm", shape_in, math.inf, "a negative variance", module, None, None)
    if module.weight is not None:
        scale = scale * module.weight.double()
    shift = (module.bias.double() if module.bias is not None else 0.0) - scale * module.running_mean.double()
    constant = up(float(scale.abs().max()), 8)
    positions = math.prod(shape_in[1:])
    offset = op.bias_norm(shift.abs() + (scale * module.running_mean.double()).abs(), None, positions)

    def error(norms: Tensor, u: float) -> Tensor:
        return relative_error(12, 1.0)(constant * norms + 2 * offset, u)

    return Operation("batch_norm", shape_in, constant, "largest factor", module, error, None)


def _scale(module: shape.Scale, shape_in: Shape) -> Operation:
    factor = abs(module.factor)
    fields = {"factor": float(module.factor).hex()} if 2.0**-100 <= factor <= 2.0**100 else None
    return Operation("scale", shape_in, factor, "exact", module, relative_error(1, factor), fields, largest=factor)


def _scaled_pool(module: shape.ScaledAvgPool2d, shape_in: Shape) -> Operation:
    size = math.prod(module.kernel_size)
    factor = math.sqrt(size) / size
    exact = math.isqrt(size) ** 2 == size and math.log2(size).is_integer()
    constant = 1.0 if exact else up(factor * math.sqrt(size), 4)
    fields = {"kernel": list(module.kernel_size), "factor": factor.hex()}
    out = _shape_after(module, shape_in)
    return Operation("sum_pool", out, constant, "blocks", module, relative_error(size + 2, constant), fields)


def _avg_pool(module: Any, shape_in: Shape) -> Operation:
    """A product of two maps, one per axis: windows that may overlap, each divided by its own size."""
    kernel, stride, padding = (_pair(v) for v in (module.kernel_size, module.stride, module.padding))
    one_d = isinstance(module, nn.AvgPool1d)
    if one_d:
        kernel, stride, padding = (1, kernel[0]), (1, stride[0]), (0, padding[0])
    out = _shape_after(module, shape_in)
    override = getattr(module, "divisor_override", None)
    if override is not None and override <= 0:
        return Operation("avg_pool", out, math.inf, "a divisor below 1", module, None, None)
    sizes = (1, shape_in[-1]) if one_d else (shape_in[-2], shape_in[-1])
    counts = (1, out[-1]) if one_d else (out[-2], out[-1])
    norms = []
    for k, s, p, size, count in zip(kernel, stride, padding, sizes, counts, strict=True):
        matrix = np.zeros((count, size))
        for index in range(count):
            start, end = index * s - p, min(index * s - p + k, size + p)
            inside = max(start, 0), min(end, size)
            if inside[0] >= inside[1]:
                continue  # a window of padding alone: 0
            divisor = 1 if override else end - start if module.count_include_pad else inside[1] - inside[0]
            matrix[index, inside[0] : inside[1]] = 1 / divisor
        norms.append(norm_bound(matrix).value)
    constant = up(math.prod(norms) / (override or 1), 8)  # entries and products are rounded: 8 units cover them
    error = relative_error(math.prod(kernel) + 2, constant)
    return Operation("avg_pool", out, constant, "windows", module, error, None)


def _max_pool(module: Any, shape_in: Shape) -> Operation:
    """Without overlap each maximum is 1-Lipschitz in its own window; with it an entry may count several times."""
    kernel, stride, dilation = (_pair(v) for v in (module.kernel_size, module.stride, module.dilation))
    if isinstance(module, nn.MaxPool1d):
        kernel, stride, dilation = (1, kernel[0]), (1, stride[0]), (1, dilation[0])
    times = [math.ceil(k / (s // math.gcd(s, d))) for k, s, d in zip(kernel, stride, dilation, strict=True)]
    constant = 1.0 if math.prod(times) == 1 else up(math.sqrt(math.prod(times)), 2)
    return Operation("max_pool", _shape_after(module, shape_in), constant, "windows", module, fields=None)


def _l2_pool(module: shape.L2Pool2d, shape_in: Shape) -> Operation:
    size = math.prod(module.kernel_size)
    root = math.sqrt(math.prod(shape_in))

    def error(norms: Tensor, u: float) -> Tensor:  # squares underflow below 2⁻⁵¹¹ (2⁻⁶³)
        lost = {U64: 2.0**-500, U32: 2.0**-58}[u] * root
        return relative_error(size + 4, 1.0)(norms, u) + lost

    return Operation("l2_pool", _shape_after(module, shape_in), 1.0, "norms", module, error, None)


def _linear(module: Any, shape_in: Shape, block: int | None) -> Operation:
    return op.linear(module.weight.detach(), _value(module.bias), shape_in, block)


def _conv2d(module: Any, shape_in: Shape, block: int | None) -> Operation:
    return op.conv(module.weight.detach(), _value(module.bias), shape_in, _geometry(module), block)


def _conv1d(module: Any, shape_in: Shape, block: int | None) -> Operation:
    inner = _geometry(module)
    flat = op.conv(
        module.weight.detach()[:, :, None], _value(module.bias), (shape_in[0], 1, shape_in[1]), inner, block
    )
    return Operation(
        "conv1d",
        (flat.shape[0], flat.shape[2]),
        flat.lipschitz,
        flat.method,
        lambda x: flat.forward(x[:, :, None])[:, :, 0],
        flat.error,
        None,
        largest=flat.largest,
    )


def _conv_transpose2d(module: Any, shape_in: Shape) -> Operation:
    """The adjoint of a convolution from the output's shape; an output padding adds rows, constant b."""
    if module.padding_mode != "zeros":
        raise NotCertified(f"padding_mode {module.padding_mode!r} has no proof here. Use zeros.")
    kernel = module.weight.detach()  # (in, out/groups, kh, kw): the kernel of the convolution it transposes
    one = op.conv(kernel, None, _shape_after(module, shape_in), _geometry(module), None)
    out, bias = _shape_after(module, shape_in), _value(module.bias)
    terms = kernel.shape[0] // module.groups * math.prod(kernel.shape[2:])
    kappa = conv_kappa(op.array(kernel), np.ones(len(kernel)), groups=module.groups)
    beta = op.bias_norm(bias, None, math.prod(out[1:]))
    return Operation(
        "conv_transpose",
        out,
        one.lipschitz,
        one.method,
        module,
        op.affine_error(terms, kappa, beta),
        None,
        largest=op.largest(kernel, bias),
    )


def _geometry(module: Any) -> Geometry:
    kernel, stride, dilation = (_pair(v) for v in (module.kernel_size, module.stride, module.dilation))
    if isinstance(module, nn.Conv1d):
        kernel, stride, dilation = (1, kernel[0]), (1, stride[0]), (1, dilation[0])
    if module.padding == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding = (reach[0] // 2, reach[0] - reach[0] // 2, reach[1] // 2, reach[1] - reach[1] // 2)
    elif module.padding == "valid":
        padding = (0, 0, 0, 0)
    else:
        high, wide = _pair(module.padding)
        if isinstance(module, nn.Conv1d):
            high, wide = 0, high
        padding = (high, high, wide, wide)
    return Geometry(kernel, stride, padding, dilation, module.padding_mode, module.groups)


def _residual_linear(module: frozen.FrozenResidualLinear, shape_in: Shape, block: int | None) -> Operation:
    parts = (module.weight, module.gamma, module.bias, module.witness, module.sigma)
    return op.residual(*parts, shape_in, None, block)


def _residual_conv(module: frozen.FrozenResidualConv2d, shape_in: Shape, block: int | None) -> Operation:
    high, wide = module.padding
    size = (int(module.weight.shape[2]), int(module.weight.shape[3]))
    geometry = Geometry(size, module.stride, (high, high, wide, wide), (1, 1), module.padding_mode, module.groups)
    parts = (module.weight, module.gamma, module.bias, module.witness, module.sigma)
    return op.residual(*parts, shape_in, geometry, block)


def _expansion(module: frozen.FrozenExpansion, shape_in: Shape) -> Operation:
    """JᵀJ = I − WΓ^½(2D − D² − DPD)Γ^½Wᵀ with P = Γ^½WᵀWΓ^½ ⪯ ρ, so L² ≤ 1 + (ρ − 1)₊ρ."""
    op.require_slopes(module.sigma)
    weight, gamma = op.array(module.weight), op.array(module.gamma)
    q = None if module.witness is None else op.array(module.witness)
    rho, kappa = op.dense_rho(weight, gamma, q), dense_kappa(weight, gamma)
    beta = op.bias_norm(module.bias, gamma, math.prod(shape_in[:-1]))
    inner = op.residual_error(rho.value, kappa, beta, (weight.shape[1], weight.shape[0]))
    root = math.sqrt(rho.value) * op.ROUND if math.isfinite(rho.value) else math.inf

    def error(norms: Tensor, u: float) -> Tensor:  # the first part as a residual, at most; the second, a + 3uv
        a = op.g(weight.shape[1] + 1, u) * (kappa * norms + beta)
        return inner(norms, u) + op.ROUND * (a + op.g(3, u) * (root * norms + beta + a)) + op.UNDERFLOW[u]

    upper = 1.0 if rho.value <= 1 else up(math.sqrt(1 + (rho.value - 1) * rho.value), 6)
    known = error if module.sigma.name == "relu" and math.isfinite(upper) else None
    big = op.largest(module.weight, module.gamma, module.bias)
    out = (*shape_in[:-1], shape_in[-1] + len(gamma))
    return Operation("expansion", out, upper, rho.method, module, known, None, claim=1.0, largest=big)


def _householder(module: frozen.FrozenHouseholder, shape_in: Shape) -> Operation:
    _require_own_batch(module.dim, shape_in)
    squares = module.first.double().square() + module.second.double().square()
    rho = up(float(squares.max()), 4)
    error = op.residual_error(rho, math.sqrt(rho) * op.ROUND, 0.0, (2, 2))  # κ = ‖|v|‖ = √ρ
    constant = max(1.0, math.nextafter(2 * rho - 1, math.inf))
    big = op.largest(module.first, module.second)
    return Operation("householder", shape_in, constant, "vectors", module, error, None, claim=1.0, largest=big)


def _require_own_batch(dim: int | str, shape_in: Shape) -> None:
    if dim in (0, -1 - len(shape_in)):
        raise NotCertified(f"it must not mix the examples of a batch; got dim={dim}. Channels are dimension 1.")


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


def _group_sort(module: Any, shape_in: Shape) -> Operation:
    _require_own_batch(module.dim, shape_in)
    name, fields = (
        ("max_min", {}) if isinstance(module, activation.MaxMin) else ("group_sort", {"size": module.group_size})
    )
    plain = module.dim in (1, -len(shape_in))
    return Operation(name, shape_in, 1.0, "exact", module, fields=fields if plain else None)


def _value(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (int(value[0]), int(value[0])) if len(value) == 1 else (int(value[0]), int(value[1]))


_RULES: dict[type, Callable[[Any, Shape], Operation]] = {
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.Dropout1d: _identity,
    nn.Dropout2d: _identity,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.ReLU: _exact("relu"),
    nn.ReLU6: _elementwise("relu6"),
    nn.PixelShuffle: _elementwise("pixel_shuffle"),
    nn.PixelUnshuffle: _elementwise("pixel_unshuffle"),
    nn.LeakyReLU: _smooth("leaky_relu", lambda m: _at_least_1(m.negative_slope), 1),
    nn.ELU: _smooth("elu", lambda m: _at_least_1(m.alpha), 8),
    nn.Tanh: _smooth("tanh", lambda m: 1.0, 8),
    nn.Sigmoid: _smooth("sigmoid", lambda m: 0.25, 8),
    nn.ConvTranspose2d: _conv_transpose2d,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.AvgPool1d: _avg_pool,
    nn.AvgPool2d: _avg_pool,
    nn.MaxPool1d: _max_pool,
    nn.MaxPool2d: _max_pool,
    shape.PadChannels: _exact("pad_channels", channels="channels"),
    shape.PadImage: _exact("pad_image", multiple="multiple"),
    shape.SpaceToDepth: _exact("space_to_depth", block="block"),
    shape.ScaledAvgPool2d: _scaled_pool,
    shape.L2Pool2d: _l2_pool,
    shape.Centre: _centre,
    shape.Normalize: _normalize,
    shape.Scale: _scale,
    activation.MaxMin: _group_sort,
    activation.GroupSort: _group_sort,
    activation.Abs: _exact("abs"),
    frozen.FrozenExpansion: _expansion,
    frozen.FrozenHouseholder: _householder,
}
_PRODUCTS: dict[
    type, Callable[[Any, Shape, int | None], Operation]
] = {  # of stored tensors, sums perhaps in blocks
    nn.Linear: _linear,
    nn.Conv1d: _conv1d,
    nn.Conv2d: _conv2d,
    frozen.FrozenResidualLinear: _residual_linear,
    frozen.FrozenResidualConv2d: _residual_conv,
}
