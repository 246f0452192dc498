r"""Common part of both push-sum machines: parcels of mass, sent again until they are accepted.

The algorithm (`algorithms/gossip/push_sum`, or another with `needs` of columns and a weight as its last slot) defines
the vectors; at node i, in every round:

    v_i  <-  outgoing vectors after training       vectors and a weight
    send  a v_i  to each out-neighbour;  keep the rest                     a: the column of i in the mixing
    v_i  <-  the sum of the kept and the received parts

The sum of all v_i is constant.  Difference from Assran et al. (ICML 2019): messages may be lost.  Each is a numbered
`Parcel`, sent again until it is `Accepted`; a receiver gets none if it is gone, or has not accepted the last one in
time.  Late mass counts on arrival, so none is lost and none counts twice.

The end: a peer waits until its parcels are accepted, then sends `Leaving` with the number of the last parcel accepted
from each partner; a parcel in flight returns to its sender, and one to a lost peer is reclaimed at the very end.

A parcel belongs to its sender until its acceptance is received:

    at its sender      out --Accepted(number)--> gone          at most one per receiver; sent again until then
                        \--Leaving(used < number)--> back   the receiver accepts no more: the sender's again
    at its receiver    number > taken: added, and Accepted; otherwise a repetition: Accepted again

A share has one array per slot; its weight, float64 [1], is sent as a number in the header.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgossip.algorithms.gossip.base import GossipAlgorithm, State, Step, Vectors
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen, ordered_mix
from fedgossip.core.machine import Checkpoint, Effect, NodeId, Report, RoundDone, Send, SetTimer, Trained
from fedgossip.core.messages import Accepted, Account, Leaving, Message, Parcel
from fedgossip.protocols.gossip.learner import Learner, VectorCheck
from fedgossip.protocols.gossip.lifecycle import FRESH, Lifecycle, RunLimits
from fedgossip.protocols.gossip.mailbox import MixingSchedule
from fedgossip.protocols.gossip.partner_set import Deadline

WEIGHT_MOST = 2.0**31
"""Maximum weight of a parcel: the number of nodes of the largest network."""

LONGER = 3
"""Maximum number of doublings of the wait for an acceptance: a parcel delays its receiver's round."""


@dataclass(frozen=True, slots=True)
class PushSettings(RunLimits):
    """Limits of one run of push-sum.  Times in nanoseconds."""

    seed: int = 0
    targets: Literal["all", "one"] = "all"
    """Asynchronous: push to every out-neighbour in a round, or half of the mass to one of them."""
    deadline_ns: int = 30_000_000_000
    """Synchronous: maximum wait for the in-neighbours' parcels after sending this peer's."""
    least_deadline_ns: int = 5_000_000_000
    """Minimum deadline: it follows the measured rounds between this and `deadline_ns`; equal: it is constant."""
    answer_ns: int = 10_000_000_000
    """Maximum wait for an acceptance before a parcel is sent again."""
    first_answer_ns: int = 1_000_000_000
    """Wait for an acceptance until enough waits were measured."""
    least_answer_ns: int = 100_000_000
    """Minimum wait for an acceptance: it follows the measured ones."""


