"""What a training step of the paper's four sizes costs, counted, and what an epoch then takes on D devices.

Claim: counts are exact (the products are linear in the batch, T is constant); times are a model with one fitted
number, checked against three rows of the paper that the fit has not seen.
Run: python benchmarks/cost.py --out results/scaling.json --docs results/speed.md   (4 minutes on one core)
Rows: counts per size, the fit, seconds per epoch by devices, real steps of sll_small on this CPU (minimum of 5).
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lipcert.algebra.gram import Columns, absolute_gram
from lipcert.losses import OffsetCrossEntropy
from lipcert.models.build import create_model
from lipcert.training.loop import peak_bytes

Record = dict[str, Any]
COMMAND = "python benchmarks/cost.py --out results/scaling.json --docs results/speed.md"
SIZES = {"S": "sll_small", "M": "sll_medium", "L": "sll_large", "XL": "sll_xlarge"}
PAPER = {"S": 20, "M": 35, "L": 55, "XL": 105}  # seconds per epoch: Table 1, last column
IMAGES, BATCH = 50_000, 256  # CIFAR-10, and the paper's batch
DEVICES = (1, 2, 4, 8, 16, 32)
ASSUMED = {  # the paper names no hardware; results/speed.md gives the reason for each
    "device": "V100 SXM2",
    "paper_devices": 4,
    "peak_flops": 15.7e12,  # float32, published
    "memory_bytes_per_second": 900e9,  # published
    "link_bytes_per_second": 50e9,  # two NVLinks, published as 25e9 a direction each
}
PARTS = ("T", "products", "memory", "all-reduce")


class Traffic(TorchDispatchMode):
    """Bytes that operators read and write, views excepted, as if nothing were fused or cached."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
            self.total += sum(min(t.numel() * t.itemsize, t.untyped_storage().nbytes()) for t in tensors)
        return out


def count(model: nn.Module, loss: Callable[[], Tensor]) -> Record:
    """FLOPs, bytes saved for backward and bytes moved by one forward and backward pass and one step of Adam."""
    kept: dict[int, Tensor] = {}  # by storage: a tensor saved twice, or as two views, counts once
    own = {p.untyped_storage()._cdata for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # the first step also makes Adam's states
    optimizer.zero_grad()
    with FlopCounterMode(display=False) as flops, Traffic() as traffic:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            value = loss()
        value.backward()
        optimizer.step()
    saved = sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)
    return {"flops": flops.get_total_flops(), "saved": saved, "traffic": traffic.total}


def linear(at: Callable[[int], Record]) -> Record:
    """count(b) = once + b·per_image, from b = 1 and 2; the count at the full batch must agree."""
    one, two, full = at(1), at(2), at(BATCH)
    law = {key: {"once": 2 * one[key] - two[key], "per_image": two[key] - one[key]} for key in one}
    for key, value in full.items():
        expected = law[key]["once"] + BATCH * law[key]["per_image"]
        if value != expected:
            raise ValueError(f"{key} of a batch of {BATCH} must be {expected}; got {value}. The law does not hold.")
    return law


def as_written(columns: Columns, a: Tensor, sample: int | None = None) -> Tensor:
    """A·a by the formula, with autograd's two gradients: what the paper's code computes."""
    return (absolute_gram(columns) @ a[..., None])[..., 0]


def formula() -> Any:
    """Inside, T is computed ``as_written``."""
    return mock.patch("lipcert.algebra.bounds.absolute_product", as_written)


def count_model(name: str) -> Record:
    with torch.device("meta"):
        model = create_model(name)

    def at(batch: int) -> Record:
        images, labels = torch.empty(batch, 3, 32, 32, device="meta"), torch.empty(batch, device="meta").long()
        with formula():
            return count(model, lambda: F.cross_entropy(model(images), labels))  # the paper's loss reads its labels

    size = sum(p.numel() for p in model.parameters())
    return {"parameters": size, "bytes": 4 * size, **linear(at)}


