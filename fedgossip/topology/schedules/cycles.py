"""Schedules that repeat: one-peer exponential, one-peer hypercube, Base-(k+1), window doubling, Leja.

A single round mixes badly (slem is often 1), one whole period well.

**Base-(k+1) graphs**: rounds of at most k links per node with the exact mean as their product, for every number of
nodes.

    hyper-hypercube   write n = n_1 n_2 ... with factors of at most b = k + 1; in step l the nodes with equal
                      mixed-radix digits, except the l-th, average
    simple base       write n = a_1 b^p_1 + a_2 b^p_2 + ... and split the nodes into V_1, V_2, ... of these sizes
                      1. every V_l computes its own mean by its hyper-hypercube, M = p_1 + [a_1 > 1] steps
                      2. step s: every node of each later V_l links to one fresh node in each of the a_s blocks of V_s;
                         the remaining nodes of V_s average in groups of b
                      3. from step M + l + 1 on every block of V_l computes its mean by its hyper-hypercube (blocks of
                         one node: all of V_l)
                      A V_l that has finished its hyper-hypercube repeats it, so no node idles.
    base              n = p q, p the part with prime factors of at most b: the simple base graph in p blocks of q
                      nodes, then the hyper-hypercube across the blocks; or the simple one of all, if shorter

After 2. the mean of each block of V_l is the overall mean, so 3. ends with it everywhere.  Steps do not commute: all
peers must be in the same one.

Source: Takezawa, Sato, Bao, Niwa and Yamada, Beyond exponential graph: communication-efficient topologies for
decentralized learning via finite-time convergence, NeurIPS 2023.

**Leja**: the exact mean on one fixed graph, after one round per distinct eigenvalue of its Laplacian: W_k = I - L /
mu_k.  In ascending order intermediate models grow beyond floating-point precision; Leja's order, each mu_k far from the
earlier ones, keeps them small.  Own weights may be negative.

Sources: Kibangou, Graph Laplacian based matrix design for finite-time distributed average consensus, ACC 2012 (the
factors; title and venue not checked); Reichel, Newton interpolation at Leja points, BIT 30 (1990) (the order).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology
from fedgossip.topology.schedules.schedules import Cycle
from fedgossip.topology.spectra import eigen
from fedgossip.topology.weights.mixing_matrix import Mixing, assemble, from_edge_weights
from fedgossip.topology.weights.weights import build


def one_peer_exponential(n: int) -> Cycle:
    """Return the schedule with weight 1/2 from i to i + 2^(r mod ceil(log2 n)) in round r.

    The exact mean after log2 n rounds if n is a power of two, else approximate.  Raises ConfigError for n < 2.

    Source: Ying et al., Exponential graph is provably efficient for decentralized deep training, NeurIPS 2021.
    """
    _require("one-peer-exponential", n)

    def make(phase: int) -> Mixing:
        senders, receivers, topology = _shifted(n, 1 << phase, "one-peer-exponential")
        halves = np.full(n, 0.5)
        return assemble(topology, "uniform", receivers, senders, halves, halves)

    return Cycle("one-peer-exponential", n, (n - 1).bit_length(), "uniform", make)


def one_peer_hypercube(n: int) -> Cycle:
    """Return the schedule that averages i and i xor 2^k, k = 0, 1, ...; the exact mean after log2 n rounds.

    Raises ConfigError if n is not a power of two.

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

    Source: Takezawa et al., NeurIPS 2023.
    """
    return _stepped(f"base:{k}", n, k, base_rounds)


def simple_base(n: int, k: int) -> Cycle:
    """Return the Simple Base-(k+1) schedule: as `base`, for some n a few rounds longer.

    Raises ConfigError as `base` does.
    """
    return _stepped(f"simple-base:{k}", n, k, simple_base_rounds)


def window_doubling(n: int) -> Cycle:
    """Return the rounds of window doubling: each node receives from one other, at doubling distances.

    Row i is {i: 0, source: 1}: algorithms.window_doubling counts the received models, and reaches the exact mean after
    ceil(log2 n) rounds for every n.  Raises ConfigError for n < 2.

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


def _stepped(name: str, n: int, k: int, steps_of: Callable[[int, int], list[Step]]) -> Cycle:
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


