"""Orthonormal weights from free parameters: W ↦ Q with QᵀQ = I (tall) or QQᵀ = I (wide).

A weight is one real matrix, or a batch of complex ones, the symbols of a convolution (``torus``): ᵀ is then the
conjugate transpose. Five published maps. Where exact orthogonality would need an inverse that may not exist or a
series without end, the map errs on the side of a contraction, ‖Q‖ ≤ 1, which is all that T = I needs:

- ``cayley``   (I − A)(I + A)⁻¹ with A skew plus VᵀV (Trockman & Kolter 2021): orthonormal.
- ``exp``      the exponential series of a skew matrix (SOC, Singla & Feizi 2021), cut at an order and
               norm for which the cut series is a contraction, then squared.
- ``bjorck``   Q ← Q(3I − QᵀQ)/2 from ‖Q‖ ≤ 1: singular values move up in [0, 1] (Björck & Bowie 1971).
- ``cholesky`` VL^(−ᵀ), LLᵀ = VᵀV + εI (Hu et al. 2023): the ridge ε makes QᵀQ ⪯ I, never more.
- ``reflector`` block reflectors I − 2V(VᵀV + εI)⁻¹Vᵀ (BRO, Lai et al. 2025), likewise; one of few columns, or two.

Rounding: none is directed; callers enlarge T by ``squared_norm`` of what was computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.algebra import quick
from lipcert.algebra.scale import inverse_sqrt, normalize, transformed
from lipcert.algebra.spectral import modulus, squared_norms_bound
from lipcert.errors import one_of, positive_int

METHODS = ("bjorck", "cayley", "cholesky", "exp", "reflector")
STORED = "stored"  # Q is the weight itself, which the optimizer keeps orthonormal: see lipcert.training.optimizers

# Highest powers at which the cut exponential series of a skew matrix of norm ≤ 1.7 has norm ≤ 1: the
# first term left out must point inwards. Orders 5, 6, 9, 10 leave the unit ball for small angles already.
CONTRACTING_ORDERS = (3, 4, 7, 8, 11, 12)
CONTRACTING_ANGLE = 1.7
EXP_ORDER, EXP_SQUARINGS = 12, 2  # angles up to 4 × 1.7 > π: every rotation is reached
LARGEST_ANGLE = 2.0**EXP_SQUARINGS * CONTRACTING_ANGLE
BJORCK_STEPS = 15
NEAR = 2.0**-12  # a deviation that a better bound of the norm could not reduce by much


def orthonormal(weight: Tensor, method: str, *, training: bool = False) -> Tensor:  # (…, n, m) → (…, n, m)
    """A matrix of the shape of ``weight`` with orthonormal rows or columns, whichever are fewer.

    In ``training``, on a CPU, by the maps of ``quick`` where they have one for this weight.
    """
    method = one_of("method", method, METHODS)
    tall = weight if weight.shape[-2] >= weight.shape[-1] else weight.mH
    result = QUICK[method](tall) if training and not transformed(weight) and weight.device.type == "cpu" else None
    result = MAPS[method](tall) if result is None else result
    return result if tall is weight else result.mH


def gram_deviation(weight: Tensor) -> Tensor:  # (…, n, m) → ()
    """The largest ‖QᵀQ − I‖_∞ ≥ ‖QᵀQ − I‖₂ (QQᵀ when wide), so ‖Q‖² ≤ 1 + this."""
    gram = weight.mH @ weight if weight.shape[-2] >= weight.shape[-1] else weight @ weight.mH
    return modulus(gram - _eye(gram, gram.shape[-1])).sum(dim=-1).amax()


def squared_norm(weight: Tensor, method: str, *, training: bool = False) -> Tensor:  # (…, n, m) → ()
    """An upper bound of the largest ‖Q‖² for Q as it was computed: 1 + ‖QᵀQ − I‖_∞.

    Björck's steps, and a ridge on a badly conditioned weight, may end far from orthonormal with ‖Q‖ ≤ 1 all the
    same; there a bound of the norm is better. No gradient is taken but for Björck, where T can move with W.
    """
    if training and not transformed(weight) and weight.device.type == "cpu":
        near = weight.detach() if weight.shape[-2] >= weight.shape[-1] else weight.detach().mH
        bound = 1 + quick.deviation(near)
        if not bool(bound > 1 + NEAR):
            return bound
    weight = weight if method == "bjorck" else weight.detach()
    bound = 1 + gram_deviation(weight)
    if method in ("bjorck", "cholesky", "reflector", STORED) and _perhaps(bound > 1 + NEAR, weight):
        bound = torch.minimum(bound, squared_norms_bound(weight, iterations=6).amax().clamp_min(1.0))
    return bound


def stored(weight: Tensor) -> Tensor:
    """The weight itself, scaled down where it is so large that its Gram matrix might leave float32."""
    return _bounded(weight)


def cayley(tall: Tensor, *, short: bool = False) -> Tensor:  # (…, m, n), m ≥ n
    """[(I + A)⁻¹(I − A); −2V(I + A)⁻¹] with A = U − Uᵀ + VᵀV, for ``tall`` = [U; V].

    ``short`` leaves out the product of the first block, which is 2(I + A)⁻¹ − I.
    """
    tall = _bounded(tall)
    n = tall.shape[-1]
    top, bottom = tall[..., :n, :], tall[..., n:, :]
    skew = top - top.mH
    if tall.shape[-2] > n or not short:
        skew = skew + bottom.mH @ bottom
    eye = _eye(tall, n)
    # The Hermitian part of I + A is at least I: always invertible.
    if short:
        inverse = quick.inverse(eye + skew)
        first = 2 * inverse - eye
        return torch.cat([first, -2 * bottom @ inverse], dim=-2) if tall.shape[-2] > n else first
    inverse = torch.linalg.solve(eye + skew, eye.expand_as(skew))
    return torch.cat([inverse @ (eye - skew), -2 * bottom @ inverse], dim=-2)


def exponential(tall: Tensor) -> Tensor:  # (…, m, n), m ≥ n
    """The first n columns of S(A/4)⁴ with S the series to order 12 and A = M − Mᵀ, M = [tall 0].

    A is scaled down where its norm exceeds 4 × 1.7, by a proved bound of that norm.
    """
    n, skew = tall.shape[-1], _skew(tall)
    halvings, largest = 2.0**EXP_SQUARINGS, LARGEST_ANGLE
    if _perhaps(squared_norms_bound(skew.detach(), iterations=6).amax() > largest**2, skew):
        norm = squared_norms_bound(skew, iterations=6).amax().clamp_min(1.0).sqrt()
        skew = skew * (largest / norm).clamp_max(1.0)
    skew = skew / halvings
    result = exponential_series(skew, EXP_ORDER)
    for _ in range(EXP_SQUARINGS):
        result = result @ result
    return result[..., :n]


def _skew(tall: Tensor) -> Tensor:  # (…, m, n) → (…, m, m)
    """A = M − Mᵀ of M = [tall 0]."""
    square = F.pad(_bounded(tall), (0, tall.shape[-2] - tall.shape[-1]))
    return square - square.mH


def exponential_series(skew: Tensor, order: int) -> Tensor:  # (…, m, m)
    """Σ_{j ≤ order} A^j/j!, a contraction for skew A of norm at most 1.7 (proved orders only)."""
    if order not in CONTRACTING_ORDERS:
        raise ValueError(
            f"order must be one of {list(CONTRACTING_ORDERS)}; got {order!r}. At other orders the cut series "
            "has norm above 1: take the next order in the list."
        )
    eye = _eye(skew, skew.shape[-1])
    square = skew @ skew
    powers = [eye, skew, square, skew @ square]
    fourth = square @ square
    # Horner's rule in A⁴, whose coefficients are polynomials of degree 3 (Paterson & Stockmeyer 1973).
    result: Tensor | None = None
    for start in range(order - order % 4, -1, -4):
        terms = [powers[j] / math.factorial(start + j) for j in range(min(4, order - start + 1))]
        block = sum(terms[1:], terms[0])
        if result is None:
            result = block
        elif start == order - order % 4 - 4 and order % 4 == 0:  # the first coefficient is a number
            result = block + fourth / math.factorial(order)
        else:
            result = block + fourth @ result
    assert result is not None
    return result.expand_as(skew)


def bjorck(tall: Tensor) -> Tensor:  # (…, m, n), m ≥ n
    """Björck's iteration of order one from W/‖W‖, with a proved bound of ‖W‖: ‖Q‖ ≤ 1 after any step.

    A step squares the deviation of QᵀQ from I, so that one from below √eps is the last that changes anything.
    """
    unit, _ = _normalized(tall)
    result = unit * inverse_sqrt(squared_norms_bound(unit, iterations=6))[..., None, None]
    settled = torch.finfo(result.dtype).eps ** 0.5
    for _ in range(BJORCK_STEPS):
        gram = result.mH @ result
        result = 1.5 * result - 0.5 * result @ gram
        with torch.no_grad():
            away = modulus(gram.detach() - _eye(gram, gram.shape[-1])).amax()
        if not _perhaps(away > settled, result):
            break
    return result


def cholesky(tall: Tensor, alpha: Tensor | None = None) -> Tensor:  # (…, m, n), m ≥ n
    """VL^(−ᵀ) with LLᵀ = VᵀV + αI, α at least the ε that rounding needs: singular values s/√(s² + α)."""
    factor, unit = _ridged_cholesky(tall, alpha)
    return torch.linalg.solve_triangular(factor, unit.mH, upper=False).mH.to(tall.dtype)


def reflector(tall: Tensor) -> Tensor:  # (…, m, n), m ≥ n
    """The first n columns of R(V₁)R(V₂), V₁ and V₂ the two halves of the columns of ``tall``.

    One reflector from all columns of a square matrix would be −I whatever the parameters; two from the
    halves use each of them, and V₁ = V₂ is the identity.
    """
    m, n = tall.shape[-2:]
    result = _eye(tall, m)[:, :n]
    for half in reversed(tall.split((n + 1) // 2, dim=-1)):
        result = block_reflector(half) @ result
    return result


def block_reflector(v: Tensor) -> Tensor:  # (…, m, r) → (…, m, m)
    """I − 2V(VᵀV + εI)⁻¹Vᵀ: symmetric, eigenvalues 1 − 2s²/(s² + ε) in [−1, 1]."""
    factor, unit = _ridged_cholesky(v)
    half = torch.linalg.solve_triangular(factor, unit.mH, upper=False)  # L⁻¹Vᵀ, (…, r, m)
    return (_eye(half, v.shape[-2]) - 2 * half.mH @ half).to(v.dtype)


def low_rank_reflector(v: Tensor, n: int, m: int) -> Tensor:  # (…, max(n, m), r) → (…, n, m)
    """The first n rows and m columns of one block reflector, the identity but on the r columns of V."""
    return block_reflector(v)[..., :n, :m]


def require_rank(rank: object, method: str, n: int, m: int) -> int | None:
    """``rank`` as the number of columns of V, or None for the two halves of a square weight."""
    if rank is None:
        return None
    if method != "reflector":
        raise ValueError(f"rank is a setting of method='reflector'; got method={method!r}. Leave it out.")
    if positive_int("rank", rank) >= max(n, m):
        raise ValueError(
            f"rank must be less than the larger width, {max(n, m)}; got {rank}. With as many columns as rows the "
            "reflector is −I whatever its parameters."
        )
    return positive_int("rank", rank)


def _ridged_cholesky(v: Tensor, alpha: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(L, V̂) with LLᵀ = V̂ᵀV̂ + εI and V̂ = V/s of largest entry near 1, in float64; with α, max(ε, α/s²) for ε.

    ε = 8(m + n)·eps·(tr V̂ᵀV̂ + 1) exceeds what rounding can take from the smallest pivot; in float32 it would be
    as large as the eigenvalues of an ordinary weight.
    """
    unit, scale = (part.to(torch.promote_types(part.dtype, torch.float64)) for part in _normalized(v))
    gram = unit.mH @ unit
    m, n = v.shape[-2:]
    trace = gram.detach().real.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    ridge = 8 * (m + n) * torch.finfo(torch.float64).eps * (trace + 1)
    if alpha is not None:
        ridge = torch.maximum(ridge, alpha / scale / scale)
    return torch.linalg.cholesky(gram + ridge[..., None, None] * _eye(gram, n)), unit


