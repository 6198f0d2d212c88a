"""A table for a terminal and for Markdown, from a header and lines of text; text escaped for LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "±": r"$\pm$", "–": "--"}


def rich_table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """For a terminal: the first column to the left, figures to the right."""
    from rich.table import Table

    table = Table(title=title)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for line in lines:
        table.add_row(*line)
    return table


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """For Markdown."""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (header, *lines)]
    return "\n".join([rows[0], "|---" + "|---:" * (len(header) - 1) + "|", *rows[1:]])


def latex(text: str) -> str:
    """``text`` with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(letter, letter) for letter in text)
