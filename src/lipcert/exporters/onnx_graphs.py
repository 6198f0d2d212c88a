"""Read ONNX files that other programs wrote, as graphs of ops: what ``lipcert audit model.onnx`` proves.

Each node of the file becomes what the call of torch becomes that computes the same (``certified.calls``). What has
no proof is named, all of it at once. The result is compared with onnxruntime on examples.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipcert.certified import calls, ops
from lipcert.certified.calls import Maker, Ref
from lipcert.certified.foreign import FOREIGN
from lipcert.certified.network import INPUT, Network, Node, reached
from lipcert.certified.op import Op, Shape, require
from lipcert.certified.ops import BATCH
from lipcert.certified.records import MOST_ENTRIES
from lipcert.certified.trace import near
from lipcert.errors import NotCertified
from lipcert.exporters.programs import extra

OLDEST = 13  # opset: before it, operators had other settings
TYPES = {1: torch.float32, 11: torch.float64}  # by their number in a file
MOST_NUMBERS = 2**26  # of one value, with all its examples
EXAMPLES = 2**45 - 55  # stands for the number of examples among sizes; whatever is computed from it is refused


@dataclass
class _Graph:
    """The nodes that are being collected, with the shapes of what they compute."""

    shapes: dict[str, Shape]
    kind: int  # of its numbers, as a file has it
    batch: int | None  # the number of examples, if the file fixes it
    nodes: list[Node] = field(default_factory=list)
    line: str = ""  # the node of the file that is being read

    def append(self, op: Op, inputs: tuple[str, ...], hint: str) -> str:
        shapes = [self.shapes[name] for name in inputs]
        op = op.at(*shapes)
        inputs, shapes = inputs[: op.inputs], shapes[: op.inputs]
        name = hint
        while name in self.shapes or hasattr(Network, name) or name == "training":  # which torch has
            name += "_"
        self.shapes[name] = op.output_shape(op.meet(shapes))
        self.require_room(self.shapes[name])
        self.nodes.append(Node(name, op, inputs, self.line))
        return name

    def require_room(self, shape: Shape) -> None:
        size, examples = math.prod(shape), self.batch or 2
        require(
            size <= MOST_ENTRIES and size * examples <= MOST_NUMBERS,
            f"values of shape {shape} are too large for {examples} examples.",
        )

    def network(self, result: Any) -> Network:
        """The nodes that the result needs."""
        names = [node.name for node in self.nodes]
        require(isinstance(result, Ref) and result.name in names, "its output must be computed from its input.")
        return Network(reached(self.nodes[: names.index(result.name) + 1])).eval()


@dataclass(frozen=True)
class _Call:
    """One node of the file: its settings and the values that it reads, ``None`` where it leaves one out."""

    make: Maker
    graph: _Graph
    values: tuple[Any, ...]
    settings: dict[str, Any]
    outputs: int

    def __getitem__(self, place: int) -> Any:
        return self.values[place] if place < len(self.values) else None

    def get(self, name: str, default: Any = None) -> Any:
        value = self.settings.get(name, default)
        if isinstance(value, float):
            return float(np.float32(value))  # so that a default is what the file could hold
        return value.decode() if isinstance(value, bytes) else value

    def expect(self, **settings: Any) -> None:
        """Refuse other settings than these, which are the usual ones."""
        for name, value in settings.items():
            got = self.get(name, value)
            require(got == value, f"{name} must be {value!r}, got {got!r:.60}.")

    def shape(self, place: int = 0) -> Shape:
        return self.graph.shapes[self.ref(place).name]

    def ref(self, place: int = 0) -> Ref:
        value = self[place]
        require(isinstance(value, Ref), f"input {place} must depend on the input of the network.")
        assert isinstance(value, Ref)
        return value

    def constant(self, place: int, default: Any = None) -> Any:
        """A tensor of the file."""
        value = self[place]
        require(not isinstance(value, Ref), f"input {place} must be stored in the file.")
        counts = isinstance(value, Tensor) and not value.is_floating_point() and bool((value == EXAMPLES).any())
        require(not counts, "a number is computed from the number of examples.")
        return default if value is None else value

    def whole(self, place: int, setting: str = "") -> Any:
        """Whole numbers of an input, or of a setting in older versions; None if there are none."""
        value = self[place]
        if value is None:
            return self.get(setting)
        whole = isinstance(value, Tensor) and not value.is_floating_point()
        require(whole, f"input {place} must be whole numbers that are stored in the file.")
        numbers = value.tolist()
        return [BATCH if n == EXAMPLES else n for n in numbers] if isinstance(numbers, list) else numbers


Converter = Callable[[_Call], Any]


def _function(name: str, **defaults: Any) -> Converter:
    """The call of torch of that name on the only input, with these settings of the node."""
    return lambda node: _call(name)(
        node.make, node.ref(), *(node.get(key, default) for key, default in defaults.items())
    )


def _call(name: str) -> Callable[..., Any]:
    call = calls.find(name)
    require(call is not None, f"{name} has no proof here.")
    assert call is not None
    return call


def _both(function: Callable[..., Any]) -> Converter:
    """A sum, a product and so on of all inputs."""

    return lambda node: functools.reduce(functools.partial(function, node.make), node.values)


def _selu(node: _Call) -> Any:
    x = _call("elu")(node.make, node.ref(), node.get("alpha", 1.67326319217681884765625))
    return calls.mul(node.make, x, node.get("gamma", 1.05070102214813232421875))


def _clip(node: _Call) -> Any:
    return calls.clamp(node.make, node.ref(), node.constant(1), node.constant(2))


def _softplus(node: _Call) -> Any:
    return _call("softplus")(node.make, node.ref(), 1.0, 40.0)  # torch's jumps at its threshold


def _hard_sigmoid(node: _Call) -> Any:
    x = calls.mul(node.make, node.ref(), node.get("alpha", 0.2))
    return calls.clamp(node.make, calls.add(node.make, x, node.get("beta", 0.5)), 0.0, 1.0)


def _prelu(node: _Call) -> Any:
    slopes, channels = node.constant(1), -len(node.shape())
    wide = [place - slopes.ndim for place, size in enumerate(slopes.shape) if size > 1]
    require(wide in ([], [channels]), f"it must have one slope or one for each channel, got {tuple(slopes.shape)}.")
    return calls.prelu(node.make, node.ref(), slopes)


def _gemm(node: _Call) -> Any:
    node.expect(transA=0)
    weight, bias = node.constant(1), node.constant(2)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    rows = weight if node.get("transB", 0) else weight.mT
    if alpha == beta == 1 and (bias is None or bias.shape == rows.shape[:1]):
        return calls.linear(node.make, node.ref(), rows, bias)
    y = calls.matmul(node.make, node.ref(), rows.mT)
    y = y if alpha == 1 else calls.mul(node.make, y, alpha)
    return y if bias is None else calls.add(node.make, y, bias if beta == 1 else bias.double() * beta)


def _matmul(node: _Call) -> Any:
    return calls.matmul(node.make, node[0], node[1])


def _sides(node: _Call, axes: int) -> tuple[Any, list[int]]:
    """Its input, padded where both sides differ, and what is left to pad on both sides."""
    node.expect(auto_pad="NOTSET")
    pads = node.get("pads", [0] * 2 * axes)
    before, after = list(pads[:axes]), list(pads[axes:])
    if before == after:
        return node.ref(), before
    both = [side for pair in zip(reversed(before), reversed(after), strict=True) for side in pair]
    return calls.padded(node.make, node.ref(), both), [0] * axes


def _convolution(node: _Call) -> Any:
    weight, axes = node.constant(1), node.constant(1).ndim - 2
    x, padding = _sides(node, axes)
    ones = [1] * axes
    stride, dilation = node.get("strides", ones), node.get("dilations", ones)
    settings = (stride, padding, dilation, node.get("group", 1))
    return _call(f"conv{axes}d")(node.make, x, weight, node.constant(2), *settings)


def _transposed(node: _Call) -> Any:
    weight, axes = node.constant(1), node.constant(1).ndim - 2
    require("output_shape" not in node.settings, "its output_shape must not be set.")
    ones, padding = [1] * axes, _alike(node, axes)
    more, stride = node.get("output_padding", [0] * axes), node.get("strides", ones)
    settings = (stride, padding, more, node.get("group", 1), node.get("dilations", ones))
    return _call(f"conv_transpose{axes}d")(node.make, node.ref(), weight, node.constant(2), *settings)


def _alike(node: _Call, axes: int) -> list[int]:
    node.expect(auto_pad="NOTSET", ceil_mode=0)
    pads = list(node.get("pads", [0] * 2 * axes))
    require(pads[:axes] == pads[axes:], f"it must pad both sides alike, got pads {pads}.")
    return pads[:axes]


def _windows(node: _Call) -> tuple[list[int], list[int], list[int]]:
    """Its kernel, ones and its padding."""
    kernel = list(node.get("kernel_shape"))
    padding = _alike(node, len(kernel))
    entries = sum((n + 2 * p) * k for n, p, k in zip(node.shape()[1:], padding, kernel, strict=True))
    require(entries <= MOST_ENTRIES, f"its windows {kernel} are too large.")
    return kernel, [1] * len(kernel), padding


def _average(node: _Call) -> Any:
    kernel, ones, padding = _windows(node)
    node.expect(dilations=ones)
    settings = (kernel, node.get("strides", ones), padding, False, bool(node.get("count_include_pad", 0)))
    return _call(f"avg_pool{len(kernel)}d")(node.make, node.ref(), *settings)


def _largest(node: _Call) -> Any:
    kernel, ones, padding = _windows(node)
    settings = (kernel, node.get("strides", ones), padding, node.get("dilations", ones))
    return _call(f"max_pool{len(kernel)}d")(node.make, node.ref(), *settings)


def _over_space(function: Callable[..., Any]) -> Converter:
    return lambda node: function(node.make, node.ref(), tuple(range(2, len(node.shape()) + 1)), True)


def _reduced(function: Callable[..., Any]) -> Converter:
    def convert(node: _Call) -> Any:
        axes = node.whole(1, "axes")
        return function(node.make, node.ref(), tuple(axes) if axes else None, bool(node.get("keepdims", 1)))

    return convert


def _batch_norm(node: _Call) -> Any:
    node.expect(training_mode=0)
    scale, shift, mean, variance = (node.constant(place) for place in range(1, 5))
    eps = node.get("epsilon", 1e-5)
    return calls.batch_norm(node.make, node.ref(), mean, variance, scale, shift, eps=eps)


def _same(node: _Call) -> Any:
    require(node[2] is None or not bool(node.constant(2)), "it is random in training mode.")
    return node[0]


def _cast(node: _Call) -> Any:
    value, wanted = node[0], node.get("to")
    if isinstance(value, Ref):
        node.expect(to=node.graph.kind)
        return value
    if not value.is_floating_point() and wanted in (6, 7):  # whole numbers to whole numbers
        value = value.long()
        small = (value.abs() < 2**31) | (value == EXAMPLES)
        require(wanted == 7 or bool(small.all()), "a number does not fit into 32 bits.")
        return value
    require(wanted in TYPES, "a stored tensor must be converted to float32 or float64.")
    return node.constant(0).to(TYPES[wanted])


def _reshape(node: _Call) -> Any:
    sizes = node.whole(1)
    if isinstance(node[0], Tensor):
        require(0 not in sizes, "a size of a stored tensor is 0.")
        return node[0].reshape(sizes)
    shape = (BATCH, *node.shape())
    sizes = [shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    if sizes and sizes[0] == node.graph.batch:
        sizes[0] = BATCH
    return calls.view(node.make, node.ref(), *sizes)


def _flattened(node: _Call) -> Any:
    node.expect(axis=1)
    return calls.flatten(node.make, node.ref(), 1)


def _transpose(node: _Call) -> Any:
    if isinstance(node[0], Tensor):
        return node[0].permute(node.get("perm", list(reversed(range(node[0].ndim)))))
    return calls.permute(node.make, node.ref(), *node.get("perm", reversed(range(len(node.shape()) + 1))))


def _squeeze(node: _Call) -> Any:
    axes = node.whole(1, "axes")
    if isinstance(node[0], Tensor):
        return node[0].squeeze() if axes is None else node[0].squeeze(tuple(axes))
    return calls.squeezed(node.make, node.ref(), axes)


def _unsqueeze(node: _Call) -> Any:
    value, axes = node[0], node.whole(1, "axes")
    count = (value.ndim if isinstance(value, Tensor) else len(node.shape()) + 1) + len(axes)
    for axis in sorted(axis % count for axis in axes):
        value = value.unsqueeze(axis) if isinstance(value, Tensor) else calls.unsqueezed(node.make, value, axis)
    return value


def _concat(node: _Call) -> Any:
    if all(isinstance(value, Tensor) for value in node.values):
        return torch.cat(node.values, node.get("axis"))
    return calls.concatenate(node.make, node.values, node.get("axis"))


def _split(node: _Call) -> Any:
    axis, sizes = node.get("axis", 0), node.whole(1, "split")
    if sizes is None:
        return calls.chunk(node.make, node.ref(), node.get("num_outputs", node.outputs), axis)
    return calls.split(node.make, node.ref(), sizes, axis)


def _slice(node: _Call) -> Any:
    starts, ends, axes, steps = (node.whole(place) for place in range(1, 5))
    value = node[0]
    axis_count = value.ndim if isinstance(value, Tensor) else len(node.shape()) + 1
    index = [slice(None)] * axis_count
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = place if axes is None else axes[place]
        index[axis] = slice(start, end, 1 if steps is None else steps[place])
    if isinstance(value, Tensor):
        return value[tuple(index)]
    return calls.item(node.make, value, tuple(index))


def _gather(node: _Call) -> Any:
    axis, places = node.get("axis", 0), node.whole(1)
    value = node[0]
    if isinstance(value, Tensor):
        require(value.ndim == 1, "entries of a stored tensor are selected.")
        return value[node.constant(1)]
    axis %= len(node.shape()) + 1
    return calls.item(node.make, value, (*[slice(None)] * axis, places))


def _pad(node: _Call) -> Any:
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    pads, axes, count = node.whole(1), node.whole(3), len(node.shape()) + 1
    require(all(abs(side) <= MOST_ENTRIES for side in pads), f"it pads by {pads}.")
    axes = list(range(count)) if axes is None else [axis % count for axis in axes]
    sides = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    both = [side for axis in reversed(range(count)) for side in sides.get(axis, (0, 0))]
    while len(both) > 2 and both[-2:] == [0, 0]:
        both = both[:-2]
    mode = modes.get(node.get("mode", "constant"), "")
    return calls.padded(node.make, node.ref(), both, mode, float(node.constant(2, 0.0)))


def _to_space(node: _Call) -> Any:
    require(node.get("mode", "DCR") == "CRD", "its mode must be CRD, which is nn.PixelShuffle.")
    return _call("pixel_shuffle")(node.make, node.ref(), node.get("blocksize"))


def _expand(node: _Call) -> Any:
    sizes, count = node.whole(1), len(node.shape()) + 1
    require(len(sizes) == count, f"it has {count} axes and is expanded to {len(sizes)}.")
    require(sizes[0] in (1, BATCH, node.graph.batch), "the number of examples changes.")
    require(max(sizes[1:], default=1) <= MOST_ENTRIES, f"it expands to {sizes}.")
    return calls.expand(node.make, node.ref(), BATCH, *(-1 if size == 1 else size for size in sizes[1:]))


def _sorted(node: _Call) -> Any:
    """The largest or smallest k of k entries are all of them, sorted."""
    axis, shape = node.get("axis", -1), node.shape()
    axis = axis - 1 if axis > 0 else axis + len(shape)
    wanted = node.whole(1)
    require(0 <= axis < len(shape) and wanted == [shape[axis]], "it must sort all entries along an axis.")
    node.expect(sorted=1)
    return [node.make.emit(ops.GroupSort(shape[axis], axis, bool(node.get("largest", 1))), node.ref()), None]


def _sizes(node: _Call) -> Any:
    start, end = node.get("start", 0), node.get("end")
    return torch.tensor([EXAMPLES, *node.shape()][start:end])


def _stored(node: _Call) -> Any:
    for name, kind in (("value_float", torch.float32), ("value_floats", torch.float32), ("value_int", torch.int64)):
        if name in node.settings:
            return torch.tensor(node.settings[name], dtype=kind)
    if "value_ints" in node.settings:
        return torch.tensor(node.settings["value_ints"], dtype=torch.int64)
    return _tensor(node.settings["value"])


OPS: dict[str, Converter] = {
    **{
        name: _function(name.lower())
        for name in ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Softsign", "Mish", "HardSwish")
    },
    "Elu": _function("elu", alpha=1.0),
    "Celu": _function("celu", alpha=1.0),
    "LeakyRelu": _function("leaky_relu", alpha=0.01),
    "Gelu": _function("gelu", approximate="none"),
    "Softmax": _function("softmax", axis=-1),
    "LogSoftmax": _function("log_softmax", axis=-1),
    "Selu": _selu,
    "Softplus": _softplus,
    "HardSigmoid": _hard_sigmoid,
    "PRelu": _prelu,
    "Clip": _clip,
    "Add": _both(calls.add),
    "Sum": _both(calls.add),
    "Sub": _both(calls.sub),
    "Mul": _both(calls.mul),
    "Div": _both(calls.div),
    "Max": _both(calls.maximum),
    "Min": _both(calls.minimum),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "BatchNormalization": _batch_norm,
    "AveragePool": _average,
    "MaxPool": _largest,
    "GlobalAveragePool": _over_space(calls.mean),
    "GlobalMaxPool": _over_space(calls.amax),
    "ReduceMean": _reduced(calls.mean),
    "ReduceSum": _reduced(calls.total),
    "ReduceMax": _reduced(calls.amax),
    "ReduceMin": _reduced(calls.amin),
    "Identity": _same,
    "Dropout": _same,
    "Cast": _cast,
    "Reshape": _reshape,
    "Flatten": _flattened,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Pad": _pad,
    "DepthToSpace": _to_space,
    "Expand": _expand,
    "TopK": _sorted,
    "Shape": _sizes,
    "Constant": _stored,
}


def read_graph(path: str | Path) -> tuple[Network, Shape]:
    """The ops of an ONNX file, and the shape of one input. Needs ``lipcert[export]``.

    Raises:
        NotCertified: for operators without a proof, all of which are named.
        ValueError: for a file that is no ONNX model with one input of fixed sizes and one output.
    """
    onnx, runtime = extra("onnx"), extra("onnxruntime")
    try:
        model = onnx.load(path)
        stored = {tensor.name: _tensor(tensor) for tensor in model.graph.initializer}
    except OSError:
        raise
    except Exception as error:  # the package has its own kinds
        raise _no_model(path, error) from None
    opsets = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
    inputs = [value for value in model.graph.input if value.name not in stored]
    if len(opsets) != 1 or opsets[0] < OLDEST or len(inputs) != 1 or len(model.graph.output) != 1:
        raise ValueError(
            f"{path} must have opset {OLDEST} or later, one input and one output, got opset {opsets}, "
            f"{len(inputs)} and {len(model.graph.output)}. Export it again."
        )
    names = [one.name for one in (*model.graph.initializer, *inputs)]
    names += [name for node in model.graph.node for name in node.output]
    if len(set(names)) < len(names) or "" in names or model.graph.sparse_initializer:
        raise ValueError(f"{path} must have no value without a name, twice or sparse. Export it again.")
    tensor = inputs[0].type.tensor_type
    first, *sizes = [axis.dim_value for axis in tensor.shape.dim] or [0]  # 0 where a size is not fixed
    if tensor.elem_type not in TYPES or not sizes or min(sizes) < 1:
        raise ValueError(
            f"the input of {path} must be float32 or float64, with fixed sizes behind the batch, got type "
            f"{tensor.elem_type} and sizes {[first, *sizes]}. Export it with such an input."
        )
    graph = _Graph({INPUT: tuple(sizes)}, tensor.elem_type, first if first > 0 else None)
    graph.require_room(tuple(sizes))
    unknown = [_title(node) for node in model.graph.node if node.domain or node.op_type not in OPS]
    if unknown:
        more = f" and {len(unknown) - 20} more" if len(unknown) > 20 else ""
        raise NotCertified(
            f"{path} has operators without a proof here: {', '.join(unknown[:20])}{more}. Export the network "
            "without them, or audit it in PyTorch."
        )
    values: dict[str, Any] = {"": None, **stored, inputs[0].name: Ref(INPUT)}
    for node in model.graph.node:
        try:
            _read(node, graph, values)
        except NotCertified as refusal:
            raise NotCertified(f"{_title(node)}: {refusal}") from None
        except Exception as error:  # settings that make no sense together
            raise NotCertified(
                f"{_title(node)}: its settings have no meaning here ({_first_line(error)})."
            ) from None
    network = graph.network(values.get(model.graph.output[0].name))
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the package has its own kinds
        raise _no_model(path, error) from None
    _compare(network, session, inputs[0].name, tuple(sizes), graph)
    return network, tuple(sizes)


def _no_model(path: str | Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is no ONNX model that can be run ({_first_line(error)}). Export it again.")


def _title(node: Any) -> str:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{kind:.40} ({node.name or ' '.join(node.output):.60})"


def _tensor(stored: Any) -> Tensor:
    return torch.from_numpy(np.array(extra("onnx").numpy_helper.to_array(stored)))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _integers(value: Any) -> list[int]:
    return [n for n in (value if isinstance(value, list) else [value]) if isinstance(n, int)]


def _read(node: Any, graph: _Graph, values: dict[str, Any]) -> None:
    """Append the ops of one node, and note what it computes."""
    read = extra("onnx").helper.get_attribute_value
    settings = {attribute.name: read(attribute) for attribute in node.attribute}
    large = [n for value in settings.values() for n in _integers(value) if abs(n) > 2**20]
    require(node.op_type == "Constant" or not large, f"its settings are too large: {large[:4]}.")
    require(max(settings.get("strides", [1])) <= 2**10, "its strides are too large.")
    hint = re.sub(r"\W+", "_", node.output[0]).strip("_") or node.op_type.lower()
    graph.line = _title(node)
    make = Maker(graph.append, lambda module: FOREIGN[type(module)](module), hint)
    given = tuple(values[name] for name in node.input)
    result = OPS[node.op_type](_Call(make, graph, given, settings, len(node.output)))
    if isinstance(result, calls.Pieces):
        result = [result.take(place) for place in range(len(node.output))]
    several = result if isinstance(result, list) else [result]
    values.update(dict(zip(node.output, several, strict=False)))


def _compare(network: Network, session: Any, name: str, shape: Shape, graph: _Graph) -> None:
    """Refuse a graph that gives another output than onnxruntime, on examples."""
    generator = torch.Generator().manual_seed(0)
    for count in (2, 1) if graph.batch is None else (graph.batch,):
        x = torch.randn(count, *shape, generator=generator, dtype=TYPES[graph.kind])
        try:
            given = torch.from_numpy(session.run(None, {name: x.numpy()})[0])
        except Exception as error:  # sizes that fit only here
            raise NotCertified(f"onnxruntime cannot run it ({_first_line(error)}). Export it again.") from None
        values = {INPUT: x.double()}
        for node in network.nodes:
            values[node.name] = node.op(*(values[place] for place in node.inputs))
        found = [*values.values()]
        if given.shape != found[-1].shape or not near(given, found):
            raise NotCertified(
                "onnxruntime computes something else on examples than what was read from the file. Export it "
                "again, or audit the network in PyTorch."
            )
