"""A reproduced table (table.json) in the paper's layout: for a terminal, in Markdown and in LaTeX.

Each row of the paper has a line for its number and one for ours, with the standard deviation below where there are
several seeds. On a terminal every data set has a table of its own, which fits in 80 columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

DASH = "–"
TITLES = {"natural": "natural", "parameters": "params", "seconds": "s/epoch", "inference": "time"}
PAPER, QUOTED, OURS, SPREAD = "paper", "quoted", "ours", "±"


@dataclass(frozen=True)
class Line:
    """One printed line; the names are empty where they are those of the line above."""

    data: str
    group: str
    model: str
    citation: str
    source: str  # paper, quoted, ours or ±
    cells: tuple[str, ...]


def number(column: str, value: float | None) -> str:
    """A number as the paper prints that column."""
    if value is None:
        return DASH
    if column == "parameters":
        return f"{value:.3g}M"
    if column == "seconds":
        return f"{value:.0f}" if value >= 1 else f"{value:.1g}"
    if column == "inference":
        return f"{value / 60:.0f} min" if value >= 120 else f"{value:.2g} sec" if value < 10 else f"{value:.0f} sec"
    if column in ("S", "M", "L", "XL"):
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
    return f"{value:.1f}"


def lines(row: Mapping[str, Any], columns: Sequence[str]) -> list[Line]:
    """The lines of one row: the paper's, ours, and the spread of ours."""
    about = (row["data"], row["group"], row["model"], row["citation"])
    made = []
    if row["paper"] is not None:
        cells = tuple(number(column, row["paper"][column]) for column in columns)
        made.append(Line(*about, QUOTED if row["citation"] else PAPER, cells))
    if row["ours"] is not None:
        made.append(Line(*about, OURS, _ours(row, columns, "mean")))
        if any(value is not None and value["deviation"] is not None for value in row["ours"].values()):
            made.append(Line(*about, SPREAD, _ours(row, columns, "deviation")))
    elif row["note"]:
        made.append(Line(*about, OURS, (DASH,) * len(columns)))
    return made


def _ours(row: Mapping[str, Any], columns: Sequence[str], key: str) -> tuple[str, ...]:
    values = (row["ours"][column] for column in columns)
    return tuple(number(column, value and value[key]) for column, value in zip(columns, values, strict=True))


def footnotes(record: Mapping[str, Any]) -> list[str]:
    """The notes below the table: how to read it, what was not run, what was scaled, and traps in the paper."""
    rows, notes = record["rows"], []
    if any(row["citation"] for row in rows):
        notes.append("Quoted: the numbers that the paper takes from the papers of other methods.")
    if any(row["ours"] is None and not row["note"] for row in rows):
        notes.append("A model without the line \"ours\" was not run.")
    seeds = max((row["seeds"] for row in rows), default=0)
    if seeds > 1:
        notes.append(f"Ours: mean over {seeds} seeds, ± the standard deviation.")
    notes += [
        f"{' '.join(filter(None, (row['data'], row['group'], row['model'])))}: the loss of {row['diverged']} of "
        f"{row['diverged'] + row['seeds']} seeds became NaN; ours is the mean of the others."
        for row in rows
        if row["diverged"] and row["seeds"]
    ]
    notes += dict.fromkeys(f"{row['data']}: {row['note']}." for row in rows if row["note"])
    if record["scaled"]:
        notes.append(f"Scaled: {'; '.join(record['scaled'])}.")
    return [*notes, *record["notes"]]


def title(record: Mapping[str, Any]) -> str:
    scale = "" if record["table"] == "table3" else f" at scale {record['scale']}"  # nothing is scaled there
    return f"Table {record['paper']['number']} reproduced{scale}"


def rich_tables(record: Mapping[str, Any]) -> list[Table]:
    """One table for each data set."""
    from rich import box
    from rich.table import Table

    columns, groups = record["columns"], any(row["group"] for row in record["rows"])
    made = []
    for data in dict.fromkeys(row["data"] for row in record["rows"]):
        mine = [row for row in record["rows"] if row["data"] == data]
        name = title(record) + ("" if record["table"] == "table3" else f": {data}")
        table = Table(title=name, box=box.HORIZONTALS, padding=(0, 1, 0, 0), pad_edge=False)
        names = [record["stubs"][-1].lower(), "source"]
        if groups:
            names.insert(0, next(stub for stub in record["stubs"] if stub in ("Offset", "Training")).lower())
        for name in names:
            table.add_column(name)
        for column in columns:
            table.add_column(TITLES.get(column, column), justify="right")
        shown = [line for row in mine for line in lines(row, columns)]
        for index, line in enumerate(shown):
            above = shown[index - 1] if index else None
            if above is not None and _section(above) != _section(line):
                table.add_section()
            same_group = above is not None and above.group == line.group
            same_model = same_group and above is not None and above.model == line.model
            group = (
                [""] if same_group else [line.group.partition(" ")[0]]
            )  # "Surrogate": lines that wrap are no help
            table.add_row(*(group if groups else []), "" if same_model else line.model, line.source, *line.cells)
        made.append(table)
    return made


def _section(line: Line) -> tuple[str, str, bool]:
    return line.data, line.group, bool(line.citation)


@dataclass(frozen=True)
class Sheet:
    """The paper's layout: columns of names, then one block of numbers, or one for each data set."""

    stubs: tuple[str, ...]
    blocks: tuple[str, ...]  # data sets side by side; one empty name if they are not
    columns: tuple[str, ...]
    lines: tuple[tuple[tuple[str, ...], Line], ...]  # names of a line, and the line with the cells of all blocks


def sheet(record: Mapping[str, Any]) -> Sheet:
    """The record in the paper's arrangement."""
    stubs, columns = tuple(record["stubs"]), tuple(record["columns"])
    all_lines = [line for row in record["rows"] for line in lines(row, columns)]
    if not record["side_by_side"]:
        return Sheet(stubs, ("",), columns, tuple((_names(line, stubs), line) for line in all_lines))
    blocks = tuple(dict.fromkeys(line.data for line in all_lines))
    order = (PAPER, QUOTED, OURS, SPREAD)
    groups = list(dict.fromkeys(line.group for line in all_lines))
    keys = sorted(dict.fromkeys((line.group, line.model) for line in all_lines), key=lambda k: groups.index(k[0]))
    joined = []
    for group, model in keys:
        for source in order:
            found = {
                line.data: line
                for line in all_lines
                if (line.group, line.model, line.source) == (group, model, source)
            }
            if found:
                cells = [found[data].cells if data in found else (DASH,) * len(columns) for data in blocks]
                line = Line("", group, model, "", source, tuple(cell for block in cells for cell in block))
                joined.append((_names(line, stubs), line))
    return Sheet(stubs, blocks, columns, tuple(joined))


def _names(line: Line, stubs: Sequence[str]) -> tuple[str, ...]:
    by_stub = {"Datasets": line.data, "Offset": line.group, "Training": line.group}
    return tuple(by_stub.get(stub, line.model) for stub in stubs)


def markdown(record: Mapping[str, Any]) -> str:
    """The table with its caption and footnotes."""
    from lipcert.reports.templates import fill

    layout = sheet(record)
    heads = [
        f"{block} {TITLES.get(column, column)}".strip() for block in layout.blocks for column in layout.columns
    ]
    return fill(
        "paper.md",
        title=title(record),
        caption=record["paper"]["caption"],
        header=[*layout.stubs, "source", *heads],
        lines=layout.lines,
        notes=footnotes(record),
    )
