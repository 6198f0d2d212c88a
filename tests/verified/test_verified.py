"""Proved bounds against exact arithmetic (rationals and balls of python-flint) and explicit convolutions.

"Exact" is meant: λmax(A) ≤ r is decided by eliminating rI − A over the rationals, for the numbers the arrays hold.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from flint import arb, ctx, fmpq, fmpq_mat
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.errors import NotCertified
from lipcert.verified import cholesky, convolution, dense, grid, rounding, rowsums, scale, torus, trigonometry
from lipcert.verified.rounding import U32, U64

ctx.prec = 200
FEW = settings(max_examples=60, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)


def rational(x):
    return fmpq(*float(x).as_integer_ratio())


def is_psd(matrix):
    """Whether a symmetric rational matrix is positive semidefinite, by exact elimination with the largest pivot."""
    size = matrix.nrows()
    rows = [[matrix[i, j] for j in range(size)] for i in range(size)]
    left = list(range(size))
    while left:
        if any(rows[i][i] < 0 for i in left):
            return False
        pivot = max(left, key=lambda i: rows[i][i])
        if rows[pivot][pivot] == 0:
            return all(rows[i][j] == 0 for i in left for j in left)
        left.remove(pivot)
        for i in left:
            if rows[i][pivot] != 0:
                factor = rows[i][pivot] / rows[pivot][pivot]
                for j in left:
                    rows[i][j] -= factor * rows[pivot][j]
    return True


def diagonal(values):
    size = len(values)
    return fmpq_mat(size, size, [values[i] if i == j else fmpq(0) for i in range(size) for j in range(size)])


def gram(weight, gamma):
    """WΓWᵀ for weight = Wᵀ, exactly."""
    w = fmpq_mat(*weight.shape, [rational(x) for x in weight.ravel()])
    return w.transpose() * diagonal([rational(x) for x in gamma]) * w


def rho_by_grid(kernel, gamma, *, stride=1, dilation=1, groups=1, oversampling=None):
    """ρ ≤ the maximum on a grid of frequencies over its cosine factors; ``oversampling`` is points per degree."""
    parts = scale.scaled_rows(np.asarray(kernel, np.float64), gamma)
    if parts is None:
        return math.inf
    columns = convolution.polyphase(parts.rows, stride, dilation, groups)
    return rounding.ldexp_up(grid.symbol_bound(columns, oversampling), 2 * parts.exponent)


def conv_row_sums_up(kernel, q, **options):
    """T of all output channels."""
    return convolution.conv_row_sums(kernel, q, np.ones(len(kernel), bool), **options).total()


def dominates(r, matrix):
    """Whether λmax(matrix) ≤ r, exactly, for a rational r."""
    return is_psd(diagonal([r] * matrix.nrows()) - matrix)


def hostile(rng, *shape):
    """A weight in one of many bad moods: orthonormal, rank one, mixed scales, zero rows, subnormal, ±1."""
    flat = (shape[0], math.prod(shape[1:]))
    weight = rng.standard_normal(flat)
    mood = rng.integers(0, 10)
    if mood == 1:
        weight = np.linalg.qr(rng.standard_normal((max(flat), max(flat))))[0][: flat[0], : flat[1]]
    elif mood == 2:
        weight = rng.standard_normal((flat[0], 1)) @ rng.standard_normal((1, flat[1]))
    elif mood == 3:
        weight *= 10.0 ** rng.uniform(-150, 150, (flat[0], 1))
    elif mood == 4:
        weight *= 10.0 ** rng.uniform(-300, 0, flat)
    elif mood == 5:
        weight *= 10.0 ** rng.uniform(-30, 30, (flat[0], 1))
        weight[rng.integers(0, flat[0])] = 0
    elif mood == 6:
        weight = np.round(weight) * 2.0**-1074 * rng.integers(1, 1000)
    elif mood == 7:
        weight *= 10.0 ** rng.integers(-150, 150)
    elif mood == 8:
        weight = np.sign(weight)
    elif mood == 9:
        weight[:, rng.integers(0, flat[1])] *= 1e-160
    return weight.reshape(shape)


def hostile_gamma(rng, weight):
    count = weight.shape[0]
    mood = rng.integers(0, 5)
    if mood == 0:
        return 10.0 ** rng.uniform(-300, 300, count)
    if mood == 1:
        return rng.random(count) * rng.integers(0, 2, count)
    if mood == 2:
        size = np.abs(weight).reshape(count, -1).max(axis=1)
        return np.array([min(1 / s / s, 1e300) if s > 1e-150 else 1e300 for s in size])
    return rng.random(count) if mood == 3 else np.ones(count)


# Rounding


def test_g_up_and_down_are_on_the_right_side():
    for n, u in itertools.product((0, 1, 2, 7, 1000, 2**20), (U64, U32)):
        exact = fmpq(n) * rational(u) / (1 - fmpq(n) * rational(u))
        assert exact <= rational(rounding.g(n, u)) <= exact * (1 + rational(2.0**-49))
    assert rounding.g(2**53) == math.inf
    numbers = [5e-324, 1e-320, 2.0**-1022, 1e-300, 0.1, 1.0, 1 + 2 * U64, 1e300]
    for x, k in itertools.product(numbers, (0, 1, 5, 10000)):
        step = rational(5e-324) * 2
        exact = rational(x) / (1 - k * rational(U64))
        assert exact <= rational(rounding.up(x, k)) <= exact * (1 + rational(2.0**-50)) + step
        exact = rational(x) * (1 - k * rational(U64))
        assert exact * (1 - rational(2.0**-50)) - step <= rational(rounding.down(x, k)) <= exact
    assert rounding.up(0.0) == rounding.down(0.0) == 0.0
    assert [rounding.up(x) for x in (math.nan, -1.0, math.inf, np.finfo(float).max)] == [math.inf] * 4
    assert [rounding.down(x) for x in (math.nan, -1.0, 5e-324)] == [0.0] * 3


@FEW
@given(st.lists(st.floats(width=64, allow_nan=False), min_size=1, max_size=6))
def test_conversion_to_float32_is_directed(values):
    x = np.array(values)
    low, high = rounding.float32_down(x), -rounding.float32_down(-x)
    assert low.dtype == high.dtype == np.float32
    assert (low.astype(float) <= x).all()
    assert (high.astype(float) >= x).all()
    same = x.astype(np.float32).astype(float) == x if np.abs(x).max() < 1e38 else np.zeros(len(x), bool)
    assert (low[same] == high[same]).all()
    with np.errstate(over="ignore"):
        assert ((high == np.nextafter(low, np.float32(np.inf))) | (low == high)).all()  # neighbours, not further


@FEW
@given(st.lists(st.floats(0, width=64, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_norms_sums_and_products(values):
    squares = sum((rational(v) ** 2 for v in values), fmpq(0))
    for bound in (rounding.norm_up(values), float(rounding.norm_up([values], axis=1)[0])):
        if math.isfinite(bound):
            assert rational(bound) ** 2 >= squares
            assert rational(bound) ** 2 <= squares * (1 + rational(1e-14)) or bound < 1e-307
        else:
            assert squares > rational(1.79e308) ** 2
    total, product = (
        sum((rational(v) for v in values), fmpq(0)),
        math.prod((rational(v) for v in values), start=fmpq(1)),
    )
    for bound, exact in ((rounding.sum_up(values), total), (rounding.prod_up(values), product)):
        assert bound == math.inf or rational(bound) >= exact
        assert exact > rational(1.79e308) if bound == math.inf else True
        assert bound == math.inf or bound < 1e-307 or rational(bound) <= exact * (1 + rational(1e-14))


def test_bad_numbers_give_infinite_bounds():
    assert rounding.norm_up([1.0, math.nan]) == rounding.norm_up([1.0, math.inf]) == math.inf
    assert rounding.sum_up([1.0, -1.0]) == rounding.sum_up([math.nan]) == math.inf
    assert (
        rounding.prod_up([0.0, math.inf])
        == rounding.prod_up([2.0, -1.0])
        == rounding.prod_up([math.nan])
        == math.inf
    )
    assert rounding.prod_up([]) >= 1
    good, kernel = np.ones((2, 2)), np.ones((2, 1, 3, 3))
    for bad in (math.nan, math.inf, -math.inf):
        poor, poor_kernel = good.copy(), kernel.copy()
        poor[0, 0] = poor_kernel[0, 0, 1, 1] = bad
        gamma = np.array([1.0, bad])
        for w, c in ((poor, np.ones(2)), (good, gamma), (poor, np.zeros(2)), (good, np.array([1.0, -1e-300]))):
            assert dense.rho_bound(w, c) == dense.Bound(math.inf, "none")
            assert dense.rho_weighted(w, c, np.ones(2)) == dense.rho_cholesky(w, c) == dense.kappa(w, c) == math.inf
        assert dense.norm_bound(poor).value == math.inf
        for k, c in ((poor_kernel, np.ones(2)), (kernel, gamma)):
            assert convolution.conv_rho_bound(k, c, np.ones(2)).value == math.inf
            assert convolution.conv_kappa(k, c) == rho_by_grid(k, c) == math.inf
        assert convolution.conv_norm_bound(poor_kernel).value == math.inf
        assert np.isinf(dense.row_sums_up(good, gamma)).all()
        assert np.isinf(conv_row_sums_up(poor_kernel, np.ones(2))).all()
        assert cholesky.smallest_eigenvalue_down(np.diag([1.0, bad])) == -math.inf
    for q in ([1.0, 0.0], [1.0, -1.0]):
        assert dense.rho_weighted(good, np.ones(2), np.array(q)) == math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda: dense.rho_bound(np.ones((2, 2)), np.ones(3)),
        lambda: dense.rho_weighted(np.ones((2, 2)), np.ones(2), np.ones(1)),
        lambda: dense.norm_bound(np.ones(3)),
        lambda: dense.norm_bound(np.ones((2, 2), dtype=int)),
        lambda: dense.norm_bound(np.ones((2, 2), dtype=np.longdouble)),
        lambda: convolution.conv_norm_bound(np.ones(3)),
        lambda: convolution.conv_norm_bound(np.ones((2, 2, 3)), stride=(1, 1)),
        lambda: convolution.conv_norm_bound(np.ones((2, 2, 3, 3, 3)), dilation=(1, 1)),
        lambda: convolution.conv_norm_bound(np.ones((2, 2, 3, 3, 3)), torus=(4, 4)),
        lambda: convolution.proved_stride(3, 8),
        lambda: convolution.proved_stride((3, 3), (8, 8, 8)),
        lambda: convolution.proved_stride((3,), (8,), stride=(True,)),
        lambda: convolution.conv_norm_bound(np.ones((3, 2, 3, 3)), groups=2),
        lambda: convolution.conv_norm_bound(np.ones((3, 2, 3, 3)), stride=0),
        lambda: cholesky.smallest_eigenvalue_down(np.array([[1.0, 2.0], [0.0, 1.0]])),
        lambda: rounding.g(-1),
    ],
)
def test_mistakes_of_the_caller_are_errors(call):
    with pytest.raises(ValueError, match=r"."):
        call()


def test_an_arithmetic_that_flushes_subnormals_proves_nothing():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers to zero")
    try:
        flushed = dense.norm_bound(np.eye(2)).value, cholesky.smallest_eigenvalue_down(np.eye(2))
    finally:
        torch.set_flush_denormal(False)
    assert flushed == (math.inf, -math.inf)
    assert dense.norm_bound(np.eye(2)).value < 1 + 1e-14


# Dense


@FEW
@given(SEEDS)
def test_dense_bounds_hold_exactly_and_are_tight(seed):
    rng = np.random.default_rng(seed)
    weight = hostile(rng, *rng.integers(1, 6, 2))
    gamma = hostile_gamma(rng, weight)
    if rng.random() < 0.3 and np.abs(weight).max() < 1e38:
        weight = weight.astype(np.float32)
    q = np.exp(rng.uniform(-40, 40, len(weight)))
    exact = gram(weight, gamma)
    tight = dense.rho_cholesky(weight, gamma)
    for bound in (
        tight,
        *(dense.rho_weighted(weight, gamma, w) for w in (None, q)),
        dense.rho_bound(weight, gamma).value,
    ):
        assert bound == math.inf or dominates(rational(bound), exact)
    if 1e-300 < tight < math.inf:
        assert not dominates(rational(tight * (1 - 1e-12)), exact), f"{tight} is more than 1e-12 too large"
    absolute = gram(np.abs(weight), gamma)
    kappa = dense.kappa(weight, gamma)
    assert kappa == math.inf or dominates(rational(kappa) ** 2, absolute)
    norm = dense.norm_bound(weight).value
    exact = gram(weight, np.ones(len(weight)))
    assert dominates(rational(norm) ** 2, exact)
    assert norm < 1e-300 or not dominates((rational(norm) * (1 - rational(1e-12))) ** 2, exact)


@FEW
@given(SEEDS)
def test_row_sums_hold_exactly(seed):
    rng = np.random.default_rng(seed)
    weight = hostile(rng, *rng.integers(1, 6, 2))
    q = np.exp(rng.uniform(-40, 40, len(weight)))
    w = fmpq_mat(*weight.shape, [rational(x) for x in weight.ravel()])
    overlap = w * w.transpose()
    for i, bound in enumerate(dense.row_sums_up(weight, q)):
        exact = sum((abs(overlap[i, j]) * rational(q[j]) / rational(q[i]) for j in range(len(q))), fmpq(0))
        assert rational(bound) >= exact if math.isfinite(bound) else exact > rational(1e307)
        assert bound == 0 or weight[i].any()


def test_gamma_from_row_sums_proves_one():
    """What freezing does: γ = float32_down(1/T) has ρ ≤ 1, and the audit with the same q says so."""
    rng = np.random.default_rng(0)
    for n, m in ((7, 5), (64, 40), (300, 200)):
        weight = rng.standard_normal((n, m)).astype(np.float32)
        q = np.exp(rng.standard_normal(n))
        gamma = rounding.float32_down(rounding.down(1 / dense.row_sums_up(weight, q), 1))
        bound = dense.rho_bound(weight, gamma, q)
        assert dense.rho_weighted(weight, gamma, q) <= 1 + 1e-15
        assert bound.value <= 1
        assert dense.rho_weighted(weight, gamma, q) > 1 - 1e-6, "γ is given away"


def test_cholesky_is_near_tight_at_full_size():
    rng = np.random.default_rng(0)
    for n, m in ((600, 500), (300, 800)):
        weight, gamma = rng.standard_normal((n, m)).astype(np.float32), rng.random(n).astype(np.float32)
        estimate = np.linalg.norm(weight * np.sqrt(gamma.astype(float))[:, None], 2) ** 2
        excess = dense.rho_cholesky(weight, gamma) / estimate - 1
        assert -1e-13 < excess < 1e-10, f"Cholesky is {excess:.1e} above the estimate at {n} × {m}"
        norm = dense.norm_bound(weight)
        assert norm.method == "cholesky"
        assert norm.value / np.linalg.norm(weight.astype(float), 2) - 1 < 1e-10
        kappa = dense.kappa(weight, gamma) / np.linalg.norm(
            np.abs(weight * np.sqrt(gamma.astype(float))[:, None]), 2
        )
        assert 1 - 1e-13 < kappa < 1.001, kappa


def test_zero_and_empty_weights():
    for shape in ((3, 2), (0, 3), (3, 0)):
        weight, gamma = np.zeros(shape), np.ones(shape[0])
        assert (
            dense.rho_bound(weight, gamma).value
            == dense.kappa(weight, gamma)
            == dense.norm_bound(weight).value
            == 0
        )
        assert dense.rho_weighted(weight, gamma, gamma) == 0
        assert (dense.row_sums_up(weight, gamma) == 0).all()
    assert dense.rho_bound(np.ones((3, 2)), np.zeros(3)).value == 0
    assert convolution.conv_norm_bound(np.zeros((2, 2, 3, 3))).value == 0
    assert convolution.conv_rho_bound(np.ones((2, 2, 3, 3)), np.zeros(2), np.ones(2)).value == 0
    assert convolution.conv_kappa(np.zeros((2, 2, 3, 3)), np.ones(2)) == 0


def test_scales_that_overflow_apart_are_harmless_together():
    weight, gamma = np.array([[1e-150, 0.0], [0.0, 1e150]]), np.array([1e300, 1e-300])
    assert 1 <= dense.rho_bound(weight, gamma).value < 1 + 1e-13
    assert 1e200 <= dense.norm_bound(np.full((1, 1), 1e200)).value < 1.0001e200  # its square overflows


@FEW
@given(SEEDS)
def test_smallest_eigenvalue_holds_exactly(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    matrix = rng.standard_normal((size, size)) * 10.0 ** rng.integers(-140, 140)
    if rng.random() < 0.4:
        scale = 10.0 ** rng.uniform(-70, 70, size)
        matrix = matrix / np.abs(matrix).max() * scale * scale[:, None]
    if rng.random() < 0.3:
        matrix = np.outer(matrix[0], matrix[0])  # singular
    matrix = np.tril(matrix) + np.tril(matrix, -1).T
    bound = cholesky.smallest_eigenvalue_down(matrix)
    exact = fmpq_mat(size, size, [rational(x) for x in matrix.ravel()])
    assert is_psd(exact - diagonal([rational(bound)] * size))
    slack = float(np.abs(matrix).max()) * 1e-13 + 1e-300
    assert not is_psd(exact - diagonal([rational(bound + slack)] * size)), (
        "the eigenvalue is more than 1e-13 too small"
    )


def test_the_smallest_eigenvalue_of_small_matrices():
    assert cholesky.smallest_eigenvalue_down(np.array([[2.0, 1.0], [1.0, 2.0]])) >= 0
    assert cholesky.smallest_eigenvalue_down(np.array([[1.0, 1.0 + 1e-15], [1.0 + 1e-15, 1.0]])) < 0
    assert cholesky.smallest_eigenvalue_down(-np.eye(3)) < 0
    hermitian = np.array([[2, 1j], [-1j, 2]])
    assert 1 - 1e-14 < cholesky.smallest_eigenvalue_down(hermitian) <= 1


def test_a_wrong_factor_is_noticed():
    """The factor is a witness: whatever it is, the defect bounds ‖M − sI − FF*‖."""
    rng = np.random.default_rng(0)
    for kind in (float, complex):
        half = rng.standard_normal((5, 5)) + (1j * rng.standard_normal((5, 5)) if kind is complex else 0)
        matrix, factor = half + half.conj().T, rng.standard_normal((5, 5)).astype(kind)
        true = np.linalg.norm(matrix - 0.7 * np.eye(5) - factor @ factor.conj().T, 2)
        assert cholesky.defect_up(matrix, 0.7, factor) >= true * (1 - 1e-14)
        assert math.isinf(cholesky.defect_up(matrix, 0.7, np.full((5, 5), np.nan, kind)))


# Convolutions


def explicit(kernel, image, stride, padding, dilation, groups, mode):
    """The matrix of the convolution, (n, outputs, inputs), one tap at a time."""
    n, depth, *size = kernel.shape
    outputs = [
        (a + 2 * p - d * (k - 1) - 1) // s + 1
        for a, p, d, k, s in zip(image, padding, dilation, size, stride, strict=True)
    ]
    matrix = np.zeros((n, *outputs, depth * groups, *image))
    for o, *place in itertools.product(*map(range, (n, *outputs, *size))):
        spot = [
            s * a + d * t - p for s, a, d, t, p in zip(stride, place[:2], dilation, place[2:], padding, strict=True)
        ]
        if mode == "circular":
            spot = [y % a for y, a in zip(spot, image, strict=True)]
        if all(0 <= y < a for y, a in zip(spot, image, strict=True)):
            group = o // (n // groups)
            matrix[o, place[0], place[1], group * depth : (group + 1) * depth, spot[0], spot[1]] += kernel[
                o, :, place[2], place[3]
            ]
    return matrix.reshape(n, outputs[0] * outputs[1], -1)


def by_unit_vectors(kernel, image, stride, padding, dilation, groups, mode):
    """The same matrix for one or three axes: PyTorch's convolution of all unit vectors."""
    convolve = {1: torch.nn.functional.conv1d, 3: torch.nn.functional.conv3d}[len(image)]
    x = torch.eye(kernel.shape[1] * groups * math.prod(image), dtype=torch.float64)
    x = x.view(-1, kernel.shape[1] * groups, *image)
    if mode == "circular":
        for axis, (size, p) in enumerate(zip(image, padding, strict=True)):
            x = x.index_select(axis + 2, torch.arange(-p, size + p) % size)
        padding = 0
    y = convolve(x, torch.from_numpy(np.asarray(kernel, np.float64)), None, stride, padding, dilation, groups)
    return y.flatten(2).permute(1, 2, 0).numpy()


