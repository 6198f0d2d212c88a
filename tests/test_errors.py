"""Bad input gets what was expected, what came, and what to do: one message, the right type."""

import copy

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.activations import slope_restricted
from lipcert.algebra.orthogonal import exponential_series, orthonormal
from lipcert.certified.radius import certified_radii
from lipcert.data.registry import load_data

SIZES = [
    lambda v: lc.ResidualLinear(v, 3),
    lambda v: lc.ResidualLinear(3, v),
    lambda v: lc.AffineLinear(v, 3),
    lambda v: lc.AffineLinear(3, v),
    lambda v: lc.OrthogonalLinear(v, 3),
    lambda v: lc.GeneralLinear(3, v, 2),
    lambda v: lc.GeneralLinear(3, 2, v),
    lambda v: lc.ResidualConv2d(v, 3),
    lambda v: lc.ResidualConv2d(3, v),
    lambda v: lc.ResidualConv2d(3, 3, v),
    lambda v: lc.ResidualConv2d(3, 3, 3, stride=v),
    lambda v: lc.AffineConv2d(v, 3, 3),
    lambda v: lc.AffineConv2d(3, v, 3),
    lambda v: lc.AffineConv2d(3, 3, v),
    lambda v: lc.AffineConv2d(3, 3, 3, stride=v),
    lambda v: lc.AffineConv2d(3, 3, 3, groups=v),
    lambda v: lc.NormalizedHead(v, 3),
    lambda v: lc.NormalizedHead(3, v),
    lambda v: lc.layers.ScaledAvgPool2d(v),
    lambda v: lc.layers.L2Pool2d(v),
    lambda v: lc.layers.Shift(v),
    lambda v: lc.layers.PositionalBias(v),
    lambda v: lc.layers.PartialAbs(v),
    lambda v: lc.layers.SpaceToDepth(v),
    lambda v: lc.layers.PadChannels(v),
    lambda v: lc.layers.GroupSort(v),
    lambda v: lc.layers.Householder(v),
    lambda v: lc.bounds.SLL(v),
    lambda v: lc.bounds.Rescaled(v),
    lambda v: lc.bounds.Optimal(v),
    lambda v: lc.bounds.Spectral(v),
]


@pytest.mark.parametrize("make", SIZES)
@pytest.mark.parametrize("value", [0, -1, 2.5, "4", None, True])
def test_sizes_must_be_positive_integers(make, value):
    with pytest.raises(ValueError, match=r"must be .*of at least 1; got .*Pass"):
        make(value)


