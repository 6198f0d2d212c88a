"""``freeze``: the layers of lipcert and of torch.nn as ops, with the numbers that the proofs are about.

Numbers are rounded so that what was proved in real arithmetic holds for what is stored: γ is rounded down to
float32 and divided by a verified bound of ρ = λmax(WΓWᵀ) where that exceeds 1, and a matrix V is divided by a
verified bound of its norm likewise. Ops keep these proofs, so that nothing is proved twice.

A frozen network has no link to the one it came from.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from lipcert.algebra.bounds import AOL, SLL, Rescaled, without_dead_columns
from lipcert.algebra.gram import absolute_gram
from lipcert.algebra.scale import alive, at_least_float32, dead_as_in, scaled_bias
from lipcert.certified import foreign, ops, trace
from lipcert.certified.foreign import FOREIGN, flexible, inherited, inner_axis, unwrapped
from lipcert.certified.network import (
    INPUT,
    Network,
    Node,
    Proved,
    as_shape,
    constant_after,
    prove_network,
    reached,
    require_ieee,
)
from lipcert.certified.norms import known_norm
from lipcert.certified.op import Op, Proof, Shape, require
from lipcert.certified.operators import blocks_of, waves
from lipcert.certified.ops import Assumed, Flexible, Function
from lipcert.errors import NotCertified
from lipcert.intact import all_finite, inner_module, require_intact
from lipcert.layers import activation, forms, head, linf, shape, tracked
from lipcert.layers.contract import LipschitzLayer, require_finite, require_stated
from lipcert.layers.operators import Conv, ConvTranspose
from lipcert.layers.parametrize import is_dropped_in
from lipcert.layers.shape import group_size
from lipcert.verified import convolution
from lipcert.verified.rounding import float32_down

ROOM = 2.0**-26  # γ and V are this much smaller than they may be, so that every checker's rounding fits: 1/4 ulp
ENLARGED = 1.1  # what a proof may lose on its own: rounding, and for a convolution up to 7 % on a grid
LEAST_T = 2.0**-120  # below it γ would leave float32: the neuron is dropped, as Theorem 6 allows
FEW_TAPS = 9  # a direct convolution with no more costs no more than five products
PIXEL = ((1, 1), ((0, 0), (0, 0)), (1, 1))  # stride, padding and dilation of a 1×1 convolution
MANY_NUMBERS = 2**26  # in the blocks of one layer: what a checker takes
_ONE_AT_A_TIME = threading.RLock()
_RULES: dict[type, Callable[[Any], float]] = {}
Builder = Callable[[np.ndarray, np.ndarray | None], ops.Residual]  # of γ and a witness


def register_rule(kind: type, constant: float | Callable[[Any], float]) -> None:
    """Declare the Lipschitz constant of modules of exactly this type, or a function of the module that gives it.

    What rests on it is marked ASSUMED. Rounding errors of such a module are unknown, so ``certify`` needs
    ``arithmetic="real"``.
    """
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ValueError(f"expected a subclass of nn.Module, got {kind!r}. Pass the class, not an object.")
    if callable(constant):
        _RULES[kind] = constant
        return
    if isinstance(constant, bool) or not isinstance(constant, (int, float)) or not 0 <= constant < math.inf:
        raise ValueError(
            f"the constant must be a finite number of at least 0, or a function of the module that gives one, got "
            f"{constant!r}."
        )
    value = float(constant)
    _RULES[kind] = lambda module: value


def freeze(model: nn.Module, input_shape: Shape | None = None) -> Network:
    """The network as ops with buffers, in evaluation mode and float32; ``model`` is not changed.

    Parametrized modules of torch.nn are stored with their present weights. A ``Scale`` behind a last linear map
    joins it, so that it costs no radius, and a ``BatchCentering`` behind a convolution joins its bias.

    Args:
        input_shape: of one input. With it, a network with a forward of its own is run on a few examples and
            compared with the result.

    Raises:
        NotCertified: for a module without a proof, a hook, or a parameter that is not finite.
    """
    require_module(model)
    with _evaluating(model):
        graph = _Graph(parametrized=True, freezing=True)
        graph.add(model, "", INPUT)
        folded = _fold_shifts(reached(graph.nodes), graph.shifts)
        nodes = [dataclasses.replace(node, op=_in_float32(node)) for node in folded]
        device = next((tensor.device for tensor in [*model.parameters(), *model.buffers()]), torch.device("cpu"))
        frozen = Network(_fold_scale(nodes)).eval()
        if graph.traced and input_shape is not None:
            trace.require_same(model, lambda x: [frozen(x.float())], as_shape(input_shape))
        return frozen.to(device)


def _followed(model: nn.Module, parametrized: bool) -> _Graph:
    require_module(model)
    graph = _Graph(parametrized)
    with torch.no_grad():
        graph.add(model, "", INPUT)
    return graph


def prove(
    model: nn.Module,
    input_shape: Shape,
    *,
    dtype: torch.dtype = torch.float64,
    block: int | None = None,
    parametrized: bool = False,
    norm: str = "l2",
) -> Proved:
    """Prove a network for inputs of that shape; ``NotCertified`` names a module without a proof.

    A network with a forward of its own is run on a few examples and compared with its graph.

    The parts run in ``dtype``, with sums in blocks of ``block`` terms if that is given. ``parametrized`` allows
    modules whose weights are computed at every call, and takes their present values. Inputs are measured in
    ``norm``.
    """
    shape, norm = as_shape(input_shape), known_norm(norm)
    require_ieee()
    # Autocast would narrow the products of float32 parts; tensors of inference mode have no gradients.
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        graph = _followed(model, parametrized)
        network = graph.network()
        if not len(network):
            raise NotCertified("the network has no layers. Pass a network.")
        proved = prove_network(network, shape, dtype, block, norm)
        if graph.traced:
            trace.require_same(model, lambda x: proved.run(x.to(dtype)), shape)
        return proved


def constant_of(module: nn.Module, shape: Shape | None = None) -> float:
    """A proved constant for inputs of that shape, or of every shape; a registered rule is no proof."""
    if shape is not None:
        proved = prove(module, shape, parametrized=True)
        _require_no_rule([part.step for part in proved.parts])
        return proved.lipschitz
    graph = _followed(module, parametrized=True)
    network = graph.network()
    _require_no_rule(network)
    require(
        not graph.traced,
        f"a forward of {type(module).__qualname__} must be compared with what was followed of it. Pass the shape "
        "of one input.",
    )
    if not all(all_finite(*op._buffers.values()) for op in network):
        raise NotCertified(f"{type(module).__qualname__} must have finite tensors, got NaN or infinity.")
    constants = {INPUT: 1.0}
    for node in network.nodes:
        before = [constants[name] for name in node.inputs]
        try:
            constants[node.name] = _constant_of_any_shape(node.op, before)
        except NotCertified as refusal:
            raise NotCertified(f"{node.name} ({node.line or type(node.op).__qualname__}): {refusal}") from None
    return constants[network.names[-1]] if len(network) else 1.0


def _constant_of_any_shape(op: Op, before: list[float]) -> float:
    """The constant after an op from those of its inputs, for inputs of every shape."""
    if isinstance(op, (ops.Combination, ops.Concat)):
        return constant_after(op.prove((1,)), before)
    factor = op.constant()  # of the first input alone: from the others a step may read a shape
    exact = factor == 1.0 or before[0] == 1.0
    return before[0] * factor if exact else constant_after(Proof((), factor, ""), before[:1])


def _require_no_rule(steps: Iterable[Op]) -> None:
    for op in steps:
        if isinstance(op, Assumed) and type(op.module) in _RULES:
            raise NotCertified(
                f"the constant of {type(op.module).__qualname__} is a registered rule, not a proof. Use "
                "lipcert.audit, which says so."
            )


def require_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch module, got {type(model).__name__}. Pass the network itself.")


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, one thread and no gradients, for a moment.

    In evaluation mode a surrogate of T is exact. With one thread sums have one order, so that whoever certifies,
    attacks or exports gets the same bits.
    """
    with _ONE_AT_A_TIME:
        before, threads = [(module, module.training) for module in model.modules()], torch.get_num_threads()
        try:
            model.eval()
            torch.set_num_threads(1)
            with torch.no_grad():
                yield
        finally:
            torch.set_num_threads(threads)
            for module, mode in before:
                module.training = mode


