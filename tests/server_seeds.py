"""Parameter servers under faults: a seed is workers, servers, copies, a staleness, a network and a script of faults.

A worker's gradient is a power of BASE of its own, so the digits of the model's elements say how often its pushes count.

    python tests/server_seeds.py SEED            one seed, and all that happened
    python tests/server_seeds.py FIRST LAST      a range, and a line for each that went wrong
    python tests/server_seeds.py rows SEED ...   the same of tables, where a push counts in the rows that it has
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip import load_experiment
from fedgossip.algorithms.descent.row_filters import KEY_CACHE
from fedgossip.base import seeds
from fedgossip.base.keyed_rows import KeyedTable, Keys, frozen_keys
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.metrics import Network
from fedgossip.core.records import EventRow, Row
from fedgossip.core.task import Job, Update
from fedgossip.plans import compose
from fedgossip.plans.compose import faults_of, network_settings
from fedgossip.simulation.network import SimulatedNetwork
from fedgossip.simulation.simulator import Simulator

BASE = 64
LONGEST = 3_600.0
"""Virtual seconds after which a run counts as hung."""


class Counters:
    """Every worker's gradient is -BASE^worker in all elements, wherever it is taken: steps of 1 count them."""

    dtype = np.dtype(np.float64)
    schema = "counters"

    def __init__(self, length: int) -> None:
        self.length = length

    def initial(self, node: int) -> Vector:
        return frozen(np.zeros(self.length))

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        raise AssertionError("gradients alone are asked for")

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [Update(frozen(np.full(self.length, -float(BASE**job.node))), 1, {"loss": 0.0}) for job in jobs]

    def due(self, worker: int, rounds: int) -> npt.NDArray[np.int64]:
        """How often a worker's pushes are to count in each element."""
        return np.full(self.length, rounds)

    def mean(self, rounds: int, workers: int) -> npt.NDArray[np.float64]:
        """The sum of the means of all clocks: exact, for workers are a power of two."""
        total = sum(self.due(worker, rounds) * float(BASE**worker) for worker in range(workers))
        return np.asarray(total) / workers

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{"loss": 0.0} for _ in vectors]


class CountedRows(Counters):
    """The same in the rows of a table that a worker's clock needs: some of all, drawn anew for each."""

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__(rows)
        self.table, self.watched, self.seed = KeyedTable(rows, kind="float64"), frozen_keys(np.arange(rows)), seed
        self.schema = "counted rows"

    def keys(self, node: int, round: int, batches: int) -> Keys:
        draw = seeds.stream(self.seed, "rows", node, round)
        return frozen_keys(np.flatnonzero(draw.random(self.length) < draw.choice([0.0, 0.1, 0.6])))

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [Update(frozen(np.full(job.vector.size, -float(BASE**job.node))), 1, {"loss": 0.0}) for job in jobs]

    def due(self, worker: int, rounds: int) -> npt.NDArray[np.int64]:
        total = np.zeros(self.length, np.int64)
        for clock in range(rounds):
            total[self.keys(worker, clock, 1)] += 1
        return total


def scenario(seed: int, *, rows: bool = False) -> dict[str, Any]:
    """The experiment of a seed; of a table with more seldom one copy, for that is not what is new there."""
    random = seeds.stream(seed, "served rows" if rows else "served")
    workers, servers = int(random.choice([2, 4])), int(random.integers(1, 5))
    copies = int(random.integers(1, min(servers, 3) + 1))
    if rows and copies == 1:
        copies = min(servers, 2)
    staleness = [0, 0, 1, 3, "async"][int(random.integers(5))]
    rounds = int(random.integers(5, 16))
    everybody = workers + servers + (copies > 1)
    faults = [_fault(random, workers, servers, everybody, rounds * 0.1) for _ in range(int(random.integers(0, 5)))]
    return {
        "seed": seed,
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": int(random.integers(servers, 40)), "dtype": "float64"},
        "train": {"lr": 1.0},
        "eval": {"every": 1000},
        "parallel": {
            "method": "parameter-server",
            "workers": workers,
            "deadline": 20.0,
            "least_deadline": 0.5,
            "server": {
                "servers": servers,
                "replication": copies,
                "virtual_nodes": int(random.integers(1, 9)),
                "staleness": staleness,
                "filters": [KEY_CACHE] if rows and seed % 2 else [],
            },
        },
        "simulation": {
            "latency": float(random.uniform(0, 0.05)),
            "jitter": float(random.uniform(0, 0.05)),
            "training": 0.05,
            "training_jitter": float(random.uniform(0, 2)),
            "speed_spread": float(random.uniform(0, 0.5)),
            "detection": float(random.uniform(0.1, 1.0)),
        },
        "faults": faults,
    }