def geometries(count, seed, axes=2):
    rng = np.random.default_rng(seed)
    ranges = ((1, 4), (1, 4), (1, 3), (0, 3), (1, 5)) if axes == 3 else ((1, 6), (1, 5), (1, 4), (0, 4), (1, 8))
    while count:
        groups = int(rng.integers(1, 3))
        size, stride, dilation, padding, image = (
            tuple(int(v) for v in rng.integers(low, high, axes)) for low, high in ranges
        )
        mode = ("zeros", "circular")[rng.integers(0, 2)]
        if any(a + 2 * p < d * (k - 1) + 1 for a, p, d, k in zip(image, padding, dilation, size, strict=True)):
            continue
        kernel = hostile(rng, groups * int(rng.integers(1, 4)), int(rng.integers(1, 4)), *size)
        if not 1e-100 < np.abs(kernel).max() < 1e100:
            continue
        kernel = np.abs(kernel) if rng.random() < 0.3 else kernel
        try:
            proved = convolution.proved_stride(
                size, image, stride=stride, padding=padding, dilation=dilation, padding_mode=mode
            )
        except NotCertified:
            assert mode == "circular"
            continue
        count -= 1
        yield (
            rng,
            kernel,
            (explicit if axes == 2 else by_unit_vectors)(kernel, image, stride, padding, dilation, groups, mode),
            proved,
            dilation,
            groups,
        )


