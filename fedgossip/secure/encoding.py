"""Encoding of contributions as integers of the ring, as sessions see it, with the agreed noise.

`Encoding` (library): floats within a bound, rounded at random so that the mean is kept; nothing is cut.
`ExactEncoding`: whole numbers; its sums are over the same clients in every round (`session_history`).

`ExactSums`: whole numbers of `ring_bits` bits, modulo 2^ring_bits as several words of the ring, so a mask hides them
completely.  A vector is float64 with an element per word, lowest first, and travels as a model; a count of one follows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.fixed_point import BIT, BLOCK, NOTHING, RING_BITS, DecodedSum, FixedPoint, Quantised, Words
from fedgossip.secure.noise import LARGEST
from fedgossip.secure.primitives import Entropy, digest


class RingEncoding(Protocol):
    """The encoding, equal at every client and pinned by each."""

    @property
    def length(self) -> int:
        """Number of elements of an update."""

    @property
    def words(self) -> int:
        """Number of coordinates of the masked vector."""

    @property
    def ring_bits(self) -> int:
        """Return the number of bits of a number."""

    @property
    def schema(self) -> bytes:
        """Return the hash of the coordinates: of their number, order and meaning."""

    @property
    def together(self) -> bool:
        """Return whether all sums of a run, and of later runs with the same numbers, are over the same clients."""

    @property
    def clip_l2(self) -> float: ...
    @property
    def clip_inf(self) -> float: ...
    @property
    def weight_max(self) -> int: ...
    @property
    def q_bits(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def tells(self) -> str: ...
    @property
    def metrics(self) -> tuple[tuple[str, float], ...]: ...

    def clipped_at(self, clip: float) -> RingEncoding:
        """Return the same encoding with another clip."""

    def check_sum(self, n: int, sigma: float = 0.0) -> None:
        """Raise RoundAbandoned if the sum of `n` clients with noise `sigma` could wrap around."""

    def encode(self, update: Vector, samples: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised:
        """Return the client's coordinates.  Raises RoundAbandoned."""

    def clients_in(self, total: Words) -> int:
        """Return the number of clients that a sum states in its count: each client adds one."""

    def decode(self, total: Words, clients: int, sigma: float = 0.0, bit_sigma: float = 0.0) -> DecodedSum:
        """Return the values in the sum over `clients`.  Raises RoundAbandoned."""


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distributed differential privacy: the noise of each client, so that `honest` survivors hide each of them."""

    sigma: float = 0.0
    """Standard deviation of a client's discrete Gaussian, in the ring's units; 0: none."""
    honest: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    """Minimum number of survivors that add noise: with fewer nothing is summed."""
    bit_sigma: float = 0.0
    """The same on the coordinate for updates shorter than the clip."""

    @property
    def on(self) -> bool:
        return self.sigma > 0


NO_NOISE = Noise()


@dataclass(frozen=True)
class NoiseRule:
    """The noise of a sum at any clip, required by each client, with `honest` survivors.  Raises ConfigError.

    `multiplier`: z of the updates; `bits`: the deviation in the sum of bits for updates shorter than the clip, or 0.
    """

    multiplier: float
    honest: int
    bits: float = 0.0

    def compute_noise(self, fixed: RingEncoding) -> Noise:
        """Return the noise that each client adds to a sum of these numbers."""
        norm = rounded_norm(fixed.clip_l2 * fixed.limit / fixed.clip_inf, fixed.length)
        bit_sigma = self.bits * BIT / math.sqrt(self.honest)
        return Noise(client_sigma(self.multiplier, norm, self.honest), self.honest, bit_sigma)


# --- noise in a sum ---------------------------------------------------------------------------------------------------


def rounded_norm(norm: float, length: int) -> float:
    """Return the largest L2 norm of a vector of `norm` after rounding each element up or down.

    Source: Kairouz, Liu and Steinke, ICML 2021, theorem 1 with beta = 0, so no rounding is drawn again.
    """
    return norm + math.sqrt(length)


def client_sigma(noise: float, norm: float, honest: int) -> float:
    """Return each client's sigma for a sum that `honest` clients make private with noise multiplier `noise`.

    `norm`: the sensitivity in ring units, one client's largest L2 norm after rounding (`rounded_norm`).  Each adds
    discrete Gaussians of variance (noise norm)^2 / honest; fewer than `honest` survivors must end the round, more are
    not accounted.  Clients that collude with an observer are not honest.

    The account is that of one Gaussian of noise multiplier `noise`: exact for one discrete Gaussian at whole orders
    (Canonne et al., NeurIPS 2020, proposition 5), for a sum to `sum_gap`.  Raises ConfigError below 3.
    """
    if not noise > 0 or not norm > 0 or honest < 1:
        raise ConfigError(f"noise {noise:g} on a norm of {norm:g} from {honest} clients", "All three are above zero.")
    sigma = noise * norm / math.sqrt(honest)
    if not 3 <= sigma <= LARGEST:
        raise ConfigError(
            f"each client would add noise of {sigma:g} units of the sum; 3 to {LARGEST:g} are right",
            "More bits make the units smaller, fewer make them larger.",
        )
    return sigma


def sum_gap(sigma: float, clients: int) -> float:
    """Return tau: the distance of log P of the sum of `clients` discrete Gaussians to that of one, per coordinate.

        tau = 10 sum_{k=1}^{clients-1} exp(-2 pi^2 sigma^2 k / (k + 1))

    A round's Renyi divergence is at most tau d above that of one discrete Gaussian of the sum's variance, at every
    order.  sigma = 3, 1000 clients, d = 10^9: 10^-28.

    Source: Kairouz, Liu and Steinke, The distributed discrete Gaussian mechanism for federated learning with secure
    aggregation, ICML 2021, theorem 1 and proposition 14.
    """
    return 10 * math.fsum(math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, clients))


Values = Sequence[float] | Sequence[int] | npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class SumResult:
    """A sum over `clients`, by their places in the list of members."""

    sum: npt.NDArray[Any]
    """The sum of weight times values: float64 [length], read-only; integers of Python (dtype object) of exact sums."""
    weight: float
    """The sum of the weights; a whole number if clients * weight_max < 2^(bits - 1)."""
    clients: tuple[int, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The weighted mean of each declared metric."""
    culprits: tuple[tuple[int, int], ...] = ()
    """Shares that did not fit, as (owner, holder); the sum is right in spite of them."""

    @property
    def mean(self) -> npt.NDArray[Any]:
        """Return the weighted mean, [length]."""
        return self.sum / self.weight


