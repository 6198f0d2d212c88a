"""The files of a run: written under a temporary name and renamed, so a kill at any moment loses no file.

``state.pt`` is complete by itself (weights, optimiser, average, step) and is read with weights_only=True: no pickle
from disk is executed. ``model.safetensors`` holds the weights to use. ``metrics.jsonl`` has one row per epoch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lipcert.models.build import build
from lipcert.models.spec import ModelSpec


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (RuntimeError, SafetensorError) as error:  # how torch and safetensors report a full disk
        temporary.unlink(missing_ok=True)
        raise OSError(
            f"{path} could not be written ({_first_line(error)}); what was there is unchanged. Free some space."
        ) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def save_weights(folder: Path, weights: dict[str, Tensor], spec: ModelSpec) -> None:
    """``model.safetensors``, with the architecture in its header."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    # One entry only: safetensors writes several in no fixed order, and equal runs must give equal files.
    header = {"lipcert": json.dumps({"format": 1, "spec": spec.model_dump()})}
    write_atomically(folder / "model.safetensors", lambda path: save_file(tensors, path, metadata=header))


def save_state(folder: Path, state: dict[str, Any]) -> None:
    write_atomically(folder / "state.pt", lambda path: torch.save(state, path))


def load_state(folder: Path) -> dict[str, Any]:
    """The last complete training state of a run folder."""
    path = folder / "state.pt"
    if not path.is_file():
        raise ValueError(f"{folder} must hold state.pt to resume from; got none. Start the run without --resume.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        raise ValueError(
            f"{path} must be a training state of lipcert; got {_first_line(error)}. Delete it."
        ) from None
    if not isinstance(state, dict) or state.get("format") != "lipcert-state-1":
        raise ValueError(f"{path} must be a training state of lipcert; got another format. Delete it.")
    return state


def load_spec(path: str | Path) -> ModelSpec:
    """The architecture of a run folder or of a ``model.safetensors``."""
    file = _weights_file(Path(path))
    try:
        with safe_open(file, framework="pt") as archive:
            header = json.loads((archive.metadata() or {}).get("lipcert", "{}"))
        if header.get("format") != 1:
            raise ValueError(f"{file} must be a model of lipcert; got a file without its header. Train one.")
        return ModelSpec(**header["spec"])
    except (SafetensorError, OSError, RuntimeError, KeyError) as error:
        raise _damaged(file, error) from None


def load_model(path: str | Path) -> nn.Sequential:
    """The network of a run folder or of a ``model.safetensors``, in evaluation mode."""
    file, spec = _weights_file(Path(path)), load_spec(path)
    try:
        with torch.device("meta"):  # shapes alone: a file that lies about its size allocates nothing
            model = build(spec.model_copy(update={"init": "xavier"}))
        model.load_state_dict(load_file(file), assign=True)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _damaged(file, error) from None
    return model.eval()


def weights_sha256(folder: Path) -> str:
    """Of the file: what audit.json and attack.json say that they are about."""
    with _weights_file(folder).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _weights_file(path: Path) -> Path:
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"expected a run folder or a model.safetensors; got {path}. Train one: lipcert train.")
    return file


def _damaged(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} must be an undamaged model of lipcert; got {_first_line(error)}. Train again.")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def write_metrics(folder: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "metrics.jsonl", lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
