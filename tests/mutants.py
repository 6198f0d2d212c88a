"""Networks with one thing wrong: the mutants of a sound layer, and the field's known mistakes rebuilt.

Each names the constant that the mistake leads people to claim and carries evidence against it, computed without
the library: an explicit matrix, a Jacobian or two points. ``test_mutants.py`` asks ``audit``, ``certify`` and
the checker; ``benchmarks/mutants.py`` writes results/mutants.md and docs/mutants.md from the same list.
"""

import collections
import contextlib
import copy
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file
from torch import nn

import lipcert as lc
from lipcert import check as checker
from lipcert.certified import ops
from lipcert.certified.certificate import write_certificate
from lipcert.certified.freeze import prove
from lipcert.certified.network import INPUT, Network, Node
from lipcert.certified.operators import blocks_of, waves

PIXEL = ((1, 1), ((0, 0), (0, 0)), (1, 1))  # stride, padding and dilation of a convolution that has none
LISTED = "mutation"  # of a sound layer; a number is that of the list of known mistakes


# --- Evidence ---


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthonormal(m, n, seed=0):  # (n, m), rows orthonormal
    return torch.linalg.qr(rand(m, n, seed=seed)).Q.T.contiguous()


def norm(matrix):
    return float(torch.linalg.matrix_norm(matrix.double(), 2))


def matrix_of(function, shape):
    """The matrix of an affine map, by unit impulses."""
    size = math.prod(shape)
    with torch.no_grad():
        start = function(torch.zeros(1, *shape, dtype=torch.float64))
        image = function(torch.eye(size, dtype=torch.float64).view(size, *shape)) - start
    return image.reshape(size, -1).T


def affine(module, shape):
    """‖matrix‖ of an affine module: its constant, exactly."""
    return norm(matrix_of(copy.deepcopy(module).double(), shape))


def jacobian(module, x):
    """‖Jacobian‖ at x, (*shape): a lower bound of the constant."""
    wide = copy.deepcopy(module).double()
    flat = lambda v: wide(v.view(1, *x.shape)).flatten()  # noqa: E731
    return norm(torch.autograd.functional.jacobian(flat, x.double().flatten()))


def quotient(module, x, y):
    """‖f(x) − f(y)‖/‖x − y‖."""
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        return float((wide(x[None].double()) - wide(y[None].double())).norm() / (x - y).double().norm())


def broken(module, x):
    """∞ if the value at x is not finite: then no constant holds."""
    with torch.no_grad():
        return 0.0 if torch.isfinite(copy.deepcopy(module).double()(x[None].double())).all() else math.inf


# --- What a mutant is ---


