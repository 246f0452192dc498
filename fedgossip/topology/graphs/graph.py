"""Graphs as sorted arrays of edges, without weights, rounds or network.  Operations on edges use numpy, for millions of
nodes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Csr = tuple[IntArray, IntArray]
"""(starts [n + 1], ids [arcs]): the ids of node i are ids[starts[i]:starts[i + 1]], ascending."""


@dataclass(frozen=True, eq=False)
class Topology:
    """A graph on the nodes 0..n-1, from `from_edges`, `from_networkx`, a family or `resolve`.

    edges: int64 [m, 2], read-only, sorted, unique, no loops; undirected u < v, directed u sends to v.  Two topologies
    are equal if their nodes and edges are equal, regardless of names.
    """

    n: int
    given: IntArray | Callable[[], IntArray]
    """The edges, or a function that creates them on first access."""
    name: str = "graph"
    directed: bool = False
    circulant: tuple[int, ...] | None = None
    """Offsets o: i joined to (i + o) mod n for every i; None if unknown."""
    labels: tuple[str, ...] | None = None
    positions: FloatArray | None = None
    """[n, 2], for drawings."""
    weights: str | None = None
    """The weight rule that the graph's file requests."""
    laplacian: Callable[[], FloatArray] | None = field(default=None, repr=False)
    """Returns the Laplacian's eigenvalues, ascending [n], if the construction has a formula."""
    matchings: tuple[IntArray, ...] | None = field(default=None, repr=False)
    """The edges in sets [m_j, 2] without a common node, if the graph's file gives them: for `matcha`."""

    @classmethod
    def from_edges(
        cls,
        n: int,
        edges: Iterable[tuple[int, int]] | npt.ArrayLike,
        name: str = "graph",
        directed: bool = False,
        circulant: tuple[int, ...] | None = None,
        labels: tuple[str, ...] | None = None,
        positions: npt.ArrayLike | None = None,
        weights: str | None = None,
    ) -> Topology:
        """Return the topology with these edges; repeated ones (undirected: in either direction) count once.

        Raises ConfigError for an id outside 0..n-1, a loop, or another number of labels or positions than nodes.
        """
        if n < 1:
            raise ConfigError(f"graph {name!r}: {n} nodes", "A graph needs at least one node.")
        pairs = _pairs(edges, name)
        _check_pairs(n, pairs, name)
        if not directed:
            pairs = np.sort(pairs, axis=1)
        keys = _ascending(pairs[:, 0] * n + pairs[:, 1])
        final = np.stack([keys // n, keys % n], axis=1)
        final.flags.writeable = False
        if labels is not None:
            _check_labels(n, labels, name)
        return cls(n, final, name, directed, circulant, labels, _positions(n, positions, name), weights)

    @classmethod
    def from_networkx(cls, graph: Any, name: str | None = None) -> Topology:
        """Return the topology of a networkx graph; weights are ignored.

        Nodes 0..n-1 keep their ids; others are numbered in order, with their names as labels.  Raises ConfigError as
        `from_edges`.
        """
        nodes = list(graph.nodes)
        n = len(nodes)
        plain = all(isinstance(node, int) for node in nodes) and set(nodes) == set(range(n))
        ids = {node: node if plain else index for index, node in enumerate(nodes)}
        edges = [(ids[u], ids[v]) for u, v in graph.edges()]
        labels = None if plain else tuple(map(str, nodes))
        title = name or str(graph.graph.get("name") or "graph")
        return cls.from_edges(n, edges, title, graph.is_directed(), labels=labels)

    @cached_property
    def edges(self) -> IntArray:
        """The edges, int64 [m, 2]; see the class."""
        return self.given() if callable(self.given) else self.given

    @property
    def edge_count(self) -> int:
        """The number of edges; of arcs if directed."""
        if self.circulant is None or not self.turned:
            return len(self.edges)
        per_node = sum(2 if 2 * offset != self.n else 1 for offset in self.circulant)
        return self.n * len(self.circulant) if self.directed else self.n * per_node // 2

    # --- neighbours ----------------------------------------------------------------------------------------------

    def neighbours(self, node: int) -> tuple[int, ...]:
        """Return the nodes that share an edge with `node`, ascending; in a directed graph both ways count."""
        if self.directed:
            return tuple(sorted({*self.predecessors(node), *self.successors(node)}))
        return self.successors(node)

    def predecessors(self, node: int) -> tuple[int, ...]:
        """Return the nodes that send to `node`, ascending."""
        return _slice(self.incoming, node)

    def successors(self, node: int) -> tuple[int, ...]:
        """Return the nodes that `node` sends to, ascending."""
        return _slice(self.outgoing, node)

    @cached_property
    def outgoing(self) -> Csr:
        """The successors of every node as CSR arrays."""
        u, v = self.edges.T
        # arcs to smaller ids first: the edges are sorted, so the ids of every row are ascending
        return _csr(self.n, u, v) if self.directed else _csr(self.n, np.concatenate([v, u]), np.concatenate([u, v]))

    @cached_property
    def incoming(self) -> Csr:
        """The predecessors of every node as CSR arrays."""
        return _csr(self.n, self.edges[:, 1], self.edges[:, 0]) if self.directed else self.outgoing

    @property
    def in_degrees(self) -> IntArray:
        """int64 [n]: the number of senders to each node."""
        return self._even_degrees() if self.turned else np.diff(self.incoming[0])

    @property
    def out_degrees(self) -> IntArray:
        """int64 [n]: the number of receivers of each node."""
        return self._even_degrees() if self.turned else np.diff(self.outgoing[0])

    @property
    def turned(self) -> bool:
        """Whether the edges are not created yet, and follow from the offsets of a family."""
        return callable(self.given) and self.circulant is not None

    def _even_degrees(self) -> IntArray:
        arcs = self.edge_count if self.directed else 2 * self.edge_count
        return np.full(self.n, arcs // self.n, np.int64)

    def degrees(self) -> IntArray:
        """Return int64 [n], the number of neighbours; in a directed graph the number of successors."""
        return self.out_degrees

    def label(self, node: int) -> str:
        """Return the node's name, or its id without one."""
        return self.labels[node] if self.labels is not None else str(node)

    # --- the whole graph ------------------------------------------------------------------------------------------

    def components(self) -> IntArray:
        """Return int64 [n], the number of each node's component (strongly connected if directed)."""
        from scipy.sparse.csgraph import connected_components

        return np.asarray(connected_components(self.adjacency, self.directed, connection="strong")[1], np.int64)

    @property
    def adjacency(self) -> Any:
        """The arcs as a sparse matrix [n, n] of ones, from row to column."""
        from scipy.sparse import csr_array

        starts, ids = self.outgoing
        return csr_array((np.ones(ids.size), ids, starts), shape=(self.n, self.n))

    @cached_property
    def is_connected(self) -> bool:
        """Whether a path (along the arcs, if directed) leads from every node to every other."""
        if self.circulant is not None and self.turned:
            return math.gcd(self.n, *self.circulant) == 1
        if len(self.edges) < self.n - 1:
            return False
        from scipy.sparse.csgraph import connected_components

        # treated as directed: every arc has its reverse, so scipy need not add the transpose
        count = connected_components(self.adjacency, directed=True, connection="strong", return_labels=False)
        return int(count) == 1

    def to_networkx(self) -> Any:
        """Return the networkx graph with the nodes 0..n-1."""
        import networkx as nx

        graph = nx.DiGraph() if self.directed else nx.Graph()
        graph.add_nodes_from(range(self.n))
        graph.add_edges_from(self.edges.tolist())
        return graph

    @cached_property
    def digest(self) -> str:
        """sha256 over n, direction and edges: equal graphs have equal digests."""
        head = f"{self.n}/{self.directed}/".encode()
        return hashlib.sha256(head + self.edges.astype("<i8").tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return self is other or self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        kind = "arcs" if self.directed else "edges"
        return f"Topology({self.name!r}, n={self.n}, {kind}={self.edge_count})"


def require_connected(topology: Topology) -> Topology:
    """Return `topology`.  Raises ConfigError, naming the components, if it is disconnected."""
    if topology.is_connected:
        return topology
    parts, first, sizes = np.unique(topology.components(), return_index=True, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    shown = ", ".join(f"{sizes[k]} with node {topology.label(int(first[k]))}" for k in order[:5])
    rest = f" and {len(parts) - 5} more" if len(parts) > 5 else ""
    word = "strongly connected " if topology.directed else ""
    raise ConfigError(
        f"graph {topology.name!r} falls into {len(parts)} {word}components: {shown}{rest}",
        "Models never meet across components: add an edge between them, or set topology.allow_disconnected = true.",
    )


def _pairs(edges: Iterable[tuple[int, int]] | npt.ArrayLike, name: str) -> IntArray:
    raw = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))  # type: ignore[arg-type]
    if raw.size == 0:
        return np.empty((0, 2), np.int64)
    if raw.ndim != 2 or raw.shape[1] != 2 or not np.issubdtype(raw.dtype, np.integer):
        raise ConfigError(
            f"graph {name!r}: edges of shape {raw.shape} and type {raw.dtype}",
            "Edges are pairs of integer node ids, [m, 2].",
        )
    return raw.astype(np.int64)


def _check_pairs(n: int, pairs: IntArray, name: str) -> None:
    outside = (pairs < 0) | (pairs >= n)
    if outside.any():
        u, v = pairs[outside.any(axis=1)][0]
        raise ConfigError(
            f"graph {name!r}: edge ({u}, {v}), but the nodes are 0..{n - 1}",
            f"Number the nodes from 0, or declare {max(u, v) + 1} of them.",
        )
    loops = pairs[:, 0] == pairs[:, 1]
    if loops.any():
        raise ConfigError(
            f"graph {name!r}: node {pairs[loops][0, 0]} is joined to itself",
            "Leave loops out: a node's weight on itself follows from the weight rule.",
        )


def _ascending(keys: IntArray) -> IntArray:
    """Return the sorted unique keys, ten times faster than np.unique for millions."""
    if not (keys[1:] > keys[:-1]).all():
        keys = np.sort(keys)
        keys = keys[np.concatenate([[True], keys[1:] > keys[:-1]])]
    return keys


def _check_labels(n: int, labels: tuple[str, ...], name: str) -> None:
    if len(labels) != n:
        raise ConfigError(f"graph {name!r}: {len(labels)} labels for {n} nodes", "Give one label per node.")
    if len(set(labels)) != n:
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ConfigError(f"graph {name!r}: two nodes are called {twice!r}", "Give each node its own label.")


def _positions(n: int, positions: npt.ArrayLike | None, name: str) -> FloatArray | None:
    if positions is None:
        return None
    array = np.array(positions, np.float64)
    if array.shape != (n, 2) or not np.isfinite(array).all():
        raise ConfigError(f"graph {name!r}: positions of shape {array.shape}", f"Give {n} pairs of finite numbers.")
    array.flags.writeable = False
    return array


FEW_ENTRIES = 1 << 16
"""Maximum number of entries to sort without scipy.sparse: some milliseconds, and its import takes 70."""


def _csr(n: int, rows: IntArray, columns: IntArray) -> Csr:
    starts, ids, _ = group_by_row(n, rows, columns, np.empty(len(rows), np.int8))
    ids.flags.writeable = starts.flags.writeable = False
    return starts, ids


def group_by_row(n: int, rows: IntArray, columns: IntArray, values: npt.NDArray[Any]) -> tuple[IntArray, IntArray, Any]:
    """Return entries grouped by row, columns ascending in each: (starts [n + 1], columns, values); each entry occurs
    once.

    Up to FEW_ENTRIES are sorted without scipy, which saves its load time; scipy counts more in one pass.
    """
    if len(rows) <= FEW_ENTRIES:
        order = np.lexsort((columns, rows))
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
        return starts.astype(np.int64), columns[order].astype(np.int64), values[order]
    from scipy.sparse import coo_array

    found = coo_array((values, (rows, columns)), shape=(n, n)).tocsr()
    return found.indptr.astype(np.int64), found.indices.astype(np.int64), found.data


def _slice(csr: Csr, node: int) -> tuple[int, ...]:
    starts, ids = csr
    if not 0 <= node < len(starts) - 1:
        raise IndexError(f"node {node}, but the nodes are 0..{len(starts) - 2}")
    return tuple(ids[starts[node] : starts[node + 1]].tolist())
