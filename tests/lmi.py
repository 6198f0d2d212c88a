"""The matrix inequalities of the paper, as matrices and as checks (Theorems 1, 4 and 6).

Theorem 4: h(x) = Hx + Gσ(Wᵀx + b) is 1-Lipschitz if, for some diagonal Λ ⪰ 0,

    [ I − HᵀH        −HᵀG − WΛ ]
    [ −GᵀH − ΛWᵀ      2Λ − GᵀG ]  ⪰ 0.

H = 0 gives Fazlyab et al. (2019), Theorem 1, with (α, β, W⁰, W¹) = (0, 1, Wᵀ, G); H = I forces
G = −WΛ, and with T = 2Λ⁻¹ what remains is WᵀW ⪯ T.

Rounding: λ_min is computed in float64, an estimate good to its own backward error; ``holds`` allows that
error and no more, so it can accept a violation of its size. These checks test theorems and
shapes; they are no certificate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def theorem4_matrix(h: Tensor, g: Tensor, w: Tensor, lam: Tensor) -> Tensor:
    """The matrix of Theorem 4 for H (k, m), G (k, n), W (m, n), λ (n,), in float64: (m+n, m+n)."""
    h, g, w, lam = (part.detach().double() for part in (h, g, w, lam))
    (k, m), n = h.shape, len(lam)
    assert g.shape == (k, n)
    assert w.shape == (m, n)
    cross = -h.mT @ g - w * lam
    top = torch.cat([torch.eye(m, dtype=w.dtype, device=w.device) - h.mT @ h, cross], dim=1)
    bottom = torch.cat([cross.mT, 2 * torch.diag(lam) - g.mT @ g], dim=1)
    matrix = torch.cat([top, bottom])
    return (matrix + matrix.mT) / 2  # the products are symmetric up to rounding


def condition_matrix(w: Tensor, t: Tensor) -> Tensor:
    """T − WᵀW of Theorem 1 for W (m, n) and diag(T) (n,), in float64."""
    w, t = w.detach().double(), t.detach().double()
    assert t.shape == (w.shape[1],)
    gram = w.mT @ w
    return torch.diag(t) - (gram + gram.mT) / 2


def singular_condition_matrix(w: Tensor, gamma: Tensor) -> Tensor:
    """Γ − ΓWᵀWΓ of Theorem 6 for W (m, n) and diag(Γ) (n,), in float64; Γ_i = 0 is allowed."""
    w, gamma = w.detach().double(), gamma.detach().double()
    assert gamma.shape == (w.shape[1],)
    gram = (w * gamma).mT @ (w * gamma)
    return torch.diag(gamma) - (gram + gram.mT) / 2


def residual_parts(w: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """(H, G) = (I, −WΛ): the choice that reduces Theorem 4 to WᵀW ⪯ T with T = 2Λ⁻¹."""
    return torch.eye(w.shape[0], dtype=w.dtype, device=w.device), -w * lam


def smallest_eigenvalue_estimate(matrix: Tensor) -> float:
    """λ_min of a symmetric float64 matrix, as ``eigvalsh`` finds it."""
    return float(torch.linalg.eigvalsh(matrix)[0])


def holds(matrix: Tensor, *, terms: float = 0.0) -> bool:
    """Whether M ⪰ 0 up to the rounding error of λ_min, n·eps·(‖M‖_F + terms). M must be finite and symmetric.

    ``terms`` is the size of what was subtracted to form M, such as ‖T‖_F + ‖W‖_F² for T − WᵀW: on the
    boundary of the cone its rounding exceeds that of M itself.
    """
    if not bool(torch.isfinite(matrix).all()) or not torch.equal(matrix, matrix.mT):
        return False
    size = float(torch.linalg.matrix_norm(matrix)) + terms
    if not math.isfinite(size):
        return False
    return smallest_eigenvalue_estimate(matrix) >= -len(matrix) * torch.finfo(matrix.dtype).eps * size
