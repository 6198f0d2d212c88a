"""Lower bounds: two points whose images are further apart than the points. Evidence beside every upper bound.

At some points, a few steps of Lanczos's method on JᵀJ find the direction v that a piece of the network stretches
most. The quotient ‖f(x + hv) − f(x)‖/h is then a lower bound of the constant by definition, whatever the search
did.

Rounding: computed in float64; what rounding can have added to the images is subtracted (its proved bound, or 2⁻³⁶
of their norms where none is known) and the quotient divided by 1 + 2⁻²⁰, so a lower bound above a claim refutes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
Measure = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # images; how far they may be from the exact ones, (N,)
STEP = 2.0**-10  # of h: long enough for rounding, short enough to stay in a linear piece


@dataclass(frozen=True)
class Stretch:
    """‖f(second) − f(first)‖ ≥ ratio·‖second − first‖."""

    ratio: float
    first: Tensor
    second: Tensor


def stretch_estimate(
    function: Function,
    points: Tensor,
    *,
    directions: int = 4,
    dtype: torch.dtype = torch.float64,
    measure: Measure | None = None,
    at_points: tuple[Tensor, Tensor | None] | None = None,
    upper: float = math.inf,
) -> Stretch:  # points (N, …)
    """The largest quotient that is found from these points, all of them at once.

    The search follows ``function`` in ``dtype``; float32 is faster for large networks. ``measure`` then gives the
    images of the points in float64, with a bound of their rounding error where one is known. Without it,
    ``function`` does. ``at_points`` is what ``measure`` gives for the points, if that is known already. The search
    ends within 2⁻¹⁶ of ``upper``, a proved constant: there is nothing left to find.
    """
    x = points.detach().double()
    start = x.to(dtype)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(dtype)
    tried: list[Tensor] = []
    images: list[Tensor] = []
    with torch.enable_grad():
        base = start.clone().requires_grad_()
        value = function(base)
    while True:
        for earlier in tried * 2:  # once more, because the first time leaves rounding errors
            v = v - (earlier * v).flatten(1).sum(dim=1).view_as(norms(v)) * earlier
        v = v / norms(v).clamp_min(1e-30)
        with torch.no_grad():
            image = (function(start + STEP * v) - value) / STEP
        tried.append(v)
        images.append(_finite(image))
        close = bool((norms(image) >= (1 - 2.0**-16) * upper).any())
        # Torch knows no gradient of some functions of users.
        if close or len(tried) == directions or not value.requires_grad:
            break
        with torch.enable_grad():
            # With a third argument, autograd.grad would import sympy, which takes a second.
            (back,) = torch.autograd.grad((value * image).sum(), base, retain_graph=True)
        v = _finite(back)
    # The combination of the directions tried whose image is longest.
    spans = torch.stack(images, dim=1).flatten(2).double()  # (N, tried, …)
    weights = torch.linalg.eigh(spans @ spans.mT).eigenvectors[:, :, -1]
    v = (weights[:, None] @ torch.stack(tried, dim=1).flatten(2).double()).view_as(x)
    v = v / norms(v).clamp_min(1e-300)
    with torch.no_grad():
        second = x + STEP * v
        measure = measure or (lambda x: (function(x), None))
        ends = (at_points or measure(x), measure(second))
        moved = norms(ends[1][0] - ends[0][0]).flatten()
        for image, error in ends:
            usual = 2.0**-36 * norms(image).flatten()
            lost = usual if error is None else torch.where(torch.isfinite(error), error, usual)
            moved = (moved - lost).clamp_min(0.0)
        ratios = torch.nan_to_num(moved / norms(second - x).flatten().clamp_min(1e-300), 0.0, 0.0, 0.0)
    best = int(ratios.argmax())
    return Stretch(float(ratios[best]) / (1 + 2.0**-20), x[best], second[best])


def _finite(x: Tensor) -> Tensor:
    return torch.where(torch.isfinite(x), x, 0.0)


def norms(x: Tensor) -> Tensor:
    """‖x‖ of each example, shaped to divide it."""
    return x.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
