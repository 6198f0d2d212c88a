"""What do training, freezing, auditing and certifying cost beside another commit? Both run by turns.

    python benchmarks/against.py COMMIT [--repeats 7] [--rounds 3] [--out results/against.json]

Two processes, one with the code of COMMIT and one with this tree, repeat the same cases by turns, one thread each.
A row holds the smallest CPU time of each and their ratio (new by old): the ratio is the result, the times depend on
the machine. Only public names are used, so that old commits can be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
NETWORKS = {  # preset: image shape, images to certify
    "sll_nano": ((3, 16, 16), 64),
    "cayley_nano": ((3, 8, 8), 64),
    "sll_tiny": ((3, 32, 32), 16),
}
STEPS = ("freeze", "audit", "certify", "filter")
LAYERS = {  # a training step, forward and backward: constructor, input
    "ResidualLinear sll 1024": ("ResidualLinear(1024, 1024)", (64, 1024)),
    "ResidualLinear spectral 512": ("ResidualLinear(512, 512, bound='spectral')", (64, 512)),
    "ResidualLinear tanh 512": ("ResidualLinear(512, 512, activation='tanh')", (64, 512)),
    "ResidualConv2d sll": ("ResidualConv2d(32, 32)", (32, 32, 16, 16)),
    "ResidualConv2d circular": ("ResidualConv2d(32, 32, padding_mode='circular')", (32, 32, 16, 16)),
    "AffineLinear aol 512": ("AffineLinear(512, 512)", (64, 512)),
    "AffineConv2d aol strided": ("AffineConv2d(32, 64, 3, stride=2, padding=1)", (32, 32, 16, 16)),
    "GeneralLinear 256": ("GeneralLinear(256, 256, 256)", (64, 256)),
    "GeneralConv2d": ("GeneralConv2d(16, 16, 16)", (32, 16, 16, 16)),
    "OrthogonalLinear 256": ("OrthogonalLinear(256, 256)", (64, 256)),
    "OrthogonalConv2d cayley": ("OrthogonalConv2d(16, 16, image_size=8)", (32, 16, 8, 8)),
    "SandwichConv2d": ("SandwichConv2d(16, 16, image_size=8)", (32, 16, 8, 8)),
}


def worker() -> None:
    """Read "NETWORK STEP" lines, answer with CPU seconds."""
    import time

    import torch

    import lipcert as lc

    torch.set_num_threads(1)
    made = {}
    for name, (shape, count) in NETWORKS.items():
        torch.manual_seed(0)
        model = lc.create_model(name, image_shape=shape).eval()
        frozen, images = lc.freeze(model), torch.rand(count, *shape)
        with torch.no_grad():
            labels = frozen(images).argmax(dim=1)
        classify = lc.FilteredClassifier(frozen, shape)
        made[name] = {
            "freeze": lambda model=model: lc.freeze(model),
            "audit": lambda frozen=frozen, shape=shape: lc.audit(frozen, shape),
            "certify": lambda frozen=frozen, images=images, labels=labels: lc.certify(frozen, images, labels),
            "filter": lambda classify=classify, images=images: classify(images),
        }
    for name, (make, shape) in LAYERS.items():
        torch.manual_seed(0)
        layer, x = eval(f"lc.{make}", {"lc": lc}), torch.randn(shape, requires_grad=True)
        made[name] = {"train": lambda layer=layer, x=x: layer(x).sum().backward()}
    print("ready", flush=True)
    for line in sys.stdin:
        network, step = line.strip().split("|")
        began = time.process_time()
        made[network][step]()
        print(time.process_time() - began, flush=True)


def start(source: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: subprocess.Popen[str], question: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measure(commit: str, repeats: int, rounds: int) -> list[dict[str, object]]:
    """Each round starts new processes: where the memory of one happens to lie can cost it ten percent."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "--quiet", tree, commit], check=True)
        try:
            cases = [(network, step) for network in NETWORKS for step in STEPS]
            cases += [(layer, "train") for layer in LAYERS]
            times: dict[tuple[str, str], tuple[list[float], list[float]]] = {case: ([], []) for case in cases}
            for _ in range(rounds):
                both = [start(tree / "src"), start(ROOT / "src")]
                for process in both:
                    assert process.stdout is not None
                    process.stdout.readline()  # ready
                for case in cases:
                    for _ in range(repeats):
                        for process, kept in zip(both, times[case], strict=True):
                            kept.append(ask(process, "|".join(case)))
                for process in both:
                    process.kill()
            rows = []
            for (name, step), (before, after) in times.items():
                old, new = min(before), min(after)
                rows.append({"case": name, "step": step, "old": old, "new": new, "ratio": new / old})
                print(f"{name:<28} {step:<8} {old:8.4f} s {new:8.4f} s   {new / old:.3f}", flush=True)
            return rows
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure this tree beside another commit, interleaved.")
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker()
        return
    rows = measure(args.commit, args.repeats, args.rounds)
    if args.out:
        flags = f"--repeats {args.repeats} --rounds {args.rounds} --out {args.out}"
        command = f"python benchmarks/against.py {args.commit} {flags}"
        about = {"command": command, "threads": 1, "time": "CPU seconds, minimum of the repeats"}
        args.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
