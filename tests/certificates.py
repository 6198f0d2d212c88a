"""A writer of certificates in numpy, with explicit matrices. It shares nothing with the checker but the format.

``Builder`` writes any nodes. ``Draft`` builds chains of nodes, evaluates them itself in any precision, and claims
the radii that the page allows.
"""

import copy
import hashlib
import itertools
import json
import math
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from lipcert import check as checker

U = 2.0**-53
ONE, ZERO = (1.0).hex(), (0.0).hex()
# Functions that the platform must compute within 8 units in the last place.
SMOOTH = {"elu", "celu", "selu", "tanh", "sigmoid", "softplus", "logsigmoid", "gelu", "silu", "mish", "tanhshrink"}
SMOOTH |= {"softmax", "log_softmax"}
# Activations of residual nodes in any precision, how many roundings each counts for, and |σ(0)|.
SIGMAS = {
    "relu": (lambda x: np.maximum(x, 0), 0, 0.0),
    "leaky_relu": (lambda x: np.maximum(x, x.dtype.type(0.01) * x), 1, 0.0),
    "elu": (lambda x: np.maximum(x, 0) + np.expm1(np.minimum(x, 0)), 16, 0.0),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 16, math.log(2)),
    "tanh": (np.tanh, 16, 0.0),
    "sigmoid": (lambda x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))), 16, 0.5),
}


def g(n, u=U):
    return n * u / (1 - n * u)


def float32_below(values):
    values = np.asarray(values)
    down = values.astype(np.float32)
    return np.where(down > values, np.nextafter(down, np.float32(0)), down)


def float_above(value):
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


# --- Files ---


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
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def verdict(path, capsys=None):
    """The exit code. A refusal is one line of ASCII, and an acceptance says nothing on stderr."""
    code = checker.main([str(path)])
    if capsys is not None:
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "cannot be checked" not in err  # what the checker says of its own mistakes
        assert err.count("\n") == (code != 0), err
        assert out.isascii()
        assert err.isascii()
    return code


# It limits the memory that is allocated, not what is mapped: a sparse file may be large.
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


def build_all(certificate):
    """The nodes as the checker has them, planned and proved."""
    budget = checker.Budget()
    nodes = checker.plan_all(certificate, budget)
    checker.prove_all(nodes, budget)
    return nodes


class Builder:
    """A certificate being written: ``nodes``, ``tensors``, ``images``, and ``top`` with the rest of its JSON."""

    def __init__(self, shape, count=4, seed=0, scale=1.0, images=None, divide_by=None):
        self.rng = np.random.default_rng(seed)
        if images is None:
            images = (scale * self.rng.standard_normal((count, *shape))).astype(np.float32)
        self.images, self.nodes, self.tensors = images, [], {}
        source = {"file": "inputs.safetensors", "tensor": "images", "divide_by": divide_by}
        self.top = {
            **{"format": "lipcert-certificate-2", "norm": "L2", "arithmetic": "float64"},
            **{"input_shape": list(shape), "weights": "weights.safetensors", "lipschitz": ONE},
            "inputs": source | {"count": len(images), "about": "noise"},
            **{"claims": [], "probe": {"indices": [], "logits": []}},
        }

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

    def repeat(self, count):
        """Append the last node so many times; all name the same tensors."""
        first = self.nodes[-1]
        for i in range(count):
            self.nodes.append({**first, "name": f"m{i}", "inputs": [self.nodes[-1]["name"]]})
        return self

    def claims_lipschitz(self, value):
        self.top["lipschitz"] = float(value).hex()
        return self

    def has_head(self):
        return self.nodes[-1]["op"] == "linear"

    def claim_lipschitz(self):
        """Λ of all nodes but the head, exactly, rounded up."""
        growth = {"input": Fraction(1)}
        for node in self.nodes:
            gains = [Fraction(float.fromhex(node["lipschitz"]))]
            if node["op"] == "combination":
                gains = [Fraction(float(v)) for v in self.tensors[node["weights"]]]
            if node["op"] == "concat":
                square = sum(growth[u] ** 2 for u in node["inputs"])
                growth[node["name"]] = Fraction(math.sqrt(square) * (1 + 2.0**-50))
                continue
            growth[node["name"]] = sum(a * growth[u] for a, u in zip(gains, node["inputs"], strict=True))
        end = self.nodes[-1]
        lipschitz = float_above(growth[end["inputs"][0] if self.has_head() else end["name"]])
        self.claims_lipschitz(lipschitz)
        return lipschitz

    def answer(self, asked, logits):
        """The probe."""
        rows = [[float(v).hex() for v in row] for row in logits.astype(np.float32)]
        self.top["probe"] = {"indices": list(asked), "logits": rows}

    def assumes(self):
        nodes = [node for node in self.nodes if isinstance(node, dict)]
        names = [node.get(key) for node in nodes for key in ("op", "activation")]
        return sorted({f"{name} within 8 ulp" for name in names if isinstance(name, str) and name in SMOOTH})

    def save(self, folder):
        """Write the three files with the hashes they need."""
        folder.mkdir(exist_ok=True)
        self.top["inputs"]["sha256"] = digest(self.images)
        hashes = {name: digest(value) for name, value in self.tensors.items()}
        top = {"assumes": self.assumes(), "tensors": hashes, "nodes": self.nodes} | self.top
        write_tensors(folder / "weights.safetensors", self.tensors)
        write_tensors(folder / "inputs.safetensors", {"images": self.images})
        (folder / "certificate.json").write_text(json.dumps(top), encoding="utf-8")
        return folder / "certificate.json"

    def build(self, folder):
        """The nodes as the checker has them, planned and proved."""
        with np.errstate(all="ignore"):
            return build_all(checker.read(self.save(folder), checker.Budget()))


