"""The forms of Theorems 1 and 4 over any operator: affine, residual, general. Public classes choose the operator.

A form holds a weight, a bias and a choice of T. It is 1-Lipschitz whenever WᵀW ⪯ T, whatever the operator.
"""

from __future__ import annotations

import abc
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.activations import SlopeRestricted, slope_restricted
from lipcert.algebra.bounds import AOL, SLL, Bound, Orthogonal, Spectral, make_bound
from lipcert.algebra.gram import Columns
from lipcert.algebra.orthogonal import METHODS, orthonormal, require_rank, squared_norm
from lipcert.algebra.scale import (
    at_least_float32,
    autocasting,
    inverse,
    inverse_sqrt,
    no_autocast,
    normalize_rows,
    scaled_bias,
)
from lipcert.errors import one_of, positive_int
from lipcert.layers.contract import BoundedLayer, NonExpansive
from lipcert.layers.fused import fits, normalized_linear, sampled_residual
from lipcert.layers.operators import Circular, Conv, ConvTranspose, Dense, Operator, sizes

LOG_PSI = 20.0  # |log ψ| is cut here: what float32 can carry beside a bias
START = math.sqrt(2) - 1  # of the lower block of Cayley's map: A and B begin with equal norms
Device = torch.device | str | None
Dtype = torch.dtype | None
Size = int | tuple[int, ...]


class Form(BoundedLayer):
    """A weight for one operator, a choice of T for its columns, and a bias."""

    operator: Operator | ConvTranspose

    def _set_up(
        self, operator: Operator | ConvTranspose, bound: str | Bound, columns: int, device: Device, dtype: Dtype
    ) -> None:
        self.operator = operator
        self.bound = make_bound(bound, columns, convolution=operator.axes > 0, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(operator.weight_shape, device=device, dtype=dtype))

    def _set_bias(self, wanted: bool) -> None:
        outputs, like = self.operator.outputs, self.weight
        empty = torch.empty(outputs, device=like.device, dtype=like.dtype)
        self.bias = nn.Parameter(empty) if wanted else None
        self.reset_parameters()
        self.bound.start(self.arrange(self.prepared()[0].detach()))

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        self._reset_bias()

    def _reset_bias(self) -> None:
        if self.bias is not None:
            limit = self.weight[0].numel() ** -0.5
            nn.init.uniform_(self.bias, -limit, limit)

    def check(self, x: Tensor) -> None:
        self.operator.require(x, self)

    def arrange(self, weight: Tensor) -> Columns:
        return self.operator.output_columns(weight)

    def extra_repr(self) -> str:
        sigma = "" if self.activation is None else f"activation={self.activation.name!r}, "
        return f"{self.operator}, {sigma}bias={self.bias is not None}"


class Affine(Form):
    """g(x) = WT^(−½)x + b, 1-Lipschitz whenever WᵀW ⪯ T (Theorem 1, statement 1; Theorem 7 for SLL's T).

    The scale of W cancels: WT^(−½) = ŴT̂^(−½). Follow an affine layer by any 1-Lipschitz activation.
    """

    def __init__(
        self, operator: Operator | ConvTranspose, bound: str | Bound, bias: bool, device: Device, dtype: Dtype
    ) -> None:
        super().__init__()
        self._set_up(operator, bound, operator.inputs, device, dtype)
        self._set_bias(bias)

    def reset_parameters(self) -> None:
        start = torch.zeros(self.weight.shape, device=self.weight.device)
        for part in self.operator.start(start):
            orthogonal_start_(part)
        with torch.no_grad():
            self.weight.copy_(start)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def arrange(self, weight: Tensor) -> Columns:
        return self.operator.input_columns(weight)

    def scaled_weight(self) -> Tensor:
        """The weight of WT^(−½), an operator of norm at most 1."""
        self.require_bound()
        return scaled_weight(self.operator, self.bound, self.weight)

    def compute(self, x: Tensor) -> Tensor:
        divided = self._divided(x)
        if divided is not None:
            return divided
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return self.operator.apply(self.scaled_weight(), x, bias)

    def _divided(self, x: Tensor) -> Tensor | None:
        """The layer in one step, where one estimate divides the whole of a dense weight."""
        bound = self.bound
        if not isinstance(self.operator, Dense) or type(bound) is not Spectral or not bound.estimates():
            return None
        # Looking at a number would wait on another device.
        if x.ndim != 2 or not fits(x, *self.parameters()) or autocasting(x) or x.device.type != "cpu":
            return None
        with torch.no_grad():
            least, most = self.weight.aminmax()
            if not 2.0**-30 < max(-float(least), float(most)) < 2.0**30:  # squares could leave float32
                return None
            v = bound.vector(self.arrange(self.weight))
        return normalized_linear(x, self.weight, self.bias, v)


