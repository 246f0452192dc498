"""Real processes in bad company, for minutes: killed one after the other, suspended, parted by a cable that is cut.

The short forms run always; those of minutes with --long.  Every message takes a while (`DELAYS`), so that a round
lasts about as long on every computer, a ninth of a second, and a run as long as its rounds say.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import alive

from fedgossip import simulate
from fedgossip.core.records import EventRow
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.peer_processes import PeerProcesses
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.runs.run_directory import Run

pytestmark = pytest.mark.sockets

PEERS = 8
ROUNDS_A_SECOND = 9
DELAYS = {"sync": 0.1, "async": 0.013}
"""Seconds that a message takes.  An asynchronous peer spreads its offers over eight of them and more."""

POINTS = 0.02
"""So much accuracy the faults may cost."""

LONG = pytest.mark.long


def learning(mode: str, seconds: float, *faults: dict[str, Any]) -> dict[str, Any]:
    """Eight peers with unlike shares of the digits, who learn for about `seconds` when nothing goes wrong."""
    return {
        "rounds": int(seconds * ROUNDS_A_SECOND),
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5, "min_size": 10}},
        "model": {"source": "mlp:64-32-10"},
        "train": {"lr": 0.1, "batch_size": 16, "local_steps": 5, "device": "cpu"},
        "topology": {"graph": "exponential", "n": PEERS},
        "algorithm": {"mode": mode, "deadline": 3.0, "least_deadline": 1.0, "start_timeout": 60.0},
        "eval": {"every": 20},
        "faults": [{"kind": "delay", "seconds": DELAYS[mode]}, *faults],
    }


@dataclass(frozen=True)
class Soaked:
    run: Run
    undisturbed: Run
    seconds: float
    """How long the same faults make it in the simulator, whose clock no other work of this machine holds up."""

    def events(self, name: str) -> list[EventRow]:
        return [row for row in self.run.rows if isinstance(row, EventRow) and row.name == name]

    def lost(self, which: str) -> float:
        """How much accuracy the faults cost: of the averaged model, or of the peers on average."""
        usual, now = self.undisturbed.accuracy[which], self.run.accuracy[which]
        assert usual is not None and now is not None
        return usual - now

    def __str__(self) -> str:
        told = Counter(row.name for row in self.run.rows if isinstance(row, EventRow))
        kept = {which: (self.undisturbed.accuracy[which], self.run.accuracy[which]) for which in self.run.accuracy}
        return f"{self.seconds:.0f} s, {self.run.summary['status']}, {kept}, {dict(told)}"


def soak(mode: str, seconds: float, out: Path, *faults: dict[str, Any]) -> Soaked:
    """Run with real processes and these faults, and undisturbed in the simulator; all processes end by themselves."""
    undisturbed, disturbed = simulate(learning(mode, seconds)), simulate(learning(mode, seconds, *faults))
    with PeerProcesses() as family:
        run = run_local_plan(
            compose.plan(load_experiment(learning(mode, seconds, *faults))), out, family=family, report=False
        )
        assert family.exited == dict.fromkeys(range(PEERS), 0)
    soaked = Soaked(run, undisturbed, disturbed.network()[-1].seconds)
    print(json.dumps(str(soaked)))
    return soaked


def kills(seconds: float) -> dict[str, Any]:
    """One is killed every five seconds, and back two seconds later; in the last five all are left in peace."""
    return {"kind": "crash", "start": 3.0, "every": 5.0, "after": 2.0, "stop": seconds - 5.0}


@pytest.mark.parametrize(
    ("mode", "seconds"),
    [
        pytest.param("sync", 12.0, marks=LONG),
        pytest.param("sync", 120.0, marks=[LONG, pytest.mark.timeout(600)]),
        pytest.param("async", 120.0, marks=[LONG, pytest.mark.timeout(600)]),
        pytest.param("sync", 600.0, marks=[LONG, pytest.mark.timeout(1800)]),
    ],
)
def test_one_killed_every_five_seconds_costs_less_than_two_points(mode: str, seconds: float, tmp_path: Path) -> None:
    soaked = soak(mode, seconds, tmp_path / "run", kills(seconds))
    assert soaked.run.summary["status"] == "finished" and soaked.events("hung") == soaked.events("died") == []
    assert len(soaked.events("crashed")) == len(soaked.events("restarted")) >= (seconds - 8) // 5
    assert soaked.lost("averaged") < POINTS and soaked.lost("mean_peer") < POINTS, str(soaked)
    assert soaked.seconds < 2 * seconds + 20


@pytest.mark.parametrize(
    ("mode", "asleep"),
    [
        ("async", 2.5),
        pytest.param("sync", 20.0, marks=LONG),
        pytest.param("async", 20.0, marks=LONG),
    ],
)
def test_one_suspended_costs_less_than_two_points(mode: str, asleep: float, tmp_path: Path) -> None:
    """Twenty seconds are longer than ZeroMQ's silence: its links break and are made again.

    Whoever was asleep has as long again to catch up, beside other work of the machine too.
    """
    seconds = 5.0 + 4 * asleep
    soaked = soak(mode, seconds, tmp_path / "run", {"kind": "sleep", "peers": [3], "start": 2.0, "seconds": asleep})
    assert soaked.run.summary["status"] == "finished" and soaked.events("hung") == soaked.events("died") == []
    assert [len(soaked.events(name)) for name in ("asleep", "awake")] == [1, 1]
    assert soaked.lost("averaged") < POINTS and soaked.lost("mean_peer") < POINTS, str(soaked)
    assert soaked.seconds < 2 * seconds + 20


class BackWhenAllHaveFinished(PeerProcesses):
    """Starts the one that is to come back when all others have ended."""

    returning: dict[str, Any] | None = None

    def start(self, spec: dict[str, Any]) -> None:
        if spec["resume"]:
            self.returning = spec
            self.exited.pop(spec["node"], None)  # as where it is started
        else:
            super().start(spec)

    def poll(self, timeout: float) -> None:
        super().poll(timeout)
        if self.returning and len(self.exited) == len(self.pids) - 1:
            spec, self.returning = self.returning, None
            super().start(spec)


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=LONG)])
def test_one_that_comes_back_when_all_have_finished_hangs_nobody(mode: str, tmp_path: Path) -> None:
    """It is killed about a second and a half before the end, and started when nobody is there any more."""
    crash = {"kind": "crash", "peers": [2], "start": 1.5, "after": 0.1}
    experiment = {
        "rounds": 60,
        "topology": {"graph": "ring", "n": 4},
        "task": {"kind": "averaging", "dim": 5},
        "algorithm": {"mode": mode, "deadline": 1.0, "least_deadline": 1.0},
        "faults": [{"kind": "delay", "seconds": DELAYS[mode] / 2}, crash],
    }
    family = BackWhenAllHaveFinished(learning=False)
    run = run_local_plan(compose.plan(load_experiment(experiment)), tmp_path / "run", family=family, report=False)
    told = {row.name: row.round for row in run.rows if isinstance(row, EventRow) and row.peer == 2}
    assert {"crashed", "restarted", "resumed"} <= told.keys() and "hung" not in told
    assert family.returning is None and not any(alive(pid) for pid in family.pids.values())
    assert run.summary["status"] in ("finished", "partial")
    assert [vector is None for vector in run.vectors][:2] == [False, False]
