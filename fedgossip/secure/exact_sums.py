"""Whole numbers with exact sums, each in several words of the ring: for statistics, which no clip may change.

A number of `ring_bits` bits is modulo 2^ring_bits as the ring is, so that a mask hides it completely and the sum is
that of the numbers, without rounding or additions.  A vector of such numbers is float64 with an element for each word,
lowest first, which represents it exactly: so it is sent as a model is.
A count of one follows the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.fixed_point import NOTHING, DecodedSum, Quantised
from fedgossip.secure.primitives import Entropy, digest
from fedgossip.secure.ring import BLOCK, RING_BITS, Words

WIDE = 256
"""Bits of a number: a sum of squares of doubles within 2^40, to 2^-128, of 2^31 records of each of 1000 clients."""

LONG = 64
"""Bits of numbers in large quantity, such as a histogram's."""


@dataclass(frozen=True)
class ExactSums:
    """The encoding.  `bounds`: the largest magnitude of each number of one client.  Raises ConfigError."""

    bounds: tuple[int, ...] = field(repr=False)
    ring_bits: int = WIDE
    layout: str = ""
    """The hash of the numbers' meaning."""

    together = True
    """Such a sum contains no randomness: two that differ by a client disclose that client's numbers, exactly."""
    clip_l2 = clip_inf = 0.0
    q_bits = limit = 0
    weight_max = 1
    tells = NOTHING
    metrics: tuple[tuple[str, float], ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        if not self.bounds or min(self.bounds) < 0 or self.ring_bits % RING_BITS or BLOCK % max(1, self.width):
            text = f"{len(self.bounds)} numbers of {self.ring_bits} bits"
            raise ConfigError(text, "At least one, of bounds from 0, in 32, 64, 128, 256 or 512 bits.")

    @property
    def width(self) -> int:
        """Return the number of words of a number."""
        return self.ring_bits // RING_BITS

    @property
    def length(self) -> int:
        return len(self.bounds) * self.width

    @property
    def words(self) -> int:
        return self.length + self.width

    @cached_property
    def schema(self) -> bytes:
        return digest("exact", self.layout, self.ring_bits, *map(str, self.bounds), "count")

    @cached_property
    def _most(self) -> int:
        return max(self.bounds)

    @cached_property
    def _long_bounds(self) -> npt.NDArray[np.int64]:
        return np.array(self.bounds, np.int64)

    def _beyond(self, words: Words, clients: int) -> int | None:
        """Return the place of the first number beyond the bounds of so many clients; None without one."""
        if self.ring_bits == LONG and clients * self._most < 1 << (LONG - 1):  # many numbers: as one array
            numbers = long_numbers(words)
            wrong = (numbers < -clients * self._long_bounds) | (numbers > clients * self._long_bounds)
            return int(np.argmax(wrong)) if wrong.any() else None
        numbers_and_bounds = zip(integers_of(words, self.ring_bits), self.bounds, strict=True)
        return next((k for k, (number, bound) in enumerate(numbers_and_bounds) if abs(number) > clients * bound), None)

    def clipped_at(self, clip: float) -> ExactSums:  # noqa: ARG002
        return self

    def check_sum(self, n: int, sigma: float = 0.0) -> None:
        """Raise RoundAbandoned (OVERFLOW) where the sum of `n` clients could wrap around; it contains no noise."""
        if sigma or not n * max(1, self._most) < 1 << (self.ring_bits - 1):
            text = f"the sum of {n} exact numbers may not fit in {self.ring_bits} bits"
            raise RoundAbandoned(Reason.OVERFLOW, text)

    def encode(self, update: Vector, samples: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised:  # noqa: ARG002
        """Return the words of the numbers, and of a count of one.

        Raises RoundAbandoned: SCHEMA for an invalid vector, OVERFLOW for a number beyond its bound.
        """
        if update.shape != (self.length,) or metrics:
            text = f"a vector of {update.shape} and {len(metrics)} metrics; {self.length} words were agreed"
            raise RoundAbandoned(Reason.SCHEMA, text)
        values = words_in(update)
        if values is None:
            raise RoundAbandoned(Reason.SCHEMA, "numbers that are no words")
        if self._beyond(values, 1) is not None:
            raise RoundAbandoned(Reason.OVERFLOW, "a number beyond its bound")
        whole = np.concatenate([values, words_of([1], self.ring_bits)])
        return Quantised(whole, hashlib.blake2b(whole.tobytes(), digest_size=16).digest())

    def clients_in(self, total: Words) -> int:
        """Return the number of clients that a sum states in its count."""
        return integers_of(total[self.length :], self.ring_bits)[0]

    def decode(self, total: Words, clients: int, sigma: float = 0.0, bit_sigma: float = 0.0) -> DecodedSum:  # noqa: ARG002
        """Return the sum itself as `mean`, a float64 for each word.

        Raises RoundAbandoned: SCHEMA for another length, OVERFLOW where the contained count is not that of the clients,
        BOUND where no numbers within the agreed bounds give the sum.
        """
        if total.shape != (self.words,):
            raise RoundAbandoned(Reason.SCHEMA, f"a sum of {total.size} words; {self.words} were agreed")
        count = self.clients_in(total)
        if count != clients:
            raise RoundAbandoned(Reason.OVERFLOW, f"a sum that says {count} clients, of which there are {clients}")
        if (place := self._beyond(total[: self.length], clients)) is not None:
            text = f"number {place} is beyond its bound; some client has not kept to what was agreed"
            raise RoundAbandoned(Reason.BOUND, text)
        return DecodedSum(as_vector(total[: self.length]), float(clients), clients, 0, {})


def words_of(numbers: Sequence[int], bits: int = WIDE) -> Words:
    """Return signed integers in the ring of 2^bits, two's complement, the lowest word of each first."""
    packed = b"".join((number % (1 << bits)).to_bytes(bits // 8, "little") for number in numbers)
    return np.frombuffer(packed, "<u4").astype(np.uint32)


def integers_of(words: Words, bits: int = WIDE) -> list[int]:
    """Return the signed integers of `words_of`."""
    packed, size = np.ascontiguousarray(words, "<u4").tobytes(), bits // 8
    return [int.from_bytes(packed[at : at + size], "little", signed=True) for at in range(0, len(packed), size)]


def long_words(numbers: npt.NDArray[np.int64]) -> Words:
    """Return whole numbers in the ring of 2^64, as `words_of` does one by one."""
    return np.ascontiguousarray(numbers, "<i8").view("<u4").astype(np.uint32)


def long_numbers(words: Words) -> npt.NDArray[np.int64]:
    """Return the whole numbers of `long_words`."""
    return np.ascontiguousarray(words, "<u4").view("<i8").astype(np.int64)


def as_vector(words: Words) -> Vector:
    """Return words as a vector: float64, each exactly."""
    return frozen(words.astype(np.float64))


def words_in(vector: Vector) -> Words | None:
    """Return the words in a vector; None for any other vector."""
    with np.errstate(invalid="ignore"):
        words = np.asarray(vector, np.float64).astype(np.int64)
    fits = np.array_equal(words, vector) and bool(((words >= 0) & (words < 1 << RING_BITS)).all())
    return words.astype(np.uint32) if fits else None
