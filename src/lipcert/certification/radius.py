"""How far an input may move before the answer can change: the margin over its Lipschitz constant.

If logit differences f_y − f_j change by at most K_yj per unit of the input, class y wins wherever
‖x′ − x‖ < min over *all* rivals j of (f_y − f_j)/K_yj (Tsuzuku et al. 2018, Proposition 1).

Rounding: the radius is that of real arithmetic for the logits as given, computed in float64 and rounded down by
a unit in the last place. Ties, NaN and infinities give radius 0.
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
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
        raise ValueError(
            f"labels must lie from 0 to {logits.shape[1] - 1}; got {int(labels.min())} to {int(labels.max())}. "
            "Number the classes from 0."
        )
    logits, pairwise = logits.double(), pairwise.double()
    margins = logits.gather(1, labels[:, None]) - logits  # f_y − f_j, (N, C)
    constants = pairwise[labels]  # K_yj, (N, C)
    usable = torch.isfinite(margins) & (margins > 0) & torch.isfinite(constants) & (constants >= 0)
    # Two classes with the same weights never swap: K = 0 and a positive margin last for ever.
    quotients = margins / torch.where(usable, constants, 1.0)
    radii = torch.where(usable, torch.nextafter(quotients, torch.zeros_like(quotients)), 0.0)
    own = torch.nn.functional.one_hot(labels, logits.shape[1]).bool()
    nearest = torch.where(own, torch.inf, radii).amin(dim=1)
    return torch.where(torch.isfinite(logits).all(dim=1), nearest, 0.0)
