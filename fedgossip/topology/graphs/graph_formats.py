"""Graphs in the files of other programs, recognised by their first characters:

    GraphML, GEXF             XML without a DOCTYPE: no entity is expanded, and nothing fetched           networkx
    GML                       graph [ node [ ... ] edge [ ... ] ]                                         networkx
    node-link, adjacency      JSON of networkx.node_link_data and adjacency_data
    Matrix Market             %%MatrixMarket: edges at the entries of a square matrix
    NAME.adjlist              a node and its neighbours per line

Weights are used unless all are 1.  Sizes are checked before reading; library errors are reported as a ConfigError of
one line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import Topology
from fedgossip.topology.weights.mixing_matrix import Mixing

BYTES_MAX = 16 << 20
"""Maximum size of another program's file in bytes."""
NODES_MAX = 1 << 20
"""Maximum number of nodes of a matrix, checked against its header."""

_FORBIDDEN = re.compile(r"<!\s*(doctype|entity)", re.IGNORECASE)
_MATRIX = "%%matrixmarket"
_OTHERS: Mapping[str, str] = {
    "%": "Matrix Market begins with %%MatrixMarket; of KONECT write the edges alone, from 0.",
    "*vertices": "Of Pajek's files networkx makes GraphML: networkx.write_graphml(networkx.read_pajek(FILE), ...).",
    "p edge": "Of DIMACS write the edges alone, without e, from 0.",
    "c ": "Of DIMACS write the edges alone, without e, from 0.",
    "digraph": "Of Graphviz's files networkx makes GraphML: read_dot, write_graphml.",
    "strict graph": "Of Graphviz's files networkx makes GraphML: read_dot, write_graphml.",
}
"""First characters of unsupported files, with advice."""


def read(path: Path, text: str) -> GivenGraph | None:
    """Parse the file of another program; None for a list of edges.  Raises ConfigError."""
    begin = text[:4096].lstrip()
    low = begin.lower()
    reader = _reader(path, low)
    if reader is None:
        for other, advice in _OTHERS.items():
            if low.startswith(other):
                raise ConfigError(f"{path}: begins with {begin.split()[0]!r}: not a list of edges", advice)
        if re.match(r"graph\s+\w*\s*\{", low):
            raise ConfigError(f"{path}: a graph of Graphviz", _OTHERS["digraph"])
        return None
    if len(text) > BYTES_MAX:
        raise ConfigError(f"{path}: over {BYTES_MAX >> 20} MiB", "Write it as a list of edges, one per line.")
    try:
        return reader(path, text)
    except ConfigError:
        raise
    except Exception as error:  # a damaged file may raise any error of its reader
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        advice = "Write it again with networkx or scipy, or as a list of edges, one per line."
        raise ConfigError(f"{path}: cannot be read: {reason[:200]}", advice) from None


def _reader(path: Path, low: str) -> Callable[[Path, str], GivenGraph] | None:
    if low.startswith(("<?xml", "<graphml", "<gexf", "<!")):
        return _xml
    if low.startswith(_MATRIX):
        return _matrix
    if low.startswith("{"):
        return _json
    if re.match(r"(creator\s.*\n|version\s.*\n|#.*\n|comment\s.*\n|\s)*graph\s*\[", low):
        return _gml
    return _adjacency_list if path.suffix.lower() == ".adjlist" else None


# --- by networkx ------------------------------------------------------------------------------------------------


def _xml(path: Path, text: str) -> GivenGraph:
    from xml.etree import ElementTree

    import networkx as nx

    if _FORBIDDEN.search(text):
        raise ConfigError(f"{path}: a DOCTYPE or an entity, which no graph needs", "Take it out of the file.")
    root = ElementTree.fromstring(text)
    kind = root.tag.rpartition("}")[2].lower()
    whole = ElementTree.tostring(root, encoding="unicode")
    if kind == "graphml":
        return _from_networkx(nx.parse_graphml(whole), path)
    if kind == "gexf":
        return _from_networkx(nx.read_gexf(io.BytesIO(whole.encode())), path)
    raise ConfigError(f"{path}: XML of {kind!r}, neither graphml nor gexf", "Give GraphML or GEXF.")


