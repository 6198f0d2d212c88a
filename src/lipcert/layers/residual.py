"""Residual layers h(x) = x − 2WT⁻¹σ(Wᵀx + b), dense and convolutional (Theorem 1, statement 2).

The weight is used as Ŵ = W/s with T̂ = T/s², the same function for every s (``algebra.scale``):
h(x) = x − ŴΓ̂·2σ(s·(Ŵᵀx + b/s))/s. The two products use one weight and exact adjoints, so the
Jacobian I − 2WΓDWᵀ is symmetric, and 0 ⪯ WΓDWᵀ ⪯ I bounds its norm by 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.activations import slope_restricted
from lipcert.algebra.bounds import AOL, SLL, Bound, make_bound
from lipcert.algebra.gram import Columns, dense_columns, residual_columns
from lipcert.algebra.scale import autocasting, inverse, no_autocast, normalise_rows, scaled_bias
from lipcert.errors import pair, positive_int
from lipcert.layers.contract import BoundedLayer, check_features
from lipcert.layers.convolution import (
    channels_last,
    check_divides,
    check_groups,
    check_image,
    check_padding_mode,
    pad_circular,
    unpad_circular,
)
from lipcert.layers.pair import fits, relu_residual, sampled_residual


class ResidualLinear(BoundedLayer):
    """h(x) = x − 2WT⁻¹σ(Wᵀx + b), 1-Lipschitz whenever WᵀW ⪯ T.

    Args:
        features: m, the size of x.
        hidden: n, the number of columns of W.
        bound: the choice of T, a name or an object of ``lipcert.bounds``.
        activation: σ, with slope in [0, 1].
        bias: whether b is learned; without it b = 0.

    Shape:
        (*, m) → (*, m). ``weight`` stores Wᵀ, (n, m), as ``nn.Linear`` does.

    ``bound="spectral"`` is CPL, ``"aol"`` residual AOL, ``"sll"`` SLL, ``"orthogonal"`` the residual
    orthogonal layer x − 2Wσ(Wᵀx + b) with WᵀW = I.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        bound: str | Bound = "sll",
        activation: str = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.features, self.hidden = positive_int("features", features), positive_int("hidden", hidden)
        self.activation = slope_restricted(activation)
        self.bound = make_bound(bound, hidden, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(hidden, features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -(self.features**-0.5), self.features**-0.5)

    def check(self, x: Tensor) -> None:
        check_features(x, self.features, self)

    def arrange(self, weight: Tensor) -> Columns:
        return dense_columns(weight)

    def prepared(self) -> tuple[Tensor, Tensor]:
        rough = type(self.bound) in (AOL, SLL)  # no powers are taken
        return normalise_rows(self.weight) if rough else super().prepared()

    def compute(self, x: Tensor) -> Tensor:
        plain = self.activation.name == "relu" and fits(x, *self.parameters())
        with no_autocast(x):
            unit, scale = self.prepared()
            if plain and type(self.bound) is SLL and self.bound.estimates(self.hidden) and not self.keeper.sharing:
                q, _ = self.bound.weights(unit.dtype)
                bias = scaled_bias(self.bias, scale, torch.ones_like(q))
                return sampled_residual(x, unit, bias, q, self.bound.sample)
            columns, t = self.bounded(unit)
            weight, gamma = columns.matrix(), inverse(t)
            bias = scaled_bias(self.bias, scale, t)
        if plain:
            return relu_residual(x, weight, bias, 2 * gamma)
        z = self.activation.scaled(F.linear(x, weight, bias), scale) * (2 * gamma)  # 2Γσ(Wᵀx + b)/s, (*, n)
        if x.ndim == 2 and x.dtype == z.dtype and not autocasting(x):  # the difference within the product
            return torch.addmm(x, z, weight, alpha=-1)
        return x - F.linear(z, weight.mT)

    def extra_repr(self) -> str:
        return f"{self.features}, {self.hidden}, activation={self.activation.name!r}, bias={self.bias is not None}"


class ResidualConv2d(BoundedLayer):
    """h(x) = x − 2WT⁻¹σ(Wᵀx + b) with Wᵀ a convolution and W its exact adjoint.

    Args:
        channels: of x and of h(x).
        hidden: channels of Wᵀx.
        kernel_size, stride, groups: of Wᵀ. A stride thins the hidden neurons; the output keeps the input's shape.
        padding_mode: ``zeros`` or ``circular``. The padding is k//2, so an odd kernel is "same". Reflect and
            replicate padding can double the norm and are refused.
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``hidden`` columns.
        activation: σ, with slope in [0, 1].

    Shape:
        (N, channels, H, W) → the same, for any H and W; ``circular`` needs H and W divisible by the stride.
        ``weight`` is (hidden, channels/groups, kernel_h, kernel_w), as in ``nn.Conv2d``.
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        stride: int | tuple[int, int] = 1,
        padding_mode: str = "zeros",
        groups: int = 1,
        bound: str | Bound = "sll",
        activation: str = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.hidden = positive_int("channels", channels), positive_int("hidden", hidden)
        self.kernel_size, self.stride = pair("kernel_size", kernel_size), pair("stride", stride)
        self.padding = (self.kernel_size[0] // 2, self.kernel_size[1] // 2)
        self.padding_mode = check_padding_mode(padding_mode, self.padding, self.kernel_size)
        self.groups = check_groups(groups, channels=channels, hidden=hidden)
        self.activation = slope_restricted(activation)
        self.bound = make_bound(bound, hidden, convolution=True, device=device, dtype=dtype)
        self.weight = nn.Parameter(
            torch.empty(hidden, channels // self.groups, *self.kernel_size, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        if self.bias is not None:
            limit = self.weight[0].numel() ** -0.5
            nn.init.uniform_(self.bias, -limit, limit)

    def check(self, x: Tensor) -> None:
        check_image(x, self.channels, self.kernel_size, self.padding, self)
        if self.padding_mode == "circular":
            check_divides(x, self.stride)

    def arrange(self, weight: Tensor) -> Columns:
        return residual_columns(weight, self.stride, self.groups)

    def compute(self, x: Tensor) -> Tensor:
        with no_autocast(x):
            kernel, scale = self.prepared()
            _, t = self.bounded(kernel)
            bias = scaled_bias(self.bias, scale, t)
            back = kernel * (-2 * inverse(t))[:, None, None, None]  # −2WΓ: a kernel is smaller than an image
        x = channels_last(x)
        image = x.shape[-2:]
        padding = self.padding
        if self.padding_mode == "circular":
            z = F.conv2d(pad_circular(x, padding), kernel, bias, self.stride, groups=self.groups)
        else:
            z = F.conv2d(x, kernel, bias, self.stride, padding, groups=self.groups)
        z = self.activation.scaled(z, scale)  # σ(Wᵀx + b)/s
        if self.padding_mode == "circular":
            padded = (image[0] + 2 * padding[0], image[1] + 2 * padding[1])
            return x + unpad_circular(self._adjoint(z, back, padded, (0, 0)), padding)
        return x + self._adjoint(z, back, image, padding)

    def _adjoint(self, z: Tensor, kernel: Tensor, image: tuple[int, ...], padding: tuple[int, int]) -> Tensor:
        """The transpose of x ↦ conv2d(x) on images of that size: rows the stride skips come back as zeros."""
        missing = [
            size - ((out - 1) * s - 2 * p + k)
            for size, out, s, p, k in zip(image, z.shape[-2:], self.stride, padding, self.kernel_size, strict=True)
        ]
        return F.conv_transpose2d(z, kernel, None, self.stride, padding, missing, self.groups)

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, {self.hidden}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, groups={self.groups}, "
            f"activation={self.activation.name!r}, bias={self.bias is not None}"
        )
