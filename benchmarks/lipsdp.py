"""The product of norms, ECLipsE-Fast, LipSDP and SDP-CROWN on the same ReLU networks, for results/lipsdp.json.

Claim: each joint or local bound certifies more images than the product of norms, and never fewer.
Run: python benchmarks/lipsdp.py   (about 10 minutes on one core)
Rows: three networks trained on the digits with weight decay and noise, seed 0; 100 test images. The cost of
ECLipsE-Fast on ten layers of width 512 is measured in Cholesky factorizations of that width, with
OPENBLAS_NUM_THREADS=1.
"""

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import nn

import lipcert as lc
from lipcert.certifiers.lipsdp import spherical
from lipcert.verified.ellipsoid import of_weight, through

RESULTS = Path(__file__).parent.parent / "results" / "lipsdp.json"
RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255}
METHODS = {"lipschitz": {}, "eclipse-fast": {}, "lipsdp": {}, "sdp-crown": {"radii": list(RADII.values())}}


def networks() -> dict[str, nn.Sequential]:
    """Two dense networks and a convolutional one."""
    dense = [nn.Flatten(), nn.Linear(64, 64), nn.ReLU()]
    convolutions = [nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Flatten()]
    return {
        "dense 64-64-10": nn.Sequential(*dense, nn.Linear(64, 10)),
        "dense 64-64-64-64-10": nn.Sequential(
            *dense, nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        ),
        "convolutions 8, 16, dense 64-10": nn.Sequential(
            *convolutions, nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)
        ),
    }


def trained(network: nn.Sequential, epochs: int) -> nn.Sequential:
    data = lc.load_data("digits", "train")
    images, labels = data.inputs(), data.labels
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=0.3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            noisy = images[rows] + 0.15 * torch.randn_like(images[rows])
            loss = F.cross_entropy(network(noisy), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def measure(name: str, network: nn.Sequential, examples: int) -> list[dict[str, object]]:
    data = lc.load_data("digits", "test")
    images, labels = data.inputs()[:examples], data.labels[:examples]
    rows = []
    for method, options in METHODS.items():
        start = time.perf_counter()
        result = lc.certify(network, images, labels, method=method, **options)
        seconds = time.perf_counter() - start
        row = {"network": name, "method": method, "natural": result.natural_accuracy}
        # A radius that was tried is certified itself.
        row["certified"] = {key: float((result.radii >= radius).double().mean()) for key, radius in RADII.items()}
        if method != "sdp-crown":
            report = lc.audit(network, images[:4], method=method)
            assert report.pairwise is not None
            row |= {"lipschitz": report.lipschitz, "lower": report.lower}
            row["mean_pair"] = float(report.pairwise.sum()) / 90
        rows.append(row | {"seconds_per_image": seconds / examples})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def cost(width: int = 512, layers: int = 10, repeats: int = 40) -> dict[str, object]:
    """ECLipsE-Fast with its proof, in factorizations of that width.

    Its parts are measured in turns, in CPU time, and the least of each is added up: the first product, then for
    each further layer an estimate of the largest eigenvalue and a step.

    ``floor`` is the recursion alone, without any proof: per layer one factorization, one triangular solve and one
    symmetric product, which are 1/3, 1 and 1 times width³ operations.
    """
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((width, width)) / width**0.5
    matrix = weight @ weight.T + np.eye(width)
    factor, target = torch.from_numpy(np.linalg.cholesky(matrix)), torch.from_numpy(weight)
    shape = of_weight(weight)
    assert shape is not None
    d = spherical(shape.matrix, 0.0, 1.0)
    runs = {
        "factorization": lambda: np.linalg.cholesky(matrix),
        "solve": lambda: torch.linalg.solve_triangular(factor, target, upper=False),
        "symmetric product": lambda: weight @ weight.T,
        "product": lambda: weight @ matrix,
        "proved: first": lambda: of_weight(weight),
        "proved: eigenvalue": lambda: spherical(shape.matrix, 0.0, 1.0),
        "proved: step": lambda: through(shape, d, 0.0, 1.0, weight),
    }
    least = dict.fromkeys(runs, math.inf)
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            least[name] = min(least[name], time.thread_time() - start)
    in_factorizations = {name: seconds / least["factorization"] for name, seconds in least.items()}
    proved = in_factorizations["proved: eigenvalue"] + in_factorizations["proved: step"]
    step = 1 + in_factorizations["solve"] + in_factorizations["symmetric product"]
    return {
        "command": "python benchmarks/lipsdp.py --only-cost",
        "width": width,
        "layers": layers,
        "threads": 1,
        "repeats": repeats,
        "clock": "CPU time, the least of the repeats, interleaved",
        "milliseconds": {name: 1000 * seconds for name, seconds in least.items()},
        "cholesky_factorizations": (layers - 1) * proved + in_factorizations["proved: first"],
        "floor": (layers - 1) * step + in_factorizations["symmetric product"],
        # With all of it at the speed of a product: (1/3 + 1 + 1)·n³ for each step, of the 2n³ of a product.
        "floor_at_the_speed_of_products": ((layers - 1) * 7 / 6 + 1 / 2) * in_factorizations["product"],
    }


def main(epochs: int = 60, examples: int = 100, out: Path = RESULTS, only_cost: bool = False) -> int:
    """Measure everything and write it; 0 when it is done.

    Args:
        epochs: of the training.
        examples: test images.
        out: the file to write.
        only_cost: measure the cost of ECLipsE-Fast again and keep the other rows of the file.
    """
    torch.set_num_threads(1)
    if only_cost:
        content = json.loads(out.read_text(encoding="utf-8")) | {"cost": cost()}
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return 0
    rows = []
    for name, network in networks().items():
        torch.manual_seed(0)
        for layer in network:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        rows += measure(name, trained(network, epochs), examples)
    content = {
        "command": "python benchmarks/lipsdp.py",
        "data": f"digits, {examples} test images, seed 0",
        "published": {
            "SDP-CROWN, ConvSmall on CIFAR-10": "33 % by norms, 43.5 % by SDP-CROWN",
            "ECLipsE": "within 1.05 of LipSDP",
        },
        "rows": rows,
        "cost": cost(),
    }
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
