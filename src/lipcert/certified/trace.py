"""Trace a ``forward`` method that a user wrote, and walk what it did as a graph of ops.

``torch.fx`` runs the method once on a stand-in for the input and notes every call. Modules with a converter are one
step each; ``calls`` has the ops of functions and methods; everything else is refused, with the line of the user's
code. What is computed from parameters alone is a constant.

What the note leaves out would make another function of it, so these are looked after here: an operation in place
changes every value that shares its memory, and none of those may be read later; branches on values cannot be noted;
random numbers, state and ``self.training`` make two runs differ.
"""

from __future__ import annotations

import copy
import itertools
import linecache
import math
import operator
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from lipcert.certified import calls, ops
from lipcert.certified.calls import Pieces, Ref
from lipcert.certified.op import Op, Shape
from lipcert.errors import NotCertified
from lipcert.intact import inner_module, require_intact

ROOT = "model"
LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))
STANDARD = sysconfig.get_path("stdlib")
IN_PLACE: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
ELSEWHERE = (
    "Write it with operations that docs/porting.md lists, or put it into a module of its own and declare its "
    "constant with lipcert.register_rule."
)
CHANGED = (
    "a parameter or a buffer is changed at every call, so the module is no fixed function. Compute a new tensor "
    "instead."
)


class Graph(Protocol):
    """The nodes that are being collected: ``freeze`` has the class."""

    parametrized: bool

    def add(self, module: nn.Module, name: str, source: str) -> str: ...
    def emit(self, op: Op, name: str, inputs: tuple[str, ...], line: str) -> str: ...
    def convert(self, module: nn.Module) -> list[Op]: ...
    def unique(self, name: str) -> str: ...
    def mark(self, start: int, line: str) -> bool: ...
    def count(self) -> int: ...
    def drop(self, start: int) -> None: ...


# --- The line of the user's code ---


def _foreign(filename: str) -> bool:
    """Whether a file belongs to torch, to this package or to Python: its lines tell a user nothing."""
    installed = "site-packages" in filename or "dist-packages" in filename
    standard = filename.startswith(STANDARD) and not installed
    return standard or filename.startswith((*LIBRARIES, "<eval_with_key>", "<frozen"))


def _shown(filename: str, number: int) -> str:
    code = linecache.getline(filename, number).strip()
    where = f"line {number} of {Path(filename).name}"
    return f"{where}, `{code:.100}`" if code else where


def _current_line() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _foreign(frame.f_code.co_filename):
        if frame.f_code is _noted.__code__:  # behind it is whoever asked for a proof
            return ""
        frame = frame.f_back
    return "" if frame is None else _shown(frame.f_code.co_filename, frame.f_lineno)


def _line_of(error: BaseException) -> str:
    """The last line of a user in a traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _foreign(frame.filename) and frame.lineno is not None:
            return _shown(frame.filename, frame.lineno)
    return "its forward method"


# --- The tracer ---


def _autocast() -> list[bool]:
    return [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]


class _Value(fx.Proxy):
    """A stand-in that notes operations in place as such; fx would note ``x += y`` as ``x = x + y``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or callable(getattr(Tensor, name, None)):
            return super().__getattr__(name)
        # fx notes an attribute where it is used, which may be behind the forward method.
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("tracer", "node"):
            raise NotCertified(f"an attribute of a tensor is set (.{name}). Compute a new tensor instead.")
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise NotCertified("entries of a tensor are assigned. Build the tensor with torch.cat instead.")

    def __delitem__(self, index: Any) -> None:
        raise NotCertified("entries of a tensor are deleted. Select the others instead.")

    def __len__(self) -> int:
        raise NotCertified("the number of examples is read by len(). Use it in .view(x.size(0), -1) only.")


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: _Value, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


def _no_proof(name: str) -> Callable[..., Any]:
    def method(self: _Value, other: Any) -> Any:
        raise NotCertified(f"{name} has no proof here. {ELSEWHERE}")

    return method


for _operator in IN_PLACE:
    setattr(_Value, f"__{_operator.__name__}__", _in_place(_operator))
for _name in ("ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor", "ilshift", "irshift"):
    setattr(_Value, f"__{_name}__", _no_proof(_name))


