"""General layers h(x) = Hx + Gσ(Wᵀx + b) of Theorem 4, by construction: residuals that change width.

Take WᵀW ⪯ T and Λ = T⁻¹, which is 2T′⁻¹ for T′ = 2T. Then S = Λ^½ has S² ⪯ 2Λ − ΛWᵀWΛ, because
ΛWᵀWΛ ⪯ Λ. With C = [[I, −WΛ], [0, S]] the right side of Theorem 4 dominates CᵀC, so for every
contraction U = [U₁ U₂] the choice [H G] = U·C, H = U₁ and G = −U₁WΛ + U₂S, satisfies its condition.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.activations import slope_restricted
from lipcert.algebra.bounds import Bound, make_bound
from lipcert.algebra.gram import Columns, dense_columns
from lipcert.algebra.orthogonal import METHODS, orthonormal, squared_norm
from lipcert.algebra.scale import at_least_float32, inverse, inverse_sqrt, no_autocast, scaled_bias
from lipcert.errors import one_of, positive_int
from lipcert.layers.contract import BoundedLayer, check_features


class GeneralLinear(BoundedLayer):
    """h(x) = U₁(x − WΛσ(z)) + U₂Λ^½σ(z), z = Wᵀx + b, Λ = T⁻¹, [U₁ U₂] orthonormal: from ℝᵐ to ℝᵏ.

    Args:
        in_features: m, the size of x.
        hidden: n, the number of columns of W.
        out_features: k, the size of h(x).
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``hidden`` columns.
        method: how [U₁ U₂] is made orthonormal, as in ``OrthogonalLinear``.
        activation: σ, with slope in [0, 1].

    Shape:
        (*, m) → (*, k). ``weight`` stores Wᵀ, (n, m); ``mixing`` parametrises [U₁ U₂], (k, m + n).
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        *,
        bound: str | Bound = "sll",
        method: str = "cayley",
        activation: str = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = positive_int("in_features", in_features)
        self.hidden = positive_int("hidden", hidden)
        self.out_features = positive_int("out_features", out_features)
        self.method = one_of("method", method, METHODS)
        self.activation = slope_restricted(activation)
        self.bound = make_bound(bound, hidden, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(hidden, in_features, device=device, dtype=dtype))
        self.mixing = nn.Parameter(torch.empty(out_features, in_features + hidden, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        nn.init.xavier_normal_(self.mixing)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -(self.in_features**-0.5), self.in_features**-0.5)

    def check(self, x: Tensor) -> None:
        check_features(x, self.in_features, self)

    def arrange(self, weight: Tensor) -> Columns:
        return dense_columns(weight)

    def contraction(self) -> tuple[Tensor, Tensor]:  # (k, m), (k, n)
        """U₁ and U₂, divided by what their measured deviation from orthonormal may add to the norm."""
        u = orthonormal(at_least_float32(self.mixing), self.method)
        u = u * squared_norm(u, self.method).rsqrt()
        return u[:, : self.in_features], u[:, self.in_features :]

    def compute(self, x: Tensor) -> Tensor:
        with no_autocast(x):
            unit, scale = self.prepared()
            columns, t = self.bounded(unit)
            weight, lam, root = columns.matrix(), inverse(t), inverse_sqrt(t)
            bias = scaled_bias(self.bias, scale, t)
            u1, u2 = self.contraction()
        z = self.activation.scaled(F.linear(x, weight, bias), scale)  # σ(Wᵀx + b)/s, (*, n)
        return F.linear(x - F.linear(z * lam, weight.mT), u1) + F.linear(z * root, u2)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.hidden}, {self.out_features}, method={self.method!r}, "
            f"activation={self.activation.name!r}, bias={self.bias is not None}"
        )
