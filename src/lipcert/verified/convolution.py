"""Proved bounds for convolutions, kernel (n, c/groups, *taps) as ``nn.Conv2d`` stores it, γ ≥ 0 per output channel.

An image has as many axes as the kernel has after its channels: one for ``nn.Conv1d``, two, three for ``nn.Conv3d``.
Every proof treats one axis after the other, so the number does not matter; without any axis the kernel is a dense
weight. Stride and dilation are one integer for all axes or a tuple with one for each.

The operator on an image is a piece of the one on ℤ^axes, so sup_ω ‖H(ω)‖ of its symbol bounds it: zero padding of
any amount is a compression, circular padding a sampling of frequencies. ``torus``, the size of a circular image in
strides, one for each axis, says which: then the bound is exact but for rounding. A stride s is polyphase: stride 1
with s times as many inputs in each axis, K[o, c, su + φ]. A dilation δ changes nothing but the stride: s/gcd(s, δ)
takes its place.

``conv_rho_*`` bound ρ = λmax(WΓWᵀ) with Wᵀ the convolution (residual layers: outputs are neurons),
``conv_norm_bound`` the operator norm of a convolution, hence also of the ``nn.ConvTranspose2d`` (1d, 3d) with the
same kernel, stride, dilation and groups.
Rounding: up. Infinite where nothing is proved; a geometry without a proof is refused with ``NotCertified``.
"""

from __future__ import annotations

import math
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from lipcert.errors import NotCertified, positive_int
from lipcert.verified.dense import Bound, RowSums, best, column_sums, per_row, sqrt_up
from lipcert.verified.grid import choose_oversampling, grid_points, symbol_bound
from lipcert.verified.rounding import ETA, Array, ldexp_up, real, up
from lipcert.verified.rowsums import largest_up, nonnegative_norm_up, overlaps
from lipcert.verified.scale import scaled_rows

Sizes = int | tuple[int, ...]  # one for all axes, or one for each
Image = TypeVar("Image", bound=tuple[int, ...])  # one size for each axis
MANY_LAGS = 4096
MANY_PRODUCTS, MANY_ANGLES = 2**36, 2**14  # of one proof on a torus, here and in the checker; beyond, the grid


def proved_stride(
    kernel_size: Sizes,
    image: Image,
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    padding_mode: str = "zeros",
) -> Image:
    """The stride, one for each axis, with which the bounds below hold for this geometry; else ``NotCertified``.

    ``image`` has one size for each axis and so says how many there are. Zeros: the stride itself, whatever the
    padding and the image. Circular on N: gcd(s, N), if no two outputs have the same position modulo N in that axis.
    Reflect and replicate repeat pixels and have no proof.
    """
    if not isinstance(image, (tuple, list)):
        raise ValueError(f"image must be a tuple with one size for each axis; got {image!r}. Pass (height, width).")
    axes = len(image)
    images, sizes = _per_axis("image", image, axes), _per_axis("kernel_size", kernel_size, axes)
    strides, dilations = _per_axis("stride", stride, axes), _per_axis("dilation", dilation, axes)
    if padding_mode == "zeros":
        return cast(Image, strides)
    if padding_mode != "circular":
        raise NotCertified(
            f"padding_mode must be 'zeros' or 'circular'; got {padding_mode!r}. Reflect and replicate repeat "
            "pixels, which can multiply the norm: use zeros."
        )
    reach = [d * (k - 1) for d, k in zip(dilations, sizes, strict=True)]
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"padding must be numbers, 'same' or 'valid'; got {padding!r}.")
        padded = reach if padding == "same" else [0] * axes
    else:
        padded = [2 * p for p in _per_axis("padding", padding, axes, least=0)]
    usable_strides = []
    for n, s, more, r in zip(images, strides, padded, reach, strict=True):
        outputs, common = (n + more - r - 1) // s + 1, math.gcd(s, n)
        if outputs > n // common:
            raise NotCertified(
                f"circular padding must not repeat an output; got {outputs} outputs of stride {s} on {n} pixels, "
                f"which have room for {n // common}. Pad less, or use zeros."
            )
        usable_strides.append(common)
    return cast(Image, tuple(usable_strides))


