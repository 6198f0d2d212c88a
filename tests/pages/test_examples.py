"""Every example runs in a process of its own, is short, and ends with a number."""

import os
import re
import subprocess
import sys

import pytest

from paths import ROOT
from processes import ENVIRONMENT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FEW = {"quickstart": "60", "compare_methods": "5"}  # steps


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_example_runs(example, tmp_path):
    source = example.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 80
    words = [FEW[example.stem]] if example.stem in FEW else []
    paths = os.pathsep.join([str(ROOT / "src"), ENVIRONMENT.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, str(example), *words],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "PYTHONPATH": paths},
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"\d", result.stdout.splitlines()[-1])
    assert (tmp_path / "certified.html").exists() == (example.stem == "quickstart")


def test_the_four_examples_are_there():
    assert {example.stem for example in EXAMPLES} == {"quickstart", "own_network", "compare_methods", "own_data"}
