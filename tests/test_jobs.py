"""Jobs: processes that end with their starter, stores that never mix settings, and a real cluster."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from counting import counting
from lipcert.jobs import call, locked_log, open_store, open_workers
from paths import TESTS
from workers import alive, children_of, start_cluster, wait_for


@pytest.fixture(autouse=True)
def find_counting(monkeypatch):
    """The processes of jobs must find counting.py."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, sys.path)]))


def rows_of(folder):
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


COUNTED = "".join(f"{number}\n" for number in range(10))


def test_jobs_run_side_by_side_and_tell_when_each_is_done(tmp_path):
    done, ticks = [], []
    with open_workers(2, None, tmp_path) as workers:
        job = partial(counting, folder=str(tmp_path), pause=0)
        workers.run(job, ["a", "b", "c"], done.append, lambda: ticks.append(1))
    assert sorted(done) == ["a", "b", "c"]
    assert ticks
    assert rows_of(tmp_path) == dict.fromkeys(("a.txt", "b.txt", "c.txt"), COUNTED)
    assert "counted 9" in (tmp_path / "a.log").read_text()


def test_a_process_has_its_threads_and_its_exit_code(tmp_path):
    with locked_log(tmp_path / "log") as log:
        code, last = call(
            [], log, function=exec, arguments=("import os; print(os.environ['OMP_NUM_THREADS'])",), threads=3
        )
        assert (code, last) == (0, "3")
        assert call(["--version"], log)[1].startswith("lipcert ")
        assert call([], log, function=sys.exit, arguments=(7,))[0] == 7


def test_the_first_failure_tells_the_others_to_leave(tmp_path):
    def fail(name):
        if name == "bad":
            wait_for(lambda: (tmp_path / "slow.log").exists() and (tmp_path / "slow.log").read_text())
            raise OSError("bad")
        counting(name, str(tmp_path), 5)

    with pytest.raises(OSError, match="bad"), open_workers(2, None, tmp_path) as workers:
        workers.run(fail, ["slow", "bad", "never"])
    pid = int((tmp_path / "slow.log").read_text().split()[0])
    assert not alive(pid)
    assert not (tmp_path / "never.txt").exists()


def test_processes_end_with_a_killed_starter_and_the_next_one_waits_for_them(tmp_path):
    code = f"""
from counting import counting
counting("a", {str(tmp_path)!r}, 0.2)
"""
    starter = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: (tmp_path / "a.log").exists() and "counted 1" in (tmp_path / "a.log").read_text())
    pid = int((tmp_path / "a.log").read_text().split()[0])
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    counting("a", str(tmp_path), 0)  # waits for the lock that the orphan holds
    assert not alive(pid)
    assert rows_of(tmp_path) == {"a.txt": COUNTED}


def test_the_same_settings_continue_and_others_are_refused(tmp_path):
    settings = {"seeds": 2, "radii": (0.5, 1.0)}
    with open_store(tmp_path / "s", settings, what="a comparison") as store:
        assert store.load("part.json") is None
        store.save("part.json", {"rows": [1]})
        with pytest.raises(ValueError, match="in use"), open_store(tmp_path / "s", settings, what="a comparison"):
            pass
    with open_store(tmp_path / "s", settings, what="a comparison") as store:
        assert store.load("part.json") == {"rows": [1]}
    with (
        pytest.raises(ValueError, match=r"holds a comparison with seeds 2; got 3\..*--restart"),
        open_store(tmp_path / "s", {**settings, "seeds": 3}, what="a comparison"),
    ):
        pass
    with open_store(tmp_path / "s", {"seeds": 3}, what="a comparison", restart=True) as store:
        assert store.load("part.json") is None
        (store.folder / "part.json").write_text("[")
        with pytest.raises(ValueError, match="damaged"):
            store.load("part.json")
        store.remove()
    assert not (tmp_path / "s").exists()


def test_a_store_whose_settings_were_being_written_when_it_was_killed_is_opened(tmp_path):
    (tmp_path / ".123.settings.json").write_text('{"se')
    with open_store(tmp_path, {"seed": 1}, what="a test") as store:
        assert store.load("settings.json") == {"seed": 1}


@pytest.mark.parametrize("restart", [False, True])
def test_a_folder_of_other_things_is_never_taken(tmp_path, restart):
    (tmp_path / "thesis.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        with (
            pytest.raises(ValueError, match="does not hold"),
            open_store(folder, {}, what="a table", restart=restart),
        ):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


# A cluster: a scheduler and two worker processes.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with start_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def test_a_cluster_must_share_the_folder(cluster, tmp_path):
    address, _ = cluster
    distributed = pytest.importorskip("distributed")
    with distributed.Client(address, set_as_default=False) as client:
        blind = next(iter(client.nthreads()))
        client.run(_blind, True, workers=[blind])  # stands for a machine with other disks
        folder = tmp_path / "new" / "out"
        with pytest.raises(ValueError, match="share") as refused, open_workers(1, address, folder):
            pass
        assert blind in str(refused.value)
        assert "No such file" in str(refused.value)
        client.run(_blind, False, workers=[blind])
    assert not list(tmp_path.iterdir())


def _blind(on):
    import lipcert.jobs

    def read(file):
        raise FileNotFoundError(2, "No such file or directory", file)

    read.__module__, read.__qualname__ = "lipcert.jobs", "_read"
    if on:
        lipcert.jobs.seeing, lipcert.jobs._read = lipcert.jobs._read, read
    else:
        lipcert.jobs._read = lipcert.jobs.seeing


def test_no_scheduler_is_one_sentence(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("lipcert.jobs.ANSWER", 0.5)
    with pytest.raises(ValueError, match=r"--cluster must be.*tcp://127.0.0.1:9"):
        open_workers(1, "tcp://127.0.0.1:9", tmp_path).__enter__()


def test_an_interrupted_cluster_run_leaves_no_process_and_continues(cluster, tmp_path):
    address, _ = cluster

    def interrupt():
        if (tmp_path / "a.txt").exists():
            raise KeyboardInterrupt

    again = pytest.raises(KeyboardInterrupt, match="run the same command again")
    with again, open_store(tmp_path / "s", {}, what="a test"), open_workers(1, address, tmp_path) as workers:
        workers.run(partial(counting, folder=str(tmp_path), pause=0.3), ["a"], tick=interrupt)
    pid = int((tmp_path / "a.log").read_text().split()[0])
    wait_for(lambda: not alive(pid), 10)
    counting("a", str(tmp_path), 0)
    assert rows_of(tmp_path) == {"a.txt": COUNTED}


def test_a_killed_worker_loses_nothing_that_was_done(cluster, tmp_path):
    address, (_, victim) = cluster
    killed = []

    def kill():
        if not killed and all((tmp_path / f"{name}.txt").exists() for name in "ab"):
            killed.extend(children_of(victim.pid))
            victim.kill()
            victim.wait()

    with open_workers(1, address, tmp_path) as workers:
        workers.run(partial(counting, folder=str(tmp_path), pause=0.3), ["a", "b"], tick=kill)
    assert len(killed) == 1
    assert not alive(killed[0])
    assert rows_of(tmp_path) == {"a.txt": COUNTED, "b.txt": COUNTED}
    counted = [line for name in "ab" for line in (tmp_path / f"{name}.log").read_text().splitlines()]
    assert len({line.split()[0] for line in counted if "counted" in line}) == 3  # one job had to be continued
