"""The content of a graph's file, independent of its format: nodes by their names, edges, perhaps weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import Topology
from fedgossip.topology.weights.mixing import Mixing


@dataclass(frozen=True)
class GivenGraph:
    """The content of a file: nodes by their names, and edges between them, all with a weight or none."""

    nodes: tuple[str, ...]
    edges: list[tuple[str, str]]
    weights: list[float] | None = None
    directed: bool = False
    lines: list[int] | None = None
    """Position of each edge in the file."""

    def where(self, edge: int) -> str:
        """Return how a message names the place of an edge."""
        return f", line {self.lines[edge]}" if self.lines else ""


def topology_of(given: GivenGraph, path: Path) -> Topology:
    """Return the graph of a file.  Raises ConfigError for a loop, and ids with a hole."""
    ids, labels = _checked(given, path)
    edges = [(ids[u], ids[v]) for u, v in given.edges]
    return Topology.from_edges(len(ids), edges, path.stem, given.directed, labels=labels)


def mixing_of(given: GivenGraph, path: Path) -> Mixing:
    """Return the symmetric mixing of a file.  Raises ConfigError for a loop, and an edge given twice."""
    if given.directed:
        text = f"{path}: a directed graph with weights"
        raise ConfigError(text, "Write it as arcs in a TOML file (docs/together/graphs.md), or leave the weights out.")
    ids, labels = _checked(given, path)
    weighed = zip(given.edges, given.weights or (), strict=True)
    found = Mixing.from_weighted_edges(len(ids), [(ids[u], ids[v], weight) for (u, v), weight in weighed], path.stem)
    return found if labels is None else replace(found, topology=replace(found.topology, labels=labels))


def _checked(given: GivenGraph, path: Path) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Return the id of each node, and the labels where they are no ids.  Raises ConfigError for a loop."""
    for edge, (u, v) in enumerate(given.edges):
        if u == v:
            raise ConfigError(f"{path}{given.where(edge)}: {u!r} is joined to itself", "Take this line out.")
    plain = all(map(str.isdecimal, given.nodes)) and set(map(int, given.nodes)) == set(range(len(given.nodes)))
    ids = {node: int(node) if plain else place for place, node in enumerate(given.nodes)}
    return ids, None if plain else given.nodes