def _perhaps(condition: Tensor, like: Tensor) -> bool:
    """Whether the condition holds; True where a compiler, an exporter or a transform cannot tell.

    Also True on an accelerator, where looking at the condition would wait for the device in every step.
    """
    return transformed(like) or like.device.type != "cpu" or bool(condition.any())


def _bounded(weight: Tensor) -> Tensor:
    """The weight, scaled down where √(‖W‖₁‖W‖_∞) ≥ ‖W‖ exceeds 64: I + A must stay well conditioned.

    Any scaling of the parameters gives another orthonormal matrix, so this costs no soundness.
    """
    ordinary = False
    if weight.device.type == "cpu" and not transformed(weight):
        sums = modulus(weight.detach())
        norm = float(sums.sum(dim=-2).amax() * sums.sum(dim=-1).amax()) ** 0.5
        ordinary = 2.0**-10 < norm < 63
    if ordinary:
        return weight
    unit, scale = _normalized(weight)
    sums = modulus(unit)
    norm = (sums.sum(dim=-2).amax() * sums.sum(dim=-1).amax()).sqrt()
    return unit / torch.maximum(scale.reciprocal(), norm / 64)


def _normalized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``normalize``, of complex numbers by their parts."""
    if not weight.is_complex():
        return normalize(weight)
    unit, scale = normalize(torch.view_as_real(weight.resolve_conj()))
    return torch.view_as_complex(unit.contiguous()), scale


def _eye(like: Tensor, n: int) -> Tensor:
    return torch.eye(n, device=like.device, dtype=like.dtype)


def _quick_exponential(tall: Tensor) -> Tensor | None:
    rotated = quick.rotation(_skew(tall), LARGEST_ANGLE)
    return None if rotated is None else rotated[..., : tall.shape[-1]]


MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "bjorck": bjorck,
    "cayley": cayley,
    "cholesky": cholesky,
    "exp": exponential,
    "reflector": reflector,
}
QUICK: dict[str, Callable[[Tensor], Tensor | None]] = {
    "bjorck": partial(quick.polar, plain=bjorck),
    "cayley": partial(cayley, short=True),
    "cholesky": partial(quick.triangular, plain=cholesky),
    "exp": _quick_exponential,
    "reflector": partial(quick.reflectors, plain=cholesky),
}
