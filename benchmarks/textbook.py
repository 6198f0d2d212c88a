"""Orthogonal and sandwich convolutions as their papers write them, for benchmarks/speed.py: no bound, no proof."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TERMS = 5  # of SOC's series in training
NEWTON = 10  # steps of LOT


class Unconstrained(nn.Conv2d):
    """A circular 3 × 3 convolution, and relu where the layer has one."""

    def __init__(self, channels: int, kernel: int, relu: bool) -> None:
        super().__init__(channels, channels, kernel, padding="same", padding_mode="circular")
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return F.relu(y) if self.relu else y


class Fourier(nn.Module):
    """A layer with one matrix for each frequency of the image, made by ``matrices`` of the transformed kernel."""

    def __init__(self, outputs: int, inputs: int, kernel: int, image: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel) * (inputs * kernel**2) ** -0.5)
        self.bias, self.image = nn.Parameter(torch.zeros(outputs, 1, 1)), image

    def spectra(self) -> Tensor:  # (frequencies, outputs, inputs)
        return torch.fft.rfft2(self.weight, s=(self.image, self.image)).conj().flatten(2).permute(2, 0, 1)

    def matrices(self) -> Tensor:
        raise NotImplementedError

    def product(self, matrices: Tensor, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x)
        y = torch.einsum("foi,bif->bof", matrices, spectrum.flatten(2))
        return torch.fft.irfft2(y.unflatten(2, spectrum.shape[2:]), s=x.shape[2:])

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.matrices(), x) + self.bias


class Cayley(Fourier):
    """(I + A)⁻¹(I − A), A = W − Wᴴ (Trockman & Kolter 2021)."""

    def matrices(self) -> Tensor:
        w = self.spectra()
        skew, eye = w - w.mH, torch.eye(w.shape[1], dtype=w.dtype)
        return torch.linalg.inv(eye + skew) @ (eye - skew)


class Reflector(Fourier):
    """I − 2V(VᴴV)⁻¹Vᴴ with V of half the columns (Lai et al. 2025)."""

    def matrices(self) -> Tensor:
        v = self.spectra()[:, :, : self.weight.shape[1] // 2]
        return torch.eye(v.shape[1], dtype=v.dtype) - 2 * v @ torch.linalg.inv(v.mH @ v) @ v.mH


class Polar(Fourier):
    """W(WᴴW)^(−1/2), the root by coupled Newton steps (Xu et al. 2022)."""

    def matrices(self) -> Tensor:
        w = self.spectra()
        gram = w.mH @ w
        size = torch.linalg.matrix_norm(gram)[:, None, None]
        eye = torch.eye(w.shape[2], dtype=w.dtype)
        y, z = gram / size, eye.expand_as(gram)
        for _ in range(NEWTON):
            step = (3 * eye - z @ y) / 2
            y, z = y @ step, step @ z
        return w @ z / size.sqrt()


class Series(nn.Module):
    """exp of a skew convolution, its series applied to the input term by term (SOC, Singla & Feizi 2021)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, kernel, kernel) * (channels * kernel**2) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.weight - self.weight.transpose(0, 1).flip(2, 3)
        half = kernel.shape[-1] // 2
        shapes = (kernel.flatten(1), kernel.transpose(0, 1).flatten(1))
        kernel = kernel / (kernel.shape[-1] * min(torch.linalg.matrix_norm(s.detach()) for s in shapes))
        total = term = x
        for power in range(1, TERMS + 1):
            term = F.conv2d(F.pad(term, (half,) * 4, mode="circular"), kernel) / power
            total = total + term
        return total + self.bias


class Explicit(nn.Module):
    """exp on the frequencies of a k × k circle, then a dilated convolution with it (ECO, Yu et al. 2022)."""

    def __init__(self, channels: int, kernel: int, image: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, kernel, kernel) * (channels * kernel**2) ** -0.5)
        self.bias, self.apart = nn.Parameter(torch.zeros(channels)), image // kernel

    def forward(self, x: Tensor) -> Tensor:
        w = torch.fft.fft2(self.weight).permute(2, 3, 0, 1)
        kernel = torch.fft.ifft2(torch.matrix_exp(w - w.mH).permute(2, 3, 0, 1)).real
        room = self.apart * (kernel.shape[-1] - 1)
        padded = F.pad(x, (0, room, 0, room), mode="circular")
        return F.conv2d(padded, kernel, self.bias, dilation=self.apart)


class Composition(nn.Module):
    """Two-tap blocks of projections composed into a kernel, by small convolutions (BCOP, Li et al. 2019)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * kernel - 1, channels, channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        q = self.weight / torch.linalg.matrix_norm(self.weight, keepdim=True)
        for _ in range(15):
            q = q @ (3 * torch.eye(q.shape[1]) - q.mT @ q) / 2
        kernel = q[0][:, :, None, None]
        for step, basis in enumerate(q[1:, :, : q.shape[1] // 2]):
            project = basis @ basis.mT
            taps = torch.stack([project, torch.eye(len(project)) - project], dim=-1)
            taps = taps[:, :, :, None] if step % 2 == 0 else taps[:, :, None]
            room = (0, 0, 1, 1) if step % 2 == 0 else (1, 1, 0, 0)
            kernel = F.conv2d(F.pad(kernel, room), taps.transpose(0, 1).flip(2, 3))
        half = kernel.shape[-1] // 2
        return F.conv2d(F.pad(x, (half,) * 4, mode="circular"), kernel, self.bias)


class Sandwich(Fourier):
    """√2AᵀΨ relu(√2Ψ⁻¹Bx + b), [A B] by the Cayley transform at each frequency (Wang & Manchester 2023)."""

    def __init__(self, channels: int, kernel: int, image: int) -> None:
        super().__init__(channels, 2 * channels, kernel, image)
        self.psi = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        w = self.spectra().mH  # (frequencies, n + m, n)
        n = w.shape[2]
        u, v = w[:, :n], w[:, n:]
        eye = torch.eye(n, dtype=w.dtype)
        skew = u - u.mH + v.mH @ v
        inverse = torch.linalg.inv(eye + skew)
        a, b = inverse @ (eye - skew), -2 * v @ inverse
        psi = self.psi.exp()
        z = F.relu(2**0.5 * self.product(b.mH, x) / psi + self.bias)
        return 2**0.5 * self.product(a, psi * z)


def textbook(method: str, channels: int, image: int) -> nn.Module:
    return {
        "cayley": lambda: Cayley(channels, channels, 3, image),
        "exp": lambda: Series(channels, 3),
        "lot": lambda: Polar(channels, channels, 3, image),
        "eco": lambda: Explicit(channels, 2, image),
        "reflector": lambda: Reflector(channels, channels, 3, image),
        "bcop": lambda: Composition(channels, 3),
        "sandwich": lambda: Sandwich(channels, 3, image),
    }[method]()
