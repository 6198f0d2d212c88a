"""Tensor files with the network in their header, for ``load_frozen`` and for every reader of safetensors.

The header holds either the nodes alone (``lipcert_nodes``) or a whole certificate (``lipcert_certificate`` and
its sha256). A file is written in a new folder beside its final place and moved when it is complete, so a file with
the final name has been read back and compared.

Files come from others. Reading one executes nothing, and a file that is damaged, malformed or too large raises
ValueError.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lipcert.certified.certificate import FORMAT, as_inputs, halved, sha256_of
from lipcert.certified.network import Network
from lipcert.certified.op import Shape
from lipcert.certified.ops import Real
from lipcert.certified.records import MOST_ENTRIES, MOST_NODES, Records, reason, rebuild, show

NODES, CERTIFICATE, DIGEST = "lipcert_nodes", "lipcert_certificate", "lipcert_certificate_sha256"
FROZEN = "lipcert-frozen-2"
LONGEST_JSON = 2**26  # bytes
MOST_TENSORS = 6 * MOST_NODES  # a node has at most six
MOST_AXES = 8  # of one input


Whole = Annotated[int, Field(strict=True, ge=1, lt=2**62)]
Size = Annotated[int, Field(strict=True, ge=1, le=MOST_ENTRIES)]
Sizes = Annotated[list[Size], Field(min_length=1, max_length=MOST_AXES)]


class _Inputs(BaseModel, extra="forbid"):
    file: str
    tensor: str
    sha256: str
    divide_by: Literal[255] | None
    count: Whole
    about: str


class _Content(BaseModel, extra="forbid"):
    """The form of a certificate; the checker reads all of it, and verifies it."""

    format: Literal[FORMAT]  # type: ignore[valid-type]
    norm: Literal["L2", "Linf", "L1"]
    arithmetic: Literal["float64"]
    assumes: list[str]
    input_shape: Sizes
    weights: str
    tensors: dict[str, str]
    nodes: list[dict[str, Any]]
    lipschitz: Real
    inputs: _Inputs
    claims: list[tuple[Annotated[int, Field(strict=True)], Annotated[int, Field(strict=True)], Real]]
    probe: dict[str, Any]
    joint: list[list[list[Real]]] = []

    @model_validator(mode="after")
    def require_claims(self) -> _Content:
        if len(self.claims) > self.inputs.count or any(radius <= 0 for _, _, radius in self.claims):
            raise ValueError("claims have positive radii, at most one for each input")
        return self


class _Network(BaseModel, extra="forbid"):
    """The form of the header of a network without a certificate."""

    format: Literal["lipcert-frozen-2"]
    input_shape: Sizes
    nodes: list[Any]


@dataclass(frozen=True)
class Certificate:
    """The text of a ``certificate.json`` and its content.

    The content has the right form, but nothing in it is verified: that is the task of check.py.
    """

    text: str
    content: dict[str, Any]

    @classmethod
    def parse(cls, text: str, where: Path) -> Certificate:
        content = parse_json(text)
        try:
            _Content.model_validate(content)
        except ValidationError as error:
            raise ValueError(
                f"{where} is no certificate of format {FORMAT} ({reason(error)}). Run lipcert certify."
            ) from None
        return cls(text, content)

    @classmethod
    def of_folder(cls, folder: Path) -> Certificate | None:
        """The certificate of a run or of a downloaded model; None if the folder has none."""
        path = folder / "certificate.json"
        return cls.parse(read_text(path), path) if path.is_file() else None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def input_shape(self) -> Shape:
        return tuple(self.content["input_shape"])

    @property
    def lipschitz(self) -> float:
        return float.fromhex(self.content["lipschitz"])

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the certificate assumes about the platform, such as "tanh within 8 ulp"."""
        return tuple(self.content["assumes"])

    def certified_accuracy(self, radius: float) -> float:
        """The share of the inputs that have the right class and keep it within more than ``radius``."""
        radii = [float.fromhex(claim[2]) for claim in self.content["claims"]]
        return sum(r > radius for r in radii) / self.content["inputs"]["count"]

    def differs_from(self, records: Records) -> str | None:
        """What in the certificate is not about that network, bit for bit; None if everything is."""
        if different := tensors_differ(self.content["tensors"], records.tensors):
            return different
        for index, (claimed, actual) in enumerate(zip(self.content["nodes"], records.nodes, strict=False)):
            if {**claimed, "lipschitz": ""} != {**actual, "lipschitz": ""}:
                return f"node {index}"
        if len(self.content["nodes"]) != len(records.nodes):
            return "number of nodes"
        return None if self.input_shape == records.input_shape else "input shape"

    def inputs(self, folder: Path) -> Tensor:
        """The inputs that the certificate in ``folder`` is about, as the network sees them."""
        about = self.content["inputs"]
        with _archive(beside(folder, about["file"])) as archive:
            images = archive.get_tensor(about["tensor"]) if about["tensor"] in archive.keys() else None  # noqa: SIM118
        if images is None or sha256_of(images) != about["sha256"]:
            raise ValueError(f"{folder / about['file']} must hold the inputs of the certificate. Certify again.")
        return as_inputs(images)

    def stored(self, records: Records) -> Records:
        """The records of this network with every tensor in the precision that the certificate lists."""
        tensors = dict(records.tensors)
        for name, digest in self.content["tensors"].items():
            same = as_listed(tensors[name], digest)
            assert same is not None, "differs_from says that it is this network"
            tensors[name] = same
        return replace(records, tensors=tensors)


