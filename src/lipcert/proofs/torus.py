"""Circular convolutions in a basis of waves, TᵀBT of ``frozen.torus``: plain and residual.

Five products in a row: a path through them has as many roundings as all their sums are long, so that the formulas
of ``operation`` hold with that length and κ = ‖|T|ᵀΓ^½|B||T|‖. Rounding: constants up.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipcert.errors import NotCertified
from lipcert.frozen.torus import expand
from lipcert.proofs.geometry import chained, matmul
from lipcert.proofs.operation import (
    Operation,
    Shape,
    affine_error,
    array,
    bias_norm,
    largest,
    require_one_each,
    require_slopes,
    residual_constants,
)
from lipcert.verified.rounding import U32
from lipcert.verified.torus import torus_kappa, torus_norm_bound, torus_rho_bound

MOST_WAVES = 2**10  # along one axis of an image
MOST_RHO = 4.0
DEEP = 2.0**30  # entries are smaller by this than elsewhere: 2⁻¹²⁶·(2¹⁰)⁵·2¹⁴ for each of 2²⁴ outputs is below 2⁻⁴⁰


def torus(module: Any, shape: Shape, block: int | None) -> Operation:
    """x ↦ TᵀBTx + b."""
    rows, columns, weight, bias = module.rows, module.columns, module.weight, module.bias
    _require_fit(rows, columns, weight, shape)
    outputs = weight.shape[1] // 4
    require_one_each(outputs, bias=bias)
    norm = torus_norm_bound(array(rows), array(columns), array(weight))
    kappa = torus_kappa(array(rows), array(columns), array(weight), np.ones(outputs))
    beta = bias_norm(bias, None, math.prod(shape[1:]))

    def forward(x: Tensor) -> Tensor:
        y = _product(rows, columns, weight, x, block)
        return y if bias is None else y + bias.to(x.dtype)[:, None, None]

    return Operation(
        "torus",
        (outputs, *shape[1:]),
        norm.value,
        norm.method,
        forward,
        affine_error(_sums(rows, columns, weight.shape[2], block), kappa, beta),
        {"rows": rows, "columns": columns, "weight": weight, "bias": bias},
        largest=largest(weight, bias) * DEEP,
    )


def residual_torus(module: Any, shape: Shape, block: int | None) -> Operation:
    """x − W(2γ·σ(Wᵀx + b)) with Wᵀ = TᵀBT."""
    rows, columns, weight, sigma = module.rows, module.columns, module.weight, module.sigma
    gamma, bias = module.gamma, module.bias
    require_slopes(sigma)
    _require_fit(rows, columns, weight, shape)
    require_one_each(weight.shape[1] // 4, gamma=gamma, bias=bias)
    rho = torus_rho_bound(array(rows), array(columns), array(weight), array(gamma))
    kappa = torus_kappa(array(rows), array(columns), array(weight), array(gamma))
    terms = (_sums(rows, columns, weight.shape[2], block), _sums(rows, columns, weight.shape[1], block))
    beta = bias_norm(bias, array(gamma), math.prod(shape[1:]))
    neurons = (array(gamma), math.prod(shape[1:]))
    upper, inner = residual_constants(rho.value, kappa, beta, terms, sigma, neurons)
    fields = {"rows": rows, "columns": columns, "weight": weight, "gamma": gamma, "bias": bias}

    def error(norms: Tensor, u: float) -> Tensor:  # in float32 what underflows first must not grow by ρ after that
        known = inner is not None and (u != U32 or rho.value <= MOST_RHO)
        return inner(norms, u) if inner is not None and known else torch.full_like(norms, math.inf)

    def forward(x: Tensor) -> Tensor:
        z = _product(rows, columns, weight, x, block)
        z = sigma.function(z if bias is None else z + bias.to(x.dtype)[:, None, None])
        return x - _product(rows, columns, weight.mT, z * (2 * gamma.to(x.dtype)[:, None, None]), block)

    return Operation(
        "residual_torus",
        shape,
        upper,
        rho.method,
        forward,
        None if inner is None else error,
        {**fields, "activation": sigma.name},
        claim=1.0,
        largest=largest(weight, gamma, bias) * DEEP,
        assumes=sigma.assumes,
    )


def _product(rows: Tensor, columns: Tensor, blocks: Tensor, x: Tensor, block: int | None) -> Tensor:
    r, c, b = (tensor.to(x.dtype) for tensor in (rows, columns, blocks))
    return expand(r, c, b, x, lambda left, right: matmul(left, right, block))


def _sums(rows: Tensor, columns: Tensor, inner: int, block: int | None) -> int:
    """The roundings on the longest path through TᵀBT, whose blocks have ``inner`` columns."""
    return (
        sum(chained(length, block) for length in (*rows.shape, *columns.shape, inner)) + 2
    )  # five casts, not three


def _require_fit(rows: Tensor, columns: Tensor, weight: Tensor, shape: Shape) -> None:
    """Waves of modulus at most 1, besides: what underflows in one product must not grow in the next."""
    fits = rows.ndim == columns.ndim == 2 and weight.ndim == 3
    fits = fits and len(rows) % 2 == len(columns) % 2 == weight.shape[1] % 4 == weight.shape[2] % 4 == 0
    fits = fits and len(weight) == len(rows) * len(columns) // 4
    if not fits or shape != (weight.shape[2] // 4, rows.shape[1], columns.shape[1]):
        raise NotCertified(
            f"it must fit inputs {shape}; got waves {tuple(rows.shape)}, {tuple(columns.shape)} and blocks "
            f"{tuple(weight.shape)}. Freeze a layer that was built for them."
        )
    if not largest(rows, columns) <= 1 or max(rows.shape + columns.shape) > MOST_WAVES:
        raise NotCertified(
            f"its waves must be at most 1 in modulus and {MOST_WAVES} in number; got {largest(rows, columns):.3g} "
            f"and {max(rows.shape + columns.shape)}. Freeze the layer again."
        )
