"""A peer's memory stays flat with a dead neighbour: megabytes per 1000 rounds, over thousands of them.

    python benchmarks/memory_slope.py [--rounds 5000] [--peers 4] [--dim 25000] [--mode sync] [--json]

Real processes, everybody a neighbour of everybody; peer 0 is killed with SIGKILL in the first seconds and never comes
back.  The others' resident memory and open files are read from /proc (Linux) every 20 rounds.  The slope is that of a
straight line through the means of BLOCKS blocks, without the first WARM rounds, in which buffers and allocators reach
their size; its interval is that of Student's t at 95 %.  Anything kept per round would show: a model has 4 * dim bytes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crew import machine
from scipy import stats

from fedgossip.core.machine import NodeId
from fedgossip.core.records import EventRow, PeerRow, Row
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.peer_processes import PeerProcesses
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

DEAD: NodeId = 0
EVERY = 20
"""Rounds between two looks."""

WARM = 0.3
"""This share of the rounds comes first and is not counted."""

BLOCKS = 24
"""Looks that follow each other are alike; the means of so many blocks are less so."""


@dataclass(frozen=True)
class Look:
    round: int
    resident_mb: float
    files: int


@dataclass(frozen=True)
class Slope:
    """MB per 1000 rounds, the slope and half its 95 % interval; the peak in MB; open files at first and at most."""

    peer: NodeId
    slope: float
    interval: float
    peak_mb: float
    files_first: int
    files_most: int


def look(pid: int, round: int) -> list[Look]:
    """Read what a process holds; nothing where it has just ended."""
    about = Path(f"/proc/{pid}")
    try:
        lines = (line.split(":", 1) for line in (about / "status").read_text().splitlines())
        kib = int(dict(lines)["VmRSS"].split()[0])
        return [Look(round, kib * 1024 / 1e6, sum(1 for _ in (about / "fd").iterdir()))]
    except (OSError, KeyError):
        return []


def slope_of(peer: NodeId, looks: Sequence[Look]) -> Slope:
    counted = [one for one in looks if one.round >= WARM * looks[-1].round]
    table = np.array([(one.round, one.resident_mb) for one in counted])
    middles = np.array([block.mean(axis=0) for block in np.array_split(table, BLOCKS)])
    line = stats.linregress(middles[:, 0] / 1000, middles[:, 1])
    interval = float(stats.t.ppf(0.975, len(middles) - 2) * line.stderr)
    peak = max(one.resident_mb for one in looks)
    return Slope(peer, float(line.slope), interval, peak, counted[0].files, max(one.files for one in counted))


def measure(rounds: int, peers: int, dim: int, mode: str) -> tuple[list[Slope], dict[str, int]]:
    """Return the slope of every peer that lives, and how often what happened."""
    experiment: dict[str, Any] = {
        "rounds": rounds,
        "topology": {"graph": "complete", "n": peers},
        "task": {"kind": "averaging", "dim": dim},
        "algorithm": {"mode": mode, "deadline": 5.0, "start_timeout": 60.0},
        "eval": {"every": max(1, rounds // 10)},
        "faults": [{"kind": "crash", "peers": [DEAD], "start": 1.0}],
    }
    looks: dict[NodeId, list[Look]] = defaultdict(list)
    events: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory() as folder, PeerProcesses(learning=False) as family:

        def watch(row: Row) -> None:
            if isinstance(row, EventRow):
                events[row.name] += 1
                return
            if isinstance(row, PeerRow) and row.round % EVERY == 0 and row.peer != DEAD:
                looks[row.peer].extend(look(family.pids[row.peer], row.round))

        plan = compose.plan(load_experiment(experiment))
        run_local_plan(plan, Path(folder) / "run", family=family, report=False, watch=watch)
    return [slope_of(peer, seen) for peer, seen in sorted(looks.items())], dict(events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=25_000)
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    slopes, events = measure(options.rounds, options.peers, options.dim, options.mode)
    if options.json:
        print(json.dumps([asdict(one) for one in slopes]))
        return
    print(f"{machine()}\n{options.mode}, {options.rounds} rounds, peer {DEAD} dead; {events}")
    print(f"{'peer':>4} {'MB per 1000 rounds':>22} {'peak MB':>9} {'open files':>12}")
    for one in slopes:
        interval = f"{one.slope:+.4f} +- {one.interval:.4f}"
        print(f"{one.peer:>4} {interval:>22} {one.peak_mb:>9.1f} {one.files_first:>5} to {one.files_most:>3}")


if __name__ == "__main__":
    main()
