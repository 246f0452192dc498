"""A watched place: the directory of a run, or the folders written by peers of a run on several machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgossip.base import outside_files
from fedgossip.base.decoding import from_toml, json_value
from fedgossip.base.errors import ConfigError, FedgossipError
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.untrusted_text import line
from fedgossip.core.forecasts import RunForecast, read_forecast
from fedgossip.core.roles import PEERS, Roles, federated_roles, peer_roles, roles_from
from fedgossip.core.run_format import ENDED, ENDPOINT, EXPERIMENT, INCOMPLETE, ROLES, ROWS, SUMMARY
from fedgossip.data.objectives import AS_THE_DATA, KINDS, objective_of
from fedgossip.report.watch.federation import Federation, federation_of, star
from fedgossip.topology import Topology, resolve, resolve_schedule, union
from fedgossip.topology.graphs.names import graph_word

SEARCHED = (Path("runs"), Path("hosting"), Path("joined"))
"""Where commands leave runs, and participants' parts of them, unless other folders are named."""
OF_A_RUN = (SUMMARY, INCOMPLETE)
"""A run has one of them at every time.  Not its experiment: folders of users and of invites hold one too."""
OF_A_PEER = (ENDPOINT, ENDED, ROWS)
"""Files that identify a participant of several machines, which also has the experiment and endpoint.toml."""
MOST_EDGES = 200_000
"""Maximum number of edges of a graph with followed links."""
DEEP = 3
"""Maximum depth of runs below `runs`: the demo writes its nine runs into nested folders."""


@dataclass(frozen=True)
class RunPlace:
    """`folder` is the directory of a run; or `peers` are folders of peers, by node, without such a directory."""

    folder: Path | None
    peers: dict[int, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.folder) if self.folder else ", ".join(str(path) for path in self.peers.values())


@dataclass(frozen=True)
class Facts:
    """Settings of a run from its experiment; unknown ones are empty, 0 or None; `federation`: for a run with a
    coordinator.
    """

    name: str = ""
    graph: str = ""
    """The run's graph, or its method."""
    roles: Roles = PEERS
    rounds: int = 0
    topology: Topology | None = None
    federation: Federation | None = None
    score: Score = ACCURACY
    foretold: RunForecast | None = None
    """Forecast before the run."""

    @property
    def n(self) -> int:
        """Number of all participants; 0 if unknown."""
        return self.roles.n


def find(given: Sequence[Path], searched: Sequence[Path] = SEARCHED) -> RunPlace:
    """Return the place `given`; without one, the newest in `searched`, and of a folder of runs its newest.

    Raises ConfigError.
    """
    if not given:
        advice = "Start one with `fedgossip run`, or name its folder: fedgossip watch RUN"
        given = _newest(searched)
        if not given:
            raise ConfigError(f"no run in {', '.join(str(base) for base in searched)}", advice)
    elif len(given) == 1:
        given = _newest(given) or given
    if len(given) == 1 and _is_run(given[0]):
        return RunPlace(outside_files.checked_folder(given[0]))
    peers: dict[int, Path] = {}
    for folder in given:
        node = _node(outside_files.checked_folder(folder))
        if node in peers:
            raise ConfigError(f"{folder}: peer {node} is in {peers[node]} already", "Give each once.")
        peers[node] = folder
    return RunPlace(None, peers)


def _newest(searched: Sequence[Path]) -> list[Path]:
    """Return the run, or the participant's folder, that was written last; none where there is none."""
    return sorted((place for base in searched for place in _places(base)), key=_touched)[-1:]


def _places(folder: Path, deep: int = DEEP) -> Iterator[Path]:
    if _is_run(folder) or _holds(folder, OF_A_PEER):
        yield folder
    elif deep and folder.is_dir():
        for path in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from _places(path, deep - 1)


def _touched(run: Path) -> float:
    return max((path.stat().st_mtime for name in (EXPERIMENT, ROWS) if (path := run / name).exists()), default=0.0)


def _is_run(folder: Path) -> bool:
    return _holds(folder, OF_A_RUN) and not _holds(folder, OF_A_PEER[:1])


def _holds(folder: Path, names: Sequence[str]) -> bool:
    return any((folder / name).is_file() for name in names)


