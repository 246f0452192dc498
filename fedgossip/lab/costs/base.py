"""The predicted cost of a round, and of a message: a + s/b, with one message at a time in and out of every participant.

A participant's training takes t / speed * (1 + J U): t known, speed exp(N(0, spread^2)), U uniform on [0, 1].  A link's
a and b are fitted by least squares to message times.

`all_reduce` (`algorithms/collectives/names`) is the closed form of one isolated round.  If some participants begin the
next round before others end the last (star, tree, ring-naive), use `all_reduce_in_turn`, and `methods` by their steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.collectives.names import COLLECTIVES, EqualLinks, all_reduce, power_below
from fedgossip.base import seeds
from fedgossip.protocols.gossip.pairing import SPREAD
from fedgossip.simulation.network import Racks


@dataclass(frozen=True)
class Cost:
    """One round of the mean participant; seconds, and bytes of vectors.

    `compute`: its training; `communicate`: beyond it with equal training times; `wait`: the rest, with `error`, half of
    a drawn one's 95 % interval.  `payload_of_busiest`: in its larger direction.  `messages`: with vectors, of all.
    """

    compute: float
    communicate: float
    wait: float
    payload_of_busiest: float
    messages: float
    error: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the time of the round."""
        return self.compute + self.communicate + self.wait


DRAWS = 4000
"""Number of drawn rounds if no formula exists."""

POINTS = 20_001
"""Number of integration points of a distribution: the error is below a ten-thousandth of its width."""

Times = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Estimate:
    """A value, and half of its 95 % interval; 0 for a computed value."""

    value: float
    error: float = 0.0


@dataclass(frozen=True)
class TrainingTimes:
    """The times of m participants.  `known`: seconds of each at speed 1."""

    known: tuple[float, ...]
    spread: float = 0.0
    """Standard deviation of the logarithm of the speeds, unless `known` includes them."""
    jitter: float = 0.0

    @classmethod
    def equal(cls, seconds: float, participants: int) -> TrainingTimes:
        return cls((seconds,) * participants)

    @property
    def constant(self) -> bool:
        """Return whether nothing is drawn."""
        return not (self.spread or self.jitter)

    @property
    def mean(self) -> float:
        """Return the mean training time over all participants: E exp(-N(0, s^2)) is exp(s^2 / 2)."""
        each = sum(self.known) / len(self.known)
        return each * math.exp(self.spread**2 / 2) * (1 + self.jitter / 2)

    def draw(self, rounds: int = DRAWS) -> Times:
        """Return times, [rounds, m]: each round with other speeds, the same in every call."""
        stream = seeds.stream(0, "costs", len(self.known))
        shape = rounds, len(self.known)
        speeds = stream.lognormal(0.0, self.spread, shape) if self.spread else np.ones(shape)
        drawn: Times = np.asarray(self.known) / speeds * (1.0 + self.jitter * stream.random(shape))
        return drawn

    def longest(self) -> Estimate:
        """Return the expected maximum: the wait at a barrier.

        Exact for known times; E max = integral of 1 - prod F_i if one quantity is drawn; else a mean over draws.
        """
        if self.constant:
            return Estimate(max(self.known))
        if self.spread and self.jitter:
            return mean_of(self.draw().max(axis=1))
        least, most = self._support
        places = np.linspace(least, most, POINTS)
        below = np.prod([self._below(places, seconds) for seconds in self.known if seconds], axis=0)
        return Estimate(least + float(np.trapezoid(1.0 - below, places)))

    @property
    def _support(self) -> tuple[float, float]:
        longest = max(self.known)
        if self.jitter:
            return longest, longest * (1 + self.jitter)
        return 0.0, longest * math.exp(9 * self.spread)

    def _below(self, places: Times, seconds: float) -> Times:
        if self.jitter:
            done: Times = np.clip((places / seconds - 1.0) / self.jitter, 0.0, 1.0)
            return done
        with np.errstate(divide="ignore"):
            scores = np.log(places / seconds) / self.spread
        return np.array([0.5 * (1.0 + math.erf(score / math.sqrt(2))) for score in scores])


def mean_of(drawn: Sequence[float] | Times) -> Estimate:
    """Return the mean of independent draws, with its 95 % interval."""
    values = np.asarray(drawn, np.float64)
    return Estimate(float(values.mean()), 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values)))


@dataclass(frozen=True)
class FittedLink:
    """`latency` in seconds, `rate` in bytes per second; `residual`: the largest relative error of a time."""

    latency: float
    rate: float
    residual: float

    def seconds(self, size: float) -> float:
        """Return the transfer time of a message of `size` bytes."""
        return self.latency + size / self.rate


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> FittedLink:
    """Fit a line to transfer times by relative errors, so small messages have equal weight.

    Raises ValueError for fewer than two sizes, and times that do not grow.
    """
    s, t = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    if len(np.unique(s)) < 2:
        raise ValueError("two sizes at least are needed for a line")
    columns = np.stack([1.0 / t, s / t], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(t)), rcond=None)
    if slope <= 0:
        raise ValueError("longer messages did not take longer")
    residual = float(np.max(np.abs((latency + s * slope) / t - 1)))
    return FittedLink(max(0.0, float(latency)), 1.0 / float(slope), residual)


