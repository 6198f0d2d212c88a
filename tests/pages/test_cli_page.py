"""docs/cli.md is what the parsers say."""

import importlib.util

from lipcert.cli import COMMANDS
from paths import ROOT


def writer():
    spec = importlib.util.spec_from_file_location("write_cli", ROOT / "docs" / "write_cli.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_parsers_say():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert writer().page() == page, "run python docs/write_cli.py"


def test_the_page_has_every_command_and_its_flags():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(f"\n## {name}\n" in page for name in COMMANDS)
    assert all(f"\n### data {name}\n" in page for name in ("list", "get", "prepare"))
    assert "| `--epochs INT` | `10` | Passes over the training images. |" in page
    assert "| `RUN` | `required` |" in page