def _node(folder: Path) -> int:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", "`fedgossip runs` lists the existing runs.")
    if _is_run(folder):
        raise ConfigError(f"{folder}: a whole run among folders of peers", "Watch one run at a time.")
    if not _holds(folder, OF_A_PEER):
        raise ConfigError(f"{folder}: neither a run nor a peer", "Give the folder of a run, or no folder.")
    try:
        (peer,) = from_toml(outside_files.read_text(folder / ENDPOINT))["peer"]
        return int(peer["id"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{folder}: its endpoint.toml names no peer", "Give others.") from None


def facts_of(place: RunPlace) -> Facts:
    """Return the settings in the experiment file next to the rows; empty for a missing or unreadable file."""
    content = next((found for path in _find_copies(place, EXPERIMENT) if (found := _read(path))), {})
    roles_file = next((known for path in _find_copies(place, ROLES) if (known := _description(path))), None)
    return replace(_facts(content, roles_file), score=_score(content), foretold=_load_forecast(place))


def _load_forecast(place: RunPlace) -> RunForecast | None:
    try:
        found = read_forecast(place.folder) if place.folder else None
    except ConfigError:  # the report gives the reason; here the run continues
        return None
    return found[0] if found else None


def _score(content: dict[str, Any]) -> Score:
    """Return the run's score by name, accuracy by default."""
    task, data = content.get("task"), content.get("data")
    task, data = task if isinstance(task, dict) else {}, data if isinstance(data, dict) else {}
    kind, metrics = task.get("kind", AS_THE_DATA), task.get("metrics", [])
    if kind not in (*KINDS, AS_THE_DATA) or not isinstance(metrics, list):
        return ACCURACY
    try:
        score = objective_of(kind, "", [str(metric) for metric in metrics], str(data.get("source", ""))).score
    except ConfigError:
        return ACCURACY
    return replace(score, unit=line(score.unit, 80))


def _facts(content: dict[str, Any], roles_file: _RolesFile | None) -> Facts:
    rounds, name = content.get("rounds"), content.get("name")
    title, whole = name if isinstance(name, str) else "", rounds if isinstance(rounds, int) else 0
    if federation := federation_of(content):
        if roles_file:  # of sums over sites the experiment has no method
            federation = replace(federation, algorithm=roles_file.name)
        who = federated_roles(federation.clients)
        return Facts(title, federation.method, who, whole, _links(federation), federation)
    section = content.get("topology")
    if not isinstance(section, dict):
        return Facts(title, roles_file.name, roles_file.roles, whole) if roles_file else Facts(title, rounds=whole)
    graph, n, seed = section.get("graph"), section.get("n"), content.get("seed", 1)
    topology = _topology(graph, n, seed) if isinstance(graph, str) else None
    who = roles_file.roles if roles_file else peer_roles(n if isinstance(n, int) and n > 0 else 0)
    who = peer_roles(topology.n) if topology else who  # the graph may be on another machine
    return Facts(title, graph_word(graph) if isinstance(graph, str) else "", who, whole, topology)


def _links(federation: Federation) -> Topology | None:
    return star(federation.clients) if federation.clients <= MOST_EDGES else None


def _find_copies(place: RunPlace, name: str) -> Iterator[Path]:
    if place.folder:
        yield place.folder / name
    for path in place.peers.values():
        yield path / name
        if path.resolve().parent.name == "peers":  # of a run on this machine
            yield path.resolve().parents[1] / name


@dataclass(frozen=True)
class _RolesFile:
    name: str
    roles: Roles


def _description(path: Path) -> _RolesFile | None:
    """Return a run's own description at its start, or None."""
    try:
        content = json_value(outside_files.read_bytes(path))
        roles = roles_from(content["roles"])
        return _RolesFile(str(content["name"]), roles) if roles.n <= MOST_EDGES else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return from_toml(outside_files.read_text(path))
    except (OSError, ValueError):
        return {}


def _topology(graph: str, n: object, seed: object) -> Topology | None:
    """Return the graph, of a schedule all links; None for a file on another machine."""
    size = n if isinstance(n, int) else None
    root = seed if isinstance(seed, int) else 1
    with contextlib.suppress(FedgossipError, OSError):
        return resolve(graph, size, seed=root)
    with contextlib.suppress(FedgossipError, OSError):
        return union(resolve_schedule(graph, size, seed=root))
    return None
