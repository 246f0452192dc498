"""The beginning, the connections and the end of every gossip peer; its rounds are defined by each machine.

    phase      event                              next phase
    new        Started                            joining training
    new        Stopping                           end
    joining    PeerJoined PeerGone Leaving start  training end
    joining    Stopping                           end
    leaving    Leaving PeerGone Stopping          finished
    leaving    drain hung                         finished

The machines' tables continue from "training"; events without effect on the phase are in none.  "end" is "closing";
"leaving" if nothing must be settled before the `Leaving`; or "finished" if there is also no partner to wait for.

The beginning: a peer waits for all partners except lost ones; at the start timer it begins with the connected ones.
Without any, a first incarnation ends (`nobody_came`): training alone would be a surprise, not gossip.  While it waits
it reports the missing partners (`awaits`).

The end: a peer settles its accounts ("closing"), then sends `Leaving` messages, also on new links, until it waits for
no partner ("leaving"): for at most `drain_ns`, and to silent partners a few times.  A stopped peer stays at most
`hurry_ns`, for open accounts alone.

At the end it reports the neighbours that never sent a due model (`never_exchanged`), and whether it has trained alone
(`learned_alone`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from fedgossip.algorithms.gossip.base import State
from fedgossip.base.errors import ProtocolError
from fedgossip.base.limits import MOST
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    ModelMeasured,
    Moved,
    NodeId,
    PeerGone,
    PeerJoined,
    Produced,
    Received,
    Report,
    Rostered,
    RowsChosen,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.messages import Leaving, Message
from fedgossip.protocols.gossip.failures import no_neighbour_joined
from fedgossip.protocols.gossip.learner import Learner
from fedgossip.protocols.gossip.partner_set import ROLL_NS, Deadline, PartnerSet

# Waits of a gossip peer at the beginning and at the end, the same for all machines.


AGAIN_NS = 250_000_000
AGAIN_TIMES = 20
"""Number of unanswered `Leaving` messages until a partner counts as hung."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of every run.  Times in nanoseconds."""

    rounds: int
    start_ns: int = 300_000_000_000
    """Maximum wait for all links at the start; people may start peers on several machines by hand."""
    drain_ns: int = 30_000_000_000
    """Maximum stay after the last round for open accounts, and for partners that are not done."""
    hurry_ns: int = 1_000_000_000
    """Maximum stay for open accounts when the user stops the run."""
    again_ns: int = AGAIN_NS
    """Interval between `Leaving` messages."""

    @property
    def endless(self) -> bool:
        """Whether the number of rounds is unlimited: the peer continues to train when all others have left."""
        return self.rounds >= MOST


