"""lipcert: certified 1-Lipschitz neural networks on PyTorch.

Public names are loaded when first used, so ``import lipcert`` costs nothing by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what ``__getattr__`` gives, for editors and type checkers
    from lipcert import losses as losses
    from lipcert import testing as testing
    from lipcert.algebra import bounds as bounds
    from lipcert.attacks.attack import AttackResult as AttackResult
    from lipcert.attacks.attack import attack as attack
    from lipcert.certification.certify import CertificationResult as CertificationResult
    from lipcert.certification.certify import certify as certify
    from lipcert.certification.certify import output_interval as output_interval
    from lipcert.certification.filtered import FilteredClassifier as FilteredClassifier
    from lipcert.certification.radius import certified_radii as certified_radii
    from lipcert.data.registry import load_data as load_data
    from lipcert.errors import NotCertified as NotCertified
    from lipcert.exports.export import export as export
    from lipcert.exports.files import load_frozen as load_frozen
    from lipcert.exports.hub import CertifiedModel as CertifiedModel
    from lipcert.frozen import freeze as freeze
    from lipcert.layers.activation import Abs as Abs
    from lipcert.layers.activation import GroupSort as GroupSort
    from lipcert.layers.activation import Householder as Householder
    from lipcert.layers.activation import MaxMin as MaxMin
    from lipcert.layers.contract import LipschitzLayer as LipschitzLayer
    from lipcert.layers.contract import lipschitz_bound as lipschitz_bound
    from lipcert.layers.forms import AffineConv2d as AffineConv2d
    from lipcert.layers.forms import AffineLinear as AffineLinear
    from lipcert.layers.forms import GeneralConv2d as GeneralConv2d
    from lipcert.layers.forms import GeneralLinear as GeneralLinear
    from lipcert.layers.forms import OrthogonalConv2d as OrthogonalConv2d
    from lipcert.layers.forms import OrthogonalLinear as OrthogonalLinear
    from lipcert.layers.forms import OrthogonalResidualConv2d as OrthogonalResidualConv2d
    from lipcert.layers.forms import ResidualConv2d as ResidualConv2d
    from lipcert.layers.forms import ResidualLinear as ResidualLinear
    from lipcert.layers.forms import SandwichConv2d as SandwichConv2d
    from lipcert.layers.forms import SandwichLinear as SandwichLinear
    from lipcert.layers.head import FirstLogits as FirstLogits
    from lipcert.layers.head import NormalizedHead as NormalizedHead
    from lipcert.layers.shape import Center as Center
    from lipcert.layers.shape import ConvexCombination as ConvexCombination
    from lipcert.layers.shape import L2Pool2d as L2Pool2d
    from lipcert.layers.shape import Normalize as Normalize
    from lipcert.layers.shape import PadChannels as PadChannels
    from lipcert.layers.shape import PadImage as PadImage
    from lipcert.layers.shape import Pixelwise as Pixelwise
    from lipcert.layers.shape import Scale as Scale
    from lipcert.layers.shape import ScaledAvgPool2d as ScaledAvgPool2d
    from lipcert.layers.shape import SpaceToDepth as SpaceToDepth
    from lipcert.layers.shape import TakeChannels as TakeChannels
    from lipcert.models.build import create_model as create_model
    from lipcert.models.presets import list_models as list_models
    from lipcert.models.presets import register_model as register_model
    from lipcert.proofs.audit import AuditReport as AuditReport
    from lipcert.proofs.audit import audit as audit
    from lipcert.proofs.rules import register_rule as register_rule
    from lipcert.training.checkpoint import load_model as load_model

__version__ = "0.1.0"

_HOME = {
    "freeze": "frozen",
    "audit": "proofs.audit",
    "AuditReport": "proofs.audit",
    "register_rule": "proofs.rules",
    "certify": "certification.certify",
    "CertificationResult": "certification.certify",
    "output_interval": "certification.certify",
    "FilteredClassifier": "certification.filtered",
    "attack": "attacks.attack",
    "AttackResult": "attacks.attack",
    "export": "exports.export",
    "load_frozen": "exports.files",
    "CertifiedModel": "exports.hub",
    "load_model": "training.checkpoint",
    "certified_radii": "certification.radius",
    "NotCertified": "errors",
    "load_data": "data.registry",
    "Abs": "layers.activation",
    "GroupSort": "layers.activation",
    "Householder": "layers.activation",
    "MaxMin": "layers.activation",
    "AffineConv2d": "layers.forms",
    "AffineLinear": "layers.forms",
    "LipschitzLayer": "layers.contract",
    "lipschitz_bound": "layers.contract",
    "GeneralConv2d": "layers.forms",
    "GeneralLinear": "layers.forms",
    "FirstLogits": "layers.head",
    "NormalizedHead": "layers.head",
    "OrthogonalLinear": "layers.forms",
    "OrthogonalConv2d": "layers.forms",
    "OrthogonalResidualConv2d": "layers.forms",
    "ResidualConv2d": "layers.forms",
    "ResidualLinear": "layers.forms",
    "SandwichConv2d": "layers.forms",
    "SandwichLinear": "layers.forms",
    "Center": "layers.shape",
    "ConvexCombination": "layers.shape",
    "L2Pool2d": "layers.shape",
    "Normalize": "layers.shape",
    "PadChannels": "layers.shape",
    "PadImage": "layers.shape",
    "Pixelwise": "layers.shape",
    "Scale": "layers.shape",
    "ScaledAvgPool2d": "layers.shape",
    "SpaceToDepth": "layers.shape",
    "TakeChannels": "layers.shape",
    "create_model": "models.build",
    "list_models": "models.presets",
    "register_model": "models.presets",
}
_MODULES = {"bounds": "algebra.bounds", "losses": "losses", "testing": "testing"}

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lipcert.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'lipcert' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lipcert.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
