"""A client of a federated run: invited, it trains from what it was sent, and answers with what its algorithm says.

    waiting --Invite--> training --Trained, Contribution--> waiting ... --Final--> finished

Nothing is asked for: the coordinator pushes.  A later invitation overtakes an earlier one: what comes of that training
is dropped, for its round is over.  An answer is kept until the next invitation; the same invitation again (the link
broke, or the coordinator was started again and draws the same cohort) is answered with it, not with another training.

What a client remembers from round to round (SCAFFOLD's c_i) changes only when the coordinator says, in the next
invitation, that the contribution was counted: both ends then remember the same, whoever was cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.federated.base import ClientRule, Vectors, Work
from fedgossip.errors import ProtocolError
from fedgossip.machine import (
    Checkpoint,
    Effect,
    Event,
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
    Train,
    Trained,
)
from fedgossip.messages import Contribution, Final, Invite, Leaving
from fedgossip.protocols.rounds import check_layout, finite
from fedgossip.vectors import Vector, frozen


@dataclass(frozen=True, slots=True)
class ClientSettings:
    silence_ns: int = 600_000_000_000
    """Without a link for so long there is no coordinator any more; above the time that it takes to start it again."""
    idle_ns: int = 86_400_000_000_000
    """With a link and without a word for so long; above the time until every client has had its turn."""


class Client:
    """One client.  `resumed`: go on from there; what was trained and not answered before is trained again."""

    def __init__(
        self,
        node: NodeId,
        coordinator: NodeId,
        rule: ClientRule,
        initial: Vector,
        schema: str,
        settings: ClientSettings,
        resumed: Checkpoint | None = None,
    ) -> None:
        self.node, self.coordinator, self.rule, self.settings = node, coordinator, rule, settings
        self.model = resumed.vectors["x"] if resumed else initial
        self.layout = Invite(0, schema, (initial,) * rule.vectors)
        self.memory = _several(resumed, "memory")
        self.pending = _several(resumed, "pending")
        self.pending_round = _number(resumed, "pending_round")
        """The round whose contribution makes `pending` the memory, if it is counted; -1: none."""
        self.asked: Invite | None = None
        """What is trained, or was trained last."""
        self.answer: Contribution | None = None
        self.next: Invite | None = None
        """What to train after this."""
        self.wanted = False
        """Whether the coordinator, in this life of it, has asked for the answer."""
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
            case Trained(job, update, examples, metrics):
                assert self.phase == "training" and self.asked and job == self.asked.round, f"job {job} is not ours"
                return [*self._trained(update, examples, metrics), *self._listen()]
            case PeerJoined(node, incarnation) if node == self.coordinator:
                if incarnation > self.life:
                    self.wanted = False  # it may have forgotten that it asked
                self.linked, self.met, self.life = True, True, max(self.life, incarnation)
                return self._listen()
            case PeerGone(node) if node == self.coordinator:
                self.linked = False
                return self._listen()
            case Fired(("silent",)):
                return self._listen() if self.phase == "training" else self._desert()
            case Started():
                self.phase = "waiting"
                return self._listen()
            case Stopping():
                self.phase = "finished"
                done = self.asked.round if self.asked else 0
                return [Send(self.coordinator, Leaving(done, done=True)), Finish(self.model)]
            case _:
                return []

    def _listen(self) -> list[Effect]:
        if self.phase == "finished":
            return []
        return [SetTimer(("silent",), self.settings.idle_ns if self.linked else self.settings.silence_ns)]

    def _desert(self) -> list[Effect]:
        self.phase = "finished"
        name = "deserted" if self.met else "nobody_came"
        round = self.asked.round if self.asked else 0
        return [Report(name, [self.coordinator], round), Finish(self.model)]

    # --- what the coordinator says --------------------------------------------------------------------------------

    def _received(self, sender: NodeId, message: object) -> list[Effect]:
        where = f"client {self.node}"
        if sender != self.coordinator:
            raise ProtocolError(f"{where}: a message of node {sender}; only the coordinator is heard", peer=sender)
        if not isinstance(message, Invite | Final):
            kind = type(message).__name__.lower()
            advice = "Were coordinator and clients started from the same experiment file?"
            raise ProtocolError(f"{where}: a message of kind {kind!r} in a federated run", advice, peer=sender)
        check_layout(
            f"{where}: what came of round {message.round}", sender, message.schema, message.vectors, self.layout
        )
        if not finite(message.vectors):
            raise ProtocolError(f"{where}: the model of round {message.round} is not finite", peer=sender)
        return self._invited(message) if isinstance(message, Invite) else self._final(message)

    def _invited(self, invite: Invite) -> list[Effect]:
        newest = self.next or self.asked
        if newest and self.wanted and invite.round < newest.round:
            return [Report("late", {"peer": self.coordinator, "round": invite.round}, newest.round)]
        again = self.asked is not None and _same(invite, self.asked)
        self.wanted = True
        if again:
            self.next = None
            return self._answered() if self.answer else []
        if self.phase == "training":
            self.next = invite
            return []
        return self._train(invite)

    def _train(self, invite: Invite) -> list[Effect]:
        if self.pending_round >= 0 and invite.counted == self.pending_round:
            self.memory = self.pending
        self.pending, self.pending_round = (), -1
        self.asked, self.answer, self.next = invite, None, None
        self.model = invite.vectors[0]
        self.phase = "training"
        return [Train(invite.round, self.model, self.rule.terms(invite.vectors, self.memory))]

    def _trained(self, update: Vector | None, examples: int, metrics: Mapping[str, float]) -> list[Effect]:
        assert self.asked
        self.phase = "waiting"
        round = self.asked.round
        if self.next:
            return [Report("outdated", {"round": round, "now": self.next.round}, round), *self._train(self.next)]
        moved = frozen(np.zeros_like(self.model)) if update is None else update
        steps = int(metrics.get("steps", 1))
        work = Work(moved, examples, steps, float(metrics.get("rate", 1.0)))
        up, self.pending = self.rule.upload(self.asked.vectors, self.memory, work)
        self.pending_round = round
        loss = float(metrics.get("loss", 0.0))
        self.answer = Contribution(round, self.layout.schema, up, max(1, examples), steps, loss)
        report = Report("trained", {**metrics, "examples": examples}, round)
        return [report, self._checkpoint(), *(self._answered() if self.wanted else [])]

    def _answered(self) -> list[Effect]:
        assert self.answer
        return [Send(self.coordinator, self.answer)] if self.linked else []

    def _checkpoint(self) -> Checkpoint:
        vectors = {"x": self.model}
        vectors.update({f"memory/{k}": v for k, v in enumerate(self.memory)})
        vectors.update({f"pending/{k}": v for k, v in enumerate(self.pending)})
        return Checkpoint(self.pending_round + 1, vectors, {"pending_round": self.pending_round})

    def _final(self, final: Final) -> list[Effect]:
        self.phase, self.model = "finished", final.vectors[0]
        return [Send(self.coordinator, Leaving(final.round, done=True)), Finish(self.model)]


def _same(invite: Invite, before: Invite) -> bool:
    """Whether what is asked is what was asked before: the same round, from the same vectors."""
    pairs = zip(invite.vectors, before.vectors, strict=True)
    return invite.round == before.round and all(a is b or np.array_equal(a, b) for a, b in pairs)


def _several(checkpoint: Checkpoint | None, name: str) -> Vectors:
    found = checkpoint.vectors if checkpoint else {}
    return tuple(found[f"{name}/{k}"] for k in range(len(found)) if f"{name}/{k}" in found)


def _number(checkpoint: Checkpoint | None, name: str) -> int:
    number = checkpoint.facts.get(name, -1) if checkpoint else -1
    assert isinstance(number, int)
    return number