class _Graph:
    """The nodes of a network, in order.

    ``freezing``: the ops replace the network. Otherwise they must compute what the modules compute.
    """

    def __init__(self, parametrized: bool, freezing: bool = False) -> None:
        self.parametrized, self.freezing = parametrized, freezing
        self.nodes: list[Node] = []
        self.heads: set[str] = set()  # linear maps that were normalized heads
        self.shifts: set[str] = set()  # centerings
        self.traced = False  # whether a forward of a user was followed

    def network(self) -> Network:
        return Network(_fold_scale(reached(self.nodes), self.heads))

    def add(self, module: nn.Module, name: str, source: str) -> str:
        """Append the ops of ``module``, which reads the node ``source``; give the name of its last node."""
        kind = type(module)
        if kind in _RULES:
            require_intact(module, tensors=False)
            return self._append([_assumed(module, float(_RULES[kind](module)), "assumed")], name, source)
        layer = inner_module(module) or module
        dropped_in = is_dropped_in(layer)  # then it is stored as a layer of lipcert would be
        try:
            if dropped_in:
                require_finite(layer)  # before its weight is computed
            plain = unwrapped(module, parametrized=self.parametrized or dropped_in)
            for part in plain.modules() if type(plain) in LAYERS else [plain]:
                require_intact(part, tensors=_is_step(plain) or type(plain) is nn.Sequential)
            if type(plain) is nn.Sequential or type(plain) is Network:
                steps = None
            else:
                steps = self._converted(plain, name, source)
                if dropped_in:
                    steps = _dropped_in(layer, steps)
        except NotCertified as refusal:
            raise NotCertified(f"{name or 'the network'} ({kind.__qualname__}): {refusal}") from None
        if isinstance(steps, str):
            return steps
        if steps is not None:
            return self._append(steps, name, source)
        if isinstance(plain, Network):
            return self._inline(plain, name, source)
        for key, child in plain._modules.items():
            assert child is not None
            source = self.add(child, f"{name}.{key}" if name else key, source)
        return source

    def _converted(self, module: nn.Module, name: str, source: str) -> list[Op] | str:
        kind = type(module)
        if isinstance(module, Op):
            return [_own(module)]
        if kind is shape.ConvexCombination:
            assert isinstance(module, shape.ConvexCombination)
            return self._combine(module, name, source)
        if kind is shape.Monotone:
            assert isinstance(module, shape.Monotone)
            return self._monotone(module, name, source)
        if kind in LAYERS:
            for part in module.modules():
                if hasattr(part, "require_sound"):
                    require_stated(part, "require_sound")
            require_finite(module)
            if isinstance(module, (tracked.Tracked, shape.BatchCentering)):
                module.require_sound()
            tensors = [*module.parameters(), *module.buffers()]
            near = module if all(tensor.is_cpu for tensor in tensors) else copy.deepcopy(module).cpu()
            dtypes = (tensor.dtype for tensor in module.parameters() if tensor.is_floating_point())
            with _evaluating(near), dead_as_in(next(dtypes, torch.float32)):
                steps = LAYERS[kind](near)
            if kind is head.NormalizedHead:
                self.heads.add(name or "network")
            if kind is shape.BatchCentering:
                self.shifts.add(name or "network")
            return steps
        if kind in FOREIGN:
            if any(tensor.is_complex() for tensor in [*module.parameters(), *module.buffers()]):
                raise NotCertified("its tensors are complex, and the proofs are about real numbers.")
            return self.convert(module)
        if isinstance(module, LipschitzLayer):
            return [_assumed(module, module.lipschitz_bound(), "its author's")]
        if _is_step(module):
            raise NotCertified(foreign.refusal(kind))
        self.traced = True
        return trace.Walk(self, name, source).run(*trace.noted(module, _is_step))

    def convert(self, module: nn.Module) -> list[Op]:
        """The ops of a module of torch.nn."""
        if not self.freezing:
            foreign.require_no_jump(module)
        return FOREIGN[type(module)](module)

    def emit(self, op: Op, name: str, inputs: tuple[str, ...], line: str) -> str:
        """Append one op."""
        self.nodes.append(Node(name, op, inputs, line))
        return name

    def count(self) -> int:
        return len(self.nodes)

    def drop(self, start: int) -> None:
        del self.nodes[start:]

    def mark(self, start: int, line: str) -> bool:
        """Note the user's line of the nodes from ``start`` on; whether torch may give views of their input."""
        for place in range(start, len(self.nodes)):
            if not self.nodes[place].line:
                self.nodes[place] = dataclasses.replace(self.nodes[place], line=line)
        return all(trace.may_share(node.op) for node in self.nodes[start:])

    def unique(self, name: str) -> str:
        """The name, or with a number behind it, so that it is neither that of a node nor that of a folder."""
        taken = {INPUT}
        for node in self.nodes:
            parts = node.name.split(".")
            taken |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        ends = {node.name for node in self.nodes}
        for number in itertools.count(1):
            wanted = name if number == 1 else f"{name}_{number}"
            folders = wanted.split(".")[:-1]
            inside = any(".".join(folders[:count]) in ends for count in range(1, len(folders) + 1))
            if wanted not in taken and not inside:
                return wanted
            if inside:
                name = name.replace(".", "_")
        raise AssertionError

    def _append(self, steps: list[Op], name: str, source: str) -> str:
        for index, op in enumerate(steps):
            place = name if len(steps) == 1 else f"{name}.{index}" if name else str(index)
            place = {"": "network", INPUT: f"{INPUT}_"}.get(place, place)
            self.nodes.append(Node(place, op, (source,)))
            source = place
        return source

    def _inline(self, network: Network, name: str, source: str) -> str:
        """The nodes of a frozen network inside another one."""
        renamed = {INPUT: source}
        for node in network.nodes:
            renamed[node.name] = f"{name}.{node.name}" if name else node.name
            inputs = tuple(renamed[name] for name in node.inputs)
            try:
                self.nodes.append(Node(renamed[node.name], _own(node.op), inputs, node.line))
            except NotCertified as refusal:
                kind = type(node.op).__qualname__
                raise NotCertified(f"{renamed[node.name]} ({kind}): {refusal}") from None
            source = renamed[node.name]
        return source

    def _combine(self, layer: shape.ConvexCombination, name: str, source: str) -> str:
        """Σ_k α_k f_k(x) with α = softmax of the logits: one branch of the graph for each f_k."""
        require_intact(layer.branches)
        require_finite(layer)
        if type(layer.branches) is not nn.ModuleList or len(layer.branches) != len(layer.logits):
            raise NotCertified("its branches must be the modules that it was built with. Build a new layer.")
        weights = layer.logits.detach().double().softmax(dim=0) * (1 - 2.0**-22)  # rounding adds less than that
        folder = f"{name}." if name else ""
        ends = [
            self.add(branch, f"{folder}branches.{index}", source) for index, branch in enumerate(layer.branches)
        ]
        self.nodes.append(Node(f"{folder}sum", ops.Combination(weights.float()), tuple(ends)))
        return f"{folder}sum"

    def _monotone(self, layer: shape.Monotone, name: str, source: str) -> str:
        """f(x) + K(Σ x_i − Σ x_j): f is made smaller by 2⁻²², more than rounding K may lose."""
        folder = f"{name}." if name else ""
        end = self.add(layer.network, f"{folder}network", source)
        rise = flexible(_rise, layer.features, layer.decreasing, layer.lipschitz, layer.outputs)
        self.nodes.append(Node(f"{folder}rise", rise, (source,)))
        self.nodes.append(
            Node(f"{folder}sum", ops.Combination(torch.tensor([1 - 2.0**-22, 1.0])), (end, f"{folder}rise"))
        )
        return f"{folder}sum"


