"""FedBuff's coordinator: asynchronous rounds without cohorts; a fixed number of clients train at any time.

    gathering --enough clients--> going: an answer is added, another client invited; after `goal` answers a server step
                                  after the last step --> leaving --all have the model--> finished

Nguyen et al. 2022, algorithm 1.  A round is a server step.  Differences: a client trains at most once from each model;
one that misses its deadline is replaced; an answer more than `most_stale` steps old is dropped.

A step depends on the order of arrival, so a run can be replayed, but two runs differ.  A crash of the coordinator loses
its buffer: the clients in it are invited again.  Only for clients without memory (not SCAFFOLD), and aggregations that
are sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from fedgossip.algorithms.federated.base import Federated, State, restored, saved
from fedgossip.algorithms.federated.fedavg import staleness_weight
from fedgossip.base.errors import ProtocolError
from fedgossip.base.limits import MOST
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
    Aggregated,
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
    RoundDone,
    Send,
    SetTimer,
    Started,
    Stopping,
)
from fedgossip.core.messages import Contribution, Final, Invite, Leaving
from fedgossip.protocols.federated.aggregation_round import NOT_FINITE, Gathered, stepped
from fedgossip.protocols.gossip.failures import too_few
from fedgossip.protocols.gossip.partner_set import ROLL_NS, PartnerSet


@dataclass(frozen=True, slots=True)
class BufferedSettings:
    """Limits of one run.  Times in nanoseconds."""

    rounds: int
    """Number of server steps."""
    goal: int = 10
    """K: number of answers per step; the paper finds 10 good for hundreds of clients."""
    at_once: int = 20
    """Number of clients in training at any time; more are faster and staler."""
    most_stale: int = 20
    """Maximum number of steps since the invitation of a client; an older answer is dropped."""
    min_clients: int = 1
    """Minimum number of present clients for an invitation."""
    deadline_ns: int = 300_000_000_000
    """Maximum wait for one client."""
    start_ns: int = 300_000_000_000
    """Maximum wait for all clients at the start, and for enough of them whenever too few are left."""
    drain_ns: int = 30_000_000_000
    """Maximum stay after the last step until every client has the model."""
    again_ns: int = 2_000_000_000
    """Wait before an unanswered last model is sent again."""
    seed: int = 0
    """Seed of the draw of the next client."""
    score: Score = ACCURACY
    """The clients' score of the model sent to them."""

    @property
    def endless(self) -> bool:
        """Whether it continues until too few clients are left: their loops end it."""
        return self.rounds >= MOST


UNANSWERED = 3
"""Maximum number of successive unanswered invitations per present client; then the run ends."""


