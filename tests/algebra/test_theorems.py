"""The theorems of the paper, as laws over explicit matrices, and the layers against the paper's formulas.

Nothing here uses the library's own arithmetic: a convolution is a matrix filled column by column, T is
the printed sum over |WᵀW|, and a layer is only asked for its outputs. All of it is float64.
"""

import itertools
import math

import cvxpy as cp
import numpy as np
import pytest
import torch

import lipcert as lc
import lmi
from full import full
from lipcert.algebra.gram import affine_columns, dense_columns, residual_columns, symbol
from lipcert.algebra.orthogonal import CONTRACTING_ANGLE, CONTRACTING_ORDERS, exponential_series
from lipcert.algebra.spectral import iterate_of, squared_norm_estimate

EPS = np.finfo(np.float64).eps
# Every matrix here has fewer than 700 rows: sums of that many terms and a singular value decomposition each
# err by less than size·eps relative to norms that are at most 4 or are divided out.
ROUNDING = 4096 * EPS  # 9e-13


# ---------------------------------------------------------------- explicit matrices


def padded_sources(size, padding, mode):
    """For every coordinate of the padded axis, the pixel it shows; None where it shows a zero."""
    shown = []
    for y in range(-padding, size + padding):
        if mode == "circular":
            shown.append(y % size)
        else:
            shown.append(y if 0 <= y < size else None)
    return shown


def hits(size, kernel, stride, padding, mode):
    """hits[pixel] = the (output, tap) pairs through which that pixel enters a one-dimensional convolution."""
    outputs = (size + 2 * padding - kernel) // stride + 1
    found = [[] for _ in range(size)]
    for place, pixel in enumerate(padded_sources(size, padding, mode)):
        for tap in range(kernel):
            output, rest = divmod(place - tap, stride)
            if pixel is not None and rest == 0 and 0 <= output < outputs:
                found[pixel].append((output, tap))
    return found, outputs


def convolution_matrix(kernel, image, stride=(1, 1), padding=(0, 0), mode="zeros", groups=1):
    """The matrix of a 2-D cross-correlation, kernel (out, in/groups, kh, kw): one column per unit impulse."""
    out, per_group, kh, kw = kernel.shape
    rows, high = hits(image[0], kh, stride[0], padding[0], mode)
    columns, wide = hits(image[1], kw, stride[1], padding[1], mode)
    matrix = np.zeros((out, high, wide, per_group * groups, *image))
    for channel in range(per_group * groups):
        group, inner = divmod(channel, per_group)
        mine = range(group * out // groups, (group + 1) * out // groups)
        for y, x in itertools.product(range(image[0]), range(image[1])):
            for (p, a), (q, b) in itertools.product(rows[y], columns[x]):
                for o in mine:
                    matrix[o, p, q, channel, y, x] += kernel[o, inner, a, b]
    return matrix.reshape(out * high * wide, -1)


def norm(matrix):
    return np.linalg.norm(matrix, 2)


def row_sums(gram, q=None):
    """Σ_j |G_ij| q_j/q_i, Equation SLLT; q = 1 is AOL."""
    q = np.ones(len(gram)) if q is None else q
    return (np.abs(gram) * q[None, :] / q[:, None]).sum(axis=1)


def power_diagonal(gram, q, order):
    """(Σ_j |G^(2^k)|_ij q_j/q_i)^(1/2^k), with the Gram scaled to 1 first."""
    size = np.linalg.norm(gram, 2)
    power = np.linalg.matrix_power(gram / size, 2**order)
    return size * row_sums(power, q) ** (0.5**order)


def per_channel(t, grid, stride=(1, 1)):
    """T of each channel away from the border, on a grid of positions: the largest over the phases of a stride.

    At a zero-padded border the row sums of |WᵀW| may be larger still, since cut columns cancel less; T need not
    cover them, because cutting is a compression of the infinite operator, which T dominates.
    """
    (high, wide), (sh, sw) = grid, stride
    y, x = high // 2 - sh // 2, wide // 2 - sw // 2
    return t.reshape(-1, high, wide)[:, y : y + sh, x : x + sw].max(axis=(1, 2))


def dominated(w, t):
    """λmax(T^(−½)WᵀWT^(−½)), at most 1 if and only if WᵀW ⪯ T."""
    return norm(w / np.sqrt(t)) ** 2


def as_tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array)).double()


def outputs(layer, x):
    with torch.no_grad():
        return layer(as_tensor(x)).numpy()


def matrix_of(layer, shape):
    """The matrix of an affine layer, by unit impulses: (outputs, inputs)."""
    size = math.prod(shape)
    image = outputs(layer, np.eye(size).reshape(size, *shape)).reshape(size, -1)
    return (image - outputs(layer, np.zeros((1, *shape))).reshape(1, -1)).T


def jacobian_of(layer, x):
    point = as_tensor(x)[None]
    flat = torch.autograd.functional.jacobian(lambda v: layer(v.view_as(point)).flatten(), point.flatten())
    return flat.numpy()


def set_parameters(layer, *, weight, bias=None, log_q=None):
    layer.double().eval()
    with torch.no_grad():
        layer.weight.copy_(as_tensor(weight))
        if layer.bias is not None:
            layer.bias.copy_(as_tensor(np.zeros(layer.bias.shape) if bias is None else bias))
        if log_q is not None:
            layer.bound.log_q.copy_(as_tensor(log_q))
    return layer


def gamma_of(layer, w):
    """diag(Γ) of a dense residual ReLU layer from its outputs: h(0) with b = e_i is −2γ_i w_i."""
    n = w.shape[1]
    gamma = np.zeros(n)
    for i in range(n):
        set_parameters(layer, weight=w.T, bias=np.eye(n)[i])
        step = -outputs(layer, np.zeros((1, w.shape[0])))[0] / 2
        gamma[i] = step @ w[:, i] / (w[:, i] @ w[:, i])
    return gamma


SIGMAS = {
    "relu": lambda u: np.maximum(u, 0),
    "leaky_relu": lambda u: np.where(u > 0, u, 0.01 * u),
    "tanh": np.tanh,
    "sigmoid": lambda u: 0.5 * (1 + np.tanh(u / 2)),
}


def residual(w, gamma, b, x, sigma):
    """x − 2WΓσ(Wᵀx + b), for rows x."""
    return x - 2 * (SIGMAS[sigma](x @ w + b) * gamma) @ w.T


# ---------------------------------------------------------------- hostile weights and choices of T


def weights(rng):
    """Matrices W, m×n without zero columns, that have broken bounds before."""
    for m, n in ((6, 4), (4, 6), (5, 5), (1, 4), (4, 1)):
        yield rng.standard_normal((m, n))
    yield np.linalg.qr(rng.standard_normal((7, 5)))[0]  # orthonormal
    yield np.ones((3, 4))  # equal columns
    yield np.outer(rng.standard_normal(5), rng.standard_normal(4))  # rank one
    yield np.array([[1.0 / (i + j + 1) for j in range(5)] for i in range(5)])  # Hilbert: nearly singular
    yield np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) * 1.0  # Hadamard
    yield rng.standard_normal((5, 4)) * 1e-30
    yield rng.standard_normal((5, 4)) * 1e30
    graded = rng.standard_normal((5, 5)) * np.logspace(-12, 12, 5)
    yield graded
    tiny = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    tiny[:, 0] *= 1e-9  # block-orthogonal with one tiny column
    yield tiny


def positive_vectors(rng, n):
    yield np.ones(n)
    yield np.exp(rng.standard_normal(n))
    yield np.exp(rng.uniform(-8, 8, n))
    yield np.full(n, 1e-9)
    yield np.logspace(-9, 0, n)


def solutions(w, rng):
    """Diagonals T with WᵀW ⪯ T and no room to spare, except AOL's and SLL's."""
    n = w.shape[1]
    gram = w.T @ w
    size = np.linalg.norm(w, axis=0)
    unit = gram / np.outer(size, size)
    yield np.full(n, norm(w) ** 2)
    yield row_sums(gram)
    for q in positive_vectors(rng, n):
        yield row_sums(gram, q)
        # A shape q stretched until it dominates: T = cq with c = λmax(Q^(−½)GQ^(−½)).
        yield q * size**2 * norm(w / (size * np.sqrt(q))) ** 2
    for _ in range(4):  # a diagonal D shifted by λmax(G − D): T − G is singular and no longer dominant
        d = rng.uniform(0.0, 2.0, n)
        yield (d + np.linalg.eigvalsh(unit - np.diag(d))[-1]) * size**2


