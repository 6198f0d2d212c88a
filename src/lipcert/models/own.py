"""Networks of the user's own: a function that builds one, called by a registered name or as ``module:function``.

Only the name of the function and what it is called with are ever stored. What a *file* names is never imported:
whoever opens a run names the function again.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from lipcert.models.presets import BUILDERS, unknown
from lipcert.models.spec import OwnNetwork

OURS = (str(Path(__file__).parents[1]), "<frozen")  # where tracebacks pass through
Builder = Callable[..., nn.Module]  # (image_shape, num_classes, **options) → network


def find_builder(name: str) -> Builder:
    """The function registered under that name, or ``module:function`` of the current folder or PYTHONPATH."""
    if name in BUILDERS:
        return BUILDERS[name]
    module, _, function = name.partition(":")
    if not (function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError(unknown(name))
    try:
        with _current_folder():
            home = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{name}: the module {module} needs {error.name}, which is not installed.") from error
        raise ValueError(
            f"{name}: there is no module {error.name!r} in the current folder or on PYTHONPATH. Run the command in "
            "the folder that has it."
        ) from None
    except Exception as error:
        raise ValueError(f"{name}: importing {module} failed, {_told(error)}.") from error
    builder = getattr(home, function, None)
    if not callable(builder):
        found = "is not a function" if hasattr(home, function) else "does not exist"
        raise ValueError(f"{name}: {function!r} {found} in {home.__file__ or module}. Check the name.")
    return builder


def build_own(spec: OwnNetwork, builder: Builder | None = None) -> nn.Module:
    """What ``builder``, or the function that the spec names, returns."""
    name, build = spec.builder or "the function", builder or find_builder(spec.builder)
    arguments = {"image_shape": spec.image_shape, "num_classes": spec.num_classes, **spec.options}
    try:
        inspect.signature(build).bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"{name} is called with the arguments {', '.join(arguments)}, which it does not take ({error}). Add "
            "them to its signature."
        ) from None
    except ValueError:  # no signature can be found: a class of an extension, for example
        pass
    try:
        with _current_folder():
            network = build(**arguments)
    except Exception as error:
        raise ValueError(f"{name} failed for images of shape {spec.image_shape}, {_told(error)}.") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{name} must return a network, an nn.Module, and returned {type(network).__name__}.")
    return network


def _told(error: Exception) -> str:
    """Where in the user's code something went wrong, and what."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(OURS)]
    frame = theirs[-1] if theirs else frames[-1]
    text = " ".join(str(error).split())[:200]
    return f"in {os.path.relpath(frame.filename)}, line {frame.lineno}: {type(error).__name__}: {text}"


@contextmanager
def _current_folder() -> Iterator[None]:
    """Let imports find the modules of the current folder, as ``python -m`` does."""
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)
