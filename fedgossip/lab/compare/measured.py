"""A cell's costs and results from its run directory, the cost model's prediction, and the tuned learning rate (of five,
by final test loss).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgossip.algorithms.collectives.names import EqualLinks
from fedgossip.base.vectors import empty
from fedgossip.core import run_format
from fedgossip.core.messages import TAIL
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row, kind_of, read_rows
from fedgossip.core.run_summary import StepFacts
from fedgossip.core.task import Job
from fedgossip.experiment import Experiment, GossipExperiment, ParallelExperiment
from fedgossip.lab.compare.cells import Cell, CellGrid, DoneCell, run_cells
from fedgossip.lab.compare.names import Setting, formula_of
from fedgossip.lab.costs.base import Cost, RackedLinks, TrainingTimes
from fedgossip.lab.costs.methods import Buckets
from fedgossip.learning.settings import TrainSettings
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan, network_settings
from fedgossip.plans.parallel.parallel import ParallelPlan
from fedgossip.plans.parallel.parameter_server import ServerPlan
from fedgossip.runs.summary import busiest
from fedgossip.simulation.network import SimulatedNetwork


@dataclass(frozen=True)
class Point:
    """One evaluated round, or a point between two."""

    round: float
    seconds: float
    bytes_sent: float
    loss: float
    score: float | None


@dataclass(frozen=True)
class MeasuredCell:
    """One cell.  Seconds are virtual, or clock time for real processes; parts are those of the mean learner."""

    cell: Cell
    path: str
    status: str
    error: str = ""
    rounds: int = 0
    seconds: float = 0.0
    round_seconds: float = 0.0
    """Seconds of a round of the mean learner, without the first and the last."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the run spent on compute, communicate and wait."""
    payload: float = 0.0
    """Bytes of vectors in a round, in the larger direction of the busiest participant."""
    score_name: str = ""
    curve: Sequence[Point] = ()
    apart: float | None = None
    """Distance of the learners' models from their mean at the end; None if not measured."""
    staleness: Mapping[int, int] = field(default_factory=dict)
    setting: Setting | None = None
    predicted: Cost | None = None
    """The cost model's prediction of a round; None for real processes, unequal links, and by a rate over racks."""
    formula: float | None = None
    """Seconds of a round with its training, by the closed form."""

    @property
    def point(self) -> Point | None:
        """Return the last evaluated round."""
        return self.curve[-1] if self.curve else None

    def reached(self, target: float) -> Point | None:
        """Return the point from which the loss stays at or below the target, or None; linear between
        evaluated rounds.
        """
        above = [place for place, point in enumerate(self.curve) if not point.loss <= target]
        if not self.curve or (above and above[-1] == len(self.curve) - 1):
            return None
        if not above:
            return self.curve[0]
        before, after = self.curve[above[-1]], self.curve[above[-1] + 1]
        share = (before.loss - target) / (before.loss - after.loss) if math.isfinite(before.loss) else 1.0

        def between(one: float, other: float) -> float:
            return one + share * (other - one)

        return replace(
            after,
            round=between(before.round, after.round),
            seconds=between(before.seconds, after.seconds),
            bytes_sent=between(before.bytes_sent, after.bytes_sent),
            loss=min(target, before.loss) if share < 1 else after.loss,
        )

    def within(self, seconds: float = math.inf, sent: float = math.inf) -> Point | None:
        """Return the last evaluated round within `seconds` and `sent` bytes."""
        found = [point for point in self.curve if point.seconds <= seconds and point.bytes_sent <= sent]
        return found[-1] if found else None

    @property
    def fall(self) -> float:
        """Return the decrease of the test loss from the first evaluation to the last."""
        return self.curve[0].loss - self.curve[-1].loss if self.curve else 0.0


