"""An entry in the form of RobustBench's model_info for each run: only with values that the run has.

RobustBench's threat model in L2 is eps = 0.5. ``autoattack_acc`` is filled by the standard AutoAttack alone. Fields
that describe a publication stay empty: a report does not know one.
"""

from __future__ import annotations

from typing import Any

EPS = 0.5
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")


def robustbench_entry(report: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """The entry of one run of a report's content."""
    attack, row = run["attack"], next((row for row in run["attacked"] if row and row["radius"] == EPS), None)
    notes = []
    if row is None:
        notes.append("autoattack_acc is missing: no attack at eps = 0.5 is recorded.")
    elif attack["method"] != "autoattack" or tuple(attack["attacks"]) != STANDARD:
        notes.append(f"autoattack_acc is missing: the attack was {attack['method']}, not the standard AutoAttack.")
        row = None
    else:
        notes.append(f"AutoAttack on {row['examples']:,} test images; those with a proof count as robust.")
    at_half = next(i for i, entry in enumerate(report["radii"]) if entry["radius"] == EPS)
    certified = _hundredths(run["certified"][at_half])
    if certified is not None:
        notes.append(f"Certified accuracy at eps = 0.5: {certified} % of {run['images']:,} test images, by proof.")
    return {
        "link": None,
        "name": run["name"],
        "authors": None,
        "additional_data": None if run["config"] is None or "epochs" not in run["config"] else False,
        "number_forward_passes": 1,
        "dataset": run["data"],
        "venue": None,
        "architecture": run["model"],
        "eps": str(EPS),
        "clean_acc": _hundredths(row["natural"] if row else run["natural"]),
        "reported": None,
        "certified_acc": certified,
        "autoattack_acc": _hundredths(row["attacked"] if row else None),
        "footnote": " ".join(notes),
        "unreliable": False,
    }


def _hundredths(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f}"
