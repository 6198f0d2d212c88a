"""Mistakes that voided guarantees in shipped code of this field, each rebuilt, and what lipcert does instead.

Every test first makes the mistake in a few lines and measures the damage, which shows that the test can see
it; then it holds lipcert's layer to the same measure, or expects a refusal. Numbers are those of the list of
known mistakes; the ones about radii and multi-layer certificates are tested where those live.
"""

import copy
import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lipcert as lc
from lipcert.algebra.gram import affine_columns, dense_columns, residual_columns
from lipcert.algebra.orthogonal import METHODS, exponential_series, gram_deviation, orthonormal

EPS, EPS32 = (torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32))
# Operators here have fewer than 300 rows; sums and singular values err by less than 300·eps each.
ROUNDING = 1024 * EPS


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def norm(matrix):
    return torch.linalg.matrix_norm(matrix.double(), 2).item()


def matrix_of(function, shape, dtype=torch.float64):
    """The matrix of an affine map, by unit impulses, for inputs of ``shape`` (without the batch)."""
    size = math.prod(shape)
    with torch.no_grad():
        start = function(torch.zeros(1, *shape, dtype=dtype))
        image = function(torch.eye(size, dtype=dtype).view(size, *shape)) - start
    return image.reshape(size, -1).T.double()


def jacobian(function, x):
    """The Jacobian at one input x (without the batch), (outputs, inputs)."""
    flat = lambda v: function(v.view(1, *x.shape)).flatten()  # noqa: E731
    return torch.autograd.functional.jacobian(flat, x.flatten()).double()


def lags(kernel):
    """C_ij[d] of the residual form for kernel (hidden, channels, kh, kw): (hidden, hidden, lags_h, lags_w)."""
    return F.conv2d(kernel, kernel, padding=(kernel.shape[2] - 1, kernel.shape[3] - 1))


def assign(layer, **values):
    """Set parameters by dotted name, in float64 and evaluation mode."""
    layer.double().eval()
    with torch.no_grad():
        for name, value in values.items():
            layer.get_parameter(name.replace("__", ".")).copy_(torch.as_tensor(value))
    return layer


def q_bounds(n):
    return {
        "sll": lc.bounds.SLL(n),
        "shifted": lc.bounds.SLL(n, "shifted"),
        "surrogate": lc.bounds.SLL(n, "surrogate"),
        "rescaled": lc.bounds.Rescaled(n),
    }


def all_bounds(n):
    return q_bounds(n) | {"aol": lc.bounds.AOL(), "spectral": lc.bounds.Spectral()}


# ---------------------------------------------------------------- 1, 2, 3: the learned q, and zero rows


@pytest.mark.parametrize("form", ["dense", "convolution"])
def test_01_epsilon_in_the_denominator_of_q(form):
    n, q = 4, torch.full((4,), 1e-9, dtype=torch.float64)
    weight = torch.linalg.qr(rand(6, n)).Q.T  # (n, m): orthonormal columns of W
    a = (weight @ weight.T).abs()
    mistaken = (a * q[None, :] / (q[:, None] + 1e-6)).sum(dim=1)
    assert norm(torch.eye(6) - 2 * weight.T @ (weight / mistaken[:, None])) > 1387
    for name, bound in q_bounds(n).items():
        if form == "dense":
            layer, point = lc.ResidualLinear(6, n, bound=bound), rand(6)
        else:
            layer, point = lc.ResidualConv2d(6, n, 1, bound=bound), rand(6, 2, 2)
        assign(layer, weight=weight.view_as(layer.weight), bias=torch.full((n,), 50.0), bound__log_q=q.log())
        assert norm(jacobian(layer, point)) <= 1 + ROUNDING, name
        assert layer.lipschitz_bound() == 1.0
        if name == "surrogate":
            layer.train()
            assert norm(jacobian(layer, point)) > 1387  # the mistake, on purpose; so it is not certified
            with pytest.raises(lc.NotCertified):
                layer.lipschitz_bound()


def test_02_q_and_its_inverse_on_the_same_axis_is_inert():
    kernel = rand(4, 2, 3, 3)
    a = lags(kernel).abs().sum(dim=(2, 3))

    def mistaken(q):
        return (a * q[:, None] / q[:, None]).sum(dim=1)  # both on axis 0: they cancel

    first, second = rand(4, seed=1).exp(), rand(4, seed=2).exp()
    assert (mistaken(first) - mistaken(second)).abs().max() <= 8 * EPS * a.sum()  # rounding is all that moves
    for n, make in (
        (4, lambda b: lc.ResidualConv2d(2, 4, 3, bound=b)),
        (4, lambda b: lc.ResidualConv2d(2, 4, 3, stride=2, bound=b)),
        (2, lambda b: lc.AffineConv2d(2, 4, 3, padding=1, bound=b)),
        (2, lambda b: lc.AffineConv2d(2, 4, 3, padding=1, stride=2, bound=b)),
        (4, lambda b: lc.AffineConv2d(4, 4, 3, padding=1, groups=2, bound=b)),
        (4, lambda b: lc.ResidualLinear(5, 4, bound=b)),
        (4, lambda b: lc.AffineLinear(4, 5, bound=b)),
        (4, lambda b: lc.GeneralLinear(5, 4, 3, bound=b)),
    ):
        for name, bound in q_bounds(n).items():
            layer = make(bound).double().eval()
            assign(layer, weight=rand(*layer.weight.shape, seed=3))
            if isinstance(layer, lc.ResidualConv2d | lc.AffineConv2d):
                x = rand(2, layer.operator.inputs, 6, 6)
            else:
                x = rand(8, 4 if isinstance(layer, lc.AffineLinear) else 5)
            drawn = []
            for seed in (1, 2):
                assign(layer, bound__log_q=rand(n, seed=seed))
                drawn.append(layer(x))
            assert (drawn[0] - drawn[1]).abs().max() > 1e-3, name
            (drawn[1] * torch.linspace(-1, 1, drawn[1].numel(), dtype=x.dtype).view_as(drawn[1])).sum().backward()
            gradient = layer.bound.log_q.grad
            assert (gradient.abs() > 1e-6).all(), name  # each entry, not only one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_03_zero_row_gives_no_nan_gradient(dtype):
    weight = rand(4, 6).to(dtype)
    weight[1] = 0
    leaf = weight.clone().requires_grad_()
    t = (leaf @ leaf.T).abs().sum(dim=1)
    torch.where(t > 0, 1 / t, 0.0).sum().backward()  # masked after the division
    assert leaf.grad.isnan().any()
    for scale, row in itertools.product((1.0, 1e-20, 1e-30, 1e15), (0.0, 1e-40, 1e-20, 1e-7)):
        weight[1] = weight[0].flip(0) * row
        for name, bound in all_bounds(4).items():
            for layer, x in (
                (lc.ResidualLinear(6, 4, bound=bound), rand(3, 6)),
                (lc.AffineLinear(4, 6, bound=copy.deepcopy(bound)), rand(3, 4)),
                (lc.ResidualConv2d(6, 4, 3, bound=copy.deepcopy(bound)), rand(1, 6, 4, 4)),
                (lc.GeneralLinear(6, 4, 5, bound=copy.deepcopy(bound)), rand(3, 6)),
            ):
                layer.to(dtype)
                with torch.no_grad():
                    plain = weight * scale
                    if isinstance(layer, lc.AffineLinear):
                        layer.weight.copy_(plain.T)
                    else:
                        layer.weight.copy_(plain.view(4, 6, *[1] * (layer.weight.ndim - 2)))
                layer(x.to(dtype)).square().sum().backward()
                for parameter, value in layer.named_parameters():
                    assert torch.isfinite(value.grad).all(), (name, type(layer).__name__, scale, row, parameter)


