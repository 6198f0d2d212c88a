"""How far an input may move before the answer can change: the margin over its Lipschitz constant.

If logit differences f_y − f_j change by at most K_yj per unit of the input, class y wins wherever
‖x′ − x‖ < min over *all* rivals j of (f_y − f_j)/K_yj (Tsuzuku et al. 2018, Proposition 1).

Rounding: the radius is that of real arithmetic for the logits as given, computed in float64. Ties, NaN
and infinities give radius 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def certified_radii(logits: Tensor, labels: Tensor, pairwise: Tensor) -> Tensor:  # (N, C), (N,), (C, C) → (N,)
    """The certified L2 radius of each example, 0 where the answer is wrong or not decided."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or pairwise.shape != (logits.shape[1],) * 2:
        raise ValueError(
            f"expected logits (N, C), labels (N,) and pairwise constants (C, C); got {tuple(logits.shape)}, "
            f"{tuple(labels.shape)} and {tuple(pairwise.shape)}. One row per example, one column per class."
        )
    logits, pairwise = logits.double(), pairwise.double()
    margins = logits.gather(1, labels[:, None]) - logits  # f_y − f_j, (N, C)
    constants = pairwise[labels]  # K_yj, (N, C)
    usable = torch.isfinite(margins) & (margins > 0) & torch.isfinite(constants) & (constants >= 0)
    # Two classes with the same weights never swap: K = 0 and a positive margin last for ever.
    radii = torch.where(usable, margins / torch.where(usable, constants, 1.0), 0.0)
    own = torch.nn.functional.one_hot(labels, logits.shape[1]).bool()
    return torch.where(own, torch.inf, radii).amin(dim=1).nan_to_num(nan=0.0)
