"""Agreement of workers on the members that go on after a loss or return: a report of each to all, a view by the lowest.

    1. a worker that misses another stops its round, and sends all its number of completed rounds, with the digest of
       its model; each receiver of such a report does so too
    2. when all linked workers have reported, or after a time, the lowest reporting one proposes a view: the reporting
       workers, if they are enough, those that ask for readmission, and the furthest worker's number of rounds; one with
       another model after these rounds is left out, and may ask for readmission
    3. each adopts one view of a generation at most, the first that it receives; those behind fetch the state of a donor

Enough are more than half of the workers of the view, and of the last view that certainly worked: one with a completed
round, which takes all of its members.  So two halves of a partitioned network cannot both go on.  Where links break
one by one, two views can be proposed at once; they have a common member, which adopts one of them, and no round of the
other is completed.  Its members are too few to leave it by themselves; one that receives the later view from a worker
of its own adopts that, or asks for readmission there.

An epoch is the number of a view: its generation, and its proposer.  In one epoch a round has one result, the same for
every worker that completes it; so a worker that resumes from a checkpoint of this epoch is equivalent to one that was
always there.

Source: the round of views of virtual synchrony (Birman and Joseph, Exploiting virtual synchrony in distributed
systems, SOSP 1987), with one proposer in place of an agreement of all, as a round can be dropped and repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import WORKERS_MAX, GroupReport, GroupView


def generation(epoch: int) -> int:
    """Return the number of views before that of this epoch."""
    return epoch // WORKERS_MAX


def next_epoch(epoch: int, proposer: NodeId) -> int:
    """Return the epoch of the view that `proposer` proposes after this one."""
    return (generation(epoch) + 1) * WORKERS_MAX + proposer


def first_view(workers: Collection[NodeId]) -> GroupView:
    """Return the view of all workers, before any is missing."""
    everyone = tuple(sorted(workers))
    return GroupView(0, everyone, 0, everyone[0], (), everyone)


def worked(view: GroupView, rounds: int) -> tuple[NodeId, ...]:
    """Return the last workers that certainly worked together, if a member of the view has completed so many rounds."""
    return view.members if rounds > view.rounds else view.agreed


def enough(view: GroupView, there: Collection[NodeId], rounds: int) -> bool:
    """Return whether these may go on from a view: more than half of its workers, and of the last that worked together.

    The first condition alone would let readmitted workers go on without those that readmitted them, while these do so
    too.
    """
    return too_few_of(view, there, rounds) is None


def too_few_of(view: GroupView, there: Collection[NodeId], rounds: int) -> tuple[NodeId, ...] | None:
    """Return the workers of whom no more than half are there, of the two groups of `enough`; None where it holds."""
    groups = (view.members, worked(view, rounds))
    return next((of for of in groups if 2 * len(set(there) & set(of)) <= len(of)), None)


class Regroup:
    """The agreement of one epoch, at one worker.  Invariant: a proposal is of workers with a report here."""

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
        """Drop the report of a member that is gone."""
        if node != self.node:
            self.reports.pop(node, None)

    def awaited(self, linked: Collection[NodeId]) -> list[NodeId]:
        """Return the linked members with a missing report."""
        members = self.view.members if self.patient else ()
        return [node for node in members if node in linked and node not in self.reports]

    @property
    def proposer(self) -> NodeId:
        """The proposer among the reporting workers."""
        return min(self.reports)

    @property
    def enough(self) -> bool:
        """Whether the reporting workers may go on."""
        return enough(self.view, self.reports, self.rounds)

    @property
    def furthest(self) -> dict[NodeId, str]:
        """The digests of the workers with the most completed rounds."""
        return {node: one.digest for node, one in self.reports.items() if one.rounds == self.rounds}

    @property
    def odd(self) -> list[NodeId]:
        """The furthest workers with a minority model.

        Without a majority those with another model than this worker's; all, if this worker is not among the furthest.
        """
        digests = self.furthest
        if len(set(digests.values())) < 2:
            return []
        ((most, count),) = Counter(digests.values()).most_common(1)
        right = most if 2 * count > len(digests) else digests.get(self.node)
        return [node for node, digest in digests.items() if digest != right]

    def leave_out_the_odd(self) -> list[NodeId] | None:
        """Drop and return the `odd`; return None and drop none, if too few workers, or not this one, would remain."""
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
        """Return the fault of a view of the next generation; None where it can be adopted."""
        if not enough(self.view, view.members, view.rounds):
            return "has too few workers to go on"
        late = self.node in view.behind
        if self.own.rounds > view.rounds or late != (self.own.rounds < view.rounds):
            return f"goes on after {view.rounds} rounds, and {self.own.rounds} are behind this one"
        return None


def misshapen(sender: NodeId, view: GroupView, everyone: Collection[NodeId]) -> str | None:
    """Return the reason why no worker can have proposed such a view; None where one can."""
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
