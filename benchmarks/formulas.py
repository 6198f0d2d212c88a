"""Dense and convolutional layers other than SLL as their formulas are written, for benchmarks/speed.py: no proof.

Residual: x − 2WT⁻¹relu(Wᵀx + b). Affine: WT^(−1/2)x + b. Without T both are the unconstrained limit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BJORCK_STEPS = 15


def eye(n: int) -> Tensor:
    return torch.eye(n)


def cayley(w: Tensor) -> Tensor:  # (m, n), m ≥ n
    """[(I + A)⁻¹(I − A); −2V(I + A)⁻¹], A = U − Uᵀ + VᵀV (Trockman & Kolter 2021)."""
    n = w.shape[1]
    u, v = w[:n], w[n:]
    a = u - u.T + v.T @ v
    inverse = torch.linalg.inv(eye(n) + a)
    return torch.cat([inverse @ (eye(n) - a), -2 * v @ inverse])


def bjorck(w: Tensor) -> Tensor:
    """Q ← Q(3I − QᵀQ)/2 from a weight of norm 1 (Björck & Bowie 1971)."""
    q = w / torch.linalg.matrix_norm(w)
    for _ in range(BJORCK_STEPS):
        q = 1.5 * q - 0.5 * q @ (q.T @ q)
    return q


def reflector(w: Tensor) -> Tensor:
    """I − 2V(VᵀV)⁻¹Vᵀ with V of half the columns (Lai et al. 2025)."""
    v = w[:, : w.shape[1] // 2]
    return eye(len(w)) - 2 * v @ torch.linalg.inv(v.T @ v) @ v.T


ORTHONORMAL = {
    "cayley": cayley,
    "exp": lambda w: torch.matrix_exp(w - w.T),
    "bjorck": bjorck,
    "cholesky": lambda w: torch.linalg.solve_triangular(torch.linalg.cholesky(w.T @ w), w.T, upper=False).T,
    "reflector": reflector,
}


class Layer(nn.Module):
    """A weight whose rows are the neurons of a residual, or the outputs of an affine layer; ``how`` names T."""

    def __init__(self, outputs: int, inputs: int, kernel: int, how: str, residual: bool) -> None:
        super().__init__()
        shape = (outputs, inputs, kernel, kernel) if kernel else (outputs, inputs)
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(shape)))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.how, self.residual, self.half = how, residual, kernel // 2
        self.register_buffer("vector", torch.empty(0))  # of the power iteration, kept from step to step

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.half:
            return F.conv2d(x, self.weight, bias, padding=self.half)
        return F.linear(x, self.weight, bias)

    def adjoint(self, z: Tensor) -> Tensor:
        if self.half:
            return F.conv_transpose2d(z, self.weight, padding=self.half)
        return F.linear(z, self.weight.T)

    def overlaps(self) -> Tensor:  # (n, n) or (n, n, 4·half + 1, …)
        """WᵀW of the columns of W: the rows of ``weight`` in a residual, its columns in an affine layer."""
        columns = self.weight if self.residual else self.weight.transpose(0, 1)
        if self.half:
            return F.conv2d(columns, columns, padding=2 * self.half)
        return columns @ columns.T

    def norm(self, x: Tensor) -> Tensor:
        """The largest singular value; of a convolution on the frequencies of a circle of the image's size."""
        if self.half:
            symbols = torch.fft.rfft2(self.weight, s=x.shape[2:]).flatten(2).permute(2, 0, 1)
            return torch.linalg.matrix_norm(symbols, 2).amax()
        return torch.linalg.matrix_norm(self.weight, 2)

    def norm_estimate(self, x: Tensor) -> Tensor:
        """One step of the power iteration from the vector of the last one, as published layers do."""
        with torch.no_grad():
            start = self.vector if self.vector.numel() else torch.randn_like(x[:1])
            image = self.product(start)
            back = self.adjoint(image / image.norm())
            self.vector = back / back.norm()
        return self.product(self.vector).norm()

    def diagonal(self, x: Tensor) -> Tensor:  # (n,) or ()
        match self.how:
            case "aol":
                return self.overlaps().abs().flatten(1).sum(1)
            case "rescaled":
                c = self.overlaps()
                c = F.conv2d(c, c, padding=4 * self.half) if self.half else c @ c
                return c.abs().flatten(1).sum(1).sqrt()
            case "spectral":
                return self.norm(x) ** 2
            case "spectral_surrogate":
                return self.norm_estimate(x) ** 2
        raise ValueError(self.how)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "none":
            return (
                x - self.adjoint(F.relu(self.product(x, self.bias)))
                if self.residual
                else self.product(x, self.bias)
            )
        t = self.diagonal(x)
        t = t[:, None, None] if self.half and t.ndim else t
        if self.residual:
            return x - self.adjoint(F.relu(self.product(x, self.bias)) * (2 / t))
        return self.product(x * t.rsqrt(), self.bias)


