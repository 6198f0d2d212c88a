"""ONNX programs that give the radius beside the logits: never larger than that of ``certify``."""

import json
import math

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lipcert as lc
from full import full
from lipcert.certified.freeze import prove
from lipcert.cli.export import Export
from lipcert.exporters import programs, radius
from lipcert.exporters.export import ExportChanged, example_inputs, export
from lipcert.models.presets import model_spec
from lipcert.training.checkpoint import save_weights


def residual():
    layers = [lc.layers.PadChannels(4), lc.ResidualConv2d(4, 3, 3), lc.layers.ScaledAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, lc.layers.Scale(0.7), lc.ResidualLinear(64, 8), lc.NormalizedHead(64, 5)), (
        1,
        8,
        8,
    )


def one_output():
    layers = [lc.ResidualConv2d(2, 3, 3, stride=2), lc.AffineConv2d(2, 4, 3, stride=2), lc.layers.MaxMin()]
    return nn.Sequential(*layers, nn.Flatten(), lc.AffineLinear(16, 1)), (2, 6, 6)


def without_head():
    return nn.Sequential(lc.ResidualLinear(16, 8), nn.ReLU()), (16,)


NETWORKS = {"residual": residual, "one output": one_output, "without head": without_head}
CASES = [("residual", "float64"), ("one output", "float32")]
ALL = [(name, precision) for name in NETWORKS for precision in ("float64", "float32")]


def frozen(name):
    torch.manual_seed(3)
    model, shape = NETWORKS[name]()
    return lc.freeze(model.eval()), shape


@pytest.mark.parametrize(("name", "precision"), full(ALL, CASES))
def test_no_radius_is_larger_than_that_of_certify(name, precision, tmp_path):
    network, shape = frozen(name)
    report = export(network, tmp_path / "n.onnx", to="onnx", input_shape=shape, radius=precision)
    assert report.radius == precision
    assert 0 < report.kept <= 1
    tensors, run = programs.read_onnx(tmp_path / "n.onnx")
    x = torch.cat([example_inputs(shape, 40), 30 * torch.randn(20, *shape)])
    x = torch.cat([x, x[:1] * math.nan, x[:1] * math.inf, torch.zeros_like(x[:1])])
    dtype = torch.float64 if precision == "float64" else torch.float32
    logits, radii = map(torch.cat, zip(run(x[:1].to(dtype)), run(x[1:].to(dtype)), strict=True))
    assert logits.dtype == radii.dtype == dtype
    result = lc.certify(network, x)
    assert (radii.double() <= result.radii).all()
    assert (radii >= 0).all()
    assert radii[60] == radii[61] == 0
    answers = logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
    assert (answers == result.predictions)[radii > 0].all()
    if precision == "float64":
        assert (radii >= result.radii * (1 - 1e-5) - 1e-9)[:60].all()
    else:
        large = result.radii > 0.05
        assert large[:40].any()
        assert (radii[:40] > 0.7 * result.radii[:40])[large[:40]].all()
    numbers = tensors["radius_numbers"]
    assert numbers.dtype == torch.float64
    assert not ((numbers - 1).abs() < 2.0**-23).any()  # onnxruntime would leave such a factor out
    about = {entry.key: entry.value for entry in onnx.load(tmp_path / "n.onnx").metadata_props}
    assert about["lipcert_radius"] == f"L2, {precision}, of the largest logit"
    for text in ("no TF32", "no Winograd", {"float64": "binary64", "float32": "binary32"}[precision]):
        assert text in about["lipcert_arithmetic"]


def test_every_number_of_the_graph_is_exact(tmp_path):
    """torch.onnx writes Python numbers as float32; those that it would round are entries of a tensor."""
    network, shape = frozen("without head")
    seen = []
    program = radius.WithRadius(prove(network, shape), "float64")

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            wide = any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in args)
            seen.extend(value for value in args if wide and isinstance(value, float))
            return func(*args, **(kwargs or {}))

    with Spy():
        program(torch.rand(2, *shape, dtype=torch.float64))
    assert seen
    assert all(float(torch.tensor(value, dtype=torch.float32)) == value for value in seen)


