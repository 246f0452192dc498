"""The mixing weights of one round: x_i <- sum_j row(i)[j] x_j.

Doubly stochastic, so a round keeps the mean.  A weaker mixing declares it (`Mixing.stochastic`), for algorithms with a
correction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology, group_by_row

if TYPE_CHECKING:
    from scipy.sparse import csr_array

TOLERANCE = 1e-9  # how far a row or a column may sum from one

SIGNED = frozenset({"best-constant", "fdla", "leja", "matcha"})
"""Rules with possibly negative weights, which mix faster."""

Stochastic = Literal["both", "rows", "columns"]
"""The sums that equal one.  Both: the mean is kept.  Rows: equal models stay equal, the mean may move.  Columns: the
sum is kept, nodes gain or lose mass, which push-sum counts.
"""

Entries = tuple[IntArray, IntArray, FloatArray]
"""(starts, ids, values) of a Mixing."""

Group = tuple[IntArray, IntArray, FloatArray]
"""(nodes [g], ids [g, k], weights [g, k]) of the rows with k entries."""


@dataclass(frozen=True, eq=False)
class Mixing:
    """A stochastic matrix over a graph, checked on construction; from `weights.build` or `from_matrix`.

    starts int64 [n + 1], ids int64 [entries], values float64 [entries]: CSR, ids ascending in a row, with the diagonal;
    read-only.  Doubly stochastic unless `stochastic` declares otherwise.  Also a Schedule that uses it in every round.
    """

    topology: Topology
    rule: str
    given: Entries | Callable[[], Entries]
    """The arrays, or a function that creates them on first access; `turned` then describes them."""
    stochastic: Stochastic = "both"
    turned: tuple[IntArray, FloatArray] | None = None
    """(offsets, weights) of every row, ascending, if the construction provides them."""

    def __post_init__(self) -> None:
        """Raise ConfigError if the declared sums are not one, or a weight is negative or not finite."""
        if callable(self.given):
            assert self.turned is not None
            assert abs(float(self.turned[1].sum()) - 1.0) <= TOLERANCE
            return
        for array in self.given:
            array.flags.writeable = False
        _check_values(self)
        if self.stochastic != "columns":
            _check_sums(self, "row", np.add.reduceat(self.values, self.starts[:-1]))
        if self.stochastic != "rows":
            _check_sums(self, "column", _sums(self.ids, self.values, self.n))

    @cached_property
    def entries(self) -> Entries:
        """(starts, ids, values)."""
        return self.given() if callable(self.given) else self.given

    @property
    def starts(self) -> IntArray:
        """Start of each row, int64 [n + 1]."""
        return self.entries[0]

    @property
    def ids(self) -> IntArray:
        """The columns of the entries, int64."""
        return self.entries[1]

    @property
    def values(self) -> FloatArray:
        """The weights, float64."""
        return self.entries[2]

    @classmethod
    def from_matrix(
        cls,
        W: npt.ArrayLike,
        topology: Topology | None = None,
        rule: str = "matrix",
        stochastic: Stochastic = "both",
    ) -> Mixing:
        """Return the mixing with the dense weights W [n, n]; W[i, j] is i's weight of the model from j.

        Without a topology the graph is the nonzero weights.  Raises ConfigError if W is not a square real array,
        violates `stochastic`, or weighs a pair without an edge.
        """
        dense = dense_weights(W)
        if dense.ndim != 2 or dense.shape[0] != dense.shape[1] or not dense.size:
            raise ConfigError(f"weights of shape {dense.shape}", "Give a square matrix, [n, n].")
        receivers, senders = np.nonzero((dense != 0) & ~np.eye(len(dense), dtype=bool))
        graph = topology or _graph_of(len(dense), receivers, senders)
        if graph.n != len(dense):
            raise ConfigError(f"weights for {len(dense)} nodes, graph with {graph.n}", "Give them the same size.")
        _check_joined(graph, receivers, senders)
        own = np.diag(dense).copy()
        return assemble(graph, rule, receivers, senders, dense[receivers, senders], own, stochastic)

    @classmethod
    def from_weighted_edges(cls, n: int, edges: Iterable[tuple[int, int, float]], name: str = "weighted") -> Mixing:
        """Return the symmetric mixing of weighted undirected edges; each node keeps the remainder to one.

        Raises ConfigError for a repeated edge, and as `Topology.from_edges`.
        """
        triples = list(edges)
        topology = Topology.from_edges(n, [(u, v) for u, v, _ in triples], name)
        if len(topology.edges) != len(triples):
            raise ConfigError(f"graph {name!r}: an edge is given twice, and with weights", "Give each edge once.")
        order = np.argsort([min(u, v) * n + max(u, v) for u, v, _ in triples], kind="stable")
        weights = np.array([weight for _, _, weight in triples], np.float64)[order]
        return from_edge_weights(topology, "given", weights)

    # --- one node ------------------------------------------------------------------------------------------------

    def row(self, node: int) -> dict[int, float]:
        """Return {id: weight} of the models that `node` sums, ids ascending, including its own."""
        here = slice(self.starts[node], self.starts[node + 1])
        return dict(zip(self.ids[here].tolist(), self.values[here].tolist(), strict=True))

    def sources(self, node: int) -> int:
        """Return the number of others whose models `node` sums."""
        return self._sources[node]

    @cached_property
    def _sources(self) -> list[int]:
        lengths = np.diff(self.starts)
        own = np.repeat(np.arange(len(lengths)), lengths) == self.ids
        others: list[int] = (
            lengths - np.logical_or.reduceat(np.append(own, False), self.starts[:-1]) * (lengths > 0)
        ).tolist()
        return others

    def targets(self, node: int) -> tuple[int, ...]:
        """Return the other nodes whose rows contain `node`, its receivers; ascending."""
        starts, receivers = self._columns
        found = receivers[starts[node] : starts[node + 1]]
        return tuple(found[found != node].tolist())

    @cached_property
    def _columns(self) -> tuple[IntArray, IntArray]:
        order = np.argsort(self.ids, kind="stable")
        starts = np.zeros(self.n + 1, np.int64)
        np.cumsum(np.bincount(self.ids, minlength=self.n), out=starts[1:])
        return starts, self.receivers[order]

    # --- the whole matrix -----------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.topology.n

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.topology.name

    @property
    def period(self) -> int:
        """1: every round has this mixing."""
        return 1

    def partners(self, node: int) -> tuple[int, ...]:
        """Return all nodes that `node` sends to or receives from, ascending."""
        return tuple(sorted({*self.row(node), *self.targets(node)} - {node}))

    def mixing(self, round: int) -> Mixing:
        """Return this mixing for every round."""
        del round
        return self

    @cached_property
    def symmetric(self) -> bool:
        """Whether W is symmetric."""
        if callable(self.given) and self.turned is not None:
            row = dict(zip(self.turned[0].tolist(), self.turned[1].tolist(), strict=True))
            return all(abs(weight - row.get(-offset % self.n, 0.0)) <= 1e-12 for offset, weight in row.items())
        difference = abs(self.sparse() - self.sparse().T)
        return bool(difference.nnz == 0 or difference.max() <= 1e-12)

    def matrix(self) -> FloatArray:
        """Return W as dense float64 [n, n].  For analysis: peers and engines sum rows in order instead."""
        dense = np.zeros((self.n, self.n))
        dense[self.receivers, self.ids] = self.values
        return dense

    def sparse(self) -> csr_array:
        """Return W as scipy CSR, float64 [n, n]."""
        from scipy.sparse import csr_array

        return csr_array((self.values, self.ids, self.starts), shape=(self.n, self.n))

    def rows_by_degree(self) -> list[Group]:
        """Return the rows in groups of equal length, shortest first, for a stacked engine's sums."""
        return self._by_degree

    @cached_property
    def _by_degree(self) -> list[Group]:
        lengths = np.diff(self.starts)
        groups = []
        for length in np.unique(lengths).tolist():
            nodes = np.flatnonzero(lengths == length).astype(np.int64)
            places = self.starts[nodes][:, None] + np.arange(length)
            groups.append((nodes, self.ids[places], self.values[places]))
        return groups

    @cached_property
    def generator(self) -> tuple[IntArray, FloatArray] | None:
        """(offsets, weights) of every row if W is circulant; otherwise None."""
        if self.turned is not None:
            return self.turned
        lengths = np.diff(self.starts)
        if self.topology.circulant is None or lengths.min() != lengths.max():
            return None
        offsets = (self.ids - self.receivers).reshape(self.n, -1) % self.n
        order = np.argsort(offsets, axis=1)
        weights = np.take_along_axis(self.values.reshape(self.n, -1), order, axis=1)
        first = np.sort(offsets[0]), weights[0]
        return first if float(np.abs(weights - first[1]).max()) <= 1e-14 else None

    @property
    def receivers(self) -> IntArray:
        """int64 [entries]: the row of each entry."""
        return np.repeat(np.arange(self.n, dtype=np.int64), np.diff(self.starts))

    def __repr__(self) -> str:
        return f"Mixing({self.topology!r}, {self.rule!r})"


