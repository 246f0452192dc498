"""Updates as integers of the ring: clipped, weighted by samples, rounded at random so that the mean is kept.

    x = clip_inf(clip_l2(update, S), C)        w = samples / W in (0, 1]
    q = stochastic_round(w x (2^(b-1) - 1) / C)

The weight, a clipping flag, a count of one and every metric are further coordinates: only participation is visible.
Running statistics have numbers of their own, which nothing cuts.  n (2^(b-1) - 1) + 8 sigma < 2^31 is checked before a
session (`check_sum`): b = 24 up to 100 clients, 20 up to 1000.

A uniform mask modulo 2^32 hides a number completely.  Of several words, lowest first, it is one number modulo 2^(32
width): words summed separately would disclose more.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, all_finite, frozen
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.primitives import SHORT_MOST, Entropy, digest, keystream, short_streams

CLIPPED, NOTHING, SHORTER = "clipped", "nothing", "shorter"

BIT = 1 << 12
"""The value of a noisy bit in the ring: fine enough that rounding of the noise is negligible."""

_MOST = 8.0
"""Number of standard deviations of noise that fit into the ring, as in `check_sum`."""

_BESIDE, _COUNT = 3, 2
"""Coordinates after the update and before the metrics: weight, clipped, count; and the place of the count in them."""

Words = npt.NDArray[np.uint32]

RING_BITS = 32
BLOCK = 32_768
"""Number of words of a block; those of the sum and a stream, 128 KiB each, stay in the second-level cache."""

STREAMS = 64
"""Number of streams added to a block before the next block: the sum passes through memory once for them."""

LONG = 2
"""Number of words in one native number of the processor."""

CHUNK_BYTES = 256 * 1024

Operation = Callable[..., object]
"""Of two arrays of words, and `out`."""

_ZEROS = bytes(4 * BLOCK)
_LOW, _BITS = np.uint64(0xFFFFFFFF), np.uint64(32)


def words(numbers: npt.NDArray[np.integer]) -> Words:
    """Return signed integers in the ring, two's complement, as a new array."""
    return numbers.astype(np.int64, copy=False).astype(np.uint32)


def centred(ring: Words) -> npt.NDArray[np.int64]:
    """Return the representatives in [-2^31, 2^31)."""
    return ring.view(np.int32).astype(np.int64)


def little(ring: Words) -> memoryview:
    """Return the words as bytes, little-endian, without a copy on a little-endian machine."""
    return np.ascontiguousarray(ring, dtype="<u4").view(np.uint8).data


def chunks(ring: Words) -> Iterator[memoryview]:
    """Yield the words as bytes, CHUNK_BYTES at a time."""
    view = little(ring)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def add(total: Words, words: Words, width: int = 1) -> None:
    """Add numbers of `width` words each to `total`, in place."""
    _operations(width)[0](total, words, out=total)


def add_streams(total: Words, keys: Iterable[bytes], width: int = 1) -> None:
    """Add the keystream of each key to `total`, in place."""
    _apply(total, keys, _operations(width)[0])


def subtract_streams(total: Words, keys: Iterable[bytes], width: int = 1) -> None:
    """Subtract the keystream of each key from `total`, in place."""
    _apply(total, keys, _operations(width)[1])


def _operations(width: int) -> tuple[Operation, Operation]:
    assert BLOCK % width == 0, "a number lies in one block"
    if width == 1:
        return np.add, np.subtract
    if width == LONG and np.dtype("<u4").isnative:
        return partial(_long, operation=np.add), partial(_long, operation=np.subtract)
    return partial(_carried, width=width), partial(_borrowed, width=width)


def _long(total: Words, words: Words, *, out: Words, operation: Operation) -> None:
    operation(total.view(np.uint64), words.view(np.uint64), out=out.view(np.uint64))


