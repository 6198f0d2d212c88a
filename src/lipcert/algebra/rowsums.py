"""T as weighted row sums of |WᵀW| or of its powers: AOL, SLL, Rescaled.

T_i = Σ_j |WᵀW|_ij r_ij with r_ij r_ji ≥ 1 is a bound since 2|x_i x_j| ≤ r x_i² + x_j²/r; for the power
(WᵀW)^(2^k) the same sum bounds T^(2^k), and its root bounds WᵀW by Löwner–Heinz.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lipcert.algebra.bound import Bound
from lipcert.algebra.gram import Columns, absolute_gram
from lipcert.algebra.scale import alive
from lipcert.algebra.spectral import power_row_sums
from lipcert.errors import NotCertified, finite, one_of, positive_int

LOG_RATIO_LIMIT = 40.0  # e^40 times any Gram fits in float32; clamping q_j − q_i symmetrically keeps r∘rᵀ = 1


class AOL(Bound):
    """T_i = Σ_j A_ij, the smallest T with T − WᵀW diagonally dominant (Theorem 2)."""

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        return columns, columns.collect(absolute_gram(columns).sum(dim=-1))


class SLL(Bound):
    """T_i = Σ_j A_ij q_j / q_i with a learned q > 0 (Theorem 3, Eq. SLLT). ``log_q`` = 0 is AOL.

    Args:
        size: n, the number of columns of W.
        form: how q_j / q_i is computed (paper, Appendix D).
            ``exp``: exp(log q_j − log q_i), clamped to e^±40 symmetrically: no ε is needed.
            ``shifted``: (q_j + ε)/(q_i + ε), sound since the ε is on both.
            ``surrogate``: q_j/(q_i + ε) in training mode, which shrinks T and voids the guarantee, and
            the exact ratio in evaluation mode. Not certifiable in training mode.
        epsilon: ε of the last two, 1e-6 by default.

    For ReLU, SLL(W, q, b) is residual AOL of (W·diag q, q∘b): q adds no functions, it changes how
    they are reached. For tanh or sigmoid it does add functions.
    """

    def __init__(
        self,
        size: int,
        form: Literal["exp", "shifted", "surrogate"] = "exp",
        *,
        epsilon: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = positive_int("size", size)
        self.form = one_of("form", form, ("exp", "shifted", "surrogate"))
        if form == "exp" and epsilon is not None:
            raise ValueError(f"epsilon must be left out for form='exp', which has none; got {epsilon!r}. Drop it.")
        self.epsilon = 1e-6 if epsilon is None else finite("epsilon", epsilon, cure="The paper uses 1e-6.")
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must lie between 0 and 1; got {epsilon!r}. The paper uses 1e-6.")
        self.log_q = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        t = columns.collect((absolute_gram(columns) * self.ratio(columns)).sum(dim=-1))
        return columns, without_dead_columns(columns, t)

    def ratio(self, columns: Columns) -> Tensor:  # (groups, N, N)
        """r_ij = q_j / q_i in the chosen form."""
        log_q = columns.spread(self.log_q.to(columns.taps.dtype))
        if self.form == "exp" or (self.form == "surrogate" and not self.training):
            return exponential_ratio(log_q)
        q = log_q.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        shift = self.epsilon if self.form == "shifted" else 0.0
        return (q + shift)[:, None, :] / (q + self.epsilon)[:, :, None]

    def require_sound(self) -> None:
        if self.form == "surrogate" and self.training:
            raise NotCertified(
                "SLL(form='surrogate') divides by q + ε in training mode, which makes T too small to be a "
                "bound. Call .eval() first: evaluation mode uses the exact ratio."
            )

    def extra_repr(self) -> str:
        return f"{self.size}, form={self.form!r}"


def exponential_ratio(log_q: Tensor) -> Tensor:  # (groups, N) → (groups, N, N)
    """r_ij = exp(clamp(log q_j − log q_i)); the clamp is symmetric, so r_ij r_ji = 1 is kept."""
    difference = log_q[:, None, :] - log_q[:, :, None]
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def without_dead_columns(columns: Columns, t: Tensor) -> Tensor:  # (count,)
    """T with 0, a dead neuron (Theorem 6), for every column that is zero or as good as that.

    A large q_j/q_i, or what ``Rescaled`` adds against underflow, would keep it alive on rounding errors.
    """
    squares = columns.collect(columns.taps.detach().square().sum(dim=(2, 3, 4)))
    return torch.where(alive(squares), t, 0.0)


class Rescaled(Bound):
    """T_i = (Σ_j |(WᵀW)^(2^k)|_ij q_j/q_i)^(1/2^k): SLL at order k = 0, Spectral as k grows.

    P ⪯ D implies P^(1/2^k) ⪯ D^(1/2^k) (Löwner–Heinz), so any q > 0 is sound at any order. The powers of
    a convolution are uncropped: cropping them to the kernel's size would lose the guarantee.
    """

    def __init__(
        self,
        size: int,
        order: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = positive_int("size", size)
        if isinstance(order, bool) or not isinstance(order, int) or not 0 <= order <= 8:
            raise ValueError(f"order must be an integer from 0 (SLL) to 8; got {order!r}. Try 1 or 2.")
        self.order = order
        self.log_q = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        ratio = exponential_ratio(columns.spread(self.log_q.to(columns.taps.dtype)))
        if self.order == 0:
            sums = (absolute_gram(columns) * ratio).sum(dim=-1)
        else:
            sums = power_row_sums(columns, ratio, self.order)
        return columns, without_dead_columns(columns, columns.collect(sums))

    def extra_repr(self) -> str:
        return f"{self.size}, order={self.order}"
