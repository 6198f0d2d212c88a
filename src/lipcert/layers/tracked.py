"""g(x) = Wx + b with a norm that is tracked, not divided (GloRo, Leino et al. 2021; LiResNet, Hu et al. 2023).

Every other layer of lipcert is 1-Lipschitz by construction. These are not: ‖W‖ is whatever training makes of it,
and the loss sees it (``losses.GloRo``, ``losses.EMMA``). There are two numbers, and they are not to be confused:

- ``lipschitz_bound()``, the verified norm of the present weight. Certificates use it and nothing else.
- ``norm_estimate()``, ‖Wv‖ for the vector v that a few steps of power iteration give. It is at most ‖W‖, so it
  proves nothing. It is differentiable and cheap, and only training uses it.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.algebra.scale import at_least_float32, no_autocast
from lipcert.errors import NotCertified, positive_int
from lipcert.layers.contract import LipschitzLayer, NonExpansive, lipschitz_bound
from lipcert.layers.forms import Device, Dtype, Size, orthogonal_start_
from lipcert.layers.operators import Conv, Dense, Operator, sizes
from lipcert.layers.parametrize import is_dropped_in
from lipcert.layers.shape import Scale

STEPS = 5  # of power iteration for each step of training, from the vector of the step before
PER_TAP = 4  # points of the circle on which a convolution is iterated, for each tap
MOMENTUM = 0.1  # of the running mean, as published


class Tracked(LipschitzLayer):
    """g(x) = Wx + b for one operator. ``iterate`` is the vector of the power iteration, part of the state."""

    operator: Operator
    weight: nn.Parameter
    bias: nn.Parameter | None
    iterate: Tensor

    def _set_up(self, operator: Operator, bias: bool, device: Device, dtype: Dtype) -> None:
        self.operator = operator
        self.weight = nn.Parameter(torch.empty(operator.weight_shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(operator.outputs, device=device, dtype=dtype)) if bias else None
        shape = (operator.inputs, *circle_of(operator))
        self.register_buffer("iterate", torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W starts with orthonormal rows or columns, in the middle tap of a kernel: ‖W‖ = 1."""
        start = torch.zeros(self.weight.shape, device=self.weight.device)
        for part in self.operator.start(start):
            orthogonal_start_(part)
        with torch.no_grad():
            self.weight.copy_(start)
        self._reset_rest()

    def _reset_rest(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        # A random vector: ones would be a fixed point of the iteration wherever rows sum to 0.
        nn.init.normal_(self.iterate)

    def plain_weight(self) -> Tensor:
        """W, as ``torch.nn`` stores it."""
        return at_least_float32(self.weight)

    def plain_bias(self) -> Tensor | None:
        """b."""
        return None if self.bias is None else at_least_float32(self.bias)

    def require_sound(self) -> None:
        """Raise ``NotCertified`` where the layer computes something else than Wx + b in the present mode."""

    def norm_estimate(self, steps: int = STEPS) -> Tensor:  # ()
        """‖Wv‖ ≤ ‖W‖ with a unit vector v near the first singular one, differentiable in W: no bound.

        In training mode v is kept, so that the next call continues from it. A convolution is iterated on a circle
        of four points per tap, whatever its image and its padding: what is certified is its norm on the plane.
        """
        operator = on_circle(self.operator)
        with no_autocast(self.weight):
            weight = self.plain_weight()
            # W = s·Ŵ with a power of two s: squares of entries of any size stay in range.
            largest = weight.detach().abs().amax()
            exponent = torch.frexp(torch.where(largest > 0, largest, 1.0)).exponent
            scale = torch.ldexp(torch.ones_like(largest), exponent)
            unit = weight / scale
            with torch.no_grad():
                kernel, v = unit.detach(), at_least_float32(self.iterate)[None]
                for _ in range(steps):
                    z = operator.adjoint(kernel, operator.apply(kernel, v), like=v)
                    size = torch.linalg.vector_norm(z)
                    v = torch.where(size > 0, z / torch.where(size > 0, size, 1.0), v)  # W = 0 keeps v
                v = v / torch.linalg.vector_norm(v)
                if self.training:
                    self.iterate.copy_(v[0])
            return scale * torch.linalg.vector_norm(operator.apply(unit, v))

    def proved_constant(self) -> float:
        """The verified norm of W: that of the op which ``freeze`` and ``audit`` make of the layer."""
        from lipcert.certified.freeze import constant_of  # which imports this module

        self.require_sound()
        return constant_of(self)

    def forward(self, x: Tensor) -> Tensor:
        self.operator.require(x, self)
        if self.weight.dtype in (torch.float32, torch.float64):
            return self.compute(x)
        return self.compute(at_least_float32(x)).to(x.dtype)

    def compute(self, x: Tensor) -> Tensor:
        """The formula of the layer."""
        return self.operator.apply(self.plain_weight(), x, self.plain_bias())

    def extra_repr(self) -> str:
        return f"{self.operator}, bias={self.bias is not None}"


def on_circle(operator: Operator) -> Operator:
    """The convolution with circular padding, whose norm is below that on the plane; a dense map as it is."""
    if not isinstance(operator, Conv):
        return operator
    half = tuple(reach // 2 for reach in operator.reach)
    return dataclasses.replace(operator, padding=half, padding_mode="circular")


def circle_of(operator: Operator) -> tuple[int, ...]:
    """The circle on which a convolution is iterated: a multiple of the stride on each axis."""
    if not isinstance(operator, Conv):
        return ()
    return tuple(
        s * (PER_TAP * (r // s + 1) if r else 1) for s, r in zip(operator.stride, operator.reach, strict=True)
    )


class TrackedLinear(Tracked):
    """g(x) = Wx + b. Nothing is divided: ``lipschitz_bound()`` is ‖W‖, verified.

    Args:
        in_features, out_features, bias: as in ``nn.Linear``.

    Shape:
        (*, in_features) → (*, out_features).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self._set_up(Dense(in_features, out_features), bias, device, dtype)


class TrackedConv2d(Tracked):
    """g(x) = Wx + b with W a convolution. Nothing is divided: ``lipschitz_bound()`` is ‖W‖ on the plane, verified.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, groups: as in ``nn.Conv2d``, with zeros around.

    Shape:
        (N, in_channels, H, W) → (N, out_channels, H′, W′).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        *,
        stride: Size = 1,
        padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        kernel, strides = sizes("kernel_size", kernel_size, 2), sizes("stride", stride, 2)
        margin = sizes("padding", padding, 2, least=0)
        operator = Conv(in_channels, out_channels, kernel, strides, margin, (1, 1), groups=groups)
        self._set_up(operator, bias, device, dtype)


class LinearResidualConv2d(Tracked):
    """g(x) = Wx + b, W = I + ΓV/√depth, Γ = diag(γ): LiResNet's block, one affine convolution.

    The residual is linear, so W is one kernel and has one norm; ``lipschitz_bound()`` is ‖W‖, verified. The layer
    starts near the identity, and a network of ``depth`` such layers near K = 1.

    Args:
        channels: of x and of g(x).
        kernel_size: of V, odd.
        depth: the number of such layers in the network.
        center: subtract the mean of the branch ΓVx/√depth over batch and image. In training mode that is the mean
            of the batch, so an output depends on other inputs and nothing is proved. In evaluation mode it
            is a stored mean, which is part of the bias.
        bias: whether b is learned.

    Shape:
        (N, channels, H, W) → the same, with zeros around.
    """

    operator: Conv
    mean: Tensor | None

    def __init__(
        self,
        channels: int,
        kernel_size: Size = 3,
        *,
        depth: int = 1,
        center: bool = False,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        kernel = sizes("kernel_size", kernel_size, 2)
        if any(size % 2 == 0 for size in kernel):
            raise ValueError(f"kernel_size must be odd, so that the identity has a tap; got {kernel}. Use 3.")
        self.depth, self.center = positive_int("depth", depth), center
        self.gain = nn.Parameter(torch.empty(positive_int("channels", channels), device=device, dtype=dtype))
        self.register_buffer("mean", torch.empty(channels, device=device, dtype=dtype) if center else None)
        margin = tuple(size // 2 for size in kernel)
        operator = Conv(channels, channels, kernel, (1, 1), margin, (1, 1))
        self._set_up(operator, bias, device, dtype)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=1 / self.weight[0].numel())
        nn.init.ones_(self.gain)
        if self.mean is not None:
            nn.init.zeros_(self.mean)
        self._reset_rest()

    def branch(self) -> Tensor:
        """ΓV/√depth."""
        gain = at_least_float32(self.gain) / math.sqrt(self.depth)
        return at_least_float32(self.weight) * self.operator.per_output(gain)

    def plain_weight(self) -> Tensor:
        branch = self.branch()
        high, wide = self.operator.padding
        identity = torch.eye(self.operator.inputs, device=branch.device, dtype=branch.dtype)[:, :, None, None]
        return branch + F.pad(identity, (wide, wide, high, high))

    def plain_bias(self) -> Tensor | None:
        bias = super().plain_bias()
        if self.mean is None:
            return bias
        mean = at_least_float32(self.mean)
        return -mean if bias is None else bias - mean

    def require_sound(self) -> None:
        if self.center and self.training:
            raise NotCertified(
                "LinearResidualConv2d(center=True) subtracts the mean of its batch in training mode, so that an "
                "output depends on other inputs. Call .eval() first: evaluation mode subtracts a stored mean."
            )

    def compute(self, x: Tensor) -> Tensor:
        if self.mean is None or not self.training:
            return super().compute(x)
        batch = x if x.ndim == 4 else x[None]
        y = self.operator.apply(self.branch(), batch)
        mean = y.mean(dim=(0, 2, 3))
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean.dtype), MOMENTUM)
        shift = -mean if self.bias is None else at_least_float32(self.bias).to(mean.dtype) - mean
        y = batch + (y + shift[:, None, None])
        return y if x.ndim == 4 else y[0]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, depth={self.depth}, center={self.center}"


def lipschitz_estimate(network: nn.Module) -> Tensor:  # ()
    """∏ of the layers' constants, with ``norm_estimate()`` where the norm is tracked: differentiable, no bound.

    Only losses use it. The product is taken by logarithms: a product of many small float32 norms would vanish.
    """
    logarithms: list[Tensor] = []
    constant = 0.0
    for layer in chain_of(network):
        if isinstance(layer, Tracked):
            norm = layer.norm_estimate()
            logarithms.append(norm.clamp_min(torch.finfo(norm.dtype).tiny).log())
        elif isinstance(layer, Scale):  # a loss must see what a learned scale does to the constant
            logarithms.append(layer.current().abs().log())
        elif not isinstance(layer, (NonExpansive, nn.Flatten)) and not is_dropped_in(layer):
            factor = lipschitz_bound(layer)
            constant += math.log(factor) if factor > 0 else -math.inf
    if not logarithms:
        return torch.tensor(math.exp(constant))
    return (torch.stack(logarithms).sum() + constant).exp()


def chain_of(network: nn.Module) -> list[nn.Module]:
    """The layers of nested Sequentials, in order."""
    if type(network) is nn.Sequential:
        return [layer for child in network for layer in chain_of(child)]
    return [network]
