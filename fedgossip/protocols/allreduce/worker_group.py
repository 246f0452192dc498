"""The workers of a collective as seen by one of them, and its part in the agreement on a view (see `regroup`).

    1. a worker that misses another stops its round, and sends its number of completed rounds to all, with the digest of
       its model; each receiver of such a report does the same
    2. when all linked workers have reported, or after a time, the lowest reporting one proposes a view: the reporting
       workers, if they are enough, those that request readmission, and the furthest worker's number of rounds; one with
       another model after these rounds is left out, and may request readmission
    3. each adopts one view of a generation at most, the first that it receives; those behind fetch the state of a donor

"Enough" is more than half of the workers of the view, and of the last view with a completed round: so two halves of a
partitioned network cannot both continue.  If links break one by one, two views can be proposed at once; their common
member adopts one, and no round of the other is completed.

An epoch is the number of a view: its generation, and its proposer.  In one epoch a round has one result, so a worker
that resumes from a checkpoint of this epoch is equivalent to one that never stopped.

Source: the views of virtual synchrony (Birman and Joseph, Exploiting virtual synchrony in distributed systems, SOSP
1987), with one proposer in place of a consensus, as a round can be dropped and repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import Effect, Failure, NodeId, Send, SetTimer
from fedgossip.core.messages import WORKERS_MAX, GroupReport, GroupView, Message, WorkerRefused, WorkerReturn


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """Times in nanoseconds."""

    patience_ns: int
    """Maximum wait for linked workers without a report."""
    again_ns: int
    """Wait before an unanswered message is sent again."""
    start_ns: int
    """Maximum wait for the return of enough workers, and for readmission."""


class WorkerGroup:
    """Invariant: `regroup` is set if and only if this worker has stopped its round; it then belongs to this epoch.

    The caller acts on a returned view or failure: it calls `adopt`, or ends.
    """

    def __init__(self, node: NodeId, workers: Sequence[NodeId], waits: GroupWaits) -> None:
        self.node, self.waits = node, waits
        self.view = first_view(workers)  # the view of this worker
        self.others = tuple(worker for worker in self.view.members if worker != node)
        """All other workers of the run."""
        self.linked: set[NodeId] = set()
        self.lost: set[NodeId] = set()  # had a link, and have none
        self.lives: dict[NodeId, int] = {}
        self.done: set[NodeId] = set()  # have completed all rounds
        self.departed: set[NodeId] = set()  # sent a goodbye earlier
        self.returning: set[NodeId] = set()  # ask for readmission
        self.refused: set[NodeId] = set()  # have sent numbers that cannot be added, here or elsewhere
        self.odd: tuple[NodeId, ...] = ()  # had another model than the others at our last proposal
        self.regroup: Regroup | None = None
        self.outside: GroupView | None = None  # the view of the others without this worker
        self.at_work = False
        """Whether this worker has taken part in a round in this incarnation."""
        self._left_out_by: set[NodeId] = set()  # workers with a view without this one
        self._reported_ns = self._stopped_ns = 0

    @property
    def epoch(self) -> int:
        return self.view.epoch

    @property
    def members(self) -> tuple[NodeId, ...]:
        return self.view.members

    @property
    def here(self) -> set[NodeId]:
        """The workers that can take part in an agreement."""
        return self.linked - self.departed - self.refused

    @property
    def missing(self) -> list[NodeId]:
        """The workers without a link, ascending."""
        return [other for other in self.others if other not in self.linked]

    @property
    def rank(self) -> int:
        return self.members.index(self.node)

    @property
    def settled(self) -> bool:
        """Whether all present members have completed all rounds."""
        return not set(self.members) & self.here - self.done

    @property
    def takes_in(self) -> bool:
        """Whether this worker must stop after a round, so that a returned one can take part."""
        return bool(self.returning & self.here - set(self.members)) and self.node == min(self.members)

    # --- from life to life ------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, object]:
        """Return the view for a checkpoint: it binds a later incarnation."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.view).items()}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore the view that the last incarnation had adopted."""
        plain: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in facts.items()}
        self.view = GroupView(**plain)

    # --- present workers ----------------------------------------------------------------------------------------------

    def joined(self, node: NodeId, life: int) -> list[Effect]:
        """Handle a new link: send the view to an outsider, or this worker's report to a member."""
        if life > self.lives.get(node, life):
            self.done.discard(node)
            self.departed.discard(node)
            self.refused.discard(node)
        self.linked.add(node)
        self.lost.discard(node)
        self.lives[node] = life
        if node not in self.members:
            return [Send(node, self.view)]
        return [Send(node, self.regroup.own)] if self.regroup and node in self.members else []

    def handle_lost_link(self, node: NodeId) -> bool:
        """Handle a lost link; return whether a member is now missing."""
        self.linked.discard(node)
        self.lost.add(node)
        self.returning.discard(node)
        return node in self.members and node not in self.departed | self.done

    # --- agreement ----------------------------------------------------------------------------------------------------

    def stop(self, rounds: int, digest: str, now_ns: int) -> list[Effect]:
        """Begin an agreement: send the number of completed rounds to all."""
        self.regroup = Regroup(self.node, self.view, rounds, digest)
        self._reported_ns = self._stopped_ns = now_ns
        report = self._report()
        return [*report, SetTimer(("regroup", self.epoch), self.waits.again_ns)]

    def answer(self, sender: NodeId, report: GroupReport) -> list[Effect]:
        """Reply to a report of an older epoch with the view that began this one."""
        late = report.epoch < self.epoch or sender not in self.members
        return [Send(sender, self.view)] if late else []

    def take_report(self, sender: NodeId, report: GroupReport) -> list[Effect]:
        """Store a report of this epoch; reply to the first one of each worker."""
        assert self.regroup
        again = sender in self.regroup.reports
        self.regroup.add_report(sender, report)
        return [] if again else [Send(sender, self.regroup.own)]

    def late(self, now_ns: int) -> None:
        """End the wait for missing reports, after a time, and then the wait for the proposer."""
        assert self.regroup
        if now_ns - self._reported_ns < self.waits.patience_ns:
            return
        if not self.regroup.patient and self.regroup.enough and self.regroup.proposer != self.node:
            self.regroup.lost(self.regroup.proposer)
        self.regroup.patient, self._reported_ns = False, now_ns

    def ask_again(self) -> list[Effect]:
        """Send the report to all again: a worker in a later view replies with that view."""
        assert self.regroup
        return [*self._report(), SetTimer(("regroup", self.epoch), self.waits.again_ns)]

    def _report(self) -> list[Effect]:
        """Return the messages to the view: the refused workers, then this worker's report."""
        assert self.regroup
        words: list[Message] = [WorkerRefused(self.epoch, one) for one in sorted(self.refused & set(self.members))]
        words.append(self.regroup.own)
        return [Send(to, word) for to in self.members if to in self.here for word in words]

    def refuse(self, node: NodeId) -> None:
        """Refuse a worker until its restart."""
        self.refused.add(node)
        self.returning.discard(node)

    def proposal(self, now_ns: int) -> GroupView | Failure | None:
        """Return a view or failure, once all have reported; None while reports, or another's proposal, are awaited."""
        regroup = self.regroup
        joining = set(self.others) - self.lost - self.departed - self.refused  # links are made one by one
        there = self.here if self.at_work else joining
        if regroup is None or regroup.awaited(there - self.returning):
            return None
        if not regroup.enough:
            return self._too_few(regroup, now_ns)
        if regroup.proposer != self.node:
            return None
        out = regroup.leave_out_the_odd()
        if out is None:
            text = f"after round {regroup.rounds} workers have different models: {regroup.furthest}"
            return Failure("peer", text, "Have all the same version, kernels (--portable) and data?")
        self.odd = tuple(out)
        return regroup.proposal(self.returning & self.here - set(out))

    def _too_few(self, regroup: Regroup, now_ns: int) -> Failure | None:
        """Wait for the return of others if enough of them can return; else return the failure."""
        can = set(self.members) - self.departed - self.refused
        if enough(self.view, can, regroup.rounds) and now_ns - self._stopped_ns < self.waits.start_ns:
            return None
        of = too_few_of(self.view, regroup.reports, regroup.rounds) or self.members
        left = sorted(set(regroup.reports) & set(of))
        here = f"workers {left} of {list(of)} are left, and more than half must be"
        advice = "Start all again with --resume: they go on from the furthest round."
        return Failure("too_few", f"{here}: it ended after round {regroup.own.rounds}", advice)

    def judged(self, sender: NodeId, view: GroupView, rounds: int) -> GroupView | None:
        """Return a received view if it must be adopted; one without this worker sets `outside` once the others have
        continued.

        Raises ProtocolError for an invalid view.
        """
        rival = self._rival(sender, view)
        if generation(view.epoch) <= generation(self.epoch) and not rival:
            return None  # one of a generation is enough
        wrong = misshapen(sender, view, (self.node, *self.others))
        if not wrong and self.node not in view.members:
            self._accept_exclusion(sender, view, sure=rival)
            return None
        if not wrong and rival:
            wrong = None if self.node in view.behind or rounds == view.rounds else "is of other rounds"
        elif not (
            wrong or (self.node in view.behind and (self.outside or not self.at_work)) or self._lost(view, rounds)
        ):
            asked = self.regroup if generation(view.epoch) == generation(self.epoch) + 1 else None
            wrong = asked.refuses(view) if asked else "was not requested"
        if wrong:
            raise ProtocolError(f"worker {self.node}: the view of worker {sender} {wrong}", peer=sender)
        return view

    def _lost(self, view: GroupView, rounds: int) -> bool:
        """Return whether a view relies on rounds of this worker's last incarnation that are in no checkpoint."""
        return not self.at_work and rounds < view.rounds and self.node in view.members

    def _rival(self, sender: NodeId, view: GroupView) -> bool:
        """Return whether a worker of this view is in a later one of the same generation, so that this one is void."""
        same = generation(view.epoch) == generation(self.epoch) and view.epoch > self.epoch
        return same and sender in self.members and sender in view.members

    def adopt(self, view: GroupView) -> list[NodeId]:
        """Adopt a view; return the members of the last one that it excludes."""
        gone = [node for node in self.members if node not in view.members]
        self.view, self.regroup, self.outside = view, None, None
        self.returning -= set(view.members)
        self._left_out_by.clear()
        return gone

    def announce(self) -> list[Effect]:
        """Send the view to linked workers outside it."""
        return [Send(other, self.view) for other in sorted(self.linked - self.departed - set(self.members))]

    # --- readmission --------------------------------------------------------------------------------------------------

    def _accept_exclusion(self, sender: NodeId, view: GroupView, *, sure: bool) -> None:
        """Accept an exclusion that more than half report, as one may be wrong.  A restarted worker accepts any."""
        self._left_out_by.add(sender)
        known = sure or 2 * len(self._left_out_by & set(self.members)) > len(self.members) or not self.at_work
        newer = self.outside is None or generation(view.epoch) > generation(self.outside.epoch)
        if newer and (known or self.outside):
            self.outside = view

    def leave_off(self, now_ns: int) -> None:
        """End the agreement with others: they continued without this worker."""
        self.regroup, self._stopped_ns = None, now_ns

    def ask_in(self, rounds: int, now_ns: int) -> list[Effect] | Failure:
        """Request readmission from the view's members, if all are linked; return a failure after too long."""
        assert self.outside
        if now_ns - self._stopped_ns >= self.waits.start_ns:
            text = f"the other workers went on without worker {self.node}, after round {self.outside.rounds}"
            return Failure("network", text, "Messages are lost in one direction: look at its link.")
        asked = [Send(other, WorkerReturn(rounds)) for other in self.outside.members if other in self.linked]
        return [
            *(asked if set(self.outside.members) <= self.linked else []),
            SetTimer(("return",), self.waits.again_ns),
        ]

    def record_readmission(self, sender: NodeId) -> bool:
        """Record a request for readmission; return whether its sender is a member of the view."""
        self.returning.add(sender)
        return sender in self.members