Step = tuple[IntArray, FloatArray]
"""(edges [m, 2], weights [m]) of one round; a node keeps the remainder to one."""


def base_rounds(n: int, k: int) -> list[Step]:
    """Return the rounds of the Base-(k+1) graph on the nodes 0..n-1; k >= 1, n >= 2."""
    nodes = np.arange(n, dtype=np.int64)[None]
    simple = _simple(nodes, k + 1)
    p, q = _smooth_part(n, k + 1)
    if p == 1 or q == 1:
        return simple
    blocks = nodes.reshape(p, q)
    crossed = [*_simple(blocks, k + 1), *_hyper_hypercube(blocks.T, k + 1)]
    return min(crossed, simple, key=len)


def simple_base_rounds(n: int, k: int) -> list[Step]:
    """Return the rounds of the Simple Base-(k+1) graph on the nodes 0..n-1; k >= 1, n >= 2."""
    return _simple(np.arange(n, dtype=np.int64)[None], k + 1)


def _simple(nodes: IntArray, b: int) -> list[Step]:
    """Return the simple base graph of every row of `nodes` [sets, size], side by side."""
    sets, size = nodes.shape
    if fewest_factors(size, b) is not None:
        return _hyper_hypercube(nodes, b)
    digits = _digits(size, b)
    first, highest = digits[0]
    own = highest + (first > 1)
    steps: list[list[Step]] = [[] for _ in range(own + 1 + highest)]
    start = 0
    for place, (count, power) in enumerate(digits):
        stop = start + count * b**power
        part, later = nodes[:, start:stop], nodes[:, _last_first(digits[place + 1 :], b, stop)]
        blocks = part.reshape(sets, count, -1)
        _repeat(steps[:own], _hyper_hypercube(part, b))
        if later.size:
            share = (stop - start) / (size - start)
            steps[own + place] += [_exchange(blocks, later, share / count), _those_left(blocks, later.shape[1], b)]
        done = own + place + (1 if later.size else 0)
        _repeat(steps[done:], _hyper_hypercube(part if power == 0 else blocks.reshape(sets * count, -1), b))
        start = stop
    return [_joined(parts) for parts in steps]


def _last_first(digits: list[tuple[int, int]], b: int, start: int) -> IntArray:
    """Return the positions of V_1, V_2, ... from `start` on, the last V first."""
    sizes = np.array([0, *(count * b**power for count, power in digits)])
    starts = start + np.cumsum(sizes)
    ranges = [np.arange(first, after) for first, after in itertools.pairwise(starts)]
    return np.concatenate([*ranges[::-1], np.empty(0, np.int64)])


def _exchange(blocks: IntArray, later: IntArray, weight: float) -> Step:
    """Link `later` [sets, m] to the last m nodes of every block of `blocks` [sets, count, size]."""
    there = blocks[:, :, ::-1][:, :, : later.shape[1]]
    here = np.broadcast_to(later[:, None], there.shape)
    edges = np.stack([here.ravel(), there.ravel()], axis=1)
    return edges, np.full(len(edges), weight)


def _those_left(blocks: IntArray, taken: int, b: int) -> Step:
    left = blocks[:, :, : blocks.shape[2] - taken].reshape(len(blocks), -1)
    return _joined([_cliques(left[:, at : at + b]) for at in range(0, left.shape[1], b)])


def _cliques(nodes: IntArray) -> Step:
    """Return the step that averages within every row of `nodes` [cliques, size]."""
    one, other = np.triu_indices(nodes.shape[1], 1)
    edges = np.stack([nodes[:, one].ravel(), nodes[:, other].ravel()], axis=1)
    return edges, np.full(len(edges), 1.0 / max(1, nodes.shape[1]))


def _hyper_hypercube(nodes: IntArray, b: int) -> list[Step]:
    """Return the hyper-hypercube of every row of `nodes` [sets, size]; size has no prime factor above b."""
    sets, size = nodes.shape
    factors = fewest_factors(size, b)
    assert factors is not None, f"{size} has a prime factor above {b}"
    grid = nodes.reshape(sets, *factors)
    steps = []
    for axis in range(len(factors), 0, -1):  # neighbours in the list first, smallest factor first, as published
        factor = factors[axis - 1]
        steps.append(_cliques(np.moveaxis(grid, axis, -1).reshape(-1, factor)))
    return steps


