"""A run folder as one record, and the laws its files must obey together: certified ≤ attacked ≤ natural.

A folder that breaks one was tampered with, or mixes files of two runs; the row is named and no report is made.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcert.certified.freeze import freeze
from lipcert.certified.network import Network
from lipcert.reports.records import (
    AttackExample,
    AttackRecord,
    AttackRow,
    AuditRecord,
    CertificateRecord,
    Epoch,
    Example,
    read,
    read_plain,
    read_rows,
)
from lipcert.training.checkpoint import load_model, load_spec

HASHED = (
    *("config.json", "imported.json", "metrics.jsonl", "model.safetensors", "audit.json", "certificate.json"),
    *(
        "certificate.safetensors",
        "certificate.inputs.safetensors",
        "certified.jsonl",
        "attack.json",
        "attack.jsonl",
    ),
)
TOLERANCE = 1e-9  # of a share that was added up in another order, or of a radius from another batch


@dataclass(frozen=True)
class Run:
    """What a run folder holds; None stands for a file that is not there."""

    name: str  # distinct among the runs of one report
    folder: Path
    where: str  # how commands name the folder
    architecture: dict[str, Any]
    config: dict[str, Any] | None
    imported: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    audit: AuditRecord | None
    examples: list[Example] | None
    certificate: CertificateRecord | None
    attack: AttackRecord | None
    sha256: dict[str, str]  # file → its hash

    @property
    def data(self) -> str | None:
        """The data set the radii are about, else the one it was trained on."""
        if self.certificate is not None and self.certificate.inputs.about:
            return self.certificate.inputs.about.removesuffix(" test")
        return (self.config or self.imported or {}).get("data")

    @property
    def model(self) -> str:
        return str(self.config["model"]) if self.config and "model" in self.config else "imported"

    @cached_property
    def radii(self) -> NDArray[np.float64]:
        return np.array([row.radius for row in self.examples or ()], dtype=np.float64)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        return np.array([row.prediction == row.label for row in self.examples or ()], dtype=bool)

    def certified(self, radius: float) -> float | None:
        """The share of examples whose radius is larger; None without certified.jsonl."""
        return float((self.radii > radius).mean()) if len(self.radii) else None

    @property
    def natural(self) -> float | None:
        return float(self.correct.mean()) if len(self.correct) else None

    @property
    def attacks(self) -> tuple[AttackRecord, ...]:
        return () if self.attack is None else (self.attack,)

    @property
    def unfinished(self) -> str | None:
        return None

    def frozen(self) -> Network:
        return freeze(load_model(self.folder))

    @property
    def holds(self) -> bool:
        """No layer that was audited is refuted or unknown."""
        return self.audit is None or self.audit.ok


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs, each under a name of its own."""
    if not folders:
        raise ValueError("expected at least one run folder; got none. Name one: lipcert report RUN.")
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"expected a run folder; got {folder}. Train one: lipcert train.")
    whole = [folder.resolve() for folder in folders]
    if again := [str(f) for f, count in zip(folders, map(whole.count, whole), strict=True) if count > 1]:
        raise ValueError(f"expected different run folders; got {again[0]} twice. Name it once.")
    names = [path.name for path in whole]
    if len(set(names)) < len(names):  # runs/a/latest and runs/b/latest
        names = [_where(path) if names.count(path.name) > 1 else path.name for path in whole]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    return [load_run(folder, name) for folder, name in zip(folders, names, strict=True)]


def load_run(folder: Path, name: str) -> Run:
    """Read a run folder and check that its files agree."""
    where = _where(folder.resolve())
    spec = load_spec(folder)
    epochs = read_rows(folder / "metrics.jsonl", Epoch, "Restore it, or delete it.") or []
    certify, attack = f"Run lipcert certify {where} again.", f"Run lipcert attack {where} again."
    run = Run(
        name=name,
        folder=folder,
        where=where,
        architecture=spec.model_dump(),
        config=read_plain(folder / "config.json", "Restore it, or delete it."),
        imported=read_plain(folder / "imported.json", "Restore it, or delete it."),
        metrics=[row.model_dump(by_alias=True, exclude_unset=True) for row in epochs],
        audit=read(folder / "audit.json", AuditRecord, f"Run lipcert audit {where} again."),
        examples=read_rows(folder / "certified.jsonl", Example, certify),
        certificate=read(folder / "certificate.json", CertificateRecord, certify),
        attack=read(folder / "attack.json", AttackRecord, attack),
        sha256={file: _sha256(folder / file) for file in HASHED if (folder / file).is_file()},
    )
    if run.audit is not None:
        _check_weights(run, "audit", run.audit.weights)
    _check_examples(run, certify)
    if run.attack is not None:
        for row in run.attack.rows:
            _check_shares(run, row)
        _check_attack(run, run.attack, read_rows(folder / "attack.jsonl", AttackExample, attack))
    return run


