"""Graph families: pure functions from sizes (and a seed) to a Topology, identical on every machine.

An impossible size raises ConfigError, which names the nearest possible sizes.

**EquiTopo** uses random shifts of a circle, with a consensus rate independent of the number of nodes:

    equi-static      M shifts drawn once: W = 1/M sum_m [ (n-1)/n P_m + 1/n I ], P_m the shift by a_m
    u-equi-static    the same in both directions: (W + W') / 2
    equi-dynamic     a new shift in every round: (1 - eta) I + eta [ (n-1)/n P + 1/n I ]
    u-equi-dynamic   a new shift in every round, and pairs along it: each node with at most one other

The static ones have rho <= eps with probability 1 - p for M = 8 ln(2n/p) / (3 eps^2), for every n.

Source: Song, Li, Jin, Shi, Yan, Yin and Yuan, Communication-efficient topologies for decentralized learning with O(1)
consensus rate, NeurIPS 2022.

**Label-aware graphs** give each peer few links, and neighbourhoods with labels like the whole data:

    stl_fw      Frank-Wolfe over doubly stochastic matrices on H(W) + lambda/n ||W - J||_F^2: every step adds one
                permutation, so after l steps no node has more than l senders
    d_cliques   cliques with the overall label distribution, found by swaps; joined in a ring, or each pair joined

Sources: Le Bars et al., AISTATS 2023 (STL-FW); Bellet, Kermarrec and Lavoie, D-Cliques: compensating for data
heterogeneity with topology in decentralized federated learning, SRDS 2022.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology
from fedgossip.topology.schedules.schedules import Random
from fedgossip.topology.spectra import eigen
from fedgossip.topology.weights.mixing_matrix import Mixing, assemble, from_edge_weights

MAX_NODES = 20_000_000
MAX_EDGES = 50_000_000  # 800 MB of edges; a graph beyond this is a mistake in the file, seldom a wish
TRIES = 200  # draws of a random graph until one is connected


# --- one parameter ----------------------------------------------------------------------------------------------


def empty(n: int) -> Topology:
    """Return n nodes without edges: the baseline without exchanges."""
    _require("none", n, lambda size: size >= 1)
    return Topology.from_edges(n, np.empty((0, 2), np.int64), "none", circulant=())


def ring(n: int) -> Topology:
    """Return the cycle of n >= 2 nodes (of 2: one edge).  Raises ConfigError for fewer nodes."""
    _require("ring", n, lambda size: size >= 2)
    return circulant(n, (1,), name="ring")


def path(n: int) -> Topology:
    """Return n >= 2 nodes in a line.  Raises ConfigError for fewer nodes."""
    _require("path", n, lambda size: size >= 2)
    ids = np.arange(n, dtype=np.int64)
    found = Topology.from_edges(n, np.stack([ids[:-1], ids[1:]], axis=1), "path")
    return replace(found, laplacian=partial(eigen.path, n))


def star(n: int) -> Topology:
    """Return node 0 joined to all others; n >= 2.  Raises ConfigError for fewer nodes."""
    _require("star", n, lambda size: size >= 2)
    leaves = np.arange(1, n, dtype=np.int64)
    found = Topology.from_edges(n, np.stack([np.zeros_like(leaves), leaves], axis=1), "star")
    return replace(found, laplacian=partial(eigen.star, n))


def complete(n: int) -> Topology:
    """Return n >= 2 nodes, each joined to every other.

    Raises ConfigError for fewer nodes, and for more edges than the limit.
    """
    _require("complete", n, lambda size: size >= 2)
    _limit_edges("complete", n, n * (n - 1) // 2)
    return circulant(n, tuple(range(1, n // 2 + 1)), name="complete")


def hypercube(n: int) -> Topology:
    """Return n = 2^d nodes, joined if their binary ids differ in one digit.

    Raises ConfigError if n is not a power of two.
    """
    _require("hypercube", n, lambda size: size >= 2 and size & (size - 1) == 0)
    ids = np.arange(n, dtype=np.int64)
    flips = [np.stack([ids, ids ^ (1 << bit)], axis=1) for bit in range(n.bit_length() - 1)]
    found = Topology.from_edges(n, np.concatenate(flips), "hypercube")
    return replace(found, laplacian=partial(eigen.hypercube, len(flips)))


def exponential(n: int) -> Topology:
    """Return the undirected static exponential graph: i joined to i + 1, i + 2, i + 4, ... mod n, both ways."""
    _require("exponential", n, lambda size: size >= 2)
    return circulant(n, _powers(n), name="exponential")


def directed_exponential(n: int) -> Topology:
    """Return the directed static exponential graph: i sends to i + 2^j mod n, for 2^j < n.

    Source: Ying et al., Exponential graph is provably efficient for decentralized deep training, NeurIPS 2021.
    """
    _require("directed-exponential", n, lambda size: size >= 2)
    steps = _powers(n)
    return Topology(n, partial(_turned, n, steps, True), "directed-exponential", True, circulant=steps)


def two_cliques(n: int) -> Topology:
    """Return two cliques of n/2 nodes joined by one edge; n even, at least 4.  Raises ConfigError for other n."""
    _require("two-cliques", n, lambda size: size >= 4 and size % 2 == 0)
    return _renamed(barbell(n // 2, 0), "two-cliques")


# --- more parameters --------------------------------------------------------------------------------------------


def circulant(n: int, offsets: tuple[int, ...], name: str = "circulant") -> Topology:
    """Return i joined to (i + o) mod n for every offset o, both ways; may be disconnected (`resolve`).

    Raises ConfigError for n < 2, and an offset that is 0 modulo n.
    """
    _require(name, n, lambda size: size >= 2)
    small = sorted({min(o % n, -o % n) for o in offsets})
    if not small or small[0] == 0:
        raise ConfigError(f"{name} of {n} nodes with offsets {offsets}", f"Give offsets between 1 and {n - 1}.")
    _limit_edges(name, n, n * len(small))
    return Topology(n, partial(_turned, n, tuple(small), False), name, circulant=tuple(small))


def torus(rows: int, columns: int) -> Topology:
    """Return the rows x columns grid with both borders joined; sides >= 2.  A side of 2 gives degree 3, not 4.

    Raises ConfigError for smaller sides.
    """
    return _lattice("torus", rows, columns, wrapped=True)


def grid(rows: int, columns: int) -> Topology:
    """Return the open rows x columns grid; sides >= 2.  Raises ConfigError for smaller sides."""
    return _lattice("grid", rows, columns, wrapped=False)


def tree(n: int, branching: int = 2) -> Topology:
    """Return the tree with (i - 1) // branching as the parent of node i >= 1; n >= 2.

    Raises ConfigError for fewer nodes, and for no branches.
    """
    _require("tree", n, lambda size: size >= 2)
    if branching < 1:
        raise ConfigError(f"tree with {branching} branches per node", "Give at least 1, e.g. tree:2.")
    children = np.arange(1, n, dtype=np.int64)
    return Topology.from_edges(n, np.stack([(children - 1) // branching, children], axis=1), "tree")


def barbell(clique: int, between: int) -> Topology:
    """Return two cliques of `clique` >= 2 nodes joined by a path of `between` more nodes, as networkx numbers them.

    Raises ConfigError for smaller cliques.
    """
    if clique < 2 or between < 0:
        raise ConfigError(f"barbell:{clique},{between}", "Give cliques of at least 2 and 0 or more nodes between.")
    n = 2 * clique + between
    _limit_edges("barbell", n, clique * clique)
    return Topology(n, partial(_barbell, clique, between), "barbell")


def _barbell(clique: int, between: int) -> IntArray:
    counts = np.arange(clique - 1, 0, -1)  # of each node's neighbours with higher ids
    lower = np.repeat(np.arange(clique - 1), counts)
    higher = np.arange(len(lower)) - np.repeat(np.cumsum(counts) - counts - np.arange(1, clique), counts)
    middle = np.arange(clique - 1, clique + between)
    further = clique + between
    edges = np.empty((2 * len(lower) + len(middle), 2), np.int64)
    for column, (near, bridge) in enumerate([(lower, middle), (higher, middle + 1)]):
        edges[: len(lower), column] = near
        edges[len(lower) : -len(lower), column] = bridge
        np.add(near, further, out=edges[len(edges) - len(lower) :, column])
    edges.flags.writeable = False
    return edges


def petersen() -> Topology:
    """Return the Petersen graph: 10 nodes of degree 3, diameter 2."""
    import networkx as nx

    return Topology.from_networkx(nx.petersen_graph(), "petersen")


def heawood() -> Topology:
    """Return the Heawood graph: 14 nodes of degree 3, no cycle shorter than 6."""
    import networkx as nx

    return Topology.from_networkx(nx.heawood_graph(), "heawood")


def icosahedron() -> Topology:
    """Return the icosahedron: 12 nodes of degree 5."""
    import networkx as nx

    return Topology.from_networkx(nx.icosahedral_graph(), "icosahedron")


# --- drawn ------------------------------------------------------------------------------------------------------


def random_regular(n: int, degree: int, seed: int) -> Topology:
    """Return a connected random graph with `degree` neighbours per node, redrawn until connected.

    Raises ConfigError unless n times degree is even and degree below n, and if none of `TRIES` draws is connected.
    """
    if degree < 1:
        raise ConfigError(f"regular:{degree}", "Give a degree of at least 1, e.g. regular:3.")
    _require(f"regular:{degree}", n, lambda size: _has_regular(size, degree))
    _limit_edges("regular", n, n * degree // 2)
    if degree == n - 1:
        return _renamed(complete(n), "regular")
    import networkx as nx

    def draw(number: int) -> Any:
        return nx.random_regular_graph(degree, n, number)

    return _connected("regular", draw, (n, degree, seed), "Degree 2 seldom joins all: use ring, or a larger degree.")


def erdos_renyi(n: int, p: float, seed: int) -> Topology:
    """Return a connected graph that joins each pair with probability p, redrawn until connected.

    Raises ConfigError for p outside [0, 1], and if none of `TRIES` draws is connected, as is likely for p < ln(n) / n.
    """
    _require("erdos-renyi", n, lambda size: size >= 2)
    _probability("erdos-renyi", p)
    _limit_edges("erdos-renyi", n, int(p * n * (n - 1) / 2))
    import networkx as nx

    def draw(number: int) -> Any:
        return nx.fast_gnp_random_graph(n, p, number)

    enough = min(1.0, 2 * math.log(n) / n)
    return _connected("erdos-renyi", draw, (n, seed), f"Raise p: about {enough:.2g} is enough for {n} nodes.")


def small_world(n: int, k: int, p: float, seed: int) -> Topology:
    """Return a connected Watts-Strogatz graph: a ring with k neighbours each, edges rewired with probability p.

    Raises ConfigError for an odd k, k >= n, p outside [0, 1], and if none of `TRIES` draws is connected.
    """
    _require("small-world", n, lambda size: size > k)
    _probability("small-world", p)
    if k < 2 or k % 2:
        raise ConfigError(f"small-world:{k},{p:g}", "Give an even number of neighbours, at least 2.")
    import networkx as nx

    def draw(number: int) -> Any:
        return nx.watts_strogatz_graph(n, k, p, number)

    return _connected("small-world", draw, (n, k, seed), "Lower p or raise k.")


def barabasi_albert(n: int, m: int, seed: int) -> Topology:
    """Return a graph grown by preferential attachment, m edges per new node.  Raises ConfigError for m < 1 or m >=
    n.
    """
    if m < 1:
        raise ConfigError(f"barabasi-albert:{m}", "Give at least 1 edge per new node.")
    _require("barabasi-albert", n, lambda size: size > m)
    _limit_edges("barabasi-albert", n, m * (n - m))
    import networkx as nx

    def draw(number: int) -> Any:
        return nx.barabasi_albert_graph(n, m, number)

    return _connected("barabasi-albert", draw, (n, m, seed), "")


# --- shared -----------------------------------------------------------------------------------------------------


def most_square(n: int) -> tuple[int, int]:
    """Return (rows, columns), rows <= columns, rows * columns = n, as square as n allows; rows >= 2.

    Raises ConfigError if n has no two such factors.
    """
    _require("torus or grid", n, _has_sides)
    rows = next(side for side in range(math.isqrt(n), 1, -1) if n % side == 0)
    return rows, n // rows


def _has_sides(n: int) -> bool:
    return n >= 4 and any(n % side == 0 for side in range(2, math.isqrt(n) + 1))


def _has_regular(n: int, degree: int) -> bool:
    if degree == 1:
        return n == 2  # more pairs would not hang together
    return n > degree and n * degree % 2 == 0


def _require(name: str, n: int, allowed: Callable[[int], bool]) -> None:
    if n <= MAX_NODES and n >= 1 and allowed(n):
        return
    span = range(max(1, min(n, MAX_NODES)), 0, -1), range(max(1, n + 1), min(2 * max(n, 1) + 64, MAX_NODES))
    nearest = [next(filter(allowed, some), None) for some in span]
    sizes = list(dict.fromkeys(size for size in nearest if size is not None))
    advice = f"Nearest sizes that it has: {' and '.join(map(str, sizes))}." if sizes else "Give another size."
    raise ConfigError(f"{name} has no form with {n} {'node' if n == 1 else 'nodes'}", advice)


def _limit_edges(name: str, n: int, edges: int) -> None:
    if edges > MAX_EDGES:
        raise ConfigError(
            f"{name} of {n} nodes has about {edges:.3g} edges; at most {MAX_EDGES:.3g} fit",
            "Use fewer nodes, or a sparse graph such as exponential or regular:4.",
        )


def _probability(name: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise ConfigError(f"{name} with probability {p:g}", "Give a probability between 0 and 1.")


def _powers(n: int) -> tuple[int, ...]:
    # not int(math.log2(n)): wrong for large n just below a power of two
    return tuple(1 << j for j in range((n - 1).bit_length()))


def _lattice(name: str, rows: int, columns: int, wrapped: bool) -> Topology:
    if rows < 2 or columns < 2:
        raise ConfigError(f"{name}:{rows}x{columns}", "Both sides are at least 2; one row is a ring or a path.")
    _require(f"{name}:{rows}x{columns}", rows * columns, lambda _: True)
    ids = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    right, down = _pairs(ids, np.roll(ids, -1, axis=1)), _pairs(ids, np.roll(ids, -1, axis=0))
    if not wrapped:
        right, down = _pairs(ids[:, :-1], ids[:, 1:]), _pairs(ids[:-1], ids[1:])
    places = np.stack([np.tile(np.arange(columns), rows), -np.repeat(np.arange(rows), columns)], axis=1)
    edges = np.concatenate([right, down])
    # a torus overlaps itself when drawn on its grid, so only the open grid has positions
    found = Topology.from_edges(rows * columns, edges, name, positions=None if wrapped else places)
    return replace(found, laplacian=partial(eigen.torus if wrapped else eigen.grid, rows, columns))


def _pairs(left: IntArray, right: IntArray) -> IntArray:
    return np.stack([left.ravel(), right.ravel()], axis=1)


def _renamed(topology: Topology, name: str) -> Topology:
    return replace(topology, name=name)


def _turned(n: int, offsets: tuple[int, ...], directed: bool) -> IntArray:
    ids = np.arange(n, dtype=np.int64)
    edges = np.concatenate([np.stack([ids, (ids + o) % n], axis=1) for o in offsets])
    return Topology.from_edges(n, edges, directed=directed).edges


def _connected(name: str, draw: Callable[[int], Any], ids: tuple[int, ...], advice: str) -> Topology:
    for attempt in range(TRIES):
        topology = Topology.from_networkx(draw(seeds.integer(ids[-1], name, *ids[:-1], attempt)), name)
        if topology.is_connected:
            return topology
    raise ConfigError(f"{name}: none of {TRIES} draws with {ids[0]} nodes and seed {ids[-1]} is connected", advice)


ETA = 0.5
"""Exchanged share in a round of a dynamic graph; 1/2 leaves (n - 1) / 2n of the square, the minimum."""


def static(n: int, m: int, seed: int, both_ways: bool = False) -> Mixing:
    """Return the mixing of m shifts, drawn uniformly from 1..n-1 with repetition; `both_ways` adds their reverses.

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
    """Return the schedule that sends from each node to the node a positions further, a drawn in every round.

    A round leaves c^2 + s^2 - 2cs/(n-1) of sum ||x_i - mean||^2 in expectation, c = 1 - s, s = eta (n-1)/n.  Raises
    ConfigError for n < 2, and eta outside (0, 1].
    """
    name = _name_graph("equi-dynamic", n, eta)
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
    """Return the schedule of random pairs along one shift: from a drawn start, each free node with the node one shift
    further, if that one is free.

    The expected remainder of a round is larger for a disagreement like one wave round the circle (`moment`).  Raises
    ConfigError as `dynamic`.
    """
    name = _name_graph("u-equi-dynamic", n, eta)
    given = eta * (n - 1) / n

    def draw(stream: np.random.Generator) -> Mixing:
        shift, start = int(stream.integers(1, n)), int(stream.integers(0, n))
        pairs = pairs_along(n, shift, start)
        topology = Topology.from_edges(n, pairs, name)
        return from_edge_weights(topology, "equitopo", np.full(len(topology.edges), given))

    def moment(M: FloatArray) -> FloatArray:
        """If M is circulant, as I - J is, the start only rotates the result: take its mean."""
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
    """Return pairs [k, 2] of i and i + shift mod n, i from `start` on, if both are free."""
    free = [True] * n
    pairs = []
    for place in range(n):
        one = (start + place) % n
        other = (one + shift) % n
        if free[one] and free[other]:
            free[one] = free[other] = False
            pairs.append((one, other))
    return np.array(pairs, np.int64).reshape(-1, 2)