@lru_cache(maxsize=4096)
def fewest_factors(size: int, largest: int) -> tuple[int, ...] | None:
    """Return the shortest list of factors of `size`, each at most `largest`; None if a prime factor is larger."""
    if size == 1:
        return ()
    best = None
    for factor in range(min(size, largest), 1, -1):
        rest = fewest_factors(size // factor, largest) if size % factor == 0 else None
        if rest is not None and (best is None or len(rest) + 1 < len(best)):
            best = (factor, *rest)
    return best


def _smooth_part(n: int, b: int) -> tuple[int, int]:
    """Return (p, q), n = p q: all prime factors of p are at most b, and those of q larger."""
    q = n
    for factor in range(2, min(b, n) + 1):
        while q % factor == 0:
            q //= factor
    return n // q, q


def _digits(size: int, b: int) -> list[tuple[int, int]]:
    digits = []
    power = 0
    while size:
        size, digit = divmod(size, b)
        if digit:
            digits.append((digit, power))
        power += 1
    return digits[::-1]


def _repeat(steps: list[list[Step]], cycle: list[Step]) -> None:
    """Extend each of `steps` by one step of `cycle`, cyclically."""
    for step, more in zip(steps, itertools.cycle(cycle), strict=False):
        step.append(more)


def _joined(parts: list[Step]) -> Step:
    edges = [np.empty((0, 2), np.int64), *(edges for edges, _ in parts)]
    return np.concatenate(edges), np.concatenate([np.empty(0), *(weights for _, weights in parts)])


MOST_GROWTH = 1e6
"""Maximum intermediate growth of a mode: the error of the exact mean is this multiple of rounding."""

LARGEST = 1500  # nodes
SAME = 1e-9  # share of the largest eigenvalue below which two are one


def leja(graph: Topology) -> Cycle:
    """Return the rounds that reach the exact mean on `graph`.

    Raises ConfigError for a directed or too large graph, and growth beyond MOST_GROWTH.
    """
    name = f"leja:{graph.name}"
    if graph.directed or graph.n > LARGEST:
        what = "is directed" if graph.directed else f"has {graph.n} nodes; at most {LARGEST} fit"
        raise ConfigError(f"{name}: the graph {what}", "Take base:1, which is exact on any number of nodes.")
    mu = leja_order(distinct(graph))
    grown = growth(mu)
    if grown > MOST_GROWTH:
        text = f"{name}: {len(mu)} distinct eigenvalues, by which models would grow {grown:.1e} times on the way"
        raise ConfigError(text, "Take a graph of more symmetry, such as a torus or hypercube, or base:1.")

    def make(phase: int) -> Mixing:
        return from_edge_weights(graph, "leja", np.full(len(graph.edges), 1.0 / mu[phase]))

    return Cycle(name, graph.n, len(mu), "leja", make)


def distinct(graph: Topology) -> FloatArray:
    """Return the distinct nonzero eigenvalues of the Laplacian, ascending."""
    values = eigen.laplacian_values(graph)[1:]
    apart = np.diff(values, prepend=-np.inf) > SAME * values[-1]
    groups = np.split(values, np.flatnonzero(apart)[1:])
    return np.array([group.mean() for group in groups])


def leja_order(values: FloatArray) -> FloatArray:
    """Return the values, the largest first, then each with the largest product of distances to the previous ones."""
    left, order = list(values), [values[-1]]
    left.remove(values[-1])
    logs = np.zeros(len(left))
    while left:
        logs = logs + np.log(np.abs(np.array(left) - order[-1]))
        best = int(np.argmax(logs))
        order.append(left.pop(best))
        logs = np.delete(logs, best)
    return np.array(order)


def growth(order: FloatArray) -> float:
    """Return the largest factor of a mode over any stretch of rounds, max_{k<=l} max_mu prod_{k<=j<=l} |1 - mu / mu_j|,
    at least 1.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(np.abs(1.0 - order[None, :] / order[:, None]))  # a round's own mode: -inf, it is gone
    running, most = np.zeros(order.size), 0.0
    for rounds in logs:
        running = np.maximum(running, 0.0) + rounds
        most = max(most, float(running.max()))
    return float(np.exp(min(most, 700.0)))
