"""T as weighted row sums of |WᵀW| or of its powers: AOL, SLL, Rescaled.

T_i = Σ_j |WᵀW|_ij r_ij with r_ij r_ji ≥ 1 is a bound since 2|x_i x_j| ≤ r x_i² + x_j²/r; for the power
(WᵀW)^(2^k) the same sum bounds T^(2^k), and its root bounds WᵀW by Löwner–Heinz.
"""

from __future__ import annotations

import copy
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.algebra.bound import Bound
from lipcert.algebra.gram import Columns
from lipcert.algebra.product import absolute_product, estimated_product
from lipcert.algebra.scale import alive
from lipcert.algebra.spectral import power_row_sums
from lipcert.errors import NotCertified, finite, one_of, positive_int

LOG_RATIO_LIMIT = 40.0  # e^40 times any Gram fits in float32


class AOL(Bound):
    """T_i = Σ_j A_ij, the smallest T with T − WᵀW diagonally dominant (Theorem 2)."""

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        return columns, columns.collect(absolute_product(columns, columns.taps.new_ones(columns.taps.shape[:2])))

    def witness(self, count: int) -> np.ndarray | None:
        return np.ones(count)


Form = Literal["exp", "shifted", "surrogate", "sampled_gradient", "sampled_surrogate"]


class SLL(Bound):
    """T_i = Σ_j A_ij q_j / q_i with a learned q > 0 (Theorem 3, Eq. SLLT). ``log_q`` = 0 is AOL.

    Args:
        size: n, the number of columns of W.
        form: how T is computed in training mode; in evaluation mode every form but ``shifted`` is ``exp``.
            ``exp``: q up to a factor, within e^±20 of its median: no ε is needed.
            ``shifted``: q + ε in place of q, on both sides of the quotient, which is sound (paper, Appendix D).
            ``surrogate``: q_j/(q_i + ε), which shrinks T and voids the guarantee. Not certifiable in training mode.
            ``sampled_gradient``: T as in ``exp``; its gradient in a dense weight from some of the columns.
            ``sampled_surrogate``: T of a dense weight estimated from some of the columns. Not certifiable in
            training mode.
        epsilon: ε of ``shifted`` and ``surrogate``, 1e-6 by default.
        sample: how many columns the last two draw at each step; by default n/8 for the gradient, n/32 for the
            estimate, at least 64. A weight with fewer than twice as many is not sampled, nor is a convolution,
            whose T is cheap.

    For ReLU, SLL(W, q, b) is residual AOL of (W·diag q, q∘b): q adds no functions, it changes how
    they are reached. For tanh or sigmoid it does add functions.
    """

    def __init__(
        self,
        size: int,
        form: Form = "exp",
        *,
        epsilon: float | None = None,
        sample: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = positive_int("size", size)
        self.form = one_of("form", form, get_args(Form))
        if form not in ("shifted", "surrogate") and epsilon is not None:
            raise ValueError(
                f"epsilon must be left out for form={form!r}, which has none; got {epsilon!r}. Drop it."
            )
        self.epsilon = 1e-6 if epsilon is None else finite("epsilon", epsilon, cure="The paper uses 1e-6.")
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must lie between 0 and 1; got {epsilon!r}. The paper uses 1e-6.")
        if not form.startswith("sampled") and sample is not None:
            raise ValueError(
                f"sample must be left out for form={form!r}, which draws none; got {sample!r}. Drop it."
            )
        default = max(64, size // (8 if form == "sampled_gradient" else 32))
        self.sample = default if sample is None else positive_int("sample", sample)
        self.log_q = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        above, below = (columns.spread(part) for part in self.weights(columns.taps.dtype))
        sampled = self.form.startswith("sampled") and self.training
        if columns.is_dense and self.estimates(columns.count):
            return columns, (estimated_product(columns, above, self.sample) / below)[0]  # a zero column has T = 0
        sums = absolute_product(columns, above, self.sample if sampled else None)
        return columns, without_dead_columns(columns, columns.collect(sums / below))

    def estimates(self, count: int) -> bool:
        """Whether T of a dense weight with so many columns is an estimate now."""
        return self.form == "sampled_surrogate" and self.training and 2 * self.sample <= count

    def weights(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:  # (n,) each
        """(a, b) with T_i = Σ_j A_ij a_j/b_i: q twice, except for the surrogate form in training mode."""
        log_q = self.log_q.to(dtype)
        if self.form == "shifted" or (self.form == "surrogate" and self.training):
            q = log_q.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
            shifted = q + self.epsilon
            return (shifted, shifted) if self.form == "shifted" else (q, shifted)
        q = bounded_exponential(log_q)
        return q, q

    def require_sound(self) -> None:
        if self.training and self.form.endswith("surrogate"):
            raise NotCertified(
                f"SLL(form={self.form!r}) makes T too small to be a bound in training mode. "
                "Call .eval() first: evaluation mode uses the exact T."
            )

    def witness(self, count: int) -> np.ndarray | None:
        return learned_witness(self)

    def extra_repr(self) -> str:
        return f"{self.size}, form={self.form!r}"


def learned_witness(bound: SLL | Rescaled) -> np.ndarray:
    """q in float64, as the bound uses it in evaluation mode."""
    q = copy.deepcopy(bound).double().eval().weights()[0]
    return np.asarray(q.detach().cpu().numpy())


def bounded_exponential(log_q: Tensor) -> Tensor:
    """q up to a factor, between 1 and e^40. Any q > 0 is sound, so a bounded one is; no quotient overflows."""
    half = LOG_RATIO_LIMIT / 2
    return ((log_q - log_q.median()).clamp(-half, half) + half).exp()


def without_dead_columns(columns: Columns, t: Tensor) -> Tensor:  # (count,)
    """T with 0, a dead neuron (Theorem 6), for every column that is zero or as good as that.

    A large q_j/q_i, or what ``Rescaled`` adds against underflow, would keep it alive on rounding errors.
    """
    lengths = columns.collect(torch.linalg.vector_norm(columns.taps.detach().flatten(2), dim=2))
    return torch.where(alive(lengths.square()), t, 0.0)


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
        q = columns.spread(self.weights(columns.taps.dtype)[0])
        sums = absolute_product(columns, q) / q if self.order == 0 else power_row_sums(columns, q, self.order)
        return columns, without_dead_columns(columns, columns.collect(sums))

    def weights(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:  # (n,) each
        """q twice, as ``SLL.weights``."""
        q = bounded_exponential(self.log_q.to(dtype))
        return q, q

    def witness(self, count: int) -> np.ndarray | None:
        return learned_witness(self) if self.order == 0 else None

    def extra_repr(self) -> str:
        return f"{self.size}, order={self.order}"
