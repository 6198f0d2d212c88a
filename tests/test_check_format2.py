"""The checker on format 2: every op against torch, its constant against Jacobians, graphs, rounding and tampering.

The builder below writes certificates with numpy alone. It shares nothing with the checker but docs/certificate.md.
"""

import copy
import hashlib
import itertools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lipcert import check as checker

ONE = (1.0).hex()
SMOOTH = {"elu", "celu", "selu", "tanh", "sigmoid", "softplus", "logsigmoid", "gelu", "silu", "mish", "tanhshrink"}
SMOOTH |= {"softmax", "log_softmax"}
ACTIVATIONS = {
    "relu": F.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.01),
    "elu": F.elu,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


# --- A writer of certificates ---


def digest(value):
    head = f"{value.dtype}|{','.join(map(str, value.shape))}|".encode()
    return hashlib.sha256(head + value.tobytes()).hexdigest()


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, value in tensors.items():
        dtype = {"float32": "F32", "float64": "F64", "uint8": "U8", "float16": "F16"}[str(value.dtype)]
        offsets = [len(body), len(body) + value.nbytes]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": offsets}
        body += value.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


class Builder:
    """A certificate being written."""

    def __init__(self, shape, count=4, seed=0, scale=1.0):
        self.rng = np.random.default_rng(seed)
        self.images = (scale * self.rng.standard_normal((count, *shape))).astype(np.float32)
        self.nodes, self.tensors, self.claims = [], {}, []
        self.probe = {"indices": [], "logits": []}
        self.lipschitz = 1.0
        self.change = {}

    def add(self, op, lipschitz=1.0, inputs=None, name=None, **fields):
        """Append a node. Arrays become tensors; the input is the node before unless it is named."""
        default = [self.nodes[-1]["name"] if self.nodes else "input"]
        node = {"op": op, "name": name or f"n{len(self.nodes)}", "inputs": inputs or default}
        node["lipschitz"] = float(lipschitz).hex()
        for key, value in fields.items():
            if isinstance(value, np.ndarray):
                tensor = f"t{len(self.tensors)}"
                self.tensors[tensor] = np.ascontiguousarray(value)
                value = tensor
            node[key] = value
        self.nodes.append(node)
        return self

    def flatten(self, shape):
        size = math.prod(shape)
        return self.add("rearrange", split=[size], order=[0], shape=[size])

    def assumes(self):
        nodes = [node for node in self.nodes if isinstance(node, dict)]
        names = [node.get(key) for node in nodes for key in ("op", "activation")]
        return sorted({f"{name} within 8 ulp" for name in names if isinstance(name, str) and name in SMOOTH})

    def save(self, folder):
        folder.mkdir(exist_ok=True)
        source = {"file": "inputs.safetensors", "tensor": "images", "sha256": digest(self.images)}
        top = {
            **{"format": "lipcert-certificate-2", "norm": "L2", "arithmetic": "float64", "assumes": self.assumes()},
            **{"input_shape": list(self.images.shape[1:]), "weights": "weights.safetensors"},
            "tensors": {name: digest(value) for name, value in self.tensors.items()},
            **{"nodes": self.nodes, "lipschitz": float(self.lipschitz).hex()},
            "inputs": source | {"divide_by": None, "count": len(self.images), "about": "noise"},
            **{"claims": self.claims, "probe": self.probe},
        }
        write_tensors(folder / "weights.safetensors", self.tensors)
        write_tensors(folder / "inputs.safetensors", {"images": self.images})
        (folder / "certificate.json").write_text(json.dumps(top | self.change), encoding="utf-8")
        return folder / "certificate.json"

    def build(self, folder):
        """The nodes as the checker has them, planned and proved."""
        with np.errstate(all="ignore"):
            return checker.build_all(checker.read(self.save(folder)))

    def finish(self, folder, f32=None, factor=1 - 1e-7):
        """Claims and a probe that hold: radii are ``factor`` times margin/(L·K) in real numbers.

        The claimed constant of the network is the exact Λ, rounded up.
        """
        growth = {"input": Fraction(1)}
        for node in self.nodes:
            gains = [Fraction(float.fromhex(node["lipschitz"]))]
            if node["op"] == "combination":
                gains = [Fraction(float(v)) for v in self.tensors[node["weights"]]]
            growth[node["name"]] = sum(a * growth[u] for a, u in zip(gains, node["inputs"], strict=True))
        end = self.nodes[-1]
        head = end["op"] == "linear" and end["groups"] == 1
        total = growth[end["inputs"][0] if head else end["name"]]
        self.lipschitz = float(total)
        if Fraction(self.lipschitz) < total:
            self.lipschitz = math.nextafter(self.lipschitz, math.inf)
        nodes = self.build(folder)
        f = checker.forward(nodes, self.images.astype(float), np.zeros(len(self.images)), checker.FLOAT64)[0]
        weight = self.tensors[end["weight"]].astype(float) if head else np.eye(f.shape[1])
        self.claims = []
        for i, row in enumerate(f):
            y = int(row.argmax())
            others = [j for j in range(len(row)) if j != y]
            radius = min((row[y] - row[j]) / np.linalg.norm(weight[y] - weight[j]) for j in others)
            self.claims.append([i, y, float(radius / self.lipschitz * factor).hex()])
        answers = f if f32 is None else f32(torch.tensor(self.images)).numpy()
        rows = [[float(v).hex() for v in row] for row in answers.astype(np.float32)]
        self.probe = {"indices": list(range(len(f))), "logits": rows}
        return self


