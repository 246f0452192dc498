"""Nodes that weigh all others alike, and what they make of a spectrum.

Two nodes are twins where their rows of W are equal except in their own two columns, and W_ij = W_ji.  A class of s
twins has s - 1 eigenvectors that live on it alone, all with the eigenvalue (own weight - weight of each other); what is
left is the quotient, one row per class.  A star has two classes, two cliques of any size have four, K_ab has two: their
whole spectra come from a matrix that small.

Source: Godsil and Royle, Algebraic Graph Theory, Springer 2001, section 9.3 (equitable partitions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.base import seeds
from fedgossip.topology.graphs.graph import FloatArray, IntArray

MOST_WEIGHTS = 12  # different ones: each costs a pass over all nodes, more than so many one over all edges
NEAR = 1e-12  # rows whose sums against random vectors are this near are equal: another row's differ by 1e-9 or so


@dataclass(frozen=True)
class Reduced:
    """The eigenvalues that live on classes [n - classes], and the symmetric quotient with the same others."""

    inner: FloatArray
    quotient: FloatArray
    sizes: IntArray


def reduced(W: Any, largest: int) -> Reduced | None:
    """Return the symmetric W [n, n], sparse, without its twins; None where more than `largest` classes are left."""
    n = W.shape[0]
    labels = _classes(W)
    classes = int(labels.max()) + 1
    if classes > largest:
        return None
    sizes = np.bincount(labels, minlength=classes)
    first = np.unique(labels, return_index=True)[1]
    from scipy.sparse import csr_array

    member = csr_array((np.ones(n), (np.arange(n), labels)), shape=(n, classes))
    between = np.asarray((W[first] @ member).todense())  # what one node of a class gives to each class
    own = W.diagonal()[first]
    # of its own class it gives its own weight, and the rest to its s - 1 twins alike
    each = np.where(sizes > 1, (between[np.arange(classes), np.arange(classes)] - own) / np.maximum(1, sizes - 1), 0.0)
    roots = np.sqrt(sizes.astype(np.float64))
    quotient = between * (roots[:, None] / roots[None, :])
    return Reduced(np.repeat(own - each, sizes - 1), 0.5 * (quotient + quotient.T), sizes)


def _classes(W: Any) -> IntArray:
    """Return the number of each node's class, int64 [n]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n, own = W.shape[0], W.diagonal()
    probes = seeds.stream(0, "twins", n).random((n, 2))
    received = W @ probes - own[:, None] * probes
    weights = _few(W.data)
    if weights is None:
        pairs = [_joined(W, own, probes, received)]
    else:  # joined twins: u and v have the same other senders, so that a row and w times oneself are equal
        pairs = [_equal_rows(np.column_stack([received + weight * probes, own])) for weight in weights]
    pairs.append(_equal_rows(np.column_stack([received, own])))
    one, other = np.concatenate(pairs).T
    graph = csr_array((np.ones(one.size, np.int8), (one, other)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def _few(values: FloatArray) -> list[float] | None:
    """Return the values that there are; None for more than MOST_WEIGHTS."""
    found: list[float] = []
    while values.size:
        if len(found) == MOST_WEIGHTS:
            return None
        found.append(float(values[0]))
        values = values[np.abs(values - found[-1]) > NEAR]
    return found


def _joined(W: Any, own: FloatArray, probes: FloatArray, received: FloatArray) -> IntArray:
    """Return the pairs [k, 2] of joined twins, whatever the weights."""
    rows = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    there = (W.indices > rows) & (np.abs(own[rows] - own[W.indices]) < NEAR)
    u, v, weight = rows[there], W.indices[there], W.data[there][:, None]
    apart = (received[u] + weight * probes[u]) - (received[v] + weight * probes[v])
    alike = np.abs(apart).max(axis=1) < NEAR if len(u) else np.zeros(0, bool)
    return np.stack([u[alike], v[alike]], axis=1)


def _equal_rows(table: FloatArray) -> IntArray:
    """Return pairs [k, 2] of nodes with equal rows, one after the other in the order of the first column."""
    order = np.argsort(table[:, 0], kind="stable")
    near = np.abs(np.diff(table[order], axis=0)).max(axis=1) < NEAR
    return np.stack([order[:-1][near], order[1:][near]], axis=1)
