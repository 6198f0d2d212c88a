"""An attack in shards of fixed examples, in this process or in several, that can be killed at any time.

A shard is up to SHARD examples and one radius. What is random in it depends on the seed and on both. Every process
computes with one thread, so that sums are added in the same order whoever computes a shard. Each finished shard is
a file, and the same command reads it instead of working. Radii come by increasing size, because a shard consists of
what the smaller ones left standing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lipcert.attacks.attack import Method, attack
from lipcert.attacks.evidence import Claims, Finding, rows_of, to_attack
from lipcert.jobs import Store, Workers, compute, damaged

SHARD = 32


@dataclass(frozen=True)
class Shard:
    """Examples to attack within one radius. Arrays, since those travel between processes by themselves."""

    name: str
    indices: list[int]
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    radius: float
    method: Method
    seed: int
    bounded: bool


def attack_in_shards(
    network: nn.Module,
    images: NDArray[np.float32],
    claims: Claims,
    radii: Mapping[str, float],
    method: Method,
    seed: int,
    store: Store,
    workers: Workers | None,
    *,
    everything: bool,
    bounded: bool,
    show: Callable[[int, int, int], object],
) -> tuple[list[dict[str, Any]], float]:
    """Attack within all ``radii``, which increase; the rows, and the CPU seconds of all shards.

    Args:
        bounded: whether adversarial points must lie in [0, 1]^d.
        workers: whose processes share the shards of a radius; None for this process alone.
        show: hears (points done, all points, points that this call attacked).
    """
    torch.set_num_threads(1)  # sums in the same order, however many processes work
    found: dict[int, Finding] = {}
    rows: list[dict[str, Any]] = []
    labels = np.asarray(claims.labels, dtype=np.int64)
    total = sum(len(to_attack(claims, radius, {}, everything)) for radius in radii.values())
    settled, worked, seconds = 0, 0, 0.0
    for number, (eps, radius) in enumerate(radii.items()):
        todo = to_attack(claims, radius, found, everything)
        settled += len(to_attack(claims, radius, {}, everything)) - len(todo)  # those that fell within less
        shards = [
            Shard(
                f"{number}-{start // SHARD}", chosen, images[chosen], labels[chosen], radius, method, seed, bounded
            )
            for start in range(0, len(todo), SHARD)
            for chosen in [todo[start : start + SHARD]]
        ]
        missing = [shard for shard in shards if not _file(store.folder, shard).is_file()]
        settled += len(todo) - sum(len(shard.indices) for shard in missing)

        def tick(missing: list[Shard] = missing, settled: int = settled, worked: int = worked) -> None:
            new = sum(len(shard.indices) for shard in missing if _file(store.folder, shard).is_file())
            show(settled + new, total, worked + new)

        tick()
        todo_by_name = {shard.name: shard for shard in missing}
        compute(todo_by_name, partial(attack_shard, network), store.folder, workers, what="attack", tick=tick)
        for shard in missing:
            settled, worked = settled + len(shard.indices), worked + len(shard.indices)
        for shard in shards:
            findings, spent = _load(store, shard)
            seconds += spent
            found.update({finding.index: finding for finding in findings})
        rows += rows_of(claims, eps, radius, found, everything)
    return rows, seconds


def attack_shard(network: nn.Module, shard: Shard) -> dict[str, Any]:
    """Attack the examples of one shard, all at once; what its file holds."""
    torch.set_num_threads(1)
    began = time.process_time()
    result = attack(
        network,
        torch.from_numpy(shard.images),
        torch.from_numpy(shard.labels),
        eps=shard.radius,
        method=shard.method,
        seed=shard.seed,
        indices=torch.tensor(shard.indices),
        bounded=shard.bounded,
    )
    fell = (result.broken | ~result.correct).tolist()  # wrong at distance 0 is wrong within every radius
    findings = [
        Finding(
            index,
            fell[position],
            result.by[position],
            float(result.distances[position]) if fell[position] else None,
            int(result.predictions[position]) if fell[position] else None,
        )
        for position, index in enumerate(shard.indices)
    ]
    return {
        "findings": [asdict(finding) for finding in findings],
        "cpu_seconds": time.process_time() - began,
    }


def _file(folder: Path, shard: Shard) -> Path:
    return folder / f"{shard.name}.json"


def _load(store: Store, shard: Shard) -> tuple[list[Finding], float]:
    """What was found in a finished shard, and its CPU seconds."""
    file = _file(store.folder, shard)
    stored = store.load(file.name) or {}
    try:
        findings = [Finding(**finding) for finding in stored["findings"]]
        if [finding.index for finding in findings] == shard.indices:
            return findings, float(stored["cpu_seconds"])
    except (ValueError, TypeError, KeyError):
        pass
    raise damaged(file)
