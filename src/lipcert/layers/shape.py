"""Layers that move, pool, shift, scale or mix: each with its constant.

An image that a pooling window or a block does not divide is refused, never cropped in silence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.algebra.scale import at_least_float32
from lipcert.errors import NotCertified, finite, positive_int
from lipcert.intact import require_intact
from lipcert.layers.contract import LipschitzLayer, NonExpansive, lipschitz_bound
from lipcert.layers.operators import sizes

LOG_FACTOR = 20.0  # |log K| of a learned scale is cut here


class _Blocks(NonExpansive):
    """A map of the non-overlapping blocks of an image, 1-Lipschitz because it is so on each block."""

    def __init__(self, kernel_size: int | tuple[int, int]) -> None:
        super().__init__()
        self.kernel_size = sizes("kernel_size", kernel_size, 2)

    def check(self, x: Tensor) -> None:
        if x.ndim < 3 or x.shape[-2] % self.kernel_size[0] or x.shape[-1] % self.kernel_size[1]:
            raise ValueError(
                f"{type(self).__name__} expects (N, C, H, W) with H and W divisible by {self.kernel_size}; got "
                f"{tuple(x.shape)}. Pad or crop the image, or choose another block size."
            )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}"


class ScaledAvgPool2d(_Blocks):
    """Mean of each block times √(block size): the sum divided by √(block size), of norm exactly 1."""

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        high, wide = self.kernel_size
        return F.avg_pool2d(x, self.kernel_size) * math.sqrt(high * wide)


class L2Pool2d(_Blocks):
    """√(Σ x²) over each block: | ‖u‖ − ‖v‖ | ≤ ‖u − v‖ makes it 1-Lipschitz. The gradient at 0 is 0."""

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        high, wide = self.kernel_size
        blocks = x.unflatten(-1, (-1, wide)).unflatten(-3, (-1, high))  # (…, H/h, h, W/w, w)
        return torch.linalg.vector_norm(blocks, dim=(-3, -1))


class ScaledUpsample2d(NonExpansive):
    """Repeats each pixel over a block and divides by √(block size): the adjoint of ``ScaledAvgPool2d``."""

    def __init__(self, scale_factor: int | tuple[int, int]) -> None:
        super().__init__()
        self.scale_factor = sizes("scale_factor", scale_factor, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3:
            raise ValueError(f"ScaledUpsample2d expects (N, C, H, W); got {tuple(x.shape)}. Pass images.")
        high, wide = self.scale_factor
        return (x / math.sqrt(high * wide)).repeat_interleave(high, dim=-2).repeat_interleave(wide, dim=-1)

    def extra_repr(self) -> str:
        return f"scale_factor={self.scale_factor}"


class SpaceToDepth(_Blocks):
    """Moves each block × block patch into the channels: a permutation of the entries."""

    def __init__(self, block: int) -> None:
        super().__init__(positive_int("block", block))
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        if x.shape[0] == 0:  # which pixel_unshuffle would leave as it is
            channels, high, wide = x.shape[-3] * self.block**2, x.shape[-2] // self.block, x.shape[-1] // self.block
            return x.new_zeros(*x.shape[:-3], channels, high, wide)
        return F.pixel_unshuffle(x, self.block)


class Shift(NonExpansive):
    """Moves four groups of channels by one pixel, up, down, left and right, around the image: a permutation.

    The spatial mixing of LipNeXt (Hu et al. 2026), whose Theorem 1 says that among circular convolutions of single
    channels only shifts are isometries, up to a sign.

    Args:
        image_size: height and width of x.
        share: of the channels in each group, at most 1/4; the other channels stay.

    Shape:
        (N, channels, H, W) → the same, with at least 4 channels.
    """

    def __init__(self, image_size: int | tuple[int, int], share: float = 1 / 16) -> None:
        super().__init__()
        self.image_size = sizes("image_size", image_size, 2)
        self.share = finite("share", share, cure="Use 1/16.")
        if not 0 < share <= 1 / 4:
            raise ValueError(f"share must lie above 0 and be at most 1/4; got {share!r}. Use 1/16.")

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or x.shape[-3] < 4 or tuple(x.shape[-2:]) != self.image_size:
            high, wide = self.image_size
            raise ValueError(
                f"Shift expects (N, C, {high}, {wide}) with at least 4 channels; got {tuple(x.shape)}. Build it "
                "with the image_size of these inputs."
            )
        count, moves = group_size(self.share, x.shape[-3]), ((-1, -2), (1, -2), (-1, -1), (1, -1))
        *groups, rest = x.split([*[count] * 4, x.shape[-3] - 4 * count], dim=-3)
        moved = [group.roll(step, axis) for group, (step, axis) in zip(groups, moves, strict=True)]
        return torch.cat((*moved, rest), dim=-3)

    def extra_repr(self) -> str:
        return f"{self.image_size}, share={self.share}"


def group_size(share: float, channels: int) -> int:
    """How many channels are in each group of a ``Shift``."""
    return max(1, int(share * channels))


class PositionalBias(NonExpansive):
    """x + b with one learned number for each pixel, the same for all channels: a translation.

    Args:
        image_size: height and width of x.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.image_size = sizes("image_size", image_size, 2)
        self.bias = nn.Parameter(torch.zeros(self.image_size, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or tuple(x.shape[-2:]) != self.image_size:
            high, wide = self.image_size
            raise ValueError(
                f"PositionalBias expects (N, C, {high}, {wide}); got {tuple(x.shape)}. Build it with the "
                "image_size of these inputs."
            )
        return (at_least_float32(x) + at_least_float32(self.bias)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.image_size}"


class PadChannels(NonExpansive):
    """Appends zero channels (dimension ``dim``) up to ``channels``: an isometry."""

    def __init__(self, channels: int, dim: int = 1) -> None:
        super().__init__()
        self.channels, self.dim = positive_int("channels", channels), dim

    def forward(self, x: Tensor) -> Tensor:
        if not -x.ndim <= self.dim < x.ndim or x.shape[self.dim] > self.channels:
            raise ValueError(
                f"PadChannels expects at most {self.channels} channels in dimension {self.dim}; got "
                f"{tuple(x.shape)}. Pass a larger number of channels: it cannot drop any."
            )
        behind = x.ndim - 1 - self.dim % x.ndim  # axes
        return F.pad(x, (0, 0) * behind + (0, self.channels - x.shape[self.dim]))

    def extra_repr(self) -> str:
        return f"{self.channels}" if self.dim == 1 else f"{self.channels}, dim={self.dim}"


class TakeChannels(NonExpansive):
    """``count`` channels (dimension ``dim``) from the one numbered ``first``: a projection."""

    def __init__(self, count: int, first: int = 0, dim: int = 1) -> None:
        super().__init__()
        self.count, self.first, self.dim = positive_int("count", count), first, dim
        if first < 0:
            raise ValueError(f"first must be an integer of at least 0; got {first!r}. Count channels from 0.")

    def forward(self, x: Tensor) -> Tensor:
        if not -x.ndim <= self.dim < x.ndim or x.shape[self.dim] < self.first + self.count:
            raise ValueError(
                f"TakeChannels expects at least {self.first + self.count} channels in dimension {self.dim}; got "
                f"{tuple(x.shape)}. Take fewer."
            )
        return x.narrow(self.dim, self.first, self.count)

    def extra_repr(self) -> str:
        return f"{self.count}, first={self.first}, dim={self.dim}"


class PadImage(NonExpansive):
    """Zeros below and to the right, up to a multiple of ``multiple``: an isometry."""

    def __init__(self, multiple: int) -> None:
        super().__init__()
        self.multiple = positive_int("multiple", multiple)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3:
            raise ValueError(f"PadImage expects (N, C, H, W); got {tuple(x.shape)}. Pass images.")
        return F.pad(x, (0, -x.shape[-1] % self.multiple, 0, -x.shape[-2] % self.multiple))

    def extra_repr(self) -> str:
        return f"{self.multiple}"


class Pixelwise(LipschitzLayer):
    """A layer for vectors applied to the channels of every pixel: as Lipschitz as that layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3:
            raise ValueError(f"Pixelwise expects (N, C, H, W); got {tuple(x.shape)}. Pass images.")
        return self.layer(x.movedim(-3, -1)).movedim(-1, -3)

    def proved_constant(self) -> float:
        return lipschitz_bound(self.layer)


class Center(NonExpansive):
    """x − mean, per channel (dimension 1): a translation."""

    mean: Tensor

    def __init__(self, mean: Sequence[float] | Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", _per_channel("mean", mean).to(torch.get_default_device()))

    def forward(self, x: Tensor) -> Tensor:
        return x - _broadcast(self.mean, x, self)


class Normalize(LipschitzLayer):
    """(x − mean)/std, per channel (dimension 1): its constant is 1/min(std), which is rarely 1.

    Dividing by std before a 1-Lipschitz network divides every certified radius by the same factor; prefer
    ``Center``.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        super().__init__()
        means, stds = _per_channel("mean", mean), _per_channel("std", std)
        if means.shape != stds.shape or not bool((stds > 0).all()):
            raise ValueError(
                f"std must be positive, one per mean; got mean {means.tolist()} and std {stds.tolist()}. "
                "Use Center to subtract the mean alone."
            )
        self.register_buffer("mean", means.to(torch.get_default_device()))
        self.register_buffer("std", stds.to(torch.get_default_device()))

    def forward(self, x: Tensor) -> Tensor:
        return (x - _broadcast(self.mean, x, self)) / _broadcast(self.std, x, self)

    def proved_constant(self) -> float:
        smallest = float(self.std.double().abs().min())
        if smallest == 0:
            raise NotCertified("std must not be 0. Load the statistics of the training images.")
        return math.nextafter(1.0 / smallest, math.inf)


class BatchCentering(NonExpansive):
    """x − μ + b per channel (dimension 1), with a learned b and the mean μ of the activations.

    In training mode μ is the mean of the batch and of all positions, so that an output depends on other inputs and
    nothing is proved; a running mean is kept. In evaluation mode μ is that running mean: a translation. ``freeze``
    adds it to the bias of a convolution before it, or stores it as a step of its own.

    Args:
        channels: of x.
        bias: whether b is learned.
        momentum: how far the running mean moves towards the mean of each batch.

    Shape:
        (N, channels, …) → the same.
    """

    mean: Tensor

    def __init__(
        self,
        channels: int,
        *,
        bias: bool = True,
        momentum: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels = positive_int("channels", channels)
        self.momentum = finite("momentum", momentum, cure="Use 0.1.")
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum must lie above 0 and be at most 1; got {momentum!r}. Use 0.1.")
        self.register_buffer("mean", torch.zeros(channels, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(channels, device=device, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        _broadcast(self.mean, x, self)
        wide, mean = at_least_float32(x), at_least_float32(self.mean)
        if self.training and x.numel():
            mean = wide.mean(dim=(0, *range(2, x.ndim)))
            with torch.no_grad():
                self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
        shift = mean if self.bias is None else mean - at_least_float32(self.bias)
        return (wide - _broadcast(shift, x, self)).to(x.dtype)

    def require_sound(self) -> None:
        """Raise ``NotCertified`` in training mode, where an output depends on other inputs."""
        if self.training:
            raise NotCertified(
                "BatchCentering subtracts the mean of its batch in training mode, so that an output depends on "
                "other inputs. Call .eval() first: evaluation mode subtracts a stored mean."
            )

    def proved_constant(self) -> float:
        self.require_sound()
        return super().proved_constant()

    def extra_repr(self) -> str:
        return f"{self.channels}, bias={self.bias is not None}, momentum={self.momentum}"


class LayerCentering(NonExpansive):
    """x − mean(x) + b, the mean over the last axes of each example: a projection, and a translation.

    It is ``nn.LayerNorm`` without the division, which has no Lipschitz constant.

    Args:
        normalized_shape: the sizes of these axes, as in ``nn.LayerNorm``: (H, W) for the mean of each channel.
        channels: b has one learned number for each of so many channels (dimension 1); without it there is no b.

    Shape:
        (N, …, the sizes of normalized_shape) → the same.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        *,
        channels: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        given = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape = sizes("normalized_shape", given, len(given))
        if not given:
            raise ValueError("normalized_shape must have at least one size. Pass the number of features.")
        wanted = 0 if channels is None else positive_int("channels", channels)
        self.bias = nn.Parameter(torch.zeros(wanted, device=device, dtype=dtype)) if wanted else None

    def forward(self, x: Tensor) -> Tensor:
        count = len(self.normalized_shape)
        if x.ndim <= count or tuple(x.shape[-count:]) != self.normalized_shape:
            expected = ", ".join(map(str, self.normalized_shape))
            raise ValueError(
                f"LayerCentering expects (N, *, {expected}); got {tuple(x.shape)}. Pass the sizes of the last axes."
            )
        wide = at_least_float32(x)
        y = wide - wide.mean(dim=tuple(range(-count, 0)), keepdim=True)
        return (y if self.bias is None else y + _broadcast(at_least_float32(self.bias), x, self)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, bias={self.bias is not None}"


class Scale(LipschitzLayer):
    """x ↦ K·x, K ≠ 0: a network with another Lipschitz constant than 1.

    Args:
        factor: K.
        learnable: whether K > 0 is a parameter, by its logarithm, that starts at ``factor``. Behind the logits it
            changes the loss and no certified radius, because margins and constants grow alike.
    """

    def __init__(
        self,
        factor: float,
        *,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.factor = finite("factor", factor, cure="Pass the constant K you want.")
        if factor == 0 or (learnable and factor < 0):
            raise ValueError(
                f"factor must {'be positive if it is learned' if learnable else 'not be 0'}; got {factor!r}. Pass "
                "the constant K you want."
            )
        start = torch.tensor(math.log(factor), device=device, dtype=dtype) if learnable else None
        self.log_factor = None if start is None else nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x if self.log_factor is None else (self.current() * x).to(x.dtype)

    def current(self) -> Tensor:  # ()
        """K as it is now, differentiable; a learned one stays within e^±20."""
        if self.log_factor is None:
            return torch.tensor(self.factor)
        return at_least_float32(self.log_factor).clamp(-LOG_FACTOR, LOG_FACTOR).exp()

    def proved_constant(self) -> float:
        if self.log_factor is None:
            return abs(self.factor)
        # The exponential is within a unit of 2⁻⁵².
        return math.exp(float(self.log_factor.detach().double().clamp(-LOG_FACTOR, LOG_FACTOR))) * (1 + 2.0**-50)

    def extra_repr(self) -> str:
        return f"{self.factor}" if self.log_factor is None else f"{self.factor}, learnable=True"


class ConvexCombination(LipschitzLayer):
    """Σ_k α_k f_k(x) with learned α = softmax(``logits``): as Lipschitz as the worst of its branches."""

    def __init__(
        self,
        *branches: nn.Module,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not branches or not all(isinstance(branch, nn.Module) for branch in branches):
            raise ValueError(
                f"ConvexCombination needs at least one branch, each a module; got {branches or 'none'}. "
                "Pass the modules one by one."
            )
        self.branches = nn.ModuleList(branches)
        self.logits = nn.Parameter(torch.zeros(len(branches), device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        weights = at_least_float32(self.logits).softmax(dim=0).unbind()
        # A copy for each branch: one that works in place must not change what the next one sees.
        outputs = [branch(x.clone()) for branch in self.branches]
        if len({output.shape for output in outputs}) > 1:
            raise ValueError(
                f"branches must give one shape; got {[tuple(o.shape) for o in outputs]}. "
                "Change the branches: broadcasting would change the constant."
            )
        mixed = torch.stack([weight * out for weight, out in zip(weights, outputs, strict=True)]).sum(dim=0)
        return mixed.to(outputs[0].dtype)

    def proved_constant(self) -> float:
        require_intact(self.branches)
        if type(self.branches) is not nn.ModuleList or len(self.branches) != len(self.logits):
            raise NotCertified("its branches must be the modules that it was built with. Build a new layer.")
        return max(lipschitz_bound(branch) for branch in self.branches)


class Monotone(LipschitzLayer):
    """f(x) + K·(Σ x_i over ``features`` − Σ x_i over ``decreasing``) of vectors x: monotone if f is K-Lipschitz.

    Then |f(x + te_i) − f(x)| ≤ K|t|, whatever the norm, so the sum cannot fall in a feature (Kitouni et al. 2023).
    Nothing is assumed of f: ``lipcert.audit`` says in ``increasing`` and ``decreasing`` what is proved.

    Args:
        network: f, from vectors to vectors of ``outputs`` numbers.
        features: the places of the inputs in which the result must not fall.
        decreasing: those in which it must not rise.
        lipschitz: K.

    Shape:
        (N, inputs) → (N, outputs).
    """

    def __init__(
        self,
        network: nn.Module,
        features: Sequence[int],
        *,
        decreasing: Sequence[int] = (),
        lipschitz: float = 1.0,
        outputs: int = 1,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise ValueError(f"network must be a module; got {type(network).__name__}. Pass the network itself.")
        places = [*features, *decreasing]
        if len(set(places)) < len(places) or not all(type(i) is int and i >= 0 for i in places) or not places:
            raise ValueError(
                f"features and decreasing must be different places of inputs, from 0 on; got {tuple(features)} and "
                f"{tuple(decreasing)}. Pass e.g. features=(0, 3)."
            )
        if not finite("lipschitz", lipschitz, cure="Pass the constant of the network.") > 0:
            raise ValueError(f"lipschitz must be positive; got {lipschitz!r}. Pass the constant of the network.")
        self.network, self.features, self.decreasing = network, tuple(features), tuple(decreasing)
        self.lipschitz, self.outputs = float(lipschitz), positive_int("outputs", outputs)

    def forward(self, x: Tensor) -> Tensor:
        largest = max(*self.features, *self.decreasing, -1)
        if x.ndim != 2 or x.shape[1] <= largest:
            raise ValueError(
                f"Monotone expects (N, inputs) with input {largest}; got {tuple(x.shape)}. Flatten first."
            )
        value = self.network(x.clone())
        if value.shape != (len(x), self.outputs):
            raise ValueError(
                f"the network must give (N, {self.outputs}); got {tuple(value.shape)}. Set outputs, or change it."
            )
        # One by one: a list of indices would be copied to the device in every step.
        rise = torch.zeros_like(x[:, 0])
        for index in self.features:
            rise = rise + x[:, index]
        for index in self.decreasing:
            rise = rise - x[:, index]
        result: Tensor = value + self.lipschitz * rise[:, None]
        return result

    def proved_constant(self) -> float:
        terms = (len(self.features) + len(self.decreasing)) * self.outputs
        return (lipschitz_bound(self.network) + self.lipschitz * math.sqrt(terms)) * (1 + 2.0**-50)

    def extra_repr(self) -> str:
        return f"features={self.features}, decreasing={self.decreasing}, lipschitz={self.lipschitz}"


def _per_channel(name: str, values: Sequence[float] | Tensor) -> Tensor:
    tensor = torch.as_tensor(values, dtype=torch.get_default_dtype(), device="cpu").detach().clone()
    if tensor.ndim != 1 or not len(tensor) or not bool(torch.isfinite(tensor).all()):
        raise ValueError(
            f"{name} must be a list of finite numbers, one per channel; got {values!r}. Pass [0.5] for grey images."
        )
    return tensor


def _broadcast(values: Tensor, x: Tensor, layer: nn.Module) -> Tensor:
    if x.ndim < 2 or tuple(values.shape) != (x.shape[1],):
        raise ValueError(
            f"{type(layer).__name__} has values of shape {tuple(values.shape)}, but the input has shape "
            f"{tuple(x.shape)}. Pass one value for each channel, which is dimension 1."
        )
    return values.view(-1, *[1] * (x.ndim - 2))
