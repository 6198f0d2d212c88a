"""What ``make test`` leaves to ``make test-full``, which sets LIPCERT_FULL=1."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
FULL = bool(os.environ.get("LIPCERT_FULL"))


def full(long: T, short: T) -> T:
    """Return ``long`` in ``make test-full`` and ``short`` in ``make test``."""
    return long if FULL else short
