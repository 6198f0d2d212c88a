"""The independent checker of certificates: this one file, numpy and the standard library.

    python check.py certificate.json [--quiet]      0 everything holds, 1 something does not, 2 it cannot be read
    python check.py certificate.json --allow 4      with 4 times the memory and the work that are allowed by default

It shares no code with the library, on purpose; docs/certificate.md is its specification and has the mathematics.
What it trusts: IEEE float64 with correctly rounded + − × ÷ √, and matrix products that are sums of products in some
order (no Strassen). It trusts neither LAPACK (a Cholesky factor is multiplied out) nor sines (from integers). If a
network has tanh, sigmoid, ELU or softplus, it assumes that the platform computes them within 8 units in the last
place, and the report says so.
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
KERNEL = 257  # largest side of a kernel: an orthogonal one covers its image
FINEST = 512  # frequencies along one axis of a grid
WAVES = 1024  # along one axis of an image
MODULUS = 2.0**100  # float64 numbers other than 0 lie within [1/MODULUS, MODULUS]: no underflow that matters
HUGE = 2.0**500  # a layer whose values may exceed this proves nothing: below it, nothing overflows

# Limits, multiplied by --allow.
TEXT = 2**24  # bytes of JSON that are read
LAYERS = 10_000
ENTRIES = 2**26  # of one tensor, or of one matrix of a proof
TOTAL = 3 * 2**27  # entries of all tensors: 3.2 GB as float64
ROOM = 2**24  # numbers that one layer may hold for one input; --allow does not make batches larger
WORK = 2**46  # multiply-adds, or what takes as long: about an hour on two cores
# How many multiply-adds of large matrices take as long, roughly.
MOVE = 64  # as writing one number
HASH = 32  # as hashing one byte
CALL = 2**20  # as the calls of numpy that evaluate one layer on a batch
EXACT = 2**19  # as comparing a margin with a radius in rational numbers
ANGLE = 2**15  # as computing one sine and cosine from integers

DTYPES = {"F32": "<f4", "F64": "<f8", "U8": "|u1"}
TOP = "format norm arithmetic assumes input_shape weights tensors layers lipschitz inputs claims probe"
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


class Budget:
    """The memory and the work that a certificate may cost: ``allow`` times the limits above."""

    def __init__(self, allow: int = 1) -> None:
        self.allow, self.spent = allow, 0

    def require(self, amount: int, limit: int, what: str) -> int:
        """The amount, unless it is too large."""
        most, times = self.allow * limit, -(-amount // limit)
        need(amount <= most, f"{what} {amount:,}, and the limit is {most:,}; --allow {times} raises it")
        return amount

    def numbers(self, shape: Shape, where: str) -> int:
        """The size of what one layer holds for one input."""
        need(min(shape) > 0, f"{where}: an empty shape, {shape}")
        return self.require(math.prod(shape), ROOM, f"{where}: the number of values for one input is")

    def spend(self, work: int, planned: int = 0) -> None:
        """Count work before it is done; ``planned`` is work that must fit as well but is counted later."""
        self.spent += work
        self.require(self.spent + planned, WORK, "work: the estimated number of multiply-adds is")


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


def tensors_of(path: Path, budget: Budget) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, mapped, not loaded. They must fill the file without gap or overlap."""
    size = regular(path)
    need(size >= 8, f"{path.name}: too short")
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    length = int.from_bytes(raw[:8].tobytes(), "little")
    need(length <= size - 8, f"{path.name}: the header is longer than the file")
    budget.require(length, TEXT, f"{path.name}: the size of the header in bytes is")
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


@functools.lru_cache(maxsize=64)
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


