"""The cost of a round of each method, from its steps: what every participant sends, takes and trains.

Rounds are followed step by step: once with all training times equal to their mean, for the communication; and once with
the actual times, known or drawn, for the waiting beyond that, with an interval where they are drawn.  At a barrier it
would be `TrainingTimes.longest` less the mean; but the last to begin need not be the last to end.

    collectives, and gossip      train, send, take                   every participant
    through one or more servers  take, train, send                   every worker; a server sends to and takes from all
    asynchronous pairs           a rate: training continues during an exchange
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.collectives.names import COLLECTIVES, GATHERS
from fedgossip.algorithms.collectives.table import Way
from fedgossip.lab.costs.base import Cost, EqualLinks, Estimate, Times, TrainingTimes
from fedgossip.lab.costs.formulas import through_servers_alone
from fedgossip.lab.costs.timeline import TRAIN, Act, StepsOfRounds, TimedStep, seconds_of_rounds
from fedgossip.protocols.gossip.pairing import SPREAD
from fedgossip.simulation.lazy_training import share_until
from fedgossip.topology.schedules.schedules import Schedule

ROUNDS = 40
"""Number of rounds that are followed."""

RUNS = 12
"""Number of repetitions with drawn times."""


@dataclass(frozen=True)
class RoundSteps:
    """The steps of a method: of `participants`, the first of which train, one per training time."""

    steps: StepsOfRounds
    participants: int
    period: int = 1
    """Number of rounds after which the steps repeat; 0: never."""


@dataclass(frozen=True)
class Buckets:
    """Parts of a vector with separate sums, from its end to its start."""

    elements: int = 0
    """Number of elements of each but the last; 0: one bucket of all."""
    overlap: bool = False
    """Whether each bucket is sent as soon as its part of the gradient is complete."""
    batches: int = 1
    """Number of batches of a gradient: it is final in the last one's backward pass."""


WHOLE = Buckets()
"""No buckets."""


def collective(
    name: str,
    size: int,
    links: EqualLinks,
    times: TrainingTimes,
    element: int = 4,
    buckets: Buckets = WHOLE,
) -> Cost:
    """Return the cost of a round of all-reduce of vectors of `size` bytes, with elements of `element` bytes."""
    m = len(times.known)
    table, length = COLLECTIVES[name].table(m), size // element
    starts = range(0, length, buckets.elements or length)
    steps: list[list[TimedStep]] = [[] for _ in range(m)]
    for number, start in enumerate(reversed(starts)):
        here = min(starts.step, length - start)
        share = share_until(start, length, buckets.batches) if buckets.overlap else 1.0
        for rank in range(m):
            steps[rank].append(TimedStep(Act.TRAIN, lane=number, share=share))
            for move, part in table.of(rank, here):
                stretch = element * (part.stop - part.start)
                act = Act.SEND if move.way is Way.SEND else Act.TAKE
                steps[rank].append(TimedStep(act, move.peer, stretch, number))
                if move.way is Way.ADD:
                    steps[rank].append(TimedStep(Act.ADD, size=stretch, lane=number))
    return cost_of(RoundSteps(lambda _, node: steps[node], m), links, times)


def gathered(name: str, payload: int, size: int, links: EqualLinks, times: TrainingTimes) -> Cost:
    """Return the cost of an all-gather round of payloads of so many bytes, which decode to vectors of `size` bytes."""
    m = len(times.known)
    table = GATHERS[name](m)
    steps: list[list[TimedStep]] = [[TRAIN] for _ in range(m)]
    for rank in range(m):
        for move, part in table.of(rank, m * payload):
            act = Act.SEND if move.way is Way.SEND else Act.TAKE
            steps[rank].append(TimedStep(act, move.peer, part.stop - part.start))
            if act is Act.TAKE:
                steps[rank].append(TimedStep(Act.ADD, size=size))
    return cost_of(RoundSteps(lambda _, node: steps[node], m), links, times)


def served(size: int, links: EqualLinks, times: TrainingTimes, parts: Sequence[float] = (1.0,)) -> Cost:
    """Return the cost of a round in which servers send all participants the model and receive a reply from each.

    FedAvg with all clients, MapReduce, and a parameter server with staleness 0.  `parts`: each server's share of the
    model.
    """
    m = len(times.known)
    part = {m + place: share * size for place, share in enumerate(parts)}
    hubs = list(part)

    def steps(_round: int, node: int) -> Sequence[TimedStep]:
        if node < m:
            return [
                *(TimedStep(Act.TAKE, hub) for hub in hubs), TRAIN,
                *(TimedStep(Act.SEND, hub, size) for hub, size in part.items()),
            ]  # fmt: skip
        arrivals = [step for of in range(m) for step in (TimedStep(Act.TAKE, of), TimedStep(Act.ADD, size=part[node]))]
        return [*(TimedStep(Act.SEND, to, part[node]) for to in range(m)), *arrivals]

    return cost_of(RoundSteps(steps, m + len(part)), links, times)