class Orthonormal(nn.Linear):
    """Qx + b, or x − 2Qrelu(Qᵀx + b)."""

    def __init__(self, features: int, method: str, residual: bool = False) -> None:
        super().__init__(features, features)
        nn.init.orthogonal_(self.weight)  # a random square matrix is too badly conditioned for Cholesky
        self.method, self.residual = method, residual

    def forward(self, x: Tensor) -> Tensor:
        q = ORTHONORMAL[self.method](self.weight)
        if self.residual:
            return x - 2 * F.linear(F.relu(F.linear(x, q, self.bias)), q.T)
        return F.linear(x, q, self.bias)


class General(nn.Module):
    """U₁(x − WΛz) + U₂Λ^½z, z = relu(Wᵀx + b), Λ = T⁻¹ with SLL's T, [U₁ U₂] by Cayley (Theorem 4)."""

    def __init__(self, m: int, n: int, k: int, kernel: int = 0, plain: bool = False) -> None:
        super().__init__()
        shape = (n, m, kernel, kernel) if kernel else (n, m)
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(shape)))
        self.mixing = nn.Parameter(nn.init.xavier_normal_(torch.empty(k, m + n)))
        self.bias, self.q = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.ones(n))
        self.inputs, self.half, self.plain = m, kernel // 2, plain

    def diagonal(self) -> Tensor:
        if self.half:
            lags = F.conv2d(self.weight, self.weight, padding=2 * self.half).abs().sum(dim=(2, 3))
        else:
            lags = (self.weight @ self.weight.T).abs()
        return (lags * self.q[None, :] / self.q[:, None]).sum(1)

    def forward(self, x: Tensor) -> Tensor:
        u = self.mixing if self.plain else cayley(self.mixing.T).T
        t = torch.ones(len(self.weight)) if self.plain else self.diagonal()
        u1, u2 = u[:, : self.inputs], u[:, self.inputs :]
        if self.half:
            t, u1, u2 = t[:, None, None], u1[:, :, None, None], u2[:, :, None, None]
            z = F.relu(F.conv2d(x, self.weight, self.bias, padding=self.half))
            back = F.conv_transpose2d(z / t, self.weight, padding=self.half)
            return F.conv2d(x - back, u1) + F.conv2d(z * t.rsqrt(), u2)
        z = F.relu(F.linear(x, self.weight, self.bias))
        return F.linear(x - F.linear(z / t, self.weight.T), u1) + F.linear(z * t.rsqrt(), u2)


class Sandwich(nn.Module):
    """√2AᵀΨ relu(√2Ψ⁻¹Bx + b), [A B] by the Cayley transform (Wang & Manchester 2023)."""

    def __init__(self, m: int, k: int, plain: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(k, k + m)))
        self.bias, self.psi = nn.Parameter(torch.zeros(k)), nn.Parameter(torch.zeros(k))
        self.plain = plain

    def forward(self, x: Tensor) -> Tensor:
        made = self.weight if self.plain else cayley(self.weight.T).T
        k = len(made)
        psi = self.psi.exp()
        z = F.relu(2**0.5 * F.linear(x, made[:, k:]) / psi + self.bias)
        return 2**0.5 * F.linear(psi * z, made[:, :k].T)
