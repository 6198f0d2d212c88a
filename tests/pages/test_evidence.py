"""The pages show what results/ holds, and the results obey certified ≤ attacked ≤ natural."""

import gzip
import importlib.util
import json

import pytest

from lipcert.attacks.evidence import contradictions, summary
from paths import ROOT

ATTACKED = sorted((ROOT / "results" / "attacked").glob("*.json"))
COMPARED = [
    *(path for path in (ROOT / "results" / "comparison").glob("*.json") if ".rates" not in path.name),
    *(ROOT / "results" / "budgets").glob("*.json"),
]


def evidence(name="evidence"):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["README.md", "docs/results.md", "docs/speed.md", "results/comparison.md", "results/reviews.md"]
)
def test_the_pages_show_the_results(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert evidence().page(text) == text
    assert ":begin -->\n<!--" not in text  # every block is filled


def test_the_picture_shows_the_results():
    assert evidence("picture").picture() == (ROOT / "docs" / "picture.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ATTACKED, ids=lambda path: path.stem)
def test_no_attack_broke_a_certificate(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    lines = gzip.decompress(path.with_suffix(".jsonl.gz").read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines]
    assert contradictions(rows) == []
    assert summary(rows) == record["rows"]
    assert record["command"].startswith("lipcert attack")


@pytest.mark.parametrize("path", COMPARED, ids=lambda path: path.stem)
def test_compared_rows_are_ordered_and_follow_from_their_runs(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["command"].startswith("lipcert compare")
    for row in record["rows"]:
        runs = [run for run in record["runs"] if run["run"].rpartition("-")[0] == f"{row['data']}-{row['method']}"]
        assert len(runs) == row["seeds"]
        mean = sum(run["natural"] for run in runs) / len(runs)
        assert row["natural"]["mean"] == pytest.approx(mean, rel=1e-12)
        for run in runs:
            shares = [run["natural"], *run["certified"].values()]
            assert shares == sorted(shares, reverse=True)
            for attacked in run["attacked"].values():
                assert attacked["certified"] <= attacked["attacked"] <= attacked["natural"]
