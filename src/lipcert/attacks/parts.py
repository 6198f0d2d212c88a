"""An attack that can be killed: each finished shard is a file, and the same command reads it instead of working.

``settings.json`` beside them holds all that decides a row. Parts made with other settings are refused, not mixed.
Radii come by increasing size, since a shard is made of what the smaller ones left standing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcert.attacks.attack import Method
from lipcert.attacks.evidence import Claims, Finding, rows_of, to_attack
from lipcert.attacks.shards import SHARD, Attacker, Done, Shard

Write = Callable[[Path, Any], None]  # a JSON value under that name, whole or not at all


class Parts:
    """The folder of finished shards."""

    def __init__(self, folder: Path, settings: dict[str, Any], *, write: Write, restart: bool = False) -> None:
        self.folder, self.write = folder, write
        if restart and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        file = folder / "settings.json"
        if not file.is_file():
            write(file, settings)
        stored = self._read(file)
        for key in {**settings, **stored}:
            if stored.get(key) != settings.get(key):
                raise ValueError(
                    f"{folder} holds an unfinished attack with {key} {stored.get(key)!r:.80}; got "
                    f"{settings.get(key)!r:.80}. Finish it with those settings, or add --restart to drop it."
                )

    def load(self, shard: Shard) -> Done | None:
        """What is known of a shard, or None."""
        file = self.folder / f"{shard.name}.json"
        if not file.is_file():
            return None
        stored = self._read(file)
        try:
            findings = [Finding(**finding) for finding in stored["findings"]]
            if [finding.index for finding in findings] != shard.indices:
                raise ValueError
            return Done(shard, findings, float(stored["cpu_seconds"]))
        except (ValueError, TypeError, KeyError):
            raise _damaged(file) from None

    def save(self, done: Done) -> None:
        content = {"findings": [asdict(finding) for finding in done.findings], "cpu_seconds": done.cpu_seconds}
        self.write(self.folder / f"{done.shard.name}.json", content)

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise _damaged(file) from None
        if not isinstance(content, dict):
            raise _damaged(file)
        return content


def attack_in_shards(
    images: NDArray[np.float32],
    claims: Claims,
    radii: Mapping[str, float],
    method: Method,
    seed: int,
    parts: Parts,
    attacker: Attacker,
    *,
    everything: bool,
    show: Callable[[int, int, int], object],
) -> tuple[list[dict[str, Any]], float]:
    """The rows of all ``radii``, which increase, and the CPU seconds of all shards.

    ``show`` hears (points done, all points, points that this process attacked).
    """
    found: dict[int, Finding] = {}
    rows: list[dict[str, Any]] = []
    labels = np.asarray(claims.labels, dtype=np.int64)
    total = sum(len(to_attack(claims, radius, {}, everything)) for radius in radii.values())
    settled, worked, seconds = 0, 0, 0.0
    for number, (eps, radius) in enumerate(radii.items()):
        todo = to_attack(claims, radius, found, everything)
        settled += len(to_attack(claims, radius, {}, everything)) - len(todo)  # those that fell within less
        shards = [
            Shard(f"{number}-{start // SHARD}", chosen, images[chosen], labels[chosen], radius, method, seed)
            for start in range(0, len(todo), SHARD)
            for chosen in [todo[start : start + SHARD]]
        ]
        known = {shard.name: parts.load(shard) for shard in shards}
        finished = [done for done in known.values() if done is not None]
        settled += sum(len(done.findings) for done in finished)
        show(settled, total, worked)
        for done in attacker([shard for shard in shards if known[shard.name] is None]):
            parts.save(done)
            finished.append(done)
            settled, worked = settled + len(done.findings), worked + len(done.findings)
            show(settled, total, worked)
        seconds += sum(done.cpu_seconds for done in finished)
        found.update({finding.index: finding for done in finished for finding in done.findings})
        rows += rows_of(claims, eps, radius, found, everything)
    return rows, seconds


def _damaged(file: Path) -> ValueError:
    return ValueError(f"{file} must be a finished part of this attack; got another file. Add --restart.")
