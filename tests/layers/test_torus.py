"""Orthogonal convolutions against the formulas of their papers, on the whole operator as one matrix in float64."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import lipcert as lc
from circulant import circulant
from lipcert import check as checker
from lipcert.algebra import torus
from lipcert.algebra.orthogonal import orthonormal
from lipcert.algebra.torus import MAPS
from lipcert.certified import freeze, ops
from lipcert.certified.certificate import write_certificate
from lipcert.certified.certify import certify
from lipcert.certified.freeze import prove
from lipcert.certified.operators import blocks_of, expand, waves
from lipcert.check import check
from lipcert.verified import convolution
from lipcert.verified.rounding import U32, U64
from lipcert.verified.torus import torus_kappa, torus_norm_bound, torus_rho_bound
from table import jacobian

ROUNDING = 1e-12  # of a few hundred operations on matrices of norm 1 whose condition is at most about 100
# Four factors of the exponential series lose 4·1.7¹³/13! = 6.4e-7; the division by a bound of the norm counts the
# same deviation again, in the larger norm of row sums.
CUT = 3e-6


def layer_and_matrix(method, channels=2, kernel=3, image=(4, 6), scale=0.3):
    torch.manual_seed(0)
    layer = lc.OrthogonalConv2d(channels, channels, kernel, image_size=image, method=method, bias=False).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=scale)
    q = jacobian(layer, torch.zeros(1, channels, *image, dtype=torch.float64)).numpy()
    return layer, q


@pytest.mark.parametrize("kernel", [3, (2, 5), (7, 1)])  # the last goes round the image
def test_cayley_is_the_cayley_transform_of_the_skew_operator(kernel):
    """Trockman & Kolter (2021), Eq. 2, of the whole matrix: (I + A)⁻¹(I − A), A = W − Wᵀ."""
    layer, q = layer_and_matrix("cayley", kernel=kernel)
    w = circulant(layer.weight.detach().numpy(), (4, 6))
    skew, eye = w - w.T, np.eye(len(w))
    assert np.abs(q - np.linalg.solve(eye + skew, eye - skew)).max() <= ROUNDING


@pytest.mark.parametrize(("method", "kernel", "dilation"), [("exp", 3, (1, 1)), ("eco", 2, (2, 3))])
def test_exp_and_eco_are_exponentials_of_skew_operators(method, kernel, dilation):
    """Singla & Feizi (2021), Theorem 2; Yu et al. (2022): the same for a kernel dilated to the image."""
    layer, q = layer_and_matrix(method, kernel=kernel)
    w = circulant(layer.weight.detach().numpy(), (4, 6), dilation)
    exact = torch.linalg.matrix_exp(torch.from_numpy(w - w.T)).numpy()
    assert np.abs(q - exact).max() <= CUT


def test_lot_is_the_polar_factor():
    """Xu et al. (2022), Eq. 3: (WWᵀ)^(−½)W, the nearest orthogonal operator."""
    layer, q = layer_and_matrix("lot")
    with torch.no_grad():
        layer.weight[:, :, 1, 1] += 2 * torch.eye(2)  # well conditioned: fifteen steps then reach the limit
    q = jacobian(layer, torch.zeros(1, 2, 4, 6, dtype=torch.float64)).numpy()
    left, _, right = np.linalg.svd(circulant(layer.weight.detach().numpy(), (4, 6)))
    assert np.abs(q - left @ right).max() <= ROUNDING


def test_reflector_is_a_product_of_two_block_reflectors():
    """Lai et al. (2025), Proposition 1: I − 2V(VᵀV)⁻¹Vᵀ, V a convolution, here for each half of the columns."""
    layer, q = layer_and_matrix("reflector", channels=4)
    weight = layer.weight.detach().numpy()
    expected = np.eye(len(q))
    for half in (weight[:, :2], weight[:, 2:]):
        v = circulant(half, (4, 6))
        expected = expected @ (np.eye(len(v)) - 2 * v @ np.linalg.solve(v.T @ v, v.T))
    assert np.abs(q - expected).max() <= 1e-9  # VᵀV has a condition of up to 10⁴, and a ridge


@pytest.mark.parametrize("dense", [False, True])
def test_a_rank_gives_one_reflector_of_so_many_columns(dense):
    """Lai et al. (2025), Proposition 1, as published: V is tall, and Q is a block of it."""
    torch.manual_seed(0)
    image = (1, 1) if dense else (4, 6)
    for inputs, outputs, rank in ((4, 4, 1), (4, 4, 3), (2, 4, 2), (4, 3, 2)):
        options = {"method": "reflector", "rank": rank, "bias": False}
        if dense:
            layer = lc.OrthogonalLinear(inputs, outputs, **options).double()
        else:
            layer = lc.OrthogonalConv2d(inputs, outputs, 3, image_size=image, **options).double()
        assert layer.weight.shape[:2] == (4, rank)
        nn.init.normal_(layer.weight, std=0.3)
        x = torch.zeros(1, inputs, *image, dtype=torch.float64)
        q = jacobian(layer, x[..., 0, 0] if dense else x).numpy()
        v = circulant(
            layer.weight.detach().numpy().reshape(*layer.weight.shape[:2], *layer.weight.shape[2:] or (1, 1)), image
        )
        whole = np.eye(len(v)) - 2 * v @ np.linalg.solve(v.T @ v, v.T)
        positions = image[0] * image[1]
        assert (
            np.abs(q - whole[: outputs * positions, : inputs * positions]).max() <= 1e-9
        )  # the ridge, and a condition


def test_bcop_composes_projections_and_shifts():
    """Li et al. (2019), Section 4: H ∏ (P + (I − P)·shift), rows and columns in turn."""
    layer, q = layer_and_matrix("bcop", channels=4, image=(4, 4), scale=1.0)
    h = np.linalg.svd(layer.weight.detach().numpy()[:, :, 0, 0])
    expected = np.kron(h[0] @ h[2], np.eye(16))
    for step, basis in enumerate(layer.projections.detach().numpy()):
        v = np.linalg.qr(basis)[0]
        p = v @ v.T
        shift, still = np.roll(np.eye(4), 1, axis=1), np.eye(4)
        moved = np.kron(still, shift) if step % 2 else np.kron(shift, still)
        expected = expected @ (np.kron(p, np.eye(16)) + np.kron(np.eye(4) - p, moved))
    # The layer's kernel is centred: it is the product above after a shift back by one row and one column.
    back = np.kron(np.roll(np.eye(4), -1, axis=1), np.roll(np.eye(4), -1, axis=1))
    assert np.abs(q - expected @ np.kron(np.eye(4), back)).max() <= 1e-9


@pytest.mark.parametrize("method", MAPS)
@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(2, 2, 1), (1, 3, 1), (3, 2, 1), (1, 5, 2), (2, 3, 2)])
def test_rows_or_columns_are_orthonormal_whichever_are_fewer(method, inputs, outputs, stride):
    torch.manual_seed(1)
    kernel = 2 if method == "eco" else 1 if method == "bcop" and stride == 2 else 3 if stride == 1 else 2
    layer = lc.OrthogonalConv2d(inputs, outputs, kernel, image_size=4, method=method, stride=stride).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    if method == "lot":
        nn.init.dirac_(layer.weight)  # fifteen steps are not enough for every random weight
    q = jacobian(layer, torch.zeros(1, inputs, 4, 4, dtype=torch.float64))
    gram = q @ q.mT if q.shape[0] <= q.shape[1] else q.mT @ q
    assert (gram - torch.eye(len(gram))).abs().max() <= (2 * CUT if method in ("exp", "eco") else 1e-9)


@pytest.mark.parametrize("method", MAPS)
def test_a_network_of_them_is_proved_certified_and_checked(method, tmp_path):
    torch.manual_seed(2)
    kernel = 2 if method == "eco" else 3
    network = nn.Sequential(
        lc.OrthogonalConv2d(1, 6, kernel, image_size=(8, 12), method=method, stride=2),
        lc.layers.MaxMin(),
        lc.OrthogonalResidualConv2d(6, 4, kernel, image_size=(4, 6), method=method),
        lc.OrthogonalConv2d(6, 3, kernel, image_size=(4, 6), method=method),
        nn.Flatten(),
        lc.NormalizedHead(72, 5),
    )
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    images = torch.randint(0, 256, (12, 1, 8, 12), dtype=torch.uint8)
    x = images.float() / 255
    frozen = lc.freeze(network)
    assert (frozen(x) - network(x)).abs().max() <= 1e-4  # float32 transforms of images of norm 10
    links = prove(frozen, (1, 8, 12))
    proved = [
        (part.proof.method, part.proof.lipschitz)
        for part in links.parts
        if "conv" in part.op or "circular" in part.op
    ]
    assert len(proved) == 3
    how = "torus" if method == "bcop" else "waves"
    assert all(found == how and 0.9 < constant <= 1 for found, constant in proved)
    result = certify(links, x, frozen(x).argmax(dim=1))
    assert check(write_certificate(tmp_path, links, frozen, images, result)).ok


def test_a_kernel_that_is_orthogonal_on_its_image_is_not_with_zeros_around_it():
    """Why the size of the image is part of the layer."""
    _, q = layer_and_matrix("cayley", scale=1.0)
    layer, _ = layer_and_matrix("cayley", scale=1.0)
    kernel = layer.kernel().detach()
    conv = nn.Conv2d(2, 2, tuple(kernel.shape[2:]), padding=[k // 2 for k in kernel.shape[2:]], bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(kernel)
    other = jacobian(conv, torch.zeros(1, 2, 9, 9, dtype=torch.float64)).numpy()
    assert np.linalg.norm(q, 2) <= 1 + ROUNDING
    assert np.linalg.norm(other, 2) > 1.05


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "qr"}, ValueError, "method"),
        ({"stride": 3}, ValueError, "stride must divide"),
        ({"method": "eco", "kernel_size": 3}, lc.NotCertified, "its kernel divides"),
        ({"method": "bcop", "kernel_size": 2}, ValueError, "odd side"),
        ({"method": "bcop", "kernel_size": 11}, ValueError, "at most once"),
        ({"method": "bcop", "kernel_size": (1, 3)}, ValueError, "odd side"),
        (
            {"method": "cayley", "rank": 1},
            ValueError,
            "rank is a setting of method='reflector'; got method='cayley'",
        ),
        ({"method": "reflector", "rank": 2}, ValueError, "less than the larger width, 2; got 2"),
        ({"method": "reflector", "rank": 0}, ValueError, "rank must be an integer of at least 1; got 0"),
    ],
)
def test_what_has_no_orthogonal_kernel_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        lc.OrthogonalConv2d(2, 2, **{"kernel_size": 3, "image_size": 4, **options})


def test_another_image_is_refused():
    layer = lc.OrthogonalConv2d(2, 2, image_size=4)
    for shape in ((1, 2, 5, 5), (1, 3, 4, 4), (2, 16)):
        with pytest.raises(ValueError, match="image_size of these inputs"):
            layer(torch.zeros(shape))
    assert torch.equal(layer(torch.ones(2, 4, 4)), layer(torch.ones(1, 2, 4, 4))[0])


@pytest.mark.parametrize("method", MAPS)
def test_a_layer_in_float64_is_frozen_in_float32(method):
    kernel = 2 if method == "eco" else 3
    layer = lc.OrthogonalResidualConv2d(1, 2, kernel, image_size=4, method=method).double()
    frozen = lc.freeze(layer)
    assert frozen(torch.zeros(1, 1, 4, 4)).dtype == torch.float32
    (link,) = prove(frozen, (1, 4, 4)).parts
    assert link.proof.lipschitz == 1.0


def test_no_images_are_no_error():
    for layer in (lc.OrthogonalConv2d(2, 3, image_size=4), lc.OrthogonalResidualConv2d(2, 3, image_size=4)):
        assert layer(torch.zeros(0, 2, 4, 4)).shape[0] == 0


def test_where_no_proof_reaches_nothing_is_frozen(monkeypatch):
    """The norm on the plane is another operator's: dividing by it would be sound, and not the layer."""
    monkeypatch.setattr(convolution, "MANY_ANGLES", 3)
    with pytest.raises(lc.NotCertified, match="each frequency"):
        lc.freeze(lc.OrthogonalConv2d(1, 1, image_size=4))
    lc.freeze(lc.OrthogonalConv2d(1, 1, image_size=4, method="bcop"))


