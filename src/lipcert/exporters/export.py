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
from lipcert.certified.certify import certify, errors_along, logit_errors, require_provable, walk
from lipcert.certified.freeze import prove
from lipcert.certified.network import Network, Proved
from lipcert.certified.norms import NORMS
from lipcert.certified.op import ROUND, Shape
from lipcert.certified.records import describe, rebuild
from lipcert.errors import NotCertified, one_of
from lipcert.exporters import programs
from lipcert.exporters.files import Certificate, read_network, tensors_differ, write_network
from lipcert.exporters.radius import ARITHMETIC, ROUNDOFF, SUMS, Precision, WithRadius, dtype_of
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
    radius: Precision | None = None  # the arithmetic of the program if it gives a radius, too
    kept: float | None = None  # the median share of a radius of ``certify`` that the program's has

    def __str__(self) -> str:
        source = "the frozen network" if self.certificate is None else "certificate.json"
        left = f"; {self.witnesses} more are needed by the proof alone" if self.witnesses else ""
        allowed = f"the proof allows {self.allowed:.1e}" if math.isfinite(self.allowed) else "no proof bounds it"
        allowed += f", assuming {' and '.join(self.assumes)}" if self.assumes else ""
        kind = "float32" if self.radius is None else self.radius
        kept = ""
        if self.kept is not None:
            kept = f"\nIts radii were at most those of certify, and {100 * self.kept:.1f} % of them in the median."
        return (
            f"{self.path}\n"
            f"{self.tensors} tensors equal those of {source} bit for bit{left}.\n"
            f"Proved again from the file: L of the backbone at most {self.lipschitz:.9f}.\n"
            f"Its {kind} logits differed from float64 by at most {self.difference:.1e}; {allowed}.{kept}"
        )


def export(
    network: nn.Module,
    path: str | Path,
    *,
    to: Format,
    input_shape: Shape,
    certificate: Certificate | None = None,
    inputs: Tensor | None = None,
    radius: Precision | None = None,
) -> ExportReport:
    """Write a frozen network to ``path``, read the file back and compare; delete the file if they differ.

    Args:
        network: what ``lipcert.freeze`` returned.
        to: "torch" or "safetensors" (for ``lipcert.load_frozen``; the second with the certificate inside),
            "torch-export" or "onnx" (a program for any batch size).
        input_shape: the shape of one input.
        certificate: the certificate of this network, which "safetensors" needs.
        inputs: float32 examples (N, …) to run the program on; by default random ones in [0, 1].
        radius: "float64" or "float32" gives an ONNX program in that arithmetic a second output, the certified
            radius of its answer, never larger than that of ``certify``.

    Raises:
        ValueError: for a network that is not frozen, a wrong suffix, a missing package.
        NotCertified: for a layer without proof, or one that the format of certificates does not have; and for a
            radius that rounding could make zero wherever ``certify`` has one.
        ExportChanged: if the file holds other numbers or computes something else.
    """
    path, shape = Path(path), tuple(input_shape)
    one_of("to", to, get_args(Format))
    if radius is not None:
        one_of("radius", radius, get_args(Precision))
        if to != "onnx":
            raise ValueError(f"a radius is an output of ONNX files; got {to}. Leave it out, or write ONNX.")
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
    program = network if radius is None else _with_radius(network, links, radius)
    with atomic_file(path) as file:
        try:
            _write(file, program, links, to, certificate, radius)
        except RuntimeError as error:  # torch raises it for a full disk and for what it cannot translate
            first = (str(error).splitlines() or [type(error).__name__])[0][:160]
            raise ValueError(
                f"{path} could not be written; got {first}. Free some space, or use --to torch."
            ) from None
        tensors, run = _read(file, to)
        if isinstance(program, WithRadius):
            found = {name: tensors.pop(name) for name in list(tensors) if name.startswith("radius_")}
            require_same({name: sha256_of(value) for name, value in program.extra_tensors().items()}, found)
        again, count = _compared(network, links, tensors, to)
        proved = prove(again, shape)
        pairs = zip(proved.parts, links.parts, strict=True)
        if any(new.proof.lipschitz > old.proof.lipschitz for new, old in pairs):
            raise ExportChanged(f"{path.name}: a layer has a larger constant than before. Report this.")
        x = example_inputs(shape) if inputs is None else inputs
        logits = run if radius is None else lambda x: run(x.to(dtype_of(radius)))[0]
        difference, allowed = _compare_outputs(proved, logits, x, path, U32 if radius is None else ROUNDOFF[radius])
        kept = None if radius is None else _compare_radii(proved, run, x, path, radius)
    left = len(network.state_dict()) - count
    compared = (difference, allowed, proved.assumes, radius, kept)
    return ExportReport(path, to, count, left, certificate, proved.backbone, *compared)


