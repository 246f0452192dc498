"""The forecast of a run's time: its own machines in virtual time, with the first update in place of every training.

Round times, waits and staleness depend on machines, links and [simulation], not on the trained values: so the first
job's update answers every job.

    point     the run's own seed: the simulator's result, if no decision depends on a loss
    edges     of one more draw after k other seeds, and the point: 99.9 % of runs with other draws of jitter, losses,
              cohorts and pairs (`core.forecasts`); one value without draws
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from fedgossip.algorithms.sampling import SamplingByLosses
from fedgossip.base.errors import ConfigError
from fedgossip.core.forecasts import DRAWS, compute_prediction_edges
from fedgossip.core.machine import NodeId
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.task import GradientTask, Job, Update, table_of
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.experiment.run_sections import FORECAST_NONE
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.plans.federated.federation import FederationPlan

TRIES = 50
"""Maximum number of seeds tried for each of the other seeds."""


class TimeForecast(msgspec.Struct, kw_only=True):
    """The virtual seconds of a run before it begins: `seconds` to the end of each of its `rounds`, with edges `lower`
    and `upper`.
    """

    level: str = "times"
    graph: str
    seeds: list[int]
    rounds: list[int]
    seconds: list[float]
    lower: list[float]
    upper: list[float]
    training: float
    """Share of the participants' time, the mean of all participants in the record; `communicating` and
    `waiting` too.
    """
    communicating: float
    waiting: float
    least_rounds: int
    """Number of counted rounds of the participant with fewest; in a coordinator's run contributions of a client."""
    most_rounds: int
    staleness: dict[int, float]
    """Share of the updates by their staleness, in model changes; {} if none is stale."""

    events: dict[str, int]
    """Number of events by name, of the run's own seed; events that depend on updates (`cut`) are those of the first
    update.
    """

    @property
    def stale_most(self) -> int:
        """The largest staleness."""
        return max(self.staleness, default=0)

    @property
    def stale_mean(self) -> float:
        """The mean staleness."""
        return sum(stale * share for stale, share in self.staleness.items())


class UntrainedTask:
    """A task like `task` that answers each job with the first update of its kind, each model with the first score."""

    def __new__(cls, task: GradientTask) -> UntrainedTask:
        """Make a class with the names of the task: from Python 3.12 on `isinstance` sees no name of __getattr__."""
        names = [name for name in dir(task) if not name.startswith("_") and name not in vars(cls)]
        forwarded = {name: property(attrgetter(f"_task.{name}")) for name in names}
        return super().__new__(type(cls.__name__, (cls,), forwarded))

    def __init__(self, task: GradientTask) -> None:
        self._task = task
        self._updates: dict[tuple[bool, ...], Update] = {}
        self._scores: Mapping[str, float] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return the first job's update for each."""
        return [self._answered(job) for job in jobs]

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return the first job's gradient for each.  Raises ConfigError for a task without gradients."""
        return self.train(jobs) if jobs else self._task.gradients([])

    def evaluate(self, vectors: Sequence[Any]) -> Sequence[Mapping[str, float]]:
        """Return the first model's metrics for each."""
        if self._scores is None and vectors:
            (self._scores,) = self._task.evaluate(vectors[:1])
        return [self._scores or {} for _ in vectors]

    def _answered(self, job: Job) -> Update:
        kind = job.gradient, job.terms is not None, job.tested
        if kind not in self._updates:
            train = self._task.gradients if job.gradient else self._task.train
            (self._updates[kind],) = train([replace(job, stretches=())])
        return self._updates[kind]


def forecast_times(
    experiment: Experiment | Mapping[str, Any] | Path | str,
    graphs: Sequence[str] = (),
    overrides: Sequence[str] = (),
    seed: int | None = None,
    draws: int = DRAWS,
) -> list[TimeForecast]:
    """Return the times of a run before it begins, on its own graph or on each of `graphs`.

    Raises ConfigError for an invalid experiment, a user's own loop, a table of rows, and rules that decide by losses.
    """
    if isinstance(experiment, Experiment):
        experiment = experiment.to_dict()
    found = []
    for graph in graphs or [""]:
        named = [*overrides, *([f'topology.graph="{graph}"'] if graph else [])]
        first = load_experiment(experiment, named, seed=seed)
        runs = [_MeasuredTimes(compose.plan(first))]
        runs += _measure_others(experiment, named, first.seed, draws)
        found.append(_forecast(graph, runs))
    return found


