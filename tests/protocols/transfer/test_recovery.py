"""A life that has nothing of the one before begins with a neighbour's model, or with all others at the start."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import reports
from commands import experiment, finish, free_ports, start, wait_until

from fedgossip.base.vectors import Vector, digest, frozen
from fedgossip.core.machine import (
    Checkpoint,
    Finish,
    Fired,
    NodeId,
    PeerJoined,
    Received,
    RoundDone,
    Send,
    Started,
    Stopping,
)
from fedgossip.core.messages import Model, ModelChunk, ModelInfo, ModelQuery
from fedgossip.core.task import Job, LocalTask, Update
from fedgossip.experiment import checked
from fedgossip.faults import FaultScript
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan, network_settings
from fedgossip.plans.gossip.gossip import peer_of, recovers
from fedgossip.plans.plan import record_of
from fedgossip.protocols.state_transfer import Recovering
from fedgossip.simulation.network import SimulatedNetwork
from fedgossip.simulation.simulator import Simulator

KINDS: list[dict[str, Any]] = [{}, {"mode": "async"}, {"name": "push-sum"}, {"name": "push-sum", "mode": "async"}]
SECOND = 10**9


def plan_of(n: int = 6, rounds: int = 150, graph: str = "ring", **algorithm: Any) -> Plan:
    content = {
        "rounds": rounds,
        "topology": {"graph": graph, "n": n},
        "task": {"kind": "quadratic", "dim": 4},
        "train": {"lr": 0.1},
        "algorithm": {"deadline": 5.0, "least_deadline": 5.0, "start_timeout": 30.0, **algorithm},
        "faults": [{"kind": "crash", "peers": [min(2, n - 1)], "start": 3.0, "after": 1.0}],
    }
    return compose.plan(checked(content, "test"))


def task_of(plan: Plan) -> LocalTask:
    return compose.task_of(plan.experiment, plan.learners)[0]


class Pulled:
    """All learn the same: each training goes a twentieth of the way to ten, from nought."""

    length, dtype, schema = 4, np.dtype(np.float64), "s"

    def initial(self, node: NodeId) -> Vector:
        return frozen(np.zeros(4))

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        return [Update(frozen(0.05 * (10.0 - job.vector)), 1, {}) for job in jobs]

    def evaluate(self, vectors: Sequence[Vector]) -> list[dict[str, float]]:
        return [{} for _ in vectors]


def crashed(plan: Plan, *, recover: bool) -> tuple[Simulator, list[Any], dict[NodeId, list[Vector]]]:
    """Run it; peer 2 dies, and comes back with nothing.  `recover` False: as if nobody gave it anything."""
    task = Pulled()
    initial = [task.initial(node) for node in range(plan.n)]
    mixed: dict[NodeId, list[Vector]] = {}

    def made(node: NodeId, life: int = 0) -> Any:
        make: Callable[..., Any] = peer_of if recover else lambda p, *args, **keys: p.machine(*args, **keys)
        return Watched(make(plan, node, initial[node], task.schema, None, incarnation=life), mixed.setdefault(node, []))

    rows: list[Any] = []
    simulator = Simulator(
        [made(node) for node in range(plan.n)],
        [plan.partners(node) for node in range(plan.n)],
        task,
        SimulatedNetwork(network_settings(plan.experiment, plan.n), plan.n, 1),
        record_of(plan, task.evaluate, watch_all=False),
        rows.append,
        script=FaultScript(plan.experiment.faults, plan.n, 1),
        rebirth=lambda node, life, _saved: made(node, life),  # the disk is gone too
    )
    simulator.run()
    return simulator, rows, mixed


class Watched:
    """Notes what is mixed."""

    def __init__(self, machine: Any, mixed: list[Vector]) -> None:
        self.machine, self.mixed = machine, mixed

    def handle(self, event: Any, now_ns: int) -> Any:
        effects = self.machine.handle(event, now_ns)
        self.mixed += [e.model for e in effects if isinstance(e, RoundDone)]
        return effects


def set_back(mixed: list[Vector]) -> float:
    """The largest step away from ten."""
    away = [abs(float(vector[0]) - 10.0) for vector in mixed]
    return max(after - before for before, after in itertools.pairwise(away))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()) or "sync")
def test_one_that_lost_everything_does_not_set_its_neighbours_back(kind: dict[str, Any]) -> None:
    plan = plan_of(**kind)
    simulator, rows, mixed = crashed(plan, recover=True)
    fetched = [row for row in rows if getattr(row, "name", "") == "fetched"]
    assert [row.peer for row in fetched] == [2] and fetched[0].value["model_of_round"] > 10
    assert set(simulator.results) == set(range(plan.n))
    with np.errstate(all="ignore"):  # push-sum does not survive it
        _, _, bare = crashed(plan, recover=False)
    for node in (1, 3):
        assert set_back(mixed[node]) < 0.1 * set_back(bare[node])


# --- one machine ------------------------------------------------------------------------------------------------------


def lost(plan: Plan, node: NodeId = 0) -> Recovering:
    task = task_of(plan)
    made = peer_of(plan, node, task.initial(node), task.schema, None, incarnation=1)
    assert isinstance(made, Recovering)
    return made


def test_where_all_are_at_the_start_it_begins_at_once_with_the_first_model() -> None:
    peer = lost(plan_of())
    peer.handle(Started(), 0)
    sent = [*peer.handle(PeerJoined(1, 0), 0), *peer.handle(PeerJoined(5, 0), 0)]
    assert [(e.to, type(e.message)) for e in sent if isinstance(e, Send)] == [(1, ModelQuery), (5, ModelQuery)]
    assert peer.handle(Received(1, ModelInfo(0, "a")), 1) == [] and peer.seeking
    effects = peer.handle(Received(5, ModelInfo(0, "b")), 1)
    assert not peer.seeking and effects and "fetched" not in reports(effects)


def test_two_neighbours_that_both_lost_everything_do_not_wait_for_each_other() -> None:
    plan = plan_of(n=2, graph="complete")
    peers = {node: lost(plan, node) for node in (0, 1)}
    queue = [(node, event) for node in (0, 1) for event in (Started(), PeerJoined(1 - node, 1))]
    while queue:
        node, event = queue.pop(0)
        for effect in peers[node].handle(event, 0):  # type: ignore[arg-type]
            if isinstance(effect, Send):
                queue.append((effect.to, Received(node, effect.message)))  # type: ignore[arg-type]
    assert not any(peer.seeking for peer in peers.values())


def test_where_nobody_gives_anything_it_begins_anew_after_a_while_and_says_so() -> None:
    peer = lost(plan_of())
    (*_, timer) = peer.handle(Started(), 0)
    assert timer.key == ("transfer", "patience") and timer.after_ns == 5 * SECOND  # type: ignore[union-attr]
    peer.handle(PeerJoined(1, 0), 0)
    effects = peer.handle(Fired(("transfer", "patience")), 5 * SECOND)
    assert "began_anew" in reports(effects) and not peer.seeking


def test_what_neighbours_say_meanwhile_is_heard_when_it_begins() -> None:
    plan = plan_of()
    peer, model = lost(plan), frozen(np.full(4, 3.0, task_of(plan).dtype))
    schema = peer.giver.schema
    peer.handle(Started(), 0)
    for node in (1, 5):
        peer.handle(PeerJoined(node, 0), 0)
        for round in (19, 20):
            assert peer.handle(Received(node, Model(round, schema, (model,))), 0) == []
    peer.handle(Received(1, ModelInfo(20, digest([model]))), 0)
    peer.handle(Received(5, ModelInfo(20, digest([model]))), 0)
    peer.handle(Fired(("transfer", "gather")), 0)
    effects = peer.handle(Received(1, ModelChunk(20, digest([model]), 0, schema, (model,))), 0)
    assert "fetched" in reports(effects) and not peer.seeking
    gossip: Any = peer.gossip
    assert gossip.round == 20 and all(gossip.mailbox.rounds(node) == [20] for node in (1, 5))
    (have,) = peer.handle(Received(1, ModelQuery()), 0)
    assert have == Send(1, ModelInfo(20, digest([model])))


def test_one_that_is_stopped_while_it_seeks_ends() -> None:
    peer = lost(plan_of())
    peer.handle(Started(), 0)
    effects = peer.handle(Stopping(), 0)
    assert any(isinstance(effect, Finish) for effect in effects)


def test_a_bad_offer_or_piece_costs_itself_only() -> None:
    peer = lost(plan_of())
    peer.handle(Started(), 0)
    peer.handle(PeerJoined(1, 0), 0)
    assert reports(peer.handle(Received(1, ModelInfo(2**40, "x")), 0)).keys() == {"refused"}
    peer.handle(Received(1, ModelInfo(20, "x")), 0)
    for _ in range(4):
        peer.handle(Fired(("transfer", "gather")), 0)
    wrong = ModelChunk(20, "x", 0, peer.giver.schema, (frozen(np.zeros(3, np.float32)),))
    assert reports(peer.handle(Received(1, wrong), 0)).keys() == {"refused"} and peer.seeking


@pytest.mark.parametrize(
    ("algorithm", "graph", "whether"),
    [
        ({}, "ring", True),
        ({"name": "window-doubling"}, "window-doubling", False),
        ({"private": True}, "complete", False),
    ],
)
def test_whose_model_may_be_given(algorithm: dict[str, Any], graph: str, *, whether: bool) -> None:
    plan = plan_of(n=4, graph=graph, **algorithm)
    assert recovers(plan) == whether


def test_a_life_that_has_a_checkpoint_asks_nobody() -> None:
    plan = plan_of()
    task = task_of(plan)
    kept: Checkpoint = plan.resume_point(9, task.initial(0))  # type: ignore[union-attr]
    peer = peer_of(plan, 0, task.initial(0), task.schema, kept, incarnation=1)
    assert isinstance(peer, Recovering) and not peer.seeking


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.sockets
@pytest.mark.long
def test_a_real_peer_that_was_killed_before_its_first_checkpoint_begins_with_a_neighbours_model(tmp_path: Path) -> None:
    more = "[algorithm]\ndeadline = 5.0\n"
    experiment(tmp_path, n=3, rounds=100_000, graph="complete", more=more)
    blocks = []
    for node, port in enumerate(free_ports(3)):
        words = ["keys", "new", "--out", f"{node}.key", "--id", str(node), "--address", f"tcp://127.0.0.1:{port}"]
        blocks.append(finish(start(words, tmp_path)).out)
    (tmp_path / "endpoints.toml").write_text("\n".join(blocks))

    def peer(node: int, *more: str) -> subprocess.Popen[str]:
        words = ["--id", str(node), "--key", f"{node}.key", "--endpoints", "endpoints.toml", "--out", f"out{node}"]
        return start(["peer", "experiment.toml", *words, *more], tmp_path)

    def rows(node: int) -> list[dict[str, Any]]:
        path = tmp_path / f"out{node}" / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def reached(node: int) -> int:
        return max((row["round"] for row in rows(node) if row["kind"] == "peer"), default=0)

    peers = [peer(node) for node in range(3)]
    try:
        wait_until(lambda: min(map(reached, range(3))) > 20, 60, "all learn")
        peers[2].kill()
        finish(peers[2])
        for kept in (tmp_path / "out2").glob("checkpoint*"):  # on a busy machine there may be one already
            kept.unlink()
        again = finish(peer(2))
        assert again.code == 2 and "not empty" in again.err and "--resume" in again.err
        peers.append(peer(2, "--resume"))
        fetched = lambda: [row["value"] for row in rows(2) if row["kind"] == "event" and row["name"] == "fetched"]  # noqa: E731
        wait_until(fetched, 60, "2 has a neighbour's model")
        assert fetched()[0]["model_of_round"] > 20
        behind = reached(0)
        wait_until(lambda: reached(2) > behind, 60, "2 learns with the others")
    finally:
        for process in peers:
            process.kill()
            finish(process)
