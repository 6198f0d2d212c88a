"""What a report says, as one typed record: the page, Markdown, LaTeX, JSON and the terminal only show it.

Shares lie in [0, 1]. Curves are sampled at multiples of 1/255, so that 36/255 is one of their points and no value
is interpolated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from lipcert.certified.certificate import sha256_of
from lipcert.certified.network import Network
from lipcert.records import RADII, AttackRecord, AttackRow, AuditRecord
from lipcert.reports.commands import check_command, commands, versions
from lipcert.reports.pictures import TestImage, load_test_data, show_images
from lipcert.reports.spectra import Spectrum, spectra_estimates
from lipcert.reports.verdict import (
    CERTIFIED,
    GUIDE,
    Kind,
    Status,
    attack_name,
    attacks_on,
    claim,
    kind_of,
    radius_meaning,
    status,
    title,
    unchecked,
    verdict,
)
from lipcert.runs import Run

FARTHEST = 8.0  # no curve is drawn beyond this radius: 2,040 points
BINS = (0.005, 0.01, 0.02, 0.025, 0.05, 0.1, 0.2, 0.25)
SUMMARY = (
    "Accuracy in percent, by L2 radius. The robust accuracy is at least what is certified. For the images that "
    "were attacked, it is at most what survived the attack."
)

SMOOTHED = (
    "Where it says probabilistic, the accuracy is that of a smoothed classifier, and each radius holds with high "
    "probability; nothing is proved of the network without noise."
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

    what: str  # such as "certified" or "under PGD"
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


class ClassReport(Part):
    """The test images of one class: which classes they are given, and how far the right answers are certified."""

    name: str
    images: int
    correct: int
    certified: tuple[float, ...]  # shares, one for each of Report.radii
    median_radius: float | None  # of the correct answers
    predictions: dict[str, int]  # how many images are given which class
    levels: tuple[int, ...] = Field(exclude=True)  # of each correct answer, how many points of the curve it reaches

    def within(self, step: int) -> int:
        """How many correct answers have a radius above step/255."""
        return sum(level > step for level in self.levels)


class RunReport(Part):
    """What a report says of one run."""

    name: str
    method: str  # of the radii
    main: bool  # the first of those that are about the same network
    kind: Kind
    claim: str  # what a radius of this run means
    folder: str  # as commands name it
    unfinished: str | None  # a sentence, where training did not end
    data: str | None
    model: str
    architecture: dict[str, object]
    parameters: int
    images: int  # that were certified
    inputs: str | None  # sha256 of these images
    test_images: int | None  # in the whole test set, where it is at hand
    status: Status
    arithmetic: str | None  # of the certificate; None: there is none
    certificate: str | None  # its file
    check: str | None  # the command that verifies it
    unchecked: str | None  # why there can be none
    verdict: tuple[str, ...]
    accuracies: tuple[Accuracies, ...]  # what is certified comes first
    median_radius: float | None
    curve: tuple[float, ...]
    histogram: Histogram | None
    classes: tuple[ClassReport, ...]
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

    def within(self, step: int) -> int:
        """How many images are certified within step/255."""
        return sum(each.within(step) for each in self.classes)

    def attacked_at(self, eps: str) -> AttackRow | None:
        return next((row for row in self.attacked if row.radius == RADII[eps]), None)


class Report(Part):
    """The whole report."""

    format: str = "lipcert-report-3"
    notices: tuple[str, ...]  # what to know before comparing or trusting the numbers
    guide: dict[str, str]  # how to read the report: term → explanation
    caption: str = SUMMARY
    radii: tuple[Radius, ...]
    curve_step: float = 1 / 255
    largest_radius: float  # where the curves end
    runs: tuple[RunReport, ...]
    made_with: dict[str, str] = Field(default_factory=versions)


def describe(runs: Sequence[Run], show: Callable[[int], object] = lambda done: None) -> Report:
    """The report of ``runs``; ``show`` hears how many of them are done.

    Raises:
        ValueError: where the files of a run contradict each other.
    """
    where = {run.folder: radius_meaning(run) for run in runs}
    for run in runs:
        run.check()
    runs = [view for run in runs for view in _views(run)]
    names = {row.radius: row.eps for run in runs for attack in run.attacks for row in attack.rows}
    names |= {radius: eps for eps, radius in RADII.items()}
    radii = tuple(Radius(eps=names[radius], radius=radius) for radius in sorted(names))
    # Curves end where all of them are below 0.2 %: a few images with a large radius would squeeze the rest.
    ends = [float(np.quantile(run.radii, 0.998)) for run in runs if len(run.radii)]
    steps = max(1, math.ceil(255 * min(FARTHEST, max([*ends, 108 / 255]))))
    parts = []
    folders: list[Path] = []
    for run in runs:
        show(len(folders))
        main = run.folder not in folders
        folders += [run.folder] if main else []
        parts.append(_describe_run(run, main, [entry.radius for entry in radii], steps))
    smoothed = any(part.kind == "probabilistic" for part in parts)
    return Report(
        notices=tuple(_notices(parts)),
        guide={"Radius": next(iter(where.values())), **GUIDE},
        caption=f"{SUMMARY} {SMOOTHED}" if smoothed else SUMMARY,
        radii=radii,
        largest_radius=steps / 255,
        runs=tuple(parts),
    )


def _views(run: Run) -> list[Run]:
    """The run with the radii of each method; attacks stand beside those of the usual one."""
    others = [run.by(method) for method in run.methods if method != "lipschitz"]
    return [run, *others] if "lipschitz" in run.methods or run.attacks or not others else others


def _notices(runs: Sequence[RunReport]) -> Iterator[str]:
    for run in runs:
        if run.unfinished:
            yield f"{run.name} is unfinished: {run.unfinished}. Its numbers are about the weights at that step."
    certified = [run for run in runs if run.images]
    if len({run.inputs for run in certified}) > 1:
        which = ", ".join(f"{run.name} on {run.images:,} images of {run.data}" for run in certified)
        yield f"The runs were certified on different images: {which}. Compare their accuracies with care."
    if len({run.kind for run in certified}) > 1:
        yield (
            "The runs have different guarantees. Certificates of some are proved; those of the runs marked as "
            "probabilistic hold with high probability, for a smoothed classifier. Do not rank one kind against the "
            "other."
        )


def _describe_run(run: Run, main: bool, radii: Sequence[float], steps: int) -> RunReport:
    data, checked = load_test_data(run), run.certificate is not None
    most, least, images_missing = show_images(run, data)
    right = run.radii[run.correct]
    return RunReport(
        name=title(run),
        method=run.method,
        main=main,
        kind=kind_of(run),
        claim=claim(run),
        folder=run.where,
        unfinished=run.unfinished,
        data=run.data,
        model=run.model_name,
        architecture=run.architecture,
        parameters=run.parameters,
        images=len(run.radii),
        inputs=run.about.images if run.about else None,
        test_images=data.count,
        status=status(run),
        arithmetic=run.certificate.arithmetic if run.certificate else None,
        certificate=run.certificate_file.name if checked else None,
        check=check_command(run) if checked else None,
        unchecked=unchecked(run),
        verdict=tuple(verdict(run, data.count)),
        accuracies=tuple(_accuracies(run, radii)),
        median_radius=float(np.median(right)) if len(right) else None,
        curve=tuple(float((run.radii > step / 255).mean()) for step in range(steps + 1)) if len(run.radii) else (),
        histogram=_histogram(run, steps / 255) if len(run.radii) else None,
        classes=tuple(_classes(run, data.classes, radii, steps)),
        training=tuple({key: finite(value) for key, value in row.items()} for row in run.metrics) if main else (),
        audit=run.audited,
        attacks=attacks_on(run),
        layers=tuple(_layer(run, spectrum) for spectrum in spectra_estimates(_frozen(run))) if main else (),
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
    shares, proof = tuple(run.certified(radius) for radius in radii), CERTIFIED[kind_of(run)]
    certain = kind_of(run) == "deterministic"
    yield Accuracies(what=proof, proved=certain, images=len(run.radii), natural=run.natural, shares=shares)
    before: set[str] = set()
    for attack in attacks_on(run):
        about: dict[str, Any] = {"images": attack.examples, "natural": attack.rows[0].natural}
        if attack.examples != len(run.radii) and attack.images not in before:
            alike = [row for other in attacks_on(run) if other.images == attack.images for row in other.rows]
            proved = {row.radius: row.certified for row in alike}
            what = f"{proof}, attacked images"
            yield Accuracies(what=what, proved=True, shares=tuple(map(proved.get, radii)), **about)
        before.add(attack.images)
        found = {row.radius: row.attacked for row in attack.rows}
        what = f"under {attack_name(attack)}"
        yield Accuracies(what=what, proved=False, shares=tuple(map(found.get, radii)), **about)


def _classes(run: Run, names: tuple[str, ...], radii: Sequence[float], steps: int) -> Iterator[ClassReport]:
    """One entry for each class that has test images."""
    rows = run.examples or ()
    names_of = {index: f"class {index}" for row in rows for index in (row.label, row.prediction)}
    names_of |= {-1: "abstained"} if -1 in names_of else {}
    names_of |= {i: name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)}
    grid = np.arange(steps + 1) / 255
    for label in sorted({row.label for row in rows}):
        given = Counter(row.prediction for row in rows if row.label == label)
        right = np.array([row.radius for row in rows if row.label == row.prediction == label])
        yield ClassReport(
            name=names_of[label],
            images=given.total(),
            correct=given[label],
            certified=tuple(float((right > radius).sum()) / given.total() for radius in radii),
            median_radius=float(np.median(right)) if len(right) else None,
            predictions={names_of[index]: count for index, count in sorted(given.items())},
            levels=tuple(np.sort(np.searchsorted(grid, right)).tolist()),
        )


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
