"""Graphs as files: TOML with a source and expected properties, or a plain list of edges.

A file that violates its [expect] block is refused, so a typo does not run as an experiment.
"""

from __future__ import annotations

import ast
import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedgossip.base import outside_files
from fedgossip.base.cells import number_in
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.topology.graphs import grammar, graph_formats
from fedgossip.topology.graphs.graph import IntArray, Topology, require_connected
from fedgossip.topology.graphs.graph_formats import NODES_MAX, GivenGraph, mixing_of, topology_of
from fedgossip.topology.spectra.spectrum import spectrum
from fedgossip.topology.weights.mixing_matrix import TOLERANCE, Mixing, Stochastic, assemble
from fedgossip.topology.weights.weights import build, rule_names

_PACKAGE = Path(__file__).resolve().parents[2]
READY_FOLDERS = (_PACKAGE / "topologies", _PACKAGE.parent / "topologies")
"""Inside the package in an installed wheel; next to it in a checkout."""

NEAR = 1e-6  # tolerance of [expect]


class Expect(msgspec.Struct, forbid_unknown_fields=True):
    """Required properties of the graph; rates refer to the file's weights, or Metropolis weights, and hold to 1e-6."""

    n: int | None = None
    edges: int | None = None
    degree_min: int | None = None
    degree_max: int | None = None
    connected: bool | None = None
    slem: float | None = None
    spectral_gap: float | None = None
    algebraic_connectivity: float | None = None


class GraphFile(msgspec.Struct, forbid_unknown_fields=True):
    """A graph's TOML file.  Either `family`, or `edges` or `arcs` with `nodes` (labels) or `n`.

    arcs: [u, v, w]: u sends to v, and v weighs u's model by w; each node keeps the remainder, or the weight of its
    loop.  rule: name of the weights.  matchings: the edges in sets without a common node, for "matcha".
    """

    name: str
    title: str
    source: str
    nodes: list[str] | None = None
    n: int | None = None
    edges: list[tuple[int | str, int | str]] | None = None
    arcs: list[tuple[int | str, int | str, float]] | None = None
    rule: str | None = None
    family: str | None = None
    directed: bool = False
    weights: str | None = None
    positions: list[tuple[float, float]] | None = None
    matchings: list[list[tuple[int | str, int | str]]] | None = None
    expect: Expect = msgspec.field(default_factory=Expect)


def load(path: Path | str) -> Topology:
    """Return the graph in a file: TOML by its suffix, else a list of edges or another program's format.

    Raises ConfigError for a missing, too large, or unreadable file, or a violated expectation.
    """
    place = Path(path)
    if place.suffix == ".toml":
        return load_toml(place)
    given = parse_graph(place)
    return topology_of(given, place) if given.weights is None else mixing_of(given, place).topology


def parse_graph(path: Path) -> GivenGraph:
    """Parse a graph file of another program, or a list of edges.  Raises ConfigError."""
    text = text_of(path)
    return graph_formats.read(path, text) or listed(path, text)


def load_weighted(path: Path | str) -> Mixing:
    """Return the symmetric mixing of a "u v weight" file; each node keeps the remainder to one.

    Raises ConfigError, naming the line, for other words, loops and repeated edges.
    """
    given = parse_graph(Path(path))
    if given.weights is None:
        raise ConfigError(f"{path}: no weights", "Write: u v 0.25.")
    return mixing_of(given, Path(path))


def load_toml(path: Path) -> Topology:
    """Return the graph that a TOML file describes, checked against its [expect] block.

    Raises ConfigError for an unreadable file, an unknown rule, and violations.
    """
    described = read(path)
    topology = replace(_from_description(described, path), weights=described.weights)
    if described.matchings is not None:
        topology = replace(topology, matchings=_matchings(described.matchings, topology, path))
    if described.weights is not None and described.weights not in rule_names():
        raise ConfigError(
            f"{path}: unknown weight rule {described.weights!r}", nearest(described.weights, rule_names())
        )
    if described.arcs is None:
        _check(described.expect, topology, path)
    elif (mixing := load_mixing(path)) is not None:  # its numbers are of its own weights
        topology = mixing.topology
    return topology


