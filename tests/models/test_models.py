"""Architectures: the published parameter counts, every method at every input size, specs that refuse nonsense."""

import sys

import pytest
import torch
from torch import nn

import lipcert as lc
from full import full
from lipcert.models import presets
from lipcert.models.build import build
from lipcert.models.presets import model_spec
from lipcert.models.spec import Method, ModelSpec
from paths import ROOT


def parameters(name, **overrides):
    with torch.device("meta"):
        return sum(p.numel() for p in lc.create_model(name, **overrides).parameters())


@pytest.mark.parametrize(
    ("size", "millions"), [("small", 41.4), ("medium", 78.8), ("large", 118.3), ("xlarge", 236.5)]
)
def test_sizes_have_the_published_parameter_counts(size, millions):
    assert parameters(f"sll_{size}") / 1e6 == pytest.approx(millions, abs=0.06)
    assert parameters(f"cpl_{size}") / 1e6 == pytest.approx(millions, abs=0.1)  # without q
    assert parameters(f"sll_{size}", method="aol") / 1e6 == pytest.approx(millions, abs=0.1)


PUBLISHED = {  # name: (parameters here, millions as printed, rounded or cut), as results/models.md has them
    "cayley_large": (21_605_482, 21),
    "soc_20": (27_209_578, 27),
    "soc_plus_20": (27_212_058, 27),
    "cpl_xlarge": (236_415_480, 236),
    "aol_large": (136_193_664, 136),
    "lot_20": (17_798_858, None),
    "eco_20": (15_008_618, None),
    "bcop_large": (2_398_506, 2),
    "sandwich_kw1": (2_982_122, 3),
    "sandwich_kw2": (11_911_626, 12),
    "sandwich_kw4": (47_612_810, 48),
    "gloro_6c2f": (2_250_378, None),
    "gloro_8c2f": (6_177_992, None),
    "liresnet_12x512": (82_927_626, 83),
    "lipnext_32x1024": (67_160_074, 64),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_networks_have_their_parameters(name):
    expected, millions = PUBLISHED[name]
    assert parameters(name) == expected
    assert millions in (None, expected // 10**6, round(expected / 1e6), expected // 2**20)


def test_the_page_of_published_networks_has_these_numbers():
    page = (ROOT / "results" / "models.md").read_text(encoding="utf-8")
    for name, (count, millions) in PUBLISHED.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        printed = "–" if millions is None else f"{millions} M"
        assert f" {count:,} | {printed} |" in row


@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ("kw_large", {"channels": 4, "conv_layers": 4, "dense_layers": 2, "dense_hidden": 12}),
        ("lipconvnet", {"channels": 2, "conv_layers": 5, "dense_layers": 0}),
        ("patches", {"stem": 2, "channels": 12, "conv_layers": 1, "dense_layers": 2, "dense_hidden": 128}),
    ],
)
@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("aol_affine", "first"),
        ("sn_surrogate", "normalized"),
        ("cayley", "first"),
        ("soc_plus", "normalized"),
        ("orthogonal", "first"),
        ("sandwich", "first"),
    ],
)
def test_the_rivals_layouts_are_proved(layout, fields, method, head):
    """Small copies of the published networks, end to end: built, frozen, audited."""
    torch.manual_seed(0)
    spec = ModelSpec(
        method=method, layout=layout, head=head, pool=1, num_classes=3, image_shape=(1, 8, 8), **fields
    )  # fmt: skip
    model = build(spec).eval()
    x = torch.rand(2, 1, 8, 8)
    assert model(x).shape == (2, 3)
    frozen = lc.freeze(model)
    assert torch.allclose(frozen(x), model(x), atol=1e-4)
    report = lc.audit(frozen, (1, 8, 8))
    assert report.ok
    bound = lc.lipschitz_bound(model[0])
    assert bound == 1.0
    # A convolution with zeros around it carries what the grid cannot exclude, 1 % each.
    convolutions = sum(isinstance(part, lc.AffineConv2d) for part in model.modules())
    assert report.pairwise.max() <= (1.42 if head == "first" else 2.01) * 1.01**convolutions


