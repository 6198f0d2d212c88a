"""A run is a folder: train it, freeze it once, prove it, certify it, attack it, export it, report it.

``Run`` does what the commands after ``lipcert train`` do, with the same files. Finished results are never replaced
silently: the same settings return what is there, and other settings need ``restart=True`` or another folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipcert.certified.audit import AuditReport, audit
from lipcert.certified.certificate import as_inputs, sha256_of, write_certificate
from lipcert.certified.certify import CertificationResult, certify
from lipcert.certified.freeze import freeze, prove
from lipcert.certified.network import Network, Proved
from lipcert.certified.records import describe
from lipcert.data.registry import load_data
from lipcert.errors import positive_int
from lipcert.exporters.files import Certificate, exported_shape, load_frozen, write_network
from lipcert.files import atomic_file, content, locked, sha256_file, write_json, write_rows
from lipcert.models.spec import ModelSpec
from lipcert.records import RADII, AttackRecord, CertifiedRecord, RunFolder, SmoothedRecord, parse_radii
from lipcert.training.checkpoint import load_model, load_spec
from lipcert.training.config import TrainConfig

if TYPE_CHECKING:
    from lipcert.attacks.attack import Method
    from lipcert.certifiers.smoothing import Smoothing
    from lipcert.check import Report
    from lipcert.data.dataset import ImageData
    from lipcert.exporters.export import ExportReport, Format
    from lipcert.training.loop import Step

Show = Callable[[int, int], object]
EXPORTS = {
    "torch": "network.safetensors",
    "torch-export": "network.pt2",
    "onnx": "network.onnx",
    "safetensors": "certified.safetensors",
}


def _silent(*progress: object) -> None:
    """Show nothing."""


def first_process() -> bool:
    """Whether this is the process of torchrun that writes files and prints, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def train(
    config: TrainConfig,
    out: str | Path = "runs/latest",
    *,
    data: tuple[ImageData, ImageData] | None = None,
    resume: bool = False,
    show: Callable[[Step], object] = _silent,
) -> Run:
    """Train a network into the folder ``out``, which must be new or empty, and return the run.

    Args:
        data: the training and the test images; by default those that ``config.data`` names.
        resume: continue the training in ``out``, bit for bit, with ``config`` as it was. A finished one stays as
            it is.
        show: called after every step.

    Raises:
        ValueError: for settings that do not fit, and if the loss becomes NaN (``training.loop.Diverged``).
        KeyboardInterrupt: after SIGINT or SIGTERM, when the state is saved (``training.loop.Stopped``).
    """
    from lipcert.training.loop import train as train_into

    run = Run(out)
    if resume:
        run.require()
        if run.unfinished is None:
            return run
    else:
        require_new(run.folder)
    if data is None:
        data = (
            load_data(config.data, "train", root=config.data_root),
            load_data(config.data, "test", root=config.data_root),
        )
    created = [folder for folder in (run.folder, *run.folder.parents) if not folder.exists()]
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        with run.alone():
            train_into(config, run, data, resume=resume, show=show)
            run.refresh()
            if first_process():
                run.frozen()
    finally:
        if created and first_process() and not run.exists:  # refused before anything was written
            (run.folder / ".lock").unlink(missing_ok=True)
            for folder in created:
                folder.rmdir()
    return run


def require_new(folder: Path) -> None:
    """Raise ValueError unless ``folder`` can be filled without losing anything."""
    taken = folder.exists() and not folder.is_dir()
    if taken or (folder.exists() and content(folder)):
        cure = ", or add --resume to continue the training in it" if RunFolder(folder).exists else ""
        raise ValueError(f"{folder} is not empty. Choose a new or empty folder with --out{cure}.")


