"""The checker, op by op: each against torch, its constant against Jacobians, its rounding; graphs and norms."""

import copy
import itertools
import json
import math
from dataclasses import dataclass, field
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from certificates import ONE, ZERO, Builder, build_all, conv_matrix, overlaps, spectral_norm, symbol_norm, verdict
from full import full
from lipcert import check as checker
from lipcert.verified.convolution import conv_norm_bound

ACTIVATIONS = {
    "relu": F.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.01),
    "elu": F.elu,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


# --- One case for each op ---


@dataclass
class Case:
    shape: tuple
    op: str
    fields: dict
    torch: object  # the same function in torch, for any dtype
    tight: float = 1e-6  # how far the proved constant may exceed the largest Jacobian
    constant: float | None = None  # the constant, where random points do not attain it
    extra: dict = field(default_factory=dict)


RNG = np.random.default_rng(5)


def noise(*shape, scale=1.0):
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def t(value, x):
    return None if value is None else torch.tensor(value).to(x.dtype)


def along(x, axis, function):
    """Apply a function to the last axis."""
    return function(x.movedim(axis + 1, -1)).movedim(-1, axis + 1)


def grouped_matrix(weight, groups):
    return torch.block_diag(*weight.chunk(groups))


def linear(n, m, axis, groups, shape):
    w, b = noise(n, m // groups), noise(n)
    run = lambda x: along(x, axis, lambda z: F.linear(z, grouped_matrix(t(w, x), groups), t(b, x)))  # noqa: E731
    return Case(shape, "linear", {"weight": w, "bias": b, "axis": axis, "groups": groups}, run)


def pad(x, padding, mode):
    flat = [v for pair in reversed(padding) for v in pair]
    return F.pad(x, flat, mode="circular" if mode == "circular" else "constant")


CONVS = {1: (F.conv1d, F.conv_transpose1d), 2: (F.conv2d, F.conv_transpose2d), 3: (F.conv3d, F.conv_transpose3d)}


def conv(n, shape, kernel, stride=None, padding=None, dilation=None, mode="zeros", groups=1, bias=True, tight=0.5):
    axes = len(kernel)
    stride, dilation = stride or [1] * axes, dilation or [1] * axes
    padding = padding or [[d * (k - 1) // 2] * 2 for d, k in zip(dilation, kernel, strict=True)]
    w, b = noise(n, shape[0] // groups, *kernel), noise(n) if bias else None

    def run(x):
        return CONVS[axes][0](pad(x, padding, mode), t(w, x), t(b, x), stride, 0, dilation, groups)

    fields = {"weight": w, "bias": b, "stride": stride, "padding": padding, "dilation": dilation}
    return Case(shape, "conv", fields | {"padding_mode": mode, "groups": groups}, run, tight)


def transposed(n, shape, kernel, stride, padding, dilation, groups, size, bias=True):
    w, b = noise(shape[0], n // groups, *kernel), noise(n) if bias else None
    tight = 0.5

    def run(x):
        full = [s + 2 * k * d for s, k, d in zip(size, kernel, dilation, strict=True)]
        y = CONVS[len(kernel)][1](x, t(w, x), None, stride, 0, 0, groups, dilation)
        y = F.pad(y, [v for s in reversed(full) for v in (0, s)])
        for axis, ((before, _), s) in enumerate(zip(padding, size, strict=True)):
            y = y.narrow(2 + axis, before, s)
        return y if b is None else y + t(b, x).reshape(-1, *[1] * len(kernel))

    fields = {"weight": w, "bias": b, "stride": stride, "padding": padding, "dilation": dilation}
    return Case(shape, "conv_transpose", fields | {"groups": groups, "size": size}, run, tight)


def residual(kind, shape, activation="relu", witness=True, axis=0, groups=1, n=4, **options):
    """γ from row sums of a plain construction, so that ρ ≤ 1."""
    if kind == "linear":
        base = linear(n, shape[axis], axis, groups, shape)
    elif kind == "conv":
        base = conv(n, shape, groups=groups, **options)
    else:
        base = circular(n, shape)
    f = base.fields
    dense = jacobian(lambda x: base.torch(x), torch.zeros(1, *shape, dtype=torch.float64))
    gamma = np.full(n, 0.5 / np.linalg.norm(np.abs(dense), 2) ** 2).astype(np.float32)
    gamma = gamma * RNG.uniform(0.5, 1, n).astype(np.float32)

    def run(x):
        with torch.enable_grad():
            z = x.detach().clone().requires_grad_(True)
            y = base.torch(z)
        column = [1] * y.ndim
        column[(axis if kind == "linear" else 0) + 1] = -1
        hidden = 2 * t(gamma, x).reshape(column) * ACTIVATIONS[activation](y)
        (back,) = torch.autograd.grad(y, z, hidden.detach())
        return x - back

    fields = f | {"gamma": gamma, "activation": activation}
    if kind != "circular":
        fields["witness"] = np.exp(0.1 * RNG.standard_normal(n)) if witness else None
    return Case(shape, f"residual_{kind}", fields, run, constant=1.0, extra={"jacobian": False})


def circular(n, shape):
    m, *image = shape
    rows, columns = (
        (np.linalg.qr(RNG.standard_normal((size + size % 2, size)))[0] / 1.0001).astype(np.float32)
        for size in image
    )
    h, w = len(rows) // 2, len(columns) // 2
    blocks, b = noise(h * w, 4 * n, 4 * m), noise(n)

    def run(x):
        r, c, k = t(rows, x), t(columns, x), t(blocks, x).reshape(h, w, 2, 2, n, 2, 2, m)
        z = torch.einsum("yh,nchw,xw->ncyx", r, x, c).reshape(len(x), m, h, 2, w, 2)
        y = torch.einsum("ijpqoabm,zmiajb->zoipjq", k, z)
        y = y.reshape(len(x), n, 2 * h, 2 * w)
        return torch.einsum("yh,ncyx,xw->nchw", r, y, c) + t(b, x)[:, None, None]

    fields = {"rows": rows, "columns": columns, "weight": blocks, "bias": b}
    return Case(shape, "circular", fields, run, tight=1.0)


def scalar(op, function, *parameters, constant=None, tight=1e-6):
    values = [float(p).hex() for p in parameters]
    return Case((3, 5), op, {"parameters": values}, function, tight, constant)


def pool_windows(size, kernel, stride, before=0):
    """Windows of an average that leaves out the padding."""
    starts = range(-before, size + before - kernel + 1, stride)
    return [[max(0, s), min(size, s + kernel)] for s in starts]


def max_windows(size, kernel, stride, before=0, dilation=1):
    rows = []
    for s in range(-before, size + before - dilation * (kernel - 1), stride):
        inside = [s + dilation * j for j in range(kernel) if 0 <= s + dilation * j < size]
        rows.append([inside[0], inside[-1] + 1, dilation])
    return rows


def batch_norm(shape, affine=True):
    c = shape[0]
    mean, variance = noise(c), np.abs(noise(c))
    w, b = (noise(c), noise(c)) if affine else (None, None)
    eps = 1e-5

    def run(x):
        return F.batch_norm(x, t(mean, x), t(variance, x), t(w, x), t(b, x), eps=eps)

    fields = {"mean": mean, "variance": variance, "weight": w, "bias": b, "eps": eps.hex()}
    return Case(shape, "batch_norm", fields, run)


def select_torch(lists, value):
    def run(x):
        for axis, row in enumerate(lists):
            if row is not None:
                index = torch.tensor(row)
                x = x.index_select(axis + 1, index.clamp(min=0)).clone()
                x.movedim(axis + 1, 0)[index < 0] = value
        return x

    return run


def jacobian(function, x):
    """The matrix of the derivative at one point, (1, …)."""
    return torch.autograd.functional.jacobian(function, x).reshape(-1, x.numel()).numpy()


DIVIDED = [2, 3, 3, 2, 1]
LISTS = [[2, 0, 0, -1], None, [1, 1, -1]]
CASES = {
    "linear": linear(4, 6, 0, 1, (6,)),
    "linear-axis-1": linear(4, 5, 1, 1, (2, 5, 3)),
    "linear-last-axis-groups": linear(6, 4, 2, 2, (2, 3, 4)),
    "conv1d": conv(3, (2, 9), [3]),
    "conv1d-stride-dilation": conv(3, (2, 14), [4], [2], [[3, 1]], [2]),
    "conv1d-circular": conv(3, (2, 8), [3], mode="circular", tight=1e-6),
    "conv1d-circular-dilation": conv(3, (2, 12), [3], [2], dilation=[2], mode="circular"),
    "conv2d": conv(3, (2, 5, 6), [3, 3]),
    "conv2d-asymmetric": conv(3, (2, 5, 6), [3, 2], [1, 1], [[2, 0], [0, 1]]),
    "conv2d-stride-3-dilation-2": conv(3, (2, 7, 8), [3, 2], [3, 1], [[1, 2], [1, 1]], [2, 3]),
    "conv2d-stride-4-dilation-6": conv(3, (1, 18, 5), [4, 1], [4, 1], [[3, 3], [0, 0]], [6, 1], tight=1.0),
    "conv2d-groups-circular-stride": conv(4, (4, 4, 6), [3, 3], [2, 2], mode="circular", groups=2, tight=1e-6),
    "conv2d-1x1-stride": conv(3, (2, 4, 4), [1, 1], [2, 2], bias=False, tight=1e-6),
    "conv2d-depthwise": conv(3, (3, 5, 5), [3, 3], groups=3),
    "conv3d": conv(2, (2, 3, 4, 3), [2, 3, 2], [1, 2, 1], [[1, 0], [1, 1], [0, 1]]),
    "conv3d-circular": conv(2, (1, 3, 4, 3), [3, 3, 3], mode="circular", tight=1e-6),
    "conv_transpose1d": transposed(3, (2, 5), [3], [2], [[1, 1]], [1], 1, [10]),
    "conv_transpose2d": transposed(4, (4, 3, 4), [3, 2], [2, 1], [[1, 0], [0, 1]], [1, 2], 2, [6, 5]),
    "conv_transpose3d": transposed(
        2, (2, 2, 3, 2), [2, 2, 3], [2, 1, 1], [[0, 0], [1, 0], [1, 1]], [1] * 3, 1, [4, 3, 2]
    ),
    "conv_transpose-no-bias": transposed(2, (2, 4), [3], [1], [[1, 1]], [1], 1, [4], bias=False),
    "circular": circular(3, (2, 4, 5)),
    "rearrange": Case(
        (2, 4, 6),
        "rearrange",
        {"split": [2, 2, 2, 3, 2], "order": [0, 2, 4, 1, 3], "shape": [8, 2, 3]},
        lambda x: F.pixel_unshuffle(x, 2),
    ),
    "select": Case(
        (3, 2, 3), "select", {"indices": LISTS, "value": (0.75).hex()}, select_torch(LISTS, 0.75), constant=2.0
    ),
    "group_sort": Case(
        (4, 3),
        "group_sort",
        {"size": 2, "axis": 0, "descending": True},
        lambda x: x.reshape(-1, 2, 2, 3).sort(dim=2, descending=True).values.reshape(x.shape),
    ),
    "group_sort-axis-1": Case(
        (2, 6),
        "group_sort",
        {"size": 3, "axis": 1, "descending": False},
        lambda x: x.reshape(-1, 2, 2, 3).sort(dim=3).values.reshape(x.shape),
    ),
    "normalize": Case(
        (2, 3),
        "normalize",
        {"mean": np.array([0.5, -2], np.float32), "std": np.array([0.3, 4], np.float32)},
        lambda x: (x - t(np.float32([0.5, -2]), x)[:, None]) / t(np.float32([0.3, 4]), x)[:, None],
    ),
    "batch_norm": batch_norm((3, 4)),
    "batch_norm-plain": batch_norm((3, 2, 2), affine=False),
    "scale": Case((5,), "scale", {"factor": (-1.25).hex()}, lambda x: -1.25 * x),
    "pool-disjoint": Case(
        (2, 4, 6),
        "pool",
        {"windows": [None, pool_windows(4, 2, 2), pool_windows(6, 3, 3)], "divisors": [None, [2] * 2, [3] * 2]}
        | {"factor": (2.5).hex()},
        lambda x: 2.5 * F.avg_pool2d(x, (2, 3)),
    ),
    "pool-overlap": Case(
        (2, 5, 7),
        "pool",
        {
            "windows": [None, pool_windows(5, 3, 1, 1), pool_windows(7, 3, 2, 1)],
            "divisors": [None, [3] * 5, [3] * 4],
        }
        | {"factor": ONE},
        lambda x: F.avg_pool2d(x, 3, (1, 2), 1),
    ),
    "pool-padding-not-counted": Case(
        (2, 5),
        "pool",
        {"windows": [None, pool_windows(5, 3, 1, 1)], "divisors": [None, [2, 3, 3, 3, 2]], "factor": ONE},
        lambda x: F.avg_pool1d(x, 3, 1, 1, count_include_pad=False),
    ),
    "pool-adaptive": Case(
        (2, 7),
        "pool",
        {"windows": [None, [[0, 3], [2, 5], [4, 7]]], "divisors": [None, [3, 3, 3]], "factor": ONE},
        lambda x: F.adaptive_avg_pool1d(x, 3),
    ),
    "pool-3d-mean": Case(
        (2, 2, 3, 2),
        "pool",
        {"windows": [None, [[0, 2]], [[0, 3]], [[0, 2]]], "divisors": [None, [2], [3], [2]], "factor": ONE},
        lambda x: F.adaptive_avg_pool3d(x, 1),
    ),
    "max_pool": Case(
        (2, 6, 5),
        "max_pool",
        {"windows": [None, max_windows(6, 3, 2, 1), max_windows(5, 2, 1)]},
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0)),
        constant=2.0,
    ),
    "max_pool-dilation": Case(
        (2, 9),
        "max_pool",
        {"windows": [None, max_windows(9, 3, 2, 1, 2)]},
        lambda x: F.max_pool1d(x, 3, 2, 1, 2),
        constant=math.sqrt(3),
    ),
    "l2_pool": Case(
        (2, 6),
        "l2_pool",
        {"windows": [None, max_windows(6, 3, 1)]},
        lambda x: F.lp_pool1d(x, 2, 3, 1),
        constant=math.sqrt(3),
    ),
    "prelu": Case(
        (3, 4), "prelu", {"weight": noise(3)}, lambda x: F.prelu(x, t(CASES["prelu"].fields["weight"], x))
    ),
    "prelu-one": Case(
        (3, 4), "prelu", {"weight": np.array([-1.5], np.float32)}, lambda x: F.prelu(x, t(np.float32([-1.5]), x))
    ),
    "softmax": Case((3, 4), "softmax", {"axis": 0}, lambda x: F.softmax(x, 1), constant=0.5),
    "log_softmax": Case((3, 4), "log_softmax", {"axis": 1}, lambda x: F.log_softmax(x, 2), constant=2.0),
    "identity": scalar("identity", lambda x: x),
    "relu": scalar("relu", F.relu),
    "abs": scalar("abs", torch.abs),
    "hardtanh": scalar("hardtanh", lambda x: F.hardtanh(x, -0.1, 0.7), -0.1, 0.7),
    "maximum": scalar("maximum", lambda x: x.clamp(min=-0.3), -0.3),
    "shift": scalar("shift", lambda x: x + 0.3, 0.3),
    "divide": scalar("divide", lambda x: x / 0.3, 0.3),
    "leaky_relu": scalar("leaky_relu", lambda x: F.leaky_relu(x, -1.7), -1.7),
    "softshrink": scalar("softshrink", lambda x: F.softshrink(x, 0.3), 0.3),
    "softsign": scalar("softsign", F.softsign, constant=1.0),
    # The slope that torch computes for hardsigmoid is 1/6 in float32.
    "hardsigmoid": scalar("hardsigmoid", lambda x: (x + 3).clamp(0, 6) / 6),
    "hardswish": scalar("hardswish", F.hardswish, constant=1.5),
    "elu": scalar("elu", lambda x: F.elu(x, 1.3), 1.3, constant=1.3),
    "celu": scalar("celu", lambda x: F.celu(x, 0.7), 0.7),
    "selu": scalar("selu", F.selu, constant=1.0507009873554805 * 1.6732632423543772),
    "tanh": scalar("tanh", torch.tanh, constant=1.0),
    "sigmoid": scalar("sigmoid", torch.sigmoid, constant=0.25),
    "softplus": scalar(
        "softplus", lambda x: torch.logaddexp(2.5 * x, torch.zeros_like(x)) / 2.5, 2.5, constant=1.0
    ),
    "logsigmoid": scalar("logsigmoid", F.logsigmoid, constant=1.0),
    "gelu": scalar("gelu", F.gelu, constant=1.129),
    "silu": scalar("silu", F.silu, constant=1.0999),
    "mish": scalar("mish", F.mish, constant=1.0885),
    "tanhshrink": scalar("tanhshrink", F.tanhshrink, constant=1.0),
    "residual_linear": residual("linear", (5,)),
    "residual_linear-axis": residual("linear", (3, 4), "tanh", witness=False, axis=1, groups=2),
    "residual_conv1d": residual("conv", (2, 7), "elu", kernel=[3], stride=[2], padding=[[2, 1]], dilation=[3]),
    "residual_conv2d": residual("conv", (2, 5, 5), "leaky_relu", kernel=[3, 3], groups=2),
    "residual_conv2d-circular": residual(
        "conv", (2, 4, 6), "sigmoid", witness=False, kernel=[3, 3], mode="circular"
    ),
    "residual_conv3d": residual("conv", (2, 3, 3, 4), "softplus", witness=False, kernel=[2, 2, 2]),
    "residual_circular": residual("circular", (2, 4, 4), "softplus"),
}
for key in ("residual_conv1d", "residual_conv2d", "residual_conv3d"):
    CASES[key].tight = 1.0
BIG = 2.0**30  # a claim that certainly holds


def build_case(case, lipschitz=BIG, scale=1.0, count=4, seed=0):
    builder = Builder(case.shape, count, seed, scale)
    builder.add(case.op, lipschitz, **copy.deepcopy(case.fields))
    x = torch.zeros(1, *case.shape, dtype=torch.float64)
    return builder.flatten(case.torch(x).shape[1:])


@pytest.mark.parametrize("name", CASES)
def test_an_op_is_that_of_torch(name, tmp_path):
    """In float64, for small and for large inputs; and the shape is right."""
    case = CASES[name]
    for scale in (1.0, 30.0):
        builder = build_case(case, scale=scale)
        node = builder.build(tmp_path / "c")[0]
        x = builder.images.astype(float)
        with np.errstate(all="ignore"):
            ours = node.run(x)
        theirs = case.torch(torch.tensor(x)).detach().numpy()
        assert ours.shape == theirs.shape == (len(x), *node.shape)
        assert np.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_proved_constant_is_above_all_jacobians_and_close(name, tmp_path):
    case = CASES[name]
    builder = build_case(case, lipschitz=case.constant * (1 + 2.0**-28) if case.constant else BIG)
    proved = builder.build(tmp_path / "c")[0].proved
    rng, worst = np.random.default_rng(1), 0.0
    for scale in (0.1, 1.0, 2.0) if "jacobian" not in case.extra else ():
        x = torch.tensor(scale * rng.standard_normal((1, *case.shape)))
        worst = max(worst, np.linalg.norm(jacobian(case.torch, x), 2))
    if "jacobian" in case.extra:  # torch cannot differentiate twice here: pairs of points
        a, b = (torch.tensor(rng.standard_normal((50, *case.shape))) for _ in range(2))
        apart = (case.torch(a) - case.torch(b)).flatten(1).norm(dim=1) / (a - b).flatten(1).norm(dim=1)
        worst = float(apart.max())
    assert worst <= proved * (1 + 1e-12)
    assert proved <= (case.constant or worst) * (1 + case.tight)
    for factor, code in ((1 + 2.0**-50, 0), (1 - 1e-9, 1)):
        builder = build_case(case, lipschitz=proved * factor)
        builder.claims_lipschitz(BIG)
        # A claim below what can be proved is refused, unless a finer grid proves more.
        found = verdict(builder.save(tmp_path / "c"))
        assert found == code or (code == 1 and case.tight > 1e-3)
    if worst > 0 and "jacobian" not in case.extra:
        builder = build_case(case, lipschitz=worst * (1 - 1e-9))
        builder.claims_lipschitz(BIG)
        report = checker.check(builder.save(tmp_path / "c"))
        assert report.refuted[0].startswith("node 0")
        assert report.constants[0][3] >= worst * (1 - 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_error_bound_holds_in_float32(name, tmp_path):
    """torch in float32 against float64: within e(Z), with every input at every scale."""
    case = CASES[name]
    for scale in (1e-3, 1.0, 30.0):
        builder = build_case(case, lipschitz=case.constant or BIG, scale=scale, count=20)
        first = builder.build(tmp_path / "c")[:1]
        if not case.constant:
            builder = build_case(case, lipschitz=first[0].proved, scale=scale, count=20)
            first = builder.build(tmp_path / "c")[:1]
        x = builder.images
        with np.errstate(all="ignore"):
            value, err, _ = checker.forward(first, x.astype(float), np.zeros(len(x)), checker.FLOAT32, "L2")
        theirs = case.torch(torch.tensor(x)).detach().double().numpy()
        away = np.linalg.norm((theirs - value).reshape(len(x), -1), axis=1)
        assert (away <= err).all()


# --- Rounding, against exact numbers ---


EXACT = {  # the functions of the table in arbitrary precision, with the parameters of the cases above
    "softsign": lambda x: x / (1 + abs(x)),
    "hardsigmoid": lambda x: min(max(x + 3, 0), 6) / 6,
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "elu": lambda x: x if x >= 0 else mpmath.mpf(1.3) * mpmath.expm1(x),
    "celu": lambda x: x if x >= 0 else mpmath.mpf(0.7) * mpmath.expm1(x / mpmath.mpf(0.7)),
    "selu": lambda x: mpmath.mpf(1.0507009873554805) * (x if x >= 0 else 1.6732632423543772 * mpmath.expm1(x)),
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x * mpmath.mpf(2.5))) / mpmath.mpf(2.5),
    "logsigmoid": lambda x: -mpmath.log1p(mpmath.exp(-x)),
    "gelu": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "mish": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "tanhshrink": lambda x: x - mpmath.tanh(x),
    "leaky_relu": lambda x: x if x >= 0 else mpmath.mpf(-1.7) * x,
    "softshrink": lambda x: mpmath.sign(x) * max(abs(x) - mpmath.mpf(0.3), 0),
    "shift": lambda x: x + mpmath.mpf(0.3),
    "divide": lambda x: x / mpmath.mpf(0.3),
}


@pytest.mark.parametrize("name", EXACT)
def test_scalar_functions_are_accurate(name, tmp_path):
    """The checker's own function, and torch's, err by at most g_s·(L|x| + |σ(0)|) at every number of many sizes."""
    case = CASES[name]
    node = build_case(case, lipschitz=case.constant or BIG).build(tmp_path / "c")[0]
    constant, at_zero = min(node.claimed, node.proved), node.offset / math.sqrt(15)
    sizes = np.concatenate([10.0 ** np.arange(-30, 3, 0.37), np.linspace(0.01, 40, 60), [709.0, 745.5, 1e5]])
    x = np.concatenate([sizes, -sizes, [0.0]])
    with np.errstate(all="ignore"):
        ours, theirs = node.run(x), case.torch(torch.tensor(x)).numpy()
    with mpmath.workdps(50):
        for value, mine, other in zip(x.tolist(), ours.tolist(), theirs.tolist(), strict=True):
            exact = mpmath.mpmathify(EXACT[name](mpmath.mpf(value)))
            allowed = checker.g(node.roundings) * (constant * abs(value) + at_zero) + 1e-300
            assert abs(mine - exact) <= allowed
            assert abs(other - exact) <= allowed


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "hardswish", "selu", "tanhshrink"])
def test_slopes_of_functions_with_odd_constants(name):
    """L is above the slope everywhere, and not far above."""
    constant = float(checker.FUNCTIONS[name].lipschitz())
    x = torch.linspace(-12, 12, 480_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(CASES[name].torch(x).sum(), x)
    assert slope.abs().max() <= constant
    if name in ("gelu", "silu", "mish"):
        # Near a maximum the second derivative vanishes: the error of the grid is h²·|σ'''|/2 ≤ (5e-5)².
        assert slope.abs().max() + 2.5e-9 <= constant
        assert constant <= slope.abs().max() * (1 + 1e-4)


def exact_softmax(x, log):
    m = max(x)
    total = mpmath.fsum(mpmath.exp(v - m) for v in x)
    return [v - m - mpmath.log(total) if log else mpmath.exp(v - m) / total for v in x]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("n", [1, 2, 10, 300])
def test_the_error_of_softmax(log, n, tmp_path):
    """Against 50 digits, for entries that are close to each other and far apart."""
    op = "log_softmax" if log else "softmax"
    for scale in (1e-3, 1.0, 50.0, 1e6):
        builder = Builder((n, 2), count=3, scale=scale)
        builder.add(op, math.sqrt(n) * (1 + 1e-9) if log else 0.5, axis=0).flatten((n, 2))
        node = builder.build(tmp_path / "c")[0]
        x = builder.images.astype(float)
        bound = node.error(np.linalg.norm(x.reshape(3, -1), axis=1), checker.FLOAT64)
        theirs = (F.log_softmax if log else F.softmax)(torch.tensor(x), 1).numpy()
        for i in range(3):
            with mpmath.workdps(50):
                exact = [exact_softmax([mpmath.mpf(v) for v in column], log) for column in x[i].T.tolist()]
            for result in (node.run(x)[i].T, theirs[i].T):
                pairs = zip(result.ravel().tolist(), itertools.chain(*exact), strict=True)
                away = mpmath.sqrt(mpmath.fsum((a - b) ** 2 for a, b in pairs))
                assert away <= bound[i]


@pytest.mark.parametrize("name", ["pool-disjoint", "pool-overlap", "pool-padding-not-counted", "conv1d", "conv2d"])
def test_the_error_of_sums_in_rational_numbers(name, tmp_path):
    """Pooling and convolutions: the exact result is the Jacobian times x plus the value at 0, in fractions."""
    case = CASES[name]
    builder = build_case(case)
    node = builder.build(tmp_path / "c")[0]
    x = builder.images.astype(float)
    zero = torch.zeros(1, *case.shape, dtype=torch.float64)
    matrix, start = jacobian(case.torch, zero), case.torch(zero).numpy().ravel()
    if "pool" in name:  # entries are factor/(product of divisors), which torch rounded
        scale = [Fraction(v).limit_denominator(100) for v in matrix.ravel()]
        matrix = np.array(scale, dtype=object).reshape(matrix.shape)
    exact = np.vectorize(Fraction, otypes=[object])(matrix) @ np.vectorize(Fraction, otypes=[object])(
        x.reshape(4, -1).T
    )
    node.slope = node.proved if "pool" in name else node.slope
    bound = node.error(np.linalg.norm(x.reshape(4, -1), axis=1), checker.FLOAT64)
    for i in range(4):
        away = [
            Fraction(v) - e - Fraction(s)
            for v, e, s in zip(node.run(x)[i].ravel(), exact[:, i], start, strict=True)
        ]
        assert math.sqrt(sum(v * v for v in away)) <= bound[i]


def expected_error(case, z, constant):
    """e(Z) from the table in docs/certificate.md, or None where it is another kind."""
    g, f, op, size = checker.g, case.fields, case.op, math.prod(case.shape)
    if op in ("linear", "conv", "conv_transpose"):
        dense = jacobian(case.torch, torch.zeros(1, *case.shape, dtype=torch.float64))
        w, groups = f["weight"], f["groups"]
        terms = math.prod(w.shape[1:]) if op != "conv_transpose" else math.prod(w.shape) // w.shape[1] // groups
        start = 0.0 if f["bias"] is None else np.linalg.norm(f["bias"].astype(float))
        channels = len(f["bias"]) if f["bias"] is not None else 1
        return g(terms + 1) * (np.linalg.norm(np.abs(dense), 2) * z + start * math.sqrt(len(dense) / channels))
    rest = size / case.shape[f["axis"]] if "softmax" in op else size / case.shape[0]
    if op in ("softmax", "log_softmax"):
        n = case.shape[f["axis"]]
        long = g(n + 40) * (4 * z + (n + 4) * math.sqrt(n * rest))
        return g(n + 24) * (1 + math.sqrt(n)) * math.sqrt(rest) if op == "softmax" else long
    if "windows" in f:
        longest = [max(len(range(*row)) for row in rows) for rows in f["windows"] if rows is not None]
        return {"max_pool": 0.0}.get(op, g(math.prod(longest) + (8 if op == "l2_pool" else 2)) * constant * z)
    if op == "batch_norm":
        w, b = (0 * f["mean"] + v if f[key] is None else f[key] for key, v in (("weight", 1), ("bias", 0)))
        each = np.abs(w) / np.sqrt(f["variance"] + float.fromhex(f["eps"]))
        offset = np.linalg.norm(np.abs(b) + 2 * each * np.abs(f["mean"])) * math.sqrt(rest)
        return g(12) * (constant * z + 2 * offset)
    if op == "normalize":
        return g(2) * constant * (z + np.linalg.norm(f["mean"]) * math.sqrt(rest))
    counts = {"leaky_relu": 1, "softshrink": 1, "softsign": 3, "hardsigmoid": 4, "hardswish": 6, "tanhshrink": 18}
    counts |= dict.fromkeys(["elu", "tanh", "sigmoid", "logsigmoid"], 17)
    counts |= dict.fromkeys(["scale", "prelu", "shift", "divide"], 1)
    counts |= dict.fromkeys(["celu", "selu", "softplus", "gelu", "silu", "mish"], 20)
    starts = {
        "shift": 0.3,
        "hardsigmoid": 0.5,
        "sigmoid": 0.5,
        "softplus": math.log(2) / 2.5,
        "logsigmoid": math.log(2),
    }
    if op in counts:
        return g(counts[op]) * (constant * z + starts.get(op, 0.0) * math.sqrt(size))
    return None if op.startswith(("residual", "circular")) else 0.0


@pytest.mark.parametrize("name", CASES)
def test_the_error_is_that_of_the_table(name, tmp_path):
    """Not below it, and for operators not far above: κ of the checker is that of a large image."""
    case = CASES[name]
    node = build_case(case, lipschitz=8.0).build(tmp_path / "c")[0]
    for z in (0.0, 3.0):
        expected = expected_error(case, z, 8.0)
        if expected is not None:
            found = float(node.error(np.array([z]), checker.FLOAT64)[0])
            assert expected * (1 - 1e-6) <= found <= expected * (1.8 if "conv" in case.op else 1.02) + 1e-140


def test_the_constant_of_batch_norm_is_decided_exactly(tmp_path):
    """The smallest float with L²(v + ε) ≥ w² is accepted, and the one below is refused."""
    case = CASES["batch_norm"]
    f = case.fields
    eps = Fraction(float.fromhex(f["eps"]))
    rows = zip(f["weight"].tolist(), f["variance"].tolist(), strict=True)
    square = max(Fraction(w) ** 2 / (Fraction(v) + eps) for w, v in rows)
    constant = math.sqrt(square) * (1 - 1e-15)
    while Fraction(constant) ** 2 < square:
        constant = math.nextafter(constant, math.inf)
    for value, code in ((constant, 0), (math.nextafter(constant, 0), 1)):
        builder = build_case(case, lipschitz=value)
        builder.claims_lipschitz(BIG)
        assert verdict(builder.save(tmp_path / "c")) == code


@pytest.mark.parametrize("op", ["normalize", "select", "hardtanh", "maximum", "l2_pool"])
def test_the_error_where_nothing_comes_in(op, tmp_path):
    """At 0 a stored float64 number is rounded to float32; squares of tiny numbers underflow."""
    numbers = {
        "normalize": {"mean": np.array([0.1]), "std": np.array([1.0])},
        "select": {"indices": [None, [0, -1, -1]], "value": (0.1).hex()},
        "hardtanh": {"parameters": [(0.1).hex(), (0.3).hex()]},
        "maximum": {"parameters": [(0.1).hex()]},
        "l2_pool": {"windows": [None, [[0, 3, 1]]]},
    }
    builder = Builder((1, 3), scale=0.0).add(op, 1.0, **numbers[op])
    tiny, start = 1e-300, 0.1
    node = builder.flatten((1,) if op == "l2_pool" else (3,)).build(tmp_path / "c")[0]
    bound32, bound64 = (float(node.error(np.zeros(1), a)[0]) for a in (checker.FLOAT32, checker.FLOAT64))
    if op == "l2_pool":
        assert bound64 >= math.sqrt(3) * tiny
        assert bound32 >= math.sqrt(3) * 2.0**-63
    else:
        assert bound32 >= abs(float(np.float32(start)) - start)
        assert bound64 <= 1e-15


@pytest.mark.parametrize("op", ["max_pool", "l2_pool"])
def test_a_pool_without_windows_is_malformed(op, tmp_path):
    """The norm over no axis would be |x| to one reader and x to another."""
    builder = Builder((3,)).add(op, 1.0, windows=[None])
    with pytest.raises(checker.Malformed, match="windows"):
        checker.check(builder.save(tmp_path))


def test_a_window_of_one_entry_may_have_any_step(tmp_path):
    """The indices of a window are computed for its longest neighbor, too: a huge step must not overflow there."""
    step = 999_999_999_999_999_999
    builder = Builder((16,)).add("max_pool", 2.0, windows=[[[0, 16, 1], [3, 4, step], [5, step, step]]])
    node = builder.build(tmp_path)[0]
    x = np.random.default_rng(0).standard_normal((2, 16))
    assert np.array_equal(node.run(x), np.stack([x.max(axis=1), x[:, 3], x[:, 5]], axis=1))
    assert node.prove() == checker.root_above(Fraction(2))


@pytest.mark.parametrize("divisors", ["equal", "many"])  # of many there is no small common multiple
def test_a_pool_on_a_long_axis(divisors, tmp_path):
    """A matrix of 20,000 × 20,000 entries exceeded the limits. Row and column sums bound its norm."""
    length, generator = 20_000, np.random.default_rng(0)
    windows = [[i, i + 3] for i in range(length - 2)]
    parts = [3] * len(windows) if divisors == "equal" else generator.integers(3, 2**20, len(windows)).tolist()
    node = Builder((length,)).add("pool", 1.0, windows=[windows], divisors=[parts], factor=ONE).build(tmp_path)[0]
    shares = 1 / np.array(parts)
    row, column = 3 * shares.max(), np.convolve(shares, np.ones(3)).max()
    assert node.proved == pytest.approx(math.sqrt(row * column), rel=1e-14)
    assert node.proved >= math.sqrt(row * column) * (1 - 1e-15)
    assert divisors == "many" or node.proved == 1.0


@pytest.mark.parametrize("most", [4, 2**23])
def test_row_and_column_sums_bound_the_norm_of_a_pool(most, tmp_path):
    generator = np.random.default_rng(1)
    for _ in range(50):
        length, count = generator.integers(1, 30, 2).tolist()
        windows = [[a, int(generator.integers(a + 1, length + 1))] for a in generator.integers(0, length, count)]
        windows = [[int(start), stop] for start, stop in windows]
        parts = generator.integers(1, most + 1, count).tolist()
        builder = Builder((length,)).add("pool", 2.0**40, windows=[windows], divisors=[parts], factor=ONE)
        node, matrix = builder.build(tmp_path)[0], np.zeros((count, length))
        for row, (start, stop), divisor in zip(matrix, windows, parts, strict=True):
            row[start:stop] = 1 / divisor
        square, exact = float(node.sums(0)), max(matrix.sum(axis=1)) * max(matrix.sum(axis=0))
        assert exact * (1 - 1e-12) <= square <= exact * (1 + 1e-12)
        assert np.linalg.norm(matrix, 2) ** 2 <= square * (1 + 1e-12)


# --- Graphs ---


def dense(builder, n, m, inputs=None, name=None, slack=1 + 2.0**-28, scale=0.5):
    w = (scale * builder.rng.standard_normal((n, m))).astype(np.float32)
    norm = np.linalg.norm(w.astype(float), 2) * slack
    b = (0.1 * builder.rng.standard_normal(n)).astype(np.float32)
    return builder.add("linear", norm, inputs, name, weight=w, bias=b, axis=0, groups=1)


def branches(seed=0, head=True):
    """A branch that is used twice, a combination of three branches, a skip and a head."""
    b = Builder((6,), 8, seed)
    dense(b, 5, 6, name="stem").add("tanh", name="a", parameters=[])
    dense(b, 5, 5, ["a"], "b").add("relu", inputs=["b"], name="c", parameters=[])
    dense(b, 5, 5, ["a"], "d").add("gelu", 1.129, name="e", parameters=[])
    weights = np.array([0.5, 0.25, 1.5])
    b.add("combination", 2.25, ["a", "c", "e"], "sum", weights=weights)
    b.add("combination", 2.0, ["sum", "sum"], "twice", weights=np.array([0.75, 1.25]))
    b.add("group_sort", name="sorted", size=5, axis=0, descending=True)
    return dense(b, 3, 5, name="head") if head else b


def finish(b, folder, f32=None, factor=1 - 1e-7):
    """Claims and a probe that hold: radii are ``factor`` times margin/(L·K) in real numbers."""
    lipschitz, nodes, end = b.claim_lipschitz(), b.build(folder), b.nodes[-1]
    f = checker.forward(nodes, b.images.astype(float), np.zeros(len(b.images)), checker.FLOAT64, "L2")[0]
    weight = b.tensors[end["weight"]].astype(float) if b.has_head() else np.eye(f.shape[1])
    b.top["claims"] = []
    for i, row in enumerate(f):
        y = int(row.argmax())
        others = [j for j in range(len(row)) if j != y]
        radius = min((row[y] - row[j]) / np.linalg.norm(weight[y] - weight[j]) for j in others)
        b.top["claims"].append([i, y, float(radius / lipschitz * factor).hex()])
    b.answer(range(len(f)), f if f32 is None else f32(torch.tensor(b.images)).numpy())
    return b


def run_branches(b):
    def layer(x, name):
        node = next(node for node in b.nodes if node["name"] == name)
        return F.linear(x, *(torch.tensor(b.tensors[node[key]]).to(x.dtype) for key in ("weight", "bias")))

    def run(x):
        a = torch.tanh(layer(x, "stem"))
        c, e = F.relu(layer(a, "b")), F.gelu(layer(a, "d"))
        y = (2 * (0.5 * a + 0.25 * c + 1.5 * e)).sort(dim=1, descending=True).values
        return layer(y, "head") if b.nodes[-1]["name"] == "head" else y

    return run


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_graph_is_accepted_and_no_radius_is_larger(seed, head, tmp_path, capsys):
    b = branches(seed, head)
    run = run_branches(b)
    finish(b, tmp_path / "c", run)
    path = b.save(tmp_path / "c")
    report = checker.check(path)
    assert report.ok, report.refuted
    assert report.verified == report.claims == 8
    assert not report.alarms
    assert list(report.assumes) == ["gelu within 8 ulp", "tanh within 8 ulp"]
    assert [row[:2] for row in report.constants] == [(node["name"], node["op"]) for node in b.nodes]
    nodes = b.build(tmp_path / "c")
    value = checker.forward(nodes, b.images.astype(float), np.zeros(8), checker.FLOAT64, "L2")[0]
    assert np.allclose(value, run(torch.tensor(b.images.astype(float))).numpy(), atol=1e-12)
    assert verdict(path, capsys) == 0
    finish(b, tmp_path / "c", run, factor=1 + 1e-7)
    assert checker.check(b.save(tmp_path / "c")).verified == 0
    lipschitz = float.fromhex(finish(b, tmp_path / "c", run).top["lipschitz"])
    b.claims_lipschitz(math.nextafter(lipschitz, 0))
    assert any(text.startswith("lipschitz") for text in checker.check(b.save(tmp_path / "c")).refuted)


def test_the_constant_of_a_graph_is_above_that_of_the_function(tmp_path):
    b = branches(head=False)
    lipschitz = b.claim_lipschitz()
    run, rng = run_branches(b), np.random.default_rng(0)
    worst = max(np.linalg.norm(jacobian(run, torch.tensor(rng.standard_normal((1, 6)))), 2) for _ in range(30))
    assert worst <= lipschitz


def test_the_error_bound_of_a_graph_holds_everywhere_in_the_ball(tmp_path):
    b = branches()
    nodes, run = b.build(tmp_path / "c"), run_branches(b)
    x = b.images.astype(float)
    for radius in (0.0, 1e-3, 1e4):
        _, err32, _ = checker.forward(nodes, x, np.full(8, radius), checker.FLOAT32, "L2")
        _, _, reach = checker.forward(nodes, x, np.full(8, radius), checker.FLOAT64, "L2")
        other = torch.tensor(x + 0.99 * radius * np.eye(6)[np.arange(8) % 6])
        away = (run(other.float()).double() - run(other.float().double())).norm(dim=1).numpy()
        assert (away <= err32).all()
        assert (run(other).norm(dim=1).numpy() <= reach).all()


def test_products_of_constants_may_leave_float64_and_come_back(tmp_path):
    b = Builder((2,))
    for value in [2.0**100] * 30 + [2.0**-100] * 30:
        b.add("scale", value, factor=value.hex())
    for lipschitz, code in ((1.0, 0), (math.nextafter(1, 0), 1)):
        assert verdict(b.claims_lipschitz(lipschitz).save(tmp_path / "c")) == code


def set_node(index, **values):
    return lambda b: b.nodes[index].update(values)


def swap(i, j):
    def function(b):
        b.nodes[i], b.nodes[j] = b.nodes[j], b.nodes[i]

    return function


GRAPHS = {  # mutation → exit code
    "a node that nobody reads": (lambda b: b.nodes.insert(1, {**b.nodes[1], "name": "dead"}), 2),
    "an input that comes later": (swap(1, 2), 2),
    "an input that does not exist": (set_node(1, inputs=["nothing"]), 2),
    "its own input": (set_node(1, inputs=["a"]), 2),
    "a name twice": (set_node(3, name="b"), 2),
    "the name of the input": (set_node(3, name="input"), 2),
    "an empty name": (set_node(3, name=""), 2),
    "two inputs of a linear node": (set_node(2, inputs=["a", "a"]), 2),
    "no inputs": (set_node(2, inputs=[]), 2),
    "inputs a text": (set_node(2, inputs="a"), 2),
    "inputs with a list": (set_node(2, inputs=[["a"]]), 2),
    "inputs with an object": (set_node(2, inputs=[{}]), 2),
    "a combination of two of three": (set_node(6, inputs=["a", "c"]), 2),
    "a combination of other shapes": (set_node(6, inputs=["a", "c", "input"]), 2),
    "a combination without inputs": (set_node(6, inputs=[]), 2),
    "a negative weight": (lambda b: b.tensors.update({b.nodes[6]["weights"]: np.array([0.5, -0.25, 1.5])}), 2),
    "a weight of NaN": (lambda b: b.tensors.update({b.nodes[6]["weights"]: np.array([0.5, np.nan, 1.5])}), 2),
    "a larger weight": (lambda b: b.tensors.update({b.nodes[6]["weights"]: np.array([0.5, 0.26, 1.5])}), 1),
    "a smaller weight": (lambda b: b.tensors.update({b.nodes[6]["weights"]: np.array([0.5, 0.15, 1.5])}), 1),
    "a smaller claim of a combination": (set_node(6, lipschitz=math.nextafter(2.25, 0).hex()), 1),
    "branches exchanged": (set_node(6, inputs=["c", "a", "e"]), 1),
    "a branch moved": (set_node(4, inputs=["c"]), 1),
    "another function": (set_node(8, descending=False), 1),
    "a larger claim of one node": (set_node(2, lipschitz=(4.0).hex()), 1),
    "an image as output": (lambda b: b.nodes.__delitem__(slice(1, None)), 2),
    "an op that is a list": (set_node(1, op=[]), 2),
    "a node that is a list": (lambda b: b.nodes.__setitem__(1, []), 2),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_false_and_malformed_graphs(name, tmp_path, capsys):
    b = branches()
    finish(b, tmp_path / "c", run_branches(b))
    mutate, code = GRAPHS[name]
    mutate(b)
    assert verdict(b.save(tmp_path / "c"), capsys) == code


def put_together(seed=0):
    """Three branches of two sizes, one of them twice, along the second axis of a matrix."""
    b = Builder((2, 3), 8, seed)
    b.add("select", inputs=["input"], name="a", indices=[None, [2, 0]], value=ZERO)
    b.add("tanh", inputs=["input"], name="b", parameters=[])
    b.add("divide", 1 / 3 * (1 + 2.0**-50), ["a"], "c", parameters=[(3.0).hex()])
    b.add("concat", root_up(4), ["a", "b", "a", "c"], "d", axis=1, count=4)
    b.add("shift", name="e", parameters=[(0.1).hex()])
    b.add("rearrange", name="f", split=[2, 9], order=[0, 1], shape=[18])
    return dense(b, 3, 18, name="head", scale=0.3)


def root_up(square):
    return math.nextafter(math.sqrt(square), math.inf)


def run_together(b):
    weight, bias = (torch.tensor(b.tensors[b.nodes[-1][key]]) for key in ("weight", "bias"))

    def run(x):
        a = x[:, :, [2, 0]]
        y = torch.cat([a, torch.tanh(x), a, a / 3], dim=2) + 0.1
        return F.linear(y.flatten(1), weight.to(x.dtype), bias.to(x.dtype))

    return run


def longest(b):
    """The largest constant of a branch in the place of the root of the sum of their squares."""
    b.claims_lipschitz(1.0)


CONCATENATIONS = {
    "as they are": (lambda b: None, 0),
    "in another order": (set_node(3, inputs=["b", "a", "a", "c"]), 1),
    "the same shapes, another value": (set_node(3, inputs=["c", "b", "a", "c"]), 1),
    "the largest constant for all": (longest, 1),
    "a constant below the root of their number": (set_node(3, lipschitz=(1.99).hex()), 1),
    "another count": (set_node(3, count=3), 2),
    "a count and inputs that are too few": (set_node(3, inputs=["a", "b", "a"], count=3), 2),
    "along an axis on which they differ": (set_node(3, axis=0), 2),
    "along an axis that is not there": (set_node(3, axis=2), 2),
    "an axis counted from the end": (set_node(3, axis=-1), 2),
    "no inputs": (set_node(3, inputs=[], count=0), 2),
    "another shift": (set_node(4, parameters=[(0.2).hex()]), 1),
    "a divisor of 0": (set_node(2, parameters=[ZERO]), 2),
    "a negative divisor": (set_node(2, parameters=[(-3.0).hex()]), 2),
    "a smaller divisor": (set_node(2, parameters=[(2.9).hex()]), 1),
}


@pytest.mark.parametrize("name", CONCATENATIONS)
def test_concatenations(name, tmp_path, capsys):
    b = put_together()
    finish(b, tmp_path / "c", run_together(b))
    mutate, code = CONCATENATIONS[name]
    mutate(b)
    assert verdict(b.save(tmp_path / "c"), capsys) == code


def test_a_concatenation_of_vectors_and_matrices_is_refused(tmp_path, capsys):
    b = Builder((2, 3), 8, 0)
    b.add("rearrange", inputs=["input"], name="a", split=[2, 3], order=[0, 1], shape=[6])
    for inputs in (["input", "a"], ["a", "input"]):
        other = copy.deepcopy(b).add("concat", 1.5, inputs, "b", axis=0, count=2)
        assert verdict(other.save(tmp_path / "c"), capsys) == 2


def test_bounds_of_a_concatenation_are_roots_of_squares_of_any_size(tmp_path):
    """In exact numbers: nothing is lost where a square would underflow or overflow."""
    node = put_together().build(tmp_path / "c")[3]
    rng = np.random.default_rng(0)
    for scale in (1e-200, 1e-160, 1.0, 1e150):
        bounds = scale * np.abs(rng.standard_normal((4, 50))) * 10.0 ** rng.integers(-9, 9, (4, 50))
        found = node.together([1.0] * 4, bounds)
        for column, value in zip(bounds.T, found, strict=True):
            square = sum(Fraction(float(one)) ** 2 for one in column)
            assert square <= Fraction(float(value)) ** 2 <= square * (1 + Fraction(1, 2**45))
    assert node.together([1.0] * 2, np.array([[math.inf], [1.0]])) == math.inf
    assert node.together([1.0] * 2, np.zeros((2, 1))) == 0


def test_an_op_that_is_nested_deeply(tmp_path, capsys):
    b = branches()
    path = b.save(tmp_path / "c")
    for depth in (50, 500, 900):
        nested = "[" * depth + "]" * depth
        path.write_text(path.read_text().replace('"op": "tanh"', f'"op": {nested}', 1))
        assert verdict(path, capsys) == 2
        path = b.save(tmp_path / "c")


# --- Tampering with fields ---


NASTY = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    2**31,
    10**17,
    "",
    "x",
    "relu",
    "zeros",
    "circular",
    "input",
    [],
    [1],
]
NASTY += [[0, 0], [1, 1], [2, 2], [[0, 0]], [[1, 1], [1, 1]], [None], [[]], {}, "t0", "t1", [10**17] * 2]
NASTY += [[[10**17] * 2], ONE, "0x0.0p+0", "-0x1.0000000000000p+0", "0x1.0000000000000p+99", "nan", "inf", [ONE]]
NASTY += [["nan"], [[0, 10**17]], [[[0, 10**17, 1]]], [None, [[0, 10**17, 1]]], [None, [10**17]], [None, [-2]]]
NASTY += [[None, [[0, 1, 0]], None]]


@pytest.mark.parametrize("name", CASES)
def test_each_field_replaced_is_refused_or_a_smaller_claim(name, tmp_path):
    """Every field of every op by every nasty value: exit 1 or 2, or the same function, and never a crash."""
    case = CASES[name]
    builder = build_case(case, lipschitz=BIG)
    builder.claims_lipschitz(BIG)
    original = builder.build(tmp_path / "c")
    x = builder.images.astype(float)
    value = checker.forward(original, x, np.zeros(4), checker.FLOAT64, "L2")[0]
    probe = {"indices": [0, 1], "logits": [[float(v).hex() for v in row] for row in value[:2]]}
    builder.top["probe"] = probe
    path = builder.save(tmp_path / "c")
    top = json.loads(path.read_text())
    start = list(CASES).index(name)
    for i, key in enumerate(key for key in top["nodes"][0] if key not in ("name", "op")):
        for nasty in NASTY[(start + i) % 5 :: 5]:  # over all cases, each field meets each value
            changed = copy.deepcopy(top)
            changed["nodes"][0][key] = nasty
            path.write_text(json.dumps(changed))
            try:
                report = checker.check(path)
            except checker.Malformed:
                continue
            if report.ok and nasty != top["nodes"][0][key]:
                nodes = build_all(checker.read(path, checker.Budget()))
                result = checker.forward(nodes, x, np.zeros(4), checker.FLOAT64, "L2")[0]
                _, err, _ = checker.forward(original, x, np.zeros(4), checker.FLOAT32, "L2")
                assert np.linalg.norm(result[:2] - value[:2]) <= 2 * err[:2].sum() + 1e-9


@pytest.mark.parametrize("name", CASES)
def test_each_tensor_replaced_is_refused_or_checked(name, tmp_path, capsys):
    """NaN, infinities, other shapes and other dtypes in each tensor: never a crash."""
    case = CASES[name]
    for key in [key for key, value in case.fields.items() if isinstance(value, np.ndarray)]:
        value = case.fields[key]
        mutants = [np.full_like(value, bad) for bad in (np.nan, np.inf, -1.0)]
        mutants += [value[:-1], value[..., None], value.astype(np.uint8), value.astype(np.float16), value.ravel()]
        mutants += [value.astype(float) * 1e-200, value.astype(float) * 1e200]
        for mutant in mutants:
            if mutant.size == 0 or (mutant.shape == value.shape and np.array_equal(mutant, value)):
                continue
            builder = build_case(Case(case.shape, case.op, case.fields | {key: mutant}, case.torch))
            builder.claims_lipschitz(BIG)
            code = verdict(builder.save(tmp_path / "c"), capsys)
            plain = np.isfinite(mutant).all() and mutant.dtype in (np.float16, np.float32)
            plain = plain and mutant.shape == value.shape
            assert code == 2 or plain or key == "witness" or np.abs(mutant).min() > 0


# --- Norms, against explicit matrices ---


CONVOLUTIONS = [
    {"n": n, "c": c, "kernel": kernel, "stride": stride, "padding_mode": mode, "groups": groups}
    for n, c, kernel, stride, mode, groups in [
        (3, 2, (3, 3), (1, 1), "zeros", 1),
        (2, 3, (3, 3), (1, 1), "circular", 1),
        (3, 2, (3, 3), (2, 2), "zeros", 1),
        (4, 2, (3, 3), (2, 2), "circular", 2),
        (2, 2, (2, 4), (1, 2), "zeros", 1),
        (4, 4, (2, 3), (1, 1), "zeros", 2),
        (3, 2, (1, 1), (1, 1), "zeros", 1),
        (6, 1, (2, 2), (2, 2), "circular", 1),
        (3, 1, (3, 1), (3, 4), "zeros", 1),
        (1, 1, (5, 5), (2, 3), "circular", 1),
    ]
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_constants_of_convolutions_against_singular_values(case):
    """Symbol, row sums and κ are at least σ_max² and ‖ |·| ‖ of the explicit matrix, whatever the padding."""
    rng = np.random.default_rng(0)
    groups, stride, mode, (kh, kw) = (case[key] for key in ("groups", "stride", "padding_mode", "kernel"))
    for scale in (1.0, 1e-30, 1e15):
        weight = scale * rng.standard_normal((case["n"], case["c"] // groups, kh, kw))
        gamma, q = rng.uniform(0, 1, case["n"]), np.exp(rng.standard_normal(case["n"]))
        gamma[0] = 0 if case["n"] > 3 else gamma[0]
        kernel = weight.reshape(groups, -1, *weight.shape[1:])
        heads = kernel.shape[:2]
        split = checker.phases(kernel * np.sqrt(gamma).reshape(*heads, 1, 1, 1), stride)
        symbol, kappa = checker.norm_squared(split, 0.0), checker.absolute_norm(split)
        rows = checker.row_sums(kernel, gamma.reshape(heads), q.reshape(heads), stride)
        best = 0.0
        paddings = [((kh - 1) // 2, (kw - 1) // 2)]
        paddings += [(0, 0), (kh, kw)] if mode == "zeros" else []
        for padding in paddings:
            pairs = [[p, p] for p in padding]
            image = (case["c"], *full((12, 12), (6, 6)))
            matrix, shape = conv_matrix(weight, image, stride, pairs, (1, 1), mode, groups)
            scaled = matrix * np.repeat(np.sqrt(gamma), shape[1] * shape[2])[:, None]
            best = max(best, spectral_norm(scaled))
            assert spectral_norm(np.abs(scaled)) <= kappa
        assert best**2 <= symbol
        assert best**2 <= rows * (1 + 1e-12)
        sums = (overlaps(weight, stride, groups) * (gamma > 0)) @ q * gamma / q
        assert sums.max() * (1 - 1e-12) <= rows <= sums.max() * (1 + 1e-9)
        near = symbol_norm(weight * np.sqrt(gamma)[:, None, None, None], stride, groups) ** 2
        assert symbol <= near * 1.4  # the coarsest grid: 1/cos(π/8)^4
        if scale == 1:
            fine = checker.norm_squared(split, near * 1.01)  # with a goal the grid is refined
            assert best**2 <= fine <= near * 1.01


@pytest.mark.parametrize("image", [(6, 8), (12, 4), (8, 8)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 1)])
def test_on_a_torus_the_constant_of_a_convolution_is_exact(image, stride):
    """Kernels up to one larger than the image, as an orthogonal convolution has; library and checker agree."""
    rng = np.random.default_rng(1)
    for kernel_size, groups in (((3, 3), 1), ((5, 3), 2), ((image[0] + 1, image[1] + 1), 1)):
        weight = rng.standard_normal((4, 6 // groups, *kernel_size))
        padding = [[(k - 1) // 2] * 2 for k in kernel_size]
        matrix, _ = conv_matrix(weight, (6, *image), stride, padding, (1, 1), "circular", groups)
        true = spectral_norm(matrix)
        torus = tuple(n // s for n, s in zip(image, stride, strict=True))
        split = checker.phases(weight.reshape(groups, -1, *weight.shape[1:]), stride)
        theirs = math.sqrt(checker.norm_squared(split, true**2 * (1 + 1e-9), torus))
        ours = conv_norm_bound(weight, stride, groups=groups, torus=torus)
        assert ours.method == "torus"
        assert true * (1 - 1e-13) <= min(ours.value, theirs)
        assert max(ours.value, theirs) <= true * (1 + 1e-9)
        assert conv_norm_bound(weight, stride, groups=groups).value > true * 1.001  # what lies between the points


@pytest.mark.parametrize("shape", [(1, 1), (5, 9), (9, 5), (40, 40), (150, 140)])
def test_constants_of_matrices_against_singular_values(shape):
    rng = np.random.default_rng(0)
    for matrix in (
        rng.standard_normal(shape),
        np.ones(shape),
        np.eye(*shape),
        np.zeros(shape),
        np.linalg.qr(rng.standard_normal((max(shape), max(shape))))[0][: shape[0], : shape[1]],
        rng.standard_normal(shape) * np.exp(20 * rng.standard_normal((shape[0], 1))),
    ):
        true = np.linalg.norm(matrix, 2)
        kernel = matrix[None, :, :, None, None]
        for goal in (0.0, true**2 * (1 + 1e-9), 4 * true**2):
            proved = math.sqrt(checker.norm_squared(kernel, goal))
            assert true * (1 - 1e-13) <= proved <= true * 1.04
        assert math.sqrt(checker.norm_squared(kernel, true**2 * (1 + 1e-9))) <= true * (1 + 1e-9)
        absolute = np.linalg.norm(np.abs(matrix), 2)
        assert absolute * (1 - 1e-13) <= checker.absolute_norm(kernel) <= absolute * 1.006
        q = np.exp(rng.standard_normal(shape[0]))
        gamma = rng.uniform(0, 1, shape[0])
        a = np.abs(matrix @ matrix.T) * (gamma > 0)
        sums = (gamma / q * (a @ q)).max()
        found = checker.row_sums(kernel, gamma[None], q[None], (1, 1))
        assert sums * (1 - 1e-13) <= found <= sums * (1 + 1e-10)
        assert np.linalg.norm(np.sqrt(gamma)[:, None] * matrix, 2) ** 2 <= found * (1 + 1e-12)


def test_the_bound_of_a_matrix_of_moduli_is_close():
    """κ multiplies every rounding error: one that is half too large would refute true claims."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(rng.integers(1, 16, 2))
        matrix = np.exp(4 * rng.standard_normal(shape)) * (rng.random(shape) < 0.3)
        true = np.linalg.norm(matrix, 2)
        with np.errstate(all="ignore"):
            found = checker.absolute_norm(matrix[None, :, :, None, None])
        assert true * (1 - 1e-13) <= found <= true * 1.006


def exact_row_sums(kernel, gamma, q, stride):
    """max_i γ_i Σ_j Σ_d |C_ij[d]| q_j/q_i in rational numbers, from the definition."""
    groups, n, c, kh, kw = kernel.shape
    numbers, best = np.vectorize(Fraction, otypes=[object])(kernel), Fraction(0)
    taps = list(itertools.product(range(kh), range(kw)))
    for group, i in itertools.product(range(groups), range(n)):
        total = Fraction(0)
        for j in range(n):
            lags = {}
            for (a, b), (y, x) in itertools.product(taps, taps):
                if (y - a) % stride[0] == (x - b) % stride[1] == 0 and gamma[group, j]:
                    value = sum(numbers[group, i, r, a, b] * numbers[group, j, r, y, x] for r in range(c))
                    lags[y - a, x - b] = lags.get((y - a, x - b), 0) + value
            total += sum(abs(value) for value in lags.values()) * Fraction(q[group, j])
        best = max(best, Fraction(gamma[group, i]) * total / Fraction(q[group, i]))
    return best


@pytest.mark.parametrize("stride", [(1, 1), (1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["random", "disjoint", "cancelling", "sparse"])
def test_row_sums_are_above_the_exact_ones_and_close(kind, stride):
    """With q from e⁻²⁰ to e²⁰ an error of 10⁻¹⁶ may count 10¹⁷ times, but not where supports are disjoint."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        groups, n, c, kh, kw = kernel_shape = (
            *rng.integers(1, 3, 1),
            *rng.integers(2, 4, 2),
            *rng.integers(1, 4, 2),
        )
        kernel = rng.standard_normal(kernel_shape)
        if kind == "disjoint":  # filter i has channel i and no other
            kernel = rng.standard_normal((groups, n, n, kh, kw)) * np.eye(n)[:, :, None, None]
        if kind == "cancelling":  # filters that are orthogonal up to rounding
            flat = np.linalg.qr(rng.standard_normal((groups, max(n, c * kh * kw), n)))[0].swapaxes(1, 2)
            kernel = flat[..., : c * kh * kw].reshape(kernel_shape)
        if kind == "sparse":
            kernel = kernel * (rng.random(kernel_shape) < 0.4)
        q, gamma = np.exp(rng.uniform(-20, 20, (groups, n))), rng.uniform(0.5, 1, (groups, n))
        gamma[rng.random((groups, n)) < 0.1] = 0
        found = checker.row_sums(kernel, gamma, q, stride)
        exact = exact_row_sums(kernel, gamma, q, stride)
        assert Fraction(found) >= exact
        if kind == "disjoint":
            assert found <= exact * (1 + Fraction(1, 10**12))


def test_a_neuron_with_gamma_zero_is_dropped():
    matrix = np.array([[1.0, 0.0], [1e3, 1e3]])[None, :, :, None, None]
    assert checker.row_sums(matrix, np.array([[1.0, 0.0]]), np.ones((1, 2)), (1, 1)) <= 1 + 1e-12


def test_the_numbers_with_a_direction():
    rng = np.random.default_rng(0)
    for order in (1, 2, 3, 4, 7, 8, 28, 64, 2048):
        angle = 2 * np.pi * np.arange(order) / order
        assert np.abs(checker.circle(order)[0] - np.cos(angle)).max() <= 2e-15
        assert np.abs(checker.circle(order)[1] - np.sin(angle)).max() <= 2e-15
    for size in (1, 2, 3, 17, 300):
        for row in rng.standard_normal((20, size)):
            square = sum(Fraction(v) ** 2 for v in row)
            assert square <= Fraction(float(checker.norms(row))) ** 2 <= square * Fraction(1 + 1e-14)
    for _ in range(200):
        value = Fraction(int(rng.integers(1, 2**60)), int(rng.integers(1, 2**60)))
        assert value <= Fraction(checker.above(value)) <= value * (1 + Fraction(1, 2**52))
    assert checker.above(Fraction(10) ** 400) == math.inf
    assert Fraction(math.sqrt(2)) ** 2 > 2


@pytest.mark.parametrize("dilation", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 6])
def test_stride_and_dilation_against_singular_values(stride, dilation):
    """Symbol, row sums and κ are above the norm of the explicit matrix of a long signal, and close to it."""
    rng = np.random.default_rng(stride * 10 + dilation)
    weight = rng.standard_normal((3, 2, 5))
    matrix = jacobian(
        lambda x: F.conv1d(x, torch.tensor(weight), None, stride, 0, dilation), torch.zeros(1, 2, 90).double()
    )
    true = np.linalg.norm(matrix, 2)
    step = (stride // math.gcd(stride, dilation),)
    split = checker.phases(weight[None], step)
    assert checker.phases_shape((1, *weight.shape), step) == split.shape
    proved = math.sqrt(checker.norm_squared(split, true**2 * 1.1))
    assert true * (1 - 1e-12) <= proved <= true * 1.1
    assert np.linalg.norm(np.abs(matrix), 2) <= checker.absolute_norm(split)
    ones = np.ones((1, 3))
    rows = checker.row_sums(weight[None], ones, ones, step)
    gram = np.abs(matrix @ matrix.T)
    middle = gram.sum(axis=1).reshape(3, -1).max(axis=1).max()
    assert true**2 <= rows * (1 + 1e-12)
    assert middle * (1 - 1e-12) <= rows <= middle * (1 + 1e-9)


@pytest.mark.parametrize("sides", [(3,), (2, 3), (2, 2, 2), (1, 3, 2)])
def test_grids_in_every_dimension(sides):
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((2, 2, 3, *sides))
    points = np.fft.fftn(kernel, s=[32] * len(sides), axes=range(3, kernel.ndim)).reshape(2, 2, 3, -1)
    near = np.linalg.svd(np.moveaxis(points, 3, 0), compute_uv=False).max() ** 2
    coarse, fine = (checker.norm_squared(kernel, goal) for goal in (0.0, near * 1.02))
    assert near * (1 - 1e-12) <= fine <= near * 1.02 <= coarse * 1.02
    torus = (4, 6, 3)[: len(sides)]
    frequencies = itertools.product(*(np.arange(size) / size for size in torus))
    taps = np.indices(sides).reshape(len(sides), -1)
    flat = kernel.reshape(2, 2, 3, -1)
    exact = max(
        np.linalg.norm(flat[i] @ np.exp(2j * np.pi * np.array(f) @ taps), 2) for f in frequencies for i in range(2)
    )
    found = math.sqrt(checker.norm_squared(kernel, exact**2 * (1 + 1e-9), torus))
    assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-9)


def test_fold_is_a_transposed_convolution(tmp_path):
    """F.fold adds patches: one kernel for each entry of a patch, in groups."""
    channels, kernel, size = 2, (2, 3), (4, 5)
    eye = np.eye(6, dtype=np.float32).reshape(6, 1, *kernel)
    weight = np.concatenate([eye] * channels)
    patches = (size[0] - 1) * (size[1] - 2)
    b = Builder((channels * 6, 3, 3))
    fields = {"weight": weight, "bias": None, "stride": [1, 1], "padding": [[0, 0]] * 2, "dilation": [1, 1]}
    b.add("conv_transpose", math.sqrt(6) * 1.05, **fields, groups=channels, size=list(size))
    node = b.flatten((channels, *size)).build(tmp_path / "c")[0]
    x = b.images.astype(float)
    theirs = F.fold(torch.tensor(x).reshape(4, channels * 6, patches), size, kernel).numpy()
    assert np.allclose(node.run(x), theirs, atol=1e-12)
    assert math.sqrt(6) <= node.proved * (1 + 1e-12)
