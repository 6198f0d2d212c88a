"""How to make a run again: the commands, as they can be typed, and the versions at hand."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import chain
from typing import Any

from lipcert.runs import Run
from lipcert.training.config import TrainConfig

PACKAGES = ("lipcert", "torch", "numpy", "altair", "vl-convert-python", "jinja2")


def commands(run: Run, test_images: int | None) -> Iterator[str]:
    """From the training to the check, without what was not done. An attack knows its own command.

    An unfinished training has no command: no number of epochs would give its weights.
    """
    where = shlex.quote(run.where)
    if run.config is not None and run.unfinished is None:
        yield train_command(run.config, where)
    elif run.imported is not None:
        yield f"lipcert import {shlex.quote(run.imported.file)} --out {where}"
    if run.audited is not None:
        yield f"lipcert audit {where}"
    if run.examples is not None:
        some = test_images is not None and len(run.examples) < test_images
        yield f"lipcert certify {where}" + (f" --examples {len(run.examples)}" if some else "")
    yield from (attack.command for attack in run.attacks)
    if run.certificate is not None:
        yield f"lipcert check {where}/certificate.json"


def train_command(config: dict[str, Any], out: str) -> str:
    """``lipcert train`` with the flags that differ from the defaults."""
    try:
        settings = TrainConfig(**config).model_dump()
    except ValueError:  # of a version with other fields
        return f"lipcert train --config {out}/config.json --out NEW"
    return f"{shlex.join(['lipcert', 'train', *flags(settings, TrainConfig().model_dump())])} --out {out}"


def flags(values: Mapping[str, Any], default: Mapping[str, Any]) -> Iterator[str]:
    """The words of a command line for the values that differ from the default; switches are off by default."""
    for name, value in values.items():
        if value != default[name]:
            yield f"--{name.replace('_', '-')}"
            if isinstance(value, dict):
                yield from map(str, chain(*value.items()))
            elif value is not True:
                yield from map(str, value if isinstance(value, tuple) else (value,))


def versions() -> dict[str, str]:
    """Of the packages that make a report."""
    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}
