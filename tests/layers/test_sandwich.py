"""Sandwich and general layers: their papers' formulas, Theorem 4's condition, and the residual they freeze into."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import lipcert as lc
import lmi
from circulant import circulant
from lipcert.certified.certificate import write_certificate
from lipcert.certified.certify import certify
from lipcert.certified.freeze import prove
from lipcert.certified.ops import Residual, Select
from lipcert.check import check
from lipcert.verified import convolution
from table import jacobian

ROUNDING = 1e-12  # as in test_torus.py


def parts_of(layer):
    """A, B, Ψ, b of a dense sandwich layer from its parameters: Cayley's map of the whole matrix, in float64."""
    weight, n = layer.weight.detach().numpy().T, layer.operator.outputs
    u, v = weight[:n], weight[n:]
    skew = u - u.T + v.T @ v
    inverse = np.linalg.inv(np.eye(n) + skew)
    m = np.concatenate([inverse @ (np.eye(n) - skew), -2 * v @ inverse]).T  # [A B]
    return m[:, :n], m[:, n:], np.exp(layer.log_psi.detach().numpy()), layer.bias.detach().numpy()


def random_layer(layer, scale=0.4):
    torch.manual_seed(1)
    layer = layer.double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=scale)
    return layer


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("inputs", "outputs"), [(5, 4), (3, 6), (4, 4)])
def test_the_dense_layer_is_the_paper_s(inputs, outputs, activation):
    """Wang & Manchester (2023), the 1-Lipschitz sandwich layer √2AᵀΨσ(√2Ψ⁻¹Bx + b) with AAᵀ + BBᵀ = I."""
    layer = random_layer(lc.SandwichLinear(inputs, outputs, activation=activation))
    a, b, psi, bias = parts_of(layer)
    np.testing.assert_allclose(a @ a.T + b @ b.T, np.eye(outputs), atol=ROUNDING)
    x = torch.randn(7, inputs, dtype=torch.float64)
    sigma = np.tanh if activation == "tanh" else lambda z: np.maximum(z, 0)
    expected = math.sqrt(2) * (psi * sigma(math.sqrt(2) * x.numpy() @ b.T / psi + bias)) @ a
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=ROUNDING)


def test_the_convolution_is_the_paper_s_on_the_whole_image():
    """Its operator [A B] is Cayley's map of the whole circulant, not of one frequency at a time."""
    n, m, image = 2, 3, (4, 6)
    layer = random_layer(lc.SandwichConv2d(m, n, (3, 2), image_size=image))
    pixels = image[0] * image[1]
    weight = circulant(layer.weight.detach().numpy(), image).T
    u, v = weight[: n * pixels], weight[n * pixels :]
    skew = u - u.T + v.T @ v
    inverse = np.linalg.inv(np.eye(n * pixels) + skew)
    a, b = (inverse @ (np.eye(n * pixels) - skew)).T, (-2 * v @ inverse).T
    psi, bias = (np.repeat(p.detach().numpy(), pixels) for p in (layer.log_psi.exp(), layer.bias))
    x = torch.randn(2, m, *image, dtype=torch.float64)
    hidden = np.maximum(math.sqrt(2) * x.flatten(1).numpy() @ b.T / psi + bias, 0)
    expected = math.sqrt(2) * (psi * hidden) @ a
    np.testing.assert_allclose(layer(x).flatten(1).detach().numpy(), expected, atol=ROUNDING)


