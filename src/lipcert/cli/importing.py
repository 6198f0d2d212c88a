"""``lipcert import``: a checkpoint of the paper's own code becomes a run folder of lipcert."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Import:
    """Make a run folder of a checkpoint of the paper's code (SLL, exponential form)."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A model.ckpt-*.pth; no code in it is executed."""
    out: Path
    """The new run folder."""
    mean: tuple[float, float, float] | None = None
    """Subtracted from the images; by default what the paper's code subtracts for that image size and classes."""
    data: str | None = None
    """The data set it was trained on, noted in the folder."""
    json: bool = False
    """Print the architecture as JSON instead of lines."""

    def run(self) -> int:
        from importlib.metadata import version

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
        if self.json:
            import json

            print(
                json.dumps(
                    {"spec": spec.model_dump(mode="json"), "parameters": count, "run": str(self.out)}, indent=2
                )
            )
            return 0
        print(
            f"{spec.conv_layers} convolutions of {spec.channels} channels, {spec.dense_layers} dense layers, "
            f"{spec.num_classes} classes, {count / 1e6:.1f} M parameters; mean {spec.mean}\n"
            "q of the convolutions cancels in the paper's code and was set to 1: the same function.\n"
            f"{self.out}"
        )
        return 0
