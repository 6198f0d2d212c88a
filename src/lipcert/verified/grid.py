"""sup_ω ‖H(ω)‖² of a convolution's symbol, from a grid of frequencies: near tight.

H(ω)_ar = Σ_u k_a[r, u] e^{iω·u} has one frequency ω_i for each axis of taps and degree d_i = taps − 1 in it. With
N_i > d_i equally spaced points in axis i, the supremum is at most the maximum on the grid divided by the product of
cos²(πd_i/2N_i) over the axes (M. Riesz, applied to one axis after the other; proof in docs/soundness.md). An axis
with one tap costs nothing; without any axis H is one matrix. The size of an image plays no part: a transform at
image size is no bound for zero padding. With circular padding it is: the operator is block diagonal there, and
nothing lies between the points (``torus``).

At each point λmax(HH*) ≤ r + defect, by a Cholesky factor of rI − HH* that is checked. One r serves all points and
is raised, by the eigenvalues of the points at hand, whenever a factorisation fails.
Rounding: up; the tables of cosines err by u, the symbol by 2g_{t+5} times the sums of |k| over t taps.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lipcert.verified.cholesky import defect_up, gram
from lipcert.verified.rounding import ETA, U64, Array, g, norm_up, up
from lipcert.verified.trigonometry import cos_squared_down, tables

OVERSAMPLING = (
    16,
    12,
    8,
    6,
    4,
)  # points per degree: the norm is at most 1.010, 1.018, 1.040, 1.072, 1.172 too large
WORK = 2e11  # floating-point operations for which the finest grid is taken; coarser ones beyond
ENTRIES = 2**15  # of a block of symbols, so that a block stays in the cache


def grid_points(degree: int, oversampling: int) -> int:
    """Points in one axis."""
    return max(1, oversampling * degree)


def choose_oversampling(shape: tuple[int, ...]) -> int:  # (groups, n, R, *taps)
    """The finest grid within WORK, or the coarsest."""
    groups, n, rows, *taps = shape
    small, large = sorted((n, rows))
    each = groups * (16.0 * small**2 * (small + large) + 4.0 * n * rows * math.prod(taps) + 1e4)
    for oversampling in OVERSAMPLING:
        count = math.prod(grid_points(k - 1, oversampling) for k in taps) / 2
        if count * each <= WORK:
            return oversampling
    return OVERSAMPLING[-1]


@np.errstate(all="ignore")
def symbol_bound(
    columns: Array, oversampling: int | None = None, torus: tuple[int, ...] | None = None
) -> float:  # (groups, n, R, *taps)
    """sup_ω of ‖H(ω)‖², the largest over the groups, for columns + Δ with |Δ| ≤ g_2|columns| + 4·ETA.

    With ``torus``, over the frequencies of circular images of that size alone, one size for each axis of taps.
    Entries have modulus at most 1 and the largest is at least ¼, as ``scaled_rows`` leaves them; or all are 0.
    """
    if not columns.any():
        return 0.0
    groups, n, rows, *taps = columns.shape
    area = math.prod(taps)
    if torus is None:
        oversampling = oversampling or choose_oversampling(columns.shape)
        counts = tuple(grid_points(k - 1, oversampling) for k in taps)
        loss = math.prod((cos_squared_down(k - 1, count) for k, count in zip(taps, counts, strict=True)), start=1.0)
    else:
        counts, loss = torus, 1.0
    frequencies = half_grid(counts)
    search = _Search(margin=1e-4 * (1.0 - loss) + 8 * min(n, rows) * U64)
    block = max(1, min(ENTRIES // (groups * n * rows), 2**22 // area))
    largest = 0.0
    for start in range(0, frequencies.shape[1], block):
        stack = _symbols(columns, frequencies[:, start : start + block], counts)
        largest = max(largest, search.largest_eigenvalue_up(stack))
    sums = up(np.abs(columns).sum(axis=tuple(range(3, columns.ndim))), area)
    moved = 2.0 * g(area + 5) * float(np.max([norm_up(one) for one in sums]))
    moved += 16.0 * area * math.sqrt(n * rows) * ETA
    root = math.sqrt(largest) + moved
    return up(root * root / loss, 14 + max(2, sum(k > 1 for k in taps))) if loss > 0 else math.inf


def half_grid(counts: tuple[int, ...]) -> npt.NDArray[np.int64]:  # → (axes, F)
    """One of each pair ±ω of grid frequencies j/N, since H(−ω) is the conjugate of H(ω).

    −ω changes the sign in all axes at once, so half of the grid is left, whatever the number of axes. A quarter
    would not do. The order is scattered, so that few blocks exceed all blocks before them.
    """
    size = math.prod(counts)
    every = np.indices(counts, np.int64).reshape(len(counts), size)  # in the order of the dictionary
    mirrored = np.zeros(size, np.int64)  # the place of −ω in that order
    for count, one in zip(counts, every, strict=True):
        mirrored = mirrored * count + -one % count
    half = every[:, np.arange(size) <= mirrored]
    return half[:, np.random.default_rng(0).permutation(half.shape[1])]


def _symbols(
    columns: Array, frequencies: npt.NDArray[np.int64], counts: tuple[int, ...]
) -> npt.NDArray[np.complex128]:
    """H or its transpose at the given grid points, a stack of p × k matrices with p ≤ k.

    Two real products with tables of cosines and sines; groups and grid points share the first axis.
    """
    groups, n, rows, *taps = columns.shape
    period, points = math.lcm(*counts), frequencies.shape[1]
    turns = np.zeros((1, points), np.int64)  # ω·u of each tap u in units of 1/period, axis by axis
    for k, count, one in zip(taps, counts, frequencies, strict=True):
        turns = (turns[:, None] + np.arange(k)[:, None] * (one * (period // count))).reshape(-1, points)
    turns %= period
    cos, sin = tables(period)
    flat = columns.reshape(groups * n * rows, math.prod(taps))
    symbols = np.empty((groups * n * rows, points), np.complex128)
    symbols.real, symbols.imag = flat @ cos[turns], flat @ sin[turns]
    stack = symbols.reshape(groups, n, rows, -1).transpose((0, 3, 1, 2) if n <= rows else (0, 3, 2, 1))
    return np.ascontiguousarray(stack).reshape(-1, *stack.shape[2:])


class _Search:
    """The running r of the module's docstring, in units in which the answer is at least 1/16."""

    def __init__(self, margin: float) -> None:
        self.r, self.margin = 2.0**-5, margin

    def largest_eigenvalue_up(self, factors: npt.NDArray[np.complex128]) -> float:  # (F, p, k)
        """At least the largest λmax(FF*) of the stack."""
        product, error = gram(factors)
        p = product.shape[-1]
        if p == 1:
            return float(up(product.real[:, 0, 0] + error, 1).max())
        margin = self.margin
        for attempt in range(12):
            try:
                factor = np.linalg.cholesky(self.r * np.eye(p) - product)
                return float(up(self.r + (defect_up(-product, -self.r, factor) + error), 2).max())
            except np.linalg.LinAlgError:
                pass
            try:
                top = float(np.linalg.eigvalsh(product)[:, -1].max()) if attempt == 0 else self.r
            except np.linalg.LinAlgError:
                return math.inf
            self.r = max(self.r, top * (1.0 + margin))
            margin = 8.0 * margin
        return math.inf
