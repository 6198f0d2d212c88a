"""What a hostile review of the ops found: claims that were not true, and exceptions that should be others."""

import dataclasses
import math
from collections import OrderedDict
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lipcert as lc
from lipcert import check
from lipcert.certified import audit, ops
from lipcert.certified.certificate import write_certificate
from lipcert.certified.filtered import FilteredClassifier
from lipcert.certified.freeze import _RULES, freeze, prove
from lipcert.certified.network import Network, Node
from lipcert.certified.op import Op, Proof
from lipcert.certified.records import Records, describe, rebuild
from lipcert.verified.rounding import U32, U64
from table import LAYERS


def refused_or_at_least(model, shape, true):
    """The claimed constant is true, or nothing is claimed."""
    try:
        claimed = prove(model, shape).lipschitz
    except lc.NotCertified:
        return
    assert claimed >= true * (1 - 1e-12), f"claimed {claimed}, true {true}"


# --- 1. False constants ---


def test_softplus_with_a_threshold():
    # torch's Softplus is x where βx > threshold: with threshold 0 it jumps from log 2 to 0. Claimed: L = 1.
    module = nn.Softplus(threshold=0.0).double()
    x = torch.tensor([[0.0], [1e-9]], dtype=torch.float64)
    y = module(x)
    refused_or_at_least(module, (1,), float((y[1] - y[0]).abs() / 1e-9))


def test_softplus_radius():
    # certify gives 0.1549, but the model as passed answers another class at distance 1e-6.
    model = nn.Sequential(nn.Softplus(threshold=0.0)).double()
    x = torch.tensor([[0.0, -0.5]], dtype=torch.float64)
    try:
        radius = float(lc.certify(model, x).radii)
    except lc.NotCertified:
        return
    moved = torch.tensor([[1e-6, -0.5]], dtype=torch.float64)
    assert radius <= 1e-6 or model(moved).argmax() == model(x).argmax()


@pytest.mark.parametrize("padding", [(-1, 1), (1, -1)])
def test_circular_padding_that_crops(padding):
    # torch crops first and wraps what is left: [x1, x1], norm √2. Claimed: 1, and freeze computes [x1, x0].
    module = nn.CircularPad1d(padding)
    matrix = module(torch.eye(2, dtype=torch.float64)[:, None])[:, 0].T
    refused_or_at_least(module, (1, 2), float(torch.linalg.matrix_norm(matrix, 2)))


@pytest.mark.parametrize("factor", [41, 47, 55, 61])
def test_nearest_upsampling_in_float32(factor):
    # torch computes ⌊o·(1/factor)⌋ in float32, so that an entry is copied factor + 1 times.
    module = nn.Upsample(scale_factor=factor)
    copies = module(torch.arange(3.0)[None, None]).flatten().long().bincount()
    refused_or_at_least(module, (1, 3), math.sqrt(int(copies.max())))


class Mine(Op):
    op = "mine"

    def forward(self, x):
        return 100 * x

    def constant(self):
        return 1.0

    def prove(self, shape, block=None):
        return Proof(shape, 1.0, "exact")


class Steeper(ops.Linear):
    def forward(self, x):
        return 100 * super().forward(x)


@pytest.mark.parametrize("op", [Mine(), Steeper(torch.eye(2), None)])
def test_an_op_of_the_user(op):
    # A subclass of Op by anyone is PROVED by its own word, with the lower bound 100 beside the upper bound 1.
    try:
        report = lc.audit(nn.Sequential(op), (2,))
    except lc.NotCertified:
        return
    assert report.layers[0].verdict != "PROVED" or report.lipschitz >= 100


def test_constant_of_a_graph_with_an_idle_node():
    # lipschitz_bound multiplies the constants of all nodes, also of one that is not on the path.
    with pytest.raises((lc.NotCertified, ValueError)):
        Network([Node("a", ops.Scale(0.001)), Node("b", ops.Function("relu"), ("input",))])


