"""Asynchronous gossip: training and pairwise averaging at the same time, without waits for the slowest peer.

    phase      event                                          next phase
    joining    Rostered                                       training
    training   Trained                                        pausing end
    training   Leaving PeerGone Stopping                      end
    pausing    Answer Decline Leaving PeerGone answer offer   training
    pausing    Leaving PeerGone Stopping                      end
    closing    Answer Decline Leaving PeerGone answer offer   leaving finished
    closing    Stopping                                       leaving finished
    closing    drain                                          finished
    leaving    Answer Decline Ack                             finished

AD-PSGD (Lian, Zhang, Zhang and Liu, ICML 2018), repeated at every peer i:

    g  <-  gradient at x_i                      stale: x_i may have changed during its computation
    draw a neighbour j; at both ends at once    x_i, x_j  <-  (x_i + x_j) / 2
    x_i  <-  x_i - eta g

Works with any algorithm that has the model as its only slot.  Difference from the paper: each end applies a difference
instead of the mean, on receipt of the message,

    i  Offer(x_i)  ->  j                 h = (x_i - x_j) / 2;  x_j <- x_j + h;  store h
    i  <-  Answer(h)  j                  x_i <- x_i - h
    i  Settled  ->  j                    drop h

so the sum of all x is kept to rounding, without locks, and without the bipartite graph that the paper needs against
deadlock.

    Busy.  A peer with an offer in flight declines offers: if both of two crossing offers were accepted, the models
    would be swapped.  Of two crossing offers the one with the lower sender id counts.  An offer is made at a seeded
    moment during the next training: at its end all peers of equal speed would be busy.  A declined peer tries another
    neighbour, once.

    Loss.  Without a reply in time the peer sends `Query(number)`.  Each partner has at most one offer with an open
    outcome; exchanges with other partners continue.

    Pace.  Training is one round ahead of exchanging, never two: if training takes no time, the network sets the pace.

    The end.  After its last round a peer makes the due exchanges; its `Leaving` queries the open offer.

A crash loses all changes since the last checkpoint, of training and of exchanges; an open exchange is settled from the
checkpoints of both ends.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.algorithms.gossip.base import MODEL, GossipAlgorithm, State, Step
from fedgossip.algorithms.gossip.running_statistics import given_up, halfway
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Effect, NodeId, Report, RoundDone, Send, SetTimer, Trained
from fedgossip.core.messages import Ack, Answer, Decline, Leaving, Message, Offer, Query
from fedgossip.protocols.gossip.learner import Learner, VectorCheck
from fedgossip.protocols.gossip.lifecycle import FRESH, Lifecycle, RunLimits
from fedgossip.protocols.gossip.pairing import Flight, Pairing, Rule
from fedgossip.protocols.gossip.partner_set import Deadline


@dataclass(frozen=True, slots=True)
class AsyncSettings(RunLimits):
    """Limits of one asynchronous run.  Times in nanoseconds."""

    exchanges: int = 1
    """Number of exchanges that a peer begins per training round; it takes part in about as many begun by others."""
    seed: int = 0
    """Seed of the times of offers."""
    answer_ns: int = 10_000_000_000
    """Maximum wait for an answer before a query, and between two queries."""
    first_answer_ns: int = 1_000_000_000
    """Wait for an answer until enough answer times were measured."""
    least_answer_ns: int = 100_000_000
    """Minimum wait: the wait follows the measured answer times between this and `answer_ns`; equal: it is constant."""


class AsyncGossip(Lifecycle[State]):
    """One peer of an asynchronous run.  `schema`: the layout that its partners must share.

    `resumed`: continue from this checkpoint; open offers are queried.  `incarnation`: number of a restart that may have
    lost earlier state: its offer numbers differ from those of earlier incarnations.
    """

    def __init__(
        self,
        node: NodeId,
        partners: Sequence[NodeId],
        rule: Rule,
        algorithm: GossipAlgorithm[State],
        initial: Vector,
        schema: str,
        settings: AsyncSettings,
        resumed: Checkpoint | None = None,
        incarnation: int = 0,
        parameters: int | None = None,
    ) -> None:
        """`parameters`: number of elements of the model without running statistics; None: all."""
        assert algorithm.slots == (MODEL,), "what is exchanged is the model"
        least_ns = min(settings.least_answer_ns, settings.answer_ns)
        patience = Deadline(settings.answer_ns, least_ns, first_ns=settings.first_answer_ns)
        super().__init__(node, partners, Learner(algorithm, initial, resumed), patience, settings, resumed)
        self.schema, self.layout = schema, VectorCheck(node, schema, initial.dtype, initial.size)
        count = int(str(resumed.facts["count"])) if resumed else 0
        self.parameters = initial.size if parameters is None else parameters
        self.pairing = Pairing(node, rule, settings.seed, settings.exchanges, count)
        self.ledger = Ledger(incarnation)
        self.training_ns = 0  # duration of the last training
        self.clear: set[NodeId] = set()  # departed partners without an open offer
        self.mute = set(partners)  # partners without a message so far, or without an answer to the last offer
        if resumed:
            self.ledger = Ledger.restored(resumed.vectors, resumed.facts, schema, incarnation)

    # --- events ---------------------------------------------------------------------------------------------------

    def rostered(self, schedule: object) -> None:
        self.company.change(schedule.partners(self.node))  # type: ignore[attr-defined]

    def received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        """Handle a message; a refused one keeps a mute partner mute, an accepted one may be the last before the end."""
        mute = self.mute & {sender}
        self.mute -= mute
        try:
            effects = self._handle(sender, message, now_ns)
        except ProtocolError:
            self.mute |= mute
            raise
        self.company.absent.discard(sender)
        return effects

    def _handle(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        match message:
            case Offer() as offer:
                return self._offered(sender, offer)
            case Answer() as answer:
                return self._answered(sender, answer, now_ns)
            case Decline(number):
                self._check_made(sender, number)
                return self._declined(sender, number, now_ns)
            case Query(number):
                return [Send(sender, self.ledger.answer_offer(sender, number, self.round))]
            case Ack(number):
                return self._settled(sender, number)
        raise self.misplaced(sender, message, "an asynchronous run")

    def fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        flight = self.pairing.flight
        match key:
            case ("offer", self.pairing.count) if self.pairing.planned and self._offers:
                return self._offer(now_ns)
            case ("answer", to, number) if flight and (to, number) == (flight.to, flight.number):
                return self._unanswered(flight, now_ns)
            case ("query", int(to), number, int(attempt)) if self.ledger.open.get(to) == number:
                return self._ask(to, attempt + 1)
        return []  # stale timer

    def greet(self, node: NodeId, now_ns: int, *, reborn: bool) -> list[Effect]:  # noqa: ARG002
        self.company.absent.discard(node)
        if reborn:
            self.ledger.reborn(node)
            self.clear.discard(node)
        asks = node in self.ledger.open and not self.pairing.flies_to(node)
        return self._ask(node, 0) if asks else []

    def changed(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.pairing.flight and self.pairing.flight.to not in self.company.linked:
            effects = self._exchange_over(now_ns)  # it may have been accepted: the account stays open
        last = self.phase == "training" and self.round == self.settings.rounds - 1  # as good as done
        if self.phase in ("training", "pausing") and self.company.deserted and not (last or self.settings.endless):
            effects += self.end_with_the_others()
        return effects

    # --- training -------------------------------------------------------------------------------------------------

    def trained(self, event: Trained, now_ns: int) -> list[Effect]:
        self.carried.expect(self.company.partners)
        self.learner.mixed(self.learner.trained(event.update, Step.of(self.round, event.metrics)))
        self.training_ns = now_ns - self.began_ns
        self.round += 1
        effects: list[Effect] = [RoundDone(self.round, self.learner.model, self.learner.staleness), self._checkpoint()]
        ahead = self.pairing.due > 0
        if self.company.partners:
            self.pairing.more()
        if ahead and self.round < self.settings.rounds:
            self.phase = "pausing"
        else:
            effects += self.go_on(now_ns)
        return effects + self._plan()

    def _checkpoint(self) -> Checkpoint:
        vectors, facts = self.ledger.saved()
        facts = {"count": self.pairing.count, **facts, **self.carried.saved()}
        return self.learner.checkpoint(self.round, vectors, facts)

    # --- exchanges begun here -----------------------------------------------------------------------------------------

    @property
    def _offers(self) -> bool:
        return self.phase in ("training", "pausing", "closing") and not self.hurried

    def _plan(self) -> list[Effect]:
        training_ns = self.training_ns if self.phase == "training" else None
        after_ns = self.pairing.moment_ns(training_ns) if self._offers else None
        return [] if after_ns is None else [SetTimer(("offer", self.pairing.count), after_ns, stretched=False)]

    def _offer(self, now_ns: int) -> list[Effect]:
        to = self.pairing.choose([node for node in self.company.list_present() if node not in self.ledger.open])
        if to is None:
            return self._exchange_over(now_ns)
        number = self.ledger.offer(to)
        self.pairing.begin(to, number, now_ns)
        offer = Offer(number, self.round, self.schema, (self.learner.model,))
        return [Send(to, offer), SetTimer(("answer", to, number), self.deadline.now_ns())]

    def _unanswered(self, flight: Flight, now_ns: int) -> list[Effect]:
        self.mute.add(flight.to)
        self.company.absent.add(flight.to)
        report = Report("unanswered", {"peer": flight.to, "offer": flight.number}, self.round)
        return [report, *self._ask(flight.to, 0), *self._exchange_over(now_ns)]

    def _ask(self, to: NodeId, attempt: int) -> list[Effect]:
        """Query the outcome of the open offer, once its partner is linked."""
        if to not in self.company.linked:
            return []
        number = self.ledger.open[to]
        wait = min(self.deadline.now_ns() << min(attempt, 30), self.deadline.longest_ns)
        return [Send(to, Query(number)), SetTimer(("query", to, number, attempt), wait)]

    def _answered(self, sender: NodeId, answer: Answer, now_ns: int) -> list[Effect]:
        self.layout.check(sender, answer)
        self._check_made(sender, answer.number)
        if self.ledger.open.get(sender) != answer.number:
            return [Send(sender, Ack(answer.number))]
        self.layout.check_values(sender, answer)
        self.ledger.close(sender, answer.number)
        (h,) = answer.vectors
        self.learner.corrected((given_up(h, self.parameters),))
        self.carried.mark_mixed(sender)
        effects: list[Effect] = [Send(sender, Ack(answer.number)), Report("exchanged", sender, self.round)]
        if self.pairing.flies_to(sender):
            self.deadline.record(self.pairing.answered(sender, now_ns))
            effects += self._exchange_over(now_ns)
        return effects + self.end_if_settled()

    def _declined(self, sender: NodeId, number: int, now_ns: int) -> list[Effect]:
        if not self.ledger.close(sender, number):
            return []
        effects: list[Effect] = [Report("declined", sender, self.round)]
        if self.pairing.flies_to(sender):
            again = self.pairing.declined(sender, now_ns)
            effects += self._plan() if again else self._exchange_over(now_ns)
        return effects + self.end_if_settled()

    def _exchange_over(self, now_ns: int) -> list[Effect]:
        self.pairing.over()
        ready = self.phase == "pausing" and self.pairing.due <= self.pairing.exchanges
        effects = self.go_on(now_ns) if ready else []
        return effects + self._plan() + self.end_if_settled()

    # --- exchanges begun by partners ----------------------------------------------------------------------------------

    def _offered(self, sender: NodeId, offer: Offer) -> list[Effect]:
        self.layout.check(sender, offer)
        if before := self.ledger.repeated(sender, offer.number, self.round):
            return [Send(sender, before)]
        if self._declines(sender):
            return [Send(sender, self.ledger.decline(sender, offer.number, self.round))]
        self.layout.check_values(sender, offer)
        (theirs,) = offer.vectors
        h = halfway(theirs, self.learner.model, self.parameters)
        self.learner.corrected((h,))
        self.carried.mark_mixed(sender)
        answer = Answer(offer.number, self.round, self.schema, (h,))
        self.ledger.answer(sender, answer)
        return [Send(sender, answer)]

    def _declines(self, sender: NodeId) -> bool:
        if self.phase == "leaving":
            return True
        if sender in self.ledger.open:  # settle the open offer first; of two crossing offers the lower id's counts
            return not (self.pairing.flies_to(sender) and sender < self.node)
        return self.pairing.flight is not None

    def _check_made(self, sender: NodeId, number: int) -> None:
        if not self.ledger.knows(sender, number):
            raise ProtocolError(
                f"node {self.node}: node {sender} answers offer {number}, which was never made", peer=sender
            )

    def _settled(self, sender: NodeId, number: int) -> list[Effect]:
        if number > self.ledger.seen.get(sender, number):
            raise ProtocolError(
                f"node {self.node}: node {sender} settles its offer {number}, which was never answered", peer=sender
            )
        self.ledger.settled(sender, number)
        return self.end_if_settled()

    # --- the end --------------------------------------------------------------------------------------------------

    def handle_leaving(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:
        self.mute.discard(sender)
        self.company.absent.discard(sender)
        effects: list[Effect] = []
        if leaving.missing < 0:
            self.clear.add(sender)
            self.ledger.answers.pop(sender, None)
        elif sender not in self.clear:  # otherwise an overtaken, older goodbye
            effects.append(Send(sender, self.ledger.answer_offer(sender, leaving.missing, self.round)))
        number = self.ledger.open.get(sender)
        if leaving.done and number is not None:  # not answered, and never will be
            effects += self._declined(sender, number, now_ns)
        return effects

    def close(self) -> list[Effect]:
        return []  # the goodbye queries open offers

    def may_leave(self) -> bool:
        return not self.pairing.due or self.hurried or self.company.deserted

    def leaving(self, to: NodeId) -> Leaving:
        """Return the `Leaving`, after which no offers are accepted; `missing`: this peer's open offer; `done`: all
        settled.
        """
        return Leaving(self.round, missing=self.ledger.open.get(to, -1), done=to not in self.ledger.answers)

    def open_with(self, node: NodeId) -> bool:
        return node in self.ledger.open or node in self.ledger.answers

    def done_with(self, node: NodeId) -> bool:
        return not self.open_with(node) and (node in self.clear or node not in self.company.partners)

    def unsettled(self) -> list[Effect]:
        open_ = [{"peer": node, "offer": number} for node, number in sorted(self.ledger.open.items())]
        open_ += [{"peer": node, "answer": given.number} for node, given in sorted(self.ledger.answers.items())]
        return [Report("unsettled", value, self.round) for value in open_]

    def expected(self) -> Collection[NodeId]:
        """Return the mute partners only: partners are drawn, so a connected one may never be drawn."""
        return self.mute & set(self.company.partners)


def resume_point(algorithm: GossipAlgorithm[Any], round: int, model: Vector) -> Checkpoint:
    """Return the checkpoint of a peer that adopts another peer's `model` after `round` rounds."""
    vectors, facts = Ledger().saved()
    return Learner(algorithm, model).checkpoint(round, vectors, {"count": 0, **facts, **FRESH})


