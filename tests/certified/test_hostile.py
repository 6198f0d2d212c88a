"""What a hostile review broke: each test failed on the code it was written against.

The numbers of the cases (A1 … A14, B1, B2) name its findings; CHANGELOG.md describes them under Soundness.
Either a claim is true, or there is none: how it is refused does not matter here.
"""

import copy
import dataclasses
import math
import threading
import warnings
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lipcert as lc
from lipcert.activations import SLOPE_RESTRICTED
from lipcert.certified import ops
from lipcert.certified.freeze import prove
from lipcert.certified.network import INPUT, Network, Node
from lipcert.exporters.files import load_frozen
from lipcert.intact import require_intact
from processes import program


def linear(*rows, bias=None):
    """nn.Linear with these rows, in float64."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=bias is not None, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows, dtype=torch.float64))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return layer


def refused_or_at_least(true, claim):
    """The claimed constant, if there is one, is not below the true one."""
    try:
        value = claim()
    except (lc.NotCertified, ValueError):
        return
    assert value >= true * (1 - 1e-12), (value, true)


# --- A1: tensors of another shape are broadcast ---


def wide_mean(layer, name, shape):
    setattr(layer, name, torch.zeros(shape) if name != "std" else torch.ones(shape))
    return layer


@pytest.mark.parametrize(
    "first",
    [
        wide_mean(lc.layers.Center([0.0]), "mean", (1, 9)),
        wide_mean(lc.layers.Normalize([0.0], [1.0]), "mean", (1, 9)),
        wide_mean(lc.layers.Normalize([0.0], [1.0]), "std", (1, 9)),
    ],
)
def test_a_mean_of_another_shape_gives_no_false_radius(first):
    rest = [nn.Unflatten(1, (1, 1, 9)), lc.layers.PadImage(9), lc.layers.ScaledAvgPool2d((1, 9)), nn.Flatten()]
    network = nn.Sequential(first, *rest, lc.layers.TakeChannels(1), linear([1.0], [0.0]).float())
    with pytest.raises((lc.NotCertified, ValueError)):
        lc.certify(network, torch.ones(1, 1), torch.zeros(1, dtype=torch.long))
    with pytest.raises((lc.NotCertified, ValueError)):
        lc.audit(network, (1,))
    refused_or_at_least(3.0, first.lipschitz_bound)


def test_a_bias_of_another_shape_is_no_claim():
    layer = lc.OrthogonalConv2d(1, 1, 1, image_size=1)
    layer.bias = nn.Parameter(torch.zeros(9))
    refused_or_at_least(3.0, layer.lipschitz_bound)
    head = lc.NormalizedHead(3, 1)
    head.bias = nn.Parameter(torch.zeros(5))
    refused_or_at_least(math.sqrt(5), head.lipschitz_bound)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_a_kernel_of_another_size_is_no_claim(padding_mode):
    layer = lc.ResidualConv2d(1, 1, 3, padding_mode=padding_mode)
    layer.weight = nn.Parameter(torch.ones(1, 1, 1, 1))
    refused_or_at_least(3.0 if padding_mode == "circular" else 1.0, layer.lipschitz_bound)


# --- A2, A3: batch norm ---


def batch_norm(variance, weight=1.0, eps=0.0, mean=0.0, bias=0.0, dtype=torch.float64):
    norm = nn.BatchNorm1d(1, eps=eps, dtype=dtype).eval()
    with torch.no_grad():
        norm.running_var.fill_(variance)
        norm.running_mean.fill_(mean)
        norm.weight.fill_(weight)
        norm.bias.fill_(bias)
    return norm


def exact_factor(norm):
    """|w|/√(v + ε) of the stored numbers, in rational arithmetic, rounded down."""
    inside = Fraction(norm.running_var.item()) + Fraction(norm.eps)
    square = Fraction(norm.weight.item()) ** 2 / inside
    shift = 2**2200
    return Fraction(math.isqrt(math.floor(square * shift**2)), shift)


@pytest.mark.parametrize(
    ("variance", "weight", "eps"),
    [
        (1.7e308, 1e160, 1e308),
        (1e300, 1e-200, 0.0),
        (5e-324, 1.0, 0.0),
        (1e-300, 1e-170, 0.0),
        (0.0, 1e-160, 5e-324),
        (1e308, 5e-324, 1e308),
        (1.0, 1.0, 1e-5),
        (1e308, 0.0, 1e308),
    ],
)
def test_the_constant_of_a_batch_norm_neither_overflows_nor_underflows(variance, weight, eps):
    norm = batch_norm(variance, weight, eps)
    constant = prove(norm, (1,)).lipschitz
    assert constant == math.inf or Fraction(constant) >= exact_factor(norm)
    assert constant < math.inf or exact_factor(norm) > 1e300


def test_a_batch_norm_that_overflows_gives_no_radius():
    network = nn.Sequential(batch_norm(1.7e308, 1e160, 1e308), linear([0.0], [1.0], bias=[0.0, 1e-3]))
    label = torch.ones(1, dtype=torch.long)
    x = torch.zeros(1, 1, dtype=torch.float64)
    with pytest.raises(lc.NotCertified):
        lc.certify(network, x, label)


@pytest.mark.parametrize(
    ("norm", "x"),
    [
        (batch_norm(1e40, 1e20), 1.0),
        (batch_norm(2.4 * 2.0**-149, 2.0**-74), 1.05 / math.sqrt(2.4) * 2**0.5),
        (batch_norm(2.0**-149, 1.0, 0.45 * 2.0**-149, dtype=torch.float32), 2.0**-66),
        (batch_norm(1.0, 1.0, mean=1e39), 1.0),
    ],
)
def test_the_filter_agrees_with_exact_arithmetic_after_a_batch_norm(norm, x):
    """Two logits: what batch norm says, and a constant near it on either side."""
    exact = float(exact_factor(norm)) * (x - float(norm.running_mean))
    for factor in (0.9, 0.99, 1.01, 1.1):
        network = nn.Sequential(norm, linear([1.0], [0.0], bias=[0.0, exact * factor]))
        try:
            classify = lc.FilteredClassifier(network, (1,))
        except lc.NotCertified:
            return
        answer = int(classify(torch.tensor([[x]])).predictions)
        assert answer in (-1, int(factor > 1))


# --- A4: parametrized modules ---


def test_a_parametrized_network_is_not_contradicted_in_float64():
    """Its weight is computed anew in the precision of the network; stored, it is one set of numbers."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3))
    x, labels = torch.randn(4, 8), torch.zeros(4, dtype=torch.long)
    for claim in (
        lambda: lc.certify(network, x, labels),
        lambda: lc.FilteredClassifier(network, (8,)),
        lambda: lc.output_interval(network, x, 0.1),
    ):
        with pytest.raises(lc.NotCertified, match="freeze"):
            claim()
    stored = lc.freeze(network)
    assert torch.equal(stored[0].weight, network[0].weight)
    assert lc.certify(stored, x, labels).arithmetic == "float64"
    assert lc.audit(network, x).ok


