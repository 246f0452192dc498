"""The record of a run on stacked arrays: the rows of the simulator, and no more work than the arcs of its graphs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from frozen import ROUNDS, gossip

import fedgossip
from fedgossip.algorithms.gossip.base import Step
from fedgossip.base.errors import ConfigError
from fedgossip.core import metrics
from fedgossip.core.messages import Accepted
from fedgossip.core.records import NetworkRow, PeerRow, Row
from fedgossip.core.task import Update
from fedgossip.core.wire import wire_bytes
from fedgossip.simulation.stacked import stacked_step
from fedgossip.topology import build, resolve
from fedgossip.topology.schedules.schedules import Random

GOSSIP = [name for name, content in ROUNDS.items() if "topology" in content]
CARRIED = ("bytes_sent", "bytes_received", "payload_sent", "payload_received")


def peers(rows: list[Row]) -> list[PeerRow]:
    return [row for row in rows if isinstance(row, PeerRow)]


def network(rows: list[Row]) -> list[NetworkRow]:
    return [row for row in rows if isinstance(row, NetworkRow)]


def carried(rows: list[Row]) -> dict[tuple[int, str], int]:
    found: Counter[tuple[int, str]] = Counter()
    for row in peers(rows):
        found.update({(row.peer, name): getattr(row, name) for name in CARRIED})
    return found


def test_the_step_of_all_nodes_has_the_rates_and_steps_that_each_tells() -> None:
    told: list[dict[str, float]] = [{"rate": 0.5, "steps": 3}, {}, {"rate": 0.25, "loss": 1.0}]
    for metrics_of in (told, [{}, {}]):
        step = stacked_step(7, [Update(None, 1, one) for one in metrics_of], np.dtype(np.float32))
        each = [Step.of(7, one) for one in metrics_of]
        assert step.round == 7 and step.rate.dtype == step.steps.dtype == np.float32
        assert step.rate.tolist() == [[one.rate] for one in each] and step.steps.tolist() == [[s.steps] for s in each]


@pytest.mark.parametrize("name", GOSSIP)
def test_peers_send_and_receive_the_bytes_of_the_simulator(name: str) -> None:
    stacked = carried(fedgossip.simulate(ROUNDS[name], engine="stacked").rows)
    simulated = carried(fedgossip.simulate(ROUNDS[name]).rows)
    if name.startswith("push-"):  # the last shares are accepted when the last round is over: in no row of the simulator
        topology = build(resolve("directed-exponential", 6), "push")
        for peer in range(6):
            simulated[peer, "bytes_received"] += wire_bytes(Accepted(11)) * len(topology.targets(peer))
    assert stacked == simulated
    assert all(stacked[peer, "bytes_received"] > 0 for peer, _ in stacked)


def test_a_large_network_has_rows_of_peers_in_evaluated_rounds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {**gossip("el-oracle:3", 8), "eval": {"every": 5}}
    every = fedgossip.simulate(content, engine="stacked").rows
    monkeypatch.setattr(metrics, "PEERS_IN_EVERY_ROUND", 7)
    few = fedgossip.simulate(content, engine="stacked").rows
    assert {row.round for row in peers(every)} == set(range(1, 13))
    assert sorted((row.round, row.peer) for row in peers(few)) == [(r, p) for r in (5, 10, 12) for p in range(8)]
    assert network(few) == network(every), "what is told of all peers is the same"
    assert carried(few) == carried(every), "no byte is lost with a row"


def test_two_hundred_and_fifty_seven_peers_are_a_large_network() -> None:
    content = {**gossip("ring", 257), "rounds": 3, "eval": {"every": 2}}
    run = fedgossip.simulate(content, engine="stacked")
    assert {row.round for row in peers(run.rows)} == {2, 3}
    assert [row.round for row in network(run.rows)] == [0, 1, 2, 3]
    assert (
        len(peers(fedgossip.simulate({**content, "topology": {"graph": "ring", "n": 256}}, engine="stacked").rows))
        == 768
    )


@pytest.mark.parametrize("faults", [[], [{"kind": "drop", "probability": 0.5, "links": [[0, 5]]}]])
def test_a_run_whose_graph_changes_is_not_asked_for_all_pairs(
    faults: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of n = 2000 they would be four million pairs, half a gigabyte."""
    asked: list[int] = []
    everybody = Random.partners
    monkeypatch.setattr(Random, "partners", lambda schedule, node: asked.append(node) or everybody(schedule, node))
    content = {**gossip("el-oracle:4", 60), "faults": faults}
    if faults:  # which arrays do not have
        from fedgossip.plans import compose
        from fedgossip.plans.compose import faults_of

        assert faults_of(compose.plan(fedgossip.load_experiment(content)))
        assert set(asked) <= {0, 5}
    else:
        fedgossip.simulate(content, engine="stacked")
        assert not asked


def test_a_fault_of_a_link_that_is_none_is_refused_as_before() -> None:
    content = {**gossip("ring", 6), "faults": [{"kind": "drop", "links": [[0, 3]]}]}
    with pytest.raises(ConfigError, match="0 and 3 are no neighbours"):
        fedgossip.simulate(content)
    with pytest.raises(ConfigError, match="there is no peer 9"):
        fedgossip.simulate({**content, "faults": [{"kind": "drop", "links": [[0, 9]]}]})
