"""Diagonal solutions T of WᵀW ⪯ T: a published method is a choice of T (Theorems 1, 3, 6, 7).

A bound maps the columns of W to (columns, diag T). It sees columns scaled to a largest entry near 1
(``scale.normalize``), so nothing overflows; T of W = s·Ŵ is s²·T̂. Three families:

- row sums of |WᵀW|·r with r_ij r_ji ≥ 1 (AOL, SLL), since 2|x_i x_j| ≤ r x_i² + x_j²/r;
- the same for the power (WᵀW)^(2^k), then the 2^k-th root: Löwner–Heinz (Rescaled);
- one number for all columns, a proved upper bound of ‖W‖² (Spectral), or of ‖WΓ^½‖² for a fixed
  shape Γ (Optimal). Power iteration gives lower bounds and is never used.

Rounding: T may be enlarged, never shrunk, since T ≤ T′ keeps WᵀW ⪯ T′. The theorems here are those of
real arithmetic. T_i = 0 or ∞ stands for a dead neuron: Γ_i = 0 (Theorem 6).
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.algebra.gram import Columns, dense_columns
from lipcert.algebra.optimal import OptimalSolution, optimal_gamma
from lipcert.algebra.orthogonal import (
    METHODS,
    STORED,
    cholesky,
    low_rank_reflector,
    orthonormal,
    squared_norm,
    stored,
)
from lipcert.algebra.product import absolute_product, estimated_product
from lipcert.algebra.scale import alive, at_least_float32, normalize, transformed
from lipcert.algebra.spectral import iterate_of, power_row_sums, squared_norm_bound, squared_norm_estimate
from lipcert.errors import NotCertified, finite, one_of, positive_int
from lipcert.intact import Fixed

__all__ = ["AOL", "SLL", "Bound", "Full", "Optimal", "Orthogonal", "Rescaled", "Spectral"]

LOG_RATIO_LIMIT = 40.0  # e^40 times any Gram fits in float32
FIRST_STEPS = 30  # of the power iteration when a layer is built
DENSE_STEPS = 3  # of each training step, where a step is two products with a vector; a convolution takes one


class Bound(Fixed, abc.ABC):
    """A choice of T. ``size``, where a bound has one, is the number of columns it was made for."""

    size: int | None = None
    dense_only: bool = False

    @abc.abstractmethod
    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        """The columns to use and diag(T), one entry per column, with WᵀW ⪯ T."""

    def prepare(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(Ŵ, s) with W = s·Ŵ, in float32 or better: what the columns are taken from."""
        return normalize(weight)

    def require_sound(self) -> None:
        """Raise ``NotCertified`` where T is no bound in the present mode; most bounds always are."""

    def start(self, columns: Columns) -> None:
        """Set up what is kept from one training step to the next, for columns of this shape."""

    def witness(self, count: int) -> np.ndarray | None:  # (count,) float64
        """The q of T_i = Σ_j A_ij q_j/q_i for ``count`` columns; None for bounds of another kind."""
        return None


# --- Row sums ---


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


# --- One number for all columns ---


