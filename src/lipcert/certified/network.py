"""A frozen network: a graph of ops. ``prove`` follows the shape of one input through it and proves every op.

Every node names its inputs; a chain is the common case. Constants multiply along the graph and add where branches
meet, both rounded up.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.certified.norms import DUAL, apart, common, rows_up
from lipcert.certified.op import ROUND, Op, Proof, Shape, array, require
from lipcert.certified.ops import CLASSES, Assumed, Function, Linear
from lipcert.errors import NotCertified
from lipcert.intact import all_finite
from lipcert.verified import rounding
from lipcert.verified.rounding import prod_up

INPUT = "input"
ROOM = 1 + 2.0**-28  # of a constant, for a checker whose own proof rounds otherwise
MOST_CLASSES = 2**14  # a constant for each pair takes 2 GB then


@dataclass(frozen=True)
class Node:
    """One op of a graph, with the names of the nodes that it reads; ``INPUT`` is the network's input."""

    name: str
    op: Op
    inputs: tuple[str, ...] = (INPUT,)
    line: str = ""  # of the user's code, if a forward method was traced


def reached(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that the last one needs."""
    kept: list[Node] = []
    needed: set[str] = set()
    for node in reversed([*nodes]):
        if not kept or node.name in needed:
            kept.append(node)
            needed.update(node.inputs)
    return kept[::-1]


class Network(nn.Module):
    """What ``freeze`` returns: ops with buffers and no parameters, run in order.

    ``network[i]`` is an op, ``network.names`` are their names. Inputs are batches.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__()
        # Plain modules stand for the folders of dotted names, so that tensors are called as in the original
        # network.
        self._nodes = tuple(nodes)
        self._last_use = {name: index for index, node in enumerate(self._nodes) for name in node.inputs}
        names = {INPUT}
        for node in self._nodes:
            missing = [name for name in node.inputs if name not in names]
            if missing or node.name in names or not node.inputs:
                raise ValueError(f"node {node.name!r:.60} must have its own name and inputs that come before it.")
            if len(node.inputs) != node.op.inputs:
                raise ValueError(f"node {node.name!r:.60} reads {node.op.inputs} inputs, got {len(node.inputs)}.")
            names.add(node.name)
            place: nn.Module = self
            *folders, last = node.name.split(".")
            for folder in folders:
                if folder not in place._modules:
                    _add(place, folder, nn.Module())
                place = place._modules[folder]  # type: ignore[assignment]
            _add(place, last, node.op)
        idle = [name for name in self.names[:-1] if name not in self._last_use]
        if idle:
            raise ValueError(f"node {idle[0]!r:.60} is read by no other node. Leave it out.")

    def forward(self, x: Tensor) -> Tensor:
        values = {INPUT: x}
        for index, node in enumerate(self.nodes):
            x = node.op(*(values[name] for name in node.inputs))
            values = {name: value for name, value in values.items() if self._last_use.get(name, -1) > index}
            values[node.name] = x
        return x

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> Op:
        return self.nodes[index].op

    def __iter__(self) -> Iterator[Op]:
        return iter(node.op for node in self.nodes)


def _add(place: nn.Module, name: str, module: nn.Module) -> None:
    """Register a child; a layer may be called as a property of ``Network`` is."""
    if name in place._modules:
        raise ValueError(f"node {name!r:.60} has the name of a folder of nodes. Rename it.")
    if isinstance(place, Network) and name in ("nodes", "names"):
        place._modules[name] = module
        return
    try:
        place.add_module(name, module)
    except KeyError as error:
        raise ValueError(
            f"the name of a node must be one that torch allows; got {str(error)!r:.100}. Rename it."
        ) from None


@dataclass(frozen=True)
class Part:
    """A node with its proof; ``inputs`` are the places of the parts it reads, −1 for the input of the network."""

    name: str
    inputs: tuple[int, ...]
    step: Op
    proof: Proof
    block: int | None = None

    @property
    def op(self) -> str:
        return f"<{type(self.step.module).__qualname__}>" if isinstance(self.step, Assumed) else self.step.op

    def forward(self, *inputs: Tensor) -> Tensor:
        """Evaluate with the sums that the proof is about."""
        return self.step.evaluate(*inputs, self.block) if len(inputs) == 1 else self.step(*inputs)


@dataclass(frozen=True)
class Head:
    """The rows w_j and biases of a last linear map in float64, and ‖w_j‖ in the dual norm, rounded up."""

    weight: Tensor
    bias: Tensor
    norms: Tensor


@dataclass(frozen=True)
class Chain:
    """Consecutive parts that are proved together, by a method that sees more than the product of their norms.

    Several may be about the same parts: the smallest constant counts, for every pair of outputs.
    """

    first: int  # places of its parts
    last: int
    lipschitz: float
    pairs: Tensor | None  # (C, C) float64: of the differences of its outputs, if the network ends with them
    multipliers: tuple[Tensor, ...]  # what proves it, float64; a checker repeats the proof with them
    method: str


@dataclass(frozen=True)
class Proved:
    """The parts of a network for inputs of one shape, and the constants that follow from their proofs."""

    parts: tuple[Part, ...]
    input_shape: Shape
    chains: tuple[Chain, ...] = ()
    norm: str = "l2"  # of the input

    @property
    def shape(self) -> Shape:
        return self.parts[-1].proof.shape

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the rounding bounds assume about the platform's elementary functions."""
        return tuple(sorted({text for part in self.parts for text in part.proof.assumes}))

    @property
    def rounding_known(self) -> bool:
        return all(part.proof.rounding_known for part in self.parts)

    @cached_property
    def constants(self) -> tuple[float, ...]:
        """The constant of each part from the input of the network on, rounded up."""
        constants: list[float] = []
        for index, part in enumerate(self.parts):
            before = [1.0 if place < 0 else constants[place] for place in part.inputs]
            constants.append(constant_after(part.proof, before))
            for chain in self.chains:
                if chain.last == index:
                    (start,) = self.parts[chain.first].inputs
                    reached = prod_up([1.0 if start < 0 else constants[start], chain.lipschitz])
                    constants[index] = min(constants[index], reached)
        return tuple(constants)

    @property
    def headed(self) -> bool:
        """Whether the last part is a plain linear map from a vector to the logits."""
        step = self.parts[-1].step
        return isinstance(step, Linear) and len(self.shape) == 1 and step.groups == 1

    @property
    def lipschitz(self) -> float:
        return self.constants[-1]

    @property
    def backbone(self) -> float:
        """The constant of what comes before the head, or of the whole map without one."""
        if not self.headed:
            return self.lipschitz
        (place,) = self.parts[-1].inputs
        return 1.0 if place < 0 else self.constants[place]

    def norm_at(self, place: int) -> str:
        """The norm of what a part computes; −1 is the input."""
        return self.norm if place < 0 else self.parts[place].proof.norm

    def norm_into(self, index: int) -> str:
        """The norm in which a part takes its inputs."""
        return common(self.norm_at(place) for place in self.parts[index].inputs)

    def run(self, x: Tensor, *, fast: bool = False) -> list[Tensor]:
        """What every part computes; the last is the output. ``fast``: as deployed, not as it is proved."""
        values: list[Tensor] = []
        for part in self.parts:
            inputs = [x if place < 0 else values[place] for place in part.inputs]
            values.append(part.step(*inputs) if fast else part.forward(*inputs))
        return values

    def pairwise(self) -> Tensor | None:  # (C, C) float64
        """Constants of f_i − f_j from the input on, rounded up; with one output, (1, 1): that of f itself."""
        if not math.isfinite(self.backbone) or len(self.shape) != 1 or self.shape[0] > MOST_CLASSES:
            return None
        pairs = self.distances * self.backbone * (1 + 2.0**-50)
        pairs = torch.where((self.distances > 0) & (pairs < 2.0**-1000), pairs + 2.0**-1070, pairs)  # underflow
        return pairs if self.joint_pairs is None else torch.minimum(pairs, self.joint_pairs)

    def outputs(self) -> Tensor | None:  # (C,) float64
        """The constant of each output alone, rounded up; None where nothing is proved or it is no vector."""
        if not math.isfinite(self.backbone) or len(self.shape) != 1:
            return None
        if self.head is None:
            return torch.full(self.shape, self.lipschitz, dtype=torch.float64)
        each = self.head.norms * self.backbone * (1 + 2.0**-50)
        each = torch.where((self.head.norms > 0) & (each < 2.0**-1000), each + 2.0**-1070, each)  # underflow
        return each.clamp_max(self.lipschitz)

    @cached_property
    def joint_pairs(self) -> Tensor | None:  # (C, C) float64
        """Constants of f_i − f_j from the input on by the chains that end the network, rounded up."""
        joint: Tensor | None = None
        for chain in self.chains:
            if chain.pairs is not None:
                (start,) = self.parts[chain.first].inputs
                pairs = chain.pairs * (1.0 if start < 0 else self.constants[start]) * ROUND + 2.0**-1000
                joint = pairs if joint is None else torch.minimum(joint, pairs)
        return joint

    @cached_property
    def head(self) -> Head | None:
        """The last linear map, if there is one."""
        if not self.headed:
            return None
        step = self.parts[-1].step
        assert isinstance(step, Linear)
        weight = step.weight.double().cpu()
        bias = torch.zeros(len(weight)) if step.bias is None else step.bias.cpu()
        return Head(weight, bias.double(), torch.from_numpy(rows_up(array(weight), DUAL[self.norm_into(-1)])))

    @cached_property
    def distances(self) -> Tensor:  # (C, C) float64
        """‖w_i − w_j‖ of the last rows, rounded up, in the dual norm; with one output ‖w‖.

        Without a head √2, in L∞ 2 and in L1 1; with one output 1.
        """
        classes = self.shape[0]
        if classes > MOST_CLASSES:
            raise NotCertified(
                f"the network has {classes:,} outputs, and the constants of all pairs are kept for at most "
                f"{MOST_CLASSES:,}. Certify a network with fewer classes."
            )
        if self.head is None:
            same = 1.0 if classes == 1 else apart(self.norm_at(len(self.parts) - 1))
            return torch.full((classes, classes), same, dtype=torch.float64)
        if classes == 1:
            return self.head.norms[:, None]
        rows, dual = array(self.head.weight), DUAL[self.norm_into(-1)]
        return torch.from_numpy(np.stack([rows_up(row - rows, dual) for row in rows]) * (1 + 2.0**-50))


def constant_after(proof: Proof, before: list[float]) -> float:
    """The constant after an op, from those of its inputs."""
    gains = (proof.lipschitz,) if proof.gains is None else proof.gains
    known = all(map(math.isfinite, (*gains, *before)))
    if known and not any(gain and one for gain, one in zip(gains, before, strict=True)):
        return 0.0  # exactly, so nothing is rounded up
    if proof.gains is not None:
        # Each term and the sum are rounded once more; what underflows loses at most 2⁻¹⁰⁷⁴ a term.
        terms = [gain * constant for gain, constant in zip(proof.gains, before, strict=True)]
        try:
            total = math.hypot(*terms) if proof.side_by_side else math.fsum(terms)
        except OverflowError:
            return math.inf
        return total * ROUND + 2.0**-1060
    (total,) = before
    if proof.lipschitz == 1.0:
        return total
    return math.nextafter(total * proof.lipschitz, math.inf) if proof.lipschitz else 0.0


def prove_network(
    network: Network, shape: Shape, dtype: torch.dtype, block: int | None, norm: str = "l2"
) -> Proved:
    """Prove every op of ``network`` for inputs of that shape. The ops must belong to it alone."""
    shapes: dict[str, Shape] = {INPUT: shape}
    norms = {INPUT: norm}
    places = {INPUT: -1}
    parts: list[Part] = []
    for node in network.nodes:
        label = type(node.op.module) if isinstance(node.op, Assumed) else type(node.op)
        where = f"{node.name} ({node.line or label.__qualname__})"
        try:
            there = [shapes[name] for name in node.inputs], [norms[name] for name in node.inputs]
            part = _proved(node, *there, dtype, block)
        except NotCertified as refusal:
            raise NotCertified(f"{where}: {refusal}") from None
        except (RuntimeError, IndexError) as error:  # this is how torch says that shapes do not fit
            reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
            raise ValueError(
                f"{where} does not accept inputs of shape {shapes[node.inputs[0]]}: {reason}. Check the shape of "
                "the input and the layers before it."
            ) from None
        places[node.name] = len(parts)
        shapes[node.name], norms[node.name] = part.proof.shape, part.proof.norm
        # Sizes are known now: a step that read them from other shapes has its own input alone.
        parts.append(replace(part, inputs=tuple(places[name] for name in node.inputs[: part.step.inputs])))
    return Proved(_read(parts), shape, norm=norm)


def _read(parts: list[Part]) -> tuple[Part, ...]:
    """The parts that the last one needs: of others nothing but the shape was read."""
    needed = {len(parts) - 1}
    for index in reversed(range(len(parts))):
        if index in needed:
            needed |= set(parts[index].inputs)
    places = {-1: -1} | {place: new for new, place in enumerate(sorted(needed - {-1}))}
    return tuple(
        replace(part, inputs=tuple(places[place] for place in part.inputs))
        for index, part in enumerate(parts)
        if index in places
    )


def _proved(node: Node, shapes: list[Shape], norms: list[str], dtype: torch.dtype, block: int | None) -> Part:
    """``shapes`` and ``norms`` are those of the nodes that it reads."""
    step = node.op
    if isinstance(step, Assumed):
        step = Assumed(copy.deepcopy(step.module).to(dtype).requires_grad_(False), step.declared, step.method)
    else:
        step = step.at(*shapes)
        known = type(step) in (*CLASSES, Function)  # a subclass could prove anything about itself
        require(known, "only the ops of lipcert are proved. Declare its constant with lipcert.register_rule.")
    shapes, norm = shapes[: step.inputs], common(norms[: step.inputs])
    shape = step.meet(shapes)
    # A witness proves something or nothing; it is no part of the function.
    tensors = [tensor for name, tensor in step.named_buffers() if name != "witness" and tensor.is_floating_point()]
    if isinstance(step, Assumed) or all_finite(*tensors):
        proof = step.prove_in(norm, shape, block)
    else:
        proof = Proof(step.output_shape(shape), math.inf, "NaN or infinity in its tensors", None, norm=norm)
    if not proof.shape:
        raise NotCertified("it must keep an axis for features behind the batch. Flatten from dimension 1.")
    if proof.lipschitz != 1.0:
        proof = replace(proof, lipschitz=proof.lipschitz * ROOM)
    if not math.isfinite(proof.lipschitz):
        proof = replace(proof, norm=norm)
    part = Part(node.name, (), step, proof, block)
    with torch.no_grad():
        out = part.forward(*(torch.zeros(1, *one, dtype=dtype) for one in shapes))
    if tuple(out.shape) != (1, *proof.shape) or out.dtype != dtype:
        raise NotCertified(
            f"it must give {dtype} outputs of shape {proof.shape}, but it gives {out.dtype} {tuple(out.shape[1:])}."
        )
    return part


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


def as_shape(value: Any) -> Shape:
    """The shape of one input as a tuple of positive integers."""
    try:
        shape = tuple(operator.index(size) for size in value)
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ValueError(
            f"the shape of one input must be positive integers, got {value!r:.60}. Pass e.g. (3, 32, 32)."
        )
    return shape
