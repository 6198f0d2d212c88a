"""The golden set: what the library proves, recorded, so that a refactoring can be compared with it bit by bit.

    python tests/golden.py                      compare this tree with tests/golden.json.gz
    python tests/golden.py --write              record this tree there (explain every difference in CHANGELOG)
    python tests/golden.py --against COMMIT     record COMMIT on this machine and compare it with this tree
    … --save FILE                               only record this tree, into FILE

For every layer of ``table.py`` under every set of hostile parameters it holds a hash of what ``freeze`` stores, and
for each operation the constant, the method, the output shape and the rounding bounds at five norms in both
arithmetics; of the training layer, outputs and gradients in float64, two numbers for each
tensor. For every ``*_nano`` preset it holds the same proofs and the radii of a few images.

Sums run in another order on another processor, and hostile parameters make small differences large, so the stored
set is compared only where a sample of plain arithmetic gives the same bits (``machine``). ``--against`` works on
any machine.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.certified.freeze import prove
from lipcert.certified.network import Proved
from lipcert.models.presets import list_models
from lipcert.verified.rounding import U32, U64
from table import HOSTILE, LAYERS, fit, inputs

STORED = Path(__file__).with_name("golden.json.gz")
NORMS = (0.0, 1e-3, 1.0, 1e3, 1e12)
BLOCKED = ("as built", "random")  # float32 sums in blocks are proved for these kinds only
TRAINING = 1e-13  # relative, for outputs and gradients of training layers
Case = dict[str, Any]


def machine() -> str:
    """What decides in which order sums run: torch, numpy, and a hash of plain arithmetic on this processor.

    Processors of one name differ in their instructions, and libraries choose their code by those.
    """
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    return f"{platform.machine()}, {versions}, arithmetic {arithmetic()}"


def arithmetic() -> str:
    """A hash of products, convolutions, factorizations and functions, by torch and by numpy, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    numbers = np.random.default_rng(0)
    found: list[Tensor] = []
    for size in (3, 7, 16, 33, 64):
        a = numbers.standard_normal((size, size))
        symmetric = a @ a.T + size * np.eye(size)
        found += [torch.from_numpy(np.ascontiguousarray(x)) for x in (symmetric, np.linalg.svd(a)[1], np.exp(a))]
        for dtype in (torch.float32, torch.float64):
            x = torch.from_numpy(a).to(dtype)
            gram = torch.from_numpy(symmetric).to(dtype)
            found += [x @ x, x @ x[0], torch.linalg.cholesky(gram), torch.linalg.solve(gram, x), x.exp(), x.tanh()]
            found += [torch.fft.rfft2(x).abs(), x.sum(dim=0), torch.linalg.vector_norm(x, dim=1)]
    for channels, image in ((1, 5), (3, 8), (16, 7)):
        for dtype in (torch.float32, torch.float64):
            x = torch.from_numpy(numbers.standard_normal((2, channels, image, image))).to(dtype)
            kernel = torch.from_numpy(numbers.standard_normal((4, channels, 3, 3))).to(dtype)
            found += [torch.nn.functional.conv2d(x, kernel, padding=1)]
            found += [torch.nn.functional.conv_transpose2d(x, kernel.transpose(0, 1), stride=2)]
    torch.set_num_threads(threads)
    return hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in found)).hexdigest()[:16]


def hostile_layer(name: str, kind: str) -> nn.Module:
    """A layer of the table, in evaluation mode, under one set of hostile parameters."""
    torch.manual_seed(len(name) + len(kind))
    layer = LAYERS[name].make().eval()
    HOSTILE[kind](layer)
    if "optimal" in name:
        fit(layer)
    return layer


def proof_of(frozen: nn.Module, shape: tuple[int, ...], kind: str) -> Case:
    """What is proved of a frozen layer, and a hash of what is stored."""
    case: Case = {"stored": digest(frozen.state_dict()), "parts": described(prove(frozen, shape), U64, U32)}
    if kind in BLOCKED:
        case["blocked"] = described(prove(frozen, shape, dtype=torch.float32, block=4), U32)
    return case


def described(links: Proved, *units: float) -> list[Any]:
    norms = torch.tensor(NORMS, dtype=torch.float64)
    return [
        [
            part.op,
            list(part.proof.shape),
            part.proof.lipschitz.hex(),
            part.proof.method,
            [[value.hex() for value in part.proof.error_bound(norms, u).tolist()] for u in units],
        ]
        for part in links.parts
    ]


