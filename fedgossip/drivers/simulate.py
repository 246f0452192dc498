"""Runs without sockets: complete machines in virtual time, or only the mathematics on stacked arrays."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt

from fedgossip.algorithms.gossip.base import GossipAlgorithm
from fedgossip.base import machine_memory
from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError, nearest
from fedgossip.base.vectors import Vector
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId, Report
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row, event_row
from fedgossip.core.run_summary import RunSummary
from fedgossip.core.task import LocalTask, ReportingTask, segments_of, table_of
from fedgossip.core.timeline import ITEMS_OF_RUN, TimelineLog
from fedgossip.drivers import sim_checkpoint
from fedgossip.drivers.sim_checkpoint import CheckpointedSimulation, Engine, Left, Pauses
from fedgossip.drivers.simulator_of_run import build_simulator
from fedgossip.experiment import BEST, GIVEN, Experiment, GossipExperiment, load_experiment
from fedgossip.experiment.run_sections import FORECAST_AUTO
from fedgossip.faults import FaultScript
from fedgossip.plans import compose
from fedgossip.plans.compose import DataShares, Plan, faults_of
from fedgossip.plans.gossip.gossip_checks import check_real
from fedgossip.plans.own_parts import measured_by
from fedgossip.plans.plan import EXHAUSTED, Results, record_of
from fedgossip.runs import incarnations, run_directory
from fedgossip.runs.run_directory import Foretold, Run, RunDirectory, TrainedTable
from fedgossip.runs.summary import RunOutcome, averaged, status_of, summarize
from fedgossip.runs.table_files import save_table
from fedgossip.runs.tracking import Keeper, Tracking
from fedgossip.secure.primitives import remembering
from fedgossip.topology import Mixing, Schedule

UNCOLLECTED_FROM = 256
"""Minimum number of nodes for excluding existing objects from garbage collection."""
ALLOCATED_MOST = 100
"""Number of objects per node allocated between two collections."""

WATCHED_ELEMENTS = 1 << 16
"""Maximum number of elements in all vectors for which the disagreement is measured in every round: in half a
millisecond.
"""

Watch = Callable[[Row], None]


def simulate(
    experiment: Experiment | Mapping[str, Any] | Path | str,
    *,
    engine: str = "sim",
    seed: int | None = None,
    overrides: Sequence[str] = (),
    task: LocalTask | None = None,
    schedule: Schedule | None = None,
    mixing: Mixing | npt.ArrayLike | None = None,
    algorithm: GossipAlgorithm[Any] | None = None,
    out: Path | str | None = None,
    report: bool = False,
    watch: Watch | None = None,
    forecast: str | None = None,
) -> Run:
    """Run an experiment in this process and return the result.

    `experiment`: a path, a mapping of the file's shape, or an Experiment.  `engine`: "sim" (machines, virtual network)
    or "stacked" (arrays; the same bits, no time).  `overrides`: "section.key=value" texts.  `task`: an object with the
    methods of `fedgossip.core.task.LocalTask`.  `out`: a new folder for the run directory; None writes nothing. `watch`
    is called with every row as it is logged.  `forecast`: "probe", "shadow", "followed" or "drawn" (see
    `forecast_run`), compared in the summary; None: the level in [forecast].

    `schedule`, or `mixing` (a Mixing, or an array [n, n]; row i has the weights that i applies): in place of
    [topology]. `algorithm`: an object with the methods of `fedgossip.algorithms.gossip.base.GossipAlgorithm`.

    The result depends only on these and the seed.  Raises ConfigError before an invalid run, and TrainingError if a
    loss is not finite or one of the given objects fails later.
    """
    given = None
    if schedule is not None or mixing is not None:
        from fedgossip.plans.gossip.own_graphs import adopt_schedule

        given = adopt_schedule(schedule, mixing)
    named = {"topology.graph": GIVEN, "topology.n": given.n} if given else {}
    named |= {"algorithm.name": GIVEN} if algorithm else {}
    texts = [f"{key}={value}" for key, value in named.items()]
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment, [*overrides, *texts], seed=seed)
    elif texts:
        track = experiment.track  # with its passwords
        experiment = msgspec.structs.replace(load_experiment(experiment.to_dict(), texts), track=track)
    objects = {"schedule": given, "algorithm": algorithm}
    plan = compose.plan(experiment, **{name: one for name, one in objects.items() if one is not None})
    return simulate_plan(plan, engine=engine, task=task, out=out, report=report, watch=watch, forecast=forecast)


def simulate_plan(
    plan: Plan,
    *,
    engine: str = "sim",
    task: LocalTask | None = None,
    out: Path | str | None = None,
    report: bool = False,
    watch: Watch | None = None,
    resume: bool = False,
    forecast: str | None = None,
    timeline: TimelineLog | None = None,
    shares: DataShares | None = None,
) -> Run:
    """Run an experiment with a resolved graph as `simulate` does.

    `shares`: examples of the participants, for a given `task` with times by their number.  `timeline`: records each
    participant's activities with times, and stops the run once full; by default stored with a directory.

    `resume`: continue the run in `out`, bit for bit.  Raises ResumeError for another experiment.
    """
    began = time.monotonic()
    shares = shares or DataShares("given")
    if task is None:
        task, shares = compose.task_of(plan.experiment, plan.learners)
        plan = plan.with_shares(shares)
    compose.check_task(plan, task)
    plan = plan.with_segments(segments_of(task)).with_table(table_of(task)).with_engine(engine)
    check_engine(plan, engine, task)
    initial, script = [task.initial(node) for node in range(plan.n)], faults_of(plan)
    folder = Path(out) if out is not None else None
    about = incarnations.about_of(plan, -1, task.schema, shares.digest) if folder else None
    left, refused = sim_checkpoint.load_newest(folder, about) if folder and about and resume else (None, [])
    tracking = Tracking(plan.experiment, folder) if folder and plan.experiment.track.to else None
    foretold = _forecast(plan, task, shares, forecast, folder if resume else None)
    keeper = _with_reports(task, Keeper(None, watch, None, foretold, plan.exchanges if engine == "sim" else None))
    record = _record(plan, engine, task, foretold)
    made = plan, script, task, initial, record, keeper, shares
    stored = folder is not None and left is None and timeline is None
    timeline = timeline or TimelineLog(plan.n, plan.roles.counted, ITEMS_OF_RUN if stored else 0)
    run, finish, known = build_simulator(*made, timeline) if engine == "sim" else _stacked(*made)  # may refuse
    with _directory(folder, plan, task, engine, left, foretold, resume=resume) as directory:
        keeper.begin(directory, tracking, shares.notes)
        results = Results([None] * plan.n)
        simulation = CheckpointedSimulation(run, record, task, plan.n, {**plan.externals, "write": keeper, **known})
        pauses = Pauses(folder if plan.pausable else None, about, simulation, keeper)
        try:
            if left and directory:
                simulation.restore(left.arrays)
                keeper.remember(directory.rows())
            for row in [*refused, *([] if left else record.started(initial))]:
                keeper(row)
            with pauses, remembering() if plan.masks else nullcontext(), _uncollected(plan.n):
                results = finish(pauses)
            status = "interrupted" if timeline.enough else _verdict(plan, results, record, keeper)
        except KeyboardInterrupt:
            status = "interrupted"
        except BaseException:
            keeper.ended("failed")
            raise
        keeper.ended(status)
        ended = RunOutcome(results.vectors, results.counts, status, time.monotonic() - began, results.payload)
        summary = summarize(plan, engine, task, shares, record, keeper, ended)
        table = _table(plan, results)
        if directory:
            _keep_times(directory, timeline if stored else None)
            models = plan.outcome(results.vectors), record.best_model if plan.experiment.eval.keep == BEST else None
            _finish(directory, summary, task, *models, table, report=report)
        if status == "failed":
            raise _failure(plan, results)
        return Run(summary, keeper.rows, list(results.vectors), directory.path if directory else None, table)


def _table(plan: Plan, results: Results) -> TrainedTable | None:
    found = plan.touched_rows(results.kept) if results.kept else None
    return TrainedTable(*found) if found else None


def _forecast(
    plan: Plan, task: LocalTask, shares: DataShares, level: str | None, stopped: Path | None
) -> Foretold | None:
    asked = level is not None or stopped is not None or plan.experiment.forecast.level != FORECAST_AUTO
    if not asked and not isinstance(plan.experiment, GossipExperiment):
        return None
    from fedgossip.drivers.forecasting import forecast_of  # and with it all of gossip

    return forecast_of(plan, task, shares, level, stopped)


def check_engine(plan: Plan, engine: str, task: LocalTask) -> None:
    """Raise ConfigError for a run that an engine does not support, and for an unknown engine."""
    if engine not in ("sim", "stacked"):
        raise ConfigError(f"engine {engine!r} is not known", nearest(engine, ("sim", "stacked")))
    if engine == "sim":
        check_real(plan.experiment)
    elif plan.experiment.faults:
        raise ConfigError("the stacked engine has no time and no messages: no faults", "Run it with --on sim.")
    else:
        plan.check_arrays(task)
    _check_memory(plan, engine, task)


def _check_memory(plan: Plan, engine: str, task: LocalTask) -> None:
    """Raise ConfigError for participants and models that do not all fit into this machine's memory."""
    size = task.length * task.dtype.itemsize
    what = f"{plan.n:,} participants with models of {size:,} bytes"
    arrays = engine == "sim" and plan.least_memory("stacked", size) <= machine_memory.MEMORY
    fewer = "Take fewer participants or a smaller model"
    advice = f"{fewer}{', or --on stacked' if arrays else ''}; or run it on several machines."
    machine_memory.check_fits(what, plan.least_memory(engine, size), advice)


