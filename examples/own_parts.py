"""Parts of your own, each named "own_parts:NAME" in an experiment file; every participant has this file beside it.

    train.schedule          inverse    a / (t + b), the rate of theorems on convex problems
    train.optimizer         lion       the sign of a mean of gradients
    data.partition.kind     mostly     a share of each peer's examples at random, the others sorted by their label
    coordinator.algorithm   averaged   FedAvg, and the mean of its models as they come
    coordinator.sampling    InTurn     the clients one after another
    coordinator.codec       Coarse     each element to a quarter of the largest; parallel.codec too
    algorithm.options       Halved     it, as the codec of choco
    algorithm.combine       Nearest    the own model and the one nearest to it
    adversary.attack        Silent     nothing but zeros after the first round

A part depends on its arguments alone, and changes none of them: it is tried twice on a small case before a run.
"""

from dataclasses import dataclass, replace

import numpy as np

import fedgossip
from fedgossip.algorithms.federated.base import Federated
from fedgossip.algorithms.federated.fedavg import Training
from fedgossip.algorithms.federated.sums import Mean
from fedgossip.algorithms.sampling import Draw
from fedgossip.base.vectors import Vector, frozen, linear


def inverse(round, rounds):
    return 20 / (round + 20)


def lion(weights, gradient, first, second, rate):
    """The sign of a mean of gradients (Chen et al., Symbolic discovery of optimization algorithms, NeurIPS 2023)."""
    weights.sub_((first * 0.9 + gradient * 0.1).sign() * rate)
    first.mul_(0.99).add_(gradient * 0.01)


def mostly(labels, n, seed, iid=0.1):
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = round(iid * len(labels))
    spread, rest = order[:cut], order[cut:]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    return [np.concatenate(pair) for pair in zip(np.array_split(spread, n), np.array_split(rest, n), strict=True)]


@dataclass(frozen=True, eq=False)
class Two:
    x: Vector
    mean: Vector
    rounds: int = 0


@dataclass(frozen=True)
class Averaging:
    """Clients train from the mean of all models so far, with a share of `fresh` of the newest."""

    fresh: float

    def start(self, x):
        return Two(x, x)

    def broadcast(self, state):
        return (linear((self.fresh, state.x), (1 - self.fresh, state.mean)),)

    def step(self, state, aggregate):
        x = linear((1, self.broadcast(state)[0]), (1, aggregate.vectors[0]))
        share = 1 / (state.rounds + 2)
        return replace(state, x=x, mean=linear((1 - share, state.mean), (share, x)), rounds=state.rounds + 1)


def averaged(fresh=0.8):
    return Federated(Training(), Mean(), Averaging(fresh))


class InTurn:
    def __init__(self, clients, count):
        self.clients, self.count = clients, count

    def draw(self, round, here):
        wanted = {(round * self.count + k) % self.clients for k in range(self.count)}
        found = tuple(sorted(wanted & set(here)))
        return Draw(found, len(found))


class Coarse:
    def contraction(self, layout):
        return 0.0

    def size(self, layout, round):
        return layout.length + 4

    def encode(self, vector, layout, turn):
        largest = np.float32(np.abs(vector).max() or 1)
        levels = np.rint(vector / largest * 4).astype(np.int8)
        return np.concatenate([levels.view(np.uint8), np.array([largest], "<f4").view(np.uint8)])

    def decoded(self, payload, layout, turn):
        largest = payload[-4:].copy().view("<f4")[0]
        return (payload[:-4].view(np.int8) * (largest / 4)).astype(layout.dtype)


class Halved(Coarse):
    """One that contracts, for `algorithm.options.codec` of choco: an element is off by an eighth of the largest."""

    def contraction(self, layout):
        return max(0.05, 1 - layout.length / 64)


class Nearest:
    linear, tolerates = False, 0

    def combine(self, node, row, models):
        others = [j for j in row if j != node]
        near = min(others, key=lambda j: (float(np.linalg.norm(models[j] - models[node])), j))
        return linear((0.5, models[node]), (0.5, models[near]))


class Silent:
    aimed = False

    def vector(self, seen, to):
        return seen.own if seen.round == 0 else frozen(np.zeros_like(seen.own))


if __name__ == "__main__":
    coordinator = {"clients": 8, "cohort": 4, "algorithm": "own_parts:averaged", "sampling": "own_parts:InTurn"}
    run = fedgossip.simulate(
        {
            "rounds": 30,
            "data": {"partition": {"kind": "own_parts:mostly", "iid": 0.2}},
            "train": {"schedule": "own_parts:inverse", "device": "cpu"},
            "coordinator": {**coordinator, "codec": "own_parts:Coarse", "secure": {"on": False}},
        }
    )
    print("accuracy:", round(run.summary["score"]["averaged"], 3))
