"""The coordinator of a federated run: it invites a cohort, sums what comes back, and takes the server's step.

    gathering --enough clients--> inviting, a phase of an exchange after the other --result--> inviting the next ...
        ^---------- too few are left ----------'               after the last round --> leaving --all know--> finished

A round is an `Exchange` (`rounds`).  Each of its phases has a deadline, which follows the rounds that were seen; at it
the round goes on with those that are there, or, with fewer than the quorum, is abandoned: it then changes nothing, and
is not tried again, for what was trained for it must not be summed in another company.  It counts as a round.

A client that is gone, or says goodbye, is not waited for; one that comes back is invited again, to the round that is
open if it belongs to its cohort.  One that answers for a round that is over is late, and no harm is done.

After every round stands a Checkpoint, before anything that says that the round is done: a coordinator that is made from
it goes on with the next round, draws the same cohort, and sends the same model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from fedgossip.algorithms.federated.base import Aggregate, Federated, State, restored, saved
from fedgossip.algorithms.sampling import Draw, Sampling
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
)
from fedgossip.messages import Contribution, Final, Invite, Leaving
from fedgossip.protocols.company import Company
from fedgossip.protocols.deadlines import Deadline
from fedgossip.protocols.rounds import Abandoned, Exchange, PlainRound
from fedgossip.vectors import Vector


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Limits of one run.  Times in nanoseconds."""

    rounds: int
    min_clients: int = 1
    """A round of fewer contributions is abandoned; with fewer clients there none begins."""
    deadline_ns: int = 300_000_000_000
    """The longest wait in one phase of a round; above the slowest client's training time and transfer."""
    least_deadline_ns: int = 5_000_000_000
    """The deadline follows the rounds that were seen, within these two; equal: it is constant."""
    start_ns: int = 300_000_000_000
    """How long to wait for all clients at the start, and for enough of them whenever too few are left."""
    return_ns: int = 10_000_000_000
    """How long a coordinator that is started again waits for all clients, before it goes on with those that came."""
    drain_ns: int = 30_000_000_000
    """How long to stay after the last round until every client has the model."""
    again_ns: int = 2_000_000_000
    """After so long a last model that was not answered is sent again."""


