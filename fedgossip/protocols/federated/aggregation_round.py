"""The aggregation of one round: in the clear here, in one phase; by a secure sum in several.

The coordinator opens an exchange, passes the clients' messages to it, and reads `result` after every event:

    result    None while it goes on;  an Aggregate;  or Abandoned;  a LeafSum at a coordinator under another one

`phase` names the awaited messages; each has a deadline of its own, which the coordinator sets whenever the name
changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, ClientRule, ServerRule, State, saved
from fedgossip.algorithms.federated.coded import UploadCodec
from fedgossip.algorithms.sampling import Draw, Sampling
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import all_finite
from fedgossip.core.machine import Effect, NodeId, Report, Send
from fedgossip.core.messages import CodedContribution, Contribution, Invite, MaskedInput, Refusal, Secured, Subtotal
from fedgossip.protocols.federated.client_round import Chances
from fedgossip.protocols.federated.gathering import Gathered
from fedgossip.secure.encoding import Noise, RingEncoding
from fedgossip.secure.fixed_point import Quantised
from fedgossip.secure.ring import Words

NOT_FINITE = "NOT_FINITE"
"""The reason of an abandoned round with a model that is not finite."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A round without effect: `have` contributions, `need` were needed; or another `reason`, a word."""

    have: int
    need: int
    reason: str = "TOO_FEW"
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LeafSum:
    """The sum of a coordinator's clients in the ring, which it adds to the sum of its own coordinator; a Summand."""

    total: Words
    clients: int

    def integers(self, fixed: RingEncoding, chances: Chances, noise: Noise) -> Quantised:  # noqa: ARG002
        """Return the words as they are: each client has rounded its own, and added its noise."""
        return Quantised.of_sum(self.total)


Given = Contribution | CodedContribution
"""A contribution in the clear."""

Answer = Given | Secured | MaskedInput | Subtotal | Refusal
"""Messages of a client that belong to a round."""


class Exchange(Protocol):
    """One round.  On ProtocolError it is unchanged."""

    @property
    def phase(self) -> str: ...
    @property
    def result(self) -> Aggregate | LeafSum | Abandoned | None: ...
    @property
    def counted(self) -> Iterable[NodeId]:
        """The clients whose contributions are in the aggregate."""
        ...

    @property
    def waiting(self) -> Iterable[NodeId]:
        """The invited clients without an answer; at the end, those left out of the round."""
        ...

    @property
    def cut(self) -> bool:
        """Whether a deadline ended the round."""
        ...

    def begin(self) -> list[Effect]: ...
    def belongs(self, message: Answer) -> bool:
        """Return whether the message is of this round, and not of an earlier one."""
        ...

    def handle(self, sender: NodeId, message: Answer) -> list[Effect]:
        """Handle a message that belongs to this round."""
        ...

    def lost(self, node: NodeId) -> list[Effect]:
        """Note that a client is gone, or has left."""
        ...

    def back(self, node: NodeId, *, another: bool) -> list[Effect]:
        """Handle a returning client, or one that has lost its invitation; `another` life of it, or the same."""
        ...

    def expired(self) -> list[Effect]:
        """End the phase at its deadline."""
        ...

    def facts(self) -> Mapping[str, object]:
        """Return the facts for the records."""
        ...


class Summation(Protocol):
    """The summation of rounds that are not in the clear."""

    @property
    def least(self) -> int:
        """Minimum number of clients of a sum."""
        ...

    @property
    def life(self) -> int:
        """Number of the coordinator's life; 0 is the first."""
        ...

    @property
    def members(self) -> frozenset[NodeId] | None:
        """The fixed members of every further sum; None where they may change."""
        ...

    def cohort(self, sampling: Sampling, round: int, here: Collection[NodeId], left: Collection[NodeId]) -> Draw:
        """Return the clients to invite; some may be away.  `left`: those that will not return."""
        ...

    def exchange(
        self, round: int, draw: Draw, here: Collection[NodeId], invite: Invite, counted: Mapping[NodeId, int]
    ) -> Exchange: ...
    def saved(self) -> Mapping[str, object]:
        """Return the facts for a checkpoint that the next life needs."""
        ...

    def forget(self, node: NodeId) -> None:
        """Drop the announcements of a client's earlier life."""
        ...


