"""What the records of a run amount to, in plain sentences and one word."""

from __future__ import annotations

from typing import Literal

import numpy as np

from lipcert.records import RunFolder as Run

Status = Literal["proved", "assumed", "not audited", "not certified", "refuted"]
NAMES = {"autoattack": "AutoAttack", "pgd": "PGD", "quick": "A quick attack"}


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}\u00a0%"  # a space that does not break


def status(run: Run) -> Status:
    """The weakest link of a run."""
    if not run.holds:
        return "refuted"
    if not run.examples:
        return "not certified"
    if run.audited is None:
        return "not audited"
    return "assumed" if any(layer.verdict == "ASSUMED" for layer in run.audited.layers) else "proved"


def verdict(run: Run) -> list[str]:
    """What is certified, what the audit found, what the attacks found; or the command that would tell."""
    return [_certified(run), _audited(run), *_assumed(run), _attacked(run)]


def _certified(run: Run) -> str:
    if not run.examples:
        return f"No radius is certified yet: run lipcert certify {run.where}."
    count = len(run.examples)
    told = (
        f"{percent(run.certified(36 / 255))} of {count:,} test images are classified correctly, with a proof that "
        f"no perturbation within 36/255 changes that; unperturbed, {percent(run.natural)} are."
    )
    if not run.correct.any():
        return told
    return told + f" Half of the right answers hold within {float(np.median(run.radii[run.correct])):.3f}."


def _audited(run: Run) -> str:
    if run.audited is None:
        return f"The layers are not audited here: run lipcert audit {run.where}."
    layers = run.audited.layers
    bad = [layer for layer in layers if layer.verdict in ("REFUTED", "UNKNOWN")]
    if bad:
        return f"Layer {bad[0].name} ({bad[0].op}) is {bad[0].verdict}: nothing here may be relied on."
    assumed = [layer.name for layer in layers if layer.verdict == "ASSUMED"]
    how = f"proved, but {', '.join(assumed)} assumed on a user's word" if assumed else "proved"
    return (
        f"All {len(layers)} layers are {how}; L\u00a0≤\u00a0{run.audited.backbone:.6g} before the last linear map, "
        f"L\u00a0≤\u00a0{run.audited.lipschitz:.6g} for the whole."
    )


def _assumed(run: Run) -> list[str]:
    """What the certificate rests on beside IEEE arithmetic."""
    assumes = () if run.certificate is None else run.certificate.assumes
    if not assumes:
        return []
    return [
        f"The radii allow for rounding under one assumption: the platform computes {' and '.join(assumes)} (units "
        "in the last place). The checker verifies everything else."
    ]


def _attacked(run: Run) -> str:
    if run.attacked is None or not run.attacked.rows:
        return f"No attack has tested it yet: run lipcert attack {run.where}."
    row, name = run.attacked.rows[0], NAMES.get(run.attacked.method, run.attacked.method)
    if run.attacked.all:
        told = f"{name} attacked every right answer among {row.examples:,} images and broke none that is certified."
    else:
        told = f"{name} attacked the right answers without a certificate among {row.examples:,} images."
    stand, proved = percent(row.attacked), percent(row.certified)
    if stand == proved:
        return f"{told} At {row.eps} only what is certified withstood: their robust accuracy is {proved}."
    return f"{told} At {row.eps} the robust accuracy of these images lies between {proved} (proved) and {stand}."
