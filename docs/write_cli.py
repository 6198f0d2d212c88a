"""Write docs/cli.md from the help texts of the commands.

Run: python docs/write_cli.py
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
from pathlib import Path

from lipcert.cli import COMMANDS, run

# Defaults that say nothing: an option that is not given.
NOTHING = ("None", "False")
PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# What does each command and each flag do?

<!-- Written by `python docs/write_cli.py` from the help texts. Change those, not this page. -->

`lipcert COMMAND --help` prints the same text. `lipcert --version` prints the version. Every command takes
`--json`, which prints its result as JSON. An empty default is None, or False for a flag without a value.

Exit codes: 0 means that the claim holds, 1 that it does not, 2 that the usage or the input is wrong. An interrupted
command ends with 130 (Ctrl-C) or 143 (SIGTERM).

| command | what it does |
|---|---|
"""


def help_text(*words: str) -> str:
    """Return what ``lipcert WORDS --help`` prints on a terminal so wide that no line is broken."""
    printed, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "2000"
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            run([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())


def boxes(text: str) -> dict[str, list[str]]:
    """Return the lines of each group of a help text, by its title, which a line of dashes underlines."""
    found: dict[str, list[str]] = {}
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if re.fullmatch(r" ?-{20,} *", line) and lines[index - 1].strip():
            group = found.setdefault(lines[index - 1].strip(), [])
        elif found and line.startswith("  ") and line.strip():
            group.append(line[2:].rstrip())
    return found


def options(lines: list[str]) -> list[tuple[str, str, str]]:
    """Return name, default and description of each option in a box."""
    rows: list[tuple[str, str, str]] = []
    pending = ""
    for line in lines:
        if not line.startswith(" "):
            name, _, text = line.partition("  ")
            pending = name
        else:
            name, text = pending, line
        text = text.strip()
        if not text:
            continue
        if rows and rows[-1][0] == name:  # a description of several lines
            text = f"{rows.pop()[2]} {text}"
        default = re.search(r" ?\((?:default: (.*)|(required))\)$", text)
        value = (default[1] or default[2] or "") if default else ""
        rows.append((name, value, text[: default.start()] if default else text))
    return [row for row in rows if not row[0].startswith(("-h,", "--json"))]


def cell(text: str) -> str:
    """Return text for a cell of a Markdown table, with every name of an option as code."""
    parts = re.sub(r"[|*$]", r"\\\g<0>", text).split("`")  # every second part is code already
    parts[::2] = [re.sub(r"(?<![\w-])(--[a-z][a-z0-9-]*)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|") if text else ""


def section(*words: str) -> str:
    """Return the part of the page about one command."""
    text = help_text(*words)
    usage, *paragraphs = text.split("\n\n")
    description = itertools.takewhile(lambda paragraph: "----" not in paragraph, paragraphs)
    parts = [f"{'#' * (1 + len(words))} {' '.join(words)}", *(cell(part.strip()) for part in description)]
    usage = re.sub(r" \[(-h|--json|OPTIONS)\]", "", " ".join(usage.removeprefix("usage: ").split()))
    if usage != f"lipcert {' '.join(words)}":
        parts.append(f"```text\n{usage}\n```")
    found = boxes(text)
    subcommands = [
        match[1] for line in found.pop("subcommands", []) if (match := re.match(r"\s*[•*] ([\w-]+)", line))
    ]
    rows = [row for title in found for row in options(found[title]) if row[1] or row[0].startswith("-")]
    if rows:
        shown = [
            (name.replace("{None}|", ""), "" if value in NOTHING else value, says) for name, value, says in rows
        ]
        table = "\n".join(f"| {code(name)} | {code(value)} | {cell(says)} |" for name, value, says in shown)
        parts.append(f"| option | default | meaning |\n|---|---|---|\n{table}")
    return "\n\n".join([*parts, *(section(*words, name) for name in subcommands)])


def page() -> str:
    """Return the whole page."""
    index = "\n".join(f"| [`{name}`](#{name}) | {line} |" for name, (_, line) in COMMANDS.items())
    return INTRODUCTION + index + "\n\n" + "\n\n".join(section(name) for name in COMMANDS) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