def load_mixing(path: Path | str) -> Mixing | None:
    """Return a file's graph with its weights (arcs of TOML, "u v weight" lines), or None if it has no weights.

    Raises ConfigError as `load` and `load_weighted`.
    """
    place = Path(path)
    if place.suffix != ".toml":
        given = parse_graph(place)
        return None if given.weights is None else mixing_of(given, place)
    described = read(place)
    if described.arcs is None:
        return None
    mixing = _from_arcs(described, place)
    _check(described.expect, mixing.topology, place, mixing)
    return mixing


def read(path: Path) -> GraphFile:
    """Parse a TOML file, typed, without building the graph.

    Raises ConfigError for an invalid file, and for one without a source.
    """
    text = text_of(path)
    try:
        given = from_toml(text)
        if missing := [key for key in ("name", "title", "source") if not str(given.get(key, "")).strip()]:
            text = f"{path}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing or empty"
            raise ConfigError(
                text, "name is a word, title what it is, source where it is from: a paper, a map, yourself."
            )
        described = msgspec.convert(given, GraphFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}", "See topologies/abilene.toml for every field a graph may have.") from None
    return described


def written(mixing: Mixing, name: str, title: str, source: str) -> str:
    """Return the TOML text of a graph with its weights; `load_mixing` restores it to the last digit."""
    keep = mixing.values != 0
    arcs = zip(mixing.ids[keep].tolist(), mixing.receivers[keep].tolist(), mixing.values[keep].tolist(), strict=True)
    lines = [f"    [{u}, {v}, {w!r}]," for u, v, w in arcs]
    head = [f"{key} = {json.dumps(value)}" for key, value in (("name", name), ("title", title), ("source", source))]
    rest = [f"n = {mixing.n}", f"rule = {json.dumps(mixing.rule)}", "arcs = [ # [sender, receiver, weight]"]
    return "\n".join([*head, *rest, *lines, "]", "", "[expect]", f"edges = {mixing.topology.edge_count}", ""])


def ready_names() -> tuple[str, ...]:
    """Return the names of the graphs included in fedgossip."""
    return tuple(sorted({path.stem for folder in READY_FOLDERS for path in folder.glob("*.toml")}))


def ready_path(name: str) -> Path | None:
    """Return the file of a graph included in fedgossip, None for an unknown name."""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        return None
    return next((path for folder in READY_FOLDERS if (path := folder / f"{name}.toml").is_file()), None)


def ready(name: str) -> Topology:
    """Return a graph included in fedgossip.  Raises ConfigError for an unknown name."""
    path = ready_path(name)
    if path is None:
        raise ConfigError(f"no ready graph is called {name!r}", nearest(name, ready_names()))
    return load_toml(path)


# --- TOML -------------------------------------------------------------------------------------------------------


def _from_description(described: GraphFile, path: Path) -> Topology:
    if described.family is not None:
        return _from_family(described, path)
    if described.arcs is not None:
        return _from_arcs(described, path).topology
    if described.edges is None:
        raise ConfigError(f"{path}: the graph is not given", "Give family, or edges or arcs with nodes or n.")
    n, labels = _nodes_of(described, path)
    edges = [(_id(u, labels, path), _id(v, labels, path)) for u, v in described.edges]
    return Topology.from_edges(
        n, edges, described.name, described.directed, labels=labels, positions=described.positions
    )


