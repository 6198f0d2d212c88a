"""The command line and programs in processes of their own, without importing torch for two seconds in each.

A server imports lipcert once and forks for each call. Without ``os.fork``, and for tests that pass options of
``subprocess``, a new Python starts, as it does for a user.
"""

import atexit
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"}


def command(*words, timeout=400, cwd=None, **options):
    """Run ``lipcert WORDS`` to its end: exit code, stdout and stderr."""
    if hasattr(os, "fork") and not options:
        return _forked("lipcert", [str(word) for word in words], timeout, cwd)
    return _started(["-m", "lipcert", *words], timeout, cwd=cwd, **options)


def program(code, timeout=400, new=False, cwd=None):
    """Run Python code to its end, with every warning an error; of the imports too in a new Python."""
    if hasattr(os, "fork") and not new:
        return _forked("program", [code], timeout, cwd)
    return _started(["-W", "error", "-c", code], timeout, cwd=cwd)


def _started(words, timeout, **options):
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=timeout,
        check=False,
        **options,
    )


def _forked(kind, words, timeout, cwd):
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "err")]
        server = _server()
        task = {"kind": kind, "words": words, "timeout": timeout, "cwd": str(cwd or Path.cwd()), "files": files}
        print(json.dumps(task, default=str), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        said = [file.read_text(encoding="utf-8") for file in files]
    if code == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(words, timeout)
    return subprocess.CompletedProcess(words, code, *said)


@functools.cache
def _server():
    """The server of this process. It ends with it, and is waited for, so that its time counts."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([sys.executable, __file__], env=ENVIRONMENT, **pipes)
    atexit.register(server.communicate)
    return server


def _serve():
    import lipcert

    home = Path(lipcert.__file__).parent
    for path in sorted(home.rglob("*.py")):
        if path.stem not in ("__init__", "__main__"):
            import_module(".".join(path.relative_to(home.parent).with_suffix("").parts))
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_exit_code(json.loads(line)))  # a usual end would take apart every imported module
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _exit_code(task):
    code = 1
    try:
        _run(**task)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _run(kind, words, timeout, cwd, files):
    signal.alarm(timeout)
    for number, name in enumerate([os.devnull, *files]):
        file = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    if kind == "lipcert":
        sys.argv = ["lipcert", *words]
        import_module("lipcert.cli").main()
    else:
        import_module("warnings").simplefilter("error")
        exec(compile(words[0], "<program>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _serve()
