"""The table of docs/mutants.md: what audit, certify and the checker say of networks with one thing wrong.

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

BEGIN, END = "<!-- mutants:begin -->\n", "\n<!-- mutants:end -->"


def main(docs: Path | None = None) -> int:
    """Print the table; 0 when it is done.

    Args:
        docs: the page whose table to write.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        text = mutants.table(*mutants.page(Path(folder)))
    print(text)
    if docs is not None:
        before, rest = docs.read_text(encoding="utf-8").split(BEGIN)
        temporary = docs.with_name(docs.name + ".tmp")
        temporary.write_text(f"{before}{BEGIN}{text}{END}{rest.split(END)[1]}", encoding="utf-8")
        temporary.replace(docs)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