def _rise(features: Shape, decreasing: Shape, constant: float, outputs: int, shape: Shape) -> Op:
    """K·(Σ x_i over features − Σ x_j over decreasing), once for each output."""
    require(
        len(shape) == 1 and max(*features, *decreasing, 0) < shape[0],
        f"it needs vectors with the inputs {(*features, *decreasing)}, got shape {shape}.",
    )
    weight = torch.zeros(outputs, shape[0])
    weight[:, list(features)], weight[:, list(decreasing)] = constant, -constant
    return ops.Linear(weight, None, 0)


def _is_step(module: nn.Module) -> bool:
    """Whether a module is one step of a graph; the forward methods of all others are traced."""
    kind = type(module)
    known = kind in (*_RULES, *LAYERS, *FOREIGN, shape.ConvexCombination, Network)
    torch_made = kind.__module__.partition(".")[0] == "torch" and not isinstance(
        module, (nn.Sequential, fx.GraphModule)
    )
    special = isinstance(module, (Op, LipschitzLayer)) or parametrize.is_parametrized(module)
    return known or torch_made or special or inherited(kind) is not None


def _own(op: Op) -> Op:
    """A copy of an op that runs the code of its class, which must be one of lipcert's: an op proves itself."""
    require_intact(op)
    if type(op) not in (*ops.CLASSES, Function, Flexible, ops.OpenConvTranspose, Assumed):
        raise NotCertified("only the ops of lipcert are proved. Declare one with lipcert.register_rule.")
    if isinstance(op, Assumed):
        require_intact(op.module, tensors=False)
        return _assumed(op.module, op.declared, op.method)
    return op.clone()


def _assumed(module: nn.Module, constant: float, method: str) -> Op:
    if not 0 <= constant < math.inf:
        raise NotCertified(f"its constant must be finite and at least 0, got {constant}. Correct its rule.")
    copied = copy.deepcopy(module)
    for part in copied.modules():
        if getattr(part, "inplace", False):  # its input may be used elsewhere
            part.inplace = False  # type: ignore[assignment]
    return Assumed(copied, constant, method)


