"""Parameter servers as processes: killed, gone on with, replayed; and what they give is never half of two steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets
from test_keyed_rows import clicks
from test_parameter_server import quadratic

from fedgossip import load_table, simulate
from fedgossip.algorithms.descent.row_filters import KEY_CACHE
from fedgossip.base.errors import FedgossipError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import Machine
from fedgossip.core.records import PeerRow, Row
from fedgossip.core.task import Job, Update
from fedgossip.drivers import peer_processes
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.peer_processes import PeerProcesses
from fedgossip.drivers.replay import replay_trace
from fedgossip.drivers.resume import resume
from fedgossip.experiment import load_experiment
from fedgossip.learning.analytic import Quadratic
from fedgossip.plans import compose
from fedgossip.plans.parallel.parameter_server import ServerPlan
from fedgossip.runs.trace import Opening, Trace, Traced

pytestmark = pytest.mark.sockets

RUNS = {
    "vector": quadratic(3, 2, rounds=6),
    "vector, async": quadratic(3, 2, rounds=6, server={"staleness": "async"}),
    "copies": quadratic(2, 3, rounds=4, server={"replication": 2}),
    "table": clicks(3, 2, rounds=6, server={"filters": [KEY_CACHE]}),
    "table, copies": clicks(2, 3, rounds=4, server={"replication": 2, "filters": [KEY_CACHE]}),
    "table, stale": clicks(3, 2, rounds=6, server={"staleness": 1, "filters": ["threshold:0.01"]}),
}


@pytest.mark.parametrize("name", RUNS)
def test_all_that_a_server_and_a_worker_were_told_replays_with_equal_bits(name: str, tmp_path: Path) -> None:
    """Also where no other run has these bits, for its order was the network's."""
    experiment = load_experiment(RUNS[name])
    plan = compose.plan(experiment)
    task, _ = compose.task_of(experiment, plan.learners)
    traces: dict[int, Trace] = {}
    turn = threading.Lock()

    def wrap(node: int, machine: Machine) -> Machine:
        about = Opening(node, 0, task.schema, "0", experiment.to_dict(), task.initial(node))
        with turn:
            traces[node] = Trace(tmp_path / f"{node}.bin", about, never)
        return Traced(machine, traces[node])

    results, _ = run_over_sockets(plan, task, wrap)
    for node, trace in traces.items():
        trace.close()
        replayed = replay_trace(trace.path)
        assert replayed.equal and replayed.digest == digest([results[node]]), node


def never(name: str, text: str) -> None:
    raise AssertionError(f"{name}: {text}")


@pytest.mark.parametrize("name", ["vector", pytest.param("table", marks=pytest.mark.long)])
def test_a_run_whose_server_was_killed_goes_on_with_resume_to_the_same_bits(name: str, tmp_path: Path) -> None:
    kinds = {"vector": quadratic, "table": clicks}
    experiment = kinds[name](3, 2, rounds=60, parallel={"deadline": 1.0, "least_deadline": 0.5})
    plan = compose.plan(load_experiment({**experiment, "eval": {"every": 30}}))
    with PeerProcesses(learning=False) as family:
        killed: list[int] = []

        def watch(row: Row) -> None:
            if isinstance(row, PeerRow) and row.round >= 10 and not killed:
                killed.append(family.pids[4])
                os.kill(family.pids[4], signal.SIGKILL)

        with pytest.raises(FedgossipError):
            run_local_plan(plan, tmp_path / "run", family=family, report=False, watch=watch)
    run = resume(tmp_path / "run")
    assert run.summary["status"] == "finished"
    undisturbed = simulate({**experiment, "eval": {"every": 30}})
    assert run.digest == undisturbed.digest and (run.table is None) == (name == "vector")
    if run.table is not None and undisturbed.table is not None:
        ours, theirs = load_table(tmp_path / "run").touched, undisturbed.table.touched
        assert np.array_equal(ours.keys, theirs.keys) and np.array_equal(ours.values, theirs.values)


COPIES = {
    "copies": (3, {"replication": 2}, [{"kind": "crash", "peers": [3], "start": 0.05, "after": 4.0}]),
    "no copies": (2, {}, []),
}
"""Number of servers, their section, and another server's crash: with copies, what follows from that is to be kept."""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("write", range(8))
@pytest.mark.parametrize("name", COPIES)
def test_a_server_killed_at_a_write_of_a_tenure_costs_no_result(
    name: str, write: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server 2 is killed where it keeps a round: where one copy of each shard is left, or there are no others."""
    monkeypatch.setattr(peer_processes, "NUMERIC", (*peer_processes.NUMERIC, "dying_at_a_write"))
    monkeypatch.setenv("DYING", f"2 {write} {tmp_path}")
    servers, server, faults = COPIES[name]
    # a round that closes at its deadline goes on without a worker, and reports it: here no tenure takes so long
    waits = {"deadline": 15.0, "least_deadline": 2.0}
    experiment = quadratic(2, servers, rounds=150, server=server, parallel=waits, eval={"every": 150})
    with PeerProcesses(learning=False) as family:
        plan, out = compose.plan(load_experiment({**experiment, "faults": faults})), tmp_path / "run"
        try:
            run = run_local_plan(plan, out, family=family, report=False)
        except FedgossipError as error:
            assert error.exit_code == 3 and "--resume" in error.advice
            run = resume(out)
    assert (tmp_path / "died").exists(), "it was killed there"
    undisturbed = digest([simulate(experiment).vectors[0]])
    assert not run.summary["lacking"], "all rounds have both workers"
    found = {digest([vector]) for vector in run.vectors[:2]}
    assert found == {undisturbed}, (run.summary["events"], (tmp_path / "died").read_text())


class Stamps(Quadratic):
    """Every gradient is ones, so all elements of a shard are equal after every step: unequal ones are of two steps."""

    def __init__(self, plan: ServerPlan, dim: int) -> None:
        super().__init__(plan.learners, dim, dtype=np.float32)
        self.ranges = [[*one.ranges] for one in plan.placement_of(dim).shards]
        self.torn: list[str] = []
        self.read = 0

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        for job in jobs:
            for ranges in self.ranges:
                parts = [job.vector[start:stop] for start, stop in ranges]
                ends = {float(end) for part in parts for end in (part.min(), part.max(), part[0], part[-1])}
                self.read += len(parts)
                self.torn += [f"worker {job.node}, round {job.round}: {ends}"] if len(ends) > 1 else []
        return [Update(frozen(np.ones(self.length, np.float32)), 1, {"loss": 0.0}) for _ in jobs]


def check_stamps(rounds: int, **server: Any) -> None:
    dim = 700_001  # several pieces a shard
    plan = compose.plan(load_experiment(quadratic(3, 2, rounds, server=server, task={"dim": dim})))
    assert isinstance(plan, ServerPlan)
    task = Stamps(plan, dim)
    vectors, _ = run_over_sockets(plan, task)
    assert task.torn == [] and task.read > 3 * rounds
    expected = -0.1 * rounds * (1 if server["staleness"] == 0 else 3)
    np.testing.assert_allclose(vectors[0], expected, rtol=1e-4)


@pytest.mark.parametrize("staleness", [0, "async"])
def test_no_range_of_a_shard_is_of_two_steps(staleness: Any) -> None:
    check_stamps(8, staleness=staleness)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_range_of_a_shard_is_of_two_steps_in_many_rounds() -> None:
    check_stamps(400, staleness="async")
