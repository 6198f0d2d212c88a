"""Every layer that other libraries have beside ours: time of a training step and of inference, memory, and error.

    pip install --no-deps -c constraints.txt orthogonium==0.0.4 deel-torchlip==1.0.5 geotorch==0.4.0
    python benchmarks/peers.py --out results/peers.json [--case NAME …] [--repeats 5]
    python benchmarks/peers.py --docs       (the tables of docs/speed.md and results/speed.md, from that file)

Dense layers have 1024 inputs and neurons and a batch of 256, convolutions 64 channels, 3 × 3 taps and 64 images of
16 × 16. The layers of one case alternate, the weights change between repeats, the minimum counts; CPU seconds, one
thread. Every layer is trained for 10 steps of Adam before, or 2 where peers need seconds. Its error is ‖J‖ − 1 for
its Jacobian J, in float64 if the layer runs there: how far it is from its constraint in training mode and as
inference runs it (ours: frozen). ‖J‖ of a convolution is estimated from below, by power iteration.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.files import write_json
from lipcert.training.loop import peak_bytes
from speed import disturb, rewrite, step, timed

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "python benchmarks/peers.py --out results/peers.json"
Make = Callable[[], nn.Module]
WIDTH, CHANNELS, IMAGE = 1024, 64, 16
ADAM_STEPS, POWER_STEPS = 10, 100
SLOW = ("orthogonal by the exponential, dense",)  # seconds for a step of peers
# Above this a layer that is faster is not ahead: it is not 1-Lipschitz.
ERROR = 1e-3
# Why ours takes longer than an unconstrained layer, or than a peer's.
REASONS = {
    "spectral norm, convolution": "a power iteration for each frequency; torchlip bounds the kernel as a matrix",
    "AOL, convolution": "the Gram matrix of the kernel at every lag, and its gradient",
    "SLL, dense": "half of the Gram matrix of the weight, and one product for its gradient",
    "orthogonal by Björck, dense": "products of n × n matrices, each as long as 1.3 unconstrained steps",
    "orthogonal by Cayley, dense": "the same, for an inverse and its gradient",
    "orthogonal by the exponential, dense": "the same, for a polynomial of degree 8 and two squarings at most",
}


class Residual(nn.Module):
    """x − Wᵀrelu(Wx + b), the unconstrained shape of SLL."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        make = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) if kernel else nn.Linear(WIDTH, WIDTH)
        self.inner, self.kernel = make, kernel

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.inner(x))
        if self.kernel:
            return x - nn.functional.conv_transpose2d(z, self.inner.weight, padding=1)
        return x - z @ self.inner.weight


def cases() -> dict[str, dict[str, Make]]:
    """The layers of each case by the name of their library."""
    import geotorch
    from deel import torchlip
    from orthogonium.layers.conv import SLL
    from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
    from orthogonium.layers.conv.AOL.aol import AOLConv2D
    from orthogonium.layers.linear import OrthoLinear
    from torch.nn.utils.parametrizations import orthogonal, spectral_norm

    def linear() -> nn.Module:
        return nn.Linear(WIDTH, WIDTH)

    def conv(mode: str = "zeros") -> nn.Module:
        return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, padding_mode=mode)

    def geo(triv: str) -> nn.Module:
        layer = linear()
        geotorch.orthogonal(layer, "weight", triv=triv)
        return layer

    def ours(method: str) -> Make:
        return lambda: lc.OrthogonalLinear(WIDTH, WIDTH, method=method)

    def circular(method: str) -> Make:
        return lambda: lc.OrthogonalConv2d(CHANNELS, CHANNELS, 3, image_size=IMAGE, method=method)

    surrogate = {"bound": "spectral_surrogate"}
    return {
        "spectral norm, dense": {
            "unconstrained": linear,
            "lipcert": lambda: lc.AffineLinear(WIDTH, WIDTH, **surrogate),
            "torch spectral_norm": lambda: spectral_norm(linear()),
            "torchlip": lambda: torchlip.SpectralLinear(WIDTH, WIDTH, eps_bjorck=None),
        },
        "spectral norm, convolution": {
            "unconstrained": conv,
            "lipcert": lambda: lc.AffineConv2d(CHANNELS, CHANNELS, 3, padding=1, **surrogate),
            "torch spectral_norm": lambda: spectral_norm(conv()),
            "torchlip": lambda: torchlip.SpectralConv2d(CHANNELS, CHANNELS, 3, padding=1, eps_bjorck=None),
        },
        "AOL, convolution": {
            "unconstrained": conv,
            "lipcert": lambda: lc.AffineConv2d(CHANNELS, CHANNELS, 3, padding=1, bound="aol"),
            "orthogonium": lambda: AOLConv2D(CHANNELS, CHANNELS, 3, padding=1),
        },
        "SLL, dense": {
            "unconstrained": lambda: Residual(0),
            "lipcert": lambda: lc.ResidualLinear(WIDTH, WIDTH),
            "orthogonium": lambda: SLL.SDPBasedLipschitzDense(WIDTH, WIDTH, WIDTH),
        },
        "SLL, convolution": {
            "unconstrained": lambda: Residual(3),
            "lipcert": lambda: lc.ResidualConv2d(CHANNELS, CHANNELS),
            "orthogonium": lambda: SLL.SDPBasedLipschitzResBlock(CHANNELS, 1.0, 3),
        },
        "orthogonal by Björck, dense": {
            "unconstrained": linear,
            "lipcert": ours("bjorck"),
            "torchlip": lambda: torchlip.SpectralLinear(WIDTH, WIDTH),
            "orthogonium": lambda: OrthoLinear(WIDTH, WIDTH),
        },
        "orthogonal by Cayley, dense": {
            "unconstrained": linear,
            "lipcert": ours("cayley"),
            "torch orthogonal": lambda: orthogonal(linear(), orthogonal_map="cayley"),
            "geotorch": lambda: geo("cayley"),
        },
        "orthogonal by the exponential, dense": {
            "unconstrained": linear,
            "lipcert": ours("exp"),
            "torch orthogonal": lambda: orthogonal(linear(), orthogonal_map="matrix_exp"),
            "geotorch": lambda: geo("expm"),
        },
        "orthogonal by few taps, convolution": {
            "unconstrained": lambda: conv("circular"),
            "lipcert": circular("bcop"),
            "orthogonium": lambda: AdaptiveOrthoConv2d(
                CHANNELS, CHANNELS, 3, padding="same", padding_mode="circular"
            ),
        },
    }


