"""LipSDP and ECLipsE-Fast on whole networks: never above the product, never below two points, radii that hold."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import lipcert as lc
from full import full
from lipcert.certified.freeze import prove
from lipcert.certified.functions import FUNCTIONS
from lipcert.certifiers import lipsdp

FAST = {"eclipse-fast": {}, "lipsdp": {"steps": 30}}


def network(*widths, activation=nn.ReLU, seed=0):
    torch.manual_seed(seed)
    layers = []
    for columns, rows in itertools.pairwise(widths):
        layers += [nn.Linear(columns, rows), activation()]
    return nn.Sequential(*layers[:-1]).eval()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.Hardswish, nn.ELU])
def test_each_constant_is_at_most_the_one_before(activation):
    model = network(6, 9, 7, 4, activation=activation)
    reports = [lc.audit(model, (6,), method=method, **FAST.get(method, {})) for method in ("lipschitz", *FAST)]
    for looser, tighter in itertools.pairwise(reports):
        assert tighter.lower <= tighter.lipschitz <= looser.lipschitz
        assert bool((tighter.pairwise <= looser.pairwise).all())
    if activation in (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.ELU):
        assert float(reports[-1].pairwise.mean()) < 0.95 * float(reports[0].pairwise.mean())
        assert "0 … 4" in str(reports[-1])
        assert reports[-1].to_json()["chains"][0]["method"] == "lipsdp"


def test_no_pair_of_points_exceeds_the_pairwise_constants():
    for seed in range(full(100, 5)):
        model = network(4, 6, 5, 3, seed=seed).double()
        pairs = lc.audit(model, (4,), method="lipsdp", steps=20).pairwise
        x = torch.randn(4000, 4, dtype=torch.float64) * 3
        y = x + torch.randn_like(x) * 10 ** torch.empty(len(x), 1).uniform_(-4, 0).double()
        with torch.no_grad():
            change = model(x) - model(y)
        rates = (change[:, :, None] - change[:, None]).abs() / (x - y).norm(dim=1)[:, None, None]
        assert bool((rates <= pairs + 1e-10).all())


def test_radii_grow_and_hold():
    torch.manual_seed(1)
    model, x = network(5, 12, 8, 4, seed=1), torch.randn(40, 5)
    plain = lc.certify(model, x)
    for method, options in FAST.items():
        result = lc.certify(model, x, method=method, **options)
        assert result.method == method
        assert bool((result.radii >= plain.radii).all())
        assert float(result.radii.mean()) > 1.05 * float(plain.radii.mean())
        found = attacked(model.double(), x.double(), result.predictions)
        model.float()
        assert bool((found >= result.radii).all())


def attacked(model, x, labels, steps=60):
    """The distance of the nearest point of another class that a search along gradients meets."""
    best = torch.full((len(x),), math.inf, dtype=torch.float64)
    for reach in (0.05, 0.2, 0.5, 1.0, 2.0):
        point = (x + 0.01 * reach * torch.randn_like(x)).requires_grad_()
        for _ in range(steps):
            logits = model(point)
            own = logits.gather(1, labels[:, None])[:, 0]
            others = logits.scatter(1, labels[:, None], -math.inf).amax(dim=1)
            (gradient,) = torch.autograd.grad((others - own).sum(), point)
            with torch.no_grad():
                point += reach / 10 * gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)
                away = point - x
                point.copy_(x + away * (reach / away.norm(dim=1, keepdim=True)).clamp_max(1.0))
                fell = model(point).argmax(dim=1) != labels
                distance = (point - x).norm(dim=1)
                best = torch.where(fell & (distance < best), distance, best)
    return best


def test_adam_comes_close_to_an_interior_point_solver():
    cvxpy = pytest.importorskip("cvxpy")
    model = network(4, 6, 5, 1, seed=3)
    first, second, last = (model[k].weight.detach().double().numpy() for k in (0, 2, 4))
    t1, t2, rho = cvxpy.Variable(6), cvxpy.Variable(5), cvxpy.Variable()
    d1, d2, none = cvxpy.diag(t1), cvxpy.diag(t2), np.zeros((4, 5))
    rows = [[rho * np.eye(4), -first.T @ d1, none], [-d1 @ first, 2 * d1, -second.T @ d2]]
    rows.append([none.T, -d2 @ second, 2 * d2 - last.T @ last])
    matrix = cvxpy.bmat(rows)
    problem = cvxpy.Problem(cvxpy.Minimize(rho), [(matrix + matrix.T) / 2 >> 0, t1 >= 0, t2 >= 0])
    problem.solve(solver="CLARABEL")
    report = lc.audit(model, (4,), method="lipsdp", steps=300)
    # Neurons that need no multiplier have D = ∞, where a logarithm arrives slowly.
    assert 1 - 1e-6 <= report.lipschitz / float(rho.value) ** 0.5 <= 1.02


def test_a_dense_part_behind_convolutions_is_found():
    torch.manual_seed(0)
    dense = [nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3)]
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), *dense).eval()
    proved = prove(model, (1, 4, 4))
    assert lipsdp.find_chains(proved) == [(3, 7)]
    tight = lipsdp.tighten(proved, steps=20)
    alone = lc.audit(nn.Sequential(*dense).eval(), (32,), method="lipsdp", steps=20)
    assert tight.lipschitz <= proved.constants[0] * alone.lipschitz * (1 + 1e-9)
    assert tight.lipschitz < proved.lipschitz


def test_chains_end_where_the_layers_do_not_alternate():
    layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU()]
    proved = prove(nn.Sequential(*layers, nn.Softmax(1)).eval(), (4,))
    assert lipsdp.find_chains(proved) == [(0, 2), (3, 5)]
    assert lipsdp.tighten(proved, steps=5).lipschitz <= proved.lipschitz


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(nn.Linear(4, 3)), "lipsdp needs"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 3)), "1 (softmax)"),
        (nn.Sequential(lc.ResidualLinear(4, 6), nn.Linear(4, 3)), "residual_linear"),
    ],
)
def test_a_network_without_such_layers_is_refused(model, name):
    with pytest.raises(lc.NotCertified) as refusal:
        lc.audit(model.eval(), (4,), method="lipsdp")
    assert name in str(refusal.value)
    with pytest.raises(lc.NotCertified, match="lipsdp"):
        lc.certify(model.eval(), torch.zeros(1, 4), method="lipsdp")


def test_bad_settings_are_refused():
    model = network(3, 4, 2)
    with pytest.raises(ValueError, match="eclipse-fast"):
        lc.audit(model, (3,), method="power")
    with pytest.raises(ValueError, match="steps"):
        lc.audit(model, (3,), method="lipsdp", steps=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38, 1e-38, 0.0])
def test_hostile_weights_are_never_looser_and_never_wrong(value):
    model = network(3, 4, 4, 2)
    with torch.no_grad():
        model[2].weight[1, 2] = value
        model[2].weight[3] = model[2].weight[0]
    plain, tight = lc.audit(model, (3,)), lc.audit(model, (3,), method="lipsdp", steps=10)
    assert tight.lipschitz <= plain.lipschitz
    assert tight.ok == plain.ok == math.isfinite(value)
    assert not math.isfinite(value) or tight.lower <= tight.lipschitz


@pytest.mark.parametrize("method", FAST)
def test_the_constant_of_one_small_output_is_not_rounded_to_float32(method):
    """f(x) = 10⁻⁵⁰(relu x₁ − relu x₂) vanishes on a line at distance 0.1/√2."""
    model = network(2, 2, 1).double()
    with torch.no_grad():
        model[0].weight.copy_(1e-14 * torch.eye(2))
        model[2].weight.copy_(torch.tensor([[1e-36, -1e-36]]))
        model[0].bias.zero_()
        model[2].bias.zero_()
    x = torch.tensor([[0.1, 0.0]], dtype=torch.float64)
    assert 0.05 < float(lc.certify(model, x, method=method, **FAST[method]).radii) <= 0.1 / math.sqrt(2)
    assert float(lc.audit(model, (2,), method=method, **FAST[method]).pairwise) >= 1e-50


def test_inference_mode_does_not_matter():
    model, x = network(3, 5, 4, 2), torch.randn(4, 3)
    expected = lc.certify(model, x, method="lipsdp", steps=20).radii
    with torch.inference_mode():
        assert torch.equal(lc.certify(model, x, method="lipsdp", steps=20).radii, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes_are_at_least_low(name):
    """``low`` ≤ every difference quotient; it is reached up to a hundredth, so that it is not idle."""
    scalar = FUNCTIONS[name]
    choices = [(0.5,), (2.0,), (0.1,)] if scalar.parameters == 1 else [(-1.0, 2.0)] if scalar.parameters else [()]
    choices += [(-0.7,)] if name in ("leaky_relu", "elu") else []
    for parameters in choices:
        x = torch.linspace(-60, 60, 200001, dtype=torch.float64)
        values = scalar.function(x, *parameters)
        slopes = (values[1:] - values[:-1]) / (x[1:] - x[:-1])
        assert float(slopes.min()) >= scalar.low(*parameters) - 1e-9
        assert float(slopes.min()) <= scalar.low(*parameters) + 0.01
