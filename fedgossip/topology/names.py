"""From what somebody wrote for a graph to the graph."""

from __future__ import annotations

from pathlib import Path

from fedgossip.errors import ConfigError, nearest
from fedgossip.topology import files
from fedgossip.topology.grammar import family, family_names, require_size
from fedgossip.topology.graph import Topology, require_connected

__all__ = ["family_names", "require_connected", "resolve"]

_SUFFIXES = (".toml", ".txt", ".edges", ".edgelist", ".csv", ".tsv")


def resolve(graph: str, n: int | None = None, *, seed: int = 0, base: Path | None = None) -> Topology:
    """Return the connected graph that `graph` names.

    graph: a family ("ring", "torus:4x4", "regular:3"; see grammar.FAMILIES), a ready graph ("karate"), or the path
    of a TOML file or list of edges, relative to `base`.  n: the number of nodes, where the name leaves it open.
    seed: for the drawn families.  Only "none" may be disconnected.

    Raises ConfigError for an unknown name, a size that the graph does not have, a bad file, or a graph that falls
    apart.
    """
    word = graph.strip()
    if not word:
        raise ConfigError("no graph was named", "Try ring, or see fedgossip topology list.")
    if _looks_like_path(word):
        path = Path(word).expanduser()
        found = files.load(base / path if base is not None else path)
        return require_connected(require_size(found, word, n))
    made = family(word, n, seed)
    if made is not None:
        return made if made.name == "none" else require_connected(made)
    if files.ready_path(word) is not None:
        return require_size(files.ready(word), word, n)
    known = (*family_names(), *files.ready_names())
    raise ConfigError(f"no graph is called {word!r}", nearest(word.partition(":")[0], known))


def _looks_like_path(word: str) -> bool:
    return "/" in word or "\\" in word or word.lower().endswith(_SUFFIXES)
