"""Push-sum, synchronous and asynchronous: learning on directed and changing graphs, where no mixing keeps the mean.

What goes out and what becomes of the sums is the algorithm's (`algorithms/push_sum`, or another whose `needs` are
columns and whose last slot is a weight); at node i, in every round:

    v_i  <-  what goes out after training          vectors and a weight
    send  a v_i  to each out-neighbour;  keep what is left                 a: the column of i in the mixing
    v_i  <-  the sum of what was kept and what has come

Nobody needs to know who hears it, nor that anybody does: the sums of all v_i stay.

Where we differ: the network may lose messages.  What is sent is a numbered `Parcel` of the sender's mass, sent again
until it is `Accepted`; a receiver that is gone or has left, or whose last one is not accepted in time, gets none, and
its share stays where it is.  Mass that is late counts when it comes.  So nothing is lost and nothing counts twice
(`mass_ledger`); and where no deadline is missed, the bits are those of the stacked engine, whatever was lost.

`SyncPushSum` waits in every round for the acceptance of its last parcels, then for the parcels of its in-neighbours, or
until the deadline; it tells a receiver that gets none (`Account`).  `AsyncPushSum` (overlapped
SGP without a bound on staleness; also Spiridonoff, Olshevsky and Paschalidis 2020) adds what comes when it comes; it
waits only where no arc is free, so that it is a network's breadth ahead of its parcels and not a run's.

The end.  A peer that has done its rounds waits until its parcels are accepted, then says `Leaving`: the last number
that it has taken of each.  From then on it takes nothing; what is on the way goes back to who sent it.  Who is left
behind alone ends its run early.  A parcel to a peer that is gone is taken back at the very end.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal

from fedgossip import seeds
from fedgossip.algorithms.base import GossipAlgorithm, State, Step, Vectors
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
from fedgossip.messages import Accepted, Account, Leaving, Parcel
from fedgossip.protocols.carried import FRESH, Carried
from fedgossip.protocols.deadlines import Deadline
from fedgossip.protocols.failures import nobody_came
from fedgossip.protocols.learner import Learner
from fedgossip.protocols.mass_ledger import Arcs, share_of, weight_of
from fedgossip.protocols.partner_set import Company
from fedgossip.protocols.sync_gossip import MixingSchedule, leads_of
from fedgossip.protocols.vector_check import VectorCheck
from fedgossip.vectors import Vector, add, ordered_mix

WEIGHT_MOST = 2.0**31
"""Maximum weight of a parcel: there are as many as nodes in all the network."""


@dataclass(frozen=True, slots=True)
class PushSettings:
    """Limits of one run of push-sum.  Times in nanoseconds."""

    rounds: int
    seed: int = 0
    targets: Literal["all", "one"] = "all"
    """Asynchronous: push to every out-neighbour in a round, or half of the mass to one of them."""
    deadline_ns: int = 30_000_000_000
    """Synchronous: the longest wait for the in-neighbours' parcels after sending one's own."""
    least_deadline_ns: int = 5_000_000_000
    """The deadline follows the rounds that were seen, within these two; equal: it is constant."""
    answer_ns: int = 10_000_000_000
    """The longest wait for an acceptance before a parcel is sent again."""
    first_answer_ns: int = 1_000_000_000
    """That wait until some answers were seen."""
    least_answer_ns: int = 100_000_000
    """That wait follows the acceptances that were seen, within these two."""
    start_ns: int = 300_000_000_000
    """How long to wait for all links at the start; people start peers on several machines by hand."""
    drain_ns: int = 30_000_000_000
    """How long to stay after the last round until parcels are accepted, and for partners that are not done."""
    hurry_ns: int = 1_000_000_000
    """How long to wait for acceptances when the user stops the run."""
    again_ns: int = 500_000_000
    """After so long a goodbye is said again."""


LONGER = 3
"""So often the wait for an acceptance doubles: a parcel holds back the round of its receiver."""


class _Peer(Generic[State]):
    """What both kinds have in common: links, parcels, the beginning and the end."""

    def __init__(
        self,
        node: NodeId,
        schedule: MixingSchedule,
        algorithm: GossipAlgorithm[State],
        initial: Vector,
        schema: str,
        settings: PushSettings,
        resumed: Checkpoint | None = None,
        incarnation: int = 0,
    ) -> None:
        self.node, self.schedule, self.settings, self.schema = node, schedule, settings, schema
        self.layout = VectorCheck(node, schema, initial, len(algorithm.slots) - 1)
        self.company = Company(node, schedule.partners(node))
        self.learner = Learner(algorithm, initial, resumed)
        self.round = 0
        self.phase = "new"
        self.arcs = Arcs(incarnation)
        self.packed_ns: dict[NodeId, int] = {}  # when the parcel that is out was sent, if that was once
        least_ns = min(settings.least_answer_ns, settings.answer_ns)
        self.patience = Deadline(settings.answer_ns, least_ns, first_ns=settings.first_answer_ns)
        self.changes = self.trained_from = self.staleness = 0
        self.eager = resumed is not None
        self.carried = Carried(resumed)
        self.heard: set[NodeId] = set()  # ever
        self.hurried = False
        if resumed:
            self.round = resumed.round
            self.arcs = Arcs.restored(resumed.vectors, resumed.facts, schema, incarnation)

    # --- what the two kinds do differently ------------------------------------------------------------------------

    def _exchange(self, now_ns: int) -> list[Effect]:
        """A round is open: give shares of what goes out away, and go on."""
        raise NotImplementedError

    def _arrived(self, sender: NodeId, round: int, share: Vectors, now_ns: int) -> list[Effect]:
        """Mass has come from `sender`, or back from there in the round in which it was given."""
        raise NotImplementedError

    def _none(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        """Nothing comes from `sender` in `round`."""
        raise NotImplementedError

    def _freed(self, now_ns: int) -> list[Effect]:
        """An arc is free again, or who is here has changed."""
        raise NotImplementedError

    def _fold(self) -> None:
        """Bring all mass that is here into the state."""
        raise NotImplementedError

    def _timer(self, key: Hashable, now_ns: int) -> list[Effect]:
        raise NotImplementedError

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                self.company.check(sender, f"a message of kind {type(message).__name__.lower()!r}")
                return self._received(event, now_ns)
            case Trained(job):
                if self.phase != "training":  # the run has ended meanwhile
                    return []
                assert job == self.round, f"job {job} was not asked for"
                return self._trained(event, now_ns)
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
                return self._hurry()
            case Rostered(schedule):
                self.schedule = schedule  # type: ignore[assignment]
                self.company.change(self.schedule.partners(self.node))
                return self._begin_if_joined(now_ns)

    def _received(self, event: Received, now_ns: int) -> list[Effect]:
        sender = event.sender
        match event.message:
            case Parcel() as parcel:
                return self._parcel(sender, parcel, now_ns)
            case Accepted(number):
                return self._accepted(sender, number, now_ns)
            case Account(round):
                return self._none(sender, round, now_ns)
            case Leaving() as leaving:
                return self._left(sender, leaving, now_ns)
            case message:
                raise ProtocolError(
                    f"node {self.node}: a message of kind {type(message).__name__.lower()!r} from node {sender}"
                    " in a run of push-sum",
                    "Were the peers started from the same experiment file?",
                    peer=sender,
                )

    def _fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match key:
            case ("parcel", int(to), number, int(attempt)) if self._is_out(to, number):
                self.packed_ns.pop(to, None)  # which one is accepted cannot be told (Karn and Partridge, SIGCOMM 1987)
                return self._send_out(to, attempt + 1)
            case ("start",) if self.phase == "joining":
                return self._start_with_those_here(now_ns)
            case ("again",) if self.phase == "leaving":
                return [*self._goodbye(), SetTimer(("again",), self.settings.again_ns)]
            case ("drain",) if self.phase == "closing":
                return [*self._leave(), *(self._finish() if self.phase == "leaving" else [])]
            case ("drain",) if self.phase == "leaving":
                return self._finish()
            case _:
                return self._timer(key, now_ns)

    # --- links ----------------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        self.company.joined(node, incarnation)
        effects: list[Effect] = []
        if self.phase not in ("new", "joining"):
            effects.append(Report("joined", node, self.round))
        if node in self.arcs.out:
            effects += self._send_out(node, 0)
        if self.phase == "leaving":
            effects.append(Send(node, self._leaving(node)))
        return effects + self._begin_if_joined(now_ns) + self._freed(now_ns)

    def _gone(self, node: NodeId, now_ns: int) -> list[Effect]:
        if node not in self.company.linked:
            return []
        self.company.linked.discard(node)
        effects: list[Effect] = []
        if node not in self.company.left:
            effects.append(Report("gone", node, self.round))
        return effects + self._freed(now_ns) + self._end_if_possible()

    def _begin_if_joined(self, now_ns: int) -> list[Effect]:
        if self.phase != "joining":
            return []
        company = self.company
        if company.partners and set(company.partners) <= company.left:
            return self._close(self.settings.drain_ns)
        ready = not company.missing() or (self.eager and bool(company.here()))
        return self._train(now_ns) if ready else []

    def _start_with_those_here(self, now_ns: int) -> list[Effect]:
        missing = self.company.missing()
        if not (self.company.here() or self.eager):  # to learn alone would be a surprise, not gossip
            return [Report("nobody_came", missing, self.round), *self._finish(nobody_came(missing))]
        return [Report("started_without", missing, self.round), *self._train(now_ns)]

    # --- a round --------------------------------------------------------------------------------------------------

    def _train(self, now_ns: int) -> list[Effect]:
        del now_ns
        if self.round >= self.settings.rounds:
            return self._close(self.settings.drain_ns)
        self.phase, self.trained_from = "training", self.changes
        return [Train(self.round, self.learner.model)]

    def _trained(self, event: Trained, now_ns: int) -> list[Effect]:
        self.staleness = self.changes - self.trained_from
        self.carried.due(j for j in self.schedule.mixing(self.round).row(self.node) if j != self.node)
        self.learner.trained(event.update, Step.of(self.round, event.metrics))
        return self._exchange(now_ns)

    def _mixed(self) -> list[Effect]:
        """The round is behind us."""
        self.round += 1
        return [RoundDone(self.round, self.learner.model, self.staleness), self._checkpoint()]

    def _checkpoint(self) -> Checkpoint:
        vectors, facts = self.arcs.saved()
        return self.learner.checkpoint(self.round, vectors, {**facts, **self.carried.saved()})

    def _free(self, targets: Sequence[NodeId]) -> list[NodeId]:
        """Those of the targets that can be sent to now."""
        here = set(self.company.here())
        return [to for to in targets if to in here and to not in self.arcs.out]

    def _give(self, shares: Mapping[NodeId, float], now_ns: int) -> list[Effect]:
        """Send each its share of what goes out; what is left is not taken off."""
        made: dict[float, Vectors] = {}
        effects: list[Effect] = []
        for to, share in shares.items():
            if share not in made:
                made[share] = part_of(self.learner.outgoing, share)
            self.arcs.pack(to, self.round, self.schema, made[share])
            self.packed_ns[to] = now_ns
            effects += self._send_out(to, 0)
        return effects

    def _send_out(self, to: NodeId, attempt: int) -> list[Effect]:
        """Send the parcel that is out; to one who is gone: when it is back."""
        if to not in self.company.linked:
            return []
        parcel = self.arcs.out[to]
        wait = min(self.patience.now_ns() << min(attempt, LONGER), self.settings.answer_ns)
        return [Send(to, parcel), SetTimer(("parcel", to, parcel.number, attempt), wait)]

    def _is_out(self, to: NodeId, number: object) -> bool:
        return to in self.arcs.out and self.arcs.out[to].number == number

    def _add(self, share: Vectors) -> None:
        self.learner.corrected(share)
        self.changes += 1

    # --- parcels --------------------------------------------------------------------------------------------------

    def _parcel(self, sender: NodeId, parcel: Parcel, now_ns: int) -> list[Effect]:
        self.layout.check(sender, parcel)
        if not 0 <= parcel.round < self.settings.rounds or not 0 < parcel.weight <= WEIGHT_MOST:
            raise ProtocolError(
                f"node {self.node}, round {self.round}: a parcel of round {parcel.round} and weight {parcel.weight:g}"
                f" from node {sender}; the run has {self.settings.rounds} rounds",
                "Were the peers started from the same experiment file?",
                peer=sender,
            )
        self.layout.check_values(sender, parcel)
        self.heard.add(sender)
        if self.phase == "leaving" and parcel.number > self.arcs.taken.get(sender, -1):
            return [Send(sender, self._leaving(sender))]  # it is the sender's again
        effects: list[Effect] = []
        if self.arcs.take(sender, parcel.number):
            self.carried.came(sender)
            effects = self._arrived(sender, parcel.round, share_of(parcel), now_ns)
        return [Send(sender, Accepted(self.arcs.taken[sender])), *effects]

    def _accepted(self, sender: NodeId, number: int, now_ns: int) -> list[Effect]:
        if not self.arcs.may_have_sent(sender, number):
            raise ProtocolError(
                f"node {self.node}: node {sender} accepts parcel {number}, which was never sent", peer=sender
            )
        self.heard.add(sender)
        if not self.arcs.accepted(sender, number):
            return []
        if sender in self.packed_ns:
            self.patience.saw(now_ns - self.packed_ns.pop(sender))
        return self._freed(now_ns) + self._end_if_possible()

    # --- the end --------------------------------------------------------------------------------------------------

    def _left(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:
        self.heard.add(sender)
        self.company.left.add(sender)
        self.arcs.accepted(sender, leaving.used)
        effects: list[Effect] = []
        if parcel := self.arcs.out.pop(sender, None):
            effects.append(Report("returned", {"from": sender, "weight": parcel.weight}, self.round))
            effects += self._arrived(self.node, parcel.round, share_of(parcel), now_ns)
        effects += self._begin_if_joined(now_ns) + self._freed(now_ns)
        return effects + self._end_if_possible()

    def _end_if_possible(self) -> list[Effect]:
        last = self.phase == "training" and self.round == self.settings.rounds - 1  # as good as done
        if self.phase in ("training", "blocked", "waiting", "pausing") and self.company.deserted and not last:
            effects: list[Effect] = []
            if self.round < self.settings.rounds:
                effects.append(Report("stopped_with_the_others", {"rounds": self.round}, self.round))
            return effects + self._close(self.settings.drain_ns)
        if self.phase == "closing":
            return self._leave_if_accepted()
        return self._finish_if_alone()

    def _hurry(self) -> list[Effect]:
        if self.hurried:
            return []
        self.hurried = True
        stay = min(self.settings.hurry_ns, self.settings.drain_ns)
        if self.phase in ("closing", "leaving"):
            return [SetTimer(("drain",), stay), *self._end_if_possible()]
        return self._close(stay)

    def _close(self, stay_ns: int) -> list[Effect]:
        """No round comes any more: take what comes until our own parcels are accepted."""
        self._fold()
        self.phase = "closing"
        return [SetTimer(("drain",), stay_ns), *self._leave_if_accepted()]

    def _leave_if_accepted(self) -> list[Effect]:
        return self._leave() if not self._free_of_parcels() else []

    def _free_of_parcels(self) -> list[NodeId]:
        return [to for to in self.arcs.out if to in self.company.linked]

    def _leave(self) -> list[Effect]:
        self.phase = "leaving"
        return [*self._goodbye(), SetTimer(("again",), self.settings.again_ns), *self._finish_if_alone()]

    def _goodbye(self) -> list[Effect]:
        return [Send(to, self._leaving(to)) for to in self.company.partners if to in self.company.linked]

    def _leaving(self, to: NodeId) -> Leaving:
        """`used`: the last parcel of yours that I have taken, or ever will."""
        return Leaving(self.round, used=self.arcs.taken.get(to, -1))

    def _finish_if_alone(self) -> list[Effect]:
        waits = self.phase != "leaving" or self._free_of_parcels() or (self.company.here() and not self.hurried)
        return [] if waits else [*self._goodbye(), *self._finish()]

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        """What is out to those who are gone is ours again; of who is there and says nothing we do not know."""
        effects: list[Effect] = []
        for to, parcel in sorted(self.arcs.out.items()):
            gone = to not in self.company.linked
            if gone:
                self._add(share_of(parcel))
            name = "taken_back" if gone else "unsettled"
            effects.append(Report(name, {"to": to, "weight": parcel.weight}, self.round))
        effects += [] if self.hurried else self._lacking()
        self.phase = "finished"
        return [*effects, Finish(self.learner.model, failure)]

    def _lacking(self) -> list[Report]:
        """Where every round has a graph of its own two may have met once, and lost that parcel: heard of is enough."""
        fixed = self.schedule.period > 0
        return self.carried.told(self.round, [j for j in self.company.partners if fixed or j not in self.heard])


class SyncPushSum(_Peer[State]):
    """One peer of a synchronous run: a round is mixed when the parcels of all in-neighbours are here."""

    def __init__(
        self,
        node: NodeId,
        schedule: MixingSchedule,
        algorithm: GossipAlgorithm[State],
        initial: Vector,
        schema: str,
        settings: PushSettings,
        resumed: Checkpoint | None = None,
        incarnation: int = 0,
    ) -> None:
        super().__init__(node, schedule, algorithm, initial, schema, settings, resumed, incarnation)
        self.mailbox: dict[NodeId, dict[int, Vectors]] = {}
        self.late: Vectors | None = None  # mass of rounds that are behind, and of rounds that are far ahead
        self.kept: float | None = None  # the own share, between giving and mixing
        self.waiting_for: set[NodeId] = set()
        self.absent: set[NodeId] = set()  # in-neighbours that are not waited for
        self.silent: set[NodeId] = set()  # out-neighbours whose acceptance is not waited for
        self.none: dict[NodeId, int] = {}  # the last round in which nothing comes
        self.leads = leads_of(node, schedule, self.company.partners)
        self.deadline = Deadline(settings.deadline_ns, min(settings.least_deadline_ns, settings.deadline_ns))
        self.sent_ns = 0
        if resumed:
            self._restore(resumed.vectors, resumed.facts)

    def _exchange(self, now_ns: int) -> list[Effect]:
        if self._blocked():
            self.phase = "blocked"
            return [SetTimer(("blocked", self.round), self.deadline.now_ns())]
        return self._share(now_ns)

    def _blocked(self) -> set[NodeId]:
        """Those whose last parcel is not accepted yet: until it is they cannot get this round's."""
        targets = set(self.schedule.mixing(self.round).targets(self.node)) - self.silent
        return targets & self.arcs.out.keys() & set(self.company.here())

    def _share(self, now_ns: int) -> list[Effect]:
        mixing = self.schedule.mixing(self.round)
        row, targets = mixing.row(self.node), mixing.targets(self.node)
        shares = {to: mixing.row(to)[self.node] for to in targets}
        given = {to: shares[to] for to in self._free(targets)}
        withheld = [to for to in targets if to not in given]
        self.kept = row[self.node] + sum(shares[to] for to in withheld)
        self.waiting_for = {j for j in row if j != self.node and self.round not in self.mailbox.get(j, ())}
        self.phase, self.sent_ns = "waiting", now_ns
        effects: list[Effect] = [Outgoing(self.round + 1, self.learner.seen)]
        effects += self._give(given, now_ns)
        effects += [Report("withheld", to, self.round) for to in withheld]
        effects += [Send(to, Account(self.round)) for to in withheld if to in self.company.here()]
        effects.append(SetTimer(("deadline", self.round), self.deadline.now_ns()))
        return effects + self._mix_if_complete(now_ns)

    def _arrived(self, sender: NodeId, round: int, share: Vectors, now_ns: int) -> list[Effect]:
        if self.phase in ("closing", "leaving"):
            self._add(share)
            return []
        if round >= self.round - 1:
            self.absent.discard(sender)
        if round < self.round or round > self.round + self.leads.get(sender, 0) or sender == self.node:
            self.late = share if self.late is None else tuple(map(add, self.late, share))
        else:
            self.mailbox.setdefault(sender, {})[round] = share
        if round == self.round:
            self.waiting_for.discard(sender)
        elif round > self.round:
            self.heard.add(sender)
        self.none[sender] = max(round - 1, self.none.get(sender, -1))
        return self._mix_if_complete(now_ns)

    def _none(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        if not 0 <= round < self.settings.rounds:
            raise ProtocolError(f"node {self.node}: node {sender} speaks of round {round}", peer=sender)
        self.none[sender] = max(round, self.none.get(sender, -1))
        return self._mix_if_complete(now_ns)

    def _freed(self, now_ns: int) -> list[Effect]:
        self.silent &= self.arcs.out.keys()
        if self.phase == "blocked":
            return [] if self._blocked() else self._share(now_ns)
        return self._mix_if_complete(now_ns)

    def _timer(self, key: Hashable, now_ns: int) -> list[Effect]:
        if self.phase == "blocked" and key == ("blocked", self.round):
            self.silent |= self._blocked()
            return self._share(now_ns)
        if self.phase == "waiting" and key == ("deadline", self.round):
            self.absent.update(self.waiting_for)
            return self._mix(now_ns)
        return []

    def _mix_if_complete(self, now_ns: int) -> list[Effect]:
        complete = self.phase == "waiting" and all(self._will_not_come(j) for j in self.waiting_for)
        return self._mix(now_ns) if complete else []

    def _will_not_come(self, node: NodeId) -> bool:
        here = node in self.company.linked and node not in self.company.left
        return not here or node in self.absent or self.none.get(node, -1) >= self.round

    def _mix(self, now_ns: int) -> list[Effect]:
        missing = sorted(self.waiting_for)
        effects: list[Effect] = [Report("missed", missing, self.round)] if missing else []
        if not missing:
            self.deadline.saw(now_ns - self.sent_ns)
        self._sum(self.round)
        effects += self._mixed()
        return effects + self._train(now_ns)

    def _sum(self, until: int) -> None:
        """Mix what is here of rounds up to `until`, by ascending ids, our own in its place; late mass comes last."""
        mail = [(j, r, kept) for j, kept in self.mailbox.items() for r in sorted(kept) if r <= until]
        come = [(j, r, kept.pop(r)) for j, r, kept in mail]
        if outgoing := self.learner.outgoing:
            terms = [(self.node, 0, 1.0 if self.kept is None else self.kept, outgoing)]
            terms += [(j, round, 1.0, share) for j, round, share in come]
            terms.sort(key=lambda term: term[:2])
            slots = range(len(outgoing))
            self.learner.mixed(tuple(ordered_mix([(part, sum[k]) for *_, part, sum in terms]) for k in slots))
        else:
            for *_, share in sorted(come, key=lambda one: one[:2]):
                self._add(share)
        if self.late:
            self._add(self.late)
        self.late, self.kept = None, None

    def _fold(self) -> None:
        if self.late or self.learner.outgoing or any(self.mailbox.values()):
            self._sum(self.settings.rounds)

    def _checkpoint(self) -> Checkpoint:
        saved = super()._checkpoint()
        vectors, facts = dict(saved.vectors), dict(saved.facts)
        mail: list[list[float]] = []
        for j, kept in self.mailbox.items():
            for round, (*one, weight) in kept.items():
                vectors |= {f"mail/{j}/{round}/{k}": vector for k, vector in enumerate(one)}
                mail.append([j, round, float(weight[0])])
        return Checkpoint(saved.round, vectors, {**facts, "mail": mail})

    def _restore(self, vectors: Mapping[str, Vector], facts: Mapping[str, Any]) -> None:
        slots = range(len(self.learner.algorithm.slots) - 1)
        for j, round, weight in facts["mail"]:
            share = *(vectors[f"mail/{j}/{round}/{k}"] for k in slots), weight_of(weight)
            self.mailbox.setdefault(int(j), {})[int(round)] = share


class AsyncPushSum(_Peer[State]):
    """One peer of an asynchronous run: what comes is added when it comes."""

    def _exchange(self, now_ns: int) -> list[Effect]:
        targets = self.schedule.mixing(self.round).targets(self.node)
        given = self._shares(targets)
        effects = self._give(given, now_ns)
        self.learner.mixed(part_of(self.learner.outgoing, 1.0 - sum(given.values())))
        effects += self._mixed()
        if given or not set(targets) & set(self.company.here()) or self.round >= self.settings.rounds:
            return effects + self._train(now_ns)
        self.phase = "pausing"
        return [*effects, SetTimer(("pause", self.round), self.patience.now_ns())]

    def _shares(self, targets: Sequence[NodeId]) -> dict[NodeId, float]:
        free = self._free(targets)
        if self.settings.targets == "all":
            mixing = self.schedule.mixing(self.round)
            return {to: mixing.row(to)[self.node] for to in free}
        drawn = seeds.integer(self.settings.seed, "target", self.node, self.round)
        return {free[drawn % len(free)]: 0.5} if free else {}

    def _arrived(self, sender: NodeId, round: int, share: Vectors, now_ns: int) -> list[Effect]:
        del sender, round, now_ns
        self._add(share)
        return []

    def _none(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        del round, now_ns
        raise ProtocolError(f"node {self.node}: an account from node {sender} in an asynchronous run", peer=sender)

    def _freed(self, now_ns: int) -> list[Effect]:
        return self._train(now_ns) if self.phase == "pausing" else []

    def _fold(self) -> None:
        pass

    def _timer(self, key: Hashable, now_ns: int) -> list[Effect]:
        return self._train(now_ns) if self.phase == "pausing" and key == ("pause", self.round) else []


def resume_point(algorithm: GossipAlgorithm[Any], round: int, model: Vector) -> Checkpoint:
    """Return from where a peer goes on that has `model` after `round` rounds, and the weight of one who begins."""
    vectors, facts = Arcs(0).saved()
    return Learner(algorithm, model).checkpoint(round, vectors, {"mail": [], **facts, **FRESH})


def part_of(whole: Vectors, share: float) -> Vectors:
    return tuple(ordered_mix([(share, vector)]) for vector in whole)