# --- A5: attributes changed after construction ---


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (
            lambda: lc.ResidualConv2d(1, 1, 3, padding_mode="circular"),
            "operator",
            lc.ResidualConv2d(1, 1, 5).operator,
        ),
        (lambda: lc.bounds.Rescaled(4, 1), "order", -1),
        (lambda: lc.OrthogonalConv2d(1, 1, 2, image_size=4, method="eco"), "stride", 2),
        (lambda: lc.ResidualConv2d(2, 2, 3), "operator", lc.ResidualConv2d(2, 2, 3, stride=2).operator),
        (lambda: lc.layers.Scale(2.0), "factor", 3.0),
        (lambda: lc.ResidualLinear(2, 2), "activation", SLOPE_RESTRICTED["tanh"]),
        (lambda: lc.layers.SpaceToDepth(2), "block", 3),
        (lambda: lc.layers.PadChannels(4), "channels", torch.tensor([4, 5])),
    ],
)
def test_nothing_is_claimed_about_a_layer_whose_settings_changed(make, name, value):
    layer = make()
    setattr(layer, name, getattr(layer, name))  # the same value is no change
    copy.deepcopy(layer).eval().require_as_built()
    setattr(layer, name, value)
    with pytest.raises(lc.NotCertified, match=name):
        require_intact(layer)


# --- A6: what runs is not what is proved ---


class Tenfold(torch.Tensor):
    """A weight that multiplies by ten, as quantized or low-rank weights bring their own product."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * 10 if func is F.linear else out


def subclassed_weight(module, name="weight"):
    module._parameters.pop(name, None)
    module._buffers[name] = torch.full((4, 4), 0.5).as_subclass(Tenfold)
    return module


def own_deepcopy(module):
    module.__deepcopy__ = lambda memo: nn.Linear(4, 4)
    return module


class CopiesItself(nn.Linear):
    def __deepcopy__(self, memo):
        return nn.Linear(4, 4)


PATCHED = {
    "a weight with its own product": lambda: subclassed_weight(nn.Linear(4, 4)),
    "a mean with its own product": lambda: subclassed_weight(lc.layers.Center([0.0] * 4), "mean"),
    "a residual with such a weight": lambda: subclassed_weight(lc.ResidualLinear(4, 4)),
    "a module that copies itself": lambda: own_deepcopy(nn.Linear(4, 4)),
    "a subclass that copies itself": lambda: CopiesItself(4, 4),
}


@pytest.mark.parametrize("name", PATCHED)
def test_what_replaces_the_code_of_a_module_is_refused(name):
    for claim in (
        lambda module: lc.audit(module, (4,)),
        lc.freeze,
        lc.lipschitz_bound,
        lambda module: lc.certify(module, torch.rand(2, 4), torch.zeros(2, dtype=torch.long)),
    ):
        with pytest.raises((lc.NotCertified, ValueError)):
            claim(PATCHED[name]())


@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [
        (nn.ReLU, "forward", nn.ReLU),
        (nn.Linear, "forward", lambda: nn.Linear(4, 4)),
        (nn.Conv2d, "_conv_forward", lambda: nn.Conv2d(4, 4, 1)),
        (nn.Module, "_call_impl", nn.ReLU),
        (lc.ResidualLinear, "compute", lambda: lc.ResidualLinear(4, 4)),
        (lc.layers.MaxMin, "act", lc.layers.MaxMin),
        (lc.bounds.SLL, "forward", lambda: lc.ResidualLinear(4, 4)),
        (Network, "forward", lambda: lc.freeze(nn.ReLU())),
        (ops.Affine, "forward", lambda: lc.freeze(nn.Linear(4, 4))),
        (ops.Affine, "norm", lambda: lc.freeze(nn.Linear(4, 4))),
        (ops.Residual, "rho", lambda: lc.freeze(lc.ResidualLinear(4, 4))),
        (ops.Flexible, "at", lambda: lc.freeze(lc.layers.PadChannels(6))),
    ],
)
def test_a_patched_class_is_refused(kind, name, make, monkeypatch):
    original = getattr(kind, name)
    module = make()
    shape = (4, 2, 2) if isinstance(module, nn.Conv2d) else (4,)

    def louder(self, *args):
        return original(self, *args)

    monkeypatch.setattr(kind, name, louder)
    with pytest.raises(lc.NotCertified, match="replaced"):
        lc.audit(module, shape)
    with pytest.raises(lc.NotCertified):
        lc.lipschitz_bound(module, shape)
    with pytest.raises(lc.NotCertified):
        lc.lipschitz_bound(module)
    monkeypatch.undo()
    lc.audit(module, shape)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: lc.parametrize(nn.Linear(4, 4)), "weight"),
        (lambda: nn.Linear(4, 4), "weight"),
        (lambda: ops.ResidualLinear(torch.eye(4), torch.ones(4), None, None, "relu"), "sigma"),
    ],
)
def test_a_patched_property_is_refused(make, name, monkeypatch):
    """The weight of a parametrized layer is a property: what replaces it decides what the layer computes."""
    module = make()
    lc.audit(module, (4,))
    monkeypatch.setattr(type(module), name, property(lambda self: 9 * torch.eye(4)), raising=False)
    for refuse in (lambda: lc.audit(module, (4,)), lambda: lc.lipschitz_bound(module), lambda: lc.freeze(module)):
        with pytest.raises(lc.NotCertified, match="replaced"):
            refuse()


class Louder(ops.Linear):
    """An op of one's own, which says of itself what it likes."""

    def forward(self, x):
        return 9 * super().forward(x)


