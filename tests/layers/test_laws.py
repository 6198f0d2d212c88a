"""Laws over all layers under hostile parameters: sound, finite, alive, and well behaved as torch modules."""

import copy
import math

import pytest
import torch
from torch import nn

import lipcert as lc
from full import full
from lipcert.algebra.orthogonal import METHODS
from lipcert.testing import check_layer, tolerance
from table import HOSTILE, LAYERS, LEARNED, bounds_or_geometries, fit, inputs, jacobian, kinds, one_geometry

EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


@pytest.mark.parametrize("name", LAYERS)
def test_the_laws_of_lipcert_testing(name):
    entry = LAYERS[name]
    check_layer(entry.make, entry.shape, lipschitz=entry.lipschitz, kinds=kinds(name))


@pytest.mark.parametrize("name", LAYERS)
def test_jacobian_norm_is_at_most_the_bound_in_float32(name):
    entry = LAYERS[name]
    for dtype in EPS if "optimal" in name else (torch.float32,):  # fitted, Optimal is another bound
        for kind in kinds(name):
            layer = entry.make().to(dtype).eval()
            HOSTILE[kind](layer)
            if "optimal" in name:
                fit(layer)
            x = inputs(entry, dtype)
            j = jacobian(layer, x)
            assert torch.isfinite(j).all(), (kind, dtype)
            norm = torch.linalg.matrix_norm(j, 2).item()
            assert norm <= entry.constant(layer) * (1 + tolerance(j, EPS[dtype])), (kind, dtype, norm)
            assert lc.lipschitz_bound(layer) <= entry.constant(layer) * (1 + 1e-12), kind


@pytest.mark.parametrize("name", one_geometry(LEARNED))
def test_ascent_on_the_parameters_does_not_break_the_bound(name):
    entry = LAYERS[name]
    layer = entry.make().double().eval()
    HOSTILE["all active"](layer)
    x = inputs(entry)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(full(15, 6)):
        optimizer.zero_grad()
        j = jacobian(layer, x, create_graph=True)
        norm = torch.linalg.matrix_norm(j, 2)
        assert norm.item() <= entry.constant(layer) * (1 + tolerance(j))
        if not norm.requires_grad:  # the Jacobian does not depend on the parameters (a bias alone)
            return
        (-norm).backward()
        optimizer.step()


@pytest.mark.parametrize("name", bounds_or_geometries(LAYERS))
def test_gradients_are_finite_in_both_modes_and_precisions(name):
    """In evaluation mode and float64 ``check_layer`` looks at them."""
    entry = LAYERS[name]
    for dtype, training in ((torch.float32, True), (torch.float32, False), (torch.float64, True)):
        for kind in kinds(name):
            layer = entry.make().to(dtype).train(training)
            HOSTILE[kind](layer)
            x = inputs(entry, dtype, batch=3).requires_grad_()
            out = layer(x)
            assert torch.isfinite(out).all(), (kind, dtype)
            out.sum().backward()
            for n, grad in [("input", x.grad), *((n, p.grad) for n, p in layer.named_parameters())]:
                assert grad is None or torch.isfinite(grad).all(), (kind, dtype, n)


