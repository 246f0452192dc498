"""Simulated populations of which a round invites a cohort: what the set-up costs, and what a round.

    python benchmarks/population.py [--clients 1000 10000 100000] [--cohort 50] [--turns 3] [--wide] [--json]

Softmax of 16 columns and 4 classes, made-up examples, one for each client, secure sums, whole machines in virtual time.
Every line is a process of its own, and a run of 23 rounds with a run directory and a report: CPU seconds between the
ends of two rounds, their median over the last 20; the rest of all CPU seconds for the set-up and the end; and the peak
of memory; medians over turns.  A round's ratio is to that of the smallest population: 1 where only the cohort costs.
`--wide`: rounds of a cohort of 1 000 with vectors of 650 elements, exact sums, too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from crew import machine, median

ROUNDS, FIRST = 23, 3
"""Number of rounds, and of those that are not counted."""

TESTED = 300
"""Number of examples of the test set, whatever the population: an evaluated round costs as much in each."""

SPARE = 10
"""Examples beyond: the test set has a share of each class, which is rounded."""


def population(clients: int, cohort: int, rounds: int, source: Path) -> dict[str, Any]:
    """Return the experiment of made-up examples."""
    return {
        "rounds": rounds,
        "data": {"source": f"npz:{source}", "test": TESTED / (clients + TESTED + SPARE)},
        "train": {"device": "cpu"},
        "coordinator": {"clients": clients, "cohort": cohort},
    }


def wide(clients: int, cohort: int, rounds: int, _source: Path) -> dict[str, Any]:
    """Return the experiment of long vectors and large cohorts."""
    task = {"kind": "quadratic", "dim": 650}
    return {"rounds": rounds, "task": task, "coordinator": {"clients": clients, "cohort": cohort}}


KINDS = {"softmax": population, "wide": wide}


def run_once(kind: str, clients: int, cohort: int, rounds: int, folder: Path) -> None:
    """Run it in this process; print CPU seconds of all and of a round, the peak of memory in MB, and the status."""
    from fedgossip import simulate
    from fedgossip.core.records import NetworkRow

    source = folder / f"examples-{clients}.npz"
    if kind == "softmax" and not source.exists():
        import numpy as np

        random, examples = np.random.default_rng(0), clients + TESTED + SPARE
        np.savez(source, x=random.standard_normal((examples, 16), np.float32), y=random.integers(0, 4, examples))
    began = time.process_time()
    place = Path(tempfile.mkdtemp(dir=folder))
    ends: list[float] = []

    def watch(row: object) -> None:
        if isinstance(row, NetworkRow):
            ends.append(time.process_time())

    run = simulate(KINDS[kind](clients, cohort, rounds, source), out=place / "run", report=True, watch=watch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    a_round = median([after - before for before, after in pairwise(ends[FIRST:])])
    print(json.dumps([time.process_time() - began, a_round, peak, run.summary["status"]]))


def measured(kind: str, clients: int, cohort: int, folder: Path) -> tuple[float, float, float]:
    """Return CPU seconds of a run in a process of its own, and of a round, and peak MB."""
    asked = [sys.executable, __file__, "--one", kind, str(clients), str(cohort), str(ROUNDS), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    seconds, a_round, peak, status = json.loads(done.stdout.splitlines()[-1])
    if status != "finished":
        raise SystemExit(f"{kind}, {clients} clients: the run is {status}")
    return seconds, a_round, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, *numbers, folder = options.one
        clients, cohort, rounds = map(int, numbers)
        return run_once(kind, clients, cohort, rounds, Path(folder))
    lines = [("softmax", clients, options.cohort) for clients in options.clients]
    lines += [("wide", options.clients[-1], min(1_000, options.clients[-1]))] if options.wide else []
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        turns: dict[tuple[str, int, int], list[tuple[float, float, float]]] = {line: [] for line in lines}
        for _ in range(options.turns):
            for line in lines:
                turns[line].append(measured(*line, Path(place)))
    first = None
    for (kind, clients, cohort), all_turns in turns.items():
        seconds, a_round, peak = (median(list(one)) for one in zip(*all_turns, strict=True))
        first = first or a_round
        rest = seconds - ROUNDS * a_round
        about = {"set-up": rest, "round": a_round, "ratio": a_round / first, "MB": peak}
        found[f"{kind} {clients} {cohort}"] = about
    if options.json:
        return print(json.dumps(found))
    print(machine())
    for name, about in found.items():
        kind, clients, cohort = name.split()
        print(
            f"{kind:8} {int(clients):9,} clients, cohort {cohort:>5}: set-up and end {about['set-up']:6.2f} CPU s, "
            f"a round {about['round'] * 1e3:7.1f} ms ({about['ratio']:.2f} x the first), "
            f"{about['MB']:6.0f} MB"
        )
    return None


if __name__ == "__main__":
    main()
