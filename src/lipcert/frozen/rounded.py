"""The numbers that are stored: rounded so that what was proved in real arithmetic holds for them, exactly.

Rounding: γ is rounded down to float32 and divided by a verified bound of ρ = λmax(WΓWᵀ) wherever that exceeds 1, so
ρ ≤ 1 holds for the stored numbers; a matrix V is divided by a verified bound of its norm likewise.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.activations import SlopeRestricted
from lipcert.algebra.gram import absolute_gram
from lipcert.algebra.scale import alive
from lipcert.errors import NotCertified
from lipcert.frozen.modules import FrozenResidual, FrozenResidualConv2d, FrozenResidualLinear
from lipcert.frozen.torus import FrozenResidualTorus
from lipcert.verified import convolution, dense
from lipcert.verified.rounding import float32_down
from lipcert.verified.torus import torus_rho_bound

ROOM = 2.0**-26  # γ and V are this much smaller than they may be, so that every checker's rounding fits: 1/4 ulp
ENLARGED = 1.1  # what a proof may lose on its own: rounding, and for a convolution up to 7 % on a grid
LEAST_T = 2.0**-120  # below it γ would leave float32: the neuron is dropped, as Theorem 6 allows


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
    if value > ENLARGED:
        warnings.warn(
            f"freeze enlarged T of a residual layer {value:.3g} times, because T was too small for WᵀW ⪯ T. Check "
            "its bound: the frozen layer computes something else than the layer.",
            stacklevel=2,
        )
    if value > 1 - ROOM / 2:
        gamma = float32_down(gamma.astype(np.float64) * ((1 - ROOM) / value))
    return gamma, witness


def _witness(layer: Any) -> np.ndarray | None:
    """The q of T_i = Σ_j A_ij q_j/q_i: learned, or 1 for AOL; None for bounds of another kind, see ``_search``."""
    bound, kind = layer.bound, type(layer.bound).__name__
    if kind == "AOL":
        return np.ones(layer.operator.outputs)
    if kind != "SLL" and not (kind == "Rescaled" and getattr(bound, "order", 1) == 0):
        return None
    q: Tensor = copy.deepcopy(bound).double().eval().weights()[0]
    return np.asarray(q.detach().cpu().numpy())


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


@dataclass(frozen=True)
class Sought:
    """A residual before γ is verified: what is stored, γ as T gives it, and how a convolution is placed."""

    weight: Tensor
    target: np.ndarray
    bias: Tensor | None
    sigma: SlopeRestricted
    q: np.ndarray | None
    geometry: dict[str, Any] | None  # of FrozenResidualConv2d; None: dense
    torus: tuple[int, int] | None = None  # the circular image it is for, where that is part of the layer
    basis: tuple[Tensor, Tensor] | None = None  # its waves, if the weight is stored in them

    def frozen(self) -> FrozenResidual:
        gamma, by_witness = verified_gamma(self.target, self._rho)
        stored, kept = torch.from_numpy(gamma).to(self.weight.device), None
        if by_witness and self.q is not None:
            kept = torch.from_numpy(self.q).to(self.weight.device)
        if self.basis is not None:
            return FrozenResidualTorus(*self.basis, self.weight, stored, self.bias, self.sigma)
        parts = (self.weight, stored, self.bias, self.sigma, kept)
        if self.geometry is None:
            return FrozenResidualLinear(*parts)
        return FrozenResidualConv2d(*parts, **self.geometry)

    def _rho(self, gamma: np.ndarray, with_witness: bool) -> float:
        array = self.weight.cpu().numpy()
        if with_witness and self.q is None:
            return math.inf
        if self.basis is not None:
            rows, columns = (part.cpu().numpy() for part in self.basis)
            return torus_rho_bound(rows, columns, array, gamma).value
        if self.geometry is None:
            return dense.rho_weighted(array, gamma, self.q) if with_witness else dense.rho_cholesky(array, gamma)
        placed = {"stride": self.geometry["stride"], "groups": self.geometry["groups"]}
        if with_witness:
            return convolution.conv_rho_weighted(array, gamma, self.q, **placed)
        found = convolution.conv_rho_bound(array, gamma, **placed, torus=self.torus)
        assert self.torus is None or found.method == "torus"  # a layer for one image is refused where none fits
        return convolution.by_grid_too(found, array, 2, **placed).value


def frozen_residual(layer: Any) -> nn.Module:
    """Either residual layer: T in float64, the weight as it is used, γ verified for the float32 weight."""
    return sought_residual(layer).frozen()


def frozen_expansion(layer: Any) -> nn.Module:
    """(x, 0) ↦ (x − WΛσ(z), Λ^½σ(z)), a residual with the weight [W; −T^½] and half of γ = 1/T: row sums of both
    parts of its Gram matrix are at most T_i, so those of the whole are at most 2T_i."""
    inner = sought_residual(layer)
    root = np.divide(1.0, np.sqrt(inner.target), out=np.zeros_like(inner.target), where=inner.target > 0)
    minus = -torch.from_numpy(root).float().to(inner.weight.device).diag()
    if inner.geometry is not None:
        taps = torch.zeros(*minus.shape, *inner.weight.shape[2:], device=minus.device, dtype=minus.dtype)
        taps[:, :, taps.shape[2] // 2, taps.shape[3] // 2] = minus  # the pixel itself
        minus = taps
    return replace(inner, weight=torch.cat((inner.weight, minus), dim=1), target=inner.target / 2).frozen()


def sought_residual(layer: Any) -> Sought:
    """The numbers of a layer with W, b, σ and a choice of T."""
    operator = layer.operator
    convolutional = operator.axes > 0
    double = copy.deepcopy(layer).double()
    unit, scale = double.bound.prepare(double.weight)
    columns, t = double.bound(double.arrange(unit))
    used = unit if convolutional else columns.matrix()
    if not layer.activation.homogeneous:  # σ(Wᵀx + b) is not σ(Ŵᵀx + b/s)·s, so the scale stays in the weight
        used, t, scale = used * scale, t * scale.square(), torch.ones_like(scale)
    weight = used.float()
    living = alive(t) & (t > LEAST_T) & (t < 1 / LEAST_T) & torch.isfinite(weight.flatten(1)).all(dim=1)
    weight[~living] = 0.0
    target = torch.where(living, 1 / torch.where(living, t, 1.0), 0.0).cpu().numpy()
    q = _witness(layer)
    if q is None:
        q = _search(absolute_gram(double.arrange(weight.double())), torch.from_numpy(target))
    bias = None
    if layer.bias is not None:
        limit = float(torch.finfo(torch.float32).max) ** 0.5
        bias = torch.where(living, double.bias / scale, 0.0).clamp(-limit, limit).float()
    geometry = None
    if convolutional:
        geometry = {name: getattr(operator, name) for name in ("stride", "padding", "padding_mode", "groups")}
    return Sought(weight, target, bias, layer.activation, q, geometry)


def contraction(weight: Tensor, norm: Callable[[np.ndarray], float]) -> Tensor:
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