class SumEncoding(Protocol):
    """The encoding of one library's sums: `Encoding` or `ExactEncoding`; equal at every participant."""

    @property
    def ring(self) -> RingEncoding:
        """Return the coordinates of the masked vector."""

    def encode(self, values: Values, weight: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised: ...
    def decode(
        self, total: Words, clients: tuple[int, ...], culprits: tuple[tuple[int, int], ...] = ()
    ) -> SumResult: ...


@dataclass(frozen=True)
class Encoding:
    """Floats from -bound to bound as signed integers of `bits` bits (24 fit 255 clients, 20 fit 1000).  Raises
    ConfigError.

    A sum's element is off by at most `error(clients)`.
    """

    length: int
    """Number of elements."""
    bound: float
    """Largest magnitude of an element; a larger one is refused on input, before anything is sent."""
    bits: int = 24
    weight_max: int = 1
    """Largest weight of a client; weights are whole numbers from 1, such as numbers of examples."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The bound of each metric; their weighted means are part of the same sum."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", dict(self.metrics))
        if not 0 < self.bound < math.inf:
            raise ConfigError(f"Encoding: bound = {self.bound}", "Set it to the largest magnitude of any value.")
        _ = self.ring

    @cached_property
    def ring(self) -> FixedPoint:
        """Return the coordinates of the masked vector; no vector within the bound is longer than its clip."""
        longest = 2 * self.bound * math.sqrt(max(1, self.length))
        named = tuple(sorted((name, float(bound)) for name, bound in self.metrics.items()))
        return FixedPoint(self.length, longest, self.bound, self.weight_max, self.bits, named, tells=NOTHING)

    def error(self, clients: int) -> float:
        """Return the maximum error of an element of a sum over `clients` clients."""
        return clients * self._unit

    @property
    def _unit(self) -> float:
        return self.bound * self.weight_max / self.ring.limit

    def encode(self, values: Values, weight: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised:
        """Return the client's words.  Raises RoundAbandoned: SCHEMA (length, metrics), OVERFLOW (not finite, or beyond
        the bound).
        """
        try:
            array = np.asarray(values)
            update = array.reshape(-1) if array.dtype in (np.float32, np.float64) else array.reshape(-1).astype(float)
        except (TypeError, ValueError):
            raise RoundAbandoned(Reason.SCHEMA, "values that are no array of numbers") from None
        if update.size == self.length and not (largest := float(np.abs(update).max())) <= self.bound:
            text = f"a value of magnitude {largest:g}; the encoding's bound is {self.bound:g}"
            raise RoundAbandoned(Reason.OVERFLOW, text)
        for name, value in metrics.items():
            if name in self.metrics and not abs(value) <= self.metrics[name]:
                text = f"metric {name!r} of {value:g}; its bound is {self.metrics[name]:g}"
                raise RoundAbandoned(Reason.OVERFLOW, text)
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= self.weight_max:
            text = f"a weight of {weight!r}; a whole number from 1 to weight_max = {self.weight_max} was agreed"
            raise RoundAbandoned(Reason.OVERFLOW, text)
        return self.ring.encode(update, weight, metrics, entropy)

    def decode(self, total: Words, clients: tuple[int, ...], culprits: tuple[tuple[int, int], ...] = ()) -> SumResult:
        """Return the values in a sum.  Raises RoundAbandoned (OVERFLOW, BOUND) for words that no clients add up to."""
        found = self.ring.decode(total, len(clients))
        exact = len(clients) * self.weight_max < self.ring.limit
        weight = float(round(found.samples)) if exact else found.samples
        sums = frozen(total[: self.length].view(np.int32) * self._unit)
        return SumResult(sums, weight, clients, found.metrics, culprits)


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
    """Exact sums contain no randomness: two that differ by a client disclose that client's numbers, exactly."""
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

    def _find_overflow(self, words: Words, clients: int) -> int | None:
        """Return the place of the first number beyond the bounds, or None."""
        if self.ring_bits == LONG and clients * self._most < 1 << (LONG - 1):  # many numbers: as one array
            numbers = long_numbers(words)
            wrong = (numbers < -clients * self._long_bounds) | (numbers > clients * self._long_bounds)
            return int(np.argmax(wrong)) if wrong.any() else None
        numbers_and_bounds = zip(integers_of(words, self.ring_bits), self.bounds, strict=True)
        return next((k for k, (number, bound) in enumerate(numbers_and_bounds) if abs(number) > clients * bound), None)

    def clipped_at(self, clip: float) -> ExactSums:  # noqa: ARG002
        return self

    def check_sum(self, n: int, sigma: float = 0.0) -> None:
        """Raise RoundAbandoned (OVERFLOW) if the sum of `n` clients could wrap around; it contains no noise."""
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
        if self._find_overflow(values, 1) is not None:
            raise RoundAbandoned(Reason.OVERFLOW, "a number beyond its bound")
        whole = np.concatenate([values, words_of([1], self.ring_bits)])
        return Quantised(whole, hashlib.blake2b(whole.tobytes(), digest_size=16).digest())

    def clients_in(self, total: Words) -> int:
        """Return the number of clients that a sum states in its count."""
        return integers_of(total[self.length :], self.ring_bits)[0]

    def decode(self, total: Words, clients: int, sigma: float = 0.0, bit_sigma: float = 0.0) -> DecodedSum:  # noqa: ARG002
        """Return the sum itself as `mean`, a float64 for each word.

        Raises RoundAbandoned: SCHEMA (length), OVERFLOW (another count of clients), BOUND (no numbers within the
        bounds).
        """
        if total.shape != (self.words,):
            raise RoundAbandoned(Reason.SCHEMA, f"a sum of {total.size} words; {self.words} were agreed")
        count = self.clients_in(total)
        if count != clients:
            raise RoundAbandoned(Reason.OVERFLOW, f"a sum of {count} clients, where {clients} exist")
        if (place := self._find_overflow(total[: self.length], clients)) is not None:
            text = f"number {place} is beyond its bound; some client has violated the agreement"
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