@pytest.mark.parametrize(("axes", "count"), [(1, 200), (2, 250), (3, 80)])
def test_convolutions_against_explicit_matrices(axes, count):
    """Every padding, stride, dilation, number of groups and kernel parity. SVD errs by 1e-13 of the norm."""
    for rng, kernel, matrix, stride, dilation, groups in geometries(count, seed=0, axes=axes):
        options = {"stride": stride, "dilation": dilation, "groups": groups}
        gamma = rng.random(len(kernel)) * rng.integers(0, 2, len(kernel))
        q = rng.random(len(kernel)) + 0.01
        slack = 1 - 1e-13
        assert (
            convolution.conv_norm_bound(kernel, **options).value
            >= np.linalg.norm(matrix.reshape(-1, matrix.shape[2]), 2) * slack
        )
        rows = (matrix * np.sqrt(gamma)[:, None, None]).reshape(-1, matrix.shape[2])
        rho = np.linalg.norm(rows, 2) ** 2
        assert convolution.conv_rho_weighted(kernel, gamma, **options) >= rho * slack
        assert convolution.conv_rho_weighted(kernel, gamma, q, **options) >= rho * slack
        assert rho_by_grid(kernel, gamma, oversampling=3, **options) >= rho * slack
        assert convolution.conv_rho_bound(kernel, gamma, q, **options).value >= rho * slack
        assert convolution.conv_kappa(kernel, gamma, **options) >= np.linalg.norm(np.abs(rows), 2) * slack
        t = conv_row_sums_up(kernel, q, **options)
        alive = t > 0
        assert not matrix[~alive].any()
        scaled = (matrix[alive] / np.sqrt(t[alive])[:, None, None]).reshape(-1, matrix.shape[2])
        assert np.linalg.norm(scaled, 2) <= 1 + 1e-13 if scaled.size else True