TRACKED = ("gloro", "local", "local_maxmin", "liresnet")


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "gloro", "layout": "c2f", "head": "plain", "conv_layers": 5, "pool": 1, "dense_layers": 1},
        {"method": "local", "layout": "c2f", "head": "plain", "conv_layers": 3, "pool": 1, "dense_layers": 1},
        {
            "method": "local_maxmin",
            "layout": "c2f",
            "head": "plain",
            "conv_layers": 3,
            "pool": 1,
            "dense_layers": 1,
        },
        {"method": "liresnet", "layout": "liresnet", "stem": 2, "conv_layers": 2, "pool": 2, "dense_layers": 2},
    ],
    ids=TRACKED,
)
def test_layouts_whose_norms_are_tracked_are_proved(fields):
    torch.manual_seed(0)
    small = {"channels": 8, "dense_hidden": 12, "num_classes": 3, "image_shape": (1, 7, 9)}
    model = build(ModelSpec(**fields, **small))
    x = torch.rand(8, 1, 7, 9)
    assert model(x).shape == (8, 3)  # in training mode a mean of this batch is kept
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    frozen = lc.freeze(model)
    assert torch.allclose(frozen(x), model.eval()(x), rtol=1e-4, atol=1e-4)
    report = lc.audit(frozen, (1, 7, 9))
    bound, estimate = lc.lipschitz_bound(model[0]), lc.layers.lipschitz_estimate(model[0]).item()
    assert report.ok
    assert report.backbone == pytest.approx(bound, rel=1e-5)
    assert 1.1 < estimate <= bound  # they have grown: nothing is divided


def test_lipnext_moves_what_it_has_and_ends_in_the_norm_of_each_channel():
    torch.manual_seed(0)
    spec = {"method": "lipnext", "layout": "lipnext", "stem": 2, "conv_layers": 2, "pool": 1, "dense_layers": 0}
    model = build(ModelSpec(**spec, channels=17, num_classes=3, image_shape=(1, 7, 9)))
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.1 if name.endswith("bias") else 0.3)
    x = torch.rand(8, 1, 7, 9)
    assert (model[0](x) >= 0).all()
    assert model[0](x).shape == (8, 17)
    frozen = lc.freeze(model)
    assert torch.allclose(frozen(x), model(x), rtol=1e-4, atol=1e-4)
    report = lc.audit(frozen, (1, 7, 9))
    assert report.ok
    assert report.backbone <= 1 + 1e-7  # matrices are divided as dense ones, and proved as convolutions
    assert lc.lipschitz_bound(model[0]) == 1.0


def test_the_printed_table_is_another_architecture():
    """FIELD's trap: the printed L and XL do not have the parameters that Table 1 counts."""
    assert parameters("sll_table3_small") == parameters("sll_small")
    assert parameters("sll_table3_medium") == parameters("sll_medium")
    assert parameters("sll_table3_large") / 1e6 > 200
    assert parameters("sll_table3_xlarge") / 1e6 > 250


TORUS = ("cayley", "soc", "soc_plus", "lot", "eco", "bro", "bcop", "sandwich")  # their kernels cover the image


@pytest.mark.parametrize("method", Method.__args__)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_every_method_builds_and_is_1_lipschitz(method, shape):
    slow = method in TORUS and shape == (3, 64, 64)  # nano has 32 × 32 pixels there, and a matrix for each
    small = full(("nano", "tiny"), ("nano",) if shape in ((1, 8, 8), (3, 32, 32)) else ("tiny",))
    for size in ("tiny",) if slow else small:
        model = lc.create_model(f"{method}_{size}", image_shape=shape, num_classes=3, dense_layers=2, conv_layers=1)
        backbone = model[0]
        bound = lc.lipschitz_bound(backbone.eval())
        assert bound == 1.0 or (method in TRACKED and 1.0 < bound < 1.3)  # which start near 1
        x = torch.rand(2, *shape)
        assert model(x).shape == (2, 3)
        moved = (backbone(x) - backbone(x + 0.1)).flatten(1).norm(dim=1)
        assert (moved <= bound * 0.1 * (x[0].numel() ** 0.5) * (1 + 1e-5)).all()