def test_theorem_4_with_no_linear_part():
    """H = 0, G = √2AᵀΨ, W = √2BᵀΨ⁻¹, Λ = Ψ²: the condition holds, with equality in the lower block."""
    a, b, psi, _ = parts_of(random_layer(lc.SandwichLinear(5, 4)))
    h, g = np.zeros((4, 5)), math.sqrt(2) * a.T * psi
    w, lam = math.sqrt(2) * b.T / psi, psi**2
    given = [torch.from_numpy(np.ascontiguousarray(v)) for v in (h, g, w, lam)]
    matrix = lmi.theorem4_matrix(*given)
    assert lmi.smallest_eigenvalue_estimate(matrix) >= -ROUNDING
    assert not lmi.holds(lmi.theorem4_matrix(given[0], given[1] * 1.01, *given[2:]))
    np.testing.assert_allclose(g.T @ g, 2 * np.diag(lam) - lam[:, None] * (w.T @ w) * lam, atol=ROUNDING)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_general_layer_is_a_product_with_a_residual(activation):
    """(x, 0) − 2W̃Γσ(W̃ᵀ(x, 0) + b) with W̃ = [W; −T^½], Γ = T⁻¹/2, is (x − WΛσ, Λ^½σ): what freeze stores."""
    for layer, shape in (
        (lc.GeneralLinear(5, 4, 3, activation=activation), (5,)),
        (lc.GeneralConv2d(2, 3, 4, 3, activation=activation), (2, 4, 5)),
    ):
        layer = random_layer(layer)
        frozen = lc.freeze(layer)
        assert isinstance(frozen[0].at(shape), Select)
        assert isinstance(frozen[1], Residual)
        assert len(frozen) == 3
        x = torch.randn(3, *shape, dtype=torch.float64)
        change = copy.deepcopy(frozen).double()(x) - layer(x)
        assert change.abs().max() <= 2**-20 * 10  # float32 storage of numbers up to about 10
        report = lc.audit(frozen, shape)
        assert report.ok
        assert report.lipschitz <= 1


def test_a_start_that_keeps_gradients():
    """h(x) = σ(Qx) with Q orthonormal: A = I/√2, B = Q/√2."""
    torch.manual_seed(0)
    layer = lc.SandwichLinear(6, 4).double()
    a, b, _, _ = parts_of(layer)
    np.testing.assert_allclose(a, np.eye(4) / math.sqrt(2), atol=1e-7)  # the start is made in float32
    np.testing.assert_allclose(b @ b.T, np.eye(4) / 2, atol=1e-6)
    conv = lc.SandwichConv2d(6, 4, 3, image_size=4).double()
    x = torch.randn(1, 6, 4, 4, dtype=torch.float64)
    values = torch.linalg.svdvals(jacobian(conv, x))
    assert ((values - values.round()).abs() < 1e-6).all()
    assert 8 <= int((values > 0.5).sum()) <= 64


def test_layers_that_keep_their_width_start_as_the_activation():
    """h(x) = σ(x): a stack of them passes on what the first one let through."""
    x = torch.randn(5, 7, 4, 4)
    torch.testing.assert_close(lc.SandwichConv2d(7, 7, 3, image_size=4)(x), x.relu())
    torch.testing.assert_close(lc.SandwichLinear(4, 4)(x), x.relu())
    torch.manual_seed(0)
    backbone, images = lc.create_model("sandwich_tiny", image_shape=(1, 28, 28))[0], torch.rand(8, 1, 28, 28)
    features = backbone(images)
    assert (features - features.mean(0)).norm() > 0.05 * (images - images.mean(0)).norm()  # 0.004 from random Q


@pytest.mark.parametrize("kind", ["sandwich", "soc_plus", "general"])
def test_certificates_of_them_are_written_and_checked(kind, tmp_path):
    torch.manual_seed(2)
    if kind == "general":
        network = nn.Sequential(
            lc.GeneralConv2d(1, 4, 6), lc.GeneralConv2d(6, 3, 2), nn.Flatten(), lc.GeneralLinear(128, 20, 5)
        )
    else:
        network = lc.create_model(f"{kind}_nano", image_shape=(1, 8, 8))
    images = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8)
    x = images.float() / 255
    frozen = lc.freeze(network)
    assert (frozen(x) - network(x)).abs().max() <= 1e-4
    links = prove(frozen, (1, 8, 8))
    assert all(part.proof.proved and part.proof.lipschitz <= 1 for part in links.parts[:-1])
    result = certify(links, x, frozen(x).argmax(dim=1))
    report = check(write_certificate(tmp_path, links, frozen, images, result))
    assert report.ok
    assert report.claims > 0


