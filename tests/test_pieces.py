"""Pieces with laws of their own: radii, head, containers, data, public names."""

import math
import re
import subprocess
import sys
from fractions import Fraction

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.algebra.gram import dense_columns
from lipcert.certified.radius import certified_radii
from lipcert.data.registry import load_data
from paths import ROOT

EPS = torch.finfo(torch.float64).eps


def test_radius_is_the_smallest_over_all_rivals():
    """A far rival with a small constant can be the nearer boundary: all of them count, not the largest logits."""
    logits = torch.tensor([[3.0, 2.0, 0.0]])
    pairwise = torch.tensor([[0.0, 0.1, 2.0], [0.1, 0.0, 2.0], [2.0, 2.0, 0.0]])
    assert certified_radii(logits, torch.tensor([0]), pairwise).item() == pytest.approx(1.5)


@pytest.mark.parametrize(
    "logits",
    [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [math.nan, 0.0, 0.0], [1.0, math.nan, 0.0], [math.inf, 0.0, 0.0],
     [math.inf, math.inf, 0.0], [1.0, -math.inf, 0.0]],
)  # fmt: skip
def test_ties_errors_and_non_finite_logits_have_radius_zero(logits):
    radii = certified_radii(torch.tensor([logits]), torch.tensor([0]), torch.full((3, 3), math.sqrt(2)))
    assert radii.item() == 0.0


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_classes_with_the_same_weights_never_swap(zero):
    assert certified_radii(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.full((2, 2), zero)).item() > 1e300


def test_radii_are_rounded_down():
    logits, pairwise = torch.randn(2000, 3).double(), torch.rand(3, 3).double() + 0.5
    labels = logits.argmax(dim=1)
    radii = certified_radii(logits, labels.int(), pairwise)
    for row, label, radius in zip(logits.tolist(), labels.tolist(), radii.tolist(), strict=True):
        exact = min(
            (Fraction(row[label]) - Fraction(row[j])) / Fraction(pairwise[label, j].item())
            for j in range(3)
            if j != label
        )
        assert Fraction(radius) <= exact


@pytest.mark.parametrize("constant", [math.nan, math.inf, -1.0])
def test_unusable_constants_have_radius_zero(constant):
    radii = certified_radii(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.full((2, 2), constant))
    assert radii.item() == 0.0
    assert certified_radii(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), constant).item() == 0.0


def test_one_constant_for_all_pairs_can_be_a_number():
    logits, labels = torch.randn(50, 4), torch.zeros(50, dtype=torch.long)
    expected = certified_radii(logits, labels, torch.full((4, 4), 1.5, dtype=torch.float64))
    assert torch.equal(certified_radii(logits, labels, 1.5), expected)


def test_head_separates_the_pair_from_the_whole_map():
    head = lc.NormalizedHead(20, 7).double()
    unit = head.weight / head.weight.norm(dim=1, keepdim=True)
    exact = torch.linalg.matrix_norm(unit, 2).item()
    assert exact <= head.lipschitz_bound() <= exact * 7 ** (1 / 512) * (1 + 1e-12)
    pairs = head.pairwise_bound()
    distance = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
    assert (distance <= pairs).all()
    assert (pairs <= distance + 1e-12).all()
    assert pairs.max() <= 2 + 1e-12


def test_a_sequence_multiplies_and_rounds_up():
    model = nn.Sequential(
        lc.layers.Normalize([0.5], [0.3]), nn.Flatten(), lc.layers.Scale(3.0), lc.ResidualLinear(4, 3), nn.Sigmoid()
    )
    exact = 0.25 * 3 / float(torch.tensor(0.3).double())
    assert exact <= lc.lipschitz_bound(model) <= exact * (1 + 8 * EPS)
    assert lc.lipschitz_bound(nn.Sequential()) == 1.0
    assert lc.lipschitz_bound(nn.LeakyReLU(1.7)) == 1.7
    assert lc.lipschitz_bound(nn.ELU(2.0)) == 2.0


def test_a_convex_combination_is_no_product():
    branches = lc.layers.ConvexCombination(
        lc.layers.Scale(3.0), nn.Sequential(lc.layers.Scale(2.0), lc.layers.Scale(0.5))
    )
    assert lc.lipschitz_bound(branches) == 3.0
    x = torch.randn(5, 4)
    torch.testing.assert_close(branches(x), 2.0 * x)  # equal weights to begin with
    assert lc.lipschitz_bound(lc.layers.ConvexCombination(lc.layers.Scale(1.0), nn.GELU())) == 1.1290
    with pytest.raises(lc.NotCertified, match="LayerNorm"):
        lc.lipschitz_bound(lc.layers.ConvexCombination(lc.layers.Scale(1.0), nn.LayerNorm(4)))


def test_digits_are_whole():
    train, test = load_data("digits", "train"), load_data("digits", "test")
    assert (len(train.labels), len(test.labels)) == (1400, 397)
    for part in (train, test):
        assert part.images.dtype == torch.uint8
        assert part.images.shape[1:] == (1, 8, 8)
        assert part.inputs().min() == 0
        assert part.inputs().max() == 1
        assert set(part.labels.tolist()) == set(range(10))


def test_optimal_is_spectral_before_fitting_and_tighter_after():
    layer = lc.ResidualLinear(20, 12, bound="optimal").double()
    spectral = lc.bounds.Spectral()(dense_columns(layer.weight))[1]
    torch.testing.assert_close(layer.bound(dense_columns(layer.weight))[1], spectral, rtol=1e-12, atol=0)
    solution = layer.bound.fit(layer.columns())
    t = layer.bound(dense_columns(layer.weight))[1].detach()
    gram = layer.weight @ layer.weight.T
    assert (gram.diagonal() / t).sum() > (gram.diagonal() / spectral).sum()
    assert 12 - (gram.diagonal() / t).sum() <= solution.objective * 1.05 + 0.05 * 12
    with torch.no_grad():
        layer.weight.add_(torch.randn_like(layer.weight))  # the weight moves on: looser, never wrong
    t = layer.bound(dense_columns(layer.weight))[1].detach()
    assert torch.linalg.eigvalsh(torch.diag(t) - layer.weight @ layer.weight.T)[0] >= -1e-12 * t.max()


def test_public_names_exist_and_are_lazy():
    for name in lc.__all__:
        assert getattr(lc, name) is not None
    assert set(lc.__all__) <= set(dir(lc))
    with pytest.raises(AttributeError, match="MaxMin"):
        getattr(lc, "MaxMin")  # noqa: B009
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in set(lc.__all__) - {"layers"}:
        assert re.search(rf"\blipcert\.{name}\b", page), name
    code = "import sys, lipcert; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
