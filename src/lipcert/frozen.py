"""``freeze``: a network as plain modules that store what the proof is about, with no T left to compute.

A residual layer keeps one weight, γ = T⁻¹ and b, and computes x − W(2γ·σ(Wᵀx + b)): 2γ is exact, and the two
products use the same stored W, so that the Jacobian I − 2WΓDWᵀ is symmetric. Two rounded tensors, W and 2WΓ, would
not do. An affine layer keeps the one matrix V that it multiplies by.

Rounding: γ is rounded down to float32 and divided by a verified bound of ρ = λmax(WΓWᵀ) wherever that exceeds 1, so
ρ ≤ 1 holds for the stored numbers, exactly; V likewise. A frozen network has no link to the one it came from, and
no parameters: only buffers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.activations import SlopeRestricted
from lipcert.algebra.gram import absolute_gram, dense_columns, residual_columns
from lipcert.algebra.scale import alive
from lipcert.errors import NotCertified
from lipcert.layers import activation, affine, general, head, orthogonal, residual, shape
from lipcert.layers.contract import require_finite, require_no_hooks, require_vouched
from lipcert.layers.convolution import pad_circular, unpad_circular
from lipcert.verified import convolution, dense
from lipcert.verified.rounding import float32_down

ROOM = 2.0**-26  # γ and V are this much smaller than they may be, so that every checker's rounding fits: 1/4 ulp
LEAST_T = 2.0**-120  # below it γ would leave float32: the neuron is dropped, as Theorem 6 allows
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


class FrozenResidual(nn.Module):
    """x − W(2γ·σ(Wᵀx + b)), the stored tensors and σ; W dense."""

    weight: Tensor  # Wᵀ
    gamma: Tensor
    bias: Tensor | None
    witness: Tensor | None  # q > 0, float64: with it row sums prove ρ; without it another method must

    def __init__(
        self, weight: Tensor, gamma: Tensor, bias: Tensor | None, sigma: SlopeRestricted, witness: Tensor | None
    ) -> None:
        super().__init__()
        self.sigma = sigma
        for name, tensor in (("weight", weight), ("gamma", gamma), ("bias", bias), ("witness", witness)):
            self.register_buffer(name, None if tensor is None else tensor.contiguous())


class FrozenResidualLinear(FrozenResidual):
    """x − W(2γ·σ(Wᵀx + b)), (*, m) → (*, m); ``weight`` is Wᵀ, (n, m)."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.sigma.function(F.linear(x, self.weight, self.bias))
        return x - F.linear(z * (2 * self.gamma), self.weight.mT)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, activation={self.sigma.name!r}"


class FrozenResidualConv2d(FrozenResidual):
    """x − W(2γ·σ(Wᵀx + b)), Wᵀ the convolution with ``weight`` and W its exact adjoint."""

    def __init__(
        self,
        weight: Tensor,
        gamma: Tensor,
        bias: Tensor | None,
        sigma: SlopeRestricted,
        witness: Tensor | None,
        *,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
        padding_mode: str = "zeros",
        groups: int = 1,
    ) -> None:
        super().__init__(weight, gamma, bias, sigma, witness)
        self.stride, self.padding, self.padding_mode, self.groups = stride, padding, padding_mode, groups

    def forward(self, x: Tensor) -> Tensor:
        circular = self.padding_mode == "circular"
        padded, padding = (pad_circular(x, self.padding), (0, 0)) if circular else (x, self.padding)
        z = self.sigma.function(F.conv2d(padded, self.weight, self.bias, self.stride, padding, groups=self.groups))
        z = z * (2 * self.gamma[:, None, None])
        missing = [
            size - ((out - 1) * s - 2 * p + k)
            for size, out, s, p, k in zip(
                padded.shape[-2:], z.shape[-2:], self.stride, padding, self.weight.shape[2:], strict=True
            )
        ]
        back = F.conv_transpose2d(z, self.weight, None, self.stride, padding, missing, self.groups)
        return x - (unpad_circular(back, self.padding) if circular else back)

    def extra_repr(self) -> str:
        return (
            f"{self.weight.shape[1] * self.groups}, {self.weight.shape[0]}, "
            f"kernel_size={tuple(self.weight.shape[2:])}, stride={self.stride}, padding={self.padding}, "
            f"padding_mode={self.padding_mode!r}, groups={self.groups}, activation={self.sigma.name!r}"
        )