# --- assembling and checking ------------------------------------------------------------------------------------


def from_edge_weights(topology: Topology, rule: str, weights: FloatArray) -> Mixing:
    """Return the symmetric mixing with weights[k] on topology.edges[k]; each node keeps the remainder to one."""
    n, (u, v) = topology.n, topology.edges.T
    nodes = np.arange(n, dtype=np.int64)
    own = 1.0 - _sums(np.concatenate([u, v]), np.concatenate([weights, weights]), n)
    # models of lower ids first, then the node's own: the edges are sorted, so every row is in order
    values = np.concatenate([weights, own, weights])
    return Mixing(topology, rule, group_by_row(n, np.concatenate([v, nodes, u]), np.concatenate([u, nodes, v]), values))


def assemble(
    topology: Topology,
    rule: str,
    receivers: IntArray,
    senders: IntArray,
    weights: FloatArray,
    own: FloatArray,
    stochastic: Stochastic = "both",
) -> Mixing:
    """Return the mixing with weight weights[k] of senders[k]'s model at receivers[k], and own[i] of node i's own.

    Arrays [arcs] and own [n]; every arc once, no loops.
    """
    nodes = np.arange(topology.n, dtype=np.int64)
    rows, columns = np.concatenate([receivers, nodes]), np.concatenate([senders, nodes])
    return Mixing(topology, rule, group_by_row(topology.n, rows, columns, np.concatenate([weights, own])), stochastic)


