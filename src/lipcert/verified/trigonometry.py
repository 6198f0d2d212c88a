"""Cosines and sines of rational angles, from integers: a platform's libm proves nothing.

Fixed point with 128 bits after the point, π to 128 bits, Taylor's series at an angle of at most π/4.

Rounding: the tables are within u/2 + 2⁻¹¹⁸ of the true values (one rounding to nearest of a number of modulus at
most 1), so within u; ``cos_squared_down`` is rounded down.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lipcert.verified.rounding import Array, down

BITS = 128
ONE = 1 << BITS
PI = 0x3_243F6A88_85A308D3_13198A2E_03707344  # ⌊π·2¹²⁸⌋
ERROR = 1 << 10  # every fixed-point value below is within 2¹⁰·2⁻¹²⁸ = 2⁻¹¹⁸ of the truth


def _small(numerator: int, denominator: int) -> tuple[int, int]:
    """cos and sin of 2π·numerator/denominator, for angles from 0 to π/4, in units of 2⁻¹²⁸ and within ERROR."""
    angle = 2 * PI * numerator // denominator
    square = angle * angle >> BITS
    term_cos, term_sin, cos, sin = ONE, angle, 0, 0
    for k in range(0, 60, 2):  # 30 terms of each; the next is below 2⁻²⁶⁰
        cos, sin = cos + term_cos, sin + term_sin
        term_cos = -((term_cos * square >> BITS) // ((k + 1) * (k + 2)))
        term_sin = -((term_sin * square >> BITS) // ((k + 2) * (k + 3)))
    return cos, sin


def fixed_point(numerator: int, denominator: int) -> tuple[int, int]:
    """cos and sin of 2π·numerator/denominator in units of 2⁻¹²⁸ and within ERROR, by the symmetry of octants."""
    octant, rest = divmod(8 * (numerator % denominator), denominator)  # angle = (octant + rest/denominator)·π/4
    rest = denominator - rest if octant % 2 else rest  # from the nearer multiple of π/2
    cos, sin = _small(rest, 8 * denominator)
    sin = -sin if octant % 2 else sin
    quarter = (octant + 1) // 2 % 4
    return ((cos, sin), (-sin, cos), (-cos, -sin), (sin, -cos))[quarter]


@lru_cache(maxsize=32)
def tables(count: int) -> tuple[Array, Array]:
    """cos(2πk/count) and sin(2πk/count), k = 0, …, count − 1, each within u."""
    pairs = [fixed_point(k, count) for k in range(count)]
    cos = np.array([pair[0] / ONE for pair in pairs])  # a quotient of integers is correctly rounded
    sin = np.array([pair[1] / ONE for pair in pairs])
    cos.setflags(write=False)
    sin.setflags(write=False)
    return cos, sin


def cos_squared_down(degree: int, points: int) -> float:
    """At most cos²(π·degree/(2·points)), at least 0, for 0 ≤ degree ≤ points: the loss in one axis of a grid."""
    if degree == 0:
        return 1.0
    cos = max(0, fixed_point(degree, 4 * points)[0] - ERROR)
    return down(cos * cos / (ONE * ONE), 1)
