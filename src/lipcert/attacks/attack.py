"""``attack``: how many answers survive an attempt to change them within an L2 radius.

An attack is evidence, not proof: what it breaks is broken, what survives it may still fall to a better one. So the
share that survives is an upper bound of the true robust accuracy, and a certified share a lower one.

The attacks run in float32, one after another, each on what the last ones left. ``referee`` decides in float64. What
float32 takes for a success and float64 does not is handed to PGD in float64, from that point on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from lipcert.attacks.autoattack import STANDARD, perturb, undefined
from lipcert.attacks.pgd import QUICK_RESTARTS, QUICK_STEPS, RESTARTS, STEPS, pgd, random_starts, seed_of
from lipcert.attacks.referee import Model, Verdict, in_both_precisions, judge
from lipcert.errors import finite, one_of

Method = Literal["autoattack", "pgd", "quick"]
QUICK = ("apgd-ce", "pgd", "square")  # cross-entropy alone is weak where logits are small, as 1-Lipschitz ones are
ATTACKS: dict[str, tuple[str, ...]] = {"autoattack": STANDARD, "pgd": ("pgd",), "quick": QUICK}


@dataclass(frozen=True, repr=False)
class AttackResult:
    """What an attack within ``eps`` found; points that fool lie in the ball and the box in float64."""

    eps: float
    method: str
    attacks: tuple[str, ...]  # those of the method that are defined for this network and shape
    correct: Tensor  # (N,) bool, before the attack
    broken: Tensor  # (N,) bool: correct, and wrong at ``points``
    by: tuple[str | None, ...]  # the attack that broke it
    points: Tensor  # (N, …) float64; the image itself where nothing was found
    distances: Tensor  # (N,) float64, to the image, rounded up
    predictions: Tensor  # (N,) at ``points``, in float64

    def __repr__(self) -> str:
        return (
            f"AttackResult({self.method} within {self.eps:.4g}: {len(self.correct)} inputs, "
            f"{int(self.correct.sum())} right, {int(self.broken.sum())} of them broken)"
        )

    @property
    def natural_accuracy(self) -> float:
        return float(self.correct.double().mean())

    @property
    def attacked_accuracy(self) -> float:
        """The share that is right and was not broken: an upper bound of the true robust accuracy."""
        return float((self.correct & ~self.broken).double().mean())


def attack(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    eps: float,
    method: Method = "autoattack",
    seed: int = 0,
    indices: Tensor | None = None,
    bounded: bool = True,
) -> AttackResult:
    """Try to change the answers of ``model`` within an L2 distance of ``eps``.

    Args:
        model: logits of images, or one output whose sign is the class. A float64 copy of a module decides; what is
            no module decides itself, and must take float32 and float64.
        images: (N, …), floating, in [0, 1] unless ``bounded`` is False.
        labels: (N,), integers.
        method: "autoattack", the standard four; "pgd", 5 restarts of 100 steps on the margin; "quick", APGD-CE with
            30 iterations, PGD with one start and 30 steps, Square with 100 queries, for a first look.
        seed: with ``eps`` and ``indices`` it decides all that is random.
        indices: (N,), the names of the examples, 0, 1, … by default; PGD draws the noise of each from its own, the
            others from the first.
        bounded: whether points count only if they lie in [0, 1]^d, as images do. Rows of a table may be anywhere.

    Raises:
        ValueError: for images outside [0, 1], labels without a logit, a radius that is not positive.
    """
    one_of("method", method, get_args(Method))
    if not finite("eps", eps, cure="Pass a radius such as 36/255.") > 0:
        raise ValueError(f"eps must be above 0; got {eps!r}. Pass a radius such as 36/255.")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie from 0 to 2^63 − 1; got {seed}. Pass a smaller number.")
    _require_images(images, labels, bounded)
    names = torch.arange(len(labels)) if indices is None else indices
    fast, exact = in_both_precisions(model)
    center, start, truth = images.double(), images.float(), labels.long()
    with torch.no_grad():
        logits = exact(center)
    _require_classes(labels, logits.shape[1])
    shared = seed_of(seed, eps, int(names[0])) if len(names) else 0
    low, high = (0.0, 1.0) if bounded or not len(images) else _around(images, eps)
    run = _Run(fast, exact, eps, seed, shared, logits.shape[1], method == "quick", (low, high))
    chosen = attacks_of(method, run.classes, tuple(images.shape[1:]))
    predictions = logits.argmax(dim=1)
    correct = predictions == truth
    points, distances, broken = center.clone(), torch.zeros(len(truth)).to(center), torch.zeros_like(correct)
    by: list[str | None] = [None] * len(truth)
    for name in chosen:
        left = (correct & ~broken).nonzero()[:, 0]
        if not len(left):
            break
        tries = run.tries(name, start[left], center[left], truth[left], names[left.cpu()])
        for finder, which, verdict in tries:
            hit = verdict.fooled
            where = left[which][hit]
            points[where], distances[where] = verdict.points[hit], verdict.distances[hit]
            predictions[where], broken[where] = verdict.predictions[hit], True
            for index in where.tolist():
                by[index] = finder
    return AttackResult(float(eps), method, chosen, correct, broken, tuple(by), points, distances, predictions)


def attacks_of(method: str, classes: int, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The attacks of a method, without those that are not defined for so many classes and this shape."""
    return tuple(name for name in ATTACKS[method] if name == "pgd" or undefined(name, classes, shape) is None)


