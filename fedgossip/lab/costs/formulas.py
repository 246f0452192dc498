"""The textbook's times of a round by closed form, where all train equally long: what a table shows beside the measured.

They are those of one round alone.  Where the next round begins at some before the last is over at others (star, tree,
ring-naive), rounds that follow each other take another time, which `methods` tells.
"""

from __future__ import annotations

import math

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.lab.costs.base import EqualLinks


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
