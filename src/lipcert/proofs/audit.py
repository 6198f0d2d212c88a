"""``audit``: what is proved about a network, layer by layer and end to end, a lower bound beside every upper one.

Verdicts: PROVED, with the method and L; REFUTED, with two points that contradict the constant a layer promises;
ASSUMED, a user's rule; UNKNOWN, where nothing finite could be proved. Constants multiply, rounded up. The whole
map, the backbone before a last linear map and the differences of logits have constants of their own: the first is
not what a radius needs.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.errors import NotCertified, positive_int
from lipcert.layers.contract import require_no_loop
from lipcert.proofs.lower import Stretch, stretch_estimate
from lipcert.proofs.operation import Operation, Shape, array, require_ieee
from lipcert.proofs.rules import operations
from lipcert.verified.rounding import U64, norm_up, up

MOST_CLASSES = 2**14  # a constant for each pair takes 2 GB then


@dataclass(frozen=True)
class LayerAudit:
    """One layer: lower ≤ L ≤ upper."""

    name: str
    op: str
    verdict: str
    lower: float
    upper: float
    method: str
    witness: Stretch | None = None  # two points, where REFUTED


@dataclass(frozen=True)
class AuditReport:
    """What is proved of a network; ``str()`` is a table."""

    layers: tuple[LayerAudit, ...]
    lipschitz: float  # of the whole map
    backbone: float  # of what comes before the last linear map
    pairwise: Tensor | None  # (C, C) float64: of the differences of logits; None where nothing is proved
    lower: float  # of the whole map, by two points
    assumes: tuple[str, ...] = ()  # what the rounding bounds assume of the platform's elementary functions

    @property
    def ok(self) -> bool:
        """Every layer PROVED or ASSUMED."""
        return all(layer.verdict in ("PROVED", "ASSUMED") for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        rows = [
            {k: getattr(layer, k) for k in ("name", "op", "verdict", "lower", "upper", "method")}
            for layer in self.layers
        ]
        pairwise = None if self.pairwise is None else float(self.pairwise.max())
        return {
            "ok": self.ok,
            "lipschitz": self.lipschitz,
            "backbone": self.backbone,
            "largest_pairwise": pairwise,
            "lower": self.lower,
            "assumes": list(self.assumes),
            "layers": rows,
        }

    def __str__(self) -> str:
        lines = [f"{'layer':<10} {'operation':<16} {'verdict':<8} {'lower':>9} {'upper':>11}  method"]
        lines += [
            f"{layer.name[:10]:<10} {layer.op[:16]:<16} {layer.verdict:<8} "
            f"{layer.lower:>9.6f} {layer.upper:>11.9f}  {layer.method}"
            for layer in self.layers
        ]
        widest = "nothing" if self.pairwise is None else f"{float(self.pairwise.max()):.9f}"
        lines += [
            "",
            f"whole map   {self.lower:.6f} ≤ L ≤ {self.lipschitz:.9f}",
            f"backbone    L ≤ {self.backbone:.9f}  (before the last linear map)",
            f"logit pairs L ≤ {widest}  (largest; this is what a radius is divided by)",
            *(f"assumed     {text}  (the platform's function; only rounding rests on it)" for text in self.assumes),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Head:
    """The rows w_j and biases of a last linear map in float64, and ‖w_j‖ rounded up."""

    weight: Tensor
    bias: Tensor
    norms: Tensor


@dataclass(frozen=True)
class Chain:
    """The operations of a network and the constants that follow: what ``certify`` works with."""

    names: tuple[str, ...]
    parts: tuple[Operation, ...]
    input_shape: Shape

    @property
    def headed(self) -> bool:
        """Whether the last operation is a plain linear map to the logits."""
        return self.parts[-1].op == "linear" and len(self.parts[-1].shape) == 1

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the rounding bounds assume of the platform's elementary functions."""
        return tuple(sorted({text for part in self.parts for text in part.assumes}))

    @property
    def lipschitz(self) -> float:
        return product(self.parts)

    @property
    def backbone(self) -> float:
        return product(self.parts[:-1]) if self.headed else self.lipschitz

    def pairwise(self) -> Tensor | None:  # (C, C) float64
        """Constants of f_i − f_j from the input on, rounded up; with one output, (1, 1): that of f itself."""
        shape = self.parts[-1].shape
        if not math.isfinite(self.backbone) or len(shape) != 1 or shape[0] > MOST_CLASSES:
            return None
        pairs = self.distances * self.backbone * (1 + 2.0**-50)
        return torch.where((self.distances > 0) & (pairs < 2.0**-1000), pairs + 2.0**-1070, pairs)  # underflow

    @cached_property
    def head(self) -> Head | None:
        """The last linear map, if there is one; the tensors of a chain are its own, so that this holds for good."""
        if not self.headed:
            return None
        fields = self.parts[-1].fields
        assert fields is not None  # a linear map of vectors always has them
        weight = fields["weight"].double().cpu()
        bias = torch.zeros(len(weight)) if fields["bias"] is None else fields["bias"].cpu()
        return Head(weight, bias.double(), torch.from_numpy(norm_up(array(weight), axis=1)))

    @cached_property
    def distances(self) -> Tensor:  # (C, C) float64
        """‖w_i − w_j‖ of the last rows, rounded up; √2 without a head. With one output, ‖w‖ or 1."""
        classes = self.parts[-1].shape[0]
        if classes > MOST_CLASSES:
            raise NotCertified(
                f"the network has {classes:,} outputs, and the constants of all pairs are kept for at most "
                f"{MOST_CLASSES:,}. Certify a network with fewer classes."
            )
        if self.head is None:
            same = 1.0 if classes == 1 else up(math.sqrt(2.0), 1)
            return torch.full((classes, classes), same, dtype=torch.float64)
        if classes == 1:
            return self.head.norms[:, None]
        rows = array(self.head.weight)
        return torch.from_numpy(np.stack([norm_up(row - rows, axis=1) for row in rows]) * (1 + 2.0**-50))


