"""The actually mixed rounds of a synchronous run: with lost and late models, and later repairs.

The record has for each round the neighbours without a model (`missed`), unmixed edges (`held`), and repairs
(`repaired`): weights are the planned ones, with those of such neighbours added to the peer's.  A peer without a row
keeps its state.  With given updates an algorithm's recursion is computed on all vectors at once:

    x  <-  A_t x + B_t u

by the algorithm object, on updates that were not trained from x: valid if it is linear in (x, u) (`is_linear`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.gossip.base import GossipAlgorithm, State, Step, Vectors, restored, saved
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen, scaled_difference
from fedgossip.core.machine import NodeId
from fedgossip.core.records import EventRow, PeerRow, Row, kind_of
from fedgossip.simulation.stacked import StackedExchange, combined
from fedgossip.topology import Mixing, Schedule
from fedgossip.topology.weights.mixing_matrix import Stochastic

LOST = ("missed", "held")
COME_AND_GO = ("again", "there", "left")
"""After a member's event of one of these kinds, the record does not determine the weights."""


@dataclass(frozen=True, slots=True)
class RepairedEdge:
    """`node` adds weight (x_peer - x_node), with both vectors as sent in `round`.

    `mixed`: after the mixing of the round of the repair; else before it.
    """

    node: NodeId
    peer: NodeId
    round: int
    mixed: bool


