"""Work in separate processes that can be killed and continued, on this machine or on a cluster.

A job is a function that starts a process with ``call`` and leaves its results in files. Jobs run on any executor of
``concurrent.futures``: threads of this process, or the workers of a Dask scheduler. ``Store`` is the folder of what
is finished. The same settings continue it and other settings are refused, so that results never mix.

Run as a module, this file is the process of a job. It ends with whoever started it, even if that was killed: it
reads standard input, a pipe that its starter holds open, and sends itself SIGTERM when the pipe closes.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO, TypeVar

from lipcert.errors import name_extra
from lipcert.files import content, locked, try_lock, write_json

T = TypeVar("T")
KEPT = "what is done is kept; run the same command again to continue"
POLL = 0.5  # seconds between two looks at a process
ANSWER = 20.0  # seconds that a scheduler may take to answer
PATIENCE = 120.0  # seconds that a process may take to save its state and leave
SETTINGS = "settings.json"


class Store:
    """A folder of finished work, one JSON object per file. Made by ``open_store``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, name: str) -> dict[str, Any] | None:
        """The JSON object of a file, or None if there is no such file."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(value, dict):
                return value
        except ValueError:
            pass
        raise damaged(path)

    def save(self, name: str, value: Mapping[str, Any]) -> None:
        write_json(self.folder / name, value)

    def remove(self) -> None:
        shutil.rmtree(self.folder)


@contextmanager
def open_store(folder: Path, settings: Mapping[str, Any], *, what: str, restart: bool = False) -> Iterator[Store]:
    """The store in ``folder``, for this process alone.

    Args:
        folder: new, empty, or a store with the same settings, which is continued.
        settings: all that decides the results, as JSON.
        what: what the folder holds, for messages: "a comparison".
        restart: delete a store with whatever settings first.

    Raises:
        ValueError: for other settings, another kind of folder, or one that another process works in.
    """
    if folder.exists() and not (folder / SETTINGS).is_file() and (not folder.is_dir() or content(folder)):
        raise ValueError(f"{folder} is not empty and does not hold {what}. Choose a new or empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    store, now = Store(folder), json.loads(json.dumps(settings))
    with locked(folder):
        if restart:
            for path in content(folder):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not (folder / SETTINGS).is_file():
            store.save(SETTINGS, now)
        stored = store.load(SETTINGS) or {}
        for key in {**now, **stored}:
            old, new = stored.get(key), now.get(key)
            if old != new:
                raise ValueError(
                    f"{folder} holds {what} with {key} {old!r:.80}; got {new!r:.80}. Continue it with those "
                    "settings, choose another folder, or add --restart to drop it."
                )
        try:
            yield store
        except KeyboardInterrupt:
            raise KeyboardInterrupt(KEPT) from None


def damaged(path: Path) -> ValueError:
    """What to raise for a file of a store that lipcert did not write, or that was damaged since."""
    return ValueError(f"{path} is damaged. Delete it, or add --restart to begin again.")


@dataclass(frozen=True)
class Workers:
    """Where jobs run. Made by ``open_workers``."""

    executor: Executor
    count: Callable[[], int]
    local: bool = True
    lost: tuple[type[BaseException], ...] = (CancelledError,)

    @property
    def slots(self) -> int:
        """How many jobs run at a time now; workers may join and leave a cluster."""
        return max(1, self.count())

    def run(
        self,
        function: Callable[[T], object],
        items: Iterable[T],
        done: Callable[[T], object] = lambda item: None,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        """Call ``function`` with each item. The first failure ends all: leave ``open_workers`` then.

        Args:
            function: picklable, like the items. It must continue a call of its own that was killed.
            done: called with each item as it is finished.
            tick: called about every second.
        """
        waiting: dict[Future[object], T] = {self.executor.submit(function, item): item for item in items}
        try:
            while waiting:
                for future in wait(waiting, timeout=1, return_when=FIRST_COMPLETED).done:
                    item = waiting.pop(future)
                    future.result()
                    done(item)
                tick()
        except self.lost:
            raise OSError(
                "the cluster lost a job: its scheduler ended, or several workers died under it, perhaps for lack "
                f"of memory; {KEPT}"
            ) from None


@contextmanager
def open_workers(count: int, cluster: str | None, folder: Path) -> Iterator[Workers]:
    """``count`` jobs at a time on this machine, or the workers of a Dask scheduler at the address ``cluster``.

    Jobs that still run when the block is left are told to leave; a training saves its state first.

    Args:
        folder: where results go. All workers of a cluster must see it, which is checked.

    Raises:
        ValueError: if the cluster does not answer, has no workers or does not share the folder.
    """
    if cluster is None:
        stop = threading.Event()
        executor = ThreadPoolExecutor(count, initializer=setattr, initargs=(_thread, "stop", stop))
        try:
            yield Workers(executor, lambda: count)
        finally:
            stop.set()
            executor.shutdown(cancel_futures=True)
        return
    with name_extra("--cluster"):
        dask: Any = import_module("distributed")
    try:
        client = dask.Client(cluster, timeout=ANSWER, set_as_default=False)
        client.wait_for_workers(1, timeout=3 * ANSWER)
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"--cluster must be the address of a Dask scheduler with workers; got {cluster} ({reason}). Start both "
            "with dask scheduler and dask worker."
        ) from None
    with dask.utils.silence_logging_cmgr(logging.CRITICAL), client:  # a lost cluster is told in one sentence
        _require_shared(client, folder)
        remote = client.get_executor(pure=False)
        try:
            yield Workers(
                remote, lambda: sum(client.nthreads().values()), False, (CancelledError, dask.KilledWorker)
            )
        finally:
            remote.shutdown(wait=False)


def _require_shared(client: Any, folder: Path) -> None:
    """Every worker must read back what is written here, and must have lipcert."""
    folder, token = folder.resolve(), uuid.uuid4().hex
    while not folder.is_dir():
        folder = folder.parent
    file = folder / f".{token}"
    file.write_text(token, encoding="utf-8")
    try:
        answers = client.run(_read, str(file), on_error="return")
    finally:
        file.unlink()
    for worker, answer in answers.items():
        if answer != token:
            raise ValueError(
                f"--cluster needs lipcert on every worker and a file system that all of them share; the worker "
                f"{worker} could not read {folder} ({getattr(answer, 'strerror', None) or answer}). "
                "Choose a shared folder."
            )


def _read(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")


_thread = threading.local()  # ``stop`` is set in the threads of a local executor


def _abandoned() -> bool:
    """True if the caller no longer waits for the job of this thread."""
    stop: threading.Event | None = getattr(_thread, "stop", None)
    if stop is not None:
        return stop.is_set()
    dask: Any = sys.modules.get("distributed")
    try:
        worker = dask.get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
    except (ValueError, AttributeError):  # no worker of a cluster
        return False
    return task is None or task.state == "cancelled"


@contextmanager
def locked_log(path: Path) -> Iterator[TextIO]:
    """The log of a job, open to append, for one job at a time.

    The processes that write to it hold its lock, too. When a worker is lost, a process that it started may still be
    saving its state: whoever continues the job waits here until that process has left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + PATIENCE
    with path.open("a", encoding="utf-8") as log:
        while not try_lock(log.fileno()):
            if time.monotonic() > end:
                raise ValueError(f"another process still works on {path}. Wait until it has finished, or stop it.")
            time.sleep(POLL / 5)
        yield log