@dataclasses.dataclass(frozen=True)
class Case:
    """One module, the constant that the mistake claims for it, and at least what its true constant is."""

    module: nn.Module
    shape: tuple[int, ...]
    claimed: float
    truth: float


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A row of the table. ``verdict`` is that of ``audit``, or NotCertified where it refuses."""

    name: str
    source: str
    build: Callable[[], Case]
    verdict: str
    sound: bool = False  # strange, but the claim is true


MUTANTS: list[Mutant] = []


def mutant(name, source, verdict, *, sound=False):
    def register(build):
        MUTANTS.append(Mutant(name, str(source), build, verdict, sound))
        return build

    return register


def residual(weight, gamma, *, bias=50.0, witness=None):
    """A frozen dense residual layer with the γ it is told; the bias makes every neuron active."""
    n = len(weight)
    q = None if witness is None else witness.double()
    stored = (weight.float(), torch.as_tensor(gamma).float().expand(n).clone(), torch.full((n,), float(bias)))
    return ops.ResidualLinear(*stored, q, "relu")


def active(weight, gamma, **options):
    """Such a layer as a case: claimed 1, and the norm of I − 2WΓWᵀ by SVD of the stored numbers."""
    layer = residual(weight, gamma, **options)
    stored = layer.weight.double()
    jacobi = torch.eye(stored.shape[1]) - 2 * stored.T @ (layer.gamma.double()[:, None] * stored)
    return Case(layer, (stored.shape[1],), 1.0, norm(jacobi))


# --- The choice of T gone wrong ---


@mutant("ε in the denominator, q_j/(q_i + ε)", f"{LISTED}, 1", "REFUTED")
def erratum():
    weight, q = orthonormal(6, 4), torch.full((4,), 1e-9, dtype=torch.float64)
    t = ((weight @ weight.T).abs() * q[None, :] / (q[:, None] + 1e-6)).sum(dim=1)
    return active(weight, 1 / t, witness=q)


@mutant("the same, convolution", 1, "REFUTED")
def erratum_conv():
    kernel, q = orthonormal(6, 4).view(4, 6, 1, 1), torch.full((4,), 1e-9, dtype=torch.float64)
    t = ((kernel[:, :, 0, 0] @ kernel[:, :, 0, 0].T).abs() * q[None, :] / (q[:, None] + 1e-6)).sum(dim=1)
    layer = ops.ResidualConv(kernel.float(), (1 / t).float(), torch.full((4,), 50.0), q, "relu", *PIXEL)
    return Case(layer, (6, 2, 2), 1.0, jacobian(layer, torch.rand(6, 2, 2)))


@mutant("log q clamped on one side", LISTED, "REFUTED")
def one_sided_clamp():
    weight, log_q = torch.tensor([[1.0, 0.1], [1.0, -0.1]]).double(), torch.tensor([0.0, -9.0]).double()
    ratio = torch.exp((log_q[None, :] - log_q[:, None]).clamp(max=2.0))  # r_12·r_21 = e^−7
    return active(weight, 1 / ((weight @ weight.T).abs() * ratio).sum(dim=1), witness=log_q.exp())


@mutant("log q clamped on both sides", LISTED, "PROVED", sound=True)
def symmetric_clamp():
    weight, log_q = torch.tensor([[1.0, 0.1], [1.0, -0.1]]).double(), torch.tensor([0.0, -9.0]).double()
    ratio = torch.exp((log_q[None, :] - log_q[:, None]).clamp(-2.0, 2.0))
    return active(weight, (1 - 1e-6) / ((weight @ weight.T).abs() * ratio).sum(dim=1))


@mutant("row sums without |·|", LISTED, "REFUTED")
def signed_row_sums():
    weight = rand(1, 6) * torch.tensor([[1.0], [-0.9]])
    return active(weight, 1 / (weight @ weight.T).sum(dim=1).abs(), witness=torch.ones(2))


@mutant("γ × 1.05", LISTED, "REFUTED")
def larger_gamma():
    return active(orthonormal(6, 4), 1.05, witness=torch.ones(4))


@mutant("a negative γ", LISTED, "REFUTED")
def negative_gamma():
    return active(orthonormal(6, 4), torch.tensor([0.5, 0.5, 0.5, -0.5]))


@mutant("CPL, 5 power iterations taken as an upper bound", f"{LISTED}, 6", "REFUTED")
def power_iteration():
    weight, v = rand(64, 64), rand(64, seed=1)
    for _ in range(5):
        v = weight @ (weight.T @ v)
        v = v / v.norm()
    return active(weight, 1 / float((weight.T @ v).norm()) ** 2)


@mutant("powers of a convolution cropped to 'same' (Rescaled)", LISTED, "REFUTED")
def cropped_powers():
    kernel = torch.ones(1, 1, 1, 3)
    lags = F.conv2d(kernel, kernel, padding=(0, 2))  # 5 of them
    squared = F.conv2d(lags, lags.flip(3), padding=(0, 2))  # should be 9
    gamma = 1 / squared.abs().sum().sqrt()
    around = ((1, 1), ((0, 0), (1, 1)), (1, 1))
    layer = ops.ResidualConv(kernel, gamma.view(1), torch.full((1,), 50.0), None, "relu", *around)
    return Case(layer, (1, 1, 24), 1.0, jacobian(layer, torch.rand(1, 1, 24)))


@mutant("T computed in bfloat16", f"{LISTED}, 18", "REFUTED")
def bfloat16_t():
    weight = orthonormal(6, 4) * math.sqrt(1.0039)
    t = (weight @ weight.T).abs().sum(dim=1).bfloat16()
    return active(weight, 1 / t.double(), witness=torch.ones(4))


@mutant("T computed in float16", "13, 18", "REFUTED")
def float16_t():
    weight = orthonormal(6, 4) * math.sqrt(1.00048)
    return active(weight, 1 / (weight @ weight.T).abs().sum(dim=1).half().double(), witness=torch.ones(4))


@mutant("T and γ rounded to nearest float32", 18, "PROVED")
def float32_t():
    """One neuron, so that ρ = γ‖w‖² can be had exactly: a seed for which both roundings go the wrong way."""
    best = None
    for seed in range(40):
        w = rand(1, 5, seed=seed).float()
        gamma = 1 / w.square().sum()
        rho = Fraction(float(gamma)) * sum(Fraction(float(v)) ** 2 for v in w[0])
        best = max(best, (rho, seed)) if best else (rho, seed)
    w = rand(1, 5, seed=best[1]).float()
    layer = residual(w, 1 / w.square().sum(), witness=torch.ones(1))
    return Case(layer, (5,), 1.0, float(2 * best[0] - 1))


@mutant("a scale in the branch that T does not see", 15, "REFUTED")
def scale_in_the_branch():
    return active(orthonormal(6, 4), 2.55)


@mutant("the learned q cancels, T is plain AOL", 2, "PROVED", sound=True)
def inert_q():
    weight, q = rand(4, 6), rand(4, seed=1).exp()
    t = ((weight @ weight.T).abs() * q[:, None] / q[:, None]).sum(dim=1)
    return active(weight, (1 - 1e-6) / t, witness=torch.ones(4))


# --- Inside a residual layer ---


class Inside(nn.Module):
    """x − 2Wᵀσ(Wx) with W orthonormal and a σ of one's own; no op takes such a σ."""

    def __init__(self, sigma):
        super().__init__()
        self.sigma = sigma
        self.register_buffer("weight", orthonormal(4, 4).float())

    def forward(self, x):
        return x - 2 * self.sigma(x @ self.weight.T) @ self.weight


def with_sigma(sigma, x):
    """Steepest where the Jacobian says."""
    layer = Inside(sigma)
    return Case(layer, (4,), 1.0, jacobian(layer, layer.weight.double().T @ x))


@mutant("GELU inside a residual layer", LISTED, "PROVED")
def gelu():
    return with_sigma(F.gelu, torch.full((4,), 1.4142, dtype=torch.float64))


@mutant("SiLU inside a residual layer", LISTED, "PROVED")
def silu():
    return with_sigma(F.silu, torch.full((4,), 2.3994, dtype=torch.float64))


@mutant("Mish inside a residual layer", LISTED, "PROVED")
def mish():
    return with_sigma(F.mish, torch.full((4,), 1.4896, dtype=torch.float64))


@mutant("Hardswish inside a residual layer", LISTED, "PROVED")
def hardswish():
    return with_sigma(F.hardswish, torch.full((4,), 2.99, dtype=torch.float64))


@mutant("GroupSort inside a residual layer", LISTED, "NotCertified")
def sort_inside():
    """y − 2·sort(y): a swap gives [[1, −2], [−2, 1]]."""
    return with_sigma(lambda z: z.sort(dim=-1).values, torch.tensor([2.0, 1.0, 3.0, 4.0]).double())


NOT_INSIDE = ("gelu", "silu", "mish", "hardswish", "group_sort", "abs", "ReLU", "")  # no op has these as σ


# --- Numbers that are none ---


@mutant("an infinite γ", f"{LISTED}, 3", "UNKNOWN")
def infinite_gamma():
    layer = residual(orthonormal(6, 4), torch.tensor([0.5, 0.5, 0.5, math.inf]))
    return Case(layer, (6,), 1.0, broken(layer, torch.rand(6)))


@mutant("a NaN in the bias", LISTED, "UNKNOWN")
def nan_bias():
    layer = residual(orthonormal(6, 4), 0.5)
    layer.bias[0] = math.nan
    return Case(layer, (6,), 1.0, broken(layer, torch.rand(6)))