class Coordinator(Generic[State]):
    """`clients` are all that may take part; `resumed`: go on after its round, in a new life."""

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
    ) -> None:
        self.node, self.federated, self.sampling, self.settings = node, federated, sampling, settings
        self.schema, self.kind, self.length = schema, initial.dtype, initial.size
        self.state = restored(federated.server, resumed.vectors) if resumed else federated.server.start(initial)
        self.round = resumed.round if resumed else 0
        self.counted: dict[NodeId, int] = _counted(resumed)
        """The last round in which each client's contribution was counted."""
        self.need = max(settings.min_clients, federated.aggregation.least)
        self.company = Company(node, clients)
        self.phase = "new"
        self.exchange: Exchange | None = None
        self.done: set[NodeId] = set()  # have the final model
        self.deadline = Deadline(settings.deadline_ns, settings.least_deadline_ns)
        self.began_ns = 0  # the round
        self.patience_ns = settings.return_ns if resumed else settings.start_ns

    @property
    def model(self) -> Vector:
        return self.federated.server.broadcast(self.state)[0]

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, Contribution() as contribution):
                return self._contributed(sender, contribution, now_ns)
            case Received(sender, Leaving(done=done)):
                return self._left(sender, now_ns, done=done)
            case PeerJoined(node, incarnation):
                return self._joined(node, incarnation, now_ns)
            case PeerGone(node):
                return self._gone(node, now_ns)
            case Fired(key):
                return self._fired(key, now_ns)
            case Started():
                return self._gather()
            case Stopping():
                return [*self._say_final(self._uninformed()), *self._finish()]
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
            case ("phase", round, phase) if exchange and (round, phase) == (self.round, exchange.phase):
                return self._going(exchange.expired(), exchange.phase, now_ns)
            case ("gather", round) if self.phase == "gathering" and round == self.round:
                return self._begin_with_those_here(now_ns)
            case ("again",) if self.phase == "leaving":
                return [*self._say_final(self._uninformed()), SetTimer(("again",), self.settings.again_ns)]
            case ("drain",) if self.phase == "leaving":
                return self._finish()
            case _:  # a timer that no longer matters
                return []

    # --- who is there ---------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        if node not in self.company.partners:
            return []
        self.company.joined(node, incarnation)
        if self.phase == "leaving":
            return self._say_final([node])
        if self.exchange:
            return self._going(self.exchange.back(node), self.exchange.phase, now_ns)
        return self._begin_if_gathered(now_ns)

    def _gone(self, node: NodeId, now_ns: int) -> list[Effect]:
        if node not in self.company.linked:
            return []
        self.company.linked.discard(node)
        return self._without(node, now_ns)

    def _left(self, sender: NodeId, now_ns: int, *, done: bool) -> list[Effect]:
        self.company.check(sender, "a goodbye")
        if self.phase == "leaving" and done:
            self.done.add(sender)
        else:
            self.company.left.add(sender)
        return self._without(sender, now_ns)

    def _without(self, node: NodeId, now_ns: int) -> list[Effect]:
        """Go on without a client, where it was waited for."""
        if self.phase == "leaving":
            return self._finish() if not self._uninformed() else []
        report: list[Effect] = [Report("gone", node, self.round)]
        if self.exchange:
            return report + self._going(self.exchange.lost(node), self.exchange.phase, now_ns)
        return report + self._begin_if_gathered(now_ns)

    def _gather(self) -> list[Effect]:
        self.phase = "gathering"
        return [SetTimer(("gather", self.round), self.patience_ns)]

    def _begin_if_gathered(self, now_ns: int) -> list[Effect]:
        """At the start all are waited for; later those that are enough."""
        company = self.company
        if self.phase != "gathering" or len(company.linked) < self.need:
            return []
        if not self.began_ns and len(company.linked) + len(company.left) < len(company.partners):
            return []  # a thousand links come up one by one: the lists below would be made for each
        if len(company.here()) < self.need or (company.missing() and not self.began_ns):
            return []
        return self._open(now_ns)

    def _begin_with_those_here(self, now_ns: int) -> list[Effect]:
        here, longest_ns = self.company.here(), self.settings.start_ns
        if len(here) < self.need and self.patience_ns < longest_ns:
            self.patience_ns = longest_ns
            return self._gather()
        if len(here) < self.need:
            report = Report("too_few", {"clients": len(here), "needed": self.need}, self.round)
            return [report, *self._conclude()]
        return [Report("started_without", self.company.missing(), self.round), *self._open(now_ns)]

    # --- a round --------------------------------------------------------------------------------------------------

    def _open(self, now_ns: int) -> list[Effect]:
        """Begin the next round that has a cohort, or end."""
        effects: list[Effect] = []
        self.began_ns, self.patience_ns = max(now_ns, 1), self.settings.start_ns
        while self.round < self.settings.rounds:
            here = self.company.here()
            if len(here) < self.need:
                return [*effects, *self._gather()]
            draw = self.sampling.draw(self.round, here)
            if len(draw.invited) >= self.need:
                self.phase, self.exchange = "inviting", self._exchange_of(draw)
                return effects + self._going(self.exchange.begin(), "", now_ns)
            effects += self._over(Abandoned(len(draw.invited), self.need))
        return [*effects, *self._conclude()]

    def _exchange_of(self, draw: Draw) -> Exchange:
        """The seam: with a secure sum another exchange stands here."""
        rule = self.federated.clients
        accumulator = self.federated.aggregation.accumulator(rule.vectors, self.length, self.kind)
        invite = Invite(self.round, self.schema, self.federated.server.broadcast(self.state))
        return PlainRound(self.round, draw, self.need, rule, accumulator, invite, self.counted)

    def _contributed(self, sender: NodeId, contribution: Contribution, now_ns: int) -> list[Effect]:
        self.company.check(sender, "a contribution")
        if contribution.round > self.round or (contribution.round == self.round and not self.exchange):
            text = f"coordinator, round {self.round}: client {sender} answers for round {contribution.round}"
            raise ProtocolError(text, "Was it invited by another run?", peer=sender)
        if contribution.round < self.round:
            return [Report("late", {"peer": sender, "round": contribution.round}, self.round)]
        assert self.exchange
        return self._going(self.exchange.heard(sender, contribution), self.exchange.phase, now_ns)

    def _going(self, effects: list[Effect], before: str, now_ns: int) -> list[Effect]:
        """Set the deadline of a phase that has begun; close the round that has a result, and open the next."""
        assert self.exchange
        result = self.exchange.result
        if result is None:
            if self.exchange.phase != before:
                effects.append(SetTimer(("phase", self.round, self.exchange.phase), self.deadline.now_ns()))
            return effects
        if isinstance(result, Aggregate):
            effects += self._counts(result, now_ns)
        else:
            effects += self._over(result)
        return effects + self._open(now_ns)

    def _counts(self, aggregate: Aggregate, now_ns: int) -> list[Effect]:
        assert self.exchange
        exchange, self.exchange = self.exchange, None
        self.state = self.federated.server.step(self.state, aggregate)
        self.counted.update(dict.fromkeys(exchange.counted, self.round))
        missed = sorted(exchange.waiting)
        if not exchange.cut:
            self.deadline.saw(now_ns - self.began_ns)
        effects: list[Effect] = [Report("missed", missed, self.round)] if missed else []
        effects.append(Report("aggregated", dict(exchange.facts()), self.round))
        return effects + self._next()

    def _over(self, result: Abandoned) -> list[Effect]:
        self.exchange = None
        facts = {"contributions": result.have, "needed": result.need}
        return [Report("abandoned", facts, self.round), *self._next()]

    def _next(self) -> list[Effect]:
        """The round is behind; the checkpoint first, so that no round is lost that was said to be done."""
        self.round += 1
        facts: Mapping[str, object] = {"counted": {str(node): round for node, round in self.counted.items()}}
        return [Checkpoint(self.round, saved(self.state), facts), Report("mixed", self.model, self.round)]

    # --- the end --------------------------------------------------------------------------------------------------

    def _conclude(self) -> list[Effect]:
        self.phase, self.exchange = "leaving", None
        if not self._uninformed():
            return self._finish()
        again, drain = self.settings.again_ns, self.settings.drain_ns
        waits = [SetTimer(("again",), again), SetTimer(("drain",), drain)]
        return [*self._say_final(self._uninformed()), *waits]

    def _uninformed(self) -> list[NodeId]:
        return [node for node in self.company.here() if node not in self.done]

    def _say_final(self, to: Sequence[NodeId]) -> list[Effect]:
        final = Final(self.round, self.schema, self.federated.server.broadcast(self.state))
        return [Send(node, final) for node in to]

    def _finish(self) -> list[Effect]:
        self.phase, self.exchange = "finished", None
        return [Finish(self.model)]


def _counted(checkpoint: Checkpoint | None) -> dict[NodeId, int]:
    facts: Any = checkpoint.facts.get("counted", {}) if checkpoint else {}
    return {int(node): int(round) for node, round in facts.items()}