def test_images_of_another_size_and_even_kernels_are_refused():
    layer = lc.SandwichConv2d(2, 3, 3, image_size=4)
    with pytest.raises(ValueError, match=r"SandwichConv2d expects \(N, 2, 4, 4\)"):
        layer(torch.zeros(1, 2, 5, 5))
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        lc.GeneralConv2d(2, 3, 4, 2)
    with pytest.raises(ValueError, match=r"SandwichLinear expects \(\*, 3\)"):
        lc.SandwichLinear(3, 4)(torch.zeros(1, 2))


def test_leading_axes_are_kept_when_frozen():
    torch.manual_seed(0)
    for layer in (lc.SandwichLinear(5, 3), lc.GeneralLinear(5, 4, 3)):
        x = torch.randn(2, 4, 5)
        frozen = lc.freeze(layer)
        assert torch.allclose(frozen(x), layer(x), atol=1e-5)
        report = lc.audit(frozen, (4, 5))
        assert report.lipschitz <= 1


@pytest.mark.parametrize("stride", [1, 2])
def test_a_part_that_is_the_same_at_every_frequency_pays_no_loss(stride):
    """ρ of [W; S] with one tap in S: at most ρ of W, by its grid, plus ρ of S; at least what a fine grid finds."""
    rng = np.random.default_rng(0)
    for size in (1e-3, 1.0, 1e3):
        kernel = rng.standard_normal((4, 6, 3, 3))
        kernel[:, 3:] = 0
        for channel, tap in ((3, (1, 1)), (4, (1, 1)), (5, (0, 2))):  # each its own tap, the same for all filters
            kernel[(slice(None), channel, *tap)] = size * rng.standard_normal(4)
        gamma = rng.uniform(0.5, 2.0, 4)
        found = convolution.conv_rho_bound(kernel, gamma, stride=stride)
        scaled = kernel * np.sqrt(gamma)[:, None, None, None]
        split = convolution.polyphase(scaled, stride)[0]
        spectrum = np.fft.fft2(split, s=(128, 128)).transpose(2, 3, 0, 1)
        truth = np.linalg.norm(spectrum, 2, axis=(2, 3)).max() ** 2
        assert truth <= found.value <= 1.03 * truth + 1e-9
        still = np.linalg.norm(scaled[:, 3:].sum(axis=(2, 3)), 2) ** 2
        rest = convolution.conv_rho_bound(kernel[:, :3], gamma, stride=stride)
        if found.method == "parts" and stride == 1:  # phases of a stride may have single taps in W too
            assert found.value == pytest.approx(still + rest.value, rel=1e-9)
    assert convolution.single_taps(convolution.polyphase(kernel)).tolist() == [False] * 3 + [True] * 3
    kernel[0, 5, 0, 2], kernel[0, 5, 2, 0] = 0.0, 1.0  # another tap in one filter: no longer the same phase
    assert convolution.single_taps(convolution.polyphase(kernel)).tolist() == [False] * 3 + [True, True, False]


@pytest.mark.parametrize("bound", ["spectral", "rescaled"])
def test_without_a_witness_a_general_convolution_freezes_to_itself(bound, tmp_path):
    """The checker proves it by the same two parts; with γ a hundredth larger neither does."""
    torch.manual_seed(0)
    layer = lc.GeneralConv2d(4, 8, 6, 3, bound=bound)
    frozen = lc.freeze(nn.Sequential(layer, nn.Flatten(), lc.NormalizedHead(384, 3)))
    images = torch.randint(0, 256, (6, 4, 8, 8), dtype=torch.uint8)
    x = images.float() / 255
    pad, expansion, mixing = list(frozen)[:3]
    assert torch.allclose(mixing(expansion(pad(x))), layer(x), atol=1e-5)
    links = prove(frozen, (4, 8, 8))
    assert links.lipschitz <= 1.75  # √3 for three unit rows
    result = certify(links, x, frozen(x).argmax(dim=1))
    path = write_certificate(tmp_path, links, frozen, images, result)
    assert check(path).ok
    expansion.gamma *= 1.05
    more = prove(frozen, (4, 8, 8)).parts[1].proof.lipschitz
    norm = torch.linalg.matrix_norm(jacobian(lambda v: expansion(pad(v)), x[:1].double()), 2)
    assert norm <= more