@pytest.mark.parametrize("image", [(64, 4), (2, 100)])
def test_a_kernel_as_large_as_a_large_image_is_checked(image, tmp_path):
    torch.manual_seed(3)
    network = nn.Sequential(
        lc.OrthogonalConv2d(1, 1, image_size=image), nn.Flatten(), lc.NormalizedHead(image[0] * image[1], 2)
    )
    images = torch.randint(0, 256, (3, 1, *image), dtype=torch.uint8)
    frozen = lc.freeze(network)
    links = prove(frozen, (1, *image))
    result = certify(links, images.float() / 255, frozen(images.float() / 255).argmax(dim=1))
    assert check(write_certificate(tmp_path, links, frozen, images, result)).ok


def test_room_is_left_for_the_checker_where_its_grid_is_coarser():
    """63 taps: our grid has 992 points, the checker's at most 512."""
    kernel = np.random.default_rng(0).standard_normal((1, 1, 1, 63))
    found = convolution.by_grid_too(convolution.conv_norm_bound(kernel), kernel, 1)
    assert checker.norm_squared(kernel[None], found.value**2) <= found.value**2


# --- As they are stored: in a basis of waves ---

IMAGES = [(1, 1), (1, 6), (2, 3), (4, 4), (5, 8), (7, 9)]


