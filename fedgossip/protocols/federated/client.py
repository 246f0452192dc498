"""A client of a federated run: on an invitation it trains from the received model, and sends its algorithm's answer.

    waiting --Invite--> training --Trained, answer--> waiting ... --Final--> finished

The coordinator pushes; a client requests nothing.  A later invitation replaces an earlier one, and drops its training.
A repeated invitation is answered with the stored answer, not with another training.  A `ClientPart` (`client_round`)
defines the form of the answer: in the clear, or through a secure sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedgossip.algorithms.federated.base import ClientRule, Vectors, Work, effective_steps
from fedgossip.base.errors import BudgetError, ProtocolError
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Finish,
    Fired,
    LocalWork,
    Log,
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
from fedgossip.core.messages import Final, Invite, Leaving, MaskedInput, Message, Refusal, Secured
from fedgossip.protocols.federated import client_round
from fedgossip.protocols.federated.aggregation_round import (
    EXHAUSTED,
    RoundBudget,
    budget_reached,
    check_layout,
    log_spent,
)
from fedgossip.protocols.federated.client_round import (
    EVERYTHING,
    Chances,
    ClientPart,
    PlainPart,
    PreparedContribution,
    SecurePart,
    SentMetrics,
)
from fedgossip.protocols.gossip.failures import deserted, no_coordinator, used_up
from fedgossip.secure.client import SecAggClient
from fedgossip.secure.secrets import Ahead
from fedgossip.secure.session import round_of
from fedgossip.secure.session_history import AskedBefore, Questions


class Answering(Protocol):
    """The form of this client's answers: it opens a part for each invitation."""

    def part(self, coordinator: NodeId, invite: Invite, before: ClientPart | None) -> ClientPart:
        """`before`: of the last invitation.  Raises ProtocolError for an invitation to another form of answer."""


class Plainly:
    """Answers in the clear."""

    def part(self, coordinator: NodeId, invite: Invite, before: ClientPart | None) -> ClientPart:  # noqa: ARG002
        if invite.frame:
            text = f"round {invite.round}: an invitation to a secure sum, which this experiment has switched off"
            raise ProtocolError(text, "Give coordinator and clients the same experiment file.", peer=coordinator)
        return PlainPart(coordinator, invite)


@dataclass
class Securely:
    """Answers through a secure sum only; `before`: the last request of an earlier incarnation.

    `whole`: the sum is that of all; otherwise a leaf coordinator's part.
    """

    party: SecAggClient
    chances: Callable[[int], Chances]
    """Random streams of a round."""
    questions: Questions | None = None
    before: AskedBefore | None = None
    whole: bool = True

    def part(self, coordinator: NodeId, invite: Invite, before: ClientPart | None) -> SecurePart:
        if not invite.frame:
            text = f"round {invite.round}: asked for an answer in the clear, which this client does not give"
            advice = "Give coordinator and clients the same experiment file, with the same coordinator.secure.on."
            raise ProtocolError(text, advice, peer=coordinator)
        last = before if isinstance(before, SecurePart) else None

        def look() -> None:
            self._look(invite, last)

        ahead: Ahead | None = last.ahead if last else None
        return SecurePart(self.party, coordinator, invite, self.chances, ahead, look)

    def _look(self, invite: Invite, last: SecurePart | None) -> None:
        """Check the request, and record it.  Raises RoundAbandoned."""
        if self.questions is None:
            return
        if last and self.before and last.invite.round == self.before.round:
            self.before = replace(self.before, clients=last.survivors, sum_digest=last.sum_digest)
        self.questions.check(self.party.me, invite.round, invite.vectors[0], self.before)
        self.before = AskedBefore(invite.round, invite.vectors[0], whole=self.whole)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    rounds: int
    """Number of rounds of the run: a later invitation is refused, and the model of the last is tested too."""
    silence_ns: int = 600_000_000_000
    """Nanoseconds without a link until the coordinator counts as gone; longer than its restart."""
    idle_ns: int = 86_400_000_000_000
    """The same with a link and without a message; longer than the time until every client has had its turn."""
    session_ns: int = 3_600_000_000_000
    """Nanoseconds until a round without an end is dropped; longer than the sum of the coordinator's deadlines."""
    test_every: int = 0
    """Number of rounds between two tests of the model on local examples, before it is trained; 0: never."""
    accumulate: int | None = None
    """Number of batches in a gradient; None: a round's training, weighted by all of this client's examples."""

    patience: int = 0
    """Number of rounds without a better model until the coordinator may end the run; 0: its last round."""

    @property
    def may_end(self) -> int:
        """First round at which an end of the run is not early."""
        return min(self.rounds, self.patience or self.rounds)

    def tests(self, round: int) -> bool:
        return self.test_every > 0 and ((round + 1) % self.test_every == 0 or round + 1 == self.rounds)


