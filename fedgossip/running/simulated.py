"""Runs without sockets: whole machines in virtual time, or the mathematics alone on stacked arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgossip.errors import ConfigError, NetworkError, nearest
from fedgossip.experiment import Experiment, load
from fedgossip.faults import FaultScript
from fedgossip.machine import Checkpoint, Machine, NodeId
from fedgossip.metrics import Network, Row
from fedgossip.protocols.sync_gossip import partners_of
from fedgossip.running import compose, runs
from fedgossip.running.compose import DataShares, Plan
from fedgossip.running.runs import Ended, Keeper, Run, RunDirectory
from fedgossip.simulation.network import NetworkSettings, SimulatedNetwork
from fedgossip.simulation.simulator import Simulator
from fedgossip.simulation.stacked import run_stacked
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
) -> Run:
    """`simulate`, for an experiment whose graph is resolved already."""
    if engine not in ("sim", "stacked"):
        raise ConfigError(f"engine {engine!r} is not known", nearest(engine, ("sim", "stacked")))
    began = time.monotonic()
    shares = DataShares("given")
    if task is None:
        task, shares = compose.task_of(plan.experiment, plan.n)
    initial = [task.initial(node) for node in range(plan.n)]
    script = faults_of(plan)
    if engine == "stacked" and script:
        raise ConfigError("the stacked engine has no time and no messages: no faults", "Run it with --on sim.")
    directory = RunDirectory(Path(out), plan) if out is not None else None
    keeper = Keeper(directory, watch)
    e = plan.experiment
    watch_all = plan.n * task.length <= WATCHED_ELEMENTS
    record = Network(plan.n, e.rounds, e.eval.every, task.evaluate, watch_all=watch_all)
    vectors: Sequence[Vector | None] = [None] * plan.n
    counts: Mapping[str, int] = {}
    try:
        for row in record.started(initial):
            keeper(row)
        if engine == "sim":
            vectors, counts = _simulated(plan, script, task, initial, record, keeper)
        else:
            algorithm = compose.ALGORITHMS[e.algorithm.name]()
            vectors = run_stacked(task, plan.mixing, algorithm, e.rounds, record, keeper)
        done = zip(vectors, record.reached, strict=True)
        status = runs.verdict(
            [None if vector is None else "finished" if at == e.rounds else "interrupted" for vector, at in done]
        )
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


def _simulated(
    plan: Plan,
    script: FaultScript,
    task: LocalTask,
    initial: Sequence[Vector],
    record: Network,
    keeper: Keeper,
) -> tuple[list[Vector | None], Mapping[str, int]]:
    network = SimulatedNetwork(network_settings(plan.experiment), plan.n, plan.experiment.seed)
    machines = [compose.machine_of(plan, node, initial[node], task.schema) for node in range(plan.n)]
    links = [partners_of(node, plan.mixing) for node in range(plan.n)]

    def rebirth(node: NodeId, _incarnation: int, saved: Checkpoint | None) -> Machine:
        return compose.machine_of(plan, node, initial[node], task.schema, saved)

    simulator = Simulator(machines, links, task, network, record, keeper, script=script, rebirth=rebirth)
    results: dict[NodeId, Vector] = simulator.run()
    return [results.get(node) for node in range(plan.n)], simulator.counts


def faults_of(plan: Plan) -> FaultScript:
    """The [[faults]] of a run.  Raises ConfigError for peers or links that are not there."""
    links = {(node, other) for node in range(plan.n) for other in partners_of(node, plan.mixing)}
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
