"""``certificate.json`` and the two tensor files beside it: everything a checker needs, and nothing it must trust.

The format is docs/certificate.md; ``lipcert/check.py`` reads it without any code of this library. Files are written
under temporary names and renamed, the JSON last: a certificate that is there has its tensors.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lipcert.certified.certify import CertificationResult
from lipcert.certified.network import Proved
from lipcert.certified.norms import NORMS
from lipcert.certified.operators import Conv
from lipcert.certified.records import describe, rebuild
from lipcert.errors import NotCertified
from lipcert.files import atomic_file, content, write_rows, write_text

FORMAT = "lipcert-certificate-2"
NAME = "certificate"  # of NAME.json and the files beside it
PROBES = 4
CHECKED = ("lipschitz", "lipsdp", "eclipse-fast")  # methods whose radii the checker can verify


def save_result(result: CertificationResult, folder: Path, about: str) -> Path:
    """``CertificationResult.save``."""
    if folder.exists() and (not folder.is_dir() or content(folder)):
        raise ValueError(f"{folder} is not empty. Choose a new or empty folder.")
    _require_checkable(result)
    if result.proved is None or result.inputs is None:
        raise ValueError("this result does not hold the network and the images that it is about. Certify again.")
    images = result.inputs.detach()
    if images.dtype != torch.float32:
        raise ValueError(
            f"a certificate is about float32 images; these are {images.dtype}. Certify images.float()."
        )
    records = describe(result.proved)
    wide = [
        name for name, t in records.tensors.items() if t.dtype != torch.float32 and not name.endswith("witness")
    ]
    if wide:
        raise NotCertified(
            f"a certificate is about float32 tensors, but {wide[0]} is not. Certify lc.freeze(model)."
        )
    network = rebuild(records)
    write_certificate(folder, result.proved, network, images, result, about=about)
    write_rows(folder / "certified.jsonl", result.rows())
    return folder


def write_certificate(
    folder: Path,
    proved: Proved,
    network: nn.Module,
    images: Tensor,
    result: CertificationResult,
    *,
    about: str = "",
    stored: str | None = None,
    name: str = NAME,
    half: bool = False,
) -> Path:
    """Write the certificate of a frozen ``network`` into ``folder``; ``images`` are uint8, or float32 as they are.

    ``stored`` names a file in the folder that holds exactly these tensors already; by default they are written.
    ``name`` is what its files are called. ``half`` stores tensors as float16 where that changes no number.

    Raises:
        NotCertified: for an operation that the format does not have, or constants that are a user's word.
    """
    _require_checkable(result)
    if images.dtype not in (torch.uint8, torch.float32) or len(images) != len(result.radii):
        raise ValueError(
            f"expected the {len(result.radii)} certified images in uint8 or float32; got {images.dtype} "
            f"{tuple(images.shape)}. Pass data.images."
        )
    records = describe(proved)
    tensors = {name: halved(tensor) for name, tensor in records.tensors.items()} if half else records.tensors
    _require_format(proved)
    probes, answered = _probe(network, images)
    images = images.contiguous().cpu()
    claim = {
        "format": FORMAT,
        "norm": NORMS[proved.norm],
        "arithmetic": "float64",
        "assumes": list(proved.assumes),
        "input_shape": list(proved.input_shape),
        "weights": stored or f"{name}.safetensors",
        "tensors": {name: sha256_of(tensor) for name, tensor in tensors.items()},
        "nodes": records.nodes,
        "lipschitz": proved.backbone.hex(),
        "inputs": {
            "file": f"{name}.inputs.safetensors",
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
        **joint_multipliers(proved),
        "probe": {"indices": probes, "logits": [[float(v).hex() for v in row] for row in answered]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    if stored is None:
        with atomic_file(folder / f"{name}.safetensors") as path:
            save_file(tensors, path)
    with atomic_file(folder / f"{name}.inputs.safetensors") as path:
        save_file({"images": images}, path)
    target = folder / f"{name}.json"
    write_text(target, json.dumps(claim, indent=1, ensure_ascii=False) + "\n")
    return target


def _require_checkable(result: CertificationResult) -> None:
    """Raise ``NotCertified`` for radii that no checker can repeat."""
    if result.arithmetic != "float64":
        raise NotCertified(f"a certificate is about float64; got {result.arithmetic!r}. Certify without 'real'.")
    if result.method not in CHECKED:
        raise NotCertified(
            f"the checker cannot verify radii of the method {result.method!r}, so no certificate is written. "
            "Certify with method='lipschitz'."
        )


def joint_multipliers(proved: Proved) -> dict[str, list[list[list[str]]]]:
    """The multipliers of joint proofs, if there are any.

    Raises:
        NotCertified: if a certificate cannot have them.
    """
    if any(chain.pairs is None for chain in proved.chains):
        raise NotCertified(
            "a certificate can have joint constants of the last layers only, and here other layers are proved "
            "together, too. Certify with method='lipschitz'."
        )
    rows = [[[float(d).hex() for d in layer] for layer in chain.multipliers] for chain in proved.chains]
    return {"joint": rows} if rows else {}


def _require_format(proved: Proved) -> None:
    """Raise ``NotCertified`` for what docs/certificate.md leaves out: no checker would read it."""
    if len(proved.input_shape) > 4:
        raise NotCertified(
            f"certificates are for inputs of at most 4 axes, got {proved.input_shape}. Flatten them."
        )
    stated = [(f"{part.name} ({part.op})", part.proof.lipschitz) for part in proved.parts]
    for where, value in [*stated, ("the network before its last linear map", proved.backbone)]:
        if not _stateable(value):
            raise NotCertified(
                f"the constant of {where} is {value:.3g}, but a certificate can state 0 and numbers between 2^-100 "
                "and 2^100 only. Rescale the weights."
            )
    shapes = [*(part.proof.shape for part in proved.parts), proved.input_shape]
    for part in proved.parts:
        fields, operator = part.step.fields(), getattr(part.step, "operator", None)
        values = [v for value in fields.values() for v in (value if isinstance(value, tuple) else (value,))]
        if not all(_stateable(value) for value in values if isinstance(value, float)):
            raise NotCertified(
                f"{part.name} ({part.op}) has a number beyond 2^±100, which no certificate can state."
            )
        if isinstance(operator, Conv):
            image = shapes[part.inputs[0]][1:]
            fits = (
                all(size % s == 0 for size, s in zip(image, operator.stride, strict=True)) or not operator.circular
            )
            if not fits or max(fields["weight"].shape[2:]) > 257:
                raise NotCertified(
                    f"{part.name} ({part.op}) is outside the format of certificates: a circular image must be "
                    "divisible by the stride, and a kernel may have 257 taps along an axis."
                )


def _stateable(value: float) -> bool:
    """Whether the format has that number."""
    return value == 0 or 2.0**-100 <= abs(value) <= 2.0**100


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


def halved(tensor: Tensor) -> Tensor:
    """The same numbers as float16; the tensor itself if it is not float32, or if one would change."""
    if tensor.dtype != torch.float32 or not torch.equal(tensor.half().float(), tensor):
        return tensor
    return tensor.half()


def sha256_of(tensor: Tensor) -> str:
    """Of dtype|shape|bytes, so that neither can change without the hash."""
    array = tensor.detach().cpu().contiguous().numpy()
    head = f"{array.dtype.name}|{','.join(map(str, array.shape))}|".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()