def test_a_sandwich_that_no_proof_reaches_is_refused(monkeypatch):
    monkeypatch.setattr(convolution, "MANY_PRODUCTS", 1000)
    with pytest.raises(lc.NotCertified, match=r"got \(3, 5\) channels on \(6, 6\)"):
        lc.freeze(lc.SandwichConv2d(2, 3, 3, image_size=6))


def test_frozen_reflections_stay_on_their_channels():
    frozen = lc.freeze(lc.layers.Householder(6))
    for shape in ((3, 2), (3, 12), (6,)):
        with pytest.raises(ValueError, match=r"6 channels in dimension 1|dimension 1 of a batch"):
            frozen(torch.zeros(*shape))
    with pytest.raises(ValueError, match="needs 6 inputs along axis 0"):
        lc.audit(frozen, (2,))


def test_vectors_empty_batches_and_another_default_dtype():
    for layer in (lc.SandwichLinear(3, 4), lc.GeneralLinear(3, 2, 4)):
        x = torch.randn(3)
        assert torch.allclose(lc.freeze(layer)(x[None])[0], layer(x), atol=1e-6)
        with pytest.raises(lc.NotCertified, match="examples have shape"):  # frozen networks take batches
            lc.freeze(layer)(x)
        assert lc.freeze(layer)(x.expand(0, 3)).shape == (0, 4)
    strided = lc.SandwichConv2d(1, 3, 1, image_size=4, stride=2)
    assert strided(torch.zeros(0, 1, 4, 4)).shape == (0, 3, 2, 2)
    torch.set_default_dtype(torch.float64)
    try:
        for layer, shape in (
            (lc.GeneralConv2d(2, 3, 4, dtype=torch.float32), (1, 2, 4, 4)),
            (lc.SandwichConv2d(2, 3, image_size=4, dtype=torch.float32), (1, 2, 4, 4)),
            (lc.SandwichLinear(5, 3, dtype=torch.float32), (1, 5)),
        ):
            frozen = lc.freeze(layer)
            assert all(b.dtype == torch.float32 for n, b in frozen.named_buffers() if "witness" not in n)
            assert frozen(torch.rand(shape, dtype=torch.float32)).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("make", [lambda d: lc.layers.PadChannels(4, d), lambda d: lc.layers.TakeChannels(2, 1, d)])
def test_axes_that_do_not_exist_are_refused(make):
    for dim in (2, -3):
        with pytest.raises(ValueError, match=f"in dimension {dim}; got"):
            make(dim)(torch.zeros(2, 3))
    with pytest.raises(lc.NotCertified, match="must not mix the examples"):
        lc.audit(nn.Sequential(make(0)), (3,))


def test_a_residual_of_single_taps_pays_no_loss_to_the_checker(tmp_path):
    """Every input is read by one tap: the checker said 1.00015 where the symbol is the same at every frequency."""
    torch.manual_seed(0)
    layer = lc.GeneralConv2d(1, 2, 4, 3, bound="rescaled")
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 0, 1, 1], layer.weight[1, 0, 1, 1] = 1e-13, 1.0
    frozen, x = lc.freeze(nn.Sequential(layer, nn.Flatten(), lc.NormalizedHead(64, 3))), torch.rand(4, 1, 4, 4)
    links = prove(frozen, (1, 4, 4))
    result = certify(links, x, frozen(x).argmax(dim=1))
    assert check(write_certificate(tmp_path, links, frozen, x, result)).ok


def test_a_layer_of_zeros_has_the_constant_zero(tmp_path):
    frozen = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    nn.init.zeros_(frozen[0].weight)
    x = torch.rand(4, 4)
    links = prove(lc.freeze(frozen), (4,))
    result = certify(links, x, frozen(x).argmax(dim=1))
    assert check(write_certificate(tmp_path, links, frozen, x, result)).ok