@mutant("a NaN in the weight of nn.Linear", LISTED, "UNKNOWN")
def nan_weight():
    layer = nn.Linear(3, 2)
    layer.weight.data[0, 0] = math.nan
    return Case(layer, (3,), 1.0, broken(layer, torch.rand(3)))


@mutant("LeakyReLU with slope NaN", LISTED, "NotCertified")
def nan_slope():
    layer = nn.LeakyReLU(math.nan)
    return Case(layer, (3,), 1.0, broken(layer, -torch.ones(3)))


@mutant("a zero column, |W| ~ 1e-20 and log q = ±90, frozen", 3, "PROVED", sound=True)
def tiny_columns():
    layer = lc.ResidualLinear(6, 4, bound=lc.bounds.SLL(4))
    with torch.no_grad():
        layer.weight[0], layer.weight[1] = 0.0, 1e-20
        layer.bound.log_q.copy_(torch.tensor([90.0, -90.0, 0.0, 40.0]))
        layer.bias.fill_(50.0)
    frozen = lc.freeze(layer)
    return Case(frozen, (6,), 1.0, jacobian(frozen, torch.rand(6)))


# --- Convolutions ---


def conv(weight, **options):
    made = nn.Conv2d(
        weight.shape[1] * options.get("groups", 1), len(weight), weight.shape[2:], bias=False, **options
    )
    made.weight.data = weight.float()
    return made


@mutant("strided lags in the affine form", f"{LISTED}, 11", "PROVED")
def strided_lags():
    """[1, 1 | 1, −1] with stride 2: C_ij[0] = 2δ_ij, and the lag 1 that T leaves out is not 0."""
    layer = conv(torch.tensor([[[[1.0, 1.0]], [[1.0, -1.0]]]]) / math.sqrt(2), stride=(1, 2))
    return Case(layer, (2, 1, 8), 1.0, affine(layer, (2, 1, 8)))


@mutant("norm of the reshaped kernel", 7, "PROVED")
def reshaped_kernel():
    layer = conv(rand(2, 1, 3, 3).abs(), padding=1)
    return Case(layer, (1, 9, 9), norm(layer.weight.detach().reshape(2, -1)), affine(layer, (1, 9, 9)))


@mutant("norm from a transform of the kernel's size", 7, "PROVED")
def kernel_sized_transform():
    """[1, 0, −1] has its largest response between the three frequencies."""
    layer = conv(torch.tensor([[[[1.0, 0.0, -1.0]]]]), padding=(0, 1))
    claimed = float(torch.fft.fft(layer.weight.detach().flatten().double()).abs().max())
    return Case(layer, (1, 1, 16), claimed, affine(layer, (1, 1, 16)))


@mutant("norm from a transform of the image's size, zero padding", 7, "PROVED")
def image_sized_transform():
    """[1, −2, 1] on three pixels: 3 at the frequencies 0 and ±⅓, more in between."""
    layer = conv(torch.tensor([[[[1.0, -2.0, 1.0]]]]), padding=(0, 2))
    claimed = float(torch.fft.fft(layer.weight.detach().flatten().double()).abs().max())
    return Case(layer, (1, 1, 3), claimed, affine(layer, (1, 1, 3)))


@mutant("groups by product instead of maximum", 8, "PROVED")
def groups_by_product():
    layer = conv(rand(6, 2, 3, 3) * 0.1, padding=1, groups=3)
    each = [conv(part, padding=1) for part in layer.weight.detach().chunk(3)]
    claimed = math.prod(affine(part, (2, 6, 6)) for part in each)
    return Case(layer, (6, 6, 6), claimed, affine(layer, (6, 6, 6)))


