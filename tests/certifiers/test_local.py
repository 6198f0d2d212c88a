"""Local constants: every bound against explicit matrices, every box and radius against points of the ball."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import lipcert as lc
from full import full
from lipcert.certified.freeze import prove
from lipcert.certifiers.local import LocalNetwork, Masked, _distance_to_loss, _squared_gram_bound
from lipcert.errors import NotCertified
from mutants import matrix_of, norm

SVD = 1 + 1e-12  # of the singular values of small float64 matrices
RADII = (0.02, 0.2, 0.7)


def conv(kind, inputs, outputs, kernel, **settings):
    return lambda: kind(inputs, outputs, kernel, **settings)


# A layer and the shape of its input. The convolutions cover strides, borders, one to three axes and even kernels.
LAYERS = {
    "dense": (lambda: nn.Linear(7, 5), (7,)),
    "dense on positions": (lambda: nn.Linear(4, 6), (3, 4)),
    "conv": (conv(nn.Conv2d, 2, 3, 3, padding=1), (2, 4, 5)),
    "conv, no padding": (conv(nn.Conv2d, 2, 3, 3), (2, 5, 4)),
    "conv, wide padding": (conv(nn.Conv2d, 1, 2, 3, padding=2), (1, 4, 4)),
    "conv, even kernel": (conv(nn.Conv2d, 2, 2, (2, 4), padding=(1, 0)), (2, 4, 5)),
    "conv, stride": (conv(nn.Conv2d, 2, 3, 3, stride=2, padding=1), (2, 5, 6)),
    "conv, mixed stride": (conv(nn.Conv2d, 1, 3, (3, 4), stride=(1, 3), padding=1), (1, 4, 7)),
    "conv, stride beyond the kernel": (conv(nn.Conv2d, 2, 3, 2, stride=3), (2, 5, 5)),
    "conv1d": (conv(nn.Conv1d, 3, 2, 4, padding=2), (3, 7)),
    "conv3d": (conv(nn.Conv3d, 1, 2, 2, padding=1), (1, 3, 3, 2)),
    "groups": (conv(nn.Conv2d, 2, 4, 3, padding=1, groups=2), (2, 4, 4)),
    "circular": (conv(nn.Conv2d, 2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    "dilation": (conv(nn.Conv2d, 1, 2, 3, padding=2, dilation=2), (1, 5, 5)),
}
WEIGHTS = {
    "normal": lambda w: torch.randn_like(w),
    "cancelling": lambda w: torch.where(torch.rand_like(w) < 0.5, 1.0, -1.0),  # partial sums exceed the whole ones
    "equal": lambda w: torch.ones_like(w),
    "sparse": lambda w: torch.randn_like(w) * (torch.rand_like(w) < 0.2),
    "tiny": lambda w: torch.randn_like(w) * 1e-90,
    "huge": lambda w: torch.randn_like(w) * 1e30,
    "mixed": lambda w: torch.randn_like(w) * 10.0 ** torch.randint(-8, 8, w.shape),
    "zero": lambda w: torch.zeros_like(w),
}


def masked_layer(make, shape, kind, gram=True):
    layer = make().double()
    with torch.no_grad():
        layer.weight.copy_(WEIGHTS[kind](layer.weight))
    part = prove(lc.freeze(nn.Sequential(layer, nn.Flatten())), shape).parts[0]
    masked = Masked(part, gram=gram)
    return matrix_of(part.step, shape), part.proof.shape, masked


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_masked_norm_is_above_that_of_the_explicit_matrix(name, kind):
    make, shape = LAYERS[name]
    matrix, out, masked = masked_layer(make, shape, kind)
    count = full(200, 6)
    columns, rows = torch.rand(count, *shape) < 0.5, torch.rand(count, *out) < 0.5
    columns[0], rows[0], rows[1], columns[2] = True, True, False, False
    bounds = masked.masked_norm(columns, rows)
    alone = masked.masked_norm(columns, None)
    for bound, wide, column, row in zip(bounds, alone, columns.flatten(1), rows.flatten(1), strict=True):
        part = matrix * row[:, None] * column
        assert norm(part) <= bound * SVD
        assert norm(matrix * column) <= wide * SVD
        assert bound <= masked.norm


@pytest.mark.parametrize("name", ["dense", "conv", "conv, stride", "conv, even kernel", "conv1d", "conv3d"])
def test_the_mask_of_rows_and_that_of_columns_each_gain(name):
    """One kept row has its own norm, up to the mask: a bound that ignored the mask would be that of the matrix."""
    make, shape = LAYERS[name]
    matrix, out, masked = masked_layer(make, shape, "normal", gram=False)
    row = torch.zeros(1, *out, dtype=torch.bool)
    row.view(-1)[row.numel() // 2] = True
    kernel = float(masked.weight.flatten(1).norm(dim=1).max())
    everything = torch.ones(1, *shape, dtype=torch.bool)
    assert float(masked.masked_norm(everything, row)) <= kernel * (1 + 1e-9)
    assert float(masked.masked_norm(everything, row)) < norm(matrix)
    if masked.columns is not None:
        column = torch.zeros(1, *shape, dtype=torch.bool)
        column.view(-1)[column.numel() // 2] = True
        kernel = float(masked.weight.transpose(0, 1).flatten(1).norm(dim=1).max())
        assert float(masked.masked_norm(column, None)) <= kernel * (1 + 1e-9)


@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
def test_the_gram_matrix_of_a_convolution_is_that_of_its_matrix(stride):
    """Where no border drops a tap, |VVᵀ| and |VᵀV| are what the correlations of the kernel say, entry by entry."""
    valid = (conv(nn.Conv2d, 2, 3, (3, 4), stride=stride), (2, 7, 8))
    matrix, out, masked = masked_layer(*valid, "normal")
    stencil = matrix_of(lambda x: masked.rows._multiply(x), out)
    exact = (matrix @ matrix.T).abs()
    assert torch.allclose(stencil, exact, rtol=1e-9, atol=1e-12)
    assert bool((stencil >= exact * (1 - 1e-14)).all())
    whole = (conv(nn.Conv2d, 2, 3, (3, 4), padding=(2, 3)), (2, 4, 5))
    matrix, _, masked = masked_layer(*whole, "normal")
    stencil = matrix_of(lambda x: masked.columns._multiply(x), whole[1])
    assert torch.allclose(stencil, (matrix.T @ matrix).abs(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-140, 1e-30, 1.0, 1e30, 1e140])
def test_squared_gram_matrices_bound_the_norm_tightly(scale):
    weight = torch.randn(9, 14, dtype=torch.float64) * scale
    rows, columns = torch.rand(50, 9) < 0.6, torch.rand(50, 14) < 0.6
    rows[0], columns[1] = False, False
    bounds = _squared_gram_bound(weight, rows, columns)
    for bound, row, column in zip(bounds, rows, columns, strict=True):
        exact = norm(weight * row[:, None] * column)
        assert exact <= bound * SVD
        if 1e-100 < scale < 1e100:
            assert bound <= exact * 1.05


def dense_network(*widths):
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Hardtanh(0.0, 0.4) if len(layers) % 4 else nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


NETWORKS = {
    "dense": (lambda: dense_network(9, 12, 10, 8, 3), (1, 3, 3)),
    "conv": (
        lambda: nn.Sequential(
            nn.ZeroPad2d(1),
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, stride=2, padding=1),
            nn.Hardtanh(0.0, 0.3),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(6, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        ),
        (1, 4, 4),
    ),
    "sorted": (
        lambda: nn.Sequential(
            lc.layers.Normalize((0.5,), (0.4,)),
            nn.Conv2d(1, 4, 3, padding=1),
            lc.layers.MaxMin(),
            nn.Hardtanh(-0.2, 0.5),
            nn.Flatten(),
            nn.Linear(64, 6),
            lc.layers.GroupSort(3),
            nn.Hardtanh(-0.1, 0.1),
            nn.Linear(6, 3),
        ),
        (1, 4, 4),
    ),
    "sorted after a clip": (
        lambda: nn.Sequential(
            nn.Linear(6, 8),
            nn.Hardtanh(-0.1, 0.1),
            lc.layers.MaxMin(),
            nn.Linear(8, 6),
            nn.Hardtanh(-0.1, 0.1),
            lc.layers.GroupSort(3),
            nn.Linear(6, 3),
        ),
        (6,),
    ),
    "other ops": (
        lambda: nn.Sequential(
            nn.Linear(6, 8),
            nn.ReLU(),
            lc.ResidualLinear(8, 4),
            nn.Tanh(),
            nn.Linear(8, 6),
            nn.LeakyReLU(0.2),
            lc.layers.Scale(-0.5),
            nn.Linear(6, 3),
        ),
        (6,),
    ),
    "no head": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU()), (6,)),
}


def network_of(name, seed, scale=1.0):
    torch.manual_seed(seed)
    make, shape = NETWORKS[name]
    network = make().double().eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.weight.normal_().mul_(scale * 1.5 / math.sqrt(module.weight[0].numel()))
                module.bias.normal_().mul_(0.3 * scale)
    return network, shape


def points_near(x, radius):
    steps = torch.randn_like(x)
    sizes = steps.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
    share = torch.rand(len(x)).double().view(sizes.shape) ** 0.1
    return x + steps / sizes * radius * (1 - 1e-9) * share


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_boxes_and_constants_hold_at_every_point_of_the_ball(name, gram):
    for seed in range(full(40, 2)):
        network, shape = network_of(name, seed, scale=(1.0, 1e-3, 30.0)[seed % 3])
        local = LocalNetwork(prove(lc.freeze(network), shape), gram=gram)
        head = network[:-1] if local.proved.headed else network
        x = torch.rand(4, *shape, dtype=torch.float64)
        for radius in RADII:
            states = local.states(x, radius)
            constants = local.constants(x, radius)
            for trial in range(full(20, 4)):
                near = points_near(x, radius)
                values = local.proved.run(near)
                for place, state in states.items():
                    value = near if place < 0 else values[place]
                    room = 1e-13 * (1 + value.abs())  # of the evaluation of this point
                    assert bool(((value >= state.low - room) & (value <= state.high + room)).all())
                    still = ~state.moving
                    assert torch.allclose(value[still], state.value[still], rtol=1e-12, atol=1e-14)
                if trial:
                    continue
                for index in range(len(x)):
                    jacobian = torch.func.jacrev(lambda z, head=head: head(z[None])[0])(near[index])
                    size = norm(jacobian.detach().reshape(-1, near[index].numel()))
                    assert size <= constants[index] * SVD


@pytest.mark.parametrize("name", NETWORKS)
def test_radii_are_never_below_the_global_ones_and_often_above(name):
    gained = 0
    for seed in range(full(10, 2)):
        network, shape = network_of(name, seed)
        x = torch.rand(16, *shape, dtype=torch.float64)
        wide = lc.certify(network, x)
        local = lc.certify(network, x, method="local", eps=(0.003, 0.01, 0.03, 0.1))
        assert local.method == "local"
        assert bool((local.radii >= wide.radii).all())
        assert torch.equal(local.predictions, wide.predictions)
        gained += int((local.radii > wide.radii * 1.01).sum())
    assert gained


@pytest.mark.parametrize("name", NETWORKS)
def test_no_point_within_a_radius_changes_the_answer(name):
    for seed in range(full(20, 2)):
        network, shape = network_of(name, seed)
        x = torch.rand(8, *shape, dtype=torch.float64)
        result = lc.certify(network, x, method="local", eps=(0.01, 0.05, 0.2, 0.6), gram=bool(seed % 2))
        frozen = lc.freeze(network)
        best = x.clone()
        for _ in range(full(60, 15)):  # ascend the smallest margin inside the ball
            best.requires_grad_(True)
            logits = frozen(best)
            own = logits.gather(1, result.predictions[:, None])
            rest = logits.scatter(1, result.predictions[:, None], -math.inf).amax(dim=1, keepdim=True)
            (gradient,) = torch.autograd.grad((own - rest).sum(), best)
            sizes = gradient.flatten(1).norm(dim=1).clamp_min(1e-300).view(-1, *[1] * len(shape))
            with torch.no_grad():
                moved = best - gradient / sizes * result.radii.view(sizes.shape) / 4 - x
                length = moved.flatten(1).norm(dim=1).clamp_min(1e-300).view(sizes.shape)
                best = x + moved * (result.radii.view(sizes.shape) * (1 - 1e-12) / length).clamp_max(1.0)
            answers = frozen(best).argmax(dim=1)
            safe = result.radii > 0
            assert torch.equal(answers[safe], result.predictions[safe])


def test_the_answer_holds_in_exact_arithmetic():
    """Evaluated in rationals at points inside the radius, the predicted class stays strictly largest."""
    torch.manual_seed(0)
    decided = 0
    for seed in range(full(120, 4)):
        network, _ = network_of("dense", seed, scale=(1.0, 1e-2, 10.0)[seed % 3])
        x = torch.rand(3, 1, 3, 3, dtype=torch.float64)
        result = lc.certify(network, x, method="local", eps=(0.02, 0.1, 0.4))
        for index in range(len(x)):
            radius = Fraction(float(result.radii[index]))
            if not radius:
                continue
            for point in points_near(x[index].expand(full(30, 3), 1, 3, 3), float(radius)):
                pairs = zip(point.flatten().tolist(), x[index].flatten().tolist(), strict=True)
                step = [Fraction(a) - Fraction(b) for a, b in pairs]
                if sum(value * value for value in step) > radius * radius:
                    continue
                decided += 1
                logits = exact(network, [Fraction(float(value)) for value in point.view(-1)])
                answer = int(result.predictions[index])
                assert all(logits[answer] > logits[j] for j in range(3) if j != answer)
    assert decided


def exact(network, values):
    """The network in rational arithmetic."""
    for module in network:
        if isinstance(module, nn.Linear):
            weight = [[Fraction(float(w)) for w in row] for row in module.weight.tolist()]
            bias = [Fraction(float(b)) for b in module.bias.tolist()]
            sums = [sum(w * v for w, v in zip(row, values, strict=True)) for row in weight]
            values = [total + b for total, b in zip(sums, bias, strict=True)]
        elif isinstance(module, (nn.ReLU, nn.Hardtanh)):
            high = Fraction(float(module.max_val)) if isinstance(module, nn.Hardtanh) else None
            values = [max(value, Fraction(0)) for value in values]
            values = values if high is None else [min(value, high) for value in values]
    return values


def test_boxes_reach_as_far_as_coordinates_can():
    """With W = 3I a coordinate moves by 3ε, and both boxes must contain the two ends."""
    layer = nn.Linear(4, 4).double()
    with torch.no_grad():
        layer.weight.copy_(3 * torch.eye(4))
        layer.bias.copy_(torch.tensor([0.0, 1.0, -2.0, 7.0]))
    network = nn.Sequential(layer, nn.Hardtanh(-1e9, 1e9), nn.Linear(4, 3).double())
    local = LocalNetwork(prove(lc.freeze(network), (4,)))
    x = torch.randn(1, 4, dtype=torch.float64)
    states = local.states(x, 0.25)
    for place in (-1, 0, 1):
        for axis in range(4):
            for side in (-0.25, 0.25):
                point = x + side * torch.eye(4, dtype=torch.float64)[axis]
                value = point if place < 0 else local.proved.run(point)[place]
                assert bool(((states[place].low <= value) & (value <= states[place].high)).all())


LAYERS_ON_BOXES = {
    **LAYERS,
    "circular, kernel beyond the image": (
        conv(nn.Conv2d, 2, 3, (5, 3), padding=(2, 1), padding_mode="circular"),
        (2, 2, 1),
    ),
    "circular, dilation": (
        conv(nn.Conv1d, 1, 2, 3, padding=2, dilation=2, padding_mode="circular"),
        (1, 4),
    ),
}


@pytest.mark.parametrize("kind", ["normal", "equal"])
@pytest.mark.parametrize("name", LAYERS_ON_BOXES)
def test_every_entry_of_a_layer_reaches_the_end_of_its_box(name, kind):
    """Entry i moves by ε‖w_i‖ in the direction of w_i, the row of the explicit matrix."""
    torch.manual_seed(0)
    make, shape = LAYERS_ON_BOXES[name]
    layer = make().double()
    with torch.no_grad():
        layer.weight.copy_(WEIGHTS[kind](layer.weight))
    local = LocalNetwork(prove(nn.Sequential(layer, nn.Flatten()), shape))
    x = torch.randn(1, *shape, dtype=torch.float64)
    state, epsilon = local.states(x, 0.25)[0], 0.25 * (1 - 1e-9)
    reach = epsilon * matrix_of(layer, shape).norm(dim=1).view(state.value.shape)
    assert bool((state.low <= state.value - reach).all())
    assert bool((state.high >= state.value + reach).all())


def test_a_pixel_that_a_circular_window_meets_twice_counts_twice():
    """The only pixel has weight 3, not √3: relu(3x − 2) is not 0 everywhere for |x| ≤ 1."""
    layer = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular").double()
    head = nn.Linear(1, 2).double()
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(-2.0)
        head.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        head.bias.copy_(torch.tensor([0.01, -0.01]))
    network = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), head)
    radius = lc.certify(network, torch.zeros(1, 1, 1).double(), method="local", eps=(0.5, 1.0)).radii
    assert 0.5 <= float(radius) <= 0.67


@pytest.mark.parametrize("size", [1e-170, 1e-200, 2.0**-600])
def test_squares_that_underflow_do_not_make_a_norm_zero(size):
    layer = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(size * torch.eye(2, dtype=torch.float64))
    x = torch.tensor([[0.1, 0.0]], dtype=torch.float64)
    network = nn.Sequential(layer, nn.ReLU())
    assert float(lc.certify(network, x, method="local", eps=(1.0,), gram=True).radii) <= 0.1 / math.sqrt(2)
    everything = torch.ones(1, 2, dtype=torch.bool)
    assert float(_squared_gram_bound(layer.weight.detach(), everything, everything)) >= size
    assert float(_squared_gram_bound(layer.weight.detach(), everything, ~everything)) == 0


@pytest.mark.parametrize("method", ["lipschitz", "local"])
def test_a_subnormal_radius_is_not_rounded_up(method):
    """ReLU rounds nothing, so a margin of few units of 2⁻¹⁰⁷⁴ is certified: the radius is at most margin/√2."""
    for units in range(1, 40):
        x = torch.tensor([[0.0, units * 2.0**-1074]], dtype=torch.float64)
        radius = Fraction(float(lc.certify(nn.Sequential(nn.ReLU()), x, method=method).radii))
        assert 2 * radius**2 <= (units * Fraction(1, 2**1074)) ** 2


def test_the_radius_of_a_linear_classifier_is_its_distance_rounded_down():
    """Decided in rationals: r·‖w_y − w_j‖ is at most the margin, also where the logits cancel large numbers."""
    for seed in range(full(300, 12)):
        torch.manual_seed(seed)
        offset = (0.0, 1e6, 1e12)[seed % 3]
        head = nn.Linear(3, 3).double()
        with torch.no_grad():
            head.bias.fill_(-offset)
            head.weight[:, 0] = offset
        x = torch.randn(1, 3, dtype=torch.float64)
        x[:, 0] = 1.0 + x[:, 0] * 1e-9
        result = lc.certify(head, x, method="local", eps=(0.01, 0.1, 1.0))
        weight, radius = head.weight.tolist(), Fraction(float(result.radii))
        logits = exact(nn.Sequential(head), [Fraction(value) for value in x[0].tolist()])
        answer = int(result.predictions)
        for rival in {0, 1, 2} - {answer}:
            gap = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(weight[answer], weight[rival], strict=True))
            margin = logits[answer] - logits[rival]
            assert radius == 0 or (margin > 0 and radius**2 * gap <= margin**2)
        if not offset:
            assert radius > 0


def test_bad_input_gets_one_sentence():
    network, shape = network_of("dense", 0)
    x = torch.rand(2, *shape)
    for eps in ((), (0.0,), (-1.0,), (math.nan,), (math.inf,)):
        with pytest.raises(ValueError, match="eps"):
            lc.certify(network, x, method="local", eps=eps)
    with pytest.raises(ValueError, match="eps"):
        lc.certify(network, x, method="local", eps=0.5)
    with pytest.raises(ValueError, match="images must be a tensor"):
        lc.certify(network, x.numpy(), method="local")
    with pytest.raises(ValueError, match="method must be one of"):
        lc.certify(network, x, method="locla")
    with pytest.raises(NotCertified, match="two or more"):
        lc.certify(nn.Sequential(nn.Linear(3, 1)), torch.rand(2, 3), method="local")


def test_infinite_inputs_and_wrong_answers_have_no_radius():
    network, shape = network_of("dense", 0)
    x = torch.rand(3, *shape, dtype=torch.float64)
    x[0, 0, 0, 0], x[1, 0, 0, 0] = math.inf, math.nan
    labels = lc.certify(network, x).predictions
    assert lc.certify(network, x, labels, method="local").radii[:2].tolist() == [0.0, 0.0]
    wrong = (labels + 1) % 3
    assert lc.certify(network, x, wrong, method="local").radii.tolist() == [0.0] * 3


def hostile_numbers(count, seed):
    """Zeros, ties, powers of two far apart and ordinary numbers, as floats that are exact rationals."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0.0, 1.0, 0.5, 1.0, 3.0, 2.0**-30, 2.0**20, 1e-3])
    chosen = sizes[torch.randint(len(sizes), (count,), generator=generator)].double()
    return chosen * torch.where(
        torch.rand(count, generator=generator) < 0.5, 1.0, torch.rand(count, generator=generator)
    )


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_no_smaller_step_loses_the_margin(entries):
    """Decided in rationals. Entry i loses size·e for a step e + wait, so steps of every kind are tried.

    At the distance r that is claimed, no choice of steps with Σ step² < (constant·r)² may lose the margin.
    """
    count = full(4000, 400)
    size, wait, most = (hostile_numbers(count * entries, 10 * entries + k).view(count, entries) for k in range(3))
    most[torch.arange(count) % 7 == 0] = 2.0**40  # no box at all
    margin = hostile_numbers(count, 10 * entries + 3).clamp_min(2.0**-40)
    constant = hostile_numbers(count, 10 * entries + 4).clamp_min(2.0**-20)
    claimed = _distance_to_loss(size, wait, most, margin, constant)
    assert bool((claimed >= 0).all())
    checked = 0
    for index in range(count):
        rows = [[Fraction(float(value)) for value in tensor[index]] for tensor in (size, wait, most)]
        needed, limit = Fraction(float(margin[index])), claimed[index]
        if not 0 < float(limit) < math.inf:
            continue
        reach = (Fraction(float(limit)) * Fraction(float(constant[index]))) ** 2
        squares = cheapest_loss(*rows, needed)
        if squares is not None:
            checked += 1
            assert reach <= squares, (rows, needed)
    assert checked > count / 4


