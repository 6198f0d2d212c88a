r"""A reproduced table in LaTeX, as the paper sets it: booktabs, multirow, makecell, natbib, all in its preamble.

The result is plain ASCII, so that any engine and any encoding can read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lipcert.reports.paper_layout import Line, Sheet, footnotes, sheet, title
from lipcert.reports.templates import fill

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


def latex_table(record: Mapping[str, Any]) -> str:
    """The whole table environment."""
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
