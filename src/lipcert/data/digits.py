"""The 1,797 handwritten digits of the UCI repository (Alpaydın & Kaynak 1998), 8×8, inside the package.

Pixels count the set bits of 4×4 blocks, 0 to 16, and are stored as 8-bit gray values round(255·v/16). The first
1,400 images are the training set, the last 397, by other writers, the test set.
"""

from __future__ import annotations

from lipcert.data.dataset import ImageData, Split
from lipcert.data.registry import load_data


def load_digits(split: Split) -> ImageData:
    """Return ``load_data("digits", split)``."""
    return load_data("digits", split)
