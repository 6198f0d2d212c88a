"""Forward methods of users: a script as a user writes it, what is traced, and what is refused with its line."""

import math
import random
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lipcert as lc
from lipcert.certified.freeze import prove
from lipcert.exporters.files import load_frozen

# --- A user's script ---


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(channels, channels, 1)
        )

    def forward(self, x):
        x = x + 0.5 * self.f(x)
        return x  # noqa: RET504


class ResidualNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block1, self.block2 = Block(4), Block(4)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = self.block2(self.block1(x))
        mean, largest = x.mean(dim=(2, 3)), F.adaptive_max_pool2d(x, 1)
        x = torch.cat([mean, largest.view(x.size(0), -1)], dim=1)
        return self.head(x)


def test_a_residual_network_is_trained_frozen_certified_exported_and_verified(tmp_path):
    torch.manual_seed(0)
    labels = torch.arange(64) % 2
    images = torch.rand(64, 1, 8, 8) + labels[:, None, None, None]

    model = ResidualNetwork()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()

    frozen = lc.freeze(model)
    with torch.no_grad():
        assert torch.allclose(frozen(images), model(images), atol=1e-5)
    assert "stem.weight" in frozen.state_dict()  # tensors are called as in the model
    report = lc.audit(frozen, images)
    assert report.ok
    assert report.lower <= report.lipschitz

    result = lc.certify(frozen, images, labels)
    assert result.natural_accuracy > 0.9
    assert (result.radii > 0).double().mean() > 0.8
    assert torch.allclose(lc.certify(model, images, labels).radii, result.radii, rtol=1e-4)  # without freezing

    result.save(tmp_path / "mine", about="random images")
    assert lc.verify(tmp_path / "mine").ok
    lc.export(frozen, tmp_path / "mine.safetensors", to="torch", input_shape=(1, 8, 8))
    assert torch.equal(load_frozen(tmp_path / "mine.safetensors")(images), frozen(images))


@pytest.mark.parametrize(("to", "name"), [("onnx", "m.onnx"), ("torch-export", "m.pt2")])
def test_programs_of_graphs(to, name, tmp_path):
    if to == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    torch.manual_seed(1)
    report = lc.export(lc.freeze(ResidualNetwork()), tmp_path / name, to=to, input_shape=(1, 8, 8))
    assert report.difference < 1e-5


def test_a_graph_that_reads_sizes_elsewhere_is_exported(tmp_path):
    frozen = lc.freeze(of(lambda net, x: net.head(shuffled(x).flatten(1)), head=nn.Linear(64, 3)))
    x = torch.randn(2, 4, 4, 4)
    lc.export(frozen, tmp_path / "m.safetensors", to="torch", input_shape=(4, 4, 4))
    assert torch.equal(load_frozen(tmp_path / "m.safetensors")(x), frozen(x))
    lc.export(frozen, tmp_path / "m.pt2", to="torch-export", input_shape=(4, 4, 4))


# --- What is traced: the frozen network computes the same ---


class Own(nn.Module):
    """A module that calls a function of itself and its input."""

    def __init__(self, function, **members):
        super().__init__()
        self.function = function
        for name, value in members.items():
            setattr(self, name, value)

    def forward(self, x, mask=None):
        return self.function(self, x)


def of(function, **members):
    return Own(function, **members).eval()


