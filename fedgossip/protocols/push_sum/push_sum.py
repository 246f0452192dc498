"""Push-sum on any directed graph, synchronous or asynchronous.  Parcels, mathematics and the end are in `push_peer`.

**Synchronous.**  A round is mixed when the parcels of all in-neighbours have arrived.

    phase      event                                         next phase
    joining    Rostered                                      training
    training   Trained                                       blocked waiting end
    training   Leaving PeerGone Stopping                     end
    blocked    Accepted Leaving PeerGone blocked             waiting training end
    blocked    Stopping                                      end
    waiting    Parcel Account Leaving PeerGone deadline      training end
    waiting    Stopping                                      end
    closing    Accepted Leaving PeerGone                     leaving finished
    closing    drain                                         finished
    leaving    Accepted                                      finished

In every round a peer waits for the acceptance of its last parcels ("blocked"), then for the parcels of its
in-neighbours or the deadline; a receiver that gets none is notified (`Account`).  If no deadline is missed, the bits
are those of the stacked engine.

**Asynchronous.**  Overlapped stochastic gradient push, without a bound on staleness.

    phase      event                                         next phase
    joining    Rostered                                      training
    training   Trained                                       pausing end
    training   Leaving PeerGone Stopping                     end
    pausing    Accepted PeerJoined PeerGone Leaving pause    training
    pausing    Leaving PeerGone Stopping                     end
    closing    Accepted Leaving PeerGone                     leaving finished
    closing    drain                                         finished
    leaving    Accepted                                      finished

Received mass is added at once; a peer waits only if no arc is free ("pausing"): its lead over its parcels is bounded.

Difference from the papers: a peer faster than its in-neighbours sends mass in each round and receives little; its
weight w goes to zero, an update of x moves x / w by 1 / w of it, and training diverges at any learning rate.  So a peer
keeps at least LEAST_KEPT of the mass that a peer of weight 1 keeps; any share is allowed, as the sums stay the same.

Sources: Assran et al. (ICML 2019), section 4; also Spiridonoff, Olshevsky and Paschalidis, Robust asynchronous
stochastic gradient-push, JMLR 21 (2020).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from fedgossip.algorithms.gossip.base import State, Vectors
from fedgossip.base import seeds
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, add, ordered_mix
from fedgossip.core.machine import Checkpoint, Effect, NodeId, Outgoing, Report, Send, SetTimer
from fedgossip.core.messages import Account
from fedgossip.protocols.gossip.mailbox import Sources, leads_of
from fedgossip.protocols.gossip.partner_set import Deadline
from fedgossip.protocols.push_sum.push_peer import PushPeer, part_of, weight_of

# Received shares of mass, by sender and round, until the round that counts them.


Arrived = list[tuple[NodeId, int, Vectors]]
"""(sender, round, share) of received mass."""


class ParcelMail:
    """One peer's received mass.  `leads`: number of rounds that each in-neighbour can be ahead.

    All added mass is returned once.  For each sender it stores at most one share for each of its possible rounds;
    shares of other rounds are late, in one sum.
    """

    def __init__(self, leads: Mapping[NodeId, int]) -> None:
        self.leads = leads
        self.kept: dict[NodeId, dict[int, Vectors]] = {}
        self.late: Vectors | None = None
        self.late_from: set[NodeId] = set()
        """The senders of the mass in the late sum."""
        self.none: dict[NodeId, int] = {}
        """The last round without further messages of each sender."""

    def keep(self, sender: NodeId, round: int, share: Vectors, current: int) -> None:
        """Store a share sent in `round`; `current` is this peer's round."""
        if current <= round <= current + self.leads.get(sender, 0) and round not in self.kept.get(sender, ()):
            self.kept.setdefault(sender, {})[round] = share
        else:
            self.late = share if self.late is None else tuple(map(add, self.late, share))
            self.late_from.add(sender)
        self.expect_none(sender, round - 1)

    def expect_none(self, sender: NodeId, round: int) -> None:
        """Record that `sender` sends nothing more up to `round`."""
        self.none[sender] = max(round, self.none.get(sender, -1))

    def has(self, sender: NodeId, round: int) -> bool:
        return round in self.kept.get(sender, ())

    def take(self, until: int) -> Arrived:
        """Return all shares of rounds up to `until`, by ascending senders and rounds; the late sum is `take_late`'s."""
        due = [(j, r) for j, kept in sorted(self.kept.items()) for r in sorted(kept) if r <= until]
        return [(j, r, self.kept[j].pop(r)) for j, r in due]

    def take_late(self) -> Vectors | None:
        late, self.late, self.late_from = self.late, None, set()
        return late

    def saved(self) -> tuple[dict[str, Vector], list[list[float]]]:
        """Return the vectors and the facts of the stored shares, for a checkpoint when nothing is late."""
        vectors: dict[str, Vector] = {}
        mail: list[list[float]] = []
        for j, kept in self.kept.items():
            for round, (*one, weight) in kept.items():
                vectors |= {f"mail/{j}/{round}/{k}": vector for k, vector in enumerate(one)}
                mail.append([j, round, float(weight[0])])
        return vectors, mail

    def restore(self, vectors: Mapping[str, Vector], mail: Any, count: int) -> None:
        """Restore the result of `saved`; `count`: number of vectors in a share."""
        for j, round, weight in mail:
            share = *(vectors[f"mail/{j}/{round}/{k}"] for k in range(count)), weight_of(weight)
            self.kept.setdefault(int(j), {})[int(round)] = share


