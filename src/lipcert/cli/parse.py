"""From the words of a command line to a command. A mistake is one line: tyro's message without its box."""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any, TypeVar

import tyro
from pydantic import ValidationError

from lipcert.errors import explain

T = TypeVar("T")
WIDE = "100000"  # columns, so that no line of a box is broken
# What tyro says of a word that is no number, and of each type that an option may have.
NO_NUMBER = (
    r"Error parsing (?:\S+/)?(?P<flag>\S+): .*(?:invalid literal for (?P<integer>int)\(\) with base 10|"
    r"could not convert string to float): (?P<value>'.*')"
)


def parse(kind: type[T], words: list[str], prog: str, default: Any = None) -> T:
    """Return the command that the words after ``prog`` describe.

    Raises:
        ValueError: in one line, if the words do not fit.
    """
    options: dict[str, Any] = {} if default is None else {"default": default}
    options |= {"args": split_pairs(words), "prog": prog, "config": (tyro.conf.FlagCreatePairsOff,)}
    if "-h" in words or "--help" in words:
        return tyro.cli(kind, **options)
    box, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDE
    try:
        with contextlib.redirect_stderr(box), contextlib.redirect_stdout(box):
            return tyro.cli(kind, **options)
    except SystemExit as leaving:
        # tyro draws a box for what the constructor of the command raises, too; that has its own sentence.
        cause = leaving.__context__
        if isinstance(cause, ValidationError):
            raise ValueError(explain(cause)) from None
        message = str(cause) if type(cause) is ValueError else f"{unbox(box.getvalue())}. Run {prog} --help."
        raise ValueError(message) from None
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns


def split_pairs(words: list[str]) -> list[str]:
    """Return the words with ``--overrides FIELD=VALUE`` written as ``--overrides FIELD VALUE``."""
    result, flag = [], ""
    for word in words:
        flag = word if word.startswith("--") else flag
        result += word.split("=", 1) if flag == "--overrides" else [word]
    return result


def unbox(box: str) -> str:
    """Return tyro's message in one line: what is wrong and what was perhaps meant, without any help texts."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    _, *lines = re.sub("[│╭╮╰╯|+]", " ", plain).splitlines()  # the first one is the title
    sections = re.split(r"(?m)^\s*[─-]+\s*$", "\n".join(lines))
    wanted = [text for text in sections if text.strip() and not re.match(r"\s*(For full|Argument) helptext", text)]
    # A help text is indented by eight columns or more, beside the two of the frame.
    said = [" ".join(re.sub(r"(?m)^ {10,}.*$", "", section).split()) for section in wanted]
    return re.sub(NO_NUMBER, _say_number, ". ".join(sentence.rstrip(".!") for sentence in said))


def _say_number(match: re.Match[str]) -> str:
    return f"{match['flag']} takes {'an integer' if match['integer'] else 'a number'}, got {match['value']}"
