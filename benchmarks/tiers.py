"""The root of a tree of coordinators beside the coordinator of a flat run: bytes and CPU time of a secure round.

    python benchmarks/tiers.py [--clients 64 1000] [--leaves 8 25] [--parameters 10000] [--json]

For each number of clients one flat run, and one with so many leaf coordinators (of equal size, under a secure root).
All machines of a run are in one process and exchange messages by hand, in order, with the cryptography of real
participants: every signature, agreement and mask is computed; nothing is trained.  Of the last of two rounds, in which
keys have arrived ahead:

    in, out     MB on the wire that the root receives, and sends
    CPU         milliseconds of the root's machine, without sockets and disks
    a leaf      the same of the busiest leaf coordinator: in, out, ms
    all         CPU seconds of all machines together

A flat secure sum takes at most 1000 clients: of more there is no flat run.  Both runs must end with the same model.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from crew import machine

from fedgossip.base.seeds import stream
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import Event, Finish, NodeId, PeerJoined, Received, Send, Started, Train, Trained
from fedgossip.core.wire import wire_bytes
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan

ROUNDS = 2


class Costs:
    """Costs of each participant by round: bytes received and sent, and seconds of CPU time."""

    def __init__(self) -> None:
        self.received: dict[tuple[NodeId, int], int] = defaultdict(int)
        self.sent: dict[tuple[NodeId, int], int] = defaultdict(int)
        self.cpu: dict[tuple[NodeId, int], float] = defaultdict(float)

    def of(self, node: NodeId) -> dict[str, float]:
        """Return MB received and sent, and ms, of the last round."""
        last = node, ROUNDS - 1
        return {"in": self.received[last] / 1e6, "out": self.sent[last] / 1e6, "ms": 1000 * self.cpu[last]}


def run(clients: int, leaves: int, parameters: int) -> dict[str, Any]:
    """Return the costs of a run; `leaves` 0: flat."""
    section: dict[str, Any] = {"clients": clients, "min_clients": 3}
    if leaves:
        section["tiers"] = [{"clients": clients // leaves}, {"clients": leaves}]
    task = {"kind": "quadratic", "dim": parameters, "sigma": 0.1, "placement": "random"}
    plan = compose.plan(load_experiment({"rounds": ROUNDS, "task": task, "coordinator": section}))
    assert isinstance(plan, FederationPlan)
    initial = frozen(np.zeros(parameters, np.float32))
    update = [
        frozen(stream(1, "update", node).standard_normal(parameters).astype(np.float32)) for node in range(clients)
    ]
    machines = [plan.machine(node, initial, "layout", own=plan.simulated(node)) for node in range(plan.n)]
    costs, results, root = Costs(), dict[NodeId, Any](), plan.coordinator
    events: deque[tuple[NodeId, Event]] = deque((node, Started()) for node in range(plan.n))
    for coordinator in range(root, clients - 1, -1):  # those above are linked first
        members = plan.tree.group(coordinator).members
        events.extend((node, PeerJoined(coordinator)) for node in members)
        events.extend((coordinator, PeerJoined(node)) for node in members)
    while events:
        node, event = events.popleft()
        round = min(machines[root].round, ROUNDS - 1)  # type: ignore[attr-defined]
        if isinstance(event, Received):
            costs.received[node, round] += wire_bytes(event.message)
        began = time.process_time()
        effects = machines[node].handle(event, 0)
        costs.cpu[node, round] += time.process_time() - began
        for effect in effects:
            match effect:
                case Send(to, message):
                    costs.sent[node, round] += wire_bytes(message)
                    events.append((to, Received(node, message)))
                case Train(job):
                    events.append((node, Trained(job, update[node], 1, {"steps": 1, "loss": 1.0})))
                case Finish(result):
                    results[node] = result
    assert machines[root].round == ROUNDS and root in results, "the run did not end"  # type: ignore[attr-defined]
    busiest = max(range(clients, root), key=lambda node: costs.of(node)["ms"], default=None)
    return {
        "clients": clients,
        "leaves": leaves,
        "root": costs.of(root),
        "leaf": None if busiest is None else costs.of(busiest),
        "all": sum(seconds for (_, round), seconds in costs.cpu.items() if round == ROUNDS - 1),
        "digest": digest([results[root]]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--leaves", type=int, nargs="+", default=[8, 25])
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    found = []
    print(machine())
    for clients, leaves in zip(chosen.clients, chosen.leaves, strict=True):
        pair = [run(clients, several, chosen.parameters) for several in (0, leaves) if several or clients <= 1000]
        assert len({one["digest"] for one in pair}) == 1, "tiers end with another model than the flat run"
        found += pair
        for one in pair:
            root, leaf = one["root"], one["leaf"]
            below = f"; a leaf: in {leaf['in']:.2f}, out {leaf['out']:.2f}, {leaf['ms']:.0f} ms" if leaf else ""
            name = f"{clients} clients, {one['leaves']} leaves" if one["leaves"] else f"{clients} clients, flat"
            print(
                f"{name}: in {root['in']:.2f} MB, out {root['out']:.2f} MB, CPU {root['ms']:.0f} ms{below}; "
                f"all {one['all']:.1f} s"
            )
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
