"""Gaussian noise on a grid: the table and the refinements against exact thresholds."""

from fractions import Fraction

import flint
import numpy as np
import pytest

from lipcert.certifiers.noise import FIRST, UNDECIDED, Bits, GridNoise, grid_noise

SCALES = [Fraction(1, 4), Fraction(1), Fraction(51, 10), Fraction(255, 8), Fraction(255, 4)]


@pytest.fixture(autouse=True)
def precise():
    before, flint.ctx.prec = flint.ctx.prec, 600
    yield
    flint.ctx.prec = before


def theta(k, scale):
    """P(round(scale·N) ≤ k) = Φ((k + ½)/scale), by another library."""
    t = Fraction(2 * k + 1) / (2 * scale)
    return (-flint.arb(flint.fmpq(t.numerator, t.denominator)) / flint.arb(2).sqrt()).erfc() / 2


def belongs(k, start, end, bits, scale):
    """Whether all of [start, end)·2^−bits lies between θ_(k−1) and θ_k."""
    unit = flint.arb(2) ** bits
    return theta(k - 1, scale) * unit <= flint.arb(start) and flint.arb(end) <= theta(k, scale) * unit


class Given:
    """Words that a test chooses, in place of random ones."""

    def __init__(self, words):
        self.left = list(words)

    def words(self, count):
        taken, self.left = self.left[:count], self.left[count:]
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64)


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_every_cell_of_the_table(scale):
    """All 65,536 beginnings of a draw: a decided cell lies between two thresholds, an open one contains one."""
    table = grid_noise(scale)._table
    decided = table != UNDECIDED
    for k in np.unique(table[decided]):
        (cells,) = np.nonzero(table == k)
        assert cells[-1] - cells[0] + 1 == len(cells)
        assert belongs(int(k), int(cells[0]), int(cells[-1]) + 1, FIRST, scale)
    (open_cells,) = np.nonzero(~decided)
    assert len(open_cells) < 8 * float(scale) * 2 + 4
    inner = [cell for cell in open_cells.tolist() if 0 < cell < 2**FIRST - 1]
    for cell in inner:
        near = [int(table[c]) for c in (cell - 1, cell + 1) if table[c] != UNDECIDED]
        if near:
            assert not any(belongs(k, cell, cell + 1, FIRST, scale) for k in (*near, near[0] + 1, near[0] - 1))


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_64_bits_beside_every_threshold(scale):
    noise = grid_noise(scale)
    beside = {
        int(end) + step
        for end in (*noise._low.tolist(), *noise._high.tolist())
        for step in (-2, -1, 0, 1)
        if 0 <= int(end) + step < 2**64
    }
    places = np.array(sorted(beside), dtype=np.uint64)
    values = noise._decide(places, places)
    for place, value in zip(places.tolist(), values.tolist(), strict=True):
        if value != UNDECIDED:
            assert belongs(value, place, place + 1, 64, scale), place
    # Within one unit of a threshold a draw stays open, and beyond the last one; nothing else does.
    assert (values == UNDECIDED).sum() <= len(noise._low) + 8


@pytest.mark.parametrize("k", [-300, -5, -1, 0, 3, 300])
def test_more_bits_decide_what_64_leave_open(k):
    scale = Fraction(255, 4)
    noise = grid_noise(scale)
    low, high = noise.threshold(k, 192)
    assert high - low <= 1
    for value, answer in ((low - 1, k), (high, k + 1)):
        words = [value >> shift & (2**64 - 1) for shift in (128, 64, 0)]
        source = Given(words[1:])
        assert noise.refine(words[0], 64, source) == answer
        # All but the last word are those of the threshold itself, so that the last one was needed.
        assert not source.left
    # The beginning of a draw is undecided there.
    start = np.array([low >> 128], dtype=np.uint64)
    assert noise._decide(start, start)[0] == UNDECIDED


def test_the_tails_have_no_end():
    """64 zeros are not the end of the distribution: the next bits decide how far out the draw is."""
    scale = Fraction(2)
    noise = grid_noise(scale)
    for words in ([2**63], [1], [0, 5], [0, 0, 2**40]):
        value = 0
        for word in words:
            value = value << 64 | word
        bits = 64 * (1 + len(words))
        k = noise.refine(0, 64, Given(words))
        assert belongs(k, value, value + 1, bits, scale)
        ones = [2**64 - 1 - word for word in words]
        assert noise.refine(2**64 - 1, 64, Given(ones)) == -k


def test_a_draw_is_what_its_bits_say():
    """All 65,536 beginnings, four in a word: draws are those of the table; open ones use the next words."""
    scale = Fraction(255, 8)
    noise = grid_noise(scale)
    cells = np.arange(2**FIRST, dtype=np.uint64)
    words = cells[0::4] | cells[1::4] << np.uint64(16) | cells[2::4] << np.uint64(32) | cells[3::4] << np.uint64(48)
    (open_cells,) = np.nonzero(noise._table == UNDECIDED)
    more = [0x0123_4567_89AB_CDEF * (i + 1) % 2**64 for i in range(len(open_cells) + 4)]
    draws = noise.draw(2**FIRST, Given([*words.tolist(), *more]))
    decided = noise._table != UNDECIDED
    np.testing.assert_array_equal(draws[decided], noise._table[decided])
    for cell, word in list(zip(open_cells.tolist(), more, strict=False))[1:-1]:  # the outermost take more words
        value = cell << 48 | word >> 16
        assert belongs(int(draws[cell]), value, value + 1, 64, scale)


def test_streams_are_repeated_and_differ():
    noise = grid_noise(Fraction(5))
    first, again = (noise.draw(1000, Bits(3, 7)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    for other in (Bits(3, 8), Bits(4, 7)):
        assert (noise.draw(1000, other) != first).mean() > 0.5


def test_moments_of_a_million_draws():
    """The variance of round(s·N) is s² + 1/12 up to e^(−2π²s²), its mean 0."""
    scale = Fraction(5)
    draws = GridNoise(scale).draw(10**6, Bits(0, 0)).astype(np.float64)
    variance = 25 + 1 / 12
    assert abs(draws.mean()) < 6 * (variance / 1e6) ** 0.5
    assert abs(draws.var() - variance) < 6 * variance * (2 / 1e6) ** 0.5
