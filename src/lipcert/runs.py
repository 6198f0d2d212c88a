"""A run is a folder: train it, freeze it once, prove it, certify it, attack it, export it, report it.

``Run`` does what the commands after ``lipcert train`` do, with the same files. Finished results are never replaced
silently: the same settings return what is there, and other settings need ``restart=True`` or another folder.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn

from lipcert.certified.audit import AuditReport
from lipcert.certified.certificate import as_inputs, joint_multipliers, sha256_of, write_certificate
from lipcert.certified.certify import CertificationResult, certify
from lipcert.certified.freeze import freeze, prove
from lipcert.certified.network import Network, Proved
from lipcert.certified.records import describe
from lipcert.certifiers.lipsdp import tighten
from lipcert.certifiers.methods import audit, settings_of
from lipcert.certifiers.methods import certify as by_name
from lipcert.certifiers.smoothing import Smoothing
from lipcert.data.catalog import CATALOG
from lipcert.data.dataset import OWN, ImageData, own_data, read_data, save_data
from lipcert.data.registry import load_data
from lipcert.data.tables import is_table
from lipcert.errors import positive_int
from lipcert.exporters.files import Certificate, exported_shape, load_frozen, write_network
from lipcert.exporters.onnx_graphs import read_graph
from lipcert.files import atomic_file, content, locked, sha256_file, write_json, write_rows
from lipcert.jobs import compute, damaged, open_store, open_workers
from lipcert.models.build import build_any, parameters
from lipcert.models.own import Builder, find_builder
from lipcert.models.spec import Architecture, ModelSpec, OwnNetwork
from lipcert.records import (
    CERTIFIERS,
    CHECKED,
    RADII,
    AttackRecord,
    CertifiedRecord,
    Imported,
    RunFolder,
    SmoothedRecord,
    parse_radii,
)
from lipcert.training.checkpoint import load_model, load_spec, save_weights
from lipcert.training.config import TrainConfig

if TYPE_CHECKING:
    from lipcert.attacks.attack import Method
    from lipcert.check import Report
    from lipcert.exporters.export import ExportReport, Format
    from lipcert.exporters.radius import Precision
    from lipcert.training.loop import Step

T = TypeVar("T")
Show = Callable[[int, int], object]
IMAGES_AT_A_TIME = 16  # of a method that takes long for an image: what a kill may cost
Data = ImageData | tuple[Tensor, Tensor]  # inputs and labels
IN_PYTHON = "passed in Python"  # what config.json calls a network without a name
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
    model: TrainConfig | nn.Module,
    out: str | Path = "runs/latest",
    *,
    data: tuple[Data, Data] | None = None,
    config: TrainConfig | None = None,
    resume: bool = False,
    show: Callable[[Step], object] = _silent,
) -> Run:
    """Train a network into the folder ``out``, which must be new or empty, and return the run.

    Args:
        model: the settings of a training, which name its network; or a network of your own, which is trained in
            place with the settings ``config``.
        data: the training and the test data, each an ``ImageData`` or a pair (inputs, labels) of tensors; by
            default those that the settings name. Test data that have no name are kept in the folder.
        config: the settings for a network of your own. Its fields ``model`` and ``overrides`` are not used.
        resume: continue the training in ``out``, bit for bit, with settings and data as they were. A finished one
            stays as it is.
        show: called after every step.

    Raises:
        ValueError: for settings that do not fit, and if the loss becomes NaN (``training.loop.Diverged``).
        NotCertified: for a network of your own without a proof.
        KeyboardInterrupt: after SIGINT or SIGTERM, when the state is saved (``training.loop.Stopped``).
    """
    from lipcert.training.loop import train as train_into

    if isinstance(model, TrainConfig):
        if config is not None:
            raise ValueError("config is for a network of your own. Pass the settings once.")
        network, settings = None, model
    else:
        network = model
        settings = (config or TrainConfig()).model_copy(update={"model": IN_PYTHON, "overrides": {}})
    named = network if network is not None else settings.model if ":" in settings.model else None
    run = Run(out, network=named)
    if resume:
        run.require()
        if run.unfinished is None:
            return run
    else:
        require_new(run.folder)
    unnamed = None
    if data is None:
        where = {"root": settings.data_root, "label": settings.label}
        data = load_data(settings.data, "train", **where), load_data(settings.data, "test", **where)
    else:
        data = _own_pair(*data)
        if data[1].name == OWN or network is not None:
            settings = settings.model_copy(update={"data": data[1].name})
            unnamed = None if data[1].name in CATALOG else data[1]
    is_table = len(data[0].image_shape) == 1
    if network is None and is_table and settings.model == TrainConfig.model_fields["model"].default:
        settings = settings.model_copy(update={"model": "sll_table"})
    created = [folder for folder in (run.folder, *run.folder.parents) if not folder.exists()]
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        with run.alone():
            train_into(settings, run, data, network=network, resume=resume, show=show)
            run.refresh()
            if first_process():
                run.frozen()
    finally:
        if unnamed is not None and first_process() and run.exists:
            save_data(run.data_file, unnamed)
        if created and first_process() and not run.exists:  # refused before anything was written
            (run.folder / ".lock").unlink(missing_ok=True)
            for folder in created:
                folder.rmdir()
    return run


def _own_pair(train: Data, test: Data) -> tuple[ImageData, ImageData]:
    """Training and test data as ``ImageData``, with the same classes."""
    training = own_data(*train, "train") if isinstance(train, tuple) else train
    return training, own_data(*test, "test", training.classes) if isinstance(test, tuple) else test


def open_run(
    folder: str | Path,
    network: str | None = None,
    data: str | None = None,
    root: str | Path | None = None,
    label: str | None = None,
) -> Run:
    """The run in ``folder``, whose network the function ``network`` builds; a new folder becomes a run of it.

    The new run has the weights that the function gives the network. ``data`` names its test set.
    """
    run = Run(folder, network=network)
    if network is None:
        return run
    if run.exists:
        if run.builder != network:
            made = (
                f"built by {run.builder}" if run.builder else "one of lipcert" if run.builder is None else IN_PYTHON
            )
            raise ValueError(f"the network of {folder} is {made}, not by {network}. Leave --network out.")
        return run
    require_new(run.folder)
    if data is None:
        raise ValueError(
            f"{folder} is new. To make a run of {network} in it, pass --data too, for the shape of the inputs and "
            "the classes."
        )
    from lipcert.training.loop import require_logits

    images = load_data(data, "test", root=root, label=label)
    spec = OwnNetwork(builder=network, image_shape=images.image_shape, num_classes=len(images.classes))
    model = build_any(spec).eval()
    require_logits(model, spec)
    run.folder.mkdir(parents=True, exist_ok=True)
    with run.alone():
        save_weights(run.model_file, model.state_dict(), spec)
        source = Imported(file=network, sha256=sha256_file(run.model_file), data=data, label=label)
        test = None if images.of_bytes else images.sha256.images
        run.write_record(lipcert=version("lipcert"), imported=source, test=test)
        run.frozen()
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

    Args:
        network: for a network of your own, the function that builds it, as ``module:function`` or itself, or a
            network of the same shape. It is needed to train on and for ``model``; what comes after ``frozen`` does
            without. No module that only a file names is ever imported.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str | None = None,
        method: str = "lipschitz",
        *,
        network: Builder | nn.Module | str | None = None,
    ) -> None:
        super().__init__(folder, name, method)
        self._own = network
        self._network: tuple[str, Network] | None = None  # the frozen network of the weights with that sha256

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out of the folder."""
        with locked(self.folder) if first_process() else nullcontext():
            yield

    @property
    def spec(self) -> Architecture:
        """The architecture."""
        return load_spec(self.folder)

    @property
    def builder(self) -> str | None:
        """The function that builds a network of the user's own, "" if it was passed in Python; else None."""
        spec = self.spec
        return spec.builder if isinstance(spec, OwnNetwork) else None

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

    def model(self) -> nn.Module:
        """The trained network, in evaluation mode."""
        self.require()
        own = self._own
        if isinstance(own, nn.Module):
            return load_model(self.folder, lambda **shapes: copy.deepcopy(own))
        return load_model(self.folder, find_builder(own) if isinstance(own, str) else own)

    @property
    def parameters(self) -> int:
        """How many numbers are learned; of a network of your own, how many are stored."""
        spec = self.spec
        if isinstance(spec, ModelSpec):
            return parameters(spec)
        with safe_open(self.model_file, framework="np") as archive:
            return sum(math.prod(archive.get_slice(name).get_shape()) for name in archive.keys())  # noqa: SIM118

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

    def test_data(self, data: str | Data | None = None, root: str | Path | None = None) -> ImageData:
        """The test data that the run was trained on, or others of the same shape."""
        given = data
        if data is None and self.data_file.is_file():
            images = read_data(self.data_file)
        elif isinstance(data, (str, type(None))):
            config = self.config or {}
            if data is None:
                data = self.data if self.config is None else config.get("data")
                root = root or config.get("data_root")
            if data is None:
                raise ValueError(f"{self.folder} does not say which data it is about. Pass --data NAME.")
            images = load_data(data, "test", root=root, label=self.label if is_table(data) else None)
            if given is None and self.exists and self.record.test not in (None, images.sha256.images):
                raise ValueError(
                    f"{data} has changed: its test rows are not those of the training. Restore it, or pass --data."
                )
        else:
            images = own_data(*data, "test") if isinstance(data, tuple) else data
        wanted = tuple(self.spec.image_shape)
        if images.image_shape != wanted:
            expected, actual = ("×".join(map(str, shape)) for shape in (wanted, images.image_shape))
            raise ValueError(
                f"the images of {images.name} are {actual}, but the network of {self.folder} takes {expected}."
            )
        return images

    def audit(self, method: str = "lipschitz", **settings: Any) -> AuditReport:
        """Prove the constant of every layer, and write audit.json.

        Args:
            method: "lipsdp" or "eclipse-fast" also prove dense layers together, and write audit-METHOD.json.
            settings: ``steps`` of "lipsdp".
        """
        self.require()
        with self.alone():
            report = audit(self.frozen(), self.spec.image_shape, method=method, **settings)
            about = {"weights": self.weights} | ({"method": method, **settings} if method != "lipschitz" else {})
            write_json(self.by(method).audit_file, report.to_json() | about)
            self.refresh()
        return report

    def certify(
        self,
        method: str = "lipschitz",
        *,
        data: str | Data | None = None,
        data_root: str | Path | None = None,
        examples: int | None = None,
        batch_size: int | None = None,
        jobs: int = 1,
        cluster: str | None = None,
        restart: bool = False,
        out: str | Path | None = None,
        show: Show = _silent,
        **settings: Any,
    ) -> RunFolder:
        """Certify test images and write certificate.json, certified.json and certified.jsonl.

        Another method than "lipschitz" writes files with its name, such as certified-local.json, beside those.
        "local", "sdp-crown" and "smoothing" have no certificate file, and keep what a killed process had finished.
        Smoothing finds radii of the smoothed classifier, each of which holds with a probability.

        Args:
            method: as in ``lipcert.certify``.
            data: a data set or a path, or an ``ImageData`` or (inputs, labels); by default what the run was
                trained on.
            examples: only the first test images.
            batch_size: images at a time, or noisy copies of one ("smoothing"); by default 64, 16 ("local",
                "sdp-crown") or 250.
            jobs, cluster: processes that share the images ("local", "sdp-crown", "smoothing"), or the address of a
                Dask scheduler.
            restart: replace radii that were certified with other settings.
            out: another folder for the results.
            settings: those of the method in ``lipcert.certify``, such as ``eps`` of "local".

        Returns:
            the folder with the results: this run, or ``out``, with the radii of this method.
        """
        chosen = settings_of(method, settings)
        if batch_size is not None:
            positive_int("batch_size", batch_size)
        if examples is not None:
            positive_int("examples", examples)
        if method in CHECKED and (jobs != 1 or cluster is not None):
            raise ValueError(
                f"jobs and cluster are for local, sdp-crown and smoothing; {method} certifies in this process."
            )
        positive_int("jobs", jobs)
        if method == "smoothing":
            chosen = asdict(Smoothing(**chosen, **({} if batch_size is None else {"batch_size": batch_size})))
        self.require()
        images = self.test_data(data, data_root)
        if examples is not None:
            images = images.take(slice(0, examples), split="test")
        target: RunFolder = self if out is None else RunFolder(out)
        target = target if target.method == method else target.by(method)
        about: dict[str, Any] = {
            "data": images.name,
            "split": images.split,
            "examples": len(images),
            "images": sha256_of(images.images),
            "labels": sha256_of(images.labels),
            "weights": self.weights,
        }
        chosen = json.loads(json.dumps(chosen))  # as they are stored
        if target.about is not None and not restart and self._is_there(target, about, chosen):
            return target
        if method == "smoothing":
            self._smooth(Smoothing(**chosen), images, about, target, jobs, cluster, restart, show)
        elif method in CHECKED:
            self._certify_whole(method, chosen, images, about, target, batch_size or 64, show)
        else:
            size = batch_size or IMAGES_AT_A_TIME
            self._certify_parts(method, chosen, images, about, target, size, jobs, cluster, restart, show)
        return target

    def _is_there(self, target: RunFolder, about: dict[str, Any], chosen: dict[str, Any]) -> bool:
        """Whether the results in ``target`` are those that are wanted; ValueError if they are others."""
        before = target.about
        assert before is not None
        stored = before.model_dump(mode="json")
        stored |= stored.pop("settings", {})
        cure = "Add --restart to replace them, or --out FOLDER to keep both."
        if any(stored[name] != value for name, value in about.items()):
            other = "" if before.weights == self.weights else " for other weights"
            raise ValueError(
                f"{target.folder} holds the radii of {before.examples:,} images of {before.data}{other}. {cure}"
            )
        for name, value in chosen.items():
            if stored.get(name) != value:
                raise ValueError(
                    f"{target.certified_file} holds radii with {name} {stored.get(name)!r:.60}; got {value!r:.60}. "
                    f"{cure}"
                )
        return True

    def _certify_whole(
        self,
        method: str,
        chosen: dict[str, Any],
        images: ImageData,
        about: dict[str, Any],
        target: RunFolder,
        batch_size: int,
        show: Show,
    ) -> None:
        """``certify`` by constants of the network, which the checker can verify."""
        with self.alone():
            began = time.process_time()
            frozen, proved = self.frozen(), self.proved()
            if method != "lipschitz":
                proved = tighten(proved, method=method, **chosen)
                joint_multipliers(proved)  # what no certificate can have is refused before anything is lost
            result = _certify_shared(proved, as_inputs(images.images), images.labels, batch_size, show)
            if result is None:  # the first process writes
                return
            result = replace(result, method=method)
            errors = 0.0 if result.errors is None or not len(result.errors) else float(result.errors.max())
            record = CertifiedRecord(
                **about,
                method=method,
                settings=chosen,
                lipschitz=result.lipschitz,
                rounding=errors,
                assumes=result.assumes,
                certificate=target.certificate_file.name,
                cpu_seconds=None if method == "lipschitz" else round(time.process_time() - began, 3),
            )
            target.certified_file.unlink(missing_ok=True)  # written last: where it is, the rest is
            write_certificate(
                target.folder,
                proved,
                frozen,
                images.images,
                result,
                about=f"{images.name} {images.split}",
                stored=self.frozen_file.name if target.folder == self.folder else None,
                name=target.certificate_file.stem,
            )
            write_rows(target.examples_file, result.rows())
            write_json(target.certified_file, record.model_dump())
            target.refresh()
            self.refresh()

    def _certify_parts(
        self,
        method: str,
        chosen: dict[str, Any],
        images: ImageData,
        about: dict[str, Any],
        target: RunFolder,
        size: int,
        jobs: int,
        cluster: str | None,
        restart: bool,
        show: Show,
    ) -> None:
        """``certify`` by a method that takes long for an image: in parts, each stored when it is finished."""
        from lipcert.certifiers.parts import Solver, Task, answers_of

        inputs, labels = as_inputs(images.images).numpy(), images.labels.numpy()
        starts = range(0, len(labels), size)
        tasks = {str(start): Task(inputs[start : start + size], labels[start : start + size]) for start in starts}
        with self.alone():
            proved = self.proved()
            # Settings that do not fit and networks that are not covered are refused before anything is written.
            by_name(proved, torch.from_numpy(inputs[:0]), torch.from_numpy(labels[:0]), method=method, **chosen)
            torch.set_num_threads(1)
            decides = about | {"method": method} | chosen | {"batch_size": size, "torch": torch.__version__}
            solve = Solver(self.frozen(), images.image_shape, method, chosen)

            def count(done: int, total: int) -> None:
                show(min(done * size, len(labels)), min(total * size, len(labels)))

            share = _in_parts(
                tasks,
                solve,
                decides,
                target,
                f"an unfinished certification by {method}",
                jobs,
                cluster,
                restart,
                count,
            )
            with share as stored:
                if stored is None:  # the first process writes
                    return
                rows, rounding, seconds = [], 0.0, 0.0
                for name, task in tasks.items():
                    try:
                        answers = answers_of(stored[name], task)
                    except (ValueError, TypeError, KeyError):
                        raise damaged(target.certified_parts / f"{name}.json") from None
                    rows += [{"index": int(name) + place, **row} for place, row in enumerate(answers.rows)]
                    rounding, seconds = max(rounding, answers.rounding), seconds + answers.cpu_seconds
                record = CertifiedRecord(
                    **about,
                    method=method,
                    settings=chosen,
                    lipschitz=proved.backbone,
                    rounding=rounding,
                    assumes=proved.assumes,
                    certificate=None,
                    cpu_seconds=round(seconds, 3),
                )
                _write_parts(target, rows, record)
        self.refresh()

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
    ) -> None:
        """``certify`` by randomized smoothing: image by image, each stored when it is finished."""
        from lipcert.certifiers.smoothing import Task, answer_of, require_function, result_of, smooth_task

        settings = about | asdict(smoothing)
        inputs = as_inputs(images.images)
        tasks = {str(index): Task(index, image) for index, image in enumerate(inputs.numpy())}
        with self.alone():
            network = self.frozen()
            torch.set_num_threads(1)
            require_function(network.eval(), inputs[0], smoothing)
            solve = partial(smooth_task, model=network, settings=smoothing)
            decides = settings | {"torch": torch.__version__}
            share = _in_parts(
                tasks, solve, decides, target, "an unfinished smoothing", jobs, cluster, restart, show
            )
            with share as stored:
                if stored is None:  # the first process writes
                    return
                answers = []
                for name in tasks:
                    try:
                        answers.append(answer_of(stored[name], smoothing))
                    except (ValueError, TypeError, KeyError):
                        raise damaged(target.certified_parts / f"{name}.json") from None
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
                _write_parts(target, result.rows(), record)
        self.refresh()

    def attack(
        self,
        method: Method = "autoattack",
        *,
        examples: int = 200,
        eps: Sequence[str] = tuple(RADII),
        everything: bool = False,
        seed: int = 0,
        data: str | Data | None = None,
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
        from lipcert.attacks.attack import attacks_of, left_out
        from lipcert.attacks.evidence import summary
        from lipcert.attacks.shards import SHARD, attack_in_shards

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
                    bounded=images.of_bytes,
                    show=show,
                )
                done = {
                    "left_out": list(left_out(method, classes, images.image_shape)),
                    "command": command,
                    "cpu_seconds": round(seconds, 3),
                    "rows": summary(rows),
                }
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

    def export(self, to: Format, out: str | Path | None = None, radius: Precision | None = None) -> ExportReport:
        """Write the frozen network to a file, read it back and prove it again; see ``lipcert.export``."""
        from lipcert.exporters.export import export

        self.require()
        path = self.folder / EXPORTS[to] if out is None else Path(out)
        if path.resolve().parent == self.folder.resolve() and path.name in self._own_names():
            raise ValueError(f"{path.name} is a file of the run itself. Choose another --out.")
        certificate = Certificate.of_folder(self.folder)
        if certificate is None and to == "safetensors":
            raise ValueError(f"{self.folder} holds no certificate.json. Run lipcert certify {self.where} first.")
        inputs = None if radius is None or certificate is None else certificate.inputs(self.folder)[:64]
        shape = self.spec.image_shape
        return export(
            self.frozen(), path, to=to, input_shape=shape, certificate=certificate, inputs=inputs, radius=radius
        )

    def report(self, out: str | Path | None = None, show: Show = _silent) -> Path:
        """Write one page about this run, with its figures and tables beside it; return its path."""
        from lipcert.reports.write import write_report

        return write_report([self], self.report_file if out is None else Path(out), show).page

    def _own_names(self) -> set[str]:
        views = [self.by(method) for method in CERTIFIERS]
        return {value.name for run in views for value in vars(run).values() if isinstance(value, Path)}


