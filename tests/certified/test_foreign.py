"""Networks that others made: what torch.nn offers in odd shapes, deel-torchlip's export and orthogonium's layers.

Beside every constant that ``audit`` proves stands the norm of an explicit matrix, of a Jacobian, or two points.
The two libraries are the extra ``foreign``; without it their tests are skipped, and the others run.
"""

import copy
import itertools
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import lipcert as lc
from lipcert.certified import ops
from lipcert.certified.freeze import prove

ROUNDING = 1e-12  # singular values in float64, of matrices with fewer than a thousand rows


def matrix_of(module, shape):
    """The matrix of an affine module, by unit impulses."""
    wide, size = copy.deepcopy(module).double().eval(), math.prod(shape)
    with torch.no_grad():
        start = wide(torch.zeros(1, *shape, dtype=torch.float64))
        return (wide(torch.eye(size, dtype=torch.float64).view(size, *shape)) - start).reshape(size, -1).T


def norm_of(module, shape):
    return float(torch.linalg.matrix_norm(matrix_of(module, shape), 2))


def jacobians(module, shape, count=3):
    """The largest norm of a Jacobian at random points."""
    wide = copy.deepcopy(module).double().eval()
    flat = lambda v: wide(v.view(1, *shape)).flatten()  # noqa: E731
    points = [torch.randn(math.prod(shape), dtype=torch.float64) for _ in range(count)]
    return max(float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(flat, x), 2)) for x in points)


def audited(module, shape):
    report = lc.audit(module, shape)
    assert report.ok
    assert all(layer.lower <= layer.upper for layer in report.layers)
    assert report.lower <= report.lipschitz
    return report


# --- torch.nn: every module with a rule ---


def shaped(channels, size, **options):
    """(module, shape, whether the proved constant is near the true one of this image)."""
    return nn.Conv2d(*channels, **options), (channels[0], *size)


CONVOLUTIONS = {  # image sides well above the kernel, so that the image's own norm is near that of the plane
    "plain": shaped((2, 3), (9, 9), kernel_size=3),
    "padded": shaped((3, 2), (9, 8), kernel_size=3, padding=1),
    "too much padding": shaped((2, 3), (8, 9), kernel_size=3, padding=(4, 3)),
    "even kernel, dilated, same": shaped((2, 3), (16, 12), kernel_size=(4, 2), dilation=2, padding="same"),
    "dilated, same": shaped((2, 3), (11, 9), kernel_size=3, dilation=(2, 1), padding="same"),
    "valid": shaped((2, 3), (9, 9), kernel_size=3, padding="valid"),
    "strided": shaped((2, 5), (11, 9), kernel_size=3, stride=2, padding=1),
    "stride beyond the kernel": shaped((2, 3), (13, 13), kernel_size=2, stride=3),
    "stride per axis": shaped((2, 3), (9, 12), kernel_size=(3, 2), stride=(1, 3), padding=(1, 0)),
    "stride and dilation share a factor": shaped((2, 3), (15, 15), kernel_size=3, stride=2, dilation=2),
    "stride and dilation do not": shaped((2, 3), (17, 17), kernel_size=2, stride=2, dilation=3),
    "stride 4, dilation 6": shaped((1, 2), (21, 21), kernel_size=2, stride=4, dilation=6, padding=2),
    "grouped": shaped((6, 4), (8, 8), kernel_size=3, groups=2, padding=1),
    "depthwise, strided": shaped((4, 8), (9, 9), kernel_size=3, groups=4, stride=2),
    "circular": shaped((2, 3), (8, 7), kernel_size=3, padding=1, padding_mode="circular"),
    "circular, same": shaped((2, 3), (8, 7), kernel_size=(3, 5), padding="same", padding_mode="circular"),
    "circular, a stride that divides": shaped(
        (2, 3), (8, 9), kernel_size=3, stride=(2, 3), padding=1, padding_mode="circular"
    ),
    "circular, little padding": shaped((2, 3), (16, 16), kernel_size=5, padding=1, padding_mode="circular"),
    "1 × 1": shaped((5, 4), (3, 3), kernel_size=1),
    "1 × 1, strided": shaped((5, 4), (6, 6), kernel_size=1, stride=2),
    "one row": shaped((2, 3), (1, 16), kernel_size=(1, 4), padding=(0, 2)),
    "Conv1d": (nn.Conv1d(2, 3, 4, stride=3, padding=2, dilation=2), (2, 29)),
    "Conv1d, same": (nn.Conv1d(2, 3, 5, padding="same"), (2, 17)),
    "Conv1d, circular": (nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), (2, 17)),
    "Conv1d, grouped": (nn.Conv1d(4, 6, 3, groups=2), (4, 16)),
    "transposed": (nn.ConvTranspose2d(3, 2, 3), (3, 8, 8)),
    "transposed, strided": (nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1), (3, 7, 7)),
    "transposed, output padding": (nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1), (3, 7, 7)),
    "transposed, dilated and grouped": (nn.ConvTranspose2d(4, 6, 2, stride=2, dilation=2, groups=2), (4, 8, 8)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("kind", ["as it comes", "positive", "one channel matters"])
def test_convolutions_in_every_geometry(name, kind):
    module, shape = copy.deepcopy(CONVOLUTIONS[name][0]), CONVOLUTIONS[name][1]
    module.weight.data = torch.randn(module.weight.shape)
    if kind == "positive":
        module.weight.data.abs_()
    elif kind == "one channel matters":
        module.weight.data[1:] *= 1e-6
    upper, true = audited(module, shape).lipschitz, norm_of(module, shape)
    assert true * (1 - ROUNDING) <= upper <= 1.25 * true


def changed(module, **attributes):
    """A module whose attributes no longer say what its forward does."""
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def whole_numbers():
    layer = nn.Linear(1, 1, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[2**24 + 1]]), requires_grad=False)
    return layer


