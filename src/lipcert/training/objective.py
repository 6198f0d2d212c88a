"""What training minimizes and what it reports: the loss of a config, and certified accuracy of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from lipcert import losses
from lipcert.certified.freeze import freeze
from lipcert.certified.radius import certified_radii
from lipcert.layers.contract import lipschitz_bound
from lipcert.layers.head import FirstLogits, LinearHead, NormalizedHead
from lipcert.layers.tracked import lipschitz_estimate
from lipcert.records import RADII
from lipcert.training.config import TrainConfig, growth_factor

HEADS = (NormalizedHead, LinearHead, FirstLogits)
CountHits = Callable[[Tensor, Tensor], dict[str, Tensor]]  # inputs, labels → for each name, a bool per example
Evaluate = Callable[[nn.Module], CountHits]  # called once per evaluation, so that it can prepare the network


def make_loss(config: TrainConfig) -> Callable[[nn.Module, Tensor, Tensor, float], Tensor]:
    """(network, logits, labels, progress) → loss. Losses about radii see K_ij = K·‖w_i − w_j‖.

    K is ``lipschitz_estimate`` of what comes before the head: 1, or the norms of layers that are tracked. The
    gradient also flows through K and through the distances, as in the published losses. The radius to train for
    and the weight of TRADES grow with progress.
    """
    settings = config.loss_settings()
    gloro = config.loss.startswith("gloro")
    radius_growth = settings.pop("epsilon_schedule", "linear" if gloro else "half")
    weight_growth = settings.pop("weight_schedule", "fixed")
    radius = settings.pop("epsilon", 36 / 255 if gloro else 108 / 255)
    makers: dict[str, Callable[..., nn.Module]] = {
        "offset": losses.OffsetCrossEntropy,
        "multi-margin": losses.MultiMargin,
        "margin-boosting": losses.MarginBoosting,
        "logit-annealing": losses.LogitAnnealing,
        "emma": lambda: losses.EMMA(radius),
        "emma-annealing": lambda **inner: losses.EMMA(radius, loss=losses.LogitAnnealing(**inner)),
        "gloro": lambda: losses.GloRo(radius),
        "gloro-trades": lambda **weight: losses.GloRoTrades(radius, **weight),
        "certificate": losses.CertificateRegularized,
        "kr": losses.KR,
        "hkr": losses.HKR,
    }
    loss = makers[config.loss](**settings)
    weight = getattr(loss, "weight", None)

    def loss_of(network: nn.Module, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        if not isinstance(loss, (losses.EMMA, losses.GloRo, losses.GloRoTrades, losses.CertificateRegularized)):
            return cast(Tensor, loss(logits, labels))
        if not isinstance(loss, losses.CertificateRegularized):
            loss.epsilon = radius * growth_factor(progress, radius_growth)
        if isinstance(loss, losses.GloRoTrades) and weight is not None:
            loss.weight = weight * growth_factor(progress, weight_growth)
        backbone, head = network.children()
        assert isinstance(head, HEADS)  # what models.build makes
        rows = head.rows().to(logits.device)
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        return loss(logits, labels, lipschitz_estimate(backbone).to(logits.device) * distances)

    return loss_of


def certified_hits(model: nn.Module) -> CountHits:
    """A function that finds the natural and certified hits of a batch, in real arithmetic.

    ``model`` is nn.Sequential(backbone, head). It is frozen once, so that no batch computes T again.
    """
    backbone, head = model.children()
    assert isinstance(head, HEADS)  # what models.build makes
    pairwise = head.pairwise_bound() * lipschitz_bound(backbone)
    # A new Sequential: mixed precision replaces the forward of the one it trains.
    frozen = freeze(nn.Sequential(backbone, head))

    def count_hits(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = frozen(inputs)
        radii = certified_radii(logits, labels, pairwise.to(logits.device))
        certified = {f"certified {name}": radii > radius for name, radius in RADII.items()}
        return {"natural": logits.argmax(dim=1) == labels, **certified}

    return count_hits
