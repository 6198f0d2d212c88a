"""Run folders filled by separate processes: so many at a time, each continued where a kill left it.

A stage is a ``lipcert`` command and the file that it leaves when it is done. What is done is not done again; a
training that stopped half-way is resumed bit for bit. The processes end with the one that started them, even if
that is killed: they watch their standard input (``lipcert.cli.worker``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from lipcert.experiments.plan import Job
from lipcert.files import write_json


@dataclass(frozen=True)
class Stage:
    """``lipcert COMMAND FOLDER FLAGS`` after the training, complete when ``file`` is there."""

    command: str
    file: str
    flags: tuple[str, ...] = ()


class Failed(ValueError):
    """A process of a run ended with an error that is not a result: exit code 2, like any other bad input."""


def run_all(
    jobs: Iterable[Job],
    out: Path,
    *,
    stages: tuple[Stage, ...] = (),
    parallel: int = 1,
    show: Callable[[Job], object] = lambda job: None,
) -> None:
    """Fill every run folder; ``show`` is called as each is done. The first failure stops the rest."""
    processes = _Processes()
    with ThreadPoolExecutor(parallel) as pool:
        waiting: dict[Future[None], Job] = {pool.submit(_fill, job, out, stages, processes): job for job in jobs}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    job = waiting.pop(future)
                    future.result()
                    show(job)
        except BaseException as error:
            for future in waiting:
                future.cancel()
            processes.stop()
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt("what is done is kept, the same command continues") from None
            raise


def diverged(folder: Path) -> bool:
    """Whether this training ended because its loss was no number any more: a result, not a failure."""
    return (folder / "diverged.json").is_file()


def _fill(job: Job, out: Path, stages: tuple[Stage, ...], processes: _Processes) -> None:
    folder = out / job.name
    if not (folder / "summary.json").is_file() and not diverged(folder):
        _train(job, folder, processes)
    if diverged(folder):
        return
    for stage in stages:
        if not (folder / stage.file).is_file():
            code, last = processes.call([stage.command, str(folder), *stage.flags], folder)
            if code != 0 or not (folder / stage.file).is_file():
                raise Failed(f"{job.name}: lipcert {stage.command} must succeed; got exit code {code}: {last}")


def _train(job: Job, folder: Path, processes: _Processes) -> None:
    if (folder / "state.pt").is_file():
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if stored != job.config.model_dump(mode="json"):
            raise Failed(f"{folder} must hold the run that is planned; got another config. Choose another --out.")
        arguments = ["train", "--resume", "--out", str(folder)]
    else:
        shutil.rmtree(folder, ignore_errors=True)  # nothing was trained yet
        config = folder.with_name(f"{folder.name}.config.json")
        config.parent.mkdir(parents=True, exist_ok=True)
        write_json(config, job.config.model_dump())
        arguments = ["train", "--config", str(config), "--out", str(folder)]
    code, last = processes.call(arguments, folder)
    if code == 1:
        write_json(folder / "diverged.json", {"message": last})
    elif not (folder / "summary.json").is_file():
        raise Failed(f"{job.name}: lipcert train must finish; got exit code {code}: {last or 'interrupted'}")


class _Processes:
    """The processes under way, so that all can be told to leave."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[str]] = set()
        self.stopped = False

    def call(self, arguments: list[str], folder: Path) -> tuple[int, str]:
        """Exit code and last line of ``lipcert ARGUMENTS``, whose words are kept beside the folder."""
        if self.stopped:
            return 130, "interrupted"
        log = folder.with_name(f"{folder.name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "lipcert.cli.worker", *arguments],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                text=True,
                start_new_session=True,  # Ctrl-C reaches the starter alone, which tells its processes to save
            )
            self.running.add(process)
            try:
                code = process.wait()
            finally:
                self.running.discard(process)
                if process.stdin is not None:
                    process.stdin.close()
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return code, lines[-1] if lines else ""

    def stop(self) -> None:
        self.stopped = True
        for process in list(self.running):
            process.terminate()  # a training saves its state and leaves
