"""Common base of all runs with [parallel]: workers with one model, and a step on the mean of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.algorithms.descent.base import Descent
from fedgossip.algorithms.descent.names import make_descent
from fedgossip.algorithms.descent.outer import OuterDescent
from fedgossip.algorithms.descent.running_statistics import StatisticsDescent
from fedgossip.algorithms.gossip.fragments import Fragments, fragments_of
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.core.machine import NodeId
from fedgossip.core.records import NetworkRow, Row
from fedgossip.core.run_summary import MethodFacts
from fedgossip.core.task import Segment, statistics_in
from fedgossip.experiment import ParallelExperiment
from fedgossip.experiment.parallel_sections import ASYNC
from fedgossip.plans.completeness import Lacking, with_exchanges
from fedgossip.plans.parallel.coding import corrects_momentum
from fedgossip.plans.plan import PARTIAL, PlanDefaults
from fedgossip.plans.statistics_checks import check_parallel_statistics


@dataclass(frozen=True)
class SharedSteps(PlanDefaults):
    """A run with [parallel], before training."""

    experiment: ParallelExperiment
    segments: tuple[Segment, ...] = ()

    @property
    def gradients(self) -> bool:
        return not self.experiment.parallel.local

    @property
    def one_model(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return self.experiment.parallel.method

    def descent_of(self, segments: Sequence[Segment]) -> Descent[Any]:
        """Return the descent on a vector of these tensors: `parallel.outer`, `parallel.descent`, or [train]'s."""
        train, p = self.experiment.train, self.experiment.parallel
        if p.races or p.local:
            after = OuterStep(1.0, 0.0, nesterov=False)  # the model after its steps
            own = after if p.races else OuterStep(p.outer.lr, p.outer.beta, p.outer.nesterov, "parallel.outer")
            outer = OuterDescent(own)
            statistics = statistics_in(segments)
            return StatisticsDescent(outer, statistics) if statistics else outer
        return make_descent(
            p.descent or train.optimizer,
            segments,
            momentum=0.0 if corrects_momentum(self.experiment) else train.momentum,
            nesterov=train.nesterov,
            weight_decay=train.weight_decay,
            l1=p.l1,
        )

    def check_statistics(self, tensor: str) -> None:
        check_parallel_statistics(self.experiment, tensor)

    def check_length(self, length: int, segments: Sequence[Segment]) -> None:
        self.fragments(length, segments)

    def fragments(self, length: int, segments: Sequence[Segment]) -> Fragments:
        """Of a vector [length] of these tensors, one of which goes out in a round."""
        p = self.experiment.parallel
        return fragments_of(length, segments, p.outer.fragments if p.local else 1)

    def rate(self, round: int) -> float:
        """The step size of a round."""
        e = self.experiment
        return e.train.rate(round, e.rounds, e.parallel.workers * e.parallel.accumulate * e.train.batch_size)

    @property
    def fingerprint(self) -> Mapping[str, object]:
        content = self.experiment.to_dict()
        content["parallel"].pop("start_timeout", None)
        return content

    @property
    def patience(self) -> tuple[float, float]:
        return self.experiment.parallel.start_timeout, self.experiment.parallel.deadline

    def verdict(self, words: Sequence[str | None]) -> str:
        """Return the status: the common model exists where any worker finished."""
        statuses = {words[node] for node in self.roles.counted}
        if {"finished", PARTIAL} & statuses:
            return "finished" if statuses == {"finished"} else PARTIAL
        return "failed" if "failed" in statuses or statuses == {None} else "interrupted"

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        return with_exchanges(Lacking(), rows, self.exchanges, self.roles, node)

    def exchanges(self, row: Row) -> tuple[int, int]:
        """A round is of all workers that are there: those that are not have no row of it."""
        p = self.experiment.parallel
        if not isinstance(row, NetworkRow) or not row.round or p.races or p.server.staleness == ASYNC:
            return 0, 0
        return max(0, self.learners - row.peers), self.learners

    def facts(self, rows: Sequence[Row]) -> MethodFacts:  # noqa: ARG002
        p = self.experiment.parallel
        codec: MethodFacts = {"codec": p.codec} if p.codec else {}
        descent = "outer" if p.outer.lr else p.descent or self.experiment.train.optimizer
        return {"algorithm": p.method, "mode": "parallel", "descent": descent, **codec}
