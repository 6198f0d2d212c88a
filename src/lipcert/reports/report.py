"""What a report says, as one typed record: the page, Markdown, LaTeX, JSON and the terminal only show it.

Shares lie in [0, 1]. Curves are sampled at multiples of 1/255, so that 36/255 is one of their points and no value
is interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from lipcert.certified.certificate import sha256_of
from lipcert.certified.network import Network
from lipcert.records import RADII, AttackRecord, AttackRow, AuditRecord
from lipcert.reports.commands import commands, versions
from lipcert.reports.pictures import TestImage, load_test_data, show_images
from lipcert.reports.spectra import Spectrum, spectra_estimates
from lipcert.reports.tables import decimals
from lipcert.reports.verdict import Status, attack_name, status, verdict
from lipcert.runs import Run

FARTHEST = 8.0  # no curve is drawn beyond this radius: 2,040 points
BINS = (0.005, 0.01, 0.02, 0.025, 0.05, 0.1, 0.2, 0.25)
CLAIM = (
    "A test image with certified radius r keeps its class under every change of Euclidean (L2) norm up to r. This "
    "holds in real arithmetic, and when the stored weights are evaluated in float64. Pixels have values in [0, 1]."
)
SUMMARY = (
    "Accuracy in percent, by L2 radius. Certified accuracy is proved: the robust accuracy is at least that. "
    "Accuracy under attack is evidence: the robust accuracy is at most that. Above the attacks stands what is "
    "certified of the attacked images."
)


class Part(BaseModel):
    """A part of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Radius(Part):
    """A radius of the summary table, and its name."""

    eps: str
    radius: float


class Accuracies(Part):
    """A line of the summary table: accuracies of the same images, unperturbed and within each radius."""

    what: str  # "certified" or "under PGD"
    proved: bool
    images: int
    natural: float | None
    shares: tuple[float | None, ...]  # one for each of Report.radii


class Histogram(Part):
    """Shares of all images: correct answers by radius in equal bins, those beyond the last bin, wrong answers."""

    width: float
    shares: tuple[float, ...]
    beyond: float
    wrong: float


class Layer(Spectrum):
    """The singular values of a layer beside its proved constant, and how much of what is allowed it uses."""

    op: str
    proved_upper: float | None  # None: not audited, or not bounded
    share_estimate: float | None  # of the squared constant that is allowed
    mean_share_estimate: float | None  # mean over the neurons of ‖w‖²/T


class RunReport(Part):
    """What a report says of one run."""

    name: str
    folder: str  # as commands name it
    unfinished: str | None  # a sentence, where training did not end
    data: str | None
    model: str
    architecture: dict[str, object]
    parameters: int
    images: int  # that were certified
    test_images: int | None  # in the whole test set, where it is at hand
    status: Status
    verdict: tuple[str, ...]
    accuracies: tuple[Accuracies, ...]  # what is certified comes first
    median_radius: float | None
    curve: tuple[float, ...]
    histogram: Histogram | None
    training: tuple[dict[str, int | float | None], ...]
    audit: AuditRecord | None
    attacks: tuple[AttackRecord, ...]  # the strongest comes first
    layers: tuple[Layer, ...]
    most_robust: tuple[TestImage, ...]
    least_robust: tuple[TestImage, ...]
    images_missing: str | None
    data_missing: str | None
    commands: tuple[str, ...]
    config: dict[str, JsonValue] | None
    sha256: dict[str, str]
    data_sha256: dict[str, str] | None

    @property
    def natural(self) -> float | None:
        return self.accuracies[0].natural

    @property
    def certified(self) -> tuple[float | None, ...]:
        return self.accuracies[0].shares

    @property
    def attacked(self) -> tuple[AttackRow, ...]:
        """What the strongest attack found at each of its radii."""
        return self.attacks[0].rows if self.attacks else ()

    def attacked_at(self, eps: str) -> AttackRow | None:
        return next((row for row in self.attacked if row.radius == RADII[eps]), None)


class Report(Part):
    """The whole report."""

    format: str = "lipcert-report-2"
    claim: str = CLAIM
    caption: str = SUMMARY
    radii: tuple[Radius, ...]
    curve_step: float = 1 / 255
    largest_radius: float  # where the curves end
    runs: tuple[RunReport, ...]
    made_with: dict[str, str] = Field(default_factory=versions)

    def summary(self) -> tuple[list[str], list[list[str]]]:
        """The summary table as text, in percent: a header and a line for each Accuracies of each run."""
        header = ["run", "accuracy", "images", "natural", *(entry.eps for entry in self.radii)]
        lines = [
            [run.name, line.what, f"{line.images:,}"] + [decimals(share) for share in (line.natural, *line.shares)]
            for run in self.runs
            for line in run.accuracies
        ]
        return header, lines


