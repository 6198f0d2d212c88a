"""One step of a network as the proof sees it: its function, its verified constant, its rounding error.

``error(Z, u)`` bounds ‖computed − exact‖ for *every* input of norm at most Z, in arithmetic of unit roundoff u with
sums in any order, fused or not (docs/certificate.md has the table, docs/rounding.md the proofs). Functions here
multiply matrices: convolutions are im2col and one product, so that their sums are classical.

Rounding: up. ``ROUND`` covers the roundings of evaluating the bounds themselves, ``UNDERFLOW`` those below 2⁻¹⁰²².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipcert.activations import SLOPE_RESTRICTED, SlopeRestricted
from lipcert.errors import NotCertified
from lipcert.proofs.geometry import Geometry, chained, matmul
from lipcert.verified import convolution, dense, rounding
from lipcert.verified.rounding import U32, U64, norm_up

Shape = tuple[int, ...]
ROUND = 1 + 2.0**-40  # every bound takes fewer than 2¹⁰ roundings of 2⁻⁵³ to evaluate
UNDERFLOW = {U64: 2.0**-700, U32: 2.0**-40}  # of one operation whose tensors stay below LARGEST
LARGEST = {U64: 2.0**128, U32: 2.0**40}  # 2⁻¹²⁶·2⁴⁰ for each of 2²⁰ terms in 2²⁴ outputs: below 2⁻⁴⁰
HUGE = {U64: 2.0**500, U32: 2.0**60}  # norms above it might overflow inside an operation: no bound is claimed
CASTS = {U64: 0, U32: 3}  # a float64 tensor or factor that float32 works with is rounded first
Error = Callable[[Tensor, float], Tensor]


def g(n: int, u: float = U64) -> float:
    """nu/(1 − nu) for n roundings and those of casting what is stored to the arithmetic of u."""
    return rounding.g(n + CASTS[u], u)


def require_ieee() -> None:
    """Raise ``NotCertified`` unless this thread and torch's workers round to nearest and keep subnormal numbers."""
    # Large enough to be divided among the workers, which have registers of their own.
    tiny = torch.full((2**15 * torch.get_num_threads(),), 2.0**-1074, dtype=torch.float64)
    small = torch.full_like(tiny, 2.0**-149, dtype=torch.float32)
    if not rounding.usable() or not bool((tiny * 1.0 > 0).all()) or not bool((small * 1.0 > 0).all()):
        raise NotCertified(
            "this process flushes subnormal numbers to zero or rounds in another direction, so its arithmetic is "
            "not the one that is proved. Call torch.set_flush_denormal(False), and import no library that was "
            "built with -ffast-math."
        )


def no_error(norms: Tensor, u: float) -> Tensor:
    """Moves, comparisons and signs are exact."""
    return torch.zeros_like(norms)


@dataclass(frozen=True)
class Operation:
    """A map with a proved constant. ``lipschitz`` = ∞ means that nothing was proved, and ``method`` says why."""

    op: str
    shape: Shape  # of the output, without the batch
    lipschitz: float
    method: str
    forward: Callable[[Tensor], Tensor]
    error: Error | None = no_error  # None: no bound of the rounding error is known
    fields: dict[str, Any] | None = field(
        default_factory=dict
    )  # of the certificate; None: the format has no such op
    claim: float | None = None  # what the layer promises by design, to be refuted if it does not hold
    assumed: bool = False  # the constant is the word of a user's rule
    largest: float = 1.0  # modulus of the entries of its tensors, for underflow
    assumes: tuple[str, ...] = ()  # what ``error`` assumes of the platform's elementary functions

    def error_bound(self, norms: Tensor, u: float) -> Tensor:
        """e(Z); infinite where none is known, or where tensors or Z are so large that something could overflow."""
        if self.error is None or not self.largest <= LARGEST[u]:
            return torch.full_like(norms, math.inf)
        return torch.where(norms <= HUGE[u], self.error(norms, u), math.inf)

    @property
    def proved(self) -> bool:
        return math.isfinite(self.lipschitz) and not self.assumed


def array(tensor: Tensor) -> np.ndarray:
    if not tensor.is_floating_point():
        raise NotCertified(f"tensors must be floating point; got {tensor.dtype}. Convert the module with .float().")
    kept = tensor.detach().cpu()
    return (kept if kept.dtype in (torch.float32, torch.float64) else kept.float()).numpy()  # half precision: exact


def largest(*tensors: Tensor | None) -> float:
    return max((float(t.detach().abs().max()) for t in tensors if t is not None and t.numel()), default=0.0)


