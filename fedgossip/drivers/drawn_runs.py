"""The forecast of a run by simulations of it with other draws: for runs in which times decide what is learned.

Where nobody waits, the staleness of an update depends on times; with deadlines or losses, the updates of a round do.
So the run is simulated DRAWS times before it begins: data, first models, batches, pairs and cohorts are its own, by its
seed; jitter, speeds and faults have other draws.

    edges     `core.forecasts.compute_prediction_edges`, of each measured number of each round alone
    rounds    those in which all simulations have the number; of the distance up to the first without
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import count, takewhile

import msgspec
import numpy as np

from fedgossip.base.seeds import integer
from fedgossip.core.forecasts import COLUMNS, DRAWS, Interval, RunForecast, ScoreForecast, compute_prediction_edges
from fedgossip.core.records import NetworkRow, PeerRow, Row
from fedgossip.core.task import LocalTask, give_memory, memory_of, segments_of, table_of
from fedgossip.core.timeline import TimelineLog
from fedgossip.drivers.simulator_of_run import build_simulator
from fedgossip.experiment.run_sections import FORECAST_DRAWN
from fedgossip.plans.compose import DataShares, Plan, faults_of
from fedgossip.plans.own_parts import measured_by
from fedgossip.plans.plan import record_of
from fedgossip.secure.primitives import remembering

Numbers = dict[int, float]
"""A measured number by round."""


def forecast_by_draws(
    plan: Plan, task: LocalTask, shares: DataShares, name: str, rounds: int, watch: Callable[[int], None]
) -> RunForecast:
    """Return the forecast of the first `rounds` of a run on the graph `name`; the task's memory is restored.

    `watch` is called with the number of simulations so far.  Raises the error of a participant that a simulation ends
    with: TrainingError if training diverges.
    """
    plan = plan.with_shares(shares).with_segments(segments_of(task)).with_table(table_of(task)).with_engine("sim")
    runs = []
    for draw in range(DRAWS):
        runs.append(_DrawnRun(plan, task, shares, integer(plan.experiment.seed, "forecast draw", draw)))
        watch(draw + 1)
    edges = {column: _edges([run.numbers[column] for run in runs], rounds) for column in runs[0].numbers}
    apart = edges.pop(DISTANCE, {})
    whole = [apart[round] for round in takewhile(apart.__contains__, count(1))]
    return RunForecast(
        FORECAST_DRAWN,
        name,
        str(plan.facts([]).get("algorithm", "")),
        plan.learners,
        [max(0.0, low) for low, _ in whole],
        [high for _, high in whole],
        jobs=sum(run.jobs for run in runs),
        scores=_scores(edges, share=plan.experiment.score.share),
    )


DISTANCE = "consensus_distance"


class _DrawnRun:
    """The measured numbers of one simulation by column and round, and its number of recorded trainings."""

    def __init__(self, plan: Plan, task: LocalTask, shares: DataShares, draws: int) -> None:
        of_one_model = "test_loss", "score_averaged"
        columns = of_one_model if plan.roles.leader is not None else (DISTANCE, *COLUMNS.values())
        self.numbers: dict[str, Numbers] = {column: {} for column in columns}
        self.jobs = 0
        self._learners = plan.learners
        evaluate = measured_by(plan.experiment, task)
        record = record_of(plan, evaluate, watch_all=table_of(task) is None, decides=plan.roles.leader is None)
        initial, before = zip(*((task.initial(node), memory_of(task, node)) for node in range(plan.n)), strict=True)
        made = plan, faults_of(plan, draws), task, initial, record, self._take, shares
        _, finish, _ = build_simulator(*made, TimelineLog(plan.n, plan.roles.counted, 0), draws)
        record.started(initial)
        try:
            with remembering() if plan.masks else nullcontext():
                results = finish(lambda: None)
        finally:
            for node, memory in enumerate(before):
                give_memory(task, node, memory)
        for node in plan.roles.counted:
            if (failure := results.failures.get(node)) and failure.kind != "budget":
                raise failure.error()

    def _take(self, row: Row) -> None:
        if isinstance(row, PeerRow):
            self.jobs += row.round > 0 and row.peer < self._learners
        elif isinstance(row, NetworkRow) and row.round > 0:
            for column, numbers in self.numbers.items():
                if (value := getattr(row, column)) is not None:
                    numbers[row.round] = value


def _edges(drawn: list[Numbers], rounds: int) -> dict[int, Interval]:
    common = sorted(round for round in set[int].intersection(*map(set, drawn)) if round <= rounds)
    low, high = compute_prediction_edges(np.array([[run[round] for round in common] for run in drawn]))
    return dict(zip(common, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def _scores(edges: dict[str, dict[int, Interval]], *, share: bool) -> ScoreForecast | None:
    """Return the columns that have the rounds of the most measured one.  `share`: scores lie between 0 and 1."""
    rounds = max((list(each) for each in edges.values()), key=len)
    columns = [name for name, column in COLUMNS.items() if len(edges.get(column, ())) == len(rounds)]
    whole = {name: [*edges[COLUMNS[name]].values()] for name in columns}
    for name in {*whole} - {"test_loss"} if share else ():
        whole[name] = [(max(0.0, low), min(1.0, high)) for low, high in whole[name]]
    return msgspec.convert({"rounds": rounds, **whole}, ScoreForecast) if rounds else None
