"""A round with hidden contributions: the coordinator's side of FG-SecAgg/1 as an `Exchange`.

    keys --all have keys--> shares --all have shared--> masked --all are summed--> consist --> unmask --> the sum

A phase ends when all present clients have answered, or at its deadline; a client without an answer has dropped.
Training runs during the first two phases, and keys for the next round are sent with the masked vectors.

Cohorts keep their size, filled up with absent clients, or change by an even number: two cohorts that differ by one
client would reveal its input (attack A13), and clients refuse such a pair.  Exact sums all have the clients of the
first sum with consent.

Clients mask once in a round: a round begun by an earlier incarnation, or with too few answers, is over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate
from fedgossip.algorithms.sampling import Draw, Sampling
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import digest
from fedgossip.core.machine import Effect, Log, NodeId, Report, Send, Witness
from fedgossip.core.messages import Invite, MaskedInput, Message, Refusal, Secured
from fedgossip.protocols.federated.aggregation_round import Abandoned, Answer, LeafSum, SumReading
from fedgossip.secure import frames, server
from fedgossip.secure.aborts import SUMMED, Reason, RoundAbandoned, Stage
from fedgossip.secure.encoding import NO_NOISE, Noise, NoiseRule, RingEncoding
from fedgossip.secure.primitives import Sign
from fedgossip.secure.session import NONE, ParticipantRoster, proposal, ranges, session_of

_Step = server.Inviting | server.Distributing | server.Summing | server.Consenting | server.Unmasking


@dataclass(frozen=True)
class SessionTerms:
    """The common terms of all sessions of a run."""

    roster: ParticipantRoster
    fixed: RingEncoding
    sign: Sign = field(repr=False)
    task_id: str
    n_min: int
    threshold: int | None = None
    neighbours: int | None = None
    rule: NoiseRule | None = None
    """The noise inside the sums."""


class Clipping(Protocol):
    """A clip that follows the updates."""

    @property
    def clip(self) -> float:
        """The clip of the next round."""

    def adapt(self, shorter: float, clients: int) -> Clipping:
        """Return the next one after this noisy sum of the clients' half bits."""


class SecureSumming:
    """Opens the secure rounds of one incarnation of a coordinator."""

    def __init__(
        self,
        terms: SessionTerms,
        reading: SumReading,
        clients: Sequence[NodeId],
        life: int,
        clipping: Clipping | None = None,
    ) -> None:
        """`clients`: all that may be in a sum; coordinators, if these have the clients."""
        self.terms, self.reading, self.clients, self.life = terms, reading, clients, life
        self.clipping = clipping
        self.members: frozenset[NodeId] | None = None
        """The fixed members of all sums, if they must not change and the first sum has consent."""
        self._last: SecureRound | None = None

    @property
    def least(self) -> int:
        return max(self.terms.n_min, self.terms.threshold or 0, len(self.members or ()))

    def cohort(self, sampling: Sampling, round: int, here: Collection[NodeId], left: Collection[NodeId]) -> Draw:
        """Return a cohort of the size invited when all are present: the present clients, and others in the free places.

        Departed clients leave the count by even numbers: sets of an even and an odd size may differ by one member.
        """
        full = sampling.draw(round, set(self.clients).difference(left) if left else self.clients)
        there = sampling.draw(round, here)
        size = len(full.invited)
        if left:
            size += (len(sampling.draw(round, self.clients).invited) - size) % 2
        others = [*full.invited, *sorted(left)]
        away = [node for node in others if node not in there.invited][: size - len(there.invited)]
        return Draw(tuple(sorted({*there.invited, *away})), full.wanted)

    def exchange(
        self, round: int, draw: Draw, here: Collection[NodeId], invite: Invite, counted: Mapping[NodeId, int]
    ) -> SecureRound:
        session = session_of(self.life, round)
        before = self._last
        follows = before is not None and before.session == session - 1 and before.sid != NONE
        previous, ahead = (before.sid, before.ahead) if before and follows else (NONE, {})
        self._last = SecureRound(self, round, session, draw, here, invite, counted, previous, ahead)
        return self._last

    @property
    def fixed(self) -> RingEncoding:
        """The encoding of numbers as integers in the next session."""
        fixed = self.terms.fixed
        return fixed.clipped_at(min(self.clipping.clip, fixed.clip_inf)) if self.clipping else fixed

    def saved(self) -> Mapping[str, object]:
        return {"clip": self.clipping.clip} if self.clipping else {}

    def forget(self, node: NodeId) -> None:
        if self._last:
            self._last.ahead.pop(node, None)


