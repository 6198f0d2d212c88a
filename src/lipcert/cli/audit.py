"""``lipcert audit RUN``: what is proved of a network, layer by layer, with a lower bound beside every upper one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Audit:
    """Prove the constant of every layer, or say which has none. Exit 1 if refuted."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder, its model.safetensors, or what lipcert export wrote to torch or safetensors."""
    json: bool = False
    """Print audit.json instead of the table."""

    def run(self) -> int:
        if self.run_folder.suffix in (".onnx", ".pt2"):
            raise ValueError(
                f"audit does not read {self.run_folder.suffix} files, got {self.run_folder}; pass the run folder "
                "or a file of lipcert export --to torch."
            )
        from lipcert.certified.audit import audit
        from lipcert.certified.freeze import freeze
        from lipcert.cli.common import emit
        from lipcert.exporters.files import exported_shape, load_frozen
        from lipcert.training.checkpoint import load_model, load_spec, weights_sha256, write_json

        shape = exported_shape(self.run_folder) if self.run_folder.is_file() else None
        if shape is not None:
            report = audit(load_frozen(self.run_folder), shape)
        else:
            report = audit(freeze(load_model(self.run_folder)), load_spec(self.run_folder).image_shape)
        record = report.to_json()
        if self.run_folder.is_dir():
            record |= {"weights": weights_sha256(self.run_folder)}
            write_json(self.run_folder / "audit.json", record)
        emit(record, self.json, str(report))
        return 0 if report.ok else 1