def left_out(method: str, classes: int, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The other attacks of the method, each with the reason."""
    reasons = {name: undefined(name, classes, shape) for name in ATTACKS[method] if name != "pgd"}
    return tuple(f"{name} ({reason})" for name, reason in reasons.items() if reason is not None)


def _around(images: Tensor, eps: float) -> tuple[float, float]:
    """A box that holds every ball: clipping to it changes nothing."""
    return float(images.min()) - 2 * eps - 1, float(images.max()) + 2 * eps + 1


@dataclass(frozen=True)
class _Run:
    """What stays the same from one attack to the next."""

    fast: Model
    exact: Model
    eps: float
    seed: int  # of PGD, with the name of each example
    shared_seed: int  # of the others
    classes: int
    quick: bool
    box: tuple[float, float]  # of every entry

    def tries(
        self, name: str, start: Tensor, center: Tensor, labels: Tensor, names: Tensor
    ) -> Iterator[tuple[str, Tensor, Verdict]]:
        """Who tried, on which points (a mask), the verdict: one attack, then PGD where the arithmetics differ."""
        if name == "pgd":
            restarts, steps = (QUICK_RESTARTS, QUICK_STEPS) if self.quick else (RESTARTS, STEPS)
            tries = random_starts(start, self.eps, names, self.seed, restarts)
            found = pgd(self.fast, start, labels, self.eps, tries, steps=steps, box=self.box)
        else:
            found = perturb(
                name,
                self.fast,
                start,
                labels,
                eps=self.eps,
                seed=self.shared_seed,
                classes=self.classes,
                quick=self.quick,
                box=self.box,
            )
        verdict = judge(self.exact, center, labels, found, self.eps, self.box)
        yield name, torch.ones_like(verdict.fooled), verdict
        with torch.no_grad():
            claimed = self.fast(found).argmax(dim=1) != labels
        doubtful = claimed & ~verdict.fooled
        if bool(doubtful.any()):
            near, truth = center[doubtful], labels[doubtful]
            found = pgd(self.exact, near, truth, self.eps, [verdict.points[doubtful]], box=self.box)
            yield "pgd", doubtful, judge(self.exact, near, truth, found, self.eps, self.box)


def _require_images(images: Tensor, labels: Tensor, bounded: bool) -> None:
    if not images.is_floating_point() or labels.is_floating_point() or labels.shape != images.shape[:1]:
        raise ValueError(
            f"expected floating images (N, …) and integer labels (N,); got {images.dtype} {tuple(images.shape)} "
            f"and {labels.dtype} {tuple(labels.shape)}. Pass data.inputs() and data.labels."
        )
    if not bool(torch.isfinite(images).all()):
        raise ValueError("images must be finite, but some values are NaN or infinity.")
    if bounded and not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError("images must lie in [0, 1], but some values do not. Divide bytes by 255.")


def _require_classes(labels: Tensor, classes: int) -> None:
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"labels must lie from 0 to {classes - 1}; got {int(labels.min())} to {int(labels.max())}. "
            "Number the classes from 0."
        )
