"""``lipcert import``: a checkpoint of the paper's own code becomes a run folder of lipcert."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Import:
    """Make a run folder from a checkpoint of the paper's code (SLL, exponential form)."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A file model.ckpt-*.pth; no code in it is executed."""
    out: Path
    """The new run folder."""
    mean: tuple[float, float, float] | None = None
    """Mean of the images; by default the one that the paper's code subtracts for this image size and classes."""
    data: str | None = None
    """The data set that the network was trained on, noted in the folder."""
    json: bool = False
    """Print the architecture as JSON instead of lines."""

    def run(self) -> int:
        from importlib.metadata import version

        from lipcert.cli.common import emit
        from lipcert.files import sha256_file
        from lipcert.models.published import from_published, read_published
        from lipcert.records import Imported
        from lipcert.runs import Run, require_new
        from lipcert.training.checkpoint import save_weights

        require_new(self.out)
        state = read_published(self.file)
        spec, weights = from_published(state, self.mean)
        self.out.mkdir(parents=True, exist_ok=True)
        run = Run(self.out)
        source = Imported(file=self.file.name, sha256=sha256_file(self.file), data=self.data)
        save_weights(run.model_file, weights, spec)
        run.write_record(lipcert=version("lipcert"), imported=source)
        count = sum(tensor.numel() for tensor in state.values())
        record = {"spec": spec.model_dump(mode="json"), "parameters": count, "run": str(self.out)}
        emit(
            record,
            self.json,
            f"{spec.conv_layers} convolutions of {spec.channels} channels, {spec.dense_layers} dense layers, "
            f"{spec.num_classes} classes, {count / 1e6:.1f} M parameters; mean {spec.mean}",
            "q of the convolutions cancels in the paper's code and was set to 1: the same function.",
            str(self.out),
        )
        return 0
