"""Every rule for a module of torch.nn, against the module itself.

The op computes what the module computes. Its constant is at least every Jacobian and every quotient of two points.
Its rounding bound holds in float32 and in float64. It survives a file, and a change of the module. What must be
refused is refused in one sentence.
"""

import copy
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
import torch
import torch.nn.functional as F
from mpmath import iv, mp
from torch import nn

import lipcert as lc
from full import full
from lipcert.certified.foreign import FOREIGN
from lipcert.certified.freeze import prove
from lipcert.certified.functions import FUNCTIONS
from lipcert.certified.ops import Function
from lipcert.exporters.export import export
from lipcert.exporters.files import load_frozen
from lipcert.verified.rounding import U32, U64

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even")  # torch warns of a copy, once
ROUNDING = 1e-12
KINKS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 20.0, -20.0, 1e-3, -1e-30, 1e-30, 88.0, -110.0)
NEAR = 1e-6  # a proved constant carries 2⁻²⁸, and a verified eigenvalue some more


def normed(module):
    """A batch norm with odd statistics."""
    module.running_var.uniform_(0.01, 4.0)
    module.running_mean.normal_()
    if module.affine:
        nn.init.normal_(module.weight, std=2.0)
        nn.init.normal_(module.bias)
    return module.eval()


def far(module):
    """Means that nearly cancel, and factors of many sizes."""
    module = normed(module)
    module.running_mean.copy_(torch.tensor([1e4, -3e3, 0.0, 1e-3]))
    module.running_var.copy_(torch.tensor([1e-8, 2.0, 1e4, 0.0]))
    return module


def with_weight(module, values):
    module.weight.data = torch.tensor(values)
    return module


# name: (make a module, shape of one example, by how much its constant may be above what is found, or None)
FUNCTION_CASES = {
    "identity": (nn.Identity, 0),
    "dropout": (lambda: nn.Dropout(0.3).eval(), 0),
    "alpha dropout": (lambda: nn.AlphaDropout(0.3).eval(), 0),
    "relu": (nn.ReLU, 0),
    "relu in place": (lambda: nn.ReLU(inplace=True), 0),
    "relu6": (nn.ReLU6, 0),
    "hardtanh": (nn.Hardtanh, 0),
    "hardtanh, odd ends": (lambda: nn.Hardtanh(-0.1, 2.7), 0),
    "leaky": (lambda: nn.LeakyReLU(0.1), 0),
    "leaky, steep": (lambda: nn.LeakyReLU(1.7), NEAR),
    "leaky, negative": (lambda: nn.LeakyReLU(-2.3), NEAR),
    "rrelu": (lambda: nn.RReLU().eval(), 0),
    "rrelu, steep": (lambda: nn.RReLU(1.0, 4.1).eval(), NEAR),
    "prelu": (nn.PReLU, 0),
    "prelu, steep": (lambda: with_weight(nn.PReLU(), [-3.3]), NEAR),
    "prelu, many": (lambda: with_weight(nn.PReLU(4), [0.1, -2.5, 1.1, 0.0]), NEAR),
    "elu": (nn.ELU, 0),
    "elu, steep": (lambda: nn.ELU(1.8), 1e-2),
    "elu, negative": (lambda: nn.ELU(-2.0), 1e-2),
    "celu": (nn.CELU, 0),
    "celu, small": (lambda: nn.CELU(0.3), 0),
    "celu, large": (lambda: nn.CELU(7.0), 0),
    "selu": (nn.SELU, 1e-2),
    "tanh": (nn.Tanh, NEAR),
    "sigmoid": (nn.Sigmoid, NEAR),
    "softplus": (lambda: nn.Softplus(threshold=37), NEAR),
    "softplus, steep": (lambda: nn.Softplus(5.0, threshold=40), NEAR),
    "softplus, flat": (lambda: nn.Softplus(0.2, threshold=40), NEAR),
    "softsign": (nn.Softsign, NEAR),
    "logsigmoid": (nn.LogSigmoid, NEAR),
    "hardsigmoid": (nn.Hardsigmoid, NEAR),
    "hardswish": (nn.Hardswish, 1e-2),
    "softshrink": (nn.Softshrink, 0),
    "softshrink, wide": (lambda: nn.Softshrink(1.3), 0),
    "softshrink, none": (lambda: nn.Softshrink(0.0), 0),
    "tanhshrink": (nn.Tanhshrink, NEAR),
    "threshold": (lambda: nn.Threshold(0.1, 0.1), 0),
    "threshold, below": (lambda: nn.Threshold(-2.0, -2.0), 0),
    "gelu": (nn.GELU, 1e-2),
    "silu": (nn.SiLU, 1e-2),
    "mish": (nn.Mish, 1e-2),
}
CASES = {
    **{name: (make, (4, 3), tight) for name, (make, tight) in FUNCTION_CASES.items()},
    "softmax": (lambda: nn.Softmax(dim=1), (5,), NEAR),
    "softmax of an image": (lambda: nn.Softmax(dim=1), (3, 2, 2), NEAR),
    "softmax, last": (lambda: nn.Softmax(dim=-1), (3, 4), NEAR),
    "softmax of two": (lambda: nn.Softmax(dim=-1), (2,), NEAR),
    "softmax2d": (nn.Softmax2d, (3, 2, 2), NEAR),
    "log softmax": (lambda: nn.LogSoftmax(dim=1), (5,), 1e-2),
    "log softmax, last": (lambda: nn.LogSoftmax(dim=-1), (3, 4), 1e-2),
    "log softmax of one": (lambda: nn.LogSoftmax(dim=1), (1, 4), None),
    "flatten": (nn.Flatten, (2, 3, 2), 0),
    "flatten, from 2": (lambda: nn.Flatten(2), (2, 3, 2), 0),
    "flatten, the first two": (lambda: nn.Flatten(1, 2), (2, 3, 2), 0),
    "flatten, negative": (lambda: nn.Flatten(-2, -1), (2, 3, 2), 0),
    "flatten of a vector": (nn.Flatten, (5,), 0),
    "unflatten": (lambda: nn.Unflatten(1, (2, 3)), (6, 2), 0),
    "unflatten, filled": (lambda: nn.Unflatten(-1, (2, -1)), (3, 4), 0),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), (8, 2, 3), 0),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(2), (2, 4, 6), 0),
    "channel shuffle": (lambda: nn.ChannelShuffle(3), (6, 2, 2), 0),
    "channel shuffle, 1 axis": (lambda: nn.ChannelShuffle(2), (6, 3), 0),
    "upsample": (lambda: nn.Upsample(scale_factor=2), (2, 3, 2), NEAR),
    "upsample by size": (lambda: nn.Upsample(size=(6, 8)), (2, 3, 2), NEAR),
    "upsample by one size": (lambda: nn.Upsample(size=12), (1, 3, 4), NEAR),
    "upsample by two factors": (lambda: nn.Upsample(scale_factor=(1.0, 3.0)), (1, 3, 2), NEAR),
    "upsample, 1 axis": (lambda: nn.Upsample(scale_factor=3), (2, 4), NEAR),
    "upsample, 3 axes": (lambda: nn.Upsample(scale_factor=2), (1, 2, 2, 2), NEAR),
    "upsample, exact": (lambda: nn.Upsample(scale_factor=3, mode="nearest-exact"), (1, 3, 2), NEAR),
    "upsample 2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), (1, 3, 2), NEAR),
    "unfold": (lambda: nn.Unfold(2), (2, 4, 3), NEAR),
    "unfold, all settings": (
        lambda: nn.Unfold((2, 3), dilation=(2, 1), padding=(1, 2), stride=(1, 2)),
        (2, 5, 4),
        NEAR,
    ),
    "unfold, apart": (lambda: nn.Unfold(2, stride=3), (1, 6, 6), 0),
}
for axes, shape in ((1, (2, 5)), (2, (2, 4, 5)), (3, (1, 3, 4, 3))):
    PADS = {
        "all": ((1, 2), (2, 1, 1, 2), (1, 2, 2, 1, 1, 0)),
        "negative": ((-1, -2), (-1, -2, 0, -1), (-1, 0, 0, -2, -1, -1)),
        "mixed": ((2, -1), (-1, 2, 1, -2), (1, -1, -2, 1, 0, 1)),
    }
    for sides, choices in PADS.items():  # circular padding that crops is refused, below
        tight = None if sides == "mixed" else NEAR
        for kind, more in (
            ("Zero", ()),
            ("Constant", (0.7,)),
            ("Circular", ()),
            ("Reflection", ()),
            ("Replication", ()),
        ):
            make = getattr(nn, f"{kind}Pad{axes}d")
            if (kind, sides) == ("Circular", "mixed"):
                continue
            CASES[f"{kind}Pad{axes}d, {sides}"] = (
                lambda make=make, pad=choices[axes - 1], more=more: make(pad, *more), shape, tight
            )  # fmt: skip
