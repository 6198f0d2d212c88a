"""docs/speed.md shows what results/ holds, and the counted operations are those of the formulas and of today."""

import importlib.util
import json

import pytest
import torch
import torch.nn.functional as F

import lipcert as lc
from paths import ROOT

_spec = importlib.util.spec_from_file_location("cost", ROOT / "benchmarks" / "cost.py")
cost = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cost)
RECORD = json.loads((ROOT / "results" / "scaling.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("where", "name", "file", "made", "mark"),
    [
        ("docs", "speed", "speed", "answer_table", "answer"),
        ("results", "speed", "speed", "tables", "speed"),
        ("results", "speed", "speed", "others_table", "others"),
        ("results", "speed", "speed", "torus_table", "torus"),
        ("docs", "peers", "peers", "ahead", "ahead"),
        ("results", "peers", "peers", "table", "peers"),
        ("results", "lag", "lag", "page", "lag"),
        ("results", "pipeline", "pipeline", "page", "pipeline"),
        ("results", "cost", "scaling", "tables", "scaling"),
    ],
)
def test_the_speed_page_shows_what_the_results_hold(where, name, file, made, mark, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module(name)
    page = (ROOT / where / "speed.md").read_text(encoding="utf-8")
    record = json.loads((ROOT / "results" / f"{file}.json").read_text(encoding="utf-8"))
    shown = page.split(f"<!-- {mark}:begin -->\n")[1].split(f"\n<!-- {mark}:end -->")[0]
    assert shown == getattr(module, made)(record)


def test_the_times_follow_from_the_counts():
    derived = cost.derive(RECORD["models"])
    assert RECORD["assumed"] == cost.ASSUMED
    assert RECORD["paper"] == cost.PAPER
    assert json.loads(json.dumps(derived)) == {key: RECORD[key] for key in derived}
    assert sum(derived["fits"]["4"]["parts"]["S"].values()) == pytest.approx(20)  # the one row that is fitted
    four, one = (derived["fits"][devices]["misfit"] for devices in "41")  # as the page's text has it
    assert max(four, key=four.get) == "XL"
    assert all(four[size] > 0 for size in ("M", "L", "XL"))
    assert all(four[size] < one[size] for size in ("L", "XL"))
    for size, counts in RECORD["models"].items():
        alone = sum(cost.seconds(counts, 1, 1e12).values())
        ideal = sum(cost.seconds(counts, 8, 1e12, 8 * cost.BATCH).values())
        assert alone / 8 < ideal < alone / 7, size  # with the batch per device kept, only the all-reduce is added
        assert sum(cost.seconds(counts, 8, 1e12).values()) > alone / 2, size  # with the batch kept, T is not shared


@pytest.mark.parametrize("batch", [1, 6])
def test_counted_operations_are_those_of_the_formula(batch):
    m, n = 12, 5
    layer, x = lc.ResidualLinear(m, n), torch.rand(batch, m, requires_grad=True)
    batches = 2 * 3 * 2 * batch * n * m  # two products of the batch, with two gradients each
    # WᵀW is 2n²m and so is the gradient of each of its factors; products with vectors are 2n².
    with cost.formula():
        assert cost.count(layer, lambda: layer(x).sum())["flops"] == 3 * 2 * n**2 * m + batches + 3 * 2 * n**2
    # By symmetry lipcert needs one gradient of WᵀW (and half of WᵀW, once it is large enough for blocks).
    assert cost.count(layer, lambda: layer(x).sum())["flops"] == 2 * 2 * n**2 * m + batches + 4 * 2 * n**2

    c, n, k, size = 4, 3, 3, 7
    layer, x = lc.ResidualConv2d(c, n, k), torch.rand(batch, c, size, size, requires_grad=True)
    gram = 2 * n**2 * c * k**2 * (2 * k - 1) ** 2  # n² pairs of filters at (2k − 1)² lags
    product = 2 * batch * n * c * k**2 * size**2
    assert cost.count(layer, lambda: layer(x).sum())["flops"] == 2 * gram + 2 * 3 * product + 2 * 2 * n**2


def test_a_wide_dense_layer_pays_half_of_the_formula_for_its_bound():
    m, n, batch = 2880, 2048, 256  # a dense layer of sll_small
    with torch.device("meta"):
        layer, x = lc.ResidualLinear(m, n), torch.rand(batch, m, requires_grad=True)
    half, block, gradient = n**2 * m, 256 * n * m, 2 * n**2 * m  # half of WᵀW, in blocks of 256; one gradient
    vectors = 8 * n**2  # products with q and with the gradient of T
    flops = cost.count(layer, lambda: layer(x).sum())["flops"]
    assert flops == half + block + gradient + vectors + 12 * batch * n * m
    assert half + block + gradient + vectors < 0.57 * 6 * n**2 * m


def test_counted_bytes_are_those_of_the_formula():
    model, x = torch.nn.Linear(6, 4, bias=False), torch.rand(3, 6)
    counts = cost.count(model, lambda: F.relu(model(x)).sum())
    assert counts["saved"] == 4 * (3 * 6 + 3 * 4)  # the input of the product and the output of the ReLU


def test_a_law_that_does_not_hold_is_refused():
    assert cost.linear(lambda batch: {"flops": 7 + 3 * batch}) == {"flops": {"once": 7, "per_image": 3}}
    with pytest.raises(ValueError, match=r"must be .*; got 65536"):
        cost.linear(lambda batch: {"flops": batch**2})


@pytest.mark.parametrize(("size", "millions"), [("S", 41.4), ("M", 78.8), ("L", 118.3), ("XL", 236.5)])
def test_counts_are_of_the_published_sizes(size, millions):
    with torch.device("meta"):
        model = lc.create_model(cost.SIZES[size])
    parameters = sum(p.numel() for p in model.parameters())
    assert RECORD["models"][size]["parameters"] == parameters
    assert parameters / 1e6 == pytest.approx(millions, abs=0.06)


def test_the_stored_count_is_todays():
    with torch.device("meta"):
        model, x = lc.create_model("sll_small"), torch.empty(2, 3, 32, 32)
    law = RECORD["models"]["S"]["flops"]
    with cost.formula():
        assert cost.count(model, lambda: model(x).sum())["flops"] == law["once"] + 2 * law["per_image"]
