"""The report as Markdown: the same tables and figures, for a repository or a pull request."""

from __future__ import annotations

import html
import json
from typing import Any

from lipcert.reports.data_tables import data_tables
from lipcert.reports.drawing import Figure
from lipcert.reports.tables import markdown_table
from lipcert.reports.verdict import percent


def markdown(report: dict[str, Any], figures: list[Figure]) -> str:
    """Beside the PNG files of the figures, which it shows."""
    parts = ["# Certified robustness", f"**Proved.** {report['claim']}", "## Summary", summary_table(report)]
    for run in report["runs"]:
        parts += [f"**{plain(run['name'])}** ({run['status']}):", *(f"- {plain(line)}" for line in run["verdict"])]
    parts.append("## Figures")
    for figure in figures:
        parts += [
            f"### {plain(figure.title)}",
            f"![{plain(figure.title)}]({figure.name}.png)",
            plain(figure.caption),
        ]
    parts.append("## Audit")
    for run in report["runs"]:
        parts.append(_audit(run))
    parts.append("## Layers")
    tables = data_tables(report)
    for position in range(len(report["runs"])):
        table = tables[f"layers-{position + 1}"]
        parts += [plain(table.caption) + ".", markdown_table(table.header, _plain_rows(table.rows))]
    parts.append("## Reproduce")
    for run in report["runs"]:
        parts += [f"### {plain(run['name'])}", _code("\n".join(run["commands"]), "sh")]
        hashes = [[name, f"`{digest}`"] for name, digest in run["sha256"].items()]
        hashes += [[f"test {name}", f"`{digest}`"] for name, digest in (run["data_sha256"] or {}).items()]
        parts += [markdown_table(["file", "sha256"], hashes), _code(json.dumps(run["config"], indent=2), "json")]
    made = ", ".join(f"{name} {version}" for name, version in report["made_with"].items())
    return "\n\n".join([*parts, f"Made with {made}."]) + "\n"


def summary_table(report: dict[str, Any]) -> str:
    """A line per run for what is certified, and one for what withstood the attack."""
    header = ["run", "data", "", "natural", *(entry["eps"] for entry in report["radii"])]
    lines = []
    for run in report["runs"]:
        about = [plain(run["name"]), plain(str(run["data"] or "–"))]
        lines.append([*about, "certified", percent(run["natural"], 2), *(percent(s, 2) for s in run["certified"])])
        rows = run["attacked"]
        if any(rows):
            natural = next(row["natural"] for row in rows if row)
            count = next(row["examples"] for row in rows if row)
            shares = [percent(row["attacked"] if row else None, 2) for row in rows]
            lines.append([*about, f"attacked ({count:,} images)", percent(natural, 2), *shares])
    return markdown_table(header, lines)


def plain(text: str) -> str:
    """One line in which nothing is markup."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in escaped)


def _plain_rows(rows: list[list[str]]) -> list[list[str]]:
    return [[plain(cell).replace("\\|", "|") for cell in row] for row in rows]  # markdown_table escapes the bar


def _code(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _audit(run: dict[str, Any]) -> str:
    name, audit = plain(run["name"]), run["audit"]
    if audit is None:
        return f"{name}: not audited; run `lipcert audit`."
    rows = [
        [row["name"], row["op"], row["verdict"], f"{row['lower']:.6f}", f"{row['upper']:.9f}", row["method"]]
        if row["upper"] is not None
        else [row["name"], row["op"], row["verdict"], f"{row['lower']:.6f}", "∞", row["method"]]
        for row in audit["layers"]
    ]
    table = markdown_table(["layer", "operation", "verdict", "lower", "upper", "method"], _plain_rows(rows))
    return (
        f"{name}: L ≤ {audit['lipschitz']} for the whole map, L ≤ {audit['backbone']} before the last.\n\n{table}"
    )