def example_inputs(shape: Shape, count: int = 8) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


def float32_bound(links: Proved, x: Tensor, u: float = U32) -> tuple[Tensor, Tensor, float]:
    """(float64 logits, how far those of float32 may be from them, the largest norm between layers) for x (N, …).

    Both are (N, C). With another u they are those of its arithmetic.
    """
    with torch.no_grad():
        logits, sizes = walk(links, x.double())
        bound = torch.zeros_like(logits)
        for each in (u, U64):  # the distance of both from the exact logits
            err, norms = errors_along(links, sizes, torch.zeros(len(x), dtype=torch.float64), each)
            rows = torch.ones(logits.shape[1]).double() if links.head is None else links.head.norms
            bound = (bound + rows * err[:, None] + logit_errors(links, norms, each)) * ROUND
    return logits, bound, max(float(size.max()) for size in sizes)


def _with_radius(network: nn.Module, links: Proved, radius: Precision) -> WithRadius:
    if radius == "float32":
        links = prove(network, links.input_shape, dtype=torch.float32)
    return WithRadius(links, radius)


def _write(
    file: Path,
    network: nn.Module,
    links: Proved,
    to: Format,
    certificate: Certificate | None,
    radius: Precision | None,
) -> None:
    if to == "torch-export":
        programs.write_torch_export(file, network, links.input_shape)
    elif to == "onnx":
        notes = {"lipcert_lipschitz": links.backbone.hex()}
        if certificate is not None:
            notes["lipcert_certificate_sha256"] = certificate.sha256
        if radius is None:
            programs.write_onnx(file, network, links.input_shape, notes)
            return
        notes |= {"lipcert_radius": f"{NORMS[links.norm]}, {radius}, of the largest logit"}
        notes |= {"lipcert_arithmetic": "; ".join([ARITHMETIC[radius], SUMS, *links.assumes])}
        programs.write_onnx(file, network, links.input_shape, notes, ("logits", "radius"), dtype_of(radius))
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
    require_same({name: sha256_of(value) for name, value in expected.items()}, found)
    again = copy.deepcopy(network)
    again.load_state_dict({**own, **found})
    return again, len(found)


def require_same(hashes: dict[str, str], found: dict[str, Tensor]) -> None:
    """Raise ``ExportChanged`` unless these are the tensors with those hashes."""
    if different := tensors_differ(hashes, found):
        raise ExportChanged(
            f"the exported file must hold the proved numbers; got another {different}. It was deleted."
        )


def _compare_radii(links: Proved, run: Any, x: Tensor, path: Path, precision: Precision) -> float | None:
    """The median share of the radii of ``certify`` that a program has; raises if one is larger.

    None if ``certify`` has none.
    """
    result = certify(links, x, norm=links.norm)
    logits, radii = run(x.to(dtype_of(precision)))
    radii = radii.double()
    positive = result.radii > 0
    same = (logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()) == result.predictions
    if radii.shape != result.radii.shape or not bool(((radii <= result.radii) & (same | (radii == 0))).all()):
        raise ExportChanged(f"{path.name} has a radius that is larger than that of certify. It was deleted.")
    if not bool(positive.any()):
        return None
    if not bool((radii > 0).any()):
        raise NotCertified(
            f"in {precision}, rounding may cost every margin of these inputs, so each radius would be 0. "
            + ("Write the radius in float64." if precision == "float32" else "Rescale the layers.")
        )
    return float((radii / result.radii)[positive].median())


def _compare_outputs(links: Proved, run: Any, x: Tensor, path: Path, u: float = U32) -> tuple[float, float]:
    """(largest difference, its proved bound); raises unless all are within that bound and within SLACK·ε."""
    logits, bound, size = float32_bound(links, x, u)
    with torch.no_grad():
        found = torch.cat([run(x[:1]), run(x[1:])]) if len(x) > 1 else run(x)  # two batch sizes
    fits = found.shape == logits.shape
    difference = (found.double() - logits).abs() if fits else torch.full_like(logits, math.inf)
    largest = max(size, 1.0, float(logits.abs().max()) if logits.numel() else 1.0)
    limit = bound.clamp_max(SLACK * 2 * u * largest)
    if not bool((difference <= limit).all()):
        worst = float(difference.max())
        raise ExportChanged(
            f"{path.name} must compute the proved network; got logits that differ by {worst:.1e}. It was deleted."
        )
    return float(difference.max()), float(bound.max())
