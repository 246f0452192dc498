"""All rows of a run folded into one state: what is newest of each peer, of the network and of the links.

Its size grows with the peers, never with the rounds.  Rows come from outside: a node that cannot be is passed over, an
event with an unknown name is told in its words and changes nothing else.

What somebody says of a neighbour is a *mark*: gone, missed or suspected.  A round of the one who said it in which the
neighbour was not missed lifts the first two; so does the word that it joined again.  A peer is gone where somebody
says so and it writes no rows of its own after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fedgossip.metrics import EventRow, NetworkRow, PeerRow, Row
from fedgossip.topology import Topology

EVENTS_KEPT = 200
POINTS_KEPT = 400
"""Of a curve; it is thinned out to half when it has more."""
MOST_PEERS = 100_000
"""A row of a peer with a higher id is passed over, where no experiment tells how many there are."""
MOST_WITNESSES = 64
"""Others whose word on one peer is kept."""
MOST_EDGES = 200_000
"""Of larger graphs the links are not followed."""

FALLEN = ("crashed", "died", "hung", "failed")
"""Events that end a peer; the name is its state."""
SERIOUS = ("failed", "died", "crashed", "hung", "gone", "suspected", "asleep", "starting", "stopped", "training",
           "done", "elsewhere")  # fmt: skip
"""Every state of a peer, the most interesting first."""
SMOOTHING = 0.3
"""The weight of a peer's newest round in its share of waiting."""


@dataclass(slots=True)
class Mark:
    """What one says of another: "gone", "missed" or "suspected", when it had `round` rounds behind it."""

    name: str
    round: int


@dataclass(slots=True)
class Peer:
    """The newest of one peer.  `bytes_*` are sums over the rounds in the record, `waiting` a share of recent time."""

    node: int
    watched: bool = True
    round: int = 0
    loss: float | None = None
    accuracy: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    waiting: float | None = None
    fallen: str = ""
    asleep: bool = False
    ended: str = ""
    """Its last word: finished, interrupted, failed."""
    gone_since: int | None = None
    """Rounds behind the one who said so."""
    counted: int = 0
    """The round up to which bytes are in the sums."""
    seen_by: dict[int, Mark] = field(default_factory=dict)

    def witnesses(self, name: str) -> list[int]:
        """Who says `name` of this peer, ascending."""
        return sorted(other for other, mark in self.seen_by.items() if mark.name == name)

    def step(self, row: PeerRow) -> None:
        """Take a row that is newer than what is known."""
        self.round = row.round
        self.loss = row.loss if row.loss is not None else self.loss
        self.accuracy = row.accuracy if row.accuracy is not None else self.accuracy
        whole = row.seconds_training + row.seconds_waiting + row.seconds_mixing
        if whole > 0:
            share = row.seconds_waiting / whole
            self.waiting = share if self.waiting is None else self.waiting + SMOOTHING * (share - self.waiting)
        if self.gone_since is not None and row.round > self.gone_since + 1:  # a neighbour is at most one round ahead
            self.gone_since = None


class Curve:
    """Points (round, values), thinned evenly to POINTS_KEPT; the newest is always there."""

    def __init__(self) -> None:
        self._points: list[tuple[int, tuple[float | None, ...]]] = []
        self._every = 1
        self._count = 0
        self._last: tuple[int, tuple[float | None, ...]] | None = None

    def add(self, round: int, *values: float | None) -> None:
        self._last = (round, values)
        if self._count % self._every == 0:
            self._points.append(self._last)
        self._count += 1
        if len(self._points) > POINTS_KEPT:
            del self._points[1::2]
            self._every *= 2

    def points(self) -> list[tuple[int, tuple[float | None, ...]]]:
        last = [self._last] if self._last and self._last is not self._points[-1] else []
        return self._points + last