class Spectral(Bound):
    """T = ‖W‖² I, by a proved upper bound: spectral normalization (affine) and CPL (residual).

    Gram iteration: ‖G‖ ≤ ‖G^(2^k)‖^(1/2^k) for every k = ``iterations`` in the Frobenius and in the
    maximum row sum norm; a convolution takes the largest over a grid of frequencies, enlarged by the
    factor that covers those between (``gram.torus_grid``). At most (rank)^(1/2^(k+1)) too large.

    Args:
        iterations: k.
        form: ``exact``, or ``surrogate``: in training mode an estimate from below, as in the published layers; the
            bound above in evaluation mode. Not certifiable in training mode. The estimate is three steps of power
            iteration that continue from the step before, or one on a coarse grid of frequencies for a convolution.
    """

    iterate: Tensor | None

    def __init__(self, iterations: int = 6, form: Literal["exact", "surrogate"] = "exact") -> None:
        super().__init__()
        self.iterations = positive_int("iterations", iterations)
        self.form = one_of("form", form, ("exact", "surrogate"))
        self.register_buffer("iterate", None)

    def start(self, columns: Columns) -> None:
        if self.form == "exact":
            return
        if self.iterate is not None:
            raise ValueError("a bound with a power iteration belongs to one layer. Build one for each layer.")
        with torch.no_grad():
            _, iterate = squared_norm_estimate(columns, iterate_of(columns), FIRST_STEPS)
        self.register_buffer("iterate", iterate)
        self.seal()

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        per_group = self._step(columns)[0] if self.estimates() else squared_norm_bound(columns, self.iterations)
        return columns, per_group.repeat_interleave(columns.count // len(per_group))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        # The vector only helps training: weights move freely between both forms.
        if self.iterate is None:
            state_dict.pop(f"{prefix}iterate", None)
        else:
            state_dict.setdefault(f"{prefix}iterate", self.iterate)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def estimates(self) -> bool:
        """Whether T is an estimate now."""
        return self.form == "surrogate" and self.training

    def vector(self, columns: Columns) -> Tensor:  # (rows,)
        """v of ‖Wv‖ for a dense weight, one step further than at the last call."""
        return self._step(columns)[1].flatten()

    def _step(self, columns: Columns) -> tuple[Tensor, Tensor]:
        """(‖Wv‖² for each group, v), and v is kept for the next step."""
        before = iterate_of(columns) if self.iterate is None else self.iterate
        steps = FIRST_STEPS if self.iterate is None else DENSE_STEPS if columns.is_dense else 1
        per_group, after = squared_norm_estimate(columns, before, steps)
        if self.iterate is not None and not transformed(columns.taps):
            self.iterate.copy_(after)
        return per_group, after

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
            raise NotCertified("Optimal.gamma has a negative entry. Fit it again.")

    def extra_repr(self) -> str:
        return f"{self.size}, objective={self.objective!r}"


class Replacing(Bound):
    """A bound that replaces a dense W by another matrix, of norm 1 or nearly so."""

    dense_only = True

    def prepare(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weight as it is: the new matrix is not proportional to it, so no scale is taken out."""
        weight = at_least_float32(weight)
        return weight, torch.ones((), device=weight.device, dtype=weight.dtype)


class Orthogonal(Replacing):
    """W replaced by an orthonormal weight, T = I: orthogonal layers, and their residual form (dense).

    T carries the measured deviation (``orthogonal.squared_norm``), so that an inexact inverse or a series
    cut short never counts as exactly orthogonal. With a ``shape`` (outputs, inputs) of Q the weight is the V of one
    block reflector, which has few columns; for affine layers. The method ``stored`` takes W as it is: training
    keeps it orthonormal, and T makes the layer 1-Lipschitz wherever it is not.
    """

    def __init__(self, method: str = "cayley", *, shape: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.method, self.shape = one_of("method", method, (*METHODS, STORED)), shape

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        rows, training = columns.matrix(), self.training
        if self.method == STORED:
            weight = stored(rows)
        elif self.shape is None:
            weight = orthonormal(rows, self.method, training=training)
        else:
            weight = low_rank_reflector(rows.mT, *self.shape).mT
        return dense_columns(weight), squared_norm(weight, self.method, training=training).expand(len(weight))

    def extra_repr(self) -> str:
        return f"method={self.method!r}"


class Full(Replacing):
    """T = WᵀW + αI as a full matrix, α > 0 learned (LDLT, Juston et al. 2025); for dense weights.

    W is replaced by V = WL^(−ᵀ) with LLᵀ = T, or by L⁻¹W with LLᵀ = WWᵀ + αI if W is wide. VᵀV ⪯ I in real
    arithmetic, and a singular value s of W becomes s/√(s² + α). As α → 0 this is ``Orthogonal("cholesky")``.
    """

    def __init__(
        self, alpha: float = 0.01, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if not 0 < finite("alpha", alpha, cure="Use 0.01.") <= 1e6:
            raise ValueError(f"alpha must be positive and at most 1e6; got {alpha!r}. Use 0.01.")
        self.log_alpha = nn.Parameter(torch.full((), math.log(alpha), device=device, dtype=dtype))

    def forward(self, columns: Columns) -> tuple[Columns, Tensor]:
        rows = columns.matrix()  # Wᵀ, (n, m)
        alpha = self.log_alpha.double().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        wide = rows.shape[0] > rows.shape[1]
        weight = cholesky(rows, alpha) if wide else cholesky(rows.mT, alpha).mT
        return dense_columns(weight), rows.new_ones(columns.count)


# --- By name ---

SLL_FORMS: tuple[Form, ...] = get_args(Form)
CONVOLUTIONAL = (
    "aol",
    "rescaled",
    "sll",
    *(f"sll_{form}" for form in SLL_FORMS if form != "exp"),
    "spectral",
    "spectral_surrogate",
)
NAMES = (*CONVOLUTIONAL, "full", "optimal", "orthogonal")


def make_bound(
    bound: str | Bound,
    size: int,
    *,
    convolution: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Bound:
    """A bound from its name or from an object, for a weight with ``size`` columns."""
    made = bound if isinstance(bound, Bound) else _named_bound(bound, size, device, dtype)
    if made.size is not None and made.size != size:
        raise ValueError(
            f"bound must be made for the layer's {size} columns; got {type(made).__name__} for "
            f"{made.size}. Pass {type(made).__name__}({size})."
        )
    if convolution and made.dense_only:
        raise NotCertified(
            f"bound must be one that is proved for convolutions, one of {list(CONVOLUTIONAL)}; got "
            f"{type(made).__name__}, which is for dense weights. Use bound='sll'."
        )
    return made


def _named_bound(bound: str, size: int, device: torch.device | str | None, dtype: torch.dtype | None) -> Bound:
    one_of("bound", bound, NAMES, cure="Or pass an object, such as lipcert.bounds.Rescaled(n, order=2).")
    makers: dict[str, Callable[[], Bound]] = {
        "aol": AOL,
        "full": lambda: Full(device=device, dtype=dtype),
        "optimal": lambda: Optimal(size, device=device, dtype=dtype),
        "orthogonal": Orthogonal,
        "rescaled": lambda: Rescaled(size, device=device, dtype=dtype),
        "sll": lambda: SLL(size, device=device, dtype=dtype),
        "spectral": Spectral,
        "spectral_surrogate": lambda: Spectral(form="surrogate"),
    }
    form = cast(Form, bound.removeprefix("sll_"))
    return makers[bound]() if bound in makers else SLL(size, form, device=device, dtype=dtype)
