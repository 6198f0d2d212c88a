"""The independent checker of certificates: this one file, numpy and the standard library.

    python check.py certificate.json [--quiet]      0 everything holds, 1 something does not, 2 it cannot be read

It shares no code with the library, on purpose; docs/certificate.md is its specification and has the mathematics.
What it trusts: IEEE float64 with correctly rounded + − × ÷ √, and matrix products that are sums of products in some
order (no Strassen). It trusts neither LAPACK (a Cholesky factor is multiplied out) nor sines (from integers).
Rounding: every norm, error and constant may come out too large, never too small; a margin never too large.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import math
import operator
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Shape = tuple[int, ...]

U = 2.0**-53  # unit roundoff of float64
ROUND = 1 + 2.0**-48  # = 1 + 32u: makes up for 30 roundings of sums, products, quotients and roots of numbers ≥ 0
TEXT = 2**26  # bytes of JSON that are read
LIMIT = 2**26  # numbers that one layer may hold for one input, or one matrix of a proof
BATCH = 2**24  # numbers that one layer may hold for a batch of more than one
KERNEL = 257  # largest side of a kernel: an orthogonal one covers its image
WAVES = 1024  # along one axis of an image
MODULUS = 2.0**100  # float64 numbers other than 0 lie within [1/MODULUS, MODULUS]: no underflow that matters
HUGE = 2.0**500  # a layer whose values may exceed this proves nothing: below it, nothing overflows
DTYPES = {"F32": "<f4", "F64": "<f8", "U8": "|u1"}
TOP = "format norm arithmetic input_shape weights tensors layers lipschitz inputs claims probe"
CONV = "weight bias stride padding padding_mode groups"
RESIDUAL = "gamma witness activation"
FIELDS = {
    **{"centre": "mean", "normalize": "mean std", "pad_channels": "channels", "pad_image": "multiple"},
    **{"space_to_depth": "block", "sum_pool": "kernel factor", "flatten": "", "relu": "", "abs": "", "max_min": ""},
    **{"group_sort": "size", "scale": "factor", "linear": "weight bias", "conv": CONV},
    **{"take_channels": "first count", "householder": "first second"},
    **{"residual_linear": f"weight bias {RESIDUAL}", "residual_conv": f"{CONV} {RESIDUAL}"},
    **{"torus": "rows columns weight bias", "residual_torus": "rows columns weight bias gamma activation"},
}


class Malformed(Exception):
    """The files are not a certificate of this format, or beyond the limits above."""


def need(condition: bool, message: str) -> None:
    if not condition:
        raise Malformed(message)


# --- Reading: what is not expected is refused; sizes are compared with the file before anything is allocated ---


def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    need(len(dict(items)) == len(items), "JSON: a key occurs twice")
    return dict(items)


def refuse(text: str) -> Any:
    raise Malformed(
        f"JSON: {text[:30]!a}; real numbers are strings written by float.hex, integers have 18 digits at most"
    )


def parse(text: bytes, where: str) -> Any:
    whole = lambda t: int(t) if len(t) <= 18 else refuse(t)  # noqa: E731
    try:
        return json.loads(
            text.decode(), object_pairs_hook=pairs, parse_constant=refuse, parse_float=refuse, parse_int=whole
        )
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{where}: not JSON ({type(error).__name__})") from None


def fields(value: Any, names: str, where: str) -> dict[str, Any]:
    need(isinstance(value, dict) and set(value) == set(names.split()), f"{where}: needs exactly the fields {names}")
    return dict(value)


def integer(value: Any, least: int, where: str) -> int:
    need(type(value) is int and value >= least, f"{where}: needs an integer of at least {least}")
    return int(value)


def integers(value: Any, least: int, where: str, lengths: Sequence[int]) -> Shape:
    need(isinstance(value, list) and len(value) in lengths, f"{where}: needs a list of {lengths} integers")
    return tuple(integer(v, least, where) for v in value)


def number(value: Any, where: str) -> float:
    form = isinstance(value, str) and re.fullmatch(r"-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}", value)
    need(bool(form), f"{where}: needs a number written by float.hex")
    try:
        result = float.fromhex(value)
    except OverflowError:
        raise Malformed(f"{where}: number out of range") from None
    need(result.hex() == value, f"{where}: needs a number written by float.hex")
    return result


def constant(value: Any, where: str) -> float:  # a Lipschitz constant or a factor
    result = number(value, where)
    need(result == 0 or 1 / MODULUS <= result <= MODULUS, f"{where}: must be 0 or within 2^-100 and 2^100")
    return result


def regular(path: Path) -> int:
    try:
        found = path.stat()
    except OSError as error:
        raise Malformed(f"{path.name!a}: {error.strerror}") from None
    need(stat.S_ISREG(found.st_mode), f"{path.name!a}: not a file")
    return found.st_size


def beside(folder: Path, name: Any, where: str) -> Path:
    """A file of the folder itself, not reached through a separator, a parent or a link that leaves it."""
    plain = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}", name)
    need(bool(plain), f"{where}: needs the plain name of a file in the same folder")
    regular(folder / name)
    need((folder / name).resolve().parent == folder.resolve(), f"{where}: {name} is a link out of the folder")
    return folder / name


def tensors_of(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, mapped, not loaded. They must fill the file without gap or overlap."""
    size = regular(path)
    need(size >= 8, f"{path.name}: too short")
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    length = int.from_bytes(raw[:8].tobytes(), "little")
    need(length <= min(size - 8, TEXT), f"{path.name}: the header is longer than the file or than {TEXT} bytes")
    header = parse(raw[8 : 8 + length].tobytes(), path.name)
    need(isinstance(header, dict), f"{path.name}: the header is not an object")
    notes = header.pop("__metadata__", {})
    need(isinstance(notes, dict) and all(isinstance(v, str) for v in notes.values()), f"{path.name}: bad metadata")
    rows, result, end = [], {}, 8 + length
    for name, entry in header.items():
        entry = fields(entry, "dtype shape data_offsets", path.name)
        need(
            isinstance(entry["dtype"], str) and entry["dtype"] in DTYPES, f"{path.name}: dtypes are {list(DTYPES)}"
        )
        shape = integers(entry["shape"], 1, path.name, range(1, 6))
        rows.append((integers(entry["data_offsets"], 0, path.name, [2]), name, DTYPES[entry["dtype"]], shape))
    for (start, stop), name, dtype, shape in sorted(rows):
        count = math.prod(shape) * np.dtype(dtype).itemsize
        fits = 8 + length + start == end and stop - start == count and 8 + length + stop <= size
        need(fits, f"{path.name}: the tensors overlap, leave gaps or exceed the file")
        result[name] = raw[end : end + count].view(dtype).reshape(shape)
        end += count
    need(end == size, f"{path.name}: bytes after the last tensor")
    return result


