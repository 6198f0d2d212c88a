"""``certify`` and ``audit`` by the name of their method.

A method of ``certify`` is a function of a network, images and labels; one of ``audit`` adds joint proofs to those
of the parts.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from lipcert.certified.audit import AuditReport
from lipcert.certified.audit import audit as by_product
from lipcert.certified.certify import CertificationResult
from lipcert.certified.network import Proved
from lipcert.certified.norms import known_norm
from lipcert.certified.op import Shape

# Where each method is: a module and its function, imported when it is used.
METHODS: dict[str, tuple[str, str]] = {
    "lipschitz": ("lipcert.certified.certify", "certify"),
    "local": ("lipcert.certifiers.local", "certify_locally"),
    "lipsdp": ("lipcert.certifiers.lipsdp", "certify"),
    "eclipse-fast": ("lipcert.certifiers.lipsdp", "certify_fast"),
    "smoothing": ("lipcert.certifiers.smoothing", "certify"),
    "sdp-crown": ("lipcert.certifiers.sdp_crown", "certify"),
}
# What a user may choose for each method. Its function has the defaults.
SETTINGS: dict[str, tuple[str, ...]] = {
    "lipschitz": (),
    "local": ("eps", "gram"),
    "lipsdp": ("steps",),
    "eclipse-fast": (),
    "smoothing": ("sigma", "n0", "n", "alpha", "seed", "levels", "early_stop"),
    "sdp-crown": ("radii", "steps", "tries"),
}
AUDITS = ("lipschitz", "lipsdp", "eclipse-fast")


def certify(
    model: nn.Module | Proved,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    norm: str = "l2",
    method: str = "lipschitz",
    **options: Any,
) -> CertificationResult:
    """Certified radii of ``images`` (N, …), floating, for integer ``labels`` (N,).

    Args:
        model: a frozen network, one of lipcert (frozen here), or a Sequential of modules that ``audit`` knows.
        labels: the right classes. Without them the predicted class is certified.
        norm: of the perturbations: "l2"; or "linf" or "l1", for dense networks and the method "lipschitz".
        method: "lipschitz" divides the margin by a proved constant of the whole network. "lipsdp" and
            "eclipse-fast" do so with a smaller constant for dense layers that follow each other. "local" uses
            constants that hold in balls around each image. "sdp-crown" bounds the margin in such a ball.
            "smoothing" adds noise to the input of any classifier; its radii hold with a probability, for the
            smoothed classifier.
        options: settings of the method. For "lipschitz" these are ``arithmetic`` ("float64", or "real" for the
            exact function alone), ``batch_size`` and ``show``, which is called with (examples done, all). "lipsdp"
            also takes ``steps`` of its optimizer, "local" the radii ``eps`` of the balls and ``gram``, "sdp-crown"
            ``steps``, ``tries`` and ``radii``. For "smoothing" see ``lipcert.certifiers.smoothing.Smoothing``.

    Raises:
        NotCertified: if the method has no proof for this network; the message names the layer.
    """
    function = _function(method)
    if _other_norm(norm, method):
        options["norm"] = norm
    result: CertificationResult = function(model, images, labels, **options)
    return result


def _function(method: str) -> Callable[..., CertificationResult]:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    module, name = METHODS[method]
    function: Callable[..., CertificationResult] = getattr(importlib.import_module(module), name)
    return function


def settings_of(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a method of ``certify``: those that are given, and the defaults of its function.

    Raises:
        ValueError: for a setting that the method does not have, or lacks.
    """
    parameters = inspect.signature(_function(method)).parameters
    for name in given:
        if name not in SETTINGS[method]:
            owners = [f"method={owner!r}" for owner, names in SETTINGS.items() if name in names]
            whose = f"{name} is a setting of {' and '.join(owners)}" if owners else f"{name} is no setting"
            takes = ", ".join(SETTINGS[method]) or "none"
            raise ValueError(f"{whose}; the settings of {method!r} are {takes}. Leave it out.")
    settings = {name: given.get(name, parameters[name].default) for name in SETTINGS[method]}
    for name, value in settings.items():
        if value is inspect.Parameter.empty:
            raise ValueError(f"the method {method!r} needs {name}. Pass {name}=0.25, for example.")
    return settings


def audit(
    model: nn.Module,
    inputs: Tensor | Shape,
    *,
    norm: str = "l2",
    method: str = "lipschitz",
    samples: int = 4,
    **options: Any,
) -> AuditReport:
    """Prove what can be proved about ``model``; a training network is frozen first.

    Args:
        inputs: examples (N, …), where the lower bounds are searched, or the shape of one input.
        norm: in which inputs are measured: "l2"; or "linf" or "l1", for dense networks and the method "lipschitz".
        method: "lipschitz" multiplies the constants of the layers. "lipsdp" and "eclipse-fast" prove dense layers
            that follow each other together, and report the smaller constant.
        samples: how many examples are used.
        options: ``steps`` of the optimizer of "lipsdp".
    """
    if method not in AUDITS:
        raise ValueError(f"method must be one of {', '.join(AUDITS)}; got {method!r}.")
    _other_norm(norm, method)
    if method == "lipschitz":
        return by_product(model, inputs, samples=samples, norm=norm, **options)
    from lipcert.certifiers.lipsdp import tighten

    return by_product(
        model, inputs, samples=samples, tighten=lambda proved: tighten(proved, method=method, **options)
    )


def _other_norm(norm: str, method: str) -> bool:
    """Whether the norm is not L2, which methods other than "lipschitz" refuse."""
    if known_norm(norm) != "l2" and method != "lipschitz":
        raise ValueError(f"method={method!r} is about the L2 norm; got norm={norm!r}. Use method='lipschitz'.")
    return norm != "l2"
