"""Lower bounds: two points whose images are further apart than the points. Evidence beside every upper bound.

At some points, a few steps of Lanczos's method on JᵀJ find the direction v that a piece of the network stretches
most. The quotient ‖f(x + hv) − f(x)‖/h is then a lower bound of the constant by definition, whatever the search
did.

In other norms Boyd's power method takes the place of Lanczos's: a step maximizes the product with the image's dual
vector, so that in L∞ the direction is that of signs, and in L1 one entry.

Rounding: computed in float64; what rounding can have added to the images is subtracted (its proved bound, or 2⁻³⁶
of their norms where none is known) and the quotient divided by 1 + 2⁻²⁰, so a lower bound above a claim refutes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.certified.norms import DUAL, measure

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
    measured: Measure | None = None,
    at_points: tuple[Tensor, Tensor | None] | None = None,
    upper: float = math.inf,
    norms: tuple[str, str] = ("l2", "l2"),
) -> Stretch:  # points (N, …)
    """The largest quotient that is found from these points, all of them at once.

    The search follows ``function`` in ``dtype``; float32 is faster for large networks. ``measured`` then gives the
    images of the points in float64, with a bound of their rounding error where one is known. Without it,
    ``function`` does. ``at_points`` is what ``measured`` gives for the points, if that is known already. The search
    ends within 2⁻¹⁶ of ``upper``, a proved constant: there is nothing left to find. ``norms`` are those of points
    and of images.
    """
    x = points.detach().double()
    search = _lanczos if norms == ("l2", "l2") else _boyd
    v = search(function, x, x.to(dtype), directions, upper, norms)
    with torch.no_grad():
        second = x + STEP * v
        images_of = measured or (lambda x: (function(x), None))
        ends = (at_points or images_of(x), images_of(second))
        moved = measure(ends[1][0] - ends[0][0], norms[1])
        for image, error in ends:
            usual = 2.0**-36 * measure(image, norms[1])
            lost = usual if error is None else torch.where(torch.isfinite(error), error, usual)
            moved = (moved - lost).clamp_min(0.0)
        ratios = torch.nan_to_num(moved / measure(second - x, norms[0]).clamp_min(1e-300), 0.0, 0.0, 0.0)
    best = int(ratios.argmax())
    return Stretch(float(ratios[best]) / (1 + 2.0**-20), x[best], second[best])


def _boyd(
    function: Function, x: Tensor, start: Tensor, directions: int, upper: float, norms: tuple[str, str]
) -> Tensor:
    """Directions of norm 1, in turn: the image of one, its dual vector, and what that vector's gradient favors.

    Where an image is no longer than the one before, the search begins anew, from another random direction.
    """
    generator = torch.Generator().manual_seed(0)

    def anew() -> Tensor:
        random = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return dual_vector(random.to(start.dtype), DUAL[norms[0]])

    v, before = anew(), torch.zeros(len(x), dtype=start.dtype)
    best, most = v, torch.zeros(len(x), dtype=start.dtype)
    with torch.enable_grad():
        base = start.clone().requires_grad_()
        value = function(base)
    for _ in range(4 * directions):
        with torch.no_grad():
            image = _finite((function(start + STEP * v) - value) / STEP)
        sizes = measure(image, norms[1])
        best = torch.where((sizes > most).view_as(_norms(best)), v, best)
        most = torch.maximum(sizes, most)
        if bool((most >= (1 - 2.0**-16) * upper).any()) or not value.requires_grad:
            break
        with torch.enable_grad():
            product = (value * dual_vector(image, norms[1])).sum()
            (back,) = torch.autograd.grad(product, base, retain_graph=True)
        rising = sizes > before * (1 + 2.0**-20)
        v = torch.where(rising.view_as(_norms(v)), dual_vector(_finite(back), DUAL[norms[0]]), anew())
        before = torch.where(rising, sizes, 0.0)
    return best.double()


def dual_vector(x: Tensor, norm: str) -> Tensor:
    """z of dual norm 1 with ⟨z, x⟩ = ‖x‖, for each example."""
    if norm == "l1":
        return torch.where(x < 0, -1.0, 1.0).to(x.dtype)
    if norm == "l2":
        return x / _norms(x).clamp_min(1e-300)
    flat = x.flatten(1)
    place = flat.abs().argmax(dim=1, keepdim=True)
    return torch.zeros_like(flat).scatter(1, place, dual_vector(flat.gather(1, place), "l1")).view_as(x)


def _lanczos(
    function: Function, x: Tensor, start: Tensor, directions: int, upper: float, norms: tuple[str, str]
) -> Tensor:
    """The combination of a few directions whose image is longest in L2."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(start.dtype)
    tried: list[Tensor] = []
    images: list[Tensor] = []
    with torch.enable_grad():
        base = start.clone().requires_grad_()
        value = function(base)
    while True:
        for earlier in tried * 2:  # once more, because the first time leaves rounding errors
            v = v - (earlier * v).flatten(1).sum(dim=1).view_as(_norms(v)) * earlier
        v = v / _norms(v).clamp_min(1e-30)
        with torch.no_grad():
            image = (function(start + STEP * v) - value) / STEP
        tried.append(v)
        images.append(_finite(image))
        close = bool((_norms(image) >= (1 - 2.0**-16) * upper).any())
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
    return v / _norms(v).clamp_min(1e-300)


def _finite(x: Tensor) -> Tensor:
    return torch.where(torch.isfinite(x), x, 0.0)


def _norms(x: Tensor) -> Tensor:
    """‖x‖ of each example, shaped to divide it."""
    return x.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
