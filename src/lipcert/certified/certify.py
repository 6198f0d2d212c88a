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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipcert.certified.audit import contradicts, repeated
from lipcert.certified.freeze import prove
from lipcert.certified.lower import stretch_estimate
from lipcert.certified.network import Proved, require_ieee
from lipcert.certified.norms import NAMES, measure
from lipcert.certified.op import LARGEST, ROUND, UNDERFLOW, g
from lipcert.errors import NotCertified, positive_int
from lipcert.verified.rounding import U64

Arithmetic = Literal["float64", "real"]
DOWN = 1 - 2.0**-40
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
VAST = 2.0**20
LEAST = 2.0**-1000  # taken off every radius: a subnormal quotient may be rounded up by half of its last place
FARTHEST = 2.0**400  # no radius is larger: beyond, norms might overflow


@dataclass(frozen=True, repr=False)
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
    method: str = "lipschitz"  # a name of lipcert.certifiers.methods
    # Of randomized smoothing alone:
    confidence: float | None = None  # the probability that an image's radius holds; None: it holds, without chance
    abstained: Tensor | None = None  # (N,) bool: no class was found; the prediction is −1
    hits: Tensor | None = None  # (N,): how many of the ``samples`` gave the predicted class
    samples: Tensor | None = None  # (N,)
    norm: str = "l2"  # in which the radii are
    # What ``save`` writes:
    proved: Proved | None = field(default=None, compare=False)
    inputs: Tensor | None = field(default=None, compare=False)  # the images, as they were given

    def __repr__(self) -> str:
        radii = self.radii[self.correct & (self.radii > 0)]
        some = (
            f"up to {float(radii.max()):.3g}, median {float(radii.median()):.3g}" if len(radii) else "none positive"
        )
        return (
            f"CertificationResult({len(self.radii)} inputs, {len(radii)} certified; {self.norm} radii: "
            f"{some}; arithmetic: {self.arithmetic})"
        )

    @property
    def guarantee(self) -> str:
        """What the radii mean, in one sentence."""
        if self.confidence is None:
            measured = "" if self.norm == "l2" else f" in the {NAMES[self.norm]} norm"
            return (
                f"No perturbation of an image by less than its radius{measured} changes the answer of this network."
            )
        return (
            "Probabilistic: the radius of each image, on its own, holds with probability at least "
            f"{self.confidence} over the random samples, for the smoothed classifier, not for the network itself."
        )

    @property
    def natural_accuracy(self) -> float:
        return float(self.correct.double().mean())

    def certified_accuracy(self, radius: float) -> float:
        """The share of examples that are right and stay so for every perturbation of norm at most ``radius``."""
        if not radius >= 0:
            raise ValueError(f"radius must be at least 0; got {radius!r}. Pass a number such as 36/255.")
        return float((self.radii > radius).double().mean())

    def save(self, folder: str | Path, *, about: str = "") -> Path:
        """Write the frozen network, a certificate that anyone can check and the radii into a folder; return it.

        ``lipcert.verify(folder)`` runs the independent checker on certificate.json, ``lipcert.load(folder)`` gives
        the network, and certified.jsonl has ``rows()``. Claims are about float32 images.

        Args:
            folder: a new or empty one.
            about: what the images are, in a few words.

        Raises:
            NotCertified: for an operation that the format does not have, for constants that are a user's word, and
                for radii that no checker can repeat.
        """
        from lipcert.certified.certificate import save_result

        return save_result(self, Path(folder), about)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per example."""
        for index in range(len(self.radii)):
            row: dict[str, Any] = {
                "index": index,
                "label": int(self.labels[index]),
                "prediction": int(self.predictions[index]),
                "radius": float(self.radii[index]),
            }
            if self.hits is not None and self.samples is not None:
                row |= {"hits": int(self.hits[index]), "samples": int(self.samples[index])}
            yield row


@torch.no_grad()
def certify(
    model: nn.Module | Proved,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    norm: str = "l2",
    arithmetic: Arithmetic = "float64",
    batch_size: int = 64,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> CertificationResult:
    """Certified radii of ``images`` (N, …), floating, for integer ``labels`` (N,).

    Args:
        model: a frozen network, one of lipcert (frozen here), or a Sequential of modules that ``audit`` knows.
        labels: the right classes. Without them the predicted class is certified.
        norm: of the perturbations, "l2", "linf" or "l1".
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
    require_labels(images, labels)
    proved = usable_chain(model, images, arithmetic, norm)
    classes = max(2, proved.shape[0])
    if labels is not None and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"labels must lie from 0 to {classes - 1}; got {int(labels.min())} to {int(labels.max())}. "
            "Number the classes from 0."
        )
    nothing = torch.zeros(0, dtype=torch.float64)
    batches = [(nothing, nothing.long(), nothing)]
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        wanted = None if labels is None else labels[part].cpu().long()
        batches.append(_certify_batch(proved, images[part].double().cpu(), wanted, arithmetic))
        show(min(start + batch_size, len(images)), len(images))
    radii, predictions, errors = (torch.cat(column) for column in zip(*batches, strict=True))
    labels = predictions if labels is None else labels.cpu().long()
    correct = predictions == labels
    lost = correct & ~torch.isfinite(errors) & torch.isfinite(images.detach().cpu()).flatten(1).all(dim=1)
    if bool(lost.any()):
        warnings.warn(
            f"{int(lost.sum())} of {len(images)} inputs have radius 0 because their norms exceed what the rounding "
            "bounds cover.",
            stacklevel=3,
        )
    return CertificationResult(
        radii,
        correct,
        predictions,
        labels,
        proved.backbone,
        arithmetic
        if arithmetic == "float64" or proved.rounding_known
        else "real, up to the rounding of the logits",
        tuple(part.name for part in proved.parts if part.proof.assumed),
        errors,
        proved.assumes,
        norm=norm,
        proved=proved,
        inputs=images,
    )


