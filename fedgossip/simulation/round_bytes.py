"""The cost of a round of gossip on arrays, as on the wire: the messages that each node would send and receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Message
from fedgossip.core.wire import wire_bytes

if TYPE_CHECKING:
    from fedgossip.topology import Schedule

Sizes = npt.NDArray[np.int64]


class RoundBytes(NamedTuple):
    """The traffic of each peer in a round, sent and received: (bytes of messages, those of the vectors in them), int64
    [n].
    """

    sent: tuple[Sizes, Sizes]
    received: tuple[Sizes, Sizes]


class Numbered(NamedTuple):
    """Messages of a round, of `n` nodes: `times[g]` of node `owners[g]` have `numbers[g]`; int64."""

    n: int
    owners: Sizes
    numbers: Sizes
    times: Sizes


class TwoSizes(NamedTuple):
    """Messages of a round: of the all[i] of node i two[i] have the number `last`, the others -1; int64 [n]."""

    last: int
    two: Sizes
    all: Sizes


Said = Numbered | TwoSizes


class Edges:
    """The numbers that messages of a round have for their edges, where nothing is lost."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self._nodes = schedule, range(schedule.n)
        self._mixed: dict[tuple[NodeId, NodeId], int] = {}
        self._used: Counter[tuple[NodeId, NodeId]] = Counter()
        self._followed = 0
        mixing = schedule.mixing(0)
        self._targets = [mixing.targets(node) for node in self._nodes]
        self._sources = [mixing.row(node).keys() - {node} for node in self._nodes]
        # of a graph that never changes
        sides = zip(self._sources, self._targets, strict=True)
        self._both = np.array([len(sources.intersection(to)) for sources, to in sides], np.int64)
        self._given, self._taken = (np.array([len(of) for of in side]) for side in (self._targets, self._sources))

    def mixed_before(self, round: int) -> tuple[Said, Said]:
        """Return for each target, and for each source, the last round in which both ends mixed each other's model.

        -1: none.
        """
        if self.schedule.period == 1:
            both = self._both if round else np.zeros_like(self._both)
            return TwoSizes(round - 1, both, self._given), TwoSizes(round - 1, both, self._taken)
        self._follow(round)
        given = [self._mixed.get((i, j), -1) for i in self._nodes for j in self._targets[i]]
        taken = [self._mixed.get((i, j), -1) for i in self._nodes for j in self._sources[i]]
        return _one_each(self._targets, given), _one_each(self._sources, taken)

    def used_before(self, round: int) -> tuple[Said, Said]:
        """Return for each target, and for each source, in how many earlier rounds the arc was used."""
        if self.schedule.period == 1:
            return TwoSizes(round, self._given, self._given), TwoSizes(round, self._taken, self._taken)
        self._follow(round)
        given = [self._used[i, j] for i in self._nodes for j in self._targets[i]]
        taken = [self._used[j, i] for i in self._nodes for j in self._sources[i]]
        return _one_each(self._targets, given), _one_each(self._sources, taken)

    def _follow(self, round: int) -> None:
        """Note the rounds up to this one, from the first on after a pause.  A constant graph needs no notes."""
        while self._followed < round:
            for i in self._nodes:
                for to in self._targets[i]:
                    self._used[i, to] += 1
                    if to in self._sources[i]:
                        self._mixed[i, to] = self._followed
            self._followed += 1
            mixing = self.schedule.mixing(self._followed)
            self._targets = [mixing.targets(node) for node in self._nodes]
            self._sources = [mixing.row(node).keys() - {node} for node in self._nodes]


def _one_each(of: Sequence[Collection[NodeId]], numbers: Sequence[int]) -> Numbered:
    """Each message has a number, node by node."""
    owners = np.repeat(np.arange(len(of)), [len(one) for one in of])
    return Numbered(len(of), owners, np.array(numbers, np.int64), np.ones(len(numbers), np.int64))


def priced_both(numbered: tuple[Said, Said], message: Callable[[int], Message]) -> RoundBytes:
    """Return the sizes of each node's sent and received messages; `numbered`: the message numbers of both."""
    return RoundBytes(*(_priced(one, message) for one in numbered))


def _priced(of: Said, message: Callable[[int], Message]) -> tuple[Sizes, Sizes]:
    """Return the sizes of each node's messages together."""
    if isinstance(of, TwoSizes):
        rest = of.all - of.two
        last, never = _costs(message(of.last)), _costs(message(-1)) if rest.any() else (0, 0)
        return of.two * last[0] + rest * never[0], of.two * last[1] + rest * never[1]
    there = of.times > 0
    numbers, places = np.unique(of.numbers[there], return_inverse=True)
    messages = [message(number) for number in numbers.tolist()]
    sizes = np.array([_costs(one) for one in messages], np.int64).reshape(-1, 2)
    together = np.zeros((of.n, 2), np.int64)
    np.add.at(together, of.owners[there], sizes[places] * of.times[there, None])
    return together[:, 0], together[:, 1]


def _costs(message: Message) -> tuple[int, int]:
    return wire_bytes(message), message.payload_bytes
