"""docs/porting.md: every layer of torchlip and orthogonium is in a table, and every row is built and proved."""

import copy
import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import lipcert as lc
from paths import ROOT

L = lc.layers
C, SIZE = 4, 6  # channels and size of the images
IMAGE = (C, SIZE, SIZE)


@pytest.fixture(scope="module")
def tl():
    return pytest.importorskip("deel.torchlip")


@pytest.fixture(scope="module")
def ol():
    """Every module of orthogonium.layers in one namespace."""
    package, found = pytest.importorskip("orthogonium.layers"), {}
    for info in pkgutil.walk_packages(package.__path__, "orthogonium.layers."):
        module = importlib.import_module(info.name)
        own = {n: v for n, v in vars(module).items() if inspect.isclass(v) and v.__module__ == info.name}
        found |= {name: kind for name, kind in own.items() if issubclass(kind, nn.Module)}
    return SimpleNamespace(**found)


@dataclasses.dataclass(frozen=True)
class Row:
    """``theirs`` from the library; ``ours`` from their layer, with its weights where the functions are the same."""

    theirs: Callable
    ours: Callable
    shape: tuple[int, ...] = IMAGE
    same: bool = True
    constant: float = 1.0


def stored(layer):
    """A copy of their layer with the weight of this moment."""
    layer = copy.deepcopy(layer).eval()
    for name in list(getattr(layer, "parametrizations", [])):
        parametrize.remove_parametrizations(layer, name, leave_parametrized=True)
    return layer


def with_weights(ours, **tensors):
    """Our layer with these numbers in its parameters and buffers."""
    state = ours.state_dict()
    state.update({name.replace("__", "."): value.detach().reshape(state[name.replace("__", ".")].shape)
                  for name, value in tensors.items()})  # fmt: skip
    ours.load_state_dict(state)
    return ours


def linear_head(theirs):
    return with_weights(lc.NormalizedHead(8, 5), weight=theirs.weight, bias=theirs.bias)


def crelu(channels):
    shuffles = nn.ChannelShuffle(2), nn.ChannelShuffle(channels)
    return nn.Sequential(L.PadChannels(2 * channels), shuffles[0], L.MaxMin(), shuffles[1], L.Abs())


