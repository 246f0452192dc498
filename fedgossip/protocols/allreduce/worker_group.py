"""Who the workers of a collective are, at one of them, and how it comes to the view of who goes on (see `regroup`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import Effect, Failure, NodeId, Send, SetTimer
from fedgossip.core.messages import GroupReport, GroupView, Message, WorkerRefused, WorkerReturn
from fedgossip.protocols.allreduce.regroup import Regroup, enough, first_view, generation, misshapen


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """Times in nanoseconds."""

    patience_ns: int
    """For those with a link that do not report."""
    again_ns: int
    """Before something is said again that was not answered."""
    start_ns: int
    """For enough workers to come back, and for one that comes back to be taken in."""


class WorkerGroup:
    """Invariant: `regroup` is there if and only if this worker has stopped its round, and is then of this epoch.

    A view, or a failure, that is returned is to be acted on by the machine: `adopt` it, or end.
    """

    def __init__(self, node: NodeId, workers: Sequence[NodeId], waits: GroupWaits) -> None:
        self.node, self.waits = node, waits
        self.view = first_view(workers)  # in which this worker is
        self.others = tuple(worker for worker in self.view.members if worker != node)
        """All that there ever were."""
        self.linked: set[NodeId] = set()
        self.lost: set[NodeId] = set()  # that had a link, and have none
        self.lives: dict[NodeId, int] = {}
        self.done: set[NodeId] = set()  # with all rounds behind them
        self.departed: set[NodeId] = set()  # that said goodbye before
        self.returning: set[NodeId] = set()  # that ask to be taken in again
        self.refused: set[NodeId] = set()  # that have sent what cannot be added up, to this worker or to another
        self.odd: tuple[NodeId, ...] = ()  # whose model was another than that of the rest, when this one proposed last
        self.regroup: Regroup | None = None
        self.outside: GroupView | None = None  # by which the others went on without this one
        self.at_work = False
        """Whether this worker has taken part in a round since it began."""
        self._left_out_by: set[NodeId] = set()  # workers whose view this one is not in
        self._reported_ns = self._stopped_ns = 0

    @property
    def epoch(self) -> int:
        return self.view.epoch

    @property
    def members(self) -> tuple[NodeId, ...]:
        return self.view.members

    @property
    def here(self) -> set[NodeId]:
        """Those that can take part in what is agreed."""
        return self.linked - self.departed - self.refused

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

    @property
    def takes_in(self) -> bool:
        """Whether it is for this worker to stop after a round, so that one that is back takes part."""
        return bool(self.returning & self.here - set(self.members)) and self.node == min(self.members)

    # --- from life to life ------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, object]:
        """Return the view for a checkpoint: a next life is bound by it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.view).items()}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on in the view that a life before had adopted."""
        plain: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in facts.items()}
        self.view = GroupView(**plain)

    # --- who is here ------------------------------------------------------------------------------------------------

    def joined(self, node: NodeId, life: int) -> list[Effect]:
        """A link is up: tell the view that the other is not in, or how far this worker had come."""
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

    def gone(self, node: NodeId) -> bool:
        """A link is lost; return whether one is missed by that."""
        self.linked.discard(node)
        self.lost.add(node)
        self.returning.discard(node)
        return node in self.members and node not in self.departed | self.done

    # --- to agree ---------------------------------------------------------------------------------------------------

    def stop(self, rounds: int, digest: str, now_ns: int) -> list[Effect]:
        """Begin to agree: tell all how many rounds are behind this worker."""
        self.regroup = Regroup(self.node, self.view, rounds, digest)
        self._reported_ns = self._stopped_ns = now_ns
        said = self._said()
        return [*said, SetTimer(("regroup", self.epoch), self.waits.again_ns)]

    def answer(self, sender: NodeId, report: GroupReport) -> list[Effect]:
        """Tell one that reports of an older epoch by which view this one began."""
        late = report.epoch < self.epoch or sender not in self.members
        return [Send(sender, self.view)] if late else []

    def heard(self, sender: NodeId, report: GroupReport) -> list[Effect]:
        """Take a report of this epoch; answer the first of each."""
        assert self.regroup
        again = sender in self.regroup.reports
        self.regroup.heard(sender, report)
        return [] if again else [Send(sender, self.regroup.own)]

    def late(self, now_ns: int) -> None:
        """Wait no more, after a time, for those who have not reported, and then for one that has not proposed."""
        assert self.regroup
        if now_ns - self._reported_ns < self.waits.patience_ns:
            return
        if not self.regroup.patient and self.regroup.enough and self.regroup.proposer != self.node:
            self.regroup.lost(self.regroup.proposer)
        self.regroup.patient, self._reported_ns = False, now_ns

    def ask_again(self) -> list[Effect]:
        """Say it again to all: who is in a later view answers with that."""
        assert self.regroup
        return [*self._said(), SetTimer(("regroup", self.epoch), self.waits.again_ns)]

    def _said(self) -> list[Effect]:
        """To all of the view: whom this worker refuses, and then how far it has come."""
        assert self.regroup
        words: list[Message] = [WorkerRefused(self.epoch, one) for one in sorted(self.refused & set(self.members))]
        words.append(self.regroup.own)
        return [Send(to, word) for to in self.members if to in self.here for word in words]

    def refuse(self, node: NodeId) -> None:
        """Work with one no more, until it is started anew."""
        self.refused.add(node)
        self.returning.discard(node)

    def proposal(self, now_ns: int) -> GroupView | Failure | None:
        """Return what is to be done where all have reported: None where another proposes, or some are waited for."""
        regroup = self.regroup
        coming = set(self.others) - self.lost - self.departed - self.refused  # the links come one by one
        there = self.here if self.at_work else coming
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
        """Wait for others to come back, as long as enough of them can."""
        can = set(self.members) - self.departed - self.refused
        if enough(self.view, can, regroup.rounds) and now_ns - self._stopped_ns < self.waits.start_ns:
            return None
        here = f"workers {sorted(regroup.reports)} of {list(self.members)} are left, and more than half must be"
        advice = "Start all again with --resume: they go on from the furthest round."
        return Failure("too_few", f"{here}: it ended after round {regroup.own.rounds}", advice)

    def judged(self, sender: NodeId, view: GroupView, rounds: int) -> GroupView | None:
        """Return a view of another worker where it is to be adopted.  Raises ProtocolError for one that cannot be.

        One that this worker is not in is noted: `outside` is there when it is known that the others went on.
        """
        rival = self._rival(sender, view)
        if generation(view.epoch) <= generation(self.epoch) and not rival:
            return None  # one of a generation is enough
        wrong = misshapen(sender, view, (self.node, *self.others))
        if not wrong and self.node not in view.members:
            self._left_out(sender, view, sure=rival)
            return None
        if not wrong and rival:
            wrong = None if self.node in view.behind or rounds == view.rounds else "is of other rounds"
        elif not wrong and not (self.node in view.behind and (self.outside or not self.at_work)):
            asked = self.regroup if generation(view.epoch) == generation(self.epoch) + 1 else None
            wrong = asked.refuses(view) if asked else "is one that nobody asked for"
        if wrong:
            raise ProtocolError(f"worker {self.node}: the view of worker {sender} {wrong}", peer=sender)
        return view

    def _rival(self, sender: NodeId, view: GroupView) -> bool:
        """Whether a worker of this view is in a later one of the same generation, so that nothing can come of this one.

        Only the earlier of two is left for the later, so the one who is in the later never comes back to it.
        """
        same = generation(view.epoch) == generation(self.epoch) and view.epoch > self.epoch
        return same and sender in self.members and sender in view.members

    def adopt(self, view: GroupView) -> list[NodeId]:
        """Go on as it says; return who is not in it any more."""
        gone = [node for node in self.members if node not in view.members]
        self.view, self.regroup, self.outside = view, None, None
        self.returning -= set(view.members)
        self._left_out_by.clear()
        return gone

    def announce(self) -> list[Effect]:
        """Tell those with a link that are not in the view."""
        return [Send(other, self.view) for other in sorted(self.linked - self.departed - set(self.members))]

    # --- to come back -----------------------------------------------------------------------------------------------

    def _left_out(self, sender: NodeId, view: GroupView, *, sure: bool) -> None:
        """Believe it when more than half say so: one may be wrong.  A worker that has just come has no say in it."""
        self._left_out_by.add(sender)
        known = sure or 2 * len(self._left_out_by & set(self.members)) > len(self.members) or not self.at_work
        newer = self.outside is None or generation(view.epoch) > generation(self.outside.epoch)
        if newer and (known or self.outside):
            self.outside = view

    def leave_off(self, now_ns: int) -> None:
        """What this worker agreed on with others is over: they went on without it."""
        self.regroup, self._stopped_ns = None, now_ns

    def ask_in(self, rounds: int, now_ns: int) -> list[Effect] | Failure:
        """Ask those of the view to be taken in, where there is a link to each; end where nobody does it for long."""
        assert self.outside
        if now_ns - self._stopped_ns >= self.waits.start_ns:
            text = f"the other workers went on without worker {self.node}, after round {self.outside.rounds}"
            return Failure("network", text, "They do not hear it, or it does not hear them: look at its link.")
        asked = [Send(other, WorkerReturn(rounds)) for other in self.outside.members if other in self.linked]
        return [
            *(asked if set(self.outside.members) <= self.linked else []),
            SetTimer(("return",), self.waits.again_ns),
        ]

    def asked_in(self, sender: NodeId) -> bool:
        """One asks to be taken in again; return whether it was thought to be at work."""
        self.returning.add(sender)
        return sender in self.members
