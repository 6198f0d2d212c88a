"""The laws of tests/certified/test_graphs.py on many random graphs, for results/graphs.json.

Claim: no Jacobian that a search finds is above the proved constant, no float32 output outside its bound, and
what is decided in fractions holds.
Run: python benchmarks/graphs.py --count 10000 --exact 500   (about four minutes of one core)
"""

import json
import sys
import time
from pathlib import Path

import torch
import tyro

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "certified")]
import test_graphs as laws  # noqa: E402


def main(count: int = 10_000, exact: int = 500, first: int = 100_000) -> int:
    """Check the laws, and write what was found; an exception names the seed where one does not hold.

    Args:
        count: graphs in floating point.
        exact: graphs in fractions.
        first: the first seed.
    """
    torch.set_num_threads(1)
    started, ratios, shares, nodes = time.process_time(), [], [], []
    for seed in range(first, first + count):
        try:
            lower, upper, share = laws.check_random_graph(seed)
        except Exception:
            print(f"seed {seed}", file=sys.stderr)
            raise
        ratios += [lower / upper] if upper else []
        shares.append(share)
    middle = time.process_time()
    for seed in range(first, first + exact):
        try:
            nodes.append(laws.check_exactly(seed))
        except Exception:
            print(f"seed {seed}, in fractions", file=sys.stderr)
            raise
    ratios.sort()
    found = {
        "command": f"python benchmarks/graphs.py --count {count} --exact {exact} --first {first}",
        "graphs": count,
        "largest_jacobian_over_constant": max(ratios),
        "median_jacobian_over_constant": ratios[len(ratios) // 2],
        "largest_share_of_the_float32_bound": max(shares),
        "graphs_in_fractions": exact,
        "nodes_in_fractions": sum(nodes),
        "seconds": round(middle - started),
        "seconds_in_fractions": round(time.process_time() - middle),
        "torch": torch.__version__,
    }
    (ROOT / "results" / "graphs.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