class Lifecycle(ABC, Generic[State]):
    """One peer of a run.  `eager`: a restarted peer, which continues with the connected partners.

    From `closing` and `leaving` only "finished" follows, and neither trains.  Each abstract method is implemented once,
    and no other is overridden.
    """

    def __init__(
        self,
        node: NodeId,
        partners: Sequence[NodeId],
        learner: Learner[State],
        deadline: Deadline,
        settings: RunLimits,
        resumed: Checkpoint | None,
    ) -> None:
        self.node, self.learner, self.settings = node, learner, settings
        self.deadline = deadline
        """Deadline for a reply of a partner."""
        self.company = PartnerSet(node, partners)
        self.carried = Carried(resumed)
        self.round = resumed.round if resumed else 0
        self.phase = "new"
        self.began_ns = 0  # start of this round
        self.eager = resumed is not None
        self.hurried = False
        self.patient = True  # whether to wait also for partners that have not answered lately

    # --- a machine's additions ------------------------------------------------------------------------------------

    @abstractmethod
    def received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        """Handle a partner's message.  Raises ProtocolError and leaves the state unchanged."""

    @abstractmethod
    def trained(self, event: Trained, now_ns: int) -> list[Effect]:
        """Handle the update of the current round."""

    @abstractmethod
    def fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        """Handle one of the machine's timers; a stale one has no effect."""

    @abstractmethod
    def rostered(self, schedule: object) -> None:
        """Replace the schedule: the set of participants has changed."""

    @abstractmethod
    def greet(self, node: NodeId, now_ns: int, *, reborn: bool) -> list[Effect]:
        """Handle a new link to `node`; `reborn`: it restarted, from the last incarnation's checkpoint."""

    @abstractmethod
    def changed(self, now_ns: int) -> list[Effect]:
        """Handle a partner that is gone, has left or has returned: continue if the peer waited for that."""

    @abstractmethod
    def handle_leaving(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:
        """Handle the `Leaving` of `sender`, which begins no further round, with its accounts."""

    @abstractmethod
    def close(self) -> list[Effect]:
        """Close the last round: add the received vectors to the model, and request open ones."""

    @abstractmethod
    def may_leave(self) -> bool:
        """Return whether everything that must precede the `Leaving` is settled."""

    @abstractmethod
    def leaving(self, to: NodeId) -> Leaving:
        """Return the `Leaving` to `to`, with this peer's account; `done`: this peer needs nothing more from it."""

    @abstractmethod
    def open_with(self, node: NodeId) -> bool:
        """Return whether an account is open that a message from `node` can settle."""

    @abstractmethod
    def done_with(self, node: NodeId) -> bool:
        """Return whether no account is open and `node` needs nothing more from this peer."""

    def misplaced(self, sender: NodeId, message: Message, run: str) -> ProtocolError:
        """Return the refusal of a message of another kind of run."""
        return ProtocolError(
            f"node {self.node}: a message of kind {type(message).__name__.lower()!r} from node {sender} in {run}",
            "Were the peers started from the same experiment file?",
            peer=sender,
        )

    @abstractmethod
    def unsettled(self) -> list[Effect]:
        """Return the final effects for accounts that remain open."""

    @abstractmethod
    def expected(self) -> Collection[NodeId]:
        """Return the partners that owe a model, for the report of exchanges that never happened."""

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received():
                sender, message = event.sender, event.message
                if sender not in self.company.known:
                    self.company.check(sender, f"a message of kind {type(message).__name__.lower()!r}")
                if type(message) is Leaving:
                    return self._parted(sender, message, now_ns)
                return self.received(sender, message, now_ns)
            case Trained():
                return self._trained(event, now_ns)
            case Fired(key):
                return self._fired(key, now_ns)
            case PeerJoined(node, incarnation):
                return self._joined(node, incarnation, now_ns)
            case PeerGone(node):
                return self._handle_lost_link(node, now_ns)
            case Started():
                self.phase = "joining"
                waits = [SetTimer(("start",), self.settings.start_ns), SetTimer(("roll",), ROLL_NS)]
                return self.begin_if_gathered(now_ns) or waits
            case Stopping(over=over):
                return self._begin_end() if over else self._hurry()
            case Moved() | Produced() | RowsChosen() | ModelMeasured():
                return []
            case Rostered(schedule):
                self.rostered(schedule)
                return self.begin_if_gathered(now_ns)

    def _trained(self, event: Trained, now_ns: int) -> list[Effect]:
        if self.phase != "training":  # the run has ended meanwhile
            return []
        assert event.job == self.round, f"job {event.job} was not asked for"
        return self.trained(event, now_ns)

    def _parted(self, sender: NodeId, message: Leaving, now_ns: int) -> list[Effect]:
        self.company.left.add(sender)
        effects = self.handle_leaving(sender, message, now_ns) + self._answer(sender, message)
        return effects + self.begin_if_gathered(now_ns) + self.changed(now_ns) + self.end_if_settled()

    def _answer(self, sender: NodeId, goodbye: Leaving) -> list[Effect]:
        """Reply at once that nothing is open, unless the partner has already received that."""
        known = sender in self.company.told and goodbye.done
        if self.phase != "leaving" or known or not self.leaving(sender).done:
            return []
        return [self._word_to(sender)]

    def _fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match self.phase, key:
            case "joining", ("start",):
                return self._start_with_those_here(now_ns)
            case "joining", ("roll",):
                return self.company.roll(self.round)
            case "leaving", ("again",):
                return [*self._goodbye(), SetTimer(("again",), self.settings.again_ns)]
            case "leaving", ("hung",):
                self.patient = False
                return self.end_if_settled()
            case "closing" | "leaving", ("drain",):
                return [*self._goodbye(), *self._finish()]
        return self.fired(key, now_ns)

    # --- links ----------------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        again = node not in self.company.linked and (node in self.company.absent or self._has_begun)
        effects = self.greet(node, now_ns, reborn=self.company.joined(node, incarnation))
        if again:
            effects.append(Report("joined", node, self.round))
        if self.phase == "leaving" and node in self._circle():
            effects += self._goodbye_to(node)
        return effects + self.begin_if_gathered(now_ns) + self.changed(now_ns)

    @property
    def _has_begun(self) -> bool:
        return self.phase not in ("new", "joining")

    def _handle_lost_link(self, node: NodeId, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.company.lost(node, self.round) and (self.phase != "leaving" or node in self._circle()):
            effects.append(Report("gone", node, self.round))
        return effects + self.begin_if_gathered(now_ns) + self.changed(now_ns) + self.end_if_settled()

    # --- the beginning --------------------------------------------------------------------------------------------

    def begin_if_gathered(self, now_ns: int) -> list[Effect]:
        """Begin once no partner is awaited."""
        company = self.company
        if self.phase != "joining" or company.awaited():
            return []
        if company.partners and set(company.partners) <= company.left:
            return self.go_on(now_ns) if self.settings.endless else self.end_with_the_others()
        if company.partners and not company.list_present():
            return []  # wait for the start timer
        return self.go_on(now_ns)

    def _start_with_those_here(self, now_ns: int) -> list[Effect]:
        missing = self.company.awaited() or self.company.missing()
        if not (self.company.list_present() or self.eager):
            report = Report("nobody_came", missing, self.round)
            return [report, *self._finish(no_neighbour_joined(missing))]
        self.company.absent.update(missing)
        return [Report("started_without", missing, self.round), *self.go_on(now_ns)]

    def go_on(self, now_ns: int) -> list[Effect]:
        """Train for the next round, or end."""
        if self.round >= self.settings.rounds:
            return self.end()
        self.phase, self.began_ns = "training", now_ns
        return [Train(self.round, self.learner.begin_training())]

    # --- the end --------------------------------------------------------------------------------------------------

    def end_with_the_others(self) -> list[Effect]:
        """End, because no partner is left to train with."""
        effects: list[Effect] = []
        if self.round < self.settings.rounds:
            effects.append(Report("stopped_with_the_others", {"rounds": self.round}, self.round))
        return [*effects, *self.end()]

    def _begin_end(self) -> list[Effect]:
        return [] if self._ends else self.end()

    def _hurry(self) -> list[Effect]:
        if self.hurried:
            return []
        self.hurried = True
        if self.phase not in ("closing", "leaving"):
            return self.end()
        return [SetTimer(("drain",), self._stay_ns), *self.end_if_settled()]

    @property
    def _stay_ns(self) -> int:
        limits = self.settings
        return min(limits.hurry_ns, limits.drain_ns) if self.hurried else limits.drain_ns

    def end(self) -> list[Effect]:
        """End the rounds."""
        self.phase = "closing"
        effects = self.close()
        ended = self.end_if_settled()
        return [*effects, *ended] if not self._ends else [*effects, SetTimer(("drain",), self._stay_ns), *ended]

    @property
    def _ends(self) -> bool:
        return self.phase in ("closing", "leaving")

    def end_if_settled(self) -> list[Effect]:
        """Send goodbyes, or finish, once nothing is awaited."""
        effects: list[Effect] = []
        if self.phase == "closing" and self.may_leave():
            self.phase = "leaving"
            effects = self._goodbye()
            if self._waits():
                hung_ns = min(max(self.deadline.now_ns(), AGAIN_TIMES * self.settings.again_ns), self.settings.drain_ns)
                waits = {"again": self.settings.again_ns, "hung": hung_ns}
                return [*effects, *(SetTimer((key,), after_ns) for key, after_ns in waits.items())]
            return [*effects, *self._finish()]
        if self.phase == "leaving" and not self._waits():
            return [*self._goodbye(), *self._finish()]
        return effects

    def _circle(self) -> list[NodeId]:
        company = self.company
        return sorted({*company.circle(self.round), *(node for node in company.known if self.open_with(node))})

    def _waits(self) -> bool:
        return any(self._waits_for(node) for node in self._circle())

    def _waits_for(self, node: NodeId) -> bool:
        if node not in self.company.linked:  # it may reconnect and report
            patient = self.patient and not self.hurried
            return patient and self.open_with(node) and self.company.may_return(node, self.round)
        if self.hurried:
            return self.open_with(node)
        return not self.done_with(node) and (self.patient or node not in self.company.absent)

    def _goodbye(self) -> list[Effect]:
        return [effect for node in self._circle() for effect in self._goodbye_to(node)]

    def _goodbye_to(self, node: NodeId) -> list[Effect]:
        there = node in self.company.linked and node not in self.company.done
        return [self._word_to(node)] if there else []

    def _word_to(self, node: NodeId) -> Send:
        word = self.leaving(node)
        if word.done:
            self.company.told.add(node)
        return Send(node, word)

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        effects = self.unsettled()
        if self.round >= self.settings.rounds or not self.hurried:
            effects += self.carried.report(self.round, self.expected())
        self.phase = "finished"
        return [*effects, Finish(self.learner.model, failure)]


FRESH = {"uncarried": "all"}
"""Facts of a checkpoint without a history of exchanges, made from another peer's model."""


class Carried:
    """One peer's record of exchanges.  `resumed`: the last checkpoint; neighbours outside it have exchanged."""

    def __init__(self, resumed: Checkpoint | None = None) -> None:
        facts: Any = resumed.facts if resumed else FRESH
        lacking = facts.get("uncarried", ())
        self._closed = lacking != FRESH["uncarried"]
        self._lacking: set[NodeId] = set(map(int, lacking)) if self._closed else set()
        self._came: set[NodeId] = set()
        self._alone = bool(facts.get("alone", False))  # some models were due, and none was received
        self._any = False

    def expect(self, nodes: Iterable[NodeId]) -> None:
        """Record that models of these nodes are due."""
        if not self._closed:
            self._lacking.update(set(nodes) - self._came)
            self._alone = not self._any and bool(self._lacking or self._came)

    def mark_received(self, nodes: Iterable[NodeId]) -> None:
        """Record models of these nodes that were received and could not be used."""
        self._came.update(nodes)
        self._lacking -= self._came

    def mark_mixed(self, *nodes: NodeId) -> None:
        """Record models of these nodes that arrived but could not be used."""
        if nodes:
            self._alone, self._any = False, True
            self._came.update(nodes)
            self._lacking.difference_update(nodes)

    def saved(self) -> dict[str, object]:
        """Return the facts for a checkpoint; {} if no exchange is missing."""
        return {"uncarried": sorted(self._lacking), "alone": self._alone} if self._lacking or self._alone else {}

    def report(self, round: int, among: Collection[NodeId]) -> list[Report]:
        """Return the final reports; `among`: the nodes that should have sent a model."""
        never = sorted(self._lacking & set(among))
        reports = [Report("never_exchanged", never, round)] if never else []
        return [*reports, Report("learned_alone", None, round)] if self._alone else reports