def bias_norm(bias: Tensor | None, gamma: np.ndarray | None, positions: int) -> float:
    """β ≥ √(positions·Σ γ_i b_i²)."""
    if bias is None:
        return 0.0
    values = array(bias).astype(np.float64)
    weighted = values if gamma is None else values * np.sqrt(np.abs(gamma.astype(np.float64))) * ROUND
    return float(norm_up(weighted)) * math.sqrt(positions) * ROUND


def affine_error(terms: int, kappa: float, beta: float) -> Error:
    def error(norms: Tensor, u: float) -> Tensor:
        return ROUND * g(terms + 1, u) * (kappa * norms + beta) + UNDERFLOW[u]

    return error


def relative_error(roundings: int, factor: float, shift: float = 0.0) -> Error:
    """g·factor·(Z + shift): a product or quotient per entry, or a sum of non-overlapping blocks."""

    def error(norms: Tensor, u: float) -> Tensor:
        return ROUND * g(roundings, u) * factor * (norms + shift) + UNDERFLOW[u]

    return error


def residual_error(
    rho: float, kappa: float, beta: float, terms: tuple[int, int], roundings: int = 0, start: float = 0.0
) -> Error:
    """a is what Wᵀx + b loses in the norm of Γ^½, v what σ of it can reach; then the product with W, and x − ·.

    ``roundings`` are those of σ itself, ``start`` bounds ‖σ(0)‖ in that norm.
    """
    root = math.sqrt(rho) * ROUND

    def error(norms: Tensor, u: float) -> Tensor:
        a = g(terms[0] + 1, u) * (kappa * norms + beta)
        v = root * norms + beta + a + start
        lost = g(1 + roundings, u)  # of σ and of the product with 2γ
        grown = 1 + (lost if roundings else u)
        moved = 2 * (1 + u) * root * (a + lost * v)
        rounded = g(terms[1] + 3, u) * (norms + 2 * grown * kappa * v)
        return ROUND * (moved + rounded) + UNDERFLOW[u]

    return error


def require_one_each(count: int, **tensors: Tensor | None) -> None:
    """A bias or a γ of another shape would be broadcast: another function than the one that is proved."""
    for name, tensor in tensors.items():
        if tensor is not None and tuple(tensor.shape) != (count,):
            raise NotCertified(
                f"its {name} must have shape ({count},), but it has shape {tuple(tensor.shape)}. Build it anew."
            )


def linear(weight: Tensor, bias: Tensor | None, shape: Shape, block: int | None) -> Operation:
    """x ↦ Vx + b on the last axis."""
    matrix = array(weight)
    require_one_each(len(matrix), bias=bias)
    norm = dense.norm_bound(matrix)
    leading = math.prod(shape[:-1])
    kappa = dense.kappa(matrix, np.ones(len(matrix)))

    def forward(x: Tensor) -> Tensor:
        y = matmul(x, weight.to(x.dtype).mT, block)
        return y if bias is None else y + bias.to(x.dtype)

    return Operation(
        "linear",
        (*shape[:-1], len(matrix)),
        norm.value,
        norm.method,
        forward,
        affine_error(chained(matrix.shape[1], block), kappa, bias_norm(bias, None, leading)),
        {"weight": weight, "bias": bias} if len(shape) == 1 else None,
        largest=largest(weight, bias),
    )


def conv(weight: Tensor, bias: Tensor | None, shape: Shape, geometry: Geometry, block: int | None) -> Operation:
    """The convolution of ``nn.Conv2d``, its constant that of the infinite image, or of its circular one."""
    image, kernel = (shape[1], shape[2]), array(weight)
    require_one_each(len(kernel), bias=bias)
    stride = geometry.proved_stride(image)
    norm = convolution.conv_norm_bound(kernel, stride, geometry.dilation, geometry.groups, geometry.torus(image))
    norm = convolution.by_grid_too(norm, kernel, 1, stride, geometry.dilation, geometry.groups)
    out = geometry.outputs(image)
    kappa = convolution.conv_kappa(
        kernel, np.ones(len(kernel)), stride=stride, dilation=geometry.dilation, groups=geometry.groups
    )
    return Operation(
        "conv",
        (len(kernel), *out),
        norm.value,
        norm.method,
        lambda x: geometry.convolve(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), block),
        affine_error(chained(math.prod(kernel.shape[1:]), block), kappa, bias_norm(bias, None, math.prod(out))),
        {"weight": weight, "bias": bias, **geometry.placed()} if geometry.in_format(image) else None,
        largest=largest(weight, bias),
    )


