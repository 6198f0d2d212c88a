"""A real Dask cluster on this machine, its processes, and waiting for them."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import ENVIRONMENT


@contextmanager
def start_cluster(folder):
    """A Dask scheduler and two worker processes of one thread: its address, and the workers."""
    distributed = pytest.importorskip("distributed")
    file, path = folder / "scheduler.json", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    started = []

    def start(module, *words):
        words = [sys.executable, "-m", f"distributed.cli.{module}", *words, "--scheduler-file", str(file)]
        with (folder / "log").open("a") as log:
            environment = {**ENVIRONMENT, "PYTHONPATH": path}
            started.append(subprocess.Popen(words, env=environment, cwd=folder, stdout=log, stderr=log))

    try:
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        while not file.is_file():
            assert started[0].poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        for _ in range(2):
            start("dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard")
        address = json.loads(file.read_text())["address"]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2)
        yield address, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def children_of(pid):
    files = Path(f"/proc/{pid}/task").glob("*/children")  # any thread may have started them
    return [int(word) for file in files for word in file.read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