def shortest(call: Callable[[], object], times: int) -> float:
    """Return the seconds of the shortest of some calls: other load of the machine only adds."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)


# The links on which gossip with k neighbours has a shorter round than a ring all-reduce: a + k d/b against 2 (m - 1) (a
# + d / (m b)).
#
# A ring sends fewer bytes, one message after the other; gossip sends more, in one step.  So gossip is faster at long
# latency or high bandwidth, and the two are equal at
#
# b = d (k - 2 (m - 1) / m) / ((2 m - 3) a)
#
# Source: Lian, Zhang, Zhang, Hsieh, Zhang and Liu, Can decentralized algorithms outperform centralized algorithms?,
# NeurIPS 2017, with a comparison of the two; the times are those of algorithms/collectives and of costs/decentralised.


def crossover(latency: float, workers: int, size: float, neighbours: int = 2) -> float:
    """Return the bytes per second above which gossip's round is shorter; 0.0: always, infinite without `latency`.

    `latency` in seconds, `size` in bytes; `neighbours` of each peer.
    """
    more = neighbours - 2 * (workers - 1) / workers
    if more <= 0:
        return 0.0
    return size * more / ((2 * workers - 3) * latency) if latency and workers > 1 else math.inf


# The bandwidth below which saved bytes are worth their cost in time: of coding them, or of more rounds.
#
# Links are linear: with S sequential bytes saved, and t more seconds of everything else,
#
# compressing pays while  S / b > t,  so below  b = S / t


def break_even(saved_bytes: float, seconds_more: float) -> float:
    """Return the bytes per second, in each direction, below which saving bytes pays; 0.0: never, infinite: always.

    `saved_bytes`: on the critical path; `seconds_more`: their cost, negative if time is saved too.  More bytes in less
    time: 0.0.
    """
    if saved_bytes <= 0:
        return 0.0
    return saved_bytes / seconds_more if seconds_more > 0 else math.inf


def all_reduce_in_turn(name: str, workers: int, size: float, links: EqualLinks, training: float) -> float | None:
    """Return the seconds of one of many rounds in addition to a training of C; None without a closed form.

    A star's first workers train while others are served: C + 2 a + m d/b.  The naive ring, m > 2: m (a + d/b) + max(C,
    d/b), because the next vector starts once the head has the sum.  A tree and the doublings have no closed form unless
    m is a power of two.
    """
    added = COLLECTIVES[name].added(workers) * size * links.summing
    one = size / links.rate
    if workers > 1 and name == "star":
        return 2 * links.latency + workers * one + added
    if workers > 1 and name == "ring-naive":
        lap = workers * (links.latency + one) + max(0.0, one - training)
        return min(lap, all_reduce(name, workers, size, links) - added) + added
    if name in ("tree", "halving-doubling", "recursive-doubling") and workers != power_below(workers):
        return None
    return all_reduce(name, workers, size, links)


@dataclass(frozen=True)
class RackedLinks(EqualLinks):
    """Links of participants in racks, as `simulation.racks`: those of a rack share its links to the others."""

    racks: Racks | None = None


def tree_in_racks(workers: int, size: float, links: RackedLinks) -> float | None:
    """Return the seconds of one of many rounds of a tree in addition to training, over full racks.

    2 (a + d/b) within a rack and 2 (A + d / min(b, B)) across, for each level; None unless workers and the size of a
    rack are powers of two.
    """
    racks = links.racks
    assert racks is not None
    if workers != power_below(workers) or racks.size != power_below(racks.size):
        return None
    delay = links.latency if racks.latency is None else racks.latency
    within, across = links.one(size), delay + size / min(links.rate, racks.bandwidth or math.inf)
    levels = [1 << k for k in range(power_below(workers).bit_length() - 1)]
    found = 2 * sum(across if distance >= racks.size else within for distance in levels)
    return found + COLLECTIVES["tree"].added(workers) * size * links.summing


def through_servers(workers: int, size: float, links: EqualLinks, largest: float = 1.0) -> float:
    """Return the seconds in addition to training: the model to all, one message back, one sum: (W p + 1) d/b + 2 a.

    `largest`: the largest server's share p.  All replies except the last arrive, and are added, while others train.
    With several servers: only without downlinks.
    """
    return (workers * largest + 1) * size / links.rate + 2 * links.latency + size * largest * links.summing


def through_servers_alone(workers: int, size: float, links: EqualLinks, largest: float, training: float) -> float:
    """Return the seconds, in addition to a training of C, of a worker that waits for no other.

    2 a + d/b and the model's arrival, d/b through its downlink, p d/b without; or all workers at the largest server, W
    p d/b, less C.
    """
    arrival = size * (largest if math.isinf(links.down) else 1.0) / links.rate
    alone = 2 * links.latency + size / links.rate + arrival + size * largest * links.summing
    return max(alone, workers * largest * size * max(1 / links.rate, links.summing) - training)


def pairs_in_turn(size: float, links: EqualLinks, training: float) -> float:
    """Return the seconds of asynchronous pairs in addition to a training: max(C, 8 (a + d/b)) less C."""
    return max(0.0, 2 * SPREAD * links.one(size) - training)


def neighbours(degree: float, size: float, links: EqualLinks) -> float:
    """Return the seconds of D-PSGD's exchange on a graph of this degree: a + k d/b, and k sums."""
    return links.latency + degree * size * (1 / links.rate + links.summing) if degree else 0.0