@dataclass(frozen=True, eq=False)
class RealisedRounds:
    """A schedule: the rounds as `planned`, without the edges that did not count.  Rounds count from 0.

    left_out: by round and node, neighbours whose weight the node kept.  there: by round, participants.  repairs: by
    their round.
    """

    planned: Schedule
    left_out: Mapping[int, Mapping[NodeId, frozenset[NodeId]]]
    there: Mapping[int, frozenset[NodeId]]
    repairs: Mapping[int, Sequence[RepairedEdge]]

    @property
    def stochastic(self) -> Stochastic:
        """Rows sum to one: the sender of a lost arc gave no weight away."""
        return "rows"

    @property
    def period(self) -> int:
        """0: the rounds never repeat."""
        return 0

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.planned.n

    @property
    def name(self) -> str:
        """Name of the plan."""
        return self.planned.name

    @property
    def rule(self) -> str:
        """Rule of the plan."""
        return self.planned.rule

    def partners(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return the planned partners."""
        return self.planned.partners(node)

    def mixing(self, round: int) -> Mixing:
        """Return the weights that counted in `round`."""
        without = self.left_out.get(round)
        return self.planned.mixing(round) if not without else _without(self.planned.mixing(round), without)

    def present(self, round: int) -> list[NodeId]:
        """Return the participants of `round`, ascending; all, for a round without a record."""
        return sorted(self.there.get(round, range(self.n)))

    def all_there(self, round: int) -> bool:
        """Whether no node was absent."""
        return len(self.there.get(round, range(self.n))) == self.n


class RealisedLosses:
    """The states of all nodes [n, d] in rounds that were not mixed as planned."""

    def __init__(self, rounds: RealisedRounds) -> None:
        self.rounds = rounds
        self._named: dict[int, list[RepairedEdge]] = defaultdict(list)
        for repairs in rounds.repairs.values():
            for one in repairs:
                self._named[one.round].append(one)
        self._owed: dict[tuple[NodeId, NodeId, int], Vectors] = {}

    def note(self, round: int, outgoing: Vectors) -> None:
        """Store the outgoing vectors of this round that later repairs need."""
        planned = self.rounds.planned.mixing(round)
        for one in self._named.get(round, ()):
            weight = planned.row(one.node).get(one.peer, 0.0)
            lost = (scaled_difference(weight, vector[one.peer], vector[one.node]) for vector in outgoing)
            self._owed[one.node, one.peer, round] = tuple(lost)

    def apply_repairs(self, algorithm: GossipAlgorithm[State], state: State, round: int, *, mixed: bool) -> State:
        """Return the state with the repairs of `round`, before or after its mixing."""
        for one in self.rounds.repairs.get(round, ()):
            owed = self._owed.pop((one.node, one.peer, one.round), None) if one.mixed == mixed else None
            if owed is not None:
                state = algorithm.corrected(state, tuple(self._row_of(one.node, vector) for vector in owed))
        return state

    def _row_of(self, node: NodeId, vector: Vector) -> Vector:
        rows = np.zeros((self.rounds.n, *vector.shape), vector.dtype)
        rows[node] = vector
        return frozen(rows)

    def without_the_absent(self, before: State, after: State, round: int) -> State:
        """Return the state after a round, with absent nodes' states unchanged."""
        if self.rounds.all_there(round):
            return after
        (held, _), (arrays, numbers) = saved(before), saved(after)
        absent = sorted(set(range(self.rounds.n)) - set(self.rounds.present(round)))
        for name in arrays.keys() & held.keys():
            arrays[name] = arrays[name].copy()
            arrays[name][absent] = held[name][absent]
        return restored(after, {name: frozen(one) for name, one in arrays.items()}, numbers)


def _without(mixing: Mixing, left_out: Mapping[NodeId, frozenset[NodeId]]) -> Mixing:
    W = mixing.matrix()
    for node, others in left_out.items():
        for other in others:
            W[node, node] += W[node, other]
            W[node, other] = 0.0
    return Mixing.from_matrix(W, mixing.topology, mixing.rule, stochastic="rows")


def realised_rounds(planned: Schedule, rows: Iterable[Row]) -> RealisedRounds | None:
    """Return the realised rounds of a run's record; None if they equal the plan, or if it does not determine them."""
    left_out: dict[int, dict[NodeId, frozenset[NodeId]]] = defaultdict(dict)
    there: dict[int, set[NodeId]] = defaultdict(set)
    repairs: dict[int, list[RepairedEdge]] = defaultdict(list)
    for row in rows:
        match row:
            case PeerRow():
                there[row.round - 1].add(row.peer)
            case EventRow(name=name) if name != "goodbye" and kind_of(name).implies in COME_AND_GO:
                return None
            case EventRow(name=name, value=list(others)) if name in LOST:
                before = left_out[row.round].get(row.peer, frozenset())
                left_out[row.round][row.peer] = before | {node for node in others if isinstance(node, int)}
            case EventRow(name="repaired", value={"peer": int(peer), "round": int(round), "mixed": bool(mixed)}):
                repairs[row.round].append(RepairedEdge(row.peer, peer, round, mixed))
    there.pop(-1, None)  # the state before
    if not left_out and all(len(nodes) == planned.n for nodes in there.values()):
        return None
    return RealisedRounds(planned, left_out, {round: frozenset(nodes) for round, nodes in there.items()}, repairs)


ASKED_ROUNDS = 8
"""Number of rounds in the test of an algorithm's linearity,"""
ASKED_SCALES = (1e-3, 1.0, 1e3)
"""and sizes of the vectors in these rounds: a rule that clips differs beyond its threshold only."""
LINEAR = 1e-9
"""Largest difference of a sum that counts as rounding, as a share of the largest element."""


@dataclass(frozen=True, eq=False)
class GossipCourse:
    """A possible course of a run: an algorithm of all nodes on a schedule.  `name`: its name for people."""

    name: str
    schedule: Schedule
    algorithm: GossipAlgorithm[Any]
    exchange: StackedExchange


class Recursion:
    """All nodes' vectors [n, c] on a course; or one row [1, c] without neighbours, like the mean of all."""

    def __init__(self, course: GossipCourse, start: Vector, *, alone: bool = False) -> None:
        self._course, self._alone = course, alone
        realised = isinstance(course.schedule, RealisedRounds) and not alone
        self._late = RealisedLosses(course.schedule) if realised else None  # type: ignore[arg-type]
        self._state = course.algorithm.start(start)

    @property
    def model(self) -> Vector:
        """The vectors to train from."""
        return self._course.algorithm.model(self._state)

    def advance(self, updates: Vector | None, step: Step) -> None:
        """Compute the round `step.round` with `updates`, shaped like the vectors; None: no change."""
        course, before = self._course, self._state
        if self._late:
            before = self._late.apply_repairs(course.algorithm, before, step.round, mixed=False)
        state, outgoing = course.algorithm.trained(before, updates, step)
        if self._alone:
            self._state = course.algorithm.mixed(state, outgoing)
            return
        groups = course.schedule.mixing(step.round).rows_by_degree()
        self._state = combined(course.algorithm, state, outgoing, groups, course.exchange)
        if self._late:
            self._late.note(step.round, outgoing)
            after = self._late.apply_repairs(course.algorithm, self._state, step.round, mixed=True)
            self._state = self._late.without_the_absent(before, after, step.round)

    def select_present(self, round: int) -> Vector:
        """The vectors of the participants of `round`; in a past run some nodes may be absent."""
        return self.model if self._late is None else frozen(self.model[self._late.rounds.present(round)])


def is_linear(course: GossipCourse) -> bool:
    """Whether superposition holds: twice one history of updates plus another yields twice the first models plus the
    second.

    It does not hold for a median or a clipped sum.  Raises TrainingError for a user algorithm's invalid return value.
    """
    for scale in ASKED_SCALES:
        width = max(3, course.algorithm.needs.elements)
        p, q = _history(course.schedule.n, width, 1.0, 0), _history(course.schedule.n, width, scale, 1)
        both = [frozen(2.0 * a + b) for a, b in zip(p, q, strict=True)]
        for a, b, sum_of_both in zip(*(_models(course, history) for history in (p, q, both)), strict=True):
            if float(np.abs(2.0 * a + b - sum_of_both).max()) > LINEAR * max(1.0, float(np.abs(sum_of_both).max())):
                return False
    return True


def _history(n: int, width: int, scale: float, draw: int) -> list[Vector]:
    """Return random first vectors and updates [n, width]."""
    values = stream(0, "linear", n, draw).standard_normal((1 + ASKED_ROUNDS, n, width))
    return [frozen(scale * each) for each in values]


def _models(course: GossipCourse, history: list[Vector]) -> Iterator[Vector]:
    run = Recursion(course, history[0])
    found: list[npt.NDArray[np.floating]] = []
    for round, updates in enumerate(history[1:]):
        run.advance(updates, steps_of(round, course.schedule.n))
        found.append(run.model)
    return iter(found)


def steps_of(round: int, n: int, rate: float = 0.1) -> Step:
    """Return the step of a round in which all nodes take one step at the same rate."""
    return Step(round, np.full((n, 1), rate), np.ones((n, 1)))
