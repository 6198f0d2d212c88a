"""SDP-CROWN: a certificate for one image and one radius, by linear bounds that know the ball.

For a layer z ↦ σ(z) with σ(z) = z for z ≥ 0 and az below, ‖z − ẑ‖ ≤ ρ and |z_i − ẑ_i| ≤ r_i, every g and every λ
> 0 give

    cᵀσ(z) ≥ gᵀz + h,   h = Σ_i min {k(ẑ_i + t) + λt²/2} − λρ²/2,

the minimum being over |t| ≤ r_i and the two pieces, with k = c_i − g_i where ẑ_i + t ≥ 0 and k = ac_i − g_i
elsewhere: the term λ(‖z − ẑ‖² − ρ²)/2, which is at most 0, is added, and then the entries are independent.
Without the box this is the closed form of the paper. The difference of two logits is followed back through the
layers to the input, where it is cᵀx + h ≥ cᵀx̂ − ε‖c‖ + h. g = αc and λ are found by Adam and trusted for
nothing; ρ and r come from proved norms.

Rounding: the c of a layer are taken as they are in float64. What the next product loses, at most g_nκ‖c‖ in norm,
is multiplied by the largest norm of the layer's values in the ball and taken off h. The minimum is taken at a
computed t*, and what a better t could gain, at most s²/(2λ) for the slope s there, is taken off as well. Sums
lose g_n of their absolute terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lipcert.certified import certify as by_margin
from lipcert.certified.certify import Arithmetic, CertificationResult
from lipcert.certified.network import Part, Proved
from lipcert.certified.op import ROUND, UNDERFLOW, Op, Shape, array, bias_norm, g, per_channel
from lipcert.certified.ops import Affine, Conv, Function, Linear, Normalize, Rearrange
from lipcert.errors import NotCertified, positive_int
from lipcert.verified.rounding import U64, norm_up

STEPS = 60
RATE = 0.1
TRIES = 5  # radii between the Lipschitz radius and FURTHEST times it
FURTHEST = 4.0
PAIRS = 256  # (image, rival) at once
DOWN = 1 - 2.0**-40
KINKED: dict[str, Callable[..., float]] = {
    "relu": lambda: 0.0,
    "leaky_relu": lambda a: a,
    "abs": lambda: -1.0,
    "identity": lambda: 1.0,
}


@dataclass(frozen=True)
class Layer:
    """A part with what is known of its values anywhere in the ball, for each pair (image, rival)."""

    part: Part
    shape: Shape  # of its input
    center: Tensor  # (P, *shape), computed
    norm: Tensor  # (P,): of its exact input, at any point of the ball
    reach: Tensor  # (P,): ρ, how far its exact input may be from the center
    box: Tensor  # (P,) or (P, *shape): r, the same for single entries

    @property
    def spread(self) -> Tensor:
        return self.box if self.box.ndim > 1 else _column(self.box, self.center)


@dataclass
class Multipliers:
    """α and log λ of every activation, for each pair (image, rival)."""

    alpha: list[Tensor]
    log_lambda: list[Tensor]


def certify(
    model: nn.Module | Proved,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    radii: float | Sequence[float] | None = None,
    steps: int = STEPS,
    tries: int = TRIES,
    arithmetic: Arithmetic = "float64",
    batch_size: int = 64,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> CertificationResult:
    """Certified radii by local bounds, never below those of ``method="lipschitz"``.

    Args:
        radii: the radii that are tried for each image, in increasing order until one fails. By default ``tries``
            radii between the Lipschitz radius and four times it, by bisection.
        steps: of Adam, for each image, rival and radius.
        arithmetic: as for "lipschitz".
    """
    positive_int("steps", steps)
    positive_int("tries", tries)
    wanted = _sorted_radii(radii)
    base = by_margin.certify(model, images, labels, arithmetic=arithmetic, batch_size=batch_size)
    proved = by_margin.usable_chain(model, images, arithmetic)
    require_covered(proved)
    found = base.radii.clone()
    for start in range(0, len(images), batch_size):
        rows = torch.arange(start, min(start + batch_size, len(images)))
        rows = rows[found[rows] > 0]
        if len(rows):
            local = _Search(proved, images[rows].detach().double().cpu(), base.labels[rows], arithmetic, steps)
            found[rows] = local.run(found[rows], wanted, tries)
        show(min(start + batch_size, len(images)), len(images))
    return replace(base, radii=found, method="sdp-crown")


def _sorted_radii(radii: float | Sequence[float] | None) -> list[float] | None:
    if radii is None:
        return None
    values = sorted([float(radii)] if isinstance(radii, (int, float)) else map(float, radii))
    if not values or not all(0 < value < math.inf for value in values):
        raise ValueError(f"radii must be positive and finite, got {radii!r:.60}. Pass numbers such as 36/255.")
    # One unit beyond, so that an image that is proved at a radius counts as certified there.
    return [math.nextafter(value, math.inf) for value in values]


def require_covered(proved: Proved) -> None:
    """Raise ``NotCertified``, naming the layer, unless the network is a chain of what is covered here."""
    for index, part in enumerate(proved.parts):
        step = part.step
        kinked = isinstance(step, Function) and step.op in KINKED
        known = (
            kinked or isinstance(step, (Rearrange, Normalize)) or (isinstance(step, Affine) and not step.product)
        )
        if not known or part.inputs != (index - 1,):
            raise NotCertified(
                f"sdp-crown needs a plain sequence of linear layers, convolutions and ReLU, leaky ReLU or abs, but "
                f"{part.name} ({part.op}) is something else. Use method='lipschitz'."
            )
    if not proved.headed:
        last = proved.parts[-1]
        raise NotCertified(
            f"sdp-crown needs a last linear layer that gives the logits, but the network ends with {last.name} "
            f"({last.op}). Use method='lipschitz'."
        )


class _Search:
    """A batch of images, and which radii are proved for them."""

    def __init__(self, proved: Proved, x: Tensor, labels: Tensor, arithmetic: str, steps: int) -> None:
        self.proved, self.x, self.labels, self.steps, self.arithmetic = proved, x, labels, steps, arithmetic
        self.values, self.errors = _computed(proved, x)
        logits, self.sizes = by_margin.walk(proved, x)
        self.margins, self.distances = by_margin.rivals_of(proved, logits, labels)

    def run(self, base: Tensor, wanted: list[float] | None, tries: int) -> Tensor:
        best = base.clone()
        if wanted is not None:
            open_ = torch.ones(len(best), dtype=torch.bool)
            for radius in wanted:
                test = open_ & (best < radius)
                good = self.proves(torch.full_like(best, radius), test)
                best = torch.where(good, radius, best)
                open_ &= good | ~test
            return best
        low, high = base.clone(), base * FURTHEST
        for _ in range(tries):
            middle = (low * high).sqrt() * DOWN
            good = self.proves(middle, torch.ones(len(best), dtype=torch.bool))
            low, high = torch.where(good, middle, low), torch.where(good, high, middle)
        return torch.maximum(best, low)

    def proves(self, radius: Tensor, test: Tensor) -> Tensor:
        """Whether every rival is excluded in the ball of that radius, for the images in ``test``."""
        # For the exact function only the rounding at the image itself counts, which lower_bound includes.
        exact = self.arithmetic != "float64"
        err, norms = by_margin.errors_along(self.proved, self.sizes, 0 * radius if exact else radius, U64)
        terms = by_margin.error_terms(self.proved, err, norms, self.distances, self.labels, U64)
        # A rival that the Lipschitz constant excludes needs no more.
        constants = by_margin.rival_constants(self.proved, self.distances, self.labels)
        easy = (self.margins * DOWN - 3 * terms) * DOWN > constants * radius[:, None] * ROUND
        terms = torch.zeros_like(terms) if exact else terms
        image, rival = torch.nonzero(test[:, None] & ~easy, as_tuple=True)
        good = test[:, None] & easy
        for start in range(0, len(image), PAIRS):
            part = slice(start, start + PAIRS)
            i, j = image[part], rival[part]
            good[i, j] = self.lower_bounds(i, j, radius[i]) > 2 * terms[i, j] * ROUND
        return good.all(dim=1) & test

    def lower_bounds(self, image: Tensor, rival: Tensor, radius: Tensor) -> Tensor:  # (P,), (P,), (P,) → (P,)
        """At most the smallest f_y − f_j in the ball, for the ``rival``-th class other than y."""
        layers = self.layers(image, radius)
        start = self.first_row(image, rival)
        multipliers = _initial(layers, start[0])
        _improve(layers, start, multipliers, self.x[image], radius, self.steps)
        return lower_bound(layers, start, multipliers, self.x[image], radius)

    def first_row(self, image: Tensor, rival: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """c = w_y − w_j and b_y − b_j as computed, and a bound of ‖c − (w_y − w_j)‖ relative to ‖c‖."""
        head = self.proved.head
        assert head is not None
        y = self.labels[image]
        if len(head.weight) == 1:
            sign = torch.where(y == 1, 1.0, -1.0).double()
            return sign[:, None] * head.weight, sign * head.bias, torch.zeros(len(y)).double()
        j = rival + (rival >= y)
        bias = head.bias[y] - head.bias[j]
        rounding = torch.full((len(y),), 2 * U64, dtype=torch.float64)
        return head.weight[y] - head.weight[j], bias - 2 * U64 * bias.abs(), rounding

    def layers(self, image: Tensor, radius: Tensor) -> list[Layer]:
        """All parts but the head, and the head itself last."""
        proved = self.proved
        result = []
        for index, part in enumerate(proved.parts):
            center = self.x if index == 0 else self.values[index - 1]
            err = torch.zeros(len(self.x)).double() if index == 0 else self.errors[index - 1]
            growth = 1.0 if index == 0 else proved.constants[index - 1]
            reach = (growth * radius * ROUND + err[image]) * ROUND
            norm = (_norms(center)[image] + reach) * ROUND
            box = reach
            before = proved.parts[index - 1].step if index else None
            if isinstance(before, Linear) or (isinstance(before, Conv) and before.padding_mode == "zeros"):
                # An entry is a row of the weight times what comes before it.
                earlier = 1.0 if index == 1 else proved.constants[index - 2]
                rows = norm_up(array(before.weight).reshape(len(before.weight), -1), axis=1)
                moved = _column(earlier * radius * ROUND, center) * before.operator.spread(
                    torch.from_numpy(rows), center
                )
                box = (moved * ROUND + _column(err[image], center)) * ROUND
                box = torch.minimum(box, _column(reach, center)).expand(len(image), *center.shape[1:])
            result.append(Layer(part, tuple(center.shape[1:]), center[image], norm, reach, box))
        return result


def _column(values: Tensor, like: Tensor) -> Tensor:  # (P,) → (P, 1, …)
    return values.view(-1, *[1] * (like.ndim - 1))


def _norms(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1) * (1 + g(math.prod(x.shape[1:]) + 4)) + 2.0**-400


def _computed(proved: Proved, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What every part computes at x, and how far that is from the exact value."""
    values, errors = [], []
    value, err = x, torch.zeros(len(x), dtype=torch.float64)
    for part in proved.parts:
        reached = (_norms(value) + 2 * err) * ROUND
        err = (part.proof.lipschitz * err + part.proof.error_bound(reached, U64)) * ROUND
        value = part.forward(value)
        values.append(value)
        errors.append(err)
    return values, errors


