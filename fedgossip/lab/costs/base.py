"""The predicted cost of a round, and of a message: a + s/b, and one at a time in and out of every participant.

Training times of participants: known times, a spread drawn once, and a jitter drawn every round.

A participant's training takes t / speed * (1 + J U): t is known, speed is exp(N(0, spread^2)), U is uniform on [0, 1].

A link's latency and bandwidth from transfer times of messages of several sizes: t = a + s / b, by least squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base import seeds


@dataclass(frozen=True)
class Cost:
    """One round of the mean participant; seconds, and bytes of vectors.

    `compute`: its training.  `communicate`: the time beyond that under equal training times.  `wait`: the time beyond
    both, spent on others.  `payload_of_busiest`: in the larger direction of the participant with most.  `messages`:
    with vectors, of all together.  `error`: half of the 95 % interval of `wait`, where that was drawn and not computed.
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


@dataclass(frozen=True)
class EqualLinks:
    """The links of all participants: seconds one way, and bytes per second out of and into each; infinite: no limit."""

    latency: float
    up: float = math.inf
    down: float = math.inf
    summing: float = 0.0
    """Seconds to add one byte of a vector to another."""

    @property
    def rate(self) -> float:
        """Return the bytes per second of a single message: it is cut through, so the slower end counts once."""
        return min(self.up, self.down)

    def one(self, size: float) -> float:
        """Return the seconds of one message of `size` bytes."""
        return self.latency + size / self.rate


DRAWS = 4000
"""Number of drawn rounds where there is no formula."""

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
    """Standard deviation of the logarithm of the speeds, where these are not in `known`."""
    jitter: float = 0.0

    @classmethod
    def equal(cls, seconds: float, participants: int) -> TrainingTimes:
        """Return equal times for all participants."""
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

    def drawn(self, rounds: int = DRAWS) -> Times:
        """Return times, [rounds, m]: each round with other speeds, the same ones in every call."""
        stream = seeds.stream(0, "costs", len(self.known))
        shape = rounds, len(self.known)
        speeds = stream.lognormal(0.0, self.spread, shape) if self.spread else np.ones(shape)
        drawn: Times = np.asarray(self.known) / speeds * (1.0 + self.jitter * stream.random(shape))
        return drawn

    def longest(self) -> Estimate:
        """Return the expected maximum: the wait of a barrier.

        Exact for known times; from the distributions where one thing is drawn, E max = integral of 1 - prod F_i;
        else the mean over draws.
        """
        if self.constant:
            return Estimate(max(self.known))
        if self.spread and self.jitter:
            return mean_of(self.drawn().max(axis=1))
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
        """Return the probability that a training with this time ends by then."""
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
    """Fit a line to transfer times, with relative errors squared, so that small messages weigh as much as large ones.

    Raises ValueError for fewer than two sizes, and for times that do not grow with the size.
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
