"""The two tables that need no training: the architectures, counted without numbers, and the time of inference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lipcert.data.dataset import ImageData
from lipcert.data.registry import load_data
from lipcert.errors import DataNotFound
from lipcert.experiments.inference import Times, time_test_set
from lipcert.experiments.paper import DATA, SIZES, TABLE_1, TABLE_3, TABLE_4, Number, record_row
from lipcert.experiments.scales import Settings, scale_of
from lipcert.files import write_json
from lipcert.models.build import build
from lipcert.models.presets import model_spec

CERTIFIED_AT_FULL = 256  # images of the certificate that is timed at full scale: it runs on the CPU


def parameters(model: str) -> int:
    """Of a named architecture for CIFAR-10, on the meta device: no memory, no numbers."""
    with torch.device("meta"):
        return sum(p.numel() for p in build(model_spec(model)).parameters())


def architectures() -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Columns S, M, L, XL; the printed sizes beside those that have the printed number of parameters."""
    columns = tuple(row.model for row in TABLE_3.rows)
    specs = [model_spec(f"sll_{size}") for size in SIZES]
    ours: list[Sequence[float]] = [
        [spec.conv_layers for spec in specs],
        [spec.channels for spec in specs],
        [spec.dense_layers for spec in specs],
        [spec.dense_hidden for spec in specs],
        [parameters(f"sll_{size}") / 1e6 for size in SIZES],
        [parameters(f"sll_table3_{size}") / 1e6 for size in SIZES],
    ]
    by_model = {row.model: row.numbers[TABLE_1.columns.index("parameters")] for row in TABLE_1.rows}
    printed: list[Sequence[Number] | None] = [
        [row.numbers[index] for row in TABLE_3.rows] for index in range(len(TABLE_3.columns))
    ]
    printed += [[by_model[name] for name in SIZES.values()], None]
    names = [*TABLE_3.columns, "Parameters (M), Table 1", "… of the printed sizes"]
    rows = []
    for index, name in enumerate(names):
        theirs, mine = printed[index], ours[index]
        row = record_row("cifar10", "", name, None, columns)
        row["paper"] = None if theirs is None else dict(zip(columns, theirs, strict=True))
        row["ours"] = {c: {"mean": v, "deviation": None} for c, v in zip(columns, mine, strict=True)}
        rows.append(row)
    return columns, rows


def inference(settings: Settings, out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The paper's two times and ours; and what was scaled."""
    scale, columns = scale_of("inference", settings.scale), TABLE_4.columns
    rows = [record_row("tiny_imagenet", "", row.model, row, columns) for row in TABLE_4.rows]
    found = _test_set((scale.data["tiny_imagenet"], "cifar10"), settings)
    if found is None:
        rows[-1]["note"] = "not run: data not prepared (lipcert data get tiny_imagenet, or cifar10)"
        return rows, []
    test, changed = found, []
    if test.name == "cifar10":
        changed.append("the test images of CIFAR10 instead of those of TinyImageNet, which are not prepared")
    for size in scale.sizes:
        times = _times(f"sll_{size}", test, settings, out / f"inference-{test.name}-{size}.json")
        title = SIZES.get(size, f"SLL {size}")
        if test.name != "tiny_imagenet":
            title += f", {DATA.get(test.name, test.name)}"
        mine = next((row for row in rows if row["model"] == title), None)
        if mine is None:
            mine = record_row("tiny_imagenet", "", title, None, columns)
            rows.append(mine)
        mine |= {"ours": _one(times.forward), "seeds": 1}
        certificate = f"{title}, certificate"
        rows.append(
            record_row("tiny_imagenet", "", certificate, None, columns, ours=_one(times.certificate), seeds=1)
        )
        if times.device == "cpu":
            changed.append("one CPU thread instead of 4 GPUs")
        if times.certified < times.images:
            changed.append(f"the certificate is timed on {times.certified} images, in proportion")
    return rows, changed


def _test_set(names: Sequence[str], settings: Settings) -> ImageData | None:
    """The test images of the first data set that is prepared."""
    for name in names:
        try:
            return load_data(name, "test", root=settings.data_root)
        except DataNotFound:
            continue
    return None


def _times(model: str, test: ImageData, settings: Settings, path: Path) -> Times:
    """Measured once: a repeated command gives the same rows."""
    if not path.is_file():
        limit = CERTIFIED_AT_FULL if settings.scale == "full" else None
        write_json(path, asdict(time_test_set(model, test, examples=limit)))
    return Times(**json.loads(path.read_text(encoding="utf-8")))


def _one(seconds: float) -> dict[str, dict[str, float | None]]:
    return {"inference": {"mean": seconds, "deviation": None}}