@pytest.mark.parametrize(("axes", "count"), [(1, 150), (2, 300), (3, 500)])
def test_convolutions_against_exact_arithmetic(axes, count):
    checked = 0
    for rng, kernel, matrix, stride, dilation, groups in geometries(count, seed=1, axes=axes):
        outputs = matrix.shape[0] * matrix.shape[1]
        if matrix.shape[2] > 12 or outputs > 40:
            continue
        options = {"stride": stride, "dilation": dilation, "groups": groups}
        gamma = rng.random(len(kernel))
        weights = np.repeat(gamma, matrix.shape[1])
        rows = matrix.reshape(outputs, -1)
        # An explicit entry is exact where no two taps fall on one pixel, and a rounded sum elsewhere: skip those.
        if not set(np.abs(rows).ravel().tolist()) <= {0.0, *np.abs(kernel).ravel().tolist()}:
            continue
        exact, checked = gram(rows, weights), checked + 1
        for bound in (
            rho_by_grid(kernel, gamma, **options),
            convolution.conv_rho_weighted(kernel, gamma, **options),
        ):
            assert dominates(rational(bound), exact)
        absolute = gram(np.abs(rows), weights)
        assert dominates(rational(convolution.conv_kappa(kernel, gamma, **options)) ** 2, absolute)
    assert checked > 30, checked


