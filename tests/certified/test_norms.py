"""L∞ and L1: constants, rounding errors and radii against exact rational numbers, and explicit matrices."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import lipcert as lc
from full import full
from lipcert.certified import network as networks
from lipcert.certified import norms, ops
from lipcert.certified.freeze import prove
from lipcert.layers import GroupSort, LinfLinear, MaxMin, Monotone, Normalize
from mutants import matrix_of

# --- Small networks in rational numbers ---

EXACT = {
    "relu": lambda v: max(v, Fraction(0)),
    "abs": abs,
    "identity": lambda v: v,
}


def rational(values):
    return np.array([Fraction(float(v)) for v in values], dtype=object)


def exact_step(step, *inputs):
    """What an op computes, in rational numbers."""
    x = inputs[0]
    if isinstance(step, ops.Linear):
        weight = np.array([rational(row) for row in step.weight.tolist()])
        return weight @ x + (0 if step.bias is None else rational(step.bias.tolist()))
    if isinstance(step, ops.GroupSort):
        groups = np.sort(x.reshape(-1, step.size), axis=1)
        return (groups[:, ::-1] if step.descending else groups).reshape(-1)
    if isinstance(step, ops.Combination):
        return sum(w * v for w, v in zip(rational(step.weights.tolist()), inputs, strict=True))
    if isinstance(step, ops.Normalize):
        return (x - rational(step.mean.tolist())) / rational(step.std.tolist())
    if isinstance(step, ops.Function) and step.op == "hardtanh":
        low, high = map(Fraction, step.numbers)
        return np.array([min(max(v, low), high) for v in x], dtype=object)
    return np.array([EXACT[step.op](v) for v in x], dtype=object)


def exactly(proved, x):
    values = {-1: rational(x.tolist())}
    for index, part in enumerate(proved.parts):
        values[index] = exact_step(part.step, *(values[place] for place in part.inputs))
    return values[len(proved.parts) - 1]


def size(values, norm):
    """‖v‖ of rational numbers, in L∞ or L1."""
    sizes = [abs(v) for v in values]
    return max(sizes) if norm == "linf" else sum(sizes)


# --- Hostile networks and points ---


def hostile(weight, rng):
    """Fill a weight with numbers of a kind that has broken norms before."""
    shape = tuple(weight.shape)
    kind = rng.integers(7)
    values = rng.standard_normal(shape)
    if kind == 1:
        values = values * 10.0 ** rng.integers(-8, 8, shape)
    elif kind == 2:
        values = np.where(rng.random(shape) < 0.6, 0.0, values)
    elif kind == 3:
        values = np.sign(values) / shape[1]
    elif kind == 4:
        values[rng.integers(shape[0])] *= 1e6
    elif kind == 5:
        values = np.full(shape, 1.0 / 3)
    elif kind == 6:
        values = values * 1e-20
    with torch.no_grad():
        weight.copy_(torch.from_numpy(values))


def network_of(rng, norm):
    sizes = rng.integers(1, 5, rng.integers(2, 5))
    layers = [Normalize(rng.standard_normal(1), [float(rng.choice([0.3, 2.0]))])] if rng.random() < 0.2 else []
    layers = [] if sizes[0] > 1 and layers else layers  # one channel is one feature
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        own = LinfLinear(int(n), int(m), norm=norm if i == 0 else "linf")
        linear = own if rng.random() < 0.5 else nn.Linear(int(n), int(m))
        hostile(linear.weight, rng)
        nn.init.normal_(linear.bias)
        choices = [nn.ReLU(), lc.layers.Abs(), lc.layers.Clip(0.7), GroupSort(int(m))]
        choices += [] if m % 2 else [MaxMin()]
        layers += [linear, choices[rng.integers(len(choices))]]
    return nn.Sequential(*(layers if rng.random() < 0.5 else layers[:-1])), int(sizes[0])


def towards(proved, x, norm, label, rival):
    """The direction of norm 1 in which the margin falls fastest."""
    point = x.clone().double().requires_grad_()
    with torch.enable_grad():
        out = proved.run(point[None])[-1][0]
        margin = out[label] - out[rival] if len(out) > 1 else (out[0] if label else -out[0])
        (slope,) = torch.autograd.grad(margin, point, allow_unused=True)
    slope = torch.zeros_like(point) if slope is None else slope
    signs = torch.where(slope > 0, -1.0, 1.0).double()
    if norm == "linf":
        return signs
    place = slope.abs().argmax()
    return torch.zeros_like(signs).index_fill(0, place, float(signs[place]))


def check_network(seed, points=24):
    """Constant, rounding error and radius of one hostile network, at hostile points, in rational numbers."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    norm = ("linf", "l1")[seed % 2]
    model, inputs = network_of(rng, norm)
    frozen = lc.freeze(model.eval())
    proved = prove(frozen, (inputs,), norm=norm)
    scale = torch.from_numpy(10.0 ** rng.integers(-3, 4, (points, 1)))
    x = (torch.randn(points, inputs) * scale).float()
    x[0], x[1] = 0.0, 1.0
    result = lc.certify(frozen, x, norm=norm)
    computed, after = proved.run(x.double())[-1], proved.norm_at(len(proved.parts) - 1)
    lipschitz, pairs = Fraction(proved.lipschitz), proved.pairwise()
    for i in range(points):
        label, f = int(result.labels[i]), exactly(proved, x[i])
        rivals = [j for j in range(len(f)) if j != label] if len(f) > 1 else [0]
        terms = Fraction(float(result.errors[i]))
        for j in rivals:
            true = f[label] - f[j] if len(f) > 1 else f[0]
            own = rational(computed[i].tolist())
            found = own[label] - own[j] if len(f) > 1 else own[0]
            assert 3 * abs(found - true) <= terms, (seed, i, "rounding")
        rival = rivals[rng.integers(len(rivals))]
        d = towards(proved, x[i], norm, label, rival)
        radius = float(result.radii[i])
        # Two points, near or far: the constants.
        other = x[i].double() + d * float(10.0 ** rng.integers(-2, 3))
        moved, away = exactly(proved, other), size(rational(other.tolist()) - rational(x[i].tolist()), norm)
        assert size(moved - f, after) <= lipschitz * away, (seed, i, "constant")
        if len(f) > 1:
            change = abs((moved - f)[label] - (moved - f)[rival])
            assert change <= Fraction(float(pairs[label, rival])) * away, (seed, i, "pair")
        # A point of the ball, where the margin is smallest: the class stays, exactly and in float64.
        if 0 < radius < 1e100:
            inside = x[i].double() + d * radius * (1 - 2.0**-45)
            if size(rational(inside.tolist()) - rational(x[i].tolist()), norm) < Fraction(radius):
                g, ran = exactly(proved, inside), proved.run(inside[None])[-1][0]
                for j in rivals:
                    assert g[label] > g[j] if len(g) > 1 else (g[0] > 0) == bool(label), (seed, i, "radius")
                    assert ran[label] > ran[j] if len(g) > 1 else (ran[0] > 0) == bool(label), (seed, i, "run")


