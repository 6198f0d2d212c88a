"""The most and the least robust test images: from the file that the certificate is about, as PNG data URIs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lipcert.data.registry import load_data
from lipcert.records import Example
from lipcert.records import RunFolder as Run

COUNT = 8  # of each kind


@dataclass(frozen=True)
class TestData:
    """What the test set of a run's config adds: names of the classes, checksums; or why it adds nothing."""

    classes: tuple[str, ...] | None
    sha256: dict[str, str] | None
    count: int | None
    missing: str | None

    def class_name(self, label: int) -> str:
        known = self.classes is not None and 0 <= label < len(self.classes)
        return self.classes[label] if known and self.classes is not None else f"class {label}"


@dataclass(frozen=True)
class Pictures:
    """Rows, the most robust first and the least robust first, and the image of each index as a data URI."""

    most: list[Example]
    least: list[Example]
    uris: dict[int, str]
    missing: str | None


def test_data(run: Run) -> TestData:
    """The test set that the config names, if it is on this machine and is the one that was certified."""
    stored = run.config or {"data": run.data}
    name = stored.get("data")
    if not isinstance(name, str):
        return TestData(None, None, None, "the run does not say which data set it is about")
    try:
        data = load_data(name, "test", root=stored.get("data_root"))
    except (ValueError, OSError) as error:
        return TestData(None, None, None, str(error))
    labels = [row.label for row in run.examples or ()]
    if data.labels[: len(labels)].tolist() != labels:
        return TestData(None, None, None, "certified.jsonl is about other images than the test set of the config")
    hashes = {"images": data.sha256.images, "labels": data.sha256.labels}
    return TestData(data.classes, hashes, len(data), None)


def pictures(run: Run) -> Pictures:
    """The images with the largest radii, and those with the smallest among the right answers."""
    right = sorted((row for row in run.examples or () if row.prediction == row.label), key=lambda row: row.radius)
    least, most = right[:COUNT], right[: -COUNT - 1 : -1]
    if run.certificate is None:
        return Pictures(most, least, {}, f"the certified images are not here: run lipcert certify {run.where}")
    path = run.folder / "certificate.inputs.safetensors"
    try:
        with safe_open(path, framework="pt") as archive:
            images = archive.get_slice("images")
            chosen = {row.index: images[row.index : row.index + 1][0] for row in (*most, *least)}
    except (SafetensorError, OSError, IndexError):
        why = f"certificate.inputs.safetensors is missing or damaged: run lipcert certify {run.where}"
        return Pictures(most, least, {}, why)
    return Pictures(most, least, {index: png_uri(image) for index, image in chosen.items()}, None)


def png_uri(image: Tensor) -> str:  # (C, H, W)
    """One image at its own size; one or three channels as they are, others as their mean."""
    pixels = image if image.is_floating_point() else image.float() / 255
    pixels = pixels if len(pixels) in (1, 3) else pixels.mean(dim=0, keepdim=True)
    array = (pixels * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    target = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(target, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode()
