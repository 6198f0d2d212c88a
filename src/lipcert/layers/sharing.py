"""One T for many forward passes: without gradients as long as nothing has changed, with them in ``share_bounds``.

What T depends on is compared by value each time, not by a version number, which an assignment through ``.data``
does not move: comparing costs one pass over the weight, T a product of its size. A bound that is not lipcert's own
may depend on anything and is asked every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipcert.algebra.bound import Bound
from lipcert.algebra.gram import Columns
from lipcert.algebra.scale import transformed
from lipcert.intact import float32_precision


@dataclass(frozen=True)
class Kept:
    """(Columns, T) and what they were computed from; ``sources`` are the results with their graph, when shared."""

    settings: dict[str, Any]
    inputs: list[Tensor]
    results: tuple[Tensor, ...]  # T, then the taps to use unless they are those given
    sources: tuple[Tensor, ...] = ()

    def fits(self, settings: dict[str, Any], inputs: list[Tensor]) -> bool:
        return self.settings == settings and all(map(_same, self.inputs, inputs))

    def result(self, columns: Columns) -> tuple[Columns, Tensor]:
        t, *taps = self.results if self.sources else (result.clone() for result in self.results)
        return (Columns(taps[0], columns.phases) if taps else columns), t


class Keeper:
    """Asks a bound for T, or gives the T it gave before."""

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.sharing = False  # inside ``share_bounds``
        self.shared: Kept | None = None

    def __deepcopy__(self, memo: object) -> Keeper:
        return Keeper()

    def __reduce__(self) -> tuple[type[Keeper], tuple[()]]:
        return Keeper, ()

    def ask(self, bound: Bound, columns: Columns, again: Callable[[], Columns]) -> tuple[Columns, Tensor]:
        """``bound(columns)``, or what it gave before.

        ``again`` makes the columns anew: a shared T has a graph of its own, which outlives those of the parts.
        """
        gradients = torch.is_grad_enabled()
        usable = self.sharing if gradients else not bound.training
        inputs = [columns.taps, *bound.parameters(), *bound.buffers()]
        if not usable or not _ordinary(bound, inputs):
            return bound(columns)
        settings = {"phases": columns.phases, "precision": float32_precision(), **_settings(bound)}
        known = self.shared if gradients else self.kept
        if known is not None and known.fits(settings, inputs):
            return known.result(columns)
        if gradients and known is not None:
            raise ValueError(
                "weights must not change inside share_bounds; got a layer whose weight or bound did. Step the "
                "optimiser after leaving it."
            )
        given = again() if gradients else columns
        if not _same(given.taps, columns.taps):
            raise ValueError("share_bounds needs a weight that is the same at each look; got one that is not.")
        found, t = bound(given)
        results = (t,) if found is given else (t, found.taps)
        copies = [tensor.detach().clone() for tensor in inputs]
        if not gradients:
            self.kept = Kept(settings, copies, tuple(result.clone() for result in results))
            return found, t
        leaves = tuple(source.detach().requires_grad_(source.requires_grad) for source in results)
        for leaf in leaves:
            if leaf.requires_grad:
                leaf.register_hook(self._too_late)
        self.shared = Kept(settings, copies, leaves, sources=results)
        return self.shared.result(columns)

    def _too_late(self, gradient: Tensor) -> None:
        if not self.sharing:
            raise RuntimeError("backward must be called inside share_bounds; got it after leaving. Move it inside.")

    def finish(self) -> None:
        """Send what arrived at a shared T on to the parameters."""
        if self.shared is not None:
            pairs = zip(self.shared.sources, self.shared.results, strict=True)
            reached = [(source, leaf.grad) for source, leaf in pairs if leaf.grad is not None]
            if reached:
                torch.autograd.backward([source for source, _ in reached], [gradient for _, gradient in reached])


@contextmanager
def share_bounds(model: nn.Module) -> Iterator[None]:
    """Compute each T of ``model`` once for all forward passes inside: for the parts of a batch.

    Call ``backward`` for each part inside; the gradients that go through T reach the parameters on leaving, so step
    the optimiser outside. ``torch.autograd.grad`` and checkpointing inside would miss what goes through T.
    """
    found = (vars(part).get("keeper") for part in model.modules())
    keepers = [keeper for keeper in found if isinstance(keeper, Keeper)]
    if any(keeper.sharing for keeper in keepers):
        raise ValueError("share_bounds must not be nested; got it inside another one. Drop the inner one.")
    for keeper in keepers:
        keeper.sharing = True
    try:
        yield
        for keeper in keepers:
            keeper.finish()
    finally:
        for keeper in keepers:
            keeper.sharing, keeper.shared = False, None


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and torch.equal(a, b)


def _settings(bound: Bound) -> dict[str, Any]:
    """The plain attributes of a bound, ``training`` among them: its form, its numbers."""
    plain = {name: value for name, value in vars(bound).items() if not name.startswith("_")}
    return {"code": (type(bound), type(bound).forward), **plain}


def _ordinary(bound: Bound, inputs: list[Tensor]) -> bool:
    """Whether it is lipcert's own bound, given values that can be compared, and nothing else looks on."""
    every = torch.nn.modules.module
    return (
        type(bound).__module__.startswith("lipcert.")
        and not (bound._forward_hooks or bound._forward_pre_hooks)
        and not (every._global_forward_hooks or every._global_forward_pre_hooks)
        and not transformed(*inputs)
        and not any(tensor.is_meta or type(tensor.detach()) is not Tensor for tensor in inputs)
    )
