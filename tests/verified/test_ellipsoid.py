"""Ellipsoids of differences against the maximum over all slopes, and their rounding against rational numbers."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from full import full
from lipcert import check
from lipcert.verified import ellipsoid
from lipcert.verified.ellipsoid import Ellipsoid, eliminate, of_weight, through

SLOPES = [(0.0, 1.0), (0.01, 1.0), (-1.0, 1.0), (-0.129, 1.129), (0.0, 0.25), (1.0, 1.0), (-0.5, 1.5), (-2.0, -0.5)]
EPS = np.finfo(np.float64).eps


def checked(before, d, low, high, weight):
    """The same step by the checker, which shares no code."""
    with np.errstate(all="ignore"):
        matrix, excess = check.Joint.step(before.matrix, before.excess, d, low, high, weight)
    return Ellipsoid(matrix, excess) if math.isfinite(excess) else None


BOTH = pytest.mark.parametrize("step", [through, checked], ids=["library", "checker"])


def hostile_weight(rng, rows, columns):
    """Random, of any size, with zero and equal rows, of low rank, or with one entry far larger than the others."""
    weight = rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-6, 6)
    kind = rng.integers(6)
    if kind == 0:
        weight[rng.integers(rows)] = 0
    elif kind == 1:
        weight[:] = weight[0]
    elif kind == 2:
        weight[rng.integers(rows), rng.integers(columns)] *= 1e9
    elif kind == 3:
        weight = np.round(weight / np.abs(weight).max() * 2)
    return weight.astype(np.float32).astype(np.float64)


def hostile_multipliers(rng, matrix, low, high):
    """D above P: a multiple of the identity, a scaled diagonal, or barely above."""
    top = max(np.linalg.eigvalsh(matrix)[-1], 1e-25)
    kind = rng.integers(3)
    if kind == 0:
        return np.full(len(matrix), 2 * top)
    if kind == 1:
        return top * (1 + 10.0 ** rng.uniform(-6, 3, len(matrix)))
    scale = np.maximum(matrix.diagonal(), 1e-6 * top) ** rng.uniform(0, 1)
    return 1.5 * np.linalg.eigvalsh(matrix / np.sqrt(np.outer(scale, scale)))[-1] * scale + 1e-25


def chain(rng, depth=3):
    widths = rng.integers(1, 5, depth + 1)
    return [hostile_weight(rng, widths[k + 1], widths[k]) for k in range(depth)]


def bounded(rng, weights, low, high, step=through):
    shape = of_weight(weights[0])
    for weight in weights[1:]:
        if shape is None:
            return None
        shape = step(shape, hostile_multipliers(rng, shape.matrix, low, high), low, high, weight)
    return shape


def largest_over_slopes(weights, low, high):
    """max ‖J‖ and max ‖J_i − J_j‖ over slopes in [low, high]; a norm is convex in every slope."""
    hidden = [len(weight) for weight in weights[:-1]]
    whole, pairs = 0.0, np.zeros((len(weights[-1]),) * 2)
    for slopes in itertools.product((low, high), repeat=sum(hidden)):
        jacobian, rest = weights[0], list(slopes)
        for weight, count in zip(weights[1:], hidden, strict=True):
            jacobian = weight @ (np.array(rest[:count])[:, None] * jacobian)
            rest = rest[count:]
        whole = max(whole, np.linalg.norm(jacobian, 2))
        pairs = np.maximum(pairs, np.linalg.norm(jacobian[:, None] - jacobian[None], axis=2))
    return whole, pairs


def violated(shape, weights, low, high):
    whole, pairs = largest_over_slopes(weights, low, high)
    # The maximum itself is computed in float64; 64 roundings of its largest terms are not evidence.
    slack = 64 * EPS * np.prod([np.linalg.norm(weight) for weight in weights])
    slack *= max(abs(low), abs(high)) ** (len(weights) - 1)
    return whole > shape.lipschitz() + slack or bool((pairs > shape.pairs() + slack).any())


@BOTH
def test_no_slopes_exceed_the_ellipsoid(step):
    rng, proved = np.random.default_rng(0), 0
    cases = full(10_000, 200)
    for case in range(cases):
        low, high = SLOPES[case % len(SLOPES)]
        weights = chain(rng)
        shape = bounded(rng, weights, low, high, step)
        if shape is not None:
            proved += 1
            assert not violated(shape, weights, low, high), (case, low, high)
    assert proved > 0.8 * cases


def test_dropping_the_product_of_slopes_is_caught():
    """P′ without −αβD, as a published code has it, is false for αβ < 0."""
    rng = np.random.default_rng(1)

    def wrong(before, d, low, high, weight):
        mean = (low + high) / 2
        return through(before, d, 0.0, 2 * mean, weight)  # m is the same, and αβ = 0

    caught = 0
    for _ in range(50):
        weights = chain(rng)
        shape = bounded(rng, weights, -0.5, 1.5, wrong)
        caught += shape is not None and violated(shape, weights, -0.5, 1.5)
    assert caught > 10


# --- The rounding, in rational numbers ---


def exact(matrix):
    return [[Fraction(float(value)) for value in row] for row in matrix]


def product(a, b):
    return [
        [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in zip(*b, strict=True)]
        for row in a
    ]


def inverse(matrix):
    """By Gauss–Jordan, for a positive definite matrix."""
    size = len(matrix)
    rows = [list(row) + [Fraction(int(i == j)) for j in range(size)] for i, row in enumerate(matrix)]
    for i in range(size):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(size):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


def semidefinite(matrix):
    """Whether a symmetric rational matrix is positive semidefinite: elimination with pivots ≥ 0."""
    rows = [list(row) for row in matrix]
    while rows:
        pivot = next((i for i, row in enumerate(rows) if row[i] != 0), None)
        if pivot is None:
            return all(value == 0 for row in rows for value in row)
        if rows[pivot][pivot] < 0:
            return False
        head = rows[pivot]
        rest = [row for i, row in enumerate(rows) if i != pivot]
        rows = [
            [row[j] - row[pivot] * head[j] / head[pivot] for j in range(len(head)) if j != pivot] for row in rest
        ]
    return True


def exact_step(before, d, low, high, weight):
    """W(m²D(D − M − eI)⁻¹D − αβD)Wᵀ in rational numbers."""
    size, m = len(d), (Fraction(low) + Fraction(high)) / 2
    matrix, diagonal, w = exact(before.matrix), [Fraction(float(v)) for v in d], exact(weight)
    gap = [
        [(diagonal[i] - Fraction(before.excess) if i == j else 0) - matrix[i][j] for j in range(size)]
        for i in range(size)
    ]
    inside = inverse(gap)
    inside = [[m * m * diagonal[i] * inside[i][j] * diagonal[j] for j in range(size)] for i in range(size)]
    for i in range(size):
        inside[i][i] -= Fraction(low) * Fraction(high) * diagonal[i]
    return product(product(w, inside), [list(column) for column in zip(*w, strict=True)])


def above(shape, matrix):
    """Whether M + eI − P is positive semidefinite, exactly."""
    moved = exact(shape.matrix)
    for i, row in enumerate(moved):
        row[i] += Fraction(shape.excess)
        moved[i] = [a - b for a, b in zip(row, matrix[i], strict=True)]
    return semidefinite(moved)


def steps(seed, cases):
    rng = np.random.default_rng(seed)
    for case in range(cases):
        low, high = SLOPES[case % len(SLOPES)]
        weights = chain(rng, 2)
        before = of_weight(weights[0])
        if before is None:  # its norm is beyond WEIGHTS, as in one of a thousand cases
            continue
        yield before, hostile_multipliers(rng, before.matrix, low, high), low, high, weights[1]


@pytest.mark.parametrize(
    ("step", "block"),
    [(through, 64), (through, 2), (checked, 64)],
    ids=["library", "library, blocks of 2", "checker"],
)
def test_the_rounding_is_covered_in_rational_numbers(monkeypatch, step, block):
    monkeypatch.setattr(ellipsoid, "BLOCK", block)
    proved = 0
    for before, d, low, high, weight in steps(2, full(2_000, 80)):
        after = step(before, d, low, high, weight)
        if after is not None:
            proved += 1
            assert above(after, exact_step(before, d, low, high, weight))
    assert proved > 60


def test_a_first_weight_is_covered_in_rational_numbers():
    rng = np.random.default_rng(3)
    for _ in range(full(1_000, 50)):
        weight = hostile_weight(rng, *rng.integers(1, 5, 2))
        shape, rows = of_weight(weight), exact(weight)
        assert above(shape, product(rows, [list(column) for column in zip(*rows, strict=True)]))


def test_an_ellipsoid_without_its_excess_is_caught():
    without = 0
    for before, d, low, high, weight in steps(4, 60):
        after = through(before, d, low, high, weight)
        if after is not None:
            bare = Ellipsoid(after.matrix, 0.0)
            without += not above(bare, exact_step(before, d, low, high, weight))
    assert without > 10


def believed(patch, wrong):
    """How often an ellipsoid that is too small is returned, with poor witnesses and what ``patch`` leaves out."""
    count = 0
    for before, d, low, high, weight in steps(5, 40):
        truth = exact_step(before, d, low, high, weight)
        after = through(before, d, low, high, weight)
        assert after is None or above(after, truth)  # a poor witness costs tightness, not soundness
        with patch.context() as inner:
            wrong(inner)
            after = through(before, d, low, high, weight)
        count += after is not None and not above(after, truth)
    return count


def forgets(which):
    """``eliminate`` with one of its bounds replaced by 0."""

    def wrong(stacked):
        found = eliminate(stacked)
        return found and tuple(0.0 if place == which else part for place, part in enumerate(found))

    return lambda patch: patch.setattr(ellipsoid, "eliminate", wrong)


@pytest.mark.parametrize("block", [1, 2, 64])
def test_a_forgotten_defect_of_the_factor_is_caught(monkeypatch, block):
    cholesky = np.linalg.cholesky
    monkeypatch.setattr(ellipsoid, "BLOCK", block)
    monkeypatch.setattr(np.linalg, "cholesky", lambda matrix: cholesky(matrix) * (1 + 1e-5))
    assert believed(monkeypatch, forgets(1)) > 5


@pytest.mark.parametrize("block", [1, 2, 64])
def test_a_forgotten_residual_is_caught(monkeypatch, block):
    inv = np.linalg.inv
    monkeypatch.setattr(ellipsoid, "BLOCK", block)
    monkeypatch.setattr(np.linalg, "inv", lambda matrix: inv(matrix) * (1 - 1e-5))
    assert believed(monkeypatch, forgets(2)) > 5


@pytest.mark.parametrize("block", [1, 2, 64])
@pytest.mark.parametrize("poor", [None, "cholesky", "inv"])
def test_what_elimination_misses_is_covered_in_rational_numbers(monkeypatch, block, poor):
    """A − FFᵀ and B − ZFᵀ have the norms that it says, F being what it leaves in the place of A."""
    monkeypatch.setattr(ellipsoid, "BLOCK", block)
    if poor:
        witness = getattr(np.linalg, poor)
        monkeypatch.setattr(np.linalg, poor, lambda matrix: witness(matrix) * (1 + 1e-9))
    rng, proved = np.random.default_rng(6), 0
    for _ in range(full(500, 40)):
        n, m = rng.integers(1, 6, 2)
        root = hostile_weight(rng, n, n + 1)
        a = np.tril(root @ root.T)
        a = a + np.tril(a, -1).T + 10.0 ** rng.uniform(-9, 0) * np.trace(a) * np.eye(n)
        b = hostile_weight(rng, m, n)
        stacked = np.concatenate([a, b])
        found = eliminate(stacked)
        if found is None:
            continue
        proved += 1
        factor = np.tril(stacked[:n])
        columns = [list(column) for column in zip(*exact(factor), strict=True)]
        for given, left, bound in ((a, factor, found[1]), (b, found[0], found[2])):
            missed = product(exact(left), columns)
            off = [[x - y for x, y in zip(*rows, strict=True)] for rows in zip(exact(given), missed, strict=True)]
            assert sum(x * x for row in off for x in row) <= Fraction(bound) ** 2
    assert proved > 20


@pytest.mark.parametrize("d", [1.0, 0.0, -1.0, np.nan, np.inf, 2.0**-110, 2.0**110])
def test_multipliers_that_are_not_above_p_prove_nothing(d):
    before = of_weight(np.array([[1.0, 0.0], [0.0, 0.5]]))
    assert through(before, np.array([d, 2.0]), 0.0, 1.0, np.eye(2)) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**60])
def test_weights_out_of_range_prove_nothing(bad):
    assert of_weight(np.array([[bad, 1.0]])) is None
    before = of_weight(np.eye(2))
    assert through(before, np.full(2, 2.0), 0.0, 1.0, np.array([[bad, 1.0]])) is None


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 entries"):
        through(of_weight(np.eye(2)), np.full(3, 2.0), 0.0, 1.0, np.eye(2))