class Run(RunFolder):
    """A run folder and what can be done with it.

    ``Run(folder)`` opens one that ``lipcert.train`` or ``lipcert import`` made. What its files hold are properties:
    ``config``, ``metrics``, ``audited``, ``examples``, ``attacks``; ``certified(radius)`` and ``natural`` are
    shares of the certified images.
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        super().__init__(folder, name)
        self._network: tuple[str, Network] | None = None  # the frozen network of the weights with that sha256

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out of the folder."""
        with locked(self.folder) if first_process() else nullcontext():
            yield

    @property
    def spec(self) -> ModelSpec:
        """The architecture."""
        return load_spec(self.folder)

    @property
    def architecture(self) -> dict[str, Any]:
        """The fields of the architecture, as JSON."""
        return self.spec.model_dump(mode="json")

    @property
    def settings(self) -> TrainConfig:
        """The settings of the training."""
        if self.config is None:
            raise ValueError(f"{self.folder} holds no config.json: its weights were imported, not trained here.")
        return TrainConfig(**self.config)

    def model(self) -> nn.Sequential:
        """The trained network, in evaluation mode."""
        self.require()
        return load_model(self.folder)

    def frozen(self) -> Network:
        """The network that is proved and that runs; it is frozen once and stored as frozen.safetensors."""
        self.require()
        if self._network is not None and self._network[0] == self.weights:
            return self._network[1]
        stored = self.record.frozen_from == self.weights and self.frozen_file.is_file()
        if stored and sha256_file(self.frozen_file) == self.record.frozen:
            network = load_frozen(self.frozen_file)
        else:
            network = freeze(self.model())
            if first_process():
                records = describe(prove(network, self.spec.image_shape))
                with atomic_file(self.frozen_file) as path:
                    write_network(path, records)
                self.write_record(frozen=sha256_file(self.frozen_file), frozen_from=self.weights)
        self._network = self.weights, network
        return network

    def proved(self) -> Proved:
        """The frozen network with the proof of every layer."""
        return prove(self.frozen(), self.spec.image_shape)

    def test_data(self, data: str | None = None, root: str | Path | None = None) -> ImageData:
        """The test images of the data set that the run was trained on, or of another one of the same size."""
        config = self.config or {}
        if data is None:
            data, root = self.data if self.config is None else config.get("data"), root or config.get("data_root")
        if data is None:
            raise ValueError(f"{self.folder} does not say which data it is about. Pass --data NAME.")
        images, wanted = load_data(data, "test", root=root), tuple(self.spec.image_shape)
        if images.image_shape != wanted:
            expected, actual = ("×".join(map(str, shape)) for shape in (wanted, images.image_shape))
            raise ValueError(
                f"the images of {data} are {actual}, but the network of {self.folder} takes {expected}."
            )
        return images

    def audit(self) -> AuditReport:
        """Prove the constant of every layer, and write audit.json."""
        self.require()
        with self.alone():
            report = audit(self.frozen(), self.spec.image_shape)
            write_json(self.audit_file, report.to_json() | {"weights": self.weights})
            self.refresh()
        return report

    def certify(
        self,
        *,
        data: str | None = None,
        data_root: str | Path | None = None,
        examples: int | None = None,
        batch_size: int = 64,
        smoothing: Smoothing | None = None,
        jobs: int = 1,
        cluster: str | None = None,
        restart: bool = False,
        out: str | Path | None = None,
        show: Show = _silent,
    ) -> RunFolder:
        """Certify test images and write certificate.json, certified.json and certified.jsonl.

        Args:
            data: a data set or a path; by default what the run was trained on.
            examples: only the first test images.
            batch_size: images at a time. Smoothing has a setting of its own.
            smoothing: settings of randomized smoothing. Then certified-smoothing.json and its rows are written
                instead: radii of the smoothed classifier, each of which holds with a probability. What a killed
                process had finished is kept.
            jobs, cluster: processes that share the images of smoothing, or the address of a Dask scheduler.
            restart: replace radii that were certified with other settings.
            out: another folder for the results.

        Returns:
            the folder with the results: this run, or ``out``.
        """
        positive_int("batch_size", batch_size)
        if examples is not None:
            positive_int("examples", examples)
        self.require()
        images = self.test_data(data, data_root)
        if examples is not None:
            images = images.take(slice(0, examples), split="test")
        target = self if out is None else RunFolder(out)
        about: dict[str, Any] = {
            "data": images.name,
            "split": images.split,
            "examples": len(images),
            "images": sha256_of(images.images),
            "labels": sha256_of(images.labels),
            "weights": self.weights,
        }
        if smoothing is not None:
            return self._smooth(smoothing, images, about, target, jobs, cluster, restart, show)
        if jobs != 1 or cluster is not None:
            raise ValueError("jobs and cluster are for smoothing; other radii are certified in this process.")
        before = target.certified_about
        if before is not None and not restart:
            if before.model_dump(mode="json", include=set(about)) == about:
                return target
            other = "" if before.weights == self.weights else " for other weights"
            raise ValueError(
                f"{target.folder} holds the radii of {before.examples:,} images of {before.data}{other}. Add "
                "--restart to replace them, or --out FOLDER to keep both."
            )
        with self.alone():
            frozen, proved = self.frozen(), self.proved()
            result = _certify_shared(proved, as_inputs(images.images), images.labels, batch_size, show)
            if result is None:  # the first process writes
                return target
            errors = 0.0 if result.errors is None or not len(result.errors) else float(result.errors.max())
            record = CertifiedRecord(**about, lipschitz=result.lipschitz, rounding=errors, assumes=result.assumes)
            stored = self.frozen_file.name if target is self else None
            name = f"{images.name} {images.split}"
            target.certified_file.unlink(missing_ok=True)  # written last: where it is, the rest is
            write_certificate(target.folder, proved, frozen, images.images, result, about=name, stored=stored)
            write_rows(target.examples_file, result.rows())
            write_json(target.certified_file, record.model_dump())
            target.refresh()
        return target

    def _smooth(
        self,
        smoothing: Smoothing,
        images: ImageData,
        about: dict[str, Any],
        target: RunFolder,
        jobs: int,
        cluster: str | None,
        restart: bool,
        show: Show,
    ) -> RunFolder:
        """``certify`` by randomized smoothing: image by image, each stored when it is finished."""
        from lipcert.certifiers.smoothing import Task, answer_of, require_function, result_of, smooth_task
        from lipcert.jobs import compute, damaged, open_store, open_workers

        positive_int("jobs", jobs)
        settings = about | asdict(smoothing)
        before = target.smoothed
        if before is not None and not restart:
            different = [name for name, value in settings.items() if getattr(before, name) != value]
            if not different:
                return target
            name = different[0]
            raise ValueError(
                f"{target.smoothed_file} holds radii with {name} {getattr(before, name)!r:.40}; got "
                f"{settings[name]!r:.40}. Add --restart to replace them, or --out FOLDER to keep both."
            )
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1 and (jobs > 1 or cluster):
            raise ValueError("torchrun starts the processes itself. Leave --jobs and --cluster out.")
        inputs = as_inputs(images.images)
        tasks = {str(index): Task(index, image) for index, image in enumerate(inputs.numpy())}
        parts = target.smoothed_parts
        decides = settings | {"torch": torch.__version__}
        with self.alone(), _group(world) as wait_for_all, ExitStack() as stack:
            network = self.frozen()
            torch.set_num_threads(1)
            require_function(network.eval(), inputs[0], smoothing)
            what = "an unfinished smoothing"
            store = None if rank else stack.enter_context(open_store(parts, decides, what=what, restart=restart))
            wait_for_all()
            share = dict(list(tasks.items())[rank::world])
            left = set(share)

            def tick() -> None:
                left.difference_update([name for name in left if (parts / f"{name}.json").is_file()])
                show(len(share) - len(left), len(share))

            workers = stack.enter_context(open_workers(jobs, cluster, parts)) if jobs > 1 or cluster else None
            solve = partial(smooth_task, model=network, settings=smoothing)
            compute(share, solve, parts, workers, what="smoothing", tick=tick)
            wait_for_all()
            if store is None:  # the first process writes
                return target
            answers = []
            for name in tasks:
                try:
                    answers.append(answer_of(store.load(f"{name}.json") or {}, smoothing))
                except (ValueError, TypeError, KeyError):
                    raise damaged(parts / f"{name}.json") from None
            result = result_of([answer for answer, _ in answers], images.labels, smoothing)
            assert result.confidence is not None
            assert result.samples is not None
            record = SmoothedRecord(
                **settings,
                confidence=result.confidence,
                guarantee=result.guarantee,
                assumes=result.assumes,
                samples=int(result.samples.sum()),
                cpu_seconds=round(sum(seconds for _, seconds in answers), 3),
            )
            target.smoothed_file.unlink(missing_ok=True)  # written last: where it is, the rest is
            write_rows(target.smoothed_examples_file, result.rows())
            write_json(target.smoothed_file, record.model_dump())
            target.refresh()
            store.remove()
        return target

    def attack(
        self,
        method: Method = "autoattack",
        *,
        examples: int = 200,
        eps: Sequence[str] = tuple(RADII),
        everything: bool = False,
        seed: int = 0,
        data: str | None = None,
        data_root: str | Path | None = None,
        jobs: int = 1,
        cluster: str | None = None,
        restart: bool = False,
        command: str = "",
        show: Callable[[int, int, int], object] = _silent,
        certifying: Show = _silent,
    ) -> AttackRecord:
        """Attack the answers that are right and not certified, and write attack-METHOD.json and its rows.

        A killed attack goes on from its finished parts. Certified answers are attacked too with ``everything``.
        ``jobs`` processes work on it, or those of the Dask scheduler at the address ``cluster``.
        """
        from importlib.metadata import version

        from lipcert.attacks.attack import attacks_of
        from lipcert.attacks.evidence import summary
        from lipcert.attacks.shards import SHARD, attack_in_shards
        from lipcert.jobs import open_store, open_workers

        positive_int("examples", examples)
        positive_int("jobs", jobs)
        radii = dict(sorted(parse_radii(eps).items(), key=lambda item: item[1]))
        if 0 in radii.values():
            raise ValueError("--eps must be above 0: an attack needs room to move.")
        self.require()
        images = self.test_data(data, data_root)
        images = images.take(slice(0, examples), split=images.split)
        classes = max(2, self.spec.num_classes)
        settings = {
            "method": method,
            "attacks": list(attacks_of(method, classes, images.image_shape)),
            "examples": len(images),
            "all": everything,
            "seed": seed,
            "data": images.name,
            "images": sha256_of(images.images),
            "weights": self.weights,
        }
        before = self.attack_with(method)
        if before is not None and not restart:
            same = before.model_dump(mode="json", include=set(settings)) == settings
            if same and [row.eps for row in before.rows] == list(radii):
                return before
            raise ValueError(
                f"{self.attack_file(method)} holds an attack on {before.examples} images with other settings "
                f"(made by {before.command}). Add --restart to replace it."
            )
        with self.alone():
            torch.set_num_threads(1)  # sums in the same order, however many processes work
            claims = self._claims(images, certifying)
            decides = {
                **settings,
                "eps": list(radii),
                "claims": hashlib.sha256(repr(claims).encode()).hexdigest(),
                "shard": SHARD,
                "torch": torch.__version__,
                "pyautoattack": version("pyautoattack"),
            }
            parts, inputs = self.attack_parts(method), as_inputs(images.images).numpy()
            with (
                open_workers(jobs, cluster, self.folder) as workers,
                open_store(parts, decides, what="an unfinished attack", restart=restart) as store,
            ):
                rows, seconds = attack_in_shards(
                    self.frozen(),
                    inputs,
                    claims,
                    radii,
                    method,
                    seed,
                    store,
                    workers if jobs > 1 or cluster else None,
                    everything=everything,
                    show=show,
                )
                done = {"command": command, "cpu_seconds": round(seconds, 3), "rows": summary(rows)}
                record = self.write_attack({"format": "lipcert-attack-2", **settings, **done}, rows)
                store.remove()
        return record

    def _claims(self, images: ImageData, show: Show) -> Any:
        """What is certified of these images: the stored rows if they are about them, else certified now."""
        from lipcert.attacks.evidence import Claims

        about, rows = self.certified_about, (self.examples or [])[: len(images)]
        if about is not None and about.weights == self.weights and about.data == images.name:
            labels = [row.label for row in rows]
            if len(rows) == len(images) and labels == images.labels.tolist():
                return Claims(labels, [row.prediction for row in rows], [row.radius for row in rows])
        result = certify(self.proved(), as_inputs(images.images), images.labels, show=show)
        return Claims(result.labels.tolist(), result.predictions.tolist(), result.radii.tolist())

    def export(self, to: Format, out: str | Path | None = None) -> ExportReport:
        """Write the frozen network to a file, read it back and prove it again; see ``lipcert.export``."""
        from lipcert.exporters.export import export

        self.require()
        path = self.folder / EXPORTS[to] if out is None else Path(out)
        if path.resolve().parent == self.folder.resolve() and path.name in self._own_names():
            raise ValueError(f"{path.name} is a file of the run itself. Choose another --out.")
        certificate = Certificate.of_folder(self.folder)
        if certificate is None and to == "safetensors":
            raise ValueError(f"{self.folder} holds no certificate.json. Run lipcert certify {self.where} first.")
        return export(self.frozen(), path, to=to, input_shape=self.spec.image_shape, certificate=certificate)

    def report(self, out: str | Path | None = None, show: Show = _silent) -> Path:
        """Write one page about this run, with its figures and tables beside it; return its path."""
        from lipcert.reports.write import write_report

        return write_report([self], self.report_file if out is None else Path(out), show).page

    def _own_names(self) -> set[str]:
        return {value.name for value in vars(self).values() if isinstance(value, Path)}


