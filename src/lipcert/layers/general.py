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
from lipcert.algebra.gram import Columns, dense_columns, residual_columns
from lipcert.algebra.orthogonal import METHODS, orthonormal, squared_norm
from lipcert.algebra.scale import at_least_float32, inverse, inverse_sqrt, no_autocast, scaled_bias
from lipcert.errors import one_of, pair, positive_int
from lipcert.layers.contract import BoundedLayer, check_features
from lipcert.layers.convolution import channels_last, check_image, check_padding_mode, pad_circular, unpad_circular


class _General(BoundedLayer):
    """[U₁ U₂] of both forms."""

    mixing: nn.Parameter
    method: str
    inputs: int  # m

    def contraction(self) -> tuple[Tensor, Tensor]:  # (k, m), (k, n)
        """U₁ and U₂, divided by what their measured deviation from orthonormal may add to the norm."""
        u = orthonormal(at_least_float32(self.mixing), self.method)
        u = u * squared_norm(u, self.method).rsqrt()
        return u[:, : self.inputs], u[:, self.inputs :]


class GeneralLinear(_General):
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
        self.in_features = self.inputs = positive_int("in_features", in_features)
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


class GeneralConv2d(_General):
    """The same with Wᵀ a convolution of stride 1 and [U₁ U₂] acting on the channels of each pixel.

    Args:
        in_channels: m, of x.
        hidden: n, channels of Wᵀx.
        out_channels: k, of h(x).
        kernel_size: of Wᵀ, odd, so that every pixel has its neurons.
        padding_mode: ``zeros`` or ``circular``.
        bound, method, activation, bias: as in ``GeneralLinear``.

    Shape:
        (N, m, H, W) → (N, k, H, W). ``weight`` is (n, m, kernel_h, kernel_w); ``mixing`` is (k, m + n).
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        padding_mode: str = "zeros",
        bound: str | Bound = "sll",
        method: str = "cayley",
        activation: str = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = self.inputs = positive_int("in_channels", in_channels)
        self.hidden = positive_int("hidden", hidden)
        self.out_channels = positive_int("out_channels", out_channels)
        self.kernel_size, self.stride, self.groups = pair("kernel_size", kernel_size), (1, 1), 1
        if any(size % 2 == 0 for size in self.kernel_size):
            raise ValueError(f"kernel_size must be odd; got {self.kernel_size}. Use 3: neurons sit on the pixels.")
        self.padding = (self.kernel_size[0] // 2, self.kernel_size[1] // 2)
        self.padding_mode = check_padding_mode(padding_mode, self.padding, self.kernel_size)
        self.method = one_of("method", method, METHODS)
        self.activation = slope_restricted(activation)
        self.bound = make_bound(bound, hidden, convolution=True, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(hidden, in_channels, *self.kernel_size, device=device, dtype=dtype))
        self.mixing = nn.Parameter(torch.empty(out_channels, in_channels + hidden, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        nn.init.xavier_normal_(self.mixing)
        if self.bias is not None:
            limit = self.weight[0].numel() ** -0.5
            nn.init.uniform_(self.bias, -limit, limit)

    def check(self, x: Tensor) -> None:
        check_image(x, self.in_channels, self.kernel_size, self.padding, self)

    def arrange(self, weight: Tensor) -> Columns:
        return residual_columns(weight, self.stride, self.groups)

    def compute(self, x: Tensor) -> Tensor:
        with no_autocast(x):
            kernel, scale = self.prepared()
            _, t = self.bounded(kernel)
            lam, root = inverse(t)[:, None, None], inverse_sqrt(t)[:, None, None]
            bias = scaled_bias(self.bias, scale, t)
            u1, u2 = (u[:, :, None, None] for u in self.contraction())
        x = channels_last(x)
        padding = (0, 0) if self.padding_mode == "circular" else self.padding
        padded = pad_circular(x, self.padding) if self.padding_mode == "circular" else x
        z = self.activation.scaled(F.conv2d(padded, kernel, bias, 1, padding), scale)  # σ(Wᵀx + b)/s
        back = F.conv_transpose2d(z * lam, kernel, None, 1, padding)
        back = unpad_circular(back, self.padding) if self.padding_mode == "circular" else back
        return F.conv2d(x - back, u1) + F.conv2d(z * root, u2)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.hidden}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"padding_mode={self.padding_mode!r}, method={self.method!r}, activation={self.activation.name!r}, "
            f"bias={self.bias is not None}"
        )
