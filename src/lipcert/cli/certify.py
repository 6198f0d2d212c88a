"""``lipcert certify RUN``: freeze, prove, certify the test images, write the certificate and its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lipcert.certified.certify import CertificationResult
    from lipcert.certified.network import Proved
    from lipcert.data.dataset import ImageData


@dataclass(frozen=True)
class Certify:
    """Certify test images: radii that hold in float64, and a certificate to check."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder of lipcert train or lipcert import."""
    data: str | None = None
    """A data set or path; by default the one the run was trained on."""
    data_root: Path | None = None
    """Where prepared data live."""
    examples: int | None = None
    """Only the first so many test images."""
    eps: tuple[str, ...] = ("36/255", "72/255", "108/255", "0.5", "1")
    """Radii of the table, as numbers or fractions."""
    batch_size: int = 64
    """Images at a time; changes nothing but memory and speed."""
    json: bool = False
    """Print the shares as JSON instead of the table."""

    def run(self) -> int:
        import json

        from lipcert.certified.certificate import as_inputs, write_certificate
        from lipcert.certified.freeze import freeze, prove
        from lipcert.errors import positive_int
        from lipcert.training.checkpoint import load_model, write_atomically

        radii = {text: fraction(text) for text in self.eps}
        if not radii:
            raise ValueError("--eps must be at least one radius; got none. Pass e.g. 36/255.")
        if not self.run_folder.is_dir():
            raise ValueError(f"RUN must be a run folder; got {self.run_folder}. Train one: lipcert train.")
        positive_int("batch_size", self.batch_size)
        if self.examples is not None:
            positive_int("examples", self.examples)
        images = test_images(self.run_folder, self.data, self.data_root)
        if self.examples is not None:
            images = images.take(slice(0, self.examples), split="test")
        frozen = freeze(load_model(self.run_folder))
        links = prove(frozen, tuple(images.images.shape[1:]))
        with progress_bar("certifying") as show:
            result = certify_shared(links, as_inputs(images.images), images.labels, self.batch_size, show)
        if result is None:  # the first process writes and speaks
            return 0
        about = f"{images.name} {images.split}"
        write_certificate(self.run_folder, links, frozen, images.images, result, about=about)
        rows = "".join(json.dumps(row) + "\n" for row in result.rows())
        write_atomically(self.run_folder / "certified.jsonl", lambda path: path.write_text(rows, encoding="utf-8"))
        if self.json:
            print(json.dumps(shares_of(result, radii, about), indent=2))
        else:
            print_result(result, radii, self.run_folder, about)
        return 0


def certify_shared(
    links: Proved, inputs: Tensor, labels: Tensor, batch_size: int, show: Callable[[int, int], object]
) -> CertificationResult | None:
    """``certify``, divided among the processes of torchrun; None in all but the first."""
    import os
    from dataclasses import replace

    import torch
    import torch.distributed as dist

    from lipcert.certified.certify import certify

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return certify(links, inputs, labels, batch_size=batch_size, show=show)
    dist.init_process_group("gloo")
    part = certify(links, inputs[rank::world], labels[rank::world], batch_size=batch_size, show=show)
    parts: list[CertificationResult] = [part] * world
    dist.all_gather_object(parts, part)
    dist.destroy_process_group()
    if rank:
        return None
    whole: dict[str, Tensor] = {}
    for name in ("radii", "correct", "predictions", "labels", "errors"):
        pieces = [getattr(one, name) for one in parts]
        whole[name] = torch.empty(len(labels), dtype=pieces[0].dtype)
        for index, piece in enumerate(pieces):
            whole[name][index::world] = piece
    return replace(part, **whole)  # type: ignore[arg-type]


def fraction(text: str) -> float:
    """36/255 or 0.5 as a number."""
    from fractions import Fraction

    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"--eps must be numbers or fractions such as 36/255; got {text!r}. Correct it.") from None
    if not value >= 0:
        raise ValueError(f"--eps must be at least 0; got {text!r}. Correct it.")
    return value


def test_images(run: Path, data: str | None, root: Path | None) -> ImageData:
    """The test images a run is about: those of its config, unless others are named."""
    import json

    from lipcert.data.registry import load_data
    from lipcert.training.checkpoint import load_spec

    if data is None:
        for name in ("config.json", "imported.json"):
            if (run / name).is_file():
                stored = json.loads((run / name).read_text(encoding="utf-8"))
                data = stored.get("data")
                root = root if root is not None else stored.get("data_root")
                break
    if data is None:
        raise ValueError(f"the data set must be known; got a run in {run} that does not say. Pass --data NAME.")
    images, wanted = load_data(data, "test", root=root), tuple(load_spec(run).image_shape)
    if images.image_shape != wanted:
        expected, came = ("×".join(map(str, shape)) for shape in (wanted, images.image_shape))
        raise ValueError(
            f"the images must be {expected} for {run}; got {came} in {data}. Pass --data of that size."
        )
    return images


def progress_bar(title: str):  # type: ignore[no-untyped-def]
    """A context that gives ``show(done, total)``; on stderr, gone when finished."""
    import os
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    @contextmanager
    def bar():  # type: ignore[no-untyped-def]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        first = os.environ.get("RANK", "0") == "0"
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not first) as progress:
            task = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    return bar()


def shares_of(result: CertificationResult, radii: dict[str, float], about: str) -> dict[str, Any]:
    """What the table says, for programs."""
    return {
        "data": about,
        "examples": len(result.radii),
        "natural": result.natural_accuracy,
        "certified": {name: result.certified_accuracy(value) for name, value in radii.items()},
        "lipschitz": result.lipschitz,
        "arithmetic": result.arithmetic,
        "assumed": list(result.assumed),
        "assumes": list(result.assumes),
    }


def print_result(result: CertificationResult, radii: dict[str, float], out: Path, about: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{about}: accuracy, natural and certified (%)")
    for column in ("natural", *radii):
        table.add_column(column, justify="right")
    shares = [result.natural_accuracy, *(result.certified_accuracy(value) for value in radii.values())]
    table.add_row(*(f"{100 * share:.1f}" for share in shares))
    console = Console()
    console.print(table)
    assumed = "".join(
        f"Rounding rests on one assumption: {text} (the platform's function).\n" for text in result.assumes
    )
    worst = 0.0 if result.errors is None or not len(result.errors) else float(result.errors.max())
    console.print(
        f"{len(result.radii):,} images; proved for the stored numbers, in real and in float64 arithmetic.\n"
        f"L of the backbone ≤ {result.lipschitz:.9f}; rounding took at most {worst:.1e} of a margin.\n"
        f"{assumed}"
        f"Check it: lipcert check {out / 'certificate.json'}",
        highlight=False,
        soft_wrap=True,
    )
