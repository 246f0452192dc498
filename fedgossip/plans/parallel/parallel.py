"""An experiment with [parallel] as a run: workers that step on the mean of all their gradients.

With a collective the workers are machines of `protocols/allreduce`.  "mapreduce" is a federated run: all workers are
clients that return gradients, and the server's rule is a descent; it has the same bits as `star`.  "lbfgs": the server
searches along a line (`algorithms/federated/lbfgs`).  `parallel.backups`: number of late gradients that are discarded.

Source of backup workers: Chen, Monga, Bengio and Jozefowicz, Revisiting distributed synchronous SGD, ICLR workshop
2016.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from fedgossip.algorithms.codecs.base import VectorLayout
from fedgossip.algorithms.collectives.names import COLLECTIVES, Collective
from fedgossip.algorithms.federated import lbfgs
from fedgossip.algorithms.federated.base import ClientRule, Federated
from fedgossip.algorithms.federated.coded import CodedClient, UploadCodec
from fedgossip.algorithms.federated.fedavg import Gradient
from fedgossip.algorithms.federated.sums import Mean
from fedgossip.algorithms.gossip.fragments import Fragments
from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Machine, NodeId
from fedgossip.core.messages import TAIL
from fedgossip.core.metrics import Network
from fedgossip.core.records import PeerRow, Row
from fedgossip.core.roles import CLIENT, SERVER, Role, Roles
from fedgossip.core.run_summary import MethodFacts
from fedgossip.core.task import Job, LocalTask, segments_of, statistics_in
from fedgossip.experiment import ParallelExperiment
from fedgossip.experiment.run_sections import LBFGS, MAPREDUCE, SERVED
from fedgossip.plans import least_memory
from fedgossip.plans.completeness import Lacking, count_missing_clients, find_missing_work, with_exchanges
from fedgossip.plans.parallel.parameter_server import ServerPlan
from fedgossip.plans.parallel.shared_steps import (
    SharedSteps,
    codec_of,
    coded_updates,
    fragment_sums,
    gradient_sender,
    low_rank_words,
    payload_sent,
)
from fedgossip.plans.plan import PARTIAL, Arrays, JoiningTerms, Results, RunOutlook, Seat, nanoseconds
from fedgossip.protocols.allreduce.allreduce import AllReduce, AllReduceSettings
from fedgossip.protocols.allreduce.round_sums import RoundSums
from fedgossip.protocols.allreduce.worker_state import UnsentUpdates
from fedgossip.protocols.federated.client import Client, ClientSettings
from fedgossip.protocols.federated.coordinator import Coordinator, CoordinatorSettings
from fedgossip.simulation.cohorts import Rounds, check_cohorts, run_rounds
from fedgossip.simulation.collective import first_collective, reduced_by, run_collective

ADAPTED = 1 << 20
"""Default bytes of a bucket per worker."""


@dataclass(frozen=True)
class ParallelPlan(SharedSteps):
    """A run of the workers of a collective, before training."""

    @cached_property
    def roles(self) -> Roles:
        name = "participant" if self.experiment.parallel.races else "worker"
        return Roles((Role(name, 0, self.experiment.parallel.participants),))

    @property
    def collective(self) -> Collective:
        return COLLECTIVES[self.experiment.parallel.collective]

    @property
    def externals(self) -> Mapping[str, object]:
        return {"collective": self.collective.table, "rate": self.rate}

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        return [other for other in range(self.n) if other != node]

    def seated(self, seat: Seat) -> Machine:
        e, p = self.experiment, self.experiment.parallel
        settings = AllReduceSettings(
            rounds=e.rounds,
            bucket=self.bucket(seat.initial.size, seat.initial.itemsize),
            accumulate=p.accumulate,
            overlap=p.overlap,
            local=not self.gradients,
            delay=p.local and p.outer.delay > 0,
            deadline_ns=nanoseconds(p.deadline),
            least_deadline_ns=min(nanoseconds(p.deadline), nanoseconds(p.least_deadline)),
            start_ns=nanoseconds(p.start_timeout),
        )
        fragments = self.fragments(seat.initial.size, self.segments)
        sums = fragment_sums(e, fragments, seat.initial.dtype, self.segments, settings.bucket)
        begun = seat.initial, seat.schema, settings, self.rate, seat.resumed, seat.incarnation
        goes = UnsentUpdates(fragments, statistics_in(self.segments)), coded_updates(e, seat.node, sums)
        return AllReduce(seat.node, range(self.n), sums, self.descent_of(self.segments), *begun, *goes)

    def bucket(self, length: int, itemsize: int) -> int:
        """Return the elements of a bucket of gradients [length]: `parallel.bucket` bytes; 0 makes a single bucket."""
        given = self.experiment.parallel.bucket
        size = self.n * ADAPTED if given is None else given
        return max(1, size // itemsize) if size else length + TAIL

    def sums_of(self, task: LocalTask) -> RoundSums:
        """Return the sums of a task's gradients."""
        bucket = self.bucket(task.length, task.dtype.itemsize)
        segments = self.segments or segments_of(task)
        return fragment_sums(self.experiment, self.fragments(task.length, segments), task.dtype, segments, bucket)

    def least_memory(self, engine: str, size: int) -> int:  # noqa: ARG002
        return least_memory.of_workers(self.n, size)

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:  # noqa: ARG002
        return rounds == self.experiment.rounds

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        descent, p = self.descent_of(self.segments), self.experiment.parallel
        sums = self.sums_of(task)
        fragments = self.fragments(task.length, self.segments or segments_of(task))
        statistics = statistics_in(self.segments)
        stack = first_collective(task, self.n, descent, fragments=fragments, statistics=statistics)
        stack.coded += [one for node in range(self.n) if (one := coded_updates(self.experiment, node, sums))]

        def finish(between: Callable[[], None]) -> Results:
            asked = partial(Job, gradient=self.gradients, accumulate=p.accumulate if self.gradients else None)
            run = task, reduced_by(sums, stack.coded), descent, self.experiment.rounds, self.rate, asked, record, write
            delay = p.local and p.outer.delay > 0
            return Results(run_collective(*run, stack, delay=delay, between=between))

        return stack, finish

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        return vectors

    def outlook(self, task: LocalTask) -> RunOutlook:
        p, m, kind = self.experiment.parallel, self.n, task.dtype
        if p.races:
            return self._alone()
        fragments = self.fragments(task.length, segments_of(task))
        size = (fragments.largest + TAIL) * kind.itemsize
        s = self.experiment.simulation
        lines = [f"{m} workers, {p.method}: {self.collective.steps(m)} messages one after the other a round"]
        sent = self._count_sent_bytes(self.sums_of(task), fragments, kind.itemsize)
        each, one = ("gradient", "a gradient") if self.gradients else ("update", "an update")
        what = f"{each}s by {p.codec}" if p.codec else "sums"
        lines.append(f"{max(sent):,} bytes of {what} sent by the busiest worker a round, {size:,} in {one}")
        if fragments.count > 1:
            most = f"at most {fragments.largest:,} of {task.length:,} elements"
            lines.append(f"{fragments.count} fragments, {most}: one in a round, each every {fragments.count} rounds")
        lines += low_rank_words(self.experiment, self.sums_of(task), segments_of(task))
        facts: dict[str, Any] = {"method": p.method, "workers": m, "payload": sent}
        if s.bandwidth and not p.codec:
            facts["seconds_of_a_collective"] = seconds = self.collective.seconds(m, size, s.latency, s.bandwidth)
            lines.append(f"{seconds:.3g} s a collective at simulation.latency and simulation.bandwidth, both ways")
        return RunOutlook(sum(sent), facts, lines)

    def _alone(self) -> RunOutlook:
        p, steps = self.experiment.parallel, self.experiment.train.local_steps
        shared = f"share {steps} steps a round" if steps else "share the steps of a round"
        lines = [
            f"{p.workers} workers are processes of one participant: they {shared} and wait for nobody; nothing is sent",
            "no other run has its bits: which process is quicker decides",
        ]
        facts = {"method": p.method, "workers": p.workers, "payload": [0], "identical": False}
        return RunOutlook(0, facts, lines)

    def _count_sent_bytes(self, sums: RoundSums, fragments: Fragments, itemsize: int) -> list[int]:
        last = range(self.experiment.rounds, self.experiment.rounds + fragments.count)
        return max((payload_sent(sums, self.n, itemsize, round) for round in last), key=max)

    def terms(self, parameters: int, itemsize: int) -> JoiningTerms:
        kind = np.dtype(f"f{itemsize}")
        fragments = self.fragments(parameters, self.segments)
        sums = fragment_sums(self.experiment, fragments, kind, self.segments, self.bucket(parameters, itemsize))
        most = max(self._count_sent_bytes(sums, fragments, itemsize))
        what = "gradients" if self.gradients else "updates"
        sent = f"this worker's {what}, in sums, to other workers: up to {most:,} bytes a round; no data"
        seen = f"as it is: other workers see {what} and sums of some, and trust what is sent to them"
        return JoiningTerms(f"{self.name}, {self.roles.wording}, one model", sent, seen)


