"""Frozen networks: what is stored is proved, says what the network said, and has no link to it."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import lipcert as lc
from full import full
from golden import hostile_layer
from lipcert.certified.freeze import freeze, prove
from lipcert.certified.ops import Residual
from lipcert.models.presets import list_models
from lipcert.verified.rounding import float32_down
from table import LAYERS, inputs, jacobian, kinds

FROZEN = list(LAYERS)
ORDINARY = ("as built", "random", "all active", "zero column", "tiny column", "equal columns", "scale 1e-6")
GRID = 1.07  # a convolution on a grid of frequencies: the coarsest factor that these small kernels get, per layer


@pytest.mark.parametrize("name", FROZEN)
def test_the_stored_tensors_are_proved_under_hostile_parameters(name):
    entry = LAYERS[name]
    for kind in kinds(name):
        layer = hostile_layer(name, kind)
        frozen = freeze(layer)
        assert not list(frozen.parameters())
        links = prove(frozen, entry.shape)
        product = links.lipschitz  # branches are added, layers multiplied
        if (
            "residual" in name
            or "general" in name
            or "sandwich" in name
            or "affine-linear" in name
            or "orthogonal" in name
        ):
            assert product <= 1 + 2**-27, kind  # ρ ≤ 1 and ‖V‖ ≤ 1 exactly; products of other constants leave room
        else:
            assert product <= entry.constant(layer) * GRID, kind
        for module in frozen.modules():
            if isinstance(module, Residual):
                assert torch.isfinite(module.gamma).all()
                assert (module.gamma >= 0).all()
        x = inputs(entry)
        j = jacobian(copy.deepcopy(frozen).double(), x)
        assert torch.isfinite(j).all(), kind
        norm = torch.linalg.matrix_norm(j, 2).item()
        terms = sum(j.shape)
        assert norm <= product * (1 + 4 * terms * math.sqrt(terms) * torch.finfo(torch.float64).eps), (kind, norm)


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_says_what_the_layer_says(name):
    """γ and V are rounded down by at most 2⁻²² and a weight by 2⁻²⁴, relative to what they multiply."""
    entry = LAYERS[name]
    for kind in (kind for kind in kinds(name) if kind in ORDINARY):
        layer = hostile_layer(name, kind).double()  # in float32 it would drop neurons that it keeps in float64
        frozen = freeze(layer)
        x = inputs(entry, batch=3)
        with torch.no_grad():
            ours, theirs = copy.deepcopy(frozen).double()(x), layer(x)
        zero = torch.zeros_like(x)
        with torch.no_grad():
            size = x.flatten(1).norm(dim=1) + layer(zero).flatten(1).norm(dim=1) + 1
        change = (ours - theirs).flatten(1).norm(dim=1)
        assert (change <= 2**-17 * size * entry.constant(layer)).all(), (kind, change.max().item())


def test_freezing_is_explicit_and_leaves_no_link():
    model = lc.create_model("sll_nano", image_shape=(1, 8, 8))
    frozen = freeze(model)
    x = torch.rand(2, 1, 8, 8)
    before = frozen(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(frozen(x), before)
    assert model.training  # the network itself was not changed, not even its mode
    again = freeze(frozen)
    assert torch.equal(again(x), before)  # freezing what is frozen changes nothing
    proved = prove(frozen, (1, 8, 8))
    for buffer in freeze(frozen).buffers():
        buffer.zero_()
    assert torch.equal(frozen(x), before)  # nor is there a link back
    for buffer in copy.deepcopy(frozen).buffers():
        buffer.zero_()
    assert torch.equal(proved.run(x.double())[-1], prove(frozen, (1, 8, 8)).run(x.double())[-1])
    other = freeze(lc.create_model("sll_nano", image_shape=(1, 8, 8)))
    other.load_state_dict(frozen.state_dict())
    assert torch.equal(other(x), before)
    assert torch.equal(copy.deepcopy(frozen)(x), before)


@pytest.mark.parametrize("name", list_models("*_nano"))
def test_every_method_freezes_to_the_same_answers(name):
    torch.manual_seed(0)
    model = lc.create_model(name, image_shape=(1, 8, 8), **full({}, {"conv_layers": 1, "dense_layers": 1})).eval()
    x = torch.rand(64, 1, 8, 8)
    with torch.no_grad():
        ours, theirs = freeze(model).double()(x.double()), model.double()(x.double())
    assert (ours - theirs).abs().max() <= 12 * 2**-20  # twelve layers, each within 2⁻²⁰ of inputs below 8


def test_a_surrogate_in_training_mode_is_frozen_exactly():
    layer = lc.ResidualLinear(6, 4, bound="sll_surrogate").train()
    with torch.no_grad():
        layer.bound.log_q.copy_(torch.tensor([-12.0, 0.0, 1.0, -3.0]))
    links = prove(freeze(layer), (6,))
    assert links.parts[0].proof.lipschitz == 1.0
    assert layer.training


@pytest.mark.parametrize("form", ["sll", "spectral"])
def test_a_surrogate_freezes_the_same_in_both_modes(form):
    torch.manual_seed(3)
    layer, exact = (lc.ResidualConv2d(3, 5, bound=bound) for bound in (f"{form}_surrogate", form))
    exact.load_state_dict(layer.state_dict())
    frozen = [freeze(net).state_dict() for net in (layer.train(), layer.eval(), exact)]
    for other in frozen[1:]:
        assert all(torch.equal(value, other[name]) for name, value in frozen[0].items())


def test_modules_of_ones_own_are_traced_and_wrappers_are_looked_through():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = lc.ResidualLinear(4, 3), lc.NormalizedHead(4, 2)

        def forward(self, x):
            return self.head(self.backbone(x))

    class Named(nn.Sequential):
        pass

    layer = lc.ResidualLinear(4, 3)
    assert lc.freeze(Network()).names == ("backbone", "head")
    assert lc.freeze(Named(layer)).names == ("0",)
    with pytest.raises(lc.NotCertified, match=r"ModuleList\): it has no forward method.*nn\.Sequential"):
        lc.audit(nn.ModuleList([layer]), (4,))
    wrappers = (
        nn.DataParallel(layer),
        torch.optim.swa_utils.AveragedModel(layer),
        torch.compile(layer, backend="eager"),
    )
    for wrapper in wrappers:
        for module in (wrapper, nn.Sequential(wrapper), Named(wrapper)):
            assert lc.audit(module, (4,)).ok
            assert lc.freeze(module)[0].op == "residual_linear"
            assert lc.lipschitz_bound(module, (4,)) == 1


def test_what_freeze_does_not_know_is_refused_by_name():
    with pytest.raises(lc.NotCertified, match=r"^1 \(LayerNorm\): it divides by a norm of its input"):
        freeze(nn.Sequential(lc.ResidualLinear(4, 3), nn.LayerNorm(4)))
    with pytest.raises(lc.NotCertified, match=r"branches.1 \(LayerNorm\): it divides by a norm of its input"):
        freeze(lc.layers.ConvexCombination(nn.ReLU(), nn.LayerNorm(4)))
    hooked = nn.Sequential(lc.ResidualLinear(4, 3))
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(lc.NotCertified, match="hook"):
        freeze(hooked)
    broken = lc.ResidualLinear(4, 3)
    with torch.no_grad():
        broken.weight[0, 0] = math.nan
    with pytest.raises(lc.NotCertified, match="finite"):
        freeze(broken)
    with pytest.raises(ValueError, match="expected a torch module"):
        freeze(lambda x: x)


def test_float32_rounding_down_is_directed():
    values = np.array([1 / 3, 1e-50, 0.0, 1 - 2**-30, 3.5e38])
    down = float32_down(values)
    assert (down.astype(np.float64) <= values).all()
    assert np.isfinite(down).all()


def test_the_number_of_threads_changes_no_bit():
    """One certifies on a thread, another exports on two: the certificate is of the bits."""
    torch.manual_seed(3)  # here two threads moved an entry of Cayley's map across a rounding boundary of float32
    network, before = lc.OrthogonalLinear(300, 300), torch.get_num_threads()
    nn.init.normal_(network.weight, std=0.3)
    made = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            made.append(lc.freeze(nn.Sequential(network))[0].weight)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*made)
