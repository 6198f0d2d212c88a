"""What do freezing and auditing cost, beside one float64 product WWᵀ of every stored weight?

    python benchmarks/freeze.py [--repeats 3] [--out results/freeze.json]

One thread. A row has the smallest CPU time of several repeats for ``freeze`` of a preset and for ``audit`` of the
frozen network (proofs that freeze made are not made again), and their sum divided by the time of multiplying every
weight by its transpose in float64, measured in the same run. ``small`` adds sll_small on 3×32×32, 41 M parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch

import lipcert as lc

NANO = ("sll", "aol", "cpl", "sandwich", "cayley", "bro", "eco", "lot", "soc", "bcop")


def seconds(action: Callable[[], object], repeats: int) -> float:
    """The smallest CPU time of several repeats."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        action()
        times.append(time.process_time() - began)
    return min(times)


def product(network: torch.nn.Module) -> None:
    """WWᵀ of every weight in float64: a matrix, a kernel as a matrix, or the blocks of a circular convolution."""
    for name, tensor in network.named_buffers():
        if name.endswith("weight") and tensor.ndim > 1:
            matrix = tensor.double() if tensor.ndim == 3 else tensor.double().flatten(1)
            matrix @ matrix.mT


def measure(name: str, shape: tuple[int, ...], repeats: int) -> dict[str, object]:
    torch.manual_seed(0)
    model = lc.create_model(name, image_shape=shape).eval()
    frozen: list[torch.nn.Module] = []

    def freeze() -> None:
        frozen[:] = [lc.freeze(model)]

    def both() -> None:
        freeze()
        lc.audit(frozen[0], shape)

    freezing, together = seconds(freeze, repeats), seconds(both, repeats)
    plain = seconds(lambda: product(frozen[0]), repeats)
    row = {"preset": name, "shape": list(shape), "freeze": freezing, "together": together, "product": plain}
    print(
        f"{name:<16} freeze {freezing:7.3f} s   with audit {together:7.3f} s   {together / plain:8.0f} products",
        flush=True,
    )
    return {**row, "ratio": together / plain}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure freeze and audit.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="also sll_small on 3×32×32")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(f"{name}_nano", (3, 16, 16), args.repeats) for name in NANO]
    if args.small:
        rows.append(measure("sll_small", (3, 32, 32), 1))
    if args.out:
        flags = " ".join(
            ["--repeats", str(args.repeats), *(["--small"] if args.small else []), "--out", str(args.out)]
        )
        about = {"command": f"python benchmarks/freeze.py {flags}", "threads": 1, "time": "CPU seconds"}
        args.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