def _write_parts(
    target: RunFolder, rows: Iterable[dict[str, Any]], record: CertifiedRecord | SmoothedRecord
) -> None:
    target.certified_file.unlink(missing_ok=True)  # written last: where it is, the rest is
    write_rows(target.examples_file, rows)
    write_json(target.certified_file, record.model_dump())
    target.refresh()


@contextmanager
def _in_parts(
    tasks: Mapping[str, T],
    solve: Callable[[T], Mapping[str, Any]],
    decides: Mapping[str, Any],
    target: RunFolder,
    what: str,
    jobs: int,
    cluster: str | None,
    restart: bool,
    show: Show,
) -> Iterator[dict[str, dict[str, Any]] | None]:
    """What ``solve`` says of all tasks, in this process or several; None in all of torchrun's but the first.

    Every finished task is stored beside the results. When the block ends, the store is removed.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and (jobs > 1 or cluster):
        raise ValueError("torchrun starts the processes itself. Leave --jobs and --cluster out.")
    parts = target.certified_parts
    with _group(world) as wait_for_all, ExitStack() as stack:
        store = None if rank else stack.enter_context(open_store(parts, decides, what=what, restart=restart))
        wait_for_all()
        share = dict(list(tasks.items())[rank::world])
        left = set(share)

        def tick() -> None:
            left.difference_update([name for name in left if (parts / f"{name}.json").is_file()])
            show(len(share) - len(left), len(share))

        workers = stack.enter_context(open_workers(jobs, cluster, parts)) if jobs > 1 or cluster else None
        compute(share, solve, parts, workers, what="certification", tick=tick)
        wait_for_all()
        yield None if store is None else {name: store.load(f"{name}.json") or {} for name in tasks}
        if store is not None:
            store.remove()


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
    part = replace(part, proved=None, inputs=None)  # which every process has
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


def load(path: str | Path, *, network: Builder | nn.Module | str | None = None) -> nn.Module:
    """Load a network in evaluation mode; no code in its file is executed.

    A run folder or its model.safetensors gives the trained network. A file that ``lipcert export`` wrote, or a
    folder with a certificate (a download from the hub, for example), gives the frozen network, and an ONNX file the
    network that it holds.

    Args:
        network: for the run folder of a network of your own, what builds it; see ``lipcert.Run``.
    """
    place = Path(path)
    if place.suffix == ".onnx" and place.is_file():
        return read_graph(place)[0]
    if place.is_file() and exported_shape(place) is not None:
        return load_frozen(place)
    if place.is_dir() and not RunFolder(place).exists and (place / "certificate.json").is_file():
        return load_frozen(place)
    if place.is_dir():
        return Run(place, network=network).model()
    return load_model(place)
