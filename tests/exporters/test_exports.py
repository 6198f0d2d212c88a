"""Exported files hold the proved numbers bit for bit and compute the proved function; all else is refused."""

import copy
import hashlib
import json
import math
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lipcert as lc
from full import full
from lipcert.activations import SLOPE_RESTRICTED, ULPS
from lipcert.certified.certificate import sha256_of, write_certificate
from lipcert.certified.certify import certify
from lipcert.certified.freeze import prove
from lipcert.certified.ops import Residual
from lipcert.cli.export import Export
from lipcert.exporters import export as export_module
from lipcert.exporters import programs
from lipcert.exporters.export import ExportChanged, example_inputs, export, float32_bound
from lipcert.exporters.files import Certificate, exported_shape, load_frozen
from lipcert.models.presets import model_spec
from lipcert.training.checkpoint import save_weights

SMALL = {"image_shape": (1, 8, 8), "channels": 8, "conv_layers": 2, "conv_hidden": 6, "dense_layers": 2}
SMALL["dense_hidden"] = 24
EPS = 2.0**-23


def randomized(model):
    """Parameters away from their start, as training leaves them; logits of ordinary size."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def preset(name, **overrides):
    return lambda: (randomized(lc.create_model(name, **SMALL, **overrides)), (1, 8, 8))


def convolutions():  # stride, circular padding, groups, pools and sorts
    layers = [
        lc.layers.Normalize([0.5] * 4, [0.25, 0.5, 0.5, 1.0]),
        lc.ResidualConv2d(4, 6, 3, stride=2),
        lc.ResidualConv2d(4, 6, 3, padding_mode="circular"),
        lc.ResidualConv2d(4, 6, 3, stride=2, padding_mode="circular", bound="spectral"),
        lc.AffineConv2d(4, 4, 3, padding=1, groups=2),
        lc.layers.MaxMin(),
        lc.layers.GroupSort(4),
        nn.ReLU(),
        lc.layers.ScaledAvgPool2d(2),
        lc.layers.PadImage(3),
        lc.layers.Scale(0.7),
        nn.Flatten(),
        lc.NormalizedHead(144, 5),
    ]
    return randomized(nn.Sequential(*layers)), (4, 8, 8)


def beyond_the_format():
    parts = [
        nn.Flatten(),
        nn.Sequential(nn.Tanh(), nn.ELU(0.5)),
        lc.SandwichLinear(16, 8, activation="tanh"),
        lc.GeneralLinear(8, 8, 4),
    ]
    return randomized(nn.Sequential(*parts)), (4, 4)


def theorem_4():
    parts = [
        lc.GeneralConv2d(2, 3, 4),
        lc.SandwichConv2d(4, 6, 3, image_size=4),
        lc.layers.Householder(6),
        nn.Flatten(),
        lc.SandwichLinear(96, 10),
        lc.layers.Householder(10),
        lc.GeneralLinear(10, 6, 5),
    ]
    return randomized(nn.Sequential(*parts)), (2, 4, 4)


IN_FORMAT = {
    "sll": preset("sll_nano"),
    "sn": preset("sn_nano"),
    "orthogonal": preset("orthogonal_nano"),
    "cpl": preset("cpl_nano"),
    "convolutions": convolutions,
    "theorem 4": theorem_4,
}
NETWORKS = {**IN_FORMAT, "beyond the format": beyond_the_format}
# A program takes seconds to write. These networks have every op of the presets and more.
PROGRAMS = full(list(NETWORKS), ["orthogonal", "convolutions", "theorem 4", "beyond the format"])


@pytest.fixture(scope="module")
def frozen():
    """Name → (frozen network, shape of an input)."""
    torch.manual_seed(0)
    made = {name: make() for name, make in NETWORKS.items()}
    return {name: (lc.freeze(model), shape) for name, (model, shape) in made.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder of sll_nano, certified on some test digits."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs") / "run"
    folder.mkdir()
    spec = model_spec("sll_nano", **SMALL)
    model = randomized(lc.create_model("sll_nano", **SMALL))
    stored = lc.Run(folder)
    save_weights(stored.model_file, model.state_dict(), spec)
    stored.write_record()
    network, data = stored.frozen(), lc.load_data("digits", "test")
    links, images = prove(network, (1, 8, 8)), data.images[:12]
    guesses = network(images.float() / 255).argmax(dim=1)  # an untrained network is right about its own answers
    result = certify(links, images.float() / 255, guesses)
    write_certificate(folder, links, network, images, result, about="digits test", stored=stored.frozen_file.name)
    assert len(Certificate.of_folder(folder).content["claims"]) > 6
    return folder


@pytest.fixture(scope="module")
def good_onnx(run):
    """The bytes of an export of that run that succeeded."""
    assert Export(run, to="onnx").run() == 0
    path = run / "network.onnx"
    content = path.read_bytes()
    path.unlink()
    return content


def copied(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


def no_leftovers(folder, *names):
    return sorted(p.name for p in folder.iterdir()) == sorted(names)


# --- The frozen network itself ---


@pytest.mark.parametrize("name", NETWORKS)
def test_copies_of_a_frozen_network_compute_the_same_bits(frozen, name):
    network, shape = frozen[name]
    x = example_inputs(shape, 3)
    expected = network(x)
    assert torch.equal(copy.deepcopy(network)(x), expected)
    blank = copy.deepcopy(network)
    for buffer in blank.buffers():
        buffer.zero_()
    assert not torch.equal(blank(x), expected)
    assert not any(blank.load_state_dict(network.state_dict()))
    assert torch.equal(blank(x), expected)


@pytest.mark.parametrize("name", ["sll", "convolutions"])
def test_a_compiled_network_computes_the_same_and_is_audited(frozen, name):
    network, shape = frozen[name]
    x = example_inputs(shape, 3)
    compiled = torch.compile(network, backend="aot_eager")  # inductor would need a C++ compiler
    assert torch.allclose(compiled(x), network(x), rtol=0, atol=64 * EPS * float(network(x).abs().max()))
    assert prove(compiled, shape).backbone == prove(network, shape).backbone


# --- Every format ---


@pytest.mark.parametrize("name", IN_FORMAT)
def test_load_frozen_gives_the_same_network(frozen, tmp_path, name):
    network, shape = frozen[name]
    report = export(network, tmp_path / "n.safetensors", to="torch", input_shape=shape)
    again = load_frozen(tmp_path / "n.safetensors")
    x = example_inputs(shape, 3)
    assert torch.equal(again(x), network(x))
    assert again.state_dict().keys() == network.state_dict().keys()
    assert all(torch.equal(again.state_dict()[key], value) for key, value in network.state_dict().items())
    assert not again.training
    assert report.tensors == len(network.state_dict())
    assert report.lipschitz == prove(network, shape).backbone
    export(again, tmp_path / "m.safetensors", to="torch", input_shape=shape)
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "n.safetensors").read_bytes()
    assert no_leftovers(tmp_path, "m.safetensors", "n.safetensors")


# --- Every activation of a residual layer ---


def with_activations(first, second, third):
    """One residual layer of each kind: dense, convolution, and circular convolution in a basis of waves."""
    layers = [
        lc.ResidualConv2d(2, 3, 3, activation=first),
        lc.OrthogonalResidualConv2d(2, 2, 5, image_size=6, activation=second),
        nn.Flatten(),
        lc.ResidualLinear(72, 8, activation=third),
        lc.NormalizedHead(72, 3),
    ]
    return lc.freeze(randomized(nn.Sequential(*layers))), (2, 6, 6)


@pytest.fixture(scope="module")
def by_activation():
    torch.manual_seed(0)
    return {name: with_activations(name, name, name) for name in SLOPE_RESTRICTED}


@pytest.mark.parametrize("name", SLOPE_RESTRICTED)
def test_load_frozen_keeps_the_activation(by_activation, tmp_path, name):
    network, shape = by_activation[name]
    path = tmp_path / "n.safetensors"
    export(network, path, to="torch", input_shape=shape)
    again, x = load_frozen(path), 10 * example_inputs(shape, 3) - 5
    assert [m.sigma for m in again.modules() if isinstance(m, Residual)] == [SLOPE_RESTRICTED[name]] * 3
    assert [kind["op"] for kind in layers_of(path) if "activation" in kind] == [
        "residual_conv",
        "residual_circular",
        "residual_linear",
    ]
    assert torch.equal(again(x), network(x))
    for other in SLOPE_RESTRICTED.keys() - {name}:
        rewritten(path, layer(0, activation=other), "lipcert_nodes")
        assert not torch.equal(load_frozen(path)(x), network(x))


def layers_of(path):
    return json.loads(split(path)[0]["__metadata__"]["lipcert_nodes"])["nodes"]


ACTIVATIONS = list(SLOPE_RESTRICTED)


@pytest.mark.parametrize(
    "names", full([[name] * 3 for name in ACTIVATIONS], [ACTIVATIONS[:3], ACTIVATIONS[3:]]), ids="-".join
)
def test_programs_compute_every_activation(tmp_path, names):
    network, shape = with_activations(*names)
    # Large arguments as well, where softplus(x) must not overflow.
    inputs = torch.cat([example_inputs(shape, 4), 400 * example_inputs(shape, 4) - 200])
    for to in full(("torch-export", "onnx"), ("onnx",)):  # ONNX is written from a program of torch.export
        path = tmp_path / f"n{export_module.SUFFIX[to]}"
        report = export(network, path, to=to, input_shape=shape, inputs=inputs)
        assert math.isfinite(report.allowed)
        assert report.tensors + report.witnesses == len(network.state_dict())


def test_onnxruntime_computes_activations_as_accurately_as_is_assumed(tmp_path):
    class Activations(nn.Module):
        def forward(self, x):
            return torch.cat([activation.function(x) for activation in SLOPE_RESTRICTED.values()], dim=1)

    programs.write_onnx(tmp_path / "n.onnx", Activations(), (1,), {})
    _, run_onnx = programs.read_onnx(tmp_path / "n.onnx")
    sizes = torch.cat([torch.linspace(0, 110, 50_001), torch.logspace(-30, 2, 5_000)])
    x = torch.cat([sizes, -sizes])[:, None]
    exact, tiny = Activations()(x.double()), torch.finfo(torch.float32).tiny
    error = (run_onnx(x).double() - exact).abs() / (EPS * exact.abs()).clamp_min(tiny)
    for name, off, value in zip(SLOPE_RESTRICTED, error.T, exact.T, strict=True):
        assert float(off[value.abs() > tiny].max()) <= ULPS, name


def close(found, links, x):
    """Within the proved bound of float32, and 64·ε of the logits: what a sum of some hundred terms loses."""
    logits, bound, _ = float32_bound(links, x)
    difference = (found.double() - logits).abs()
    return bool((difference <= bound).all()) and float(difference.max()) <= 64 * EPS * float(logits.abs().max())


@pytest.mark.parametrize("name", full(PROGRAMS, PROGRAMS[1:3]))
def test_torch_export_keeps_every_bit(frozen, tmp_path, name):
    network, shape = frozen[name]
    report = export(network, tmp_path / "n.pt2", to="torch-export", input_shape=shape)
    assert (report.tensors, report.witnesses) == (len(network.state_dict()), 0)
    program = torch.export.load(tmp_path / "n.pt2")
    for size in (1, 3):
        x = example_inputs(shape, size)
        assert torch.equal(program.module()(x), network(x))
    assert str(Path(lc.__file__).parent).encode() not in (tmp_path / "n.pt2").read_bytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_onnx_keeps_every_bit_and_agrees_with_onnxruntime(frozen, tmp_path, name):
    import onnx

    network, shape = frozen[name]
    report = export(network, tmp_path / "n.onnx", to="onnx", input_shape=shape)
    witnesses = sum(key.endswith("witness") for key in network.state_dict())
    assert (report.tensors, report.witnesses) == (len(network.state_dict()) - witnesses, witnesses)
    assert math.isfinite(report.allowed)
    tensors, run_onnx = programs.read_onnx(tmp_path / "n.onnx")
    links = prove(network, shape)
    for size in (1, 3, 7):
        x = example_inputs(shape, size)
        assert close(run_onnx(x), links, x)
    model = onnx.load(tmp_path / "n.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", programs.OPSET)]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert set(tensors) == {key for key in network.state_dict() if not key.endswith("witness")}
    assert str(Path(lc.__file__).parent).encode() not in (tmp_path / "n.onnx").read_bytes()


# --- What is refused ---


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.mark.parametrize("to", ["torch", "safetensors", "torch-export", "onnx"])
def test_an_operation_that_no_checker_knows_is_refused(tmp_path, monkeypatch, to):
    monkeypatch.setattr("lipcert.certified.freeze._RULES", {})
    lc.register_rule(Doubled, 2.0)
    network = lc.freeze(nn.Sequential(nn.ReLU(), Doubled()))
    assert torch.equal(network(torch.ones(1, 3)), torch.full((1, 3), 2.0))
    with pytest.raises(ValueError, match=r"is assumed|carries the certificate"):
        export(network, tmp_path / f"n{export_module.SUFFIX[to]}", to=to, input_shape=(3,))
    assert no_leftovers(tmp_path)


def test_a_network_without_a_certificate_has_none_to_carry(frozen, tmp_path):
    network, shape = frozen["beyond the format"]
    with pytest.raises(ValueError, match="carries the certificate"):
        export(network, tmp_path / "n.safetensors", to="safetensors", input_shape=shape)
    assert no_leftovers(tmp_path)


def test_what_is_not_a_frozen_network_is_refused(frozen, tmp_path):
    network, shape = frozen["sll"]
    lenient = nn.Sequential(network, nn.Hardswish())
    for model in (lc.create_model("sll_nano", **SMALL), lenient, nn.Linear(3, 2)):
        with pytest.raises(ValueError, match=f"frozen network, got a {type(model).__name__}.*freeze"):
            export(model, tmp_path / "n.onnx", to="onnx", input_shape=shape)
    with pytest.raises(ValueError, match=r"\.onnx"):
        export(network, tmp_path / "n.pt2", to="onnx", input_shape=shape)
    with pytest.raises(ValueError, match="folder"):
        export(network, tmp_path / "none" / "n.safetensors", to="torch", input_shape=shape)
    with pytest.raises(ValueError, match="must be one of"):
        export(network, tmp_path / "n.pth", to="pickle", input_shape=shape)
    assert no_leftovers(tmp_path)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(frozen, tmp_path, monkeypatch, package):
    network, shape = frozen["sll"]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package}.*pip install 'lipcert\[export\]'"):
        export(network, tmp_path / "n.onnx", to="onnx", input_shape=shape)
    assert no_leftovers(tmp_path)


def one_bit(model):
    raw = bytearray(model.graph.initializer[3].raw_data)
    raw[0] ^= 1
    model.graph.initializer[3].raw_data = bytes(raw)


def folded(model):  # 2γ as a constant of its own
    import onnx

    gamma = next(t for t in model.graph.initializer if t.name.endswith("gamma"))
    node = onnx.helper.make_node(
        "Constant", [], ["twice"], value=onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(gamma))
    )
    model.graph.node.insert(0, node)


def other_sign(model):  # the same tensors, another function
    next(n for n in reversed(model.graph.node) if n.op_type == "Sub").op_type = "Add"


@pytest.mark.parametrize(("change", "found"), [(one_bit, "tensor"), (folded, "constant"), (other_sign, "differ")])
def test_a_changed_file_is_deleted_with_exit_code_1(run, good_onnx, tmp_path, monkeypatch, capsys, change, found):
    import onnx

    def spoiled(path, *_):
        model = onnx.load_model_from_string(good_onnx)
        change(model)
        onnx.save(model, path)

    monkeypatch.setattr(programs, "write_onnx", spoiled)
    assert Export(run, to="onnx", out=tmp_path / "n.onnx").run() == 1
    assert found in capsys.readouterr().err
    assert no_leftovers(tmp_path)


@pytest.mark.parametrize("to", ["torch", "torch-export"])
def test_a_changed_tensor_is_found_in_every_format(frozen, tmp_path, monkeypatch, to):
    network, shape = frozen["convolutions"]
    read = export_module._read

    def flipped(file, kind):
        tensors, program = read(file, kind)
        name = sorted(tensors)[0]
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1)[0] *= 1 + EPS
        return tensors, program

    monkeypatch.setattr(export_module, "_read", flipped)
    with pytest.raises(ExportChanged, match="tensor"):
        export(network, tmp_path / f"n{export_module.SUFFIX[to]}", to=to, input_shape=shape)
    assert no_leftovers(tmp_path)


# --- With a certificate ---


def test_safetensors_carries_the_certificate(run, tmp_path, capsys):
    out = tmp_path / "c.safetensors"
    assert Export(run, to="safetensors", out=out).run() == 0
    assert "those of certificate.json bit for bit" in capsys.readouterr().out
    header, _ = split(out)
    text = (run / "certificate.json").read_text(encoding="utf-8")
    assert header["__metadata__"]["lipcert_certificate"] == text
    assert header["__metadata__"]["lipcert_certificate_sha256"] == Certificate.of_folder(run).sha256
    stored, expected = load_file(out), load_file(run / "frozen.safetensors")
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[key], expected[key]) for key in expected)
    x = example_inputs((1, 8, 8))
    assert torch.equal(load_frozen(out)(x), load_frozen(run)(x))
    shutil.copy(run / "certificate.inputs.safetensors", tmp_path)
    content = {**json.loads(text), "weights": "c.safetensors"}  # the checker takes the exported file itself
    (tmp_path / "certificate.json").write_text(json.dumps(content), encoding="utf-8")
    assert lipcert("check", str(tmp_path / "certificate.json")).returncode == 0


def lipcert(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "lipcert", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_half_precision_is_read_as_the_same_numbers(tmp_path):
    model = randomized(lc.create_model("sll_nano", **SMALL)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    network, x = lc.freeze(model), example_inputs((1, 8, 8), 12)
    links, folder = prove(network, (1, 8, 8)), tmp_path / "half"
    write_certificate(folder, links, network, x, certify(links, x), half=True)
    stored = load_file(folder / "certificate.safetensors")
    halves = [name for name, tensor in stored.items() if tensor.dtype == torch.float16 and tensor.ndim > 1]
    assert len(halves) == 4
    weight, gamma = halves[0], halves[0].replace("weight", "gamma")
    assert stored[gamma].dtype == torch.float32  # γ is rounded after the weights are
    assert lc.verify(folder).ok
    assert torch.equal(lc.load(folder)(x), network(x))
    certificate = Certificate.of_folder(folder)
    report = export(network, tmp_path / "n.safetensors", to="safetensors", input_shape=(1, 8, 8),
                    certificate=certificate)  # fmt: skip
    assert report.certificate is certificate
    assert torch.equal(load_frozen(report.path)(x), network(x))
    lc.CertifiedModel(folder).save_pretrained(tmp_path / "hub")
    assert lc.verify(tmp_path / "hub").ok
    again = load_file(tmp_path / "hub" / "model.safetensors")
    assert again.keys() == stored.keys()
    assert all(
        again[name].dtype == tensor.dtype and torch.equal(again[name], tensor) for name, tensor in stored.items()
    )
    for name in (weight, gamma):  # one unit in the last place
        changed = {**stored, name: torch.nextafter(stored[name], torch.ones_like(stored[name]))}
        save_file(changed, folder / "certificate.safetensors")
        with pytest.raises(ValueError, match=f"change in tensor {name}"):
            lc.load(folder)
    save_file({**stored, gamma: stored[gamma].half()}, folder / "certificate.safetensors")
    with pytest.raises(ValueError, match=f"change in tensor {gamma}"):
        lc.load(folder)


def test_a_certificate_of_another_network_is_refused(run, tmp_path):
    folder = copied(run, tmp_path)
    model = lc.load(folder)
    with torch.no_grad():
        model[1].bias[0] += 1
    save_weights(folder / "model.safetensors", model.state_dict(), model_spec("sll_nano", **SMALL))
    for to in ("safetensors", "torch"):
        with pytest.raises(ValueError, match=r"another tensor 1\.bias.*lipcert certify first"):
            Export(folder, to=to).run()
    (folder / "certificate.json").unlink()
    before = sorted(folder.iterdir())
    result = lipcert("export", str(folder), "--to", "safetensors")
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert "lipcert certify" in result.stderr
    with pytest.raises(ValueError, match="a file of the run itself"):
        Export(folder, to="torch", out=folder / "model.safetensors").run()
    assert sorted(folder.iterdir()) == before


def split(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def rewritten(path, change, note):
    """The file with its layers (or certificate) changed; offsets do not depend on the header."""
    header, data = split(path)
    said = json.loads(header["__metadata__"][note])
    said = change(said) or said
    header["__metadata__"][note] = json.dumps(said)
    path.write_bytes(joined(header, data))


def layer(index, **values):
    return lambda said: said["nodes"][index].update(values)


def first(op, **fields):
    """A node that reads the input."""
    return {"op": op, "name": "p", "inputs": ["input"], "lipschitz": "0x1p+0", **fields}


HOSTILE = {
    "another op": layer(1, op="eval"),
    "an op that is a list": layer(1, op=["relu"]),
    "an op that is a dictionary": layer(1, op={}),
    "an op that is nothing": layer(1, op=None),
    "a huge pool": layer(8, windows=[None, [[0, 10**160]], [[0, 10**160]]]),
    "a window beyond the image": layer(8, windows=[None, [[0, 9]] * 4, [[0, 2]] * 4]),
    "a window that is empty": layer(8, windows=[None, [[2, 2]] * 4, [[0, 2]] * 4]),
    "a window before the image": layer(8, windows=[None, [[-1, 2]] * 4, [[0, 2]] * 4]),
    "windows without divisors": layer(8, windows=[None, [[0, 2]] * 3, [[0, 2]] * 4]),
    "a divisor 0": layer(8, divisors=[None, [0] * 4, [1] * 4]),
    "half a window": layer(8, windows=[None, [[0, 1.5]] * 4, [[0, 2]] * 4]),
    "an index beyond the image": layer(9, indices=[None, [0, 1, 2, 4], [0, 1, 2, 3]]),
    "an index before the image": layer(9, indices=[None, [0, 1, 2, -2], [0, 1, 2, 3]]),
    "an index that is a truth": layer(9, indices=[None, [0, 1, 2, True], [0, 1, 2, 3]]),
    "no entries": layer(9, indices=[None, [], [0, 1, 2, 3]]),
    "an order that is no permutation": layer(11, order=[0, 1, 1]),
    "another rearrangement": layer(11, shape=[145]),
    "an axis that is not there": layer(12, axis=1),
    "a direction that is a number": layer(5, descending=1),
    "numbers for a function without any": layer(7, numbers=["0x1p+0"]),
    "a function without its numbers": layer(7, op="hardtanh"),
    "an input that comes later": layer(3, inputs=["5"]),
    "itself as an input": layer(3, inputs=["3"]),
    "two inputs": layer(3, inputs=["2", "1"]),
    "no input": layer(3, inputs=[]),
    "an input that is a string": layer(3, inputs="2"),
    "a node that nothing reads": layer(3, inputs=["1"]),
    "a node called input": layer(1, name="input"),
    "a huge number": layer(10, factor="0x1p+99999999999"),
    "a factor 0": layer(10, factor="0x0p+0"),
    "a negative constant": layer(0, lipschitz="-0x1p+0"),
    "an activation that is a list": layer(1, activation=["relu"]),
    "a padding mode that is a list": layer(4, padding_mode=["zeros"]),
    "a stride beyond the image": layer(4, stride=[10**9, 10**9]),
    "a stride that crashes torch": layer(1, stride=[50_000, 50_000]),
    "a stride and a padding that crash torch": layer(1, stride=[50_000] * 2, padding=[[50_000] * 2] * 2),
    "a padding of a million": layer(1, padding=[[10**6] * 2] * 2),
    "a group of a million": layer(6, size=10**6),
    "an image of 10⁸ pixels": layer(9, indices=[None, [0] * 10_000, [0] * 10_000]),
    "a deep value": layer(10, factor=json.loads("[" * 500 + "]" * 500)),
    "a long name": layer(1, name="a" * 10**6),
    "a deep name": layer(1, name="a." * 10**5 + "a"),
    "an empty part of a name": layer(1, name="1..x"),
    "a name on two lines": layer(1, name="1\n"),
    "a name that is not text": layer(1, name="\ud800"),
    "a name of Python": layer(1, name="__class__"),
    "the tensor of another layer": layer(2, weight="1.weight"),
    "another shape of the input": lambda said: said.update(input_shape=[4, 8, 7]),
    "a huge shape": lambda said: said.update(input_shape=[4, 2**40, 2**40]),
    "no shape": lambda said: said.update(input_shape=[]),
    "a shape that is a string": lambda said: said.update(input_shape="488"),
    "empty layers": lambda said: said.update(nodes=[]),
    "a spare entry": lambda said: said.update(code="x"),
    "too many layers": lambda said: said["nodes"].extend(
        {
            "op": "relu",
            "name": f"x{i}",
            "inputs": [f"x{i - 1}" if i else "12"],
            "numbers": [],
            "lipschitz": "0x1p+0",
        }
        for i in range(10_000)
    ),
    "channels by the million": lambda said: said["nodes"].insert(
        0, first("select", indices=[[-1] * 10**6, None, None], value="0x0p+0")
    ),
    "a block by the billion": lambda said: said["nodes"].insert(
        0, first("rearrange", split=[10**9, 10**9], order=[1, 0], shape=[10**18])
    ),
    "another activation": layer(1, activation="gelu"),
    "a spare field": layer(0, code="x"),
    "a tensor that is not there": layer(1, weight="nothing"),
    "a tensor of another shape": layer(1, gamma="1.weight"),
    "groups that do not divide": layer(4, groups=3),
    "a padding without proof": layer(4, padding_mode="reflect"),
    "a factor below 0": layer(8, factor=(-0.5).hex()),
    "a factor beyond all bounds": layer(8, factor="0x1p+200"),
    "a name inside a function": layer(8, name="7.op"),
    "a matrix of a pool that fills the memory": lambda said: said["nodes"].insert(
        0,
        first(
            "pool",
            windows=[None, [[0, 8]] * 2**15, [[0, 8]] * 2**15],
            divisors=[None, [1] * 2**15, [1] * 2**15],
            factor="0x1p+0",
        ),
    ),
    "windows that fill the memory": lambda said: said.update(
        input_shape=[1, 2**20], nodes=[first("max_pool", windows=[None, [[0, 2**20, 1]] * 2**10])]
    ),
    "no number": layer(10, factor=0.7),
    "infinity": layer(10, factor="inf"),
    "a name twice": layer(1, name="0"),
    "a name that is a method": layer(1, name="forward"),
    "a name inside a layer": layer(1, name="0.weight"),
    "a layer less": lambda said: said["nodes"].pop(1) and None,
    "another order": lambda said: said["nodes"].insert(0, first("relu", name="5.x", numbers=[])),
    "no layers": lambda said: said.update(nodes=None),
    "another format": lambda said: said.update(format="lipcert-frozen-9"),
    "a list": lambda said: [1],
    "a layer that is a string": lambda said: said["nodes"].__setitem__(0, "relu"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(frozen, tmp_path, change):
    network, shape = frozen["convolutions"]
    path = tmp_path / "n.safetensors"
    export_module.write_network(path, export_module.describe(prove(network, shape)))
    load_frozen(path)
    rewritten(path, change, "lipcert_nodes")
    with pytest.raises(ValueError, match=r"node|network|tensor|certificate|file|folder|model") as refusal:
        load_frozen(path)
    assert len(str(refusal.value).splitlines()) == 1


def test_every_layer_of_the_file_is_run(tmp_path):
    """A layer named as part of another one must not be stored, certified and never run."""
    network = nn.Sequential(nn.ReLU(), lc.layers.Scale(0.5))
    path = tmp_path / "n.safetensors"
    export(lc.freeze(network), path, to="torch", input_shape=(3,))
    rewritten(path, layer(1, name="0.x.y"), "lipcert_nodes")
    x, again = torch.randn(4, 3), load_frozen(path)
    assert torch.equal(again(x), 0.5 * x.relu())
    assert 0.5 <= lc.audit(again, (3,)).lipschitz <= 0.5 * (1 + 1e-8)
    assert torch.equal(lc.freeze(again)(x), 0.5 * x.relu())
    rewritten(path, layer(1, name="0.op"), "lipcert_nodes")  # a name that the layer above has already
    with pytest.raises(ValueError, match=r"torch allows; got .*op"):
        load_frozen(path)


def test_a_name_twice_in_the_json_is_refused(frozen, tmp_path):
    network, shape = frozen["convolutions"]
    path = tmp_path / "n.safetensors"
    export_module.write_network(path, export_module.describe(prove(network, shape)))
    header, data = split(path)
    note = header["__metadata__"]["lipcert_nodes"].replace('"op": "relu"', '"op": "abs", "op": "relu"')
    assert "abs" in note
    header["__metadata__"]["lipcert_nodes"] = note
    path.write_bytes(joined(header, data))
    with pytest.raises(ValueError, match="is no network exported by lipcert"):
        load_frozen(path)


def joined(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


BAD_TENSORS = {
    "int64": lambda t: t.long(),
    "bool": lambda t: t.bool(),
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "uint8": lambda t: t.byte(),
    "float64": lambda t: t.double(),
    "no entries": lambda t: t[:0],
    "no axes": lambda t: t.flatten()[0],
    "another axis": lambda t: t[None],
    "NaN": lambda t: t * math.nan,
    "infinity": lambda t: t + math.inf,
}


@pytest.mark.parametrize("change", BAD_TENSORS.values(), ids=BAD_TENSORS)
@pytest.mark.parametrize("certified", [False, True], ids=["plain", "certified"])
def test_a_tensor_of_another_kind_is_refused(run, tmp_path, change, certified):
    folder = copied(run, tmp_path)
    tensors = load_file(folder / "frozen.safetensors")
    tensors["1.weight"] = change(tensors["1.weight"]).contiguous()
    content = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    if change(torch.ones(1)).dtype in (torch.float32, torch.float64):
        content["tensors"]["1.weight"] = sha256_of(tensors["1.weight"])
    path = folder
    if certified:
        save_file(tensors, folder / "frozen.safetensors")
        (folder / "certificate.json").write_text(json.dumps(content), encoding="utf-8")
    else:
        path = tmp_path / "n.safetensors"
        said = {"format": "lipcert-frozen-2", "input_shape": [1, 8, 8], "nodes": content["nodes"]}
        save_file(tensors, path, metadata={"lipcert_nodes": json.dumps(said)})
    with pytest.raises(ValueError, match=r"node|network|tensor|certificate|file") as refusal:
        load_frozen(path)
    assert len(str(refusal.value).splitlines()) == 1


BAD_CERTIFICATES = {
    "no weights": lambda said: said.pop("weights"),
    "weights that are a list": lambda said: said.update(weights=["x"]),
    "weights elsewhere": lambda said: said.update(weights="../frozen.safetensors"),
    "weights that are a folder": lambda said: said.update(weights="folder"),
    "weights that are not there": lambda said: said.update(weights="x.safetensors"),
    "no norm": lambda said: said.pop("norm"),
    "another norm": lambda said: said.update(norm="L3"),
    "another arithmetic": lambda said: said.update(arithmetic="float16"),
    "no assumptions": lambda said: said.pop("assumes"),
    "assumptions that are a string": lambda said: said.update(assumes="tanh within 8 ulp"),
    "assumptions that are numbers": lambda said: said.update(assumes=[8]),
    "assumptions that are not text": lambda said: said.update(assumes=["\ud800"]),
    "a huge shape": lambda said: said.update(input_shape=[10**6] * 3),
    "a shape that is a dictionary": lambda said: said.update(input_shape={}),
    "no inputs": lambda said: said.update(inputs=None),
    "no file": lambda said: said["inputs"].pop("file"),
    "another divisor": lambda said: said["inputs"].update(divide_by=[255]),
    "more claims than inputs": lambda said: said["inputs"].update(count=1),
    "a claim that is a string": lambda said: said.update(claims=["ab1"]),
    "an infinite radius": lambda said: said["claims"][0].__setitem__(2, "inf"),
    "a constant that is not a number": lambda said: said.update(lipschitz="nan"),
    "tensors that are a list": lambda said: said.update(tensors=[]),
    "another hash": lambda said: said["tensors"].update({"1.weight": "0" * 64}),
    "a layer that is a list": lambda said: said.update(nodes=[[]]),
    "another layer": lambda said: said["nodes"][0].update(op="relu"),
}


@pytest.mark.parametrize("change", BAD_CERTIFICATES.values(), ids=BAD_CERTIFICATES)
def test_a_malformed_certificate_is_refused_in_one_line(run, tmp_path, change):
    folder = copied(run, tmp_path)
    (folder / "folder").mkdir()
    content = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    change(content)
    (folder / "certificate.json").write_text(json.dumps(content), encoding="utf-8")
    for load in (load_frozen, lc.CertifiedModel, lc.CertifiedModel.from_pretrained):
        with pytest.raises(ValueError, match=r"node|network|tensor|certificate|file|folder|model") as refusal:
            load(folder)
        assert len(str(refusal.value).splitlines()) == 1


ODD_VALUES = (None, True, 0, -1, 3, 10**12, 10**400, 0.5, math.nan, "", "nan", "0x1p+0", "relu", "tanh", "0.weight")
ODD_VALUES += (
    "__class__",
    "a.",
    "\ud800",
    "x" * 9999,
    [],
    {},
    [1, 1],
    [10**160, 10**160],
    [[[[]]]],
    {"op": "relu"},
)


def random_change(content, rng):
    """Change, remove or add one value somewhere in a JSON document."""
    places = [(content, key) for key in content]
    for place, key in places:  # the list grows on the way
        value = place[key]
        if isinstance(value, dict | list):
            places += [(value, inner) for inner in (value if isinstance(value, dict) else range(len(value)))]
    place, key = rng.choice(places)
    kind = rng.choice(["change", "change", "change", "remove", "add", "copy"])
    if kind == "remove":
        del place[key]
    elif kind == "add" and isinstance(place, dict):
        place[rng.choice(["", "op", "name", "x", "bias"])] = copy.deepcopy(rng.choice(ODD_VALUES))
    elif kind == "add":
        place.insert(key, copy.deepcopy(rng.choice(ODD_VALUES)))
    elif kind == "copy":
        source, other = rng.choice(places)
        place[key] = copy.deepcopy(source[other]) if other in (source if isinstance(source, dict) else ()) else 1
    else:
        place[key] = copy.deepcopy(rng.choice(ODD_VALUES))


def small_network():
    layers = [
        lc.layers.Normalize([0.5] * 2, [0.5, 1.0]),
        lc.ResidualConv2d(2, 3, 3, padding_mode="circular"),
        lc.layers.ScaledAvgPool2d(2),
        nn.Sequential(lc.layers.PadChannels(4), lc.layers.GroupSort(2)),
        lc.layers.SpaceToDepth(2),
        nn.Flatten(),
        lc.ResidualLinear(64, 4),
        lc.NormalizedHead(64, 3),
    ]
    return lc.freeze(randomized(nn.Sequential(*layers))), (2, 8, 8)


@pytest.mark.parametrize("certified", [False, True], ids=["plain", "certified"])
def test_random_changes_of_the_header_raise_nothing_but_value_errors(tmp_path, certified):
    """A short version of a search over more than 30,000 files; whatever loads can be run and audited."""
    torch.manual_seed(0)
    network, shape = small_network()
    links, x, path = prove(network, shape), example_inputs(shape, 4), tmp_path / "n.safetensors"
    write_certificate(tmp_path, links, network, x, certify(links, x, network(x).argmax(dim=1)))
    certificate = Certificate.of_folder(tmp_path) if certified else None
    export_module.write_network(path, export_module.describe(links), certificate)
    header, data = split(path)
    note = "lipcert_certificate" if certified else "lipcert_nodes"
    original = header["__metadata__"][note]
    rng, loaded, messages = random.Random(0), 0, []
    for _ in range(400):
        content = json.loads(original)
        for _ in range(rng.choice([1, 1, 2])):
            random_change(content, rng)
        text = json.dumps(content)
        header["__metadata__"] = {
            note: text,
            "lipcert_certificate_sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        path.write_bytes(joined(header, data))
        try:
            again = load_frozen(path)
        except ValueError as refusal:
            messages.append(str(refusal))
            continue
        loaded += 1
        found = exported_shape(path)
        assert again(torch.rand(2, *found)).shape[0] == 2
        if loaded % 2:
            lc.audit(again, found, samples=1)
    assert loaded > 5  # some numbers may be others
    assert max(map(len, messages)) < 800
    assert all(len(message.splitlines()) == 1 for message in messages)


def test_damaged_and_foreign_files_are_refused(run, tmp_path):
    good = tmp_path / "c.safetensors"
    Export(run, to="safetensors", out=good).run()
    whole = good.read_bytes()
    for bad in (whole[:-1], whole[:50], b"", whole + b"\0", whole[:-1] + bytes([whole[-1] ^ 1])):
        good.write_bytes(bad)
        with pytest.raises(ValueError, match=r"node|network|tensor|certificate|file"):
            load_frozen(good)
    good.write_bytes(whole)
    rewritten(good, lambda said: said["inputs"].update(about="better data"), "lipcert_certificate")
    with pytest.raises(ValueError, match="sha256"):
        load_frozen(good)
    for path in (tmp_path, tmp_path / "nothing", run / "model.safetensors"):
        with pytest.raises(ValueError, match=r"node|network|tensor|certificate|file"):
            load_frozen(path)


# --- The hub ---


def test_the_hub_folder_says_checks_and_loads(run, tmp_path, monkeypatch):
    model = lc.CertifiedModel(run)
    folder = tmp_path / "hub"
    model.save_pretrained(folder)
    names = ("README.md", "certificate.inputs.safetensors", "certificate.json", "check.py", "config.json")
    assert no_leftovers(folder, *names, "model.safetensors")
    text = "".join((folder / name).read_text(encoding="utf-8") for name in ("README.md", "config.json"))
    assert str(run.parent) not in text
    checked = subprocess.run(
        [sys.executable, "-I", "check.py", "certificate.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Explosive()))
    with monkeypatch.context() as patch:
        for place, name in ((torch, "load"), (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
            patch.setattr(place, name, Explosive.explode)
        again = lc.CertifiedModel.from_pretrained(folder)
    x = example_inputs((1, 8, 8))
    assert torch.equal(again(x), model(x))
    assert not again.training
    again.save_pretrained(tmp_path / "second")
    assert (tmp_path / "second" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (tmp_path / "second" / "README.md").read_text("utf-8") == (folder / "README.md").read_text("utf-8")


class Explosive:
    @staticmethod
    def explode(*_, **__):
        raise AssertionError("something was unpickled")

    def __reduce__(self):
        return Explosive.explode, ()


BAD_CONFIGS = {
    "a folder": b'{"folder": "/etc"}',
    "a list": b"[1]",
    "a string": b'"x"',
    "nothing": b"null",
    "an empty file": b"",
    "another format": b"library: lipcert",
    "no text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "another shape": b'{"library": "lipcert", "input_shape": [3, 32, 32]}',
    "another field": b'{"library": "lipcert", "input_shape": [1, 8, 8], "network": "x"}',
    "a field twice": b'{"library": "x", "library": "lipcert", "input_shape": [1, 8, 8]}',
    "a huge number": b'{"library": "lipcert", "input_shape": [' + b"9" * 5000 + b"]}",
    "a folder instead of a file": None,
}


@pytest.mark.parametrize("content", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_config_that_says_something_else_is_refused_in_one_line(run, tmp_path, content):
    folder = tmp_path / "hub"
    lc.CertifiedModel(run).save_pretrained(folder)
    (folder / "config.json").unlink()
    lc.CertifiedModel.from_pretrained(folder)
    if content is None:
        (folder / "config.json").mkdir()
    else:
        (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json must hold .*input_shape.*; got .* Delete it") as refusal:
        lc.CertifiedModel.from_pretrained(folder)
    assert len(str(refusal.value).splitlines()) == 1


def test_what_is_not_the_folder_of_a_model_is_refused_in_one_line(run, tmp_path):
    folder = tmp_path / "hub"
    lc.CertifiedModel(run).save_pretrained(folder)
    for path in (folder / "config.json", folder / "model.safetensors", tmp_path, "not/a/model", "a b"):
        for load in (lc.CertifiedModel, lc.CertifiedModel.from_pretrained):
            with pytest.raises(ValueError, match=r"certificate|file|folder|model") as refusal:
                load(path)
            assert len(str(refusal.value).splitlines()) == 1
    for name in ("model.safetensors", "certificate.json"):
        changed = Path(shutil.copytree(folder, tmp_path / f"without-{name}"))
        (changed / name).unlink()
        for _ in range(2):  # missing, then a folder
            with pytest.raises(ValueError, match=rf"{name}.*got|got.*{name}|holds no {name}"):
                lc.CertifiedModel.from_pretrained(changed)
            (changed / name).mkdir(exist_ok=True)


def test_the_card_names_the_assumptions(run, tmp_path):
    network, shape = with_activations("tanh", "tanh", "tanh")
    links, x = prove(network, shape), example_inputs(shape, 4)
    write_certificate(tmp_path, links, network, x, certify(links, x, network(x).argmax(dim=1)))
    assert Certificate.of_folder(tmp_path).assumes == ("tanh within 8 ulp",)
    card = " ".join(lc.CertifiedModel(tmp_path).generate_model_card().content.split())
    assert (
        "The certificate assumes that the platform computes tanh within 8 units in the last place; the checker "
        "verifies everything else." in card
    )
    content = Certificate.of_folder(tmp_path).content
    content["assumes"] = ["elu within 8 ulp", "tanh within 8 ulp"]
    (tmp_path / "certificate.json").write_text(json.dumps(content))
    card = " ".join(lc.CertifiedModel(tmp_path).generate_model_card().content.split())
    assert "elu within 8 units in the last place and tanh within 8 units in the last place;" in card
    assert Certificate.of_folder(run).assumes == ()
    assert "assumes" not in lc.CertifiedModel(run).generate_model_card().content


def test_the_card_states_the_guarantee(run):
    from huggingface_hub import ModelCard

    card = lc.CertifiedModel(run).generate_model_card()
    assert isinstance(card, ModelCard)
    assert card.data.library_name == "lipcert"
    certificate = Certificate.of_folder(run)
    claims = certificate.content["claims"]
    for said in (
        "L2",
        "float64",
        repr(certificate.lipschitz),
        "digits test: 12 inputs",
        "python check.py certificate.json",
    ):
        assert said in card.content
    assert "## What is not claimed" in card.content
    rows = [line for line in card.content.splitlines() if line.startswith("| ") and "any" not in line]
    shares = [float(cell) for cell in rows[-1].strip("| ").split("|")]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(100 * len(claims) / 12, abs=0.005)
    half = sum(float.fromhex(radius) > 36 / 255 for _, _, radius in claims)
    assert shares[1] == pytest.approx(100 * half / 12, abs=0.005)


def test_a_changed_hub_folder_is_refused(run, tmp_path):
    model = lc.CertifiedModel(run)
    folder = tmp_path / "hub"
    model.save_pretrained(folder)
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(raw))
    with pytest.raises(ValueError, match="tensors of its certificate"):
        lc.CertifiedModel.from_pretrained(folder)
    text = (folder / "certificate.json").read_text(encoding="utf-8")
    (folder / "certificate.json").write_text(text.replace('"model.safetensors"', '"../run/x"'), encoding="utf-8")
    with pytest.raises(ValueError, match="own folder"):
        lc.CertifiedModel.from_pretrained(folder)
    next(op for op in model.network if getattr(op, "bias", None) is not None).bias[0] += 1
    with pytest.raises(ValueError, match="the certified one"):
        model.save_pretrained(tmp_path / "other")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in run.iterdir())
    for target in (run, copied(run, tmp_path)):
        (target / "metrics.jsonl").touch() if target != run else None
        with pytest.raises(ValueError, match="in use"):
            model.save_pretrained(target)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in run.iterdir()) == before


def test_push_to_hub_uploads_that_folder(run, tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    class Repository:
        repo_id = "someone/model"

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: Repository)
    monkeypatch.setattr(
        HfApi,
        "upload_folder",
        lambda self, *, folder_path, **_: shutil.copytree(folder_path, tmp_path / "uploaded"),
    )
    model = lc.CertifiedModel(run)
    model.push_to_hub("someone/model")
    again = lc.CertifiedModel.from_pretrained(tmp_path / "uploaded")
    x = example_inputs((1, 8, 8))
    assert torch.equal(again(x), model(x))
    shutil.rmtree(tmp_path / "uploaded")
    again.folder = run  # what was loaded can be pushed
    again.push_to_hub("someone/model")
    assert (tmp_path / "uploaded" / "certificate.json").is_file()
