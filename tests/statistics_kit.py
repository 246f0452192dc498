"""A model with running statistics, in numpy alone: quadratic parameters, and moments of what a node sees.

What is counted does not depend on the parameters, so the statistics of a run follow from who is averaged with whom: a
method that does anything else with them shows.  Variances fall from 1e5 to 1e-3 and rise to 1e4 again, as the first
batches and unlike nodes have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen, linear, subtract
from fedgossip.core.machine import NodeId
from fedgossip.core.task import STATISTIC, Job, Segment, Update

PARAMETERS, CHANNELS = 7, 3
MEAN, VARIANCE = "norm.running_mean", "norm.running_var"
SEGMENTS = (
    Segment("weight", 0, (PARAMETERS,)),
    Segment(MEAN, PARAMETERS, (CHANNELS,), STATISTIC),
    Segment(VARIANCE, PARAMETERS + CHANNELS, (CHANNELS,), STATISTIC),
)
FRESH = np.float32(0.9)
"""Share of a new batch in a statistic."""


class CountingTask:
    """A LocalTask.  `counted` has the statistics that every training has ended with."""

    length, dtype, schema = PARAMETERS + 2 * CHANNELS, np.dtype(np.float32), "counting"
    segments = SEGMENTS

    def __init__(self, n: int) -> None:
        self.n = n
        self.counted = [self.initial(0)[PARAMETERS:]]

    def initial(self, node: NodeId) -> Vector:
        return frozen(np.array([0.5] * PARAMETERS + [0.0] * CHANNELS + [1e5] * CHANNELS, np.float32))

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._trained(job) for job in jobs]

    def _trained(self, job: Job) -> Update:
        rng = stream(0, "batch", job.node, job.round)
        target, seen = rng.random(PARAMETERS, np.float32) - job.node, rng.random(2 * CHANNELS, np.float32)
        seen[:CHANNELS] = 10 * seen[:CHANNELS] - 5
        seen[CHANNELS:] *= 1e4 if (job.node + job.round) % 2 else 1e-3
        parameters, statistics = job.vector[:PARAMETERS], job.vector[PARAMETERS:]
        counted = linear((1 - FRESH, statistics), (FRESH, seen))
        self.counted.append(counted)
        moved = np.float32(0.1) * (target - parameters)
        change = frozen(np.concatenate([moved, subtract(counted, statistics)]))
        return Update(change, job.node + 1, {"loss": 1.0, "steps": 1.0, "rate": 0.1})

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """The loss is not a number where a variance is below 0, as that of BatchNorm."""
        return [{"loss": self._loss(vector)} for vector in vectors]

    def _loss(self, vector: Vector) -> float:
        if (vector[PARAMETERS + CHANNELS :] < 0).any():
            return float("nan")
        return float(np.square(vector[:PARAMETERS] + np.float32((self.n - 1) / 2)).mean())


def gossip(name: str = "dsgd", graph: str = "ring", n: int = 5, weights: str = "", **algorithm: Any) -> dict[str, Any]:
    topology = {"graph": graph, "n": n, **({"weights": weights} if weights else {})}
    return {**RUN, "topology": topology, "algorithm": {"name": name, "deadline": 1e5, **algorithm}}


def federated(algorithm: str = "fedavg", *, secure: bool = False, **coordinator: Any) -> dict[str, Any]:
    section = {"clients": 5, "min_clients": 3, "algorithm": algorithm, "secure": {"on": secure}}
    return {**RUN, "coordinator": {**section, **coordinator}}


def parallel(**section: Any) -> dict[str, Any]:
    return {**RUN, "parallel": {"workers": 5, "method": "ring", **section}}


RUN: Mapping[str, Any] = {
    "rounds": 6,
    "task": {"kind": "quadratic", "dim": CountingTask.length},
    "eval": {"every": 3},
}
