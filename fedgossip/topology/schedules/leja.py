"""The exact mean on one fixed graph, in as many rounds as its Laplacian has distinct eigenvalues: W_k = I - L / mu_k.

The product over all mu_k takes out every mode but the mean.  In ascending order the intermediate models grow beyond all
digits; Leja's order, each mu_k as far as possible from those before, keeps them small.  Own weights may be negative.

Sources: Kibangou, Graph Laplacian based matrix design for finite-time distributed average consensus, ACC 2012 (the
factors; title and venue not checked); Reichel, Newton interpolation at Leja points, BIT 30 (1990) (the order).
"""

from __future__ import annotations

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, Topology
from fedgossip.topology.schedules.schedules import Cycle
from fedgossip.topology.spectra import eigen
from fedgossip.topology.weights.mixing import Mixing, from_edge_weights

MOST_GROWTH = 1e6
"""Largest factor by which a mode may grow on the way; the error of the exact mean is this multiple of rounding."""

LARGEST = 1500  # nodes
SAME = 1e-9  # share of the largest eigenvalue below which two are one


def leja(graph: Topology) -> Cycle:
    """Return the rounds that bring `graph` to the exact mean.

    Raises ConfigError for a directed or too large graph, and where a mode would grow beyond MOST_GROWTH on the way.
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
    """Return the values, the largest first, each next one with the largest product of distances to those before."""
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
    """Return the largest factor of a mode over any stretch of rounds: what rounding in one round may have become later.

    max_{k<=l} max_mu prod_{k<=j<=l} |1 - mu / mu_j|, at least 1.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(np.abs(1.0 - order[None, :] / order[:, None]))  # a round's own mode: -inf, it is gone
    running, most = np.zeros(order.size), 0.0
    for rounds in logs:
        running = np.maximum(running, 0.0) + rounds
        most = max(most, float(running.max()))
    return float(np.exp(min(most, 700.0)))