@pytest.mark.parametrize("name", bounds_or_geometries(LAYERS))
def test_gradcheck(name):
    entry = LAYERS[name]
    layer = entry.make().double()
    HOSTILE["random"](layer)
    # Away from the edges of the power-of-two scale, which is constant between them.
    with torch.no_grad():
        for p in layer.parameters():
            if p.ndim >= 2:
                p.mul_(1.4 / p.abs().max())
    names, values = zip(*layer.named_parameters(), strict=True) if list(layer.parameters()) else ((), ())
    x = inputs(entry, batch=1).requires_grad_()
    if "spectral_surrogate" in name:  # its gradient is that of the norm once the power iteration has settled
        with torch.no_grad():
            for _ in range(500):
                layer(x)

    if "stored" in name:  # the gradient is that along orthonormal weights, where T = I: see test_manifold.py
        names, values = ("bias",), (layer.bias,)

    def run(x, *params):
        return torch.func.functional_call(layer, dict(zip(names, params, strict=True)), (x,))

    values = tuple(v.detach().clone().requires_grad_() for v in values)
    assert torch.autograd.gradcheck(run, (x, *values), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", bounds_or_geometries(LAYERS))
def test_is_a_good_torch_module(name):
    entry = LAYERS[name]
    layer = entry.make()
    HOSTILE["random"](layer)
    x = inputs(entry, torch.float32, batch=2)
    fresh = entry.make()
    fresh(x)
    fresh.load_state_dict(layer.state_dict())
    copied = copy.deepcopy(layer)
    expected = layer(x)  # which may move the vector of a power iteration
    assert torch.equal(copied(x), expected)
    assert torch.equal(fresh(x), expected)  # nothing is cached, so nothing is stale
    assert repr(layer)
    with torch.device("meta"):
        abstract = entry.make()
    assert all(t.is_meta for t in [*abstract.parameters(), *abstract.buffers()])
    assert [p.shape for p in abstract.parameters()] == [p.shape for p in layer.parameters()]
    assert entry.make().double()(x.double()).dtype == torch.float64


REPRESENTATIVE = [n for n in LAYERS if n in {"convex", "head", "householder", "groupsort", "l2-pool"}] + [
    n
    for n in LAYERS
    if n.endswith(("6x4", "to-3", "-k3-s2")) or ("-k3-s2-p1-g2" in n) or n in ("residual-linear-tanh",)
]


@pytest.mark.parametrize("name", full(REPRESENTATIVE, REPRESENTATIVE[::11]))
def test_compiles(name):
    """Compiling takes a second; every eleventh layer still gives all forms, paddings and kinds of bounds."""
    entry = LAYERS[name]
    layer = entry.make()
    x = inputs(entry, torch.float32, batch=2).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    out = compiled(x)
    # The compiler may reorder sums; a few units in the last place of numbers near 1.
    torch.testing.assert_close(out, layer(x), rtol=1e-5, atol=1e-5)
    out.sum().backward()
    assert torch.isfinite(x.grad).all()


class _Spy(lc.bounds.AOL):
    """AOL that remembers the precision it was asked to work in."""

    def forward(self, columns):
        self.seen = columns.taps.dtype
        columns, t = super().forward(columns)
        self.gave = t.dtype
        return columns, t


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda b: lc.ResidualLinear(6, 5, bound=b), (6,)),
        (lambda b: lc.AffineLinear(6, 5, bound=b), (6,)),
        (lambda b: lc.GeneralLinear(6, 5, 4, bound=b), (6,)),
        (lambda b: lc.ResidualConv2d(2, 3, bound=b), (2, 6, 6)),
        (lambda b: lc.AffineConv2d(2, 3, 3, bound=b), (2, 6, 6)),
    ],
)
def test_t_is_computed_in_float32_under_autocast_and_for_half_parameters(make, shape):
    spy = _Spy()
    layer = make(spy)
    x = torch.randn(2, *shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert (spy.seen, spy.gave) == (torch.float32, torch.float32)
    assert (out.float() - layer(x)).abs().max() < 0.1  # bf16 has 8 bits: the layer still does its work
    layer, x = layer.to(torch.bfloat16), x.to(torch.bfloat16)
    out = layer(x)
    assert out.dtype == torch.bfloat16
    assert (spy.seen, spy.gave) == (torch.float32, torch.float32)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", LEARNED)
def test_parameters_that_are_not_finite_are_not_certified(name, bad):
    for index, _ in enumerate(LAYERS[name].make().parameters()):
        layer = LAYERS[name].make().eval()
        parameter = list(layer.parameters())[index]
        with torch.no_grad():
            parameter.view(-1)[0] = bad
        with pytest.raises(lc.NotCertified, match="must be finite"):
            lc.lipschitz_bound(nn.Sequential(layer))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(256, 256), (300, 128), (64, 1500)])
def test_orthogonal_layers_are_nearly_isometries_at_ordinary_widths(method, shape):
    """A ridge or a deviation that grows with the width would shrink every signal, soundly and uselessly."""
    for start in ("as built", "random"):
        if (method, start) == ("bjorck", "random"):
            continue  # fifteen steps from a badly conditioned start: a contraction, not an isometry
        layer = lc.OrthogonalLinear(*shape, method=method)
        HOSTILE[start](layer)
        values = torch.linalg.svdvals(layer.scaled_weight().detach().double())
        assert values.median() > 0.99, start
        assert values.max() <= 1 + 4 * sum(shape) * EPS[torch.float32]