def shuffled(x):
    """ShuffleNet's: sizes are read before, and used later."""
    n, c, h, w = x.shape
    x = x.view(n, 2, c // 2, h, w)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(n, -1, h, w)


def functional(net, x):
    return F.conv2d(x, net.layer.weight, net.layer.bias, padding="same")


TRACED = {
    "a shuffle of channels": (lambda: of(lambda net, x: shuffled(x)), (4, 3, 3), 1.0),
    "a global pool by size": (lambda: of(lambda net, x: F.avg_pool2d(x, x.size()[2:])), (2, 4, 4), 0.25),
    "MaxMin": (lambda: of(maxmin), (6,), 1.0),
    "MaxMin of images": (lambda: of(lambda net, x: minmax(x, (4, 4), 1)), (8, 2, 3), 1.0),
    "MaxMin along the last axis": (lambda: of(lambda net, x: minmax(x, 3, -1)), (2, 6), 1.0),
    "the maxima of halves twice": (lambda: of(lambda net, x: doubled(x)), (6,), math.sqrt(2) * math.sqrt(2)),
    "halves of another axis": (lambda: of(lambda net, x: minmax(x, 2, 1, 2)), (4, 2), 2.0),
    "a functional convolution": (lambda: of(functional, layer=nn.Conv2d(2, 3, 3)), (2, 5, 5), None),
    "a product with a matrix": (lambda: of(lambda net, x: x @ net.w, w=parameter(4, 3)), (4,), None),
    "centered by its mean": (
        lambda: of(lambda net, x: x - x.mean(1, keepdim=True).expand_as(x)),
        (4,),
        2.0,
    ),
    "a buffer of positions": (lambda: of(lambda net, x: x + net.p, p=nn.Parameter(torch.rand(1, 3, 4))), (3, 4), 1),
    "a plain tensor": (lambda: of(lambda net, x: x * net.t, t=torch.tensor([2.0, -3.0])), (2,), 3.0),
    "a weight computed from another": (
        lambda: of(lambda net, x: F.linear(x, net.w.reshape(2, 3).T), w=parameter(6)),
        (2,),
        None,
    ),
    "a learned number": (lambda: of(lambda net, x: x + net.a * x, a=nn.Parameter(torch.zeros(1))), (3,), 1.0),
    "a number from a size": (lambda: of(lambda net, x: x / x.size(1) ** 0.5), (16,), 0.25),
    "in place on a value of its own": (lambda: of(in_place_after), (3,), None),
    "a module twice": (lambda: of(lambda net, x: net.f(net.f(x)), f=diagonal(3.0)), (2,), 9.0),
    "a batch norm by function": (
        lambda: of(
            lambda net, x: F.batch_norm(
                x, net.b.running_mean, net.b.running_var, net.b.weight, net.b.bias, eps=0.0
            ),
            b=nn.BatchNorm1d(3),
        ),
        (3,),
        1.0,
    ),
    "a dropout in evaluation mode": (lambda: of(lambda net, x: F.dropout(x, 0.5, net.training)), (3,), 1.0),
    "entries of an image": (lambda: of(lambda net, x: x[:, 1:, ..., 0]), (3, 2, 2), 1.0),
    "softmax over channels": (lambda: of(lambda net, x: torch.softmax(4 * x, dim=-1)), (5,), 2.0),
    "inputs by name": (
        lambda: of(lambda net, x: F.linear(input=net.f(input=x), weight=net.f.weight), f=diagonal(3.0)),
        (2,),
        9,
    ),
    "circular padding of its own": (
        lambda: of(
            lambda net, x: F.conv2d(F.pad(x, (1, 1, 2, 0), mode="circular"), net.w), w=parameter(2, 2, 3, 3)
        ),
        (2, 5, 5),
        None,
    ),
    "padded channels": (lambda: of(lambda net, x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2))), (2, 4, 4), 1.0),
    "padded entries of a vector": (lambda: of(lambda net, x: F.pad(x, (1, 2), value=0.5)), (3,), 1.0),
    "stacked": (lambda: of(lambda net, x: torch.stack([x, -x], dim=2)), (3,), math.sqrt(2)),
}


def parameter(*sizes):
    return nn.Parameter(torch.randn(*sizes, generator=torch.Generator().manual_seed(0)))


def diagonal(value):
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data.copy_(value * torch.eye(2))
    return layer


def maxmin(net, x):
    a, b = x.chunk(2, dim=1)
    return torch.cat((torch.maximum(a, b), torch.minimum(a, b)), dim=1)


def minmax(x, sizes, axis, put=None):
    a, b = x.split(sizes, axis) if isinstance(sizes, tuple) else x.chunk(2, axis)
    return torch.cat((torch.minimum(b, a), torch.maximum(a, b)), dim=axis if put is None else put)


def doubled(x):
    a, b = x.chunk(2, dim=1)
    return torch.cat((torch.maximum(a, b), torch.maximum(b, a)), dim=1)


