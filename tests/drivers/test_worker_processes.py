"""Workers of a collective as real processes that are killed: the others go on, and one that is started again joins."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_allreduce import quadratic

from fedgossip.base.errors import FedgossipError
from fedgossip.base.vectors import digest
from fedgossip.core.records import EventRow, PeerRow, Row
from fedgossip.drivers import peer_processes
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.peer_processes import PeerProcesses
from fedgossip.drivers.resume import resume
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.runs.run_directory import Run

pytestmark = pytest.mark.sockets


def killed(out: Path, nodes: Sequence[int], at_round: int, rounds: int, **more: Any) -> Run:
    """Run four workers; kill some by SIGKILL when the first of all has so many rounds behind it."""
    parallel = {"start_timeout": 20.0, **more.pop("parallel", {})}
    experiment = quadratic(4, more.pop("method", "ring"), rounds, parallel=parallel, eval={"every": rounds}, **more)
    with PeerProcesses(learning=False) as family:
        acted: list[int] = []

        def watch(row: Row) -> None:
            if isinstance(row, PeerRow) and row.round >= at_round and not acted:
                acted.extend(nodes)
                for node in nodes:
                    os.kill(family.pids[node], signal.SIGKILL)

        plan = compose.plan(load_experiment(experiment))
        return run_local_plan(plan, out, family=family, report=False, watch=watch)


def check(run: Run, gone: Sequence[int], rounds: int) -> None:
    ends = {digest([vector]) for node, vector in enumerate(run.vectors) if node not in gone and vector is not None}
    rows = [
        (row.round, row.peer) for row in run.rows if isinstance(row, PeerRow) and row.peer not in gone and row.round
    ]
    assert len(ends) == 1 and len(rows) == len(set(rows)) == rounds * (4 - len(gone))


@pytest.mark.parametrize(("method", "at"), [("ring", 5), ("halving-doubling", 37)])
def test_three_go_on_in_one_model_where_one_of_four_is_killed(tmp_path: Path, method: str, at: int) -> None:
    run = killed(tmp_path / "run", [2], at, 80, method=method)
    assert run.summary["status"] == "partial"
    check(run, [2], 80)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("at", range(1, 51))
def test_wherever_one_of_four_is_killed_three_go_on(tmp_path: Path, at: int) -> None:
    check(killed(tmp_path / "run", [at % 4], at, 60), [at % 4], 60)


def test_two_of_four_killed_at_once_end_the_run_with_code_7(tmp_path: Path) -> None:
    with pytest.raises(FedgossipError, match="more than half") as caught:
        killed(tmp_path / "run", [1, 2], 20, 100_000, parallel={"start_timeout": 2.0, "least_deadline": 0.5})
    assert caught.value.exit_code == 7


def test_a_worker_that_is_killed_and_started_again_takes_part_again(tmp_path: Path) -> None:
    """One of two is no more than half: however long that takes, the other waits for it."""
    faults = [{"kind": "crash", "peers": [1], "start": 0.02, "after": 0.2}]
    experiment = quadratic(2, rounds=300, faults=faults, eval={"every": 300})
    run = run_local_plan(compose.plan(load_experiment(experiment)), tmp_path / "run", report=False)
    named = [row.name for row in run.rows if isinstance(row, EventRow)]
    assert run.summary["status"] == "finished" and {"crashed", "restarted", "regrouped"} <= set(named)
    assert len({digest([vector]) for vector in run.vectors}) == 1
    assert [row.round for row in run.rows if isinstance(row, PeerRow) and row.peer == 0] == list(range(1, 301))


WRITES = 9
"""Writes of a worker from its stop for an agreement on: the view's checkpoint and counts, and some behind them."""


@pytest.mark.parametrize("write", [1, *(pytest.param(k, marks=pytest.mark.long) for k in range(WRITES) if k != 1)])
def test_a_worker_killed_at_a_write_of_a_regroup_costs_no_result(
    write: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 1 is killed, and worker 2 where they would go on as three: too few are left until it is started again."""
    monkeypatch.setattr(peer_processes, "NUMERIC", (*peer_processes.NUMERIC, "dying_at_a_write"))
    monkeypatch.setenv("DYING", f"2 {write} {tmp_path}")
    waits = {"start_timeout": 2.0, "deadline": 1.0, "least_deadline": 0.3}
    faults = [{"kind": "crash", "peers": [1], "start": 0.05}]
    experiment = quadratic(4, rounds=120, parallel=waits, faults=faults, eval={"every": 120}, train={"momentum": 0.9})
    plan, out = compose.plan(load_experiment(experiment)), tmp_path / "run"
    try:
        with PeerProcesses(learning=False) as family:
            run = run_local_plan(plan, out, family=family, report=False)
    except FedgossipError as error:
        assert error.exit_code == 7 and "more than half must be" in str(error) and "--resume" in error.advice
        run = resume(out)
    assert (tmp_path / "died").exists(), "it was killed there"
    vectors = [vector for vector in run.vectors if vector is not None]
    assert run.summary["status"] in ("finished", "partial") and run.summary["rounds"] == 120
    assert len(vectors) >= 2 and len({digest([vector]) for vector in vectors}) == 1


class LateProcesses(PeerProcesses):
    """Whoever is started again comes when all others have ended."""

    def start(self, spec: dict[str, Any]) -> None:
        while spec["resume"] and len(self.exited) < 3:
            self.poll(0.05)
        super().start(spec)


def test_a_worker_that_is_started_again_when_the_others_have_ended_is_not_waited_for(tmp_path: Path) -> None:
    faults = [{"kind": "crash", "peers": [2], "start": 0.02, "after": 0.1}]
    plan = compose.plan(load_experiment(quadratic(3, rounds=300, faults=faults, eval={"every": 300})))
    with LateProcesses(learning=False) as family:
        run = run_local_plan(plan, tmp_path / "run", family=family, report=False)
    assert run.summary["status"] == "partial"
    assert [(row.peer, row.name) for row in run.rows if isinstance(row, EventRow)][-1] == (2, "run_was_over")