def verdict(path, capsys=None):
    """The exit code; a refusal is one line of ASCII without a traceback."""
    code = checker.main([str(path)])
    if capsys is not None:
        out, err = capsys.readouterr()
        assert "cannot be checked" not in err
        assert err.count("\n") == (code != 0), err
        assert out.isascii()
        assert err.isascii()
    return code


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
        builder.lipschitz = BIG
        # A claim below what can be proved is refused, unless a finer grid proves more.
        found = verdict(builder.save(tmp_path / "c"))
        assert found == code or (code == 1 and case.tight > 1e-3)
    if worst > 0 and "jacobian" not in case.extra:
        builder = build_case(case, lipschitz=worst * (1 - 1e-9))
        builder.lipschitz = BIG
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
            value, err, _ = checker.forward(first, x.astype(float), np.zeros(len(x)), checker.FLOAT32)
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
    counts |= dict.fromkeys(["elu", "tanh", "sigmoid", "logsigmoid"], 17) | {"scale": 1, "prelu": 1}
    counts |= dict.fromkeys(["celu", "selu", "softplus", "gelu", "silu", "mish"], 20)
    starts = {"hardsigmoid": 0.5, "sigmoid": 0.5, "softplus": math.log(2) / 2.5, "logsigmoid": math.log(2)}
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
        builder.lipschitz = BIG
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
    b.finish(tmp_path / "c", run)
    path = b.save(tmp_path / "c")
    report = checker.check(path)
    assert report.ok, report.refuted
    assert report.verified == report.claims == 8
    assert not report.alarms
    assert list(report.assumes) == ["gelu within 8 ulp", "tanh within 8 ulp"]
    assert [row[:2] for row in report.constants] == [(node["name"], node["op"]) for node in b.nodes]
    nodes = b.build(tmp_path / "c")
    value = checker.forward(nodes, b.images.astype(float), np.zeros(8), checker.FLOAT64)[0]
    assert np.allclose(value, run(torch.tensor(b.images.astype(float))).numpy(), atol=1e-12)
    assert verdict(path, capsys) == 0
    b.finish(tmp_path / "c", run, factor=1 + 1e-7)
    assert checker.check(b.save(tmp_path / "c")).verified == 0
    b.finish(tmp_path / "c", run)
    b.lipschitz = math.nextafter(b.lipschitz, 0)
    assert any(text.startswith("lipschitz") for text in checker.check(b.save(tmp_path / "c")).refuted)


def test_the_constant_of_a_graph_is_above_that_of_the_function(tmp_path):
    b = branches(head=False)
    b.finish(tmp_path / "c")
    run, rng = run_branches(b), np.random.default_rng(0)
    worst = max(np.linalg.norm(jacobian(run, torch.tensor(rng.standard_normal((1, 6)))), 2) for _ in range(30))
    assert worst <= b.lipschitz