def residual(
    weight: Tensor,
    gamma: Tensor,
    bias: Tensor | None,
    witness: Tensor | None,
    sigma: SlopeRestricted,
    shape: Shape,
    geometry: Geometry | None,
    block: int | None,
) -> Operation:
    """x − W(2γ·σ(Wᵀx + b)), L = max(1, 2ρ − 1); slopes of σ in [0, 1]."""
    require_slopes(sigma)
    stored, weights = array(weight), array(gamma)
    require_one_each(len(stored), gamma=gamma, bias=bias)
    if witness is not None and not bool((torch.isfinite(witness) & (witness > 0)).all()):
        witness = None  # no witness at all; a network in half precision may have lost it
    q = None if witness is None else array(witness).astype(np.float64)
    positions, more, image = 1, {}, (1, 1)
    if geometry is None:
        rho, kappa = dense_rho(stored, weights, q), dense.kappa(stored, weights)
        terms = (chained(stored.shape[1], block), chained(stored.shape[0], block))
        op, positions = "residual_linear", math.prod(shape[:-1])
    else:
        image = (shape[1], shape[2])
        placed: dict[str, Any] = {"stride": geometry.proved_stride(image), "groups": geometry.groups}
        rho = _conv_rho(stored, weights, q, placed, geometry.torus(image))
        kappa = convolution.conv_kappa(stored, weights, **placed)
        taps, hidden = math.prod(stored.shape[2:]), len(stored) // geometry.groups
        down = hidden * taps if block is None else chained(hidden, block) + taps  # the products, then ``fold``
        terms = (chained(math.prod(stored.shape[1:]), block), down)
        op, positions, more = "residual_conv", math.prod(geometry.outputs(image)), geometry.placed()
    kept = None if witness is None else witness.double()
    fields = {"weight": weight, "gamma": gamma, "bias": bias, "witness": kept, "activation": sigma.name, **more}

    def forward(x: Tensor) -> Tensor:
        w, b = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
        twice = 2 * gamma.to(x.dtype)
        if geometry is None:
            y = matmul(x, w.mT, block)
            return x - matmul(sigma.function(y if b is None else y + b) * twice, w, block)
        z = sigma.function(geometry.convolve(x, w, b, block)) * twice[:, None, None]
        return x - geometry.transpose(z, w, (x.shape[2], x.shape[3]), block)

    in_format = len(shape) == 1 if geometry is None else geometry.in_format(image)
    beta = bias_norm(bias, weights, positions)
    upper, error = residual_constants(rho.value, kappa, beta, terms, sigma, (weights, positions))
    return Operation(
        op,
        shape,
        upper,
        rho.method,
        forward,
        error,
        fields if in_format else None,
        claim=1.0,
        largest=largest(weight, gamma, bias),
        assumes=sigma.assumes,
    )


def residual_constants(
    rho: float,
    kappa: float,
    beta: float,
    terms: tuple[int, int],
    sigma: SlopeRestricted,
    neurons: tuple[np.ndarray, int],
) -> tuple[float, Error | None]:
    """L and e of a residual, no e where something is infinite. ``neurons``: γ, and how many positions repeat it."""
    gamma, positions = neurons
    start = bias_norm(torch.full((len(gamma),), sigma.start, dtype=torch.float64), gamma, positions)
    upper = max(1.0, math.nextafter(2 * rho - 1, math.inf))
    if not math.isfinite(kappa + beta + rho + start):
        return upper, None
    return upper, residual_error(rho, kappa, beta, terms, sigma.roundings, start)


def require_slopes(sigma: SlopeRestricted) -> None:
    """Raise ``NotCertified`` unless σ is one of lipcert's, with slopes in [0, 1]: the proof is about no other."""
    if type(sigma) is not SlopeRestricted or SLOPE_RESTRICTED.get(sigma.name) != sigma:
        raise NotCertified(
            f"the activation inside a residual layer must be one of {sorted(SLOPE_RESTRICTED)} as lipcert defines "
            f"it; got another function named {sigma.name!r}. Use 'relu'."
        )


def dense_rho(weight: np.ndarray, gamma: np.ndarray, q: np.ndarray | None) -> dense.Bound:
    """ρ by the witness if that gives 1, else by whatever proves least."""
    if q is not None:
        value = dense.rho_weighted(weight, gamma, q)
        if value <= 1:
            return dense.Bound(value, "row sums")
    return dense.rho_bound(weight, gamma, q)


def _conv_rho(
    weight: np.ndarray,
    gamma: np.ndarray,
    q: np.ndarray | None,
    placed: dict[str, Any],
    torus: tuple[int, int] | None,
) -> dense.Bound:
    if q is not None:
        value = convolution.conv_rho_weighted(weight, gamma, q, **placed)
        if value <= 1:
            return dense.Bound(value, "row sums")
    found = convolution.conv_rho_bound(weight, gamma, q, **placed, torus=torus)
    return convolution.by_grid_too(found, weight, 2, **placed)
