"""The cost of a round of each method, from its steps: every participant's messages and training.

Rounds are simulated twice: with mean training times for the communication, and with actual ones, known or drawn, for
the waiting.  (`TrainingTimes.longest` less the mean is not exact: the last to begin need not be the last to end.)

    collectives, and gossip      train, send, take                   every participant
    through one or more servers  take, train, send                   every worker; a server sends to and takes from all
    asynchronous pairs           a rate: training continues during an exchange

A participant takes its steps in order; only training overlaps with others.  Messages pass through the simulator's links
(`simulation/network`), counting only vectors.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np

from fedgossip.algorithms.collectives.names import COLLECTIVES, GATHERS, EqualLinks
from fedgossip.algorithms.collectives.table import Way
from fedgossip.lab.costs.base import Cost, Estimate, RackedLinks, Times, TrainingTimes, through_servers_alone
from fedgossip.protocols.allreduce.reduction import OPEN
from fedgossip.protocols.gossip.pairing import SPREAD
from fedgossip.simulation.network import NS, NetworkSettings, SimulatedNetwork, share_until
from fedgossip.topology.schedules.schedules import Schedule

ROUNDS = 40
"""Number of simulated rounds."""

RUNS = 12
"""Number of repetitions with drawn times."""


class Act(Enum):
    TRAIN = "train"
    SEND = "send"
    TAKE = "take"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class TimedStep:
    """`size`: bytes of the message, or of added vectors.

    `lane`: its sequence of steps, 0, 1, ...; WINDOW of them run at once, from the first unfinished one, and share links
    and training.  A message stays in its lane.
    """

    act: Act
    peer: int = -1
    size: float = 0.0
    lane: int = 0
    share: float = 1.0
    """TRAIN: share of the training, which begins at the first such step of the round; past work is not waited for."""


TRAIN = TimedStep(Act.TRAIN)

WINDOW = OPEN
"""Maximum number of active lanes: the buckets of a collective."""

StepsOfRounds = Callable[[int, int], Sequence[TimedStep]]
"""(round, participant): its steps in that round.  Every sent message is taken."""

Lane = tuple[int, int]
"""(participant, lane)"""

ALIKE = 3
"""Number of equally long consecutive periods, for every participant, after which all further ones are assumed equal."""

CYCLES = 8
"""Maximum number of periods of the steps in a cycle of waits: participants may be late in turn."""

ROUNDED = 8
"""Nanoseconds of tolerance between such periods: messages take whole nanoseconds."""


def seconds_of_rounds(
    steps: StepsOfRounds, participants: int, links: EqualLinks, times: Times, period: int = 0
) -> float:
    """Return the mean seconds of a round, from the times of training [rounds, training participants].

    Of several rounds the first is omitted, because it includes no waits.  `period`: rounds after which the steps
    repeat; 0: never.  Constant times are extrapolated after `ALIKE` repetitions.  Raises ValueError for a cycle of
    waits.
    """
    rounds = len(times)
    ends = _Followed(steps, participants, links, times, period if (times == times[0]).all() else 0).ends()
    return ((ends[-1] - ends[0]) / (rounds - 1) if rounds > 1 else ends[0]) / NS


class _Followed:
    def __init__(self, steps: StepsOfRounds, participants: int, links: EqualLinks, times: Times, period: int) -> None:
        self._steps, self._times = steps, times
        self._multiples = [period * many for many in range(1, CYCLES + 1)] if period else []
        racks = links.racks if isinstance(links, RackedLinks) else None
        up, down = _finite(links.up), _finite(links.down)
        settings = NetworkSettings(links.latency, bandwidth=up, downlink=down, racks=racks)
        self._network = SimulatedNetwork(settings, participants, 0)
        self._summing, self._adding = links.summing, [0] * participants  # end of each participant's additions
        self._round = [0] * participants
        self._began: list[int | None] = [None] * participants  # start of each participant's training in the round
        self._first, self._opened = [0] * participants, [0] * participants
        """First unfinished, and next unopened lane of the round."""
        self._over: set[Lane] = set()  # finished lanes behind an unfinished one
        self._ended: list[list[int]] = []
        """End of each round of each participant, ascending."""
        self._repeats = 0
        """Number of rounds in a repeating cycle; 0: not found yet."""
        self._lanes: list[list[deque[TimedStep]]] = [[] for _ in range(participants)]
        self._sent: dict[tuple[int, Lane], deque[int]] = {}
        self._awaits: dict[Lane, int] = {}
        self._due: list[tuple[int, int, int]] = []
        for node in range(participants):
            self._begin(node, 0)

    def ends(self) -> list[int]:
        """Return the end of each round over all participants, in nanoseconds."""
        while self._due and not self._repeats:
            now, *lane = heapq.heappop(self._due)
            self._go_on((lane[0], lane[1]), now)
        if not self._repeats and any(round < len(self._times) for round in self._round):
            raise ValueError(f"participants wait for each other: {self._awaits}")
        done = min(self._round)  # some may be ahead
        ends = [max(ended) for ended in self._ended[:done]]
        for round in range(done, len(self._times)):
            ends.append(2 * ends[round - self._repeats] - ends[round - 2 * self._repeats])
        return ends

    def _begin(self, node: int, now: int) -> None:
        lanes: dict[int, deque[TimedStep]] = {}
        for step in self._steps(self._round[node], node):
            lanes.setdefault(step.lane, deque()).append(step)
        self._began[node], self._first[node], self._opened[node] = None, 0, 0
        self._lanes[node] = [lanes[number] for number in range(len(lanes))]
        self._open(node, now)

    def _open(self, node: int, now: int) -> None:
        """Continue in the permitted lanes."""
        lanes = self._lanes[node]
        while (node, self._first[node]) in self._over:
            self._over.remove((node, self._first[node]))
            self._first[node] += 1
        if self._first[node] == len(lanes):
            self._done(node, now)
            return
        while self._opened[node] < min(len(lanes), self._first[node] + WINDOW):
            heapq.heappush(self._due, (now, node, self._opened[node]))
            self._opened[node] += 1

    def _go_on(self, lane: Lane, now: int) -> None:
        """Take the steps up to one with a duration."""
        self._awaits.pop(lane, None)
        node, left = lane[0], self._lanes[lane[0]][lane[1]]
        while left:
            step = left[0]
            if step.act is not Act.TRAIN and self._adding[node] > now:
                heapq.heappush(self._due, (self._adding[node], *lane))
                return
            if step.act is Act.SEND:
                self._send(lane, step, now)
            elif step.act is Act.TAKE and not self._sent.get((step.peer, lane)):
                self._awaits[lane] = step.peer
                return
            left.popleft()
            arrival_ns = now
            if step.act is Act.TRAIN:
                began = self._began[node] = now if self._began[node] is None else self._began[node]
                assert began is not None
                arrival_ns = began + int(self._times[self._round[node], node] * step.share * NS)
            elif step.act is Act.ADD:
                arrival_ns = self._adding[node] = now + int(step.size * self._summing * NS)
            elif step.act is Act.TAKE:
                arrival_ns = self._sent[step.peer, lane].popleft()
            if arrival_ns > now:
                heapq.heappush(self._due, (arrival_ns, *lane))
                return
        self._over.add(lane)
        self._open(node, now)

    def _done(self, node: int, now: int) -> None:
        at = self._round[node]
        if at == len(self._ended):
            self._ended.append([-1] * len(self._round))
        self._ended[at][node] = now
        self._round[node] = at + 1
        if at + 1 < len(self._times):
            self._begin(node, now)
        if self._multiples and -1 not in self._ended[at]:
            self._repeats = next((many for many in self._multiples if self._is_periodic(at, many)), 0)

    def _is_periodic(self, last: int, period: int) -> bool:
        if last < ALIKE * period:
            return False
        ended = [self._ended[last - back * period] for back in range(ALIKE + 1)]
        took = {now - before for late, soon in pairwise(ended) for now, before in zip(late, soon, strict=True)}
        return max(took) - min(took) <= ROUNDED

    def _send(self, lane: Lane, step: TimedStep, now: int) -> None:
        to = step.peer, lane[1]
        arrival_ns = self._network.passage(lane[0], step.peer, math.ceil(step.size), now).arrival_ns
        self._sent.setdefault((lane[0], to), deque()).append(arrival_ns)
        if self._awaits.get(to) == lane[0]:
            del self._awaits[to]
            heapq.heappush(self._due, (now, *to))


def _finite(rate: float) -> float | None:
    return None if math.isinf(rate) else rate


@dataclass(frozen=True)
class RoundSteps:
    """The steps of a method: of `participants`, the first of whom train, one per training time."""

    steps: StepsOfRounds
    participants: int
    period: int = 1
    """Number of rounds after which the steps repeat; 0: never."""


@dataclass(frozen=True)
class Buckets:
    """Parts of a vector with separate sums, from its end to its start."""

    elements: int = 0
    """Number of elements of each bucket except the last; 0: one bucket for all."""
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
    """Return the cost of an all-gather round of payloads of `payload` bytes, which decode to vectors
    of `size` bytes.
    """
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
    """Return the cost of a round of servers that send all participants the model and receive a reply from each.

    FedAvg with all clients, MapReduce, and staleness 0.  `parts`: each server's share of the model.
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

    All share the servers' links; with unequal training times the mean worker's round.
    """
    m, largest = len(times.known), max(parts)
    communicate = through_servers_alone(m, size, links, largest, times.mean)
    return Cost(times.mean, communicate, 0.0, max(m * size * largest, size), 2 * m * len(parts))


def served_ahead(size: int, links: EqualLinks, times: TrainingTimes, parts: Sequence[float] = (1.0,)) -> Cost:
    """Return the cost of a round of workers at most some clocks ahead of the slowest: its pace; jitter averages out."""
    alone = served_alone(size, links, times, parts)
    slowest = TrainingTimes(times.known, times.spread).longest()
    waited = slowest.value * (1 + times.jitter / 2) - times.mean
    return Cost(alone.compute, alone.communicate, waited, alone.payload_of_busiest, alone.messages, slowest.error)


def gossip(size: int, links: EqualLinks, times: TrainingTimes, schedule: Schedule) -> Cost:
    """Return the cost of a round of synchronous gossip of vectors of `size` bytes, by the graph of each round.

    A slow peer delays its neighbours first, and theirs a round later.
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

    A round trip takes u = 2 (a + d/b); a peer is busy for a third of the time at most, so an exchange is due every 4 u
    at the earliest.  With unequal training times the mean peer's round.
    """
    if len(times.known) == 1:
        return Cost(times.mean, 0.0, 0.0, 0.0, 0)
    exchange, messages = exchanges * SPREAD * 2 * links.one(size), 2 * exchanges * len(times.known)
    return Cost(times.mean, max(0.0, exchange - times.mean), 0.0, 2 * exchanges * size, messages)


def cost_of(method: RoundSteps, links: EqualLinks, times: TrainingTimes) -> Cost:
    """Return the cost of a round, the mean over the simulated ones."""
    m = len(times.known)
    even = _followed(method, links, np.full((ROUNDS, m), times.mean))
    if times.constant:
        alike = set(times.known) == {times.mean}
        seconds = Estimate(even if alike else _followed(method, links, np.tile(times.known, (ROUNDS, 1))))
    else:
        seconds = _estimate_random(method, links, times)
    return Cost(times.mean, even - times.mean, seconds.value - even, *_carried(method), seconds.error)


def _followed(method: RoundSteps, links: EqualLinks, times: Times) -> float:
    return seconds_of_rounds(method.steps, method.participants, links, times, method.period)


def _estimate_random(method: RoundSteps, links: EqualLinks, times: TrainingTimes) -> Estimate:
    found = [_followed(method, links, one) for one in runs_of(times)]
    return Estimate(float(np.mean(found)), 1.96 * float(np.std(found, ddof=1)) / math.sqrt(len(found)))


def runs_of(times: TrainingTimes, runs: int = RUNS, rounds: int = ROUNDS) -> Times:
    """Return training times, [runs, rounds, m]: speeds constant in a run, and a jitter per round."""
    m = len(times.known)
    speeds = TrainingTimes(times.known, times.spread).draw(runs)
    jitters = TrainingTimes((1.0,) * m, 0.0, times.jitter).draw(runs * rounds)
    drawn: Times = speeds[:, None, :] * jitters.reshape(runs, rounds, m)
    return drawn


def _carried(method: RoundSteps) -> tuple[float, float]:
    """Return the busiest participant's bytes and the total messages: means over rounds."""
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
