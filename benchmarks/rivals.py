"""Every certifier once, on Fashion-MNIST with a small fixed number of steps, for results/rivals.jsonl.

Claim: all of them run on one data set, and this is roughly what they cost. It is no ranking: 200 steps are too few.
Run: OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/rivals.py
     the same with --costs   (results/rivals-cost.json: local constants and smoothing in forward passes)
     python benchmarks/evidence.py --docs   (the table of docs/results.md)
Rows are appended as they finish, so the same command continues. Seed 0, the first test images, one thread.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lipcert as lc
from lipcert.certified.freeze import prove
from lipcert.certifiers.local import LocalNetwork
from lipcert.certifiers.smoothing import Sampler, Smoothing
from lipcert.models.build import build
from lipcert.models.presets import model_spec
from lipcert.training.config import TrainConfig, own_loss

RESULTS = Path(__file__).parent.parent / "results"
RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "1": 1.0}
PRESETS = ("sll_nano", "gloro_nano", "liresnet_nano", "local_nano")
STEPS, BATCH, NOISE, N = 200, 64, 0.25, 10_000


@functools.cache
def preset(name: str) -> nn.Module:
    """A preset, trained with its own loss and frozen; tracked norms take the rate of docs/training.md."""
    with tempfile.TemporaryDirectory() as folder:
        own = own_loss(name)
        settings = {"model": name, "loss": own or "offset", "data": "fashion_mnist", "steps": STEPS}
        settings |= {"batch_size": BATCH, "learning_rate": 0.003 if own else 0.01}
        run = lc.train(TrainConfig(**settings, schedule="linear", threads=1), Path(folder) / "run")
        return run.frozen()


@functools.cache
def plain(noise: float) -> nn.Module:
    """784-64-64-10 with ReLU, AdamW with weight decay and noise."""
    torch.manual_seed(0)
    dense = [nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    network = nn.Sequential(nn.Flatten(), *dense)
    data = lc.load_data("fashion_mnist", "train")
    images, labels = data.inputs(), data.labels
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=0.3)
    for _ in range(STEPS):
        rows = torch.randint(len(images), (BATCH,))
        loss = F.cross_entropy(network(images[rows] + noise * torch.randn_like(images[rows])), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def jobs() -> dict[str, tuple[str, Callable[[], nn.Module], str, int, dict[str, Any]]]:
    """Name → what it is called in the table, the network, the method, images and options."""
    radii = {"eps": tuple(RADII.values())}
    return {
        "plain, smoothing": (
            "784-64-64-10",
            functools.partial(plain, NOISE),
            "smoothing",
            200,
            {"sigma": NOISE, "n": N, "alpha": 0.001},
        ),
        **{
            f"plain, {method}": ("784-64-64-10", functools.partial(plain, 0.15), method, images, options)
            for method, images, options in (
                ("lipschitz", 1000, {}),
                ("local", 200, radii),
                ("eclipse-fast", 1000, {}),
                ("lipsdp", 1000, {}),
                ("sdp-crown", 20, {"radii": list(RADII.values())}),
            )
        },
        **{
            f"{name}, lipschitz": (name, functools.partial(preset, name), "lipschitz", 1000, {}) for name in PRESETS
        },
        "local_nano, local": ("local_nano", functools.partial(preset, "local_nano"), "local", 200, radii),
    }


def table(out: Path) -> None:
    done = {json.loads(line)["row"] for line in out.read_text().splitlines()} if out.exists() else set()
    data = lc.load_data("fashion_mnist", "test")
    images, labels = data.inputs(), data.labels
    for row, (network, make, method, examples, options) in jobs().items():
        if row in done:
            continue
        model = make()
        start = time.process_time()
        result = lc.certify(model, images[:examples], labels[:examples], method=method, **options)
        seconds = (time.process_time() - start) / examples
        record = {
            "row": row,
            "network": network,
            "method": method,
            "images": examples,
            "natural": float(result.correct.double().mean()),
            "certified": {key: float((result.radii >= radius).double().mean()) for key, radius in RADII.items()},
            "milliseconds_per_image": 1000 * seconds,
            "steps": STEPS,
            "batch_size": BATCH,
        }
        assert record["natural"] >= record["certified"]["36/255"]
        if method == "local":
            record["forward_passes"] = passes_in_total(model, images[:examples], labels[:examples], options)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)


@torch.no_grad()
def passes_in_total(model: nn.Module, x: torch.Tensor, labels: torch.Tensor, options: dict[str, Any]) -> float:
    """Certification at all radii with the global one, of a network that is proved already, in forward passes."""
    proved = prove(lc.freeze(model), tuple(x.shape[1:]))
    found = least(
        {
            "forward": lambda: [proved.run(part.double()) for part in x.split(32)],
            "certify": lambda: lc.certify(proved, x, labels, method="local", **options),
        },
        2,
    )
    return found["certify"] / found["forward"]


def least(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least CPU time of each, in turns."""
    best = dict.fromkeys(runs, math.inf)
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            best[name] = min(best[name], time.thread_time() - start)
    return best