def digest(tensor: NDArray[Any]) -> str:
    found = hashlib.sha256(f"{tensor.dtype.name}|{','.join(map(str, tensor.shape))}|".encode())
    found.update(tensor.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


# --- Numbers with a direction ---


class Arithmetic(NamedTuple):
    """u; roundings of a stored float64 to the working precision; a bound of what underflow adds to one layer."""

    u: float
    casts: int
    underflow: float

    def g(self, n: int) -> float:  # nu/(1 − nu): n roundings multiply a term by 1 + θ, |θ| ≤ g(n)
        n += self.casts
        return n * self.u / (1 - n * self.u) * ROUND if n * self.u < 0.5 else math.inf


FLOAT64 = Arithmetic(U, 0, 2.0**-700)
FLOAT32 = Arithmetic(2.0**-24, 3, 2.0**-90)
g = FLOAT64.g


def above(value: Fraction) -> float:
    """A float that is at least the value: the nearest or its successor."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def norms(rows: Array) -> Array:
    """‖row‖ (last axis), a few u too large: the squares are added in a tree, one rounding per level."""
    squares, depth = rows * rows, 0
    while (size := squares.shape[-1]) > 1:
        half = (size + 1) // 2
        squares[..., : size - half] += squares[..., half:]
        squares, depth = squares[..., :half], depth + 1
    return np.asarray(np.sqrt(squares[..., 0]) * (1 + (depth / 2 + 5) * U))  # (1 + depth)/2 + 4 roundings


@functools.cache
def circle(order: int) -> tuple[Array, Array]:
    """cos and sin of 2πj/order within u: integers of 160 bits, π by Machin's formula, one Taylor series, rotations.

    The first angle errs by less than 2⁻¹⁴⁰, and each of at most 2¹⁴ rotations adds no more than that again.
    """
    one = 1 << 160

    def arctan(k: int) -> int:  # of 1/k
        power, total, sign, n = one // k, 0, 1, 1
        while power:
            total, power, sign, n = total + sign * (power // n), power // (k * k), -sign, n + 2
        return total

    angle = 8 * (4 * arctan(5) - arctan(239)) // order
    c = s = 0
    for k, term in enumerate(itertools.accumulate(range(1, 90), lambda t, k: t * angle // (k * one), initial=one)):
        c, s = c + (term, 0, -term, 0)[k % 4], s + (0, term, 0, -term)[k % 4]
    x, y, cosines, sines = one, 0, [], []
    for _ in range(order):
        cosines.append(x / one)
        sines.append(y / one)
        x, y = (x * c - y * s) // one, (x * s + y * c) // one
    return np.array(cosines), np.array(sines)


# --- Norms of stored tensors. A kernel is (groups, n, c, kh, kw); a matrix is one group with a 1×1 kernel ---


def phases(kernel: Array, stride: Shape) -> Array:
    """Stride s on c channels is stride 1 on the c·sh·sw channels of the polyphase components."""
    if stride == (1, 1):
        return kernel
    groups, n, c, *sides = kernel.shape
    (sh, sw) = (min(s, k) for s, k in zip(stride, sides, strict=True))  # a stride beyond k only skips pixels
    high, wide = -(-sides[0] // sh), -(-sides[1] // sw)
    room = np.zeros((groups, n, c, high * sh, wide * sw))
    room[..., : sides[0], : sides[1]] = kernel
    room = room.reshape(groups, n, c, high, sh, wide, sw).transpose(0, 1, 2, 4, 6, 3, 5)
    return room.reshape(groups, n, -1, high, wide)


def absolute_norm(kernel: Array) -> float:
    """‖ |K| ‖ over all inputs: a symbol with entries ≥ 0 is largest at frequency 0.

    Collatz–Wielandt: a matrix M ≥ 0 has λmax(MMᵀ) ≤ max_i (MMᵀx)_i/x_i for every x > 0.
    """
    matrix = np.abs(kernel).sum(axis=(3, 4))
    x, best = np.ones((*matrix.shape[:2], 1)), math.inf
    for _ in range(50):
        y = matrix @ (matrix.swapaxes(1, 2) @ x)
        last, best = best, min(best, float((y / x).max()))
        if not 0 < best < 0.99 * last:
            break
        x = y / y.max() + 2.0**-30
    return math.sqrt(best * (1 + g(sum(matrix.shape[1:]) + 2 * kernel.shape[3] * kernel.shape[4]))) * ROUND


def row_sums(kernel: Array, gamma: Array, witness: Array, stride: Shape) -> float:
    """ρ ≤ max_i γ_i Σ_j A_ij q_j/q_i, A_ij = Σ |C_ij[d]| over the lags d in the multiples of the stride.

    Γ^½GΓ^½ has λmax at most that of its modulus, which is similar to Γ|G|: Collatz–Wielandt with x = q.
    A computed C_ij[d] is off by at most g_len N_i N_j, N_i ≥ ‖w_i‖.
    """
    groups, n, _, kh, kw = kernel.shape
    kernel = kernel if gamma.all() else kernel * (gamma > 0)[..., None, None, None]  # γ_i = 0 drops neuron i
    total, lags = np.zeros((groups, n, n)), 0
    for dy in range(0, kh, stride[0]):
        for dx in range(-((kw - 1) // stride[1]) * stride[1] if dy else 0, kw, stride[1]):
            first = kernel[..., : kh - dy, max(0, -dx) : kw - max(0, dx)].reshape(groups, n, -1)
            second = kernel[..., dy:, max(0, dx) : kw + min(0, dx)].reshape(groups, n, -1)
            overlap = np.abs(first @ second.swapaxes(1, 2))  # C_ij[d], and C_ji[−d]
            total += overlap
            lags += 1
            if (dy, dx) != (0, 0):
                total += overlap.swapaxes(1, 2)
                lags += 1
    size = norms(kernel.reshape(groups, n, -1))
    rows = (total @ witness[..., None])[..., 0]
    rows = rows + lags * g(math.prod(kernel.shape[2:])) * size * (size * witness).sum(axis=1, keepdims=True)
    return float((gamma / witness * rows).max()) * (1 + g(2 * n + lags)) * ROUND


def top_eigenvalue(matrices: Array, goal: float) -> float:
    """λ with MMᵀ ⪯ λI for each matrix M of a batch; ``goal`` is only a hint.

    If rI − fl(MMᵀ) = CCᵀ + E then MMᵀ ⪯ r + ‖E‖ + rounding, whoever computed C. Rounding of MMᵀ: g_m‖M‖²_F; of
    the diagonal of rI − MMᵀ: u(r + ‖M‖²_F); of CCᵀ: g_n‖C‖²_F; of E: u|E|. Without C: λ ≤ ‖M‖²_F.
    """
    if matrices.shape[1] > matrices.shape[2]:
        matrices = matrices.swapaxes(1, 2)
    batch, n, m = matrices.shape

    def square(a: Array) -> float:  # the largest squared Frobenius norm
        return float(np.einsum("bij,bij->b", a, a).max()) * (1 + g(a[0].size)) * ROUND

    gram, total = matrices @ matrices.swapaxes(1, 2), square(matrices)
    x, guess = np.random.default_rng(0).standard_normal((batch, n, 1)), 0.0
    for _ in range(60):  # any guess will do
        x = gram @ (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 2.0**-500))
    with contextlib.suppress(np.linalg.LinAlgError):
        guess = float(np.linalg.eigvalsh(gram).max() if n <= 128 else np.linalg.norm(x, axis=1).max())
    slack = g(m) * total + U * (goal + total) + 2 * g(n) * n * goal
    for r in sorted([goal - slack, *(guess * (1 + 2.0**-k) for k in (40, 30, 20, 10, 5, 2))]):
        if not guess < r:
            continue
        shifted = r * np.eye(n) - gram
        try:
            factor = np.linalg.cholesky(shifted)
        except np.linalg.LinAlgError:
            continue
        rest = math.sqrt(square(shifted - factor @ factor.swapaxes(1, 2)))
        bound = r + g(m) * total + U * (r + total) + rest * (1 + 2 * U) + g(n) * square(factor) + 2.0**-900
        if bound * ROUND <= total:
            return bound * ROUND
    return total


def norm_squared(kernel: Array, goal: float, torus: Shape | None = None) -> float:
    """sup ‖K̂(θ)‖² over all frequencies θ, for K within u of the kernel in each entry; ``goal`` is only a hint.

    With d + 1 taps on an axis, unit vectors v, w and a phase c, p = Re e^(ic − idθ/2) v*K̂w is a trigonometric
    polynomial of degree d in θ/2, so p'² + (d/2)²p² ≤ (d/2)² max p² (Bernstein, Szegő): p ≥ cos(d(θ − θ*)/2) max p
    around a maximum θ*. The nearest of N equidistant frequencies is within π/N: a grid misses at most the factor
    cos(πd/2N) of the norm, axis by axis. K is real: half the frequencies are conjugates of the other half.
    A complex matrix has the norm of the real one [[Re, −Im], [Im, Re]].

    A circular image of size ``torus``, counted in strides, has its own frequencies alone: no factor there.
    """
    biggest = float(np.abs(kernel).max())
    if biggest == 0 or not math.isfinite(biggest):
        return biggest
    power = math.frexp(biggest)[1]
    kernel, goal = np.ldexp(kernel, -power), goal * 2.0 ** (-2 * power)  # exact: entries are at least 2^-420
    groups, n, c, kh, kw = kernel.shape
    numbers((groups, *(min(n, c) * (2 if kh * kw > 1 else 1),) * 2), "a weight")
    taps, spread = kh * kw, norms(np.abs(kernel).sum(axis=(3, 4)).reshape(-1)) * (1 + g(kh * kw))
    blur = (1.5 * g(taps + 2) * (taps > 1) + 2 * U) * float(spread)  # rounding of products, of sines, of the kernel

    def proved(matrices: Array, shrink: float) -> float:
        hint = max(0.0, math.sqrt(goal * shrink) * (1 - 64 * U) - blur) ** 2
        return (math.sqrt(top_eigenvalue(matrices, hint)) + blur) ** 2 / shrink * ROUND

    if taps == 1:
        return proved(kernel[..., 0, 0], 1.0) * 4.0**power
    flat, best, order = kernel.reshape(groups, n, c, taps), math.inf, 4

    def worst_of(frequencies: NDArray[np.int64], order: int, shrink: float) -> float:  # in units of 1/order
        worst = 0.0
        for part in chunks(len(frequencies), max(1, BATCH // (16 * groups * n * c + 4 * taps))):
            angle = frequencies[part] @ grid(kh, kw).T % order  # (part, taps), exact
            real, imaginary = (flat @ table[angle].T for table in circle(order))  # (groups, n, c, part)
            matrix = np.concatenate(
                [np.concatenate([real, -imaginary], axis=2), np.concatenate([imaginary, real], axis=2)], axis=1
            )
            matrix = np.ascontiguousarray(matrix.transpose(3, 0, 1, 2)).reshape(-1, 2 * n, 2 * c)
            here = proved(matrix, shrink)
            worst = here if not here <= worst else worst
            if not worst <= best:
                break
        return worst

    if torus is not None and math.lcm(*torus) <= 2**14 and math.prod(torus) * groups * min(n, c) * n * c <= 2**36:
        period = math.lcm(*torus)
        steps = np.array([period // size for size in torus])
        return worst_of(grid(torus[0], torus[1] // 2 + 1) * steps, period, 1.0) * 4.0**power
    while order < 4 * max(kh, kw):
        order *= 2
    while order <= 512:
        shrink = math.prod(float(circle(4 * order)[0][k - 1]) - 2 * U for k in (kh, kw)) ** 2
        frequencies = grid(order if kh > 1 else 1, order // 2 + 1 if kw > 1 else 1)
        if best < math.inf and len(frequencies) * groups * min(n, c) * n * c > 2**35:
            break
        best = min(best, worst_of(frequencies, order, shrink))
        if best <= goal or best * shrink > goal * (1 + 1e-6 if min(n, c) <= 64 else 1.5):  # no finer grid can help
            break
        order *= 2
    return best * 4.0**power


def grid(high: int, wide: int) -> NDArray[np.int64]:
    return np.stack(np.meshgrid(np.arange(high), np.arange(wide), indexing="ij"), axis=-1).reshape(-1, 2)


def chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


# --- Layers ---


@dataclass(frozen=True)
class Rounding:
    """e(Z) of docs/certificate.md: g_{n1}(κZ + β), and for a residual layer (n2 > 0) its longer formula."""

    n1: int
    kappa: float
    beta: float
    n2: int = 0
    root: float = 0.0  # at least √ρ

    def error(self, z: Array, a: Arithmetic) -> Array:
        first = a.g(self.n1) * (self.kappa * z + self.beta)
        if not self.n2:
            return first + a.underflow
        v = self.root * z + self.beta + first
        inner = 2 * (1 + a.u) * self.root * (first + (1 + a.casts) * a.u * v)
        return inner + a.g(self.n2) * (z + 2 * (1 + a.u) * self.kappa * v) + a.underflow


@dataclass(frozen=True)
class Layer:
    """A layer as read: its constant, claimed and proved, its rounding (None: exact) and what ``run`` needs."""

    op: str
    name: str
    claimed: float
    proved: float
    shape: Shape  # of what comes out
    room: int  # numbers it holds for one input
    rounding: Rounding | None
    parts: SimpleNamespace


@dataclass(frozen=True)
class Convolution:
    """Wᵀ and its adjoint W, tap by tap: y[o] = Σ_t K[t] x[so + t − p]."""

    taps: Array  # (kh, kw, groups, n, c)
    stride: Shape
    padding: Shape
    circular: bool
    image: Shape  # (C, H, W)
    out: Shape  # (H', W')

    def windows(self) -> Iterator[tuple[Array, tuple[Any, ...]]]:
        (sh, sw), (high, wide) = self.stride, self.out
        for i, j in np.ndindex(self.taps.shape[:2]):
            yield (
                self.taps[i, j],
                (..., slice(i, i + sh * (high - 1) + 1, sh), slice(j, j + sw * (wide - 1) + 1, sw)),
            )

    def forward(self, x: Array) -> Array:
        batch, (groups, n, c), (ph, pw) = len(x), self.taps.shape[2:], self.padding
        x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), mode="wrap" if self.circular else "constant")
        x, y = x.reshape(batch, groups, c, *x.shape[2:]), np.zeros((batch, groups, n, math.prod(self.out)))
        for tap, window in self.windows():
            y += tap @ x[window].reshape(batch, groups, c, -1)
        return y.reshape(batch, groups * n, *self.out)

    def adjoint(self, y: Array) -> Array:
        batch, (groups, n, c), (ph, pw) = len(y), self.taps.shape[2:], self.padding
        high, wide = self.image[1:]
        x = np.zeros((batch, groups, c, high + 2 * ph, wide + 2 * pw))
        y = y.reshape(batch, groups, n, -1)
        for tap, window in self.windows():
            x[window] += (tap.swapaxes(1, 2) @ y).reshape(batch, groups, c, *self.out)
        if self.circular:  # what fell into the padding belongs to the other side
            x[..., high : high + ph, :] += x[..., :ph, :]
            x[..., ph : 2 * ph, :] += x[..., high + ph :, :]
            x[..., wide : wide + pw] += x[..., :pw]
            x[..., pw : 2 * pw] += x[..., wide + pw :]
        return x[..., ph : high + ph, pw : wide + pw].reshape(batch, *self.image)


@dataclass(frozen=True)
class Torus:
    """Wᵀ = TᵀBT and its adjoint W: T is x ↦ RxCᵀ on each channel, B has a block for each two rows of R and of C."""

    rows: Array  # (2h, H)
    columns: Array  # (2w, W)
    blocks: Array  # (h·w, 4n, 4m)

    def forward(self, x: Array, adjoint: bool = False) -> Array:  # (batch, m, H, W) → (batch, n, H, W)
        blocks = self.blocks.swapaxes(1, 2) if adjoint else self.blocks
        batch, c, high, wide = x.shape
        h, w, n = len(self.rows) // 2, len(self.columns) // 2, blocks.shape[1] // 4
        x = self.rows @ x.transpose(2, 3, 1, 0).reshape(high, -1)
        x = (self.columns @ x.reshape(2 * h, wide, -1)).reshape(h, 2, w, 2, -1).transpose(0, 2, 1, 3, 4)
        y = (blocks @ x.reshape(h * w, 4 * c, batch)).reshape(h, w, 2, 2, -1).transpose(0, 2, 1, 3, 4)
        y = self.rows.T @ (self.columns.T @ y.reshape(2 * h, 2 * w, -1)).reshape(2 * h, -1)
        return np.asarray(y.reshape(high, wide, n, batch).transpose(3, 2, 0, 1))

    def adjoint(self, y: Array) -> Array:
        return self.forward(y, adjoint=True)

    def stretch(self) -> float:  # at least ‖T‖²
        return math.prod(top_eigenvalue(part[None], 1.0) for part in (self.rows, self.columns)) * ROUND

    def absolute(self) -> float:  # at least ‖|T|‖²
        return (
            math.prod(absolute_norm(part[None, :, :, None, None]) ** 2 for part in (self.rows, self.columns))
            * ROUND
        )


def run(layer: Layer, x: Array) -> Array:  # (batch, …) in float64
    p = layer.parts
    match layer.op:
        case "centre" | "normalize":
            return np.asarray((x - p.mean) / p.std)  # centre divides by 1
        case "pad_channels" | "pad_image":
            return np.pad(x, [(0, 0), *((0, after - before) for before, after in p.sizes)])
        case "space_to_depth":
            return x.reshape(-1, *p.blocks).transpose(0, 1, 3, 5, 2, 4).reshape(-1, *layer.shape)
        case "sum_pool":
            return np.asarray(x.reshape(-1, *p.blocks).sum(axis=(3, 5)) * p.factor)
        case "flatten":
            return x.reshape(len(x), -1)
        case "relu":
            return np.maximum(x, 0)
        case "abs":
            return np.abs(x)
        case "group_sort":
            return np.sort(x.reshape(p.split), axis=2).reshape(x.shape)
        case "max_min":
            return np.sort(x.reshape(p.split), axis=2)[:, :, ::-1].reshape(x.shape)
        case "take_channels":
            return x[:, p.first : p.first + layer.shape[0]]
        case "householder":  # v = (first, second) of each pair of channels z: z - 2v min(0, v.z)
            a, b = x.reshape(p.split).transpose(2, 0, 1, *range(3, x.ndim + 1))
            behind = 2 * np.minimum(a * p.first + b * p.second, 0)
            return np.stack((a - p.first * behind, b - p.second * behind), axis=2).reshape(x.shape)
        case "scale":
            return np.asarray(x * p.factor)
        case "linear":
            return np.asarray(x @ p.weight.T + p.bias)
        case "residual_linear":
            return np.asarray(x - (np.maximum(x @ p.weight.T + p.bias, 0) * (2 * p.gamma)) @ p.weight)
        case "conv" | "torus":
            return np.asarray(p.conv.forward(x) + p.bias[:, None, None])
        case "residual_conv" | "residual_torus":
            hidden = np.maximum(p.conv.forward(x) + p.bias[:, None, None], 0) * (2 * p.gamma)[:, None, None]
            return np.asarray(x - p.conv.adjoint(hidden))
    raise Malformed(f"unknown op {layer.op}")


Take = Callable[..., Array]  # (name, shape or None): that tensor, of that shape, as float64


def numbers(shape: Shape, where: str) -> int:
    need(min(shape) > 0 and math.prod(shape) <= LIMIT, f"{where}: an empty or absurd size, {shape}")
    return math.prod(shape)


def convolution(entry: dict[str, Any], shape: Shape, weight: Array, where: str) -> Convolution:
    stride, padding = integers(entry["stride"], 1, where, [2]), integers(entry["padding"], 0, where, [2])
    groups, mode = integer(entry["groups"], 1, where), entry["padding_mode"]
    need(mode in ("zeros", "circular"), f"{where}: padding_mode is zeros or circular")
    need(len(shape) == 3 and weight.ndim == 4, f"{where}: needs an image and a weight (n, c/g, kh, kw)")
    n, c, *sides = weight.shape
    need(n % groups == 0 and c * groups == shape[0], f"{where}: weight {weight.shape} on {shape[0]} channels")
    need(max(sides) <= KERNEL, f"{where}: kernels have sides of at most {KERNEL}")
    numbers((shape[0], shape[1] + 2 * padding[0], shape[2] + 2 * padding[1]), where)
    axes = list(zip(shape[1:], sides, padding, stride, strict=True))
    need(all(size + 2 * p >= k for size, k, p, _ in axes), f"{where}: the kernel is larger than the image")
    fits = all(2 * p <= k - 1 and p <= size and size % s == 0 for size, k, p, s in axes)
    need(mode == "zeros" or fits, f"{where}: circular needs padding <= (k-1)/2 and a stride that divides the image")
    out = tuple((size + 2 * p - k) // s + 1 for size, k, p, s in axes)
    numbers((n, *out), where)
    taps = np.ascontiguousarray(weight.reshape(groups, -1, c, *sides).transpose(3, 4, 0, 1, 2))
    return Convolution(taps, stride, padding, mode == "circular", shape, out)


def waves(entry: dict[str, Any], shape: Shape, weight: Array, take: Take, where: str) -> Torus:
    rows, columns = (take(entry[name], None) for name in ("rows", "columns"))
    need(len(shape) == 3 and weight.ndim == 3, f"{where}: needs an image and a weight (hw, 4n, 4m)")
    need(rows.ndim == columns.ndim == 2, f"{where}: rows and columns must be matrices")
    need(rows.shape[1:] + columns.shape[1:] == shape[1:], f"{where}: rows and columns are not of this image")
    need(len(rows) % 2 == len(columns) % 2 == 0, f"{where}: rows and columns must be pairs")
    need(max(rows.shape + columns.shape) <= WAVES, f"{where}: at most {WAVES} rows and columns")
    need(max(np.abs(rows).max(), np.abs(columns).max()) <= 1, f"{where}: rows and columns have entries above 1")
    blocks, n, m = weight.shape
    fits = blocks == len(rows) * len(columns) // 4 and n % 4 == 0 and m == 4 * shape[0]
    need(fits, f"{where}: weight {weight.shape} on an image {shape}")
    return Torus(rows, columns, weight)


def build(entry: Any, where: str, shape: Shape, take: Take) -> Layer:
    """One entry of ``layers`` on inputs of that shape: checked, and its constant proved."""
    need(isinstance(entry, dict) and isinstance(entry.get("op"), str), f"{where}: needs an op")
    op = entry["op"]
    need(op in FIELDS, f"{where}: unknown op {op[:30]!a}")
    where = f"{where} ({op})"
    entry = fields(entry, "op name lipschitz " + FIELDS[op], where)
    need(isinstance(entry["name"], str), f"{where}: name must be a string")
    claimed, proved = constant(entry["lipschitz"], where), 1.0
    p, out, room, rounding = SimpleNamespace(), shape, math.prod(shape), None
    if op in ("centre", "normalize"):
        column = (shape[0], *[1] * (len(shape) - 1))
        mean = take(entry["mean"], shape[:1])
        std = take(entry["std"], shape[:1]) if op == "normalize" else np.ones(shape[0])
        need(bool((std > 0).all()), f"{where}: std must be positive")
        p.mean, p.std = mean.reshape(column), std.reshape(column)
        proved = above(1 / Fraction(float(std.min())))
        offset = float(norms(mean)) * math.sqrt(math.prod(shape[1:])) * ROUND
        rounding = Rounding(2, claimed, claimed * offset * ROUND)
    elif op == "pad_channels":
        out = (integer(entry["channels"], shape[0], where), *shape[1:])
    elif op == "pad_image":
        multiple = integer(entry["multiple"], 1, where)
        need(len(shape) == 3, f"{where}: needs an image")
        out = (shape[0], *(-(-size // multiple) * multiple for size in shape[1:]))
    elif op in ("space_to_depth", "sum_pool"):
        depth = op == "space_to_depth"
        kh, kw = (integer(entry["block"], 1, where),) * 2 if depth else integers(entry["kernel"], 1, where, [2])
        divides = len(shape) == 3 and shape[1] % kh == 0 and shape[2] % kw == 0
        need(divides, f"{where}: the blocks must divide an image")
        p.blocks = (shape[0], shape[1] // kh, kh, shape[2] // kw, kw)
        out = (shape[0] * kh * kw if depth else shape[0], shape[1] // kh, shape[2] // kw)
        if not depth:
            p.factor = constant(entry["factor"], where)
            proved = math.sqrt(kh * kw) * p.factor * (1 - 4 * U)
            while Fraction(proved) ** 2 < Fraction(p.factor) ** 2 * (kh * kw):
                proved = math.nextafter(proved, math.inf)
            rounding = Rounding(kh * kw + 2, claimed, 0.0)
    elif op == "flatten":
        out = (math.prod(shape),)
    elif op in ("group_sort", "max_min"):
        size = 2 if op == "max_min" else integer(entry["size"], 1, where)
        need(shape[0] % size == 0, f"{where}: {shape[0]} channels are not groups of {size}")
        p.split = (-1, shape[0] // size, size, *shape[1:])
    elif op == "take_channels":
        p.first, count = integer(entry["first"], 0, where), integer(entry["count"], 1, where)
        need(p.first + count <= shape[0], f"{where}: {shape[0]} channels do not reach that far")
        out = (count, *shape[1:])
    elif op == "householder":
        need(shape[0] % 2 == 0, f"{where}: {shape[0]} channels are not pairs")
        p.split, column = (-1, shape[0] // 2, 2, *shape[1:]), (shape[0] // 2, *[1] * (len(shape) - 1))
        vectors = [take(entry[name], (shape[0] // 2,)) for name in ("first", "second")]
        p.first, p.second = (half.reshape(column) for half in vectors)
        square = float((vectors[0] ** 2 + vectors[1] ** 2).max()) * (1 + 8 * U)
        proved = above(max(Fraction(1), 2 * Fraction(square) - 1))
        root = math.sqrt(square) * ROUND
        rounding = Rounding(3, root, 0.0, 5, root)  # a residual of one neuron for each pair
    elif op == "scale":
        p.factor = number(entry["factor"], where)
        proved = constant(abs(p.factor).hex(), where)
        rounding = Rounding(1, claimed, 0.0)
    elif op not in ("relu", "abs"):
        proved, rounding, out, room = weighted(entry, where, shape, take, claimed, p)
    p.sizes = list(zip(shape, out, strict=False))
    return Layer(op, entry["name"], claimed, proved, out, max(room, numbers(out, where)), rounding, p)


def weighted(
    entry: dict[str, Any], where: str, shape: Shape, take: Take, claimed: float, p: SimpleNamespace
) -> tuple[float, Rounding, Shape, int]:
    """The layers with a weight: constant, rounding, shape of what comes out, numbers held for one input."""
    p.weight = weight = take(entry["weight"], None)
    n, stride, positions, torus, stretch, absolute, more = len(weight), (1, 1), 1, None, 1.0, 1.0, 0
    hidden: Shape
    if entry["op"].endswith("linear"):
        need(weight.ndim == 2 and weight.shape[1:] == shape, f"{where}: weight {weight.shape} on an input {shape}")
        kernel, hidden, room = weight[None, :, :, None, None], (n,), max(weight.shape)
    elif entry["op"].endswith("torus"):
        p.conv = waves(entry, shape, weight, take, where)
        kernel, n, positions = weight[..., None, None], weight.shape[1] // 4, math.prod(shape[1:])
        most = max(shape[0], n) * max(len(p.conv.rows), shape[1]) * max(len(p.conv.columns), shape[2])
        hidden, room = (n, *shape[1:]), numbers((most,), where)
        stretch, absolute = p.conv.stretch(), p.conv.absolute()
        need(1 / MODULUS <= stretch <= MODULUS, f"{where}: rows and columns must have a norm within 2^-50 and 2^50")
        more = sum(p.conv.rows.shape + p.conv.columns.shape)
    else:
        p.conv = convolution(entry, shape, weight, where)
        kernel, stride, positions = p.conv.taps.transpose(2, 3, 4, 0, 1), p.conv.stride, math.prod(p.conv.out)
        hidden = (n, *p.conv.out)
        padded = (size + 2 * pad for size, pad in zip(shape[1:], p.conv.padding, strict=True))
        room = max(shape[0] * math.prod(padded), math.prod(hidden))
        torus = tuple(map(operator.floordiv, shape[1:], stride)) if p.conv.circular else None
    area = kernel.shape[3] * kernel.shape[4]
    p.bias = np.zeros(n) if entry["bias"] is None else take(entry["bias"], (n,))
    spread = math.sqrt(positions) * ROUND
    if not entry["op"].startswith("residual"):
        split = phases(kernel, stride)
        norm = math.sqrt(norm_squared(split, (claimed / stretch) ** 2, torus))
        proved = norm if stretch == 1 else norm * stretch * ROUND
        kappa = absolute_norm(split) * absolute * ROUND
        rounding = Rounding(kernel.shape[2] * area + more + 1, kappa, float(norms(p.bias)) * spread)
        return math.nextafter(proved, math.inf) if proved else 0.0, rounding, hidden, room
    need(entry["activation"] == "relu", f"{where}: activation is relu")
    p.gamma = take(entry["gamma"], (n,))
    need(bool((p.gamma >= 0).all()), f"{where}: gamma must not be negative")
    witness = None if entry.get("witness") is None else take(entry["witness"], (n,), "<f8")
    need(witness is None or bool((witness > 0).all()), f"{where}: the witness must be positive")
    heads, goal, rho = kernel.shape[:2], (1 + claimed) / 2, math.inf
    root = np.sqrt(p.gamma) * (1 + 2.0**-51)  # at least √γ
    each = np.tile(root, (len(weight), 4)) if entry["op"].endswith("torus") else root.reshape(heads)
    split = phases(kernel * each[..., None, None, None], stride)  # within u of what it stands for
    if witness is not None and math.prod(heads) * heads[1] <= LIMIT:
        rho = row_sums(kernel, p.gamma.reshape(heads), witness.reshape(heads), stride)
    # Inputs that one tap reads, the same for all filters: their part of the Gram matrix, a sum over inputs, is the
    # same at every frequency.
    single = ((split != 0).any(axis=1).sum(axis=(2, 3)) <= 1).all(axis=0)
    if not rho <= goal and torus is None and single.any() and area > 1:
        still = norm_squared(split[:, :, single].sum(axis=(3, 4), keepdims=True), goal)
        rest = 0.0 if single.all() else norm_squared(split[:, :, ~single], max(goal - still, 0.0))
        rho = min(rho, (still + rest) * ROUND)
    if not rho <= goal:
        found = norm_squared(split, goal / stretch**2, torus)
        rho = min(rho, found if stretch == 1 else found * stretch**2 * ROUND)
    proved = above(max(Fraction(1), 2 * Fraction(rho) - 1)) if math.isfinite(rho) else math.inf
    fans = kernel.shape[2] * area + more + 1, kernel.shape[1] * area + more + 3
    beta, kappa = float(norms(root * p.bias)) * spread, absolute_norm(split) * absolute * ROUND
    rounding = Rounding(fans[0], kappa, beta, fans[1], math.sqrt(rho) * ROUND)
    return proved, rounding, shape, room


# --- Inputs ---


def forward(layers: Sequence[Layer], x: Array, radius: Array, a: Arithmetic) -> tuple[Array, Array, Array]:
    """f(x) in float64, err and Z after the last layer: see "Radii" in docs/certificate.md."""

    def reach(x: Array) -> Array:
        flat = x.reshape(len(x), -1)
        size = np.sqrt(np.einsum("bi,bi->b", flat, flat)) * (1 + g(flat.shape[1])) + 1 / HUGE  # squares underflow
        z = (size + moved + 2 * err) * ROUND
        return np.where(z <= HUGE, z, math.inf)

    err, moved = np.zeros(len(x)), radius
    for layer in layers:
        e = 0.0 if layer.rounding is None else layer.rounding.error(reach(x), a)
        x, err, moved = run(layer, x), (layer.claimed * err + e) * ROUND, layer.claimed * moved * ROUND
    return x, err, reach(x)


@dataclass(frozen=True)
class Network:
    """All layers but a last linear one, which is the head."""

    body: tuple[Layer, ...]
    head: Layer | None
    lipschitz: float  # of the body, as claimed
    outputs: int
    distances: dict[int, Array] = field(default_factory=dict)

    def logits(self, x: Array, radius: Array, a: Arithmetic) -> tuple[Array, Array, Array]:
        x, err, z = forward(self.body, x, radius, a)
        return (x if self.head is None else run(self.head, x)), err, z

    def single(self, err: Array, z: Array, a: Arithmetic) -> tuple[Array, Array]:
        """For each logit alone: its constant relative to the body, and a bound of its error. (batch, outputs)"""
        if self.head is None:
            return np.ones((len(err), self.outputs)), np.repeat(err[:, None], self.outputs, axis=1)
        weight, bias = self.head.parts.weight, self.head.parts.bias
        size = norms(weight)
        own = a.g(weight.shape[1] + 1) * (size * z[:, None] + np.abs(bias)) + a.underflow
        return np.broadcast_to(size, own.shape), (size * err[:, None] + own) * ROUND

    def pairs(self, label: int, err: Array, z: Array) -> tuple[Array, Array]:
        """For the logit of the label minus each other: its constant, and a bound of its error in float64."""
        if self.head is None:
            root = np.full((len(err), self.outputs), math.sqrt(2))  # this float is larger than √2
            return root, root * err[:, None] * ROUND
        if label not in self.distances:
            if len(self.distances) * self.outputs > BATCH:
                self.distances.clear()
            self.distances[label] = norms(self.head.parts.weight[label] - self.head.parts.weight)
        _, own = self.single(0 * err, z, FLOAT64)
        error = self.distances[label] * err[:, None] + own[:, label, None] + own
        return np.broadcast_to(self.distances[label], error.shape), error * ROUND

    def holds(self, label: int, radius: Array, f: Array, err: Array, z: Array) -> tuple[NDArray[np.bool_], Array]:
        """Whether margin − 2E ≥ L·K·r and > 0 for all rivals of one label; and the smallest difference.

        A point of the *open* ball moves the margin by less than L·K·r, or not at all: hence ≥.
        """
        if self.outputs == 1:
            k, e = self.single(err, z, FLOAT64)
            mine, theirs = (f if label else -f), np.zeros_like(f)
        else:
            k, e = (np.delete(a, label, axis=1) for a in self.pairs(label, err, z))
            mine, theirs = np.broadcast_to(f[:, label, None], e.shape), np.delete(f, label, axis=1)
        have = np.nextafter(np.nextafter(mine - theirs, -np.inf) - 2 * e, -np.inf)
        want = np.nextafter(np.nextafter(self.lipschitz * k, np.inf) * radius[:, None], np.inf)
        good = np.asarray(((have > 0) & (have >= want)).all(axis=1))
        finite = np.isfinite(mine).all(axis=1) & np.isfinite(theirs).all(axis=1) & np.isfinite(e).all(axis=1)
        for i in np.flatnonzero(~good & finite):  # once more, without rounding
            move = Fraction(self.lipschitz) * Fraction(radius[i])
            rows = [map(Fraction, row) for row in zip(mine[i], theirs[i], e[i], k[i], strict=True)]
            good[i] = all((left := a - b - 2 * c) > 0 and left >= move * d for a, b, c, d in rows)
        return good, (have - want).min(axis=1)


# --- The certificate ---


@dataclass(frozen=True)
class Certificate:
    """What the three files say, read but not believed."""

    shape: Shape
    weights: dict[str, NDArray[Any]]
    hashes: dict[str, Any]
    layers: list[Any]
    lipschitz: float
    images: NDArray[Any]
    images_hash: Any
    divide: bool
    claims: list[tuple[int, int, float]]
    asked: list[int]
    answers: list[list[float]]

    def inputs(self, rows: Sequence[int]) -> Array:
        chosen = self.images[np.array(rows)]
        if self.divide:
            chosen = chosen.astype(np.float32) / np.float32(255)
        return np.asarray(chosen, dtype=np.float64)


@dataclass(frozen=True)
class Report:
    """What was found. ``ok``: every constant, every claim and the probe hold."""

    ok: bool
    refuted: tuple[str, ...]
    alarms: tuple[str, ...]  # heuristic, no verdict
    constants: tuple[tuple[str, str, float, float], ...]  # name, op, claimed, proved
    lipschitz: float
    verified: int
    claims: int
    slack: float  # smallest margin − 2E − L·K·r of a claim
    lines: tuple[str, ...]  # a table for people


def read(path: Path) -> Certificate:
    need(regular(path) <= TEXT, f"more than {TEXT} bytes of JSON")
    c = fields(parse(path.read_bytes(), "certificate"), TOP, "certificate")
    for key, value in (("format", "lipcert-certificate-1"), ("norm", "L2"), ("arithmetic", "float64")):
        need(c[key] == value, f"{key}: only {value} is known")
    shape = integers(c["input_shape"], 1, "input_shape", [1, 3])
    numbers(shape, "input_shape")
    source = fields(c["inputs"], "file tensor sha256 divide_by count about", "inputs")
    count, divide = integer(source["count"], 1, "inputs"), source["divide_by"] is not None
    need(not divide or integer(source["divide_by"], 1, "inputs") == 255, "divide_by: 255 or null")
    need(isinstance(source["about"], str) and isinstance(source["tensor"], str), "inputs: needs strings")
    claims = [claim(row, count) for row in items(c["claims"], "claims")]
    need(all(a[0] < b[0] for a, b in itertools.pairwise(claims)), "claims: the indices must increase")
    probe = fields(c["probe"], "indices logits", "probe")
    asked = [integer(i, 0, "probe") for i in items(probe["indices"], "probe")]
    answers = [[number(v, "probe") for v in items(row, "probe")] for row in items(probe["logits"], "probe")]
    need(len(asked) == len(answers) and max(asked, default=0) < count, "probe: needs a row for each index")

    weights = tensors_of(beside(path.parent, c["weights"], "weights"))
    need(isinstance(c["tensors"], dict) and set(c["tensors"]) == set(weights), "tensors: not those of the file")
    data = tensors_of(beside(path.parent, source["file"], "inputs"))
    need(set(data) == {source["tensor"]}, "inputs: the file must hold that tensor alone")
    images = data[source["tensor"]]
    need(images.shape == (count, *shape), f"inputs: the tensor has shape {images.shape}, not {(count, *shape)}")
    need(images.dtype == np.uint8 or (images.dtype == np.float32 and not divide), "inputs: wrong dtype")
    lipschitz = constant(c["lipschitz"], "lipschitz")
    return Certificate(
        *(shape, weights, c["tensors"], items(c["layers"], "layers"), lipschitz, images, source["sha256"], divide),
        *(claims, asked, answers),
    )


def items(value: Any, where: str) -> list[Any]:
    need(isinstance(value, list), f"{where}: needs a list")
    return list(value)


def claim(row: Any, count: int) -> tuple[int, int, float]:
    need(isinstance(row, list) and len(row) == 3, "claims: needs [index, label, radius]")
    index, label, radius = integer(row[0], 0, "claims"), integer(row[1], 0, "claims"), number(row[2], "claims")
    need(index < count and radius > 0, "claims: an index out of range or a radius that is not positive")
    return index, label, radius


def build_all(c: Certificate) -> list[Layer]:
    used: set[str] = set()

    def take(name: Any, wanted: Shape | None, dtype: str | None = None) -> Array:
        need(isinstance(name, str) and name in c.weights, "a layer names a tensor that does not exist")
        tensor, label = c.weights[name], f"tensor {name[:40]!a}"
        need(wanted is None or tensor.shape == wanted, f"{label}: has shape {tensor.shape}, needs {wanted}")
        need(tensor.dtype != np.uint8 and dtype in (None, tensor.dtype.str), f"{label}: has the wrong dtype")
        used.add(name)
        value = np.array(tensor, dtype=np.float64)
        need(bool(np.isfinite(value).all()), f"{label}: has entries that are not finite")
        if tensor.dtype != np.float32:
            size = np.abs(value[value != 0])
            inside = bool(((size >= 1 / MODULUS) & (size <= MODULUS)).all())
            need(inside, f"{label}: float64 entries must be 0 or within 2^-100 and 2^100 in modulus")
        return value

    layers: list[Layer] = []
    shape = c.shape
    for i, entry in enumerate(c.layers):
        layers.append(build(entry, f"layer {i}", shape, take))
        shape = layers[-1].shape
    need(len(layers) > 0 and len(shape) == 1, "layers: must end in a vector of logits")
    need(used == set(c.weights), "tensors: some are used by no layer")
    need(all(len(row) == shape[0] for row in c.answers), f"probe: needs {shape[0]} logits in each row")
    need(all(label < max(2, shape[0]) for _, label, _ in c.claims), "claims: a label is no class")
    return layers


def verify_claims(network: Network, c: Certificate, size: int) -> tuple[list[int], float]:
    """The inputs whose claim could not be proved, and the smallest slack."""
    bad, slack = [], math.inf
    for part in chunks(len(c.claims), size):
        rows, labels, radii = (np.array(v) for v in zip(*c.claims[part], strict=True))
        f, err, z = network.logits(c.inputs(rows.tolist()), radii, FLOAT64)
        for label in np.unique(labels):
            w = np.flatnonzero(labels == label)
            good, spare = network.holds(int(label), radii[w], f[w], err[w], z[w])
            bad += rows[w][~good].tolist()
            slack = min(slack, float(spare.min()))
    return sorted(bad), slack


def verify_probe(network: Network, c: Certificate, size: int) -> tuple[bool, float]:
    """Whether float32 with sums in any order can explain the deployed logits; and how far off they are."""
    good, worst = True, 0.0
    for part in chunks(len(c.asked), size):
        f, err, z = network.logits(c.inputs(c.asked[part]), np.zeros(len(c.asked[part])), FLOAT32)
        bound = network.single(err, z, FLOAT32)[1] * (1 + 2.0**-28)  # the error of f itself is 2^-29 of it
        away = np.abs(np.array(c.answers[part]) - f)
        good &= bool((away <= np.where(np.isnan(bound), np.inf, bound)).all())
        worst = max(worst, float((away / np.maximum(1, np.abs(f))).max()))
    return good, worst


def verify(c: Certificate) -> Report:
    refuted = [
        f"tensor {name[:40]!a}: wrong sha256" for name, t in c.weights.items() if digest(t) != c.hashes[name]
    ]
    refuted += ["inputs: wrong sha256"] if digest(c.images) != c.images_hash else []
    layers = [] if refuted else build_all(c)
    for i, layer in enumerate(layers):
        if not layer.proved <= layer.claimed:
            refuted.append(f"layer {i} ({layer.op}): claims {layer.claimed:.17g}, proved is {layer.proved:.17g}")
    head = layers[-1] if layers and layers[-1].op == "linear" else None
    body = tuple(layers if head is None else layers[:-1])
    product = math.prod((Fraction(layer.claimed) for layer in body), start=Fraction(1))
    if product > Fraction(c.lipschitz):
        refuted.append(f"lipschitz: claims {c.lipschitz:.17g}, the product is {above(product):.17g}")

    lines = [f"{'layer':>5}  {'op':<16} {'claimed L':>13} {'proved L':>13}  name"]
    for i, layer in enumerate(layers):
        name = ascii(layer.name[:40])[1:-1]
        lines.append(f"{i:>5}  {layer.op:<16} {layer.claimed:>13.9g} {layer.proved:>13.9g}  {name}")
    lines.append(f"claimed L of {'all but the last layer' if head else 'all layers'}: {c.lipschitz:.17g}")
    alarms: list[str] = []
    verified, slack = 0, math.nan
    if not refuted:  # an error bound needs true constants
        network = Network(body, head, c.lipschitz, layers[-1].shape[0])
        size = max(1, min(1024, BATCH // max(layer.room for layer in layers)))
        bad, slack = verify_claims(network, c, size)
        verified = len(c.claims) - len(bad)
        refuted += [f"claims: {len(bad)} cannot be proved, of the inputs {str(bad[:10])[1:-1]}"] if bad else []
        good, worst = verify_probe(network, c, size)
        refuted += [] if good else [f"probe: a difference of {worst:.1e} is more than float32 can explain"]
        if worst > 1e-5:
            alarms.append(f"probe: logits differ by {worst:.1e} (heuristic; float32 usually stays below 1e-5)")
        lines.append(f"claims verified: {verified} of {len(c.claims)}, smallest slack {slack:.3g}")
        lines.append(f"probe: {len(c.asked)} inputs, largest difference {worst:.1e}")
    lines += [f"alarm: {text}" for text in alarms]
    lines.append("REFUTED" if refuted else "everything holds")
    constants = tuple((layer.name, layer.op, layer.claimed, layer.proved) for layer in layers)
    found = (tuple(refuted), tuple(alarms), constants, c.lipschitz, verified, len(c.claims), slack, tuple(lines))
    return Report(not refuted, *found)


def check(path: str | Path) -> Report:
    """Verify the certificate at ``path``. Raises ``Malformed`` for what is no certificate, and nothing else."""
    try:
        with np.errstate(all="ignore"):
            return verify(read(Path(path)))
    except (OSError, MemoryError) as error:
        raise Malformed(f"cannot be read: {type(error).__name__}") from None


def plain(value: Any) -> Any:
    """For JSON, which has no infinities."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="check.py", description="Verify a certificate of lipcert with numpy alone."
    )
    parser.add_argument("certificate", help="path of certificate.json")
    parser.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON instead of lines")
    args = parser.parse_args(argv)
    try:
        report = check(args.certificate)
    except Malformed as error:
        print(f"malformed: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # a mistake in this file is not a verdict on the certificate
        print(f"cannot be checked: {type(error).__name__}", file=sys.stderr)
        return 2
    if not args.quiet:
        print(json.dumps(plain(asdict(report)), indent=2) if args.json else "\n".join(report.lines))
    if not report.ok:
        print("refuted: " + "; ".join(report.refuted[:5]), file=sys.stderr)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
