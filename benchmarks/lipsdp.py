"""The product of norms, ECLipsE-Fast, LipSDP and SDP-CROWN on the same ReLU networks, for results/lipsdp.json.

Claim: each joint or local bound certifies more images than the product of norms, and never fewer.
Run: python benchmarks/lipsdp.py   (about 10 minutes on one core)
Rows: three networks trained on the digits with weight decay and noise, seed 0; 100 test images. The cost of
ECLipsE-Fast on ten layers of width 512 is measured in Cholesky factorizations of that width, in turns.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import nn

import lipcert as lc
from lipcert.certifiers.lipsdp import Layers, propagate, spherical

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


def cost(width: int = 512, layers: int = 10, repeats: int = 9) -> dict[str, float]:
    """ECLipsE-Fast with its proof, in factorizations of that width; both are measured in turns."""
    generator = np.random.default_rng(0)
    weights = [generator.standard_normal((width, width)) / width**0.5 for _ in range(layers)]
    chain = Layers(weights, [(0.0, 1.0)] * (layers - 1))
    matrix = weights[0] @ weights[0].T + np.eye(width)
    ratios = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(5):
            np.linalg.cholesky(matrix)
        middle = time.perf_counter()
        propagate(chain, lambda index, shape: spherical(shape, 0.0, 1.0))
        ratios.append((time.perf_counter() - middle) / (middle - start) * 5)
    return {
        "width": width,
        "layers": layers,
        "cholesky_factorizations": statistics.median(ratios),
        "least": min(ratios),
    }


def main(epochs: int = 60, examples: int = 100, out: Path = RESULTS) -> int:
    """Measure everything and write it; 0 when it is done.

    Args:
        epochs: of the training.
        examples: test images.
        out: the file to write.
    """
    torch.set_num_threads(1)
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
