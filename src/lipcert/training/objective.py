"""The loss that a config asks for, as a function of the network, its logits and the progress of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from lipcert import losses
from lipcert.layers.head import FirstLogits, NormalizedHead
from lipcert.training.config import TrainConfig, radius_factor


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
    made = makers[config.loss](**settings)

    def loss_of(network: nn.Module, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        if not isinstance(made, (losses.EMMA, losses.CertificateRegularized)):
            return cast(Tensor, made(logits, labels))
        if isinstance(made, losses.EMMA):
            made.epsilon = radius * radius_factor(progress)
        *_, head = network.children()
        assert isinstance(head, (NormalizedHead, FirstLogits))  # what models.build makes
        rows = head.unit_weight().to(logits.device)
        return made(logits, labels, torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist"))

    return loss_of
