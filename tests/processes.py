"""The command line as a process of its own, as a user starts it, and without one."""

import contextlib
import io
import os
import subprocess
import sys

import pytest

from lipcert.cli import main

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


def in_process(*words):
    """Run the command line in this process, which saves the two seconds of importing torch.

    For tests that look at what a command says and writes, and not at how its process starts or ends.
    """
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["lipcert", *words])
        for name in ("COLUMNS", "NO_COLOR"):
            patch.setenv(name, ENVIRONMENT[name])
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
