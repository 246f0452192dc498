"""Runs without sockets: whole machines in virtual time, or the mathematics alone on stacked arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.errors import ConfigError, NetworkError, nearest
from fedgossip.experiment import Experiment, load
from fedgossip.faults import FaultScript
from fedgossip.machine import Checkpoint, Machine, NodeId
from fedgossip.metrics import Network, Row
from fedgossip.running import compose, lives, pausing, runs
from fedgossip.running.compose import DataShares, Plan
from fedgossip.running.pausing import Left, Pauses, Simulation
from fedgossip.running.runs import Ended, Keeper, Run, RunDirectory
from fedgossip.simulation.network import NetworkSettings, SimulatedNetwork
from fedgossip.simulation.simulator import Simulator
from fedgossip.simulation.stacked import first_stack, run_stacked
from fedgossip.task import LocalTask
from fedgossip.vectors import Vector

WATCHED_ELEMENTS = 1 << 24
"""Up to so many numbers in all vectors together the disagreement is measured in every round."""

Watch = Callable[[Row], None]


def simulate(
    experiment: Experiment | Mapping[str, Any] | Path | str,
    *,
    engine: str = "sim",
    seed: int | None = None,
    overrides: Sequence[str] = (),
    task: LocalTask | None = None,
    out: Path | str | None = None,
    report: bool = False,
    watch: Watch | None = None,
) -> Run:
    """Run an experiment in this process and return what came out.

    `experiment`: a path, a mapping of the file's shape, or an Experiment.  `engine`: "sim" (machines, virtual network)
    or "stacked" (arrays only; the same bits, no time).  `overrides`: "section.key=value" texts.  `task`: anything with
    the methods of `fedgossip.task.LocalTask`, in place of the experiment's own.  `out`: a new folder for the run
    directory; None writes nothing.  `watch` is called with every row of the record as it comes.

    The result depends on the experiment and its seed only.  Raises ConfigError, TrainingError.
    """
    if not isinstance(experiment, Experiment):
        experiment = load(experiment, overrides, seed=seed)
    plan = compose.plan(experiment)
    return simulate_plan(plan, engine=engine, task=task, out=out, report=report, watch=watch)


def simulate_plan(
    plan: Plan,
    *,
    engine: str = "sim",
    task: LocalTask | None = None,
    out: Path | str | None = None,
    report: bool = False,
    watch: Watch | None = None,
    resume: bool = False,
) -> Run:
    """`simulate`, for an experiment whose graph is resolved already.

    `resume`: go on with the run that was stopped in `out`, bit for bit.  Raises ResumeError where it is another's.
    """
    if engine not in ("sim", "stacked"):
        raise ConfigError(f"engine {engine!r} is not known", nearest(engine, ("sim", "stacked")))
    began = time.monotonic()
    shares = DataShares("given")
    if task is None:
        task, shares = compose.task_of(plan.experiment, plan.n)
    initial = [task.initial(node) for node in range(plan.n)]
    script = faults_of(plan)
    if engine == "stacked" and plan.experiment.algorithm.mode == "async":
        raise ConfigError("the stacked engine goes by rounds: no asynchronous gossip", "Run it with --on sim.")
    if engine == "stacked" and script:
        raise ConfigError("the stacked engine has no time and no messages: no faults", "Run it with --on sim.")
    folder = Path(out) if out is not None else None
    about = lives.about_of(plan, -1, task.schema, shares.digest)
    left, refused = pausing.left_in(folder, about) if folder and resume else (None, [])
    directory = _directory(folder, plan, engine, left, resume=resume) if folder else None
    keeper = Keeper(directory, watch)
    e = plan.experiment
    watch_all = plan.n * task.length <= WATCHED_ELEMENTS
    record = Network(plan.n, e.rounds, e.eval.every, task.evaluate, watch_all=watch_all)
    vectors: Sequence[Vector | None] = [None] * plan.n
    counts: Mapping[str, int] = {}
    make = _simulator if engine == "sim" else _stacked
    run, finish, known = make(plan, script, task, initial, record, keeper)
    simulation = Simulation(run, record, task, plan.n, {"schedule": plan.schedule, "write": keeper, **known})
    pauses = Pauses(folder, about, simulation, keeper)
    try:
        if left and directory:
            simulation.restore(left.arrays)
            keeper.remember(directory.rows())
        for row in [*refused, *([] if left else record.started(initial))]:
            keeper(row)
        with pauses:
            vectors, counts = finish(pauses)
        status = _verdict(plan, vectors, record)
    except KeyboardInterrupt:
        status = "interrupted"
    except BaseException:
        if directory:
            directory.abandon()
        raise
    ended = Ended(vectors, counts, status, time.monotonic() - began)
    summary = runs.summarize(plan, engine, task, shares, record, keeper, ended)
    if directory:
        directory.finish(summary, task, runs.averaged(vectors), report=report)
        summary["run_dir"] = str(directory.path)
    if status == "failed":
        raise NetworkError("every peer crashed", "Change [[faults]].")
    return Run(summary, keeper.rows, list(vectors), directory.path if directory else None)


def _verdict(plan: Plan, vectors: Sequence[Vector | None], record: Network) -> str:
    words = {True: "finished", False: "interrupted"}
    done = zip(vectors, record.reached, strict=True)
    return runs.verdict([None if vector is None else words[compose.whole(plan, at)] for vector, at in done])


def _directory(folder: Path, plan: Plan, engine: str, left: Left | None, *, resume: bool) -> RunDirectory:
    if resume:
        return RunDirectory.again(folder, plan, left.rows if left else 0)
    directory = RunDirectory(folder, plan)
    runs.write_whole(folder / pausing.ENGINE, msgspec.json.encode(pausing.Engine(engine)))
    return directory


Results = tuple[Sequence[Vector | None], Mapping[str, int]]
Made = tuple[object, Callable[[Callable[[], None]], Results], Mapping[str, object]]
"""What a run is, as an image takes it; what brings it to its end; and what of it the experiment makes anew."""


def _simulator(
    plan: Plan,
    script: FaultScript,
    task: LocalTask,
    initial: Sequence[Vector],
    record: Network,
    keeper: Keeper,
) -> Made:
    network = SimulatedNetwork(network_settings(plan.experiment), plan.n, plan.experiment.seed)
    machines = [compose.machine_of(plan, node, initial[node], task.schema) for node in range(plan.n)]
    links = [plan.schedule.partners(node) for node in range(plan.n)]
    soon = compose.impatient(plan)

    def rebirth(node: NodeId, incarnation: int, saved: Checkpoint | None) -> Machine:
        return compose.machine_of(soon, node, initial[node], task.schema, saved, incarnation=incarnation)

    simulator = Simulator(machines, links, task, network, record, keeper, script=script, rebirth=rebirth)

    def finish(between: Callable[[], None]) -> Results:
        results = simulator.run(between=between)
        return [results.get(node) for node in range(plan.n)], simulator.counts

    return simulator, finish, {"script": script, "rebirth": rebirth}


def _stacked(
    plan: Plan,
    _script: FaultScript,
    task: LocalTask,
    _initial: Sequence[Vector],
    record: Network,
    keeper: Keeper,
) -> Made:
    algorithm = compose.ALGORITHMS[plan.experiment.algorithm.name](plan.n)
    stack = first_stack(task, plan.n, algorithm)

    def finish(between: Callable[[], None]) -> Results:
        rounds = plan.experiment.rounds
        return run_stacked(task, plan.schedule, algorithm, rounds, record, keeper, stack=stack, between=between), {}

    return stack, finish, {}


def faults_of(plan: Plan) -> FaultScript:
    """The [[faults]] of a run.  Raises ConfigError for peers or links that are not there."""
    links = {(node, other) for node in range(plan.n) for other in plan.schedule.partners(node)}
    return FaultScript(plan.experiment.faults, plan.n, plan.experiment.seed, links)


def network_settings(experiment: Experiment) -> NetworkSettings:
    """The [simulation] section as the simulator wants it."""
    s = experiment.simulation
    return NetworkSettings(
        latency=s.latency,
        jitter=s.jitter,
        bandwidth=s.bandwidth,
        detection=s.detection,
        training=s.training,
        speed_spread=s.speed_spread,
        training_jitter=s.training_jitter,
    )
