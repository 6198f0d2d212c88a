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
    radius: Literal["float64", "float32"] | None = None
    """Give an ONNX program in this arithmetic a second output: the certified radius of its answer, rounded down."""
    network: Annotated[str | None, tyro.conf.arg(metavar="MODULE:FUNCTION")] = None
    """The function of your own that builds the network of RUN. If RUN is new, it is made from that network, with
    the weights that it has; --data is needed then."""
    data: str | None = None
    """The test set of a new RUN, a name or a path."""
    data_root: Path | None = None
    """Folder of prepared data sets."""
    label: str | None = None
    """Column of a table that holds the classes, for a new RUN."""
    json: bool = False
    """Print the findings as JSON instead of lines."""

    def run(self) -> int:
        import math

        from lipcert.cli.common import emit
        from lipcert.exporters.export import ExportChanged
        from lipcert.runs import open_run

        try:
            run = open_run(self.run_folder, self.network, self.data, self.data_root, self.label)
            report = run.export(self.to, self.out, self.radius)
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
            "radius": report.radius,
            "kept": report.kept,
        }
        emit(record, self.json, str(report))
        return 0
