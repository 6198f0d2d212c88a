"""What training minimizes and what it reports: the loss of a config, and certified accuracy of a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from lipcert import losses
from lipcert.certified.freeze import freeze, prove
from lipcert.certified.radius import certified_radii
from lipcert.layers.head import FirstLogits, LinearHead, NormalizedHead
from lipcert.layers.local import local_estimate
from lipcert.layers.tracked import lipschitz_estimate
from lipcert.records import RADII
from lipcert.training.config import TrainConfig, growth_factor

SEE_CONSTANTS = (
    losses.EMMA,
    losses.GloRo,
    losses.GloRoTrades,
    losses.WorstCase,
    losses.CertificateRegularized,
)
HEADS = (NormalizedHead, LinearHead, FirstLogits)
CountHits = Callable[[Tensor, Tensor], dict[str, Tensor]]  # inputs, labels → for each name, a bool per example
Evaluate = Callable[[nn.Module], CountHits]  # called once per evaluation, so that it can prepare the network


def make_loss(config: TrainConfig) -> Callable[[nn.Module, Tensor, Tensor, Tensor, float], Tensor]:
    """(network, inputs, logits, labels, progress) → loss. Losses about radii see K_ij = K·‖w_i − w_j‖.

    K is ``lipschitz_estimate`` of what comes before the head: 1, or the norms of layers that are tracked. The
    gradient also flows through K and through the distances, as in the published losses. The radius to train for
    and the weight of TRADES grow with progress. The loss of local constants estimates K for each input.
    """
    settings = config.loss_settings()
    gloro = config.loss.startswith("gloro")
    radius_growth = settings.pop("epsilon_schedule", "linear" if gloro else "half")
    weight_growth = settings.pop("weight_schedule", "fixed")
    radius = settings.pop("epsilon", 36 / 255 if gloro or config.loss == "local" else 108 / 255)
    makers: dict[str, Callable[..., nn.Module]] = {
        "offset": losses.OffsetCrossEntropy,
        "multi-margin": losses.MultiMargin,
        "margin-boosting": losses.MarginBoosting,
        "logit-annealing": losses.LogitAnnealing,
        "emma": lambda: losses.EMMA(radius),
        "emma-annealing": lambda **inner: losses.EMMA(radius, loss=losses.LogitAnnealing(**inner)),
        "gloro": lambda: losses.GloRo(radius),
        "gloro-trades": lambda **weight: losses.GloRoTrades(radius, **weight),
        "local": lambda **weight: losses.WorstCase(radius, **weight),
        "certificate": losses.CertificateRegularized,
        "kr": losses.KR,
        "hkr": losses.HKR,
    }
    loss = makers[config.loss](**settings)
    weight = getattr(loss, "weight", None)

    def loss_of(network: nn.Module, inputs: Tensor, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        if not isinstance(loss, SEE_CONSTANTS):
            return cast(Tensor, loss(logits, labels))
        if not isinstance(loss, losses.CertificateRegularized):
            loss.epsilon = radius * growth_factor(progress, radius_growth)
        if isinstance(loss, losses.GloRoTrades) and weight is not None:
            loss.weight = weight * growth_factor(progress, weight_growth)
        backbone, head = _parts(network, config.loss)
        rows = head.rows().to(logits.device)
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        if isinstance(loss, losses.WorstCase):
            # κ falls to 0 as the radius grows; L(x) and the radius of its balls belong together.
            share = growth_factor(progress, radius_growth)
            loss.kappa = 1 - share
            local = local_estimate(backbone, inputs, radius * share)
            return loss(logits, labels, distances, local.constants, local.activity)
        return loss(logits, labels, lipschitz_estimate(backbone).to(logits.device) * distances)

    return loss_of


def _parts(network: nn.Module, loss: str) -> tuple[nn.Module, NormalizedHead | LinearHead | FirstLogits]:
    """What comes before the head, and the head, as lipcert.models builds networks."""
    layers = list(network.children())
    if not isinstance(network, nn.Sequential) or not isinstance(layers[-1], HEADS):
        raise ValueError(
            f"the loss {loss!r} needs to know the last layer: the network must be an nn.Sequential that ends in "
            "NormalizedHead, LinearHead or FirstLogits. Use --loss offset for other networks."
        )
    return layers[0] if len(layers) == 2 else nn.Sequential(*layers[:-1]), layers[-1]


def certified_hits(model: nn.Module) -> CountHits:
    """A function that finds the natural and certified hits of a batch, in real arithmetic.

    The network is frozen and proved once, so that no batch computes T again.
    """
    plain = copy.copy(model)  # with the same layers
    for name in ("forward", "_original_forward"):  # which mixed precision replaces in the one it trains
        vars(plain).pop(name, None)
    frozen = freeze(plain)
    constants: dict[tuple[int, ...], Tensor] = {}

    def count_hits(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits, shape = frozen(inputs), tuple(inputs.shape[1:])
        if shape not in constants:
            pairwise = prove(frozen, shape).pairwise()
            constants[shape] = torch.full((logits.shape[1],) * 2, torch.inf) if pairwise is None else pairwise
        radii = certified_radii(logits, labels, constants[shape].to(logits.device))
        certified = {f"certified {name}": radii > radius for name, radius in RADII.items()}
        return {"natural": logits.argmax(dim=1) == labels, **certified}

    return count_hits
