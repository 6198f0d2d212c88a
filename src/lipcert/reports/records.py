"""The files of a run folder as checked records: what a report may rely on, field by field.

A report reads what other commands wrote. A file that is damaged or of another kind is refused in one line, with the
command that makes it anew; a file that is missing is None.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Share = Field(ge=0, le=1)


class Record(BaseModel):
    """Frozen; fields that a later version adds are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


R = TypeVar("R", bound=Record)


class Example(Record):
    """A row of certified.jsonl."""

    index: int = Field(ge=0)
    label: int = Field(ge=0)
    prediction: int
    radius: float = Field(ge=0, lt=math.inf)


class Epoch(Record):
    """A row of metrics.jsonl; what else was measured is kept."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    epoch: int = Field(ge=0)
    loss: float | None = None
    natural: float | None = Field(default=None, ge=0, le=1)
    certified: float | None = Field(default=None, alias="certified 36/255", ge=0, le=1)


class LayerRecord(Record):
    """A layer of audit.json: lower ≤ L ≤ upper."""

    name: str
    op: str
    verdict: Literal["PROVED", "ASSUMED", "REFUTED", "UNKNOWN"]
    lower: float
    upper: float
    method: str


class AuditRecord(Record):
    """audit.json."""

    ok: bool
    lipschitz: float
    backbone: float
    largest_pairwise: float | None
    lower: float
    layers: tuple[LayerRecord, ...] = Field(strict=False)
    weights: str


class AttackRow(Record):
    """A radius of attack.json; shares are over the same examples."""

    eps: str
    radius: float = Field(ge=0, lt=math.inf)
    examples: int = Field(ge=1)
    natural: float = Share
    certified: float = Share
    attacked: float = Share
    points_attacked: int = Field(ge=0)
    broken_certified: int = Field(ge=0)


class AttackRecord(Record):
    """attack.json."""

    format: Literal["lipcert-attack-1"]
    method: str
    attacks: tuple[str, ...] = Field(strict=False)
    examples: int = Field(ge=1)
    all: bool  # whether certified images were attacked too
    data: str
    weights: str
    command: str
    rows: tuple[AttackRow, ...] = Field(strict=False)


class AttackExample(Record):
    """A row of attack.jsonl: what became of one example at one radius."""

    index: int = Field(ge=0)
    label: int
    eps: str
    radius: float
    outcome: Literal["misclassified", "certified", "broken", "survived"]
    certified: bool
    by: str | None
    distance: float | None


class CertifiedInputs(Record):
    """What certificate.json says of the images."""

    file: str
    sha256: str
    count: int
    about: str


class CertificateRecord(Record):
    """What a report needs of certificate.json. Whether it is true is for lipcert check to say."""

    arithmetic: str
    assumes: tuple[str, ...] = Field(default=(), strict=False)  # of the platform's elementary functions
    inputs: CertifiedInputs
    weights: str
    nodes: tuple[dict[str, Any], ...] = Field(strict=False)
    claims: tuple[tuple[int, int, str], ...] = Field(strict=False)


def read(path: Path, kind: type[R], cure: str) -> R | None:
    """The record in a JSON file; None if there is no file."""
    if not path.is_file():
        return None
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, ValueError) as error:
        raise _refused(path, kind, error, cure) from None


def read_rows(path: Path, kind: type[R], cure: str) -> list[R] | None:
    """The records of a file with one a line; None if there is no file."""
    if not path.is_file():
        return None
    rows = []
    for number, line in enumerate(_text(path, kind, cure).splitlines(), start=1):
        try:
            rows.append(kind.model_validate_json(line))
        except ValidationError as error:
            raise _refused(path, kind, error, cure, f" in line {number}") from None
    return rows


def read_plain(path: Path, cure: str) -> dict[str, Any] | None:
    """A JSON object without a fixed form, such as config.json; None if there is no file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object; got something else. {cure}")
    return content


def _text(path: Path, kind: type[Record], cure: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise _refused(path, kind, error, cure) from None


def _refused(path: Path, kind: type[Record], error: ValueError, cure: str, where: str = "") -> ValueError:
    what = (str(error).splitlines() or ["something else"])[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        what = f"{'.'.join(map(str, first['loc'])) or 'the text'}: {first['msg']}"
    about = re.split("[:;]", kind.__doc__ or "")[0].rstrip(".")
    return ValueError(f"{path}: expected {about[0].lower()}{about[1:]}; got {what}{where}. {cure}")