def generation(epoch: int) -> int:
    """Return the number of views before the view of this epoch."""
    return epoch // WORKERS_MAX


def next_epoch(epoch: int, proposer: NodeId) -> int:
    """Return the epoch of the view that `proposer` proposes after this one."""
    return (generation(epoch) + 1) * WORKERS_MAX + proposer


def first_view(workers: Collection[NodeId]) -> GroupView:
    """Return the view of all workers, before any is missing."""
    everyone = tuple(sorted(workers))
    return GroupView(0, everyone, 0, everyone[0], (), everyone)


def worked(view: GroupView, rounds: int) -> tuple[NodeId, ...]:
    """Return the last workers that certainly worked together, if a member of the view has completed `rounds` rounds."""
    return view.members if rounds > view.rounds else view.agreed


def enough(view: GroupView, there: Collection[NodeId], rounds: int) -> bool:
    """Return whether these workers may continue from a view.

    They must be more than half of its workers, and of the last that worked together.  Without the second condition
    readmitted workers could continue without those that readmitted them, and the latter without the former.
    """
    return too_few_of(view, there, rounds) is None


def too_few_of(view: GroupView, there: Collection[NodeId], rounds: int) -> tuple[NodeId, ...] | None:
    """Return the first group of `enough` with at most half of its workers present; None if `enough` holds."""
    groups = (view.members, worked(view, rounds))
    return next((of for of in groups if 2 * len(set(there) & set(of)) <= len(of)), None)