def measured(done: DoneCell, driver: str) -> MeasuredCell:
    """Return the measurements of a finished cell."""
    if done.summary is None or done.experiment is None:
        return MeasuredCell(done.cell, str(done.path), "failed", done.error)
    rows, summary = read_rows(done.path / run_format.ROWS), done.summary
    network = [row for row in rows if isinstance(row, NetworkRow)]
    last = network[-1]
    found = MeasuredCell(
        done.cell,
        str(done.path),
        str(summary["status"]),
        rounds=last.round,
        seconds=last.seconds,
        round_seconds=round_seconds(rows, int(summary["n"])),
        parts=_parts(rows, int(summary["n"]), last.seconds),
        payload=busiest(rows, {})["bytes"] / max(1, last.round),
        score_name=str(summary["score"]["name"]),
        curve=_curve(network),
        apart=last.consensus_distance,
        staleness=_staleness(rows),
    )
    return _with_summary(found, done.experiment, summary) if driver == "sim" else found


def _curve(network: Sequence[NetworkRow]) -> list[Point]:
    return [
        Point(row.round, row.seconds, row.bytes_sent, row.test_loss, row.score_averaged)
        for row in network
        if row.test_loss is not None
    ]


def round_seconds(rows: Sequence[Row], learners: int) -> float:
    """Return the mean over learners: without a barrier, each has its own pace, until all end together."""
    ends: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        if isinstance(row, PeerRow) and row.peer < learners and row.round:
            ends.setdefault(row.peer, []).append((row.round, row.seconds))
    paces = [
        (own[-2][1] - own[0][1]) / (own[-2][0] - own[0][0]) if len(own) > 2 else own[-1][1] / own[-1][0]
        for own in ends.values()
    ]
    return fmean(paces) if paces else 0.0


def _parts(rows: Sequence[Row], learners: int, seconds: float) -> dict[str, float]:
    """Return the mean learner's seconds per activity; a dead one does not wait."""
    own = [row for row in rows if isinstance(row, PeerRow) and row.peer < learners]
    compute = sum(row.seconds_training for row in own) / learners
    communicate = sum(row.seconds_communicating + row.seconds_mixing for row in own) / learners
    away = _away(rows, own, seconds) / learners
    return {"compute": compute, "communicate": communicate, "wait": max(0.0, seconds - compute - communicate - away)}


def _away(rows: Sequence[Row], own: Sequence[PeerRow], seconds: float) -> float:
    """Return the total seconds that dead learners were absent."""
    states_of: dict[int, list[str]] = {}
    for row in rows:
        if isinstance(row, EventRow) and (state := kind_of(row.name).implies) in ("ended", "again"):
            states_of.setdefault(row.peer, []).append(state)
    total = 0.0
    for peer, states in states_of.items():
        before = PeerRow(0, peer, None, None, 0, 0, 0.0, 0.0, 0.0, 0.0)
        for row in own:
            if row.peer != peer:
                continue
            counted = row.seconds_training + row.seconds_communicating + row.seconds_waiting + row.seconds_mixing
            if before.round and "again" in states:
                total += max(0.0, row.seconds - before.seconds - counted)
            before = row
        if states[-1] == "ended":
            total += seconds - before.seconds
    return total


def _staleness(rows: Sequence[Row]) -> dict[int, int]:
    found = Counter(row.staleness for row in rows if isinstance(row, PeerRow) and row.staleness is not None)
    return dict(sorted(found.items()))


def _with_summary(found: MeasuredCell, experiment: Experiment, summary: Mapping[str, Any]) -> MeasuredCell:
    paradigm = found.cell.paradigm
    element = 8 if summary.get("dtype") == "float64" else 4
    size = (int(str(summary["parameters"])) + paradigm.extra) * element
    setting = setting_of(experiment, size, element, summary.get("inside"))
    if setting is None:
        return found
    if setting.racked and not paradigm.by_steps:
        return replace(found, setting=setting)
    cost = paradigm.cost(setting)
    beside = formula_of(paradigm, setting)
    return replace(found, setting=setting, predicted=cost, formula=None if beside is None else cost.compute + beside)


