"""Proved bounds for convolutions, kernel (n, c/groups, h, w) as ``nn.Conv2d`` stores it, γ ≥ 0 per output channel.

The operator on an image is a piece of the one on ℤ², so sup_ω ‖H(ω)‖ of its symbol bounds it: zero padding of any
amount is a compression, circular padding a sampling of frequencies. ``torus``, the size of a circular image in
strides, says which: then the bound is exact but for rounding. A stride s is polyphase: stride 1 with s times as
many inputs, K[o, c, su + φ]. A dilation δ changes nothing but the stride: s/gcd(s, δ) takes its place.

``conv_rho_*`` bound ρ = λmax(WΓWᵀ) with Wᵀ the convolution (residual layers: outputs are neurons),
``conv_norm_bound`` the operator norm of a convolution, hence also of the ``nn.ConvTranspose2d`` with the same
kernel, stride, dilation and groups.
Rounding: up. Infinite where nothing is proved; a geometry without a proof is refused with ``NotCertified``.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lipcert.errors import NotCertified, pair, positive_int
from lipcert.verified.dense import Bound, best, per_row, positive_row_sums, sqrt_up, weighted_rho
from lipcert.verified.grid import choose_oversampling, grid_points, symbol_bound
from lipcert.verified.rounding import ETA, Array, ldexp_up, real, up
from lipcert.verified.rowsums import largest_up, nonnegative_norm_up, overlaps
from lipcert.verified.scale import scaled_rows

Pair = int | tuple[int, int]
MANY_LAGS = 4096
MANY_PRODUCTS, MANY_ANGLES = 2**36, 2**14  # of one proof on a torus, here and in the checker; beyond, the grid


def proved_stride(
    kernel_size: Pair,
    image: Pair,
    *,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    padding_mode: str = "zeros",
) -> tuple[int, int]:
    """The stride with which the bounds below hold for this geometry of ``nn.Conv2d``; else ``NotCertified``.

    Zeros: the stride itself, whatever the padding and the image. Circular on N: gcd(s, N), if no two outputs have
    the same position modulo N. Reflect and replicate repeat pixels and have no proof.
    """
    sizes, images, strides = pair("kernel_size", kernel_size), pair("image", image), pair("stride", stride)
    dilations = pair("dilation", dilation)
    if padding_mode == "zeros":
        return strides
    if padding_mode != "circular":
        raise NotCertified(
            f"padding_mode must be 'zeros' or 'circular'; got {padding_mode!r}. Reflect and replicate repeat "
            "pixels, which can multiply the norm: use zeros."
        )
    reach = [d * (k - 1) for d, k in zip(dilations, sizes, strict=True)]
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"padding must be numbers, 'same' or 'valid'; got {padding!r}.")
        padded = reach if padding == "same" else [0, 0]
    else:
        padded = [2 * p for p in pair("padding", padding, least=0)]
    usable_strides = []
    for n, s, more, r in zip(images, strides, padded, reach, strict=True):
        outputs, common = (n + more - r - 1) // s + 1, math.gcd(s, n)
        if outputs > n // common:
            raise NotCertified(
                f"circular padding must not repeat an output; got {outputs} outputs of stride {s} on {n} pixels, "
                f"which have room for {n // common}. Pad less, or use zeros."
            )
        usable_strides.append(common)
    return usable_strides[0], usable_strides[1]


def polyphase(kernel: Array, stride: Pair = 1, dilation: Pair = 1, groups: int = 1) -> Array:
    """(n, c, h, w) → (groups, n/groups, c·phases, taps, taps): the stride-1 convolution with the same norm."""
    (s1, s2), dilations = pair("stride", stride), pair("dilation", dilation)
    groups = positive_int("groups", groups)
    s1, s2 = s1 // math.gcd(s1, dilations[0]), s2 // math.gcd(s2, dilations[1])
    n, channels, height, width = kernel.shape
    s1, s2 = min(s1, height), min(s2, width)  # a stride beyond the kernel only skips pixels: phases of zeros
    if n % groups:
        raise ValueError(f"groups must divide the {n} output channels; got {groups}.")
    padded = np.pad(kernel, ((0, 0), (0, 0), (0, -height % s1), (0, -width % s2)))
    phases = padded.reshape(groups, n // groups, channels, padded.shape[2] // s1, s1, padded.shape[3] // s2, s2)
    phases = phases.transpose(0, 1, 2, 4, 6, 3, 5)
    return np.ascontiguousarray(phases).reshape(groups, n // groups, channels * s1 * s2, *phases.shape[5:])


def conv_rho_weighted(
    kernel: npt.ArrayLike,
    gamma: npt.ArrayLike,
    q: npt.ArrayLike | None = None,
    *,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
) -> float:
    """ρ ≤ max_i γ_i Σ_j Σ_d |C_ij[d]| q_j/q_i over the lags d that are multiples of the stride."""
    array = real("kernel", kernel, 4)
    if q is not None:
        weights, ratios = per_row("gamma", gamma, array), per_row("q", q, array)
        columns = polyphase(array, stride, dilation, groups)
        size = columns.shape[1]
        return max(
            weighted_rho(one, weights[i * size : (i + 1) * size], ratios[i * size : (i + 1) * size])
            for i, one in enumerate(columns)
        )
    parts = scaled_rows(array, gamma)
    if parts is None:
        return math.inf
    return ldexp_up(_by_row_sums(polyphase(parts.rows, stride, dilation, groups)), 2 * parts.exponent)


def conv_rho_grid(
    kernel: npt.ArrayLike,
    gamma: npt.ArrayLike,
    *,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
    oversampling: int | None = None,
) -> float:
    """ρ ≤ the maximum on a grid of frequencies over its cosine factors; ``oversampling`` is points per degree."""
    if oversampling is not None and oversampling < 2:
        raise ValueError(f"oversampling must be at least 2; got {oversampling}. The factor would be useless.")
    parts = scaled_rows(real("kernel", kernel, 4), gamma)
    if parts is None:
        return math.inf
    return ldexp_up(symbol_bound(polyphase(parts.rows, stride, dilation, groups), oversampling), 2 * parts.exponent)


def conv_rho_bound(
    kernel: npt.ArrayLike,
    gamma: npt.ArrayLike,
    q: npt.ArrayLike | None = None,
    *,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
    torus: tuple[int, int] | None = None,
) -> Bound:
    """The smallest proved bound of ρ = λmax(WΓWᵀ), Wᵀ the convolution, and the method that proved it."""
    parts = scaled_rows(real("kernel", kernel, 4), gamma)
    if parts is None:
        return Bound(math.inf, "none")
    found = _squared_norm(polyphase(parts.rows, stride, dilation, groups), torus)
    found = Bound(ldexp_up(found.value, 2 * parts.exponent), found.method)
    if q is None:
        return found
    weighted = conv_rho_weighted(kernel, gamma, q, stride=stride, dilation=dilation, groups=groups)
    return best(found, Bound(weighted, "row sums"))


def conv_norm_bound(
    kernel: npt.ArrayLike,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int = 1,
    torus: tuple[int, int] | None = None,
) -> Bound:
    """The smallest proved bound of the operator norm, with zero padding of any amount, on every image.

    With ``torus``, on circular images of that size times the stride, without dilation.
    """
    parts = scaled_rows(real("kernel", kernel, 4), None)
    if parts is None:
        return Bound(math.inf, "none")
    found = _squared_norm(polyphase(parts.rows, stride, dilation, groups), torus)
    return Bound(ldexp_up(sqrt_up(found.value), parts.exponent), found.method)


def conv_row_sums_up(
    kernel: npt.ArrayLike, q: npt.ArrayLike, *, stride: Pair = 1, dilation: Pair = 1, groups: int = 1
) -> Array:  # (n, c/groups, h, w), (n,) → (n,)
    """T_i ≥ Σ_j Σ_d |C_ij[d]| q_j/q_i, exactly, for a residual layer; q as in ``dense.row_sums_up``."""
    array = real("kernel", kernel, 4)
    ratios = per_row("q", q, array)
    columns = polyphase(array, stride, dilation, groups)
    size = columns.shape[1]
    return np.concatenate(
        [positive_row_sums(one, ratios[i * size : (i + 1) * size]) for i, one in enumerate(columns)]
    )


def conv_kappa(
    kernel: npt.ArrayLike, gamma: npt.ArrayLike, *, stride: Pair = 1, dilation: Pair = 1, groups: int = 1
) -> float:
    """At least ‖|W|Γ^½‖₂, by the sums of |K| over the taps of each phase."""
    parts = scaled_rows(real("kernel", kernel, 4), gamma)
    if parts is None:
        return math.inf
    columns = polyphase(np.abs(parts.rows), stride, dilation, groups)
    area = columns.shape[3] * columns.shape[4]
    norm = max(nonnegative_norm_up(one.sum(axis=(2, 3)), area + 2) for one in columns)
    return ldexp_up(norm, parts.exponent)


def by_grid_too(
    bound: Bound, kernel: Array, power: int, stride: Pair = 1, dilation: Pair = 1, groups: int = 1
) -> Bound:
    """A bound that the checker can prove as well, whose only method without a witness is a grid of frequencies.

    Row sums may be exact where a grid is not, and our grid finer than its own: then the loss of the checker's,
    ∏ 1/cos(π(k − 1)/2N), is added. N is the finest that it takes, at most 512; ``power`` is 1 for a norm and 2 for
    its square.
    """
    groups, n, rows, *taps = shape = polyphase(kernel, stride, dilation, groups).shape
    if bound.method not in ("row sums", "grid", "parts") or max(taps) == 1:
        return bound
    points, least = 512, 4 * max(taps)
    while points // 2 >= least and points * (points // 2 + 1) * groups * min(n, rows) * n * rows > 2**35:
        points //= 2
    if bound.method != "row sums" and grid_points(max(taps) - 1, choose_oversampling(shape)) <= points:
        return bound
    loss = math.prod(math.cos(math.pi * (k - 1) / (2 * max(points, least))) for k in taps)
    return Bound(bound.value / loss**power * (1 + 2.0**-40), bound.method)


def torus_fits(torus: tuple[int, int], n: int, rows: int, groups: int = 1) -> bool:
    """Whether a proof at each frequency of a circular image is small enough to be made, here and by the checker."""
    products = math.prod(torus) * groups * min(n, rows) * n * rows
    return products <= MANY_PRODUCTS and math.lcm(*torus) <= MANY_ANGLES


def _squared_norm(columns: Array, torus: tuple[int, int] | None) -> Bound:
    groups, n, rows = columns.shape[:3]
    if torus is not None and torus_fits(torus, n, rows, groups):
        return Bound(symbol_bound(columns, torus=torus), "torus")  # exact but for rounding
    bounds = [Bound(symbol_bound(columns), "grid")]
    single = single_taps(columns)
    if single.any() and not single.all():
        bounds.append(Bound(_in_parts(columns, single), "parts"))
    if columns.shape[0] * columns.shape[3] * columns.shape[4] <= MANY_LAGS:  # rarely smaller, so not worth minutes
        bounds.append(Bound(_by_row_sums(columns), "row sums"))
    return best(*bounds)


def single_taps(columns: Array) -> npt.NDArray[np.bool_]:  # (groups, n, R, h, w) → (R,)
    """The rows r whose filters k_a[r, ·] have at most one tap other than 0, the same for all a of one group."""
    return np.asarray(((columns != 0).any(axis=1).sum(axis=(2, 3)) <= 1).all(axis=0))


def _in_parts(columns: Array, single: npt.NDArray[np.bool_]) -> float:
    """sup ‖H(ω)‖² where HH* is a sum over rows: the grid's loss is not paid for rows of one tap, whose part is the
    same at every frequency. A tap that underflowed to 0 may be as large as 4·ETA (``scaled_rows``)."""
    rows, area = math.sqrt(columns.shape[1] * columns.shape[2]), columns.shape[3] * columns.shape[4]
    total = 0.0
    for part in (columns[:, :, ~single], columns[:, :, single].sum(axis=(3, 4), keepdims=True)):  # the sum is exact
        exponent = math.frexp(float(np.abs(part).max()))[1]
        value = ldexp_up(symbol_bound(np.ascontiguousarray(np.ldexp(part, -exponent))), 2 * exponent)
        root = up(math.sqrt(value) + 16.0 * area * rows * ETA, 3)
        total = up(total + up(root * root, 1), 1)
    return total


def _by_row_sums(columns: Array) -> float:
    return max((largest_up(overlaps(one), relative=2) for one in columns if one.any()), default=0.0)
