"""Losses for networks whose margin is a certificate: logits (N, C) and labels (N,) to a scalar, the batch mean.

Notation: f_j is the logit of class j, y the label, CE(f, y) = −log softmax(f)_y. A 1-Lipschitz network cannot
scale its logits up, so plain cross entropy stops early; every loss here asks for a margin f_y − f_j in its own way.

``GloRo``, ``GloRoTrades``, ``EMMA`` and ``CertificateRegularized`` need how fast f_y − f_j can change per unit of
the input. They take it as the third argument of ``forward``, ``pairwise``: one number for all pairs, or (C, C). The
default √2 is right when
the whole map to the logits is 1-Lipschitz; for a ``NormalizedHead`` pass ``head.pairwise_bound()`` (a constant) or
``torch.cdist(head.rows(), head.rows())`` (the gradient then also pulls the rows apart, as published), times
``lipcert.layers.lipschitz_estimate(backbone)`` where the norms of the layers below are tracked.
Logits of less than float32 are computed in float32. No loss enters a certificate: rounding has no direction here.

Shapes and dtypes are always checked. Values (labels in range, constants at least 0) are checked on a CPU only: on
an accelerator a check would wait for the device in every step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SQRT2 = math.sqrt(2)


def _number(name: str, value: object, low: float, high: float = math.inf, *, cure: str) -> float:
    """``value`` as a finite float in [low, high], else a ValueError that names the argument."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
        limits = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise ValueError(f"{name} must be a finite number {limits}; got {value!r}. {cure}")
    return float(value)  # type: ignore[arg-type]


def _offset_and_temperature(offset: float, temperature: float) -> tuple[float, float]:
    if not math.isfinite(offset) or offset < 0 or not math.isfinite(temperature) or temperature <= 0:
        raise ValueError(
            f"offset must be at least 0 and temperature above 0; got {offset!r} and {temperature!r}. "
            "The paper uses 2.12 and 0.25."
        )
    return float(offset), float(temperature)


def _readable(values: Tensor) -> bool:
    """Whether looking at the values is free: on a CPU. Elsewhere it would wait for the device in every step."""
    return values.device.type == "cpu"


def _batch(logits: Tensor, labels: Tensor, *, binary: bool = False) -> tuple[Tensor, Tensor]:
    """The batch, logits in at least float32 and labels in int64, or a ValueError that says what is wrong."""
    least = 1 if binary else 2
    if logits.ndim != 2 or logits.shape[0] < 1 or logits.shape[1] < least or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"expected logits (N, C) with N ≥ 1 and C ≥ {least}, and labels (N,); got {tuple(logits.shape)} and "
            f"{tuple(labels.shape)}. One row per example, one column per class; turn one-hot labels into "
            "indices with labels.argmax(dim=1)."
        )
    if not logits.is_floating_point() or labels.dtype.is_floating_point or labels.dtype.is_complex:
        raise ValueError(
            f"expected floating-point logits and integer labels; got {logits.dtype} and {labels.dtype}. "
            "Pass the network's output, and labels.long()."
        )
    labels, classes = labels.long(), max(2, logits.shape[1])
    low, high = labels.aminmax() if _readable(labels) else (0, 0)
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels must lie from 0 to {classes - 1} for logits of shape {tuple(logits.shape)}; got {int(low)} to "
            f"{int(high)}. Number the classes from 0, or give the network more outputs."
        )
    return (logits if logits.dtype == torch.float64 else logits.float()), labels


def _own(logits: Tensor, labels: Tensor) -> Tensor:  # (N, C) bool
    """True at (n, y_n). With one logit, class 1 is its positive side."""
    first = 1 if logits.shape[1] == 1 else 0
    return labels[:, None] == torch.arange(first, first + logits.shape[1], device=labels.device)


def _margins(logits: Tensor, labels: Tensor) -> Tensor:  # (N, C)
    return logits.gather(1, labels[:, None]) - logits  # f_y − f_j


