"""``lipcert certify RUN``: radii that hold in float64, and a certificate that anyone can check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lipcert.records import CHECKED, RADII

if TYPE_CHECKING:
    from lipcert.records import CertifiedRecord, RunFolder

FLAGS = ("gram", "radii", "steps", "tries", "sigma", "n0", "n", "alpha", "seed", "levels", "early_stop")


@dataclass(frozen=True)
class Certify:
    """Certify test images: radii that hold in float64, and a certificate to check."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder of lipcert train or lipcert import."""
    network: Annotated[str | None, tyro.conf.arg(metavar="MODULE:FUNCTION")] = None
    """The function of your own that builds the network of RUN. If RUN is new, it is made from that network, with
    the weights that it has; --data is needed then."""
    data: str | None = None
    """Name of a data set, or a path. None means the one that the run was trained on."""
    data_root: Path | None = None
    """Folder of prepared data sets."""
    label: str | None = None
    """Column of a table that holds the classes, for a new RUN."""
    examples: int | None = None
    """Number of test images, from the first on. None means all of them."""
    eps: tuple[str, ...] = tuple(RADII)
    """Radii of the table, as numbers or fractions, and of the balls (local)."""
    batch_size: int | None = None
    """Number of images at a time, or of noisy copies (smoothing). None means 64, 16 (local, sdp-crown) or 250."""
    method: Literal["lipschitz", "local", "lipsdp", "eclipse-fast", "sdp-crown", "smoothing"] = "lipschitz"
    """How radii are found: by a constant of the network (lipschitz; smaller ones for dense layers: lipsdp,
    eclipse-fast), by bounds in a ball around each image (local, sdp-crown), or by randomized smoothing, whose radii
    hold with a probability."""
    gram: bool = False
    """Bound masked dense layers more tightly and more slowly (local)."""
    radii: tuple[str, ...] | None = None
    """Radii to try for each image (sdp-crown). None means a bisection."""
    steps: int | None = None
    """Steps of the optimizer (lipsdp, sdp-crown). None means 200, or 60."""
    tries: int | None = None
    """Steps of the bisection (sdp-crown). None means 5."""
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
    """Number of processes, with one thread each (local, sdp-crown, smoothing)."""
    cluster: str | None = None
    """Address of a Dask scheduler whose workers run the processes instead (local, sdp-crown, smoothing)."""
    restart: bool = False
    """Replace radii that were certified with other settings."""
    out: Path | None = None
    """Write the results into another folder."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> int:
        from lipcert.cli.common import emit, progress, radii_table
        from lipcert.records import parse_radii
        from lipcert.runs import first_process, open_run

        radii, settings = parse_radii(self.eps), self.settings()
        run = open_run(self.run_folder, self.network, self.data, self.data_root, self.label)
        with progress("certifying" if self.method != "smoothing" else "smoothing") as show:
            done = run.certify(
                self.method,
                data=self.data,
                data_root=self.data_root,
                examples=self.examples,
                batch_size=self.batch_size,
                jobs=self.jobs,
                cluster=self.cluster,
                restart=self.restart,
                out=self.out,
                show=show,
                **settings,
            )
        if not first_process():
            return 0
        about, natural = done.about, done.natural
        assert about is not None
        assert natural is not None
        certified = {name: done.certified(radius) or 0.0 for name, radius in radii.items()}
        where, notes = f"{about.data} {about.split}", self.notes(done, run.unfinished)
        if done.smoothed_about is not None:
            rows = done.examples or ()
            shares = {"right": natural, "abstained": sum(row.prediction < 0 for row in rows) / len(rows)}
            record = done.smoothed_about.model_dump(mode="json") | shares | {"certified": certified}
            title = f"{where}: accuracy of the smoothed classifier within an L2 radius (%)"
            table = radii_table({"smoothed": {**shares, **certified}}, title)
        else:
            record = self.record(done, where, natural, certified) | {"unfinished": run.unfinished}
            row = "certified" if self.method == "lipschitz" else f"certified, {self.method}"
            table = radii_table(
                {row: {"natural": natural, **certified}}, f"{where}: accuracy within an L2 radius (%)"
            )
        emit(record, self.json, table, *notes)
        return 0

    def settings(self) -> dict[str, Any]:
        """The settings of the method that were given; those of another one are refused."""
        from lipcert.certifiers.methods import SETTINGS
        from lipcert.records import parse_radii

        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"--batch-size must be at least 1, got {self.batch_size}.")
        given = {name: value for name in FLAGS if (value := getattr(self, name)) is not None and value is not False}
        for name in given:
            if name not in SETTINGS[self.method]:
                owners = [method for method, names in SETTINGS.items() if name in names]
                raise ValueError(
                    f"--{name.replace('_', '-')} is a setting of {' and '.join(owners)}. Add "
                    f"--method {owners[0]}, or leave it out."
                )
        if self.method == "smoothing" and "sigma" not in given:
            raise ValueError("--method smoothing needs --sigma, the noise that the network was trained with.")
        if "radii" in given:
            if "tries" in given:
                raise ValueError("--tries is for a bisection, and --radii leaves it out. Give one of them.")
            given["radii"] = list(parse_radii(given["radii"], "--radii").values())
        return given | ({"eps": list(parse_radii(self.eps).values())} if self.method == "local" else {})

    def record(self, done: RunFolder, where: str, natural: float, certified: dict[str, float]) -> dict[str, Any]:
        """What ``--json`` prints of deterministic radii."""
        about = done.certified_about
        assert about is not None
        record: dict[str, Any] = {
            "data": where,
            "examples": about.examples,
            "natural": natural,
            "certified": certified,
        }
        record |= {"lipschitz": about.lipschitz, "assumes": list(about.assumes)}
        if self.method != "lipschitz":
            record |= about.model_dump(mode="json", include={"method", "settings", "certificate", "cpu_seconds"})
        return record

    def notes(self, done: RunFolder, unfinished: str | None) -> list[str]:
        """What to know beside the table."""
        import textwrap

        from lipcert.records import UNCHECKED

        count = f"{len(done.examples or ()):,} images"
        if (about := done.smoothed_about) is not None:
            return [
                f"{count}, sigma {about.sigma}, {about.samples:,} samples, alpha {about.alpha}.",
                "\n".join(textwrap.wrap(about.guarantee, 78)),
            ]
        proved = done.certified_about
        assert proved is not None
        bound, checked = f"L of the backbone ≤ {proved.lipschitz:.9f}", f"lipcert check {done.certificate_file}"
        return [
            f"{count}. The radii hold for the stored numbers,\nin real and float64 arithmetic.",
            f"{bound}; rounding took at most {proved.rounding:.1e}\nof a margin.",
            *([f"{self.method}: {described(proved)}."] if self.method != "lipschitz" else []),
            *(f"The rounding bounds assume one thing of the platform: {text}." for text in proved.assumes),
            *([f"Note: {unfinished}."] if unfinished else []),
            f"Check it: {checked}" if self.method in CHECKED else "\n".join(textwrap.wrap(UNCHECKED, 78)),
        ]


def described(about: CertifiedRecord) -> str:
    """The settings of a method and its cost, in words."""
    words = [f"{name} {shown(value)}" for name, value in about.settings.items() if value not in (None, False)]
    return ", ".join([*words, f"{about.cpu_seconds or 0:.3g} CPU seconds"])


def shown(value: Any) -> str:
    return " ".join(f"{number:.4g}" for number in value) if isinstance(value, list) else str(value)