class Quieter(ops.Linear):
    def prove(self, shape, block=None):
        return dataclasses.replace(super().prove(shape, block), lipschitz=0.1)


class Own(nn.Module):
    def forward(self, x):
        return 0.5 * x


def by_name(**change):
    """A change of the op ``0`` of a frozen network, by attribute."""

    def changed(network):
        for name, value in change.items():
            vars(network[0])[name] = value

    return changed


def hooked(op):
    op.register_forward_hook(lambda module, inputs, output: 9 * output)


def own_product(network):
    network[0]._buffers["weight"] = network[0].weight.as_subclass(Tenfold)


def without_buffer(network):
    weight = network[0].weight
    del network[0].weight
    vars(network[0])["weight"] = weight * math.nan


CHANGED = {
    "a hook on the network": hooked,
    "a hook on an op": lambda network: hooked(network[0]),
    "a hook on a flexible op": lambda network: hooked(network[1]),
    "a hook on a module that is assumed": lambda network: hooked(network[2].module),
    "a patched forward": by_name(forward=lambda x: 9 * x),
    "a patched evaluate": by_name(evaluate=lambda x, block: 9 * x),
    "a patched proof": by_name(prove=lambda shape, block=None: None),
    "a patched clone": by_name(clone=lambda: ops.Linear(torch.zeros(4, 4), None)),
    "a patched network": lambda network: vars(network).update(forward=lambda x: 9 * x),
    "an operator of another kind": by_name(
        operator=ops.Conv(torch.ones(1, 1, 1), None, (1,), ((0, 0),), (1,)).operator
    ),
    "another axis": by_name(axis=0),
    "other groups": by_name(groups=2),
    "a weight with its own product": own_product,
    "a weight that is no buffer": without_buffer,
    "a bias that was not there": lambda network: setattr(network[0], "bias", torch.zeros(4)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_frozen_network_that_was_changed_is_refused(name):
    lc.register_rule(Own, 0.5)
    claims = (
        lambda network: lc.audit(network, (4,)),
        lc.freeze,
        lambda network: lc.certify(network, torch.rand(2, 4), arithmetic="real"),
        lambda network: prove(nn.Sequential(network, nn.ReLU()), (4,)),
        lambda network: prove(lc.layers.ConvexCombination(network), (4,)),
    )
    for claim in claims:
        network = lc.freeze(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Flatten(), Own()))
        claim(network)
        CHANGED[name](network)
        with pytest.raises((lc.NotCertified, ValueError)):
            claim(network)
    if "assumed" not in name:
        for shape in (None, (4,)):
            network = lc.freeze(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Flatten()))
            lc.lipschitz_bound(network, shape)
            CHANGED[name](network)
            with pytest.raises((lc.NotCertified, ValueError)):
                lc.lipschitz_bound(network, shape)


@pytest.mark.parametrize("kind", [Louder, Quieter])
def test_an_op_of_ones_own_proves_nothing(kind):
    op = kind(torch.eye(4), None)
    for network in (op, nn.Sequential(op), Network([Node("op", op)])):
        for claim in (lambda n: lc.audit(n, (4,)), lc.freeze, lambda n: lc.lipschitz_bound(n, (4,))):
            with pytest.raises(lc.NotCertified):
                claim(network)


@pytest.mark.parametrize(("name", "value"), [("stride", (2, 2)), ("padding", ((0, 0), (0, 0))), ("groups", 2)])
def test_nothing_is_claimed_about_an_op_whose_settings_changed(name, value):
    """What was proved for the old ones would be found again for the new ones."""
    network = lc.freeze(nn.Conv2d(2, 2, 3, padding=1))
    assert lc.audit(network, (2, 4, 4)).ok
    setattr(network[0], name, value)
    with pytest.raises(lc.NotCertified, match=name):
        lc.audit(network, (2, 4, 4))


