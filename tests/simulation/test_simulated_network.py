"""The virtual network obeys the textbook: what a sender, a receiver and a link cost, by closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from fedgossip import simulate
from fedgossip.base.errors import ConfigError
from fedgossip.experiment import load_experiment
from fedgossip.plans.compose import network_settings
from fedgossip.simulation.network import NS, DeviceClass, NetworkSettings, Racks, SimulatedNetwork

SIZE, A, B = 1_000_000, 0.01, 1e7
"""Bytes of a message, seconds of latency, bytes per second: one message takes A + SIZE / B = 0.11 s."""


def network(n: int = 6, **settings: Any) -> SimulatedNetwork:
    return SimulatedNetwork(NetworkSettings(latency=A, **settings), n, 1)


def seconds(ns: int) -> float:
    return round(ns / NS, 6)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_a_server_that_hears_m_workers_at_once_pays_for_each(m: int) -> None:
    net = network(downlink=B, bandwidth=B)
    last = max(net.passage(worker, 0, SIZE, 0).arrival_ns for worker in range(1, m + 1))
    assert seconds(last) == round(A + m * SIZE / B, 6)


def test_without_a_downlink_any_number_come_in_at_once() -> None:
    net = network(bandwidth=B)
    assert {seconds(net.passage(worker, 0, SIZE, 0).arrival_ns) for worker in range(1, 6)} == {round(A + SIZE / B, 6)}


def test_a_message_alone_costs_the_slower_of_both_ends_once() -> None:
    for up, down in ((B, B), (B, B / 4), (B / 4, B)):
        alone = network(bandwidth=up, downlink=down).passage(0, 1, SIZE, 0).arrival_ns
        assert seconds(alone) == round(A + SIZE / min(up, down), 6), "and not the sum of both: it is cut through"


def test_both_directions_of_a_node_are_used_at_once() -> None:
    net = network(bandwidth=B, downlink=B)
    ring = [net.passage(node, (node + 1) % 6, SIZE, 0).arrival_ns for node in range(6)]
    assert {seconds(at) for at in ring} == {round(A + SIZE / B, 6)}


def test_the_first_class_that_names_a_node_is_its_own() -> None:
    slow = DeviceClass(frozenset({0, 1}), bandwidth=B / 10, latency=0.5, slower=4.0)
    net = network(bandwidth=B, classes=[slow, DeviceClass(frozenset({1}), latency=9.0)])
    assert seconds(net.passage(0, 2, SIZE, 0).arrival_ns) == round(0.5 + 10 * SIZE / B, 6)
    assert seconds(net.passage(2, 1, SIZE, 0).arrival_ns) == round(0.5 + SIZE / B, 6), "the longer latency of the two"
    assert seconds(net.passage(4, 3, SIZE, 0).arrival_ns) == round(A + SIZE / B, 6)
    assert [net.training_ns(node) for node in (0, 5)] == [4 * 50_000_000, 50_000_000]


def test_a_message_between_racks_passes_their_links_which_it_shares() -> None:
    racks = Racks(3, bandwidth=B, latency=2.0)
    net = network(8, bandwidth=B, downlink=B, racks=racks)
    crossing = [net.passage(sender, to, SIZE, 0).arrival_ns for sender, to in ((0, 3), (1, 6), (2, 7))]
    assert [seconds(at) for at in crossing] == [round(2.0 + k * SIZE / B, 6) for k in (1, 2, 3)], "out of one rack"
    assert seconds(net.passage(4, 5, SIZE, 0).arrival_ns) == round(A + SIZE / B, 6), "within a rack"
    into = network(8, racks=racks)
    last = max(into.passage(sender, to, SIZE, 0).arrival_ns for sender, to in ((0, 6), (3, 7)))
    assert seconds(last) == round(2.0 + 2 * SIZE / B, 6), "two messages into one rack"
    alone = network(4, bandwidth=B, racks=Racks(2))
    assert alone.passage(0, 3, SIZE, 0) == network(4, bandwidth=B).passage(0, 3, SIZE, 0)


def star(**simulation: Any) -> dict[str, Any]:
    return {
        "topology": {"graph": "star", "n": 9},
        "task": {"kind": "averaging", "dim": 10_000},
        "rounds": 3,
        "simulation": {"latency": A, "training": 0.0, "bandwidth": B, **simulation},
    }


def test_a_star_is_slower_than_a_ring_once_the_hub_pays_for_what_it_hears() -> None:
    def seconds_of(graph: str, **simulation: Any) -> float:
        return float(simulate({**star(**simulation), "topology": {"graph": graph, "n": 9}}).summary["seconds"])

    assert seconds_of("star", downlink=B / 8) > 2 * seconds_of("ring", downlink=B / 8)
    assert simulate(star()).digest == simulate(star(downlink=B, classes=[{"nodes": "0", "slower": 9.0}])).digest


@pytest.mark.parametrize("nodes", ["", "9", "3-1", "0-9", "a", "-1", "0,,1", "9" * 12])
def test_classes_of_nodes_that_are_not_there_are_refused(nodes: str) -> None:
    experiment = load_experiment(star(classes=[{"nodes": nodes}]))
    with pytest.raises(ConfigError, match="names no nodes of this run"):
        network_settings(experiment, 9)


@pytest.mark.parametrize(
    "wrong", [{"nodes": "0", "latency": -1.0}, {"nodes": "0", "slower": 0.0}, {"nodes": "0", "bandwidth": 0.0}, {}]
)
def test_a_class_with_impossible_numbers_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"simulation\.classes"):
        load_experiment(star(classes=[wrong]))


def test_a_class_is_written_and_read_again() -> None:
    experiment = load_experiment(star(classes=[{"nodes": "0-2, 5", "downlink": 1e6}]))
    assert load_experiment(experiment.to_dict()) == experiment