def in_place_after(net, x):
    y = 2 * x
    y += x
    y = y.relu_()
    return y.clone().add_(1.0)


@pytest.mark.parametrize("name", TRACED)
def test_what_is_traced_is_what_runs(name):
    build, shape, constant = TRACED[name]
    model = build()
    frozen = lc.freeze(model)
    x = torch.randn(5, *shape)
    with torch.no_grad():
        expected = model(x.clone())
        found = frozen(x) if not isinstance(model.function, type(in_place_after)) else lc.freeze(model)(x)
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-6)
        proved = prove(model, shape)
        assert torch.allclose(proved.run(x.double())[-1].float(), expected, atol=1e-5)
    if constant is not None:
        assert constant * (1 - 1e-12) <= proved.lipschitz <= constant * (1 + 1e-7)
        assert lc.lipschitz_bound(model, shape) == proved.lipschitz


def test_skips_add_and_concatenations_have_the_root_of_the_squares():
    skip = of(lambda net, x: x + net.f(x), f=diagonal(3.0))
    assert lc.lipschitz_bound(skip, (2,)) == pytest.approx(4.0, rel=2**-27)
    assert lc.lipschitz_bound(skip, (2,)) >= 4
    both = of(lambda net, x: torch.cat([x, net.f(x)], 1), f=diagonal(3.0))
    assert lc.lipschitz_bound(both, (2,)) == pytest.approx(math.sqrt(10), rel=2**-27)
    mixed = of(lambda net, x: 0.25 * x + 0.75 * net.f(x), f=diagonal(1.0))
    assert lc.lipschitz_bound(mixed, (2,)) == pytest.approx(1.0, rel=2**-27)


def test_own_modules_stand_in_sequences_and_in_each_other():
    inner = of(lambda net, x: x + net.f(x), f=diagonal(1.0))
    model = nn.Sequential(inner, of(lambda net, x: net.g(x) / 4, g=inner), nn.Linear(2, 2)).eval()
    frozen = lc.freeze(model)
    x = torch.randn(3, 2)
    assert torch.allclose(frozen(x), model(x))
    assert frozen.names[0] == "0.f"
    assert lc.audit(model, (2,)).backbone == pytest.approx(1.0, rel=1e-6)


def test_nothing_of_the_users_module_is_changed():
    kept = []

    def forward(net, x):
        net.last = x
        kept.append(1)
        return net.f(x)

    model = of(forward, f=diagonal(2.0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert lc.lipschitz_bound(model, (2,)) == pytest.approx(2.0)
    assert not hasattr(model, "last")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tensors_of_half_precision_stay_as_they_are():
    model = of(lambda net, x: net.f(x), f=nn.Linear(3, 2)).half()
    before = {name: (value.dtype, value.data_ptr()) for name, value in model.state_dict().items()}
    assert lc.audit(model, (3,)).ok
    lc.freeze(model, (3,))
    assert {name: (value.dtype, value.data_ptr()) for name, value in model.state_dict().items()} == before


def test_graph_modules_of_torch_are_followed():
    model = torch.fx.symbolic_trace(of(lambda net, x: x + net.f(x), f=diagonal(3.0)))
    assert lc.lipschitz_bound(model, (2,)) == pytest.approx(4.0, rel=2**-27)
    assert lc.lipschitz_bound(nn.Sequential(model, nn.ReLU()), (2,)) == pytest.approx(4.0, rel=2**-27)
    with pytest.warns(DeprecationWarning, match="script"):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(lc.NotCertified, match="TorchScript"):
        lc.audit(scripted, (2,))


def test_a_convolution_behind_circular_padding_is_a_circular_one():
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")
    model = of(lambda net, x: F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), net.f.weight), f=layer)
    assert lc.lipschitz_bound(model, (2, 6, 6)) == lc.lipschitz_bound(layer, (2, 6, 6))
    twice = of(lambda net, x: F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), net.f.weight, padding=1), f=layer)
    assert lc.lipschitz_bound(twice, (2, 6, 6)) > lc.lipschitz_bound(layer, (2, 6, 6))


# --- What is refused, with the line ---


