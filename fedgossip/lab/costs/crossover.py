"""Where gossip with k neighbours is sooner done with a round than a ring all-reduce: a + k d/b against
2 (m - 1) (a + d / (m b)).

A ring sends less and one message after the other; gossip sends more and in one step.  So gossip wins where latency is
long or bandwidth high, and the two are equal at

    b = d (k - 2 (m - 1) / m) / ((2 m - 3) a)

Source: Lian, Zhang, Zhang, Hsieh, Zhang and Liu, Can decentralized algorithms outperform centralized algorithms?,
NeurIPS 2017, who compare the two; the times are those of algorithms/collectives and of costs/decentralised.
"""

from __future__ import annotations

import math


def crossover(latency: float, workers: int, size: float, neighbours: int = 2) -> float:
    """Return the bytes per second above which gossip has the shorter round; 0.0 where it always has.

    `latency` in seconds, `size` in bytes; `neighbours` of each peer.  Infinite without latency.
    """
    more = neighbours - 2 * (workers - 1) / workers
    if more <= 0:
        return 0.0
    return size * more / ((2 * workers - 3) * latency) if latency and workers > 1 else math.inf
