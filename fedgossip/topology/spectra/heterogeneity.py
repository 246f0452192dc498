"""The difference between a neighbourhood's data and all data, and the placement of nodes' data on a graph.

With P [n, classes] the label shares of the nodes (rows sum to one),

    H(W) = 1/n ||W P - 11'P/n||_F^2

is the distance of the weighted labels in a neighbourhood from the overall labels.  Over random placements its mean is
(||W||_F^2 - 1)/(n - 1) times the one without exchange.  With updates u in place of P it is tau^2 = 1/n sum_i ||sum_j
w_ij u_j - mean u||^2.

Source: Le Bars, Bellet, Tommasi, Lavoie and Kermarrec, Refined convergence and topology learning for decentralized SGD
with heterogeneous data, AISTATS 2023.

**Modes**: the peers' disagreement in each mode of a graph, and its remainder after a round.  With symmetric W of modes
(l_k, v_k) and rows P [n, width] of label shares or updates,

    E_k = ||v_k' P||^2,    sum_{k>=2} E_k = n H(I),    sum_{k>=2} l_k^2 E_k = n H(W)

A graph suits the data if the energy is in modes that vanish quickly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray
from fedgossip.topology.schedules.schedules import Random, Schedule
from fedgossip.topology.spectra import eigen
from fedgossip.topology.spectra.sequences import WORST_LIMIT
from fedgossip.topology.spectra.spectrum import spectrum
from fedgossip.topology.weights.mixing_matrix import Mixing

SWEEPS = 20
"""Maximum number of passes over all pairs of nodes in the search for a placement."""

MOST_PLACED = 600  # nodes; beyond it a pass over all pairs takes minutes


def label_shares(counts: npt.ArrayLike) -> FloatArray:
    """Return P [n, classes] from numbers of examples [n, classes].  Raises ConfigError for a node without examples."""
    table = np.asarray(counts, np.float64)
    totals = table.sum(axis=1)
    if not totals.all():
        raise ConfigError(f"node {int(np.argmin(totals))} has no examples", "Give every peer some: data.partition.")
    return np.asarray(table / totals[:, None])


def label_heterogeneity(mixing: Mixing, shares: FloatArray) -> float:
    """Return H(W) of label shares [n, classes].  Raises ConfigError unless each node has one row."""
    _check(mixing, shares)
    return _compute_mean_square(np.asarray(mixing.sparse() @ shares), shares)


def alone(shares: FloatArray) -> float:
    """Return H(I), without exchange."""
    return _compute_mean_square(shares, shares)


def expected(mixing: Mixing, shares: FloatArray) -> float:
    """Return the mean of H over all placements of the nodes' data on the graph."""
    _check(mixing, shares)
    return compute_remaining_noise(mixing) * alone(shares)


def compute_remaining_noise(mixing: Mixing) -> float:
    """Return (||W||_F^2 - 1) / (n - 1): the remaining share, after a round, of independent noise at the nodes, less its
    mean.
    """
    return (float(mixing.values @ mixing.values) - 1.0) / max(1, mixing.n - 1)


def draw_placements(mixing: Mixing, shares: FloatArray, count: int, seed: int) -> FloatArray:
    """Return H of `count` placements drawn at random, float64 [count]."""
    stream = seeds.stream(seed, "placements", mixing.n)
    return np.array([label_heterogeneity(mixing, shares[stream.permutation(mixing.n)]) for _ in range(count)])


def placed(mixing: Mixing, shares: FloatArray) -> tuple[IntArray, float]:
    """Return (places [n], H): row places[i] of `shares` at node i, by pairwise swaps until none helps.

    Two products evaluate all pairs.  Raises ConfigError for more than MOST_PLACED nodes.
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


def _compute_mean_square(seen: FloatArray, shares: FloatArray) -> float:
    return float(((seen - shares.mean(axis=0)) ** 2).sum()) / len(shares)


def _check(mixing: Mixing, shares: FloatArray) -> None:
    if shares.shape[0] != mixing.n:
        text = f"graph {mixing.name!r} has {mixing.n} nodes, and there are label shares of {shares.shape[0]}"
        raise ConfigError(text, "Set topology.n, or n, to the size of the graph.")


ALIKE = 1e-9  # eigenvalues this near count as equal, with indistinguishable eigenvectors


def compute_remaining_modes(schedule: Schedule) -> FloatArray:
    """Return each mode's remaining factor after a round, or a period, descending [n - 1], without the mean's.

    Symmetric: eigenvalues with signs.  Others: singular values of a round, or a period's product; drawn: roots of the
    eigenvalues of E[W'W] - J.  Raises ConfigError for too many nodes, and for rounds that neither repeat nor have a
    known rule.
    """
    if isinstance(schedule, Mixing):
        found = spectrum(schedule).eigenvalues
        if found is None:
            raise ConfigError(
                f"all modes of {schedule.name!r} with {schedule.n} nodes are not known", "Take a smaller --n."
            )
        return np.asarray(found[1:], np.float64)
    if isinstance(schedule, Random):
        return _compute_random_modes(schedule)
    if not schedule.period or schedule.n > WORST_LIMIT:
        why = f"has {schedule.n} nodes" if schedule.period else "never repeats"
        raise ConfigError(f"the modes of {schedule.name!r}, which {why}", f"Take at most {WORST_LIMIT} nodes.")
    product = np.eye(schedule.n)
    for round in range(schedule.period):
        product = schedule.mixing(round).sparse() @ product
    with eigen.one_thread():
        sizes = np.linalg.svd(product - 1.0 / schedule.n, compute_uv=False)
    return np.asarray(sizes[:-1], np.float64)


def _compute_random_modes(schedule: Random) -> FloatArray:
    n = schedule.n
    if schedule.moment is not None and n <= WORST_LIMIT:
        with eigen.one_thread():
            squares = np.linalg.eigvalsh(schedule.moment(np.eye(n) - 1.0 / n))[::-1][: n - 1]
        return np.asarray(np.sqrt(np.maximum(squares, 0.0)), np.float64)
    if schedule.contraction is None:
        text = f"no formula for the modes of {schedule.name!r} is known"
        raise ConfigError(text, "Take el-oracle or random-matching.")
    return np.full(n - 1, schedule.contraction**0.5)


def energies(mixing: Mixing, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (l_k, E_k), both [n - 1], descending in l_k; modes with one eigenvalue share their energy equally.

    Raises ConfigError for a mixing that is asymmetric, too large, or of another size than `rows` [n, width].
    """
    n = mixing.n
    if not mixing.symmetric or n > eigen.DENSE_LIMIT:
        why = f"has {n} nodes; at most {eigen.DENSE_LIMIT} fit" if mixing.symmetric else "is not the same both ways"
        raise ConfigError(f"the modes of {mixing.name!r}, which {why}", "Take a smaller undirected graph.")
    if len(rows) != n:
        raise ConfigError(f"graph {mixing.name!r} has {n} nodes, and there are {len(rows)} peers", "Set --n.")
    with eigen.one_thread():
        values, vectors = np.linalg.eigh(mixing.matrix() + 2.0 / n)  # the mean's eigenvalue becomes 3, the largest
    values, vectors = values[-2::-1], vectors[:, -2::-1]
    energy = np.sum((vectors.T @ rows) ** 2, axis=1)
    group = np.concatenate([[0], np.cumsum(np.diff(values) < -ALIKE)])
    shared = np.bincount(group, energy) / np.bincount(group)
    return np.asarray(values), np.asarray(shared[group], np.float64)