REFUSED = {
    "another padding than it runs with": (
        changed(nn.Conv2d(1, 1, 3, padding=2, padding_mode="circular"), padding=(1, 1)), (1, 4, 4)
    ),
    "another padding in one dimension": (
        changed(nn.Conv1d(1, 1, 3, padding=2, padding_mode="circular"), padding=(1,)), (1, 4)
    ),
    "whole numbers": (whole_numbers(), (1,)),
    "reflect": shaped((2, 3), (8, 8), kernel_size=3, padding=1, padding_mode="reflect"),
    "replicate": shaped((2, 3), (8, 8), kernel_size=3, padding=1, padding_mode="replicate"),
    "circular, even, same": shaped((2, 3), (8, 8), kernel_size=2, padding="same", padding_mode="circular"),
    "circular, outputs repeat": shaped((2, 3), (8, 8), kernel_size=3, padding=2, padding_mode="circular"),
    "dropout, training": (nn.Dropout(), (4,)),
    "batch norm, training": (nn.BatchNorm2d(3), (3, 4, 4)),
    "batch norm without statistics": (nn.BatchNorm2d(3, track_running_stats=False).eval(), (3, 4, 4)),
    "layer norm": (nn.LayerNorm(4), (4,)),
    "softmax over the batch": (nn.Softmax(dim=0), (4,)),
    "GELU by tanh": (nn.GELU(approximate="tanh"), (4,)),
    "softplus that jumps": (nn.Softplus(threshold=3), (4,)),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 4, 4)),
    "old weight norm": (torch.nn.utils.spectral_norm(nn.Linear(4, 4)).eval(), (4,)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_proof_is_refused(name):
    module, shape = REFUSED[name]
    with pytest.raises(lc.NotCertified):
        lc.audit(nn.Sequential(module), shape)


@pytest.mark.parametrize(
    "module",
    [
        changed(nn.Conv2d(1, 1, (1, 4)), kernel_size=(2, 2)),
        changed(nn.Conv2d(1, 1, 3, padding=1), padding=(2, 0)),
        changed(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), padding=(3, 3)),
        changed(nn.Conv2d(1, 1, 3, padding="same"), dilation=(2, 2)),
    ],
    ids=str,
)
def test_a_module_is_what_it_runs_not_what_it_says(module):
    x = torch.randn(3, 1, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        expected = copy.deepcopy(module).double()(x)
    assert torch.allclose(prove(module, (1, 6, 6)).run(x)[-1], expected, rtol=1e-12, atol=1e-12)
    upper, true = audited(module, (1, 6, 6)).lipschitz, norm_of(module, (1, 6, 6))
    assert true * (1 - ROUNDING) <= upper <= 2 * true  # the bound is that of the plane, the image is 6×6


def test_an_op_of_whole_numbers_cannot_be_built():
    with pytest.raises(lc.NotCertified, match="floating-point"):
        ops.Linear(torch.tensor([[2**24 + 1]]), None)


AVERAGES = [
    (dict(zip(("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"), values, strict=True)))
    for values in itertools.product((2, 3, (2, 3)), (1, 2, 3), (0, 1), (False, True), (False, True))
]


@pytest.mark.parametrize("options", AVERAGES, ids=str)
def test_average_pools(options):
    for more in ({}, {"divisor_override": 3}):
        module = nn.AvgPool2d(**options, **more)
        assert audited(module, (1, 7, 6)).lipschitz >= norm_of(module, (1, 7, 6)) * (1 - ROUNDING)
    if isinstance(options["kernel_size"], int):
        module = nn.AvgPool1d(**options)
        assert audited(module, (2, 7)).lipschitz >= norm_of(module, (2, 7)) * (1 - ROUNDING)


@pytest.mark.parametrize(
    "options", list(itertools.product((2, 3, (3, 1)), (1, 2, 3), (1, 2), (False, True))), ids=str
)
def test_max_pools_by_two_points(options):
    """One pixel rises from a plateau: every window that holds it follows."""
    kernel, stride, dilation, ceil = options
    module = nn.MaxPool2d(kernel, stride, dilation=dilation, ceil_mode=ceil)
    upper, found = audited(module, (1, 9, 9)).lipschitz, 0.0
    for row, column in itertools.product(range(9), repeat=2):
        x = torch.zeros(1, 1, 9, 9)
        x[0, 0, row, column] = 1.0
        found = max(found, float(module(x).norm()))
    assert found * (1 - ROUNDING) <= upper <= found * (1 + 1e-6)  # and it is attained


OTHERS = {
    "linear": (nn.Linear(7, 5), (7,)),
    "linear on rows": (nn.Linear(4, 5), (3, 4)),
    "batch norm": (nn.BatchNorm2d(3).eval(), (3, 4, 4)),
    "batch norm, plain": (nn.BatchNorm1d(4, affine=False).eval(), (4,)),
    "normalize": (lc.layers.Normalize([0.1, 0.2], [0.5, 0.3]), (2, 3, 3)),
    "centre": (lc.layers.Center([0.1, 0.2]), (2, 3, 3)),
    "scaled average": (lc.layers.ScaledAvgPool2d((2, 3)), (2, 4, 6)),
    "flatten": (nn.Flatten(2), (2, 3, 4)),
    "unflatten": (nn.Unflatten(1, (2, 3)), (6, 2)),
    "space to depth": (lc.layers.SpaceToDepth(2), (2, 4, 4)),
    "pad channels": (lc.layers.PadChannels(5), (2, 3, 3)),
    "dropout": (nn.Dropout().eval(), (4,)),
    "identity": (nn.Identity(), (4,)),
}
CURVES = {
    "relu": nn.ReLU(),
    "leaky": nn.LeakyReLU(0.2),
    "steep leaky": nn.LeakyReLU(-1.7),
    "elu": nn.ELU(),
    "steep elu": nn.ELU(1.8),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "max min": lc.layers.MaxMin(),
    "group sort": lc.layers.GroupSort(3),
    "abs": lc.layers.Abs(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_affine_modules(name):
    module, shape = OTHERS[name]
    module = copy.deepcopy(module)
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
        module.running_var.uniform_(0.05, 4.0)
        module.running_mean.normal_()
        if module.affine:
            nn.init.normal_(module.weight)
    upper, true = audited(module, shape).lipschitz, norm_of(module, shape)
    assert true * (1 - ROUNDING) <= upper <= true * (1 + 1e-6)


@pytest.mark.parametrize("name", CURVES)
def test_activations(name):
    upper = audited(CURVES[name], (6,)).lipschitz
    assert jacobians(CURVES[name], (6,), 8) * (1 - ROUNDING) <= upper
    x = torch.linspace(-4, 4, 2001, dtype=torch.float64)[:, None].expand(-1, 6)  # slopes, finely
    moved = (CURVES[name](x[1:]) - CURVES[name](x[:-1])).norm(dim=1) / (x[1:] - x[:-1]).norm(dim=1)
    assert float(moved.max()) * (1 - 1e-9) <= upper


def test_a_plain_network_end_to_end():
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 8)),
        nn.Tanh(),
        nn.Sequential(nn.Dropout(), nn.Linear(8, 3)),
    ).eval()
    report = audited(network, (1, 8, 8))
    assert jacobians(network, (1, 8, 8), 8) <= report.lipschitz
    x = torch.rand(6, 1, 8, 8)
    parametrize.remove_parametrizations(network[5], "weight")  # one set of numbers, in float32 and in float64
    with torch.no_grad():
        labels = copy.deepcopy(network).double()(x.double()).argmax(dim=1)
    result = lc.certify(network, x, labels)
    assert bool((result.radii > 0).all())


