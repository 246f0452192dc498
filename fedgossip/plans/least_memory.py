"""Minimum memory of a simulation, by formula: a run beyond this machine's memory is refused before it begins.

A lower bound, since a refused run must not be one that fits: measured runs took 1.1 to 3 times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.codecs.base import Codec
from fedgossip.algorithms.federated.base import Federated, Work
from fedgossip.algorithms.sampling import Sampling, Uniform
from fedgossip.experiment import FederatedExperiment, GossipExperiment
from fedgossip.plans.tasks import personal_of

PEER_VECTORS = 2
"""Minimum number of models of a peer or worker, without those that its task stores; 2.4 to 6.4 were measured."""
PEER_BYTES = {"sim": 40_000, "stacked": 5_000}
"""Minimum bytes of a peer beside its models, by engine; 52 000 and 7 600 were measured."""
CLIENT_BYTES = {"sim": 1_000, "stacked": 1_500}
"""Minimum bytes of a client that was not invited so far, by engine; 1 100 and 1 900 were measured."""


def of_peers(n: int, e: GossipExperiment, engine: str, size: int) -> int:
    """Return the minimum bytes of `n` peers with models of `size` bytes."""
    return n * ((PEER_VECTORS + _count_kept(e)) * size + PEER_BYTES[engine])


def of_workers(n: int, size: int) -> int:
    """Return the minimum bytes of `n` workers with models of `size` bytes."""
    return n * PEER_VECTORS * size


@dataclass(frozen=True)
class Clients:
    """What the memory of simulated clients depends on.  `cohort`: number of clients of a round."""

    learners: int
    cohort: int
    experiment: FederatedExperiment
    federated: Federated[Any]
    sampling: Sampling
    codec: Codec | None

    def least_memory(self, engine: str, size: int) -> int:
        """Return the minimum bytes of the clients, and of the models [`size` bytes] of those that a round invited."""
        return self.learners * CLIENT_BYTES[engine] + self._count_invited() * self._count_stored(engine) * size

    def _count_invited(self) -> int:
        """Return the mean number of clients that all rounds together invite; of one round if cohorts depend on the run
        or on others.
        """
        e = self.experiment
        uniform = isinstance(self.sampling, Uniform) and not e.coordinator.tiers
        rounds = e.rounds if uniform and not e.stop.patience else 1
        return int(self.learners * (1 - (1 - self.cohort / self.learners) ** rounds))

    def _count_stored(self, engine: str) -> int:
        """Return the number of models that a client stores after a round: of its task, its rule, and a clear answer."""
        rule, one = self.federated.clients, np.zeros(1)
        work = Work(one, extra=(one[:0],))  # an `extra` has not the model's length: it is not counted
        _, memory = rule.upload((one,) * rule.vectors, (), work)
        errors = self.codec is not None and self.codec.remembers
        answer = engine == "sim" and not self.experiment.coordinator.secure.on and self.codec is None
        return _count_kept(self.experiment) + sum(vector.size for vector in memory) + errors + answer


def _count_kept(e: GossipExperiment | FederatedExperiment) -> int:
    """Return the number of models that a task stores for each trained participant: its own, and optimiser slots."""
    method = personal_of(e)
    own = 0 if method is None else method.kept + (e.learns and e.data.local_test > 0)
    return own + (len(e.train.slots) if e.learns else 0)