def test_the_error_bound_of_a_graph_holds_everywhere_in_the_ball(tmp_path):
    b = branches()
    nodes, run = b.build(tmp_path / "c"), run_branches(b)
    x = b.images.astype(float)
    for radius in (0.0, 1e-3, 1e4):
        _, err32, _ = checker.forward(nodes, x, np.full(8, radius), checker.FLOAT32)
        _, _, reach = checker.forward(nodes, x, np.full(8, radius), checker.FLOAT64)
        other = torch.tensor(x + 0.99 * radius * np.eye(6)[np.arange(8) % 6])
        away = (run(other.float()).double() - run(other.float().double())).norm(dim=1).numpy()
        assert (away <= err32).all()
        assert (run(other).norm(dim=1).numpy() <= reach).all()


def test_products_of_constants_are_exact_and_fast(tmp_path):
    """9,990 factors, and a number that grows far beyond float64 and comes back."""
    factor = 1 + 2.0**-52
    b = Builder((2,))
    for _ in range(9_990):
        b.add("scale", factor, factor=factor.hex())
    for lipschitz, code in ((1 + 1e-10, 0), (1 + 1e-12, 1)):
        b.lipschitz = lipschitz
        assert verdict(b.save(tmp_path / "c")) == code
    b = Builder((2,))
    for value in [2.0**100] * 30 + [2.0**-100] * 30:
        b.add("scale", value, factor=value.hex())
    for lipschitz, code in ((1.0, 0), (math.nextafter(1, 0), 1)):
        b.lipschitz = lipschitz
        assert verdict(b.save(tmp_path / "c")) == code


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
    "a name that is no text": (set_node(3, name=["c"]), 2),
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
    "no nodes": (lambda b: b.nodes.clear(), 2),
    "an image as output": (lambda b: b.nodes.__delitem__(slice(1, None)), 2),
    "unused input": (lambda b: b.change.update(nodes=[]), 2),
    "nodes an object": (lambda b: b.change.update(nodes={}), 2),
    "layers of format 1": (lambda b: b.change.update(format="lipcert-certificate-1"), 2),
    "an unknown op": (set_node(1, op="sin"), 2),
    "an op that is a list": (set_node(1, op=[]), 2),
    "a node that is a list": (lambda b: b.nodes.__setitem__(1, []), 2),
    "assumptions missing": (lambda b: b.change.update(assumes=["gelu within 8 ulp"]), 2),
    "assumptions unsorted": (lambda b: b.change.update(assumes=["tanh within 8 ulp", "gelu within 8 ulp"]), 2),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_false_and_malformed_graphs(name, tmp_path, capsys):
    b = branches()
    b.finish(tmp_path / "c", run_branches(b))
    mutate, code = GRAPHS[name]
    mutate(b)
    assert verdict(b.save(tmp_path / "c"), capsys) == code


def test_values_that_are_held_at_a_time_have_a_limit(tmp_path, monkeypatch):
    """Branches that wait for a combination are held; a chain holds one value."""
    monkeypatch.setattr(checker, "ROOM", 100)
    b = Builder((10,))
    for _ in range(40):
        b.add("relu", parameters=[])
    assert checker.check(b.save(tmp_path / "c")).ok
    b = Builder((10,))
    for i in range(12):
        b.add("relu", inputs=["input"], name=f"r{i}", parameters=[])
    b.add("combination", 12.0, [f"r{i}" for i in range(12)], weights=np.ones(12))
    b.lipschitz = 12.0
    with pytest.raises(checker.Malformed, match="--allow 2"):
        checker.check(b.save(tmp_path / "c"))
    assert checker.check(b.save(tmp_path / "c"), allow=2).ok


def test_a_combination_of_one_node_many_times(tmp_path):
    """A hundred thousand inputs that are one node: the memory for their errors counts."""
    count = 100_000
    b = Builder((2,), count=300)
    b.add("relu", parameters=[], name="r")
    b.add("combination", 1.0, ["r"] * count, weights=np.full(count, 2.0**-17))
    b.claims = []
    assert check_within(b.save(tmp_path / "c"), 500) == "ok"
    nodes = b.build(tmp_path / "c")
    assert checker.batch_size(nodes) * count <= checker.ROOM
    value, err, _ = checker.forward(nodes, b.images[:4].astype(float), np.zeros(4), checker.FLOAT64)
    assert np.allclose(value, np.maximum(b.images[:4], 0) * count * 2.0**-17)
    assert (err <= 1e-9).all()


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
NASTY += [
    [0, 0],
    [1, 1],
    [2, 2],
    [[0, 0]],
    [[1, 1], [1, 1]],
    [None],
    [[]],
    {},
    "t0",
    "t1",
    [10**17] * 2,
    [[10**17] * 2],
]
NASTY += [
    ONE,
    "0x0.0p+0",
    "-0x1.0000000000000p+0",
    "0x1.0000000000000p+99",
    "nan",
    "inf",
    [ONE],
    ["nan"],
    [[0, 10**17]],
]
NASTY += [[[[0, 10**17, 1]]], [None, [[0, 10**17, 1]]], [None, [10**17]], [None, [-2]], [None, [[0, 1, 0]], None]]


