"""LipSDP and ECLipsE-Fast: dense layers that follow each other are proved together, and their constant shrinks.

The product of norms lets every layer meet its worst direction at once. Here an ellipsoid holds what a unit ball
of differences becomes, from layer to layer (``verified.ellipsoid``). A diagonal D_k for each activation chooses
it: any D_k is sound, and the choice decides how tight it is. "eclipse-fast" takes D_k = (1 + |m|/r)·λmax(P_k)·I,
m and r being the middle and half the width of the slopes, which costs one factorization for each layer. "lipsdp"
continues from there with Adam on log D_k, once for the whole map and once for the pairs of classes. That is the
semidefinite program of LipSDP with one multiplier for each neuron, solved to first order.

What counts is the smallest of these constants and the product, for every pair of classes.
Rounding: up, in ``verified.ellipsoid``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.certified import certify as by_margin
from lipcert.certified.certify import CertificationResult, require_tensors
from lipcert.certified.freeze import prove
from lipcert.certified.network import Chain, Part, Proved
from lipcert.certified.op import array
from lipcert.certified.ops import Function, Linear
from lipcert.errors import NotCertified, positive_int
from lipcert.verified.ellipsoid import Ellipsoid, of_weight, through

ROOM = 1 + 2.0**-18  # of a constant, for a checker whose own proof rounds otherwise
POWERS = 12  # of the power iteration
STEPS = 200  # of Adam
RATE = 0.1
Array = np.ndarray
Choice = Callable[[int, Array], Array]


@dataclass(frozen=True)
class Layers:
    """The weights of a chain in float64, and the slopes of the activations between them."""

    weights: list[Array]
    slopes: list[tuple[float, float]]


def certify(
    model: nn.Module | Proved,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    method: str = "lipsdp",
    steps: int = STEPS,
    **options: Any,
) -> CertificationResult:
    """``lipcert.certify`` with the constants of ``tighten``."""
    require_tensors(images=images, labels=labels)
    proved = model if isinstance(model, Proved) else prove(model, tuple(images.shape[1:]))
    result = by_margin.certify(tighten(proved, method=method, steps=steps), images, labels, **options)
    return replace(result, method=method)


def certify_fast(
    model: nn.Module | Proved, images: Tensor, labels: Tensor | None = None, **options: Any
) -> CertificationResult:
    """``lipcert.certify`` with the constants of ECLipsE-Fast."""
    return certify(model, images, labels, method="eclipse-fast", **options)


def tighten(proved: Proved, *, method: str = "lipsdp", steps: int = STEPS) -> Proved:
    """The same proofs, and a joint one for every chain of linear maps and activations.

    Args:
        method: "lipsdp", or "eclipse-fast", which is faster and looser.
        steps: of Adam, for "lipsdp".

    Raises:
        NotCertified: if no two linear maps on vectors have just an activation between them.
    """
    positive_int("steps", steps)
    places = find_chains(proved)
    if not places:
        raise NotCertified(_no_chain(proved, method))
    chains = [chain for first, last in places for chain in _prove_chain(proved, first, last, method, steps)]
    return replace(proved, chains=tuple(chains))


def find_chains(proved: Proved) -> list[tuple[int, int]]:
    """The places of the first and the last part of each longest run linear, activation, linear, …, linear."""
    runs: list[tuple[int, int]] = []
    first: int | None = None
    for index, part in enumerate(proved.parts):
        follows = first is not None and part.inputs == (index - 1,)
        before = proved.parts[index - 1] if index else None
        alternates = before is not None and _is_linear(before) != _is_linear(part)
        if not (follows and alternates and (_is_linear(part) or _is_activation(part))):
            first = index if _is_linear(part) else None
        elif _is_linear(part) and first is not None:
            runs = [run for run in runs if run[0] != first] + [(first, index)]
    return runs


def _is_linear(part: Part) -> bool:
    step = part.step
    return isinstance(step, Linear) and step.groups == 1 and len(part.proof.shape) == 1


def _is_activation(part: Part) -> bool:
    return isinstance(part.step, Function)


def _no_chain(proved: Proved, method: str) -> str:
    """Why there is no chain; it names the first layer that is neither a linear map nor an activation."""
    others = [part for part in proved.parts if not (_is_linear(part) or _is_activation(part))]
    where = f", and {others[0].name} ({others[0].op}) is something else" if others else ""
    return (
        f"{method} needs two linear layers on vectors with one activation between them, and this network has none"
        f"{where}. Use method='lipschitz'."
    )


def _layers(proved: Proved, first: int, last: int) -> Layers:
    weights, slopes = [], []
    for part in proved.parts[first : last + 1]:
        if isinstance(part.step, Function):
            scalar, numbers = part.step.scalar, part.step.numbers
            slopes.append((scalar.low(*numbers), scalar.slope(*numbers)))
        else:
            assert isinstance(part.step, Linear)
            weights.append(array(part.step.weight).astype(np.float64))
    return Layers(weights, slopes)


def _prove_chain(proved: Proved, first: int, last: int, method: str, steps: int) -> list[Chain]:
    """The chain with its constants, once for each choice of multipliers; none if its numbers are out of range."""
    layers = _layers(proved, first, last)
    headed = last == len(proved.parts) - 1
    start = propagate(layers, lambda index, matrix: spherical(matrix, *layers.slopes[index]))
    if start is None:
        return []
    found = [start]
    if method == "lipsdp":
        for objective in (largest, mean_of_pairs) if headed else (largest,):
            better = optimize(layers, start[1], objective, steps)
            # What Adam found may be too close to the boundary to be proved; then the start stands.
            proof = propagate(layers, functools.partial(_given, better))
            found += [] if proof is None else [proof]
    return [_chain(first, last, *proof, headed, method) for proof in found]


def _chain(first: int, last: int, shape: Ellipsoid, multipliers: list[Array], headed: bool, method: str) -> Chain:
    whole = shape.lipschitz() * ROOM
    pairs = None
    if headed:
        pairs = (
            torch.from_numpy(shape.pairs() * ROOM)
            if len(shape.matrix) > 1
            else torch.tensor([[whole]], dtype=torch.float64)
        )
    return Chain(first, last, whole, pairs, tuple(map(torch.from_numpy, multipliers)), method)


def _given(multipliers: list[Array], index: int, matrix: Array) -> Array:
    return multipliers[index]


def propagate(layers: Layers, choose: Choice) -> tuple[Ellipsoid, list[Array]] | None:
    """The ellipsoid behind the last weight, and the D_k = choose(k, M_k); None where one proves nothing."""
    shape = of_weight(layers.weights[0])
    multipliers: list[Array] = []
    for index, (slopes, weight) in enumerate(zip(layers.slopes, layers.weights[1:], strict=True)):
        if shape is None:
            return None
        d = choose(index, shape.matrix)
        multipliers.append(d)
        shape = through(shape, d, *slopes, weight)
    return None if shape is None else (shape, multipliers)


def spherical(matrix: Array, low: float, high: float) -> Array:  # (n, n) → (n,)
    """(1 + |m|/r)·λmax(P)·I: the D that makes λmax(P′) smallest among multiples of I, by estimate."""
    half = (high - low) / 2
    ratio = min(max(abs(low + high) / 2 / half if half > 0 else math.inf, 2.0**-10), 2.0**10)
    top = _top_estimate(matrix)
    return np.full(len(matrix), (1 + ratio) * top if top > 0 else 1.0)


def _top_estimate(matrix: Array) -> float:
    """About λmax of a positive semidefinite matrix: by powers, which is within a few percent.

    The start is a fixed random vector. Sums of rows may be orthogonal to the first eigenvector.
    """
    v = np.random.default_rng(0).standard_normal(len(matrix))
    for _ in range(POWERS):
        size = float(np.linalg.norm(v))
        if not size > 0:
            return 0.0
        v = matrix @ (v / size)
    return float(np.linalg.norm(v))


def largest(matrix: Tensor) -> Tensor:
    """log λmax(P): the constant of the whole chain."""
    return torch.linalg.eigvalsh(matrix)[-1].log()


def mean_of_pairs(matrix: Tensor) -> Tensor:
    """The mean of log K_ij² over all pairs of outputs; that of the only output."""
    if len(matrix) == 1:
        return matrix.log().sum()
    upper = torch.triu_indices(len(matrix), len(matrix), 1)
    diagonal = matrix.diagonal()
    squares = diagonal[upper[0]] + diagonal[upper[1]] - 2 * matrix[upper[0], upper[1]]
    # Two outputs with the same weights have K = 0 up to rounding, and nothing to gain.
    return squares.clamp_min(2.0**-40 * float(diagonal.detach().max())).log().mean()


@torch.inference_mode(False)
@torch.enable_grad()
def optimize(
    layers: Layers, start: Sequence[Array], objective: Callable[[Tensor], Tensor], steps: int
) -> list[Array]:
    """D_k that make ``objective`` of the last ellipsoid smaller, by Adam on log D_k; the best that was met.

    A step that leaves D ≻ P is taken back and the rate is halved.
    """
    weights = [torch.from_numpy(weight) for weight in layers.weights]
    logs = [torch.from_numpy(np.log(d)).requires_grad_() for d in start]
    best, least = [log.detach().clone() for log in logs], math.inf
    rate = RATE
    optimizer = torch.optim.Adam(logs, lr=rate)
    for step in range(steps):
        matrix = _last_matrix(weights, layers.slopes, [log.exp() for log in logs])
        value = None if matrix is None else objective(matrix)
        if value is None or not math.isfinite(float(value.detach())):
            rate /= 2
            with torch.no_grad():
                for log, kept in zip(logs, best, strict=True):
                    log.copy_(kept)
            optimizer = torch.optim.Adam(logs, lr=rate)
            continue
        if float(value.detach()) < least:
            best, least = [log.detach().clone() for log in logs], float(value.detach())
        optimizer.zero_grad()
        value.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimizer.step()
    return [log.exp().numpy() for log in best]


def _last_matrix(
    weights: list[Tensor], slopes: list[tuple[float, float]], multipliers: list[Tensor]
) -> Tensor | None:
    """P behind the last weight, with gradients and without a proof; None where D is not above P."""
    matrix = weights[0] @ weights[0].T
    for weight, (low, high), d in zip(weights[1:], slopes, multipliers, strict=True):
        factor, failed = torch.linalg.cholesky_ex(torch.diag(d) - matrix)
        if int(failed):
            return None
        y = torch.linalg.solve_triangular(factor, (low + high) / 2 * d[:, None] * weight.T, upper=False)
        matrix = y.T @ y - low * high * (weight * d) @ weight.T
    return matrix
