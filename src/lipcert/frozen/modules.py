"""The modules of a frozen network: buffers and no parameters, one stored weight for both products of a residual.

x − W(2γ·σ(Wᵀx + b)): 2γ is exact, and the two products use the same stored W, so that the Jacobian I − 2WΓDWᵀ is
symmetric. Two rounded tensors, W and 2WΓ, would not do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.activations import SlopeRestricted
from lipcert.layers.operators import pad_circular, unpad_circular


class FrozenResidual(nn.Module):
    """x − W(2γ·σ(Wᵀx + b)), the stored tensors and σ; W dense."""

    weight: Tensor  # Wᵀ
    gamma: Tensor
    bias: Tensor | None
    witness: Tensor | None  # q > 0, float64: with it row sums prove ρ; without it another method must

    def __init__(
        self, weight: Tensor, gamma: Tensor, bias: Tensor | None, sigma: SlopeRestricted, witness: Tensor | None
    ) -> None:
        super().__init__()
        self.sigma = sigma
        for name, tensor in (("weight", weight), ("gamma", gamma), ("bias", bias), ("witness", witness)):
            self.register_buffer(name, None if tensor is None else tensor.contiguous())


class FrozenResidualLinear(FrozenResidual):
    """x − W(2γ·σ(Wᵀx + b)), (*, m) → (*, m); ``weight`` is Wᵀ, (n, m)."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.sigma.function(F.linear(x, self.weight, self.bias))
        return x - F.linear(z * (2 * self.gamma), self.weight.mT)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, activation={self.sigma.name!r}"


class FrozenResidualConv2d(FrozenResidual):
    """x − W(2γ·σ(Wᵀx + b)), Wᵀ the convolution with ``weight`` and W its exact adjoint."""

    def __init__(
        self,
        weight: Tensor,
        gamma: Tensor,
        bias: Tensor | None,
        sigma: SlopeRestricted,
        witness: Tensor | None,
        *,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
        padding_mode: str = "zeros",
        groups: int = 1,
    ) -> None:
        super().__init__(weight, gamma, bias, sigma, witness)
        self.stride, self.padding, self.padding_mode, self.groups = stride, padding, padding_mode, groups

    def forward(self, x: Tensor) -> Tensor:
        circular = self.padding_mode == "circular"
        padded, padding = (pad_circular(x, self.padding), (0, 0)) if circular else (x, self.padding)
        z = self.sigma.function(F.conv2d(padded, self.weight, self.bias, self.stride, padding, groups=self.groups))
        z = z * (2 * self.gamma[:, None, None])
        same = all(2 * p + 1 == k for p, k in zip(self.padding, self.weight.shape[2:], strict=True))
        if circular and same and self.stride == (1, 1) and self.groups == 1:
            # The adjoint is the circular convolution with the taps at opposite places: faster than a transpose.
            return x - F.conv2d(pad_circular(z, self.padding), self.weight.transpose(0, 1).flip(2, 3))
        missing = [
            size - ((out - 1) * s - 2 * p + k)
            for size, out, s, p, k in zip(
                padded.shape[-2:], z.shape[-2:], self.stride, padding, self.weight.shape[2:], strict=True
            )
        ]
        back = F.conv_transpose2d(z, self.weight, None, self.stride, padding, missing, self.groups)
        return x - (unpad_circular(back, self.padding) if circular else back)

    def extra_repr(self) -> str:
        return (
            f"{self.weight.shape[1] * self.groups}, {self.weight.shape[0]}, "
            f"kernel_size={tuple(self.weight.shape[2:])}, stride={self.stride}, padding={self.padding}, "
            f"padding_mode={self.padding_mode!r}, groups={self.groups}, activation={self.sigma.name!r}"
        )


class FrozenHouseholder(nn.Module):
    """z − 2v·min(0, vᵀz) on pairs of channels, with stored v of norm at most 1: 1-Lipschitz for each such v."""

    first: Tensor
    second: Tensor

    def __init__(self, first: Tensor, second: Tensor, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, x: Tensor) -> Tensor:
        if not -x.ndim <= self.dim < x.ndim or x.shape[self.dim] != 2 * len(self.first):
            raise ValueError(
                f"FrozenHouseholder expects {2 * len(self.first)} channels in dimension {self.dim}; got "
                f"{tuple(x.shape)}. Use it on the inputs that it was built for."
            )
        dim = self.dim % x.ndim
        a, b = x.unflatten(dim, (-1, 2)).unbind(dim + 1)
        each = (-1, *[1] * (a.ndim - dim - 1))
        first, second = self.first.view(each), self.second.view(each)
        behind = (a * first + b * second).clamp_max(0.0)
        return torch.stack((a - 2 * first * behind, b - 2 * second * behind), dim + 1).flatten(dim, dim + 1)


class FrozenCombination(nn.Module):
    """Σ_k α_k f_k(x) with stored α ≥ 0 of sum at most 1."""

    weights: Tensor

    def __init__(self, weights: Tensor, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.register_buffer("weights", weights)

    def forward(self, x: Tensor) -> Tensor:
        # A copy for each branch: one that works in place must not change what the next one sees.
        outputs = [weight * branch(x.clone()) for weight, branch in zip(self.weights, self.branches, strict=True)]
        return torch.stack(outputs).sum(dim=0)


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """nn.Linear with buffers in place of parameters."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    with_buffers(made, weight, bias)
    return made


def plain_conv2d(
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    padding_mode: str = "zeros",
    groups: int = 1,
) -> nn.Conv2d:
    """nn.Conv2d with buffers in place of parameters."""
    made = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        (weight.shape[2], weight.shape[3]),
        (stride[0], stride[1]),
        (padding[0], padding[1]),
        groups=groups,
        bias=bias is not None,
        padding_mode=padding_mode,  # type: ignore[arg-type]
        device="meta",
    )
    with_buffers(made, weight, bias)
    return made


def with_buffers(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """``module`` with stored tensors in place of what it had, so that nothing is left to train."""
    del module.weight, module.bias
    # Contiguous, as a file gives it back: another layout adds in another order.
    module.register_buffer("weight", weight.detach().clone(memory_format=torch.contiguous_format))
    module.register_buffer("bias", None if bias is None else bias.detach().float().clone())
    return module