@torch.no_grad()
def costs(out: Path, repeats: int = 5, batch: int = 16) -> None:
    """Local constants of one ball, and votes of smoothing, in forward passes of the same batch."""
    torch.manual_seed(0)
    x = torch.rand(batch, 1, 28, 28, dtype=torch.float64)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    dense.append(nn.Linear(128, 10))
    local = {}
    for name, model in (
        ("local_nano", build(model_spec("local_nano", image_shape=(1, 28, 28)))),
        ("784-128-128-10", dense),
    ):
        frozen = lc.freeze(model.eval())
        for gram in (False, True):
            network = LocalNetwork(prove(frozen, (1, 28, 28)), gram=gram)
            forward = network.proved.run
            labels = forward(x)[-1].argmax(dim=1)
            found = least(
                {
                    "forward": lambda forward=forward: forward(x),
                    "local": lambda network=network, labels=labels: network.radii(x, labels, 36 / 255),
                },
                repeats,
            )
            local[f"{name}{', gram' if gram else ''}"] = {
                "forward_ms": 1000 * found["forward"],
                "passes": found["local"] / found["forward"],
                "mean_constant": float(network.constants(x, 36 / 255).mean()),
            }
    smoothing = {}
    convolution = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 10))
    gray, color = (1, 28, 28), (3, 32, 32)
    for name, model, shape, size in (
        ("sll_nano", lc.freeze(build(model_spec("sll_nano", image_shape=gray)).eval()), gray, 250),
        ("sll_tiny", lc.freeze(build(model_spec("sll_tiny", image_shape=color)).eval()), color, 50),
        ("gloro_6c2f", lc.freeze(build(model_spec("gloro_6c2f", image_shape=color)).eval()), color, 50),
        ("convolution of 8 channels, dense 10", convolution.eval(), gray, 250),
        ("784-128-128-10", dense.eval().float(), gray, 250),
    ):
        sampler = Sampler(model, torch.rand(shape), 0, Smoothing(0.25))
        inputs, pixels = sampler.inputs(size), math.prod(shape)
        found = least(
            {
                "forward": lambda model=model, inputs=inputs: model(inputs.clone()),
                "noise": lambda sampler=sampler, count=size * pixels: sampler.noise.draw(count, sampler.bits),
                "votes": lambda sampler=sampler, size=size: sampler.votes(size),
            },
            repeats,
        )
        smoothing[name] = {
            "batch": size,
            "pixels": pixels,
            "forward_us": 1e6 * found["forward"] / size,
            "noise_us": 1e6 * found["noise"] / size,
            "passes": found["votes"] / found["forward"],
        }
    record = {
        "command": "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/rivals.py --costs",
        "clock": f"CPU time, the least of {repeats}, interleaved, one thread",
        "local": {"batch": batch, "eps": "36/255", "rows": local},
        "smoothing": {"rows": smoothing},
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", action="store_true", help="measure costs in forward passes instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.costs:
        costs(RESULTS / "rivals-cost.json")
    else:
        table(RESULTS / "rivals.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
