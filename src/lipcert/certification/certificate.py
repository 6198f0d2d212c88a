"""``certificate.json`` and the two tensor files beside it: everything a checker needs, and nothing it must trust.

The format is docs/certificate.md; ``lipcert/check.py`` reads it without any code of this library. Files are written
under temporary names and renamed, the JSON last: a certificate that is there has its tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lipcert.certification.certify import CertificationResult
from lipcert.errors import NotCertified
from lipcert.proofs.audit import Chain

FORMAT = "lipcert-certificate-1"
WEIGHTS, INPUTS = "certificate.safetensors", "certificate.inputs.safetensors"
PROBES = 4


def write_certificate(
    folder: Path,
    links: Chain,
    network: nn.Module,
    images: Tensor,
    result: CertificationResult,
    *,
    about: str = "",
) -> Path:
    """Write the certificate of a frozen ``network`` into ``folder``; ``images`` are uint8, or float32 as they are.

    Raises:
        NotCertified: for an operation that the format does not have, or constants that are a user's word.
    """
    if result.arithmetic != "float64":
        raise NotCertified(f"a certificate is about float64; got {result.arithmetic!r}. Certify without 'real'.")
    if len(links.input_shape) not in (1, 3):
        raise NotCertified(
            f"certificates are about vectors (features,) and images (C, H, W); got inputs of shape "
            f"{links.input_shape}. Flatten or reshape them before the network."
        )
    if images.dtype not in (torch.uint8, torch.float32) or len(images) != len(result.radii):
        raise ValueError(
            f"expected the {len(result.radii)} certified images in uint8 or float32; got {images.dtype} "
            f"{tuple(images.shape)}. Pass data.images."
        )
    tensors: dict[str, Tensor] = {}
    layers = [layer_record(name, part, tensors) for name, part in zip(links.names, links.parts, strict=True)]
    probes, answered = _probe(network, images)
    images = images.contiguous().cpu()
    content = {
        "format": FORMAT,
        "norm": "L2",
        "arithmetic": "float64",
        "assumes": list(links.assumes),
        "input_shape": list(links.input_shape),
        "weights": WEIGHTS,
        "tensors": {name: sha256_of(tensor) for name, tensor in tensors.items()},
        "layers": layers,
        "lipschitz": links.backbone.hex(),
        "inputs": {
            "file": INPUTS,
            "tensor": "images",
            "sha256": sha256_of(images),
            "divide_by": 255 if images.dtype == torch.uint8 else None,
            "count": len(images),
            "about": about,
        },
        "claims": [
            [index, int(result.labels[index]), float(result.radii[index]).hex()]
            for index in range(len(images))
            if float(result.radii[index]) > 0
        ],
        "probe": {"indices": probes, "logits": [[float(v).hex() for v in row] for row in answered]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    _atomically(folder / WEIGHTS, lambda path: save_file(tensors, path))
    _atomically(folder / INPUTS, lambda path: save_file({"images": images}, path))
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    target = folder / "certificate.json"
    _atomically(target, lambda path: path.write_text(text, encoding="utf-8"))
    return target


@torch.no_grad()
def _probe(network: nn.Module, images: Tensor) -> tuple[list[int], list[list[float]]]:
    """What the deployed network answers on the first few images, leaving out NaN and infinities."""
    inputs = as_inputs(images[: 4 * PROBES])
    if not len(inputs):
        return [], []
    answers = network(inputs).float()
    usable = torch.isfinite(inputs).flatten(1).all(dim=1) & torch.isfinite(answers).all(dim=1)
    chosen = usable.nonzero()[:PROBES, 0]
    return chosen.tolist(), answers[chosen].tolist()


def as_inputs(images: Tensor) -> Tensor:
    """What the claims are about: float32(byte)/255, or the float32 tensor itself."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def layer_record(name: str, part: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """One entry of ``layers``; its tensors are added to ``tensors`` under the names it uses."""
    if part.fields is None or part.assumed:
        raise NotCertified(
            f"the certificate format has no operation for {name} ({part.op}), so no checker could repeat its "
            "radii. Use the layers of docs/certificate.md."
        )
    fields: dict[str, Any] = {}
    for key, value in part.fields.items():
        if isinstance(value, Tensor):
            stored = f"{name or 'network'}.{key}"
            tensors[stored] = value.detach().cpu().contiguous().clone()
            value = stored
        fields[key] = value
    return {"op": part.op, "name": name, **fields, "lipschitz": float(part.lipschitz).hex()}


def sha256_of(tensor: Tensor) -> str:
    """Of dtype|shape|bytes, so that neither can change without the hash."""
    array = tensor.detach().cpu().contiguous().numpy()
    head = f"{array.dtype.name}|{','.join(map(str, array.shape))}|".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def _atomically(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
