"""Randomized smoothing (Cohen, Rosenfeld and Kolter 2019) of any classifier, sound in floating point.

Let f be a classifier of points of the grid ℤᵈ/levels, and Q the rounding to that grid. The smoothed classifier is
g(x) = argmax_c P(f(Q(x + σN)) = c), for every real x and a standard normal N. If P(f(Q(x + σN)) = c) ≥ p > ½ then
g = c wherever ‖x′ − x‖ < σΦ⁻¹(p) (docs/certifiers.md has the proof).

At a point x of the grid Q(x + σN) = x + Q(σN) exactly, so that the noise is drawn as integers, without rounding
(``noise.py``; Voráček and Hein 2023 show how float noise voids the guarantee). An input off the grid is certified
through its nearest grid point, and its radius is smaller by the distance.

n0 samples choose the class, n other ones bound its probability from below (``verified.binomial``). Samples on which
f ties or gives NaN count for no class. Rounding: p, Φ⁻¹ and the radius down, the distance to the grid up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lipcert.certified.certify import READABLE, CertificationResult, require_labels, require_tensors
from lipcert.certified.network import Proved
from lipcert.certifiers.noise import LARGEST, Bits, grid_noise
from lipcert.errors import finite, positive_int
from lipcert.verified.binomial import lower_bound, smallest_count
from lipcert.verified.normal import cdf, quantile_down
from lipcert.verified.rounding import norm_up, sum_up, up

Classifier = Callable[[Tensor], Tensor]  # (N, …) → (N, classes)
LOOKS = 6  # of early stopping, before the last one
MOST = 10_000_000  # samples
FARTHEST = 2**22  # grid steps from 0 of an image; float32 holds every integer up to 2²⁴
NOBODY = -1  # the class of a tie, and of an image on which smoothing abstains


@dataclass(frozen=True)
class Smoothing:
    """The settings. Numbers mean what their shortest decimal says: sigma = 0.1 is one tenth.

    Args:
        sigma: standard deviation of the noise, in units of the input.
        n0: samples that choose the class.
        n: samples that bound its probability; the most of them with ``early_stop``.
        alpha: the probability, for each image, that its radius is wrong.
        seed: of the random bits. Choose it without looking at results.
        levels: the grid has this many steps per unit of the input: 255 for images of bytes.
        batch_size: samples in a forward pass. It decides which random bits a sample gets.
        early_stop: a radius. Sampling ends when it is proved, or out of reach.
    """

    sigma: float
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    seed: int = 0
    levels: int = 255
    batch_size: int = 250
    early_stop: float | None = None

    def __post_init__(self) -> None:
        for name in ("n0", "n", "levels", "batch_size"):
            positive_int(name, getattr(self, name))
        if not finite("sigma", self.sigma, cure="Pass the noise that the network was trained with.") > 0:
            raise ValueError(f"sigma must be above 0, got {self.sigma}. Pass 0.25, for example.")
        if not 0 < finite("alpha", self.alpha, cure="Pass 0.001, for example.") < 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {self.alpha}. Pass 0.001, for example.")
        if self.alpha < 1e-300:
            raise ValueError(f"alpha must be at least 1e-300, got {self.alpha}. Pass 0.001, for example.")
        if self.levels > 2**53:
            raise ValueError(f"levels must be at most 2^53, got {self.levels}. Pass 255 for images of bytes.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be an integer between 0 and 2^63 - 1, got {self.seed!r}.")
        if not Fraction(1, 4) <= self.scale <= LARGEST:
            raise ValueError(
                f"sigma must lie between 1/4 and {LARGEST:,} steps of the grid, but {self.sigma} is "
                f"{float(self.scale):.3g} steps of 1/{self.levels}. Choose another number of levels."
            )
        if self.n > MOST:
            raise ValueError(f"n must be at most {MOST:,}, got {self.n:,}.")
        stops = self.early_stop is not None
        least = smallest_count(self.tested / 2 if stops else self.tested)
        if self.n < least:
            rule = " with early stopping" if stops else ""
            raise ValueError(
                f"n = {self.n} samples prove nothing at alpha = {self.alpha}{rule}, even if all of them agree. "
                f"Use n of at least {least}."
            )
        if self.early_stop is not None:
            if not finite("early_stop", self.early_stop, cure="Pass a radius.") >= 0:
                raise ValueError(f"early_stop must be a radius of at least 0, got {self.early_stop}.")
            most = self.radius(self.n, *self.looks[-1])
            if not self.early_stop < most:
                raise ValueError(
                    f"early_stop = {self.early_stop} is out of reach: n = {self.n:,} samples prove a radius of at "
                    f"most {most:.4g}. Use more samples, or a smaller radius."
                )

    @cached_property
    def noise(self) -> Fraction:
        """σ."""
        return Fraction(repr(float(self.sigma)))

    @cached_property
    def scale(self) -> Fraction:
        """σ in steps of the grid."""
        return self.noise * self.levels

    @cached_property
    def tested(self) -> Fraction:
        """α."""
        return Fraction(repr(float(self.alpha)))

    @property
    def confidence(self) -> float:
        """At most 1 − α."""
        value = float(1 - self.tested)
        return value if Fraction(repr(value)) <= 1 - self.tested else math.nextafter(value, 0.0)

    @cached_property
    def looks(self) -> tuple[tuple[int, Fraction], ...]:
        """After how many samples the bound may be computed, each with its share of α.

        The shares add up to α, so with probability 1 − α the bounds of all looks hold, and it does not matter at
        which of them sampling ends, nor why.
        """
        if self.early_stop is None:
            return ((self.n, self.tested),)
        size = self.batch_size
        counts = sorted({-(-self.n // (size << j)) * size for j in range(1, LOOKS + 1)})
        counts = [count for count in counts if count < self.n]
        share = self.tested / (2 * len(counts)) if counts else Fraction(0)
        return (*((count, share) for count in counts), (self.n, self.tested - share * len(counts)))

    def radius(self, hits: int, samples: int, alpha: Fraction) -> float:
        """σΦ⁻¹(p), rounded down, for the bound p of a probability with that many hits; 0 if p ≤ ½."""
        return _radius(self.noise, hits, samples, alpha)

    def hopeless(self, hits: int, samples: int, alpha: Fraction) -> bool:
        """Whether ``early_stop`` is probably out of reach. This decides when to stop, not what is claimed."""
        most = 1 - lower_bound(samples - hits, samples, alpha)
        return self.early_stop is not None and cdf(Fraction(self.early_stop) / self.noise, 64)[0] > most * 2**64


@lru_cache(maxsize=4096)
def _radius(sigma: Fraction, hits: int, samples: int, alpha: Fraction) -> float:
    p = lower_bound(hits, samples, alpha)
    if hits < samples:
        # Then it also bounds the mean of coins that differ, one for each place of a batch.
        p = min(p, Fraction(hits - 1, samples))
    if p <= Fraction(1, 2):
        return 0.0
    exact = sigma * Fraction(quantile_down(p))
    radius = float(exact)
    return radius if Fraction(radius) <= exact else math.nextafter(radius, 0.0)


@dataclass(frozen=True)
class Smoothed:
    """What is known of one image: the class, NOBODY if smoothing abstains, and the radius for that class."""

    prediction: int
    radius: float
    hits: int
    samples: int


class Sampler:
    """Votes of a classifier on noisy copies of one image."""

    def __init__(self, model: Classifier, image: Tensor, stream: int, settings: Smoothing) -> None:
        self.model, self.image, self.settings = model, image, settings
        exact = image.detach().cpu().double().numpy()
        self.usable = bool(np.isfinite(exact).all())
        grid = np.rint(np.where(np.isfinite(exact), exact, 0.0) * settings.levels)
        if self.usable and np.abs(grid).max(initial=0.0) > FARTHEST:
            raise ValueError(
                f"an input has an entry of size {np.abs(exact).max():.3g}, more than {FARTHEST:,} steps of "
                f"1/{settings.levels} from 0. Scale the inputs, or choose fewer levels."
            )
        self.grid = torch.from_numpy(np.where(self.usable, grid, 0.0).astype(np.int32))
        self.distance = _distance_up(exact, grid, settings.levels) if self.usable else math.inf
        self.noise, self.bits = grid_noise(settings.scale), Bits(settings.seed, stream)

    def inputs(self, count: int) -> Tensor:
        """f's inputs at ``count`` noisy points of the grid, (count, …): a function of integers, entry by entry."""
        draws = torch.from_numpy(self.noise.draw(count * self.grid.numel(), self.bits))
        points = draws.view(count, *self.grid.shape).add_(self.grid)
        dtype = torch.float64 if self.image.dtype == torch.float64 else torch.float32
        return points.to(dtype).div_(self.settings.levels).to(self.image.device, self.image.dtype)

    def votes(self, count: int) -> Tensor:
        return winners(self.model(self.inputs(count)), count)

    def choose(self) -> int:
        """The class with the most votes of n0 samples. However it was chosen, the bound that follows holds."""
        size = self.settings.batch_size
        parts = [min(size, self.settings.n0 - start) for start in range(0, self.settings.n0, size)]
        votes = torch.cat([self.votes(part) for part in parts])
        votes = votes[votes != NOBODY]
        return int(votes.bincount().argmax()) if len(votes) else NOBODY

    def run(self) -> Smoothed:
        choice, settings = (self.choose() if self.usable else NOBODY), self.settings
        if choice == NOBODY:
            return Smoothed(NOBODY, 0.0, 0, 0)
        hits = samples = 0
        best = 0.0
        for count, alpha in settings.looks:
            while samples < count:
                # Every forward pass has the same size: sums may be added in another order in a smaller one.
                part = min(settings.batch_size, count - samples)
                hits += int((self.votes(settings.batch_size)[:part] == choice).sum())
                samples += part
            best = max(best, settings.radius(hits, samples, alpha))
            if settings.early_stop is not None:
                reached = best > settings.early_stop + self.distance
                if reached or settings.hopeless(hits, samples, alpha):
                    break
        # The theorem holds at the grid point; the image is another point of the same ball.
        radius = max(0.0, math.nextafter(best - self.distance, -math.inf))
        return Smoothed(choice if radius > 0 else NOBODY, radius, hits, samples)


