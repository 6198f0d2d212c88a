"""Affine layers g(x) = WT^(−½)x + b, dense and convolutional (Theorem 1, statement 1; Theorem 7 for SLL's T).

The scale of W cancels: WT^(−½) = ŴT̂^(−½). Follow an affine layer by any 1-Lipschitz activation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.algebra.bounds import Bound, make_bound
from lipcert.algebra.gram import Columns, affine_columns, dense_columns
from lipcert.algebra.scale import inverse_sqrt, no_autocast
from lipcert.errors import one_of, pair, positive_int
from lipcert.layers.contract import BoundedLayer, check_features
from lipcert.layers.convolution import (
    channels_last,
    check_divides,
    check_groups,
    check_image,
    check_padding_mode,
    pad_circular,
)


class AffineLinear(BoundedLayer):
    """g(x) = WT^(−½)x + b, 1-Lipschitz whenever WᵀW ⪯ T.

    Args:
        in_features: n, the number of columns of W.
        out_features: m, the number of rows of W.
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``in_features`` columns.
        bias: whether b is learned.

    Shape:
        (*, n) → (*, m). ``weight`` stores W, (m, n), as ``nn.Linear`` does.

    ``bound="aol"`` is AOL, ``"spectral"`` spectral normalisation, ``"sll"`` Theorem 7.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bound: str | Bound = "aol",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = positive_int("in_features", in_features)
        self.out_features = positive_int("out_features", out_features)
        self.bound = make_bound(bound, in_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        orthogonal_start_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def check(self, x: Tensor) -> None:
        check_features(x, self.in_features, self)

    def arrange(self, weight: Tensor) -> Columns:
        return dense_columns(weight.mT)

    def scaled_weight(self) -> Tensor:  # (m, n)
        """WT^(−½), a matrix of norm at most 1."""
        with no_autocast(self.weight):
            columns, t = self.bounded(self.prepared()[0])
            return columns.matrix().mT * inverse_sqrt(t)

    def compute(self, x: Tensor) -> Tensor:
        return F.linear(x, self.scaled_weight(), None if self.bias is None else self.bias.to(x.dtype))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class AffineConv2d(BoundedLayer):
    """g(x) = WT^(−½)x + b with W a convolution, 1-Lipschitz whenever WᵀW ⪯ T.

    Args:
        in_channels, out_channels, kernel_size, stride, groups: as in ``nn.Conv2d``. There is no dilation.
        padding: an integer, a pair, or "same" (odd kernels, stride 1).
        padding_mode: ``zeros``, any amount, or ``circular``, at most (kernel − 1)/2 and only on images
            divisible by the stride. Reflect and replicate padding are refused.
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``in_channels`` columns.

    Shape:
        (N, in_channels, H, W) → (N, out_channels, H′, W′) as in ``nn.Conv2d``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        padding_mode: str = "zeros",
        groups: int = 1,
        bound: str | Bound = "aol",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int("in_channels", in_channels)
        self.out_channels = positive_int("out_channels", out_channels)
        self.kernel_size, self.stride = pair("kernel_size", kernel_size), pair("stride", stride)
        self.padding = self._padding(padding)
        self.padding_mode = check_padding_mode(padding_mode, self.padding, self.kernel_size)
        self.groups = check_groups(groups, in_channels=in_channels, out_channels=out_channels)
        self.bound = make_bound(bound, in_channels, convolution=True, device=device, dtype=dtype)
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels // groups, *self.kernel_size, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def _padding(self, padding: int | tuple[int, int] | str) -> tuple[int, int]:
        if not isinstance(padding, str):
            return pair("padding", padding, least=0)
        one_of("padding", padding, ("same",), cure="Or pass an integer or a pair of integers.")
        if any(k % 2 == 0 for k in self.kernel_size) or self.stride != (1, 1):
            raise ValueError(
                f"padding='same' needs an odd kernel and stride 1; got kernel {self.kernel_size} and stride "
                f"{self.stride}. Pass the padding as a number."
            )
        return self.kernel_size[0] // 2, self.kernel_size[1] // 2

    def reset_parameters(self) -> None:
        start = torch.zeros(self.weight.shape, device=self.weight.device)
        if self.stride == (1, 1):  # an orthogonal matrix at the centre: norm-preserving whatever the image
            part = start[:, :, self.kernel_size[0] // 2, self.kernel_size[1] // 2]
        else:  # an orthogonal map of each patch
            part = start.flatten(1)
        for group in part.chunk(self.groups):
            orthogonal_start_(group)
        with torch.no_grad():
            self.weight.copy_(start)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def check(self, x: Tensor) -> None:
        check_image(x, self.in_channels, self.kernel_size, self.padding, self)
        if self.padding_mode == "circular":
            check_divides(x, self.stride)

    def arrange(self, weight: Tensor) -> Columns:
        return affine_columns(weight, self.stride, self.groups)

    def scaled_weight(self) -> Tensor:  # (out, in/groups, kh, kw)
        """The kernel of WT^(−½), an operator of norm at most 1."""
        with no_autocast(self.weight):
            kernel, _ = self.prepared()
            _, t = self.bounded(kernel)
            per_group = inverse_sqrt(t).view(self.groups, 1, -1, 1, 1)  # input channels of each group
            return (kernel.unflatten(0, (self.groups, -1)) * per_group).flatten(0, 1)

    def compute(self, x: Tensor) -> Tensor:
        kernel, bias = self.scaled_weight(), None if self.bias is None else self.bias.to(x.dtype)
        x = channels_last(x)
        if self.padding_mode == "circular":
            return F.conv2d(pad_circular(x, self.padding), kernel, bias, self.stride, groups=self.groups)
        return F.conv2d(x, kernel, bias, self.stride, self.padding, groups=self.groups)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, padding_mode={self.padding_mode!r}, groups={self.groups}, "
            f"bias={self.bias is not None}"
        )


def orthogonal_start_(weight: Tensor) -> None:
    """Orthonormal rows or columns: a stack of affine layers then starts without losing signal."""
    start = torch.empty(weight.shape, device=weight.device, dtype=torch.float32)
    with torch.no_grad():
        weight.copy_(nn.init.orthogonal_(start))