@pytest.mark.parametrize(
    ("size", "stride", "dilation"), [(3, 2, 1), (5, 2, 1), (5, 3, 1), (7, 2, 2), (8, 3, 1), (4, 2, 1)]
)
@pytest.mark.parametrize("bound", ["aol", "sll"])
def test_a_circular_image_that_the_stride_does_not_divide(size, stride, dilation, bound):
    # The witness of the stride was taken there: 1 was claimed for a map of norm 1.88 on 3×3.
    layer = lc.ResidualConv2d(1, 2, 3, stride=stride, dilation=dilation, padding_mode="circular", bound=bound)
    nn.init.ones_(layer.weight)
    nn.init.constant_(layer.bias, 50.0)  # every neuron active
    network = freeze(layer)
    images = torch.eye(size**2, dtype=torch.float64).view(-1, 1, size, size)
    try:
        proved = prove(network, (1, size, size))
    except lc.NotCertified:
        return
    moved = (proved.run(images)[-1] - proved.run(torch.zeros_like(images))[-1]).flatten(1)
    assert proved.lipschitz >= float(torch.linalg.matrix_norm(moved, 2)) * (1 - 1e-12)


# --- 2. False rounding bounds ---


def grouped():
    n, small = 1000, math.sqrt(0.98 * 2.0**-25)
    weight, x = torch.zeros(2, n), torch.zeros(2 * n)
    weight[0], x[:n] = small, small
    weight[:, 0] = x[0] = 1
    x[n] = 1 + 150 * 2.0**-23
    exact = [
        sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(w, x[g * n : (g + 1) * n], strict=True))
        for g, w in enumerate(weight)
    ]
    return Network([Node("a", ops.Linear(weight, None, 0, 2))]), x, exact


def test_blocks_of_a_grouped_product():
    # Dense._grouped sums one by one whatever the block, but sums() counts block + n/block: 4.1e-5 > 7.1e-6.
    network, x, exact = grouped()
    part = prove(network, (len(x),), dtype=torch.float32, block=64).parts[0]
    computed = part.forward(x[None])[0]
    error = math.hypot(*(float(Fraction(float(y)) - e) for y, e in zip(computed, exact, strict=True)))
    assert error <= float(part.proof.error_bound(x.double().norm()[None], U32))


def test_filter_contradicts_exact_arithmetic():
    # The default FilteredClassifier answers 1 without falling back; exact arithmetic says 0.
    network, x, exact = grouped()
    answer = int(FilteredClassifier(network, (len(x),))(x[None]).predictions)
    assert answer in (-1, int(exact[1] > exact[0]))


@pytest.mark.parametrize(
    ("op", "value"),
    [(ops.Select(((-1,),), 5.0e-45), 5.0e-45), (ops.Function("maximum", (5.0e-45,)), 5.0e-45)],
)
def test_casts_of_subnormal_numbers(op, value):
    # cast_error is relative to the number, but float32 rounds it to a multiple of 2⁻¹⁴⁹.
    part = prove(Network([Node("a", op)]), (1,), dtype=torch.float32).parts[0]
    error = abs(Fraction(float(part.forward(torch.zeros(1, 1)))) - Fraction(value))
    assert error <= Fraction(float(part.proof.error_bound(torch.zeros(1).double(), U32)))


@pytest.mark.parametrize(
    ("op", "x"),
    [
        (ops.Pool((((0, 1),),), ((1,),), 2.0**100), 2.0**59),
        (ops.ResidualLinear(torch.full((1, 1), 2.0**40), torch.full((1,), 2.0**40), None, None, "relu"), 2.0**59),
        (ops.Function("softplus", (1e-39,)), 0.0),
    ],
)
def test_overflow_in_float32(op, x):
    # The bound is finite, but what float32 computes is not.
    part = prove(Network([Node("a", op)]), (1,), dtype=torch.float32).parts[0]
    computed = part.forward(torch.tensor([[x]]))
    bound = part.proof.error_bound(torch.tensor([x]).double(), U32)
    assert bool(torch.isfinite(computed).all()) or not bool(torch.isfinite(bound).all())


# --- 3. What runs is not what is proved ---


def test_a_setting_that_changes_after_a_proof():
    # The clone has the new stride and the old proof (the key has tensors only): 4.0 for a map of norm 12.26.
    conv = nn.Conv2d(1, 1, 4, stride=4, bias=False)
    nn.init.ones_(conv.weight)
    network = freeze(conv)
    prove(network, (1, 8, 8))
    try:
        network[0].stride = (1, 1)
        proved = prove(network, (1, 8, 8))
    except lc.NotCertified:
        return
    images = torch.eye(64, dtype=torch.float64).view(64, 1, 8, 8)
    assert proved.lipschitz >= float(torch.linalg.matrix_norm(proved.run(images)[-1].flatten(1), 2))


