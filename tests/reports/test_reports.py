"""Reports: every number follows from the records, the records must agree, and the page works in a real browser."""

import base64
import fcntl
import html.parser
import io
import json
import math
import os
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import lipcert as lc
from lipcert.certified.freeze import freeze
from lipcert.cli.report import Report
from lipcert.cli.train import parse_words
from lipcert.records import distinct_names
from lipcert.reports.commands import train_command
from lipcert.reports.pictures import png_uri
from lipcert.reports.report import describe
from lipcert.reports.spectra import spectra_estimates
from lipcert.reports.theme import COLORS, run_style, themed_svg
from lipcert.reports.verdict import constant, lower, short
from lipcert.reports.write import file_names, run_folders, write_report
from lipcert.runs import Run
from lipcert.training.config import TrainConfig
from processes import command

HOSTILE = "<img src=x onerror=alert(1)>&'\"`|_"  # a folder may be called so


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """``full``: trained, audited, certified, attacked; ``half``: another network, trained and certified."""
    folder = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    settings = {"model": "sll_nano", "epochs": 3, "offset": 0.7, "temperature": 0.1, "threads": 1}
    full = lc.train(TrainConfig(**settings), folder / "full")
    full.certify()
    full.audit()
    full.attack("pgd", examples=6, eps=("36/255", "0.5", "0.3"), command="lipcert attack full --method pgd")
    other = TrainConfig(model="aol_nano", epochs=1, threads=1, overrides={"dense_layers": 1})
    half = lc.train(other, folder / "half")
    half.certify(examples=100)
    return full.folder, half.folder


