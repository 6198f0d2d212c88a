"""What lipcert raises. Every message says what was expected, what came, and what to do.

``NotCertified`` is a ``ValueError``: whoever catches bad input catches a missing proof too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import SupportsIndex


class NotCertified(ValueError):
    """No proof covers this request, so it is refused: lipcert fails closed."""


class DataNotFound(ValueError):
    """A data set, or a file of one, is not where it was looked for."""


def positive_int(name: str, value: object) -> int:
    """``value`` as an int of at least 1, else a ValueError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or operator.index(value) < 1:
        raise ValueError(f"{name} must be an integer of at least 1; got {value!r}. Pass a positive size.")
    return operator.index(value)


def finite(name: str, value: object, *, cure: str) -> float:
    """``value`` as a finite float, else a ValueError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; got {value!r}. {cure}")
    return float(value)


def pair(name: str, value: object, *, least: int = 1) -> tuple[int, int]:
    """``value`` as (height, width), from one integer or two, each at least ``least``."""
    values = (value, value) if isinstance(value, int) else value
    if (
        not isinstance(values, (tuple, list))
        or len(values) != 2
        or any(isinstance(v, bool) or not isinstance(v, int) or v < least for v in values)
    ):
        raise ValueError(
            f"{name} must be one integer or a pair of integers of at least {least}; got {value!r}. "
            f"Pass {name}={max(least, 1)} or {name}=({max(least, 1)}, {max(least, 1)})."
        )
    return values[0], values[1]


def one_of(name: str, value: object, choices: Iterable[str], *, cure: str = "") -> str:
    """``value`` if it is one of ``choices``, else a ValueError that lists them."""
    known = sorted(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {known}; got {value!r}. {cure or 'Choose a name from the list.'}")
    return value
