"""``certify`` by the name of its method. A method is a function of a network, images and labels."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

from lipcert.certified.certify import CertificationResult
from lipcert.certified.network import Proved

# Where each method is: a module and its function, imported when it is used.
METHODS: dict[str, tuple[str, str]] = {
    "lipschitz": ("lipcert.certified.certify", "certify"),
}


def certify(
    model: nn.Module | Proved,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    method: str = "lipschitz",
    **options: Any,
) -> CertificationResult:
    """Certified radii of ``images`` (N, …), floating, for integer ``labels`` (N,).

    Args:
        model: a frozen network, one of lipcert (frozen here), or a Sequential of modules that ``audit`` knows.
        labels: the right classes. Without them the predicted class is certified.
        method: "lipschitz" divides the margin by a proved constant of the whole network.
        options: settings of the method. For "lipschitz" these are ``arithmetic`` ("float64", or "real" for the
            exact function alone), ``batch_size`` and ``show``, which is called with (examples done, all).

    Raises:
        NotCertified: if the method has no proof for this network; the message names the layer.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    module, name = METHODS[method]
    return getattr(importlib.import_module(module), name)(model, images, labels, **options)
