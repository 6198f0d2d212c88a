"""A reproduced table (table.json) in the paper's layout: for a terminal, in Markdown and in LaTeX.

Each row of the paper has a line for its number and one for ours, with the standard deviation below where there are
several seeds. On a terminal every data set has a table of its own, which fits in 80 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from lipcert.reports.templates import fill

if TYPE_CHECKING:
    from rich.table import Table

DASH = "–"
TITLES = {"natural": "natural", "parameters": "params", "seconds": "s/epoch", "inference": "time"}
PAPER, QUOTED, OURS, SPREAD = "paper", "quoted", "ours", "±"
FORMATS: dict[str, Callable[[float], str]] = {  # of columns that are no percentages
    "parameters": lambda millions: f"{millions:.3g}M",
    "seconds": lambda seconds: f"{seconds:.0f}" if seconds >= 1 else f"{seconds:.1g}",
    "inference": lambda seconds: (
        f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:{'.0f' if seconds >= 10 else '.2g'}} sec"
    ),
    **dict.fromkeys(("S", "M", "L", "XL"), lambda size: f"{size:.{0 if float(size).is_integer() else 1}f}"),
}

RADII = {
    "36/255": r"$\frac{36}{255}$",
    "72/255": r"$\frac{72}{255}$",
    "108/255": r"$\frac{108}{255}$",
    "1": "$1$",
}
HEADS = {
    "natural": ("Natural", "Accuracy"),
    "parameters": ("Number of", "Parameters"),
    "seconds": ("Time by", "Epoch (s)"),
    "inference": ("Inference", "Time"),
}


@dataclass(frozen=True)
class Line:
    """One printed line."""

    data: str
    group: str
    model: str
    citation: str
    source: str  # paper, quoted, ours or ±
    cells: tuple[str, ...]


def number(column: str, value: float | None) -> str:
    """A number as the paper prints that column."""
    return DASH if value is None else FORMATS.get(column, "{:.1f}".format)(value)


def lines(row: Mapping[str, Any], columns: Sequence[str]) -> list[Line]:
    """The lines of one row: the paper's, ours, and the spread of ours."""
    about = (row["data"], row["group"], row["model"], row["citation"])
    found = []
    if row["paper"] is not None:
        cells = tuple(number(column, row["paper"][column]) for column in columns)
        found.append(Line(*about, QUOTED if row["citation"] else PAPER, cells))
    if row["ours"] is not None:
        found.append(Line(*about, OURS, _ours(row, columns, "mean")))
        if any(value is not None and value["deviation"] is not None for value in row["ours"].values()):
            found.append(Line(*about, SPREAD, _ours(row, columns, "deviation")))
    elif row["note"]:
        found.append(Line(*about, OURS, (DASH,) * len(columns)))
    return found


def _ours(row: Mapping[str, Any], columns: Sequence[str], key: str) -> tuple[str, ...]:
    values = (row["ours"][column] for column in columns)
    return tuple(number(column, value and value[key]) for column, value in zip(columns, values, strict=True))


def footnotes(record: Mapping[str, Any]) -> list[str]:
    """The notes below the table: how to read it, what was not run, what was scaled, and traps in the paper."""
    rows, notes = record["rows"], []
    if any(row["citation"] for row in rows):
        notes.append("Quoted: the numbers that the paper takes from the papers of other methods.")
    if any(row["ours"] is None and not row["note"] for row in rows):
        notes.append('A model without the line "ours" was not run.')
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
    from rich.table import Column, Table

    columns, groups = record["columns"], any(row["group"] for row in record["rows"])
    names = [stub.lower() for stub in record["stubs"] if groups and stub in ("Offset", "Training")]
    names += [record["stubs"][-1].lower(), "source"]
    tables = []
    for data in dict.fromkeys(row["data"] for row in record["rows"]):
        table = Table(
            *names,
            *(Column(TITLES.get(column, column), justify="right") for column in columns),
            title=title(record) + ("" if record["table"] == "table3" else f": {data}"),
            box=box.HORIZONTALS,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        above = Line(data, "", "", "", "", ())
        for line in [line for row in record["rows"] if row["data"] == data for line in lines(row, columns)]:
            if (above.group, bool(above.citation)) != (line.group, bool(line.citation)):
                table.add_section()
            # The first word of a group, such as "Surrogate", fits in the column.
            group = "" if above.group == line.group else line.group.partition(" ")[0]
            model = "" if (above.group, above.model) == (line.group, line.model) else line.model
            table.add_row(*([group] if groups else []), model, line.source, *line.cells)
            above = line
        tables.append(table)
    return tables


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


def latex_table(record: Mapping[str, Any]) -> str:
    """The whole LaTeX environment, as the paper sets it: booktabs, multirow, makecell, natbib.

    It is plain ASCII, so that any engine and any encoding can read it.
    """
    layout = sheet(record)
    return fill(
        "paper.tex",
        record=record,
        title=title(record),
        notes=footnotes(record),
        sheet=layout,
        lines=list(_lines(layout)),
        width=len(layout.stubs) + 1 + len(layout.blocks) * len(layout.columns),
        radii={column: RADII[column] for column in layout.columns if column in RADII},
        heads={column: HEADS.get(column, (column,)) for column in layout.columns},
    )


@dataclass(frozen=True)
class TexLine:
    """A line with what stands around it."""

    names: tuple[str, ...]
    line: Line
    spans: tuple[int, ...]  # for each name, over how many lines it stands; 0 if it began above
    rule: int | None  # the first column of the rule above, if there is one


def _lines(layout: Sheet) -> Iterator[TexLine]:
    """A rule stands where a group of names begins, and between the methods of others and ours."""
    depths = range(len(layout.stubs))
    columns = [_spans([names[: depth + 1] for names, _ in layout.lines]) for depth in depths]
    quoted = [bool(line.citation) for _, line in layout.lines]
    for index, (names, line) in enumerate(layout.lines):
        spans = tuple(column[index] for column in columns)
        begins = [depth for depth in depths[:-1] if spans[depth]]
        begins += [depths[-1]] if quoted[index] != quoted[index - 1] else []
        yield TexLine(names, line, spans, begins[0] if index and begins else None)


def _spans(names: Sequence[tuple[str, ...]]) -> list[int]:
    """The length of each run of equal names where it begins, and 0 on the lines below."""
    counts = [len(list(group)) for _, group in groupby(names)]
    return [span for count in counts for span in (count, *[0] * (count - 1))]
