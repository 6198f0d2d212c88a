"""Losses for networks whose margin is a certificate: logits and labels to a scalar."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn


class OffsetCrossEntropy(nn.Module):
    """τ · CE((logits − offset·onehot(y))/τ, y), the paper's loss (Prach & Lampert 2022).

    The offset asks for a margin before an example counts as learned: larger means more certified and
    less natural accuracy. The paper's offsets are √2, 3√2/2 and 2√2 at temperature τ = 1/4.
    """

    def __init__(self, offset: float = 1.5 * math.sqrt(2), temperature: float = 0.25) -> None:
        super().__init__()
        if not math.isfinite(offset) or offset < 0 or not math.isfinite(temperature) or temperature <= 0:
            raise ValueError(
                f"offset must be at least 0 and temperature above 0; got {offset!r} and {temperature!r}. "
                "The paper uses 2.12 and 0.25."
            )
        self.offset, self.temperature = offset, temperature

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # (N, C), (N,) → ()
        shifted = logits - self.offset * F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        return self.temperature * F.cross_entropy(shifted / self.temperature, labels)

    def extra_repr(self) -> str:
        return f"offset={self.offset:.4g}, temperature={self.temperature:.4g}"