def _constants(pairwise: float | Tensor, logits: Tensor, labels: Tensor) -> Tensor:  # (N, C)
    """K_yj of each example and class, in the logits' dtype."""
    if not isinstance(pairwise, Tensor):
        cure = "It is √2 when the whole map is 1-Lipschitz."
        return torch.full_like(logits, _number("pairwise", pairwise, 0.0, cure=cure))
    square = (logits.shape[1],) * 2
    bad = _readable(pairwise) and not bool((torch.isfinite(pairwise) & (pairwise >= 0)).all())
    if pairwise.shape not in ((), square) or bad:
        values = f", from {float(pairwise.min()):g} to {float(pairwise.max()):g}" if bad else ""
        raise ValueError(
            f"pairwise must be a number or {square}, finite and at least 0, one constant per pair of classes; got "
            f"{tuple(pairwise.shape)}{values}. Pass head.pairwise_bound() of the same head."
        )
    constants = pairwise.to(logits)
    return constants[labels] if constants.ndim else constants.expand_as(logits)


def _radius(epsilon: float | Tensor, logits: Tensor | None = None) -> float | Tensor:
    """ε, a number or one per class of ``logits``."""
    cure = "Pass the radius to train for, such as 36/255."
    if not isinstance(epsilon, Tensor):
        return _number("epsilon", epsilon, 0.0, cure=cure)
    fits = epsilon.ndim == 0 or (epsilon.ndim == 1 and (logits is None or len(epsilon) == logits.shape[1]))
    bad = _readable(epsilon) and not bool((torch.isfinite(epsilon) & (epsilon >= 0)).all())
    if not fits or bad:
        expected = "(C,)" if logits is None else f"({logits.shape[1]},)"
        values = f" with values {epsilon.tolist()}" if bad else ""
        raise ValueError(
            f"epsilon must be a finite number of at least 0, or {expected} of them, one per class; got shape "
            f"{tuple(epsilon.shape)}{values}. {cure}"
        )
    return epsilon if logits is None else epsilon.to(logits)


class _Loss(nn.Module):
    """What every loss shares: it shows its settings, the public attributes."""

    def extra_repr(self) -> str:
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "training"}
        return ", ".join(f"{k}={v.tolist() if isinstance(v, Tensor) else f'{v:.4g}'}" for k, v in settings.items())


class OffsetCrossEntropy(_Loss):
    """τ · CE((f − offset·onehot(y))/τ, y), the paper's loss (Prach & Lampert 2022).

    The offset asks for a margin before an example counts as learned: larger means more certified and
    less natural accuracy. The paper's offsets are √2, 3√2/2 and 2√2 at temperature τ = 1/4.
    As τ → 0 it becomes max(0, max_{j≠y} f_j − f_y + offset).
    """

    def __init__(self, offset: float = 1.5 * SQRT2, temperature: float = 0.25) -> None:
        super().__init__()
        self.offset, self.temperature = _offset_and_temperature(offset, temperature)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # (N, C), (N,) → ()
        logits, labels = _batch(logits, labels)
        shifted = logits - self.offset * _own(logits, labels).to(logits.dtype)
        return self.temperature * F.cross_entropy(shifted / self.temperature, labels)


class MultiMargin(_Loss):
    """1/C · Σ_{j≠y} max(0, margin − f_y + f_j)^power, the multi-class hinge (Weston & Watkins 1999).

    The form of ``nn.MultiMarginLoss``, which BCOP (Li et al. 2019), Cayley (Trockman & Kolter 2021), CPL (Meunier
    et al. 2022) and the code of the SLL paper train with. To be certified at radius ε ask for margin √2·ε·L
    (BCOP), L the constant of the whole map; Cayley's code asks for 0.5. The hinge of ``HKR`` is another one: it
    looks at each logit alone.
    """

    def __init__(self, margin: float = 1.0, power: int = 1) -> None:
        super().__init__()
        self.margin = _number("margin", margin, 0.0, cure="To certify at radius ε ask for √2·ε.")
        if isinstance(power, bool) or power not in (1, 2):
            raise ValueError(f"power must be 1 or 2; got {power!r}. 1 is what the papers use.")
        self.power = power

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # (N, C), (N,) → ()
        logits, labels = _batch(logits, labels)
        return F.multi_margin_loss(logits, labels, p=self.power, margin=self.margin)