@pytest.mark.parametrize("change", ["axis", "order", "operator"])
def test_settings_that_forward_does_not_read(change):
    # forward keeps what was derived at construction (operator, moves); the clone that is proved does not.
    network = Network([Node("a", ops.Linear(torch.randn(3, 3), None, 1))])
    if change == "order":
        network = Network([Node("a", ops.Rearrange((3, 3), (0, 1), (3, 3)))])
    changed = {"order": (1, 0), "axis": 0, "operator": type(getattr(network[0], "operator", 0))(0)}
    x = torch.randn(1, 3, 3)
    try:
        setattr(network[0], change, changed[change])
        proved = prove(network, (3, 3))
    except lc.NotCertified:
        return
    torch.testing.assert_close(network(x), proved.run(x.double())[-1].float())


def test_freezing_a_frozen_network_copies_it():
    # "A frozen network has no link to the one it came from": here both hold the same op.
    first = freeze(nn.Linear(2, 2))
    second = freeze(first)
    before = second[0].weight.clone()
    first[0].weight.mul_(7)
    assert torch.equal(second[0].weight, before)


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, x):
        return self.weight.to(x.dtype) * x


LIVE = {
    **{name: (entry.make, entry.shape) for name, entry in LAYERS.items()},
    "linear": (lambda: nn.Linear(3, 2), (3,)),
    "conv": (lambda: nn.Conv2d(2, 3, 3), (2, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 5, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(2).eval(), (2, 4, 4)),
    "prelu": (lambda: nn.PReLU(2), (2, 4, 4)),
    "ruled": (Doubled, (3,)),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", LIVE)
def test_what_is_proved_shares_no_tensor_with_the_module(name, frozen, monkeypatch):
    # A proof is about the numbers of its moment: training on must not change what it runs.
    monkeypatch.setitem(_RULES, Doubled, lambda module: 2.0)
    make, shape = LIVE[name]
    model = freeze(make()) if frozen else make().eval()
    proved = prove(model, shape)
    x = torch.rand(2, *shape, dtype=torch.float64)
    with torch.no_grad():
        before = [value.clone() for value in proved.run(x)]
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.mul_(3)
        after = proved.run(x)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# --- 4. Files ---


def node(op, name="a", inputs=("input",), **fields):
    return {"name": name, "inputs": list(inputs), "op": op, **fields, "lipschitz": "0x1p0"}


@pytest.mark.parametrize(
    ("nodes", "tensors"),
    [
        ([node("normalize", mean="a.mean", std="a.std")], {"a.mean": torch.ones(()), "a.std": torch.ones(())}),
        (
            [node("batch_norm", mean="a.mean", variance="a.variance", weight=None, bias=None, eps="0x1p-3")],
            {"a.mean": torch.ones(()), "a.variance": torch.ones(())},
        ),
        ([node("relu", name="forward", parameters=[])], {}),
    ],
)
def test_records_that_raise_a_type_error(nodes, tensors):
    with pytest.raises(ValueError, match=r"node|name"):
        rebuild(Records(nodes, tensors, (3,)))


def wide(count=4000):
    branches = [f"n{i}" for i in range(count)]
    return [
        *(node("abs", name=name, parameters=[]) for name in branches),
        node("combination", name="c", inputs=branches, weights="c.weights"),
        node("select", name="s", inputs=["c"], indices=[[0, 1]], value="0x0p0"),
    ]


@pytest.mark.parametrize(
    ("nodes", "tensors", "shape"),
    [
        # 2¹⁹ rows of 2¹¹ entries between the two axes: 4 GB; up to 2³⁴ entries can be written
        ([node("select", indices=[[0] * 2**19, [0]], value="0x0p0")], {}, (2**11, 2**11)),
        # 2³² places as a list of Python
        ([node("max_pool", windows=[[[0, 2**20, 1]] * 4096])], {}, (2**20,)),
        ([node("l2_pool", windows=[[[0, 2**20, 1]] * 4096])], {}, (2**20,)),
        # a matrix of 2³² entries, in forward and in prove
        ([node("pool", windows=[[[0, 2**20]] * 4096], divisors=[[1] * 4096], factor="0x1p0")], {}, (2**20,)),
        # 4000 branches of 2²³ entries that are held at once: 134 GB
        (wide(), {"c.weights": torch.ones(4000)}, (2**23,)),
    ],
)
def test_records_that_need_too_much(nodes, tensors, shape):
    # They load; running or proving them hangs or allocates many GB. None of these ops has a ``room``.
    with pytest.raises(ValueError, match=r"node|name"):
        rebuild(Records(nodes, tensors, shape))


@pytest.mark.parametrize("axis", [-2, -8, 5])
def test_a_softmax_over_the_batch(axis):
    # It loads, and the network mixes the examples of a batch (axis −2), or raises IndexError when it runs.
    with pytest.raises(ValueError, match=r"node|name"):
        rebuild(Records([node("softmax", axis=axis)], {}, (3,)))


def test_a_combination_of_another_number_of_inputs():
    # It loads and cannot run.
    with pytest.raises(ValueError, match=r"node|name"):
        rebuild(Records([node("combination", weights="a.weights")], {"a.weights": torch.ones(3)}, (3,)))


# --- 5. The checker ---


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (
            nn.Sequential(nn.Conv1d(1, 2, 5, 4, 2, padding_mode="circular"), nn.Flatten(), nn.Linear(4, 2)),
            (1, 6),
        ),
        (nn.Sequential(nn.Linear(3, 3), nn.CELU(1e-35), nn.Linear(3, 3)), (3,)),
        (nn.Sequential(nn.Conv1d(1, 1, 300, padding=150), nn.Flatten(), nn.Linear(11, 3)), (1, 10)),
        (nn.Sequential(nn.Linear(2, 2), nn.Flatten(), nn.Linear(32, 3)), (2, 2, 2, 2, 2)),
    ],
)
def test_what_is_written_can_be_checked(model, shape, tmp_path):
    # The library certifies these and writes certificates that are outside its own format: Malformed.
    network = freeze(model)
    proved, images = prove(network, shape), torch.randn(3, *shape)
    result = lc.certify(proved, images)
    try:
        path = write_certificate(tmp_path, proved, network, images, result)
    except lc.NotCertified:
        return
    assert check.check(path).ok


