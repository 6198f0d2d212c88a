"""Describe a proved network by records and tensors, and rebuild it from them. Nothing in a file is executed.

The records are the ``nodes`` of docs/certificate.md: the arguments of each op, with tensors by name and real
numbers in hexadecimal. A file may come from anyone, so ``rebuild`` refuses whatever ``describe`` would not have
written: an unknown op, a missing or additional field, a tensor of another name, shape or dtype, a tensor or a node
that nothing uses. It follows the shape of an input through the graph and refuses a network that does not fit
together or that needs too much memory.

Rounding: none. Tensors are stored as the proof has them.
"""

from __future__ import annotations

import functools
import math
import reprlib
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from torch import Tensor

from lipcert.certified.network import INPUT, MOST_CLASSES, Network, Node, Part, Proved
from lipcert.certified.op import Op, Shape
from lipcert.certified.ops import OPS, Assumed, Real
from lipcert.errors import NotCertified
from lipcert.intact import all_finite

# What a file may ask for. An image of 224×224 with 64 channels has 2^21.6 entries, its 3×3 patches 2^24.8.
MOST_NODES = 2**12
MOST_ENTRIES = 2**23  # of one example between two ops
MOST_PATCHES = 2**25  # numbers that an op holds for one example
MOST_WAITING = 2**26  # numbers of one example that wait for a later node
DEEPEST_NAME = 32  # parts between dots
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^.\s]+(\.[^.\s]+)*$")]
_NAME = TypeAdapter(Name)


@dataclass(frozen=True)
class Records:
    """The ``nodes``, the ``tensors`` and the ``input_shape`` of a certificate."""

    nodes: list[Any]
    tensors: dict[str, Tensor]
    input_shape: Shape


def describe(proved: Proved) -> Records:
    """The records of a network; ``NotCertified`` for a part whose constant is only assumed."""
    tensors: dict[str, Tensor] = {}
    nodes = [_record(proved, part, tensors) for part in proved.parts]
    return Records(nodes, tensors, proved.input_shape)


def _record(proved: Proved, part: Part, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if isinstance(part.step, Assumed):
        raise NotCertified(
            f"the constant of {part.name} ({part.op}) is assumed, so no checker could repeat its radii. Replace it "
            "by a module with a proof."
        )
    if part.name.count(".") >= DEEPEST_NAME or not _is_name(part.name):
        raise NotCertified(
            f"the layer {show(part.name)} has a name that no file can have: at most 256 characters, no spaces, and "
            f"at most {DEEPEST_NAME} parts between dots. Please rename it."
        )
    fields: dict[str, Any] = {"op": part.op}
    for key, value in part.step.fields().items():
        if isinstance(value, Tensor):
            tensors[f"{part.name}.{key}"] = value.detach().cpu().contiguous().clone()
            value = f"{part.name}.{key}"
        fields[key] = _plain(value)
    inputs = [INPUT if place < 0 else proved.parts[place].name for place in part.inputs]
    return {"name": part.name, "inputs": inputs, **fields, "lipschitz": float(part.proof.lipschitz).hex()}


def _is_name(name: str) -> bool:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def _plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, float):
        return value.hex()
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


@functools.cache
def _schema(kind: type[Op]) -> tuple[type[BaseModel], frozenset[str]]:
    """What a record of that op must look like, and which of its fields are tensors."""
    hints = get_type_hints(kind.__init__, include_extras=True)
    hints.pop("return")
    tensors = {name for name, hint in hints.items() if hint in (Tensor, Tensor | None)}
    fields: dict[str, Any] = {
        "op": (str, ...),
        "name": (Name, ...),
        "inputs": (list[Name], ...),
        "lipschitz": (Real, ...),
    }
    for name, hint in hints.items():
        fields[name] = ({Tensor: str, Tensor | None: str | None}.get(hint, hint), ...)
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid"), **fields), frozenset(tensors)


