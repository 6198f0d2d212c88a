"""``python -m lipcert.cli.worker COMMAND …``: the same as ``lipcert COMMAND …``, but it ends with who started it.

A thread reads standard input, a pipe that its starter holds; when the pipe closes, the process gets the signal on
which a training saves its state and leaves.
"""

from __future__ import annotations

import os
import signal
import threading

from lipcert.cli import main


def _leave_with_the_starter() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_leave_with_the_starter, daemon=True).start()
    main()