def scaled_weight(operator: Operator | ConvTranspose, bound: Bound, weight: Tensor) -> Tensor:
    """The weight of WT^(−½), an operator of norm at most 1; T by a bound for the inputs of the operator."""
    with no_autocast(weight):
        unit, _ = bound.prepare(weight)
        columns, t = bound(operator.input_columns(unit))
        unit = operator.weight_of(columns, unit, of_inputs=True)
        return unit * operator.per_input(inverse_sqrt(t))


class Residual(Form):
    """h(x) = x − 2WT⁻¹σ(Wᵀx + b), 1-Lipschitz whenever WᵀW ⪯ T (Theorem 1, statement 2).

    The operator applies Wᵀ and its exact adjoint W, so that the Jacobian I − 2WT⁻¹DWᵀ is symmetric with eigenvalues
    in [−1, 1]. With W = s·Ŵ the layer is x − 2ŴT̂⁻¹σ(s(Ŵᵀx + b/s))/s.
    """

    operator: Operator
    activation: SlopeRestricted

    def __init__(
        self, operator: Operator, bound: str | Bound, activation: str, bias: bool, device: Device, dtype: Dtype
    ) -> None:
        super().__init__()
        self.activation = slope_restricted(activation)
        self._set_up(operator, bound, operator.outputs, device, dtype)
        self._set_bias(bias)

    def prepared(self) -> tuple[Tensor, Tensor]:
        rough = isinstance(self.operator, Dense) and type(self.bound) in (AOL, SLL)  # no powers are taken
        return normalize_rows(self.weight) if rough else super().prepared()

    def compute(self, x: Tensor) -> Tensor:
        with no_autocast(x):
            unit, scale = self.prepared()
            sampled = self._sampled(x)
            if sampled is not None:
                q, _ = sampled.weights(unit.dtype)
                bias = scaled_bias(self.bias, scale, torch.ones_like(q))
                return sampled_residual(x, unit, bias, q, sampled.sample)
            columns, t = self.bounded(unit)
            weight = self.operator.weight_of(columns, unit)
            bias, gain = scaled_bias(self.bias, scale, t), 2 * inverse(t)
        return self.operator.residual(x, weight, bias, gain, self.activation, scale)

    def _sampled(self, x: Tensor) -> SLL | None:
        """The bound, if its T is an estimate now and can share a product with the layer."""
        bound = self.bound
        if not isinstance(self.operator, Dense) or not isinstance(bound, SLL) or type(bound) is not SLL:
            return None
        usable = (
            x.ndim == 2 and self.activation.name == "relu" and fits(x, *self.parameters()) and not autocasting(x)
        )
        return bound if usable and bound.estimates(self.operator.outputs) else None