def infinite_norm(kernel, stride, dilation, groups, points=64):
    """Nearly the norm on all of ℤ^axes, from below: dilate, split into phases, transform, all the slow way."""
    n, depth, *taps = kernel.shape
    size = [d * (k - 1) + 1 for d, k in zip(dilation, taps, strict=True)]
    large = np.zeros((n, depth, *(-(-k // s) * s for k, s in zip(size, stride, strict=True))))
    large[:, :, *(slice(0, k, d) for k, d in zip(size, dilation, strict=True))] = kernel
    phases = [
        large[:, :, *(slice(i, None, s) for i, s in zip(phase, stride, strict=True))]
        for phase in itertools.product(*map(range, stride))
    ]
    axes = tuple(range(2, kernel.ndim))
    symbol = np.fft.fftn(np.concatenate(phases, axis=1), (points,) * len(axes), axes)
    symbol = np.moveaxis(symbol, (0, 1), (-2, -1))
    each = n // groups
    return max(
        np.linalg.svd(symbol[..., g * each : (g + 1) * each, :], compute_uv=False).max() for g in range(groups)
    )


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1), (4, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3), (4, 2)])
def test_the_grid_is_within_two_percent_of_the_infinite_operator(stride, dilation):
    rng = np.random.default_rng(0)
    for size, groups in (((3, 3), 1), ((2, 5), 2), ((4, 1), 1)):
        kernel = rng.standard_normal((4, 3, *size))
        found = convolution.conv_norm_bound(kernel, stride, dilation, groups)
        ratio = found.value / infinite_norm(kernel, stride, dilation, groups)
        assert 1 - 1e-13 <= ratio < 1.02, f"{found} is {ratio:.4f} times the norm on the plane"


@pytest.mark.parametrize(
    ("size", "points"), [((3,), 64), ((5,), 64), ((3, 2), 32), ((3, 2, 3), 32), ((1, 3, 2), 32)]
)
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 2), (2, 2)])
def test_each_axis_costs_the_grid_its_own_factor_and_no_more(size, points, stride, dilation):
    """The transform meets all points of our grid, so what is above it is the loss: 1/cos(π/32) for each axis."""
    rng, axes = np.random.default_rng(0), len(size)
    kernel = rng.standard_normal((4, 2, *size))
    true = infinite_norm(kernel, (stride,) * axes, (dilation,) * axes, 2, points)
    gamma = np.full(4, 4.0)
    ratio = np.sqrt(rho_by_grid(kernel, gamma, stride=stride, dilation=dilation, groups=2)) / (2 * true)
    assert 1 - 1e-13 <= ratio <= 1.0001 / math.cos(math.pi / 32) ** sum(k > 1 for k in size), ratio
    exact = np.sqrt(
        convolution.conv_rho_bound(kernel, gamma, stride=stride, groups=2, torus=(points,) * axes).value
    )
    if dilation == 1:
        assert 1 - 1e-13 <= exact / (2 * true) <= 1 + 1e-11