def test_a_parametrized_module_is_read_and_left_as_it_was():
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval()
    kept, x = copy.deepcopy(layer.state_dict()), torch.rand(2, 4)
    before = layer(x)
    upper, true = audited(layer, (4,)).lipschitz, norm_of(layer, (4,))
    assert true * (1 - ROUNDING) <= upper <= true * (1 + 1e-6)
    assert torch.equal(layer(x), before)  # its class too: a copy shares it
    assert all(torch.equal(kept[key], value) for key, value in layer.state_dict().items())
    with pytest.raises(lc.NotCertified, match="eval"):
        lc.audit(layer.train(), (4,))


# --- deel-torchlip ---


@pytest.fixture
def torchlip():
    return pytest.importorskip("deel.torchlip")


def torchlip_network(tl, *activations):
    with warnings.catch_warnings():  # of ReLU, "not a Lipschitz layer" by its own list of names
        warnings.simplefilter("ignore")
        network = tl.Sequential(
            tl.SpectralConv2d(1, 4, 3, padding=1),
            activations[0],
            nn.Flatten(),
            tl.SpectralLinear(256, 16),
            activations[1],
            tl.FrobeniusLinear(16, 3),
        )
        network(torch.rand(2, 1, 8, 8))
        return network.eval()


def test_a_vanilla_export_is_audited(torchlip):
    network = torchlip_network(torchlip, nn.ReLU(), nn.ReLU())
    plain = network.vanilla_export()
    x = torch.rand(4, 1, 8, 8)
    assert torch.allclose(plain(x), network(x))
    report = audited(plain, (1, 8, 8))
    assert [layer.verdict for layer in report.layers] == ["PROVED"] * 6
    for layer, part in ((report.layers[0], plain[0]), (report.layers[3], plain[3])):
        true = norm_of(part, (1, 8, 8) if isinstance(part, nn.Conv2d) else (256,))
        assert true * (1 - ROUNDING) <= layer.upper <= 1.25 * true
    assert jacobians(plain, (1, 8, 8)) <= report.lipschitz * (1 + ROUNDING)
    with torch.no_grad():
        labels = copy.deepcopy(plain).double()(x.double()).argmax(dim=1)
    assert bool((lc.certify(plain, x, labels).radii > 0).all())