def test_03_weights_of_1e_20_do_not_overflow_and_large_q_neither():
    weight = rand(4, 6).float()
    tiny = weight * 1e-20
    assert not torch.isfinite(1 / (tiny @ tiny.T).abs().sum(dim=1)).all()  # float32: the Gram underflows
    log_q = torch.tensor([90.0, -90.0, 0.0, 89.0])
    assert not torch.isfinite(log_q.exp()[None, :] / log_q.exp()[:, None]).all()
    x = rand(5, 6).float()
    for name, bound in all_bounds(4).items():
        layer = lc.ResidualLinear(6, 4, bound=bound, bias=False).eval()
        for scale, log in itertools.product((2.0**-66, 2.0**-20, 1.0, 2.0**66), (0.0, 1.0, 1e2)):
            with torch.no_grad():
                layer.weight.copy_(weight * scale)
                if hasattr(bound, "log_q"):
                    bound.log_q.copy_(log_q * log)
                y = layer(x)
            assert torch.isfinite(y).all(), (name, scale, log)
            j = jacobian(layer, x[0])
            # float32 products of at most 6 terms, an operator and its adjoint.
            assert norm(j) <= 1 + 64 * EPS32, (name, scale, log)
            if scale == 2.0**-20:
                reference = y
            elif scale in (1.0, 2.0**66):  # without bias a ReLU layer does not depend on the scale of W
                with torch.no_grad():
                    layer.weight.copy_(weight * 2.0**-20)
                    reference = layer(x)
                assert (y - reference).abs().max() <= 64 * EPS32 * reference.abs().max(), (name, scale, log)


# ---------------------------------------------------------------- 5: the head


def margin_constants(head):
    """‖v_i − v_j‖ of the matrix that the head's forward pass applies."""
    v = matrix_of(head, (head.in_features,), head.weight.dtype)
    return torch.linalg.vector_norm(v[:, None] - v[None, :], dim=-1)


def test_05_head_distances_between_all_pairs_not_a_normalized_guess():
    head = lc.NormalizedHead(8, 12)
    weight = rand(12, 8)
    weight[1], weight[2], weight[3] = -weight[0], weight[0] * 3, 0
    assign(head, weight=weight)
    true = margin_constants(head)
    assert true.max() > math.sqrt(2) + 0.5  # "unit rows are √2 apart" is false: opposite ones are 2 apart
    bound = head.pairwise_bound()
    assert bound.shape == (12, 12)
    assert (bound >= true).all()
    # Rows of norm 1 in sums of 8 terms; the bound adds 2·4·(8 + 12 + 8)·eps to the distance.
    assert (bound <= true + 2 * 4 * 28 * EPS + ROUNDING).all()
    assert norm(matrix_of(head, (8,))) <= head.lipschitz_bound() <= math.sqrt(12) * 1.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_05_head_pairs_are_those_of_the_forward_pass_for_rows_of_any_size(dtype):
    head = lc.NormalizedHead(3, 4).to(dtype)
    for size in (1e30, 1e-3, 1e-8, 1e-12, 1e-20, 1e-37, 0.0):
        weight = rand(4, 3).to(dtype)
        weight[1] = weight[0] * size  # the same direction: normalised, the rows coincide, unless one counts as 0
        weight[2] = -weight[0] * size
        with torch.no_grad():
            head.weight.copy_(weight)
        assert (head.pairwise_bound() >= margin_constants(head) - 32 * torch.finfo(dtype).eps).all(), size
        assert head.lipschitz_bound() >= norm(matrix_of(head, (3,), dtype)) - 32 * torch.finfo(dtype).eps, size


# ---------------------------------------------------------------- 6, 7, 8: norms


def test_06_power_iteration_is_a_lower_bound():
    u, _, v = torch.linalg.svd(rand(6, 6))
    weight = u @ torch.diag(torch.tensor([1.0, 0.6, 0.55, 0.5, 0.45, 0.4], dtype=torch.float64)) @ v
    x = v[1] + 1e-3 * v[0]  # a start that barely sees the top singular vector
    for _ in range(5):
        x = weight.T @ (weight @ x)
        x = x / x.norm()
    mistaken = (weight @ x).norm()
    assert norm(weight / mistaken) > 1.05
    for iterations in (1, 2, 6, 10):
        for scale in (1e-6, 1.0, 1e6):
            affine = lc.AffineLinear(6, 6, bound=lc.bounds.Spectral(iterations), bias=False)
            assert norm(matrix_of(assign(affine, weight=weight * scale), (6,))) <= 1 + ROUNDING
            cpl = lc.ResidualLinear(6, 6, bound=lc.bounds.Spectral(iterations))
            assign(cpl, weight=weight * scale, bias=torch.full((6,), 100.0 * scale))
            assert norm(jacobian(cpl, rand(6))) <= 1 + ROUNDING


def test_06_spectral_holds_after_every_optimizer_step():
    layer = lc.AffineLinear(8, 8, bound="spectral", bias=False).double()
    stale = torch.linalg.matrix_norm(layer.weight.detach(), 2)  # an estimate from before the steps
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    x, target = rand(16, 8), rand(16, 8, seed=1) * 10
    for _ in range(20):
        optimizer.zero_grad()
        (layer(x) - target).square().sum().backward()
        optimizer.step()
        assert norm(matrix_of(layer, (8,))) <= 1 + ROUNDING
    assert norm(layer.weight.detach() / stale) > 1.2


