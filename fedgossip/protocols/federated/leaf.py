"""A coordinator below another one, as its client: it adds the sum of its clients to a sum further up.

    waiting --Invite--> gathering --clients are here--> summing --their sum, sent up--> waiting ... --Final--> leaving

Downwards it is a coordinator without a model: it forwards invitations and the counted clients, and collects a sum
(`secure_round` or `clear_tier`), which it checks only against its bounds.  Upwards it is a client whose update is that
sum (`client_round.SecurePart`, `clear_tier.IntegerPart`).  Members may be leaves too.

With too few clients it declines upwards with the reason (`Refusal`) and waits.  It begins a round once; if it dies, its
clients lose that round, and the root invites its next incarnation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, summable
from fedgossip.core.machine import (
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
    Send,
    SetTimer,
    Started,
    Stopping,
)
from fedgossip.core.messages import Final, Invite, Leaving, MaskedInput, Refusal, Secured, Subtotal
from fedgossip.protocols.federated.aggregation_round import (
    EXHAUSTED,
    Abandoned,
    Answer,
    Exchange,
    Given,
    LeafSum,
    Summation,
    check_layout,
)
from fedgossip.protocols.federated.client import same_invitation
from fedgossip.protocols.federated.client_round import ClientPart, Summand, ended_early
from fedgossip.protocols.federated.coordinator import CoordinatorSettings, counted_in
from fedgossip.protocols.gossip.failures import deserted, no_coordinator
from fedgossip.protocols.gossip.partner_set import PartnerSet
from fedgossip.secure.session import round_of


class SumPart(ClientPart, Protocol):
    """A part in a round that accepts any summand."""

    def trained(self, work: Summand) -> list[Effect]: ...


class SumAnswering(Protocol):
    """Opens the part for an invitation from above."""

    def part(self, coordinator: NodeId, invite: Invite, before: ClientPart | None) -> SumPart:
        """`before`: of the last invitation.  Raises ProtocolError for an invitation to another form of answer."""


@dataclass(frozen=True, slots=True)
class LeafSettings:
    """Limits of a leaf coordinator: `down` as of a coordinator, the others as of a client, in nanoseconds."""

    down: CoordinatorSettings
    silence_ns: int
    idle_ns: int
    session_ns: int


class LeafCoordinator:
    """`parent`: the coordinator above; `members`: the clients or coordinators below."""

    def __init__(
        self,
        node: NodeId,
        parent: NodeId,
        members: Sequence[NodeId],
        summing: Summation,
        answering: SumAnswering,
        invitation: Invite,
        settings: LeafSettings,
        resumed: Checkpoint | None = None,
    ) -> None:
        """`invitation`: an example with the layout of all."""
        self.node, self.parent, self.settings = node, parent, settings
        self.summing, self.answering, self.layout = summing, answering, invitation
        self.model: Vector = resumed.vectors["x"] if resumed else invitation.vectors[0]
        self.sampling = Uniform(0, tuple(members), len(members))
        self.company = PartnerSet(node, members)
        self.counted = counted_in(resumed)
        """The last round that counted each member at the root."""
        self.pending: tuple[NodeId, ...] = ()
        self.pending_round = -1
        """The members in the last sum, and its round."""
        if resumed:
            facts = resumed.facts
            self.pending = tuple(int(node) for node in facts.get("pending", ()))  # type: ignore[attr-defined]
            self.pending_round = int(facts.get("pending_round", -1))  # type: ignore[call-overload]
        self.asked: Invite | None = None
        self.part: SumPart | None = None
        self.exchange: Exchange | None = None
        self.exhausted: set[NodeId] = set()
        self.done: set[NodeId] = set()
        self.final: Final | None = None
        self.failure: Failure | None = None
        self.phase = "new"
        self.linked = self.met = False
        self.life = 0
        self.deadline = settings.down.deadlines()
        self.patience_ns = settings.down.return_ns if resumed else settings.down.start_ns
        """Wait for absent members before the next round; 0 once a round has begun."""
        self.began_ns = 0

    @property
    def need(self) -> int:
        """Minimum number of members in a sum."""
        return max(self.settings.down.min_clients, self.summing.least)

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        if self.phase == "finished":
            return []
        match event:
            case Received() | PeerJoined() | PeerGone() if self._is_above(event):
                return [*self._above(event, now_ns), *self._listen()]
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
            case Started():
                self.phase = "waiting"
                return self._listen()
            case Stopping(again):
                goodbye = Leaving(self.asked.round if self.asked else 0, done=not again)
                below = [] if again else self._send_final(self._model_so_far())
                return [*self._abandon_round(), Send(self.parent, goodbye), *below, *self._finish()]
            case Received(sender, message):
                kind = type(message).__name__.lower()
                advice = "Were coordinators and clients started from the same experiment file?"
                raise ProtocolError(f"a message of kind {kind!r} from node {sender}", advice, peer=sender)
            case _:
                return []

    def _fired(self, key: object, now_ns: int) -> list[Effect]:
        asked, exchange = self.asked, self.exchange
        awaited = (asked.round, exchange.phase) if asked and exchange else None
        match key:
            case ("silent",) if self.phase not in ("leaving", "finished"):
                return self._desert()
            case ("session",):  # of the last invitation: each replaces the one before
                return self._give_up_round()
            case ("phase", int(round), str(phase)) if exchange and (round, phase) == awaited:
                return self._going(exchange.expired(), phase, now_ns)
            case ("gather", int(round)) if self.phase == "gathering" and asked and round == asked.round:
                self.patience_ns = 0
                return self._open_if_gathered(now_ns)
            case ("again",) if self.phase == "leaving":
                return [*self._send_final(self.final), SetTimer(("again",), self.settings.down.again_ns)]
            case ("drain",) if self.phase == "leaving":
                return self._finish()
            case _:  # a stale timer
                return []

    # --- above --------------------------------------------------------------------------------------------------------

    def _listen(self) -> list[Effect]:
        if self.phase in ("leaving", "finished"):
            return []
        return [SetTimer(("silent",), self.settings.idle_ns if self.linked else self.settings.silence_ns)]

    def _is_above(self, event: Received | PeerJoined | PeerGone) -> bool:
        return (event.sender if isinstance(event, Received) else event.node) == self.parent

    def _above(self, event: Received | PeerJoined | PeerGone, now_ns: int) -> list[Effect]:
        if isinstance(event, Received):
            return self._handle_parent(event.message, now_ns)
        if isinstance(event, PeerJoined):
            return self._joined_above(event.incarnation)
        self.linked = False
        return []

    def _joined_above(self, incarnation: int) -> list[Effect]:
        another = self.met and incarnation > self.life
        self.linked, self.met, self.life = True, True, max(self.life, incarnation)
        return self.part.coordinator_restarted() if another and self.part else []

    def _handle_parent(self, message: object, now_ns: int) -> list[Effect]:
        where, parent = f"leaf coordinator {self.node}", self.parent
        if isinstance(message, Secured | MaskedInput):
            if self.part is None:
                return [Report("late", {"peer": parent, "session": message.session}, 0)]
            return self.part.handle(message)
        if not isinstance(message, Invite | Final):
            kind = type(message).__name__.lower()
            raise ProtocolError(f"{where}: a message of kind {kind!r} from its coordinator", peer=parent)
        check_layout(
            f"{where}: the message of round {message.round}", parent, message.schema, message.vectors, self.layout
        )
        if not all(map(summable, message.vectors)):
            raise ProtocolError(f"{where}: the model of round {message.round} is not finite, or too large", peer=parent)
        if self.phase == "leaving":
            return self._goodbye() if isinstance(message, Final) else []
        if isinstance(message, Final):
            return self._conclude(message)
        return self._invited(message, now_ns)

    def _invited(self, invite: Invite, now_ns: int) -> list[Effect]:
        if not 0 <= invite.round < self.settings.down.rounds:
            text = f"an invitation to round {invite.round}, of {self.settings.down.rounds}"
            raise ProtocolError(text, "Distrust the coordinator above.", peer=self.parent)
        if invite.frame and invite.round != round_of(invite.session):
            text = f"an invitation to round {invite.round} in session {invite.session}"
            raise ProtocolError(text, "Distrust the coordinator above.", peer=self.parent)
        if self.asked and self.part and same_invitation(invite, self.asked):
            return self.part.again()
        if self.asked and invite.round < self.asked.round:
            return [Report("late", {"peer": self.parent, "round": invite.round}, self.asked.round)]
        part = self.answering.part(self.parent, invite, self.part)
        begun = part.begin()  # before anything is dropped for it: a refused invitation changes nothing
        let_go = self._abandon_round()
        if self.pending_round >= 0 and invite.counted == self.pending_round:
            self.counted.update(dict.fromkeys(self.pending, self.pending_round))
        self.pending, self.pending_round = (), -1
        self.asked, self.part, self.exchange, self.model = invite, part, None, invite.vectors[0]
        effects = [*let_go, *begun, self._checkpoint(), SetTimer(("session",), self.settings.session_ns)]
        if part.over:
            self.phase = "waiting"
            return effects
        self.phase = "gathering"
        if self.patience_ns and self.company.missing():
            return [*effects, SetTimer(("gather", invite.round), self.patience_ns)]
        return effects + self._open(now_ns)

    def _abandon_round(self) -> list[Effect]:
        return self.part.give_up() if self.part else []

    def _checkpoint(self) -> Checkpoint:
        assert self.asked
        facts: dict[str, object] = {
            "counted": {str(node): last for node, last in self.counted.items()},
            "pending": list(self.pending),
            "pending_round": self.pending_round,
        }
        return Checkpoint(self.asked.round + 1, {"x": self.model}, facts)

    def _desert(self) -> list[Effect]:
        round = self.asked.round if self.asked else 0
        self.failure = deserted(round) if self.met else no_coordinator()
        name = "deserted" if self.met else "nobody_came"
        return [*self._abandon_round(), Report(name, [self.parent], round), *self._leave(self._model_so_far())]

    # --- a round ------------------------------------------------------------------------------------------------------

    def _open_if_gathered(self, now_ns: int) -> list[Effect]:
        if self.phase != "gathering" or (self.patience_ns and self.company.missing()):
            return []
        return self._open(now_ns)

    def _open(self, now_ns: int) -> list[Effect]:
        assert self.asked
        asked, here, members = self.asked, self.company.list_present(), self.summing.members
        self.patience_ns, self.began_ns = 0, now_ns
        here = here if members is None else [node for node in here if node in members]
        if len(here) < self.need:
            short = len(self.company.partners) - len(self.company.left) < self.need and self.exhausted
            return self._decline(Abandoned(len(here), self.need, EXHAUSTED if short else "TOO_FEW"))
        draw = self.summing.cohort(self.sampling, asked.round, here, self.company.left)
        passed_on = Invite(asked.round, asked.schema, asked.vectors)
        self.phase = "summing"
        self.exchange = self.summing.exchange(asked.round, draw, here, passed_on, self.counted)
        return self._going(self.exchange.begin(), "", now_ns)

    def _going(self, effects: list[Effect], before: str, now_ns: int) -> list[Effect]:
        """Set the deadline of a new phase; send the sum up, or decline."""
        assert self.exchange and self.asked and self.part
        exchange, result = self.exchange, self.exchange.result
        if result is None:
            if exchange.phase != before:
                effects.append(SetTimer(("phase", self.asked.round, exchange.phase), self.deadline.now_ns()))
            return effects
        if isinstance(result, Abandoned):
            return effects + self._decline(result)
        assert isinstance(result, LeafSum), "the sum of a leaf coordinator is not decoded there"
        self.exchange, self.phase = None, "waiting"
        self.pending, self.pending_round = tuple(sorted(exchange.counted)), self.asked.round
        if not exchange.cut:
            self.deadline.record(now_ns - self.began_ns)
        missed = sorted(exchange.waiting)
        if missed:
            effects.append(Report("missed", missed, self.asked.round))
        return [*effects, self._checkpoint(), *([] if self.part.over else self.part.trained(result))]

    def _decline(self, why: Abandoned) -> list[Effect]:
        assert self.asked and self.part
        asked, self.exchange, self.phase = self.asked, None, "waiting"
        facts = {"contributions": why.have, "needed": why.need, "reason": why.reason, "text": why.text}
        report = Report("contributes_nothing", facts, asked.round)
        if self.part.over:
            return [report]
        refusal = Send(self.parent, Refusal(asked.round, asked.session, why.reason))
        effects: list[Effect] = [report, *self.part.give_up(), refusal]
        if why.reason == EXHAUSTED:  # those that are left are too few for every later round
            return [*effects, Send(self.parent, Leaving(asked.round, done=True)), *self._leave(self._model_so_far())]
        return effects

    def _give_up_round(self) -> list[Effect]:
        self.exchange = None
        self.phase = "waiting" if self.phase in ("gathering", "summing") else self.phase
        return self._abandon_round()

    # --- below --------------------------------------------------------------------------------------------------------

    def _answered(self, sender: NodeId, answer: Answer, now_ns: int) -> list[Effect]:
        self.company.check(sender, "an answer")
        exhausted = {sender} if isinstance(answer, Refusal) and answer.reason == EXHAUSTED else set()
        here = self.asked.round if self.asked else -1
        if self.exchange and self.exchange.belongs(answer):
            phase = self.exchange.phase
            self.exhausted |= exhausted
            return self._going(self.exchange.handle(sender, answer), phase, now_ns)
        round = answer.round if isinstance(answer, Given | Subtotal | Refusal) else round_of(answer.session)
        if round > here or isinstance(answer, Given):
            text = f"leaf coordinator {self.node}, round {here}: client {sender} answers for round {round}"
            raise ProtocolError(text, "Was it invited by another run?", peer=sender)
        self.exhausted |= exhausted
        return [Report("late", {"peer": sender, "round": round}, here)]

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        if node not in self.company.partners:
            return []
        another = self.company.joined(node, incarnation)
        if another:
            self.summing.forget(node)
        if self.phase == "leaving":
            return self._send_final(self.final, [node])
        if self.exchange:
            phase = self.exchange.phase
            return self._going(self.exchange.back(node, another=another), phase, now_ns)
        return self._open_if_gathered(now_ns)

    def _handle_lost_link(self, node: NodeId, now_ns: int) -> list[Effect]:
        if node not in self.company.linked:
            return []
        self.company.linked.discard(node)
        return self._without(node, now_ns)

    def _handle_goodbye(self, sender: NodeId, now_ns: int, *, done: bool) -> list[Effect]:
        self.company.check(sender, "a goodbye")
        if not done:  # it may be started again
            self.company.linked.discard(sender)
        elif self.phase == "leaving":
            self.done.add(sender)
        else:
            self.company.left.add(sender)
        return self._without(sender, now_ns)

    def _without(self, node: NodeId, now_ns: int) -> list[Effect]:
        if self.phase == "leaving":
            return [] if self._uninformed() else self._finish()
        report: list[Effect] = [Report("gone", node, self.asked.round if self.asked else 0)]
        if self.exchange:
            phase = self.exchange.phase
            return report + self._going(self.exchange.lost(node), phase, now_ns)
        return report + self._open_if_gathered(now_ns)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _model_so_far(self) -> Final | None:
        return Final(self.asked.round, self.asked.schema, self.asked.vectors) if self.asked else None

    def _conclude(self, final: Final) -> list[Effect]:
        self.model = final.vectors[0]
        left: list[Effect] = []
        if final.round < self.settings.down.rounds and not self.settings.down.patience:
            left = [ended_early(final.round, self.settings.down.rounds)]
        return [*self._abandon_round(), *left, *self._goodbye(final), *self._leave(final)]

    def _goodbye(self, final: Final | None = None) -> list[Effect]:
        ends = final or self.final
        return [Send(self.parent, Leaving(ends.round if ends else 0, done=True))]

    def _leave(self, final: Final | None) -> list[Effect]:
        self.phase, self.exchange, self.final = "leaving", None, final
        if final is None or not self._uninformed():
            return self._finish()
        down = self.settings.down
        waits = [SetTimer(("again",), down.again_ns), SetTimer(("drain",), down.drain_ns)]
        return [*self._send_final(final), *waits]

    def _uninformed(self) -> list[NodeId]:
        return [node for node in self.company.list_present() if node not in self.done]

    def _send_final(self, final: Final | None, to: Sequence[NodeId] | None = None) -> list[Effect]:
        if final is None:
            return []
        return [Send(node, final) for node in (self._uninformed() if to is None else to)]

    def _finish(self) -> list[Effect]:
        self.phase, self.exchange = "finished", None
        return [Finish(self.model, self.failure)]
