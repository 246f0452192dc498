"""Synchronous descent on the mean gradient of all workers, computed by a collective.

    phase       event                                          next phase
    new         Started                                        joining
    joining     PeerJoined (the last of all)                   training regrouping
    joining     GroupReport                                    regrouping
    joining     GroupView                                      returning
    joining     start                                          finished regrouping
    training    Trained                                        reducing training leaving regrouping finished
    reducing    ReduceChunk                                    training leaving regrouping
    training    Produced                                       training
    training    PeerGone GroupReport WorkerReturn              regrouping
    reducing    PeerGone GroupReport WorkerReturn deadline     regrouping
    training reducing    ReduceChunk WorkerRefused             regrouping
    regrouping  GroupReport PeerGone regroup                   training reducing catching leaving finished
    regrouping  GroupView                                      training reducing catching leaving returning
    catching    StatePiece                                     training leaving regrouping
    catching    PeerGone GroupReport WorkerReturn catching     regrouping
    returning   GroupView                                      catching
    returning   Leaving return                                 finished
    leaving     GroupReport                                    regrouping
    leaving     Leaving ChunkTaken ChunksHere PeerGone drain   finished

and from everywhere Stopping to finished.

A round: every worker requests its gradient at the common model, or a training from it (`local`); the moves of the table
follow (`round_sums`), with `overlap` bucket by bucket while the gradient is computed; the mean by examples takes the
step.  With `delay` a worker trains for the next round while this one is summed, from its present point moved by the
momentum (as Streaming DiLoCo, Douillard and others, 2025, which leaves the momentum to the end of the delay).

After a lost worker, or a missed deadline, the others agree on a view (`regroup`).  Either one of them has completed the
open round and the others fetch its state (`state_transfer`), or all repeat it: nothing is counted twice.  A returning
worker requests readmission; the worker with the lowest id stops after its round, and the next view includes the
returning one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.algorithms.descent.base import Descent
from fedgossip.algorithms.gossip.fragments import fragments_of
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
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
    Produced,
    Received,
    Refused,
    Report,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.messages import (
    ChunksAsked,
    ChunksHere,
    ChunkTaken,
    CodedChunk,
    GroupReport,
    GroupView,
    Leaving,
    Message,
    ReduceChunk,
    StatePiece,
    StateQuery,
    WorkerRefused,
    WorkerReturn,
)
from fedgossip.protocols.allreduce.coded_fragments import RoundCoding
from fedgossip.protocols.allreduce.round_sums import (
    ChunkExchange,
    Contribution,
    RoundSums,
    UnsummableError,
    contribution_of,
)
from fedgossip.protocols.allreduce.worker_group import GroupWaits, WorkerGroup, enough
from fedgossip.protocols.allreduce.worker_state import UnsentUpdates, WorkerState
from fedgossip.protocols.gossip.partner_set import Deadline
from fedgossip.protocols.state_transfer import StateFetch

AT_WORK = ("training", "reducing", "catching")

REPEATS_MAX, REPEATS_AT_ONCE = 20, 100
"""Maximum number of successive views with the same members and without a new round: if they lasted as long as the start
may take, and regardless of their duration.
"""


@dataclass(frozen=True, slots=True)
class AllReduceSettings:
    """Limits of a run.  Times in nanoseconds."""

    rounds: int
    bucket: int
    """Number of elements of a bucket."""
    accumulate: int | None = 1
    """Number of batches of a gradient."""
    local: bool = False
    """Whether workers train locally in a round, and their updates are summed."""
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


class AllReduce:
    """One worker of `members`; `rate`: step size by round.

    `unsent`: with `local`, the fragments of its updates that are sent later; `coded`: the codec of its contributions to
    `sums`; `resumed`: the checkpoint of an earlier incarnation, which contacts the others before it takes part.

    Invariant: `exchange` belongs to the view of `group`, and to the round of `at`.
    """

    def __init__(
        self,
        node: NodeId,
        members: Sequence[NodeId],
        sums: RoundSums,
        descent: Descent[Any],
        initial: Vector,
        schema: str,
        settings: AllReduceSettings,
        rate: Callable[[int], float],
        resumed: Checkpoint | None = None,
        incarnation: int = 0,
        unsent: UnsentUpdates | None = None,
        coded: RoundCoding | None = None,
    ) -> None:
        least_ns = min(settings.least_deadline_ns, settings.deadline_ns)
        group = WorkerGroup(node, members, GroupWaits(least_ns, settings.again_ns, settings.start_ns))
        fetch = StateFetch(node, descent.start(initial), schema, settings.again_ns, settings.deadline_ns)
        unsent = unsent or UnsentUpdates(fragments_of(initial.size))
        at = WorkerState(descent, initial, rate, fetch, unsent, coded)
        if resumed:
            group.restore(at.resume(resumed))
        exchange = ChunkExchange(group, sums, schema, settings.deadline_ns)
        self.node, self.settings, self.group, self.at, self.exchange = node, settings, group, at, exchange
        self._fresh = resumed is None and not incarnation
        """Whether this is the first incarnation."""
        self.exchange.renew(self.round)
        self.asked = -1  # the round of the last requested gradient; -1: it is no longer needed
        self.phase = "new"
        self.contribution: Contribution | None = None  # to this round
        self.training = False
        """Whether a requested gradient is still missing."""
        self.early: Trained | None = None  # with `delay`: the result for the next round
        self.deadline = Deadline(settings.deadline_ns, least_ns)
        self.began_ns = 0
        self.repeats, self.stuck_ns = 0, 0
        """Number of successive views without a new round or another member, and the time of the first of them."""

    @property
    def round(self) -> int:
        """Number of completed rounds of this worker."""
        return self.at.round

    @property
    def summed(self) -> int:
        """See `machine.AddingMachine`."""
        return self.exchange.summed

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine."""
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                return self._received(sender, message, now_ns)
            case Produced():
                return self._produced(event, now_ns)
            case Trained():
                return self._trained(event, now_ns)
            case Fired(key):
                return self._fired(key, now_ns)
            case PeerJoined(node, incarnation):
                return self._joined(node, incarnation, now_ns)
            case PeerGone(node):
                return self._lost(node, now_ns) if self.group.handle_lost_link(node) else self._end_if_settled()
            case Started():
                self.phase = "joining"
                return [SetTimer(("start",), self.settings.start_ns), *self._begin_if_gathered(now_ns)]
            case Stopping():
                return [*self._goodbye(), *self._finish()]
        return []

    def _received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        if sender not in self.exchange.links:
            raise ProtocolError(f"worker {self.node}: a message of {sender}, which is no worker", peer=sender)
        match message:
            case ReduceChunk() | CodedChunk():
                return self._chunk(sender, message, now_ns)
            case ChunkTaken() | ChunksAsked() | ChunksHere():
                return [*self.exchange.links[sender].handle(message, now_ns), *self._end_if_settled()]
            case GroupReport() | GroupView() | WorkerRefused() | WorkerReturn() if sender in self.group.refused:
                return []
            case GroupReport():
                return self._report(sender, message, now_ns)
            case GroupView():
                return self._viewed(sender, message, now_ns)
            case WorkerRefused(epoch, worker):
                refused = epoch == self.group.epoch and sender in self.group.members
                return self._refuse(worker, now_ns) if refused else []
            case WorkerReturn():
                return self._handle_readmission(sender, now_ns)
            case StateQuery():
                return self.at.give(sender, message)
            case StatePiece():
                return self._piece(sender, message, now_ns)
            case Leaving():
                return self._handle_leaving(sender, message.round, now_ns)
        raise ProtocolError(
            f"worker {self.node}: a message of kind {type(message).__name__.lower()!r} from worker {sender} in a run"
            " of all-reduce",
            "Were the workers started from the same experiment file?",
            peer=sender,
        )

    def _fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match key:
            case ("start",) if self.phase == "joining":
                return self._begin_without(now_ns)
            case ("again", node, timer) if node in self.exchange.links and isinstance(timer, int):
                return self.exchange.links[node].again(timer, now_ns)
            case ("deadline", epoch, round) if (epoch, round, "reducing") == (self.group.epoch, self.round, self.phase):
                return [Report("overdue", self.exchange.awaited, self.round), *self._stop_round(now_ns)]
            case ("regroup", epoch) if epoch == self.group.epoch and self.phase == "regrouping":
                self.group.late(now_ns)
                effects = self._propose_if_due(now_ns)
                return [*effects, *self.group.ask_again()] if self.group.regroup else effects
            case ("piece", round, int(start)) if self.phase == "catching" and round == self.at.fetch.rounds:
                return self.at.fetch.again(start)
            case ("catching", epoch) if epoch == self.group.epoch and self.phase == "catching":
                return self._stop_round(now_ns)
            case ("return",) if self.phase == "returning":
                return self._ask_in(now_ns)
            case ("drain",) if self.phase == "leaving":
                return self._finish()
        return []

    def _chunk(self, sender: NodeId, chunk: ReduceChunk | CodedChunk, now_ns: int) -> list[Effect]:
        try:
            effects = self.exchange.take(sender, chunk, now_ns)
        except UnsummableError as error:
            refusal = Refused(sender, "unsummable", str(error), self.round, error.advice)
            return [refusal, *self._refuse(sender, now_ns)]
        return [*effects, *self._close_if_done(now_ns)]

    # --- rounds ---------------------------------------------------------------------------------------------------

    def _go_on(self, now_ns: int) -> list[Effect]:
        self.contribution = None
        if self.round >= self.settings.rounds:
            return self._leave()
        if self.group.takes_in:
            return self._stop_round(now_ns)
        self.phase, self.began_ns, self.group.at_work = "training", now_ns, True
        early, self.early = self.early, None
        if early is not None and early.job == self.asked == self.round:
            return self._bring(early, now_ns)
        if self.training:
            self.asked = self.round if self.asked == self.round else -1
            return []  # it is of this round, or of another model: request a new one after it
        self.training, self.asked = True, self.round
        if self.settings.local:
            return [Train(self.round, self.at.start)]
        stretches = self.exchange.starts if self.settings.overlap and len(self.group.members) > 1 else ()
        batches = self.settings.accumulate
        return [Train(self.round, self.at.model, gradient=True, accumulate=batches, stretches=stretches)]

    def _produced(self, event: Produced, now_ns: int) -> list[Effect]:
        """Send a stretch while the rest is computed, if a sum can hold it."""
        if (self.phase, self.asked, event.job) != ("training", self.round, self.round):
            return []
        brought = contribution_of(event.vector, event.examples, event.metrics)
        fits = self.exchange.now.bears(brought[0], *brought[1])
        return self.exchange.begin(brought, now_ns, event.start) if fits else []

    def _trained(self, event: Trained, now_ns: int) -> list[Effect]:
        self.training = False
        if self.asked == self.round + 1:
            self.early = event
            return []
        if self.asked != self.round:
            return self._go_on(now_ns) if self.phase == "training" else []
        return self._bring(event, now_ns)

    def _bring(self, event: Trained, now_ns: int) -> list[Effect]:
        brought = self._make_contribution(event)
        if brought is None or not self.exchange.now.bears(brought[0], *brought[1]):
            return self._exploded()
        self.contribution = brought
        return self._reduce(now_ns) if self.phase == "training" else []

    def _make_contribution(self, event: Trained) -> Contribution | None:
        """Return this worker's contribution to the round; None if no codec can encode its gradient."""
        goes = self.at.unsent.opened(event.update, self.round)
        if self.at.coded is None:
            return contribution_of(goes, event.examples, event.metrics)
        return self.at.coded.coded(goes, event.examples, event.metrics, self.round)

    def _exploded(self) -> list[Effect]:
        """End the run: no sum can hold this gradient, and the others would refuse its chunks."""
        what = "update" if self.settings.local else "gradient"
        text = f"worker {self.node}, round {self.round}: its {what} is not finite, or too large to be added up"
        failure = Failure("training", text, "Look at its data, or lower train.lr.")
        return [*self._goodbye(), *self._finish(failure)]

    def _reduce(self, now_ns: int) -> list[Effect]:
        assert self.contribution
        self.phase = "reducing"
        effects: list[Effect] = [Outgoing(self.round + 1, self.at.model)]
        if len(self.group.members) > 1:
            effects.append(SetTimer(("deadline", self.group.epoch, self.round), self._deadline_ns))
        effects += self.exchange.begin(self.contribution, now_ns)
        return [*effects, *self._train_ahead(), *self._close_if_done(now_ns)]

    def _train_ahead(self) -> list[Effect]:
        """With `delay`: train for the next round while this one is summed."""
        ahead = self.round + 1
        if not self.settings.delay or ahead >= self.settings.rounds or self.training or self.asked == ahead:
            return []
        self.training, self.asked = True, ahead
        return [Train(ahead, self.at.ahead)]

    @property
    def _deadline_ns(self) -> int:
        """Deadline of the round; the longest one if members fetch the state first."""
        view = self.group.view
        fetched = bool(view.behind) and view.rounds == self.round
        return self.settings.deadline_ns if fetched else self.deadline.now_ns()

    def _close_if_done(self, now_ns: int) -> list[Effect]:
        if self.phase != "reducing" or not self.exchange.now.done:
            return []
        self.deadline.record(now_ns - self.began_ns)
        self.repeats = 0
        found = self.exchange.now.mean
        mean = self.exchange.sums.gradient(found, self.round)
        if self.at.coded:
            self.at.coded.take_result(found)
        self.exchange.advance()
        done = self.at.step(mean, self.exchange.waiting_bytes)
        return [*done, self.at.checkpoint(self.group.saved()), *self._go_on(now_ns)]

    def _again(self, now_ns: int) -> list[Effect]:
        if self.round < self.settings.rounds and self.contribution is not None:
            self.began_ns = now_ns
            return self._reduce(now_ns)
        if self.round < self.settings.rounds and self.asked == self.round and self.early is None:
            self.phase = "training"
            return []
        return self._go_on(now_ns)

    # --- present workers ----------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        if node not in self.exchange.links:
            return []
        greeting = self.group.joined(node, incarnation)
        return [*self.exchange.links[node].resent(now_ns), *greeting, *self._begin_if_gathered(now_ns)]

    def _handle_leaving(self, sender: NodeId, rounds: int, now_ns: int) -> list[Effect]:
        """Handle a `Leaving`: after all rounds, or earlier."""
        if rounds < self.settings.rounds:
            self.group.departed.add(sender)
            return self._lost(sender, now_ns) if sender in self.group.members else []
        self.group.done.add(sender)
        if self.phase == "returning" and not self.group.here - self.group.done:
            text = f"the other workers have done all rounds without worker {self.node}"
            return self._finish(Failure("network", text, "Their model is that of the run."))
        return self._end_if_settled()

    def _lost(self, node: NodeId, now_ns: int) -> list[Effect]:
        if self.phase in AT_WORK:
            return [Report("worker_gone", node, self.round), *self._stop_round(now_ns)]
        if self.group.regroup:
            self.group.regroup.lost(node)
            return self._propose_if_due(now_ns)
        return self._end_if_settled()

    def _refuse(self, node: NodeId, now_ns: int) -> list[Effect]:
        """Continue without a worker that sent unsummable numbers."""
        if node in self.group.refused or node not in self.group.members or node == self.node:
            return []
        self.group.refuse(node)
        return self._lost(node, now_ns)

    def _handle_readmission(self, sender: NodeId, now_ns: int) -> list[Effect]:
        """Handle a request for readmission: the worker takes part after this round."""
        if self.phase == "leaving":
            return [Send(sender, Leaving(self.round))]
        thought_at_work = self.group.record_readmission(sender)
        return self._lost(sender, now_ns) if thought_at_work else self._propose_if_due(now_ns)

    def _begin_if_gathered(self, now_ns: int) -> list[Effect]:
        if self.phase != "joining" or self.group.missing:
            return []
        if self._fresh:
            return self._go_on(now_ns)
        return self._stop_round(now_ns)  # the lives before may differ in rounds: find the furthest

    def _begin_without(self, now_ns: int) -> list[Effect]:
        """Begin without missing workers, if those of an earlier incarnation are enough; else end."""
        if not self._fresh and enough(self.group.view, {self.node, *self.group.here}, self.round):
            return self._stop_round(now_ns)
        text = f"workers {self.group.missing} did not join, and a collective needs all to begin"
        return self._finish(Failure("too_few", text, "Start them, or raise parallel.start_timeout."))

    # --- agreement ----------------------------------------------------------------------------------------------------

    def _stop_round(self, now_ns: int) -> list[Effect]:
        self.phase = "regrouping"
        self.exchange.renew(self.round)
        effects = self.group.stop(self.round, self.at.digest, now_ns)
        return [*effects, *self._propose_if_due(now_ns)]

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
            effects = [Send(other, view) for other in view.members if other != self.node]
            odd = [Report("workers_differ", list(self.group.odd), self.round)] if self.group.odd else []
            return [*effects, *odd, *self._begin_view(view, now_ns)]
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
        """Begin a view, and write it to disk before any message of it is sent: it binds a later incarnation."""
        joined = [node for node in view.members if node not in self.group.members]
        gone = self.group.adopt(view)
        if stuck := self._stuck(joined or gone, now_ns):
            return [*self._goodbye(), *self._finish(stuck)]
        self.exchange.renew(view.rounds)
        effects: list[Effect] = [self.at.checkpoint(self.group.saved(), durable=True)]
        effects.append(Report("regrouped", {"workers": list(view.members), "without": gone}, self.round))
        effects += [Report("workers_back", joined, self.round)] if joined else []
        effects += self.group.announce()
        if self.node in view.behind:
            return effects + self._catch_up(view)
        if self.round < view.rounds:  # rounds of a life without a checkpoint of them: the next view counts without them
            return effects + self._stop_round(now_ns)
        return effects + self._again(now_ns)

    def _stuck(self, changed: Sequence[NodeId], now_ns: int) -> Failure | None:
        """Count a view; return the failure of a run if all its rounds exceed their deadline."""
        self.repeats = 0 if changed else self.repeats + 1
        if self.repeats <= 1:
            self.stuck_ns = now_ns
        most = REPEATS_MAX if now_ns - self.stuck_ns >= self.settings.start_ns else REPEATS_AT_ONCE
        if self.repeats <= most:
            return None
        seconds = self.settings.deadline_ns / 1e9
        again = f"begun {self.repeats} times with the same workers, and never done"
        text = f"worker {self.node}, round {self.round}: {again}"
        advice = f"Raise parallel.deadline, {seconds:g} seconds, above the time of a round; or see to the links."
        return Failure("network", text, advice)

    # --- members behind the others ------------------------------------------------------------------------------------

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
