"""What does a certified layer cost beside an unconstrained one, the textbook formula, and other libraries?

Run: python benchmarks/speed.py --out results/speed.json            (all cases; several minutes on a quiet machine)
     python benchmarks/speed.py --out results/speed.json --case dense-2880x2048-b256
     python benchmarks/speed.py --docs            (the tables of docs/speed.md and results/speed.md, from that file)
Peers, where they have the layer: pip install --no-deps -c constraints.txt orthogonium==0.0.4 deel-torchlip==1.0.5
Columns of one case alternate, the weights change between repeats, the minimum counts; CPU seconds, one thread.
Memory is the peak of a process of its own above what it held before the first step.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import formulas
import lipcert as lc
from lipcert.algebra.torus import MAPS
from lipcert.files import write_json
from lipcert.training.loop import peak_bytes
from textbook import Unconstrained, textbook

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("torchlip", "orthogonium")
SAMPLED = {"lipcert, sampled gradient": "sampled_gradient", "lipcert, sampled surrogate": "sampled_surrogate"}


class TextbookDense(nn.Module):
    """x − 2W diag(Σ_j|WᵀW|_ij q_j/q_i)⁻¹ relu(Wᵀx + b), as the formula is written; ``plain`` leaves T out."""

    def __init__(self, features: int, hidden: int, plain: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(hidden, features)))
        self.bias, self.q = nn.Parameter(torch.zeros(hidden)), nn.Parameter(torch.ones(hidden))
        self.plain = plain

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(F.linear(x, self.weight, self.bias))
        if not self.plain:
            gram = (self.weight @ self.weight.T).abs()
            z = z * (2 / (gram * self.q[None, :] / self.q[:, None]).sum(1))
        return x - F.linear(z, self.weight.T)


class TextbookConv(nn.Module):
    """The same with a convolution; the filters' overlaps by a padded convolution of the kernel with itself."""

    def __init__(self, channels: int, hidden: int, plain: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(hidden, channels, 3, 3)))
        self.bias, self.q = nn.Parameter(torch.zeros(hidden)), nn.Parameter(torch.ones(hidden))
        self.plain = plain

    def forward(self, x: Tensor) -> Tensor:
        half = self.weight.shape[-1] // 2
        z = F.relu(F.conv2d(x, self.weight, self.bias, padding=half))
        if not self.plain:
            lags = F.conv2d(self.weight, self.weight, padding=2 * half).abs().sum(dim=(2, 3))
            z = z * (2 / (lags * self.q[None, :] / self.q[:, None]).sum(1))[:, None, None]
        return x - F.conv_transpose2d(z, self.weight, padding=half)


Make = Callable[[], nn.Module]


def dense(features: int, hidden: int) -> dict[str, Make]:
    columns: dict[str, Make] = {
        "textbook": lambda: TextbookDense(features, hidden),
        "unconstrained": lambda: TextbookDense(features, hidden, plain=True),
        "lipcert": lambda: lc.ResidualLinear(features, hidden),
    }
    for name, form in SAMPLED.items():
        columns[name] = lambda form=form: lc.ResidualLinear(features, hidden, bound=lc.bounds.SLL(hidden, form))
    return columns | peers(dense=(features, hidden))


def conv(channels: int, hidden: int) -> dict[str, Make]:
    return {
        "textbook": lambda: TextbookConv(channels, hidden),
        "unconstrained": lambda: TextbookConv(channels, hidden, plain=True),
        "lipcert": lambda: lc.ResidualConv2d(channels, hidden),
    } | peers(conv=(channels, hidden))


def peers(dense: tuple[int, int] | None = None, conv: tuple[int, int] | None = None) -> dict[str, Make]:
    """SLL of orthogonium."""
    found: dict[str, Make] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from orthogonium.layers.conv import SLL as theirs

            if dense:
                found["orthogonium"] = lambda: theirs.SDPBasedLipschitzDense(dense[0], dense[0], dense[1])
            if conv:
                found["orthogonium"] = lambda: theirs.SDPBasedLipschitzResBlock(conv[0], conv[1] / conv[0], 3)
        except ImportError:
            pass
    return found


