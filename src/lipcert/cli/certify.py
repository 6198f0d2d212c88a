"""``lipcert certify RUN``: radii that hold in float64, and a certificate that anyone can check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lipcert.records import RADII


@dataclass(frozen=True)
class Certify:
    """Certify test images: radii that hold in float64, and a certificate to check."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder of lipcert train or lipcert import."""
    data: str | None = None
    """Name of a data set, or a path. None means the one that the run was trained on."""
    data_root: Path | None = None
    """Folder of prepared data sets."""
    examples: int | None = None
    """Number of test images, from the first on. None means all of them."""
    eps: tuple[str, ...] = tuple(RADII)
    """Radii of the table, as numbers or fractions."""
    batch_size: int = 64
    """Number of images at a time; it changes memory and speed only."""
    restart: bool = False
    """Replace radii that were certified with other settings."""
    out: Path | None = None
    """Write the results into another folder."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> int:
        from lipcert.cli.common import emit, progress, radii_table
        from lipcert.records import parse_radii
        from lipcert.runs import Run, first_process

        radii, run = parse_radii(self.eps), Run(self.run_folder)
        with progress("certifying") as show:
            done = run.certify(
                data=self.data,
                data_root=self.data_root,
                examples=self.examples,
                batch_size=self.batch_size,
                restart=self.restart,
                out=self.out,
                show=show,
            )
        if not first_process():
            return 0
        about = done.certified_about
        assert about is not None
        assert done.natural is not None
        certified = {name: done.certified(radius) or 0.0 for name, radius in radii.items()}
        record = {
            "data": f"{about.data} {about.split}",
            "examples": about.examples,
            "natural": done.natural,
            "certified": certified,
            "lipschitz": about.lipschitz,
            "assumes": list(about.assumes),
            "unfinished": run.unfinished,
        }
        notes = [
            f"{about.examples:,} images. The radii hold for the stored numbers,\nin real and float64 arithmetic.",
            f"L of the backbone ≤ {about.lipschitz:.9f}; rounding took at most {about.rounding:.1e}\nof a margin.",
            *(f"The rounding bounds assume one thing of the platform: {text}." for text in about.assumes),
            *([f"Note: {run.unfinished}."] if run.unfinished else []),
            f"Check it: lipcert check {done.certificate_file}",
        ]
        table = radii_table(
            {"certified": {"natural": done.natural, **certified}},
            f"{about.data} {about.split}: accuracy within an L2 radius (%)",
        )
        emit(record, self.json, table, *notes)
        return 0
