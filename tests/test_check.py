"""The independent checker: it accepts true certificates, alone; it refuses everything else, without a traceback.

The writer below is plain numpy on explicit matrices: it shares nothing with the checker but docs/certificate.md.
"""

import ast
import copy
import hashlib
import itertools
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import lipcert as lc
from lipcert import check as checker
from lipcert.certification.certificate import write_certificate
from lipcert.proofs.audit import chain
from lipcert.verified.convolution import conv_norm_bound
from table import HOSTILE, LAYERS, fit

SOURCE = Path(checker.__file__)
U = 2.0**-53


# --- A writer of certificates ---


def g(n, u=U):
    return n * u / (1 - n * u)


def conv_matrix(weight, shape, stride=(1, 1), padding=(0, 0), padding_mode="zeros", groups=1):
    """The convolution as a matrix, (n·H'·W', C·H·W), entry by entry from its definition."""
    n, c, kh, kw = weight.shape
    _, high, wide = shape
    out = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip((high, wide), padding, (kh, kw), stride, strict=True)]
    matrix = np.zeros((n, *out, *shape), dtype=weight.dtype)
    for o, y, x, i, a, b in itertools.product(range(n), *map(range, (*out, c, kh, kw))):
        row, column = y * stride[0] + a - padding[0], x * stride[1] + b - padding[1]
        if padding_mode == "circular":
            row, column = row % high, column % wide
        if 0 <= row < high and 0 <= column < wide:
            matrix[o, y, x, o // (n // groups) * c + i, row, column] += weight[o, i, a, b]
    return matrix.reshape(n * out[0] * out[1], -1), (n, *out)


def overlaps(weight, stride=(1, 1), groups=1, absolute=np.abs):
    """A_ij = Σ |C_ij[d]|: the rows of neurons on a large torus-free image, lag by lag."""
    n, _, kh, kw = weight.shape
    total = np.zeros((n, n))
    for dy, dx in itertools.product(range(-kh + 1, kh), range(-kw + 1, kw)):
        if dy % stride[0] or dx % stride[1]:
            continue
        first = weight[:, :, max(0, -dy) : kh - max(0, dy), max(0, -dx) : kw - max(0, dx)]
        second = weight[:, :, max(0, dy) : kh + min(0, dy), max(0, dx) : kw + min(0, dx)]
        total += absolute(np.einsum("icab,jcab->ij", first.astype(float), second.astype(float)))
    group = np.arange(n) // (n // groups)
    return total * (group[:, None] == group)


# σ in any precision, how many roundings it counts for, and |σ(0)|.
SIGMAS = {
    "relu": (lambda x: np.maximum(x, 0), 0, 0.0),
    "leaky_relu": (lambda x: np.maximum(x, x.dtype.type(0.01) * x), 1, 0.0),
    "elu": (lambda x: np.maximum(x, 0) + np.expm1(np.minimum(x, 0)), 16, 0.0),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 16, math.log(2)),
    "tanh": (np.tanh, 16, 0.0),
    "sigmoid": (lambda x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))), 16, 0.5),
}
SMOOTH = ("elu", "softplus", "tanh", "sigmoid")


def float32_below(values):
    values = np.asarray(values)
    down = values.astype(np.float32)
    return np.where(down > values, np.nextafter(down, np.float32(0)), down)


