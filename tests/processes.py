"""The command line as a process of its own, as a user starts it."""

import os
import subprocess
import sys

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"}


def command(*words, timeout=400, **options):
    return subprocess.run(
        [sys.executable, "-m", "lipcert", *words],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=timeout,
        check=False,
        **options,
    )