def _slope(part: Part) -> float | None:
    """a of an activation; None for what is linear."""
    step = part.step
    return float(KINKED[step.op](*step.numbers)) if isinstance(step, Function) else None


# --- One bound, as it is optimized and as it is proved ---


def _initial(layers: Sequence[Layer], c: Tensor) -> Multipliers:
    """α from the boxes: 1 or a where the sign is known, the chord for c < 0 and the nearer piece for c ≥ 0."""
    alpha, log_lambda = [], []
    for layer in reversed(layers[:-1]):
        a = _slope(layer.part)
        if a is not None:
            share = ((layer.center + layer.spread) / (2 * layer.spread).clamp_min(1e-300)).clamp(0, 1)
            alpha.append(a + (1 - a) * share)
            log_lambda.append(torch.zeros_like(layer.reach))
    return Multipliers(alpha, log_lambda)


def _improve(
    layers: Sequence[Layer],
    start: tuple[Tensor, Tensor, Tensor],
    multipliers: Multipliers,
    x: Tensor,
    radius: Tensor,
    steps: int,
) -> None:
    """Adam on α and log λ, which start where λ is about ‖k‖/ρ."""
    with torch.no_grad():
        _follow(layers, start, multipliers, x, radius, set_lambda=True)
    parameters = [*multipliers.alpha, *multipliers.log_lambda]
    if not parameters:
        return
    with torch.enable_grad():
        for parameter in parameters:
            parameter.requires_grad_()
        optimizer = torch.optim.Adam(parameters, lr=RATE)
        kept = [parameter.detach().clone() for parameter in parameters]
        best = torch.full_like(radius, -math.inf)
        for step in range(steps):
            value = _follow(layers, start, multipliers, x, radius)
            better = value.detach() > best
            best = torch.where(better, value.detach(), best)
            for place, parameter in enumerate(parameters):
                kept[place] = torch.where(_column(better, parameter), parameter.detach(), kept[place])
            optimizer.zero_grad()
            (-value).sum().backward()
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - step / steps)
            optimizer.step()
    count = len(multipliers.alpha)
    multipliers.alpha, multipliers.log_lambda = kept[:count], kept[count:]