def _in_float32(node: Node) -> Op:
    """The op with its tensors in float32, but for a witness."""
    op = node.op
    if not all_finite(*op._buffers.values()):
        raise NotCertified(f"{node.name} has NaN or infinity in its tensors. Load or train other weights.")
    stored = {name: tensor for name, tensor in op._buffers.items() if tensor is not None and name != "witness"}
    narrow = {name: tensor.float() for name, tensor in stored.items() if tensor.dtype != torch.float32}
    try:
        op = op.clone(**narrow) if narrow else op
    except NotCertified:  # a std that became 0
        narrow["std"] = torch.tensor(math.nan)
    if not all_finite(*narrow.values()):
        raise NotCertified(
            f"{node.name} holds numbers that float32 cannot store (beyond 3e38, or a std below 1e-45). Rescale it."
        )
    return op


def _fold_shifts(nodes: list[Node], shifts: set[str]) -> list[Node]:
    """The centerings called ``shifts`` join the bias of a convolution that nothing else reads."""
    readers = Counter(name for node in nodes for name in node.inputs)
    folded: dict[str, Node] = {}
    renamed: dict[str, str] = {}
    for node in nodes:
        source = folded.get(renamed.get(node.inputs[0], node.inputs[0]))
        if node.name in shifts and source is not None and isinstance(source.op, (ops.Conv, ops.ConvTranspose)):
            mean, bias = node.op.get_buffer("mean").double(), source.op.bias
            bias = -mean if bias is None else bias.double() - mean
            if readers[node.inputs[0]] == 1 and all_finite(bias.float()):
                folded[source.name] = dataclasses.replace(source, op=source.op.clone(bias=bias.float()))
                renamed[node.name] = source.name
                continue
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        folded[node.name] = dataclasses.replace(node, inputs=inputs)
    return list(folded.values())


def _fold_scale(nodes: list[Node], heads: set[str] | None = None) -> list[Node]:
    """A last ``Scale`` joins the linear map before it, one of ``heads`` if given, unless that loses accuracy."""
    if len(nodes) < 2 or nodes[-1].inputs != (nodes[-2].name,):
        return nodes
    linear, scale = nodes[-2].op, nodes[-1].op
    if not isinstance(linear, ops.Linear) or not isinstance(scale, ops.Scale):
        return nodes
    if heads is not None and nodes[-2].name not in heads:
        return nodes
    old = {name: tensor for name, tensor in linear._buffers.items() if tensor is not None}
    new = {name: (tensor.double() * scale.factor).float() for name, tensor in old.items()}
    accurate = [(new[name].abs() >= 2.0**-100) & torch.isfinite(new[name]) | (old[name] == 0) for name in old]
    if not all(bool(entries.all()) for entries in accurate):
        return nodes
    return [*nodes[:-2], Node(nodes[-2].name, linear.clone(**new), nodes[-2].inputs)]


# --- Residual layers: γ verified for the stored weight ---


def _verified(
    build: Builder,
    target: np.ndarray,
    q: np.ndarray | None,
    image: Shape | None = None,
) -> ops.Residual:
    """``build(γ, q)`` with a float32 γ of at most ``target`` for which ρ ≤ 1 is proved.

    ρ is 1-homogeneous in γ, so dividing by a bound and rounding down needs no second proof. The witness q is
    dropped where it does not prove it. ``image`` is the shape of the input, if that is part of the layer.
    """
    gamma, witness = float32_down(target * (1 - ROOM)), q
    op = build(gamma, q)
    sums = op.row_sums(None)
    value = math.inf if sums is None else sums.rho(gamma.astype(np.float64))
    if not value <= 1 + 2.0**-20:  # T did not come from this witness: another method may prove more
        other = op.operator.rho_without(op.weights(), gamma, image)
        if not value <= other:
            value, witness = other, None
    if not math.isfinite(value):
        raise NotCertified("no bound of ρ could be proved, because its numbers leave floating point. Rescale it.")
    if value > ENLARGED:
        warnings.warn(
            f"freeze enlarged T of a residual layer {value:.3g} times, because T was too small for WᵀW ⪯ T. Check "
            "its bound: the frozen layer computes something else than the layer.",
            stacklevel=2,
        )
    if value > 1 - ROOM / 2:
        gamma = float32_down(gamma.astype(np.float64) * ((1 - ROOM) / value))
    elif witness is q:
        return op
    return build(gamma, witness)


def _builder(layer: Any, weight: Tensor, bias: Tensor | None, proofs: dict[Any, Any] | None = None) -> Builder:
    """Residual ops of that weight, placed as the operator of the layer; all of them share their proofs."""
    operator, sigma, proofs = layer.operator, layer.activation.name, {} if proofs is None else proofs

    def build(gamma: np.ndarray, q: np.ndarray | None) -> ops.Residual:
        tensors = (weight, torch.from_numpy(gamma), bias, None if q is None else torch.from_numpy(q), sigma)
        if isinstance(operator, Conv):
            op: ops.Residual = ops.ResidualConv(*tensors, *_geometry(operator))
        else:
            op = ops.ResidualLinear(*tensors)
        op._proofs = proofs
        return op

    return build


def _geometry(operator: Conv) -> tuple[Any, ...]:
    padding = tuple((p, p) for p in operator.padding)
    return operator.stride, padding, operator.dilation, operator.padding_mode, operator.groups


