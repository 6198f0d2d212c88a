"""lipcert: certified 1-Lipschitz neural networks on PyTorch.

Public names are loaded when first used, so ``import lipcert`` costs nothing by itself.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "NotCertified": "errors",
    "Abs": "activations",
    "GroupSort": "activations",
    "Householder": "activations",
    "MaxMin": "activations",
    "AffineConv2d": "layers.affine",
    "AffineLinear": "layers.affine",
    "lipschitz_bound": "layers.contract",
    "GeneralLinear": "layers.general",
    "NormalizedHead": "layers.head",
    "OrthogonalLinear": "layers.orthogonal",
    "ResidualConv2d": "layers.residual",
    "ResidualLinear": "layers.residual",
    "Centre": "layers.shape",
    "ConvexCombination": "layers.shape",
    "L2Pool2d": "layers.shape",
    "Normalize": "layers.shape",
    "PadChannels": "layers.shape",
    "Scale": "layers.shape",
    "ScaledAvgPool2d": "layers.shape",
    "SpaceToDepth": "layers.shape",
}
_MODULES = {"bounds": "algebra.bounds", "losses": "losses"}

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lipcert.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'lipcert' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lipcert.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
