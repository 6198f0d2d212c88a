"""``lipcert export RUN --to FORMAT``: the frozen network as a file, compared with the proof after it is written."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

NAMES = {
    "torch": "frozen.safetensors",
    "torch-export": "frozen.pt2",
    "onnx": "frozen.onnx",
    "safetensors": "certified.safetensors",
}
TAKEN = ("model.safetensors", "certificate.safetensors", "certificate.inputs.safetensors")


@dataclass(frozen=True)
class Export:
    """Write the frozen network, read it back, prove it again. Exit 1 if it changed."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder, or its model.safetensors."""
    to: Annotated[Literal["torch", "torch-export", "onnx", "safetensors"], tyro.conf.arg(metavar="FORMAT")]
    """torch or safetensors for lipcert.load_frozen (the second with the certificate), torch-export, or onnx."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The file to write; by default frozen.pt2, frozen.onnx, frozen.safetensors or certified.safetensors in RUN."""
    json: bool = False
    """Print the findings as JSON instead of lines."""

    def run(self) -> int:
        import math

        from lipcert.certified.freeze import freeze
        from lipcert.cli.common import emit
        from lipcert.exporters.export import ExportChanged, export
        from lipcert.exporters.files import Certificate
        from lipcert.training.checkpoint import load_model, load_spec

        folder = self.run_folder if self.run_folder.is_dir() else self.run_folder.parent
        out = folder / NAMES[self.to] if self.out is None else self.out
        if out.name in TAKEN:
            raise ValueError(f"{out.name} is the name of a file of a run; choose another --out.")
        model = load_model(self.run_folder)
        certificate = Certificate.of_folder(folder)
        if certificate is None and self.to == "safetensors":
            raise ValueError(f"--to safetensors needs a certificate; run lipcert certify {folder} first.")
        try:
            report = export(
                freeze(model),
                out,
                to=self.to,
                input_shape=load_spec(self.run_folder).image_shape,
                certificate=certificate,
            )
        except ExportChanged as change:
            print(f"lipcert: {change}", file=sys.stderr)
            return 1
        record = {
            "path": str(report.path),
            "to": report.to,
            "tensors": report.tensors,
            "certificate": report.certificate is not None,
            "lipschitz": report.lipschitz,
            "difference": report.difference,
            "allowed": report.allowed if math.isfinite(report.allowed) else None,
        }
        emit(record, self.json, str(report))
        return 0