REFUSED = [  # (call, exception, what the message must say)
    (lambda: lc.ResidualLinear(3, 2, bound="svd"), ValueError, r"bound must be one of \['aol'.*got 'svd'"),
    (lambda: lc.ResidualLinear(3, 2, bound=7), ValueError, r"bound must be one of .*got 7"),
    (lambda: lc.layers.Shift(4, 0.3), ValueError, r"share must lie above 0 and be at most 1/4; got 0.3. Use 1/16"),
    (lambda: lc.layers.PartialAbs(4, 0), ValueError, r"share must lie above 0 and be at most 1; got 0. Use 0.5"),
    (lambda: lc.OrthogonalLinear(4, 4, rank=4, method="reflector"), ValueError, r"larger width, 4; got 4.*−I"),
    (
        lambda: lc.ResidualLinear(3, 2, bound=lc.bounds.SLL(3)),
        ValueError,
        r"2 columns; got SLL for 3. Pass SLL\(2\)",
    ),
    (lambda: lc.AffineLinear(3, 2, bound=lc.bounds.SLL(2)), ValueError, r"3 columns; got SLL for 2"),
    (lambda: lc.ResidualConv2d(3, 2, bound="orthogonal"), lc.NotCertified, r"convolutions.*got Orthogonal.*'sll'"),
    (lambda: lc.AffineConv2d(3, 2, 3, bound="full"), lc.NotCertified, r"convolutions.*got Full"),
    (
        lambda: lc.layers.LinfLinear(3, 2, norm="l2"),
        ValueError,
        r"norm must be one of.*got 'l2'.*norm of the inputs",
    ),
    (lambda: lc.layers.Monotone(nn.ReLU(), (0, 0)), ValueError, r"different places of inputs.*got \(0, 0\)"),
    (lambda: lc.layers.Monotone(nn.ReLU(), ()), ValueError, r"different places.*got \(\) and \(\)"),
    (lambda: lc.layers.Monotone(nn.ReLU(), (0,), lipschitz=0), ValueError, r"lipschitz must be positive; got 0"),
    (lambda: lc.layers.Monotone([nn.ReLU()], (0,)), ValueError, r"network must be a module; got list"),
    (lambda: lc.layers.Monotone(nn.Identity(), (3,))(torch.rand(2, 3)), ValueError, r"input 3; got \(2, 3\)"),
    (lambda: lc.layers.Monotone(nn.Identity(), (0,))(torch.rand(2, 3)), ValueError, r"give \(N, 1\); got \(2, 3\)"),
    (lambda: lc.bounds.Full(0.0), ValueError, r"alpha must be positive.*got 0.0"),
    (lambda: lc.AffineConv2d(3, 2, 3, bound="optimal"), lc.NotCertified, r"convolutions.*got Optimal"),
    (lambda: lc.ResidualLinear(3, 2, activation="gelu"), ValueError, r"slope in \[0, 1\].*'relu'.*got 'gelu'"),
    (lambda: lc.ResidualLinear(3, 2, activation="maxmin"), ValueError, r"got 'maxmin'.*after AffineLinear"),
    (lambda: slope_restricted(None), ValueError, r"slope in \[0, 1\]"),
    (
        lambda: lc.ResidualConv2d(3, 2, padding_mode="reflect"),
        lc.NotCertified,
        r"'zeros', 'circular'.*'reflect'.*Use",
    ),
    (lambda: lc.AffineConv2d(3, 2, 3, padding_mode="replicate"), lc.NotCertified, r"'replicate'.*double the norm"),
    (
        lambda: lc.AffineConv2d(3, 2, 3, padding_mode="zero"),
        ValueError,
        r"padding_mode must be one of .*got 'zero'",
    ),
    (
        lambda: lc.ResidualConv2d(3, 2, 4, padding_mode="circular"),
        lc.NotCertified,
        r"\(kernel − 1\)/2.*\(4, 4\).*odd",
    ),
    (lambda: lc.AffineConv2d(3, 2, 3, padding=2, padding_mode="circular"), lc.NotCertified, r"outputs repeat"),
    (lambda: lc.AffineConv2d(3, 2, 3, padding=-1), ValueError, r"padding must be .*at least 0; got -1"),
    (lambda: lc.AffineConv2d(3, 2, 4, padding="same"), ValueError, r"odd kernel and stride 1; got kernel \(4, 4\)"),
    (lambda: lc.AffineConv2d(3, 2, 3, stride=2, padding="same"), ValueError, r"'same' needs .*stride 1"),
    (lambda: lc.AffineConv2d(3, 2, 3, padding="valid"), ValueError, r"padding must be one of \['same'\]"),
    (
        lambda: lc.AffineConv2d(3, 2, 3, groups=2),
        ValueError,
        r"groups must divide the channels; got groups=2 for 3 and",
    ),
    (lambda: lc.ResidualConv2d(3, 2, (3, 3, 3)), ValueError, r"pair of integers.*got \(3, 3, 3\)"),
    (lambda: lc.OrthogonalLinear(3, 2, method="qr"), ValueError, r"method must be one of \['bjorck'.*got 'qr'"),
    (lambda: lc.GeneralLinear(3, 2, 2, method="qr"), ValueError, r"method must be one of"),
    (lambda: orthonormal(torch.ones(2, 2), "qr"), ValueError, r"method must be one of"),
    (
        lambda: exponential_series(torch.zeros(2, 2), 5),
        ValueError,
        r"order must be one of \[3, 4, 7, 8, 11, 12\]; got 5",
    ),
    (lambda: lc.bounds.SLL(3, "softmax"), ValueError, r"form must be one of \['exp', 'sampled_gradient', "),
    (lambda: lc.bounds.SLL(3, "shifted", epsilon=0.0), ValueError, r"epsilon must lie between 0 and 1; got 0.0"),
    (lambda: lc.bounds.Rescaled(3, order=-1), ValueError, r"order must be an integer from 0 .*got -1"),
    (lambda: lc.bounds.Optimal(3, objective="rank"), ValueError, r"objective must be one of .*got 'rank'"),
    (lambda: lc.bounds.Optimal(3).fit(torch.ones(3, 3)), ValueError, r"got Tensor. Pass layer.columns\(\)"),
    (lambda: lc.bounds.Optimal(3).fit(lc.AffineLinear(2, 3).columns()), ValueError, r"3 of them; got 2 columns"),
    (lambda: lc.bounds.SLL(3, epsilon=0.5), ValueError, r"left out for form='exp'"),
    (lambda: lc.bounds.SLL(3, "shifted", epsilon="a"), ValueError, r"epsilon must be a finite number; got 'a'"),
    (lambda: lc.layers.Scale("2"), ValueError, r"factor must be a finite number; got '2'"),
    (lambda: lc.layers.ConvexCombination([nn.ReLU()]), ValueError, r"each a module; got"),
    (
        lambda: lc.ResidualConv2d(3, 4, groups=2),
        ValueError,
        r"groups must divide the channels; got groups=2 for 3 and 4",
    ),
    (lambda: lc.lipschitz_bound("model"), ValueError, r"expected a torch module[,;] got str"),
    (
        lambda: certified_radii(torch.ones(2, 2), torch.tensor([0, 7]), torch.ones(2, 2)),
        ValueError,
        r"labels must lie from 0 to 1; got 0 to 7",
    ),
    (lambda: lc.layers.Householder(5), ValueError, r"channels must be even.*got 5"),
    (lambda: lc.layers.Scale(0.0), ValueError, r"factor must not be 0"),
    (lambda: lc.layers.Scale(float("nan")), ValueError, r"factor must be a finite number"),
    (lambda: lc.layers.Center([]), ValueError, r"mean must be a list of finite numbers"),
    (lambda: lc.layers.Normalize([0.5], [0.0]), ValueError, r"std must be positive.*Center"),
    (lambda: lc.layers.Normalize([0.5], [1.0, 1.0]), ValueError, r"one per mean"),
    (lambda: lc.layers.ConvexCombination(), ValueError, r"at least one branch.*got none"),
    (lambda: lc.losses.OffsetCrossEntropy(temperature=0.0), ValueError, r"temperature above 0; got"),
    (
        lambda: load_data("digits", "validation"),
        ValueError,
        r"split must be one of \['test', 'train'\]; got 'validation'",
    ),
    (
        lambda: certified_radii(torch.ones(2, 3), torch.zeros(3).long(), torch.ones(3, 3)),
        ValueError,
        r"logits \(N, C\).*got \(2, 3\), torch.int64 \(3,\)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_arguments_are_refused_with_a_cure(call, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        call()


FORWARD = [
    (
        lambda: lc.ResidualLinear(3, 2),
        (5, 4),
        ValueError,
        r"expects \(\*, 3\); got \(5, 4\).*that number of features",
    ),
    (lambda: lc.AffineLinear(3, 2), (5, 4), ValueError, r"AffineLinear expects \(\*, 3\); got \(5, 4\)"),
    (lambda: lc.OrthogonalLinear(3, 2), (5, 4), ValueError, r"OrthogonalLinear expects \(\*, 3\)"),
    (lambda: lc.GeneralLinear(3, 2, 2), (5, 4), ValueError, r"GeneralLinear expects \(\*, 3\)"),
    (lambda: lc.NormalizedHead(3, 2), (5, 4), ValueError, r"NormalizedHead expects \(\*, 3\).*Flatten"),
    (lambda: lc.ResidualConv2d(3, 2), (1, 4, 8, 8), ValueError, r"expects \(N, 3, H, W\); got \(1, 4, 8, 8\)"),
    (lambda: lc.ResidualConv2d(3, 2), (4, 3, 64), ValueError, r"got \(4, 3, 64\).*3 dimensions.*without a batch"),
    (lambda: lc.ResidualConv2d(3, 2), (4, 8, 9, 3), ValueError, r"got \(4, 8, 9, 3\).*movedim"),
    (lambda: lc.AffineConv2d(3, 2, 3), (3, 8), ValueError, r"\(N, 3, H, W\); got \(3, 8\).*4 dimensions, or 3"),
    (lambda: lc.AffineConv1d(3, 2, 3), (1, 3, 8, 8), ValueError, r"\(N, 3, L\); got .*3 dimensions, or 2"),
    (lambda: lc.AffineConvTranspose2d(3, 2, 3), (3, 8), ValueError, r"\(N, 3, H, W\); got \(3, 8\).*4 dimensions"),
    (
        lambda: lc.ResidualConv2d(3, 2, 3, stride=2, padding_mode="circular"),
        (1, 3, 7, 8),
        lc.NotCertified,
        r"divisible by the stride \(2, 2\); got 7×8.*zeros",
    ),
    (
        lambda: lc.AffineConv2d(3, 2, 3, stride=2, padding=1, padding_mode="circular"),
        (1, 3, 8, 7),
        lc.NotCertified,
        r"divisible by the stride",
    ),
    (
        lambda: lc.ResidualConv2d(3, 2, 7, padding_mode="circular"),
        (1, 3, 2, 2),
        ValueError,
        r"at least 3×3; got 2×2.*smaller kernel",
    ),
    (lambda: lc.layers.ScaledAvgPool2d(3), (1, 1, 8, 9), ValueError, r"divisible by \(3, 3\); got \(1, 1, 8, 9\)"),
    (lambda: lc.layers.L2Pool2d(3), (1, 1, 9, 8), ValueError, r"L2Pool2d expects .*divisible"),
    (lambda: lc.layers.Shift((3, 4)), (1, 4, 4, 3), ValueError, r"Shift expects \(N, C, 3, 4\).*image_size"),
    (lambda: lc.layers.Shift((3, 4)), (1, 3, 3, 4), ValueError, r"at least 4 channels; got \(1, 3, 3, 4\)"),
    (lambda: lc.layers.PositionalBias((3, 4)), (1, 4, 4, 3), ValueError, r"expects \(N, C, 3, 4\); got"),
    (lambda: lc.layers.PartialAbs(4), (1, 5), ValueError, r"expects \(N, 4, …\); got \(1, 5\)"),
    (lambda: lc.layers.SpaceToDepth(2), (1, 1, 3, 4), ValueError, r"SpaceToDepth expects .*divisible.*block"),
    (
        lambda: lc.layers.PadChannels(2),
        (1, 3, 4, 4),
        ValueError,
        r"at most 2 channels in dimension 1; got \(1, 3, 4, 4\).*cannot drop",
    ),
    (
        lambda: lc.layers.Center([0.5]),
        (1, 3, 4, 4),
        ValueError,
        r"shape \(1,\), but the input has shape \(1, 3, 4, 4\)",
    ),
    (lambda: lc.AffineConv2d(3, 2, 5), (1, 3, 4, 8), ValueError, r"hold a kernel of \(5, 5\); got 4×8.*smaller"),
    (lambda: lc.layers.MaxMin(dim=3), (2, 4), ValueError, r"acts on dimension 3; got shape \(2, 4\)"),
    (lambda: lc.layers.MaxMin(), (1, 3), ValueError, r"multiple of 2 channels .*got 3"),
    (lambda: lc.layers.GroupSort(4), (1, 6), ValueError, r"multiple of 4 channels .*got 6"),
    (lambda: lc.layers.Householder(4), (1, 6), ValueError, r"made for 4 channels; got 6. Pass Householder\(6\)"),
    (
        lambda: lc.layers.ConvexCombination(nn.Identity(), nn.Flatten()),
        (1, 2, 2),
        ValueError,
        r"branches must give one shape",
    ),
]


@pytest.mark.parametrize(("make", "shape", "error", "message"), FORWARD)
def test_bad_inputs_are_refused_with_a_cure(make, shape, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        make()(torch.randn(shape))


def test_not_certified_is_a_value_error():
    assert issubclass(lc.NotCertified, ValueError)


class _Impostor(nn.ReLU):
    def forward(self, x):
        return 3 * x


@pytest.mark.parametrize(
    ("module", "cure"),
    [
        (nn.LayerNorm(2), "Use batch normalization"),
        (nn.GLU(), "Replace it"),
        (nn.Bilinear(2, 2, 2), "Replace it"),
        (_Impostor(), "Pass the shape"),
        (nn.BatchNorm1d(2), r"Call \.eval\(\)"),
        (nn.Dropout(), r"Call \.eval\(\)"),
        (nn.GELU(approximate="tanh"), "approximate='none'"),
        (nn.Softmax(), "dim=1"),
        (nn.AvgPool1d(3, 1), "Pass the shape"),
    ],
)
def test_unknown_modules_are_named_and_refused(module, cure):
    with pytest.raises(lc.NotCertified, match=f"{type(module).__name__}.*{cure}|{cure}") as refusal:
        lc.lipschitz_bound(nn.Sequential(lc.ResidualLinear(2, 2), module))
    assert len(str(refusal.value).splitlines()) == 1
    assert module.__class__ is nn.AvgPool1d or type(module).__name__ in str(refusal.value)


@pytest.mark.parametrize(
    ("module", "constant"),
    [
        (nn.GELU(), 1.129),
        (nn.Softplus(threshold=40), 1.0),
        (nn.Sigmoid(), 0.25),
        (nn.LeakyReLU(-3.0), 3.0),
        (nn.Flatten(), 1.0),
        (nn.BatchNorm1d(2, eps=0.0).eval(), 1.0),
    ],
)
def test_modules_of_torch_have_the_constants_that_are_proved(module, constant):
    assert lc.lipschitz_bound(module) == pytest.approx(constant, rel=1e-12)
    assert lc.lipschitz_bound(module) >= constant
    assert lc.lipschitz_bound(nn.Sequential(nn.ReLU(), module)) >= constant


def test_a_linear_map_of_torch_has_a_proved_constant():
    layer = nn.Linear(3, 2)
    true = float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))
    assert true <= lc.lipschitz_bound(layer) <= true * (1 + 1e-8)


def test_arguments_nobody_knows_are_errors():
    with pytest.raises(TypeError, match="padding"):
        lc.ResidualConv2d(3, 2, 3, padding=2)
    with pytest.raises(AttributeError, match="no attribute 'ResidualConv4d'"):
        _ = lc.ResidualConv4d


class _Louder(lc.ResidualLinear):
    def forward(self, x):
        return 5 * super().forward(x)


class _Mine(lc.bounds.Bound):
    def forward(self, columns):
        return columns, torch.ones(columns.count)


class _Vouched(_Louder):
    def proved_constant(self):
        return 5.0


def test_a_subclass_a_hook_or_a_patch_does_not_inherit_the_proof():
    for layer in (_Louder(4, 3), lc.ResidualLinear(4, 3, bound=_Mine())):
        for ask in (lc.lipschitz_bound, lambda layer: layer.lipschitz_bound()):
            with pytest.raises(lc.NotCertified, match="does not define"):
                ask(layer)
    assert lc.lipschitz_bound(_Vouched(4, 3)) == 5.0
    for layer in (lc.ResidualLinear(4, 3), lc.layers.MaxMin(), nn.ReLU(), nn.Sequential(nn.ReLU())):
        layer.register_forward_hook(lambda module, args, out: 9 * out)
        with pytest.raises(lc.NotCertified, match="forward hook"):
            lc.lipschitz_bound(nn.Sequential(layer))
    patched = lc.ResidualLinear(4, 3)
    patched.forward = lambda x: 9 * x
    with pytest.raises(lc.NotCertified, match="patched method"):
        patched.lipschitz_bound()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: 3 * out)
    try:
        with pytest.raises(lc.NotCertified, match="all modules"):
            lc.lipschitz_bound(lc.layers.Scale(2.0))
    finally:
        handle.remove()


