"""sup_ω ‖H(ω)‖² of a convolution's symbol, from a grid of frequencies: near tight.

H(ω)_ar = Σ_u k_a[r, u] e^{iω·u}, of degree d_i = taps − 1 in ω_i. With N_i > d_i equally spaced points in each axis
the supremum is at most the maximum on the grid divided by cos²(πd_1/2N_1)·cos²(πd_2/2N_2) (M. Riesz; proof in
docs/soundness.md). The size of an image plays no part: a transform at image size is no bound for zero padding. With
circular padding it is: the operator is block diagonal there, and nothing lies between the points (``torus``).

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


def choose_oversampling(shape: tuple[int, ...]) -> int:  # (groups, n, R, h, w)
    """The finest grid within WORK, or the coarsest."""
    groups, n, rows, height, width = shape
    small, large = sorted((n, rows))
    each = groups * (16.0 * small**2 * (small + large) + 4.0 * n * rows * height * width + 1e4)
    for oversampling in OVERSAMPLING:
        count = grid_points(height - 1, oversampling) * grid_points(width - 1, oversampling) / 2
        if count * each <= WORK:
            return oversampling
    return OVERSAMPLING[-1]


@np.errstate(all="ignore")
def symbol_bound(
    columns: Array, oversampling: int | None = None, torus: tuple[int, int] | None = None
) -> float:  # (groups, n, R, h, w)
    """sup_ω of ‖H(ω)‖², the largest over the groups, for columns + Δ with |Δ| ≤ g_2|columns| + 4·ETA.

    With ``torus``, over the frequencies of circular images of that size alone.
    Entries have modulus at most 1 and the largest is at least ¼, as ``scaled_rows`` leaves them; or all are 0.
    """
    if not columns.any():
        return 0.0
    _, n, rows, height, width = columns.shape
    if torus is None:
        oversampling = oversampling or choose_oversampling(columns.shape)
        counts = (grid_points(height - 1, oversampling), grid_points(width - 1, oversampling))
        loss = cos_squared_down(height - 1, counts[0]) * cos_squared_down(width - 1, counts[1])
    else:
        counts, loss = torus, 1.0
    frequencies = half_grid(counts)
    search = _Search(margin=1e-4 * (1.0 - loss) + 8 * min(n, rows) * U64)
    block = max(1, min(ENTRIES // columns[..., 0, 0].size, 2**22 // (height * width)))
    largest = 0.0
    for start in range(0, frequencies.shape[1], block):
        stack = _symbols(columns, frequencies[:, start : start + block], counts)
        largest = max(largest, search.largest_eigenvalue_up(stack))
    sums = up(np.abs(columns).sum(axis=(3, 4)), height * width)
    area = height * width
    moved = 2.0 * g(area + 5) * float(np.max([norm_up(one) for one in sums]))
    moved += 16.0 * area * math.sqrt(n * rows) * ETA
    root = math.sqrt(largest) + moved
    return up(root * root / loss, 16) if loss > 0 else math.inf


def half_grid(counts: tuple[int, ...]) -> npt.NDArray[np.int64]:  # → (2, F)
    """One of each pair ±ω of grid frequencies j/N, since H(−ω) is the conjugate of H(ω). A quarter would not do.

    The order is scattered, so that few blocks exceed all blocks before them.
    """
    first, second = np.meshgrid(np.arange(counts[0]), np.arange(counts[1]), indexing="ij")
    pairs = np.stack([first.ravel(), second.ravel()])
    mirrored = (-pairs) % np.array(counts)[:, None]
    code = pairs[0] * counts[1] + pairs[1]
    pairs = pairs[:, code <= mirrored[0] * counts[1] + mirrored[1]]
    return pairs[:, np.random.default_rng(0).permutation(pairs.shape[1])]


def _symbols(
    columns: Array, frequencies: npt.NDArray[np.int64], counts: tuple[int, ...]
) -> npt.NDArray[np.complex128]:
    """H or its transpose at the given grid points, a stack of p × k matrices with p ≤ k.

    Two real products with tables of cosines and sines; groups and grid points share the first axis.
    """
    groups, n, rows, height, width = columns.shape
    period = math.lcm(*counts)
    turns = (
        np.arange(height)[:, None, None] * (frequencies[0] * (period // counts[0]))
        + np.arange(width)[None, :, None] * (frequencies[1] * (period // counts[1]))
    ).reshape(height * width, -1) % period
    cos, sin = tables(period)
    taps = columns.reshape(groups * n * rows, height * width)
    symbols = np.empty((groups * n * rows, frequencies.shape[1]), np.complex128)
    symbols.real, symbols.imag = taps @ cos[turns], taps @ sin[turns]
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
