"""An attack in shards: the same rows from one process, several, a cluster, and after any kill."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lipcert.records import RunFolder
from lipcert.runs import train
from lipcert.training.config import TrainConfig
from processes import ENVIRONMENT, command
from workers import alive, children_of, start_cluster, wait_for

LONG = ("--method", "quick", "--examples", "120", "--all", "--eps", "0.5", "1")
PGD = ("--method", "pgd", "--examples", "40", "--eps", "0.5")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A network trained on the digits for a moment, and certified."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    train(TrainConfig(model="sll_nano", epochs=3, batch_size=128, learning_rate=0.02, threads=1), folder).certify()
    return folder


@pytest.fixture
def run_copy(run_folder, tmp_path):
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


@pytest.fixture(scope="module")
def uninterrupted(run_folder, tmp_path_factory):
    folder = Path(shutil.copytree(run_folder, tmp_path_factory.mktemp("whole") / "run"))
    assert command("attack", str(folder), *LONG).returncode == 0
    return rows(folder)


def rows(folder, method="quick"):
    return RunFolder(folder).attack_file(method).with_suffix(".jsonl").read_bytes()


def parts_of(folder):
    parts = RunFolder(folder).attack_parts("quick").glob("*.json")
    return sorted(path for path in parts if path.name != "settings.json" and path.name[0] != ".")


@pytest.mark.slow
def test_two_processes_give_the_same_rows(run_copy, uninterrupted):
    result = command("attack", str(run_copy), *LONG, "--jobs", "2")
    assert result.returncode == 0, result.stderr
    assert rows(run_copy) == uninterrupted


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_gives_the_same_rows(run_copy, uninterrupted, tmp_path):
    with start_cluster(tmp_path) as (address, workers):
        words = [sys.executable, "-m", "lipcert", "attack", str(run_copy), *LONG, "--cluster", address]
        process = subprocess.Popen(
            words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        busy = []

        def working():
            busy[:] = [worker for worker in workers if children_of(worker.pid)]
            return busy and parts_of(run_copy)

        wait_for(working)
        busy[0].kill()
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert not [line for line in said.splitlines() if not line.startswith("attacking: ")]
    assert rows(run_copy) == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_attack_goes_on_where_it_was(run_copy, uninterrupted, jobs):
    words = [sys.executable, "-m", "lipcert", "attack", str(run_copy), *LONG, "--jobs", jobs]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = set()
    wait_for(lambda: children.update(children_of(process.pid)) or len(parts_of(run_copy)) >= 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(map(alive, children)))  # nobody works on for a dead parent
    assert (len(children) > 0) == (jobs == "2") or not Path("/proc/self/task").is_dir()
    left = parts_of(run_copy)
    assert RunFolder(run_copy).attacked is None
    for part in left:  # an hour each: they are read, not worked out again
        part.write_text(json.dumps({**json.loads(part.read_text()), "cpu_seconds": 3600.0}), encoding="utf-8")
    other = command("attack", str(run_copy), *LONG, "--seed", "1")
    assert other.returncode == 2
    assert other.stderr.startswith("lipcert: ")
    assert "unfinished attack with seed 0; got 1" in other.stderr
    assert "--restart" in other.stderr
    assert other.stderr.count("\n") == 1
    assert command("attack", str(run_copy), *LONG).returncode == 0
    assert rows(run_copy) == uninterrupted
    record = RunFolder(run_copy).attacked
    assert 3600 * len(left) < record.cpu_seconds < 3600 * (len(left) + 1)
    assert not RunFolder(run_copy).attack_parts("quick").exists()


def test_damaged_parts_and_those_of_other_settings_are_not_mixed_in(run_copy):
    assert command("attack", str(run_copy), *PGD).returncode == 0
    whole, run = rows(run_copy, "pgd"), RunFolder(run_copy)
    run.attack_file("pgd").unlink()
    parts = run.attack_parts("pgd")
    parts.mkdir()
    for text in ("{", '{"weights": "0"}'):
        (parts / "settings.json").write_text(text, encoding="utf-8")
        result = command("attack", str(run_copy), *PGD)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert "--restart" in result.stderr
    assert rows(run_copy, "pgd") == whole  # what was there is unchanged
    assert command("attack", str(run_copy), *PGD, "--restart").returncode == 0
    assert rows(run_copy, "pgd") == whole
