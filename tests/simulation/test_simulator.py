"""Whole machines in virtual time: every run ends, the mean is kept, faults are reported and never hang."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip import simulate
from fedgossip.base.vectors import Vector, mean
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.simulation.network import SimulatedNetwork

GRAPHS = ["ring", "star", "path", "complete", "exponential", "regular:3", "two-cliques", "tree", "erdos-renyi:0.4"]


def averaging(graph: str = "ring", n: int = 8, rounds: int = 30, **sections: Any) -> dict[str, Any]:
    task = {"kind": "averaging", "dim": 5, **sections.pop("task", {})}
    return {"rounds": rounds, "task": task, "topology": {"graph": graph, "n": n}, **sections}


def initial_spread(experiment: dict[str, Any]) -> tuple[np.ndarray[Any, Any], float]:
    from fedgossip import load_experiment
    from fedgossip.plans import compose

    plan = compose.plan(load_experiment(experiment))
    task, _ = compose.task_of(plan.experiment, plan.n)
    start = np.stack([task.initial(i) for i in range(plan.n)]).astype(np.float64)
    return start.mean(axis=0), float(np.sqrt(((start - start.mean(axis=0)) ** 2).sum(axis=1).mean()))


def there(vectors: list[Vector | None]) -> list[Vector]:
    return [vector for vector in vectors if vector is not None]


networks = st.fixed_dictionaries(
    {
        "latency": st.floats(0, 0.1),
        "jitter": st.floats(0, 0.5),
        "bandwidth": st.sampled_from([None, 1e4, 1e6]),
        "training": st.floats(0, 0.2),
        "training_jitter": st.floats(0, 3),
        "speed_spread": st.floats(0, 1),
    }
).map(lambda network: {key: value for key, value in network.items() if value is not None})


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(GRAPHS), st.integers(0, 10**6), networks)
def test_the_digest_does_not_depend_on_the_schedule(graph: str, seed: int, network: dict[str, Any]) -> None:
    quiet = simulate(averaging(graph, rounds=12, seed=seed))
    wild = simulate(averaging(graph, rounds=12, seed=seed, simulation=network, algorithm={"deadline": 1e6}))
    stacked = simulate(averaging(graph, rounds=12, seed=seed), engine="stacked")
    assert quiet.digest == wild.digest == stacked.digest is not None


@settings(max_examples=1, deadline=None)
@given(st.sampled_from(GRAPHS), st.integers(0, 10**6), st.floats(0, 2))
def test_the_mean_is_kept_for_a_thousand_rounds(graph: str, seed: int, jitter: float) -> None:
    """Doubly stochastic weights keep the mean; float32 rounding moves it by less than 1e-4 of the initial spread."""
    timing = {"training_jitter": jitter, "jitter": jitter / 10}
    run = averaging(graph, rounds=1000, seed=seed, simulation=timing, algorithm={"deadline": 1e6}, eval={"every": 1000})
    truth, spread = initial_spread(run)
    ended = np.stack(there(simulate(run).vectors)).astype(np.float64)
    assert np.linalg.norm(ended.mean(axis=0) - truth) < 1e-4 * spread


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(GRAPHS),
    st.integers(0, 10**6),
    st.floats(0, 0.3),
    st.dictionaries(st.integers(0, 7).map(str), st.floats(0, 2), max_size=3),
    st.dictionaries(st.integers(0, 7).map(str), st.floats(1, 100), max_size=2),
)
def test_every_run_ends_whatever_is_lost_or_dies(
    graph: str, seed: int, loss: float, crash: dict[str, float], slow: dict[str, float]
) -> None:
    faults = [{"kind": "drop", "probability": loss}]
    faults += [{"kind": "crash", "peers": [int(peer)], "start": at} for peer, at in crash.items()]
    faults += [{"kind": "slow", "peers": [int(peer)], "factor": factor} for peer, factor in slow.items()]
    timing = {"simulation": {"jitter": 0.02}, "algorithm": {"deadline": 0.5}}
    run = simulate(averaging(graph, rounds=10, seed=seed, faults=faults, **timing))
    survivors = {i for i in range(8) if str(i) not in crash}
    assert survivors <= {i for i, vector in enumerate(run.vectors) if vector is not None}
    assert all(np.isfinite(vector).all() for vector in there(run.vectors))


def test_a_peer_that_dies_is_reported_and_the_others_agree_without_it() -> None:
    run = simulate(averaging("ring", rounds=60, faults=[{"kind": "crash", "peers": [3], "start": 0.4}]))
    gone = [(row.peer, row.value) for row in run.rows if isinstance(row, EventRow) and row.name == "gone"]
    assert sorted(gone) == [(2, 3), (4, 3)]
    assert run.vectors[3] is None and run.digest is None
    assert run.summary["events"]["crashed"] == 1
    survivors = np.stack(there(run.vectors))
    assert np.abs(survivors - survivors.mean(axis=0)).max() < 0.2  # a path of seven is left, and goes on averaging


def test_one_slow_peer_delays_nobody_beyond_its_deadline() -> None:
    """Without a deadline 20 rounds would take 20 x 50 x 0.05 = 50 virtual seconds."""
    slow = {"faults": [{"kind": "slow", "peers": [0], "factor": 50.0}], "algorithm": {"deadline": 0.2}}
    run = simulate(averaging("ring", rounds=20, **slow))
    others = [row.seconds for row in run.rows if isinstance(row, PeerRow) and row.peer != 0]
    assert max(others) < 5.0
    assert run.summary["events"]["missed"] > 0


def test_late_training_never_changes_what_training_in_one_call_gives() -> None:
    """Lazy batches: peers of unequal speed are trained in other groups than peers of equal speed."""
    model, graph = {"source": "mlp:64-16-10"}, {"graph": "ring", "n": 6}
    learning = {"rounds": 4, "model": model, "train": {"device": "cpu"}, "topology": graph}
    even = simulate(learning)
    uneven = simulate({**learning, "simulation": {"speed_spread": 1.0, "training_jitter": 1.0}})
    assert even.digest == uneven.digest
    assert even.accuracy == uneven.accuracy


def test_the_same_seed_gives_the_same_record() -> None:
    loss = {"faults": [{"kind": "drop", "probability": 0.1}], "simulation": {"jitter": 0.1}}
    noisy = averaging("regular:3", algorithm={"deadline": 0.3}, **loss)
    assert simulate(noisy).rows == simulate(noisy).rows
    assert simulate(noisy, seed=2).rows != simulate(noisy).rows


def test_bandwidth_delays_large_models() -> None:
    fast = simulate(averaging(rounds=5, task={"dim": 1000}))
    slow = simulate(averaging(rounds=5, task={"dim": 1000}, simulation={"bandwidth": 10_000}))
    assert slow.summary["seconds"] > fast.summary["seconds"] + 5 * 0.8  # 8 kB a round at 10 kB/s
    assert slow.digest == fast.digest


@pytest.mark.parametrize("graph", ["complete", "ring", "star"])
def test_measured_contraction_never_beats_the_forecast(graph: str) -> None:
    run = simulate(averaging(graph, n=16, rounds=40))
    assert run.summary["measured_contraction"] <= run.summary["forecast"]["slem"] + 1e-6


def test_pure_averaging_contracts_as_the_slem_says() -> None:
    """After many rounds only the slowest mode is left, and it shrinks by the slem."""
    rows = simulate(averaging("ring", n=16, rounds=120, task={"dtype": "float64"})).network()
    late = [rows[r + 1].consensus_distance / rows[r].consensus_distance for r in range(90, 119)]
    assert np.allclose(late, 1 / 3 + 2 / 3 * np.cos(2 * np.pi / 16), atol=1e-6)


@pytest.mark.long
def test_a_thousand_peers_are_simulated() -> None:
    run = simulate(averaging("regular:4", n=1000, rounds=8, eval={"every": 8}))
    assert run.digest is not None and len(run.vectors) == 1000


def test_means_of_the_record_are_those_of_the_vectors() -> None:
    run = simulate(averaging("ring", rounds=5))
    ended = there(run.vectors)
    distance = np.sqrt(np.mean([np.sum((v - mean(ended)) ** 2) for v in ended]))
    assert np.isclose(run.network()[-1].consensus_distance, distance, rtol=1e-5)


def test_after_one_hiccup_the_peers_find_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peer 0 trains once for longer than the deadline; within a few rounds nobody is missed any more."""
    usual, calls = SimulatedNetwork.training_ns, [0]

    def hiccup(network: SimulatedNetwork, node: int, examples: int) -> int:
        calls[0] += node == 0
        return 1_500_000_000 if node == 0 and calls[0] == 4 else usual(network, node, examples)

    monkeypatch.setattr(SimulatedNetwork, "training_ns", hiccup)
    run = simulate(averaging("ring", n=6, rounds=200, algorithm={"deadline": 1.0}))
    missed = [row.round for row in run.rows if isinstance(row, EventRow) and row.name == "missed"]
    assert missed and max(missed) < 40


def test_a_crash_while_messages_are_on_the_way_costs_no_deadline() -> None:
    crash = {"faults": [{"kind": "crash", "peers": [3], "start": 0.41}], "simulation": {"jitter": 0.05}}
    assert simulate(averaging("ring", rounds=20, **crash)).summary["seconds"] < 10  # the deadline is 30


def test_the_options_of_an_algorithm_are_checked_once_and_not_for_every_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    read = inspect.signature

    def counted(*given: Any, **how: Any) -> inspect.Signature:
        counts[-1] += 1
        return read(*given, **how)

    monkeypatch.setattr(inspect, "signature", counted)
    for n in (6, 8, 24):  # the first reads what is cached
        counts.append(0)
        simulate({"rounds": 1, "task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": n}})
    assert counts[1] == counts[2]
