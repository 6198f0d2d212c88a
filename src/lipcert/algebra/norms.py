"""T from one proved norm: Spectral (‖W‖²), Optimal (‖WΓ^½‖² for a fitted shape Γ), Orthogonal (W replaced)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lipcert.algebra.bound import Bound
from lipcert.algebra.gram import Columns, dense_columns
from lipcert.algebra.optimal import OptimalSolution, optimal_gamma
from lipcert.algebra.orthogonal import METHODS, orthonormal, squared_norm
from lipcert.algebra.scale import alive, at_least_float32, normalize
from lipcert.algebra.spectral import squared_norm_bound, squared_norm_estimate
from lipcert.errors import NotCertified, one_of, positive_int


class Spectral(Bound):
    """T = ‖W‖² I, by a proved upper bound: spectral normalisation (affine) and CPL (residual).

    Gram iteration: ‖G‖ ≤ ‖G^(2^k)‖^(1/2^k) for every k = ``iterations`` in the Frobenius and in the
    maximum row sum norm; a convolution takes the largest over a grid of frequencies, enlarged by the
    factor that covers those between (``gram.torus_grid``). At most (rank)^(1/2^(k+1)) too large.

    Args:
        iterations: k.
        form: ``exact``, or ``surrogate``: in training mode an estimate from below on a coarse grid, ten times
            cheaper for a convolution and no bound (the published layers use power iteration there); the
            bound above in evaluation mode. Not certifiable in training mode.
    """

    def __init__(self, iterations: int = 6, form: Literal["exact", "surrogate"] = "exact") -> None:
        super().__init__()
        self.iterations = positive_int("iterations", iterations)
        self.form = one_of("form", form, ("exact", "surrogate"))

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        estimated = self.form == "surrogate" and self.training
        norm = squared_norm_estimate if estimated else squared_norm_bound
        per_group = norm(columns, self.iterations)  # (groups,)
        return columns, per_group.repeat_interleave(columns.count // len(per_group))

    def require_sound(self) -> None:
        if self.form == "surrogate" and self.training:
            raise NotCertified(
                "Spectral(form='surrogate') estimates ‖W‖ from below in training mode, which is no bound. Call "
                ".eval() first: evaluation mode uses the proved one."
            )

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, form={self.form!r}"


class Optimal(Bound):
    """The T closest to WᵀW, by a semidefinite program (Eq. AOLplus); post hoc and for dense weights.

    ``fit`` solves for the shape Γ of one weight and keeps it. Every forward pass then takes
    T = c·Γ⁻¹ with c a proved upper bound of ‖WΓ^½‖² for the weight *of that moment*: no solver output is
    trusted, and a weight that moved on makes T looser, never wrong. Unfitted, Γ = I and T is Spectral's.

    Args:
        size: n, the number of columns of W.
        objective: ``trace``, tr(I − T^(−½)WᵀWT^(−½)), or ``frobenius``, its Frobenius norm.
    """

    gamma: Tensor
    dense_only = True

    def __init__(
        self,
        size: int,
        objective: Literal["trace", "frobenius"] = "trace",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = positive_int("size", size)
        self.objective: Literal["trace", "frobenius"] = objective
        one_of("objective", objective, ("trace", "frobenius"))
        self.register_buffer("gamma", torch.ones(size, device=device, dtype=dtype))

    def fit(self, columns: Columns, *, gap: float = 1e-3) -> OptimalSolution:
        """Solve for the columns of one weight, ``layer.columns()``, and keep their Γ, up to scale.

        Columns that the layer would drop as dead get γ = 0, so that the others keep their precision.
        """
        if not isinstance(columns, Columns) or columns.count != self.size:
            raise ValueError(
                f"expected the columns of a dense layer with {self.size} of them; got "
                f"{f'{columns.count} columns' if isinstance(columns, Columns) else type(columns).__name__}. "
                "Pass layer.columns()."
            )
        weight = columns.matrix().detach()
        solution = optimal_gamma(weight, objective=self.objective, gap=gap)
        squares = normalize(weight)[0].double().square().sum(dim=1)
        gamma = torch.where(alive(squares.to(weight.dtype)), solution.gamma.to(weight.device), 0.0)
        # γ grows as columns shrink; the buffer must hold that of the largest column that matters.
        matters = torch.where(gamma * squares > 1e-3 * (gamma * squares).max(), gamma, torch.inf).min()
        fits = gamma <= matters * torch.finfo(self.gamma.dtype).tiny ** -0.5
        largest = torch.where(fits, gamma, 0.0).max()
        with torch.no_grad():
            self.gamma.copy_(torch.where(fits, gamma, 0.0) / torch.where(largest > 0, largest, 1.0))
        return solution

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        root = self.gamma.to(columns.taps.dtype).clamp_min(0.0).sqrt()  # (n,)
        unit, scale = normalize(columns.matrix() * root[:, None])  # WΓ^½, brought back to entries near 1
        squared = squared_norm_bound(dense_columns(unit), iterations=6)[0]
        ratio = (scale / torch.where(root > 0, root, 1.0)).square()
        usable = (root > 0) & alive(ratio) & alive(1 / ratio)  # else dead: Γ = 0
        return columns, torch.where(usable, squared * torch.where(usable, ratio, 1.0), torch.inf)

    def require_sound(self) -> None:
        if not bool((self.gamma >= 0).all()):
            raise NotCertified("Optimal.gamma must not be negative; got a negative entry. Fit it again.")

    def extra_repr(self) -> str:
        return f"{self.size}, objective={self.objective!r}"


class Orthogonal(Bound):
    """W replaced by an orthonormal weight, T = I: orthogonal layers, and their residual form (dense).

    T carries the measured deviation (``orthogonal.squared_norm``), so that an inexact inverse or a series
    cut short never counts as exactly orthogonal.
    """

    dense_only = True

    def __init__(self, method: str = "cayley") -> None:
        super().__init__()
        self.method = one_of("method", method, METHODS)

    def prepare(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weight as it is: the orthonormal matrix is not proportional to it, so no scale is taken out."""
        weight = at_least_float32(weight)
        return weight, torch.ones((), device=weight.device, dtype=weight.dtype)

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        weight = orthonormal(columns.matrix(), self.method)
        return dense_columns(weight), squared_norm(weight, self.method).expand(columns.count)

    def extra_repr(self) -> str:
        return f"method={self.method!r}"
