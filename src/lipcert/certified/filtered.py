"""A float32 classifier that never contradicts the certificate: it answers only where rounding cannot have decided.

For each input the float32 network runs with its proved error bound; if the margin exceeds it, the answer is that of
exact arithmetic. Else the input runs again in float64; if that is not clear either, the answer is ``UNDECIDED``.
Inside a certified ball float64 is always clear (the radius leaves 3E of margin), so there the answer is the
certified one.

Sums are blocked: n products in blocks of 64 lose g_{64 + n/64} instead of g_n, which is what makes float32 decide
in wide networks. Rounding: error bounds up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipcert.certified.certify import (
    error_terms,
    errors_along,
    require_provable,
    require_rounding,
    require_shape,
    require_tensors,
    rivals_of,
    walk,
)
from lipcert.certified.freeze import prove
from lipcert.certified.network import Proved, require_ieee
from lipcert.certified.op import Shape
from lipcert.errors import positive_int
from lipcert.intact import require_float32_products
from lipcert.verified.rounding import U32, U64

UNDECIDED = -1


@dataclass(frozen=True)
class Answer:
    """Predictions, and which inputs float32 could not decide alone."""

    predictions: Tensor  # (N,) int64, −1 for undecided
    fell_back: Tensor  # (N,) bool: decided in float64, or not at all

    @property
    def undecided(self) -> Tensor:
        return self.predictions == UNDECIDED


class FilteredClassifier:
    """``FilteredClassifier(model, input_shape)(images)``: answers that agree with exact arithmetic, or none."""

    def __init__(self, model: nn.Module, input_shape: Shape, *, block: int | None = 64) -> None:
        if block is not None:
            positive_int("block", block)
        self.exact = prove(model, input_shape)
        require_provable(self.exact)
        require_rounding(self.exact)
        self.fast = prove(model, input_shape, dtype=torch.float32, block=block)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Answer:  # (N, …) float32
        require_tensors(images=images)
        if images.dtype != torch.float32:
            raise ValueError(f"expected float32 images; got {images.dtype}. The filter is about float32 inputs.")
        require_ieee()
        require_float32_products()
        require_shape(self.exact, images)
        guesses, clear = _decide(self.fast, images, U32)
        again = ~clear
        if bool(again.any()):
            redone, certain = _decide(self.exact, images[again].double(), U64)
            guesses[again] = torch.where(certain, redone, UNDECIDED)
        return Answer(guesses, again)


def _decide(proved: Proved, x: Tensor, u: float) -> tuple[Tensor, Tensor]:
    """The answer, and whether its margin over every rival exceeds what rounding can have moved it by."""
    logits, sizes = walk(proved, x)
    logits = logits.double()
    guesses = logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
    margins, distances = rivals_of(proved, logits, guesses)
    err, norms = errors_along(proved, sizes, torch.zeros(len(x), dtype=torch.float64), u)
    terms = error_terms(proved, err, norms, distances, guesses, u)
    clear = (margins > terms * (1 + 2.0**-40)).all(dim=1) & torch.isfinite(logits).all(dim=1)
    return guesses, clear
