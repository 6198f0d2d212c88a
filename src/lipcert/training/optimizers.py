"""The paper's Adam, and Muon for the kernels of residual convolutions: better in runs of minutes.

Stored orthogonal matrices stay orthogonal with either (``manifold``).

A residual layer does not change when its weight W is multiplied by a number: T grows with W². So the size of a step
is taken relative to W. Muon (Jordan et al. 2024) replaces the mean gradient by the nearest matrix with orthonormal
rows, found approximately by five steps of Newton and Schulz: every direction of the gradient gets the same share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lipcert.layers.forms import ResidualConv2d
from lipcert.training.config import TrainConfig
from lipcert.training.manifold import ManifoldAdam, stored_matrices

RELATIVE_STEP = 3.0  # size of a step of Muon, relative to the weight, in learning rates
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # of x, x³ and x⁵: singular values in (0, 1] come near 1 in five steps


def make_optimizer(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer that the config names, over all parameters of the model, which will train on ``device``."""
    betas, matrices = (config.beta1, config.beta2), list(stored_matrices(model))
    kernels = list(_kernels(model)) if config.optimizer == "muon" else []
    if config.optimizer == "adam" and not matrices:
        return torch.optim.Adam(model.parameters(), config.learning_rate, betas)
    if config.optimizer == "muon" and not kernels:
        raise ValueError("--optimizer muon is for residual convolutions, and this model has none. Use adam.")
    chosen = {id(parameter) for parameter in (*kernels, *matrices)}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    groups = [
        {"params": kernels, "relative": True, "manifold": False},
        {"params": matrices, "relative": False, "manifold": True},
        {"params": rest, "relative": False, "manifold": False},
    ]
    filled = [group for group in groups if group["params"]]
    return Muon(filled, config.learning_rate, betas, fused=device.type == "cpu")


def _kernels(model: nn.Module) -> Iterator[nn.Parameter]:
    for layer in model.modules():
        if isinstance(layer, ResidualConv2d):
            yield layer.weight


class Muon(ManifoldAdam):
    """Adam, with Muon's steps for the groups of parameters that have ``relative=True``."""

    def move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> bool:
        if not group["relative"]:
            return super().move(weight, gradient, group)
        rate, decay, state = group["lr"], group["betas"][0], self.state[weight]
        if not state:
            state["step"] = torch.zeros(())  # Adam reads it when it is resumed
            state["mean"] = torch.zeros_like(gradient)
        state["step"] += 1
        mean = state["mean"].mul_(decay).add_(gradient)
        direction = orthogonal(gradient.add(mean, alpha=decay).flatten(1)).view_as(weight)
        size = RELATIVE_STEP * rate * weight.norm() / direction.norm().clamp(min=1e-12)
        weight.sub_(size * direction)
        return True


def orthogonal(matrix: Tensor) -> Tensor:
    """About U Vᵀ of a matrix U Σ Vᵀ; its singular values come between 0.7 and 1.2."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=1e-12)
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T
