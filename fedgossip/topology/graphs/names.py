"""Resolves an experiment's graph name to the graph."""

from __future__ import annotations

from pathlib import Path

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.topology.graphs import files
from fedgossip.topology.graphs.grammar import (
    DRAWN,
    FAMILIES,
    family,
    family_names,
    require_size,
    schedule,
    schedule_names,
    weighted,
    weighted_names,
)
from fedgossip.topology.graphs.graph import Topology, require_connected
from fedgossip.topology.schedules.schedules import Schedule, union
from fedgossip.topology.weights.mixing_matrix import Mixing
from fedgossip.topology.weights.weights import build

__all__ = [
    "family_names",
    "graph_word",
    "is_drawn",
    "require_connected",
    "resolve",
    "resolve_schedule",
    "schedule_names",
    "weighted_names",
]

SUFFIXES = (
    ".toml", ".txt", ".edges", ".edgelist", ".csv", ".tsv", ".adjlist",
    ".graphml", ".gexf", ".xml", ".gml", ".json", ".mtx",
)  # fmt: skip


def resolve(
    graph: str,
    n: int | None = None,
    *,
    seed: int = seeds.USUAL,
    base: Path | None = None,
    allow_disconnected: bool = False,
) -> Topology:
    """Return the connected graph named `graph`.

    graph: a family ("ring", "torus:4x4", "regular:3"; grammar.FAMILIES), a ready graph ("karate"), or the path of a
    TOML file or list of edges, relative to `base`.  n: number of nodes, if the name leaves it open.  seed: for drawn
    families; default: an experiment's.  Only "none" may be disconnected; drawn graphs are redrawn.

    Raises ConfigError for an unknown name, a missing size, a bad file, or a disconnected graph.
    """
    word, whole = graph.strip(), (lambda one: one) if allow_disconnected else require_connected
    if not word:
        raise ConfigError("no graph was named", "Try ring, or see fedgossip topology list.")
    if _looks_like_path(word) and word.partition(":")[0] not in FAMILIES:
        path = Path(word).expanduser()
        found = files.load(base / path if base is not None else path)
        return whole(require_size(found, word, n))

    def inner(name: str, size: int | None, number: int) -> Topology:
        return resolve(name, size, seed=number, base=base)

    made = family(word, n, seed, inner)
    if made is not None:
        return made if made.name == "none" else whole(made)
    if (bringing := weighted(word, n, seed)) is not None:
        return whole(bringing.topology)
    if files.ready_path(word) is not None:
        return require_size(files.ready(word), word, n)
    if word.partition(":")[0].lower() in schedule_names():
        advice = "Use it where rounds are asked for: topology.graph of an experiment, or resolve_schedule."
        raise ConfigError(f"{word!r} is not one graph: every round has its own", advice)
    if ((base or Path()) / Path(word).expanduser()).is_file():
        raise ConfigError(f"{word}: its ending names no format of graphs", f"Known: {', '.join(SUFFIXES)}.")
    known = (*family_names(), *weighted_names(), *files.ready_names(), *schedule_names())
    raise ConfigError(f"no graph is called {word!r}", nearest(word.partition(":")[0], known))


def resolve_schedule(
    graph: str,
    n: int | None = None,
    *,
    weights: str | None = None,
    seed: int = seeds.USUAL,
    base: Path | None = None,
    allow_disconnected: bool = False,
) -> Schedule:
    """Return the schedule named `graph`: one graph with its weights, or a time-varying one.

    graph: as `resolve`, or a schedule ("one-peer-exponential", "base:2", "el-oracle:4"; grammar.SCHEDULES).  weights:
    the rule for one graph (None: its file's, or metropolis); most schedules define theirs.  seed: for draws.

    Raises ConfigError as `resolve` and `build`, and for weights that the schedule does not support.
    """

    def inner(name: str, size: int | None, number: int) -> Topology:
        return resolve(name, size, seed=number, base=base)

    changing = schedule(graph, n, weights=weights, seed=seed, inner=inner)
    if changing is not None:
        return changing if allow_disconnected else _meeting(changing, graph.strip().partition(":")[0])
    bringing = weighted(graph, n, seed) or _from_file(graph.strip(), n, base)
    if bringing is not None:
        if weights not in (None, bringing.rule):
            raise ConfigError(f"{weights} weights on {graph.strip()!r}, which brings its own", "Leave them out.")
        if not allow_disconnected:
            require_connected(bringing.topology)
        return bringing
    topology = resolve(graph, n, seed=seed, base=base, allow_disconnected=allow_disconnected)
    return build(topology, weights or topology.weights or "metropolis")


def _meeting(changing: Schedule, head: str) -> Schedule:
    """Return a schedule.  Raises ConfigError if the union of its rounds is disconnected."""
    if head == "every" and changing.period:
        require_connected(union(changing))
    elif head == "shuffled" and not len(changing.mixing(0).topology.edges):
        require_connected(changing.mixing(0).topology)
    return changing


def _from_file(word: str, n: int | None, base: Path | None) -> Mixing | None:
    if word.partition(":")[0] in FAMILIES:
        return None
    path = (base or Path()) / Path(word).expanduser() if _looks_like_path(word) else files.ready_path(word)
    found = files.load_mixing(path) if path is not None else None
    if found is not None:
        require_size(found.topology, word, n)
    return found


def is_drawn(graph: str) -> bool:
    """Whether the graph of this name depends on the seed."""
    return any(word.strip().lower() in DRAWN for word in graph.split(":"))


def graph_word(graph: str) -> str:
    """Return the word that outputs use for a graph: of a file its name without its folders."""
    return Path(graph).name if _looks_like_path(graph) else graph


def _looks_like_path(word: str) -> bool:
    return "/" in word or "\\" in word or word.lower().endswith(SUFFIXES)
