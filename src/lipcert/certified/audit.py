"""``audit``: what is proved about a network, layer by layer and end to end, a lower bound beside every upper one.

Verdicts: PROVED, with the method and L; REFUTED, with two points that contradict the constant a layer promises;
ASSUMED, a user's rule; UNKNOWN, where nothing finite could be proved. Constants multiply, rounded up. The whole
map, the backbone before a last linear map and the differences of logits have constants of their own: the first is
not what a radius needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipcert.certified.freeze import prove
from lipcert.certified.lower import Function, Stretch, stretch_estimate
from lipcert.certified.monotone import monotone
from lipcert.certified.network import Chain, Part, Proved, as_shape
from lipcert.certified.norms import NAMES, measure
from lipcert.certified.op import Shape
from lipcert.errors import positive_int
from lipcert.verified.rounding import U64, prod_up

LARGE = 2**18  # numbers in its tensors, and on the way of one input


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
class ChainAudit:
    """Layers that are proved together: their constant, and the product of their own constants."""

    first: str
    last: str
    method: str
    upper: float
    product: float


@dataclass(frozen=True)
class AuditReport:
    """What is proved of a network; ``str()`` is a table."""

    layers: tuple[LayerAudit, ...]
    lipschitz: float  # of the whole map
    backbone: float  # of what comes before the last linear map
    pairwise: Tensor | None  # (C, C) float64: of the differences of logits; None where nothing is proved
    lower: float  # of the whole map, by two points
    assumes: tuple[str, ...] = ()  # what the rounding bounds assume of the platform's elementary functions
    chains: tuple[ChainAudit, ...] = ()  # layers that are proved together
    outputs: Tensor | None = None  # (C,) float64: of each output alone, as regressions need it
    norm: str = "l2"  # in which inputs are measured
    increasing: tuple[int, ...] = ()  # inputs, of a vector, in which no output ever falls: proved, exact function
    decreasing: tuple[int, ...] = ()  # those in which none ever rises

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
            "outputs": None if self.outputs is None else self.outputs.tolist(),
            "lower": self.lower,
            "assumes": list(self.assumes),
            "layers": rows,
            **({} if self.norm == "l2" else {"norm": self.norm}),
            **({"increasing": list(self.increasing)} if self.increasing else {}),
            **({"decreasing": list(self.decreasing)} if self.decreasing else {}),
            **({"chains": [asdict(chain) for chain in self.chains]} if self.chains else {}),
        }

    def __str__(self) -> str:
        lines = [f"{'layer':<10} {'operation':<16} {'verdict':<8} {'lower':>9} {'upper':>11}  method"]
        lines += [
            f"{layer.name[:10]:<10} {layer.op[:16]:<16} {layer.verdict:<8} "
            f"{layer.lower:>9.6f} {layer.upper:>11.9f}  {layer.method}"
            for layer in self.layers
        ]
        widest = "nothing" if self.pairwise is None else f"{float(self.pairwise.max()):.9f}"
        largest = "nothing" if self.outputs is None else f"{float(self.outputs.max()):.9f}"
        lines += [
            "",
            *(
                f"{chain.first} … {chain.last}  L ≤ {chain.upper:.9f}  ({chain.method}; the product of their "
                f"constants is {chain.product:.9f})"
                for chain in self.chains
            ),
            f"whole map   {self.lower:.6f} ≤ L ≤ {self.lipschitz:.9f}",
            f"backbone    L ≤ {self.backbone:.9f}  (before the last linear map)",
            f"logit pairs L ≤ {widest}  (largest; this is what a radius is divided by)",
            *([] if self.norm == "l2" else [f"norm        inputs are measured in {NAMES[self.norm]}"]),
            *(
                f"monotone    no output ever {moves} in the inputs {', '.join(map(str, places))}"
                for moves, places in (("falls", self.increasing), ("rises", self.decreasing))
                if places
            ),
            f"each output  L ≤ {largest}  (largest)",
            *(f"assumed     {text}  (the platform's function; only rounding rests on it)" for text in self.assumes),
        ]
        return "\n".join(lines)


def audit(
    model: nn.Module,
    inputs: Tensor | Shape,
    *,
    samples: int = 4,
    norm: str = "l2",
    tighten: Callable[[Proved], Proved] = lambda proved: proved,
) -> AuditReport:
    """Prove what can be proved about ``model``; a training network is frozen first.

    Args:
        inputs: examples (N, …), where the lower bounds are searched, or the shape of one input.
        samples: how many examples are used.
        norm: in which inputs are measured, "l2", "linf" or "l1".
        tighten: adds chains of parts that are proved together.
    """
    positive_int("samples", samples)
    if isinstance(inputs, Tensor) and (inputs.ndim < 2 or not len(inputs)):
        raise ValueError(
            f"expected at least one example, (N, …), or the shape of one; got a tensor {tuple(inputs.shape)}."
        )
    with torch.inference_mode(False):  # the lower bounds need gradients
        return _audit(model, inputs, samples, norm, tighten)


def _audit(
    model: nn.Module, inputs: Tensor | Shape, samples: int, norm: str, tighten: Callable[[Proved], Proved]
) -> AuditReport:
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else as_shape(inputs)
    proved = tighten(prove(model, shape, parametrized=True, norm=norm))
    points = inputs[:samples].detach().clone() if isinstance(inputs, Tensor) else _random(shape, samples)
    start = points.detach().double().cpu()
    with torch.no_grad():
        values = [*proved.run(start), start]  # so that the place −1 is the input
        layers = tuple(
            _audit_layer(part, [values[place] for place in part.inputs], values[index], proved.norm_into(index))
            for index, part in enumerate(proved.parts)
        )
        whole = _stretch(proved, start, values)
    best = {(chain.first, chain.last): chain for chain in sorted(proved.chains, key=lambda c: -c.lipschitz)}
    chains = tuple(_audit_chain(proved, chain) for chain in best.values())
    pairwise, assumes = proved.pairwise(), proved.assumes
    monotonicity = () if any(part.proof.assumed for part in proved.parts) else monotone(proved)
    constants = (proved.lipschitz, proved.backbone, pairwise, whole.ratio)
    return AuditReport(layers, *constants, assumes, chains, proved.outputs(), norm, *monotonicity)


def _audit_chain(proved: Proved, chain: Chain) -> ChainAudit:
    parts = proved.parts[chain.first : chain.last + 1]
    product = prod_up(part.proof.lipschitz for part in parts)
    return ChainAudit(parts[0].name, parts[-1].name, chain.method, min(chain.lipschitz, product), product)


def _audit_layer(part: Part, inputs: list[Tensor], value: Tensor, norm: str = "l2") -> LayerAudit:
    """``value`` is what the part computes of its inputs, which need not be the same and are in ``norm``."""
    x = max(inputs, key=lambda value: value[0].numel())
    proof, usable = part.proof, torch.isfinite(x).flatten(1).all(dim=1)
    stretch = Stretch(0.0, x[:0], x[:0])
    if bool(usable.any()) and len({one.shape for one in inputs}) > 1:
        stretch = stretch_estimate(_cropped(part, inputs), x[usable])
    elif bool(usable.any()):
        parts = (Part(part.name, (-1,) * len(part.inputs), part.step, proof),)
        alone = Proved(parts, tuple(x.shape[1:]), norm=norm)
        values = [value[usable], x[usable]] if len(part.inputs) == 1 else None
        stretch = _stretch(alone, x[usable], values)
    verdict = "ASSUMED" if proof.assumed else "PROVED" if proof.proved else "UNKNOWN"
    refuted = contradicts(stretch, part, norm)
    return LayerAudit(
        part.name,
        part.op,
        "REFUTED" if refuted else verdict,
        stretch.ratio,
        proof.lipschitz,
        proof.method,
        stretch if refuted else None,
    )


def _stretch(proved: Proved, x: Tensor, values: list[Tensor] | None) -> Stretch:
    """Two points that the parts move apart as far as possible; large networks are searched in float32.

    ``values`` is what every part computes at x, and then x itself, if that is known.
    """
    large = _large(proved)
    return stretch_estimate(
        lambda x: proved.run(x, fast=large)[-1],
        x,
        dtype=torch.float32 if large else torch.float64,
        measured=lambda x: _measure(proved, [*proved.run(x), x]),
        at_points=None if values is None else _measure(proved, values),
        upper=proved.lipschitz,
        norms=(proved.norm, proved.norm_at(len(proved.parts) - 1)),
    )


def _large(proved: Proved) -> bool:
    """Whether a search in float32 saves seconds. A user's own module may not run in it."""
    if any(part.proof.assumed for part in proved.parts):
        return False
    tensors = sum(tensor.numel() for part in proved.parts for tensor in part.step.buffers())
    shapes = [*(part.proof.shape for part in proved.parts), proved.input_shape]
    return tensors + sum(part.step.room(shapes[part.inputs[0]]) for part in proved.parts) > LARGE


