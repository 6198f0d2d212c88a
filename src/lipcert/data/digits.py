"""The 1,797 handwritten digits of the UCI repository (Alpaydın & Kaynak 1998), 8×8, inside the package.

Pixels count the set bits of 4×4 blocks, 0 to 16; they are stored as such and given as 8-bit grey values
round(255·v/16). The first 1,400 images are the training set, the last 397, by other writers, the test set.
"""

from __future__ import annotations

from importlib import resources

import numpy as np

from lipcert.data.dataset import ImageData, Split, image_data, sha256_of
from lipcert.errors import one_of

TRAINING_IMAGES = 1400
SHA256 = {
    "images": "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
    "labels": "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0",
}


def load_digits(split: Split) -> ImageData:
    """The training or the test part of the embedded digits, checked against their sha256."""
    one_of("split", split, ("train", "test"))
    source = resources.files("lipcert.data").joinpath("digits.npz")
    with resources.as_file(source) as path, np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in SHA256}
    for name, expected in SHA256.items():
        found = sha256_of(arrays[name])
        if found != expected:
            raise ValueError(
                f"digits.npz: expected sha256 {expected[:12]}… for {name}, got {found[:12]}…. Reinstall lipcert."
            )
    part = slice(None, TRAINING_IMAGES) if split == "train" else slice(TRAINING_IMAGES, None)
    gray = np.rint(arrays["images"][part] * (255 / 16)).astype(np.uint8)
    return image_data(gray[:, None], arrays["labels"][part], tuple("0123456789"), "digits", split)