class MarginBoosting(_Loss):
    """CE(f, y) + weight/(C − 1) · Σ_{j≠y} CE(−f, j): every rival should be the *least* likely class.

    The margin-maximising cross entropy, MCE, of "Building Robust Ensembles via Margin Boosting" (Zhang et al.,
    ICML 2022), whose code uses weight 1. The SLL paper's code offers it under the name of this class with the
    second term divided by C once more: that is ``weight=1/C``. With two classes it is (1 + weight)·CE.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = _number("weight", weight, 0.0, cure="1 is the published value; 0 is plain cross entropy.")

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # (N, C), (N,) → ()
        logits, labels = _batch(logits, labels)
        rivals = (-F.log_softmax(-logits, dim=1)).masked_fill(_own(logits, labels), 0.0)
        return F.cross_entropy(logits, labels) + self.weight * rivals.sum() / (len(labels) * (logits.shape[1] - 1))


class LogitAnnealing(_Loss):
    """τ · (1 − p)^β · (−log p), p = softmax((f − offset·onehot(y))/τ)_y (Lai et al., ICML 2025, BRONet).

    The offset cross entropy, faded out as an example gains its margin: a Lipschitz network has not the capacity
    to give every example a large one, so the confident should stop pulling. The defaults are those of BRONet on
    CIFAR (released code); β = 0 is ``OffsetCrossEntropy``. BRONet itself trains ``EMMA(…, loss=LogitAnnealing())``.
    """

    def __init__(self, offset: float = 2.0, temperature: float = 0.75, beta: float = 5.0) -> None:
        super().__init__()
        self.offset, self.temperature = _offset_and_temperature(offset, temperature)
        self.beta = _number("beta", beta, 0.0, cure="BRONet uses 5; 0 turns the annealing off.")

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # (N, C), (N,) → ()
        logits, labels = _batch(logits, labels)
        shifted = logits - self.offset * _own(logits, labels).to(logits.dtype)
        entropy = F.cross_entropy(shifted / self.temperature, labels, reduction="none")  # −log p
        # expm1 keeps 1 − p exact near p = 1, and the floor keeps its power differentiable at p = 1 for β < 1.
        doubt = (-torch.expm1(-entropy)).clamp_min(torch.finfo(logits.dtype).tiny)
        return self.temperature * (doubt**self.beta * entropy).mean()


class EMMA(_Loss):
    """loss(z, y), z_j = f_j − f_y + ρ_j·ε·K_yj, ρ_j = clip((f_y − f_j)/(ε·K_yj), floor, 1) held constant.

    Efficient Margin MAximization (Hu et al., NeurIPS 2023, §4, LiResNet). A perturbation of size ε can raise
    f_j − f_y by ε·K_yj; each rival gets just as much of it as makes it tie with y, so all of them threaten at
    once, not only the nearest. No gradient flows through ρ; through K only if ``pairwise``
    carries one. The floor 0.01 is the released
    code's, which grows ε linearly from 0.1·36/255 to 3·36/255 over the first half of training: assign
    ``emma.epsilon`` as training goes. With floor = 1 it is Lipschitz-margin training (Tsuzuku et al. 2018).

    Args:
        epsilon: ε, a number or one per rival class, (C,).
        floor: the smallest share ρ of a rival that y already loses to, in [0, 1].
        loss: what the shifted logits are given to, cross entropy unless another loss is passed.
    """

    def __init__(self, epsilon: float | Tensor, *, floor: float = 0.01, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.epsilon = _radius(epsilon)
        self.floor = _number("floor", floor, 0.0, 1.0, cure="LiResNet uses 0.01.")
        self.loss = nn.CrossEntropyLoss() if loss is None else loss

    def forward(self, logits: Tensor, labels: Tensor, pairwise: float | Tensor = SQRT2) -> Tensor:  # → ()
        logits, labels = _batch(logits, labels)
        margins = _margins(logits, labels)
        epsilon = _radius(self.epsilon, logits)
        reach = (epsilon * _constants(pairwise, logits, labels)).masked_fill(_own(logits, labels), 0.0)
        share = (margins / reach.clamp_min(torch.finfo(logits.dtype).tiny)).clamp(self.floor, 1.0).detach()
        return self.loss(share * reach - margins, labels)


class GloRo(_Loss):
    """CE([f, f_⊥], y), f_⊥ = max_{i≠j} (f_i + ε·K_ij), j = argmax f (Leino, Wang & Fredrikson, ICML 2021).

    f_⊥ is the logit of one more class, "not certified": with true constants K the answer j cannot change within ε
    wherever f_j > f_⊥ (docs/training.md). In training K may be an estimate, then it is evidence.

    Args:
        epsilon: ε, the radius to train for.
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = _radius(epsilon)

    def forward(self, logits: Tensor, labels: Tensor, pairwise: float | Tensor = SQRT2) -> Tensor:  # → ()
        logits, labels = _batch(logits, labels)
        bottom = _bottom(logits, self.epsilon, pairwise)
        return F.cross_entropy(torch.cat((logits, bottom), dim=1), labels)