def _name_graph(word: str, n: int, eta: float) -> str:
    if n < 2 or not 0 < eta <= 1:
        raise ConfigError(f"{word}:{eta:g} of {n} nodes", f"Give 2 nodes or more and a share in (0, 1]: {word}:0.5.")
    return word if eta == ETA else f"{word}:{eta:g}"


LAMBDA = 0.1
"""Weight of ||W - J||_F^2 / n relative to the heterogeneity."""

LARGEST = 1000  # nodes; an assignment of more takes seconds
SWAPS = 1000
BETWEEN = ("ring", "full")


def stl_fw(shares: FloatArray, steps: int, weight: float = LAMBDA) -> Mixing:
    """Return the mixing after `steps` of Frank-Wolfe, starting without exchange, for label shares [n, classes].

    Raises ConfigError for no steps, and above LARGEST nodes.
    """
    from scipy.optimize import linear_sum_assignment

    n = len(shares)
    if steps < 1 or n > LARGEST:
        raise ConfigError(f"stl-fw:{steps} of {n} nodes", f"Give at least 1 step, and at most {LARGEST} nodes.")
    W, mean = np.eye(n), shares.mean(axis=0)
    for _ in range(steps):
        away = W @ shares - mean
        gradient = 2.0 / n * (away @ shares.T + weight * (W - 1.0 / n))
        to = linear_sum_assignment(gradient)[1]
        step = -W.copy()
        step[np.arange(n), to] += 1.0
        moved = step @ shares
        curved = float((moved**2).sum() + weight * (step**2).sum())
        slope = float((away * moved).sum() + weight * (step * (W - 1.0 / n)).sum())
        if slope > -1e-15 or curved <= 0:
            break
        W = W + min(1.0, -slope / curved) * step
    return Mixing.from_matrix(np.where(np.abs(W) < 1e-15, 0.0, W), rule="stl-fw")


