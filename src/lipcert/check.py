"""The independent checker of certificates: this one file, numpy and the standard library.

    python check.py certificate.json [--quiet]      0 everything holds, 1 something does not, 2 it cannot be read
    python check.py certificate.json --allow 4      with 4 times the memory and the work that are allowed by default

It shares no code with the library, on purpose; docs/certificate.md is its specification and has the mathematics.
It trusts IEEE float64 with correctly rounded + − × ÷ √, and matrix products that are sums of products in some order
(no Strassen). It trusts neither LAPACK (a Cholesky factor is multiplied out) nor sines (they come from integers).
If a network has tanh, GELU, softmax or the like, it assumes that the platform computes them within 8 units in the
last place, and the report says so.
Rounding: every norm, error and constant may come out too large, never too small; a margin never too large.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Shape = tuple[int, ...]
Reader = Callable[[Any, str], Any]  # of a JSON value; the text says where it stands

U = 2.0**-53  # unit roundoff of float64
ROUND = 1 + 2.0**-48  # = 1 + 32u: makes up for 30 roundings of sums, products, quotients and roots of numbers ≥ 0
KERNEL = 257  # largest side of a kernel: an orthogonal one covers its image
FINEST = 512  # frequencies along one axis of a grid
WAVES = 1024  # rows or columns of a circular operator
PI = 3141592653589793238462643383279502884197169399375105820974944  # π·10⁶⁰, rounded down
MODULUS = 2.0**100  # float64 numbers other than 0 lie within [1/MODULUS, MODULUS]: no underflow that matters
HUGE = 2.0**500  # a node whose values may exceed this proves nothing: below it, nothing overflows
# Products of constants: exact up to a thousand digits, and rounded up beyond.
UP = Context(1000, ROUND_CEILING, MIN_EMIN, MAX_EMAX, traps=[])

# Limits, multiplied by --allow.
TEXT = 2**24  # bytes of JSON that are read
NODES = 10_000
ENTRIES = 2**26  # of one tensor, or of one matrix of a proof
POOL = 2**20  # entries of the matrix of a pool; the norm of a larger one is bounded by its row and column sums
TOTAL = 3 * 2**27  # entries of all tensors: 3.2 GB as float64
ROOM = 2**24  # numbers that are held for one input at a time; --allow does not make batches larger
WORK = 2**46  # multiply-adds, or what takes as long: about an hour on two cores
# How many multiply-adds of large matrices take as long, roughly.
MOVE = 64  # as writing one number
HASH = 32  # as hashing one byte
CALL = 2**20  # as the calls of numpy that evaluate one node on a batch
EXACT = 2**19  # as comparing a margin with a radius in rational numbers
ANGLE = 2**15  # as computing one sine and cosine from integers

NORMS = ("L2", "Linf", "L1")
DUAL = {"L2": "L2", "Linf": "L1", "L1": "Linf"}  # |v·x| ≤ ‖v‖ in the dual norm times ‖x‖

DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "U8": "|u1"}


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
        # Return the amount, unless it is too large.
        most, times = self.allow * limit, -(-amount // limit)
        need(amount <= most, f"{what} {amount:,}, and the limit is {most:,}; --allow {times} raises it")
        return amount

    def numbers(self, shape: Sequence[int], where: str) -> int:
        # Return the size of an array that a node holds for one input.
        return self.require(math.prod(shape), ROOM, f"{where}: the number of values for one input is")

    def spend(self, work: int, planned: int = 0) -> None:
        """Count work before it is done; ``planned`` is work that must fit as well but is counted later."""
        self.spent += work
        self.require(self.spent + planned, WORK, "work: the estimated number of multiply-adds is")


# --- Values: each reader takes a JSON value and where it stands, and refuses what it does not expect ---


def integer(value: Any, where: str, least: int = 0) -> int:
    need(type(value) is int and value >= least, f"{where}: needs an integer of at least {least}")
    return int(value)


def text(value: Any, where: str) -> str:
    need(isinstance(value, str), f"{where}: needs a string")
    return str(value)


def number(value: Any, where: str) -> float:
    # A finite number in the one spelling of float.hex.
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        result = float.fromhex(value)
        if math.isfinite(result) and result.hex() == value:
            return result
    raise Malformed(f"{where}: needs a finite number written by float.hex")


def within(size: Any) -> Any:
    # Whether a modulus is of the size that proofs admit.
    return (size >= 1 / MODULUS) & (size <= MODULUS)


def constant(value: Any, where: str, least: float = 0.0) -> float:  # a Lipschitz constant, a factor or a parameter
    result = number(value, where)
    need(result == 0 or within(abs(result)), f"{where}: must be 0 or within 2^-100 and 2^100")
    need(result >= least, f"{where}: must be at least {least}")
    return result


def one_of(value: Any, where: str, options: Sequence[Any]) -> Any:
    # Neither 1 nor 1.0 is True.
    need(
        any(type(value) is type(option) and value == option for option in options),
        f"{where}: must be {' or '.join(map(json.dumps, options))}",
    )
    return value


def anything(value: Any, where: str) -> Any:
    return value


def optional(value: Any, where: str, reader: Reader) -> Any:
    return None if value is None else reader(value, where)


def row(value: Any, where: str, reader: Reader, least: float = 0, most: float = math.inf) -> tuple[Any, ...]:
    need(
        isinstance(value, list) and least <= len(value) <= most,
        f"{where}: needs a list of {least} to {most} entries",
    )
    return tuple(reader(item, where) for item in value)


def each(value: Any, where: str, readers: Sequence[Reader]) -> tuple[Any, ...]:
    # A list with one reader for each entry.
    entries = row(value, where, anything, len(readers), len(readers))
    return tuple(reader(entry, where) for reader, entry in zip(readers, entries, strict=True))


def mapping(value: Any, where: str, reader: Reader) -> dict[str, Any]:
    need(isinstance(value, dict), f"{where}: needs an object")
    return {key: reader(item, where) for key, item in value.items()}


def record(value: Any, where: str, readers: dict[str, Reader]) -> dict[str, Any]:
    # An object with exactly these fields.
    need(
        isinstance(value, dict) and set(value) == set(readers),
        f"{where}: needs exactly the fields {', '.join(readers)}",
    )
    return {key: reader(value[key], f"{where}: {key}") for key, reader in readers.items()}


def per_axis(reader: Reader) -> Reader:
    # A list that is not empty, or null, for each axis.
    return partial(row, reader=partial(optional, reader=partial(row, reader=reader, least=1)))


COUNT = partial(integer, least=1)
INDICES, COUNTS = partial(row, reader=integer), partial(row, reader=COUNT)
PAIR = partial(each, readers=[integer, integer])
REAL, POSITIVE = partial(constant, least=-MODULUS), partial(constant, least=1 / MODULUS)
SHAPE, BOOLEAN = partial(COUNTS, least=1, most=6), partial(one_of, options=[False, True])
PROBE: dict[str, Reader] = {"indices": INDICES, "logits": partial(row, reader=partial(row, reader=number))}
INPUTS: dict[str, Reader] = {
    **{"file": text, "tensor": text, "sha256": anything, "about": text, "count": COUNT},
    "divide_by": partial(one_of, options=[None, 255]),
}
CERTIFICATE: dict[str, Reader] = {
    "format": partial(one_of, options=["lipcert-certificate-2"]),
    "norm": partial(one_of, options=list(NORMS)),
    "arithmetic": partial(one_of, options=["float64"]),
    "assumes": anything,  # compared with what the nodes need
    "input_shape": partial(COUNTS, least=1, most=4),
    "weights": text,
    "tensors": partial(mapping, reader=anything),
    "nodes": partial(row, reader=anything),  # ``OPS`` has their fields
    "lipschitz": constant,
    "inputs": partial(record, readers=INPUTS),
    "claims": partial(row, reader=partial(each, readers=[integer, integer, number])),
    "probe": partial(record, readers=PROBE),
    "joint": partial(row, reader=partial(row, reader=partial(row, reader=POSITIVE), least=1)),
}
TENSOR: dict[str, Reader] = {
    "dtype": partial(one_of, options=list(DTYPES)),
    "shape": partial(COUNTS, least=1, most=5),
    "data_offsets": PAIR,
}


# --- Files: sizes are compared with the file before anything is allocated ---


def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    need(len(dict(items)) == len(items), "JSON: a key occurs twice")
    return dict(items)


def refuse(literal: str) -> Any:
    raise Malformed(
        f"JSON: {literal[:30]!a}; real numbers are strings written by float.hex, integers have 18 digits at most"
    )


def parse(content: bytes, where: str) -> Any:
    whole = lambda t: int(t) if len(t) <= 18 else refuse(t)  # noqa: E731
    try:
        return json.loads(
            content.decode(), object_pairs_hook=unique, parse_constant=refuse, parse_float=refuse, parse_int=whole
        )
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{where}: not JSON ({type(error).__name__})") from None


def regular(path: Path) -> int:  # the size of a file, which must be a regular one
    need(path.is_file(), f"{path.name!a}: not a file that can be read")
    return path.stat().st_size


def read_tensors(folder: Path, name: str, budget: Budget) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, mapped, not loaded. They must fill the file without gap or overlap."""
    # A file of the folder itself, not reached through a separator, a parent or a link that leaves it.
    need(
        re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}", name) is not None,
        "weights and inputs: each needs the plain name of a file in the same folder",
    )
    path, size = folder / name, regular(folder / name)
    need(path.resolve().parent == folder.resolve(), f"{name} is a link out of the folder")
    need(size >= 8, f"{name}: too short")
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    length = int.from_bytes(raw[:8].tobytes(), "little")
    need(length <= size - 8, f"{name}: the header is longer than the file")
    budget.require(length, TEXT, f"{name}: the size of the header in bytes is")
    header, body = mapping(parse(raw[8 : 8 + length].tobytes(), name), name, anything), raw[8 + length :]
    mapping(header.pop("__metadata__", {}), f"{name}: metadata", text)
    entries, result, end = mapping(header, name, partial(record, readers=TENSOR)), {}, 0
    for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        (start, stop), shape, dtype = entry["data_offsets"], entry["shape"], np.dtype(DTYPES[entry["dtype"]])
        need(
            start == end and stop - start == math.prod(shape) * dtype.itemsize and stop <= len(body),
            f"{name}: the tensors overlap, leave gaps or exceed the file",
        )
        result[key], end = body[start:stop].view(dtype).reshape(shape), stop
    need(end == len(body), f"{name}: bytes after the last tensor")
    return result


def digest(tensor: NDArray[Any]) -> str:
    result = hashlib.sha256(f"{tensor.dtype.name}|{','.join(map(str, tensor.shape))}|".encode())
    result.update(tensor.reshape(-1).view(np.uint8).data)
    return result.hexdigest()


class Tensor:
    """A stored tensor, and its entries on demand, as one float64 array for all nodes."""

    used = False

    def __init__(self, name: str, stored: NDArray[Any]) -> None:
        self.label, self.stored = f"tensor {name[:40]!a}", stored

    @cached_property
    def values(self) -> Array:
        values = np.array(self.stored, dtype=np.float64)
        fine = np.isfinite(values) if self.stored.dtype != np.float64 else (values == 0) | within(np.abs(values))
        need(bool(fine.all()), f"{self.label}: entries must be finite, in float64 0 or within 2^-100 and 2^100")
        return values


@dataclass(frozen=True)
class Certificate:
    """What the three files say, read but not believed."""

    top: dict[str, Any]  # certificate.json
    weights: dict[str, NDArray[Any]]
    images: NDArray[Any]

    def inputs(self, rows: Sequence[int]) -> Array:
        chosen = self.images[np.array(rows)]
        if self.top["inputs"]["divide_by"]:
            chosen = chosen.astype(np.float32) / np.float32(255)
        return np.asarray(chosen, dtype=np.float64)