def digest(tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        name = name.removeprefix("network.")
        found.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def training_of(name: str, kind: str) -> dict[str, list[float]]:
    """Output, input gradient and parameter gradients of the layer in float64: norm and one projection of each."""
    layer, entry = hostile_layer(name, kind).double(), LAYERS[name]
    torch.manual_seed(1)
    x = inputs(entry, batch=2).requires_grad_()
    out = layer(x)
    (out * wave(out)).sum().backward()
    tensors = {"output": out, "input": x.grad, **{n: p.grad for n, p in layer.named_parameters()}}
    found = {key: t.detach() for key, t in tensors.items() if t is not None}
    return {key: [float(t.norm()), float((t * wave(t)).sum())] for key, t in found.items()}


def wave(like: Tensor) -> Tensor:
    return torch.arange(like.numel(), dtype=like.dtype).cos().view(like.shape)


def certificate_of(name: str) -> Case:
    """Radii of eight images and the constants of a preset as it is built."""
    torch.manual_seed(0)
    model = lc.create_model(name, image_shape=(1, 8, 8)).eval()
    images = torch.rand(8, 1, 8, 8)
    frozen = lc.freeze(model)
    links = prove(frozen, (1, 8, 8))
    with torch.no_grad():
        labels = frozen(images).argmax(dim=1)
    result = lc.certify(links, images, labels)
    return {
        "stored": digest(frozen.state_dict()),
        "parts": described(links, U64, U32),
        "backbone": links.backbone.hex(),
        "radii": [radius.hex() for radius in result.radii.tolist()],
    }


def record() -> dict[str, Any]:
    """The golden set of this tree."""
    torch.set_num_threads(1)
    proofs, training = {}, {}
    for name, entry in LAYERS.items():
        for kind in HOSTILE:
            proofs[f"{name} | {kind}"] = proof_of(lc.freeze(hostile_layer(name, kind)), entry.shape, kind)
            training[f"{name} | {kind}"] = training_of(name, kind)
        print(f"\r{len(proofs):>6} cases", end="", file=sys.stderr)
    print(file=sys.stderr)
    networks = {name: certificate_of(name) for name in sorted(list_models("*_nano"))}
    return {"machine": machine(), "proofs": proofs, "training": training, "networks": networks}


def load(path: Path = STORED) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def save(content: dict[str, Any], path: Path) -> None:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def difference(old: Any, new: Any) -> str | None:
    """The first place where two records differ, or None."""
    if isinstance(old, dict) and isinstance(new, dict):
        if old.keys() != new.keys():
            return f"keys {sorted(old.keys() ^ new.keys())}"
        pairs = [(key, old[key], new[key]) for key in old]
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return f"length {len(old)} → {len(new)}"
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new else f"{shown(old)} → {shown(new)}"
    for key, a, b in pairs:
        if found := difference(a, b):
            return f"{key}: {found}"
    return None


def number(value: Any) -> float | None:
    if isinstance(value, str) and (value.startswith(("0x", "-0x")) or value in ("inf", "nan", "-inf")):
        return float.fromhex(value)
    return value if isinstance(value, float) else None


def shown(value: Any) -> str:
    found = number(value)
    return repr(value if found is None else found)[:60]


def training_difference(old: dict[str, list[float]], new: dict[str, list[float]], tolerance: float) -> str | None:
    """As ``difference``; a projection is compared relative to the norm of its tensor.

    A derivative with respect to a logarithm has the unit of the output, so it is compared relative to that too:
    where columns are equal it is zero, and what is stored is the rounding of this zero.
    """
    if old.keys() != new.keys():
        return f"tensors {sorted(old.keys() ^ new.keys())}"
    for key, (norm, along) in old.items():
        scale = max(norm, old["output"][0]) if "log_" in key and math.isfinite(old["output"][0]) else norm
        for a, b in zip((norm, along), new[key], strict=True):
            if not (abs(a - b) <= tolerance * scale or a == b or (math.isnan(a) and math.isnan(b))):
                return f"{key}: {a!r} → {b!r}"
    return None


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Every case in which two golden sets of one kind of machine differ, bit by bit."""
    found = []
    for part in ("proofs", "training", "networks"):
        for key in sorted(old[part].keys() | new[part].keys()):
            if key not in old[part] or key not in new[part]:
                found.append(f"{part} {key}: only in {'the new' if key in new[part] else 'the old'} set")
                continue
            if part == "training":
                text = training_difference(old[part][key], new[part][key], TRAINING)
            else:
                text = difference(old[part][key], new[part][key])
            if text:
                found.append(f"{part} {key}: {text}")
    return found


def record_commit(commit: str) -> dict[str, Any]:
    """The golden set of another commit, recorded on this machine by its own code (by this file if it has none)."""
    root = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        tree, out = Path(folder) / "tree", Path(folder) / "golden.json.gz"
        subprocess.run(["git", "-C", root, "worktree", "add", "--detach", "--quiet", tree, commit], check=True)
        try:
            script = tree / "tests" / "golden.py"
            if not script.exists():
                script.write_bytes(Path(__file__).read_bytes())
            environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
            subprocess.run([sys.executable, script, "--save", out], check=True, env=environment)
            return load(out)
        finally:
            subprocess.run(["git", "-C", root, "worktree", "remove", "--force", tree], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Record what the library proves, or compare it with a record.")
    parser.add_argument("--write", action="store_true", help="record this tree as tests/golden.json.gz")
    parser.add_argument("--against", metavar="COMMIT", help="compare with another commit, run on this machine")
    parser.add_argument("--save", type=Path, metavar="FILE", help="only record this tree, into FILE")
    args = parser.parse_args()
    new = record()
    if args.save or args.write:
        save(new, args.save or STORED)
        return 0
    old = record_commit(args.against) if args.against else load()
    if old["machine"] != new["machine"]:
        print(f"The golden set was recorded on another kind of machine ({old['machine']}). Use --against COMMIT.")
        return 2
    found = compare(old, new)
    print("\n".join(found[:200]))
    print(f"{len(found)} differences in {sum(len(new[part]) for part in ('proofs', 'training', 'networks'))} cases")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