def _follow(
    layers: Sequence[Layer],
    start: tuple[Tensor, Tensor, Tensor],
    multipliers: Multipliers,
    x: Tensor,
    radius: Tensor,
    set_lambda: bool = False,
) -> Tensor:
    """The bound with gradients and without a proof."""
    c, h, _ = start
    place = 0
    for layer in reversed(layers[:-1]):
        a, step = _slope(layer.part), layer.part.step
        if a is not None:
            gradient = multipliers.alpha[place] * c
            if set_lambda:
                unsure = (c * (1 - a) * (layer.center.abs() < layer.spread)).flatten(1)
                multipliers.log_lambda[place] = (unsure.norm(dim=1) / (2 * layer.reach) + 1e-12).log()
            weight = multipliers.log_lambda[place].exp()
            pieces = _pieces(layer, c, gradient, weight, a)
            lowest = torch.minimum(pieces[0].value, pieces[1].value)
            h = h + lowest.flatten(1).sum(dim=1) - weight * layer.reach**2 / 2
            c, place = gradient, place + 1
        elif isinstance(step, Affine):
            h = h + _with_bias(step, c)
            c = step.operator.adjoint(step.weights(c.dtype), c, torch.empty(1, *layer.shape, device="meta"))
        else:
            c, shift = _other(step, c, layer.shape)
            h = h + shift
    return h + (c * x).flatten(1).sum(dim=1) - radius * c.flatten(1).norm(dim=1)


