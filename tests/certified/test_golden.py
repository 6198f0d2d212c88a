"""Proofs, stored numbers and training layers are what the golden set recorded; ``golden.py`` says how to read it.

``make test`` compares a part of the set that changes from layer to layer and covers every kind of hostile
parameters; LIPCERT_FULL=1 compares all of it.
"""

import functools

import pytest

import golden
import lipcert as lc
from full import full
from table import HOSTILE, LAYERS

stored = functools.cache(golden.load)
NANO = sorted(lc.list_models("*_nano"))


def some_kinds(name):
    """Two of the kinds, others for the next layer."""
    start = 5 * list(LAYERS).index(name)
    return full(list(HOSTILE), [list(HOSTILE)[(start + step) % len(HOSTILE)] for step in (0, 7)])


@pytest.fixture
def recorded():
    """The stored set, where its bits mean something."""
    if stored()["machine"] != golden.machine():
        pytest.skip("recorded on another kind of machine: python tests/golden.py --against COMMIT compares there")
    return stored()


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_stored_and_proved(name, recorded):
    for kind in some_kinds(name):
        new = golden.proof_of(lc.freeze(golden.hostile_layer(name, kind)), LAYERS[name].shape, kind)
        assert golden.difference(recorded["proofs"][f"{name} | {kind}"], new) is None, kind


@pytest.mark.parametrize("name", LAYERS)
def test_training_layers(name, recorded):
    for kind in some_kinds(name):
        old, new = recorded["training"][f"{name} | {kind}"], golden.training_of(name, kind)
        assert golden.training_difference(old, new, golden.TRAINING) is None, kind


@pytest.mark.parametrize("name", full(NANO, NANO[::3]))
def test_certified_radii(name, recorded):
    assert golden.difference(recorded["networks"][name], golden.certificate_of(name)) is None


def test_a_difference_is_found():
    """One bit of a constant, a method, a hash, a radius; and 1e-12 of a gradient."""
    old = stored()["proofs"]["head | random"]
    for change in ({"stored": "0"}, {"parts": []}):
        assert golden.difference(old, {**old, **change})
    a, b = 1.0, 1.0 + 2.0**-52
    assert golden.difference([a.hex()], [b.hex()]) == "0: 1.0 → 1.0000000000000002"
    assert golden.difference([a.hex()], [a.hex()]) is None
    assert golden.training_difference({"x": [1.0, 0.0]}, {"x": [1.0, 1e-12]}, golden.TRAINING)