# --- Operators as matrices ---


def spectral_norm(matrix):
    """Faster than singular values, and as accurate for the largest."""
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    return math.sqrt(np.linalg.eigvalsh(gram)[-1])


def conv_matrix(weight, shape, stride=(1, 1), padding=None, dilation=(1, 1), padding_mode="zeros", groups=1):
    """The convolution as a matrix, (n·H'·W', C·H·W), entry by entry from its definition."""
    n, c, *kernel = weight.shape
    _, high, wide = shape
    padding = padding or [[0, 0]] * 2
    rows = zip((high, wide), padding, kernel, stride, dilation, strict=True)
    out = [(size + sum(p) - d * (k - 1) - 1) // s + 1 for size, p, k, s, d in rows]
    matrix = np.zeros((n, *out, *shape), dtype=weight.dtype)
    for o, y, x, i, a, b in itertools.product(range(n), *map(range, (*out, c, *kernel))):
        row = y * stride[0] + a * dilation[0] - padding[0][0]
        column = x * stride[1] + b * dilation[1] - padding[1][0]
        if padding_mode == "circular":
            row, column = row % high, column % wide
        if 0 <= row < high and 0 <= column < wide:
            matrix[o, y, x, o // (n // groups) * c + i, row, column] += weight[o, i, a, b]
    return matrix.reshape(n * out[0] * out[1], -1), (n, *out)


def overlaps(weight, step=(1, 1), groups=1, absolute=np.abs):
    """A_ij = Σ |C_ij[d]| over the lags d that are multiples of the step, lag by lag."""
    n, _, kh, kw = weight.shape
    total = np.zeros((n, n))
    for dy, dx in itertools.product(range(-kh + 1, kh), range(-kw + 1, kw)):
        if dy % step[0] or dx % step[1]:
            continue
        first = weight[:, :, max(0, -dy) : kh - max(0, dy), max(0, -dx) : kw - max(0, dx)]
        second = weight[:, :, max(0, dy) : kh + min(0, dy), max(0, dx) : kw + min(0, dx)]
        total += absolute(np.einsum("icab,jcab->ij", first.astype(float), second.astype(float)))
    group = np.arange(n) // (n // groups)
    return total * (group[:, None] == group)


def symbol_norm(weight, step=(1, 1), groups=1, points=64):
    """sup ‖K̂(θ)‖, estimated from below by the FFT of the polyphase components."""
    kh, kw = weight.shape[2:]
    best = 0.0
    for part in np.split(weight.astype(float), groups):
        pad = np.zeros((*part.shape[:2], -(-kh // step[0]) * step[0], -(-kw // step[1]) * step[1]))
        pad[:, :, :kh, :kw] = part
        split = [pad[:, :, i :: step[0], j :: step[1]] for i in range(step[0]) for j in range(step[1])]
        spectrum = np.fft.fft2(np.concatenate(split, axis=1), s=(points, points))
        best = max(best, np.linalg.svd(np.moveaxis(spectrum, (2, 3), (0, 1)), compute_uv=False).max())
    return best


def step_of(options):
    """What stride and dilation are to the lags of a kernel: s/gcd(s, d)."""
    return [s // math.gcd(s, d) for s, d in zip(options["stride"], options["dilation"], strict=True)]


# --- Networks ---


class Draft(Builder):
    """A chain of nodes, with the explicit matrix, the positions, γ and the bias of each operator.

    A node is named after the method that adds it, so that tests find it again.
    """

    def __init__(self, seed, shape, images, divide_by=None):
        super().__init__(shape, seed=seed, images=images, divide_by=divide_by)
        self.shape, self.sources, self.explicit = tuple(shape), [], []
        self.kappas = {}  # which take long

    def put(self, kind, op=None, lipschitz=1.0, out=None, explicit=None, **fields):
        self.add(op or kind, lipschitz, name=f"{kind} {len(self.nodes)}", **fields)
        self.sources.append(self.shape)
        self.explicit.append(explicit)
        self.shape = self.shape if out is None else tuple(out)
        return self

    def noise(self, *shape, scale=1.0):
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    # Nodes without an operator.

    def normalize(self, mean, std, kind="normalize"):
        mean, std = np.array(mean, np.float32), np.array(std, np.float32)
        return self.put(kind, "normalize", 1 / float(std.min()), mean=mean, std=std)

    def centre(self, mean):
        return self.normalize(mean, np.ones(len(mean)), "centre")

    def relu(self):
        return self.put("relu", parameters=[])

    def abs(self):
        return self.put("abs", parameters=[])

    def scale(self, factor):
        return self.put("scale", None, abs(factor), factor=factor.hex())

    def group_sort(self, size, descending=False):
        return self.put("group_sort", size=size, axis=0, descending=descending)

    def select(self, kind, *indices):
        shape = [size if row is None else len(row) for size, row in zip(self.shape, indices, strict=True)]
        return self.put(kind, "select", out=shape, indices=list(indices), value=ZERO)

    def pad_channels(self, channels):
        count, *image = self.shape
        return self.select("pad_channels", [*range(count), *[-1] * (channels - count)], *[None] * len(image))

    def take_channels(self, first, count):
        return self.select("take_channels", list(range(first, first + count)), *[None] * (len(self.shape) - 1))

    def pad_image(self, multiple):
        rows = [[*range(size), *[-1] * (-size % multiple)] for size in self.shape[1:]]
        return self.select("pad_image", None, *rows)

    def space_to_depth(self, block):
        c, high, wide = self.shape
        split = [c, high // block, block, wide // block, block]
        shape = [c * block**2, high // block, wide // block]
        fields = {"split": split, "order": [0, 2, 4, 1, 3], "shape": shape}
        return self.put("space_to_depth", "rearrange", out=shape, **fields)

    def flat(self):
        size = [math.prod(self.shape)]
        return self.put("flatten", "rearrange", out=size, split=size, order=[0], shape=size)

    def pool(self, kernel, factor):
        c, *image = self.shape
        windows = [[[i, i + k] for i in range(0, size, k)] for size, k in zip(image, kernel, strict=True)]
        lipschitz = factor * math.sqrt(math.prod(kernel))
        shape, ones = (c, *map(len, windows)), [[1] * len(rows) for rows in windows]
        fields = {"windows": [None, *windows], "divisors": [None, *ones], "factor": factor.hex()}
        return self.put("pool", None, lipschitz, shape, **fields)

    # Operators.

    def residual_linear(self, n, witness=True, tight=False, activation="relu"):
        weight = self.noise(n, *self.shape)
        weight = np.abs(weight) if tight else weight
        a = np.abs(weight.astype(float) @ weight.T.astype(float))
        options = {"axis": 0, "groups": 1}
        return self._residual("residual_linear", weight, weight, [1, 1], a, witness, tight, options, activation)

    def residual_conv(self, n, kernel=(3, 3), witness=True, activation="relu", **options):
        options = CONV | options
        weight = self.noise(n, self.shape[0] // options["groups"], *kernel)
        matrix, (_, *out) = conv_matrix(weight, self.shape, **options)
        a = overlaps(weight, step_of(options), options["groups"])
        return self._residual("residual_conv", weight, matrix, out, a, witness, False, options, activation)

    def _residual(self, op, weight, matrix, out, a, witness, tight, options, activation):
        n = len(weight)
        q = np.exp(0.3 * self.rng.standard_normal(n))
        if tight:  # the Perron vector: ρ is what the row sums say
            q = np.abs(np.linalg.eigh(a)[1][:, -1])
        gamma = (1 - 2.0**-26) / ((a @ q) / q)
        if not witness and op == "residual_linear":
            gamma = np.full(n, 0.999999 / np.linalg.norm(weight.astype(float), 2) ** 2)
        gamma, bias = float32_below(gamma), self.noise(n, scale=0.1)
        fields = {"weight": weight, "gamma": gamma, "bias": bias, "witness": q if witness else None}
        explicit = (matrix, out, gamma, bias)
        return self.put(op, explicit=explicit, activation=activation, **fields, **options)

    def householder(self, length=1 - 2.0**-20):
        """x − 2v·min(v·x, 0) of each pair of channels: a residual node with the weight −v and as many groups."""
        pairs, *image = self.shape[0] // 2, *self.shape[1:]
        angle = self.rng.uniform(0, 2 * np.pi, pairs)
        weight = -np.stack([np.asarray(length * f(angle), np.float32) for f in (np.cos, np.sin)], axis=1)
        matrix = np.zeros((pairs, 2 * pairs), np.float32)
        for i, row in enumerate(weight):
            matrix[i, 2 * i : 2 * i + 2] = row
        gamma, zeros = np.ones(pairs, np.float32), np.zeros(pairs, np.float32)
        explicit = (np.kron(matrix, np.eye(math.prod(image), dtype=np.float32)), image or [1], gamma, zeros)
        fields = {"weight": weight, "gamma": gamma, "bias": None, "witness": None, "activation": "relu"}
        constant = max(1.0, 2 * length**2 * (1 + 1e-6) - 1)
        options = {"explicit": explicit, "axis": 0, "groups": pairs}
        return self.put("householder", "residual_linear", constant, **options, **fields)

    def circular(self, n, residual=False, odd=1.0, activation="relu"):
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
        waves = [v.astype(float) for v in (rows, columns)]
        matrix = np.einsum("yY,xX,nyxmvu,vV,uU->nYXmVU", *waves, middle, *waves)
        bias, constant, shape = self.noise(n, scale=0.1), odd**4, (n, *image)
        fields, gamma = {"rows": rows, "columns": columns, "weight": blocks, "bias": bias}, np.ones(n, np.float32)
        if residual:
            gamma = (1 - (odd == 1) * 0.5 * self.rng.random(n)).astype(np.float32)
            constant, shape = max(1.0, 2 * constant**2 - 1), self.shape
            fields |= {"gamma": gamma, "activation": activation}
        explicit = (matrix.reshape(n * math.prod(image), -1), image, gamma, bias)
        return self.put("residual_circular" if residual else "circular", None, constant, shape, explicit, **fields)

    def linear(self, k):
        weight, bias = self.noise(k, *self.shape, scale=0.5), self.noise(k, scale=0.1)
        norm = float(np.linalg.norm(weight.astype(float), 2)) * (1 + 1e-9)
        explicit = (weight, [1, 1], np.ones(k, np.float32), bias)
        return self.put("linear", None, norm, (k,), explicit, weight=weight, bias=bias, axis=0, groups=1)

    def conv(self, n, kernel=(3, 3), bias=True, slack=1.03, **options):
        options = CONV | options
        weight = self.noise(n, self.shape[0] // options["groups"], *kernel, scale=0.3)
        values = self.noise(n, scale=0.1) if bias else np.zeros(n, np.float32)
        norm = symbol_norm(weight, step_of(options), options["groups"]) * slack
        matrix, shape = conv_matrix(weight, self.shape, **options)
        explicit = (matrix, shape[1:], np.ones(n, np.float32), values)
        fields = {"weight": weight, "bias": values if bias else None, **options}
        return self.put("conv", None, norm, shape, explicit, **fields)

    # What it computes, and what it may claim.

    def run(self, x, dtype=np.float64):
        """Every intermediate value, from x, (batch, *input_shape), in the arithmetic of dtype."""
        values = [x.astype(dtype)]
        for node, explicit in zip(self.nodes, self.explicit, strict=True):
            values.append(self._apply(node, explicit, values[-1], dtype))
        return values

    def _apply(self, node, explicit, z, dtype):
        op, batch = node["op"], len(z)
        if explicit is not None:
            matrix, out, gamma, bias = explicit
            matrix, spread = matrix.astype(dtype), math.prod(out)
            hidden = z.reshape(batch, -1) @ matrix.T + np.repeat(bias.astype(dtype), spread)
            if not op.startswith("residual"):
                return hidden if op == "linear" else hidden.reshape(batch, -1, *out)
            active = SIGMAS[node["activation"]][0](hidden) * np.repeat(2 * gamma.astype(dtype), spread)
            return z - (active @ matrix).reshape(z.shape)
        if op == "normalize":
            column = (-1, *[1] * (z.ndim - 2))
            mean, std = (self.tensors[node[key]].astype(dtype).reshape(column) for key in ("mean", "std"))
            return (z - mean) / std
        if op == "select":
            for axis, index in enumerate(node["indices"], 1):
                if index is not None:  # the constant comes last, where −1 finds it
                    last = np.full_like(z.take([0], axis), float.fromhex(node["value"]))
                    z = np.concatenate([z, last], axis).take(index, axis)
            return z
        if op == "rearrange":
            z = z.reshape(batch, *node["split"]).transpose(0, *(axis + 1 for axis in node["order"]))
            return z.reshape(batch, *node["shape"])
        if op == "pool":
            for axis, (rows, divisors) in enumerate(zip(node["windows"], node["divisors"], strict=True), 1):
                if rows is not None:
                    sums = [sum(z.take(k, axis) for k in range(*row)) for row in rows]
                    z = np.stack([a / dtype(d) for a, d in zip(sums, divisors, strict=True)], axis)
            return z * dtype(float.fromhex(node["factor"]))
        if op == "group_sort":
            blocks = [np.sort(z[:, i : i + node["size"]], axis=1) for i in range(0, z.shape[1], node["size"])]
            return np.concatenate([b[:, ::-1] if node["descending"] else b for b in blocks], axis=1)
        if op == "scale":
            return z * dtype(float.fromhex(node["factor"]))
        return {"relu": z * (z > 0), "abs": np.where(z < 0, -z, z)}[op]

    def inputs(self):
        return self.images.astype(np.float32) / np.float32(255) if self.top["inputs"]["divide_by"] else self.images

    def rounding(self, i, z, u=U):
        """e(Z) of node i, straight from the table in docs/certificate.md."""
        node, explicit, source = self.nodes[i], self.explicit[i], self.sources[i]
        op, lipschitz = node["op"], float.fromhex(node["lipschitz"])
        if op == "normalize":
            mean = self.tensors[node["mean"]].astype(float)
            return g(2, u) * lipschitz * (z + math.sqrt(math.prod(source[1:])) * np.linalg.norm(mean))
        if op == "pool":
            longest = [max(stop - start for start, stop in rows) for rows in node["windows"] if rows is not None]
            return g(math.prod(longest) + 2, u) * lipschitz * z
        if op == "scale":
            return g(1, u) * lipschitz * z
        if explicit is None:
            return 0 * z
        matrix, out, gamma, bias = (np.asarray(v, dtype=float) for v in explicit)
        n, spread = len(gamma), int(out.prod())
        weight = self.tensors[node["weight"]]
        n1 = math.prod(weight.shape[1:])
        n2 = math.prod(weight.shape) // weight.shape[1] // node.get("groups", 1)
        scaled = np.abs(matrix) * np.repeat(np.sqrt(gamma), spread)[:, None]
        kappa = self.kappas[i] = self.kappas.get(i) or spectral_norm(scaled)
        if op.endswith("circular"):
            waves = [self.tensors[node[key]] for key in ("rows", "columns")]
            n1, n2 = (sum(waves[0].shape + waves[1].shape) + weight.shape[axis] for axis in (2, 1))
            each = np.tile(np.sqrt(gamma), 4)[:, None]
            kappa = max(np.linalg.norm(each * np.abs(block), 2) for block in weight)
            kappa *= math.prod(np.linalg.norm(np.abs(wave), 2) ** 2 for wave in waves)
        beta = math.sqrt(spread * float((gamma * bias**2).sum()))
        first = g(n1 + 1, u) * (kappa * z + beta)
        if not op.startswith("residual"):
            return first
        assert n == (weight.shape[1] // 4 if op.endswith("circular") else len(weight))
        root = math.sqrt((lipschitz + 1) / 2)  # √ρ ≤ 1, or what the node claims
        _, roundings, at_zero = SIGMAS[node["activation"]]
        v = root * z + beta + first + at_zero * math.sqrt(spread * float(gamma.sum()))
        once = g(1 + roundings, u)
        return 2 * (1 + u) * root * (first + once * v) + g(n2 + 3, u) * (z + 2 * (1 + once) * kappa * v)

    def claim(self, i, values, depth, lipschitz, errors=4):
        """[i, y, r] for one input, or None; ``values`` are those before and after each of the nodes."""
        f = values[-1]
        y = int(f.argmax()) if f.size > 1 else int(f[0] > 0)
        rivals = [j for j in range(f.size) if j != y] if f.size > 1 else [0]
        gap = f[y] - f[rivals] if f.size > 1 else np.abs(f)
        head = depth < len(self.nodes)
        if head:
            weight, bias = (self.tensors[self.nodes[-1][key]].astype(float) for key in ("weight", "bias"))
            apart = np.linalg.norm(weight[y] - weight[rivals] if f.size > 1 else weight, axis=1)
        else:
            apart = np.full(len(rivals), math.sqrt(2) if f.size > 1 else 1.0)
        err, moved = 0.0, (gap / (lipschitz * apart)).min()
        for k, node in enumerate(self.nodes[:depth]):
            constant = float.fromhex(node["lipschitz"])
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
        self.kappas, lipschitz = {}, self.claim_lipschitz()
        values, depth = self.run(self.inputs()), len(self.nodes) - self.has_head()
        claims = (self.claim(i, [v[i] for v in values], depth, lipschitz, errors) for i in range(len(self.images)))
        self.top["claims"] = [claim for claim in claims if claim is not None]
        asked = range(0, len(self.images), 3)
        self.answer(asked, self.run(self.inputs()[asked], np.float32)[-1])
        return self


CONV = {"stride": [1, 1], "padding": [[1, 1], [1, 1]], "dilation": [1, 1], "padding_mode": "zeros", "groups": 1}


def images(seed, *shape):
    return np.random.default_rng(seed).standard_normal((12, *shape)).astype(np.float32)


def sll_network(seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 3, 7, 7), dtype=np.uint8)
    draft = Draft(seed, [3, 7, 7], pixels, 255)
    draft.centre([0.4, 0.5, 0.6]).pad_image(4).space_to_depth(2).pad_channels(14)
    draft.residual_conv(10).residual_conv(8, stride=[2, 2]).residual_conv(6, padding_mode="circular")
    draft.residual_conv(6, groups=2).residual_conv(6, (2, 3), witness=False, padding=[[2, 2], [1, 1]])
    draft.pool([2, 2], 0.5).flat()
    draft.residual_linear(40).residual_linear(70, tight=True).residual_linear(30, witness=False)
    return draft.scale(-1.25).linear(5).finish()


def conv_network(seed=1):
    draft = Draft(seed, [2, 6, 6], images(seed, 2, 6, 6)).normalize([0.5, 0.75], [0.5, 0.75])
    draft.conv(6, stride=[2, 2]).group_sort(2, descending=True)
    draft.conv(6, groups=3, padding_mode="circular", bias=False).group_sort(3)
    draft.conv(4, (1, 1), padding=[[0, 0], [0, 0]]).abs().conv(8, stride=[3, 1], dilation=[2, 1])
    return draft.flat().linear(9).relu().linear(4).group_sort(2).finish()


def binary_network(seed=2):
    draft = Draft(seed, [9], images(seed, 9)).residual_linear(7).linear(6).group_sort(2, descending=True)
    return draft.residual_linear(5, tight=True).linear(1).finish()


def affine_network(seed=3):
    return Draft(seed, [9], images(seed, 9)).linear(4).finish()


def reflected_network(seed=4):
    draft = Draft(seed, [3, 5, 4], images(seed, 3, 5, 4)).conv(6).householder().pad_channels(10)
    draft.residual_conv(7, (3, 2), padding=[[1, 0], [1, 1]], stride=[2, 1], dilation=[1, 2])
    draft.take_channels(6, 4).householder(1.5).flat()
    return draft.linear(8).householder().take_channels(1, 6).linear(3).finish()


def wave_network(seed=5):
    draft = Draft(seed, [2, 4, 5], images(seed, 2, 4, 5)).circular(3).abs()
    draft.circular(4, residual=True).circular(2, odd=0.9).circular(2, residual=True, odd=1.003)
    return draft.flat().linear(4).finish()


def smooth_network(seed=6):
    """Every activation in every residual node."""
    draft = Draft(seed, [2, 4, 4], images(seed, 2, 4, 4))
    for name in SIGMAS:
        draft.residual_conv(4, activation=name)
    for name in SIGMAS:
        draft.circular(3, residual=True, activation=name)
    draft.flat()
    for name in SIGMAS:
        draft.residual_linear(12, activation=name)
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
