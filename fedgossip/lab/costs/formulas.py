"""Textbook times of a round by closed form, for equal training times: shown in tables beside the measured ones.

They are those of one round alone.  Where some participants begin the next round before others end the last (star, tree,
ring-naive), consecutive rounds take another time, which `methods` computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.lab.costs.base import Cost, EqualLinks

# Gain of more workers at a fixed number of examples per round (strong scaling), and the causes of its loss.


@dataclass(frozen=True)
class Scaling:
    """T(1) / T(m), that per worker, and the shares of a round spent on communication and on waiting."""

    speedup: float
    efficiency: float
    lost_to_communication: float
    lost_to_waiting: float


def strong_scaling(costs: Mapping[int, Cost]) -> dict[int, Scaling]:
    """Return the scaling of each number of workers over one.  Raises ValueError without the cost of one."""
    if 1 not in costs:
        raise ValueError("strong scaling is told beside one worker")
    return {
        m: Scaling(
            costs[1].seconds / cost.seconds,
            costs[1].seconds / cost.seconds / m,
            cost.communicate / cost.seconds,
            cost.wait / cost.seconds,
        )
        for m, cost in sorted(costs.items())
    }


# Where gossip with k neighbours has a shorter round than a ring all-reduce: a + k d/b against 2 (m - 1) (a +
# d / (m b)).
#
# A ring sends fewer bytes, one message after the other; gossip sends more, in one step.  So gossip wins at
# long latency or high bandwidth, and the two are equal at
#
# b = d (k - 2 (m - 1) / m) / ((2 m - 3) a)
#
# Source: Lian, Zhang, Zhang, Hsieh, Zhang and Liu, Can decentralized algorithms outperform centralized algorithms?,
# NeurIPS 2017, with a comparison of the two; the times are those of algorithms/collectives and of costs/decentralised.


def crossover(latency: float, workers: int, size: float, neighbours: int = 2) -> float:
    """Return the bytes per second above which gossip has the shorter round; 0.0 where it always has.

    `latency` in seconds, `size` in bytes; `neighbours` of each peer.  Infinite without latency.
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
    """Return the bytes per second, each way, below which saving bytes pays; 0.0: never, infinite: always.

    `saved_bytes`: on the critical path; `seconds_more`: their cost, below 0 where time is saved too.  Where more bytes
    are sent, and time is saved, it would pay only above a bandwidth: 0.0 too.
    """
    if saved_bytes <= 0:
        return 0.0
    return saved_bytes / seconds_more if seconds_more > 0 else math.inf


def all_reduce(name: str, workers: int, size: float, links: EqualLinks) -> float:
    """Return the seconds of one all-reduce, and of its sums; see algorithms/collectives/names."""
    rate, collective = 1.0 if math.isinf(links.rate) else links.rate, COLLECTIVES[name]
    passes = collective.seconds(workers, 0.0 if math.isinf(links.rate) else size, links.latency, rate)
    return passes + collective.added(workers) * size * links.summing


def all_gather(name: str, workers: int, payload: float, size: float, links: EqualLinks) -> float:
    """Return the seconds of an all-gather of a payload of each, and of adding the decoded vectors, `size` bytes each.

    A ring forwards them m - 1 times; in a complete exchange each is sent to all others.
    """
    sent = (workers - 1) * payload / links.rate
    waits = workers - 1 if name == "ring" else int(workers > 1)
    return waits * links.latency + sent + (workers - 1) * size * links.summing


def through_servers(workers: int, size: float, links: EqualLinks, servers: int = 1) -> float:
    """Return the seconds beside the training: the model to all, one message back, one sum: (W / S + 1) d/b + 2 a.

    The first workers served reply first, so all replies but the last arrive, and are added, while others still train.
    """
    return (workers / servers + 1) * size / links.rate + 2 * links.latency + size / servers * links.summing


def neighbours(degree: float, size: float, links: EqualLinks) -> float:
    """Return the seconds of D-PSGD's exchange on a graph of this degree: a + k d/b, and k sums."""
    return links.latency + degree * size * (1 / links.rate + links.summing) if degree else 0.0
