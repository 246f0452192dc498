"""Graphs that are made for the labels that peers have: few links, and every neighbourhood like the whole.

    stl_fw      Frank-Wolfe over doubly stochastic matrices on H(W) + lambda/n ||W - J||_F^2: every step adds one
                permutation, so that after l of them no node has more than l senders
    d_cliques   cliques in which the labels are as among all, found by swaps; joined in a ring, or every two of them

Sources: Le Bars et al., AISTATS 2023 (STL-FW); Bellet, Kermarrec and Lavoie, D-Cliques: compensating for data
heterogeneity with topology in decentralized federated learning, SRDS 2022.
"""

from __future__ import annotations

import itertools

import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology
from fedgossip.topology.weights.mixing_matrix import Mixing

LAMBDA = 0.1
"""Weight of ||W - J||_F^2 / n beside the heterogeneity."""

LARGEST = 1000  # nodes; an assignment of more takes seconds
SWAPS = 1000
BETWEEN = ("ring", "full")


def stl_fw(shares: FloatArray, steps: int, weight: float = LAMBDA) -> Mixing:
    """Return the mixing after `steps` of Frank-Wolfe from no exchange, for label shares [n, classes].

    Raises ConfigError for no steps, and for more than LARGEST nodes.
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
    """Return cliques of `size` nodes (some of one more) with labels as near to all's as swaps bring them.

    between: "ring", one edge from each clique to the next; "full", one between every two.  Raises ConfigError for sizes
    that leave fewer than two cliques, and another word.
    """
    n = len(shares)
    name = f"d-cliques:{size},{between}"
    if between not in BETWEEN or not 2 <= size <= n // 2:
        raise ConfigError(f"{name} of {n} nodes", f"Give 2 to {max(2, n // 2)} nodes per clique, and ring or full.")
    members = _alike(shares, np.array_split(seeds.stream(seed, "d-cliques", n).permutation(n), n // size))
    edges = [pair for clique in members for pair in itertools.combinations(clique, 2)]
    ties = _ring(len(members)) if between == "ring" else list(itertools.combinations(range(len(members)), 2))
    used = [0] * len(members)
    for one, other in ties:  # the edges out of a clique are shared among its nodes
        edges.append((members[one][used[one] % len(members[one])], members[other][used[other] % len(members[other])]))
        used[one], used[other] = used[one] + 1, used[other] + 1
    return Topology.from_edges(n, np.array(edges, np.int64), name)


def _ring(count: int) -> list[tuple[int, int]]:
    return [(k, (k + 1) % count) for k in range(count)] if count > 2 else [(0, 1)]


def _alike(shares: FloatArray, cliques: list[IntArray]) -> list[list[int]]:
    """Swap nodes between cliques while that brings their mean shares nearer to the common mean."""
    mean = shares.mean(axis=0)
    off = [shares[clique].mean(axis=0) - mean for clique in cliques]
    for _ in range(SWAPS):
        swapped = False
        for a, b in itertools.combinations(range(len(cliques)), 2):
            here, there = shares[cliques[a]], shares[cliques[b]]
            apart = there[None, :] - here[:, None]  # what clique a gains by each swap
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
