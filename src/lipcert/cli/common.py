"""What the commands share: printing a record, tables and a progress bar."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from lipcert.experiments.plan import Show

LOG_SECONDS = 30.0  # a log file gets a line of progress at most this often


def emit(record: Any, as_json: bool, *parts: RenderableType) -> None:
    """Print ``record`` as JSON, or else ``parts``: tables and lines of text.

    ``record`` is anything that JSON has, or a pydantic model. Lines of text are printed as they are, never wrapped.
    """
    from rich.console import Console

    if as_json:
        content = record.model_dump(mode="json") if hasattr(record, "model_dump") else record
        print(json.dumps(content, indent=2))
        return

    class Plain(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError  # lipcert.cli.main ends silently; rich itself would exit with code 1

    console = Plain()
    for part in parts:
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))


def make_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    justify: Literal["left", "right"] = "right",
) -> Table:
    """Return a table for a terminal: the first column on the left, the others as ``justify`` says."""
    from rich.table import Table

    table = Table(title=title)
    for index, name in enumerate(header):
        table.add_column(name, justify=justify if index else "left")
    for row in rows:
        table.add_row(*row)
    return table


def radii_table(rows: Mapping[str, Mapping[str, float]], title: str = "Accuracy within an L2 radius (%)") -> Table:
    """Return the table of accuracies: one row per name, one column per radius.

    Args:
        rows: for each row its shares, from 0 to 1, by column: {"certified": {"natural": 0.81, "36/255": 0.7, …}}.
            Columns come in the order in which they are first named; a share that a row lacks prints as a dash.
        title: what stands above the table.
    """
    names = list(dict.fromkeys(name for shares in rows.values() for name in shares))
    lines = [
        [row, *(f"{100 * shares[name]:.1f}" if name in shares else "–" for name in names)]
        for row, shares in rows.items()
    ]
    return make_table(title, ["", *names], lines)


@contextmanager
def progress(title: str) -> Iterator[Show]:
    """Give ``show(done, total, note)``, which reports progress on stderr.

    On a terminal it draws a bar, which starts with the first call and disappears at the end. Elsewhere it writes a
    line every ``LOG_SECONDS``, and whenever it is called with ``log=True``, so that a log file shows how far the
    work is. Under torchrun only the first process shows anything.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    first = os.environ.get("RANK", "0") == "0"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True)
    task = bar.add_task(title, total=None, note="")
    last = time.monotonic()

    def show(done: int, total: int | None, note: str = "", *, log: bool = False) -> None:
        nonlocal last
        if first and console.is_terminal:
            bar.start()  # a second call does nothing
            bar.update(task, completed=done, total=total, note=note)
        elif first and (log or time.monotonic() - last >= LOG_SECONDS):
            last = time.monotonic()
            of = "" if total is None else f"/{total:,}"
            print(f"{title}: {done:,}{of}{f', {note}' if note else ''}", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if bar.live.is_started:  # one that never started would print an empty line
            bar.stop()
