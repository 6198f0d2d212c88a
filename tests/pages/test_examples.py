"""Every example runs in a process of its own, is short, says what it shows, and ends with a number or a figure."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest

from paths import ROOT, TESTS
from processes import ENVIRONMENT, program

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run(folder, *words):
    paths = os.pathsep.join([str(ROOT / "src"), ENVIRONMENT.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "PYTHONPATH": paths},
        cwd=folder,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_script_runs(script, tmp_path):
    source = script.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 80
    assert f"Run: python examples/{script.name}" in ast.get_docstring(ast.parse(source))
    result = program(source, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"\d", result.stdout.splitlines()[-1])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_notebook_runs_from_a_clean_kernel(notebook, tmp_path):
    out = tmp_path / notebook.name
    run(tmp_path, TESTS / "notebooks.py", "--out", out, notebook)
    shown, new = (json.loads(path.read_text(encoding="utf-8"))["cells"] for path in (notebook, out))
    assert [cell["source"] for cell in shown] == [cell["source"] for cell in new]
    assert shown[0]["source"][0].startswith("# ")  # a title, and below it what the notebook shows
    for stored, computed in zip(shown, new, strict=True):
        assert kinds(stored) == kinds(computed), "run python tests/notebooks.py examples/*.ipynb"
    code = [cell for cell in new if cell["cell_type"] == "code"]
    assert "image/svg+xml" in code[-1]["outputs"][-1]["data"]
    said = [output for cell in code for output in cell["outputs"] if output.get("name") == "stderr"]
    assert not said, "a warning would stand in the notebook"


def kinds(cell):
    return [(output["output_type"], *output.get("data", ())) for output in cell.get("outputs", [])]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_outputs_are_small_and_name_no_folder(notebook):
    text = notebook.read_text(encoding="utf-8")
    assert len(text) < 40_000
    assert "site-packages" not in text
    cells = json.loads(text)["cells"]
    assert [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"] == list(
        range(1, 1 + sum(cell["cell_type"] == "code" for cell in cells))
    )


def test_every_example_is_named_in_the_documentation():
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    for example in [*SCRIPTS, *NOTEBOOKS]:
        assert example.name in text, f"no page names examples/{example.name}"
    assert {notebook.stem for notebook in NOTEBOOKS} == {"quickstart", "own_network", "compare_methods"}


def test_the_page_of_uses_shows_what_was_measured():
    record = json.loads((ROOT / "results" / "uses.json").read_text(encoding="utf-8"))
    measured = "\n".join(line for example in record["examples"].values() for line in example["printed"])
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").split("\n## Other uses\n")[1]
    figures = re.findall(r"\d+\.\d+", page)
    assert len(figures) > 10
    assert not [figure for figure in figures if figure not in measured]
    assert record["command"] in page
