"""EquiTopo: random shifts of a circle, with a consensus rate independent of the number of nodes.

    equi-static      M shifts drawn once: W = 1/M sum_m [ (n-1)/n P_m + 1/n I ], P_m the shift by a_m
    u-equi-static    the same both ways: (W + W') / 2
    equi-dynamic     a new shift in every round: (1 - eta) I + eta [ (n-1)/n P + 1/n I ]
    u-equi-dynamic   a new shift in every round, and pairs along it: each node with at most one other

The static ones have rho <= eps with probability 1 - p for M = 8 ln(2n/p) / (3 eps^2), whatever n is.

Source: Song, Li, Jin, Shi, Yan, Yin and Yuan, Communication-efficient topologies for decentralized learning with O(1)
consensus rate, NeurIPS 2022.
"""

from __future__ import annotations

import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology
from fedgossip.topology.schedules.schedules import Random
from fedgossip.topology.weights.mixing import Mixing, assemble, from_edge_weights

ETA = 0.5
"""The exchange in a round of a dynamic graph; a half leaves (n - 1) / 2n of the square, the least there is."""


def static(n: int, m: int, seed: int, both_ways: bool = False) -> Mixing:
    """Return the mixing of m shifts, drawn uniformly from 1..n-1 with repetition; `both_ways`: and of their reverses.

    Raises ConfigError for n < 2 or m < 1.
    """
    word = "u-equi-static" if both_ways else "equi-static"
    if n < 2 or m < 1:
        raise ConfigError(f"{word}:{m} of {n} nodes", f"Give at least 2 nodes and 1 shift, e.g. {word}:4.")
    shifts = seeds.stream(seed, "equi-static", n, m).integers(1, n, m)
    share = (n - 1) / n / m
    weights: FloatArray = np.bincount(shifts, np.full(m, share), n).astype(np.float64)
    if both_ways:
        weights = np.asarray(0.5 * (weights + weights[-np.arange(n) % n]), np.float64)
    offsets = np.flatnonzero(weights)
    senders = np.tile(np.arange(n, dtype=np.int64), offsets.size)
    receivers = (senders + np.repeat(offsets, n)) % n
    given = np.repeat(weights[offsets], n)
    kept = np.full(n, 1.0 - float(weights.sum()))
    arcs = np.stack([senders, receivers], axis=1)
    ways = tuple(int(offset) for offset in offsets if not both_ways or 2 * offset <= n)
    topology = Topology.from_edges(n, arcs, f"{word}:{m}", not both_ways, circulant=ways)
    return assemble(topology, "equitopo", receivers, senders, given, kept)


def dynamic(n: int, eta: float, seed: int) -> Random:
    """Return the schedule in which all send to the node a further on, a drawn in every round.

    In expectation a round leaves c^2 + s^2 - 2cs/(n-1) of sum ||x_i - mean||^2, where c = 1 - s and s = eta (n-1)/n.
    Raises ConfigError for n < 2 and for an eta that is not above 0 and at most 1.
    """
    name = _named("equi-dynamic", n, eta)
    ids = np.arange(n, dtype=np.int64)
    given = eta * (n - 1) / n

    def draw(stream: np.random.Generator) -> Mixing:
        shift = int(stream.integers(1, n))
        receivers = (ids + shift) % n
        topology = Topology.from_edges(n, np.stack([ids, receivers], axis=1), name, True, circulant=(shift,))
        return assemble(topology, "equitopo", receivers, ids, np.full(n, given), np.full(n, 1.0 - given))

    left = (1 - given) ** 2 + given**2 - 2 * given * (1 - given) / (n - 1)
    return Random(name, n, "equitopo", seed, draw, left)


def dynamic_pairs(n: int, eta: float, seed: int) -> Random:
    """Return the schedule of random pairs along one shift: from a drawn start on each node, and the one a shift further
    on, where both are free.

    Over all shifts and starts, in expectation, a round leaves the more of a disagreement the more it looks like one
    wave round the circle: `moment` has all of it.  Raises ConfigError as `dynamic` does.
    """
    name = _named("u-equi-dynamic", n, eta)
    given = eta * (n - 1) / n

    def draw(stream: np.random.Generator) -> Mixing:
        shift, start = int(stream.integers(1, n)), int(stream.integers(0, n))
        pairs = pairs_along(n, shift, start)
        topology = Topology.from_edges(n, pairs, name)
        return from_edge_weights(topology, "equitopo", np.full(len(topology.edges), given))

    def moment(M: FloatArray) -> FloatArray:
        """Where M is the same for all nodes but turned, as I - J is, the start only turns the result: take its mean."""
        total = np.zeros_like(M)
        for shift in range(1, n):
            W = _paired(n, pairs_along(n, shift, 0), given)
            total += W.T @ M @ W
        row = np.stack([np.roll(total[i], -i) for i in range(n)]).mean(axis=0) / (n - 1)
        return np.stack([np.roll(row, i) for i in range(n)])

    return Random(name, n, "equitopo", seed, draw, None, moment=moment)


def _paired(n: int, pairs: IntArray, given: float) -> FloatArray:
    W = np.eye(n)
    one, other = pairs.T
    W[one, one] = W[other, other] = 1.0 - given
    W[one, other] = W[other, one] = given
    return W


def pairs_along(n: int, shift: int, start: int) -> IntArray:
    """Return pairs [k, 2] of i and i + shift mod n, i from `start` on, where both are free."""
    free = [True] * n
    pairs = []
    for place in range(n):
        one = (start + place) % n
        other = (one + shift) % n
        if free[one] and free[other]:
            free[one] = free[other] = False
            pairs.append((one, other))
    return np.array(pairs, np.int64).reshape(-1, 2)


def _named(word: str, n: int, eta: float) -> str:
    if n < 2 or not 0 < eta <= 1:
        raise ConfigError(f"{word}:{eta:g} of {n} nodes", f"Give 2 nodes or more and a share in (0, 1]: {word}:0.5.")
    return word if eta == ETA else f"{word}:{eta:g}"
