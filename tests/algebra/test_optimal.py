"""Equation AOLplus: γ is feasible, the objective is the solvers', and the gap is the truth."""

import math

import clarabel  # noqa: F401 (cvxpy finds it by name)
import cvxpy as cp
import numpy as np
import pytest
import torch

from lipcert.algebra.optimal import _dual_bound, optimal_gamma

OBJECTIVES = ("trace", "frobenius")


def gaussian(n, m, seed=0):
    return torch.randn(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def decaying(n, m, power=1.0, seed=0):  # singular values k^(−power), as training leaves them
    k = min(n, m)
    left, right = (torch.linalg.qr(gaussian(size, k, seed + i)).Q for i, size in enumerate((n, m)))
    return (left * torch.arange(1, k + 1, dtype=torch.float64) ** -power) @ right.T


def with_zeros():
    weight = gaussian(12, 9)
    weight[::3] = 0
    return weight


HOSTILE = {
    "square": gaussian(16, 16),
    "m<n": gaussian(24, 8),
    "m>n": gaussian(8, 24),
    "n=1": gaussian(1, 5),
    "m=1": gaussian(7, 1),
    "n=m=1": torch.tensor([[-3.0]]),
    "orthogonal": torch.linalg.qr(gaussian(10, 10)).Q,
    "zero columns": with_zeros(),
    "norms 1e-8 to 1e8": gaussian(17, 17) * torch.logspace(-8, 8, 17, dtype=torch.float64)[:, None],
    "norms 1e-140 to 1e140": gaussian(9, 9) * torch.logspace(-140, 140, 9, dtype=torch.float64)[:, None],
    "duplicates": torch.cat([gaussian(8, 8), -gaussian(8, 8), 1e5 * gaussian(8, 8)]),
    "almost duplicates": torch.cat([gaussian(8, 8), gaussian(8, 8) + 1e-9 * gaussian(8, 8, 1)]),
    "rank 1": torch.outer(gaussian(1, 9)[0], gaussian(1, 7, 1)[0]),
    "rank 3": gaussian(15, 3) @ gaussian(3, 12, 1),
    "singular values to 1e-12": decaying(30, 30, 8.0),
    "trained-like": decaying(40, 40),
    "all columns close": 1 + 0.01 * gaussian(20, 20),
    "float16": gaussian(8, 8).half(),
}
hostile = pytest.mark.parametrize("weight", HOSTILE.values(), ids=HOSTILE.keys())
both = pytest.mark.parametrize("objective", OBJECTIVES)


def unit(weight):  # ŵ_i as rows and ‖w_i‖; a zero row stays zero
    norms = torch.linalg.vector_norm(weight.double(), dim=1)
    return weight.double() / torch.where(norms > 0, norms, 1.0)[:, None], norms


def evaluate(weight, gamma, objective):
    """(objective, λmax(Γ^½GΓ^½)) of any γ, from their definitions."""
    rows, norms = unit(weight)
    scaled = rows * (gamma.sqrt() * norms)[:, None]  # Γ^½Wᵀ
    K = scaled @ scaled.T
    deviation = torch.eye(len(gamma), dtype=torch.float64) - K
    value = deviation.trace() if objective == "trace" else deviation.square().sum()
    return value.item(), torch.linalg.eigvalsh(K)[-1].item()


def reference(weight, objective, solver, **options):
    """The optimum by a general solver, in the columns as they are (Gaussian: well scaled)."""
    W, n = weight.numpy().T, len(weight)
    gamma = cp.Variable(n, nonneg=True)
    trace = np.square(W).sum(0) @ gamma
    root = np.linalg.cholesky(np.square(W.T @ W)).T  # ‖Γ^½GΓ^½‖_F² = γᵀ(G∘G)γ = ‖root γ‖²
    value = n - trace if objective == "trace" else n - 2 * trace + cp.sum_squares(root @ gamma)
    problem = cp.Problem(cp.Minimize(value), [np.eye(len(W)) - W @ cp.diag(gamma) @ W.T >> 0])
    problem.solve(solver=solver, **options)
    assert problem.status == cp.OPTIMAL
    return problem.value


@hostile
@both
def test_feasible_and_as_good_as_asked(weight, objective):
    solution = optimal_gamma(weight, objective=objective, gap=1e-3)
    value, rho = evaluate(weight, solution.gamma, objective)
    assert solution.gamma.dtype == torch.float64
    assert solution.gamma.isfinite().all()
    assert solution.gamma.min() >= 0
    assert rho <= 1  # no tolerance: the margin exceeds what eigvalsh can err by
    assert solution.objective == pytest.approx(value, rel=1e-11, abs=1e-11 * len(weight))
    assert 0 <= solution.gap <= 1e-3


@hostile
@both
def test_never_worse_than_aol_or_spectral(weight, objective):
    n = len(weight)
    G = weight.double() @ weight.double().T
    rivals = (1 / G.abs().sum(dim=1), torch.ones(n, dtype=torch.float64) / torch.linalg.eigvalsh(G)[-1])
    solution = optimal_gamma(weight, objective=objective)
    for gamma in rivals:
        rival, _ = evaluate(weight, torch.where(gamma.isfinite(), gamma, 0.0), objective)
        assert solution.objective <= rival + solution.gap * (n - rival) + 1e-11 * n


@both
@pytest.mark.parametrize(("n", "m"), [(1, 3), (6, 6), (12, 20), (20, 10)])
def test_agrees_with_clarabel(n, m, objective):
    weight = gaussian(n, m, seed=n)
    best = reference(weight, objective, cp.CLARABEL)
    for gap in (0.3, 1e-2, 1e-6):
        solution = optimal_gamma(weight, objective=objective, gap=gap)
        assert solution.gap <= gap
        assert -1e-6 * n <= solution.objective - best <= solution.gap * (n - best) + 1e-6 * n


@both
def test_agrees_with_scs(objective):
    weight = gaussian(64, 48)
    best = reference(weight, objective, cp.SCS, eps=1e-5)
    solution = optimal_gamma(weight, objective=objective, gap=1e-6)
    assert solution.objective == pytest.approx(best, abs=1e-3)


@both
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_stopping_early_is_feasible_and_the_gap_stays_honest(steps, objective):
    for weight in (gaussian(20, 20), decaying(20, 20), gaussian(9, 30)):
        n = len(weight)
        best = optimal_gamma(weight, objective=objective, gap=1e-8).objective
        early = optimal_gamma(weight, objective=objective, gap=1e-8, max_iterations=steps)
        assert early.iterations == steps
        assert early.gap > 1e-8
        assert evaluate(weight, early.gamma, objective)[1] <= 1
        assert best - 1e-7 * n <= early.objective <= best + early.gap * (n - best)


@both
def test_the_dual_bound_holds_whatever_the_method_proposes(objective):
    rows, _ = unit(gaussian(15, 11))
    W, n = rows.T, 15
    a, H = (2.0, (W.T @ W).square()) if objective == "frobenius" else (1.0, torch.zeros(n, n, dtype=torch.float64))
    value = n - optimal_gamma(rows, objective=objective, gap=1e-8).objective
    feasible = 1 / (W.T @ W).abs().sum(dim=1)
    for seed in range(30):
        B = gaussian(1 + seed % 11, 11, seed)
        for gamma in (feasible, torch.zeros(n, dtype=torch.float64), feasible * gaussian(1, n, seed)[0].sigmoid()):
            assert _dual_bound(B, W, a, H, gamma) >= value
    assert _dual_bound(B * math.nan, W, a, H, feasible) >= 11  # nothing is proved beyond min(m, n)
    assert _dual_bound(B * 0, W, a, H, feasible) >= 11


@both
@pytest.mark.parametrize("cosine", [-1.0, -0.7, 0.0, 1e-9, 0.5, 0.999, 1.0])
def test_two_columns_have_a_closed_form(cosine, objective):
    """By symmetry and convexity both γ̂ are 1/(1 + |c|), and Γ^½GΓ^½ has eigenvalues 1 and κ = (1−|c|)/(1+|c|)."""
    sine = math.sqrt(1 - cosine**2)
    weight = torch.tensor([[3.0, 0.0], [0.1 * cosine, 0.1 * sine]], dtype=torch.float64)
    kappa = (1 - abs(cosine)) / (1 + abs(cosine))
    solution = optimal_gamma(weight, objective=objective, gap=1e-7)
    assert solution.objective == pytest.approx(1 - kappa if objective == "trace" else (1 - kappa) ** 2, abs=1e-6)


@both
def test_orthogonal_columns_are_left_alone(objective):
    norms = torch.tensor([1e-6, 0.5, 1.0, 7.0, 1e6], dtype=torch.float64)
    weight = torch.linalg.qr(gaussian(9, 5)).Q.T * norms[:, None]
    solution = optimal_gamma(weight, objective=objective)
    assert torch.allclose(solution.gamma * norms**2, torch.ones(5, dtype=torch.float64), rtol=1e-11, atol=0)
    assert solution.gap < 1e-11


@both
def test_norms_of_columns_do_not_matter(objective):
    weight = gaussian(12, 10)
    scale = 2.0 ** torch.randint(-30, 30, (12,)).double()  # exact, hence the same floats throughout
    plain, scaled = (optimal_gamma(w, objective=objective) for w in (weight, weight * scale[:, None]))
    assert torch.equal(plain.gamma, scaled.gamma * scale**2)
    assert (plain.objective, plain.gap) == (scaled.objective, scaled.gap)


@both
def test_zero_columns_change_nothing_else(objective):
    weight = with_zeros()
    alive = weight.abs().sum(dim=1) > 0
    solution, smaller = (optimal_gamma(w, objective=objective) for w in (weight, weight[alive]))
    assert torch.equal(solution.gamma[alive], smaller.gamma)
    assert solution.gamma[~alive].eq(0).all()
    assert solution.objective == pytest.approx(smaller.objective + int((~alive).sum()), rel=1e-14)


@both
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (3, 4)])
def test_nothing_to_optimize(shape, objective):
    solution = optimal_gamma(torch.zeros(shape), objective=objective)
    assert solution.gamma.shape == shape[:1]
    assert solution.gamma.eq(0).all()
    assert (solution.objective, solution.gap) == (shape[0], 0)


