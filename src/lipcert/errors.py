"""What lipcert raises. Every message says what is wrong and what to do.

``NotCertified`` is a ``ValueError``: whoever catches bad input catches a missing proof too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:
    from pydantic import ValidationError

# The packages that `pip install lipcert` leaves out, and the extra that brings each.
EXTRAS = {
    "accelerate": "train",
    "PIL": "train",
    "tensorboard": "train",
    "pyautoattack": "attack",
    "altair": "report",
    "vl_convert": "report",
    "jinja2": "report",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "huggingface_hub": "export",
    "distributed": "cluster",
}


class NotCertified(ValueError):
    """No proof covers this request, so it is refused: lipcert fails closed."""


class DataNotFound(ValueError):
    """A data set, or a file of one, is not where it was looked for."""


class MissingExtra(ImportError):
    """A package is missing that an extra of lipcert installs."""


@contextmanager
def name_extra(user: str) -> Iterator[None]:
    """Turn the failed import of an optional package into a sentence that names the extra.

    Args:
        user: who needs the package, such as "lipcert report".

    Raises:
        MissingExtra: "lipcert report needs the extra 'report': pip install 'lipcert[report]'".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingExtra(f"{user} needs the extra {extra!r}: pip install 'lipcert[{extra}]'") from None


def closest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that ``word`` probably stands for: a similar one, or one with these initials (lr)."""
    names = list(names)
    initials = [name for name in names if "".join(part[:1] for part in name.split("_")) == word]
    return next(iter(initials or get_close_matches(word, names, 1)), None)


def suggest(word: str, names: Iterable[str]) -> str:
    """Return how a message about an unknown name goes on: "; did you mean 'train'?" or a full stop."""
    near = closest(word, names)
    return f"; did you mean {near!r}?" if near else "."


def explain(error: ValidationError, fields: Iterable[str] = ()) -> str:
    """Return what is wrong first in a pydantic error, in one sentence.

    Args:
        error: the error.
        fields: the fields of the model, to suggest one or list all if the error is about an unknown one.
    """
    first = error.errors()[0]
    name, message, known = ".".join(map(str, first["loc"])), first["msg"], list(fields)
    if first["type"] == "extra_forbidden":
        near = closest(name, known)
        cure = f"did you mean {near!r}?" if near else f"its fields are {', '.join(known)}."
        return f"{error.title} has no field {name!r}; {cure}"
    if first["type"] == "missing":
        return f"{error.title} needs the field {name!r}."
    if first["type"] == "value_error":
        return message.removeprefix("Value error, ")
    return f"{name} {message.removeprefix('Input ').replace('should', 'must', 1)}, got {first['input']!r}."


class ReadableErrors:
    """For pydantic models, as their first base: a wrong field raises ValueError with one sentence."""

    def __init__(self, **values: Any) -> None:
        from pydantic import ValidationError

        try:
            super().__init__(**values)
        except ValidationError as error:
            fields = type(self).model_fields  # type: ignore[attr-defined]
            raise ValueError(explain(error, fields)) from None


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


def one_of(name: str, value: object, choices: Iterable[str], *, cure: str = "") -> str:
    """``value`` if it is one of ``choices``, else a ValueError that lists them."""
    known = sorted(choices)
    if not isinstance(value, str) or value not in known:
        guess = suggest(value, known) if isinstance(value, str) else "."
        raise ValueError(f"{name} must be one of {known}; got {value!r}{guess} {cure}".rstrip())
    return value