def turned(
    topology: Topology, rule: str, weight: float, whole: Callable[[], Mixing], stochastic: Stochastic = "both"
) -> Mixing:
    """Return the mixing of a circulant graph with one weight for received models; `whole` creates its arrays on first
    access.
    """
    n, offsets = topology.n, np.array(topology.circulant, np.int64)
    sources = np.unique(-offsets % n if topology.directed else np.concatenate([offsets, -offsets]) % n)
    values = np.full(sources.size + 1, weight)
    values[0] = 1.0 - float(_sums(np.zeros_like(sources), values[1:], 1)[0])
    row = np.concatenate([[0], sources]), values
    return Mixing(topology, rule, lambda: whole().entries, stochastic, row)


def _sums(nodes: IntArray, weights: FloatArray, n: int) -> FloatArray:
    return np.asarray(np.bincount(nodes, weights, n), np.float64)


def _check_values(mixing: Mixing) -> None:
    bad = ~np.isfinite(mixing.values)
    if mixing.rule not in SIGNED:
        # rounding may leave an own weight of -1e-17 if the neighbours' weights sum to one
        bad |= mixing.values < -1e-12
    if bad.any():
        place = int(np.argmax(bad))
        row = int(np.searchsorted(mixing.starts, place, "right")) - 1
        raise ConfigError(
            f"graph {mixing.topology.name!r}: row {row} gives node {mixing.ids[place]} weight {mixing.values[place]:g}",
            "Weights are finite and not negative; lower the other weights of this row.",
        )


_PROMISES: dict[Stochastic, str] = {
    "both": "Rows and columns must sum to 1, or the mean of the models drifts; metropolis always does.",
    "rows": "Rows must sum to 1, or equal models would not stay equal.",
    "columns": "Columns must sum to 1, or mass is lost.",
}


def _check_sums(mixing: Mixing, what: str, sums: FloatArray) -> None:
    wrong = np.abs(sums - 1.0) > TOLERANCE
    if wrong.any():
        index = int(np.argmax(wrong))
        raise ConfigError(
            f"graph {mixing.topology.name!r}: the weights of {what} {index} sum to {sums[index]:.12g}, not to 1",
            _PROMISES[mixing.stochastic],
        )


def dense_weights(W: npt.ArrayLike) -> FloatArray:
    """Return W as float64, copied.  Raises ConfigError for anything but an array of real numbers."""
    try:
        given = np.asarray(W)
        if np.iscomplexobj(given):  # a cast would drop the imaginary part
            raise TypeError("complex numbers")
        return given.astype(np.float64)
    except (TypeError, ValueError) as error:
        advice = "Give a square array of real numbers, [n, n]; of a sparse one its .toarray()."
        raise ConfigError(f"no weights: {error}", advice) from None


def _check_joined(graph: Topology, receivers: IntArray, senders: IntArray) -> None:
    starts, ids = graph.outgoing
    joined = np.repeat(np.arange(graph.n), np.diff(starts)) * graph.n + ids
    missing = ~np.isin(senders * graph.n + receivers, joined)
    if missing.any():
        place = int(np.argmax(missing))
        raise ConfigError(
            f"row {receivers[place]} weighs node {senders[place]}, which does not send to it in {graph.name!r}",
            "Add the edge to the graph, or set the weight to 0.",
        )


def _graph_of(n: int, receivers: IntArray, senders: IntArray) -> Topology:
    arcs = np.stack([senders, receivers], axis=1)
    there, back = set(map(tuple, arcs.tolist())), set(map(tuple, arcs[:, ::-1].tolist()))
    return Topology.from_edges(n, arcs, "matrix", directed=there != back)
