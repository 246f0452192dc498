"""What every machine keeps of the vectors beside the model, whatever the network does to its messages.

The sum of all models moves by what the trainings have added; what trackers owe each other is nothing in all, and
momentum sums up as what went out.  Lost, repeated, overtaken and late messages are made up for, of each vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_hand import Hand
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedgossip.algorithms.gossip.base import Step
from fedgossip.algorithms.gossip.gradient_tracking import GradientTracking
from fedgossip.algorithms.gossip.momentum import MixedMomentum
from fedgossip.algorithms.gossip.push_sum import PushDIGing, PushMomentum
from fedgossip.base import seeds
from fedgossip.base.vectors import frozen
from fedgossip.protocols.gossip.awaited_round import SyncSettings
from fedgossip.protocols.gossip.sync_gossip import SyncGossip
from fedgossip.protocols.push_sum.push_peer import PushSettings
from fedgossip.protocols.push_sum.push_sum import AsyncPushSum, SyncPushSum
from fedgossip.topology import Topology, build, resolve

PAIRS = [
    (SyncGossip, GradientTracking()),
    (SyncGossip, MixedMomentum(0.5)),
    (SyncPushSum, PushDIGing()),
    (SyncPushSum, PushMomentum(0.5)),
    (AsyncPushSum, PushDIGing()),
    (AsyncPushSum, PushMomentum(0.5)),
]


def graph(kind: Any, n: int) -> Any:
    if kind is SyncGossip or n == 2:
        return build(resolve("path" if n > 2 else "complete", n), "metropolis" if kind is SyncGossip else "push")
    arcs = [*((i, (i + 1) % n) for i in range(n)), (0, n // 2)]
    return build(Topology.from_edges(n, arcs, "chord ring", directed=True), "push")


class Trainings:
    """What all trainings of a peer have added to what it holds: to the model, and to the vector beside it."""

    def __init__(self, machine: Any) -> None:
        self.learner, self.trained = machine.learner, machine.learner.trained
        self.model: Any = 0.0
        self.beside: Any = 0.0
        machine.learner.trained = self

    def __call__(self, update: Any, step: Step) -> Any:
        held = self.learner.state
        outgoing = self.trained(update, step)
        motion = getattr(held, "motion", None)
        self.model = self.model + outgoing[1]
        self.beside = self.beside + outgoing[1] - (0.0 if motion is None else motion)
        return outgoing


@pytest.mark.parametrize(("kind", "algorithm"), PAIRS, ids=lambda one: getattr(one, "__name__", type(one).__name__))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.integers(2, 5), st.integers(0, 10**6), st.floats(0, 0.5), st.floats(0, 0.3))
def test_the_sum_of_every_vector_is_kept_under_any_schedule(
    kind: Any, algorithm: Any, n: int, seed: int, loss: float, twice: float
) -> None:
    mixing, start = graph(kind, n), seeds.stream(seed, "start").normal(size=(n, 3))
    limits = SyncSettings(5) if kind is SyncGossip else PushSettings(5, seed=seed)
    machines = [kind(i, mixing, algorithm, frozen(start[i]), "s", limits) for i in range(n)]
    hand = Hand(machines, [mixing.partners(i) for i in range(n)], seed, wild=20 if kind is SyncGossip else 300)
    hand.loss, hand.twice = loss, twice
    hand.updates = {i: frozen(step) for i, step in enumerate(seeds.stream(seed, "updates").normal(size=(n, 3)))}
    trainings = [Trainings(machine) for machine in machines]
    hand.begin()
    hand.run()
    assume(not hand.reports["unsettled"] + hand.reports["taken_back"] + hand.reports["skipped"])  # which is told
    states = [machine.learner.state for machine in machines]
    moved, added = sum(one.model for one in trainings), sum(one.beside for one in trainings)
    assert np.allclose(sum(s.x for s in states), start.sum(axis=0) + moved, rtol=0, atol=1e-11)
    if kind is not SyncGossip:
        assert abs(sum(float(s.weight[0]) for s in states) - n) < 1e-12
    if hasattr(states[0], "motion"):
        assert np.allclose(sum(s.motion for s in states), added, rtol=0, atol=1e-11)
    else:
        assert np.abs(sum(s.correction for s in states)).max() < 1e-11
