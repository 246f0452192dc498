"""Synchronous gossip: train, send to the neighbours, wait for theirs, mix; round after round.

    joining --all links up, or start timer--> training --Trained--> waiting --all here, or deadline--> training ...
                                                                        after the last round --> leaving --> finished

As long as nobody misses a deadline a neighbour is at most one round ahead, for it needs our model of this round; one
that does not hear us (directed graphs) at most as many as there are links on the way from us to it.  So many rounds
are kept per neighbour, and the newest.  Every wait has a timer.

Where we differ from the paper's lockstep (Lian et al. 2017): a neighbour that is gone, or that misses the deadline, is
left out of the round and its weight goes to oneself; it is not waited for again until a model of this round or the
last comes from it.  Links keep the order of what is sent: who hears of a later round first will not hear this one, and
does not wait for it.  Who has not sent yet and hears that one who needs its model has gone on, goes to that round too.
Only one end may have left an edge out, so such a round moves the mean: it is reported, never silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from fedgossip.algorithms.base import GossipAlgorithm, State
from fedgossip.errors import ProtocolError
from fedgossip.machine import (
    Effect,
    Event,
    Finish,
    Fired,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.messages import Leaving, Model
from fedgossip.vectors import Vector, frozen, ordered_mix


class Weights(Protocol):
    """One round's mixing, as a peer sees it."""

    def row(self, node: NodeId) -> dict[NodeId, float]: ...
    def targets(self, node: NodeId) -> tuple[NodeId, ...]: ...


class Schedule(Protocol):
    """The mixing of each round; the graph of round r is a pure function of r."""

    @property
    def period(self) -> int: ...
    def mixing(self, round: int) -> Weights: ...


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Limits of one synchronous run.  Times in nanoseconds."""

    rounds: int
    deadline_ns: int = 30_000_000_000
    """How long to wait for the neighbours' models after sending one's own; above the slowest peer's training time."""
    start_ns: int = 300_000_000_000
    """How long to wait for all links at the start; people start peers on several machines by hand."""
    drain_ns: int = 30_000_000_000
    """How long to stay after the last round for neighbours that are not done."""


