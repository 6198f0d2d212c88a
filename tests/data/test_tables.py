"""Tables: every number arrives, nothing is guessed, and the split depends on the rows alone."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lipcert as lc
from lipcert.data import tables

HEADER = "width,height,kind"


def write(tmp_path, *lines, name="table.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines))
    return path


def rows(count=60):
    values = np.random.default_rng(0).normal(size=(count, 2)).round(3)
    return [f"{a},{b},{'odd' if index % 2 else 'even'}" for index, (a, b) in enumerate(values)]


def pairs(data):
    return {
        (*row, data.classes[label]) for row, label in zip(data.images.tolist(), data.labels.tolist(), strict=True)
    }


def test_every_row_is_in_one_split_whatever_the_order(tmp_path):
    lines = rows()
    train, test = (
        lc.load_data(write(tmp_path, HEADER, *lines), split, label="kind") for split in ("train", "test")
    )
    assert (train.images.dtype, train.image_shape, train.classes) == (torch.float32, (2,), ("even", "odd"))
    assert len(train) + len(test) == 60
    assert len(test) == 12
    wanted = {(*(float(np.float32(cell)) for cell in line.split(",")[:2]), line.split(",")[2]) for line in lines}
    assert pairs(train) | pairs(test) == wanted
    assert not pairs(train) & pairs(test)
    again = lc.load_data(write(tmp_path, HEADER, *reversed(lines)), "test", label="kind")
    assert pairs(again) == pairs(test)
    assert torch.equal(test[:3][0], test.images[:3])  # as they are, not divided by 255


def test_equal_rows_of_a_class_stay_together(tmp_path):
    path = write(tmp_path, HEADER, *(2 * rows(20)))
    train, test = (lc.load_data(path, split, label="kind") for split in ("train", "test"))
    assert len(train) + len(test) == 40
    assert not pairs(train) & pairs(test)


def test_semicolons_and_numbers_as_classes(tmp_path):
    path = write(tmp_path, "kind;a;b", *(f"{index % 3 + 9};{index};1e-3" for index in range(12)))
    data = lc.load_data(path, "train", label="kind")
    assert data.classes == ("9", "10", "11")
    assert data.image_shape == (2,)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,,odd", r"row 3, column 'height': the value is missing"),
        ("1,NaN,odd", r"row 3, column 'height': the value is missing"),
        ("1,2,", r"row 3, column 'kind': the value is missing"),
        ("tall,2,odd", r"row 3, column 'width': expected a number; got 'tall'"),
        ("1_0,2,odd", r"row 3, column 'width': expected a number; got '1_0'"),
        ("inf,2,odd", r"row 3, column 'width': 'inf' is beyond float32"),
        ("1e39,2,odd", r"row 3, column 'width': '1e39' is beyond float32"),
        ("1,2", "row 3: expected 3 cells, as in the header; got 2"),
        ('1,"2,odd', "expected a table in UTF-8; unexpected end of data"),
    ],
)
def test_a_cell_that_is_no_number_is_named(line, message, tmp_path):
    path = write(tmp_path, HEADER, "1,2,even", line)
    with pytest.raises(ValueError, match=message):
        lc.load_data(path, "train", label="kind")


@pytest.mark.parametrize(
    ("lines", "label", "message"),
    [
        ([], "kind", "the first row must name the columns"),
        (["1,2,odd", *rows()], "kind", "the first row must name the columns"),
        (["a,a,kind", *rows()], "kind", "each differently"),
        (
            [HEADER, *rows()],
            None,
            "say with --label which column holds the classes. The columns are width, height, kind",
        ),
        ([HEADER, *rows()], "kinds", "no column 'kinds'; did you mean 'kind'"),
        ([HEADER], "kind", "at least two classes in column 'kind'; got 0"),
        ([HEADER, *(f"1,{i},same" for i in range(9))], "kind", "at least two classes in column 'kind'; got 1"),
        (
            ["a,b", *(f"{i},{i / 7}" for i in range(9))],
            "b",
            "a number to predict, see examples/table_regression.py",
        ),
    ],
)
def test_a_table_that_cannot_be_learned_is_refused(lines, label, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        lc.load_data(write(tmp_path, *lines), "train", label=label)


def test_a_label_is_for_tables():
    with pytest.raises(ValueError, match=r"a label is a column of a .csv or .rda file; got digits"):
        lc.load_data("digits", "train", label="kind")


def test_the_sets_of_scikit_learn_are_tables(monkeypatch):
    table = SimpleNamespace(data=np.arange(60.0).reshape(20, 3), target=np.arange(20) % 2, target_names=["a", "b"])
    datasets = SimpleNamespace(load_iris=lambda: table)
    monkeypatch.setitem(sys.modules, "sklearn", SimpleNamespace(datasets=datasets))
    data = lc.load_data("iris", "train")
    assert (len(data), data.classes, data.name) == (16, ("a", "b"), "iris")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for name in tables.FROM_SCIKIT_LEARN:
        with pytest.raises(ValueError, match=f"{name} comes with scikit-learn, .* pip install scikit-learn"):
            lc.load_data(name, "train")
