"""The numbers that are stored: rounded so that what was proved in real arithmetic holds for them, exactly.

Rounding: γ is rounded down to float32 and divided by a verified bound of ρ = λmax(WΓWᵀ) wherever that exceeds 1, so
ρ ≤ 1 holds for the stored numbers; a matrix V is divided by a verified bound of its norm likewise.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.algebra.gram import absolute_gram, dense_columns, residual_columns
from lipcert.algebra.scale import alive
from lipcert.errors import NotCertified
from lipcert.frozen.modules import FrozenResidualConv2d, FrozenResidualLinear
from lipcert.layers import residual
from lipcert.verified import convolution, dense
from lipcert.verified.rounding import float32_down

ROOM = 2.0**-26  # γ and V are this much smaller than they may be, so that every checker's rounding fits: 1/4 ulp
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
    q: Tensor = copy.deepcopy(bound).double().eval().weights()[0]  # type: ignore[operator]
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


def frozen_residual(layer: Any) -> nn.Module:
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