def cheapest_loss(size, wait, most, margin):
    """The least Σ step² that loses the margin, as an exact rational, or None if nothing loses it.

    For each set of entries that are at their end and each set of those inside, minimize Σ (e + wait)² subject to
    Σ size·e = what is left: the multiplier is linear in it. All others stay. The least feasible one is the minimum.
    """
    best = None
    for kinds in itertools.product(("stays", "inside", "end"), repeat=len(size)):
        left = margin - sum(s * m for s, m, kind in zip(size, most, kinds, strict=True) if kind == "end")
        total = sum((m + w) ** 2 for m, w, kind in zip(most, wait, kinds, strict=True) if kind == "end")
        inside = [(s, w, m) for s, w, m, kind in zip(size, wait, most, kinds, strict=True) if kind == "inside"]
        weight = sum(s * s for s, _, _ in inside)
        if weight:
            # step = μ·size with Σ size·(μ·size − wait) = left.
            ratio = (left + sum(s * w for s, w, _ in inside)) / weight
            if any(not 0 <= ratio * s - w <= m for s, w, m in inside):
                continue
            total += ratio**2 * weight
        elif left > 0 or inside:
            continue
        best = total if best is None else min(best, total)
    return best


def test_the_box_and_the_wait_certify_more_than_the_constant():
    """relu(z) with z = x, and logits (1 − a, 0): at x = −0.25 the input must move by 1.25, not by 1."""
    first, head = nn.Linear(1, 1).double(), nn.Linear(1, 2).double()
    with torch.no_grad():
        first.weight.fill_(1.0)
        first.bias.zero_()
        head.weight.copy_(torch.tensor([[-1.0], [0.0]]))
        head.bias.copy_(torch.tensor([1.0, 0.0]))
    network, x = nn.Sequential(first, nn.ReLU(), head), torch.tensor([[-0.25]], dtype=torch.float64)
    assert float(lc.certify(network, x).radii) == pytest.approx(1.0)
    assert 1.2499 < float(lc.certify(network, x, method="local", eps=(2.0,)).radii) <= 1.25
    # A clip at 0.9 keeps the loss below the margin: all of the ball is certified.
    clipped = nn.Sequential(first, nn.Hardtanh(0.0, 0.9), head)
    assert float(lc.certify(clipped, x, method="local", eps=(2.0,)).radii) >= 2.0


@pytest.mark.parametrize("name", NETWORKS)
def test_leaving_out_balls_changes_no_answer(name):
    """Only images certified at every smaller ε are examined, and the same images are certified at each ε.

    λ and q are found by iterations that stop early, so a radius between two ε may differ a little.
    """
    eps = (0.003, 0.03, 0.1, 0.4)
    for seed in range(full(10, 2)):
        network, shape = network_of(name, seed)
        x = torch.rand(16, *shape, dtype=torch.float64)
        result = lc.certify(network, x, method="local", eps=eps)
        proved = prove(lc.freeze(network), shape)
        local, best = LocalNetwork(proved), lc.certify(proved, x).radii
        for radius in eps:
            best = torch.maximum(best, local.radii(x, result.labels, math.nextafter(radius, math.inf)))
        assert torch.allclose(result.radii, best, rtol=1e-3, atol=0)
        for radius in eps:
            assert torch.equal(result.radii >= radius, best >= radius)
