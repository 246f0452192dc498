"""Encoding of contributions as integers of the ring, as sessions see it: `FixedPoint`, `ExactSums`.

The agreed noise of a sum: a rule that each client requires, and its values in a session.

Encodings of a library's secure sums: arrays of floats within a bound, and whole numbers of any size.

`Encoding` rounds at random, so that the mean is kept, and refuses what it cannot represent: no value is cut.
`ExactEncoding` rounds nothing; its sums are over the same clients in every round, see `session_history`.
"""

from __future__ import annotations

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
from fedgossip.secure.exact_sums import WIDE, ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.secure.fixed_point import BIT, NOTHING, DecodedSum, FixedPoint, Quantised
from fedgossip.secure.noise import LARGEST
from fedgossip.secure.primitives import Entropy
from fedgossip.secure.ring import Words


class RingEncoding(Protocol):
    """The encoding, equal at every client and pinned by each."""

    @property
    def length(self) -> int:
        """Number of elements of an update."""
        ...

    @property
    def words(self) -> int:
        """Number of coordinates of the masked vector."""
        ...

    @property
    def ring_bits(self) -> int:
        """Return the number of bits of a number."""
        ...

    @property
    def schema(self) -> bytes:
        """Return the hash of the coordinates: of their number, order and meaning."""
        ...

    @property
    def together(self) -> bool:
        """Return whether all sums of a run, and of later runs with the same numbers, are over the same clients."""
        ...

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
        ...

    def check_sum(self, n: int, sigma: float = 0.0) -> None:
        """Raise RoundAbandoned where the sum of `n` clients with noise `sigma` could wrap around."""
        ...

    def encode(self, update: Vector, samples: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised:
        """Return the client's coordinates.  Raises RoundAbandoned."""
        ...

    def clients_in(self, total: Words) -> int:
        """Return the number of clients that a sum states in its count: each client adds one."""
        ...

    def decode(self, total: Words, clients: int, sigma: float = 0.0, bit_sigma: float = 0.0) -> DecodedSum:
        """Return the values in the sum over `clients`.  Raises RoundAbandoned."""
        ...


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
    """The noise of a sum at any clip, required by each client.  Raises ConfigError.

    `multiplier` is z of the updates, `bits` the deviation of the noise in the sum of the bits for updates shorter than
    the clip; 0 without such bits.  `honest` survivors are assumed.
    """

    multiplier: float
    honest: int
    bits: float = 0.0

    def at(self, fixed: RingEncoding) -> Noise:
        """Return the noise that each client adds to a sum of these numbers."""
        norm = rounded_norm(fixed.clip_l2 * fixed.limit / fixed.clip_inf, fixed.length)
        bit_sigma = self.bits * BIT / math.sqrt(self.honest)
        return Noise(client_sigma(self.multiplier, norm, self.honest), self.honest, bit_sigma)


# --- noise in a sum ---------------------------------------------------------------------------------------------------


def rounded_norm(norm: float, length: int) -> float:
    """Return the largest L2 norm that a vector of `norm` has after each of its elements was rounded up or down.

    Source: Kairouz, Liu and Steinke, ICML 2021, theorem 1 with beta = 0, where no rounding is drawn again.
    """
    return norm + math.sqrt(length)


def client_sigma(noise: float, norm: float, honest: int) -> float:
    """Return each client's sigma for a sum that `honest` clients make private with noise multiplier `noise`.

    `norm` is the sensitivity in the ring's units: the largest L2 norm of one client's contribution, after rounding, see
    `rounded_norm`.  Each of them adds discrete Gaussians of variance (noise norm)^2 / honest; fewer than `honest`
    survivors must end the round, and noise of more of them is not accounted.  Clients that collude with an observer of
    the sum remove their noise: they are not among the honest.

    The account is that of one Gaussian of noise multiplier `noise`.  It is exact for one discrete Gaussian at whole
    orders (Canonne et al., NeurIPS 2020, proposition 5), and for a sum of them to `sum_gap`, which is far below any
    rounding at the sigmas that fit here.  Raises ConfigError below 3, where it might not be.
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

    For d coordinates the Renyi divergence of a round is, at every order, at most tau d above that of one discrete
    Gaussian with the variance of the sum.  sigma = 3, 1000 clients, d = 10^9: 10^-28.

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
    """The sum of the weights; a whole number where clients * weight_max < 2^(bits - 1)."""
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
        ...

    def encode(self, values: Values, weight: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised: ...
    def decode(
        self, total: Words, clients: tuple[int, ...], culprits: tuple[tuple[int, int], ...] = ()
    ) -> SumResult: ...


@dataclass(frozen=True)
class Encoding:
    """Floats from -bound to bound as integers of `bits` bits with their sign.  Raises ConfigError.

    Each element of a sum is off by at most `error(clients)`.  24 bits fit 255 clients, 20 bits 1000.
    """

    length: int
    """Number of elements."""
    bound: float
    """Largest magnitude of an element; a larger one is refused where it is given, before anything is sent."""
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
        """Return the largest distance of an element of a sum over so many clients from the exact sum."""
        return clients * self._unit

    @property
    def _unit(self) -> float:
        return self.bound * self.weight_max / self.ring.limit

    def encode(self, values: Values, weight: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised:
        """Return the client's words.  Raises RoundAbandoned: SCHEMA for another length or set of metrics, OVERFLOW for
        a number that is not finite, or beyond its bound.
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


@dataclass(frozen=True)
class ExactEncoding:
    """Whole numbers, whose sums are exact; `bounds`: the largest magnitude of each number.  Raises ConfigError."""

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
