"""Train a few methods on digits for the same number of steps, and print their certified accuracies.

Run: python examples/compare_methods.py [STEPS]
`lipcert compare` does this with equal budgets, several learning rates and several seeds.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import lipcert as lc

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
print("method    natural  certified within 36/255")
with TemporaryDirectory() as folder:
    for method in ("sll", "aol", "cayley"):
        config = lc.TrainConfig(
            model=f"{method}_nano", data="digits", steps=steps, offset=0.7, temperature=0.1, threads=1
        )
        run = lc.train(config, Path(folder) / method)
        run.certify(examples=100)
        print(f"{method:8} {run.natural:8.1%}  {run.certified(36 / 255):.1%}")
