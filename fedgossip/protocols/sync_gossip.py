"""Synchronous gossip: train, send to the neighbours, wait for theirs, mix; round after round.

    joining --all links up, or start timer--> training --Trained--> waiting --all here, or deadline--> training ...
                                                              after the last round --> leaving --all settled--> finished

As long as nobody misses a deadline a neighbour is at most one round ahead, for it needs our model of this round; one
that does not hear us (directed graphs) at most as many as there are links on the way from us to it.  So many rounds
are kept per neighbour, and the newest.  Every wait has a timer.

Where we differ from the paper's lockstep (Lian et al. 2017): a neighbour that is gone, or that misses the deadline, is
left out of the round and its weight goes to oneself; it is not waited for again until a model of this round or the
last comes from it.  Links keep the order of what is sent: who hears of a later round first will not hear this one, and
does not wait for it.  Who has not sent yet and hears that one who needs its model has gone on, goes to that round too.

An edge counts in a round at both ends or at neither, or what one end did alone is made up for later (`edges`): the
mean is kept whatever is lost.  Only an arc without its reverse (directed graphs) has no way to tell: a round without
it moves the mean, and is reported as `one_sided`; push-sum is the method for such graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from fedgossip.algorithms.base import MODEL, GossipAlgorithm, State, Step
from fedgossip.errors import ProtocolError
from fedgossip.machine import (
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    NodeId,
    Outgoing,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Rostered,
    RoundDone,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.messages import Account, Leaving, Message, Model
from fedgossip.protocols.carried import FRESH, Carried
from fedgossip.protocols.deadlines import Deadline
from fedgossip.protocols.edges import Edge
from fedgossip.protocols.failures import nobody_came
from fedgossip.protocols.learner import Learner
from fedgossip.vectors import Vector, ordered_mix, scaled_difference, subtract, summable


class Weights(Protocol):
    """One round's mixing, as a peer sees it."""

    def row(self, node: NodeId) -> dict[NodeId, float]: ...
    def targets(self, node: NodeId) -> tuple[NodeId, ...]: ...


class MixingSchedule(Protocol):
    """The mixing of each round; the graph of round r is a pure function of r.  `period` 0: it never repeats.

    Where the roster can change there is a method `view(round)` too, a name for who takes part in a round.
    """

    @property
    def period(self) -> int: ...
    def mixing(self, round: int) -> Weights: ...
    def partners(self, node: NodeId) -> tuple[NodeId, ...]: ...


AGAIN_NS = 250_000_000
AGAIN_TIMES = 20
"""A goodbye is said again at least so often before a neighbour counts as hung."""


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Limits of one synchronous run.  Times in nanoseconds."""

    rounds: int
    deadline_ns: int = 30_000_000_000
    """The longest wait for the neighbours' models after sending one's own; above the slowest peer's training time."""
    least_deadline_ns: int = 5_000_000_000
    """The deadline follows the rounds that were seen, within these two; equal: it is constant."""
    start_ns: int = 300_000_000_000
    """How long to wait for all links at the start; people start peers on several machines by hand."""
    drain_ns: int = 30_000_000_000
    """How long to stay after the last round for neighbours that are not done."""
    again_ns: int = AGAIN_NS
    """After so long a model is asked for, and a goodbye that was not answered said again."""


KEPT_ROUNDS = 8
"""So many of our own models are kept for partners that may ask for them; without losses one is."""

FAREWELL_ROUNDS, FAREWELL_PEERS = 8, 64
"""All that we met hear our goodbye; where they are more than so many, those of so many last rounds."""

FAR_ROUNDS, FAR_TIMES = 64, 3
"""So far ahead we follow one neighbour, while others are there that do not say so, only when it has said it so often:
half of a network that was parted may be far ahead, and one message may be anything."""

LEAD_ROUNDS = 16
"""So far ahead a partner's models are kept where the graph never repeats."""


