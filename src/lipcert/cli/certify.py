"""``lipcert certify RUN``: radii that hold in float64, and a certificate that anyone can check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lipcert.records import RADII

if TYPE_CHECKING:
    from lipcert.certifiers.smoothing import Smoothing
    from lipcert.records import RunFolder


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
    batch_size: int | None = None
    """Number of images at a time, or of noisy copies (smoothing). None means 64, or 250."""
    method: Literal["lipschitz", "smoothing"] = "lipschitz"
    """Margin over a proved constant, or randomized smoothing: radii that hold with a probability."""
    sigma: float | None = None
    """Standard deviation of the noise, with pixels from 0 to 1 (smoothing, which needs it)."""
    n0: int | None = None
    """Noisy copies of an image that choose its class (smoothing). None means 100."""
    n: Annotated[int | None, tyro.conf.arg(aliases=("--samples",))] = None
    """Noisy copies that prove its radius (smoothing). None means 10000. torchrun needs the long name."""
    alpha: float | None = None
    """Probability that the radius of an image is wrong (smoothing). None means 0.001."""
    seed: int | None = None
    """Random seed (smoothing). None means 0."""
    levels: int | None = None
    """Steps of the grid of inputs per unit (smoothing). None means 255, as in images of bytes."""
    early_stop: float | None = None
    """Stop sampling when this radius is proved or out of reach (smoothing)."""
    jobs: int = 1
    """Number of processes, with one thread each (smoothing)."""
    cluster: str | None = None
    """Address of a Dask scheduler whose workers run the processes instead (smoothing)."""
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

        radii, smoothing, run = parse_radii(self.eps), self.smoothing(), Run(self.run_folder)
        with progress("certifying" if smoothing is None else "smoothing") as show:
            done = run.certify(
                data=self.data,
                data_root=self.data_root,
                examples=self.examples,
                batch_size=self.batch_size or 64,
                smoothing=smoothing,
                jobs=self.jobs,
                cluster=self.cluster,
                restart=self.restart,
                out=self.out,
                show=show,
            )
        if not first_process():
            return 0
        if smoothing is not None:
            return self.show_smoothed(done, radii)
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

    def smoothing(self) -> Smoothing | None:
        """The settings of smoothing, or None for the other method."""
        names = ("sigma", "n0", "n", "alpha", "seed", "levels", "early_stop")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"--batch-size must be at least 1, got {self.batch_size}.")
        if self.method != "smoothing":
            if given:
                flag = next(iter(given)).replace("_", "-")
                raise ValueError(f"--{flag} is a setting of smoothing. Add --method smoothing, or leave it out.")
            return None
        if "sigma" not in given:
            raise ValueError("--method smoothing needs --sigma, the noise that the network was trained with.")
        from lipcert.certifiers.smoothing import Smoothing

        size = {} if self.batch_size is None else {"batch_size": self.batch_size}
        return Smoothing(**given, **size)

    def show_smoothed(self, done: RunFolder, radii: dict[str, float]) -> int:
        """Print what smoothing found, with what it means."""
        import textwrap

        from lipcert.cli.common import emit, radii_table

        about, rows = done.smoothed, done.smoothed_examples
        assert about is not None
        assert rows is not None
        count = len(rows)
        right = sum(row.prediction == row.label for row in rows) / count
        abstained = sum(row.prediction < 0 for row in rows) / count
        certified = {name: sum(row.radius > radius for row in rows) / count for name, radius in radii.items()}
        record = about.model_dump(mode="json") | {"right": right, "abstained": abstained, "certified": certified}
        table = radii_table(
            {"smoothed": {"right": right, "abstained": abstained, **certified}},
            f"{about.data} {about.split}: accuracy of the smoothed classifier within an L2 radius (%)",
        )
        notes = [
            f"{about.examples:,} images, sigma {about.sigma}, {about.samples:,} samples, alpha {about.alpha}.",
            "\n".join(textwrap.wrap(about.guarantee, 78)),
        ]
        emit(record, self.json, table, *notes)
        return 0
