"""The textbook's times of a round by closed form, where all train equally long: what a table shows beside the measured.

They are those of one round alone.  Where the next round begins at some before the last is over at others (star, tree,
ring-naive), rounds that follow each other take another time, which `methods` tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.lab.costs.base import Cost, EqualLinks

# What more workers bring where the examples of a round stay the same (strong scaling), and where the rest is lost.


@dataclass(frozen=True)
class Scaling:
    """T(1) / T(m), that per worker, and the shares of a round that go to communication and to waiting."""

    speedup: float
    efficiency: float
    lost_to_communication: float
    lost_to_waiting: float


def strong_scaling(costs: Mapping[int, Cost]) -> dict[int, Scaling]:
    """Return what each number of workers brings over one.  Raises ValueError where that of one is not among them."""
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


# Where gossip with k neighbours is sooner done with a round than a ring all-reduce: a + k d/b against 2 (m - 1) (a +
# d / (m b)).
#
# A ring sends less and one message after the other; gossip sends more and in one step.  So gossip wins where latency is
# long or bandwidth high, and the two are equal at
#
# b = d (k - 2 (m - 1) / m) / ((2 m - 3) a)
#
# Source: Lian, Zhang, Zhang, Hsieh, Zhang and Liu, Can decentralized algorithms outperform centralized algorithms?,
# NeurIPS 2017, who compare the two; the times are those of algorithms/collectives and of costs/decentralised.


def crossover(latency: float, workers: int, size: float, neighbours: int = 2) -> float:
    """Return the bytes per second above which gossip has the shorter round; 0.0 where it always has.

    `latency` in seconds, `size` in bytes; `neighbours` of each peer.  Infinite without latency.
    """
    more = neighbours - 2 * (workers - 1) / workers
    if more <= 0:
        return 0.0
    return size * more / ((2 * workers - 3) * latency) if latency and workers > 1 else math.inf


# Below which bandwidth fewer bytes are worth the time that they cost elsewhere: coding them, or rounds more.
#
# Links are linear: with S bytes saved one after the other, and t seconds more of everything that is not bytes,
#
# compressing pays while  S / b > t,  so below  b = S / t


def break_even(saved_bytes: float, seconds_more: float) -> float:
    """Return the bytes per second, each way, below which saving bytes pays; 0.0: nowhere, infinite: everywhere.

    `saved_bytes`: on the way that is waited for; `seconds_more`: what that costs, below 0 where it spares time too.
    Where more bytes are sent, and time is spared, it would pay above a bandwidth alone: 0.0 too.
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
    """Return the seconds of an all-gather of a payload of each, and of adding what they stand for, `size` bytes each.

    A ring passes them on, m - 1 times; among all each is sent to all others.
    """
    sent = (workers - 1) * payload / links.rate
    waits = workers - 1 if name == "ring" else int(workers > 1)
    return waits * links.latency + sent + (workers - 1) * size * links.summing


def through_servers(workers: int, size: float, links: EqualLinks, servers: int = 1) -> float:
    """Return the seconds beside the training: the model to all, one message back, one sum: (W / S + 1) d/b + 2 a.

    Workers that were told first are back first, so that all but the last answer come in, and are added, while others
    still train.
    """
    return (workers / servers + 1) * size / links.rate + 2 * links.latency + size / servers * links.summing


def neighbours(degree: float, size: float, links: EqualLinks) -> float:
    """Return the seconds of D-PSGD's exchange on a graph of this degree: a + k d/b, and k sums."""
    return links.latency + degree * size * (1 / links.rate + links.summing) if degree else 0.0
