"""Centering, scales and up-sampling: what is computed in each mode, what is stored, what is proved."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lipcert as lc
from lipcert.certified import ops
from lipcert.testing import LawBroken, check_layer


def trained(layer, *shape, steps=30):
    """A centering with a running mean and a bias that are not 0."""
    for _ in range(steps):
        layer(torch.randn(16, *shape) * 2 + 3)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer.eval()


# --- BatchCentering ---


@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 4, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_centering_subtracts_the_batch_mean_and_then_the_running_one(shape, bias):
    layer, x = lc.layers.BatchCentering(3, bias=bias, momentum=0.5), torch.randn(8, *shape)
    dims, each = (0, *range(2, x.ndim)), (-1, *[1] * (len(shape) - 1))
    mean = x.mean(dim=dims)
    torch.testing.assert_close(layer(x), x - mean.view(each))
    torch.testing.assert_close(layer.mean, mean / 2)
    layer.eval()
    torch.testing.assert_close(layer(x), x - (mean / 2).view(each))
    before = layer.mean.clone()
    layer(x + 1)
    assert torch.equal(layer.mean, before)  # evaluation mode keeps it


def test_in_evaluation_mode_no_output_depends_on_another_input():
    layer, x = trained(lc.layers.BatchCentering(3), 3, 4), torch.randn(5, 3, 4)
    other = torch.cat([x[:1], 100 * torch.randn(4, 3, 4)])
    assert torch.equal(layer(x)[0], layer(other)[0])
    assert not torch.equal(copy.deepcopy(layer).train()(x)[0], copy.deepcopy(layer).train()(other)[0])


def test_a_batch_mean_in_evaluation_mode_breaks_a_law():
    class Wrong(lc.layers.BatchCentering):
        """One input alone is its own mean."""

        def forward(self, x):
            return x - 2 * x.mean(dim=(0, 2, 3), keepdim=True) - x.mean()

        def proved_constant(self):
            return 1.0

    with pytest.raises(LawBroken):
        check_layer(lambda: Wrong(2), (2, 3, 3))


def test_training_mode_is_refused_and_frozen_networks_are_in_evaluation_mode():
    network = nn.Sequential(lc.AffineLinear(4, 3), lc.layers.BatchCentering(3))
    network(torch.randn(8, 4))
    x = torch.randn(5, 4)
    for refuse in (lc.lipschitz_bound, lambda n: lc.audit(n, (4,)), lambda n: lc.certify(n, x)):
        with pytest.raises(lc.NotCertified, match=r"batch.*eval"):
            refuse(network)
    frozen = lc.freeze(network)
    assert network.training
    assert lc.lipschitz_bound(network.eval()) == 1.0
    torch.testing.assert_close(frozen(x), network(x))


@pytest.mark.parametrize("bias", [True, False])
def test_behind_a_convolution_it_joins_the_bias_and_elsewhere_it_is_a_step(bias):
    make = lambda: trained(lc.layers.BatchCentering(3, bias=bias), 3, 4, 4)  # noqa: E731
    network = nn.Sequential(
        lc.AffineConv2d(2, 3, 3, padding=1, bias=bias),
        make(),
        nn.ReLU(),
        make(),
        lc.AffineConv2d(3, 3, 3, padding=1),
        make(),
    ).eval()
    frozen, x = lc.freeze(network), torch.randn(4, 2, 5, 5)
    assert [type(op) for op in frozen] == [ops.Conv, ops.Function, ops.Normalize, ops.Conv]
    torch.testing.assert_close(frozen(x), network(x))
    report = lc.audit(frozen, (2, 5, 5))
    assert report.ok
    assert report.lipschitz <= 1.1
    assert lc.audit(network, (2, 5, 5)).lipschitz <= 1.1  # unfrozen, no step is folded


def test_before_a_zero_padded_convolution_it_does_not_fold_forward():
    """At the border the zeros are not shifted, so the function differs from a convolution with another bias."""
    network = nn.Sequential(
        trained(lc.layers.BatchCentering(1), 1, 4, 4), lc.AffineConv2d(1, 1, 3, padding=1)
    ).eval()
    with torch.no_grad():
        network[1].weight.fill_(1.0)
    frozen = lc.freeze(network)
    assert len(frozen) == 2
    y = frozen(torch.zeros(1, 1, 5, 5))
    torch.testing.assert_close(y, network(torch.zeros(1, 1, 5, 5)))
    assert (y[0, 0, 0, 0] - y[0, 0, 2, 2]).abs() > 0.1


def test_a_convolution_that_is_read_twice_keeps_its_bias():
    inner = nn.Sequential(lc.AffineConv2d(2, 2, 1), lc.layers.BatchCentering(2))
    network = nn.Sequential(lc.layers.ConvexCombination(nn.Identity(), inner), lc.layers.BatchCentering(2))
    trained(network[1], 2, 3, 3)
    x = torch.randn(2, 2, 3, 3)
    torch.testing.assert_close(lc.freeze(network.eval())(x), network(x))


# --- LayerCentering ---


@pytest.mark.parametrize(("sizes", "shape"), [(6, (6,)), (6, (2, 6)), ((3, 4), (2, 3, 4)), ((2, 3, 4), (2, 3, 4))])
def test_layer_centering_is_a_projection(sizes, shape):
    layer, x = lc.layers.LayerCentering(sizes), torch.randn(5, *shape, dtype=torch.float64)
    dims = tuple(range(-len(layer.normalized_shape), 0))
    y = layer(x)
    torch.testing.assert_close(y, x - x.mean(dim=dims, keepdim=True))
    torch.testing.assert_close(layer(y), y)
    frozen = lc.freeze(layer)
    torch.testing.assert_close(frozen.double()(x), y, rtol=0, atol=1e-7)
    report = lc.audit(frozen, shape)
    assert report.ok
    assert report.lipschitz == 1.0
    assert 1 - 1e-4 < report.lower <= 1


def test_layer_centering_is_layer_norm_without_the_division():
    layer, norm, x = lc.layers.LayerCentering((4, 4), channels=3), nn.LayerNorm((4, 4)), torch.randn(2, 3, 4, 4)
    std = x.var(dim=(2, 3), correction=0, keepdim=True).add(norm.eps).sqrt()
    torch.testing.assert_close(layer(x) / std, norm(x))
    nn.init.normal_(layer.bias)
    torch.testing.assert_close(lc.freeze(layer)(x), layer(x))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lc.layers.BatchCentering(3)(torch.rand(2, 4)), "each channel"),
        (lambda: lc.layers.BatchCentering(3, momentum=0), "momentum"),
        (lambda: lc.layers.BatchCentering(0), "channels"),
        (lambda: lc.layers.LayerCentering(4)(torch.rand(4)), "LayerCentering expects"),
        (lambda: lc.layers.LayerCentering((4, 4))(torch.rand(2, 4, 5)), "LayerCentering expects"),
        (lambda: lc.layers.LayerCentering(()), "at least one"),
        (lambda: lc.layers.Scale(-1.0, learnable=True), "positive"),
        (lambda: lc.layers.ScaledUpsample2d(0), "scale_factor"),
        (lambda: lc.layers.ScaledUpsample2d(2)(torch.rand(2, 4)), "images"),
        (lambda: lc.create_model("sll_nano", lipschitz=0), "lipschitz"),
        (lambda: lc.create_model("sll_nano", lipschitz="large"), "learned"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# --- Up-sampling and transposed convolutions ---


@pytest.mark.parametrize("factors", [2, 3, (1, 5)])
def test_upsampling_is_an_isometry_and_the_adjoint_of_the_scaled_pool(factors):
    layer, pool = lc.layers.ScaledUpsample2d(factors), lc.layers.ScaledAvgPool2d(factors)
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    y = layer(x)
    high, wide = layer.scale_factor
    torch.testing.assert_close(y, F.interpolate(x, scale_factor=(high, wide)) / math.sqrt(high * wide))
    torch.testing.assert_close(y.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))
    torch.testing.assert_close(pool(y), x)
    frozen = lc.freeze(layer)
    torch.testing.assert_close(frozen.double()(x), y)
    assert 1 <= lc.audit(frozen, (2, 4, 5)).lipschitz <= 1 + 2.0**-25


def test_a_transposed_convolution_is_the_adjoint_of_a_convolution():
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False).double()
    layer = lc.AffineConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1, bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(layer.scaled_weight())
    x, z = torch.randn(1, 3, 8, 8, dtype=torch.float64), torch.randn(1, 4, 4, 4, dtype=torch.float64)
    torch.testing.assert_close((conv(x) * z).sum(), (x * layer(z)).sum())


@pytest.mark.parametrize("more", [0, 1, 2])
def test_the_size_of_a_transposed_convolution_is_that_of_torch(more):
    settings = {"stride": 3, "padding": 1, "output_padding": more, "dilation": 2}
    layer, plain = lc.AffineConvTranspose2d(2, 3, 3, **settings), nn.ConvTranspose2d(2, 3, 3, **settings)
    x = torch.randn(1, 2, 4, 5)
    assert layer(x).shape == plain(x).shape == lc.freeze(layer)(x).shape
    assert tuple(layer.operator.image((4, 5))) == tuple(layer(x).shape[2:])
    with pytest.raises(ValueError, match="output_padding"):
        lc.AffineConvTranspose2d(2, 3, 3, stride=3, output_padding=3)
    with pytest.raises(ValueError, match="nothing of its output"):
        lc.AffineConvTranspose2d(2, 3, 1, padding=3)(x)


# --- Scales ---


def test_a_learned_scale_changes_the_loss_and_no_radius():
    torch.manual_seed(0)
    plain = nn.Sequential(lc.ResidualLinear(6, 8), lc.NormalizedHead(6, 3))
    scale = lc.layers.Scale(4.0, learnable=True)
    scaled, x, labels = nn.Sequential(*plain, scale), torch.randn(20, 6), torch.randint(3, (20,))
    torch.testing.assert_close(scaled(x), 4 * plain(x))
    loss = lc.losses.OffsetCrossEntropy()
    loss(scaled(x), labels).backward()
    assert scale.log_factor.grad != 0
    assert not torch.isclose(loss(scaled(x), labels), loss(plain(x), labels))
    radii = [lc.certify(lc.freeze(model), x).radii for model in (plain, scaled)]
    torch.testing.assert_close(*radii, rtol=1e-5, atol=1e-9)
    assert lc.lipschitz_bound(scale) == pytest.approx(4.0)


@pytest.mark.parametrize("constant", [0.5, 7.0, "learned"])
def test_a_chosen_constant_of_a_network_multiplies_logits_and_no_radius(constant):
    torch.manual_seed(0)
    plain = lc.create_model("sll_nano", image_shape=(1, 8, 8))
    torch.manual_seed(0)
    model, x = lc.create_model("sll_nano", image_shape=(1, 8, 8), lipschitz=constant), torch.rand(6, 1, 8, 8)
    if constant == "learned":
        model[0][-1].log_factor.data.fill_(math.log(3.0))
    factor = 3.0 if constant == "learned" else constant
    torch.testing.assert_close(model(x), factor * plain(x))  # the bias starts at 0
    assert lc.lipschitz_bound(model[0]) == pytest.approx(factor)
    estimate = lc.layers.lipschitz_estimate(model[0])
    assert float(estimate.detach()) == pytest.approx(factor)
    assert estimate.requires_grad == (constant == "learned")
    radii = [lc.certify(lc.freeze(network), x).radii for network in (plain, model)]
    torch.testing.assert_close(*radii, rtol=1e-5, atol=1e-9)


# --- Constants of each output ---


def test_each_output_has_a_constant_of_its_own():
    network = nn.Sequential(lc.ResidualLinear(6, 8), lc.layers.Scale(2.0), nn.Linear(6, 3)).double().eval()
    with torch.no_grad():
        network[2].weight.copy_(torch.diag(torch.tensor([1.0, 0.1, 3.0])) @ torch.eye(3, 6))
    report, x = lc.audit(network, (6,)), torch.randn(200, 6).double()
    torch.testing.assert_close(report.outputs, torch.tensor([2.0, 0.2, 6.0]).double(), rtol=1e-6, atol=0)
    assert bool((report.outputs >= torch.tensor([2.0, 0.2, 6.0]).double() * (1 - 1e-7)).all())
    jacobians = torch.vmap(torch.func.jacrev(network))(x)
    assert bool((jacobians.norm(dim=2) <= report.outputs).all())
    assert "each output" in str(report)
    assert report.to_json()["outputs"] == report.outputs.tolist()
    low, high = lc.output_interval(network, x[:1], radius=0.5)
    assert bool(((high - low)[0] <= 2 * 0.5 * report.outputs * (1 + 1e-9)).all())


def test_outputs_without_a_last_linear_map_have_the_constant_of_the_whole():
    report = lc.audit(lc.freeze(nn.Sequential(lc.AffineLinear(4, 3), nn.ReLU())), (4,))
    assert report.outputs.tolist() == [report.lipschitz] * 3
    assert lc.audit(nn.Sequential(lc.AffineConv2d(1, 1, 3)), (1, 4, 4)).outputs is None


def test_a_shift_moves_four_groups_by_one_pixel_each():
    x = torch.arange(2 * 9 * 2 * 3.0).view(2, 9, 2, 3)
    y = lc.layers.Shift((2, 3), 0.25)(x)
    up, down, left, right, still = y.split([2, 2, 2, 2, 1], dim=1)
    assert torch.equal(up[:, :, 0], x[:, 0:2, 1])
    assert torch.equal(down[:, :, 1], x[:, 2:4, 0])
    assert torch.equal(left[..., 0], x[:, 4:6, :, 1])
    assert torch.equal(left[..., 2], x[:, 4:6, :, 0])  # around the image
    assert torch.equal(right[..., 2], x[:, 6:8, :, 1])
    assert torch.equal(still, x[:, 8:])
    assert torch.equal(y.flatten().sort().values, x.flatten())
    assert torch.equal(lc.layers.Shift((2, 3), 0.25)(x[0]), y[0])


def test_half_of_the_channels_have_a_modulus():
    x = torch.tensor([[-1.0, -2.0, -3.0, 4.0, -5.0]])
    assert torch.equal(lc.layers.PartialAbs(5)(x), torch.tensor([[1.0, 2.0, -3.0, 4.0, -5.0]]))
    assert torch.equal(lc.layers.PartialAbs(5, 1.0)(x), x.abs())


@pytest.mark.parametrize("layer", [lc.layers.Shift((4, 6), 0.2), lc.layers.PositionalBias((4, 6))])
def test_frozen_shifts_and_positions_refuse_other_images(layer):
    frozen = lc.freeze(layer)
    for shape in ((5, 6, 4), (5, 24), (10, 2, 6)):
        with pytest.raises(lc.NotCertified, match=r"shape \(C, 4, 6\)"):
            lc.audit(frozen, shape)