@pytest.mark.parametrize("size", [(7, 7), (9, 6)])
@pytest.mark.parametrize(("taps", "dilation", "stride"), [((3, 3), (1, 1), (1, 1)), ((2, 3), (2, 1), (2, 3))])
def test_folding_and_averages_are_those_of_torch(size, taps, dilation, stride):
    x = torch.rand(2, 3, *size, dtype=torch.float64)
    columns = F.unfold(x, taps, dilation, 0, stride)
    expected = F.fold(columns, size, taps, dilation, 0, stride)
    assert torch.allclose(radius._fold(columns, size, taps, dilation, 0, stride), expected, rtol=1e-14, atol=0)
    assert torch.allclose(radius._average(x, taps), F.avg_pool2d(x, taps), rtol=1e-14, atol=0)


def test_a_radius_that_is_too_large_is_found(tmp_path, monkeypatch):
    network, shape = frozen("without head")
    monkeypatch.setattr(radius, "FACTOR", 1 + 2.0**-20)
    with pytest.raises(ExportChanged, match="larger than that of certify"):
        export(network, tmp_path / "n.onnx", to="onnx", input_shape=shape, radius="float64")
    assert not list(tmp_path.iterdir())


def test_float32_is_refused_where_its_bound_leaves_nothing(tmp_path):
    shift = nn.Linear(16, 16)
    with torch.no_grad():
        shift.weight.copy_(torch.eye(16))
        shift.bias.fill_(2.0**20)
    network = lc.freeze(nn.Sequential(shift).eval())
    assert (lc.certify(network, example_inputs((16,))).radii > 0).any()
    with pytest.raises(lc.NotCertified, match=r"each radius would be 0\. Write the radius in float64"):
        export(network, tmp_path / "n.onnx", to="onnx", input_shape=(16,), radius="float32")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused_in_one_sentence(tmp_path):
    network, shape = frozen("without head")
    smooth = lc.freeze(nn.Sequential(lc.ResidualLinear(16, 8), nn.Tanh()).eval())
    leaky = lc.freeze(nn.Sequential(lc.ResidualLinear(16, 8), nn.Hardtanh(-0.1, 0.3)).eval())
    for model, path, options, said in (
        (network, "n.pt2", {"to": "torch-export", "radius": "float64"}, "an output of ONNX files"),
        (network, "n.onnx", {"to": "onnx", "radius": "float16"}, "radius must be one of"),
        (smooth, "n.onnx", {"to": "onnx", "radius": "float64"}, "tanh within 8 ulp is assumed.*in float32"),
        (leaky, "n.onnx", {"to": "onnx", "radius": "float64"}, "cannot keep the numbers of.*in float32"),
    ):
        with pytest.raises(ValueError, match=said) as refusal:
            export(model, tmp_path / path, input_shape=shape, **options)
        assert len(str(refusal.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_command_compares_with_the_certified_images(tmp_path, capsys):
    run, small = lc.Run(tmp_path / "run"), {"image_shape": (1, 8, 8), "channels": 4, "stem": 2, "conv_layers": 0}
    small |= {"dense_layers": 1, "dense_hidden": 8}
    run.folder.mkdir()
    save_weights(run.model_file, lc.create_model("sll_nano", **small).state_dict(), model_spec("sll_nano", **small))
    run.write_record()
    run.certify(data="digits", examples=20)
    assert Export(run.folder, to="onnx", radius="float32", json=True).run() == 0
    said = json.loads(capsys.readouterr().out)
    assert said["radius"] == "float32"
    assert said["kept"] is None or 0 < said["kept"] <= 1
    outputs = onnx.load(run.folder / "network.onnx").graph.output
    assert [output.name for output in outputs] == ["logits", "radius"]
