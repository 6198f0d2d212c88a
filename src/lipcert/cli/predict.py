"""``lipcert predict IMAGE``: the class of an image, its certified radius and the nearest rival."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Predict:
    """Classify images of your own, with a certified radius for each answer."""

    images: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="IMAGE [IMAGE ...]", help_behavior_hint="(required)"),
    ]
    """Image files, folders or archives of images, or arrays in .npy and .npz files, of bytes or from 0 to 1."""
    model: Annotated[str, tyro.conf.arg(metavar="NAME|RUN|FILE")] = "digits"
    """A trained network, see `lipcert models --pretrained`; or a run folder, an exported file, or someone/model on
    the hub."""
    zoo: Path | None = None
    """Folder of trained networks. None means $LIPCERT_ZOO, the package and its checkout."""
    resize: bool = False
    """Scale image files to the size that the network takes, and cut out the middle. Other sizes are refused without
    it."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> int:
        import torch

        from lipcert.certified.norms import NORMS
        from lipcert.cli.common import emit, make_table
        from lipcert.predict import open_classifier, predict, read_images, to_json

        if not self.images:
            raise ValueError("name an image, a folder of images, or a .npy or .npz file.")
        classifier = open_classifier(self.model, self.zoo)
        read = [read_images(path, classifier.proved.input_shape, resize=self.resize) for path in self.images]
        names = [name for part, _ in read for name in part]
        answers = predict(classifier, names, torch.cat([inputs for _, inputs in read]))
        rows = [[row.image, row.prediction, down(row.radius), row.rival] for row in answers]
        norm = NORMS[classifier.proved.norm]
        table = make_table(f"Answers of {self.model}", ["image", "class", "radius", "nearest rival"], rows)
        emit(
            to_json(classifier, answers),
            self.json,
            table,
            f"No change of an image by less than its radius, in {norm} with pixels from 0 to 1,\n"
            "changes the answer in float64. The answer itself may be wrong.",
        )
        return 0


def down(radius: float) -> str:
    """Four digits, rounded down."""
    whole, rest = divmod(math.floor(Fraction(radius) * 10_000), 10_000)
    return f"{whole}.{rest:04}"