class PushPeer(Lifecycle[State]):
    """Links, parcels and the end; the classes of `push_sum` define when shares are sent, and when mass counts.

    At most one parcel to each partner is open.  Mass in flight and at all peers sums to the initial mass and all
    updates since.
    """

    settings: PushSettings

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
        least_ns = min(settings.least_answer_ns, settings.answer_ns)
        patience = Deadline(settings.answer_ns, least_ns, first_ns=settings.first_answer_ns)
        learner = Learner(algorithm, initial, resumed)
        super().__init__(node, schedule.partners(node), learner, patience, settings, resumed)
        self.schedule, self.schema = schedule, schema
        self.layout = VectorCheck(node, schema, initial.dtype, initial.size, len(algorithm.slots) - 1)
        self.arcs = Arcs(incarnation)
        self.packed_ns: dict[NodeId, int] = {}  # time of a parcel that was sent once
        self.heard: set[NodeId] = set()  # partners with any message so far
        if resumed:
            self.arcs = Arcs.restored(resumed.vectors, resumed.facts, schema, incarnation)
        self.ready(resumed)

    # --- defined by the two kinds -------------------------------------------------------------------------------------

    @abstractmethod
    def ready(self, resumed: Checkpoint | None) -> None:
        """Create the subclass's state, or restore it from the checkpoint."""

    @abstractmethod
    def exchange(self, now_ns: int) -> list[Effect]:
        """Send shares of the outgoing vectors in an open round, and continue."""

    @abstractmethod
    def arrived(self, sender: NodeId, round: int, share: Vectors, now_ns: int) -> list[Effect]:
        """Handle mass sent in `round` by `sender`, or returned by it."""

    @abstractmethod
    def expect_none(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        """Handle the notice that `sender` sends nothing in `round`."""

    @abstractmethod
    def freed(self, now_ns: int) -> list[Effect]:
        """Handle a free arc, or a change of the connected partners."""

    @abstractmethod
    def woken(self, key: Hashable, now_ns: int) -> list[Effect]:
        """Handle a timer of the rounds."""

    # --- events ---------------------------------------------------------------------------------------------------

    def follow(self, schedule: object) -> None:
        """Replace the schedule: the set of participants has changed."""
        self.schedule = schedule  # type: ignore[assignment]
        self.company.change(self.schedule.partners(self.node))

    def received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        match message:
            case Parcel() as parcel:
                return self._parcel(sender, parcel, now_ns)
            case Accepted(number):
                return self._accepted(sender, number, now_ns)
            case Account(round):
                return self.expect_none(sender, round, now_ns)
        raise self.misplaced(sender, message, "a run of push-sum")

    def fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match key:
            case ("parcel", int(to), number, int(attempt)) if self._is_out(to, number):
                self.packed_ns.pop(to, None)  # acceptances are now ambiguous (Karn and Partridge, SIGCOMM 1987)
                again = self._send_out(to, attempt + 1)
                return [*again, Report("resent", {"to": to, "attempt": attempt + 2}, self.round)] if again else []
        return self.woken(key, now_ns)

    def greet(self, node: NodeId, now_ns: int, *, reborn: bool) -> list[Effect]:  # noqa: ARG002
        self.company.absent.discard(node)
        return self._send_out(node, 0) if node in self.arcs.out else []

    def changed(self, now_ns: int) -> list[Effect]:
        effects = self.freed(now_ns)
        last = self.phase == "training" and self.round == self.settings.rounds - 1  # as good as done
        busy = self.phase in ("training", "blocked", "waiting", "pausing")
        deserted = self.company.deserted and not (last or self.settings.endless)
        return [*effects, *self.end_with_the_others()] if busy and deserted else effects

    # --- a round --------------------------------------------------------------------------------------------------

    def trained(self, event: Trained, now_ns: int) -> list[Effect]:
        self.carried.expect(j for j in self.schedule.mixing(self.round).row(self.node) if j != self.node)
        self.learner.trained(event.update, Step.of(self.round, event.metrics))
        return self.exchange(now_ns)

    def round_done(self, vectors: Mapping[str, Vector], facts: Mapping[str, object]) -> list[Effect]:
        """Complete the round; `vectors` and `facts` are added to the parcels in the checkpoint."""
        self.round += 1
        out, accounts = self.arcs.saved()
        saved = self.learner.checkpoint(self.round, {**out, **vectors}, {**accounts, **facts, **self.carried.saved()})
        return [RoundDone(self.round, self.learner.model, self.learner.staleness), saved]

    def free(self, targets: Sequence[NodeId]) -> list[NodeId]:
        """Return the connected targets without an open parcel."""
        here = set(self.company.list_present())
        return [to for to in targets if to in here and to not in self.arcs.out]

    def give(self, shares: Mapping[NodeId, float], now_ns: int) -> list[Effect]:
        """Send each target its share of the outgoing vectors; the caller keeps the rest."""
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
        """Send the open parcel, once its receiver is linked."""
        if to not in self.company.linked:
            return []
        parcel = self.arcs.out[to]
        wait = min(self.deadline.now_ns() << min(attempt, LONGER), self.deadline.longest_ns)
        return [Send(to, parcel), SetTimer(("parcel", to, parcel.number, attempt), wait)]

    def _is_out(self, to: NodeId, number: object) -> bool:
        return to in self.arcs.out and self.arcs.out[to].number == number

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
            return [Send(sender, self.leaving(sender))]  # it belongs to the sender again
        effects: list[Effect] = []
        if self.arcs.take(sender, parcel.number):
            self.carried.mark_mixed(sender)
            effects = self.arrived(sender, parcel.round, share_of(parcel), now_ns)
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
            self.deadline.record(now_ns - self.packed_ns.pop(sender))
        return self.freed(now_ns) + self.end_if_settled()

    # --- the end --------------------------------------------------------------------------------------------------

    def handle_leaving(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:
        self.heard.add(sender)
        if leaving.done:
            self.company.done.add(sender)
        self.arcs.accepted(sender, leaving.used)
        parcel = self.arcs.out.pop(sender, None)
        if parcel is None:
            return []
        report = Report("returned", {"from": sender, "weight": parcel.weight}, self.round)
        return [report, *self.arrived(self.node, parcel.round, share_of(parcel), now_ns)]

    def may_leave(self) -> bool:
        return not self.company.linked & self.arcs.out.keys()

    def leaving(self, to: NodeId) -> Leaving:
        """Return the `Leaving`; `used`: the last parcel from `to` that this peer has accepted or ever will."""
        done = to in self.company.left and to not in self.arcs.out
        return Leaving(self.round, used=self.arcs.taken.get(to, -1), done=done)

    def open_with(self, node: NodeId) -> bool:
        return node in self.arcs.out

    def done_with(self, node: NodeId) -> bool:
        return node in self.company.left and node not in self.arcs.out

    def unsettled(self) -> list[Effect]:
        """Reclaim parcels sent to departed peers; the fate of parcels to silent peers is unknown."""
        effects: list[Effect] = []
        for to, parcel in sorted(self.arcs.out.items()):
            gone = to not in self.company.linked
            if gone:
                self.learner.corrected(share_of(parcel))
            name = "taken_back" if gone else "unsettled"
            effects.append(Report(name, {"to": to, "weight": parcel.weight}, self.round))
        return effects

    def expected(self) -> Collection[NodeId]:
        """Return the partners; without a fixed graph a pair may meet once: any message is enough."""
        fixed = self.schedule.period > 0
        return [j for j in self.company.partners if fixed or j not in self.heard]


def part_of(whole: Vectors, share: float) -> Vectors:
    """Return this share of each vector and of the weight."""
    return tuple(ordered_mix([(share, vector)]) for vector in whole)


def resume_point(algorithm: GossipAlgorithm[Any], round: int, model: Vector) -> Checkpoint:
    """Return the checkpoint of a peer that adopts `model` after `round` rounds, with the initial weight."""
    vectors, facts = Arcs(0).saved()
    return Learner(algorithm, model).checkpoint(round, vectors, {"mail": [], **facts, **FRESH})


LIFE = 1 << 32
"""Distance of the first parcel numbers of two incarnations: no parcel is mistaken for an earlier incarnation's."""


class Arcs:
    """One peer's accounts with all its out- and in-neighbours."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.out: dict[NodeId, Parcel] = {}
        """Sent parcels, not accepted so far."""
        self.sent: dict[NodeId, int] = {}
        """The newest number sent to each partner."""
        self.taken: dict[NodeId, int] = {}
        """The newest number accepted from each partner."""

    def pack(self, to: NodeId, round: int, schema: str, share: Vectors) -> Parcel:
        assert to not in self.out, "the last parcel is not accepted"
        number = max(self.sent.get(to, -1) + 1, self.life * LIFE)
        self.sent[to] = number
        *vectors, weight = share
        self.out[to] = parcel = Parcel(number, round, schema, tuple(vectors), float(weight[0]))
        return parcel

    def may_have_sent(self, to: NodeId, number: int) -> bool:
        """Return whether this peer can have sent parcel `number`: an earlier incarnation's numbers are unknown."""
        return number <= max(self.sent.get(to, -1), self.life * LIFE - 1)

    def accepted(self, to: NodeId, number: int) -> bool:
        """Drop an accepted parcel; return whether it was open."""
        if to not in self.out or self.out[to].number > number:
            return False
        del self.out[to]
        return True

    def take(self, sender: NodeId, number: int) -> bool:
        """Mark the parcel as accepted; return whether it is new."""
        if number <= self.taken.get(sender, -1):
            return False
        self.taken[sender] = number
        return True

    # --- for a new life of this peer ------------------------------------------------------------------------------

    def saved(self) -> tuple[dict[str, Vector], dict[str, object]]:
        vectors = {f"out/{to}/{k}": one for to, parcel in self.out.items() for k, one in enumerate(parcel.vectors)}
        return vectors, {
            "life": self.life,
            "sent": {str(to): number for to, number in self.sent.items()},
            "taken": {str(sender): number for sender, number in self.taken.items()},
            "out": {str(to): [p.number, p.round, p.weight, len(p.vectors)] for to, p in self.out.items()},
        }

    @classmethod
    def restored(cls, vectors: Mapping[str, Vector], facts: Mapping[str, Any], schema: str, life: int) -> Arcs:
        arcs = cls(max(life, facts["life"] + 1))
        arcs.sent = {int(to): number for to, number in facts["sent"].items()}
        arcs.taken = {int(sender): number for sender, number in facts["taken"].items()}
        arcs.out = {
            int(to): Parcel(number, round, schema, tuple(vectors[f"out/{to}/{k}"] for k in range(int(count))), weight)
            for to, (number, round, weight, count) in facts["out"].items()
        }
        return arcs


def share_of(parcel: Parcel) -> Vectors:
    """Return the mass in the parcel."""
    return *parcel.vectors, weight_of(parcel.weight)


def weight_of(number: float) -> Vector:
    """Return a weight in the algorithms' form: float64 [1]."""
    return frozen(np.array([number]))