class GloRoTrades(_Loss):
    """CE(f, y) + weight · KL([softmax f, 0] ‖ softmax [f, f_⊥]), f_⊥ as in ``GloRo``: accuracy against robustness.

    With p = softmax f and q = softmax [f, f_⊥] every quotient p_i/q_i is the same, 1 + exp(f_⊥ − log Σ exp f), so
    that the divergence is softplus(f_⊥ − log Σ exp f).

    Args:
        epsilon: ε, the radius to train for.
        weight: λ, of the second term.
    """

    def __init__(self, epsilon: float, weight: float = 1.0) -> None:
        super().__init__()
        self.epsilon = _radius(epsilon)
        self.weight = _number("weight", weight, 0.0, cure="0 is plain cross entropy; GloRo's networks use 1 to 2.")

    def forward(self, logits: Tensor, labels: Tensor, pairwise: float | Tensor = SQRT2) -> Tensor:  # → ()
        logits, labels = _batch(logits, labels)
        bottom = _bottom(logits, self.epsilon, pairwise)[:, 0]
        divergence = F.softplus(bottom - torch.logsumexp(logits, dim=1))
        return F.cross_entropy(logits, labels) + self.weight * divergence.mean()


class WorstCase(_Loss):
    """κ·CE(f, y) + (1 − κ)·CE(f̄, y) + weight·activity, f̄_j = f_j + ε·L(x)·‖w_j − w_y‖ (Huang et al., NeurIPS 2021).

    f̄ are the worst logits in the ball of radius ε if L(x) is a constant in that ball. ``activity`` pushes neurons
    towards being constant there; it and L(x) come from ``lipcert.layers.local.local_estimate``.

    Args:
        epsilon: ε, the radius to train for.
        kappa: κ, the share of the plain cross entropy.
        weight: of the activity.
    """

    def __init__(self, epsilon: float, kappa: float = 0.0, weight: float = 0.0) -> None:
        super().__init__()
        self.epsilon = _radius(epsilon)
        self.kappa = _number("kappa", kappa, 0.0, 1.0, cure="1 is plain cross entropy.")
        self.weight = _number("weight", weight, 0.0, cure="0 leaves the activity out.")

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        pairwise: float | Tensor = SQRT2,
        constants: Tensor | None = None,
        activity: Tensor | None = None,
    ) -> Tensor:  # → ()
        logits, labels = _batch(logits, labels)
        reach = _radius(self.epsilon, logits) * _constants(pairwise, logits, labels)
        reach = reach if constants is None else reach * constants[:, None].to(logits)
        worst = logits + reach.masked_fill(_own(logits, labels), 0.0)
        plain, robust = F.cross_entropy(logits, labels), F.cross_entropy(worst, labels)
        total = self.kappa * plain + (1 - self.kappa) * robust
        return total if activity is None else total + self.weight * activity.to(logits)


def _bottom(logits: Tensor, epsilon: float | Tensor, pairwise: float | Tensor) -> Tensor:  # (N, 1)
    """f_⊥ = max_{i≠j} (f_i + ε·K_ij) with j = argmax f; a rival that ties with j gives at least f_j."""
    answers = logits.detach().argmax(dim=1)
    reach = _radius(epsilon, logits) * _constants(pairwise, logits, answers)
    return (logits + reach).masked_fill(_own(logits, answers), -torch.inf).amax(dim=1, keepdim=True)


