"""Follows consecutive rounds step by step, for known training times: dependencies and waiting times.

Every participant takes its steps in order: it trains, sends, takes a message from another, or adds up what it has
taken; only training runs beside other steps.  Messages pass through the links of the simulator (`simulation/network`),
and are vectors alone: no headers, no acknowledgements.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from fedgossip.lab.costs.base import EqualLinks, Times
from fedgossip.protocols.allreduce.reduction import OPEN
from fedgossip.simulation.network import NS, NetworkSettings, SimulatedNetwork


class Act(Enum):
    TRAIN = "train"
    SEND = "send"
    TAKE = "take"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class TimedStep:
    """`size`: bytes of the sent message, or of vectors added to others.

    `lane`: which of the participant's sequences of steps contains it, 0, 1, ...  WINDOW of them run beside each other,
    from the first unfinished one on, and share its links and its training; a message is taken in the lane that sent it.
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
"""Number of equally long periods in a row, for every participant, after which all further ones are assumed equal."""

CYCLES = 8
"""Maximum number of periods of the steps in a cycle of waiting: participants may be late in turn."""

ROUNDED = 8
"""Nanoseconds of tolerance between such periods: messages take whole nanoseconds."""


def seconds_of_rounds(
    steps: StepsOfRounds, participants: int, links: EqualLinks, times: Times, period: int = 0
) -> float:
    """Return the mean seconds of a round, from the times of training [rounds, training participants].

    Of several rounds the first is omitted: it has no previous round to wait for.  `period`: number of rounds after
    which the steps repeat; 0: never.  Where the times are constant too, rounds are followed until they repeat `ALIKE`
    times, and extrapolated. Raises ValueError where participants wait for each other in a cycle.
    """
    rounds = len(times)
    ends = _Followed(steps, participants, links, times, period if (times == times[0]).all() else 0).ends()
    return ((ends[-1] - ends[0]) / (rounds - 1) if rounds > 1 else ends[0]) / NS


class _Followed:
    def __init__(self, steps: StepsOfRounds, participants: int, links: EqualLinks, times: Times, period: int) -> None:
        self._steps, self._times = steps, times
        self._multiples = [period * many for many in range(1, CYCLES + 1)] if period else []
        settings = NetworkSettings(links.latency, bandwidth=_finite(links.up), downlink=_finite(links.down))
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
        """Begin the node's current round in all lanes with steps."""
        lanes: dict[int, deque[TimedStep]] = {}
        for step in self._steps(self._round[node], node):
            lanes.setdefault(step.lane, deque()).append(step)
        self._began[node], self._first[node], self._opened[node] = None, 0, 0
        self._lanes[node] = [lanes[number] for number in range(len(lanes))]
        self._open(node, now)

    def _open(self, node: int, now: int) -> None:
        """Continue in the permitted lanes; the round ends with the last."""
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
        """Take the steps without duration, up to one with a duration: others' steps before its end precede."""
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
            self._repeats = next((many for many in self._multiples if self._alike(at, many)), 0)

    def _alike(self, last: int, period: int) -> bool:
        """Return whether the last periods took each participant equally long, up to this round, finished by all."""
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
