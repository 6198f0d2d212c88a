"""What the examples under "Other uses" in docs/tutorial.md print, with their CPU seconds.

Run: python benchmarks/uses.py (writes results/uses.json; one thread, about two CPU minutes)
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ("table_regression", "monotone", "conformal", "time_series", "distance_field", "wasserstein")


def main() -> None:
    record = {"command": "python benchmarks/uses.py", "examples": {}}
    for name in EXAMPLES:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        words = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        record["examples"][name] = {"cpu_seconds": round(spent), "printed": done.stdout.splitlines()}
        print(name, *record["examples"][name]["printed"], sep="\n  ", flush=True)
    target = ROOT / "results" / "uses.json"
    target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
