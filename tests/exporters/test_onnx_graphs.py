"""ONNX files of others: what is read computes what onnxruntime does, constants hold, and the rest is named."""

import logging
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import lipcert as lc
from lipcert.cli.audit import Audit

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from lipcert.exporters.onnx_graphs import OPS, read_graph  # noqa: E402

RANDOM = np.random.default_rng(0)


def numbers(*sizes):
    return RANDOM.normal(size=sizes).astype(np.float32)


def whole(*values):
    return np.array(values, np.int64)


def written(path, nodes, shape=("n", 4, 6, 6), *, opset=20, outputs=("y",), kind=1, **stored):
    """A file with these nodes (operator, inputs, settings…); the last one computes the output."""
    made = []
    for place, (operator, inputs, settings) in enumerate(nodes):
        results = ["y"] if place == len(nodes) - 1 else settings.pop("results", [f"v{place}"])
        made.append(onnx.helper.make_node(operator, inputs, results, name=f"node{place}", **settings))
    graph = onnx.helper.make_graph(
        made,
        "g",
        [onnx.helper.make_tensor_value_info("x", kind, shape)],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, path)
    return path


def largest_jacobian(network, shape, count=3):
    flat = lambda v: network(v.view(1, *shape)).flatten()  # noqa: E731
    points = torch.randn(count, math.prod(shape), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return max(float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(flat, x), 2)) for x in points)


