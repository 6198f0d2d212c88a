"""``lipcert attack RUN``: AutoAttack or PGD on the frozen network, in shards that survive a kill."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from torch import nn

    from lipcert.attacks.evidence import Claims
    from lipcert.certified.network import Proved
    from lipcert.data.dataset import ImageData

QUIET_SECONDS = 30  # between two lines of progress in a log


@dataclass(frozen=True)
class Attack:
    """Attack the answers that are right and not certified. Repeat to continue.

    Exit 1 if a certified answer fell.
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder of lipcert train or lipcert import."""
    data: str | None = None
    """A data set or path; by default the one the run was trained on."""
    data_root: Path | None = None
    """Where prepared data live."""
    examples: int = 200
    """The first so many test images. AutoAttack needs thousands of evaluations for each."""
    eps: tuple[str, ...] = ("36/255", "72/255", "108/255", "0.5", "1")
    """L2 radii, as numbers or fractions."""
    method: Literal["autoattack", "pgd", "quick"] = "autoattack"
    """The standard four of AutoAttack; PGD with 5 restarts; or a first look: short APGD-CE, PGD and Square."""
    all: bool = False
    """Attack the certified answers too: none can fall."""
    seed: int = 0
    """Of everything random."""
    jobs: int = 1
    """Processes, of one thread each; changes nothing but the time."""
    cluster: str | None = None
    """Address of a Dask scheduler whose workers run the processes instead; they must share the run folder."""
    restart: bool = False
    """Drop what an interrupted attack has finished, and begin anew."""
    json: bool = False
    """Print attack.json instead of a table."""

    def run(self) -> int:
        import json

        from lipcert.attacks.evidence import contradictions, record_of
        from lipcert.attacks.shards import attack_in_shards
        from lipcert.certified.certificate import as_inputs
        from lipcert.jobs import Store, open_workers
        from lipcert.training.checkpoint import write_atomically, write_json

        radii, folder = self.checked(), self.run_folder
        network, images, claims, settings = prepare(self)
        inputs = as_inputs(images.images).numpy()
        alone = self.jobs == 1 and self.cluster is None
        with (
            open_workers(self.jobs, self.cluster, folder) as workers,
            Store(
                folder / "attack.parts",
                {**settings, "eps": list(radii)},
                what="an unfinished attack",
                write=write_json,
                restart=self.restart,
            ) as store,
            progress_with_eta() as show,
        ):
            rows, seconds = attack_in_shards(
                network,
                inputs,
                claims,
                radii,
                self.method,
                self.seed,
                store,
                None if alone else workers,
                write=write_json,
                everything=self.all,
                show=show,
            )
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        record = record_of(settings, rows, self.command(), seconds)
        write_atomically(folder / "attack.jsonl", lambda path: path.write_text(lines, encoding="utf-8"))
        write_json(folder / "attack.json", record)
        store.remove()
        if self.json:
            print(json.dumps(record, indent=2))
        else:
            print_record(record)
        wrong = contradictions(rows)
        for line in wrong:
            print(f"lipcert: {line}", file=sys.stderr)
        return 1 if wrong else 0

    def command(self) -> str:
        """What a user types for this attack, whoever started it."""
        import shlex
        from dataclasses import fields

        where = self.run_folder.name if self.run_folder.is_absolute() else str(self.run_folder)  # no machine's path
        words = ["lipcert", "attack", where]
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("run_folder", "jobs", "cluster", "restart", "json") or value == one.default:
                continue
            words.append(f"--{one.name.replace('_', '-')}")
            words += [] if value is True else [str(v) for v in (value if isinstance(value, tuple) else [value])]
        return shlex.join(words)

    def checked(self) -> dict[str, float]:
        """The radii by increasing size; ValueError for flags that make no sense."""
        from lipcert.cli.certify import fraction
        from lipcert.errors import positive_int

        radii = {text: fraction(text) for text in self.eps}
        if not radii or min(radii.values()) <= 0:
            raise ValueError(f"--eps must be above 0; got {' '.join(self.eps) or 'nothing'}. Pass e.g. 36/255.")
        positive_int("--examples", self.examples)
        positive_int("--jobs", self.jobs)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed must lie from 0 to 2^63 − 1; got {self.seed}. Pass a smaller number.")
        if not self.run_folder.is_dir():
            raise ValueError(f"RUN must be a run folder; got {self.run_folder}. Train one: lipcert train.")
        return dict(sorted(radii.items(), key=lambda item: item[1]))


def prepare(args: Attack) -> tuple[nn.Module, ImageData, Claims, dict[str, Any]]:
    """The frozen network, the images, what is certified of them, and all that decides the rows but the radii."""
    import hashlib
    from importlib.metadata import version

    import torch

    from lipcert.attacks.attack import attacks_of
    from lipcert.attacks.shards import SHARD
    from lipcert.certified.freeze import freeze, prove
    from lipcert.cli.certify import test_images
    from lipcert.training.checkpoint import load_model, weights_sha256

    torch.set_num_threads(1)  # sums in the same order, however many processes work
    network = freeze(load_model(args.run_folder))
    weights = weights_sha256(args.run_folder)
    test = test_images(args.run_folder, args.data, args.data_root)
    links = prove(network, test.image_shape)
    images = test.take(slice(0, args.examples), split=test.split)
    claims = claims_of(args.run_folder, links, network, test, images)
    settings = {
        "method": args.method,
        "attacks": list(attacks_of(args.method, max(2, links.shape[0]), images.image_shape)),
        "examples": len(images),
        "all": args.all,
        "seed": args.seed,
        "data": images.name,
        "weights": weights,
        "images": images.sha256.images,
        "claims": hashlib.sha256(repr(claims).encode()).hexdigest(),
        "shard": SHARD,
        "torch": torch.__version__,
        "pyautoattack": version("pyautoattack"),
    }
    return network, images, claims, settings


def claims_of(folder: Path, links: Proved, network: nn.Module, test: ImageData, images: ImageData) -> Claims:
    """certified.jsonl, if it is about this network and these images; else certified anew, without writing it."""
    from lipcert.attacks.evidence import Claims
    from lipcert.certified.certificate import as_inputs
    from lipcert.certified.certify import certify
    from lipcert.cli.certify import progress_bar

    stored, why = stored_claims(folder, links, network, test, images)
    if stored is not None:
        return stored
    print(f"lipcert: {why}; certifying {len(images)} images anew", file=sys.stderr)
    with progress_bar("certifying") as show:
        result = certify(links, as_inputs(images.images), images.labels, show=show)
    return Claims(result.labels.tolist(), result.predictions.tolist(), result.radii.tolist())


def stored_claims(
    folder: Path, links: Proved, network: nn.Module, test: ImageData, images: ImageData
) -> tuple[Claims | None, str]:
    """The claims of certified.jsonl, or None and why they are not about this network and these images.

    The file itself names no network: the certificate written with it does, by the hashes of its tensors and inputs.
    """
    import copy
    import json

    import torch

    from lipcert.attacks.evidence import Claims
    from lipcert.certified.certificate import as_inputs, sha256_of
    from lipcert.certified.records import describe
    from lipcert.exporters.files import Certificate

    try:
        certificate = Certificate.of_folder(folder)
        rows = [json.loads(line) for line in (folder / "certified.jsonl").read_text(encoding="utf-8").splitlines()]
        claims = Claims(*([row[key] for row in rows[: len(images)]] for key in ("label", "prediction", "radius")))
        named = [row["index"] for row in rows[: len(images)]]
        if not all(isinstance(value, int | float) for value in (*claims.predictions, *claims.radii)):
            raise TypeError
        if certificate is None:
            raise FileNotFoundError
        if certificate.differs_from(describe(links)) is not None:
            return None, "certificate.json is not about these weights"
    except (OSError, ValueError, TypeError, KeyError):
        return None, "there is no certificate.json with a certified.jsonl to read"
    count = certificate.content["inputs"]["count"]
    if certificate.content["inputs"].get("sha256") != sha256_of(test.images[:count]) or count < len(images):
        return None, "certificate.json is about other images"
    with torch.no_grad():
        network = copy.deepcopy(network).double()
        logits = torch.cat([network(batch) for batch in as_inputs(images.images).double().split(64)])
    predictions = logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
    said = (named, list(claims.labels), list(claims.predictions))
    if said != (list(range(len(images))), images.labels.tolist(), predictions.tolist()):
        return None, "certified.jsonl does not go with certificate.json"
    return claims, ""


@contextmanager
def progress_with_eta() -> Iterator[Callable[[int, int, int], None]]:
    """Gives ``show(done, total, worked)``: a bar on a terminal, a line now and then in a log.

    A shard can take minutes, for which the estimate of ``progress_bar`` is too short-sighted.
    """
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console, began = Console(stderr=True), time.monotonic()
    spoken = began
    columns = (TextColumn("attacking"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None, left="")

        def show(done: int, total: int, worked: int) -> None:
            nonlocal spoken
            now = time.monotonic()
            left = f"about {duration((now - began) * (total - done) / worked)} left" if worked else ""
            progress.update(task, completed=done, total=total, left=left)
            if not console.is_terminal and left and now - spoken > QUIET_SECONDS:
                spoken = now
                print(f"attacked {done} of {total} points, {left}", file=sys.stderr, flush=True)

        yield show


def duration(seconds: float) -> str:
    """In the unit one would say it in."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def print_record(record: dict[str, Any]) -> None:
    """One line per radius, and how to read it."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{record['data']}: accuracy (%) within an L2 radius")
    for name in ("radius", "natural", "certified", "attacked", "points attacked"):
        table.add_column(name, justify="right")
    for row in record["rows"]:
        shares = (f"{100 * row[key]:.1f}" for key in ("natural", "certified", "attacked"))
        table.add_row(row["eps"], *shares, str(row["points_attacked"]))
    console = Console()
    console.print(table)
    console.print(
        f"{record['examples']:,} images; {record['method']}: {', '.join(record['attacks'])}; "
        f"{record['cpu_seconds']:,.0f} CPU seconds.\n"
        "No attack can push the accuracy below certified; a better one may push it\n"
        "below attacked.",
        highlight=False,
        soft_wrap=True,
    )