class General(Form):
    """h(x) = U₁(x − WΛσ(z)) + U₂Λ^½σ(z), z = Wᵀx + b, Λ = T⁻¹, [U₁ U₂] orthonormal (Theorem 4).

    It may change the width. Take WᵀW ⪯ T and Λ = T⁻¹, which is 2T′⁻¹ for T′ = 2T. Then S = Λ^½ has
    S² ⪯ 2Λ − ΛWᵀWΛ, because ΛWᵀWΛ ⪯ Λ. With C = [[I, −WΛ], [0, S]] the right side of Theorem 4 dominates CᵀC. So
    its condition holds for [H G] = U·C, that is H = U₁ and G = −U₁WΛ + U₂S, with every contraction U = [U₁ U₂].
    """

    operator: Operator
    activation: SlopeRestricted

    def __init__(
        self,
        operator: Operator,
        outputs: int,
        bound: str | Bound,
        method: str,
        activation: str,
        bias: bool,
        device: Device,
        dtype: Dtype,
    ) -> None:
        super().__init__()
        self.method = one_of("method", method, METHODS)
        self.activation = slope_restricted(activation)
        self._set_up(operator, bound, operator.outputs, device, dtype)
        shape = (positive_int("the number of outputs", outputs), operator.inputs + operator.outputs)
        self.mixing = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self._set_bias(bias)

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        nn.init.xavier_normal_(self.mixing)
        self._reset_bias()

    def contraction(self) -> tuple[Tensor, Tensor]:  # (k, m), (k, n)
        """U₁ and U₂, divided by what their measured deviation from orthonormal may add to the norm."""
        u = orthonormal(at_least_float32(self.mixing), self.method, training=self.training)
        u = u * squared_norm(u, self.method, training=self.training).rsqrt()
        return u[:, : self.operator.inputs], u[:, self.operator.inputs :]

    def compute(self, x: Tensor) -> Tensor:
        operator = self.operator
        with no_autocast(x):
            unit, scale = self.prepared()
            columns, t = self.bounded(unit)
            weight = operator.weight_of(columns, unit)
            bias, (u1, u2) = scaled_bias(self.bias, scale, t), self.contraction()
            lam, root = (values.view(-1, *[1] * operator.axes) for values in (inverse(t), inverse_sqrt(t)))
        x = operator.laid_out(x)
        z = self.activation.scaled(operator.apply(weight, x, bias), scale)  # σ(Wᵀx + b)/s
        return operator.mix(u1, x - operator.adjoint(weight, z * lam, x)) + operator.mix(u2, z * root)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, outputs={len(self.mixing)}, method={self.method!r}"