class FrozenExpansion(FrozenResidual):
    """x ↦ (x − W(γ·σ(z)), √γ·σ(z)), z = Wᵀx + b, (*, m) → (*, m + n): the inner map of the general layer."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.sigma.function(F.linear(x, self.weight, self.bias))
        return torch.cat((x - F.linear(z * self.gamma, self.weight.mT), z * self.gamma.sqrt()), dim=-1)


class FrozenHouseholder(nn.Module):
    """z − 2v·min(0, vᵀz) on pairs of channels, with stored v of norm at most 1: 1-Lipschitz for each such v."""

    first: Tensor
    second: Tensor

    def __init__(self, first: Tensor, second: Tensor, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, x: Tensor) -> Tensor:
        dim = self.dim % x.ndim
        a, b = x.unflatten(dim, (-1, 2)).unbind(dim + 1)
        each = (-1, *[1] * (a.ndim - dim - 1))
        first, second = self.first.view(each), self.second.view(each)
        behind = (a * first + b * second).clamp_max(0.0)
        return torch.stack((a - 2 * first * behind, b - 2 * second * behind), dim + 1).flatten(dim, dim + 1)


class FrozenCombination(nn.Module):
    """Σ_k α_k f_k(x) with stored α ≥ 0 of sum at most 1."""

    weights: Tensor

    def __init__(self, weights: Tensor, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.register_buffer("weights", weights)

    def forward(self, x: Tensor) -> Tensor:
        # A copy for each branch: one that works in place must not change what the next one sees.
        outputs = [weight * branch(x.clone()) for weight, branch in zip(self.weights, self.branches, strict=True)]
        return torch.stack(outputs).sum(dim=0)


FROZEN = (FrozenResidual, FrozenHouseholder, FrozenCombination)


def freeze(model: nn.Module) -> nn.Module:
    """The network as plain modules with buffers, in evaluation mode and float32; ``model`` is not changed.

    Raises:
        NotCertified: for a module that lipcert does not know, a hook, or a parameter that is not finite.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch module; got {type(model).__name__}. Pass the network itself.")
    was = [(module, module.training) for module in model.modules()]
    try:
        model.eval()  # the exact ratio of a surrogate SLL
        with torch.no_grad():
            frozen = _freeze(model, "the network")
    finally:
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
        return _with_buffers(kept, kept.weight.float(), kept.bias)
    return kept if isinstance(kept, FROZEN) else kept.float()


def out_of_place(module: nn.Module) -> None:
    """No part of ``module`` overwrites its input any more: an input may be someone's, or another branch's."""
    for part in module.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]


def verified_gamma(target: np.ndarray, proved: Callable[[np.ndarray, bool], float]) -> tuple[np.ndarray, bool]:
    """(γ, whether the witness proves it): float32, at most ``target``, with ρ ≤ 1 for the stored weight.

    ``proved(γ, True)`` bounds ρ by the witness, ``proved(γ, False)`` otherwise. ρ is 1-homogeneous in γ, so
    dividing by a bound and rounding down needs no second proof.
    """
    gamma = float32_down(target * (1 - ROOM))
    value, witness = proved(gamma, True), True
    if not value <= 1 + 2.0**-20:  # T did not come from this witness: another method may prove more
        other = proved(gamma, False)
        if not value <= other:
            value, witness = other, False
    if not math.isfinite(value):
        raise NotCertified(
            "no bound of ρ could be proved for a layer; got values beyond floating point. Rescale it."
        )
    if value > 1 - ROOM / 2:
        gamma = float32_down(gamma.astype(np.float64) * ((1 - ROOM) / value))
    return gamma, witness