def _record(plan: Plan, engine: str, task: LocalTask, foretold: Foretold | None) -> Network:
    """Return the record; it logs the run's end if no coordinator does."""
    decides = engine == "stacked" or plan.roles.leader is None
    evaluate = measured_by(plan.experiment, task)
    return record_of(plan, evaluate, watch_all=_compares_every_round(plan, task, foretold), decides=decides)


def _finish(
    directory: RunDirectory,
    summary: RunSummary,
    task: LocalTask,
    outcome: Sequence[Vector | None],
    best: Vector | None,
    table: TrainedTable | None,
    *,
    report: bool,
) -> None:
    if table:
        save_table(table, directory.path / run_format.TABLE)
    directory.finish(summary, task, averaged(outcome), best=best, report=report)
    summary["run_dir"] = str(directory.path)


def _keep_times(directory: RunDirectory, log: TimelineLog | None) -> None:
    """Write the participants' activities with times in the first part of the run."""
    if log is not None and (found := log.timeline()).bars:
        run_directory.write_whole(directory.path / run_format.TIMELINE, msgspec.json.encode(found))


@contextmanager
def _uncollected(nodes: int) -> Iterator[None]:
    """Exclude existing objects from garbage collection, and space later collections by the number of nodes.

    Collection would take a fifth of the time of 512 nodes; with a constant threshold two thirds of that of 10 000
    nodes, which have a million messages and timers at any time.
    """
    if nodes < UNCOLLECTED_FROM or gc.get_freeze_count():  # or by another caller
        yield
        return
    usual = gc.get_threshold()
    gc.set_threshold(max(usual[0], ALLOCATED_MOST * nodes), *usual[1:]) if usual[0] else None
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


