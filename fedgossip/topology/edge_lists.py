"""Graphs as lists of edges: "u v" or "u v weight" per line, with # comments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedgossip import outside_files
from fedgossip.errors import ConfigError
from fedgossip.topology.graph import Topology
from fedgossip.topology.mixing import Mixing

MAX_FILE_BYTES = 64 << 20


def load_edge_list(path: Path) -> Topology:
    """Return the undirected graph of a "u v" or "u v weight" file; ids from 0 without a hole, or words, the labels.

    Raises ConfigError, naming the line, for other words, a loop, and ids with a hole.
    """
    if is_weighted(path):
        return load_weighted(path).topology
    rows = _rows(path, 2)
    n, ids, labels = _numbered([row[:2] for _, row in rows], path)
    _refuse_loops(rows, path)
    edges = [(ids[u], ids[v]) for _, (u, v) in rows]
    return Topology.from_edges(n, edges, path.stem, labels=labels)


def load_weighted(path: Path | str) -> Mixing:
    """Return the symmetric mixing of a "u v weight" file; each node keeps what its edges leave of one.

    Raises ConfigError, naming the line, for other words, a loop and an edge given twice.
    """
    place = Path(path)
    rows = _rows(place, 3)
    n, ids, labels = _numbered([row[:2] for _, row in rows], place)
    _refuse_loops(rows, place)
    triples = []
    for line, (u, v, weight) in rows:
        try:
            triples.append((ids[u], ids[v], float(weight)))
        except ValueError:
            raise ConfigError(f"{place}, line {line}: weight {weight!r} is no number", "Write: u v 0.25.") from None
    found = Mixing.from_weighted_edges(n, triples, place.stem)
    return found if labels is None else replace(found, topology=replace(found.topology, labels=labels))


def is_weighted(path: Path) -> bool:
    """Whether the first line that is not empty has a third word."""
    lines = (line.split("#", 1)[0].split() for line in text_of(path).splitlines())
    return len(next(filter(None, lines), [])) == 3


def _rows(path: Path, width: int) -> list[tuple[int, list[str]]]:
    rows = []
    for line, text in enumerate(text_of(path).splitlines(), 1):
        words = text.split("#", 1)[0].split()
        if words and len(words) != width:
            what = "two nodes" if width == 2 else "two nodes and a weight"
            raise ConfigError(
                f"{path}, line {line}: {len(words)} words, expected {width}",
                f"Write {what} per line, as the first line does.",
            )
        if words:
            rows.append((line, words))
    if not rows:
        raise ConfigError(f"{path}: no edges", 'Write one "u v" per line.')
    return rows


def _numbered(pairs: list[list[str]], path: Path) -> tuple[int, dict[str, int], tuple[str, ...] | None]:
    words = list(dict.fromkeys(word for pair in pairs for word in pair))
    if not all(word.isdecimal() for word in words):
        return len(words), {word: index for index, word in enumerate(words)}, tuple(words)
    ids = {word: int(word) for word in words}
    present = set(ids.values())
    n = max(present) + 1
    hole = next((number for number in range(n) if number not in present), None)
    if hole is not None:
        raise ConfigError(
            f"{path}: the ids go up to {n - 1} and node {hole} is missing",
            "Number the nodes from 0 without a hole, or use words as names; nodes without an edge need a TOML file.",
        )
    return n, ids, None


def _refuse_loops(rows: list[tuple[int, list[str]]], path: Path) -> None:
    for line, words in rows:
        if words[0] == words[1]:
            raise ConfigError(f"{path}, line {line}: {words[0]!r} is joined to itself", "Take this line out.")


def text_of(path: Path) -> str:
    """Return what a file says.  Raises ConfigError where it is missing, too large or no text."""
    try:
        return outside_files.read_text(outside_files.named(path), MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "Check the path of the graph.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file", "Give a TOML file or a list of edges.") from None