def slopes(rng, n):
    """Diagonals D of slopes in [0, 1]: every activation pattern if there are few, and slopes in between."""
    if n <= 6:
        yield from (np.array(pattern, float) for pattern in itertools.product((0, 1), repeat=n))
    else:
        yield from (np.zeros(n), np.ones(n))
        yield from (rng.integers(0, 2, n).astype(float) for _ in range(32))
    yield from (rng.uniform(0, 1, n) for _ in range(8))


# ---------------------------------------------------------------- Theorem 1


def test_theorem_1_statement_1_affine_map_is_1_lipschitz():
    rng = np.random.default_rng(0)
    for w in weights(rng):
        for t in solutions(w, rng):
            assert norm(w / np.sqrt(t)) <= 1 + ROUNDING


@pytest.mark.parametrize(("m", "n"), [(7, 4), (4, 7), (5, 5), (1, 3)])
@pytest.mark.parametrize("alpha", [1e-6, 0.01, 3.0])
def test_theorem_1_statement_1_holds_for_a_full_t(m, n, alpha):
    """W(αI + WᵀW)^(−½) up to a rotation: the same WT⁻¹Wᵀ, for every scale of W and α."""
    for rank in (min(m, n), 1):
        w = torch.randn(m, rank, dtype=torch.float64) @ torch.randn(rank, n, dtype=torch.float64)
        layer = lc.AffineLinear(n, m, bound=lc.bounds.Full(alpha), bias=False).double()
        with torch.no_grad():
            layer.weight.copy_(w)
        v = layer.scaled_weight().detach()
        outer = w @ torch.linalg.solve(w.T @ w + alpha * torch.eye(n).double(), w.T)
        inner = torch.linalg.solve(w.T @ w + alpha * torch.eye(n).double(), w.T @ w)
        # The condition of αI + WᵀW is at most about 1e9 here.
        torch.testing.assert_close(*((v @ v.T, outer) if m >= n else (v.T @ v, inner)), rtol=0, atol=1e-6)
        assert torch.linalg.matrix_norm(v, 2) <= 1 + ROUNDING
        assert torch.linalg.matrix_norm(v, 2) < (1 - alpha / (4 * (alpha + w.square().sum())))
        with torch.no_grad():
            layer.weight.mul_(8)
            layer.bound.log_alpha.add_(math.log(64))
        torch.testing.assert_close(layer.scaled_weight().detach(), v, rtol=0, atol=1e-9)


def test_a_full_t_tends_to_orthonormal_columns_and_maps_over_batches():
    layer = lc.AffineLinear(4, 6, bound=lc.bounds.Full(1e-12)).double()
    torch.nn.init.normal_(layer.weight)
    orthonormal = lc.OrthogonalLinear(4, 6, method="cholesky").double()
    orthonormal.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    torch.testing.assert_close(layer.scaled_weight(), orthonormal.scaled_weight(), rtol=0, atol=1e-9)
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x))
    weights = torch.randn(3, 6, 4, dtype=torch.float64)
    each = torch.func.vmap(lambda w: torch.func.functional_call(layer, {"weight": w}, (x,)))(weights)
    torch.testing.assert_close(each[1], torch.func.functional_call(layer, {"weight": weights[1]}, (x,)))


def test_theorem_1_statement_2_every_slope_pattern_has_a_jacobian_of_norm_at_most_1():
    rng = np.random.default_rng(1)
    for w in weights(rng):
        for t in solutions(w, rng):
            v = w / np.sqrt(t)
            for d in slopes(rng, w.shape[1]):
                assert norm(np.eye(len(w)) - 2 * (v * d) @ v.T) <= 1 + ROUNDING


@pytest.mark.parametrize("sigma", ["relu", "tanh", "sigmoid"])
def test_theorem_1_statement_2_holds_between_points_near_and_far(sigma):
    rng = np.random.default_rng(2)
    for w in weights(rng):
        m, n = w.shape
        reach = 1 / norm(w)  # pre-activations of order 1, so that the kinks are met
        x = rng.standard_normal((64, m)) * reach
        y = x + rng.standard_normal((64, m)) * reach * np.logspace(-2, 3, 64)[:, None]
        for t in solutions(w, rng):
            b = rng.standard_normal(n)
            hx, hy = (residual(w, 1 / t, b, z, sigma) for z in (x, y))
            moved, allowed = np.linalg.norm(hx - hy, axis=1), np.linalg.norm(x - y, axis=1)
            # The two outputs are rounded relative to their own size and to the branch 2WΓσ.
            size = np.linalg.norm(np.abs(x) + np.abs(y) + np.abs(hx - x) + np.abs(hy - y), axis=1)
            assert (moved <= allowed + 64 * EPS * size).all()


def test_theorem_1_is_tight_and_the_constant_is_max_of_1_and_2_rho_minus_1():
    rng = np.random.default_rng(3)
    for w in weights(rng):
        m, n = w.shape
        if n > 6:
            continue
        for factor in (4.0, 1.0, 0.999, 0.9, 0.5, 1e-3):
            t = factor * np.full(n, norm(w) ** 2)
            v = w / np.sqrt(t)
            rho = 1 / factor
            assert norm(v) == pytest.approx(math.sqrt(rho), rel=ROUNDING)  # statement 1, attained
            worst = max(norm(np.eye(m) - 2 * (v * d) @ v.T) for d in slopes(rng, n))
            assert worst == pytest.approx(max(1.0, 2 * rho - 1), rel=ROUNDING)  # statement 2, attained


def test_theorem_1_is_sufficient_not_necessary():
    """w = (1, −1), b = (−1, −1), γ = 0.9: ρ = 1.8 but never both neurons are active, so L = 1."""
    w, gamma, b = np.array([[1.0, -1.0]]), np.full(2, 0.9), np.full(2, -1.0)
    assert norm(w * np.sqrt(gamma)) ** 2 == pytest.approx(1.8)
    x = np.linspace(-5, 5, 4001)[:, None]
    quotient = np.abs(np.diff(residual(w, gamma, b, x, "relu"), axis=0)) / np.diff(x, axis=0)
    # Differences of numbers of size 5 over steps of 2.5e-3 lose a factor 2000 of the precision.
    assert quotient.max() <= 1 + 2000 * 8 * EPS


def dense_choices(n, rng):
    """(bound, log_q or None, T of the Gram) for every row-sum bound of the library, as the paper prints it."""
    log_q = rng.uniform(-3, 3, n)
    shifted = np.exp(log_q) + 1e-6
    yield lc.bounds.AOL(), None, row_sums
    yield lc.bounds.SLL(n), log_q, lambda gram: row_sums(gram, np.exp(log_q))
    yield lc.bounds.SLL(n, "shifted"), log_q, lambda gram: row_sums(gram, shifted)
    yield lc.bounds.SLL(n, "surrogate"), log_q, lambda gram: row_sums(gram, np.exp(log_q))
    yield lc.bounds.Rescaled(n, 0), log_q, lambda gram: row_sums(gram, np.exp(log_q))
    for order in (1, 2, 3):
        yield lc.bounds.Rescaled(n, order), log_q, lambda gram, k=order: power_diagonal(gram, np.exp(log_q), k)


def comparable(w, bound):
    """Whether T is determined to 1e-12: the rounding of the Gram, eps·‖w_i‖‖w_j‖, must be small against T_i (it
    is not for a tiny column orthogonal to large ones), and the powers of Rescaled must stay in range."""
    size = np.linalg.norm(w, axis=0)
    noise = (np.outer(size, size).sum(axis=1) / row_sums(w.T @ w)).max()
    return noise < 100 and (getattr(bound, "order", 0) == 0 or size.max() < 1e6 * size.min())


@pytest.mark.parametrize("sigma", list(SIGMAS))
def test_dense_residual_layers_are_the_papers_formula(sigma):
    rng = np.random.default_rng(4)
    for w in weights(rng):
        m, n = w.shape
        b = rng.standard_normal(n)
        x = rng.standard_normal((9, m)) / norm(w)
        for bound, log_q, choose in dense_choices(n, rng):
            if not comparable(w, bound):
                continue
            layer = lc.ResidualLinear(m, n, bound=bound, activation=sigma)
            set_parameters(layer, weight=w.T, bias=b, log_q=log_q)
            expected = residual(w, 1 / choose(w.T @ w), b, x, sigma)
            branch = np.abs(expected - x).max() + np.abs(x).max()
            np.testing.assert_allclose(outputs(layer, x), expected, rtol=0, atol=1e-12 * branch)


