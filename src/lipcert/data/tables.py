"""Tables of numbers: ``.csv`` files with a header, data frames of R, and the embedded sets of scikit-learn.

Every column but the label is a number and becomes an entry of a float32 vector; nothing is scaled, dropped or
filled in. A fifth of each class, chosen by hashes of the rows, is the test set: the order of the rows does not
matter, and equal rows of a class are never in both parts.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lipcert.data import rda
from lipcert.data.dataset import ImageData, Split, image_data
from lipcert.errors import DataNotFound, suggest

SUFFIXES = (".csv", ".rda")
FROM_SCIKIT_LEARN = ("iris", "wine", "breast_cancer")
SHARE = 5  # one row in so many is for the test
MISSING = {"", "?", "na", "n/a", "nan", "null", "none", "-"}
LARGEST = float(np.finfo(np.float32).max)
DELIMITERS = ",;\t"


def is_table(name: str) -> bool:
    """Whether a path names a table, whose label is a column."""
    return name.lower().endswith(SUFFIXES)


def read(path: Path, label: str | None, split: Split) -> ImageData:
    """One split of a ``.csv`` or ``.rda`` file whose column ``label`` holds the classes.

    Raises:
        ValueError: for a missing value or a text where a number should be, with its row and its column.
    """
    header, rows = (_rows_of_rda if path.suffix.lower() == ".rda" else _rows_of_csv)(path)
    target = _label_column(path, header, label)
    numbers, labels = [], []
    for line, cells in rows:
        numbers.append(_numbers(f"{path}, row {line}", header, cells, target))
        labels.append(cells[target].strip())
    classes = tuple(sorted(set(labels), key=lambda name: (0, int(name), "") if _is_int(name) else (1, 0, name)))
    if len(classes) < 2:
        raise ValueError(f"{path}: expected at least two classes in column {label!r}; got {len(classes)}.")
    values = np.array(numbers, dtype=np.float64)
    return _split(path.stem, values, np.array([classes.index(name) for name in labels]), classes, split)


def _rows_of_csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and each row that is not empty with the number of its line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            delimiter = max(DELIMITERS, key=file.readline().count)
            file.seek(0)
            rows = csv.reader(file, delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(rows, [])]
            return header, [(rows.line_num, cells) for cells in rows if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a table in UTF-8; {error}. Save it again as .csv.") from None


def _rows_of_rda(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    header, rows = rda.read_frame(path)
    return header, list(enumerate(rows, 1))


def from_scikit_learn(name: str, split: Split) -> ImageData:
    """One split of a table that comes with scikit-learn."""
    try:
        from sklearn import datasets  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise DataNotFound(
            f"{name} comes with scikit-learn, which is not installed. Run pip install scikit-learn."
        ) from None
    table = getattr(datasets, f"load_{name}")()
    return _split(name, table.data, np.asarray(table.target), tuple(map(str, table.target_names)), split)


def _label_column(path: Path, header: list[str], label: str | None) -> int:
    if len(set(header)) < len(header) or "" in header or len(header) < 2 or any(map(_is_number, header)):
        raise ValueError(
            f"{path}: the first row must name the columns, each differently, two at least; got "
            f"{', '.join(map(repr, header))[:200] or 'nothing'}. Add a header."
        )
    columns = ", ".join(header)[:300]
    if label is None:
        raise ValueError(f"{path}: say with --label which column holds the classes. The columns are {columns}.")
    if label not in header:
        raise ValueError(f"{path}: there is no column {label!r}{suggest(label, header)} The columns are {columns}.")
    return header.index(label)


def _numbers(where: str, header: list[str], cells: list[str], target: int) -> list[float]:
    """The cells of a row without the label."""
    if len(cells) != len(header):
        raise ValueError(f"{where}: expected {len(header)} cells, as in the header; got {len(cells)}.")
    for name, cell in zip(header, cells, strict=True):
        if cell.strip().lower() in MISSING:
            raise ValueError(f"{where}, column {name!r}: the value is missing. Fill it in, or drop the row.")
    numbers = []
    for index, cell in enumerate(cells):
        if index == target:
            continue
        if not _is_number(cell):
            raise ValueError(
                f"{where}, column {header[index]!r}: expected a number; got {cell!r:.60}. Encode the column as "
                "numbers, or drop it."
            )
        numbers.append(float(cell))
        if not abs(numbers[-1]) <= LARGEST:
            raise ValueError(
                f"{where}, column {header[index]!r}: {cell!r:.60} is beyond float32. Scale the column."
            )
    return numbers


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _is_int(cell: str) -> bool:
    return cell.removeprefix("-").isdecimal()


def _split(
    name: str, values: NDArray[np.float64], labels: NDArray[np.integer], classes: tuple[str, ...], split: Split
) -> ImageData:
    """The rows of one split, in their order."""
    inputs = values.astype(np.float32)
    keys = np.array([hashlib.sha256(row.tobytes()).hexdigest() for row in inputs])
    testing = np.zeros(len(inputs), dtype=bool)
    for index, title in enumerate(classes):
        rows = np.flatnonzero(labels == index)
        distinct = np.unique(keys[rows])
        if len(distinct) < 2:
            raise ValueError(
                f"{name}: expected at least two different rows of each class; got {len(distinct)} of {title!r}. If "
                "the label is a number to predict, see examples/table_regression.py."
            )
        chosen = distinct[: max(1, len(distinct) // SHARE)]
        testing[rows] = np.isin(keys[rows], chosen)
    part = testing if split == "test" else ~testing
    return image_data(inputs[part], labels[part], classes, name, split)
