"""A tier without a secure sum: its coordinator sees each member's numbers, as the integers of a secure sum.

    inviting --Subtotal of each present member, or the deadline--> the sum

For tiers with too few members, if the file sets `secure = false`.  The numbers are rounded, clipped, weighted and
hidden by noise as in a secure sum: a run with and without such tiers has the same bits.  A subtotal outside the bounds
of its count is refused with its sender's name, and the round continues without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate
from fedgossip.algorithms.sampling import Draw, Sampling
from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import Effect, Log, NodeId, Report, Send
from fedgossip.core.messages import Invite, Message, Refusal, Subtotal
from fedgossip.protocols.federated.aggregation_round import Abandoned, Answer, LeafSum, SumReading
from fedgossip.protocols.federated.client_round import Chances, ClientPart, OneAnswer, Summand
from fedgossip.secure.aborts import RoundAbandoned
from fedgossip.secure.encoding import NO_NOISE, Noise, RingEncoding
from fedgossip.secure.fixed_point import Words, add


@dataclass
class ClearSumming:
    """Opens the rounds of one incarnation of a coordinator."""

    fixed: RingEncoding
    reading: SumReading
    least: int
    """Minimum number of members in a sum."""
    life: int = 0
    members: frozenset[NodeId] | None = None
    """The fixed members of all sums, and the only ones invited, if they must not change and a first sum exists."""

    def cohort(self, sampling: Sampling, round: int, here: Collection[NodeId], left: Collection[NodeId]) -> Draw:  # noqa: ARG002
        return sampling.draw(round, here)

    def exchange(
        self, round: int, draw: Draw, here: Collection[NodeId], invite: Invite, counted: Mapping[NodeId, int]
    ) -> ClearRound:
        return ClearRound(self, round, draw, here, invite, counted)

    def saved(self) -> Mapping[str, object]:
        return {}

    def forget(self, node: NodeId) -> None:
        """Do nothing: no keys are announced in advance."""


class ClearRound:
    """One round, an `Exchange`."""

    phase = "update"

    def __init__(
        self,
        summing: ClearSumming,
        round: int,
        draw: Draw,
        here: Collection[NodeId],
        invite: Invite,
        counted_before: Mapping[NodeId, int],
    ) -> None:
        self.summing, self.round, self.draw, self.invite = summing, round, draw, invite
        self.counted_before = counted_before
        self.waiting = set(draw.invited) & set(here)
        self.cut = False
        self.counted: set[NodeId] = set()
        self.result: Aggregate | LeafSum | Abandoned | None = None
        self._total: Words = np.zeros(summing.fixed.words, np.uint32)
        self._facts: Mapping[str, object] = {}

    def begin(self) -> list[Effect]:
        return [*(self._invitation(node) for node in sorted(self.waiting)), *self._end_if_complete()]

    def _invitation(self, node: NodeId) -> Effect:
        return Send(node, replace(self.invite, counted=self.counted_before.get(node, -1)))

    def belongs(self, message: Answer) -> bool:
        return isinstance(message, Subtotal | Refusal) and message.round == self.round

    def handle(self, sender: NodeId, message: Answer) -> list[Effect]:
        if isinstance(message, Refusal):
            return [Report("abstained", {"peer": sender, "reason": message.reason}, self.round), *self.lost(sender)]
        assert isinstance(message, Subtotal)
        if sender in self.counted:
            return [Report("repeated", {"peer": sender, "round": self.round}, self.round)]
        if sender not in self.draw.invited:
            raise ProtocolError(f"round {self.round}: node {sender} answers, which is not invited", peer=sender)
        words = self._checked(sender, message)
        add(self._total, words, self.summing.fixed.ring_bits // 32)
        self.counted.add(sender)
        self.waiting.discard(sender)
        return self._end_if_complete()

    def _checked(self, sender: NodeId, message: Subtotal) -> Words:
        """Return a member's numbers.  Raises ProtocolError for values that its clients cannot produce."""
        where = f"round {self.round}: the numbers of node {sender}"
        if [v.dtype for v in message.vectors] != [np.uint32] or message.schema != self.invite.schema:
            raise ProtocolError(f"{where} are of another layout", "Give all the same experiment file.", peer=sender)
        words: Words = message.vectors[0]
        try:
            found = self.summing.reading.decoded(words, [sender], self.summing.fixed)
        except RoundAbandoned as error:
            raise ProtocolError(f"{where}: {error}", error.advice, peer=sender) from None
        if found.clients != message.clients:
            raise ProtocolError(f"{where} count {found.clients} clients, not {message.clients}", peer=sender)
        return words

    def lost(self, node: NodeId) -> list[Effect]:
        self.waiting.discard(node)
        return self._end_if_complete()

    def back(self, node: NodeId, *, another: bool) -> list[Effect]:  # noqa: ARG002
        if node not in self.draw.invited or node in self.counted:
            return []
        self.waiting.add(node)
        return [self._invitation(node)]

    def expired(self) -> list[Effect]:
        self.cut = True
        return self._end()

    def _end_if_complete(self) -> list[Effect]:
        return [] if self.waiting or self.result else self._end()

    def _end(self) -> list[Effect]:
        if len(self.counted) < self.summing.least:
            self.result = Abandoned(len(self.counted), self.summing.least)
            return []
        reading, fixed = self.summing.reading, self.summing.fixed
        try:
            found = reading.decoded(self._total, sorted(self.counted), fixed)
        except RoundAbandoned as error:
            self.result = Abandoned(len(self.counted), self.summing.least, error.reason.value, str(error))
            return []
        self.result, self._facts = reading.result(found, self._total, self.round), reading.facts(found, fixed)
        if fixed.together:
            self.summing.members, self.summing.least = frozenset(self.counted), len(self.counted)
        return [Log("sum", {"round": self.round, "clients": found.clients})]

    def facts(self) -> Mapping[str, object]:
        return self._facts