class Regroup:
    """The agreement of one epoch, at one worker.  Invariant: a proposal contains only workers with a report here."""

    def __init__(self, node: NodeId, view: GroupView, rounds: int, digest: str) -> None:
        self.node, self.view = node, view
        self.reports: dict[NodeId, GroupReport] = {node: GroupReport(view.epoch, rounds, digest)}
        self.patient = True
        """Whether to wait for linked members without a report."""

    @property
    def own(self) -> GroupReport:
        return self.reports[self.node]

    @property
    def rounds(self) -> int:
        """Number of completed rounds of the furthest worker."""
        return max(report.rounds for report in self.reports.values())

    def add_report(self, sender: NodeId, report: GroupReport) -> None:
        """Store the report of a member, of this epoch."""
        self.reports[sender] = report

    def lost(self, node: NodeId) -> None:
        """Drop the report of a lost member."""
        if node != self.node:
            self.reports.pop(node, None)

    def awaited(self, linked: Collection[NodeId]) -> list[NodeId]:
        """Return the linked members with a missing report."""
        members = self.view.members if self.patient else ()
        return [node for node in members if node in linked and node not in self.reports]

    @property
    def proposer(self) -> NodeId:
        """The proposer: one of the reporting workers."""
        return min(self.reports)

    @property
    def enough(self) -> bool:
        """Whether the reporting workers may continue."""
        return enough(self.view, self.reports, self.rounds)

    @property
    def furthest(self) -> dict[NodeId, str]:
        """The digests of the workers with the most completed rounds."""
        return {node: one.digest for node, one in self.reports.items() if one.rounds == self.rounds}

    @property
    def odd(self) -> list[NodeId]:
        """The furthest workers with a minority model; without a majority, those whose model is not this worker's."""
        digests = self.furthest
        if len(set(digests.values())) < 2:
            return []
        ((most, count),) = Counter(digests.values()).most_common(1)
        # without a majority nothing shows that this worker's model is the wrong one
        right = most if 2 * count > len(digests) else digests.get(self.node)
        return [node for node, digest in digests.items() if digest != right]

    def leave_out_the_odd(self) -> list[NodeId] | None:
        """Drop and return the `odd`; return None and drop none if too few workers, or not this one, would remain."""
        before, out = dict(self.reports), []
        while odd := self.odd:
            out += odd
            for node in odd:
                del self.reports[node]
            if not self.reports or self.node in odd or not self.enough:
                self.reports = before
                return None
        return out

    def proposal(self, returning: Collection[NodeId]) -> GroupView:
        """Return the view of the reporting and the `returning` workers.  All furthest models are the same."""
        furthest = self.furthest
        members = tuple(sorted({*self.reports, *returning}))
        behind = tuple(node for node in members if node not in furthest)
        epoch, agreed = next_epoch(self.view.epoch, self.node), worked(self.view, self.rounds)
        return GroupView(epoch, members, self.rounds, min(furthest), behind, agreed)

    def refuses(self, view: GroupView) -> str | None:
        """Return the fault of a view of the next generation; None if it can be adopted."""
        if not enough(self.view, view.members, view.rounds):
            return "has too few workers to go on"
        late = self.node in view.behind
        if self.own.rounds > view.rounds or late != (self.own.rounds < view.rounds):
            return f"goes on after {view.rounds} rounds, and {self.own.rounds} are behind this one"
        return None


def misshapen(sender: NodeId, view: GroupView, everyone: Collection[NodeId]) -> str | None:
    """Return the reason why no worker can have proposed such a view; None for a possible one."""
    members = set(view.members)
    whole = len(members) == len(view.members) and members <= set(everyone)
    if (
        not {sender, view.epoch % WORKERS_MAX} <= members
        or not whole
        or not set(view.agreed) <= set(everyone)
        or not view.agreed
    ):
        return "is of others than the workers of the run"
    if view.donor not in members or not set(view.behind) <= members or view.donor in view.behind:
        return "names a donor that cannot be one"
    return None
