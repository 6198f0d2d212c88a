"""lipcert: certified 1-Lipschitz neural networks on PyTorch.

The public names are listed in ``__init__.pyi``, where editors and type checkers read them. Here each one is
imported when it is first used, so that ``import lipcert`` does not load torch.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.2.0"


def _read_stub() -> dict[str, str]:
    """Return {name: the module it is imported from}; a module of lipcert itself is imported from ""."""
    stub = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    imports = [statement for statement in stub.body if isinstance(statement, ast.ImportFrom)]
    return {alias.name: statement.module or "" for statement in imports for alias in statement.names}


_HOME = _read_stub()
__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lipcert' has no attribute {name!r}")
    from lipcert.errors import name_extra

    with name_extra(f"lipcert.{name}"):
        if not _HOME[name]:
            return importlib.import_module(f"lipcert.{name}")
        # With a fromlist this also imports a submodule, such as bounds of lipcert.algebra.
        return getattr(__import__(f"lipcert.{_HOME[name]}", fromlist=[name]), name)


def __dir__() -> list[str]:
    return __all__