@both
def test_columns_beyond_float64_are_dropped_and_paid_for(objective):
    """γ = 1/‖w‖² would overflow or vanish: γ_i = 0, and the gap counts what that may have cost."""
    weight = torch.tensor([[1.0, 0.0], [0.0, 1e-200], [0.0, 5e-324], [1e300, 1e300]], dtype=torch.float64)
    solution = optimal_gamma(weight, objective=objective)
    assert solution.gamma[0] == pytest.approx(1)
    assert solution.gamma[1:].eq(0).all()
    assert solution.objective == pytest.approx(3)
    assert 0.5 <= solution.gap <= 1  # the optimum is 2: objective − optimum = 0.5 · (4 − 2)
    assert optimal_gamma(weight[1:], objective=objective).gap == 1


def test_the_weight_is_only_read():
    weight = gaussian(6, 4).float().requires_grad_()
    before = weight.detach().clone()
    assert not optimal_gamma(weight).gamma.requires_grad
    assert torch.equal(weight, before)


@pytest.mark.parametrize(
    "make", [lambda: gaussian(256, 256), lambda: gaussian(256, 128), lambda: decaying(256, 256)]
)
def test_width_256_takes_few_steps(make):
    solution = optimal_gamma(make(), gap=1e-3)
    assert solution.gap <= 1e-3
    assert solution.iterations <= 30


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimal_gamma(torch.tensor([[1.0, math.nan]])), "finite; got 1 NaN.*Restore"),
        (lambda: optimal_gamma(torch.tensor([[1.0, math.inf], [-math.inf, 0]])), "finite; got 2 NaN or infinite"),
        (lambda: optimal_gamma(torch.ones(3)), r"\(n, m\) matrix; got shape \(3,\).*Reshape"),
        (lambda: optimal_gamma(torch.ones(1, 1, dtype=torch.complex64)), "real.*got.*complex64"),
        (lambda: optimal_gamma(torch.ones(1, 1), objective="rank"), "one of.*got 'rank'"),
        (lambda: optimal_gamma(torch.ones(1, 1), gap=0), r"\(0, 1\); got 0.*relative"),
        (lambda: optimal_gamma(torch.ones(1, 1), gap=math.nan), r"\(0, 1\); got nan"),
    ],
)
def test_errors_say_what_was_expected_what_came_and_the_cure(call, message):
    with pytest.raises(ValueError, match=message):
        call()