def setting_of(experiment: Experiment, size: int, element: int = 4, step: StepFacts | None = None) -> Setting | None:
    """Return the cost model's setting, `step` as recorded by the run; None if nodes have individual links."""
    simulation = experiment.simulation
    if any(one.bandwidth or one.downlink or one.latency is not None for one in simulation.classes):
        return None
    rates = simulation.bandwidth or math.inf, simulation.downlink or math.inf
    plan = compose.plan(experiment)
    settings = network_settings(experiment, plan.n, step)
    how = simulation.latency, *rates, simulation.summing / element
    links = RackedLinks(*how, settings.racks) if settings.racks else EqualLinks(*how)
    network = SimulatedNetwork(settings, plan.n, experiment.seed)
    job = Job(0, 0, empty(1, "float32"), gradient=plan.gradients, accumulate=_accumulate(experiment))
    examples = compose.job_examples(experiment)(job)
    known = tuple(network.compute_training_seconds(node, examples) for node in range(plan.learners))
    times = TrainingTimes(known, 0.0, simulation.training_jitter)
    schedule = getattr(plan, "schedule", None) if isinstance(experiment, GossipExperiment) else None
    buckets = _buckets(experiment, plan, size // element, element)
    return Setting(size, links, times, schedule, _shares(plan, size // element), buckets, element)


def _shares(plan: Plan, length: int) -> tuple[float, ...]:
    """Return the share of the model on each server; (1.0,) without several."""
    if not isinstance(plan, ServerPlan):
        return (1.0,)
    placement = plan.placement_of(length)
    return tuple(own / placement.length for own in placement.shares(plan.servers))


def _buckets(experiment: Experiment, plan: Plan, length: int, itemsize: int) -> Buckets:
    if not isinstance(plan, ParallelPlan) or not isinstance(experiment, ParallelExperiment):
        return Buckets()
    p = experiment.parallel
    return Buckets(plan.bucket(length - TAIL, itemsize), p.overlap, p.accumulate)


def _accumulate(experiment: Experiment) -> int | None:
    section = getattr(experiment, "parallel", None)
    return None if section is None else int(section.accumulate)


FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors of the file's train.lr."""


@dataclass(frozen=True)
class TunedRate:
    """The trials of a paradigm.  `losses`: the final test loss by learning rate; None for a failed run."""

    losses: Mapping[float, float | None]

    @property
    def chosen(self) -> float | None:
        """Return the rate of the least loss, the smaller on a tie; None if every run failed."""
        there = {rate: loss for rate, loss in self.losses.items() if loss is not None}
        return min(sorted(there), key=lambda rate: there[rate], default=None)


def rates_of(grid: CellGrid) -> list[float]:
    """Return the five values, ascending."""
    given = grid.content.get("train", {}).get("lr", TrainSettings().lr)
    return [float(given) * factor for factor in FACTORS]


def tuned(
    grid: CellGrid,
    out: Path,
    driver: str,
    on_rate: Callable[[float, MeasuredCell], None],
    *,
    backend: str = "",
    jobs: int = 1,
) -> dict[str, TunedRate]:
    """Run each paradigm once with each rate, the most workers and the first seed; `on_rate` receives each cell.

    Finished runs in `out` are kept.  `backend`, `jobs`: as `run_cells`.
    """
    losses: dict[str, dict[float, float | None]] = {name: {} for name in grid.paradigms}
    for rate in rates_of(grid):
        one = replace(
            grid, rates=dict.fromkeys(grid.paradigms, rate), workers=[max(grid.workers)], seeds=grid.seeds[:1]
        )
        for done in run_cells(one, out / f"lr-{rate:g}", driver, report=False, backend=backend, jobs=jobs):
            cell = measured(done, driver)
            on_rate(rate, cell)
            losses[done.cell.name][rate] = _loss(cell)
    return {name: TunedRate(found) for name, found in losses.items()}


def _loss(cell: MeasuredCell) -> float | None:
    found = cell.point.loss if cell.point and not cell.error else math.inf
    return found if math.isfinite(found) else None


def chosen_rates(found: Mapping[str, TunedRate]) -> dict[str, float]:
    """Return the chosen rate of each paradigm with one."""
    return {name: one.chosen for name, one in found.items() if one.chosen is not None}


def rows_of(found: Mapping[str, TunedRate]) -> Sequence[Mapping[str, object]]:
    """Return the search as plain data: for each paradigm the result of each rate, and the chosen one."""
    rows = []
    for name, one in found.items():
        losses = [{"lr": lr, "test_loss": loss} for lr, loss in one.losses.items()]
        rows.append({"paradigm": name, "losses": losses, "lr": one.chosen})
    return rows
