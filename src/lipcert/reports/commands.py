"""How to make a run again: the commands, as they can be typed, and the versions at hand."""

from __future__ import annotations

import platform
import shlex
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError

from lipcert.records import RunFolder as Run
from lipcert.training.config import TrainConfig

PACKAGES = ("lipcert", "torch", "numpy", "altair", "vl-convert-python", "jinja2")


def commands(run: Run, test_images: int | None) -> list[str]:
    """From the training to the check. An attack says its own command; what was not done is left out."""
    where = shlex.quote(run.where)
    lines = []
    if run.config is not None:
        lines.append(train_command(run.config, where))
    elif run.imported is not None:
        lines.append(f"lipcert import {shlex.quote(run.imported.file)} --out {where}")
    if run.audited is not None:
        lines.append(f"lipcert audit {where}")
    if run.examples is not None:
        some = test_images is not None and len(run.examples) < test_images
        lines.append(f"lipcert certify {where}" + (f" --examples {len(run.examples)}" if some else ""))
    if run.attacked is not None:
        lines.append(run.attacked.command)
    if run.certificate is not None:
        lines.append(f"lipcert check {where}/certificate.json")
    return lines


def train_command(config: dict[str, Any], out: str) -> str:
    """``lipcert train`` with the flags that differ from the defaults."""
    try:
        settings = TrainConfig(**config).model_dump()
    except ValidationError:  # of a version with other fields
        return f"lipcert train --config {out}/config.json --out NEW"
    default = TrainConfig().model_dump()
    words = ["lipcert", "train"]
    for name, value in settings.items():
        if value == default[name]:
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, dict):
            words += [flag, *(str(word) for pair in value.items() for word in pair)]
        else:
            words += [flag, str(value)]
    return f"{shlex.join(words)} --out {out}"


def versions() -> dict[str, str]:
    """Of what made the report."""
    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}