@pytest.mark.parametrize("name", CASES)
def test_each_field_replaced_is_refused_or_a_smaller_claim(name, tmp_path):
    """Every field of every op by every nasty value: exit 1 or 2, or the same function, and never a crash."""
    case = CASES[name]
    builder = build_case(case, lipschitz=BIG)
    builder.lipschitz = BIG
    path = builder.save(tmp_path / "c")
    original = checker.build_all(checker.read(path))
    x = builder.images.astype(float)
    value = checker.forward(original, x, np.zeros(4), checker.FLOAT64)[0]
    builder.probe = {"indices": [0, 1], "logits": [[float(v).hex() for v in row] for row in value[:2]]}
    top = json.loads(builder.save(tmp_path / "c").read_text())
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
                nodes = checker.build_all(checker.read(path))
                result = checker.forward(nodes, x, np.zeros(4), checker.FLOAT64)[0]
                _, err, _ = checker.forward(original, x, np.zeros(4), checker.FLOAT32)
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
            builder.lipschitz = BIG
            code = verdict(builder.save(tmp_path / "c"), capsys)
            plain = np.isfinite(mutant).all() and mutant.dtype == np.float32 and mutant.shape == value.shape
            assert code == 2 or plain or key == "witness" or np.abs(mutant).min() > 0


EXTREME = {  # nodes that ask for more than the limits, with hardly any bytes
    "select": ((3,), {"op": "select", "indices": [[0] * 5000], "value": ONE}, 5000),
    "windows": ((3,), {"op": "max_pool", "windows": [[[0, 3, 1]] * 2000]}, 6000),
    "pool": ((60,), {"op": "pool", "windows": [[[0, 60]] * 90], "divisors": [[1] * 90], "factor": ONE}, 5400),
    "split": ((3,), {"op": "rearrange", "split": [10**17, 10**17], "order": [0, 1], "shape": [3]}, None),
    "split of many axes": (
        (1,),
        {"op": "rearrange", "split": [1] * 80, "order": list(range(80)), "shape": [1]},
        None,
    ),
    "window to the end of the world": ((3,), {"op": "max_pool", "windows": [[[0, 10**17, 10**16]]]}, None),
    "divisor": ((3,), {"op": "pool", "windows": [[[0, 3]]], "divisors": [[10**17]], "factor": ONE}, None),
    "transposed": (
        (1, 3),
        {"op": "conv_transpose", "weight": "w", "bias": None, "stride": [10**17], "padding": [[0, 0]]}
        | {"dilation": [1], "groups": 1, "size": [10**17]},
        10**17,
    ),
    "dilation": (
        (1, 3),
        {"op": "conv", "weight": "w", "bias": None, "stride": [1], "padding": [[10**17, 10**17]], "groups": 1}
        | {"dilation": [10**17], "padding_mode": "zeros"},
        2 * 10**17 + 3,
    ),
}


@pytest.mark.parametrize("name", EXTREME)
def test_small_files_cannot_ask_for_much(name, tmp_path, monkeypatch):
    shape, node, amount = EXTREME[name]
    monkeypatch.setattr(checker, "ROOM", 4096)
    b = Builder(shape)
    if "weight" in node:
        b.tensors["w"] = np.ones((1, 1, 2), np.float32)
    b.nodes = [{"name": "n", "inputs": ["input"], "lipschitz": ONE, **node}]
    with pytest.raises(checker.Malformed) as error:
        checker.check(b.save(tmp_path / "c"))
    if amount is not None:
        assert f"{amount:,}" in str(error.value)


def test_one_array_for_all_nodes_that_name_a_tensor(tmp_path):
    b = Builder((4,))
    weight = np.eye(4, dtype=np.float32)
    b.add("linear", 1 + 1e-9, weight=weight, bias=None, axis=0, groups=1)
    b.nodes += [{**b.nodes[0], "name": f"m{i}", "inputs": ["n0" if i == 0 else f"m{i - 1}"]} for i in range(5)]
    nodes = b.build(tmp_path / "c")
    assert len({node.map.weight.__array_interface__["data"][0] for node in nodes}) == 1


