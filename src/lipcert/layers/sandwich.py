"""Sandwich layers √2AᵀΨσ(√2Ψ⁻¹Bx + b) with AAᵀ + BBᵀ = I (Wang & Manchester 2023), dense and convolutional.

They are the case U₁ = 0 of Theorem 4. Ψ and the slopes D of σ commute, so that the Jacobian is 2AᵀDB: what the
residual y − 2Mᵀσ(My), M = [B −A], makes of the zeros in y = (x, 0). Hence L ≤ 1 whenever ‖M‖ ≤ 1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.activations import SlopeRestricted, slope_restricted
from lipcert.algebra.orthogonal import orthonormal, squared_norm
from lipcert.algebra.scale import at_least_float32, no_autocast, scaled_bias
from lipcert.errors import positive_int
from lipcert.layers.affine import orthogonal_start_
from lipcert.layers.contract import LipschitzLayer, check_activation, check_features
from lipcert.layers.orthogonal_conv import OnTorus

LOG_PSI = 20.0  # |log ψ| is cut here: what float32 can carry beside a bias
START = math.sqrt(2) - 1  # of the lower block of Cayley's map: A and B begin with equal norms


class _Sandwich(LipschitzLayer):
    """Ψ, b and σ of both forms."""

    activation: SlopeRestricted
    log_psi: nn.Parameter
    bias: nn.Parameter | None

    def _start_plain(self) -> None:
        nn.init.zeros_(self.log_psi)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def psi(self) -> Tensor:
        return at_least_float32(self.log_psi).clamp(-LOG_PSI, LOG_PSI).exp()

    def middle(self, u: Tensor, axes: int) -> Tensor:
        """√2Ψσ(√2Ψ⁻¹u + b), neurons along dimension −1 − ``axes``."""
        psi = self.psi().to(u.dtype)
        bias, each = scaled_bias(self.bias, 1 / psi, torch.ones_like(psi)), (-1, *[1] * axes)
        u = math.sqrt(2) * u if bias is None else math.sqrt(2) * u + bias.view(each)
        return math.sqrt(2) * self.activation.scaled(u, (1 / psi).view(each))

    def proved_constant(self) -> float:
        check_activation(self.activation)
        return 1.0


class SandwichLinear(_Sandwich):
    """h(x) = √2AᵀΨσ(√2Ψ⁻¹Bx + b), AAᵀ + BBᵀ = I by Cayley's map: from ℝᵐ to ℝᵏ, 1-Lipschitz.

    Args:
        in_features: m, the size of x.
        out_features: k, the size of h(x), and the number of neurons.
        activation: σ, with slope in [0, 1].
        bias: whether b is learned.

    Shape:
        (*, m) → (*, k). ``weight`` parametrises [A B], (k, k + m); ``log_psi`` is the logarithm of Ψ.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: str = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = positive_int("in_features", in_features)
        self.out_features = self.hidden = positive_int("out_features", out_features)
        self.activation = slope_restricted(activation)
        self.weight = nn.Parameter(
            torch.empty(out_features, out_features + in_features, device=device, dtype=dtype)
        )
        self.log_psi = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        start_balanced_(self.weight)
        self._start_plain()

    def matrix(self) -> Tensor:  # (k, k + m)
        """[A B], divided by what its measured deviation from orthonormal may add to the norm."""
        made = orthonormal(at_least_float32(self.weight), "cayley")
        return made * squared_norm(made, "cayley").rsqrt()

    def forward(self, x: Tensor) -> Tensor:
        check_features(x, self.in_features, self)
        with no_autocast(x):
            made = self.matrix()
            z = self.middle(F.linear(at_least_float32(x), made[:, self.hidden :]), 0)
            return F.linear(z, made[:, : self.hidden].mT).to(x.dtype)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, activation={self.activation.name!r}, "
            f"bias={self.bias is not None}"
        )


class SandwichConv2d(_Sandwich, OnTorus):
    """The same with A and B circular convolutions, orthonormal together at each frequency of the image.

    Args:
        in_channels, out_channels: as in ``nn.Conv2d``; there are as many neurons per pixel as output channels.
        kernel_size: of the free parameters. A and B themselves cover the image.
        image_size: height and width of x.
        stride: pixels are first moved into channels, s² for each.
        activation: σ, with slope in [0, 1].
        bias: whether b is learned.

    Shape:
        (N, in_channels, H, W) → (N, out_channels, H/stride, W/stride), circular at the borders.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        image_size: int | tuple[int, int],
        stride: int = 1,
        activation: str = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int("in_channels", in_channels)
        self.out_channels = self.hidden = positive_int("out_channels", out_channels)
        self.activation = slope_restricted(activation)
        self.log_psi = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype))
        columns = out_channels + in_channels * positive_int("stride", stride) ** 2
        biases = out_channels if bias else None
        self.set_up(out_channels, columns, kernel_size, image_size, "cayley", stride, biases, device, dtype)

    def reset_parameters(self) -> None:
        self._start_plain()
        with torch.no_grad():
            start_balanced_(self.weight.zero_()[:, :, self.kernel_size[0] // 2, self.kernel_size[1] // 2])

    def forward(self, x: Tensor) -> Tensor:
        self.check(x, self.in_channels)
        batch = at_least_float32(x if x.ndim == 4 else x[None])
        with no_autocast(x):
            made = self.matrices()
            z = self.convolved(made[..., self.hidden :], self.rearranged(batch))
            y = self.convolved(made[..., : self.hidden].mH, self.middle(z, 2))
        return (y if x.ndim == 4 else y[0]).to(x.dtype)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, stride={self.stride}, activation={self.activation.name!r}, "
            f"{self.shared_repr()}"
        )


def start_balanced_(weight: Tensor) -> None:  # (n, n + m)
    """Such that Cayley's map gives A = I/√2 and B = Q/√2: h(x) = σ(Qx), Q = I where n = m, else orthonormal.

    A random Q between layers would lose half of the signal in each ReLU; with I, what one layer lets through
    passes all that follow.
    """
    n = len(weight)
    start = torch.zeros(weight.shape, device=weight.device)
    if weight.shape[1] == 2 * n:
        nn.init.eye_(start[:, n:])
    else:
        orthogonal_start_(start[:, n:])
    with torch.no_grad():
        weight.copy_(start * -START)