CORNER = torch.tensor([[[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]])  # a shift: norm 1 with zeros


def padded(mode):
    layer = conv(CORNER, padding=1, padding_mode=mode)
    return Case(layer, (1, 4, 4), 1.0, affine(layer, (1, 4, 4)))


@mutant("replicate padding", f"{LISTED}, 9", "NotCertified")
def replicate():
    return padded("replicate")


@mutant("reflect padding", "9", "NotCertified")
def reflect():
    return padded("reflect")


@mutant("replicate padding in a residual convolution", LISTED, "PROVED")
def replicate_residual():
    """T = 1 is right for zeros. W is the true adjoint, so that the padding is the only mistake."""

    class Replicating(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("matrix", matrix_of(padded("replicate").module.double(), (1, 4, 4)).float())

        def forward(self, x):
            return x - 2 * (F.relu(x.flatten(1) @ self.matrix.T + 50) @ self.matrix).view_as(x)

    layer = Replicating()
    return Case(layer, (1, 4, 4), 1.0, jacobian(layer, torch.rand(1, 4, 4)))


@mutant("circular padding k//2 with an even kernel", 9, "NotCertified")
def even_circular():
    kernel = torch.full((1, 1, 2, 2), 0.25)
    parts = (kernel, torch.ones(1), torch.full((1,), 50.0), torch.ones(1).double(), "relu")
    layer = ops.ResidualConv(*parts, (1, 1), ((1, 1), (1, 1)), (1, 1), "circular")
    return Case(layer, (1, 3, 3), 1.0, jacobian(layer, torch.rand(1, 3, 3)))


@mutant("stride 2 with dilation 2, the stride counted twice", 11, "PROVED")
def stride_with_dilation():
    layer = conv(torch.ones(1, 1, 1, 2), stride=(1, 2), dilation=(1, 2))
    plain = conv(torch.ones(1, 1, 1, 2), stride=(1, 2))
    return Case(layer, (1, 1, 16), affine(plain, (1, 1, 16)), affine(layer, (1, 1, 16)))


@mutant("even kernel, 'same': the transpose is not the adjoint", 11, "NotCertified")
def no_adjoint():
    class Mismatched(nn.Module):
        def forward(self, x):
            weight = torch.tensor([[[[0.5, 0.5]]]], dtype=x.dtype)
            hidden = F.relu(F.conv2d(F.pad(x, (0, 1)), weight) + 50)
            return x - 2 * F.conv2d(F.pad(hidden, (0, 1)), weight.flip(3))  # shifted by one pixel

    layer = Mismatched()
    return Case(layer, (1, 1, 8), 1.0, jacobian(layer, torch.rand(1, 1, 8)))


# --- Pools, normalisation, activations ---


@mutant("average pooling with divisor_override", f"{LISTED}, 10", "PROVED")
def divisor_override():
    layer = nn.AvgPool2d(2, divisor_override=1)
    return Case(layer, (1, 4, 4), 0.5, affine(layer, (1, 4, 4)))


@mutant("average pooling with ceil_mode", 10, "PROVED")
def ceil_mode():
    layer = nn.AvgPool2d(2, ceil_mode=True)
    return Case(layer, (1, 3, 3), 0.5, affine(layer, (1, 3, 3)))


@mutant("overlapping average pooling as if it did not overlap", 10, "PROVED")
def overlapping_average():
    layer = nn.AvgPool2d(3, stride=1)
    return Case(layer, (1, 9, 9), 1 / 3, affine(layer, (1, 9, 9)))


@mutant("a mean scaled by √k, k not an integer", 10, "PROVED")
def fractional_mean():
    class Scaled(nn.Module):
        def forward(self, x):
            return F.adaptive_avg_pool1d(x, 4) * math.sqrt(5 / 4)

    layer = Scaled()
    return Case(layer, (1, 5), 1.0, affine(layer, (1, 5)))


@mutant("overlapping max pooling counted as 1", 10, "PROVED")
def overlapping_maximum():
    x = torch.zeros(1, 5, 5)
    y = x.clone()
    y[0, 2, 2] = 1.0
    layer = nn.MaxPool2d(3, stride=1)
    return Case(layer, (1, 5, 5), 1.0, quotient(layer, x, y))


@mutant("adaptive average pooling, overlapping windows as if they did not", 10, "PROVED")
def adaptive_average():
    """Five entries in four windows of two: counted as disjoint, each axis would have √(2/4)."""
    layer = nn.AdaptiveAvgPool2d(4)
    return Case(layer, (1, 5, 5), 0.5, affine(layer, (1, 5, 5)))


@mutant("adaptive max pooling, overlapping windows counted as 1", 10, "PROVED")
def adaptive_maximum():
    layer, x = nn.AdaptiveMaxPool2d(4), torch.zeros(1, 5, 5)
    y = x.clone()
    y[0, 1, 1] = 1.0
    return Case(layer, (1, 5, 5), 1.0, quotient(layer, x, y))


def copying(layer, shape):
    """A module that copies entries, counted as 1, as if it only moved them."""
    return Case(layer, shape, 1.0, affine(layer, shape))


@mutant("nn.CircularPad2d counted as 1", 9, "PROVED")
def circular_pad():
    return copying(nn.CircularPad2d(1), (1, 3, 3))


@mutant("nn.ReflectionPad2d counted as 1", 9, "PROVED")
def reflection_pad():
    return copying(nn.ReflectionPad2d(1), (1, 3, 3))


@mutant("nn.ReplicationPad2d counted as 1", 9, "PROVED")
def replication_pad():
    return copying(nn.ReplicationPad2d(2), (1, 3, 3))


@mutant("nearest up-sampling counted as 1", LISTED, "PROVED")
def upsampling():
    return copying(nn.Upsample(scale_factor=2), (1, 3, 3))


@mutant("overlapping patches (nn.Unfold) counted as 1", LISTED, "PROVED")
def patches():
    return copying(nn.Unfold(3, padding=1), (1, 4, 4))


@mutant("rows that are taken twice counted as 1", LISTED, "PROVED")
def repeated_rows():
    return copying(ops.Select((None, (0, 1, 1, -1, 2), None)), (2, 3, 2))


@mutant("a combination with weights of sum 2 counted as 1", LISTED, "PROVED")
def heavy_combination():
    return copying(Network([Node("sum", ops.Combination(torch.tensor([1.5, 0.5])), (INPUT, INPUT))]), (3,))


class Forward(nn.Module):
    """A module with a forward of its own: a function of one layer and the input."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.function, self.layer = function, layer
        self.eval()

    def forward(self, x):
        return self.function(self.layer, x)


@mutant("a skip connection x + f(x) counted as f alone", LISTED, "PROVED")
def skip_counted_as_its_branch():
    layer = linear(0.75 * torch.eye(3))
    return Case(Forward(lambda f, x: x + f(x), layer), (3,), 0.75, 1.75)


@mutant("a module that is used twice counted once", LISTED, "PROVED")
def shared_module():
    layer = linear(1.5 * orthonormal(3, 3))
    module = Forward(lambda f, x: f(f(x)), layer)
    return Case(module, (3,), 1.5, affine(module, (3,)))


@mutant("a concatenation counted as the largest of its branches", LISTED, "PROVED")
def concatenation():
    module = Forward(lambda f, x: torch.cat([x, f(x)], dim=1), linear(orthonormal(3, 3)))
    return Case(module, (3,), 1.0, affine(module, (3,)))


@mutant("x + y with y broadcast, counted as 1 + L(y)", LISTED, "NotCertified")
def broadcast_addition():
    module = Forward(lambda f, x: x + x[:, :1])
    return Case(module, (9,), 2.0, affine(module, (9,)))


def tripled_in_place(layer, x):
    y = 1 * x
    first = y[:, :1]
    first *= 3
    return y


@mutant("an operation in place on a view, as if it made a new tensor", LISTED, "NotCertified")
def view_in_place():
    module = Forward(tripled_in_place)
    return Case(module, (3,), 1.0, affine(module, (3,)))


def read_again(layer, x):
    y = -3 * x
    z = F.relu(y, inplace=True)
    return y + z


@mutant("a value read after ReLU has overwritten it, counted as the value before", LISTED, "NotCertified")
def overwritten():
    """−3x + relu(−3x) has slopes −3 and −6, and 2·relu(−3x) has 0 and −6: claimed is that of relu(−3x) alone."""
    module = Forward(read_again)
    return Case(module, (1,), 3.0, quotient(module, torch.tensor([-1.0]), torch.tensor([-2.0])))


@mutant("a view with a fixed number of examples, counted as one that keeps them", LISTED, "NotCertified")
def fixed_batch():
    module = Forward(lambda f, x: x.view(2, -1)[:, :3])
    examples = len(module(torch.zeros(4, 3)))
    return Case(module, (3,), 1.0, 1.0 if examples == 4 else math.inf)


@mutant("the mean over the batch taken off, counted as if examples stayed apart", LISTED, "NotCertified")
def mean_of_the_batch():
    """The answer for one example moves with another one."""
    module, x = Forward(lambda f, x: x - x.mean(0)), torch.zeros(2, 3)
    y = x.clone()
    y[1] = 1.0
    return Case(module, (3,), 2.0, math.inf if bool((module(x)[0] != module(y)[0]).any()) else 2.0)


@mutant("log_softmax counted as 1", 15, "PROVED")
def log_softmax():
    """I − 1pᵀ with p = e_1: √4."""
    layer = nn.LogSoftmax(dim=1)
    return Case(layer, (4,), 1.0, jacobian(layer, torch.tensor([60.0, 0.0, 0.0, 0.0])))


@mutant("GELU that stands alone counted as 1", 15, "PROVED")
def gelu_alone():
    layer = nn.GELU()
    return Case(layer, (3,), 1.0, jacobian(layer, torch.full((3,), 1.4142, dtype=torch.float64)))


@mutant("Hardswish that stands alone counted as 1", 15, "PROVED")
def hardswish_alone():
    layer = nn.Hardswish()
    return Case(layer, (3,), 1.0, jacobian(layer, torch.full((3,), 2.999, dtype=torch.float64)))


@mutant("a sandwich layer as its residual, A and B each orthonormal on its own", LISTED, "REFUTED")
def sandwich_of_orthonormals():
    a = b = orthonormal(5, 4, seed=1)
    weight = torch.cat([b, -a], dim=1).float()  # rows of norm √2 where AAᵀ + BBᵀ = I would have 1
    layer = ops.ResidualLinear(weight, torch.ones(4), torch.full((4,), 9.0), None, "relu")
    matrix = matrix_of(copy.deepcopy(layer).double(), (10,))
    return Case(layer, (10,), 1.0, norm(matrix[5:, :5]))  # from x to what takes the place of the zeros behind it


@mutant("a reflection by a vector that is too long", LISTED, "REFUTED")
def long_reflection():
    vectors = torch.tensor([[0.9, 0.6], [0.6, -0.9]])
    layer = ops.ResidualLinear(-vectors, torch.ones(2), None, None, "relu", axis=0, groups=2)
    x = torch.tensor([[-0.9, -0.6, 0.0, 0.0]], dtype=torch.float64)
    return Case(layer, (4,), 1.0, float(torch.linalg.vector_norm(copy.deepcopy(layer).double()(x)) / x.norm()))


def in_waves(kernel, image):
    """A circular convolution as it is stored: waves and blocks, float32."""
    return *(waves(size).float() for size in image), blocks_of(kernel, image).float()


@mutant("waves whose cosines and sines are not normalised", LISTED, "PROVED")
def long_waves():
    rows, columns, blocks = in_waves(orthonormal(3, 3)[:, :, None, None], (4, 4))
    rows[2:] *= 2**0.5  # √(2/N) is for those that occur twice; here once more
    layer = ops.Circular(rows, columns, blocks, None)
    return Case(layer, (3, 4, 4), 1.0, affine(layer, (3, 4, 4)))


@mutant("a circular residual in waves, its blocks not divided by their norm", LISTED, "REFUTED")
def long_blocks():
    kernel = torch.zeros(2, 2, 3, 3, dtype=torch.float64)
    kernel[:, :, 1, 1], kernel[:, :, 1, 2] = torch.eye(2), 0.5 * torch.eye(2)
    layer = ops.ResidualCircular(*in_waves(kernel, (4, 5)), torch.ones(2), torch.full((2,), 9.0), "relu")
    return Case(layer, (2, 4, 5), 1.0, jacobian(layer, torch.zeros(2, 4, 5)))


@mutant("division by std ignored", 12, "PROVED")
def std_ignored():
    layer = lc.layers.Normalize([0.5, 0.5], [0.25, 0.5])
    return Case(layer, (2, 3, 3), 1.0, affine(layer, (2, 3, 3)))


@mutant("1/max(std) instead of 1/min(std)", 12, "PROVED")
def largest_std():
    layer = lc.layers.Normalize([0.5, 0.5], [0.25, 0.5])
    return Case(layer, (2, 3, 3), 2.0, affine(layer, (2, 3, 3)))


@mutant("batch normalisation counted as 1", 12, "PROVED")
def batch_norm():
    layer = nn.BatchNorm2d(2).eval()
    layer.running_var.copy_(torch.tensor([0.04, 1.0]))
    return Case(layer, (2, 3, 3), 1.0, affine(layer, (2, 3, 3)))


# --- Orthogonal, or nearly ---


def linear(weight):
    return ops.Linear(weight.float(), None)


@mutant("an exponential series of a skew matrix cut after order 5", 13, "PROVED")
def short_series():
    a = rand(8, 8)
    skew = a - a.T
    skew, total, power = skew * (1.6 / norm(skew)), torch.eye(8).double(), torch.eye(8).double()
    for order in range(1, 6):
        power = power @ skew / order
        total = total + power
    layer = linear(total)
    return Case(layer, (8,), 1.0, affine(layer, (8,)))


@mutant("two Björck steps after a power iteration that was too low", 13, "PROVED")
def few_steps():
    weight = orthonormal(6, 6) * torch.tensor([2.2, 1, 1, 0.9, 0.8, 0.7]).double()
    for _ in range(2):
        weight = 1.5 * weight - 0.5 * weight @ weight.T @ weight
    layer = linear(weight)
    return Case(layer, (6,), 1.0, affine(layer, (6,)))


@mutant("an orthogonal matrix rounded to float32", 18, "PROVED")
def rounded_orthogonal():
    layer = linear(orthonormal(48, 48))
    return Case(layer, (48,), 1.0, affine(layer, (48,)))


def tracked(matrix, iterate):
    layer = lc.layers.TrackedLinear(matrix.shape[1], len(matrix), bias=False)
    layer.weight.data = matrix.float()
    layer.iterate.copy_(iterate)
    return layer


@mutant("the norm estimate of a tracked layer taken as its norm", 6, "PROVED")
def estimate_as_norm():
    layer = tracked(torch.diag(torch.tensor([1.0, 1.25])), torch.tensor([1.0, 1e-4]))
    return Case(layer, (2,), float(layer.norm_estimate().detach()), affine(layer, (2,)))


@mutant("power iteration from ones, which are orthogonal to the first singular vector", 6, "PROVED")
def power_iteration_from_ones():
    layer = tracked(torch.tensor([[2.5, -1.5], [-1.5, 2.5]]), torch.ones(2))
    return Case(layer, (2,), float(layer.norm_estimate(500).detach()), affine(layer, (2,)))


@mutant("a layer that subtracts the mean of its batch, in training mode", LISTED, "NotCertified")
def batch_mean():
    """The same image in two batches has two outputs: no constant covers that."""
    layer = lc.layers.LinearResidualConv2d(1, center=True).train()
    layer.weight.data.fill_(1.0)
    image = torch.zeros(1, 1, 2, 2)
    with torch.no_grad():
        outputs = [layer(torch.cat((image, image + other)))[0] for other in (1.0, 2.0)]
    return Case(layer, (1, 2, 2), 10.0, 0.0 if torch.equal(*outputs) else math.inf)


@mutant("a centering that subtracts the mean of its batch in evaluation mode, too", LISTED, "NotCertified")
def batch_mean_in_evaluation():
    class Wrong(lc.layers.BatchCentering):
        def forward(self, x):
            return x - x.mean(dim=(0, 2, 3), keepdim=True)

    layer, image = Wrong(1).eval(), torch.zeros(1, 1, 2, 2)
    outputs = [layer(torch.cat((image, image + other)))[0] for other in (1.0, 2.0)]
    return Case(layer, (1, 2, 2), 1.0, 0.0 if torch.equal(*outputs) else math.inf)


@mutant("a transposed convolution divided by the root of its largest tap sum, without lags", LISTED, "PROVED")
def transposed_without_lags():
    """Two inputs side by side share an output where the kernel is longer than the stride."""
    layer = nn.ConvTranspose1d(1, 1, 3, stride=2, bias=False)
    layer.weight.data.fill_(3**-0.5)
    return Case(layer, (1, 9), 1.0, affine(layer, (1, 9)))


@mutant("up-sampling by 3 × 3 divided by 2", LISTED, "PROVED")
def upsampling_divided_by_less():
    layer = nn.Sequential(nn.Upsample(scale_factor=3), lc.layers.Scale(0.5))
    return Case(layer, (1, 2, 2), 1.0, affine(layer, (1, 2, 2)))


@mutant("a norm cached before the weight changed", 14, "PROVED")
def stale_norm():
    layer = nn.Linear(6, 4)
    layer.weight.data = orthonormal(6, 4).float()
    before = lc.audit(layer, (6,)).lipschitz
    layer.weight.data *= 1.5
    return Case(layer, (6,), before, affine(layer, (6,)))


@mutant("a proof kept by an op whose weight changed", 14, "PROVED")
def stale_op():
    layer = linear(orthonormal(6, 4))
    before = lc.audit(layer, (6,)).lipschitz
    layer.weight *= 1.5
    return Case(layer, (6,), before, affine(layer, (6,)))


@mutant("a proof kept by a residual whose γ changed", 14, "REFUTED")
def stale_residual():
    layer = residual(orthonormal(6, 4), 1 - 2.0**-20, witness=torch.ones(4))
    before = lc.audit(layer, (6,)).lipschitz
    layer.gamma *= 1.5
    return Case(layer, (6,), before, jacobian(layer, torch.rand(6)))


@mutant("a proof shared by the copies of an op, one of which changed", 14, "PROVED")
def stale_copy():
    layer = linear(orthonormal(6, 4))
    before, copied = lc.audit(layer, (6,)).lipschitz, layer.clone()
    copied.weight[0] *= 1.25
    return Case(copied, (6,), before, affine(copied, (6,)))


@mutant("a frozen network after its origin was trained on", 14, "PROVED", sound=True)
def frozen_stays():
    layer = lc.ResidualLinear(6, 4)
    frozen = lc.freeze(layer)
    with torch.no_grad():
        layer.weight.mul_(3.0)
        layer.bias.fill_(9.0)
    return Case(frozen, (6,), 1.0, jacobian(frozen, torch.rand(6)))


# --- Modules nobody vouched for ---


class Loud(nn.ReLU):
    def forward(self, x):
        return 3 * super().forward(x)


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


@mutant("an unknown module counted as 1", 15, "PROVED")
def unknown_module():
    return Case(Loud(), (3,), 1.0, quotient(Loud(), torch.ones(3), torch.zeros(3)))


@mutant("a container whose constant is not its children's", 16, "PROVED")
def container():
    layer = Doubled(nn.ReLU())
    return Case(layer, (3,), 1.0, quotient(layer, torch.ones(3), torch.zeros(3)))


class Quiet(ops.Linear):
    """An op that says 1 of itself."""

    def prove(self, shape, block=None):
        return dataclasses.replace(super().prove(shape, block), lipschitz=1.0)


@mutant("an op of one's own that proves itself", 15, "NotCertified")
def own_op():
    layer = Quiet(3 * orthonormal(6, 4).float(), None)
    return Case(layer, (6,), 1.0, affine(layer, (6,)))


@mutant("a forward hook on an op", 15, "NotCertified")
def hooked_op():
    layer = linear(orthonormal(6, 4))
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return Case(layer, (6,), 1.0, affine(layer, (6,)))


@mutant("a forward hook on nn.ReLU", 15, "NotCertified")
def hooked():
    layer = nn.ReLU()
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return Case(layer, (3,), 1.0, quotient(layer, torch.ones(3), torch.zeros(3)))


@mutant("MaxMin across the examples of a batch", 15, "NotCertified")
def batch_mixing():
    """One example moves, both answers do: as a map of its example alone it is none."""
    layer = lc.layers.MaxMin(dim=0)
    x, y = torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[0.0], [-1.0]]).double()
    with torch.no_grad():
        moved = float((layer(x)[0] - layer(y)[0]).norm())  # the first example is the same in both
    return Case(layer, (1,), 1.0, math.inf if moved > 0 else 0.0)


@mutant("two rounded tensors, W and 2WΓ", 18, "PROVED")
def untied():
    class Untied(nn.Module):
        def __init__(self):
            super().__init__()
            weight = orthonormal(48, 48)
            self.register_buffer("weight", weight.float())
            self.register_buffer("back", (2 * weight.T * (1 - 2.0**-30)).float())

        def forward(self, x):
            return x - F.linear(F.relu(F.linear(x, self.weight) + 50), self.back)

    layer = Untied()
    return Case(layer, (48,), 1.0, jacobian(layer, torch.rand(48)))


@mutant("a multiplier that is not diagonal (LipSDP's network modes)", 17, "NotCertified")
def full_multiplier():
    """T = WᵀW, full: I − 2WT⁻¹DWᵀ is an oblique reflection when one neuron is active."""

    class Full(nn.Module):
        def forward(self, x):
            w = torch.tensor([[1.0, 0.0], [0.9, 0.3]], dtype=x.dtype)  # Wᵀ
            z = F.relu(F.linear(x, w) + torch.tensor([50.0, -50.0], dtype=x.dtype))
            return x - 2 * z @ torch.linalg.inv(w @ w.T) @ w

    layer = Full()
    return Case(layer, (2,), 1.0, jacobian(layer, torch.rand(2)))


# --- The checker: a certificate of the mutant at its true constant, and at the claimed one ---


def network_of(case, seed=0):
    """The module, then a linear head with three classes."""
    with torch.no_grad():
        out = copy.deepcopy(case.module).double()(torch.zeros(1, *case.shape, dtype=torch.float64))
    head = ops.Linear(rand(3, out[0].numel(), seed=seed).float(), None)
    middle = [nn.Flatten()] if out.ndim > 2 else []
    return nn.Sequential(case.module, *middle, head)


def write(folder, network, shape, count=6):
    """A certificate of six random inputs, as the library writes it."""
    images = torch.rand(count, *shape, generator=torch.Generator().manual_seed(7))
    links = prove(network, shape)
    with torch.no_grad():
        labels = copy.deepcopy(network).double()(images.double()).argmax(dim=1)
    return write_certificate(folder, links, network, images, lc.certify(links, images, labels))


def claimed_instead(path, claimed):
    """The same certificate, its first layer and its product with the constant that the mistake claims."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["nodes"][0]["lipschitz"] = content["lipschitz"] = float(claimed).hex()
    path.write_text(json.dumps(content), encoding="utf-8")


def exit_code(path):
    with contextlib.redirect_stderr(io.StringIO()):
        return checker.main([str(path), "--quiet"])


CODES = {0: "accepts", 1: "refutes", 2: "malformed"}


def ask_checker(case, folder):
    """(verdict at the constant proved, verdict at the claimed one), or None where the format has no such layer."""
    try:
        path = write(folder, network_of(case), case.shape)
    except lc.NotCertified:
        return None
    honest = CODES[exit_code(path)]
    claimed_instead(path, case.claimed)
    return honest, CODES[exit_code(path)]


# --- Certificates tampered with ---


@dataclasses.dataclass(frozen=True)
class Tampering:
    """A change to the files of a true certificate."""

    name: str
    change: Callable[[dict, dict], None]  # of the JSON and of the tensors, by name
    verdict: str
    rehash: bool = True  # whether the hashes are made to fit


def sound_network():
    """A tight residual layer and a head: nothing is left to gain, so every tampering shows."""
    return nn.Sequential(residual(orthonormal(6, 4), 1 - 2.0**-20, witness=torch.ones(4)), linear(rand(3, 6)))


def _tensor(key, function):
    return lambda content, tensors: tensors.update({key: function(tensors[key].copy())})


def _set(array, index, value):
    array.reshape(-1)[index] = value
    return array


def _bigger_radius(content, tensors):
    content["claims"][0][2] = (float.fromhex(content["claims"][0][2]) * (1 + 1e-6)).hex()


def _other_label(content, tensors):
    content["claims"][0][1] = (content["claims"][0][1] + 1) % 3


def _head(array):
    return array * np.float32([[3], [1], [1]])


def _constant(content, tensors):
    content["nodes"][0]["lipschitz"] = (0.999).hex()


def _field(**values):
    return lambda content, tensors: content["nodes"][0].update(values)


TAMPERINGS = [
    Tampering(
        "one number of a tensor", _tensor("0.weight", lambda a: _set(a, 0, a.flat[0] + 1e-3)), "refutes", False
    ),
    Tampering("γ × 1.05, hashes made to fit", _tensor("0.gamma", lambda a: a * np.float32(1.05)), "refutes"),
    Tampering("a row of the head × 3, hashes made to fit", _tensor("1.weight", _head), "refutes"),
    Tampering("the bias, hashes made to fit", _tensor("0.bias", lambda a: a - np.float32(49.9)), "refutes"),
    Tampering("a radius × (1 + 1e-6)", _bigger_radius, "refutes"),
    Tampering("a label", _other_label, "refutes"),
    Tampering("a layer's constant 0.999", _constant, "refutes"),
    Tampering("an infinite γ", _tensor("0.gamma", lambda a: _set(a, 0, np.inf)), "malformed"),
    Tampering("a NaN in the bias", _tensor("0.bias", lambda a: _set(a, 0, np.nan)), "malformed"),
    Tampering("GELU as the activation", _field(activation="gelu"), "malformed"),
    Tampering("a layer of another kind", _field(op="residual_softmax"), "malformed"),
]


def tamper(tampering, folder):
    """The verdict of the checker on a true certificate with that change."""
    path = write(folder, sound_network(), (6,))
    assert exit_code(path) == 0
    content, tensors = json.loads(path.read_text(encoding="utf-8")), load_file(folder / "certificate.safetensors")
    tampering.change(content, tensors)
    save_file(tensors, folder / "certificate.safetensors")
    if tampering.rehash:
        for name, value in tensors.items():
            head = f"{value.dtype.name}|{','.join(map(str, value.shape))}|".encode()
            content["tensors"][name] = hashlib.sha256(head + value.tobytes()).hexdigest()
    path.write_text(json.dumps(content), encoding="utf-8")
    return CODES[exit_code(path)]


# --- Radii: mistakes that leave the constants alone ---


def tie():
    """(network, input, label, what is claimed, the true radius): two logits that are equal."""
    network = linear(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    return network, torch.tensor([[1.0, 1.0]]), 0, math.nan, 0.0


def top_nine():
    """12 classes; nine rivals are second by logit and far away, the tenth is far below and near.

    Normalised distance (f_y − f_j)/‖w_y − w_j‖ is what counts, so the ranking by logits misses the nearest.
    """
    rows = torch.zeros(12, 12)
    rows[0, 0] = 10.0  # the label, at x = e_0·1
    for j in range(1, 11):
        rows[j, 0], rows[j, j] = 9.0, 1.0  # margin 1, distance √2
    bias = torch.zeros(12)
    rows[11, 0], rows[11, 11] = 10.0, 20.0  # margin 2 by its bias, distance 20
    bias[11] = -2.0
    network = ops.Linear(rows, bias)
    x = torch.zeros(1, 12)
    x[0, 0] = 1.0
    logits = network(x)[0].double()
    nearest = logits[1:].topk(9).indices + 1
    claimed = min(float((logits[0] - logits[j]) / (rows[0] - rows[j]).double().norm()) for j in nearest)
    true = min(float((logits[0] - logits[j]) / (rows[0] - rows[j]).double().norm()) for j in range(1, 12))
    return network, x, 0, claimed, true


RADII = {"ties between logits (4)": tie, "the nine largest rivals only (5)": top_nine}


# --- The table ---


@dataclasses.dataclass(frozen=True)
class Row:
    """What happened to one mutant."""

    mutant: Mutant
    case: Case
    verdict: str
    lower: float
    upper: float
    checker: tuple[str, str] | None


def run(one, folder):
    torch.manual_seed(0)
    case = one.build()
    try:
        report = lc.audit(case.module, case.shape)
    except lc.NotCertified:
        return Row(one, case, "NotCertified", 0.0, math.inf, None)
    layers = report.layers
    verdict = next((layer.verdict for layer in layers if layer.verdict != "PROVED"), "PROVED")
    lower, upper = (layers[0].lower, layers[0].upper) if len(layers) == 1 else (report.lower, report.lipschitz)
    return Row(one, case, verdict, lower, upper, ask_checker(case, folder))


def shown(value):
    if not math.isfinite(value):
        return "none"
    return f"1 + {value - 1:.1e}" if 1e-12 < value - 1 < 1e-4 else f"{value:.4g}"


def outcome(row):
    """The group of the page that a row belongs to."""
    if row.checker is not None and row.checker[1] == "accepts":
        return "sound"
    return row.verdict


def lines_of(header, rows):
    """A table of Markdown."""
    cells = [[cell.replace("|", chr(92) + "|") for cell in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def counts(rows, tampered, radii):
    """The Markdown at the top of docs/mutants.md: how many mistakes had which outcome."""
    number = collections.Counter(map(outcome, rows))
    caught = sum(verdict in ("refutes", "malformed") for _, verdict in tampered)
    return lines_of(
        ["outcome", "number"],
        [
            ["`audit` refutes the claim by two points (REFUTED)", str(number["REFUTED"])],
            ["`audit` proves a larger constant than claimed (PROVED)", str(number["PROVED"])],
            ["`audit` proves no finite constant (UNKNOWN)", str(number["UNKNOWN"])],
            ["`audit` rejects the module (NotCertified)", str(number["NotCertified"])],
            ["the change is harmless, and its claim is proved", str(number["sound"])],
            ["changed certificates that the checker rejects", f"{caught} of {len(tampered)}"],
            ["wrong radii that `certify` avoids", f"{sum(r <= t for *_, t, r in radii)} of {len(radii)}"],
        ],
    )


GROUPS = {
    "REFUTED": "REFUTED: two points contradict the claim",
    "PROVED": "PROVED: the proved constant is larger than the claim",
    "UNKNOWN": "UNKNOWN: no finite constant",
    "NotCertified": "NotCertified: the module is rejected",
    "sound": "Harmless changes",
}


def table(rows, tampered, radii):
    """The Markdown of results/mutants.md, a table for each outcome."""
    texts = []
    for group, title in GROUPS.items():
        header = ["what is wrong", "mistake", "claimed L", "true L ≥"]
        header += ["proved L", "checker"] * (group in ("REFUTED", "PROVED", "sound"))
        lines = []
        for row in rows:
            if outcome(row) == group:
                source = ", ".join(word for word in row.mutant.source.split(", ") if word.isdigit()) or "–"
                cells = [row.mutant.name, source, shown(row.case.claimed), shown(row.case.truth)]
                cells += [shown(row.upper), "–" if row.checker is None else row.checker[1]]
                lines.append(cells[: len(header)])
        texts += [f"### {title}", lines_of(header, lines)]
    texts += ["### Changed certificates", lines_of(["change to a true certificate", "checker"], tampered)]
    wrong = [[name, "NaN" if math.isnan(c) else f"{c:.4g}", f"{t:.4g}", f"{r:.4g}"] for name, c, t, r in radii]
    texts += ["### Wrong radii", lines_of(["mistake", "claimed", "true", "`certify`"], wrong)]
    return "\n\n".join(texts)


def certified(network, x, label):
    return float(lc.certify(network, x, torch.tensor([label])).radii[0])


def page(folder):
    """The whole table, made now; ``folder`` is for scratch files."""
    rows = [run(one, folder / str(i)) for i, one in enumerate(MUTANTS)]
    tampered = [(t.name, tamper(t, folder / f"t{i}")) for i, t in enumerate(TAMPERINGS)]
    radii = []
    for name, make in RADII.items():
        network, x, label, claimed, true = make()
        radii.append((name, claimed, true, certified(network, x, label)))
    return rows, tampered, radii
