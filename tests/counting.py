"""A job for tests: count to ten in a file, one number at a time, and go on where a killed process stopped."""

import os
import time
from pathlib import Path

from lipcert.jobs import call, locked_log


def count(file, pause):
    path = Path(file)
    print(os.getpid(), "counts", flush=True)
    while (done := len(path.read_text().split()) if path.exists() else 0) < 10:
        time.sleep(pause)
        with path.open("a") as rows:
            rows.write(f"{done}\n")
        print(os.getpid(), "counted", done, flush=True)


def counting(name, folder, pause):
    with locked_log(Path(folder) / f"{name}.log") as log:
        code, last = call(["count", name], log, function=count, arguments=(f"{folder}/{name}.txt", pause))
    if code != 0:
        raise OSError(f"{name}: {code} {last}")