def _check_weights(run: Run, command: str, about: str) -> None:
    weights = run.sha256["model.safetensors"]
    if about != weights:
        raise ValueError(
            f"{run.folder / command}.json: expected an {command} of model.safetensors, sha256 {weights[:12]}…; "
            f"got one of {about[:12]}…. Run lipcert {command} {run.where} again."
        )


def _check_examples(run: Run, cure: str) -> None:
    """Only a right answer has a radius, and the certificate claims the same radii."""
    path = run.folder / "certified.jsonl"
    for position, row in enumerate(run.examples or ()):
        if row.index != position:
            raise ValueError(f"{path}: expected the rows 0, 1, …; got index {row.index} at {position}. {cure}")
        if row.radius > 0 and row.prediction != row.label:
            raise ValueError(
                f"{path}: expected radius 0 for a wrong answer; got {row.radius} at index {row.index}. {cure}"
            )
    if run.examples is None:
        return
    if run.certificate is None:  # which says what the radii are about
        raise ValueError(f"{path}: expected certificate.json beside it; got none. {cure}")
    rows = {row.index: (row.label, row.radius) for row in run.examples if row.radius > 0}
    claims = {index: (label, float.fromhex(radius)) for index, label, radius in run.certificate.claims}
    if rows != claims:
        index = min(i for i in {*rows, *claims} if rows.get(i) != claims.get(i))
        raise ValueError(f"{path}: expected the claims of certificate.json; got another at index {index}. {cure}")


def _check_shares(run: Run, row: AttackRow) -> None:
    shares = f"certified {row.certified:.4f}, attacked {row.attacked:.4f}, natural {row.natural:.4f}"
    ordered = row.certified <= row.attacked + TOLERANCE and row.attacked <= row.natural + TOLERANCE
    if not ordered or row.broken_certified:
        found = f"{row.broken_certified} certified images broken" if row.broken_certified else shares
        raise ValueError(
            f"{run.folder / 'attack.json'}: expected certified ≤ attacked ≤ natural at eps {row.eps}; got {found}. "
            f"The folder mixes two runs, or the proof is wrong: run lipcert certify and attack {run.where} again."
        )


def _check_attack(run: Run, attack: AttackRecord, rows: list[AttackExample] | None) -> None:
    """The attack was on these weights; its table follows from its rows, and no row contradicts a radius."""
    _check_weights(run, "attack", attack.weights)
    path, cure = run.folder / "attack.json", f"lipcert attack {run.where}"
    known = {row.index: row for row in run.examples or ()}
    for row in rows or ():
        proved = known.get(row.index)
        if proved is None:
            continue
        moved = row.radius if row.distance is None else row.distance
        clear = abs(proved.radius - row.radius) > TOLERANCE
        if (
            proved.label != row.label
            or (clear and row.certified != (proved.radius > row.radius))
            or (row.outcome == "broken" and moved < proved.radius - TOLERANCE)
        ):
            raise ValueError(
                f"{run.folder / 'attack.jsonl'}: expected rows that agree with certified.jsonl; got another label "
                f"or radius at index {row.index}, eps {row.eps}. Run lipcert certify {run.where} and {cure} again."
            )
    if rows is None:
        return
    for line in attack.rows:
        outcomes = Counter(row.outcome for row in rows if row.eps == line.eps)
        proved_share = sum(row.certified for row in rows if row.eps == line.eps)
        counted = (
            outcomes.total(),
            outcomes.total() - outcomes["misclassified"],
            proved_share,
            outcomes["certified"] + outcomes["survived"],
        )
        told = (line.examples, *(s * line.examples for s in (line.natural, line.certified, line.attacked)))
        if not np.allclose(counted, told, rtol=0, atol=1e-6):
            raise ValueError(
                f"{path}: expected the shares of attack.jsonl at eps {line.eps}; got others. Run {cure} again."
            )


def _where(folder: Path) -> str:
    """The folder as seen from here if it is below, else its name: a report tells no machine's paths."""
    here = Path(os.path.relpath(folder))
    return folder.name if here.is_absolute() or ".." in here.parts or str(here) == "." else str(here)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
