"""In which inputs a network provably never falls or never rises: bounds of its slopes along each input.

For every node D⁻ ≤ (z(x + te_i) − z(x))/t ≤ D⁺ for all x and t > 0, entry by entry of the node's output. D is exact
for the input; a linear map, a function with slopes in [α, L] and a sum carry it on as intervals. Whatever a node
is, a norm of its change is at most its constant times that of its input's change, which begins with ‖te_i‖ = |t| in
every norm; so this bounds |D| as well. All of it is about the exact function of the stored numbers.

Rounding: every interval is widened by what its computation may have lost.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lipcert.certified.functions import FUNCTIONS
from lipcert.certified.network import Part, Proved
from lipcert.certified.norms import rows_up
from lipcert.certified.op import ROUND, array
from lipcert.certified.ops import BatchNorm, Combination, Function, Linear, Normalize, PReLU, Rearrange, Scale
from lipcert.verified.rounding import ETA, g

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Slopes = tuple[Array, Array]  # (outputs, inputs) each
LARGEST = 2**18  # slopes of one node: more would take seconds


def monotone(proved: Proved) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs in which no output ever falls, and those in which none ever rises; vectors alone."""
    shapes = [proved.input_shape, *(part.proof.shape for part in proved.parts)]
    if len(proved.input_shape) > 1 or len(proved.shape) > 1:
        return (), ()
    inputs = proved.input_shape[0]
    if max(math.prod(shape) for shape in shapes) * inputs > LARGEST:
        return (), ()
    known: dict[int, Slopes] = {-1: (np.eye(inputs), np.eye(inputs))}
    reaches = {-1: np.ones(inputs)}  # of ‖z(x + te_i) − z(x)‖/|t|, for each input
    with np.errstate(all="ignore"):
        for index, part in enumerate(proved.parts):
            gains = (part.proof.lipschitz,) if part.proof.gains is None else part.proof.gains
            terms = [gain * reaches[place] for gain, place in zip(gains, part.inputs, strict=True)]
            reach = np.sum(terms, axis=0) * ROUND + 2.0**-1000
            bound = np.broadcast_to(reach, (math.prod(part.proof.shape), inputs))
            low, high = _carried(part, [known[place] for place in part.inputs]) or (-bound, bound)
            low, high = np.fmax(low, -bound), np.fmin(high, bound)  # these ignore NaN
            known[index] = low, high
            reaches[index] = np.fmin(reach, rows_up(_largest(low, high).T, part.proof.norm))
    low, high = known[len(proved.parts) - 1]
    rising, falling = (low >= 0).all(axis=0), (high <= 0).all(axis=0)
    return tuple(np.flatnonzero(rising).tolist()), tuple(np.flatnonzero(falling).tolist())


def _carried(part: Part, before: list[Slopes]) -> Slopes | None:
    """The slopes after a part, from those of its inputs; None where only its constant is known."""
    step, (low, high) = part.step, before[0]
    if len(part.proof.shape) > 1:
        return None
    if isinstance(step, Combination):
        weights = array(step.weights).astype(np.float64)[:, None, None]
        lows, highs = (np.stack(sides) for sides in zip(*before, strict=True))
        used = weights > 0
        signs = np.any(used & (lows < 0), axis=0), np.any(used & (highs > 0), axis=0)
        sides = (weights * lows).sum(axis=0), (weights * highs).sum(axis=0)
        return _widened(sides, (weights * _largest(lows, highs)).sum(axis=0), signs, len(weights) + 1)
    if isinstance(step, Rearrange):
        return None if step.moves else (low, high)
    if isinstance(step, Linear) and step.groups == 1:
        weight = array(step.weight).astype(np.float64)
        up, down = np.maximum(weight, 0), np.minimum(weight, 0)
        positive, negative = (weight > 0).astype(np.float64), (weight < 0).astype(np.float64)
        signs = positive @ (low < 0) + negative @ (high > 0) > 0, positive @ (high > 0) + negative @ (low < 0) > 0
        sides = up @ low + down @ high, up @ high + down @ low
        return _widened(sides, np.abs(weight) @ _largest(low, high), signs, 2 * weight.shape[1] + 1)
    slopes = _own_slopes(part)
    if slopes is None:
        return None
    s, t = (side[:, None] for side in slopes)
    products = [s * low, s * high, t * low, t * high]
    signs = (s < 0) & (high > 0) | (t > 0) & (low < 0), (t > 0) & (high > 0) | (s < 0) & (low < 0)
    sides = np.minimum.reduce(products), np.maximum.reduce(products)
    return _widened(sides, _largest(*sides), signs, 1)


def _own_slopes(part: Part) -> tuple[Array, Array] | None:
    """The smallest and the largest slope of a function of single entries, for each entry of a vector."""
    step, ones = part.step, np.ones(part.proof.shape)
    if isinstance(step, Scale):
        return step.factor * ones, step.factor * ones
    if isinstance(step, Function):
        scalar = FUNCTIONS[step.op]
        return scalar.low(*step.numbers) * ones, scalar.slope(*step.numbers) * ones
    if isinstance(step, PReLU):
        weight = array(step.weight).astype(np.float64) * ones
        return np.minimum(weight, 1.0), np.maximum(weight, 1.0)
    if isinstance(step, Normalize):
        return _around(1 / array(step.std).astype(np.float64), 1)
    if isinstance(step, BatchNorm):
        weight = ones if step.weight is None else array(step.weight).astype(np.float64)
        return _around(weight / np.sqrt(array(step.variance).astype(np.float64) + step.eps), 4)
    return None


def _around(values: Array, roundings: int) -> tuple[Array, Array]:
    lost = np.abs(values) * g(roundings + 1) + ETA
    return values - lost, values + lost


def _largest(low: Array, high: Array) -> Array:
    return np.maximum(np.abs(low), np.abs(high))


def _widened(sides: Slopes, sizes: Array, signs: tuple[Flags, Flags], roundings: int) -> Slopes:
    """The interval with what ``roundings`` on each path, and underflow, may have lost.

    ``signs``: where some term may be negative, and where one may be positive. Where none is, the sum is not.
    """
    lost = sizes * g(2 * roundings + 4) + roundings * ETA
    (low, high), (below, over) = (sides[0] - lost, sides[1] + lost), signs
    return np.where(below, low, np.maximum(low, 0)), np.where(over, high, np.minimum(high, 0))