class SyncGossip(Generic[State]):
    """One peer of a synchronous run.  `schema` is the layout that its neighbours must share.

    `resumed`: go on from there, in a new life, in which no edge has a past.
    """

    def __init__(
        self,
        node: NodeId,
        schedule: MixingSchedule,
        algorithm: GossipAlgorithm[State],
        initial: Vector,
        schema: str,
        settings: SyncSettings,
        resumed: Checkpoint | None = None,
    ) -> None:
        self.node, self.schedule, self.algorithm, self.settings = node, schedule, algorithm, settings
        self.schema, self.kind, self.length = schema, initial.dtype, initial.size
        self.round = resumed.round if resumed else 0
        self.learner = Learner(algorithm, initial, resumed)
        self.among: str | None = None  # the view of the last round that we exchanged
        self.since = 0  # the round in which that view was new
        self.eager = resumed is not None  # a new life
        self.carried = Carried(resumed)
        self.phase = "new"
        self.row: dict[NodeId, float] = {}  # of the round that is being exchanged
        self.one_way: set[NodeId] = set()  # those in it that do not hear us in this round
        self.waiting_for: set[NodeId] = set()  # whose model of this round is not here
        self.linked: set[NodeId] = set()
        self.lives: dict[NodeId, int] = {}
        self.absent: set[NodeId] = set()  # not waited for
        self.left: set[NodeId] = set()  # said goodbye: will begin no round
        self.done: set[NodeId] = set()  # need nothing more of us
        self.told: set[NodeId] = set()  # know that we need nothing more of them
        self.mailbox: dict[NodeId, dict[int, Model]] = {}
        self.edges: dict[NodeId, Edge] = {}
        self.sent: dict[int, tuple[Vector, ...]] = {}  # ours, which partners may ask for
        self.views: dict[int, str] = {}  # under which they went out: the roster may have changed since
        self.far: dict[NodeId, set[int]] = {}  # the rounds far ahead that each has spoken of
        self.met: dict[NodeId, int] = {}  # the last round in which we exchanged
        self.newest: dict[NodeId, int] = {}  # the latest round that each was heard of in
        self.patient = True  # at the end: whether to wait for those, too, that did not answer of late
        self.deadline = Deadline(settings.deadline_ns, settings.least_deadline_ns)
        self.began_ns = self.heard_ns = 0  # when this round began, and when the last model of it came
        self._take_schedule(schedule)

    def _take_schedule(self, schedule: MixingSchedule) -> None:
        self.schedule = schedule
        self.view: Callable[[int], str] = getattr(schedule, "view", _one_view)
        self.partners = schedule.partners(self.node)
        self.leads = leads_of(self.node, schedule, self.partners)

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                return self._heard(sender, message, now_ns)
            case Trained(job, update, _, metrics):
                assert self.phase == "training" and job == self.round, f"job {job} was not asked for"
                return self._exchange(update, metrics, now_ns)
            case Fired(key):
                return self._fired(key, now_ns)
            case PeerJoined(node, incarnation):
                return self._joined(node, incarnation, now_ns)
            case PeerGone(node):
                return self._gone(node, now_ns)
            case Started():
                self.phase = "joining"
                return self._begin_if_joined(now_ns) or [SetTimer(("start",), self.settings.start_ns)]
            case Stopping():
                return [*self._goodbye(), *self._finish()]
            case Rostered(schedule):
                self._take_schedule(schedule)  # type: ignore[arg-type]
                return self._begin_if_joined(now_ns)

    def _heard(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        match message:
            case Model():
                return self._received(sender, message, now_ns)
            case Account(round, used, missing, asks):
                self._check_partner(sender, "an account")
                effects = self._account(sender, round, used, missing, now_ns)
                effects += self._say_again(sender, round, now_ns) if asks else []
                return effects + self._mix_if_complete(now_ns)
            case Leaving():
                return self._left(sender, message, now_ns)
        raise ProtocolError(
            f"node {self.node}: a message of kind {type(message).__name__} from node {sender} in a synchronous run",
            "Were the peers started from the same experiment file?",
            peer=sender,
        )

    def _fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match self.phase, key:
            case "waiting", ("deadline", self.round):
                self.absent.update(self.waiting_for)
                return self._mix(now_ns)
            case "waiting", ("pace", self.round) if all(map(self._will_not_come, self.waiting_for)):
                return self._mix(now_ns)
            case "waiting", ("ask", self.round, int(times)):
                return self._ask(times)
            case "joining", ("start",):
                return self._start_with_those_here(now_ns)
            case "leaving", ("again",):
                return [*self._goodbye(), SetTimer(("again",), self.settings.again_ns)]
            case "leaving", ("hung",):
                self.patient = False
                return self._finish_if_alone()
            case "leaving", ("drain",):
                return self._finish()
        return []  # a timer that no longer matters

    # --- links ----------------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        self.linked.add(node)
        effects: list[Effect] = []
        if incarnation > self.lives.get(node, incarnation):  # what it had not written down is lost, and our account too
            asked = self.phase == "waiting" and self._edge(node).offered == self.round
            if asked or not self._edge(node).settled:  # it may have mixed our model, and we not its own
                effects.append(Report("unsettled", {"peer": node, "round": self.round}, self.round))
            self.edges[node] = Edge()
            self.left.discard(node)
            self.done.discard(node)
            self.told.discard(node)
            self.newest.pop(node, None)
            said = self.mailbox.pop(node, {})
            if self.phase == "waiting" and self.round in said:  # heard in time; by the new account it does not count
                self.mailbox[node] = {self.round: said[self.round]}
        self.lives[node] = incarnation
        if node in self.absent:
            effects.append(Report("joined", node, self.round))
        return effects + self._begin_if_joined(now_ns)

    def _begin_if_joined(self, now_ns: int) -> list[Effect]:
        if self.phase != "joining" or not set(self.partners) <= self.linked | self.absent | self.left:
            return []
        if self.partners and set(self.partners) <= self.left:  # they stopped before it began
            return [*self._goodbye(), *self._finish()]
        return self._train(now_ns) if self.linked or not self.partners else []  # with nobody there: the start timer

    def _start_with_those_here(self, now_ns: int) -> list[Effect]:
        missing = sorted(set(self.partners) - self.linked)
        if not (self.linked or self.eager):  # to learn alone would be a surprise, not gossip
            return [Report("nobody_came", missing, self.round), *self._finish(nobody_came(missing))]
        self.absent.update(missing)
        return [Report("started_without", missing, self.round), *self._train(now_ns)]

    def _gone(self, node: NodeId, now_ns: int) -> list[Effect]:
        self.linked.discard(node)
        if node in self.left or node not in self.partners or (self.phase == "leaving" and node not in self._farewell()):
            return self._finish_if_alone()
        self.absent.add(node)
        report = Report("gone", node, self.round)
        return [report, *self._begin_if_joined(now_ns), *self._mix_if_complete(now_ns), *self._finish_if_alone()]

    def _left(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:
        self._check_partner(sender, "a goodbye")
        self.left.add(sender)
        if leaving.done:
            self.done.add(sender)
        effects = self._account(sender, leaving.round, leaving.used, leaving.missing, now_ns)
        effects += [*self._begin_if_joined(now_ns), *self._mix_if_complete(now_ns)]
        if self.phase == "leaving" and (sender not in self.told or not leaving.done) and self._edge(sender).settled:
            effects.append(Send(sender, self._leaving(sender)))
        return effects + self._finish_if_alone()

    # --- a round --------------------------------------------------------------------------------------------------

    def _train(self, now_ns: int) -> list[Effect]:
        if self.round >= self.settings.rounds:
            return self._leave()
        self.phase, self.began_ns, self.heard_ns = "training", now_ns, now_ns
        return [Train(self.round, self.learner.model)]

    def _exchange(self, update: Vector | None, metrics: Mapping[str, float], now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        if (newest := self._newest_heard(effects)) > self.round:  # the rounds between are lost
            effects.append(Report("skipped", newest - self.round, newest))
            self._go_to(newest)
        self._restart_trackers(self.view(self.round))
        self.learner.trained(update, Step.of(self.round, metrics))
        self.phase, self.heard_ns = "waiting", now_ns  # who was here before us was in time
        self.views[self.round] = self.view(self.round)
        mixing = self.schedule.mixing(self.round)
        targets = mixing.targets(self.node)
        self.row = mixing.row(self.node)
        self.one_way = self.row.keys() - {self.node, *targets}
        self.waiting_for = {j for j in self.row if j != self.node and self.round not in self.mailbox.get(j, ())}
        self.met.update(dict.fromkeys((*self.row, *targets), self.round))
        self.carried.due(j for j in self.row if j != self.node)
        effects.append(Outgoing(self.round + 1, self.learner.seen))
        models = self._models([to for to in targets if to not in self.left])
        effects += [Send(to, model) for to, model in models]
        asking = [j for j, edge in self.edges.items() if edge.open and j not in targets and j not in self.done]
        effects += [Send(j, Account(self.round, self.edges[j].used, self.edges[j].missing)) for j in asking]
        effects.append(SetTimer(("deadline", self.round), self.deadline.now_ns()))
        effects.append(SetTimer(("ask", self.round, 0), self._patience_ns(0)))
        return effects + self._mix_if_complete(now_ns)

    def _restart_trackers(self, view: str) -> None:
        """Others take part than in the round before: what tracks their sum began with those that are gone."""
        if view != self.among and self.among is not None:
            self.learner.rejoined()
            self.since = self.round
        self.among = view

    def _patience_ns(self, times: int) -> int:
        """How long to wait before a model is asked for: a lost one costs this, not the deadline."""
        again_ns = self.settings.again_ns
        quickest_ns = self.deadline.quickest_ns()  # not what is usual, which asking makes longer
        return (max(again_ns, 4 * quickest_ns) if quickest_ns else 4 * again_ns) << min(times, 6)

    def _ask(self, times: int) -> list[Effect]:
        late = [j for j in sorted(self.waiting_for) if j in self.linked and j not in self.one_way | self.absent]
        asks = [Send(j, Account(self.round, self._edge(j).used, self._edge(j).missing, asks=True)) for j in late]
        return [*asks, SetTimer(("ask", self.round, times + 1), self._patience_ns(times + 1))]

    def _say_again(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        """The partner waits for our model of `round`: say it again, and what was said with it, that it may be mixed."""
        edge = self._edge(sender)
        ours = self.sent.get(round)
        if round == self.round and self.phase == "waiting":
            ours = self.learner.outgoing
        elif edge.open and edge.open.round == round:
            ours = edge.open.own
        if not ours and round < self.round:  # it did not count
            return [Send(sender, Account(self.round, edge.used, edge.missing))]
        if not (ours and edge.may_help(round, now_ns, self._patience_ns(0))):
            return []
        missing = -1
        if round not in (edge.offered, edge.used, edge.missing):  # it went out while the edge was held
            missing = edge.missing if edge.open else round  # so that it does not count
        return [Send(sender, Model(round, self.schema, ours, edge.used, missing, self.views[round]))]

    def _newest_heard(self, effects: list[Effect]) -> int:
        """The latest round to which one who needs our model has gone on; one voice against others counts little."""
        heard = {j: max(self.mailbox.get(j) or [self.round]) for j in self.partners if j in self.linked - self.absent}
        believed = sorted(heard.values())[-2] if len(heard) > 1 else max(heard.values(), default=self.round)
        for alone, round in heard.items():
            if round > believed + FAR_ROUNDS and len(self._far(alone, round)) < FAR_TIMES:
                del self.mailbox[alone][round]
                effects.append(Report("far_ahead", {"peer": alone, "round": round}, self.round))
        newest = {j: max(kept) for j, kept in self.mailbox.items() if kept}
        return max((r for j, r in newest.items() if r > self.round and self._given_up_by(j, r)), default=self.round)

    def _far(self, node: NodeId, round: int) -> set[int]:
        """The rounds from `round` down, at most FAR_ROUNDS, that this partner has spoken of."""
        self.far[node] = {round, *(r for r in self.far.get(node, ()) if round - FAR_ROUNDS < r < round)}
        return self.far[node]

    def _models(self, targets: Sequence[NodeId]) -> list[tuple[NodeId, Model]]:
        """Our model of this round with the account of each target's edge; one object for all equal ones."""
        view, made, models = self.views[self.round], {}, []
        for to in targets:
            edge = self._edge(to)
            edge.offer(self.round)
            account = edge.used, edge.missing
            if account not in made:
                made[account] = Model(self.round, self.schema, self.learner.outgoing, *account, view)
            models.append((to, made[account]))
        return models

    def _received(self, sender: NodeId, model: Model, now_ns: int) -> list[Effect]:
        self._check(sender, model)
        effects = self._account(sender, model.round, model.used, model.missing, now_ns)
        if sender in self.linked and (model.round >= self.round - 1 or self._alone()):
            self.absent.discard(sender)
        if model.round < self.round:
            self._edge(sender).late(model)
            effects.append(Report("late", {"peer": sender, "round": model.round}, self.round))
            return [*effects, *self._repair(sender), *self._finish_if_alone()]
        kept = self.mailbox.setdefault(sender, {})
        if model.round in kept:
            return [*effects, Report("repeated", {"peer": sender, "round": model.round}, self.round)]
        kept[model.round] = model
        if max(kept) > self.round + self.leads.get(sender, LEAD_ROUNDS):  # it has gone on without us, and so shall we
            for stale in set(kept) - {self.round, max(kept)}:
                del kept[stale]
        if model.round == self.round:
            self.waiting_for.discard(sender)
            self.heard_ns = now_ns
        return effects + self._mix_if_complete(now_ns)

    def _check_partner(self, sender: NodeId, what: str) -> None:
        if sender not in self.partners:
            raise ProtocolError(
                f"node {self.node}, round {self.round}: {what} from node {sender}, which is no neighbour", peer=sender
            )

    def _check(self, sender: NodeId, model: Model) -> None:
        self._check_partner(sender, "a model")
        where = f"node {self.node}, round {self.round}"
        if not 0 <= model.round < self.settings.rounds:
            raise ProtocolError(
                f"{where}: model of round {model.round} from node {sender}; the run has {self.settings.rounds} rounds",
                "Were the peers started from the same experiment file?",
                peer=sender,
            )
        shapes = [(v.dtype, v.shape) for v in model.vectors]
        expected = [(self.kind, (self.length,))] * len(self.algorithm.slots)
        if model.schema != self.schema or shapes != expected:
            raise ProtocolError(
                f"{where}: node {sender} sends a model of another layout (schema {model.schema}, ours {self.schema})",
                "Give every peer the same [model] section.",
                peer=sender,
            )
        if not all(map(summable, model.vectors)):
            raise ProtocolError(
                f"{where}: a model from node {sender} with values that are not finite, or too large to be mixed",
                "Its training has diverged: lower train.lr.",
                peer=sender,
            )

    def _mix_if_complete(self, now_ns: int) -> list[Effect]:
        if self.phase != "waiting" or not all(self._will_not_come(j) for j in self.waiting_for):
            return []
        early_ns = self.began_ns + self.deadline.usual_ns() - now_ns
        if early_ns > 0 and self._alone():
            return [SetTimer(("pace", self.round), early_ns)]
        return self._mix(now_ns)

    def _alone(self) -> bool:
        """Whether nobody takes part in this round but us; it then takes its usual time, or we would run away."""
        return bool(self.waiting_for) and self.waiting_for == self.row.keys() - {self.node}

    def _will_not_come(self, node: NodeId) -> bool:
        """Whether this round's model of `node`, which is not here, is not worth waiting for."""
        return node in self.absent or node in self.left or self.newest.get(node, -1) > self.round

    def _given_up_by(self, node: NodeId, round: int) -> bool:
        """Whether `node`, which has sent its model of `round`, has gone on without our model of the current round."""
        until = min(round, self.round + (self.schedule.period or LEAD_ROUNDS))
        return any(node in self.schedule.mixing(r).targets(self.node) for r in range(self.round, until))

    def _mix(self, now_ns: int) -> list[Effect]:
        missing = sorted(self.waiting_for)
        effects: list[Effect] = [Report("missed", missing, self.round)] if missing else []
        if one_sided := [j for j in missing if j in self.one_way]:
            effects.append(Report("one_sided", one_sided, self.round))
        if len(missing) < len(self.row) - 1:
            self.deadline.saw(self.heard_ns - self.began_ns)
        row, outgoing = self._agreed(missing), self.learner.outgoing
        inputs = {j: outgoing if j == self.node else self.mailbox[j][self.round].vectors for j in row}
        slots = range(len(outgoing))
        self.learner.mixed(tuple(_mixed([(weight, inputs[j][k]) for j, weight in row.items()]) for k in slots))
        self.sent[self.round] = outgoing
        self._forget()
        self._go_to(self.round + 1)
        self.phase = "mixed"
        effects.append(RoundDone(self.round, self.learner.model))
        effects.append(self._checkpoint())
        return effects + self._train(now_ns)

    def _agreed(self, missing: Sequence[NodeId]) -> dict[NodeId, float]:
        """This round's weights, those of edges that do not count given to oneself; settles who has mixed whom."""
        row, view = dict(self.row), self.views[self.round]
        for j in [j for j in self.row if j != self.node]:
            edge = self._edge(j)
            if j in missing:
                edge.missed(self.round, row[j], self.learner.outgoing)
            elif j in self.one_way:
                self.carried.came(j)
                continue
            elif edge.counts(self.mailbox[j][self.round], view):
                edge.mixed(self.round)
                self.carried.came(j)
                continue
            row[self.node] += row.pop(j)
        return row

    def _checkpoint(self) -> Checkpoint:
        return self.learner.checkpoint(self.round, {}, self.carried.saved())

    def _go_to(self, round: int) -> None:
        self.round = round
        for kept in self.mailbox.values():
            for old in [r for r in kept if r < round]:
                del kept[old]

    # --- accounts -------------------------------------------------------------------------------------------------

    def _edge(self, node: NodeId) -> Edge:
        return self.edges.setdefault(node, Edge())

    def _account(self, sender: NodeId, round: int, used: int, missing: int, now_ns: int) -> list[Effect]:
        """Take what a partner says of our edge: repair our round, send what it misses, forget what it has."""
        edge = self._edge(sender)
        edge.heard(round, used, missing)
        self.newest[sender] = max(round, self.newest.get(sender, -1))
        effects = self._repair(sender)
        if 0 <= missing < self.round:
            effects += self._help(sender, edge, missing, now_ns)
        self._forget()
        return effects

    def _help(self, sender: NodeId, edge: Edge, missing: int, now_ns: int) -> list[Effect]:
        """The partner mixed round `missing` without us: tell it whether we mixed with it, with our model if so."""
        if edge.used > missing or (edge.used == missing and edge.confirmed):  # an old message that was overtaken
            return []
        if edge.used == missing and missing in self.sent:
            if not edge.may_help(missing, now_ns, self._patience_ns(0)):  # it is on its way
                return []
            view = self.views[missing]
            return [Send(sender, Model(missing, self.schema, self.sent[missing], edge.used, edge.missing, view))]
        effects: list[Effect] = []
        if edge.used == missing:  # too long ago
            effects.append(Report("unsettled", {"peer": sender, "round": missing}, self.round))
            edge.used, edge.confirmed = -1, True
        return [*effects, Send(sender, Account(self.round, edge.used, edge.missing))]

    def _repair(self, node: NodeId) -> list[Effect]:
        repaired = self._edge(node).repair()
        if repaired is None:
            return []
        assert repaired.theirs is not None
        self.carried.came(node)
        differences = tuple(
            scaled_difference(repaired.weight, theirs, own)
            for theirs, own in zip(repaired.theirs, repaired.own, strict=True)
        )
        if repaired.round < self.since:  # what tracks began anew since; the models did not
            slots = zip(self.algorithm.slots, differences, strict=True)
            differences = tuple(one if slot == MODEL else subtract(one, one) for slot, one in slots)
        self.learner.corrected(differences)
        return [Report("repaired", {"peer": node, "round": repaired.round}, self.round)]

    def _forget(self) -> None:
        """Keep our own models of those rounds only for which a partner may ask."""
        wanted = {edge.used for edge in self.edges.values() if not edge.confirmed}
        for old in sorted(self.sent):
            if old not in wanted or len(self.sent) > KEPT_ROUNDS:
                del self.sent[old]
        asked = {*self.sent, self.round, *(edge.missing for edge in self.edges.values())}
        self.views = {round: view for round, view in self.views.items() if round in asked}

    # --- the end --------------------------------------------------------------------------------------------------

    def _leave(self) -> list[Effect]:
        self.phase = "leaving"
        again_ns = self.settings.again_ns
        hung_ns = max(self.deadline.now_ns(), AGAIN_TIMES * again_ns)
        waits = {"drain": max(self.settings.drain_ns, hung_ns), "hung": hung_ns, "again": again_ns}
        timers = [SetTimer((key,), after_ns) for key, after_ns in waits.items()]
        return [*self._goodbye(), *timers, *self._finish_if_alone()]

    def _farewell(self) -> list[NodeId]:
        """Whom we have to say goodbye to: who may wait for us, or has an account with us."""
        if len(self.partners) <= FAREWELL_PEERS:
            return list(self.partners)
        recent = {j for j, round in self.met.items() if round >= self.round - FAREWELL_ROUNDS}
        return sorted((recent | {j for j, edge in self.edges.items() if edge.open}) - {self.node})

    def _leaving(self, to: NodeId) -> Leaving:
        edge = self._edge(to)
        done = to in self.left and edge.settled
        if done:
            self.told.add(to)
        return Leaving(self.round, edge.used, edge.missing, done)

    def _goodbye(self) -> list[Effect]:
        # also to those who said it first: they stay until they hear it from us
        return [Send(to, self._leaving(to)) for to in self._farewell() if to not in self.done]

    def _finish_if_alone(self) -> list[Effect]:
        if self.phase != "leaving":
            return []
        return [] if any(self._must_wait_for(j) for j in self._farewell()) else self._finish()

    def _must_wait_for(self, node: NodeId) -> bool:
        edge = self._edge(node)
        if node not in self.linked:  # it may come back and tell
            return self.patient and edge.open is not None and edge.missing >= self.round - FAREWELL_ROUNDS
        finished = node in self.done and edge.settled
        return not finished and (self.patient or node not in self.absent)

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        effects: list[Effect] = [
            Report("unsettled", {"peer": j, "round": edge.missing if edge.open else edge.used}, self.round)
            for j, edge in sorted(self.edges.items())
            if edge.open or (not edge.confirmed and (j in self.absent or j in self.left - self.linked))
        ]
        effects += self._lacking() if self.round >= self.settings.rounds else []
        self.phase = "finished"
        self.mailbox.clear()
        self.sent.clear()
        return [*effects, Finish(self.learner.model, failure)]

    def _lacking(self) -> list[Report]:
        """Where each round has a graph of its own a pair may meet once, and lose that model: heard of is enough."""
        fixed = self.schedule.period > 0
        return self.carried.told(self.round, [j for j in self.partners if fixed or j not in self.newest])


def _mixed(terms: Sequence[tuple[float, Vector]]) -> Vector:
    """The sum, in the memory of a term that came over a link, if there is one: it is ours, and not needed again."""
    return ordered_mix(terms, next((vector for _, vector in terms if vector.flags.writeable), None))


def resume_point(algorithm: GossipAlgorithm[Any], round: int, model: Vector) -> Checkpoint:
    """Return from where a peer goes on that has `model` after `round` rounds: what another has learned."""
    return Learner(algorithm, model).checkpoint(round, {}, FRESH)


def leads_of(node: NodeId, schedule: MixingSchedule, partners: Sequence[NodeId]) -> dict[NodeId, int]:
    """Return how many rounds each partner can be ahead of `node` while nobody misses a deadline.

    A peer needs, in every round, what its sources sent in that round; so it is ahead of us by at most one round per
    link on the way from us to it, where a link of a schedule may be used once in a period.
    """
    if not schedule.period:
        return dict.fromkeys(partners, LEAD_ROUNDS)
    hops, ring = {node: 0}, [node]
    while ring and not set(partners) <= hops.keys():
        after = {
            to for at in ring for r in range(schedule.period) for to in schedule.mixing(r).targets(at) if to not in hops
        }
        hops.update(dict.fromkeys(after, hops[ring[0]] + 1))
        ring = sorted(after)
    return {partner: schedule.period * hops.get(partner, 1) for partner in partners}


def _one_view(_round: int) -> str:
    """The view of a roster that never changes."""
    return ""