def require_tensors(**values: Tensor | None) -> None:
    """Raise ValueError for what is no tensor."""
    for name, value in values.items():
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(f"{name} must be a tensor; got {type(value).__name__}. Use torch.as_tensor.")


def require_labels(images: Tensor, labels: Tensor | None) -> None:
    """Raise ValueError unless there is one integer label for each image, or none at all."""
    if labels is not None and (labels.dtype not in WHOLE or labels.shape != images.shape[:1]):
        raise ValueError(
            f"expected one integer label for each of {len(images)} images; got {labels.dtype} "
            f"{tuple(labels.shape)}. Pass data.labels."
        )


def usable_chain(model: nn.Module | Proved, inputs: Tensor, arithmetic: str, norm: str = "l2") -> Proved:
    """The chain of ``model``. What would make a claim about ``inputs`` false or empty is refused first."""
    if arithmetic not in ("float64", "real"):
        raise ValueError(f"arithmetic must be 'float64' or 'real'; got {arithmetic!r}. Use 'float64'.")
    if inputs.is_complex() or inputs.is_sparse or inputs.is_meta or inputs.dtype not in READABLE:
        raise ValueError(f"inputs must be an ordinary real tensor; got {inputs.dtype} on {inputs.device}.")
    require_ieee()
    proved = model if isinstance(model, Proved) else prove(model, tuple(inputs.shape[1:]), norm=norm)
    if proved.norm != norm:
        raise ValueError(f"the proof is about inputs in {NAMES[proved.norm]}; got norm={norm!r}. Prove it again.")
    require_provable(proved)
    require_shape(proved, inputs)
    if arithmetic == "float64":
        require_rounding(proved)
    with torch.inference_mode(False):
        require_not_refuted(proved, inputs)
    return proved


def require_rounding(proved: Proved) -> None:
    """Raise ``NotCertified`` unless the rounding error of every part has a bound."""
    for part in proved.parts:
        proof = part.proof
        if proof.error is not None and not proof.largest <= LARGEST[U64]:
            raise NotCertified(
                f"{part.name} ({part.op}) has no bound of its rounding error, because it works with numbers as "
                f"large as {proof.largest:.3g} (or their reciprocals). Rescale the layer, or pass "
                "arithmetic='real' to certify the exact function."
            )
        if not proof.rounding_known:
            raise NotCertified(
                f"{part.name} ({part.op.strip('<>')}) has no bound of its rounding error, so nothing can be "
                "certified in float64. Pass arithmetic='real' to certify the exact function."
            )


def require_not_refuted(proved: Proved, inputs: Tensor, samples: int = 4) -> None:
    """Raise ``NotCertified`` if two points contradict a constant that is only declared."""
    if not any(part.proof.assumed for part in proved.parts):
        return
    some = inputs.detach().clone().double().cpu()
    x = some[torch.isfinite(some).flatten(1).all(dim=1)][:samples]
    if not len(x):
        return
    values = [*proved.run(x), x]
    for part in proved.parts:
        if part.proof.assumed and part.proof.claim is not None:
            stretch = stretch_estimate(repeated(part), values[part.inputs[0]])
            if contradicts(stretch, part):
                raise NotCertified(
                    f"{part.name} ({part.op.strip('<>')}) claims the constant {part.proof.claim:.6g}, but two "
                    f"points show at least {stretch.ratio:.6g}. Correct its constant."
                )


