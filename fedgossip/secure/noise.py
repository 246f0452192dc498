"""Noise of integers, exact: the discrete Gaussian, P(y) proportional to f(y) = exp(-y^2 / (2 sigma^2)) for whole y.

    table   2^CELL_BITS cells.  A cell is `width` integers next to each other and one of the `rows` into which the
            heights from 0 to 1 are divided.  The cells cover the area below f; the few left over count as misses
    draw    a cell by the first bits of a word, an integer y of it by the last bits
            all of the cell is below f:  y is drawn
            else:  a height in the cell by another word; y is drawn if it is below f(y), else all begins again
    tail    beyond REACH sigma some cells represent endless strips, each half as likely as the one before it, and of
            half the height; in them as in every other cell, integer and height are uniform

All cells are equally likely and of equal area, so the chance of y is proportional to f(y).  98 of 100 numbers take one
word, one lookup and an addition.

Exact: the table holds whole numbers.  A height's first 63 bits are drawn, and float64 gives its logarithm to SLACK; a
decision within SLACK, or a height that begins with 20 zeros, is repeated by decimal arithmetic.  So no float error
changes the distribution: its total variation distance from P is 0 for random words, which AES-CTR is assumed to give.
The time depends on the noise, not on the hidden numbers.

Sources: Ahrens, A one-table method for sampling from continuous and discrete distributions, Computing 54 (1995);
Buchmann, Cabarcas, Goepfert, Huelsing and Weiden, Discrete ziggurat, SAC 2013; use: Canonne, Kamath and Steinke, The
discrete Gaussian for differential privacy, NeurIPS 2020.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import CipherContext

from fedgossip.base.errors import ConfigError
from fedgossip.secure.primitives import Entropy, keystream

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

SMALLEST, LARGEST = 0.5, 2.0**28
"""Range of sigma.  A draw exceeds 8 sigma once in 10^15 times."""

SINGLE_MOST = 2.0**21
"""Largest sigma with draws that float32 represents, but for some beyond 8 sigma."""

EXACT_SINGLES = 1 << 24

CELL_BITS = 16
"""Bits of a word that select a cell; 2 % of the cells are not all below f."""

NARROW = 40
"""Widths are the largest power of two of at most sigma / NARROW, or 1."""

REACH = 4
"""Start of the tails, in sigma."""

PREFIX_BITS = 63
"""Number of first bits of a height."""

SURE = 1 << 43
"""Minimum of a decisive prefix: the prefix of a height that begins with 20 zeros or more is too coarse."""

SLACK = 2.0**-40
"""Error bound of a logarithm: prefixes leave 2^-43 open, float64 is off by a few 2^-46."""

BLOCK = 16_384  # words at a time: their arrays stay in the second-level cache
TURN = 1 << 18  # numbers, of which those whose cells are not all below f are decided together
CIPHER_BLOCK = 16  # bytes, of AES
MORE_BITS = 64

_ZEROS = memoryview(bytes(8 * BLOCK))


def discrete_gaussian(sigma: float, size: int, entropy: Entropy) -> Integers:
    """Return `size` independent integers of parameter `sigma`, SMALLEST to LARGEST, int64 [size].

    Variance sigma^2, less below 1: 0.86 of it at 0.5.  A function of 32 bytes of entropy.  Raises ConfigError for
    another sigma.
    """
    found = np.empty(size, np.int64)
    DiscreteGaussian(sigma, entropy).fill(found)
    return found


class DiscreteGaussian:
    """Draws integers as `discrete_gaussian`, repeatedly, from 32 bytes of entropy.  Raises ConfigError for another
    sigma.
    """

    def __init__(self, sigma: float, entropy: Entropy) -> None:
        if not SMALLEST <= sigma <= LARGEST:
            raise ConfigError(
                f"noise of {sigma:g} units; the sampler draws {SMALLEST:g} to {LARGEST:g}",
                "Fewer bits make the units of a sum larger, more bits make them smaller.",
            )
        self._cells, self._dice = cells_of(float(sigma)), keystream(entropy(32))

    def fill(self, out: Integers | Floats | Singles) -> dict[int, int]:
        """Fill an array; return the draws that float32 (above 2^24) cannot represent, by place; its sigma is at most
        SINGLE_MOST.
        """
        assert out.dtype != np.float32 or self._cells.sigma <= SINGLE_MOST
        far: dict[int, int] = {}
        for start in range(0, len(out), TURN):
            places, values = self._cells.fill(out[start : start + TURN], self._dice)
            if out.dtype == np.float32:
                (beyond,) = (np.abs(values) > EXACT_SINGLES).nonzero()
                far.update(zip((places[beyond] + start).tolist(), values[beyond].tolist(), strict=True))
        return far


@dataclass(frozen=True, eq=False)
class Cells:
    """The table for a sigma: the cells all below f, the others, those of the tails, and the empty ones."""

    sigma: float
    width: int
    """Number of integers of a cell, a power of two."""
    rows: int
    """Number of rows that divide heights from 0 to 1: the maximum for the number of cells."""
    starts: npt.NDArray[Any]
    """The least integer of each cell, int32; int64 where 32 bits are not enough for a cell and an integer of it."""
    below: int
    """Number of cells all below f."""
    row: Floats
    """Row of each other cell, from 0; of an empty one: infinite."""
    side: npt.NDArray[np.int8]
    """Side of each of these: 1 in the right tail, -1 in the left one, else 0."""
    tail_start: int
    tail_width: int
    """Number of integers of a strip, a power of two times `width`."""

    def fill(self, out: Integers | Floats | Singles, dice: CipherContext) -> tuple[Places, Integers]:
        """Fill an array with independent draws; return the places, and draws, of the cells not all below f."""
        places, words = self._guessed(out, dice)
        values = self._decided(words, dice) if len(words) else np.empty(0, np.int64)
        out[places] = values.astype(out.dtype)
        return places, values

    def _decided(self, words: npt.NDArray[Any], dice: CipherContext) -> Integers:
        """Return integers for words with cells not all below f; other words where a height is above it."""
        doubts = len(words)
        spare = np.empty(doubts // 2 + 4 * math.isqrt(doubts) + 8, np.int64)  # half of them have a height above f
        places, more = self._guessed(spare, dice)
        words = np.concatenate([words, more])
        cells = (words >> self._shift).astype(np.intp)
        values = self.starts[cells] + (words & (self.width - 1)).view(self.starts.dtype).astype(np.int64)
        missed = self._missed(cells - self.below, values, dice)
        found, spare[places] = values[:doubts], values[doubts:]
        kept = np.ones(len(spare), np.bool_)
        kept[places[missed[doubts:]]] = False
        drawn, (left,) = spare[kept], missed[:doubts].nonzero()
        found[left[: len(drawn)]] = drawn[: len(left)]
        if len(left) > len(drawn):
            again = np.empty(len(left) - len(drawn), np.int64)
            self.fill(again, dice)
            found[left[len(drawn) :]] = again
        return found

    @property
    def _shift(self) -> int:
        return 8 * self.starts.itemsize - CELL_BITS

    def _guessed(self, out: Integers | Floats | Singles, dice: CipherContext) -> tuple[Places, npt.NDArray[Any]]:
        """Fill an array, a word each; return the places and words with cells not all below f."""
        size, kind = self.starts.itemsize, self.starts.dtype
        below, inside = self.below << self._shift, self.width - 1
        chosen, drawn, low = (np.empty(BLOCK, one) for one in (np.intp, kind, f"<u{size}"))
        stream = bytearray(size * BLOCK + CIPHER_BLOCK - 1)
        places, doubtful = [np.empty(0, np.intp)], [np.empty(0, low.dtype)]
        for start in range(0, len(out), BLOCK):
            part = out[start : start + BLOCK]
            cells, block, rest = chosen[: len(part)], drawn[: len(part)], low[: len(part)]
            dice.update_into(_ZEROS[: size * len(part)], stream)
            words = np.frombuffer(stream, low.dtype, len(part))
            np.right_shift(words, self._shift, out=cells, casting="unsafe")
            self.starts.take(cells, mode="wrap", out=block)
            np.add(block, np.bitwise_and(words, inside, out=rest).view(kind), out=part, casting="unsafe")
            (found,) = (words >= below).nonzero()
            doubtful.append(words[found])
            places.append(found + start)
        return np.concatenate(places), np.concatenate(doubtful)

    def _missed(self, cells: Places, values: Integers, dice: CipherContext) -> Mask:
        """Return which heights in cells not all below f are above it; fill in integers of tails."""
        halvings = np.zeros(len(cells), np.int64)
        side = self.side[cells]
        (tails,) = side.nonzero()
        if len(tails):
            far, halvings[tails] = self._tail(len(tails), dice)
            values[tails] = np.where(side[tails] > 0, far, -1 - far)
        row, prefixes = self.row[cells], (_words(len(cells), dice) >> np.uint64(1)).view(np.int64)
        margin = values.astype(np.float64)
        margin *= margin
        margin *= -0.5 / (self.sigma * self.sigma)
        margin += math.log(self.rows)
        margin += halvings * math.log(2)
        margin -= np.log((prefixes + 0.5) * 2.0**-PREFIX_BITS + row)
        missed = margin < 0
        for place in ((np.abs(margin) < SLACK) | ((row == 0) & (prefixes < SURE))).nonzero()[0].tolist():
            height = int(row[place]) << PREFIX_BITS | int(prefixes[place])
            rows = self.rows << int(halvings[place])
            missed[place] = not _is_below(height, rows, _exponent(int(values[place]), self.sigma), dice)
        return missed

    def _tail(self, count: int, dice: CipherContext) -> tuple[Integers, Integers]:
        strips, on = np.zeros(count, np.int64), np.arange(count)
        while len(on):  # a strip is the number of zeros before the first one
            words = _words(len(on), dice)
            lowest = (words & (~words + np.uint64(1))).astype(np.float64)
            strips[on] += np.where(words == 0, 64, np.frexp(lowest)[1] - 1)
            on = on[words == 0]
        inside = (_words(count, dice) & np.uint64(self.tail_width - 1)).view(np.int64)
        halvings = strips + _halvings(self.tail_width, self.width)
        return self.tail_start + strips * self.tail_width + inside, halvings


def _words(count: int, dice: CipherContext) -> npt.NDArray[np.uint64]:
    return np.frombuffer(dice.update(bytes(8 * count)), "<u8")


# --- the table --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def cells_of(sigma: float) -> Cells:
    """Return the table for a sigma, with the maximum number of rows for its cells."""
    width = 1 << max(0, math.floor(math.log2(sigma / NARROW)))
    strips = math.ceil(REACH * sigma / width)
    tail_start = strips * width
    half = math.ceil(math.log2(0.6932 * sigma * sigma / tail_start))  # f is at most half as high after so many bits
    tail_width = max(width, 1 << max(0, half))
    starts = np.arange(-strips, strips) * width
    ends = starts + width - 1
    nearest, farthest = np.where(starts < 0, ends, starts), np.where(starts < 0, starts, ends)

    def counted(rows: int) -> tuple[Integers, Integers, int]:
        """Return per strip the number of cells all below f, that of the others, and the number of cells of a tail."""
        below = rows_below(rows, farthest, sigma)
        tail = rows_below(rows << _halvings(tail_width, width), np.array([tail_start]), sigma)
        return below, rows_below(rows, nearest, sigma) + (nearest != 0) - below, int(tail[0]) + 1

    def needed(rows: int) -> int:
        below, others, tail = counted(rows)
        return int(below.sum() + others.sum()) + 2 * tail

    rows = bisect_right(range(1 << CELL_BITS), 1 << CELL_BITS, key=needed) - 1
    below, others, tail = counted(rows)
    first = others.cumsum() - others
    row = np.arange(others.sum()) + np.repeat(below - first, others)
    nothing = (1 << CELL_BITS) - needed(rows)
    wide = CELL_BITS + width.bit_length() - 1 > 32
    return Cells(
        sigma,
        width,
        rows,
        np.concatenate([np.repeat(starts, below), np.repeat(starts, others), np.zeros(2 * tail + nothing)]).astype(
            np.int64 if wide else np.int32
        ),
        int(below.sum()),
        np.concatenate([row, np.arange(tail), np.arange(tail), np.full(nothing, np.inf)]),
        np.repeat(np.array([0, 1, -1, 0], np.int8), [len(row), tail, tail, nothing]),
        tail_start,
        tail_width,
    )


def _halvings(tail_width: int, width: int) -> int:
    return (tail_width // width).bit_length()


def rows_below(rows: int, places: Integers, sigma: float) -> Integers:
    """Return floor(rows f(y)), exactly; it is rows f(y) at 0 alone, as f is transcendental elsewhere."""
    heights = rows * np.exp(np.square(places.astype(np.float64)) * (-0.5 / (sigma * sigma)))
    whole: Integers = np.floor(heights).astype(np.int64)
    near = (np.abs(heights - np.rint(heights)) < rows * SLACK) & (places != 0)
    for place in near.nonzero()[0].tolist():
        whole[place] = _floor(rows, _exponent(int(places[place]), sigma))
    return whole


# --- decisions that float64 leaves open -------------------------------------------------------------------------------


def _exponent(y: int, sigma: float) -> Fraction:
    """Return y^2 / (2 sigma^2), exactly."""
    return Fraction(y * y) / (2 * Fraction(sigma) ** 2)


def _floor(rows: int, x: Fraction) -> int:
    digits = 40
    while True:
        with localcontext(prec=digits):
            height, error = rows * (-Decimal(x.numerator) / x.denominator).exp(), Decimal(10) ** (10 - digits)
            least, most = (int(end.to_integral_value(ROUND_FLOOR)) for end in (height - error, height + error))
            if least == most:
                return least
        digits *= 2


def _is_below(prefix: int, rows: int, x: Fraction, dice: CipherContext) -> bool:
    bits = PREFIX_BITS
    while True:
        prefix = prefix << MORE_BITS | int.from_bytes(dice.update(bytes(MORE_BITS // 8)), "little")
        bits += MORE_BITS
        with localcontext(prec=bits // 2):  # decimal digits: a third of the bits
            top = rows * (-Decimal(x.numerator) / x.denominator).exp() * 2**bits
            error = top * Decimal(10) ** -(bits // 3)
            if prefix + 1 <= top - error:
                return True
            if prefix >= top + error:
                return False
