"""Schedules that repeat: one-peer exponential, one-peer hypercube, Base-(k+1), window doubling.

Each has few links per round, so that a single round mixes badly (its slem is often 1), and one whole period well.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import IntArray, Topology
from fedgossip.topology.schedules import base_graph
from fedgossip.topology.schedules.schedules import Cycle
from fedgossip.topology.weights.mixing import Mixing, assemble, from_edge_weights
from fedgossip.topology.weights.weights import build


def one_peer_exponential(n: int) -> Cycle:
    """Return the schedule in which i sends to i + 2^(r mod ceil(log2 n)), weight 1/2.

    The exact mean after log2 n rounds where n is a power of two; elsewhere only an approximation.  Raises ConfigError
    for n < 2.

    Source: Ying et al., Exponential graph is provably efficient for decentralized deep training, NeurIPS 2021.
    """
    _require("one-peer-exponential", n)

    def make(phase: int) -> Mixing:
        senders, receivers, topology = _shifted(n, 1 << phase, "one-peer-exponential")
        halves = np.full(n, 0.5)
        return assemble(topology, "uniform", receivers, senders, halves, halves)

    return Cycle("one-peer-exponential", n, (n - 1).bit_length(), "uniform", make)


def one_peer_hypercube(n: int) -> Cycle:
    """Return the schedule in which i and i xor 2^k average, k = 0, 1, ...; the exact mean after log2 n rounds.

    Raises ConfigError for an n that is no power of two.

    Source: Shi et al., Finite-time convergent gossiping, IEEE/ACM Transactions on Networking 24 (2016).
    """
    if n < 2 or n & (n - 1):
        advice = f"Use one-peer-exponential or base:1 for any n, or {_powers_beside(n)} nodes."
        raise ConfigError(f"one-peer-hypercube of {n} nodes: not a power of two", advice)
    ids = np.arange(n, dtype=np.int64)

    def make(phase: int) -> Mixing:
        pairs = np.stack([ids, ids ^ (1 << phase)], axis=1)
        return build(Topology.from_edges(n, pairs, "one-peer-hypercube"))

    return Cycle("one-peer-hypercube", n, n.bit_length() - 1, "metropolis", make)


def base(n: int, k: int) -> Cycle:
    """Return the Base-(k+1) schedule: at most k links per node and round, the exact mean after each period.

    Raises ConfigError for n < 2 or k < 1.

    Source: Takezawa et al., NeurIPS 2023; see `base_graph`.
    """
    return _stepped(f"base:{k}", n, k, base_graph.base)


def simple_base(n: int, k: int) -> Cycle:
    """Return the Simple Base-(k+1) schedule: as `base`, for some n a few rounds longer.

    Raises ConfigError as `base` does.
    """
    return _stepped(f"simple-base:{k}", n, k, base_graph.simple_base)


def window_doubling(n: int) -> Cycle:
    """Return the rounds of window doubling: each node receives from one other, at doubling distances.

    Row i is {i: 0, source: 1}: what arrives is not averaged but counted, by algorithms.window_doubling, which has the
    exact mean after ceil(log2 n) rounds for every n.  Raises ConfigError for n < 2.

    Source: Ding et al., DSGD-CECA: decentralized SGD with communication-optimal exact consensus algorithm, ICML 2023.
    """
    _require("window-doubling", n)
    window, shifts = 0, []
    for bit in map(int, f"{n - 1:b}"):
        shifts.append(window + bit)
        window = 2 * window + bit

    def make(phase: int) -> Mixing:
        senders, receivers, topology = _shifted(n, shifts[phase], "window-doubling")
        return assemble(topology, "window", receivers, senders, np.ones(n), np.zeros(n))

    return Cycle("window-doubling", n, len(shifts), "window", make, algorithm="window-doubling")


def _shifted(n: int, shift: int, name: str) -> tuple[IntArray, IntArray, Topology]:
    senders = np.arange(n, dtype=np.int64)
    receivers = (senders + shift) % n
    arcs = np.stack([senders, receivers], axis=1)
    return senders, receivers, Topology.from_edges(n, arcs, name, True, circulant=(shift,))


def _stepped(name: str, n: int, k: int, steps_of: Callable[[int, int], list[base_graph.Step]]) -> Cycle:
    _require(name, n)
    if k < 1:
        raise ConfigError(f"{name}: a node needs a neighbour to average with", "Give at least 1, e.g. base:1.")
    steps = steps_of(n, k)

    def make(phase: int) -> Mixing:
        edges, weights = steps[phase]
        ordered = np.sort(edges, axis=1)
        order = np.argsort(ordered[:, 0] * n + ordered[:, 1])
        return from_edge_weights(Topology.from_edges(n, ordered[order], name), "base", weights[order])

    return Cycle(name, n, len(steps), "base", make)


def _require(name: str, n: int) -> None:
    if n < 2:
        raise ConfigError(f"{name} of {n} nodes", "Give at least 2 nodes.")


def _powers_beside(n: int) -> str:
    low = 1 << max(1, n.bit_length() - 1)
    return f"{low} or {2 * low}" if n > 2 else "2"
