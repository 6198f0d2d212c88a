"""Adam that keeps stored orthogonal matrices orthogonal (LipNeXt, Hu et al. 2026).

Let Q have orthonormal rows, Δ be Adam's step and A = (QᵀΔ − ΔᵀQ)/2, which is skew: then Q exp(−A) has orthonormal
rows again. The exponential is a series, cut at an order for which the norm of A is small enough. What that and
rounding leave, a step of Björck's iteration removes now and then. A tall Q is treated as its transpose.

Nothing of this matters for soundness: a layer divides its matrix by a bound of its norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lipcert.algebra.bounds import Orthogonal
from lipcert.algebra.orthogonal import STORED
from lipcert.layers.contract import BoundedLayer

SERIES = ((0.05, 2), (0.25, 3), (1.0, 4))  # Frobenius norms of A up to which the series is cut at an order
POLISH_EVERY = 8  # steps


def stored_matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of layers that take them as they are, for orthogonal ones."""
    for layer in model.modules():
        if isinstance(layer, BoundedLayer) and isinstance(layer.bound, Orthogonal) and layer.bound.method == STORED:
            yield layer.weight


class ManifoldAdam(torch.optim.Adam):
    """Adam, and its steps along orthogonal matrices for the groups of parameters that have ``manifold=True``."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take one step; Adam passes over what ``move`` has moved, which has no gradient left."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and self.move(parameter, parameter.grad, group):
                    parameter.grad = None
        return super().step(closure)

    def move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> bool:
        """Whether the parameters of this group are moved here, and not by Adam."""
        if not group["manifold"]:
            return False
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        (first, second), count = group["betas"], int(state["step"])
        mean = state["exp_avg"].lerp_(gradient, 1 - first) / (1 - first**count)
        square = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        delta = mean / ((square / (1 - second**count)).sqrt() + group["eps"])
        tall = weight.shape[0] > weight.shape[1]
        q, delta = (weight.T, delta.T) if tall else (weight, delta)
        along = q.T @ delta
        moved = turned(q, (along.T - along) * (group["lr"] / 2))
        if count % POLISH_EVERY == 0:
            moved = polished(moved)
        weight.copy_(moved.T if tall else moved)
        return True


def turned(q: Tensor, skew: Tensor) -> Tensor:
    """About Q exp(A) for a skew A."""
    norm = float(skew.norm())
    order = next((order for most, order in SERIES if norm < most), None)
    if order is None:
        return q @ torch.linalg.matrix_exp(skew)
    total = term = q
    for power in range(1, order + 1):
        term = term @ skew / power
        total = total + term
    return total


def polished(q: Tensor) -> Tensor:
    """A step of Björck's iteration: a deviation δ of QQᵀ from I becomes about ¾δ²."""
    return 1.5 * q - 0.5 * (q @ q.T) @ q
