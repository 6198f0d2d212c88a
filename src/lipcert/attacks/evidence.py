"""Rows and shares of an attack on certified examples, and what would contradict a certificate.

A point that fell within a smaller radius has fallen within a larger one, since its ball is contained in it: such a
finding is carried on and not searched again, so the attacked share falls with the radius. For every radius
certified ≤ attacked ≤ natural must hold; ``contradictions`` counts and does not assume it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claims:
    """What certification says of each example; index i is the i-th entry."""

    labels: Sequence[int]
    predictions: Sequence[int]
    radii: Sequence[float]

    def correct(self, index: int) -> bool:
        return self.labels[index] == self.predictions[index]

    def certified(self, index: int, radius: float) -> bool:
        return self.radii[index] > radius


@dataclass(frozen=True)
class Finding:
    """What an attack found at one example; the last three are None where it found nothing."""

    index: int
    broken: bool
    by: str | None
    distance: float | None
    prediction: int | None


def to_attack(claims: Claims, radius: float, found: Mapping[int, Finding], everything: bool) -> list[int]:
    """The examples to attack: correct, not certified unless ``everything``, and not broken within less."""
    return [
        index
        for index in range(len(claims.labels))
        if claims.correct(index)
        and (everything or not claims.certified(index, radius))
        and not (index in found and found[index].broken)
    ]


def rows_of(
    claims: Claims, eps: str, radius: float, found: Mapping[int, Finding], everything: bool
) -> list[dict[str, Any]]:
    """The rows of one radius; ``found`` holds what is known of every example that was attacked."""
    rows = []
    for index, label in enumerate(claims.labels):
        certified, finding = claims.certified(index, radius), Finding(index, False, None, None, None)
        if not claims.correct(index):
            outcome = "misclassified"
        elif certified and not everything:
            outcome = "certified"
        else:
            finding = found[index]
            outcome = "broken" if finding.broken else "survived"
        rows.append(
            {
                "index": index,
                "label": label,
                "eps": eps,
                "radius": radius,
                "outcome": outcome,
                "certified": certified,
                "by": finding.by,
                "distance": finding.distance,
                "prediction": finding.prediction,
            }
        )
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line per radius, in the order of the rows: shares of all its examples."""
    by_radius: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_radius.setdefault(row["eps"], []).append(row)
    return [
        {
            "eps": eps,
            "radius": group[0]["radius"],
            "examples": len(group),
            "natural": sum(row["outcome"] != "misclassified" for row in group) / len(group),
            "certified": sum(row["certified"] for row in group) / len(group),
            "attacked": sum(row["outcome"] in ("certified", "survived") for row in group) / len(group),
            "points_attacked": sum(row["outcome"] in ("broken", "survived") for row in group),
            "broken_certified": sum(row["outcome"] == "broken" and row["certified"] for row in group),
        }
        for eps, group in by_radius.items()
    ]


def contradictions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What refutes a claim, one line each: certified answers that fell, and shares in the wrong order."""
    lines = []
    fallen = [row for row in rows if row["outcome"] == "broken" and row["certified"]]
    if fallen:
        first = fallen[0]
        lines.append(
            f"{len({row['index'] for row in fallen})} certified answers fell, which a proof excludes: example "
            f"{first['index']} of class {first['label']}, certified beyond {first['eps']}, becomes "
            f"{first['prediction']} at distance {first['distance']:.6g} by {first['by']}. Report it as a bug, with "
            "the run folder."
        )
    wrong = sorted({row["index"] for row in rows if row["outcome"] == "misclassified" and row["certified"]})
    if wrong:
        lines.append(
            f"a certified answer is a correct one; got {len(wrong)} that are not, the first at example {wrong[0]}. "
            "Certify again, and report it as a bug if it stays."
        )
    lines += [
        f"expected certified ≤ attacked ≤ natural at {line['eps']}; got {line['certified']:.4f}, "
        f"{line['attacked']:.4f}, {line['natural']:.4f}. Certify again, and report it as a bug if it stays."
        for line in summary(rows)
        if not line["certified"] <= line["attacked"] <= line["natural"]
    ]
    return lines
