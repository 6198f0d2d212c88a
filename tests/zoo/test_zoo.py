"""Trained networks: every certificate holds for the checker alone, and networks are found or the cure is named."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import lipcert as lc
from lipcert.errors import DataNotFound
from lipcert.exporters.files import Certificate
from lipcert.models.build import parameters
from lipcert.models.presets import model_spec
from lipcert.zoo import FILE, HERE, list_pretrained, load_pretrained, read_entry
from paths import ROOT
from processes import command

FOLDERS = {**list_pretrained(HERE), **list_pretrained(ROOT / "zoo")}


def script():
    spec = importlib.util.spec_from_file_location("make_zoo", ROOT / "benchmarks" / "zoo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_digits_are_inside_the_package():
    assert FOLDERS["digits"] == HERE / "digits"
    assert sum(path.stat().st_size for path in FOLDERS["digits"].iterdir()) < 2e6


@pytest.mark.parametrize("name", FOLDERS)
def test_a_copy_of_the_checker_accepts_the_certificate(name, tmp_path):
    shutil.copy(ROOT / "src" / "lipcert" / "check.py", tmp_path)
    folder = shutil.copytree(FOLDERS[name], tmp_path / name)
    words = [sys.executable, "-I", "check.py", f"{name}/certificate.json", "--json"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["ok"] is True
    content = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    index, label, radius = content["claims"][0]
    content["claims"][0] = [index, label, (1.001 * float.fromhex(radius)).hex()]
    (folder / "certificate.json").write_text(json.dumps(content), encoding="utf-8")
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("name", FOLDERS)
def test_the_entry_agrees_with_the_certificate(name):
    folder = FOLDERS[name]
    entry, certificate, zoo = read_entry(folder), Certificate.of_folder(folder), script()
    shape = {"image_shape": certificate.input_shape, "num_classes": len(entry.classes)}
    assert parameters(model_spec(entry.model, **shape, **entry.overrides)) == entry.parameters
    assert certificate.content["inputs"]["about"].startswith(f"{entry.data} test")
    shares = [entry.natural, *entry.certified.values()]
    assert shares == sorted(shares, reverse=True)
    if certificate.content["inputs"]["count"] == entry.examples:
        for radius, share in entry.certified.items():
            assert certificate.certified_accuracy(zoo.RADII[radius]) == pytest.approx(share, abs=1e-12)
    assert (folder / "README.md").read_text(encoding="utf-8") == zoo.card(folder)
    assert torch.float16 in {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()}


def test_the_page_of_the_zoo_is_generated_and_the_zoo_is_small():
    zoo = script()
    assert (ROOT / "zoo" / "README.md").read_text(encoding="utf-8") == zoo.readme(FOLDERS)
    files = [path for folder in FOLDERS.values() for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 30e6


def test_create_model_gives_the_certified_network():
    network = lc.create_model("sll_nano", pretrained="digits")
    data = lc.load_data("digits", "test")
    found = load_pretrained("digits")
    result = lc.certify(network, data.inputs(), data.labels)
    assert result.natural_accuracy == found.entry.natural
    claims = {index: float.fromhex(radius) for index, _, radius in found.certificate.content["claims"]}
    again = {index: radius for index, radius in enumerate(result.radii.tolist()) if radius > 0}
    assert again == pytest.approx(claims, rel=1e-9)
    with pytest.raises(ValueError, match=r"is sll_nano, got 'sll_tiny'\. Call create_model\('sll_nano'"):
        lc.create_model("sll_tiny", pretrained="digits")
    with pytest.raises(ValueError, match="got dense_layers"):
        lc.create_model("sll_nano", pretrained="digits", dense_layers=2)
    with pytest.raises(ValueError, match="Pass pretrained too"):
        lc.create_model("sll_nano", zoo="zoo")


def test_a_network_is_found_in_a_folder_or_its_cure_is_named(tmp_path, monkeypatch):
    shutil.copytree(FOLDERS["digits"], tmp_path / "mine")
    x = torch.rand(2, 1, 8, 8)
    expected = lc.create_model("sll_nano", pretrained="digits")(x)
    assert torch.equal(lc.create_model("sll_nano", pretrained="mine", zoo=tmp_path)(x), expected)
    assert torch.equal(lc.create_model("sll_nano", pretrained=str(tmp_path / "mine"))(x), expected)
    with pytest.raises(
        DataNotFound, match=r"no trained network 'mine'.*There are: .*digits.*LIPCERT_ZOO"
    ) as refusal:
        load_pretrained("mine")
    assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(DataNotFound, match=r"did you mean 'mine'\? It has mine\."):
        load_pretrained("mini", tmp_path)
    monkeypatch.setenv("LIPCERT_ZOO", str(tmp_path))
    assert load_pretrained("mine").folder == tmp_path / "mine"
    assert load_pretrained("digits").folder == HERE / "digits"


def test_the_hub_gives_a_network_with_its_classes(tmp_path, monkeypatch):
    from lipcert.exporters import hub

    lc.CertifiedModel(FOLDERS["digits"]).save_pretrained(tmp_path / "uploaded")
    asked = []

    def download(name, *, allow_patterns, **_):
        asked.append(name)
        folder = tmp_path / "cache"
        shutil.copytree(tmp_path / "uploaded", folder, ignore=lambda _, names: [
            name for name in names if not any(name == p or name.endswith(p.lstrip("*")) for p in allow_patterns)
        ])  # fmt: skip
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", download)
    found = load_pretrained("someone/model")
    assert asked == ["someone/model"]
    assert found.classes == tuple("0123456789")
    assert lc.verify(tmp_path / "uploaded").ok


BAD = {
    "no JSON": "x",
    "another format": '{"format": "lipcert-zoo-9"}',
    "a field too much": lambda said: {**said, "run": "rm"},
    "another number of classes": lambda said: {**said, "classes": ["a", "b"]},
    "a share above 1": lambda said: {**said, "natural": 1.5},
    "classes with control characters": lambda said: {**said, "classes": ["\x1b[2J"] * 10},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_bad_entry_is_refused_in_one_sentence(change, tmp_path):
    folder = shutil.copytree(FOLDERS["digits"], tmp_path / "digits")
    said = json.loads((folder / FILE).read_text(encoding="utf-8"))
    (folder / FILE).write_text(change if isinstance(change, str) else json.dumps(change(said)), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{FILE}.*Fetch it again") as refusal:
        load_pretrained("digits", tmp_path)
    assert len(str(refusal.value).splitlines()) == 1


def test_the_command_lists_trained_networks(tmp_path):
    result = command("models", "--pretrained", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["digits"]["model"] == "sll_nano"
    shown = command("models", "--pretrained").stdout
    assert "digits" in shown
    for words in (["--pretrained", "--zoo", tmp_path], ["nothing", "--pretrained"], ["--zoo", tmp_path]):
        result = command("models", *words)
        assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)


def test_torch_hub_loads_a_network():
    code = (
        "import torch; network = torch.hub.load('.', 'digits', source='local');"
        "print(tuple(network(torch.rand(2, 1, 8, 8)).shape))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "(2, 10)" in result.stdout