def product(parts: tuple[Operation, ...]) -> float:
    total = 1.0
    for part in parts:
        if part.lipschitz != 1.0:
            total = math.nextafter(total * part.lipschitz, math.inf) if part.lipschitz else 0.0
    return total


def chain(
    model: nn.Module,
    input_shape: Shape,
    *,
    dtype: torch.dtype = torch.float64,
    block: int | None = None,
    parametrized: bool = False,
) -> Chain:
    """The operations of a network for inputs of that shape; ``NotCertified`` names a module without a rule.

    They run in ``dtype``, with sums in blocks of ``block`` terms if that is given. ``parametrized`` allows modules
    whose weights are computed at every call, and takes their present values.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch module; got {type(model).__name__}. Pass the network itself.")
    input_shape = as_shape(input_shape)
    require_ieee()
    require_no_loop(model)
    # Autocast would narrow the products of a float32 chain; tensors of inference mode have no gradients.
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        named = operations(model, input_shape, dtype, block, parametrized=parametrized)
    if not named:
        raise NotCertified("the network has no layers; got an empty Sequential. Pass a network.")
    return Chain(tuple(n for n, _ in named), tuple(o for _, o in named), input_shape)


def as_shape(value: Any) -> Shape:
    """The shape of one input as a tuple of positive integers."""
    try:
        shape = tuple(operator.index(size) for size in value)
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ValueError(
            f"the shape of one input must be positive integers; got {value!r:.60}. Pass e.g. (3, 32, 32)."
        )
    return shape


def audit(model: nn.Module, inputs: Tensor | Shape, *, samples: int = 4) -> AuditReport:
    """Prove what can be proved about ``model``; a training network is frozen first.

    Args:
        inputs: examples (N, …), where the lower bounds are searched, or the shape of one input.
        samples: how many examples are used.
    """
    positive_int("samples", samples)
    if isinstance(inputs, Tensor) and (inputs.ndim < 2 or not len(inputs)):
        raise ValueError(
            f"expected at least one example, (N, …), or the shape of one; got a tensor {tuple(inputs.shape)}."
        )
    with torch.inference_mode(False):  # the lower bounds need gradients
        return _audit(model, inputs, samples)


def _audit(model: nn.Module, inputs: Tensor | Shape, samples: int) -> AuditReport:
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else as_shape(inputs)
    links = chain(model, shape, parametrized=True)
    points = inputs[:samples].detach().clone() if isinstance(inputs, Tensor) else _random(shape, samples)
    found, x = [], points.detach().double().cpu()
    with torch.no_grad():
        for name, part in zip(links.names, links.parts, strict=True):
            found.append(_audit_layer(name, part, x))
            x = part.forward(x)
    start = points.detach().double().cpu()
    whole = stretch_estimate(_composed(links.parts), start, rounding=_rounding(links.parts))
    return AuditReport(tuple(found), links.lipschitz, links.backbone, links.pairwise(), whole.ratio, links.assumes)


def _audit_layer(name: str, part: Operation, x: Tensor) -> LayerAudit:
    usable = torch.isfinite(x).flatten(1).all(dim=1)
    stretch = Stretch(0.0, x[:0], x[:0])
    if bool(usable.any()):
        stretch = stretch_estimate(part.forward, x[usable], rounding=_rounding((part,)))
    verdict = "ASSUMED" if part.assumed else "PROVED" if part.proved else "UNKNOWN"
    refuted = part.claim is not None and contradicts(stretch, part)
    return LayerAudit(
        name,
        part.op,
        "REFUTED" if refuted else verdict,
        stretch.ratio,
        part.lipschitz,
        part.method,
        stretch if refuted else None,
    )


def contradicts(stretch: Stretch, part: Operation) -> bool:
    """Whether two points contradict the constant that a part claims.

    Where its rounding error is unknown, the excess could be rounding, which shrinks as the points move apart: then
    it must be about as large between points sixteen times further apart.
    """
    assert part.claim is not None
    excess = stretch.ratio - part.claim
    if not excess > 0 or part.error is not None:
        return excess > 0
    with torch.no_grad():
        first = stretch.first[None]
        second = first + 16 * (stretch.second[None] - first)
        moved = float((part.forward(second) - part.forward(first)).norm()) / float((second - first).norm())
    return moved - part.claim >= excess / 4


def _composed(parts: tuple[Operation, ...]) -> Any:
    def forward(x: Tensor) -> Tensor:
        for part in parts:
            x = part.forward(x)
        return x

    return forward


def _rounding(parts: tuple[Operation, ...]) -> Any:
    """‖computed − exact‖ at given points, after all parts: err ← L·err + e(‖ẑ‖ + err)."""

    def bound(x: Tensor) -> Tensor:
        err = torch.zeros(len(x), dtype=torch.float64)
        for part in parts:
            size = (x.flatten(1).norm(dim=1) + err) * (1 + 2.0**-20) + 2.0**-400
            x = part.forward(x)
            known = part.error_bound(size, U64)
            # Where no bound is known, 2⁻³⁶ of what the part itself computes stands in for it.
            usual = 2.0**-36 * x.flatten(1).norm(dim=1)
            err = (part.lipschitz * err + torch.where(torch.isfinite(known), known, usual)) * (1 + 2.0**-20)
        return err

    return bound


def _random(shape: Shape, samples: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(samples, *shape, generator=generator, dtype=torch.float64)