class Draft:
    """A network being written: ``layers`` (JSON), ``tensors``, and per layer the explicit matrix the claims use."""

    def __init__(self, seed, shape, images, divide_by):
        self.rng, self.shape, self.input_shape = np.random.default_rng(seed), tuple(shape), tuple(shape)
        self.images, self.divide_by = images, divide_by
        self.layers, self.tensors, self.explicit = [], {}, []
        self.kappas = {}  # of the layers, which take long
        self.top = {"format": "lipcert-certificate-1", "norm": "L2", "arithmetic": "float64"}

    def tensor(self, value):
        name = f"t{len(self.tensors)}"
        self.tensors[name] = np.ascontiguousarray(value)
        return name

    def add(self, op, lipschitz=1.0, shape=None, **fields):
        self.layers.append({"op": op, "name": f"{op} {len(self.layers)}", "lipschitz": lipschitz.hex(), **fields})
        self.explicit.append(None)
        self.shape = self.shape if shape is None else shape
        return self

    def noise(self, *shape, scale=1.0):
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    def residual_linear(self, n, witness=True, tight=False, activation="relu"):
        (m,) = self.shape
        weight = self.noise(n, m)
        weight = np.abs(weight) if tight else weight
        return self._residual("residual_linear", weight, weight[:, :, None, None], witness, tight, {}, activation)

    def residual_conv(self, n, kernel=(3, 3), witness=True, activation="relu", **options):
        options = {"stride": [1, 1], "padding": [1, 1], "padding_mode": "zeros", "groups": 1, **options}
        weight = self.noise(n, self.shape[0] // options["groups"], *kernel)
        return self._residual("residual_conv", weight, weight, witness, False, options, activation)

    def _residual(self, op, weight, kernel, witness, tight, options, activation):
        n = len(weight)
        if op == "residual_conv":
            matrix, (_, *out) = conv_matrix(weight, self.shape, **options)
            a = overlaps(kernel, options["stride"], options["groups"])
        else:
            matrix, out, a = weight, [1, 1], np.abs(weight.astype(float) @ weight.T.astype(float))
        q = np.exp(0.3 * self.rng.standard_normal(n))
        if tight:  # the Perron vector: ρ is what the row sums say
            q = np.abs(np.linalg.eigh(a)[1][:, -1])
        gamma = (1 - 2.0**-26) / ((a @ q) / q)
        if not witness and op == "residual_linear":
            gamma = np.full(n, 0.999999 / np.linalg.norm(weight.astype(float), 2) ** 2)
        gamma = float32_below(gamma)
        bias = self.noise(n, scale=0.1)
        self.add(
            op,
            **{"weight": self.tensor(weight), "gamma": self.tensor(gamma), "bias": self.tensor(bias)},
            witness=self.tensor(q) if witness else None,
            activation=activation,
            **options,
        )
        self.explicit[-1] = (matrix, out, gamma, bias)
        return self

    def householder(self, length=1 - 2.0**-20):
        angle = self.rng.uniform(0, 2 * np.pi, self.shape[0] // 2)
        first, second = (np.asarray(length * f(angle), np.float32) for f in (np.cos, np.sin))
        constant = max(1.0, 2 * length**2 * (1 + 1e-6) - 1)
        return self.add("householder", constant, first=self.tensor(first), second=self.tensor(second))

    def torus(self, n, residual=False, odd=1.0, activation="relu"):
        """TᵀBT on waves that are near orthonormal times ``odd``, as one matrix from its definition."""
        m, *image = self.shape
        rows, columns = (
            (odd * np.linalg.qr(self.rng.standard_normal((size + size % 2, size)))[0] / 1.0001).astype(np.float32)
            for size in image
        )
        h, w = len(rows) // 2, len(columns) // 2
        blocks = self.noise(h * w, 4 * n, 4 * m)
        blocks = blocks / np.float32(1.001 * max(np.linalg.norm(b.astype(float), 2) for b in blocks))
        middle = np.zeros((n, h, 2, w, 2, m, h, 2, w, 2))
        for i, j, a, b, c, d in itertools.product(range(h), range(w), *[range(2)] * 4):
            part = blocks[i * w + j].reshape(2, 2, n, 2, 2, m)
            middle[:, i, a, j, b, :, i, c, j, d] = part[a, b, :, c, d]
        middle = middle.reshape(n, 2 * h, 2 * w, m, 2 * h, 2 * w)
        matrix = np.einsum(
            "yY,xX,nyxmvu,vV,uU->nYXmVU", *(v.astype(float) for v in (rows, columns)), middle, rows, columns
        )
        bias, constant = self.noise(n, scale=0.1), odd**4
        fields = {"rows": rows, "columns": columns, "weight": blocks, "bias": bias}
        gamma = np.ones(n, np.float32)
        if residual:
            gamma = (1 - (odd == 1) * 0.5 * self.rng.random(n)).astype(np.float32)
            fields["gamma"], constant = gamma, max(1.0, 2 * constant**2 - 1)
        named = {key: self.tensor(value) for key, value in fields.items()}
        named |= {"activation": activation} if residual else {}
        shape = self.shape if residual else (n, *image)
        self.add("residual_torus" if residual else "torus", constant, shape, **named)
        self.explicit[-1] = (matrix.reshape(n * math.prod(image), -1), image, gamma, bias)
        return self

    def linear(self, k):
        weight, bias = self.noise(k, *self.shape, scale=0.5), self.noise(k, scale=0.1)
        norm = float(np.linalg.norm(weight.astype(float), 2)) * (1 + 1e-9)
        self.add("linear", norm, (k,), weight=self.tensor(weight), bias=self.tensor(bias))
        self.explicit[-1] = (weight, [1, 1], np.ones(k, np.float32), bias)
        return self

    def conv(self, n, kernel=(3, 3), bias=True, slack=1.03, **options):
        options = {"stride": [1, 1], "padding": [1, 1], "padding_mode": "zeros", "groups": 1, **options}
        weight = self.noise(n, self.shape[0] // options["groups"], *kernel, scale=0.3)
        values = self.noise(n, scale=0.1) if bias else np.zeros(n, np.float32)
        norm = symbol_norm(weight, options["stride"], options["groups"]) * slack
        matrix, shape = conv_matrix(weight, self.shape, **options)
        self.add("conv", float(norm), shape, weight=self.tensor(weight), bias=self.tensor(values) if bias else None)
        self.layers[-1].update(options)
        self.explicit[-1] = (matrix, shape[1:], np.ones(n, np.float32), values)
        return self

    def run(self, x, dtype=np.float64, upto=None):
        """Every intermediate value, from x, (batch, *input_shape), in the arithmetic of dtype."""
        values = [x.astype(dtype)]
        for layer, explicit in list(zip(self.layers, self.explicit, strict=True))[:upto]:
            z, get = values[-1], lambda key, layer=layer: self.tensors[layer[key]].astype(dtype)
            batch, op = len(z), layer["op"]
            if op in ("centre", "normalize"):
                column = (-1, *[1] * (z.ndim - 2))
                z = z - get("mean").reshape(column)
                z = z / get("std").reshape(column) if op == "normalize" else z
            elif op == "pad_channels":
                z = np.concatenate([z, np.zeros((batch, layer["channels"] - z.shape[1], *z.shape[2:]), dtype)], 1)
            elif op == "pad_image":
                up = [-size % layer["multiple"] for size in z.shape[2:]]
                z = np.pad(z, ((0, 0), (0, 0), (0, up[0]), (0, up[1])))
            elif op == "space_to_depth":
                b = layer["block"]
                parts = [z[:, c, i::b, j::b] for c in range(z.shape[1]) for i in range(b) for j in range(b)]
                z = np.stack(parts, axis=1)
            elif op == "sum_pool":
                kh, kw = layer["kernel"]
                z = sum(z[:, :, i::kh, j::kw] for i in range(kh) for j in range(kw)) * dtype(
                    float.fromhex(layer["factor"])
                )
            elif op == "flatten":
                z = z.reshape(batch, -1)
            elif op == "relu":
                z = z * (z > 0)
            elif op == "abs":
                z = np.where(z < 0, -z, z)
            elif op in ("group_sort", "max_min"):
                size = layer.get("size", 2)
                blocks = [np.sort(z[:, i : i + size], axis=1) for i in range(0, z.shape[1], size)]
                z = np.concatenate([b[:, ::-1] if op == "max_min" else b for b in blocks], axis=1)
            elif op == "scale":
                z = z * dtype(float.fromhex(layer["factor"]))
            elif op == "take_channels":
                z = np.stack([z[:, i] for i in range(layer["first"], layer["first"] + layer["count"])], axis=1)
            elif op == "householder":  # one pair after the other
                pieces = []
                for i, (a, b) in enumerate(zip(get("first"), get("second"), strict=True)):
                    dot = a * z[:, 2 * i] + b * z[:, 2 * i + 1]
                    low = np.where(dot < 0, dot, 0)
                    pieces += [z[:, 2 * i] - 2 * a * low, z[:, 2 * i + 1] - 2 * b * low]
                z = np.stack(pieces, axis=1)
            else:
                matrix, out, gamma, bias = explicit
                matrix, spread = matrix.astype(dtype), math.prod(out)
                hidden = z.reshape(batch, -1) @ matrix.T + np.repeat(bias.astype(dtype), spread)
                if op.startswith("residual"):
                    sigma = SIGMAS[layer["activation"]][0]
                    active = sigma(hidden) * np.repeat(2 * gamma.astype(dtype), spread)
                    z = z - (active @ matrix).reshape(z.shape)
                else:
                    z = hidden.reshape(batch, -1, *out) if op in ("conv", "torus") else hidden
            values.append(z)
        return values

    def inputs(self):
        return self.images.astype(np.float32) / np.float32(255) if self.divide_by else self.images

    def rounding(self, i, z, u=U):
        """e(Z) of layer i, straight from the table in docs/certificate.md."""
        layer, explicit = self.layers[i], self.explicit[i]
        op, lipschitz = layer["op"], float.fromhex(layer["lipschitz"])
        if op in ("centre", "normalize"):
            shape = self.run(self.inputs()[:1], upto=i)[-1].shape[1:]
            mean = self.tensors[layer["mean"]].astype(float)
            return g(2, u) * lipschitz * (z + math.sqrt(math.prod(shape[1:])) * np.linalg.norm(mean))
        if op == "sum_pool":
            return g(math.prod(layer["kernel"]) + 2, u) * lipschitz * z
        if op == "scale":
            return g(1, u) * lipschitz * z
        if op == "householder":
            longest = np.hypot(*(self.tensors[layer[key]].astype(float) for key in ("first", "second"))).max()
            first = g(3, u) * longest * z
            v = longest * z + first
            return 2 * (1 + u) * longest * (first + u * v) + g(5, u) * (z + 2 * (1 + u) * longest * v)
        if explicit is None:
            return 0 * z
        matrix, out, gamma, bias = (np.asarray(v, dtype=float) for v in explicit)
        n, spread = len(gamma), int(out.prod())
        weight = self.tensors[layer["weight"]]
        n1 = math.prod(weight.shape[1:])
        n2 = math.prod(weight.shape) // weight.shape[1] // layer.get("groups", 1)
        scaled = np.abs(matrix) * np.repeat(np.sqrt(gamma), spread)[:, None]
        kappa = self.kappas[i] = self.kappas.get(i) or np.linalg.norm(scaled, 2)
        if op.endswith("torus"):
            waves = [self.tensors[layer[key]] for key in ("rows", "columns")]
            n1, n2 = (sum(waves[0].shape + waves[1].shape) + weight.shape[axis] for axis in (2, 1))
            each = np.tile(np.sqrt(gamma), 4)[:, None]
            kappa = max(np.linalg.norm(each * np.abs(block), 2) for block in weight)
            kappa *= math.prod(np.linalg.norm(np.abs(wave), 2) ** 2 for wave in waves)
        beta = math.sqrt(spread * float((gamma * bias**2).sum()))
        if not op.startswith("residual"):
            return g(n1 + 1, u) * (kappa * z + beta)
        assert n == (weight.shape[1] // 4 if op.endswith("torus") else len(weight))
        first = g(n1 + 1, u) * (kappa * z + beta)
        root = math.sqrt((lipschitz + 1) / 2)  # √ρ ≤ 1, or what the layer claims
        _, roundings, at_zero = SIGMAS[layer["activation"]]
        v = root * z + beta + first + at_zero * math.sqrt(spread * float(gamma.sum()))
        once = g(1 + roundings, u)
        return 2 * (1 + u) * root * (first + once * v) + g(n2 + 3, u) * (z + 2 * (1 + once) * kappa * v)

    def claim(self, i, values, depth, lipschitz, errors=4):
        """[i, y, r] for one input, or None; ``values`` are those before and after each of the layers."""
        f = values[-1]
        y = int(f.argmax()) if f.size > 1 else int(f[0] > 0)
        rivals = [j for j in range(f.size) if j != y] if f.size > 1 else [0]
        gap = f[y] - f[rivals] if f.size > 1 else np.abs(f)
        head = depth < len(self.layers)
        if head:
            weight, bias = (self.tensors[self.layers[-1][key]].astype(float) for key in ("weight", "bias"))
            apart = np.linalg.norm(weight[y] - weight[rivals] if f.size > 1 else weight, axis=1)
        else:
            apart = np.full(len(rivals), math.sqrt(2) if f.size > 1 else 1.0)
        err, moved = 0.0, (gap / (lipschitz * apart)).min()
        for k, layer in enumerate(self.layers[:depth]):
            constant = float.fromhex(layer["lipschitz"])
            z = np.linalg.norm(values[k].ravel()) + moved + 2 * err
            err, moved = constant * err + self.rounding(k, z), constant * moved
        error = apart * err
        if head:
            z = np.linalg.norm(values[depth].ravel()) + moved + 2 * err
            own = g(weight.shape[1] + 1) * (np.linalg.norm(weight, axis=1) * z + np.abs(bias))
            error = error + (own[y] + own[rivals] if f.size > 1 else own)
        radius = float(((gap - errors * error) / (lipschitz * apart)).min() * (1 - 4 * U))
        return [i, y, radius.hex()] if radius > 0 else None

    def finish(self, errors=4):
        """Claims and probe by the formula in docs/certificate.md, plainly in float64."""
        self.kappas = {}
        head = self.layers[-1]["op"] == "linear"
        body = self.layers[: len(self.layers) - head]
        total = Fraction(1)
        for layer in body:
            total *= Fraction(float.fromhex(layer["lipschitz"]))
        lipschitz = float(total)
        lipschitz = lipschitz if Fraction(lipschitz) >= total else math.nextafter(lipschitz, math.inf)
        values = self.run(self.inputs())
        f = values[-1]
        claims = [
            self.claim(i, [value[i] for value in values], len(body), lipschitz, errors) for i in range(len(f))
        ]
        self.claims = [claim for claim in claims if claim is not None]
        asked = list(range(0, len(f), 3))
        answers = self.run(self.inputs()[asked], np.float32)[-1]
        smooth = sorted({layer.get("activation") for layer in self.layers} & set(SMOOTH))
        self.top.update(
            assumes=[f"{name} within 8 ulp" for name in smooth],
            input_shape=list(self.input_shape),
            weights="weights.safetensors",
            layers=self.layers,
            lipschitz=lipschitz.hex(),
            inputs={
                "file": "inputs.safetensors",
                "tensor": "images",
                "divide_by": self.divide_by,
                "count": len(self.images),
                "about": "noise",
            },
            claims=self.claims,
            probe={"indices": asked, "logits": [[float(v).hex() for v in row] for row in answers]},
        )
        return self

    def save(self, folder):
        """Writes the three files with the hashes they need."""
        folder.mkdir(exist_ok=True)
        self.top["tensors"] = {name: digest(value) for name, value in self.tensors.items()}
        self.top["inputs"]["sha256"] = digest(self.images)
        write_tensors(folder / "weights.safetensors", self.tensors)
        write_tensors(folder / "inputs.safetensors", {"images": self.images})
        (folder / "certificate.json").write_text(json.dumps(self.top), encoding="utf-8")
        return folder / "certificate.json"


def symbol_norm(weight, stride=(1, 1), groups=1, points=64):
    """sup ‖K̂(θ)‖, estimated from below by the FFT of the polyphase components."""
    kh, kw = weight.shape[2:]
    best = 0.0
    for part in np.split(weight.astype(float), groups):
        pad = np.zeros((*part.shape[:2], -(-kh // stride[0]) * stride[0], -(-kw // stride[1]) * stride[1]))
        pad[:, :, :kh, :kw] = part
        split = [pad[:, :, i :: stride[0], j :: stride[1]] for i in range(stride[0]) for j in range(stride[1])]
        spectrum = np.fft.fft2(np.concatenate(split, axis=1), s=(points, points))
        best = max(best, np.linalg.svd(np.moveaxis(spectrum, (2, 3), (0, 1)), compute_uv=False).max())
    return best


def digest(value):
    return hashlib.sha256(
        f"{value.dtype}|{','.join(map(str, value.shape))}|".encode() + value.tobytes()
    ).hexdigest()


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, value in tensors.items():
        dtype = {"float32": "F32", "float64": "F64", "uint8": "U8", "float16": "F16"}[str(value.dtype)]
        offsets = [len(body), len(body) + value.nbytes]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": offsets}
        body += value.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def sll_network(seed=0):
    rng = np.random.default_rng(seed)
    draft = Draft(seed, [3, 7, 7], rng.integers(0, 256, (12, 3, 7, 7), dtype=np.uint8), 255)
    draft.add("centre", mean=draft.tensor(np.array([0.4, 0.5, 0.6], np.float32)))
    draft.add("pad_image", multiple=4, shape=(3, 8, 8)).add("space_to_depth", block=2, shape=(12, 4, 4))
    draft.add("pad_channels", channels=14, shape=(14, 4, 4))
    draft.residual_conv(10).residual_conv(8, stride=[2, 2]).residual_conv(6, padding_mode="circular")
    draft.residual_conv(6, groups=2).residual_conv(6, witness=False, padding=[2, 1], kernel=(2, 3))
    draft.add("sum_pool", kernel=[2, 2], factor=(0.5).hex(), shape=(14, 2, 2)).add("flatten", shape=(56,))
    draft.residual_linear(40).residual_linear(70, tight=True).residual_linear(30, witness=False)
    draft.add("scale", 1.25, factor=(-1.25).hex()).linear(5)
    return draft.finish()


def conv_network(seed=1):
    rng = np.random.default_rng(seed)
    draft = Draft(seed, [2, 6, 6], rng.standard_normal((12, 2, 6, 6)).astype(np.float32), None)
    std = np.array([0.5, 0.75], np.float32)
    draft.add("normalize", 2.0, mean=draft.tensor(std), std=draft.tensor(std))
    draft.conv(6, stride=[2, 2]).add("max_min").conv(6, groups=3, padding_mode="circular", bias=False)
    draft.add("group_sort", size=3).conv(4, kernel=(1, 1), padding=[0, 0]).add("abs").conv(8, stride=[3, 1])
    draft.add("flatten", shape=(24,)).linear(9).add("relu").linear(4).add("group_sort", size=2)
    return draft.finish()


def binary_network(seed=2):
    rng = np.random.default_rng(seed)
    draft = Draft(seed, [9], rng.standard_normal((12, 9)).astype(np.float32), None)
    draft.residual_linear(7).linear(6).add("max_min").residual_linear(5, tight=True).linear(1)
    return draft.finish()


def reflected_network(seed=4):
    rng = np.random.default_rng(seed)
    draft = Draft(seed, [3, 5, 4], rng.standard_normal((12, 3, 5, 4)).astype(np.float32), None)
    draft.conv(6).householder().add("pad_channels", channels=10, shape=(10, 5, 4)).residual_conv(7)
    draft.add("take_channels", first=6, count=4, shape=(4, 5, 4)).householder(1.5).add("flatten", shape=(80,))
    draft.linear(8).householder().add("take_channels", first=1, count=6, shape=(6,)).linear(3)
    return draft.finish()


def wave_network(seed=5):
    rng = np.random.default_rng(seed)
    draft = Draft(seed, [2, 4, 5], rng.standard_normal((12, 2, 4, 5)).astype(np.float32), None)
    draft.torus(3).add("abs").torus(4, residual=True).torus(2, odd=0.9).torus(2, residual=True, odd=1.003)
    draft.add("flatten", shape=(40,)).linear(4)
    return draft.finish()


def smooth_network(seed=6):
    """Every activation in every residual layer."""
    rng = np.random.default_rng(seed)
    draft = Draft(seed, [2, 4, 4], rng.standard_normal((12, 2, 4, 4)).astype(np.float32), None)
    for name in SIGMAS:
        draft.residual_conv(4, activation=name)
    for name in SIGMAS:
        draft.torus(3, residual=True, activation=name)
    draft.add("flatten", shape=(32,))
    for name in SIGMAS:
        draft.residual_linear(12, activation=name)
    return draft.linear(4).finish()


def affine_network(seed=3):
    rng = np.random.default_rng(seed)
    draft = Draft(seed, [9], rng.standard_normal((12, 9)).astype(np.float32), None)
    return draft.linear(4).finish()


NETWORKS = {
    "sll": sll_network,
    "conv": conv_network,
    "binary": binary_network,
    "affine": affine_network,
    "reflected": reflected_network,
    "waves": wave_network,
    "smooth": smooth_network,
}
DRAFTS = {}


def draft_of(kind):
    if kind not in DRAFTS:
        DRAFTS[kind] = NETWORKS[kind]()
    return copy.deepcopy(DRAFTS[kind])


def verdict(path, capsys=None):
    """The exit code; checks that a refusal is one line and that an acceptance says nothing on stderr."""
    code = checker.main([str(path)])
    if capsys is not None:
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert err.count("\n") == (code != 0), err
        assert out.isascii()
        assert err.isascii()
    return code


# --- True certificates ---


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_true_certificates_are_accepted(kind, seed, tmp_path, capsys):
    draft = NETWORKS[kind](seed)
    path = draft.save(tmp_path / "c")
    report = checker.check(path)
    assert report.ok, report.refuted
    assert report.verified == report.claims == len(draft.claims) >= 6
    assert report.slack > 0
    assert not report.alarms
    assert len(report.constants) == len(draft.layers)
    assert all(proved <= claimed for _, _, claimed, proved in report.constants)
    assert verdict(path, capsys) == 0
    assert checker.main([str(path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_file_runs_alone(tmp_path):
    shutil.copy(SOURCE, tmp_path / "check.py")
    path = draft_of("sll").save(tmp_path / "c")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for arguments, code in (
        ([str(path)], 0),
        ([str(tmp_path / "nothing.json")], 2),
        ([], 2),
        ([str(path), "-x"], 2),
    ):
        command = [sys.executable, "-I", "-W", "error", str(tmp_path / "check.py"), *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60, check=False
        )
        assert result.returncode == code, result.stderr
        assert "Traceback" not in result.stderr
        assert bool(result.stderr) == bool(code)
    module = [sys.executable, "-W", "error", "-m", "lipcert.check", str(path), "--quiet"]
    assert subprocess.run(module, capture_output=True, timeout=60, check=False).returncode == 0


def test_the_file_imports_numpy_and_the_standard_library_alone():
    roots = set()
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add(node.module.split(".")[0])
    assert roots <= set(sys.stdlib_module_names) | {"numpy"}
    assert not roots & {"pickle", "shelve", "marshal", "importlib"}


# --- False certificates ---


def layer_named(draft, op, nth=0):
    return [layer for layer in draft.layers if layer["op"] == op][nth]


def change(draft, layer, key, function):
    name = layer[key]
    draft.tensors[name] = function(draft.tensors[name].copy()).astype(draft.tensors[name].dtype)


def entry(position, value):
    def function(array):
        array.reshape(-1)[position] = value
        return array

    return function


def scaled_hex(text, factor):
    return (float.fromhex(text) * factor).hex()


def tighter(draft, op, nth, factor):
    change(draft, layer_named(draft, op, nth), "gamma", lambda v: v * np.float32(factor))


def signed_row_sums(draft):
    """The |·| forgotten: γ from Σ_j w_i·w_j, which for a block of ±w is as large as one likes."""
    layer = layer_named(draft, "residual_linear")
    weight = draft.tensors[layer["weight"]]
    weight[1::2] = weight[::2] * np.float32(-0.9)
    signed = np.abs((weight.astype(float) @ weight.T.astype(float)).sum(axis=1))
    draft.tensors[layer["gamma"]] = float32_below(1 / signed)
    draft.tensors[layer["witness"]] = np.ones(len(weight))


def strided_lags(draft):
    """γ as if the convolution had stride 2."""
    layer = layer_named(draft, "residual_conv")
    weight = np.abs(draft.tensors[layer["weight"]])
    draft.tensors[layer["weight"]] = weight
    draft.tensors[layer["gamma"]] = float32_below((1 - 2.0**-26) / overlaps(weight, (2, 2)).sum(axis=1))
    draft.tensors[layer["witness"]] = np.ones(len(weight))


def epsilon_in_one_place(draft):
    """The erratum: q_j/(q_i + ε)."""
    layer = layer_named(draft, "residual_linear", 1)
    weight = draft.tensors[layer["weight"]]
    a, q = np.abs(weight.astype(float) @ weight.T.astype(float)), draft.tensors[layer["witness"]]
    draft.tensors[layer["gamma"]] = float32_below(1 / ((a @ q) / (q + 0.01)))


def affine_strided_lags(draft, claimed):
    """[1, 1 | 1, −1] with stride 2, as two output channels: the lags that are multiples of 2 miss the overlap."""
    draft.layers, draft.explicit, draft.tensors = [], [], {}
    weight = np.array([[[[1, 1]]], [[[1, -1]]]], np.float32) / np.float32(math.sqrt(2)) * np.float32(1.2)
    draft.images = np.ones((3, 1, 2, 4), np.float32)
    options = {"stride": [1, 2], "padding": [0, 0], "padding_mode": "zeros", "groups": 1}
    draft.add("conv", claimed, weight=draft.tensor(weight), bias=None, **options).add("flatten")
    draft.top.update(layers=draft.layers, claims=[], probe={"indices": [], "logits": []}, input_shape=[1, 2, 4])
    draft.top["inputs"]["count"] = 3
    draft.top["lipschitz"] = claimed.hex()
    return np.linalg.norm(conv_matrix(weight, (1, 2, 4), stride=(1, 2))[0], 2)


def set_layer(op, nth=0, /, **values):
    return lambda draft: layer_named(draft, op, nth).update(values)


def set_top(**values):
    return lambda draft: draft.top.update(values)


def set_tensor(op, key, position, value, nth=0):
    return lambda draft: change(draft, layer_named(draft, op, nth), key, entry(position, value))


def in_claims(function):
    return lambda draft: function(draft.top["claims"])


def bigger_radius(claims):
    claims[2][2] = scaled_hex(claims[2][2], 1 + 1e-6)


def other_label(claims):
    claims[1][1] = (claims[1][1] + 1) % 5


def swap_layers(draft):
    index, shifted = (draft.layers.index(layer_named(draft, op)) for op in ("residual_linear", "scale"))
    draft.layers[index], draft.layers[shifted] = draft.layers[shifted], draft.layers[index]


def drop_layer(op, tensors=True):
    def function(draft):
        layer = layer_named(draft, op)
        draft.layers.remove(layer)
        if tensors:
            for key in ("weight", "gamma", "bias", "witness", "mean"):
                draft.tensors.pop(layer.get(key), None)

    return function


def probe_off(factor):
    def function(draft):
        draft.top["probe"]["logits"][1][2] = scaled_hex(draft.top["probe"]["logits"][1][2], factor)

    return function


def retype(op, key, dtype):
    def function(draft):
        name = layer_named(draft, op)[key]
        draft.tensors[name] = draft.tensors[name].astype(dtype)

    return function


REFUTED = {  # what is well formed and not true: what the checker must say it is, and how to make it
    "gamma of a tight layer": ("layer", lambda d: tighter(d, "residual_linear", 1, 1.05)),
    "gamma of a tight layer, slightly": ("layer", lambda d: tighter(d, "residual_linear", 1, 1 + 2e-6)),
    "gamma without witness": ("layer", lambda d: tighter(d, "residual_linear", 2, 1.05)),
    "gamma of a convolution": ("layer", lambda d: tighter(d, "residual_conv", 0, 8)),
    "gamma of a strided convolution": ("layer", lambda d: tighter(d, "residual_conv", 1, 8)),
    "gamma of a circular convolution": ("layer", lambda d: tighter(d, "residual_conv", 2, 8)),
    "gamma of a grouped convolution": ("layer", lambda d: tighter(d, "residual_conv", 3, 8)),
    "gamma of a convolution without witness": ("layer", lambda d: tighter(d, "residual_conv", 4, 8)),
    "signed row sums": ("layer", signed_row_sums),
    "strided lags": ("layer", strided_lags),
    "epsilon in one place": ("layer", epsilon_in_one_place),
    "radius": ("claims", in_claims(bigger_radius)),
    "radius of 1e300": ("claims", in_claims(lambda c: c[0].__setitem__(2, (1e300).hex()))),
    "label": ("claims", in_claims(other_label)),
    "smaller lipschitz": ("lipschitz", set_top(lipschitz=(1.2499999).hex())),
    "smaller lipschitz of a layer": ("layer", set_layer("residual_conv", lipschitz=(0.999).hex())),
    "smaller lipschitz of the pool": ("layer", set_layer("sum_pool", lipschitz=math.nextafter(1, 0).hex())),
    "smaller lipschitz of the head": ("layer", set_layer("linear", lipschitz=(0.5).hex())),
    "factor of the pool": ("layer", set_layer("sum_pool", factor=(0.51).hex())),
    "factor of the scale": ("layer", set_layer("scale", factor=(1.3).hex())),
    "dropped flip of sign": ("claims", drop_layer("scale")),
    "swapped layers": ("claims", swap_layers),
    "no centring": ("claims", drop_layer("centre")),
    "no residual layer": ("claims", drop_layer("residual_linear")),
    "bias": ("claims", set_tensor("residual_linear", "bias", 3, 0.7)),
    "bias of the head": ("claims", set_tensor("linear", "bias", 0, 9.0)),
    "weight of the head": ("layer", set_tensor("linear", "weight", 3, 9.0)),
    "huge bias": ("claims", set_tensor("residual_linear", "bias", 0, 3e38)),
    "other images": ("claims", lambda d: d.images.__setitem__(0, 255 - d.images[0])),
    "bytes not divided": ("claims", lambda d: d.top["inputs"].update(divide_by=None)),
    "probe": ("probe", probe_off(1.1)),
    "another padding": ("claims", set_layer("residual_conv", 2, padding_mode="zeros")),
}


MALFORMED = {  # what is no certificate, or not of this format
    "inf gamma": set_tensor("residual_linear", "gamma", 0, np.inf),
    "negative gamma": set_tensor("residual_linear", "gamma", 0, -1e-3),
    "nan gamma": set_tensor("residual_conv", "gamma", 0, np.nan),
    "nan bias": set_tensor("residual_conv", "bias", 0, np.nan),
    "inf weight": set_tensor("linear", "weight", 0, -np.inf),
    "zero witness": set_tensor("residual_conv", "witness", 0, 0.0),
    "negative witness": set_tensor("residual_conv", "witness", 0, -1.0),
    "witness out of range": set_tensor("residual_conv", "witness", 0, 1e-200),
    "float32 witness": retype("residual_conv", "witness", np.float32),
    "float16 weight": retype("residual_linear", "weight", np.float16),
    "bytes as weight": retype("residual_linear", "weight", np.uint8),
    "zero radius": in_claims(lambda c: c[0].__setitem__(2, (0.0).hex())),
    "negative radius": in_claims(lambda c: c[0].__setitem__(2, (-1.0).hex())),
    "decimal radius": in_claims(lambda c: c[0].__setitem__(2, "0.001")),
    "float radius": in_claims(lambda c: c[0].__setitem__(2, 0.001)),
    "infinite radius": in_claims(lambda c: c[0].__setitem__(2, "inf")),
    "nan radius": in_claims(lambda c: c[0].__setitem__(2, "nan")),
    "radius out of range": in_claims(lambda c: c[0].__setitem__(2, "0x1.0p+9999")),
    "radius in another spelling": in_claims(lambda c: c[0].__setitem__(2, "0x1.0p-0020")),
    "label no class": in_claims(lambda c: c[0].__setitem__(1, 5)),
    "negative label": in_claims(lambda c: c[0].__setitem__(1, -1)),
    "label true": in_claims(lambda c: c[0].__setitem__(1, True)),
    "index twice": in_claims(lambda c: c.insert(0, c[0])),
    "indices fall": in_claims(lambda c: c.reverse()),
    "index out of range": in_claims(lambda c: c[-1].__setitem__(0, 12)),
    "longer claim": in_claims(lambda c: c[0].append(0)),
    "claims null": set_top(claims=None),
    "format": set_top(format="lipcert-certificate-2"),
    "norm": set_top(norm="Linf"),
    "arithmetic": set_top(arithmetic="real"),
    "unknown field": set_top(note="trust me"),
    "missing field": lambda d: d.top.pop("probe"),
    "unknown field of a layer": set_layer("flatten", start=1),
    "unknown op": set_layer("flatten", op="reshape"),
    "op null": set_layer("flatten", op=None),
    "lipschitz a number": set_layer("flatten", lipschitz=1),
    "negative lipschitz": set_top(lipschitz=(-1.0).hex()),
    "unknown activation": set_layer("residual_linear", activation="gelu"),
    "unknown padding": set_layer("residual_conv", padding_mode="replicate"),
    "circular with too much padding": set_layer("residual_conv", 2, padding=[2, 1]),
    "circular with a stride that does not divide": set_layer("residual_conv", 2, stride=[3, 1]),
    "negative stride": set_layer("residual_conv", stride=[-1, 1]),
    "zero stride": set_layer("residual_conv", stride=[0, 1]),
    "stride true": set_layer("residual_conv", stride=[True, 1]),
    "negative padding": set_layer("residual_conv", padding=[-1, 1]),
    "huge padding": set_layer("residual_conv", padding=[10**17, 10**17]),
    "groups": set_layer("residual_conv", groups=3),
    "no groups": set_layer("residual_conv", groups=0),
    "huge channels": set_layer("pad_channels", channels=10**17),
    "fewer channels": set_layer("pad_channels", channels=3),
    "huge image": set_layer("pad_image", multiple=10**9),
    "empty pool": set_layer("sum_pool", kernel=[0, 2]),
    "pool that does not divide": set_layer("sum_pool", kernel=[3, 2]),
    "negative factor of the pool": set_layer("sum_pool", factor=(-0.5).hex()),
    "block that does not divide": set_layer("space_to_depth", block=3),
    "huge shape": set_top(input_shape=[3, 2**40, 2**40]),
    "negative shape": set_top(input_shape=[3, -7, -7]),
    "other shape": set_top(input_shape=[3, 49, 1]),
    "shape of four": set_top(input_shape=[1, 3, 7, 7]),
    "no layers": set_top(layers=[]),
    "layers an object": set_top(layers={}),
    "one layer": lambda d: d.top.update(layers=d.layers[:1]),
    "dropped head": drop_layer("linear"),
    "dropped layer, tensors left": drop_layer("residual_linear", tensors=False),
    "unused tensor": lambda d: d.tensors.update(extra=np.ones(3, np.float32)),
    "missing tensor": lambda d: d.tensors.pop("t0"),
    "tensor of another shape": lambda d: d.tensors.update(t0=np.ones(4, np.float32)),
    "path upwards": set_top(weights="../c/weights.safetensors"),
    "absolute path": set_top(weights="/etc/passwd"),
    "path of the folder": set_top(weights="."),
    "path with a null": set_top(weights="weights\0.safetensors"),
    "path a number": set_top(weights=7),
    "missing file": set_top(weights="nothing.safetensors"),
    "inputs file upwards": lambda d: d.top["inputs"].update(file="../c/inputs.safetensors"),
    "count": lambda d: d.top["inputs"].update(count=11),
    "divide by 256": lambda d: d.top["inputs"].update(divide_by=256),
    "probe index": lambda d: d.top["probe"]["indices"].__setitem__(0, 99),
    "probe shorter": lambda d: d.top["probe"]["logits"].pop(),
    "probe with a row too short": lambda d: d.top["probe"]["logits"][0].pop(),
    "images of float64": lambda d: setattr(d, "images", d.images.astype(float)),
    "a name that is no text": set_layer("flatten", name=["x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUTED)
def test_false_certificates_are_refuted(name, tmp_path, capsys):
    draft = draft_of("sll")
    reason, mutate = REFUTED[name]
    mutate(draft)
    path = draft.save(tmp_path / "c")
    assert verdict(path, capsys) == 1
    assert any(text.startswith(reason) for text in checker.check(path).refuted)


REFLECTED = {  # mutation → exit code
    "a longer vector": (set_tensor("householder", "first", 0, 1.2), 1),
    "a claim below a long vector's constant": (set_layer("householder", 1, lipschitz=(3.4).hex()), 1),
    "other channels": (set_layer("take_channels", first=5), 1),
    "channels past the end": (set_layer("take_channels", first=7), 2),
    "a negative start": (set_layer("take_channels", first=-1), 2),
    "no channels": (set_layer("take_channels", count=0), 2),
    "start true": (set_layer("take_channels", first=True), 2),
    "a vector too few": (lambda d: d.tensors.update({d.layers[1]["first"]: np.ones(2, np.float32)}), 2),
    "a vector not finite": (set_tensor("householder", "second", 0, np.nan), 2),
    "an odd number of channels": (set_layer("take_channels", first=6, count=3), 2),
}


@pytest.mark.parametrize("name", REFLECTED)
def test_reflections_and_taken_channels_are_checked(name, tmp_path, capsys):
    draft = draft_of("reflected")
    mutate, code = REFLECTED[name]
    mutate(draft)
    assert verdict(draft.save(tmp_path / "c"), capsys) == code


def widened(key, axis):
    """The first wave layer with one entry more along an axis of that tensor."""

    def function(draft):
        name = draft.layers[0][key]
        draft.tensors[name] = np.concatenate([draft.tensors[name], draft.tensors[name].take([0], axis)], axis)

    return function


def replaced(key, function):
    """That tensor of the first wave layer, changed as a whole."""
    return lambda d: d.tensors.update(
        {d.layers[0][key]: np.ascontiguousarray(function(d.tensors[d.layers[0][key]]))}
    )


WAVES = {  # mutation → exit code
    "blocks stretched": (replaced("weight", lambda t: t * np.float32(1.01)), 1),
    "one entry": (set_tensor("torus", "weight", 7, 0.99), 1),
    "rows stretched": (replaced("rows", lambda t: t * np.float32(1.01)), 1),
    "gamma of a residual": (set_tensor("residual_torus", "gamma", 0, 1.5), 1),
    "a smaller claim": (set_layer("torus", lipschitz=(0.9).hex()), 1),
    "a smaller claim of a residual above 1": (set_layer("residual_torus", 1, lipschitz=(1.0).hex()), 1),
    "another function": (replaced("rows", lambda t: t[::-1]), 1),
    "rows of zeros": (replaced("rows", np.zeros_like), 2),
    "tiny rows": (replaced("rows", lambda t: t * np.float32(2.0**-100)), 2),
    "waves above 1": (set_tensor("torus", "rows", 0, 1.01), 2),
    "one wave more": (widened("rows", 0), 2),
    "one pixel more": (widened("columns", 1), 2),
    "one block more": (widened("weight", 0), 2),
    "one row of a block more": (widened("weight", 1), 2),
    "one column of a block more": (widened("weight", 2), 2),
    "a wave not finite": (set_tensor("torus", "columns", 0, np.nan), 2),
    "gamma negative": (set_tensor("residual_torus", "gamma", 0, -1.0), 2),
    "another activation": (set_layer("residual_torus", activation="gelu"), 2),
    "a witness": (set_layer("residual_torus", witness=None), 2),
    "rows that are no matrix": (lambda d: d.layers[0].update(rows=d.layers[0]["bias"]), 2),
    "blocks as rows": (lambda d: d.layers[0].update(rows=d.layers[0]["weight"]), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", WAVES)
def test_convolutions_in_a_basis_of_waves_are_checked(name, tmp_path, capsys):
    draft = draft_of("waves")
    mutate, code = WAVES[name]
    mutate(draft)
    assert verdict(draft.save(tmp_path / "c"), capsys) == code


def test_the_strided_lags_of_an_affine_convolution_are_no_bound(tmp_path):
    draft = draft_of("conv")
    assert affine_strided_lags(draft, 1.0) > 1
    assert verdict(draft.save(tmp_path / "c")) == 1
    affine_strided_lags(draft, 1.5)
    assert verdict(draft.save(tmp_path / "c")) == 0


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_certificates_are_not_read(name, tmp_path, capsys):
    draft = draft_of("sll")
    MALFORMED[name](draft)
    assert verdict(draft.save(tmp_path / "c"), capsys) == 2


@pytest.mark.parametrize("kind", ["binary", "conv", "sll", "waves", "smooth"])
def test_the_rounding_error_counts_twice(kind, tmp_path):
    """With half the error the radius is refused, with the error of the format's page it is accepted."""
    draft = NETWORKS[kind]()
    for errors, good in ((0.0, False), (1.2, False), (3.2, True)):
        report = checker.check(draft.finish(errors).save(tmp_path / "c"))
        assert report.verified == (report.claims if good else 0)


def test_the_other_sign_is_the_other_class(tmp_path):
    draft = draft_of("binary")
    for claim in draft.top["claims"]:
        claim[1] = 1 - claim[1]
    assert {claim[1] for claim in draft.top["claims"]} == {0, 1}
    assert checker.check(draft.save(tmp_path / "c")).verified == 0


@pytest.mark.parametrize("kind", ["binary", "conv", "sll"])
def test_no_layer_may_claim_less_than_its_norm(kind, tmp_path):
    """Each layer with 0.9999 of a constant that two points attain, or of the largest singular value."""
    for i, explicit in enumerate(draft_of(kind).explicit):
        draft = draft_of(kind)
        layer = draft.layers[i]
        attained = float.fromhex(layer["lipschitz"])
        if layer["op"] in ("linear", "conv"):
            attained = np.linalg.norm(explicit[0].astype(float), 2)
        layer["lipschitz"] = float(0.9999 * attained).hex()
        assert any(text.startswith(f"layer {i} ") for text in checker.check(draft.save(tmp_path / "c")).refuted)


@pytest.mark.parametrize("witness", [True, False])
def test_the_constant_of_a_residual_layer_is_two_rho_minus_one(witness, tmp_path):
    draft = Draft(0, [9], np.ones((3, 9), np.float32), None)
    draft.residual_linear(7, witness=witness, tight=True).finish()
    layer = draft.layers[0]
    draft.tensors[layer["gamma"]] *= np.float32(1.2)
    weight, gamma = draft.tensors[layer["weight"]].astype(float), draft.tensors[layer["gamma"]].astype(float)
    rho = np.linalg.norm(np.sqrt(gamma)[:, None] * weight, 2) ** 2
    draft.top.update(claims=[], probe={"indices": [], "logits": []})
    assert rho > 1.19
    for factor, code in ((1 - 1e-9, 1), (1 + 1e-9, 0)):
        layer["lipschitz"] = draft.top["lipschitz"] = float((2 * rho - 1) * factor).hex()
        assert verdict(draft.save(tmp_path / "c")) == code


def test_a_probe_off_by_a_little_is_an_alarm_and_no_verdict(tmp_path, capsys):
    draft = draft_of("sll")
    probe_off(1 + 3e-5)(draft)
    path = draft.save(tmp_path / "c")
    assert verdict(path, capsys) == 0
    report = checker.check(path)
    assert report.ok
    assert "heuristic" in report.alarms[0]
    assert any("alarm" in line for line in report.lines)


def with_bytes(file, function):
    return lambda folder: (folder / file).write_bytes(function((folder / file).read_bytes()))


def with_text(function):
    return with_bytes("certificate.json", lambda data: function(data.decode()).encode())


def with_header(function, file="weights.safetensors"):
    def bytes_(data):
        (size,) = struct.unpack("<Q", data[:8])
        text = function(json.loads(data[8 : 8 + size]))
        text = json.dumps(text).encode() if not isinstance(text, bytes) else text
        return struct.pack("<Q", len(text)) + text + data[8 + size :]

    return with_bytes(file, bytes_)


def edit(function):
    def edited(header):
        function(header)
        return header

    return edited


def link(folder):
    (folder.parent / "elsewhere").mkdir()
    shutil.move(folder / "weights.safetensors", folder.parent / "elsewhere" / "w")
    (folder / "weights.safetensors").symlink_to(folder.parent / "elsewhere" / "w")


def replace_by(make):
    def function(folder):
        (folder / "weights.safetensors").unlink()
        make(folder / "weights.safetensors")

    return function


def tensor(**values):
    return with_header(edit(lambda header: header["t0"].update(values)))


def overlap(header):
    header["t1"].update(data_offsets=header["t0"]["data_offsets"], shape=header["t0"]["shape"])


def header_text(old, new):
    return with_header(lambda header: json.dumps(header).encode().replace(old, new, 1))


def text(old, new):
    return with_text(lambda whole: whole.replace(old, new, 1))


FILES = {  # what is done to the bytes, and the verdict
    "tensor byte": (1, with_bytes("weights.safetensors", lambda d: d[:-5] + bytes([d[-5] ^ 1]) + d[-4:])),
    "image byte": (1, with_bytes("inputs.safetensors", lambda d: d[:-5] + bytes([d[-5] ^ 1]) + d[-4:])),
    "hash": (1, text('"t0": "', '"t0": "0')),
    "hash of the inputs": (1, text('"sha256": "', '"sha256": "0')),
    "dtype with the same bytes": (2, tensor(dtype="I32")),
    "empty weights": (2, with_bytes("weights.safetensors", lambda d: b"")),
    "seven bytes": (2, with_bytes("weights.safetensors", lambda d: d[:7])),
    "header cut": (2, with_bytes("weights.safetensors", lambda d: d[:60])),
    "weights cut": (2, with_bytes("weights.safetensors", lambda d: d[:-1])),
    "weights longer": (2, with_bytes("weights.safetensors", lambda d: d + b"\0")),
    "inputs cut": (2, with_bytes("inputs.safetensors", lambda d: d[:-1])),
    "header length 2^62": (2, with_bytes("weights.safetensors", lambda d: struct.pack("<Q", 2**62) + d[8:])),
    "header length 2^64 - 1": (2, with_bytes("weights.safetensors", lambda d: b"\xff" * 8 + d[8:])),
    "header length one more": (2, with_bytes("weights.safetensors", lambda d: bytes([d[0] + 1]) + d[1:])),
    "header a list": (2, with_header(lambda h: [h])),
    "header deep": (2, with_header(lambda h: b"[" * 200_000)),
    "header with a key twice": (2, header_text(b'"t1"', b'"t0"')),
    "header with an unknown field": (2, tensor(note=1)),
    "header with bad metadata": (2, with_header(edit(lambda h: h.update(__metadata__=[1])))),
    "huge shape": (2, tensor(shape=[2**40, 2**20])),
    "huge shape and offsets": (2, tensor(shape=[2**50], data_offsets=[0, 2**52])),
    "negative shape": (2, tensor(shape=[-3])),
    "empty shape": (2, tensor(shape=[0], data_offsets=[0, 0])),
    "overlap": (2, with_header(edit(overlap))),
    "offsets swapped": (2, tensor(data_offsets=[12, 0])),
    "negative offsets": (2, tensor(data_offsets=[-12, 0])),
    "offsets of 18 digits": (2, tensor(data_offsets=[0, 10**17])),
    "offsets of 5000 digits": (2, header_text(b"[0, 12]", b"[0, " + b"9" * 5000 + b"]")),
    "link out of the folder": (2, link),
    "a folder": (2, replace_by(lambda path: path.mkdir())),
    "a pipe": (2, replace_by(lambda path: os.mkfifo(path))),
    "certificate a folder": (2, lambda f: ((f / "certificate.json").unlink(), (f / "certificate.json").mkdir())),
    "certificate empty": (2, with_text(lambda t: "")),
    "certificate cut": (2, with_text(lambda t: t[:-1])),
    "certificate longer": (2, with_text(lambda t: t + "{}")),
    "certificate no text": (2, with_bytes("certificate.json", lambda d: b"\xff\xfe" + d)),
    "certificate in UTF-16": (2, with_bytes("certificate.json", lambda d: d.decode().encode("utf-16"))),
    "certificate null": (2, with_text(lambda t: "null")),
    "certificate deep": (2, with_text(lambda t: "[" * 100_000 + "]" * 100_000)),
    "deep inside": (2, text('"claims": [', '"claims": [' + '{"a":' * 100_000)),
    "key twice": (2, text('"norm": "L2"', '"norm": "L2", "norm": "L2"')),
    "key twice in a layer": (2, text('"op": "flatten"', '"op": "flatten", "op": "flatten"')),
    "NaN": (2, text('"count": 12', '"count": NaN')),
    "Infinity": (2, text('"count": 12', '"count": -Infinity')),
    "float": (2, text('"count": 12', '"count": 12.0')),
    "exponent": (2, text('"count": 12', '"count": 12e0')),
    "integer of a million digits": (2, text('"count": 12', '"count": 1' + "0" * 10**6)),
    "lone surrogate in a name": (0, text('"name": "flatten', r'"name": "\ud800\u001b[2J')),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_tampered_files(name, tmp_path, capsys):
    draft_of("sll").save(tmp_path / "c")
    code, function = FILES[name]
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    function(tmp_path / "c")
    after = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir() if path.is_file()}
    assert before != after or name == "link out of the folder"
    assert verdict(tmp_path / "c" / "certificate.json", capsys) == code


def test_no_size_is_believed_before_it_is_compared_with_the_file(tmp_path):
    """With 600 MB of address space beyond the start, every absurd size is refused, not allocated."""
    program = (
        "import resource, sys; from lipcert import check\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 600 * 2**20,) * 2)\n"
        "print([check.main([path]) for path in sys.argv[1:]])"
    )
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    paths = []
    for name, function in [(n, f) for n, f in MALFORMED.items() if "huge" in n]:
        draft = draft_of("sll")
        function(draft)
        paths.append(str(draft.save(tmp_path / name.replace(" ", "-"))))
    result = subprocess.run(
        [sys.executable, "-c", program, *paths], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout.strip() == str([2] * len(paths)), result.stderr
    assert len(paths) >= 4


# --- Random damage ---


def meaning(folder):
    """What a certificate says, read without the checker: (everything that must not change, claims)."""
    top = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    tensors = {}
    for file in (top["weights"], top["inputs"]["file"]):
        data = (folder / file).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        for name, entry_ in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                start, stop = entry_["data_offsets"]
                tensors[name] = (entry_["dtype"], entry_["shape"], data[8 + size + start : 8 + size + stop])
    layers = []
    for layer in top["layers"]:
        layer = {key: tensors[v] if isinstance(v, str) and v in tensors else v for key, v in layer.items()}
        layers.append({key: v for key, v in layer.items() if key not in ("name", "lipschitz")})
    images = tensors[top["inputs"]["tensor"]]
    fixed = (top["format"], top["norm"], top["arithmetic"], layers, images, top["inputs"]["divide_by"])
    return fixed, {i: (label, float.fromhex(radius)) for i, label, radius in top["claims"]}


def assert_not_more(folder, original):
    """Never an exception; and if it is accepted, then the network is the same and no claim is stronger."""
    try:
        report = checker.check(folder / "certificate.json")
    except checker.Malformed:
        return
    if report.ok:
        fixed, claims = meaning(folder)
        assert fixed == original[0]
        for i, (label, radius) in claims.items():
            assert label == original[1][i][0]
            assert radius <= original[1][i][1] * (1 + 1e-9)  # the room of 2E that the format leaves


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    result = {}
    for kind in NETWORKS:
        folder = tmp_path_factory.mktemp(kind) / "c"
        draft_of(kind).save(folder)
        result[kind] = (folder, meaning(folder), {p.name: p.read_bytes() for p in folder.iterdir()})
    return result


FUZZ = settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@FUZZ
@given(
    kind=st.sampled_from(["conv", "binary", "sll"]),
    file=st.sampled_from(["certificate.json", "weights.safetensors", "inputs.safetensors"]),
    where=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=3),
    head=st.booleans(),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
def test_damaged_bytes(saved, kind, file, where, head, cut):
    folder, original, files = saved[kind]
    data = bytearray(files[file])
    for place, bit in where:
        data[int(place * min(len(data), 2000 if head else len(data)))] ^= 1 << bit
    data = data if cut is None else data[: int(cut * len(data))]
    try:
        (folder / file).write_bytes(bytes(data))
        assert_not_more(folder, original)
    finally:
        (folder / file).write_bytes(files[file])


def places(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


NASTY = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    255,
    2**31,
    10**17,
    "",
    "x",
    "relu",
    "linear",
    "flatten",
    "zeros",
    "circular",
]
NASTY += [
    [],
    [1],
    [0, 0],
    [1, 1],
    [2, 2],
    {},
    "0x1.0000000000000p+0",
    "0x0.0p+0",
    "-0x1.0000000000000p+0",
    "t1",
    "t2",
]
NASTY += ["0x1.0000000000000p-1", "0x1.0000000000000p+1", "nan", "inf", "0x1.fffffffffffffp+1023"]


@settings(FUZZ, max_examples=500)
@given(kind=st.sampled_from(["conv", "binary", "sll", "waves", "smooth"]), data=st.data())
def test_replaced_values(saved, kind, data):
    folder, original, files = saved[kind]
    top = json.loads(files["certificate.json"])
    for _ in range(data.draw(st.integers(1, 2))):
        every = [path for path in places(top) if path]
        path = data.draw(st.sampled_from(every))
        *parents, key = path
        parent = top
        for step in parents:
            parent = parent[step]
        action = data.draw(st.sampled_from(["nasty", "nasty", "other", "drop", "bigger"]))
        if action == "drop":
            parent.pop(key)
        elif action == "bigger" and isinstance(parent[key], str) and re.match("-?0x", parent[key]):
            parent[key] = scaled_hex(parent[key], data.draw(st.sampled_from([1 + 1e-7, 1.01, 2.0, 0.5, 1 - 1e-7])))
        elif action == "other":
            value = top
            for step in data.draw(st.sampled_from(every)):
                value = value[step]
            parent[key] = copy.deepcopy(value)
        else:
            parent[key] = copy.deepcopy(data.draw(st.sampled_from(NASTY)))
    try:
        (folder / "certificate.json").write_text(json.dumps(top), encoding="utf-8")
        assert_not_more(folder, original)
    finally:
        (folder / "certificate.json").write_bytes(files["certificate.json"])


# --- The proofs, against brute force ---


@pytest.mark.parametrize("kind", NETWORKS)
def test_no_point_of_a_ball_has_another_class(kind):
    """Random points and steepest descent of the smallest margin, on the sphere just inside each radius."""
    draft = draft_of(kind)
    rng, images = np.random.default_rng(0), draft.inputs().astype(float)
    for index, label, text in draft.claims[:6]:
        radius, x = float.fromhex(text) * (1 - 1e-12), images[index]

        def margins(points, label=label):
            f = draft.run(points)[-1]
            if f.shape[1] == 1:
                return f[:, 0] * (1 if label else -1)
            return f[:, label] - np.delete(f, label, axis=1).max(axis=1)

        shape, size = x.shape, x.size
        steps = rng.standard_normal((60, size))
        steps *= radius / np.linalg.norm(steps, axis=1, keepdims=True)
        assert margins(x + steps.reshape(-1, *shape)).min() > 0
        step, small = steps[0], 1e-3 * radius
        for _ in range(6):
            around = (x.ravel() + step + small * np.concatenate([np.eye(size), -np.eye(size)])).reshape(-1, *shape)
            value = margins(around)
            slope = value[:size] - value[size:]
            step = -radius * slope / max(np.linalg.norm(slope), 1e-300)
            assert margins((x.ravel() + step).reshape(1, *shape)).min() > 0


def test_the_radius_of_an_affine_network_is_exact(tmp_path):
    """Just inside the class holds, just outside it does not; and no larger radius passes the checker."""
    draft = draft_of("affine")
    weight, images = draft.tensors[draft.layers[0]["weight"]].astype(float), draft.inputs().astype(float)
    for index, label, text in draft.claims:
        x, radius, f = images[index], float.fromhex(text), draft.run(images[index : index + 1])[-1][0]
        apart = weight[label] - weight
        size = np.linalg.norm(apart, axis=1)
        rival = min((j for j in range(len(f)) if j != label), key=lambda j: (f[label] - f[j]) / size[j])
        way = -apart[rival] / size[rival]
        inside, outside = (draft.run((x + way * radius * t)[None])[-1][0] for t in (1 - 1e-9, 1 + 1e-9))
        assert inside.argmax() == label
        assert outside.argmax() == rival
    for k in range(len(draft.claims)):
        false = draft_of("affine")
        false.top["claims"][k][2] = scaled_hex(false.top["claims"][k][2], 1 + 1e-12)
        report = checker.check(false.save(tmp_path / "c"))
        assert report.verified == len(draft.claims) - 1


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
    groups, stride, (kh, kw) = case["groups"], case["stride"], case["kernel"]
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
        paddings = [((kh - 1) // 2, (kw - 1) // 2)] + (
            [(0, 0), (kh, kw)] if case["padding_mode"] == "zeros" else []
        )
        for padding in paddings:
            matrix, shape = conv_matrix(weight, (case["c"], 12, 12), stride, padding, case["padding_mode"], groups)
            scaled = matrix * np.repeat(np.sqrt(gamma), shape[1] * shape[2])[:, None]
            best = max(best, np.linalg.norm(scaled, 2))
            assert np.linalg.norm(np.abs(scaled), 2) <= kappa
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
        padding = tuple((k - 1) // 2 for k in kernel_size)
        matrix, _ = conv_matrix(weight, (6, *image), stride, padding, "circular", groups)
        true = np.linalg.norm(matrix, 2)
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


def test_filters_on_disjoint_channels_are_proved_whatever_the_witness(tmp_path):
    """The library proves ρ ≤ 1 for them, and so must the checker: nothing is lost where supports do not overlap."""
    draft = Draft(0, [2, 1, 5], np.random.default_rng(0).standard_normal((6, 2, 1, 5)).astype(np.float32), None)
    draft.residual_conv(2, (1, 2), padding=[0, 1])
    layer = draft.layers[0]
    weight = draft.tensors[layer["weight"]]
    weight[0, 1] = weight[1, 0] = 0
    q = np.exp([0.0, 20.0])
    gamma = float32_below((1 - 2.0**-26) / ((overlaps(weight) @ q) / q))
    draft.tensors[layer["witness"]], draft.tensors[layer["gamma"]] = q, gamma
    matrix, out, _, bias = draft.explicit[0]
    matrix, _ = conv_matrix(weight, (2, 1, 5), padding=[0, 1])
    draft.explicit[0] = (matrix, out, gamma, bias)
    draft.add("flatten", shape=(10,)).linear(3).finish()
    report = checker.check(draft.save(tmp_path / "c"))
    assert report.ok, report.refuted
    tighter(draft, "residual_conv", 0, 1.001)
    assert not checker.check(draft.save(tmp_path / "c")).ok


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


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_error_bound_holds_and_is_that_of_the_format(kind, tmp_path):
    """err ≥ ‖float64 − extended precision‖ and the like for float32; and err agrees with the table in the page."""
    draft = draft_of(kind)
    certificate = checker.read(draft.save(tmp_path / "c"))
    layers, x = checker.build_all(certificate), certificate.inputs(range(12))
    exact = draft.run(x, np.longdouble)
    for count in range(1, len(layers) + 1):
        value, err, z = checker.forward(layers[:count], x, np.zeros(12), checker.FLOAT64)
        _, err32, _ = checker.forward(layers[:count], x, np.zeros(12), checker.FLOAT32)
        away = np.linalg.norm((value - exact[count]).reshape(12, -1).astype(float), axis=1)
        assert (away <= err * (1 + 1e-3)).all()  # longdouble itself is 2^-11 of it
        away32 = draft.run(x.astype(np.float32), np.float32)[count].astype(float) - exact[count]
        assert (np.linalg.norm(away32.reshape(12, -1).astype(float), axis=1) <= err32 * (1 + 1e-3)).all()
        plain = np.zeros(12)
        for k in range(count):
            norm = np.linalg.norm(exact[k].reshape(12, -1).astype(float), axis=1) + 2 * plain
            constant = float.fromhex(draft.layers[k]["lipschitz"])
            plain = constant * plain + np.array([draft.rounding(k, size) for size in norm])
        assert (err <= plain * 1.5 + 1e-200).all()  # κ of the checker is that of a large image
        assert (err >= plain * 0.5).all()
        assert (z >= np.linalg.norm(value.reshape(12, -1), axis=1)).all()


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_error_bound_holds_everywhere_in_the_ball(kind, tmp_path):
    """The trap of uniformity: a bound at x says nothing of x', whose values and errors may be far larger."""
    draft = draft_of(kind)
    certificate = checker.read(draft.save(tmp_path / "c"))
    layers, x = checker.build_all(certificate), certificate.inputs(range(12))
    for radius in (1e-3, 1e6):
        step = np.random.default_rng(0).standard_normal(x.shape)
        size = np.linalg.norm(step.reshape(12, -1), axis=1).reshape(-1, *[1] * (x.ndim - 1))
        other = x + 0.999 * radius * step / size
        computed, exact = draft.run(other), draft.run(other, np.longdouble)
        for count in range(1, len(layers) + 1):
            _, err, z = checker.forward(layers[:count], x, np.full(12, radius), checker.FLOAT64)
            away = (computed[count] - exact[count]).astype(float).reshape(12, -1)
            assert (np.linalg.norm(away, axis=1) <= err * (1 + 1e-3)).all()
            assert (np.linalg.norm(computed[count].reshape(12, -1), axis=1) <= z).all()


@pytest.mark.parametrize("kind", ["sll", "conv"])
def test_a_convolution_and_its_adjoint_are_the_explicit_matrix(kind, tmp_path):
    draft = draft_of(kind)
    layers = checker.build_all(checker.read(draft.save(tmp_path / "c")))
    rng = np.random.default_rng(0)
    for layer, explicit in zip(layers, draft.explicit, strict=True):
        if "conv" in layer.op:
            conv, matrix = layer.parts.conv, explicit[0].astype(float)
            x, y = rng.standard_normal((2, *conv.image)), rng.standard_normal((2, len(matrix)))
            assert np.allclose(conv.forward(x).reshape(2, -1), x.reshape(2, -1) @ matrix.T, atol=1e-12)
            shaped = y.reshape(2, -1, *conv.out)
            assert np.allclose(conv.adjoint(shaped).reshape(2, -1), y @ matrix, atol=1e-12)


# --- Activations ---


ASSUMED = {  # activations of two layers, and what the certificate has to say
    ("relu", "leaky_relu"): [],
    ("tanh", "relu"): ["tanh within 8 ulp"],
    ("tanh", "tanh"): ["tanh within 8 ulp"],
    ("softplus", "elu"): ["elu within 8 ulp", "softplus within 8 ulp"],
    ("sigmoid", "leaky_relu"): ["sigmoid within 8 ulp"],
}


@pytest.mark.parametrize("names", ASSUMED, ids="-".join)
def test_assumptions_about_the_platform_are_listed_and_printed(names, tmp_path, capsys):
    rng = np.random.default_rng(0)
    draft = Draft(0, [5], rng.standard_normal((12, 5)).astype(np.float32), None)
    for name in names:
        draft.residual_linear(4, activation=name)
    path = draft.linear(3).finish().save(tmp_path / "c")
    report = checker.check(path)
    assert report.ok, report.refuted
    assert list(report.assumes) == ASSUMED[names] == draft.top["assumes"]
    printed = [line for line in report.lines if line.startswith("assumed: ")]
    assert bool(printed) == bool(report.assumes)
    assert all(text in printed[0] for text in report.assumes)
    checker.main([str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["assumes"] == ASSUMED[names]
    right = ASSUMED[names]
    for wrong in (
        [*right, "tanh within 8 ulp"],
        ["relu within 8 ulp"],
        right[:-1],
        right[::-1],
        None,
        "",
        {},
        [[]],
    ):
        if wrong != right:
            draft.top["assumes"] = wrong
            assert verdict(draft.save(tmp_path / "c"), capsys) == 2


def test_another_activation_is_another_function(tmp_path):
    """Each activation in the place of each other one: the claims or the probe do not hold, or the list is wrong."""
    for name, other in itertools.permutations(SIGMAS, 2):
        rng = np.random.default_rng(0)
        draft = Draft(0, [5], rng.standard_normal((12, 5)).astype(np.float32), None)
        draft.residual_linear(9, activation=name).residual_linear(9, activation=name).linear(3).finish()
        for layer in draft.layers[:2]:
            layer["activation"] = other
        draft.top["assumes"] = [f"{other} within 8 ulp"] if other in SMOOTH else []
        assert verdict(draft.save(tmp_path / "c")) == 1, (name, other)


def test_the_error_of_an_activation_that_is_not_zero_at_zero(tmp_path):
    """σ(0) is rounded even where nothing comes in: √(positions·Σγ)|σ(0)| is part of what σ can reach."""
    for name, (_, roundings, at_zero) in SIGMAS.items():
        draft = Draft(0, [2, 3, 3], np.zeros((3, 2, 3, 3), np.float32), None)
        draft.residual_conv(4, activation=name)
        layer = draft.layers[0]
        draft.tensors[layer["bias"]] *= 0
        draft.explicit[0] = (*draft.explicit[0][:3], draft.tensors[layer["bias"]])
        draft.add("flatten", shape=(18,)).finish()
        layers = checker.build_all(checker.read(draft.save(tmp_path / "c")))
        error = float(layers[0].rounding.error(np.zeros(1), checker.FLOAT64)[0])
        start = at_zero * math.sqrt(9 * float(draft.tensors[layer["gamma"]].astype(float).sum()))
        assert 2 * layers[0].rounding.root * g(1 + roundings) * start <= error
        assert error <= 1000 * U * start + 1e-200
        assert error == pytest.approx(float(draft.rounding(0, 0.0)), rel=0.5, abs=1e-200)


# --- Certificates that the library writes ---


def hostile_filters(rng):
    """A residual convolution with filters of disjoint support and scales, and q from e⁻²⁰ to e²⁰."""
    groups = rng.choice([1, 2])
    channels, hidden = groups * rng.choice([1, 2, 3]), groups * rng.choice([1, 2, 3, 5])
    size, stride = rng.choice([(1, 2), (2, 1), (1, 3), (3, 3), (2, 3)]), rng.choice([1, 1, 2, (1, 2)])
    mode = rng.choice(["zeros", "circular"]) if all(k % 2 for k in size) else "zeros"
    layer = lc.ResidualConv2d(channels, hidden, size, stride=stride, groups=groups, padding_mode=mode)
    with torch.no_grad():
        for name, value in layer.named_parameters():
            value.copy_(torch.randn_like(value) if value.ndim > 1 else torch.empty_like(value).uniform_(-20, 20))
            if value.ndim > 1 and rng.random() < 0.7:
                used = torch.arange(value.shape[1]) == torch.arange(len(value))[:, None] % value.shape[1]
                value *= used[:, :, None, None]
            if value.ndim > 1 and rng.random() < 0.3:
                value *= torch.empty(len(value)).uniform_(-20, 20).exp()[:, None, None, None]
            if name == "bias":
                value /= 20
    return layer, (channels, 4, 6)


def hostile_layer(rng):
    """One of the table under one of its hostile parameters."""
    entry = LAYERS[rng.choice(sorted(LAYERS))]
    layer = entry.make()
    with torch.no_grad():
        HOSTILE[rng.choice(sorted(HOSTILE))](layer)
    fit(layer)
    return layer, entry.shape


@pytest.mark.parametrize("make", [hostile_filters, hostile_layer])
def test_what_the_library_certifies_is_not_refuted(make, tmp_path):
    """Hostile networks through freeze, chain, certify and the writer: every certificate that is written holds."""
    written = 0
    for seed in range(40):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        layer, shape = make(rng)
        size = layer.double()(torch.zeros(1, *shape, dtype=torch.float64)).numel()
        images = torch.randn(4, *shape)
        network = nn.Sequential(layer.float(), nn.Flatten(), nn.Linear(size, rng.choice([1, 3])))
        network = network if len(shape) > 1 else nn.Sequential(network[0], network[2])
        try:
            frozen = lc.freeze(network)
            links = chain(frozen, shape)
            with torch.no_grad():
                logits = copy.deepcopy(frozen).double()(images.double())
            labels = logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
            path = write_certificate(tmp_path / "c", links, frozen, images, lc.certify(links, images, labels))
        except lc.NotCertified:
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        numbers = [float.fromhex(value) for row in content["probe"]["logits"] for value in row]
        if len(shape) in (1, 3) and all(map(math.isfinite, numbers)):  # else the format has no such certificate
            content.setdefault("assumes", [])
            path.write_text(json.dumps(content), encoding="utf-8")
            report = checker.check(path)
            assert report.ok, (seed, report.refuted)
            written += 1
    assert written > 20
