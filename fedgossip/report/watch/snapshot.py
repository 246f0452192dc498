"""A followed run as plain data for a page and a table.

Each text is one printable line, and not escaped: text, not markup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgossip.base.untrusted_text import line
from fedgossip.core.records import EventRow
from fedgossip.core.roles import PEERS, Roles
from fedgossip.report.page.numbers import number_round
from fedgossip.report.watch.federation import Led, Peer
from fedgossip.report.watch.follow import DRIVERS, Follower
from fedgossip.report.watch.state import ENDED, FALLEN, State
from fedgossip.topology import Topology

# Positions of the nodes in a drawing: computed once, equal for equal graphs.


MOST_NODES = 500
MOST_EDGES = 5000
"""Maximum numbers of nodes and edges of an animated drawing; larger graphs are shown as numbers."""

MOST_MOVED_BY_HAND = 60
"""Maximum number of nodes for the exact layout, in O(n^3) time."""

SEED = 1


def places(n: int, topology: Topology | None) -> NDArray[np.float64] | None:
    """Return float64 [n, 2] in the unit square, y downwards; None for a graph too large to draw.

    The positions in the graph's file; otherwise a circle for rotations and without links; otherwise by spring forces.
    """
    if not 0 < n <= MOST_NODES or (topology is not None and len(topology.edges) > MOST_EDGES):
        return None
    if topology is None or topology.n != n or not len(topology.edges):
        return _fitted(_circle(n))
    if topology.positions is not None:
        return _fitted(np.asarray(topology.positions, dtype=np.float64) * (1.0, -1.0))
    return _fitted(_circle(n) if topology.circulant is not None else _pulled(topology))


def _circle(n: int) -> NDArray[np.float64]:
    turn = 2 * np.pi * np.arange(n) / n - np.pi / 2
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


def _pulled(topology: Topology) -> NDArray[np.float64]:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(topology.n))
    graph.add_edges_from(topology.edges.tolist())
    start: dict[int, Any] = nx.spring_layout(graph, seed=SEED, iterations=80)
    found = start
    if topology.n <= MOST_MOVED_BY_HAND and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph, pos=start)
    return np.array([found[node] for node in range(topology.n)])


def _fitted(given: NDArray[np.float64]) -> NDArray[np.float64]:
    given = given - (given.max(axis=0) + given.min(axis=0)) / 2
    largest = float(np.abs(given).max())
    return given / (2 * largest) + 0.5 if largest > 0 else given * 0 + 0.5


LISTED = 60
"""Maximum number of peers listed one by one in a graph too large to draw: the most interesting."""
EVENTS_LISTED = 40
LETTERS = 40
"""Maximum length of a logged number's name."""

Words = Callable[[EventRow], str]


def graph(follower: Follower) -> dict[str, Any]:
    """Return the constants of a run: its name, and the graph with a position for each node, in 0..1."""
    facts, state = follower.facts, follower.state
    n = facts.n or max(state.peers, default=-1) + 1
    found = places(n, facts.topology)
    labels = facts.topology.labels if facts.topology else None
    return {
        "name": line(title(follower)),
        "graph": line(facts.graph),
        "n": n,
        "rounds": facts.rounds,
        "directed": bool(facts.topology and facts.topology.directed),
        "nodes": None if found is None else [[round(float(x), 4), round(float(y), 4)] for x, y in found],
        "edges": state.edges if found is not None else [],
        "labels": [line(label, 24) for label in labels] if labels and found is not None else None,
        "coordinator": state.roles.leader if state.led else None,
        "roles": state.roles.plain,
        "wanted": facts.federation.wanted if facts.federation else None,
        "score": {"word": facts.score.word, "note": facts.score.note, "percent": facts.score.percent},
        "clear": bool(facts.federation and not facts.federation.secure),
    }


def title(follower: Follower) -> str:
    """Return the title of a run: its name, otherwise its graph, otherwise its folders."""
    return follower.facts.name or follower.facts.graph or follower.place.name


