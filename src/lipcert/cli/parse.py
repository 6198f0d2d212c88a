"""Flags to a command; what is wrong with them in one line, where tyro draws a box.

tyro writes its complaint to stderr and leaves. It is caught, unwrapped and said as every other error is: what was
expected, what came, what to do.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any, TypeVar

import tyro

T = TypeVar("T")
WIDE = "100000"  # columns: a box that breaks no line


def parsed(kind: type[T], words: list[str], prog: str, default: Any = None) -> T:
    """``kind`` from the words after its command.

    Raises:
        ValueError: in one line, for words that do not fit.
    """
    more = {} if default is None else {"default": default}
    if "-h" in words or "--help" in words:
        return tyro.cli(kind, args=words, prog=prog, **more)
    said, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDE
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return tyro.cli(kind, args=words, prog=prog, **more)
    except SystemExit:
        raise ValueError(f"{in_one_line(said.getvalue())}. Run {prog} --help.") from None
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def in_one_line(box: str) -> str:
    """The first part of a box of tyro, without its frame, its title and pydantic's footnotes."""
    kept: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).strip().splitlines()[1:]:
        words = line.strip(" │|")
        if re.fullmatch(r"[─╭╮╰╯+-]*", words):
            if kept:
                break
        elif not words.startswith(("For further information", "For full helptext")):
            kept.append(words)
    text = re.sub(r"^Error parsing \w+: \d+ validation errors? for \w+ ", "", " ".join(kept))
    wrong = re.match(
        r"(?:(\S+) )?(Input should .*?|Value error, .*?) \[type=\w+, input_value=(.*?), input_type=", text
    )
    if wrong:
        field, message, value = wrong.groups()
        message = message.removeprefix("Value error, ")
        name = f"--{field.split('.')[0].replace('_', '-')}: " if field else ""
        came = f"; got {value}" if message.startswith("Input") else ""
        text = f"{name}{message[0].lower()}{message[1:]}{came}"
    return text.rstrip(". ")
