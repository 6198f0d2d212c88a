"""Fill the templates beside this file: values are escaped for HTML, Markdown or LaTeX unless marked safe."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from lipcert.reports.tables import decimals, latex
from lipcert.reports.verdict import constant, lower, percent, short


def plain(text: str) -> str:
    """``text`` on one line of Markdown in which nothing is markup."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in escaped)


def fenced(text: str, language: str) -> Markup:
    """A block of code in Markdown; its fence is longer than any inside it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return Markup(f"{fence}{language}\n{text}\n{fence}")


ESCAPES = {".html": escape, ".md": plain, ".tex": latex}
# Braces and percent signs mean something else in LaTeX.
LATEX_SIGNS: dict[str, Any] = {
    **{"block_start_string": "<%", "block_end_string": "%>"},
    **{"variable_start_string": "<<", "variable_end_string": ">>"},
    **{"comment_start_string": "<#", "comment_end_string": "#>"},
}
FILTERS = {
    "decimals": decimals,
    "percent": percent,
    "constant": constant,
    "lower_bound": lower,
    "short": short,
    "fenced": fenced,
    "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    "count": lambda number: f"{number:,}",
    "millions": lambda number: f"{number / 1e6:.2g} M",
}


def read_packaged(name: str) -> str:
    return (resources.files("lipcert.reports") / name).read_text(encoding="utf-8")


def fill(name: str, **values: Any) -> str:
    """The template ``name``, such as report.html, with ``values``."""
    suffix = name[name.rindex(".") :]

    def escaped(value: Any) -> Any:
        return value if isinstance(value, (Markup, StrictUndefined)) else Markup(ESCAPES[suffix](str(value)))

    environment = Environment(
        loader=FunctionLoader(read_packaged),
        autoescape=True,
        finalize=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **(LATEX_SIGNS if suffix == ".tex" else {}),
    )
    environment.filters |= FILTERS
    return environment.get_template(f"{name}.jinja").render(**values)
