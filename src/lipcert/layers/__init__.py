"""Modules with a Lipschitz constant: activations, pools, shapes, scales, mixtures, and the class behind all layers.

The layers that are 1-Lipschitz by their weight (``forms``) and the normalized head are names of ``lipcert`` itself;
those whose norm is tracked are here.
"""

from lipcert.layers.activation import Abs as Abs
from lipcert.layers.activation import Clip as Clip
from lipcert.layers.activation import ClippedReLU as ClippedReLU
from lipcert.layers.activation import GroupSort as GroupSort
from lipcert.layers.activation import Householder as Householder
from lipcert.layers.activation import MaxMin as MaxMin
from lipcert.layers.activation import PartialAbs as PartialAbs
from lipcert.layers.contract import LipschitzLayer as LipschitzLayer
from lipcert.layers.head import FirstLogits as FirstLogits
from lipcert.layers.head import LinearHead as LinearHead
from lipcert.layers.linf import LinfLinear as LinfLinear
from lipcert.layers.shape import BatchCentering as BatchCentering
from lipcert.layers.shape import Center as Center
from lipcert.layers.shape import ConvexCombination as ConvexCombination
from lipcert.layers.shape import L2Pool2d as L2Pool2d
from lipcert.layers.shape import LayerCentering as LayerCentering
from lipcert.layers.shape import Monotone as Monotone
from lipcert.layers.shape import Normalize as Normalize
from lipcert.layers.shape import PadChannels as PadChannels
from lipcert.layers.shape import PadImage as PadImage
from lipcert.layers.shape import Pixelwise as Pixelwise
from lipcert.layers.shape import PositionalBias as PositionalBias
from lipcert.layers.shape import Scale as Scale
from lipcert.layers.shape import ScaledAvgPool2d as ScaledAvgPool2d
from lipcert.layers.shape import ScaledUpsample2d as ScaledUpsample2d
from lipcert.layers.shape import Shift as Shift
from lipcert.layers.shape import SpaceToDepth as SpaceToDepth
from lipcert.layers.shape import TakeChannels as TakeChannels
from lipcert.layers.tracked import LinearResidualConv2d as LinearResidualConv2d
from lipcert.layers.tracked import TrackedConv2d as TrackedConv2d
from lipcert.layers.tracked import TrackedLinear as TrackedLinear
from lipcert.layers.tracked import lipschitz_estimate as lipschitz_estimate
