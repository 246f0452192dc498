"""A worker's membership in a collective: present workers, changes of the view, and the fetch of a missed state.

`allreduce` defines the rounds and the table of phases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import Effect, Failure, Finish, NodeId, Report, Send, SetTimer
from fedgossip.core.messages import GroupReport, GroupView, Leaving, StatePiece
from fedgossip.protocols.allreduce.chunk_exchange import ChunkExchange
from fedgossip.protocols.allreduce.regroup import enough
from fedgossip.protocols.allreduce.worker_group import WorkerGroup
from fedgossip.protocols.allreduce.worker_state import WorkerState

AT_WORK = ("training", "reducing", "catching")


@dataclass(frozen=True, slots=True)
class AllReduceSettings:
    """Limits of a run.  Times in nanoseconds."""

    rounds: int
    bucket: int
    """Number of elements of a bucket."""
    accumulate: int | None = 1
    """Number of batches of a gradient."""
    local: bool = False
    """Whether workers train by themselves in a round, and their updates are summed."""
    delay: bool = False
    """With `local`: whether the next round is trained while this one is summed."""
    overlap: bool = False
    """Whether buckets are sent while the rest of the gradient is computed."""
    deadline_ns: int = 30_000_000_000
    least_deadline_ns: int = 5_000_000_000
    start_ns: int = 300_000_000_000
    """Maximum wait for all at the start, and later for the return of enough workers."""
    again_ns: int = 1_000_000_000
    """Minimum wait before an unacknowledged chunk is sent again."""


class ViewMember(ABC):
    """Invariant: `exchange` is of the view that `group` is in, and of the round that `at` is in."""

    def __init__(
        self,
        node: NodeId,
        settings: AllReduceSettings,
        group: WorkerGroup,
        at: WorkerState,
        exchange: ChunkExchange,
        *,
        fresh: bool,
    ) -> None:
        self.node, self.settings, self.group, self.at, self.exchange = node, settings, group, at, exchange
        self._fresh = fresh
        """Whether this is a first life."""
        self.exchange.renew(self.round)
        self.asked = -1  # the round of the last requested gradient; -1: it is no longer needed
        self.phase = "new"

    @property
    def round(self) -> int:
        """Number of completed rounds of this worker."""
        return self.at.round

    # --- rounds ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def _go_on(self, now_ns: int) -> list[Effect]:
        """Begin the next round, or end."""

    @abstractmethod
    def _again(self, now_ns: int) -> list[Effect]:
        """Repeat the open round with the members of the view."""

    # --- present workers ----------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        if node not in self.exchange.links:
            return []
        greeting = self.group.joined(node, incarnation)
        return [*self.exchange.links[node].resent(now_ns), *greeting, *self._begin_if_gathered(now_ns)]

    def _left(self, sender: NodeId, rounds: int, now_ns: int) -> list[Effect]:
        """Handle a goodbye: after all rounds, or earlier."""
        if rounds < self.settings.rounds:
            self.group.departed.add(sender)
            return self._lost(sender, now_ns) if sender in self.group.members else []
        self.group.done.add(sender)
        if self.phase == "returning" and not self.group.here - self.group.done:
            text = f"the other workers have done all rounds without worker {self.node}"
            return self._finish(Failure("network", text, "Their model is that of the run."))
        return self._end_if_settled()

    def _lost(self, node: NodeId, now_ns: int) -> list[Effect]:
        """Handle the loss of a worker of this view."""
        if self.phase in AT_WORK:
            return [Report("worker_gone", node, self.round), *self._stop_round(now_ns)]
        if self.group.regroup:
            self.group.regroup.lost(node)
            return self._propose_if_due(now_ns)
        return self._end_if_settled()

    def _refuse(self, node: NodeId, now_ns: int) -> list[Effect]:
        """Go on without a worker with numbers that cannot be added: it would stop every round."""
        if node in self.group.refused or node not in self.group.members or node == self.node:
            return []
        self.group.refuse(node)
        return self._lost(node, now_ns)

    def _asked_in(self, sender: NodeId, now_ns: int) -> list[Effect]:
        """Handle a request for readmission: the worker takes part after this round."""
        if self.phase == "leaving":
            return [Send(sender, Leaving(self.round))]
        thought_at_work = self.group.asked_in(sender)
        return self._lost(sender, now_ns) if thought_at_work else self._propose_if_due(now_ns)

    def _begin_if_gathered(self, now_ns: int) -> list[Effect]:
        if self.phase != "joining" or self.group.missing:
            return []
        if self._fresh:
            return self._go_on(now_ns)
        return self._stop_round(now_ns)  # the lives before may differ in rounds: find the furthest

    def _begin_without(self, now_ns: int) -> list[Effect]:
        """Begin without missing workers, if those of an earlier life are enough; else end."""
        if not self._fresh and enough(self.group.view, {self.node, *self.group.here}, self.round):
            return self._stop_round(now_ns)
        text = f"workers {self.group.missing} did not join, and a collective needs all to begin"
        return self._finish(Failure("too_few", text, "Start them, or raise parallel.start_timeout."))

    # --- agreement ----------------------------------------------------------------------------------------------------

    def _stop_round(self, now_ns: int) -> list[Effect]:
        """Drop the open round, and report the number of completed ones to all."""
        self.phase = "regrouping"
        self.exchange.renew(self.round)
        told = self.group.stop(self.round, self.at.digest, now_ns)
        return [*told, *self._propose_if_due(now_ns)]

    def _report(self, sender: NodeId, report: GroupReport, now_ns: int) -> list[Effect]:
        group = self.group
        if report.epoch > group.epoch and self.phase == "joining":
            return self._stop_round(now_ns)  # the reply is the later view
        if report.epoch != group.epoch or sender not in group.members:
            return group.answer(sender, report)
        if report.rounds > self.settings.rounds:
            text = f"worker {sender} reports {report.rounds} rounds, of {self.settings.rounds}"
            raise ProtocolError(f"worker {self.node}, round {self.round}: {text}", peer=sender)
        stopped = self._stop_round(now_ns) if self.phase in (*AT_WORK, "joining", "leaving") else []
        if group.regroup is None:
            return stopped
        answer = group.take_report(sender, report)
        return [*stopped, *([] if stopped else answer), *self._propose_if_due(now_ns)]

    def _propose_if_due(self, now_ns: int) -> list[Effect]:
        view = self.group.proposal(now_ns)
        if isinstance(view, GroupView):
            told = [Send(other, view) for other in view.members if other != self.node]
            odd = [Report("workers_differ", list(self.group.odd), self.round)] if self.group.odd else []
            return [*told, *odd, *self._begin_view(view, now_ns)]
        return self._finish(view) if view else []

    def _viewed(self, sender: NodeId, view: GroupView, now_ns: int) -> list[Effect]:
        judged = self.group.judged(sender, view, self.round)
        if judged:
            return self._begin_view(judged, now_ns)
        if self.group.outside and self.phase not in ("returning", "leaving"):
            return self._return(now_ns)
        left_out = self.node not in view.members and view.epoch > self.group.epoch
        stops = left_out and self.phase in AT_WORK
        return self._stop_round(now_ns) if stops else []  # ask the others to confirm

    def _begin_view(self, view: GroupView, now_ns: int) -> list[Effect]:
        """Begin a view; it binds a next life, so it is on disk before any message of it is sent."""
        came = [node for node in view.members if node not in self.group.members]
        gone = self.group.adopt(view)
        self.exchange.renew(view.rounds)
        effects: list[Effect] = [self.at.checkpoint(self.group.saved(), durable=True)]
        effects.append(Report("regrouped", {"workers": list(view.members), "without": gone}, self.round))
        effects += [Report("workers_back", came, self.round)] if came else []
        effects += self.group.announce()
        if self.node in view.behind:
            return effects + self._catch_up(view)
        return effects + self._again(now_ns)

    # --- a member that is behind --------------------------------------------------------------------------------------

    def _catch_up(self, view: GroupView) -> list[Effect]:
        self.phase = "catching"
        patience = SetTimer(("catching", view.epoch), self.settings.deadline_ns)
        return [patience, *self.at.fetch.begin(view.donor, view.rounds)]

    def _piece(self, sender: NodeId, piece: StatePiece, now_ns: int) -> list[Effect]:
        if self.phase != "catching":
            return []
        whole, effects = self.at.take(sender, piece)
        if not whole:
            return [*effects, SetTimer(("catching", self.group.epoch), self.settings.deadline_ns)] if effects else []
        self.asked = -1  # a gradient in progress is of another model
        return [*effects, self.at.checkpoint(self.group.saved()), *self._go_on(now_ns)]

    def _return(self, now_ns: int) -> list[Effect]:
        """Ask for readmission, as the others went on without this worker."""
        self.phase = "returning"
        self.exchange.renew(self.round)
        self.group.leave_off(now_ns)
        return [Report("left_out", None, self.round), *self._ask_in(now_ns)]

    def _ask_in(self, now_ns: int) -> list[Effect]:
        asked = self.group.ask_in(self.round, now_ns)
        return self._finish(asked) if isinstance(asked, Failure) else asked

    # --- the end --------------------------------------------------------------------------------------------------

    def _leave(self) -> list[Effect]:
        """Stay until all sent chunks have arrived, and the others are done too."""
        self.phase = "leaving"
        return [*self._goodbye(), SetTimer(("drain",), self.settings.deadline_ns), *self._end_if_settled()]

    def _goodbye(self) -> list[Effect]:
        return [Send(other, Leaving(self.round)) for other in self.exchange.links if other in self.group.linked]

    def _end_if_settled(self) -> list[Effect]:
        return self._finish() if self.phase == "leaving" and self.group.settled else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        return [Finish(self.at.model, failure)]