def test_a_network_that_torch_compiled_is_looked_through():
    network = nn.Sequential(lc.ResidualLinear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    expected = lc.audit(network, (4,)).lipschitz
    assert lc.audit(torch.compile(network, backend="eager"), (4,)).lipschitz == expected
    assert lc.audit(torch.compile(nn.ReLU(), backend="eager"), (4,)).ok
    assert lc.lipschitz_bound(torch.compile(lc.ResidualLinear(4, 4), backend="eager")) == 1.0
    frozen, plain = lc.freeze(torch.compile(network, backend="eager")), lc.freeze(network)
    assert type(frozen) is Network
    assert frozen.names == plain.names == ("0", "1", "2")
    assert all(torch.equal(a, b) for a, b in zip(frozen.buffers(), plain.buffers(), strict=True))
    network.compile(backend="eager")
    network[0].compile(backend="eager")
    assert lc.audit(network, (4,)).lipschitz == expected


# --- A7: mixtures ---


def scales(*factors):
    return nn.Sequential(*(lc.layers.Scale(factor) for factor in factors))


def test_the_product_of_a_mixture_does_not_underflow():
    small, large = [2.0**-127] * 9, [2.0**127] * 9
    branch = scales(*small, *large)
    for network in (lc.layers.ConvexCombination(branch), lc.freeze(lc.layers.ConvexCombination(branch))):
        assert prove(network, (4,)).lipschitz >= 1 - 2.0**-20
    # The other way round the product overflows on the way; what is claimed may be infinite, never too small.
    assert prove(lc.layers.ConvexCombination(scales(*large, *small)), (4,)).lipschitz >= 1 - 2.0**-20
    # Weights that underflow in a product still count.
    tiny = 2.0**-140
    assert prove(mixture(torch.tensor([tiny, 1.0]), scales(*small), nn.Identity()), (4,)).lipschitz >= 1
    assert prove(mixture(torch.tensor([tiny, tiny]), nn.Identity(), nn.Identity()), (4,)).lipschitz >= 2 * tiny
    assert prove(mixture(torch.tensor([tiny]), scales(*small)), (4,)).lipschitz > 0


def mixture(weights, *branches):
    """Σ_k weights_k·branches_k as a graph, with any weights."""
    nodes, ends = [], []
    for index, branch in enumerate(branches):
        renamed = {INPUT: INPUT}
        for node in lc.freeze(branch).nodes:
            renamed[node.name] = f"{index}.{node.name}"
            nodes.append(Node(renamed[node.name], node.op, tuple(renamed[name] for name in node.inputs)))
        ends.append(nodes[-1].name)
    return Network([*nodes, Node("sum", ops.Combination(weights), tuple(ends))])


def test_branches_of_different_shapes_are_refused():
    for graph in (
        lc.layers.ConvexCombination(nn.Identity(), lc.layers.TakeChannels(1)),
        lc.freeze(lc.layers.ConvexCombination(nn.Identity(), lc.layers.TakeChannels(1))),
        mixture(torch.full((2,), 0.5), nn.Identity(), lc.layers.TakeChannels(1)),
    ):
        with pytest.raises((lc.NotCertified, ValueError), match="shape"):
            prove(graph, (4,))


def test_a_mixture_without_branches_is_refused():
    with pytest.raises((lc.NotCertified, ValueError), match="at least one input"):
        ops.Combination(torch.zeros(0))
    with pytest.raises((lc.NotCertified, ValueError), match="inputs"):
        Network([Node("sum", ops.Combination(torch.ones(1)), ())])
    with pytest.raises((lc.NotCertified, ValueError), match="reads 1 inputs, got 2"):
        Network([Node("abs", ops.Function("abs"), (INPUT, INPUT))])
    emptied = lc.layers.ConvexCombination(nn.Identity())
    del emptied.branches[0]
    with pytest.raises((lc.NotCertified, ValueError), match="branches"):
        prove(emptied, (4,))


@pytest.mark.parametrize("count", [1, 3])
def test_a_mixture_has_one_weight_for_each_branch(count):
    """Two branches; with one weight the second would not be counted."""
    with pytest.raises((lc.NotCertified, ValueError), match=rf"reads {count} inputs, got 2"):
        prove(mixture(torch.full((count,), 0.25), lc.layers.Scale(2.0), lc.layers.Scale(9.0)), (4,))


def test_a_weight_below_zero_is_refused():
    with pytest.raises(lc.NotCertified, match="negative"):
        ops.Combination(torch.tensor([1.5, -0.5]))
    graph = mixture(torch.tensor([0.5, 0.5]), nn.Identity(), lc.layers.Scale(-1.0))
    graph[-1].weights.copy_(torch.tensor([1.5, -0.5]))
    with pytest.raises(lc.NotCertified, match="negative"):
        prove(graph, (4,))


def test_what_the_last_op_does_not_read_does_not_count():
    """A factor 0.1 that nothing uses made the product 0.1."""
    nodes = Node("a", ops.Scale(0.1)), Node("b", ops.Function("abs")), Node("c", ops.Scale(3.0), ("b",))
    with pytest.raises(ValueError, match="'a' is read by no other node"):
        Network(nodes)
    assert 3 <= lc.lipschitz_bound(Network(nodes[1:])) <= 3 * (1 + 1e-6)
    both = mixture(torch.tensor([0.5, 0.5]), lc.layers.Scale(0.1), lc.layers.Scale(3.0))
    assert 1.55 * (1 - 1e-6) <= lc.lipschitz_bound(both, (4,)) <= 1.55 * (1 + 1e-6)
    assert 1.55 * (1 - 1e-6) <= lc.lipschitz_bound(both) <= 1.55 * (1 + 1e-6)


def test_pairs_of_tiny_constants_are_not_zero():
    network = nn.Sequential(scales(*[2.0**-90] * 8), linear([2.0**-400], [0.0]))
    pairwise = lc.audit(network, (1,)).pairwise
    assert pairwise is None or float(pairwise[0, 1]) > 0


# --- A8: flush to zero at call time ---

FLUSHING = """
import torch, lipcert as lc
from torch import nn
from lipcert.certified.freeze import prove
network = nn.Sequential(nn.LeakyReLU(2.0**126), nn.Linear(1, 2))
with torch.no_grad():
    network[1].weight.copy_(torch.tensor([[-1.0], [0.0]])); network[1].bias.copy_(torch.tensor([0.0, 0.1]))
classify, links = lc.FilteredClassifier(network, (1,)), prove(network, (1,))
x = torch.tensor([[-2.0**-127]])
assert int(classify(x).predictions) in (0, -1)
torch.set_flush_denormal(True)
for claim in (
    lambda: classify(x),
    lambda: lc.certify(links, x, torch.zeros(1, dtype=torch.long)),
    lambda: lc.output_interval(links, x, 0.1),
    lambda: lc.audit(network, (1,)),
):
    try:
        claim()
    except lc.NotCertified as refusal:
        assert "set_flush_denormal(False)" in str(refusal), refusal
    else:
        raise AssertionError("a claim was made while subnormal numbers are flushed")
torch.set_flush_denormal(False)
classify(x)
"""


def test_nothing_is_claimed_while_subnormal_numbers_are_flushed():
    result = program(FLUSHING)
    assert result.returncode == 0, result.stderr


# --- A11: windows without a pixel ---


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.MaxPool2d(2, 1, 1, dilation=3), (1, 2, 2)), (nn.MaxPool1d(2, 1, 1, dilation=3), (1, 2))],
)
def test_a_pool_with_a_window_of_padding_alone_is_refused(module, shape):
    with pytest.raises(lc.NotCertified, match="window"):
        lc.audit(module, shape)


