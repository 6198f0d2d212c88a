"""Radii from a Lipschitz constant that holds in a ball: max over ε of min(ε, margin/L_ε) (Huang et al. 2021).

In the ball of radius ε around an image every value of the network lies in a box. A neuron whose activation is
constant on its box cannot move: with D_k the others of layer k, ‖Δa_k‖ ≤ ‖D_k W_k D_{k−1}‖·‖Δa_{k−1}‖ for any two
points of the ball, so L_ε = ∏ ‖D_k W_k D_{k−1}‖ is a Lipschitz constant inside it (docs/certifiers.md has the
proofs). The norm of a masked matrix is at most each of

- the verified norm of W itself,
- √max_{i ∈ S} (|WWᵀ|_SS q)_i/q_i over the rows S = D_k that move, for any q > 0: the paper's T on these rows,
- the same for the columns D_{k−1} with WᵀW,
- the 2^(k+1)-th root of the Frobenius norm of (MMᵀ)^(2^k), M = D_k W_k D_{k−1}, for dense layers.

No iteration has to converge: every bound is proved for whatever q it is given.

The head is bounded more sharply: its input lies in a box and in a ball of radius L_ε·ε, and a rectified or clipped
neuron must first move to where its activation changes. For any λ > 0 that bounds every margin in closed form.

Rounding: boxes outwards, norms and constants up, radii down.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from lipcert.certified import operators
from lipcert.certified.certify import (
    DOWN,
    LEAST,
    CertificationResult,
    certify,
    error_terms,
    errors_along,
    require_tensors,
    rivals_of,
    usable_chain,
    walk,
)
from lipcert.certified.network import Part, Proved
from lipcert.certified.op import ROUND, Proof, g
from lipcert.certified.ops import Affine, Function, GroupSort, Normalize, Pool, Rearrange, Scale, Select
from lipcert.errors import NotCertified, positive_int
from lipcert.verified.rounding import U64

RADII = (36 / 255, 72 / 255, 108 / 255, 1.0)
TINY = 2.0**-600  # more than anything that underflows here can lose
WIDER = 2.0**-50  # of an interval's ends, for the roundings of computing them
LARGEST_GRAM = 2**22  # entries of |WWᵀ| over all lags; larger ones cost more than they gain
SAFE = 2.0**400  # entries of a Gram matrix outside [1/SAFE, SAFE] could underflow or overflow in products
SQUARINGS = 5
TRIALS = 6  # values of λ for each rival; any one is sound


@dataclass(frozen=True)
class State:
    """What is known of one value of the network, for every point of the ball; (N, …) or (N,)."""

    value: Tensor  # computed at the center
    error: Tensor  # (N,) at least ‖computed − exact‖ at the center
    low: Tensor
    high: Tensor
    moving: Tensor  # bool: whether the exact value can differ within the ball
    constant: Tensor  # (N,) Lipschitz constant from the input to this value, inside the ball
    before: State | None = None  # what an affine layer read, if this is its output
    layer: Masked | None = None  # that layer
    norm: Tensor | None = None  # (N,) of that layer on what moves before it
    # What a clipped activation read must move so far before the value grows or falls; None: no distance.
    before_rise: Tensor | None = None
    before_fall: Tensor | None = None


def certify_locally(
    model: nn.Module | Proved,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    eps: Sequence[float] = RADII,
    gram: bool = False,
    batch_size: int = 32,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> CertificationResult:
    """Certified radii from Lipschitz constants that hold in balls of the radii ``eps`` around each image.

    The radius of an image is the largest of min(ε, margin/L_ε) over ε, and of what the constant of the whole
    network gives: it is never below that of ``lipcert.certify``. It holds for the exact function and for a float64
    evaluation anywhere in the ball.

    Args:
        eps: radii of the balls. Each one costs a few forward passes.
        gram: also bound the norms of masked dense layers by squaring their Gram matrices: tighter and slower.
    """
    positive_int("batch_size", batch_size)
    require_tensors(images=images, labels=labels)
    radii = sorted({float(radius) for radius in eps}) if isinstance(eps, Iterable) else []
    if not radii or not all(0 < radius <= 2.0**20 for radius in radii):
        raise ValueError(f"eps must be radii above 0 and at most 2^20; got {eps!r:.80}. Pass e.g. (36/255,).")
    proved = usable_chain(model, images, "float64")
    if proved.shape[0] < 2:
        raise NotCertified("local bounds are for classifiers with two or more logits. Use method='lipschitz'.")
    result = certify(proved, images, labels, batch_size=batch_size)
    network = LocalNetwork(proved, gram=gram)
    best, candidates = result.radii.clone(), result.correct.clone()
    with torch.no_grad():
        for radius in radii:
            # One unit beyond eps, so that what holds in this ball counts as certified at eps.
            ball = math.nextafter(radius, math.inf)
            # A larger constant holds in a larger ball: who failed in the one before gains nothing in this one.
            rows = (candidates & (best < ball)).nonzero()[:, 0]
            for some in rows.split(batch_size) if len(rows) else ():
                found = network.radii(images[some].double().cpu(), result.labels[some], ball)
                best[some] = torch.maximum(best[some], found)
                candidates[some] = best[some] >= ball
                show(len(images) - int(candidates.sum()), len(images))
    show(len(images), len(images))
    return replace(result, radii=best, method="local")


class LocalNetwork:
    """A proved network with what bounds its local constants; computed once for all images."""

    def __init__(self, proved: Proved, *, gram: bool = False) -> None:
        self.proved = proved
        self.layers = {
            index: Masked(part, gram=gram)
            for index, part in enumerate(proved.parts)
            if isinstance(part.step, Affine) and isinstance(part.step.operator, (operators.Dense, operators.Conv))
        }

    def radii(self, x: Tensor, labels: Tensor, radius: float) -> Tensor:  # (N, …), (N,) → (N,)
        """Radii of at most ``radius`` that follow from the constants in that ball; 0 where nothing does."""
        proved = self.proved
        logits, sizes = walk(proved, x)
        ball = torch.full((len(x),), radius, dtype=torch.float64)
        state = self.states(x, radius)[proved.parts[-1].inputs[0] if proved.headed else len(proved.parts) - 1]
        margins, distances = rivals_of(proved, logits, labels)
        if proved.headed:
            distances = torch.minimum(distances, self._moving_distances(labels, state.moving.flatten(1)))
        constants = (distances * state.constant[:, None] * ROUND).clamp_min(2.0**-1000)
        err, norms = errors_along(proved, sizes, ball, U64)
        terms = error_terms(proved, err, norms, rivals_of(proved, logits, labels)[1], labels, U64)
        margins = (margins * DOWN - 3 * terms) * DOWN
        reached = margins / constants * DOWN
        if proved.headed:
            near = (reached < radius) & (margins > 0).all(dim=1, keepdim=True)
            reached[near] = torch.maximum(reached[near], self._reached(state, labels, margins, near))
        found = torch.nan_to_num(reached.amin(dim=1) - LEAST, 0.0).clamp(0.0, radius)
        usable = torch.isfinite(logits).all(dim=1) & torch.isfinite(x).flatten(1).all(dim=1)
        return torch.where(usable & torch.isfinite(state.constant), found, 0.0)

    def _reached(self, state: State, labels: Tensor, margins: Tensor, near: Tensor) -> Tensor:
        """How far the input may move until the margin is lost, for pairs (image, rival) in ``near`` (N, C − 1).

        ``state`` is what the head reads, and ``margins`` are at least 0.
        """
        head = self.proved.head
        assert head is not None
        image, rival = near.nonzero(as_tuple=True)
        label = labels[image]
        rival = rival + (rival >= label)  # the label itself is left out
        direction = head.weight[label] - head.weight[rival]
        center, error = state.value.flatten(1), state.error[:, None]
        falls, nowhere = direction > 0, torch.zeros_like(center)
        moving = state.moving.flatten(1)
        drop = _up(_up(center - state.low.flatten(1)) + error).clamp_min(0.0) * moving
        rise = _up(_up(state.high.flatten(1) - center) + error).clamp_min(0.0) * moving
        before_fall = nowhere if state.before_fall is None else state.before_fall.flatten(1)
        before_rise = nowhere if state.before_rise is None else state.before_rise.flatten(1)
        return _distance_to_loss(
            _up(direction.abs()),
            torch.where(falls, before_fall[image], before_rise[image]),
            torch.where(falls, drop[image], rise[image]),
            margins[near],
            state.constant[image],
        )

    def constants(self, x: Tensor, radius: float) -> Tensor:  # (N, …) → (N,)
        """Lipschitz constants, inside the ball, of what the head reads, or of the whole map without a head."""
        proved = self.proved
        return self.states(x, radius)[
            proved.parts[-1].inputs[0] if proved.headed else len(proved.parts) - 1
        ].constant

    def states(self, x: Tensor, radius: float) -> dict[int, State]:
        """What is known of the input (−1) and of every part, for all points within ``radius`` of x."""
        x = x.double()
        zero = torch.zeros(len(x), dtype=torch.float64)
        everywhere = torch.ones_like(x, dtype=torch.bool)
        half = radius * ROUND
        states = {-1: State(x, zero, _down(x - half), _up(x + half), everywhere, zero + 1)}
        for index, part in enumerate(self.proved.parts[: -1 if self.proved.headed else None]):
            inputs = [states[place] for place in part.inputs]
            state = self._step(index, part, inputs, radius)
            # Every coordinate stays as near to its center as the whole vector.
            reach = _spread((state.constant * radius + state.error) * ROUND, state.value)
            low = torch.fmax(state.low, _down(state.value - reach))
            high = torch.fmin(state.high, _up(state.value + reach))
            states[index] = replace(state, low=low, high=high)
        return states

    def _step(self, index: int, part: Part, inputs: list[State], radius: float) -> State:
        value = part.forward(*[state.value for state in inputs])
        error = _error(part.proof, inputs)
        constant = part.proof.carried([state.constant for state in inputs]) * ROUND
        nowhere = torch.full_like(value, math.inf)
        state = State(value, error, -nowhere, nowhere, torch.ones_like(value, dtype=torch.bool), constant)
        if len(inputs) > 1:
            return state
        (source,), step = inputs, part.step
        if index in self.layers:
            return self.layers[index].through(source, state, radius)
        if isinstance(step, Function):
            return _through_function(step, source, state)
        if isinstance(step, (Rearrange, Select)):
            moving = step(source.moving.double()) != 0
            state = replace(state, low=step(source.low), high=step(source.high), moving=moving)
            if isinstance(step, Select) or source.before_rise is None or source.before_fall is None:
                return state
            return replace(state, before_rise=step(source.before_rise), before_fall=step(source.before_fall))
        if isinstance(step, GroupSort):  # each place of a sorted group grows with every member
            axis = operators.placed(step.axis, source.moving)
            groups = source.moving.unflatten(axis, (-1, step.size))
            moving = groups.any(dim=axis + 1, keepdim=True).expand_as(groups).flatten(axis, axis + 1)
            return replace(state, low=step(source.low), high=step(source.high), moving=moving)
        if isinstance(step, (Normalize, Scale)):
            return replace(state, moving=source.moving)
        if isinstance(step, Pool):
            return replace(state, moving=step(source.moving.double()) != 0)
        return state

    def _moving_distances(self, labels: Tensor, moving: Tensor) -> Tensor:  # (N,), (N, F) → (N, C − 1)
        """‖(w_y − w_j) D‖ for the coordinates D that move, rounded up."""
        head = self.proved.head
        assert head is not None
        classes = len(head.weight)
        distances = torch.empty(len(labels), classes, dtype=torch.float64)
        for label in labels.unique():
            chosen = labels == label
            squares = (head.weight[label] - head.weight).square()
            sums = moving[chosen].double() @ squares.mT
            distances[chosen] = (sums * (1 + g(squares.shape[1] + 8)) + TINY).sqrt() * ROUND
        others = labels[:, None] != torch.arange(classes)
        return distances[others].view(len(labels), classes - 1)


class Masked:
    """An affine layer y = Vx + b and the norm of D V D' for diagonal 0/1 matrices D, D' of each example."""

    def __init__(self, part: Part, *, gram: bool = False) -> None:
        step = part.step
        assert isinstance(step, Affine)
        assert isinstance(step.operator, (operators.Dense, operators.Conv))
        self.part, self.operator, self.gram = part, step.operator, gram
        self.weight = step.weight.double().cpu()
        self.absolute, self.squared = self.weight.abs(), self.weight.square()
        self.bias = None if step.bias is None else step.bias.double().cpu()
        self.terms = math.prod(self.weight.shape[1:])
        self.subnormal = bool(((self.squared == 0) & (self.weight != 0)).any())  # squares that vanished
        self.norm = part.proof.lipschitz

    @cached_property
    def rows(self) -> Gram | None:
        """What bounds ‖D V‖."""
        return _gram(self.operator, self.weight)

    @cached_property
    def columns(self) -> Gram | None:
        """What bounds ‖V D‖. A stride drops rows, so it may be left out."""
        return _gram(self.operator, self.weight.transpose(0, 1), transposed=True)

    def through(self, source: State, state: State, radius: float) -> State:
        """Boxes and the constant behind the layer."""
        low, high = self._interval(source)
        # |y_i − ŷ_i| ≤ ‖V_i D'‖·‖Δx‖ + what rounding did at the center: only moving inputs count.
        squares = self._multiply(self.squared, source.moving.double()) * self._meetings(source.moving.shape)
        norms = (squares * (1 + g(self.terms + 8)) + TINY).sqrt()
        reach = norms * _spread(source.constant * (radius * ROUND), norms) + _spread(state.error, norms)
        reach = reach * ROUND
        norm = self.masked_norm(source.moving, None)
        return replace(
            state,
            low=torch.fmax(low, _down(state.value - reach)),
            high=torch.fmin(high, _up(state.value + reach)),
            moving=(squares > 0) | self.subnormal,
            constant=torch.minimum(state.constant, source.constant * norm * ROUND),
            before=replace(source, before=None, layer=None, norm=None),
            layer=self,
            norm=norm,
        )

    def _interval(self, source: State) -> tuple[Tensor, Tensor]:
        """V[low, high] + b, rounded outwards."""
        center = (source.low + source.high) / 2
        half = torch.maximum(source.high - center, center - source.low) * (1 + WIDER) + TINY
        lost = g(self.terms + 8)
        value = self._multiply(self.weight, center)
        spread = self._multiply(self.absolute, half + lost * center.abs()) * (1 + lost) + TINY
        if self.bias is not None:
            bias = self.operator.spread(self.bias, value)
            value, spread = value + bias, spread + lost * bias.abs()
        spread = spread + (value.abs() + spread) * WIDER
        return value - spread, value + spread

    def _meetings(self, shape: Sequence[int]) -> int:
        """How many taps of a window can meet one pixel of a batch of that shape; (Σ of r taps)² ≤ r·Σ of squares.

        Taps u and u′ of a circular image of length n meet where (u − u′)·dilation is a multiple of n.
        """
        if not isinstance(self.operator, operators.Conv) or not self.operator.circular:
            return 1
        axes = zip(self.weight.shape[2:], shape[2:], self.operator.dilation, strict=True)
        return math.prod(-(-taps // (size // math.gcd(size, dilation))) for taps, size, dilation in axes)

    def _multiply(self, weight: Tensor, x: Tensor) -> Tensor:
        return self.operator.multiply((weight,), x, None)

    def masked_norm(self, columns: Tensor, rows: Tensor | None, known: Tensor | None = None) -> Tensor:
        """At least ‖D V D'‖, (N,), for the rows D and the columns D' that are kept; all rows if there is no mask.

        ``known`` is the same with all rows, if it is known already.
        """
        bound = torch.full((len(columns),), self.norm, dtype=torch.float64) if known is None else known
        # A mask that keeps everything gains nothing over the norm.
        if known is None and self.columns is not None and not bool(columns.all()):
            bound = torch.minimum(bound, self.columns.norm_bound(columns))
        if rows is not None and self.rows is not None and not bool(rows.all()):
            bound = torch.minimum(bound, self.rows.norm_bound(rows))
        flat = isinstance(self.operator, operators.Dense) and columns.ndim == 2 and self.operator.groups == 1
        if self.gram and flat:
            kept = torch.ones(len(columns), len(self.weight), dtype=torch.bool) if rows is None else rows
            bound = torch.minimum(bound, _squared_gram_bound(self.weight, kept, columns))
        return bound


@dataclass(frozen=True)
class Gram:
    """A matrix Â ≥ |VVᵀ| of nonnegative entries, and a positive number q for each channel."""

    operator: operators.Dense | operators.Conv
    weight: Tensor
    q: Tensor
    terms: int

    def norm_bound(self, kept: Tensor) -> Tensor:  # (N, …) bool → (N,)
        """√max_{i kept} (Â_SS q)_i/q_i ≥ ‖D V‖, with q = Â_SS q₀ + a little, so that q follows the mask."""
        mask = kept.double()
        start = mask * self.operator.spread(self.q, mask)
        q = self._multiply(start) * mask
        q = (q + _spread(q.flatten(1).amax(dim=1) * 2.0**-20 + TINY, q)) * mask
        # Every q is at least 2⁻⁶²⁰, so what underflows adds less than 2⁻⁴²⁰ to a quotient.
        ratios = torch.where(kept, self._multiply(q) * (1 + g(self.terms + 8)) / q + 2.0**-420, 0.0)
        return (torch.nan_to_num(ratios, nan=math.inf).flatten(1).amax(dim=1) * ROUND).sqrt() * ROUND

    def _multiply(self, x: Tensor) -> Tensor:
        return self.operator.multiply((self.weight,), x, None)


def _gram(operator: operators.Dense | operators.Conv, weight: Tensor, *, transposed: bool = False) -> Gram | None:
    """Â of the rows of ``weight``: at least |VVᵀ|, entry by entry; of V transposed if it says so.

    A convolution on an image is part of the convolution on the infinite grid, and dropping rows and columns does
    not increase a norm. So its Gram matrix may be that of the grid, a convolution with the correlations of the
    kernel: entry (i, p), (j, p + t) is Σ K_i[u + s·t]·K_j[u].
    """
    if operator.groups != 1:
        return None
    terms = math.prod(weight.shape[1:])
    product = weight.abs().flatten(1) @ weight.abs().flatten(1).mT
    top = float(product.max())
    if not 1 / SAFE <= top <= SAFE:
        return None
    lost = g(terms + 8)
    if isinstance(operator, operators.Dense):
        if weight.shape[0] ** 2 > LARGEST_GRAM:
            return None
        gram = (weight @ weight.mT).abs() + lost * product + TINY
        return Gram(operators.Dense(operator.axis), gram, _perron(gram), len(gram))
    if operator.circular or set(operator.dilation) != {1}:
        return None
    taps = tuple(weight.shape[2:])
    stride = (1,) * operator.axes if transposed else operator.stride
    lags = [range(-((k - 1) // s), (k - 1) // s + 1) for k, s in zip(taps, stride, strict=True)]
    count = len(weight)
    if count**2 * math.prod(map(len, lags)) > LARGEST_GRAM:
        return None
    entries = []
    for lag in itertools.product(*lags):
        shift = [t * s for t, s in zip(lag, stride, strict=True)]
        # Of V itself the entry at t is Σ K_i[u + s·t]·K_j[u]; of V transposed it is Σ K_i[u]·K_j[u + t].
        first, second = _overlap(weight, shift), _overlap(weight, [-t for t in shift])
        first, second = (second, first) if transposed else (first, second)
        entries.append((first @ second.mT).abs() + lost * (first.abs() @ second.abs().mT) + TINY)
    gram = torch.stack(entries, dim=-1).unflatten(-1, [len(axis) for axis in lags])
    sides = tuple((len(axis) // 2, len(axis) // 2) for axis in lags)
    one = (1,) * operator.axes
    stencil = operators.Conv(one, sides, one, "zeros", 1)
    return Gram(stencil, gram, _perron(gram.flatten(2).sum(dim=2)), math.prod(gram.shape[1:]))


def _overlap(kernel: Tensor, shift: Sequence[int]) -> Tensor:  # (n, c, taps…) → (n, …)
    """The taps that meet those of the same kernel moved by ``shift``."""
    for axis, t in enumerate(shift, start=2):
        kernel = kernel.narrow(axis, max(t, 0), kernel.shape[axis] - abs(t))
    return kernel.flatten(1)


def _perron(matrix: Tensor) -> Tensor:
    """A positive vector near the dominant one of a nonnegative matrix. Any positive vector would be sound."""
    q = torch.ones(len(matrix), dtype=torch.float64)
    for _ in range(20):
        q = matrix @ q
        q = q / q.max()
    return q.clamp_min(1e-3)


def _squared_gram_bound(weight: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (m, n), (N, m), (N, n) → (N,)
    """At least ‖D V D'‖: ‖G‖ = ‖GᵀG‖^½ for G = MMᵀ, and ‖·‖ ≤ ‖·‖_F at the end.

    What squaring loses by rounding has norm at most g_m·‖G‖_F², and is added back at every level.
    """
    m, n = weight.shape
    matrix = weight * rows[:, :, None] * columns[:, None, :]
    if m > n:
        matrix, m, n = matrix.mT, n, m
    size = matrix.square().sum(dim=(1, 2)) * (1 + g(m * n + 8))  # at least ‖M‖_F²
    usable = (size >= 1 / SAFE) & (size <= SAFE)
    scale = torch.exp2(torch.frexp(torch.where(usable, size, 1.0)).exponent.double())  # a power of two: exact
    gram = matrix @ matrix.mT / _spread(scale, matrix)
    lost = [g(n + 8) * size / scale]
    scales: list[Tensor] = []
    for _ in range(SQUARINGS):
        frobenius = gram.square().sum(dim=(1, 2)) * (1 + g(m * m + 8))
        factor = torch.exp2(torch.frexp(frobenius.clamp_min(TINY)).exponent.double())
        gram = gram.mT @ gram / _spread(factor, gram)  # ‖G‖² = ‖GᵀG‖ for every G, symmetric or not
        lost.append(g(m + 8) * frobenius / factor)
        scales.append(factor)
    bound = (gram.square().sum(dim=(1, 2)) * (1 + g(m * m + 8)) + TINY).sqrt() * ROUND
    for factor, more in zip(reversed(scales), reversed(lost[1:]), strict=True):
        bound = ((bound + more + TINY) * factor * ROUND).sqrt() * ROUND
    bound = ((bound + lost[0] + TINY) * scale * ROUND).sqrt() * ROUND
    # The squares of small entries vanish, so that a size of 0 does not say that the matrix is 0.
    empty = ~(matrix != 0).any(dim=(1, 2))
    return torch.where(usable, bound, torch.where(empty, 0.0, math.inf))


def _through_function(step: Function, source: State, state: State) -> State:
    """A scalar function: entries that are constant on their box do not move, and neither do their rows."""
    low, high, moving = state.low, state.high, source.moving
    before_rise = before_fall = None
    if step.op in ("relu", "hardtanh", "maximum", "identity"):  # min(max(z, b), t), computed without rounding
        low, high = step(source.low), step(source.high)
        # The smallest and the largest value coincide: the function is constant on the box.
        moving = moving & ~(low >= high)  # NaN counts as moving
        # Below b the argument must rise to b before the value grows; above t it must fall to t.
        far = torch.tensor(math.inf, dtype=torch.float64)
        error = _spread(source.error, low)
        before_rise = _down(_down(step(-far) - source.value) - error).clamp_min(0.0)
        before_fall = _down(_down(source.value - step(far)) - error).clamp_min(0.0)
    constant = state.constant
    if source.layer is not None and source.before is not None:
        norm = source.layer.masked_norm(source.before.moving, moving, source.norm)
        slope = max(1.0, step.constant())
        constant = torch.minimum(constant, source.before.constant * norm * (slope * ROUND))
    return replace(
        state,
        low=low,
        high=high,
        moving=moving,
        constant=constant,
        before_rise=before_rise,
        before_fall=before_fall,
    )


def _distance_to_loss(size: Tensor, wait: Tensor, most: Tensor, margin: Tensor, constant: Tensor) -> Tensor:
    """At most the distance r at which Σ size_i·e_i can be ``margin``; (P, F) three times, (P,) twice → (P,).

    Value i moves by 0 < e_i ≤ most_i only if its argument moves by e_i + wait_i, and all arguments together by at
    most constant·r. With ψ_i = max over e of 0 and size_i·e − λ/2·(e + wait_i)², the loss is at most
    Σ ψ_i + λ/2·(constant·r)² for every λ > 0. The best λ has Σ size_i·e_i = margin, so λ follows that ratio.
    """
    far, lost = most + wait, g(32)
    everything = (size * most + TINY).sum(dim=1) * (1 + g(size.shape[1] + 8))
    # Where the box alone keeps the margin no distance loses it.
    best = torch.where(everything < margin, math.inf, 0.0)
    rate = size.square().sum(dim=1) / margin
    for _ in range(TRIALS):
        rate = torch.nan_to_num(rate, nan=1.0).clamp(2.0**-300, 2.0**300)
        scale = rate[:, None]
        steep = size / (2 * scale)
        # ψ is at most the parabola's top, and at most its value at the end plus what the slope there allows.
        top = size * (steep - wait) + lost * size * (steep + wait)
        pull = scale * far
        end = size * most - pull * far / 2 + (pull - size).clamp_min(0.0) * most
        end = end + lost * (size * most + pull * far)
        each = torch.minimum(top, end).clamp_min(0.0) + TINY
        left = (margin - each.sum(dim=1) * (1 + g(size.shape[1] + 8))) * DOWN
        reach = (left.clamp_min(0.0) * 2 / rate * DOWN).sqrt() * DOWN
        best = torch.fmax(best, reach / constant.clamp_min(2.0**-400) / ROUND * DOWN)
        moved = torch.minimum(2 * steep - wait, most).clamp_min(0.0) * (each > TINY)
        rate = rate * (size * moved).sum(dim=1) / margin
    return best


def _error(proof: Proof, inputs: Sequence[State]) -> Tensor:
    """‖computed − exact‖ at the center, behind an op."""
    norms = [_norms(state.value) for state in inputs]
    each = [(norm + 2 * state.error) * ROUND for norm, state in zip(norms, inputs, strict=True)]
    own = proof.error_bound(proof.reached(each), U64)
    return (proof.carried([state.error for state in inputs]) + own) * ROUND


def _norms(x: Tensor) -> Tensor:  # (N, …) → (N,)
    """At least the norm of each example."""
    return x.flatten(1).norm(dim=1) * (1 + g(x[0].numel() + 4)) + 2.0**-400


def _spread(values: Tensor, like: Tensor) -> Tensor:
    """One number for each example, shaped to be combined with a batch."""
    return values.view(-1, *[1] * (like.ndim - 1))


def _down(x: Tensor) -> Tensor:
    return x - x.abs() * WIDER - TINY


def _up(x: Tensor) -> Tensor:
    return x + x.abs() * WIDER + TINY