# --- Dilation and stride, against explicit matrices ---


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
    b.flatten((channels, *size))
    b.lipschitz = 3.0
    path = b.save(tmp_path / "c")
    node = checker.build_all(checker.read(path))[0]
    x = b.images.astype(float)
    theirs = F.fold(torch.tensor(x).reshape(4, channels * 6, patches), size, kernel).numpy()
    assert np.allclose(node.run(x), theirs, atol=1e-12)
    assert math.sqrt(6) <= node.proved * (1 + 1e-12)


# --- Files ---


def with_bytes(file, function):
    return lambda folder: (folder / file).write_bytes(function((folder / file).read_bytes()))


def text(old, new):
    return with_bytes("certificate.json", lambda data: data.decode().replace(old, new, 1).encode())


def with_header(function, file="weights.safetensors"):
    def change(data):
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        content = function(header)
        content = content if isinstance(content, bytes) else json.dumps(content or header).encode()
        return struct.pack("<Q", len(content)) + content + data[8 + size :]

    return with_bytes(file, change)


def tensor(**values):
    return with_header(lambda header: header["t0"].update(values))


def flip(data):
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


def overlap(header):
    header["t1"].update(data_offsets=header["t0"]["data_offsets"], shape=header["t0"]["shape"])


def link(folder):
    (folder.parent / "elsewhere").mkdir()
    shutil.move(folder / "weights.safetensors", folder.parent / "elsewhere" / "w")
    (folder / "weights.safetensors").symlink_to(folder.parent / "elsewhere" / "w")


def replace_by(make):
    def function(folder):
        (folder / "weights.safetensors").unlink()
        make(folder / "weights.safetensors")

    return function


W, C = "weights.safetensors", "certificate.json"
FILES = {  # what is done to the files, and the verdict
    "tensor byte": (1, with_bytes(W, flip)),
    "image byte": (1, with_bytes("inputs.safetensors", flip)),
    "hash": (1, text('"t0": "', '"t0": "0')),
    "hash of the inputs": (1, text('"sha256": "', '"sha256": "0')),
    "dtype with the same bytes": (2, tensor(dtype="I32")),
    "empty weights": (2, with_bytes(W, lambda d: b"")),
    "seven bytes": (2, with_bytes(W, lambda d: d[:7])),
    "header cut": (2, with_bytes(W, lambda d: d[:60])),
    "weights cut": (2, with_bytes(W, lambda d: d[:-1])),
    "weights longer": (2, with_bytes(W, lambda d: d + b"\0")),
    "header length 2^62": (2, with_bytes(W, lambda d: struct.pack("<Q", 2**62) + d[8:])),
    "header length 2^64 - 1": (2, with_bytes(W, lambda d: b"\xff" * 8 + d[8:])),
    "header a list": (2, with_header(lambda h: [h])),
    "header deep": (2, with_header(lambda h: b"[" * 200_000)),
    "header with a key twice": (2, with_header(lambda h: json.dumps(h).encode().replace(b'"t1"', b'"t0"', 1))),
    "header with bad metadata": (2, with_header(lambda h: h.update(__metadata__=[1]))),
    "huge shape": (2, tensor(shape=[2**40, 2**20])),
    "huge shape and offsets": (2, tensor(shape=[2**50], data_offsets=[0, 2**52])),
    "negative shape": (2, tensor(shape=[-3])),
    "empty shape": (2, tensor(shape=[0], data_offsets=[0, 0])),
    "overlap": (2, with_header(overlap)),
    "offsets swapped": (2, tensor(data_offsets=[12, 0])),
    "link out of the folder": (2, link),
    "a folder": (2, replace_by(lambda path: path.mkdir())),
    "a pipe": (2, replace_by(os.mkfifo)),
    "no file": (2, lambda f: (f / W).unlink()),
    "certificate a folder": (2, lambda f: ((f / C).unlink(), (f / C).mkdir())),
    "certificate empty": (2, with_bytes(C, lambda d: b"")),
    "certificate cut": (2, with_bytes(C, lambda d: d[:-1])),
    "certificate longer": (2, with_bytes(C, lambda d: d + b"{}")),
    "certificate no text": (2, with_bytes(C, lambda d: b"\xff\xfe" + d)),
    "certificate null": (2, with_bytes(C, lambda d: b"null")),
    "certificate deep": (2, with_bytes(C, lambda d: b"[" * 100_000 + b"]" * 100_000)),
    "deep inside": (2, text('"claims": [', '"claims": [' + '{"a":' * 100_000)),
    "key twice": (2, text('"norm": "L2"', '"norm": "L2", "norm": "L2"')),
    "NaN": (2, text('"count": 8', '"count": NaN')),
    "Infinity": (2, text('"count": 8', '"count": -Infinity')),
    "float": (2, text('"count": 8', '"count": 8.0')),
    "integer of a million digits": (2, text('"count": 8', '"count": 1' + "0" * 10**6)),
    "path upwards": (2, text('"weights.safetensors"', '"../c/weights.safetensors"')),
    "absolute path": (2, text('"weights.safetensors"', '"/etc/passwd"')),
    "path with a null": (2, text('"weights.safetensors"', r'"weights\u0000.safetensors"')),
    "shape of five axes": (2, text('"input_shape": [6]', '"input_shape": [1, 1, 1, 1, 6]')),
    "lone surrogate in a name": (0, text('"name": "sorted"', r'"name": "\ud800\u001b[2J"')),
}