@dataclass(frozen=True)
class Piece:
    """min k(ẑ + t) + λt²/2 over low ≤ t ≤ high, entry by entry, as computed at t; ∞ where there is no such t."""

    k: Tensor
    t: Tensor
    low: Tensor
    high: Tensor
    value: Tensor


def _pieces(layer: Layer, c: Tensor, gradient: Tensor, weight: Tensor, a: float) -> list[Piece]:
    """The two pieces of an activation: ẑ + t ≥ 0, and ẑ + t ≤ 0. Their ends are exact."""
    center, box, factor = layer.center, layer.spread.expand_as(layer.center), _column(weight, c)
    ends = (torch.maximum(-center, -box), box), (-box, torch.minimum(-center, box))
    result = []
    for slope, (low, high) in zip((1.0, a), ends, strict=True):
        k = slope * c - gradient
        t = torch.minimum(torch.maximum(-k / factor, low), high)
        value = torch.where(low <= high, k * (center + t) + factor / 2 * t * t, math.inf)
        result.append(Piece(k, t, low, high, value))
    return result


def _with_bias(step: Affine, c: Tensor) -> Tensor:  # (P, …) → (P,)
    """⟨c, b⟩."""
    if step.bias is None:
        return torch.zeros(len(c), dtype=c.dtype)
    return (c * step.operator.spread(step.bias, c)).flatten(1).sum(dim=1)