def _gml(path: Path, text: str) -> GivenGraph:
    import networkx as nx

    try:
        graph = nx.parse_gml(text, label="label")
    except nx.NetworkXError:  # nodes without a label, or of one: their ids are their names
        graph = nx.parse_gml(text, label="id")
    return _from_networkx(graph, path)


def _from_networkx(graph: Any, path: Path) -> GivenGraph:
    edges = [(str(u), str(v)) for u, v in graph.edges()]
    weights = [data.get("weight") for _, _, data in graph.edges(data=True)]
    nodes = tuple(map(str, graph.nodes))
    if len(set(nodes)) < len(nodes):
        raise ConfigError(f"{path}: two nodes have one name", "Give each a name of its own.")
    return _make_graph(path, nodes, edges, weights, directed=graph.is_directed())


def _adjacency_list(path: Path, text: str) -> GivenGraph:
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if wrong := next((word for words in lines for word in words if "#" in word), ""):
        raise ConfigError(f"{path}: {wrong!r}: a comment stands in a line of its own", "Write it as edges, u v.")
    nodes = tuple(dict.fromkeys(word for words in lines for word in words))
    edges = [(words[0], other) for words in lines for other in words[1:]]
    return _make_graph(path, nodes, edges, [None] * len(edges), directed=False)


# --- JSON -------------------------------------------------------------------------------------------------------


class _Node(msgspec.Struct):
    id: int | float | str


class _Link(msgspec.Struct):
    source: int | float | str
    target: int | float | str
    weight: float | None = None


class _Neighbour(msgspec.Struct):
    id: int | float | str
    weight: float | None = None


class _Graph(msgspec.Struct):
    nodes: list[_Node]
    directed: bool = False
    links: list[_Link] | None = None
    edges: list[_Link] | None = None
    adjacency: list[list[_Neighbour]] | None = None


def _json(path: Path, text: str) -> GivenGraph:
    try:
        found = from_json(msgspec.json.Decoder(_Graph), text.encode())
    except UnreadableError as error:
        advice = "Write networkx.node_link_data(graph) or adjacency_data(graph)."
        raise ConfigError(f"{path}: not a graph in JSON: {error}", advice) from None
    nodes = tuple(str(one.id) for one in found.nodes)
    if (found.adjacency is None) == ((links := found.links if found.links is not None else found.edges) is None):
        raise ConfigError(f"{path}: neither links nor adjacency", "Write networkx.node_link_data(graph).")
    if links is not None:
        edges = [(str(one.source), str(one.target)) for one in links]
        return _make_graph(path, nodes, edges, [one.weight for one in links], directed=found.directed)
    rows = found.adjacency or []
    if len(rows) != len(nodes):
        raise ConfigError(f"{path}: {len(nodes)} nodes, and neighbours of {len(rows)}", "Give a list for each node.")
    both = [(node, str(one.id), one.weight) for node, row in zip(nodes, rows, strict=True) for one in row]
    if not found.directed:  # each edge is listed at both ends
        once = {frozenset((u, v)): (u, v, weight) for u, v, weight in both}
        both = list(once.values())
    return _make_graph(path, nodes, [(u, v) for u, v, _ in both], [w for _, _, w in both], directed=found.directed)


# --- Matrix Market ----------------------------------------------------------------------------------------------


