"""Read the pickles of CIFAR as data: nothing is imported and nothing is called.

A pickle is a program, and ``pickle.load`` runs it. The CIFAR files need few of its instructions: dictionaries,
lists, tuples, strings, integers, and one way to write a numpy array. This interpreter knows these and refuses the
rest, so no file can reach a function. The three names that such a file mentions become tokens; an array is built
from its shape and its bytes.

What a file can build is limited as well, because a small file can otherwise describe something huge or so deep that
Python crashes when it is hashed or printed:

- The keys of a dictionary are strings, its values are scalars, lists and arrays.
- A list holds scalars. A tuple has at most ``LONGEST_TUPLE`` elements and holds scalars and tuples of scalars.
- A file has at most ``MOST_INSTRUCTIONS`` instructions, and its arrays together are no larger than the file.
"""

from __future__ import annotations

import math
import pickletools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
NDARRAY, DTYPE = "numpy ndarray", "numpy dtype"
INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1"}
BYTES = {"BINBYTES", "SHORT_BINBYTES"}
TEXTS = {"BINUNICODE", "SHORT_BINUNICODE"}
STRINGS = {"BINSTRING", "SHORT_BINSTRING"}  # the str of Python 2, which is bytes
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
MAKERS: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

MOST_INSTRUCTIONS = 1_000_000  # the largest file, the training set of CIFAR-100, has about 200,000
LONGEST_TUPLE = 16  # numpy writes a dtype with 8 elements
MOST_AXES = 4  # CIFAR has 2: images and bytes


class Token:
    """A name that the file mentions."""

    def __init__(self, name: str) -> None:
        if name not in (*RECONSTRUCT, NDARRAY, DTYPE):
            raise ValueError(f"the name {name[:80]!a}")
        self.name = name


class Type:
    """The dtype uint8, the only one that is read."""


class Array:
    """An array that REDUCE creates empty and BUILD fills."""

    value: NDArray[np.uint8] | None = None


SCALARS = (int, bytes, str, bool, type(None))


def read_pickle(data: bytes, name: str) -> dict[bytes, Any]:
    """Return the dictionary in a CIFAR file, with keys as bytes and arrays as numpy uint8.

    Raises:
        ValueError: if the file is not such a pickle; ``name`` says which file.
    """
    try:
        # The disassembler warns about some instructions that are refused here anyway.
        with warnings.catch_warnings(action="ignore"):
            result = _Interpreter(len(data)).run(data)
    except ValueError as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(
            f"{name}: expected a pickle of CIFAR (dictionary of labels, names and uint8 images); got {reason}. "
            "It was not executed. Fetch the file again from a source you trust."
        ) from None
    if not isinstance(result, dict):
        raise ValueError(f"{name}: expected a dictionary; got {type(result).__name__}. Fetch the file again.")
    return {key: value.value if isinstance(value, Array) else value for key, value in result.items()}