def polyphase(kernel: Array, stride: Sizes = 1, dilation: Sizes = 1, groups: int = 1) -> Array:
    """(n, c, *taps) → (groups, n/groups, c·phases, *fewer taps): the stride-1 convolution with the same norm.

    Every axis is split into its own phases; a row stands for a channel and one phase in each axis.
    """
    n, channels, *sizes = kernel.shape
    axes = len(sizes)
    strides, dilations = _per_axis("stride", stride, axes), _per_axis("dilation", dilation, axes)
    groups = positive_int("groups", groups)
    if n % groups:
        raise ValueError(f"groups must divide the {n} output channels; got {groups}.")
    steps = [s // math.gcd(s, d) for s, d in zip(strides, dilations, strict=True)]
    steps = [min(s, k) for s, k in zip(steps, sizes, strict=True)]  # a stride beyond the kernel only skips pixels
    padded = np.pad(kernel, ((0, 0), (0, 0), *((0, -k % s) for s, k in zip(steps, sizes, strict=True))))
    split = [part for s, k in zip(steps, padded.shape[2:], strict=True) for part in (k // s, s)]
    phases = padded.reshape(groups, n // groups, channels, *split)
    phases = phases.transpose(0, 1, 2, *range(4, 3 + 2 * axes, 2), *range(3, 3 + 2 * axes, 2))  # taps come last
    return np.ascontiguousarray(phases).reshape(groups, n // groups, channels * math.prod(steps), *split[::2])


def conv_rho_weighted(
    kernel: npt.ArrayLike,
    gamma: npt.ArrayLike,
    q: npt.ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
) -> float:
    """ρ ≤ max_i γ_i Σ_j Σ_d |C_ij[d]| q_j/q_i over the lags d that are multiples of the stride."""
    array = _kernel(kernel)
    if q is not None:
        weights = per_row("gamma", gamma, array)
        sums = conv_row_sums(array, q, weights > 0, stride=stride, dilation=dilation, groups=groups)
        return sums.rho(weights)
    parts = scaled_rows(array, gamma)
    if parts is None:
        return math.inf
    return ldexp_up(_by_row_sums(polyphase(parts.rows, stride, dilation, groups)), 2 * parts.exponent)


def conv_rho_bound(
    kernel: npt.ArrayLike,
    gamma: npt.ArrayLike,
    q: npt.ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    torus: tuple[int, ...] | None = None,
) -> Bound:
    """The smallest proved bound of ρ = λmax(WΓWᵀ), Wᵀ the convolution, and the method that proved it."""
    parts = scaled_rows(_kernel(kernel), gamma)
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
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
    torus: tuple[int, ...] | None = None,
) -> Bound:
    """The smallest proved bound of the operator norm, with zero padding of any amount, on every image.

    With ``torus``, on circular images of that size times the stride, without dilation.
    """
    parts = scaled_rows(_kernel(kernel), None)
    if parts is None:
        return Bound(math.inf, "none")
    found = _squared_norm(polyphase(parts.rows, stride, dilation, groups), torus)
    return Bound(ldexp_up(sqrt_up(found.value), parts.exponent), found.method)


def conv_row_sums(
    kernel: npt.ArrayLike,
    q: npt.ArrayLike,
    kept: npt.NDArray[np.bool_],
    *,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int = 1,
) -> RowSums:
    """``dense.row_sums`` for a residual layer: T of the output channels that are ``kept``, (n,)."""
    array = _kernel(kernel)
    columns = polyphase(array, stride, dilation, groups)
    ratios, chosen = per_row("q", q, array).reshape(columns.shape[:2]), kept.reshape(columns.shape[:2])
    sums = [column_sums(*group) for group in zip(columns, ratios, chosen, strict=True)]
    return RowSums(
        *(np.concatenate(parts) for parts in zip(*((s.values, s.powers, s.computed) for s in sums), strict=True))
    )


def conv_kappa(
    kernel: npt.ArrayLike, gamma: npt.ArrayLike, *, stride: Sizes = 1, dilation: Sizes = 1, groups: int = 1
) -> float:
    """At least ‖|W|Γ^½‖₂, by the sums of |K| over the taps of each phase."""
    parts = scaled_rows(_kernel(kernel), gamma)
    if parts is None:
        return math.inf
    columns = polyphase(np.abs(parts.rows), stride, dilation, groups)
    area, taps = math.prod(columns.shape[3:]), tuple(range(2, columns.ndim - 1))
    norm = max(nonnegative_norm_up(one.sum(axis=taps), area + 2) for one in columns)
    return ldexp_up(norm, parts.exponent)


def by_grid_too(
    bound: Bound, kernel: Array, power: int, stride: Sizes = 1, dilation: Sizes = 1, groups: int = 1
) -> Bound:
    """A bound that the checker can prove as well, whose only method without a witness is a grid of frequencies.

    Row sums may be exact where a grid is not, and our grid finer than its own: then the loss of the checker's,
    ∏ 1/cos(π(k − 1)/2N) over the axes, is added. N is the finest that it takes, at most 512; ``power`` is 1 for a
    norm and 2 for its square. A grid has N points in each axis that has more than one tap, and half of them in one.
    """
    groups, n, rows, *taps = shape = polyphase(kernel, stride, dilation, groups).shape
    if bound.method not in ("row sums", "grid", "parts") or max(taps, default=1) == 1:
        return bound
    points, least = 512, 4 * max(taps)
    others = max(1, sum(k > 1 for k in taps) - 1)  # a single axis counts as two: more work than it is, a safe N
    while points // 2 >= least and points**others * (points // 2 + 1) * groups * min(n, rows) * n * rows > 2**35:
        points //= 2
    if bound.method != "row sums" and grid_points(max(taps) - 1, choose_oversampling(shape)) <= points:
        return bound
    loss = math.prod(math.cos(math.pi * (k - 1) / (2 * max(points, least))) for k in taps)
    return Bound(bound.value / loss**power * (1 + 2.0**-40), bound.method)


def torus_fits(torus: tuple[int, ...], n: int, rows: int, groups: int = 1) -> bool:
    """Whether a proof at each frequency of a circular image is small enough to be made, here and by the checker."""
    products = math.prod(torus) * groups * min(n, rows) * n * rows
    return products <= MANY_PRODUCTS and math.lcm(*torus) <= MANY_ANGLES


def _squared_norm(columns: Array, torus: tuple[int, ...] | None) -> Bound:
    groups, n, rows, *taps = columns.shape
    if torus is not None and torus_fits(torus, n, rows, groups):
        return Bound(symbol_bound(columns, torus=torus), "torus")  # exact but for rounding
    bounds = [Bound(symbol_bound(columns), "grid")]
    single = single_taps(columns)
    if single.any() and not single.all():
        bounds.append(Bound(_in_parts(columns, single), "parts"))
    if groups * math.prod(taps) <= MANY_LAGS:  # rarely smaller, so not worth minutes
        bounds.append(Bound(_by_row_sums(columns), "row sums"))
    return best(*bounds)


def single_taps(columns: Array) -> npt.NDArray[np.bool_]:  # (groups, n, R, *taps) → (R,)
    """The rows r whose filters k_a[r, ·] have at most one tap other than 0, the same for all a of one group."""
    taps = tuple(range(2, columns.ndim - 1))
    return np.asarray(((columns != 0).any(axis=1).sum(axis=taps) <= 1).all(axis=0))


def _in_parts(columns: Array, single: npt.NDArray[np.bool_]) -> float:
    """sup ‖H(ω)‖² where HH* is a sum over rows: the grid's loss is not paid for rows of one tap, whose part is the
    same at every frequency. A tap that underflowed to 0 may be as large as 4·ETA (``scaled_rows``)."""
    rows, area = math.sqrt(columns.shape[1] * columns.shape[2]), math.prod(columns.shape[3:])
    taps, total = tuple(range(3, columns.ndim)), 0.0
    for part in (columns[:, :, ~single], columns[:, :, single].sum(axis=taps, keepdims=True)):  # the sum is exact
        exponent = math.frexp(float(np.abs(part).max()))[1]
        value = ldexp_up(symbol_bound(np.ascontiguousarray(np.ldexp(part, -exponent))), 2 * exponent)
        root = up(math.sqrt(value) + 16.0 * area * rows * ETA, 3)
        total = up(total + up(root * root, 1), 1)
    return total


def _by_row_sums(columns: Array) -> float:
    return max((largest_up(overlaps(one), relative=2) for one in columns if one.any()), default=0.0)


def _kernel(kernel: npt.ArrayLike) -> Array:
    """As float64, exactly: two axes of channels, then one for each axis of an image."""
    return real("kernel", kernel, max(2, np.ndim(kernel)))


def _per_axis(name: str, value: object, axes: int, *, least: int = 1) -> tuple[int, ...]:
    """``value`` as a tuple with one integer for each axis, from one for all or from one for each."""
    values = (value,) * axes if isinstance(value, int) else value
    if (
        not isinstance(values, (tuple, list))
        or len(values) != axes
        or any(isinstance(v, bool) or not isinstance(v, int) or v < least for v in values)
    ):
        raise ValueError(
            f"{name} must be one integer of at least {least}, or {axes} of them, one for each axis; got {value!r}. "
            f"Pass {name}={max(least, 1)} or {name}={(max(least, 1),) * axes}."
        )
    return tuple(values)
