"""A·a, its gradient, its samples; the residual pair: each against the plain formula."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import lipcert as lc
from lipcert.algebra import product
from lipcert.algebra.gram import Columns, absolute_gram, affine_columns, dense_columns, residual_columns
from lipcert.algebra.product import absolute_product, estimated_product
from lipcert.layers.fused import relu_residual

EPS = torch.finfo(torch.float64).eps


def lags_by_definition(taps):  # (groups, N, N)
    """Σ_d |Σ_t K_i[t + d] K_j[t]| with every lag d spelled out."""
    groups, count, _, kh, kw = taps.shape
    total = torch.zeros(groups, count, count, dtype=taps.dtype)
    padded = F.pad(taps, (kw - 1, kw - 1, kh - 1, kh - 1))
    for dy, dx in itertools.product(range(2 * kh - 1), range(2 * kw - 1)):
        moved = padded[..., dy : dy + kh, dx : dx + kw]
        total = total + torch.einsum("giryx,gjryx->gij", moved, taps).abs()
    return total


SHAPES = {
    "dense": lambda: dense_columns(torch.randn(7, 5, dtype=torch.float64)),
    "wide enough for blocks": lambda: dense_columns(torch.randn(4 * product.BLOCK + 6, 3, dtype=torch.float64)),
    "3x3": lambda: residual_columns(torch.randn(6, 4, 3, 3, dtype=torch.float64), (1, 1)),
    "5x2 in groups": lambda: residual_columns(torch.randn(6, 2, 5, 2, dtype=torch.float64), (1, 1), 3),
    "strided": lambda: residual_columns(torch.randn(5, 3, 3, 3, dtype=torch.float64), (2, 2)),
    "affine, strided, in groups": lambda: affine_columns(torch.randn(4, 3, 3, 3, dtype=torch.float64), (2, 1), 2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_product_and_its_gradient_are_those_of_the_definition(name):
    columns = SHAPES[name]()
    taps = columns.taps.requires_grad_()
    a = torch.rand(taps.shape[:2], dtype=torch.float64, requires_grad=True)
    expected = (lags_by_definition(taps) @ a[..., None])[..., 0]
    found = absolute_product(columns, a)
    terms = 16 * taps[0].numel()  # sums of that many products, a few roundings each
    torch.testing.assert_close(found, expected, rtol=terms * EPS, atol=0)
    torch.testing.assert_close(
        absolute_gram(columns).sum(-1), lags_by_definition(taps).sum(-1), rtol=terms * EPS, atol=0
    )
    u = torch.randn_like(found)
    for ours, theirs in zip(
        torch.autograd.grad(found, (taps, a), u), torch.autograd.grad(expected, (taps, a), u), strict=True
    ):
        assert (ours - theirs).abs().max() <= terms * EPS * theirs.abs().max()


@pytest.mark.parametrize("name", SHAPES)
def test_float32_agrees_with_float64(name):
    """Convolutions go another way in float32; sums of absolute values keep relative errors small."""
    exact = SHAPES[name]()
    columns = Columns(exact.taps.float().requires_grad_(), exact.phases)
    double = Columns(columns.taps.detach().double().requires_grad_(), exact.phases)
    a = torch.rand(exact.taps.shape[:2])
    u = torch.randn(exact.taps.shape[:2])
    found, expected = absolute_product(columns, a), absolute_product(double, a.double())
    limit = 4 * exact.taps[0].numel() * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found.double(), expected, rtol=limit, atol=0)
    (ours,) = torch.autograd.grad(found, columns.taps, u)
    (theirs,) = torch.autograd.grad(expected, double.taps, u.double())
    assert (ours.double() - theirs).abs().max() <= limit * theirs.abs().max()


def test_filters_that_do_not_overlap_have_no_gradient_from_their_overlaps():
    """sign(0) = 0: an isometric start must not be pushed about by rounding errors."""
    kernel = torch.zeros(3, 4, 3, 3)
    kernel[:, :3, 1, 1] = torch.eye(3)
    columns = residual_columns(kernel.requires_grad_(), (1, 1))
    absolute_product(columns, torch.ones(1, 3)).sum().backward()
    assert torch.equal(kernel.grad, 2 * kernel.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_convolution_s_second_derivative_is_left_to_autograd(dtype):
    taps = torch.randn(1, 3, 2, 3, 3, dtype=dtype, requires_grad=True)
    a = torch.rand(1, 3, dtype=dtype, requires_grad=True)
    gradient, other = torch.autograd.grad(absolute_product(Columns(taps), a).sum(), (taps, a), create_graph=True)
    plain = (lags_by_definition(taps) @ a[..., None]).sum()
    expected, theirs = torch.autograd.grad(plain, (taps, a), create_graph=True)
    second = torch.autograd.grad(gradient.square().sum() + other.square().sum(), (taps, a))
    wanted = torch.autograd.grad(expected.square().sum() + theirs.square().sum(), (taps, a))
    for ours, right in zip(second, wanted, strict=True):
        assert (ours - right).abs().max() <= 500 * torch.finfo(dtype).eps * right.abs().max()


@pytest.mark.parametrize("name", ["dense", "3x3", "5x2 in groups", "strided"])
def test_second_derivatives_and_transforms_of_the_product(name):
    columns = SHAPES[name]()
    taps = columns.taps.detach().clone().requires_grad_()
    a = torch.rand(taps.shape[:2], dtype=torch.float64, requires_grad=True)

    def value(taps, a):
        return absolute_product(Columns(taps, columns.phases), a)

    assert torch.autograd.gradcheck(value, (taps, a))
    assert torch.autograd.gradgradcheck(value, (taps, a))
    many = torch.stack([taps.detach(), 2 * taps.detach()])
    each = torch.stack([value(one, a) for one in many])
    torch.testing.assert_close(torch.func.vmap(value, in_dims=(0, None))(many, a), each, rtol=64 * EPS, atol=0)
    (gradient,) = torch.autograd.grad(value(taps, a).sum(), taps)
    transformed = torch.func.grad(lambda t: value(t, a).sum())(taps.detach())
    torch.testing.assert_close(transformed, gradient, rtol=0, atol=64 * EPS * float(gradient.abs().max()))


def subsets(count, size):
    return [torch.tensor(one) for one in itertools.combinations(range(count), size)]


def test_samples_are_right_on_average_over_all_of_them(monkeypatch):
    columns = SHAPES["dense"]()
    taps = columns.taps.requires_grad_()
    a = torch.rand(1, 7, dtype=torch.float64, requires_grad=True)
    u = torch.randn(1, 7, dtype=torch.float64)
    exact = absolute_product(columns, a)
    exact_gradients = torch.autograd.grad(exact, (taps, a), u)
    for sampled in (
        lambda: absolute_product(columns, a, sample=3),
        lambda: estimated_product(columns, a, sample=3),
    ):
        values, in_taps, in_a = [], [], []
        for drawn in subsets(7, 3):
            monkeypatch.setattr(torch, "randperm", lambda n, device=None, drawn=drawn: drawn)
            value = sampled()
            gradients = torch.autograd.grad(value, (taps, a), u)
            values.append(value.detach())
            in_taps.append(gradients[0])
            in_a.append(gradients[1])
        for mean, truth in zip(
            (torch.stack(many).mean(0) for many in (values, in_taps, in_a)), (exact, *exact_gradients), strict=True
        ):
            torch.testing.assert_close(mean, truth, rtol=200 * EPS, atol=200 * EPS)
        assert not torch.allclose(in_taps[0], exact_gradients[0], rtol=0.1), "a sample must differ from the whole"


def test_a_sampled_gradient_leaves_the_layer_as_it_is_and_a_sampled_surrogate_does_not():
    torch.manual_seed(0)
    exact, gradient, surrogate = (
        lc.ResidualLinear(20, 16, bound=lc.bounds.SLL(16, form, **options)).train()
        for form, options in (
            ("exp", {}),
            ("sampled_gradient", {"sample": 4}),
            ("sampled_surrogate", {"sample": 4}),
        )
    )
    gradient.load_state_dict(exact.state_dict())
    surrogate.load_state_dict(exact.state_dict())
    x = torch.randn(8, 20)
    outputs = [layer(x) for layer in (exact, gradient, surrogate)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    outputs[0].square().sum().backward()
    outputs[1].square().sum().backward()
    assert not torch.equal(exact.weight.grad, gradient.weight.grad)
    torch.testing.assert_close(exact.bound.log_q.grad, gradient.bound.log_q.grad)
    assert exact.lipschitz_bound() == gradient.lipschitz_bound() == 1.0
    with pytest.raises(lc.NotCertified, match="too small to be a bound in training mode"):
        surrogate.lipschitz_bound()
    assert surrogate.eval().lipschitz_bound() == 1.0
    assert torch.equal(surrogate(x), exact.eval()(x))


def test_a_sampled_surrogate_compiles_and_transforms():
    torch.manual_seed(10)
    layer = lc.ResidualLinear(20, 16, bound=lc.bounds.SLL(16, "sampled_surrogate", sample=4)).train()
    x = torch.randn(8, 20)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    torch.manual_seed(11)
    expected = layer(x)
    torch.manual_seed(11)
    torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-5)  # float32, sums in another order
    parameters = dict(layer.named_parameters())
    gradient = torch.func.grad(
        lambda weight: torch.func.functional_call(layer, {**parameters, "weight": weight}, (x,)).sum()
    )(parameters["weight"].detach())
    assert torch.isfinite(gradient).all()


def test_what_is_not_sampled():
    torch.manual_seed(1)
    for make in (
        lambda bound: lc.ResidualConv2d(3, 256, bound=bound),  # a convolution
        lambda bound: lc.ResidualLinear(5, 100, bound=bound),  # fewer than twice the 64 columns
    ):
        layers = [make(bound) for bound in ("sll", "sll_sampled_surrogate")]
        layers[1].load_state_dict(layers[0].state_dict())
        x = torch.randn(2, 3, 6, 6) if isinstance(layers[0], lc.ResidualConv2d) else torch.randn(2, 5)
        assert torch.equal(layers[0].train()(x), layers[1].train()(x))
    with pytest.raises(ValueError, match="sample must be left out for form='exp'"):
        lc.bounds.SLL(4, sample=2)
    with pytest.raises(ValueError, match="epsilon must be left out for form='sampled_gradient'"):
        lc.bounds.SLL(4, "sampled_gradient", epsilon=1e-6)


# ---------------------------------------------------------------- the pair of products


@pytest.mark.parametrize("biased", [True, False])
def test_the_residual_pair_is_the_plain_formula_to_second_order(biased):
    torch.manual_seed(2)
    x, weight = torch.randn(4, 5).double().requires_grad_(), torch.randn(3, 5).double().requires_grad_()
    bias = torch.randn(3).double().requires_grad_() if biased else None
    gain = torch.rand(3).double().requires_grad_()
    plain = x - (F.relu(F.linear(x, weight, bias)) * gain) @ weight
    torch.testing.assert_close(relu_residual(x, weight, bias, gain), plain, rtol=0, atol=64 * EPS)
    given = (x, weight, *([bias] if biased else []), gain)

    def value(x, weight, *others):
        return relu_residual(x, weight, others[0] if biased else None, others[-1])

    assert torch.autograd.gradcheck(value, given)
    assert torch.autograd.gradgradcheck(value, given)


def test_the_fused_surrogate_is_the_estimate_and_its_gradient(monkeypatch):
    torch.manual_seed(6)
    layer = lc.ResidualLinear(9, 16, bound=lc.bounds.SLL(16, "sampled_surrogate", sample=5)).double().train()
    x, weights = (torch.randn(6, 9, dtype=torch.float64) for _ in range(2))
    x.requires_grad_()
    with torch.no_grad():
        layer.bound.log_q.normal_()
        layer.weight.mul_(1e-6)  # so that its scale is not 1
        layer.bias.mul_(1e-6)
        layer.weight[3] = 0.0

    def results():
        torch.manual_seed(7)  # the same columns
        layer.zero_grad()
        out = layer(x)
        return [out, *torch.autograd.grad((out * weights).sum(), (x, *layer.parameters()))]

    fused = results()
    assert type(fused[0].grad_fn).__name__ == "_SampledResidualBackward"
    for module in ("operators", "forms"):
        monkeypatch.setattr(f"lipcert.layers.{module}.fits", lambda *_: False)
    for ours, theirs in zip(fused, results(), strict=True):
        assert (ours - theirs).abs().max() <= 64 * EPS * theirs.abs().max()


# ---------------------------------------------------------------- one T for many passes


def test_autocast_leaves_the_residual_stream_alone():
    layer = lc.ResidualLinear(64, 32)
    for mode in (True, False):
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(mode):
            assert layer(torch.randn(8, 64)).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own, in torch.func.jvp
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_transforms_of_a_layer_work(kind):
    torch.manual_seed(9)
    layer = lc.ResidualLinear(6, 4) if kind == "linear" else lc.ResidualConv2d(2, 3)
    x = torch.randn(3, 6) if kind == "linear" else torch.randn(3, 2, 5, 5)
    parameters = dict(layer.named_parameters())

    def total(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    plain = torch.autograd.grad(total(parameters, x), tuple(parameters.values()))
    for name, expected in zip(parameters, plain, strict=True):
        value = parameters[name].detach()
        gradient = torch.func.grad(lambda one, name=name: total({**parameters, name: one}, x))(value)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)  # float32, sums in another order
        tangent = torch.randn_like(expected)
        _, slope = torch.func.jvp(lambda one, name=name: total({**parameters, name: one}, x), (value,), (tangent,))
        torch.testing.assert_close(slope, (tangent * expected).sum(), rtol=1e-3, atol=1e-3)
    each = torch.func.vmap(torch.func.grad(lambda one: total(parameters, one[None])))(x)
    assert each.shape == x.shape
