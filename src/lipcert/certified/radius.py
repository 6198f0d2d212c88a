"""How far an input may move before the answer can change: the margin over its Lipschitz constant.

If logit differences f_y − f_j change by at most K_yj per unit of the input, class y wins wherever
‖x′ − x‖ < min over *all* rivals j of (f_y − f_j)/K_yj (Tsuzuku et al. 2018, Proposition 1).

Rounding: the radius is that of real arithmetic for the logits as given, computed in float64 and rounded down by
two units in the last place. Ties, NaN and infinities give radius 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def certified_radii(logits: Tensor, labels: Tensor, pairwise: Tensor | float) -> Tensor:  # (N, C), (N,) → (N,)
    """The certified L2 radius of each example, 0 where the answer is wrong or not decided.

    ``pairwise``, (C, C): K_ij with |(f_i − f_j)(x) − (f_i − f_j)(x′)| ≤ K_ij‖x − x′‖, for f from the *input* to the
    logits as given. For a backbone and a ``NormalizedHead`` it is lipschitz_bound(backbone)·head.pairwise_bound();
    for any map of constant L, √2·L everywhere, and one number says so; after ``Scale(K)``, K times as much.
    """
    if isinstance(pairwise, (int, float)) and logits.ndim == 2:
        pairwise = torch.full((logits.shape[1],) * 2, float(pairwise), dtype=torch.float64, device=logits.device)
    if (
        not isinstance(pairwise, Tensor)
        or labels.is_floating_point()
        or logits.ndim != 2
        or labels.shape != logits.shape[:1]
        or pairwise.shape != (logits.shape[1],) * 2
    ):
        raise ValueError(
            f"expected logits (N, C), integer labels (N,) and pairwise constants (C, C); got "
            f"{tuple(logits.shape)}, {labels.dtype} {tuple(labels.shape)} and "
            f"{tuple(pairwise.shape) if isinstance(pairwise, Tensor) else pairwise}. One row per example, one "
            "column per class."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
        raise ValueError(
            f"labels must lie from 0 to {logits.shape[1] - 1}; got {int(labels.min())} to {int(labels.max())}. "
            "Number the classes from 0."
        )
    logits, labels, pairwise = logits.double(), labels.long(), pairwise.double() + 0.0  # no negative zero
    margins = logits.gather(1, labels[:, None]) - logits  # f_y − f_j, (N, C)
    constants = pairwise[labels]  # K_yj, (N, C)
    usable = torch.isfinite(margins) & (margins > 0) & torch.isfinite(constants) & (constants >= 0)
    # Two classes with the same weights never swap: K = 0 and a positive margin last for ever.
    quotients = margins / torch.where(usable, constants, 1.0)
    zeros = torch.zeros_like(
        quotients
    )  # two roundings to nearest, of the margin and of the quotient: two steps down
    radii = torch.where(usable, torch.nextafter(torch.nextafter(quotients, zeros), zeros), 0.0)
    own = labels[:, None] == torch.arange(logits.shape[1], device=labels.device)
    nearest = torch.where(own, torch.inf, radii).amin(dim=1)
    return torch.where(torch.isfinite(logits).all(dim=1), nearest, 0.0)
