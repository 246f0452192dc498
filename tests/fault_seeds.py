"""Deterministic fault simulation: a seed is a graph, an algorithm, a network and a script of faults.

Run one by hand, and see all that happened:

    python tests/fault_seeds.py SEED
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgossip import load_experiment
from fedgossip.base import seeds
from fedgossip.base.errors import FedgossipError
from fedgossip.core.machine import Checkpoint, Machine
from fedgossip.core.metrics import Network
from fedgossip.core.records import EventRow, Row
from fedgossip.plans import compose
from fedgossip.plans.compose import faults_of, network_settings
from fedgossip.protocols.push_sum.push_peer import PushPeer
from fedgossip.simulation.network import SimulatedNetwork
from fedgossip.simulation.simulator import Simulator

SCHEDULES = {
    "any": ["ring", "path", "star", "complete", "tree", "regular:3", "erdos-renyi:0.5", "two-cliques"],
    "dsgd": ["base:1", "base:2", "el-oracle:2", "random-matching"],
    "push-sum": ["one-peer-exponential", "directed-exponential", "el-oracle:2"],
}
MODES = [("dsgd", "sync"), ("dsgd", "sync"), ("dsgd", "async"), ("push-sum", "sync"), ("push-sum", "async")]
LONGEST = 3_600.0
"""Virtual seconds after which a run counts as hung."""


def scenario(seed: int) -> dict[str, Any]:
    """The experiment of a seed: 3 to 8 peers, 4 to 12 rounds, up to four kinds of faults at once."""
    random = seeds.stream(seed, "scenario")
    name, mode = MODES[int(random.integers(len(MODES)))]
    n = int(random.integers(3, 9))
    rounds = int(random.integers(4, 13))
    choices = SCHEDULES["any"] + (SCHEDULES[name] if mode == "sync" or name == "push-sum" else [])
    graph = choices[int(random.integers(len(choices)))]
    least = {"el-oracle:2": 4, "regular:3": 6, "two-cliques": 4}.get(graph, 3)
    n = max(n, least) + (n % 2 if graph in ("regular:3", "two-cliques") and n > least else 0)
    length = rounds * 0.1
    return {
        "seed": seed,
        "rounds": rounds,
        "task": {"kind": "averaging", "dim": 2, "dtype": "float64"},
        "topology": {"graph": graph, "n": n},
        "algorithm": {"name": name, "mode": mode, "deadline": 3.0, "least_deadline": 0.2},
        "eval": {"every": 1000},
        "simulation": {
            "latency": float(random.uniform(0, 0.05)),
            "jitter": float(random.uniform(0, 0.05)),
            "training": 0.05,
            "training_jitter": float(random.uniform(0, 2)),
            "speed_spread": float(random.uniform(0, 0.5)),
            "detection": float(random.uniform(0.1, 1.0)),
        },
        "faults": [_fault(random, n, length) for _ in range(int(random.integers(0, 5)))],
    }


def _fault(random: np.random.Generator, n: int, length: float) -> dict[str, Any]:
    start = float(random.uniform(0, length))
    window = {"start": start, "stop": start + float(random.uniform(0.05, 1.5))}
    peer = [int(random.integers(n))]
    share = float(random.choice([0.05, 0.2, 0.5]))
    cut = int(random.integers(1, n))
    order = [int(node) for node in random.permutation(n)]
    kinds: list[dict[str, Any]] = [
        {"kind": "drop", "probability": share, **window},
        {"kind": "drop", "probability": 0.05},
        {"kind": "duplicate", "probability": share},
        {"kind": "reorder", "seconds": 0.2, "probability": share},
        {"kind": "delay", "seconds": float(random.uniform(0, 1)), "probability": share, **window},
        {"kind": "flap", "seconds": float(random.uniform(0.1, 1)), "peers": peer, **window},
        {"kind": "partition", "groups": [order[:cut], order[cut:]], **window},
        {"kind": "slow", "peers": peer, "factor": 10.0, **window},
        {"kind": "sleep", "peers": peer, **window},
        {"kind": "crash", "peers": peer, "start": start},
        {"kind": "crash", "peers": peer, "start": start, "after": float(random.uniform(0.05, 2))},
    ]
    return kinds[int(random.integers(len(kinds)))]


@dataclass
class Outcome:
    """What became of a seed.

    `drift`: how far the mean has moved, in units of the initial spread, but for what crashed peers took with them and
    brought back.
    """

    seed: int
    error: str = ""
    drift: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    unfinished: list[int] = field(default_factory=list)
    crashed: bool = False
    rewound: bool = False
    """A peer came back, and which of its exchanges since its checkpoint count, both ends' notes decide; or one that
    had parcels on the way died; or two died between whom an exchange was open, which nobody is left to tell."""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """Empty, or what is wrong."""
        if self.error:
            return self.error
        if self.unfinished:
            return f"peers {self.unfinished} never ended"
        if refused := self.counts.get("refused"):
            return f"{refused} messages of honest peers were refused"
        reported = {"unsettled", "one_sided", "taken_back"} & self.counts.keys()
        if not (reported or self.rewound) and self.drift > 1e-5:
            return f"the mean moved by {self.drift:.1e} of the spread, and nothing was reported"
        return ""


def run(seed: int, write: Any = lambda _: None, keys: dict[str, Any] | None = None) -> Outcome:
    """Run a seed; no exception but our own errors is an outcome."""
    content = scenario(seed) | (keys or {})
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.n)
    initial = [task.initial(node) for node in range(plan.n)]
    network = SimulatedNetwork(network_settings(plan.experiment, plan.n), plan.n, seed)
    machines = [plan.machine(node, initial[node], task.schema) for node in range(plan.n)]
    lost: list[np.ndarray[Any, Any]] = []

    def reborn(node: int, life: int, saved: Checkpoint | None) -> Machine:
        machine = plan.machine(node, initial[node], task.schema, saved, incarnation=life)
        lost.append(mass(machine))
        return machine

    record = Network(plan.n, plan.experiment.rounds, 1000, task.evaluate, watch_all=False)
    simulator = Simulator(
        machines,
        [plan.schedule.partners(node) for node in range(plan.n)],
        task,
        network,
        record,
        write,
        script=faults_of(plan),
        rebirth=reborn,
        on_crash=lambda _node, machine: lost.append(-mass(machine)),
    )
    crashes = [fault for fault in content["faults"] if fault["kind"] == "crash"]
    back = any("after" in fault for fault in crashes)
    pushes, sync = content["algorithm"]["name"].startswith("push-"), content["algorithm"]["mode"] == "sync"
    rewound = (bool(crashes) and pushes) or (back and not sync) or len(crashes) > 1
    outcome = Outcome(seed, crashed=bool(crashes), rewound=rewound)
    try:
        results = simulator.run(LONGEST)
    except FedgossipError as error:
        outcome.error = "" if outcome.crashed else f"{type(error).__name__}: {error}"
        return outcome
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
        return outcome
    outcome.counts, outcome.seconds = simulator.counts, simulator.now_ns / 1e9
    outcome.unfinished = [node for node in range(plan.n) if node not in results and node not in simulator.dead]
    start = np.stack(initial)
    spread = float(np.sqrt(((start - start.mean(axis=0)) ** 2).sum(axis=1).mean()))
    held = [mass(simulator.machines[node]) if pushes else results[node] for node in results]
    moved = sum(held) - sum(lost, start.sum(axis=0))
    outcome.drift = float(np.linalg.norm(moved)) / plan.n / spread
    return outcome


def mass(machine: Any) -> np.ndarray[Any, Any]:
    """What a machine holds of the sum of all: its vector, and what it will add to it."""
    if isinstance(machine, PushPeer):
        return np.asarray(machine.learner.state.x)
    share = getattr(machine.learner.algorithm, "gamma", 1.0)  # of what is mixed, that moves the model
    return sum((share * repair[0] for repair in machine.learner.corrections), machine.learner.model)


def changes_missed(seeds: range, name: str, options_of: Callable[[int], Mapping[str, Any]]) -> int:
    """Run these seeds by a synchronous method that tells changes of models; return how many changes were missed.

    Left out are those of a graph that is not for it.  Raises AssertionError for a seed that does not end as it must.
    """
    missed = 0
    for seed in seeds:
        content = scenario(seed)
        if content["topology"]["graph"] not in SCHEDULES["any"]:
            continue
        algorithm = {**content["algorithm"], "name": name, "mode": "sync", "options": options_of(seed)}
        outcome = run(seed, keys={"algorithm": algorithm, "task": {**content["task"], "dim": 6}})
        assert not outcome.verdict, f"seed {seed}: {outcome.verdict}"
        missed += outcome.counts.get("change_missed", 0)
    return missed


def main() -> None:
    """Run one seed and print all of it; or, with two numbers, all seeds of a range and a summary."""
    first, last = int(sys.argv[1]), int(sys.argv[-1])
    if first == last:

        def show(row: Row) -> None:
            if isinstance(row, EventRow):
                print(f"  peer {row.peer}, round {row.round}: {row.name} {row.value if row.value is not None else ''}")

        print(scenario(first))
        outcome = run(first, show)
        print(outcome)
        print(outcome.verdict or "fine")
        return
    totals: Counter[str] = Counter()
    for seed in range(first, last):
        outcome = run(seed)
        totals["seeds"] += 1
        totals["crashed"] += outcome.crashed
        totals["unsettled"] += bool(outcome.counts.get("unsettled"))
        totals["unsettled without a crash"] += bool(outcome.counts.get("unsettled")) and not outcome.crashed
        totals["repaired"] += bool(outcome.counts.get("repaired"))
        totals["one_sided"] += bool(outcome.counts.get("one_sided"))
        if outcome.verdict:
            totals["wrong"] += 1
            print(f"seed {seed}: {outcome.verdict}; python tests/fault_seeds.py {seed}")
    print(dict(totals))


if __name__ == "__main__":
    main()
