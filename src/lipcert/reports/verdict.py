"""What the records of a run amount to, in one word and in plain sentences; how numbers are printed.

An upper bound is printed rounded up and a radius rounded down, so that every printed inequality is true.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Literal

import numpy as np

from lipcert.records import CHECKED, UNCHECKED, AttackRecord
from lipcert.reports.tables import decimals
from lipcert.runs import Run

Kind = Literal["deterministic", "probabilistic"]
Status = Literal["proved", "probabilistic", "assumed", "not audited", "not certified", "refuted"]
ATTACKS = {"autoattack": "AutoAttack", "pgd": "PGD", "quick": "a quick attack"}
CERTIFIED: dict[Kind, str] = {"deterministic": "certified", "probabilistic": "certified with high probability"}
CLAIMS: dict[Kind, str] = {
    "deterministic": (
        "A test image with certified radius r keeps its class under every change of Euclidean (L2) norm up to r. "
        "This holds in real arithmetic, and when the stored weights are evaluated in float64."
    ),
    "probabilistic": (
        "A test image with certified radius r keeps the class that the smoothed classifier gives it, under every "
        "change of Euclidean (L2) norm up to r. The radius was computed from random samples, so each certificate "
        "may be wrong, with a probability of at most {alpha}. It says nothing about the network without noise."
    ),
}
GUIDE = {
    "Natural accuracy": "The share of the test images, unchanged, that the network classifies correctly.",
    "Certified accuracy at radius r": (
        "The share of the test images that are classified correctly, with a proof that no change of L2 norm up to "
        "r alters the answer. No attack can push the accuracy below it."
    ),
    "Accuracy under attack": (
        "The share that was still classified correctly after an attack searched for such a change. This is "
        "evidence, not a proof: a stronger attack may find more. The true robust accuracy of the attacked images "
        "lies between what is certified of them and what survived."
    ),
    "Lipschitz constant L": (
        "The outputs for two inputs are at most L times as far apart as the inputs. A radius is the lead of the "
        "best class over the others, less all rounding errors, divided by a proved upper bound of how fast that "
        "lead can change."
    ),
    "Estimate": "A number that is called an estimate is not proved. No certificate depends on it.",
    "Rounding": (
        "Upper bounds are rounded up, lower bounds and radii are rounded down. Percentages are rounded to the "
        "nearest digit; the counts beside them are exact."
    ),
}


def percent(share: float | None, digits: int = 1) -> str:
    return decimals(share, digits) + ("" if share is None else "\u00a0%")  # a space that does not break


def constant(value: float | None, digits: int = 9) -> str:
    """An upper bound of a Lipschitz constant, rounded up; ∞ where there is none."""
    return "∞" if value is None else _rounded(value, digits, ROUND_CEILING)


def lower(value: float) -> str:
    """A lower bound of a Lipschitz constant, rounded down."""
    return _rounded(value, 6, ROUND_FLOOR)


def short(radius: float) -> str:
    """A radius, rounded down: three decimals, or two significant digits below 0.01."""
    digits = 3 if radius >= 0.01 or not radius else 1 - math.floor(math.log10(radius))
    return _rounded(radius, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value):
        return "∞"
    exact = Decimal(value)
    last = max(-digits, exact.adjusted() - 11)  # large numbers have at most 12 digits
    rounded = exact.quantize(Decimal(1).scaleb(last), direction)
    return f"{rounded:f}" if not value or 1e-6 <= abs(value) < 1e9 else f"{rounded}".lower()


def kind_of(run: Run) -> Kind:
    """Whether the radii of a run are proved, or hold with high probability.

    A run with probabilistic radii has the kind in its name, so that no table, figure or file shows it without.
    """
    return "probabilistic" if run.method == "smoothing" else "deterministic"


def title(run: Run) -> str:
    """The name of a run with the method of its radii, which goes without saying for the usual one."""
    if run.method == "lipschitz":
        return run.name
    return f"{run.name} ({run.method}{', probabilistic' if kind_of(run) == 'probabilistic' else ''})"


def claim(run: Run) -> str:
    """What a radius of this run means."""
    about = run.smoothed_about
    return CLAIMS[kind_of(run)] if about is None else CLAIMS["probabilistic"].format(alpha=about.alpha)


def unchecked(run: Run) -> str | None:
    """Why lipcert check cannot verify the radii, if it cannot."""
    if run.method == "smoothing":
        return "Radii of randomized smoothing have no certificate file: they rest on samples that lipcert drew."
    return None if run.method in CHECKED else UNCHECKED


def settings(run: Run) -> str | None:
    """The method of the radii, its settings and its cost, in a sentence; None for the usual method."""
    about, smoothed = run.certified_about, run.smoothed_about
    if smoothed is not None:
        return (
            f"Randomized smoothing with noise of standard deviation {smoothed.sigma}, {smoothed.n:,} samples for "
            f"each image and α = {smoothed.alpha} took {smoothed.cpu_seconds:,.3g} CPU seconds."
        )
    if about is None or about.method == "lipschitz":
        return None
    words = [f"{name} {_shown(value)}" for name, value in about.settings.items() if value not in (None, False)]
    return f"Method {', '.join([about.method, *words])}: {about.cpu_seconds or 0:,.3g} CPU seconds."


def _shown(value: object) -> str:
    return " ".join(f"{number:.4g}" for number in value) if isinstance(value, list) else str(value)


def radius_meaning(run: Run) -> str:
    """What a radius of 36/255 allows in the images of a run."""
    shape = run.spec.image_shape
    size, count = "×".join(map(str, shape)), math.prod(shape)
    if run.record.test is not None or run.data_file.is_file():
        return (
            f"A radius r allows any change of the {count:,} numbers of an input whose squares add up to at most "
            "r², in the units in which the numbers are given."
        )
    return (
        "Pixel values lie between 0 and 1. A radius of 36/255, about 0.141, allows a change of one value by 36 of "
        f"255 levels, or a change of all {count:,} values of a {size} image by about {36 / math.sqrt(count):.2g} "
        "levels each."
    )


def attack_name(attack: AttackRecord) -> str:
    return ATTACKS.get(attack.method, attack.method)


def status(run: Run) -> Status:
    """The weakest link of a run."""
    if not run.holds:
        return "refuted"
    if not run.examples:
        return "not certified"
    if kind_of(run) == "probabilistic":
        return "probabilistic"
    if run.audited is None:
        return "not audited"
    return "assumed" if any(layer.verdict == "ASSUMED" for layer in run.audited.layers) else "proved"


def verdict(run: Run, test_images: int | None) -> Iterator[str]:
    """What is certified, what the audit proved and what attacks found; or the command that would tell."""
    yield _certified(run, test_images)
    if (sentence := settings(run)) is not None:
        yield sentence
    if run.method in CHECKED:
        yield _audited(run)
    if run.certificate is not None and run.certificate.assumes:
        assumed = " and ".join(run.certificate.assumes).replace("ulp", "units in the last place")
        yield f"The radii assume that the platform computes {assumed}; lipcert check verifies everything else."
    if (sentence := unchecked(run)) is not None:
        yield sentence
    yield from (_attacked(attack) for attack in attacks_on(run))
    if run.method == "lipschitz" and not run.attacks:
        yield f"No attack has been tried yet: run lipcert attack {run.where}."


def attacks_on(run: Run) -> tuple[AttackRecord, ...]:
    """The attacks, which took the answers that the usual method certifies for certified."""
    return run.attacks if run.method == "lipschitz" else ()


def _certified(run: Run, test_images: int | None) -> str:
    if not run.examples:
        return f"No radius is certified yet: run {run.certify_command}."
    count, proved = len(run.examples), int((run.radii > 36 / 255).sum())
    which = "the" if test_images in (None, count) else "the first"
    if (smoothed := run.smoothed_about) is not None:
        abstained = sum(row.prediction < 0 for row in run.examples)
        return (
            f"The smoothed classifier is right for {int(run.correct.sum()):,} of {which} {count:,} test images "
            f"({percent(run.natural)}) and abstains for {abstained:,}. For {proved:,} "
            f"({percent(run.certified(36 / 255))}) no change within radius 36/255 alters its answer, each with "
            f"probability at least {smoothed.confidence}."
        )
    sentences = (
        f"{proved:,} of {which} {count:,} test images ({percent(run.certified(36 / 255))}) are classified "
        "correctly, with a proof that no change within radius 36/255 alters the answer. Unchanged, "
        f"{int(run.correct.sum()):,} images are classified correctly ({percent(run.natural)})."
    )
    if not run.correct.any():
        return sentences
    median = short(np.median(run.radii[run.correct]))
    return f"{sentences} Half of the correct answers have a radius of {median} or more."


def _audited(run: Run) -> str:
    if run.audited is None:
        return f"The layers have not been audited: run lipcert audit {run.where}."
    layers = run.audited.layers
    bad = [layer for layer in layers if layer.verdict in ("REFUTED", "UNKNOWN")]
    if bad:
        return f"Layer {bad[0].name} ({bad[0].op}) is {bad[0].verdict}: do not rely on any number here."
    assumed = [layer.name for layer in layers if layer.verdict == "ASSUMED"]
    but = f" except {', '.join(assumed)}, for which the user declared a constant" if assumed else ""
    backbone, whole = (
        constant(bound, 5).removesuffix(".00000") for bound in (run.audited.backbone, run.audited.lipschitz)
    )
    return (
        f"All {len(layers)} layers are proved{but}. The Lipschitz constant is at most {backbone} before the last "
        f"linear map and at most {whole} for the whole network."
    )


def _attacked(attack: AttackRecord) -> str:
    row, name = attack.rows[0], attack_name(attack)
    which = "all correct answers" if attack.all else "the correct answers without a certificate"
    broken = ", and broke none with a certificate" if attack.all else ""
    sentence = f"{name[0].upper()}{name[1:]} tried {which} among {row.examples:,} images{broken}."
    if row.attacked == row.certified:
        return f"{sentence} At {row.eps} the robust accuracy of these images is exactly {percent(row.certified)}."
    return (
        f"{sentence} At {row.eps} the robust accuracy of these images lies between {percent(row.certified)} "
        f"(proved) and {percent(row.attacked)} (under attack)."
    )
