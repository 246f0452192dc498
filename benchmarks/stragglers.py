"""Asynchrony pays: the time to the same loss with one peer ten times slower, synchronous over asynchronous.

    python benchmarks/stragglers.py [--peers 16] [--slower 10] [--rounds 60] [--real] [--json]

Digits, a softmax classifier, one epoch a round, virtual time: a round of training takes 50 ms, of the slow peer 500,
a message 5 ms.  The target is the test loss of the averaged model that the synchronous run ends with; what counts is
when each run had it for good.  An asynchronous peer may train LONGER times as many rounds until then; the slow one has
done a few when the others have done all.  Everything follows from the seed.

With --real they are processes, on a ring and a random 4-regular graph.  So that sixteen of them do not compete for the
processor, all training is stretched by sleeping, STRETCH times as long (a `slow` fault), and of the slow peer that many
times more.  The curve is then made of the rows that the peers write: the mean of all peers' newest training losses over
the seconds since each began; the slow one's is old by then, which is to the disadvantage of asynchrony.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from fedgossip import load_experiment, run_local
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.algorithms.gossip.push_sum import PushSum
from fedgossip.base.vectors import Vector, mean
from fedgossip.core.machine import Machine, NodeId, RoundDone
from fedgossip.core.metrics import Network
from fedgossip.core.records import PeerRow, Row
from fedgossip.core.task import LocalTask
from fedgossip.faults import FaultScript, Slow
from fedgossip.plans import compose
from fedgossip.protocols.gossip.async_gossip import AsyncGossip, AsyncSettings
from fedgossip.protocols.gossip.awaited_round import SyncSettings
from fedgossip.protocols.gossip.pairing import rule_of
from fedgossip.protocols.gossip.sync_gossip import SyncGossip
from fedgossip.protocols.push_sum.push_peer import PushSettings
from fedgossip.protocols.push_sum.push_sum import AsyncPushSum
from fedgossip.simulation.network import NS, NetworkSettings, SimulatedNetwork
from fedgossip.simulation.simulator import Simulator, Table
from fedgossip.topology import Topology, build, resolve

GRAPHS = ("ring", "regular:4", "complete")
SLOW: NodeId = 3
LOOKS_A_SECOND = 40
"""How often the averaged model is evaluated, in virtual time."""

LONGER = 3

REAL_GRAPHS = ("ring", "regular:4")
STRETCH = 60.0
"""Real training of a millisecond or two becomes a tenth of a second, nearly all of it sleep."""

SMOOTH = 3
"""A peer's loss is the mean of its newest few: one round's is that of ninety examples."""

Make = Callable[[NodeId], Machine]


@dataclass(frozen=True)
class Curve:
    """Test losses of the averaged model over virtual seconds."""

    seconds: list[float]
    losses: list[float]

    def reached(self, target: float) -> float | None:
        """The first second at which the loss is at most `target` and stays so; None where it never is."""
        above = [at for at, loss in enumerate(self.losses) if loss > target]
        after = above[-1] + 1 if above else 0
        return self.seconds[after] if after < len(self.seconds) else None


class Watched(Simulator):
    """A simulator that evaluates the average of all peers' newest models as time passes."""

    def watch(self, models: Sequence[Vector]) -> None:
        self.models, self.curve, self._next_ns = list(models), Curve([], []), 0

    def _close_round(self, node: NodeId, done: RoundDone) -> None:
        self.models[node] = done.model
        if self.now_ns >= self._next_ns:
            self._next_ns = self.now_ns + NS // LOOKS_A_SECOND
            (found,) = self.task.evaluate([mean(self.models)])
            self.curve.seconds.append(self.now_ns / NS)
            self.curve.losses.append(found["loss"])
        super()._close_round(node, done)

    _by_effect: ClassVar[Table] = {**Simulator._by_effect, RoundDone: _close_round}


def learn(make: Make, graph: Topology, task: LocalTask, rounds: int, slower: float) -> Curve:
    n = graph.n
    record = Network(n, rounds, 10**9, task.evaluate, watch_all=False)
    script = FaultScript([Slow(peers=(SLOW,), factor=slower)], n, 1) if slower > 1 else FaultScript((), n, 1)
    network = SimulatedNetwork(NetworkSettings(), n, 1)
    links = [graph.neighbours(node) for node in range(n)]
    run = Watched([make(i) for i in range(n)], links, task, network, record, lambda row: None, script=script)
    run.watch([task.initial(node) for node in range(n)])
    run.run()
    return run.curve


