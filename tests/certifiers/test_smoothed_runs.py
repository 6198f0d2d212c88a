"""Smoothing of run folders: its own files, the same rows from several processes and after any kill."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from full import full
from lipcert.records import RunFolder
from lipcert.runs import Run, train
from lipcert.training.config import TrainConfig
from processes import ENVIRONMENT, command
from workers import wait_for

WORDS = ("--method", "smoothing", "--sigma", "0.25", "--n", "2000", "--examples", "16")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A network trained with noise on the digits for a moment, and smoothed."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    config = TrainConfig(
        model="sll_nano", epochs=3, batch_size=128, learning_rate=0.02, threads=1, noise=0.25, evaluate_every=3
    )
    train(config, folder)
    return folder


@pytest.fixture(scope="module")
def smoothed(run_folder, tmp_path_factory):
    folder = Path(shutil.copytree(run_folder, tmp_path_factory.mktemp("whole") / "run"))
    result = command("certify", str(folder), *WORDS)
    assert result.returncode == 0, result.stderr
    assert "smoothed classifier" in result.stdout
    assert "probability at\nleast 0.999" in result.stdout
    return folder


@pytest.fixture
def run_copy(run_folder, tmp_path):
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def smoothed_by(folder):
    return RunFolder(folder).by("smoothing")


def rows(folder):
    return smoothed_by(folder).examples_file.read_bytes()


def parts_of(folder):
    return list(smoothed_by(folder).certified_parts.glob("[0-9]*.json"))


def test_the_record_says_what_it_is(smoothed):
    run = RunFolder(smoothed).check()
    about, examples = run.by("smoothing").smoothed_about, run.by("smoothing").examples
    assert (about.sigma, about.n, about.n0, about.alpha, about.confidence) == (0.25, 2000, 100, 0.001, 0.999)
    assert about.guarantee.startswith("Probabilistic")
    assert about.samples == sum(row.samples for row in examples) == 16 * 2000
    assert any(row.radius > 0.1 for row in examples)
    # Deterministic results are other files.
    assert not run.certified_file.exists()
    assert not run.certificate_file.exists()
    assert run.examples is None


def test_the_same_settings_return_what_is_there_and_others_are_refused(smoothed):
    before = rows(smoothed)
    again = command("certify", str(smoothed), *WORDS, "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["guarantee"].startswith("Probabilistic")
    other = command("certify", str(smoothed), *WORDS, "--alpha", "0.01")
    assert other.returncode == 2
    assert "--restart" in other.stderr
    assert rows(smoothed) == before


def test_deterministic_radii_stay_beside_it(smoothed, tmp_path):
    folder = Path(shutil.copytree(smoothed, tmp_path / "run"))
    before = rows(folder)
    Run(folder).certify(examples=16)
    assert rows(folder) == before
    RunFolder(folder).check()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", full(["1", "2"], ["1"]))
def test_a_killed_smoothing_goes_on_where_it_was(run_copy, smoothed, jobs):
    words = [sys.executable, "-m", "lipcert", "certify", str(run_copy), *WORDS, "--jobs", jobs]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(parts_of(run_copy)) >= 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = parts_of(run_copy)
    assert smoothed_by(run_copy).about is None
    for part in left:  # an hour each: they are read, not worked out again
        part.write_text(json.dumps({**json.loads(part.read_text()), "cpu_seconds": 3600.0}), encoding="utf-8")
    other = command("certify", str(run_copy), *WORDS, "--seed", "1")
    assert other.returncode == 2
    assert "unfinished smoothing with seed 0; got 1" in other.stderr
    result = command("certify", str(run_copy), *WORDS)
    assert result.returncode == 0, result.stderr
    assert rows(run_copy) == rows(smoothed)
    assert 3600 * len(left) <= smoothed_by(run_copy).about.cpu_seconds < 3600 * (len(left) + 3)
    assert not smoothed_by(run_copy).certified_parts.exists()


@pytest.mark.slow
def test_torchrun_gives_the_same_rows(run_copy, smoothed):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # torchrun takes --n for an option of its own.
    ours = [word if word != "--n" else "--samples" for word in WORDS]
    words = [*launch, "-m", "lipcert", "certify", str(run_copy), *ours]
    result = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Probabilistic") == 1
    assert rows(run_copy) == rows(smoothed)


def test_damaged_parts_are_refused(run_copy):
    settings = {"sigma": 0.25, "n": 20, "examples": 2}
    Run(run_copy).certify("smoothing", **settings)
    whole, run = rows(run_copy), smoothed_by(run_copy)
    for change in ({"radius": 5.0}, {"hits": 21}, {"samples": "many"}):
        stop = KeyboardInterrupt()

        def interrupt(done, total, stop=stop):
            if done == total:
                raise stop

        with pytest.raises(KeyboardInterrupt, match="is kept"):
            Run(run_copy).certify("smoothing", **settings, restart=True, show=interrupt)
        run.certified_file.unlink(missing_ok=True)
        part = run.certified_parts / "0.json"
        part.write_text(json.dumps(json.loads(part.read_text()) | change), encoding="utf-8")
        with pytest.raises(ValueError, match="damaged"):
            Run(run_copy).certify("smoothing", **settings)
    Run(run_copy).certify("smoothing", **settings, restart=True)
    assert rows(run_copy) == whole


def test_rows_that_contradict_the_record_are_noticed(smoothed, tmp_path):
    folder = Path(shutil.copytree(smoothed, tmp_path / "run"))
    run = smoothed_by(folder)
    lines = rows(folder).decode().splitlines()
    first = json.loads(lines[0])
    for wrong in ([json.dumps(first | {"radius": 0.1, "prediction": 9 - first["label"]}), *lines[1:]], lines[1:]):
        run.examples_file.write_text("\n".join(wrong) + "\n", encoding="utf-8")
        run.refresh()
        with pytest.raises(ValueError, match="smoothing"):
            run.check()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "smoothing"], "--sigma"),
        (["--sigma", "0.25"], "--method smoothing"),
        (["--method", "smoothing", "--sigma", "0"], "sigma must be above 0"),
        (["--method", "smoothing", "--sigma", "0.25", "--alpha", "1"], "alpha"),
        (["--method", "smoothing", "--sigma", "0.25", "--n", "5"], "at least 10"),
        (["--method", "smoothing", "--sigma", "0.25", "--n0", "0"], "n0"),
        (["--jobs", "2"], "smoothing"),
        (["--method", "smoothing", "--sigma", "0.25", "--steps", "3"], "lipsdp and sdp-crown"),
    ],
)
def test_bad_usage_is_one_sentence(run_folder, words, message):
    result = command("certify", str(run_folder), "--examples", "2", *words)
    assert result.returncode == 2
    assert result.stderr.startswith("lipcert: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not result.stdout