def _witness(layer: residual.ResidualLinear | residual.ResidualConv2d) -> np.ndarray | None:
    """The q of T_i = Σ_j A_ij q_j/q_i: learned, or 1 for AOL; None for bounds of another kind, see ``_search``."""
    bound, kind = layer.bound, type(layer.bound).__name__
    if kind == "AOL":
        return np.ones(layer.hidden)
    if kind != "SLL" and not (kind == "Rescaled" and getattr(bound, "order", 1) == 0):
        return None
    log_q = bound.get_parameter("log_q").detach().double().cpu().numpy()
    if getattr(bound, "form", "exp") == "shifted":
        return np.exp(np.clip(log_q, -40, 40)) + float(bound.epsilon)  # type: ignore[arg-type]
    return np.exp(np.clip(log_q - log_q.mean(), -40, 40))


def _search(overlaps: Tensor, gamma: Tensor) -> np.ndarray:  # (groups, n, n), (n·groups,) → (n·groups,)
    """A q for γ_i Σ_j A_ij q_j/q_i: √γ times the leading vector of Γ^½AΓ^½, found by power iteration."""
    root = gamma.sqrt().view(len(overlaps), -1)
    matrix = root[:, :, None] * overlaps * root[:, None, :]
    x = torch.ones_like(root)
    for _ in range(60):
        x = (matrix @ x[:, :, None])[:, :, 0] + 1e-9 * x
        x = x / x.amax(dim=1, keepdim=True).clamp_min(1e-300)
    q = (x.clamp_min(1e-12) * root).flatten()
    usable = torch.isfinite(q) & (q > 0)
    return np.asarray(torch.where(usable, q, 1.0).cpu().numpy())


def _residual(layer: Any) -> nn.Module:
    """Either residual layer: T in float64, the weight as it is used, γ verified for the float32 weight."""
    convolutional = isinstance(layer, residual.ResidualConv2d)
    double = copy.deepcopy(layer).double()
    unit, scale = double.bound.prepare(double.weight)
    columns = residual_columns(unit, layer.stride, layer.groups) if convolutional else dense_columns(unit)
    columns, t = double.bound(columns)
    used = unit if convolutional else columns.matrix()
    if not layer.activation.homogeneous:  # σ(Wᵀx + b) is not σ(Ŵᵀx + b/s)·s, so the scale stays in the weight
        used, t, scale = used * scale, t * scale.square(), torch.ones_like(scale)
    weight = used.float()
    living = alive(t) & (t > LEAST_T) & (t < 1 / LEAST_T) & torch.isfinite(weight.flatten(1)).all(dim=1)
    weight[~living] = 0.0
    target = torch.where(living, 1 / torch.where(living, t, 1.0), 0.0).cpu().numpy()
    array, q = weight.cpu().numpy(), _witness(layer)
    if q is None:
        stored = weight.double()
        rows = residual_columns(stored, layer.stride, layer.groups) if convolutional else dense_columns(stored)
        q = _search(absolute_gram(rows), torch.from_numpy(target))
    geometry = {"stride": layer.stride, "groups": layer.groups} if convolutional else {}

    def proved(gamma: np.ndarray, with_witness: bool) -> float:
        if convolutional:
            if with_witness:
                return convolution.conv_rho_weighted(array, gamma, q, **geometry)
            found = convolution.conv_rho_bound(array, gamma, **geometry)
            return convolution.by_grid_too(found, array, 2, **geometry).value
        return dense.rho_weighted(array, gamma, q) if with_witness else dense.rho_cholesky(array, gamma)

    gamma, by_witness = verified_gamma(target, proved)
    bias = None
    if layer.bias is not None:
        limit = float(torch.finfo(torch.float32).max) ** 0.5
        bias = torch.where(living, double.bias / scale, 0.0).clamp(-limit, limit).float()
    stored = torch.from_numpy(gamma).to(weight.device)
    parts = (weight, stored, bias, layer.activation, torch.from_numpy(q).to(weight.device) if by_witness else None)
    if not convolutional:
        return FrozenResidualLinear(*parts)
    return FrozenResidualConv2d(*parts, **geometry, padding=layer.padding, padding_mode=layer.padding_mode)


