"""Gaussian noise on a grid, drawn exactly: K = round(s·N) for a standard normal N, from uniform random bits.

P(K ≤ k) = Φ((k + ½)/s) =: θ_k. A draw is the k with θ_(k−1) ≤ u < θ_k for a uniform real u, of which only as many
bits are drawn as decide it: 16 for most draws, 64 if a threshold may lie among the numbers that begin with these,
and 64 more while the enclosures of the thresholds leave a doubt. Nothing is rounded, clipped or cut off, so K
has exactly the distribution above if the bits are independent and uniform.

The bits come from the counter generator Philox4x64-10 (Salmon et al. 2011), whose 128-bit key is a hash of the seed
and the number of the image. That its output behaves like uniform bits is an assumption.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lipcert.verified.normal import cdf

LARGEST = 4096  # the largest scale: a table has about 19 thresholds for each unit of it
FIRST = 16  # bits that most draws take
WORD = 64
UNDECIDED, OPEN = np.iinfo(np.int32).min, np.iinfo(np.int16).min


class Bits:
    """Uniform random words of 64 bits, the same for the same seed and stream."""

    def __init__(self, seed: int, stream: int) -> None:
        key = hashlib.blake2b(f"lipcert smoothing, seed {seed}, image {stream}".encode(), digest_size=16).digest()
        self._generator = np.random.Philox(key=np.frombuffer(key, "<u8").astype(np.uint64))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.asarray(self._generator.random_raw(count), dtype=np.uint64)


class GridNoise:
    """K = round(s·N), exactly, for a rational scale s > 0: the standard deviation in steps of the grid."""

    def __init__(self, scale: Fraction) -> None:
        self.scale = scale
        # low ≤ θ_k·2⁶⁴ ≤ high for k = 0, 1, … as long as θ_k is clearly below 1; θ_(−k−1) = 1 − θ_k.
        upper: list[tuple[int, int]] = []
        one = 1 << WORD
        while (enclosure := self.threshold(len(upper), WORD))[1] < one:
            upper.append(enclosure)
        pairs = [(one - high, one - low) for low, high in reversed(upper)] + upper
        self._first = -len(upper)  # the k of the first threshold
        self._low, self._high = (np.array([pair[end] for pair in pairs], dtype=np.uint64) for end in (0, 1))
        cells = np.arange(1 << FIRST, dtype=np.uint64) << np.uint64(WORD - FIRST)
        self._table = self._decide(cells, cells + np.uint64((1 << (WORD - FIRST)) - 1))
        # Half the size is twice as fast. What 16 bits decide is at most 4.4·LARGEST < 2¹⁵.
        self._short = np.where(self._table == UNDECIDED, OPEN, self._table).astype(np.int16)

    def threshold(self, k: int, bits: int) -> tuple[int, int]:
        """Integers around θ_k·2^bits = Φ((k + ½)/s)·2^bits."""
        return cdf(Fraction(2 * k + 1) / (2 * self.scale), bits)

    def _decide(self, start: npt.NDArray[np.uint64], end: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """The k of every u in [start, end + 1)·2⁻⁶⁴, or UNDECIDED."""
        # The thresholds that are certainly at most every such u. The next one must be certainly above all of them.
        passed = np.searchsorted(self._high, start, side="right")
        # Beyond the last threshold of the table there are others, so that a draw from there is not decided.
        inside = (passed > 0) & (passed < len(self._high))
        clear = inside & (np.take(self._low, passed, mode="clip") > end)
        return np.where(clear, self._first + passed, UNDECIDED).astype(np.int32)

    def draw(self, count: int, bits: Bits) -> npt.NDArray[np.int32]:  # (count,)
        """``count`` independent draws of K."""
        words = bits.words(-(-count * FIRST // WORD))
        cells = words.astype("<u8", copy=False).view("<u2")[:count]
        short = np.take(self._short, cells, mode="clip")  # a cell is never outside; "clip" checks faster
        open_places, noise = np.flatnonzero(short == OPEN), short.astype(np.int32)
        if len(open_places):
            rest = bits.words(len(open_places)) >> np.uint64(FIRST)
            longer = (cells[open_places].astype(np.uint64) << np.uint64(WORD - FIRST)) | rest
            values = self._decide(longer, longer)
            for place in np.flatnonzero(values == UNDECIDED):
                values[place] = self.refine(int(longer[place]), WORD, bits)
            noise[open_places] = values
        return noise

    def refine(self, value: int, length: int, bits: Bits) -> int:
        """K of the uniform number that begins with the ``length`` bits of ``value``, with more bits as needed."""
        while True:
            value, length = value << WORD | int(bits.words(1)[0]), length + WORD
            # Bisect between two k whose thresholds are within 2^−length of 0 and 1.
            reach = math.ceil(self.scale * (math.isqrt(2 * length) + 1)) + 1
            low, high = -reach, reach
            while high - low > 1:
                middle = (low + high) // 2
                smallest, largest = self.threshold(middle, length)
                if largest <= value:
                    low = middle
                elif smallest > value:
                    high = middle
                else:
                    break
            # u lies between θ_low and θ_high; the ends of the search must be compared like any other.
            decided = self.threshold(low, length)[1] <= value < self.threshold(high, length)[0]
            if high - low == 1 and decided:
                return high


@lru_cache(maxsize=4)
def grid_noise(scale: Fraction) -> GridNoise:
    """The noise of this scale; its table takes a moment and is made once."""
    return GridNoise(scale)