CASES |= {
    "constant pad by one number": (lambda: nn.ConstantPad2d(2, -1.5), (1, 2, 3), 0),
    "circular pad, whole image": (lambda: nn.CircularPad1d((4, 4)), (1, 4), NEAR),
    "reflection, whole image": (lambda: nn.ReflectionPad1d((3, 3)), (1, 4), NEAR),
    "replication, far": (lambda: nn.ReplicationPad1d((7, 9)), (1, 4), NEAR),
}
for axes, shape in ((1, (2, 8)), (2, (1, 7, 6)), (3, (1, 5, 4, 6))):
    average, maximum = getattr(nn, f"AvgPool{axes}d"), getattr(nn, f"MaxPool{axes}d")
    adaptive = getattr(nn, f"AdaptiveAvgPool{axes}d"), getattr(nn, f"AdaptiveMaxPool{axes}d")
    AVERAGES = {
        "blocks": {"kernel_size": 2},
        "overlap": {"kernel_size": 3, "stride": 1},
        "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
        "padding not counted": {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        "ceil": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        "ceil, padded": {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
        "ceil, not counted": {
            "kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False
        },
        "gaps": {"kernel_size": 1, "stride": 2},
    }  # fmt: skip
    if axes > 1:
        AVERAGES["divisor"] = {"kernel_size": 2, "stride": 1, "divisor_override": 3}
        AVERAGES["divisor, ceil"] = {"kernel_size": 3, "padding": 1, "ceil_mode": True, "divisor_override": 5}
        AVERAGES["sides"] = {
            "kernel_size": (3, 2, 1)[:axes],
            "stride": (1, 2, 1)[:axes],
            "padding": (1, 0, 0)[:axes],
        }
    for name, options in AVERAGES.items():
        CASES[f"AvgPool{axes}d, {name}"] = (lambda make=average, options=options: make(**options), shape, NEAR)
    MAXIMA = {
        "blocks": {"kernel_size": 2},
        "overlap": {"kernel_size": 3, "stride": 1},
        "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
        "dilated": {"kernel_size": 2, "stride": 1, "dilation": 2},
        "dilated, padded, ceil": {"kernel_size": 2, "stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True},
        "ceil": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        "gaps": {"kernel_size": 1, "stride": 2},
    }
    for name, options in MAXIMA.items():
        CASES[f"MaxPool{axes}d, {name}"] = (lambda make=maximum, options=options: make(**options), shape, NEAR)
    for kind, make in zip(("Avg", "Max"), adaptive, strict=True):
        for size in (1, 3):
            CASES[f"Adaptive{kind}Pool{axes}d to {size}"] = (lambda make=make, size=size: make(size), shape, NEAR)
    if axes > 1:
        some = (None, 4, 2)[:axes]
        CASES[f"AdaptiveAvgPool{axes}d to some"] = (lambda make=adaptive[0], size=some: make(size), shape, NEAR)
        CASES[f"AdaptiveMaxPool{axes}d to some"] = (lambda make=adaptive[1], size=some: make(size), shape, NEAR)
    if axes < 3:
        root = getattr(nn, f"LPPool{axes}d")
        CASES[f"LPPool{axes}d, blocks"] = (lambda make=root: make(2, 2), shape, None)
        CASES[f"LPPool{axes}d, overlap"] = (lambda make=root: make(2, 3, stride=1), shape, None)
    norm = getattr(nn, f"BatchNorm{axes}d")
    CASES[f"BatchNorm{axes}d"] = (lambda make=norm: normed(make(3)), (3, *shape[1:]), NEAR)
    CASES[f"BatchNorm{axes}d, plain"] = (
        lambda make=norm: normed(make(3, affine=False, eps=0.0)), (3, *shape[1:]), NEAR
    )  # fmt: skip
    # Convolutions: from a to b channels.
    conv, back = getattr(nn, f"Conv{axes}d"), getattr(nn, f"ConvTranspose{axes}d")
    size = {1: (17,), 2: (9, 8), 3: (6, 5, 6)}[axes]
    CONVOLUTIONS = {
        "plain": ((2, 3), {"kernel_size": 3}),
        "padded": ((2, 3), {"kernel_size": 3, "padding": 1}),
        "same, even": ((2, 3), {"kernel_size": 2, "padding": "same"}),
        "same, dilated": ((2, 2), {"kernel_size": 2, "dilation": 2, "padding": "same"}),
        "strided": ((2, 3), {"kernel_size": 3, "stride": 2, "padding": 1}),
        "dilated and strided": ((1, 2), {"kernel_size": 2, "stride": 2, "dilation": 3, "padding": 2}),
        "groups": ((4, 6), {"kernel_size": 2, "groups": 2, "bias": False}),
        "circular": ((2, 2), {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
    }
    for name, (channels, options) in CONVOLUTIONS.items():
        CASES[f"Conv{axes}d, {name}"] = (
            lambda make=conv, c=channels, options=options: make(*c, **options), (channels[0], *size), None
        )  # fmt: skip
    TRANSPOSED = {
        "plain": ((3, 2), {"kernel_size": 3}),
        "strided": ((3, 2), {"kernel_size": 3, "stride": 2, "padding": 1}),
        "output padding": ((3, 2), {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}),
        "dilated and grouped": ((4, 6), {"kernel_size": 2, "stride": 2, "dilation": 2, "groups": 2}),
    }
    size = {1: (9,), 2: (5, 4), 3: (3, 3, 4)}[axes]
    for name, (channels, options) in TRANSPOSED.items():
        CASES[f"ConvTranspose{axes}d, {name}"] = (
            lambda make=back, c=channels, options=options: make(*c, **options), (channels[0], *size), None
        )  # fmt: skip
CASES |= {
    "LPPool1d, gaps": (lambda: nn.LPPool1d(2.0, 2, stride=3), (2, 8), None),
    "BatchNorm1d of a vector": (lambda: normed(nn.BatchNorm1d(4)), (4,), NEAR),
    "BatchNorm1d, far from 0": (lambda: far(nn.BatchNorm1d(4, eps=1e-6)), (4, 2), NEAR),
    "BatchNorm1d, no weight left": (lambda: with_weight(normed(nn.BatchNorm1d(2)), [0.0, 0.0]), (2,), None),
    "prelu of a vector": (lambda: with_weight(nn.PReLU(3), [0.1, -2.5, 1.1]), (3,), NEAR),
    "adaptive average, more than there is": (lambda: nn.AdaptiveAvgPool1d(7), (2, 4), NEAR),
    "adaptive maximum, more than there is": (lambda: nn.AdaptiveMaxPool1d(7), (2, 4), NEAR),
    "SyncBatchNorm": (lambda: normed(nn.SyncBatchNorm(3)), (3, 4), NEAR),
    "linear": (lambda: nn.Linear(5, 4), (5,), NEAR),
    "linear on rows": (lambda: nn.Linear(3, 4, bias=False), (2, 3), NEAR),
}
del axes, shape, size, kind, name  # names of the loops above


AFFINE = tuple(getattr(nn, f"{kind}{axes}d") for kind in ("Conv", "ConvTranspose", "AvgPool") for axes in (1, 2, 3))


def table(chosen=CASES):
    return [pytest.param(name, id=name) for name in chosen]


def made(name):
    """(the module with the same odd numbers every time, the shape of one example)."""
    torch.manual_seed(len(name))
    make, shape, _ = CASES[name]
    return make(), shape


def points(shape, dtype=torch.float64):
    """Random, tied, large and tiny examples, and values at the kinks of the functions."""
    generator = torch.Generator().manual_seed(3)
    some = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    kinks = torch.tensor(KINKS, dtype=torch.float64)
    chosen = [kinks[torch.randint(len(kinks), shape, generator=generator)] for _ in range(3)]
    flat = [
        torch.full(shape, value, dtype=torch.float64) for value in (0.0, 1.0, -1.0, 1.42, -1.42, 2.4, 2.999, -1e-9)
    ]
    first = torch.zeros(shape, dtype=torch.float64)
    first.view(-1)[0] = 30.0  # one class wins
    pair, last = (torch.full(shape, -60.0, dtype=torch.float64) for _ in range(2))
    pair[:2] = 1.0  # two classes share, along the first axis or the last
    last[..., :2] = 1.0
    ordered = torch.arange(math.prod(shape), dtype=torch.float64).view(shape) / 7
    stacked = torch.stack(
        [*some, 1e3 * some[0], 1e-3 * some[1], *chosen, *flat, first, pair, last, ordered, -ordered]
    )
    return stacked.to(dtype)


def wide(module):
    return copy.deepcopy(module).double()


def run(module, x):
    with torch.no_grad():
        return module(x.clone())


def jacobian_norm(module, x):
    """The largest singular value of the Jacobian at one point: every output asks its own copy of the point."""
    count = run(module, x[None]).numel()
    batch = x.expand(count, *x.shape).clone().requires_grad_()
    out = module(batch * 1.0).flatten(1)
    (rows,) = torch.autograd.grad(out.diagonal().sum(), batch)
    rows = rows.flatten(1)
    return float(torch.linalg.matrix_norm(rows, 2)) if bool(torch.isfinite(rows).all()) else 0.0


def test_the_table_has_every_module():
    kinds = {type(made(name)[0]) for name in CASES}
    missing = {kind.__name__ for kind in FOREIGN if kind not in kinds}
    assert missing == {"Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"}  # as Dropout


# --- The same function ---


@pytest.mark.parametrize("name", table())
def test_the_op_computes_what_the_module_computes(name):
    module, shape = made(name)
    x = points(shape)
    expected, found = run(wide(module), x), prove(module, shape).run(x)[-1]
    assert found.shape == expected.shape
    size = expected.flatten(1).abs().amax(dim=1).clamp_min(1e-3)
    worst = ((found - expected).flatten(1).abs().amax(dim=1) / size).max()
    assert float(worst) <= ROUNDING
    narrow = x.float()
    expected = run(copy.deepcopy(module).float(), narrow)
    frozen = lc.freeze(module)
    found = run(frozen, narrow)
    assert found.shape == expected.shape
    size = narrow.flatten(1).abs().amax(dim=1).clamp_min(1.0) * max(1.0, prove(frozen, shape).lipschitz)
    assert float(((found - expected).flatten(1).abs().amax(dim=1) / size).max()) <= 2e-6


@pytest.mark.parametrize("name", table())
def test_an_op_leaves_its_input_reads_any_layout_and_has_the_same_gradient(name):
    """An attack on the frozen network needs the slope of the network."""
    module, shape = made(name)
    frozen, double = lc.freeze(module), wide(module)
    x = points(shape)[:4]
    kept = x.clone()
    expected = run(frozen, x)
    frozen(x)
    assert torch.equal(x, kept)
    turned = x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))
    assert torch.allclose(run(frozen, turned), expected, rtol=1e-12, atol=1e-12)
    assert torch.allclose(run(frozen, x[:1]), expected[:1], rtol=1e-12, atol=1e-12)
    slopes = []
    for network in (frozen, double):
        here = x.clone().requires_grad_()
        out = network(here * 1.0)
        mixed = torch.linspace(-1, 1, out[0].numel(), dtype=torch.float64).view(out.shape[1:])
        slopes.append(torch.autograd.grad((out * mixed).sum(), here)[0])
    assert torch.allclose(*slopes, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("Conv")])
@pytest.mark.parametrize("block", [None, 2])
def test_convolutions_run_fast_and_by_plain_sums_alike(name, block):
    """With 1, 2 and 3 axes, whether or not there is a proof: both ways of an op are the module."""
    module, shape = made(name)
    x, (op,) = points(shape), lc.freeze(module)
    expected = run(wide(module), x)
    for found in (op(x), op.evaluate(x, block), op.at(shape).clone().evaluate(x, block)):
        assert op.output_shape(shape) == found.shape[1:] == expected.shape[1:]
        worst = (found - expected).flatten(1).abs().amax(dim=1) / x.flatten(1).abs().amax(dim=1).clamp_min(1.0)
        assert float(worst.max()) <= ROUNDING


# --- The constant ---


@pytest.mark.parametrize("name", table())
def test_no_jacobian_and_no_two_points_exceed_the_constant(name):
    module, shape = made(name)
    tight = CASES[name][2]
    proved = prove(module, shape)
    upper, double, x = proved.lipschitz, wide(module), points(shape)
    assert math.isfinite(upper)
    # What is affine has the same Jacobian everywhere, and a convolution in space has a large one.
    places = full(len(x), 1) if isinstance(module, AFFINE) else len(x)
    found = max(jacobian_norm(double, one) for one in x[:places])
    if name == "hardsigmoid":
        found *= 1 - 2.0**-24  # torch differentiates it with 1/6 in float32
    starts = [torch.zeros(shape), torch.full(shape, 0.5), torch.full(shape, -1.0)]
    for start in starts[:places]:  # one entry rises or falls: every window and every copy follows
        start = start.double()
        steps = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
        for step in (1.0, -1.0, 1e-3):
            moved = (run(double, start + step * steps) - run(double, start[None])).flatten(1).norm(dim=1)
            found = max(found, float(moved.max()) / abs(step) * (1 - 1e-9))
    generator = torch.Generator().manual_seed(4)
    for size in (1e-3, 1.0, 30.0):
        y = x + size * torch.randn(x.shape, generator=generator, dtype=torch.float64)
        moved = (run(double, y) - run(double, x)).flatten(1).norm(dim=1) / (y - x).flatten(1).norm(dim=1)
        found = max(found, float(moved.max()) * (1 - 1e-8))
    assert found * (1 - ROUNDING) <= upper
    if name.startswith("Conv"):
        tight = 0.6 if "3d" in name else 0.4  # small images; the plane's norm is proved
    if tight is not None:
        assert upper <= found * (1 + max(tight, NEAR))
    again = prove(lc.freeze(module), shape).lipschitz
    assert found * (1 - 1e-6) <= again <= upper * (1 + 1e-6)


@pytest.mark.parametrize("name", table())
def test_a_constant_for_every_shape_is_one_for_this_shape(name):
    module, shape = made(name)
    here = prove(module, shape).lipschitz
    assert lc.lipschitz_bound(module, shape) == here
    try:
        everywhere = lc.lipschitz_bound(module)
    except lc.NotCertified as refusal:
        assert "shape" in str(refusal)  # noqa: PT017
        return
    assert everywhere >= here * (1 - 2.0**-27)  # a proof for a shape leaves 2⁻²⁸ to a checker


# --- Rounding ---


def computed_error(proved, x, u):
    """The bound of ‖computed − exact‖ after every part, for the norms that the parts see."""
    exact = [x, *proved.run(x)]
    err = torch.zeros(len(x), dtype=torch.float64)
    for part, value in zip(proved.parts, exact, strict=False):
        norms = value.flatten(1).norm(dim=1) * (1 + 1e-9) + err
        err = part.proof.lipschitz * err + part.proof.error_bound(norms, u)
    return exact[-1], err


@pytest.mark.parametrize("name", table())
def test_float32_is_within_the_rounding_bound(name):
    module, shape = made(name)
    x = points(shape, torch.float32)
    with torch.no_grad():
        found = prove(module, shape, dtype=torch.float32).run(x)[-1].double()
        exact, allowed = computed_error(prove(module, shape), x.double(), U32)
    lost = (found - exact).flatten(1).norm(dim=1)
    assert bool(torch.isfinite(allowed).all())
    assert bool((lost <= allowed).all()), (lost / allowed).max()
    scale = exact.flatten(1).norm(dim=1) + x.double().flatten(1).norm(dim=1) + math.sqrt(exact[0].numel())
    assert bool((allowed <= 1e-3 * scale * max(1.0, prove(module, shape).lipschitz)).all())  # and it says something


EXACT = {  # in many digits
    "shift": lambda x, c: x + mp.mpf(c),
    "divide": lambda x, d: x / mp.mpf(d),
    "leaky_relu": lambda x, a: x if x >= 0 else a * x,
    "softshrink": lambda x, a: x - min(max(x, -a), a),
    "softsign": lambda x: x / (1 + abs(x)),
    "hardsigmoid": lambda x: min(max(x + 3, 0), 6) / mp.mpf(6),
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / mp.mpf(6),
    "hardtanh": lambda x, low, high: min(max(x, low), high),
    "maximum": lambda x, t: max(x, t),
    "relu": lambda x: max(x, 0),
    "abs": abs,
    "identity": lambda x: x,
    "elu": lambda x, a: x if x >= 0 else a * mp.expm1(x),
    "celu": lambda x, a: x if x >= 0 else a * mp.expm1(x / a),
    "selu": lambda x: mp.mpf(1.0507009873554805) * (x if x >= 0 else mp.mpf(1.6732632423543772) * mp.expm1(x)),
    "tanh": mp.tanh,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "softplus": lambda x, b: mp.log1p(mp.exp(b * x)) / b,
    "logsigmoid": lambda x: -mp.log1p(mp.exp(-x)),
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "silu": lambda x: x / (1 + mp.exp(-x)),
    "mish": lambda x: x * mp.tanh(mp.log1p(mp.exp(x))),
    "tanhshrink": lambda x: x - mp.tanh(x),
}
NUMBERS = {
    "shift": [(0.1,), (-2.3,), (1e9,)],
    "divide": [(3.0,), (0.1,), (1e-6,), (700.0,)],
    "leaky_relu": [(0.1,), (-2.3,), (1.7,)],
    "softshrink": [(0.0,), (0.5,), (1.3,)],
    "hardtanh": [(-0.1, 2.7), (0.0, 6.0), (1.0, 1.0)],
    "maximum": [(0.1,), (-2.0,)],
    "elu": [(1.0,), (1.8,), (-2.0,)],
    "celu": [(1.0,), (0.3,), (1e-3,), (700.0,)],
    "softplus": [(1.0,), (5.0,), (0.01,), (300.0,)],
}
SETTINGS = [(name, numbers) for name in EXACT for numbers in NUMBERS.get(name, [()])]


def hostile_numbers():
    spread = torch.linspace(-12, 12, 240, dtype=torch.float64)
    sizes = torch.logspace(-12, 3, 40, dtype=torch.float64)
    return torch.cat([spread, sizes, -sizes, torch.tensor(KINKS, dtype=torch.float64)])


def test_every_function_has_an_exact_form():
    assert set(EXACT) == set(FUNCTIONS)


@pytest.mark.parametrize(("name", "numbers"), SETTINGS, ids=str)
@pytest.mark.parametrize(("dtype", "u"), [(torch.float64, U64), (torch.float32, U32)], ids=["float64", "float32"])
def test_functions_are_within_the_rounding_bound_of_the_exact_values(name, numbers, dtype, u):
    op, x = Function(name, numbers), hostile_numbers().to(dtype)
    allowed = op.prove((1,)).error_bound(x.double().abs(), u)
    found = op(x[:, None])[:, 0]
    assert found.dtype == dtype
    with mp.workdps(60):
        settings = [mp.mpf(value) for value in numbers]
        lost = [
            float(abs(mp.mpf(y) - EXACT[name](mp.mpf(v), *settings)))
            for v, y in zip(x.tolist(), found.tolist(), strict=True)
        ]
    assert bool((torch.tensor(lost, dtype=torch.float64) <= allowed).all())


@pytest.mark.parametrize(("name", "numbers"), SETTINGS, ids=str)
def test_functions_are_no_steeper_than_their_slope(name, numbers):
    """Quotients of neighbours in many digits, so that nothing cancels."""
    slope = Function(name, numbers).prove((1,)).lipschitz
    with mp.workdps(80):
        settings = [mp.mpf(value) for value in numbers]
        places = sorted(mp.mpf(value) for value in {*hostile_numbers().tolist()})
        values = [EXACT[name](place, *settings) for place in places]
        steepest = max(abs(values[i + 1] - values[i]) / (places[i + 1] - places[i]) for i in range(len(places) - 1))
    assert float(steepest) <= slope * (1 + 1e-14)


# --- Slopes, proved by intervals ---

T = 60  # beyond it every term with an exponential is below e⁻⁵⁰


def silu_slope(x):
    s = 1 / (1 + iv.exp(-x))
    return s + x * s * (1 - s)


def mish_slope(x):
    """t + x(1 − t²)s with t = tanh(log(1 + eˣ)) = 1 − w and s the sigmoid; 1 − t² = w(2 − w)."""
    e = iv.exp(x)
    w = 2 / (e * e + 2 * e + 2)
    return 1 - w + x * w * (2 - w) * (1 - 1 / (1 + e))


def hardswish_slope(x):
    return (2 * x + 3) / 6  # between −3 and 3; 0 before and 1 after


def at_most(slope, bound, low, high):
    """Whether |slope| ≤ bound on [low, high]: halves are tried until intervals decide."""
    waiting = [(mp.mpf(low), mp.mpf(high))]
    for _ in range(100_000):
        if not waiting:
            return True
        a, b = waiting.pop()
        value = slope(iv.mpf([a, b]))
        if value.b <= bound and -value.a <= bound:
            continue
        if b - a < mp.mpf(2) ** -40:
            return False
        middle = (a + b) / 2
        waiting += [(a, middle), (middle, b)]
    return False


# For |x| ≥ T: s, t and Φ lie in [0, 1] and, below 0, are at most 2e⁻ᵀ; the other term is at most 4|x|e^−|x|, which
# falls with |x| there. So the slopes are at most 1 + 4(1 + T)e⁻ᵀ.
SLOPES = {
    "silu": (silu_slope, 1.0999, (-T, T)),
    "mish": (mish_slope, 1.0885, (-T, T)),
    "hardswish": (hardswish_slope, 1.5, (-3, 3)),
}


@pytest.mark.parametrize("name", SLOPES)
def test_the_slope_is_proved_by_intervals(name):
    slope, constant, (low, high) = SLOPES[name]
    assert FUNCTIONS[name].slope() == constant
    assert at_most(slope, mp.mpf(constant), low, high)
    tail = 1 + 4 * (1 + iv.mpf(T)) * iv.exp(-iv.mpf(T))
    assert tail.b <= constant
    assert not at_most(
        slope, mp.mpf(constant) - mp.mpf("1e-4"), low, high
    )  # the bound is near, and the search works
    with mp.workdps(30):  # the formula is the derivative of the function
        for place in (-2.9, -1.3, 0.2, 1.49, 2.4, 2.9):
            direct = mpmath.diff(EXACT[name], mp.mpf(place))
            assert abs(direct - slope(iv.mpf(place)).mid) < 1e-12


def test_the_slope_of_gelu_is_proved():
    """Φ(x) + xφ(x) has the derivative (2 − x²)φ(x): its largest modulus is at ±√2, or 0 or 1 at the ends.

    Φ(√2) = ½ + ½erf(1), and erf(1) = 2/√π·Σ(−1)ⁿ/(n!(2n + 1)), whose terms alternate and fall.
    """
    total = iv.mpf(0)
    for n in range(30):
        term = iv.mpf(1) / (math.factorial(n) * (2 * n + 1))
        total = total + (term if n % 2 == 0 else -term)
    total = total + iv.mpf([-1, 1]) / (math.factorial(30) * 61)
    erf = 2 / iv.sqrt(iv.pi) * total
    phi = iv.sqrt(iv.mpf(2)) * iv.exp(iv.mpf(-1)) / iv.sqrt(2 * iv.pi)  # √2·φ(√2)
    top, bottom = (1 + erf) / 2 + phi, (1 - erf) / 2 - phi
    constant = FUNCTIONS["gelu"].slope()
    assert constant == 1.1290
    assert top.b <= constant <= float(top.a) + 1e-4
    assert -bottom.a <= constant


def test_the_slope_of_selu_is_proved():
    """s above 0 and sαeˣ below: at most sα, which is decided in rationals."""
    scale, alpha, constant = 1.0507009873554805, 1.6732632423543772, FUNCTIONS["selu"].slope()
    assert constant == 1.758099340847377
    assert max(Fraction(scale), Fraction(scale) * Fraction(alpha)) <= Fraction(constant)
    assert Fraction(constant) <= Fraction(scale) * Fraction(alpha) * (1 + Fraction(1, 2**50))
    x = torch.tensor([1.0, -700.0], dtype=torch.float64)
    assert F.selu(x).tolist() == pytest.approx([scale, -scale * alpha], rel=1e-15)


# --- Files ---


def headed(name):
    module, shape = made(name)
    return nn.Sequential(module, nn.Flatten()), shape


@pytest.mark.parametrize("name", table())
def test_a_file_keeps_every_bit(name, tmp_path):
    network, shape = headed(name)
    frozen, path = lc.freeze(network), tmp_path / "n.safetensors"
    export(frozen, path, to="torch", input_shape=shape)
    x, again = points(shape, torch.float32), load_frozen(path)
    assert torch.equal(run(again, x), run(frozen, x))
    first, second = prove(frozen, shape), prove(again, shape)
    assert [part.proof.lipschitz for part in second.parts] == [part.proof.lipschitz for part in first.parts]
    assert torch.equal(second.run(x.double())[-1], first.run(x.double())[-1])


CHAINS = {  # every kind of op, as a program
    "piecewise": (
        (
            nn.ReLU6(), nn.Hardtanh(-0.1, 2.7), nn.LeakyReLU(-2.3), nn.Softshrink(0.1), nn.Threshold(-2.0, -2.0),
            nn.Hardsigmoid(), nn.Hardswish(), nn.Softsign(), with_weight(nn.PReLU(2), [0.1, -2.0]),
        ),
        (2, 6),
    ),
    "smooth": (
        (
            nn.ELU(1.8), nn.CELU(0.3), nn.SELU(), nn.Tanhshrink(), nn.Softplus(5.0), nn.LogSigmoid(), nn.Mish(),
            nn.SiLU(), nn.GELU(), nn.Tanh(), nn.Sigmoid(), nn.Softmax(dim=1), nn.LogSoftmax(dim=-1),
        ),
        (2, 6),
    ),
    "moves": (
        (
            nn.ConstantPad2d((1, -1, 2, 0), 0.7), nn.CircularPad2d(1), nn.ReflectionPad2d(1),
            nn.ReplicationPad2d(1), nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.ChannelShuffle(2),
            nn.Upsample(scale_factor=2), nn.Unfold(2),
        ),
        (4, 2, 3),
    ),
    "pools": (
        (
            nn.AvgPool2d(2), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1), nn.AdaptiveAvgPool2d((4, 3)),
            nn.LPPool2d(2, 2, 1), nn.AdaptiveMaxPool2d((2, 2)),
        ),
        (1, 10, 8),
    ),
    "products": (
        (nn.Conv2d(2, 4, 2, padding="same"), normed(nn.BatchNorm2d(4)), nn.ConvTranspose2d(4, 3, 3, 2, 1, 1)),
        (2, 5, 4),
    ),
}  # fmt: skip
# ONNX is written from a program of torch.export, so one chain for the latter is enough in make test.
EXPORTED = full(("moves", "pools", "products"), ("moves",))
PROGRAMS = [("onnx", name) for name in CHAINS] + [("torch-export", name) for name in EXPORTED]


@pytest.mark.parametrize(("to", "name"), PROGRAMS)
def test_programs_compute_every_kind_of_op(to, name, tmp_path):
    layers, shape = CHAINS[name]
    suffix = {"torch-export": ".pt2", "onnx": ".onnx"}[to]
    report = export(
        lc.freeze(nn.Sequential(*layers, nn.Flatten())), Path(tmp_path, f"n{suffix}"), to=to, input_shape=shape
    )
    assert report.difference <= report.allowed


# --- Changes after freezing ---


def spoil(module):
    """Change every setting and every tensor of a module."""
    for key, value in list(vars(module).items()):
        if key.startswith("_") or isinstance(value, bool):
            continue
        if isinstance(value, int):
            setattr(module, key, value + 1)
        elif isinstance(value, float):
            setattr(module, key, value * 2 + 1)
        elif isinstance(value, str):
            setattr(module, key, "spoilt")
        elif isinstance(value, (tuple, list)):
            setattr(module, key, type(value)(v + 1 if isinstance(v, int) else v for v in value))
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data.mul_(3).add_(1)


@pytest.mark.parametrize("name", table())
def test_a_change_of_the_module_changes_nothing_frozen(name):
    module, shape = made(name)
    x = points(shape)
    frozen, proved = lc.freeze(module), prove(module, shape)
    untouched = lc.freeze(module)  # has not seen a shape when the module changes
    before, values = run(frozen, x.float()), proved.run(x)[-1]
    spoil(module)
    assert torch.equal(run(frozen, x.float()), before)
    assert torch.equal(run(untouched, x.float()), before)
    assert torch.equal(proved.run(x)[-1], values)
    assert math.isclose(prove(untouched, shape).lipschitz, proved.lipschitz, rel_tol=1e-6)


# --- What must be refused ---


class Subclass(nn.ReLU):
    def forward(self, x):
        return 3 * x


REFUSED = {
    "instance norm": (nn.InstanceNorm2d(2), (2, 3, 3)),
    "layer norm": (nn.LayerNorm(3), (3,)),
    "group norm": (nn.GroupNorm(1, 2), (2, 3)),
    "local response": (nn.LocalResponseNorm(2), (2, 3)),
    "glu": (nn.GLU(), (4,)),
    "hardshrink": (nn.Hardshrink(), (4,)),
    "threshold that jumps": (nn.Threshold(0.1, 20.0), (4,)),
    "softmin": (nn.Softmin(dim=1), (4,)),
    "softmax without a dimension": (nn.Softmax(dim=None), (4,)),
    "log softmax without a dimension": (nn.LogSoftmax(dim=None), (4,)),
    "bilinear up-sampling": (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 3, 3)),
    "up-sampling by a broken factor": (nn.Upsample(scale_factor=1.5), (1, 4, 4)),
    "down-sampling": (nn.Upsample(scale_factor=0.5), (1, 4, 4)),
    "up-sampling to a broken size": (nn.Upsample(size=7), (1, 4, 4)),
    "gelu by tanh": (nn.GELU(approximate="tanh"), (4,)),
    "max pool with indices": (nn.MaxPool2d(2, return_indices=True), (1, 4, 4)),
    "adaptive max pool with indices": (nn.AdaptiveMaxPool1d(2, return_indices=True), (1, 4)),
    "fractional max pool": (nn.FractionalMaxPool2d(2, output_size=2), (1, 4, 4)),
    "lp pool, p = 3": (nn.LPPool2d(3, 2), (1, 4, 4)),
    "lp pool, ceil": (nn.LPPool2d(2, 3, ceil_mode=True), (1, 4, 4)),
    "bilinear": (nn.Bilinear(2, 2, 2), (2,)),
    "cosine": (nn.CosineSimilarity(), (2,)),
    "batch norm, training": (nn.BatchNorm2d(2), (2, 3, 3)),
    "batch norm without statistics": (nn.BatchNorm2d(2, track_running_stats=False).eval(), (2, 3, 3)),
    "dropout, training": (nn.Dropout(), (4,)),
    "alpha dropout, training": (nn.AlphaDropout(), (4,)),
    "rrelu, training": (nn.RReLU(), (4,)),
    "attention": (nn.MultiheadAttention(4, 2), (3, 4)),
    "embedding": (nn.Embedding(4, 2), (3,)),
    "lstm": (nn.LSTM(3, 2), (4, 3)),
    "softplus that jumps": (nn.Softplus(1.0, threshold=1.0), (4,)),
    "softplus that jumps a little": (nn.Softplus(), (4,)),
    "reflecting convolution": (nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), (1, 5, 5)),
    "circular convolution, even": (nn.Conv2d(1, 1, 2, padding="same", padding_mode="circular"), (1, 5, 5)),
    "softmax over the batch": (nn.Softmax(dim=0), (4,)),
    "softmax over the batch, from the end": (nn.Softmax(dim=-2), (4,)),
    "softmax2d over the batch": (nn.Softmax2d(), (3, 4)),
    "flatten with the batch": (nn.Flatten(0), (3, 4)),
    "flatten with the batch, from the end": (nn.Flatten(-3), (3, 4)),
    "unflatten the batch": (nn.Unflatten(0, (1, -1)), (3, 4)),
    "pixel shuffle over the batch": (nn.PixelShuffle(2), (4, 4)),
    "up-sampling of a vector": (nn.Upsample(scale_factor=2), (4,)),
    "reflection beyond the image": (nn.ReflectionPad1d(4), (1, 4)),
    "pads over the batch": (nn.ConstantPad2d(1, 0.0), (4,)),
    "circular padding that crops": (nn.CircularPad1d((2, -1)), (1, 5)),
    "circular padding that crops an axis": (nn.CircularPad2d((1, 1, -1, 2)), (1, 5, 5)),
    "another number of channels": (nn.Conv2d(2, 1, 3), (1, 5, 5)),
    "another number of channels, prelu": (nn.PReLU(3), (2, 4)),
    "another number of channels, norm": (nn.BatchNorm1d(3).eval(), (2, 4)),
    "another number of features": (nn.Linear(3, 2), (4,)),
}  # fmt: skip