def _measure_others(
    experiment: Mapping[str, Any] | Path | str, named: Sequence[str], seed: int, draws: int
) -> list[_MeasuredTimes]:
    """Return the runs of the next `draws` seeds with valid draws."""
    found: list[_MeasuredTimes] = []
    for other in range(seed + 1, seed + 1 + TRIES * draws):
        try:
            found.append(_MeasuredTimes(compose.plan(load_experiment(experiment, named, seed=other))))
        except ConfigError as error:
            refused = error
        if len(found) == draws:
            return found
    raise refused


def _check(plan: Plan) -> None:
    e = plan.experiment
    if e.loops:
        advice = 'Forecast the same model and data with task.kind = "learning".'
        raise ConfigError("a training loop of your own cannot be asked ahead: its times are not known", advice)
    if e.stop.patience:
        text = "stop.patience ends a run by its scores, which need its training: its length is not known"
        raise ConfigError(text, "Add --set stop.patience=0 for the times of all rounds.")
    if isinstance(plan, FederationPlan) and isinstance(plan.sampling, SamplingByLosses):
        text = f"coordinator.sampling = {plan.section.sampling!r} invites by losses, which need the training"
        raise ConfigError(text, 'Take the times of the same run with coordinator.sampling = "uniform".')


class _MeasuredTimes:
    """The times of one simulated run of `plan` without trainings."""

    def __init__(self, plan: Plan) -> None:
        _check(plan)
        self.plan = plan
        self.seconds: dict[int, float] = {}
        self.spent = np.zeros(3)  # training, communicating, waiting
        self.counted: Counter[int] = Counter()
        self.staleness: Counter[int] = Counter()
        self.events: Counter[str] = Counter()
        self._sent = deque[PeerRow]()
        task, shares = compose.task_of(plan.experiment, plan.learners)
        if table_of(task) is not None:
            text = "the model is a table of rows, whose messages depend on the batches: its times are not known"
            raise ConfigError(text, "Run a few rounds: --set rounds=5.")
        untrained = UntrainedTask(cast(GradientTask, task))
        simulate_plan(plan, task=untrained, shares=shares, watch=self._take, forecast=FORECAST_NONE)

    def _take(self, row: Row) -> None:
        match row:
            case NetworkRow():
                self.seconds[row.round] = row.seconds
            case PeerRow() if row.round > 0 and row.peer < self.plan.learners:
                self.spent += row.seconds_training, row.seconds_communicating, row.seconds_waiting
                self._sent.append(row)
                if self.plan.roles.leader is None:
                    self._count(row.staleness or 0)
            case PeerRow(clients=int(clients)):  # a step of a buffer has the first that were sent
                for _ in range(min(clients, len(self._sent))):
                    self._count(row.round - self._sent[0].round)
            case EventRow():
                self.events[row.name] += 1
                if row.name == "stale" and isinstance(row.value, dict):
                    self._drop(row.value["peer"])

    def _drop(self, client: NodeId) -> None:
        last = max((place for place, row in enumerate(self._sent) if row.peer == client), default=None)
        if last is not None:
            del self._sent[last]

    def _count(self, staleness: int) -> None:
        self.counted[self._sent.popleft().peer] += 1
        self.staleness[staleness] += 1


def _forecast(graph: str, runs: Sequence[_MeasuredTimes]) -> TimeForecast:
    own = runs[0]
    rounds = sorted(set[int].intersection(*(set(run.seconds) for run in runs)) - {0})
    seconds = np.array([[run.seconds[round] for round in rounds] for run in runs])
    low, high = compute_prediction_edges(seconds[1:])
    spent = np.sum([run.spent for run in runs], axis=0)
    training, communicating, waiting = (spent / max(float(np.sum(spent)), 1e-300)).tolist()
    stale = sum((run.staleness for run in runs), Counter[int]())
    counts = [own.counted[node] for node in range(own.plan.learners)]
    return TimeForecast(
        graph=graph or own.plan.name,
        seeds=[run.plan.experiment.seed for run in runs],
        rounds=rounds,
        seconds=seconds[0].tolist(),
        lower=np.maximum(0.0, np.minimum(low, seconds[0])).tolist(),
        upper=np.maximum(high, seconds[0]).tolist(),
        training=training,
        communicating=communicating,
        waiting=waiting,
        least_rounds=min(counts),
        most_rounds=max(counts),
        staleness={age: count / stale.total() for age, count in sorted(stale.items())} if any(stale) else {},
        events=dict(own.events),
    )
