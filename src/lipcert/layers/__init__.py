"""Modules with a Lipschitz constant: activations, pools, shapes, scales, mixtures, and the class behind all layers.

The layers with a weight (``forms``) and the normalized head are names of ``lipcert`` itself.
"""

from lipcert.layers.activation import Abs as Abs
from lipcert.layers.activation import GroupSort as GroupSort
from lipcert.layers.activation import Householder as Householder
from lipcert.layers.activation import MaxMin as MaxMin
from lipcert.layers.contract import LipschitzLayer as LipschitzLayer
from lipcert.layers.head import FirstLogits as FirstLogits
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
