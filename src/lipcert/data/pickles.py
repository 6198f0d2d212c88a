"""The pickles of CIFAR, read as data: nothing is imported, nothing is called.

A pickle is a program, and ``pickle.load`` runs it. The CIFAR files need few of its instructions: dictionaries,
lists, tuples, strings, integers, and one way to write a numpy array. This interpreter knows these and refuses
the rest, so no file can reach a function. The three names such a file mentions become tokens; an array is built
at the end from its shape and its bytes.
"""

from __future__ import annotations

import math
import pickletools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
NDARRAY, DTYPE = "numpy ndarray", "numpy dtype"
INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1"}
TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}  # of files saved again by Python 3
STRINGS = {"BINSTRING", "SHORT_BINSTRING"}  # Python 2's str: bytes
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
MAKERS: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Token(str):
    """A name the file mentions; it stands for itself."""

    __slots__ = ()


class Array:
    """An array in the making: REDUCE makes it, BUILD gives it shape, type and bytes."""

    value: NDArray[np.uint8] | None = None

    def build(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise ValueError("an array without shape and bytes")
        _, shape, dtype, fortran, raw = state
        if not (isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)):
            raise ValueError("an array without a shape")
        if not isinstance(dtype, Type) or not isinstance(raw, bytes) or math.prod(shape) != len(raw):
            raise ValueError(f"an array that is not uint8 of shape {shape}")
        self.value = np.frombuffer(bytearray(raw), np.uint8).reshape(shape, order="F" if fortran else "C")


class Type:
    """The dtype uint8, the only one."""

    def build(self, state: object) -> None:
        """Byte order and alignment: nothing to know of a single byte."""


def read_pickle(data: bytes, name: str) -> dict[bytes, Any]:
    """The dictionary in a CIFAR file, keys as bytes, arrays as numpy uint8."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the disassembler, about instructions refused below
            result = _run(data)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(
            f"{name}: expected a pickle of CIFAR (dictionary of labels, names and uint8 images); got {reason}. "
            "It was not executed. Fetch the file again from a source you trust."
        ) from None
    if not isinstance(result, dict):
        raise ValueError(f"{name}: expected a dictionary; got {type(result).__name__}. Fetch the file again.")
    return {
        key.encode() if isinstance(key, str) else key: value.value if isinstance(value, Array) else value
        for key, value in result.items()
    }


def _run(data: bytes) -> object:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        return pop(len(stack) - marks.pop())

    def set_items(items: list[Any]) -> None:
        if type(stack[-1]) is not dict or len(items) % 2:
            raise ValueError("items for something that is no dictionary")
        stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def append(items: list[Any]) -> None:
        if type(stack[-1]) is not list:
            raise ValueError("elements for something that is no list")
        stack[-1].extend(items)

    def pop(count: int) -> list[Any]:
        start = len(stack) - count
        if not 0 <= start <= len(stack):
            raise ValueError("an empty stack")
        items = stack[start:]
        del stack[start:]
        return items

    for opcode, argument, _ in pickletools.genops(data):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                marks.append(len(stack))
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case name if name in MAKERS:
                stack.append(MAKERS[name]())
            case name if name in INTEGERS or name in TEXTS:
                stack.append(argument)
            case name if name in STRINGS:
                stack.append(str(argument).encode("latin-1"))
            case name if name in TUPLES:
                stack.append(tuple(pop(TUPLES[name])))
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "BINPUT" | "LONG_BINPUT":
                memo[int(argument or 0)] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[int(argument or 0)])
            case "APPEND":
                append(pop(1))
            case "APPENDS":
                append(since_mark())
            case "SETITEM":
                set_items(pop(2))
            case "SETITEMS":
                set_items(since_mark())
            case "GLOBAL":
                stack.append(_token(str(argument)))
            case "STACK_GLOBAL":
                stack.append(_token(" ".join(map(str, pop(2)))))
            case "REDUCE":
                stack.append(_reduce(*pop(2)))
            case "BUILD":
                target, state = pop(2)
                if not isinstance(target, Array | Type):
                    raise ValueError("a state for something that takes none")
                target.build(state)
                stack.append(target)
            case "STOP":
                return stack[-1]
            case name:
                raise ValueError(f"the instruction {name}")
    raise ValueError("no end")


def _token(name: str) -> Token:
    if name not in (*RECONSTRUCT, NDARRAY, DTYPE):
        raise ValueError(f"the name {name}")
    return Token(name)


def _reduce(function: object, arguments: object) -> Array | Type:
    if isinstance(function, Token) and isinstance(arguments, tuple) and arguments:
        if function in RECONSTRUCT and isinstance(arguments[0], Token) and arguments[0] == NDARRAY:
            return Array()
        if function == DTYPE and arguments[0] in (b"u1", "u1"):
            return Type()
    raise ValueError("a call that makes no uint8 array")
