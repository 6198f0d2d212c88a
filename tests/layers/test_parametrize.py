"""``lc.parametrize``: layers of torch.nn that become 1-Lipschitz in place."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import is_parametrized, register_parametrization, remove_parametrizations

import lipcert as lc
from lipcert.testing import LawBroken, check_layer
from mutants import affine, matrix_of, norm

EPS = 1e-12
OWN = {  # torch's layer, ours, and the shape of one input
    "linear": (lambda: nn.Linear(6, 4), lambda b: lc.AffineLinear(6, 4, bound=b), (6,)),
    "conv": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        lambda b: lc.AffineConv2d(4, 6, 3, stride=2, padding=1, groups=2, bound=b),
        (4, 6, 6),
    ),
    "circular": (
        lambda: nn.Conv1d(2, 3, 3, padding="same", padding_mode="circular"),
        lambda b: lc.AffineConv1d(2, 3, 3, padding=1, padding_mode="circular", bound=b),
        (2, 7),
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1),
        lambda b: lc.AffineConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1, bound=b),
        (4, 5, 5),
    ),
}


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 4, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


@pytest.mark.parametrize("bound", ["aol", "sll", "spectral"])
@pytest.mark.parametrize("name", OWN)
def test_it_computes_and_stores_what_our_own_layer_does(name, bound):
    theirs, ours, shape = OWN[name]
    layer, own = lc.parametrize(theirs(), bound), ours(bound)
    with torch.no_grad():
        own.weight.copy_(layer.parametrizations.weight.original)
        own.bias.copy_(layer.bias)
    x = torch.randn(3, *shape)
    assert torch.equal(layer.weight, own.scaled_weight())
    # Another memory layout sums in another order: a few units in the last place of numbers near 1.
    torch.testing.assert_close(layer(x), own(x), rtol=1e-5, atol=1e-5)
    stored, expected = lc.freeze(layer)[0], lc.freeze(own)[0]
    assert type(stored) is type(expected)
    assert torch.equal(stored.weight, expected.weight)
    assert torch.equal(stored.bias, expected.bias)
    assert lc.lipschitz_bound(layer) == 1.0
    assert lc.audit(layer, shape).lipschitz <= 1.1  # a grid of frequencies adds a few per cent


@pytest.mark.parametrize("bound", ["aol", "spectral"])
@pytest.mark.parametrize("size", [5, 6, 7, 8, 9])
@pytest.mark.parametrize(
    ("stride", "dilation", "mode", "padding"),
    [(1, 1, "zeros", 4), (2, 1, "zeros", 1), (3, 2, "zeros", 2), (2, 1, "circular", 1), (3, 1, "circular", 1)],
)
def test_the_explicit_matrix_has_norm_at_most_1_on_images_of_every_size(
    stride, dilation, mode, padding, size, bound
):
    """Circular images that the stride does not divide are among them: there other taps meet than on the plane."""
    settings = {"stride": stride, "dilation": dilation, "padding_mode": mode, "padding": padding}
    layer = lc.parametrize(nn.Conv2d(2, 3, 3, **settings), bound).double()
    for start in (torch.randn_like, torch.ones_like):
        layer.parametrizations.weight.original.data = start(layer.parametrizations.weight.original)
        assert affine(layer, (2, size, size)) <= 1 + EPS


def test_the_norm_is_that_of_the_convolution_and_not_of_the_reshaped_kernel():
    kernel = torch.ones(1, 1, 3, 3)
    theirs = nn.Conv2d(1, 1, 3, padding=1)
    with torch.no_grad():
        theirs.weight.copy_(kernel)
    ours = lc.parametrize(copy.deepcopy(theirs), "spectral")
    theirs = parametrizations.spectral_norm(theirs, n_power_iterations=20).eval()
    assert affine(theirs, (1, 16, 16)) > 2.9  # the kernel as a row has norm 1, the convolution 3
    assert 0.95 < affine(ours, (1, 16, 16)) <= 1 + 1e-6


def test_a_parametrization_by_the_reshaped_kernel_breaks_a_law():
    class Reshaped(nn.Module):
        def forward(self, weight):
            size = torch.linalg.matrix_norm(weight.flatten(1), 2)
            return weight / torch.where(size > 0, size, 1.0)

    def make():
        layer = nn.Conv2d(1, 2, 3, padding=1)
        register_parametrization(layer, "weight", Reshaped())
        return layer

    with pytest.raises(LawBroken):
        check_layer(make, (1, 6, 6), lipschitz=1.0)
    check_layer(lambda: lc.parametrize(nn.Conv2d(1, 2, 3, padding=1), "spectral"), (1, 6, 6), lipschitz=1.0)


def test_a_network_with_a_filter():
    network = small_cnn()
    assert lc.parametrize(network, where=lambda name, layer: name != "7") is network
    assert [is_parametrized(layer) for layer in network] == [True, False, True, False, False, True, False, False]


def test_no_layer_is_changed_if_one_has_no_proof():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"))
    with pytest.raises(lc.NotCertified, match=r"1 \(Conv2d\).*reflect"):
        lc.parametrize(network)
    assert not any(is_parametrized(layer) for layer in network)
    lc.parametrize(network, where=lambda name, layer: layer.padding_mode == "zeros")
    assert is_parametrized(network[0])


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("make", "bound", "error", "words"),
    [
        (lambda: nn.Conv2d(1, 1, 3, padding=1, padding_mode="replicate"), "aol", lc.NotCertified, "replicate"),
        (lambda: nn.Conv2d(2, 2, 3), "orthogonal", lc.NotCertified, "image_size"),
        (lambda: nn.Conv2d(2, 2, 3), lc.bounds.Orthogonal("bjorck"), lc.NotCertified, "image_size"),
        (lambda: nn.Conv2d(2, 2, 3), "full", lc.NotCertified, "dense"),
        (lambda: nn.Conv2d(2, 2, 3, padding=2, padding_mode="circular"), "aol", lc.NotCertified, "at most half"),
        (lambda: nn.Conv1d(2, 2, 4, padding="same", padding_mode="circular"), "aol", lc.NotCertified, "both sides"),
        (lambda: nn.ConvTranspose2d(2, 2, 3, dilation=3, output_padding=2), "aol", ValueError, "output_padding"),
        (lambda: lc.parametrize(nn.Linear(2, 2)), "aol", lc.NotCertified, "already"),
        (lambda: nn.utils.spectral_norm(nn.Linear(2, 2)), "aol", lc.NotCertified, "already"),
        (lambda: Doubled(2, 2), "aol", lc.NotCertified, "subclass"),
        (lambda: nn.LazyLinear(2), "aol", lc.NotCertified, "subclass"),
        (lambda: nn.Linear(3, 2), lc.bounds.SLL(2), ValueError, "3 columns"),
        (lambda: nn.Linear(3, 2), "none", ValueError, "none"),
        (lambda: nn.Sequential(nn.ReLU()), "aol", ValueError, "no layer"),
        (lambda: "network", "aol", ValueError, "module"),
    ],
)
def test_what_has_no_proof_is_refused_in_a_sentence(make, bound, error, words):
    with pytest.raises(error, match=words):
        lc.parametrize(make(), bound)


@pytest.mark.parametrize("bound", ["aol", "sll"])
def test_it_loads_checkpoints_of_the_plain_network_and_its_own(bound):
    plain, network = small_cnn(), lc.parametrize(small_cnn(), bound)
    if bound == "sll":
        nn.init.normal_(network[5].parametrizations.weight[0].bound.log_q)
    expected = lc.parametrize(copy.deepcopy(plain), bound)
    if bound == "sll":
        log_q = network[5].parametrizations.weight[0].bound.log_q
        expected[5].parametrizations.weight[0].bound.log_q.data.copy_(log_q.data)
    assert network.load_state_dict(plain.state_dict()).missing_keys == []
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(network(x), expected(x))
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    again = lc.parametrize(small_cnn(), bound)
    again.load_state_dict(torch.load(file))
    assert torch.equal(again(x), network(x))
    state = plain.state_dict()
    del state["5.weight"]
    with pytest.raises(RuntimeError, match=r"5\.parametrizations\.weight\.original"):
        again.load_state_dict(state)


@pytest.mark.parametrize("keep", [True, False])
def test_it_can_be_removed_and_a_copy_keeps_its_own(keep):
    network = lc.parametrize(small_cnn())
    x = torch.rand(2, 1, 8, 8)
    twin, y, start = copy.deepcopy(network), network(x), network[5].parametrizations.weight.original.clone()
    for index in (0, 2, 5, 7):
        remove_parametrizations(network[index], "weight", leave_parametrized=keep)
    assert type(network[5]) is nn.Linear
    assert torch.equal(network(x), y) == keep
    assert keep or torch.equal(network[5].weight, start)
    assert torch.equal(twin(x), y)
    twin.load_state_dict(small_cnn().state_dict())
    network.load_state_dict(small_cnn().state_dict())  # the hook that stays on a layer does nothing
    twin[0](x).sum().backward()
    assert copy.deepcopy(copy.deepcopy(twin))(x).shape == (2, 10)


def test_it_compiles():
    network = lc.parametrize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)), "sll")
    x = torch.rand(2, 1, 8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), network(x), rtol=1e-5, atol=1e-5)
    assert lc.lipschitz_bound(compiled) == 1.0
    whole = lc.audit(compiled, (1, 8, 8)).lipschitz
    assert whole == lc.audit(network, (1, 8, 8)).lipschitz


def test_settings_that_change_afterwards_and_weights_that_are_not_finite_are_refused():
    layer = lc.parametrize(nn.Conv2d(2, 2, 3, stride=1))
    layer.stride = (2, 2)
    with pytest.raises(lc.NotCertified, match="settings"):
        lc.lipschitz_bound(layer)
    matrix = matrix_of(copy.deepcopy(layer).double(), (2, 7, 7))
    assert norm(matrix) <= lc.audit(layer, (2, 7, 7)).lipschitz  # of the layer as it is now
    layer = lc.parametrize(nn.Linear(2, 2), "spectral_surrogate")
    with pytest.raises(lc.NotCertified, match="eval"):
        lc.lipschitz_bound(layer)
    assert lc.lipschitz_bound(layer.eval()) == 1.0
    layer.parametrizations.weight.original.data[0, 0] = torch.nan
    for refuse in (lc.lipschitz_bound, lc.freeze, lambda layer: lc.audit(layer, (2,))):
        with pytest.raises(lc.NotCertified, match="must be finite"):
            refuse(layer)


def test_a_bound_that_was_assigned_later_must_fit():
    """A bound for dense weights would leave the kernel as it is, with T near 1."""
    layer = lc.parametrize(nn.Conv2d(4, 4, 1))
    layer.parametrizations.weight[0].bound = lc.bounds.Orthogonal()
    for refuse in (lc.lipschitz_bound, lc.freeze, lambda layer: layer(torch.rand(1, 4, 2, 2))):
        with pytest.raises(lc.NotCertified, match="convolutions"):
            refuse(layer)
    layer = lc.parametrize(nn.Linear(4, 4))
    layer.parametrizations.weight[0].bound = lc.bounds.SLL(3)
    with pytest.raises(ValueError, match="4 columns"):
        lc.lipschitz_bound(layer)


def test_two_networks_share_no_bound():
    bound = lc.bounds.SLL(4)
    first, second = (lc.parametrize(nn.Linear(4, 4), bound) for _ in range(2))
    first.parametrizations.weight[0].bound.log_q.data.fill_(3.0)
    assert not second.parametrizations.weight[0].bound.log_q.any()


def test_half_precision_keeps_its_dtype_and_is_stored_with_a_proof():
    layer = lc.parametrize(nn.Linear(20, 20)).bfloat16()
    assert layer(torch.rand(2, 20).bfloat16()).dtype == torch.bfloat16
    assert lc.audit(lc.freeze(layer), (20,)).lipschitz <= 1


def test_a_users_script(tmp_path):
    """A plain CNN, parametrized, trained, frozen, certified and verified."""
    torch.manual_seed(0)
    images, labels = lc.load_data("digits", "train")[:]
    test, truth = (tensor[:60] for tensor in lc.load_data("digits", "test")[:])

    network = small_cnn()
    for layer in network:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.orthogonal_(layer.weight)
    lc.parametrize(network, where=lambda name, layer: name != "7")
    lc.parametrize(network[7], "spectral")
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    loss_of = lc.losses.OffsetCrossEntropy(offset=0.3, temperature=0.1)
    for _ in range(40):
        batch = torch.randint(len(images), (128,))
        loss = loss_of(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    frozen = lc.freeze(network)
    assert lc.audit(frozen, (1, 8, 8)).ok
    assert torch.allclose(frozen(test), network.eval()(test), atol=1e-5)
    result = lc.certify(frozen, test, truth)
    assert result.natural_accuracy > 0.6
    assert 0.2 < result.certified_accuracy(36 / 255) <= result.natural_accuracy
    result.save(tmp_path, about="sixty digits")
    assert lc.verify(tmp_path).ok