def test_a_rank_is_a_share_of_the_larger_width():
    model = lc.create_model("bro_half_nano")
    (conv,) = (
        part for part in lc.create_model("bro_half_nano", conv_layers=1).modules() if hasattr(part, "projections")
    )
    assert conv.weight.shape == (32, 16, 3, 3)
    assert lc.lipschitz_bound(model[0]) == 1.0
    full_rank = lc.create_model("bro_nano")
    fewer = sum(p.numel() for p in full_rank.parameters()) - sum(p.numel() for p in model.parameters())
    assert fewer == 4 * 32 * 16 * 9  # half of the weights of four convolutions


@pytest.mark.parametrize("classes", [2, 200])
def test_any_number_of_classes(classes):
    assert lc.create_model("sll_nano", num_classes=classes)(torch.rand(1, 3, 32, 32)).shape == (1, classes)


def test_dividing_by_std_costs_radius():
    model = lc.create_model("sll_nano", mean=(0.4, 0.5, 0.6), std=(0.25, 0.5, 1.0))
    assert lc.lipschitz_bound(model[0]) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"depth": 3}, "a model has no field 'depth'; its fields are method, layout"),
        ({"num_class": 5}, "no field 'num_class'; did you mean 'num_classes'"),
        ({"rank": 0.5}, "rank is a setting of the reflectors of bro; got method 'sll'"),
        ({"method": "bro", "rank": 1}, "rank must be less than 1, got 1"),
        ({"num_classes": 1}, "num_classes must be greater than or equal to 2, got 1"),
        ({"channels": 2}, "channels must be at least .*12; got 2"),
        ({"mean": (0.5,)}, "one value per image channel, 3; got 1"),
        ({"method": "svd"}, "method must be 'sll'.*, got 'svd'"),
        ({"image_shape": (3, 0, 32)}, "all positive"),
        ({"layout": "kw_large"}, r"layout kw_large has .*\(1, 1, 4, 2\); got \(2, 1, 4, 3\)"),
        ({"layout": "c2f"}, r"layout c2f has .*\(1, 1, 4, 3\); got \(2, 1, 4, 3\)"),
        (
            {"layout": "c2f", "stem": 1, "method": "sn"},
            "layout c2f is that of gloro and local and local_maxmin; got sn",
        ),
        (
            {"layout": "c2f", "stem": 1, "method": "gloro"},
            "groups of three convolutions, the last maybe of two; got 4",
        ),
        (
            {"layout": "lipnext", "method": "sn", "pool": 1, "dense_layers": 0},
            "layout lipnext is that of lipnext; got sn",
        ),
        (
            {"layout": "patches", "method": "lipnext", "pool": 1},
            "lipnext has the layouts flat and lipnext; got patches",
        ),
        ({"layout": "lipnext", "method": "lipnext"}, r"layout lipnext has .*\(2, 1, 4, 0\); got \(2, 1, 4, 3\)"),
        ({"layout": "patches"}, "changes its width, which a residual cannot; got sll"),
    ],
)
def test_specs_refuse_nonsense(overrides, message):
    with pytest.raises(ValueError, match=message) as error:
        model_spec("sll_nano", **overrides)
    assert "\n" not in str(error.value)


def test_registry():
    assert "sll_tiny" in lc.list_models("sll*")
    assert lc.list_models("nothing*") == []
    with pytest.raises(ValueError, match=r"no model 'resnet'; did you mean 'liresnet_tiny'.*`lipcert models`"):
        lc.create_model("resnet")
    with pytest.raises(ValueError, match="exists already"):
        lc.register_model("sll_tiny", lambda **overrides: None)


def test_a_registered_function_builds_a_network_for_a_shape_and_classes():
    def build(image_shape, num_classes, width=4):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(image_shape[0], width))

    lc.register_model("a_network", build)
    try:
        assert "a_network" in lc.list_models()
        network = lc.create_model("a_network", image_shape=(7,), num_classes=3, width=5)
        assert network[1].weight.shape == (5, 7)
        with pytest.raises(ValueError, match="exists already"):
            lc.register_model("a_network", build)
        with pytest.raises(ValueError, match=r"a_network is called with .*depth, which it does not take"):
            lc.create_model("a_network", depth=5)
    finally:
        del presets.BUILDERS["a_network"]


