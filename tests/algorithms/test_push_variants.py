"""What is given away beside the model: push-DIGing, which tracks gradients on directed graphs, and mixed momentum.

Nedic, Olshevsky and Shi, Achieving geometric convergence for distributed optimization over time-varying graphs, SIAM
J. Optim. 27 (2017); Assran et al., ICML 2019.  A method of push-sum's kind is a class and a line of the registry.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import fault_seeds
import numpy as np
import pytest

from fedgossip import load_experiment, simulate
from fedgossip.algorithms.gossip.base import MODEL, Slot, Step
from fedgossip.algorithms.gossip.push_sum import PushDIGing, PushMomentum
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import frozen
from fedgossip.plans import compose
from fedgossip.topology import Mixing, Topology, build

MIXED = {"name": "push-sum", "options": {"momentum": "mixed"}, "deadline": 1e5}


def experiment(**more: Any) -> dict[str, Any]:
    return {
        "rounds": 400,
        "task": {"kind": "quadratic", "dim": 3, "sigma": 0.0, "placement": "smooth", "dtype": "float64", "eta": 0.02},
        "topology": {"graph": "directed-exponential", "n": 6},
        "algorithm": {"name": "push-diging", "deadline": 1e5},
        **more,
    }


def chord_ring(n: int) -> Topology:
    """Everyone sends to the next, and 0 also to the one across: not balanced, so that no W here has both sums."""
    return Topology.from_edges(n, [*((i, (i + 1) % n) for i in range(n)), (0, n // 2)], "chord ring", directed=True)


def by_rows() -> Mixing:
    """Each averages what arrives: rows sum to one, columns do not."""
    W = build(chord_ring(8), "push").matrix()
    return Mixing.from_matrix(W / W.sum(axis=1, keepdims=True), chord_ring(8), stochastic="rows")


def farthest(algorithm: str, schedule: Mixing, rounds: int = 1200) -> float:
    """The largest distance to the optimum, which is mean b = 0; f_i = 1/2 |x - b_i|^2."""
    content = experiment(rounds=rounds, algorithm={"name": algorithm}, eval={"every": rounds})
    run = simulate(content, schedule=schedule, engine="stacked")
    return max(float(np.abs(x).max()) for x in run.vectors)


def test_it_comes_to_the_optimum_on_a_directed_graph_where_dsgd_and_push_sum_do_not() -> None:
    assert farthest("push-diging", build(chord_ring(8), "push")) < 1e-8
    assert farthest("push-sum", build(chord_ring(8), "push"), 400) > 1e-2
    assert farthest("dsgd", by_rows(), 400) > 1e-2


def test_it_comes_there_whatever_is_lost() -> None:
    waits = {"name": "push-diging", "deadline": 1.0, "least_deadline": 0.3}
    uneven = {"training_jitter": 0.5, "speed_spread": 0.3}
    lossy = [{"kind": "drop", "probability": 0.1}]
    run = simulate(experiment(rounds=400, algorithm=waits, simulation=uneven, faults=lossy, eval={"every": 400}))
    assert max(float(np.abs(x).max()) for x in run.vectors) < 1e-6


@pytest.mark.parametrize(
    ("mode", "options"), [("sync", {}), ("sync", {"momentum": "mixed"}), ("async", {"momentum": "mixed"})]
)
def test_a_peer_that_crashed_goes_on_with_all_that_it_had_given(mode: str, options: dict[str, Any]) -> None:
    """Its checkpoint holds the parcels that are out, with both vectors: they are sent again, and count once."""
    name = "push-sum" if options else "push-diging"
    algorithm = {"name": name, "options": options, "mode": mode, "deadline": 1.0, "least_deadline": 0.5}
    faults = [{"kind": "drop", "probability": 0.1}, {"kind": "crash", "peers": [2], "start": 0.3, "after": 0.2}]
    run = simulate(experiment(rounds=20, algorithm=algorithm, faults=faults))
    assert all(vector is not None and np.isfinite(vector).all() for vector in run.vectors)


# --- what is given away -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last"), [(0, 30), pytest.param(30, 4000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_seeded_failures_lose_no_mass(first: int, last: int) -> None:
    """Drops, delays, partitions, crashes: those seeds of `fault_seeds` that push, half of four thousand."""
    tried = 0
    for seed in range(first, last):
        section = fault_seeds.scenario(seed)["algorithm"]
        if section["name"] == "push-sum":
            tried += 1
            section = {**section, "name": "push-diging", "mode": "sync"}
            outcome = fault_seeds.run(seed, keys={"algorithm": section})
            assert not outcome.verdict, f"seed {seed}: {outcome.verdict}"
    assert tried > (last - first) / 4


@pytest.mark.parametrize("algorithm", ["push-sum", "push-diging"])
@pytest.mark.parametrize("graph", ["el-oracle:2", "el-local:2", "equi-dynamic"])
def test_links_are_opened_to_those_alone_who_are_met(algorithm: str, graph: str) -> None:
    """In three rounds a peer of 24 meets a few; without rounds it may meet all."""
    experiment = {
        "rounds": 3,
        "task": {"kind": "averaging", "dtype": "float64"},
        "topology": {"graph": graph, "n": 24},
        "algorithm": {"name": algorithm},
    }
    plan = compose.plan(load_experiment(experiment))
    met = [{i for r in range(3) for i in plan.schedule.mixing(r).partners(node)} for node in range(24)]
    assert [set(plan.partners(node)) for node in range(24)] == met
    assert sum(map(len, met)) < 24 * 23 / 2
    ends = {engine: simulate(experiment, engine=engine).digest for engine in ("sim", "stacked")}
    assert ends["sim"] == ends["stacked"]
    if algorithm == "push-sum":
        without = compose.plan(load_experiment(experiment, ["algorithm.mode=async"]))
        assert {len(without.partners(node)) for node in range(24)} == {23}


@pytest.mark.parametrize("algorithm", [PushDIGing(), PushMomentum(0.5)], ids=["push-diging", "mixed momentum"])
def test_what_comes_late_counts_as_if_it_had_been_mixed(algorithm: Any) -> None:
    draw = np.random.default_rng(5)
    state = algorithm.start(frozen(draw.standard_normal((6, 3))))
    for number in range(3):
        begun, sent = algorithm.trained(state, frozen(draw.standard_normal((6, 3))), Step(number, 0.1, 1.0))
        late = tuple(frozen(draw.random(one.shape)) for one in sent)
        in_time = algorithm.mixed(begun, tuple(frozen(one + more) for one, more in zip(sent, late, strict=True)))
        state = algorithm.corrected(algorithm.mixed(begun, sent), late)
        for field in fields(state):
            one, other = getattr(state, field.name), getattr(in_time, field.name)
            assert one is other or np.abs(one - other).max() < 1e-12, field.name


def test_mixed_momentum_on_the_complete_graph_is_that_of_the_mean() -> None:
    """x' = x + v and v = beta v + u of the mean of all, by hand; on one graph of n with equal shares w stays 1."""
    content = experiment(rounds=30, topology={"graph": "complete", "n": 5}, algorithm=MIXED)
    content["task"]["placement"] = "random"
    plan = compose.plan(load_experiment(content))
    b = compose.task_of(plan.experiment, 5)[0].b.mean(axis=0)  # type: ignore[attr-defined]
    x = v = np.zeros(3)
    for _ in range(30):
        v = 0.9 * v + 0.02 * (b - x)
        x = x + v
    run = simulate(content, engine="stacked")
    assert np.abs(np.stack(run.vectors).mean(axis=0) - x).max() < 1e-12
    assert run.summary["consensus_distance"] < 1e-12