def other(name: str, size: int, kernel: int) -> dict[str, Make]:
    """A layer other than SLL that keeps its width: the formula, the same without constraint, ours, and peers."""
    form, how = name.split()
    residual = form == "residual"
    if form == "general":
        formula, plain = (lambda p=p: formulas.General(size, size, size, kernel, plain=p) for p in (False, True))
    elif form == "sandwich":
        formula, plain = (lambda p=p: formulas.Sandwich(size, size, plain=p) for p in (False, True))
    else:
        plain = partial(formulas.Layer, size, size, kernel, "none", residual)
        formula = partial(formulas.Layer, size, size, kernel, how, residual)
        if how in formulas.ORTHONORMAL:
            formula = partial(formulas.Orthonormal, size, how, residual)
    return {"textbook": formula, "unconstrained": plain, "lipcert": ours(form, how, size, kernel)} | others_peers(
        name, size, kernel
    )


def ours(form: str, how: str, size: int, kernel: int) -> Make:
    bound = lc.bounds.Orthogonal(how) if how in formulas.ORTHONORMAL else how
    if form == "general":
        return partial(lc.GeneralConv2d if kernel else lc.GeneralLinear, size, size, size)
    if form == "sandwich":
        return partial(lc.SandwichLinear, size, size)
    if form == "residual":
        return partial(lc.ResidualConv2d if kernel else lc.ResidualLinear, size, size, bound=bound)
    if kernel:
        return partial(lc.AffineConv2d, size, size, kernel, padding=kernel // 2, bound=bound)
    return partial(lc.AffineLinear, size, size, bound=bound)


def others_peers(name: str, size: int, kernel: int) -> dict[str, Make]:
    """The same constraint in other libraries; theirs are estimates, as `spectral_surrogate` is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from deel import torchlip
            from orthogonium.layers.conv.AOL.aol import AOLConv2D
        except ImportError:
            return {}
    if kernel:
        aol = partial(AOLConv2D, size, size, kernel, padding=kernel // 2)
        return {"orthogonium": aol} if name == "affine aol" else {}
    return {
        "affine spectral_surrogate": {"torchlip": partial(torchlip.SpectralLinear, size, size, eps_bjorck=None)},
        "affine bjorck": {"torchlip": partial(torchlip.SpectralLinear, size, size)},
    }.get(name, {})


def on_torus(method: str, channels: int, image: int) -> dict[str, Make]:
    """An orthogonal or a sandwich convolution of 3 × 3 parameters (ECO: 2 × 2) on a circular image."""
    kernel = 2 if method == "eco" else 3

    def ours() -> nn.Module:
        if method == "sandwich":
            return lc.SandwichConv2d(channels, channels, kernel, image_size=image)
        return lc.OrthogonalConv2d(channels, channels, kernel, image_size=image, method=method)

    return {
        "textbook": lambda: textbook(method, channels, image),
        "unconstrained": lambda: Unconstrained(channels, kernel, method == "sandwich"),
        "lipcert": ours,
    }


class TextbookNet(nn.Sequential):
    """``sll_small`` with the layers above."""

    def __init__(self, plain: bool = False) -> None:
        convs = [TextbookConv(45, 5, plain) for _ in range(20)]
        features = 45 * 8 * 8
        super().__init__(
            lc.layers.PadChannels(45), *convs, lc.layers.ScaledAvgPool2d(4), nn.Flatten(),
            *[TextbookDense(features, 2048, plain) for _ in range(7)], lc.NormalizedHead(features, 10),
        )  # fmt: skip


def repeated(make: Make, depth: int) -> nn.Module:
    return nn.Sequential(*(make() for _ in range(depth)))


def deep(columns: dict[str, Make], depth: int) -> dict[str, Make]:
    """So many of the same layer, one after another."""
    return {
        name: lambda make=make: nn.Sequential(*(make() for _ in range(depth))) for name, make in columns.items()
    }


def small() -> dict[str, Make]:
    return {
        "textbook": TextbookNet,
        "unconstrained": lambda: TextbookNet(plain=True),
        "lipcert": lambda: lc.create_model("sll_small"),
        **{name: (lambda form=form: lc.create_model(f"sll_{form}_small")) for name, form in SAMPLED.items()},
    }


Case = tuple[Callable[[], dict[str, Make]], tuple[int, ...]]
DENSE = [
    (512, 512, 256),
    (1024, 1024, 256),
    (2880, 2048, 1),
    (2880, 2048, 64),
    (2880, 2048, 256),
    (4096, 4096, 256),
]
CONV = [
    (45, 5, 8, 64),
    (45, 5, 16, 64),
    (45, 5, 32, 1),
    (45, 5, 32, 64),
    (45, 5, 32, 256),
    (45, 5, 64, 64),
    (64, 64, 16, 64),
    (64, 64, 8, 256),
    (128, 128, 8, 64),
]
BOUNDS = ("aol", "rescaled", "spectral", "spectral_surrogate")
OTHER_DENSE = (
    *(
        f"{form} {how}"
        for form in ("residual", "affine")
        for how in BOUNDS
        if (form, how) != ("affine", "rescaled")
    ),
    *(f"affine {method}" for method in formulas.ORTHONORMAL),
    "residual cayley",
    "general sll",
    "sandwich cayley",
)
OTHER_CONV = (
    *(
        f"{form} {how}"
        for form in ("residual", "affine")
        for how in BOUNDS
        if (form, how) != ("affine", "rescaled")
    ),
    "general sll",
)
TORUS = [(64, 8, 256), (32, 16, 64)]
DEPTHS = (2, 4)
CASES: dict[str, Case] = {
    **{f"dense-{m}x{n}-b{b}": (lambda m=m, n=n: dense(m, n), (b, m)) for m, n, b in DENSE},
    **{f"dense-1024x1024-b256-deep{d}": (lambda d=d: deep(dense(1024, 1024), d), (256, 1024)) for d in DEPTHS},
    **{f"conv-{c}x{h}-{s}x{s}-b{b}": (lambda c=c, h=h: conv(c, h), (b, c, s, s)) for c, h, s, b in CONV},
    **{
        f"{method}-{c}-{s}x{s}-b{b}": (lambda method=method, c=c, s=s: on_torus(method, c, s), (b, c, s, s))
        for c, s, b in TORUS
        for method in (*MAPS, "sandwich")
    },
    **{f"{name} 1024-b256": (lambda name=name: other(name, 1024, 0), (256, 1024)) for name in OTHER_DENSE},
    **{f"{name} 64-16x16-b64": (lambda name=name: other(name, 64, 3), (64, 64, 16, 16)) for name in OTHER_CONV},
    **{f"sll_small-b{b}": (small, (b, 3, 32, 32)) for b in (64, 256)},
}


def timed(work: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def step(module: nn.Module, x: Tensor) -> None:
    module.zero_grad(set_to_none=True)
    module(x).square().sum().backward()


def disturb(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1 + 2.0**-12)


def measure(name: str, repeats: int) -> dict[str, object]:
    make, shape = CASES[name]
    torch.manual_seed(0)
    modules = {column: build().train() for column, build in make().items()}
    x = torch.randn(shape, requires_grad=True)
    images = torch.rand(shape)
    still: dict[str, nn.Module] = {"textbook": modules["textbook"], "unconstrained": modules["unconstrained"]}
    still["lipcert, frozen"] = lc.freeze(modules["lipcert"])
    seconds: dict[str, dict[str, float]] = {}

    def note(kind: str, column: str, work: Callable[[], object]) -> None:
        cpu, wall = timed(work)
        best = seconds.setdefault(f"{kind}", {})
        best[column] = min(cpu, best.get(column, cpu))
        walls = seconds.setdefault(f"{kind}, wall", {})
        walls[column] = min(wall, walls.get(column, wall))

    for repeat in range(repeats + 1):
        for column, module in modules.items():
            disturb(module)
            if repeat == 0:
                step(module, x)
                continue
            note("forward", column, lambda module=module: module(x))
            note("step", column, lambda module=module: step(module, x))
        for column, module in still.items():
            with torch.no_grad():
                note("inference", column, lambda module=module: module(images))
    print(name, {k: {c: round(v, 4) for c, v in row.items()} for k, row in seconds.items() if "wall" not in k})
    return {"case": name, "seconds": seconds, "memory": {c: memory(name, c) for c in modules}}


def memory(name: str, column: str) -> int | None:
    words = [sys.executable, __file__, "--memory", name, column]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def peak(name: str, column: str) -> int:
    """Bytes above those held before the first step."""
    make, shape = CASES[name]
    module, x = make()[column]().train(), torch.randn(shape, requires_grad=True)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far, which may be the starter's
    before = peak_bytes()
    for _ in range(2):
        step(module, x)
    return peak_bytes() - before


def is_torus(row: dict) -> bool:
    return row["case"].split("-")[0] in (*MAPS, "sandwich")


def is_other(row: dict) -> bool:
    return " " in row["case"]


def torus_table(record: dict) -> str:
    """Markdown: orthogonal and sandwich convolutions as multiples of the unconstrained one."""
    from lipcert.reports.tables import markdown_table

    rows = []
    for row in filter(is_torus, record["rows"]):
        cells = [multiple(row, "step", "textbook"), multiple(row, "step", "lipcert")]
        cells += [multiple(row, "inference", "textbook"), multiple(row, "inference", "lipcert, frozen")]
        rows.append([f"`{row['case']}`", *cells, milliseconds(row["seconds"]["step"]["unconstrained"])])
    titles = ["case", "step, textbook", "step, lipcert", "inference, textbook", "inference, frozen"]
    return f"{markdown_table([*titles, 'unconstrained step (ms)'], rows)}\n\n{source(record)}"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:,.0f}"


def source(record: dict) -> str:
    return f"`{record['command']}` → `results/speed.json` ({record['machine']}, {record['threads']} thread)"


def multiple(row: dict, kind: str, column: str) -> str:
    """The time of a column as a multiple of the unconstrained layer's."""
    seconds = row["seconds"][kind]
    return f"{seconds[column] / seconds['unconstrained']:.2f}" if column in seconds else "–"


def memory_multiple(row: dict, column: str) -> str:
    """The peak memory of a step, above the parameters, as a multiple of the unconstrained layer's."""
    size = row["memory"].get(column)
    return "–" if size is None else f"{size / row['memory']['unconstrained']:.1f}"


def answer_table(record: dict) -> str:
    """Markdown: the paper's dense layer and its smallest network, as multiples of the unconstrained ones."""
    from lipcert.reports.tables import markdown_table

    rows = {row["case"]: row for row in record["rows"]}
    lines = [["dense layer, inference, 256 images", "inference", "dense-2880x2048-b256"]]
    lines += [[f"dense layer, training, batch {b}", "step", f"dense-2880x2048-b{b}"] for b in (256, 64, 1)]
    lines += [["whole network, inference, 256 images", "inference", "sll_small-b256"]]
    lines += [[f"whole network, training, batch {b}", "step", f"sll_small-b{b}"] for b in (256, 64)]
    ours = {"inference": "lipcert, frozen", "step": "lipcert"}
    cells = [
        [title, multiple(rows[case], kind, ours[kind]), multiple(rows[case], kind, "textbook")]
        for title, kind, case in lines
    ]
    return (
        f"{markdown_table(['times the unconstrained network', 'lipcert', 'textbook'], cells)}\n\n{source(record)}"
    )


def tables(record: dict) -> str:
    """Markdown: the cost of SLL, a line for each case."""
    from lipcert.reports.tables import markdown_table

    names = ["textbook", "lipcert", *SAMPLED, "orthogonium"]
    titles = ["case", *(f"step, {name.removeprefix('lipcert, ')}" for name in names)]
    titles += [
        "inference, textbook",
        "inference, frozen",
        "unconstrained step (ms)",
        "memory, textbook",
        "memory, lipcert",
    ]
    rows = []
    for row in record["rows"]:
        if is_torus(row) or is_other(row):
            continue
        cells = [multiple(row, "step", name) for name in names]
        cells += [multiple(row, "inference", name) for name in ("textbook", "lipcert, frozen")]
        cells += [milliseconds(row["seconds"]["step"]["unconstrained"])]
        cells += [memory_multiple(row, name) for name in ("textbook", "lipcert")]
        rows.append([f"`{row['case']}`", *cells])
    return f"{markdown_table(titles, rows)}\n\n{source(record)}"


def others_table(record: dict) -> str:
    """Markdown: layers other than SLL as multiples of the unconstrained one."""
    from lipcert.reports.tables import markdown_table

    titles = ["layer", "step, textbook", "step, lipcert", "step, other library", "inference, frozen"]
    titles += ["unconstrained step (ms)", "memory, lipcert"]
    rows = []
    for row in filter(is_other, record["rows"]):
        peer = next(
            (f"{multiple(row, 'step', name)} ({name})" for name in PEERS if name in row["seconds"]["step"]), "–"
        )
        cells = [multiple(row, "step", "textbook"), multiple(row, "step", "lipcert"), peer]
        cells += [multiple(row, "inference", "lipcert, frozen")]
        cells += [milliseconds(row["seconds"]["step"]["unconstrained"]), memory_multiple(row, "lipcert")]
        rows.append([f"`{row['case']}`", *cells])
    return f"{markdown_table(titles, rows)}\n\n{source(record)}"


def rewrite(name: str, mark: str, made: str) -> None:
    """Replace the text between two marks of a page."""
    page = ROOT / name
    head, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark}:begin -->")
    _, end, tail = rest.partition(f"<!-- {mark}:end -->")
    page.write_text(f"{head}{begin}\n{made}\n{end}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs="*", choices=CASES, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "COLUMN"))
    parser.add_argument("--memories", action="store_true", help="measure the memory of the cases in --out again")
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        print(peak(*arguments.memory))
        return
    if arguments.memories:
        record = json.loads(arguments.out.read_text())
        for row in record["rows"]:
            row["memory"] = {column: memory(row["case"], column) for column in row["memory"]}
        write_json(arguments.out, record)
    elif arguments.out:
        kept = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"rows": []}
        rows = {row["case"]: row for row in kept["rows"]}
        for name in arguments.case or CASES:
            rows[name] = measure(name, 2 if name.startswith("sll") else arguments.repeats)
            record = {
                "command": "python benchmarks/speed.py --out results/speed.json",
                "machine": f"{platform.machine()}, torch {torch.__version__}",
                "threads": 1,
                "rows": [rows[case] for case in CASES if case in rows],
            }
            write_json(arguments.out, record)
    if arguments.docs:
        record = json.loads((ROOT / "results/speed.json").read_text(encoding="utf-8"))
        rewrite("docs/speed.md", "answer", answer_table(record))
        rewrite("results/speed.md", "speed", tables(record))
        rewrite("results/speed.md", "others", others_table(record))
        rewrite("results/speed.md", "torus", torus_table(record))


if __name__ == "__main__":
    main()