def halves(layer, channels):
    """A layer of pairs of neighbors, for pairs (i, i + c/2)."""
    return nn.Sequential(nn.ChannelShuffle(2), layer, nn.ChannelShuffle(channels // 2))


def householder(theirs):
    return halves(with_weights(L.Householder(C), theta=theirs.theta + 2 * math.pi), C)


def mixture(alpha, branch):
    """σ(α)x + (1 − σ(α))f(x)."""
    return with_weights(L.ConvexCombination(nn.Identity(), branch), logits=torch.stack([alpha, 0 * alpha]))


def centering(mean, bias):
    return with_weights(L.BatchCentering(C), mean=mean, bias=bias)


def trained(layer, *shape):
    """With a running mean and a bias that are not 0, in evaluation mode."""
    for _ in range(3):
        layer(2 * torch.randn(16, *shape) + 1)
    if getattr(layer, "bias", None) is not None:
        nn.init.normal_(layer.bias)
    return layer.eval()


class Called(nn.Module):
    """A residual of torchlip, which takes both ends, with its branch."""

    def __init__(self, residual, branch):
        super().__init__()
        self.residual, self.branch = residual, branch
        nn.init.constant_(residual.alpha, 0.7)

    def forward(self, x):
        return self.residual(x, self.branch(x))


def after_centering(theirs):
    scale = float(theirs.get_scaling(training=False))
    mean = theirs.running_sum_bmean / theirs.running_num_batches
    return nn.Sequential(centering(mean, theirs.bias / scale), L.Scale(scale))


def torchlip_rows(tl):
    vector, conv = (8,), (C, 2, 3)
    affine = {"bound": "spectral", "padding": 1}
    return {
        "SpectralLinear": Row(
            lambda: tl.SpectralLinear(8, 5), lambda t: lc.OrthogonalLinear(8, 5, method="bjorck"), vector, False
        ),
        "FrobeniusLinear": Row(lambda: tl.FrobeniusLinear(8, 5), linear_head, vector, constant=math.sqrt(5)),
        "SpectralConv1d": Row(
            lambda: tl.SpectralConv1d(*conv, padding=1), lambda t: lc.AffineConv1d(*conv, **affine), (C, 9), False
        ),
        "SpectralConv2d": Row(
            lambda: tl.SpectralConv2d(*conv, padding=1), lambda t: lc.AffineConv2d(*conv, **affine), IMAGE, False
        ),
        "FrobeniusConv2d": Row(
            lambda: tl.FrobeniusConv2d(C, 1, 3, padding=1),
            lambda t: lc.AffineConv2d(C, 1, 3, **affine),
            IMAGE,
            False,
        ),
        "SpectralConvTranspose2d": Row(
            lambda: tl.SpectralConvTranspose2d(C, 2, 2, stride=2),
            lambda t: lc.AffineConvTranspose2d(C, 2, 2, stride=2, bound="spectral"),
            IMAGE,
            False,
        ),
        "PadConv1d": Row(
            lambda: tl.PadConv1d(*conv, padding=1, padding_mode="circular"),
            lambda t: with_weights(
                nn.Conv1d(*conv, padding=1, padding_mode="circular"), weight=t.weight, bias=t.bias
            ),
            (C, 9),
            constant=10.0,
        ),
        "PadConv2d": Row(
            lambda: tl.PadConv2d(*conv, padding=1),
            lambda t: with_weights(nn.Conv2d(*conv, padding=1), weight=t.weight, bias=t.bias),
            constant=10.0,
        ),
        "ScaledAvgPool2d": Row(lambda: tl.ScaledAvgPool2d(2), lambda t: L.ScaledAvgPool2d(2)),
        "ScaledAdaptiveAvgPool2d": Row(
            lambda: tl.ScaledAdaptiveAvgPool2d((1, 1)), lambda t: L.ScaledAvgPool2d((SIZE, SIZE))
        ),
        "ScaledL2NormPool2d": Row(lambda: tl.ScaledL2NormPool2d(2), lambda t: L.L2Pool2d(2)),
        "ScaledAdaptativeL2NormPool2d": Row(
            lambda: tl.ScaledAdaptativeL2NormPool2d((1, 1)), lambda t: L.L2Pool2d((SIZE, SIZE))
        ),
        "InvertibleDownSampling": Row(lambda: tl.InvertibleDownSampling(2), lambda t: L.SpaceToDepth(2)),
        "InvertibleUpSampling": Row(lambda: tl.InvertibleUpSampling(2), lambda t: nn.PixelShuffle(2)),
        "MaxMin": Row(tl.MaxMin, lambda t: crelu(C)),
        "GroupSort": Row(lambda: tl.GroupSort(4), lambda t: L.GroupSort(4), vector),
        "GroupSort2": Row(tl.GroupSort2, lambda t: L.GroupSort(2), vector),
        "FullSort": Row(tl.FullSort, lambda t: L.GroupSort(8), vector),
        "LPReLU": Row(lambda: tl.LPReLU(C), lambda t: with_weights(nn.PReLU(C), weight=t.weight)),
        "HouseHolder": Row(lambda: tl.HouseHolder(C, theta_initializer="normal"), householder),
        "BatchCentering": Row(
            lambda: trained(tl.BatchCentering(C), *IMAGE),
            lambda t: centering(t.running_sum_bmean / t.running_num_batches, t.bias),
        ),
        "LayerCentering": Row(
            lambda: trained(tl.LayerCentering(C), *IMAGE),
            lambda t: with_weights(L.LayerCentering((SIZE, SIZE), channels=C), bias=t.bias),
        ),
        "BatchLipNorm": Row(lambda: trained(tl.BatchLipNorm(C), *IMAGE), after_centering, constant=10.0),
        "ScaleBiasLayer": Row(
            lambda: trained(tl.ScaleBiasLayer(0.3, C), *IMAGE),
            lambda t: nn.Sequential(L.Scale(0.3), centering(torch.zeros(C), t.bias)),
        ),
        "LipResidual": Row(
            lambda: Called(tl.LipResidual(), lc.AffineLinear(8, 8)),
            lambda t: mixture(t.residual.alpha, copy.deepcopy(t.branch)),
            vector,
        ),
        "Sequential": Row(
            lambda: tl.Sequential(tl.GroupSort2(), tl.FullSort(), k_coef_lip=4.0),
            lambda t: nn.Sequential(L.GroupSort(2), L.GroupSort(8), L.Scale(4.0)),
            vector,
            constant=4.0,
        ),
    }


def residual_block(theirs):
    """Their kernel is divided by √T inside and outside; ours has T⁻¹ behind the activation."""
    ours = lc.ResidualConv2d(C, theirs.kernel.shape[0], bound="aol")
    with_weights(ours, weight=theirs.parametrizations.kernel.original)
    t = ours.bound(ours.columns())[1]
    return with_weights(ours, bias=theirs.bias.flatten() * t.sqrt())


def prescaled(theirs):
    alpha = float(theirs.alpha.detach())
    branch = nn.Sequential(L.Scale(alpha), copy.deepcopy(theirs.fn), L.Scale(1 / abs(alpha)))
    ours = L.ConvexCombination(nn.Identity(), branch)
    return with_weights(ours, logits=torch.tensor([0.0, math.log(abs(alpha))]))


def orthogonium_rows(ol):
    vector, conv = (8,), (C, 3, 3)

    def orthogonal(theirs, outputs, kernel, method, *after, **settings):
        return Row(
            theirs,
            lambda t: nn.Sequential(
                lc.OrthogonalConv2d(C, outputs, kernel, image_size=SIZE, method=method, **settings), *after
            ),
            IMAGE,
            False,
        )

    def weights(ours):
        return lambda t: with_weights(ours(), weight=t.parametrizations.weight.original, bias=t.bias)

    up, strided = nn.PixelShuffle(2), {"stride": 2, "padding": 0}
    return {
        "OrthoLinear": Row(
            lambda: stored(ol.OrthoLinear(8, 5)),
            lambda t: with_weights(lc.OrthogonalLinear(8, 5, method="bjorck"), weight=t.weight, bias=t.bias),
            vector,
        ),
        "UnitNormLinear": Row(lambda: ol.UnitNormLinear(8, 5), linear_head, vector, constant=math.sqrt(5)),
        "FastBlockConv2d": orthogonal(lambda: ol.FastBlockConv2d(*conv), 3, 3, "bcop"),
        "BcopRkoConv2d": orthogonal(lambda: ol.BcopRkoConv2d(C, 8, 4, stride=2, padding=1), 8, 1, "bcop", stride=2),
        "RKOConv2d": orthogonal(lambda: ol.RKOConv2d(C, 8, 2, **strided), 8, 1, "bcop", stride=2),
        "FastBlockConvTranspose2D": orthogonal(lambda: ol.FastBlockConvTranspose2D(*conv, padding=1), 3, 3, "bcop"),
        "BcopRkoConvTranspose2d": orthogonal(
            lambda: ol.BcopRkoConvTranspose2d(C, 2, 4, stride=2, padding=1), 8, 1, "bcop", up
        ),
        "RkoConvTranspose2d": orthogonal(lambda: ol.RkoConvTranspose2d(C, 2, 2, stride=2), 8, 1, "bcop", up),
        "FastSOC": orthogonal(lambda: ol.FastSOC(*conv), 3, 3, "exp"),
        "SOCRkoConv2d": orthogonal(lambda: ol.SOCRkoConv2d(C, 8, 4, stride=2, padding=1), 8, 3, "exp", stride=2),
        "SOCTranspose": orthogonal(lambda: ol.SOCTranspose(*conv, padding=1), 3, 3, "exp"),
        "SOCRkoConvTranspose2d": orthogonal(
            lambda: ol.SOCRkoConvTranspose2d(C, 2, 4, stride=2, padding=1), 8, 3, "exp", up
        ),
        "AOLConv2D": Row(
            lambda: ol.AOLConv2D(C, 5, 3, padding=1), weights(lambda: lc.AffineConv2d(C, 5, 3, padding=1))
        ),
        "AOLConvTranspose2D": Row(
            lambda: ol.AOLConvTranspose2D(C, 5, 3, padding=1),
            weights(lambda: lc.AffineConvTranspose2d(C, 5, 3, padding=1)),
        ),
        "SDPBasedLipschitzDense": Row(
            lambda: ol.SDPBasedLipschitzDense(8, 8, 5),
            lambda t: with_weights(lc.ResidualLinear(8, 5), weight=t.weight, bias=t.bias, bound__log_q=t.q),
            vector,
        ),
        "SDPBasedLipschitzResBlock": Row(lambda: ol.SDPBasedLipschitzResBlock(C, 2), residual_block),
        "AOCLipschitzResBlock": Row(
            lambda: ol.AOCLipschitzResBlock(C, 1, 3),
            lambda t: lc.OrthogonalResidualConv2d(C, C, 3, image_size=SIZE, method="bcop"),
            same=False,
        ),
        "SLLxAOCLipschitzResBlock": Row(
            lambda: ol.SLLxAOCLipschitzResBlock(C, 8, 1),
            lambda t: nn.Sequential(
                lc.ResidualConv2d(C, 8), lc.OrthogonalConv2d(C, 8, 1, image_size=SIZE, method="bcop", stride=2)
            ),
            same=False,
        ),
        "BatchCentering2D": Row(
            lambda: trained(ol.BatchCentering2D(C), *IMAGE), lambda t: centering(t.running_mean, t.bias)
        ),
        "LayerCentering2D": Row(
            lambda: trained(ol.LayerCentering2D(C), *IMAGE),
            lambda t: with_weights(L.LayerCentering((SIZE, SIZE), channels=C), bias=t.bias),
        ),
        "Abs": Row(ol.Abs, lambda t: L.Abs()),
        "MaxMin": Row(ol.MaxMin, lambda t: halves(L.MaxMin(), C)),
        "HouseHolder": Row(
            lambda: ol.HouseHolder(C), lambda t: nn.Sequential(householder(t), L.Scale(math.sqrt(0.5)))
        ),
        "ChannelShuffle": Row(lambda: ol.ChannelShuffle(4, 3), lambda t: nn.ChannelShuffle(4), (12, 2, 2)),
        "AdditiveResidual": Row(
            lambda: ol.AdditiveResidual(lc.AffineLinear(8, 8)),
            lambda t: mixture(t.alpha, copy.deepcopy(t.fn)),
            vector,
        ),
        "PrescaledAdditiveResidual": Row(
            lambda: ol.PrescaledAdditiveResidual(lc.AffineLinear(8, 8), 0.6), prescaled, vector
        ),
    }


NONE = {"HouseHolder_Order_2", "SoftHuber", "ConcatResidual", "L2NormResidual"}
NO_LAYERS = re.compile("Loss$|Reparametrizer|Parametrizer|Trivializer|^Skew$|^ConvExponential$")


def table(name):
    """Their layer → (ours, same) from docs/porting.md."""
    page = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
    lines = page.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0].strip().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {theirs.strip("`| "): (ours, same.strip("| ")) for theirs, ours, same in cells}


def check_table(name, namespace, rows):
    layers = {
        key
        for key, kind in vars(namespace).items()
        if inspect.isclass(kind) and issubclass(kind, nn.Module) and not NO_LAYERS.search(key)
    }
    shown = table(name)
    assert set(shown) == layers == set(rows) | (NONE & layers)
    for key, (ours, same) in shown.items():
        assert same == ("none" if key in NONE else "yes" if rows[key].same else "no"), key
        for part in re.findall(r"`(?:layers\.)?([A-Z]\w+)", ours):  # nothing is named that does not exist
            assert hasattr(lc, part) or hasattr(L, part) or hasattr(nn, part), part


def check_row(row):
    torch.manual_seed(0)
    with warnings.catch_warnings():  # torchlip warns of layers that it does not know
        warnings.simplefilter("ignore")
        theirs = row.theirs().eval()
        x = torch.randn(3, *row.shape)
        with torch.no_grad():
            expected = theirs(x)
    ours = row.ours(theirs).eval()
    frozen = lc.freeze(ours)
    report = lc.audit(frozen, row.shape)
    assert report.ok
    assert report.lower <= report.lipschitz <= 1.07 * row.constant  # 7 %: a grid of frequencies
    if type(ours) not in (nn.Conv1d, nn.Conv2d):
        assert lc.lipschitz_bound(ours, None if row.constant == 1 else row.shape) <= row.constant * (1 + 1e-6)
    if row.same:
        for network in (ours, frozen):
            torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
    else:
        assert frozen(x).shape[:2] == expected.shape[:2]


def test_every_layer_of_torchlip_is_in_the_table(tl):
    check_table("torchlip", tl, torchlip_rows(tl))


def test_every_layer_of_orthogonium_is_in_the_table(ol):
    check_table("orthogonium", ol, orthogonium_rows(ol))


@pytest.mark.parametrize("name", [key for key in table("torchlip") if key not in NONE])
def test_rows_of_torchlip(tl, name):
    check_row(torchlip_rows(tl)[name])


@pytest.mark.parametrize("name", [key for key in table("orthogonium") if key not in NONE])
def test_rows_of_orthogonium(ol, name):
    check_row(orthogonium_rows(ol)[name])


@pytest.mark.parametrize("name", ["SpectralLinear", "SpectralConv2d", "SpectralConvTranspose2d"])
def test_a_trained_weight_is_kept_in_the_plain_layer(tl, name):
    row = torchlip_rows(tl)[name]
    theirs = row.theirs()
    theirs(torch.randn(2, *row.shape))
    plain, x = theirs.eval().vanilla_export(), torch.randn(2, *row.shape)
    torch.testing.assert_close(plain(x), theirs(x))
    assert lc.audit(plain, row.shape).ok
    assert lc.audit(lc.parametrize(plain, "spectral"), row.shape).lipschitz <= 1.07