ONE = {
    **{
        name: ([(name, ["x"], {})], {})
        for name in ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Softsign", "Mish", "HardSwish", "Elu", "Celu")
    },
    **{name: ([(name, ["x"], {})], {}) for name in ("LeakyRelu", "Gelu", "Softmax", "LogSoftmax", "Selu")},
    **{name: ([(name, ["x"], {})], {}) for name in ("Softplus", "GlobalAveragePool", "GlobalMaxPool")},
    "HardSigmoid": ([("HardSigmoid", ["x"], {"alpha": 1 / 6})], {}),
    "PRelu": ([("PRelu", ["x", "a"], {})], {"a": numbers(4, 1, 1)}),
    "Clip": ([("Clip", ["x", "a", "b"], {})], {"a": np.float32(-0.5), "b": np.float32(0.25)}),
    "Add": ([("Add", ["x", "a"], {})], {"a": numbers(4, 1, 1)}),
    "Sum": ([("Relu", ["x"], {}), ("Sum", ["x", "v0", "x"], {})], {}),
    "Sub": ([("Sub", ["a", "x"], {})], {"a": np.float32(2)}),
    "Mul": ([("Mul", ["x", "a"], {})], {"a": numbers(4, 1, 1)}),
    "Div": ([("Div", ["x", "a"], {})], {"a": np.float32(0.3)}),
    "Max": ([("Neg", ["x"], {}), ("Max", ["x", "v0"], {})], {}),
    "Min": ([("Min", ["x", "a"], {})], {"a": np.float32(0.3)}),
    "Gemm": (
        [("Flatten", ["x"], {}), ("Gemm", ["v0", "a", "b"], {"transB": 1, "alpha": 0.5, "beta": 2.0})],
        {"a": numbers(3, 144), "b": numbers(3)},
    ),
    "MatMul": ([("MatMul", ["x", "a"], {})], {"a": numbers(6, 2)}),
    "Conv": (
        [("Conv", ["x", "a", "b"], {"pads": [0, 1, 2, 1], "strides": [2, 1], "group": 2})],
        {"a": numbers(6, 2, 3, 2), "b": numbers(6)},
    ),
    "ConvTranspose": (
        [("ConvTranspose", ["x", "a"], {"pads": [1, 1, 1, 1], "strides": [2, 2], "output_padding": [1, 1]})],
        {"a": numbers(4, 2, 3, 3)},
    ),
    "BatchNormalization": (
        [("BatchNormalization", ["x", "a", "b", "c", "d"], {"epsilon": 0.1})],
        {"a": numbers(4), "b": numbers(4), "c": numbers(4), "d": np.abs(numbers(4))},
    ),
    "AveragePool": ([("AveragePool", ["x"], {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]})], {}),
    "MaxPool": ([("MaxPool", ["x"], {"kernel_shape": [2, 2], "dilations": [2, 2]})], {}),
    "ReduceMean": ([("ReduceMean", ["x", "a"], {"keepdims": 0})], {"a": whole(2, 3)}),
    "ReduceSum": ([("ReduceSum", ["x", "a"], {})], {"a": whole(-1)}),
    "ReduceMax": ([("ReduceMax", ["x", "a"], {})], {"a": whole(1)}),
    "ReduceMin": ([("ReduceMin", ["x", "a"], {})], {"a": whole(1)}),
    **{name: ([(name, ["x"], {}), ("Neg", ["v0"], {})], {}) for name in ("Identity", "Dropout")},
    "Cast": ([("Cast", ["x"], {"to": 1}), ("Neg", ["v0"], {})], {}),
    "Reshape": ([("Reshape", ["x", "a"], {})], {"a": whole(0, 2, 2, -1)}),
    "Transpose": ([("Transpose", ["x"], {"perm": [0, 2, 3, 1]})], {}),
    "Squeeze": ([("Unsqueeze", ["x", "a"], {}), ("Squeeze", ["v0", "b"], {})], {"a": whole(2, -1), "b": whole(2)}),
    "Concat": ([("Neg", ["x"], {}), ("Concat", ["x", "v0"], {"axis": 1})], {}),
    "Split": ([("Split", ["x", "a"], {"axis": 1, "results": ["p", "q"]}), ("Neg", ["q"], {})], {"a": whole(1, 3)}),
    "Slice": (
        [("Slice", ["x", "a", "b", "c", "d"], {})],
        {"a": whole(1, 5), "b": whole(2**60, -(2**60)), "c": whole(1, 3), "d": whole(2, -2)},
    ),
    "Gather": ([("Gather", ["x", "a"], {"axis": 1})], {"a": whole(0, -1, 0)}),
    "Pad": (
        [("Pad", ["x", "a", "b"], {})],
        {"a": whole(0, 1, 0, 2, 0, 0, 1, -1), "b": np.float32(0.5)},
    ),
    "DepthToSpace": ([("DepthToSpace", ["x"], {"blocksize": 2, "mode": "CRD"})], {}),
    "Expand": (
        [("ReduceMax", ["x", "a"], {}), ("Expand", ["v0", "b"], {})],
        {"a": whole(3), "b": whole(1, 4, 1, 3)},
    ),
    "TopK": (
        [("TopK", ["x", "a"], {"axis": 1, "results": ["p", "q"], "largest": 0}), ("Neg", ["p"], {})],
        {"a": whole(4)},
    ),
    "Shape": (
        [
            ("Shape", ["x"], {}),
            ("Gather", ["v0", "a"], {}),
            ("Unsqueeze", ["v1", "a0"], {}),
            ("Constant", [], {"value_ints": [-1]}),
            ("Concat", ["v2", "v3"], {"axis": 0}),
            ("Reshape", ["x", "v4"], {}),
        ],
        {"a": np.array(0), "a0": whole(0)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_every_operator_is_read_and_proved(name, tmp_path):
    nodes, stored = ONE[name]
    path = written(tmp_path / "m.onnx", nodes, **stored)  # read_graph compares it with onnxruntime
    network, shape = read_graph(path)
    assert shape == (4, 6, 6)
    assert largest_jacobian(network, shape) <= lc.audit(network, shape).lipschitz * (1 + 1e-12)


def test_no_operator_is_left_out():
    named = {node[0] for nodes, _ in ONE.values() for node in nodes}
    assert named == set(OPS)


REFUSED = {
    "operators without a proof": (
        [("Sin", ["x"], {}), ("Relu", ["v0"], {}), ("Erf", ["v1"], {})], {}, r"Sin \(node0\), Erf \(node2\)"
    ),
    "a square": ([("Mul", ["x", "x"], {})], {}, r"Mul \(node0\).*two values"),
    "a product of values": ([("MatMul", ["x", "x"], {})], {}, "constant matrix"),
    "a quotient": ([("Div", ["x", "x"], {})], {}, "divides"),
    "a mean over the batch": ([("ReduceMean", ["x", "a"], {})], {"a": whole(0)}, "batch"),
    "a mean over all": ([("ReduceMean", ["x"], {})], {}, "batch"),
    "examples in one row": ([("Reshape", ["x", "a"], {})], {"a": whole(1, -1)}, "number of examples"),
    "the batch exchanged": ([("Transpose", ["x"], {"perm": [1, 0, 2, 3]})], {}, "batch first"),
    "the batch concatenated": ([("Concat", ["x", "x"], {"axis": 0})], {}, "batch"),
    "the first example": ([("Gather", ["x", "a"], {})], {"a": whole(0)}, "batch"),
    "a random dropout": (
        [("Dropout", ["x", "a", "b"], {})], {"a": np.float32(0.5), "b": np.array(True)}, "random"
    ),
    "statistics of the batch": (
        [("BatchNormalization", ["x", *"abcd"], {"training_mode": 1, "results": ["p", "q", "r"]}),
         ("Neg", ["p"], {})],
        {name: np.abs(numbers(4)) for name in "abcd"}, "training_mode",
    ),
    "the number of examples": (
        [("Shape", ["x"], {}), ("Cast", ["v0"], {"to": 1}), ("Constant", [], {"value_ints": [0]}),
         ("Gather", ["v1", "v2"], {}), ("Mul", ["x", "v3"], {})],
        {}, "number of examples",
    ),
    "some of the largest": ([("TopK", ["x", "a"], {"results": ["p", "q"]}), ("Neg", ["p"], {})],
                            {"a": whole(2)}, "sort all"),
    "branches that are broadcast": (
        [("ReduceMean", ["x", "a"], {}), ("Sub", ["x", "v0"], {})], {"a": whole(1)}, "one shape"
    ),
    "another type": ([("Cast", ["x"], {"to": 10}), ("Cast", ["v0"], {"to": 1})], {}, "to must be 1"),
    "no output of the input": ([("Constant", [], {"value_float": 1.0})], {}, "computed from its input"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_node(name, tmp_path):
    nodes, stored, words = REFUSED[name]
    path = written(tmp_path / "m.onnx", [(a, b, dict(c)) for a, b, c in nodes], **stored)
    with pytest.raises(lc.NotCertified, match=words):
        read_graph(path)


# --- Files that are made to deceive: where examples hide a difference, only the reading counts ---

HIDDEN = [("Mul", ["x", "huge"], {}), ("Mul", ["v0", "zero"], {}), ("Add", ["x", "v1"], {"results": ["u"]})]
HUGE = {"huge": np.float32(1e12), "zero": np.float32(0)}  # near(…) allows for the largest value on the way


def reads_and_computes(path, x):
    """What was read, and what onnxruntime computes at x."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return read_graph(path)[0](x), torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


@pytest.mark.parametrize("alpha", [None, 1 / 6, 1 / 6 + 9e-7, -3.0])
def test_the_slope_of_a_hard_sigmoid_is_that_of_the_file(tmp_path, alpha):
    settings = {} if alpha is None else {"alpha": alpha}
    path = written(tmp_path / "m.onnx", [("HardSigmoid", ["x"], settings)], ("n", 4))
    constant = lc.audit(*read_graph(path)).lipschitz
    true = abs(float(np.float32(0.2 if alpha is None else alpha)))
    assert true <= constant <= true * (1 + 1e-8)


def test_constants_of_defaults_are_those_of_float32(tmp_path):
    path = written(tmp_path / "m.onnx", [("Selu", ["x"], {})], ("n", 4))
    assert lc.audit(*read_graph(path)).lipschitz >= float(np.float32(1.6732632)) * float(np.float32(1.050701))
    zeros = {"a": np.ones(4, np.float32)} | {name: np.zeros(4, np.float32) for name in "bcd"}
    path = written(tmp_path / "m.onnx", [("BatchNormalization", ["x", *"abcd"], {})], ("n", 4), **zeros)
    assert lc.audit(*read_graph(path)).lipschitz >= 1 / math.sqrt(float(np.float32(1e-5)))


def test_slopes_of_another_axis_than_the_channels_are_refused(tmp_path):
    nodes = [("Add", ["x", "b"], {}), ("PRelu", ["v0", "a"], {})]  # no example is negative there
    stored = {"a": np.array([1, 2, 3, 4], np.float32), "b": np.float32(20)}
    with pytest.raises(lc.NotCertified, match="channel"):
        read_graph(written(tmp_path / "m.onnx", nodes, ("n", 4, 4), **stored))
    stored["a"] = stored["a"][:, None]
    found, true = reads_and_computes(
        written(tmp_path / "m.onnx", nodes, ("n", 4, 4), **stored), torch.full((1, 4, 4), -50.0)
    )
    assert torch.allclose(found, true)


def test_whole_numbers_are_converted_as_onnxruntime_does(tmp_path):
    nodes = [
        *HIDDEN, ("Cast", ["b"], {"to": 7}), ("Gather", ["k", "v3"], {"axis": 0}),
        ("Gather", ["u", "v4"], {"axis": 1}), ("Neg", ["v5"], {}),
    ]  # fmt: skip
    stored = HUGE | {"b": np.array([True, True, False]), "k": whole(1, 0, 2)}
    path = written(tmp_path / "m.onnx", nodes, ("n", 3), **stored)
    found, true = reads_and_computes(path, torch.zeros(1, 3) + torch.tensor([1e-20, 2e-20, 3e-20]))
    assert torch.equal(found, true)
    assert lc.audit(*read_graph(path)).lipschitz >= math.sqrt(2)
    nodes = [
        *HIDDEN, ("Cast", ["e"], {"to": 6}), ("Cast", ["v3"], {"to": 7}), ("Slice", ["u", "s", "v4", "a"], {}),
        ("ReduceMean", ["v5", "a"], {}),
    ]  # fmt: skip
    stored = HUGE | {"e": whole(2**32 + 1), "s": whole(0), "a": whole(1)}
    with pytest.raises(lc.NotCertified, match="32 bits"):
        read_graph(written(tmp_path / "m.onnx", nodes, ("n", 4), **stored))


def changed(path, change):
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_name_has_one_meaning(tmp_path):
    eye = np.eye(4, dtype=np.float32)
    large = onnx.numpy_helper.from_array(100 * eye, "w")
    product = [*HIDDEN, ("MatMul", ["u", "w"], {})]
    sparse = onnx.helper.make_sparse_tensor(
        onnx.helper.make_tensor("w", 1, [1], [100.0]), onnx.helper.make_tensor("i", 7, [1], [0]), [4, 4]
    )
    constant = onnx.helper.make_node("Constant", [], ["w"], value=large)
    for change in (
        lambda model: model.graph.sparse_initializer.append(sparse),
        lambda model: model.graph.initializer.append(large),
        lambda model: model.graph.node.append(constant),
        lambda model: model.graph.node[0].output.append(""),
    ):
        path = changed(written(tmp_path / "m.onnx", product, ("n", 4), **HUGE, w=eye), change)
        with pytest.raises(ValueError, match="twice"):
            read_graph(path)
    # With two versions, onnxruntime takes the older one, in which softmax is over all axes.
    path = written(tmp_path / "m.onnx", [*HIDDEN, ("LogSoftmax", ["u"], {"axis": 1})], ("n", 3, 4), **HUGE)
    for domain in ("", "ai.onnx"):
        with pytest.raises(ValueError, match="opset 13"):
            read_graph(changed(path, lambda m: m.opset_import.append(onnx.helper.make_opsetid(domain, 11))))  # noqa: B023


RELU = [("Relu", ["x"], {})]
TOO_LARGE = {
    "an input": (RELU, ("n", 2**40), {}),
    "an input beyond 64 bits": (RELU, ("n", 2**62, 2**62), {}),
    "a batch": (RELU, (2**40, 4), {}),
    "padding": ([("Pad", ["x", "a"], {})], ("n", 4), {"a": whole(0, 0, 0, 10**9)}),
    "an expansion": ([("Expand", ["x", "a"], {})], ("n", 1), {"a": whole(1, 10**9)}),
    "two expansions": (
        [("Expand", ["x", "a"], {}), ("Expand", ["v0", "b"], {})],
        ("n", 1, 1), {"a": whole(1, 1, 10**4), "b": whole(1, 10**4, 1)},
    ),
    "strides": ([("ConvTranspose", ["x", "a"], {"strides": [2**16]})], ("n", 1, 1), {"a": numbers(1, 1, 3)}),
    "a kernel": ([("MaxPool", ["x"], {"kernel_shape": [2**30]})], ("n", 1, 4), {}),
    "windows": ([("MaxPool", ["x"], {"kernel_shape": [2**19], "pads": [2**18] * 2})], ("n", 1, 4), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_needs_too_much_memory_is_refused(name, tmp_path):
    nodes, shape, stored = TOO_LARGE[name]
    with pytest.raises(lc.NotCertified, match=r"too large|it pads by|it expands to"):
        read_graph(written(tmp_path / "m.onnx", nodes, shape, **stored))


@pytest.mark.parametrize("name", ["forward", "training", "names", "input", "!"])
def test_values_may_have_any_name(name, tmp_path):
    nodes = [("Abs", ["x"], {"results": [name]}), ("Neg", [name], {})]
    network, _ = read_graph(written(tmp_path / "m.onnx", nodes, ("n", 4)))
    assert network(-torch.ones(1, 4)).tolist() == [[-1.0] * 4]


def test_what_onnxruntime_refuses_is_one_sentence(tmp_path, capfd):
    nodes = [("Pad", ["x", "a"], {"mode": "reflect"}), ("Neg", ["v0"], {})]
    with pytest.raises(lc.NotCertified, match="cannot run"):
        read_graph(written(tmp_path / "m.onnx", nodes, ("n", 2, 5), a=whole(0, 0, -2, 0, 0, 3)))
    assert capfd.readouterr().err == ""


def test_tensors_without_real_numbers_are_refused(tmp_path):
    for tensor in (onnx.helper.make_tensor("b", 16, [2], [1, 2]), onnx.helper.make_tensor("b", 8, [1], [b"a"])):
        path = written(tmp_path / "m.onnx", RELU, ("n", 4))
        with pytest.raises(ValueError, match="no ONNX model"):
            read_graph(changed(path, lambda model: model.graph.initializer.append(tensor)))  # noqa: B023


def test_files_of_another_kind_are_refused(tmp_path):
    relu = [("Relu", ["x"], {})]
    for settings, words in (
        ({"shape": ("n", 4, "h", "w")}, "fixed sizes"),
        ({"shape": ("n",)}, "fixed sizes"),
        ({"kind": 10}, "float32 or float64"),
        ({"opset": 12}, "opset 13"),
    ):
        with pytest.raises(ValueError, match=words):
            read_graph(written(tmp_path / "m.onnx", relu, **settings))
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match="no ONNX model"):
        read_graph(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        read_graph(tmp_path / "none.onnx")


def test_a_fixed_number_of_examples_and_float64(tmp_path):
    nodes = [("Reshape", ["x", "a"], {}), ("Relu", ["v0"], {})]
    network, _ = read_graph(written(tmp_path / "m.onnx", nodes, (3, 4, 2, 2), a=whole(3, -1)))
    assert network(torch.ones(5, 4, 2, 2)).shape == (5, 16)
    nodes = [("MatMul", ["x", "a"], {})]
    weight = RANDOM.normal(size=(4, 3))
    network, shape = read_graph(written(tmp_path / "m.onnx", nodes, ("n", 4), kind=11, a=weight))
    true = np.linalg.norm(weight, 2)
    assert true <= lc.audit(network, shape).lipschitz <= true * (1 + 1e-7)


# --- Networks of torch, torchlip and orthogonium ---


def exported(path, network, shape):
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network.eval(),
                (torch.randn(2, *shape),),
                path,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("n")},),
                external_data=False,
                verbose=False,
            )
    finally:
        logging.disable(before)
    return path


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.f, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = x + 0.5 * self.f(x)
        return self.head(torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1).view(x.size(0), -1))


def test_an_export_has_the_constant_of_the_network(tmp_path, capsys):
    torch.manual_seed(0)
    model = Residual().eval()
    path = exported(tmp_path / "m.onnx", model, (1, 8, 8))
    assert Audit(path).run() == 0
    assert "PROVED" in capsys.readouterr().out
    frozen = lc.load(path)
    constant = lc.audit(model, (1, 8, 8)).lipschitz
    assert lc.audit(frozen, (1, 8, 8)).lipschitz == pytest.approx(constant, rel=1e-5)
    images = torch.rand(4, 1, 8, 8)
    result = lc.certify(frozen, images)
    assert torch.allclose(result.radii, lc.certify(lc.freeze(model), images).radii, rtol=1e-3)
    assert (result.radii > 0).any()
    result.save(tmp_path / "mine", about="an ONNX file of another program")
    assert lc.verify(tmp_path / "mine").ok


def test_exports_of_torchlip(tmp_path):
    tl = pytest.importorskip("deel.torchlip")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = [tl.SpectralConv2d(1, 4, 3, padding=1), tl.GroupSort2(), nn.Flatten(), tl.SpectralLinear(256, 16)]
        network = tl.Sequential(*layers, tl.FullSort(), tl.FrobeniusLinear(16, 3))
        network(torch.rand(2, 1, 8, 8))
    found, shape = read_graph(exported(tmp_path / "m.onnx", network, (1, 8, 8)))
    report = lc.audit(found, shape)
    assert report.ok
    assert largest_jacobian(found, shape) <= report.lipschitz
    # Its L2 pools are made of powers and signs.
    path = exported(tmp_path / "pool.onnx", nn.Sequential(layers[0], tl.ScaledL2NormPool2d(2)), (1, 8, 8))
    with pytest.raises(lc.NotCertified, match=r"Pow \(.*Sign \("):
        Audit(path).run()


def test_exports_of_orthogonium(tmp_path):
    layers = pytest.importorskip("orthogonium.layers")
    torch.manual_seed(0)
    network = nn.Sequential(
        layers.AdaptiveOrthoConv2d(1, 4, 3, padding=1, padding_mode="circular"),
        layers.MaxMin(),
        layers.AdaptiveOrthoConv2d(4, 8, 4, stride=2, padding=1, padding_mode="circular"),
        nn.Flatten(),
        layers.OrthoLinear(128, 3),
    ).eval()
    for part in network.modules():
        for name in list(getattr(part, "parametrizations", [])):
            parametrize.remove_parametrizations(part, name)
    found, shape = read_graph(exported(tmp_path / "m.onnx", network, (1, 8, 8)))
    report = lc.audit(found, shape)
    assert report.ok
    # MaxMin and circular padding are recognized: by steps they would be 4.
    assert largest_jacobian(found, shape) <= report.lipschitz <= 1.1
