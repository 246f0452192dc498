"""Synchronous rounds: a peer sends its vectors, and the round ends when the awaited ones have arrived.

A round ends in one of three ways: all vectors that can still arrive have arrived; the deadline expires, and the missing
partners count as absent until their next message; or no partner takes part, and the round has taken its usual time.
Each machine defines the awaited vectors and the mixing: `sync_gossip`, `relay_gossip`, `private_gossip`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable
from dataclasses import dataclass

from fedgossip.algorithms.gossip.base import State
from fedgossip.core.machine import Checkpoint, Effect, NodeId, SetTimer
from fedgossip.core.messages import Leaving
from fedgossip.protocols.gossip.learner import Learner
from fedgossip.protocols.gossip.lifecycle import AGAIN_NS, Lifecycle, RunLimits
from fedgossip.protocols.gossip.mailbox import MixingSchedule, Sources
from fedgossip.protocols.gossip.partner_set import Deadline

# When to stop waiting in a synchronous round.


class RoundClock:
    """The waits of one peer's rounds; times in nanoseconds.

    The deadline follows rounds with a received vector, from their beginning to the last arrival; rounds cut short do
    not count.
    """

    def __init__(self, deadline_ns: int, least_ns: int, ask_ns: int) -> None:
        self.deadline = Deadline(deadline_ns, min(least_ns, deadline_ns))
        self.ask_ns = ask_ns
        self.heard_ns = 0  # when the last vector of the open round was received, or our own was sent

    def note_arrival(self, now_ns: int) -> None:
        """Record an arrival; vectors received before this peer had sent its own were in time."""
        self.heard_ns = now_ns

    def note_round(self, began_ns: int) -> None:
        """Record the duration of a round with at least one received vector."""
        self.deadline.record(max(0, self.heard_ns - began_ns))

    def patience_ns(self, times: int) -> int:
        """Return the wait before a vector is requested again: a lost one costs this, not the deadline."""
        quickest_ns = self.deadline.quickest_ns()  # not the median, which repeated requests lengthen
        return (max(self.ask_ns, 4 * quickest_ns) if quickest_ns else 4 * self.ask_ns) << min(times, 6)

    def early_ns(self, began_ns: int, now_ns: int) -> int:
        """Return how much earlier than usual the round would end now."""
        return began_ns + self.deadline.usual_ns() - now_ns


@dataclass(frozen=True, slots=True)
class SyncSettings(RunLimits):
    """Limits of one synchronous run.  Times in nanoseconds."""

    deadline_ns: int = 30_000_000_000
    """Maximum wait for the neighbours' models after sending one's model; above the slowest peer's training time."""
    least_deadline_ns: int = 5_000_000_000
    """Minimum deadline: it follows the measured rounds between this and `deadline_ns`; equal: it is constant."""
    ask_ns: int = AGAIN_NS
    """Minimum wait before a missing model is requested."""


class AwaitedRound(Lifecycle[State]):
    """The phase `waiting` of a peer of synchronous rounds."""

    def __init__(
        self,
        node: NodeId,
        schedule: MixingSchedule,
        learner: Learner[State],
        settings: SyncSettings,
        resumed: Checkpoint | None,
    ) -> None:
        self.clock = RoundClock(settings.deadline_ns, settings.least_deadline_ns, settings.ask_ns)
        super().__init__(node, schedule.partners(node), learner, self.clock.deadline, settings, resumed)

    # --- the machines' definitions of a round -------------------------------------------------------------------------

    @property
    @abstractmethod
    def awaited(self) -> Sources:
        """The partners with a vector in the open round, received or missing."""

    @abstractmethod
    def has_advanced(self, node: NodeId) -> bool:
        """Whether `node` has advanced to a later round, so that it sends nothing more of the open one."""

    @abstractmethod
    def end_round(self, now_ns: int) -> list[Effect]:
        """Mix the received vectors of the open round, and begin the next."""

    @abstractmethod
    def ask(self, times: int) -> list[Effect]:
        """Request the missing vectors, for the `times`-th time after the first."""

    # --- when a round ends ----------------------------------------------------------------------------------------

    def fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match self.phase, key:
            case "waiting", ("deadline", self.round):
                self.company.absent.update(self.awaited.missing)
                return self.end_round(now_ns)
            case "waiting", ("pace", self.round) if self._complete():
                return self.end_round(now_ns)
            case "waiting", ("ask", self.round, int(times)):
                return self.ask(times)
        return []

    def changed(self, now_ns: int) -> list[Effect]:
        return self.end_if_complete(now_ns)

    def end_if_complete(self, now_ns: int) -> list[Effect]:
        if self.phase != "waiting":
            return []
        awaited, company = self.awaited, self.company
        for node in awaited.missing:  # as `_complete`, inlined: runs at every message
            if not (node in company.absent or node in company.left or self.has_advanced(node)):
                return []
        if awaited.alone and (early_ns := self.clock.early_ns(self.began_ns, now_ns)) > 0:
            return [SetTimer(("pace", self.round), early_ns)]
        return self.end_round(now_ns)

    def until_the_deadline(self) -> Effect:
        return SetTimer(("deadline", self.round), self.clock.deadline.now_ns())

    def until_asked(self, times: int) -> Effect:
        """Return the timer before missing vectors are requested for the `times`-th time after the first."""
        return SetTimer(("ask", self.round, times), self.clock.patience_ns(times))

    def _complete(self) -> bool:
        return all(map(self._will_not_arrive, self.awaited.missing))

    def _will_not_arrive(self, node: NodeId) -> bool:
        return node in self.company.absent or node in self.company.left or self.has_advanced(node)


class RoundWithoutAccounts(AwaitedRound[State]):
    """A machine without accounts to settle before the `Leaving`: at the end it only waits for `Leaving` messages."""

    def may_leave(self) -> bool:
        return True

    def leaving(self, to: NodeId) -> Leaving:
        return Leaving(self.round, done=to in self.company.left)

    def open_with(self, node: NodeId) -> bool:  # noqa: ARG002
        return False

    def done_with(self, node: NodeId) -> bool:
        return node in self.company.done

    def expected(self) -> Collection[NodeId]:
        return self.company.partners