def in_place_before(net, x):
    y = F.relu(x, inplace=True)
    return y + x


def view_in_place(net, x):
    y = x[:, :1]
    y += 1
    return x * 1.0


def transposed_in_place(net, x):
    y = 2 * x
    y += y.transpose(1, 2)
    return y


def pre_activation(net, x):
    return net.f(x) + x


def counted(net, x):
    net.count.add_(1)
    return x * net.count


def depends_on_mode(net, x):
    return 2 * x if net.training else x / 4


def stateful(net, x):
    COUNT.append(1)
    return x * float(len(COUNT))


COUNT = []
REFUSED = {
    "a branch on a value": (lambda: of(lambda net, x: x if x.sum() > 0 else -x), (3,), "a branch, a loop"),
    "a branch on a shape": (lambda: of(lambda net, x: x if x.shape[1] > 2 else -x), (3,), "a branch, a loop"),
    "a loop over values": (lambda: of(lambda net, x: sum(row for row in x)), (3,), "cannot be followed|branch"),
    "a number of Python": (lambda: of(lambda net, x: x * float(x.max())), (3,), "cannot be followed"),
    "numpy": (lambda: of(lambda net, x: torch.from_numpy(x.numpy())), (3,), "cannot be followed|no proof"),
    "a product of values": (lambda: of(lambda net, x: x * torch.sigmoid(x)), (3,), "product has no Lipschitz"),
    "a square": (lambda: of(lambda net, x: x**2), (3,), "power"),
    "a quotient of values": (lambda: of(lambda net, x: 1 / x), (3,), "divides by a value"),
    "a norm": (lambda: of(lambda net, x: F.normalize(x)), (3,), "norm"),
    "layer norm": (lambda: of(lambda net, x: F.layer_norm(x, (3,))), (3,), "normalization"),
    "an unknown function": (lambda: of(lambda net, x: torch.erfinv(x)), (3,), "erfinv has no proof"),
    "an unknown module": (lambda: of(lambda net, x: net.n(x), n=nn.LayerNorm(3)), (3,), "LayerNorm"),
    "a fixed batch": (lambda: of(lambda net, x: x.view(4, -1)), (4,), "number of examples"),
    "everything in one row": (lambda: of(lambda net, x: x.view(-1)), (4,), "number of examples"),
    "examples in another number": (lambda: of(lambda net, x: x.view(-1, 2)), (4,), "number of examples"),
    "a batch computed": (lambda: of(lambda net, x: x.view(2 * x.size(0), -1)), (4,), "number of examples"),
    "flattened with the batch": (lambda: of(lambda net, x: x.flatten()), (4,), "batch"),
    "a mean over the batch": (lambda: of(lambda net, x: x - x.mean(0)), (4,), "batch"),
    "a mean over all": (lambda: of(lambda net, x: x.mean(keepdim=True)), (4,), "batch"),
    "a softmax over the batch": (lambda: of(lambda net, x: x.softmax(dim=-2)), (4,), "batch"),
    "examples put together": (lambda: of(lambda net, x: torch.cat([x, x])), (4,), "batch"),
    "one example": (lambda: of(lambda net, x: x[0]), (4,), "batch"),
    "the batch exchanged": (lambda: of(lambda net, x: x.transpose(0, 1)), (4,), "batch"),
    "the batch permuted": (lambda: of(lambda net, x: x.permute(1, 0)), (4,), "batch"),
    "a square matrix of examples": (lambda: of(lambda net, x: x.T), (4,), "no meaning"),
    "batch norm of the batch": (
        lambda: of(lambda net, x: F.batch_norm(x, None, None, training=True)),
        (4,),
        "statistics of the batch",
    ),
    "branches that are broadcast": (lambda: of(lambda net, x: x + x[:, :1]), (4,), "one shape"),
    "a vector and its mean": (lambda: of(lambda net, x: x - x.mean(1, keepdim=True)), (4,), "one shape"),
    "a row of constants for channels": (
        lambda: of(lambda net, x: x + net.c, c=parameter(2)),
        (2, 3),
        "inputs along axis",
    ),
    "a constant that is broadcast": (lambda: of(lambda net, x: x + net.c, c=parameter(4)), (1,), "inputs along"),
    "a constant that adds an axis": (lambda: of(lambda net, x: x + net.c, c=parameter(1, 2, 1)), (2,), "axes"),
    "a constant for each example": (lambda: of(lambda net, x: x + net.c, c=parameter(4, 3)), (12,), "constant of"),
    "in place, read later": (lambda: of(in_place_before), (3,), "changed in place"),
    "a module in place, read later": (
        lambda: of(pre_activation, f=nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3))),
        (3,),
        "changed in place",
    ),
    "a view in place": (lambda: of(view_in_place), (3,), "changed in place"),
    "a transposition in place": (lambda: of(transposed_in_place), (3, 3), "view of itself"),
    "entries assigned": (lambda: of(assigned), (3,), "assigned"),
    "data assigned": (lambda: of(data_assigned), (3,), "attribute of a tensor"),
    "written elsewhere": (lambda: of(written_elsewhere), (3,), "out="),
    "a buffer counted": (
        lambda: of(counted, count=nn.Parameter(torch.ones(1), False)),
        (3,),
        "parameter or a buffer",
    ),
    "random numbers": (lambda: of(lambda net, x: x + torch.randn(3)), (3,), "random"),
    "random numbers like it": (lambda: of(lambda net, x: x + torch.randn_like(x)), (3,), "no proof"),
    "a random factor of Python": (lambda: of(lambda net, x: x * random.random()), (3,), "does not do the same"),
    "a state": (lambda: of(stateful), (3,), "does not do the same"),
    "dropout that is always on": (lambda: of(lambda net, x: F.dropout(x)), (3,), "random in training"),
    "two results": (lambda: of(lambda net, x: (x, -x)), (3,), "one tensor"),
    "no result of the input": (lambda: of(lambda net, x: net.w, w=parameter(3)), (3,), "depends on its input"),
    "a hook inside": (lambda: of(lambda net, x: net.f(x), f=hooked(nn.Linear(3, 3))), (3,), "hook"),
    "a hook on an own module": (lambda: of(lambda net, x: net.f(x), f=hooked(of(lambda net, x: x))), (3,), "hook"),
    "a list of booleans": (lambda: of(lambda net, x: x[:, [True, False, True]]), (3,), "plain numbers"),
    "a boolean": (lambda: of(lambda net, x: x[:, True]), (3,), "plain numbers"),
    "a list of lists": (lambda: of(lambda net, x: x[:, [[0, 1], [1, 2]]]), (3,), "plain numbers"),
    "the batch counted from the end": (lambda: of(lambda net, x: x / x.shape[-2]), (3,), "negative index"),
    "a shape changed in place": (lambda: of(longer), (3,), "unsqueeze_ has no proof"),
    "axes exchanged in place": (lambda: of(exchanged), (3, 5), "transpose_ has no proof"),
    "autocast": (lambda: of(narrowed, f=nn.Linear(3, 3)), (3,), "autocast"),
    "two inputs": (lambda: TwoInputs(), (3,), "cannot be followed"),
    "a running mean": (lambda: of(averaged, m=nn.Buffer(torch.zeros(3))), (3,), "parameter or a buffer"),
    "a buffer counted up": (lambda: of(counted_up, count=nn.Buffer(torch.ones(1))), (3,), "parameter or a buffer"),
    "random numbers of a distribution": (
        lambda: of(lambda net, x: x * torch.bernoulli(torch.full((3,), 0.5))),
        (3,),
        "random numbers",
    ),
    "an assertion": (lambda: of(asserted), (3,), "leave assertions out"),
    "a maximum with its place": (lambda: of(lambda net, x: x.max(dim=1)[0]), (3,), r"x\.amax\(dim\)"),
    "a conversion": (lambda: of(lambda net, x: x.half()), (3,), "Convert the input before"),
    "a remainder": (lambda: of(lambda net, x: x % 1), (3,), "mod of a value"),
    "a number that is no float": (lambda: of(lambda net, x: x * 10**400), (3,), "too large"),
    "an error in a library": (
        lambda: of(lambda net, x: torch.func.functional_call(net.f, {"weight": x}, (x,)), f=nn.Linear(3, 3)),
        (3,),
        "cannot be followed",
    ),
    "a hook on a Sequential": (
        lambda: of(lambda net, x: net.f(x), f=hooked(nn.Sequential(nn.Linear(3, 3)))),
        (3,),
        "hook",
    ),
    "a weight_norm of old": (lambda: of(lambda net, x: net.f(x), f=normed(nn.Linear(3, 3))), (3,), "remove_weight"),
    "a module of another network": (lambda: of(lambda net, x: OUTSIDE(x)), (3,), "Assign it to self"),
    "an LSTM": (lambda: of(lambda net, x: net.f(x)[0], f=nn.LSTM(3, 3)), (2, 3), "multiplies values"),
}


