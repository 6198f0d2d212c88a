"""``lipcert audit RUN``: what is proved of a network, layer by layer, with a lower bound beside every upper one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


@dataclass(frozen=True)
class Audit:
    """Prove the constant of every layer, or say which has none. Exit 1 if refuted."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder, its model.safetensors, what lipcert export wrote to torch or safetensors, or any ONNX file."""
    method: Literal["lipschitz", "lipsdp", "eclipse-fast"] = "lipschitz"
    """By the product of the layers' constants, or with dense layers that follow each other proved together."""
    steps: int | None = None
    """Steps of the optimizer (lipsdp). None means 200."""
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
    """Print audit.json instead of the table."""

    def run(self) -> int:
        if self.run_folder.suffix == ".pt2":
            raise ValueError(
                f"audit does not read .pt2 files, got {self.run_folder}; pass the run folder, an ONNX file or a "
                "file of lipcert export --to torch."
            )
        if self.steps is not None and self.method != "lipsdp":
            raise ValueError("--steps is a setting of lipsdp. Add --method lipsdp, or leave it out.")
        from lipcert.certified.freeze import freeze
        from lipcert.certifiers.methods import audit
        from lipcert.cli.common import emit
        from lipcert.exporters.files import exported_shape, load_frozen
        from lipcert.exporters.onnx_graphs import read_graph
        from lipcert.runs import open_run
        from lipcert.training.checkpoint import load_model, load_spec

        path = self.run_folder
        record: Any = None
        chosen: dict[str, Any] = {"method": self.method} | ({} if self.steps is None else {"steps": self.steps})
        if path.is_dir() or self.network is not None:
            run = open_run(path, self.network, self.data, self.data_root, self.label)
            report = run.audit(**chosen)
            record = run.by(self.method).audited
        elif path.suffix == ".onnx":
            report = audit(*read_graph(path), **chosen)
        elif (shape := exported_shape(path)) is not None:
            report = audit(load_frozen(path), shape, **chosen)
        else:
            report = audit(freeze(load_model(path)), load_spec(path).image_shape, **chosen)
        emit(record or report.to_json(), self.json, str(report))
        return 0 if report.ok else 1
