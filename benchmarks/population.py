"""Simulated populations of which a round invites a cohort: what the set-up costs, and what a round.

    python benchmarks/population.py [--clients 1000 10000 100000] [--cohort 50] [--turns 3] [--wide] [--json]

Softmax of 16 columns and 4 classes, made-up examples, one for each client, secure sums, whole machines in virtual time.
Every line is a process of its own, and a run with a run directory and a report: CPU seconds of 3 rounds and of 13,
their difference for a round, the rest for the set-up, and the peak of memory; medians over the turns.  A round's ratio
is to that of the smallest population: 1 where only the cohort costs.  `--wide`: rounds of a cohort of 1 000 with
vectors of 650 elements, exact sums, too.
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
from pathlib import Path
from typing import Any

from crew import machine, median

FEW, MORE = 3, 13
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
    """Run it in this process; print CPU seconds, the peak of memory in MB, and the status."""
    from fedgossip import simulate

    source = folder / f"examples-{clients}.npz"
    if kind == "softmax" and not source.exists():
        import numpy as np

        random, examples = np.random.default_rng(0), clients + TESTED + SPARE
        np.savez(source, x=random.standard_normal((examples, 16), np.float32), y=random.integers(0, 4, examples))
    began = time.process_time()
    place = Path(tempfile.mkdtemp(dir=folder))
    run = simulate(KINDS[kind](clients, cohort, rounds, source), out=place / "run", report=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([time.process_time() - began, peak, run.summary["status"]]))


def measured(kind: str, clients: int, cohort: int, rounds: int, folder: Path) -> tuple[float, float]:
    """Return CPU seconds and peak MB of a run in a process of its own."""
    asked = [sys.executable, __file__, "--one", kind, str(clients), str(cohort), str(rounds), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    seconds, peak, status = json.loads(done.stdout.splitlines()[-1])
    if status != "finished":
        raise SystemExit(f"{kind}, {clients} clients: the run is {status}")
    return seconds, peak


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
                few, more = (measured(*line, rounds, Path(place)) for rounds in (FEW, MORE))
                turns[line].append((few[0], more[0], few[1]))
    first = None
    for (kind, clients, cohort), all_turns in turns.items():
        few, more, peak = (median(list(one)) for one in zip(*all_turns, strict=True))
        a_round = (more - few) / (MORE - FEW)
        first = first or a_round
        about = {"run": few, "set-up": few - FEW * a_round, "round": a_round, "ratio": a_round / first, "MB": peak}
        found[f"{kind} {clients} {cohort}"] = about
    if options.json:
        return print(json.dumps(found))
    print(machine())
    for name, about in found.items():
        kind, clients, cohort = name.split()
        print(
            f"{kind:8} {int(clients):9,} clients, cohort {cohort:>5}: {FEW} rounds {about['run']:6.2f} CPU s, set-up "
            f"{about['set-up']:6.2f}, a round {about['round'] * 1e3:7.1f} ms ({about['ratio']:.2f} x the first), "
            f"{about['MB']:6.0f} MB"
        )
    return None


if __name__ == "__main__":
    main()
