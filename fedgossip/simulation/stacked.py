"""Gossip on one array whose rows are all peers' vectors, with the same bits: no messages (their bytes are counted),
no time.

For researchers of topologies: a round is one call of the task, one of the algorithm, and one mixing of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, cast

import numpy as np

from fedgossip.algorithms.base import GossipAlgorithm, State, Step, Vectors
from fedgossip.algorithms.combine import Combination, combine_rows
from fedgossip.errors import TrainingError
from fedgossip.machine import NodeId
from fedgossip.messages import CHECK_WORDS, Accepted, Masked, Message, Model, Parcel
from fedgossip.metrics import Meter, Network
from fedgossip.records import Row
from fedgossip.secure.neighbourhood import Grid
from fedgossip.task import Job, LocalTask, Update
from fedgossip.vectors import RowGroups, Vector, frozen, ordered_mix_rows
from fedgossip.wire import wire_bytes

if TYPE_CHECKING:
    from fedgossip.simulation.attackers import StackedAttackers
    from fedgossip.topology import Schedule


@dataclass
class Stack(Generic[State]):
    """The state of a run between two rounds."""

    round: int
    state: State
    meters: list[Meter]


def first_stack(task: LocalTask, n: int, algorithm: GossipAlgorithm[State]) -> Stack[State]:
    """Return where a run begins."""
    initial = frozen(np.stack([task.initial(node) for node in range(n)]))
    return Stack(0, algorithm.start(initial), [Meter(node) for node in range(n)])


Sizes = tuple[int, int]
"""Bytes of messages, and those of vectors among them."""


class RoundBytes(NamedTuple):
    """What each peer sends, and receives, in a round."""

    sent: list[Sizes]
    received: list[Sizes]


class StackedExchange(Protocol):
    """The mixing of all nodes' vectors in a round, and what a peer would send for it."""

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        """Return the mixed vectors, [n, d], frozen."""
        ...

    def carried(self, edges: Edges, round: int, schema: str, vectors: tuple[Vector, ...]) -> RoundBytes:
        """Return what each peer would send and receive in `round`, where nothing is lost; `vectors` are one peer's."""
        ...


class ModelExchange:
    """Models in clear."""

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        out = np.empty_like(vectors)
        ordered_mix_rows(groups, vectors, out)
        return frozen(out)

    def carried(self, edges: Edges, round: int, schema: str, vectors: tuple[Vector, ...]) -> RoundBytes:
        return _priced_both(edges.mixed_before(round), lambda used: Model(round, schema, vectors, used))


@dataclass(frozen=True)
class RuledExchange(ModelExchange):
    """Models in clear, put together by a rule that is no sum."""

    rule: Combination

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        out = np.empty_like(vectors)
        combine_rows(self.rule, groups, vectors, out)
        return frozen(out)


class MassExchange(ModelExchange):
    """Shares of vectors and of their weight: each is accepted."""

    def carried(self, edges: Edges, round: int, schema: str, vectors: tuple[Vector, ...]) -> RoundBytes:
        *like_the_model, weight = vectors
        shares = tuple(like_the_model)
        given, taken = edges.used_before(round)
        parcels = _priced_both((given, taken), lambda number: Parcel(number, round, schema, shares, float(weight[0])))
        answers = _priced_both((taken, given), Accepted)
        return RoundBytes(*(_added(*both) for both in zip(parcels, answers, strict=True)))


@dataclass(frozen=True)
class Private:
    """Models as the integers that remain of them under the masks of private gossip."""

    grid: Grid

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        if (largest := self.grid.beyond(vectors)) is not None:
            text = f"a model with a weight of {largest:.6g}, beyond algorithm.bound = {self.grid.bound:g}"
            raise TrainingError(text, "Raise algorithm.bound; or lower train.lr, if the training has diverged.")
        out = np.empty_like(vectors)
        self.grid.moved_rows(groups, vectors, out)
        return frozen(out)

    def carried(self, edges: Edges, round: int, schema: str, vectors: tuple[Vector, ...]) -> RoundBytes:
        words = np.empty(vectors[0].size + CHECK_WORDS, np.uint32)
        masked = Masked(round, schema, (cast(Vector, words),))
        return _priced_both(edges.mixed_before(round), lambda _: masked)


PLAIN, SHARES = ModelExchange(), MassExchange()


def run_stacked(
    task: LocalTask,
    schedule: Schedule,
    algorithm: GossipAlgorithm[State],
    rounds: int,
    record: Network,
    write: Callable[[Row], None],
    exchange: StackedExchange = PLAIN,
    *,
    stack: Stack[State] | None = None,
    between: Callable[[], None] = lambda: None,
    attackers: StackedAttackers | None = None,
) -> list[Vector]:
    """Run synchronous gossip of all nodes for `rounds`, or from `stack` on; return the final vectors, one per node.

    `attackers`: those that lie, of an algorithm that mixes models and nothing beside them.
    `between` is called between two rounds: `stack`, the record and the task's memory are all that the run is then.
    """
    n = schedule.n
    stack = stack or first_stack(task, n, algorithm)
    meters, state, edges = stack.meters, stack.state, Edges(schedule)
    for number in range(stack.round, rounds):
        between()
        mixing = schedule.mixing(number)
        before = algorithm.model(state)
        updates = task.train([Job(node, number, before[node]) for node in range(n)])
        step = stacked_step(number, updates, before.dtype)
        state, outgoing = algorithm.trained(state, stacked_updates(updates), step)
        seen = algorithm.seen(state, outgoing)
        groups = mixing.rows_by_degree()
        first = tuple(vectors[0] for vectors in outgoing)
        traffic = exchange.carried(edges, number, task.schema, first)
        mixed = mix_all(outgoing, groups, exchange)
        if attackers:
            mixed = (attackers.mixed(mixing, number, *outgoing, *mixed),)
        state = algorithm.mixed(state, mixed)
        for meter, update, sent, received in zip(meters, updates, *traffic, strict=True):
            meter.train_ended(0, update.metrics)
            meter.sent(*sent)
            meter.received(*received)
        sent_bytes = sum(size for size, _ in traffic.sent)
        for row in record.together(number + 1, meters, sent_bytes, before, seen, algorithm.model(state)):
            write(row)
        stack.round, stack.state = number + 1, state
    return list(algorithm.model(state))