def test_07_convolution_norm_from_the_reshaped_kernel_or_a_kernel_sized_transform():
    image = (8, 8)
    for seed in range(5):
        kernel = rand(3, 2, 3, 3, seed=seed) if seed else torch.ones(3, 2, 3, 3, dtype=torch.float64)
        true = norm(matrix_of(lambda x, k=kernel: F.conv2d(x, k, padding=1), (2, *image)))
        if not seed:
            assert true / norm(kernel.flatten(1)) > 2.5  # the reshaped matrix, (out, in·k·k)
        for bound in ("spectral", "aol", lc.bounds.Rescaled(2, 2)):
            layer = lc.AffineConv2d(2, 3, 3, padding=1, bound=bound, bias=False)
            assert norm(matrix_of(assign(layer, weight=kernel), (2, *image))) <= 1 + ROUNDING
    edge = torch.tensor([[0, 0, 0], [1, 0, -1], [0, 0, 0]], dtype=torch.float64)
    small = torch.fft.fft2(edge).abs().max().item()  # three frequencies an axis miss the maximum
    wrapped = matrix_of(lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), edge[None, None]), (1, *image))
    assert norm(wrapped) / small > 1.15
    # The image's own transform is no bound either: zero padding is another operator than wrapping around.
    alternating = torch.tensor([[[[1.0, -1.0, 1.0]]]], dtype=torch.float64)
    own = torch.fft.fft(alternating[0, 0, 0], 3).abs().max().item()
    assert norm(matrix_of(lambda x: F.conv2d(x, alternating, padding=(0, 1)), (1, 1, 3))) > own * 1.2
    for kernel, padding, side in ((edge[None, None], 1, 8), (edge[None, None], 1, 3), (alternating, (0, 2), 3)):
        for mode in ("zeros", "circular") if padding == 1 else ("zeros",):
            layer = lc.AffineConv2d(
                1, 1, kernel.shape[2:], padding=padding, padding_mode=mode, bound="spectral", bias=False
            )
            assert norm(matrix_of(assign(layer, weight=kernel), (1, side, side))) <= 1 + ROUNDING


def test_08_groups_are_the_maximum_not_the_product():
    kernel = rand(4, 1, 3, 3) * 0.05
    operator = matrix_of(lambda x: F.conv2d(x, kernel, padding=1, groups=2), (2, 6, 6))
    parts = [matrix_of(lambda x, k=k: F.conv2d(x, k, padding=1), (1, 6, 6)) for k in kernel.chunk(2)]
    assert norm(operator) == pytest.approx(max(map(norm, parts)), rel=ROUNDING)
    assert norm(operator) / math.prod(map(norm, parts)) > 2  # dividing by the product leaves a norm above 2
    for groups, stride, name in itertools.product((1, 2, 4), (1, 2), all_bounds(4)):
        layer = lc.AffineConv2d(
            4, 8, 3, padding=1, stride=stride, groups=groups, bound=all_bounds(4)[name], bias=False
        )
        weight = rand(*layer.weight.shape) * torch.logspace(-3, 0, 8, dtype=torch.float64)[:, None, None, None]
        size = norm(matrix_of(assign(layer, weight=weight), (4, 6, 6)))
        assert size <= 1 + ROUNDING, (groups, stride, name)
        assert size > 0.25, (groups, stride, name)  # nor is it multiplied away


# ---------------------------------------------------------------- 9, 11: padding, stride, adjoints


def test_09_reflect_and_replicate_padding():
    corner = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.float64)[None, None]
    t = lags(corner).abs().sum()
    for mode, least in (("reflect", 1.3), ("replicate", 1.7)):
        v = matrix_of(lambda x, m=mode: F.conv2d(F.pad(x, (1, 1, 1, 1), mode=m), corner / t.sqrt()), (1, 5, 5))
        assert norm(v) ** 2 > least  # ρ of the residual form; L = 2ρ − 1
        assert norm(torch.eye(25) - 2 * v.T @ v) > 2 * least - 1
        with pytest.raises(lc.NotCertified):
            lc.ResidualConv2d(1, 1, 3, padding_mode=mode)
        with pytest.raises(lc.NotCertified):
            lc.AffineConv2d(1, 1, 3, padding=1, padding_mode=mode)
    for mode in ("zeros", "circular"):
        layer = lc.ResidualConv2d(1, 1, 3, padding_mode=mode, bound="aol")
        assign(layer, weight=corner, bias=[100.0])
        assert norm(jacobian(layer, rand(1, 5, 5))) <= 1 + ROUNDING


def test_09_even_circular_kernels_repeat_outputs():
    delta = torch.tensor([[1, 0], [0, 0]], dtype=torch.float64)[None, None]
    ones = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    for kernel, least in ((delta, 3.9), (ones, 1.8)):
        t = lags(kernel).abs().sum()
        padded = matrix_of(
            lambda x, k=kernel, t=t: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), k / t.sqrt()), (1, 4, 4)
        )
        assert norm(padded) ** 2 > least
    for side in (2, 4, (3, 2), (2, 1)):
        with pytest.raises(lc.NotCertified):
            lc.ResidualConv2d(1, 1, side, padding_mode="circular")
    for side, padding in ((2, 1), (4, 2), (3, 2), ((3, 2), (1, 1)), (1, 1)):
        with pytest.raises(lc.NotCertified):
            lc.AffineConv2d(1, 1, side, padding=padding, padding_mode="circular")
    for kernel, padding in itertools.product((delta, ones), (0, 1, 2, 3)):  # zeros: any amount is a compression
        layer = assign(lc.AffineConv2d(1, 1, 2, padding=padding, bound="aol", bias=False), weight=kernel)
        assert norm(matrix_of(layer, (1, 4, 4))) <= 1 + ROUNDING


def test_09_circular_stride_must_divide_the_image():
    kernel = torch.ones(1, 1, 1, 3, dtype=torch.float64)
    strided = lags(kernel)[..., ::2].abs().sum()  # lags −2, 0, 2
    v = matrix_of(
        lambda x: F.conv2d(F.pad(x, (1, 1, 0, 0), mode="circular"), kernel / strided.sqrt(), stride=(1, 2)),
        (1, 1, 5),
    )
    assert norm(v) ** 2 > 1.1
    residual = lc.ResidualConv2d(1, 1, (1, 3), stride=(1, 2), padding_mode="circular", bound="aol")
    assign(residual, weight=kernel, bias=[100.0])
    affine = lc.AffineConv2d(1, 1, (1, 3), stride=(1, 2), padding=(0, 1), padding_mode="circular", bias=False)
    assign(affine, weight=kernel)
    for layer, side in itertools.product((residual, affine), (3, 5, 7)):
        with pytest.raises(lc.NotCertified):
            layer(torch.zeros(1, 1, 1, side, dtype=torch.float64))
    for side in (2, 4, 6):
        assert norm(jacobian(residual, rand(1, 1, side))) <= 1 + ROUNDING
        assert norm(matrix_of(affine, (1, 1, side))) <= 1 + ROUNDING


