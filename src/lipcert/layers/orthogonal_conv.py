"""Orthogonal convolutions Qx + b on circular images, and their residual form (Theorem 1 with T = I).

A stride is a rearrangement first (``SpaceToDepth``), so every layer is a convolution of stride 1 that is orthogonal
at each frequency of its image (``algebra.torus``). The image's size is part of the layer: on another one, or with
zeros around it, the same kernel would not be orthogonal.

Q is divided by a bound of its norm as computed, so that an inexact inverse or a series cut short never counts as 1.
"""

from __future__ import annotations

import abc

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.activations import slope_restricted
from lipcert.algebra.orthogonal import orthonormal, squared_norm
from lipcert.algebra.scale import at_least_float32, no_autocast, normalise, scaled_bias
from lipcert.algebra.torus import (
    MAPS,
    apply,
    block_composition,
    kernel_of,
    symbols,
)
from lipcert.errors import NotCertified, one_of, pair, positive_int
from lipcert.layers.affine import orthogonal_start_
from lipcert.layers.contract import LipschitzLayer, check_activation


class OnTorus(LipschitzLayer, abc.ABC):
    """A kernel of ``rows`` × ``columns`` channels that is made orthogonal at each frequency of a circular image."""

    def set_up(
        self,
        rows: int,
        columns: int,
        kernel_size: int | tuple[int, int],
        image_size: int | tuple[int, int],
        method: str,
        stride: int,
        bias: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        self.kernel_size, self.image_size = pair("kernel_size", kernel_size), pair("image_size", image_size)
        self.method, self.stride = one_of("method", method, tuple(sorted(MAPS))), positive_int("stride", stride)
        if any(size % self.stride for size in self.image_size):
            raise ValueError(
                f"stride must divide image_size; got stride {stride} for {self.image_size}. Use PadImage before it."
            )
        inner = (self.image_size[0] // self.stride, self.image_size[1] // self.stride)
        if method == "eco" and any(size % k for k, size in zip(self.kernel_size, inner, strict=True)):
            raise NotCertified(
                f"method 'eco' needs an image that its kernel divides; got a kernel {self.kernel_size} on {inner}. "
                "Use kernel_size=2 or 4, or another method."
            )
        if method == "bcop" and any(k // 2 > size for k, size in zip(self.kernel_size, inner, strict=True)):
            raise ValueError(
                f"method 'bcop' needs a kernel that goes round the image at most once; got {self.kernel_size} on "
                f"{inner} after the stride. Use a smaller one."
            )
        if method == "bcop" and (self.kernel_size[0] != self.kernel_size[1] or self.kernel_size[0] % 2 == 0):
            raise ValueError(
                f"method 'bcop' needs a square kernel with an odd side; got {self.kernel_size}. Use kernel_size=3."
            )
        self.inner = inner  # the circular image in strides
        self.torus = self.kernel_size if method == "eco" else inner  # where the symbols live
        self.rows, self.columns = rows, columns
        taps = (1, 1) if method == "bcop" else self.kernel_size
        channels, steps = max(rows, columns), 2 * (self.kernel_size[0] - 1)
        sizes = (channels, channels) if MAPS[method] == "exp" else (rows, columns)  # a block of a square one
        self.weight = nn.Parameter(torch.empty(*sizes, *taps, device=device, dtype=dtype))
        self.projections: nn.Parameter | None = None
        if method == "bcop" and channels > 1 and steps:
            self.projections = nn.Parameter(torch.empty(steps, channels, channels // 2, device=device, dtype=dtype))
        self.bias = None if bias is None else nn.Parameter(torch.empty(bias, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        start = torch.zeros(self.weight.shape, device=self.weight.device)
        orthogonal_start_(start[:, :, start.shape[2] // 2, start.shape[3] // 2])  # one tap: Q moves nothing far
        with torch.no_grad():
            self.weight.copy_(start)
        if self.projections is not None:
            nn.init.normal_(self.projections)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def composed(self) -> Tensor:  # (rows, columns, k, k), at least float32
        """The kernel of ``bcop``, orthogonal on every image; one tap where there is nothing to compose."""
        matrix = at_least_float32(self.weight)[:, :, 0, 0]
        if self.projections is None:
            return orthonormal(matrix, MAPS["bcop"])[:, :, None, None]
        return block_composition(matrix, at_least_float32(self.projections), MAPS["bcop"])

    def matrices(self) -> Tensor:  # (frequencies, rows, columns), complex
        """Q at half of the frequencies, of norm at most 1 but for rounding; not for ``bcop``."""
        unit, scale = normalise(self.weight)  # sums over taps must not overflow; no map tells 2⁴⁰ from more
        made = orthonormal(symbols(unit * scale.clamp_max(2.0**40), self.torus), MAPS[self.method])
        made = made * squared_norm(made.detach(), MAPS[self.method]).rsqrt()
        return made[..., : self.rows, : self.columns]

    def kernel(self) -> Tensor:  # (rows, columns, K, K′), both odd
        """The same as a kernel of ``nn.Conv2d`` with circular padding (K − 1)/2 on images in strides."""
        if self.method == "bcop":
            made = self.composed()
            return made * squared_norm(symbols(made.detach(), self.torus), MAPS["bcop"]).rsqrt()
        return kernel_of(self.matrices(), self.torus, self.apart)

    @property
    def apart(self) -> tuple[int, int]:
        """How far apart the taps of ``eco`` are; 1 for the others."""
        return self.inner[0] // self.torus[0], self.inner[1] // self.torus[1]

    def operator(self) -> Tensor:
        """Q by its matrices, or where it has few taps, (rows, columns, taps, taps), by those."""
        if self.method == "bcop":
            return self.kernel()
        if self.method == "eco":
            return kernel_of(self.matrices(), self.torus)[..., : self.torus[0], : self.torus[1]]
        return self.matrices()

    def convolved(self, operator: Tensor, x: Tensor) -> Tensor:  # (N, columns, H, W) → (N, rows, H, W)
        if operator.ndim == 3:
            return apply(operator, x)
        (high, wide), (up, left) = operator.shape[2:], (size // 2 for size in operator.shape[2:])
        margins = (left, wide - 1 - left, up, high - 1 - up)
        high_apart, wide_apart = self.apart
        steps = (wide_apart, wide_apart, high_apart, high_apart)
        padded = F.pad(x, [m * s for m, s in zip(margins, steps, strict=True)], mode="circular")
        return F.conv2d(padded, operator, dilation=self.apart)

    def adjoint(self, operator: Tensor) -> Tensor:
        """Qᵀ in the form of ``operator``: taps at opposite places, counted round the circle where they are even."""
        if operator.ndim == 3:
            return operator.mH
        even = [1 - size % 2 for size in operator.shape[2:]]
        return operator.transpose(0, 1).flip(2, 3).roll(even, (2, 3))

    def rearranged(self, x: Tensor) -> Tensor:
        """Pixels to channels, as the stride says; ``pixel_unshuffle`` would leave an empty batch as it is."""
        if self.stride == 1:
            return x
        if len(x):
            return F.pixel_unshuffle(x, self.stride)
        return x.new_zeros(0, x.shape[1] * self.stride**2, *self.inner)

    def check(self, x: Tensor, channels: int) -> None:
        if x.ndim not in (3, 4) or tuple(x.shape[-3:]) != (channels, *self.image_size):
            raise ValueError(
                f"{type(self).__name__} expects (N, {channels}, {self.image_size[0]}, {self.image_size[1]}); got "
                f"{tuple(x.shape)}. Its image_size is part of it: build it for the images there are."
            )

    def shared_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, image_size={self.image_size}, method={self.method!r}, "
            f"bias={self.bias is not None}"
        )


class OrthogonalConv2d(OnTorus):
    """g(x) = Qx + b with Q an orthogonal circular convolution; rows or columns orthonormal, whichever are fewer.

    Args:
        in_channels, out_channels: as in ``nn.Conv2d``.
        kernel_size: of the free parameters. The orthogonal kernel itself covers the image, but for ``bcop``.
        image_size: height and width of x.
        method: ``cayley``, ``exp`` (SOC), ``lot``, ``eco`` (an image that the kernel divides), ``reflector``
            (BRO), ``bcop`` (odd square kernels).
        stride: pixels are first moved into channels, s² for each, as the papers do.
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
        method: str = "cayley",
        stride: int = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int("in_channels", in_channels)
        self.out_channels = positive_int("out_channels", out_channels)
        columns = in_channels * positive_int("stride", stride) ** 2
        biases = out_channels if bias else None
        self.set_up(out_channels, columns, kernel_size, image_size, method, stride, biases, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x, self.in_channels)
        batch = at_least_float32(x if x.ndim == 4 else x[None])
        with no_autocast(x):
            y = self.convolved(self.operator(), self.rearranged(batch))
            if self.bias is not None:
                y = y + at_least_float32(self.bias)[:, None, None]
        return (y if x.ndim == 4 else y[0]).to(x.dtype)

    def proved_constant(self) -> float:
        return 1.0

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, stride={self.stride}, {self.shared_repr()}"


class OrthogonalResidualConv2d(OnTorus):
    """h(x) = x − 2Qσ(Qᵀx + b) with Qᵀ an orthogonal circular convolution (Theorem 1, statement 2).

    Args:
        channels: of x and of h(x).
        hidden: channels of Qᵀx.
        kernel_size, image_size, method: as in ``OrthogonalConv2d``.
        activation: σ, with slope in [0, 1].

    Shape:
        (N, channels, H, W) → the same.
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        image_size: int | tuple[int, int],
        method: str = "cayley",
        activation: str = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.hidden = positive_int("channels", channels), positive_int("hidden", hidden)
        self.activation = slope_restricted(activation)
        biases = hidden if bias else None
        self.set_up(hidden, channels, kernel_size, image_size, method, 1, biases, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x, self.channels)
        batch = at_least_float32(x if x.ndim == 4 else x[None])
        with no_autocast(x):
            operator = self.operator()
            z = self.convolved(operator, batch)
            one = torch.ones(self.hidden, device=z.device, dtype=z.dtype)
            bias = scaled_bias(self.bias, one[0], one)
            z = z if bias is None else z + bias[:, None, None]
            y = batch - 2 * self.convolved(self.adjoint(operator), self.activation.function(z))
        return (y if x.ndim == 4 else y[0]).to(x.dtype)

    def proved_constant(self) -> float:
        check_activation(self.activation)
        return 1.0

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.hidden}, activation={self.activation.name!r}, {self.shared_repr()}"