@dataclass
class AnsweringInIntegers:
    """Answers with the integers themselves."""

    fixed: RingEncoding
    chances: Callable[[int], Chances]
    """Random streams of a round."""
    noise: Noise = NO_NOISE

    def part(self, coordinator: NodeId, invite: Invite, before: ClientPart | None) -> IntegerPart:  # noqa: ARG002
        if invite.frame:
            text = f"round {invite.round}: an invitation to a secure sum, which this tier has switched off"
            raise ProtocolError(text, "Give coordinator and clients the same experiment file.", peer=coordinator)
        return IntegerPart(coordinator, invite, self)


class IntegerPart(OneAnswer):
    """Answers with a `Subtotal`."""

    def __init__(self, coordinator: NodeId, invite: Invite, answering: AnsweringInIntegers) -> None:
        super().__init__(coordinator, invite)
        self._answering = answering

    def trained(self, work: Summand) -> list[Effect]:
        invite, how = self.invite, self._answering
        try:
            words = work.integers(how.fixed, how.chances(invite.round), how.noise).values
        except RoundAbandoned as error:
            reason = error.reason.value
            self.answer, self.over = Refusal(invite.round, invite.session, reason), True
            why = {"reason": reason, "text": str(error), "advice": error.advice}
            log = Log("refused", {"session": invite.session, "round": invite.round, "reason": reason})
            return [log, Report("abandoned_here", why, invite.round), *self.again()]
        self.answer = Subtotal(invite.round, invite.schema, (words,), work.clients)
        facts: dict[str, int | float | str] = {
            "round": invite.round,
            "to": self.coordinator,
            "bytes": words.nbytes,
            "clients": work.clients,
        }
        return [Log("contribution", facts, (words.view(np.float32),)), *self.again()]  # hashed as bytes

    def handle(self, message: Message) -> list[Effect]:
        kind = type(message).__name__.lower()
        raise ProtocolError(f"a message of kind {kind!r} in a tier without a secure sum", peer=self.coordinator)