def _matrix(path: Path, text: str) -> GivenGraph:
    head = text.partition("\n")[0].lower().split()
    lines = [line.split() for line in text.splitlines()[1:] if line.strip() and not line.startswith("%")]
    sizes, places = (lines or [[]])[0], lines[1:]
    usual = "The first line is: %%MatrixMarket matrix coordinate pattern symmetric."
    if len(head) != 5 or head[1:3] != ["matrix", "coordinate"] or head[3] not in ("pattern", "real", "integer"):
        raise ConfigError(f"{path}: a matrix of {' '.join(head[1:])!r}, not of edges", usual)
    if head[4] not in ("general", "symmetric") or len(sizes) != 3 or not all(one.isdecimal() for one in sizes):
        raise ConfigError(f"{path}: its sizes {' '.join(sizes)!r} cannot be read", usual)
    rows, columns, entries = map(int, sizes)
    if rows != columns or rows > NODES_MAX or 4 * entries > len(text):
        text = f"{path}: {rows} rows, {columns} columns and {entries} entries"
        raise ConfigError(text, f"A graph is a square matrix, of at most {NODES_MAX} rows, with all entries there.")
    pattern = head[3] == "pattern"
    found = {(int(u) - 1, int(v) - 1): 1.0 if pattern else float(value[0]) for u, v, *value in places}
    if len(places) != entries or not all(0 <= one < rows for pair in found for one in pair):
        text = f"{path}: its entries cannot be read: {len(places)} of {entries}, or one outside the matrix"
        raise ConfigError(text, "Write the whole matrix again.")
    found |= {(v, u): value for (u, v), value in found.items()} if head[4] == "symmetric" else {}
    mirrored = all(found.get((v, u)) == value for (u, v), value in found.items())
    kept = {(u, v): value for (u, v), value in found.items() if not mirrored or u < v or u == v}
    edges = [(str(u), str(v)) for u, v in kept]
    weights: list[Any] = [None] * len(kept) if pattern else list(kept.values())
    return _make_graph(path, tuple(map(str, range(rows))), edges, weights, directed=not mirrored)


def _make_graph(
    path: Path, nodes: tuple[str, ...], edges: list[tuple[str, str]], weights: list[Any], *, directed: bool
) -> GivenGraph:
    """Return the parsed graph; with weights if all edges have one and not all are 1."""
    known = set(nodes)
    if strange := next((node for edge in edges for node in edge if node not in known), None):
        raise ConfigError(f"{path}: an edge names node {strange!r}, which is not among the nodes", "Name it there.")
    if not edges:
        raise ConfigError(f"{path}: no edges", "A graph has at least one.")
    there = [weight for weight in weights if weight is not None]
    if there and len(there) < len(weights):
        raise ConfigError(
            f"{path}: {len(there)} of {len(weights)} edges have a weight", "Give all of them one, or none."
        )
    if not all(isinstance(weight, int | float) for weight in there):
        raise ConfigError(f"{path}: a weight that is no number", "Give each edge a number, or none.")
    mirrored = directed and {(v, u) for u, v in edges} == set(edges)
    if mirrored and not there:
        directed = False
    if all(weight == 1 for weight in there):
        return GivenGraph(nodes, edges, None, directed)
    return GivenGraph(nodes, edges, [float(weight) for weight in there], directed)


@dataclass(frozen=True)
class GivenGraph:
    """The content of a file: nodes by name, and edges between them, either all weighted or none."""

    nodes: tuple[str, ...]
    edges: list[tuple[str, str]]
    weights: list[float] | None = None
    directed: bool = False
    lines: list[int] | None = None
    """Position of each edge in the file."""

    def where(self, edge: int) -> str:
        """Return the place of an edge, for messages."""
        return f", line {self.lines[edge]}" if self.lines else ""


def topology_of(given: GivenGraph, path: Path) -> Topology:
    """Return the graph of a file.  Raises ConfigError for a loop, and for a gap in the ids."""
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
    """Return the id of each node, and labels unless they equal the ids.  Raises ConfigError for a loop."""
    for edge, (u, v) in enumerate(given.edges):
        if u == v:
            raise ConfigError(f"{path}{given.where(edge)}: {u!r} is joined to itself", "Take this line out.")
    plain = all(map(str.isdecimal, given.nodes)) and set(map(int, given.nodes)) == set(range(len(given.nodes)))
    ids = {node: int(node) if plain else place for place, node in enumerate(given.nodes)}
    return ids, None if plain else given.nodes