class SecureRound:
    """One session.  `draw.invited` is its cohort; it waits for the members `here`."""

    def __init__(
        self,
        summing: SecureSumming,
        round: int,
        session: int,
        draw: Draw,
        here: Collection[NodeId],
        invite: Invite,
        counted_before: Mapping[NodeId, int],
        previous: bytes,
        ahead: Mapping[NodeId, frames.Keys],
    ) -> None:
        self.summing, self.round, self.session, self.draw, self.invite = summing, round, session, draw, invite
        self.counted_before, self._previous = counted_before, previous
        self._keys: dict[NodeId, frames.Keys] = dict(ahead)
        self.here = {node for node in draw.invited if node in here}
        if summing.members is not None:
            self.here &= summing.members
        self.cut = False
        self.counted: tuple[NodeId, ...] = ()
        self.result: Aggregate | LeafSum | Abandoned | None = None
        self.sid = NONE
        self.ahead: dict[NodeId, frames.Keys] = {}
        """The keys for the next session, sent with the masked vectors; their `previous` is `sid`."""
        self._step: _Step | None = None
        self._stage: Stage = Stage.KEYS
        self._facts: dict[str, object] = {}
        self._fixed: RingEncoding = summing.fixed
        self._noise: Noise = summing.terms.rule.compute_noise(self._fixed) if summing.terms.rule else NO_NOISE

    @property
    def phase(self) -> str:
        return self._stage.name.lower()

    @property
    def waiting(self) -> Iterable[NodeId]:
        return set(self.draw.invited) - set(self.counted)

    def facts(self) -> Mapping[str, object]:
        return self._facts

    def belongs(self, message: Answer) -> bool:
        return not isinstance(message, Secured | MaskedInput | Refusal) or message.session == self.session

    # --- stages ---------------------------------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        t, fixed = self.summing.terms, self._fixed
        try:
            descriptor = proposal(
                t.roster,
                fixed,
                self.draw.invited,
                task_id=t.task_id,
                round=self.session,
                model=bytes.fromhex(digest(self.invite.vectors)),
                n_min=t.n_min,
                k=t.neighbours,
                t=t.threshold if (t.threshold or 0) <= len(self.draw.invited) else None,
                previous=self._previous,
                noise=self._noise,
            )
            self._step = server.invite(t.roster, descriptor, fixed, t.sign, self._keys)
        except RoundAbandoned as abandoned:
            return self._abandon(abandoned)
        about = {"clients": len(descriptor.cohort), "threshold": descriptor.t}
        return [self._log("session", **about), *self._begun(self.here), *self._advance()]

    def _begun(self, nodes: Iterable[NodeId]) -> list[Effect]:
        """Return the first messages of a stage to these clients; the transcript contains each once."""
        step, effects = self._step, self._frames(nodes)
        if isinstance(step, server.Inviting | server.Consenting):
            alike = Witness(self.session, None, step.frame, sent=True)
            return [alike, *self._send(effects)]
        return [
            *(Witness(self.session, node, frame, sent=True) for node, frame in effects.items()),
            *self._send(effects),
        ]

    def _frames(self, nodes: Iterable[NodeId]) -> dict[NodeId, bytes]:
        match self._step:
            case (server.Inviting() | server.Consenting()) as step:
                return dict.fromkeys(sorted(nodes), step.frame)
            case (server.Distributing() | server.Summing() | server.Unmasking()) as step:
                return {node: step.frame_for(node) for node in sorted(nodes)}
            case None:
                return {}

    def _send(self, frames: Mapping[NodeId, bytes]) -> list[Effect]:
        message = self._invitation if isinstance(self._step, server.Inviting) else self._secured
        return [Send(node, message(node, frame)) for node, frame in frames.items()]

    def _invitation(self, node: NodeId, frame: bytes) -> Invite:
        counted = self.counted_before.get(node, -1)
        return Invite(self.round, self.invite.schema, self.invite.vectors, counted, self.session, frame)

    def _secured(self, _: NodeId, frame: bytes) -> Secured:
        return Secured(self.session, int(self._stage), frame)

    def _advance(self) -> list[Effect]:
        """Close every stage without an awaited client, and send the next stage's frames."""
        effects: list[Effect] = []
        while self._step is not None and self._complete(self._step):
            effects += self._close()
        return effects

    def _complete(self, step: _Step) -> bool:
        if isinstance(step, server.Summing) and len(step.expected) - len(step.waiting) >= self.draw.wanted:
            return True
        return step.waiting.isdisjoint(self.here)

    def _close(self) -> list[Effect]:
        assert self._step is not None
        try:
            closed = self._step.close()
            if isinstance(closed, server.Summed):
                return self._summed(closed)
        except RoundAbandoned as abandoned:
            return self._abandon(abandoned)
        if isinstance(closed, server.Consenting) and self._fixed.together:
            members, there = self.summing.members, closed.expected
            if members is not None and there != members:
                text = (
                    f"all sums of this run are of clients {ranges(sorted(members))}; {ranges(sorted(there))} are here"
                )
                short = RoundAbandoned(Reason.COMPANY, text, have=len(there), need=len(members))
                return self._abandon(short)
            self.summing.members = frozenset(there)
        self._step, self._stage = closed, Stage(self._stage + 1)
        return self._begun(closed.expected & self.here)

    def _abandon(self, abandoned: RoundAbandoned) -> list[Effect]:
        self._step = None
        need = abandoned.need if abandoned.need is not None else self.summing.least
        self.result = Abandoned(abandoned.have or 0, need, abandoned.reason.value, str(abandoned))
        reason = abandoned.reason.value
        return [Witness(self.session, None, b"", sent=True, outcome=reason), self._log("abandoned", reason=reason)]

    def _log(self, kind: str, **facts: int | str) -> Log:
        return Log(kind, {"session": self.session, "round": self.round, **facts})

    def _summed(self, summed: server.Summed) -> list[Effect]:
        reading = self.summing.reading
        found = reading.decoded(summed.total, summed.survivors, self._fixed)
        self._step, self._stage = None, Stage.RESULT
        self.counted, self.sid, self.ahead = summed.survivors, summed.sid, dict(summed.ahead)
        self.result, self._facts = reading.result(found, summed.total, self.round), reading.facts(found, self._fixed)
        if self.summing.clipping:
            self._facts["clip"] = self._fixed.clip_l2
            self.summing.clipping = self.summing.clipping.adapt(found.shorter, found.clients)
        culprits = [Report("misfits", {"of": v, "held_by": u}, self.round) for v, u in summed.culprits]
        effects = [Send(node, self._secured(node, summed.frame)) for node in summed.survivors if node in self.here]
        ends = [Witness(self.session, None, frame, sent=True, outcome=SUMMED) for frame in (summed.frame, b"")]
        return [*culprits, *ends, self._log("sum", clients=found.clients, sid=summed.sid.hex()), *effects]

    # --- messages and links -------------------------------------------------------------------------------------------

    def handle(self, sender: NodeId, message: Answer) -> list[Effect]:
        if isinstance(message, Refusal):
            report = Report("abstained", {"peer": sender, "reason": message.reason}, self.round)
            return [report, *self.lost(sender)]
        if not isinstance(message, Secured | MaskedInput):
            text = f"round {self.round}: client {sender} answers in the clear, in a secure sum"
            raise ProtocolError(text, "Give it the same experiment file.", peer=sender)
        step = self._step
        if (
            step is None
            or message.stage < self._stage
            or (message.stage == self._stage and sender in step.expected and sender not in step.waiting)
        ):
            return [Report("repeated", {"peer": sender, "round": self.round}, self.round)]
        self._take(step, sender, message)
        return [Witness(self.session, sender, message.frame, sent=False), *self._advance()]

    def _take(self, step: _Step, sender: NodeId, message: Message) -> None:
        if isinstance(step, server.Summing):
            if not isinstance(message, MaskedInput):
                raise ProtocolError(f"round {self.round}: a frame where a vector is due", peer=sender)
            if [vector.dtype for vector in message.vectors] != [np.uint32]:
                raise ProtocolError(f"round {self.round}: not one vector of words from client {sender}", peer=sender)
            step.take_whole(sender, message.frame, message.vectors[0])
            return
        if not isinstance(message, Secured):
            raise ProtocolError(f"round {self.round}: a vector where none is due", peer=sender)
        step.take(sender, message.frame)

    def lost(self, node: NodeId) -> list[Effect]:
        self.here.discard(node)
        return self._advance()

    def back(self, node: NodeId, *, another: bool) -> list[Effect]:
        step = self._step
        members = self.summing.members
        if node not in self.draw.invited or step is None or (members is not None and node not in members):
            return []
        if another and not (isinstance(step, server.Inviting) and node in step.waiting):
            return self.lost(node)  # the secrets of this session are lost with its last life
        if node not in step.waiting:
            return []
        self.here.add(node)
        return self._send(self._frames([node]))

    def expired(self) -> list[Effect]:
        self.cut = True
        effects = self._close()
        return effects + self._advance()
