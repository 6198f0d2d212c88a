"""What the weights of a run say: how many there are, their spectra, and whether the certificate is about them."""

from __future__ import annotations

from safetensors import SafetensorError, safe_open

from lipcert.reports.runs import Run
from lipcert.reports.spectra import Spectrum, spectra_estimates
from lipcert.training.checkpoint import load_model


def examine(run: Run) -> tuple[int, list[Spectrum]]:
    """The number of parameters, and the spectra of the frozen network.

    Raises:
        ValueError: where certificate.json is about other weights.
    """
    frozen = run.frozen()
    path = run.folder / "certificate.safetensors"
    if run.certificate is not None and path.is_file():
        stored = frozen.state_dict()
        try:
            with safe_open(path, framework="pt") as archive:
                other = [n for n in archive.keys() if n not in stored or not stored[n].equal(archive.get_tensor(n))]
        except SafetensorError as error:
            what = str(error).splitlines()[0]
            raise ValueError(f"{path} is damaged ({what}). Run lipcert certify {run.where} again.") from None
        if other:
            raise ValueError(
                f"{run.folder / 'certificate.json'} is not a certificate of model.safetensors: tensor {other[0]} "
                f"differs. Run lipcert certify {run.where} again."
            )
    return sum(p.numel() for p in load_model(run.folder).parameters()), spectra_estimates(frozen)
