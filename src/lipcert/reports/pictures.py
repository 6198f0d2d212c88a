"""The most and the least robust test images: from the file that the certificate is about, as PNG data URIs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lipcert.certified.certificate import sha256_of
from lipcert.records import CHECKED
from lipcert.runs import Run

COUNT = 8  # of each kind


class TestImage(BaseModel):
    """A test image that is classified correctly."""

    model_config = ConfigDict(frozen=True)

    index: int
    label: int
    name: str  # of its class
    radius: float
    uri: str = Field(exclude=True)  # the picture; empty if there is none


@dataclass(frozen=True)
class TestData:
    """What the test set adds to a run: names of the classes, checksums and its size; or why it adds nothing."""

    classes: tuple[str, ...] = ()
    sha256: dict[str, str] | None = None
    count: int | None = None
    missing: str | None = None
    images: Tensor | None = None  # those that were certified


def load_test_data(run: Run) -> TestData:
    """The test set that the run is about, if it is on this machine."""
    if run.data is None:
        return TestData(missing="The run does not say which data set it is about.")
    try:
        data = run.test_data()
    except (ValueError, OSError) as error:
        return TestData(missing=str(error))
    labels = [row.label for row in run.examples or ()]
    if data.labels[: len(labels)].tolist() != labels:
        return TestData(missing="The test set on this machine has other labels than certified.jsonl.")
    hashes = {"images": data.sha256.images, "labels": data.sha256.labels}
    images = data.images[: len(labels)]
    same = run.about is not None and sha256_of(images) == run.about.images
    return TestData(data.classes or (), hashes, len(data), images=images if same else None)


def show_images(run: Run, data: TestData) -> tuple[tuple[TestImage, ...], tuple[TestImage, ...], str | None]:
    """The correct answers with the largest and with the smallest radii, and why there is no picture of them."""
    right = sorted((row for row in run.examples or () if row.prediction == row.label), key=lambda row: row.radius)
    least, most = right[:COUNT], right[: -COUNT - 1 : -1]
    uris, missing = {}, None
    try:
        if len(run.spec.image_shape) != 3:
            missing = "The inputs of this run are not images."
        elif run.method in CHECKED:
            with safe_open(run.inputs_file, framework="pt") as archive:
                images = archive.get_slice("images")
                uris = {row.index: png_uri(images[row.index : row.index + 1][0]) for row in (*most, *least)}
        elif (test := data.images) is not None:  # these methods keep no copy of the images
            uris = {row.index: png_uri(test[row.index]) for row in (*most, *least)}
        else:
            missing = "The test set is not on this machine, or has other images than those that were certified."
    except (SafetensorError, OSError, IndexError):
        missing = f"{run.inputs_file.name} is missing or damaged. Run {run.certify_command} --restart."
    names = dict(enumerate(data.classes))
    shown = {
        row.index: TestImage(
            index=row.index,
            label=row.label,
            name=names.get(row.label, f"class {row.label}"),
            radius=row.radius,
            uri=uris.get(row.index, ""),
        )
        for row in (*most, *least)
    }
    return tuple(shown[row.index] for row in most), tuple(shown[row.index] for row in least), missing


def png_uri(image: Tensor) -> str:  # (C, H, W)
    """One image at its own size; one or three channels as they are, others as their mean."""
    pixels = image if image.is_floating_point() else image.float() / 255
    pixels = pixels if len(pixels) in (1, 3) else pixels.mean(dim=0, keepdim=True)
    array = (pixels * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    target = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(target, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode()