def contestants(graph: Topology, task: LocalTask, rounds: int) -> dict[str, Make]:
    """Each peer's machine, by method.  The deadline of the synchronous one is above the slow peer's training."""
    edges = [(int(u), int(v)) for u, v in graph.edges]
    mixing, push = build(graph), build(graph, "push")
    waiting, free, pushing = SyncSettings(rounds), AsyncSettings(LONGER * rounds), PushSettings(LONGER * rounds)

    def paired(rule: str) -> Make:
        return lambda i: AsyncGossip(
            i, graph.neighbours(i), rule_of(rule, i, 1, edges), DSGD(), task.initial(i), task.schema, free
        )

    return {
        "synchronous": lambda i: SyncGossip(i, mixing, DSGD(), task.initial(i), task.schema, waiting),
        "pairs, uniform": paired("uniform"),
        "pairs, matching": paired("matching"),
        "pairs, speed": paired("speed"),
        "push-sum": lambda i: AsyncPushSum(i, push, PushSum(), task.initial(i), task.schema, pushing),
    }


def measure(name: str, peers: int, rounds: int, slower: float) -> dict[str, float | None]:
    """Virtual seconds of each method to the loss that the synchronous run ends with."""
    graph = resolve(name, peers, seed=1)
    experiment = load_experiment({"rounds": LONGER * rounds, "topology": {"graph": name, "n": peers}})
    task, _ = compose.task_of(experiment, peers)
    curves = {
        method: learn(make, graph, task, LONGER * rounds, slower)
        for method, make in contestants(graph, task, rounds).items()
    }
    target = curves["synchronous"].losses[-1]
    return {"target loss": target, **{method: curve.reached(target) for method, curve in curves.items()}}


def curve_of(rows: Sequence[Row], peers: int) -> Curve:
    """Return the mean of all peers' newest losses, from when each has one."""
    newest: list[deque[float]] = [deque(maxlen=SMOOTH) for _ in range(peers)]
    curve = Curve([], [])
    told = [row for row in rows if isinstance(row, PeerRow) and row.loss is not None]
    for row in sorted(told, key=lambda row: row.seconds):
        newest[row.peer].append(row.loss or 0.0)
        if all(newest):
            curve.seconds.append(row.seconds)
            curve.losses.append(fmean(map(fmean, newest)))
    return curve


def learn_really(name: str, peers: int, rounds: int, slower: float, mode: str) -> Curve:
    """Let processes of this machine learn."""
    slowed = [{"kind": "slow", "factor": STRETCH}, {"kind": "slow", "peers": [SLOW], "factor": slower}]
    experiment = {
        "rounds": rounds,
        "topology": {"graph": name, "n": peers},
        "algorithm": {"mode": mode},
        "train": {"local_epochs": 1, "device": "cpu"},
        "eval": {"every": rounds},
        "faults": slowed,
    }
    with tempfile.TemporaryDirectory() as folder:
        return curve_of(run_local(experiment, Path(folder) / "run", report=False).rows, peers)


def measure_really(name: str, peers: int, rounds: int, slower: float) -> dict[str, float | None]:
    """Seconds of both modes to the loss that the synchronous run ends with."""
    synchronous = learn_really(name, peers, rounds, slower, "sync")
    asynchronous = learn_really(name, peers, LONGER * rounds, slower, "async")
    target = synchronous.losses[-1]
    found = {"synchronous": synchronous.reached(target), "pairs, uniform": asynchronous.reached(target)}
    return {"target loss": target, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--slower", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    run, graphs, loss = (measure_really, REAL_GRAPHS, "training") if options.real else (measure, GRAPHS, "test")
    results = {graph: run(graph, options.peers, options.rounds, options.slower) for graph in graphs}
    if options.json:
        print(json.dumps(results))
        return
    print(f"{options.peers} peers, one {options.slower:g} times slower; seconds to the synchronous run's loss")
    for graph, found in results.items():
        waited = found["synchronous"]
        print(f"\n{graph}, {loss} loss {found['target loss']:.4f}")
        for method, seconds in found.items():
            if method == "target loss":
                continue
            took = "never" if seconds is None else f"{seconds:7.2f} s"
            ratio = "" if seconds is None or waited is None else f"{waited / seconds:6.1f} x"
            print(f"  {method:16} {took:>10} {ratio}")


if __name__ == "__main__":
    main()