def moment(follower: Follower, words: Words) -> dict[str, Any]:
    """Return the present state."""
    state = follower.state
    down = state.links()
    curves = state.curves | (state.led.curves if state.led else {})
    number = len(state.peers) + state.unlisted[0]
    all_listed = number <= MOST_NODES
    shown = sort_peers(state) if all_listed else state.sort_by_interest()[:LISTED]
    tested, distance = state.tested, state.distance
    return {
        "status": state.status if follower.ended else "",
        "lacking": follower.lacking if follower.ended else [],
        "driver": DRIVERS.get(follower.driver, line(follower.driver)),
        "round": state.round,
        "rounds": state.rounds,
        "n": len(state.learners) + state.unlisted[0],
        "seconds": round(follower.seconds, 1),
        "pace": follower.rounds_per_second,
        "read": follower.read_share,
        "quiet": round(max(0.0, time.time() - follower.news_at), 1),
        "tested": tested.round if tested else None,
        "averaged": tested.score_averaged if tested else None,
        "mean": tested.score_mean_peer if tested and not state.led else None,
        "worst": tested.score_worst_peer if tested and not state.led else None,
        "loss": tested.test_loss if tested else None,
        "distance": distance.consensus_distance if distance else None,
        "measured": distance.round if distance else None,
        "bytes": sum(peer.bytes_sent for peer in state.peers.values()),
        "links": len(state.edges),
        "counts": list(state.counts().items()),
        "peers": [_peer(state, peer, down) for peer in shown],
        "others": number - len(shown),
        "down": [[u, v, word] for (u, v), word in sorted(down.items())] if all_listed else [],
        "led": _leader_state(state, state.led) if state.led else None,
        "curves": {name: [[at, *values] for at, values in curve.points()] for name, curve in curves.items()},
        "logged": [[line(name, LETTERS), points] for name, points in state.logged.lines().items()],
        "events": [
            {"round": counted(row, state.roles), "peer": row.peer, "text": printable_text(row, words)}
            for row in list(state.events)[: -EVENTS_LISTED - 1 : -1]
        ],
        "seen": state.events_seen,
        "unreadable": follower.unreadable,
    }


def sort_peers(state: State) -> list[Peer]:
    """Return all peers by id; a coordinator precedes its clients."""
    return sorted(state.peers.values(), key=lambda peer: (peer.node != state.roles.leader, peer.node))


def counted(row: EventRow, roles: Roles) -> int | None:
    """Return the round of an event as people count it; None if it has none."""
    return number_round(row.name, row.round, roles) if row.round >= 0 else None


def _leader_state(state: State, led: Led) -> dict[str, Any]:
    tested = led.tested
    return {
        "contributions": led.contributions,
        "answered": led.answered(state.peers.values()),
        "abandoned": led.abandoned,
        "mean": tested.score_clients if tested else None,
        "worst": tested.score_worst_client if tested else None,
    }


def _peer(state: State, peer: Peer, down: dict[tuple[int, int], str]) -> dict[str, Any]:
    links = links_up(state, peer, down)
    return {
        "id": peer.node,
        "state": state.condition(peer),
        "round": peer.round if peer.known else None,
        "loss": peer.loss,
        "score": peer.score,
        "tested": peer.tested,
        "waiting": peer.waiting,
        "turns": peer.turns,
        "sent": peer.bytes_sent if peer.known else None,
        "received": peer.bytes_received if peer.known else None,
        "links": links,
        "note": note(state, peer),
    }


def links_up(state: State, peer: Peer, down: dict[tuple[int, int], str]) -> str:
    """Return the number of a peer's working links, and of all: "1/2"; "?/2" if unknown, "" without links."""
    near = state.neighbours.get(peer.node, [])
    words = [down.get((min(peer.node, other), max(peer.node, other)), "") for other in near]
    unknown, lost = words.count("unknown"), words.count("down") + words.count("missed")
    up = "?" if unknown == len(near) else f"{len(near) - lost - unknown}{'?' if unknown else ''}"
    return f"{up}/{len(near)}" if near else ""


def note(state: State, peer: Peer) -> str:
    """Return the reports about a peer: "gone for 1, 3", and the peers that it reaches through a relay; ""
    without any.
    """
    phrases = []
    for name, verb in (("gone", "gone for"), ("suspected", "suspected by"), ("missed", "missed by")):
        if (by := peer.witnesses(name)) and not (peer.ended in ENDED and state.status):
            phrases.append(f"{verb} {_listed(by, state.roles)}")
    for way, words in (("relayed", "via relay"), ("by_web", "via the web")):
        if nodes := sorted(node for node, now in peer.ways.items() if now == way):
            phrases.append(f"{words} to {_listed(nodes, state.roles)}")
    return "; ".join(phrases)


def _listed(ids: Sequence[int], roles: Roles, most: int = 4) -> str:
    shown = ", ".join(f"the {roles.label(node)}" if node == roles.leader else str(node) for node in ids[:most])
    return shown if len(ids) <= most else f"{shown} and {len(ids) - most} more"


def needs_attention(word: str) -> bool:
    """Return whether a state needs attention."""
    return word in (*FALLEN, "gone", "suspected")


def event_line(row: EventRow, words: Words, roles: Roles = PEERS) -> str:
    """Return an event with its round, if any, and its reporter."""
    round = counted(row, roles)
    when = f"round {round}, " if round is not None else ""
    return f"{when}{roles.label(row.peer)}: {printable_text(row, words)}"


def printable_text(row: EventRow, words: Words) -> str:
    """Return an event in one printable line, for any value."""
    try:
        return line(words(row))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):  # a value of an unexpected shape
        return line(f"{row.name}: {row.value}")
