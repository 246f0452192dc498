"""How workers agree on who goes on where one is missing: a report of each to all, and a view by the lowest of them.

    1. one that misses another stops its round, and says to all how many rounds are behind it, with the digest of its
       model; so does everyone who hears of it
    2. when all have reported that have a link, or after a time, the lowest that has reported proposes a view: those who
       reported, if they are more than half of the workers of the view before, and as many rounds as the furthest has
    3. each adopts one view of an epoch at most, the first that it gets; those behind get the last mean from a donor

Two halves of a network that is cut cannot both go on: more than half is one of them at most.  Two views of one epoch
can be proposed where links are broken one by one; they have members in common then, of whom each is in one of them
alone, and the other view stands still until its deadline and has too few.

Source: the round of views of virtual synchrony (Birman and Joseph, Exploiting virtual synchrony in distributed systems,
SOSP 1987), with one proposer in place of an agreement of all, for a round can be given up and done again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedgossip.machine import NodeId
from fedgossip.messages import GroupReport, GroupView


@dataclass(frozen=True, slots=True)
class Diverged:
    """Workers with as many rounds behind them have different models."""

    rounds: int
    digests: Mapping[NodeId, str]


class Regroup:
    """The agreement of one epoch, at one worker.  Invariant: a proposal is of those whose reports are here."""

    def __init__(self, node: NodeId, members: Collection[NodeId], epoch: int, rounds: int, digest: str) -> None:
        self.node, self.members, self.epoch = node, tuple(sorted(members)), epoch
        self.reports: dict[NodeId, GroupReport] = {node: GroupReport(epoch, rounds, digest)}
        self.patient = True
        """Whether those with a link are waited for that have not reported."""

    @property
    def own(self) -> GroupReport:
        return self.reports[self.node]

    def heard(self, sender: NodeId, report: GroupReport) -> None:
        """Take the report of a member, of this epoch."""
        self.reports[sender] = report

    def lost(self, node: NodeId) -> None:
        """A member is gone: what it has reported counts no more."""
        if node != self.node:
            self.reports.pop(node, None)

    def awaited(self, linked: Collection[NodeId]) -> list[NodeId]:
        """Members whose reports are waited for: those with a link."""
        return [node for node in self.members if node in linked and node not in self.reports] if self.patient else []

    @property
    def proposer(self) -> NodeId:
        """Who proposes, of those that have reported."""
        return min(self.reports)

    @property
    def enough(self) -> bool:
        """Whether those that have reported may go on."""
        return 2 * len(self.reports) > len(self.members)

    def proposal(self) -> GroupView | Diverged:
        """Return the view of those that have reported, or what speaks against it."""
        rounds = max(report.rounds for report in self.reports.values())
        furthest = {node: one.digest for node, one in self.reports.items() if one.rounds == rounds}
        if len(set(furthest.values())) > 1:
            return Diverged(rounds, furthest)
        members = tuple(sorted(self.reports))
        behind = tuple(node for node in members if node not in furthest)
        return GroupView(self.epoch + 1, members, rounds, min(furthest), behind)

    def refuses(self, sender: NodeId, view: GroupView) -> str | None:
        """Say what is wrong with a view of the next epoch; None where it can be adopted."""
        members = set(view.members)
        if sender not in members or len(members) != len(view.members) or not members <= set(self.members):
            return "is of others than the workers of the view before"
        if 2 * len(members) <= len(self.members):
            return "has too few workers to go on"
        if view.donor not in members or not set(view.behind) <= members or view.donor in view.behind:
            return "names a donor that cannot be one"
        late = self.own.rounds + 1 == view.rounds and self.node in view.behind
        if self.node in members and not late and (self.own.rounds != view.rounds or self.node in view.behind):
            return f"goes on after {view.rounds} rounds, and {self.own.rounds} are behind this one"
        return None