def never(_model: Vector) -> bool:
    """Return False: the run continues to its last round."""
    return False


class Client:
    """One client.  `resumed`: continue from this checkpoint; unanswered training is repeated."""

    telling = EVERYTHING  # default for images of the release before, which lack the attribute

    def __init__(
        self,
        node: NodeId,
        coordinator: NodeId,
        rule: ClientRule,
        initial: Vector,
        schema: str,
        settings: ClientSettings,
        resumed: Checkpoint | None = None,
        answering: Answering | None = None,
        purse: RoundBudget | None = None,
        telling: SentMetrics = EVERYTHING,
        whole: Callable[[Vector], bool] = never,
    ) -> None:
        """`whole`: returns whether a model ends the run before its last round."""
        self.node, self.coordinator, self.rule, self.settings = node, coordinator, rule, settings
        self.answering: Answering = answering or Plainly()
        self.purse, self.telling, self.whole = purse, telling, whole
        self.model = resumed.vectors["x"] if resumed else initial
        self.layout = Invite(0, schema, (initial,) * rule.vectors)
        self.memory = _several(resumed, "memory")
        self.pending = _several(resumed, "pending")
        self.pending_round = _number(resumed, "pending_round")
        """The round whose contribution makes `pending` the memory, if it is counted; -1: none."""
        self.asked: Invite | None = None
        """The invitation to answer."""
        self.part: ClientPart | None = None
        """The part that answers it."""
        self.outdated = False
        """Whether the current training belongs to a replaced invitation."""
        self.wanted = False
        """Whether the coordinator, in its current incarnation, has requested the answer."""
        self.phase = "new"
        self.linked = False
        self.life = 0
        self.met = False

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:  # noqa: ARG002
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                return [*self._received(sender, message), *self._listen()]
            case Trained(_, update, examples, metrics, extra):
                assert self.phase == "training", "a training that was not requested"
                return [*self._trained(update, examples, metrics, extra), *self._listen()]
            case PeerJoined(node, incarnation) if node == self.coordinator:
                return [*self._joined(incarnation), *self._listen()]
            case PeerGone(node) if node == self.coordinator:
                self.linked = False
                return self._listen()
            case Fired(("silent",)):
                return self._listen() if self.phase == "training" else self._desert()
            case Fired(("session",)):  # of the last invitation: each replaces the one before
                return self._abandon_round()
            case Started():
                self.phase = "waiting"
                return self._listen()
            case Stopping(again):
                self.phase = "finished"
                goodbye = Leaving(self.asked.round if self.asked else 0, done=not again)
                return [*self._abandon_round(), Send(self.coordinator, goodbye), Finish(self.model)]
            case _:
                return []

    def _joined(self, incarnation: int) -> list[Effect]:
        another = incarnation > self.life
        self.linked, self.met, self.life = True, True, max(self.life, incarnation)
        if not another:
            return []
        self.wanted = False  # it may have lost its request
        return self.part.coordinator_restarted() if self.part else []

    def _listen(self) -> list[Effect]:
        if self.phase == "finished":
            return []
        return [SetTimer(("silent",), self.settings.idle_ns if self.linked else self.settings.silence_ns)]

    def _desert(self) -> list[Effect]:
        self.phase = "finished"
        round = self.asked.round if self.asked else 0
        if not self.met:
            report = Report("nobody_came", [self.coordinator], round)
            return [*self._abandon_round(), report, Finish(self.model, no_coordinator())]
        report = Report("deserted", [self.coordinator], round)
        return [*self._abandon_round(), report, Finish(self.model, deserted(round))]

    def _abandon_round(self) -> list[Effect]:
        return self.part.give_up() if self.part else []

    # --- messages of the coordinator ----------------------------------------------------------------------------------

    def _received(self, sender: NodeId, message: object) -> list[Effect]:
        where = f"client {self.node}"
        if sender != self.coordinator:
            raise ProtocolError(
                f"{where}: a message of node {sender}; only those of the coordinator are accepted", peer=sender
            )
        if isinstance(message, Secured | MaskedInput):
            if self.part is None:
                return [Report("late", {"peer": sender, "session": message.session}, 0)]
            return self.part.handle(message)
        if not isinstance(message, Invite | Final):
            kind = type(message).__name__.lower()
            advice = "Were coordinator and clients started from the same experiment file?"
            raise ProtocolError(f"{where}: a message of kind {kind!r} in a federated run", advice, peer=sender)
        check_layout(
            f"{where}: the message of round {message.round}", sender, message.schema, message.vectors, self.layout
        )
        if not all(map(summable, message.vectors)):
            text = f"{where}: the model of round {message.round} is not finite, or too large to be trained"
            raise ProtocolError(text, peer=sender)
        if isinstance(message, Final):
            return self._final(message)
        self._check_round(message)
        return self._invited(message)

    def _check_round(self, invite: Invite) -> None:
        """Check that the round belongs to the run, and to the session."""
        where, advice = f"client {self.node}: an invitation to round {invite.round}", "Distrust the coordinator."
        if not 0 <= invite.round < self.settings.rounds:
            raise ProtocolError(f"{where}, of {self.settings.rounds}", advice, peer=self.coordinator)
        if invite.frame and invite.round != round_of(invite.session):
            text = f"{where} in session {invite.session}, which is of round {round_of(invite.session)}"
            raise ProtocolError(text, advice, peer=self.coordinator)

    def _invited(self, invite: Invite) -> list[Effect]:
        if self.asked and self.wanted and invite.round < self.asked.round:
            return [Report("late", {"peer": self.coordinator, "round": invite.round}, self.asked.round)]
        again = self.part is not None and self.asked is not None and same_invitation(invite, self.asked)
        if again:
            self.wanted = True
            return self.part.again() if self.part and self.linked else []
        part = self.answering.part(self.coordinator, invite, self.part)
        begun = part.begin()  # before anything is dropped for it: a refused invitation changes nothing
        let_go = self._abandon_round()
        self.wanted, self.asked, self.part = True, invite, part
        session = SetTimer(("session",), self.settings.session_ns)
        began = [*let_go, *begun, session]
        if self.phase == "training":
            self.outdated = True
            return began
        return began + self._train(invite)

    def _train(self, invite: Invite) -> list[Effect]:
        if self.part is None or self.part.over:  # refused
            return []
        if self.pending_round >= 0 and invite.counted == self.pending_round:
            self.memory = self.pending
        try:
            paid = [log_spent(one) for one in self.purse.pay(invite.round)] if self.purse else []
        except BudgetError as error:
            return self._exhausted(invite, error)
        self.pending, self.pending_round = (), -1
        self.model = invite.vectors[0]
        self.phase = "training"
        tested = self.settings.tests(invite.round)
        terms = self.rule.terms(invite.vectors, self.memory)
        return [*paid, Train(invite.round, self.model, terms, tested, self.rule.gradient, self.settings.accumulate)]

    def _exhausted(self, invite: Invite, error: BudgetError) -> list[Effect]:
        self.phase = "finished"
        refusal = Refusal(invite.round, invite.session, EXHAUSTED)
        effects = [Send(self.coordinator, message) for message in (refusal, Leaving(invite.round, done=True))]
        return [
            *self._abandon_round(),
            budget_reached(error, invite.round),
            *effects,
            Finish(self.model, used_up(error)),
        ]

    def _trained(
        self, update: Vector | None, examples: int, metrics: Mapping[str, float], extra: Vectors = ()
    ) -> list[Effect]:
        assert self.asked and self.part
        self.phase = "waiting"
        if self.outdated:
            self.outdated = False
            round = self.asked.round
            return [Report("outdated", {"now": round}, round), *self._train(self.asked)]
        round = self.asked.round
        moved = frozen(np.zeros_like(self.model)) if update is None else update
        steps = int(metrics.get("steps", 1))
        if self.settings.accumulate is not None:
            examples = int(metrics.get("rows", examples))
        work = Work(moved, examples, steps, float(metrics.get("rate", 1.0)), self.node, round, extra)
        up, self.pending = self.rule.upload(self.asked.vectors, self.memory, work)
        self.pending_round = round
        examples = max(1, examples)
        measured = self.telling.measured
        contributed = client_round.PreparedContribution(
            up,
            int(self.rule.weight(examples)),
            examples,
            steps,
            effective_steps(self.rule, steps),
            metrics.get("loss"),
            float(metrics.get(measured, 0.0)),
            int(metrics.get("tested", 0)) if measured in metrics else 0,
            {name: metrics.get(name, 0.0) for name in self.telling.counts},
        )
        answer = self.part.trained(self.telling.blank_unsent(contributed))
        effects = answer if self.wanted and self.linked else [e for e in answer if not isinstance(e, Send)]
        score = float(metrics.get("score", 0.0)) if metrics.get("tested") else None
        epsilon = self.purse.epsilon if self.purse else None
        return [self._checkpoint(), *effects, LocalWork(round + 1, score, epsilon)]

    def _checkpoint(self) -> Checkpoint:
        vectors = {"x": self.model}
        vectors.update({f"memory/{k}": v for k, v in enumerate(self.memory)})
        vectors.update({f"pending/{k}": v for k, v in enumerate(self.pending)})
        return Checkpoint(self.pending_round + 1, vectors, {"pending_round": self.pending_round}, unsettled=True)

    def _final(self, final: Final) -> list[Effect]:
        self.phase, self.model = "finished", final.vectors[0]
        goodbye = Leaving(final.round, done=True)
        left = final.round < self.settings.may_end and not self.whole(self.model)
        early = [client_round.ended_early(final.round, self.settings.rounds)] if left else []
        return [*self._abandon_round(), *early, Send(self.coordinator, goodbye), Finish(self.model)]


