"""Who the workers of a collective are, at one of them, and how it comes to the view of who goes on (see `regroup`)."""

from __future__ import annotations

from collections.abc import Sequence

from fedgossip.errors import ProtocolError
from fedgossip.machine import Effect, Failure, NodeId, Send, SetTimer
from fedgossip.messages import GroupReport, GroupView
from fedgossip.protocols.regroup import Diverged, Regroup


class WorkerGroup:
    """Invariant: `regroup` is there if and only if this worker has stopped its round, and is then of this epoch.

    A view, or a failure, that is returned is to be acted on by the machine: `adopt` it, or end.
    """

    def __init__(self, node: NodeId, members: Sequence[NodeId], patience_ns: int, again_ns: int) -> None:
        self.node, self.members, self.epoch = node, tuple(sorted(members)), 0
        self.patience_ns, self.again_ns = patience_ns, again_ns
        self.others = tuple(member for member in self.members if member != node)
        """All that there ever were."""
        self.linked: set[NodeId] = set()
        self.done: set[NodeId] = set()  # with all rounds behind them
        self.departed: set[NodeId] = set()  # that said goodbye before
        self.view: GroupView | None = None  # by which this epoch began
        self.regroup: Regroup | None = None
        self._left_out_by: set[NodeId] = set()  # workers whose view this one is not in
        self._since_ns = 0

    @property
    def here(self) -> set[NodeId]:
        """Those that can take part in what is agreed."""
        return self.linked - self.departed

    @property
    def missing(self) -> list[NodeId]:
        """Those that have no link, ascending."""
        return [other for other in self.others if other not in self.linked]

    @property
    def rank(self) -> int:
        return self.members.index(self.node)

    @property
    def settled(self) -> bool:
        """Whether all that are here have all rounds behind them."""
        return not set(self.members) & self.here - self.done

    def greeting(self, node: NodeId) -> list[Effect]:
        """What one is told whose link comes up: the view that it is not in, or how far this worker had come."""
        if self.view and node not in self.members:
            return [Send(node, self.view)]
        return [Send(node, self.regroup.own)] if self.regroup and node in self.members else []

    def stop(self, rounds: int, digest: str, now_ns: int) -> list[Effect]:
        """Begin to agree: tell all how many rounds are behind this worker."""
        self.regroup, self._since_ns = Regroup(self.node, self.members, self.epoch, rounds, digest), now_ns
        said = [Send(other, self.regroup.own) for other in self.members if other in self.here]
        return [*said, SetTimer(("regroup", self.epoch), self.again_ns)]

    def concerns(self, sender: NodeId, report: GroupReport, rounds: int) -> bool:
        """Whether a report is of this epoch.  Raises ProtocolError for one that cannot be."""
        if report.epoch != self.epoch or sender not in self.members:
            return False
        if abs(report.rounds - rounds) > 1:
            text = f"a report of worker {sender}, with {report.rounds} rounds behind it: one round away at most"
            raise ProtocolError(f"worker {self.node}, round {rounds}: {text}", peer=sender)
        return True

    def answer(self, sender: NodeId, report: GroupReport) -> list[Effect]:
        """Tell one that reports of an older epoch by which view this one began."""
        late = report.epoch < self.epoch or sender not in self.members
        return [Send(sender, self.view)] if late and self.view else []

    def heard(self, sender: NodeId, report: GroupReport) -> list[Effect]:
        """Take a report of this epoch; answer the first of each."""
        assert self.regroup
        again = sender in self.regroup.reports
        self.regroup.heard(sender, report)
        return [] if again else [Send(sender, self.regroup.own)]

    def late(self, now_ns: int) -> None:
        """Wait no more, after a time, for those who have not reported, and then for one that has not proposed."""
        assert self.regroup
        if now_ns - self._since_ns < self.patience_ns:
            return
        if not self.regroup.patient and self.regroup.proposer != self.node:
            self.regroup.lost(self.regroup.proposer)
        self.regroup.patient, self._since_ns = False, now_ns

    def ask_again(self) -> list[Effect]:
        """Say it again to those who have not answered, and to who is to propose."""
        assert self.regroup
        ask = {*self.regroup.awaited(self.here), self.regroup.proposer} & self.here
        again = [Send(other, self.regroup.own) for other in sorted(ask)]
        return [*again, SetTimer(("regroup", self.epoch), self.again_ns)]

    def proposal(self) -> GroupView | Failure | None:
        """Return what is to be done where all have reported: None where another proposes, or some are waited for."""
        regroup = self.regroup
        if regroup is None or regroup.awaited(self.here):
            return None
        if not regroup.enough:
            here = f"workers {sorted(regroup.reports)} of {list(self.members)} are left, and more than half must be"
            advice = "Start all again with --resume: they go on from the furthest round."
            return Failure("too_few", f"{here}: it ended after round {regroup.own.rounds}", advice)
        if regroup.proposer != self.node:
            return None
        view = regroup.proposal()
        if isinstance(view, Diverged):
            text = f"after round {view.rounds} workers have different models: {dict(view.digests)}"
            return Failure("peer", text, "Have all the same version, kernels (--portable) and data?")
        return view

    def judged(self, sender: NodeId, view: GroupView) -> GroupView | Failure | None:
        """Return a view of another worker where it is to be adopted.  Raises ProtocolError for one that cannot be."""
        if view.epoch <= self.epoch:
            return None  # one of an epoch is enough
        if self.node not in view.members and sender in self.members:
            return self._left_out(sender, view)
        if self.regroup is None or view.epoch != self.epoch + 1:
            raise ProtocolError(f"worker {self.node}: a view that nobody asked for, of worker {sender}", peer=sender)
        if wrong := self.regroup.refuses(sender, view):
            raise ProtocolError(f"worker {self.node}: the view of worker {sender} {wrong}", peer=sender)
        return view

    def _left_out(self, sender: NodeId, view: GroupView) -> Failure | None:
        """End if more than half of the workers say that they go on without this one; one that says so may be wrong."""
        self._left_out_by.add(sender)
        if 2 * len(self._left_out_by) <= len(self.members):
            return None
        text = f"the other workers went on without worker {self.node}, after round {view.rounds}"
        return Failure("network", text, "They did not hear it for too long: look at its link.")

    def adopt(self, view: GroupView) -> list[NodeId]:
        """Go on as it says; return who is not in it any more."""
        gone = [node for node in self.members if node not in view.members]
        self.epoch, self.members, self.view, self.regroup = view.epoch, view.members, view, None
        self._left_out_by.clear()
        return gone