@pytest.fixture(scope="module")
def written(trained, tmp_path_factory):
    """The report of both."""
    return report(trained, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def run(trained, tmp_path):
    """A copy of ``full`` to change."""
    return Path(shutil.copytree(trained[0], tmp_path / "full"))


def report(folders, out):
    folders = run_folders(folders)
    names = distinct_names(folders)
    return write_report([Run(folder, name) for folder, name in zip(folders, names, strict=True)], out)


def change(path, edit):
    """Edit the JSON of a file; of a file with one row a line, its rows."""
    text = path.read_text(encoding="utf-8")
    lines = path.suffix == ".jsonl"
    content = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    edit(content)
    path.write_text("\n".join(map(json.dumps, content)) if lines else json.dumps(content), encoding="utf-8")


# --- The numbers ---


def test_every_share_follows_from_the_rows(trained, written):
    for folder, run in zip(trained, written.report.runs, strict=True):
        rows = [json.loads(line) for line in (folder / "certified.jsonl").read_text().splitlines()]
        radii = np.array([row["radius"] for row in rows])
        right = np.array([row["label"] == row["prediction"] for row in rows])
        assert run.images == run.accuracies[0].images == len(rows)
        assert run.natural == right.mean()
        eps = [entry.radius for entry in written.report.radii]
        assert eps == sorted({36 / 255, 72 / 255, 108 / 255, 0.5, 1.0, 0.3})
        assert list(run.certified) == [(radii > e).mean() for e in eps]
        assert run.curve[36] == (radii > 36 / 255).mean()
        assert run.curve[-1] < 0.005
        bins = run.histogram
        assert sum(bins.shares) + bins.beyond + bins.wrong == pytest.approx(1, abs=1e-12)
        assert bins.shares[0] == pytest.approx((right & (radii < bins.width)).mean(), abs=1e-12)
        assert [image.radius for image in run.most_robust] == sorted(radii, reverse=True)[:8]
        assert [image.radius for image in run.least_robust] == sorted(radii[right])[:8]
        assert all(rows[i.index]["radius"] == i.radius for i in (*run.most_robust, *run.least_robust))
    full, half = written.report.runs
    attack = json.loads((trained[0] / "attack-pgd.json").read_text())
    by_eps = {row["eps"]: row for row in attack["rows"]}
    assert {row.eps: row.attacked for row in full.attacked} == {eps: row["attacked"] for eps, row in by_eps.items()}
    whole, same, attacked = full.accuracies
    assert (whole.what, same.what, attacked.what) == ("certified", "certified, attacked images", "under PGD")
    assert (whole.images, same.images, attacked.images) == (397, 6, 6)
    for line, key in ((same, "certified"), (attacked, "attacked")):
        shown = dict(zip((entry.eps for entry in written.report.radii), line.shares, strict=True))
        assert shown == {eps: by_eps[eps][key] if eps in by_eps else None for eps in shown}
        assert line.natural == by_eps["0.5"]["natural"]
    assert half.attacked == ()
    assert (half.images, half.test_images) == (100, 397)
    assert half.verdict[0].startswith(f"{100 * half.certified[0]:.0f} of the first 100 test images (")
    assert (full.status, half.status) == ("proved", "not audited")
    assert written.ok
    assert written.report.notices == (
        "The runs were certified on different images: full on 397 images of digits, half on 100 images of digits. "
        "Compare their accuracies with care.",
    )


def test_classes_follow_from_the_rows(trained, written):
    steps = round(255 * written.report.largest_radius)
    for folder, run in zip(trained, written.report.runs, strict=True):
        rows = [json.loads(line) for line in (folder / "certified.jsonl").read_text().splitlines()]
        assert [each.name for each in run.classes] == [str(digit) for digit in range(10)]
        for digit, each in enumerate(run.classes):
            mine = [row for row in rows if row["label"] == digit]
            right = [row["radius"] for row in mine if row["prediction"] == digit]
            given = Counter(str(row["prediction"]) for row in mine)
            assert (each.images, each.correct, each.predictions) == (len(mine), len(right), given)
            assert each.median_radius == (np.median(right) if right else None)
            for step in (0, 1, 36, 108, steps):
                assert each.within(step) == sum(radius > step / 255 for radius in right)
            shares = [sum(r > entry.radius for r in right) / len(mine) for entry in written.report.radii]
            assert list(each.certified) == shares
        assert [run.within(step) / run.images for step in range(steps + 1)] == pytest.approx(list(run.curve))


def test_printed_bounds_are_rounded_up_and_radii_down():
    """The page said L ≤ 1.29708 of a constant that was 1.2970847."""
    assert constant(1.2970846897933805, 5) == "1.29709"
    assert (constant(1.0), constant(0.0)) == ("1.000000000", "0.000000000")
    assert constant(math.nextafter(1.0, 2)) == "1.000000001"
    assert constant(math.inf) == constant(None) == "∞"
    assert lower(0.9999999) == "0.999999"
    largest = math.nextafter(math.inf, 0)
    assert Decimal(constant(largest)) >= Decimal(largest)  # a network without training may have any constant
    assert constant(1e30) == "1.00000000001e+30"
    radii = {0.9999: "0.999", 0.01: "0.010", 0.009999: "0.0099", 0.0001: "0.00010", 0.0: "0.000", 12.3456: "12.345"}
    radii[1.23e-9] = "1.2e-9"
    for radius, text in radii.items():
        assert short(radius) == text
        assert Decimal(text) <= Decimal(radius)


def test_a_report_is_the_same_every_time(trained, written, tmp_path):
    again = report(trained, tmp_path / "report.html")
    assert again.page.read_bytes() == written.page.read_bytes()
    assert [path.name for path in again.files] == [path.name for path in written.files]
    for new, old in zip(again.files, written.files, strict=True):
        assert new.suffix == ".pdf" or new.read_bytes() == old.read_bytes(), new
    assert not list(tmp_path.rglob(".*"))  # no temporary file is left
    assert str(tmp_path.parent) not in written.page.read_text(encoding="utf-8")  # no path of this machine


def test_the_files_beside_the_page(written):
    folder = written.page.with_name("report_files")
    names = {path.relative_to(folder).as_posix() for path in written.files}
    figures = {"certified", "radii", "training"}
    assert names == {f"{name}.{kind}" for name in figures for kind in ("svg", "png", "pdf")} | {
        "report.md", "report.tex", "report.json", "robustbench/full.json", "robustbench/half.json"
    }  # fmt: skip
    for name in figures:
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert any(element.text for element in root.iter("{http://www.w3.org/2000/svg}text"))  # real text
        with Image.open(folder / f"{name}.png") as image:
            assert image.width > 1000
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert content == json.loads(written.report.model_dump_json())
    assert [run["name"] for run in content["runs"]] == ["full", "half"]
    assert "data:image" not in json.dumps(content)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert all(f"]({name}.png)" in text for name in figures)
    full = written.report.runs[0]
    assert f"| full | certified | 397 | {100 * full.natural:.1f} |" in text
    assert all(digest in text for digest in full.sha256.values())
    text = (folder / "report.tex").read_text(encoding="utf-8")
    assert f"full & certified & 397 & {100 * full.natural:.1f} & " in text
    lines = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert {line.count("&") for line in lines} == {9}
    assert len(lines) == 1 + 3 + 1


def test_robustbench_entries_say_only_what_is_known(trained, written, run):
    folder = written.page.with_name("report_files") / "robustbench"
    entry = json.loads((folder / "full.json").read_text())
    fields = "link name authors additional_data number_forward_passes dataset venue architecture eps clean_acc"
    assert {*fields.split(), "reported", "autoattack_acc", "footnote", "unreliable"} <= set(entry)
    assert entry["autoattack_acc"] is None  # PGD is not AutoAttack
    assert "not the standard AutoAttack" in entry["footnote"]
    half = json.loads((folder / "half.json").read_text())
    assert half["autoattack_acc"] is None
    assert half["clean_acc"] == f"{100 * written.report.runs[1].natural:.2f}"
    standard = {"method": "autoattack", "attacks": ["apgd-ce", "apgd-t", "fab-t", "square"]}
    (run / "attack-pgd.json").rename(run / "attack-autoattack.json")
    (run / "attack-pgd.jsonl").rename(run / "attack-autoattack.jsonl")
    change(run / "attack-autoattack.json", lambda attack: attack.update(standard))
    again = report([run], run / "report.html")
    entry = json.loads((run / "report_files" / "robustbench" / "full.json").read_text())
    row = again.report.runs[0].attacked_at("0.5")
    assert (entry["eps"], entry["autoattack_acc"]) == ("0.5", f"{100 * row.attacked:.2f}")
    assert entry["clean_acc"] == f"{100 * row.natural:.2f}"  # of the same images
    assert "6 test images" in entry["footnote"]


def test_the_train_command_gives_the_same_run(trained):
    for folder in trained:
        config = json.loads((folder / "config.json").read_text())
        words = shlex.split(train_command(config, "out"))
        assert words[:2] == ["lipcert", "train"]
        assert parse_words(words[2:]).settings() == TrainConfig(**config)
    assert train_command({"field": 1}, "old") == "lipcert train --config old/config.json --out NEW"


def test_an_unfinished_training_is_told_and_has_no_recipe(run, capsys):
    """A report offered ``lipcert train --epochs 60`` for weights of epoch 6."""
    change(run / "run.json", lambda record: record.update(step=5, steps=18))
    assert Report((run,)).run() == 0
    assert f"Note: {run.name}: training stopped at step 5 of 18." in capsys.readouterr().out
    (described,) = json.loads((run / "report_files" / "report.json").read_text(encoding="utf-8"))["runs"]
    assert described["unfinished"] == "training stopped at step 5 of 18"
    assert [line.split()[1] for line in described["commands"]] == ["audit", "certify", "attack", "check"]
    page = (run / "report.html").read_text(encoding="utf-8")
    ((_, notice),) = Parsed(page).all("p", role="note")
    assert notice.startswith("full is unfinished: training stopped at step 5 of 18.")
    for text in (page, (run / "report_files" / "report.md").read_text(encoding="utf-8")):
        assert "There is no recipe for these weights: training stopped at step 5 of 18" in text
        assert "lipcert train --model" not in text


def test_every_attack_has_its_lines(run):
    for kind in ("json", "jsonl"):
        shutil.copy(run / f"attack-pgd.{kind}", run / f"attack-quick.{kind}")
    change(run / "attack-quick.json", lambda attack: attack.update(method="quick", command="lipcert attack quick"))
    full = describe([Run(run)]).runs[0]
    assert [attack.method for attack in full.attacks] == ["pgd", "quick"]
    lines = [line.what for line in full.accuracies]
    assert lines == ["certified", "certified, attacked images", "under PGD", "under a quick attack"]
    assert full.attacked == full.attacks[0].rows  # the strongest is drawn
    assert "lipcert attack quick" in full.commands
    assert sum("robust accuracy of these images" in sentence for sentence in full.verdict) == 2


def test_a_report_does_not_freeze_again(run):
    """What is stored is what the numbers are about."""
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    describe([Run(run)])
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before


# --- Radii of other methods ---


def test_radii_of_other_methods_are_shown_and_smoothing_never_without_its_probability(run):
    whole = Run(run)
    whole.certify("local", examples=20, eps=(36 / 255,))
    whole.certify("smoothing", sigma=0.1, n=20, n0=10, examples=20)
    made = report([run], run / "report.html")
    full, local, smoothed = made.report.runs
    assert [part.name for part in made.report.runs] == ["full", "full (local)", "full (smoothing, probabilistic)"]
    assert [part.main for part in made.report.runs] == [True, False, False]
    assert [part.kind for part in made.report.runs] == ["deterministic", "deterministic", "probabilistic"]
    assert (full.status, local.status, smoothed.status) == ("proved", "proved", "probabilistic")
    for part, method in ((local, "local"), (smoothed, "smoothing")):
        rows = whole.by(method).examples
        assert part.images == len(rows) == 20
        eps = [entry.radius for entry in made.report.radii]
        assert list(part.certified) == [sum(row.radius > e for row in rows) / 20 for e in eps]
        assert part.certificate is None
        assert "no certificate file" in part.unchecked.lower()
        assert len(part.most_robust) == min(8, sum(row.prediction == row.label for row in rows))
        assert not part.images_missing
        # Only the first of a run has what is about the network itself.
        assert (part.layers, part.training, part.attacks) == ((), (), ())
    assert any("different guarantees" in notice for notice in made.report.notices)
    assert not smoothed.accuracies[0].proved
    assert "at most 0.001" in smoothed.claim
    assert "probability at least 0.999" in smoothed.verdict[0]
    again = [words for words in full.commands if words.startswith("lipcert certify")]
    assert [" --method" in words for words in again] == [False, True, True]
    assert "--eps 0.1411764705882353" in again[1]
    assert "--sigma 0.1 --n0 10 --n 20" in again[2]
    folder = run / "report_files"
    texts = [
        made.page,
        *(folder / name for name in ("report.md", "report.tex", "report.json", "certified.svg", "radii.svg")),
    ]
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert "(smoothing, probabilistic)" in text or path.suffix == ".svg", path
        assert text.count("(smoothing") == text.count("(smoothing, probabilistic)"), path
    for path in (made.page, folder / "report.md"):
        text = path.read_text(encoding="utf-8")
        assert "What a certificate says for full (smoothing, probabilistic)" in text
        assert "may be wrong, with a probability of at most 0.001" in text
    assert any("Do not rank one kind against the other" in notice for notice in made.report.notices)
    assert smoothed.accuracies[0].what == "certified with high probability"
    for name in ("report.md", "report.tex"):
        assert "accuracy is that of a smoothed classifier" in (folder / name).read_text(encoding="utf-8")
    assert {path.name for path in (folder / "robustbench").iterdir()} == {"full.json", "full_local.json"}


def test_a_run_that_is_only_smoothed_is_called_probabilistic(run):
    for path in (*run.glob("certif*"), *run.glob("attack*")):
        path.unlink()
    Run(run).certify("smoothing", sigma=0.1, n=20, n0=10, examples=5)
    (only,) = describe([Run(run)]).runs
    assert (only.name, only.main, only.status) == ("full (smoothing, probabilistic)", True, "probabilistic")
    assert only.layers


# --- The estimates of the layers ---


def as_matrix(function, shape):
    """The Jacobian of a linear map, column by column."""
    points = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    return (function(points) - function(torch.zeros_like(points))).flatten(1).T


def test_spectra_are_those_of_the_operators():
    """On a torus of 16 × 16 pixels the symbol on 16 × 16 frequencies has the singular values of the operator."""
    torch.manual_seed(0)
    conv = lc.ResidualConv2d(4, 3, 3, padding_mode="circular", bound="aol")
    strided = lc.ResidualConv2d(2, 4, 3, stride=2, groups=2, padding_mode="circular", bound="sll")
    dense, wide = lc.ResidualLinear(12, 7), lc.ResidualLinear(5, 9)
    head = lc.NormalizedHead(12, 4)
    for layer, pixels in ((conv, 16), (strided, 32)):  # a stride of 2 leaves 16 of 32
        (frozen,) = network = freeze(layer)
        (found,) = spectra_estimates(network)
        scale = frozen.gamma.double().sqrt()[:, None, None]
        kernel = frozen.weight.double() * scale[..., None]
        padded = lambda x, k=kernel, f=frozen: nn.functional.conv2d(  # noqa: E731
            nn.functional.pad(x, (1, 1, 1, 1), mode="circular"), k, stride=f.stride, groups=f.groups
        )
        channels = frozen.weight.shape[1] * frozen.groups
        matrix = as_matrix(padded, (channels, pixels, pixels))
        values = torch.linalg.eigvalsh(matrix @ matrix.T).clamp_min(0).sqrt()
        assert (found.kind, found.grid) == ("residual", 16)
        assert found.largest_estimate == pytest.approx(float(values.max()), rel=1e-10)
        assert found.largest_estimate <= 1
        assert found.mean_square_estimate == pytest.approx(float(kernel.flatten(1).square().sum(1).mean()))
        assert found.mean_square_estimate == pytest.approx(
            float(values.square().sum()) / 256 / len(kernel), rel=1e-6
        )
    for layer in (dense, wide):
        (frozen,) = network = freeze(layer)
        (found,) = spectra_estimates(network)
        values = torch.linalg.svdvals(frozen.weight.double() * frozen.gamma.double().sqrt()[:, None])
        assert found.quantiles[0] == found.largest_estimate == pytest.approx(float(values[0]))
        assert found.quantiles[-1] == pytest.approx(float(values[-1]))
        assert list(found.quantiles) == sorted(found.quantiles, reverse=True)
    (found,) = spectra_estimates(freeze(head))
    assert (found.kind, found.mean_square_estimate) == ("plain", pytest.approx(1))


def test_estimates_stay_below_what_is_proved(written):
    layers = written.report.runs[0].layers
    assert len(layers) == 8
    for layer in layers:
        assert 0 < layer.mean_share_estimate <= layer.share_estimate <= 1 + 1e-9
        assert layer.largest_estimate <= layer.proved_upper * (1 + 1e-9)
    assert {layer.op for layer in layers} == {"residual_conv", "residual_linear", "linear"}


# --- Records that do not agree ---


def attack_row(**new):
    return "attack-pgd.json", lambda attack: attack["rows"][0].update(new)


def swapped(rows):
    rows[0]["label"] = (rows[0]["label"] + 1) % 10


def enlarged(rows):
    next(row for row in rows if row["radius"] > 0)["radius"] += 0.1


def wrong_with_radius(rows):
    row = next(row for row in rows if row["radius"] > 0)
    row["prediction"] = (row["label"] + 1) % 10


CONTRADICTIONS = {
    "certified above attacked": (*attack_row(certified=0.9, attacked=0.5), "certified ≤ attacked.*at eps 36/255"),
    "attacked above natural": (*attack_row(attacked=1.0, natural=0.5), "attacked ≤ natural at eps 36/255"),
    "a certified image broken": (*attack_row(broken_certified=1), "eps 36/255.*1 certified images broken"),
    "other shares than the rows": (*attack_row(certified=0.0), "shares at eps 36/255 are not those of its rows"),
    "an attack on other weights": (
        "attack-pgd.json", lambda attack: attack.update(weights="0" * 64), "about other weights.*0000"
    ),
    "an audit of other weights": (
        "audit.json", lambda audit: audit.update(weights="0" * 64), "about other weights.*0000"
    ),
    "an attack on other images": ("attack-pgd.jsonl", swapped, "disagree at index 0, eps 36/255"),
    "a radius for a wrong answer": ("certified.jsonl", wrong_with_radius, "has a wrong answer and radius"),
    "a radius that nobody certified": ("certified.jsonl", enlarged, "certificate.json differ at index"),
    "rows left out": ("certified.jsonl", lambda rows: rows.pop(3), "row 3 has index 4"),
    "a share beyond 1": (*attack_row(natural=1.5), "rows.0.natural"),
    "an attack at no radius": ("attack-pgd.json", lambda attack: attack.update(rows=[]), "rows"),
    "a word for a number": ("audit.json", lambda audit: audit.update(lipschitz="one"), "lipschitz"),
    "no audit": ("audit.json", lambda audit: audit.clear(), r"ok: Field required.*Run lipcert audit"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_folder_that_contradicts_itself_is_refused(run, name):
    file, edit, message = CONTRADICTIONS[name]
    change(run / file, edit)
    with pytest.raises(ValueError, match=message) as refusal:
        report([run], run / "report.html")
    assert "\n" not in str(refusal.value)
    assert file in str(refusal.value)
    assert not (run / "report.html").exists()
    assert not (run / "report_files").exists()


def test_a_broken_image_inside_its_radius_is_a_contradiction(run):
    rows = [json.loads(line) for line in (run / "certified.jsonl").read_text().splitlines()]
    index = max(range(6), key=lambda i: rows[i]["radius"])

    def fall(content):
        for row in content:
            if row["index"] == index:
                row.update(outcome="broken", certified=False, distance=rows[index]["radius"] / 2)

    change(run / "attack-pgd.jsonl", fall)
    with pytest.raises(ValueError, match=f"certified.jsonl disagree at index {index}"):
        report([run], run / "report.html")


def test_a_certificate_of_other_weights_is_refused(trained, run):
    """Every tensor of the certificate must be that of the frozen network, bit for bit."""

    def flip(certificate):
        name = next(iter(certificate["tensors"]))
        certificate["tensors"][name] = "0" * 64

    change(run / "certificate.json", flip)
    with pytest.raises(ValueError, match=r"certificate.json is not a certificate of.*tensor 0\.0\.mean differs"):
        report([run], run / "report.html")
    shutil.copy(trained[1] / "model.safetensors", run)
    (run / "attack-pgd.json").unlink()
    (run / "audit.json").unlink()
    with pytest.raises(ValueError, match=r"certified.json is about other weights"):
        report([run], run / "report.html")


def test_radii_and_verdicts_that_name_no_weights_are_refused(trained, run):
    """A report said "with a proof" of radii that belonged to other weights, where nothing was left to tell."""
    change(run / "audit.json", lambda audit: audit.pop("weights"))
    with pytest.raises(ValueError, match=r"audit.json.*weights: Field required.*Run lipcert audit"):
        report([run], run / "report.html")
    (run / "audit.json").unlink()
    (run / "certificate.json").unlink()
    with pytest.raises(ValueError, match=r"has no certificate.json beside it.*Run lipcert certify"):
        report([run], run / "report.html")


@pytest.mark.parametrize(
    "file", ["audit.json", "certified.jsonl", "attack-pgd.jsonl", "config.json", "metrics.jsonl", "run.json"]
)
def test_a_damaged_file_is_refused_by_name(run, file):
    content = (run / file).read_bytes()
    for damaged in (content[:-9] + b"\xff{", content[:-9], b"[1]\n"):
        (run / file).write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(file)):
            report([run], run / "report.html")


def test_a_damaged_file_is_one_line_and_exit_code_2(run):
    (run / "attack-pgd.json").write_text("{")
    result = command("report", str(run))
    assert result.returncode == 2
    assert re.fullmatch(r"lipcert: .*attack-pgd\.json.*\n", result.stderr), result.stderr
    assert not (run / "report.html").exists()


def test_a_comparison_is_all_its_runs(run, tmp_path):
    """``report cmp`` was refused, and so was ``report cmp/runs/*``, which names the logs beside the runs too."""
    runs = tmp_path / "cmp" / "runs"
    for name in ("b", "a"):
        shutil.copytree(run, runs / name)
        (runs / f"{name}.log").write_text("a log")
        (runs / f"{name}.config.json").write_text("{}")
    shutil.copytree(run, tmp_path / "cmp" / "sweep" / "trial")
    (tmp_path / "cmp" / "comparison.json").write_text("{}")
    assert run_folders([tmp_path / "cmp"]) == [runs / "a", runs / "b"]
    assert run_folders(sorted(runs.iterdir())) == [runs / "a", runs / "b"]
    assert run_folders([run, tmp_path / "cmp"]) == [run, runs / "a", runs / "b"]


def test_bad_arguments_are_refused(run, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for folders, out, message in (
        ([], "a.html", "at least one run folder"),
        ([tmp_path / "none"], "a.html", "none is not a run folder"),
        ([run, run], "a.html", "full is named twice"),
        ([empty], "a.html", r"empty holds no run"),
        ([run / "config.json"], "a.html", r"config.json is not a run folder"),
    ):
        with pytest.raises(ValueError, match=message):
            report(folders, tmp_path / out)
    with pytest.raises(ValueError, match=r"must name an \.html file.*a\.pdf"):
        Report((run,), out=tmp_path / "a.pdf").run()
    assert file_names(["a/b", "a b", "..", "é"]) == ["a_b", "a_b~2", "run", "é"]


def test_a_refuted_layer_is_told_with_exit_code_1(run, capsys):
    def refute(audit):
        audit["ok"] = False
        audit["layers"][3].update(verdict="REFUTED", upper=math.inf)

    change(run / "audit.json", refute)
    assert Report((run,), json=True).run() == 1
    report = json.loads(capsys.readouterr().out)
    assert report["runs"][0]["status"] == "refuted"
    assert report["runs"][0]["audit"]["layers"][3]["upper"] is None
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Layer 0.3 (residual_conv) is REFUTED: do not rely on any number here." in page
    assert '<span class="badge refuted">refuted</span>' in page


# --- The page ---


class Parsed(html.parser.HTMLParser):
    """Tags in order, with their attributes and the text inside them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes), []))
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(self.tags[-1])

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, _, text in self.open:
            text.append(data)

    def all(self, tag, **wanted):
        return [
            (attributes, " ".join("".join(text).split()))
            for name, attributes, text in self.tags
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]


@pytest.fixture(scope="module")
def page(written):
    return Parsed(written.page.read_text(encoding="utf-8"))


def test_the_page_is_accessible(page):
    assert page.all("html", lang="en")
    assert page.all("a", href="#main")[0][1] == "Skip to the report"
    assert len(page.all("main")) == len(page.all("nav")) == len(page.all("h1")) == 1
    ids = Counter(attributes["id"] for _, attributes, _ in page.tags if "id" in attributes)
    assert max(ids.values()) == 1
    named = [value for _, attributes, _ in page.tags for value in attributes.get("aria-labelledby", "").split()]
    assert set(named) <= set(ids)
    headings = [int(tag[1]) for tag, *_ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(b <= a + 1 for a, b in pairwise(headings))  # no level is skipped
    drawings = page.all("svg", role="img")
    assert len(drawings) == 6  # three figures, wide and compact
    for attributes, _ in drawings:
        title, description = attributes["aria-labelledby"].split()
        assert page.all("title", id=title)[0][1]
        assert len(page.all("desc", id=description)[0][1]) > 40
    for attributes, _ in page.all("img"):
        assert re.fullmatch(r"Test image \d+, .+, certified radius [\d.e-]+", attributes["alt"])
        assert attributes["src"].startswith("data:image/png;base64,")
    tables = page.all("table")
    assert len(tables) == len(page.all("caption"))
    assert all(attributes.get("scope") in ("col", "row", "rowgroup") for attributes, _ in page.all("th"))
    assert all(name for _, name in page.all("button"))


def test_the_page_asks_for_nothing(written, page):
    (policy,) = [a["content"] for a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline'; script-src 'sha256-" in policy
    addresses = [a[key] for _, a, _ in page.tags for key in ("src", "href", "xlink:href", "action") if key in a]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    text = written.page.read_text(encoding="utf-8")
    assert not re.findall(r"@import|url\((?!#)", text)
    assert len(text) < 2_000_000


def test_the_page_shows_the_numbers(trained, written, page):
    full, half = written.report.runs
    cells = [text for _, text in page.all("td")]
    for run in (full, half):
        assert all(f"{100 * share:.2f}" in cells for share in (run.natural, *run.certified))
    assert all(any(digest in text for _, text in page.all("code")) for digest in full.sha256.values())
    data = lc.load_data("digits", "test")
    assert full.data_sha256 == {"images": data.sha256.images, "labels": data.sha256.labels}
    commands = " ".join(text for _, text in page.all("pre"))
    assert "lipcert train --epochs 3" in commands.replace("--model sll_nano ", "")
    assert full.attacks[0].command in commands
    assert "lipcert certify half --examples 100" in commands
    notes = " ".join(text for _, text in page.all("p", **{"class": "missing"}))
    assert "half: not audited. Run lipcert audit half." in notes
    assert [text for _, text in page.all("td", colspan="8")] == ["not tried yet: lipcert attack half"]
    verdicts = [text for a, text in page.all("td") if "verdict-PROVED" in a.get("class", "")]
    assert verdicts == ["PROVED"] * len(full.audit.layers)
    guide = [text for _, text in page.all("dt")]
    assert set(written.report.guide) <= set(guide)
    assert "of all 64 values of a 1×8×8 image by about 4.5 levels each" in written.report.guide["Radius"]
    boxes = [text for a, text in page.all("div") if a.get("class") == "panel certificate"]
    for run, box in zip((full, half), boxes, strict=True):
        claims = sum(row.radius > 0 for row in Run(trained[(full, half).index(run)]).examples)
        assert f"lipcert check {run.name}/certificate.json" in box
        assert f"a radius for {claims} of {run.images} test images" in box
        assert run.sha256["certificate.json"] in box


def test_the_matrix_counts_certified_answers(written, page):
    """The diagonal has what is certified within 36/255; a row adds up to the images of its class."""
    for position, run in enumerate(written.report.runs):
        sure = page.all("td", **{"class": "sure", "data-run": str(position)})
        assert [int(count) for _, count in sure] == [each.within(36) for each in run.classes]
        unsure = page.all("td", **{"class": "apart", "data-run": str(position)})
        assert [int(count) for _, count in unsure] == [each.correct - each.within(36) for each in run.classes]
    wrong = [int(count) for _, count in page.all("td", **{"class": "error"})]
    assert sum(wrong) == sum(each.images - each.correct for run in written.report.runs for each in run.classes)
    told = [attributes["data-tip"] for attributes, _ in page.all("td", **{"class": "error"})]
    assert all(re.fullmatch(r"\d+ of \d+ images of class \d are classified as \d", tip) for tip in told)


def test_a_large_constant_keeps_its_exponent(run):
    """The verdict cut the zero of 1.00000000001e+30, and so printed a bound that was too small."""

    def enlarge(audit):
        audit.update(lipschitz=1e30, backbone=1e20)

    change(run / "audit.json", enlarge)
    sentence = describe([Run(run)]).runs[0].verdict[1]
    for bound in re.findall(r"at most (\S+) ", sentence):
        assert Decimal(bound) >= Decimal("1e20")
    assert len(re.findall("e\\+[23]0", sentence)) == 2


def test_images_keep_their_pixels():
    generator = torch.Generator().manual_seed(0)
    for channels, mode in ((1, "L"), (3, "RGB"), (2, "L")):
        image = torch.randint(0, 256, (channels, 5, 7), generator=generator, dtype=torch.uint8)
        read = Image.open(io.BytesIO(base64.b64decode(png_uri(image).partition(",")[2])))
        assert (read.mode, read.size) == (mode, (7, 5))
        if channels != 2:
            assert torch.equal(torch.from_numpy(np.array(read)).view(5, 7, channels).permute(2, 0, 1), image)
            assert png_uri(image.float() / 255) == png_uri(image)


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_in_both_themes():
    """WCAG's ratio, at least 4.5, of every colour that text or a line has, on every ground."""
    for theme in (0, 1):
        for ground in ("page", "surface"):
            for name in COLORS.keys() - {"page", "surface", "rule"}:
                a, b = luminance(COLORS[name][theme]), luminance(COLORS[ground][theme])
                ratio = (max(a, b) + 0.05) / (min(a, b) + 0.05)
                assert ratio >= 4.5, (name, ground, theme, ratio)
    assert len({run_style(i).color for i in range(6)} & COLORS.keys()) == 6


def test_figures_follow_the_theme(written):
    lights = {light for light, _ in COLORS.values()}
    text = written.page.read_text(encoding="utf-8")
    drawn = re.findall(r'(?:fill|stroke)="([^"]*)"', text)
    assert "var(--run1)" in drawn
    assert not lights & set(drawn)
    assert {c for c in drawn if c.startswith("#") or c in ("black", "white")} == set()
    inside = '<clipPath id="c"/><g clip-path="url(#c)"/>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{inside}</svg>'
    assert 'id="a-c"' in themed_svg(svg, "a", "<t>", "d")
    assert "url(#a-c)" in themed_svg(svg, "a", "<t>", "d")
    assert "&lt;t&gt;" in themed_svg(svg, "a", "<t>", "d")


def test_missing_files_name_the_command_and_hostile_names_stay_text(trained, tmp_path):
    bare, again = tmp_path / HOSTILE, tmp_path / "deeper" / HOSTILE
    for folder, files in ((bare, ["run.json"]), (again, ["run.json", "config.json"])):
        folder.mkdir(parents=True)
        for file in ("model.safetensors", *files):
            shutil.copy(trained[0] / file, folder)
    change(again / "config.json", lambda config: config.update(data="</script><script>alert(1)//", model="<b>"))
    made = report([bare, again], tmp_path / "report.html")
    assert [run.status for run in made.report.runs] == ["not certified"] * 2
    assert len({run.name for run in made.report.runs}) == 2
    text = made.page.read_text(encoding="utf-8")
    page = Parsed(text)
    assert len(page.all("script")) == 2
    assert not page.all("img")
    assert not page.all("b")
    names = [text for _, text in page.all("h3")]
    assert sum(HOSTILE in name for name in names) >= 4
    notes = " ".join(text for _, text in page.all("p", **{"class": "missing"}))
    for what in ("lipcert certify", "lipcert audit", "no radii are certified yet", "was not trained here"):
        assert what in notes
    assert "classes" not in [attributes.get("id") for attributes, _ in page.all("section")]  # there is none
    for path in made.files:
        if path.suffix == ".svg":
            ElementTree.parse(path)
        if path.suffix == ".md":
            text = re.sub(r"(```+)\w+\n.*?\n\1", "", path.read_text(encoding="utf-8"), flags=re.S)
            assert "<" not in text
        if path.suffix == ".tex":
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.endswith(r" \\")]
            assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {8}
            assert sum(r"(1)>\&'" in line for line in lines) == 2
    if CHROMIUM:
        with Browser() as browser:
            browser.open(made.page)
            assert browser.faults() == []


# --- In a real browser ---

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no chromium; Debian: apt-get install chromium")


class Browser:
    """Headless Chromium, driven over its debugging pipe: JSON messages that end in a zero byte."""

    def __enter__(self):
        self.profile = tempfile.mkdtemp()
        theirs_in, self.send_to = os.pipe()
        self.read_from, theirs_out = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (theirs_in, theirs_out)]
        launch = ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "bash", CHROMIUM, *FLAGS]
        self.process = subprocess.Popen(
            [*launch, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs_in, theirs_out, *high):
            os.close(end)
        self.buffer, self.number, self.events, self.session = b"", 0, [], {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        os.close(self.send_to)
        os.close(self.read_from)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self.read_from, selectors.EVENT_READ)
                assert waiting.select(max(0.0, deadline - time.monotonic())), "chromium does not answer"
            part = os.read(self.read_from, 1 << 20)
            assert part, "chromium has ended"
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **self.session}
        os.write(self.send_to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 90
        while (answer := self.receive(deadline)).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path, width=1280, *, dark=False):
        self.events = []
        self.path = path
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 90
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive(deadline))
        self.evaluate("new Promise(done => setTimeout(done, 100))")  # what is logged just after loading

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def faults(self):
        """Errors and warnings of the console, exceptions, and requests for anything but the page itself."""
        found = []
        for event in self.events:
            method, about = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(("exception", about["exceptionDetails"].get("exception", {}).get("description")))
            elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(("console", about["args"]))
            elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(("log", about["entry"]["text"]))
            elif method == "Network.requestWillBeSent":
                url = about["request"]["url"]
                if url != self.path.resolve().as_uri() and not url.startswith("data:"):
                    found.append(("request", url))
        return found


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1600, True), (390, True), (360, False)])
def test_the_page_works_in_chromium(browser, written, width, dark):
    browser.open(written.page, width, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    size = "compact" if width < 640 else "wide"
    shown = "[...document.querySelectorAll('#figure-certified .{} path[stroke^=var]')].map(p => p.getBBox().width)"
    assert len([w for w in browser.evaluate(shown.format(size)) if w > 100]) == 2  # a curve for each run
    assert (
        browser.evaluate(f"document.querySelector('#figure-certified .{size}').getBoundingClientRect().height")
        > 200
    )
    color = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    expected = COLORS["page"][dark]
    assert color == f"rgb({', '.join(str(int(expected[i : i + 2], 16)) for i in (1, 3, 5))})"
    loaded = "[...document.images].every(image => image.complete && image.naturalWidth > 0)"
    assert browser.evaluate(loaded)
    assert browser.evaluate("document.images.length") == 32
    assert browser.faults() == []


@needs_chromium
def test_the_page_answers_to_keys(browser, written):
    browser.open(written.page)
    focused = "document.activeElement.textContent.trim() || document.activeElement.id"
    browser.press("Tab", 9)
    assert browser.evaluate(focused) == "Skip to the report"
    browser.press("Tab", 9)
    assert browser.evaluate(focused) == "Dark theme"
    light = browser.evaluate("getComputedStyle(document.body).color")
    browser.evaluate("document.activeElement.click()")
    assert browser.evaluate("getComputedStyle(document.body).color") != light
    assert browser.evaluate("document.activeElement.textContent") == "Light theme"
    reachable = "[...document.querySelectorAll('.scroll, pre')].every(box => box.tabIndex === 0)"
    assert browser.evaluate(reachable)

    browser.evaluate("document.getElementById('radius-certified').focus()")
    line = "document.querySelector('#figure-certified .wide [class*=cursor_marks] line').getAttribute('transform')"
    before = browser.evaluate(line)
    for _ in range(2):
        browser.press("ArrowRight", 39)
    full, half = written.report.runs
    chosen = set(browser.evaluate("[...document.querySelectorAll('.chosen')].map(each => each.textContent)"))
    assert chosen == {"38/255 ≈ 0.149"}
    assert browser.evaluate("document.getElementById('radius-classes').value") == "38"
    shown = "[...document.querySelectorAll('{}')].map(each => each.textContent)"
    told = browser.evaluate(shown.format("strong[data-show=share]"))
    assert told == [f"{100 * run.curve[38]:.2f}\u00a0%" for run in (full, half)]
    told = browser.evaluate(shown.format(".matrix td.sure"))
    assert told == [str(each.within(38)) for run in (full, half) for each in run.classes]
    told = browser.evaluate(shown.format(".matrix td[data-show=open]"))
    assert told == [str(each.correct - each.within(38)) for run in (full, half) for each in run.classes]
    told = browser.evaluate(shown.format(".classes td[data-show=share]"))
    expected = [100 * each.within(38) / each.images for run in (full, half) for each in run.classes]
    assert [float(text.rstrip("%\u00a0")) for text in told] == pytest.approx(expected, abs=0.051)
    row = full.attacked_at("36/255")
    attacked = [browser.evaluate(f"document.querySelector('[data-attacked=\"{i}\"]').textContent") for i in (0, 1)]
    between = f"{100 * row.certified:.2f}\u00a0% to {100 * row.attacked:.2f}\u00a0%"
    assert attacked == [f"{between}at 36/255, 6 images", "–"]
    assert browser.evaluate(line) != before

    browser.evaluate("document.getElementById('certified').scrollIntoView({behavior: 'instant'})")
    browser.evaluate("new Promise(done => setTimeout(done, 200))")  # scrolling hides what was told
    box = "(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('#figure-certified svg')"
    x, y = browser.evaluate(box + ".getBoundingClientRect())")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)  # the line comes to the pointer
    assert abs(browser.evaluate(line.replace("getAttribute('transform')", "getBoundingClientRect().x")) - x) < 3

    step = browser.evaluate("Number(document.getElementById('radius-certified').value)")
    tip = browser.evaluate("document.getElementById('tip').textContent")
    assert tip == f"certified within {step}/255 ≈ {short(step / 255)}: " + ", ".join(
        f"{run.name} {100 * run.curve[step]:.2f}\u00a0%" for run in (full, half)
    )

    column = "[...document.querySelectorAll('#layers .sortable tbody tr')].map(row => row.cells[4].textContent)"
    uppers = browser.evaluate(column)
    for wanted in (sorted(uppers, key=float), sorted(uppers, key=float, reverse=True)):
        browser.evaluate("document.querySelectorAll('#layers th button')[4].click()")
        assert browser.evaluate(column) == wanted
    assert browser.faults() == []


