"""``certify``: for each input a radius within which the answer cannot change, in the arithmetic that runs.

The network is evaluated in float64, by matrix products, with a bound of the rounding error at *every* point of the
ball carried along (docs/certificate.md): Z_k = ‖ẑ_k‖ + L·R + 2·err_k bounds what is computed anywhere in the ball
of radius R, and err_{k+1} = L_k·err_k + e_k(Z_k). The radius is the smallest (f_y − f_j − 3E_yj)/(L·K_yj) over
all rivals.

Rounding: norms and errors up, margins and radii down. Ties, NaN and infinities give radius 0. "real" arithmetic
leaves the error terms out and says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipcert.errors import NotCertified, positive_int
from lipcert.proofs.audit import Chain, chain, contradicts
from lipcert.proofs.lower import stretch_estimate
from lipcert.proofs.operation import LARGEST, ROUND, UNDERFLOW, g, require_ieee
from lipcert.verified.rounding import U64

Arithmetic = Literal["float64", "real"]
RADII = (36 / 255, 72 / 255, 108 / 255, 0.5, 1.0)
DOWN = 1 - 2.0**-40
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
VAST = 2.0**20
FARTHEST = 2.0**400  # no radius is larger: beyond, norms might overflow


@dataclass(frozen=True)
class CertificationResult:
    """Radii of the examples, and what they rest on."""

    radii: Tensor  # (N,) float64; 0 where the answer is wrong or nothing is certified
    correct: Tensor  # (N,) bool
    predictions: Tensor  # (N,)
    labels: Tensor  # (N,)
    lipschitz: float  # of the backbone, or of the whole map without a last linear layer
    arithmetic: str
    assumed: tuple[str, ...] = ()  # layers whose constant is a user's word
    errors: Tensor | None = None  # (N,) float64: the largest rounding term 3E of each example
    assumes: tuple[str, ...] = ()  # what rounding bounds assume of the platform, e.g. "tanh within 8 ulp"

    @property
    def natural_accuracy(self) -> float:
        return float(self.correct.double().mean())

    def certified_accuracy(self, radius: float) -> float:
        """The share of examples that are right and stay so for every perturbation of norm at most ``radius``."""
        if not radius >= 0:
            raise ValueError(f"radius must be at least 0; got {radius!r}. Pass a number such as 36/255.")
        return float((self.radii > radius).double().mean())

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per example."""
        for index in range(len(self.radii)):
            yield {
                "index": index,
                "label": int(self.labels[index]),
                "prediction": int(self.predictions[index]),
                "radius": float(self.radii[index]),
            }


@torch.no_grad()
def certify(
    model: nn.Module | Chain,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    arithmetic: Arithmetic = "float64",
    batch_size: int = 64,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> CertificationResult:
    """Certified radii of ``images`` (N, …), floating, for integer ``labels`` (N,).

    Args:
        model: a frozen network, one of lipcert (frozen here), or a Sequential of modules that ``audit`` knows.
        labels: the right classes. Without them the predicted class is certified.
        arithmetic: "float64", the claim includes the rounding of a float64 evaluation anywhere in the ball; or
            "real", for the exact function alone. Where a layer has no rounding bound even the logits at x are only
            as float64 computed them, and the result says so.
        show: called with (examples done, all) as it goes.

    Raises:
        NotCertified: where the network has a layer that cannot be proved, or whose rounding is unknown ("float64"),
            or whose registered constant is contradicted by two points; it names the layer.
    """
    positive_int("batch_size", batch_size)
    require_tensors(images=images, labels=labels)
    if not images.is_floating_point() or images.ndim < 2:
        raise ValueError(
            f"expected floating images (N, …); got {images.dtype} {tuple(images.shape)}. Pass data.inputs()."
        )
    if labels is not None and (labels.dtype not in WHOLE or labels.shape != images.shape[:1]):
        raise ValueError(
            f"expected one integer label for each of {len(images)} images; got {labels.dtype} "
            f"{tuple(labels.shape)}. Pass data.labels."
        )
    links = usable_chain(model, images, arithmetic)
    classes = max(2, links.parts[-1].shape[0])
    if labels is not None and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"labels must lie from 0 to {classes - 1}; got {int(labels.min())} to {int(labels.max())}. "
            "Number the classes from 0."
        )
    radii: list[Tensor] = []
    guesses: list[Tensor] = []
    errors: list[Tensor] = []
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        wanted = None if labels is None else labels[part].cpu().long()
        one = _certify_batch(links, images[part].double().cpu(), wanted, arithmetic)
        for kept, value in zip((radii, guesses, errors), one, strict=True):
            kept.append(value)
        show(min(start + batch_size, len(images)), len(images))
    empty = torch.zeros(0)
    joined = [torch.cat(values) if values else empty for values in (radii, guesses, errors)]
    predictions = joined[1].long()
    labels = predictions if labels is None else labels.cpu().long()
    correct = predictions == labels
    lost = correct & ~torch.isfinite(joined[2]) & torch.isfinite(images.detach().cpu()).flatten(1).all(dim=1)
    if bool(lost.any()):
        warnings.warn(
            f"{int(lost.sum())} of {len(images)} inputs have radius 0 because their norms exceed what the rounding "
            "bounds cover.",
            stacklevel=3,
        )
    return CertificationResult(
        joined[0].double(),
        correct,
        predictions,
        labels,
        links.backbone,
        arithmetic
        if arithmetic == "float64" or _rounding_known(links)
        else "real, up to the rounding of the logits",
        tuple(n for n, p in zip(links.names, links.parts, strict=True) if p.assumed),
        joined[2].double(),
        links.assumes,
    )


