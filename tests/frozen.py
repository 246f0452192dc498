"""Runs whose bits and records are frozen: every method x simulator, stacked arrays, ZeroMQ, traces and faults.

    python tests/frozen.py            says what differs from tests/frozen.json
    python tests/frozen.py --write    freezes what there is now; the commit says which numbers moved, and why

The problems are quadratics in numpy alone, whose sums, products and roots are correctly rounded on every processor,
so that the digests hold wherever the suite runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import statistics_kit as kit

import fedgossip
from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.federated.names import ALGORITHMS
from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.core.records import NetworkRow, PeerRow, Row
from fedgossip.core.task import LocalTask
from fedgossip.experiment import MAPREDUCE

FILE = Path(__file__).with_name("frozen.json")
DISTANCES = ("consensus_distance", "consensus_before", "update_spread", "loss", "test_loss")
UNEVEN = {"training_jitter": 1.0, "speed_spread": 0.5, "jitter": 0.01}


def gossip(graph: str, n: int, *, dtype: str = "float32", **algorithm: Any) -> dict[str, Any]:
    task = {"kind": "quadratic", "dim": 7, "sigma": 0.1, "placement": "random", "dtype": dtype}
    return {
        "rounds": 12,
        "task": task,
        "topology": {"graph": graph, "n": n},
        "algorithm": {"deadline": 1e5, **algorithm},
    }


def federated(**coordinator: Any) -> dict[str, Any]:
    task = {"kind": "quadratic", "dim": 7, "sigma": 0.1, "placement": "random"}
    return {"rounds": 4, "task": task, "coordinator": {"clients": 8, **coordinator}}


def convex(rounds: int = 5, **coordinator: Any) -> dict[str, Any]:
    """Least squares: no logarithm and no exponential, so the same bits on every processor."""
    task = {"kind": "convex", "loss": "squares", "lam": 0.1}
    section = {"clients": 4, "algorithm": "cocoa", **coordinator, **OPEN}
    return {"rounds": rounds, "data": {"source": "diabetes"}, "task": task, "coordinator": section}


def parallel(method: str, workers: int = 5, **more: Any) -> dict[str, Any]:
    task = {"kind": "quadratic", "dim": 7, "sigma": 0.1, "placement": "random"}
    section = {"workers": workers, "method": method, **({} if method == MAPREDUCE else {"bucket": 24})}
    return {"rounds": 6, "task": task, "parallel": section, "train": {"lr": 0.1, **more}}


def by(run: dict[str, Any], codec: str) -> dict[str, Any]:
    return {**run, "parallel": {**run["parallel"], "codec": codec}}


def coded(codec: str, **more: Any) -> dict[str, Any]:
    return by(parallel("ring", **more), codec)


def outer(method: str, *, late: bool = False, **more: Any) -> dict[str, Any]:
    run = parallel(method)
    return {**run, "parallel": {**run["parallel"], "outer": {"lr": 0.7, "delay": int(late)}, **more}}


def fragments(count: int, **more: Any) -> dict[str, Any]:
    run = outer("ring", **more)
    return {**run, "parallel": {**run["parallel"], "outer": {**run["parallel"]["outer"], "fragments": count}}}


def served(servers: int, descent: str = "", **server: Any) -> dict[str, Any]:
    run = parallel("parameter-server")
    del run["parallel"]["bucket"]
    return {**run, "parallel": {**run["parallel"], "descent": descent, "server": {"servers": servers, **server}}}


OPEN = {"secure": {"on": False}}
LOSSY = [{"kind": "drop", "probability": 0.1}, {"kind": "crash", "peers": [2], "start": 0.3, "after": 0.2}]

ROUNDS: Mapping[str, dict[str, Any]] = {
    **{name: gossip("ring", 6, name=name) for name in METHODS if name != "choco"},  # by codecs, below
    "dsgd": gossip("ring", 6),
    "dsgd float64": gossip("star", 5, dtype="float64"),
    "dsgd directed": gossip("directed-exponential", 6),
    "dsgd one-peer-exponential": gossip("one-peer-exponential", 8),
    "dsgd el-oracle": gossip("el-oracle:3", 8),
    "dsgd base": gossip("base:2", 6),
    "push-sum": gossip("directed-exponential", 6, name="push-sum"),
    "window-doubling": gossip("window-doubling", 7, name="window-doubling"),
    "dsgd cta": gossip("ring", 6, options={"order": "cta"}),
    "d2": gossip("regular:4", 7, name="d2"),
    "dsgdm nesterov": gossip("ring", 6, name="dsgdm", options={"nesterov": True}),
    "slowmo": gossip("ring", 6, name="slowmo", options={"base": "gradient-tracking", "every": 4, "alpha": 0.9}),
    "diloco by top-k": gossip("ring", 6, name="diloco", options={"codec": "top-k:0.3"}),
    "diloco in fragments": gossip("ring", 6, name="diloco", options={"fragments": 3}),
    "diloco on pairs": gossip("random-matching", 6, name="diloco", options={"lr": 0.5, "beta": 0.8}),
    "push-diging": gossip("directed-exponential", 6, name="push-diging"),
    "push-sum mixed momentum": gossip("directed-exponential", 6, name="push-sum", options={"momentum": "mixed"}),
    "qg-dsgdm": gossip("one-peer-exponential", 8, name="qg-dsgdm"),
    "choco by top-k": gossip("ring", 6, name="choco", options={"codec": "top-k:0.3", "gamma": 0.2}),
    "choco by signs": gossip("ring", 6, name="choco", options={"codec": "sign", "gamma": 0.3}),
    "relaysgd": gossip("path", 6, name="relaysgd"),
    "relaysgd on a star": gossip("star", 5, name="relaysgd", dtype="float64"),
    "two-tap": gossip("ring", 6, name="two-tap", options={"slem": 2 / 3}),
    "private": gossip("regular:4", 8, private=True),
    **{name: parallel(name) for name in COLLECTIVES},
    "parameter-server": served(3),
    "parameter-server ftrl": served(2, descent="ftrl"),
    "parameter-server lars": served(2, placement="tensors", descent="lars"),
    "parameter-server by top-k": by(served(3), "top-k:0.3"),
    "parameter-server by signs and int8": by(served(2, replication=2, pull_codec="int8:4"), "sign"),
    MAPREDUCE: parallel(MAPREDUCE),
    "mapreduce by dgc": by(parallel(MAPREDUCE, momentum=0.9), "dgc:0.2:1"),
    "lbfgs": {
        **parallel(MAPREDUCE),
        "task": {"kind": "quadratic", "dim": 7, "placement": "random"},
        "parallel": {"workers": 5, "method": "lbfgs"},
    },
    "ring by top-k": coded("top-k:0.3"),
    "ring by random-k": coded("random-k:0.5"),
    "ring by dgc": coded("dgc:0.2:1", momentum=0.9),
    "ring by signs": coded("sign"),
    "ring outer": outer("ring"),
    "ring outer delayed": outer("ring", late=True),
    "ring outer by top-k": outer("ring", codec="top-k:0.3"),
    "ring outer in fragments": fragments(3),
    "ring outer in fragments delayed by top-k": fragments(2, late=True, codec="top-k:0.3"),
    "ring adamw": parallel("ring", optimizer="adamw", weight_decay=0.1),
    **{name: federated(algorithm=name, **OPEN) for name in ALGORITHMS if name != "cocoa"},
    "cocoa": convex(),
    "cocoa to a gap": convex(rounds=40, options={"aggregation": "average", "local": 3.0, "gap": 0.05}),
    "cohorts of five": federated(cohort=5, **OPEN),
    "poisson": federated(participation=0.6, sampling="poisson", **OPEN),
    "fedavg by top-k": federated(codec="top-k:0.3", cohort=5, **OPEN),
    "fedsgd by signs": federated(algorithm="fedsgd", codec="sign", **OPEN),
    "secure fedavg by random-k": federated(codec="random-k:0.5"),
    "secure fedavg": federated(),
    "secure scaffold": federated(algorithm="scaffold"),
    "secure fedadam": federated(algorithm="fedadam"),
    "secure fednova": federated(algorithm="fednova"),
}
"""Methods that go by rounds: the same bits in every driver."""

EVENTS: Mapping[str, dict[str, Any]] = {
    "async": gossip("ring", 6, mode="async"),
    "async by speed": {**gossip("complete", 6, mode="async", partner="speed", exchanges=2), "simulation": UNEVEN},
    "async push-sum": gossip("directed-exponential", 6, name="push-sum", mode="async"),
    "parameter-server async": {**served(2, staleness="async", damp=True), "simulation": UNEVEN},
    "parameter-server stale": {**served(2, staleness=2), "simulation": UNEVEN},
    "parameter-server async by bf16 and dgc": {
        **by(served(2, staleness="async", pull_codec="bf16"), "dgc:0.2:1"),
        "simulation": UNEVEN,
    },
    "fedbuff": {**federated(algorithm="fedbuff", **OPEN), "simulation": UNEVEN},
    "client budget": federated(privacy={"unit": "client", "max_epsilon": 1000.0}),
    "dsgd with losses and a crash": {**gossip("ring", 6, deadline=1.0, least_deadline=0.5), "faults": LOSSY},
    "choco with losses and a crash": {
        **gossip("ring", 6, name="choco", options={"codec": "sign", "gamma": 0.3}, deadline=1.0, least_deadline=0.5),
        "faults": LOSSY,
    },
    "relaysgd with losses and a crash": {
        **gossip("path", 6, name="relaysgd", deadline=1.0, least_deadline=0.5),
        "faults": LOSSY,
    },
    "push-sum with losses and a crash": {
        **gossip("ring", 6, name="push-sum", deadline=1.0, least_deadline=0.5),
        "faults": LOSSY,
    },
    "async with losses and a crash": {**gossip("ring", 6, mode="async", deadline=1.0), "faults": LOSSY},
    "ring of workers with losses and a crash": {**parallel("ring"), "faults": LOSSY},
    "outer by top-k with losses and a crash": {**outer("ring", codec="top-k:0.3"), "faults": LOSSY},
    "outer delayed with losses and a crash": {**outer("ring", late=True, codec="top-k:0.3"), "faults": LOSSY},
    "secure with a crash": {**federated(min_clients=5, deadline=3.0, least_deadline=0.5), "faults": LOSSY[1:]},
}
"""Runs that only the simulator has with the same bits: they follow virtual time."""


STATISTICS: Mapping[str, dict[str, Any]] = {
    "dsgd": kit.gossip(),
    "dsgdm": kit.gossip("dsgdm"),
    "slowmo": kit.gossip("slowmo", options={"every": 2}),
    "push-sum mixed momentum": kit.gossip("push-sum", "directed-exponential", options={"momentum": "mixed"}),
    "nna": kit.gossip(graph="complete", combine="nna"),
    "fedadam": kit.federated("fedadam"),
    "krum": kit.federated("krum"),
    "secure fedavgm by random-k": kit.federated("fedavgm", secure=True, codec="random-k:0.3"),
    "ring outer": kit.parallel(outer={"lr": 0.7}),
}
"""Runs of a model with running statistics, simulated and on stacked arrays."""


def frozen(experiment: dict[str, Any], engine: str, task: Callable[[int], LocalTask] | None = None) -> dict[str, Any]:
    """What is kept of a run: its digest, the bytes of every peer, and what each round measured."""
    run = fedgossip.simulate(experiment, engine=engine, task=task(6) if task else None)
    return {"digest": run.digest, "status": run.summary["status"], **recorded(run.rows)}


def recorded(rows: list[Row]) -> dict[str, Any]:
    """Bytes and payload sent by each peer in all, its rows, and distances and losses of the network by round."""
    peers = [row for row in rows if isinstance(row, PeerRow)]
    nodes = sorted({row.peer for row in peers})
    network = [row for row in rows if isinstance(row, NetworkRow)]
    return {
        "bytes_sent": [sum(row.bytes_sent for row in peers if row.peer == node) for node in nodes],
        "payload_sent": [sum(row.payload_sent for row in peers if row.peer == node) for node in nodes],
        "rounds": [sum(row.peer == node for row in peers) for node in nodes],
        "network": [[row.round, *(getattr(row, name) for name in DISTANCES)] for row in network],
    }


def cases() -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {f"{name} | stacked": (one, "stacked") for name, one in ROUNDS.items()}
    for engine in ("sim", "stacked"):
        found |= {f"statistics, {name} | {engine}": (one, engine, kit.CountingTask) for name, one in STATISTICS.items()}
    return {**found, **{f"{name} | sim": (experiment, "sim") for name, experiment in {**ROUNDS, **EVENTS}.items()}}


def kept() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return found


def main(write: bool) -> int:
    now = {name: frozen(*case) for name, case in cases().items()}
    if write:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(now.items()))
        FILE.write_text(f"{{\n{lines}\n}}\n")
        return 0
    before = kept()
    moved = [name for name in sorted({*now, *before}) if now.get(name) != before.get(name)]
    for name in moved:
        parts = {*now.get(name, {}), *before.get(name, {})}
        print(name, *sorted(p for p in parts if now.get(name, {}).get(p) != before.get(name, {}).get(p)))
    print(f"{len(now) - len(moved)} of {len(now)} as frozen")
    return int(bool(moved))


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