@pytest.mark.parametrize(("image", "size"), [((12,), (5,)), ((12, 6), (3, 5)), ((4, 6, 4), (3, 1, 3))])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_torus_of_any_number_of_axes_is_exact(image, size, stride):
    rng = np.random.default_rng(0)
    for groups in (1, 2):
        kernel = rng.standard_normal((2, 2, *size))
        padding, one = tuple(k // 2 for k in size), (1,) * len(image)
        matrix = (explicit if len(image) == 2 else by_unit_vectors)(
            kernel, image, (stride,) * len(image), padding, one, groups, "circular"
        )
        true = np.linalg.norm(matrix.reshape(-1, matrix.shape[2]), 2)
        proved = convolution.proved_stride(size, image, stride=stride, padding=padding, padding_mode="circular")
        assert proved == (stride,) * len(image)
        torus = tuple(n // stride for n in image)
        found = convolution.conv_norm_bound(kernel, proved, groups=groups, torus=torus)
        assert found.method == "torus"
        assert 1 - 1e-13 <= found.value / true <= 1 + 1e-11
        assert found.value <= convolution.conv_norm_bound(kernel, proved, groups=groups).value * (1 + 1e-12)


def all_bounds(kernel, torus, **options):
    rng = np.random.default_rng(0)
    gamma, q = rng.random(len(kernel)), rng.random(len(kernel)) + 0.1
    norm = convolution.conv_norm_bound(kernel, **options)
    return [
        norm,
        convolution.conv_norm_bound(kernel, **options, torus=torus),
        convolution.conv_rho_weighted(kernel, gamma, **options),
        convolution.conv_rho_weighted(kernel, gamma, q, **options),
        rho_by_grid(kernel, gamma, oversampling=5, **options),
        convolution.conv_rho_bound(kernel, gamma, q, **options),
        conv_row_sums_up(kernel, q, **options).tolist(),
        convolution.conv_kappa(kernel, gamma, **options),
        convolution.by_grid_too(norm, kernel, 2, **options),
    ]


@FEW
@given(SEEDS)
def test_an_axis_with_one_tap_changes_nothing(seed):
    """Bit by bit: a signal is an image of height 1, an image a volume of depth 1, a dense weight a 1×1 kernel."""
    rng = np.random.default_rng(seed)
    axes, groups = int(rng.integers(0, 3)), int(rng.integers(1, 3))
    size, stride, dilation, torus = (tuple(int(v) for v in rng.integers(1, high, axes)) for high in (6, 4, 4, 8))
    kernel = hostile(rng, groups * int(rng.integers(1, 4)), int(rng.integers(1, 4)), *size)
    fewer = all_bounds(kernel, torus, stride=stride, dilation=dilation, groups=groups)
    for axis in range(axes + 1):
        more = [
            (*values[:axis], other, *values[axis:]) for values, other in ((stride, 3), (dilation, 2), (torus, 1))
        ]
        wider = np.expand_dims(kernel, 2 + axis)
        assert all_bounds(wider, more[2], stride=more[0], dilation=more[1], groups=groups) == fewer


def test_without_axes_a_convolution_is_dense():
    weight = np.random.default_rng(0).standard_normal((5, 3))
    true = dense.norm_bound(weight).value
    assert true * (1 - 1e-12) < convolution.conv_norm_bound(weight).value < true * (1 + 1e-12)
    assert convolution.conv_kappa(weight, np.ones(5)) >= dense.kappa(weight, np.ones(5)) * (1 - 1e-12)
    assert (conv_row_sums_up(weight, np.ones(5)) == dense.row_sums_up(weight, np.ones(5))).all()


@pytest.mark.parametrize(
    ("channels", "size", "points"), [(4, (3, 3), 512), (4, (3, 2, 3), 512), (64, (3, 3, 3), 32)]
)
def test_the_loss_of_the_grid_of_the_checker(channels, size, points):
    """It takes N^(axes − 1)·(N/2 + 1) points for n·c·min(n, c) work each, up to 2³⁵."""
    kernel = np.ones((channels, channels, *size))
    found = convolution.by_grid_too(dense.Bound(1.0, "row sums"), kernel, 1)
    work = [n ** (len(size) - 1) * (n // 2 + 1) * channels**3 for n in (points, 2 * points)]
    assert work[0] <= 2**35
    assert points == 512 or work[1] > 2**35
    loss = math.prod(math.cos(math.pi * (k - 1) / (2 * points)) for k in size)
    assert 1 / loss < found.value < (1 + 1e-11) / loss


def test_the_grid_is_near_tight_on_images():
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((3, 3, 3, 3))
    matrix = explicit(kernel, (12, 12), (1, 1), (1, 1), (1, 1), 1, "zeros")
    ratio = convolution.conv_norm_bound(kernel).value / np.linalg.norm(matrix.reshape(-1, matrix.shape[2]), 2)
    assert 1 <= ratio < 1.05, ratio
    wide = rng.standard_normal((64, 64, 3, 3)).astype(np.float32)
    lower = np.linalg.norm(np.fft.fft2(wide, (7, 7)).transpose(2, 3, 0, 1), 2, axis=(2, 3)).max()
    ratio = convolution.conv_norm_bound(wide).value / lower
    assert 1 <= ratio < 1.04, ratio


def test_known_symbols():
    """Non-negative kernels peak at frequency 0, where the norm is that of the tap sums; patches are dense."""
    rng = np.random.default_rng(0)
    scalar = rng.random((1, 1, 3, 3))
    sums = sum((rational(x) for x in scalar.ravel()), fmpq(0))
    for bound in (convolution.conv_norm_bound(scalar).value, convolution.conv_kappa(scalar, np.ones(1))):
        assert sums <= rational(bound) <= sums * rational(1.0098)
    patches = rng.standard_normal((5, 2, 2, 4))
    found = convolution.conv_norm_bound(patches, stride=(2, 4)).value
    exact = gram(patches.reshape(5, 16), np.ones(5))
    assert dominates(rational(found) ** 2, exact)
    assert not dominates((rational(found) * (1 - rational(1e-12))) ** 2, exact), (
        "k = s is a dense map: no grid loss"
    )


def test_transposed_convolution_has_the_same_norm():
    kernel = torch.randn(3, 2, 3, 3, dtype=torch.float64)  # conv_transpose2d: 3 channels in, 2 out
    for stride, padding, extra, dilation in ((1, 0, 0, 1), (2, 1, 1, 1), (3, 0, 2, 2), (2, 2, 1, 2)):
        impulses = torch.eye(3 * 25, dtype=torch.float64).view(-1, 3, 5, 5)
        out = torch.nn.functional.conv_transpose2d(
            impulses, kernel, None, stride, padding, extra, dilation=dilation
        )
        true = torch.linalg.matrix_norm(out.flatten(1), 2).item()
        bound = convolution.conv_norm_bound(kernel.numpy(), stride, dilation).value
        assert true * (1 - 1e-13) <= bound < 1.25 * true
    for transpose, image in (
        (torch.nn.functional.conv_transpose1d, (9,)),
        (torch.nn.functional.conv_transpose3d, (4,) * 3),
    ):
        kernel = torch.randn(2, 2, *[3] * len(image), dtype=torch.float64)
        impulses = torch.eye(2 * math.prod(image), dtype=torch.float64).view(-1, 2, *image)
        out = transpose(impulses, kernel, None, 2, 1, 1)
        true = torch.linalg.matrix_norm(out.flatten(1), 2).item()
        assert true * (1 - 1e-13) <= convolution.conv_norm_bound(kernel.numpy(), 2).value < 1.5 * true


def test_scale_of_a_kernel_does_not_matter():
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((3, 2, 3, 3))
    plain = convolution.conv_norm_bound(kernel).value
    for power in (-500, -1000, 500, 1000):
        scaled = convolution.conv_norm_bound(np.ldexp(kernel, power)).value
        assert math.isclose(scaled, math.ldexp(plain, power), rel_tol=1e-12)
    assert convolution.conv_norm_bound(kernel * 2.0**-1070).value > 0
    with np.errstate(all="raise"):
        convolution.conv_rho_bound(kernel * 1e150, np.full(3, 1e300), np.ones(3))


def test_padding_without_a_proof_is_refused():
    proved = convolution.proved_stride
    for mode in ("reflect", "replicate", "constant"):
        with pytest.raises(NotCertified):
            proved(3, (8, 8), padding=1, padding_mode=mode)
    assert proved(3, (8, 8), stride=2, padding=7) == (2, 2)
    assert proved((3,), (8,), stride=2, padding=7) == (2,)
    assert proved((3, 1, 2), (8, 4, 9), stride=(2, 3, 1), padding=7, dilation=2) == (2, 3, 1)
    assert proved((3, 3, 3), (8, 9, 10), stride=(4, 6, 5), padding=1, padding_mode="circular") == (4, 3, 5)
    assert proved(3, (9, 9), stride=2, padding=1, padding_mode="circular") == (1, 1)
    assert proved(3, (8, 9), stride=(4, 6), padding=1, padding_mode="circular") == (4, 3)
    assert proved(4, (8, 8), padding="same", padding_mode="circular") == (1, 1)
    assert proved((4, 2, 3), (8, 7, 6), padding="same", padding_mode="circular") == (1, 1, 1)
    for size, padding in ((2, 1), (4, 2), (1, 1)):  # an output twice
        with pytest.raises(NotCertified):
            proved(size, (8, 8), padding=padding, padding_mode="circular")
        for axis in range(3):
            sizes, paddings = [3, 3, 3], [1, 1, 1]
            sizes[axis], paddings[axis] = size, padding
            with pytest.raises(NotCertified):
                proved(tuple(sizes), (8, 8, 8), padding=tuple(paddings), padding_mode="circular")


def test_cosines_lie_within_half_a_unit():
    for count in (1, 2, 3, 7, 8, 12, 48, 97, 480):
        for table, function in zip(trigonometry.tables(count), (arb.cos_pi, arb.sin_pi), strict=True):
            for k, value in enumerate(table):
                error = abs(arb(value) - function(arb(fmpq(2 * k, count))))
                assert error < arb(U64) * fmpq(513, 1024), (count, k)
    for degree, points in ((1, 1), (1, 2), (2, 32), (3, 50), (30, 480)):
        exact = arb.cos_pi(arb(fmpq(degree, 2 * points))) ** 2
        bound = trigonometry.cos_squared_down(degree, points)
        assert not arb(bound) > exact
        assert arb(bound) > exact - 1e-15


# Blocks of waves


def blocks_and_gamma(rng):
    count, rows, columns = (int(v) for v in rng.integers(1, 4, 3))
    blocks = np.stack([hostile(rng, 4 * rows, 4 * columns) for _ in range(count)])
    if rng.random() < 0.3:
        blocks[rng.integers(0, count)] = 0
    return blocks, hostile_gamma(rng, blocks[0])[:rows]


@FEW
@given(SEEDS)
def test_blocks_together_are_bounded_as_one_by_one(seed):
    """The largest of the blocks, exactly, and not above what each has alone by more than rounding."""
    rng = np.random.default_rng(seed)
    blocks, gamma = blocks_and_gamma(rng)
    one, each = np.eye(2), np.tile(gamma, 4)
    rho = torus.torus_rho_bound(one, one, blocks, gamma).value
    alone = max(dense.rho_cholesky(block, each) for block in blocks)
    assert rho <= alone * (1 + 1e-13) + 1e-300
    if rho < math.inf:
        assert all(dominates(rational(rho), gram(block, each)) for block in blocks)
    norm = torus.torus_norm_bound(one, one, blocks).value
    ones = np.ones(len(each))
    assert norm <= math.sqrt(max(dense.rho_cholesky(block, ones) for block in blocks)) * (1 + 1e-13)
    assert norm == math.inf or all(dominates(rational(norm) ** 2, gram(block, ones)) for block in blocks)
    kappa = torus.torus_kappa(one, one, blocks, gamma)
    alone = max(dense.kappa(block, each) for block in blocks)
    assert kappa == math.inf or kappa <= alone * 1.001 + 1e-300
    assert kappa == math.inf or all(dominates(rational(kappa) ** 2, gram(np.abs(b), each)) for b in blocks)


def test_many_blocks_are_taken_a_few_at_a_time(monkeypatch):
    """The largest block counts wherever it is, and a block that is not finite anywhere proves nothing."""
    rng = np.random.default_rng(0)
    one, gamma = np.eye(2), np.ones(2)
    blocks = np.stack([np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(9)])
    for entries in (1, 128, 2**15):
        monkeypatch.setattr(torus, "ENTRIES", entries)
        for place in range(9):
            larger = blocks.copy()
            larger[place] *= 3
            assert 3 * (1 - 1e-14) < torus.torus_norm_bound(one, one, larger).value < 3 * (1 + 1e-12)
            assert 9 * (1 - 1e-14) < torus.torus_rho_bound(one, one, larger, gamma).value < 9 * (1 + 1e-12)
            kappa = np.linalg.norm(np.abs(larger[place]), 2)
            assert 1 - 1e-13 < torus.torus_kappa(one, one, larger, gamma) / kappa < 1.001
            larger[place, 0, 0] = np.nan
            assert torus.torus_norm_bound(one, one, larger).value == math.inf
            assert torus.torus_rho_bound(one, one, larger, gamma).value == math.inf
            assert torus.torus_kappa(one, one, larger, gamma) == math.inf
    none = np.zeros((0, 8, 8))
    assert torus.torus_norm_bound(one, one, none).value == torus.torus_kappa(one, one, none, gamma) == math.inf
    assert torus.torus_norm_bound(one, one, np.zeros((3, 8, 8))).value == 0
    with pytest.raises(ValueError, match="gamma"):
        torus.torus_rho_bound(one, one, blocks, np.ones(3))


def test_without_the_defect_a_bad_factor_would_prove_anything(monkeypatch):
    """The factor of a block is a witness, whatever it is."""
    blocks = np.stack([np.eye(8), 3 * np.eye(8)])
    monkeypatch.setattr(np.linalg, "cholesky", lambda stack: np.zeros_like(stack))
    assert torus.torus_norm_bound(np.eye(2), np.eye(2), blocks).value >= 3
    monkeypatch.setattr(torus, "defect_up", lambda matrix, shift, factor: np.zeros(len(matrix)))
    assert torus.torus_norm_bound(np.eye(2), np.eye(2), blocks).value < 3


# Mutants: each shortcut must be caught by a bound that is then too small.


def test_without_the_rounding_term_row_sums_are_wrong(monkeypatch):
    """Orthogonal rows: the computed overlap is rounding, and a large q_j/q_i makes it all of T_i."""

    def failures():
        rng, count = np.random.default_rng(0), 0
        for _ in range(20):
            weight = np.linalg.qr(rng.standard_normal((200, 2)))[0].T
            exact = abs(sum((rational(a) * rational(b) for a, b in zip(*weight, strict=True)), fmpq(0)))
            bound = dense.row_sums_up(weight, np.exp([-40.0, 40.0]))[0]
            count += rational(bound) < exact * rational(math.exp(80.0) * (1 - 1e-14))
        return count

    assert failures() == 0
    monkeypatch.setattr(rowsums, "g", lambda n: 0.0)
    assert failures() > 0


def test_without_the_cosine_factor_the_grid_is_wrong(monkeypatch):
    """|1 − e^{idθ}|² with N/d odd: the grid misses the maximum 4 by exactly the factor."""
    kernel = np.zeros((2, 2, 1, 4))
    kernel[[0, 1], [0, 1], 0, 0], kernel[[0, 1], [0, 1], 0, 3] = 1, -1
    assert 4 <= rho_by_grid(kernel, np.ones(2), oversampling=3) < 4.001
    monkeypatch.setattr(grid, "cos_squared_down", lambda degree, points: 1.0)
    assert rho_by_grid(kernel, np.ones(2), oversampling=3) < 4


@pytest.mark.parametrize("size", [(4,), (2, 4), (2, 3, 4)])
def test_every_axis_has_its_cosine_factor(size, monkeypatch):
    """∏|1 − e^{idθ}|² with N/d odd in every axis: a factor that is forgotten is missing from 4^axes."""
    kernel = np.zeros((1, 1, *size))
    for corner in itertools.product((0, -1), repeat=len(size)):
        kernel[0, 0, *corner] = (-1.0) ** sum(corner)
    peak = 4.0 ** len(size)
    assert peak <= rho_by_grid(kernel, np.ones(1), oversampling=3) < 1.0003 * peak
    true = grid.cos_squared_down
    for forgotten in size:
        monkeypatch.setattr(grid, "cos_squared_down", lambda d, n, k=forgotten: 1.0 if d == k - 1 else true(d, n))
        assert rho_by_grid(kernel, np.ones(1), oversampling=3) < 0.76 * peak


@pytest.mark.parametrize("size", [(4,), (3, 4), (3, 2, 3)])
def test_half_of_the_lags_without_their_mirrors_is_wrong(size, monkeypatch):
    """Ones: at frequency 0 the symbol is the number of taps, and the overlaps over all lags make up its square."""
    kernel = np.ones((1, 1, *size))
    square = math.prod(size) ** 2
    assert square <= convolution.conv_rho_weighted(kernel, np.ones(1)) < square * (1 + 1e-11)
    whole = rowsums.overlaps

    def halved(columns):
        parts = whole(columns)
        return dataclasses.replace(parts, total=(parts.total + np.square(columns).sum()) / 2)  # of one column

    monkeypatch.setattr(convolution, "overlaps", halved)
    assert convolution.conv_rho_weighted(kernel, np.ones(1)) < 0.8 * square


@pytest.mark.parametrize("size", [(), (5,), (3, 4), (3, 2, 4), (2, 3, 1, 2)])
def test_overlaps_are_summed_over_all_lags(size):
    """Against every lag, one tap at a time. Integers: all sums are exact."""
    columns = np.random.default_rng(0).integers(-8, 9, (3, 2, *size)).astype(float)
    lags = {}
    for u, v in itertools.product(np.ndindex(*size), repeat=2):
        lag = tuple(a - b for a, b in zip(u, v, strict=True))
        lags[lag] = lags.get(lag, 0) + columns[:, :, *u] @ columns[:, :, *v].T
    parts = rowsums.overlaps(columns)
    assert (parts.total == sum(np.abs(one) for one in lags.values())).all()
    assert parts.roundings >= len(lags) + 2 * math.prod(
        size
    )  # of the overlaps, and of the squares of sums over taps
    assert (parts.taps == np.abs(columns).reshape(3, 2, -1).sum(axis=2)).all()


@pytest.mark.parametrize("counts", [(), (1,), (7,), (8,), (6, 5), (1, 4), (4, 4, 6), (3, 5, 1), (2, 3, 4, 2)])
def test_half_of_the_grid_and_its_mirror_are_the_grid(counts):
    half = grid.half_grid(counts)
    assert half.shape[0] == len(counts)
    kept = {tuple(one) for one in half.T.tolist()}
    mirrored = {tuple(-j % n for j, n in zip(one, counts, strict=True)) for one in kept}
    assert len(kept) == half.shape[1]
    assert kept | mirrored == set(itertools.product(*map(range, counts)))
    itself = math.prod(2 - n % 2 for n in counts)  # −ω = ω: 0, and N/2 where N is even
    assert 2 * len(kept) == math.prod(counts) + itself


@pytest.mark.parametrize("axes", [2, 3])
def test_a_quarter_of_the_grid_is_wrong(axes, monkeypatch):
    """A wave along the antidiagonal peaks at ±(θ, −θ, …), which no quarter of the grid meets."""
    phase = sum((-1) ** i * place for i, place in enumerate(np.indices((3,) * axes))) * 2 * np.pi / 3
    kernel = np.stack([np.cos(phase), np.sin(phase)])[:, None]
    peak = (np.abs(np.fft.fftn(kernel, (48,) * axes, tuple(range(2, 2 + axes)))) ** 2).sum(axis=0).max()
    assert rho_by_grid(kernel, np.ones(2)) >= peak * (1 - 1e-14)
    whole = grid.half_grid

    def quarter(counts):
        pairs = whole(counts)
        return pairs[:, (2 * pairs <= np.array(counts)[:, None]).all(axis=0)]

    monkeypatch.setattr(grid, "half_grid", quarter)
    assert rho_by_grid(kernel, np.ones(2)) < 0.9 * peak


def test_a_transform_at_image_size_is_no_bound():
    kernel = np.array([[[[2.0, -1.0, 2.0]]]])
    true = np.linalg.norm(explicit(kernel, (1, 3), (1, 1), (0, 1), (1, 1), 1, "zeros")[0], 2)
    assert 1.25 * np.abs(np.fft.fft(kernel.ravel(), 3)).max() < true <= convolution.conv_norm_bound(kernel).value


def test_the_wrong_stride_is_wrong():
    """Circular, s ∤ N: phases of s do not exist. Dilation s: all taps share one phase."""
    kernel = np.array([[[[1.0, 1.0, 0.0]]]])
    true = np.linalg.norm(explicit(kernel, (1, 3), (1, 2), (0, 1), (1, 1), 1, "circular")[0], 2)
    right = convolution.proved_stride((1, 3), (1, 3), stride=(1, 2), padding=(0, 1), padding_mode="circular")
    assert convolution.conv_norm_bound(kernel, stride=(1, 2)).value < true
    assert convolution.conv_norm_bound(kernel, stride=right).value >= true
    kernel = np.ones((1, 1, 1, 2))
    assert convolution.conv_norm_bound(kernel, stride=2).value < 1.5
    assert convolution.conv_norm_bound(kernel, stride=2, dilation=2).value >= 2
