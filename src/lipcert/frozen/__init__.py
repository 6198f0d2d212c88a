"""Frozen networks: plain modules that store what the proof is about, with no T left to compute."""

from lipcert.frozen.convert import FROZEN, RULES, freeze, out_of_place, scaled_linear
from lipcert.frozen.modules import (
    FrozenCombination,
    FrozenHouseholder,
    FrozenResidual,
    FrozenResidualConv2d,
    FrozenResidualLinear,
    plain_conv2d,
    plain_linear,
)
from lipcert.frozen.torus import FrozenResidualTorus, FrozenTorus

__all__ = [
    "FROZEN",
    "RULES",
    "FrozenCombination",
    "FrozenHouseholder",
    "FrozenResidual",
    "FrozenResidualConv2d",
    "FrozenResidualLinear",
    "FrozenResidualTorus",
    "FrozenTorus",
    "freeze",
    "out_of_place",
    "plain_conv2d",
    "plain_linear",
    "scaled_linear",
]