def build(case: str, column: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = cases()[case][column]().train()
    return module, (64, CHANNELS, IMAGE, IMAGE) if "convolution" in case else (256, WIDTH)


def trained(case: str, column: str) -> nn.Module:
    """After some steps of Adam towards random targets: a weight that just starts is orthogonal in many layers."""
    module, shape = build(case, column)
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    x, target = torch.randn(16, *shape[1:]), torch.randn(16, *shape[1:])
    steps = 2 if case in SLOW else ADAM_STEPS
    for _ in range(steps if column != "unconstrained" else 0):
        optimizer.zero_grad()
        (module(x) - target).square().mean().backward()
        optimizer.step()
    return module


def used(module: nn.Module) -> nn.Module:
    """As inference runs it: frozen, exported, or without its parametrizations."""
    if isinstance(module, lc.layers.LipschitzLayer):
        return lc.freeze(module)
    module = copy.deepcopy(module).eval()
    if hasattr(module, "vanilla_export"):
        return module.vanilla_export()
    if not torch.nn.utils.parametrize.is_parametrized(module, "weight"):
        return module
    if isinstance(module, nn.Linear):
        plain: nn.Linear | nn.Conv2d = nn.Linear(module.in_features, module.out_features)
    else:
        sizes = (module.in_channels, module.out_channels, module.kernel_size)
        plain = nn.Conv2d(*sizes, padding=module.padding, padding_mode=module.padding_mode)
    with torch.no_grad():
        plain.weight.copy_(module.weight)
        plain.bias.copy_(module.bias)
    return plain.eval()


def excess(module: nn.Module, shape: tuple[int, ...]) -> float:
    """‖J‖ − 1 at a random point, in float64 where the layer runs there."""
    torch.manual_seed(1)
    x, v = torch.randn(1, *shape[1:]), torch.randn(1, *shape[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wide = copy.deepcopy(module).double()
            wide(x.double())
            module, x, v = wide, x.double(), v.double()
        except RuntimeError:
            module = copy.deepcopy(module)
        if x.ndim == 2:
            x = x.repeat(WIDTH, 1).requires_grad_()
            (jacobian,) = torch.autograd.grad(module(x), x, torch.eye(WIDTH, dtype=x.dtype))
            return float(torch.linalg.eigvalsh(jacobian @ jacobian.T)[-1].sqrt()) - 1
        size, x = torch.zeros(()), x.requires_grad_()
        y = module(x)
        u = torch.zeros_like(y, requires_grad=True)
        (back,) = torch.autograd.grad(y, x, u, create_graph=True)  # Jᵀu, whose derivative in u is J
        for _ in range(POWER_STEPS):
            (image,) = torch.autograd.grad(back, u, v / v.norm(), retain_graph=True)
            (v,) = torch.autograd.grad(y, x, image, retain_graph=True)
            size = image.norm()
    return float(size) - 1


def measure(case: str, repeats: int) -> dict[str, object]:
    names = list(cases()[case])
    modules = {column: trained(case, column) for column in names}
    shape = build(case, "unconstrained")[1]
    x, seconds = torch.randn(shape, requires_grad=True), {"step": {}, "inference": {}}

    def note(kind: str, column: str, work: Callable[[], object]) -> None:
        cpu, _ = timed(work)
        seconds[kind][column] = min(cpu, seconds[kind].get(column, cpu))

    still = {column: used(module) for column, module in modules.items()}
    errors = {c: [excess(modules[c], shape), excess(still[c], shape)] for c in names if c != "unconstrained"}
    for repeat in range(repeats + 1):
        for column, module in modules.items():
            disturb(module)
            if repeat == 0:
                step(module, x)
            else:
                note("step", column, lambda module=module: step(module, x))
        with torch.no_grad():
            for column, module in still.items():
                note("inference", column, lambda module=module: module(x))
    row = {"case": case, "seconds": seconds, "errors": errors, "memory": {c: memory(case, c) for c in names}}
    print(row)
    return row


def memory(case: str, column: str) -> int | None:
    words = [sys.executable, __file__, "--memory", case, column]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def peak(case: str, column: str) -> int:
    """Bytes above those held before the first step."""
    module, shape = build(case, column)
    x = torch.randn(shape, requires_grad=True)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    for _ in range(2):
        step(module, x)
    return peak_bytes() - before


def ratio(row: dict, kind: str, column: str) -> float:
    return row["seconds"][kind][column] / row["seconds"][kind]["unconstrained"]


def table(record: dict) -> str:
    """Markdown: a line for each layer of each library."""
    from lipcert.reports.tables import markdown_table

    lines = []
    for row in record["rows"]:
        plain = row["memory"]["unconstrained"]
        for column in row["seconds"]["step"]:
            if column == "unconstrained":
                continue
            used = row["memory"][column]
            cells = [f"{ratio(row, kind, column):.2f}" for kind in ("step", "inference")]
            cells += ["–" if used is None or not plain else f"{used / plain:.1f}"]
            cells += [f"{value:.1e}" for value in row["errors"][column]]
            lines.append([row["case"], column, *cells])
    titles = ["layer", "library", "step", "inference", "memory", "‖J‖ − 1, training", "‖J‖ − 1, inference"]
    return f"{markdown_table(titles, lines)}\n\n{source(record)}"


def source(record: dict) -> str:
    return f"`{record['command']}` → `results/peers.json` ({record['machine']}, {record['threads']} thread)"


def ahead(record: dict) -> str:
    """Markdown: where a peer that keeps its constraint is faster than we are, and what costs over 1.25."""
    from lipcert.reports.tables import markdown_table

    lines = []
    for row in record["rows"]:
        mine = ratio(row, "step", "lipcert")
        peers = {
            column: ratio(row, "step", column)
            for column in row["errors"]
            if column != "lipcert" and max(row["errors"][column]) <= ERROR
        }
        best = min(peers, key=peers.get, default=None)
        faster = best is not None and peers[best] < 0.97 * mine
        if faster or mine > 1.25:
            other = "–" if best is None else f"{peers[best]:.2f} ({best})"
            lines.append(
                [row["case"], f"{mine:.2f}", other, "yes" if faster else "no", REASONS.get(row["case"], "–")]
            )
    titles = [
        "layer",
        "step, lipcert",
        "step, fastest peer that keeps its constraint",
        "peer ahead",
        "why ours costs more",
    ]
    return f"{markdown_table(titles, lines)}\n\n{source(record)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs="*", default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "COLUMN"))
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        print(peak(*arguments.memory))
        return
    if arguments.out:
        kept = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {"rows": []}
        rows = {row["case"]: row for row in kept["rows"]}
        known = cases()
        for name in arguments.case or known:
            rows[name] = measure(name, arguments.repeats)
            record = {
                "command": COMMAND,
                "machine": f"{platform.machine()}, torch {torch.__version__}",
                "threads": 1,
                "rows": [rows[case] for case in known if case in rows],
            }
            write_json(arguments.out, record)
    if arguments.docs:
        record = json.loads((ROOT / "results/peers.json").read_text(encoding="utf-8"))
        rewrite("docs/speed.md", "ahead", ahead(record))
        rewrite("results/speed.md", "peers", table(record))


if __name__ == "__main__":
    main()