# --- 6. Other exceptions than NotCertified or ValueError ---


@pytest.mark.parametrize("name", ["nodes", "names", "last_use", "input"])
def test_names_of_children(name):
    # KeyError or TypeError (ValueError for "input") from freeze and audit of an ordinary network.
    model = nn.Sequential()
    model.add_module(name, nn.Linear(2, 2))
    assert len(freeze(model)) == 1


def test_constants_that_overflow_in_a_sum():
    # math.fsum raises OverflowError instead of giving ∞.
    network = Network([Node("a", ops.Scale(1.7e308)), Node("c", ops.Combination(torch.ones(2)), ("a", "a"))])
    assert lc.audit(network, (2,)).lipschitz == math.inf


def test_lipschitz_bound_in_bfloat16():
    # TypeError: numpy has no bfloat16, and the nodes of a frozen network are not cloned here.
    assert lc.lipschitz_bound(freeze(nn.Linear(2, 2)).bfloat16()) > 0


def test_a_stride_of_zero():
    # ZeroDivisionError
    with pytest.raises((lc.NotCertified, ValueError)):
        prove(nn.AvgPool2d(2, stride=0), (1, 4, 4))


# --- 7. What a third review found ---


CLAIMS = {
    "audit": lambda model: lc.audit(model, (1,)),
    "certify": lambda model: lc.certify(model, torch.ones(1, 1, dtype=torch.float64)),
    "lipschitz_bound": lc.lipschitz_bound,
    "lipschitz_bound at a shape": lambda model: lc.lipschitz_bound(model, (1,)),
    "FilteredClassifier": lambda model: FilteredClassifier(model, (1,)),
    "output_interval": lambda model: lc.output_interval(model, torch.ones(1, 1, dtype=torch.float64), 0.1),
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("threshold", [20, 36.9])
@pytest.mark.parametrize("beta", [1.0, 2.0**-30])
def test_a_softplus_that_jumps_is_frozen_and_not_claimed(claim, threshold, beta):
    # certify gave a class and a radius of the function without the jump, which is 2.2 for β = 2⁻³⁰.
    model = nn.Sequential(nn.Softplus(beta, threshold), nn.Linear(1, 2)).double()
    with pytest.raises(lc.NotCertified, match=r"jumps .*threshold=40"):
        CLAIMS[claim](model)
    CLAIMS[claim](nn.Sequential(nn.Softplus(beta, 37), nn.Linear(1, 2)).double())
    frozen = freeze(model)
    CLAIMS[claim](frozen)
    x = torch.tensor([[threshold / beta]], dtype=torch.float64)
    both = frozen[0](torch.cat((x, x * (1 + 2.0**-40))))
    assert float((both[1] - both[0]) / (x * 2.0**-40)) <= 1 + 1e-2


@pytest.mark.parametrize("op", ["max_pool", "l2_pool"])
def test_a_pool_without_windows(op):
    # The norm over no axis was x here and |x| in check.py: one file, two functions.
    with pytest.raises(lc.NotCertified, match="windows"):
        ops.OPS[op]((None, None))
    with pytest.raises(ValueError, match="windows"):
        rebuild(Records([node(op, windows=[None])], {}, (2,)))


def diagonal(value, bias=None):
    layer = nn.Linear(4, 4, bias=bias is not None)
    layer.weight.data = value * torch.eye(4)
    if bias is not None:
        layer.bias.data = bias
    return layer


def test_the_certificate_of_a_constant_network_is_accepted(tmp_path):
    # The constant behind a zero layer was 5e-324, which the format cannot state: Malformed.
    last = diagonal(1.0, torch.arange(4.0))
    network = freeze(nn.Sequential(diagonal(0.0), diagonal(2.0), last))
    mixed = Network(
        [
            Node("zero", ops.Linear(torch.zeros(4, 4), None)),
            Node("sum", ops.Combination(torch.tensor([0.5, 2.0])), ("zero", "zero")),
            Node("last", ops.Linear(last.weight.detach(), last.bias.detach()), ("sum",)),
        ]
    )
    images = torch.randn(3, 4)
    for index, model in enumerate((network, mixed)):
        proved = prove(model, (4,))
        assert proved.backbone == 0.0
        path = write_certificate(tmp_path / str(index), proved, model, images, lc.certify(proved, images))
        assert check.check(path).ok


def test_behind_an_unknown_constant_nothing_is_zero():
    network = Network(
        [Node("a", ops.Function("celu", (-1.0,))), Node("b", ops.Combination(torch.zeros(1)), ("a",))]
    )
    assert not lc.audit(network, (2,)).lipschitz < math.inf


@pytest.mark.parametrize("model", [(diagonal(2.0**-60), diagonal(2.0**-60)), (diagonal(1e31),)])
def test_constants_that_the_format_cannot_state(model, tmp_path):
    network = freeze(nn.Sequential(*model, diagonal(1.0)))
    proved, images = prove(network, (4,)), torch.randn(3, 4)
    result = lc.certify(proved, images)
    with pytest.raises(lc.NotCertified, match="constant"):
        write_certificate(tmp_path, proved, network, images, result)
    assert not list(tmp_path.iterdir())


class Mine(Op):
    op = "mine"

    def forward(self, x):
        return 100 * x

    def prove(self, shape, block=None):
        return Proof(shape, 1.0, "exact")


def test_an_op_that_a_flexible_step_makes_is_one_of_lipcert():
    # audit said PROVED, L = 1, beside a lower bound of 100.
    model = nn.Sequential(ops.Flexible(lambda shape: Mine()))
    for claim in (lambda: lc.audit(model, (4,)), lambda: prove(freeze(model), (4,))):
        with pytest.raises(lc.NotCertified, match="ops of lipcert"):
            claim()


def test_a_proof_is_remembered_for_the_same_settings_alone():
    first, second = (ops.Conv(torch.ones(2, 1, 3), None, (1,), ((0, 0),), (1,), groups=groups) for groups in (1, 2))
    second._proofs = first._proofs
    alone = ops.Conv(torch.ones(2, 1, 3), None, (1,), ((0, 0),), (1,), groups=2)
    assert first.constant() > 1.4 * alone.constant()
    assert second.constant() == alone.constant()


def test_a_proof_is_shared_by_an_op_and_its_form_for_a_shape():
    op = ops.Linear(torch.randn(3, 4), None)
    op.constant()
    count = len(op._proofs)
    op.at((4,)).constant()
    assert len(op._proofs) == count


@pytest.mark.parametrize(
    "op",
    [ops.Scale(3.0), ops.Function("gelu"), ops.Pool((((0, 2),),), ((1,),)), ops.Linear(torch.eye(2), None)],
    ids=lambda op: op.op,
)
def test_two_points_refute_every_false_proof(op):
    # Only the constants that layers promise were compared with the lower bound.
    (part,) = prove(Network([Node("a", op)]), (2,)).parts
    x = torch.full((2, 2), 1.4, dtype=torch.float64)
    true = audit._audit_layer(part, [x], part.forward(x))
    assert true.verdict == "PROVED"
    false = dataclasses.replace(part, proof=dataclasses.replace(part.proof, lipschitz=0.9 * true.lower))
    report = audit._audit_layer(false, [x], false.forward(x))
    assert report.verdict == "REFUTED"
    assert report.witness is not None


@pytest.mark.parametrize("name", ["my layer", "tab\tname", "x" * 300])
def test_names_that_no_file_can_have(name):
    # The file was written, and could not be read.
    proved = prove(freeze(nn.Sequential(OrderedDict([(name, nn.Linear(3, 3))]))), (3,))
    with pytest.raises(lc.NotCertified, match="rename it") as refusal:
        describe(proved)
    assert repr(name)[:10] in str(refusal.value)


@pytest.mark.parametrize("name", ["_nodes", "_last_use"])
def test_names_that_a_network_uses_itself(name):
    # KeyError and TypeError
    with pytest.raises(ValueError, match=f"{name}.*Rename it"):
        lc.audit(nn.Sequential(OrderedDict([(name, nn.Linear(3, 3))])), (3,))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_padding_with_a_value_that_is_not_finite(value):
    # lipschitz_bound said 1 without a shape.
    with pytest.raises(lc.NotCertified, match="finite"):
        lc.lipschitz_bound(nn.ConstantPad1d(1, value))


def test_infinity_in_a_tensor_is_called_so():
    module = nn.PReLU(3)
    module.weight.data[0] = math.inf
    with pytest.raises(lc.NotCertified, match="NaN or infinity"):
        freeze(module)


def matrix_of_windows(spans, parts, length):
    matrix = np.zeros((len(spans), length))
    for row, (start, stop), divisor in zip(matrix, spans, parts, strict=True):
        row[start:stop] = 1 / divisor
    return matrix


@pytest.mark.parametrize("most", [4, 2**23])  # with the latter the divisors have no small common multiple
def test_row_and_column_sums_bound_the_norm_of_a_pool(most):
    generator = np.random.default_rng(0)
    for _ in range(100):
        length, count = generator.integers(1, 30, 2).tolist()
        starts = generator.integers(0, length, count).tolist()
        spans = tuple((a, int(generator.integers(a + 1, length + 1))) for a in starts)
        parts = tuple(generator.integers(1, most + 1, count).tolist())
        matrix, square = matrix_of_windows(spans, parts, length), ops._row_times_column(spans, parts)
        exact = max(matrix.sum(axis=1)) * max(matrix.sum(axis=0))
        assert exact * (1 - 1e-12) <= float(square) <= exact * (1 + 1e-12)
        assert np.linalg.norm(matrix, 2) ** 2 <= float(square) * (1 + 1e-12)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_pool_on_a_long_axis(padding):
    # A dense matrix took 10 s and 1 GB for 3,000 samples.
    length = 30_000
    module = nn.AvgPool1d(3, 1, padding)
    assert lc.lipschitz_bound(module, (2, length)) == 1.0
    (part,) = prove(module, (2, length)).parts
    assert part.step.room((2, length)) == 2 * 3 * (length - 2 + 2 * padding)
    x = torch.randn(2, 2, length, generator=torch.Generator().manual_seed(0))
    exact = F.avg_pool1d(x.double(), 3, 1, padding)
    for y, u in ((part.forward(x), U32), (part.forward(x.double()), U64)):
        bound = part.proof.error_bound(x.double().flatten(1).norm(dim=1), u)
        assert bool(((y.double() - exact).flatten(1).norm(dim=1) <= bound * (1 + 1e-6)).all())


def test_a_pool_with_long_windows_on_a_long_axis():
    windows = tuple((i, i + 900) for i in range(1100))
    op = ops.Pool((windows,), ((900,) * 1100,))
    x = torch.randn(2, 1999, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(op(x), F.avg_pool1d(x[:, None], 900, 1)[:, 0], rtol=0, atol=1e-13)
    assert op.prove((1999,)).lipschitz == 1.0


def test_the_roundings_of_a_pool_with_inexact_divisors():
    # In float32: two divisors and the factor are rounded, and so are two products of divisors, a quotient and a
    # product. The bound counted six.
    window = ((0, 1),)
    op = ops.Pool((window,) * 3, ((2**24 + 1,), (2**24 + 3,), (31,)), 1.1)
    proof, norms = op.prove((1, 1, 1)), torch.tensor([2.0**59], dtype=torch.float64)
    assert float(proof.error_bound(norms, U32)) >= 7 * U32 * proof.lipschitz * 2.0**59