def repeated(part: Part) -> Function:
    """The part as a function of one input, which each of its inputs is."""
    return lambda x: part.forward(*[x] * len(part.inputs))


def _cropped(part: Part, inputs: list[Tensor]) -> Function:
    """The part as a function of one input, of which each of its inputs is the beginning."""
    shapes = [value.shape[1:] for value in inputs]
    return lambda x: part.forward(*(x.flatten(1)[:, : shape.numel()].unflatten(1, shape) for shape in shapes))


def contradicts(stretch: Stretch, part: Part, norm: str = "l2") -> bool:
    """Whether two points contradict the constant that a part claims, or the one that is proved about it.

    They are measured in ``norm``.

    Where its rounding error is unknown, the excess could be rounding, which shrinks as the points move apart: then
    it must be about as large between points sixteen times further apart.
    """
    proof, run = part.proof, repeated(part)
    claim = proof.lipschitz if proof.claim is None else proof.claim
    excess = stretch.ratio - claim
    if not excess > 0:
        return False
    first, second = stretch.first[None], stretch.second[None]
    norms = measure(torch.cat((first, second)), norm)
    if bool(torch.isfinite(proof.error_bound(proof.reached([norms] * len(part.inputs)), U64)).all()):
        return True
    with torch.no_grad():
        second = first + 16 * (second - first)
        image = measure(run(second) - run(first), proof.norm)
        moved = float(image) / float(measure(second - first, norm))
    return moved - claim >= excess / 4


def _measure(proved: Proved, values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What is computed last, and a bound of ‖computed − exact‖: err ← L·err + e(‖ẑ‖ + err); the input is −1."""
    errors: dict[int, Tensor] = {-1: torch.zeros(len(values[-1]), dtype=torch.float64)}
    for index, part in enumerate(proved.parts):
        proof = part.proof
        sizes = [
            (measure(values[p], proved.norm_at(p)) + errors[p]) * (1 + 2.0**-20) + 2.0**-400 for p in part.inputs
        ]
        bound = proof.error_bound(proof.reached(sizes), U64)
        # Where no bound is known, 2⁻³⁶ of what the part itself computes stands in for it.
        usual = 2.0**-36 * measure(values[index], proof.norm)
        own = torch.where(torch.isfinite(bound), bound, usual)
        errors[index] = (proof.carried([errors[p] for p in part.inputs]) + own) * (1 + 2.0**-20)
    return values[-2], errors[len(proved.parts) - 1]


def _random(shape: Shape, samples: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(samples, *shape, generator=generator, dtype=torch.float64)
