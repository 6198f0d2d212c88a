"""Tables of text, and text for Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LATEX = {  # what LaTeX does not print as it is; the longest come first
    "3√2/2": r"$\frac32 \sqrt{2}$",
    "√2/2": r"$\frac12 \sqrt{2}$",
    "2√2": r"$2 \sqrt{2}$",
    "√2": r"$\sqrt{2}$",
    "q_j": "$q_j$",
    "q_i": "$q_i$",
    "ε": r"$\epsilon$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "…": r"\dots",
    "–": "--",
    "\u00a0": "~",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%_#${}"},
}


@dataclass(frozen=True)
class DataTable:
    """A caption, a header, and rows of text; the first cell of a row names it."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def decimals(share: float | None, digits: int = 1) -> str:
    """A share in percent, without the sign."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """For Markdown."""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (header, *lines)]
    return "\n".join([rows[0], "|---" + "|---:" * (len(header) - 1) + "|", *rows[1:]])


def latex(text: str) -> str:
    """``text`` as LaTeX: special characters are escaped, and the signs of the paper become ASCII."""
    return re.sub("|".join(map(re.escape, LATEX)), lambda match: LATEX[match[0]], text)