def same_invitation(invite: Invite, before: Invite) -> bool:
    """Return whether an invitation repeats the last one: the same round, session and vectors."""
    pairs = zip(invite.vectors, before.vectors, strict=True)
    named = (invite.round, invite.session) == (before.round, before.session)
    return named and all(a is b or np.array_equal(a, b) for a, b in pairs)


def _several(checkpoint: Checkpoint | None, name: str) -> Vectors:
    found = checkpoint.vectors if checkpoint else {}
    return tuple(found[f"{name}/{k}"] for k in range(len(found)) if f"{name}/{k}" in found)


def _number(checkpoint: Checkpoint | None, name: str) -> int:
    number = checkpoint.facts.get(name, -1) if checkpoint else -1
    assert isinstance(number, int)
    return number


@dataclass(frozen=True)
class Abstaining:
    """Declines every invitation."""

    reason: str
    """One of `core.messages.federated.REFUSALS`."""

    def part(self, coordinator: NodeId, invite: Invite, before: ClientPart | None) -> ClientPart:  # noqa: ARG002
        return RefusedPart(coordinator, invite, self.reason)


class RefusedPart:
    """Sends only a refusal with its reason."""

    over = True

    def __init__(self, coordinator: NodeId, invite: Invite, reason: str) -> None:
        self.coordinator, self.invite, self.reason = coordinator, invite, reason

    def begin(self) -> list[Effect]:
        invite = self.invite
        log = Log("refused", {"session": invite.session, "round": invite.round, "reason": self.reason})
        return [log, *self.again()]

    def trained(self, work: PreparedContribution) -> list[Effect]:  # noqa: ARG002
        return []

    def handle(self, message: Message) -> list[Effect]:  # noqa: ARG002
        return []

    def again(self) -> list[Effect]:
        return [Send(self.coordinator, Refusal(self.invite.round, self.invite.session, self.reason))]

    def give_up(self) -> list[Effect]:
        return []

    def coordinator_restarted(self) -> list[Effect]:
        return []
