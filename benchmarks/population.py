"""Simulated populations of which a round invites a cohort: what the set-up costs, and what a round.

    python benchmarks/population.py [--clients 1000 10000 ...] [--cohort 50] [--turns 3] [--wide CLIENTS ...] [--json]

Softmax of 16 columns and 4 classes, made-up examples, one for each client, secure sums, whole machines in virtual time.
Every line is a process of its own, and a run of 23 rounds with a run directory and a report: CPU seconds between the
ends of two rounds, their median over the last 20; the rest of all CPU seconds for the set-up and the end; and the peak
of memory.  A round's ratio is to that of the smallest population: 1 where only the cohort costs.  Each line is printed
as it ends; with several turns, their medians at the end.
`--wide 1000 1000000`: runs of 8 rounds of these populations, with a cohort of 1 000 and vectors of 650 elements
(softmax of 64 columns and 10 classes), too.
`--beside PYTHON`: softmax in the clear too, and the same in pfl-research and in Flower's simulation, as far as that
Python has them (`other_populations`); they evaluate nothing and write no record.
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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from crew import machine, median

FIRST = 3
"""Number of rounds that are not counted."""

TESTED = 300
"""Number of examples of the test set, whatever the population: an evaluated round costs as much in each."""

SPARE = 10
"""Examples beyond: the test set has a share of each class, which is rounded."""


@dataclass(frozen=True)
class Shape:
    """The columns and classes of the examples, and the rounds of a run."""

    columns: int
    classes: int
    rounds: int


SHAPES = {"softmax": Shape(16, 4, 23), "wide": Shape(64, 10, 8), "clear": Shape(16, 4, 23)}
OTHERS = ("pfl", "flower")
SECONDS = 600
"""Maximum seconds of a run in another program."""


def population(shape: Shape, clients: int, cohort: int, source: Path, *, secure: bool) -> dict[str, Any]:
    """Return the experiment of made-up examples."""
    return {
        "rounds": shape.rounds,
        "data": {"source": f"npz:{source}", "test": TESTED / (clients + TESTED + SPARE)},
        "train": {"device": "cpu"},
        "coordinator": {"clients": clients, "cohort": cohort, "secure": {"on": secure}},
    }


def run_once(kind: str, clients: int, cohort: int, folder: Path) -> None:
    """Run it in this process; print CPU seconds of all and of a round, the peak of memory in MB, and the status."""
    from fedgossip import simulate
    from fedgossip.core.records import NetworkRow

    shape, source = SHAPES[kind], folder / f"{kind}-{clients}.npz"
    if not source.exists():
        import numpy as np

        random, examples = np.random.default_rng(0), clients + TESTED + SPARE
        x = random.standard_normal((examples, shape.columns), np.float32)
        np.savez(source, x=x, y=random.integers(0, shape.classes, examples))
        del x
    began = time.process_time()
    place = Path(tempfile.mkdtemp(dir=folder))
    ends: list[float] = []

    def watch(row: object) -> None:
        if isinstance(row, NetworkRow):
            ends.append(time.process_time())

    run = simulate(
        population(shape, clients, cohort, source, secure=kind != "clear"), out=place / "run", report=True, watch=watch
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    a_round = median([after - before for before, after in pairwise(ends[FIRST:])])
    print(json.dumps([time.process_time() - began, a_round, peak, run.summary["status"]]))


def measured(kind: str, clients: int, cohort: int, folder: Path) -> tuple[float, float, float]:
    """Return CPU seconds of a run in a process of its own, and of a round, and peak MB."""
    asked = [sys.executable, __file__, "--one", kind, str(clients), str(cohort), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    seconds, a_round, peak, status = json.loads(done.stdout.splitlines()[-1])
    if status != "finished":
        raise SystemExit(f"{kind}, {clients} clients: the run is {status}")
    return seconds, a_round, peak


def measured_elsewhere(python: str, kind: str, clients: int, cohort: int) -> tuple[float, float, float] | str:
    """Return the same of another program; a text if it is not there, or fails."""
    script = str(Path(__file__).with_name("other_populations.py"))
    about = {"program": kind, "clients": clients, "cohort": cohort, "rounds": SHAPES["clear"].rounds}
    asked = [python, script, *(word for name, value in about.items() for word in (f"--{name}", str(value)))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(asked, capture_output=True, text=True, env=environment, timeout=SECONDS, check=True)
    except subprocess.TimeoutExpired:
        return f"not ended in {SECONDS} s"
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip().splitlines()[-1][:200]
    seconds, a_round, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, a_round, peak


Line = tuple[str, int, int]
"""(kind, clients, cohort)."""


def described(line: Line, seconds: float, a_round: float, peak: float, first: float) -> dict[str, float]:
    rest = seconds - SHAPES.get(line[0], SHAPES["clear"]).rounds * a_round
    return {"set-up": rest, "round": a_round, "ratio": a_round / first, "MB": peak}


def printed(line: Line, about: dict[str, float], word: str) -> None:
    kind, clients, cohort = line
    print(
        f"{kind:8} {clients:9,} clients, cohort {cohort:>5,}, {word}: set-up and end {about['set-up']:6.2f} CPU s, "
        f"a round {about['round'] * 1e3:7.1f} ms ({about['ratio']:.2f} x the first), {about['MB']:6.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--wide", type=int, nargs="*", default=[], metavar="CLIENTS")
    parser.add_argument("--beside", default="", metavar="PYTHON", help="a Python that has pfl, or flwr with ray")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, clients, cohort, folder = options.one
        return run_once(kind, int(clients), int(cohort), Path(folder))
    lines: list[Line] = [("softmax", clients, options.cohort) for clients in options.clients]
    lines += [("wide", clients, min(1_000, clients)) for clients in options.wide]
    if options.beside:
        lines += [(kind, clients, options.cohort) for kind in ("clear", *OTHERS) for clients in options.clients]
    if not options.json:
        print(machine(), flush=True)
    turns: dict[Line, list[tuple[float, float, float]]] = {line: [] for line in lines}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(options.turns):
            for line in lines:
                if line not in turns:
                    continue
                found = measured_elsewhere(options.beside, *line) if line[0] in OTHERS else measured(*line, Path(place))
                if isinstance(found, str):
                    print(f"{line[0]}, {line[1]:,} clients: skipped, {found}", file=sys.stderr, flush=True)
                    del turns[line]
                    continue
                turns[line].append(found)
                if not options.json:
                    printed(line, described(line, *turns[line][-1], _first(turns, line[0], turn)), f"turn {turn + 1}")
    medians = {}
    for line, all_turns in turns.items():
        of_all = tuple(median(list(one)) for one in zip(*all_turns, strict=True))
        firsts = [_first(turns, line[0], turn) for turn in range(options.turns)]
        medians[line] = described(line, *of_all, median(firsts))
        if options.turns > 1 and not options.json:
            printed(line, medians[line], "medians")
    if options.json:
        print(json.dumps({" ".join(map(str, line)): about for line, about in medians.items()}))
    return None


def _first(turns: dict[Line, list[tuple[float, float, float]]], kind: str, turn: int) -> float:
    """Return a round's CPU seconds of the first line of this kind, in one turn."""
    return next(of_line[turn][1] for line, of_line in turns.items() if line[0] == kind)


if __name__ == "__main__":
    main()
