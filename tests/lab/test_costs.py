"""The cost model against its oracle, the simulator: equal up to headers and acknowledgements, or in its interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedgossip import simulate
from fedgossip.algorithms.collectives.names import COLLECTIVES, EqualLinks, all_reduce
from fedgossip.core.messages import TAIL
from fedgossip.core.records import NetworkRow
from fedgossip.lab.costs.base import Cost, TrainingTimes, crossover, mean_of, neighbours, through_servers
from fedgossip.lab.costs.methods import ROUNDS, RUNS, collective, gossip, gossip_steps, pairs, seconds_of_rounds, served
from fedgossip.topology.graphs.names import resolve_schedule
from fedgossip.topology.schedules.schedules import Schedule

DIM = 25_000
SIZE = 4 * DIM
"""Bytes of a vector: headers are a thousandth of it."""
A, B, C = 0.01, 1e6, 0.05
LINKS = EqualLinks(A, B, B)
SIMULATION = {"latency": A, "bandwidth": B, "downlink": B, "training": C}
UNLIKE = [{"nodes": "1", "slower": 3.0}, {"nodes": "2", "slower": 2.0}]


def times(m: int, *, unlike: bool = False, **more: Any) -> TrainingTimes:
    return TrainingTimes(tuple(C * ({1: 3.0, 2: 2.0}.get(node, 1.0) if unlike else 1.0) for node in range(m)), **more)


def per_round(rounds: int = 4, dim: int = DIM, **sections: Any) -> float:
    """Virtual seconds of a round, without the first, before which nobody has a model to send."""
    run = simulate({
        "rounds": rounds, "task": {"kind": "quadratic", "dim": dim}, "simulation": SIMULATION,
        "eval": {"every": rounds}, "train": {"lr": 0.1}, **sections,
    })  # fmt: skip
    at = {row.round: row.seconds for row in run.rows if isinstance(row, NetworkRow)}
    return (at[rounds] - at[1]) / (rounds - 1)


PATIENT = {"deadline": 1e4, "least_deadline": 1e4}


def parallel(name: str, m: int, **more: Any) -> float:
    return per_round(parallel={"workers": m, "method": name, "bucket": 0, **PATIENT}, **more)


def federated(m: int, **more: Any) -> float:
    return per_round(coordinator={"clients": m, "secure": {"on": False}}, **more)


def peers(graph: str, m: int, **more: Any) -> float:
    return per_round(topology={"graph": graph, "n": m}, algorithm=PATIENT, **more)


def schedule(graph: str, n: int) -> Schedule:
    found = resolve_schedule(graph, n)
    assert found is not None
    return found


def near(measured: float, told: Cost, control: float = 0.02) -> bool:
    """Above by headers and acknowledgements at most: a fiftieth of the time of the vectors."""
    return told.seconds * (1 - 1e-6) <= measured <= told.seconds + control * (told.communicate + A)


@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_a_round_of_a_collective_takes_what_its_steps_say(name: str, m: int) -> None:
    told = collective(name, 4 * (DIM + TAIL), LINKS, times(m))
    assert near(parallel(name, m, rounds=ROUNDS), told)
    assert told.wait == pytest.approx(0, abs=1e-6) and told.compute == pytest.approx(C)


@pytest.mark.parametrize("m", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "halving-doubling", "recursive-doubling", "all-to-all"])
def test_steps_and_the_closed_form_agree_where_a_round_begins_with_all(name: str, m: int) -> None:
    told = collective(name, 4 * (DIM + TAIL), LINKS, times(m))
    assert told.communicate == pytest.approx(all_reduce(name, m, 4 * (DIM + TAIL), LINKS), rel=1e-3)


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_known_times_are_waited_for_as_the_steps_say(name: str) -> None:
    told = collective(name, 4 * (DIM + TAIL), LINKS, times(4, unlike=True))
    assert near(parallel(name, 4, simulation={**SIMULATION, "classes": UNLIKE}, rounds=ROUNDS), told, 0.04)


def test_what_takes_no_time_to_send_waits_as_at_a_barrier() -> None:
    """The longest of m uniform times: 1 + J m / (m + 1)."""
    told = collective("ring", 400, EqualLinks(1e-6), times(4, jitter=1.0))
    barrier = times(4, jitter=1.0).longest()
    assert barrier.value == pytest.approx(C * (1 + 4 / 5), rel=1e-4)
    assert abs(told.wait - (barrier.value - told.compute)) <= told.error + 1e-5


@pytest.mark.parametrize("name", ["ring", "star"])
def test_with_jitter_the_simulation_lies_in_the_interval(name: str) -> None:
    told = collective(name, 4 * (DIM + TAIL), LINKS, times(4, jitter=2.0))
    measured = parallel(name, 4, rounds=80, simulation={**SIMULATION, "training_jitter": 2.0})
    rounds = math.sqrt(RUNS * ROUNDS / 80)
    assert told.error > 0 and abs(measured - told.seconds) <= told.error * rounds + 0.01 * told.seconds


@pytest.mark.parametrize("more", [{"spread": 0.5}, {"jitter": 0.7}, {"spread": 0.3, "jitter": 0.5}])
def test_the_expected_maximum_is_that_of_draws(more: dict[str, float]) -> None:
    for m in (2, 8):
        made = times(m, unlike=m > 2, **more)
        drawn = mean_of(made.draw(20_000).max(axis=1))
        assert abs(made.longest().value - drawn.value) <= 1.5 * drawn.error + made.longest().error
        assert made.mean == pytest.approx(made.draw(20_000).mean(), rel=0.02)


@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_a_round_through_a_server_takes_a_broadcast_a_training_and_a_message(m: int) -> None:
    told = served(SIZE, LINKS, times(m))
    assert told.communicate == pytest.approx(through_servers(m, SIZE, LINKS))
    assert near(federated(m), told)


def test_a_server_whose_clients_are_unlike_is_followed_exactly() -> None:
    told = served(SIZE, LINKS, times(5, unlike=True))
    assert near(federated(5, simulation={**SIMULATION, "classes": UNLIKE}), told)


def test_a_servers_clients_with_jitter_lie_in_the_interval() -> None:
    told = served(SIZE, LINKS, times(4, jitter=2.0))
    measured = federated(4, rounds=80, simulation={**SIMULATION, "training_jitter": 2.0})
    assert told.error > 0
    assert abs(measured - told.seconds) <= told.error * math.sqrt(RUNS * ROUNDS / 80) + 0.01 * told.seconds


RATES = [("ring", B), ("one-peer-exponential", B), ("complete", 20 * B), ("star", 20 * B)]


@pytest.mark.parametrize(("graph", "rate"), RATES)
def test_gossip_takes_what_its_graph_says(graph: str, rate: float) -> None:
    """Where uplinks have the time: a peer that is a round ahead of its own words says some of them again."""
    told = gossip(SIZE, EqualLinks(A, rate), times(8), schedule(graph, 8))
    measured = peers(graph, 8, simulation={"latency": A, "bandwidth": rate, "training": C}, rounds=ROUNDS)
    assert near(measured, told)


@pytest.mark.parametrize(("graph", "degree"), [("ring", 2), ("hypercube", 3), ("one-peer-exponential", 1)])
def test_steps_and_the_closed_form_agree_on_graphs_of_one_degree(graph: str, degree: int) -> None:
    told = gossip(SIZE, EqualLinks(A, B), times(8), schedule(graph, 8))
    assert told.communicate == pytest.approx(neighbours(degree, SIZE, EqualLinks(A, B)), rel=1e-6)


def test_a_slow_peer_of_a_graph_holds_up_all_in_the_end() -> None:
    told = gossip(SIZE, EqualLinks(A, B), times(8, unlike=True), schedule("ring", 8))
    sim = {"latency": A, "bandwidth": B, "training": C, "classes": UNLIKE}
    assert peers("ring", 8, rounds=40, simulation=sim) == pytest.approx(told.seconds, rel=0.02)


def test_gossip_waits_less_than_a_barrier_where_everybody_is_slow_in_turn() -> None:
    ring = gossip(SIZE, EqualLinks(A, B), times(16, jitter=3.0), schedule("ring", 16))
    barrier = times(16, jitter=3.0).longest().value - times(16, jitter=3.0).mean
    assert 0 < ring.wait < barrier
    sim = {"latency": A, "bandwidth": B, "training": C, "training_jitter": 3.0}
    measured = peers("ring", 16, rounds=60, dim=DIM, simulation=sim)
    assert abs(measured - ring.seconds) <= 4 * ring.error + 0.02 * ring.seconds


@pytest.mark.parametrize("latency", [0.001, 0.01, 0.02, 0.05])
def test_asynchronous_pairs_train_on_while_they_exchange(latency: float) -> None:
    told = pairs(400, EqualLinks(latency), times(6))
    simulation = {"latency": latency, "training": C}
    run = {"topology": {"graph": "ring", "n": 6}, "algorithm": {"mode": "async"}, "simulation": simulation}
    assert per_round(60, 100, **run) == pytest.approx(told.seconds, rel=0.05)


# --- the time of adding -----------------------------------------------------------------------------------------------

SUMMING = 2e-6
"""Seconds per element: half of what the link takes for it."""
ADDING = EqualLinks(A, B, B, SUMMING / 4)
SLOW_SUMS = {**SIMULATION, "summing": SUMMING}


@pytest.mark.parametrize("m", [2, 4, 8])
@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_the_time_of_adding_is_that_of_the_steps(name: str, m: int) -> None:
    """Among all up to an eighth more: whoever is adding answers late."""
    size = 4 * (DIM + TAIL)
    told, free = collective(name, size, ADDING, times(m)), collective(name, size, LINKS, times(m))
    measured = parallel(name, m, rounds=ROUNDS if name == "tree" else 6, simulation=SLOW_SUMS)
    assert near(measured, told, 0.12 if name == "all-to-all" else 0.02)
    assert told.seconds - free.seconds >= 0.99 * size * SUMMING / 4 * (m - 1) / m, "a ring's worker adds least"


@pytest.mark.parametrize("m", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "halving-doubling", "recursive-doubling", "all-to-all"])
def test_the_time_of_adding_by_closed_form(name: str, m: int) -> None:
    """2 (m - 1) (a + d/(mb)) + (m - 1)/m d g for a ring."""
    size = 4 * (DIM + TAIL)
    told = collective(name, size, ADDING, times(m))
    formula = all_reduce(name, m, size, ADDING)
    if name == "all-to-all":
        assert all_reduce(name, m, size, LINKS) + size * SUMMING / 4 <= told.communicate * 1.001 <= formula * 1.002
    else:
        assert told.communicate == pytest.approx(formula, rel=1e-3)
    ring = 2 * (m - 1) * (A + size / (m * B)) + (m - 1) / m * size * SUMMING / 4
    assert all_reduce("ring", m, size, ADDING) == pytest.approx(ring)


def test_servers_coordinators_and_peers_take_time_to_add() -> None:
    told = served(SIZE, ADDING, times(4))
    assert told.communicate == pytest.approx(through_servers(4, SIZE, ADDING))
    assert near(federated(4, simulation=SLOW_SUMS), told)
    server = {"workers": 4, "method": "parameter-server", **PATIENT}
    assert near(per_round(parallel=server, simulation=SLOW_SUMS), told, 0.03)
    graph = schedule("ring", 8)
    swift = EqualLinks(A, B, summing=SUMMING / 4)
    told = gossip(SIZE, swift, times(8), graph)
    assert told.communicate == pytest.approx(neighbours(2, SIZE, swift), rel=1e-6)
    links = {"latency": A, "bandwidth": B, "training": C, "summing": SUMMING}
    assert near(peers("ring", 8, simulation=links, rounds=10), told)


def test_sums_that_take_time_change_no_bit() -> None:
    """Though events of one that adds wait; also where messages are lost, and peers die meanwhile."""
    for section in ({"parallel": {"workers": 4, "bucket": 64}}, {"topology": {"graph": "ring", "n": 4}}):
        experiment = {"rounds": 6, "task": {"kind": "quadratic", "dim": 40}, "train": {"lr": 0.1}, **section}
        slow = {**experiment, "simulation": {"summing": 1e-4}}
        assert simulate(slow).digest == simulate(experiment).digest
    faults = [{"kind": "drop", "probability": 0.1}, {"kind": "crash", "peers": [1], "start": 0.2, "after": 0.1}]
    parallel = {"parallel": {"workers": 4, "bucket": 64}, "faults": faults, "rounds": 6}
    run = simulate({"task": {"kind": "quadratic", "dim": 40}, "simulation": {"summing": 1e-4}, **parallel})
    assert run.summary["status"] in ("finished", "partial")


# --- where gossip overtakes a ring ------------------------------------------------------------------------------------

WORKERS, NEIGHBOURS, LONG = 8, 2, 100_000
"""Of elements so many that the headers of a ring's parts are a thirtieth of the difference."""
LATENCIES = np.geomspace(1e-4, 1e-2, 6)
FACTORS = np.geomspace(1 / 4, 4, 6)
"""Bandwidths of the grid, as shares of the one at which both are equal by formula."""


