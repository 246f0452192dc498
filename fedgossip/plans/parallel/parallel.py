"""An experiment with [parallel] as a run: workers that descend on the mean of all their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from fedgossip.algorithms.collectives.names import COLLECTIVES, Collective
from fedgossip.algorithms.gossip.fragments import Fragments
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Machine, NodeId
from fedgossip.core.messages import TAIL
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row
from fedgossip.core.roles import Role, Roles
from fedgossip.core.task import Job, LocalTask, segments_of, statistics_in
from fedgossip.experiment import ParallelExperiment
from fedgossip.experiment.run_sections import LBFGS, MAPREDUCE, SERVED
from fedgossip.plans.parallel.mapreduce import LineSearchPlan, MapReducePlan
from fedgossip.plans.parallel.parameter_server import ServerPlan
from fedgossip.plans.parallel.shared_steps import (
    SharedSteps,
    coded_updates,
    fragment_sums,
    low_rank_words,
    payload_sent,
)
from fedgossip.plans.plan import Arrays, JoiningTerms, Results, RunOutlook, Seat, nanoseconds
from fedgossip.protocols.allreduce.allreduce import AllReduce, AllReduceSettings
from fedgossip.protocols.allreduce.round_sums import RoundSums
from fedgossip.protocols.allreduce.worker_state import UnsentUpdates
from fedgossip.simulation.collective import first_collective, reduced_by, run_collective

ADAPTED = 1 << 20
"""Bytes of a bucket per worker, by default."""


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
        """Elements of a bucket of gradients [length]: of `parallel.bucket` bytes; 0 makes one of all."""
        given = self.experiment.parallel.bucket
        size = self.n * ADAPTED if given is None else given
        return max(1, size // itemsize) if size else length + TAIL

    def sums_of(self, task: LocalTask) -> RoundSums:
        """Return the sums of a task's gradients."""
        bucket = self.bucket(task.length, task.dtype.itemsize)
        segments = self.segments or segments_of(task)
        return fragment_sums(self.experiment, self.fragments(task.length, segments), task.dtype, segments, bucket)

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
        sent = self._sent(self.sums_of(task), fragments, kind.itemsize)
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

    def _sent(self, sums: RoundSums, fragments: Fragments, itemsize: int) -> list[int]:
        last = range(self.experiment.rounds, self.experiment.rounds + fragments.count)
        return max((payload_sent(sums, self.n, itemsize, round) for round in last), key=max)

    def terms(self, parameters: int, itemsize: int) -> JoiningTerms:
        kind = np.dtype(f"f{itemsize}")
        fragments = self.fragments(parameters, self.segments)
        sums = fragment_sums(self.experiment, fragments, kind, self.segments, self.bucket(parameters, itemsize))
        most = max(self._sent(sums, fragments, itemsize))
        what = "gradients" if self.gradients else "updates"
        sent = f"this worker's {what}, in sums, to other workers: up to {most:,} bytes a round; no data"
        seen = f"as it is: other workers see {what} and sums of some, and trust what is sent to them"
        return JoiningTerms(f"{self.name}, {self.roles.wording}, one model", sent, seen)


def parallel_plan(experiment: ParallelExperiment) -> SharedSteps:
    """Return the plan of an experiment with [parallel]: of workers alone, or with servers."""
    with_servers: dict[str, type[SharedSteps]] = {SERVED: ServerPlan, MAPREDUCE: MapReducePlan, LBFGS: LineSearchPlan}
    return with_servers.get(experiment.parallel.method, ParallelPlan)(experiment)
