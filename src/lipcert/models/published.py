"""Checkpoints of the paper's own code as networks of lipcert: the same function, from its own tensors.

The layout: ``module.model.model.N.`` before ``kernel|weight``, ``bias`` and ``q``; N counts the modules of one
``nn.Sequential``: zero channels, the convolutions, 4×4 pooling, flatten, the dense layers, the normalised last
layer (``weight|bias``, no ``q``). The mean shift is outside the tensors.

The exponential form only (after the erratum): q is the logarithm, as our ``log_q``. In the paper's convolution q
and 1/q stand on the same axis and cancel, so its T is that of AOL whatever q is; log_q = 0 gives just that T, and
so the function that was trained. Files written before the erratum have the same names and another T: a file
cannot tell, its user must know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipcert.models.spec import ModelSpec

MEANS = {  # of the paper's code, by (image size, classes)
    (32, 10): (0.4913, 0.4821, 0.4465),
    (32, 100): (0.5071, 0.4865, 0.4409),
    (64, 200): (0.485, 0.456, 0.406),
}
_NAME = re.compile(r"(?:module\.)?model\.model\.(\d+)\.(kernel|weight|bias|q)")
_POOL = 4


def read_published(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a checkpoint file; no pickle in it is executed."""
    path = Path(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"expected a checkpoint file; got {path}, which does not exist. Check the path.") from None
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(
            f"{path} must be a checkpoint of the paper's code that loads without executing code; got: {reason}. "
            "Save its model_state_dict again with torch.save."
        ) from None
    state = content.get("model_state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, Mapping) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()
    ):
        raise ValueError(
            f"{path} must hold a model_state_dict of named tensors; got {type(content).__name__}. "
            "Pass the model.ckpt-*.pth of a training."
        )
    return dict(state)


def from_published(
    state: Mapping[str, Tensor], mean: tuple[float, ...] | None = None
) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The spec of a checkpoint in the paper's layout, and its tensors under our names.

    Args:
        state: the named tensors, as ``read_published`` gives them.
        mean: subtracted from the images; None takes what the paper's code subtracts on the data set of that image
            size and number of classes. Training without a shift needs (0, 0, 0).
    """
    modules = _modules(state)
    first = modules[min(modules)]
    convolutions = [n for n, part in sorted(modules.items()) if "kernel" in part]
    dense = [n for n, part in sorted(modules.items()) if "weight" in part and "q" in part]
    last = max(modules)
    expected = list(range(1, len(convolutions) + 1))
    expected += range(len(convolutions) + 3, len(convolutions) + 3 + len(dense) + 1)
    if not convolutions or sorted(modules) != expected or set(modules[last]) != {"weight", "bias"}:
        raise _foreign(f"modules {sorted(modules)} with {len(convolutions)} kernels, {len(dense)} weights with q")
    shape = first["kernel"].shape
    features, classes = modules[last]["weight"].shape[-1], modules[last]["weight"].shape[0]
    if len(shape) != 4 or shape[2:] != (3, 3) or features % shape[1] or classes < 2:
        raise _foreign(f"kernel {tuple(shape)}, last weight {tuple(modules[last]['weight'].shape)}")
    size = _POOL * math.isqrt(features // shape[1])
    if (size // _POOL) ** 2 * shape[1] != features:
        raise _foreign(f"{features} features, not a square image of {shape[1]} channels")
    if mean is None and (size, classes) not in MEANS:
        raise ValueError(
            f"the mean of {size}×{size} images with {classes} classes is not known. "
            "Pass --mean with the values of the training, or --mean 0 0 0 for none."
        )
    spec = ModelSpec(
        method="sll",
        channels=shape[1],
        conv_layers=len(convolutions),
        conv_hidden=shape[0],
        pool=_POOL,
        dense_layers=len(dense),
        dense_hidden=modules[dense[0]]["weight"].shape[0] if dense else 1,
        num_classes=classes,
        image_shape=(3, size, size),
        mean=MEANS[size, classes] if mean is None else mean,
    )
    return spec, _renamed(spec, [modules[n] for n in sorted(modules)])


def _modules(state: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    modules: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise _foreign(f"a tensor named {name[:60]!r}")
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"every tensor must be finite floating point; got {name} otherwise. Take another file."
            )
        modules.setdefault(int(found[1]), {})[found[2]] = tensor.detach()
    if not modules:
        raise _foreign("no tensors")
    return modules


def _renamed(spec: ModelSpec, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors under the names of ``build(spec)``, each compared with the shape that network has."""
    from lipcert.models.build import build

    with torch.device("meta"):
        network = build(spec)
    layers = [name for name, module in network.named_modules() if hasattr(module, "bound")]
    tensors: dict[str, Tensor] = {}
    for name, part in zip([*layers, "1"], parts, strict=True):
        tensors[f"{name}.weight"] = part.get("kernel", part.get("weight", torch.empty(0)))
        tensors[f"{name}.bias"] = part.get("bias", torch.empty(0)).flatten()
        if name != "1":
            q = part.get("q", torch.empty(0))
            tensors[f"{name}.bound.log_q"] = torch.zeros_like(q) if "kernel" in part else q
    wanted: dict[str, Any] = {k: tuple(v.shape) for k, v in network.state_dict().items() if k in tensors}
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != wanted.get(name):
            raise _foreign(f"{tuple(tensor.shape)} where {wanted.get(name)} was expected ({name})")
    rest = {k: v for k, v in build(spec).state_dict().items() if k not in tensors}  # the mean, a buffer
    return {**rest, **tensors}


def _foreign(what: str) -> ValueError:
    return ValueError(
        f"expected a checkpoint in the layout of the paper's code (module.model.model.N.kernel|weight|bias|q, 3×3 "
        f"kernels, a last layer without q); got {what}. Only its SLL networks can be imported."
    )
