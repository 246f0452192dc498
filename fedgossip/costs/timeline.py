"""Rounds that follow each other, step by step, for training times that are known: what waits for what, and how long.

Every participant makes its steps in order: it trains, sends, or takes a message that another has sent it.  Messages
pass through the links of the simulator (`simulation/network`), and are vectors alone: no headers, no acknowledgements.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from fedgossip.costs.base import EqualLinks
from fedgossip.costs.times import Times
from fedgossip.simulation.network import NS, NetworkSettings, SimulatedNetwork


class Act(Enum):
    TRAIN = "train"
    SEND = "send"
    TAKE = "take"


@dataclass(frozen=True, slots=True)
class TimedStep:
    act: Act
    peer: int = -1
    size: float = 0.0


TRAIN = TimedStep(Act.TRAIN)

StepsOfRounds = Callable[[int, int], Sequence[TimedStep]]
"""(round, participant): what it does in that round.  Every message that is sent is taken."""


def seconds_of_rounds(steps: StepsOfRounds, participants: int, links: EqualLinks, times: Times) -> float:
    """Return the mean seconds of a round, from the times of training [rounds, who trains].

    The first round is left out where there are several: what it waits for from the round before is not there yet.
    Raises ValueError where participants wait for each other for ever.
    """
    rounds = len(times)
    ends = _Followed(steps, participants, links, times).ends()
    return ((ends[-1] - ends[0]) / (rounds - 1) if rounds > 1 else ends[0]) / NS


class _Followed:
    def __init__(self, steps: StepsOfRounds, participants: int, links: EqualLinks, times: Times) -> None:
        self._steps, self._times = steps, times
        settings = NetworkSettings(links.latency, bandwidth=_finite(links.up), downlink=_finite(links.down))
        self._network = SimulatedNetwork(settings, participants, 0)
        self._left = [deque(steps(0, node)) for node in range(participants)]
        self._round = [0] * participants
        self._ends = [0] * len(times)
        self._sent: dict[tuple[int, int], deque[int]] = {}
        self._awaits: list[int | None] = [None] * participants
        self._due = [(0, node) for node in range(participants)]

    def ends(self) -> list[int]:
        """When all are done with each round, in nanoseconds."""
        while self._due:
            now, node = heapq.heappop(self._due)
            self._go_on(node, now)
        if any(round < len(self._times) for round in self._round):
            raise ValueError(f"participants wait for each other: {self._awaits}")
        return self._ends

    def _go_on(self, node: int, now: int) -> None:
        """Make the steps that take no time, up to one that does: others' steps before its end come first."""
        self._awaits[node] = None
        while self._round[node] < len(self._times):
            if not self._left[node]:
                self._done(node, now)
                continue
            step = self._left[node][0]
            if step.act is Act.SEND:
                self._send(node, step, now)
            elif step.act is Act.TAKE and not self._sent.get((step.peer, node)):
                self._awaits[node] = step.peer
                return
            self._left[node].popleft()
            if step.act is Act.TRAIN:
                heapq.heappush(self._due, (now + int(self._times[self._round[node], node] * NS), node))
                return
            if step.act is Act.TAKE and (comes := self._sent[step.peer, node].popleft()) > now:
                heapq.heappush(self._due, (comes, node))
                return

    def _done(self, node: int, now: int) -> None:
        at = self._round[node]
        self._ends[at] = max(self._ends[at], now)
        self._round[node] = at + 1
        if at + 1 < len(self._times):
            self._left[node] = deque(self._steps(at + 1, node))

    def _send(self, node: int, step: TimedStep, now: int) -> None:
        to = step.peer
        comes = self._network.passage(node, to, math.ceil(step.size), now).arrival_ns
        self._sent.setdefault((node, to), deque()).append(comes)
        if self._awaits[to] == node:
            self._awaits[to] = None
            heapq.heappush(self._due, (now, to))


def _finite(rate: float) -> float | None:
    return None if math.isinf(rate) else rate