def test_11_strided_lags_are_for_the_residual_form_only():
    """Kernel [1, 1 | 1, −1], stride 2: with the lags in 2ℤ alone the affine form has norm √2."""
    kernel = torch.tensor([[[[1.0, 1.0]], [[1.0, -1.0]]]], dtype=torch.float64)  # one output, two inputs
    columns = kernel.transpose(0, 1)  # the affine form's columns are its inputs
    mistaken = lags(columns)[..., 1::2].abs().sum(dim=(1, 2, 3))  # lags −1, 0, 1: of these only 0 is even
    assert mistaken.tolist() == [2.0, 2.0]
    shrunk = kernel / mistaken.sqrt()[None, :, None, None]
    assert norm(matrix_of(lambda x: F.conv2d(x, shrunk, stride=(1, 2)), (2, 1, 8))) == pytest.approx(math.sqrt(2))
    for bound in all_bounds(2).values():
        layer = lc.AffineConv2d(2, 1, (1, 2), stride=(1, 2), bound=bound, bias=False)
        assert norm(matrix_of(assign(layer, weight=kernel), (2, 1, 8))) <= 1 + ROUNDING
    t = lc.bounds.AOL()(affine_columns(kernel, (1, 2), 1))[1]
    assert t.tolist() == [4.0, 4.0]  # tight: the operator has norm 2
    worst = 0.0
    for seed in range(200):
        kernel = rand(1, 3, 1, 4, seed=seed).sign()
        strided = lags(kernel.transpose(0, 1))[..., 1::2].abs().sum(dim=(1, 2, 3))
        shrunk = kernel / strided.sqrt()[None, :, None, None]
        worst = max(worst, norm(matrix_of(lambda x, k=shrunk: F.conv2d(x, k, stride=(1, 2)), (3, 1, 12))))
        layer = lc.AffineConv2d(3, 1, (1, 4), stride=(1, 2), bound="aol", bias=False)
        assert norm(matrix_of(assign(layer, weight=kernel), (3, 1, 12))) <= 1 + ROUNDING
    assert worst > 1.4


def test_11_stride_with_dilation():
    kernel = torch.ones(1, 1, 1, 3, dtype=torch.float64)
    strided = lags(kernel)[..., ::2].abs().sum()  # of the undilated kernel: 1 + 3 + 1
    v = matrix_of(
        lambda x: F.conv2d(x, kernel / strided.sqrt(), stride=(1, 2), dilation=(1, 2), padding=(0, 2)), (1, 1, 64)
    )
    assert norm(v) > 1.33
    for make in (lc.ResidualConv2d, lc.AffineConv2d):  # the lags that meet are those of stride 2/gcd(2, 2) = 1
        layer = make(1, 1, (1, 3), stride=(1, 2), dilation=(1, 2)).double()
        with torch.no_grad():
            layer.weight.copy_(kernel)
            layer.bias.fill_(50.0)  # every neuron active
        matrix = matrix_of(lambda x, layer=layer: layer(x) - layer(torch.zeros_like(x)), (1, 1, 64))
        assert norm(matrix) <= 1 + 1e-12


