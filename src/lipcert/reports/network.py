"""What the weights of a run say: how many there are, their spectra, and whether the certificate is about them."""

from __future__ import annotations

from dataclasses import dataclass

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lipcert.certified.freeze import freeze
from lipcert.reports.runs import Run
from lipcert.reports.spectra import Spectrum, spectra_estimates
from lipcert.training.checkpoint import load_model

NEAR = 1e-4  # another machine may freeze a weight with other last bits; another training changes far more


@dataclass(frozen=True)
class Network:
    """Computed from model.safetensors alone."""

    parameters: int
    spectra: list[Spectrum]


def examine(run: Run) -> Network:
    """Load and freeze the network of a run.

    Raises:
        ValueError: where certificate.json is about other weights.
    """
    model = load_model(run.folder)
    frozen = freeze(model)
    _require_same_weights(run, frozen)
    return Network(sum(p.numel() for p in model.parameters()), spectra_estimates(frozen))


def _require_same_weights(run: Run, frozen: nn.Module) -> None:
    if run.certificate is None:
        return
    path = run.folder / "certificate.safetensors"
    names = [str(node["weight"]) for node in run.certificate.nodes if node.get("weight") is not None]
    if not path.is_file():
        return
    here = frozen.state_dict()
    try:
        with safe_open(path, framework="pt") as archive:
            other = [name for name in names if not _near(here.get(name), archive.get_tensor(name))]
    except SafetensorError as error:
        found = str(error).splitlines()[0]
        raise ValueError(f"{path}: expected tensors; got {found}. Run lipcert certify {run.where} again.") from None
    if other:
        raise ValueError(
            f"{run.folder / 'certificate.json'}: expected a certificate of model.safetensors; got one with another "
            f"tensor {other[0]}. Run lipcert certify {run.where} again."
        )


def _near(here: Tensor | None, there: Tensor) -> bool:
    if here is None or here.shape != there.shape:
        return False
    return bool((here - there).abs().max() <= NEAR * here.abs().max())
