"""An op is one step of a frozen network: what runs, what is proved about it, and what is stored.

``Op.prove(shape)`` gives a Lipschitz constant and a bound e(Z) of the rounding error ‖computed − exact‖. That bound
holds for *every* input of norm at most Z, in arithmetic of unit roundoff u, with sums in any order, fused or not
(docs/certificate.md has the table of the formulas, docs/rounding.md their proofs). What is proved evaluates matrix
products only: ``Op.evaluate`` computes a convolution by im2col, so that its sums are classical.

The arguments of a constructor are the fields of the op in a file. A constructor checks and copies its tensors, so
an op cannot be built from a record that does not fit, and nothing that happens to the original tensors matters.

Rounding: up. ``ROUND`` covers the roundings of evaluating the bounds themselves, ``UNDERFLOW`` those below 2⁻¹⁰²².
"""

from __future__ import annotations

import abc
import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.certified.norms import NAMES, norm_of_ones, rows_up
from lipcert.errors import NotCertified
from lipcert.intact import Fixed
from lipcert.verified import rounding
from lipcert.verified.rounding import U32, U64

Shape = tuple[int, ...]
ROUND = 1 + 2.0**-40  # every bound takes fewer than 2¹⁰ roundings of 2⁻⁵³ to evaluate
UNDERFLOW = {U64: 2.0**-700, U32: 2.0**-40}  # of one op whose tensors stay below LARGEST
LARGEST = {U64: 2.0**128, U32: 2.0**40}  # 2⁻¹²⁶·2⁴⁰ for each of 2²⁰ terms in 2²⁴ outputs: below 2⁻⁴⁰
HUGE = {U64: 2.0**500, U32: 2.0**60}  # larger norms might overflow inside an op, so no bound is claimed
CASTS = {U64: 0, U32: 3}  # a float64 tensor or factor is rounded before float32 works with it
Error = Callable[[Tensor, float], Tensor]


def g(n: int, u: float = U64) -> float:
    """nu/(1 − nu) for n roundings and those of casting what is stored to the arithmetic of u."""
    return rounding.g(n + CASTS[u], u)


def no_error(norms: Tensor, u: float) -> Tensor:
    """Moves, comparisons and signs are exact."""
    return torch.zeros_like(norms)


@dataclass(frozen=True)
class Proof:
    """What is proved about one op for inputs of one shape."""

    shape: Shape  # of the output, without the batch
    lipschitz: float  # infinite if nothing was proved; then ``method`` says why
    method: str
    error: Error | None = no_error  # None: no bound of the rounding error is known
    claim: float | None = None  # what the layer promises by design; two points may refute it
    assumed: bool = False  # the constant is declared by a user's rule
    largest: float = 1.0  # modulus of the entries of its tensors, for underflow
    assumes: tuple[str, ...] = ()  # what ``error`` assumes about the platform's elementary functions
    gains: tuple[float, ...] | None = None  # one constant for each of several inputs
    norm: str = "l2"  # in which its outputs are measured, and ``error`` holds
    side_by_side: bool = False  # what the inputs add has squares that add up, because it is in separate entries

    def error_bound(self, norms: Tensor, u: float) -> Tensor:
        """e(Z); infinite where none is known, or where tensors or Z are so large that something could overflow."""
        if self.error is None or not self.largest <= LARGEST[u]:
            return torch.full_like(norms, math.inf)
        return torch.where(norms <= HUGE[u], self.error(norms, u), math.inf)

    def carried(self, values: Sequence[Tensor]) -> Tensor:
        """What bounds of the inputs' differences become: L times that of the only input, or Σ α_k times each.

        Side by side it is √Σ (α_k times each)².
        """
        gains = (self.lipschitz,) if self.gains is None else self.gains
        terms = [gain * value for gain, value in zip(gains, values, strict=True)]
        if self.side_by_side:
            return _root_of_squares(torch.stack(terms))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def reached(self, norms: Sequence[Tensor]) -> Tensor:
        """The Z of ``error_bound`` from those of the inputs."""
        return norms[0] if self.gains is None else self.carried(norms)

    @property
    def proved(self) -> bool:
        return math.isfinite(self.lipschitz) and not self.assumed

    @property
    def rounding_known(self) -> bool:
        """Whether there is a bound of the rounding error in float64."""
        return bool(torch.isfinite(self.error_bound(torch.ones((), dtype=torch.float64), U64)))