def parallel_plan(experiment: ParallelExperiment) -> SharedSteps:
    """Return the plan of an experiment with [parallel]: only workers, or workers and servers."""
    with_servers: dict[str, type[SharedSteps]] = {SERVED: ServerPlan, MAPREDUCE: MapReducePlan, LBFGS: LineSearchPlan}
    return with_servers.get(experiment.parallel.method, ParallelPlan)(experiment)


@dataclass(frozen=True)
class MapReducePlan(SharedSteps):
    """Workers 0 to m - 1, and the server, m; see plans.plan.Plan."""

    @cached_property
    def roles(self) -> Roles:
        workers = self.experiment.parallel.workers
        worker = Role("worker", 0, workers, counted=False, transport=CLIENT)
        return Roles((worker, Role("server", workers, learns=False, transport=SERVER)))

    @property
    def server(self) -> NodeId:
        return self.learners

    @property
    def externals(self) -> Mapping[str, object]:
        return {"rate": self.rate}

    @property
    def federated(self) -> Federated[Any]:
        return Federated(Gradient(), Mean(), lbfgs.DescentServer(self.descent_of(self.segments), self.rate))

    @property
    def least(self) -> int:
        """Minimum number of gradients in a round, if workers have left."""
        return 1

    @property
    def accumulate(self) -> int | None:
        """Batches per gradient; None: those of `train.local_epochs`."""
        return self.experiment.parallel.accumulate

    @property
    def sampling(self) -> Uniform:
        """Invitation of all workers; the first gradients count, all but the backups."""
        wanted = self.learners - self.experiment.parallel.backups
        return Uniform(self.experiment.seed, tuple(range(self.learners)), wanted, self.learners / wanted)

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        return tuple(range(self.learners)) if node == self.server else (self.server,)

    def seated(self, seat: Seat) -> Machine:
        e, p = self.experiment, self.experiment.parallel
        deadline, start = nanoseconds(p.deadline), nanoseconds(p.start_timeout)
        about = seat.initial, seat.schema
        if seat.node != self.server:
            settings = ClientSettings(e.rounds, start, session_ns=2 * deadline, accumulate=self.accumulate)
            rule = self.client_rule(self.coding(seat.initial.size, seat.initial.dtype))
            return Client(seat.node, self.server, rule, *about, settings, seat.resumed)
        least = min(deadline, nanoseconds(p.least_deadline))
        limits = CoordinatorSettings(e.rounds, self.least, deadline, least, start, return_ns=start, score=e.score)
        run = seat.node, range(self.learners), self.federated, self.sampling
        coding = self.coding(seat.initial.size, seat.initial.dtype)
        return Coordinator(*run, *about, limits, seat.resumed, coding=coding)

    def coding(self, length: int, kind: np.dtype[np.floating]) -> UploadCodec | None:
        """Return the encoding of gradients [length] to the server; None: uncoded."""
        codec, layout = codec_of(self.experiment), VectorLayout.of_length(length, kind, self.segments)
        return UploadCodec(codec, layout, self.experiment.seed) if codec else None

    def client_rule(self, coding: UploadCodec | None) -> ClientRule:
        """Return the worker's rule."""
        rule = Gradient()
        return CodedClient(rule, coding, gradient_sender(self.experiment, coding.codec)) if coding else rule

    # --- the run --------------------------------------------------------------------------------------------------

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        """Return whether the server has released the worker."""
        return rounds == self.experiment.rounds if node == self.server else not stopped

    def check_arrays(self, task: LocalTask) -> None:  # noqa: ARG002
        check_cohorts(self.sampling, self.learners)

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        e = self.experiment
        coding = self.coding(task.length, task.dtype)
        federated = replace(self.federated, clients=self.client_rule(coding))
        about = federated, self.sampling, self.learners, e.rounds, self.least
        rounds = Rounds(*about, None, (), e.score, accumulate=self.accumulate, coding=coding)
        state = rounds.start(task)

        def finish(between: Callable[[], None]) -> Results:
            return Results([*[None] * self.learners, run_rounds(rounds, state, task, record, write, between=between)])

        return state, finish

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        """Return the server's model."""
        return [vectors[self.server]]

    def verdict(self, words: Sequence[str | None]) -> str:
        """Return the server's status; partial where some workers ended early."""
        status, workers = words[self.server], words[: self.learners]
        if status != "finished":
            return status or "failed"
        return "finished" if not any(workers) or set(workers) == {"finished"} else PARTIAL  # arrays have no workers

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        found = find_missing_work(rows, self.server, node, all_in_each=not self.experiment.parallel.backups)
        return with_exchanges(found, rows, self.exchanges, self.roles, node)

    def exchanges(self, row: Row) -> tuple[int, int]:
        if not isinstance(row, PeerRow) or row.peer != self.server or not row.round:
            return 0, 0
        return count_missing_clients(row, self.learners - self.experiment.parallel.backups)

    def outlook(self, task: LocalTask) -> RunOutlook:
        m, size = self.learners, task.length * task.dtype.itemsize
        backups, coding = self.experiment.parallel.backups, self.coding(task.length, task.dtype)
        up = coding.codec.size(coding.layout, self.experiment.rounds) if coding else size
        lines = [f"{m} workers and a server: {up:,} bytes up and {size:,} down per worker and round"]
        if backups:
            lines.append(f"the first {m - backups} gradients of a round count, {backups} are not waited for")
        facts = {"method": self.name, "workers": m, "payload": [*[up] * m, m * size]}
        return RunOutlook(m * (up + size), facts, lines)

    def terms(self, parameters: int, itemsize: int) -> JoiningTerms:
        sent = f"this worker's gradient to the server, {parameters * itemsize:,} bytes a round; no data"
        return JoiningTerms(f"{self.name}, {self.roles.wording}, one model", sent, "as it is, by the server")


@dataclass(frozen=True)
class LineSearchPlan(MapReducePlan):
    """The same workers, and a server with L-BFGS; a gradient is that of all examples of all workers."""

    @property
    def federated(self) -> Federated[Any]:
        e = self.experiment
        return Federated(Gradient(), Mean(), lbfgs.LBFGS(self.rate, e.rounds, e.train.weight_decay))

    @property
    def least(self) -> int:
        """All workers: without one of them the gradient is that of another function, and its change gives no
        curvature.
        """
        return self.learners

    @property
    def accumulate(self) -> None:
        return None

    def facts(self, rows: Sequence[Row]) -> MethodFacts:  # noqa: ARG002
        return {"algorithm": self.name, "mode": "parallel", "descent": "lbfgs"}
