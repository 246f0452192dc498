"""Asynchronous gossip: training and pairwise averaging at the same time; nobody waits for the slowest.

AD-PSGD (Lian, Zhang, Zhang and Liu, ICML 2018), at every peer i, again and again:

    g  <-  gradient at x_i                      begun before, so that x_i may have changed since: stale
    draw a neighbour j; at both at once         x_i, x_j  <-  (x_i + x_j) / 2
    x_i  <-  x_i - eta g

Any algorithm will do whose only slot is its model (`algorithms/`): what it does between training and mixing, it does
with itself alone, and an exchange is a correction to it.

Where we differ: the two ends are changed by a difference and not by a mean, each when the message is there,

    i  Offer(x_i)  ->  j                 h = (x_i - x_j) / 2;  x_j <- x_j + h;  keep h
    i  <-  Answer(h)  j                  x_i <- x_i - h
    i  Settled  ->  j                    forget h

What one gains the other gives, whatever either has done in between: the sum of all x is kept to rounding, without
locks, without the bipartite graph that the paper needs against deadlock, for any graph and any n.

    Busy.  While its offer is on the way a peer declines offers: if two that cross were both taken, the two models would
    be swapped and not averaged.  Of two that cross the one with the lower id counts, for its sender is known to decline
    the other.  Offers are made at a seeded moment while the next round trains; were they made when training ends, peers
    of equal speed would all be busy at once, for ever.  Who is declined tries another neighbour, once.

    Loss.  No word in time: the peer is busy no more and asks, `Query(number)`.  There is one offer per partner whose
    fate is open (`exchanges`), and meanwhile there are the others to exchange with.

    Pace.  Training is one round ahead of exchanging, never two: where training takes no time the network sets the pace.

    The end.  A peer that has done its rounds offers and takes nothing more, says so, and stays until its accounts are
    settled and its partners have done theirs, at most `drain_ns`.  Who is left behind alone ends its run early.

A peer that dies takes along what came since its last checkpoint, of training and of exchanges alike: to the mean that
is as if it had not been.  An exchange that is open then is settled by what both ends have written down.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from fedgossip import seeds
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
from fedgossip.messages import Ack, Answer, Decline, Leaving, Message, Offer, Query
from fedgossip.protocols.carried import FRESH, Carried
from fedgossip.protocols.deadlines import Deadline
from fedgossip.protocols.exchanges import Ledger
from fedgossip.protocols.failures import nobody_came
from fedgossip.protocols.learner import Learner
from fedgossip.protocols.partner_set import Company
from fedgossip.protocols.peer_sampling import Rule
from fedgossip.protocols.vector_check import VectorCheck
from fedgossip.vectors import Vector, negated, scaled_difference


@dataclass(frozen=True, slots=True)
class AsyncSettings:
    """Limits of one asynchronous run.  Times in nanoseconds."""

    rounds: int
    exchanges: int = 1
    """Exchanges that a peer begins per round of training; it takes part in about as many of others."""
    seed: int = 0
    """Of the moments at which offers are made."""
    answer_ns: int = 10_000_000_000
    """The longest wait for an answer before it is asked for, and the longest between two such questions."""
    first_answer_ns: int = 1_000_000_000
    """That wait until some answers were seen."""
    least_answer_ns: int = 100_000_000
    """The wait follows the answers that were seen, within these two; equal: it is constant."""
    start_ns: int = 300_000_000_000
    """How long to wait for all links at the start; people start peers on several machines by hand."""
    drain_ns: int = 30_000_000_000
    """How long to stay after the last round for accounts to settle, and for partners that are not done."""
    hurry_ns: int = 1_000_000_000
    """How long to stay for accounts to settle when the user stops the run."""
    again_ns: int = 500_000_000
    """After so long a goodbye is said again."""


ATTEMPTS = 2
"""Offers in one exchange: who is declined once tries another neighbour."""

SPREAD = 4
"""Offers are spread over so many times of an answer at least: a peer is then busy for a third of its time at most."""

LEAST_SPREAD_NS = 1_000_000

MEMORY = 4
"""The usual time of an answer is a running mean over about so many."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The offer that is on the way."""

    to: NodeId
    number: int
    sent_ns: int


