"""The command line: what is printed, one line per mistake, exit codes, and what is suggested."""

import io
import json
import os
import re
import subprocess
import sys

import pytest

import lipcert as lc
from lipcert.cli import COMMANDS, common, main
from lipcert.cli.train import parse_words
from lipcert.models.spec import ModelSpec
from lipcert.records import parse_radii
from lipcert.training.config import TrainConfig


def test_emit_prints_json_or_the_parts(capsys):
    table = common.radii_table({"certified": {"natural": 0.812, "36/255": 0.7}, "attacked": {"36/255": 0.75}})
    common.emit({"natural": 0.812}, True, table, "not this")
    assert json.loads(capsys.readouterr().out) == {"natural": 0.812}
    long = "a path that must not be broken " * 10
    common.emit({"natural": 0.812}, False, table, long)
    out = capsys.readouterr().out
    assert long in out
    rows = [line.strip("│").split("│") for line in out.splitlines() if "ed " in line and "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["certified", "81.2", "70.0"],
        ["attacked", "–", "75.0"],
    ]


def test_emit_prints_a_pydantic_record():
    from lipcert.models.presets import model_spec

    out, before = io.StringIO(), sys.stdout
    sys.stdout = out
    try:
        common.emit(model_spec("sll_nano"), True)
    finally:
        sys.stdout = before
    assert json.loads(out.getvalue())["method"] == "sll"


def test_progress_in_a_log_file_is_a_line_now_and_then(capsys, monkeypatch):
    with common.progress("certifying") as show:
        show(64, 1000)
        show(128, 1000, "quiet")
    assert capsys.readouterr().err == ""
    with common.progress("training") as show:
        show(1, None, "epoch 1", log=True)
        monkeypatch.setattr(common, "LOG_SECONDS", 0.0)
        show(2000, 4000)
    assert capsys.readouterr().err == "training: 1, epoch 1\ntraining: 2,000/4,000\n"
    monkeypatch.setenv("RANK", "1")
    with common.progress("training") as show:
        show(1, 2, log=True)
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_is_a_bar_with_its_note(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with common.progress("certifying") as show:
        show(5, 20, "loss 0.5")
    text = sys.stderr.getvalue()
    assert "certifying" in text
    assert "5/20" in text
    assert "loss 0.5" in text


def test_radii_are_numbers_and_fractions():
    assert parse_radii(("36/255", "0.5", "1", "0")) == {"36/255": 36 / 255, "0.5": 0.5, "1": 1.0, "0": 0.0}


@pytest.mark.parametrize("eps", [(), ("-1",), ("1/0",), ("nan",), ("inf",), ("1e999",), ("a",), ("",)])
def test_other_radii_are_refused(eps):
    with pytest.raises(ValueError, match=r"--eps .*36/255|--eps must be at least 0"):
        parse_radii(eps)


@pytest.fixture
def lipcert(capsys, monkeypatch, tmp_path):
    """A function that runs a command line in this process and returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["lipcert", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


MISTAKES = [  # words, what the one line must say
    (["trian"], "no command 'trian'; did you mean 'train'?"),
    (["xyzzy"], "no command 'xyzzy'. Run lipcert --help."),
    (["train", "--epoch", "3"], "--epoch, 3. Perhaps you meant: --epochs INT."),
    (
        ["train", "--epoch", "3", "--mode", "x"],
        "Arguments similar to --mode: --network, --model STR.",
    ),  # in any order
    (["train", "--epoch", "3", "--mode", "x"], "Arguments similar to --epoch: --epochs INT."),
    (["check", "x", "--jsn"], "Perhaps you meant: --json."),
    (["train", "--epochs", "three"], "--epochs takes an integer, got 'three'"),
    (["train", "--epochs", "0"], "epochs must be greater than or equal to 1, got 0."),
    (["train", "--loss", "foo"], "'foo' for argument '--loss'. Expected one of ('offset',"),
    (["train", "--loss", "kr", "--offset", "2"], "offset is not a setting of the loss 'kr'"),
    (["train", "--model", "sll_tny"], "no model 'sll_tny'; did you mean 'sll_tiny'?"),
    (["train", "--overrides", "dense_layer", "3"], "no field 'dense_layer'; did you mean 'dense_layers'?"),
    (["train", "--overrides", "dense_layer=3"], "no field 'dense_layer'; did you mean 'dense_layers'?"),
    (["train", "--overrides", "depth=3"], "no field 'depth'; its fields are method, layout,"),
    (["certify"], "Missing from lipcert certify: RUN."),
    (["models", "sll_tny"], "did you mean 'sll_tiny'?"),
    (["check", "nothing"], "name a certificate"),
    (["data", "gte"], "no command data 'gte'; did you mean 'get'?"),
    (["reproduce", "tabel1"], "got 'tabel1'; did you mean 'table1'?"),
    (["check", "."], "run lipcert certify . first"),
    (["audit", "frozen.onnx"], "frozen.onnx"),
    (["audit", "frozen.pt2"], "audit does not read .pt2 files"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda value: "_".join(value)[:40])
def test_a_mistake_is_one_line_that_says_what_was_perhaps_meant(lipcert, tmp_path, words, message):
    code, out, err = lipcert(*words)
    assert code == 2
    assert out == ""
    assert err.startswith("lipcert: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_no_word_and_help_print_the_help(lipcert):
    code, overview, _ = lipcert()
    assert code == 0
    assert overview.startswith("usage: lipcert COMMAND")
    assert lipcert("help")[:2] == lipcert("-h")[:2] == (0, overview)
    code, text, _ = lipcert("help", "check")
    assert code == 0
    assert text.startswith("usage: lipcert check")


def test_usage_lines_fit_a_terminal(lipcert, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (*([name] for name in COMMANDS), ["data", "get"], ["data", "list"]):
        code, text, _ = lipcert(*words, "-h")
        assert code == 0
        assert text.startswith(f"usage: lipcert {words[0]}")
        assert len(text.splitlines()[0]) <= 80, words


def test_flags_have_short_forms():
    train = parse_words(["--lr", "0.5", "--overrides", "dense_layers=2", "channels", "48", "--seed", "3"])
    assert train.learning_rate == 0.5
    assert train.overrides == {"dense_layers": 2, "channels": 48}
    assert train.seed == 3


def test_a_wrong_setting_is_one_sentence_in_python_too():
    for make, message in (
        (lambda: TrainConfig(lr=0.1), "TrainConfig has no field 'lr'; did you mean 'learning_rate'?"),
        (lambda: lc.create_model("sll_nano", num_class=5), "did you mean 'num_classes'?"),
        (lambda: TrainConfig(epochs=0), "epochs must be greater than or equal to 1, got 0."),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            make()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        *((words, unbuffered) for words in (["-h"], ["train", "-h"]) for unbuffered in ("", "1")),
        (["models", "*nano"], ""),
        (["models", "*nano", "--json"], "1"),
    ],
)
def test_a_closed_pipe_ends_a_command_silently(words, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "lipcert", *words]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writing)
    assert result.stderr == b""
    assert result.returncode == 141


def test_the_models_are_grouped_and_explained(lipcert):
    code, text, _ = lipcert("models")
    assert code == 0
    assert all(title in text for title in ("Small, for a CPU", "The sizes of the paper", "Rivals as published"))
    assert all(name in text for name in lc.list_models())
    assert "number × channels·neurons" in text
    code, text, _ = lipcert("models", "sll_nano")
    assert code == 0
    assert all(field in text for field in ModelSpec.model_fields)
