"""The verdicts of audit, certify and the checker on networks with one mistake, for results/mutants.md.

Claim: no mutant is certified at the constant that its mistake claims; each is shown to violate it.
Run: python benchmarks/mutants.py --docs docs/mutants.md   (20 seconds on one core)
Rows: those of tests/mutants.py; tests/certified/test_mutants.py compares both with what is generated then.
"""

import sys
import tempfile
from pathlib import Path

import torch
import tyro

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import mutants

TABLES = Path(__file__).parent.parent / "results" / "mutants.md"


def between(page: str, mark: str, text: str) -> str:
    """The page with ``text`` between the two marks."""
    before, rest = page.split(f"<!-- {mark}:begin -->\n")
    return f"{before}<!-- {mark}:begin -->\n{text}\n<!-- {mark}:end -->{rest.split(f'<!-- {mark}:end -->')[1]}"


def main(docs: Path | None = None) -> int:
    """Print the tables; 0 when it is done.

    Args:
        docs: the page whose counts to write; the tables go to results/mutants.md.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = mutants.page(Path(folder))
    counts, table = mutants.counts(*results), mutants.table(*results)
    print(counts, table, sep="\n\n")
    if docs is not None:
        for path, mark, text in ((docs, "counts", counts), (TABLES, "mutants", table)):
            path.write_text(between(path.read_text(encoding="utf-8"), mark, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