def test_a_subclass_is_proved_as_what_it_computes():
    assert 3 <= lc.audit(Subclass(), (4,)).lipschitz <= 3 * (1 + 1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_proof_is_refused_in_one_sentence(name):
    module, shape = REFUSED[name]
    with pytest.raises(ValueError, match=r"[.]$") as refusal:
        prove(nn.Sequential(nn.Identity(), module), shape)
    said = str(refusal.value)
    assert len(said.splitlines()) == 1
    assert said.startswith("1 (")
    assert len(said) < 300
    report = None
    try:
        report = lc.audit(module, shape)
    except ValueError:
        return
    raise AssertionError(report)


def below_zero():
    module = normed(nn.BatchNorm1d(4))
    module.running_var[2] = -0.5
    return module


@pytest.mark.parametrize("module", [nn.Softplus(-1.0, threshold=40), nn.CELU(-1.0), below_zero()])
def test_settings_without_a_slope_have_no_constant(module):
    report = lc.audit(module, (4,))
    assert not report.ok
    assert report.lipschitz == math.inf


def test_a_mode_of_training_is_left_to_freeze():
    """``freeze`` is evaluation mode; the module stays as it was."""
    for module, shape in ((normed(nn.BatchNorm2d(2)), (2, 3, 3)), (nn.Dropout(), (4,)), (nn.RReLU(), (4,))):
        module.train()
        frozen = lc.freeze(module)
        assert module.training
        x = points(shape, torch.float32)
        assert torch.allclose(frozen(x), run(copy.deepcopy(module).eval(), x), atol=1e-4)


# --- Places where torch is odd ---


@pytest.mark.parametrize("factor", [3, 5, 7, 41, 47, 49, 55, 61, 82, 83, 94, 98, 103, 107])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("by_size", [False, True])
def test_up_sampling_by_odd_factors_is_what_torch_does_or_refused(factor, mode, by_size):
    """torch finds the source of a pixel with a float32 factor, which may miss by one."""
    size = 9
    module = nn.Upsample(**({"size": size * factor} if by_size else {"scale_factor": factor}), mode=mode)
    copies = [float(module(torch.eye(size, dtype=dtype)[:, None]).double().flatten(1).norm(dim=1).max())
              for dtype in (torch.float32, torch.float64)]  # fmt: skip
    try:
        proved = prove(module, (1, size))
    except lc.NotCertified:
        assert factor > 40
        assert max(copies) > math.sqrt(factor) + 1e-9
        return
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, 1, size, dtype=dtype)
        assert torch.equal(proved.run(x)[-1], module(x))
    assert max(copies) <= proved.lipschitz


