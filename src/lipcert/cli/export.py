"""``lipcert export RUN --to FORMAT``: the frozen network as a file, compared with the proof after it is written."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Export:
    """Write the frozen network, read it back, prove it again. Exit 1 if it changed."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder."""
    to: Annotated[Literal["torch", "torch-export", "onnx", "safetensors"], tyro.conf.arg(metavar="FORMAT")]
    """torch or safetensors for lipcert.load (the second with the certificate inside), torch-export, or onnx."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File to write; by default network.pt2, network.onnx, network.safetensors or certified.safetensors in RUN."""
    json: bool = False
    """Print the findings as JSON instead of lines."""

    def run(self) -> int:
        import math

        from lipcert.cli.common import emit
        from lipcert.exporters.export import ExportChanged
        from lipcert.runs import Run

        try:
            report = Run(self.run_folder).export(self.to, self.out)
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
