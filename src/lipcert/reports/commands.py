"""How to make a run again: the commands, as they can be typed, and the versions at hand."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import chain
from typing import Any

from lipcert.certifiers.methods import SETTINGS
from lipcert.records import CHECKED
from lipcert.runs import IN_PYTHON, Run
from lipcert.training.config import TrainConfig

PACKAGES = ("lipcert", "torch", "numpy", "altair", "vl-convert-python", "jinja2")


def commands(run: Run, test_images: int | None) -> Iterator[str]:
    """From the training to the check, without what was not done. An attack knows its own command.

    An unfinished training has no command: no number of epochs would give its weights.
    """
    where = shlex.quote(run.where)
    own = ""
    if run.config is not None and run.unfinished is None:
        if run.config.get("model") != IN_PYTHON and not run.data_file.is_file():
            yield train_command(run.config, where)
    elif run.builder and run.imported is not None:
        label = f" --label {shlex.quote(run.imported.label)}" if run.imported.label else ""
        own = f" --network {run.builder} --data {shlex.quote(run.imported.data or '')}{label}"
    elif run.imported is not None:
        yield f"lipcert import {shlex.quote(run.imported.file)} --out {where}"
    for view in map(run.by, CHECKED):
        if view.audit_file.is_file():
            yield f"lipcert audit {where}{own}" + ("" if view.method == "lipschitz" else f" --method {view.method}")
    for view in map(run.by, run.methods):
        some = test_images is not None and len(view.examples or ()) < test_images
        examples = f" --examples {len(view.examples or ())}" if some else ""
        yield f"lipcert certify {where}{own}{''.join(f' {word}' for word in _method_flags(view))}{examples}"
    yield from (attack.command for attack in run.attacks)
    yield from (check_command(view) for view in map(run.by, CHECKED) if view.certificate is not None)


def check_command(run: Run) -> str:
    """What verifies the certificate of these radii."""
    return f"lipcert check {shlex.quote(run.where)}/{run.certificate_file.name}"


def _method_flags(run: Run) -> Iterator[str]:
    """The method of certification and its settings."""
    if run.method == "lipschitz":
        return
    yield from ("--method", run.method)
    about, smoothed = run.certified_about, run.smoothed_about
    settings = about.settings if about is not None else {}
    if smoothed is not None:
        settings = {name: getattr(smoothed, name) for name in (*SETTINGS["smoothing"], "batch_size")}
    for name, value in settings.items():
        if value is None or value is False or (name == "tries" and settings.get("radii")):
            continue
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield from map(repr, value if isinstance(value, list) else (value,))


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