def difference(latency: float, rate: float) -> float:
    """Simulated seconds of a round: gossip on a ring less all-reduce on a ring."""
    network = {"latency": latency, "bandwidth": rate, "training": 0.0}
    ring = parallel("ring", WORKERS, rounds=2, dim=LONG, simulation=network)
    return peers("ring", WORKERS, rounds=2, dim=LONG, simulation=network) - ring


@pytest.mark.parametrize("some", [slice(None, None, 3), pytest.param(slice(None), marks=pytest.mark.long)])
def test_gossip_overtakes_the_ring_where_the_formula_says(some: slice) -> None:
    """On a grid of 6 latencies and 6 bandwidths: for each latency the bandwidth at which the simulations are equal."""
    for latency in map(float, LATENCIES[some]):
        told = crossover(latency, WORKERS, 4 * LONG, NEIGHBOURS)
        slowness = [1 / (told * float(factor)) for factor in FACTORS]
        found = [difference(latency, 1 / one) for one in slowness]
        assert found[0] > 0 > found[-1], "both regimes are on the grid"
        boundary = 1 / float(np.interp(0.0, found[::-1], slowness[::-1]))
        assert boundary == pytest.approx(told, rel=0.05)


def test_one_neighbour_is_always_sooner_than_a_ring() -> None:
    assert crossover(0.01, 8, SIZE, 1) == 0.0 and math.isinf(crossover(0.0, 8, SIZE, 2))


@pytest.mark.parametrize("graph", ["ring", "star", "one-peer-exponential", "random-matching"])
@pytest.mark.parametrize("known", [(0.05,) * 5, (0.05, 0.05, 0.5, 0.05, 0.01)])
def test_rounds_that_repeat_are_followed_until_they_do_and_cost_what_all_of_them_do(
    graph: str, known: tuple[float, ...]
) -> None:
    schedule = resolve_schedule(graph, len(known), seed=1)
    times, links = np.tile(known, (40, 1)), EqualLinks(0.01, 1e6, 1e6)
    asked: list[int] = []

    def steps(round: int, node: int) -> Any:
        asked.append(round)
        return gossip_steps(schedule, 8000)(round, node)

    every = seconds_of_rounds(steps, 5, links, times)
    assert max(asked) == 39
    asked.clear()
    assert seconds_of_rounds(steps, 5, links, times, schedule.period) == pytest.approx(every, rel=1e-6)
    assert (max(asked) < 39) == (graph != "random-matching")
