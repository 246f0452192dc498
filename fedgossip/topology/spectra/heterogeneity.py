"""The difference between a neighbourhood's data and all data, and the placement of nodes' data on a graph.

With P [n, classes] the label shares of the nodes (rows sum to one),

    H(W) = 1/n ||W P - 11'P/n||_F^2

is how far the labels in a neighbourhood, weighed as models are, are from the labels of all: 0 where every neighbourhood
is like the whole.  Over random placements of the same nodes its mean is (||W||_F^2 - 1)/(n - 1) times that of no graph.

With rows that differ as the peers' updates do in place of P it is tau^2 = 1/n sum_i ||sum_j w_ij u_j - mean u||^2.

Source: Le Bars, Bellet, Tommasi, Lavoie and Kermarrec, Refined convergence and topology learning for decentralized SGD
with heterogeneous data, AISTATS 2023.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray
from fedgossip.topology.weights.mixing import Mixing

SWEEPS = 20
"""Passes over all pairs of nodes in the search for a placement, at most."""

MOST_PLACED = 600  # nodes; beyond it a pass over all pairs takes minutes


def label_shares(counts: npt.ArrayLike) -> FloatArray:
    """Return P [n, classes] of numbers of examples [n, classes].  Raises ConfigError for a node without any."""
    table = np.asarray(counts, np.float64)
    totals = table.sum(axis=1)
    if not totals.all():
        raise ConfigError(f"node {int(np.argmin(totals))} has no examples", "Give every peer some: data.partition.")
    return np.asarray(table / totals[:, None])


def label_heterogeneity(mixing: Mixing, shares: FloatArray) -> float:
    """Return H(W) of label shares [n, classes].  Raises ConfigError where there is not a row for each node."""
    _check(mixing, shares)
    return _of(np.asarray(mixing.sparse() @ shares), shares)


def alone(shares: FloatArray) -> float:
    """Return H(I), without any exchange."""
    return _of(shares, shares)


def expected(mixing: Mixing, shares: FloatArray) -> float:
    """Return the mean of H over all placements of the nodes' data on the graph."""
    _check(mixing, shares)
    return left_of_noise(mixing) * alone(shares)


def left_of_noise(mixing: Mixing) -> float:
    """Return (||W||_F^2 - 1) / (n - 1): the share of independent noise at the nodes, less its mean, that a round
    leaves."""
    return (float(mixing.values @ mixing.values) - 1.0) / max(1, mixing.n - 1)


def drawn(mixing: Mixing, shares: FloatArray, count: int, seed: int) -> FloatArray:
    """Return H of `count` placements drawn at random, float64 [count]."""
    stream = seeds.stream(seed, "placements", mixing.n)
    return np.array([label_heterogeneity(mixing, shares[stream.permutation(mixing.n)]) for _ in range(count)])


def placed(mixing: Mixing, shares: FloatArray) -> tuple[IntArray, float]:
    """Return (places [n], H): row places[i] of `shares` at node i, by pairwise swaps until none helps.

    A swap of the data at i and j adds (w_kj - w_ki)(P_i - P_j) to what each k sees, so all pairs are tried by two
    products.  Raises ConfigError for more than MOST_PLACED nodes.
    """
    _check(mixing, shares)
    n = mixing.n
    if n > MOST_PLACED:
        raise ConfigError(f"a placement on {n} nodes: at most {MOST_PLACED} fit", "Take a smaller graph.")
    W, places = mixing.matrix(), np.arange(n, dtype=np.int64)
    gram = W.T @ W
    apart = gram.diagonal()[:, None] + gram.diagonal()[None, :] - 2 * gram  # ||w_i - w_j||^2, columns
    for _ in range(SWEEPS * n):
        here = shares[places]
        away = W.T @ (W @ here - here.mean(axis=0))
        inner = away @ here.T
        # 2 <W'(WP - mean)_j - .._i, P_i - P_j> + ||w_i - w_j||^2 ||P_i - P_j||^2 for every pair
        lengths = (here**2).sum(axis=1)
        between = lengths[:, None] + lengths[None, :] - 2 * here @ here.T
        own = inner.diagonal()
        change = 2 * (inner.T + inner - own[:, None] - own[None, :]) + apart * between
        i, j = np.unravel_index(int(np.argmin(change)), change.shape)
        if change[i, j] > -1e-12:
            break
        places[[i, j]] = places[[j, i]]
    return places, label_heterogeneity(mixing, shares[places])


def _of(seen: FloatArray, shares: FloatArray) -> float:
    return float(((seen - shares.mean(axis=0)) ** 2).sum()) / len(shares)


def _check(mixing: Mixing, shares: FloatArray) -> None:
    if shares.shape[0] != mixing.n:
        text = f"graph {mixing.name!r} has {mixing.n} nodes, and there are label shares of {shares.shape[0]}"
        raise ConfigError(text, "Set topology.n, or n, to the size of the graph.")
