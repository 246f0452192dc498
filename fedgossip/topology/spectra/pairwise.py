"""Decay of disagreement under pairwise averaging: by one exchange, and by a round of asynchronous gossip.

One exchange averages the ends i, j of an edge: W_ij = I - (e_i - e_j)(e_i - e_j)'/2, a projection.  A node drawn
uniformly chooses one of its neighbours uniformly, so edge {i, j} has p_ij = (1/d_i + 1/d_j) / n, and

    E W = I - 1/2 sum p_ij (e_i - e_j)(e_i - e_j)'
    bound  =  lambda_2(E W)                        E ||x - mean||^2 falls at least so much, exchange by exchange
    rate   =  the largest eigenvalue of X -> E[W X W] outside consensus: the decay in the long run

In one exchange x' E[W'W] x = x' (E W) x, so the bound is reached by the slowest pattern, once: it leaves half of what
it takes from that pattern as noise in quicker ones, which dies out.  So bound^2 <= rate <= bound.  On a regular graph
of m edges the bound is 1 - mu_2 / (2 m), mu_2 the algebraic connectivity.

Source of model and bound: Boyd, Ghosh, Prabhakar and Shah, Randomized gossip algorithms, IEEE Trans. Inf.  Theory 52,
2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgossip.topology.graphs.graph import FloatArray, Topology
from fedgossip.topology.spectra import eigen
from fedgossip.topology.spectra.spectrum import spectrum
from fedgossip.topology.weights.mixing_matrix import from_edge_weights

NODES_LIMIT = 128
"""Nodes up to which the second moment is found: its operator is on matrices [n, n]."""


@dataclass(frozen=True)
class PairwiseRates:
    """Remaining share of E ||x - mean||^2 after one exchange.  None: `bound` where it is unresolved, `rate` of many
    nodes."""

    n: int
    bound: float | None
    rate: float | None

    def of_a_round(self, exchanges: int = 1) -> float | None:
        """Return the remaining share of the distance after each peer started so many exchanges; for many peers a
        bound."""
        each = self.bound if self.rate is None else self.rate
        return None if each is None else math.sqrt(max(each, 0.0)) ** (self.n * exchanges)

    def rounds_to(self, share: float, exchanges: int = 1) -> int | None:
        """Return the rounds until the distance is at most `share` of what it was; None where that is never."""
        left = self.of_a_round(exchanges)
        if left is None or left >= 1:
            return None
        return 1 if left == 0 else max(1, math.ceil(math.log(share) / math.log(left) - 1e-9))


def pairwise_rates(topology: Topology) -> PairwiseRates:
    """Return the rates of exchanges between neighbours that are drawn uniformly, of an undirected graph."""
    degrees, (u, v) = topology.degrees(), topology.edges.T
    chances = (1.0 / degrees[u] + 1.0 / degrees[v]) / topology.n
    mean = from_edge_weights(topology, "pairwise", chances / 2)
    with eigen.one_thread():
        rate = _second_moment(topology, chances) if topology.n <= NODES_LIMIT else None
    return PairwiseRates(topology.n, spectrum(mean).lambda2, rate)


def _second_moment(topology: Topology, chances: FloatArray) -> float:
    """Return the largest eigenvalue of X -> C (sum p W X W) C, C = I - J, by Lanczos on matrices [n, n]."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    n, (u, v) = topology.n, topology.edges.T
    if n < 3:
        return 0.0  # one exchange is the mean
    laplacian = np.zeros((n, n))
    for at, to, sign in ((u, u, 1.0), (v, v, 1.0), (u, v, -1.0), (v, u, -1.0)):
        np.add.at(laplacian, (at, to), sign * chances)

    def left(flat: FloatArray) -> FloatArray:
        X = _centred(flat.reshape(n, n))
        moved = X - 0.5 * (laplacian @ X + X @ laplacian)
        apart = chances * (X[u, u] + X[v, v] - X[u, v] - X[v, u]) / 4
        for at, to, sign in ((u, u, 1.0), (v, v, 1.0), (u, v, -1.0), (v, u, -1.0)):
            np.add.at(moved, (at, to), sign * apart)
        return _centred(moved).ravel()

    begun = _centred(np.random.Generator(np.random.PCG64(0)).standard_normal((n, n)))
    operator = LinearOperator((n * n, n * n), matvec=left, dtype=np.float64)
    (largest,) = eigsh(operator, k=1, which="LA", v0=(begun + begun.T).ravel(), return_eigenvectors=False)
    return float(largest)


def _centred(X: FloatArray) -> FloatArray:
    rows = X - X.mean(axis=0)
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))
