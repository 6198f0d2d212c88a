"""What surrounds the layers: starting up, augmentation, certification, attacks, `torch.compile`, and a profile.

Run: python benchmarks/pipeline.py --out results/pipeline.json                      (all parts, ten minutes)
     python benchmarks/pipeline.py --out results/pipeline.json --part startup augment
     python benchmarks/pipeline.py --out results/pipeline.json --part certify --run RUN   (sll_tiny on CIFAR-10)
     python benchmarks/pipeline.py --docs                                                (its part of the page)
One thread, CPU seconds, columns alternating, the minimum of the repeats.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.attacks.referee import Model, in_both_precisions
from lipcert.data.augment import PRESETS, augmentation
from lipcert.files import write_json
from lipcert.reports.tables import markdown_table
from speed import ROOT, TextbookConv, TextbookDense, disturb, rewrite, step, timed

BATCH = 256
FEW = 8  # examples of an attack on sll_small
SHARD = 32  # examples that `lipcert attack` takes at a time


def textbook(module: nn.Module) -> nn.Module:
    """The same network with its SLL layers as the formula is written."""
    if isinstance(module, lc.ResidualLinear):
        made: nn.Module = TextbookDense(module.weight.shape[1], module.weight.shape[0])
    elif isinstance(module, lc.ResidualConv2d):
        made = TextbookConv(module.weight.shape[1], module.weight.shape[0])
    elif isinstance(module, nn.Sequential):
        return nn.Sequential(*(textbook(part) for part in module))
    else:
        return module
    made.weight, made.bias, made.q = module.weight, module.bias, nn.Parameter(module.bound.log_q.exp())
    return made


def alternating(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The smallest CPU time of each after one round that does not count."""
    best: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            cpu, _ = timed(work)
            if repeat:
                best[name] = min(cpu, best.get(name, cpu))
    return best


def startup(_: argparse.Namespace) -> dict[str, float]:
    """CPU and wall seconds of processes; the kernel's share of reading files is in both."""
    words = {
        "import torch": [sys.executable, "-c", "import torch"],
        "import lipcert": [sys.executable, "-c", "import torch, lipcert; lipcert.create_model, lipcert.freeze"],
        "lipcert --help": [sys.executable, "-m", "lipcert", "--help"],
    }
    best: dict[str, float] = {}
    for _repeat in range(8):
        for name, line in words.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            _, wall = timed(lambda line=line: subprocess.run(line, check=True, capture_output=True))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            best[name] = min(cpu, best.get(name, cpu))
            best[f"{name}, wall"] = min(wall, best.get(f"{name}, wall", wall))
    return best


def augment(_: argparse.Namespace) -> dict[str, float]:
    """Seconds for a batch of CIFAR-10's shape, beside a training step of the smallest preset for it."""
    torch.manual_seed(0)
    model, images = lc.create_model("sll_tiny").train(), torch.rand(BATCH, 3, 32, 32)
    generator = torch.Generator().manual_seed(0)
    works: dict[str, Callable[[], object]] = {"step of sll_tiny": lambda: (disturb(model), step(model, images))}
    for name in PRESETS:
        works[name] = lambda name=name: augmentation(name)(images, generator)
    return alternating(works, 5)


def certify(arguments: argparse.Namespace) -> dict[str, float] | None:
    """`lipcert certify` of 10,000 CIFAR-10 images, as a user types it but for the number of threads."""
    if arguments.run is None:
        return None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "lipcert", "certify", str(arguments.run)]
    _, wall = timed(lambda: subprocess.run(words, check=True))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": cpu, "wall": wall, "peak MiB": after.ru_maxrss / 1024, "images": 10_000}


def attacks(_: argparse.Namespace) -> dict[str, dict[str, float]]:
    """A shard against the frozen network, as attacks run it, and the textbook formula: passes and one attack."""
    torch.manual_seed(0)
    found: dict[str, dict[str, float]] = {}
    images = torch.rand(SHARD, 3, 32, 32)
    for name in ("sll_tiny", "sll_small"):
        model = lc.create_model(name).eval()
        frozen = lc.freeze(model)
        networks: dict[str, Model] = {"frozen": in_both_precisions(frozen)[0], "textbook": textbook(model)}
        found[f"{name}, forward"] = alternating(
            {column: partial(query, network, images) for column, network in networks.items()}, 3
        )
        found[f"{name}, gradient in the image"] = alternating(
            {column: partial(slope, network, images) for column, network in networks.items()}, 3
        )
        few = images if name == "sll_tiny" else images[:FEW]
        labels, networks["frozen"] = frozen(few).argmax(dim=1), frozen
        works = {
            column: partial(lc.attack, network, few, labels, eps=36 / 255, method="quick")
            for column, network in networks.items()
        }
        if name == "sll_tiny":
            found[f"{name}, quick attack"] = alternating(works, 1)
        else:  # minutes: once each
            found[f"{name}, quick attack, {FEW} images"] = {
                column: timed(work)[0] for column, work in works.items()
            }
    return found


def query(network: Model, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images)


def slope(network: Model, images: Tensor) -> Tensor:
    x = images.clone().requires_grad_()
    return torch.autograd.grad(network(x).square().sum(), x)[0]


