"""Schedules with every round drawn independently: random matchings and Epidemic Learning."""

from __future__ import annotations

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs import families
from fedgossip.topology.graphs.graph import IntArray, Topology
from fedgossip.topology.schedules.schedules import Random
from fedgossip.topology.weights.mixing import Mixing, assemble
from fedgossip.topology.weights.weights import build, push_weights


def random_matching(n: int, seed: int) -> Random:
    """Return the schedule of uniformly random pairs that average; with an odd n one node sits out.

    E sum ||x_i - mean||^2 falls to (||W||_F^2 - 1)/(n - 1) of itself: 1/2 (1 - 1/(n - 1)) for even n, 1/2 for odd.
    Raises ConfigError for n < 2.
    """
    if n < 2:
        raise ConfigError(f"random-matching of {n} nodes", "Give at least 2 nodes.")

    def draw(stream: np.random.Generator) -> Mixing:
        pairs = stream.permutation(n)[: n - n % 2].reshape(-1, 2)
        return build(Topology.from_edges(n, pairs, "random-matching"))

    left = 0.5 if n % 2 else 0.5 * (1.0 - 1.0 / (n - 1))
    return Random("random-matching", n, "metropolis", seed, draw, left)


def epidemic_oracle(n: int, s: int, seed: int) -> Random:
    """Return Epidemic Learning with an oracle: a fresh random s-regular graph per round, weights 1/(s + 1).

    Drawn by giving the nodes of one fixed s-regular graph (a circulant) new places at random.  In expectation a round
    leaves (1/(s+1)) (1 - s/(n-1)) of sum ||x_i - mean||^2, as with any other way to draw s-regular graphs: a fixed W
    relabelled at random leaves (||W||_F^2 - 1)/(n - 1), and ||W||_F^2 = n/(s + 1) for all of them.

    Raises ConfigError for an odd n * s, and for an s that is not from 1 to n - 1.

    Source: de Vos et al., Epidemic learning: boosting decentralized learning with randomized communication, NeurIPS
    2023.
    """
    name = _pushed("el-oracle", n, s)
    if n * s % 2:
        raise ConfigError(
            f"{name} of {n} nodes: {n} times {s} is odd, so not all can have {s} neighbours",
            f"Use el-oracle:{s + 1 if s + 1 < n else s - 1}, an even number of nodes, or el-local:{s}.",
        )
    steps = [*range(1, s // 2 + 1), *([n // 2] if s % 2 else [])]
    fixed = families.circulant(n, tuple(steps)).edges

    def draw(stream: np.random.Generator) -> Mixing:
        return build(Topology.from_edges(n, stream.permutation(n)[fixed], name))

    return Random(name, n, "metropolis", seed, draw, (1.0 / (s + 1)) * (1.0 - s / (n - 1)))


def epidemic_local(n: int, s: int, seed: int) -> Random:
    """Return Epidemic Learning without an oracle: each node pushes to s random others and averages what arrives.

    Rows sum to one and columns do not: the mean is kept in expectation only, and wanders.  About the mean before the
    round, (1/s)(1 - (1 - s/(n-1))^n) - 1/(n-1) of sum ||x_i - mean||^2 is left in expectation.

    Raises ConfigError for an s that is not from 1 to n - 1.

    Source: de Vos et al., NeurIPS 2023, as above.
    """
    name = _pushed("el-local", n, s)

    def draw(stream: np.random.Generator) -> Mixing:
        topology = Topology.from_edges(n, _random_targets(stream, n, s), name, directed=True)
        starts, senders = topology.incoming
        counts = np.diff(starts)
        receivers = np.repeat(np.arange(n, dtype=np.int64), counts)
        shares = np.asarray(1.0 / (1.0 + counts), np.float64)
        return assemble(topology, "uniform", receivers, senders, shares[receivers], shares, "rows")

    left = (1.0 / s) * (1.0 - (1.0 - s / (n - 1)) ** n) - 1.0 / (n - 1)
    return Random(name, n, "uniform", seed, draw, left, "rows")


def epidemic_push(n: int, s: int, seed: int) -> Random:
    """Return the graphs of `epidemic_local` with weights for push-sum: 1/(s + 1) of a node's mass to each of s others.

    Raises ConfigError for an s that is not from 1 to n - 1.

    Source: Kempe, Dobra and Gehrke, Gossip-based computation of aggregate information, FOCS 2003.
    """
    name = _pushed("el-local", n, s)

    def draw(stream: np.random.Generator) -> Mixing:
        return push_weights(Topology.from_edges(n, _random_targets(stream, n, s), name, directed=True))

    return Random(name, n, "push", seed, draw, None, "columns")


def _random_targets(stream: np.random.Generator, n: int, s: int) -> IntArray:
    """Return arcs [n s, 2]: every node to s others, each set equally likely (Floyd's sampling, all nodes at once)."""
    chosen = np.empty((n, s), np.int64)
    for place in range(s):
        last = n - 1 - s + place
        picks = stream.integers(0, last + 1, n)
        taken = (chosen[:, :place] == picks[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, last, picks)
    ids = np.repeat(np.arange(n, dtype=np.int64), s)
    others = chosen.ravel()
    return np.stack([ids, others + (others >= ids)], axis=1)  # places among the others, oneself left out


def _pushed(word: str, n: int, s: int) -> str:
    if not 1 <= s < n:
        most = f"at most {n - 1}" if n > 1 else "and more than one node"
        raise ConfigError(f"{word}:{s} of {n} nodes", f"Give at least 1 other to send to, {most}, e.g. {word}:1.")
    return f"{word}:{s}"
