"""Milliseconds of one synchronous gossip round on a ring of real processes, beside its floors, in one run.

    python benchmarks/gossip_round.py [--peers 4,8] [--parameters 1000000,10000000] [--rounds R] [--no-gloo] [--json]
                                      [--decentralizepy PYTHON]   a Python that has decentralizepy: it plays too

The contestants take turns (A B C A B C ...) because machines are noisy: only the ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field

from contestants import CONTESTANTS
from crew import Measured, SettlingRun, crew, machine, median, round_ms, rounds_elsewhere

WARM = 3
"""Rounds before the counted ones: buffers are warm, connections at speed."""


@dataclass
class Score:
    """One contestant in one setting, over all its turns."""

    name: str
    n: int
    d: int
    ms: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    gigabytes: float = 0.0
    faults: int = 0
    peak_models: float | None = None

    def add(self, members: list[Measured]) -> None:
        self.ms += round_ms(members)
        self.cpu_seconds += sum(m.cpu_seconds for m in members)
        self.gigabytes += sum(m.bytes_sent for m in members) / 1e9
        self.faults += sum(m.faults for m in members)
        peaks = [m.peak_above_idle for m in members if m.peak_above_idle is not None]
        if peaks:
            self.peak_models = max(self.peak_models or 0.0, max(peaks) / (4 * self.d))

    def add_elsewhere(self, found: SettlingRun) -> None:
        self.ms += found.ms
        self.cpu_seconds += found.cpu_seconds
        self.gigabytes += len(found.ms) * 2 * self.n * 4 * self.d / 1e9

    @property
    def median_ms(self) -> float:
        return median(self.ms)


DECENTRALIZEPY = "decentralizepy"


def play(names: list[str], n: int, d: int, rounds: int, turns: int, other: str) -> dict[str, Score]:
    """Let the contestants take turns; return their scores.  `other`: the Python that has decentralizepy, or empty."""
    scores = {name: Score(name, n, d) for name in [*names, *([DECENTRALIZEPY] if other else [])]}
    for _ in range(turns):
        for name in names:
            scores[name].add(crew(n, lambda seat, name=name: CONTESTANTS[name](seat, d, WARM, rounds)))
        if other:
            found = rounds_elsewhere(other, "decentralizepy_round.py", peers=n, parameters=d, rounds=rounds)
            scores[DECENTRALIZEPY].add_elsewhere(found)
    return scores


def table(scores: dict[str, Score]) -> str:
    """Return the scores of one setting as text: medians, cost, and the ratios."""
    first = next(iter(scores.values()))
    lines = [f"\n{first.n} processes, {first.d:,} float32 ({len(first.ms)} rounds each)"]
    heads = {"ms/round": 10, "CPU s/GB": 10, "faults/GB": 11, "peak, models": 14, "x TCP": 8, "x CURVE": 9, "x gloo": 9}
    heads |= {"x decentralizepy": 18} if DECENTRALIZEPY in scores else {}
    floors = {"TCP floor": 8, "CURVE floor": 9, "gloo all_reduce": 9}
    floors |= {DECENTRALIZEPY: 18} if DECENTRALIZEPY in scores else {}
    lines.append(" " * 18 + "".join(f"{head:>{width}}" for head, width in heads.items()))
    for s in scores.values():
        peak = f"{s.peak_models:.2f}" if s.peak_models is not None else "-"
        faults = f"{s.faults / s.gigabytes:.0f}" if s.faults else "-"
        cost = f"{s.cpu_seconds / s.gigabytes:>10.2f}{faults:>11}"
        over = {name: f"{s.median_ms / scores[name].median_ms:.2f}" if name in scores else "-" for name in floors}
        ratios = "".join(f"{over[name]:>{width}}" for name, width in floors.items())
        lines.append(f"{s.name:18}{s.median_ms:>10.1f}{cost}{peak:>14}{ratios}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="4,8", help="processes on the ring, several by comma")
    parser.add_argument("--parameters", default="1000000,10000000", help="float32 per vector, several by comma")
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds of each turn")
    parser.add_argument("--turns", type=int, default=3, help="how often each contestant has its turn")
    parser.add_argument("--only", default="", help="contestants by comma (the floors are always there)")
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--decentralizepy", default="", metavar="PYTHON", help="a Python that has decentralizepy")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [name for name in CONTESTANTS if not (options.no_gloo and name.startswith("gloo"))]
    if options.only:
        names = [name for name in names if name.endswith("floor") or name in options.only.split(",")]
    if not options.json:
        print(machine())
    for n in map(int, options.peers.split(",")):
        for d in map(int, options.parameters.split(",")):
            scores = play(names, n, d, options.rounds, options.turns, options.decentralizepy)
            if options.json:
                print(json.dumps([{**asdict(s), "median_ms": s.median_ms} for s in scores.values()]), flush=True)
            else:
                print(table(scores), flush=True)


if __name__ == "__main__":
    main()