class Op(Fixed, abc.ABC):
    """One step of a frozen network. ``op`` is its name in files. Its settings stay as they were built."""

    op: ClassVar[str]
    inputs: int = 1  # how many it reads
    in_any_norm: ClassVar[bool] = False  # whether ``prove`` says what is true in L∞ and in L1, too

    def __init__(self) -> None:
        super().__init__()
        self._proofs: dict[Any, Any] = {}  # what was proved, by what, for which numbers: see ``remember``

    def store(self, **tensors: Tensor | None) -> None:
        """Keep copies of ``tensors`` as buffers: float32 or float64, contiguous as a file has them."""
        for name, tensor in tensors.items():
            self.register_buffer(name, None if tensor is None else plain(tensor, f"{self.op}: {name}"))

    @abc.abstractmethod
    def forward(self, *inputs: Tensor) -> Tensor:
        """Run on batches, in the dtype of the inputs."""

    def evaluate(self, x: Tensor, block: int | None) -> Tensor:
        """The same function with classical sums, perhaps in blocks of ``block`` terms: what the proof is about."""
        return self(x)

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of one output for inputs of that shape. ``NotCertified`` if they do not fit."""
        return shape

    @abc.abstractmethod
    def prove(self, shape: Shape, block: int | None = None) -> Proof:
        """The constant and the rounding error for inputs of that shape. ``NotCertified`` if they do not fit."""

    def prove_in(self, norm: str, shape: Shape, block: int | None = None) -> Proof:
        """The same with inputs that are measured in ``norm``; the proof names the norm of the outputs."""
        if norm != "l2" and not self.in_any_norm:
            raise NotCertified(
                f"its constant is proved in L2, not in {NAMES[norm]}. For {NAMES[norm]} build the network from "
                "linear maps (lipcert.layers.LinfLinear), GroupSort and functions of single entries."
            )
        proof = self.prove(shape, block)
        return proof if norm == "l2" else replace(proof, norm=norm)

    def constant(self) -> float:
        """A Lipschitz constant for inputs of every shape, if there is one."""
        raise NotCertified("its constant depends on the shape of its input. Pass the shape, or use lipcert.audit.")

    def meet(self, shapes: Sequence[Shape]) -> Shape:
        """The shape in which its inputs meet: ``output_shape`` and ``prove`` take it. ``NotCertified`` if none."""
        require(
            all(shape == shapes[0] for shape in shapes),
            f"the values that meet here must have one shape, but they have {_listed(shapes)}. Nothing is "
            "broadcast: repeat the smaller one by .expand().",
        )
        return shapes[0]

    def at(self, shape: Shape, *others: Shape) -> Op:
        """The same op for inputs of that shape, as a file has it: all sizes written out, axes counted from 0."""
        axis: int = self.fields().get("axis", 0)
        return self if axis >= 0 else self.clone(axis=example_axis(axis, shape))

    def room(self, shape: Shape) -> int:
        """How many numbers it holds at once for one input of that shape; 0 if no more than input and output."""
        return 0

    def clone(self, **changes: Any) -> Op:
        """The same op, but for ``changes``, with its own tensors and without hooks; what was proved is shared."""
        copied = type(self)(**{**self.fields(), **changes})
        copied._proofs = self._proofs
        return copied

    def fields(self) -> dict[str, Any]:
        """The arguments that would build this op."""
        return {name: getattr(self, name) for name in arguments(type(self))}

    def remember(self, what: str, where: Any, compute: Callable[[], Any], names: Sequence[str] = ()) -> Any:
        """``compute()``, or what it gave for the same tensors and settings before: each layer is proved once.

        ``names`` are the tensors on which it depends; all of them if there are none.
        """
        # A proof holds along every axis, and ``at`` counts the axis in another way.
        settings = {key: value for key, value in self.fields().items() if key not in (*self._buffers, "axis")}
        key = (type(self), repr(settings), self.digest(names or tuple(self._buffers)), what, where)
        if key not in self._proofs:
            self._proofs[key] = compute()
        return self._proofs[key]

    def digest(self, names: Sequence[str]) -> bytes:
        """A hash of these tensors."""
        total = hashlib.sha256()
        for name in names:
            tensor = self._buffers[name]
            if tensor is not None:
                total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
                total.update(tensor.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8).data)
        return total.digest()

    def extra_repr(self) -> str:
        settings = {key: value for key, value in self.fields().items() if not isinstance(value, Tensor)}
        weight = self._buffers.get("weight")
        parts = [] if weight is None else ["×".join(map(str, weight.shape))]
        return ", ".join([*parts, *(f"{key}={value!r}" for key, value in settings.items() if value is not None)])


def _root_of_squares(terms: Tensor) -> Tensor:  # (K, …) → (…)
    """√Σ t² of numbers t ≥ 0, up to a few roundings: divided by the largest, so that no square of it vanishes."""
    most = terms.amax(dim=0)
    usable = torch.isfinite(most) & (most > 0)
    scaled = terms / torch.where(usable, most, 1.0)
    return torch.where(usable, most * scaled.square().sum(dim=0).sqrt(), most)


@functools.cache
def arguments(kind: type[Op]) -> tuple[str, ...]:
    """The names of the constructor's arguments, which are the fields of the op in a file."""
    return tuple(inspect.signature(kind.__init__).parameters)[1:]  # without ``self``


