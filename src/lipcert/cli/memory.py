"""Memory that a step frees stays with the process, so that the next step need not ask for it page by page."""

from __future__ import annotations

import ctypes
import sys

_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h


def keep_memory() -> None:
    """Ask glibc to keep freed memory, and to take blocks of up to 32 MiB, its limit, from what it keeps."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(_TRIM, 2**31 - 1)
            mallopt(_MAP, 2**25)