def test_a_compiled_network_has_the_constant_of_what_was_compiled():
    assert lc.lipschitz_bound(torch.compile(lc.layers.Scale(2.0), backend="eager")) == 2.0


class _Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self._orig_mod = lc.ResidualLinear(4, 3)

    def forward(self, x):
        return 10 * self._orig_mod(x)


def test_nothing_else_passes_for_a_proof():
    """Each of these was certified as 1 once: a look-alike of torch.compile, hooks on it, patched methods."""
    compiled = torch.compile(lc.ResidualLinear(4, 3), backend="eager")
    compiled.register_forward_hook(lambda module, args, out: 10 * out)
    renamed = nn.Sequential()
    renamed.add_module("_orig_mod", lc.ResidualLinear(4, 3))
    renamed.add_module("after", lc.layers.Scale(10.0))
    assert lc.lipschitz_bound(renamed) == pytest.approx(10.0)
    computed, scaled, sorted_, steep = (
        lc.ResidualLinear(4, 3),
        lc.AffineLinear(4, 3),
        lc.layers.MaxMin(),
        lc.ResidualLinear(4, 3),
    )
    computed.compute = lambda x: 10 * x
    scaled.scaled_weight = lambda: 100 * torch.ones(3, 4)
    sorted_.act = lambda members, dim: tuple(10 * m for m in members)
    vars(steep)["activation"] = type(steep.activation)("relu", lambda u: 50 * u, (0.0, 1.0), True, 0)
    negative = lc.ResidualLinear(4, 3, bound="optimal")
    negative.bound.gamma[0] = -1.0
    for module in (_Wrapper(), compiled, computed, scaled, sorted_, steep, negative):
        with pytest.raises(lc.NotCertified):
            lc.lipschitz_bound(module)
    head = lc.NormalizedHead(4, 3)
    head.register_forward_hook(lambda module, args, out: 10 * out)
    with pytest.raises(lc.NotCertified, match="hook"):
        head.pairwise_bound()
    copied = copy.deepcopy(lc.ResidualLinear(4, 3))
    assert lc.lipschitz_bound(copied) == 1.0


def test_a_network_without_values_is_not_certified():
    with torch.device("meta"):
        layer = lc.ResidualLinear(4, 3)
    with pytest.raises(lc.NotCertified, match="meta device"):
        layer.lipschitz_bound()


def test_a_constant_that_is_no_number_is_refused():
    scale = lc.layers.Scale(2.0)
    vars(scale)["factor"] = float("nan")
    with pytest.raises(lc.NotCertified, match="nan"):
        lc.lipschitz_bound(scale)