# The accounts of pairwise exchanges: each offer is answered once or never, despite loss, repetition and reordering.
#
#     at its sender      open -----------> answered or declined: closed          at most one per partner
#                               | no reply in time: Query, repeated
#     at its receiver    unseen ---> answered: the answer is kept until Settled, or a higher number is received
#                          |  \---> declined, permanently
#                          \ Query: declined, permanently: the offer itself may still be in transit
#
# A partner has at most one open offer, so the receiver stores at most one answer per partner; the sender stores a
# number.


LIFE = 1 << 20
"""Added to a checkpoint's offer numbers at a restart: the last incarnation may have used more numbers than it stored.
"""


class Ledger:
    """One peer's accounts with all partners.  `life`: number of a restart that may have lost earlier state."""

    def __init__(self, life: int = 0) -> None:
        self.life = life
        self.last: dict[NodeId, int] = {}
        """The newest number of this peer's offers to each partner."""
        self.open: dict[NodeId, int] = {}
        """This peer's offers with an unknown outcome."""
        self.seen: dict[NodeId, int] = {}
        """The newest answered or declined number of each partner's offers."""
        self.answers: dict[NodeId, Answer] = {}
        """Sent, unsettled answers."""

    # --- this peer's offers ---------------------------------------------------------------------------------------

    def offer(self, to: NodeId) -> int:
        """Open an account; return its number."""
        assert to not in self.open, "the last offer is not settled"
        self.open[to] = self.last[to] = max(self.last.get(to, -1) + 1, self.life * LIFE)
        return self.open[to]

    def knows(self, to: NodeId, number: int) -> bool:
        """Return whether this offer was ever made."""
        return 0 <= number <= self.last.get(to, -1)

    def close(self, to: NodeId, number: int) -> bool:
        """Close the account; return False if it is not open."""
        if self.open.get(to) != number:
            return False
        del self.open[to]
        return True

    # --- the partners' offers -------------------------------------------------------------------------------------

    def repeated(self, sender: NodeId, number: int, round: int) -> Answer | Decline | None:
        """Return the previous reply to this offer; None for a new one."""
        if number > self.seen.get(sender, -1):
            return None
        return self.answer_offer(sender, number, round)

    def answer_offer(self, sender: NodeId, number: int, round: int) -> Answer | Decline:
        """Return the outcome of an offer; an unseen one is declined from now on."""
        given = self.answers.get(sender)
        if given and given.number == number:
            return given
        return self.decline(sender, number, round)

    def decline(self, sender: NodeId, number: int, round: int) -> Decline:
        if number > self.seen.get(sender, -1):
            self.answers.pop(sender, None)
            self.seen[sender] = number
        return Decline(number, round)

    def answer(self, sender: NodeId, answer: Answer) -> None:
        self.answers[sender] = answer
        self.seen[sender] = answer.number

    def settled(self, sender: NodeId, number: int) -> None:
        given = self.answers.get(sender)
        if given and given.number <= number:
            del self.answers[sender]

    def reborn(self, partner: NodeId) -> None:
        """Reset a restarted partner: its numbers may begin again; an answer that it may query is kept."""
        self.seen.pop(partner, None)

    # --- for a new life of this peer ------------------------------------------------------------------------------

    def saved(self) -> tuple[dict[str, Vector], dict[str, object]]:
        vectors = {f"answer/{node}": answer.vectors[0] for node, answer in self.answers.items()}
        facts: dict[str, object] = {
            name: {str(node): number for node, number in kept.items()}
            for name, kept in (("last", self.last), ("open", self.open), ("seen", self.seen))
        }
        facts["answers"] = {str(node): [answer.number, answer.round] for node, answer in self.answers.items()}
        return vectors, facts

    @classmethod
    def restored(cls, vectors: Mapping[str, Vector], facts: Mapping[str, Any], schema: str, life: int = 0) -> Ledger:
        ledger = cls(life)
        ledger.last = {int(node): number + LIFE for node, number in facts["last"].items()}
        ledger.open = {int(node): number for node, number in facts["open"].items()}
        ledger.seen = {int(node): number for node, number in facts["seen"].items()}
        ledger.answers = {
            int(node): Answer(number, round, schema, (vectors[f"answer/{node}"],))
            for node, (number, round) in facts["answers"].items()
        }
        return ledger
