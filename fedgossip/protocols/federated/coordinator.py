"""The coordinator of a federated run: it invites a cohort, sums the answers, and takes the server's step.

    gathering --enough clients--> inviting, a phase of an exchange after the other --result--> inviting the next ...
        ^---------- too few are left ----------'               after the last round --> leaving --all know--> finished

A round is an `Exchange`, in the clear (`aggregation_round`) or a secure sum (`secure_round`).  At a phase's deadline it
continues with the present answers, or is abandoned below the quorum.  An abandoned round counts as a round, has no
effect and is not repeated, because its updates must not be summed with other clients'.  A returning client is invited
to the open round if it belongs to the cohort; an answer for a past round has no effect.

With a patience an evaluated model is measured before the next round begins.

A durable Checkpoint precedes every effect that reports a round as done; a secure round open at a stop is dropped, as no
client masks one input twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Generic

from fedgossip.algorithms.federated.adapter_distance import AdapterDistance
from fedgossip.algorithms.federated.base import (
    Aggregate,
    Federated,
    ServerRule,
    State,
    failures_of,
    is_over,
    numbers_of,
    restored,
    saved,
)
from fedgossip.algorithms.federated.coded import UploadCodec
from fedgossip.algorithms.sampling import Draw, ReportedLoss, Sampling, SamplingByLosses
from fedgossip.base.errors import BudgetError, ProtocolError
from fedgossip.base.limits import MOST
from fedgossip.base.scores import ACCURACY, BestSoFar, Score
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
    Aggregated,
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    MeasureModel,
    ModelMeasured,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    RoundDone,
    Send,
    SetTimer,
    Started,
    Stopping,
)
from fedgossip.core.messages import Final, Invite, Leaving, Refusal, Subtotal
from fedgossip.core.records import ADAPTER_DISTANCE, FOLLOWED_MOST
from fedgossip.core.task import Segment
from fedgossip.protocols.federated.aggregation_round import (
    EXHAUSTED,
    NOT_FINITE,
    Abandoned,
    Answer,
    Exchange,
    Gathered,
    Given,
    PlainRound,
    RoundBudget,
    Summation,
    budget_reached,
    log_spent,
    stepped,
)
from fedgossip.protocols.gossip.failures import too_few, used_up
from fedgossip.protocols.gossip.partner_set import ROLL_NS, Deadline, PartnerSet
from fedgossip.secure.session import round_of

# The facts of a coordinator's checkpoints; its next incarnation begins from them.


BEST = "best"
"""Key in the facts of a checkpoint: (best round, its score, number of evaluations since without a better one)."""

SEEN = "seen"
"""Key in the facts of a checkpoint: (loss, examples, round, seconds) of each client's last contribution."""

SERVER = "server"
"""Key in the facts of a checkpoint: the numbers of the server's state."""
STOPPED = "stopped"
"""Key in the facts of a checkpoint: the round open when the coordinator was stopped, until its cohort is drawn again.
"""


def checkpoint_of(
    round: int, state: object, counted: Mapping[NodeId, int], summing: Mapping[str, object], best: BestSoFar
) -> Checkpoint:
    """Return the checkpoint after `round`; `counted`: the last round that counted each client."""
    facts: dict[str, object] = {"counted": {str(node): last for node, last in counted.items()}, **summing}
    if best.patience:
        facts[BEST] = [best.round, best.value, best.since]
    if numbers := numbers_of(state):
        facts[SERVER] = numbers
    return Checkpoint(round, saved(state), facts, durable=True)


def state_in(server: ServerRule[State], checkpoint: Checkpoint) -> State:
    """Return the state of the server rule in a checkpoint."""
    numbers: Any = checkpoint.facts.get(SERVER, {})
    return restored(server, checkpoint.vectors, numbers)


def stopped_in(checkpoint: Checkpoint | None) -> int | None:
    """Return the round that needs another draw of its cohort."""
    stopped = checkpoint.facts.get(STOPPED) if checkpoint else None
    return stopped if isinstance(stopped, int) else None


def counted_in(checkpoint: Checkpoint | None) -> dict[NodeId, int]:
    """Return the last round that counted each client."""
    facts: Any = checkpoint.facts.get("counted", {}) if checkpoint else {}
    return {int(node): int(round) for node, round in facts.items()}


