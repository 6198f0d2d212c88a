"""Answers with radii for images of your own: read them as a network sees them, certify, name the nearest rival.

The radius of an image is about the answer that the network gives, right or wrong. The nearest rival is the class
whose radius that is: the one with the smallest margin per unit of its constant.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipcert.certified.certificate import as_inputs
from lipcert.certified.certify import certify, rival_constants, rivals_of, walk
from lipcert.certified.freeze import freeze, prove
from lipcert.certified.network import Proved
from lipcert.certified.norms import NORMS
from lipcert.data.catalog import CATALOG
from lipcert.data.files import open_files
from lipcert.data.npz import open_npz
from lipcert.errors import DataNotFound
from lipcert.exporters.files import exported_shape, load_frozen
from lipcert.runs import Run
from lipcert.training.checkpoint import load_model, load_spec
from lipcert.zoo import list_pretrained, load_pretrained

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
ARRAYS = (".npy", ".npz")
NAMES = ("images", "x", "X", "x_test", "X_test", "test_images")  # of the array in a .npz file with several


@dataclass(frozen=True)
class Classifier:
    """A proved network, and what its classes are called."""

    name: str
    proved: Proved
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Prediction:
    """The answer for one image, and how far it holds."""

    image: str
    prediction: str
    radius: float
    rival: str


def open_classifier(name: str, zoo: str | Path | None = None) -> Classifier:
    """The trained network of that name, or that of a run folder, a folder with a certificate or a file.

    Raises:
        ValueError: if there is none, or if it cannot be read.
        NotCertified: for a network with a layer that has no proof.
    """
    path, norm = Path(name).expanduser(), "l2"
    classes: tuple[str, ...] | None = None
    if name not in list_pretrained(zoo) and Run(path).exists:
        run = Run(path)
        network, shape, classes = run.frozen(), tuple(run.spec.image_shape), _classes_of(run)
    elif name not in list_pretrained(zoo) and path.is_file():
        exported = exported_shape(path)
        network = freeze(load_model(path)) if exported is None else load_frozen(path)
        shape = tuple(load_spec(path).image_shape) if exported is None else exported
    else:
        if path.suffix == ".safetensors":
            raise DataNotFound(f"there is no file {path}. Check the path.")
        found = load_pretrained(name, zoo)
        network, shape, classes = found.network, found.certificate.input_shape, found.classes
        norm = next(key for key, shown in NORMS.items() if shown == found.certificate.content["norm"])
    proved = prove(network, shape, norm=norm)
    count = max(2, proved.shape[0])
    numbers = tuple(map(str, range(count)))
    return Classifier(name, proved, classes if classes is not None and len(classes) == count else numbers)


def _classes_of(run: Run) -> tuple[str, ...] | None:
    """The names of the classes, if the data set of the run is at hand."""
    if run.data in CATALOG and (names := CATALOG[run.data].class_names):
        return names
    try:
        return run.test_data().classes
    except (ValueError, OSError):
        return None


def predict(classifier: Classifier, images: list[str], inputs: Tensor) -> list[Prediction]:
    """The answers for ``inputs`` (N, …), float32, which are called ``images``."""
    proved, answers = classifier.proved, []
    for start in range(0, len(images), 64):
        part = inputs[start : start + 64]
        result = certify(proved, part, norm=proved.norm)
        with torch.no_grad():
            logits, _ = walk(proved, part.double())
            margins, distances = rivals_of(proved, logits, result.predictions)
            nearest = (margins / rival_constants(proved, distances, result.predictions)).argmin(dim=1)
        # Rivals are the classes without the predicted one.
        nearest = nearest + (nearest >= result.predictions)
        rows = zip(result.predictions.tolist(), result.radii.tolist(), nearest.tolist(), strict=True)
        answers += [
            (classifier.classes[first], radius, classifier.classes[second]) for first, radius, second in rows
        ]
    return [Prediction(image, *answer) for image, answer in zip(images, answers, strict=True)]


def to_json(classifier: Classifier, predictions: list[Prediction]) -> dict[str, Any]:
    """What ``lipcert predict --json`` prints."""
    about = {"model": classifier.name, "norm": NORMS[classifier.proved.norm], "arithmetic": "float64"}
    return {**about, "assumes": list(classifier.proved.assumes), "images": list(map(asdict, predictions))}


def read_images(path: Path, shape: tuple[int, ...], *, resize: bool = False) -> tuple[list[str], Tensor]:
    """The names and the float32 inputs (N, *shape) in an image file, an array, or a folder or archive of images.

    Bytes are divided by 255. Images of another size are refused, unless ``resize`` fits image files to it.
    """
    if not path.exists():
        raise DataNotFound(f"there is no {path}. Name an image, a folder of images, or a .npy or .npz file.")
    if path.is_file() and path.suffix.lower() in ARRAYS:
        if resize:
            raise ValueError(f"--resize is for image files; {path} holds an array. Resize the array.")
        images = as_batch(_array(path), shape, str(path))
        return [f"{path}[{index}]" for index in range(len(images))], as_inputs(images)
    if len(shape) != 3:
        raise ValueError(f"the network takes {_shown(shape)} numbers, not images. Name a .npy or .npz file.")
    if path.is_file() and path.suffix.lower() in IMAGES:
        found = {str(path): path.read_bytes()}
        pixels = [_decoded(data, name, shape, resize) for name, data in found.items()]
        return list(found), as_inputs(torch.stack(pixels))
    with open_files(path) as files:
        names = [name for name in files.names if name.lower().endswith(IMAGES)]
        if not names:
            raise DataNotFound(f"{path} holds no image ({', '.join(IMAGES)}). Name a folder that does.")
        pixels = [_decoded(files.read(name), f"{path}/{name}", shape, resize) for name in names]
    return names, as_inputs(torch.stack(pixels))


def _decoded(data: bytes, name: str, shape: tuple[int, ...], resize: bool) -> Tensor:  # uint8 (C, H, W)
    from lipcert.data.images import decode

    channels, high, wide = shape
    if channels not in (1, 3):
        raise ValueError(f"the network takes {_shown(shape)} numbers, not images. Name a .npy or .npz file.")
    pixels = decode(data, name, size=(high, wide) if resize else None, gray=channels == 1, shown=True)
    if pixels.shape[1:] != (high, wide):
        raise ValueError(
            f"{name} has {pixels.shape[1]}×{pixels.shape[2]} pixels, but the network takes {high}×{wide}. Add "
            "--resize to scale it and cut out the middle."
        )
    return torch.from_numpy(np.repeat(pixels, channels // len(pixels), axis=0))


def _array(path: Path) -> NDArray[Any]:
    """The array of a .npy file, or the images of a .npz file."""
    if path.suffix.lower() == ".npz":
        with open_npz(path) as arrays:
            names = sorted(arrays.names)
            chosen = names if len(names) == 1 else [name for name in NAMES if name in names]
            if not chosen:
                raise ValueError(f"{path} holds the arrays {names}; call the one with the images {NAMES[0]!r}.")
            return np.array(arrays.read(chosen[0]))
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(f"{path} must be an array that numpy.save wrote; got: {reason}. Save it again.") from None


def as_batch(array: NDArray[Any], shape: tuple[int, ...], name: str) -> Tensor:  # (N, *shape), uint8 or float32
    """One input or several, channels first or last; a gray image needs no channel."""
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise ValueError(f"{name} must hold bytes or floating numbers; got {array.dtype}. Convert it with astype.")
    last = (*shape[1:], shape[0])  # channels last
    if array.shape[-len(shape) :] == shape:
        batch = array.reshape(-1, *shape)
    elif len(shape) == 3 and array.shape[-3:] == last:
        batch = array.reshape(-1, *last).transpose(0, 3, 1, 2)
    elif len(shape) == 3 and shape[0] == 1 and array.shape[-2:] == shape[1:]:
        batch = array.reshape(-1, *shape)
    else:
        batch = np.empty(0)
    if array.ndim > len(shape) + 1 or not batch.size:
        raise ValueError(
            f"{name} has the shape {array.shape}, but the network takes {_shown(shape)}, one or several."
        )
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(batch))
    numbers = torch.from_numpy(np.ascontiguousarray(batch, dtype=np.float32))
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"{name} must hold finite numbers; got NaN or infinity. Remove them.")
    if len(shape) == 3 and not 0 <= float(numbers.min()) <= float(numbers.max()) <= 1:
        raise ValueError(
            f"{name} must have pixels from 0 to 1, or bytes; got {float(numbers.min()):.3g} to "
            f"{float(numbers.max()):.3g}. Divide by 255."
        )
    return numbers


def _shown(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
