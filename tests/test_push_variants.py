"""A method of push-sum's kind is a class and a line of the registry: push-DIGing, in every driver.

Nedic, Olshevsky and Shi, Achieving geometric convergence for distributed optimization over time-varying graphs, SIAM
J. Optim. 27 (2017), here adapt-then-combine as `algorithms/gradient_tracking`: y = c + u, and shares of x + y, y and
the weight go out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.algorithms import names
from fedgossip.algorithms.base import MODEL, WEIGHT, Needs, Slot, Step, Vectors
from fedgossip.algorithms.push_sum import debiased
from fedgossip.errors import ConfigError
from fedgossip.plans import compose
from fedgossip.vectors import Vector, add, digest, frozen, subtract


@dataclass(frozen=True, eq=False)
class TrackedMass:
    """Arrays [d] or [n, d]; `weight` float64 [1] or [n, 1]; `update` is None but in an open round."""

    x: Vector
    correction: Vector
    weight: Vector
    update: Vector | None = None


class PushDIGing:
    slots = (MODEL, Slot("y"), WEIGHT)
    needs = Needs(sums="columns")

    def start(self, x: Vector) -> TrackedMass:
        return TrackedMass(x, subtract(x, x), frozen(np.ones((*x.shape[:-1], 1))))

    def trained(self, state: TrackedMass, update: Vector | None, step: Step) -> tuple[TrackedMass, Vectors]:
        u = subtract(state.x, state.x) if update is None else update
        y = add(state.correction, u)
        return replace(state, update=u), (add(state.x, y), y, state.weight)

    def mixed(self, state: TrackedMass, mixed: Vectors) -> TrackedMass:
        x, y, weight = mixed
        return TrackedMass(x, y if state.update is None else subtract(y, state.update), weight)

    def model(self, state: TrackedMass) -> Vector:
        return debiased(state.x, state.weight)

    def seen(self, state: TrackedMass, outgoing: Vectors) -> Vector:
        x, _, weight = outgoing
        return debiased(x, weight)

    def corrected(self, state: TrackedMass, differences: Vectors) -> TrackedMass:
        x, y, weight = (add(*pair) for pair in zip((state.x, state.correction, state.weight), differences, strict=True))
        return replace(state, x=x, correction=y, weight=weight)

    def rejoined(self, state: TrackedMass, model: Vector) -> TrackedMass:
        return self.start(model)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    line = names.Method(PushDIGing, ("sync", "async"), weights="push")
    methods = {**names.METHODS, "push-diging": line}
    for module in ("algorithms.names", "experiment.checks", "plans.gossip"):
        monkeypatch.setattr(f"fedgossip.{module}.METHODS", methods)


def experiment(**more: Any) -> dict[str, Any]:
    return {
        "rounds": 400,
        "task": {"kind": "quadratic", "dim": 3, "sigma": 0.0, "placement": "smooth", "dtype": "float64", "eta": 0.02},
        "topology": {"graph": "directed-exponential", "n": 6},
        "algorithm": {"name": "push-diging", "deadline": 1e5},
        **more,
    }


def test_it_comes_to_the_optimum_of_all_where_push_sum_stays_apart() -> None:
    """The optimum is the mean of b, which is 0; f_i = 1/2 |x - b_i|^2."""
    ours = simulate(experiment(rounds=1500), engine="stacked")
    assert max(float(np.abs(x).max()) for x in ours.vectors) < 1e-7
    theirs = simulate(experiment(algorithm={"name": "push-sum", "deadline": 1e5}), engine="stacked")
    assert theirs.summary["consensus_distance"] > 1e-3


@pytest.mark.sockets
def test_one_digest_in_the_simulator_on_stacked_arrays_and_over_sockets() -> None:
    content = experiment(rounds=12, simulation={"training_jitter": 2.0, "jitter": 0.3})
    stacked = simulate(experiment(rounds=12), engine="stacked")
    assert simulate(content).digest == stacked.digest
    plan = compose.plan(load_experiment(experiment(rounds=12)))
    vectors, _ = run_over_sockets(plan, compose.task_of(plan.experiment, plan.n)[0])
    assert digest(vectors) == stacked.digest


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_peer_that_crashed_goes_on_with_all_that_it_had_given(mode: str) -> None:
    """Its checkpoint holds the parcels that are out, with both vectors: they are sent again, and count once."""
    algorithm = {"name": "push-diging", "mode": mode, "deadline": 1.0, "least_deadline": 0.5}
    faults = [{"kind": "drop", "probability": 0.1}, {"kind": "crash", "peers": [2], "start": 0.3, "after": 0.2}]
    run = simulate(experiment(rounds=20, algorithm=algorithm, faults=faults))
    assert all(vector is not None and np.isfinite(vector).all() for vector in run.vectors)


def test_a_users_own_class_gives_the_same_bits() -> None:
    own = {"name": "test_push_variants:PushDIGing", "deadline": 1e5}
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