def _nodes_of(described: GraphFile, path: Path) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of nodes, and their labels, if given.  Raises ConfigError."""
    if (described.nodes is None) == (described.n is None):
        raise ConfigError(f"{path}: the graph is not given", "Give edges or arcs with either nodes or n.")
    labels = None if described.nodes is None else tuple(described.nodes)
    n = len(labels) if labels is not None else described.n or 0
    if n > NODES_MAX:
        raise ConfigError(f"{path}: {n} nodes; a file has at most {NODES_MAX}", "Name a family for more.")
    return n, labels


def _from_arcs(described: GraphFile, path: Path) -> Mixing:
    arcs = described.arcs or []
    if not arcs or described.edges is not None or described.weights is not None:
        text = f"{path}: arcs, which have their own weights, with edges or weights" if arcs else f"{path}: no arcs"
        raise ConfigError(text, "Give arcs = [[u, v, weight], ...] alone, with nodes or n.")
    n, labels = _nodes_of(described, path)
    ends = np.array([(_id(one, labels, path), _id(other, labels, path)) for one, other, _ in arcs], np.int64)
    u, v = ends.T
    weights = np.array([weight for _, _, weight in arcs], np.float64)
    if (outside := (ends < 0) | (ends >= n)).any():
        place = int(outside.any(axis=1).argmax())
        raise ConfigError(f"{path}: arc ({u[place]}, {v[place]}), but the nodes are 0..{n - 1}", "Number them from 0.")
    if len(np.unique(u * n + v)) != len(arcs):
        raise ConfigError(f"{path}: an arc is given twice, and with weights", "Give each arc once.")
    loops = u == v
    others = np.stack([u[~loops], v[~loops]], axis=1)
    mirrored = np.array_equal(np.unique(u[~loops] * n + v[~loops]), np.unique(v[~loops] * n + u[~loops]))
    topology = Topology.from_edges(
        n, others, described.name, directed=not mirrored, labels=labels, positions=described.positions
    )
    own = np.asarray(1.0 - np.bincount(v[~loops], weights[~loops], n), np.float64)
    own[u[loops]] = weights[loops]
    received = np.bincount(v[~loops], weights[~loops], n) + own
    given = np.bincount(u[~loops], weights[~loops], n) + own
    sums = [bool(np.abs(one - 1.0).max() <= TOLERANCE) for one in (received, given)]
    kept: Stochastic = "columns" if sums == [False, True] else "rows" if sums == [True, False] else "both"
    try:
        return assemble(topology, described.rule or "given", others[:, 1], others[:, 0], weights[~loops], own, kept)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", error.advice) from None


def _matchings(given: list[list[tuple[int | str, int | str]]], topology: Topology, path: Path) -> tuple[IntArray, ...]:
    sets = [[sorted((_id(u, topology.labels, path), _id(v, topology.labels, path))) for u, v in one] for one in given]
    for place, one in enumerate(sets):
        ends = [node for edge in one for node in edge]
        if len(set(ends)) < len(ends):
            node = next(node for node in ends if ends.count(node) > 1)
            text = f"{path}: matching {place} has two edges at node {topology.label(node)}"
            raise ConfigError(text, "No two edges of a matching share a node.")
    if topology.directed or sorted(edge for one in sets for edge in one) != topology.edges.tolist():
        raise ConfigError(f"{path}: the matchings together are not the edges", "Give every edge in one of them.")
    return tuple(np.array(one, np.int64).reshape(-1, 2) for one in sets)


def _from_family(described: GraphFile, path: Path) -> Topology:
    assert described.family is not None
    if described.edges is not None or described.nodes is not None or described.directed:
        raise ConfigError(f"{path}: family and edges, nodes or directed", "Give the one or the other.")
    made = grammar.family(described.family, described.n)
    if made is None:
        raise ConfigError(
            f"{path}: unknown family {described.family!r}",
            nearest(described.family.partition(":")[0], grammar.family_names()),
        )
    placed = Topology.from_edges(made.n, made.edges, positions=described.positions).positions
    return replace(made, name=described.name, positions=made.positions if placed is None else placed)


def _id(node: int | str, labels: tuple[str, ...] | None, path: Path) -> int:
    if isinstance(node, int):
        return node
    if labels is None or node not in labels:
        raise ConfigError(
            f"{path}: an edge names node {node!r}, which is not among the nodes",
            nearest(node, labels) if labels else "Give nodes = [...], or use ids.",
        )
    return labels.index(node)


def _check(expect: Expect, topology: Topology, path: Path, mixing: Mixing | None = None) -> None:
    if expect.connected is not False:
        require_connected(topology)
    for key, expected in msgspec.structs.asdict(expect).items():
        if expected is None:
            continue
        found = _measure(key, topology, mixing)
        near = isinstance(expected, float) and found is not None and abs(found - expected) <= NEAR
        if not near and found != expected:
            raise ConfigError(
                f"{path}: expects {key} = {expected}, found {found}",
                "One of them has a slip: check the edges against the source, then the number.",
            )


def _measure(key: str, topology: Topology, mixing: Mixing | None) -> Any:
    counted = {"n": topology.n, "edges": len(topology.edges)}
    if key in counted:
        return counted[key]
    if key == "connected":
        return topology.is_connected
    if key.startswith("degree"):
        degrees = topology.degrees()
        return int(degrees.min() if key == "degree_min" else degrees.max())
    return getattr(spectrum(mixing or build(topology)), key)


# Graphs as lists of edges: "u v" or "u v weight" per line, with # comments.
#
#     u v                  separated by spaces or tabs; in a .csv file, or one-word lines, by commas or semicolons
#     "New York" Boston    a name with spaces is quoted
#     u v {'weight': .25}  as networkx writes edges; other attributes are ignored
#     source target        a first line with column names is skipped
#     # text               a comment: a "#" alone, or after an edge.  Inside a word it is part of a name
#
# Ambiguous lists are refused.


MAX_FILE_BYTES = 64 << 20
DATA_LETTERS = 1000
"""Maximum number of letters of an edge's attributes in a line."""
HEADS = {
    ("source", "target"), ("from", "to"), ("src", "dst"), ("node1", "node2"), ("node_1", "node_2"), ("u", "v"),
    ("fromnodeid", "tonodeid"), ("id1", "id2"), ("start", "end"), ("i", "j"),
}  # fmt: skip
"""Names of an edge's ends in the first line of a list."""