def combined(
    algorithm: GossipAlgorithm[State], state: State, outgoing: Vectors, groups: RowGroups, exchange: StackedExchange
) -> State:
    """Return the state of all nodes when what went out, [n, d] each, is mixed."""
    return algorithm.mixed(state, mix_all(outgoing, groups, exchange))


def mix_all(outgoing: Vectors, groups: RowGroups, exchange: StackedExchange) -> Vectors:
    """Return what becomes of each vector that went out, [n, d]."""
    return tuple(exchange.mix(groups, vectors) for vectors in outgoing)


Counts = list[dict[int, int]]
"""For each node, how many of its messages have which number."""


class Edges:
    """The numbers that messages of a round have for their edges, where nothing is lost."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._nodes = schedule, range(schedule.n)
        self._mixed: dict[tuple[NodeId, NodeId], int] = {}
        self._used: Counter[tuple[NodeId, NodeId]] = Counter()
        self._followed = 0
        mixing = schedule.mixing(0)
        self._targets = [mixing.targets(node) for node in self._nodes]
        self._sources = [mixing.row(node).keys() - {node} for node in self._nodes]
        sides = zip(self._sources, self._targets, strict=True)
        self._both = [len(sources.intersection(to)) for sources, to in sides]  # of a graph that never changes

    def mixed_before(self, round: int) -> tuple[Counts, Counts]:
        """Return for each target, and for each source, the last round in which both ends mixed each other's model.

        -1: none.
        """
        self._follow(round)
        return self._last_mixed(round, self._targets), self._last_mixed(round, self._sources)

    def _last_mixed(self, round: int, others: Sequence[Collection[NodeId]]) -> Counts:
        if self._schedule.period == 1:
            both = self._both if round else [0] * len(self._both)
            return [_in_two(round - 1, two, len(of)) for two, of in zip(both, others, strict=True)]
        return [_numbers(self._mixed.get((i, j), -1) for j in others[i]) for i in self._nodes]

    def used_before(self, round: int) -> tuple[Counts, Counts]:
        """Return for each target, and for each source, in how many earlier rounds the arc was used."""
        self._follow(round)
        if self._schedule.period == 1:
            return [{round: len(to)} for to in self._targets], [{round: len(of)} for of in self._sources]
        given = [_numbers(self._used[i, to] for to in self._targets[i]) for i in self._nodes]
        return given, [_numbers(self._used[of, i] for of in self._sources[i]) for i in self._nodes]

    def _follow(self, round: int) -> None:
        """Note the rounds up to this one, from the first on after a pause.  A constant graph needs no notes."""
        while self._followed < round and self._schedule.period != 1:
            for i in self._nodes:
                for to in self._targets[i]:
                    self._used[i, to] += 1
                    if to in self._sources[i]:
                        self._mixed[i, to] = self._followed
            self._followed += 1
            mixing = self._schedule.mixing(self._followed)
            self._targets = [mixing.targets(node) for node in self._nodes]
            self._sources = [mixing.row(node).keys() - {node} for node in self._nodes]


def _numbers(of: Iterable[int]) -> dict[int, int]:
    return dict(Counter(of))


def _in_two(last: int, two: int, all: int) -> dict[int, int]:
    """Of `all` messages `two` have the number `last`, the others -1."""
    return {last: two, -1: all - two} if two else {-1: all}


def _priced_both(counts: tuple[Counts, Counts], message: Callable[[int], Message]) -> RoundBytes:
    """Return the sizes of what each node sends and receives, from how many of both have which number."""
    return RoundBytes(*(_priced(one, message) for one in counts))


def _added(*sizes: list[Sizes]) -> list[Sizes]:
    return [(sum(size for size, _ in of), sum(payload for _, payload in of)) for of in zip(*sizes, strict=True)]


def _priced(counts: Counts, message: Callable[[int], Message]) -> list[Sizes]:
    """Return the sizes of each node's messages together, from how many have which number."""
    said = {number: message(number) for number in {number for of in counts for number in of}}
    sizes = {number: (wire_bytes(one), one.payload_bytes) for number, one in said.items()}
    return [
        (
            sum(sizes[number][0] * times for number, times in of.items()),
            sum(sizes[number][1] * times for number, times in of.items()),
        )
        for of in counts
    ]


def stacked_step(round: int, updates: Sequence[Update], kind: np.dtype[np.floating]) -> Step:
    """Return the step of all nodes at once."""
    one_by_one = [Step.of(round, update.metrics) for update in updates]
    rates, steps = (np.array([[getattr(one, name)] for one in one_by_one], kind) for name in ("rate", "steps"))
    return Step(round, rates, steps)


def stacked_updates(updates: Sequence[Update]) -> Vector | None:
    """Return the updates of all nodes, [n, d]; None where nothing changed."""
    there = [update.difference for update in updates if update.difference is not None]
    assert len(there) in (0, len(updates)), "a task changes every vector or none"
    return frozen(np.stack(there)) if there else None
