"""Run folders certified by every method: files of their own, kills, other settings, the checker, bad input."""

import json
import shutil
from pathlib import Path

import pytest

from lipcert.check import check
from lipcert.records import CERTIFIERS, CHECKED, RunFolder
from lipcert.runs import Run, train
from lipcert.training.config import TrainConfig
from processes import command

SETTINGS = {
    "lipschitz": {},
    "local": {"eps": (0.1, 0.3)},
    "lipsdp": {"steps": 5},
    "eclipse-fast": {},
    "sdp-crown": {"steps": 3, "tries": 2},
    "smoothing": {"sigma": 0.1, "n": 20},
}
PARTS = ("local", "sdp-crown")
EXAMPLES = 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small network of ReLU that all methods cover, trained for a moment."""
    settings = {"channels": 8, "dense_hidden": 32, "between": "relu"}
    config = TrainConfig(
        model="gloro_6c2f",
        overrides=settings,
        loss="gloro",
        epochs=4,
        learning_rate=0.003,
        batch_size=64,
        threads=1,
    )
    return train(config, tmp_path_factory.mktemp("runs") / "relu").folder


@pytest.fixture(scope="module")
def finished(trained, tmp_path_factory):
    """The same, certified by every method and audited by those of audit."""
    run = Run(shutil.copytree(trained, tmp_path_factory.mktemp("finished") / "relu"))
    for method, settings in SETTINGS.items():
        run.certify(method, examples=EXAMPLES, **settings)
    for method in CHECKED:
        run.audit(method, **({"steps": 5} if method == "lipsdp" else {}))
    return run.check()


@pytest.fixture
def run(finished, tmp_path):
    return Run(shutil.copytree(finished.folder, tmp_path / "relu"))


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".lock"}


def change(path, edit):
    lines = path.suffix == ".jsonl"
    text = path.read_text(encoding="utf-8")
    content = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    edit(content)
    path.write_text("\n".join(map(json.dumps, content)) if lines else json.dumps(content), encoding="utf-8")


def test_every_method_has_files_of_its_own(finished):
    assert set(SETTINGS) == set(CERTIFIERS)
    assert finished.methods == CERTIFIERS
    plain = [row.radius for row in finished.examples]
    for method in CERTIFIERS:
        view = finished.by(method)
        assert view.certified_file.name == (
            "certified.json" if method == "lipschitz" else f"certified-{method}.json"
        )
        assert view.about.weights == finished.weights
        assert len(view.examples) == EXAMPLES
        assert not view.certified_parts.exists()
        if method == "smoothing":
            continue
        # No method is worse than the constant of the whole network.
        assert all(row.radius >= radius for row, radius in zip(view.examples, plain, strict=True))
        about = view.certified_about
        assert (about.method, (about.cpu_seconds or 0) > 0) == (method, method != "lipschitz")
        assert set(about.settings) >= set(SETTINGS[method])
    assert any(row.radius > radius for row, radius in zip(finished.by("sdp-crown").examples, plain, strict=True))


def test_the_checker_verifies_joint_constants_and_there_is_no_file_for_the_others(finished):
    for method in CERTIFIERS:
        view = finished.by(method)
        if method in CHECKED:
            assert view.certified_about.certificate == view.certificate_file.name
            report = check(view.certificate_file)
            assert report.ok, report
            joint = json.loads(view.certificate_file.read_text(encoding="utf-8")).get("joint")
            assert (joint is None) == (method == "lipschitz")
        else:
            assert not view.certificate_file.exists()
            assert method == "smoothing" or view.certified_about.certificate is None


def test_a_larger_claim_is_refuted(run):
    view = run.by("lipsdp")
    change(
        view.certificate_file, lambda file: file.update(claims=[[i, c, (4.0).hex()] for i, c, _ in file["claims"]])
    )
    assert not check(view.certificate_file).ok
    with pytest.raises(ValueError, match=r"certificate-lipsdp.json differ at index"):
        run.check()


def test_the_same_settings_change_nothing_and_others_are_refused(run, tmp_path):
    before = contents(run.folder)
    for method, settings in SETTINGS.items():
        assert run.certify(method, examples=EXAMPLES, **settings).method == method
        with pytest.raises(ValueError, match=r"radii of 12 images of digits\. Add --restart"):
            run.certify(method, examples=3, **settings)
    with pytest.raises(ValueError, match=r"certified-local.json holds radii with eps \[0.1, 0.3\]; got \[0.2\]"):
        run.certify("local", examples=EXAMPLES, eps=(0.2,))
    with pytest.raises(ValueError, match=r"radii with steps 5; got 6.*--restart"):
        run.certify("lipsdp", examples=EXAMPLES, steps=6)
    assert contents(run.folder) == before
    other = run.certify("lipsdp", examples=3, steps=5, out=tmp_path / "other")
    assert contents(run.folder) == before
    assert check(other.certificate_file).ok
    run.certify("local", examples=3, eps=(0.2,), restart=True)
    assert len(run.by("local").examples) == 3
    changed = {name for name, content in contents(run.folder).items() if before[name] != content}
    assert changed == {"certified-local.json", "certified-local.jsonl"}


@pytest.mark.parametrize("method", PARTS)
def test_a_killed_certification_goes_on_where_it_was(run, finished, method):
    view = run.by(method)
    view.certified_file.unlink()
    view.examples_file.unlink()
    stop = KeyboardInterrupt()
    work = {"examples": EXAMPLES, "batch_size": 4, **SETTINGS[method]}

    def interrupt(done, total):
        assert total == EXAMPLES
        if done == 8:
            raise stop

    with pytest.raises(KeyboardInterrupt, match="is kept"):
        run.certify(method, show=interrupt, **work)
    parts = list(view.certified_parts.glob("[0-9]*.json"))
    assert len(parts) == 2
    assert run.by(method).about is None
    with pytest.raises(ValueError, match=f"unfinished certification by {method} with"):
        run.certify(method, **(work | {"examples": 8}))
    for part in parts:  # an hour each: they are read, not worked out again
        change(part, lambda content: content.update(cpu_seconds=3600.0))
    run.certify(method, **work)
    again = run.by(method)
    assert 7200 <= again.certified_about.cpu_seconds < 7800
    assert not again.certified_parts.exists()
    for row, whole in zip(again.examples, finished.by(method).examples, strict=True):
        assert row.radius == pytest.approx(whole.radius, rel=1e-6)  # sums of another batch in another order
    run.check()


@pytest.mark.parametrize("change_to", [{"radii": [5.0]}, {"predictions": None}, {"radii": [-1.0] * 4}])
def test_damaged_parts_are_refused(run, change_to):
    work = {"examples": 4, "eps": (0.1,), "restart": True}

    def interrupt(done, total):
        raise KeyboardInterrupt

    run.by("local").certified_file.unlink()
    with pytest.raises(KeyboardInterrupt):
        run.certify("local", show=lambda done, total: done and interrupt(done, total), **work)
    change(run.by("local").certified_parts / "0.json", lambda part: part.update(change_to))
    with pytest.raises(ValueError, match="damaged"):
        run.certify("local", examples=4, eps=(0.1,))


@pytest.mark.slow
def test_several_processes_give_the_same_rows(run):
    before = run.by("local").examples_file.read_bytes()
    words = ["--method", "local", "--examples", str(EXAMPLES), "--eps", "0.1", "0.3", "--restart", "--jobs", "2"]
    result = command("certify", str(run.folder), *words, "--batch-size", "16")
    assert result.returncode == 0, result.stderr
    assert run.by("local").examples_file.read_bytes() == before


def test_what_a_ball_proves_counts_as_certified_at_its_radius(run):
    """A radius of exactly 0.1 counted as uncertified at 0.1, so that balls of the reported radii were useless."""
    radius = sorted(row.radius for row in run.by("lipschitz").examples)[-3] * 0.9
    for method, settings in (("local", {"eps": (radius,)}), ("sdp-crown", {"radii": (radius,), "steps": 3})):
        view = run.certify(method, examples=EXAMPLES, restart=True, **settings)
        assert view.certified(radius) >= 3 / EXAMPLES


def test_contradictions_are_noticed(run, finished):
    def enlarged(rows):
        next(row for row in rows if row["radius"] > 0)["radius"] += 0.5

    def misplaced(rows):
        rows[0]["index"] = 1

    for method in PARTS:
        for edit, file in (
            (misplaced, "examples_file"),
            (lambda record: record.update(weights="0"), "certified_file"),
        ):
            path = getattr(run.by(method), file)
            change(path, edit)
            with pytest.raises(ValueError, match=path.name):
                run.check()
            shutil.copy(finished.folder / path.name, path)
    run.check()
    change(run.by("lipsdp").examples_file, enlarged)
    with pytest.raises(ValueError, match=r"certified-lipsdp.jsonl and certificate-lipsdp.json differ"):
        run.check()


def test_no_method_contradicts_an_attack(run):
    run.attack("quick", examples=EXAMPLES, eps=("0.3",), everything=True)
    run.check()
    row = next(row for row in run.attack_examples("quick") if row.outcome == "broken")

    def claim(rows):
        rows[row.index].update(radius=2 * row.distance, prediction=row.label)

    change(run.by("sdp-crown").examples_file, claim)
    with pytest.raises(ValueError, match=f"certified-sdp-crown.jsonl disagree at index {row.index}"):
        run.check()


def test_audits_by_method(finished):
    product, fast, best = (finished.by(method).audited for method in ("lipschitz", "eclipse-fast", "lipsdp"))
    assert best.lipschitz <= fast.lipschitz <= product.lipschitz
    assert best.largest_pairwise < product.largest_pairwise
    assert finished.by("local").audited == product
    result = command("audit", str(finished.folder), "--method", "eclipse-fast")
    assert result.returncode == 0, result.stderr
    assert "eclipse-fast" in result.stdout


def test_tables_say_what_the_radii_rest_on(finished):
    for method, words in (("local", ["--eps", "0.1", "0.3"]), ("lipsdp", ["--steps", "5"])):
        result = command("certify", str(finished.folder), "--method", method, "--examples", str(EXAMPLES), *words)
        assert result.returncode == 0, result.stderr
        assert f"certified, {method}" in result.stdout
        assert ("No certificate file exists" in result.stdout) == (method == "local")
        assert ("lipcert check" in result.stdout.replace("\nso", "")) or method == "local"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gram"], "--gram is a setting of local. Add --method local"),
        (["--method", "local", "--steps", "3"], "lipsdp and sdp-crown"),
        (["--method", "local", "--eps", "0"], "eps must be radii above 0"),
        (["--method", "eclipse-fast", "--steps", "3"], "lipsdp and sdp-crown"),
        (["--method", "lipsdp", "--steps", "0"], "steps must be an integer of at least 1"),
        (["--method", "lipsdp", "--jobs", "2"], "local, sdp-crown and smoothing"),
        (["--method", "sdp-crown", "--tries", "0"], "tries must be an integer of at least 1"),
        (["--method", "sdp-crown", "--radii", "0"], "radii must be positive"),
        (["--method", "sdp-crown", "--radii", "-1"], "--radii must be at least 0"),
        (["--method", "smoothing", "--sigma", "abc"], "lipcert: --sigma takes a number, got 'abc'."),
        (["--method", "smoothing", "--n", "3.5"], "lipcert: --n takes an integer, got '3.5'."),
        (["--batch-size", "x"], "lipcert: --batch-size takes an integer, got 'x'."),
        (["--method", "sdp-crown", "--radii", "0.1", "--tries", "3"], "Give one of them"),
        (["--method", "sdp-crown", "--sigma", "0.1"], "--sigma is a setting of smoothing"),
        (["--method", "lipdsp"], "invalid choice"),
    ],
)
def test_bad_usage_is_one_sentence_and_writes_nothing(trained, words, message):
    before = contents(trained)
    result = command("certify", str(trained), "--examples", "2", *words)
    assert result.returncode == 2, result.stdout
    assert result.stderr.startswith("lipcert: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not result.stdout
    assert contents(trained) == before


def test_networks_that_a_method_does_not_cover_are_refused(tmp_path):
    """A residual network has no plain sequence of layers, and MaxMin is no function of single neurons."""
    run = train(TrainConfig(model="sll_nano", steps=1, threads=1), tmp_path / "sll")
    before = contents(run.folder)
    for method, word in (
        ("lipsdp", "two linear layers"),
        ("eclipse-fast", "two linear"),
        ("sdp-crown", "sequence"),
    ):
        for action in (run.certify, run.audit)[: 1 + (method in CHECKED)]:
            with pytest.raises(ValueError, match=f"{method}.*{word}.*Use method='lipschitz'") as refusal:
                action(method)
            assert "\n" not in str(refusal.value)
    assert contents(run.folder) == before
    for words in (["audit", "--method", "local"], ["audit", "--steps", "3"]):
        result = command(words[0], str(run.folder), *words[1:])
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
    assert contents(run.folder) == before
    assert RunFolder(run.folder).methods == ()
