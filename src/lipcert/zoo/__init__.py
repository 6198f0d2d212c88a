"""Trained networks with certificates, found in the package, in a checkout, in a folder or on the hub.

Each is a folder: ``certificate.json`` with the tensors of the frozen network and some test images beside it, a
README and ``zoo.json``, which says what the classes are, how the network was trained and what was measured on the
complete test set. Reading one executes nothing, and its tensors must have the hashes of its certificate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lipcert.certified.network import Network
from lipcert.errors import DataNotFound, explain, suggest
from lipcert.exporters.files import Certificate, load_certified, parse_json, read_text

FILE = "zoo.json"
HERE = Path(__file__).parent
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]


class Entry(BaseModel):
    """``zoo.json``: what is known of a trained network beside its certificate."""

    model_config = ConfigDict(title="zoo.json", extra="forbid", frozen=True)

    format: Literal["lipcert-zoo-1"] = "lipcert-zoo-1"
    data: Text
    """Name of the data set."""
    classes: tuple[Text, ...]
    model: Text
    """Name of the architecture."""
    overrides: dict[str, Any] = {}
    """Fields of the architecture that were changed."""
    parameters: int
    examples: int
    """Images of the complete test set."""
    natural: Share
    """Accuracy on all of them."""
    certified: dict[Text, Share]
    """Certified accuracy on all of them, by radius."""
    cpu_minutes: float | None = None
    """Of the training."""
    command: Text = ""
    """That trained it."""


@dataclass(frozen=True)
class Pretrained:
    """A trained network, its certificate and what is known of it."""

    folder: Path
    network: Network
    certificate: Certificate
    entry: Entry | None

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if they are known."""
        return None if self.entry is None else self.entry.classes


def places(zoo: str | Path | None = None) -> list[Path]:
    """The folders that are searched: ``zoo`` alone, or else $LIPCERT_ZOO, the package and its checkout."""
    if zoo is not None:
        return [Path(zoo).expanduser()]
    named = os.environ.get("LIPCERT_ZOO")
    checkout = HERE.parents[2]
    found = [Path(named).expanduser()] if named else []
    return [*found, HERE, *([checkout / "zoo"] if (checkout / "pyproject.toml").is_file() else [])]


def list_pretrained(zoo: str | Path | None = None) -> dict[str, Path]:
    """The folder of each trained network that is found, by its name."""
    found: dict[str, Path] = {}
    for place in places(zoo):
        for folder in sorted(_folders(place)):
            found.setdefault(folder.name, folder)
    return found


def _folders(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from (folder for folder in place.iterdir() if (folder / FILE).is_file())


def read_entry(folder: Path) -> Entry | None:
    """The ``zoo.json`` of a folder; None if it has none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return Entry.model_validate(parse_json(read_text(path)))
    except ValidationError as error:
        raise ValueError(f"{path}: {explain(error)} Fetch it again.") from None


def load_pretrained(name: str | Path, zoo: str | Path | None = None) -> Pretrained:
    """The trained network of that name.

    Args:
        name: "digits", for example; a folder, or someone/model on the hub, if it has a slash.
        zoo: a folder of trained networks; by default those of ``places``.

    Raises:
        DataNotFound: if there is none; the message says what to do.
        ValueError: for files that are damaged or do not belong together.
    """
    if isinstance(name, Path) or "/" in name or os.sep in name:
        folder = Path(name).expanduser()
        folder = folder if folder.is_dir() or isinstance(name, Path) else _from_hub(name)
    else:
        found = list_pretrained(zoo)
        if name not in found:
            raise DataNotFound(_unknown(name, found, zoo))
        folder = found[name]
    network, certificate = load_certified(folder)
    entry = read_entry(folder)
    with torch.no_grad():
        outputs = network(torch.zeros(1, *certificate.input_shape)).shape[1]
    if entry is not None and len(entry.classes) != max(2, outputs):
        raise ValueError(
            f"{folder / FILE} must name the classes of the network, {max(2, outputs)}; got {len(entry.classes)}. "
            "Fetch it again."
        )
    return Pretrained(folder, network, certificate, entry)


def _from_hub(name: str) -> Path:
    try:
        from lipcert.exporters.hub import CertifiedModel
    except ImportError as error:
        raise ValueError(f"{name} is no folder, and {error}") from None
    return CertifiedModel.from_pretrained(name).folder


def _unknown(name: str, found: dict[str, Path], zoo: str | Path | None) -> str:
    there = ", ".join(found) or "none"
    if zoo is not None:
        return f"there is no network {name!r} in {zoo}{suggest(name, found)} It has {there}. Name another folder."
    return (
        f"there is no trained network {name!r} here{suggest(name, found)} There are: {there}. Others are in the "
        "folder zoo of lipcert's repository: name that folder with LIPCERT_ZOO, or train one with lipcert train."
    )
