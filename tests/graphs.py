"""Random small networks with a forward method of their own, for laws about graphs.

Each is a list of steps on the values computed so far, with branches, shared modules, views, operations in place and
everything that ``lipcert.certified.calls`` knows. ``rational`` leaves out what has no exact value in fractions.
"""

import random
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SHAPES = [(4,), (6,), (2, 3), (2, 2, 2), (4, 2, 3)]


class Random(nn.Module):
    """``steps`` are (function of the module and of some values, which values)."""

    def __init__(self, seed, *, rational=False):
        super().__init__()
        self.random, self.parts, self.steps = random.Random(seed), nn.ModuleList(), []
        self.rational = rational
        generator = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.input_shape = self.random.choice(SHAPES)
        self.probes = [torch.randn(2, *self.input_shape)]
        while len(self.steps) < self.random.randint(3, 9):
            self._grow()
        self._end()
        torch.random.set_rng_state(generator)
        self.random = None
        self.eval()

    def forward(self, x):
        values = [x]
        for function, places in self.steps:
            values.append(function(self, *(values[place] for place in places)))
        return values[-1]

    # Building

    def _append(self, function, *places):
        with torch.no_grad():
            try:
                value = function(self, *(self.probes[place] for place in places))
            except RuntimeError:  # a view of what is not contiguous
                return
        self.steps.append((function, places))
        self.probes.append(value)
        assert value.shape[0] == 2
        assert value.ndim > 1

    def _part(self, module):
        self.parts.append(module)
        return len(self.parts) - 1

    def _parameter(self, value):
        return self._part(nn.ParameterList([nn.Parameter(value)]))

    def _grow(self):
        count = len(self.probes)
        one = max(self.random.randrange(count), self.random.randrange(count))
        shape = tuple(self.probes[one].shape[1:])
        if np.prod(shape) > 60:
            return
        names = [name for name in dir(self) if name.startswith("_step_")]
        if self.rational:
            names = [name for name in names if name not in SMOOTH]
        getattr(self, self.random.choice(names))(one, shape)

    def _end(self):
        self._append(lambda net, x: x.flatten(1), len(self.probes) - 1)
        if self.random.random() < 0.7:
            part = self._part(nn.Linear(self.probes[-1].shape[1], 3))
            self._append(lambda net, x: net.parts[part](x), len(self.probes) - 1)

    def _equals(self, shape):
        return [place for place, value in enumerate(self.probes) if tuple(value.shape[1:]) == shape]

    def _axis(self, shape):
        axis = self.random.randrange(len(shape))
        return self.random.choice([axis + 1, axis - len(shape)])

    # Steps

    def _step_linear(self, one, shape):
        part = self._part(nn.Linear(shape[-1], shape[-1]))
        if self.random.random() < 0.5:
            self._append(lambda net, x: net.parts[part](x), one)
        else:
            self._append(lambda net, x: F.linear(x, net.parts[part].weight), one)

    def _step_shared(self, one, shape):
        part = self._part(nn.Linear(shape[-1], shape[-1]))
        self._append(lambda net, x: net.parts[part](torch.relu(net.parts[part](x))), one)

    def _step_matmul(self, one, shape):
        part = self._parameter(torch.randn(shape[-1], 3))
        self._append(lambda net, x: x @ net.parts[part][0], one)

    def _step_conv(self, one, shape):
        if len(shape) == 3:
            part = self._part(nn.Conv2d(shape[0], self.random.choice([shape[0], 3]), 3, padding=1))
            self._append(lambda net, x: net.parts[part](x), one)

    def _step_pool(self, one, shape):
        if len(shape) == 3 and min(shape[1:]) > 1:
            function = self.random.choice(
                [
                    lambda net, x: F.avg_pool2d(x, 2),
                    lambda net, x: F.max_pool2d(x, 2, 1),
                    lambda net, x: F.adaptive_avg_pool2d(x, 1),
                    lambda net, x: F.avg_pool2d(x, x.size()[2:]),
                    lambda net, x: F.pad(x, (1, 0, 0, 1), value=0.5),
                    lambda net, x: F.interpolate(x, scale_factor=2),
                ]
            )
            self._append(function, one)

    def _step_piecewise(self, one, shape):
        function = self.random.choice(
            [
                lambda net, x: F.relu(x),
                lambda net, x: x.abs(),
                lambda net, x: F.leaky_relu(x, 0.25),
                lambda net, x: torch.clamp(x, -0.5, 1.5),
                lambda net, x: x.clamp(min=0.25),
                lambda net, x: -x,
                lambda net, x: F.hardtanh(x),
            ]
        )
        self._append(function, one)

    def _step_smooth(self, one, shape):
        functions = [torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu, F.softsign, soft]
        function = self.random.choice(functions)
        self._append(lambda net, x: function(x), one)

    def _step_softmax(self, one, shape):
        axis = self._axis(shape)
        self._append(lambda net, x: x.softmax(axis), one)

    def _step_number(self, one, shape):
        number = self.random.choice([0.5, 2, -1.5, 0.1, 3])
        function = self.random.choice(
            [
                lambda net, x: number * x,
                lambda net, x: x / number,
                lambda net, x: x + number,
                lambda net, x: number - x,
                lambda net, x: x.mul(number).sub(0.25),
            ]
        )
        self._append(function, one)

    def _step_tensor(self, one, shape):
        axis = self.random.randrange(len(shape))
        like = [size if place == axis else 1 for place, size in enumerate(shape)]
        kind = self.random.choice([like, like[axis:], [1, *like], list(shape)])
        part = self._parameter(torch.randn(kind))
        if self.random.random() < 0.5:
            self._append(lambda net, x: x * net.parts[part][0], one)
        else:
            self._append(lambda net, x: x - net.parts[part][0], one)

    def _step_meet(self, one, shape):
        other = self.random.choice(self._equals(shape))
        function = self.random.choice(
            [
                lambda net, x, y: x + y,
                lambda net, x, y: x - y,
                lambda net, x, y: 0.5 * x + 0.5 * y,
                lambda net, x, y: torch.add(x, y, alpha=2),
                torch_maximum,
                lambda net, x, y: torch.minimum(x, y),
            ]
        )
        self._append(function, one, other)

    def _step_skip(self, one, shape):
        part = self._part(nn.Sequential(nn.Linear(shape[-1], 5), nn.ReLU(inplace=True), nn.Linear(5, shape[-1])))
        if self.random.random() < 0.5:
            self._append(lambda net, x: x + net.parts[part](x), one)
        else:
            self._append(added_in_place(part), one)

    def _step_cat(self, one, shape):
        axis = self._axis(shape)
        place = axis - 1 if axis > 0 else axis + len(shape)
        fits = [
            index
            for index, value in enumerate(self.probes)
            if value.ndim == len(shape) + 1
            and all(a == b or at == place for at, (a, b) in enumerate(zip(shape, value.shape[1:], strict=True)))
        ]
        other = self.random.choice(fits)
        self._append(lambda net, x, y: torch.cat([x, y], dim=axis), one, other)

    def _step_stack(self, one, shape):
        other = self.random.choice(self._equals(shape))
        if len(shape) < 3:
            dim = self.random.choice([1, -1])
            self._append(lambda net, x, y: torch.stack((x, y), dim), one, other)

    def _step_view(self, one, shape):
        functions = [
            lambda net, x: x.flatten(1),
            lambda net, x: x.view(x.size(0), -1),
            lambda net, x: x.reshape(x.shape[0], x.size(1), -1),
            lambda net, x: x.unsqueeze(-1),
            lambda net, x: x.transpose(1, -1),
            lambda net, x: x.movedim(-1, 1),
            lambda net, x: torch.flip(x, (1,)),
            lambda net, x: x.roll(1, -1),
            lambda net, x: x.clone(),
        ]
        self._append(self.random.choice(functions), one)

    def _step_take(self, one, shape):
        if shape[0] < 2:
            return
        functions = [
            lambda net, x: x[:, 1:],
            lambda net, x: x[:, ::2],
            lambda net, x: x[:, [0, 1, 0]],
            lambda net, x: x.chunk(2, dim=1)[0],
            lambda net, x: x.split(1, dim=1)[1],
            lambda net, x: x.split([1, shape[0] - 1], dim=1)[1],
            lambda net, x: x.narrow(1, 1, 1),
            lambda net, x: x[:, None, ..., 0] if len(shape) > 1 else x[:, -1:],
        ]
        self._append(self.random.choice(functions), one)

    def _step_halves(self, one, shape):
        if shape[0] % 2 == 0:
            self._append(halves, one)

    def _step_reduce(self, one, shape):
        axis, keep = self._axis(shape), len(shape) == 1 or self.random.random() < 0.5
        function = self.random.choice(
            [
                lambda net, x: x.mean(axis, keepdim=keep),
                lambda net, x: x.sum(dim=axis, keepdim=keep),
                lambda net, x: x.amax(axis, keepdim=keep),
                lambda net, x: torch.amin(x, axis, keep),
                lambda net, x: x - x.mean(axis, keepdim=True).expand_as(x),
            ]
        )
        self._append(function, one)


