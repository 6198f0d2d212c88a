"""The paper's numbers, read from paper.json: Tables 1 to 7 as printed, and what of each is reproduced how.

Tables 1, 2, 5 and 6 were computed with q_j/(q_i + ε), whose layer is not 1-Lipschitz, so their SLL rows prove
nothing. Only Table 7 is valid. The paper quotes the rows of other methods from their own papers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

Number = float | None  # None where the paper prints a dash


@dataclass(frozen=True)
class PaperRow:
    """One row for one data set; ``group`` is an offset or a way of training, ``citation`` is set where quoted."""

    data: str
    group: str
    model: str
    citation: str
    numbers: tuple[Number, ...]
    """In the order of the table's columns."""


@dataclass(frozen=True)
class Group:
    """The rows of one data set that belong together: model, citation, numbers."""

    data: str
    group: str
    rows: tuple[tuple[str, str, tuple[Number, ...]], ...]


@dataclass(frozen=True)
class PaperTable:
    """One printed table."""

    number: int
    label: str
    """That of its LaTeX source."""
    caption: str
    stubs: tuple[str, ...]
    """Its columns of names."""
    columns: tuple[str, ...]
    groups: tuple[Group, ...]
    side_by_side: bool = False
    """Data sets beside each other, not below."""
    notes: tuple[str, ...] = ()
    """What a reader of the printed numbers must know; a name in ``Paper.notes``, or the text itself."""
    kind: Literal["certified", "attacked", "architectures", "inference"] = "certified"
    """What its numbers are."""
    varies: Literal["", "offset", "training"] = ""
    """What differs between its groups."""
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of ``scales.Scale`` that this table changes, by scale."""
    ours: dict[str, str] = field(default_factory=dict)
    """A note to our rows, by scale."""

    @cached_property
    def rows(self) -> tuple[PaperRow, ...]:
        return tuple(
            PaperRow(part.data, part.group, model, citation, numbers)
            for part in self.groups
            for model, citation, numbers in part.rows
        )


@dataclass(frozen=True)
class Rival:
    """A method of another paper that is trained here, too."""

    method: str
    models: dict[str, str]
    """The published network for each data set."""


@dataclass(frozen=True)
class Paper:
    """All of paper.json."""

    about: str
    data: dict[str, str]
    """The data sets, as the paper writes them."""
    sizes: dict[str, str]
    """Our sizes, and the paper's models."""
    rivals: dict[str, Rival]
    """Models of others that are trained here, as the paper writes them."""
    offsets: dict[str, float]
    modes: dict[str, str]
    """Our methods, and the paper's ways of training (Table 7)."""
    notes: dict[str, str]
    tables: dict[str, PaperTable]

    def printed(self, model: str) -> str:
        """The model of the paper that one of our full-sized models is."""
        rivals = {ours: name for name, rival in self.rivals.items() for ours in rival.models.values()}
        return rivals.get(model) or self.sizes[model.rpartition("_")[2]]

    def notes_of(self, table: str) -> list[str]:
        return [self.notes.get(note, note) for note in self.tables[table].notes]


PAPER = TypeAdapter(Paper).validate_json(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
