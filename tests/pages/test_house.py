"""The house: imports follow the picture, documentation runs, the command line and the wheel work."""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lipcert.cli import COMMANDS
from paths import ROOT
from processes import ENVIRONMENT, command, program

SOURCE = ROOT / "src" / "lipcert"


def arrows():
    """Room → rooms it may import, from the table in docs/architecture.md."""
    table = {}
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 2 and re.fullmatch(r"`[a-z_]+`", cells[0]):
            table[cells[0].strip("`")] = set(re.findall(r"`([a-z_]+)`", cells[1])) | (
                {"everything"} if "everything" in cells[1] else set()
            )
    return table


def room(parts):
    return Path(parts[0]).stem


def imported_rooms(path):
    """Every room of lipcert that a file imports, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full, so that this test can read them"
            names = [
                f"{node.module}.{alias.name}" if node.module == "lipcert" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("lipcert."):
                yield name.split(".")[1]
            elif name == "lipcert":
                yield "the public names"


def test_imports_follow_the_picture():
    allowed = arrows()
    found = {room(p.relative_to(SOURCE).parts) for p in SOURCE.rglob("*.py")} - {"__init__", "__main__"}
    assert set(allowed) == found, "docs/architecture.md and src/lipcert list different rooms"
    for path in SOURCE.rglob("*.py"):
        here = room(path.relative_to(SOURCE).parts)
        if here in ("__init__", "__main__") or "everything" in allowed[here]:
            continue
        there = set(imported_rooms(path)) - {here, "errors"}
        assert there <= allowed[here], f"{path.relative_to(ROOT)} imports {sorted(there - allowed[here])}"


def test_nobody_imports_the_command_line():
    for path in SOURCE.rglob("*.py"):
        if path.parent != SOURCE / "cli" and path != SOURCE / "__main__.py":
            assert "cli" not in set(imported_rooms(path)), path


def test_every_module_says_what_it_is():
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if "```python" in page.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    code = "import torch; torch.manual_seed(0)\n" + "\n".join(blocks)
    result = program(code, new=page.name == "README.md" or "sys.modules" in code)
    assert result.returncode == 0, result.stderr


def test_the_readme_has_code():
    assert ROOT / "README.md" in PAGES


def test_the_readme_shows_what_the_results_hold():
    shown = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- results/demo.txt -->\n```text\n")[1]
    assert shown.startswith((ROOT / "results" / "demo.txt").read_text(encoding="utf-8").rstrip("\n"))


def test_help_lists_the_commands_without_torch():
    result = command("--help")
    assert result.returncode == 0
    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)
    assert max(map(len, result.stdout.splitlines())) <= 80
    code = (  # each command's own help too: what it needs to say what it takes
        "import contextlib, io, os, sys, lipcert.cli\n"
        "os.environ['COLUMNS'] = '80'\n"
        "for words in ([], *([name] for name in lipcert.cli.COMMANDS)):\n"
        "    sys.argv = ['lipcert', *words, '--help']\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as said:\n"
        "        try: lipcert.cli.main()\n"
        "        except SystemExit as end: assert not end.code and said.getvalue().startswith('usage: lipcert')\n"
        "        else: raise AssertionError(words)\n"
        "    lines = [line for line in said.getvalue().splitlines() if not line.startswith('usage:')]\n"
        "    assert max(map(len, lines)) <= 80, words\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--epochs", "0"], ["demo", "--epochs", "many"], ["demo", "--epoch", "1"], ["prove"],
        ["bench", "nope"], ["bench", "--repeats", "0"],
        ["certify"], ["train", "--epochs", "-1"], ["train", "--learning-rate", "nan"], ["train", "--loss", "nope"],
        ["train", "--model", "nope"], ["compare", "--jobs", "0"], ["compare", "--seconds", "5", "--epochs", "1"],
        ["compare", "--learning-rates", "nan"], ["compare", "--attack-examples", "0"], ["data", "nope"],
        ["compare", "--data", "nope", "--out", "runs/nope"], ["attack", "nope"], ["certify", "nope"], ["reproduce"],
    ],
)  # fmt: skip
def test_bad_usage_is_exit_code_2_without_a_traceback(words):
    result = command(*words)
    assert result.returncode == 2
    assert result.stderr.startswith("lipcert: ")
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout
    assert not Path("runs/nope").exists()


def test_bench_measures_named_networks():
    result = command("bench", "sll_nano", "cayley_nano", "--image-shape", "1", "8", "8", "--repeats", "1", "--json")
    rows = json.loads(result.stdout)["rows"]
    assert [row["model"] for row in rows] == ["sll_nano", "cayley_nano"]
    assert all(0 < row["inference_seconds"] < row["step_seconds"] for row in rows)


def test_demo_is_the_whole_story_in_one_table(tmp_path):
    out = os.path.relpath(tmp_path / "run")
    result = command("demo", "--epochs", "2", "--out", out)
    assert result.returncode == 0, result.stderr
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80  # the last line is a path
    assert result.stdout.splitlines()[-1].endswith(f"{out}/report.html")
    rows = [re.split(r"\s*│\s*", line.strip("│ ")) for line in result.stdout.splitlines() if line.startswith("│")]
    assert "\x1b" not in result.stdout
    shares = {name: [float(number) for number in numbers] for name, *numbers in rows}
    everywhere, certified, attacked = shares.values()
    for line in (everywhere, certified, attacked):
        assert line == sorted(line, reverse=True)  # natural first, then falling with the radius
    assert all(low <= high for low, high in zip(certified, attacked, strict=True))
    log = (tmp_path / "run" / "demo.log").read_text(encoding="utf-8")
    typed = [line.split()[2] for line in log.splitlines() if line.startswith("$ lipcert ")]
    assert typed == ["train", "audit", "certify", "check", "attack", "report"]
    for name in ("audit.json", "certificate.json", "certified.jsonl", "attack-quick.jsonl", "report.html"):
        assert (tmp_path / "run" / name).is_file()
    again = command("demo", "--epochs", "2", "--out", out)
    assert (tmp_path / "run-2" / "report.html").is_file()  # a demo never replaces a folder
    assert again.stdout.replace("run-2", "run") == result.stdout  # a seed decides everything


def test_every_command_speaks_json(tmp_path):
    run = str(tmp_path / "run")
    flags = ["--model", "sll_nano", "--steps", "3", "--batch-size", "64", "--out", run]
    said = {
        words[0]: json.loads(command(*words, "--json").stdout)
        for words in (
            ["train", *flags],
            ["certify", run, "--examples", "20"],
            ["audit", run],
            ["check", run],
            ["attack", run, "--method", "pgd", "--examples", "4", "--eps", "36/255"],
            ["export", run, "--to", "torch"],
            ["models", "sll_tiny"],
            ["report", run],
        )
    }
    assert said["train"]["step"] == 3
    assert said["certify"]["examples"] == 20
    assert said["audit"] == json.loads((tmp_path / "run" / "audit.json").read_text())
    assert said["check"]["ok"] is True
    assert said["attack"] == json.loads((tmp_path / "run" / "attack-pgd.json").read_text())
    assert said["export"]["lipschitz"] <= 1
    assert said["models"]["sll_tiny"]["channels"] == 64
    assert said["report"]["runs"][0]["name"] == "run"
    assert json.loads(command("data", "list", "--json").stdout)["digits"]["prepared"] is True


def test_wheel_is_complete_and_imports(tmp_path):
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(ROOT),
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("lipcert-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"lipcert/py.typed", "lipcert/data/digits.npz", "lipcert/reports/report.html.jinja"} <= set(names)
    assert all(name.startswith(("lipcert/", "lipcert-")) for name in names)
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import json, lipcert as lc; from lipcert.data.registry import load_data;"
        "layer = lc.ResidualLinear(2, 2);"
        "print(json.dumps([lc.__file__, len(load_data('digits', 'test').labels), layer.lipschitz_bound()]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        check=True,
    )
    where, count, constant = json.loads(result.stdout)
    assert where.startswith(str(tmp_path))
    assert (count, constant) == (397, 1.0)