@pytest.mark.parametrize("beta", [1e-5, 1e-20, 1e-38, 1e-44, 1e-50, 1e-300, 1e5, 1e30])
def test_a_softplus_of_extreme_slope_claims_no_bound_that_fails(beta):
    op = Function("softplus", (beta,))
    for dtype, u in ((torch.float64, U64), (torch.float32, U32)):
        x = torch.tensor([0.0, 1.0, -1.0, 1e-20, 3e4, -3e4], dtype=dtype)
        allowed = op.prove((1,)).error_bound(x.double().abs(), u)
        with mp.workdps(400):
            exact = [EXACT["softplus"](mp.mpf(v), mp.mpf(beta)) for v in x.tolist()]
            lost = [mp.inf if not math.isfinite(y) else abs(mp.mpf(y) - e)
                    for y, e in zip(op(x).tolist(), exact, strict=True)]  # fmt: skip
            assert all(one <= mp.mpf(a) for one, a in zip(lost, allowed.tolist(), strict=True))


@pytest.mark.parametrize("alpha", [1e-30, 1e-44, 1e-50, 1e-300, 1e30])
def test_a_celu_of_extreme_slope_claims_no_bound_that_fails(alpha):
    op = Function("celu", (alpha,))
    for dtype, u in ((torch.float64, U64), (torch.float32, U32)):
        x = torch.tensor([0.0, 1.0, -1.0, -1e-20, 3e4, -3e4], dtype=dtype)
        allowed = op.prove((1,)).error_bound(x.double().abs(), u)
        with mp.workdps(60):
            exact = [EXACT["celu"](mp.mpf(v), mp.mpf(alpha)) for v in x.tolist()]
            lost = [mp.inf if not math.isfinite(y) else abs(mp.mpf(y) - e)
                    for y, e in zip(op(x).tolist(), exact, strict=True)]  # fmt: skip
            assert all(one <= mp.mpf(a) for one, a in zip(lost, allowed.tolist(), strict=True))