def call(
    words: Sequence[str],
    log: TextIO,
    *,
    function: Callable[..., object] | None = None,
    arguments: Sequence[object] = (),
    threads: int = 1,
    cwd: str | None = None,
) -> tuple[int, str]:
    """Run ``lipcert WORDS``, or a picklable function, in a process of its own with so many threads.

    Returns:
        The exit code, and the last line of the log, to which the output is appended.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "lipcert.jobs", *words],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        cwd=cwd,
        start_new_session=True,  # Ctrl-C reaches the starter alone, which tells its processes to leave
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        pickle.dump((function, arguments), process.stdin)
        process.stdin.flush()
        while process.poll() is None and not _abandoned():
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL)
        process.terminate()  # once: a training saves its state and leaves
        process.wait()
    code = process.wait()
    lines = Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return code, lines[-1] if lines else ""


def compute(
    items: Mapping[str, T],
    solve: Callable[[T], Mapping[str, Any]],
    folder: Path,
    workers: Workers | None,
    *,
    what: str,
    tick: Callable[[], object] = lambda: None,
) -> None:
    """Write ``solve(item)`` to NAME.json in ``folder`` for each item that has no such file yet.

    Args:
        items: by name, in the order of their work.
        solve: picklable, like the items.
        workers: whose processes share the items; None for this process alone. Each process takes every n-th, since
            it takes seconds to start one.
        what: what is worked on, for messages: "attack".
        tick: called now and then, to look at the files.
    """
    missing = [(name, item) for name, item in items.items() if not (folder / f"{name}.json").is_file()]
    if workers is None:
        _compute_group(missing, solve, folder, tick)
    elif missing:
        count = min(workers.slots, len(missing))
        groups = [missing[start::count] for start in range(count)]
        workers.run(partial(_start_group, solve=solve, folder=folder.resolve(), what=what), groups, tick=tick)
    tick()


def _start_group(group: Sequence[tuple[str, T]], solve: Callable[[T], object], folder: Path, what: str) -> None:
    with locked_log(folder / f"{group[0][0]}.log") as log:
        words = [what, *(name for name, _ in group)]
        code, last = call(words, log, function=_compute_group, arguments=(group, solve, folder))
    if code != 0:
        raise OSError(
            f"a process of the {what} died with exit code {code}, perhaps for lack of memory ({last}); {KEPT}"
        )


def _compute_group(
    group: Sequence[tuple[str, T]],
    solve: Callable[[T], object],
    folder: Path,
    tick: Callable[[], object] = lambda: None,
) -> None:
    for name, item in group:
        file = folder / f"{name}.json"
        if not file.is_file():  # a lost worker may have finished some
            write_json(file, solve(item))
        tick()


def _leave_with_starter() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _main() -> None:
    with open(0, "rb", closefd=False) as pipe:
        function, arguments = pickle.load(pipe)
    threading.Thread(target=_leave_with_starter, daemon=True).start()
    if function is None:
        runpy.run_module("lipcert", run_name="__main__", alter_sys=True)
    else:
        function(*arguments)


if __name__ == "__main__":
    _main()
