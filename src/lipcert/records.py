"""A run folder: the names of its files, what each of them holds, and the laws they obey together.

Commands read what other commands wrote. A file that is damaged or of another kind is refused in one sentence with
the command that makes it again; a file that is missing is None. ``RunFolder.check`` refuses a folder whose files do
not belong together: hashes of weights must agree, radii must be those of the certificate, and
certified ≤ attacked ≤ natural must hold at every radius.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from lipcert.files import sha256_file, write_json, write_rows

FORMAT: Literal["lipcert-run-2"] = "lipcert-run-2"
RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "0.5": 0.5, "1": 1.0}
METHODS = ("autoattack", "pgd", "quick")  # of attacks, the strongest first
CERTIFIERS = ("lipschitz", "local", "lipsdp", "eclipse-fast", "sdp-crown", "smoothing")  # methods of certify
CHECKED = ("lipschitz", "lipsdp", "eclipse-fast")  # methods of audit, and those whose radii lipcert check verifies
UNCHECKED = (
    "No certificate file exists for this method, so lipcert check cannot verify these radii: they rest on the code "
    "of lipcert alone."
)
TOLERANCE = 1e-9  # of a share that was added up in another order
Share = Field(ge=0, le=1)


class Record(BaseModel):
    """Frozen; fields that a later version adds are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


R = TypeVar("R", bound=BaseModel)


class Imported(Record):
    """Where imported weights came from."""

    file: str
    sha256: str
    data: str | None = None
    label: str | None = None  # the column of a table


class Config(RootModel[dict[str, Any]]):
    """config.json: the settings of a training, of this version or another."""


class RunRecord(Record):
    """run.json: how far the training is and what it cost, over all processes that worked on it.

    ``frozen`` is the sha256 of frozen.safetensors, made from the weights with the sha256 ``frozen_from``.
    """

    format: Literal["lipcert-run-2"] = FORMAT
    lipcert: str = ""
    imported: Imported | None = None
    init: str | None = None  # sha256 of the weights that training started from
    test: str | None = None  # sha256 of the test inputs, where these are no images
    step: int = Field(default=0, ge=0)
    steps: int = Field(default=0, ge=0)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    frozen: str | None = None
    frozen_from: str | None = None

    @property
    def unfinished(self) -> str | None:
        """What is missing of the training, or None."""
        return f"training stopped at step {self.step} of {self.steps}" if self.step < self.steps else None