def test_dense_affine_layers_are_the_papers_formula():
    rng = np.random.default_rng(5)
    for w in weights(rng):
        m, n = w.shape
        for bound, log_q, choose in dense_choices(n, rng):
            if not comparable(w, bound):
                continue
            b = rng.standard_normal(m)
            layer = set_parameters(lc.AffineLinear(n, m, bound=bound), weight=w, bias=b, log_q=log_q)
            expected = w / np.sqrt(choose(w.T @ w))
            np.testing.assert_allclose(matrix_of(layer, (n,)), expected, rtol=0, atol=1e-12)
            np.testing.assert_allclose(outputs(layer, np.zeros((1, n)))[0], b, rtol=0, atol=0)


def test_spectral_is_never_below_the_squared_norm_and_within_its_stated_looseness():
    """SN and CPL, T = ‖W‖²I: at most rank^(1/2^(k+1)) too large after k Gram iterations."""
    rng = np.random.default_rng(6)
    for w in weights(rng):
        m, n = w.shape
        exact = norm(w) ** 2
        for iterations in (1, 3, 6, 9):
            loose = min(m, n) ** (0.5 ** (iterations + 1))
            affine = lc.AffineLinear(n, m, bound=lc.bounds.Spectral(iterations))
            v = matrix_of(set_parameters(affine, weight=w), (n,))
            assert 1 - ROUNDING <= 1 / norm(v) ** 2 <= loose * (1 + ROUNDING)
            np.testing.assert_allclose(v * norm(w), w * norm(v), rtol=ROUNDING, atol=0)  # one number for all
            if np.linalg.norm(w, axis=0).min() > 1e-6 * math.sqrt(exact):
                gamma = gamma_of(lc.ResidualLinear(m, n, bound=lc.bounds.Spectral(iterations)), w)
                np.testing.assert_allclose(gamma, gamma[0], rtol=ROUNDING)
                assert 1 - ROUNDING <= 1 / (gamma[0] * exact) <= loose * (1 + ROUNDING)


# ---------------------------------------------------------------- Theorem 1, convolutions

RESIDUAL_CONVOLUTIONS = [
    (kernel, stride, mode)
    for mode in ("zeros", "circular")
    for kernel in ((1, 1), (3, 3), (2, 2), (1, 3), (4, 1), (3, 2))
    for stride in ((1, 1), (2, 2), (1, 2))
    if mode == "zeros" or all(k % 2 for k in kernel)  # even circular kernels are refused
]
AFFINE_CONVOLUTIONS = [
    (kernel, stride, mode, groups)
    for kernel in ((1, 1), (3, 3), (2, 2), (1, 3), (4, 2))
    for stride in ((1, 1), (2, 2), (2, 1))
    for mode in ("zeros", "circular")
    for groups in (1, 2)
]


def roomy(kernel, stride):
    """An image so large that the columns that meet one in the middle are all whole."""
    return tuple(s * math.ceil((3 * k + 2 * s) / s) for k, s in zip(kernel, stride, strict=True))


def convolution_choices(n, rng):
    log_q = rng.uniform(-3, 3, n)
    yield lc.bounds.AOL(), None
    yield lc.bounds.SLL(n), log_q
    yield lc.bounds.SLL(n, "shifted"), log_q
    yield lc.bounds.Rescaled(n, 0), log_q


