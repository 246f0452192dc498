"""Milliseconds of one federated round in which nothing is learned, real processes, beside its floors, in one run.

    python benchmarks/fedavg_round.py [--clients 8] [--parameters 62000,1000000,10000000] [--rounds R] [--only ...]
                                      [--flower PYTHON]    a Python that has flwr: its older gRPC server plays too

The coordinator sends the model to every client, each sends a vector of the same size back at once, and they are added.
The contestants take turns (A B C A B C ...) because machines are noisy: only the ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field

from crew import Measured, SettlingRun, crew, machine, median, round_ms, rounds_elsewhere
from servers import CONTESTANTS

WARM = 3
"""Rounds before the counted ones: buffers are warm, connections at speed."""

TARGETS_MS = {62_000: 10, 1_000_000: 40, 10_000_000: 300}
"""Of the plain round of 8 clients, on a machine of two cores."""


@dataclass
class Score:
    """One contestant in one setting, over all its turns."""

    name: str
    n: int
    d: int
    ms: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    coordinator_cpu_seconds: float = 0.0
    gigabytes: float = 0.0
    peak_models: float | None = None

    def add(self, members: list[Measured]) -> None:
        coordinator = members[-1]
        self.ms += round_ms([coordinator])
        self.cpu_seconds += sum(member.cpu_seconds for member in members)
        self.coordinator_cpu_seconds += coordinator.cpu_seconds
        self.gigabytes += coordinator.bytes_sent / 1e9
        if coordinator.peak_above_idle is not None:
            self.peak_models = max(self.peak_models or 0.0, coordinator.peak_above_idle / (4 * self.d))

    def add_elsewhere(self, found: SettlingRun) -> None:
        self.ms += found.ms
        self.cpu_seconds += found.cpu_seconds
        self.gigabytes += len(found.ms) * 2 * self.n * 4 * self.d / 1e9

    @property
    def median_ms(self) -> float:
        return median(self.ms)


FLOWER = "Flower, gRPC"


def play(names: list[str], n: int, d: int, rounds: int, turns: int, flower: str) -> dict[str, Score]:
    """Let the contestants take turns; return their scores."""
    scores = {name: Score(name, n, d) for name in [*names, *([FLOWER] if flower else [])]}
    for _ in range(turns):
        for name in names:
            scores[name].add(crew(n + 1, lambda seat, name=name: CONTESTANTS[name](seat, d, WARM, rounds)))
        if flower:
            found = rounds_elsewhere(flower, "flower.py", clients=n, parameters=d, rounds=rounds)
            scores[FLOWER].add_elsewhere(found)
    return scores


def table(scores: dict[str, Score]) -> str:
    """Return the scores of one setting as text: medians, the coordinator's cost, and the ratios."""
    first = next(iter(scores.values()))
    target = f", target {TARGETS_MS[first.d]} ms plain" if first.d in TARGETS_MS and first.n == 8 else ""
    lines = [f"\n{first.n} clients, {first.d:,} float32 ({len(first.ms)} rounds each{target})"]
    floors = [scores[name] for name in ("TCP floor", "TCP, adding", "CURVE floor", FLOWER) if name in scores]
    heads = ["ms/round", "CPU s/GB", "coordinator's", "peak, models", *(f"x {floor.name}" for floor in floors)]
    lines.append(" " * 18 + "".join(f"{head:>15}" for head in heads))
    for s in scores.values():
        peak = f"{s.peak_models:.1f}" if s.peak_models is not None else "-"
        own = f"{s.coordinator_cpu_seconds / s.gigabytes:.2f}" if s.coordinator_cpu_seconds else "-"
        cells = [f"{s.median_ms:.1f}", f"{s.cpu_seconds / s.gigabytes:.2f}", own, peak]
        cells += [f"{s.median_ms / floor.median_ms:.2f}" for floor in floors]
        lines.append(f"{s.name:18}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="8", help="client processes, several by comma")
    parser.add_argument("--parameters", default="62000,1000000,10000000", help="float32 per vector, several by comma")
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds of each turn")
    parser.add_argument("--turns", type=int, default=3, help="how often each contestant has its turn")
    parser.add_argument("--only", default="", help="contestants, split at /")
    parser.add_argument("--flower", default="", metavar="PYTHON", help="a Python that has flwr")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = options.only.split("/") if options.only else list(CONTESTANTS)
    if unknown := [name for name in names if name not in CONTESTANTS]:
        parser.error(f"no contestant {unknown[0]!r}: {', '.join(CONTESTANTS)}")
    if not options.json:
        print(machine())
    for n in map(int, options.clients.split(",")):
        for d in map(int, options.parameters.split(",")):
            scores = play(names, n, d, options.rounds, options.turns, options.flower)
            if options.json:
                print(json.dumps([{**asdict(s), "median_ms": s.median_ms} for s in scores.values()]), flush=True)
            else:
                print(table(scores), flush=True)


if __name__ == "__main__":
    main()