def _with_reports(task: LocalTask, keeper: Keeper) -> Keeper:
    """Return the keeper, which logs the task's reports: they belong to no peer."""

    def write(report: Report) -> None:
        if row := event_row(-1, report):
            keeper(row)

    if isinstance(task, ReportingTask):
        task.report_to(write)
    return keeper


def _compares_every_round(plan: Plan, task: LocalTask, foretold: Foretold | None) -> bool:
    """Return whether vectors are compared after every round; a table's watched rows are not."""
    if table_of(task) is not None:
        return False
    wanted = plan.experiment.eval.watch
    return plan.n * task.length <= WATCHED_ELEMENTS or foretold is not None if wanted is None else wanted


def _failure(plan: Plan, results: Results) -> FedgossipError:
    """Return the error of the first participant on which the run depends."""
    failed = [results.failures[node] for node in plan.roles.counted if node in results.failures]
    return failed[0].error() if failed else NetworkError("every peer crashed", "Change [[faults]].")


def _verdict(plan: Plan, results: Results, record: Network, keeper: Keeper) -> str:
    def word(node: NodeId, vector: Vector | None, reached: int) -> str | None:
        if failure := results.failures.get(node):
            return EXHAUSTED if failure.kind == "budget" else "failed"
        if vector is None:
            return None
        whole = plan.is_complete(node, reached) or plan.is_over(node, vector) or "no_better" in keeper.events
        return "finished" if whole else "interrupted"

    last_words = [word(node, *how) for node, how in enumerate(zip(results.vectors, record.reached, strict=True))]
    return status_of(plan, last_words, keeper.rows, results.vectors)


@contextmanager
def _directory(
    folder: Path | None,
    plan: Plan,
    task: LocalTask,
    engine: str,
    left: Left | None,
    foretold: Foretold | None,
    *,
    resume: bool,
) -> Iterator[RunDirectory | None]:
    if folder is None:
        yield None
    elif resume:
        with RunDirectory.again(folder, plan, left.rows if left else 0) as directory:
            yield directory
    else:
        with RunDirectory(folder, plan, foretold) as directory:
            run_directory.state_plan(folder, plan, task)
            run_directory.write_whole(folder / run_format.ENGINE, msgspec.json.encode(Engine(engine)))
            yield directory


Made = tuple[object, Callable[[Callable[[], None]], Results], Mapping[str, object]]
"""A run's state for images; its finishing function; its objects of the experiment."""


def _stacked(
    plan: Plan,
    _script: FaultScript,
    task: LocalTask,
    _initial: Sequence[Vector],
    record: Network,
    keeper: Keeper,
    _shares: DataShares,
) -> Made:
    state, rounds = plan.arrays(task, record, keeper)

    def finish(between: Callable[[], None]) -> Results:
        results = rounds(between)
        for row in record.flush():  # the last round: the local rounds outside the count have ended now
            keeper(row)
        return results

    return state, finish, {}
