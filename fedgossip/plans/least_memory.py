"""Minimum memory of a simulation, by formula: a run beyond this machine's memory is refused before it begins.

A lower bound, since a refused run must not be one that fits: measured runs took 1.1 to 3 times as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgossip.algorithms.federated.base import Work
from fedgossip.algorithms.sampling import Uniform
from fedgossip.experiment import FederatedExperiment, GossipExperiment
from fedgossip.plans.tasks import personal_of

if TYPE_CHECKING:
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.plans.gossip.gossip import GossipPlan
    from fedgossip.plans.parallel.parallel import ParallelPlan

PEER_VECTORS = 2
"""Minimum number of models of a peer or worker, without those that its task stores; 2.4 to 6.4 were measured."""
PEER_BYTES = {"sim": 40_000, "stacked": 5_000}
"""Minimum bytes of a peer beside its models, by engine; 52 000 and 7 600 were measured."""
CLIENT_BYTES = {"sim": 1_000, "stacked": 1_500}
"""Minimum bytes of a client that was not invited so far, by engine; 1 100 and 1 900 were measured."""


def of_peers(plan: GossipPlan, engine: str, size: int) -> int:
    """Return the minimum bytes of peers with models of `size` bytes."""
    return plan.n * ((PEER_VECTORS + _count_kept(plan.experiment)) * size + PEER_BYTES[engine])


def of_workers(plan: ParallelPlan, size: int) -> int:
    """Return the minimum bytes of workers with models of `size` bytes."""
    return plan.n * PEER_VECTORS * size


def of_clients(plan: FederationPlan, engine: str, size: int) -> int:
    """Return the minimum bytes of clients, and of what those store that a round has invited."""
    return plan.n * CLIENT_BYTES[engine] + _count_invited(plan) * _count_stored(plan, engine) * size


def _count_invited(plan: FederationPlan) -> int:
    """Return the mean number of clients that all rounds together invite; of one round if cohorts depend on the run."""
    uniform = isinstance(plan.sampling, Uniform) and plan.tree.flat and not plan.buffered
    rounds = plan.experiment.rounds if uniform and not plan.experiment.stop.patience else 1
    return int(plan.learners * (1 - (1 - plan.cohort / plan.learners) ** rounds))


def _count_stored(plan: FederationPlan, engine: str) -> int:
    """Return the number of models that a client stores after a round: of its task, its rule, and a clear answer."""
    rule, one = plan.federated.clients, np.zeros(1)
    work = Work(one, extra=(one[:0],))  # an `extra` has not the model's length: it is not counted
    _, memory = rule.upload((one,) * rule.vectors, (), work)
    errors = plan.codec is not None and plan.codec.remembers
    answer = engine == "sim" and not plan.secure and plan.codec is None
    return _count_kept(plan.experiment) + sum(vector.size for vector in memory) + errors + answer


def _count_kept(e: GossipExperiment | FederatedExperiment) -> int:
    """Return the number of models that a task stores for each trained participant: its own, and optimiser slots."""
    method = personal_of(e)
    own = 0 if method is None else method.kept + (e.learns and e.data.local_test > 0)
    return own + (len(e.train.slots) if e.learns else 0)