def winners(logits: Tensor, count: int) -> Tensor:  # (count, classes) → (count,)
    """The class with the largest logit; NOBODY for a tie or a NaN. One logit stands for classes 0 and 1."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != count or not logits.shape[1]:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the classifier must give logits of shape ({count}, classes), but it gives {shape}.")
    logits = logits.detach()
    if logits.shape[1] == 1:
        value = logits[:, 0]
        return torch.where(value > 0, 1, torch.where(value < 0, 0, NOBODY)).cpu()
    largest = logits.amax(dim=1, keepdim=True)  # NaN if any logit is
    alone = (logits == largest).sum(dim=1) == 1
    return torch.where(alone, logits.argmax(dim=1), NOBODY).cpu()


def _distance_up(exact: npt.NDArray[np.float64], grid: npt.NDArray[np.float64], levels: int) -> float:
    """At least ‖x − k/levels‖. The quotient errs by 2⁻⁵³ of itself, and the difference of both by 2⁻⁵³ of it."""
    quotient = grid / levels
    return sum_up([up(norm_up(exact - quotient), 2), 2.0**-52 * norm_up(quotient)])


def smooth_image(model: Classifier, image: Tensor, stream: int, settings: Smoothing) -> Smoothed:
    """Smooth the classifier around one image, with the random bits of the number ``stream``."""
    with torch.no_grad():
        return Sampler(model, image, stream, settings).run()


def require_function(model: Classifier, image: Tensor, settings: Smoothing) -> None:
    """Raise ValueError if the classifier answers twice differently for the same inputs."""
    with torch.no_grad():
        sampler = Sampler(model, image, 0, settings)
        inputs = sampler.inputs(min(settings.batch_size, settings.n0))
        first, second = (winners(model(inputs.clone()), len(inputs)) for _ in range(2))
    if not torch.equal(first, second):
        raise ValueError(
            "the classifier gives two answers for the same inputs. Smoothing needs a fixed function: switch off "
            "dropout and other random parts."
        )


@contextmanager
def evaluating(model: Classifier | Proved) -> Iterator[Classifier]:
    """The classifier in evaluation mode; every module gets its own mode back."""
    classifier: Classifier = (lambda x: model.run(x)[-1]) if isinstance(model, Proved) else model
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        if isinstance(model, nn.Module):
            model.eval()
        yield classifier
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def certify(
    model: Classifier | Proved,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    sigma: float,
    n0: int = 100,
    n: int = 10_000,
    alpha: float = 0.001,
    seed: int = 0,
    levels: int = 255,
    batch_size: int = 250,
    early_stop: float | None = None,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> CertificationResult:
    """Radii of the smoothed classifier, each of which holds with probability at least 1 − alpha.

    Args:
        model: any function from floating inputs (N, …) to logits (N, classes): a module, ours or foreign. The class
            of an input must depend on that input alone, not on the rest of its batch.
        images: (N, …), floating; f gets inputs of the same dtype and device.
        labels: the right classes, (N,). Without them the class that smoothing finds is certified.
        sigma, n0, n, alpha, seed, levels, batch_size, early_stop: see ``Smoothing``.
        show: called with (images done, all).
    """
    settings = Smoothing(sigma, n0, n, alpha, seed, levels, batch_size, early_stop)
    require_tensors(images=images, labels=labels)
    if images.dtype not in READABLE or images.ndim < 2:
        raise ValueError(
            f"expected floating images (N, …); got {images.dtype} {tuple(images.shape)}. Pass data.inputs()."
        )
    require_labels(images, labels)
    answers: list[Smoothed] = []
    with evaluating(model) as classifier:
        if len(images):
            require_function(classifier, images[0], settings)
        for index, image in enumerate(images):
            answers.append(smooth_image(classifier, image, index, settings))
            show(index + 1, len(images))
    return result_of(answers, labels, settings)


def result_of(answers: list[Smoothed], labels: Tensor | None, settings: Smoothing) -> CertificationResult:
    """The answers as a result of ``certify``; only a right answer has a radius."""
    predictions = torch.tensor([answer.prediction for answer in answers], dtype=torch.int64)
    abstained = predictions == NOBODY
    labels = predictions if labels is None else labels.cpu().long()
    correct = (predictions == labels) & ~abstained
    radii = torch.tensor([answer.radius for answer in answers], dtype=torch.float64)
    return CertificationResult(
        radii=torch.where(correct, radii, 0.0),
        correct=correct,
        predictions=predictions,
        labels=labels,
        lipschitz=math.inf,  # no constant of the classifier is used
        arithmetic="integers",
        assumes=("random bits of Philox4x64-10 that behave like independent uniform ones",),
        method="smoothing",
        confidence=settings.confidence,
        abstained=abstained,
        hits=torch.tensor([answer.hits for answer in answers], dtype=torch.int64),
        samples=torch.tensor([answer.samples for answer in answers], dtype=torch.int64),
    )


@dataclass(frozen=True)
class Task:
    """One image to smooth around, in whatever process. An array, since those travel by themselves."""

    index: int
    image: npt.NDArray[np.float32]


def smooth_task(task: Task, model: nn.Module, settings: Smoothing) -> dict[str, Any]:
    """What is known of the image of a task, as JSON, with the CPU seconds that it took."""
    torch.set_num_threads(1)  # sums in the same order, however many processes work
    began = time.process_time()
    with evaluating(model) as classifier:
        answer = smooth_image(classifier, torch.from_numpy(task.image), task.index, settings)
    return asdict(answer) | {"cpu_seconds": time.process_time() - began}


def answer_of(stored: Mapping[str, Any], settings: Smoothing) -> tuple[Smoothed, float]:
    """A stored answer and its CPU seconds; ValueError if its numbers do not fit together."""
    answer = Smoothed(*(stored[field.name] for field in fields(Smoothed)))
    if not 0 <= answer.hits <= answer.samples <= settings.n:
        raise ValueError("the counts of a stored answer do not fit its settings.")
    # Early stopping may have proved the radius at an earlier look, whose hits are not stored.
    checkable = answer.samples > 0 and settings.early_stop is None
    if checkable and not answer.radius <= settings.radius(answer.hits, answer.samples, settings.tested):
        raise ValueError("the radius of a stored answer does not follow from its hits.")
    return answer, float(stored["cpu_seconds"])