OUTSIDE = nn.Linear(3, 3)


def averaged(net, x):
    net.m = 0.9 * net.m + 0.1 * x.mean(dim=1)
    return x - net.m


def counted_up(net, x):
    net.count += 1
    return x * net.count


def asserted(net, x):
    assert x.shape[1] == 3
    return x * 2


def normed(module):
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(module)


def assigned(net, x):
    y = x.clone()
    y[:, 0] = 0.0
    return y


def data_assigned(net, x):
    x.data = 3 * x
    return x


def written_elsewhere(net, x):
    y = x.clone()
    torch.mul(x, 3.0, out=y)
    return y


def longer(net, x):
    y = 2 * x
    y.unsqueeze_(1)
    return x / y.shape[1]


def exchanged(net, x):
    y = 2 * x
    y.transpose_(1, 2)
    return x / y.shape[1]


def narrowed(net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.f(x)


def hooked(module):
    module.register_forward_hook(lambda module, inputs, output: 2 * output)
    return module


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_line(name):
    build, shape, words = REFUSED[name]
    model = build()
    for claim in (
        lambda: lc.audit(model, shape),
        lambda: lc.certify(model, torch.rand(3, *shape)),
        lambda: prove(lc.freeze(model), shape),
    ):
        with pytest.raises(lc.NotCertified, match=f"(?s)({words})") as refusal:
            claim()
        files = set(re.findall(r"line \d+ of (\S+?)[,:]", str(refusal.value)))
        named = not isinstance(model, TwoInputs) and words not in ("one tensor", "depends on its input")
        assert files == ({"test_trace.py"} if named and "remove_weight" not in words else set())


def test_the_mode_matters_until_it_is_eval():
    model = of(depends_on_mode)
    assert lc.lipschitz_bound(model, (3,)) == pytest.approx(0.25)
    model.train()
    with pytest.raises(lc.NotCertified, match=r"Call \.eval"):
        lc.audit(model, (3,))
    assert lc.audit(lc.freeze(model), (3,)).lipschitz < 0.26  # which freezes in evaluation mode
    assert model.training


def test_a_weight_computed_at_every_call_is_stored_first():
    model = of(lambda net, x: F.linear(x, net.w / net.w.norm()), w=parameter(2, 2))
    assert lc.audit(model, (2,)).ok
    with pytest.raises(lc.NotCertified, match="freeze"):
        lc.certify(model, torch.rand(1, 2))
    assert (lc.certify(lc.freeze(model), torch.rand(1, 2)).radii > 0).all()


# --- What a stand-in does not show: the module runs and is compared ---


def asked(net, x):
    try:
        count = len(x)
    except lc.NotCertified:
        count = 1
    return x * count


def kept(net, x):
    net.t.add_(1.0)
    return x * net.t


class Overwriting(nn.Module):
    def forward(self, x):
        return x.mul_(2.0)


lc.register_rule(Overwriting, 2.0)
HIDDEN = {
    "isinstance": lambda: of(lambda net, x: 3 * x if isinstance(x, torch.Tensor) else 1 * x),
    "is_tensor": lambda: of(lambda net, x: 3 * x if torch.is_tensor(x) else 1 * x),
    "its type": lambda: of(lambda net, x: 3 * x if type(x) is torch.Tensor else 1 * x),
    "its dtype": lambda: of(lambda net, x: 3 * x if x.dtype is torch.float32 else 1 * x),
    "its text": lambda: of(lambda net, x: 3 * x if repr(x).startswith("tensor") else 1 * x),
    "what its size is": lambda: of(lambda net, x: 3 * x if isinstance(x.shape[1], int) else 1 * x),
    "a refusal that is caught": lambda: of(asked),
    "a tensor that is no buffer": lambda: of(kept, t=torch.ones(3)),
    "inside of a Sequential": lambda: nn.Sequential(nn.Linear(3, 3), HIDDEN["isinstance"]()).eval(),
    "a module of a rule that overwrites": lambda: of(lambda net, x: net.f(x) + x, f=Overwriting()),
    "an error without a stand-in": lambda: of(lambda net, x: x.no if isinstance(x, torch.Tensor) else 1 * x),
    "the mode of torch": lambda: of(lambda net, x: 3 * x if torch.is_grad_enabled() else 1 * x),
    "another shape": lambda: of(lambda net, x: x[:, :2] if isinstance(x, torch.Tensor) else 1 * x),
    "another shape, which fits": lambda: of(lambda net, x: x[:, :1] if isinstance(x, torch.Tensor) else 1 * x),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_module_that_tells_a_stand_in_from_a_tensor_is_refused(name, tmp_path):
    model = HIDDEN[name]()
    for claim in (
        lambda: lc.audit(model, (3,)),
        lambda: lc.certify(model, torch.rand(2, 3), arithmetic="real"),
        lambda: lc.lipschitz_bound(model, (3,)),
        lambda: lc.freeze(model, (3,)),
        lambda: lc.certify(model, torch.rand(2, 3)).save(tmp_path / "mine"),
    ):
        with pytest.raises(lc.NotCertified, match=r"something else|cannot run|registered rule"):
            claim()


def test_a_constant_for_every_shape_needs_no_forward_of_a_user():
    model = nn.Sequential(HIDDEN["isinstance"](), nn.Linear(3, 3))
    with pytest.raises(lc.NotCertified, match="Pass the shape"):
        lc.lipschitz_bound(model)


def test_nothing_random_is_drawn_for_the_comparison():
    model, before = of(lambda net, x: net.f(x), f=nn.Linear(3, 3).double()), torch.get_rng_state()
    lc.audit(model, torch.rand(2, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), before)


def test_branches_that_work_in_place_have_inputs_of_their_own():
    plain = lc.layers.ConvexCombination(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3)), nn.Linear(3, 3))
    own = lc.layers.ConvexCombination(of(lambda net, x: x.mul_(2.0)), nn.Linear(3, 3))
    rising = lc.layers.Monotone(of(lambda net, x: net.f(x.mul_(2.0)), f=nn.Linear(3, 2)), features=(0,), outputs=2)
    for layer in (plain, own, rising):
        model, x = nn.Sequential(layer).eval(), torch.randn(4, 3)
        with torch.no_grad():
            expected = model(x.clone())
            assert torch.allclose(lc.freeze(model)(x), expected, atol=1e-5)
            assert torch.allclose(prove(model, (3,)).run(x.double())[-1].float(), expected, atol=1e-5)


def test_a_value_that_is_read_for_its_shape_alone(tmp_path):
    model = of(lambda net, x: x.expand(-1, net.f(x).shape[1]) / net.f(x).size(1), f=nn.Linear(1, 4))
    frozen, x = lc.freeze(model), torch.randn(5, 1)
    with torch.no_grad():
        assert torch.allclose(frozen(x), model(x))
    report = lc.audit(frozen, (1,))
    assert report.lipschitz == lc.audit(model, (1,)).lipschitz == pytest.approx(0.5, rel=1e-7)
    assert (lc.certify(frozen, torch.rand(2, 1)).radii >= 0).all()
    lc.certify(frozen, torch.rand(2, 1)).save(tmp_path / "mine")
    assert lc.verify(tmp_path / "mine").ok
    # What is not part of the result must still have a shape that is known.
    with pytest.raises(lc.NotCertified, match="LayerNorm"):
        lc.freeze(of(lambda net, x: x / net.f(x).shape[1], f=nn.LayerNorm(3)))
