"""The table of all layers. A new layer joins every law by one line in ``LAYERS``.

The laws and the hostile parameters they are tried under are those of ``lipcert.testing``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import lipcert as lc
from full import full
from lipcert.activations import SLOPE_RESTRICTED
from lipcert.algebra.bounds import CONVOLUTIONAL
from lipcert.algebra.orthogonal import METHODS
from lipcert.algebra.torus import MAPS
from lipcert.testing import HOSTILE, jacobian

__all__ = [
    "HOSTILE",
    "LAYERS",
    "LEARNED",
    "Entry",
    "bounds_or_geometries",
    "fit",
    "inputs",
    "jacobian",
    "kinds",
    "one_geometry",
]

DENSE = (*CONVOLUTIONAL, "full", "optimal", "orthogonal")
# Forms of a bound that is here already: they see the columns, never the geometry, of which a few cases do.
FORMS = ("spectral_surrogate", "sll_shifted", "sll_surrogate", "sll_sampled_gradient", "sll_sampled_surrogate")


@dataclass(frozen=True)
class Entry:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one input, without the batch
    lipschitz: float | None = 1.0  # None: whatever ``lipschitz_bound`` of the layer says, with its present weight

    def constant(self, layer: nn.Module) -> float:
        return lc.lipschitz_bound(layer) if self.lipschitz is None else self.lipschitz


def _entries() -> Iterator[tuple[str, Entry]]:
    for bound in DENSE:
        for hidden in (4, 9):
            make = lambda b=bound, h=hidden: lc.ResidualLinear(6, h, bound=b)  # noqa: E731
            yield f"residual-linear-{bound}-6x{hidden}", Entry(make, (6,))
        for m, n in ((6, 4), (4, 7)):
            make = lambda b=bound, m=m, n=n: lc.AffineLinear(n, m, bound=b)  # noqa: E731
            yield f"affine-linear-{bound}-{m}x{n}", Entry(make, (n,))
        for out in (3, 12):
            make = lambda b=bound, k=out: lc.GeneralLinear(5, 4, k, bound=b)  # noqa: E731
            yield f"general-linear-{bound}-to-{out}", Entry(make, (5,))
    for order in (2, 3, 5):
        make = lambda k=order: lc.ResidualLinear(6, 5, bound=lc.bounds.Rescaled(5, k))  # noqa: E731
        yield f"residual-linear-rescaled{order}", Entry(make, (6,))
        make = lambda k=order: lc.GeneralLinear(6, 5, 4, bound=lc.bounds.Rescaled(5, k))  # noqa: E731
        yield f"general-linear-rescaled{order}", Entry(make, (6,))
    make = lambda: lc.AffineConv2d(2, 3, 3, stride=2, padding=1, bound=lc.bounds.Rescaled(2, 2))  # noqa: E731
    yield "affine-conv-rescaled2", Entry(make, (2, 6, 6))
    for activation in SLOPE_RESTRICTED:
        make = lambda a=activation: lc.ResidualLinear(6, 5, activation=a)  # noqa: E731
        yield f"residual-linear-{activation}", Entry(make, (6,))
        make = lambda a=activation: lc.GeneralLinear(6, 5, 4, activation=a)  # noqa: E731
        yield f"general-linear-{activation}", Entry(make, (6,))
    for method in METHODS:
        for n, m in ((4, 6), (6, 4), (5, 5), (1, 3)):
            make = lambda t=method, n=n, m=m: lc.OrthogonalLinear(n, m, method=t)  # noqa: E731
            yield f"orthogonal-{method}-{m}x{n}", Entry(make, (n,))
        make = lambda t=method: lc.ResidualLinear(6, 4, bound=lc.bounds.Orthogonal(t))  # noqa: E731
        yield f"residual-orthogonal-{method}", Entry(make, (6,))
        make = lambda t=method: lc.GeneralLinear(5, 4, 3, method=t)  # noqa: E731
        yield f"general-{method}", Entry(make, (5,))
    for bound in CONVOLUTIONAL:
        for mode in ("zeros", "circular"):
            for kernel, stride in ((3, 1), (3, 2), (5, 2), (1, 1), ((3, 1), (1, 2)))[: 2 if bound in FORMS else 5]:
                size = (6, 6)
                make = lambda b=bound, p=mode, k=kernel, s=stride: lc.ResidualConv2d(  # noqa: E731
                    2, 3, k, stride=s, padding_mode=p, bound=b
                )
                yield f"residual-conv-{bound}-{mode}-k{kernel}-s{stride}", Entry(make, (2, *size))
            for kernel, stride, padding, groups in (
                (3, 2, 1, 2),
                (3, 1, 1, 1),
                (2, 2, 0, 1),
                ((1, 3), (1, 2), (0, 1), 1),
                (4, 3, 1, 1),
            )[: 1 if bound in FORMS else 5]:
                make = lambda b=bound, p=mode, k=kernel, s=stride, q=padding, g=groups: lc.AffineConv2d(  # noqa: E731
                    2 * g, 4, k, stride=s, padding=q, padding_mode=p, groups=g, bound=b
                )
                name = f"affine-conv-{bound}-{mode}-k{kernel}-s{stride}-p{padding}-g{groups}"
                yield name, Entry(make, (2 * groups, 6, 6))
        make = lambda b=bound: lc.ResidualConv2d(4, 6, 3, stride=2, groups=2, bound=b)  # noqa: E731
        yield f"residual-conv-{bound}-groups", Entry(make, (4, 5, 5))
        make = lambda b=bound: lc.ResidualConv2d(2, 3, 2, stride=2, bound=b)  # noqa: E731
        yield f"residual-conv-{bound}-even", Entry(make, (2, 5, 5))
        make = lambda b=bound: lc.AffineConv2d(2, 3, 2, padding=2, bound=b)  # noqa: E731
        yield f"affine-conv-{bound}-overpadded", Entry(make, (2, 4, 4))
    for bound in ("aol", "sll", "spectral", "rescaled"):
        for mode in ("zeros", "circular"):
            make = lambda b=bound, p=mode: lc.ResidualConv1d(2, 3, 3, stride=2, padding_mode=p, bound=b)  # noqa: E731
            if bound != "rescaled" or mode == "zeros":  # this T is within the 1 % that a grid of frequencies loses
                yield f"residual-conv1d-{bound}-{mode}", Entry(make, (2, 8))
            make = lambda b=bound, p=mode: lc.ResidualConv3d(2, 3, 2, padding_mode=p, bound=b)  # noqa: E731
            if mode == "zeros":  # an even kernel has no circular padding of half its reach
                yield f"residual-conv3d-{bound}-{mode}", Entry(make, (2, 3, 3, 3))
            make = lambda b=bound, p=mode: lc.AffineConv1d(  # noqa: E731
                4, 6, 3, stride=2, padding=1, padding_mode=p, groups=2, bound=b
            )
            yield f"affine-conv1d-{bound}-{mode}", Entry(make, (4, 8))
            make = lambda b=bound, p=mode: lc.AffineConv3d(2, 3, (3, 1, 2), padding_mode=p, bound=b)  # noqa: E731
            yield f"affine-conv3d-{bound}-{mode}", Entry(make, (2, 4, 2, 4))
    for mode in ("zeros", "circular"):
        make = lambda p=mode: lc.ResidualConv2d(2, 3, 3, dilation=2, padding_mode=p)  # noqa: E731
        yield f"residual-conv-dilated-{mode}", Entry(make, (2, 6, 6))
        make = lambda p=mode: lc.ResidualConv1d(2, 3, 3, stride=4, dilation=2, padding_mode=p)  # noqa: E731
        yield f"residual-conv1d-dilated-{mode}", Entry(make, (2, 8))
        make = lambda p=mode: lc.AffineConv2d(  # noqa: E731
            2, 3, (3, 2), stride=2, padding=(2, 0), dilation=(2, 3), padding_mode=p
        )
        yield f"affine-conv-dilated-{mode}", Entry(make, (2, 6, 6))
    for bound in ("aol", "sll", "spectral", "rescaled"):
        for kernel, stride, padding, more, dilation, groups in (
            (3, 1, 1, 0, 1, 1),
            (2, 2, 0, 0, 1, 1),
            (4, 2, 1, 0, 1, 2),
            (3, 2, 1, 1, 1, 1),
            ((3, 2), (3, 1), (0, 1), (2, 0), 2, 1),
        )[: 5 if bound == "aol" else 4]:
            make = lambda b=bound, k=kernel, s=stride, p=padding, o=more, d=dilation, g=groups: (  # noqa: E731
                lc.AffineConvTranspose2d(
                    4, 2 * g, k, stride=s, padding=p, output_padding=o, dilation=d, groups=g, bound=b
                )
            )
            name = f"affine-conv-transpose-{bound}-k{kernel}-s{stride}-p{padding}-g{groups}"
            yield name, Entry(make, (4, 3, 3))
    for bound in ("aol", "sll", "spectral", "full", "orthogonal"):
        make = lambda b=bound: lc.parametrize(nn.Linear(6, 4), b)  # noqa: E731
        yield f"drop-in-linear-{bound}", Entry(make, (6,))
    for bound in ("aol", "sll", "spectral"):
        for mode, stride in (("zeros", 2), ("circular", 1)):
            make = lambda b=bound, p=mode, s=stride: lc.parametrize(  # noqa: E731
                nn.Conv2d(4, 6, 3, stride=s, padding=1, groups=2, padding_mode=p), b
            )
            yield f"drop-in-conv-{bound}-{mode}", Entry(make, (4, 5, 5))
    yield "drop-in-conv1d", Entry(lambda: lc.parametrize(nn.Conv1d(2, 3, 4, padding="same", dilation=2)), (2, 9))
    yield "drop-in-conv3d", Entry(lambda: lc.parametrize(nn.Conv3d(2, 3, (3, 1, 2))), (2, 4, 2, 3))
    make = lambda: lc.parametrize(nn.ConvTranspose1d(3, 2, 4, stride=3, padding=1, output_padding=2))  # noqa: E731
    yield "drop-in-conv-transpose", Entry(make, (3, 4))
    for method in MAPS:
        for n, m, stride, image in ((2, 2, 1, (4, 6)), (1, 3, 1, (6, 4)), (3, 2, 1, (4, 4)), (1, 5, 2, (8, 4))):
            make = lambda t=method, n=n, m=m, s=stride, i=image: lc.OrthogonalConv2d(  # noqa: E731
                n, m, 2 if t == "eco" else 1 if s > 1 and t == "bcop" else (3, 3) if s == 1 else 2,
                image_size=i, method=t, stride=s,
            )  # fmt: skip
            yield f"orthogonal-conv-{method}-{m}x{n}-s{stride}", Entry(make, (n, *image))
        for hidden in (2, 5):
            make = lambda t=method, h=hidden: lc.OrthogonalResidualConv2d(  # noqa: E731
                3, h, 2 if t == "eco" else 3, image_size=4, method=t
            )
            yield f"residual-orthogonal-conv-{method}-{hidden}", Entry(make, (3, 4, 4))
    for activation in SLOPE_RESTRICTED:
        make = lambda a=activation: lc.SandwichLinear(5, 4, activation=a)  # noqa: E731
        yield f"sandwich-linear-{activation}", Entry(make, (5,))
    for activation in ("relu", "tanh"):
        make = lambda a=activation: lc.SandwichConv2d(2, 3, 3, image_size=4, activation=a)  # noqa: E731
        yield f"sandwich-conv-{activation}", Entry(make, (2, 4, 4))
        make = lambda a=activation: lc.GeneralConv2d(2, 3, 4, 3, activation=a)  # noqa: E731
        yield f"general-conv-{activation}", Entry(make, (2, 4, 4))
    yield "sandwich-linear-wider", Entry(lambda: lc.SandwichLinear(2, 7), (2,))
    yield "sandwich-conv-strided", Entry(lambda: lc.SandwichConv2d(1, 2, 2, image_size=(4, 6), stride=2), (1, 4, 6))
    for bound in CONVOLUTIONAL:
        for mode, kernel, out in (("zeros", 3, 2), ("circular", (1, 3), 7))[: 1 if bound in FORMS else 2]:
            make = lambda b=bound, p=mode, k=kernel, o=out: lc.GeneralConv2d(  # noqa: E731
                2, 3, o, k, padding_mode=p, bound=b
            )
            yield f"general-conv-{bound}-{mode}", Entry(make, (2, 4, 5))
    yield "head", Entry(lambda: lc.NormalizedHead(6, 4), (6,), math.sqrt(4))
    yield "convex", Entry(lambda: lc.layers.ConvexCombination(lc.ResidualLinear(4, 3), lc.AffineLinear(4, 4)), (4,))
    yield "learned-scale", Entry(lambda: lc.layers.Scale(2.5, learnable=True), (4,), None)
    yield "scale", Entry(lambda: lc.layers.Scale(-2.5), (4,), 2.5)
    yield "centre", Entry(lambda: lc.layers.Center([0.5, 0.2]), (2, 3, 3))
    yield "normalize", Entry(lambda: lc.layers.Normalize([0.5, 0.2], [0.25, 2.0]), (2, 3, 3), 4.0)
    yield "batch-centering", Entry(lambda: lc.layers.BatchCentering(2), (2, 3, 3))
    yield "layer-centering", Entry(lambda: lc.layers.LayerCentering(5), (5,))
    yield "layer-centering-image", Entry(lambda: lc.layers.LayerCentering((3, 4), channels=2), (2, 3, 4))
    yield "upsample", Entry(lambda: lc.layers.ScaledUpsample2d((2, 3)), (2, 3, 2))
    yield "avg-pool", Entry(lambda: lc.layers.ScaledAvgPool2d((2, 3)), (2, 4, 6))
    yield "l2-pool", Entry(lambda: lc.layers.L2Pool2d(2), (2, 4, 4))
    yield "pad-channels", Entry(lambda: lc.layers.PadChannels(5), (2, 3, 3))
    yield "take-channels", Entry(lambda: lc.layers.TakeChannels(2, 1), (4, 3))
    yield "pad-image", Entry(lambda: lc.layers.PadImage(4), (2, 3, 5))
    yield "pixelwise", Entry(lambda: lc.layers.Pixelwise(lc.OrthogonalLinear(3, 2)), (3, 2, 2))
    yield "space-to-depth", Entry(lambda: lc.layers.SpaceToDepth(2), (2, 4, 4))
    yield "maxmin", Entry(lambda: lc.layers.MaxMin(), (6,))
    yield "groupsort", Entry(lambda: lc.layers.GroupSort(3), (6, 2))
    yield "householder", Entry(lambda: lc.layers.Householder(6), (6, 2))
    yield "abs", Entry(lambda: lc.layers.Abs(), (6,))
    yield "clipped-relu", Entry(lambda: lc.layers.ClippedReLU(0.7), (6,))
    yield "clip", Entry(lambda: lc.layers.Clip(0.4), (6, 2))
    for m, n in ((6, 4), (4, 7)):
        make = lambda m=m, n=n: lc.layers.TrackedLinear(n, m)  # noqa: E731
        yield f"tracked-linear-{m}x{n}", Entry(make, (n,), None)
    for kernel, stride, padding, groups in ((3, 1, 1, 1), (4, 2, 1, 1), (3, 2, 0, 2)):
        make = lambda k=kernel, s=stride, p=padding, g=groups: lc.layers.TrackedConv2d(  # noqa: E731
            2 * g, 4, k, stride=s, padding=p, groups=g
        )
        yield f"tracked-conv-k{kernel}-s{stride}-p{padding}-g{groups}", Entry(make, (2 * groups, 6, 6), None)
    for center in (False, True):
        make = lambda c=center: lc.layers.LinearResidualConv2d(3, depth=4, center=c)  # noqa: E731
        yield f"tracked-identity-conv{'-centered' if center else ''}", Entry(make, (3, 5, 4), None)
    yield "tracked-head", Entry(lambda: lc.layers.LinearHead(6, 4), (6,), None)
    for norm in ("linf", "l1"):
        yield f"{norm}-linear", Entry(lambda n=norm: lc.layers.LinfLinear(6, 4, norm=n), (6,), None)
    make = lambda: lc.layers.Monotone(lc.layers.LinfLinear(4, 1), (0, 2), decreasing=(1,), lipschitz=2.0)  # noqa: E731
    yield "monotone", Entry(make, (4,), None)

    for n, m, rank in ((4, 6, 2), (6, 4, 5), (5, 5, 1)):
        make = lambda n=n, m=m, r=rank: lc.OrthogonalLinear(n, m, method="reflector", rank=r)  # noqa: E731
        yield f"orthogonal-reflector-rank{rank}-{m}x{n}", Entry(make, (n,))
    for n, m, rank, stride in ((2, 4, 2, 1), (1, 3, 1, 2)):
        make = lambda n=n, m=m, r=rank, s=stride: lc.OrthogonalConv2d(  # noqa: E731
            n, m, 3, image_size=4, method="reflector", rank=r, stride=s
        )
        yield f"orthogonal-conv-reflector-rank{rank}-{m}x{n}-s{stride}", Entry(make, (n, 4, 4))
    for n, m in ((4, 6), (6, 4), (5, 5)):
        make = lambda n=n, m=m: lc.OrthogonalLinear(n, m, method="stored")  # noqa: E731
        yield f"orthogonal-stored-{m}x{n}", Entry(make, (n,))
    yield "partial-abs", Entry(lambda: lc.layers.PartialAbs(5), (5, 2))
    yield "shift", Entry(lambda: lc.layers.Shift((2, 3), 1 / 4), (9, 2, 3))
    yield "positional-bias", Entry(lambda: lc.layers.PositionalBias((2, 3)), (4, 2, 3))


LAYERS = dict(_entries())
LEARNED = [name for name, entry in LAYERS.items() if list(entry.make().parameters())]


def kinds(name: str) -> list[str]:
    """The kinds of hostile parameters that a law is tried under for one layer.

    ``make test`` takes "all active", which most mistakes need, and three others. They change from layer to layer so
    that six layers in a row, which share a bound, meet all of them. LIPCERT_FULL=1 takes every kind for each layer.
    """
    names, index = list(HOSTILE), list(LAYERS).index(name)
    if LAYERS[name].lipschitz is None:
        names.remove("huge and equal")  # sums of 1e38 leave float32, and nothing divides them
    chosen = full(names, ["all active", *names[(index + index // 6) % 6 :: 6]])
    return [kind for kind in names if kind in chosen]


def one_geometry(names: Iterable[str]) -> list[str]:
    """One layer for each form, bound, method, activation and padding mode, for laws about these.

    What differs is the geometry at the end of a name: sizes, kernel, stride, groups. LIPCERT_FULL=1 keeps all.
    """
    names = list(names)
    first = {re.sub(r"-(k[\d(]|\d|to-).*", "", name): name for name in reversed(names)}
    return full(names, [name for name in names if name in first.values()])


def bounds_or_geometries(names: Iterable[str]) -> list[str]:
    """Every geometry with one bound and every bound with one geometry, for laws that either can break.

    Layers without a choice of bounds are all there. LIPCERT_FULL=1 keeps every pair.
    """
    names = list(names)
    one, others = one_geometry(names), {f"-{bound}-" for bound in DENSE} - {"-aol-"}
    return full(names, [name for name in names if name in one or not any(bound in name for bound in others)])


def inputs(entry: Entry, dtype: torch.dtype = torch.float64, batch: int = 1) -> Tensor:
    return torch.randn(batch, *entry.shape, dtype=dtype)


def fit(layer: nn.Module) -> None:
    """Solve for Optimal's Γ where there is one: the hostile weight is what it is solved for."""
    for module in layer.modules():
        if isinstance(getattr(module, "bound", None), lc.bounds.Optimal):
            module.bound.fit(module.columns())