def require_tensors(**values: Tensor | None) -> None:
    """Raise ValueError for what is no tensor."""
    for name, value in values.items():
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(f"{name} must be a tensor; got {type(value).__name__}. Use torch.as_tensor.")


def usable_chain(model: nn.Module | Chain, inputs: Tensor, arithmetic: str) -> Chain:
    """The chain of ``model``. What would make a claim about ``inputs`` false or empty is refused first."""
    if arithmetic not in ("float64", "real"):
        raise ValueError(f"arithmetic must be 'float64' or 'real'; got {arithmetic!r}. Use 'float64'.")
    if inputs.is_complex() or inputs.is_sparse or inputs.is_meta or inputs.dtype not in READABLE:
        raise ValueError(f"inputs must be an ordinary real tensor; got {inputs.dtype} on {inputs.device}.")
    require_ieee()
    links = model if isinstance(model, Chain) else chain(model, tuple(inputs.shape[1:]))
    require_provable(links)
    require_shape(links, inputs)
    if arithmetic == "float64":
        require_rounding(links)
    with torch.inference_mode(False):
        require_not_refuted(links, inputs)
    return links


def require_rounding(links: Chain) -> None:
    """Raise ``NotCertified`` if a layer has no bound of its rounding error in float64: all radii would be 0."""
    one = torch.ones(1, dtype=torch.float64)
    for name, part in zip(links.names, links.parts, strict=True):
        if part.error is not None and not part.largest <= LARGEST[U64]:
            raise NotCertified(
                f"{name or 'the network'} ({part.op}) has no bound of its rounding error, because it works with "
                f"numbers as large as {part.largest:.3g} (or their reciprocals). Rescale the layer, or pass "
                "arithmetic='real' to certify the exact function."
            )
        if not bool(torch.isfinite(part.error_bound(one, U64)).all()):
            raise NotCertified(
                f"{name or 'the network'} ({part.op.strip('<>')}) has no bound of its rounding error, so nothing "
                "can be certified in float64. Pass arithmetic='real' to certify the exact function."
            )


def require_not_refuted(links: Chain, inputs: Tensor, samples: int = 4) -> None:
    """Raise ``NotCertified`` if two points contradict a constant that is only someone's word."""
    if not any(part.assumed for part in links.parts):
        return
    some = inputs.detach().clone().double().cpu()
    x = some[torch.isfinite(some).flatten(1).all(dim=1)][:samples]
    for name, part in zip(links.names, links.parts, strict=True) if len(x) else ():
        if part.assumed and part.claim is not None:
            stretch = stretch_estimate(part.forward, x)
            if contradicts(stretch, part):
                raise NotCertified(
                    f"{name or 'the network'} ({part.op.strip('<>')}) claims the constant {part.claim:.6g}, but "
                    f"two points show at least {stretch.ratio:.6g}. Correct its constant."
                )
        x = part.forward(x)


