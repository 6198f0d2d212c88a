"""Φ and its inverse, against ball arithmetic at many points."""

import random
from fractions import Fraction

import flint
import pytest

from full import full
from lipcert.verified.normal import _arctan, _pi, cdf, quantile_down


@pytest.fixture(autouse=True)
def precise():
    before, flint.ctx.prec = flint.ctx.prec, 400
    yield
    flint.ctx.prec = before


def ball(value):
    return flint.arb(flint.fmpq(value.numerator, value.denominator))


def phi(t):
    """Φ(t) = erfc(−t/√2)/2, by another library."""
    return (-ball(t) / flint.arb(2).sqrt()).erfc() / 2


def encloses(low, high, t, bits):
    """Whether low ≤ Φ(t)·2^bits ≤ high; compared in the tail, where a ball has many digits."""
    if t > 0:
        low, high, t = 2**bits - high, 2**bits - low, -t
    return flint.arb(low) <= phi(t) * flint.arb(2) ** bits <= flint.arb(high)


def points(count):
    generator = random.Random(0)
    for _ in range(count):
        kind = generator.random()
        if kind < 0.4:
            yield Fraction(generator.uniform(-10, 10))
        elif kind < 0.8:  # thresholds of noise
            yield Fraction(2 * generator.randrange(-500, 500) + 1, 2 * generator.randrange(1, 400))
        else:  # very small and very large
            yield Fraction(generator.choice((-1, 1)) * 10 ** generator.uniform(-30, 3))


def test_cdf_encloses_phi():
    for t in points(full(40_000, 10_000)):
        bits = random.Random(hash(t)).choice((16, 53, 64, 128))
        low, high = cdf(t, bits)
        assert encloses(low, high, t, bits), (t, bits)
        assert high - low <= 1


def test_cdf_at_the_ends():
    assert cdf(Fraction(0), 64) == (2**63, 2**63)
    assert cdf(Fraction(10**6), 64) == (2**64 - 1, 2**64)
    assert cdf(Fraction(-(10**6)), 64) == (0, 1)


def test_many_bits():
    for bits in (160, 256):
        low, high = cdf(Fraction(37, 4), bits)
        assert encloses(low, high, Fraction(37, 4), bits)
        assert high - low <= 1


def test_pi():
    for unit in (64, 200, 300):
        low, high = _pi(unit)
        assert flint.arb(low) <= flint.arb.pi() * flint.arb(2) ** unit <= flint.arb(high)
        assert high - low <= 2


def test_the_error_of_an_arctangent_is_covered():
    for n in range(2, 300):
        value, error = _arctan(n, 64)
        assert abs(flint.arb(value) - (flint.arb(1) / n).atan() * flint.arb(2) ** 64) < error


def test_quantiles_are_rounded_down_and_close():
    generator = random.Random(1)
    for _ in range(full(20_000, 10_000)):
        rest = Fraction(generator.uniform(0, 0.5)) * Fraction(1, 10 ** generator.randrange(9))
        p = 1 - max(rest, Fraction(1, 2**30))
        if p <= Fraction(1, 2):
            continue
        t = Fraction(quantile_down(p))
        assert phi(t) <= ball(p), p
        assert phi(t + Fraction(1, 2**40)) > ball(p), p


def test_quantiles_of_shares_very_close_to_one_half_and_to_one():
    for p in (Fraction(1, 2) + Fraction(1, 2**200), 1 - Fraction(1, 2**90), 1 - Fraction(1, 2**2000)):
        t = quantile_down(p)
        assert t >= 0
        assert phi(Fraction(t)) <= ball(p) or t == 0.0


@pytest.mark.parametrize("p", [Fraction(1, 2), Fraction(0), Fraction(1), Fraction(3, 2)])
def test_other_shares_are_refused(p):
    with pytest.raises(ValueError, match="between 1/2 and 1"):
        quantile_down(p)
