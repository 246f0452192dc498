"""Where the nodes of a drawing stand: computed once, the same for the same graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgossip.topology import Topology

MOST_NODES = 500
MOST_EDGES = 5000
"""Of a drawing that moves; larger graphs are told in numbers."""

MOST_MOVED_BY_HAND = 60
"""Nodes for the exact layout; it takes O(n^3) time."""

SEED = 1


def places(n: int, topology: Topology | None) -> NDArray[np.float64] | None:
    """Return float64 [n, 2] in the unit square, y downwards; None for a graph that is too large to draw.

    Places that the graph's file gives; a circle where a turn of the circle keeps the graph, and where no link is known;
    else by the pull of the links.
    """
    if not 0 < n <= MOST_NODES or (topology is not None and len(topology.edges) > MOST_EDGES):
        return None
    if topology is None or topology.n != n or not len(topology.edges):
        return _fitted(_circle(n))
    if topology.positions is not None:
        return _fitted(np.asarray(topology.positions, dtype=np.float64) * (1.0, -1.0))
    return _fitted(_circle(n) if topology.circulant is not None else _pulled(topology))


def _circle(n: int) -> NDArray[np.float64]:
    turn = 2 * np.pi * np.arange(n) / n - np.pi / 2
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


def _pulled(topology: Topology) -> NDArray[np.float64]:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(topology.n))
    graph.add_edges_from(topology.edges.tolist())
    start: dict[int, Any] = nx.spring_layout(graph, seed=SEED, iterations=80)
    found = start
    if topology.n <= MOST_MOVED_BY_HAND and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph, pos=start)
    return np.array([found[node] for node in range(topology.n)])


def _fitted(given: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale into the unit square, both directions alike, centred."""
    given = given - (given.max(axis=0) + given.min(axis=0)) / 2
    largest = float(np.abs(given).max())
    return given / (2 * largest) + 0.5 if largest > 0 else given * 0 + 0.5