def tensors_differ(hashes: dict[str, str], tensors: dict[str, Tensor]) -> str | None:
    """A tensor that only one side has, or that holds other numbers; None if all agree."""
    for name in sorted(hashes.keys() | tensors.keys()):
        if name not in hashes or name not in tensors or as_listed(tensors[name], hashes[name]) is None:
            return f"tensor {name if name.isprintable() and len(name) < 100 else show(name)}"
    return None


def as_listed(tensor: Tensor, digest: str) -> Tensor | None:
    """The tensor in the precision in which it has that hash, perhaps as float16; None if it has another one."""
    return next((same for same in (tensor, halved(tensor)) if sha256_of(same) == digest), None)


def write_network(path: Path, records: Records, certificate: Certificate | None = None) -> None:
    """Write the tensors, with their nodes or with the certificate that lists them in the header."""
    if certificate is None:
        content = {"format": FROZEN, "input_shape": list(records.input_shape), "nodes": records.nodes}
        notes = {NODES: json.dumps(content, ensure_ascii=False)}
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
    """Read what ``write_network`` wrote; a certificate must agree with its own hash and with the tensors."""
    notes = _read_notes(path)
    if CERTIFICATE in notes:
        certificate = Certificate.parse(notes[CERTIFICATE], path)
        if certificate.sha256 != notes.get(DIGEST):
            raise ValueError(
                f"{path}: the certificate must have the sha256 beside it; got another. Export the network again."
            )
        return _certified_records(certificate, path), certificate
    try:
        content = _Network.model_validate(parse_json(notes.get(NODES, "null")))
    except ValidationError as error:
        raise ValueError(
            f"{path} is no network exported by lipcert ({reason(error)}). Run lipcert export."
        ) from None
    return Records(content.nodes, _read_tensors(path), tuple(content.input_shape)), None


def exported_shape(path: Path) -> Shape | None:
    """The shape of one input of an exported network; None for another kind of file."""
    if not {CERTIFICATE, NODES} & _read_notes(path).keys():
        return None
    return read_network(path)[0].input_shape