def d_cliques(shares: FloatArray, size: int, between: str, seed: int) -> Topology:
    """Return cliques of `size` nodes (some of one more), with labels as close to the overall distribution as swaps
    reach.

    between: "ring", one edge to the next clique; "full", one between each two cliques.  Raises ConfigError for fewer
    than two cliques, and another value of `between`.
    """
    n = len(shares)
    name = f"d-cliques:{size},{between}"
    if between not in BETWEEN or not 2 <= size <= n // 2:
        raise ConfigError(f"{name} of {n} nodes", f"Give 2 to {max(2, n // 2)} nodes per clique, and ring or full.")
    members = _balance(shares, np.array_split(seeds.stream(seed, "d-cliques", n).permutation(n), n // size))
    edges = [pair for clique in members for pair in itertools.combinations(clique, 2)]
    ties = _ring(len(members)) if between == "ring" else list(itertools.combinations(range(len(members)), 2))
    used = [0] * len(members)
    for one, other in ties:  # a clique's outgoing edges are distributed over its nodes
        edges.append((members[one][used[one] % len(members[one])], members[other][used[other] % len(members[other])]))
        used[one], used[other] = used[one] + 1, used[other] + 1
    return Topology.from_edges(n, np.array(edges, np.int64), name)


def _ring(count: int) -> list[tuple[int, int]]:
    return [(k, (k + 1) % count) for k in range(count)] if count > 2 else [(0, 1)]


def _balance(shares: FloatArray, cliques: list[IntArray]) -> list[list[int]]:
    """Swap nodes between cliques while this moves their mean shares closer to the common mean."""
    mean = shares.mean(axis=0)
    off = [shares[clique].mean(axis=0) - mean for clique in cliques]
    for _ in range(SWAPS):
        swapped = False
        for a, b in itertools.combinations(range(len(cliques)), 2):
            here, there = shares[cliques[a]], shares[cliques[b]]
            apart = there[None, :] - here[:, None]  # change of clique a by each swap
            p, q = 1.0 / len(here), 1.0 / len(there)
            change = 2 * apart @ (p * off[a] - q * off[b]) + (p**2 + q**2) * (apart**2).sum(axis=2)
            i, j = np.unravel_index(int(np.argmin(change)), change.shape)
            if change[i, j] < -1e-12:
                off[a], off[b] = off[a] + p * apart[i, j], off[b] - q * apart[i, j]
                cliques[a][i], cliques[b][j] = cliques[b][j], cliques[a][i]
                swapped = True
        if not swapped:
            break
    return [sorted(clique.tolist()) for clique in cliques]