def read_seen(checkpoint: Checkpoint | None) -> dict[NodeId, ReportedLoss]:
    """Return the last report of each client."""
    facts: Any = checkpoint.facts.get(SEEN, {}) if checkpoint else {}
    return {
        int(node): ReportedLoss(float(loss), int(m), int(last), float(s)) for node, (loss, m, last, s) in facts.items()
    }


def best_in(checkpoint: Checkpoint | None, settings: CoordinatorSettings) -> BestSoFar:
    """Return the comparison of rounds at the checkpoint."""
    best = BestSoFar(settings.score, settings.patience)
    known: Any = checkpoint.facts.get(BEST) if checkpoint else None
    if known:
        best.round, best.value, best.since = int(known[0]), float(known[1]), int(known[2])
    return best


# The limits of a federated run at its coordinator.

APART_MOST = 0.05
"""Minimum relative distance of separately averaged adapters that a round reports."""

PHASES = 6
"""Number of phases of a secure round, each with a deadline."""

DEADLINE_FACTOR = 8
"""Maximum duration of a phase, in durations of the usual round."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Limits of one run.  Times in nanoseconds."""

    rounds: int
    min_clients: int = 1
    """Minimum number of contributions of a round, and of present clients before it begins."""
    deadline_ns: int = 300_000_000_000
    """Maximum wait in one phase of a round; above the slowest client's training time and transfer."""
    least_deadline_ns: int = 5_000_000_000
    """Minimum deadline: it follows the measured rounds between this and `deadline_ns`; equal: it is constant."""
    start_ns: int = 300_000_000_000
    """Maximum wait for all clients at the start, and for enough of them whenever too few are left."""
    return_ns: int = 10_000_000_000
    """Maximum wait of a restarted coordinator for all clients, before it continues with the present ones."""
    drain_ns: int = 30_000_000_000
    """Maximum stay after the last round until every client has the model."""
    again_ns: int = 2_000_000_000
    """Wait before an unanswered last model is sent again."""
    score: Score = ACCURACY
    """The clients' score of the model sent to them."""

    patience: int = 0
    """Number of successive evaluations without a better score that end the run; 0: never."""
    every: int = 0
    """Number of rounds between two evaluations for the patience; 0: evaluations by clients."""

    below: int = 0
    """Number of tiers of coordinators below: each phase of this one waits for a whole round of theirs."""

    def deadlines(self) -> Deadline:
        """Return the deadline of a phase.  With few measured rounds it is the longest wait of all tiers below."""
        times = PHASES**self.below
        longest_ns = times * self.deadline_ns + (self.start_ns if self.below else 0)
        return Deadline(longest_ns, min(longest_ns, times * self.least_deadline_ns), DEADLINE_FACTOR * times)

    def judges(self, round: int) -> bool:
        """Return whether the model after `round` must be measured before the next round begins."""
        return self.patience > 0 and self.every > 0 and round % self.every == 0 and 0 < round < self.rounds

    informs_uninvited: bool = True
    """Whether clients that were never invited receive the last model too; a simulated population does not."""

    @property
    def endless(self) -> bool:
        """Whether it continues until too few clients are left: their loops end it."""
        return self.rounds >= MOST