class SyncGossip(Generic[State]):
    """One peer of a synchronous run.  `schema` is the layout that its neighbours must share."""

    def __init__(
        self,
        node: NodeId,
        schedule: Schedule,
        algorithm: GossipAlgorithm[State],
        initial: Vector,
        schema: str,
        settings: SyncSettings,
    ) -> None:
        self.node, self.schedule, self.algorithm, self.settings = node, schedule, algorithm, settings
        self.schema, self.kind, self.length = schema, initial.dtype, initial.size
        self.state = algorithm.start(initial)
        self.round = 0
        self.phase = "new"
        self.outgoing: tuple[Vector, ...] = ()
        self.row: dict[NodeId, float] = {}  # of the round that is being exchanged
        self.waiting_for: set[NodeId] = set()  # whose model of this round is not here
        self.partners = partners_of(node, schedule)
        self.leads = leads_of(node, schedule, self.partners)
        self.linked: set[NodeId] = set()
        self.absent: set[NodeId] = set()  # not waited for
        self.left: set[NodeId] = set()  # said goodbye: will never send again
        self.mailbox: dict[NodeId, dict[int, tuple[Vector, ...]]] = {}

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:  # noqa: ARG002 (the Machine protocol)
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, Model() as model):
                return self._received(sender, model)
            case Received(sender, Leaving()):
                return self._left(sender)
            case Trained(job, update, examples, metrics):
                assert self.phase == "training" and job == self.round, f"job {job} was not asked for"
                report = Report("trained", {**metrics, "examples": examples}, self.round)
                return [report, *self._exchange(update)]
            case Fired(("deadline", number)) if self.phase == "waiting" and number == self.round:
                return self._give_up_waiting()
            case Fired(("start",)) if self.phase == "joining":
                return self._start_with_those_here()
            case Fired(("drain",)) if self.phase == "leaving":
                return self._finish()
            case PeerJoined(node):
                return self._joined(node)
            case PeerGone(node):
                return self._gone(node)
            case Started():
                self.phase = "joining"
                return self._begin_if_joined() or [SetTimer(("start",), self.settings.start_ns)]
            case Stopping():
                return [*self._goodbye(), *self._finish()]
            case _:  # a timer that no longer matters
                return []

    # --- links ----------------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId) -> list[Effect]:
        self.linked.add(node)
        return self._begin_if_joined()

    def _begin_if_joined(self) -> list[Effect]:
        if self.phase != "joining" or not set(self.partners) <= self.linked | self.absent | self.left:
            return []
        if self.partners and set(self.partners) <= self.left:  # they stopped before it began
            return [*self._goodbye(), *self._finish()]
        return self._train() if self.linked or not self.partners else []  # with nobody there yet: the start timer

    def _start_with_those_here(self) -> list[Effect]:
        missing = sorted(set(self.partners) - self.linked)
        if not self.linked:  # to learn alone would be a surprise, not gossip
            return [Report("nobody_came", missing, 0), *self._finish()]
        self.absent.update(missing)
        return [Report("started_without", missing, 0), *self._train()]

    def _gone(self, node: NodeId) -> list[Effect]:
        self.linked.discard(node)
        if node in self.left or node not in self.partners:
            return []
        self.absent.add(node)
        report = Report("gone", node, self.round)
        return [report, *self._begin_if_joined(), *self._mix_if_complete(), *self._finish_if_alone()]

    def _left(self, sender: NodeId) -> list[Effect]:
        self.left.add(sender)
        return [*self._begin_if_joined(), *self._mix_if_complete(), *self._finish_if_alone()]

    # --- a round --------------------------------------------------------------------------------------------------

    def _train(self) -> list[Effect]:
        if self.round >= self.settings.rounds:
            return self._leave()
        self.phase = "training"
        return [Train(self.round, self.algorithm.model(self.state))]

    def _exchange(self, update: Vector | None) -> list[Effect]:
        effects: list[Effect] = []
        heard = {j: max(kept) for j, kept in self.mailbox.items() if kept}
        newest = max((r for j, r in heard.items() if self._given_up_by(j, r)), default=self.round)
        if newest > self.round:  # the rounds between are lost
            effects.append(Report("skipped", newest - self.round, newest))
            self._go_to(newest)
        self.outgoing = tuple(frozen(vector) for vector in self.algorithm.outgoing(self.state, update))
        self.phase = "waiting"
        mixing = self.schedule.mixing(self.round)
        self.row = mixing.row(self.node)
        self.waiting_for = {j for j in self.row if j != self.node and self.round not in self.mailbox.get(j, ())}
        effects.append(Report("outgoing", self.outgoing, self.round))
        model = Model(self.round, self.schema, self.outgoing)
        effects += [Send(to, model) for to in mixing.targets(self.node) if to not in self.left]
        effects.append(SetTimer(("deadline", self.round), self.settings.deadline_ns))
        return effects + self._mix_if_complete()

    def _received(self, sender: NodeId, model: Model) -> list[Effect]:
        self._check(sender, model)
        if model.round >= self.round - 1 and sender in self.linked:
            self.absent.discard(sender)
        if model.round < self.round:
            return [Report("late", {"peer": sender, "round": model.round}, self.round)]
        kept = self.mailbox.setdefault(sender, {})
        if model.round in kept:
            return [Report("repeated", {"peer": sender, "round": model.round}, self.round)]
        kept[model.round] = model.vectors
        if max(kept) > self.round + self.leads[sender]:  # it has gone on without us, and so shall we
            for stale in set(kept) - {self.round, max(kept)}:
                del kept[stale]
        if model.round == self.round:
            self.waiting_for.discard(sender)
        return self._mix_if_complete()

    def _check(self, sender: NodeId, model: Model) -> None:
        where = f"node {self.node}, round {self.round}"
        if sender not in self.partners:
            raise ProtocolError(f"{where}: a model from node {sender}, which is no neighbour", peer=sender)
        if not 0 <= model.round < self.settings.rounds:
            raise ProtocolError(
                f"{where}: model of round {model.round} from node {sender}; the run has {self.settings.rounds} rounds",
                "Were the peers started from the same experiment file?",
                peer=sender,
            )
        shapes = {(v.dtype, v.shape) for v in model.vectors}
        if model.schema != self.schema or shapes != {(self.kind, (self.length,))}:
            raise ProtocolError(
                f"{where}: node {sender} sends a model of another layout (schema {model.schema}, ours {self.schema})",
                "Give every peer the same [model] section.",
                peer=sender,
            )

    def _mix_if_complete(self) -> list[Effect]:
        complete = self.phase == "waiting" and all(self._will_not_come(j) for j in self.waiting_for)
        return self._mix() if complete else []

    def _will_not_come(self, node: NodeId) -> bool:
        """Whether this round's model of `node`, which is not here, is not worth waiting for."""
        return node in self.absent or node in self.left or bool(self.mailbox.get(node))

    def _given_up_by(self, node: NodeId, round: int) -> bool:
        """Whether `node`, which has sent its model of `round`, has gone on without our model of the current round."""
        until = min(round, self.round + self.schedule.period)
        return any(node in self.schedule.mixing(r).targets(self.node) for r in range(self.round, until))

    def _give_up_waiting(self) -> list[Effect]:
        self.absent.update(self.waiting_for)
        return self._mix()

    def _mix(self) -> list[Effect]:
        row, missing = self.row, sorted(self.waiting_for)
        for absent in missing:
            row[self.node] += row.pop(absent)
        effects: list[Effect] = [Report("missed", missing, self.round)] if missing else []
        inputs = {j: self.outgoing if j == self.node else self.mailbox[j][self.round] for j in row}
        mixed = tuple(
            _mixed([(weight, inputs[j][slot]) for j, weight in row.items()]) for slot in range(len(self.outgoing))
        )
        self.state = self.algorithm.incoming(self.state, mixed)
        self.outgoing = ()
        self._go_to(self.round + 1)
        effects.append(Report("mixed", self.algorithm.model(self.state), self.round))
        return effects + self._train()

    def _go_to(self, round: int) -> None:
        self.round = round
        for kept in self.mailbox.values():
            for old in [r for r in kept if r < round]:
                del kept[old]

    # --- the end --------------------------------------------------------------------------------------------------

    def _leave(self) -> list[Effect]:
        self.phase = "leaving"
        return [*self._goodbye(), SetTimer(("drain",), self.settings.drain_ns), *self._finish_if_alone()]

    def _goodbye(self) -> list[Effect]:
        # also to those who said it first: they stay until they hear it from us
        return [Send(to, Leaving(self.round)) for to in self.partners]

    def _finish_if_alone(self) -> list[Effect]:
        alone = set(self.partners) <= self.left | self.absent
        return self._finish() if self.phase == "leaving" and alone else []

    def _finish(self) -> list[Effect]:
        self.phase = "finished"
        self.mailbox.clear()
        return [Finish(self.algorithm.model(self.state))]


