"""Synchronous descent on the mean gradient of all workers, which a collective brings to each of them.

    phase       event                                          next phase
    new         Started                                        joining
    joining     PeerJoined (the last of all)                   training regrouping
    joining     start                                          finished
    training    Trained                                        reducing training leaving
    reducing    ReduceChunk                                    training leaving
    training    PeerGone GroupReport                           regrouping
    reducing    PeerGone GroupReport deadline                  regrouping
    regrouping  GroupReport PeerGone regroup                   training reducing catching leaving finished
    regrouping  GroupView                                      training reducing catching leaving finished
    catching    RoundMean                                      training leaving
    catching    PeerGone GroupReport catching                  regrouping
    leaving     GroupReport                                    regrouping
    leaving     Leaving ChunkTaken PeerGone drain              finished

and from everywhere Stopping to finished.

A round: every worker asks for its gradient at the common model; when it has it the moves of the table begin
(`reduction`); the mean by examples takes the step, the same bits everywhere.  A worker whose gradient takes longer
keeps the chunks that come meanwhile, and those of one that is a round ahead: it can be no further.

Where a worker is gone, or a round is not done by its deadline, all agree on who goes on (`regroup`).  The round that
was under way is done by one of them, and then all the others get its mean, or by nobody, and then it is done again by
those who are left, on the gradients that they have: nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.base import restored, saved
from fedgossip.algorithms.collectives.table import Table
from fedgossip.algorithms.descent.base import Descent, DescentState
from fedgossip.errors import ProtocolError
from fedgossip.machine import (
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    NodeId,
    Outgoing,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    RoundDone,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.messages import (
    TAIL,
    ChunkTaken,
    GroupReport,
    GroupView,
    Leaving,
    Message,
    ReduceChunk,
    RoundMean,
)
from fedgossip.protocols.chunk_links import ChunkLink
from fedgossip.protocols.deadlines import Deadline
from fedgossip.protocols.reduction import Chunk, Reduction
from fedgossip.protocols.worker_group import WorkerGroup
from fedgossip.vectors import Vector, digest, empty, frozen, summable

MEAN = "mean"
"""Before the last mean, in a checkpoint."""


@dataclass(frozen=True, slots=True)
class AllReduceSettings:
    """Limits of a run.  Times in nanoseconds."""

    rounds: int
    bucket: int
    """Elements of a bucket."""
    accumulate: int | None = 1
    """Batches of a gradient."""
    deadline_ns: int = 30_000_000_000
    least_deadline_ns: int = 5_000_000_000
    start_ns: int = 300_000_000_000
    again_ns: int = 1_000_000_000
    """The shortest time after which a chunk is sent again that was not acknowledged."""


def contribution_of(gradient: Vector | None, examples: int, metrics: Mapping[str, float]) -> tuple[float, Vector]:
    """Return what a worker brings to the mean: its weight, and its gradient [d] with its loss and a one behind it.

    The weight is the number of examples that the gradient is of, where the task tells them, and not of all it has.
    """
    assert gradient is not None, "a gradient was asked for"
    vector = empty(gradient.size + TAIL, gradient.dtype)
    vector[:-TAIL] = gradient
    vector[-TAIL:] = metrics.get("loss", 0.0), 1.0
    return float(max(1, metrics.get("rows", examples))), frozen(vector)


class AllReduce:
    """One worker.  `members` are all of them, itself among them; `rate` gives that of each round's step."""

    def __init__(
        self,
        node: NodeId,
        members: Sequence[NodeId],
        collective: Callable[[int], Table],
        descent: Descent[Any],
        initial: Vector,
        schema: str,
        settings: AllReduceSettings,
        rate: Callable[[int], float],
        resumed: Checkpoint | None = None,
    ) -> None:
        self.node, self.schema, self.settings = node, schema, settings
        self.collective, self.descent, self.rate = collective, descent, rate
        least_ns = min(settings.least_deadline_ns, settings.deadline_ns)
        self.group = WorkerGroup(node, members, least_ns, settings.again_ns)
        self.phase, self.round = "new", 0
        self.state = descent.start(initial)
        self.mean: Vector | None = None  # of the last round, for those who did not see its end
        if resumed:
            self.round = resumed.round
            vectors = dict(resumed.vectors)
            self.mean = vectors.pop(MEAN, None)
            self.state = restored(self.state, vectors, resumed.facts)
        self._fresh = resumed is None
        self.links = {other: ChunkLink(other, settings.deadline_ns, settings.again_ns) for other in self.group.others}
        self.contribution: tuple[float, Vector] | None = None  # of this round
        self.asked = -1  # the round whose gradient was asked for last
        self.early: tuple[NodeId, RoundMean] | None = None  # the mean of a view that has not come yet
        self.deadline = Deadline(settings.deadline_ns, least_ns)
        self.began_ns = 0
        self._turn()

    @property
    def model(self) -> Vector:
        state: DescentState = self.state
        return state.x

    def _turn(self) -> None:
        """Make room for the sums of this round, and for those of the next."""
        self.now, self.next = self._reduction(), self._reduction()

    def _reduction(self) -> Reduction:
        table = self.collective(len(self.group.members))
        return Reduction(self.group.rank, table, self.model.size + TAIL, self.model.dtype, self.settings.bucket)

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Take one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                return self._received(sender, message, now_ns)
            case Trained(job):
                assert job == self.round or self.phase != "training", f"job {job} was not asked for"
                return self._trained(event, now_ns) if job == self.round else []
            case Fired(key):
                return self._fired(key, now_ns)
            case PeerJoined(node):
                return self._joined(node, now_ns)
            case PeerGone(node):
                return self._gone(node, now_ns)
            case Started():
                self.phase = "joining"
                return [SetTimer(("start",), self.settings.start_ns), *self._begin_if_gathered(now_ns)]
            case Stopping():
                return [*self._goodbye(), *self._finish()]
        return []

    def _received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        if sender not in self.links:
            raise ProtocolError(f"worker {self.node}: a message of {sender}, which is no worker", peer=sender)
        match message:
            case ReduceChunk():
                return self._chunk(sender, message, now_ns)
            case ChunkTaken(epoch, round, bucket, step):
                effects = self.links[sender].taken((epoch, round, bucket, step), now_ns)
                return effects + self._end_if_settled()
            case GroupReport():
                return self._report(sender, message, now_ns)
            case GroupView():
                return self._viewed(sender, message, now_ns)
            case RoundMean():
                return self._caught_up(sender, message, now_ns)
            case Leaving():
                if message.round >= self.settings.rounds:
                    self.group.done.add(sender)
                    return self._end_if_settled()
                self.group.departed.add(sender)
                return self._lost(sender, now_ns) if sender in self.group.members else []
        raise ProtocolError(
            f"worker {self.node}: a message of kind {type(message).__name__.lower()!r} from worker {sender} in a run"
            " of all-reduce",
            "Were the workers started from the same experiment file?",
            peer=sender,
        )

    def _fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match key:
            case ("start",) if self.phase == "joining":
                text = f"workers {self.group.missing} did not come, and a collective needs all to begin"
                return self._finish(Failure("too_few", text, "Start them, or raise parallel.start_timeout."))
            case ("again", node, timer) if node in self.links and isinstance(timer, int):
                return self.links[node].again(timer)
            case ("deadline", epoch, round) if (epoch, round, "reducing") == (self.group.epoch, self.round, self.phase):
                late = sorted(self.group.members[rank] for rank in self.now.awaited())
                return [Report("overdue", late, self.round), *self._stop_round(now_ns)]
            case ("regroup", epoch) if epoch == self.group.epoch and self.phase == "regrouping":
                self.group.late(now_ns)
                effects = self._propose_if_due(now_ns)
                return [*effects, *self.group.ask_again()] if self.group.regroup else effects
            case ("catching", epoch) if epoch == self.group.epoch and self.phase == "catching":
                return self._stop_round(now_ns)
            case ("drain",) if self.phase == "leaving":
                return self._finish()
        return []

    # --- links ----------------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, now_ns: int) -> list[Effect]:
        if node not in self.links:
            return []
        self.group.linked.add(node)
        return [*self.links[node].resent(), *self.group.greeting(node), *self._begin_if_gathered(now_ns)]

    def _gone(self, node: NodeId, now_ns: int) -> list[Effect]:
        group = self.group
        group.linked.discard(node)
        if node not in group.members or node in group.departed | group.done:
            return self._end_if_settled()
        return self._lost(node, now_ns)

    def _lost(self, node: NodeId, now_ns: int) -> list[Effect]:
        """A worker of this view takes part no more."""
        if self.phase in ("training", "reducing", "catching"):
            return [Report("worker_gone", node, self.round), *self._stop_round(now_ns)]
        if self.group.regroup:
            self.group.regroup.lost(node)
            return self._propose_if_due(now_ns)
        return self._end_if_settled()

    # --- rounds ---------------------------------------------------------------------------------------------------

    def _begin_if_gathered(self, now_ns: int) -> list[Effect]:
        if self.phase != "joining" or self.group.missing:
            return []
        if self._fresh:
            return self._go_on(now_ns)
        self.phase = "training"  # each has the rounds that its last life had: find the furthest
        return self._stop_round(now_ns)

    def _go_on(self, now_ns: int) -> list[Effect]:
        """Ask for the gradient of the next round, or end."""
        if self.round >= self.settings.rounds:
            return self._leave()
        self.phase, self.began_ns, self.contribution, self.asked = "training", now_ns, None, self.round
        return [Train(self.round, self.model, gradient=True, accumulate=self.settings.accumulate)]

    def _trained(self, event: Trained, now_ns: int) -> list[Effect]:
        self.contribution = contribution_of(event.update, event.examples, event.metrics)
        return self._reduce(now_ns) if self.phase == "training" else []

    def _reduce(self, now_ns: int) -> list[Effect]:
        assert self.contribution
        self.phase = "reducing"
        deadline = SetTimer(("deadline", self.group.epoch, self.round), self.deadline.now_ns())
        effects: list[Effect] = [Outgoing(self.round + 1, self.model)]
        if len(self.group.members) > 1:
            effects.append(deadline)
        return effects + self._sent(self.now.begin(*self.contribution), now_ns) + self._close_if_done(now_ns)

    def _sent(self, chunks: Sequence[Chunk], now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for one in chunks:
            to, size = self.group.members[one.peer], one.vector.size
            place = self.group.epoch, self.round, one.bucket, one.step, one.start, size
            effects += self.links[to].send(ReduceChunk(*place, one.weight, self.schema, (one.vector,)), now_ns)
        return effects

    def _chunk(self, sender: NodeId, chunk: ReduceChunk, now_ns: int) -> list[Effect]:
        taken = Send(sender, ChunkTaken(chunk.epoch, chunk.round, chunk.bucket, chunk.step))
        if (chunk.epoch, chunk.round) < (self.group.epoch, self.round):
            return [taken]  # said again
        if chunk.epoch > self.group.epoch or sender not in self.group.members:
            return []  # of a view that has not come yet; it is sent again
        if chunk.round > self.round + 1:
            text = f"a chunk of round {chunk.round} from worker {sender}; one can be a round ahead at most"
            raise ProtocolError(f"worker {self.node}, round {self.round}: {text}", peer=sender)
        self._check(sender, chunk, chunk.length)
        at = self.now if chunk.round == self.round else self.next
        rank = self.group.members.index(sender)
        expected = at.expects(rank, chunk.bucket, chunk.step)
        if expected != (chunk.start, chunk.start + chunk.length):
            text = f"a chunk that the collective has not for worker {self.node}, of worker {sender}"
            advice = "Were the workers started from the same experiment file?"
            raise ProtocolError(f"worker {self.node}, round {chunk.round}: {text}", advice, peer=sender)
        if at.has(rank, chunk.bucket, chunk.step):
            return [taken]
        if not at.fits(chunk.bucket, chunk.weight, chunk.vectors[0]):
            text = f"worker {sender} has sent numbers that cannot be added up"
            raise ProtocolError(f"worker {self.node}, round {chunk.round}: {text}", peer=sender)
        out = at.take(rank, chunk.bucket, chunk.step, chunk.weight, chunk.vectors[0])
        return [taken, *self._sent(out, now_ns), *self._close_if_done(now_ns)]

    def _check(self, sender: NodeId, message: ReduceChunk | RoundMean, length: int) -> None:
        """Raise ProtocolError where a message has not one vector of our type and this length."""
        shapes = [(vector.dtype, vector.shape) for vector in message.vectors]
        if message.schema != self.schema or shapes != [(self.model.dtype, (length,))]:
            raise ProtocolError(
                f"worker {self.node}: a vector of another layout from worker {sender}, round {message.round}"
                f" (schema {message.schema}, ours {self.schema})",
                "Give every worker the same [model] section.",
                peer=sender,
            )

    def _close_if_done(self, now_ns: int) -> list[Effect]:
        if self.phase != "reducing" or not self.now.done:
            return []
        self.deadline.saw(now_ns - self.began_ns)
        return [*self._step(self.now.mean), *self._go_on(now_ns)]

    def _step(self, mean: Vector) -> list[Effect]:
        """Take the step of this round."""
        self.state = self.descent.step(self.state, frozen(mean[:-TAIL]), self.rate(self.round))
        self.mean, self.round = mean, self.round + 1
        self.now, self.next = self.next, self._reduction()
        arrays, numbers = saved(self.state)
        return [RoundDone(self.round, self.model), Checkpoint(self.round, {**arrays, MEAN: mean}, numbers)]

    # --- who goes on ----------------------------------------------------------------------------------------------

    def _stop_round(self, now_ns: int) -> list[Effect]:
        """Give up what is under way, and tell all how far this one has come."""
        self.phase = "regrouping"
        for link in self.links.values():
            link.drop()
        self._turn()
        told = self.group.stop(self.round, digest([self.model]), now_ns)
        return [*told, *self._propose_if_due(now_ns)]

    def _report(self, sender: NodeId, report: GroupReport, now_ns: int) -> list[Effect]:
        if not self.group.concerns(sender, report, self.round):
            return self.group.answer(sender, report)
        stopped = self._stop_round(now_ns) if self.phase in ("training", "reducing", "catching", "leaving") else []
        if self.group.regroup is None:
            return stopped
        answer = self.group.heard(sender, report)
        return [*stopped, *([] if stopped else answer), *self._propose_if_due(now_ns)]

    def _propose_if_due(self, now_ns: int) -> list[Effect]:
        view = self.group.proposal()
        if isinstance(view, GroupView):
            told = [Send(other, view) for other in view.members if other != self.node]
            return [*told, *self._begin_view(view, now_ns)]
        return self._finish(view) if view else []

    def _viewed(self, sender: NodeId, view: GroupView, now_ns: int) -> list[Effect]:
        judged = self.group.judged(sender, view)
        if isinstance(judged, GroupView):
            return self._begin_view(judged, now_ns)
        if judged:
            return self._finish(judged)
        left_out = self.node not in view.members and view.epoch > self.group.epoch
        stops = left_out and self.phase in ("training", "reducing", "catching")
        return self._stop_round(now_ns) if stops else []  # ask the others whether it is so

    def _begin_view(self, view: GroupView, now_ns: int) -> list[Effect]:
        gone = self.group.adopt(view)
        self._turn()
        effects: list[Effect] = [Report("regrouped", {"workers": list(view.members), "without": gone}, self.round)]
        if self.node == view.donor and self.mean is not None:
            mean = RoundMean(view.epoch, view.rounds - 1, self.schema, (self.mean,))
            effects += [Send(other, mean) for other in view.behind]
        if self.node in view.behind:
            self.phase = "catching"
            effects.append(SetTimer(("catching", view.epoch), self.settings.deadline_ns))
            return effects + (self._caught_up(*self.early, now_ns) if self.early else [])
        return effects + self._again(now_ns)

    def _again(self, now_ns: int) -> list[Effect]:
        """Do the round that is under way: with the gradient that is here, if it is."""
        if self.round < self.settings.rounds and self.contribution is not None:
            self.began_ns = now_ns
            return self._reduce(now_ns)
        if self.round < self.settings.rounds and self.asked == self.round:
            self.phase = "training"
            return []
        return self._go_on(now_ns)

    def _caught_up(self, sender: NodeId, message: RoundMean, now_ns: int) -> list[Effect]:
        view = self.group.view
        if message.epoch == self.group.epoch + 1 and self.phase == "regrouping":
            self.early = sender, message
        if self.phase != "catching" or view is None or message.epoch != view.epoch:
            return []
        self._check(sender, message, self.model.size + TAIL)
        if sender != view.donor or message.round != self.round or not summable(message.vectors[0]):
            raise ProtocolError(f"worker {self.node}: a mean of round {message.round} of worker {sender}", peer=sender)
        self.contribution = None
        effects = self._step(frozen(np.array(message.vectors[0])))
        self._turn()
        return [*effects, *self._go_on(now_ns)]

    # --- the end --------------------------------------------------------------------------------------------------

    def _leave(self) -> list[Effect]:
        """Stay until all that is sent has arrived, and the others are done too."""
        self.phase = "leaving"
        return [*self._goodbye(), SetTimer(("drain",), self.settings.deadline_ns), *self._end_if_settled()]

    def _goodbye(self) -> list[Effect]:
        return [Send(other, Leaving(self.round)) for other in self.links if other in self.group.linked]

    def _end_if_settled(self) -> list[Effect]:
        return self._finish() if self.phase == "leaving" and self.group.settled else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        return [Finish(self.model, failure)]
