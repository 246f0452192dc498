"""The rounds of a synchronous run as mixed: with lost models, late ones, and later repairs.

A run records for each round the neighbours without a model (`missed`), the edges that neither end mixed over, for their
account was open (`held`), and the repairs (`repaired`).  So the effective weights are the planned ones, with the weight
of such neighbours added to the peer's own.  A peer without a row did not take part: it keeps its state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.gossip.base import GossipAlgorithm, State, Vectors, restored, saved
from fedgossip.base.vectors import Vector, frozen, scaled_difference
from fedgossip.core.event_kinds import kind_of
from fedgossip.core.machine import NodeId
from fedgossip.core.records import EventRow, PeerRow, Row
from fedgossip.topology import Mixing, Schedule
from fedgossip.topology.weights.mixing import Stochastic

LOST = ("missed", "held")
COME_AND_GO = ("again", "there", "left")
"""After an event of a member of one of these kinds, the record does not determine the effective weights."""


@dataclass(frozen=True, slots=True)
class RepairedEdge:
    """`node` adds weight (x_peer - x_node), as both went out in `round`; `mixed`: after mixing the round it is in."""

    node: NodeId
    peer: NodeId
    round: int
    mixed: bool


@dataclass(frozen=True, eq=False)
class RealisedRounds:
    """A schedule: the rounds as `planned`, less the edges that did not count.  Rounds count from 0.

    left_out: by round and node, the neighbours whose weight it kept.  there: by round, its participants. repairs: by
    the round in which they were made.
    """

    planned: Schedule
    left_out: Mapping[int, Mapping[NodeId, frozenset[NodeId]]]
    there: Mapping[int, frozenset[NodeId]]
    repairs: Mapping[int, Sequence[RepairedEdge]]

    @property
    def stochastic(self) -> Stochastic:
        """Where an arc alone was lost its sender gave nothing away."""
        return "rows"

    @property
    def period(self) -> int:
        """They never repeat."""
        return 0

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.planned.n

    @property
    def name(self) -> str:
        """As it was planned."""
        return self.planned.name

    @property
    def rule(self) -> str:
        """As it was planned."""
        return self.planned.rule

    def partners(self, node: NodeId) -> tuple[NodeId, ...]:
        """As it was planned."""
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
        """Keep what of this round, as it went out, is made up for later."""
        planned = self.rounds.planned.mixing(round)
        for one in self._named.get(round, ()):
            weight = planned.row(one.node).get(one.peer, 0.0)
            lost = (scaled_difference(weight, vector[one.peer], vector[one.node]) for vector in outgoing)
            self._owed[one.node, one.peer, round] = tuple(lost)

    def made_up(self, algorithm: GossipAlgorithm[State], state: State, round: int, *, mixed: bool) -> State:
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
        """Return the state in which absent nodes keep theirs."""
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
    return Mixing.from_matrix(W, mixing.topology, stochastic="rows")


def realised_rounds(planned: Schedule, rows: Iterable[Row]) -> RealisedRounds | None:
    """Return the realised rounds of a run's record; None where they equal the plan, or the record does not determine
    them.
    """
    left_out: dict[int, dict[NodeId, frozenset[NodeId]]] = defaultdict(dict)
    there: dict[int, set[NodeId]] = defaultdict(set)
    repairs: dict[int, list[RepairedEdge]] = defaultdict(list)
    for row in rows:
        match row:
            case PeerRow():
                there[row.round - 1].add(row.peer)
            case EventRow(name=name) if name != "goodbye" and kind_of(name).tells in COME_AND_GO:
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
