"""The attacks of AutoAttack (Croce and Hein, 2020) for L2, from pyautoattack, with its standard parameters.

Standard is APGD-CE, APGD-T, FAB-T and Square, in that order. Not each of them is defined everywhere: the targeted
DLR loss of APGD-T compares four logits, and Square lays tiles that must fit into the image. What is not defined is
left out and not replaced; ``undefined`` says why, and every record names what ran.

The attacks are called directly. ``AutoAttack.run_standard_evaluation`` calls them in the same way, but also ends
the tracing of the whole process and writes to a global logger; a test compares the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted  # type: ignore[import-untyped]
from pyautoattack.fab_pt import FABAttack_PT  # type: ignore[import-untyped]
from pyautoattack.square import SquareAttack  # type: ignore[import-untyped]
from torch import Tensor

STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
ITERATIONS, TARGETS, QUERIES = 100, 9, 5000
QUICK_ITERATIONS, QUICK_QUERIES = 30, 100

# Its own, with nowhere to go: pyautoattack notes points with a zero gradient, and a file is where notes belong.
QUIET = logging.Logger("lipcert.attacks")
QUIET.addHandler(logging.NullHandler())


def undefined(name: str, classes: int, shape: tuple[int, ...]) -> str | None:
    """Why pyautoattack does not have this attack for so many logits and images of this shape, or None."""
    if name == "apgd-t" and classes < 4:  # its loss takes the largest, the third and the fourth logit
        return "needs 4 classes"
    if name == "square" and (len(shape) != 3 or not _tiles_fit(shape)):
        return "needs images" if len(shape) != 3 else "its tiles do not fit into the image"
    return None


def _tiles_fit(shape: tuple[int, ...]) -> bool:
    """Whether Square's tiles stay inside the image."""
    _, height, width = shape
    tile = height // 5
    if tile <= 1:  # tiles of one pixel always fit
        return tile == 1 and width >= 5
    offset = (height - 5 * tile) // 2
    return all(size >= 5 and offset + size // tile * tile <= size for size in (height, width))


def perturb(
    name: str,
    model: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    *,
    eps: float,
    seed: int,
    classes: int,
    quick: bool = False,
    box: tuple[float, float] = (0.0, 1.0),
) -> Tensor:  # (N, …) → (N, …)
    """The points of one attack. They may lie outside the ball by the rounding of float32: a referee must look.

    The attacks know inputs in [0, 1] only, so that another ``box`` is scaled to it.
    """
    low, size = box[0], box[1] - box[0]
    scaled = (low, size) != (0.0, 1.0)
    if scaled:
        images, eps, inner = (images - low) / size, eps / size, model

        def model(x: Tensor) -> Tensor:
            return inner(x * size + low)

    with torch.random.fork_rng(devices=[images.device] if images.is_cuda else []), torch.no_grad():
        points: Tensor = _make(name, model, eps, seed, classes, quick, images.device).perturb(
            images.clone(memory_format=torch.contiguous_format), labels.clone()
        )
    return points.detach() * size + low if scaled else points.detach()


def _make(
    name: str,
    model: Callable[[Tensor], Tensor],
    eps: float,
    seed: int,
    classes: int,
    quick: bool,
    device: torch.device,
) -> APGDAttack | FABAttack_PT | SquareAttack:
    common = {"norm": "L2", "eps": eps, "seed": seed, "device": device, "n_restarts": 1}
    targets = min(TARGETS, classes - 1)
    if name == "apgd-ce":
        return APGDAttack(
            model, n_iter=QUICK_ITERATIONS if quick else ITERATIONS, loss="ce", logger=QUIET, **common
        )
    if name == "apgd-t":
        return APGDAttack_targeted(model, n_iter=ITERATIONS, n_target_classes=targets, logger=QUIET, **common)
    if name == "fab-t":
        return FABAttack_PT(model, n_iter=ITERATIONS, targeted=True, n_target_classes=targets, **common)
    square = SquareAttack(model, n_queries=QUICK_QUERIES if quick else QUERIES, resc_schedule=quick, **common)
    square.margin_and_loss = partial(_without_ties, square.margin_and_loss)
    return square


def _without_ties(
    margin_and_loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], x: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """A margin of exactly 0 as a tiny negative one: Square takes both for success, but fails if 0 is the best."""
    margin, loss = margin_and_loss(x, labels)
    return torch.where(margin == 0, -torch.finfo(margin.dtype).tiny, margin), loss
