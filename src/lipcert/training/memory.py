"""The most memory that this process has had at once."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """Since the program began: Linux's getrusage would count the process that started this one too."""
    status = Path("/proc/self/status")
    if status.is_file():
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        if found:
            return 1024 * int(found[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