def soft(x):
    """Without torch's jump at its threshold."""
    return F.softplus(x, threshold=40)


def torch_maximum(net, x, y):
    return torch.maximum(x, y)


def added_in_place(part):
    def function(net, x):
        y = net.parts[part](x)
        y += x
        return F.relu(y, inplace=True)

    return function


def halves(net, x):
    a, b = x.chunk(2, dim=1)
    return torch.cat((torch.maximum(a, b), torch.minimum(a, b)), 1)


SMOOTH = ("_step_smooth", "_step_softmax")


# --- Exact evaluation of a proved network, in fractions: an implementation of its own, entry by entry ---


def fractions(tensor):
    return np.vectorize(lambda value: Fraction(float(value)), otypes=[object])(tensor.detach().double().numpy())


def exactly(part, *inputs):
    """What an op computes of arrays of fractions, without a batch."""
    step = part.step
    x = inputs[0]
    if part.op == "linear":
        return _linear(step, x)
    if part.op == "conv":
        return _conv(step, x)
    if part.op == "rearrange":
        return x.reshape(step.split).transpose(step.order).reshape(step.shape)
    if part.op == "select":
        for axis, index in enumerate(step.indices):
            if index is not None:
                value = np.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), Fraction(step.value), dtype=object)
                x = np.concatenate([x, value], axis).take([i if i >= 0 else x.shape[axis] for i in index], axis)
        return x
    if part.op in ("pool", "max_pool"):
        return _windows(step, x, part.op)
    if part.op == "combination":
        weights = [Fraction(float(w)) for w in step.weights]
        return sum(weight * value for weight, value in zip(weights, inputs, strict=True))
    if part.op == "concat":
        return np.concatenate(inputs, step.axis)
    if part.op == "group_sort":
        groups = np.moveaxis(x, step.axis, -1).reshape(-1, step.size)
        rows = np.array([sorted(row, reverse=step.descending) for row in groups], dtype=object)
        moved = np.moveaxis(x, step.axis, -1).shape
        return np.moveaxis(rows.reshape(moved), -1, step.axis)
    if part.op == "scale":
        return x * Fraction(step.factor)
    numbers = [Fraction(value) for value in step.numbers]
    function = {
        "identity": lambda v: v,
        "relu": lambda v: max(v, Fraction(0)),
        "abs": abs,
        "shift": lambda v, c: v + c,
        "divide": lambda v, d: v / d,
        "leaky_relu": lambda v, a: v if v >= 0 else a * v,
        "hardtanh": lambda v, low, high: min(max(v, low), high),
        "maximum": max,
    }[part.op]
    return np.vectorize(lambda v: function(v, *numbers), otypes=[object])(x)


