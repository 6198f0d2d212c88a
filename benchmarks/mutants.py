"""The tables of docs/mutants.md: the verdicts of audit, certify and the checker on networks with one mistake.

Claim: no mutant is certified at the constant that its mistake claims; each is shown to violate it.
Run: python benchmarks/mutants.py --docs docs/mutants.md   (20 seconds on one core)
Rows: those of tests/mutants.py; tests/certified/test_mutants.py compares the page with what is generated then.
"""

import sys
import tempfile
from pathlib import Path

import torch
import tyro

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import mutants


def between(page: str, mark: str, text: str) -> str:
    """The page with ``text`` between the two marks."""
    before, rest = page.split(f"<!-- {mark}:begin -->\n")
    return f"{before}<!-- {mark}:begin -->\n{text}\n<!-- {mark}:end -->{rest.split(f'<!-- {mark}:end -->')[1]}"


def main(docs: Path | None = None) -> int:
    """Print the tables; 0 when it is done.

    Args:
        docs: the page whose tables to write.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = mutants.page(Path(folder))
    counts, table = mutants.counts(*results), mutants.table(*results)
    print(counts, table, sep="\n\n")
    if docs is not None:
        page = between(docs.read_text(encoding="utf-8"), "counts", counts)
        temporary = docs.with_name(docs.name + ".tmp")
        temporary.write_text(between(page, "mutants", table), encoding="utf-8")
        temporary.replace(docs)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