class Epoch(Record):
    """A row of metrics.jsonl; what else was measured is kept."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    epoch: int = Field(ge=0)
    step: int = Field(default=0, ge=0)
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
    """audit.json, or audit-METHOD.json."""

    ok: bool
    lipschitz: float
    backbone: float
    largest_pairwise: float | None
    outputs: tuple[float, ...] | None = Field(default=None, strict=False)
    lower: float
    assumes: tuple[str, ...] = Field(default=(), strict=False)
    layers: tuple[LayerRecord, ...] = Field(strict=False)
    weights: str


class Example(Record):
    """A row of certified.jsonl, or of certified-METHOD.jsonl."""

    index: int = Field(ge=0)
    label: int = Field(ge=0)
    prediction: int
    radius: float = Field(ge=0, lt=math.inf)


class About(Record):
    """What the rows of a certification are about."""

    data: str
    split: str
    examples: int = Field(ge=1)
    images: str  # sha256, as in certificate.json
    labels: str
    weights: str  # sha256 of model.safetensors
    assumes: tuple[str, ...] = Field(default=(), strict=False)


class CertifiedRecord(About):
    """certified.json, or certified-METHOD.json: what the rows beside it are about.

    Radii are always computed on the CPU: the arithmetic of an accelerator cannot be checked.
    """

    format: Literal["lipcert-certified-2"] = "lipcert-certified-2"
    method: str = "lipschitz"
    settings: dict[str, Any] = Field(default_factory=dict)  # of the method
    lipschitz: float  # of the backbone
    rounding: float  # the most that rounding took of a margin
    device: Literal["cpu"] = "cpu"
    certificate: str | None = "certificate.json"  # what lipcert check verifies; None: the method has no such file
    cpu_seconds: float | None = None  # over all processes; None: not measured


class SmoothedExample(Example):
    """A row of certified-smoothing.jsonl."""

    prediction: int = Field(ge=-1)  # −1: abstained
    hits: int = Field(ge=0)
    samples: int = Field(ge=0)


class SmoothedRecord(About):
    """certified-smoothing.json: radii of the smoothed classifier, each of which holds with a probability."""

    format: Literal["lipcert-smoothing-1"] = "lipcert-smoothing-1"
    sigma: float = Field(gt=0, lt=math.inf)
    n0: int = Field(ge=1)
    n: int = Field(ge=1)
    alpha: float = Field(gt=0, lt=1)
    seed: int = Field(ge=0)
    levels: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    early_stop: float | None
    confidence: float = Field(ge=0, lt=1)  # of each radius on its own
    guarantee: str
    samples: int = Field(ge=0)  # over all images
    cpu_seconds: float


class AttackRow(Record):
    """A radius of an attack; shares are over the same examples."""

    eps: str
    radius: float = Field(ge=0, lt=math.inf)
    examples: int = Field(ge=1)
    natural: float = Share
    certified: float = Share
    attacked: float = Share
    points_attacked: int = Field(ge=0)
    broken_certified: int = Field(ge=0)


class AttackRecord(Record):
    """attack-METHOD.json."""

    format: Literal["lipcert-attack-2"]
    method: str
    attacks: tuple[str, ...] = Field(strict=False)
    left_out: tuple[str, ...] = Field(default=(), strict=False)  # what is not defined for these inputs, and why
    examples: int = Field(ge=1)
    all: bool  # whether certified images were attacked too
    seed: int
    data: str
    images: str  # sha256 of the attacked images
    weights: str
    command: str
    cpu_seconds: float
    rows: tuple[AttackRow, ...] = Field(strict=False, min_length=1)

    def __str__(self) -> str:
        rows = (
            f"{row.eps}: natural {row.natural:.1%}, certified {row.certified:.1%}, attacked {row.attacked:.1%}"
            for row in self.rows
        )
        return "\n  ".join((f"attack {self.method} on {self.examples} inputs", *rows))


class AttackExample(Record):
    """A row of attack-METHOD.jsonl: what became of one example at one radius."""

    index: int = Field(ge=0)
    label: int
    eps: str
    radius: float
    outcome: Literal["misclassified", "certified", "broken", "survived"]
    certified: bool
    by: str | None
    distance: float | None
    prediction: int | None = None


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
    tensors: dict[str, str]
    nodes: tuple[dict[str, Any], ...] = Field(strict=False)
    claims: tuple[tuple[int, int, str], ...] = Field(strict=False)


class RunFolder:
    """The files of one run. Properties read a file when they are first used; ``refresh`` forgets what was read.

    Every method of certification has files of its own, and a ``RunFolder`` is about one of them: ``by(method)`` is
    the same folder with the radii of another method.
    """

    def __init__(self, folder: str | Path, name: str | None = None, method: str = "lipschitz") -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.resolve().name  # distinct among the runs of one report
        self.method = method
        own = "" if method == "lipschitz" else f"-{method}"
        self.config_file = self.folder / "config.json"
        self.run_file = self.folder / "run.json"
        self.metrics_file = self.folder / "metrics.jsonl"
        self.model_file = self.folder / "model.safetensors"
        self.state_file = self.folder / "state.pt"
        self.frozen_file = self.folder / "frozen.safetensors"
        self.audit_file = self.folder / f"audit{own if method in CHECKED else ''}.json"
        self.certified_file = self.folder / f"certified{own}.json"
        self.examples_file = self.folder / f"certified{own}.jsonl"
        self.certified_parts = self.folder / f"certified{own}.parts"  # of a certification that goes on
        self.certificate_file = self.folder / f"certificate{own}.json"
        self.inputs_file = self.folder / f"certificate{own}.inputs.safetensors"
        self.data_file = self.folder / "test.safetensors"  # test data without a name
        self.report_file = self.folder / "report.html"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def __str__(self) -> str:
        """What was trained, certified and attacked, in lines."""
        lines = [f"{self.folder}: {self.model_name} on {self.data}" if self.exists else f"{self.folder}: no run"]
        if self.exists and self.unfinished:
            lines.append(self.unfinished)
        for row in self.metrics[-1:]:
            shares = (f"{key} {row[key]:.1%}" for key in row if key == "natural" or key.startswith("certified "))
            lines.append(f"trained to epoch {row['epoch']}: {', '.join(shares)}")
        for run in map(self.by, self.methods):
            shares = (f"{name} {run.certified(radius):.1%}" for name, radius in RADII.items())
            lines.append(f"{run.method}, {len(run.radii)} inputs: natural {run.natural:.1%}, {', '.join(shares)}")
        return "\n".join((*lines, *map(str, self.attacks)))

    def by(self, method: str) -> Self:
        """The same run with the radii of another method of certification."""
        return type(self)(self.folder, self.name, method)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods by which it is certified."""
        return tuple(method for method in CERTIFIERS if self.by(method).certified_file.is_file())

    def attack_file(self, method: str) -> Path:
        return self.folder / f"attack-{method}.json"

    def attack_parts(self, method: str) -> Path:
        """The folder of the finished parts of an attack that goes on."""
        return self.folder / f"attack-{method}.parts"

    def refresh(self) -> None:
        for name in [key for key in vars(self) if isinstance(getattr(type(self), key, None), cached_property)]:
            del vars(self)[name]

    @property
    def exists(self) -> bool:
        return self.run_file.is_file()

    def require(self) -> None:
        """Raise ValueError unless the folder holds a run of this version of lipcert."""
        if not self.folder.is_dir():
            raise ValueError(f"{self.folder} is not a run folder. Train one with lipcert train.")
        if self.exists:
            _ = self.record
        elif self.model_file.is_file():
            raise ValueError(f"{self.folder} was made by an older version of lipcert. Train the network again.")
        else:
            raise ValueError(f"{self.folder} holds no run. Train one with lipcert train --out {self.folder}.")

    @property
    def where(self) -> str:
        """The folder as seen from here if it is below, else its name: a report tells no machine's paths."""
        folder = self.folder.resolve()
        here = Path(os.path.relpath(folder))
        return folder.name if here.is_absolute() or ".." in here.parts or str(here) == "." else str(here)

    # --- What the files hold ---

    @cached_property
    def record(self) -> RunRecord:
        record = read(self.run_file, RunRecord, "Train the network again.")
        if record is None:
            raise ValueError(f"{self.folder} holds no run.json. Train one with lipcert train.")
        return record

    @property
    def unfinished(self) -> str | None:
        """What is missing of the training, such as "training stopped at step 31 of 360", or None."""
        return self.record.unfinished

    @property
    def imported(self) -> Imported | None:
        return self.record.imported

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """The settings of the training; None for imported weights."""
        config = read(self.config_file, Config, "Restore it, or train again.")
        return None if config is None else config.root

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        rows = read_rows(self.metrics_file, Epoch, "Restore it, or delete it.") or []
        return [row.model_dump(by_alias=True, exclude_unset=True) for row in rows]

    @cached_property
    def audited(self) -> AuditRecord | None:
        """What the method's own audit proved, or else the audit of every layer by itself."""
        own, common = self.audit_file, self.folder / "audit.json"
        return read(own if own.is_file() else common, AuditRecord, f"Run lipcert audit {self.where} again.")

    @cached_property
    def examples(self) -> Sequence[Example] | None:
        kind = SmoothedExample if self.method == "smoothing" else Example
        return read_rows(self.examples_file, kind, self._certify_again)

    @cached_property
    def certified_about(self) -> CertifiedRecord | None:
        """What deterministic radii are about."""
        if self.method == "smoothing":
            return None
        return read(self.certified_file, CertifiedRecord, self._certify_again)

    @cached_property
    def smoothed_about(self) -> SmoothedRecord | None:
        """What radii of randomized smoothing are about."""
        if self.method != "smoothing":
            return None
        return read(self.certified_file, SmoothedRecord, self._certify_again)

    @property
    def about(self) -> CertifiedRecord | SmoothedRecord | None:
        return self.certified_about or self.smoothed_about

    @property
    def certify_command(self) -> str:
        """What makes these radii, apart from settings."""
        words = "" if self.method == "lipschitz" else f" --method {self.method}"
        return f"lipcert certify {self.where}{words}"

    @property
    def _certify_again(self) -> str:
        return f"Run {self.certify_command} --restart."

    @cached_property
    def certificate(self) -> CertificateRecord | None:
        return read(self.certificate_file, CertificateRecord, self._certify_again)

    @cached_property
    def attacks(self) -> tuple[AttackRecord, ...]:
        """The finished attacks, the strongest method first."""
        found = (self.attack_with(method) for method in METHODS)
        return tuple(record for record in found if record is not None)

    @property
    def attacked(self) -> AttackRecord | None:
        """The attack of the strongest method."""
        return self.attacks[0] if self.attacks else None

    def attack_with(self, method: str) -> AttackRecord | None:
        return read(self.attack_file(method), AttackRecord, self._attack_again(method))

    def attack_examples(self, method: str) -> list[AttackExample] | None:
        path = self.attack_file(method).with_suffix(".jsonl")
        return read_rows(path, AttackExample, self._attack_again(method))

    def _attack_again(self, method: str) -> str:
        return f"Run lipcert attack {self.where} --method {method} --restart."

    @cached_property
    def weights(self) -> str:
        """The sha256 of model.safetensors, which audits, radii and attacks name."""
        if not self.model_file.is_file():
            raise ValueError(f"{self.folder} holds no model.safetensors. Train the network again.")
        return sha256_file(self.model_file)

    @cached_property
    def sha256(self) -> dict[str, str]:
        """The hash of every file that a report rests on."""
        files = (self.config_file, self.run_file, self.metrics_file, self.model_file, self.frozen_file)
        return {path.name: sha256_file(path) for path in (*files, *self.results()) if path.is_file()}

    # --- What follows from it ---

    @property
    def data(self) -> str | None:
        """The data set the radii are about, else the one it was trained on."""
        if self.about is not None:
            return self.about.data
        if self.config is not None:
            return self.config.get("data")
        return None if self.imported is None else self.imported.data

    @property
    def label(self) -> str | None:
        """The column of the classes, for data from a table."""
        if self.config is not None:
            return self.config.get("label")
        return None if self.imported is None else self.imported.label

    @property
    def model_name(self) -> str:
        return str(self.config["model"]) if self.config and "model" in self.config else "imported"

    @cached_property
    def radii(self) -> NDArray[np.float64]:
        return np.array([row.radius for row in self.examples or ()], dtype=np.float64)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        return np.array([row.prediction == row.label for row in self.examples or ()], dtype=bool)

    def certified(self, radius: float) -> float | None:
        """The share of examples whose radius is larger; None before lipcert certify."""
        return float((self.radii > radius).mean()) if len(self.radii) else None

    @property
    def natural(self) -> float | None:
        return float(self.correct.mean()) if len(self.correct) else None

    @property
    def holds(self) -> bool:
        """No layer that was audited is refuted or unknown."""
        return self.audited is None or self.audited.ok

    # --- Writing ---

    def write_record(self, **changes: Any) -> None:
        """Write run.json with ``changes``."""
        before = self.record if self.exists else RunRecord()
        write_json(self.run_file, before.model_copy(update=changes).model_dump())
        self.refresh()

    def write_metrics(self, rows: Sequence[dict[str, Any]]) -> None:
        write_rows(self.metrics_file, rows)
        self.refresh()

    def write_attack(self, record: dict[str, Any], rows: Sequence[dict[str, Any]]) -> AttackRecord:
        """Write the rows of an attack, and then its record: where the record is, the rows are."""
        path = self.attack_file(record["method"])
        write_rows(path.with_suffix(".jsonl"), rows)
        write_json(path, record)
        self.refresh()
        written = self.attack_with(record["method"])
        assert written is not None
        return written

    def results(self) -> list[Path]:
        """The files that are about the present weights."""
        attacks = [self.attack_file(method) for method in METHODS]
        views = [self.by(method) for method in CERTIFIERS]
        certified = [
            path
            for run in views
            for path in (run.certificate_file, run.certified_file, run.examples_file, run.inputs_file)
        ]
        audits = dict.fromkeys(run.audit_file for run in views)
        every = (*certified, *audits, *attacks, *(path.with_suffix(".jsonl") for path in attacks))
        return [path for path in every if path.is_file()]

    # --- Laws ---

    def check(self) -> Self:
        """Return the folder; raise ValueError, naming the file and the row, if its files do not belong together."""
        self.require()
        for method in CERTIFIERS:
            self.by(method)._check_certification()
        for attack in self.attacks:
            self._check_attack(attack)
        return self

    def _check_weights(self, file: Path, about: str, command: str) -> None:
        if about != self.weights:
            raise ValueError(
                f"{file} is about other weights than model.safetensors (sha256 {about[:12]}…, not "
                f"{self.weights[:12]}…). Run {command} again."
            )

    def _check_certification(self) -> None:
        """The audit and the rows are about these weights, and only a right answer has a radius."""
        if self.audited is not None:
            words = f" --method {self.method}" if self.audit_file.name != "audit.json" else ""
            self._check_weights(self.audit_file, self.audited.weights, f"lipcert audit {self.where}{words}")
        rows, about, path, cure = self.examples, self.about, self.examples_file, self._certify_again
        if rows is None:
            if about is not None:
                raise ValueError(f"{self.certified_file} has no {path.name} beside it. {cure}")
            return
        for position, row in enumerate(rows):
            if row.index != position:
                raise ValueError(f"{path}: row {position} has index {row.index}. {cure}")
            if row.radius > 0 and row.prediction != row.label:
                raise ValueError(f"{path}: index {row.index} has a wrong answer and radius {row.radius}. {cure}")
        checked = self.method in CHECKED
        without_certificate = checked and self.certificate is None
        if about is None or without_certificate:  # they say what the radii are about
            missing = self.certificate_file if without_certificate else self.certified_file
            raise ValueError(f"{path} has no {missing.name} beside it. {cure}")
        self._check_weights(self.certified_file, about.weights, f"{self.certify_command} --restart")
        if about.examples != len(rows):
            raise ValueError(
                f"{path} and {self.certified_file.name} are about different images: {len(rows)} rows, and "
                f"{about.examples} images. {cure}"
            )
        if isinstance(about, SmoothedRecord):
            self._check_samples(about)
        elif checked:
            self._check_claims(about)

    def _check_samples(self, about: SmoothedRecord) -> None:
        """No row has more samples than the record allows, or more hits than samples."""
        for row in self.examples or ():
            assert isinstance(row, SmoothedExample)
            if not row.hits <= row.samples <= about.n:
                raise ValueError(
                    f"{self.examples_file}: row {row.index} contradicts itself or the record. {self._certify_again}"
                )

    def _check_claims(self, about: CertifiedRecord) -> None:
        """The certificate claims the same radii for the same images."""
        certificate, path, cure = self.certificate, self.examples_file, self._certify_again
        assert certificate is not None
        if (about.images, about.examples) != (certificate.inputs.sha256, certificate.inputs.count):
            files = f"{path}, {self.certified_file.name} and {self.certificate_file.name}"
            raise ValueError(f"{files} are about different images. {cure}")
        rows = {row.index: (row.label, row.radius) for row in self.examples or () if row.radius > 0}
        claims = {index: (label, float.fromhex(radius)) for index, label, radius in certificate.claims}
        if rows != claims:
            index = min(i for i in {*rows, *claims} if rows.get(i) != claims.get(i))
            raise ValueError(f"{path} and {self.certificate_file.name} differ at index {index}. {cure}")

    def _check_attack(self, attack: AttackRecord) -> None:
        """The attack was on these weights; its table follows from its rows, and no row contradicts a radius."""
        path, cure = self.attack_file(attack.method), self._attack_again(attack.method)
        self._check_weights(path, attack.weights, f"lipcert attack {self.where} --method {attack.method}")
        for line in attack.rows:
            ordered = (
                line.certified <= line.attacked + TOLERANCE and line.attacked <= line.natural + TOLERANCE
            ) and not line.broken_certified
            if not ordered:
                shares = f"certified {line.certified:.4f}, attacked {line.attacked:.4f}, natural {line.natural:.4f}"
                found = f"{line.broken_certified} certified images broken" if line.broken_certified else shares
                raise ValueError(
                    f"{path} must have certified ≤ attacked ≤ natural at eps {line.eps}, but it has {found}. "
                    "Either the folder mixes two runs, or the proof is wrong: certify and attack again, and report "
                    "it as a bug if it stays."
                )
        rows = self.attack_examples(attack.method)
        if rows is None:
            return
        # Radii of randomized smoothing are about another classifier than the one that is attacked.
        for run in (self.by(method) for method in CERTIFIERS if method != "smoothing"):
            if run.method != "lipschitz" and (run.about is None or run.about.data != attack.data):
                continue
            known = {row.index: row for row in run.examples or ()}
            for row in rows:
                if row.index in known and _contradicts(row, known[row.index], run.method):
                    raise ValueError(
                        f"{path.with_suffix('.jsonl')} and {run.examples_file.name} disagree at index {row.index}, "
                        f"eps {row.eps}. {run._certify_again} {cure}"
                    )
        for line in attack.rows:
            outcomes = Counter(row.outcome for row in rows if row.eps == line.eps)
            counted = (
                outcomes.total(),
                outcomes.total() - outcomes["misclassified"],
                sum(row.certified for row in rows if row.eps == line.eps),
                outcomes["certified"] + outcomes["survived"],
            )
            stated = (line.examples, *(s * line.examples for s in (line.natural, line.certified, line.attacked)))
            if not np.allclose(counted, stated, rtol=0, atol=1e-6):
                raise ValueError(f"{path}: the shares at eps {line.eps} are not those of its rows. {cure}")