def test_huge_weights_leave_cayley_invertible():
    layer = lc.OrthogonalLinear(64, 4160)
    nn.init.constant_(layer.weight, 1000.0)
    out = layer(torch.randn(2, 64))
    out.sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


def test_optimal_fitted_to_a_nearly_dead_column_stays_a_bound():
    """γ of the dead column must not push the others into underflow: the Jacobian norm was 12.7."""
    w = 1 + 0.3 * torch.randn(24, 64)
    w[0] *= 3e-24
    w[2:] *= 1e-4
    layer = lc.ResidualLinear(64, 24, bound="optimal")
    with torch.no_grad():
        layer.weight.copy_(w)
        layer.bias.fill_(100.0)
    layer.bound.fit(layer.columns())
    j = jacobian(layer, torch.randn(1, 64))
    assert torch.linalg.matrix_norm(j, 2) <= 1 + tolerance(j, EPS[torch.float32])
    assert (layer(torch.zeros(1, 64)) != 0).any()  # and the layer still does something
    with torch.no_grad():
        layer.bound.gamma.copy_(torch.rand(24) * 1e-38)
    j = jacobian(layer, torch.randn(1, 64))
    assert torch.linalg.matrix_norm(j, 2) <= 1 + tolerance(j, EPS[torch.float32])


@pytest.mark.parametrize("order", [0, 1, 2, 4])
def test_a_zero_column_adds_nothing_to_a_general_layer(order):
    layer = lc.GeneralLinear(5, 4, 3, bound=lc.bounds.Rescaled(4, order)).double()
    with torch.no_grad():
        layer.weight[0] = 0.0
        layer.bias[0] = 1.0
        layer.bias[1:] = 0.0
        assert layer(torch.zeros(5).double()).norm() == 0


def test_a_branch_that_works_in_place_does_not_change_what_the_next_one_sees():
    x = -torch.ones(1, 3)
    mixed = lc.layers.ConvexCombination(nn.LeakyReLU(3.0, inplace=True), lc.layers.Scale(3.0))
    torch.testing.assert_close(mixed(x), 3 * x)
    assert torch.equal(x, -torch.ones(1, 3))


def test_half_precision_parameters_are_widened():
    for layer, shape in (
        (lc.layers.Householder(200), (200,)),
        (lc.layers.ConvexCombination(*[nn.Identity()] * 3), (20,)),
    ):
        HOSTILE["random"](layer)
        j = jacobian(layer.bfloat16(), torch.randn(1, *shape))
        assert torch.linalg.matrix_norm(j, 2) <= 1 + tolerance(j, EPS[torch.float32])


def test_reset_works_in_every_memory_format():
    layer = lc.AffineConv2d(4, 8, 3, stride=2).to(memory_format=torch.channels_last)
    nn.init.constant_(layer.weight, 7.0)
    layer.reset_parameters()
    assert layer.weight.abs().max() <= 1
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("method", ["cholesky", "reflector"])
def test_a_ridge_on_a_badly_conditioned_weight_does_not_cost_the_norm_twice(method):
    layer = lc.OrthogonalLinear(64, 64, method=method)
    with torch.no_grad():
        layer.weight.normal_()
        layer.weight[:, 0] *= 1e6
    values = torch.linalg.svdvals(layer.scaled_weight().detach().double())
    assert 0.95 < values.max() <= 1 + 512 * EPS[torch.float32]


def test_graded_columns_and_wide_q_have_finite_gradients():
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        layer = lc.GeneralLinear(6, 5, 4, bound="sll")
        with torch.no_grad():
            grade = 10 ** (-22 * torch.rand(5, 1, generator=generator))
            layer.weight.copy_(torch.randn(5, 6, generator=generator) * grade)
            layer.bound.log_q.copy_(50 * torch.randn(5, generator=generator))
        layer(torch.randn(2, 6, generator=generator)).square().sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters()), seed


def test_fit_keeps_the_column_that_matters():
    layer = lc.AffineLinear(2, 2, bound=lc.bounds.Optimal(2), dtype=torch.float64, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 1e-25]).double()))
    layer.bound.fit(layer.columns())  # the buffer is float32: γ of the small column is 1e50 times larger
    assert torch.linalg.matrix_norm(layer.scaled_weight(), 2) > 0.9