def _fault(random: np.random.Generator, workers: int, servers: int, n: int, length: float) -> dict[str, Any]:
    start = float(random.uniform(0, length))
    window = {"start": start, "stop": start + float(random.uniform(0.05, 1.5))}
    server, anyone = [workers + int(random.integers(servers))], [int(random.integers(n))]
    share, after = float(random.choice([0.05, 0.2, 0.5])), float(random.uniform(0.05, 3))
    order, cut = [int(node) for node in random.permutation(n)], int(random.integers(1, n))
    kinds: list[dict[str, Any]] = [
        {"kind": "drop", "probability": share, **window},
        {"kind": "drop", "probability": 0.05},
        {"kind": "duplicate", "probability": share},
        {"kind": "reorder", "seconds": 0.2, "probability": share},
        {"kind": "delay", "seconds": float(random.uniform(0, 1)), "probability": share, **window},
        {"kind": "flap", "seconds": float(random.uniform(0.1, 1)), "peers": anyone, **window},
        {"kind": "partition", "groups": [order[:cut], order[cut:]], **window},
        {"kind": "slow", "peers": [int(random.integers(workers))], "factor": 10.0, **window},
        {"kind": "sleep", "peers": anyone, **window},
        {"kind": "crash", "peers": server, "start": start, "after": after},
        {"kind": "crash", "peers": server, "start": start, "after": after},
        {"kind": "crash", "peers": server, "start": start},
        {"kind": "crash", "peers": anyone, "start": start, "after": after},
    ]
    return kinds[int(random.integers(len(kinds)))]


@dataclass
class Outcome:
    """What became of a seed."""

    seed: int
    content: dict[str, Any]
    rows: bool = False
    error: str = ""
    ended: str = ""
    counted: dict[int, tuple[int, int]] = field(default_factory=dict)
    """More, and fewer, times than a push of each worker is to count: the least and the most of all elements."""
    astray: float = 0.0
    """How far the model is from the sum of all means, where clocks have one step."""
    unfinished: list[int] = field(default_factory=list)
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    alike: bool = True

    @property
    def crashed(self) -> Counter[int]:
        return Counter(fault["peers"][0] for fault in self.content["faults"] if fault["kind"] == "crash")

    @property
    def may_fail(self) -> bool:
        """Whether faults were too many: all copies of something may have been lost at once, or a part for good."""
        parallel = self.content["parallel"]
        workers, server = parallel["workers"], parallel["server"]
        lost = sum(count for node, count in self.crashed.items() if workers <= node < workers + server["servers"])
        lost += sum(fault["kind"] in ("partition", "flap", "sleep") for fault in self.content["faults"]) if lost else 0
        for_good = any("after" not in fault for fault in self.content["faults"] if fault["kind"] == "crash")
        return lost >= server["replication"] if server["replication"] > 1 else for_good

    @property
    def verdict(self) -> str:
        """Empty, or what is wrong."""
        if self.error:
            return self.error
        if self.unfinished:
            return f"participants {self.unfinished} never ended"
        if self.seen["refused"]:
            return "messages of honest participants were refused"
        if self.ended:
            return "" if self.may_fail else f"ended with: {self.ended}"
        parallel = self.content["parallel"]
        if not self.alike:
            return "workers end with different models"
        sure = [w for w in range(parallel["workers"]) if w not in self.crashed and not self.seen["silent_workers"]]
        if parallel["server"]["staleness"] == 0:
            return f"off by {self.astray}" if self.astray and len(sure) == parallel["workers"] else ""
        wrong = {w: how for w, how in self.counted.items() if w in sure and how != (0, 0)}
        twice = {w: how for w, how in self.counted.items() if how[1] > 0}
        return f"pushes of workers count so much more than once: {wrong or twice}" if wrong or twice else ""


