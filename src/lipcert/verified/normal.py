"""Φ(t) = P(N ≤ t) of a standard normal N, enclosed in integers, and lower bounds of Φ⁻¹: libm proves nothing.

For t ≥ 0, Φ(t) = ½ + (1/√(2π)) Σ_i (−1)^i t·zⁱ/(i!·(2i + 1)) with z = t²/2. Every number is a pair of integers
in units of 2^−W, one rounded down and one rounded up, so that the truth lies between them.

Rounding: ``cdf`` is an enclosure, ``quantile_down`` is at most the truth.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

BITS = 128  # in which quantile_down compares


def cdf(t: Fraction, bits: int) -> tuple[int, int]:
    """Integers low ≤ Φ(t)·2^bits ≤ high that differ by at most 2, for every rational t."""
    one = 1 << bits
    if t < 0:
        low, high = cdf(-t, bits)  # Φ(−t) = 1 − Φ(t)
        return one - high, one - low
    # 1 − Φ(t) ≤ ½e^(−t²/2) < 2^(−0.72t²−1) is below the last bit then, because log₂(e)/2 > 0.7213.
    if 18 * t * t >= 25 * bits:
        return one - 1, one
    # The terms reach e^z < 2^(t²), and what a hundred roundings lose of them must stay below 2^−bits.
    unit = -(-(bits + math.ceil(t * t) + 64) // 64) * 64
    low, high = _series(t, unit)
    smallest, largest = _root(unit)  # of 1/√(2π)
    low, high = low * smallest >> unit, _shift_up(high * largest, unit)
    half, rest = 1 << (unit - 1), unit - bits
    return (half + low) >> rest, min(one, _shift_up(half + high, rest))


def _series(t: Fraction, unit: int) -> tuple[int, int]:
    """0 ≤ low ≤ Σ_i (−1)^i t·zⁱ/(i!·(2i + 1)) ≤ high in units of 2^−unit, with z = t²/2 and t ≥ 0."""
    term_low = (t.numerator << unit) // t.denominator
    term_high = _divide_up(t.numerator << unit, t.denominator)
    z_low, z_high = term_low * term_low >> (unit + 1), _shift_up(term_high * term_high, unit + 1)
    low = high = index = 0
    # From the index z on, the terms decrease and alternate, so the rest is at most the first term left out.
    while index << unit < z_high or term_high > 2:
        odd = 2 * index + 1
        if index % 2:
            low, high = low - _divide_up(term_high, odd), high - term_low // odd
        else:
            low, high = low + term_low // odd, high + _divide_up(term_high, odd)
        index += 1
        term_low = (term_low * z_low >> unit) // index
        term_high = _divide_up(_shift_up(term_high * z_high, unit), index)
    return max(0, low - term_high), high + term_high


@lru_cache(maxsize=64)
def _root(unit: int) -> tuple[int, int]:
    """low ≤ 2^unit/√(2π) ≤ high."""
    low, high = _pi(unit)
    cube = 1 << (3 * unit)
    return math.isqrt(cube // (2 * high)), math.isqrt(_divide_up(cube, 2 * low)) + 1


def _pi(unit: int) -> tuple[int, int]:
    """low ≤ π·2^unit ≤ high, by Machin's π = 16·arctan(1/5) − 4·arctan(1/239)."""
    guard = unit + 64
    (fifth, first), (rest, second) = _arctan(5, guard), _arctan(239, guard)
    value, error = 16 * fifth - 4 * rest, 16 * first + 4 * second
    return (value - error) >> 64, _shift_up(value + error, 64)


def _arctan(n: int, unit: int) -> tuple[int, int]:
    """arctan(1/n)·2^unit and a bound of its error, for n ≥ 2: Σ_i (−1)^i/((2i + 1)·n^(2i+1))."""
    power, total, index = (1 << unit) // n, 0, 0
    while power:
        term = power // (2 * index + 1)
        total += -term if index % 2 else term
        power //= n * n
        index += 1
    # Floors of floors: each power is less than 2 too small, so each term is; what is left out is less than 2.
    return total, 2 * index + 2


def quantile_down(p: Fraction) -> float:
    """A float t with Φ(t) ≤ p and so t ≤ Φ⁻¹(p), for ½ < p < 1; within 2⁻⁴⁰ of it where 1 − p > 2⁻³⁰."""
    if not Fraction(1, 2) < p < 1:
        raise ValueError(f"p must lie between 1/2 and 1; got {p}. Pass a share above one half.")
    # The standard library proposes t, the enclosure decides. 1 − p has more digits than p.
    t = -NormalDist().inv_cdf(float(1 - p)) if 1 - p > Fraction(1, 2**1000) else 0.0
    step = 2.0**-50
    while t > 0 and cdf(Fraction(t), BITS)[1] * p.denominator > p.numerator << BITS:
        t, step = t * (1 - step) - 2.0**-60, 2 * step
    return max(t, 0.0)


def _divide_up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _shift_up(value: int, bits: int) -> int:
    return -(-value >> bits)