def plain(tensor: Tensor, where: str) -> Tensor:
    """A copy in float32 or float64; half precision is widened, which is exact."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        dtype = getattr(tensor, "dtype", type(tensor).__name__)
        raise NotCertified(
            f"{where} must hold floating-point numbers, got {dtype}. Convert the module with .float()."
        )
    if type(tensor) not in (Tensor, nn.Parameter):
        raise NotCertified(
            f"{where} is a {type(tensor).__qualname__}, which may bring its own products. Make it a plain tensor."
        )
    require(not tensor.is_meta and not tensor.is_sparse, f"{where} has no values. Load weights.")
    copied = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return copied if copied.dtype in (torch.float32, torch.float64) else copied.float()


def _listed(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(str, shapes))


def require(condition: bool, message: str) -> None:
    if not condition:
        raise NotCertified(message)


def example_axis(axis: int, shape: Shape) -> int:
    """``axis`` of an example of that shape, counted from 0."""
    place = axis if axis >= 0 else axis + len(shape)
    require(
        0 <= place < len(shape),
        f"it acts on axis {axis} of an example, but examples have shape {shape}. The batch must not be mixed.",
    )
    return place


def require_one_each(count: int, **tensors: Tensor | None) -> None:
    """A bias or a γ of another shape would be broadcast: another function than the one that is proved."""
    for name, tensor in tensors.items():
        fits = tensor is None or tuple(tensor.shape) == (count,)
        require(fits, f"{name} must have shape ({count},), got {None if tensor is None else tuple(tensor.shape)}.")


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def largest(*tensors: Tensor | None) -> float:
    return max((float(t.detach().abs().max()) for t in tensors if t is not None and t.numel()), default=0.0)


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """One number for each channel (axis 1 of a batch), shaped to be combined with ``like``, in its dtype."""
    return values.to(like.dtype).view(-1, *[1] * (like.ndim - 2))


def bias_norm(bias: Tensor | None, gamma: np.ndarray | None, entries: int, norm: str = "l2") -> float:
    """β ≥ √(Σ γ_i b_i²) over all ``entries`` of an output, each of the b_i at as many positions; or in ``norm``."""
    if bias is None:
        return 0.0
    values, positions = array(bias).astype(np.float64), entries // len(bias)
    weighted = values if gamma is None else values * np.sqrt(np.abs(gamma.astype(np.float64))) * ROUND
    return float(rows_up(weighted[None], norm)[0]) * norm_of_ones(positions, norm) * ROUND


def affine_error(terms: int, kappa: float, beta: float) -> Error:
    """g_{terms+1}(κZ + β): a sum of ``terms`` products and a bias."""

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
    """The rounding of x − W(2γ·σ(Wᵀx + b)).

    a is what Wᵀx + b loses in the norm of Γ^½, and v is what σ of it can reach. Then come the product with W and
    the difference. ``roundings`` are those of σ itself, ``start`` bounds ‖σ(0)‖ in that norm.
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