def served_alone(size: int, links: EqualLinks, times: TrainingTimes, parts: Sequence[float] = (1.0,)) -> Cost:
    """Return the cost of a round of a worker that waits for no other: a parameter server with staleness "async".

    It requests the model, trains, and sends its gradient; all share the servers' links.  With unequal training times
    each worker has its own round, and this is the mean worker's.
    """
    m, largest = len(times.known), max(parts)
    communicate = through_servers_alone(m, size, links, largest, times.mean)
    return Cost(times.mean, communicate, 0.0, max(m * size * largest, size), 2 * m * len(parts))


def served_ahead(size: int, links: EqualLinks, times: TrainingTimes, parts: Sequence[float] = (1.0,)) -> Cost:
    """Return the cost of a round of workers that may be some clocks ahead of the slowest: in the long run its pace.

    Jitter drawn in every round averages out while the clocks suffice; a slow processor does not.
    """
    alone = served_alone(size, links, times, parts)
    slowest = TrainingTimes(times.known, times.spread).longest()
    waited = slowest.value * (1 + times.jitter / 2) - times.mean
    return Cost(alone.compute, alone.communicate, waited, alone.payload_of_busiest, alone.messages, slowest.error)


def gossip(size: int, links: EqualLinks, times: TrainingTimes, schedule: Schedule) -> Cost:
    """Return the cost of a round of synchronous gossip of vectors of `size` bytes, by the graph of each round.

    A peer waits for its neighbours alone: a slow one delays them first, and theirs a round later.
    """
    return cost_of(RoundSteps(gossip_steps(schedule, size), schedule.n, schedule.period), links, times)


def gossip_steps(schedule: Schedule, size: float) -> StepsOfRounds:
    """Return the steps of a peer in a round of synchronous gossip: it trains, sends, takes, and adds."""

    def steps(round: int, node: int) -> Sequence[TimedStep]:
        mixing = schedule.mixing(round)
        sends = [TimedStep(Act.SEND, to, size) for to in mixing.targets(node)]
        takes = [TimedStep(Act.TAKE, of) for of in sorted(mixing.row(node).keys() - {node})]
        return [TRAIN, *sends, *takes, TimedStep(Act.ADD, size=size * len(takes))]

    return steps


def pairs(size: int, links: EqualLinks, times: TrainingTimes, exchanges: int = 1) -> Cost:
    """Return the cost of a round of asynchronous gossip: a peer trains during its exchange, one training ahead.

    A round trip of an exchange takes u = 2 (a + d/b); a peer is busy with its own for a third of the time at most, so
    an exchange is due every 4 u at the soonest, including declined offers and retries.  With unequal training times
    each peer has its own round, and this is the mean peer's.
    """
    if len(times.known) == 1:
        return Cost(times.mean, 0.0, 0.0, 0.0, 0)
    exchange, messages = exchanges * SPREAD * 2 * links.one(size), 2 * exchanges * len(times.known)
    return Cost(times.mean, max(0.0, exchange - times.mean), 0.0, 2 * exchanges * size, messages)


def cost_of(method: RoundSteps, links: EqualLinks, times: TrainingTimes) -> Cost:
    """Return the cost of a round, the mean over the followed ones."""
    m = len(times.known)
    even = _followed(method, links, np.full((ROUNDS, m), times.mean))
    if times.constant:
        alike = set(times.known) == {times.mean}
        seconds = Estimate(even if alike else _followed(method, links, np.tile(times.known, (ROUNDS, 1))))
    else:
        seconds = _drawn(method, links, times)
    return Cost(times.mean, even - times.mean, seconds.value - even, *_carried(method), seconds.error)


def _followed(method: RoundSteps, links: EqualLinks, times: Times) -> float:
    return seconds_of_rounds(method.steps, method.participants, links, times, method.period)


def _drawn(method: RoundSteps, links: EqualLinks, times: TrainingTimes) -> Estimate:
    """Follow rounds with drawn times, several times."""
    found = [_followed(method, links, one) for one in runs_of(times)]
    return Estimate(float(np.mean(found)), 1.96 * float(np.std(found, ddof=1)) / math.sqrt(len(found)))


def runs_of(times: TrainingTimes, runs: int = RUNS, rounds: int = ROUNDS) -> Times:
    """Return times of training, [runs, rounds, m]: speeds constant in a run, and a jitter of every round."""
    m = len(times.known)
    speeds = TrainingTimes(times.known, times.spread).drawn(runs)
    jitters = TrainingTimes((1.0,) * m, 0.0, times.jitter).drawn(runs * rounds)
    drawn: Times = speeds[:, None, :] * jitters.reshape(runs, rounds, m)
    return drawn


def _carried(method: RoundSteps) -> tuple[float, float]:
    """Return the busiest participant's bytes in its larger direction, and the messages of all: means over rounds."""
    out, received = np.zeros(method.participants), np.zeros(method.participants)
    messages, rounds = 0, min(method.period or ROUNDS, ROUNDS)
    for round in range(rounds):
        for node in range(method.participants):
            for step in method.steps(round, node):
                if step.act is Act.SEND:
                    out[node] += step.size
                    received[step.peer] += step.size
                    messages += 1
    return float(np.maximum(out, received).max()) / rounds, messages / rounds