# --- A12: torch's settings of precision ---

PRECISION = """
import torch, lipcert as lc
from torch import nn
network = nn.Sequential(lc.ResidualLinear(4, 4), lc.NormalizedHead(4, 3))
x = torch.rand(2, 4)
classify = lc.FilteredClassifier(network, (4,))
exec("torch.backends.%s")
with torch.no_grad():
    network.eval()(x), network(x)
lc.certify(network, x)
refused = False
try:
    classify(x)
except lc.NotCertified as refusal:
    refused = True
assert refused == %s
"""


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("cuda.matmul.fp32_precision = 'tf32'", False),
        ("cuda.matmul.fp32_precision = 'ieee'", False),
        ("mkldnn.matmul.fp32_precision = 'bf16'", True),
        ("mkldnn.conv.fp32_precision = 'bf16'", True),
        ("fp32_precision = 'tf32'", True),
        ("fp32_precision = 'ieee'", False),
    ],
)
def test_settings_of_float32_precision(setting, refused):
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has no such settings")
    result = program(PRECISION % (setting, refused))
    assert result.returncode == 0, result.stderr


# --- A13: degenerate arguments ---


def test_degenerate_arguments_are_one_clear_refusal():
    norm = nn.BatchNorm1d(4).eval()
    norm.running_mean = None
    strideless = nn.AvgPool2d(2)
    strideless.stride = None
    relu = nn.ReLU()
    for claim in (
        lambda: lc.audit(relu, torch.zeros(0, 4)),
        lambda: lc.audit(relu, (4,), samples=0),
        lambda: lc.audit(relu, ()),
        lambda: lc.audit(relu, (0,)),
        lambda: lc.audit(relu, (4.0,)),
        lambda: lc.audit(relu, torch.tensor(1.0)),
        lambda: lc.audit(norm, (4,)),
        lambda: lc.certify(relu, torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), batch_size=0),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            claim()
    assert lc.audit(strideless, (1, 4, 4)).ok  # torch takes the kernel's size where the stride is None


# --- A14: memory that grows with the stride ---


def test_a_large_stride_costs_no_memory():
    layer = nn.Conv2d(1, 1, 1, stride=20_000)
    with torch.no_grad():
        layer.weight.fill_(0.5)
    assert lc.audit(layer, (1, 3, 3)).lipschitz == pytest.approx(0.5)
    for layer in (lc.AffineConv2d(1, 1, 1, stride=20_000), lc.ResidualConv2d(1, 1, 1, stride=20_000)):
        assert layer(torch.rand(1, 1, 3, 3)).shape[0] == 1
        assert lc.audit(layer, (1, 3, 3)).ok


# --- B2, F1: activations ---


@pytest.mark.parametrize("activation", SLOPE_RESTRICTED)
def test_every_activation_of_a_residual_certifies(activation):
    torch.manual_seed(0)
    backbone = nn.Sequential(
        lc.ResidualConv2d(1, 2, activation=activation),
        nn.Flatten(),
        lc.ResidualLinear(16, 8, activation=activation),
        lc.SandwichLinear(16, 16, activation=activation),
        lc.GeneralLinear(16, 4, 12, activation=activation),
    )
    network = lc.freeze(nn.Sequential(backbone, lc.NormalizedHead(12, 4)))
    x = torch.rand(6, 1, 4, 4)
    labels = network(x).argmax(dim=1)
    result, real = lc.certify(network, x, labels), lc.certify(network, x, labels, arithmetic="real")
    assert result.arithmetic == "float64"
    assert (result.radii > 0).all()
    assert (real.radii - result.radii).abs().max() < 1e-9
    assumed = activation not in ("relu", "leaky_relu")
    assert result.assumes == ((f"{activation} within 8 ulp",) if assumed else ())
    report = lc.audit(network, x)
    assert report.ok
    assert (f"{activation} within 8 ulp" in str(report)) == assumed
    answer = lc.FilteredClassifier(network, (1, 4, 4))(x)
    assert torch.equal(answer.predictions, labels)


# --- Never silent ---


class SoftThreshold(lc.layers.LipschitzLayer):
    def forward(self, x):
        return F.softshrink(x, 0.1)

    def proved_constant(self):
        return 1.0


class Liar(lc.layers.LipschitzLayer):
    def forward(self, x):
        return 3 * x

    def proved_constant(self):
        return 1.0


