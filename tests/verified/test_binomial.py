"""Clopper-Pearson bounds, against rational arithmetic; their coverage, computed exactly."""

import math
import random
from fractions import Fraction

import pytest

from full import full
from lipcert.verified.binomial import UNIT, lower_bound, smallest_count, tail_up

ONE = 1 << UNIT


def tail(hits, tosses, p):
    """P(Bin(tosses, p) ≥ hits), exactly."""
    return sum(math.comb(tosses, i) * p**i * (1 - p) ** (tosses - i) for i in range(hits, tosses + 1))


def as_fraction(scaled):
    mantissa, exponent = scaled
    return mantissa * Fraction(2) ** exponent


def test_tails_are_rounded_up_and_close():
    generator = random.Random(0)
    for _ in range(full(10_000, 600)):
        tosses = generator.randrange(1, 60)
        hits = generator.randrange(1, tosses + 1)
        p = generator.randrange(1, max(2, (hits << UNIT) // tosses))
        exact, computed = tail(hits, tosses, Fraction(p, ONE)), as_fraction(tail_up(hits, tosses, p))
        assert exact <= computed <= exact * (1 + Fraction(1, 2**60))


def test_a_tail_above_its_mean_is_only_bounded_by_one():
    assert tail_up(5, 10, ONE // 2) == (1, 0)


@pytest.mark.parametrize("alpha", [Fraction(1, 1000), Fraction(1, 20), Fraction(2, 5), Fraction(9, 10)])
def test_bounds_are_the_largest_that_are_proved(alpha):
    generator = random.Random(1)
    for _ in range(full(500, 60)):
        tosses = generator.randrange(1, 80)
        hits = generator.randrange(tosses + 1)
        p = lower_bound(hits, tosses, alpha)
        assert tail(hits, tosses, p) <= alpha or hits == 0
        if hits and alpha < Fraction(1, 2):
            assert tail(hits, tosses, p + Fraction(1, 2**40)) > alpha


def test_bounds_of_many_tosses():
    # n hits in n tosses prove p = α^(1/n).
    for tosses in (10, 10_000, 100_000):
        p = lower_bound(tosses, tosses, Fraction(1, 1000))
        assert float(p) == pytest.approx(0.001 ** (1 / tosses), rel=1e-12)
    for hits, tosses in ((9_000, 10_000), (60_000, 100_000), (99_990, 100_000)):
        p = lower_bound(hits, tosses, Fraction(1, 1000))
        assert as_fraction(tail_up(hits, tosses, int(p * ONE))) <= Fraction(1, 1000)
        assert as_fraction(tail_up(hits, tosses, int((p + Fraction(1, 2**36)) * ONE))) > Fraction(1, 1000)


def test_coverage_computed_exactly():
    """P(bound > p) ≤ α for every p: summed over all outcomes, without sampling; and it is not far below."""
    for tosses, alpha in ((1, Fraction(1, 3)), (12, Fraction(1, 10)), (40, Fraction(1, 100))):
        bounds = [lower_bound(hits, tosses, alpha) for hits in range(tosses + 1)]
        worst = Fraction(0)
        shares = [Fraction(i, 64) for i in range(1, 64)] + [bound - Fraction(1, 2**50) for bound in bounds[1:]]
        for p in shares:
            wrong = [hits for hits in range(tosses + 1) if bounds[hits] > p]
            risk = sum(
                (math.comb(tosses, hits) * p**hits * (1 - p) ** (tosses - hits) for hits in wrong), Fraction(0)
            )
            assert risk <= alpha
            worst = max(worst, risk)
        assert worst > alpha * Fraction(999, 1000)


def test_the_smallest_count_is_the_first_that_proves_anything():
    for alpha in (Fraction(1, 1000), Fraction(1, 1024), Fraction(1, 2), Fraction(9, 10), Fraction(1, 10**9)):
        count = smallest_count(alpha)
        assert Fraction(1, 2**count) < alpha
        assert count == 1 or Fraction(1, 2 ** (count - 1)) >= alpha
        if alpha < Fraction(1, 2):
            assert lower_bound(count, count, alpha) > Fraction(1, 2)
            assert lower_bound(count - 1, count - 1, alpha) <= Fraction(1, 2)


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="hits"):
        lower_bound(5, 4, Fraction(1, 10))