def listed(path: Path, text: str) -> GivenGraph:
    """Parse a list of edges.  Raises ConfigError, naming the line."""
    rows = _rows(path, text)
    weighted = len(rows[0][1]) == 3
    weights = [_weight(path, line, words[2]) for line, words in rows] if weighted else None
    edges = [(words[0], words[1]) for _, words in rows]
    nodes = tuple(dict.fromkeys(node for edge in edges for node in edge))
    return GivenGraph(_ordered(nodes, path), edges, weights, lines=[line for line, _ in rows])


def _weight(path: Path, line: int, word: str) -> float:
    found = number_in(word)
    if found is None:
        raise ConfigError(f"{path}, line {line}: weight {word!r} is no number", "Write: u v 0.25.")
    return found


def _rows(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """Return the words of each line with an edge: two words in all lines, or three."""
    rows: list[tuple[int, list[str]]] = []
    mark, width, begun = "", 0, False
    for line, whole in enumerate(text.splitlines(), 1):
        bare = whole.strip()
        if not bare or _is_comment(bare, path, line):
            continue
        if not begun:
            mark, begun = _mark(bare, path), True
        words = _words(bare, mark, path, line)
        if not rows and not width and tuple(word.lower() for word in words[:2]) in HEADS:
            width = len(words)
            continue
        width = width or len(words)
        if len(words) != width or width not in (2, 3):
            wanted = width if width in (2, 3) else 2
            what = "two nodes" if wanted == 2 else "two nodes and a weight"
            raise ConfigError(
                f"{path}, line {line}: {len(words)} words, expected {wanted}",
                f"Write {what} per line, as the first line does.",
            )
        rows.append((line, words))
    if not rows:
        raise ConfigError(f"{path}: no edges", 'Write one "u v" per line.')
    first, others = rows[0][1][:2], rows[1:]
    if others and not any(map(str.isdecimal, first)) and all(w.isdecimal() for _, ws in others for w in ws[:2]):
        text = f"{path}, line {rows[0][0]}: {first[0]!r} and {first[1]!r} are words, and all other nodes numbers"
        raise ConfigError(text, 'If it is a heading, put "# " in front of it.')
    return rows


def _is_comment(bare: str, path: Path, line: int) -> bool:
    """Return whether a line is a comment.  Raises ConfigError if it may be an edge of nodes with a # in their names."""
    if not bare.startswith("#"):
        return False
    words = bare.split()
    if bare[1:2] in ("", " ", "\t", "#", "!") or len(words) not in (2, 3):
        return True
    if (words[0][1:].lower(), words[1].lower()) in HEADS:
        return True
    text = f"{path}, line {line}: {words[0]!r} begins a comment, or is the name of a node"
    raise ConfigError(text, 'Write "# ..." for a comment, and names that begin with # in quotes: "#1" "#2".')


def _mark(bare: str, path: Path) -> str:
    """Return the separator of a list; "" for spaces."""
    several = path.suffix.lower() == ".csv" or len(bare.split()) == 1
    return next((mark for mark in (",", ";", "\t") if mark in bare), "") if several else ""


def _words(bare: str, mark: str, path: Path, line: int) -> list[str]:
    if bare.endswith("}") and "{" in bare:
        bare, _, data = bare.partition("{")
        weight = _data(f"{{{data}", path, line)
        return [*_words(bare.strip().rstrip(mark or " "), mark, path, line), *weight]
    if mark:
        return [word.strip() for word in next(csv.reader([bare], delimiter=mark), [])]
    quoted = '"' in bare
    words = next(csv.reader([" ".join(bare.split())], delimiter=" "), []) if quoted else bare.split()
    for place, word in enumerate(words):
        if word.startswith("#") and not quoted:
            if place < 2:
                text = f"{path}, line {line}: {word!r} begins a comment, or is the name of a node"
                raise ConfigError(text, f'Write a comment after an edge, and such a name in quotes: "{word}".')
            return words[:place]
        if "," in word.strip(",") and not quoted and not word.startswith("("):
            text = f"{path}, line {line}: {word!r} holds a comma"
            raise ConfigError(text, "Divide all words by spaces, names with commas in quotes; or name the file .csv.")
    return words


def _data(text: str, path: Path, line: int) -> list[str]:
    """Return the weight in networkx's attributes of an edge, [] without one."""
    try:
        found = ast.literal_eval(text) if len(text) <= DATA_LETTERS else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}, line {line}: the edge's attributes cannot be read", "Write: u v {'weight': 0.25}.")
    return [str(found["weight"])] if "weight" in found else []


def _ordered(nodes: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Return numbered nodes in order.  Raises ConfigError for a gap."""
    if not all(map(str.isdecimal, nodes)):
        return nodes
    present = sorted(set(map(int, nodes)))
    if present[-1] != len(present) - 1:
        hole = next(number for number, node in enumerate(present) if number != node)
        raise ConfigError(
            f"{path}: the ids go up to {present[-1]} and node {hole} is missing",
            "Number the nodes from 0 without a hole, or use words as names; nodes without an edge need a TOML file.",
        )
    return tuple(sorted(nodes, key=int))


def text_of(path: Path) -> str:
    """Return the text of a file.  Raises ConfigError if it is missing, too large or no text."""
    try:
        return outside_files.read_text(outside_files.resolve(path), MAX_FILE_BYTES).removeprefix("\ufeff")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "Check the path of the graph.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8", "Give a TOML file or a list of edges.") from None