def test_a_layer_without_a_rounding_bound_is_named():
    network = nn.Sequential(lc.ResidualLinear(4, 4), SoftThreshold(), lc.NormalizedHead(4, 3))
    x = torch.rand(3, 4)
    for claim in (lambda **a: lc.certify(network, x, **a), lambda **a: lc.output_interval(network, x, 0.1, **a)):
        with pytest.raises(lc.NotCertified, match=r"1 .*SoftThreshold.*arithmetic='real'"):
            claim()
    assert lc.certify(network, x, arithmetic="real").arithmetic == "real, up to the rounding of the logits"
    with pytest.warns(UserWarning, match="rounding"):
        lc.output_interval(network, x, 0.1, arithmetic="real")
    with pytest.raises(lc.NotCertified, match="SoftThreshold"):
        lc.FilteredClassifier(network, (4,))


def test_tensors_too_large_for_a_rounding_bound_are_named():
    network = nn.Sequential(linear([2.0**130, 0.0], [0.0, 1.0]))
    with pytest.raises(lc.NotCertified, match=r"0 .*rounding"):
        lc.certify(network, torch.rand(3, 2))


def test_certify_refuses_what_audit_refutes():
    network = nn.Sequential(Liar(), lc.NormalizedHead(4, 3))
    x = torch.rand(3, 4)
    assert not lc.audit(network, x).ok
    for arithmetic in ("real", "float64"):
        with pytest.raises(lc.NotCertified):
            lc.certify(network, x, arithmetic=arithmetic)


def test_register_rule_takes_a_number_or_a_function_and_checks_it():
    class Own(nn.Module):
        def forward(self, x):
            return 0.5 * x

    x = torch.rand(2, 4)
    for rule in (0.5, lambda module: 0.5):
        lc.register_rule(Own, rule)
        report = lc.audit(Own(), x)
        assert report.layers[0].verdict == "ASSUMED"
        assert report.lipschitz == pytest.approx(0.5)
        for claim in (lc.lipschitz_bound, lambda module: lc.lipschitz_bound(module, (4,))):
            for network in (
                Own(),
                nn.Sequential(nn.ReLU(), Own()),
                lc.freeze(Own()),
                lc.layers.ConvexCombination(Own()),
            ):
                with pytest.raises(lc.NotCertified):  # which says "proved", so a user's word is not enough
                    claim(network)
    for rule in (-1.0, math.nan, math.inf, "1", None):
        with pytest.raises(ValueError, match="constant"):
            lc.register_rule(Own, rule)


class TooSmall(lc.bounds.Bound):
    """T a quarter of what it must be."""

    def forward(self, columns):
        return columns, columns.taps.flatten(2).square().sum(dim=2)[0] / 4

    def require_sound(self):
        pass


def test_freeze_says_that_it_enlarged_a_t():
    with pytest.warns(UserWarning, match="T"):
        lc.freeze(nn.Sequential(lc.ResidualLinear(4, 4, bound=TooSmall())))


def test_a_scale_after_the_head_costs_no_radius():
    torch.manual_seed(0)
    plain = nn.Sequential(lc.ResidualLinear(6, 6), lc.NormalizedHead(6, 4))
    x = torch.rand(5, 6)
    expected = lc.certify(plain, x)
    for factor in (10.0, 0.3):
        scaled = nn.Sequential(*plain, lc.layers.Scale(factor))
        for network in (scaled, lc.freeze(scaled), nn.Sequential(plain, lc.layers.Scale(factor))):
            result = lc.certify(network, x)
            torch.testing.assert_close(result.radii, expected.radii, rtol=1e-6, atol=0)
        torch.testing.assert_close(lc.freeze(scaled)(x), scaled(x), rtol=1e-5, atol=1e-5)


def test_without_labels_the_predicted_class_is_certified():
    torch.manual_seed(0)
    network = lc.freeze(nn.Sequential(lc.ResidualLinear(6, 6), lc.NormalizedHead(6, 4)))
    x = torch.rand(5, 6)
    predicted = network(x).argmax(dim=1)
    result = lc.certify(network, x)
    assert torch.equal(result.radii, lc.certify(network, x, predicted).radii)
    assert torch.equal(result.predictions, predicted)
    assert torch.equal(result.labels, predicted)


def test_inputs_beyond_every_bound_are_counted_aloud():
    network = nn.Sequential(nn.Linear(2, 2, dtype=torch.float64))
    with pytest.warns(UserWarning, match="1 of 2"):
        lc.certify(network, torch.tensor([[1.0, 2.0], [1e200, 0.0]], dtype=torch.float64))


# --- What a second review found: layers, freeze, audit, the filter (U1 to U9 and the rest) ---


def assigned_bound(kind, *arguments):
    layer = kind(*arguments, bias=False)
    layer.bound = lc.bounds.Orthogonal()
    nn.init.constant_(layer.weight, 3.0)
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda: assigned_bound(lc.AffineConv2d, 2, 2, 1),
        lambda: assigned_bound(lc.ResidualConv2d, 2, 2, 1),
        lambda: assigned_bound(lc.GeneralConv2d, 2, 2, 2, 1),
    ],
)
def test_a_dense_bound_assigned_to_a_convolution_is_refused(make):
    with pytest.raises(lc.NotCertified, match="dense"):
        make().lipschitz_bound()
    with pytest.raises(lc.NotCertified, match="dense"):
        make()(torch.rand(1, 2, 3, 3))


def test_a_bound_of_another_size_is_refused():
    layer = lc.ResidualLinear(4, 4, bound="sll")
    layer.bound = lc.bounds.SLL(1)
    with pytest.raises((lc.NotCertified, ValueError, RuntimeError)):
        layer.lipschitz_bound()


@pytest.mark.parametrize("block", [-1, 0, 1.5])
def test_blocks_of_the_filter_are_positive(block):
    with pytest.raises(ValueError, match="block"):
        lc.FilteredClassifier(nn.Linear(2, 2), (2,), block=block)