def require_provable(proved: Proved) -> None:
    """Raise ``NotCertified`` unless every layer has a finite constant and the output is a vector of logits."""
    for part in proved.parts:
        if not math.isfinite(part.proof.lipschitz):
            raise NotCertified(
                f"every layer needs a proved constant, but {part.name} ({part.op}) has none: {part.proof.method}. "
                "Run audit to see it, and repair or replace the layer."
            )
    if not math.isfinite(proved.lipschitz):
        raise NotCertified("the product of the layers' constants overflows. Rescale the layers.")
    if len(proved.shape) != 1:
        raise NotCertified(
            f"the network must end in a vector of logits, but its outputs have shape {proved.shape}. Add Flatten."
        )


def require_shape(proved: Proved, images: Tensor) -> None:
    """Raise ValueError unless the inputs have the shape that the constants were proved for."""
    if tuple(images.shape[1:]) != proved.input_shape:
        raise ValueError(
            f"the proof is for inputs of shape {proved.input_shape}; got {tuple(images.shape[1:])}. Make the chain "
            "or the classifier for the shape of these inputs."
        )


def walk(proved: Proved, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and the norm of what each part but the last computes, rounded up; the input's norm comes last."""
    values, sizes = {-1: x}, []
    last = {place: index for index, part in enumerate(proved.parts) for place in part.inputs}
    with torch.autocast(x.device.type, enabled=False):
        for index, part in enumerate(proved.parts):
            value = part.forward(*(values[place] for place in part.inputs))
            if value.dtype != x.dtype:
                raise NotCertified(
                    f"{part.name} ({part.op}) must keep {x.dtype}, but it gives {value.dtype}. Its rounding is not "
                    "that of the proof."
                )
            # Free what no later part reads.
            values = {place: kept for place, kept in values.items() if last[place] > index} | {index: value}
            if index + 1 < len(proved.parts):
                sizes.append(norms_up(value, part.proof.norm))
    return value, [*sizes, norms_up(x, proved.norm)]


def norms_up(x: Tensor, norm: str) -> Tensor:  # (N, …) → (N,)
    """The norm of each example in float64, rounded up."""
    # Squares below 2⁻¹⁰²² vanish: at most 2⁻⁵¹¹ for each entry.
    return measure(x.double(), norm) * (1 + g(math.prod(x.shape[1:]) + 4)) + 2.0**-400


def errors_along(
    proved: Proved, sizes: list[Tensor], radius: Tensor, u: float, *, known_only: bool = False
) -> tuple[Tensor, Tensor]:
    """(err, Z) at the head: bounds for every point of the ball, for its input. Without a head err is the output's.

    ``known_only`` leaves out parts whose rounding is unknown.
    """
    errors, moved = {-1: torch.zeros_like(radius)}, {-1: radius * ROUND}
    norms = radius
    for index, part in enumerate(proved.parts):
        proof = part.proof
        each = [(sizes[p] + moved[p] + 2 * errors[p]) * ROUND for p in part.inputs]
        norms = proof.reached(each)
        if index + 1 == len(proved.parts) and proved.headed:
            return errors[part.inputs[0]], norms
        own = proof.error_bound(norms, u)
        own = torch.where(torch.isfinite(own), own, 0.0) if known_only else own
        errors[index] = (proof.carried([errors[p] for p in part.inputs]) + own) * ROUND
        moved[index] = proof.carried([moved[p] for p in part.inputs]) * ROUND
    return errors[len(proved.parts) - 1], norms


def logit_errors(proved: Proved, norms: Tensor, u: float) -> Tensor:  # (N,) → (N, C)
    """What the last products w_j·z + b_j may lose by rounding; 0 without a head."""
    head = proved.head
    if head is None:
        return torch.zeros(len(norms), proved.shape[0], dtype=torch.float64)
    known = torch.isfinite(proved.parts[-1].proof.error_bound(norms, u))[:, None]  # tensors and norms within range
    sizes = head.norms * norms[:, None] + head.bias.abs()
    return torch.where(known, g(head.weight.shape[1] + 1, u) * sizes * ROUND + UNDERFLOW[u], math.inf)


def _certify_batch(
    proved: Proved, x: Tensor, labels: Tensor | None, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    logits, sizes = walk(proved, x)
    predictions = logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
    labels = predictions if labels is None else labels
    margins, distances = rivals_of(proved, logits, labels)
    constants = rival_constants(proved, distances, labels)
    naive = torch.nan_to_num((margins / constants).amin(dim=1) * ROUND, 0.0).clamp(0.0, FARTHEST)
    ball, times = (naive, 3) if arithmetic == "float64" else (torch.zeros_like(naive), 1)  # R = naive ≥ the radius
    known = arithmetic == "float64" or proved.rounding_known

    def within(ball: Tensor) -> tuple[Tensor, Tensor]:
        """Radii whose rounding terms hold in that ball, and those terms."""
        err, norms = errors_along(proved, sizes, ball, U64)
        terms = error_terms(proved, err, norms, distances, labels, U64)
        terms = terms if known else torch.zeros_like(terms)
        quotients = (margins * DOWN - times * terms) * DOWN / constants * DOWN
        radii = torch.nan_to_num(quotients.amin(dim=1) - LEAST, 0.0).clamp(0.0, FARTHEST)
        return radii + 0.0, terms  # no negative zero

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


def rivals_of(proved: Proved, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """f_y − f_j and ‖w_y − w_j‖ of all rivals j ≠ y, (N, C − 1); with one output ±f and ‖w‖, (N, 1)."""
    classes, distances = logits.shape[1], rival_columns(proved.distances, labels)
    if classes == 1:
        return torch.where(labels == 1, 1.0, -1.0).double()[:, None] * logits, distances
    others = labels[:, None] != torch.arange(classes)
    margins = logits.gather(1, labels[:, None]) - logits
    return margins[others].view(len(labels), classes - 1), distances


def rival_constants(proved: Proved, distances: Tensor, labels: Tensor) -> Tensor:  # (N, C − 1), (N,) → (N, C − 1)
    """K_yj of all rivals from the input on, rounded up: by the backbone, or by a joint proof if that is smaller."""
    constants = (distances * (proved.backbone * ROUND)).clamp_min(2.0**-1000)
    if proved.joint_pairs is None:
        return constants
    return torch.minimum(constants, rival_columns(proved.joint_pairs, labels))


def rival_columns(pairs: Tensor, labels: Tensor) -> Tensor:  # (C, C), (N,) → (N, C − 1)
    """The row of each label without its own entry; with one output the only entry, (N, 1)."""
    classes = len(pairs)
    if classes == 1:
        return pairs.expand(len(labels), 1)
    others = labels[:, None] != torch.arange(classes)
    return pairs[labels][others].view(len(labels), classes - 1)


def error_terms(proved: Proved, err: Tensor, norms: Tensor, distances: Tensor, labels: Tensor, u: float) -> Tensor:
    """E_yj: how far the computed f_y − f_j is from the exact one, for every rival; with one output, f itself."""
    each = logit_errors(proved, norms, u)
    classes = each.shape[1]
    if classes == 1:
        return (distances * err[:, None] + each) * ROUND
    others = labels[:, None] != torch.arange(classes)
    rounded = each.gather(1, labels[:, None]) + each[others].view(len(labels), classes - 1)
    return (distances * err[:, None] + rounded) * ROUND


def output_interval(
    model: nn.Module | Proved,
    inputs: Tensor,
    radius: float | Tensor,
    *,
    norm: str = "l2",
    arithmetic: Arithmetic = "float64",
) -> tuple[Tensor, Tensor]:  # (N, …), () or (N,) → (N, outputs), twice
    """Bounds of every output over all points within ``radius`` of each input: regression with a guarantee.

    ``norm`` is that of the radius. The bounds hold in real arithmetic and, unless ``arithmetic="real"``, for a
    float64 evaluation anywhere in the ball.
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
    proved = usable_chain(model, inputs, arithmetic, norm)
    exact = arithmetic == "real"
    if exact and not proved.rounding_known:
        warnings.warn(
            "these bounds hold up to the rounding of a float64 evaluation, because a layer has no rounding bound.",
            stacklevel=2,
        )
    with torch.no_grad():
        ball = reach.expand(len(inputs))
        outputs, sizes = walk(proved, inputs.detach().double().cpu())
        # For the exact function only the error at the input itself counts.
        around = torch.zeros_like(ball) if exact else ball
        err, norms = errors_along(proved, sizes, around, U64, known_only=exact)
        each = logit_errors(proved, norms, U64)
        each = torch.where(torch.isfinite(each), each, 0.0) if exact else each
        rows = torch.ones(outputs.shape[1]).double() if proved.head is None else proved.head.norms
        slack = (rows * (proved.backbone * ball[:, None] * ROUND + 2 * err[:, None]) * ROUND + 2 * each) * ROUND
        low, high = outputs - slack, outputs + slack
        low, high = low - low.abs() * 2.0**-50, high + high.abs() * 2.0**-50
        return torch.where(low.isnan(), -math.inf, low), torch.where(high.isnan(), math.inf, high)