@pytest.mark.parametrize("image", IMAGES)
def test_waves_are_orthonormal_and_a_kernel_has_blocks_in_them(image):
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (2, 3), (3, 2)):
        sizes = [2 * (size // 2) + 1 for size in image]
        kernel = rng.standard_normal((n, m, *sizes))
        rows, columns = (waves(size) for size in image)
        for basis, size in ((rows, image[0]), (columns, image[1])):
            assert (basis.mT @ basis - torch.eye(size)).abs().max() <= ROUNDING
        blocks = blocks_of(torch.from_numpy(kernel), image)
        x = rng.standard_normal((4, m, *image))
        found = expand(rows, columns, blocks, torch.from_numpy(x)).numpy()
        expected = x.reshape(4, -1) @ circulant(kernel, image).T
        assert np.abs(found.reshape(4, -1) - expected).max() <= ROUNDING * np.abs(expected).max()
        assert expand(rows, columns, blocks, torch.zeros(0, m, *image).double()).shape == (0, n, *image)


def matrix_of_waves(rows, columns, blocks):
    """TᵀBT from the definition, entry by entry, (n·H·W, m·H·W), and the same of absolute values."""
    h, w, n, m = len(rows) // 2, len(columns) // 2, blocks.shape[1] // 4, blocks.shape[2] // 4
    made = []
    for r, c, b in ((rows, columns, blocks), (abs(rows), abs(columns), abs(blocks))):
        middle = np.zeros((n, h, 2, w, 2, m, h, 2, w, 2))
        for i, j in itertools.product(range(h), range(w)):
            middle[:, i, :, j, :, :, i, :, j] = b[i * w + j].reshape(2, 2, n, 2, 2, m).transpose(2, 0, 1, 5, 3, 4)
        middle = middle.reshape(n, 2 * h, 2 * w, m, 2 * h, 2 * w)
        matrix = np.einsum("yY,xX,nyxmvu,vV,uU->nYXmVU", r, c, middle, r, c, optimize=True)
        made.append(matrix.reshape(n * r.shape[1] * c.shape[1], -1))
    return made


@pytest.mark.parametrize("image", [(1, 6), (4, 4), (3, 5)])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
def test_bounds_of_waves_hold_for_any_numbers_and_are_tight_for_orthonormal_ones(image, scale):
    rng = np.random.default_rng(1)
    for n, m, honest in ((2, 3, True), (3, 1, True), (2, 2, False)):
        rows, columns = (waves(size).numpy() for size in image)
        if not honest:  # whatever a file may hold
            rows, columns = (0.5 * rng.standard_normal(t.shape) for t in (rows, columns))
        blocks = scale * rng.standard_normal((len(rows) * len(columns) // 4, 4 * n, 4 * m))
        gamma = rng.uniform(0, 1, n)
        gamma[0] = 0.0 if n > 2 else gamma[0]
        matrix, absolute = matrix_of_waves(rows, columns, blocks)
        root = np.repeat(np.sqrt(gamma), image[0] * image[1])[:, None]
        norm, rho = np.linalg.norm(matrix, 2), np.linalg.norm(root * matrix, 2) ** 2
        assert norm * (1 - ROUNDING) <= torus_norm_bound(rows, columns, blocks).value
        found = torus_rho_bound(rows, columns, blocks, gamma).value
        assert rho * (1 - ROUNDING) <= found
        kappa = torus_kappa(rows, columns, blocks, gamma)
        assert np.linalg.norm(root * absolute, 2) * (1 - ROUNDING) <= kappa
        if honest and not any(size % 2 for size in image):
            assert torus_norm_bound(rows, columns, blocks).value <= norm * (1 + 1e-9)
            assert found <= rho * (1 + 1e-9)


def test_bounds_of_waves_fail_closed():
    rows, columns, blocks = waves(4).numpy(), waves(4).numpy(), np.ones((4, 8, 4))
    assert np.isfinite(torus_norm_bound(rows, columns, blocks).value)
    for bad in (np.nan, np.inf):
        for k in range(3):
            parts = [rows.copy(), columns.copy(), blocks.copy()]
            parts[k].flat[1] = bad
            assert torus_norm_bound(*parts).value == np.inf
    for gamma in ((np.nan, 1.0), (-1.0, 1.0)):
        assert torus_rho_bound(rows, columns, blocks, np.array(gamma)).value == np.inf


def test_bounds_of_waves_do_not_underflow():
    """(‖R‖‖C‖)⁴ underflowed: a norm of 5.4e-138 was bounded by 0."""
    small, blocks = np.full((2, 1), 2.0**-140), np.full((1, 4, 4), 2.0**100)
    norm = np.linalg.norm(matrix_of_waves(small, small, blocks)[0].astype(np.longdouble).astype(float), 2)
    assert norm > 1e-138
    assert torus_norm_bound(small, small, blocks).value >= norm * (1 - ROUNDING)
    assert torus_kappa(small, small, blocks, np.ones(1)) >= norm * (1 - ROUNDING)


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 1)])
def test_a_bias_or_gamma_of_another_shape_is_refused(shape):
    """It would be broadcast: three channels came out where the proof had one, with √3 times the constant."""
    rows, columns = waves(3).float(), waves(2).float()
    blocks, two, dense = torch.randn(2, 8, 8), torch.ones(2), torch.randn(2, 4)
    makers = [
        (lambda bias: ops.Circular(rows, columns, blocks, bias), "bias", (2, 3, 2)),
        (lambda bias: ops.ResidualCircular(rows, columns, blocks, two, bias, "relu"), "bias", (2, 3, 2)),
        (lambda gamma: ops.ResidualCircular(rows, columns, blocks, gamma, two, "relu"), "gamma", (2, 3, 2)),
        (lambda bias: ops.ResidualLinear(dense, two, bias, None, "relu"), "bias", (4,)),
        (lambda gamma: ops.ResidualLinear(dense, gamma, two, None, "relu"), "gamma", (4,)),
    ]
    for make, name, image in makers:
        with pytest.raises(lc.NotCertified, match="must have shape"):
            make(torch.rand(shape))
        module = make(two)  # and if it is replaced later
        setattr(module, name, torch.rand(shape))
        with pytest.raises(lc.NotCertified, match="was built with"):
            lc.audit(module, image)


def test_a_large_residual_in_waves_has_no_bound_in_float32():
    """What underflows in its first product is multiplied by the second."""
    rows, columns, one = waves(4).float(), waves(4).float(), torch.ones(1).double()
    blocks, gamma = torch.eye(4).repeat(4, 1, 1), torch.full((1,), 9.0)
    large = ops.ResidualCircular(rows, columns, blocks, gamma, None, "relu")
    (narrow,), (wide,) = (prove(large, (1, 4, 4), dtype=dtype).parts for dtype in (torch.float32, torch.float64))
    assert narrow.proof.error_bound(one, U32).isinf()
    assert wide.proof.error_bound(one, U64) < 1e-10


def test_frozen_with_a_stride_takes_no_images():
    frozen = lc.freeze(lc.OrthogonalConv2d(3, 4, 2, image_size=(6, 8), stride=2))
    assert frozen(torch.zeros(0, 3, 6, 8)).shape == (0, 4, 3, 4)


@pytest.mark.parametrize("residual", [False, True])
def test_the_error_bound_of_waves_holds(residual):
    """In float32 and in float64 against extended precision, sums in one order and in blocks."""
    torch.manual_seed(0)
    layer = (
        lc.OrthogonalResidualConv2d(3, 5, image_size=(6, 5))
        if residual
        else lc.OrthogonalConv2d(3, 5, image_size=(6, 5))
    )
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    network = lc.freeze(layer)
    (frozen,) = network
    rows, columns, blocks = (getattr(frozen, name).double().numpy() for name in ("rows", "columns", "weight"))
    matrix = matrix_of_waves(*(t.astype(np.longdouble) for t in (rows, columns, blocks)))[0]
    bias = np.repeat(frozen.bias.double().numpy(), 30)
    x = torch.randn(8, 3, 6, 5)
    exact = x.double().numpy().astype(np.longdouble).reshape(8, -1)
    z = exact @ matrix.T + bias
    if residual:
        twice = 2 * np.repeat(frozen.gamma.double().numpy(), 30)
        z = exact - (np.maximum(z, 0) * twice) @ matrix
    for dtype, u, block in ((torch.float32, U32, None), (torch.float32, U32, 4), (torch.float64, U64, None)):
        (one,) = prove(network, (3, 6, 5), dtype=dtype, block=block).parts
        away = (one.forward(x.to(dtype)).double().numpy().reshape(8, -1) - z).astype(float)
        norms = x.double().flatten(1).norm(dim=1)
        assert (np.linalg.norm(away, axis=1) <= one.proof.error_bound(norms, u).numpy()).all()
    deployed = network(x).double().numpy().reshape(8, -1)
    assert np.abs(deployed - z.astype(float)).max() <= 1e-5


def test_what_does_not_fit_its_waves_is_refused():
    network = lc.freeze(lc.OrthogonalConv2d(2, 3, image_size=(4, 6)))
    for shape in ((1, 2, 6, 4), (1, 3, 4, 6), (1, 2, 4, 5), (2, 24)):
        with pytest.raises(ValueError, match="part of the layer"):
            network(torch.zeros(shape))
    with pytest.raises(lc.NotCertified, match=r"images of shape \(2, 4, 6\).*got shape \(2, 6, 4\)"):
        lc.audit(network, (2, 6, 4))
    network[0].rows *= 3
    with pytest.raises(lc.NotCertified, match="at most 1 in modulus"):
        lc.audit(network, (2, 4, 6))


def test_few_taps_stay_a_convolution_and_many_numbers_too(monkeypatch):
    def kind(**options):
        (op,) = lc.freeze(lc.OrthogonalConv2d(2, 2, **options))
        return type(op)

    assert kind(image_size=3) is ops.Conv
    assert kind(image_size=8, method="bcop") is ops.Conv
    assert kind(image_size=4) is ops.Circular
    monkeypatch.setattr(freeze, "MANY_NUMBERS", 10)
    assert kind(image_size=4) is ops.Conv


@pytest.mark.parametrize("size", [(4, 6), (5, 3), (8, 8), (1, 4), (7, 1)])
def test_products_with_waves_are_the_transforms(size):
    torch.manual_seed(0)
    matrices = torus.symbols(torch.randn(3, 2, 3, 3, dtype=torch.float64), size).requires_grad_()
    x = torch.randn(5, 2, *size, dtype=torch.float64, requires_grad=True)
    ours, theirs = torus.apply_by_products(matrices, x), torus.apply(matrices, x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
    along = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * along).sum(), (matrices, x))
    for one, other in zip(mine, torch.autograd.grad((theirs * along).sum(), (matrices, x)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("taps", "apart"), [((2, 2), (2, 3)), ((3, 4), (2, 1)), ((1, 2), (5, 1))])
def test_taps_that_go_round_the_image_are_one_product(taps, apart):
    torch.manual_seed(0)
    kernel = torch.randn(3, 2, *taps, dtype=torch.float64)
    x = torch.randn(5, 2, *(k * d for k, d in zip(taps, apart, strict=True)), dtype=torch.float64)
    (up, left), (high, wide) = (k // 2 for k in taps), taps
    margins = (left * apart[1], (wide - 1 - left) * apart[1], up * apart[0], (high - 1 - up) * apart[0])
    expected = nn.functional.conv2d(nn.functional.pad(x, margins, mode="circular"), kernel, dilation=apart)
    torch.testing.assert_close(torus.apply_whole(kernel, x), expected, rtol=0, atol=1e-13)
    assert torus.apply_whole(kernel, x[:0]).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize("away", [0.0, 0.01, 0.2])
def test_the_parts_of_a_composition_bound_its_norm(away):
    """Also where they are far from orthonormal; of an exact composition the bound is 1."""
    torch.manual_seed(0)
    start = orthonormal(torch.randn(4, 5, dtype=torch.float64), "bjorck")
    bases = orthonormal(torch.randn(4, 5, 2, dtype=torch.float64), "bjorck")
    start, bases = ((1 + away) * part + away * torch.randn_like(part) for part in (start, bases))
    kernel = torus.block_composition(start, bases)
    norm = torch.linalg.matrix_norm(torus.symbols(kernel, (6, 6)), 2).amax()
    bound = torus.composition_norm(start, bases, "bjorck").sqrt()
    assert norm <= bound * (1 + 1e-12)
    assert away > 0 or bound <= 1 + 1e-9


@pytest.mark.parametrize("method", sorted(MAPS))
@pytest.mark.parametrize("image", [(4, 6), (12, 12)])
def test_training_computes_what_evaluation_does(method, image):
    """The maps of ``quick``, products instead of transforms, and a bound from the parts; in float32."""
    torch.manual_seed(0)
    layer = lc.OrthogonalConv2d(5, 5, 2 if method == "eco" else 3, image_size=image, method=method)
    with torch.no_grad():
        layer.weight.add_(0.05 * torch.randn_like(layer.weight))
    x = torch.randn(3, 5, *image)
    torch.testing.assert_close(layer.train()(x), layer.eval()(x), rtol=0, atol=2e-4)
