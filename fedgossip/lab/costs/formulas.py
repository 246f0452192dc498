"""Textbook times of a round by closed form, for equal training times: shown in tables beside the measured ones.

`all_reduce` is that of one round alone.  Where some participants begin the next round before others end the last (star,
tree, ring-naive), consecutive rounds take another time: `all_reduce_in_turn`, and `methods` by their steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedgossip.algorithms.collectives.names import COLLECTIVES, power_below
from fedgossip.lab.costs.base import Cost, EqualLinks
from fedgossip.protocols.gossip.pairing import SPREAD

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


def all_reduce_in_turn(name: str, workers: int, size: float, links: EqualLinks, training: float) -> float | None:
    """Return the seconds beside a training of C of one of many rounds of all-reduce; None without a closed form.

    A star's first workers served train while others are: C + 2 a + m d/b.  The naive ring's next vector starts once its
    head has the sum, while that goes round: m (a + d/b) + max(C, d/b), for m > 2.  A tree, and the two by doubling,
    have none where m is no power of two: ranks that do not fold begin early.
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


def through_servers(workers: int, size: float, links: EqualLinks, largest: float = 1.0) -> float:
    """Return the seconds beside the training: the model to all, one message back, one sum: (W p + 1) d/b + 2 a.

    `largest`: the largest server's share p of the model.  The first workers served reply first, so all replies but the
    last arrive, and are added, while others still train.  For several servers, only without downlinks.
    """
    return (workers * largest + 1) * size / links.rate + 2 * links.latency + size * largest * links.summing


def through_servers_alone(workers: int, size: float, links: EqualLinks, largest: float, training: float) -> float:
    """Return the seconds beside a training of C of a worker that waits for no other.

    Its own way there and back, 2 a + d/b and the model's arrival: through its downlink d/b, without one p d/b, as the
    servers send at once; or what all workers together take at the largest server, W p d/b, less C.
    """
    arrival = size * (largest if math.isinf(links.down) else 1.0) / links.rate
    alone = 2 * links.latency + size / links.rate + arrival + size * largest * links.summing
    return max(alone, workers * largest * size * max(1 / links.rate, links.summing) - training)


def pairs_in_turn(size: float, links: EqualLinks, training: float) -> float:
    """Return the seconds beside a training of asynchronous pairs: max(C, 8 (a + d/b)) less C."""
    return max(0.0, 2 * SPREAD * links.one(size) - training)


def neighbours(degree: float, size: float, links: EqualLinks) -> float:
    """Return the seconds of D-PSGD's exchange on a graph of this degree: a + k d/b, and k sums."""
    return links.latency + degree * size * (1 / links.rate + links.summing) if degree else 0.0