class Coordinator(Generic[State]):
    """`clients` are all that may take part; `resumed`: continue after the round of this checkpoint.

    `summing`: by a secure sum; else in the clear, by `coding` if given.  The mean of `adapters`, pairs of A and B, is
    compared with the mean of their products.
    """

    def __init__(
        self,
        node: NodeId,
        clients: Sequence[NodeId],
        federated: Federated[State],
        sampling: Sampling,
        initial: Vector,
        schema: str,
        settings: CoordinatorSettings,
        resumed: Checkpoint | None = None,
        summing: Summation | None = None,
        purse: RoundBudget | None = None,
        coding: UploadCodec | None = None,
        adapters: Sequence[tuple[Segment, Segment]] = (),
    ) -> None:
        self.node, self.federated, self.sampling, self.settings = node, federated, sampling, settings
        self.summing, self.purse, self.coding, self.adapters = summing, purse, coding, adapters
        self.schema, self.kind, self.length = schema, initial.dtype, initial.size
        self.state = state_in(federated.server, resumed) if resumed else federated.server.start(initial)
        self.round = resumed.round if resumed else 0
        self.counted: dict[NodeId, int] = counted_in(resumed)
        """The last round that counted each client's contribution."""
        self.seen: dict[NodeId, ReportedLoss] = read_seen(resumed)
        """The clients' last reports, if cohorts are drawn by them."""
        self.best = best_in(resumed, settings)
        self.judged = 0
        """The last round with a model measured before the next round began."""
        self._need = max(settings.min_clients, federated.aggregation.least)
        self.interrupted = summing is not None and summing.life > 0
        """Whether an earlier incarnation may have begun the first round."""
        self.stopped = stopped_in(resumed)
        """The round that an earlier incarnation left open, until its cohort is drawn again."""
        self.company = PartnerSet(node, clients)
        self.phase, self.summed = "new", 0  # number of elements
        self.exchange: Exchange | None = None
        self.invited: set[NodeId] = set()  # where only these receive the last model
        self.drawn: set[NodeId] = set()  # into a cohort with no more clients than the round wanted
        self.done: set[NodeId] = set()  # clients with the final model
        self.uninformed: set[NodeId] = set()  # at the end: present clients without it
        self.exhausted: set[NodeId] = set()  # clients without budget, which leave
        self.failure: Failure | None = None  # reason of an early end
        self.short = False
        """Whether the last round was abandoned because clients' budgets were exhausted."""
        self.deadline = settings.deadlines()
        self.began_ns = 0  # of the round
        self.patience_ns = settings.return_ns if resumed else settings.start_ns

    @property
    def model(self) -> Vector:
        return self.federated.server.broadcast(self.state)[0]

    @property
    def need(self) -> int:
        """Minimum number of clients of a round."""
        return max(self._need, self.summing.least if self.summing else 1)

    def _find_present(self) -> Set[NodeId]:
        """Return the present clients that can be in a sum."""
        company, members = self.company, self.summing.members if self.summing else None
        here = company.linked - company.left if company.left else company.linked
        return here if members is None else here & members

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, answer) if isinstance(answer, Answer):
                return self._answered(sender, answer, now_ns)
            case Received(sender, Leaving(done=done)):
                return self._handle_goodbye(sender, now_ns, done=done)
            case PeerJoined(node, incarnation):
                return self._joined(node, incarnation, now_ns)
            case PeerGone(node):
                return self._handle_lost_link(node, now_ns)
            case Fired(key):
                return self._fired(key, now_ns)
            case ModelMeasured(round, score) if self.phase == "judging" and round == self.round:
                self.judged = round
                if score is not None:
                    self.best.takes(round, score)
                return self._open(now_ns)
            case Started():
                return self._gather()
            case Stopping():
                left = [node for node in self.company.list_present() if node not in self.done]
                return [*self._send_final(left), *self._finish()]
            case Received(sender, message):
                kind = type(message).__name__.lower()
                advice = "Were coordinator and clients started from the same experiment file?"
                text = f"coordinator: a message of kind {kind!r} from node {sender}"
                raise ProtocolError(text, advice, peer=sender)
            case _:
                return []

    def _fired(self, key: object, now_ns: int) -> list[Effect]:
        exchange = self.exchange
        match key:
            case ("phase", int(round), str(phase)) if exchange and (round, phase) == (self.round, exchange.phase):
                return self._going(exchange.expired(), phase, now_ns)
            case ("gather", round) if self.phase == "gathering" and round == self.round:
                return self._begin_with_those_here(now_ns)
            case ("roll",) if self.phase == "gathering":
                return self.company.roll(self.round)
            case ("again",) if self.phase == "leaving":
                return [*self._send_final(sorted(self.uninformed)), SetTimer(("again",), self.settings.again_ns)]
            case ("drain",) if self.phase == "leaving":
                return self._finish()
            case _:  # a stale timer
                return []

    # --- present clients ----------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        if node not in self.company.known:
            return []
        another = self.company.joined(node, incarnation)
        if another and self.summing:
            self.summing.forget(node)
        if self.phase == "leaving":
            self.uninformed.update({node} - self.done)
            return self._send_final([node])
        if self.exchange:
            phase = self.exchange.phase
            return self._going(self.exchange.back(node, another=another), phase, now_ns)
        return self._begin_if_gathered(now_ns)

    def _handle_lost_link(self, node: NodeId, now_ns: int) -> list[Effect]:
        if node not in self.company.linked:
            return []
        self.company.linked.discard(node)
        self.uninformed.discard(node)
        return self._without(node, now_ns)

    def _handle_goodbye(self, sender: NodeId, now_ns: int, *, done: bool) -> list[Effect]:
        self.company.check(sender, "a goodbye")
        self.uninformed.discard(sender)
        if not done:  # it may be started again
            self.company.linked.discard(sender)
        elif self.phase == "leaving":
            self.done.add(sender)
        else:
            self.company.left.add(sender)
            if self._deserted:
                return self._conclude()
        return self._without(sender, now_ns)

    @property
    def _deserted(self) -> bool:
        """Whether too many clients have left for another round; the round open at that time does not count."""
        members = set(self.company.partners) if self.summing is None else self.summing.members
        members = set(self.company.partners) if members is None else members
        return self.settings.endless and len(members - self.company.left) < self.need

    def _without(self, node: NodeId, now_ns: int) -> list[Effect]:
        if self.phase == "leaving":
            return [] if self.uninformed else self._finish()
        at_its_end = self.settings.endless and node in self.company.left
        report: list[Effect] = [] if at_its_end else [Report("gone", node, self.round)]
        if self.exchange:
            phase = self.exchange.phase
            return report + self._going(self.exchange.lost(node), phase, now_ns)
        return report + self._begin_if_gathered(now_ns)

    def _gather(self) -> list[Effect]:
        self.phase = "gathering"
        return [SetTimer(("gather", self.round), self.patience_ns), SetTimer(("roll",), ROLL_NS)]

    def _begin_if_gathered(self, now_ns: int) -> list[Effect]:
        company = self.company
        members = self.summing.members if self.summing else None
        left, need = len(company.left) if members is None else len(company.left & members), self.need
        if self.phase == "gathering" and len(members or company.partners) - left < need:
            return self._give_up()  # departed clients do not return
        if self.phase != "gathering" or len(company.linked) < need:
            return []
        if not self.began_ns and len(company.linked) + len(company.left) < len(company.partners):
            return []  # a thousand links are made one by one: the lists below would be built for each
        if len(self._find_present()) < self.need or (company.missing() and not self.began_ns):
            return []
        return self._open(now_ns)

    def _begin_with_those_here(self, now_ns: int) -> list[Effect]:
        here, longest_ns = self._find_present(), self.settings.start_ns
        if len(here) < self.need and self.patience_ns < longest_ns:
            self.patience_ns = longest_ns
            return self._gather()
        if len(here) < self.need:
            return self._give_up()
        return [Report("started_without", self.company.missing(), self.round), *self._open(now_ns)]

    def _give_up(self) -> list[Effect]:
        here = len(self._find_present())
        if here + len(self.exhausted) >= self.need:
            return self._end_with_budgets()
        facts: dict[str, object] = {"clients": here, "needed": self.need}
        if members := self.summing.members if self.summing else None:
            facts["gone"] = sorted(members - set(self._find_present()))
        return [Report("too_few", facts, self.round), *self._conclude(too_few(self.round, facts))]

    def _end_with_budgets(self) -> list[Effect]:
        used, need = len(self.exhausted), self.need
        text = f"clients that have used up their budgets: {used}; those left are too few, a round needs {need}"
        return self._exhausted(BudgetError(text, "The model so far is the result."))

    def _exhausted(self, error: BudgetError) -> list[Effect]:
        return [budget_reached(error, self.round), *self._conclude(used_up(error))]

    # --- a round --------------------------------------------------------------------------------------------------

    def _open(self, now_ns: int) -> list[Effect]:
        """Begin the next round that has a cohort, or end."""
        effects: list[Effect] = []
        self.began_ns, self.patience_ns = max(now_ns, 1), self.settings.start_ns
        while self.round < self.settings.rounds and not is_over(self.federated.server, self.model):
            if self.settings.judges(self.round) and self.judged < self.round:
                self.phase = "judging"
                return [*effects, MeasureModel(self.round, self.model)]
            if self.best.over:
                return [*effects, Report("no_better", self.best.facts, self.round), *self._conclude()]
            here = self._find_present()
            if len(here) < self.need:
                return [*effects, *self._gather(), *self._begin_if_gathered(now_ns)]
            if self.interrupted:
                self.interrupted = False
                self.stopped = self.round if self.stopped is None else self.stopped
                effects += self._over(Abandoned(0, self.need, "INTERRUPTED", "the coordinator was stopped"))
                continue
            draw, self.stopped = self._cohort(here), None
            if not self.settings.informs_uninvited:
                self.invited.update(draw.invited)
            if len(draw.invited) <= draw.wanted:
                self.drawn.update(draw.invited)
            if len(draw.invited) >= self.need:
                try:
                    effects += [log_spent(one) for one in self.purse.pay(self.round)] if self.purse else []
                except BudgetError as error:
                    return [*effects, *self._exhausted(error)]
                self.phase, self.exchange = "inviting", self._exchange_of(draw, here)
                return effects + self._going(self.exchange.begin(), "", now_ns)
            effects += self._over(Abandoned(len(draw.invited), self.need))
        if self.round < self.settings.rounds:
            return [*effects, Report("good_enough", self.round, self.round), *self._conclude()]
        return [*effects, *(self._end_with_budgets() if self.short else self._conclude())]

    def _cohort(self, here: Collection[NodeId]) -> Draw:
        if self.summing:
            # Clients that consented to a sum without a result consent only to the same update and the same clients
            # again.
            round = self.round if self.stopped is None else self.stopped
            return self.summing.cohort(self.sampling, round, here, self.company.left)
        if isinstance(self.sampling, SamplingByLosses):
            return self.sampling.choose(self.round, here, self.seen)
        return self.sampling.draw(self.round, here)

    def _exchange_of(self, draw: Draw, here: Collection[NodeId]) -> Exchange:
        invite = Invite(self.round, self.schema, self.federated.server.broadcast(self.state))
        if self.summing:
            return self.summing.exchange(self.round, draw, here, invite, self.counted)
        rule = self.federated.clients
        accumulator = self.federated.aggregation.accumulator(rule.vectors, self.length, self.kind)
        measure = AdapterDistance(self.adapters, invite.vectors[0]) if self.adapters and not rule.gradient else None
        gathering = Gathered(accumulator, invite, self.settings.score, measure)
        return PlainRound(self.round, draw, self.need, rule, gathering, self.counted, self.coding)

    def _answered(self, sender: NodeId, answer: Answer, now_ns: int) -> list[Effect]:
        self.company.check(sender, "an answer")
        exhausted = {sender} if isinstance(answer, Refusal) and answer.reason == EXHAUSTED else set()
        if self.exchange and self.exchange.belongs(answer):
            phase = self.exchange.phase
            self.exhausted |= exhausted
            effects = self.exchange.handle(sender, answer)
            if isinstance(answer, Given):
                self.summed += sum(vector.size for vector in answer.vectors)
                if answer.loss is not None and isinstance(self.sampling, SamplingByLosses):
                    seconds = (now_ns - self.began_ns) / 1e9
                    self.seen[sender] = ReportedLoss(answer.loss, answer.examples, self.round, seconds)
            return self._going(effects, phase, now_ns)
        round = answer.round if isinstance(answer, Given | Subtotal | Refusal) else round_of(answer.session)
        if round > self.round or (round == self.round and isinstance(answer, Given)):
            text = f"coordinator, round {self.round}: client {sender} answers for round {round}"
            raise ProtocolError(text, "Was it invited by another run?", peer=sender)
        self.exhausted |= exhausted
        return [Report("late", {"peer": sender, "round": round}, self.round)]

    def _going(self, effects: list[Effect], before: str, now_ns: int) -> list[Effect]:
        """Set a new phase's deadline, or close the round and open the next."""
        assert self.exchange
        result = self.exchange.result
        if result is None:
            if self.exchange.phase != before:
                effects.append(SetTimer(("phase", self.round, self.exchange.phase), self.deadline.now_ns()))
            return effects
        if isinstance(result, Aggregate):
            effects += self._counts(result, now_ns)
        else:
            assert isinstance(result, Abandoned), "a sum for another coordinator"
            effects += self._over(result)
        return effects + self._open(now_ns)

    def _counts(self, aggregate: Aggregate, now_ns: int) -> list[Effect]:
        assert self.exchange
        state = stepped(self.federated.server, self.state, replace(aggregate, round=self.round))
        if state is None:
            text = "the step of the server leaves a model that is not finite"
            return self._over(Abandoned(aggregate.clients, self.need, NOT_FINITE, text))
        exchange, self.exchange, self.short = self.exchange, None, False
        facts = exchange.facts()
        tested = facts.get("score")  # by the clients, of the model sent to them
        if not self.settings.every and self.round and isinstance(tested, int | float):
            self.best.takes(self.round, tested)
        self.state = state
        self.counted.update(dict.fromkeys(exchange.counted, self.round))
        missed = sorted(exchange.waiting)
        if not exchange.cut:
            self.deadline.record(now_ns - self.began_ns)
        effects: list[Effect] = [Report("missed", missed, self.round)] if missed else []
        facts = {**facts, **({"epsilon": self.purse.epsilon} if self.purse else {})}
        if len(self.company.partners) <= FOLLOWED_MOST:
            facts["counted"] = sorted(exchange.counted)
        effects.append(Aggregated(self.round, facts))
        if failed := failures_of(self.federated.server, state):
            effects.append(Report("line_search_failed", failed, self.round))
        if cut := facts.get("clipped"):
            effects.append(Report("cut", {"cut": cut, "of": facts["clients"]}, self.round))
        apart = facts.get(ADAPTER_DISTANCE)
        if isinstance(apart, float) and apart > APART_MOST:
            effects.append(Report("adapters_apart", {"percent": round(100 * apart, 1)}, self.round))
        return effects + self._next()

    def _over(self, result: Abandoned) -> list[Effect]:
        self.exchange, self.short = None, result.have < result.need <= result.have + len(self.exhausted)
        facts = {"contributions": result.have, "needed": result.need, "reason": result.reason, "text": result.text}
        return [Report("abandoned", facts, self.round), Aggregated(self.round, {"clients": 0}), *self._next()]

    def _next(self) -> list[Effect]:
        """Complete the round; the checkpoint comes first, so that no reported round is lost."""
        self.round += 1
        summing = {**self.summing.saved()} if self.summing else {}
        if self.stopped is not None:
            summing[STOPPED] = self.stopped
        facts = {**summing, SEEN: {str(node): list(one) for node, one in self.seen.items()}} if self.seen else summing
        kept = checkpoint_of(self.round, self.state, self.counted, facts, self.best)
        return [kept, RoundDone(self.round, self.model)]

    # --- the end --------------------------------------------------------------------------------------------------

    def _conclude(self, failure: Failure | None = None) -> list[Effect]:
        self.phase, self.exchange, self.failure = "leaving", None, failure
        self.uninformed = set(self.company.list_present()) - self.done
        if not self.settings.informs_uninvited:
            self.uninformed &= self.invited
        if not self.uninformed:
            return self._finish()
        again, drain = self.settings.again_ns, self.settings.drain_ns
        waits = [SetTimer(("again",), again), SetTimer(("drain",), drain)]
        return [*self._send_final(sorted(self.uninformed)), *waits]

    def _send_final(self, to: Sequence[NodeId]) -> list[Effect]:
        final = Final(self.round, self.schema, self.federated.server.broadcast(self.state))
        return [Send(node, final) for node in to]

    def _finish(self) -> list[Effect]:
        over = self.phase == "leaving"
        self.phase, self.exchange = "finished", None
        return [*(self._never_counted() if over else []), Finish(self.model, self.failure)]

    def _never_counted(self) -> list[Effect]:
        """Report uncounted clients that were never present, or were in a cohort."""
        linked, clients = self.company.ever_linked, self.company.partners
        never = [node for node in clients if node not in self.counted and (node not in linked or node in self.drawn)]
        return [Report("never_counted", never, self.round)] if never else []