class Buffered(Generic[State]):
    """`clients` are all that may take part; `resumed`: continue after the step of this checkpoint."""

    def __init__(
        self,
        node: NodeId,
        clients: Sequence[NodeId],
        federated: Federated[State],
        initial: Vector,
        schema: str,
        settings: BufferedSettings,
        resumed: Checkpoint | None = None,
    ) -> None:
        assert 1 <= settings.goal <= len(clients), "a client answers once per step: no more answers than clients"
        self.node, self.federated, self.settings = node, federated, settings
        self.schema, self.kind, self.length = schema, initial.dtype, initial.size
        self.state = restored(federated.server, resumed.vectors) if resumed else federated.server.start(initial)
        self.round = resumed.round if resumed else 0
        self.invitations = _invitations(resumed)
        self.company = PartnerSet(node, clients)
        self.phase = "new"
        self.flying: dict[NodeId, int] = {}  # training clients, with the round of their invitation
        self.seen: dict[NodeId, int] = {}  # the newest model sent to each client
        self.counted: set[NodeId] = set(_counted(resumed))  # clients counted at least once
        self.unanswered = 0  # number of invitations in a row
        self.vain: set[NodeId] = set()  # clients that missed a deadline
        self.done: set[NodeId] = set()  # clients with the final model
        self.uninformed: set[NodeId] = set()  # at the end: present clients without it
        self.failure: Failure | None = None  # reason of an early end
        self._empty()

    def _empty(self) -> None:
        rule = self.federated.clients
        accumulator = self.federated.aggregation.accumulator(rule.vectors, self.length, self.kind)
        self.invite = Invite(self.round, self.schema, self.federated.server.broadcast(self.state))
        self.gathering = Gathered(accumulator, self.invite, self.settings.score)
        self.staleness = 0  # of all gathered answers

    @property
    def model(self) -> Vector:
        return self.federated.server.broadcast(self.state)[0]

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:  # noqa: ARG002
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, Contribution() as contribution):
                return self._contributed(sender, contribution)
            case Received(sender, Leaving(done=done)):
                return self._handle_goodbye(sender, done=done)
            case PeerJoined(node, incarnation) if node in self.company.known:
                self.company.joined(node, incarnation)
                return self._admit(node)
            case PeerGone(node) if node in self.company.linked:
                self.company.linked.discard(node)
                self.uninformed.discard(node)
                return self._without(node)
            case Fired(key):
                return self._fired(key)
            case Started():
                return self._gather()
            case Stopping():
                left = [node for node in self.company.list_present() if node not in self.done]
                return [*self._send_final(left), *self._finish()]
            case Received(sender, message):
                kind = type(message).__name__.lower()
                raise ProtocolError(f"coordinator: a message of kind {kind!r} from node {sender}", peer=sender)
            case _:
                return []

    def _fired(self, key: object) -> list[Effect]:
        match key:
            case ("answer", int(node), int(round)) if self.flying.get(node) == round:
                self._give_up(node)
                self.unanswered += 1
                self.vain.add(node)
                missed = Report("missed", [node], self.round)
                return [missed, *(self._invite() if self._may_be_answered() else self._end_unanswered())]
            case ("gather", int(round)) if self.phase == "gathering" and round == self.round:
                here = len(self.company.list_present())
                if here < self._need:
                    facts = {"clients": here, "needed": self._need}
                    return [Report("too_few", facts, self.round), *self._conclude(too_few(self.round, facts))]
                self.phase = "going"
                return [Report("started_without", self.company.missing(), self.round), *self._invite()]
            case ("roll",) if self.phase == "gathering":
                return self.company.roll(self.round)
            case ("again",) if self.phase == "leaving":
                return [*self._send_final(sorted(self.uninformed)), SetTimer(("again",), self.settings.again_ns)]
            case ("drain",) if self.phase == "leaving":
                return self._finish()
            case _:  # a stale timer
                return []

    # --- present clients ----------------------------------------------------------------------------------------------

    @property
    def _need(self) -> int:
        return max(self.settings.min_clients, self.settings.goal)

    def _handle_goodbye(self, sender: NodeId, *, done: bool) -> list[Effect]:
        self.company.check(sender, "a goodbye")
        self.uninformed.discard(sender)
        if not done:  # it may be started again
            self.company.linked.discard(sender)
            return self._without(sender)
        (self.done if self.phase == "leaving" else self.company.left).add(sender)
        if self._deserted:
            self._give_up(sender)
            return self._conclude()
        return self._without(sender)

    @property
    def _deserted(self) -> bool:
        """Whether too many clients have left for another step."""
        staying = len(self.company.partners) - len(self.company.left)
        return self.phase != "leaving" and self.settings.endless and staying < self._need

    def _gather(self) -> list[Effect]:
        self.phase = "gathering"
        return [SetTimer(("gather", self.round), self.settings.start_ns), SetTimer(("roll",), ROLL_NS)]

    def _admit(self, node: NodeId) -> list[Effect]:
        company = self.company
        if self.phase == "leaving":
            self.uninformed.update({node} - self.done)
            return self._send_final([node])
        if self.phase == "going":
            self._give_up(node)  # it may have lost its invitation, or its answer
            return self._invite()
        if self.phase != "gathering" or len(company.linked) + len(company.left) < len(company.partners):
            return []
        if company.missing() or len(company.list_present()) < self._need:
            return []
        self.phase = "going"
        return self._invite()

    def _without(self, node: NodeId) -> list[Effect]:
        self._give_up(node)
        if self.phase == "leaving":
            return [] if self.uninformed else self._finish()
        at_its_end = self.settings.endless and node in self.company.left
        effects: list[Effect] = [] if at_its_end else [Report("gone", node, self.round)]
        if self.phase == "going" and len(self.company.list_present()) < self._need:
            return [*effects, *self._gather()]
        return [*effects, *self._invite()] if self.phase == "going" else effects

    # --- a step ---------------------------------------------------------------------------------------------------

    def _give_up(self, node: NodeId) -> None:
        """Stop waiting for an answer of `node`; the same model may be sent to it again."""
        if self.flying.pop(node, None) is not None:
            del self.seen[node]

    def _may_be_answered(self) -> bool:
        return self.unanswered < UNANSWERED * max(1, len(self.company.list_present()))

    def _end_unanswered(self) -> list[Effect]:
        facts = {"clients": self.gathering.clients, "needed": self.settings.goal, "unanswered": self.unanswered}
        return [Report("too_few", facts, self.round), *self._conclude(too_few(self.round, facts))]

    def _invite(self) -> list[Effect]:
        effects: list[Effect] = []
        idle = [k for k in self.company.list_present() if k not in self.flying and self.seen.get(k, -1) < self.round]
        while idle and len(self.flying) < self.settings.at_once:
            draw = stream(self.settings.seed, "next client", self.invitations)
            node = idle.pop(int(draw.integers(len(idle))))
            self.invitations += 1
            self.flying[node] = self.seen[node] = self.round
            effects += [Send(node, self.invite), SetTimer(("answer", node, self.round), self.settings.deadline_ns)]
        return effects

    def _contributed(self, sender: NodeId, contribution: Contribution) -> list[Effect]:
        self.company.check(sender, "a contribution")
        if contribution.round > self.round:
            text = f"coordinator, round {self.round}: client {sender} answers for round {contribution.round}"
            raise ProtocolError(text, "Was it invited by another run?", peer=sender)
        if self.phase != "going" or self.flying.get(sender) != contribution.round:
            return [Report("late", {"peer": sender, "round": contribution.round}, self.round)]
        staleness = self.round - contribution.round
        self.gathering.check(sender, contribution)
        if staleness > self.settings.most_stale:
            del self.flying[sender]
            facts = {"peer": sender, "staleness": staleness}
            return [Report("stale", facts, self.round), *self._invite()]
        self.gathering.add(sender, contribution, self.federated.clients, staleness_weight(staleness))
        del self.flying[sender]
        self.staleness += staleness
        self.counted.add(sender)
        self.unanswered = 0
        return self._step() if self.gathering.clients == self.settings.goal else self._invite()

    def _step(self) -> list[Effect]:
        facts = {**self.gathering.facts(), "staleness": self.staleness / self.gathering.clients}
        state = stepped(self.federated.server, self.state, self.gathering.aggregate())
        effects: list[Effect] = [Aggregated(self.round, facts)]
        if state is None:
            text = "the step of the server leaves a model that is not finite"
            why = {"contributions": facts["clients"], "needed": self._need, "reason": NOT_FINITE, "text": text}
            effects = [Report("abandoned", why, self.round), Aggregated(self.round, {"clients": 0})]
        self.state = self.state if state is None else state
        self.round += 1
        self._empty()
        memory = {"invitations": self.invitations, "counted": sorted(self.counted)}
        effects.append(Checkpoint(self.round, saved(self.state), memory, durable=True))
        effects.append(RoundDone(self.round, self.model))
        return effects + (self._conclude() if self.round == self.settings.rounds else self._invite())

    # --- the end --------------------------------------------------------------------------------------------------

    def _conclude(self, failure: Failure | None = None) -> list[Effect]:
        self.phase, self.failure = "leaving", failure
        self.flying.clear()
        self.uninformed = set(self.company.list_present()) - self.done
        if not self.uninformed:
            return self._finish()
        again, drain = self.settings.again_ns, self.settings.drain_ns
        return [*self._send_final(sorted(self.uninformed)), SetTimer(("again",), again), SetTimer(("drain",), drain)]

    def _send_final(self, to: Sequence[NodeId]) -> list[Effect]:
        final = Final(self.round, self.schema, self.invite.vectors)
        return [Send(node, final) for node in to]

    def _finish(self) -> list[Effect]:
        over = self.phase == "leaving"
        self.phase = "finished"
        return [*(self._never_counted() if over else []), Finish(self.model, self.failure)]

    def _never_counted(self) -> list[Effect]:
        """Report clients that were never present, or invited without an answer; others may be uncounted by chance."""
        company, counted = self.company, self.counted
        lost = [node for node in company.partners if node not in company.ever_linked or node in self.vain]
        never = [node for node in lost if node not in counted]
        return [Report("never_counted", never, self.round)] if never else []


def _counted(checkpoint: Checkpoint | None) -> list[NodeId]:
    facts: Any = checkpoint.facts if checkpoint else {}
    return list(facts.get("counted", ()))


def _invitations(checkpoint: Checkpoint | None) -> int:
    facts: Any = checkpoint.facts if checkpoint else {}
    return int(facts.get("invitations", 0))
