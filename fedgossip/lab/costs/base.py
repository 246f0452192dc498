"""What is told of a round, and what a message costs: a + s/b, and one at a time in and out of every participant."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """One round, as the mean participant has it; seconds, and bytes of vectors.

    `compute`: its training.  `communicate`: what the round takes beyond that where all train equally long.  `wait`:
    what it takes beyond both, for the others.  `payload_of_busiest`: in the larger direction of the participant that
    carries most.  `messages`: with vectors, of all together.  `error`: half of the 95 % interval of `wait`, where that
    was drawn and not computed.
    """

    compute: float
    communicate: float
    wait: float
    payload_of_busiest: float
    messages: float
    error: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of the round."""
        return self.compute + self.communicate + self.wait


@dataclass(frozen=True)
class EqualLinks:
    """The links of all participants: seconds one way, and bytes per second out of and into each; infinite: no limit."""

    latency: float
    up: float = math.inf
    down: float = math.inf
    summing: float = 0.0
    """Seconds in which a participant adds a byte of a vector to another."""

    @property
    def rate(self) -> float:
        """Bytes per second of one message alone: it is cut through, so the slower end counts once."""
        return min(self.up, self.down)

    def one(self, size: float) -> float:
        """Seconds of one message of `size` bytes."""
        return self.latency + size / self.rate