class State:
    """Fold rows with `take`; rows that the record will repeat later, with `preview`."""

    def __init__(self, n: int = 0, rounds: int = 0, topology: Topology | None = None) -> None:
        self.n, self.rounds = n, rounds
        self.peers: dict[int, Peer] = {node: Peer(node) for node in range(min(n, MOST_PEERS))}
        self.network: NetworkRow | None = None
        self.accuracies: NetworkRow | None = None
        """The newest row with a measurement on the test set."""
        self.distance: NetworkRow | None = None
        """The newest row with a consensus distance."""
        self.curves = {name: Curve() for name in ("accuracy", "loss", "distance")}
        self.events: deque[EventRow] = deque(maxlen=EVENTS_KEPT)
        """The newest; without those that miss the same neighbours as in the round before."""
        self.events_seen = 0
        self.status = ""
        """Of the run: finished, partial, interrupted, failed; empty while it goes on."""
        self._marked: dict[int, set[int]] = {}  # whom each one has marked
        self.neighbours: dict[int, list[int]] = {}
        self.edges: list[tuple[int, int]] = []
        if topology is not None and len(topology.edges) <= MOST_EDGES:
            self._link(topology)

    def _link(self, topology: Topology) -> None:
        self.edges = [(int(u), int(v)) for u, v in topology.edges.tolist()]
        for u, v in sorted({(min(edge), max(edge)) for edge in self.edges}):
            self.neighbours.setdefault(u, []).append(v)
            self.neighbours.setdefault(v, []).append(u)

    def peer(self, node: object) -> Peer | None:
        """Return the peer with this id, a new one where nobody said how many there are; None for what is no id."""
        if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < (self.n or MOST_PEERS):
            return None
        return self.peers.setdefault(node, Peer(node, watched=False)) if not self.n else self.peers.get(node)

    @property
    def round(self) -> int:
        """How many rounds all have behind them; of folders of peers, all those that are watched and there."""
        if self.network:
            return self.network.round
        there = [peer.round for peer in self.peers.values() if peer.watched and not peer.fallen]
        return min(there, default=0)

    # --- rows -----------------------------------------------------------------------------------------------------

    def take(self, row: Row) -> bool:
        """Fold the next row of the record; return whether it tells anything that was not told in the round before."""
        repeated = isinstance(row, EventRow) and self._repeated(row)
        match row:
            case NetworkRow():
                self._network(row)
            case EventRow():
                self.events_seen += 1
                if not repeated:
                    self.events.append(row)
                self._event(row)
            case PeerRow() if peer := self.peer(row.peer):
                if row.round > peer.counted:
                    peer.counted = row.round
                    peer.bytes_sent += row.bytes_sent
                    peer.bytes_received += row.bytes_received
                self.preview(row)
                self._heard_all(peer.node, row.round)
        return not repeated

    def preview(self, row: Row) -> None:
        """Fold a peer's own row before the record has it: the record waits until all have passed the round."""
        if isinstance(row, PeerRow) and (peer := self.peer(row.peer)) and row.round > peer.round:
            peer.step(row)

    def _network(self, row: NetworkRow) -> None:
        self.network = row
        if row.accuracy_averaged is not None:
            accuracies = (row.accuracy_averaged, row.accuracy_mean_peer, row.accuracy_worst_peer)
            self.curves["accuracy"].add(row.round, *accuracies)
        if row.loss is not None or row.test_loss is not None:
            self.curves["loss"].add(row.round, row.loss, row.test_loss)
        if row.test_loss is not None:
            self.accuracies = row
        if row.consensus_distance is not None:
            self.distance = row
            self.curves["distance"].add(row.round, row.consensus_distance)

    def _event(self, row: EventRow) -> None:
        peer = self.peer(row.peer)
        if peer is None:
            return
        value: object = row.value
        match row.name:
            case "gone" | "suspected":
                self._mark(peer.node, value, row.name, row.round)
            case "missed" | "started_without":
                for node in _ids(value):
                    self._mark(peer.node, node, "missed", row.round)
            case "partition":
                for node in _ids(value.get("unreachable") if isinstance(value, Mapping) else None):
                    self._mark(peer.node, node, "gone", row.round)
            case "joined" | "refuted":
                self._clear(peer, value)
            case "merged":
                self._merged(peer.node)
            case "asleep" | "awake":
                peer.asleep = row.name == "asleep"
            case "restarted":
                peer.fallen, peer.gone_since = "", None
            case name if name in FALLEN:
                peer.fallen = name

    def _repeated(self, row: EventRow) -> bool:
        """Whether it misses the same neighbours as in the round before: a peer that is gone is missed in each."""
        if row.name != "missed":
            return False
        missed = [self.peers[node].seen_by.get(row.peer) for node in _ids(row.value) if node in self.peers]
        return bool(missed) and all(mark and mark.round in (row.round - 1, row.round) for mark in missed)

    # --- what one says of another -----------------------------------------------------------------------------------

    def _mark(self, by: int, node: object, name: str, round: int) -> None:
        peer = self.peer(node)
        if peer is None or peer.node == by:
            return
        before = peer.seen_by.get(by)
        if before is None and len(peer.seen_by) >= MOST_WITNESSES:
            return
        if name == "missed" and before is not None and before.name != "missed":
            before.round = max(before.round, round)  # gone, and still missed
        else:
            peer.seen_by[by] = Mark(name, round)
            self._marked.setdefault(by, set()).add(peer.node)
        if name == "gone":
            peer.gone_since = max(round, peer.gone_since or 0)

    def _lift(self, by: int, node: int) -> None:
        self.peers[node].seen_by.pop(by, None)
        self._marked.get(by, set()).discard(node)

    def _clear(self, peer: Peer, value: object) -> None:
        """`peer` says that others are there again; without naming anyone: that it is itself."""
        nodes = [node for node in _ids(value) if node in self.peers]
        for node in nodes:
            self._lift(peer.node, node)
            self._risen(self.peers[node])
        if not nodes:
            for by in list(peer.seen_by):
                self._lift(by, peer.node)
            self._risen(peer)

    def _merged(self, by: int) -> None:
        """`by` says that the parts of the network are one again: what it says of others falls."""
        for node in list(self._marked.get(by, ())):
            self._lift(by, node)
            if not self.peers[node].witnesses("gone"):
                self.peers[node].gone_since = None

    @staticmethod
    def _risen(peer: Peer) -> None:
        """It is there again.  A simulated peer that crashed may come back; a process that died may not."""
        peer.gone_since = None
        if peer.fallen == "crashed":
            peer.fallen = ""

    def _heard_all(self, by: int, round: int) -> None:
        """`by` has mixed its round number `round`: whom it did not miss in that or the one before, it hears again."""
        for node in list(self._marked.get(by, ())):
            mark = self.peers[node].seen_by[by]
            if mark.name != "suspected" and round >= mark.round + 2:
                self._lift(by, node)

    # --- what follows from it ---------------------------------------------------------------------------------------

    def condition(self, peer: Peer) -> str:
        """The state of a peer in a word of SERIOUS."""
        if peer.fallen or peer.ended == "failed":
            return peer.fallen or "failed"
        if peer.ended == "finished" or (self.rounds and peer.round >= self.rounds):
            return "done"
        if peer.gone_since is not None:
            return "gone"
        if peer.ended or self.status:
            return "stopped"
        if peer.witnesses("suspected"):
            return "suspected"
        if peer.asleep:
            return "asleep"
        if not peer.watched:
            return "elsewhere"
        return "training" if peer.round or self._begun(peer) else "starting"

    def _begun(self, peer: Peer) -> bool:
        """In the first round nobody has written anything; but when a neighbour has a round behind it, all trained."""
        return any(self.peers[node].round for node in self.neighbours.get(peer.node, ()))

    def counts(self) -> dict[str, int]:
        """How many peers are in each state, the most interesting first."""
        found: dict[str, int] = {}
        for peer in self.peers.values():
            word = self.condition(peer)
            found[word] = found.get(word, 0) + 1
        return {word: found[word] for word in SERIOUS if word in found}

    def by_interest(self) -> list[Peer]:
        """All peers: those in trouble first, then those behind, then those that wait least: others wait for them."""
        order = {word: place for place, word in enumerate(SERIOUS)}

        def key(peer: Peer) -> tuple[int, int, float, int]:
            least = peer.waiting if peer.waiting is not None else 1.0
            return order[self.condition(peer)], peer.round, least, peer.node

        return sorted(self.peers.values(), key=key)

    def links(self) -> dict[tuple[int, int], str]:
        """Return the links that are not up: (u, v) with u < v -> "down", "suspected" or "missed".

        Down where one end is no more, or says that the other is gone; missed where a round went on without its model.
        """
        found: dict[tuple[int, int], str] = {}
        rank = {"missed": 0, "suspected": 1, "down": 2}
        for u, v, word in self._troubles():
            edge = (min(u, v), max(u, v))
            if rank[word] >= rank[found.get(edge, "missed")]:
                found[edge] = word
        return found

    def _troubles(self) -> Iterator[tuple[int, int, str]]:
        for node, peer in self.peers.items():
            near: Iterable[int] = self.neighbours.get(node, ())
            if self.condition(peer) in (*FALLEN, "gone"):
                yield from ((node, other, "down") for other in near)
            elif peer.seen_by:
                for other, mark in peer.seen_by.items():
                    if other in near:
                        yield node, other, "down" if mark.name == "gone" else mark.name


def _ids(value: object) -> list[int]:
    """The ids in a value: one, or a list of them; what else it may hold is passed over."""
    found = value if isinstance(value, list | tuple) else [value]
    return [one for one in found if isinstance(one, int) and not isinstance(one, bool)]
