"""``export`` writes a frozen network to a file, reads it back, compares it bit for bit and proves it again.

The constants are proved from the tensors of the *file*. The program in it must give the logits of a float64
evaluation within the proved error bound of float32 (docs/certificate.md, u = 2⁻²⁴, sums in any order), and within
SLACK·ε of the largest norm between two layers, which is far tighter and which correct runtimes achieve.

Rounding: error bounds up. A certificate is about real and float64 arithmetic; an exported program runs in float32.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lipcert.certified.certificate import sha256_of
from lipcert.certified.certify import errors_along, logit_errors, require_provable, walk
from lipcert.certified.freeze import prove
from lipcert.certified.network import Network, Proved
from lipcert.certified.op import ROUND, Shape
from lipcert.certified.records import describe, rebuild
from lipcert.errors import NotCertified, one_of
from lipcert.exporters import programs
from lipcert.exporters.files import Certificate, read_network, tensors_differ, write_network
from lipcert.files import atomic_file
from lipcert.verified.rounding import U32, U64

Format = Literal["torch", "torch-export", "onnx", "safetensors"]
SUFFIX: dict[str, str] = {
    "torch": ".safetensors",
    "torch-export": ".pt2",
    "onnx": ".onnx",
    "safetensors": ".safetensors",
}
SLACK = 1024  # multiples of ε: about ten per layer, for a hundred layers


class ExportChanged(NotCertified):
    """The file is not the network that was proved; it has been deleted."""


@dataclass(frozen=True)
class ExportReport:
    """What was found in the file; ``str()`` is a summary in a few lines."""

    path: Path
    to: Format
    tensors: int  # how many the file holds, all equal bit for bit
    witnesses: int  # how many tensors only the proof needs; a program does not compute with them
    certificate: Certificate | None  # with which the tensors were compared
    lipschitz: float  # of the backbone, proved from the tensors of the file
    difference: float  # the largest between a logit of the file and its float64 value
    allowed: float  # what the proof for float32 allows; infinite if there is none
    assumes: tuple[str, ...] = ()  # what ``allowed`` assumes about the runtime, such as "tanh within 8 ulp"

    def __str__(self) -> str:
        source = "the frozen network" if self.certificate is None else "certificate.json"
        left = f"; {self.witnesses} more are needed by the proof alone" if self.witnesses else ""
        allowed = f"the proof allows {self.allowed:.1e}" if math.isfinite(self.allowed) else "no proof bounds it"
        allowed += f", assuming {' and '.join(self.assumes)}" if self.assumes else ""
        return (
            f"{self.path}\n"
            f"{self.tensors} tensors equal those of {source} bit for bit{left}.\n"
            f"Proved again from the file: L of the backbone at most {self.lipschitz:.9f}.\n"
            f"Its float32 logits differed from float64 by at most {self.difference:.1e}; {allowed}."
        )


def export(
    network: nn.Module,
    path: str | Path,
    *,
    to: Format,
    input_shape: Shape,
    certificate: Certificate | None = None,
    inputs: Tensor | None = None,
) -> ExportReport:
    """Write a frozen network to ``path``, read the file back and compare; delete the file if they differ.

    Args:
        network: what ``lipcert.freeze`` returned.
        to: "torch" or "safetensors" (for ``lipcert.load_frozen``; the second with the certificate inside),
            "torch-export" or "onnx" (a program for any batch size).
        input_shape: the shape of one input.
        certificate: the certificate of this network, which "safetensors" needs.
        inputs: float32 examples (N, …) to run the program on; by default random ones in [0, 1].

    Raises:
        ValueError: for a network that is not frozen, a wrong suffix, a missing package.
        NotCertified: for a layer without proof, or one that the format of certificates does not have.
        ExportChanged: if the file holds other numbers or computes something else.
    """
    path, shape = Path(path), tuple(input_shape)
    one_of("to", to, get_args(Format))
    if path.suffix != SUFFIX[to]:
        raise ValueError(f"a file for {to} must end in {SUFFIX[to]}; got {path.name}. Rename it.")
    if not isinstance(network, Network):
        raise ValueError(f"expected a frozen network, got a {type(network).__name__}. Pass lipcert.freeze(model).")
    network = copy.deepcopy(network).cpu().eval()
    links = prove(network, shape)
    require_provable(links)
    if any(part.proof.assumed for part in links.parts):
        raise NotCertified(
            "every layer of an exported network must be proved, but the constant of one is assumed. Replace it."
        )
    if certificate is None and to == "safetensors":
        raise ValueError(
            "a safetensors file carries the certificate, and this network has none. Run lipcert certify first."
        )
    if certificate is not None and (different := certificate.differs_from(describe(links))):
        raise ValueError(
            f"the certificate must be of this network; got another {different}. Run lipcert certify first."
        )
    with atomic_file(path) as file:
        try:
            _write(file, network, links, to, certificate)
        except RuntimeError as error:  # torch raises it for a full disk and for what it cannot translate
            first = (str(error).splitlines() or [type(error).__name__])[0][:160]
            raise ValueError(
                f"{path} could not be written; got {first}. Free some space, or use --to torch."
            ) from None
        tensors, run = _read(file, to)
        again, count = _compared(network, links, tensors, to)
        proved = prove(again, shape)
        pairs = zip(proved.parts, links.parts, strict=True)
        if any(new.proof.lipschitz > old.proof.lipschitz for new, old in pairs):
            raise ExportChanged(f"{path.name}: a layer has a larger constant than before. Report this.")
        x = example_inputs(shape) if inputs is None else inputs
        difference, allowed = _compare_outputs(proved, run, x, path)
    left = len(network.state_dict()) - count
    return ExportReport(path, to, count, left, certificate, proved.backbone, difference, allowed, proved.assumes)


def example_inputs(shape: Shape, count: int = 8) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


def float32_bound(links: Proved, x: Tensor) -> tuple[Tensor, Tensor, float]:  # (N, …) → (N, C), (N, C)
    """(float64 logits, how far float32 logits may be from them, the largest norm between two layers)."""
    with torch.no_grad():
        logits, sizes = walk(links, x.double())
        bound = torch.zeros_like(logits)
        for u in (U32, U64):  # the distance of both from the exact logits
            err, norms = errors_along(links, sizes, torch.zeros(len(x), dtype=torch.float64), u)
            rows = torch.ones(logits.shape[1]).double() if links.head is None else links.head.norms
            bound = (bound + rows * err[:, None] + logit_errors(links, norms, u)) * ROUND
    return logits, bound, max(float(size.max()) for size in sizes)


def _write(file: Path, network: nn.Module, links: Proved, to: Format, certificate: Certificate | None) -> None:
    if to == "torch-export":
        programs.write_torch_export(file, network, links.input_shape)
    elif to == "onnx":
        notes = {"lipcert_lipschitz": links.backbone.hex()}
        if certificate is not None:
            notes["lipcert_certificate_sha256"] = certificate.sha256
        programs.write_onnx(file, network, links.input_shape, notes)
    else:
        write_network(file, describe(links), certificate if to == "safetensors" else None)


def _read(file: Path, to: Format) -> tuple[dict[str, Tensor], Any]:
    if to == "torch-export":
        return programs.read_torch_export(file)
    if to == "onnx":
        return programs.read_onnx(file)
    records, _ = read_network(file)
    return records.tensors, rebuild(records)


def _compared(network: nn.Module, links: Proved, found: dict[str, Tensor], to: Format) -> tuple[nn.Module, int]:
    """The network with the tensors of the file, and their number, if none is missing, added or changed."""
    own = network.state_dict()
    expected = describe(links).tensors if to in ("torch", "safetensors") else own
    if to == "onnx":  # a graph holds only what it computes with
        expected = {name: value for name, value in own.items() if not name.endswith("witness")}
    if different := tensors_differ({name: sha256_of(value) for name, value in expected.items()}, found):
        raise ExportChanged(
            f"the exported file must hold the proved numbers; got another {different}. It was deleted."
        )
    again = copy.deepcopy(network)
    again.load_state_dict({**own, **found})
    return again, len(found)


def _compare_outputs(links: Proved, run: Any, x: Tensor, path: Path) -> tuple[float, float]:
    """(largest difference, its proved bound); raises unless all are within that bound and within SLACK·ε."""
    logits, bound, size = float32_bound(links, x)
    with torch.no_grad():
        found = torch.cat([run(x[:1]), run(x[1:])]) if len(x) > 1 else run(x)  # two batch sizes
    fits = found.shape == logits.shape
    difference = (found.double() - logits).abs() if fits else torch.full_like(logits, math.inf)
    largest = max(size, 1.0, float(logits.abs().max()) if logits.numel() else 1.0)
    limit = bound.clamp_max(SLACK * 2 * U32 * largest)
    if not bool((difference <= limit).all()):
        worst = float(difference.max())
        raise ExportChanged(
            f"{path.name} must compute the proved network; got logits that differ by {worst:.1e}. It was deleted."
        )
    return float(difference.max()), float(bound.max())