class _Tracer(fx.Tracer):
    """``known`` modules are one step; the forward methods of all others are followed."""

    proxy_buffer_attributes = True  # what is computed from buffers is noted, as with parameters

    def __init__(self, known: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.known, self.autocast = known, _autocast()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.known(m)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if not self.known(m):
            require_intact(m, tensors=False)
        return super().call_module(m, forward, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _autocast() != self.autocast:
            raise NotCertified("autocast is set, which narrows products. Leave the dtype as it is.")
        node = super().create_node(*args, **kwargs)
        node.meta["line"] = _current_line()
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        raise NotCertified(
            "a branch, a loop or an assertion depends on a value or on a shape, and only one way through it could "
            "be proved. Compute both ways, or decide when the module is built; leave assertions out."
        )

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        count = calls.count_of_pieces(obj.node)
        return (
            super().iter(obj) if count is None else iter([operator.getitem(obj, index) for index in range(count)])
        )


class _Root(nn.Module):
    """A module that calls another one, with its hooks and default arguments, as a user does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.add_module(ROOT, module)

    def forward(self, x: Tensor) -> Any:
        return self.get_submodule(ROOT)(x)


def _copied(module: nn.Module, *, share: bool) -> nn.Module:
    """A copy on which ``forward`` may run, without wrappers inside; ``share``: with the same tensors."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in _tensors(module)} if share else {}
    try:
        for part in reversed(list(module.modules())):  # the innermost first
            inner = inner_module(part)
            if inner is not None:
                memo[id(part)] = copy.deepcopy(inner, memo)
        copied: nn.Module = copy.deepcopy(module, memo)
    except NotCertified:
        raise
    except Exception as error:
        for part in module.modules():  # the usual reason: torch.nn.utils.weight_norm, which is a hook
            require_intact(part, tensors=False)
        raise NotCertified(
            f"its forward method runs on a copy, and the module cannot be copied ({_first_line(error)}). Remove "
            "the attribute that cannot, or build the module anew from its state_dict."
        ) from None
    return copied


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _noted(module: nn.Module, known: Callable[[nn.Module], bool]) -> tuple[fx.Graph, _Root]:
    root, tracer = _Root(module), _Tracer(known)
    tensors = set(map(id, _tensors(module)))
    try:
        graph = tracer.trace(root)
    except NotCertified as refusal:
        raise NotCertified(f"{_line_of(refusal)}: {refusal}") from None
    except Exception as error:
        # fx raises NameError for a module or a parameter that is no member of the network.
        cure = "Assign it to self in __init__." if isinstance(error, NameError) else ELSEWHERE
        raise NotCertified(
            f"{_line_of(error)}: its forward cannot be followed without an input ({_first_line(error)}). {cure}"
        ) from None
    now: list[Any] = [*_tensors(module)]
    for tensor in now:
        if id(tensor) not in tensors:
            line = tensor.node.meta["line"] if isinstance(tensor, fx.Proxy) else "its forward method"
            raise NotCertified(f"{line}: {CHANGED}")
    return graph, root


def noted(module: nn.Module, known: Callable[[nn.Module], bool]) -> tuple[fx.Graph, _Root]:
    """What the forward method of ``module`` does; refused unless it does the same twice and in evaluation mode."""
    before = torch.get_rng_state()
    graph, root = _noted(_copied(module, share=True), known)
    again, other = _noted(_copied(module, share=True).eval(), known)
    drawn = not torch.equal(torch.get_rng_state(), before)
    both = itertools.zip_longest(graph.nodes, again.nodes)
    different = [one or two for one, two in both if not _same(one, two, root, other)]
    line = next((node.meta["line"] for node in different if node.meta.get("line")), "its forward method")
    if drawn:
        raise NotCertified(f"{line}: random numbers are drawn, so it is no function of its input. Remove them.")
    if different:
        raise NotCertified(
            f"{line}: it does not do the same when it is called again in evaluation mode. It depends on "
            "self.training, on state that it keeps, or on chance. Call .eval() first, and remove the rest."
        )
    return graph, root


def _same(one: fx.Node | None, two: fx.Node | None, root: nn.Module, other: nn.Module) -> bool:
    """Whether two notes of two graphs say the same, also about the tensors that they read."""
    if one is None or two is None or one.format_node() != two.format_node():
        return False
    target = str(one.target)
    return one.op != "get_attr" or torch.equal(_attribute(root, target), _attribute(other, target))


def require_same(module: nn.Module, run: Callable[[Tensor], list[Tensor]], shape: Shape) -> None:
    """Refuse a module that gives another output than the last of what ``run`` gives, on examples of that shape.

    A forward method can tell a stand-in from a tensor, and then what was noted is not what the module does.
    """
    dtype = next((tensor.dtype for tensor in _tensors(module) if tensor.is_floating_point()), torch.float32)
    # Half precision is widened, as its numbers are in the graph.
    dtype = dtype if dtype == torch.float64 else torch.float32
    copied = _copied(module, share=False).eval().to("cpu", dtype)
    generator = torch.Generator().manual_seed(0)
    for count in (2, 1):
        x = torch.randn(count, *shape, generator=generator, dtype=dtype)
        with torch.set_grad_enabled(count == 1), torch.random.fork_rng(devices=[]):
            try:
                given = copied(x.clone())
            except Exception as error:
                raise NotCertified(
                    f"the network cannot run on a batch of {count} examples of shape {shape}, though its forward "
                    f"could be followed ({_first_line(error)}). Correct its forward."
                ) from None
            values = [x, *run(x)]
        if not (isinstance(given, Tensor) and given.shape == values[-1].shape and near(given.detach(), values)):
            raise NotCertified(
                "the network computes something else on examples than its forward did when it was followed with a "
                "stand-in. Remove branches on the type of the input (isinstance(x, torch.Tensor)) or the mode of "
                "torch, and what changes from call to call."
            )


def near(given: Tensor, values: list[Tensor]) -> bool:
    """Whether two outputs differ by rounding: of float32 numbers as large as the largest on the way."""
    largest = max(float(value.abs().max()) for value in values if value.numel())
    room = 2.0**-12 * largest if math.isfinite(largest) else 0.0
    return torch.allclose(given.double(), values[-1].double(), rtol=0.0, atol=room, equal_nan=True)


def _attribute(root: nn.Module, target: str) -> Tensor:
    *folders, last = target.split(".")
    value: Tensor = getattr(root.get_submodule(".".join(folders)), last)
    return value


# --- The walk ---


def may_share(op: Op) -> bool:
    """Whether torch may give the result of this step in the memory of its input."""
    if isinstance(op, ops.Flexible):
        return op.isometry or op.make in calls.VIEWS
    return isinstance(op, (ops.Rearrange, ops.Select, ops.Assumed)) or op.op == "identity"


@dataclass
class Walk:
    """Turns what was noted into nodes of ``graph``; ``name`` and ``source`` are those of the module."""

    graph: Graph
    name: str
    source: str
    line: str = ""

    def run(self, noted: fx.Graph, root: _Root) -> str:
        """Append the ops of all notes that the output needs; give the name of the last node."""
        output = next(node for node in noted.nodes if node.op == "output")
        (wanted,) = output.args
        if not isinstance(wanted, fx.Node):
            kind = type(wanted).__name__.removeprefix("immutable_")
            raise NotCertified(
                f"its forward must return one tensor, and it returns a {kind}. Return the logits alone."
            )
        needed = {wanted}
        for node in reversed(noted.nodes):
            if node in needed:
                needed |= set(node.all_input_nodes)
        values: dict[fx.Node, Any] = {}
        self.memory: dict[fx.Node, frozenset[fx.Node]] = {}  # nodes whose results share memory with this one
        self.stale: dict[fx.Node, str] = {}  # nodes whose results were overwritten, and where
        for node in noted.nodes:
            if node.op == "output":
                self._require_fresh(node)
                break
            self.line = node.meta.get("line", "")
            start = self.graph.count()
            try:
                if node in needed:
                    values[node] = self._value(node, values, root)
                else:
                    self._require_known(node)
                    values[node] = self._unread(node, values, root)
                shared = self.graph.mark(start, self.line)
                if node not in needed:
                    self.graph.drop(start)
            except NotCertified as refusal:
                raise NotCertified(f"{self.line or 'its forward method'}: {refusal}") from None
            shares = self._shares(values[node], shared) and not calls.copies(node)
            self._note_memory(node, root, needed=node in needed, shares=shares)
        result = values[wanted]
        if not isinstance(result, Ref):
            raise NotCertified("its forward must return a tensor that depends on its input.")
        return result.name

    def _unread(self, node: fx.Node, values: dict[fx.Node, Any], root: _Root) -> Any:
        """The value of a call that the output does not need, for its memory alone; None if that is not known."""
        if any(values[read] is None for read in node.all_input_nodes):
            return None
        try:
            return self._value(node, values, root)
        except NotCertified:
            return None

    # Memory

    def _require_fresh(self, node: fx.Node) -> None:
        for read in node.all_input_nodes:
            if read in self.stale and not calls.reads_a_shape(node):
                raise NotCertified(
                    f"{self.stale[read]}: a value is changed in place, and {node.meta.get('line') or 'the result'} "
                    "reads it, or a view of it, from before. Write the operation without the underscore, "
                    "inplace=True or +=."
                )

    @staticmethod
    def _shares(value: Any, moved: bool) -> bool:
        """Whether a value may be in the memory of what it was made of; a result that was moved only may."""
        return moved if isinstance(value, Ref) else value is None or isinstance(value, (Tensor, Pieces))

    def _note_memory(self, node: fx.Node, root: _Root, *, needed: bool, shares: bool) -> None:
        """Which results share memory with that of ``node``, and which ones it has overwritten."""
        if needed:
            self._require_fresh(node)
        target = self._changed(node, root)
        group = {node}
        for read in node.all_input_nodes if target is None else [target]:
            group |= self.memory[read] if shares or target is not None else frozenset()
        if target is not None:
            touched = self.memory[target]
            others = [read for read in node.all_input_nodes if read is not target and self.memory[read] & touched]
            if others:
                raise NotCertified(
                    f"{self.line}: a value is changed in place by a view of itself. Write the operation without "
                    "the underscore, inplace=True or +=."
                )
            if any(read.op == "get_attr" for read in touched):
                raise NotCertified(f"{self.line}: {CHANGED}")
            self.stale |= dict.fromkeys(touched, self.line)
        for other in group:
            self.memory[other] = self.memory.get(other, frozenset((other,))) | group

    def _changed(self, node: fx.Node, root: _Root) -> fx.Node | None:
        """The value that ``node`` overwrites, if it works in place."""
        first = node.args[0] if node.args else node.kwargs.get("input")
        if not isinstance(first, fx.Node):
            return None
        if node.op == "call_module":
            module = root.get_submodule(str(node.target))
            return first if any(getattr(part, "inplace", False) for part in module.modules()) else None
        if node.op not in ("call_function", "call_method"):
            return None
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        underscored = name.endswith("_") and not name.endswith("__")
        return first if node.target in IN_PLACE or underscored or node.kwargs.get("inplace") else None

    # Values

    def _value(self, node: fx.Node, values: dict[fx.Node, Any], root: _Root) -> Any:
        if node.op == "placeholder":
            return Ref(self.source)
        if node.op == "get_attr":
            return _attribute(root, str(node.target)).detach()
        args = fx.node.map_arg(node.args, values.__getitem__)
        options = dict(fx.node.map_arg(node.kwargs, values.__getitem__))
        if not args and "input" in options:
            args = (options.pop("input"),)
        if node.op == "call_module":
            return self._module(
                str(node.target).removeprefix(f"{ROOT}."), root.get_submodule(str(node.target)), args, options
            )
        target = IN_PLACE.get(node.target, node.target)
        if not any(map(calls.depends, (*args, *options.values()))):
            return self._constant(target, args, options)
        options.pop("inplace", None)
        call = self._require_known(node)
        try:
            return call(calls.Maker(self._emit, self.graph.convert, node.name), *args, **options)
        except (TypeError, OverflowError) as error:
            name = getattr(node.target, "__name__", node.target)
            raise NotCertified(
                f"this way of calling {name} is not known here ({_first_line(error)}). {ELSEWHERE}"
            ) from None

    def _require_known(self, node: fx.Node) -> Callable[..., Any]:
        """What makes the ops of a call; one that is not known might change values, even if nobody reads it."""
        target = IN_PLACE.get(node.target, node.target)
        call = calls.find(target) if node.op in ("call_function", "call_method") else calls.same
        if call is None:
            name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
            raise NotCertified(f"{name} has no proof here. {calls.INSTEAD.get(name, ELSEWHERE)}")
        if "out" in node.kwargs:
            raise NotCertified("the result is written into another tensor (out=). Compute a new one.")
        return call

    def _module(self, target: str, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if len(args) != 1 or options or not isinstance(args[0], Ref):
            raise NotCertified(
                f"{target} ({type(module).__qualname__}) must read one tensor that depends on the input."
            )
        place = f"{self.name}.{target}" if self.name else target
        return Ref(self.graph.add(module, self.graph.unique(place), args[0].name))

    def _emit(self, op: Op, inputs: tuple[str, ...], hint: str) -> str:
        place = f"{self.name}.{hint}" if self.name else hint
        return self.graph.emit(op, self.graph.unique(place), inputs, self.line)

    def _constant(self, target: Any, args: Any, options: dict[str, Any]) -> Any:
        """What a call gives that does not depend on the input."""

        def computed(dtype: torch.dtype | None) -> Any:
            def prepared(value: Any) -> Any:
                if not isinstance(value, Tensor):
                    return value
                return (
                    value.clone() if dtype is None or not value.is_floating_point() else value.to(dtype, copy=True)
                )

            given, named = (fx.node.map_aggregate(part, prepared) for part in (args, options))
            first, *others = given
            with torch.no_grad():
                if isinstance(target, str):
                    return getattr(first, target)(*others, **named)
                return target(first, *others, **named)

        before = torch.get_rng_state()
        try:
            value, wide = computed(None), computed(torch.float64)
        except Exception as error:
            raise NotCertified(
                f"it cannot be computed without an input ({_first_line(error)}). {ELSEWHERE}"
            ) from None
        if not torch.equal(torch.get_rng_state(), before):
            raise NotCertified("random numbers are drawn, so this is no function of the input. Remove them.")
        exact = not isinstance(value, Tensor) or torch.equal(value.double(), wide.double())
        if not exact and not self.graph.parametrized:
            raise NotCertified(
                "a weight is computed again at every call, and in another precision it would be another one. Store "
                "the present numbers: use lipcert.freeze(model)."
            )
        return value