def check_networks(count):
    for seed in range(count):
        check_network(seed)


def test_hostile_networks_against_rational_numbers():
    check_networks(full(520, 30))  # 24 points each: 12,480 cases in the long version


def columns_for_rows(rows, norm):
    return norms.rows_up(np.asarray(rows).T, norm) if norm == "l1" else norms.rows_up(rows, norm)


MUTANTS = {  # what is wrong, where
    "√2 L without a head": (networks, "apart", lambda norm: math.sqrt(2)),
    "column sums for row sums": (ops, "rows_up", columns_for_rows),
    "the largest entry for inputs in L∞": (ops, "rows_up", lambda rows, norm: norms.rows_up(rows, "linf")),
    "L2 norms of the rows": (ops, "rows_up", lambda rows, norm: norms.rows_up(rows, "l2")),
    "L2 distances of the head": (networks, "DUAL", dict.fromkeys(norms.NORMS, "l2")),
    "no rounding error": (ops, "affine_error", lambda terms, kappa, beta: ops.relative_error(0, 0.0)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_law_notices_mutants(name, monkeypatch):
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises(AssertionError, match=r"\(\d+, \d+, "):
        check_networks(60)


# --- Ops against explicit matrices ---


def operator_norm(matrix, norms_of):
    """‖M‖ between two of the norms, exactly for a matrix: rows, entries or columns."""
    sizes = matrix.abs()
    if norms_of == ("linf", "linf"):
        return float(sizes.sum(dim=1).max())
    if norms_of == ("l1", "linf"):
        return float(sizes.max())
    return float(sizes.sum(dim=0).max())  # from L1 to L1


CONVS = [
    nn.Conv2d(2, 3, 3, padding=1),
    nn.Conv2d(2, 4, 3, stride=2, dilation=2, padding=2, groups=2),
    nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    nn.Conv2d(2, 3, 5, padding=2, padding_mode="circular"),  # as large as the image
    nn.Conv2d(2, 3, 5, dilation=2, padding=4, padding_mode="circular"),  # taps meet around the image
]
AFFINE = [
    (nn.Linear(5, 3), (5,)),
    (nn.Linear(4, 6), (2, 4)),
    (LinfLinear(5, 3), (5,)),
    (LinfLinear(5, 3, norm="l1"), (5,)),
    *((conv, (2, 5, 5)) for conv in CONVS),
    (nn.Conv1d(2, 3, 2), (2, 6)),
    (nn.AvgPool2d(2), (2, 4, 4)),
    (nn.AvgPool2d(3, stride=1, padding=1), (1, 5, 5)),
    (nn.AdaptiveAvgPool2d(3), (1, 5, 4)),
    (nn.ZeroPad2d(1), (1, 3, 3)),
    (nn.CircularPad2d(1), (1, 3, 3)),
    (nn.Upsample(scale_factor=2), (1, 3, 2)),
    (nn.Flatten(), (2, 3)),
    (nn.PixelShuffle(2), (4, 2, 2)),
    (Normalize([0.1, 0.2], [0.5, 3.0]), (2, 2, 2)),
    (lc.layers.Scale(-2.5), (4,)),
    (nn.BatchNorm2d(3), (3, 2, 2)),
]


@pytest.mark.parametrize("index", range(len(AFFINE)))
@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_affine_ops_against_their_matrices(index, norm):
    module, shape = AFFINE[index]
    torch.manual_seed(index)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    if isinstance(module, nn.BatchNorm2d):
        module.running_var.copy_(torch.tensor([0.3, 2.0, 1.0]))
    frozen = lc.freeze(module.eval())
    proved = prove(frozen, shape, norm=norm)
    (part,) = proved.parts
    true = operator_norm(matrix_of(frozen.double(), shape), (norm, part.proof.norm))
    assert true <= proved.lipschitz * (1 + 1e-14)  # sums of the test itself are rounded
    around = isinstance(module, nn.Conv2d) and module.padding_mode == "circular" and norm == "l1"
    dilated = isinstance(module, nn.Conv2d) and module.dilation != (1, 1)  # no output may see all taps
    pool = isinstance(module, (nn.AvgPool2d, nn.AdaptiveAvgPool2d)) and norm == "l1"  # bounded as in L∞
    if not (around or dilated or pool):
        assert proved.lipschitz <= true * (1 + 1e-6)
    layer = lc.audit(frozen, shape, norm=norm).layers[0]
    assert layer.verdict == "PROVED"
    assert layer.lower >= 0.99 * true  # Boyd's method finds the norm of a matrix


PLAIN = [nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.PReLU(), nn.LeakyReLU(3.0), MaxMin(), GroupSort(3)]


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_functions_and_sorting_are_as_lipschitz_in_every_norm(norm):
    x = 4 * torch.randn(200, 6, dtype=torch.float64)
    y = x + torch.randn_like(x) * 10.0 ** torch.randint(-3, 2, (200, 1))
    for module in PLAIN:
        frozen = lc.freeze(module).double()
        constant = lc.audit(frozen, (6,), norm=norm).lipschitz
        assert constant == pytest.approx(lc.audit(frozen, (6,)).lipschitz, rel=1e-6)
        with torch.no_grad():
            moved = norms.measure(frozen(x) - frozen(y), norm)
        assert bool((moved <= constant * norms.measure(x - y, norm) * (1 + 1e-12)).all()), module
    pool = lc.freeze(nn.MaxPool2d(3, stride=1))
    report = lc.audit(pool, (1, 5, 5), norm=norm)
    assert report.lipschitz == 1.0  # in L2 it is the root of how many windows share an entry
    assert report.layers[0].lower > 0.9


@pytest.mark.parametrize(
    "module",
    [
        lc.ResidualLinear(4, 3),
        lc.GeneralLinear(4, 3, 4),
        lc.SandwichLinear(4, 4),
        nn.Softmax(dim=1),
        nn.ConvTranspose1d(4, 2, 2),
        lc.layers.Householder(4),
    ],
)
def test_what_is_proved_in_l2_alone_is_refused(module):
    shape = (4, 3) if isinstance(module, nn.ConvTranspose1d) else (4,)
    assert lc.audit(module, shape).ok
    for norm in ("linf", "l1"):
        with pytest.raises(lc.NotCertified, match=r"proved in L2, not in L[∞1].*LinfLinear"):
            lc.audit(module, shape, norm=norm)


def test_a_residual_that_were_accepted_in_linf_would_be_refuted(monkeypatch):
    torch.manual_seed(0)
    layer = lc.ResidualLinear(8, 8)
    monkeypatch.setattr(ops.ResidualLinear, "in_any_norm", True)
    found = lc.audit(layer, torch.randn(16, 8), norm="linf", samples=16).layers[0]
    assert found.verdict == "REFUTED"
    assert found.lower > 1


def test_a_rule_of_ones_own_is_about_l2():
    class Own(nn.Module):
        def forward(self, x):
            return x

    lc.register_rule(Own, 1.0)
    with pytest.raises(lc.NotCertified, match="proved in L2"):
        lc.audit(nn.Sequential(Own()), (3,), norm="linf")


# --- The norm along the way ---


def test_one_linear_map_gives_the_true_distance_to_the_other_class():
    """margin/‖w_y − w_j‖ in the dual norm is exact for a linear classifier."""
    linear, x = nn.Linear(5, 2), torch.randn(7, 5)
    row = (linear.weight[0] - linear.weight[1]).double()
    margin = (linear(x)[:, 0] - linear(x)[:, 1]).abs().double()
    for norm, dual in (("l2", row.norm()), ("linf", row.abs().sum()), ("l1", row.abs().max())):
        radii = lc.certify(linear, x, norm=norm).radii
        torch.testing.assert_close(radii, (margin / dual).detach(), rtol=1e-5, atol=1e-6)


def test_without_a_head_two_entries_may_move_by_twice_the_constant():
    x = torch.tensor([[1.0, 0.0]])
    radii = {norm: float(lc.certify(nn.ReLU(), x, norm=norm).radii) for norm in norms.NORMS}
    assert radii == pytest.approx({"l2": math.sqrt(0.5), "linf": 0.5, "l1": 1.0}, rel=1e-9)
    assert radii["linf"] < 0.5


def test_the_norm_of_an_input_in_l1_changes_once():
    model = nn.Sequential(Normalize([0.0], [2.0]), nn.Flatten(), nn.Linear(4, 3), MaxMin(dim=1), nn.Linear(3, 2))
    model[3] = nn.ReLU()
    parts = prove(model, (1, 4), norm="l1").parts
    assert [part.proof.norm for part in parts] == ["l1", "l1", "linf", "linf", "linf"]
    assert [part.proof.method for part in parts[2::2]] == ["largest entry", "row sums"]
    assert {part.proof.norm for part in prove(model, (1, 4), norm="linf").parts} == {"linf"}


def test_where_l1_and_linf_meet_bounds_are_in_linf():
    """x in L1 and Wx in L∞ are added; the next linear map must not take the sum as a vector in L1."""
    torch.manual_seed(0)
    mixed = lc.layers.ConvexCombination(nn.Identity(), nn.Linear(4, 4))
    model = nn.Sequential(mixed, nn.Linear(4, 2)).double()
    nn.init.ones_(model[0].branches[1].weight)
    nn.init.ones_(model[1].weight)
    frozen = lc.freeze(model)
    proved = prove(frozen, (4,), norm="l1")
    true = operator_norm(matrix_of(frozen.double(), (4,)), ("l1", "linf"))
    assert proved.parts[-2].proof.norm == "linf"
    assert true <= proved.lipschitz
    assert float(proved.head.norms[0]) == pytest.approx(4)


def test_norms_are_checked_and_other_methods_are_about_l2():
    model, x = nn.Linear(3, 2), torch.rand(2, 3)
    with pytest.raises(ValueError, match=r"norm must be one of.*'linf'.*got 'inf'"):
        lc.certify(model, x, norm="inf")
    for method in ("lipsdp", "local", "smoothing", "sdp-crown"):
        with pytest.raises(ValueError, match=rf"'{method}' is about the L2 norm; got norm='linf'"):
            lc.certify(model, x, norm="linf", method=method)
    with pytest.raises(ValueError, match="about the L2 norm"):
        lc.audit(model, x, norm="l1", method="lipsdp")
    with pytest.raises(ValueError, match="about inputs in L∞; got norm='l2'"):
        lc.certify(prove(model, (3,), norm="linf"), x)


def test_the_default_is_l2_and_says_nothing_new():
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.rand(2, 3)
    assert "norm" not in lc.audit(model, x).to_json()
    assert lc.audit(model, x, norm="linf").to_json()["norm"] == "linf"
    assert "inputs are measured in L∞" in str(lc.audit(model, x, norm="linf"))
    assert torch.equal(lc.certify(model, x).radii, lc.certify(model, x, norm="l2").radii)
    assert "L∞ norm" in lc.certify(model, x, norm="linf").guarantee
    assert "norm" not in lc.certify(model, x).guarantee


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_intervals_hold_at_the_corners_of_the_ball(norm):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x, frozen = torch.randn(5, 3), lc.freeze(model)
    low, high = lc.output_interval(frozen, x, 0.3, norm=norm)
    corners = (
        torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3) if norm == "linf" else torch.eye(3).repeat(2, 1)
    )
    if norm == "l1":
        corners[3:] *= -1
    for corner in corners:
        out = frozen.double()((x + 0.3 * corner).double())
        assert bool(((low <= out) & (out <= high)).all())


# --- Certificates ---


def dense(norm):
    """A network on images for each norm, trained a little so that radii are not all tiny."""
    torch.manual_seed(0)
    return nn.Sequential(
        Normalize([0.5], [0.5]),
        nn.Flatten(),
        LinfLinear(16, 12, norm=norm),
        MaxMin(),
        LinfLinear(12, 12),
        nn.Tanh(),
        nn.Linear(12, 3),
    )


def pooled():
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.PReLU(4), nn.MaxPool2d(2), nn.ZeroPad2d(1)]
    return nn.Sequential(
        *layers, nn.AvgPool2d(3, stride=1), nn.Flatten(), nn.Linear(16, 4), nn.LeakyReLU(0.2)
    ).eval()