def _contradicts(row: AttackExample, proved: Example, method: str) -> bool:
    """Whether a row of an attack cannot stand beside the certified row of the same example."""
    moved = row.radius if row.distance is None else row.distance
    # The attack says which answers are certified by the constant of the whole network.
    clear = method == "lipschitz" and abs(proved.radius - row.radius) > TOLERANCE
    return (
        proved.label != row.label
        or (clear and row.certified != (proved.radius > row.radius))
        or (row.outcome == "broken" and moved < proved.radius - TOLERANCE)
    )


def parse_radii(eps: Sequence[str], flag: str = "--eps") -> dict[str, float]:
    """Return {text: radius} of the words after ``flag``, numbers or fractions such as 36/255.

    Raises:
        ValueError: for a word that is not a number of at least 0, or if there is none.
    """
    radii: dict[str, float] = {}
    for text in eps:
        try:
            radii[text] = float(Fraction(text))
        except (ValueError, ZeroDivisionError, OverflowError):
            raise ValueError(f"{flag} takes numbers or fractions such as 36/255, got {text!r}.") from None
        if radii[text] < 0:
            raise ValueError(f"{flag} must be at least 0, got {text!r}.")
    if not radii:
        raise ValueError(f"{flag} needs at least one radius, such as 36/255.")
    return radii


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """A short name for each of several folders, which must be different."""
    whole = [folder.resolve() for folder in folders]
    if again := [str(f) for f, count in zip(folders, map(whole.count, whole), strict=True) if count > 1]:
        raise ValueError(f"{again[0]} is named twice. Name each run once.")
    names = [path.name for path in whole]
    if len(set(names)) < len(names):  # runs/a/latest and runs/b/latest
        names = [RunFolder(p).where if names.count(p.name) > 1 else p.name for p in whole]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    return names


def read(path: Path, kind: type[R], cure: str) -> R | None:
    """The record in a JSON file; None if there is no file."""
    records = read_rows(path, kind, cure, lambda text: [text])
    return records[0] if records else None


def read_rows(
    path: Path, kind: type[R], cure: str, split: Callable[[str], list[str]] = str.splitlines
) -> list[R] | None:
    """The records of a file with one a line; None if there is no file."""
    if not path.is_file():
        return None
    rows: list[R] = []
    try:
        rows += map(kind.model_validate_json, split(path.read_text(encoding="utf-8")))
    except ValueError as error:
        what = (str(error).splitlines() or ["something else"])[0]
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            where = f" in line {len(rows) + 1}" if split is str.splitlines else ""
            what = f"{'.'.join(map(str, first['loc'])) or 'the text'}: {first['msg']}{where}"
        about = re.split("[:;]", kind.__doc__ or "")[0].rstrip(".")
        raise ValueError(f"{path} is not {about[0].lower()}{about[1:]}: {what}. {cure}") from None
    return rows