def test_what_it_says_of_itself_is_not_believed(torchlip):
    """Its layers claim 1. After a step of training with few iterations the stored weights have what they have."""
    layer = torchlip.SpectralLinear(32, 32)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(8, 32)).square().sum().neg().backward()
        optimizer.step()
    plain = layer.eval().vanilla_export()
    true = norm_of(plain, (32,))
    upper = audited(plain, (32,)).lipschitz
    assert true * (1 - ROUNDING) <= upper <= true * (1 + 1e-6)


def test_its_containers_and_activations_are_refused_until_somebody_vouches(torchlip, monkeypatch):
    network = torchlip_network(torchlip, torchlip.GroupSort2(), torchlip.GroupSort2())
    with pytest.raises(lc.NotCertified, match="Sequential"):
        lc.audit(network, (1, 8, 8))
    plain = network.vanilla_export()
    with pytest.raises(lc.NotCertified, match="GroupSort2"):
        lc.audit(plain, (1, 8, 8))
    monkeypatch.setattr("lipcert.certified.freeze._RULES", {})
    lc.register_rule(torchlip.GroupSort2, lambda module: module._coefficient_lip)
    report = lc.audit(plain, (1, 8, 8))
    assert report.ok
    assert [layer.verdict for layer in report.layers if "GroupSort2" in layer.op] == ["ASSUMED"] * 2
    assert jacobians(plain, (1, 8, 8)) <= report.lipschitz * (1 + ROUNDING)