@contextmanager
def _group(world: int) -> Iterator[Callable[[], None]]:
    """A function in which the processes of torchrun wait for each other; one process never waits."""
    if world == 1:
        yield lambda: None
        return
    dist.init_process_group("gloo", timeout=timedelta(days=30))  # shares may take hours longer than others
    try:
        yield dist.barrier
    finally:
        dist.destroy_process_group()


def _certify_shared(
    proved: Proved, inputs: Tensor, labels: Tensor, batch_size: int, show: Show
) -> CertificationResult | None:
    """``certify``, divided among the processes of torchrun; None in all but the first."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return certify(proved, inputs, labels, batch_size=batch_size, show=show)
    dist.init_process_group("gloo")
    part = certify(proved, inputs[rank::world], labels[rank::world], batch_size=batch_size, show=show)
    parts: list[CertificationResult] = [part] * world
    dist.all_gather_object(parts, part)
    dist.destroy_process_group()
    if rank:
        return None
    whole: dict[str, Tensor] = {}
    for name in ("radii", "correct", "predictions", "labels", "errors"):
        pieces = [getattr(result, name) for result in parts]
        whole[name] = torch.empty(len(labels), dtype=pieces[0].dtype)
        for index, piece in enumerate(pieces):
            whole[name][index::world] = piece
    return replace(part, **whole)  # type: ignore[arg-type]


def verify(path: str | Path, *, allow: int = 1) -> Report:
    """Check a certificate, or the one in a folder, with the independent checker (``lipcert/check.py``).

    Returns:
        what was found: ``ok`` and the reasons. ``allow`` multiplies the memory and the work that it may cost.
    """
    from lipcert.check import check

    place = Path(path)
    return check(place / "certificate.json" if place.is_dir() else place, allow)


def load(path: str | Path) -> nn.Module:
    """Load a network in evaluation mode; no code in its file is executed.

    A run folder or its model.safetensors gives the trained network. A file that ``lipcert export`` wrote, or a
    folder with a certificate (a download from the hub, for example), gives the frozen network.
    """
    place = Path(path)
    if place.is_file() and exported_shape(place) is not None:
        return load_frozen(place)
    if place.is_dir() and not RunFolder(place).exists and (place / "certificate.json").is_file():
        return load_frozen(place)
    if place.is_dir():
        return Run(place).model()
    return load_model(place)
