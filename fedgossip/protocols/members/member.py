"""One participant of a run with a changing roster: membership, a gossip machine, and the model for a late start.

    founder    gossips from the first round on; if others report an earlier incarnation, it returns as below
    joiner     contact --> fetch the model --> announce the first round to take part in --> that round --> gossip

A returning member without a verdict on it resumes at once.  The gossip machine receives links and new schedules;
messages and timers of membership and transfer bypass it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    Machine,
    Moved,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Rostered,
    RoundDone,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.messages import (
    ChunkRequest,
    Compare,
    CompareBuckets,
    IndirectAck,
    Join,
    MembershipUpdate,
    Model,
    ModelChunk,
    ModelInfo,
    ModelQuery,
    Ping,
    PingReq,
    Pong,
)
from fedgossip.protocols.gossip.failures import far_ahead, no_neighbour_joined, refused_by
from fedgossip.protocols.members.membership import Membership, Outcome
from fedgossip.protocols.members.roster import RosterSchedule, boundary_after
from fedgossip.protocols.state_transfer import ModelFetch, ModelSource

OURS = (
    Ping,
    Pong,
    PingReq,
    IndirectAck,
    MembershipUpdate,
    Compare,
    CompareBuckets,
    Join,
    ModelQuery,
    ModelInfo,
    ChunkRequest,
    ModelChunk,
)

NEAR_ROUNDS = 16
"""Maximum number of rounds that a returning member may be behind to resume from its checkpoint."""

BEGIN_NS = 10_000_000_000
"""Wait of a joiner until a second member confirms that its first round is near."""

MakeGossip = Callable[[RosterSchedule, Checkpoint | None, int], Machine]
"""(graphs, checkpoint to resume from, this member's incarnation)."""

TakeUp = Callable[[int, Vector], Checkpoint]
"""(round, model): checkpoint of a machine that adopts this model after `round` rounds."""


class Member:
    """`make` creates the gossip machine, from a checkpoint if the run has begun; `layout`: schema, length, dtype.

    `take_up` makes that checkpoint from another peer's model.  `join`: the run has begun without this member.
    `resumed`: an earlier incarnation's checkpoint.  `start_ns`: maximum wait of a joiner for a contact.
    """

    def __init__(
        self,
        membership: Membership,
        make: MakeGossip,
        take_up: TakeUp,
        layout: tuple[str, int, str],
        rounds: int,
        *,
        join: bool = False,
        resumed: Checkpoint | None = None,
        start_ns: int = 300_000_000_000,
    ) -> None:
        self.membership, self.rounds, self.resumed, self.start_ns = membership, rounds, resumed, start_ns
        self.gossip: Machine | None = None
        self.joining = join
        self.since: int | None = None
        """The first round of participation, once it is announced."""
        self.giver = ModelSource(layout[0])
        self.taker = ModelFetch(*layout)
        self._make, self._take_up = make, take_up
        self._early: dict[NodeId, Model] = {}
        self._training = self._forgotten = 0
        self._finished = self._seeking = self._mixed = False
        self._asked_to_begin = self._waited = False
        self._failure: Failure | None = None  # reason of an early end

    def introduction(self) -> Join | None:
        """Return the first message on every link, until the members have this member's entry; None for a founder."""
        return self.membership.introduction()

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine."""
        if self._finished:
            return []
        if isinstance(event, Stopping):
            return self._stop(now_ns)
        effects = self._settle(self.membership.handle(event, now_ns), now_ns)
        effects += self._unless_refused(lambda: self._transferred(event, now_ns))
        match event:
            case Started() if not self.joining:
                effects += self._begin(self.resumed, now_ns)
            case Started():
                effects += [Report("asks", self.membership.contacts, 0), self._start_timer()]
            case Fired(("member", "start" | "begin" as what)) if self.joining:
                return [*effects, *self._time_is_up(what, now_ns)]
            case Trained() if self._forgotten:
                self._forgotten -= 1
            case Received(sender, Model() as model) if self.gossip is None:
                effects += self._unless_refused(lambda: self._keep(sender, model))
            case PeerJoined() | PeerGone() | Moved() | Fired(("member" | "transfer", *_)):
                pass  # membership passes links on to the gossip machine
            case Received(_, message) if isinstance(message, OURS):
                pass
            case _:
                effects += self._gossiped(event, now_ns)
        if ended := self.membership.ended:
            self._failure = self._failure or ended
            return [*effects, *self._stop(now_ns)]
        if self.membership.returning and self.since is None and not (self._mixed or self.joining):
            effects += self._return_to_run()
        return [*effects, *self._join(now_ns)] if self.joining else effects

    def _transferred(self, event: Event, now_ns: int) -> list[Effect]:
        match event:
            case Received(sender, ModelQuery() | ChunkRequest() as asked):
                return self.giver.handle(sender, asked, now_ns)
            case Received(sender, ModelInfo(round)) if round > self.rounds:
                return [far_ahead(sender, round, self.rounds)]
            case Received(sender, ModelInfo() | ModelChunk() as offered) if self._seeking:
                return self.taker.handle(sender, offered)
            case Fired(("transfer", *rest)) if self._seeking:
                return self.taker.fired(rest)
            case PeerJoined(node) if self._seeking:
                return self.taker.joined(node)
            case PeerGone(node) if self._seeking:
                return self.taker.handle_lost_link(node)
        return []

    def _unless_refused(self, act: Callable[[], Sequence[Effect]]) -> Sequence[Effect]:
        """Return the effects, or a report that one part has refused the message."""
        try:
            return act()
        except ProtocolError as error:
            return [refused_by(error, max(self.membership.round, 0))]

    # --- the gossip machine ---------------------------------------------------------------------------------------

    def _settle(self, outcomes: Iterable[Outcome], now_ns: int) -> list[Effect]:
        """Separate membership's outcomes: effects for the driver, events for the gossip machine."""
        effects: list[Effect] = []
        for outcome in outcomes:
            if isinstance(outcome, PeerJoined | PeerGone | Rostered):
                effects += self._gossiped(outcome, now_ns)
            else:
                effects.append(outcome)  # type: ignore[arg-type]
        return effects

    def _gossiped(self, event: Event, now_ns: int) -> list[Effect]:
        if self.gossip is None or self._finished:
            return []
        if isinstance(event, Trained):
            self._training -= 1
        gossip, effects = self.gossip, list[Effect]()
        for effect in self._unless_refused(lambda: gossip.handle(event, now_ns)):
            match effect:
                case RoundDone(round, model):
                    self._mixed, self.membership.round = True, round
                    self.giver.latest = round, model
                case Train():
                    self._training += 1
                case Finish(model, failure):
                    self._finished = True
                    effects += [*self._farewell(), Finish(model, failure or self._failure)]
                    continue
            effects.append(effect)
        return effects

    def _begin(self, resumed: Checkpoint | None, now_ns: int) -> list[Effect]:
        schedule = self.membership.schedule()
        self.gossip = self._make(schedule, resumed, self.membership.me.incarnation)
        self.membership.round = resumed.round if resumed else 0
        effects = self._gossiped(Started(), now_ns)
        for node in sorted(self.membership.linked):
            effects += self._gossiped(PeerJoined(node, self.membership.lives.get(node, 0)), now_ns)
        if self.joining:  # the others have begun: absent partners are not waited for
            for node in schedule.partners(self.membership.node):
                if node not in self.membership.linked:
                    effects += self._gossiped(PeerGone(node), now_ns)
        self.joining = self._seeking = False
        for sender, model in sorted(self._early.items()):
            effects += self._gossiped(Received(sender, model), now_ns)
        self._early.clear()
        return effects

    def _keep(self, sender: NodeId, model: Model) -> list[Effect]:
        """Store a model received before the beginning: the latest of each neighbour, to begin with."""
        if not model.round < self.rounds:
            text = f"model of round {model.round} from node {sender}; the run has {self.rounds} rounds"
            raise ProtocolError(text, "Were the peers started from the same experiment file?", peer=sender)
        self._early[sender] = model
        return []

    # --- joining late, or again ---------------------------------------------------------------------------------------

    def _return_to_run(self) -> list[Effect]:
        """Drop the machine that was begun as if the run had just started."""
        self.joining, self.gossip = True, None
        self._forgotten, self._training = self._forgotten + self._training, 0
        self.membership.round = -1
        return [self._start_timer()]

    def _start_timer(self) -> SetTimer:
        return SetTimer(("member", "start"), self.start_ns)

    def _time_is_up(self, what: str, now_ns: int) -> list[Effect]:
        if what == "start":
            return self._go_on_waiting(now_ns)
        self._waited = True
        return self._join(now_ns)

    def _go_on_waiting(self, now_ns: int) -> list[Effect]:
        """Wait while a linked member has begun, else end: members that also wait have no model."""
        members = self.membership
        begun = [node for node, rounds in members.claims().items() if node in members.linked and rounds >= 0]
        if members.contact and begun:
            return [self._start_timer()]
        if members.contact:
            facts = {"rounds": max(members.network_round(), 0)}
            return [Report("stopped_with_the_others", facts, 0), *self._stop(now_ns)]
        self._failure = no_neighbour_joined(members.contacts)
        return [Report("nobody_came", members.contacts, 0), *self._stop(now_ns)]

    def _join(self, now_ns: int) -> list[Effect]:
        members = self.membership
        if not members.contact or not members.linked:
            return []
        if self.since is not None:
            return self._begin_if_time(now_ns)
        effects: list[Effect] = []
        start = self._start()
        if start is None:
            if not self._seeking:
                self._seeking = True
                effects += self.taker.begin(sorted(members.linked))
            return effects
        if not members.informed(now_ns):
            return effects
        reached = max(members.network_round(), min(start.round, max(members.claims().values(), default=start.round)))
        there = members.roster.takes_part(members.node, reached) and not members.roster.is_gone(members.node)
        self.since = reached if there else boundary_after(reached)
        if self.since >= self.rounds:
            return [Report("too_late", {"round": reached, "rounds": self.rounds}, reached), *self._stop(now_ns)]
        since = members.roster.entries[members.node].since if there else self.since
        return [*self._settle(members.announce(since), now_ns), *self._begin_if_time(now_ns)]

    def _start(self) -> Checkpoint | None:
        """Return the checkpoint of the fetched model, or this member's if it is recent."""
        if self.taker.model is not None:
            return self._take_up(*self.taker.model)
        near = self.resumed and self.membership.network_round() - self.resumed.round <= NEAR_ROUNDS
        return self.resumed if near else None

    def _begin_if_time(self, now_ns: int) -> list[Effect]:
        assert self.since is not None
        start, claims = self._start(), self._claims()
        if not claims or claims[0] < self.since - 1 or start is None:
            return []
        reached = claims[min(1, len(claims) - 1)]
        if reached < self.since - 1 and not self._waited:  # a single report may be false
            return [] if self._asked_to_begin else self._begin_timer()
        self.giver.latest = self.taker.model
        begun = Checkpoint(max(self.since, reached), start.vectors, start.facts, start.durable)
        return self._begin(begun, now_ns)

    def _begin_timer(self) -> list[Effect]:
        self._asked_to_begin = True
        return [SetTimer(("member", "begin"), BEGIN_NS)]

    def _claims(self) -> list[int]:
        members = self.membership
        partners = members.schedule().partners(members.node) if self._early else ()
        claims = members.claims()
        for sender, model in self._early.items():
            if sender in partners:
                claims[sender] = max(model.round, claims.get(sender, -1))
        return sorted(claims.values(), reverse=True)

    # --- the end --------------------------------------------------------------------------------------------------

    def _stop(self, now_ns: int) -> list[Effect]:
        if self.gossip is None:  # begin with the model that is here, and end
            start = self._start() or self.resumed
            self.gossip = self._make(self.membership.schedule(), start, self.membership.me.incarnation)
            self.joining = False
        return self._gossiped(Stopping(), now_ns)

    def _farewell(self) -> list[Effect]:
        """Announce that this member leaves, from a later round on."""
        members = self.membership
        if not members.announced or members.superseded or members.sent_away:
            return []
        until = boundary_after(max(members.round, members.network_round(), 0))
        effects = members.announce(members.me.since, until)
        return [one for one in effects if not isinstance(one, PeerJoined | PeerGone | Rostered)]  # type: ignore[misc]
