"""Cost and worth of the optimal T (Equation AOLplus) against spectral normalisation and AOL.

Claim: a proved relative gap of 1e-3 within 90 s on 2 cores at n = 1024 (trace), in seconds at n ≤ 256 (frobenius).
Run: python benchmarks/optimal.py --out results/optimal.jsonl
Rows: the fields of ``Row``. Reported: median [min, max] of the seconds over the seeds, the median number of steps,
the largest gap, and n − objective as a share of min(m, n), which an orthogonal W would reach.
Kinds: gaussian; decay-p has singular values k^(−p) between random orthogonal factors, and log-normal column norms.
"""

import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import tyro
from torch import Tensor

from lipcert.algebra.optimal import Objective, optimal_gamma

GAP = 1e-3
KINDS = {"gaussian": None, "decay-1/4": 0.25, "decay-1": 1.0}
CASES: list[tuple[Objective, str, int, int]] = [
    *(("trace", kind, n, n) for n in (128, 256, 512, 1024) for kind in KINDS),
    *(("trace", kind, 1024, m) for m in (512, 2048) for kind in ("gaussian", "decay-1/4")),
    *(("frobenius", kind, n, n) for n in (64, 128, 256) for kind in KINDS),
]


def make_weight(kind: str, n: int, m: int, seed: int) -> Tensor:  # (n, m)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    power = KINDS[kind]
    if power is None:
        return normal(n, m)
    k = min(n, m)
    left, right = torch.linalg.qr(normal(n, k)).Q, torch.linalg.qr(normal(m, k)).Q
    singular = torch.arange(1, k + 1, dtype=torch.float64) ** -power
    return (left * singular) @ right.T * torch.exp(0.5 * normal(n, 1))


def evaluate(weight: Tensor, gamma: Tensor, objective: Objective) -> tuple[float, bool]:
    """(objective, feasible), from the definition."""
    scaled = weight * gamma.sqrt()[:, None]
    deviation = torch.eye(len(gamma), dtype=torch.float64) - scaled @ scaled.T
    value = deviation.trace() if objective == "trace" else deviation.square().sum()
    return value.item(), torch.linalg.eigvalsh(deviation)[0].item() >= 0


@dataclass(frozen=True)
class Row:
    machine: str
    threads: int
    torch: str
    load: float  # processes that were running when the row began: wall time means little above ``threads``
    seed: int
    kind: str
    n: int
    m: int
    objective: Objective
    seconds: float  # wall
    cpu_seconds: float
    iterations: int
    gap: float
    feasible: bool  # λmax(WΓWᵀ) ≤ 1
    sn: float  # the objective of spectral normalisation, of AOL, and the one found
    aol: float
    optimum: float


def measure(objective: Objective, kind: str, n: int, m: int, seed: int) -> Row:
    weight = make_weight(kind, n, m, seed)
    G = weight @ weight.T
    load, wall, cpu = os.getloadavg()[0], time.perf_counter(), time.process_time()
    solution = optimal_gamma(weight, objective=objective, gap=GAP)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    spectral = torch.ones(n, dtype=torch.float64) / torch.linalg.eigvalsh(G)[-1]
    return Row(
        machine=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores",
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        load=load,
        seed=seed,
        kind=kind,
        n=n,
        m=m,
        objective=objective,
        seconds=wall,
        cpu_seconds=cpu,
        iterations=solution.iterations,
        gap=solution.gap,
        feasible=evaluate(weight, solution.gamma, objective)[1],
        sn=evaluate(weight, spectral, objective)[0],
        aol=evaluate(weight, 1 / G.abs().sum(dim=1), objective)[0],
        optimum=solution.objective,
    )


def write(rows: list[Row], out: Path) -> None:
    """All rows under a temporary name, then renamed: a reader never sees half a file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(out.name + ".tmp")
    temporary.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
    temporary.replace(out)


def summary(rows: list[Row]) -> str:
    first, seconds = rows[0], [row.seconds for row in rows]
    shares = [
        (first.n - median(getattr(row, key) for row in rows)) / min(first.n, first.m)
        for key in ("sn", "aol", "optimum")
    ]
    return (
        f"{first.objective:10} {first.kind:10} {first.n:5} {first.m:5}  {median(seconds):6.2f} "
        f"[{min(seconds):6.2f}, {max(seconds):6.2f}]  {median(row.iterations for row in rows):5.0f}  "
        f"{max(row.gap for row in rows):7.1e}  " + "  ".join(f"{share:7.3f}" for share in shares)
    )


def main(out: Path, seeds: int = 3, threads: int = 0) -> int:
    """Measure every case; 0 if every gap was reached by a feasible γ.

    Args:
        out: the JSONL file to write.
        seeds: how many matrices per case.
        threads: of torch; 0 leaves its default.
    """
    if threads:
        torch.set_num_threads(threads)
    optimal_gamma(make_weight("gaussian", 64, 64, 0))  # the first call pays for loading the libraries
    rows: list[Row] = []
    head = f"{'objective':10} {'kind':10} {'n':>5} {'m':>5}  {'seconds [min, max]':24}  steps  {'gap':7}  "
    print(head + "  ".join(f"{name:>7}" for name in ("SN", "AOL", "optimum")))
    for case in CASES:
        for seed in range(seeds):
            rows.append(measure(*case, seed))
            print(rows[-1], file=sys.stderr)
            write(rows, out)
        print(summary(rows[-seeds:]), flush=True)
    return 0 if all(row.gap <= GAP and row.feasible for row in rows) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
