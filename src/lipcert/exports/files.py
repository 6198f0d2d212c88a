"""Tensor files with the network in their header, for ``load_frozen`` and for anything that reads safetensors.

The header holds either the layers alone (``lipcert_layers``) or a whole certificate (``lipcert_certificate`` and
its sha256). Files are written in a folder of their own beside their place and moved when they are complete: what
has the final name has been read back and compared. Reading executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from lipcert.certification.certificate import FORMAT, sha256_of
from lipcert.exports.records import Records, rebuild

LAYERS, CERTIFICATE, DIGEST = "lipcert_layers", "lipcert_certificate", "lipcert_certificate_sha256"
FROZEN = "lipcert-frozen-1"


@dataclass(frozen=True)
class Certificate:
    """The text of a ``certificate.json`` and what it says; read, not checked: that is what check.py is for."""

    text: str
    content: dict[str, Any]

    @classmethod
    def parse(cls, text: str, where: Path) -> Certificate:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.get("format") != FORMAT or not _well_formed(content):
            raise ValueError(f"{where} must hold a certificate of format {FORMAT}; got none. Run lipcert certify.")
        return cls(text, content)

    @classmethod
    def of_folder(cls, folder: Path) -> Certificate | None:
        """That of a run, or of a folder of the hub."""
        path = folder / "certificate.json"
        return cls.parse(path.read_text(encoding="utf-8", errors="replace"), path) if path.is_file() else None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.content["input_shape"])

    @property
    def lipschitz(self) -> float:
        return float.fromhex(self.content["lipschitz"])

    def certified_accuracy(self, radius: float) -> float:
        """The share of its inputs that keep the right class within more than ``radius``."""
        radii = [float.fromhex(claim[2]) for claim in self.content["claims"]]
        return sum(r > radius for r in radii) / self.content["inputs"]["count"]

    def differs_from(self, records: Records) -> str | None:
        """The first thing in which it is not about that network, bit for bit; None if it is."""
        if different := tensors_differ(self.content["tensors"], records.tensors):
            return different
        for index, (said, found) in enumerate(zip(self.content["layers"], records.layers, strict=False)):
            if {**said, "lipschitz": ""} != {**found, "lipschitz": ""}:
                return f"layer {index}"
        same = len(self.content["layers"]) == len(records.layers)
        return None if same else "the number of layers"


def tensors_differ(hashes: dict[str, str], tensors: dict[str, Tensor]) -> str | None:
    """A tensor that is there and not here, or has other bits; None if all agree."""
    for name in sorted(hashes.keys() | tensors.keys()):
        if name not in hashes or name not in tensors or sha256_of(tensors[name]) != hashes[name]:
            return f"tensor {name}"
    return None


def write_network(
    path: Path, records: Records, input_shape: tuple[int, ...], certificate: Certificate | None = None
) -> None:
    """The tensors with their layers, or with the certificate that lists them, in the header."""
    if certificate is None:
        said = {"format": FROZEN, "input_shape": list(input_shape), "layers": records.layers}
        notes = {LAYERS: json.dumps(said, ensure_ascii=False)}
    else:
        notes = {CERTIFICATE: certificate.text, DIGEST: certificate.sha256}
    # safetensors writes several notes in no fixed order, and equal networks must give equal files.
    plain = save(records.tensors)
    size = int.from_bytes(plain[:8], "little")
    header = json.dumps({"__metadata__": notes, **json.loads(plain[8 : 8 + size])}, ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(memoryview(plain)[8 + size :])


def read_network(path: Path) -> tuple[Records, Certificate | None]:
    """What ``write_network`` wrote. A certificate must agree with its own hash and with the tensors."""
    notes, tensors = _open(path)
    if CERTIFICATE in notes:
        certificate = Certificate.parse(notes[CERTIFICATE], path)
        if certificate.sha256 != notes.get(DIGEST):
            raise ValueError(f"{path}: the certificate must have the sha256 beside it; got another. Export again.")
        _require_same(certificate, tensors, path)
        return Records(certificate.content["layers"], tensors), certificate
    try:
        said = json.loads(notes.get(LAYERS, "null"))
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("format") != FROZEN or not isinstance(said.get("layers"), list):
        raise ValueError(f"{path} must be a network exported by lipcert; got another file. Run lipcert export.")
    return Records(said["layers"], tensors), None


def exported_shape(path: Path) -> tuple[int, ...] | None:
    """The shape of one input of an exported network; None for another kind of file."""
    notes, _ = _open(path)
    if CERTIFICATE not in notes and LAYERS not in notes:
        return None
    _, certificate = read_network(path)
    said = json.loads(notes[LAYERS]) if certificate is None else certificate.content
    shape = said.get("input_shape")
    if not isinstance(shape, list) or not all(type(size) is int and 0 < size < 2**20 for size in shape):
        raise ValueError(f"{path} must say the shape of one input; got {shape!r}. Export again.")
    return tuple(shape)


def load_frozen(path: str | Path) -> nn.Sequential:
    """The frozen network of an exported file, or of a folder with a certificate; nothing in it is executed.

    Args:
        path: what ``lipcert export --to torch`` or ``--to safetensors`` wrote, or a folder with certificate.json.

    Raises:
        ValueError: for another file, a damaged one, or tensors that are not those of the certificate.
    """
    place = Path(path)
    if place.is_dir():
        certificate = Certificate.of_folder(place)
        if certificate is None:
            raise ValueError(f"{place} must hold certificate.json; got none. Run lipcert certify.")
        weights = beside(place, certificate.content["weights"])
        tensors = _open(weights)[1]
        _require_same(certificate, tensors, weights)
        return rebuild(certificate.content["layers"], tensors)
    records, _ = read_network(place)
    return rebuild(records.layers, records.tensors)


def beside(folder: Path, name: object) -> Path:
    """A file of that folder, by its plain name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(f"{folder}: a certificate names files of its own folder; got {name!r:.60}. Certify again.")
    return folder / name


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A file of that name in a new folder beside ``path``, moved there if the block ends well, else deleted."""
    if not path.parent.is_dir():
        raise ValueError(f"the folder of {path} must exist; got none. Make it, or choose another --out.")
    with tempfile.TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
        written = Path(folder) / path.name
        yield written
        written.replace(path)


def _open(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not path.is_file():
        raise ValueError(f"expected a file that lipcert exported; got {path}. Run lipcert export.")
    try:
        with safe_open(path, framework="pt") as archive:
            return archive.metadata() or {}, {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        first = (str(error).splitlines() or [""])[0][:120]
        raise ValueError(f"{path} must be an undamaged safetensors file; got {first}. Export again.") from None


def _require_same(certificate: Certificate, tensors: dict[str, Tensor], path: Path) -> None:
    if different := tensors_differ(certificate.content["tensors"], tensors):
        raise ValueError(
            f"{path} must hold the tensors of its certificate; got a change in {different}. Export again."
        )


def _well_formed(content: dict[str, Any]) -> bool:
    """The fields that this room reads; the checker reads all of them."""
    try:
        shape, inputs = content["input_shape"], content["inputs"]
        float.fromhex(content["lipschitz"])
        return (
            all(type(size) is int and size > 0 for size in shape)
            and isinstance(content["layers"], list)
            and all(isinstance(layer, dict) for layer in content["layers"])
            and all(isinstance(value, str) for value in content["tensors"].values())
            and type(inputs["count"]) is int
            and inputs["count"] > 0
            and isinstance(inputs["about"], str)
            and all(len(claim) == 3 and float.fromhex(claim[2]) > 0 for claim in content["claims"])
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return False
