"""Architectures: the published parameter counts, every method at every input size, specs that refuse nonsense."""

import pytest
import torch
from pydantic import ValidationError

import lipcert as lc
from lipcert.models.build import build
from lipcert.models.presets import TORUS, model_spec
from lipcert.models.spec import Method, ModelSpec


def parameters(name, **overrides):
    with torch.device("meta"):
        return sum(p.numel() for p in lc.create_model(name, **overrides).parameters())


@pytest.mark.parametrize(
    ("size", "millions"), [("small", 41.4), ("medium", 78.8), ("large", 118.3), ("xlarge", 236.5)]
)
def test_sizes_have_the_published_parameter_counts(size, millions):
    assert parameters(f"sll_{size}") / 1e6 == pytest.approx(millions, abs=0.06)
    assert parameters(f"cpl_{size}") / 1e6 == pytest.approx(millions, abs=0.1)  # without q
    assert parameters(f"aol_{size}") / 1e6 == pytest.approx(millions, abs=0.1)


def test_the_printed_table_is_another_architecture():
    """FIELD's trap: the printed L and XL do not have the parameters that Table 1 counts."""
    assert parameters("sll_table3_small") == parameters("sll_small")
    assert parameters("sll_table3_medium") == parameters("sll_medium")
    assert parameters("sll_table3_large") / 1e6 > 200
    assert parameters("sll_table3_xlarge") / 1e6 > 250


@pytest.mark.parametrize("method", Method.__args__)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_every_method_builds_and_is_1_lipschitz(method, shape):
    slow = method in TORUS and shape == (3, 64, 64)  # nano has 32 × 32 pixels there, and a matrix for each
    for size in ("tiny",) if slow else ("nano", "tiny"):
        model = lc.create_model(f"{method}_{size}", image_shape=shape, num_classes=3, dense_layers=2, conv_layers=1)
        backbone = model[0]
        assert lc.lipschitz_bound(backbone.eval()) == 1.0
        x = torch.rand(2, *shape)
        assert model(x).shape == (2, 3)
        moved = (backbone(x) - backbone(x + 0.1)).flatten(1).norm(dim=1)
        assert (moved <= 0.1 * (x[0].numel() ** 0.5) * (1 + 1e-5)).all()


@pytest.mark.parametrize("classes", [2, 200])
def test_any_number_of_classes(classes):
    assert lc.create_model("sll_nano", num_classes=classes)(torch.rand(1, 3, 32, 32)).shape == (1, classes)


def test_dividing_by_std_costs_radius():
    model = lc.create_model("sll_nano", mean=(0.4, 0.5, 0.6), std=(0.25, 0.5, 1.0))
    assert lc.lipschitz_bound(model[0]) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"depth": 3}, "Extra inputs are not permitted"),
        ({"num_classes": 1}, "greater than or equal to 2"),
        ({"channels": 2}, "channels must be at least .*12; got 2"),
        ({"mean": (0.5,)}, "one value per image channel, 3; got 1"),
        ({"method": "svd"}, "Input should be"),
        ({"image_shape": (3, 0, 32)}, "all positive"),
    ],
)
def test_specs_refuse_nonsense(overrides, message):
    with pytest.raises(ValidationError, match=f"(?s){message}"):
        model_spec("sll_nano", **overrides)


def test_registry():
    assert "sll_tiny" in lc.list_models("sll*")
    assert lc.list_models("nothing*") == []
    with pytest.raises(ValueError, match=r"model must be one of .*got 'resnet'.*lipcert models"):
        lc.create_model("resnet")
    with pytest.raises(ValueError, match="exists already"):
        lc.register_model("sll_tiny", lambda **overrides: None)


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