def _numbers(layer: Any) -> tuple[Builder, Tensor, Tensor | None, np.ndarray, np.ndarray]:
    """Of a layer with W, b, σ and a choice of T: ops of the weight to store, it, the bias, γ = 1/T and a witness q.

    Where T is the row sums of a known q, it comes from ``verified``, which computes them anyway.
    """
    bound, count = layer.bound, layer.operator.outputs
    q = bound.witness(count) if type(bound) in (AOL, SLL, Rescaled) else None
    if q is None:
        double = _doubled(layer)
        unit, scale = double.bound.prepare(double.weight)
        columns, t = double.bound(double.arrange(unit))
    else:
        # Where the scale is multiplied back, float32 would lose digits of numbers below 2⁻¹²⁶.
        given = layer.weight.detach()
        unit, scale = bound.prepare(given if layer.activation.homogeneous else given.double())
        columns, t = layer.arrange(unit), torch.empty(0)
    used = unit if isinstance(layer.operator, Conv) else columns.matrix()
    factor = torch.ones_like(scale)
    if not layer.activation.homogeneous:  # σ(Wᵀx + b) is not σ(Ŵᵀx + b/s)·s, so the scale stays in the weight
        used, scale, factor = used * scale, factor, scale
    weight = used.float()
    fits = torch.isfinite(weight.flatten(1)).all(dim=1)
    weight[~fits] = 0.0
    proofs: dict[Any, Any] = {}
    if q is None:
        t = t * factor.square()
    else:
        sums = _builder(layer, weight, None, proofs)(np.ones(count, np.float32), q).row_sums(None)
        assert sums is not None
        t = torch.from_numpy(sums.estimate())
        if not isinstance(bound, AOL):
            t = without_dead_columns(columns, t)
    living = alive(t) & (t > LEAST_T) & (t < 1 / LEAST_T) & fits
    weight[~living] = 0.0
    target = torch.where(living, 1 / torch.where(living, t, 1.0), 0.0).cpu().numpy()
    if q is None:
        q = _search(absolute_gram(layer.arrange(weight.double())), torch.from_numpy(target))
    bias = None
    if layer.bias is not None:
        limit = float(torch.finfo(torch.float32).max) ** 0.5
        bias = torch.where(living, layer.bias.double() / scale, 0.0).clamp(-limit, limit).float()
    return _builder(layer, weight, bias, proofs), weight, bias, target, np.asarray(q)


def _search(overlaps: Tensor, gamma: Tensor) -> np.ndarray:  # (groups, n, n), (n·groups,) → (n·groups,)
    """A q for γ_i Σ_j A_ij q_j/q_i: √γ times the leading vector of Γ^½AΓ^½, found by power iteration."""
    root = gamma.sqrt().view(len(overlaps), -1)
    matrix = root[:, :, None] * overlaps * root[:, None, :]
    x = torch.ones_like(root)
    for _ in range(60):
        x = (matrix @ x[:, :, None])[:, :, 0] + 1e-9 * x
        x = x / x.amax(dim=1, keepdim=True).clamp_min(1e-300)
    q = (x.clamp_min(1e-12) * root).flatten()
    usable = torch.isfinite(q) & (q > 0)
    return np.asarray(torch.where(usable, q, 1.0).cpu().numpy())


def _residual(layer: Any) -> list[Op]:
    build, _, _, target, q = _numbers(layer)
    return [_verified(build, target, q)]