# --- what is refused, and a class of one's own ------------------------------------------------------------------------


class Own(PushDIGing):
    """Of a user's own file."""


def test_a_users_own_class_gives_the_same_bits() -> None:
    own = {"name": "test_push_variants:Own", "deadline": 1e5}
    topology = {"graph": "directed-exponential", "n": 6, "weights": "push"}
    runs = [
        simulate(experiment(rounds=12, algorithm=own, topology=topology), engine=engine)
        for engine in ("sim", "stacked")
    ]
    assert {run.digest for run in runs} == {simulate(experiment(rounds=12), engine="stacked").digest}


class Weightless(PushDIGing):
    slots = (MODEL, Slot("y"))


def test_what_is_given_away_needs_a_weight() -> None:
    with pytest.raises(ConfigError, match="has no weight") as caught:
        simulate(experiment(algorithm={"name": "test_push_variants:Weightless"}))
    assert "base.WEIGHT" in caught.value.advice


def test_shares_are_refused_where_columns_do_not_sum_to_one() -> None:
    with pytest.raises(ConfigError, match="push-diging on 'chord ring': the columns of its weights do not sum to one"):
        simulate(experiment(), schedule=by_rows())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"momentum": "much"}, "push-sum has no momentum 'much'"),
        ({"momentum": "mixed", "beta": 1.0}, "beta is 1.0; expected a number from 0 to below 1"),
        ({"moment": "mixed"}, "push-sum has no option 'moment'"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        simulate(experiment(algorithm={"name": "push-sum", "options": options}))
    assert refused.value.advice