def rebuild(records: Records) -> Network:
    """The frozen network that the records describe, in evaluation mode.

    Raises:
        ValueError: if the records do not describe a network; the message names the node.
    """
    if not 0 < len(records.nodes) <= MOST_NODES:
        raise ValueError(f"a network has 1 to {MOST_NODES} nodes, got {len(records.nodes)}. Export it again.")
    nodes: list[Node] = []
    shapes: dict[str, Shape] = {INPUT: records.input_shape}
    used: set[str] = set()
    for index, record in enumerate(records.nodes):
        op = record.get("op") if isinstance(record, dict) else None
        if not isinstance(op, str) or op not in OPS:
            raise ValueError(
                f"node {index} must be one of {sorted(OPS)}; got {show(op)}. Export the network again."
            )
        try:
            node = _node(record, records.tensors)
            if node.name in shapes or node.name.count(".") >= DEEPEST_NAME:
                raise ValueError(f"the name {show(node.name)} is taken, or too long")
            if not node.inputs or any(name not in shapes for name in node.inputs):
                raise ValueError(f"its inputs {show(node.inputs)} must come before it")
            shapes[node.name] = _shape_after(node, [shapes[name] for name in node.inputs])
        except (ValidationError, ValueError, OverflowError) as error:
            raise ValueError(f"node {index} ({op}): {reason(error)}. Export the network again.") from None
        nodes.append(node)
        used |= {f"{node.name}.{name}" for name in node.op._buffers if node.op._buffers[name] is not None}
    _require_room(nodes, shapes)
    out = shapes[nodes[-1].name]
    if len(out) == 1 and out[0] > MOST_CLASSES:
        raise ValueError(f"a network has at most {MOST_CLASSES} classes, got {out[0]}. Use fewer.")
    idle = {node.name for node in nodes[:-1]} - {name for node in nodes for name in node.inputs}
    if odd := sorted((used ^ set(records.tensors)) | idle):
        raise ValueError(f"every tensor and every node must be used; got {show(odd)}. Export the network again.")
    return Network(nodes).eval()


def _require_room(nodes: list[Node], shapes: dict[str, Shape]) -> None:
    """Raise ValueError if too many values wait for a later node at once."""
    last = {name: index for index, node in enumerate(nodes) for name in node.inputs}
    waiting: dict[str, int] = {}
    for index, node in enumerate(nodes):
        waiting[node.name] = math.prod(shapes[node.name])
        if sum(waiting.values()) > MOST_WAITING:
            raise ValueError(
                f"node {index} ({node.op.op}): too many values wait for a later node. Use fewer branches."
            )
        waiting = {name: size for name, size in waiting.items() if last.get(name, -1) > index}


def _node(record: dict[str, Any], stored: dict[str, Tensor]) -> Node:
    """One node; its tensors are its own: otherwise many nodes could each copy the same large one."""
    kind = OPS[record["op"]]
    schema, tensors = _schema(kind)
    fields = dict(schema.model_validate(record))
    name, inputs, claimed = fields.pop("name"), tuple(fields.pop("inputs")), fields.pop("lipschitz")
    if not 0 <= claimed < math.inf:
        raise ValueError(f"lipschitz must be at least 0, got {claimed}")
    if "op" not in get_type_hints(kind.__init__):
        del fields["op"]
    for key in tensors:
        if fields[key] is None:
            continue
        if fields[key] != f"{name}.{key}" or fields[key] not in stored:
            raise ValueError(f"{key} must be the stored tensor {show(f'{name}.{key}')}")
        tensor = stored[fields[key]]
        if tensor.dtype != (torch.float64 if key == "witness" else torch.float32) or not all_finite(tensor):
            raise ValueError(f"{key} must be a tensor of finite float32 numbers (float64 for a witness)")
        fields[key] = tensor
    return Node(name, kind(**fields), inputs)


def _shape_after(node: Node, shapes: list[Shape]) -> Shape:
    if node.op.inputs != len(shapes):
        raise ValueError(f"it cannot read inputs of shapes {show(shapes)}")
    shape = node.op.meet(shapes)
    out = node.op.output_shape(shape)
    for what, count, most in (
        ("entries of its output", math.prod(out), MOST_ENTRIES),
        ("numbers on the way", node.op.room(shape), MOST_PATCHES),
    ):
        if not count <= most or min(out, default=0) < 1:
            raise ValueError(f"it needs {count:,} {what}, and at most {most:,} are allowed")
    return out


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


def show(value: object) -> str:
    """A short ``repr`` for a message, whatever the size and the depth of ``value``."""
    return _SHORT.repr(value)[:100]


def reason(error: Exception) -> str:
    """What is wrong, in a few words."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"][:3]))
        return f"{place}: {first['msg']}"[:160] + f", got {show(first['input'])}"
    return (str(error).rstrip(".").splitlines() or [type(error).__name__])[0][:160]
