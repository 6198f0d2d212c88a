"""docs/leaderboard.md is generated, and only what the checker accepts gets an entry."""

import dataclasses
import importlib.util
import json
import shutil
from types import SimpleNamespace

import pytest

from lipcert.zoo import HERE
from paths import ROOT


def script():
    spec = importlib.util.spec_from_file_location("leaderboard", ROOT / "benchmarks" / "leaderboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_generated_from_the_entries():
    text = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    assert text == script().page()
    claims = text.split("## Published numbers")[1]
    assert "These numbers are claimed" in claims
    assert "Cayley Large" in claims
    assert "SLL" in claims
    assert "SLL Small |" not in claims  # the rows that the erratum takes back


def test_the_entries_are_what_the_checker_accepts():
    board = script()
    for path in board.ENTRIES.glob("*.json"):
        entry = json.loads(path.read_text(encoding="utf-8"))
        assert path.name == f"{entry['data']}-{entry['certificate'][:12]}.json"
        shares = list(entry["proved"].values())
        assert shares == sorted(shares, reverse=True)
        if entry["claimed"] is not None:
            claimed = {key: share for key, share in entry["claimed"].items() if key != "natural"}
            assert all(entry["proved"][key] >= share - 1e-6 for key, share in claimed.items())
        if entry["attacked"] is not None and entry["attacked"]["images"] == entry["images"]:
            both = [key for key in board.RADII if key in entry["attacked"]]
            assert all(entry["attacked"][key] >= entry["proved"][key] for key in both)
    digits = board.entry_of(HERE / "digits")
    stored = json.loads((board.ENTRIES / f"digits-{digits['certificate'][:12]}.json").read_text(encoding="utf-8"))
    assert {**stored, "attacked": None} == digits


def larger_radius(said):
    index, label, radius = said["claims"][3]
    said["claims"][3] = [index, label, (1.01 * float.fromhex(radius)).hex()]


def smaller_constant(said):
    said["lipschitz"] = (0.99 * float.fromhex(said["lipschitz"])).hex()


def another_data_set(said):
    said["inputs"]["about"] = "cats test"


@pytest.mark.parametrize("change", [larger_radius, smaller_constant, another_data_set])
def test_a_false_certificate_gets_no_entry(change, tmp_path):
    folder = shutil.copytree(HERE / "digits", tmp_path / "digits")
    said = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    change(said)
    (folder / "certificate.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the checker refuses|not a named data set"):
        script().entry_of(folder)


def test_a_wrong_label_proves_nothing(tmp_path):
    folder, board = shutil.copytree(HERE / "digits", tmp_path / "digits"), script()
    data = board.lc.load_data("digits", "test")
    wrong = data.labels.clone()
    wrong[:50] = (wrong[:50] + 1) % 10
    changed = dataclasses.replace(data, labels=wrong)
    board.lc = SimpleNamespace(load_data=lambda *_: changed, verify=board.lc.verify, Run=board.lc.Run)
    assert board.entry_of(folder)["proved"]["natural"] <= 1 - 50 / len(wrong)


def test_a_part_of_the_test_set_gets_no_entry(tmp_path):
    from safetensors.torch import load_file, save_file

    from lipcert.certified.certificate import sha256_of

    folder = shutil.copytree(HERE / "digits", tmp_path / "digits")
    images = load_file(folder / "certificate.inputs.safetensors")["images"][:100].clone()
    save_file({"images": images}, folder / "certificate.inputs.safetensors")
    said = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    said["claims"] = [claim for claim in said["claims"] if claim[0] < 100]
    said["inputs"] |= {"count": 100, "sha256": sha256_of(images)}
    (folder / "certificate.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(ValueError, match="complete test set"):
        script().entry_of(folder)
