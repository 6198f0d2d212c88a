"""Lower bounds: two points whose images are further apart than the points. Evidence beside every upper bound.

Power iteration on JᵀJ at some points finds the direction v that a piece of the network stretches most; the quotient
‖f(x + hv) − f(x)‖/h is then a lower bound of the constant by definition, whatever the iteration did.

Rounding: computed in float64; what rounding can have added to the images is subtracted (its proved bound, or 2⁻³⁶
of their norms where none is known) and the quotient divided by 1 + 2⁻²⁰, so a lower bound above a claim refutes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
Rounding = Callable[[Tensor], Tensor]  # (N, …) → (N,): how far the computed images may be from the exact ones
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
    iterations: int = 10,
    rounding: Rounding | None = None,
    guide: Function | None = None,
) -> Stretch:  # points (N, …), float64
    """The largest quotient that power iteration finds from these points, all of them at once.

    ``rounding`` bounds ‖computed − exact‖ at given points; where it is not finite, or not given, 2⁻³⁶ of what is
    computed stands in for it. ``guide`` computes nearly the same in float32, and faster: the iteration follows it,
    and only the quotient itself is computed by ``function``.
    """
    x = points.detach().double()
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    followed, start = (function, x) if guide is None else (guide, x.float())
    for _ in range(iterations):
        v = v / norms(v).clamp_min(1e-300)
        with torch.enable_grad():
            base = start.clone().requires_grad_()
            value = followed(base)
            if not value.requires_grad:  # someone's own function, of which torch knows no gradient
                break
            image = followed(start + STEP * v.to(start.dtype)).detach() - value.detach()
            (back,) = torch.autograd.grad(value, base, image / STEP)
        v = torch.where(torch.isfinite(back), back, 0.0).double()
    v = v / norms(v).clamp_min(1e-300)
    with torch.no_grad():
        second = x + STEP * v
        images = function(x), function(second)
        moved = norms(images[1] - images[0]).flatten()
        for point, image in zip((x, second), images, strict=True):
            usual = 2.0**-36 * norms(image).flatten()
            known = usual if rounding is None else rounding(point)
            moved = (moved - torch.where(torch.isfinite(known), known, usual)).clamp_min(0.0)
        ratios = torch.nan_to_num(moved / norms(second - x).flatten().clamp_min(1e-300), 0.0, 0.0, 0.0)
    best = int(ratios.argmax())
    return Stretch(float(ratios[best]) / (1 + 2.0**-20), x[best], second[best])


def norms(x: Tensor) -> Tensor:
    """‖x‖ of each example, shaped to divide it."""
    return x.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