class _Interpreter:
    """The stack machine of a pickle. Every method that refuses something raises ValueError with the reason."""

    def __init__(self, room: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.room = room  # how many bytes of arrays may still be built

    def run(self, data: bytes) -> object:
        for count, (instruction, argument) in enumerate(_instructions(data)):
            if count >= MOST_INSTRUCTIONS:
                raise ValueError(f"more than {MOST_INSTRUCTIONS:,} instructions")
            if instruction == "STOP":
                return self.top()
            self.step(instruction, argument)
        raise ValueError("no end")

    def step(self, instruction: str, argument: Any) -> None:
        push = self.stack.append
        match instruction:
            case "PROTO" | "FRAME":
                pass  # the length of a frame only helps to read ahead
            case "MARK":
                self.marks.append(len(self.stack))
            case name if name in CONSTANTS:
                push(CONSTANTS[name])
            case name if name in MAKERS:
                push(MAKERS[name]())
            case name if name in INTEGERS or name in BYTES:
                push(argument)
            case name if name in TEXTS:
                push(_text(argument))
            case name if name in STRINGS:
                push(argument.encode("latin-1"))
            case name if name in TUPLES:
                push(_tuple(self.pop(TUPLES[name])))
            case "TUPLE":
                push(_tuple(self.pop_to_mark()))
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.top()
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.top()
            case "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    raise ValueError(f"a reference to object {argument}, which was never stored")
                push(self.memo[argument])
            case "APPEND":
                self.append(self.pop(1))
            case "APPENDS":
                self.append(self.pop_to_mark())
            case "SETITEM":
                self.set_items(self.pop(2))
            case "SETITEMS":
                self.set_items(self.pop_to_mark())
            case "GLOBAL":
                push(Token(argument))
            case "STACK_GLOBAL":
                module, attribute = self.pop(2)
                if type(module) is not str or type(attribute) is not str:
                    raise ValueError("a name that is not a string")
                push(Token(f"{module} {attribute}"))
            case "REDUCE":
                push(_reduce(*self.pop(2)))
            case "BUILD":
                target, state = self.pop(2)
                self.build(target, state)
                push(target)
            case name:
                raise ValueError(f"the instruction {name}")

    def top(self) -> Any:
        if not self.stack:
            raise ValueError("an empty stack")
        return self.stack[-1]

    def pop(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if not 0 <= start <= len(self.stack):
            raise ValueError("an empty stack")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_to_mark(self) -> list[Any]:
        if not self.marks:
            raise ValueError("a missing mark")
        return self.pop(len(self.stack) - self.marks.pop())

    def append(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise ValueError("elements for something that is not a list")
        if not all(type(item) in SCALARS for item in items):
            raise ValueError("a list with something else than numbers and strings")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(items) % 2:
            raise ValueError("items for something that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (bytes, str):
                raise ValueError(f"a key of type {type(key).__name__} instead of a string")
            if type(value) not in (*SCALARS, list, Array):
                raise ValueError(f"a value of type {type(value).__name__}")
            encoded = key.encode() if isinstance(key, str) else key
            if encoded in target:
                raise ValueError("a key that occurs twice")
            target[encoded] = value

    def build(self, target: object, state: object) -> None:
        if isinstance(target, Type):
            return  # byte order and alignment, which do not matter for single bytes
        if not isinstance(target, Array):
            raise ValueError("a state for something that has none")
        if not (isinstance(state, tuple) and len(state) == 5):
            raise ValueError("an array without shape and bytes")
        _, shape, dtype, fortran, raw = state
        if not isinstance(shape, tuple) or len(shape) > MOST_AXES:
            raise ValueError(f"an array without a shape of at most {MOST_AXES} sizes")
        if not all(type(size) is int and 0 <= size < 2**31 for size in shape):
            raise ValueError("an array with a size that is negative or too large")
        if not isinstance(dtype, Type) or not isinstance(raw, bytes) or math.prod(shape) != len(raw):
            raise ValueError(f"an array that is not uint8 of shape {shape}")
        # Each array is a copy, so that one string cannot become any number of large arrays.
        self.room -= len(raw)
        if self.room < 0:
            raise ValueError("arrays that are larger than the file")
        target.value = np.frombuffer(bytearray(raw), np.uint8).reshape(shape, order="F" if fortran else "C")


def _instructions(data: bytes) -> Iterator[tuple[str, Any]]:
    """The names and arguments of the instructions, as far as the bytes can be read."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            yield opcode.name, argument
    except ValueError as error:
        raise ValueError(f"damaged bytes ({error})") from None


def _text(text: str) -> str:
    """The string, unless it holds half a surrogate pair: such a string cannot be printed or stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text that is not valid Unicode") from None
    return text


def _tuple(items: list[Any]) -> tuple[Any, ...]:
    """A tuple that is short and at most two deep."""
    if len(items) > LONGEST_TUPLE:
        raise ValueError(f"a tuple of more than {LONGEST_TUPLE} elements")
    for item in items:
        if type(item) is tuple:
            if not all(type(inner) in SCALARS for inner in item):
                raise ValueError("tuples that are nested too deep")
        elif type(item) not in (*SCALARS, Token, Type):
            raise ValueError(f"a tuple with an element of type {type(item).__name__}")
    return tuple(items)


def _reduce(function: object, arguments: object) -> Array | Type:
    """The two calls that CIFAR files contain: an empty array and the dtype uint8."""
    if isinstance(function, Token) and isinstance(arguments, tuple) and arguments:
        first = arguments[0]
        if function.name in RECONSTRUCT and isinstance(first, Token) and first.name == NDARRAY:
            return Array()
        if function.name == DTYPE and first in (b"u1", "u1"):
            return Type()
    raise ValueError("a call that does not make a uint8 array")
