"""Which networks are certified best? Accept entries by the checker alone, and write docs/leaderboard.md.

An entry is accepted if check.py verifies its certificate and if the certificate is about the complete test set of a
named data set. ``proved`` is counted from the certificate with the labels of that data set; ``claimed`` is what the
folder says of itself.

Run: python benchmarks/leaderboard.py add FOLDER [--method NAME]     (a run folder or one of the zoo)
     python benchmarks/leaderboard.py                                (the page alone, from results/leaderboard)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import lipcert as lc
from lipcert.certified.certificate import sha256_of
from lipcert.data.catalog import CATALOG
from lipcert.exporters.files import Certificate
from lipcert.files import write_json, write_text
from lipcert.zoo import read_entry

ROOT = Path(__file__).resolve().parents[1]
ENTRIES, PAGE = ROOT / "results" / "leaderboard", ROOT / "docs" / "leaderboard.md"
RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "1": 1.0}
SHOWN = "36/255"
DATA = ("digits", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet")
TEXT = """\
# Which networks are certified best?

<!-- Written by `python benchmarks/leaderboard.py` from results/leaderboard/*.json. -->

`python benchmarks/leaderboard.py add FOLDER` accepts an entry by [the checker](certificate.md) alone: every
constant and every radius must hold, for the complete test set of a named data set. *Proved* is counted from the
certificate with the labels of the data set, *claimed* is what the folder says of itself, and *attacked* is what
attacks left on the first images, in parentheses. The numbers are shares of the test set (%), within an L2
radius; each row is one network and one seed.

{tables}

## Published numbers

These numbers are claimed in papers; no certificate of theirs was checked here. They are quoted from Tables 1, 2
and 7 of [the paper](soundness.md#references) (`src/lipcert/experiments/paper.json`): rivals as it quotes them,
SLL as its erratum corrects it.

{claims}
"""


def entry_of(folder: Path, method: str | None = None, allow: int = 1, attack: int = 0) -> dict[str, Any]:
    """The entry of a folder.

    Raises:
        ValueError: unless its certificate is about a complete test set and the checker accepts it.
    """
    certificate = Certificate.of_folder(folder)
    if certificate is None:
        raise ValueError(f"{folder} holds no certificate.json. Run lipcert certify first.")
    name = str(certificate.content["inputs"]["about"]).split(" ")[0]
    if name not in CATALOG:
        raise ValueError(f"the certificate in {folder} is about {name!r}, not a named data set, such as cifar10.")
    test = lc.load_data(name, "test")
    if certificate.content["inputs"]["sha256"] != sha256_of(test.images):
        raise ValueError(f"the certificate in {folder} must be about the complete test set of {name}.")
    if certificate.content["norm"] != "L2":
        raise ValueError(f"the certificate in {folder} is about another norm; entries are about L2.")
    report = lc.verify(folder, allow=allow)
    if not report.ok:
        raise ValueError(f"the checker refuses {folder}: {'; '.join(map(str, report.refuted))[:300]}.")
    labels = test.labels.tolist()
    radii = [float.fromhex(r) for index, label, r in certificate.content["claims"] if labels[index] == label]
    proved = {"natural": len(radii) / len(labels)}
    proved |= {text: sum(radius > least for radius in radii) / len(labels) for text, least in RADII.items()}
    about = about_folder(folder)
    if attack:
        found = lc.attack(lc.load(folder), test.inputs()[:attack], test.labels[:attack], eps=RADII[SHOWN])
        about["attacked"] = {"by": "autoattack", "images": attack, SHOWN: round(found.attacked_accuracy, 6)}
    return {
        "format": "lipcert-leaderboard-1",
        "data": name,
        "images": len(labels),
        **about,
        "method": method or about["method"],
        "proved": {key: round(value, 6) for key, value in proved.items()},
        "certificate": certificate.sha256,
    }


def about_folder(folder: Path) -> dict[str, Any]:
    """What a run or an entry of the zoo says of itself; unknown for another folder."""
    run, entry = lc.Run(folder), read_entry(folder)
    if run.exists:
        run.check()
        claimed = {"natural": run.natural, **{text: run.certified(radius) for text, radius in RADII.items()}}
        attack = run.attacked
        rows = (
            {} if attack is None else {row.eps: round(row.attacked, 6) for row in attack.rows if row.eps in RADII}
        )
        return {
            "method": run.model_name,
            "claimed": {key: None if value is None else round(value, 6) for key, value in claimed.items()},
            "attacked": None if attack is None else {"by": attack.method, "images": attack.examples, **rows},
            "parameters": run.parameters,
            "cpu_minutes": round(run.record.cpu_seconds / 60, 1) if run.imported is None else None,
        }
    if entry is not None:
        claimed = {"natural": entry.natural, **{text: entry.certified.get(text) for text in RADII}}
        return {
            "method": entry.model,
            "claimed": {key: None if value is None else round(value, 6) for key, value in claimed.items()},
            "attacked": None,
            "parameters": entry.parameters,
            "cpu_minutes": entry.cpu_minutes,
        }
    return {
        "method": folder.resolve().name,
        "claimed": None,
        "attacked": None,
        "parameters": None,
        "cpu_minutes": None,
    }


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def table(name: str, entries: list[dict[str, Any]]) -> str:
    """The entries of one data set, the largest proved share first."""
    header = ["method", f"claimed {SHOWN}", "natural", *(f"proved {text}" for text in RADII)]
    header += [f"attacked {SHOWN}", "parameters", "CPU minutes", "certificate"]
    lines = [f"## {name}", "", f"| {' | '.join(header)} |", "|---|" + "---:|" * (len(header) - 2) + "---|"]
    for entry in sorted(entries, key=lambda entry: (-entry["proved"][SHOWN], entry["certificate"])):
        attack, minutes = entry["attacked"], entry["cpu_minutes"]
        shown = "–" if attack is None else f"{percent(attack.get(SHOWN))} ({attack['by']}, {attack['images']:,})"
        cells = [
            f"`{entry['method']}`",
            percent((entry["claimed"] or {}).get(SHOWN)),
            *map(percent, entry["proved"].values()),
            shown,
            "–" if entry["parameters"] is None else f"{entry['parameters']:,}",
            "–" if minutes is None else f"{minutes}",
            f"`{entry['certificate'][:12]}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def published(paper: dict[str, Any]) -> str:
    """The numbers of others, as the paper prints them, by data set."""
    rows: dict[str, list[tuple[str, list[float | None]]]] = {}
    for number in ("table1", "table2", "corrected"):
        for group in paper["tables"][number]["groups"]:
            for model, source, values in group["rows"]:
                if source or number == "corrected":
                    label = f"{model} ({group['group'].lower()})" if number == "corrected" else model
                    rows.setdefault(group["data"], []).append((label, values[: 1 + len(RADII)]))
    header = ["method", "natural", *RADII]
    parts = []
    for name in (name for name in DATA if name in rows):
        lines = [
            f"**{name}**, claimed (%):",
            "",
            f"| {' | '.join(header)} |",
            "|---|" + "---:|" * (len(header) - 1),
        ]
        for label, values in sorted(rows[name], key=lambda row: -(row[1][1] or 0)):
            lines.append(f"| {label} | {' | '.join('–' if v is None else f'{v:.1f}' for v in values)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def page() -> str:
    """docs/leaderboard.md."""
    entries = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ENTRIES.glob("*.json"))]
    by_data = {name: [entry for entry in entries if entry["data"] == name] for name in DATA}
    tables = [table(name, found) for name, found in by_data.items() if found]
    paper = json.loads((ROOT / "src" / "lipcert" / "experiments" / "paper.json").read_text(encoding="utf-8"))
    return TEXT.format(tables="\n\n".join(tables) or "There is no entry yet.", claims=published(paper))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", nargs="?", choices=["add"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--method", help="what the table calls it; by default the name of its architecture")
    parser.add_argument("--attack", type=int, default=0, help="test images to attack by AutoAttack, within 36/255")
    parser.add_argument("--allow", type=int, default=8, help="times the memory and work that the checker allows")
    arguments = parser.parse_args()
    if arguments.do:
        if arguments.folder is None:
            parser.error("add needs a folder")
        try:
            entry = entry_of(arguments.folder, arguments.method, arguments.allow, arguments.attack)
        except (ValueError, OSError) as error:
            parser.exit(1, f"{error}\n")
        ENTRIES.mkdir(parents=True, exist_ok=True)
        write_json(ENTRIES / f"{entry['data']}-{entry['certificate'][:12]}.json", entry)
    write_text(PAGE, page())


if __name__ == "__main__":
    main()