class AsyncGossip(Generic[State]):
    """One peer of an asynchronous run.  `schema` is the layout that its partners must share.

    `resumed`: go on from there, in a new life; offers that were open then are asked for.  `incarnation` numbers this
    life where it may know nothing of the ones before: its offers are taken for none of theirs.
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
    ) -> None:
        self.node, self.rule, self.settings = node, rule, settings
        self.schema, self.layout = schema, VectorCheck(node, schema, initial)
        self.company = Company(node, partners)
        assert algorithm.slots == (MODEL,), "what is exchanged is the model"
        self.learner = Learner(algorithm, initial, resumed)
        self.ledger = Ledger(incarnation)
        self.round = 0
        self.count = 0  # of offers, for the seeded draws
        self.phase = "new"
        self.flight: Flight | None = None
        self.planned = False  # whether the moment of the next offer is set
        self.due = 0  # exchanges to be made
        self.tried: set[NodeId] = set()  # in this exchange
        self.changes = self.trained_from = 0  # how often x has changed: in all, and before the training that is on
        self.began_ns = self.training_ns = 0
        self.usual_ns = 0  # of an answer, from anybody
        self.times_ns: dict[NodeId, int] = {}
        least_ns = min(settings.least_answer_ns, settings.answer_ns)
        self.patience = Deadline(settings.answer_ns, least_ns, first_ns=settings.first_answer_ns)
        self.clear: set[NodeId] = set()  # have left, and have no offer of theirs open
        self.hurried = False
        self.carried = Carried(resumed)
        self.mute = set(partners)  # have said nothing, or not answered what was said last
        self.eager = resumed is not None  # the others are on their way: begin with whom is there
        if resumed:
            self.round, self.count = resumed.round, int(str(resumed.facts["count"]))
            self.ledger = Ledger.restored(resumed.vectors, resumed.facts, schema, incarnation)

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
                self.company.change(schedule.partners(self.node))  # type: ignore[attr-defined]
                return self._begin_if_joined(now_ns)

    def _received(self, event: Received, now_ns: int) -> list[Effect]:
        """What is refused of a mute one leaves it mute; what is accepted may be the last word, after which is told."""
        mute = self.mute & {event.sender}
        self.mute -= mute
        try:
            return self._heard(event.sender, event.message, now_ns)
        except ProtocolError:
            self.mute |= mute
            raise

    def _heard(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        match message:
            case Offer() as offer:
                return self._offered(sender, offer)
            case Answer() as answer:
                return self._answered(sender, answer, now_ns)
            case Decline(number):
                self._check_made(sender, number)
                return self._declined(sender, number, now_ns)
            case Query(number):
                return [Send(sender, self.ledger.asked(sender, number, self.round))]
            case Ack(number):
                return self._settled(sender, number)
            case Leaving() as leaving:
                return self._left(sender, leaving, now_ns)
            case _:
                raise ProtocolError(
                    f"node {self.node}: a message of kind {type(message).__name__.lower()!r} from node {sender}"
                    " in an asynchronous run",
                    "Were the peers started from the same experiment file?",
                    peer=sender,
                )

    def _fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match key:
            case ("offer", count) if self.planned and count == self.count:
                return self._offer(now_ns)
            case ("answer", to, number) if self.flight and (to, number) == (self.flight.to, self.flight.number):
                return self._unanswered(self.flight, now_ns)
            case ("query", int(to), number, int(attempt)) if self.ledger.open.get(to) == number:
                return self._ask(to, attempt + 1)
            case ("start",) if self.phase == "joining":
                return self._start_with_those_here(now_ns)
            case ("again",) if self.phase == "leaving":
                return [*self._goodbye(), SetTimer(("again",), self.settings.again_ns)]
            case ("drain",) if self.phase == "leaving":
                return self._finish()
            case _:  # it no longer matters
                return []

    # --- links ----------------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        if self.company.joined(node, incarnation):
            self.ledger.reborn(node)
            self.clear.discard(node)
        effects: list[Effect] = []
        if self.phase not in ("new", "joining"):
            effects.append(Report("joined", node, self.round))
        if node in self.ledger.open and not self._flying(node):
            effects += self._ask(node, 0)
        if self.phase == "leaving":
            effects.append(Send(node, self._leaving(node)))
        return effects + self._begin_if_joined(now_ns)

    def _gone(self, node: NodeId, now_ns: int) -> list[Effect]:
        if node not in self.company.linked:
            return []
        self.company.linked.discard(node)
        effects: list[Effect] = []
        if node not in self.company.left:
            effects.append(Report("gone", node, self.round))
        if self._flying(node):  # it may have been taken: the account stays open
            self.flight = None
            effects += self._exchange_over(now_ns)
        return effects + self._stop_if_deserted() + self._finish_if_settled()

    def _begin_if_joined(self, now_ns: int) -> list[Effect]:
        if self.phase != "joining":
            return []
        company = self.company
        if company.partners and set(company.partners) <= company.left:
            return self._leave(self.settings.drain_ns)
        ready = not company.missing() or (self.eager and bool(company.here()))
        return self._train(now_ns) if ready else []

    def _start_with_those_here(self, now_ns: int) -> list[Effect]:
        missing = self.company.missing()
        if not self.company.here():  # to learn alone would be a surprise, not gossip
            if self.eager:  # they have done theirs
                return [Report("stopped_with_the_others", {"rounds": self.round}, self.round), *self._finish()]
            return [Report("nobody_came", missing, self.round), *self._finish(nobody_came(missing))]
        return [Report("started_without", missing, self.round), *self._train(now_ns)]

    # --- training -------------------------------------------------------------------------------------------------

    def _train(self, now_ns: int) -> list[Effect]:
        if self.round >= self.settings.rounds:
            self.phase = "closing"
            return self._leave(self.settings.drain_ns) if not self.due else []
        self.phase, self.began_ns, self.trained_from = "training", now_ns, self.changes
        self.carried.due(self.company.partners)
        return [Train(self.round, self.learner.model)]

    def _trained(self, event: Trained, now_ns: int) -> list[Effect]:
        staleness = self.changes - self.trained_from
        self.learner.mixed(self.learner.trained(event.update, Step.of(self.round, event.metrics)))
        self.training_ns = now_ns - self.began_ns
        self.round += 1
        effects: list[Effect] = [RoundDone(self.round, self.learner.model, staleness), self._checkpoint()]
        ahead = self.due > 0
        self.due += self.settings.exchanges if self.company.partners else 0
        if ahead and self.round < self.settings.rounds:
            self.phase = "pausing"
        else:
            effects += self._train(now_ns)
        return effects + self._plan()

    def _change(self, difference: Vector) -> None:
        self.learner.corrected((difference,))
        self.changes += 1

    def _checkpoint(self) -> Checkpoint:
        vectors, facts = self.ledger.saved()
        return self.learner.checkpoint(self.round, vectors, {"count": self.count, **facts, **self.carried.saved()})

    # --- exchanges that we begin ----------------------------------------------------------------------------------

    def _plan(self) -> list[Effect]:
        """Set the moment of the next offer, if one is to be made."""
        if not self.due or self.flight or self.planned:
            return []
        self.planned = True
        self.count += 1
        share = seeds.integer(self.settings.seed, "moment", self.node, self.count) / 2**63
        return [SetTimer(("offer", self.count), int(share * self._spread_ns()))]

    def _spread_ns(self) -> int:
        least = max(SPREAD * self.usual_ns, LEAST_SPREAD_NS)
        if self.phase != "training":
            return least
        return max(least, (self.training_ns - self.usual_ns) // self.settings.exchanges)

    def _offer(self, now_ns: int) -> list[Effect]:
        self.planned = False
        there = [node for node in self.company.here() if node not in self.ledger.open]
        if not there:
            return self._exchange_over(now_ns)
        untried = [node for node in there if node not in self.tried]
        to = self.rule.choose(self.count, untried or there, self.times_ns)
        number = self.ledger.offer(to)
        self.flight = Flight(to, number, now_ns)
        offer = Offer(number, self.round, self.schema, (self.learner.model,))
        return [Send(to, offer), SetTimer(("answer", to, number), self.patience.now_ns())]

    def _unanswered(self, flight: Flight, now_ns: int) -> list[Effect]:
        self.mute.add(flight.to)
        report = Report("unanswered", {"peer": flight.to, "offer": flight.number}, self.round)
        return [report, *self._ask(flight.to, 0), *self._exchange_over(now_ns)]

    def _ask(self, to: NodeId, attempt: int) -> list[Effect]:
        """Ask what became of the open offer; nobody who is gone: when it is back."""
        if to not in self.company.linked:
            return []
        number = self.ledger.open[to]
        wait = min(self.patience.now_ns() << min(attempt, 30), self.settings.answer_ns)
        return [Send(to, Query(number)), SetTimer(("query", to, number, attempt), wait)]

    def _answered(self, sender: NodeId, answer: Answer, now_ns: int) -> list[Effect]:
        self.layout.check(sender, answer)
        self._check_made(sender, answer.number)
        if self.ledger.open.get(sender) != answer.number:
            return [Send(sender, Ack(answer.number))]
        self.layout.check_values(sender, answer)
        self.ledger.close(sender, answer.number)
        (h,) = answer.vectors
        self._change(negated(h))
        self.carried.came(sender)
        effects: list[Effect] = [Send(sender, Ack(answer.number)), Report("exchanged", sender, self.round)]
        if self.flight and self._flying(sender):
            taken = now_ns - self.flight.sent_ns
            self.patience.saw(taken)
            self.times_ns[sender] = _running(self.times_ns.get(sender, taken), taken)
            self._heard_after(taken)
            effects += self._exchange_over(now_ns)
        return effects + self._finish_if_settled()

    def _declined(self, sender: NodeId, number: int, now_ns: int) -> list[Effect]:
        if not self.ledger.close(sender, number):
            return []
        effects: list[Effect] = [Report("declined", sender, self.round)]
        if self.flight and self._flying(sender):
            self._heard_after(now_ns - self.flight.sent_ns)
            self.tried.add(sender)
            self.flight = None
            effects += self._plan() if len(self.tried) < ATTEMPTS else self._exchange_over(now_ns)
        return effects + self._finish_if_settled()

    def _flying(self, to: NodeId) -> bool:
        return self.flight is not None and self.flight.to == to

    def _heard_after(self, taken_ns: int) -> None:
        self.usual_ns = _running(self.usual_ns or taken_ns, taken_ns)

    def _exchange_over(self, now_ns: int) -> list[Effect]:
        """One exchange less is due: it was made, or cannot be."""
        self.flight = None
        self.tried.clear()
        self.due = max(0, self.due - 1)
        effects: list[Effect] = []
        allowed = {"pausing": self.settings.exchanges, "closing": 0}
        if self.due <= allowed.get(self.phase, -1):
            effects = self._train(now_ns)
        return effects + self._plan()

    # --- exchanges that others begin ------------------------------------------------------------------------------

    def _offered(self, sender: NodeId, offer: Offer) -> list[Effect]:
        self.layout.check(sender, offer)
        if before := self.ledger.repeated(sender, offer.number, self.round):
            return [Send(sender, before)]
        if self._declines(sender):
            return [Send(sender, self.ledger.decline(sender, offer.number, self.round))]
        self.layout.check_values(sender, offer)
        (theirs,) = offer.vectors
        h = scaled_difference(0.5, theirs, self.learner.model)
        self._change(h)
        self.carried.came(sender)
        answer = Answer(offer.number, self.round, self.schema, (h,))
        self.ledger.answer(sender, answer)
        return [Send(sender, answer)]

    def _declines(self, sender: NodeId) -> bool:
        if self.phase == "leaving":
            return True
        if sender in self.ledger.open:  # first what is between us; but of two offers that cross the lower id's counts
            return not (self._flying(sender) and sender < self.node)
        return self.flight is not None

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
        return self._finish_if_settled()

    # --- the end --------------------------------------------------------------------------------------------------

    def _left(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:
        self.company.left.add(sender)
        effects: list[Effect] = []
        if leaving.missing < 0:
            self.clear.add(sender)
            self.ledger.answers.pop(sender, None)
        elif sender not in self.clear:  # otherwise it is an old one that was overtaken
            effects.append(Send(sender, self.ledger.asked(sender, leaving.missing, self.round)))
        number = self.ledger.open.get(sender)
        if leaving.done and number is not None:  # not answered, and never will be
            effects += self._declined(sender, number, now_ns)
        effects += self._begin_if_joined(now_ns)
        return effects + self._stop_if_deserted() + self._finish_if_settled()

    def _stop_if_deserted(self) -> list[Effect]:
        if self.phase not in ("training", "pausing", "closing") or not self.company.deserted:
            return []
        if self.phase == "training" and self.round == self.settings.rounds - 1:
            return []  # it is as good as done
        effects: list[Effect] = []
        if self.round < self.settings.rounds:
            effects.append(Report("stopped_with_the_others", {"rounds": self.round}, self.round))
        return effects + self._leave(self.settings.drain_ns)

    def _hurry(self) -> list[Effect]:
        if self.hurried:
            return []
        self.hurried = True
        return self._leave(min(self.settings.hurry_ns, self.settings.drain_ns))

    def _leave(self, stay_ns: int) -> list[Effect]:
        self.phase = "leaving"
        self.planned, self.due = False, 0
        effects: list[Effect] = []
        if self.flight:
            to, self.flight = self.flight.to, None
            effects += self._ask(to, 0)
        timers = [SetTimer(("drain",), stay_ns), SetTimer(("again",), self.settings.again_ns)]
        return [*effects, *self._goodbye(), *timers, *self._finish_if_settled()]

    def _goodbye(self) -> list[Effect]:
        return [Send(to, self._leaving(to)) for to in self.company.partners if to in self.company.linked]

    def _leaving(self, to: NodeId) -> Leaving:
        """I take no more offers; `missing`: my offer that is open; `done`: all that I answered is settled."""
        return Leaving(self.round, missing=self.ledger.open.get(to, -1), done=to not in self.ledger.answers)

    def _finish_if_settled(self) -> list[Effect]:
        if self.phase != "leaving" or any(self._must_wait_for(node) for node in self.company.linked):
            return []
        return [*self._goodbye(), *self._finish()]

    def _must_wait_for(self, node: NodeId) -> bool:
        unsettled = node in self.ledger.open or node in self.ledger.answers
        return unsettled or not (self.hurried or node in self.clear or node not in self.company.partners)

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        unsettled = [{"peer": node, "offer": number} for node, number in sorted(self.ledger.open.items())]
        unsettled += [{"peer": node, "answer": given.number} for node, given in sorted(self.ledger.answers.items())]
        lacking = [] if self.hurried else self._lacking()
        reports = [Report("unsettled", value, self.round) for value in unsettled]
        return [*reports, *lacking, Finish(self.learner.model, failure)]

    def _lacking(self) -> list[Report]:
        """Whom a peer meets is drawn, and may never be one who is there: only with a mute one is it a fault."""
        return self.carried.told(self.round, self.mute & set(self.company.partners))


def _running(before: int, now: int) -> int:
    return before + (now - before) // MEMORY


def resume_point(algorithm: GossipAlgorithm[Any], round: int, model: Vector) -> Checkpoint:
    """Return from where a peer goes on that has `model` after `round` rounds: what another has learned."""
    vectors, facts = Ledger().saved()
    return Learner(algorithm, model).checkpoint(round, vectors, {"count": 0, **facts, **FRESH})
