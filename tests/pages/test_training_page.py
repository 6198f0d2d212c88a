"""docs/training.md shows what results/training holds."""

import importlib.util
import json

from paths import ROOT


def benchmark(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_results():
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert benchmark("recipe").page(text, ROOT / "results" / "training") == text
    assert text.count("| 0.7071 |") == 1
    assert benchmark("search").page(text) == text


def test_every_trial_held_out_its_images():
    rows = [json.loads(line) for line in benchmark("search").ROWS.read_text(encoding="utf-8").splitlines()]
    assert all("--validation 5000" in row["command"] for row in rows)


def test_the_recorded_runs_say_how_they_were_made():
    for path in (ROOT / "results" / "training").glob("final-*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert result["command"].startswith("lipcert train")
        assert result["config"]["validation"] == 0
        row = result["metrics"][-1]
        shares = [row["natural"], *(row[f"certified {r}"] for r in ("36/255", "72/255", "108/255", "1"))]
        assert shares == sorted(shares, reverse=True)
