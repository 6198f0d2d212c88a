"""The weights and the training state of a run.

``state.pt`` is complete by itself (weights, optimizer, average, step) and is read with weights_only=True: no pickle
from disk is executed. ``model.safetensors`` holds the weights to use, with the architecture in its header.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lipcert.files import atomic_file
from lipcert.models.build import build_any
from lipcert.models.own import Builder
from lipcert.models.presets import BUILDERS
from lipcert.models.spec import Architecture, ModelSpec, OwnNetwork


def save_weights(file: Path, weights: dict[str, Tensor], spec: Architecture) -> None:
    """Write weights, with the architecture in the header of the file."""
    tensors: dict[str, Tensor] = {}
    stored: set[int] = set()
    for name, tensor in weights.items():
        plain = tensor.detach().cpu().contiguous()
        # A module that is used twice has two names; safetensors refuses tensors that share memory.
        tensors[name] = plain.clone() if plain.untyped_storage().data_ptr() in stored else plain
        stored.add(plain.untyped_storage().data_ptr())
    # One entry only: safetensors writes several in no fixed order, and equal runs must give equal files.
    header = {"lipcert": json.dumps({"format": 1, "spec": spec.model_dump()})}
    with atomic_file(file) as path:
        save_file(tensors, path, metadata=header)


def save_state(file: Path, state: dict[str, Any]) -> None:
    with atomic_file(file) as path:
        torch.save(state, path)


def load_state(path: Path) -> dict[str, Any]:
    """The last complete training state of a run, from its file."""
    if not path.is_file():
        raise ValueError(f"there is no {path} to resume from. Start the run without --resume.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        raise ValueError(
            f"{path} is damaged or not a training state of lipcert ({_first_line(error)}). Delete it."
        ) from None
    if not isinstance(state, dict) or state.get("format") != "lipcert-state-2":
        raise ValueError(f"{path} is not a training state of this version of lipcert. Delete it.")
    return state


def load_spec(path: str | Path) -> Architecture:
    """The architecture of a run folder or of a ``model.safetensors``."""
    file = model_file(Path(path))
    try:
        with safe_open(file, framework="pt") as archive:
            header = json.loads((archive.metadata() or {}).get("lipcert", "{}"))
        if header.get("format") != 1:
            raise ValueError(f"{file} is not a model of lipcert: its header is missing. Train one.")
        spec = header["spec"]
        return OwnNetwork(**spec) if "builder" in spec else ModelSpec(**spec)
    except (SafetensorError, OSError, RuntimeError, KeyError) as error:
        raise _damaged(file, error) from None


def load_model(path: str | Path, builder: Builder | None = None) -> nn.Module:
    """The network of a run folder or of a ``model.safetensors``, in evaluation mode.

    A network of the user's own is built by ``builder``, or by a function that this program has registered under
    the name in the file; a module that only the file names is never imported.
    """
    file, spec = model_file(Path(path)), load_spec(path)
    if isinstance(spec, OwnNetwork):
        if builder is None and spec.builder not in BUILDERS:
            made = f"that {spec.builder} builds" if spec.builder else "that was passed in Python"
            raise ValueError(
                f"{path} holds the weights of a network of your own, {made}. Name the function that builds it with "
                f"--network {spec.builder or 'module:function'}, or in Python with network=."
            )
        model = build_any(spec, builder)
        load_weights(model, file)
        return model.eval()
    try:
        with torch.device("meta"):  # shapes alone: a file that lies about its size allocates nothing
            model = build_any(spec.model_copy(update={"init": "xavier"}))
        model.load_state_dict(load_file(file), assign=True)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _damaged(file, error) from None
    return model.eval()


def load_weights(model: nn.Module, file: Path) -> None:
    """Load the weights of a ``model.safetensors`` into a network that has just these tensors."""
    try:
        weights = load_file(file)
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from None
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["other shapes"])[-1].strip()
        raise ValueError(
            f"the weights of {file} do not fit this network ({reason[:160]}). Use the same network, image size and "
            "classes."
        ) from None


def model_file(path: Path) -> Path:
    """The weights of a run folder, or the file itself."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{path} is neither a run folder nor a model.safetensors. Train one with lipcert train.")
    return file


def _damaged(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} is damaged or not a model of lipcert ({_first_line(error)}). Train again.")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
