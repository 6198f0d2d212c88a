"""Projected gradient ascent on the margin, in the L2 ball and the box, [0, 1]^d for images.

A step has length α = 2.5·ε/steps along the normalised gradient of max_{j≠y} f_j − f_y. The projection scales x − x₀
to length ε and clips to the box. Clipping moves every coordinate towards x₀, which lies in the box, so the result
lies in both.

The noise of an example depends on the seed and on its own index alone, so neither order nor company changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

STEPS, RESTARTS = 100, 5
QUICK_STEPS, QUICK_RESTARTS = 30, 1


def pgd(
    model: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    eps: float,
    starts: Iterable[Tensor],
    *,
    steps: int = STEPS,
    box: tuple[float, float] = (0.0, 1.0),
) -> Tensor:  # (N, …) → (N, …)
    """The first point of each path that ``model`` misclassifies, in its own arithmetic; else the image itself."""
    found, left = images.clone(), torch.arange(len(images), device=images.device)
    for start in starts:
        x, near, truth = start[left], images[left], labels[left]
        for step in range(steps + 1):
            x = into_ball(near, x, eps, box).requires_grad_()
            with torch.enable_grad():
                logits = model(x)
                margin = rival_margin(logits, truth).sum()
            fooled = logits.detach().argmax(dim=1) != truth
            if fooled.any():
                found[left[fooled]] = x.detach()[fooled]
            if fooled.all() or step == steps:
                break
            (slope,) = torch.autograd.grad(margin, x)
            x = (x + (2.5 * eps / steps) * slope / per_example_norm(slope).clamp_min(1e-12)).detach()
            x, near, truth, left = (part[~fooled] for part in (x, near, truth, left))
        left = left[~fooled]
        if not len(left):
            break
    return found


def random_starts(images: Tensor, eps: float, indices: Tensor, seed: int, restarts: int) -> Iterator[Tensor]:
    """So many times a point at distance ε from each image."""
    for restart in range(restarts):
        rows = []
        for index in indices.tolist():
            generator = torch.Generator().manual_seed(seed_of(seed, eps, index, restart))
            rows.append(torch.randn(images.shape[1:], generator=generator))
        noise = torch.stack(rows).to(images)
        yield images + eps * noise / per_example_norm(noise)


def into_ball(images: Tensor, x: Tensor, eps: float, box: tuple[float, float] = (0.0, 1.0)) -> Tensor:
    """The points of the ball and of the box near ``x``."""
    moved = x - images
    scale = eps / per_example_norm(moved).clamp_min(1e-12)
    return (images + moved * scale.clamp_max(1.0)).clamp(*box)


def rival_margin(logits: Tensor, labels: Tensor) -> Tensor:  # (N, C) → (N,)
    """max_{j≠y} f_j − f_y: positive where the answer is wrong."""
    own = logits.gather(1, labels[:, None])[:, 0]
    hidden = torch.zeros_like(logits).scatter(1, labels[:, None], -torch.inf)
    return (logits + hidden).amax(dim=1) - own


def per_example_norm(x: Tensor) -> Tensor:  # (N, …) → (N, 1, …)
    return x.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))


def seed_of(*parts: object) -> int:
    """63 bits that depend on every part."""
    digest = hashlib.sha256("/".join(map(repr, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