def phases_shape(kernel: Shape, stride: Shape) -> Shape:
    """The shape of ``phases`` of a kernel of that shape."""
    groups, n, c, *sides = kernel
    sh, sw = (min(s, k) for s, k in zip(stride, sides, strict=True))  # a stride beyond k only skips pixels
    return groups, n, c * sh * sw, -(-sides[0] // sh), -(-sides[1] // sw)


def phases(kernel: Array, stride: Shape) -> Array:
    """Stride s on c channels is stride 1 on the c·sh·sw channels of the polyphase components."""
    if stride == (1, 1):
        return kernel
    groups, n, c, *sides = kernel.shape
    sh, sw = (min(s, k) for s, k in zip(stride, sides, strict=True))
    *_, high, wide = phases_shape(kernel.shape, stride)
    room = np.zeros((groups, n, c, high * sh, wide * sw))
    room[..., : sides[0], : sides[1]] = kernel
    room = room.reshape(groups, n, c, high, sh, wide, sw).transpose(0, 1, 2, 4, 6, 3, 5)
    return room.reshape(groups, n, -1, high, wide)


def absolute_norm(kernel: Array) -> float:
    """‖ |K| ‖ over all inputs: a symbol with entries ≥ 0 is largest at frequency 0.

    Collatz–Wielandt: a matrix M ≥ 0 has λmax(MMᵀ) ≤ max_i (MMᵀx)_i/x_i for every x > 0. Any x will do; power
    iteration improves it until the bound is within 1% of a Rayleigh quotient, which λmax is at least.
    """
    matrix = np.abs(kernel).sum(axis=(3, 4))
    x, best = np.ones((*matrix.shape[:2], 1)), math.inf
    for _ in range(60):
        y = matrix @ (matrix.swapaxes(1, 2) @ x)
        best = min(best, float((y / x).max()))
        if not 0 < best < math.inf or best <= 1.01 * float(((x * y).sum(axis=1) / (x * x).sum(axis=1)).max()):
            break
        x = y / np.maximum(y.max(axis=1, keepdims=True), 2.0**-900) + 2.0**-30
    return math.sqrt(best * (1 + g(sum(matrix.shape[1:]) + 2 * kernel.shape[3] * kernel.shape[4]))) * ROUND


def row_sums(kernel: Array, gamma: Array, witness: Array, stride: Shape) -> float:
    """ρ ≤ max_i γ_i Σ_j A_ij q_j/q_i, A_ij = Σ |C_ij[d]| over the lags d in the multiples of the stride.

    Γ^½GΓ^½ has λmax at most that of its modulus, which is similar to Γ|G|: Collatz–Wielandt with x = q.

    Rounding: a computed C_ij[d] = Σ k_i[r, u] k_j[r, u + d], of ``terms`` products, is off by at most
    g_terms Σ |k_i[r, u] k_j[r, u + d]|. The taps u and u + d belong to the same phase of the stride, and over all
    lags each pair of taps occurs once. So these errors add up to at most g_terms Σ_r a_ir a_jr, where r stands for
    a channel and a phase, a_ir = Σ_u |k_i[r, u]|: nothing for filters without a common channel, whatever q_j/q_i.
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
    sizes = np.abs(phases(kernel, stride)).sum(axis=(3, 4))  # a_ir: at most kh·kw roundings
    column, terms = witness[..., None], math.prod(kernel.shape[2:])
    rows = total @ column + g(terms) * (sizes @ (sizes.swapaxes(1, 2) @ column))
    # On a path to an entry of ``rows`` are at most lags + n roundings in the first term, and 2·kh·kw + n + (the
    # number of r) + 1 in the second. ROUND makes up for the four that follow.
    roundings = n + max(lags, 2 * kh * kw + sizes.shape[2])
    return float((gamma / witness * rows[..., 0]).max()) * (1 + g(roundings)) * ROUND


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


def eigenvalue_work(batch: int, n: int, m: int) -> int:
    """Work of ``top_eigenvalue``: a Gram matrix, products with vectors, some Cholesky factors, and eigenvalues."""
    small, large = sorted((n, m))
    eigenvalues = 12 * small if small <= 128 else 0
    return batch * (2**17 + small**2 * (large + 4 * small + eigenvalues + 2**10) + MOVE * small * large)


def symbol_work(shape: Shape, frequencies: int, order: int) -> int:
    """Work of a symbol at that number of frequencies, in units of 1/order, for a kernel of that shape."""
    groups, n, c, kh, kw = shape
    symbols = groups * n * c * (2 * kh * kw + 16 * MOVE) + 2 * MOVE * kh * kw
    return frequencies * symbols + eigenvalue_work(frequencies * groups, 2 * n, 2 * c) + ANGLE * order


def norm_work(shape: Shape, torus: Shape | None) -> int:
    """Work of ``norm_squared`` at least: without finer grids."""
    groups, n, c, kh, kw = shape
    if kh * kw == 1:
        return eigenvalue_work(groups, n, c)
    if torus is not None and few_frequencies(shape, torus):
        return symbol_work(shape, torus[0] * (torus[1] // 2 + 1), math.lcm(*torus))
    order = coarsest(kh, kw)
    if order > FINEST:  # there is no proof
        return 0
    return symbol_work(shape, (order if kh > 1 else 1) * (order // 2 + 1 if kw > 1 else 1), 4 * order)


def row_sums_work(shape: Shape, stride: Shape) -> int:
    groups, n, c, kh, kw = shape
    lags = math.prod(2 * -(-k // s) - 1 for k, s in zip((kh, kw), stride, strict=True)) // 2 + 1
    return lags * groups * n * (n * c * kh * kw + MOVE * (4 * n + 2 * c * kh * kw))


def few_frequencies(shape: Shape, torus: Shape) -> bool:
    """Whether a circular image has so few frequencies that the symbol is taken at each of them."""
    groups, n, c, *_ = shape
    return math.lcm(*torus) <= 2**14 and math.prod(torus) * groups * min(n, c) * n * c <= 2**36


def coarsest(kh: int, kw: int) -> int:
    """The coarsest grid of frequencies: a power of 2, at least four times the side of the kernel."""
    return 2 ** max(2, (4 * max(kh, kw) - 1).bit_length())


def norm_squared(kernel: Array, goal: float, torus: Shape | None = None, budget: Budget | None = None) -> float:
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
    spend = (budget or Budget()).spend
    taps, spread = kh * kw, norms(np.abs(kernel).sum(axis=(3, 4)).reshape(-1)) * (1 + g(kh * kw))
    blur = (1.5 * g(taps + 2) * (taps > 1) + 2 * U) * float(spread)  # rounding of products, of sines, of the kernel

    def proved(matrices: Array, shrink: float) -> float:
        hint = max(0.0, math.sqrt(goal * shrink) * (1 - 64 * U) - blur) ** 2
        return (math.sqrt(top_eigenvalue(matrices, hint)) + blur) ** 2 / shrink * ROUND

    if taps == 1:
        spend(norm_work(kernel.shape, torus))
        return proved(kernel[..., 0, 0], 1.0) * 4.0**power
    flat, best, order = kernel.reshape(groups, n, c, taps), math.inf, coarsest(kh, kw)

    def worst_of(frequencies: NDArray[np.int64], order: int, shrink: float) -> float:  # in units of 1/order
        worst = 0.0
        for part in chunks(len(frequencies), max(1, ROOM // (16 * groups * n * c + 4 * taps))):
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

    if torus is not None and few_frequencies(kernel.shape, torus):
        spend(norm_work(kernel.shape, torus))
        period = math.lcm(*torus)
        steps = np.array([period // size for size in torus])
        return worst_of(grid(torus[0], torus[1] // 2 + 1) * steps, period, 1.0) * 4.0**power
    while order <= FINEST:
        frequencies = grid(order if kh > 1 else 1, order // 2 + 1 if kw > 1 else 1)
        if best < math.inf and len(frequencies) * groups * min(n, c) * n * c > 2**35:
            break
        spend(symbol_work(kernel.shape, len(frequencies), 4 * order))
        shrink = math.prod(float(circle(4 * order)[0][k - 1]) - 2 * U for k in (kh, kw)) ** 2
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


class Activation(NamedTuple):
    """σ of a residual layer, with slopes in [0, 1]."""

    function: Callable[[Array], Array]
    roundings: int  # s: what is computed is σ times 1 + θ, |θ| ≤ g_s
    at_zero: float  # at least |σ(0)|


SMOOTH = 16  # 8 units in the last place, each of at most 2u
ACTIVATIONS = {
    "relu": Activation(lambda x: np.maximum(x, 0), 0, 0.0),
    "leaky_relu": Activation(lambda x: np.where(x < 0, 0.01 * x, x), 1, 0.0),
    "elu": Activation(lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x), SMOOTH, 0.0),
    "softplus": Activation(lambda x: np.logaddexp(x, 0), SMOOTH, 0.6931471805599454),  # this is above log 2
    "tanh": Activation(np.tanh, SMOOTH, 0.0),
    "sigmoid": Activation(lambda x: 1 / (1 + np.exp(-x)), SMOOTH, 0.5),
}


@dataclass(frozen=True)
class Rounding:
    """e(Z) of docs/certificate.md: g_{n1}(κZ + β), and for a residual layer (n2 > 0) its longer formula."""

    n1: int
    kappa: float
    beta: float
    n2: int = 0
    root: float = 0.0  # at least √ρ
    start: float = 0.0  # at least the norm of Γ^½σ(0)
    sigma: int = 0  # roundings of σ

    def error(self, z: Array, a: Arithmetic) -> Array:
        first = a.g(self.n1) * (self.kappa * z + self.beta)
        if not self.n2:
            return first + a.underflow
        v = self.root * z + self.beta + first + self.start
        # σ and its product with 2γ are rounded. ReLU is exact: one rounding, and the casts.
        rounded, most = (1 + a.casts) * a.u, 1 + a.u
        if self.sigma:
            rounded, most = a.g(1 + self.sigma), 1 + a.g(1 + self.sigma)
        inner = 2 * (1 + a.u) * self.root * (first + rounded * v)
        return inner + a.g(self.n2) * (z + 2 * most * self.kappa * v) + a.underflow


@dataclass(frozen=True)
class Plan:
    """A layer whose fields and shapes fit, with an estimate of its work; no entry of a tensor has been read."""

    entry: dict[str, Any]
    where: str
    claimed: float
    source: Shape  # of what comes in
    shape: Shape  # of what comes out
    room: int  # numbers it holds for one input
    entries: int  # of its weight, which each batch may copy
    work: int  # for one input
    prepare: int  # work on its tensors besides the proof of its constant: copies, means, κ
    proof: int  # work of that proof, at least
    parts: SimpleNamespace


@dataclass(frozen=True)
class Layer:
    """A layer as read: its constant, claimed and proved, its rounding (None: exact) and what ``run`` needs.

    Its tensors are views of those that ``Tensors`` keeps: what a layer itself keeps does not grow with them.
    """

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

    kernel: Array  # (groups, n, c, kh, kw)
    stride: Shape
    padding: Shape
    circular: bool
    image: Shape  # (C, H, W)
    out: Shape  # (H', W')

    def windows(self) -> Iterator[tuple[Array, tuple[Any, ...]]]:
        taps = np.ascontiguousarray(self.kernel.transpose(3, 4, 0, 1, 2))  # for this batch: fast, and not kept
        (sh, sw), (high, wide) = self.stride, self.out
        for i, j in np.ndindex(taps.shape[:2]):
            yield taps[i, j], (..., slice(i, i + sh * (high - 1) + 1, sh), slice(j, j + sw * (wide - 1) + 1, sw))

    def forward(self, x: Array) -> Array:
        batch, (groups, n, c), (ph, pw) = len(x), self.kernel.shape[:3], self.padding
        x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), mode="wrap" if self.circular else "constant")
        x, y = x.reshape(batch, groups, c, *x.shape[2:]), np.zeros((batch, groups, n, math.prod(self.out)))
        for tap, window in self.windows():
            y += tap @ x[window].reshape(batch, groups, c, -1)
        return y.reshape(batch, groups * n, *self.out)

    def adjoint(self, y: Array) -> Array:
        batch, (groups, n, c), (ph, pw) = len(y), self.kernel.shape[:3], self.padding
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
            return np.asarray(x - (p.sigma(x @ p.weight.T + p.bias) * (2 * p.gamma)) @ p.weight)
        case "conv" | "torus":
            return np.asarray(p.conv.forward(x) + p.bias[:, None, None])
        case "residual_conv" | "residual_torus":
            hidden = p.sigma(p.conv.forward(x) + p.bias[:, None, None]) * (2 * p.gamma)[:, None, None]
            return np.asarray(x - p.conv.adjoint(hidden))
    raise Malformed(f"unknown op {layer.op}")


# --- Layers, first pass: fields, shapes and work. Nothing is allocated for a tensor, whatever its header says ---


class Tensors:
    """The stored tensors: their shapes, and their entries on demand, as one float64 array for all layers."""

    def __init__(self, stored: dict[str, NDArray[Any]]) -> None:
        self.stored = stored
        self.loaded: dict[str, Array] = {}
        self.used: set[str] = set()

    def shape(self, name: Any, wanted: Shape | None, dtype: str | None = None) -> Shape:
        """The shape of that tensor, which must be the wanted one."""
        need(isinstance(name, str) and name in self.stored, "a layer names a tensor that does not exist")
        tensor, label = self.stored[name], f"tensor {name[:40]!a}"
        need(wanted is None or tensor.shape == wanted, f"{label}: has shape {tensor.shape}, needs {wanted}")
        need(tensor.dtype != np.uint8 and dtype in (None, tensor.dtype.str), f"{label}: has the wrong dtype")
        self.used.add(name)
        return tensor.shape

    def take(self, name: str) -> Array:
        """Its entries as float64."""
        if name not in self.loaded:
            tensor, label = self.stored[name], f"tensor {name[:40]!a}"
            value = np.array(tensor, dtype=np.float64)
            need(bool(np.isfinite(value).all()), f"{label}: has entries that are not finite")
            if tensor.dtype != np.float32:
                size = np.abs(value[value != 0])
                inside = bool(((size >= 1 / MODULUS) & (size <= MODULUS)).all())
                need(inside, f"{label}: float64 entries must be 0 or within 2^-100 and 2^100 in modulus")
            self.loaded[name] = value
        return self.loaded[name]


def plan_layer(entry: Any, where: str, shape: Shape, tensors: Tensors, budget: Budget) -> Plan:
    """One entry of ``layers`` on inputs of that shape: its fields and shapes."""
    need(isinstance(entry, dict) and isinstance(entry.get("op"), str), f"{where}: needs an op")
    op = entry["op"]
    need(op in FIELDS, f"{where}: unknown op {op[:30]!a}")
    where = f"{where} ({op})"
    entry = fields(entry, "op name lipschitz " + FIELDS[op], where)
    need(isinstance(entry["name"], str), f"{where}: name must be a string")
    claimed = constant(entry["lipschitz"], where)
    if "weight" in entry:
        return plan_weighted(entry, where, claimed, shape, tensors, budget)
    p, out, moves, prepare = SimpleNamespace(), shape, 4, 0  # moves: passes over the numbers of one input
    if op in ("centre", "normalize"):
        for name in FIELDS[op].split():
            prepare += 8 * MOVE * math.prod(tensors.shape(entry[name], shape[:1]))
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
        p.factor = 1.0 if depth else constant(entry["factor"], where)
    elif op == "flatten":
        out = (math.prod(shape),)
    elif op in ("group_sort", "max_min"):
        size, moves = 2 if op == "max_min" else integer(entry["size"], 1, where), 16
        need(shape[0] % size == 0, f"{where}: {shape[0]} channels are not groups of {size}")
        p.split = (-1, shape[0] // size, size, *shape[1:])
    elif op == "take_channels":
        p.first, count = integer(entry["first"], 0, where), integer(entry["count"], 1, where)
        need(p.first + count <= shape[0], f"{where}: {shape[0]} channels do not reach that far")
        out = (count, *shape[1:])
    elif op == "householder":
        need(shape[0] % 2 == 0, f"{where}: {shape[0]} channels are not pairs")
        p.split, moves = (-1, shape[0] // 2, 2, *shape[1:]), 8
        for name in FIELDS[op].split():
            prepare += 8 * MOVE * math.prod(tensors.shape(entry[name], (shape[0] // 2,)))
    elif op == "scale":
        p.factor = number(entry["factor"], where)
        constant(abs(p.factor).hex(), where)
    p.sizes = list(zip(shape, out, strict=False))
    room = max(math.prod(shape), budget.numbers(out, where))
    return Plan(entry, where, claimed, shape, out, room, 0, moves * MOVE * room, prepare, 0, p)


def plan_weighted(
    entry: dict[str, Any], where: str, claimed: float, shape: Shape, tensors: Tensors, budget: Budget
) -> Plan:
    """The layers with a weight."""
    op, p = entry["op"], SimpleNamespace()
    weight = tensors.shape(entry["weight"], None)
    torus = None
    p.stride, p.positions, p.more = (1, 1), 1, 0  # p.more: further sums on the way of a number
    products = moved = 0  # for one input: multiply-adds, and numbers written besides
    if op.endswith("linear"):
        need(len(weight) == 2 and weight[1:] == shape, f"{where}: weight {weight} on an input {shape}")
        p.kernel, hidden, room = (1, *weight, 1, 1), weight[:1], max(weight)
        products = math.prod(weight)
    elif op.endswith("torus"):
        need(len(shape) == 3 and len(weight) == 3, f"{where}: needs an image and a weight (hw, 4n, 4m)")
        (h2, high), (w2, wide) = waves = [matrix_shape(entry, name, tensors, where) for name in ("rows", "columns")]
        need((high, wide) == shape[1:], f"{where}: rows and columns are not of this image")
        need(h2 % 2 == w2 % 2 == 0, f"{where}: rows and columns must be pairs")
        need(max(h2, high, w2, wide) <= WAVES, f"{where}: at most {WAVES} rows and columns")
        fits = weight[0] == h2 * w2 // 4 and weight[1] % 4 == 0 and weight[2] == 4 * shape[0]
        need(fits, f"{where}: weight {weight} on an image {shape}")
        n, p.positions, p.more = weight[1] // 4, math.prod(shape[1:]), h2 + high + w2 + wide
        room = budget.numbers((max(shape[0], n), max(h2, high), max(w2, wide)), where)
        p.kernel, hidden = (*weight, 1, 1), (n, *shape[1:])
        products = (shape[0] + n) * h2 * wide * (high + w2) + math.prod(weight)
        moved = 6 * room
    else:
        p.place = place(entry, shape, weight, where, budget)
        p.stride, padding, circular, _, out = p.place
        groups, (n, c, *sides), p.positions = entry["groups"], weight, math.prod(out)
        p.kernel, hidden = (groups, n // groups, c, *sides), (n, *out)
        padded = (size + 2 * pad for size, pad in zip(shape[1:], padding, strict=True))
        room = max(shape[0] * math.prod(padded), math.prod(hidden))
        torus = tuple(map(operator.floordiv, shape[1:], p.stride)) if circular else None
        products = p.positions * math.prod(weight)
        moved = math.prod(sides) * p.positions * (shape[0] + n)
    p.torus, n, residual = torus, hidden[0], op.startswith("residual")
    split = phases_shape(p.kernel, p.stride)
    budget.require(
        math.prod(split), ENTRIES, f"{where}: the number of entries of its kernel, split by the stride, is"
    )
    groups, rows, columns, *sides = split
    complex_symbol, gram = 4 * groups * rows * columns, groups * min(rows, columns) ** 2
    largest = gram if math.prod(sides) == 1 else complex_symbol
    budget.require(largest, ENTRIES, f"{where}: the number of entries of a matrix in its proof is")
    if entry["bias"] is not None:
        tensors.shape(entry["bias"], (n,))
    prepare, proof = 32 * MOVE * math.prod(split), norm_work(split, torus)
    if residual:
        need(
            isinstance(entry["activation"], str) and entry["activation"] in ACTIVATIONS,
            f"{where}: activation is one of {', '.join(ACTIVATIONS)}",
        )
        tensors.shape(entry["gamma"], (n,))
        if entry.get("witness") is not None:
            tensors.shape(entry["witness"], (n,), "<f8")
            if by_row_sums(p.kernel):
                proof = row_sums_work(p.kernel, p.stride)
    if op.endswith("torus"):
        prepare += sum(eigenvalue_work(1, *wave) for wave in waves)
    # A residual layer multiplies by Wᵀ and by W; an elementary function takes as long as eight moves.
    work = (1 + residual) * (products + MOVE * moved) + MOVE * (8 * room + 16 * math.prod(hidden))
    out = shape if residual else hidden
    room = max(room, math.prod(shape), budget.numbers(hidden, where))
    return Plan(entry, where, claimed, shape, out, room, math.prod(weight), work, prepare, proof, p)


def matrix_shape(entry: dict[str, Any], name: str, tensors: Tensors, where: str) -> Shape:
    shape = tensors.shape(entry[name], None)
    need(len(shape) == 2, f"{where}: {name} must be a matrix")
    return shape


def place(
    entry: dict[str, Any], shape: Shape, weight: Shape, where: str, budget: Budget
) -> tuple[Shape, Shape, bool, Shape, Shape]:
    """How a convolution meets its image: the fields of ``Convolution`` after the kernel."""
    stride, padding = integers(entry["stride"], 1, where, [2]), integers(entry["padding"], 0, where, [2])
    groups, mode = integer(entry["groups"], 1, where), entry["padding_mode"]
    need(mode in ("zeros", "circular"), f"{where}: padding_mode is zeros or circular")
    need(len(shape) == 3 and len(weight) == 4, f"{where}: needs an image and a weight (n, c/g, kh, kw)")
    n, c, *sides = weight
    need(n % groups == 0 and c * groups == shape[0], f"{where}: weight {weight} on {shape[0]} channels")
    need(max(sides) <= KERNEL, f"{where}: kernels have sides of at most {KERNEL}")
    budget.numbers((shape[0], shape[1] + 2 * padding[0], shape[2] + 2 * padding[1]), where)
    axes = list(zip(shape[1:], sides, padding, stride, strict=True))
    need(all(size + 2 * p >= k for size, k, p, _ in axes), f"{where}: the kernel is larger than the image")
    fits = all(2 * p <= k - 1 and p <= size and size % s == 0 for size, k, p, s in axes)
    need(mode == "zeros" or fits, f"{where}: circular needs padding <= (k-1)/2 and a stride that divides the image")
    out = tuple((size + 2 * p - k) // s + 1 for size, k, p, s in axes)
    return stride, padding, mode == "circular", shape, out


def by_row_sums(kernel: Shape) -> bool:
    """Whether the overlaps of all pairs of filters fit into one matrix."""
    groups, n, *_ = kernel
    return groups * n * n <= ENTRIES


# --- Layers, second pass: the entries of the tensors, and proofs ---


def prove_layer(plan: Plan, tensors: Tensors, budget: Budget) -> Layer:
    """The layer with its constant proved."""
    entry, where, shape, claimed, p = plan.entry, plan.where, plan.source, plan.claimed, plan.parts
    op, take = entry["op"], tensors.take
    proved, rounding = 1.0, None
    budget.spend(plan.prepare)
    if op in ("centre", "normalize"):
        mean = take(entry["mean"])
        std = take(entry["std"]) if op == "normalize" else np.broadcast_to(1.0, shape[:1])
        need(bool((std > 0).all()), f"{where}: std must be positive")
        column = (shape[0], *[1] * (len(shape) - 1))
        p.mean, p.std = mean.reshape(column), std.reshape(column) if op == "normalize" else 1.0
        proved = above(1 / Fraction(float(std.min())))
        offset = float(norms(mean)) * math.sqrt(math.prod(shape[1:])) * ROUND
        rounding = Rounding(2, claimed, claimed * offset * ROUND)
    elif op == "sum_pool":
        kh, kw = p.blocks[2], p.blocks[4]
        proved = math.sqrt(kh * kw) * p.factor * (1 - 4 * U)
        while Fraction(proved) ** 2 < Fraction(p.factor) ** 2 * (kh * kw):
            proved = math.nextafter(proved, math.inf)
        rounding = Rounding(kh * kw + 2, claimed, 0.0)
    elif op == "householder":
        column = (shape[0] // 2, *[1] * (len(shape) - 1))
        vectors = [take(entry[name]) for name in ("first", "second")]
        p.first, p.second = (half.reshape(column) for half in vectors)
        square = float((vectors[0] ** 2 + vectors[1] ** 2).max()) * (1 + 8 * U)
        proved = above(max(Fraction(1), 2 * Fraction(square) - 1))
        root = math.sqrt(square) * ROUND
        rounding = Rounding(3, root, 0.0, 5, root)  # a residual of one neuron for each pair
    elif op == "scale":
        proved, rounding = abs(p.factor), Rounding(1, claimed, 0.0)
    elif plan.entries:
        proved, rounding = prove_weighted(plan, take, budget)
    return Layer(op, entry["name"], claimed, proved, plan.shape, plan.room, rounding, p)


def prove_weighted(plan: Plan, take: Callable[[str], Array], budget: Budget) -> tuple[float, Rounding]:
    """The constant and the rounding of a layer with a weight."""
    entry, where, claimed, p = plan.entry, plan.where, plan.claimed, plan.parts
    op, torus, stride, stretch, absolute = entry["op"], p.torus, p.stride, 1.0, 1.0
    p.weight = take(entry["weight"])
    kernel = p.weight.reshape(p.kernel)
    n = len(p.weight)
    if op.endswith("torus"):
        rows, columns = (take(entry[name]) for name in ("rows", "columns"))
        largest = max(float(np.abs(part).max()) for part in (rows, columns))
        need(largest <= 1, f"{where}: rows and columns have entries above 1")
        p.conv, n = Torus(rows, columns, p.weight), p.kernel[1] // 4
        stretch, absolute = p.conv.stretch(), p.conv.absolute()
        need(1 / MODULUS <= stretch <= MODULUS, f"{where}: rows and columns must have a norm within 2^-50 and 2^50")
    elif op.endswith("conv"):
        p.conv = Convolution(kernel, *p.place)
    area = kernel.shape[3] * kernel.shape[4]
    p.bias = np.broadcast_to(0.0, (n,)) if entry["bias"] is None else take(entry["bias"])
    spread = math.sqrt(p.positions) * ROUND
    if not op.startswith("residual"):
        split = phases(kernel, stride)
        norm = math.sqrt(norm_squared(split, (claimed / stretch) ** 2, torus, budget))
        proved = norm if stretch == 1 else norm * stretch * ROUND
        kappa = absolute_norm(split) * absolute * ROUND
        rounding = Rounding(kernel.shape[2] * area + p.more + 1, kappa, float(norms(p.bias)) * spread)
        return math.nextafter(proved, math.inf) if proved else 0.0, rounding
    p.gamma, sigma = take(entry["gamma"]), ACTIVATIONS[entry["activation"]]
    p.sigma = sigma.function
    need(bool((p.gamma >= 0).all()), f"{where}: gamma must not be negative")
    witness = None if entry.get("witness") is None else take(entry["witness"])
    need(witness is None or bool((witness > 0).all()), f"{where}: the witness must be positive")
    heads, goal, rho = kernel.shape[:2], (1 + claimed) / 2, math.inf
    root = np.sqrt(p.gamma) * (1 + 2.0**-51)  # at least √γ
    each = np.tile(root, (len(kernel), 4)) if op.endswith("torus") else root.reshape(heads)
    split = phases(kernel * each[..., None, None, None], stride)  # within u of what it stands for
    if witness is not None and by_row_sums(p.kernel):
        budget.spend(row_sums_work(p.kernel, stride))
        rho = row_sums(kernel, p.gamma.reshape(heads), witness.reshape(heads), stride)
    # Inputs that one tap reads, the same for all filters: their part of the Gram matrix, a sum over inputs, is the
    # same at every frequency.
    single = ((split != 0).any(axis=1).sum(axis=(2, 3)) <= 1).all(axis=0)
    if not rho <= goal and torus is None and single.any() and area > 1:
        still = norm_squared(split[:, :, single].sum(axis=(3, 4), keepdims=True), goal, None, budget)
        rest = 0.0
        if not single.all():
            rest = norm_squared(split[:, :, ~single], max(goal - still, 0.0), None, budget)
        rho = min(rho, (still + rest) * ROUND)
    if not rho <= goal:
        found = norm_squared(split, goal / stretch**2, torus, budget)
        rho = min(rho, found if stretch == 1 else found * stretch**2 * ROUND)
    proved = above(max(Fraction(1), 2 * Fraction(rho) - 1)) if math.isfinite(rho) else math.inf
    fans = kernel.shape[2] * area + p.more + 1, kernel.shape[1] * area + p.more + 3
    beta, kappa = float(norms(root * p.bias)) * spread, absolute_norm(split) * absolute * ROUND
    start = sigma.at_zero * float(norms(root)) * spread * ROUND
    return proved, Rounding(fans[0], kappa, beta, fans[1], math.sqrt(rho) * ROUND, start, sigma.roundings)


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
    budget: Budget
    distances: dict[int, Array] = field(default_factory=dict)

    @functools.cached_property
    def sizes(self) -> Array:
        """At least ‖w_j‖ for the rows of the head."""
        return np.ones(self.outputs) if self.head is None else norms(self.head.parts.weight)

    def logits(self, x: Array, radius: Array, a: Arithmetic) -> tuple[Array, Array, Array]:
        x, err, z = forward(self.body, x, radius, a)
        return (x if self.head is None else run(self.head, x)), err, z

    def single(self, err: Array, z: Array, a: Arithmetic) -> tuple[Array, Array]:
        """For each logit alone: its constant relative to the body, and a bound of its error. (batch, outputs)"""
        if self.head is None:
            return np.ones((len(err), self.outputs)), np.repeat(err[:, None], self.outputs, axis=1)
        weight, bias = self.head.parts.weight, self.head.parts.bias
        own = a.g(weight.shape[1] + 1) * (self.sizes * z[:, None] + np.abs(bias)) + a.underflow
        return np.broadcast_to(self.sizes, own.shape), (self.sizes * err[:, None] + own) * ROUND

    def pairs(self, label: int, err: Array, z: Array) -> tuple[Array, Array]:
        """For the logit of the label minus each other: its constant, and a bound of its error in float64."""
        if self.head is None:
            root = np.full((len(err), self.outputs), math.sqrt(2))  # this float is larger than √2
            return root, root * err[:, None] * ROUND
        if label not in self.distances:
            if len(self.distances) * self.outputs > ROOM:
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
        fine = (have > 0) & (have >= want)
        good = np.asarray(fine.all(axis=1))
        finite = np.isfinite(mine).all(axis=1) & np.isfinite(theirs).all(axis=1) & np.isfinite(e).all(axis=1)
        for i in np.flatnonzero(~good & finite):  # once more, without rounding, for the rivals that are left
            rows = ((mine[i, j], theirs[i, j], e[i, j], k[i, j]) for j in np.flatnonzero(~fine[i]))
            good[i] = all(self.holds_exactly(radius[i], *row) for row in rows)
        return good, (have - want).min(axis=1)

    def holds_exactly(self, radius: float, mine: float, theirs: float, error: float, k: float) -> bool:
        """The same inequality for one rival, in rational numbers."""
        self.budget.spend(EXACT)
        left = Fraction(mine) - Fraction(theirs) - 2 * Fraction(error)
        return left > 0 and left >= Fraction(self.lipschitz) * Fraction(radius) * Fraction(k)


# --- The certificate ---


@dataclass(frozen=True)
class Certificate:
    """What the three files say, read but not believed."""

    assumes: list[Any]
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
    assumes: tuple[str, ...]  # of the platform's elementary functions
    verified: int
    claims: int
    slack: float  # smallest margin − 2E − L·K·r of a claim
    lines: tuple[str, ...]  # a table for people


def read(path: Path, budget: Budget | None = None) -> Certificate:
    budget = budget or Budget()
    budget.require(regular(path), TEXT, "certificate: its size in bytes is")
    c = fields(parse(path.read_bytes(), "certificate"), TOP, "certificate")
    for key, value in (("format", "lipcert-certificate-1"), ("norm", "L2"), ("arithmetic", "float64")):
        need(c[key] == value, f"{key}: only {value} is known")
    shape, layers = integers(c["input_shape"], 1, "input_shape", [1, 3]), items(c["layers"], "layers")
    budget.numbers(shape, "input_shape")
    budget.require(len(layers), LAYERS, "layers: their number is")
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

    weights = tensors_of(beside(path.parent, c["weights"], "weights"), budget)
    need(isinstance(c["tensors"], dict) and set(c["tensors"]) == set(weights), "tensors: not those of the file")
    for name, tensor in weights.items():
        budget.require(tensor.size, ENTRIES, f"tensor {name[:40]!a}: its number of entries is")
    budget.require(
        sum(tensor.size for tensor in weights.values()), TOTAL, "tensors: the number of all their entries is"
    )
    data = tensors_of(beside(path.parent, source["file"], "inputs"), budget)
    need(set(data) == {source["tensor"]}, "inputs: the file must hold that tensor alone")
    images = data[source["tensor"]]
    need(images.shape == (count, *shape), f"inputs: the tensor has shape {images.shape}, not {(count, *shape)}")
    need(images.dtype == np.uint8 or (images.dtype == np.float32 and not divide), "inputs: wrong dtype")
    lipschitz = constant(c["lipschitz"], "lipschitz")
    return Certificate(
        assumes=items(c["assumes"], "assumes"),
        shape=shape,
        weights=weights,
        hashes=c["tensors"],
        layers=layers,
        lipschitz=lipschitz,
        images=images,
        images_hash=source["sha256"],
        divide=divide,
        claims=claims,
        asked=asked,
        answers=answers,
    )


def items(value: Any, where: str) -> list[Any]:
    need(isinstance(value, list), f"{where}: needs a list")
    return list(value)


def claim(row: Any, count: int) -> tuple[int, int, float]:
    need(isinstance(row, list) and len(row) == 3, "claims: needs [index, label, radius]")
    index, label, radius = integer(row[0], 0, "claims"), integer(row[1], 0, "claims"), number(row[2], "claims")
    need(index < count and radius > 0, "claims: an index out of range or a radius that is not positive")
    return index, label, radius


def plan_all(c: Certificate, tensors: Tensors, budget: Budget) -> list[Plan]:
    """All layers, first pass."""
    plans: list[Plan] = []
    shape = c.shape
    for i, entry in enumerate(c.layers):
        plans.append(plan_layer(entry, f"layer {i}", shape, tensors, budget))
        shape = plans[-1].shape
    need(len(plans) > 0 and len(shape) == 1, "layers: must end in a vector of logits")
    need(tensors.used == set(c.weights), "tensors: some are used by no layer")
    need(all(len(row) == shape[0] for row in c.answers), f"probe: needs {shape[0]} logits in each row")
    need(all(label < max(2, shape[0]) for _, label, _ in c.claims), "claims: a label is no class")
    activations = {plan.entry["activation"] for plan in plans if "activation" in plan.entry}
    smooth = sorted(name for name in activations if ACTIVATIONS[name].roundings == SMOOTH)
    expected = [f"{name} within 8 ulp" for name in smooth]
    need(c.assumes == expected, f"assumes: must be {expected} for these layers")
    return plans


def batch_size(layers: Sequence[Plan] | Sequence[Layer]) -> int:
    return max(1, min(1024, ROOM // max(layer.room for layer in layers)))


def other_work(c: Certificate, plans: Sequence[Plan]) -> int:
    """Everything but the proofs: hashes, reading, forward passes and margins."""
    entries, size, outputs = sum(t.size for t in c.weights.values()), batch_size(plans), plans[-1].shape[0]
    work = HASH * (c.images.nbytes + sum(t.nbytes for t in c.weights.values())) + 8 * MOVE * entries
    claims, inputs = len(c.claims), len(c.claims) + len(c.asked)
    batches = -(-claims // size) - (-len(c.asked) // size)
    work += inputs * (sum(plan.work for plan in plans) + 4 * MOVE * math.prod(c.shape))
    work += batches * sum(CALL + MOVE * plan.entries for plan in plans)
    work += claims * (CALL + 16 * MOVE * outputs)
    # Distances of the rows of the head from that of each label, kept as long as there is room for them.
    labels = len({label for _, label, _ in c.claims})
    return work + 4 * MOVE * plans[-1].entries * (labels if labels * outputs <= ROOM else claims)


def build_all(c: Certificate, budget: Budget | None = None) -> list[Layer]:
    """The layers, planned and proved."""
    budget, tensors = budget or Budget(), Tensors(c.weights)
    return [prove_layer(plan, tensors, budget) for plan in plan_all(c, tensors, budget)]


def require_finite(c: Certificate) -> None:
    """An input with a NaN or an infinity is close to nothing: no claim or probe can be about it."""
    used = sorted({index for index, _, _ in c.claims} | set(c.asked)) if c.images.dtype != np.uint8 else []
    for part in chunks(len(used), max(1, ROOM // math.prod(c.shape))):
        finite = np.isfinite(c.images[used[part]]).reshape(len(used[part]), -1).all(axis=1)
        need(bool(finite.all()), f"inputs: input {used[part][int(finite.argmin())]} has a NaN or an infinity")


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


def verify(c: Certificate, budget: Budget) -> Report:
    # Fields, shapes and the work to come, before anything is hashed, converted or proved.
    tensors = Tensors(c.weights)
    plans = plan_all(c, tensors, budget)
    budget.spend(other_work(c, plans), sum(plan.prepare + plan.proof for plan in plans))
    refuted = [
        f"tensor {name[:40]!a}: wrong sha256" for name, t in c.weights.items() if digest(t) != c.hashes[name]
    ]
    refuted += ["inputs: wrong sha256"] if digest(c.images) != c.images_hash else []
    if not refuted:
        require_finite(c)
    layers = [] if refuted else [prove_layer(plan, tensors, budget) for plan in plans]
    for i, layer in enumerate(layers):
        if not layer.proved <= layer.claimed:
            refuted.append(f"layer {i} ({layer.op}): claims {layer.claimed:.17g}, proved is {layer.proved:.17g}")
    head = layers[-1] if layers and layers[-1].op == "linear" else None
    body = tuple(layers if head is None else layers[:-1])
    # The product as a quotient of integers: Fraction would look for common divisors of ever longer numbers.
    ratios = [layer.claimed.as_integer_ratio() for layer in body]
    numerator, denominator = math.prod(r[0] for r in ratios), math.prod(r[1] for r in ratios)
    claimed = c.lipschitz.as_integer_ratio()
    if numerator * claimed[1] > claimed[0] * denominator:
        product = above(Fraction(numerator, denominator))
        refuted.append(f"lipschitz: claims {c.lipschitz:.17g}, the product is {product:.17g}")

    lines = [f"{'layer':>5}  {'op':<16} {'claimed L':>13} {'proved L':>13}  name"]
    for i, layer in enumerate(layers):
        name = ascii(layer.name[:40])[1:-1]
        lines.append(f"{i:>5}  {layer.op:<16} {layer.claimed:>13.9g} {layer.proved:>13.9g}  {name}")
    lines.append(f"claimed L of {'all but the last layer' if head else 'all layers'}: {c.lipschitz:.17g}")
    alarms: list[str] = []
    verified, slack = 0, math.nan
    if not refuted:  # an error bound needs true constants
        network, size = Network(body, head, c.lipschitz, layers[-1].shape[0], budget), batch_size(layers)
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
    if c.assumes:
        functions = "functions" if len(c.assumes) > 1 else "function"
        rest = f"the platform's elementary {functions}; everything else is verified"
        lines.append(f"assumed: {', '.join(c.assumes)} ({rest})")
    lines.append("REFUTED" if refuted else "everything holds")
    constants = tuple((layer.name, layer.op, layer.claimed, layer.proved) for layer in layers)
    found = (tuple(refuted), tuple(alarms), constants, c.lipschitz, tuple(c.assumes), verified, len(c.claims))
    return Report(not refuted, *found, slack, tuple(lines))


def check(path: str | Path, allow: int = 1) -> Report:
    """Verify the certificate at ``path``. Raises ``Malformed`` for what is no certificate, and nothing else.

    It may cost ``allow`` times the memory and the work of the limits above.
    """
    budget = Budget(allow)
    try:
        with np.errstate(all="ignore"):
            return verify(read(Path(path), budget), budget)
    except OSError as error:
        raise Malformed(f"cannot be read: {type(error).__name__}") from None
    except MemoryError:
        raise Malformed("there is not enough memory to check it") from None


def plain(value: Any) -> Any:
    """For JSON, which has no infinities."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def positive(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"needs a positive integer, got {text!a}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="check.py", description="Verify a certificate of lipcert with numpy alone."
    )
    parser.add_argument("certificate", help="path of certificate.json")
    parser.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON instead of lines")
    parser.add_argument(
        "--allow", type=positive, default=1, metavar="N", help="allow N times the default memory and work"
    )
    args = parser.parse_args(argv)
    try:
        report = check(args.certificate, args.allow)
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