def read(path: Path, budget: Budget) -> Certificate:
    """Read the three files; nothing in them is verified yet."""
    budget.require(regular(path), TEXT, "certificate: its size in bytes is")
    content = parse(path.read_bytes(), "certificate")
    # The only field that may be missing.
    top = record({"joint": []} | content if isinstance(content, dict) else content, "certificate", CERTIFICATE)
    shape, source, claims, probe = (top[key] for key in ("input_shape", "inputs", "claims", "probe"))
    budget.numbers(shape, "input_shape")
    budget.require(len(top["nodes"]), NODES, "nodes: their number is")
    indices, count = [index for index, _, _ in claims], source["count"]
    need(indices == sorted(set(indices)), "claims: the indices must increase")
    need(all(radius > 0 for _, _, radius in claims), "claims: a radius is not positive")
    need(len(probe["indices"]) == len(probe["logits"]), "probe: needs a row for each index")
    need(all(i < count for i in (*indices, *probe["indices"])), f"claims and probe: there are {count} inputs")

    weights = read_tensors(path.parent, top["weights"], budget)
    need(set(top["tensors"]) == set(weights), "tensors: not those of the file")
    for name, tensor in weights.items():
        budget.require(tensor.size, ENTRIES, f"tensor {name[:40]!a}: its number of entries is")
        need(tensor.dtype != np.uint8, f"tensor {name[:40]!a}: has the wrong dtype")
    total = sum(tensor.size for tensor in weights.values())
    budget.require(total, TOTAL, "tensors: the number of all their entries is")
    data = read_tensors(path.parent, source["file"], budget)
    need(set(data) == {source["tensor"]}, "inputs: the file must hold that tensor alone")
    images = data[source["tensor"]]
    need(images.shape == (count, *shape), f"inputs: the tensor has shape {images.shape}, not {(count, *shape)}")
    need(images.dtype in (np.uint8, *([] if source["divide_by"] else [np.float32])), "inputs: wrong dtype")
    return Certificate(top, weights, images)


# --- Numbers with a direction ---


class Arithmetic(NamedTuple):
    """A working precision: u, how a stored float64 is rounded to it, and what underflow can do."""

    u: float
    casts: int  # roundings of stored float64 numbers to this precision, on the way to one result
    underflow: float  # at least what underflow adds to the error of one node
    flushed: float  # at least the root of a square that underflows

    def g(self, n: int) -> float:
        # nu/(1 − nu): n roundings multiply a term by 1 + θ, |θ| ≤ g(n).
        n += self.casts
        return n * self.u / (1 - n * self.u) * ROUND if n * self.u < 0.5 else math.inf


FLOAT64 = Arithmetic(U, 0, 2.0**-700, 2.0**-500)
FLOAT32 = Arithmetic(2.0**-24, 3, 2.0**-90, 2.0**-58)
g = FLOAT64.g