@pytest.mark.parametrize("norm", ["linf", "l1"])
@pytest.mark.parametrize("make", [lambda norm: dense(norm), lambda norm: pooled()])
def test_the_checker_verifies_certificates_of_every_norm(make, norm, tmp_path):
    x = torch.rand(12, 1, 4, 4)
    result = lc.certify(make(norm), x, norm=norm)
    result.save(tmp_path)
    assert (result.radii > 0).all()
    report = lc.verify(tmp_path)
    assert report.ok, report.refuted
    assert report.verified == len(x)


def rewrite(folder, change):
    path = folder / "certificate.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_certificate_with_another_norm_is_refuted(tmp_path):
    x = torch.rand(6, 1, 4, 4)
    lc.certify(dense("l1"), x, norm="l1").save(tmp_path / "l1")
    rewrite(tmp_path / "l1", lambda content: content.update(norm="Linf"))
    assert not lc.verify(tmp_path / "l1").ok
    rewrite(tmp_path / "l1", lambda content: content.update(norm="L2"))
    assert not lc.verify(tmp_path / "l1").ok
    residual = nn.Sequential(nn.Flatten(), lc.ResidualLinear(16, 8), lc.NormalizedHead(16, 3))
    lc.certify(residual, x).save(tmp_path / "l2")
    for norm in ("Linf", "L1"):
        rewrite(tmp_path / "l2", lambda content, norm=norm: content.update(norm=norm))
        report = lc.verify(tmp_path / "l2")
        assert not report.ok
        assert any("about the L2 norm" in text for text in report.refuted)


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_a_radius_with_the_wrong_factor_is_refuted(norm, tmp_path):
    """Without a head: √2 in place of 2 in L∞, and a radius beyond the margin in L1."""
    x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.zero_()
    result = lc.certify(model, x, norm=norm)
    result.save(tmp_path)
    factor = {"linf": math.sqrt(2), "l1": 1.01}[norm]
    larger = [[i, int(result.labels[i]), float(result.radii[i] * factor).hex()] for i in range(2)]
    assert lc.verify(tmp_path).ok
    rewrite(tmp_path, lambda content: content.update(claims=larger))
    assert not lc.verify(tmp_path).ok


