"""The fair comparison: equal budgets, honest rows, and the same rows after any kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lipcert.cli.compare import notes, tables
from lipcert.experiments.compare import Row
from lipcert.experiments.comparison import NOISE, Comparison, finals, recipe, slug, sweep
from lipcert.experiments.plan import (
    AUDIT,
    CERTIFY,
    CERTIFY_LOCALLY,
    Failed,
    Job,
    attack_stage,
    diverged,
    run,
    spread,
)
from lipcert.jobs import open_store, open_workers
from lipcert.records import RunFolder
from lipcert.reports.tables import latex, markdown_table
from lipcert.runs import Run
from processes import ENVIRONMENT, command
from workers import alive, children_of, start_cluster

FLAGS = ["--methods", "sll", "orthogonal", "--size", "nano", "--seconds", "0.4", "--seeds", "2", "--attack", "none"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "whole"
    rates = ["--learning-rates", "0.001", "0.01"]
    result = command("compare", *FLAGS, *rates, "--jobs", "2", "--out", str(out))
    assert result.returncode == 0, result.stderr
    return out, result


def rows_of(out):
    return json.loads((out / "comparison.json").read_text())


def test_every_run_has_its_budget_its_best_rate_and_its_certificate(finished):
    out, result = finished
    cost = {row["model"]: row["step_seconds"] for row in json.loads((out / "cost.json").read_text())["rows"]}
    rates = {row["method"]: row for row in json.loads((out / "rates.json").read_text())["rows"]}
    rows = rows_of(out)
    assert [row["method"] for row in rows] == ["sll", "orthogonal"]
    for row in rows:
        method = row["method"]
        tried = rates[method]["certified 36/255"]
        assert set(tried) == {"0.001", "0.01"}
        assert tried[str(row["learning_rate"])] == max(tried.values())
        assert row["steps"] == max(1, int(0.4 / cost[f"{method}_nano"]))
        for seed in range(2):
            folder = out / f"runs/digits-{method}-{seed}"
            config = json.loads((folder / "config.json").read_text())
            assert (config["seed"], config["steps"], config["threads"]) == (seed, row["steps"], 1)
            assert config["learning_rate"] == row["learning_rate"]
            assert config["validation"] == 0
            for name in ("certificate.json", "audit.json", "run.json"):
                assert (folder / name).is_file()
        trial = json.loads((out / f"sweep/digits-{method}-0.01/config.json").read_text())
        assert trial["validation"] == 280  # a fifth of the 1,400 training digits
        assert trial["steps"] == max(1, round(row["steps"] / 2))
        mean = sum(RunFolder(out / f"runs/digits-{method}-{seed}").natural for seed in range(2)) / 2
        assert row["natural"]["mean"] == pytest.approx(mean, rel=1e-12)
    assert max(len(line) for line in result.stdout.splitlines()[:-1]) <= 80
    assert "\x1b" not in result.stdout


def test_the_plan_and_its_time_are_told_first_and_every_run_is_in_the_log(finished):
    out, result = finished
    lines = result.stderr.splitlines()
    told = next(line for line in lines if line.startswith("compare: 4 trials of learning rates, then the table; "))
    assert "8 trainings, certify, audit: about" in told
    assert "of CPU time" in told
    assert "with 2 at a time" in told
    done = [line for line in lines if line.startswith("training steps: ") and " done, " in line]
    assert len(done) == 8
    assert lines.index(told) < lines.index(done[0])
    assert done[-1].endswith(" done, 4 of 4 runs")
    assert {path.name for path in (out / "runs").iterdir()} == {
        f"digits-{method}-{seed}" for method in ("sll", "orthogonal") for seed in range(2)
    }


def test_a_finished_comparison_is_not_run_again(finished):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix in (".safetensors", ".jsonl")}
    rates = ["--learning-rates", "0.001", "0.01"]
    again = command("compare", *FLAGS, *rates, "--json", "--out", str(out))
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    shown = json.loads(again.stdout)
    assert [row["method"] for row in shown] == ["sll", "orthogonal"]
    changed = command("compare", *FLAGS, *rates, "--seeds", "3", "--out", str(out))
    assert changed.returncode == 2
    assert "seeds" in changed.stderr
    assert changed.stderr.count("\n") == 1


ONE = ["--methods", "sll", "--size", "nano", "--seconds", "4", "--seeds", "1", "--attack", "none"]
ONE += ["--learning-rates", "0.01"]
RUN = "runs/digits-sll-0"


def priced(folder):
    """A comparison that knows its costs, so that every copy of it takes the same steps."""
    folder.mkdir()
    settings = Comparison(methods=("sll",), size="nano", seeds=1, learning_rates=(0.01,), seconds=4)
    (folder / "settings.json").write_text(json.dumps(settings.model_dump(mode="json")))
    rows = [{"data": "digits", "model": "sll_nano", "step_seconds": 0.08, "forward_seconds": 0.001}]
    (folder / "cost.json").write_text(json.dumps({"rows": rows}))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run, uninterrupted."""
    out = priced(tmp_path_factory.mktemp("one") / "whole")
    result = command("compare", *ONE, "--out", str(out))
    assert result.returncode == 0, result.stderr
    return out