@dataclass(frozen=True)
class ExactEncoding:
    """Whole numbers with exact sums; `bounds`: the largest magnitude of each number.  Raises ConfigError."""

    bounds: tuple[int, ...]
    bits: int = WIDE
    layout: str = ""
    """The hash of the numbers' meaning; participants with another one are refused."""

    def __post_init__(self) -> None:
        _ = self.ring

    @cached_property
    def ring(self) -> ExactSums:
        return ExactSums(self.bounds, self.bits, self.layout)

    def encode(self, values: Values, weight: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised:
        """Return the client's words.  Raises RoundAbandoned: SCHEMA, OVERFLOW for a number beyond its bound."""
        if weight != 1 or metrics:
            raise RoundAbandoned(Reason.SCHEMA, "exact sums have neither weights nor metrics")
        whole = np.asarray(values, object).reshape(-1).tolist()
        if len(whole) != len(self.bounds) or not all(isinstance(one, int) for one in whole):
            raise RoundAbandoned(Reason.SCHEMA, f"{len(whole)} values; {len(self.bounds)} whole numbers were agreed")
        if any(abs(one) > bound for one, bound in zip(whole, self.bounds, strict=True)):  # before they are taken modulo
            raise RoundAbandoned(Reason.OVERFLOW, "a number beyond its bound")
        return self.ring.encode(as_vector(words_of(whole, self.bits)), 1, {}, entropy)

    def decode(self, total: Words, clients: tuple[int, ...], culprits: tuple[tuple[int, int], ...] = ()) -> SumResult:
        """Return the numbers in a sum.  Raises RoundAbandoned (OVERFLOW, BOUND)."""
        words = words_in(self.ring.decode(total, len(clients)).mean)
        assert words is not None, "the sum itself"
        sums = np.array(integers_of(words, self.bits), object)
        sums.flags.writeable = False
        return SumResult(sums, float(len(clients)), clients, {}, culprits)
