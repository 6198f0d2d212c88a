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
from lipcert.layers.head import FirstLogits, NormalizedHead
from lipcert.records import RADII
from lipcert.training.config import TrainConfig, radius_factor

CountHits = Callable[[Tensor, Tensor], dict[str, Tensor]]  # inputs, labels → for each name, a bool per example
Evaluate = Callable[[nn.Module], CountHits]  # called once per evaluation, so that it can prepare the network


def make_loss(config: TrainConfig) -> Callable[[nn.Module, Tensor, Tensor, float], Tensor]:
    """(network, logits, labels, progress) → loss. EMMA and the certificate see the distances of the head's rows.

    The gradient also flows through those distances, as in the published losses, and EMMA's radius grows with
    progress.
    """
    settings = config.loss_settings()
    radius = settings.pop("epsilon", 108 / 255)
    makers: dict[str, Callable[..., nn.Module]] = {
        "offset": losses.OffsetCrossEntropy,
        "multi-margin": losses.MultiMargin,
        "margin-boosting": losses.MarginBoosting,
        "logit-annealing": losses.LogitAnnealing,
        "emma": lambda: losses.EMMA(radius),
        "certificate": losses.CertificateRegularized,
        "kr": losses.KR,
        "hkr": losses.HKR,
    }
    loss = makers[config.loss](**settings)

    def loss_of(network: nn.Module, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        if not isinstance(loss, (losses.EMMA, losses.CertificateRegularized)):
            return cast(Tensor, loss(logits, labels))
        if isinstance(loss, losses.EMMA):
            loss.epsilon = radius * radius_factor(progress)
        *_, head = network.children()
        assert isinstance(head, (NormalizedHead, FirstLogits))  # what models.build makes
        rows = head.unit_weight().to(logits.device)
        return loss(logits, labels, torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist"))

    return loss_of


def certified_hits(model: nn.Module) -> CountHits:
    """A function that finds the natural and certified hits of a batch, in real arithmetic.

    ``model`` is nn.Sequential(backbone, head). It is frozen once, so that no batch computes T again.
    """
    backbone, head = model.children()
    assert isinstance(head, (NormalizedHead, FirstLogits))  # what models.build makes
    pairwise = head.pairwise_bound() * lipschitz_bound(backbone)
    # A new Sequential: mixed precision replaces the forward of the one it trains.
    frozen = freeze(nn.Sequential(backbone, head))

    def count_hits(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = frozen(inputs)
        radii = certified_radii(logits, labels, pairwise.to(logits.device))
        certified = {f"certified {name}": radii > radius for name, radius in RADII.items()}
        return {"natural": logits.argmax(dim=1) == labels, **certified}

    return count_hits
