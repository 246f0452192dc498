"""Rounds that all go through together: one's own vectors are out, and a round ends when those awaited are here.

A round ends in one of three ways: all that will come has; the deadline is over, and who did not come by then is absent,
and not waited for again until it is heard; or nobody takes part but us, and the round has taken its usual time.

What a round is waiting for, what becomes of it, and what a silent partner is asked belongs to each machine:
`sync_gossip`, `relay_gossip` and `private_gossip`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass

from fedgossip.algorithms.gossip.base import State
from fedgossip.core.machine import Checkpoint, Effect, NodeId, SetTimer
from fedgossip.protocols.gossip.deadlines import Deadline
from fedgossip.protocols.gossip.learner import Learner
from fedgossip.protocols.gossip.lifecycle import AGAIN_NS, Lifecycle, RunLimits
from fedgossip.protocols.gossip.mixing_schedule import MixingSchedule
from fedgossip.protocols.gossip.open_round import Sources

# When to stop waiting in a round that all go through together.


class RoundClock:
    """The waits of one peer's rounds; times in nanoseconds.

    A round that was cut short tells nothing: the deadline follows those alone in which somebody came, from their
    beginning to the last that came.
    """

    def __init__(self, deadline_ns: int, least_ns: int, ask_ns: int) -> None:
        self.deadline = Deadline(deadline_ns, min(least_ns, deadline_ns))
        self.ask_ns = ask_ns
        self.heard_ns = 0  # when the last vector of the open round came, or our own went out

    def heard(self, now_ns: int) -> None:
        """What came before our own went out was in time."""
        self.heard_ns = now_ns

    def over(self, began_ns: int) -> None:
        """Take note of a round in which somebody came."""
        self.deadline.saw(max(0, self.heard_ns - began_ns))

    def patience_ns(self, times: int) -> int:
        """How long to wait before a vector is asked for again: a lost one costs this, not the deadline."""
        quickest_ns = self.deadline.quickest_ns()  # not what is usual, which asking makes longer
        return (max(self.ask_ns, 4 * quickest_ns) if quickest_ns else 4 * self.ask_ns) << min(times, 6)

    def early_ns(self, began_ns: int, now_ns: int) -> int:
        """How much earlier than usual the round would end now."""
        return began_ns + self.deadline.usual_ns() - now_ns


@dataclass(frozen=True, slots=True)
class SyncSettings(RunLimits):
    """Limits of one synchronous run.  Times in nanoseconds."""

    deadline_ns: int = 30_000_000_000
    """The longest wait for the neighbours' models after sending one's own; above the slowest peer's training time."""
    least_deadline_ns: int = 5_000_000_000
    """The deadline follows the rounds that were seen, within these two; equal: it is constant."""
    ask_ns: int = AGAIN_NS
    """After so long at least a model is asked for."""


class AwaitedRound(Lifecycle[State]):
    """The phase `waiting` of a peer whose rounds all go through together."""

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

    # --- what each machine says of its rounds ---------------------------------------------------------------------

    @property
    @abstractmethod
    def awaited(self) -> Sources:
        """Of whom something belongs to the open round, and of whom it is not here."""

    @abstractmethod
    def gone_on(self, node: NodeId) -> bool:
        """Whether `node` has gone on, so that nothing of the open round comes of it any more."""

    @abstractmethod
    def end_round(self, now_ns: int) -> list[Effect]:
        """Make of the open round what is here, and begin the next."""

    @abstractmethod
    def ask(self, times: int) -> list[Effect]:
        """Ask those who are late, for the `times`-th time after the first."""

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
        for node in awaited.missing:  # as `_complete`, without its calls: it is asked with every message
            if not (node in company.absent or node in company.left or self.gone_on(node)):
                return []
        if awaited.alone and (early_ns := self.clock.early_ns(self.began_ns, now_ns)) > 0:
            return [SetTimer(("pace", self.round), early_ns)]
        return self.end_round(now_ns)

    def until_the_deadline(self) -> Effect:
        return SetTimer(("deadline", self.round), self.clock.deadline.now_ns())

    def until_asked(self, times: int) -> Effect:
        """The wait before who is late is asked for the `times`-th time after the first."""
        return SetTimer(("ask", self.round, times), self.clock.patience_ns(times))

    def _complete(self) -> bool:
        return all(map(self._will_not_come, self.awaited.missing))

    def _will_not_come(self, node: NodeId) -> bool:
        """Whether what `node`, of whom nothing is here, has of this round is not worth waiting for."""
        return node in self.company.absent or node in self.company.left or self.gone_on(node)