def _mixed(terms: Sequence[tuple[float, Vector]]) -> Vector:
    """The sum, in the memory of a term that came over a link, if there is one: it is ours, and not needed again."""
    return ordered_mix(terms, next((vector for _, vector in terms if vector.flags.writeable), None))


def partners_of(node: NodeId, schedule: Schedule) -> tuple[NodeId, ...]:
    """Return all that `node` sends to or receives from in one period, ascending."""
    partners: set[NodeId] = set()
    for number in range(schedule.period):
        mixing = schedule.mixing(number)
        partners.update(mixing.row(node), mixing.targets(node))
    return tuple(sorted(partners - {node}))


def leads_of(node: NodeId, schedule: Schedule, partners: Sequence[NodeId]) -> dict[NodeId, int]:
    """Return how many rounds each partner can be ahead of `node` while nobody misses a deadline.

    A peer needs, in every round, what its sources sent in that round; so it is ahead of us by at most one round per
    link on the way from us to it, where a link of a schedule may be used once in a period.
    """
    hops, ring = {node: 0}, [node]
    while ring and not set(partners) <= hops.keys():
        after = {
            to for at in ring for r in range(schedule.period) for to in schedule.mixing(r).targets(at) if to not in hops
        }
        hops.update(dict.fromkeys(after, hops[ring[0]] + 1))
        ring = sorted(after)
    return {partner: schedule.period * hops.get(partner, 1) for partner in partners}
