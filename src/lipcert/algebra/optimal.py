"""The best diagonal T of the paper's Equation AOLplus, with a proof of how good it is.

Over Γ = T⁻¹ = diag(γ) the condition WᵀW ⪯ T reads WΓWᵀ ⪯ I, γ ≥ 0 (γ_i = 0 drops neuron i), and with G = WᵀW

    trace        tr(I − Γ^½GΓ^½)   = n − Σ G_ii γ_i                         a packing SDP,
    frobenius    ‖Γ^½GΓ^½ − I‖_F²  = n − 2 Σ G_ii γ_i + Σ G_ij² γ_i γ_j     a convex QP on the same set.

Unit columns ŵ_i = w_i/‖w_i‖ with γ̂_i = γ_i‖w_i‖² leave both unchanged, so the norms of the columns do not matter.
Both *maximise* v(γ̂) = a·Σγ̂_i − γ̂ᵀHγ̂ = n − objective, with (a, H) = (1, 0) or (2, Ĝ∘Ĝ). Since v is concave,
v(γ′) ≤ γ̂ᵀHγ̂ + cᵀγ′ with c = a − 2Hγ̂, and a matrix Y ⪰ 0 bounds cᵀγ′ (weak duality):

    ŵ_iᵀYŵ_i ≥ c_i for every i   ⟹   v(γ′) ≤ γ̂ᵀHγ̂ + tr Y for every feasible γ′.

A primal-dual interior point method proposes (γ̂, Y); `_dual_bound` and `_spectral_bound` judge the proposal and
rely on nothing of the method. Rounding: γ shrinks (it is divided by an upper bound of ρ = λmax(WΓWᵀ)), the gap
grows. Post hoc and not differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from lipcert.errors import one_of

__all__ = ["Objective", "OptimalSolution", "optimal_gamma"]

Objective = Literal["trace", "frobenius"]

_EPS = torch.finfo(torch.float64).eps  # 2u
_REPRESENTABLE = 2.0**-500, 2.0**500  # column norms whose γ ≤ 1/‖w‖² is an ordinary float64
_CENTER = 0.1  # each step aims for this fraction of the present μ
_TO_BOUNDARY = 0.95  # a step goes at most this fraction of the way to the boundary of the cone


@dataclass(frozen=True)
class OptimalSolution:
    """γ = diag(T⁻¹) and the evidence for it.

    Attributes:
        gamma: γ, (n,) float64 on the CPU, ≥ 0; λmax(WΓWᵀ) < 1.
        objective: the objective at γ, tr(I − Γ^½GΓ^½) or ‖Γ^½GΓ^½ − I‖_F².
        gap: proved: objective − optimum ≤ gap · (n − optimum). Relative to n − optimum, since the optimum itself
            is 0 for an orthogonal W. It may exceed the gap that was asked for: compare.
        iterations: interior point steps taken.
    """

    gamma: Tensor
    objective: float
    gap: float
    iterations: int


def optimal_gamma(
    weight: Tensor,  # (n, m): row i is column w_i of W, as nn.Linear stores it
    *,
    objective: Objective = "trace",
    gap: float = 1e-3,
    max_iterations: int = 200,
) -> OptimalSolution:
    """Solve AOLplus: γ ≥ 0 with WΓWᵀ ≺ I that minimises `objective` up to the relative `gap`.

    One step is a dozen products of n×n matrices, and 7 to 30 steps reach 1e-3. When `max_iterations` or the
    precision of float64 (gaps of about 1e-7) comes first, the last γ is returned with the larger gap proved for
    it, feasible all the same. A limit on steps, unlike one on seconds, means the same on every machine.
    """
    if weight.ndim != 2 or weight.is_complex():
        raise ValueError(
            f"weight must be a real (n, m) matrix; got shape {tuple(weight.shape)}, {weight.dtype}. "
            "Reshape a convolution to its dense matrix first."
        )
    if not bool(torch.isfinite(weight).all()):
        bad = int((~torch.isfinite(weight)).sum())
        raise ValueError(
            f"weight must be finite; got {bad} NaN or infinite entries. "
            "Restore the last finite checkpoint, or zero those rows."
        )
    one_of("objective", objective, get_args(Objective))
    if not 0 < gap < 1:
        raise ValueError(f"gap must lie in (0, 1); got {gap}. It is relative: 1e-3 is one part in a thousand.")

    rows = weight.detach().to("cpu", torch.float64)
    n = rows.shape[0]
    norms = _row_norms(rows)
    alive = (norms >= _REPRESENTABLE[0]) & (norms <= _REPRESENTABLE[1])
    # A column too small or too large for its γ to be a float64 gets γ = 0. It could have added at most 1 to v.
    forgone = int(((norms > 0) & ~alive).sum())
    gamma = torch.zeros(n, dtype=torch.float64)
    if not bool(alive.any()):
        return OptimalSolution(gamma, float(n), 1.0 if forgone else 0.0, 0)

    norms = norms[alive]
    W = (rows[alive] / norms[:, None]).T  # (m, alive): unit columns
    H = (W.T @ W).square() if objective == "frobenius" else torch.zeros(W.shape[1], W.shape[1], dtype=W.dtype)
    a = 2.0 if objective == "frobenius" else 1.0

    # W = QR with R square whenever m > n: the same Gram matrix, and the dual lifts to QYQᵀ.
    Q, R = torch.linalg.qr(W) if W.shape[0] > W.shape[1] else (torch.eye(W.shape[0], dtype=W.dtype), W)
    interior, root, iterations = _interior_point(R, a, H, 0.99 * gap, max_iterations)  # 1 %: the proofs round up
    upper = _dual_bound(root.T @ Q.T, W, a, H, interior) + forgone

    # On the ray through γ̂ both objectives improve up to the boundary: γ̂ᵀHγ̂ = ‖Γ^½GΓ^½‖_F² ≤ ρ·Σγ̂.
    scaled = interior / _spectral_bound(W * interior.sqrt())
    value = float(a * scaled.sum() - scaled @ (H @ scaled))
    gamma[alive] = scaled / norms / norms  # two divisions: norms² may overflow
    return OptimalSolution(gamma, max(n - value, 0.0), max((upper - value) / upper, 0.0), iterations)


def _row_norms(rows: Tensor) -> Tensor:  # (n, m) → (n,), without overflow or underflow
    if not rows.shape[1]:
        return rows.new_zeros(len(rows))
    largest = rows.abs().amax(dim=1)
    return largest * torch.linalg.vector_norm(rows / largest.where(largest > 0, 1.0)[:, None], dim=1)


def _interior_point(
    W: Tensor, a: float, H: Tensor, gap: float, max_iterations: int
) -> tuple[Tensor, Tensor, int]:  # γ̂ (n,), the Cholesky factor of Y (m, m), steps
    """Follow XY = μI, γ̂z = μ to μ → 0, where X = I − WΓ̂Wᵀ and z_i = ŵ_iᵀYŵ_i − c_i are the two slacks.

    X and z are recomputed from (γ̂, Y): both sides stay feasible and ⟨X, Y⟩ + zᵀγ̂ stays the gap, however a step is
    rounded. The HKM direction dY = μX⁻¹ − Y + sym(X⁻¹W dΓ WᵀY) makes the Newton system an elementwise product,

        ((WᵀX⁻¹W) ∘ (WᵀYW) + 2H + diag(z/γ̂)) dγ = c − μ·diag(WᵀX⁻¹W) + μ/γ̂,

    solved twice: Mehrotra's corrector subtracts the products of increments dXdY and dγdz that the first solution
    leaves out, which takes a third of the steps where singular values decay.
    """
    m, n = W.shape
    eye = torch.eye(m, dtype=W.dtype)
    gamma = 0.5 / (W.T @ W).abs().sum(dim=1)  # half of AOL: X ⪰ I/2
    Y = (a + 1) * eye  # z ≥ 1, since c ≤ a
    best, iteration = (gamma, Y.sqrt()), 0
    while True:
        X = eye - (W * gamma) @ W.T
        chol_X, failed_X = torch.linalg.cholesky_ex(X)
        chol_Y, failed_Y = torch.linalg.cholesky_ex(Y)
        YW = Y @ W
        c = a - 2 * (H @ gamma)
        z = (W * YW).sum(dim=0) - c
        if int(failed_X) or int(failed_Y) or not bool((z > 0).all()):
            break  # the precision of float64 is spent
        best = gamma, chol_Y
        distance = float((X * Y).sum() + z @ gamma)
        upper = float(Y.trace() + gamma @ (H @ gamma))
        if distance <= gap * upper or iteration >= max_iterations:
            break

        inverse_X = torch.cholesky_inverse(chol_X)
        XW = inverse_X @ W  # X⁻¹W
        M = W.T @ XW
        system = M * (W.T @ YW) + 2 * H
        system.diagonal().add_(z / gamma)
        factor, failed = torch.linalg.cholesky_ex(system)
        if int(failed):
            break
        # Predict with μ = 0.
        p_gamma = torch.cholesky_solve(c[:, None], factor)[:, 0]
        p_YW = (_symmetric((XW * p_gamma) @ YW.T) - Y) @ W
        p_z = (W * p_YW).sum(dim=0) + 2 * (H @ p_gamma)
        # Correct, with a positive μ.
        mu = _CENTER * distance / (m + n)
        curvature = (M * (W.T @ p_YW)) @ p_gamma + p_gamma * p_z / gamma
        right = c - mu * M.diagonal() + mu / gamma - curvature
        d_gamma = torch.cholesky_solve(right[:, None], factor)[:, 0]
        d_Y = mu * inverse_X - Y + _symmetric((XW * d_gamma) @ YW.T + (XW * p_gamma) @ p_YW.T)
        d_z = (W * (d_Y @ W)).sum(dim=0) + 2 * (H @ d_gamma)
        step = _step_length(((gamma, d_gamma), (z, d_z)), ((X, -(W * d_gamma) @ W.T), (Y, d_Y)))
        if step == 0:
            break
        gamma, Y = gamma + step * d_gamma, Y + step * d_Y
        iteration += 1
    return *best, iteration


def _symmetric(S: Tensor) -> Tensor:
    return (S + S.T) / 2


def _step_length(vectors: tuple[tuple[Tensor, Tensor], ...], matrices: tuple[tuple[Tensor, Tensor], ...]) -> float:
    """A step ≤ 1 along which vectors stay positive and matrices positive definite; 0 if none above 1e-8 does.

    One step for primal and dual, because the frobenius slack z depends on both. Trying a Cholesky is ten times
    cheaper than the eigenvalues that would give the largest step exactly.
    """
    shrink = max(float((-direction / x).max()) for x, direction in vectors)
    step = min(1.0, _TO_BOUNDARY / shrink) if shrink > 0 else 1.0
    while step > 1e-8:
        reach = step / _TO_BOUNDARY
        if not any(int(torch.linalg.cholesky_ex(S + reach * direction).info) for S, direction in matrices):
            return step
        step *= 0.8
    return 0.0


def _dual_bound(B: Tensor, W: Tensor, a: float, H: Tensor, gamma: Tensor) -> float:
    """An upper bound of v over the feasible set, for *any* B (k, m) and γ̂ ≥ 0 with WΓ̂Wᵀ ⪯ I.

    Y = s·BᵀB is positive semidefinite however B was rounded, and s = max c_i/‖Bŵ_i‖² makes it dual feasible.
    `slack` = 8(m+n)u pays for the rounding: |fl(Bŵ_i) − Bŵ_i| ≤ g_m‖B‖_F in norm, (Hγ̂)_i ≤ 1 makes that of c_i at
    most (4m+2n+8)u, ‖ŵ_i‖ = 1 and the remaining sums of positive terms are good to (m+n+4)u. The eigenvalues λ of
    WΓWᵀ lie in [0, 1], so v = Σλ or Σ(2λ − λ²) never exceeds min(m, n) either.
    """
    slack = 4 * sum(W.shape) * _EPS
    size = torch.linalg.matrix_norm(B)
    reach = (torch.linalg.vector_norm(B @ W, dim=0) - slack * size).clamp(min=0)
    c = (a + slack - 2 * (H @ gamma)).clamp(min=0)
    scale = torch.where(c > 0, c / reach.square(), 0.0).max()  # reach = 0 < c gives inf: nothing is proved
    weak_duality = float(gamma @ (H @ gamma) + scale * size.square())
    return min(min(W.shape), weak_duality) * (1 + 2 * slack)  # in this order a NaN proves nothing


def _spectral_bound(V: Tensor) -> Tensor:  # (m, n) → an upper bound of λmax(VVᵀ)
    """eigvalsh of the smaller Gram matrix, plus 8(m+n)u‖V‖_F².

    Forming it errs by at most g_{max(m,n)}‖V‖_F² (entrywise |V||Vᵀ|). eigvalsh is backward stable: its error is
    p(k)·u·λmax with p of the order of √k in practice; the margin left, 7(m+n)u‖V‖_F², covers p = 7(m+n). It also
    covers V itself and the later γ̂/‖w‖² (4u relative each), and it keeps ρ < 1 strict.
    """
    gram = V @ V.T if V.shape[0] <= V.shape[1] else V.T @ V
    margin: Tensor = 4 * sum(V.shape) * _EPS * V.square().sum()
    return torch.linalg.eigvalsh(gram)[-1] + margin