def test_column_sums_are_refuted(tmp_path):
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.rand(3, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    lc.certify(model, x, norm="linf").save(tmp_path)

    def smaller(content):
        content["nodes"][0]["lipschitz"] = (1.0 + 2.0**-20).hex()
        content["lipschitz"] = (1.0 + 2.0**-20).hex()

    rewrite(tmp_path, smaller)
    report = lc.verify(tmp_path)
    assert not report.ok
    assert "proved is 2" in report.refuted[0]


# --- Monotone networks ---


def monotone_network(rng, norm):
    inputs, inner = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    layers = [LinfLinear(inputs, 2 * inner, norm=norm), MaxMin(), LinfLinear(2 * inner, 1)]
    for layer in layers[::2]:
        hostile(layer.weight, rng)
    places = rng.permutation(inputs)
    features, decreasing = (
        sorted(places[: len(places) // 2 + 1].tolist()),
        places[len(places) // 2 + 1 :][:1].tolist(),
    )
    return Monotone(nn.Sequential(*layers), features, decreasing=decreasing), features, decreasing


def test_monotone_networks_in_rational_numbers():
    """Every feature that the audit names, at hostile points and steps; and it names all that were asked for."""
    for seed in range(full(300, 25)):
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        norm = ("linf", "l1")[seed % 2]
        model, features, decreasing = monotone_network(rng, norm)
        inputs = model.network[0].in_features
        frozen = lc.freeze(model)
        report, proved = lc.audit(frozen, (inputs,), norm=norm), prove(frozen, (inputs,), norm=norm)
        assert set(features) <= set(report.increasing)
        assert set(decreasing) <= set(report.decreasing)
        for _ in range(10):
            x = torch.randn(inputs, dtype=torch.float64) * float(10.0 ** rng.integers(-2, 3))
            for signs, places in ((1, report.increasing), (-1, report.decreasing)):
                for place in places:
                    above = x.clone()
                    above[place] += float(10.0 ** rng.integers(-6, 3))
                    assert signs * (exactly(proved, above)[0] - exactly(proved, x)[0]) >= 0, seed


def test_monotone_is_proved_only_where_k_is_large_enough():
    steep = nn.Linear(2, 1)
    with torch.no_grad():
        steep.weight.copy_(torch.tensor([[-0.75, 0.25]]))
    f = nn.Sequential(steep, nn.ReLU())
    for constant, proved in ((1.0, (0, 1)), (0.76, (0, 1)), (0.74, (1,))):
        report = lc.audit(Monotone(f, (0,), lipschitz=constant), (2,), norm="l1")
        assert report.increasing == proved  # f itself never falls in the second input
        assert report.decreasing == ()
    assert lc.audit(f, (2,)).decreasing == (0,)


def test_monotone_networks_between_other_steps():
    torch.manual_seed(0)
    f = nn.Sequential(LinfLinear(3, 8, norm="l1"), MaxMin(), LinfLinear(8, 1))
    inner = Monotone(f, (0,), decreasing=(2,))
    model = nn.Sequential(Normalize([1.0, 2.0, 3.0], [0.1, 1e-3, 50.0]), inner, nn.Sigmoid())
    report = lc.audit(model, (3,), norm="l1")
    assert (report.increasing, report.decreasing) == ((0,), (2,))
    falling = lc.audit(nn.Sequential(inner, lc.layers.Scale(-2.0)), (3,), norm="l1")
    assert (falling.increasing, falling.decreasing) == ((2,), (0,))
    assert falling.to_json()["increasing"] == [2]
    assert "no output ever rises in the inputs 0" in str(falling)
    bent = lc.audit(nn.Sequential(inner, lc.layers.Abs()), (3,), norm="l1")
    assert (bent.increasing, bent.decreasing) == ((), ())


def test_a_monotone_network_computes_what_it_says_and_has_its_certificate(tmp_path):
    torch.manual_seed(0)
    f = nn.Sequential(lc.AffineLinear(4, 8), MaxMin(), lc.NormalizedHead(8, 1))  # proved in L2, which is enough
    model, x = Monotone(f, (1, 3), decreasing=(0,), lipschitz=2.0), torch.randn(9, 4)
    torch.testing.assert_close(model(x), f(x) + 2 * (x[:, 1] + x[:, 3] - x[:, 0])[:, None])
    torch.testing.assert_close(lc.freeze(model)(x), model(x), rtol=1e-5, atol=1e-5)
    report = lc.audit(model, (4,))
    assert (report.increasing, report.decreasing) == ((1, 3), (0,))
    assert report.lipschitz <= lc.lipschitz_bound(model) * (1 + 1e-6)
    lc.certify(model, x).save(tmp_path)
    assert lc.verify(tmp_path).ok


def test_slopes_are_followed_through_images_by_their_constant_alone():
    torch.manual_seed(0)
    conv = nn.Conv1d(1, 2, 3, padding=1)
    with torch.no_grad():
        conv.weight.abs_()
    tail = [nn.ReLU(), nn.Flatten(), nn.Linear(8, 1)]
    model = nn.Sequential(nn.Unflatten(1, (1, 4)), conv, *tail)
    report = lc.audit(model, (4,))
    assert (report.increasing, report.decreasing) == ((), ())
    with torch.no_grad():
        conv.weight.zero_()
    assert lc.audit(model, (4,)).decreasing == ()  # the constant is all that is known, and it is not exactly 0


def test_networks_with_weights_of_one_sign_and_normalized_inputs():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    norm.weight.data = torch.tensor([1.0, -2.0, 0.5])
    model = nn.Sequential(norm, nn.Linear(3, 8), nn.Softplus(threshold=40), nn.Linear(8, 2), nn.Tanh()).eval()
    for layer in (model[1], model[3]):
        layer.weight.data.abs_()
    report = lc.audit(model, (3,))
    assert (report.increasing, report.decreasing) == ((0, 2), (1,))
    model[1].weight.data[:, 0] = 0
    assert lc.audit(model, (3,)).increasing == (0, 2)
    model[1].weight.data[3, 2] = -1e-30
    assert lc.audit(model, (3,)).increasing == (0,)


def test_a_network_steeper_than_k_is_noticed():
    torch.manual_seed(0)
    f = nn.Sequential(LinfLinear(2, 8, norm="l1"), MaxMin(), LinfLinear(8, 1))
    with torch.no_grad():
        f[0].weight.copy_(-torch.ones(8, 2))
        f[2].weight.copy_(torch.ones(1, 8))
    assert lc.audit(Monotone(f, (0,)), (2,), norm="l1").increasing == (0,)
    steeper = nn.Sequential(f, lc.layers.Scale(2.0))
    assert lc.audit(Monotone(steeper, (0,)), (2,), norm="l1").increasing == ()