def _other(step: Op, c: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The adjoint of a rearrangement or of a normalization, and what its shift adds."""
    if isinstance(step, Normalize):
        std, mean = per_channel(step.std, c), per_channel(step.mean, c)
        return c / std, -(c / std * mean).flatten(1).sum(dim=1)
    assert isinstance(step, Rearrange)
    moved = [step.split[axis] for axis in step.order]
    back = [step.order.index(axis) + 1 for axis in range(len(step.order))]
    return c.reshape(len(c), *moved).permute(0, *back).reshape(len(c), *shape), torch.zeros(len(c), dtype=c.dtype)


@torch.no_grad()
def lower_bound(
    layers: Sequence[Layer],
    start: tuple[Tensor, Tensor, Tensor],
    multipliers: Multipliers,
    x: Tensor,
    radius: Tensor,
) -> Tensor:  # (P,)
    """At most the smallest exact f_y − f_j at distance at most ``radius`` from x; −∞ where something is not finite.

    ⟨c, v⟩ + h is at most f_y − f_j, v being the exact input of the layers that are left. The c are the numbers
    that are computed; ``lost`` collects what that and the rounding of h may have taken away.
    """
    c, h, off = start
    lost = off * _norms(c) * layers[-1].norm * ROUND
    place = 0
    for layer in reversed(layers[:-1]):
        a, step, count = _slope(layer.part), layer.part.step, math.prod(c.shape[1:])
        if a is not None:
            weight = multipliers.log_lambda[place].exp()
            gradient = multipliers.alpha[place] * c
            value, error = _offset(layer, c, gradient, weight, a)
            h, lost = h + value, lost + error + 2 * U64 * (h.abs() + value.abs())
            c, place = gradient, place + 1
            continue
        sizes = _norms(c)
        if isinstance(step, Affine):
            operator, weights = step.operator, step.weights()
            value = _with_bias(step, c)
            own = g(count + 2) * sizes * bias_norm(step.bias, None, count)
            like = torch.empty(1, *layer.shape, device="meta")
            c = operator.multiply_adjoint(step.weights(c.dtype), c, like, layer.part.block)
            terms = operator.sums(weights, layer.part.block)[1]
            wrong = g(terms + 1) * step.kappa(layer.shape) * sizes + UNDERFLOW[U64]
        else:
            c, value = _other(step, c, layer.shape)
            mean = bias_norm(step.mean, None, math.prod(layer.shape)) if isinstance(step, Normalize) else 0.0
            wrong = 2 * U64 * _norms(c) if isinstance(step, Normalize) else torch.zeros_like(sizes)
            own = g(count + 4) * _norms(c) * mean
        lost = lost + (own + wrong * layer.norm) * ROUND + 2 * U64 * (h.abs() + value.abs()) + UNDERFLOW[U64]
        h = h + value
    count = math.prod(c.shape[1:])
    dot, size = (c * x).flatten(1).sum(dim=1), _norms(c)
    lost = lost + g(count + 2) * size * _norms(x) + UNDERFLOW[U64]
    away = radius * size * ROUND
    lost = lost + 4 * U64 * (h.abs() + dot.abs() + away)
    result = h + dot - away - lost * ROUND * ROUND
    return torch.where(torch.isfinite(result), result, -math.inf)


def _offset(layer: Layer, c: Tensor, gradient: Tensor, weight: Tensor, a: float) -> tuple[Tensor, Tensor]:
    """h of the activation as computed, and how much smaller it may be."""
    factor, reach = _column(weight, c), layer.center.abs() + layer.spread
    count = math.prod(c.shape[1:])
    lowest, slack = torch.full_like(c, math.inf), torch.zeros_like(c)
    for piece in _pieces(layer, c, gradient, weight, a):
        # The minimum over t is at least the value at t* less s²/(2λ), s being the slope at t*. At an end of the
        # interval only one sign of s counts.
        uncertain = 4 * U64 * ((1 + abs(a)) * c.abs() + gradient.abs() + factor * piece.t.abs())
        slope = piece.k + factor * piece.t
        beyond = torch.where(
            piece.t == piece.low,
            (uncertain - slope).clamp_min(0),
            torch.where(piece.t == piece.high, (uncertain + slope).clamp_min(0), uncertain + slope.abs()),
        )
        beyond = torch.where(piece.low <= piece.high, beyond, 0.0)
        lowest = torch.minimum(lowest, piece.value)
        slack = torch.maximum(slack, beyond * beyond / (2 * factor))
    sums = ((1 + abs(a)) * c.abs() + gradient.abs()) * reach + factor * layer.spread * layer.spread
    error = g(count + 16) * (sums + slack).flatten(1).sum(dim=1) + slack.flatten(1).sum(dim=1)
    ball = weight * layer.reach * layer.reach / 2
    value = lowest.flatten(1).sum(dim=1)
    lost = (error + 8 * U64 * (ball + value.abs())) * ROUND + UNDERFLOW[U64]
    usable = (weight > 0) & torch.isfinite(weight)
    return torch.where(usable, value - ball, -math.inf), lost