def _general(layer: forms.General) -> list[Op]:
    """U·(x − WΛσ(z), Λ^½σ(z)) with ‖U‖ ≤ 1: zeros behind x, a residual, a product with U.

    (x, 0) ↦ (x − WΛσ(z), Λ^½σ(z)) is a residual with the weight [W; −T^½] and half of γ = 1/T: row sums of both
    parts of its Gram matrix are at most T_i, so those of the whole are at most 2T_i.
    """
    image = isinstance(layer.operator, Conv)
    _, weight, bias, target, q = _numbers(layer)
    root = np.divide(1.0, np.sqrt(target), out=np.zeros_like(target), where=target > 0)
    minus = -torch.from_numpy(root).float().diag()
    if image:
        taps = torch.zeros(*minus.shape, *weight.shape[2:])
        taps[:, :, taps.shape[2] // 2, taps.shape[3] // 2] = minus  # the pixel itself
        minus = taps
    joined = torch.cat((weight.cpu(), minus), dim=1)
    expansion = _verified(_builder(layer, joined, bias), target / 2, q)
    mixing = torch.cat(_doubled(layer).contraction(), dim=1)
    if image:
        last = _contracted(lambda stored: ops.Conv(stored[:, :, None, None], None, *PIXEL), mixing, _norm)
    else:
        last = _contracted(lambda stored: ops.Linear(stored, None), mixing, _norm)
    pad = flexible(foreign.pad_channels, layer.operator.inputs + layer.operator.outputs, 1 if image else -1)
    return [pad, expansion, last]


# --- Maps of norm at most 1 ---


def _contracted(build: Callable[[Tensor], Op], weight: Tensor, norm: Callable[[Any], float]) -> Op:
    """``build`` of the weight in float32, divided by its verified norm above 1: rounding entries keeps no norm."""
    stored = weight.double().float()
    for _ in range(8):
        op = build(stored)
        value = norm(op)
        if value <= 1:
            return op
        stored = (stored.double() * ((1 - 2.0**-22) / value)).float()  # several ulps: less would round back
    return build(stored)


def _norm(op: ops.Affine) -> float:
    return op.norm(None).value


def _doubled(layer: Any) -> Any:
    """A copy of the layer in float64."""
    return copy.deepcopy(layer).double()


def _bias(layer: Any) -> Tensor | None:
    return None if layer.bias is None else layer.bias.detach().float()


def _linear(layer: forms.Affine) -> list[Op]:
    weight, bias = _doubled(layer).scaled_weight(), _bias(layer)
    return [_contracted(lambda stored: ops.Linear(stored, bias), weight, _norm)]


def _conv(layer: forms.Affine) -> list[Op]:
    weight = _doubled(layer).scaled_weight().float()  # its constant is what is proved later, near 1
    assert isinstance(layer.operator, Conv)
    return [ops.Conv(weight, _bias(layer), *_geometry(layer.operator))]


def _linf_linear(layer: linf.LinfLinear) -> list[Op]:
    def norm(op: Op) -> float:
        # A hair above: the result leaves room for a checker's own proof.
        return op.prove_in(layer.norm, (layer.in_features,)).lipschitz * (1 + 2.0**-27)

    weight, bias = _doubled(layer).scaled_weight().detach(), _bias(layer)
    return [_contracted(lambda stored: ops.Linear(stored, bias), weight, norm)]


def _conv_transpose(layer: forms.AffineConvTranspose2d) -> list[Op]:
    weight = _doubled(layer).scaled_weight().float()
    assert isinstance(layer.operator, ConvTranspose)
    conv = layer.operator.conv
    padding = tuple((p, p) for p in conv.padding)
    settings = (conv.stride, padding, conv.dilation, conv.groups, layer.operator.output_padding)
    return [ops.OpenConvTranspose(weight, _bias(layer), *settings)]


def _dropped_in(layer: Any, steps: Any) -> list[Op]:
    """The op of a layer of torch.nn that ``lipcert.parametrize`` changed, with WT^(−½) as for a layer of ours."""
    given, (op,) = layer.parametrizations.weight, steps
    wide = copy.deepcopy(given).double().cpu()
    with _evaluating(wide), dead_as_in(given.original.dtype):
        weight = wide()
    if isinstance(op, ops.Linear):
        return [_contracted(lambda stored: op.clone(weight=stored), weight, _norm)]
    return [op.clone(weight=weight.float())]


def _tracked(layer: tracked.Tracked) -> list[Op]:
    """W and b as they are: nothing was divided, so the constant is the norm that the op proves."""
    weight, bias = layer.plain_weight().detach(), layer.plain_bias()
    bias = None if bias is None else bias.detach()
    if isinstance(layer.operator, Conv):
        return [ops.Conv(weight, bias, *_geometry(layer.operator))]
    return [ops.Linear(weight, bias)]


def _linear_head(layer: head.LinearHead) -> list[Op]:
    bias = None if layer.bias is None else at_least_float32(layer.bias).detach()
    return [ops.Linear(layer.rows().detach(), bias)]


# --- Circular convolutions: in the basis of their image's waves, or as plain ones where they have few taps ---


def _waves_of(layer: forms.OnCircle) -> tuple[Tensor, Tensor] | None:
    """The waves of the layer's image, in which a kernel as large as it costs little; None where it has few taps.

    Refused where the proof would be of another operator: on the plane only ``bcop`` is orthogonal.
    """
    operator = layer.operator
    fits = convolution.torus_fits(operator.image, operator.outputs, operator.inputs)
    if not fits and operator.method != "bcop":
        raise NotCertified(
            "an orthogonal convolution must be small enough to be proved at each frequency of its image, got "
            f"{(operator.outputs, operator.inputs)} channels on {operator.image}. Use fewer, a smaller image, or "
            "bcop."
        )
    high, wide = (2 * (size // 2) + 1 for size in operator.image)
    large = 4 * math.prod(operator.image) * operator.outputs * operator.inputs > MANY_NUMBERS
    if operator.method == "bcop" or high * wide <= FEW_TAPS or large:
        return None
    rows, columns = (waves(size).float() for size in operator.image)
    return rows, columns


def _on_circle(layer: forms.OnCircle, kernel: Tensor) -> tuple[Tensor, Callable[..., Any], Callable[..., Any]]:
    """What to store for a kernel on the image of the layer; affine ops of (it, b) and residuals of (it, γ, b)."""
    basis, sigma = _waves_of(layer), "" if layer.activation is None else layer.activation.name
    if basis is not None:
        return (
            blocks_of(kernel, layer.operator.image),
            lambda stored, bias: ops.Circular(*basis, stored, bias),
            lambda stored, gamma, bias: ops.ResidualCircular(*basis, stored, gamma, bias, sigma),
        )
    # The geometry of a convolution whose output has the size of its image.
    around = ((1, 1), tuple((size // 2, size // 2) for size in kernel.shape[2:]), (1, 1), "circular", 1)
    return (
        kernel,
        lambda stored, bias: ops.Conv(stored, bias, *around),
        lambda stored, gamma, bias: ops.ResidualConv(stored, gamma, bias, None, sigma, *around),
    )


def _orthogonal_conv(layer: forms.OrthogonalConv2d) -> list[Op]:
    bias, image = _bias(layer), (layer.operator.inputs, *layer.operator.image)
    weight, build, _ = _on_circle(layer, _doubled(layer).kernel())

    def norm(op: ops.Affine) -> float:
        return op.norm(image).value

    last = _contracted(lambda stored: build(stored, bias), weight, norm)
    return [last] if layer.stride == 1 else [flexible(foreign.space_to_depth, layer.stride), last]


def _orthogonal_residual(layer: forms.OrthogonalResidualConv2d) -> list[Op]:
    image = (layer.operator.inputs, *layer.operator.image)
    weight, _, build = _on_circle(layer, _doubled(layer).kernel())
    ones = torch.ones(layer.operator.outputs)
    bias = None if layer.bias is None else scaled_bias(layer.bias.float(), ones[0], ones)

    def norm(op: ops.Residual) -> float:  # a hair above √ρ: ρ of the result leaves room for a checker's own proof
        return math.sqrt(op.rho(image).value) * (1 + 2.0**-30)

    return [_contracted(lambda stored: build(stored, ones, bias), weight, norm)]


def _sandwich_linear(layer: forms.SandwichLinear) -> list[Op]:
    inputs, outputs, sigma = layer.operator.inputs, layer.operator.outputs, layer.activation.name
    weight, target, bias = _sandwich_numbers(layer, _doubled(layer).kernel())
    stored = weight.float()
    residual = _verified(
        lambda gamma, q: ops.ResidualLinear(stored, torch.from_numpy(gamma), bias, None, sigma), target, None
    )
    pad = flexible(foreign.pad_channels, inputs + outputs, -1)
    return [pad, residual, flexible(foreign.take_channels, inputs, outputs, -1)]


def _sandwich_conv(layer: forms.SandwichConv2d) -> list[Op]:
    outputs = layer.operator.outputs
    weight, target, bias = _sandwich_numbers(layer, _doubled(layer).kernel())
    image, (blocks, _, build) = (weight.shape[1], *layer.operator.image), _on_circle(layer, weight)
    stored = blocks.float()
    residual = _verified(lambda gamma, q: build(stored, torch.from_numpy(gamma), bias), target, None, image)
    pad = flexible(foreign.pad_channels, weight.shape[1], 1)
    take = flexible(foreign.take_channels, weight.shape[1] - outputs, outputs, 1)
    moved = [flexible(foreign.space_to_depth, layer.stride)] if layer.stride > 1 else []
    return [*moved, pad, residual, take]


def _sandwich_numbers(layer: Any, joined: Tensor) -> tuple[Tensor, np.ndarray, Tensor | None]:  # [A B]
    """√2AᵀΨσ(√2Ψ⁻¹Bx + b) is what the residual of W = √2[B −A]ᵀΨ⁻¹ and γ = Ψ²/2 makes of zeros behind x.

    The result is Wᵀ, dense or a kernel, γ and b. A positively homogeneous σ sees Ψ in b alone: then W = [B −A]ᵀ,
    γ = 1 and the bias is Ψb/√2.
    """
    psi, ones, outputs = layer.psi().double(), torch.ones(len(joined)), layer.operator.outputs
    weight, target = torch.cat((joined[:, outputs:], -joined[:, :outputs]), dim=1), ones.double()
    bias = scaled_bias(layer.bias, 1 / psi, ones)
    if not layer.activation.homogeneous:
        weight = weight * (math.sqrt(2) / psi).view(-1, *[1] * (weight.ndim - 1))
        target, bias = psi.square() / 2, scaled_bias(layer.bias, ones[0], ones)
    elif bias is not None:
        bias = bias / math.sqrt(2)
    return weight, target.cpu().numpy(), None if bias is None else bias.float()


# --- Small layers ---


def _pixelwise(layer: shape.Pixelwise) -> list[Op]:
    """A dense layer on every pixel is a 1×1 convolution."""
    graph = _Graph(parametrized=True)
    graph.add(layer.layer, "layer", INPUT)
    op = graph.nodes[0].op if len(graph.nodes) == 1 else None
    if isinstance(op, ops.Linear):
        return [ops.Conv(op.weight[:, :, None, None], op.bias, *PIXEL)]
    if isinstance(op, ops.ResidualLinear) and op.groups == 1:
        kernel = op.weight[:, :, None, None]
        return [ops.ResidualConv(kernel, op.gamma, op.bias, op.witness, op.activation, *PIXEL)]
    raise NotCertified(
        f"Pixelwise is proved for one dense layer, got {type(layer.layer).__qualname__}. Use a 1×1 convolution."
    )


def _householder(layer: activation.Householder) -> list[Op]:
    """z − 2v·min(0, vᵀz) on pairs of channels is a residual with the weight −v for each pair, γ = 1 and ReLU."""
    half = layer.theta.detach().double() / 2
    vectors = torch.stack((-half.sin(), half.cos()), dim=1)
    stored = (vectors * (1 - 2.0**-22)).float()  # rounding adds at most 2⁻²⁴ to a norm of 1 − 2⁻²²
    ones, pairs = torch.ones(len(stored)), len(stored)
    return [ops.ResidualLinear(stored, ones, None, None, "relu", inner_axis(layer.dim), pairs)]


def _require_blocks(kernel: tuple[int, int], image: Shape) -> None:
    fits = len(image) == 3 and all(size % k == 0 for size, k in zip(image[1:], kernel, strict=True))
    require(fits, f"it needs images whose sides are divisible by {kernel}, got shape {image}.")


def _scaled_pool(kernel: tuple[int, int], image: Shape) -> Op:
    """The sum of each block divided by the root of its size: norm 1."""
    _require_blocks(kernel, image)
    windows = [
        tuple((i * k, (i + 1) * k) for i in range(size // k)) for size, k in zip(image[1:], kernel, strict=True)
    ]
    ones = [(1,) * len(spans) for spans in windows]
    size = math.prod(kernel)
    return ops.Pool((None, *windows), (None, *ones), math.sqrt(size) / size)


def _l2_blocks(kernel: tuple[int, int], image: Shape) -> Op:
    _require_blocks(kernel, image)
    return foreign.l2_blocks(2, kernel, kernel, image)


def _repeated(factors: tuple[int, int], image: Shape) -> Op:
    require(len(image) == 3, f"it needs images, got inputs of shape {image}.")
    indices = [tuple(i for i in range(size) for _ in range(k)) for size, k in zip(image[1:], factors, strict=True)]
    return ops.Select((None, *indices))


def _arranged(
    tail: Shape, split: tuple[int, ...], order: tuple[int, ...], out: tuple[int, ...], shape: Shape
) -> Op:
    """A rearrangement of examples (…, *tail), in which −1 stands for what the number of channels makes it."""
    require(shape[1:] == tail, f"it needs inputs of shape (C, {', '.join(map(str, tail))}), got shape {shape}.")

    def whole(sizes: tuple[int, ...]) -> Shape:
        known = math.prod(size for size in sizes if size != -1)
        return tuple(math.prod(shape) // known if size == -1 else size for size in sizes)

    return ops.Rearrange(whole(split), order, whole(out))


def _shifted(size: int, share: float, first: int, shape: Shape) -> Op:
    """Two groups of channels, merged with an axis of that size, move along it by 1 and −1."""
    channels = shape[0] // size
    require(channels >= 4, f"it needs at least 4 channels, got {channels}.")
    count = group_size(share, channels)
    steps = [{first: 1, first + 1: -1}.get(channel // count, 0) for channel in range(channels)]
    places = [c * size + (i + step) % size for c, step in enumerate(steps) for i in range(size)]
    return ops.Select((tuple(places), None))


def _shift(layer: shape.Shift) -> list[Op]:
    """Permutations of the rows and of the columns, each merged with the channels."""
    (high, wide), share = layer.image_size, layer.share
    return [
        Flexible(_arranged, ((high, wide), (-1, high, wide), (0, 1, 2), (-1, wide)), True),
        Flexible(_shifted, (high, share, 0), True),
        Flexible(_arranged, ((wide,), (-1, high, wide), (0, 2, 1), (-1, high)), True),
        Flexible(_shifted, (wide, share, 2), True),
        Flexible(_arranged, ((high,), (-1, wide, high), (0, 2, 1), (-1, high, wide)), True),
    ]


def _positional_bias(layer: shape.PositionalBias) -> list[Op]:
    """x − (−b) with the pixels as channels."""
    high, wide = layer.image_size
    mean = -layer.bias.detach().double().flatten()
    return [
        Flexible(_arranged, ((high, wide), (-1, high, wide), (1, 2, 0), (high * wide, -1)), True),
        ops.Normalize(mean, torch.ones_like(mean)),
        Flexible(_positions_last, (high, wide), True),
    ]


def _positions_last(high: int, wide: int, shape: Shape) -> Op:
    return ops.Rearrange(shape, (1, 0), (shape[1], high, wide))


def _partial_abs(layer: activation.PartialAbs) -> list[Op]:
    slopes = torch.ones(layer.channels)
    slopes[: layer.count] = -1.0
    return [ops.PReLU(slopes)]


def _batch_centering(layer: shape.BatchCentering) -> list[Op]:
    shift = layer.mean.double() if layer.bias is None else layer.mean.double() - layer.bias.detach().double()
    return [ops.Normalize(shift, torch.ones_like(shift))]


def _layer_centering(layer: shape.LayerCentering) -> list[Op]:
    """x − 1(1ᵀx)/n as a residual: s = relu(s) − relu(−s) for s = 1ᵀx, by two neurons with W = [1 −1], γ = 1/2n.

    The row sums of |WᵀW| are 2n, so that γ is what AOL allows.
    """
    count = math.prod(layer.normalized_shape)
    ones = torch.ones(2, count) * torch.tensor([[1.0], [-1.0]])

    def build(gamma: np.ndarray, q: np.ndarray | None) -> ops.Residual:
        witness = None if q is None else torch.from_numpy(q)
        return ops.ResidualLinear(ones, torch.from_numpy(gamma), None, witness, "relu")

    steps: list[Op] = [_verified(build, np.full(2, 0.5 / count), np.ones(2))]
    if len(layer.normalized_shape) > 1:
        merged = flexible(foreign.flatten, -len(layer.normalized_shape), -1)
        steps = [merged, *steps, flexible(foreign.unflatten, -1, layer.normalized_shape)]
    if layer.bias is not None:
        shift = -layer.bias.detach().double()
        steps.append(ops.Normalize(shift, torch.ones_like(shift)))
    return steps


def _clipped(layer: activation.Clipped) -> list[Op]:
    low, high = (float(end) for end in layer.limits())
    return [Function("hardtanh", (low + 0.0, high))]  # no negative zero


LAYERS: dict[type, Callable[[Any], list[Op]]] = {
    forms.ResidualLinear: _residual,
    **dict.fromkeys((forms.ResidualConv1d, forms.ResidualConv2d, forms.ResidualConv3d), _residual),
    forms.AffineLinear: _linear,
    forms.OrthogonalLinear: _linear,
    **dict.fromkeys((forms.AffineConv1d, forms.AffineConv2d, forms.AffineConv3d), _conv),
    forms.AffineConvTranspose2d: _conv_transpose,
    forms.OrthogonalConv2d: _orthogonal_conv,
    forms.OrthogonalResidualConv2d: _orthogonal_residual,
    forms.GeneralLinear: _general,
    forms.GeneralConv2d: _general,
    forms.SandwichLinear: _sandwich_linear,
    forms.SandwichConv2d: _sandwich_conv,
    head.NormalizedHead: lambda layer: [ops.Linear(_doubled(layer).rows().float(), _bias(layer))],
    **dict.fromkeys((tracked.TrackedLinear, tracked.TrackedConv2d, tracked.LinearResidualConv2d), _tracked),
    head.LinearHead: _linear_head,
    linf.LinfLinear: _linf_linear,
    head.FirstLogits: lambda layer: [flexible(foreign.take_channels, 0, layer.num_classes, 1)],
    activation.MaxMin: lambda layer: [ops.GroupSort(2, inner_axis(layer.dim), True)],
    activation.GroupSort: lambda layer: [ops.GroupSort(layer.group_size, inner_axis(layer.dim))],
    activation.Householder: _householder,
    **dict.fromkeys((activation.ClippedReLU, activation.Clip), _clipped),
    activation.Abs: lambda layer: [Function("abs")],
    activation.PartialAbs: _partial_abs,
    shape.Pixelwise: _pixelwise,
    shape.Shift: _shift,
    shape.PositionalBias: _positional_bias,
    shape.PadChannels: lambda layer: [flexible(foreign.pad_channels, layer.channels, layer.dim)],
    shape.TakeChannels: lambda layer: [flexible(foreign.take_channels, layer.first, layer.count, layer.dim)],
    shape.PadImage: lambda layer: [flexible(foreign.pad_image, layer.multiple)],
    shape.SpaceToDepth: lambda layer: [flexible(foreign.space_to_depth, layer.block)],
    shape.ScaledAvgPool2d: lambda layer: [flexible(_scaled_pool, layer.kernel_size)],
    shape.L2Pool2d: lambda layer: [flexible(_l2_blocks, layer.kernel_size)],
    shape.Center: lambda layer: [ops.Normalize(layer.mean, torch.ones_like(layer.mean))],
    shape.Normalize: lambda layer: [ops.Normalize(layer.mean, layer.std)],
    shape.BatchCentering: _batch_centering,
    shape.LayerCentering: _layer_centering,
    shape.ScaledUpsample2d: lambda layer: [
        flexible(_repeated, layer.scale_factor),
        ops.Scale(1 / math.sqrt(math.prod(layer.scale_factor))),
    ],
    shape.Scale: lambda layer: [ops.Scale(float(_doubled(layer).current().detach()))],
}