def compiled(_: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Eager and compiled: training steps of single layers, inference of a frozen network."""
    torch.manual_seed(0)
    cases = {
        "step of a dense layer, 1024 × 1024": (lc.ResidualLinear(1024, 1024), torch.rand(BATCH, 1024)),
        "step of a convolution, 45 × 5, 32 × 32": (lc.ResidualConv2d(45, 5), torch.rand(64, 45, 32, 32)),
    }
    found = {}
    for name, (layer, x) in cases.items():
        fast = torch.compile(layer)
        found[name] = alternating({"eager": partial(step, layer, x), "compiled": partial(step, fast, x)}, 5)
    frozen, images = lc.freeze(lc.create_model("sll_tiny")), torch.rand(64, 3, 32, 32)
    fast = torch.compile(frozen)
    found["inference of sll_tiny, frozen"] = alternating(
        {"eager": partial(query, frozen, images), "compiled": partial(query, fast, images)}, 5
    )
    return found


GROUPS = {
    "matrix products": ("mm", "addmm", "bmm"),
    "convolutions": ("convolution", "mkldnn_convolution", "convolution_backward", "slow_conv", "thnn_conv"),
    "copies": ("copy_", "clone", "contiguous", "cat", "fill_", "zero_"),
}


def profile(_: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Shares of one training step by kind of operation, before (the textbook formula) and after."""
    torch.manual_seed(0)
    found = {}
    dense = torch.rand(BATCH, 2880)
    images = torch.rand(64, 3, 32, 32)
    layer, model = lc.ResidualLinear(2880, 2048), lc.create_model("sll_small")
    for case, networks, x in (
        ("dense, 2880 → 2048, batch 256", {"textbook": textbook(layer), "lipcert": layer}, dense),
        ("sll_small, batch 64", {"textbook": textbook(model), "lipcert": model}, images),
    ):
        for column, network in networks.items():
            network.train()
            step(network, x)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
                step(network, x)
            found[f"{case}: {column}"] = grouped(trace.key_averages())
    return found


def grouped(events: object) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        name = event.key.removeprefix("aten::").removeprefix("_")
        kind = next((k for k, names in GROUPS.items() if name in names), "everything else")
        seconds[kind] += event.self_cpu_time_total / 1e6
    return dict(seconds)


PARTS: dict[str, Callable[[argparse.Namespace], object]] = {
    "startup": startup,
    "augment": augment,
    "certify": certify,
    "attacks": attacks,
    "compiled": compiled,
    "profile": profile,
}


def page(record: dict) -> str:
    """Markdown: the block of results/speed.md; the profile is in the file alone."""
    parts, pieces = record["parts"], []
    start = parts["startup"]
    extra = start["import lipcert, wall"] - start["import torch, wall"]
    pieces.append(
        f"**Starting.** `import lipcert` takes {max(extra, 0):.2f} s more than `import torch`, "
        f"`lipcert --help` {start['lipcert --help, wall']:.2f} s (wall time)."
    )
    times = parts["augment"]
    whole = times["step of sll_tiny"]
    rates = ", ".join(f"`{n}` {whole / s:.0f}" for n, s in times.items() if n in PRESETS and n != "none")
    pieces.append(f"**Augmentation.** Batches per training step of `sll_tiny`: {rates}.")
    if (done := parts.get("certify")) is not None:
        pieces.append(
            f"**Certification.** `lipcert certify` of {done['images']:,} CIFAR-10 images on `sll_tiny`: "
            f"{done['cpu']:.0f} s of CPU, {done['peak MiB']:.0f} MiB at most."
        )
    rows = [
        [name, f"{v['textbook']:.3g} s", f"{v['frozen']:.3g} s", f"{v['textbook'] / v['frozen']:.1f}"]
        for name, v in parts["attacks"].items()
    ]
    pieces.append(
        f"**Attacks** on {SHARD} images, the batch of `lipcert attack`. AutoAttack consists of forward passes and "
        "gradients:\n\n" + markdown_table(["", "textbook", "frozen", "times faster"], rows)
    )
    rows = [
        [name, f"{1000 * v['eager']:.3g} ms", f"{1000 * v['compiled']:.3g} ms"]
        for name, v in parts["compiled"].items()
    ]
    pieces.append("**`torch.compile`**:\n\n" + markdown_table(["", "eager", "compiled"], rows))
    where = f"`{record['command']}` → `results/pipeline.json` ({record['machine']}, 1 thread)"
    return "\n\n".join([*pieces, where])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", nargs="*", choices=PARTS, default=None)
    parser.add_argument("--run", type=Path, help="a run folder of sll_tiny on CIFAR-10, for the part certify")
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.out:
        kept = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"parts": {}}
        for name in arguments.part or PARTS:
            if (made := PARTS[name](arguments)) is None:
                continue
            print(name, json.dumps(made, indent=1))
            kept["parts"][name] = made
            write_json(
                arguments.out,
                {
                    "command": "python benchmarks/pipeline.py --out results/pipeline.json --run RUN",
                    "machine": f"{platform.machine()}, torch {torch.__version__}",
                    "parts": {part: kept["parts"][part] for part in PARTS if part in kept["parts"]},
                },
            )
    if arguments.docs:
        rewrite(
            "results/speed.md",
            "pipeline",
            page(json.loads((ROOT / "results/pipeline.json").read_text(encoding="utf-8"))),
        )


if __name__ == "__main__":
    main()