def test_11_even_kernels_with_same_padding_are_not_adjoint():
    def mistaken(x, kernel):
        t = lags(kernel).abs().sum(dim=(1, 2, 3))[:, None, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about the copy it makes
            z = F.conv2d(x, kernel, padding="same") / t
        return x - 2 * F.conv_transpose2d(z, kernel)[..., 1:]  # cropped on the other side

    operators = [matrix_of(lambda x, s=s: mistaken(x, rand(2, 1, 1, 2, seed=s)), (1, 1, 8)) for s in range(10)]
    assert max(norm(j - j.T) for j in operators) > 1
    assert max(map(norm, operators)) > 2
    with pytest.raises(ValueError, match="odd kernel"):
        lc.AffineConv2d(1, 1, 2, padding="same")
    for side, stride, image in itertools.product(
        ((1, 2), (2, 2), (4, 3), (3, 3)), (1, 2, 3), ((5, 6), (4, 4), (1, 7))
    ):
        layer = lc.ResidualConv2d(2, 3, side, stride=stride, bound="aol")
        assign(layer, weight=rand(3, 2, *side), bias=torch.full((3,), 100.0))
        j = jacobian(layer, rand(2, *image))
        assert norm(j - j.T) <= ROUNDING  # W and Wᵀ are adjoint, rows the stride skips included
        assert norm(j) <= 1 + ROUNDING


# ---------------------------------------------------------------- 10, 12: pools and normalisation


def test_10_average_pools_with_ceil_mode_divisor_override_or_a_fractional_size():
    ceil = matrix_of(lambda x: 2 * F.avg_pool2d(x, 2, ceil_mode=True), (1, 3, 3))
    assert norm(ceil) == pytest.approx(2.0)
    override = matrix_of(lambda x: 2 * F.avg_pool2d(x, 2, divisor_override=1), (1, 4, 4))
    assert norm(override) == pytest.approx(4.0)
    fractional = matrix_of(lambda x: math.sqrt(5 / 2) * F.avg_pool2d(x, (1, 2)), (1, 1, 5))
    assert norm(fractional) == pytest.approx(math.sqrt(1.25))
    overlapping = matrix_of(lambda x: 3 * F.avg_pool2d(x, 3, stride=1), (1, 7, 7))
    assert norm(overlapping) > 2
    for argument in ("ceil_mode", "divisor_override", "stride", "padding", "count_include_pad"):
        for pool in (lc.layers.ScaledAvgPool2d, lc.layers.L2Pool2d):
            with pytest.raises(TypeError):
                pool(2, **{argument: 1})
    for kernel in (1, 2, 3, (2, 3), (1, 5)):
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        pool = lc.layers.ScaledAvgPool2d(kernel)
        # A mean and a square root: at most h·w + 2 roundings.
        exact = norm(matrix_of(pool, (2, 2 * high, 2 * wide)))
        assert exact == pytest.approx(1.0, abs=(high * wide + 2) * EPS + 16 * EPS)
        assert pool.lipschitz_bound() == 1.0
        for image in ((2 * high + 1, 2 * wide), (2 * high, 2 * wide + 1), (high - 1, wide)):
            if image[0] % high or image[1] % wide:
                with pytest.raises(ValueError, match="divisible"):
                    pool(torch.zeros(1, 2, *image))
                with pytest.raises(ValueError, match="divisible"):
                    lc.layers.L2Pool2d(kernel)(torch.zeros(1, 2, *image))


def test_10_torch_pools_and_overlapping_maxima_need_a_shape():
    """Without one they are refused, never counted as 1; with one they are proved, and hardly above the truth."""
    x = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    y = x.clone()
    y[0, 0, 2, 2] = 1
    pool = nn.MaxPool2d(3, stride=1)
    assert (pool(x) - pool(y)).norm() / (x - y).norm() == pytest.approx(3.0)  # one pixel moves nine maxima
    for module in (
        pool,
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(3, stride=1),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d(3),
        nn.AdaptiveMaxPool2d(3),
        nn.LPPool2d(2, 2),
        nn.LPPool2d(2, 3, stride=1),
        nn.Upsample(scale_factor=2),
        nn.CircularPad2d(2),
        nn.ReflectionPad2d(2),
        nn.ReplicationPad2d(2),
    ):
        chain = nn.Sequential(nn.Identity(), module)
        with pytest.raises(lc.NotCertified, match="shape"):
            lc.lipschitz_bound(chain)
        bound = lc.lipschitz_bound(chain, (1, 5, 5))
        # The steepest of impulses and of the slopes at random points, which are all there is to a linear map.
        slopes = [norm(jacobian(chain, rand(1, 5, 5, seed=seed))) for seed in range(3)]
        unit = torch.eye(25, dtype=torch.float64).view(25, 1, 5, 5)
        impulses = (chain(unit) - chain(torch.zeros(1, 1, 5, 5).double())).flatten(1).norm(dim=1).max().item()
        truth = max(*slopes, impulses)
        assert truth * (1 - ROUNDING) <= bound <= truth * (1 + 1e-6), module
    assert lc.lipschitz_bound(nn.Sequential(nn.Identity(), nn.PixelUnshuffle(2))) == 1.0


def test_10_l2_pool_is_1_lipschitz_everywhere_and_has_a_gradient_at_zero():
    for kernel in (1, 2, (3, 2)):
        pool = lc.layers.L2Pool2d(kernel)
        shape = (2, 6, 6)
        for scale in (1e-160, 1e-20, 1.0, 1e20):  # squares of the first underflow
            x, y = rand(64, *shape) * scale, rand(64, *shape, seed=1) * scale
            moved = (pool(x) - pool(y)).flatten(1).norm(dim=1) / scale
            assert (moved <= (x - y).flatten(1).norm(dim=1) / scale * (1 + ROUNDING)).all()
        zero = torch.zeros(1, *shape, dtype=torch.float64, requires_grad=True)
        pool(zero).sum().backward()
        assert torch.isfinite(zero.grad).all()


def test_12_normalizing_costs_one_over_the_smallest_std():
    mean, std = [0.4914, 0.4822, 0.4465], [0.2, 0.25, 2.0]
    operator = matrix_of(
        lambda x: (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None], (3, 2, 2)
    )
    assert norm(operator) > 4.9  # not 1
    assert norm(operator) > 9 / max(std)  # nor 1/max(std)
    for stds in (std, [1.0, 1.0, 1.0], [1e-3, 1.0, 1e3], [3.0, 7.0, 0.1]):
        layer = lc.layers.Normalize(mean, stds).double()
        measured = norm(matrix_of(layer, (3, 2, 2)))
        # Two divisions, and singular values of a diagonal matrix.
        assert measured * (1 - 8 * EPS) <= layer.lipschitz_bound() <= measured * (1 + 8 * EPS)
    for bad in ([0.0, 1.0, 1.0], [-1.0, 1.0, 1.0], [math.nan, 1.0, 1.0], [math.inf, 1.0, 1.0], [1.0, 1.0]):
        with pytest.raises(ValueError, match="std"):
            lc.layers.Normalize(mean, bad)


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_12_a_loaded_std_that_is_no_std_is_refused(bad):
    layer = lc.layers.Normalize([0.0, 0.0], [0.5, 0.5])
    layer.load_state_dict({"mean": torch.zeros(2), "std": torch.tensor([0.5, bad])})
    with pytest.raises(lc.NotCertified):
        layer.lipschitz_bound()


def test_12_a_loaded_std_that_is_negative_counts_by_its_size():
    layer = lc.layers.Normalize([0.0, 0.0], [0.5, 0.5]).double()
    layer.load_state_dict({"mean": torch.zeros(2), "std": torch.tensor([0.5, -0.1])})
    assert layer.lipschitz_bound() >= norm(matrix_of(layer, (2, 1, 1)))


# ---------------------------------------------------------------- 13, 18: series, iterations, precision


def test_13_series_cut_short_are_not_orthogonal():
    free = rand(6, 6)
    skew = free - free.T
    unit = skew / norm(skew)
    for order, angle, least in ((1, 1.0, 1.4), (2, 1.0, 1.1), (5, 1.5, 1.004), (6, 1.7, 1.007), (9, 1.7, 1 + 1e-6)):
        cut = sum(torch.linalg.matrix_power(unit * angle, j) / math.factorial(j) for j in range(order + 1))
        assert norm(cut) > least, order
        with pytest.raises(ValueError, match="order"):
            exponential_series(unit * angle, order)
    w = 2.5 * torch.linalg.qr(rand(6, 4)).Q  # beyond √3 Björck's iteration diverges
    for _ in range(2):
        w = 1.5 * w - 0.5 * w @ w.T @ w
    assert norm(w) > 10


@pytest.mark.parametrize("method", METHODS)
def test_13_orthogonal_layers_are_contractions_whatever_the_parameters(method):
    hostile = {
        "random": rand(6, 4),
        "wide": rand(4, 6),
        "square": rand(5, 5),
        "huge": rand(6, 4) * 1e12,
        "tiny": rand(6, 4) * 1e-12,
        "zero": torch.zeros(6, 4, dtype=torch.float64),
        "zero column": rand(6, 4) * torch.tensor([1.0, 0, 1, 1], dtype=torch.float64),
        "equal columns": torch.ones(6, 4, dtype=torch.float64),
        "nearly equal": torch.ones(6, 4, dtype=torch.float64) + 1e-9 * rand(6, 4),
        "graded": rand(6, 4) * torch.logspace(-12, 3, 4, dtype=torch.float64),
        "beyond √3": 2.5 * torch.linalg.qr(rand(6, 4)).Q,
        "half turn": torch.tensor([[0.0, math.pi], [-math.pi, 0.0]], dtype=torch.float64),
    }
    for (name, weight), dtype in itertools.product(hostile.items(), (torch.float64, torch.float32)):
        eps = torch.finfo(dtype).eps
        q = orthonormal(weight.to(dtype), method)
        # Condition numbers up to 64·6 enter through (I + A)⁻¹; the layer divides by what was measured.
        assert norm(q) <= 1 + 4096 * eps, (name, dtype)
        m, n = weight.shape
        for layer, point in (
            (lc.OrthogonalLinear(n, m, method=method), rand(n)),
            (lc.ResidualLinear(n, m, bound=lc.bounds.Orthogonal(method)), rand(n)),
        ):
            layer.to(dtype)
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.fill_(100.0)  # all neurons of the residual are active
            # ‖Q‖² ≤ 1 + deviation and T = 1 + deviation; float32 leaves the rounding of two products.
            assert norm(jacobian(layer, point.to(dtype))) <= 1 + 64 * eps, (name, dtype, type(layer).__name__)
        for training in (True, False):  # T is about the Q that was computed, which differs in its last digits
            columns, t = lc.bounds.Orthogonal(method).train(training)(dense_columns(weight.to(dtype)))
            q = columns.matrix()
            if method in ("cayley", "exp"):  # the others' T is a bound of ‖Q‖² where that is smaller
                assert (t >= 1 + gram_deviation(q) * (1 - 64 * eps)).all()  # never taken as exactly orthogonal
            assert (t >= norm(q) ** 2 * (1 - 64 * eps)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_18_half_precision_t_breaks_the_bound_and_is_not_used(dtype):
    worst = 0.0
    for seed in range(20):
        w = rand(8, 8, seed=seed).to(dtype)  # (n, m)
        exact = w.double()
        mistaken = (w @ w.T).abs().sum(dim=1).double()
        aol = (exact @ exact.T).abs().sum(dim=1)
        worst = max(worst, (aol / mistaken).max().item())
        for name, bound in all_bounds(8).items():
            layer = lc.ResidualLinear(8, 8, bound=bound).to(dtype).eval()
            with torch.no_grad():
                layer.weight.copy_(w)
            columns, scale = layer.bound.prepare(layer.weight)
            assert columns.dtype == torch.float32
            t = layer.bound(dense_columns(columns))[1].double() * scale.double() ** 2
            # The weight is exact in float32, T good to the rounding of sums of 8 terms and of six squarings.
            assert norm(exact.T / t.sqrt()) ** 2 <= 1 + 512 * EPS32, name
    assert worst > 1 + (1e-3 if dtype is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("name", list(all_bounds(4)))
def test_13_autocast_does_not_reach_t(name):
    weight = rand(4, 6).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mistaken = (weight @ weight.T).abs().sum(dim=1).double()
    exact = (weight.double() @ weight.double().T).abs().sum(dim=1)
    assert ((mistaken - exact).abs() / exact).max() > 1e-3
    bound = all_bounds(4)[name].eval()
    residual, affine = lc.ResidualLinear(6, 4, bound=bound), lc.AffineLinear(4, 6, bound=bound)
    convolution = lc.AffineConv2d(4, 6, 3, bound=bound)
    with torch.no_grad():
        residual.weight.copy_(weight)
        affine.weight.copy_(weight.T)
        apart = affine.scaled_weight(), convolution.scaled_weight()
        x = rand(16, 6).float()
        plain = residual(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            within = affine.scaled_weight(), convolution.scaled_weight()
            rough = residual(x)
    assert all(torch.equal(a, b) for a, b in zip(apart, within, strict=True))
    # The products themselves follow autocast: bfloat16 has 8 bits, in sums of 6 and 4 terms.
    assert (rough.float() - plain).abs().max() <= 2.0**-4 * plain.abs().max()


def test_18_float32_t_exceeds_one_by_rounding_only_and_float64_hardly():
    for dtype, eps in ((torch.float32, EPS32), (torch.float64, EPS)):
        worst = 0.0
        for seed in range(40):
            kernel = rand(4, 3, 3, 3, seed=seed).to(dtype)
            for bound in all_bounds(4).values():
                t = bound.to(dtype).eval()(residual_columns(kernel, (1, 1)))[1].double()
                w = matrix_of(lambda x, k=kernel: F.conv2d(x, k.double(), padding=1), (3, 4, 4))
                worst = max(worst, norm(w / t.sqrt().repeat_interleave(16)[:, None]) ** 2)
        # T is good to its sums of 27 products, Fourier transforms and squarings; w is in float64.
        assert worst <= 1 + 512 * eps
        layer = lc.ResidualLinear(8, 8, bound="aol").to(dtype)
        orthonormal_weight = torch.linalg.qr(rand(8, 8)).Q
        with torch.no_grad():
            layer.weight.copy_(orthonormal_weight)
            layer.bias.fill_(100.0)
        # Orthonormal W is the tight case: whatever T rounds to is what the norm exceeds 1 by.
        assert norm(jacobian(layer, rand(8).to(dtype))) <= 1 + 64 * eps


# ---------------------------------------------------------------- 14, 15, 16: modules


def test_14_nothing_is_cached_between_calls():
    for name in all_bounds(4):
        for make, x in (
            (lambda b: lc.ResidualLinear(6, 4, bound=b), rand(3, 6)),
            (lambda b: lc.AffineLinear(4, 6, bound=b), rand(3, 4)),
            (lambda b: lc.ResidualConv2d(2, 4, bound=b), rand(3, 2, 5, 5)),
            (lambda b: lc.AffineConv2d(4, 2, 3, bound=b), rand(3, 4, 5, 5)),
            (lambda b: lc.GeneralLinear(6, 4, 3, bound=b), rand(3, 6)),
        ):
            layer, other = (make(all_bounds(4)[name]).double().eval() for _ in range(2))
            with torch.no_grad():
                for p in other.parameters():
                    p.copy_(rand(*p.shape, seed=7) * 5)
                before = layer(x)
                layer.load_state_dict(other.state_dict())
                assert torch.equal(layer(x), other(x))
                assert (layer(x) - before).abs().max() > 1e-3
            layer(x).square().sum().backward()
            seen = layer(x).detach()
            torch.optim.SGD(layer.parameters(), lr=0.5).step()  # a step in evaluation mode
            fresh = make(all_bounds(4)[name]).double().eval()
            fresh.load_state_dict(layer.state_dict())
            assert torch.equal(layer(x), fresh(x))
            assert (layer(x) - seen).abs().max() > 1e-6
            assert torch.equal(copy.deepcopy(layer).train().eval()(x), layer(x))


def test_14_head_and_orthogonal_layers_follow_their_parameters():
    for make in (
        lambda: lc.NormalizedHead(6, 4),
        *(lambda m=m: lc.OrthogonalLinear(6, 4, method=m) for m in METHODS),
    ):
        layer, other = make().double().eval(), make().double().eval()
        x = rand(3, 6)
        layer(x)
        with torch.no_grad():
            other.weight.copy_(rand(4, 6, seed=3))
        layer.load_state_dict(other.state_dict())
        assert torch.equal(layer(x), other(x))


class Doubled(nn.Sequential):
    """A container that is not the product of its children."""

    def forward(self, x):
        return x + super().forward(x)


class Loud(nn.ReLU):
    def forward(self, x):
        return 10 * super().forward(x)


@pytest.mark.parametrize(
    "unknown",
    [
        nn.BatchNorm1d(3),
        nn.LayerNorm(3),
        nn.GroupNorm(1, 3),
        nn.InstanceNorm1d(3),
        nn.Dropout(0.5),
        nn.GELU(approximate="tanh"),
        nn.GLU(),
        nn.Hardshrink(),
        nn.Threshold(0.5, 0.0),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.LogSoftmax(dim=1),
        nn.Softmax(dim=0),
        nn.Softmin(dim=1),
        nn.ModuleList([nn.ReLU()]),
        nn.ModuleDict({"a": nn.ReLU()}),
        Doubled(nn.ReLU()),
        Loud(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(30, 30)),  # another weight at every call
    ],
    ids=lambda module: type(module).__name__,
)
def test_15_unknown_modules_are_refused(unknown):
    for module in (unknown, nn.Sequential(lc.ResidualLinear(3, 2), unknown), nn.Sequential(nn.Sequential(unknown))):
        with pytest.raises(lc.NotCertified):
            lc.lipschitz_bound(module)
    with pytest.raises(lc.NotCertified):
        lc.lipschitz_bound(lc.layers.ConvexCombination(nn.ReLU(), unknown))


STEEP = {
    "linear": (nn.Linear(3, 3), [0.0, 0.0, 0.0]),
    "spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).eval(), [0.0, 0.0, 0.0]),
    "batch norm": (nn.BatchNorm1d(3).eval().requires_grad_(False), [0.0, 0.0, 0.0]),
    "dropout": (nn.Dropout(0.5).eval(), [0.0, 0.0, 0.0]),
    "gelu": (nn.GELU(), [1.41421] * 3),
    "silu": (nn.SiLU(), [2.39936] * 3),
    "mish": (nn.Mish(), [1.4905] * 3),
    "hardswish": (nn.Hardswish(), [2.9999] * 3),
    "selu": (nn.SELU(), [-1e-6] * 3),
    "prelu": (nn.PReLU(init=-3.0), [-1.0] * 3),
    "softplus": (nn.Softplus(beta=5.0, threshold=40), [9.0] * 3),
    "softmax": (nn.Softmax(dim=1), [0.0, 0.0, -99.0]),
    "rrelu": (nn.RReLU(2.0, 6.0).eval(), [-1.0] * 3),
}


@pytest.mark.parametrize("name", STEEP)
def test_15_modules_of_torch_count_by_their_slope(name):
    """Not as 1: each bound is above the slope at its steepest point, and hardly so."""
    module, point = copy.deepcopy(STEEP[name][0]).double(), torch.tensor(STEEP[name][1], dtype=torch.float64)
    slope = norm(jacobian(module, point))
    for chain in (module, nn.Sequential(nn.Sequential(module)), nn.Sequential(module, lc.layers.Scale(2.0))):
        truth = slope * (2 if isinstance(chain, nn.Sequential) and len(chain) == 2 else 1)
        for bound in (lc.lipschitz_bound(chain), lc.lipschitz_bound(chain, (3,))):
            assert truth * (1 - ROUNDING) <= bound <= truth * (1 + 2e-4), name
    frozen = lc.freeze(module)
    assert lc.lipschitz_bound(frozen, (3,)) >= norm(jacobian(frozen.double(), point)) * (1 - ROUNDING)


def test_15_a_convolution_of_torch_counts_by_its_norm_on_any_image():
    layer = nn.Conv2d(1, 2, 3, padding=1, bias=False).double()
    bound, measured = lc.lipschitz_bound(layer), norm(matrix_of(layer, (1, 12, 12)))
    assert measured <= bound <= measured * 1.1  # a larger image has a larger norm


@pytest.mark.parametrize("module", [nn.LeakyReLU(math.nan), nn.ELU(math.nan)], ids=["leaky_relu", "elu"])
def test_15_a_slope_that_is_no_number_is_refused(module):
    with pytest.raises(lc.NotCertified):
        lc.lipschitz_bound(module)


def test_15_parameters_that_are_no_numbers_are_refused():
    made = [
        *(lc.ResidualLinear(4, 3, bound=bound) for bound in all_bounds(3).values()),
        lc.AffineLinear(4, 3),
        lc.ResidualConv2d(2, 3),
        lc.AffineConv2d(2, 3, 3),
        lc.GeneralLinear(4, 3, 2),
        lc.NormalizedHead(4, 3),
        lc.layers.Householder(4),
        lc.layers.ConvexCombination(nn.ReLU(), nn.Identity()),
    ]
    for layer, bad in itertools.product(made, (math.nan, math.inf, -math.inf)):
        assert math.isfinite(lc.lipschitz_bound(layer.eval()))
        for name, parameter in layer.named_parameters():
            broken = copy.deepcopy(layer)
            with torch.no_grad():
                broken.get_parameter(name).view(-1)[0] = bad
            with pytest.raises(lc.NotCertified):
                lc.lipschitz_bound(nn.Sequential(broken))
            assert torch.isfinite(parameter).all()


def test_15_a_scale_in_the_branch_that_t_does_not_see():
    w = torch.linalg.qr(rand(6, 4)).Q
    t = (w.T @ w).abs().sum(dim=0)
    for scale, least in ((1.5, 2.0), (2.55, 4.09)):
        assert norm(torch.eye(6) - 2 * scale * (w / t) @ w.T) > least - ROUNDING
    for make in (lc.ResidualLinear, lc.GeneralLinear):
        sizes = (6, 4) if make is lc.ResidualLinear else (6, 4, 3)
        with pytest.raises(TypeError):
            make(*sizes, scale=2.0)
    for factor in (-3.0, 0.5, 2.55):  # a scale is a layer of its own, and counts
        chain = nn.Sequential(lc.ResidualLinear(6, 4), lc.layers.Scale(factor), nn.Sigmoid())
        assert lc.lipschitz_bound(chain) >= abs(factor) * 0.25
        assert lc.lipschitz_bound(chain) <= abs(factor) * 0.25 * (1 + 8 * EPS)


def test_16_a_module_used_twice_counts_twice():
    scale = lc.layers.Scale(3.0)
    chain = nn.Sequential(scale, nn.ReLU(), scale, nn.Sequential(scale))
    x, y = torch.ones(1, 2), torch.zeros(1, 2)
    assert (chain(x) - chain(y)).norm() / (x - y).norm() == pytest.approx(27.0)
    assert math.prod(child.factor for child in chain.children() if child is scale) == 3.0  # each child once
    assert lc.lipschitz_bound(chain) >= 27.0
    assert lc.lipschitz_bound(chain, (2,)) >= 27.0
    assert lc.lipschitz_bound(lc.freeze(chain)) >= 27.0


def test_16_containers_answer_for_what_they_compute():
    inner = lc.layers.Scale(3.0)
    doubled = Doubled(inner)
    x, y = rand(1, 4), rand(1, 4, seed=1)
    assert (doubled(x) - doubled(y)).norm() / (x - y).norm() > 3.9  # the product of its children says 3
    with pytest.raises(lc.NotCertified):
        lc.lipschitz_bound(doubled)
    chain = nn.Sequential(
        lc.layers.Scale(3.0), nn.Sequential(lc.layers.Scale(0.1), lc.layers.Scale(7.0)), nn.LeakyReLU(2.0)
    )
    measured = 3.0 * 0.1 * 7.0 * 2.0
    assert measured <= lc.lipschitz_bound(chain) <= measured * (1 + 16 * EPS)  # rounded up, a step per factor
    branches = lc.layers.ConvexCombination(lc.layers.Scale(2.0), lc.layers.Scale(-5.0), nn.ReLU()).double()
    for logits in ([0.0, 0.0, 0.0], [0.0, 50.0, 0.0], [-1e4, 1e4, 0.0]):
        with torch.no_grad():
            branches.logits.copy_(torch.tensor(logits))
        assert norm(jacobian(branches, x[0])) <= branches.lipschitz_bound() * (1 + 4 * EPS)
    assert branches.lipschitz_bound() == 5.0
    with pytest.raises(ValueError, match="one shape"):  # broadcasting would multiply the constant
        lc.layers.ConvexCombination(lc.NormalizedHead(4, 1), nn.Identity())(torch.zeros(2, 4))


# ---------------------------------------------------------------- activations that a residual cannot have


REFUSED = {
    "gelu": (F.gelu, 1.25),
    "silu": (F.silu, 1.19),
    "mish": (F.mish, 1.22),
    "hardswish": (F.hardswish, 1.99),
    "abs": (torch.abs, 2.99),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_activations_with_slopes_outside_0_and_1_are_refused_in_residuals(name):
    sigma, least = REFUSED[name]
    x = torch.linspace(-6, 6, 60001, dtype=torch.float64)
    h = x - 2 * sigma(x)  # W = T = 1
    assert ((h[1:] - h[:-1]).abs() / (x[1:] - x[:-1])).max() > least
    for refused in (name, name.upper(), sigma):
        with pytest.raises(ValueError, match="slope"):
            lc.ResidualLinear(2, 2, activation=refused)
        with pytest.raises(ValueError, match="slope"):
            lc.ResidualConv2d(2, 2, activation=refused)
        with pytest.raises(ValueError, match="slope"):
            lc.GeneralLinear(2, 2, 2, activation=refused)


@pytest.mark.parametrize(
    "sort", [lc.layers.MaxMin(), lc.layers.GroupSort(2), lc.layers.GroupSort(4), lc.layers.Householder(4).double()]
)
def test_activations_that_mix_coordinates_are_refused_in_residuals_and_fine_after_affine_layers(sort):
    worst = max(norm(jacobian(lambda x: x - 2 * sort(x), rand(4, seed=s))) for s in range(20))  # W = T = I
    assert worst == pytest.approx(3.0)
    assert max(norm(jacobian(sort, rand(4, seed=s))) for s in range(20)) <= 1 + ROUNDING
    for refused in (sort, type(sort).__name__.lower(), "maxmin", "groupsort", "householder"):
        with pytest.raises(ValueError, match="slope"):
            lc.ResidualLinear(4, 4, activation=refused)
    chain = nn.Sequential(lc.AffineLinear(4, 4), sort, lc.OrthogonalLinear(4, 4), sort).double()
    assert lc.lipschitz_bound(chain) == 1.0
    assert max(norm(jacobian(chain, rand(4, seed=s))) for s in range(20)) <= 1 + ROUNDING


def test_softplus_has_no_jump_at_torchs_threshold():
    below, above = (torch.tensor([20.0 + s * 2e-10], dtype=torch.float64) for s in (-1, 1))
    jump = (F.softplus(above) - F.softplus(below)) / (above - below)
    assert jump.item() < -0.5 or jump.item() > 1.5  # no slope in [0, 1] explains torch's own
    layer = lc.ResidualLinear(1, 1, bound="aol", activation="softplus", bias=False)
    assign(layer, weight=[[1.0]])
    x = torch.linspace(19.9999999, 20.0000001, 2001, dtype=torch.float64)[:, None]
    h = layer(x).detach()
    quotient = (h[1:] - h[:-1]).abs() / (x[1:] - x[:-1])
    # Steps of 1e-10 between numbers of size 20, rounded to 20·eps: 4e-5 each.
    assert quotient.max() <= 1 + 8 * 20 * EPS / 1e-10


def test_smoothing_with_float_noise_certifies_what_it_misclassifies():
    """Voráček & Hein (2023): x + ε rounds, and the low bits of the sum tell x from a neighbour 4e-7 away.

    Every float32 ε ≤ −½ is a multiple of 2⁻²⁴. So ½ + ε is one, but (½ − 2⁻²⁵) + ε is an odd multiple of 2⁻²⁵, and
    float32 holds those between −½ and ½. Such a pixel makes class 1; real Gaussian noise would never give one.
    """
    sigma, alpha, pixels, samples = 0.5, 0.001, 128, 1000

    def classify(z):
        scaled = z.flatten(1).double() * 2**25
        odd = (scaled.remainder(2) == 1) & (z.flatten(1).abs() < 0.5) & (z.flatten(1) < 0)
        return torch.stack([~odd.any(dim=1), odd.any(dim=1)], dim=1).float()

    def float_counts(x):
        noise = torch.randn(samples, pixels, generator=torch.Generator().manual_seed(0)) * sigma
        return classify(x + noise).sum(dim=0)

    x = torch.full((1, pixels), 0.5)
    neighbour = x - 2.0**-25
    assert (neighbour - x).norm() < 4e-7
    # As published: all samples at x are class 0, so the radius is σΦ⁻¹(α^(1/n)) > 1. And the neighbour is class 1.
    assert float_counts(x)[0] == samples
    radius = sigma * torch.special.ndtri(torch.tensor(alpha ** (1 / samples)).double())
    assert radius > 1
    assert float_counts(neighbour)[1] == samples
    # With the noise on the grid, both have the same answer, and the radii allow for the distance between them.
    result = lc.certify(
        classify, torch.cat([x, neighbour]), method="smoothing", sigma=sigma, n=samples, alpha=alpha
    )
    assert result.predictions[0] == result.predictions[1]