# --- orthogonium: its weights come from power iterations that go on in evaluation mode ---


@pytest.fixture
def ortho():
    return pytest.importorskip("orthogonium.layers")


def stored(layer):
    """The layer with the weights of this moment, of its own class and no parametrization."""
    made = copy.deepcopy(layer).eval()
    for name in list(made.parametrizations):
        parametrize.remove_parametrizations(made, name, leave_parametrized=True)
    return made


ORTHOGONAL = {  # kernel, stride, padding, groups
    "3 × 3": (3, 1, "same", 1),
    "3 × 3, groups": (3, 1, "same", 2),
    "2 × 2, stride 2": (2, 2, 0, 1),
}


@pytest.mark.parametrize("name", ORTHOGONAL)
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_orthogonal_convolutions(ortho, name, mode):
    kernel, stride, padding, groups = ORTHOGONAL[name]
    options = {"stride": stride, "padding": padding, "groups": groups, "padding_mode": mode}
    layer = stored(ortho.AdaptiveOrthoConv2d(4, 8, kernel, **options))
    assert type(layer) is not nn.Conv2d
    upper, true = audited(nn.Sequential(layer), (4, 8, 8)).lipschitz, norm_of(layer, (4, 8, 8))
    assert true * (1 - ROUNDING) <= upper <= 1.25 * true
    assert upper <= 1.02  # the layer does what it says, to the grid's accuracy


def test_orthogonal_linear_and_transposed(ortho):
    for layer, shape in (
        (ortho.OrthoLinear(8, 5), (8,)),
        (ortho.UnitNormLinear(8, 5), (8,)),
        (ortho.AdaptiveOrthoConvTranspose2d(8, 4, 2, stride=2), (8, 4, 4)),
    ):
        plain = stored(layer)
        upper, true = audited(plain, shape).lipschitz, norm_of(plain, shape)
        assert true * (1 - ROUNDING) <= upper <= true * (1 + 1e-4)


def test_a_weight_that_moves_between_calls_is_refused(ortho):
    layer = ortho.AdaptiveOrthoConv2d(4, 8, 3).eval()
    assert not torch.equal(layer.weight, layer.weight)
    with pytest.raises(lc.NotCertified, match="remove_parametrizations"):
        lc.audit(layer, (4, 8, 8))


def test_a_weight_that_is_computed_by_a_property_is_refused_and_a_copy_of_it_is_not(ortho):
    layer = ortho.AdaptiveOrthoConv2d(4, 8, 4, stride=2, padding=1, padding_mode="zeros").eval()
    with pytest.raises(lc.NotCertified, match="BcopRkoConv2d"):
        lc.audit(layer, (4, 8, 8))
    plain = nn.Conv2d(4, 8, 4, stride=2, padding=1)
    plain.weight.data, plain.bias.data = layer.weight.detach().clone(), layer.bias.detach().clone()
    x = torch.rand(2, 4, 8, 8)
    assert torch.allclose(plain(x), layer(x), atol=1e-5)
    upper, true = audited(plain, (4, 8, 8)).lipschitz, norm_of(plain, (4, 8, 8))
    assert true * (1 - ROUNDING) <= upper <= 1.25 * true


def test_its_activations_are_refused_until_somebody_vouches(ortho, monkeypatch):
    with pytest.raises(lc.NotCertified, match="MaxMin"):
        lc.audit(nn.Sequential(ortho.MaxMin()), (8,))
    monkeypatch.setattr("lipcert.certified.freeze._RULES", {})
    lc.register_rule(ortho.MaxMin, lambda module: 1.0)
    assert lc.audit(nn.Sequential(ortho.MaxMin()), (8,)).layers[0].verdict == "ASSUMED"