def seconds(counts: Record, devices: int, speed: float, batch: int = BATCH) -> dict[str, float]:
    """Seconds per epoch by part, nothing overlapped, ``batch`` images per step over all devices."""
    steps, share = -(-IMAGES // batch), batch / devices
    traffic = counts["traffic"]["once"] + share * counts["traffic"]["per_image"]
    ring = 2 * (devices - 1) / devices * counts["bytes"]
    step = (
        counts["flops"]["once"] / speed,
        share * counts["flops"]["per_image"] / speed,
        traffic / ASSUMED["memory_bytes_per_second"],
        ring / ASSUMED["link_bytes_per_second"],
    )
    return dict(zip(PARTS, (steps * part for part in step), strict=True))


def fit(counts: Record, devices: int) -> float:
    """The FLOP/s per device at which the epoch of S takes the paper's 20 s."""
    at_one = seconds(counts, devices, 1.0)
    rest = PAPER["S"] - at_one["memory"] - at_one["all-reduce"]
    return (at_one["T"] + at_one["products"]) / rest


def derive(models: Record) -> Record:
    """Everything that follows from the counts and the assumptions."""
    fits = {}
    for devices in (1, ASSUMED["paper_devices"]):
        speed = fit(models["S"], devices)
        parts = {size: seconds(counts, devices, speed) for size, counts in models.items()}
        misfit = {size: sum(parts[size].values()) / PAPER[size] - 1 for size in models}
        fits[str(devices)] = {"flops_per_second": speed, "parts": parts, "misfit": misfit}
    speed = fits[str(ASSUMED["paper_devices"])]["flops_per_second"]
    epochs = {
        way: {
            size: [sum(seconds(c, d, speed, BATCH * (d if way == "per device" else 1)).values()) for d in DEVICES]
            for size, c in models.items()
        }
        for way in ("in all", "per device")
    }
    return {"fits": fits, "epochs": epochs}


def measure(name: str, repeats: int = 5) -> Record:
    """Real steps on this CPU: forward, backward, Adam on random images."""
    torch.manual_seed(0)
    model = create_model(name)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, (0.5, 0.9))
    loss, images, labels = OffsetCrossEntropy(), torch.rand(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    walls, cpus, load = [], [], os.getloadavg()[0]
    for _ in range(1 + repeats):  # the first step pays for what is allocated once
        began, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()
        walls.append(time.perf_counter() - began)
        cpus.append(time.process_time() - cpu)
        print(f"{name}: {walls[-1]:.2f} s", file=sys.stderr)
    times = {"seconds": walls[1:], "cpu_seconds": cpus[1:], "first": walls[0], "load": load}
    return {"model": name, "batch": BATCH, **times, "peak_bytes": peak_bytes()}


def table(*rows: list[str]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def tables(record: Record) -> str:
    """The figures of results/speed.md as Markdown."""
    models, assumed, took, machine = (record[key] for key in ("models", "assumed", "measured", "machine"))
    fitted, single = record["fits"][str(assumed["paper_devices"])], record["fits"]["1"]
    speed, steps = fitted["flops_per_second"], -(-IMAGES // BATCH)
    counted = [
        [
            "model",
            "parameters",
            "FLOPs of T",
            "of products",
            "T's share",
            "weights, gradients, Adam",
            "saved for backward",
        ]
    ]
    checked = [["model", *PARTS, "predicted", "paper", "misfit", "misfit, 1 GPU"]]
    scaled = [["batch", "model", *(f"D = {d}" for d in record["devices"]), "speed-up at most"]]
    for size, counts in models.items():
        once, products = counts["flops"]["once"], BATCH * counts["flops"]["per_image"]
        saved = counts["saved"]["once"] + BATCH * counts["saved"]["per_image"]
        cells = [f"{counts['parameters'] / 1e6:.1f} M", f"{once / 1e12:.2f} T", f"{products / 1e12:.2f} T"]
        share, held = once / (once + products), 4 * counts["bytes"]
        counted.append([size, *cells, f"{share:.0%}", f"{held / 1e9:.2f} GB", f"{saved / 1e9:.1f} GB"])
        parts = fitted["parts"][size]
        misfits = ["(fitted)" if size == "S" else f"{f['misfit'][size]:+.0%}" for f in (fitted, single)]
        cells = [f"{value:.1f}" for value in (*parts.values(), sum(parts.values()))]
        checked.append([size, *cells, f"{record['paper'][size]}", *misfits])
    for way, sizes in record["epochs"].items():
        for size in ("S", "XL"):
            row = sizes[size]
            limit = row[0] / sum(seconds(models[size], 10**9, speed).values())  # D → ∞
            last = f"{limit:.2f}×" if way == "in all" else "–"
            scaled.append([f"{BATCH} {way}", size, *(f"{value:.1f}" for value in row), last])
    walls, load, peak = took["seconds"], took["load"], took["peak_bytes"] / 1e9
    best = min(walls)
    texts = [
        f"Counted: one training step of {BATCH} images in float32.",
        table(*counted),
        f"Modelled: seconds per epoch on {assumed['paper_devices']} GPUs at {speed / 1e12:.1f} TFLOP/s each "
        f"({speed / assumed['peak_flops']:.0%} of peak, fitted to S).",
        table(*checked),
        "Modelled at that speed: seconds per epoch on D devices.",
        table(*scaled),
        f"Measured: a step of `{took['model']}` with {took['batch']} images takes {best:.1f} s on "
        f"{machine['threads']} CPU thread\n(minimum of {len(walls)}, slowest {max(walls):.1f} s; {machine['cpu']}, "
        f"torch {machine['torch']}, load {load:.1f}) and {peak:.1f} GB at most.\n"
        f"This extrapolates to {steps * best / 60:.0f} minutes for an epoch of {steps} steps.",
        f"`{COMMAND}` → `results/scaling.json`",
    ]
    return "\n\n".join(texts)


def replace_file(path: Path, text: str) -> None:
    """Under a temporary name, then renamed: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def main(out: Path = Path("results/scaling.json"), docs: Path | None = None, reuse: bool = False) -> int:
    """Count, model and measure; 0 when it is done.

    Args:
        out: the JSON file to write.
        docs: the page whose tables to write.
        reuse: keep the counts and the measurement of ``out``, and derive the rest again.
    """
    if reuse:
        record = json.loads(out.read_text(encoding="utf-8"))
    else:
        torch.set_num_threads(1)
        cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
        machine = {"cpu": cpu, "threads": torch.get_num_threads(), "torch": torch.__version__}
        record = {"command": COMMAND, "machine": machine, "measured": measure(SIZES["S"])}  # first, for its peak
        record["models"] = {size: count_model(name) for size, name in SIZES.items()}
    record |= {"assumed": ASSUMED, "paper": PAPER, "devices": DEVICES, **derive(record["models"])}
    replace_file(out, json.dumps(record, indent=1) + "\n")
    print(text := tables(record))
    if docs is not None:
        before, rest = docs.read_text(encoding="utf-8").split("<!-- scaling:begin -->\n")
        after = rest.split("<!-- scaling:end -->")[1]
        replace_file(docs, f"{before}<!-- scaling:begin -->\n{text}\n<!-- scaling:end -->{after}")
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