def load_frozen(path: str | Path) -> Network:
    """Load the frozen network of an exported file, or of a folder with a certificate; nothing in it is executed.

    Args:
        path: a file that ``lipcert export --to torch`` or ``--to safetensors`` wrote, or a folder with
            certificate.json.

    Raises:
        ValueError: for another kind of file, a damaged one, or tensors that are not those of the certificate.
        OSError: for a file that cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        return load_certified(place)[0]
    return rebuild(read_network(place)[0])


def load_certified(folder: Path) -> tuple[Network, Certificate]:
    """Load the frozen network of a folder with certificate.json, and the certificate; raises as ``load_frozen``."""
    if not folder.is_dir():
        raise ValueError(f"expected a folder with certificate.json; got {folder}. Pass the folder of a run.")
    certificate = Certificate.of_folder(folder)
    if certificate is None:
        raise ValueError(f"{folder} holds no certificate.json. Run lipcert certify first.")
    records = _certified_records(certificate, beside(folder, certificate.content["weights"]))
    return rebuild(records), certificate


def beside(folder: Path, name: object) -> Path:
    """The file of that plain name in ``folder``."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise ValueError(
            f"{folder}: a certificate names files of its own folder; got {show(name)}. Run lipcert certify again."
        )
    return folder / name


def read_text(path: Path) -> str:
    """The text of a JSON file, unless it is too long."""
    if path.stat().st_size > LONGEST_JSON:
        raise ValueError(f"{path} must have at most {LONGEST_JSON:,} bytes; got more. Use the original file.")
    return path.read_text(encoding="utf-8", errors="replace")


def parse_json(text: str) -> Any:
    """The content of a JSON text; None if it is too long, is not JSON, or has a name twice in one object.

    Half a surrogate pair is not accepted either, because no text with it can be written to a file.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) != len(pairs):
            raise ValueError("a name occurs twice")
        return content

    if len(text) > LONGEST_JSON:
        return None
    try:
        content = json.loads(text, object_pairs_hook=unique)
        if "\\u" in text:
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return content


def _read_notes(path: Path) -> dict[str, str]:
    """The metadata in the header of a safetensors file."""
    with _archive(path) as archive:
        return archive.metadata() or {}


def _read_tensors(path: Path, *, half: bool = False) -> dict[str, Tensor]:
    """The tensors of a safetensors file, all of them float32 or float64, or also float16."""
    with _archive(path) as archive:
        names = list(archive.keys())
        if len(names) > MOST_TENSORS:
            raise ValueError(
                f"{path} must hold at most {MOST_TENSORS} tensors; got {len(names)}. Export a smaller network."
            )
        for name in names:
            dtype = archive.get_slice(name).get_dtype()
            if dtype not in ("F32", "F64") and not (half and dtype == "F16"):
                raise ValueError(
                    f"{path}: tensor {show(name)} must be float32 or float64; got {dtype}. Export it again."
                )
        return {name: archive.get_tensor(name) for name in names}


@contextmanager
def _archive(path: Path) -> Iterator[Any]:
    """An open safetensors file, whose errors are ValueErrors."""
    if not path.is_file():
        raise ValueError(f"expected a file that lipcert exported; got {path}. Run lipcert export.")
    try:
        with safe_open(path, framework="pt") as archive:
            yield archive
    except (SafetensorError, OSError) as error:
        first = (str(error).splitlines() or [""])[0][:120]
        raise ValueError(f"{path} must be an undamaged safetensors file; got: {first}. Export it again.") from None


def _certified_records(certificate: Certificate, path: Path) -> Records:
    """The nodes of the certificate with the tensors of the file at ``path``, whose hashes it lists.

    Half precision is widened, which is exact.
    """
    tensors = _read_tensors(path, half=True)
    if different := tensors_differ(certificate.content["tensors"], tensors):
        raise ValueError(
            f"{path} must hold the tensors of its certificate; got a change in {different}. Export it again."
        )
    wide = {name: t.float() if t.dtype == torch.float16 else t for name, t in tensors.items()}
    return Records(certificate.content["nodes"], wide, certificate.input_shape)