def small_head():
    head = lc.NormalizedHead(2, 2, bias=False)
    head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1e-11]]))
    return head


def small_column():
    layer = lc.ResidualLinear(2, 2, bound="aol")
    layer.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 3e-9]]))
    layer.bias.data.zero_()
    return layer


def small_weight(make):
    layer = make()
    with torch.no_grad():
        layer.weight.mul_(1e-12)
    return layer


@pytest.mark.parametrize(
    "make",
    [
        small_head,
        small_column,
        lambda: small_weight(lambda: lc.AffineLinear(2, 3)),
        lambda: small_weight(lambda: lc.ResidualLinear(2, 3)),
        lambda: small_weight(lambda: lc.OrthogonalLinear(2, 2, method="bjorck")),
        lambda: small_weight(lambda: lc.GeneralLinear(2, 2, 2)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_freeze_drops_the_neurons_that_the_layer_drops(make, dtype):
    """What counts as zero is decided in the precision that the layer runs in, not in that of freeze."""
    torch.manual_seed(0)
    layer = make().to(dtype).eval()
    x = torch.tensor([[1.0, 3.0], [-2.0, 0.5]], dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(lc.freeze(layer)(x.float()).to(dtype), layer(x), rtol=1e-4, atol=1e-4)


class Same(nn.Module):
    def forward(self, x):
        return x


class Shifted(nn.Module):
    """The identity, with a rounding error of 2⁻⁹."""

    def forward(self, x):
        return (x + 2.0**43) - 2.0**43


def test_unknown_rounding_refutes_nothing():
    lc.register_rule(Same, 1.0)
    lc.register_rule(Shifted, 1.0)
    network = nn.Sequential(lc.layers.Center([2.0**46] * 3), Same(), lc.layers.Center([-(2.0**46)] * 3)).double()
    report = lc.audit(network, (3,))
    assert report.lower <= report.lipschitz
    assert lc.audit(Shifted(), (3,)).ok
    lc.certify(nn.Sequential(Shifted(), lc.NormalizedHead(3, 2)), torch.rand(2, 3), arithmetic="real")
    assert not lc.audit(nn.Sequential(Liar()), (3,)).ok


def test_a_bias_that_the_layer_was_built_without_is_refused():
    for layer in (
        lc.OrthogonalConv2d(1, 1, 3, image_size=3, bias=False),
        lc.OrthogonalResidualConv2d(1, 1, 3, image_size=3, bias=False),
        lc.AffineLinear(2, 2, bias=False),
    ):
        layer.bias = nn.Parameter(torch.zeros(4))
        with pytest.raises(lc.NotCertified, match="bias"):
            layer.lipschitz_bound()


def wrapping(layer):
    """An operator under which outputs repeat; its own constructor would refuse it."""
    operator = copy.copy(layer.operator)
    for name, value in (("padding", (3, 3)), ("padding_mode", "circular")):
        object.__setattr__(operator, name, value)
    return operator


def by_deleting(layer):
    operator = wrapping(layer)
    del layer.operator
    layer.operator = operator


def by_state(layer):
    layer.__setstate__({**layer.__dict__, "operator": wrapping(layer)})


def by_parametrizing(layer):
    operator = wrapping(layer)
    nn.utils.parametrizations.weight_norm(layer)
    layer.operator = operator
    nn.utils.parametrize.remove_parametrizations(layer, "weight")


@pytest.mark.parametrize(
    "change",
    [
        by_deleting,
        by_state,
        by_parametrizing,
        lambda layer: vars(layer).update(operator=wrapping(layer)),
    ],
)
def test_there_is_no_way_around_fixed_settings(change):
    layer = lc.AffineConv2d(1, 1, 3, padding=1, bias=False)
    nn.init.ones_(layer.weight)
    try:
        change(layer)
        bound = layer.lipschitz_bound()
    except (lc.NotCertified, AttributeError):
        return
    raise AssertionError(bound)


def test_tensors_that_are_plain_attributes_are_refused():
    linear, head = nn.Linear(4, 4), lc.NormalizedHead(4, 3)
    for layer in (linear, head):
        weight = layer.weight.detach() * math.nan
        del layer.weight
        layer.weight = weight
    for claim in (lambda: lc.audit(linear, (4,)), lambda: lc.freeze(linear), head.lipschitz_bound):
        with pytest.raises(lc.NotCertified):
            claim()


class Callable5:
    def __call__(self, x):
        return 5 * x


@pytest.mark.parametrize(
    "replacement",
    [Callable5(), staticmethod(lambda x: 5 * x), lambda self, x: 5 * x],
)
def test_whatever_replaces_a_method_of_a_class_is_refused(replacement, monkeypatch):
    monkeypatch.setattr(nn.ReLU, "forward", replacement)
    with pytest.raises((lc.NotCertified, ValueError)):
        lc.audit(nn.ReLU(), (4,))


def test_complex_tensors_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = lc.AffineLinear(2, 2).to(torch.complex64)
    for claim in (lambda: lc.freeze(layer), layer.lipschitz_bound, lambda: lc.audit(layer, (2,))):
        with pytest.raises(lc.NotCertified, match="complex"):
            claim()


def test_inference_mode_and_odd_arguments():
    with torch.inference_mode():
        network = nn.Sequential(lc.ResidualLinear(3, 3), nn.Linear(3, 2))
        assert lc.audit(network, (3,)).ok
        lc.certify(network, torch.rand(2, 3))
    assert lc.lipschitz_bound(network[0]) == 1.0
    assert lc.audit(network, (3,)).ok
    assert lc.audit(network, torch.rand(2, 3).numpy().shape[1:]).ok
    for claim in (
        lambda: lc.audit(network, 3),
        lambda: lc.audit(network, None),
        lambda: lc.FilteredClassifier(network, 3),
        lambda: lc.FilteredClassifier(network, (3,))([[1.0, 2.0, 3.0]]),
        lambda: lc.certify(network, [[1.0, 2.0, 3.0]]),
        lambda: lc.output_interval(network, [[1.0]], 0.1),
        lambda: lc.audit(nn.Flatten(0), (1,)),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            claim()
    for layer, name in ((lc.layers.Normalize([0.0], [1.0]), "std"), (nn.Linear(1, 1), "weight")):
        setattr(layer, name, None)
        with pytest.raises(ValueError, match=r"\w"):
            lc.audit(layer, (1,))


@pytest.mark.parametrize(
    "make",
    [
        lambda: linear([1e300]),
        lambda: lc.layers.Center(torch.tensor([1e300], dtype=torch.float64)),
        lambda: lc.layers.Normalize([0.0], torch.tensor([1e-60], dtype=torch.float64)),
    ],
)
def test_numbers_beyond_float32_are_not_frozen(make):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        module = make()
    finally:
        torch.set_default_dtype(before)
    with pytest.raises(lc.NotCertified, match="float32"):
        lc.freeze(module)


def test_threads_that_freeze_together_leave_the_network_as_it_was():
    network = nn.Sequential(lc.ResidualLinear(40, 40), lc.ResidualLinear(40, 40)).train()
    threads = [threading.Thread(target=lc.freeze, args=(network,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(module.training for module in network.modules())


@pytest.mark.parametrize("make", [lambda: lc.ResidualLinear(3, 4), lambda: lc.ResidualConv2d(2, 3)])
def test_vmap_over_inputs(make):
    layer = make()
    x = torch.rand(5, 3) if isinstance(layer, lc.ResidualLinear) else torch.rand(5, 2, 4, 4)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x))


def test_a_frozen_network_in_half_precision_is_still_proved():
    layer = lc.ResidualLinear(4, 4)
    nn.init.normal_(layer.bound.log_q, std=20.0)
    assert lc.audit(lc.freeze(layer).half(), (4,)).layers[0].verdict == "PROVED"


# --- What the second review found: certify, intervals, exports ---


class Half(nn.Module):
    def forward(self, x):
        return x * 0.5


def test_real_intervals_keep_the_rounding_that_is_known():
    """And say that the rest is not covered."""
    lc.register_rule(Half, 0.5)
    torch.manual_seed(0)
    for _ in range(50):
        network = nn.Sequential(Half(), nn.Linear(3, 1, bias=False)).double()
        x = torch.randn(1, 3, dtype=torch.float64)
        with pytest.warns(UserWarning, match="rounding"):
            low, high = lc.output_interval(network, x, 0.0, arithmetic="real")
        weight, values = network[1].weight[0].tolist(), x[0].tolist()
        exact = sum(Fraction(w) * Fraction(v) / 2 for w, v in zip(weight, values, strict=True))
        assert Fraction(low.item()) <= exact <= Fraction(high.item())


class Untold(lc.layers.LipschitzLayer):
    """Torch knows no gradient of it."""

    def forward(self, x):
        return torch.from_numpy(x.detach().numpy() * 3)

    def proved_constant(self):
        return 1.0


def test_a_layer_without_a_gradient_can_be_refuted_too():
    network = nn.Sequential(Untold(), lc.NormalizedHead(4, 3))
    assert not lc.audit(network, torch.rand(2, 4)).ok
    with pytest.raises(lc.NotCertified, match="claims the constant 1"):
        lc.certify(network, torch.rand(2, 4), arithmetic="real")
    with torch.inference_mode(), pytest.raises(lc.NotCertified):
        lc.certify(nn.Sequential(Liar(), lc.NormalizedHead(4, 3)), torch.rand(2, 4), arithmetic="real")


@pytest.mark.parametrize("rows", [[[1.0, 2.0], [1.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
def test_classes_that_never_swap_have_a_vast_radius(rows):
    network = nn.Sequential(lc.ResidualLinear(2, 2), linear(*rows, bias=[1.0, 0.0]).float())
    assert (lc.certify(network, torch.rand(4, 2)).radii > 1000).all()


def test_unusual_inputs_are_one_clear_refusal():
    network, x = nn.Sequential(lc.ResidualLinear(2, 2)), torch.rand(3, 2)
    labels = torch.zeros(3)
    for claim in (
        lambda: lc.certify(network, x, labels.to(torch.complex64)),
        lambda: lc.certify(network, x.to_sparse()),
        lambda: lc.certify(network, x.to("meta")),
        lambda: lc.certify(network, x.to(torch.float8_e4m3fn)),
        lambda: lc.output_interval(network, x.to(torch.complex64), 0.1),
        lambda: lc.output_interval(network, x, None),
        lambda: lc.output_interval(network, x, "1"),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            claim()


@pytest.mark.parametrize("factor", [10.0, 1e4, 2.0**40])
def test_a_folded_scale_is_exported(factor, tmp_path):
    torch.manual_seed(0)
    network = lc.freeze(nn.Sequential(lc.ResidualLinear(8, 16), lc.NormalizedHead(8, 5), lc.layers.Scale(factor)))
    lc.export(network, tmp_path / "frozen.safetensors", to="torch", input_shape=(8,))
    stored = load_frozen(tmp_path / "frozen.safetensors").state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in network.state_dict().items())


def test_a_network_with_very_many_outputs_is_audited_without_pairs():
    network = nn.Sequential(lc.layers.PadChannels(100_000))
    report = lc.audit(network, (3,))
    assert report.ok
    assert report.pairwise is None
    with pytest.raises(lc.NotCertified, match="outputs"):
        lc.certify(network, torch.rand(1, 3))