def above(value: Fraction | Decimal) -> float:
    """A float that is at least the value: the nearest or its successor."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if type(value)(nearest) >= value else math.nextafter(nearest, math.inf)


def root_above(value: Fraction) -> float:
    """The smallest float whose square is at least the value, which is 0 or far from underflow."""
    root = math.sqrt(value) * (1 - 4 * U)
    while Fraction(root) ** 2 < value:
        root = math.nextafter(root, math.inf)
    return root


def norms(rows: Array) -> Array:
    """‖row‖ (last axis), a few u too large: the squares are added in a tree, one rounding per level."""
    squares, depth = rows * rows, 0
    while (size := squares.shape[-1]) > 1:
        half = (size + 1) // 2
        squares[..., : size - half] += squares[..., half:]
        squares, depth = squares[..., :half], depth + 1
    return np.asarray(np.sqrt(squares[..., 0]) * (1 + (depth / 2 + 5) * U))  # (1 + depth)/2 + 4 roundings


def magnitude(rows: Array, norm: str) -> Array:
    """The norm of each row, rounded up."""
    if norm == "L2":
        return norms(rows)
    sizes = np.abs(rows)
    return np.asarray(sizes.max(axis=-1) if norm == "Linf" else sizes.sum(axis=-1) * (1 + g(rows.shape[-1] + 1)))


def of_ones(count: int, norm: str) -> float:
    """At least the norm of a vector of ones."""
    return {"L2": math.sqrt(count) * ROUND, "Linf": 1.0, "L1": float(count)}[norm]


@lru_cache(maxsize=64)
def circle(order: int) -> tuple[Array, Array]:
    """cos and sin of 2πj/order within u: integers of 160 bits, one Taylor series, rotations.

    The first angle errs by less than 2⁻¹⁴⁰, and each of at most 2¹⁴ rotations adds no more than that again.
    """
    one = 1 << 160
    angle = 2 * PI * one // (10**60 * order)
    c = s = 0
    for k, term in enumerate(itertools.accumulate(range(1, 90), lambda t, k: t * angle // (k * one), initial=one)):
        c, s = c + (term, 0, -term, 0)[k % 4], s + (0, term, 0, -term)[k % 4]
    x, y, cosines, sines = one, 0, [], []
    for _ in range(order):
        cosines.append(x / one)
        sines.append(y / one)
        x, y = (x * c - y * s) // one, (x * s + y * c) // one
    return np.array(cosines), np.array(sines)


# --- Norms of stored tensors. A kernel is (groups, n, c, *taps), a matrix is a kernel without taps ---


def flat_taps(kernel: Array) -> Array:
    return kernel.reshape(*kernel.shape[:3], -1)


def phases_shape(kernel: Shape, stride: Shape) -> Shape:
    # The shape of ``phases`` of a kernel of that shape.
    groups, n, c, *sides = kernel
    stride = tuple(map(min, stride, sides))  # a stride beyond the kernel only skips inputs
    return groups, n, c * math.prod(stride), *(-(-k // s) for k, s in zip(sides, stride, strict=True))


def phases(kernel: Array, stride: Shape) -> Array:
    """Stride s on c channels is stride 1 on the c·Πs channels of the polyphase components."""
    shape, steps = phases_shape(kernel.shape, stride), tuple(map(min, stride, kernel.shape[3:]))
    split, every = np.zeros((*kernel.shape[:3], *steps, *shape[3:])), (slice(None),) * 3
    for phase in np.ndindex(*steps):
        part = kernel[(*every, *(slice(first, None, step) for first, step in zip(phase, steps, strict=True)))]
        split[(*every, *phase, *map(slice, part.shape[3:]))] = part
    return split.reshape(shape)


def absolute_norm(kernel: Array) -> float:
    """‖ |K| ‖ over all inputs: a symbol with entries ≥ 0 is largest at frequency 0.

    Collatz–Wielandt: a matrix M ≥ 0 has λmax(MMᵀ) ≤ max_i (MMᵀx)_i/x_i for every x > 0. Any x will do; power
    iteration improves it until the bound is within 1% of a Rayleigh quotient, which λmax is at least.
    """
    matrix = np.abs(flat_taps(kernel)).sum(axis=3)
    x, best = np.ones((*matrix.shape[:2], 1)), math.inf
    for _ in range(60):
        y = matrix @ (matrix.swapaxes(1, 2) @ x)
        best = min(best, float((y / x).max()))
        if not 0 < best < math.inf or best <= 1.01 * float(((x * y).sum(axis=1) / (x * x).sum(axis=1)).max()):
            break
        x = y / np.maximum(y.max(axis=1, keepdims=True), 2.0**-900) + 2.0**-30
    return math.sqrt(best * (1 + g(sum(matrix.shape[1:]) + 2 * math.prod(kernel.shape[3:])))) * ROUND


def row_sums(kernel: Array, gamma: Array, witness: Array, stride: Shape) -> float:
    """ρ ≤ max_i γ_i Σ_j A_ij q_j/q_i, A_ij = Σ |C_ij[d]| over the lags d in the multiples of the stride.

    Γ^½GΓ^½ has λmax at most that of its modulus, which is similar to Γ|G|: Collatz–Wielandt with x = q.

    Rounding: a computed C_ij[d] = Σ k_i[r, u] k_j[r, u + d], of ``terms`` products, is off by at most
    g_terms Σ |k_i[r, u] k_j[r, u + d]|. The taps u and u + d belong to the same phase of the stride, and over all
    lags each pair of taps occurs once. So these errors add up to at most g_terms Σ_r a_ir a_jr, where r stands for
    a channel and a phase, a_ir = Σ_u |k_i[r, u]|: nothing for filters without a common channel, whatever q_j/q_i.
    """
    groups, n, _, *sides = kernel.shape
    kernel = kernel if gamma.all() else kernel * (gamma > 0).reshape(groups, n, 1, *[1] * len(sides))  # drops γ = 0
    total, zero = np.zeros((groups, n, n)), (0,) * len(sides)
    lags = itertools.product(*(range(-((k - 1) // s) * s, k, s) for k, s in zip(sides, stride, strict=True)))
    some = [lag for lag in lags if lag >= zero]  # C_ij[−d] = C_ji[d]
    for lag in some:
        axes, every = list(zip(sides, lag, strict=True)), [slice(None)] * 3
        first = kernel[(*every, *(slice(max(0, -d), k - max(0, d)) for k, d in axes))].reshape(groups, n, -1)
        second = kernel[(*every, *(slice(max(0, d), k + min(0, d)) for k, d in axes))].reshape(groups, n, -1)
        overlap = np.abs(first @ second.swapaxes(1, 2))
        total += overlap if lag == zero else overlap + overlap.swapaxes(1, 2)
    sizes = np.abs(flat_taps(phases(kernel, stride))).sum(axis=3)  # a_ir: at most as many roundings as taps
    column, terms = witness[..., None], math.prod(kernel.shape[2:])
    rows = total @ column + g(terms) * (sizes @ (sizes.swapaxes(1, 2) @ column))
    # On a path to an entry of ``rows`` are at most 2·lags + n roundings in the first term, and 2·taps + n + (the
    # number of r) + 1 in the second. ROUND makes up for the four that follow.
    roundings = n + max(2 * len(some), 2 * math.prod(sides) + sizes.shape[2])
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
    candidates = [goal - slack, *(guess * (1 + 2.0**-k) for k in (40, 30, 20, 10, 5, 2))]
    for r in sorted(value for value in candidates if guess < value):
        with contextlib.suppress(np.linalg.LinAlgError):
            shifted = r * np.eye(n) - gram
            factor = np.linalg.cholesky(shifted)
            rest = math.sqrt(square(shifted - factor @ factor.swapaxes(1, 2)))
            bound = r + g(m) * total + U * (r + total) + rest * (1 + 2 * U) + g(n) * square(factor) + 2.0**-900
            if bound * ROUND <= total:
                return bound * ROUND
    return total


def eigenvalue_work(batch: int, n: int, m: int) -> int:
    # Work of ``top_eigenvalue``: a Gram matrix, products with vectors, some Cholesky factors, and eigenvalues.
    small, large = sorted((n, m))
    eigenvalues = 12 * small if small <= 128 else 0
    return batch * (2**17 + small**2 * (large + 4 * small + eigenvalues + 2**10) + MOVE * small * large)


Grid = tuple[Shape, Shape, int, int, int]


def grids(shape: Shape, torus: Shape | None) -> Iterator[Grid]:
    """The grids that may prove the norm of a kernel of that shape, from coarse to fine; none if it is too large.

    Each is (counts, steps, order, fine, work): the frequencies (j₁·steps₁, …)/order for j < counts, and the work of
    bounding the symbol there. What lies between them is at most 2/fine of a circle away from one, or nothing if
    ``fine`` is 0: a circular image has its own frequencies alone, which are taken unless there are too many.
    """
    groups, n, c, *sides = shape
    taps = math.prod(sides)

    def grid(sizes: Sequence[int], steps: Sequence[int], order: int, fine: int) -> Grid:
        counts = (*sizes[:-1], sizes[-1] // 2 + 1)  # those of a real kernel come in conjugate pairs
        symbols = math.prod(counts) * (groups * n * c * (2 * taps + 16 * MOVE) + 2 * MOVE * taps)
        eigenvalues = eigenvalue_work(math.prod(counts) * groups, 2 * n, 2 * c)
        return counts, tuple(steps), order, fine, symbols + eigenvalues + ANGLE * max(order, fine)

    if torus is not None and math.lcm(*torus) <= 2**14 and math.prod(torus) * groups * min(n, c) * n * c <= 2**36:
        period = math.lcm(*torus)
        yield grid(torus, [period // size for size in torus], period, 0)
        return
    order = 2 ** max(2, (4 * max(sides) - 1).bit_length())  # at least four times the side of the kernel
    while order <= FINEST:
        # An axis with one tap needs one frequency.
        yield grid([order if k > 1 else 1 for k in sides], [1] * len(sides), order, 4 * order)
        order *= 2


def norm_work(shape: Shape, torus: Shape | None) -> int:
    # Work of ``norm_squared`` at least: without finer grids. If there is none, there is no proof.
    if math.prod(shape[3:]) == 1:
        return eigenvalue_work(*shape[:3])
    return next((work for *_, work in grids(shape, torus)), 0)


def row_sums_work(shape: Shape, stride: Shape) -> int:
    groups, n, c, *sides = shape
    lags = math.prod(2 * -(-k // s) - 1 for k, s in zip(sides, stride, strict=True)) // 2 + 1
    terms = c * math.prod(sides)
    return lags * groups * n * (n * terms + MOVE * (4 * n + 2 * terms))


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
    groups, n, c, *sides = kernel.shape
    spend, taps = (budget or Budget()).spend, math.prod(sides)
    spread = norms(np.abs(flat_taps(kernel)).sum(axis=3).reshape(-1)) * (1 + g(taps))
    blur = (1.5 * g(taps + 2) * (taps > 1) + 2 * U) * float(spread)  # rounding of products, of sines, of the kernel

    def proved(matrices: Array, shrink: float) -> float:
        hint = max(0.0, math.sqrt(goal * shrink) * (1 - 64 * U) - blur) ** 2
        return (math.sqrt(top_eigenvalue(matrices, hint)) + blur) ** 2 / shrink * ROUND

    if taps == 1:
        spend(norm_work(kernel.shape, torus))
        return proved(kernel.reshape(groups, n, c), 1.0) * 4.0**power
    best, positions = math.inf, np.indices(sides).reshape(len(sides), -1)
    for counts, steps, order, fine, work in grids(kernel.shape, torus):
        if best < math.inf and math.prod(counts) * groups * min(n, c) * n * c > 2**35:
            break
        spend(work)
        shrink, worst = 1.0, 0.0
        if fine:
            shrink = math.prod(float(circle(fine)[0][k - 1]) - 2 * U for k in sides) ** 2
        for part in chunks(math.prod(counts), max(1, ROOM // (16 * groups * n * c + 4 * taps))):
            indices = np.stack(np.unravel_index(np.arange(part.start, part.stop), counts), axis=1)
            angle = (indices * np.array(steps)) @ positions % order  # (part, taps), exact
            real, imaginary = (flat_taps(kernel) @ wave[angle].T for wave in circle(order))  # (groups, n, c, part)
            left, right = np.concatenate([real, imaginary], axis=1), np.concatenate([-imaginary, real], axis=1)
            matrix = np.concatenate([left, right], axis=2)  # [[Re, −Im], [Im, Re]]
            here = proved(np.ascontiguousarray(matrix.transpose(3, 0, 1, 2)).reshape(-1, 2 * n, 2 * c), shrink)
            worst = here if not here <= worst else worst
            if not worst <= best:
                break
        best = min(best, worst)
        if best <= goal or best * shrink > goal * (1 + 1e-6 if min(n, c) <= 64 else 1.5):  # no finer grid can help
            break
    return best * 4.0**power


def chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


# --- Nodes ---


class Node:
    """One node of the network: its shape, its cost, its constant, its rounding error and how it runs.

    The first pass, ``plan``, compares the fields with the shape of the input, sets that of the output and estimates
    the work. It reads no entry of a tensor, so that nothing is allocated whatever a file says. The second pass,
    ``prove``, returns a proved Lipschitz constant. ``run`` evaluates a batch in float64. The entries of a tensor
    are kept in ``Tensor``: what a node itself keeps does not grow with them.

    A node measures its inputs in ``norm_in`` and its output in ``norm_out``. All are in L2, or all in L∞, or those
    behind an input in L1 are in L1 up to the first node that makes them L∞.
    """

    run: Callable[..., Array]
    others = False  # whether it is proved in L∞ and L1, too
    assumed: str | None = None  # the elementary function that the platform must compute within 8 ulp
    # For one input: passes over the numbers it holds, and further work. Once: work on its tensors and the proof of
    # its constant, at least. Entries of its weight, which each batch may copy.
    moves, work, prepare, proof, entries = 4, 0, 0, 0, 0
    # e(Z) = g(roundings)·(slope·Z + offset) + underflow, where squares of so many numbers may underflow, too.
    roundings, slope, offset, squares = 0, 0.0, 0.0, 0.0
    # The constant, if it is known in the first pass; the proved one; Λ of docs/certificate.md.
    norm, proved, growth = 1.0, math.inf, Decimal(1)
    joint: Sequence[Joint] = ()  # of the last node

    def __init__(
        self,
        fields: dict[str, Any],
        where: str,
        shapes: Sequence[Shape],
        tensors: dict[str, Tensor],
        budget: Budget,
        norm: str,
    ) -> None:
        self.fields, self.where, self.tensors, self.budget = fields, where, tensors, budget
        # In which its inputs and its output are measured.
        self.norm_in = self.norm_out = norm
        self.op, self.name, self.inputs, self.claimed = (fields[key] for key in NODE)
        # What a change of each input adds to the output, and its Z to the error: a combination has weights.
        self.gains, self.mix = [self.claimed], [1.0]
        self.axis = fields.get("axis", 0)
        self.require(self.axis < len(shapes[0]), f"there is no axis {self.axis}")
        self.source = self.shape = self.meet(shapes)
        self.room = self.size = math.prod(self.source)  # room: the numbers it holds for one input
        self.plan()
        self.room = max(self.room, budget.numbers(self.shape, where))
        self.work += self.moves * MOVE * self.room

    def meet(self, shapes: Sequence[Shape]) -> Shape:  # the shape of the input, or of what several inputs make
        self.require(len(set(shapes)) == 1, "all inputs must have one shape")
        return shapes[0]

    def plan(self) -> None:
        """Compare the fields with the input, and set the shape and the work."""

    def prove(self) -> float:  # a Lipschitz constant; it also sets what ``error`` and ``run`` need
        return self.norm

    def grow(self, growths: Sequence[Decimal]) -> Decimal:  # Λ of the node from those of its inputs
        total = Decimal(0)
        for gain, growth in zip(self.gains, growths, strict=True):
            total = UP.fma(Decimal(gain), growth, total)
        return total

    def together(self, weights: Sequence[float], bounds: Array) -> Array:  # (inputs, batch) → (batch)
        # What bounds of the inputs make of the whole input.
        return np.asarray(np.array(weights) @ bounds * (1 + g(2 * len(bounds))))

    def error(self, z: Array, a: Arithmetic) -> Array:  # e(Z): of this node alone, for inputs of norm Z
        small = (a.underflow if self.roundings else 0.0) + a.flushed * self.squares
        return a.g(self.roundings) * (self.slope * z + self.offset) + small

    def require(self, condition: bool, message: str) -> None:
        need(condition, f"{self.where}: {message}")

    def tensor(self, key: str, wanted: Shape | None = None) -> Shape:
        # The shape of the tensor that a field names, unless that is null. It counts the work of converting it.
        name = self.fields.get(key)
        if name is None:
            return ()
        self.require(name in self.tensors, f"{key} is a tensor that does not exist")
        tensor = self.tensors[name]
        shape, tensor.used = tensor.stored.shape, True
        self.require(wanted in (None, shape), f"{key}: {tensor.label} has shape {shape}, needs {wanted}")
        self.prepare += 8 * MOVE * math.prod(shape)
        return shape

    def take(self, key: str, count: int = 0, default: float = 0.0) -> Array:  # null: ``count`` times the default
        name = self.fields[key]
        return np.broadcast_to(default, (count,)) if name is None else self.tensors[name].values

    def column(self, values: Array) -> Array:  # one number for each channel, shaped so that it broadcasts
        return values.reshape(-1, *[1] * (len(self.source) - 1))

    def lists(self, key: str) -> dict[int, Integers]:
        # The axes of the input that have a list, and these lists.
        values = self.fields[key]
        self.require(len(values) == len(self.source), f"{key} needs a list or null for each axis")
        return {axis: np.array(value) for axis, value in enumerate(values) if value is not None}

    def spread(self, axis: int = 0) -> float:  # at least the norm of so many ones as there are positions
        return of_ones(self.size // self.source[axis], self.norm_in)


class Rearrange(Node):
    """Reshape, transpose, reshape."""

    others = True

    def plan(self) -> None:
        split, order, self.shape = (self.fields[key] for key in ("split", "order", "shape"))
        self.require(sorted(order) == list(range(len(split))), "order must be a permutation")
        self.require(
            math.prod(split) == math.prod(self.shape) == self.size,
            f"split and shape must have the size of the input {self.source}",
        )

    def run(self, x: Array) -> Array:
        x = x.reshape(len(x), *self.fields["split"]).transpose(0, *(axis + 1 for axis in self.fields["order"]))
        return x.reshape(len(x), *self.shape)


class Select(Node):
    """Entries of the input, chosen axis by axis; the index −1 stands for a constant.

    Each axis is a matrix with at most one 1 in a row. Its norm is the root of how often the most frequent index
    occurs, and the norm of the whole, a Kronecker product, is the product of these. In L1 nothing has a root; in L∞
    a copy costs nothing.
    """

    others = True

    def plan(self) -> None:
        self.indices, shape, times, self.moves = self.lists("indices"), list(self.source), 1, 8
        for axis, index in self.indices.items():
            self.require(int(index.max()) < shape[axis], f"an index is not below {shape[axis]}")
            times *= int(np.unique(index[index >= 0], return_counts=True)[1].max(initial=0))
            shape[axis] = len(index)
        self.shape, plain = tuple(shape), {"Linf": min(times, 1), "L1": times}
        self.norm = float(plain[self.norm_in]) if self.norm_in in plain else root_above(Fraction(times))
        # Exact in float64, rounded in float32.
        self.offset = abs(self.fields["value"]) * of_ones(math.prod(shape), self.norm_in) * ROUND

    def run(self, x: Array) -> Array:
        every = [self.indices.get(axis, np.arange(size)) for axis, size in enumerate(self.source)]
        x = x[(slice(None), *np.ix_(*every))]  # type: ignore[arg-type]
        for axis, index in self.indices.items():
            np.moveaxis(x, axis + 1, 0)[index < 0] = self.fields["value"]
        return x


class GroupSort(Node):
    """Sort each group of neighbors along an axis."""

    others = True

    def plan(self) -> None:
        count, size, self.moves = self.source[self.axis], self.fields["size"], 16
        self.require(count % size == 0, f"{count} entries are not groups of {size}")
        self.split = (*self.source[: self.axis], count // size, size, *self.source[self.axis + 1 :])

    def run(self, x: Array) -> Array:
        y, axis = np.sort(x.reshape(len(x), *self.split), axis=self.axis + 2), self.axis + 2
        return (np.flip(y, axis) if self.fields["descending"] else y).reshape(x.shape)


class Normalize(Node):
    """(x − μ)/s, channel by channel."""

    others = True

    def plan(self) -> None:
        self.roundings, self.slope = 2, self.claimed
        for key in ("mean", "std"):
            self.tensor(key, self.source[:1])

    def prove(self) -> float:
        least = float(self.take("std").min())
        self.require(least > 0, "std must be positive")
        self.offset = self.claimed * float(magnitude(self.take("mean"), self.norm_in)) * self.spread() * ROUND
        return above(1 / Fraction(least))

    def run(self, x: Array) -> Array:
        return np.asarray((x - self.column(self.take("mean"))) / self.column(self.take("std")))


class BatchNorm(Node):
    """(x − μ)·w/√(v + ε) + b, channel by channel."""

    others = True

    def plan(self) -> None:
        # v + ε (1), its root (1.5), the quotient (1), two products (2), a difference and a sum (2), and spare.
        self.roundings, self.slope, self.moves = 12, self.claimed, 8
        for key in ("mean", "variance", "weight", "bias"):
            self.tensor(key, self.source[:1])
        self.prepare += EXACT * self.source[0]

    def parts(self) -> tuple[Array, Array, Array, Array]:  # mean, v + ε, weight and bias
        weight, bias = self.take("weight", self.source[0], 1.0), self.take("bias", self.source[0])
        return self.take("mean"), self.take("variance") + self.fields["eps"], weight, bias

    def prove(self) -> float:
        mean, shifted, weight, bias = self.parts()
        variance, factor = self.take("variance"), np.abs(weight) / np.sqrt(shifted) * ROUND
        self.require(bool((variance >= 0).all()), "the variance must not be negative")
        self.require(
            bool(within(shifted).all() and within(factor[weight != 0]).all()),
            "variance + eps and nonzero factors must lie within 2^-100 and 2^100",
        )
        terms = magnitude(np.abs(bias) + 2 * factor * np.abs(mean), self.norm_in)
        self.offset = 2 * float(terms) * self.spread() * ROUND
        # The largest factor is among those that are largest up to rounding.
        near, eps = factor >= factor.max() * (1 - 2.0**-40), Fraction(self.fields["eps"])
        rows = set(zip(weight[near].tolist(), variance[near].tolist(), strict=True))
        return root_above(max(Fraction(w) ** 2 / (Fraction(v) + eps) for w, v in rows))

    def run(self, x: Array) -> Array:
        mean, shifted, weight, bias = map(self.column, self.parts())
        return np.asarray((x - mean) * (weight / np.sqrt(shifted)) + bias)


class Prelu(Node):
    """x where x ≥ 0 and w·x elsewhere, with one w or one for each channel."""

    others = True

    def plan(self) -> None:
        self.roundings, self.slope = 1, self.claimed
        self.require(self.tensor("weight") in ((1,), self.source[:1]), "weight must be (1) or (channels)")

    def prove(self) -> float:
        return max(1.0, float(np.abs(self.take("weight")).max()))

    def run(self, x: Array) -> Array:
        return np.where(x < 0, self.column(self.take("weight")) * x, x)


class Windows(Node):
    """The maximum or the norm of each window: on each axis with a list, start, start + step, … below stop.

    It changes by at most the norm of the change in the window, and an entry belongs to so many windows.
    """

    def plan(self) -> None:
        shape, self.windows, self.most = list(self.source), dict[int, Integers](), 1  # most: p, entries of a window
        for axis, rows in self.lists("windows").items():
            start, stop, step = np.pad(rows, ((0, 0), (0, 3 - rows.shape[1])), constant_values=1).T
            self.require(bool((start < stop).all()), "a window is empty")
            last = stop - 1 - (stop - start - 1) % step
            self.require(bool((last < shape[axis]).all()), f"a window leaves an axis of size {shape[axis]}")
            step = np.where(start < last, step, 1)  # the step of a single entry may be huge, and no index needs it
            self.windows[axis], shape[axis] = np.stack((start, last, step)), len(rows)
            longest = int(((last - start) // step).max()) + 1
            gathered, self.most = self.budget.numbers((*shape, longest), self.where), self.most * longest
            self.room, self.prepare = max(self.room, gathered), self.prepare + 16 * MOVE * gathered
        self.require(bool(self.windows), "needs windows on at least one axis")
        self.shape, self.moves = tuple(shape), 4 + 8 * len(self.windows)
        # A maximum and an average are measured in L∞ if not in L2: an input in L1 is no larger there.
        self.others, self.norm_out = self.op != "l2_pool", "L2" if self.norm_in == "L2" else "Linf"
        if self.op == "l2_pool":  # an entry is in at most L² windows
            self.roundings, self.slope = self.most + 8, self.claimed
            self.squares = max(1.0, self.claimed) * math.sqrt(self.size) * ROUND

    def index(self, axis: int) -> Integers:
        """(windows, longest): the indices of each window. The size of the axis stands for none."""
        start, last, step = self.windows[axis][:, :, None]
        index = start + step * np.arange(int(((last - start) // step).max()) + 1)
        return np.where(index <= last, index, self.source[axis])

    def reduce(self, function: np.ufunc, x: Array, none: float) -> Array:
        for axis in self.windows:
            x = np.insert(x, x.shape[axis + 1], none, axis=axis + 1)
            x = function.reduce(np.take(x, self.index(axis), axis=axis + 1), axis=axis + 2)
        return x

    def prove(self) -> float:
        if self.norm_in != "L2":
            return 1.0
        shared = (np.bincount(self.index(axis).reshape(-1))[: self.source[axis]].max() for axis in self.windows)
        return root_above(Fraction(math.prod(map(int, shared))))

    def run(self, x: Array) -> Array:
        largest = self.op == "max_pool"
        return self.reduce(np.maximum, x, -math.inf) if largest else np.sqrt(self.reduce(np.add, x * x, 0.0))


class Pool(Windows):
    """The sum of each window times a factor, divided by an integer for each window.

    Each axis is a matrix A with A[i, k] = 1/divisor_i for k in window i. The norm of the whole, a Kronecker
    product, is the product of theirs. If the windows are disjoint, AAᵀ is diagonal. Otherwise the norm of A is
    proved, or, if A is large, ‖A‖² ≤ ‖A‖₁‖A‖∞: the largest column sum times the largest row sum.
    """

    def plan(self) -> None:
        super().plan()
        self.divisors, self.roundings, self.slope = self.lists("divisors"), self.most + 2, self.claimed
        shapes = {axis: (rows.shape[1], self.source[axis]) for axis, rows in self.windows.items()}
        fits = {axis: len(divisors) for axis, divisors in self.divisors.items()}
        self.require(
            fits == {axis: count for axis, (count, _) in shapes.items()}, "needs a divisor for each window"
        )
        product = math.prod(int(divisors.max()) for divisors in self.divisors.values())
        self.require(product <= 2**53, "the product of the divisors must not exceed 2^53")
        for axis in filter(self.overlap, self.windows):
            small = math.prod(shapes[axis]) <= POOL
            dense = math.prod(shapes[axis]) * (32 * MOVE + 16 * min(shapes[axis]))
            if self.norm_in != "L2":
                continue
            self.prepare += dense if small else 32 * MOVE * sum(shapes[axis])
            self.proof += eigenvalue_work(1, *shapes[axis]) if small else 0

    def overlap(self, axis: int) -> bool:
        start, last, _ = self.windows[axis][:, np.argsort(self.windows[axis][0])]
        return bool((last[:-1] >= start[1:]).any())

    def rows(self, axis: int) -> list[tuple[int, int, int]]:  # start, length and divisor of each window
        start, last, _ = self.windows[axis]
        return list(zip(start.tolist(), (last - start + 1).tolist(), self.divisors[axis].tolist(), strict=True))

    def sums(self, axis: int) -> Fraction:
        """The largest row sum times the largest column sum, the latter in units of which few make up each share."""
        unit = 1
        for divisor in set(self.divisors[axis].tolist()):
            # A multiple of all divisors, or vast: then each share is rounded up.
            unit = math.lcm(unit, divisor) if unit <= 2**200 else unit
        # changes[k]: what column k has more than column k − 1, from the windows that start or have ended there.
        changes = [0] * (self.source[axis] + 1)
        for start, length, divisor in self.rows(axis):
            changes[start] += -(-unit // divisor)
            changes[start + length] -= -(-unit // divisor)
        column = Fraction(max(itertools.accumulate(changes)), unit)
        return column * max(Fraction(n, d) for n, d in {(n, d) for _, n, d in self.rows(axis)})

    def prove(self) -> float:
        if self.norm_in != "L2":  # the largest sum of a row
            sums = (max(Fraction(n, d) for _, n, d in self.rows(axis)) for axis in self.divisors)
            return above(Fraction(self.fields["factor"]) * math.prod(sums))
        square, norm = Fraction(self.fields["factor"]) ** 2, 1.0
        for axis, divisors in self.divisors.items():
            if not self.overlap(axis):
                square *= max(Fraction(n, d**2) for n, d in {(n, d) for _, n, d in self.rows(axis)})
            elif len(divisors) * self.source[axis] > POOL:
                square *= self.sums(axis)
            else:
                matrix = np.zeros((1, len(divisors), self.source[axis] + 1))
                np.put_along_axis(matrix[0], self.index(axis), 1 / divisors[:, None], axis=1)
                matrix = np.ascontiguousarray(matrix[:, :, :-1])
                goal = float(np.linalg.norm(matrix[0], 2)) ** 2 * (1 + 2.0**-29)
                norm *= math.sqrt(norm_squared(matrix, goal, None, self.budget)) * ROUND
        return root_above(square) if norm == 1 else root_above(square) * norm * ROUND

    def run(self, x: Array) -> Array:
        divisor = np.ones(1)
        for axis, divisors in self.divisors.items():
            divisor = divisor * divisors.reshape(-1, *[1] * (len(self.source) - axis - 1))
        return np.asarray(self.reduce(np.add, x, 0.0) * self.fields["factor"] / divisor)


class Softmax(Node):
    """exp(x − max)/Σ exp(x − max) along an axis, or its logarithm x − max − log Σ exp(x − max)."""

    def plan(self) -> None:
        n, spread, self.assumed, self.moves = self.source[self.axis], self.spread(self.axis), self.op, 16
        root = math.sqrt(n) * ROUND
        self.norm, self.roundings, self.offset = 0.5, n + 24, (1 + root) * spread * ROUND
        if self.op == "log_softmax":
            self.norm, self.roundings, self.slope = root_above(Fraction(n)), n + 40, 4.0
            self.offset = (n + 4) * root * spread * ROUND

    def run(self, x: Array) -> Array:
        x = x - x.max(axis=self.axis + 1, keepdims=True)
        total = np.exp(x).sum(axis=self.axis + 1, keepdims=True)
        return np.asarray(np.exp(x) / total if self.op == "softmax" else x - np.log(total))


class Function(NamedTuple):
    """A function σ(x, *parameters), entry by entry. What is computed errs by g(roundings)·(L|x| + |σ(0)|)."""

    run: Callable[..., Any]
    roundings: int = 0
    lipschitz: Callable[..., float | Fraction] = lambda *p: 1
    at_zero: Callable[..., float] = lambda *p: 0.0  # at least |σ(0)|; if exact, what float32 rounds
    parameters: tuple[Reader, ...] = ()


def erfc(x: Array) -> Array:
    numbers: Any = np.ascontiguousarray(x).reshape(-1)
    return np.fromiter(map(math.erfc, memoryview(numbers)), np.float64, x.size).reshape(x.shape)


def expm1(x: Array) -> Array:
    return np.expm1(np.minimum(x, 0))


SMOOTH = 16  # 8 units in the last place, each of at most 2u; functions with more roundings are assumed
LOG2 = 0.6931471805599454  # this float is above log 2
SELU = 1.0507009873554805, 1.6732632423543772
FUNCTIONS = {
    "identity": Function(lambda x: x),
    "relu": Function(lambda x: np.maximum(x, 0)),
    "abs": Function(np.abs),
    "hardtanh": Function(
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        at_zero=lambda low, high: max(abs(low), abs(high)),
        parameters=(REAL, REAL),
    ),
    "maximum": Function(np.maximum, at_zero=abs, parameters=(REAL,)),
    "shift": Function(lambda x, c: x + c, 1, at_zero=abs, parameters=(REAL,)),
    "divide": Function(lambda x, d: x / d, 1, lambda d: 1 / Fraction(d), parameters=(POSITIVE,)),
    "scale": Function(lambda x, a: a * x, 1, abs, parameters=(REAL,)),
    "leaky_relu": Function(lambda x, a: np.where(x < 0, a * x, x), 1, lambda a: max(1, abs(a)), parameters=(REAL,)),
    "softshrink": Function(
        lambda x, a: np.where(x > a, x - a, np.where(x < -a, x + a, 0.0)), 1, parameters=(constant,)
    ),
    "softsign": Function(lambda x: x / (1 + np.abs(x)), 3),
    "hardsigmoid": Function(lambda x: np.clip(x + 3, 0, 6) / 6, 4, lambda: Fraction(1, 6), lambda: 0.5),
    "hardswish": Function(lambda x: x * np.clip(x + 3, 0, 6) / 6, 6, lambda: 1.5),
    "elu": Function(
        lambda x, a: np.where(x < 0, a * expm1(x), x), 17, lambda a: max(1, abs(a)), parameters=(REAL,)
    ),
    "celu": Function(lambda x, a: np.where(x < 0, a * expm1(x / a), x), 20, parameters=(POSITIVE,)),
    "selu": Function(
        lambda x: SELU[0] * np.where(x < 0, SELU[1] * expm1(x), x),
        20,
        lambda: Fraction(SELU[0]) * Fraction(SELU[1]),
    ),
    "tanh": Function(np.tanh, 17),
    "sigmoid": Function(lambda x: 1 / (1 + np.exp(-x)), 17, lambda: 0.25, lambda: 0.5),
    "softplus": Function(
        lambda x, b: np.logaddexp(b * x, 0) / b, 20, at_zero=lambda b: LOG2 / b * ROUND, parameters=(POSITIVE,)
    ),
    "logsigmoid": Function(lambda x: -np.logaddexp(-x, 0), 17, at_zero=lambda: LOG2),
    "gelu": Function(lambda x: x * (0.5 * erfc(-x * math.sqrt(0.5))), 20, lambda: 1.129),
    "silu": Function(lambda x: x / (1 + np.exp(-x)), 20, lambda: 1.0999),
    "mish": Function(lambda x: x * np.tanh(np.logaddexp(x, 0)), 20, lambda: 1.0885),
    "tanhshrink": Function(lambda x: x - np.tanh(x), 18),
}
# Of residual nodes, with slopes in [0, 1]: their parameters, and the roundings relative to σ(x) itself.
ACTIVATIONS: dict[str, tuple[tuple[float, ...], int]] = {
    **{"relu": ((), 0), "leaky_relu": ((0.01,), 1)},
    **{"elu": ((1.0,), SMOOTH), "softplus": ((1.0,), SMOOTH), "tanh": ((), SMOOTH), "sigmoid": ((), SMOOTH)},
}


class Scalar(Node):
    """A function of the table above, entry by entry."""

    others = True

    def plan(self) -> None:
        function, fields = FUNCTIONS[self.op], self.fields
        self.parameters = fields["parameters"] if "parameters" in fields else (fields["factor"],)
        self.require(self.op != "hardtanh" or list(self.parameters) == sorted(self.parameters), "needs low <= high")
        self.norm, self.roundings = above(Fraction(function.lipschitz(*self.parameters))), function.roundings
        self.slope = self.claimed if function.roundings else 0.0
        self.offset = function.at_zero(*self.parameters) * of_ones(self.size, self.norm_in) * ROUND
        if function.roundings > SMOOTH:
            self.assumed, self.moves = self.op, 32

    def run(self, x: Array) -> Array:
        return np.asarray(FUNCTIONS[self.op].run(x, *self.parameters))


class Combination(Node):
    """Σ α_k x_k with weights α_k ≥ 0."""

    others = True

    def plan(self) -> None:
        self.tensor("weights", (len(self.inputs),))
        self.room = max(self.room * (1 + len(set(self.inputs))), 4 * len(self.inputs))  # err and Z of each input
        self.work, self.prepare = len(self.inputs) * (4 * MOVE * self.size + 2**15), EXACT * len(self.inputs)
        self.roundings, self.slope = len(self.inputs) + 2, 1.0

    def prove(self) -> float:
        self.gains = self.mix = self.take("weights").tolist()
        self.require(min(self.mix) >= 0, "the weights must not be negative")
        return above(sum(map(Fraction, self.mix), Fraction(0)))

    def run(self, *values: Array) -> Array:
        return np.asarray(sum(weight * value for weight, value in zip(self.mix, values, strict=True)))


class Concat(Node):
    """The inputs one after the other along an axis: squares of norms add up."""

    def meet(self, shapes: Sequence[Shape]) -> Shape:
        others = {(*shape[: self.axis], 0, *shape[self.axis + 1 :]) for shape in shapes}
        fits = len(others) == len({len(shape) for shape in shapes}) == 1
        self.require(fits, "the inputs must have one shape but for the axis")
        self.require(self.fields["count"] == len(shapes), "count must be the number of inputs")
        (other,) = others
        return (*other[: self.axis], sum(shape[self.axis] for shape in shapes), *other[self.axis + 1 :])

    def plan(self) -> None:
        self.gains = self.mix = [1.0] * len(self.inputs)
        self.norm = root_above(Fraction(len(self.inputs)))
        self.room, self.work = max(2 * self.room, 4 * len(self.inputs)), len(self.inputs) * 2**15

    def grow(self, growths: Sequence[Decimal]) -> Decimal:
        total = Decimal(0)
        for growth in growths:
            total = UP.fma(growth, growth, total)
        return UP.next_plus(UP.sqrt(total))  # a root is rounded to nearest

    def together(self, weights: Sequence[float], bounds: Array) -> Array:
        # Divided by the largest, so that what underflows is less than a rounding of a sum of at least 1.
        most = bounds.max(axis=0)
        scale = np.where((most > 0) & (most < math.inf), most, 1.0)
        squares = ((bounds / scale) ** 2).sum(axis=0)
        return np.asarray(scale * np.sqrt(squares) * (1 + g(len(bounds) + 8)))

    def run(self, *values: Array) -> Array:
        return np.concatenate(values, axis=self.axis + 1)


# --- Nodes with a weight ---


class Convolution:
    """Wᵀ and its adjoint W, tap by tap: y[o] = Σ_t K[t] x[s·o + d·t − before], on as many axes as there are taps.

    A matrix has one tap: every axis but the first is a position.

    With s' = s/gcd(s, d) two taps t and t' read the same input only if t − t' is a multiple of s'. For the norm,
    stride and dilation are what stride s' alone is: see docs/certificate.md.
    """

    # Further sums on the way of a number; at least ‖T‖² and ‖|T|‖² of ``Waves``; its work on tensors.
    more, stretch, absolute, prepare = 0, 1.0, 1.0, 0

    def __init__(self, node: Node, image: Shape, weight: Shape) -> None:
        fields, (channels, *sizes), axes = node.fields, image, len(image) - 1
        ones, spatial = (1,) * axes, "stride" in fields
        steps, dilation = (fields.get(key, ones) for key in ("stride", "dilation"))
        pads, weight = fields.get("padding", ((0, 0),) * axes), weight if spatial else (*weight, *ones)
        node.require(
            len(weight) == 2 + axes and (0 < axes <= 3 or not spatial),
            f"weight {weight} on an input {image}; there are 1, 2 or 3 spatial axes",
        )
        node.require(
            len(steps) == len(dilation) == len(pads) == axes, f"stride, dilation and padding need {axes} entries"
        )
        groups, (n, c, *sides) = fields["groups"], weight
        node.require(
            n % groups == 0 and c * groups == channels, f"weight {weight} in {groups} groups on {channels} channels"
        )
        node.require(max(sides, default=1) <= KERNEL, f"kernels have sides of at most {KERNEL}")
        self.padded = tuple(size + sum(pad) for size, pad in zip(sizes, pads, strict=True))
        node.budget.numbers((channels, *self.padded), node.where)
        spans = [d * (k - 1) + 1 for k, d in zip(sides, dilation, strict=True)]
        node.require(all(map(operator.ge, self.padded, spans)), "the kernel is larger than the image")
        # With more padding a circular image would have more outputs than strides.
        rows = zip(pads, spans, sizes, steps, strict=True)
        fits = all(p[0] == p[1] <= size and 2 * p[0] < span and size % s == 0 for p, span, size, s in rows)
        self.circular = fields.get("padding_mode") == "circular"
        node.require(
            fits or not self.circular,
            "circular needs equal padding of at most d(k-1)/2, and a stride that divides the image",
        )
        rests = map(operator.sub, self.padded, spans)
        self.out = tuple(rest // s + 1 for rest, s in zip(rests, steps, strict=True))
        own = self.circular and max(dilation) == 1
        self.torus = tuple(size // s for size, s in zip(sizes, steps, strict=True)) if own else None
        self.image, self.hidden, self.kernel = image, (n, *self.out), (groups, n // groups, c, *sides)
        self.pads, self.steps, self.dilation = pads, steps, dilation
        self.stride = tuple(s // math.gcd(s, d) for s, d in zip(steps, dilation, strict=True))
        self.room = max(channels * math.prod(self.padded), node.budget.numbers(self.hidden, node.where))
        # For one input: multiply-adds, and numbers written besides.
        self.products = math.prod(self.out) * math.prod(weight)
        self.moved = math.prod(sides) * (math.prod(self.out) * (channels + n) + 512)

    def load(self, node: Node) -> None:
        self.weight = node.take("weight").reshape(self.kernel)

    def windows(self) -> Iterator[tuple[Array, tuple[Any, ...]]]:
        taps = np.ascontiguousarray(np.moveaxis(self.weight, (0, 1, 2), (-3, -2, -1)))  # for this batch: not kept
        for tap in np.ndindex(taps.shape[:-3]):
            starts = tuple(map(operator.mul, tap, self.dilation))
            rows = zip(starts, self.steps, self.out, strict=True)
            yield taps[tap], (..., *(slice(start, start + s * (size - 1) + 1, s) for start, s, size in rows))

    def forward(self, x: Array) -> Array:
        (groups, n, c), batch = self.kernel[:3], len(x)
        x = np.pad(x, [(0, 0), (0, 0), *self.pads], mode="wrap" if self.circular else "constant")
        # The batch stands beside the positions: each tap is one product of large matrices.
        x = x.swapaxes(0, 1).reshape(groups, c, batch, *self.padded)
        y = np.zeros((groups, n, batch * math.prod(self.out)))
        for tap, window in self.windows():
            y += tap @ x[window].reshape(groups, c, -1)
        return y.reshape(groups * n, batch, *self.out).swapaxes(0, 1)

    def adjoint(self, y: Array) -> Array:
        (groups, n, c), batch = self.kernel[:3], len(y)
        x, y = np.zeros((groups, c, batch, *self.padded)), y.swapaxes(0, 1).reshape(groups, n, -1)
        for tap, window in self.windows():
            x[window] += (tap.swapaxes(1, 2) @ y).reshape(groups, c, batch, *self.out)
        for axis, (before, after) in enumerate(self.pads):
            size, line = self.image[1 + axis], np.moveaxis(x, 3 + axis, 0)
            if self.circular:  # what fell into the padding belongs to the other side
                line[size : size + before] += line[:before]
                line[before : before + after] += line[before + size :]
            x = np.moveaxis(line[before : before + size], 0, 3 + axis)
        return x.reshape(groups * c, batch, *self.image[1:]).swapaxes(0, 1)


class Waves:
    """Wᵀ = TᵀBT and its adjoint W: T is x ↦ RxCᵀ on each channel, B has a block for each two rows of R and of C."""

    stride: Shape = ()
    torus = None
    circular = True

    def __init__(self, node: Node, image: Shape, weight: Shape) -> None:
        waves = [node.tensor(key) for key in ("rows", "columns")]
        node.require(
            len(image) == len(weight) == 3 and all(len(shape) == 2 for shape in waves),
            "needs an image, matrices of rows and columns, and a weight (hw, 4n, 4m)",
        )
        (h2, high), (w2, wide) = waves
        node.require(
            (high, wide) == image[1:] and h2 % 2 == w2 % 2 == 0,
            "rows and columns must be of this image, and an even number of them",
        )
        node.require(max(h2, high, w2, wide) <= WAVES, f"at most {WAVES} rows and columns")
        node.require(
            weight[0] == h2 * w2 // 4 and weight[1] % 4 == 0 and weight[2] == 4 * image[0],
            f"weight {weight} on an image {image}",
        )
        n = weight[1] // 4
        self.image, self.kernel, self.hidden, self.more = image, weight, (n, high, wide), h2 + high + w2 + wide
        self.room = node.budget.numbers((max(image[0], n), max(h2, high), max(w2, wide)), node.where)
        self.products = (image[0] + n) * h2 * wide * (high + w2) + math.prod(weight)
        self.moved, self.prepare = 6 * self.room, sum(eigenvalue_work(1, *shape) for shape in waves)

    def load(self, node: Node) -> None:
        self.weight, self.waves = node.take("weight"), [node.take(key) for key in ("rows", "columns")]
        largest = max(float(np.abs(wave).max()) for wave in self.waves)
        node.require(largest <= 1, "rows and columns have entries above 1")
        self.stretch = math.prod(top_eigenvalue(wave[None], 1.0) for wave in self.waves) * ROUND
        self.absolute = math.prod(absolute_norm(wave[None]) ** 2 for wave in self.waves) * ROUND
        node.require(
            1 / MODULUS <= self.stretch <= MODULUS, "rows and columns must have a norm within 2^-50 and 2^50"
        )

    def forward(self, x: Array, adjoint: bool = False) -> Array:  # (batch, m, H, W) → (batch, n, H, W)
        blocks, (rows, columns) = self.weight.swapaxes(1, 2) if adjoint else self.weight, self.waves
        batch, c, high, wide = x.shape
        h, w, n = len(rows) // 2, len(columns) // 2, blocks.shape[1] // 4
        x = rows @ x.transpose(2, 3, 1, 0).reshape(high, -1)
        x = (columns @ x.reshape(2 * h, wide, -1)).reshape(h, 2, w, 2, -1).transpose(0, 2, 1, 3, 4)
        y = (blocks @ x.reshape(h * w, 4 * c, batch)).reshape(h, w, 2, 2, -1).transpose(0, 2, 1, 3, 4)
        y = rows.T @ (columns.T @ y.reshape(2 * h, 2 * w, -1)).reshape(2 * h, -1)
        return np.asarray(y.reshape(high, wide, n, batch).transpose(3, 2, 0, 1))

    def adjoint(self, y: Array) -> Array:
        return self.forward(y, adjoint=True)


class Affine(Node):
    """Wᵀx + b along an axis, where Wᵀ is a matrix, a convolution or a circular operator.

    If there is a ``size``, it is Wx + b with the convolution Wᵀ on images of that size.
    """

    products = 1  # with Wᵀ or W

    def plan(self) -> None:
        weight, axis, self.transposed = self.tensor("weight"), self.axis, "size" in self.fields
        image, self.entries = (self.source[axis], *self.source[:axis], *self.source[axis + 1 :]), math.prod(weight)
        if self.transposed:
            self.require(len(self.fields["size"]) == len(image) - 1, f"size needs {len(image) - 1} entries")
            image = (math.prod(weight[1:2]) * self.fields["groups"], *self.fields["size"])
            self.budget.numbers(image, self.where)
        self.map = (Waves if "rows" in self.fields else Convolution)(self, image, weight)
        self.others = self.op in ("linear", "conv")
        self.norm_out = "L2" if self.norm_in == "L2" else "Linf"
        self.require(
            not self.transposed or self.map.hidden == self.source,
            f"the convolution gives {self.map.hidden}, not the shape of the input",
        )
        # Where the bias is added, with the channels first.
        self.hidden = self.map.image if self.transposed else self.map.hidden
        n, *out = self.hidden
        self.shape = (*out[:axis], n, *out[axis:])
        groups, rows, columns, *sides = split = phases_shape(self.map.kernel, self.map.stride)
        largest = groups * min(rows, columns) ** 2 if math.prod(sides) == 1 else 4 * groups * rows * columns
        entries = max(math.prod(split), largest)
        self.budget.require(entries, ENTRIES, f"{self.where}: the number of entries of a matrix in its proof is")
        self.tensor("bias", (n,))
        self.prepare += 32 * MOVE * math.prod(split) + self.map.prepare
        self.proof, self.room, self.moves = norm_work(split, self.map.torus), self.map.room, 8
        if self.norm_in != "L2":
            self.proof = 0
        # An elementary function takes as long as eight moves.
        once = self.map.products + MOVE * self.map.moved
        self.work = self.products * once + 16 * MOVE * math.prod(self.map.hidden)

    def load(self) -> None:  # fans: the lengths of the sums of Wᵀ and W
        self.map.load(self)
        area, self.bias = math.prod(self.map.kernel[3:]), self.take("bias", self.hidden[0])
        self.fans = [self.map.kernel[axis] * area + self.map.more for axis in (2, 1)]

    def prove(self) -> float:
        self.load()
        if self.norm_in != "L2":
            # Into L∞: the largest sum of |v_ij| in a row, or from L1 the largest |v_ij|. Around a circular image
            # several taps may add up in one v_ij, at most to the sum of the row.
            rows = self.map.weight.reshape(-1, math.prod(self.map.kernel[2:]))
            single = self.norm_in == "L1" and not self.map.circular
            self.slope = float(magnitude(rows, "Linf" if single else "L1").max())  # |V| has the same norm
            self.roundings, self.offset = self.fans[0] + 1, float(np.abs(self.bias).max())
            return self.slope
        split, stretch = phases(self.map.weight, self.map.stride), self.map.stretch
        norm = math.sqrt(norm_squared(split, (self.claimed / stretch) ** 2, self.map.torus, self.budget))
        self.roundings = self.fans[self.transposed] + 1
        self.slope = absolute_norm(split) * self.map.absolute * ROUND
        self.offset = float(norms(self.bias)) * math.sqrt(math.prod(self.hidden[1:])) * ROUND
        norm = norm if stretch == 1 else norm * stretch * ROUND
        return math.nextafter(norm, math.inf) if norm else 0.0

    def run(self, x: Array) -> Array:
        apply = self.map.adjoint if self.transposed else self.map.forward
        return np.moveaxis(apply(np.moveaxis(x, self.axis + 1, 1)) + self.column(self.bias), 1, self.axis + 1)


class Residual(Affine):
    """x − W(2γ∘σ(Wᵀx + b)), with constant max(1, 2ρ − 1) for ρ = λmax(WΓWᵀ)."""

    products = 2

    def plan(self) -> None:
        super().plan()
        self.shape, activation, n = self.source, self.fields["activation"], self.hidden[0]
        self.parameters, self.sigma = ACTIVATIONS[activation]
        self.function, self.assumed = FUNCTIONS[activation], activation if self.sigma == SMOOTH else None
        self.witness = self.fields.get("witness")
        for key in ("gamma", "witness"):
            self.tensor(key, (n,))
        self.require(
            self.witness is None or self.tensors[self.witness].stored.dtype == np.float64,
            "the witness must be float64",
        )
        # Row sums need the overlaps of all pairs of filters in one matrix.
        self.by_rows = self.witness is not None and n * self.map.kernel[1] <= ENTRIES
        if self.by_rows:
            self.proof = row_sums_work(self.map.kernel, self.map.stride)

    def prove(self) -> float:
        self.load()
        kernel, stride, torus, stretch = self.map.weight, self.map.stride, self.map.torus, self.map.stretch
        self.gamma, heads, goal, rho = self.take("gamma"), kernel.shape[:2], (1 + self.claimed) / 2, math.inf
        self.require(bool((self.gamma >= 0).all()), "gamma must not be negative")
        root = np.sqrt(self.gamma) * (1 + 2.0**-51)  # at least √γ
        scale = np.tile(root, (len(kernel), 4)) if isinstance(self.map, Waves) else root.reshape(heads)
        split = phases(kernel * scale.reshape(*heads, *[1] * (kernel.ndim - 2)), stride)  # within u in each entry
        self.require(self.witness is None or bool((self.take("witness") > 0).all()), "the witness must be positive")
        if self.by_rows:
            self.budget.spend(row_sums_work(kernel.shape, stride))
            rho = row_sums(kernel, self.gamma.reshape(heads), self.take("witness").reshape(heads), stride)
        # Inputs that one tap reads, the same for all filters: their part of the Gram matrix, a sum over inputs, is
        # the same at every frequency.
        single = (((flat_taps(split) != 0).any(axis=1)).sum(axis=2) <= 1).all(axis=0)
        if not rho <= goal and torus is None and single.any() and math.prod(kernel.shape[3:]) > 1:
            still = norm_squared(flat_taps(split)[:, :, single].sum(axis=3), goal, None, self.budget)
            moving, left = split[:, :, ~single], max(goal - still, 0.0)
            rest = norm_squared(moving, left, None, self.budget) if moving.size else 0.0
            rho = min(rho, (still + rest) * ROUND)
        if not rho <= goal:
            square = norm_squared(split, goal / stretch**2, torus, self.budget)
            rho = min(rho, square if stretch == 1 else square * stretch**2 * ROUND)
        self.kappa, self.root = absolute_norm(split) * self.map.absolute * ROUND, math.sqrt(rho) * ROUND
        spread = math.sqrt(math.prod(self.hidden[1:])) * ROUND
        self.beta = float(norms(root * self.bias)) * spread
        self.start = self.function.at_zero(*self.parameters) * float(norms(root)) * spread * ROUND
        return above(max(Fraction(1), 2 * Fraction(rho) - 1)) if math.isfinite(rho) else math.inf

    def error(self, z: Array, a: Arithmetic) -> Array:
        first = a.g(self.fans[0] + 1) * (self.kappa * z + self.beta)
        v = self.root * z + self.beta + first + self.start
        # σ and its product with 2γ are rounded. ReLU is exact: one rounding, and the casts.
        rounded, most = (1 + a.casts) * a.u, 1 + a.u
        if self.sigma:
            rounded, most = a.g(1 + self.sigma), 1 + a.g(1 + self.sigma)
        inner = 2 * (1 + a.u) * self.root * (first + rounded * v)
        return inner + a.g(self.fans[1] + 3) * (z + 2 * most * self.kappa * v) + a.underflow

    def run(self, x: Array) -> Array:
        hidden = self.map.forward(np.moveaxis(x, self.axis + 1, 1)) + self.column(self.bias)
        hidden = self.function.run(hidden, *self.parameters) * self.column(2 * self.gamma)
        return np.asarray(x - np.moveaxis(self.map.adjoint(hidden), 1, self.axis + 1))


NODE: dict[str, Reader] = {"op": text, "name": text, "inputs": partial(row, reader=text), "lipschitz": constant}
MAYBE = partial(optional, reader=text)  # the name of a tensor, or null
DENSE: dict[str, Reader] = {"weight": text, "bias": MAYBE, "axis": integer, "groups": COUNT}
CONV: dict[str, Reader] = {
    **{"weight": text, "bias": MAYBE, "stride": COUNTS, "dilation": COUNTS, "groups": COUNT},
    "padding": partial(row, reader=PAIR),
}
MODE: dict[str, Reader] = {"padding_mode": partial(one_of, options=["zeros", "circular"])}
CIRCULAR: dict[str, Reader] = {"rows": text, "columns": text, "weight": text, "bias": MAYBE}
RESIDUAL: dict[str, Reader] = {"gamma": text, "activation": partial(one_of, options=list(ACTIVATIONS))}
WITNESS: dict[str, Reader] = {"witness": MAYBE}
STEPS = partial(each, readers=[integer, integer, COUNT])
OPS: dict[str, tuple[type[Node], dict[str, Reader]]] = {
    **{op: (Scalar, {"parameters": partial(each, readers=f.parameters)}) for op, f in FUNCTIONS.items()},
    "scale": (Scalar, {"factor": REAL}),
    "linear": (Affine, DENSE),
    "conv": (Affine, CONV | MODE),
    "conv_transpose": (Affine, CONV | {"size": COUNTS}),
    "circular": (Affine, CIRCULAR),
    "residual_linear": (Residual, DENSE | RESIDUAL | WITNESS),
    "residual_conv": (Residual, CONV | MODE | RESIDUAL | WITNESS),
    "residual_circular": (Residual, CIRCULAR | RESIDUAL),
    "rearrange": (Rearrange, {"split": partial(COUNTS, least=1, most=16), "order": INDICES, "shape": SHAPE}),
    "select": (Select, {"indices": per_axis(partial(integer, least=-1)), "value": REAL}),
    "group_sort": (GroupSort, {"size": COUNT, "axis": integer, "descending": BOOLEAN}),
    "normalize": (Normalize, {"mean": text, "std": text}),
    "batch_norm": (BatchNorm, {"mean": text, "variance": text, "weight": MAYBE, "bias": MAYBE, "eps": constant}),
    "prelu": (Prelu, {"weight": text}),
    "pool": (Pool, {"windows": per_axis(PAIR), "divisors": per_axis(COUNT), "factor": POSITIVE}),
    "max_pool": (Windows, {"windows": per_axis(STEPS)}),
    "l2_pool": (Windows, {"windows": per_axis(STEPS)}),
    "softmax": (Softmax, {"axis": integer}),
    "log_softmax": (Softmax, {"axis": integer}),
    "combination": (Combination, {"weights": text}),
    "concat": (Concat, {"axis": integer, "count": COUNT}),
}


# --- The graph and the radii ---


def plan_node(
    entry: Any,
    i: int,
    shapes: dict[str, Shape],
    tensors: dict[str, Tensor],
    budget: Budget,
    measured: dict[str, str],
) -> Node:
    """One entry of ``nodes``, first pass; ``shapes`` are those of the input and of the nodes before it.

    ``measured`` are their norms.
    """
    op = text(entry.get("op") if isinstance(entry, dict) else None, f"node {i}: op")
    need(op in OPS, f"node {i}: unknown op {op[:30]!a}")
    (kind, readers), where = OPS[op], f"node {i} ({op})"
    fields = record(entry, where, NODE | readers)
    name, inputs = fields["name"], fields["inputs"]
    need(name != "" and name not in shapes, f"{where}: needs a name of its own")
    need(
        all(source in shapes for source in inputs),
        f"{where}: its inputs must be the input of the network or nodes before it",
    )
    several = op in ("combination", "concat")
    need(len(inputs) == 1 or (several and len(inputs) > 1), f"{where}: has {len(inputs)} inputs")
    met = {measured[source] for source in inputs}  # L1 and L∞ meet in L∞, which is at most L1
    norm = met.pop() if len(met) == 1 else "Linf"
    return kind(fields, where, [shapes[source] for source in inputs], tensors, budget, norm)


def plan_all(c: Certificate, budget: Budget) -> list[Node]:
    """All nodes, first pass."""
    nodes: list[Node] = []
    shapes, tensors = {"input": c.top["input_shape"]}, {name: Tensor(name, t) for name, t in c.weights.items()}
    measured = {"input": c.top["norm"]}
    for i, entry in enumerate(c.top["nodes"]):
        nodes.append(plan_node(entry, i, shapes, tensors, budget, measured))
        shapes[nodes[-1].name], measured[nodes[-1].name] = nodes[-1].shape, nodes[-1].norm_out
    need(len(nodes) > 0 and len(nodes[-1].shape) == 1, "nodes: must end in a vector of logits")
    need(not c.top["joint"] or c.top["norm"] == "L2", "joint: these constants are about the L2 norm")
    nodes[-1].joint = [Joint(multipliers, nodes, budget) for multipliers in c.top["joint"]]
    outputs, used = nodes[-1].shape[0], {source for node in nodes for source in node.inputs}
    need(used == set(shapes) - {nodes[-1].name}, "nodes: some are used by no other node")
    need(all(tensor.used for tensor in tensors.values()), "tensors: some are used by no node")
    need(
        all(len(logits) == outputs for logits in c.top["probe"]["logits"]),
        f"probe: needs {outputs} logits in each row",
    )
    need(all(label < max(2, outputs) for _, label, _ in c.top["claims"]), "claims: a label is no class")
    expected = sorted({f"{node.assumed} within 8 ulp" for node in nodes if node.assumed})
    need(c.top["assumes"] == expected, f"assumes: must be {expected} for these nodes")
    budget.require(peak(nodes), ROOM, "nodes: the number of values that are held for one input is")
    return nodes


def last_uses(nodes: Sequence[Node]) -> dict[str, int]:
    # The last node that reads each value: it is not kept any longer.
    return {source: i for i, node in enumerate(nodes) for source in node.inputs}


def peak(nodes: Sequence[Node]) -> int:
    """The most numbers that are held for one input at a time."""
    sizes = {"input": math.prod(nodes[0].source)}
    last, held, most = last_uses(nodes), sizes["input"], 0
    for i, node in enumerate(nodes):
        own = {source: sizes[source] for source in node.inputs}
        most = max(most, held - sum(own.values()) + node.room)
        sizes[node.name] = math.prod(node.shape)
        held += sizes[node.name] - sum(size for source, size in own.items() if last[source] == i)
    return most


def batch_size(nodes: Sequence[Node]) -> int:
    return max(1, min(1024, ROOM // peak(nodes)))


def other_work(c: Certificate, nodes: Sequence[Node]) -> int:
    """Everything but the proofs: hashes, reading, forward passes and margins."""
    entries, size, outputs = sum(t.size for t in c.weights.values()), batch_size(nodes), nodes[-1].shape[0]
    work = HASH * (c.images.nbytes + sum(t.nbytes for t in c.weights.values())) + 8 * MOVE * entries
    claims, inputs = len(c.top["claims"]), len(c.top["claims"]) + len(c.top["probe"]["indices"])
    batches = -(-claims // size) - (-len(c.top["probe"]["indices"]) // size)
    work += inputs * (sum(node.work for node in nodes) + 4 * MOVE * math.prod(c.top["input_shape"]))
    work += batches * sum(CALL + MOVE * node.entries for node in nodes)
    work += claims * (CALL + 16 * MOVE * outputs)
    # Distances of the rows of the head from that of each label, kept as long as there is room for them.
    labels = len({label for _, label, _ in c.top["claims"]})
    return work + 4 * MOVE * nodes[-1].entries * (labels if labels * outputs <= ROOM else claims)


# The smallest slopes that are not 0.
LOWEST: dict[str, Callable[..., float]] = {
    **{
        "identity": lambda: 1.0,
        "shift": lambda c: 1.0,
        "divide": lambda d: math.nextafter(1 / d, 0.0),
        "abs": lambda: -1.0,
        "leaky_relu": lambda a: min(1.0, a),
        "elu": lambda a: min(0.0, a),
    },
    **{"hardswish": lambda: -0.5, "gelu": lambda: -0.129, "silu": lambda: -0.0999, "mish": lambda: -0.1126},
}


def frobenius(a: Array) -> float:
    """At least the Frobenius norm; squares may underflow."""
    return math.sqrt(float(np.einsum("ij,ij->", a, a))) * (1 + g(a.size)) * ROUND + 1 / HUGE


def gram(a: Array) -> tuple[Array, float]:
    """aaᵀ, made symmetric, and a bound of its error in norm."""
    product = a @ a.T
    return (product + product.T) / 2, (g(a.shape[1] + 2) * frobenius(a) ** 2 + FLOAT64.underflow) * ROUND


class Joint:
    """Constants of the differences of two logits, with one diagonal D for each activation of the last nodes.

    These are linear, activation, …, linear. P = WWᵀ behind the first weight; behind an activation with slopes in
    [α, β] and a weight W it is W(m²D(D − P)⁻¹D − αβD)Wᵀ, m = (α + β)/2, for any D ≻ P: "Joint constants" in
    docs/certificate.md. What is kept is P ⪯ matrix + excess·I.
    """

    def __init__(self, multipliers: Sequence[Sequence[float]], nodes: Sequence[Node], budget: Budget) -> None:
        count = 2 * len(multipliers) + 1
        self.nodes, self.multipliers = nodes[-count:], multipliers
        need(len(self.nodes) == count, f"joint: needs the last {count} nodes")
        self.work = 0
        for i, node in enumerate(self.nodes):
            linear = node.op == "linear" and len(node.source) == 1 and node.fields["groups"] == 1
            good = linear if i % 2 == 0 else node.op in FUNCTIONS and node.op != "scale"
            need(good and (i == 0 or node.inputs == (self.nodes[i - 1].name,)), f"joint: {node.where} does not fit")
            entries = max(node.source[0], node.shape[0]) ** 2
            budget.require(entries, ENTRIES, f"joint: {node.where}: the number of entries of a matrix is")
            self.work += 16 * entries * math.isqrt(entries) + 64 * MOVE * entries + 2 * CALL
        fits = all(node.shape == (len(d),) for d, node in zip(multipliers, self.nodes[1::2], strict=True))
        need(fits, "joint: needs a multiplier for each entry of an activation")

    def pairs(self, before: float) -> Array:
        """K_ij with what comes before the first weight, ∞ where nothing is proved; K of the only logit."""
        first, *others = (node.map.weight[0] for node in self.nodes[::2] if isinstance(node, Affine))
        matrix, excess = gram(first)
        for weight, node, d in zip(others, self.nodes[1::2], self.multipliers, strict=True):
            assert isinstance(node, Scalar)
            low, high = LOWEST[node.op](*node.parameters) if node.op in LOWEST else 0.0, node.norm
            matrix, excess = self.step(matrix, excess, np.array(d), low, high, weight)
        diagonal = matrix.diagonal()
        squares = matrix if len(matrix) == 1 else np.maximum(diagonal[:, None] + diagonal - 2 * matrix, 0)
        squares = squares + 2 * excess + 16 * U * np.abs(matrix).max()
        constants = np.sqrt(squares * ROUND) * ROUND * before * ROUND
        return np.where(np.isfinite(constants), constants, math.inf)

    @staticmethod
    def step(matrix: Array, excess: float, d: Array, low: float, high: float, weight: Array) -> tuple[Array, float]:
        """The next matrix and its excess, which is infinite where nothing is proved."""
        n, nothing = len(matrix), (np.zeros((len(weight), len(weight))), math.inf)
        # D − P ⪰ FFᵀ + room·I: F is multiplied out, and what it misses is off by its rounding.
        gap = np.diag(d) - matrix
        shift = excess + 2.0**-28 * float(gap.diagonal().max())
        gap[np.arange(n), np.arange(n)] -= shift
        try:
            factor: Array = np.asarray(np.linalg.cholesky(gap), np.float64)
        except np.linalg.LinAlgError:
            return nothing
        product, lost = gram(factor)
        lost += frobenius(gap - product) + 4 * U * (float(d.max()) + frobenius(matrix) + shift)
        room = math.nextafter(shift - (excess + lost) * ROUND, -math.inf)
        if not 0 < room < math.inf:
            return nothing
        # With any Y and N = m·DWᵀ − FY: m²WD(D − P)⁻¹DWᵀ ⪯ (1 + t)YᵀY + (1 + 1/t)‖N‖²/room·I.
        target = (abs(low + high) / 2 * ROUND * d)[:, None] * weight.T
        y: Array = np.asarray(np.linalg.solve(factor, target), np.float64)
        missed = (
            frobenius(target - factor @ y) + g(n) * frobenius(factor) * frobenius(y) + 4 * U * frobenius(target)
        )
        missed = (missed + FLOAT64.underflow) * ROUND
        t = min(1.0, max(2.0**-50, missed / math.sqrt(room) / max(frobenius(y), 2.0**-500)))
        product, lost = gram(y.T)
        result = (1 + t) * product
        excess = (1 + t) * lost + (1 + 1 / t) * missed**2 / room + 4 * U * frobenius(result)
        if low * high != 0:  # − αβ WDWᵀ; the root and the product with it are two roundings
            halves = np.sqrt(d) * weight
            product, lost = gram(halves)
            change = -low * high * product
            excess += abs(low * high) * (lost + 8 * U * frobenius(halves) ** 2) + 8 * U * frobenius(change)
            result = result + change
        return result, (excess + 4 * U * frobenius(result) + FLOAT64.underflow) * ROUND


def prove_all(nodes: Sequence[Node], budget: Budget) -> None:
    """All nodes, second pass, and Λ of docs/certificate.md."""
    growths = {"input": Decimal(1)}
    for node in nodes:
        budget.spend(node.prepare)
        known = node.others or node.norm_in == "L2"
        node.proved = node.prove() if known else math.inf
        node.growth = node.grow([growths[source] for source in node.inputs])
        growths[node.name] = node.growth


def forward(nodes: Sequence[Node], x: Array, radius: Array, a: Arithmetic, norm: str) -> tuple[Array, Array, Array]:
    """f(x) in float64, err and Z after the last node: see "Radii" in docs/certificate.md."""

    def state(value: Array, err: Array, growth: Decimal, norm: str) -> tuple[Array, Array, Array]:
        flat = value.reshape(len(value), -1)
        if norm == "L2":
            size = (
                np.sqrt(np.einsum("bi,bi->b", flat, flat)) * (1 + g(flat.shape[1])) + 1 / HUGE
            )  # squares underflow
        else:
            size = magnitude(flat, norm)
        z = (size + above(growth) * radius * ROUND + 2 * err) * ROUND
        return value, err, np.where(z <= HUGE, z, math.inf)

    last, end, states = last_uses(nodes), "input", {"input": state(x, np.zeros(len(x)), Decimal(1), norm)}
    for i, node in enumerate(nodes):
        values, errors, reaches = zip(*(states[source] for source in node.inputs), strict=True)
        end = node.name
        z, err = node.together(node.mix, np.array(reaches)), node.together(node.gains, np.array(errors))
        err = np.where(z < math.inf, (err + node.error(z, a)) * ROUND, math.inf)
        states[end] = state(node.run(*values), err, node.growth, node.norm_out)
        states = {name: kept for name, kept in states.items() if last.get(name, i + 1) > i}
    return states[end]


class Network:
    """All nodes; a last linear one on a vector is the head, and the rest is the body."""

    def __init__(self, nodes: Sequence[Node], lipschitz: float, budget: Budget, norm: str) -> None:
        self.lipschitz, self.budget, end = lipschitz, budget, nodes[-1]  # lipschitz: as claimed, of the body
        self.norm, self.dual = norm, DUAL[end.norm_in]  # of the input; of the rows of the head
        is_head = end.op == "linear" and len(end.source) == end.fields["groups"] == 1
        # The body ends in the input of the head: its last node has no other reader.
        self.head = end if isinstance(end, Affine) and is_head else None
        self.body, self.outputs, self.batch = nodes[:-1] if self.head else nodes, end.shape[0], batch_size(nodes)
        self.nodes, self.distances = nodes, dict[int, Array]()

    @cached_property
    def joint(self) -> Array:
        # The smallest constant of each pair of logits, from the input on, by the joint proofs; ∞ without one.
        growths = {"input": Decimal(1)} | {node.name: node.growth for node in self.nodes}
        pairs = np.broadcast_to(math.inf, (self.outputs, self.outputs))  # one number in memory
        for joint in self.nodes[-1].joint:
            pairs = np.minimum(pairs, joint.pairs(above(growths[joint.nodes[0].inputs[0]])))
        return pairs

    @cached_property
    def sizes(self) -> Array:
        # At least ‖w_j‖ for the rows of the head.
        return np.ones(self.outputs) if self.head is None else magnitude(self.head.map.weight[0], self.dual)

    def logits(self, x: Array, radius: Array, a: Arithmetic) -> tuple[Array, Array, Array]:
        # The logits, with the error and the reach of the body.
        value, err, z = forward(self.body, x, radius, a, self.norm)
        return (value if self.head is None else self.head.run(value)), err, z

    def single(self, err: Array, z: Array, a: Arithmetic) -> tuple[Array, Array]:
        """For each logit alone: its constant relative to the body, and a bound of its error. (batch, outputs)"""
        if self.head is None:
            return np.ones((len(err), self.outputs)), np.repeat(err[:, None], self.outputs, axis=1)
        own = a.g(self.head.source[0] + 1) * (self.sizes * z[:, None] + np.abs(self.head.bias)) + a.underflow
        return np.broadcast_to(self.sizes, own.shape), (self.sizes * err[:, None] + own) * ROUND

    def pairs(self, label: int, err: Array, z: Array) -> tuple[Array, Array]:
        """For the logit of the label minus each other: its constant, and a bound of its error in float64."""
        if self.head is None:
            # Two entries of a vector of norm 1 differ by at most so much; the float of √2 is larger than √2.
            most = {"L2": math.sqrt(2), "Linf": 2.0, "L1": 1.0}[self.nodes[-1].norm_out]
            root = np.full((len(err), self.outputs), most)
            return root, root * err[:, None] * ROUND
        if label not in self.distances:
            if len(self.distances) * self.outputs > ROOM:
                self.distances.clear()
            apart = self.head.map.weight[0, label] - self.head.map.weight[0]
            # In L2 the rounding of the difference is part of ``norms``.
            self.distances[label] = magnitude(apart, self.dual) * (1 if self.dual == "L2" else ROUND)
        _, own = self.single(0 * err, z, FLOAT64)
        error = self.distances[label] * err[:, None] + own[:, label, None] + own
        return np.broadcast_to(self.distances[label], error.shape), error * ROUND

    def holds(self, label: int, radius: Array, f: Array, err: Array, z: Array) -> tuple[NDArray[np.bool_], Array]:
        """Whether margin − 2E ≥ L·K·r and > 0 for all rivals of one label; and the smallest difference.

        A point of the *open* ball moves the margin by less than L·K·r, or not at all: hence ≥.
        """
        if self.outputs == 1:
            k, e = self.single(err, z, FLOAT64)
            mine, theirs, joint = (f if label else -f), np.zeros_like(f), self.joint[0]
        else:
            k, e = (np.delete(a, label, axis=1) for a in self.pairs(label, err, z))
            mine, theirs = np.broadcast_to(f[:, label, None], e.shape), np.delete(f, label, axis=1)
            joint = np.delete(self.joint[label], label)
        have = np.nextafter(np.nextafter(mine - theirs, -np.inf) - 2 * e, -np.inf)
        each = np.minimum(np.nextafter(self.lipschitz * k, np.inf), joint)
        want = np.nextafter(each * radius[:, None], np.inf)
        fine = (have > 0) & (have >= want)
        good = np.asarray(fine.all(axis=1))
        finite = np.isfinite(mine).all(axis=1) & np.isfinite(theirs).all(axis=1) & np.isfinite(e).all(axis=1)
        for i in np.flatnonzero(~good & finite):  # once more, without rounding, for the rivals that are left
            rows = ((mine[i, j], theirs[i, j], e[i, j], k[i, j], joint[j]) for j in np.flatnonzero(~fine[i]))
            good[i] = all(self.holds_exactly(radius[i], *row) for row in rows)
        return good, (have - want).min(axis=1)

    def holds_exactly(
        self, radius: float, mine: float, theirs: float, error: float, k: float, joint: float
    ) -> bool:
        # The same inequality for one rival, in rational numbers.
        self.budget.spend(EXACT)
        left, each = Fraction(mine) - Fraction(theirs) - 2 * Fraction(error), Fraction(self.lipschitz) * Fraction(k)
        each = each if joint == math.inf else min(each, Fraction(joint))
        return left > 0 and left >= each * Fraction(radius)


def require_finite(c: Certificate) -> None:
    """An input with a NaN or an infinity is close to nothing: no claim or probe can be about it."""
    used = (
        sorted({index for index, _, _ in c.top["claims"]} | set(c.top["probe"]["indices"]))
        if c.images.dtype != np.uint8
        else []
    )
    for part in chunks(len(used), max(1, ROOM // math.prod(c.top["input_shape"]))):
        finite = np.isfinite(c.images[used[part]]).reshape(len(used[part]), -1).all(axis=1)
        need(bool(finite.all()), f"inputs: input {used[part][int(finite.argmin())]} has a NaN or an infinity")


# --- The report ---


@dataclass
class Report:
    """What was found. ``ok``: every constant, every claim and the probe hold."""

    ok: bool = False
    refuted: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)  # heuristic, no verdict
    constants: list[tuple[str, str, float, float]] = field(default_factory=list)  # name, op, claimed, proved
    lipschitz: float = math.nan
    assumes: list[str] = field(default_factory=list)  # of the platform's elementary functions
    verified: int = 0
    claims: int = 0
    slack: float = math.nan  # smallest margin − 2E − L·K·r of a claim
    lines: list[str] = field(default_factory=list)  # a table for people

    def refute(self, wrong: bool, message: str) -> None:
        self.refuted += [message] if wrong else []


def verify_constants(nodes: Sequence[Node], network: Network, report: Report) -> None:
    """Each constant, and Λ of the body."""
    prove_all(nodes, network.budget)
    report.lines.append(f"{'node':>5}  {'op':<17} {'claimed L':>13} {'proved L':>13}  name")
    for i, node in enumerate(nodes):
        op, claimed, proved, name = node.op, node.claimed, node.proved, ascii(node.name[:40])[1:-1]
        report.lines.append(f"{i:>5}  {op:<17} {claimed:>13.9g} {proved:>13.9g}  {name}")
        report.constants.append((node.name, op, claimed, proved))
        found = f"claims {claimed:.17g}, proved is {proved:.17g}"
        if node.norm_in != "L2" and not node.others:
            found = f"its constant is about the L2 norm, and here inputs are measured in {node.norm_in}"
        report.refute(not proved <= claimed, f"node {i} ({op}): {found}")
    growth, claimed = network.body[-1].growth if network.body else Decimal(1), network.lipschitz
    wrong = growth > Decimal(claimed)
    report.refute(wrong, f"lipschitz: claims {claimed:.17g}, the nodes give {above(growth):.17g}")
    report.lines.append(f"claimed L of {'all but the last node' if network.head else 'all nodes'}: {claimed:.17g}")
    if nodes[-1].joint:
        report.lines.append(f"joint constants of the pairs of logits: at most {network.joint.max():.9g}")


def verify_claims(network: Network, c: Certificate, report: Report) -> None:
    """Each radius: see ``Network.holds``."""
    claims, bad, report.slack = c.top["claims"], list[int](), math.inf
    for part in chunks(len(claims), network.batch):
        rows, labels, radii = (np.array(v) for v in zip(*claims[part], strict=True))
        f, err, z = network.logits(c.inputs(rows.tolist()), radii, FLOAT64)
        for label in np.unique(labels):
            w = np.flatnonzero(labels == label)
            good, spare = network.holds(int(label), radii[w], f[w], err[w], z[w])
            bad += rows[w][~good].tolist()
            report.slack = min(report.slack, float(spare.min()))
    some, report.verified = str(sorted(bad)[:10])[1:-1], len(claims) - len(bad)
    report.refute(bool(bad), f"claims: {len(bad)} cannot be proved, of the inputs {some}")
    report.lines.append(f"claims verified: {report.verified} of {len(claims)}, smallest slack {report.slack:.3g}")


def verify_probe(network: Network, c: Certificate, report: Report) -> None:
    """Whether float32 with sums in any order can explain the deployed logits."""
    (indices, logits), good, worst = c.top["probe"].values(), True, 0.0
    for part in chunks(len(indices), network.batch):
        f, err, z = network.logits(c.inputs(indices[part]), np.zeros(len(indices[part])), FLOAT32)
        bound = network.single(err, z, FLOAT32)[1] * (1 + 2.0**-28)  # the error of f itself is 2^-29 of it
        away = np.abs(np.array(logits[part]) - f)
        good &= bool((away <= np.where(np.isnan(bound), np.inf, bound)).all())
        worst = max(worst, float((away / np.maximum(1, np.abs(f))).max()))
    report.refute(not good, f"probe: a difference of {worst:.1e} is more than float32 can explain")
    if worst > 1e-5:
        report.alarms.append(f"probe: logits differ by {worst:.1e} (heuristic; float32 usually stays below 1e-5)")
    report.lines.append(f"probe: {len(indices)} inputs, largest difference {worst:.1e}")


# --- The report ---


def verify(c: Certificate, budget: Budget) -> Report:
    """Check everything that a certificate says."""
    # Fields, shapes and the work to come, before anything is hashed, converted or proved.
    nodes, top = plan_all(c, budget), c.top
    budget.spend(other_work(c, nodes), sum(node.prepare + node.proof for node in nodes))
    budget.spend(sum(joint.work for joint in nodes[-1].joint))
    report = Report(lipschitz=top["lipschitz"], assumes=top["assumes"], claims=len(top["claims"]))
    network = Network(nodes, top["lipschitz"], budget, top["norm"])
    for name, tensor in c.weights.items():
        report.refute(digest(tensor) != top["tensors"][name], f"tensor {name[:40]!a}: wrong sha256")
    report.refute(digest(c.images) != top["inputs"]["sha256"], "inputs: wrong sha256")
    if not report.refuted:
        require_finite(c)
        verify_constants(nodes, network, report)
    if not report.refuted:  # an error bound needs true constants
        verify_claims(network, c, report)
        verify_probe(network, c, report)
    report.lines += [f"alarm: {text}" for text in report.alarms]
    if report.assumes:
        rest = "on the platform that runs the network; everything else is verified"
        report.lines.append(f"assumed: {', '.join(report.assumes)} ({rest})")
    report.lines.append("REFUTED" if report.refuted else "everything holds")
    report.ok = not report.refuted
    return report


def check(path: str | Path, allow: int = 1) -> Report:
    """Verify the certificate at ``path``. Raises ``Malformed`` for what is no certificate, and nothing else.

    It may cost ``allow`` times the memory and the work of the limits above.
    """
    budget = Budget(allow)
    try:
        with np.errstate(all="ignore"):
            return verify(read(Path(path), budget), budget)
    except (OSError, MemoryError, np.linalg.LinAlgError) as error:
        raise Malformed(f"it cannot be read or checked on this machine: {type(error).__name__}") from None


# --- The command line ---


def main(argv: Sequence[str] | None = None) -> int:
    """Check one certificate; the exit code is 0 if it holds, 1 if it is refuted, 2 if it cannot be read."""
    parser = argparse.ArgumentParser(
        prog="check.py", description="Verify a certificate of lipcert with numpy alone."
    )
    parser.add_argument("certificate", help="path of certificate.json")
    parser.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON instead of lines")
    parser.add_argument(
        "--allow", type=int, default=1, metavar="N", help="allow N times the default memory and work"
    )
    args = parser.parse_args(argv)
    if not 0 < args.allow < 10**9:
        parser.error(f"--allow needs a positive integer, got {args.allow}")
    try:
        report = check(args.certificate, args.allow)
    except Exception as error:  # a mistake in this file is not a verdict on the certificate
        known = isinstance(error, Malformed)
        print(f"malformed: {error}" if known else f"cannot be checked: {type(error).__name__}", file=sys.stderr)
        return 2
    if not args.quiet:
        # JSON has no infinities and no NaN: they become null.
        content = json.loads(json.dumps(asdict(report)), parse_constant=lambda name: None)
        print(json.dumps(content, indent=2) if args.json else "\n".join(report.lines))
    if not report.ok:
        print("refuted: " + "; ".join(report.refuted[:5]), file=sys.stderr)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
