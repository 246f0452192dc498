"""Deterministic fault simulation of federated runs: a seed is an algorithm, a sampling, a network and faults.

python tests/federated_seeds.py SEED            one, and all that happened
python tests/federated_seeds.py FIRST LAST      a range, and a summary
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import fault_seeds
import numpy as np
from federation import SECOND, Federation

from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import BySize, Poisson, Sampling, Uniform
from fedgossip.base import seeds
from fedgossip.base.vectors import digest
from fedgossip.core.records import EventRow
from fedgossip.learning.analytic import Quadratic
from fedgossip.protocols.federated.buffered import BufferedSettings
from fedgossip.protocols.federated.coordinator import CoordinatorSettings
from fedgossip.simulation.network import NetworkSettings

ALGORITHMS = ["fedavg", "fedsgd", "scaffold", "scaffold", "fednova", "fedadam", "median", "clipped-mean"]
LONGEST = 3_600.0
"""Virtual seconds after which a run counts as hung."""


def scenario(seed: int) -> Federation:
    """3 to 9 clients, 4 to 12 rounds, up to four kinds of faults; the coordinator is hit as often as a client."""
    random = seeds.stream(seed, "federated scenario")
    n, rounds = int(random.integers(3, 10)), int(random.integers(4, 13))
    count = int(random.integers(2, n + 1))
    over = float(random.choice([1.0, 1.0, 1.3, 2.0]))
    if random.random() < 0.2:
        return _buffered(seed, random, n, rounds)
    clients = tuple(range(n))
    kinds: list[Sampling] = [
        Uniform(seed, clients, count, over),
        BySize(seed, {node: 1 + node for node in clients}, count, over),
        Poisson(seed, clients, 0.7),
    ]
    settings = CoordinatorSettings(
        rounds,
        min_clients=int(random.integers(1, count + 1)),
        deadline_ns=3 * SECOND,
        least_deadline_ns=SECOND // 5,
        start_ns=5 * SECOND,
        return_ns=SECOND,
        drain_ns=5 * SECOND,
        again_ns=SECOND // 4,
    )
    name = ALGORITHMS[int(random.integers(len(ALGORITHMS)))]
    sampling = kinds[int(random.integers(len(kinds)))]
    task = Quadratic(n, 2, placement="random", seed=seed)
    weather = _weather(random, n, rounds)
    return Federation(make(name, clients=n), task, n, sampling, settings, **weather, seed=seed)


def _buffered(seed: int, random: np.random.Generator, n: int, rounds: int) -> Federation:
    settings = BufferedSettings(
        rounds,
        goal=int(random.integers(1, n + 1)),
        at_once=int(random.integers(1, n + 1)),
        most_stale=int(random.integers(0, 5)),
        deadline_ns=SECOND,
        start_ns=5 * SECOND,
        drain_ns=5 * SECOND,
        again_ns=SECOND // 4,
        seed=seed,
    )
    task = Quadratic(n, 2, placement="random", seed=seed)
    of = make("fedavg", clients=n, weighting="clients")
    return Federation(of, task, n, settings=settings, **_weather(random, n, rounds), seed=seed)


def _weather(random: np.random.Generator, n: int, rounds: int) -> dict[str, Any]:
    network = NetworkSettings(
        latency=float(random.uniform(0, 0.05)),
        jitter=float(random.uniform(0, 0.05)),
        training=0.05,
        training_jitter=float(random.uniform(0, 2)),
        speed_spread=float(random.uniform(0, 0.5)),
        detection=float(random.uniform(0.1, 1.0)),
    )
    faults = [fault_seeds._fault(random, n + 1, rounds * 0.2) for _ in range(int(random.integers(0, 5)))]
    return {"network": network, "faults": faults}


@dataclass
class Outcome:
    seed: int
    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    unfinished: list[int] = field(default_factory=list)
    rounds: list[tuple[int, str]] = field(default_factory=list)
    """(round, digest of the model) as the coordinator reported them."""
    drift: float = 0.0
    """SCAFFOLD: how far c is from the mean of the clients' c_i."""

    @property
    def verdict(self) -> str:
        """Empty, or what is wrong."""
        if self.error:
            return self.error
        if self.unfinished:
            return f"nodes {self.unfinished} never ended"
        if refused := self.counts.get("refused"):
            return f"{refused} messages of honest nodes were refused"
        if [round for round, _ in self.rounds] != list(range(1, len(self.rounds) + 1)):
            return f"rounds {[round for round, _ in self.rounds]} were reported: one was lost, or done twice"
        if self.drift > 1e-9:
            return f"c is {self.drift:.1e} away from the mean of the c_i"
        return ""


def run(seed: int, federation: Federation | None = None) -> Outcome:
    of, outcome = federation or scenario(seed), Outcome(seed)
    try:
        results, simulator = of.run(LONGEST)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
        return outcome
    outcome.counts = simulator.counts
    outcome.unfinished = [node for node in range(of.n + 1) if node not in results and node not in simulator.dead]
    mixed = [report for node, report in of.told if node == of.n and report.name == "round_done"]
    outcome.rounds = [(report.round, digest([report.value])) for report in mixed]  # type: ignore[list-item]
    coordinator: Any = simulator.machines[of.n].machine  # type: ignore[attr-defined]
    if hasattr(coordinator.state, "c") and of.n not in simulator.dead:
        clients: list[Any] = [machine.machine for machine in simulator.machines[: of.n]]  # type: ignore[attr-defined]
        own = [remembered(client, coordinator.counted.get(client.node, -1)) for client in clients]
        outcome.drift = float(np.abs(sum(own) / of.n - coordinator.state.c).max())
    return outcome


def remembered(client: Any, counted: int) -> Any:
    """A client's c_i, as the coordinator knows it."""
    memory = client.pending if client.pending_round >= 0 and client.pending_round == counted else client.memory
    return memory[0] if memory else np.zeros(client.model.size)


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[-1])
    if first == last:
        of = scenario(first)
        outcome = run(first, of)
        for row in of.rows:
            if isinstance(row, EventRow):
                print(f"  node {row.peer}, round {row.round}: {row.name} {row.value if row.value is not None else ''}")
        print(of.of, of.sampling, of.settings, of.faults, outcome, outcome.verdict or "fine", sep="\n")
        return
    totals: Counter[str] = Counter()
    for seed in range(first, last):
        outcome = run(seed)
        totals.update(["seeds", *outcome.counts])
        if outcome.verdict:
            totals["wrong"] += 1
            print(f"seed {seed}: {outcome.verdict}; python tests/federated_seeds.py {seed}")
    print(dict(totals))


if __name__ == "__main__":
    main()