class PlainRound:
    """Invite, and add contributions on arrival: the first `draw.wanted` count.

    It ends when these are here, when no answer is awaited, or at the deadline; with fewer than `quorum` it is
    abandoned.  `counted_before` is the last round in which each client was counted.  `coding`: the codec of updates,
    if any.
    """

    phase = "update"

    def __init__(
        self,
        round: int,
        draw: Draw,
        quorum: int,
        rule: ClientRule,
        gathering: Gathered,
        counted_before: Mapping[NodeId, int],
        coding: UploadCodec | None = None,
    ) -> None:
        self.round, self.draw, self.quorum, self.rule = round, draw, quorum, rule
        self.gathering, self.counted_before, self.coding = gathering, counted_before, coding
        self.waiting = set(draw.invited)
        self.cut = False
        self.counted: set[NodeId] = set()
        self.result: Aggregate | Abandoned | None = None

    def begin(self) -> list[Effect]:
        made: dict[int, Invite] = {}  # equal invitations share one object
        effects: list[Effect] = []
        for node in self.draw.invited:
            counted = self.counted_before.get(node, -1)
            if counted not in made:
                made[counted] = self._invite(counted)
            effects.append(Send(node, made[counted]))
        self._end_if_complete()
        return effects

    def _invite(self, counted: int) -> Invite:
        return replace(self.gathering.like, counted=counted)

    def belongs(self, message: Answer) -> bool:
        return isinstance(message, Given | Refusal) and message.round == self.round

    def handle(self, sender: NodeId, message: Answer) -> list[Effect]:
        if isinstance(message, Refusal):
            return [Report("abstained", {"peer": sender, "reason": message.reason}, self.round), *self.lost(sender)]
        assert isinstance(message, Given)
        if sender in self.counted:
            return [Report("repeated", {"peer": sender, "round": self.round}, self.round)]
        if sender not in self.draw.invited:
            raise ProtocolError(f"round {self.round}: client {sender} answers, which is not invited", peer=sender)
        given = self._whole(sender, message)
        self.gathering.check(sender, given)
        self.gathering.add(sender, given, self.rule)
        self.counted.add(sender)
        self.waiting.discard(sender)
        self._end_if_complete()
        return []

    def _whole(self, sender: NodeId, message: Given) -> Contribution:
        """Return the contribution with a decoded update.  Raises ProtocolError for another codec than ours."""
        if isinstance(message, CodedContribution) != (self.coding is not None):
            kind = type(message).__name__.lower()
            text = f"round {self.round}: client {sender} answers with a {kind}"
            raise ProtocolError(text, "Give it the same experiment file, with the same coordinator.codec.", peer=sender)
        if isinstance(message, Contribution):
            return message
        assert self.coding
        try:
            return message.whole(self.coding.update_of(message.vectors[0], sender, message.round))
        except ProtocolError as error:
            text = f"round {self.round}: the contribution of client {sender}: {error}"
            raise ProtocolError(text, error.advice, peer=sender) from None

    def lost(self, node: NodeId) -> list[Effect]:
        self.waiting.discard(node)
        self._end_if_complete()
        return []

    def back(self, node: NodeId, *, another: bool) -> list[Effect]:  # noqa: ARG002
        if node not in self.draw.invited or node in self.counted:
            return []
        self.waiting.add(node)
        return [Send(node, self._invite(self.counted_before.get(node, -1)))]

    def expired(self) -> list[Effect]:
        self.cut = True
        self._end()
        return []

    def _end_if_complete(self) -> None:
        if len(self.counted) >= self.draw.wanted or not self.waiting:
            self._end()

    def _end(self) -> None:
        if len(self.counted) >= max(1, self.quorum):
            self.result = self.gathering.aggregate()
        else:
            self.result = Abandoned(len(self.counted), self.quorum)

    def facts(self) -> Mapping[str, object]:
        return self.gathering.facts()


def stepped(server: ServerRule[State], before: State, aggregate: Aggregate) -> State | None:
    """Return the server's next state; None where it would not be finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        state = server.step(before, aggregate)
    return state if all(map(all_finite, saved(state).values())) else None