def require_provable(links: Chain) -> None:
    """Raise ``NotCertified`` unless every layer has a finite constant and the output is a vector of logits."""
    for name, part in zip(links.names, links.parts, strict=True):
        if not math.isfinite(part.lipschitz):
            raise NotCertified(
                f"every layer needs a proved constant; got none for {name} ({part.op}): {part.method}. "
                "Run audit to see it, and repair or replace the layer."
            )
    if not math.isfinite(links.lipschitz):
        raise NotCertified("the product of the layers' constants overflows. Rescale the layers.")
    if len(links.parts[-1].shape) != 1:
        raise NotCertified(
            f"the network must end in a vector of logits; got outputs of shape {links.parts[-1].shape}. Add "
            "Flatten."
        )


def require_shape(links: Chain, images: Tensor) -> None:
    """Raise ValueError unless the inputs have the shape that the constants were proved for."""
    if tuple(images.shape[1:]) != links.input_shape:
        raise ValueError(
            f"the proof is for inputs of shape {links.input_shape}; got {tuple(images.shape[1:])}. Make the chain "
            "or the classifier for the shape of these inputs."
        )


def walk(links: Chain, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and ‖ẑ_k‖ of the input of every operation, rounded up."""
    sizes = []
    for part in links.parts:
        # Squares below 2⁻¹⁰²² vanish: at most 2⁻⁵¹¹ for each entry.
        sizes.append(x.flatten(1).double().norm(dim=1) * (1 + g(math.prod(x.shape[1:]) + 4)) + 2.0**-400)
        with torch.autocast(x.device.type, enabled=False):
            made = part.forward(x)
        if made.dtype != x.dtype:
            raise NotCertified(
                f"{part.op} must keep {x.dtype}; got {made.dtype}. Its rounding is not that of the proof."
            )
        x = made
    return x, sizes


def errors_along(
    links: Chain, sizes: list[Tensor], radius: Tensor, u: float, *, known_only: bool = False
) -> tuple[Tensor, Tensor]:
    """(err, Z) at the last operation: bounds for every point of the ball, for its input if it is a head.

    Without a head err is that of the output. ``known_only`` leaves out operations whose rounding is unknown.
    """
    err, moved, norms = torch.zeros_like(radius), radius * ROUND, radius
    for index, (part, size) in enumerate(zip(links.parts, sizes, strict=True)):
        norms = (size + moved + 2 * err) * ROUND
        if index + 1 == len(links.parts) and links.headed:
            break
        own = part.error_bound(norms, u)
        own = torch.where(torch.isfinite(own), own, 0.0) if known_only else own
        err = (part.lipschitz * err + own) * ROUND
        moved = moved * part.lipschitz * ROUND
    return err, norms


def logit_errors(links: Chain, norms: Tensor, u: float) -> Tensor:  # (N,) → (N, C)
    """What the last products w_j·z + b_j may lose by rounding; 0 without a head."""
    head = links.head
    if head is None:
        return torch.zeros(len(norms), links.parts[-1].shape[0], dtype=torch.float64)
    known = torch.isfinite(links.parts[-1].error_bound(norms, u))[:, None]  # tensors and norms within range
    sizes = head.norms * norms[:, None] + head.bias.abs()
    return torch.where(known, g(head.weight.shape[1] + 1, u) * sizes * ROUND + UNDERFLOW[u], math.inf)


def _certify_batch(
    links: Chain, x: Tensor, labels: Tensor | None, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    logits, sizes = walk(links, x)
    predictions = logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
    labels = predictions if labels is None else labels
    margins, distances = rivals_of(links, logits, labels)
    constants = (distances * (links.backbone * ROUND)).clamp_min(2.0**-1000)
    naive = torch.nan_to_num((margins / constants).amin(dim=1) * ROUND, 0.0).clamp(0.0, FARTHEST)
    ball, times = (naive, 3) if arithmetic == "float64" else (torch.zeros_like(naive), 1)  # R = naive ≥ the radius
    known = arithmetic == "float64" or _rounding_known(links)

    def within(ball: Tensor) -> tuple[Tensor, Tensor]:
        """Radii whose rounding terms hold in that ball, and those terms."""
        err, norms = errors_along(links, sizes, ball, U64)
        terms = error_terms(links, err, norms, distances, labels, U64)
        terms = terms if known else torch.zeros_like(terms)
        quotients = (margins * DOWN - times * terms) * DOWN / constants * DOWN
        return torch.nan_to_num(quotients.amin(dim=1), 0.0).clamp(0.0, FARTHEST) + 0.0, terms  # no negative zero

    radii, terms = within(ball)
    # Where classes hardly move the ball has no end, and its rounding eats the margin: then a vast one will do.
    lost = (radii == 0) & (ball > VAST)
    if bool(lost.any()):
        smaller = torch.where(lost, VAST, ball)
        again, fewer = within(smaller)
        radii = torch.where(lost, torch.minimum(again, smaller * DOWN), radii)
        terms = torch.where(lost[:, None], fewer, terms)
    usable = (predictions == labels) & torch.isfinite(logits).all(dim=1) & torch.isfinite(x).flatten(1).all(dim=1)
    return torch.where(usable, radii, 0.0), predictions, times * terms.amax(dim=1)


def _rounding_known(links: Chain) -> bool:
    one = torch.ones(1, dtype=torch.float64)
    return all(bool(torch.isfinite(part.error_bound(one, U64)).all()) for part in links.parts)


def rivals_of(links: Chain, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """f_y − f_j and ‖w_y − w_j‖ of all rivals j ≠ y, (N, C − 1); with one output ±f and ‖w‖, (N, 1)."""
    distances, classes = links.distances, logits.shape[1]
    if classes == 1:
        return torch.where(labels == 1, 1.0, -1.0).double()[:, None] * logits, distances.expand(len(labels), 1)
    others = labels[:, None] != torch.arange(classes)
    shape = (len(labels), classes - 1)
    margins = logits.gather(1, labels[:, None]) - logits
    return margins[others].view(shape), distances[labels][others].view(shape)


def error_terms(links: Chain, err: Tensor, norms: Tensor, distances: Tensor, labels: Tensor, u: float) -> Tensor:
    """E_yj: how far the computed f_y − f_j is from the exact one, for every rival; with one output, f itself."""
    each = logit_errors(links, norms, u)
    classes = each.shape[1]
    if classes == 1:
        return (distances * err[:, None] + each) * ROUND
    others = labels[:, None] != torch.arange(classes)
    rounded = each.gather(1, labels[:, None]) + each[others].view(len(labels), classes - 1)
    return (distances * err[:, None] + rounded) * ROUND


def output_interval(
    model: nn.Module | Chain, inputs: Tensor, radius: float | Tensor, *, arithmetic: Arithmetic = "float64"
) -> tuple[Tensor, Tensor]:  # (N, …), () or (N,) → (N, outputs), twice
    """Bounds of every output over all points within ``radius`` of each input: regression with a guarantee.

    They hold in real arithmetic and, unless ``arithmetic="real"``, for a float64 evaluation anywhere in the ball.
    """
    require_tensors(inputs=inputs)
    try:
        reach = torch.as_tensor(radius, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError):
        reach = torch.tensor(math.nan)
    if reach.shape not in ((), inputs.shape[:1]) or not bool(((reach >= 0) & torch.isfinite(reach)).all()):
        raise ValueError(
            f"radius must be finite and at least 0, one number or one for each input; got {radius!r:.60}. Pass the "
            "size of the ball."
        )
    links = usable_chain(model, inputs, arithmetic)
    exact = arithmetic == "real"
    if exact and not _rounding_known(links):
        warnings.warn(
            "these bounds hold up to the rounding of a float64 evaluation, because a layer has no rounding bound.",
            stacklevel=2,
        )
    with torch.no_grad():
        ball = reach.expand(len(inputs))
        outputs, sizes = walk(links, inputs.detach().double().cpu())
        # For the exact function only the error at the input itself counts.
        around = torch.zeros_like(ball) if exact else ball
        err, norms = errors_along(links, sizes, around, U64, known_only=exact)
        each = logit_errors(links, norms, U64)
        each = torch.where(torch.isfinite(each), each, 0.0) if exact else each
        rows = torch.ones(outputs.shape[1]).double() if links.head is None else links.head.norms
        slack = (rows * (links.backbone * ball[:, None] * ROUND + 2 * err[:, None]) * ROUND + 2 * each) * ROUND
        low, high = outputs - slack, outputs + slack
        low, high = low - low.abs() * 2.0**-50, high + high.abs() * 2.0**-50
        return torch.where(low.isnan(), -math.inf, low), torch.where(high.isnan(), math.inf, high)
