"""The command line: what is printed, one line per mistake, exit codes, and what is suggested."""

import io
import json
import sys

import pytest

from lipcert.cli import common


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
    assert common.parse_radii(("36/255", "0.5", "1", "0")) == {"36/255": 36 / 255, "0.5": 0.5, "1": 1.0, "0": 0.0}


@pytest.mark.parametrize("eps", [(), ("-1",), ("1/0",), ("nan",), ("inf",), ("1e999",), ("a",), ("",)])
def test_other_radii_are_refused(eps):
    with pytest.raises(ValueError, match=r"--eps .*36/255|--eps must be at least 0"):
        common.parse_radii(eps)
