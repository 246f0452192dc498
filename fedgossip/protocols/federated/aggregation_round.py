"""How the contributions of one round come together: in the clear here, one phase; by a secure sum, in several.

The coordinator opens an exchange, hands it what it hears, and looks at `result` after every event:

    result    None while it goes on;  an Aggregate;  or Abandoned

`phase` names what is waited for; each has a deadline of its own, and the coordinator sets it whenever the name changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, ClientRule, ServerRule, State, saved
from fedgossip.algorithms.federated.coded import UploadCodec
from fedgossip.algorithms.sampling import Draw, Sampling
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import all_finite
from fedgossip.core.machine import Effect, NodeId, Report, Send
from fedgossip.core.messages import CodedContribution, Contribution, Invite, MaskedInput, Refusal, Secured
from fedgossip.protocols.federated.gathering import Gathered

NOT_FINITE = "NOT_FINITE"
"""The reason of a round whose model would not have been finite."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The round changes nothing: `have` contributions, `need` were needed; or it has a `reason` of its own, a word."""

    have: int
    need: int
    reason: str = "TOO_FEW"
    text: str = ""


Given = Contribution | CodedContribution
"""What a client gives in the clear."""

Answer = Given | Secured | MaskedInput | Refusal
"""Messages of a client that belong to a round."""


class Exchange(Protocol):
    """One round.  On ProtocolError it is unchanged."""

    @property
    def phase(self) -> str: ...
    @property
    def result(self) -> Aggregate | Abandoned | None: ...
    @property
    def counted(self) -> Iterable[NodeId]:
        """The clients whose contributions are in the aggregate."""
        ...

    @property
    def waiting(self) -> Iterable[NodeId]:
        """The clients that were invited and have not answered; at the end, those without which the round went on."""
        ...

    @property
    def cut(self) -> bool:
        """Whether a deadline ended the round."""
        ...

    def begin(self) -> list[Effect]: ...
    def belongs(self, message: Answer) -> bool:
        """Return whether the message is of this round, and not of an earlier one."""
        ...

    def heard(self, sender: NodeId, message: Answer) -> list[Effect]:
        """Take a message that belongs to this round."""
        ...

    def lost(self, node: NodeId) -> list[Effect]:
        """Note that a client is gone, or has left."""
        ...

    def back(self, node: NodeId, *, another: bool) -> list[Effect]:
        """A client is there that was not, or that has lost what it was told; `another` life of it, or the same."""
        ...

    def expired(self) -> list[Effect]:
        """End the phase: its deadline has passed."""
        ...

    def facts(self) -> Mapping[str, object]:
        """For the records."""
        ...


class Summation(Protocol):
    """How rounds are summed, where that is not in the clear."""

    @property
    def least(self) -> int:
        """With fewer there is no sum."""
        ...

    @property
    def life(self) -> int:
        """Of the coordinator; 0 is the first."""
        ...

    @property
    def members(self) -> frozenset[NodeId] | None:
        """Those that every further sum is of; None where they may change."""
        ...

    def cohort(self, sampling: Sampling, round: int, here: Sequence[NodeId], left: Collection[NodeId]) -> Draw:
        """Who is invited; some may not be here.  `left`: those that will not come back."""
        ...

    def exchange(
        self, round: int, draw: Draw, here: Sequence[NodeId], invite: Invite, counted: Mapping[NodeId, int]
    ) -> Exchange: ...
    def saved(self) -> Mapping[str, object]:
        """What the next life must know, for a checkpoint."""
        ...

    def forget(self, node: NodeId) -> None:
        """Another life of this client is there: what the one before has announced is void."""
        ...


class PlainRound:
    """Invite, and add up what comes, as it comes: the first `draw.wanted` contributions count.

    It ends when these are here, when nobody is left to wait for, or at the deadline; with fewer than `quorum` it is
    abandoned.  `counted_before` is the last round in which each client was counted.  `coding`: how updates go up, where
    that is not as they are.
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
        made: dict[int, Invite] = {}  # one object for all whose words are equal
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

    def heard(self, sender: NodeId, message: Answer) -> list[Effect]:
        if isinstance(message, Refusal):
            return [Report("abstained", {"peer": sender, "reason": message.reason}, self.round), *self.lost(sender)]
        assert isinstance(message, Given)
        if sender in self.counted:
            return [Report("repeated", {"peer": sender, "round": self.round}, self.round)]
        if sender not in self.draw.invited:
            raise ProtocolError(f"round {self.round}: client {sender} answers, which is not invited", peer=sender)
        given, weight = self._whole(sender, message), self.rule.weight(message.examples)
        self.gathering.check(sender, given)
        self.gathering.add(sender, given, weight)
        self.counted.add(sender)
        self.waiting.discard(sender)
        self._end_if_complete()
        return []

    def _whole(self, sender: NodeId, message: Given) -> Contribution:
        """Return what a client gives with its update as a vector.  Raises ProtocolError for one by no codec of ours."""
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
