"""Read the pickles of CIFAR without running them.

A pickle is a program, and ``pickle.load`` runs it. Three things make it harmless here:

- A scan follows the program with the types of its objects alone, before anything is built. It allows the
  instructions that a CIFAR file needs and refuses what would be huge or deep: a small file can describe an object
  on which Python itself crashes. Keys of dictionaries are strings, lists hold numbers and strings, tuples are
  short and at most two deep, and objects are numbered from 0 or 1 on (Python allocates as many as the largest).
- The unpickler finds five names and refuses all others. None of them is numpy's: they stand for functions of this
  module, which check what they are given.
- An array is a view of the bytes in the file, so it takes no memory of its own.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_INSTRUCTIONS = 1_000_000  # the largest file, the training set of CIFAR-100, has about 200,000
LONGEST_TUPLE = 16  # numpy writes a dtype with 8 elements
MOST_AXES = 4  # CIFAR has 2: images and bytes

# What an instruction pushes, and how many objects it takes from the stack (None: all above the last mark).
PUSHES = {
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"), "number"),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINSTRING", "SHORT_BINSTRING"), "string"),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE"), "string"),
    **{"EMPTY_DICT": "dict", "EMPTY_LIST": "list", "EMPTY_TUPLE": "tuple"},
    **{"GLOBAL": "name", "STACK_GLOBAL": "name", "REDUCE": "object", "BUILD": "object"},
}
TUPLES: dict[str, int | None] = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
POPS = {
    **{"APPEND": 1, "APPENDS": None, "SETITEM": 2, "SETITEMS": None},
    **{"STACK_GLOBAL": 2, "REDUCE": 2, "BUILD": 2, "STOP": 1},
    **TUPLES,
}
SCALARS = {"number", "string", "object"}


def read_pickle(data: bytes, name: str) -> dict[bytes, Any]:
    """Return the dictionary in a CIFAR file, with keys as bytes and arrays as numpy uint8.

    Raises:
        ValueError: if the file is not such a pickle; ``name`` says which file.
    """
    try:
        # The disassembler warns about some instructions that are refused here anyway.
        with warnings.catch_warnings(action="ignore"):
            _scan(data)
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        result = {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}
        _require(len(result) == len(content), "a key that occurs twice")
        _require(all(isinstance(key, bytes) for key in result), "a key that is not a string")
    except Exception as error:  # whatever a broken program raises
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(
            f"{name}: expected a pickle of CIFAR (dictionary of labels, names and uint8 images); got {reason}. "
            "It was not executed. Fetch the file again from a source you trust."
        ) from None
    return {key: value.value if isinstance(value, _Array) else value for key, value in result.items()}


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _scan(data: bytes) -> None:
    """Follow the program with types for objects, and refuse what a CIFAR file does not contain."""
    stack: list[str] = []
    marks: list[int] = []
    memo: dict[int, str] = {}

    def pop(count: int | None) -> list[str]:
        _require(count is not None or bool(marks), "a missing mark")
        start = marks.pop() if count is None else len(stack) - count
        _require(start >= (marks[-1] if marks else 0), "an empty stack")
        items = stack[start:]
        del stack[start:]
        return items

    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        _require(count < MOST_INSTRUCTIONS, f"more than {MOST_INSTRUCTIONS:,} instructions")
        instruction = opcode.name
        items = pop(POPS[instruction]) if instruction in POPS else []
        match instruction:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                marks.append(len(stack))
            case "MEMOIZE" | "BINPUT" | "LONG_BINPUT":
                index = len(memo) if instruction == "MEMOIZE" else int(argument or 0)
                _require(index <= count, f"number {index} for an object of the first {count}")
                memo[index] = pop(1)[0]
                stack.append(memo[index])
            case "BINGET" | "LONG_BINGET":
                index = int(argument or 0)
                _require(index in memo, f"a reference to object {index}, which was never stored")
                stack.append(memo[index])
            case "APPEND" | "APPENDS":
                _require(set(items) <= SCALARS, "a list with something else than numbers and strings")
                _require(pop(1) == ["list"], "elements for something that is not a list")
                stack.append("list")
            case "SETITEM" | "SETITEMS":
                _require(set(items[::2]) <= {"string", "object"}, "a key that is not a string")
                _require(set(items[1::2]) <= SCALARS | {"list"}, "a value that is not a string, list or array")
                _require(pop(1) == ["dict"] and len(items) % 2 == 0, "items for something that is not a dictionary")
                stack.append("dict")
            case name if name in TUPLES:
                _require(len(items) <= LONGEST_TUPLE, f"a tuple of more than {LONGEST_TUPLE} elements")
                _require(set(items) <= SCALARS | {"name", "tuple"}, "tuples that are nested too deep")
                stack.append("nested tuple" if "tuple" in items else "tuple")
            case "STOP":
                _require(items == ["dict"], f"a {items[0]} instead of a dictionary")
            case name if name in PUSHES:
                _require(name != "STACK_GLOBAL" or items == ["string"] * 2, "a name that is not a string")
                _require(name != "REDUCE" or items[0] == "name", "a call of something that has no name")
                _require(name != "BUILD" or items[0] == "object", "a state for something that has none")
                if isinstance(argument, str):
                    argument.encode()  # half a surrogate pair cannot be printed or stored
                stack.append(PUSHES[name])
            case name:
                raise ValueError(f"the instruction {name}")


class _Uint8:
    """The dtype uint8, the only one that is read."""

    def __setstate__(self, state: object) -> None:
        """Accept any byte order and alignment: they mean nothing for single bytes."""


class _Array:
    """An array that a call creates empty and a state fills."""

    value: NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        _require(isinstance(shape, tuple) and len(shape) <= MOST_AXES, f"more than {MOST_AXES} axes")
        _require(all(type(size) is int and 0 <= size < 2**31 for size in shape), "an array of impossible size")
        whole = isinstance(dtype, _Uint8) and isinstance(raw, bytes) and math.prod(shape) == len(raw)
        _require(whole, f"an array that is not uint8 of shape {shape}")
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    _require(kind is _NDARRAY, "a call that does not make an array")
    return _Array()


def _dtype(code: object, *flags: object) -> _Uint8:
    _require(code in (b"u1", "u1"), "an array that is not uint8")
    return _Uint8()


def _encode(text: Any, encoding: object) -> bytes:
    """Bytes as Python 3 writes them for Python 2."""
    _require(encoding in (b"latin1", "latin1"), "a call that does not make bytes")
    return bytes(text.encode("latin1"))


_NDARRAY = object()
_NAMES = {
    "numpy.core.multiarray _reconstruct": _reconstruct,
    "numpy._core.multiarray _reconstruct": _reconstruct,
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _dtype,
    "_codecs encode": _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        _require(f"{module} {name}" in _NAMES, f"the name {module[:40]!a} {name[:40]!a}")
        return _NAMES[f"{module} {name}"]