class CertificateRegularized(_Loss):
    """loss(f, y) − γ · max(0, min_{j≠y} (f_y − f_j)/K_yj): cross entropy, minus the certified radius itself.

    Certificate regularisation of SOC+ (Singla, Singla & Feizi, ICLR 2022). Wrong answers have radius 0 and no
    gradient from it. Without a Lipschitz constraint behind ``pairwise`` this is unbounded below.

    Args:
        gamma: γ, the weight of the mean radius.
        loss: the first term, cross entropy unless another loss is passed.
    """

    def __init__(self, gamma: float = 0.1, *, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.gamma = _number("gamma", gamma, 0.0, cure="0 turns the regulariser off; 0.1 is a usual value.")
        self.loss = nn.CrossEntropyLoss() if loss is None else loss

    def forward(self, logits: Tensor, labels: Tensor, pairwise: float | Tensor = SQRT2) -> Tensor:  # → ()
        logits, labels = _batch(logits, labels)
        margins, constants = _margins(logits, labels), _constants(pairwise, logits, labels)
        moving = constants > 0  # a rival with K = 0 that has lost never comes back: it bounds no radius
        radii = margins / torch.where(moving, constants, 1.0)
        radii = torch.where(_own(logits, labels) | (~moving & (margins > 0)), torch.inf, radii).amin(dim=1)
        return self.loss(logits, labels) - self.gamma * F.relu(torch.where(radii == torch.inf, 0.0, radii)).mean()


class KR(_Loss):
    """−1/C · Σ_k (E[f_k | y = k] − E[f_k | y ≠ k]), means over the batch; with one logit −(E[f | 1] − E[f | 0]).

    Minus the Wasserstein-1 distance between each class and the rest, by Kantorovich-Rubinstein duality over
    1-Lipschitz f (Serrurier et al., CVPR 2021). A class absent from the batch, or alone in it, has no estimate
    and adds 0 (deel-torchlip would keep the half that exists). The means are those of *this* batch: split over
    processes it is another loss, unlike the other losses here. Classes should number well below the batch size.

    Shape:
        (N, C), C ≥ 2: one against the rest. (N, 1): binary, f > 0 meaning label 1. Logits (−f, f) give the same.
    """

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # (N, C), (N,) → ()
        logits, labels = _batch(logits, labels, binary=True)
        own = _own(logits, labels).to(logits.dtype)
        inside = own.sum(dim=0)  # (C,): how many examples each class has
        outside = len(labels) - inside
        gap = (own * logits).sum(dim=0) / inside.clamp_min(1)
        gap = gap - ((1 - own) * logits).sum(dim=0) / outside.clamp_min(1)
        return -torch.where((inside > 0) & (outside > 0), gap, 0.0).mean()


class HKR(_Loss):
    """(1 − α)·KR + α · 1/C · Σ_k w_k · max(0, margin/2 − s_k·f_k); s_y = 1, w_y = C − 1; s_k = −1, w_k = 1, k ≠ y.

    Hinge-regularised Kantorovich-Rubinstein (Serrurier et al., CVPR 2021), in the convention of deel-torchlip ≥ 1.0
    that mixes by α in [0, 1]; the paper's KR + λ·hinge is α = λ/(1 + λ), up to the factor 1 + λ, with margin 2. The
    weight w makes the own class count as much as all the rest (with one logit w = 1). Not invariant to a shift of
    all logits: the boundary of each class is at f_k = 0. Batch and shapes: see ``KR``.
    """

    def __init__(self, alpha: float = 0.99, margin: float = 1.0) -> None:
        super().__init__()
        self.alpha = _number("alpha", alpha, 0.0, 1.0, cure="From the paper's λ, take λ/(1 + λ).")
        self.margin = _number("margin", margin, 0.0, cure="It is the gap asked between the two sides of f_k.")
        self.kr = KR()

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # (N, C), (N,) → ()
        logits, labels = _batch(logits, labels, binary=True)
        own = _own(logits, labels)
        hinge = F.relu(self.margin / 2 - torch.where(own, logits, -logits))
        hinge = torch.where(own, max(1, logits.shape[1] - 1) * hinge, hinge).mean()
        return (1 - self.alpha) * self.kr(logits, labels) + self.alpha * hinge