def assert_same(parts, whole):
    for file in ("certified.jsonl", "metrics.jsonl", "model.safetensors"):
        assert (parts / RUN / file).read_bytes() == (whole / RUN / file).read_bytes(), file
    timings = ("inference_seconds", "peak_bytes")
    for ours, theirs in zip(rows_of(parts), rows_of(whole), strict=True):
        assert {k: v for k, v in ours.items() if k not in timings} == {
            k: v for k, v in theirs.items() if k not in timings
        }


def start(out, *words):
    """A comparison that has begun to train."""
    words = [sys.executable, "-m", "lipcert", "compare", *ONE, "--out", str(out), *words]
    process = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / RUN / "state.pt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


def test_a_killed_comparison_gives_the_same_rows(whole, tmp_path):
    parts = priced(tmp_path / "parts")
    process = start(parts)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(str(parts) in words for words in running()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(str(parts) in words for words in running()), "a training outlived the comparison that started it"
    assert not (parts / "comparison.json").exists()
    result = command("compare", *ONE, "--out", str(parts))
    assert result.returncode == 0, result.stderr
    assert_same(parts, whole)


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_gives_the_same_rows(whole, tmp_path):
    parts = priced(tmp_path / "parts")
    with start_cluster(tmp_path) as (address, workers):
        process = start(parts, "--cluster", address)
        (victim,) = [worker for worker in workers if children_of(worker.pid)]
        (training,) = children_of(victim.pid)
        victim.kill()
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert not alive(training)
    known = ("compare: ", "training steps: ")
    assert not [line for line in said.splitlines() if not line.startswith(known)]
    assert_same(parts, whole)


def running():
    """The command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().decode(errors="replace")
        except OSError:
            continue


DIGITS = {"digits": {"train": 1400, "test": 397}, "nowhere.npz": {"train": 1, "test": 1}}


def test_a_divergence_is_a_result_and_a_failure_is_not(tmp_path):
    plan = Comparison(methods=("sll",), size="nano", seeds=1, epochs=1, learning_rates=(0.01,))
    (job,) = finals(plan, {("digits", "sll"): 20}, {("digits", "sll"): 1e38})
    heard = []
    with open_workers(1, None, tmp_path) as workers:
        run([job], tmp_path, workers, DIGITS, lambda done, total, note="", log=False: heard.append(note))
        assert diverged(tmp_path, job)
        assert "runs/digits-sll-0 diverged, 1 of 1 runs" in heard
        config = job.config.model_copy(update={"data": "nowhere.npz", "learning_rate": 0.01})
        with pytest.raises(Failed, match=r"missing: lipcert train failed.*nowhere"):
            run([Job("missing", config)], tmp_path, workers, DIGITS, lambda *heard, **more: None)


def test_an_interrupted_training_is_no_finished_one(tmp_path):
    plan = Comparison(methods=("sll",), size="nano", seeds=1, epochs=1, learning_rates=(0.01,))
    (job,) = finals(plan, {("digits", "sll"): 60}, {("digits", "sll"): 0.01})

    def trainings():
        children = children_of(os.getpid())
        return [pid for pid in children if b"lipcert.jobs" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def train_with(interrupt):
        told = set()

        def show(done, total, note="", log=False):
            if 0 < done < total and not told:
                (training,) = trainings()
                told.add(training)  # once: a second signal ends a process that is still saving
                interrupt(training)

        with (
            open_store(tmp_path / "out", {}, what="a comparison") as store,
            open_workers(1, None, tmp_path) as workers,
        ):
            run([job], store.folder, workers, DIGITS, show)

    def interrupt_command(training):
        raise KeyboardInterrupt

    with pytest.raises(Failed, match=r"lipcert train was interrupted \(exit code 130\); what is done is kept"):
        train_with(lambda training: os.kill(training, signal.SIGINT))
    stopped = RunFolder(tmp_path / "out" / job.name).record
    assert 0 < stopped.step < stopped.steps == 60
    with pytest.raises(KeyboardInterrupt, match="what is done is kept; run the same command again to continue"):
        train_with(interrupt_command)
    assert not trainings()
    stopped = RunFolder(tmp_path / "out" / job.name)
    assert stopped.unfinished
    train_with(lambda training: None)
    assert RunFolder(tmp_path / "out" / job.name).unfinished is None


def test_runs_that_contradict_themselves_are_refused(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0] / "runs/digits-sll-0", folder)
    run = Run(folder).check()
    row = {"eps": "36/255", "radius": 36 / 255, "examples": 10, "natural": 0.5, "certified": 0.2, "attacked": 0.3}
    row |= {"points_attacked": 3, "broken_certified": 0}
    about = {"format": "lipcert-attack-2", "method": "pgd", "attacks": ["pgd"], "examples": 10, "all": False}
    about |= {"seed": 0, "data": "digits", "images": "", "weights": run.weights, "command": "", "cpu_seconds": 1.0}
    for attacked in (0.3, 0.1, 0.6):
        run.attack_file("pgd").write_text(json.dumps({**about, "rows": [row | {"attacked": attacked}]}))
        if attacked == 0.3:
            assert Run(folder).check().attacked.rows[0].attacked == 0.3
        else:
            with pytest.raises(ValueError, match="certified ≤ attacked ≤ natural"):
                Run(folder).check()


def test_a_plan_is_checked_before_anything_starts(tmp_path):
    for words, said in (
        (["--methods", "sll", "nonsense"], "nonsense_tiny"),
        (["--methods", "sll", "sll"], "each of them once"),
        (["--seconds", "0"], "seconds"),
        (["--epochs", "3", "--seconds", "5"], "not both"),
    ):
        result = command("compare", *words, "--out", str(tmp_path / "new"))
        assert result.returncode == 2, words
        assert said in result.stderr
        assert not (tmp_path / "new").exists()


def test_the_plan_is_all_methods_of_a_seed_before_the_next():
    plan = Comparison(methods=("sll", "aol"), data=("digits", "my folder/data set"), seeds=2)
    keys = {(data, method): 4 for data in plan.data for method in plan.methods}
    names = [job.name for job in finals(plan, keys, dict.fromkeys(keys, 0.01))]
    assert names[:4] == ["runs/digits-sll-0", "runs/digits-aol-0", "runs/digits-sll-1", "runs/digits-aol-1"]
    assert names[4] == "runs/data_set-sll-0"
    assert len({job.name for job in sweep(plan, keys, dict.fromkeys(plan.data, 5))}) == 16
    assert slug("/") == "data"


def test_a_budget_is_seconds_or_epochs_and_a_minute_without_either():
    assert Comparison().steps(0.5, 1000) == 120
    assert Comparison(seconds=1).steps(0.3, 1000) == 3
    assert Comparison(seconds=1).steps(7.0, 1000) == 1
    assert Comparison(epochs=2).steps(0.5, 1000) == 2 * 4


def test_every_method_is_trained_and_certified_by_its_recipe():
    methods = ("sll", "gloro", "local", "liresnet", "liresnet+emma-annealing", "sll+emma", "smoothing")
    plan = Comparison(methods=methods, size="nano", seeds=1, learning_rates=(0.001, 0.01))
    keys = [("digits", method) for method in methods]
    common = (CERTIFY, AUDIT, attack_stage("quick", 5))
    jobs = dict(zip(methods, finals(plan, dict.fromkeys(keys, 7), dict.fromkeys(keys, 0.01), common), strict=True))
    losses = {method: job.config.loss for method, job in jobs.items()}
    assert list(losses.values()) == ["offset", "gloro", "local", "emma", "emma-annealing", "emma", "offset"]
    assert len({job.key for job in jobs.values()}) == len({job.name for job in jobs.values()}) == len(methods)
    assert jobs["smoothing"].config.model == "gloro_nano"
    assert (jobs["smoothing"].config.noise, jobs["smoothing"].config.offset) == (NOISE, 0)
    assert jobs["local"].stages == (*common, CERTIFY_LOCALLY)
    assert [stage.method for stage in jobs["smoothing"].stages] == [
        "smoothing",
        "",
    ]  # no attack on another classifier
    assert jobs["sll+emma"].stages == common
    trials = sweep(plan, dict.fromkeys(keys, 7), {"digits": 10})
    assert len({job.name for job in trials}) == 2 * len(methods)
    with pytest.raises(ValueError, match="'emna' is no loss"):
        recipe("sll+emna")


def test_tables_call_smoothing_probabilistic():
    half = spread([0.5])
    certified = dict.fromkeys(("36/255", "72/255", "108/255", "0.5", "1"), half)
    common = {"data": "digits", "learning_rate": 0.1, "steps": 1, "seeds": 1, "diverged": 0, "natural": half}
    common |= {"certified": certified, "attacked": {}, "attack_examples": 0, "parameters": 1, "step_seconds": 1.0}
    common |= {"inference_seconds": 1.0, "peak_bytes": 1}
    rows = [
        Row(method="sll", **common),
        Row(method="smoothing", **common, certified_by="smoothing", images=200, probability=0.999),
    ]
    _, _, lines = tables(rows)[0]
    assert [line[0] for line in lines] == ["sll", "smoothing (probabilistic)"]
    (note,) = (" ".join(text.split()) for text in notes(rows))
    assert "smoothed classifier on 200 images" in note
    assert "at least 0.999" in note
    assert notes(rows[:1]) == []


def test_mean_and_spread():
    assert spread([0.5]).percent() == "50.0"
    assert spread([0.5, 0.6, 0.7]).percent() == "60.0 ± 10.0"


def test_tables_escape_what_their_formats_would_read():
    header, lines = ["a|b", "50 %"], [["x_1", "1.0 ± 0.2"]]
    assert markdown_table(header, lines) == "| a\\|b | 50 % |\n|---|---:|\n| x_1 | 1.0 ± 0.2 |"
    assert latex("50 % of x_1 is 1.0 ± 0.2") == r"50 \% of x\_1 is 1.0 $\pm$ 0.2"


def test_costs_are_measured_on_one_thread_and_leave_the_threads_as_they_were():
    from lipcert.data.registry import load_data
    from lipcert.experiments.cost import step_seconds

    plan, data, threads = Comparison(size="nano"), load_data("digits", "train"), torch.get_num_threads()
    configs = {m: (plan.config("digits", m, 0.01, 1), data) for m in ("sll", "sn")}
    cost = step_seconds(configs, repeats=2)
    assert torch.get_num_threads() == threads
    assert (
        0 < cost["sll"] < cost["sn"]
    )  # the proved spectral bound of a convolution costs many times the forward pass