@pytest.mark.parametrize("name", FILES)
def test_tampered_files(name, tmp_path, capsys):
    folder = tmp_path / "c"
    b = branches()
    b.finish(folder, run_branches(b)).save(folder)
    code, function = FILES[name]
    if code == 0:  # the name is that of two nodes
        path = folder / C
        path.write_text(path.read_text().replace('"inputs": ["sorted"]', r'"inputs": ["\ud800\u001b[2J"]'))
    function(folder)
    assert verdict(folder / C, capsys) == code


def test_the_file_runs_alone(tmp_path):
    shutil.copy(checker.__file__, tmp_path / "check.py")
    b = branches()
    path = b.finish(tmp_path / "c", run_branches(b)).save(tmp_path / "c")
    for arguments, code in (([str(path)], 0), ([str(tmp_path / "nothing.json")], 2), ([], 2)):
        command = [sys.executable, "-I", "-W", "error", str(tmp_path / "check.py"), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
        assert result.returncode == code, result.stderr
        assert "Traceback" not in result.stderr


# --- What a certificate may cost ---


MEASURE = """
import re, resource, sys
from pathlib import Path
from lipcert import check

used = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + int(sys.argv[2]) * 2**20,) * 2)
try:
    report = check.check(sys.argv[1])
    print("ok" if report.ok else report.refuted[0])
except check.Malformed as error:
    print(error)
"""


def check_within(path, megabytes):
    """What the checker says, in a process that may allocate so much more than it starts with."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    command = [sys.executable, "-c", MEASURE, str(path), str(megabytes)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("op", ["normalize", "batch_norm", "prelu", "select", "max_pool"])
def test_what_a_node_keeps_does_not_grow_with_its_tensors(op, tmp_path):
    """4 MB in 100 nodes: a gigabyte if each keeps an array of that size."""
    size = 2**20
    ones = np.ones(size, np.float32)
    b = Builder((size,), count=1)
    b.tensors["t"] = ones
    fields = {
        "normalize": {"mean": "t", "std": "t"},
        "batch_norm": {"mean": "t", "variance": "t", "weight": None, "bias": None, "eps": "0x0.0p+0"},
        "prelu": {"weight": "t"},
        "select": {"indices": [None], "value": ONE},
        "max_pool": {"windows": [None]},
    }[op]
    for i in range(10 if op == "batch_norm" else 100):
        b.add(op, 1.0, name=f"n{i}", **fields)
    b.add("prelu", 1.0, weight="t").add("select", 1.0, indices=[[0, 1]], value=ONE)
    assert check_within(b.save(tmp_path / "c"), 600) == "ok"


def certificate(nodes, tensors, shape, claims):
    """A certificate without files: its tensors need no memory."""
    top = {"nodes": nodes, "assumes": [], "inputs": {"divide_by": 255}}
    images = np.broadcast_to(np.uint8(0), (claims, *shape))
    rows = [(i, i % 10, 1.0) for i in range(claims)]
    return checker.Certificate(top, shape, 1.0, tensors, images, rows, [0, 1], [[0.0] * 10] * 2)


@pytest.mark.parametrize(
    ("channels", "convolutions", "layers", "hidden", "claims"),
    [(45, 20, 7, 2048, 10_000), (120, 70, 15, 2048, 500), (70, 120, 15, 4096, 500)],
)
def test_the_networks_of_the_paper_fit(channels, convolutions, layers, hidden, claims):
    b = Builder((3, 32, 32), count=1)

    def empty(*shape, dtype="f4"):
        name = f"t{len(b.tensors)}"
        b.tensors[name] = np.broadcast_to(np.zeros((), dtype), shape)
        return name

    def residual(op, n, *shape, **options):
        named = {"weight": empty(n, *shape), "gamma": empty(n), "witness": empty(n, dtype="f8"), "bias": None}
        b.add(op, **named, activation="relu", groups=1, **options)

    index = [*range(3), *[-1] * (channels - 3)]
    b.add("select", indices=[index, None, None], value="0x0.0p+0")
    for _ in range(convolutions):
        options = {"stride": [1, 1], "dilation": [1, 1], "padding": [[1, 1]] * 2, "padding_mode": "zeros"}
        residual("residual_conv", 5, channels, 3, 3, **options)
    windows = [[4 * i, 4 * i + 4] for i in range(8)]
    b.add("pool", windows=[None, windows, windows], divisors=[None, [1] * 8, [1] * 8], factor=(0.25).hex())
    b.flatten((64 * channels,))
    for _ in range(layers):
        residual("residual_linear", hidden, 64 * channels, axis=0)
    b.add("linear", weight=empty(10, 64 * channels), bias=None, axis=0, groups=1)
    c, budget = certificate(b.nodes, b.tensors, (3, 32, 32), claims), checker.Budget()
    nodes = checker.plan_all(c, checker.Tensors(b.tensors), budget)
    work = checker.other_work(c, nodes) + sum(node.prepare + node.proof for node in nodes)
    assert 0.01 * checker.WORK <= work <= 0.5 * checker.WORK


def test_the_work_has_a_limit_that_a_flag_raises(tmp_path, monkeypatch):
    b = branches()
    path = b.finish(tmp_path / "c", run_branches(b)).save(tmp_path / "c")
    budget = checker.Budget()
    c = checker.read(path, budget)
    nodes = checker.plan_all(c, checker.Tensors(c.weights), budget)
    estimate = checker.other_work(c, nodes) + sum(node.prepare + node.proof for node in nodes)
    checker.verify(c, budget)
    assert estimate <= budget.spent <= 3 * estimate
    monkeypatch.setattr(checker, "WORK", estimate // 5)
    with pytest.raises(checker.Malformed, match="multiply-adds"):
        checker.check(path)
    assert checker.check(path, allow=-(-budget.spent // (estimate // 5))).ok


EXPENSIVE = {
    "dense proofs": lambda b: [
        b.add("linear", weight=np.zeros((4096, 4096), np.float32), bias=None, axis=0, groups=1),
        b.nodes.extend({**b.nodes[0], "name": f"m{i}", "inputs": [f"m{i - 1}" if i else "n0"]} for i in range(999)),
    ],
    "rational numbers": lambda b: [
        b.add("batch_norm", mean=np.zeros(4096, np.float32), variance="t0", weight=None, bias=None, eps=ONE),
        b.nodes.extend(
            {**b.nodes[0], "name": f"m{i}", "inputs": [f"m{i - 1}" if i else "n0"]} for i in range(9999)
        ),
        setattr(checker, "EXACT", 2**25),
    ],
    "overlapping windows": lambda b: [
        b.add(
            "pool", windows=[[[i, i + 2] for i in range(4095)] + [[4095, 4096]]], divisors=[[2] * 4096], factor=ONE
        ),
        b.nodes.extend({**b.nodes[0], "name": f"m{i}", "inputs": [f"m{i - 1}" if i else "n0"]} for i in range(30)),
    ],
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_proofs_are_refused_before_the_first_one(name, tmp_path, monkeypatch):
    monkeypatch.setattr(checker, "EXACT", checker.EXACT)  # it is set back afterwards
    monkeypatch.setattr(checker, "WORK", 2**42)
    b = Builder((4096,), count=1)
    EXPENSIVE[name](b)
    with pytest.raises(checker.Malformed, match="multiply-adds"):
        checker.check(b.save(tmp_path / "c"))