def describe(runs: Sequence[Run], show: Callable[[int], object] = lambda done: None) -> Report:
    """The report of ``runs``; ``show`` hears how many of them are done.

    Raises:
        ValueError: where the files of a run contradict each other.
    """
    names = {row.radius: row.eps for run in runs for attack in run.attacks for row in attack.rows}
    names |= {radius: eps for eps, radius in RADII.items()}
    radii = tuple(Radius(eps=names[radius], radius=radius) for radius in sorted(names))
    # Curves end where all of them are below 0.2 %: a few images with a large radius would squeeze the rest.
    ends = [float(np.quantile(run.radii, 0.998)) for run in runs if len(run.radii)]
    steps = max(1, math.ceil(255 * min(FARTHEST, max([*ends, 108 / 255]))))
    parts = []
    for done, run in enumerate(runs):
        show(done)
        run.check()
        parts.append(_describe_run(run, [entry.radius for entry in radii], steps))
    return Report(radii=radii, largest_radius=steps / 255, runs=tuple(parts))


def _describe_run(run: Run, radii: Sequence[float], steps: int) -> RunReport:
    data = load_test_data(run)
    most, least, images_missing = show_images(run, data)
    right = run.radii[run.correct]
    return RunReport(
        name=run.name,
        folder=run.where,
        unfinished=run.unfinished,
        data=run.data,
        model=run.model_name,
        architecture=run.architecture,
        parameters=sum(parameter.numel() for parameter in run.model().parameters()),
        images=len(run.radii),
        test_images=data.count,
        status=status(run),
        verdict=tuple(verdict(run, data.count)),
        accuracies=tuple(_accuracies(run, radii)),
        median_radius=float(np.median(right)) if len(right) else None,
        curve=tuple(float((run.radii > step / 255).mean()) for step in range(steps + 1)) if len(run.radii) else (),
        histogram=_histogram(run, steps / 255) if len(run.radii) else None,
        training=tuple({key: finite(value) for key, value in row.items()} for row in run.metrics),
        audit=run.audited,
        attacks=tuple(run.attacks),
        layers=tuple(_layer(run, spectrum) for spectrum in spectra_estimates(_frozen(run))),
        most_robust=most,
        least_robust=least,
        images_missing=images_missing,
        data_missing=data.missing,
        commands=tuple(commands(run, data.count)),
        config=run.config if run.imported is None else run.imported.model_dump(),
        sha256=run.sha256,
        data_sha256=data.sha256,
    )


def _frozen(run: Run) -> Network:
    """The frozen network, whose tensors must be exactly those of the certificate."""
    written = run.record.frozen_from == run.weights and run.frozen_file.is_file()
    with nullcontext() if written else run.alone():
        frozen = run.frozen()
    stored = frozen.state_dict()
    for name, digest in run.certificate.tensors.items() if run.certificate else ():
        if name not in stored or sha256_of(stored[name]) != digest:
            raise ValueError(
                f"{run.certificate_file} is not a certificate of model.safetensors: tensor {name} differs. Run "
                f"lipcert certify {run.where} --restart."
            )
    return frozen


def _accuracies(run: Run, radii: Sequence[float]) -> Iterator[Accuracies]:
    """What is certified; then what is certified of the attacked images, where these are others, and each attack."""
    shares = tuple(run.certified(radius) for radius in radii)
    yield Accuracies(what="certified", proved=True, images=len(run.radii), natural=run.natural, shares=shares)
    before: set[str] = set()
    for attack in run.attacks:
        about: dict[str, Any] = {"images": attack.examples, "natural": attack.rows[0].natural}
        if attack.examples != len(run.radii) and attack.images not in before:
            alike = [row for other in run.attacks if other.images == attack.images for row in other.rows]
            proved = {row.radius: row.certified for row in alike}
            yield Accuracies(what="certified", proved=True, shares=tuple(map(proved.get, radii)), **about)
        before.add(attack.images)
        found = {row.radius: row.attacked for row in attack.rows}
        what = f"under {attack_name(attack)}"
        yield Accuracies(what=what, proved=False, shares=tuple(map(found.get, radii)), **about)


def _histogram(run: Run, largest: float) -> Histogram:
    width = next((width for width in BINS if largest / width <= 48), BINS[-1])
    edges = np.arange(math.ceil(largest / width - 1e-9) + 1) * width
    right, total = run.radii[run.correct], len(run.radii)
    return Histogram(
        width=width,
        shares=tuple((np.histogram(right, edges)[0] / total).tolist()),
        beyond=float((right > edges[-1]).sum() / total),
        wrong=float((~run.correct).sum() / total),
    )


def _layer(run: Run, spectrum: Spectrum) -> Layer:
    row = next((row for row in run.audited.layers if row.name == spectrum.name), None) if run.audited else None
    upper = finite(row.upper) if row else None
    allowed = 1.0 if spectrum.kind == "residual" else upper
    return Layer(
        **spectrum.model_dump(),
        op=row.op if row else spectrum.kind,
        proved_upper=upper,
        share_estimate=(spectrum.largest_estimate / allowed) ** 2 if allowed else None,
        mean_share_estimate=spectrum.mean_square_estimate / allowed**2 if allowed else None,
    )


def finite(value: object) -> int | float | None:
    """``value`` if it is a finite number, else None: JSON has no infinity."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
