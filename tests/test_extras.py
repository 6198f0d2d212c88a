"""`pip install lipcert` brings six packages: what works with them, and what the rest says without its extra."""

import re
import subprocess
import sys
import tomllib

import pytest

from lipcert.errors import EXTRAS, MissingExtra, name_extra
from paths import ROOT

SIX = {"torch", "numpy", "safetensors", "pydantic", "tyro", "rich"}
IMPORTS = {"pillow": "PIL", "vl-convert-python": "vl_convert"}  # where the package has another name


def names(requirements):
    return {re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in requirements}


def run(code, folder, missing=tuple(EXTRAS)):
    """Run ``code`` as if the packages ``missing`` were not installed."""
    block = f"import sys; sys.modules.update(dict.fromkeys({missing}))\n"
    command = [sys.executable, "-W", "ignore", "-c", block + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_table_of_extras_is_that_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert names(project["dependencies"]) == SIX
    optional = project["optional-dependencies"]
    for extra in ("train", "attack", "report", "export", "cluster"):
        packages = {IMPORTS.get(name, name) for name in names(optional[extra])}
        assert packages == {name for name, where in EXTRAS.items() if where == extra}
    assert optional["all"] == ["lipcert[train,attack,report,export,cluster]"]
    assert "lipcert[all,docs,foreign]" in optional["dev"]


def test_the_library_and_the_checker_work_with_six_packages(tmp_path):
    code = """
import torch
from torch import nn
import lipcert as lc
from lipcert.certified.certificate import write_certificate
from lipcert.certified.freeze import prove

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), lc.ResidualLinear(4, 8), lc.NormalizedHead(4, 3)).eval()
lc.losses.OffsetCrossEntropy()(model(torch.rand(8, 1, 2, 2)), torch.arange(8) % 3).backward()
frozen = lc.freeze(model)
assert lc.audit(frozen, (1, 2, 2)).ok
images = torch.randint(0, 256, (4, 1, 2, 2), dtype=torch.uint8)
links = prove(frozen, (1, 2, 2))
result = lc.certify(links, images.double() / 255, torch.arange(4) % 3)
from pathlib import Path
write_certificate(Path("."), links, frozen, images, result, about="test")
lc.export(frozen, "frozen.safetensors", to="torch", input_shape=(1, 2, 2))
assert lc.create_model("sll_nano") is not None
from lipcert.cli import main
for words in (["check", "."], ["audit", "frozen.safetensors"], ["models", "sll_nano"]):
    sys.argv = ["lipcert", *words]
    try: main()
    except SystemExit as end: assert end.code == 0, words
"""
    result = run(code, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["report", "."], "report"),
        (["train", "--out", "run"], "train"),
        (["attack", "."], "attack"),
    ],
)
def test_a_command_without_its_extra_names_it(tmp_path, words, extra):
    code = f"from lipcert.cli import main\nsys.argv = ['lipcert', *{words}]\nmain()"
    result = run(code, tmp_path, tuple(name for name, where in EXTRAS.items() if where == extra))
    assert result.returncode == 2
    sentence = f"lipcert {words[0]} needs the extra '{extra}': pip install 'lipcert[{extra}]'"
    assert result.stderr == f"lipcert: {sentence}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_public_name_without_its_extra_names_it(tmp_path):
    code = """
import lipcert as lc
try: lc.attack
except ImportError as error: print(error)
"""
    result = run(code, tmp_path)
    assert result.stdout == "lipcert.attack needs the extra 'attack': pip install 'lipcert[attack]'\n", (
        result.stderr
    )


def test_other_missing_modules_stay_what_they_are():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), name_extra("x"):
        import no_such_module  # noqa: F401
    message = r"x needs the extra 'export': pip install 'lipcert\[export\]'"
    with pytest.raises(MissingExtra, match=message), name_extra("x"):
        raise ModuleNotFoundError("No module named 'onnx.helper'", name="onnx.helper")
