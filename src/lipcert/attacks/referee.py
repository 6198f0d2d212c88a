"""Who decides that a point is adversarial: float64, whatever arithmetic the attack ran in.

A point counts if it lies in the box, [0, 1]^d for images, if its L2 distance to the image is at most ε, and if the
network in float64 gives it a class other than the label. A certificate is about just these points. An attack runs
in float32 and may end just outside the ball: its point is pulled back first, and must still fool.

Rounding: the distance up, so that no point outside the ball is held against a certificate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Model = Callable[[Tensor], Tensor]
UNIT = 2.0**-53


def in_both_precisions(model: Model) -> tuple[Model, Model]:
    """``model`` in float32 and in float64, as copies without gradients of weights; a function is taken as it is.

    The first is made fast where it can be; the second decides, and computes as ``model`` itself does.
    """
    if not isinstance(model, nn.Module):
        return with_two_logits(model), with_two_logits(model)
    fast, exact = copy.deepcopy(model).float().eval(), copy.deepcopy(model).double().eval()
    return with_two_logits(_fast(fast.requires_grad_(False))), with_two_logits(exact.requires_grad_(False))


class _ChannelsLast(torch.autograd.Function):
    """Images with their channels side by side; gradients in the usual order, on which attacks rely."""

    @staticmethod
    def forward(context: object, x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.channels_last)

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


def _fast(network: nn.Module) -> Model:
    """Channels last, where no module can mind; a forward or a hook of one's own may take a view of the usual order.

    A network with such a module is taken as it is.
    """
    for part in network.modules():
        ours = type(part).__module__.startswith(("lipcert.", "torch.nn.modules."))
        if not ours or part._forward_hooks or part._forward_pre_hooks:
            return network
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)

    def run(x: Tensor) -> Tensor:
        made: Tensor = network(_ChannelsLast.apply(x) if x.ndim == 4 else x)  # type: ignore[no-untyped-call]
        return made

    return run


def with_two_logits(model: Model) -> Model:
    """One output f, whose sign is the class, becomes the logits (−f/2, f/2): the same answers and margins."""

    def logits(x: Tensor) -> Tensor:
        made = model(x)
        if made.ndim != 2 or len(made) != len(x):
            raise ValueError(
                f"the model must give logits (N, classes); got {tuple(made.shape)} for N = {len(x)}. Add Flatten."
            )
        return made if made.shape[1] > 1 else torch.cat((-made, made), dim=1) / 2

    return logits


@dataclass(frozen=True)
class Verdict:
    """What the referee found at the points it was shown."""

    points: Tensor  # (N, …) float64, in the ball and the box
    distances: Tensor  # (N,) float64, rounded up
    predictions: Tensor  # (N,)
    fooled: Tensor  # (N,) bool


def judge(
    exact: Model, images: Tensor, labels: Tensor, points: Tensor, eps: float, box: tuple[float, float] = (0.0, 1.0)
) -> Verdict:
    """Pull ``points`` into the ball of radius ε around float64 ``images`` and the box; see which of them fool."""
    points = torch.where(torch.isfinite(points), points.double(), images).clamp(*box)
    lengths = distance_up(points, images)
    outside = lengths > eps
    # A hair less than ε, since x₀ + δ is rounded in each of its coordinates, at most the largest of the box.
    largest = max(map(abs, box))
    target = max(eps * (1 - 1e-12) - 4 * UNIT * largest * math.sqrt(images[0].numel()), 0.0)
    shrink = torch.where(outside, target / lengths, 1.0).view(-1, *[1] * (images.ndim - 1))
    pulled = (images + (points - images) * shrink).clamp(*box)
    points = torch.where(outside.view(shrink.shape), pulled, points)
    lengths = distance_up(points, images)
    with torch.no_grad():
        predictions = exact(points.clone()).argmax(dim=1)  # a layer that works in place must not move them
    return Verdict(points, lengths, predictions, (lengths <= eps) & (predictions != labels))


def distance_up(points: Tensor, images: Tensor) -> Tensor:  # (N, …) → (N,)
    """‖x − x₀‖ in float64, rounded up: each difference, square, sum and root loses at most a unit."""
    size = math.prod(images.shape[1:])
    return (points - images).flatten(1).norm(dim=1) * (1 + (size + 8) * UNIT)