def _contraction(weight: Tensor, norm: Callable[[np.ndarray], float]) -> Tensor:
    """``weight`` in float32, divided by its verified norm above 1: rounding entry by entry keeps no norm."""
    stored = weight.double().float()
    for _ in range(8):
        value = norm(stored.cpu().numpy())
        if value <= 1:
            break
        stored = (
            stored.double() * ((1 - 2.0**-22) / value)
        ).float()  # several ulps: a smaller step would round back
    return stored


def _linear(layer: affine.AffineLinear) -> nn.Module:
    double = copy.deepcopy(layer).double()
    weight = _contraction(double.scaled_weight(), lambda w: dense.norm_bound(w).value)
    return plain_linear(weight, layer.bias)


def _conv(layer: affine.AffineConv2d) -> nn.Module:
    double = copy.deepcopy(layer).double()
    weight = double.scaled_weight().float()  # its constant is what the audit proves, near 1: see docs/freeze.md
    return plain_conv2d(weight, layer.bias, layer.stride, layer.padding, layer.padding_mode, layer.groups)


def _head(layer: head.NormalizedHead) -> nn.Module:
    rows = copy.deepcopy(layer).double().unit_weight()
    return plain_linear(rows.float(), layer.bias)


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """nn.Linear with buffers in place of parameters."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    _with_buffers(made, weight, bias)
    return made


def plain_conv2d(
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    padding_mode: str = "zeros",
    groups: int = 1,
) -> nn.Conv2d:
    """nn.Conv2d with buffers in place of parameters."""
    made = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        (weight.shape[2], weight.shape[3]),
        stride,
        padding,
        groups=groups,
        bias=bias is not None,
        padding_mode=padding_mode,  # type: ignore[arg-type]
        device="meta",
    )
    _with_buffers(made, weight, bias)
    return made


def _with_buffers(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """``module`` with stored tensors in place of what it had, so that nothing is left to train."""
    del module.weight, module.bias
    # Contiguous, as a file gives it back: another layout adds in another order.
    module.register_buffer("weight", weight.detach().clone(memory_format=torch.contiguous_format))
    module.register_buffer("bias", None if bias is None else bias.detach().float().clone())
    return module


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


def _general(layer: general.GeneralLinear) -> nn.Module:
    """U·(x − WΛσ(z), Λ^½σ(z)): the inner map is 1-Lipschitz whenever ρ = λmax(WΛWᵀ) ≤ 1, and ‖U‖ ≤ 1."""
    inner = _residual(layer)
    assert isinstance(inner, FrozenResidualLinear)
    u1, u2 = copy.deepcopy(layer).double().contraction()
    mixing = _contraction(torch.cat((u1, u2), dim=1), lambda w: dense.norm_bound(w).value)
    expansion = FrozenExpansion(inner.weight, inner.gamma, inner.bias, inner.sigma, inner.witness)
    return nn.Sequential(expansion, plain_linear(mixing, None))


def _combination(layer: shape.ConvexCombination) -> nn.Module:
    weights = layer.logits.double().softmax(dim=0) * (1 - 2.0**-22)  # rounding adds less: the sum stays below 1
    return FrozenCombination(weights.float(), [_freeze(branch, "a branch") for branch in layer.branches])


RULES: dict[type, Callable[[Any], nn.Module]] = {
    residual.ResidualLinear: _residual,
    residual.ResidualConv2d: _residual,
    affine.AffineLinear: _linear,
    orthogonal.OrthogonalLinear: _linear,
    affine.AffineConv2d: _conv,
    general.GeneralLinear: _general,
    head.NormalizedHead: _head,
    shape.Pixelwise: _pixelwise,
    activation.Householder: _householder,
    shape.ConvexCombination: _combination,
}
