"""How long a test set takes: the forward pass with its radii, and the certificate that holds in floating point.

The first is what the paper times: logits in float32 and margins over constants. The second is ``certify``: proofs
of every layer, float64, and a bound of all rounding; it runs on the CPU. The weights are those of the start, since
neither time depends on them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from lipcert.certified.certify import certify
from lipcert.certified.freeze import freeze, prove
from lipcert.certified.radius import certified_radii
from lipcert.data.dataset import ImageData
from lipcert.layers.contract import lipschitz_bound
from lipcert.layers.head import FirstLogits, NormalizedHead
from lipcert.models.build import build
from lipcert.models.presets import model_spec

BATCH = 256


@dataclass(frozen=True)
class Times:
    """Seconds for the whole test set: CPU time of one thread, or wall time on a GPU for the forward pass."""

    images: int
    forward: float
    certificate: float
    certified: int  # so many images were certified; the time is that of all, in proportion
    device: str


def time_test_set(model: str, test: ImageData, *, examples: int | None = None) -> Times:
    """Both times of a named architecture on ``test``; ``examples`` limits what is certified, which is slower."""
    spec = model_spec(model, image_shape=test.image_shape, num_classes=len(test.classes))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = build(spec).eval()
        forward = _forward(network, test, device)
        count = min(len(test), examples or len(test))
        began = time.process_time()
        links = prove(freeze(network), test.image_shape)
        proved = time.process_time()
        certify(links, test.images[:count].double() / 255, test.labels[:count])
        ended = time.process_time()
    finally:
        torch.set_num_threads(threads)
    certificate = (proved - began) + (ended - proved) * len(test) / count
    return Times(len(test), forward, certificate, count, device.type)


@torch.no_grad()
def _forward(network: torch.nn.Sequential, test: ImageData, device: torch.device) -> float:
    backbone, head = network
    assert isinstance(head, (NormalizedHead, FirstLogits))  # what models.build makes
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    began = clock()
    pairwise = head.pairwise_bound() * lipschitz_bound(backbone)
    frozen = freeze(network).to(device)
    for start in range(0, len(test), BATCH):
        part = slice(start, start + BATCH)
        logits = frozen((test.images[part].float() / 255).to(device))
        certified_radii(logits.cpu(), test.labels[part], pairwise)
    return clock() - began