def expected_diagonal(bound, log_q, gram, grid, stride=(1, 1)):
    """The paper's T of an explicit Gram matrix, the same for all positions of a channel."""
    positions = math.prod(grid)
    q = np.ones(len(gram) // positions) if log_q is None else np.exp(log_q)
    if getattr(bound, "form", "") == "shifted":
        q = q + 1e-6
    t = row_sums(gram, np.repeat(q, positions))
    return np.repeat(per_channel(t, grid, stride), positions)


@pytest.mark.parametrize(("kernel", "stride", "mode"), full(RESIDUAL_CONVOLUTIONS, RESIDUAL_CONVOLUTIONS[::2]))
def test_residual_convolutions_are_the_papers_formula(kernel, stride, mode):
    rng = np.random.default_rng(7)
    channels, hidden = 2, 3
    image = roomy(kernel, stride)
    padding = (kernel[0] // 2, kernel[1] // 2)
    k = rng.standard_normal((hidden, channels, *kernel))
    w = convolution_matrix(k, image, stride, padding, mode).T  # columns of W are the outputs
    grid = tuple((side + 2 * p - k) // s + 1 for side, p, k, s in zip(image, padding, kernel, stride, strict=True))
    b = rng.standard_normal(hidden)
    x = rng.standard_normal((2, channels, *image))
    for bound, log_q in convolution_choices(hidden, rng):
        t = expected_diagonal(bound, log_q, w.T @ w, grid)
        assert dominated(w, t) <= 1 + ROUNDING
        layer = lc.ResidualConv2d(channels, hidden, kernel, stride=stride, padding_mode=mode, bound=bound)
        set_parameters(layer, weight=k, bias=b, log_q=log_q)
        expected = residual(w, 1 / t, np.repeat(b, math.prod(grid)), x.reshape(2, -1), "relu").reshape(x.shape)
        np.testing.assert_allclose(outputs(layer, x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "stride", "mode", "groups"), full(AFFINE_CONVOLUTIONS, AFFINE_CONVOLUTIONS[::5])
)
def test_affine_convolutions_are_the_papers_formula(kernel, stride, mode, groups):
    rng = np.random.default_rng(8)
    channels, out = 2, 4
    image = roomy(kernel, stride)
    padding = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2)
    k = rng.standard_normal((out, channels // groups, *kernel))
    w = convolution_matrix(k, image, stride, padding, mode, groups)  # columns of W are the inputs
    for bound, log_q in convolution_choices(channels, rng):
        t = expected_diagonal(bound, log_q, w.T @ w, image, stride)
        assert dominated(w, t) <= 1 + ROUNDING
        layer = lc.AffineConv2d(
            channels, out, kernel, stride=stride, padding=padding, padding_mode=mode, groups=groups, bound=bound
        )
        set_parameters(layer, weight=k, bias=np.zeros(out), log_q=log_q)
        np.testing.assert_allclose(matrix_of(layer, (channels, *image)), w / np.sqrt(t), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_convolutions_stay_1_lipschitz_on_images_smaller_than_their_kernel(mode):
    """On small images the paper's T varies with the position and wraps onto itself; the layer's must cover it."""
    rng = np.random.default_rng(9)
    for kernel, stride in itertools.product((1, 3, 5), (1, 2, 3)):
        for image in ((stride, stride), (2 * stride, 6), (6, 3 * stride)):
            pad = kernel // 2
            if any(side % stride for side in image) or (mode == "circular" and pad > min(image)):
                continue
            k = rng.standard_normal((3, 2, kernel, kernel))
            for bound in ("aol", "sll", "spectral", lc.bounds.Rescaled(3, 2)):
                layer = lc.ResidualConv2d(2, 3, kernel, stride=stride, padding_mode=mode, bound=bound)
                log_q = rng.uniform(-3, 3, 3) if hasattr(layer.bound, "log_q") else None
                set_parameters(layer, weight=k, bias=np.full(3, 50.0), log_q=log_q)  # all active
                j = jacobian_of(layer, rng.standard_normal((2, *image)))
                assert norm(j) <= 1 + ROUNDING
                np.testing.assert_allclose(j, j.T, rtol=0, atol=ROUNDING)  # a true adjoint
            k = rng.standard_normal((3, 2, kernel, kernel))
            for bound in ("aol", "sll", "spectral", lc.bounds.Rescaled(2, 2)):
                layer = lc.AffineConv2d(
                    2, 3, kernel, stride=stride, padding=pad, padding_mode=mode, bound=bound, bias=False
                )
                log_q = rng.uniform(-3, 3, 2) if hasattr(layer.bound, "log_q") else None
                set_parameters(layer, weight=k, log_q=log_q)
                v = matrix_of(layer, (2, *image))
                assert norm(v) <= 1 + ROUNDING
                w = convolution_matrix(k, image, (stride, stride), (pad, pad), mode)
                # Column by column, the layer is the convolution divided by one number per channel.
                ratio = (v * w).sum(axis=0) / np.maximum((w * w).sum(axis=0), np.finfo(float).tiny)
                np.testing.assert_allclose(v, w * ratio, rtol=0, atol=ROUNDING)


def symbol_norm(kernel, groups=1, points=96):
    """max ‖Σ_t K[t] e^(−iω·t)‖ over a grid: a lower bound of the norm on the infinite image."""
    omega = 2 * np.pi * np.arange(points) / points
    a = np.exp(-1j * np.outer(omega, np.arange(kernel.shape[2])))
    b = np.exp(-1j * np.outer(omega, np.arange(kernel.shape[3])))
    parts = kernel.reshape(groups, -1, *kernel.shape[1:])
    return max(np.linalg.norm(np.einsum("oiab,pa,qb->pqoi", k, a, b), 2, axis=(-2, -1)).max() for k in parts)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 3), (5, 5)])
def test_spectral_convolutions_are_never_below_the_norm_on_any_image_and_nearly_tight(kernel):
    rng = np.random.default_rng(10)
    for scale, groups in itertools.product((1.0, 1e-20, 1e20), (1, 2)):
        k = rng.standard_normal((4, 2 // groups, *kernel)) * scale
        pad = (kernel[0] // 2, kernel[1] // 2)
        layer = lc.AffineConv2d(2, 4, kernel, padding=pad, groups=groups, bound="spectral", bias=False)
        set_parameters(layer, weight=k)
        image = (7, 7)
        v, w = matrix_of(layer, (2, *image)), convolution_matrix(k, image, (1, 1), pad, groups=groups)
        t = (w.reshape(4, -1, 2, 49) ** 2).sum(axis=(0, 1, 3)) / (v.reshape(4, -1, 2, 49) ** 2).sum(axis=(0, 1, 3))
        for g, channels in enumerate(np.split(np.arange(2), groups)):
            part = k.reshape(groups, -1, *k.shape[1:])[g]
            exact = symbol_norm(part) ** 2  # below the infinite image's by at most 1/cos²(πd/(2·96)) an axis
            covered = np.prod([1 / math.cos(math.pi * (side - 1) / (2 * 96)) ** 2 for side in kernel])
            # Stated: 1/cos²(π/32) per axis that has more than one tap, and rank^(1/2^7).
            stated = np.prod([1 / math.cos(math.pi / 32) ** 2 if side > 1 else 1 for side in kernel])
            rank = min(len(part), len(channels))
            assert (t[channels] >= exact * (1 - ROUNDING)).all()
            assert (t[channels] <= exact * covered * stated * rank ** (1 / 128) * (1 + ROUNDING)).all()
            np.testing.assert_allclose(t[channels], t[channels[0]], rtol=ROUNDING)


# ---------------------------------------------------------------- Theorem 2


def trace_objective(gram, t):
    return np.trace(np.eye(len(t)) - gram / np.sqrt(np.outer(t, t)))


def frobenius_objective(gram, t):
    return np.linalg.norm(gram / np.sqrt(np.outer(t, t)) - np.eye(len(t)))


@pytest.mark.parametrize("objective", ["trace", "frobenius"])
def test_theorem_2_aol_is_what_a_solver_finds_over_diagonally_dominant_t(objective):
    rng = np.random.default_rng(11)
    for m, n in ((3, 2), (5, 4), (4, 6), (2, 5)):
        w = rng.standard_normal((m, n))
        gram = w.T @ w
        gamma = cp.Variable(n, nonneg=True)
        scaled = cp.diag(gamma) @ gram  # T − G is dominant ⇔ I − ΓG is, row by row
        off = np.ones((n, n)) - np.eye(n)
        dominance = cp.sum(cp.abs(cp.multiply(off, scaled)), axis=1) <= 1 - cp.diag(scaled)
        value = n - gram.diagonal() @ gamma
        if objective == "frobenius":  # n − 2Σ G_ii γ_i + Σ G_ij² γ_i γ_j, and G∘G ⪰ 0
            value = n - 2 * gram.diagonal() @ gamma + cp.quad_form(gamma, cp.psd_wrap(gram**2))
        problem = cp.Problem(cp.Minimize(value), [dominance])
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        # The optimum is a vertex, approached to the solver's tolerance over the gradient: 1e-11 over 1e-4.
        np.testing.assert_allclose(gamma.value, 1 / row_sums(gram), rtol=1e-6)


def test_theorem_2_no_larger_t_is_better():
    rng = np.random.default_rng(12)
    for w in weights(rng):
        gram = w.T @ w
        aol = row_sums(gram)
        n = len(aol)
        best = trace_objective(gram, aol), frobenius_objective(gram, aol)
        for grown in [1 + np.eye(n)[i] * c for i in range(n) for c in (1e-3, 1.0, 1e6)] + [
            1 + rng.exponential(1.0, n) for _ in range(20)
        ]:
            t = aol * grown
            assert trace_objective(gram, t) >= best[0] - ROUNDING
            assert frobenius_objective(gram, t) >= best[1] - ROUNDING


def test_theorem_2_gradient_of_the_frobenius_objective_is_not_positive():
    """∂F/∂γ_i = 2((GΓG)_ii − G_ii) ≤ 0 wherever G ⪯ Γ⁻¹, since then GΓG ⪯ G: smaller T is always better."""
    rng = np.random.default_rng(13)
    for w in weights(rng):
        size = np.linalg.norm(w, axis=0)
        gram = (w / size).T @ (w / size)  # the objective does not depend on the columns' sizes
        for t in solutions(w / size, rng):
            gamma = 1 / t
            formula = 2 * ((gram * gamma) @ gram - gram).diagonal()
            assert (formula <= ROUNDING).all()
            point = torch.from_numpy(gamma.copy()).requires_grad_()
            root = point.sqrt()
            f = ((torch.from_numpy(gram) * root[:, None] * root - torch.eye(len(t))) ** 2).sum()
            (by_hand,) = torch.autograd.grad(f, point)
            # Autograd goes through √γ, whose derivative 1/(2√γ) magnifies rounding for tiny γ.
            np.testing.assert_allclose(by_hand.numpy(), formula, rtol=1e-9, atol=ROUNDING / gamma.min())


def test_theorem_2_printed_proof_claims_a_monotonicity_that_is_false():
    """X_ij² = G_ij²/(T_i T_j) *falls* as T_i grows (i ≠ j); the statement holds all the same."""
    w = np.array([[1.0, 1.0], [0.0, 1.0]])
    gram = w.T @ w  # [[1, 1], [1, 2]], AOL's T is (2, 3)

    def x_squared(t):
        return (np.eye(2) - gram / np.sqrt(np.outer(t, t))) ** 2

    aol, larger = np.array([2.0, 3.0]), np.array([4.0, 3.0])
    np.testing.assert_array_equal(row_sums(gram), aol)
    assert x_squared(aol)[0, 1] == pytest.approx(1 / 6)
    assert x_squared(larger)[0, 1] == pytest.approx(1 / 12)  # "monotone non-decreasing" would forbid this
    assert x_squared(larger).sum() > x_squared(aol).sum() + 0.1  # yet the norm grows
    assert trace_objective(gram, larger) > trace_objective(gram, aol)


def test_frobenius_norm_is_at_most_the_trace_on_the_cone():
    rng = np.random.default_rng(14)
    for w in weights(rng):
        for t in solutions(w, rng):
            gram = w.T @ w
            assert frobenius_objective(gram, t) <= trace_objective(gram, t) + ROUNDING
            x = np.diag(t) - gram  # and on T − WᵀW itself, scaled to be comparable
            assert np.linalg.norm(x / t.max()) <= np.trace(x / t.max()) + ROUNDING
    outside = np.diag([1.0, -1.0])  # not positive semidefinite: the inequality is a property of the cone
    assert np.linalg.norm(outside) > np.trace(outside)


# ---------------------------------------------------------------- Theorems 3 and 7


def test_theorems_3_and_7_any_q_is_sound():
    rng = np.random.default_rng(15)
    for w in weights(rng):
        m, n = w.shape
        gram = w.T @ w
        for q in positive_vectors(rng, n):
            t = row_sums(gram, q)
            similar = np.diag(t) - gram * q[None, :] / q[:, None]  # T − QGQ⁻¹ with Q⁻¹ = diag(q)
            diagonal = similar.diagonal()
            off = np.abs(similar).sum(axis=1) - np.abs(diagonal)
            assert (diagonal >= off - ROUNDING * t).all()  # diagonally dominant, row by row
            assert dominated(w, t) <= 1 + ROUNDING  # hence T ⪰ WᵀW
            v = w / np.sqrt(t)
            assert norm(v) <= 1 + ROUNDING  # Theorem 7
            for d in slopes(rng, n):
                assert norm(np.eye(m) - 2 * (v * d) @ v.T) <= 1 + ROUNDING  # Theorem 3


def test_theorems_3_and_7_the_layers_are_1_lipschitz_for_any_q():
    rng = np.random.default_rng(16)
    for w in weights(rng):
        m, n = w.shape
        for log_q in [np.log(q) for q in positive_vectors(rng, n)] + [rng.choice([-1e4, 0, 1e4], n)]:
            for form in ("exp", "shifted", "surrogate"):
                affine = lc.AffineLinear(n, m, bound=lc.bounds.SLL(n, form))
                assert norm(matrix_of(set_parameters(affine, weight=w, log_q=log_q), (n,))) <= 1 + ROUNDING
                layer = lc.ResidualLinear(m, n, bound=lc.bounds.SLL(n, form))
                active = np.full(n, 8 * norm(w))  # |Wᵀx| ≤ ‖W‖‖x‖ < the bias: every neuron is active
                set_parameters(layer, weight=w.T, bias=active, log_q=log_q)
                assert norm(jacobian_of(layer, rng.uniform(-1, 1, m))) <= 1 + ROUNDING


def test_the_law_of_ratios_r_times_its_transpose_at_least_1_is_sound_and_less_is_not():
    """T_i = Σ_j |G_ij| r_ij dominates WᵀW if r_ij r_ji ≥ 1 (2|x_i x_j| ≤ r x_i² + x_j²/r)."""
    rng = np.random.default_rng(17)
    for w in weights(rng):
        gram, n = w.T @ w, w.shape[1]
        for _ in range(10):
            r = np.exp(rng.uniform(-6, 6, (n, n)))
            r = np.maximum(r, 1 / r.T)  # r_ij ≥ 1/r_ji
            np.fill_diagonal(r, 1.0)
            assert dominated(w, row_sums(gram * r)) <= 1 + ROUNDING
    short = np.array([[1.0, 2.0], [0.25, 1.0]])  # r_12 r_21 = 1/2
    assert dominated(np.ones((1, 2)), row_sums(np.ones((2, 2)) * short)) > 1.1


def test_every_ratio_of_the_library_obeys_the_law_and_the_mistaken_ones_do_not():
    rng = np.random.default_rng(18)
    for reach in (1e-3, 1.0, 10.0, 45.0, 90.0, 1e4):
        log_q = np.append(rng.uniform(-reach, reach, 4), [reach, -reach])
        for form, mode in (("exp", True), ("exp", False), ("shifted", True), ("surrogate", False)):
            bound = lc.bounds.SLL(6, form).double().train(mode)
            with torch.no_grad():
                bound.log_q.copy_(as_tensor(log_q))
            above, below = (part.detach().numpy() for part in bound.weights())
            r = above[None, :] / below[:, None]
            if reach <= 10:  # what T is made of: two equal columns alone give T_i = 1 + r_ij
                for i, j in ((0, 1), (4, 5), (5, 2)):
                    pair = torch.zeros(6, 1, dtype=torch.float64)
                    pair[[i, j]] = 1.0
                    t = bound(dense_columns(pair))[1].detach().numpy()
                    assert abs(t[i] - 1 - r[i, j]) <= 8 * EPS * (1 + r[i, j])
                    assert (t[i] - 1) * (t[j] - 1) >= 1 - 64 * EPS * t[i] * t[j]
            assert np.isfinite(r).all()
            # Two exponentials (or two quotients of sums) and a product: at most 8 roundings.
            assert (r * r.T >= 1 - 8 * EPS).all(), (form, reach)
    log_q = np.array([0.0, math.log(1e-9), -50.0, 50.0])
    q = np.exp(log_q)
    erratum = q[None, :] / (q[:, None] + 1e-6)
    one_sided = np.exp(np.minimum(log_q[None, :] - log_q[:, None], 40.0))
    for mistaken in (erratum, one_sided):
        assert (mistaken * mistaken.T).min() < 1e-2
    training = lc.bounds.SLL(4, "surrogate").double().train()
    with torch.no_grad():
        training.log_q.copy_(as_tensor(log_q))
    above, below = (part.detach().numpy() for part in training.weights())
    r = above[None, :] / below[:, None]
    assert (r * r.T).min() < 1e-2  # the surrogate is unsound in training, as the paper says of it


def test_the_surrogate_of_a_norm_is_a_close_estimate_from_below_with_the_gradient_of_the_norm():
    torch.manual_seed(5)
    for n, m in ((7, 5), (5, 7), (6, 6)):
        weight = torch.randn(n, m, dtype=torch.float64, requires_grad=True)
        columns = dense_columns(weight)
        estimate, _ = squared_norm_estimate(columns, iterate_of(columns), 128)
        (gradient,) = torch.autograd.grad(estimate.sum(), weight)
        left, singular, right = np.linalg.svd(weight.detach().numpy())
        value = estimate.item()
        assert value <= singular[0] ** 2 * (1 + ROUNDING)
        gap = (singular[1] / singular[0]) ** 2  # 128 steps leave gap¹²⁸ of the second singular vector
        assert value >= singular[0] ** 2 * (1 - 100 * gap**256 - ROUNDING)
        theirs = 2 * singular[0] * np.outer(left[:, 0], right[0])
        assert np.abs(gradient.numpy() - theirs).max() <= 100 * singular[0] * gap**128 + ROUNDING * singular[0]
    for columns in (
        residual_columns(torch.randn(4, 3, 3, 3, dtype=torch.float64), (1, 1)),
        affine_columns(torch.randn(4, 3, 3, 3, dtype=torch.float64), (2, 2), 1),
    ):
        true = max(np.linalg.norm(m, 2) ** 2 for m in symbol(columns, (60, 60))[0].numpy())
        estimate = float(squared_norm_estimate(columns, iterate_of(columns), 300)[0])
        # A point of the grid is within π/8 of the maximum; there cos² of that is left on each axis (Riesz).
        assert math.cos(math.pi / 8) ** 4 * true <= estimate <= true * 1.01  # 60 points: cos²(π/60) twice


def test_a_spectral_surrogate_is_refused_in_training_and_exact_in_evaluation():
    torch.manual_seed(6)
    layer = lc.ResidualConv2d(2, 3, bound="spectral_surrogate")
    exact = lc.ResidualConv2d(2, 3, bound="spectral")
    exact.load_state_dict(layer.state_dict())
    x = torch.rand(2, 2, 6, 6)
    with pytest.raises(lc.NotCertified, match="from below"):
        layer.train().lipschitz_bound()
    assert not torch.equal(layer(x), exact(x))
    assert torch.equal(layer.eval()(x), exact.eval()(x))
    assert layer.lipschitz_bound() == exact.lipschitz_bound()


def test_a_one_sided_clamp_breaks_the_bound_and_a_two_sided_one_does_not():
    limit, gap = 1.0, 6.0
    w, gram = np.ones((1, 2)), np.ones((2, 2))
    difference = np.array([[0.0, gap], [-gap, 0.0]])
    one_sided = np.exp(np.minimum(difference, limit))
    two_sided = np.exp(np.clip(difference, -limit, limit))
    assert dominated(w, row_sums(gram * one_sided)) > 1.2
    assert dominated(w, row_sums(gram * two_sided)) <= 1 + ROUNDING


# ---------------------------------------------------------------- the erratum


def erratum_cases():
    rng = np.random.default_rng(19)
    orthonormal = np.linalg.qr(rng.standard_normal((8, 6)))[0]
    yield orthonormal, np.full(6, 1e-9)  # all q tiny: T is 1000 times too small
    one = np.ones(6)
    one[2] = 1e-9
    yield orthonormal, one  # one tiny q is enough
    block = np.linalg.qr(rng.standard_normal((8, 6)))[0]
    block[:, 0] *= 1e-6
    yield block, np.full(6, 1e-9)
    yield rng.standard_normal((2, 1)), np.full(1, 1e-9)


def test_the_erratum_form_is_refuted_and_the_three_corrections_hold_on_the_same_parameters():
    for w, q in erratum_cases():
        m, n = w.shape
        broken = (np.abs(w.T @ w) * q[None, :] / (q[:, None] + 1e-6)).sum(axis=1)
        v = w / np.sqrt(broken)
        assert norm(np.eye(m) - 2 * v @ v.T) > 1000  # the Jacobian where every neuron is active
        assert norm(v) > 30  # the affine form
        x, y = np.zeros((1, m)), 1e-3 * np.linalg.svd(v)[0][:, [0]].T  # a step along the worst direction
        for form, training in (("exp", False), ("shifted", False), ("surrogate", False), ("surrogate", True)):
            layer = lc.ResidualLinear(m, n, bound=lc.bounds.SLL(n, form))
            set_parameters(layer, weight=w.T, bias=np.full(n, 100.0), log_q=np.log(q)).train(training)
            jacobian = norm(jacobian_of(layer, np.zeros(m)))
            moved = np.linalg.norm(outputs(layer, x) - outputs(layer, y)) / np.linalg.norm(x - y)
            if training:  # the surrogate is the erratum's form: it must not be certified, and is not
                assert jacobian > 1000
                assert moved > 1000
                with pytest.raises(lc.NotCertified):
                    layer.lipschitz_bound()
                with pytest.raises(lc.NotCertified):
                    lc.lipschitz_bound(torch.nn.Sequential(layer))
            else:
                assert jacobian <= 1 + ROUNDING
                # Both outputs are rounded relative to their size, 200/‖w_i‖ at most, over a step of 1e-3.
                assert moved <= 1 + 64 * EPS * np.abs(outputs(layer, x)).max() / 1e-3
                assert layer.lipschitz_bound() == 1.0


# ---------------------------------------------------------------- SLL is residual AOL of scaled columns


@pytest.mark.parametrize("sigma", ["relu", "leaky_relu"])
def test_sll_is_residual_aol_of_scaled_columns_for_homogeneous_activations(sigma):
    """SLL(W, q, b) ≡ residual AOL(W·diag q, q∘b): for them q adds no functions."""
    rng = np.random.default_rng(20)
    for reach in (0.5, 3.0, 9.0):
        for m, n in ((5, 4), (3, 6)):
            w, b, q = rng.standard_normal((m, n)), rng.standard_normal(n), np.exp(rng.uniform(-reach, reach, n))
            sll = lc.ResidualLinear(m, n, bound="sll", activation=sigma)
            aol = lc.ResidualLinear(m, n, bound="aol", activation=sigma)
            set_parameters(sll, weight=w.T, bias=b, log_q=np.log(q))
            set_parameters(aol, weight=(w * q).T, bias=b * q)
            x = rng.standard_normal((32, m)) * 3
            np.testing.assert_allclose(outputs(sll, x), outputs(aol, x), rtol=0, atol=16 * ROUNDING)
        k, b, q = rng.standard_normal((3, 2, 3, 3)), rng.standard_normal(3), np.exp(rng.uniform(-reach, reach, 3))
        for stride, mode in ((1, "zeros"), (2, "zeros"), (1, "circular"), (2, "circular")):
            pair = [
                lc.ResidualConv2d(2, 3, 3, stride=stride, padding_mode=mode, bound=bound, activation=sigma)
                for bound in ("sll", "aol")
            ]
            set_parameters(pair[0], weight=k, bias=b, log_q=np.log(q))
            set_parameters(pair[1], weight=k * q[:, None, None, None], bias=b * q)
            x = rng.standard_normal((4, 2, 6, 6))
            np.testing.assert_allclose(outputs(pair[0], x), outputs(pair[1], x), rtol=0, atol=16 * ROUNDING)


@pytest.mark.parametrize("sigma", ["tanh", "sigmoid", "softplus", "elu"])
def test_sll_is_not_residual_aol_for_other_activations(sigma):
    rng = np.random.default_rng(21)
    w, b, q = rng.standard_normal((5, 4)), rng.standard_normal(4), np.exp(rng.uniform(-2, 2, 4))
    sll = lc.ResidualLinear(5, 4, bound="sll", activation=sigma)
    aol = lc.ResidualLinear(5, 4, bound="aol", activation=sigma)
    set_parameters(sll, weight=w.T, bias=b, log_q=np.log(q))
    set_parameters(aol, weight=(w * q).T, bias=b * q)
    x = rng.standard_normal((32, 5))
    assert np.abs(outputs(sll, x) - outputs(aol, x)).max() > 1e-2


# ---------------------------------------------------------------- Theorem 4


def feasible(rng, k, m, n):
    """(H, G, W, λ) on the boundary of Theorem 4's condition: any [H G] shrunk until it fits under M."""
    w = rng.standard_normal((m, n))
    lam = rng.uniform(0.1, 1.0, n)
    lam *= rng.uniform(0.2, 1.9) / norm(w * np.sqrt(lam)) ** 2  # 2Λ − ΛWᵀWΛ ≻ 0 ⇔ ‖WΛ^½‖² < 2
    right = np.block([[np.eye(m), -w * lam], [-(w * lam).T, 2 * np.diag(lam)]])
    values, vectors = np.linalg.eigh(right)
    root = vectors / np.sqrt(values)  # M^(−½) up to a rotation
    hg = rng.standard_normal((k, m + n)) * rng.exponential(1.0, m + n)
    hg /= norm(hg @ root)
    return hg[:, :m], hg[:, m:], w, lam


def holds(*parts):
    return lmi.holds(lmi.theorem4_matrix(*(as_tensor(part) for part in parts)))


def test_theorem_4_feasible_layers_have_jacobians_of_norm_at_most_1():
    rng = np.random.default_rng(22)
    closest = 0.0
    for k, m, n in itertools.product((1, 3, 7), (1, 4), (1, 5)):
        for _ in range(10):
            h, g, w, lam = feasible(rng, k, m, n)
            # M is inverted: the rounding grows with its condition number, below 1e4 here.
            slack = ROUNDING * 1e4
            assert holds(h * (1 - slack), g * (1 - slack), w, lam)
            worst = max(norm(h + (g * d) @ w.T) for d in slopes(rng, n))
            closest = max(closest, worst)
            assert worst <= 1 + slack
            x, y, b = rng.standard_normal((50, m)), rng.standard_normal((50, m)), rng.standard_normal(n)
            for sigma in ("relu", "tanh", "sigmoid"):
                hx, hy = (z @ h.T + SIGMAS[sigma](z @ w + b) @ g.T for z in (x, y))
                moved = np.linalg.norm(hx - hy, axis=1)
                assert (moved <= (1 + slack) * np.linalg.norm(x - y, axis=1) + slack).all()
    assert closest > 0.99  # the condition is not vacuous


def test_theorem_4_infeasible_parts_are_rejected():
    rng = np.random.default_rng(23)
    for k, m, n in itertools.product((1, 3), (2, 4), (1, 5)):
        h, g, w, lam = feasible(rng, k, m, n)
        assert holds(h * (1 - 1e-6), g * (1 - 1e-6), w, lam)
        assert not holds(h * (1 + 1e-6), g * (1 + 1e-6), w, lam)
        assert not holds(2 * np.eye(m), np.zeros((m, n)), w, lam)  # ‖H‖ = 2
        assert not holds(np.zeros((k, m)), np.zeros((k, n)), w, -lam)  # a negative multiplier
        assert not holds(np.zeros((k, m)), np.zeros((k, n)), w, lam * 100)  # 2Λ − ΛWᵀWΛ is not ⪰ 0
        assert not holds(h * math.nan, g, w, lam)


def test_theorem_4_with_h_zero_is_fazlyabs_condition():
    """(α, β, W⁰, W¹) = (0, 1, Wᵀ, G), ρ = 1: [[−2αβW⁰ᵀΛW⁰ − I, (α+β)W⁰ᵀΛ], [·, −2Λ + W¹ᵀW¹]] ⪯ 0."""
    rng = np.random.default_rng(24)
    verdicts = set()
    for m, n, k in ((3, 4, 2), (5, 2, 5), (1, 3, 1)):
        for size in (0.1, 0.5, 1.0, 3.0):
            w, g = rng.standard_normal((m, n)) * size, rng.standard_normal((k, n)) * size
            lam = rng.uniform(0, 1, n)
            w0, alpha, beta = w.T, 0.0, 1.0
            corner = -2 * alpha * beta * w0.T @ np.diag(lam) @ w0 - np.eye(m)
            cross = (alpha + beta) * w0.T @ np.diag(lam)
            fazlyab = np.block([[corner, cross], [cross.T, -2 * np.diag(lam) + g.T @ g]])
            ours = lmi.theorem4_matrix(*(as_tensor(part) for part in (np.zeros((k, m)), g, w, lam))).numpy()
            # Two ways to the same sums of at most 5 products.
            np.testing.assert_allclose(ours, -fazlyab, rtol=0, atol=16 * EPS * max(1, np.abs(fazlyab).max()))
            verdict = np.linalg.eigvalsh(fazlyab)[-1] <= 0
            assert holds(np.zeros((k, m)), g, w, lam) == verdict
            verdicts.add(bool(verdict))
    assert verdicts == {True, False}


def test_theorem_4_with_h_identity_is_the_condition_of_theorem_1():
    rng = np.random.default_rng(25)
    for w in weights(rng):
        m, n = w.shape
        w = w / np.linalg.norm(w, axis=0)
        for shape in (np.ones(n), rng.uniform(0.5, 2.0, n)):
            tight = shape * norm(w / np.sqrt(shape)) ** 2
            for factor in (0.5, 0.99, 1 - 1e-9, 1 + 1e-9, 1.01, 2.0):
                t = factor * tight
                lam = 2 / t
                h, g = (part.numpy() for part in lmi.residual_parts(as_tensor(w), as_tensor(lam)))
                np.testing.assert_array_equal(h, np.eye(m))
                # G = −WΛ = −2WT⁻¹, by one division or by two roundings.
                np.testing.assert_allclose(g, -2 * w / t, rtol=4 * EPS)
                assert holds(h, g, w, lam) == (factor > 1)
                assert lmi.holds(lmi.condition_matrix(as_tensor(w), as_tensor(t))) == (factor > 1)
                assert not holds(h, g * 1.01, w, lam)  # H = I forces G = −WΛ


def test_theorem_4_general_layers_satisfy_the_condition():
    """H, G are read off the layer's outputs: h(x) = Hx where no neuron is active, h(0) = G e_i where b = e_i."""
    rng = np.random.default_rng(26)
    for m, n, k in ((3, 4, 2), (4, 3, 9), (5, 5, 5), (2, 6, 1)):
        for scale, reach in ((1.0, 1.0), (1e-8, 4.0), (1e8, 0.0)):
            w, log_q = rng.standard_normal((m, n)) * scale, rng.uniform(-reach, reach, n)
            layer = lc.GeneralLinear(m, n, k, bound="sll")
            with torch.no_grad():
                layer.mixing.copy_(torch.from_numpy(rng.standard_normal((k, m + n))))
            set_parameters(layer, weight=w.T, bias=np.full(n, -1e3 * scale), log_q=log_q)
            h = matrix_of(layer, (m,))
            columns = []
            for i in range(n):
                set_parameters(layer, weight=w.T, bias=np.eye(n)[i] * scale)
                columns.append(outputs(layer, np.zeros((1, m)))[0])
            g = np.stack(columns, axis=1)  # h(0) = G·(scale·e_i): G of the same layer written with W/scale
            lam = 1 / row_sums(w.T @ w / scale**2, np.exp(log_q))
            # Freezing rounds: H and G satisfy the condition after shrinking by their own rounding.
            assert holds(h * (1 - ROUNDING), g * (1 - ROUNDING), w / scale, lam)
            assert norm(np.hstack([h, g / np.sqrt(2 * lam)])) > 0.1  # not the zero map
            for d in slopes(rng, n):
                assert norm(h + (g * d) @ w.T / scale) <= 1 + ROUNDING


# ---------------------------------------------------------------- Theorem 6


def test_a_matrix_that_is_not_symmetric_or_overflows_does_not_hold():
    assert not lmi.holds(torch.tensor([[1.0, 100.0], [0.0, 1.0]]).double())
    assert not lmi.holds(torch.diag(torch.tensor([1e200, -1e200])).double())


def test_theorem_6_zero_gamma_is_allowed():
    rng = np.random.default_rng(27)
    for w in weights(rng):
        w = w / np.linalg.norm(w, axis=0)
        m, n = w.shape
        for dropped in range(2 ** min(n, 4)):
            keep = np.array([not dropped >> i & 1 for i in range(n)], float)
            for t in (row_sums(w.T @ w), row_sums((w * keep).T @ (w * keep)) + (1 - keep)):
                gamma = keep / t * (1 - ROUNDING)  # off the boundary by the rounding of Γ − ΓGΓ
                matrix = lmi.singular_condition_matrix(as_tensor(w), as_tensor(gamma))
                explicit = np.diag(gamma) - np.diag(gamma) @ w.T @ w @ np.diag(gamma)
                np.testing.assert_allclose(matrix.numpy(), explicit, rtol=0, atol=16 * EPS)
                assert lmi.holds(matrix)
                v = w * np.sqrt(gamma)
                assert norm(v) <= 1 + ROUNDING
                for d in slopes(rng, n):
                    assert norm(np.eye(m) - 2 * (v * d) @ v.T) <= 1 + ROUNDING
        too_large = 1.01 / np.full(n, norm(w) ** 2)
        assert not lmi.holds(lmi.singular_condition_matrix(as_tensor(w), as_tensor(too_large)))


def with_zero_columns(w, where):
    return np.insert(w, where, 0.0, axis=1)


BOUNDS_WITH_Q = {
    "spectral": lambda n: lc.bounds.Spectral(),
    "aol": lambda n: lc.bounds.AOL(),
    "sll": lambda n: lc.bounds.SLL(n),
    "shifted": lambda n: lc.bounds.SLL(n, "shifted"),
    "surrogate": lambda n: lc.bounds.SLL(n, "surrogate"),
    "rescaled": lambda n: lc.bounds.Rescaled(n, 1),
    "rescaled3": lambda n: lc.bounds.Rescaled(n, 3),
}


@pytest.mark.parametrize("bound", list(BOUNDS_WITH_Q))
def test_theorem_6_a_zero_column_is_as_if_it_were_not_there(bound):
    rng = np.random.default_rng(28)
    make = BOUNDS_WITH_Q[bound]
    for where in ([0], [1, 3], [0, 0, 3]):  # np.insert positions in the columns that remain
        n, extra = 3, 3 + len(where)
        w, b, log_q = rng.standard_normal((8, n)), rng.standard_normal(n), rng.uniform(-3, 3, n)
        fuller = np.insert(b, where, 5.0), np.insert(log_q, where, rng.uniform(-30, 30, len(where)))
        has_q = hasattr(make(1), "log_q")
        small, large = (lc.ResidualLinear(8, size, bound=make(size)) for size in (n, extra))
        set_parameters(small, weight=w.T, bias=b, log_q=log_q if has_q else None)
        set_parameters(
            large, weight=with_zero_columns(w, where).T, bias=fuller[0], log_q=fuller[1] if has_q else None
        )
        x = rng.standard_normal((16, 8))
        # The same sums with zeros among the terms: only their order may differ.
        np.testing.assert_allclose(outputs(large, x), outputs(small, x), rtol=0, atol=64 * EPS)
        small, large = (lc.AffineLinear(size, 8, bound=make(size), bias=False) for size in (n, extra))
        set_parameters(small, weight=w, log_q=log_q if has_q else None)
        set_parameters(large, weight=with_zero_columns(w, where), log_q=fuller[1] if has_q else None)
        expected = with_zero_columns(matrix_of(small, (n,)), where)
        np.testing.assert_allclose(matrix_of(large, (extra,)), expected, rtol=0, atol=64 * EPS)
        k = rng.standard_normal((n, 4, 3, 3))
        small, large = (lc.ResidualConv2d(4, size, bound=make(size)) for size in (n, extra))
        set_parameters(small, weight=k, bias=b, log_q=log_q if has_q else None)
        set_parameters(
            large, weight=np.insert(k, where, 0.0, axis=0), bias=fuller[0], log_q=fuller[1] if has_q else None
        )
        x = rng.standard_normal((2, 4, 5, 5))
        # A Fourier transform between the weight and T (Spectral, Rescaled) is good to a few hundred eps.
        np.testing.assert_allclose(outputs(large, x), outputs(small, x), rtol=0, atol=1024 * EPS)
        assert np.isfinite(outputs(large, x)).all()


@pytest.mark.parametrize("bound", list(BOUNDS_WITH_Q))
def test_theorem_6_a_zero_weight_is_the_identity_or_the_bias(bound):
    make = BOUNDS_WITH_Q[bound]
    x = np.random.default_rng(29).standard_normal((3, 4))
    layer = set_parameters(lc.ResidualLinear(4, 3, bound=make(3)), weight=np.zeros((3, 4)), bias=np.ones(3))
    np.testing.assert_array_equal(outputs(layer, x), x)
    layer = set_parameters(lc.AffineLinear(4, 2, bound=make(4)), weight=np.zeros((2, 4)), bias=np.ones(2))
    np.testing.assert_array_equal(outputs(layer, x), np.ones((3, 2)))


# ---------------------------------------------------------------- Rescaled (Löwner–Heinz)


def dense_diagonal(bound, w, log_q):
    """T of a bound, from the matrix of an affine layer: T_i = ‖w_i‖²/‖v_i‖²."""
    m, n = w.shape
    layer = set_parameters(lc.AffineLinear(n, m, bound=bound, bias=False), weight=w, log_q=log_q)
    v = matrix_of(layer, (n,))
    return np.linalg.norm(w, axis=0) ** 2 / np.linalg.norm(v, axis=0) ** 2


def test_rescaled_dominates_the_gram_at_every_order_for_any_q():
    rng = np.random.default_rng(30)
    for w in weights(rng):
        n = w.shape[1]
        for q in positive_vectors(rng, n):
            for order in (1, 2, 3, 5, 8):
                layer = lc.AffineLinear(n, len(w), bound=lc.bounds.Rescaled(n, order), bias=False)
                set_parameters(layer, weight=w, log_q=np.log(q))
                # q_j/q_i up to 1e9 is a condition number that the 2^k-th root takes back.
                assert norm(matrix_of(layer, (n,))) <= 1 + ROUNDING, order


def test_rescaled_of_order_zero_is_sll_and_of_large_order_approaches_spectral():
    rng = np.random.default_rng(31)
    for m, n in ((6, 4), (4, 6), (5, 5)):
        w, log_q = rng.standard_normal((m, n)), rng.uniform(-1, 1, n)
        sll = dense_diagonal(lc.bounds.SLL(n), w, log_q)
        np.testing.assert_allclose(dense_diagonal(lc.bounds.Rescaled(n, 0), w, log_q), sll, rtol=8 * EPS)
        exact = norm(w) ** 2
        largest = np.abs(np.linalg.svd(w)[2][0])  # the leading right singular vector, |v_i|
        q = np.exp(log_q)
        previous = math.inf
        for order in range(9):
            t = dense_diagonal(lc.bounds.Rescaled(n, order), w, log_q)
            np.testing.assert_allclose(t, power_diagonal(w.T @ w, q, order), rtol=1e-12)
            # G^(2^k) → ‖G‖^(2^k) vvᵀ, so T_i/‖W‖² → (|v_i| Σ_j |v_j| q_j/q_i)^(1/2^k) → 1.
            assert t.max() >= exact * (1 - ROUNDING)
            farthest = np.abs(np.log(t / exact)).max()
            previous = min(previous, farthest)
        limit = (largest * (largest * q).sum() / q) ** (0.5**8)
        np.testing.assert_allclose(t / exact, limit, rtol=1e-6)
        assert previous == farthest < 0.03  # the last order is the closest


def conv_diagonal(bound, k, log_q, image, stride=(1, 1)):
    """T per input channel of an affine circular convolution, from its matrix."""
    out, channels = k.shape[:2]
    pad = tuple((side - 1) // 2 for side in k.shape[2:])
    layer = lc.AffineConv2d(
        channels, out, k.shape[2:], stride=stride, padding=pad, padding_mode="circular", bound=bound, bias=False
    )
    set_parameters(layer, weight=k, log_q=log_q)
    w = convolution_matrix(k, image, stride, pad, "circular")
    v = matrix_of(layer, (channels, *image))
    squares = [(a**2).reshape(len(a), channels, -1).sum(axis=(0, 2)) for a in (w, v)]
    return squares[0] / squares[1], w


@pytest.mark.parametrize(("kernel", "stride"), [((1, 3), (1, 1)), ((3, 3), (1, 1)), ((1, 4), (1, 2))])
def test_rescaled_convolutions_use_the_uncropped_powers(kernel, stride):
    rng = np.random.default_rng(32)
    for order in (1, 2):
        if kernel == (3, 3) and order == 2:
            continue  # the explicit matrix would have 600 rows for every entry of the power
        # Large enough that no lag of the power wraps onto another.
        image = tuple(
            1 if side == 1 else s * (2 ** (order + 1) * math.ceil((side - 1) / s) + 1)
            for side, s in zip(kernel, stride, strict=True)
        )
        for _ in range(4):
            k, log_q = rng.standard_normal((3, 2, *kernel)), rng.uniform(-2, 2, 2)
            t, w = conv_diagonal(lc.bounds.Rescaled(2, order), k, log_q, image, stride)
            q = np.repeat(np.exp(log_q), math.prod(image))
            expected = per_channel(power_diagonal(w.T @ w, q, order), image, stride)
            np.testing.assert_allclose(t, expected, rtol=1e-12)


def test_rescaled_with_cropped_powers_is_refuted():
    """Cropping the autocorrelations to the kernel's lags, as a 'same' convolution does, loses the guarantee."""
    worst = {"cropped": 0.0, "whole": 0.0}
    rng = np.random.default_rng(33)
    for _ in range(200):
        k = rng.choice([-1.0, 1.0], 3) * rng.uniform(0.2, 1, 3)
        lags = np.correlate(k, k, "full")  # 5 lags
        power = np.convolve(lags, lags)  # 9 lags of WᵀWWᵀW
        exact = np.abs(np.fft.fft(k, 4096)).max() ** 2  # ‖W‖² on a long line
        worst["cropped"] = max(worst["cropped"], exact / np.abs(power[2:-2]).sum() ** 0.5)
        worst["whole"] = max(worst["whole"], exact / np.abs(power).sum() ** 0.5)
        layer_t, w = conv_diagonal(lc.bounds.Rescaled(1, 1), k.reshape(1, 1, 1, 3), np.zeros(1), (1, 31))
        assert layer_t[0] >= norm(w) ** 2 * (1 - ROUNDING)
        assert layer_t[0] == pytest.approx(np.abs(power).sum() ** 0.5, rel=1e-12)
    assert worst["cropped"] > 1.01
    assert worst["whole"] <= 1 + ROUNDING


# ---------------------------------------------------------------- SOC: orders of the exponential series


def cut_series(theta, order):
    """|Σ_{j ≤ order} (iθ)^j/j!|: the norm of the cut series on a rotation by θ."""
    return np.abs(sum((1j * theta) ** j / math.factorial(j) for j in range(order + 1)))


def test_soc_series_is_a_contraction_at_the_orders_of_the_library_and_at_no_other():
    theta = np.linspace(0, CONTRACTING_ANGLE, 20001)
    assert CONTRACTING_ANGLE >= 1.7
    for order in range(1, 14):
        largest = cut_series(theta, order).max()
        if order in CONTRACTING_ORDERS:
            assert largest <= 1 + 4 * EPS  # thirteen terms that sum to about 1
        elif order < 13:  # the first term left out points outwards
            assert largest > 1 + 1e-8, order
    assert set(CONTRACTING_ORDERS) == {3, 4, 7, 8, 11, 12}
    assert cut_series(np.array([1.8]), 3)[0] > 1.002  # √3 is where order 3 ends


def test_soc_series_of_the_library_is_a_contraction_and_refuses_the_other_orders():
    rng = np.random.default_rng(34)
    for n in (1, 2, 5, 8):
        free = rng.standard_normal((n, n))
        skew = free - free.T
        size = max(norm(skew), 1e-300)
        for angle in (1e-8, 0.1, 1.0, CONTRACTING_ANGLE):
            a = skew * angle / size
            for order in range(1, 14):
                if order in CONTRACTING_ORDERS:
                    ours = exponential_series(as_tensor(a), order).numpy()
                    direct = sum(np.linalg.matrix_power(a, j) / math.factorial(j) for j in range(order + 1))
                    np.testing.assert_allclose(ours, direct, rtol=0, atol=64 * EPS)
                    assert norm(ours) <= 1 + 64 * EPS
                else:
                    with pytest.raises(ValueError, match="order"):
                        exponential_series(as_tensor(a), order)


def test_the_surrogate_of_a_wide_norm_is_within_a_hundredth_of_it():
    torch.manual_seed(7)
    for n, m in ((300, 500), (500, 300), (400, 400)):  # Gaussian: no gap between the singular values
        columns = dense_columns(torch.randn(n, m, dtype=torch.float64))
        estimate = float(squared_norm_estimate(columns, iterate_of(columns), 100)[0])
        true = float(torch.linalg.matrix_norm(columns.matrix(), 2)) ** 2
        assert 0.99 * true <= estimate <= true * (1 + ROUNDING)
    zero = dense_columns(torch.zeros(30, 20))
    estimate, after = squared_norm_estimate(zero, iterate_of(zero), 3)
    assert float(estimate) == 0
    assert torch.equal(after, iterate_of(zero))