class OnCircle(NonExpansive):
    """A weight that a ``Circular`` operator makes orthogonal; a stride first moves pixels to channels.

    Q is divided by a bound of its norm as computed: an inexact inverse or a series cut short never counts as 1.
    """

    operator: Circular
    in_channels: int

    def _set_up(
        self,
        channels: tuple[int, int],
        kernel_size: Size,
        image_size: Size,
        method: str,
        stride: int,
        bias: int | None,
        device: Device,
        dtype: Dtype,
        rank: int | None = None,
    ) -> None:
        """``channels`` are those of x and of Q's output."""
        self.stride, image = positive_int("stride", stride), sizes("image_size", image_size, 2)
        if any(size % stride for size in image):
            raise ValueError(
                f"stride must divide image_size; got stride {stride} for {image}. Use PadImage before it."
            )
        high, wide = sizes("kernel_size", kernel_size, 2)
        self.operator = Circular(*channels, (high, wide), (image[0] // stride, image[1] // stride), method, rank)
        self.weight = nn.Parameter(torch.empty(self.operator.weight_shape, device=device, dtype=dtype))
        shape = self.operator.projections_shape
        self.projections = None if shape is None else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
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

    def kernel(self) -> Tensor:
        """Q as a kernel of ``nn.Conv2d`` with circular padding, on images in strides."""
        return self.operator.kernel(self.weight, self.projections, self.training)

    @abc.abstractmethod
    def compute(self, x: Tensor) -> Tensor:
        """The formula of the layer, of what ``rearranged`` gives."""

    def forward(self, x: Tensor) -> Tensor:
        with no_autocast(x):
            y = self.compute(self.rearranged(x))
        return (y if x.ndim == 4 else y[0]).to(x.dtype)

    def rearranged(self, x: Tensor) -> Tensor:  # (N, channels, H, W) → (N, channels·s², H/s, W/s)
        """x checked, widened and with the pixels of each stride moved to channels."""
        channels, image = self.in_channels, tuple(size * self.stride for size in self.operator.image)
        if x.ndim not in (3, 4) or tuple(x.shape[-3:]) != (channels, *image):
            raise ValueError(
                f"{type(self).__name__} expects (N, {channels}, {image[0]}, {image[1]}); got {tuple(x.shape)}. "
                "Build the layer with the image_size of these inputs."
            )
        batch = at_least_float32(x if x.ndim == 4 else x[None])
        if self.stride == 1:
            return batch
        if len(batch):
            return F.pixel_unshuffle(batch, self.stride)
        return batch.new_zeros(
            0, channels * self.stride**2, *self.operator.image
        )  # which torch would leave as it is

    def extra_repr(self) -> str:
        sigma = "" if self.activation is None else f", activation={self.activation.name!r}"
        return f"{self.operator}, stride={self.stride}, bias={self.bias is not None}{sigma}"


class Sandwich(NonExpansive):
    """h(x) = √2AᵀΨσ(√2Ψ⁻¹Bx + b) with AAᵀ + BBᵀ = I (Wang & Manchester 2023).

    The case U₁ = 0 of Theorem 4. Ψ and the slopes D of σ commute, so that the Jacobian is 2AᵀDB: what the residual
    y − 2Mᵀσ(My), M = [B −A], makes of the zeros in y = (x, 0). Hence L ≤ 1 whenever ‖M‖ ≤ 1.
    """

    operator: Dense | Circular
    activation: SlopeRestricted
    log_psi: nn.Parameter
    bias: nn.Parameter | None

    def _start_plain(self) -> None:
        nn.init.zeros_(self.log_psi)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def psi(self) -> Tensor:
        return at_least_float32(self.log_psi).clamp(-LOG_PSI, LOG_PSI).exp()

    def middle(self, u: Tensor) -> Tensor:
        """√2Ψσ(√2Ψ⁻¹u + b), neurons along the channels of u."""
        psi, each = self.psi().to(u.dtype), (-1, *[1] * self.operator.axes)
        bias = scaled_bias(self.bias, 1 / psi, torch.ones_like(psi))
        u = math.sqrt(2) * u if bias is None else math.sqrt(2) * u + bias.view(each)
        return math.sqrt(2) * self.activation.scaled(u, (1 / psi).view(each))


def orthogonal_start_(weight: Tensor) -> None:
    """Orthonormal rows or columns: a stack of affine layers then starts without losing signal."""
    start = torch.empty(weight.shape, device=weight.device, dtype=torch.float32)
    with torch.no_grad():
        weight.copy_(nn.init.orthogonal_(start))


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


# --- Public names: a form of an operator each ---


class AffineLinear(Affine):
    """g(x) = WT^(−½)x + b, 1-Lipschitz whenever WᵀW ⪯ T.

    Args:
        in_features: n, the number of columns of W.
        out_features: m, the number of rows of W.
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``in_features`` columns.
        bias: whether b is learned.

    Shape:
        (*, n) → (*, m). ``weight`` stores W, (m, n), as ``nn.Linear`` does.

    ``bound="aol"`` is AOL, ``"spectral"`` spectral normalization, ``"sll"`` Theorem 7.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bound: str | Bound = "aol",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(Dense(in_features, out_features), bound, bias, device, dtype)


class OrthogonalLinear(Affine):
    """g(x) = Qx + b with orthonormal rows or columns in Q, whichever are fewer.

    An ``AffineLinear`` whose bound replaces the weight by an orthonormal one; the name is for readers.
    The residual form x − 2Qσ(Qᵀx + b) is ``ResidualLinear(m, n, bound="orthogonal")``, or
    ``bound=lipcert.bounds.Orthogonal(method)``.

    Args:
        method: ``cayley``, ``exp`` (SOC), ``bjorck``, ``cholesky``, ``reflector`` (BRO), or ``stored`` (LipNeXt): Q
            is the weight itself, divided by a bound of its norm, and ``lipcert.train`` keeps it orthonormal.
        rank: columns of one block reflector I − 2V(VᵀV)⁻¹Vᵀ, less than the larger width; ``weight`` then stores V.
            None for a product of two, from the halves of as many columns as Q has. Only with ``reflector``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        method: str = "cayley",
        rank: int | None = None,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        operator = Dense(in_features, out_features, require_rank(rank, method, in_features, out_features))
        bound = Orthogonal(method, shape=None if rank is None else (out_features, in_features))
        super().__init__(operator, bound, bias, device, dtype)


class _AffineConv(Affine):
    """g(x) = WT^(−½)x + b with W a convolution, 1-Lipschitz whenever WᵀW ⪯ T.

    Args:
        in_channels, out_channels, kernel_size, stride, dilation, groups: as in ``torch.nn``.
        padding: an integer, one for each axis, or "same" (odd kernels, stride 1).
        padding_mode: ``zeros``, any amount, or ``circular``, at most half of what the kernel reaches and only on
            images divisible by the stride. Reflect and replicate padding are refused.
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``in_channels`` columns.

    Shape:
        (N, in_channels, sizes…) → (N, out_channels, sizes…) as in ``torch.nn``, with one, two or three sizes.
    """

    AXES: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        *,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        groups: int = 1,
        bound: str | Bound = "aol",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        kernel, strides = sizes("kernel_size", kernel_size, self.AXES), sizes("stride", stride, self.AXES)
        apart = sizes("dilation", dilation, self.AXES)
        if isinstance(padding, str):
            one_of("padding", padding, ("same",), cure="Or pass an integer, or one for each axis.")
            if any(k % 2 == 0 for k in kernel) or any(s != 1 for s in strides):
                raise ValueError(
                    f"padding='same' needs an odd kernel and stride 1; got kernel {kernel} and stride {strides}. "
                    "Pass the padding as a number."
                )
            margin = tuple(d * (k // 2) for d, k in zip(apart, kernel, strict=True))
        else:
            margin = sizes("padding", padding, self.AXES, least=0)
        operator = Conv(in_channels, out_channels, kernel, strides, margin, apart, padding_mode, groups)
        super().__init__(operator, bound, bias, device, dtype)


class AffineConv1d(_AffineConv):
    __doc__ = _AffineConv.__doc__
    AXES = 1


class AffineConv2d(_AffineConv):
    __doc__ = _AffineConv.__doc__
    AXES = 2


class AffineConv3d(_AffineConv):
    __doc__ = _AffineConv.__doc__
    AXES = 3


class AffineConvTranspose2d(Affine):
    """g(x) = WT^(−½)x + b with W a transposed convolution, 1-Lipschitz whenever WᵀW ⪯ T.

    W is the adjoint of a convolution from the output to the input, and has the same norm.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups: as in ``nn.ConvTranspose2d``.
        output_padding: added to one side of the output, less than the stride.
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``in_channels`` columns.

    Shape:
        (N, in_channels, H, W) → (N, out_channels, H′, W′) as in ``nn.ConvTranspose2d``. ``weight`` is
        (in_channels, out_channels/groups, kernel_h, kernel_w), as there.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        *,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bound: str | Bound = "aol",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        kernel, strides = sizes("kernel_size", kernel_size, 2), sizes("stride", stride, 2)
        margin, apart = sizes("padding", padding, 2, least=0), sizes("dilation", dilation, 2)
        more = sizes("output_padding", output_padding, 2, least=0)
        conv = Conv(out_channels, in_channels, kernel, strides, margin, apart, groups=groups)
        super().__init__(ConvTranspose(conv, more), bound, bias, device, dtype)


class ResidualLinear(Residual):
    """h(x) = x − 2WT⁻¹σ(Wᵀx + b), 1-Lipschitz whenever WᵀW ⪯ T.

    Args:
        features: m, the size of x and of h(x).
        hidden: n, the number of neurons, columns of W.
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``hidden`` columns.
        activation: σ, with slope in [0, 1].
        bias: whether b is learned.

    Shape:
        (*, m) → (*, m). ``weight`` stores Wᵀ, (n, m).

    ``bound="sll"`` is SLL, ``"spectral"`` CPL, ``"aol"`` residual AOL.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        bound: str | Bound = "sll",
        activation: str = "relu",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(Dense(features, hidden), bound, activation, bias, device, dtype)


class _ResidualConv(Residual):
    """h(x) = x − 2WT⁻¹σ(Wᵀx + b) with Wᵀ a convolution and W its exact adjoint.

    Args:
        channels: of x and of h(x).
        hidden: channels of Wᵀx.
        kernel_size, stride, dilation, groups: of Wᵀ. A stride thins the hidden neurons; the output has the shape
            of the input.
        padding_mode: ``zeros`` or ``circular``. The padding is half of what the kernel reaches, so that an odd
            kernel is "same". Reflect and replicate padding can double the norm and are refused.
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``hidden`` columns.
        activation: σ, with slope in [0, 1].

    Shape:
        (N, channels, sizes…) → the same, with one, two or three sizes; ``circular`` needs sizes divisible by the
        stride. ``weight`` is (hidden, channels/groups, kernel_size…), as in ``torch.nn``.
    """

    AXES: int

    def __init__(
        self,
        channels: int,
        hidden: int,
        kernel_size: Size = 3,
        *,
        stride: Size = 1,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        groups: int = 1,
        bound: str | Bound = "sll",
        activation: str = "relu",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        kernel, strides = sizes("kernel_size", kernel_size, self.AXES), sizes("stride", stride, self.AXES)
        apart = sizes("dilation", dilation, self.AXES)
        margin = tuple((d * (k - 1) + 1) // 2 for d, k in zip(apart, kernel, strict=True))
        operator = Conv(channels, hidden, kernel, strides, margin, apart, padding_mode, groups)
        super().__init__(operator, bound, activation, bias, device, dtype)


class ResidualConv1d(_ResidualConv):
    __doc__ = _ResidualConv.__doc__
    AXES = 1


class ResidualConv2d(_ResidualConv):
    __doc__ = _ResidualConv.__doc__
    AXES = 2


class ResidualConv3d(_ResidualConv):
    __doc__ = _ResidualConv.__doc__
    AXES = 3


class GeneralLinear(General):
    """h(x) = U₁(x − WΛσ(z)) + U₂Λ^½σ(z), z = Wᵀx + b, Λ = T⁻¹, [U₁ U₂] orthonormal: from ℝᵐ to ℝᵏ.

    Args:
        in_features: m, the size of x.
        hidden: n, the number of columns of W.
        out_features: k, the size of h(x).
        bound: the choice of T, a name or an object of ``lipcert.bounds`` with ``hidden`` columns.
        method: how [U₁ U₂] is made orthonormal, as in ``OrthogonalLinear``.
        activation: σ, with slope in [0, 1].

    Shape:
        (*, m) → (*, k). ``weight`` stores Wᵀ, (n, m); ``mixing`` parametrizes [U₁ U₂], (k, m + n).
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
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        operator = Dense(in_features, hidden)
        super().__init__(operator, out_features, bound, method, activation, bias, device, dtype)


class GeneralConv2d(General):
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
        kernel_size: Size = 3,
        *,
        padding_mode: str = "zeros",
        bound: str | Bound = "sll",
        method: str = "cayley",
        activation: str = "relu",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        kernel = sizes("kernel_size", kernel_size, 2)
        if any(size % 2 == 0 for size in kernel):
            raise ValueError(f"kernel_size must be odd, so that neurons sit on the pixels; got {kernel}. Use 3.")
        margin = tuple(size // 2 for size in kernel)
        operator = Conv(in_channels, hidden, kernel, (1, 1), margin, (1, 1), padding_mode)
        super().__init__(operator, out_channels, bound, method, activation, bias, device, dtype)


class OrthogonalConv2d(OnCircle):
    """g(x) = Qx + b with Q an orthogonal circular convolution; rows or columns orthonormal, whichever are fewer.

    Args:
        in_channels, out_channels: as in ``nn.Conv2d``.
        kernel_size: of the free parameters. The orthogonal kernel itself covers the image, but for ``bcop``.
        image_size: height and width of x.
        method: ``cayley``, ``exp`` (SOC), ``lot``, ``eco`` (an image that the kernel divides), ``reflector``
            (BRO), ``bcop`` (odd square kernels).
        rank: as in ``OrthogonalLinear``, of the reflector at each frequency.
        stride: pixels are first moved into channels, s² for each, as the papers do.
        bias: whether b is learned.

    Shape:
        (N, in_channels, H, W) → (N, out_channels, H/stride, W/stride), circular at the borders.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        *,
        image_size: Size,
        method: str = "cayley",
        rank: int | None = None,
        stride: int = 1,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int("in_channels", in_channels)
        inputs, outputs = (
            in_channels * positive_int("stride", stride) ** 2,
            positive_int("out_channels", out_channels),
        )
        biases = outputs if bias else None
        self._set_up((inputs, outputs), kernel_size, image_size, method, stride, biases, device, dtype, rank)

    def compute(self, x: Tensor) -> Tensor:
        y = self.operator.apply(
            self.operator.orthonormal(self.weight, self.projections, self.training), x, self.training
        )
        return y if self.bias is None else y + at_least_float32(self.bias)[:, None, None]


class OrthogonalResidualConv2d(OnCircle):
    """h(x) = x − 2Qσ(Qᵀx + b) with Qᵀ an orthogonal circular convolution (Theorem 1, statement 2, with T = I).

    Args:
        channels: of x and of h(x).
        hidden: channels of Qᵀx.
        kernel_size, image_size, method: as in ``OrthogonalConv2d``.
        activation: σ, with slope in [0, 1].

    Shape:
        (N, channels, H, W) → the same.
    """

    activation: SlopeRestricted

    def __init__(
        self,
        channels: int,
        hidden: int,
        kernel_size: Size = 3,
        *,
        image_size: Size,
        method: str = "cayley",
        activation: str = "relu",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.activation = slope_restricted(activation)
        self.in_channels = positive_int("channels", channels)
        both = (channels, positive_int("hidden", hidden))
        self._set_up(both, kernel_size, image_size, method, 1, hidden if bias else None, device, dtype)

    def compute(self, x: Tensor) -> Tensor:
        q = self.operator.orthonormal(self.weight, self.projections, self.training)
        z = self.operator.apply(q, x, self.training)
        ones = torch.ones(self.operator.outputs, device=z.device, dtype=z.dtype)
        bias = scaled_bias(self.bias, ones[0], ones)
        z = z if bias is None else z + bias[:, None, None]
        return x - 2 * self.operator.adjoint(q, self.activation.function(z), self.training)


class SandwichLinear(Sandwich):
    """h(x) = √2AᵀΨσ(√2Ψ⁻¹Bx + b), AAᵀ + BBᵀ = I by Cayley's map: from ℝᵐ to ℝᵏ, 1-Lipschitz.

    Args:
        in_features: m, the size of x.
        out_features: k, the size of h(x), and the number of neurons.
        activation: σ, with slope in [0, 1].
        bias: whether b is learned.

    Shape:
        (*, m) → (*, k). ``weight`` parametrizes [A B], (k, k + m); ``log_psi`` is the logarithm of Ψ.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: str = "relu",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.operator: Dense = Dense(in_features, out_features)
        self.activation = slope_restricted(activation)
        shape = (out_features, out_features + in_features)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.log_psi = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        start_balanced_(self.weight)
        self._start_plain()

    def kernel(self) -> Tensor:  # (k, k + m)
        """[A B], divided by what its measured deviation from orthonormal may add to the norm."""
        both = orthonormal(at_least_float32(self.weight), "cayley", training=self.training)
        return both * squared_norm(both, "cayley", training=self.training).rsqrt()

    def forward(self, x: Tensor) -> Tensor:
        self.operator.require(x, self)
        with no_autocast(x):
            a, b = self.kernel().tensor_split((self.operator.outputs,), dim=1)
            return F.linear(self.middle(F.linear(at_least_float32(x), b)), a.mT).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.operator}, activation={self.activation.name!r}, bias={self.bias is not None}"


class SandwichConv2d(Sandwich, OnCircle):
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

    operator: Circular

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        *,
        image_size: Size,
        stride: int = 1,
        activation: str = "relu",
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int("in_channels", in_channels)
        self.activation = slope_restricted(activation)
        outputs = positive_int("out_channels", out_channels)
        self.log_psi = nn.Parameter(torch.empty(outputs, device=device, dtype=dtype))
        both = (outputs + in_channels * positive_int("stride", stride) ** 2, outputs)  # [A B]
        self._set_up(both, kernel_size, image_size, "cayley", stride, outputs if bias else None, device, dtype)

    def reset_parameters(self) -> None:
        self._start_plain()
        with torch.no_grad():
            high, wide = (size // 2 for size in self.operator.kernel_size)
            start_balanced_(self.weight.zero_()[:, :, high, wide])

    def compute(self, x: Tensor) -> Tensor:
        a, b = self.operator.matrices(self.weight, self.training).tensor_split((self.operator.outputs,), dim=2)
        return self.operator.adjoint(a, self.middle(self.operator.apply(b, x, self.training)), self.training)
