"""An entry in the form of RobustBench's model_info for each run, with only the values that the run has.

RobustBench's threat model in L2 is eps = 0.5. Only the standard AutoAttack fills ``autoattack_acc``. Fields that
describe a publication stay empty, because a report does not know one.
"""

from __future__ import annotations

from lipcert.reports.report import Report, RunReport

EPS = 0.5
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")


def robustbench_entry(report: Report, run: RunReport) -> dict[str, str | int | None]:
    """The entry of one run of a report."""
    certified = next(share for entry, share in zip(report.radii, run.certified, strict=True) if entry.radius == EPS)
    standard = [attack for attack in run.attacks if (attack.method, attack.attacks) == ("autoattack", STANDARD)]
    row = next((row for attack in standard for row in attack.rows if row.radius == EPS), None)
    if row is not None:
        notes = [f"AutoAttack on {row.examples:,} test images; those with a proof count as robust."]
    elif any(row.radius == EPS for attack in run.attacks for row in attack.rows):
        methods = " and ".join(attack.method for attack in run.attacks)
        notes = [f"autoattack_acc is missing: the attack was {methods}, not the standard AutoAttack."]
    else:
        notes = ["autoattack_acc is missing: no attack at eps = 0.5 is recorded."]
    if certified is not None:
        notes.append(f"Certified accuracy at eps = 0.5: {_percent(certified)} % of {run.images:,} test images.")
    return {
        "link": None,
        "name": run.name,
        "authors": None,
        "additional_data": None if run.config is None or "epochs" not in run.config else False,
        "number_forward_passes": 1,
        "dataset": run.data,
        "venue": None,
        "architecture": run.model,
        "eps": str(EPS),
        "clean_acc": _percent(row.natural if row else run.natural),
        "reported": None,
        "certified_acc": _percent(certified),
        "autoattack_acc": _percent(row.attacked if row else None),
        "footnote": " ".join(notes),
        "unreliable": False,
    }


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f}"
