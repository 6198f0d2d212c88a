"""Laws of random small graphs: nothing is above the proved constant, and nothing outside the rounding bounds."""

from fractions import Fraction

import pytest
import torch

import graphs
import lipcert as lc
from full import full
from lipcert.certified.freeze import prove
from lipcert.certified.network import Network
from lipcert.exporters.export import float32_bound

ROUNDING = 1e-11  # singular values of matrices with at most 60 rows, in float64


def jacobian_norm(network, x):
    flat = lambda v: network(v.view(1, *x.shape)).flatten()  # noqa: E731
    return float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(flat, x.flatten()), 2))


def largest_jacobian(network, shape, seed, *, points=3, steps=3):
    """The largest norm of a Jacobian that a random search from points of several sizes finds."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda size: size * torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    best, place = max(
        ((jacobian_norm(network, x), x) for x in (draw(size) for size in (0.1, 1.0, 5.0)[:points])),
        key=lambda pair: pair[0],
    )
    for _ in range(steps):
        x = place + draw(0.5)
        norm = jacobian_norm(network, x)
        best, place = (norm, x) if norm > best else (best, place)
    return best


def check_random_graph(seed):
    """The laws for one graph in floating point; gives (lower, upper, the share of the float32 bound used)."""
    module = graphs.Random(seed)
    frozen = lc.freeze(module)
    assert type(frozen) is Network
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, *module.input_shape, generator=generator)
    with torch.no_grad():
        expected, found = module(x.clone()), frozen(x)
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-5 * (1 + float(expected.abs().max()))

    proved = prove(frozen, module.input_shape)
    logits, allowed, _ = float32_bound(proved, x)
    away = (found.double() - logits).abs()
    assert bool((away <= allowed).all())

    lower = largest_jacobian(module.double(), module.input_shape, seed)
    assert lower <= proved.lipschitz * (1 + 1e-6)  # the weights of the module were rounded to float32 before
    return lower, proved.lipschitz, float((away / allowed).max())


def check_exactly(seed):
    """Constants and float64 intervals against fractions, at two points and at a third within the ball."""
    module = graphs.Random(seed, rational=True)
    proved = prove(lc.freeze(module), module.input_shape)
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, *module.input_shape, generator=generator, dtype=torch.float64)
    step = torch.randn(module.input_shape, generator=generator, dtype=torch.float64)
    near = x + 0.01 * step / step.norm()
    values = {name: exact_output(proved, point) for name, point in (("x", x), ("y", y), ("near", near))}
    for point, name in ((y, "y"), (near, "near")):
        moved = squares(values["x"] - values[name])
        apart = squares(graphs.fractions(x) - graphs.fractions(point))
        assert moved <= Fraction(proved.lipschitz) ** 2 * apart
    for radius, name in ((0.0, "x"), (0.0101, "near")):
        low, high = lc.output_interval(proved, x[None], radius)
        for a, value, b in zip(low[0].tolist(), values[name], high[0].tolist(), strict=True):
            assert Fraction(a) <= value <= Fraction(b)
    low, high = lc.output_interval(proved, x[None], 0.0)
    size = 1 + max(abs(float(value)) for value in values["x"])
    assert float((high - low).max()) <= 1e-9 * size * max(1.0, proved.lipschitz)  # and it says something
    return len(proved.parts)


def exact_output(proved, x):
    values = {-1: graphs.fractions(x)}
    for index, part in enumerate(proved.parts):
        values[index] = graphs.exactly(part, *(values[place] for place in part.inputs))
        assert values[index].shape == part.proof.shape
    return values[len(proved.parts) - 1]


def squares(values):
    return sum(value**2 for value in values.flatten().tolist())


@pytest.mark.parametrize("seed", range(full(600, 24)))
def test_random_graphs(seed):
    check_random_graph(seed)


@pytest.mark.parametrize("seed", range(full(200, 12)))
def test_random_graphs_in_fractions(seed):
    check_exactly(seed)
