"""What certification costs and loses: sll_small's shape (41 M parameters) and a trained run.

Claims: the proven loss of radius in float64 is below 1e-9 for sll_small's shape; the independent checker takes at
most 10 s for its parameters; certifying costs less than 1.3 times a plain float64 forward pass.
Run: python benchmarks/certify.py --out results/certify.json
CPU time, one thread; the forward pass and the certification alternate, minimum of repeats.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import lipcert as lc
from lipcert.certified.certificate import write_certificate
from lipcert.certified.certify import certify, walk
from lipcert.certified.freeze import prove
from lipcert.check import check
from lipcert.training.checkpoint import load_spec


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def forward(links: object, x: torch.Tensor) -> torch.Tensor:
    """The same products without any proof."""
    with torch.no_grad():
        for part in links.parts:
            x = part.forward(x)
    return x


def measure(name: str, network: nn.Module, shape: tuple[int, ...], batch: int, repeats: int) -> dict[str, object]:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (batch, *shape), dtype=torch.uint8)
    x = images.float() / 255
    times: dict[str, object] = {"network": name, "parameters": sum(p.numel() for p in network.parameters())}
    began = time.process_time()
    frozen = lc.freeze(network)
    times["freeze"] = time.process_time() - began
    began = time.process_time()
    links = prove(frozen, shape)
    times["prove"] = time.process_time() - began
    logits = walk(links, x.double())[0]
    labels = logits.argmax(dim=1)
    plain, full = [], []
    for _ in range(repeats):  # interleaved
        plain.append(seconds(lambda: forward(links, x.double())))
        full.append(seconds(lambda: certify(links, x, labels, batch_size=batch)))
    result, naive = certify(links, x, labels), lc.certified_radii(logits, labels, links.pairwise())
    times |= {"forward": min(plain), "certify": min(full), "overhead": min(full) / min(plain), "batch": batch}
    times["largest_loss_of_radius"] = float((naive - result.radii).max())  # of margin/(L·K)
    times["largest_radius"] = float(result.radii.max())
    with tempfile.TemporaryDirectory() as folder:
        path = write_certificate(Path(folder), links, frozen, images, result)
        began = time.process_time()
        times["checker_accepts"] = check(path).ok
        times["checker"] = time.process_time() - began
    predictor = lc.FilteredClassifier(frozen, shape)
    unblocked = lc.FilteredClassifier(frozen, shape, block=None)
    times["filter_falls_back"] = float(predictor(x).fell_back.double().mean())
    times["filter_falls_back_without_blocks"] = float(unblocked(x).fell_back.double().mean())
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="trained run folders, measured as well")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [
        measure(
            "sll_small, as initialised",
            lc.create_model("sll_small"),
            (3, 32, 32),
            arguments.batch,
            arguments.repeats,
        )
    ]
    for run in arguments.run:
        network = lc.load(run)
        shape = load_spec(run).image_shape
        rows.append(measure(run.name, network, shape, 64, 2 * arguments.repeats))
    machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": 1}
    command = " ".join(
        ["python benchmarks/certify.py --out results/certify.json --run", *(r.name for r in arguments.run)]
    )
    text = json.dumps({"command": command, **machine, "rows": rows}, indent=1) + "\n"
    temporary = arguments.out.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(arguments.out)
    print(text)


if __name__ == "__main__":
    main()
