"""Graphs as lists of edges: "u v" or "u v weight" per line, with # comments.

    u v                  between spaces or tabs; in a .csv file, or where a line is one word, commas or semicolons
    "New York" Boston    a name with spaces stands in quotes
    u v {'weight': .25}  as networkx writes edges; other attributes are ignored
    source target        a first line that names the columns is passed over
    # text               a comment: "#" by itself, or behind an edge.  Inside a word it is part of a name

What could be two graphs is refused.
"""

from __future__ import annotations

import ast
import csv
from pathlib import Path

from fedgossip.base import outside_files
from fedgossip.base.cells import number_in
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.given_graphs import GivenGraph

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
    """Return the words of each line with an edge: two of all lines, or three."""
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
    """Return whether a line is a comment.  Raises ConfigError for one that could be an edge of nodes with a #."""
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
    """Return what divides the words of a list: "" for spaces."""
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
                raise ConfigError(text, f'Write a comment behind an edge, and such a name in quotes: "{word}".')
            return words[:place]
        if "," in word.strip(",") and not quoted and not word.startswith("("):
            text = f"{path}, line {line}: {word!r} holds a comma"
            raise ConfigError(text, "Divide all words by spaces, names with commas in quotes; or name the file .csv.")
    return words


def _data(text: str, path: Path, line: int) -> list[str]:
    """Return the weight in what networkx writes of an edge, [] where there is none."""
    try:
        found = ast.literal_eval(text) if len(text) <= DATA_LETTERS else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path}, line {line}: what it says of the edge cannot be read", "Write: u v {'weight': 0.25}."
        )
    return [str(found["weight"])] if "weight" in found else []


def _ordered(nodes: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Return nodes that are numbers in their order.  Raises ConfigError where one is missing."""
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
    """Return the text of a file.  Raises ConfigError where it is missing, too large or no text."""
    try:
        return outside_files.read_text(outside_files.named(path), MAX_FILE_BYTES).removeprefix("\ufeff")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "Check the path of the graph.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8", "Give a TOML file or a list of edges.") from None