@needs_chromium
@pytest.mark.parametrize("figure", ["certified", "radii", "training"])
def test_marks_tell_their_values(browser, written, figure):
    browser.open(written.page)
    mark = f"document.querySelector('#figure-{figure} .wide [data-tip]:not(svg)')"
    browser.evaluate(f"{mark}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    browser.evaluate("new Promise(done => setTimeout(done, 200))")  # scrolling hides what was told
    x, y = browser.evaluate(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({mark}.getBoundingClientRect())")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tip = browser.evaluate("document.getElementById('tip').hidden || document.getElementById('tip').textContent")
    full = written.report.runs[0]
    row, first = full.attacked_at("36/255"), full.training[0]
    certified, survived, share = (
        f"{100 * s:.1f}\u00a0%" for s in (row.certified, row.attacked, full.histogram.shares[0])
    )
    assert (
        tip
        == {
            "certified": f"full, 36/255, attacked images: {certified} are certified, {survived} survived",
            "radii": f"full: {share} of the images have a radius from 0 to {full.histogram.width:.3g}",
            "training": f"full, epoch 1: loss {first['loss']:.4g}",
        }[figure]
    )
    assert browser.faults() == []


@needs_chromium
def test_the_page_prints_on_white(browser, written):
    browser.open(written.page, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    pdf = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")
    heights = "[...document.querySelectorAll('{}')].map(each => each.getBoundingClientRect().height)"
    assert min(browser.evaluate(heights.format("details:not(.data) table, .verdict"))) > 40  # also where folded
    assert set(browser.evaluate(heights.format("details.data"))) == {0}  # tables of numbers are for the screen
    assert browser.faults() == []


FAULTY = {
    "exception": ("<script>throw new Error('x')</script>", "exception"),
    "error": ("<script>console.error('x')</script>", "console"),
    "request": ("<img src='http://127.0.0.1:9/x.png'>", "request"),
    "file": ("<link rel='stylesheet' href='other.css'>", "request"),
    "policy": (
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\"><img src='http://127.0.0.1:9/'>",
        "log",
    ),
}


@needs_chromium
@pytest.mark.parametrize("name", FAULTY)
def test_the_browser_sees_faults(browser, tmp_path, name):
    """Would the tests above notice?"""
    body, kind = FAULTY[name]
    page = tmp_path / "faulty.html"
    page.write_text(f"<!doctype html><title>x</title><link rel='icon' href='data:,'>{body}", encoding="utf-8")
    browser.open(page)
    assert kind in {fault for fault, _ in browser.faults()}


# --- The command ---


def test_the_command_says_where_everything_is(run, tmp_path):
    second = shutil.copytree(run, tmp_path / "second")
    for file in ("attack-pgd.json", "attack-pgd.jsonl", "audit.json", "metrics.jsonl"):
        (second / file).unlink()
    result = command("report", "full", "second", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "report.html: open it in a browser." in result.stdout
    assert "second" in result.stdout
    assert (tmp_path / "report.html").is_file()  # of several runs: here
    assert not (run / "report.html").exists()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "lipcert attack second" in page
    assert sys.executable not in page