OWN = """
import torch

def number(image_shape, num_classes):
    return 3

def crash(image_shape, num_classes):
    return torch.nn.Linear(3, 4)(torch.zeros(5))

def fine(image_shape, num_classes):
    return torch.nn.Linear(image_shape[0], num_classes)

constant = 5
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothere:build", "there is no module 'nothere' in the current folder"),
        ("own_nets:nope", "'nope' does not exist in .*own_nets.py"),
        ("own_nets:constant", "'constant' is not a function"),
        ("own_nets:number", "own_nets:number must return a network, an nn.Module, and returned int"),
        ("own_nets:crash", r"failed for images of shape \(7,\), in own_nets.py, line 8: RuntimeError"),
        ("broken:build", "importing broken failed, in broken.py, line 1: NameError"),
        ("needy:build", "the module needy needs nothing_of_that_name, which is not installed"),
        ("no name:x", "there is no model 'no name:x'"),
    ],
)
def test_a_function_of_ones_own_that_cannot_be_used_is_named(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_nets.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("undefined_name")
    (tmp_path / "needy.py").write_text("import nothing_of_that_name")
    path = list(sys.path)
    with pytest.raises(ValueError, match=message):
        lc.create_model(name, image_shape=(7,), num_classes=3)
    assert sys.path == path
    assert lc.create_model("own_nets:fine", image_shape=(7,), num_classes=3).weight.shape == (3, 7)
    for module in ("own_nets", "broken", "needy"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("method", ["sll", "aol", "orthogonal", "sn", "sandwich"])
def test_a_table_has_a_network_without_images(method):
    model = lc.create_model(
        "sll_table", image_shape=(5,), num_classes=3, method=method, mean=(1.0,) * 5, std=(2.0,) * 5
    )
    assert lc.lipschitz_bound(model[0]) <= 0.5 + 1e-6
    assert lc.audit(lc.freeze(model.eval()), (5,)).ok
    with pytest.raises(ValueError, match="a table needs a model without convolutions"):
        model_spec("sll_nano", image_shape=(5,))


def test_a_spec_survives_json():
    spec = model_spec("cpl_tiny", image_shape=(1, 28, 28), mean=(0.3,))
    again = ModelSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert [p.shape for p in build(again).parameters()] == [p.shape for p in build(spec).parameters()]


def test_an_inert_q_is_live_in_the_dense_layers_only():
    model = lc.create_model("sll_inert_nano", image_shape=(1, 8, 8))
    kinds = {
        type(layer).__name__: type(layer.bound).__name__ for layer in model.modules() if hasattr(layer, "bound")
    }
    assert kinds == {"ResidualConv2d": "AOL", "ResidualLinear": "SLL"}


@pytest.mark.parametrize("method", ["sn", "orthogonal", "cayley", "aol_affine"])
def test_an_activation_that_nothing_would_use_is_refused(method):
    with pytest.raises(ValueError, match=f"activation is a setting of residual .* {method!r}"):
        lc.create_model("sll_nano", method=method, activation="tanh")
    lc.create_model("sll_nano", activation="tanh")


@pytest.mark.parametrize("method", ["sll", "sandwich", "soc_plus", "local", "local_maxmin"])
def test_relu_replaces_maxmin_and_is_refused_where_there_is_none(method):
    kinds = {type(module) for module in lc.create_model("gloro_nano", between="relu").modules()}
    assert nn.ReLU in kinds
    assert lc.layers.MaxMin not in kinds
    with pytest.raises(ValueError, match=f"between is a setting of .*{method!r}"):
        lc.create_model("sll_nano", method=method, between="relu")


def test_local_lip_b_clips_relu_or_maxmin():
    """Its rows of Tables 1 and 2: the one of TinyImageNet is printed as +MaxMin."""
    kinds = {
        name: [type(layer).__name__ for layer in lc.create_model(name)[0]]
        for name in ("local_6c2f", "local_maxmin_8c2f")
    }
    assert kinds["local_6c2f"][1:3] == ["TrackedConv2d", "ClippedReLU"]
    assert kinds["local_maxmin_8c2f"][1:4] == ["TrackedConv2d", "MaxMin", "Clip"]
    assert kinds["local_maxmin_8c2f"][-3:] == ["TrackedLinear", "MaxMin", "Clip"]