class SyncPushSum(PushPeer[State]):
    """One peer of a synchronous run.  `resumed`: continue from this checkpoint, with its received, uncounted mass."""

    def ready(self, resumed: Checkpoint | None) -> None:
        settings = self.settings
        self.mail = ParcelMail(self._leads())
        self.kept: float | None = None  # own share, between sending and mixing
        self.sources = Sources()  # of this round
        self.silent: set[NodeId] = set()  # out-neighbours with an acceptance that is not waited for
        self.wait = Deadline(settings.deadline_ns, min(settings.least_deadline_ns, settings.deadline_ns))
        self.sent_ns = 0
        if resumed:
            self.mail.restore(resumed.vectors, resumed.facts["mail"], len(self.learner.algorithm.slots) - 1)

    def rostered(self, schedule: object) -> None:
        self.follow(schedule)
        self.mail.leads = self._leads()

    def _leads(self) -> dict[NodeId, int]:
        """Return the leads of the partners; -1 for this peer, as returned mass belongs to no later round."""
        return {self.node: -1, **leads_of(self.node, self.schedule, self.company.partners)}

    # --- sending ------------------------------------------------------------------------------------------------------

    def exchange(self, now_ns: int) -> list[Effect]:
        if self._blocked():
            self.phase = "blocked"
            return [SetTimer(("blocked", self.round), self.wait.now_ns())]
        return self._share(now_ns)

    def _blocked(self) -> set[NodeId]:
        """Return the receivers without an acceptance of the last parcel."""
        targets = set(self.schedule.mixing(self.round).targets(self.node)) - self.silent
        return targets & self.arcs.out.keys() & set(self.company.list_present())

    def _share(self, now_ns: int) -> list[Effect]:
        mixing = self.schedule.mixing(self.round)
        row, targets = mixing.row(self.node), mixing.targets(self.node)
        shares = {to: mixing.row(to)[self.node] for to in targets}
        given = {to: shares[to] for to in self.free(targets)}
        withheld = [to for to in targets if to not in given]
        self.kept = row[self.node] + sum(shares[to] for to in withheld)
        self.sources = Sources.from_nodes(row.keys() - {self.node}, lambda j: self.mail.has(j, self.round))
        self.phase, self.sent_ns = "waiting", now_ns
        effects: list[Effect] = [Outgoing(self.round + 1, self.learner.seen)]
        effects += self.give(given, now_ns)
        effects += [Report("withheld", to, self.round) for to in withheld]
        effects += [Send(to, Account(self.round)) for to in withheld if to in self.company.list_present()]
        effects.append(SetTimer(("deadline", self.round), self.wait.now_ns()))
        return effects + self._mix_if_complete(now_ns)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def arrived(self, sender: NodeId, round: int, share: Vectors, now_ns: int) -> list[Effect]:
        if self.phase in ("closing", "leaving"):
            self.learner.corrected(share)
            return []
        if round >= self.round - 1:
            self.company.absent.discard(sender)
        self.mail.keep(sender, round, share, self.round)
        if round == self.round:
            self.sources.missing.discard(sender)
        return self._mix_if_complete(now_ns)

    def expect_none(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        if not 0 <= round < self.settings.rounds:
            raise ProtocolError(f"node {self.node}: node {sender} names round {round}", peer=sender)
        self.mail.expect_none(sender, round)
        return self._mix_if_complete(now_ns)

    def freed(self, now_ns: int) -> list[Effect]:
        self.silent &= self.arcs.out.keys()
        if self.phase == "blocked":
            return [] if self._blocked() else self._share(now_ns)
        return self._mix_if_complete(now_ns)

    def woken(self, key: Hashable, now_ns: int) -> list[Effect]:
        match self.phase, key:
            case "blocked", ("blocked", self.round):
                self.silent |= self._blocked()
                return self._share(now_ns)
            case "waiting", ("deadline", self.round):
                self.company.absent.update(self.sources.missing)
                return self._mix(now_ns)
        return []

    # --- mixing ---------------------------------------------------------------------------------------------------

    def _mix_if_complete(self, now_ns: int) -> list[Effect]:
        complete = self.phase == "waiting" and all(map(self._will_not_arrive, self.sources.missing))
        return self._mix(now_ns) if complete else []

    def _will_not_arrive(self, node: NodeId) -> bool:
        here = node in self.company.linked and node not in self.company.left
        return not here or node in self.company.absent or self.mail.none.get(node, -1) >= self.round

    def _mix(self, now_ns: int) -> list[Effect]:
        missing = sorted(self.sources.missing)
        silent = [j for j in missing if j not in self.mail.late_from]  # mass of another round counts in this one
        effects = self.company.missed(silent, self.round)
        if not missing:
            self.wait.record(now_ns - self.sent_ns)
        self._sum(self.round)
        vectors, mail = self.mail.saved()
        return [*effects, *self.round_done(vectors, {"mail": mail}), *self.go_on(now_ns)]

    def _sum(self, until: int) -> None:
        """Mix the shares of rounds up to `until`, ascending by id; late mass last."""
        received = self.mail.take(until)
        if outgoing := self.learner.outgoing:
            terms = [(self.node, 0, 1.0 if self.kept is None else self.kept, outgoing)]
            terms += [(j, round, 1.0, share) for j, round, share in received]
            terms.sort(key=lambda term: term[:2])
            slots = range(len(outgoing))
            self.learner.mixed(tuple(ordered_mix([(part, sum[k]) for *_, part, sum in terms]) for k in slots))
        else:
            for *_, share in received:
                self.learner.corrected(share)
        if late := self.mail.take_late():
            self.learner.corrected(late)
        self.kept = None

    def close(self) -> list[Effect]:
        self._sum(self.settings.rounds)
        return []


LEAST_KEPT = 0.5
LEAST_GIVEN = 1e-3
"""Minimum share for a message."""


class AsyncPushSum(PushPeer[State]):
    """One peer of an asynchronous run."""

    def ready(self, resumed: Checkpoint | None) -> None:
        """Do nothing: the parcels are the only state."""

    def rostered(self, schedule: object) -> None:
        self.follow(schedule)

    def exchange(self, now_ns: int) -> list[Effect]:
        targets = self.schedule.mixing(self.round).targets(self.node)
        shares = self._shares(targets)
        given = self._affordable(shares)
        effects = self.give(given, now_ns)
        self.learner.mixed(part_of(self.learner.outgoing, 1.0 - sum(given.values())))
        effects += self.round_done({}, {})
        if shares or not set(targets) & set(self.company.list_present()) or self.round >= self.settings.rounds:
            return effects + self.go_on(now_ns)
        self.phase = "pausing"
        return [*effects, SetTimer(("pause", self.round), self.deadline.now_ns())]

    def _shares(self, targets: Sequence[NodeId]) -> dict[NodeId, float]:
        free = self.free(targets)
        if self.settings.targets == "all":
            mixing = self.schedule.mixing(self.round)
            return {to: mixing.row(to)[self.node] for to in free}
        drawn = seeds.integer(self.settings.seed, "target", self.node, self.round)
        return {free[drawn % len(free)]: 0.5} if free else {}

    def _affordable(self, shares: dict[NodeId, float]) -> dict[NodeId, float]:
        """Return the shares, reduced if they would leave too little weight."""
        weight, given = float(self.learner.outgoing[-1][0]), sum(shares.values())
        least = LEAST_KEPT * (1.0 - given)
        if weight * (1.0 - given) >= least:
            return shares
        part = (1.0 - least / weight) / given if weight > least else 0.0
        return {to: share * part for to, share in shares.items()} if part * given > LEAST_GIVEN else {}

    def arrived(self, sender: NodeId, round: int, share: Vectors, now_ns: int) -> list[Effect]:
        del sender, round, now_ns
        self.learner.corrected(share)
        return []

    def expect_none(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        del round, now_ns
        raise ProtocolError(f"node {self.node}: an account from node {sender} in an asynchronous run", peer=sender)

    def freed(self, now_ns: int) -> list[Effect]:
        return self.go_on(now_ns) if self.phase == "pausing" else []

    def woken(self, key: Hashable, now_ns: int) -> list[Effect]:
        return self.go_on(now_ns) if self.phase == "pausing" and key == ("pause", self.round) else []

    def close(self) -> list[Effect]:
        return []
