"""The predicted cost of a round, and of a message: a + s/b, and one at a time in and out of every participant."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
