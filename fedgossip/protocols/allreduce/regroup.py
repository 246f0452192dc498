"""How workers agree on who goes on where one is missing or back: a report of each to all, and a view by the lowest.

    1. one that misses another stops its round, and says to all how many rounds are behind it, with the digest of its
       model; so does everyone who hears of it
    2. when all have reported that have a link, or after a time, the lowest that has reported proposes a view: those who
       reported, if they are enough, those who ask to be taken in again, and as many rounds as the furthest has; one
       whose model after these rounds is not that of the others is left out, and may ask to be taken in again
    3. each adopts one view of a generation at most, the first that it gets; those behind fetch the state of a donor

Enough are more than half of the workers of the view, and of the last view that is known to have worked: one in which a
round was done, which takes all of its members.  So two halves of a network that is cut cannot both go on.  Where links
are broken one by one, two views can be proposed at once; they have a member in common, who adopts one of them, and
nobody does a round in the other.  Its members are too few to leave it by themselves; who hears of the later one from a
worker of its own goes over to that, or asks to be taken in there.

An epoch is the number of a view: its generation, and who proposed it.  In one epoch a round has one result, whoever saw
its end; so one that comes back with what it wrote down in this epoch is as good as one that was there all the time.

Source: the round of views of virtual synchrony (Birman and Joseph, Exploiting virtual synchrony in distributed systems,
SOSP 1987), with one proposer in place of an agreement of all, for a round can be given up and done again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import WORKERS_MAX, GroupReport, GroupView


def generation(epoch: int) -> int:
    """How many views there were before that of this epoch."""
    return epoch // WORKERS_MAX


def next_epoch(epoch: int, proposer: NodeId) -> int:
    """The epoch of a view that one proposes after this one."""
    return (generation(epoch) + 1) * WORKERS_MAX + proposer


def first_view(workers: Collection[NodeId]) -> GroupView:
    """The view of all workers, before any is missing."""
    everyone = tuple(sorted(workers))
    return GroupView(0, everyone, 0, everyone[0], (), everyone)


def worked(view: GroupView, rounds: int) -> tuple[NodeId, ...]:
    """The last workers that are known to have worked together, where so many rounds are behind one of a view."""
    return view.members if rounds > view.rounds else view.agreed


def enough(view: GroupView, there: Collection[NodeId], rounds: int) -> bool:
    """Whether these may go on from a view: more than half of its workers, and of the last that worked together.

    The first alone would let those who were taken in go on without those who took them in, and these do so too.
    """
    return all(2 * len(set(there) & set(of)) > len(of) for of in (view.members, worked(view, rounds)))


class Regroup:
    """The agreement of one epoch, at one worker.  Invariant: a proposal is of those whose reports are here."""

    def __init__(self, node: NodeId, view: GroupView, rounds: int, digest: str) -> None:
        self.node, self.view = node, view
        self.reports: dict[NodeId, GroupReport] = {node: GroupReport(view.epoch, rounds, digest)}
        self.patient = True
        """Whether those with a link are waited for that have not reported."""

    @property
    def own(self) -> GroupReport:
        return self.reports[self.node]

    @property
    def rounds(self) -> int:
        """How many are behind the furthest."""
        return max(report.rounds for report in self.reports.values())

    def heard(self, sender: NodeId, report: GroupReport) -> None:
        """Take the report of a member, of this epoch."""
        self.reports[sender] = report

    def lost(self, node: NodeId) -> None:
        """A member is gone: what it has reported counts no more."""
        if node != self.node:
            self.reports.pop(node, None)

    def awaited(self, linked: Collection[NodeId]) -> list[NodeId]:
        """Members whose reports are waited for: those with a link."""
        members = self.view.members if self.patient else ()
        return [node for node in members if node in linked and node not in self.reports]

    @property
    def proposer(self) -> NodeId:
        """Who proposes, of those that have reported."""
        return min(self.reports)

    @property
    def enough(self) -> bool:
        """Whether those that have reported may go on."""
        return enough(self.view, self.reports, self.rounds)

    @property
    def furthest(self) -> dict[NodeId, str]:
        """The digests of those that have the most rounds behind them."""
        return {node: one.digest for node, one in self.reports.items() if one.rounds == self.rounds}

    @property
    def odd(self) -> list[NodeId]:
        """Those of the furthest that have another model than more than half of them; where no model has so many, than
        this worker; all, where it is none of them."""
        digests = self.furthest
        if len(set(digests.values())) < 2:
            return []
        ((most, count),) = Counter(digests.values()).most_common(1)
        right = most if 2 * count > len(digests) else digests.get(self.node)
        return [node for node, digest in digests.items() if digest != right]

    def leave_out_the_odd(self) -> list[NodeId] | None:
        """Return whose reports count no more, by `odd`; None, with all reports, where too few would be left, or this
        worker is one of them."""
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
        """Return the view of those that have reported and of those that come back.  Their models are the same."""
        furthest = self.furthest
        members = tuple(sorted({*self.reports, *returning}))
        behind = tuple(node for node in members if node not in furthest)
        epoch, agreed = next_epoch(self.view.epoch, self.node), worked(self.view, self.rounds)
        return GroupView(epoch, members, self.rounds, min(furthest), behind, agreed)

    def refuses(self, view: GroupView) -> str | None:
        """Say what is wrong with a view of the next generation; None where it can be adopted."""
        if not enough(self.view, view.members, view.rounds):
            return "has too few workers to go on"
        late = self.node in view.behind
        if self.own.rounds > view.rounds or late != (self.own.rounds < view.rounds):
            return f"goes on after {view.rounds} rounds, and {self.own.rounds} are behind this one"
        return None


def misshapen(sender: NodeId, view: GroupView, everyone: Collection[NodeId]) -> str | None:
    """Say why nobody can have proposed such a view; None where somebody can."""
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
