"""The lag rules against explicit matrices: every form, padding, stride, kernel parity and number of groups."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from lipcert.algebra.bounds import AOL, SLL, Rescaled, Spectral
from lipcert.algebra.gram import absolute_gram, affine_columns, dense_columns, residual_columns, torus_grid
from lipcert.algebra.spectral import squared_norm_bound

# λ_max and T are sums of at most a few thousand float64 products.
SLACK = 1 + 4096 * torch.finfo(torch.float64).eps


def explicit(kernel, image, stride, padding, mode, groups=1):
    """The matrix of x ↦ conv2d(x), (outputs, inputs), from unit impulses."""
    channels = kernel.shape[1] * groups
    impulses = torch.eye(channels * image[0] * image[1], dtype=kernel.dtype).view(-1, channels, *image)
    if mode == "circular":
        impulses = F.pad(impulses, (padding, padding, padding, padding), mode="circular")
        padding = 0
    return F.conv2d(impulses, kernel, None, stride, padding, groups=groups).flatten(1).T


def excess(w, t):
    """λ_max(T^(−½)WᵀWT^(−½)) for columns of W and an entry of T per column."""
    scaled = w * t.rsqrt()
    return torch.linalg.matrix_norm(scaled, 2).item() ** 2


CASES = [
    (form, mode, kernel, stride, padding, groups, image)
    for form, mode, kernel, stride, groups in itertools.product(
        ("residual", "affine"), ("zeros", "circular"), (1, 2, 3, 4, 5), (1, 2, 3), (1, 2)
    )
    for padding in sorted({0, kernel // 2, kernel})
    for image in ((6, 6), (7, 5))
    if not (mode == "circular" and (2 * padding > kernel - 1 or image[0] % stride or image[1] % stride))
    if min(image) + 2 * padding >= kernel
]


@pytest.mark.parametrize("make", [lambda n: AOL(), SLL, lambda n: Rescaled(n, 1), lambda n: Spectral()])
def test_t_dominates_the_explicit_gram(make):
    """WᵀW ⪯ T for every case and random q; the residual's columns are outputs, the affine's are inputs."""
    generator = torch.Generator().manual_seed(1)
    for form, mode, k, stride, padding, groups, image in CASES:
        kernel = torch.randn(2 * groups, 2, k, k, generator=generator, dtype=torch.float64)
        kernel[..., 0, 0] += 2  # correlated taps: lags that matter
        matrix = explicit(kernel, image, stride, padding, mode, groups)
        if form == "residual":
            columns, w = residual_columns(kernel, (stride, stride), groups), matrix.T
        else:
            columns, w = affine_columns(kernel, (stride, stride), groups), matrix
        bound = make(columns.count).double()
        for p in bound.parameters():
            torch.nn.init.normal_(p, std=1.0, generator=generator)
        t = bound(columns)[1].detach()
        per_entry = t.repeat_interleave(w.shape[1] // len(t))
        found = excess(w, per_entry)
        assert found <= SLACK, (form, mode, k, stride, padding, groups, image, found)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("form", ["residual", "affine"])
def test_aol_equals_the_row_sums_of_the_explicit_gram(form, stride):
    """Away from the border of a large image, T is the row sum of |WᵀW| exactly: not looser, not tighter."""
    for k in (1, 2, 3, 4):
        kernel = torch.randn(3, 2, k, k, dtype=torch.float64)
        matrix = explicit(kernel, (12, 12), stride, 0, "zeros")
        if form == "residual":
            columns, w = residual_columns(kernel, (stride, stride)), matrix.T
        else:
            columns, w = affine_columns(kernel, (stride, stride), 1), matrix
        t = AOL()(columns)[1]
        rows = (w.T @ w).abs().sum(dim=1).view(len(t), -1)
        torch.testing.assert_close(t, rows.amax(dim=1), rtol=1e-12, atol=0)


def test_dense_gram_is_the_plain_one():
    w = torch.randn(5, 7, dtype=torch.float64)  # Wᵀ
    torch.testing.assert_close(absolute_gram(dense_columns(w))[0], (w @ w.T).abs(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("shape", [(3, 4, 3, 3), (4, 2, 5, 1), (2, 6, 2, 4), (5, 5, 1, 1)])
def test_the_grid_bound_covers_every_frequency(shape):
    """sup_ω ‖H(ω)‖ lies between the fine-grid maximum and the bound, which is at most 4 % above."""
    for _ in range(20):
        kernel = torch.randn(*shape, dtype=torch.float64)
        columns = residual_columns(kernel, (1, 1))
        fine = torch.linalg.matrix_norm(torch.fft.fft2(kernel, s=(157, 157)).permute(2, 3, 0, 1), 2).amax() ** 2
        bound = squared_norm_bound(columns, 10)[0]
        assert fine <= bound * SLACK
        assert (
            bound <= 1.045 * fine
        )  # 1.0097 per axis from the grid, rank^(1/2^11) from ten squarings, the fine grid


def test_the_grid_is_finer_than_the_degree():
    for k in range(1, 12):
        for stride in (1, 2, 3):
            grid, factor = torus_grid(residual_columns(torch.randn(1, 1, k, k), (stride, stride)))
            degree = -(-k // stride) - 1
            assert grid == (max(1, 16 * degree),) * 2
            assert 1 <= factor < 1.02
            assert degree < grid[0]


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (64, 64), (1, 9), (9, 1)])
def test_spectral_is_an_upper_bound_and_nearly_tight(shape):
    for decay in (0.0, 1.0, 4.0):
        w = torch.randn(*shape, dtype=torch.float64)
        u, s, vh = torch.linalg.svd(w, full_matrices=False)
        w = u * (torch.arange(1, len(s) + 1).double() ** -decay) @ vh
        exact = torch.linalg.matrix_norm(w, 2) ** 2
        previous = torch.inf
        for iterations in (1, 2, 4, 6, 10):
            bound = squared_norm_bound(dense_columns(w), iterations)[0]
            assert exact <= bound * SLACK
            assert bound <= previous * SLACK
            assert bound <= exact * min(shape) ** (0.5 ** (iterations + 1)) * SLACK
            previous = bound


def test_rescaled_goes_from_sll_to_spectral():
    w = torch.randn(12, 20, dtype=torch.float64)
    columns = dense_columns(w)
    sll, exact = SLL(12).double(), torch.linalg.matrix_norm(w, 2) ** 2
    torch.nn.init.normal_(sll.log_q)
    for order in range(9):
        rescaled = Rescaled(12, order).double()
        rescaled.load_state_dict(sll.state_dict())
        t = rescaled(columns)[1].detach()
        if order == 0:
            torch.testing.assert_close(t, sll(columns)[1].detach(), rtol=1e-14, atol=0)
        assert excess(w.T, t) <= SLACK
    torch.testing.assert_close(t, exact.expand(12), rtol=0.05, atol=0)  # order 8: 2^8-th roots of q ratios remain
