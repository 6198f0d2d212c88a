"""What the weights of a run say: how many there are, their spectra, and whether the certificate is about them."""

from __future__ import annotations

from dataclasses import dataclass

from lipcert.exporters.files import load_frozen
from lipcert.records import RunFolder
from lipcert.reports.spectra import Spectrum, spectra_estimates
from lipcert.training.checkpoint import load_model


@dataclass(frozen=True)
class Network:
    """Computed from model.safetensors alone."""

    parameters: int
    spectra: list[Spectrum]


def examine(run: RunFolder) -> Network:
    """Count the parameters of a run and look at the spectra of its frozen network.

    Raises:
        ValueError: where certificate.json is about other tensors than frozen.safetensors holds.
    """
    frozen = load_frozen(run.frozen_file)
    if run.certificate is not None:
        load_frozen(run.folder)  # compares the tensors with the hashes of the certificate
    return Network(sum(p.numel() for p in load_model(run.folder).parameters()), spectra_estimates(frozen))
