"""The probability of a coin, bounded from below by its tosses: Clopper and Pearson (1934), in integers.

With k hits in n tosses, every p with P(Bin(n, p) ≥ k) ≤ α is a lower bound of the coin's probability with
confidence 1 − α (docs/certifiers.md). Probabilities p are integers in units of 2⁻⁵³. Other numbers are m·2^e, and
every operation on them rounds up to ``BITS`` bits of m.

Rounding: ``tail_up`` is at least the truth, ``lower_bound`` at most.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

BITS = 160
UNIT = 53  # float64 holds every multiple of 2⁻⁵³ up to 1
Scaled = tuple[int, int]  # (m, e) stands for m·2^e


def tail_up(hits: int, tosses: int, p: int) -> Scaled:
    """At least P(Bin(n, p·2⁻⁵³) ≥ k) for k = ``hits`` and n = ``tosses``; only 1 where k ≤ n·p·2⁻⁵³.

    With q = 1 − p it is C(n, k)·p^k·q^(n−k)·(1 + r_k + r_k·r_(k+1) + …), where r_i = (n − i)p/((i + 1)q) decreases
    in i and r_k < 1.
    """
    q = (1 << UNIT) - p
    if hits << UNIT <= tosses * p:
        return 1, 0
    term = total = 1 << BITS
    for index in range(hits, tosses):
        top, bottom = (tosses - index) * p, (index + 1) * q
        if not term >> (BITS // 2):
            # The rest is at most term·(r + r² + …) = term·r/(1 − r), which changes nothing that matters.
            total += _divide_up(term * top, bottom - top)
            break
        term = _divide_up(term * top, bottom)
        total += term
    powers = _times(_power(p, hits), _power(q, tosses - hits))
    mantissa, exponent = _times(_times(_choose(tosses, hits), powers), (total, -BITS))
    return mantissa, exponent - UNIT * tosses


@lru_cache(maxsize=4096)
def lower_bound(hits: int, tosses: int, alpha: Fraction) -> Fraction:
    """A p with P(Bin(tosses, p) ≥ hits) ≤ alpha: the largest, up to 2⁻⁴⁰, if alpha ≤ ½; 0 without hits."""
    if not 0 <= hits <= tosses or not 0 < alpha < 1:
        raise ValueError(f"expected 0 ≤ hits ≤ tosses and 0 < alpha < 1; got {hits}, {tosses} and {alpha}.")
    if hits == 0:
        return Fraction(0)
    p, step = _proposal(hits, tosses, float(alpha)), 256
    while p > 0:
        mantissa, exponent = tail_up(hits, tosses, p)
        # This comparison of integers is the proof: m·2^e ≤ alpha.
        if mantissa * alpha.denominator << max(exponent, 0) <= alpha.numerator << max(-exponent, 0):
            return Fraction(p, 1 << UNIT)
        p, step = p - step, 4 * step
    return Fraction(0)


def _proposal(hits: int, tosses: int, alpha: float) -> int:
    """The p at which the tail is about alpha, by Newton's method in float64. It proves nothing."""
    log_choose = math.lgamma(tosses + 1) - math.lgamma(hits + 1) - math.lgamma(tosses - hits + 1)
    # Hoeffding's inequality bounds the tail by alpha at the lower end.
    high = hits / tosses
    low = max(high * 2.0**-40, high - math.sqrt(math.log(1 / alpha) / (2 * tosses)))
    p = (low + high) / 2
    for _ in range(100):
        total = term = 1.0
        for index in range(hits, tosses):
            term *= (tosses - index) * p / ((index + 1) * (1 - p))
            total += term
            if term < 2.0**-53 * total:
                break
        log_rest = (tosses - hits) * math.log1p(-p)
        excess = log_choose + hits * math.log(p) + log_rest + math.log(total) - math.log(alpha)
        low, high = (p, high) if excess < 0 else (low, p)
        # The derivative of the tail is its first term times hits/p.
        new = p - excess * p * total / hits
        new = new if low < new < high else (low + high) / 2
        if abs(new - p) <= 2.0**-50 * p:
            break
        p = new
    return int(p * (1 - 2.0**-46) * 2.0**UNIT)


def smallest_count(alpha: Fraction) -> int:
    """The smallest n for which n hits in n tosses prove a probability above ½: 2⁻ⁿ < alpha."""
    count = 1
    while alpha.numerator << count <= alpha.denominator:
        count += 1
    return count


def _times(x: Scaled, y: Scaled) -> Scaled:
    """At least x·y."""
    mantissa, exponent = x[0] * y[0], x[1] + y[1]
    extra = max(0, mantissa.bit_length() - BITS)
    return -(-mantissa >> extra), exponent + extra


def _power(base: int, count: int) -> Scaled:
    """At least base^count, by squaring."""
    result, square = (1, 0), (base, 0)
    while count:
        if count % 2:
            result = _times(result, square)
        square, count = _times(square, square), count // 2
    return result


@lru_cache(maxsize=64)
def _choose(n: int, k: int) -> Scaled:
    """At least C(n, k) = Π_j (n − k + j)/j for j = 1, …, k, with the smaller of k and n − k."""
    result, k = (1 << BITS, -BITS), min(k, n - k)
    for j in range(1, k + 1):
        mantissa, exponent = _times(result, (n - k + j, 0))
        result = _divide_up(mantissa, j), exponent
    return result


def _divide_up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