def run(seed: int, write: Any = lambda _: None, *, rows: bool = False, codec: str = "") -> Outcome:
    """Run a seed; no exception but our own errors is an outcome.  `codec`: of pushes, one that is exact for these."""
    content = scenario(seed, rows=rows)
    content["parallel"]["codec"] = codec
    outcome = Outcome(seed, content, rows)
    plan = compose.plan(load_experiment(content))
    task = CountedRows(content["task"]["dim"], seed) if rows else Counters(content["task"]["dim"])
    if isinstance(task, CountedRows):
        plan = plan.with_table(task.table)
    workers = plan.learners
    initial = task.initial(0)
    network = SimulatedNetwork(network_settings(plan.experiment, plan.n), plan.n, seed)
    machines = [plan.machine(node, initial, task.schema) for node in range(plan.n)]

    def note(row: Row) -> None:
        if isinstance(row, EventRow):
            outcome.seen[row.name] += 1
        write(row)

    simulator = Simulator(
        machines,
        [plan.partners(node) for node in range(plan.n)],
        task,
        network,
        Network(plan.n, plan.experiment.rounds, 1000, task.evaluate, watch_all=False, counted=plan.roles.counted),
        note,
        script=faults_of(plan),
        rebirth=lambda node, life, saved: plan.machine(node, initial, task.schema, saved, incarnation=life),
    )
    try:
        results = simulator.run(LONGEST)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
        return outcome
    outcome.seconds = simulator.now_ns / 1e9
    outcome.unfinished = [node for node in range(plan.n) if node not in results and node not in simulator.dead]
    there = [node for node in range(plan.n) if node not in outcome.crashed]  # others may come back when all is over
    failed = [simulator.failures[node] for node in there if node in simulator.failures]
    outcome.ended = failed[0].text if failed else ""
    models = [results[worker] for worker in range(workers) if worker in results and worker not in outcome.crashed]
    if models and not failed:
        rounds = plan.experiment.rounds
        due = [task.due(worker, rounds) for worker in range(workers)]
        outcome.alike = all(np.array_equal(model, models[0]) for model in models)
        outcome.astray = float(np.abs(models[0] - task.mean(rounds, workers)).max())
        off = [(models[0].astype(np.int64) // BASE**worker) % BASE - due[worker] for worker in range(workers)]
        outcome.counted = {worker: (int(one.min()), int(one.max())) for worker, one in enumerate(off)}
    return outcome


def main() -> None:
    rows = sys.argv[1] == "rows"
    first, last = int(sys.argv[1 + rows]), int(sys.argv[-1])
    if first == last:

        def show(row: Row) -> None:
            if isinstance(row, EventRow):
                print(f"  {row.peer}, round {row.round}: {row.name} {row.value if row.value is not None else ''}")

        print(scenario(first, rows=rows))
        outcome = run(first, show, rows=rows)
        print(outcome)
        print(outcome.verdict or "fine")
        return
    totals: Counter[str] = Counter()
    for seed in range(first, last):
        outcome = run(seed, rows=rows)
        totals["seeds"] += 1
        totals["ended before their time"] += bool(outcome.ended)
        totals["tenures"] += outcome.seen["tenure"]
        totals["servers and others killed"] += outcome.seen["crashed"]
        if outcome.verdict:
            totals["wrong"] += 1
            print(f"seed {seed}: {outcome.verdict}; python tests/server_seeds.py {'rows ' if rows else ''}{seed}")
    print(dict(totals))


if __name__ == "__main__":
    main()