def _linear(step, x):
    x = np.moveaxis(x, step.axis, -1)
    groups, weight = step.groups, fractions(step.weight)
    parts = np.split(x, groups, axis=-1)
    rows = np.split(weight, groups, axis=0)
    y = np.concatenate([part @ row.T for part, row in zip(parts, rows, strict=True)], axis=-1)
    y = y if step.bias is None else y + fractions(step.bias)
    return np.moveaxis(y, -1, step.axis)


def _conv(step, x):
    """Stride 1, dilation 1, zeros, one group, two axes."""
    weight = fractions(step.weight)
    (top, bottom), (left, right) = step.padding
    padded = np.full((x.shape[0], x.shape[1] + top + bottom, x.shape[2] + left + right), Fraction(0), dtype=object)
    padded[:, top : top + x.shape[1], left : left + x.shape[2]] = x
    high, wide = padded.shape[1] - weight.shape[2] + 1, padded.shape[2] - weight.shape[3] + 1
    out = np.full((len(weight), high, wide), Fraction(0), dtype=object)
    for i in range(weight.shape[2]):
        for j in range(weight.shape[3]):
            window = padded[:, i : i + high, j : j + wide]
            out = out + np.tensordot(weight[:, :, i, j], window, axes=1)
    return out + fractions(step.bias)[:, None, None]


def _windows(step, x, op):
    for axis, spans in enumerate(step.windows):
        if spans is not None:
            rows = []
            for place, (start, stop, *_) in enumerate(spans):
                entries = x.take(range(start, stop), axis)
                if op == "max_pool":
                    rows.append(entries.max(axis=axis))
                else:
                    rows.append(entries.sum(axis=axis) / step.divisors[axis][place])
            x = np.stack(rows, axis)
    return x * Fraction(step.factor) if op == "pool" else x