def _carried(total: Words, words: Words, *, out: Words, width: int) -> None:
    carry = np.zeros(total.size // width, np.uint64)
    for k in range(width):
        column = total[k::width].astype(np.uint64) + words[k::width] + carry
        out[k::width] = column & _LOW
        carry = column >> _BITS


def _borrowed(total: Words, words: Words, *, out: Words, width: int) -> None:
    borrow = np.zeros(total.size // width, np.uint64)
    for k in range(width):
        column = total[k::width].astype(np.uint64) - words[k::width] - borrow  # modulo 2^64
        out[k::width] = column & _LOW
        borrow = (column >> _BITS) & np.uint64(1)


def _apply(total: Words, keys: Iterable[bytes], operation: Operation) -> None:
    if total.nbytes <= SHORT_MOST:
        pending = iter(keys)
        while short := short_streams([*islice(pending, STREAMS)], total.nbytes):
            rows = np.frombuffer(b"".join(short), "<u4").reshape(len(short), total.size)
            for row in [np.add.reduce(rows, 0, np.uint32)] if operation in (np.add, np.subtract) else rows:
                operation(total, row, out=total)
        return
    buffer = np.empty(BLOCK, "<u4")
    pending = iter(keys)
    while streams := [keystream(key) for key in islice(pending, STREAMS)]:
        for start in range(0, total.size, BLOCK):
            block = total[start : start + BLOCK]
            mask = buffer[: block.size]
            zeros, into = memoryview(_ZEROS)[: 4 * block.size], mask.view(np.uint8).data
            for stream in streams:
                stream.update_into(zeros, into)
                operation(block, mask, out=block)


@dataclass(frozen=True, eq=False)
class Quantised:
    """One client's input to a sum.  `fingerprint`: of its source, the same however it is rounded."""

    values: Words = field(repr=False)
    fingerprint: bytes = field(repr=False)

    @classmethod
    def from_sum(cls, total: Words) -> Quantised:
        """Return a coordinator's input, the sum of its clients' numbers, unchanged."""
        return cls(total, hashlib.blake2b(little(total), digest_size=16).digest())


@dataclass(frozen=True, eq=False)
class DecodedSum:
    """The values in a sum: the mean of the clipped updates, weighted by samples, and of the metrics."""

    mean: Vector
    samples: float
    clients: int
    clipped: int
    metrics: Mapping[str, float]
    shorter: float = 0.0
    """Half the number of updates shorter than the clip less half that of longer ones, with noise; None: hidden."""


@dataclass(frozen=True)
class FixedPoint:
    """The encoding of numbers as integers; the same at every client, pinned by each.  Raises ConfigError."""

    length: int
    """Number of elements of an update."""
    clip_l2: float
    """S: no update is longer than this; smaller hides a client better and moves the model less."""
    clip_inf: float
    """C: no element is larger than this; smaller rounds finer."""
    weight_max: int
    """W: the number of samples with weight one; a client with more is refused."""
    q_bits: int = 24
    """b: an element is at most 2^(b-1) - 1; more bits round finer and allow fewer clients."""
    metrics: tuple[tuple[str, float], ...] = ()
    """(name, bound) of each declared metric; a value beyond its bound counts as the bound."""
    layout: str = ""
    """The hash of the parameters' names and shapes."""
    together = False
    statistics: tuple[int, int] = (0, 0)
    """Start and end of the running statistics in the elements."""
    tells: str = CLIPPED
    """Disclosure of cut updates by the sum: CLIPPED, their number; NOTHING; or SHORTER, half a noisy bit of each
    client.
    """

    def __post_init__(self) -> None:
        positive = (self.clip_l2, self.clip_inf, *(bound for _, bound in self.metrics))
        names = {name for name, _ in self.metrics}
        if not all(0 < value < math.inf for value in positive) or len(names) < len(self.metrics):
            raise ConfigError("clip bounds and metrics", "Bounds are finite and above zero, names of metrics differ.")
        if self.length < 1 or self.weight_max < 1 or not 2 <= self.q_bits <= RING_BITS - 1:
            raise ConfigError(
                f"length {self.length}, weight_max {self.weight_max}, q_bits {self.q_bits}",
                "Length and weight are at least 1, bits 2 to 31.",
            )

    @property
    def ring_bits(self) -> int:
        return RING_BITS

    def clipped_at(self, clip: float) -> FixedPoint:
        """Return the same encoding with another clip."""
        return replace(self, clip_l2=clip)

    @property
    def words(self) -> int:
        """Number of coordinates of the masked vector."""
        return self._beside + _BESIDE + len(self.metrics)

    @property
    def cut(self) -> int:
        """Number of clipped and rounded elements: all but statistics."""
        return self.length - self._kept

    @property
    def _kept(self) -> int:
        return self.statistics[1] - self.statistics[0]

    @property
    def _beside(self) -> int:
        return self.cut + self._kept * LIMBS

    @property
    def limit(self) -> int:
        return (1 << (self.q_bits - 1)) - 1

    @property
    def schema(self) -> bytes:
        """Return the hash of the coordinates: of their number, order and meaning."""
        named = [part for name, bound in self.metrics for part in (name, float(bound).hex())]
        named += ["statistics", *map(str, self.statistics)] if self._kept else []
        return digest("schema", self.layout, self.length, "weight", self.tells, "count", *named)

    def check_sum(self, n: int, sigma: float = 0.0) -> None:
        """Raise RoundAbandoned (OVERFLOW) if the sum of `n` clients with noise `sigma` could wrap around."""
        if not n * self.limit + 8 * sigma < 1 << (RING_BITS - 1):
            raise RoundAbandoned(
                Reason.OVERFLOW, f"the sum of {n} numbers of {self.q_bits} bits may not fit in {RING_BITS} bits"
            )

    # --- one client -------------------------------------------------------------------------------------------------

    def encode(self, update: Vector, samples: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised:
        """Return the client's coordinates.  Raises RoundAbandoned: SCHEMA (length, type, metrics), OVERFLOW (not
        finite, samples out of 1 to W).
        """
        self._check(update, samples, metrics)
        weight = samples / self.weight_max
        values = np.empty(self.words, np.uint32)
        start, stop = self.statistics
        moved = np.delete(update, slice(start, stop)) if self._kept else update
        clipped = self._encode_update(moved, weight, entropy, values[: self.cut])
        whole = int(np.rint(weight * self.limit))
        if self._kept:
            values[self.cut : self._beside] = words_of_statistics(update[start:stop], whole, entropy)
        beside = [weight * self.limit, self._clip_metric(clipped), 1.0]
        for name, bound in self.metrics:
            beside.append(min(max(metrics[name] / bound, -1.0), 1.0) * weight * self.limit)
        values[self._beside :] = np.rint(beside).astype(np.int32).view(np.uint32)
        seen = hashlib.blake2b(np.ascontiguousarray(update).view(np.uint8).data, digest_size=16)
        seen.update(repr((samples, sorted(metrics.items()))).encode())
        return Quantised(values, seen.digest())

    def _clip_metric(self, clipped: bool) -> float:
        if self.tells == SHORTER:
            return -BIT / 2 if clipped else BIT / 2
        return float(clipped and self.tells == CLIPPED)

    def _check(self, update: Vector, samples: int, metrics: Mapping[str, float]) -> None:
        if update.shape != (self.length,) or not np.issubdtype(update.dtype, np.floating):
            raise RoundAbandoned(
                Reason.SCHEMA, f"an update of {update.dtype} {update.shape}; {self.length} floats were agreed"
            )
        if set(metrics) != {name for name, _ in self.metrics}:
            raise RoundAbandoned(Reason.SCHEMA, f"metrics {sorted(metrics)}; agreed {[n for n, _ in self.metrics]}")
        if not all_finite(update) or not all(math.isfinite(value) for value in metrics.values()):
            raise RoundAbandoned(Reason.OVERFLOW, "an update or a metric is not finite")
        if isinstance(samples, bool) or not isinstance(samples, int) or not 1 <= samples <= self.weight_max:
            text = f"a weight that is not 1 to {self.weight_max} whole samples: coordinator.secure.weight_max"
            raise RoundAbandoned(Reason.OVERFLOW, text)

    def _encode_update(self, update: Vector, weight: float, entropy: Entropy, out: Words) -> bool:
        """Write the rounded elements; return whether anything was clipped."""
        norm = 0.0 if self._surely_short(update) else _norm(update)
        shrink = self.clip_l2 / norm if norm > self.clip_l2 else 1.0
        clipped, scale = shrink < 1.0, weight * self.limit / self.clip_inf
        dice = keystream(entropy(32))
        for start in range(0, self.cut, BLOCK):
            x = update[start : start + BLOCK].astype(np.float64)
            x *= shrink
            clipped |= bool(np.abs(x).max() > self.clip_inf)
            np.clip(x, -self.clip_inf, self.clip_inf, out=x)
            x *= scale
            # 24 bits of chance: with more, 2^23 + u would be rounded up to the next integer in float64
            x += (np.frombuffer(dice.update(bytes(4 * x.size)), "<u4") >> 8) * 2.0**-24
            np.floor(x, out=x)
            np.clip(x, -self.limit, self.limit, out=x)
            out[start : start + BLOCK] = x.astype(np.int32).view(np.uint32)
        return clipped

    def _surely_short(self, update: Vector) -> bool:
        return _peak(update) * math.sqrt(self.cut) < self.clip_l2 * (1 - 2**-20)

    # --- the sum ----------------------------------------------------------------------------------------------------

    def clients_in(self, total: Words) -> int:
        """Return the number of clients that a sum states in its count."""
        place = self._beside + _COUNT
        return int(centred(total[place : place + 1])[0])

    def decode(self, total: Words, clients: int, sigma: float = 0.0, bit_sigma: float = 0.0) -> DecodedSum:
        """Return the values in the sum over `clients`, each with noise `sigma`, on the bit `bit_sigma`.

        Raises RoundAbandoned: SCHEMA (length), OVERFLOW (another count of clients), BOUND (no updates within the
        bounds).
        """
        if total.shape != (self.words,):
            raise RoundAbandoned(Reason.SCHEMA, f"a sum of {total.size} words; {self.words} were agreed")
        scaled, clipped, count, *metrics = (int(value) for value in centred(total[self._beside :]))
        if count != clients:
            raise RoundAbandoned(Reason.OVERFLOW, f"a sum of {count} clients, where {clients} exist")
        lightest = int(np.rint(self.limit / self.weight_max))
        if not clients * lightest <= scaled <= clients * self.limit:
            raise _out_of_bounds(f"the weight of {clients} clients", scaled / self.limit)
        if not self._can_be_reported(clipped, clients, bit_sigma):
            raise _out_of_bounds("the count of those that were cut", clipped)
        for (name, bound), value in zip(self.metrics, metrics, strict=True):
            if abs(value) > scaled:
                raise _out_of_bounds(f"{name}, at most {bound:g}", value * bound / scaled)
        self._check_sum_of_updates(total[: self.cut], scaled, clients, sigma)
        weight = scaled / self.limit
        mean: npt.NDArray[np.float32] = (
            total[: self.cut].view(np.int32) * (self.clip_inf / self.limit / weight)
        ).astype(np.float32)
        if self._kept:
            found = mean_statistics(total[self.cut : self._beside], scaled, clients)
            mean = np.insert(mean, self.statistics[0], found.astype(np.float32))
        named = zip(self.metrics, metrics, strict=True)
        return DecodedSum(
            frozen(mean),
            weight * self.weight_max,
            clients,
            clipped,
            {name: value * bound / scaled for (name, bound), value in named},
            clipped / BIT if self.tells == SHORTER else 0.0,
        )

    def _can_be_reported(self, clipped: int, clients: int, bit_sigma: float) -> bool:
        if self.tells == SHORTER:
            return abs(clipped) <= clients * BIT / 2 + _MOST * bit_sigma * math.sqrt(clients)
        return 0 <= clipped <= (clients if self.tells == CLIPPED else 0)

    def _check_sum_of_updates(self, total: Words, scaled: int, clients: int, sigma: float) -> None:
        """Raise RoundAbandoned (BOUND) for elements, or a length, that no updates within the bounds add up to.

        Each client rounds its elements by less than 1, its weight by 1/2; the sum of the noises is at most (sqrt(d) +
        8) of its deviation but with chance e^-32.
        """
        signed, noise = total.view(np.int32), sigma * math.sqrt(clients)
        quantum = self.clip_inf / scaled
        largest = max(int(signed.max()), -int(signed.min()))
        if largest > scaled + 1.5 * clients + _MOST * noise:
            raise _out_of_bounds(f"the mean of an element, at most {self.clip_inf:g}", largest * quantum)
        root = math.sqrt(self.cut)
        if self.clip_l2 >= self.clip_inf * root:
            return  # elements within their bound are no longer
        blocks = (signed[at : at + BLOCK].astype(np.float64) for at in range(0, signed.size, BLOCK))
        length = math.sqrt(sum(float(np.square(block, out=block).sum()) for block in blocks))  # squares below 2^62
        longest = (scaled + 0.5 * clients) * self.clip_l2 / self.clip_inf + clients * root + (root + _MOST) * noise
        if length > longest:
            raise _out_of_bounds(f"the length of the mean, at most {longest * quantum:g}", length * quantum)


def _out_of_bounds(what: str, value: float) -> RoundAbandoned:
    return RoundAbandoned(Reason.BOUND, f"{what}: {value:.6g}; some client has violated the agreement")


def _peak(update: Vector) -> float:
    return max(float(update.max()), -float(update.min()))


def _norm(update: Vector) -> float:
    if (peak := _peak(update)) == 0.0:
        return 0.0
    squares = 0.0
    for start in range(0, update.size, BLOCK):
        block = update[start : start + BLOCK].astype(np.float64) / peak
        squares += float(block @ block)
    return peak * math.sqrt(squares)


# Running statistics in a secure sum: whole numbers of many bits, so that no bound of an update cuts a variance.
#
#     V = (rint(x 2^40) + 2^103) w            |x| <= 2^63; w: the client's weight, the whole number also in the sum
#     V in limbs L_k of 10 bits, lowest first, a word of the ring each; r_k from 10 bits of chance, r_14 = 0
#     word k = L_k + 2^10 r_k - r_(k-1)       the sum of 2^(10 k) word_k is V; 1000 clients fit
#     mean = (sum V / sum w - 2^103) / 2^40
#
# So the mean is weighted and exact to 2^-40: nonnegative statistics have a nonnegative mean.  Without the random r the
# sum of each limb would disclose the carries of the clients' numbers in addition to their sum.  With it two sets of
# numbers with one sum are distinguished with an advantage of at most 14 / 2^10 per differing carry.


LIMBS, LIMB_BITS = 15, 10
"""Words of a statistic; 15 * 10 bits hold 104 of it, 30 of a weight and the sum of a cohort."""

CHANCE_BITS = 10
"""Bits of the chance that hides a carry: a word of one client stays below 2^21, and that of 1000 within the ring."""

FINE, MOST = 40, 63
"""Binary digits after the point, and before it."""

_OFFSET = 1 << (FINE + MOST)
_LIMB = (1 << LIMB_BITS) - 1


def words_of_statistics(statistics: Vector, weight: int, entropy: Entropy) -> Words:
    """Return the words [k * LIMBS] of statistics [k], times a whole weight; `entropy` gives 32 bytes of chance.

    Raises RoundAbandoned (OVERFLOW) for one beyond 2^63.
    """
    wide = statistics.astype(np.float64)
    if not (np.abs(wide) <= 2.0**MOST).all():
        raise RoundAbandoned(Reason.OVERFLOW, f"a running statistic of {float(np.abs(wide).max()):.6g}")
    numbers: list[Any] = np.rint(wide * 2.0**FINE).tolist()
    whole = [(int(number) + _OFFSET) * weight for number in numbers]
    words = np.array([[v >> (LIMB_BITS * k) & _LIMB for k in range(LIMBS)] for v in whole], np.int64)
    words = words.reshape(len(whole), LIMBS)
    drawn = keystream(entropy(32)).update(bytes(2 * len(whole) * (LIMBS - 1)))
    chance = (np.frombuffer(drawn, "<u2") >> (16 - CHANCE_BITS)).astype(np.int64).reshape(len(whole), LIMBS - 1)
    words[:, :-1] += chance << LIMB_BITS
    words[:, 1:] -= chance
    return words.astype(np.int32).view(np.uint32).reshape(-1)


def mean_statistics(total: Words, weight: int, clients: int) -> Vector:
    """Return the mean [k], float64, of the words in a sum over clients of this total weight.  Raises RoundAbandoned
    (BOUND).
    """
    words = total.view(np.int32).astype(np.int64)
    if words.size and int(np.abs(words).max()) >= clients << (LIMB_BITS + CHANCE_BITS + 1):
        raise _make_bound_error()
    limbs, found = words.reshape(-1, LIMBS).tolist(), []
    for row in limbs:
        number = sum(limb << (LIMB_BITS * place) for place, limb in enumerate(row)) - _OFFSET * weight
        if abs(number) > _OFFSET * weight:
            raise _make_bound_error()
        found.append(number / (weight << FINE))
    return np.array(found, np.float64)


def _make_bound_error() -> RoundAbandoned:
    return RoundAbandoned(Reason.BOUND, "a running statistic beyond 2^63; some client has violated the agreement")
