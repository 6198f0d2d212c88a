"""SDP-CROWN: the offset of one activation against rational numbers, whole bounds against searches in the ball."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import lipcert as lc
from full import full
from lipcert.certified.certificate import write_certificate
from lipcert.certified.freeze import prove
from lipcert.certifiers import sdp_crown
from lipcert.certifiers.sdp_crown import Layer

RELU = prove(nn.Sequential(nn.ReLU()), (4,)).parts[0]


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def hostile_case(count=6, size=4):
    """c, g, λ, ẑ, ρ and r of any size, with zeros, and boxes that reach the kink or do not."""
    scale = 10 ** torch.empty(count, 1, dtype=torch.float64).uniform_(-6, 6)
    c, center = rand(count, size) * scale, rand(count, size) * 10 ** torch.empty(count, 1).uniform_(-3, 3).double()
    c[torch.rand(count, size) < 0.15] = 0
    center[torch.rand(count, size) < 0.15] = 0
    gradient = c * torch.rand(count, size).double() + (torch.rand(count, 1) < 0.3) * rand(count, size) * scale
    reach = 10 ** torch.empty(count, dtype=torch.float64).uniform_(-4, 3)
    box = reach[:, None] * torch.rand(count, size).double() ** 2
    weight = c.norm(dim=1) / reach * 10 ** torch.empty(count).uniform_(-4, 4).double() + 1e-12
    norm = center.norm(dim=1) + reach
    return Layer(RELU, (size,), center, norm, reach, box), c, gradient, weight


def exact_offset(layer, c, gradient, weight, a, row):
    """h in rational numbers: the minimum of a parabola over an interval is at its vertex or at an end."""
    f = lambda value: Fraction(float(value))  # noqa: E731
    factor, total = f(weight[row]), Fraction(0)
    for i in range(c.shape[1]):
        center, box = f(layer.center[row, i]), f(layer.box[row, i])
        values = []
        for slope, low, high in ((Fraction(1), max(-center, -box), box), (f(a), -box, min(-center, box))):
            if low <= high:
                k = slope * f(c[row, i]) - f(gradient[row, i])
                t = min(max(-k / factor, low), high)
                values.append(k * (center + t) + factor * t * t / 2)
        total += min(values)
    return total - factor * f(layer.reach[row]) ** 2 / 2


@pytest.mark.parametrize("a", [0.0, 0.01, -1.0, 1.0, 2.5])
def test_the_offset_is_below_the_exact_one_and_close_to_it(a):
    torch.manual_seed(0)
    loose = 0.0
    for _ in range(full(400, 12)):
        layer, c, gradient, weight = hostile_case()
        value, lost = sdp_crown._offset(layer, c, gradient, weight, a)
        for row in range(len(c)):
            exact = exact_offset(layer, c, gradient, weight, a, row)
            assert Fraction(float(value[row])) - Fraction(float(lost[row])) <= exact
            loose = max(loose, float((exact - Fraction(float(value[row]))) / max(abs(exact), Fraction(1, 10**30))))
    assert loose < 1


def test_an_offset_without_its_rounding_is_caught():
    torch.manual_seed(1)
    caught = 0
    for _ in range(20):
        layer, c, gradient, weight = hostile_case()
        value, _ = sdp_crown._offset(layer, c, gradient, weight, 0.0)
        caught += sum(
            Fraction(float(value[r])) > exact_offset(layer, c, gradient, weight, 0.0, r) for r in range(6)
        )
    assert caught > 10


def test_without_a_box_the_offset_is_the_closed_form_of_the_paper():
    torch.manual_seed(2)
    layer, c, gradient, weight = hostile_case()
    wide = Layer(RELU, (4,), layer.center, layer.norm, layer.reach, torch.full_like(c, 1e12))
    value, _ = sdp_crown._offset(wide, c, gradient, weight, 0.0)
    lam, center = weight[:, None], layer.center
    phi = torch.minimum(torch.minimum(c - gradient - lam * center, gradient + lam * center), torch.zeros_like(c))
    closed = -0.5 * (weight * (layer.reach**2 - center.square().sum(dim=1)) + phi.square().sum(dim=1) / weight)
    size = weight * (layer.reach**2 + center.square().sum(dim=1)) + phi.square().sum(dim=1) / weight
    assert bool(((value - closed).abs() <= 1e-12 * size).all())


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_multiplier_that_is_not_positive_proves_nothing(bad):
    layer, c, gradient, weight = hostile_case()
    value, lost = sdp_crown._offset(layer, c, gradient, weight * 0 + bad, 0.0)
    assert not bool((value - lost > -math.inf).any())


def networks(kind, seed):
    torch.manual_seed(seed)
    if kind == "dense":
        layers = [nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.LeakyReLU(0.1), nn.Linear(5, 3)]
        return nn.Sequential(*layers).eval(), (3,)
    if kind == "one output":
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).eval(), (3,)
    layers = [nn.Conv2d(1, 3, 3, 2, 1), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).eval(), (1, 6, 6)


def smallest_margins(model, x, labels, radius, samples):
    """The smallest f_y − f_j that a search along gradients meets in the ball, (N, C − 1)."""
    count = len(x)
    points = x.repeat_interleave(samples, 0)
    away = torch.randn_like(points).flatten(1)
    away = away / away.norm(dim=1, keepdim=True) * torch.rand(len(away), 1).double() ** 0.3
    reach = radius.repeat_interleave(samples)[:, None]
    truth, classes = labels.repeat_interleave(samples), model(x[:1]).shape[1]
    result = []
    for rival in range(max(1, classes - 1)):
        moved, best = away.clone() * reach, torch.full((count,), math.inf, dtype=torch.float64)
        for _ in range(12):
            moved.requires_grad_()
            logits = model(points + moved.view_as(points))
            if classes == 1:
                margin = torch.where(truth == 1, 1.0, -1.0) * logits[:, 0]
            else:
                other = rival + (rival >= truth).long()
                margin = (logits.gather(1, truth[:, None]) - logits.gather(1, other[:, None]))[:, 0]
            (gradient,) = torch.autograd.grad(margin.sum(), moved)
            with torch.no_grad():
                best = torch.minimum(best, margin.view(count, samples).amin(dim=1))
                moved = moved - 0.3 * reach * gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-30)
                moved = moved * (reach / moved.norm(dim=1, keepdim=True).clamp_min(1e-300)).clamp_max(1.0)
        result.append(best)
    return torch.stack(result, 1)


def bounds_of(kind, seed, count=20, steps=10):
    """The bounds of all rivals for random inputs and radii, and the margins that a search meets."""
    model, shape = networks(kind, seed)
    model.double()
    x = rand(count, *shape)
    radius = 10 ** torch.empty(count, dtype=torch.float64).uniform_(-3, 0.5)
    with torch.no_grad():
        logits = model(x)
        labels = logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
        search = sdp_crown._Search(prove(model, shape), x, labels, "float64", steps)
        rivals = max(1, logits.shape[1] - 1)
        image = torch.arange(count).repeat_interleave(rivals)
        bounds = search.lower_bounds(image, torch.arange(rivals).repeat(count), radius[image]).view(count, rivals)
    return bounds, smallest_margins(model, x, labels, radius, 16), search.margins


@pytest.mark.parametrize("kind", ["dense", "convolution", "one output"])
def test_no_point_of_the_ball_is_below_the_bound(kind):
    tight = []
    for seed in range(full(100, 2)):  # 20 inputs with up to 2 rivals each, and 192 points of each ball
        bounds, found, margins = bounds_of(kind, seed)
        assert bool((bounds <= found).all())
        tight.append(float(((margins - found) / (margins - bounds)).median()))
    assert sum(tight) / len(tight) > 0.5  # the bound is not idle: half of the loss is real


@pytest.mark.parametrize("mutant", ["sign of the ball", "no box of errors", "half the radius"])
def test_mutants_are_caught(monkeypatch, mutant):
    offset, layers = sdp_crown._offset, sdp_crown._Search.layers
    if mutant == "sign of the ball":

        def wrong(layer, c, gradient, weight, a):
            value, lost = offset(layer, c, gradient, weight, a)
            return value + weight * layer.reach**2, lost

        monkeypatch.setattr(sdp_crown, "_offset", wrong)
    elif mutant == "no box of errors":
        slim = lambda layer: Layer(  # noqa: E731
            layer.part, layer.shape, layer.center, layer.norm, layer.reach, layer.spread * 0.2
        )
        monkeypatch.setattr(sdp_crown._Search, "layers", lambda s, i, r: [slim(k) for k in layers(s, i, r)])
    else:
        monkeypatch.setattr(sdp_crown._Search, "layers", lambda s, i, r: layers(s, i, r / 2))
    caught = 0
    for seed in range(3):
        bounds, found, _ = bounds_of("dense", seed)
        caught += int((bounds > found).sum())
    assert caught > 0


@pytest.mark.parametrize("kind", ["dense", "convolution"])
def test_radii_are_never_below_the_lipschitz_radius_and_hold(kind):
    model, shape = networks(kind, 5)
    x = rand(12, *shape).float()
    plain = lc.certify(model, x)
    local = lc.certify(model, x, method="sdp-crown", steps=15, tries=3)
    assert local.method == "sdp-crown"
    assert bool((local.radii >= plain.radii).all())
    assert float(local.radii.sum()) > 1.1 * float(plain.radii.sum())
    found = smallest_margins(model.double(), x.double(), local.labels, local.radii, 16)
    assert bool((found > 0).all())


def test_given_radii_are_tried_in_order():
    model, shape = networks("dense", 6)
    x = rand(10, *shape).float()
    plain = lc.certify(model, x)
    wanted = [4.0, 1.2, 1.5]
    local = lc.certify(model, x, method="sdp-crown", radii=wanted, steps=15)
    beyond = [math.nextafter(radius, math.inf) for radius in wanted]  # so that it counts as certified there
    assert all(float(r) in beyond or r == p for r, p in zip(local.radii, plain.radii, strict=True))
    assert bool((local.radii > plain.radii).any())
    exact = lc.certify(model, x, method="sdp-crown", radii=wanted, steps=15, arithmetic="real")
    assert exact.arithmetic == "real"


def test_what_is_not_covered_is_refused_in_one_sentence():
    x = torch.zeros(1, 4)
    with pytest.raises(lc.NotCertified, match=r"1 \(tanh\)"):
        lc.certify(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).eval(), x, method="sdp-crown")
    with pytest.raises(lc.NotCertified, match="ends with 1"):
        lc.certify(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), x, method="sdp-crown")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    for bad in (0.0, -1.0, math.nan, math.inf, []):
        with pytest.raises(ValueError, match="radii must be positive"):
            lc.certify(model, x, method="sdp-crown", radii=bad)
    with pytest.raises(ValueError, match="steps"):
        lc.certify(model, x, method="sdp-crown", steps=0)


@pytest.mark.parametrize("value", [math.nan, 1e30, 1e-30, 0.0])
def test_hostile_weights_give_radii_that_hold(value):
    model, shape = networks("dense", 7)
    with torch.no_grad():
        model[2].weight[1, 2] = value
        model[0].weight[3] = model[0].weight[0]
    x = rand(6, *shape).float()
    if math.isnan(value):
        with pytest.raises(lc.NotCertified, match="NaN"):
            lc.certify(model, x, method="sdp-crown")
        return
    local = lc.certify(model, x, method="sdp-crown", steps=10, tries=2)
    found = smallest_margins(model.double(), x.double(), local.labels, local.radii, 16)
    assert bool((found[local.radii > 0] > 0).all())


def test_no_certificate_file_is_written(tmp_path):
    model, shape = networks("dense", 8)
    frozen, x = lc.freeze(model), torch.rand(4, *shape)
    result = lc.certify(frozen, x, method="sdp-crown", steps=5, tries=1)
    with pytest.raises(lc.NotCertified, match="sdp-crown"):
        write_certificate(tmp_path, prove(frozen, shape), frozen, x, result)
    assert not list(tmp_path.iterdir())


def test_what_is_known_of_a_layer_holds_at_the_farthest_points_of_the_ball():
    """Along the first singular vector and along each row, where a first layer moves most."""
    model, _ = networks("dense", 3)
    model.double()
    weight = model[0].weight.detach()
    x, radius = rand(5, 3), torch.tensor([1e-3, 0.1, 1.0, 3.0, 10.0], dtype=torch.float64)
    labels = model(x).argmax(dim=1)
    layers = sdp_crown._Search(prove(model, (3,)), x, labels, "float64", 1).layers(torch.arange(5), radius)
    first = torch.linalg.svd(weight)[2][0]
    for direction in (first, -first, *(weight / weight.norm(dim=1, keepdim=True))):
        points = x + radius[:, None] * direction * (1 - 1e-12)
        moved = (points - x) @ weight.T
        assert bool((points.norm(dim=1) <= layers[0].norm).all())
        assert bool(((layers[1].center + moved).norm(dim=1) <= layers[1].norm).all())
        assert bool((moved.norm(dim=1) <= layers[1].reach).all())
        assert bool((moved.abs() <= layers[1].box).all())
    farthest = radius * torch.linalg.matrix_norm(weight, 2)
    assert bool((layers[1].reach <= farthest * 1.01).all())
