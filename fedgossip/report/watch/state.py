"""All rows of a run merged into one state: the newest values of each peer, of the network and of the links.

Its size grows with the peers, not the rounds.  Rows are untrusted: an impossible node id is skipped, an unknown event
is shown only by its text.

A peer's report on another is a *mark*: gone, missed or suspected, removed by a report of its return; `missed` also by a
round of the reporter without it.  A peer is gone if one reports so and it writes no later rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from fedgossip.base.scores import ACCURACY, Score
from fedgossip.core.forecasts import NarrowedForecast, RunForecast
from fedgossip.core.records import EventRow, LoggedNumbers, NetworkRow, PeerRow, Row, event_kinds, kind_of
from fedgossip.core.roles import PEERS, Roles
from fedgossip.report.watch.federation import Curve, Federation, Led, Mark, Peer
from fedgossip.report.watch.places import MOST_EDGES
from fedgossip.topology import Topology

EVENTS_KEPT = 200
MOST_PEERS = 100_000
"""Maximum number of peers listed from the start; beyond, only peers with rows are listed.  If no experiment gives their
number, also the maximum id: rows of higher ones are skipped.
"""
MOST_WITNESSES = 64
"""Maximum number of peers with stored reports on one peer."""

ENDED = ("finished", "partial", "exhausted")
"""Final states of a peer or a run that ended normally."""
FALLEN = tuple(name for name, kind in event_kinds().items() if kind.implies == "ended")
"""Events that end a peer; the name is its state."""
SERIOUS = ("failed", "died", "crashed", "hung", "gone", "suspected", "asleep", "starting", "left", "stopped",
           "leading", "training", "ready", "answered", "done", "elsewhere")  # fmt: skip
"""Every state of a peer, the most interesting first."""


class State:
    """Process rows with `take`; rows that the record will repeat later with `preview`."""

    def __init__(
        self,
        roles: Roles = PEERS,
        rounds: int = 0,
        topology: Topology | None = None,
        federation: Federation | None = None,
        score: Score = ACCURACY,
    ) -> None:
        self.score = score
        self.roles, self.n, self.rounds = roles, roles.n, rounds
        self.led = Led(federation) if federation else None
        listed = range(self.n) if self.n <= MOST_PEERS else [roles.leader] if roles.leader is not None else []
        self.peers: dict[int, Peer] = {node: Peer(node) for node in listed}
        self.network: NetworkRow | None = None
        self.tested: NetworkRow | None = None
        """Newest row with a measurement on the test set."""
        self.distance: NetworkRow | None = None
        """Newest row with a consensus distance."""
        self.foretold: RunForecast | None = None
        """Forecast before the run."""
        self.narrowed: NarrowedForecast | None = None
        """The same, narrowed by the measurements so far."""
        self.curves = {name: Curve() for name in ("score", "loss", "distance")}
        self.logged = LoggedNumbers()
        """Numbers logged by loops."""
        self.events: deque[EventRow] = deque(maxlen=EVENTS_KEPT)
        """Newest events, without repeated misses of the same neighbours."""
        self.events_seen = 0
        self.status = ""
        """Status of the run: finished, partial, interrupted, failed; empty during the run."""
        self._marked: dict[int, set[int]] = {}  # marks set by each peer
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
        """Return the peer with this id, a new one if it is not listed; None for an invalid id."""
        if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < (self.n or MOST_PEERS):
            return None
        if node not in self.peers:
            self.peers[node] = Peer(node, watched=bool(self.n))
        return self.peers[node]

    def _select_known(self, value: object) -> list[int]:
        return [node for node in extract_ids(value) if node in self.peers or (self.n and self.peer(node))]

    @property
    def unlisted(self) -> tuple[int, str]:
        """Return the number of peers of a large population without a row, and their state."""
        number = self.n - len(self.peers) if self.n else 0
        return (number, self.condition(Peer(-1))) if number > 0 else (0, "")

    @property
    def learners(self) -> list[Peer]:
        """Return all learners; without known roles, all peers."""
        return [peer for peer in self.peers.values() if not self.n or peer.node < self.roles.learners]

    @property
    def round(self) -> int:
        """Number of rounds completed by all peers; for folders of peers, by all watched and present ones."""
        if self.network:
            return self.network.round
        if self.led:
            leader = self.peers.get(self.led.federation.coordinator)
            known = [peer.round for peer in self.peers.values() if peer.known]
            return self.leading if leader and leader.known else max(known, default=0)
        there = [peer.round for peer in self.peers.values() if peer.watched and not peer.fallen]
        return min(there, default=0)

    @property
    def progress(self) -> float:
        """Completed rounds of the mean peer; of the coordinator, if there is one."""
        if self.led:
            return self.leading
        return sum(peer.round for peer in self.peers.values()) / max(1, len(self.peers))

    @property
    def leading(self) -> int:
        """Completed rounds of the coordinator, according to its rows."""
        leader = self.peers.get(self.led.federation.coordinator) if self.led else None
        return leader.round if leader else 0

    # --- rows -----------------------------------------------------------------------------------------------------

    def take(self, row: Row) -> bool:
        """Process the next row of the record; return whether it has information beyond the round before."""
        repeated = isinstance(row, EventRow) and self._is_repeated(row)
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
                    if self.led and peer.node == self.led.federation.coordinator:
                        self.led.row(row)
                        self._mark_answered(peer.node, row.clients or 0)
                    peer.counted = row.round
                    peer.turns += 1
                    peer.bytes_sent += row.bytes_sent
                    peer.bytes_received += row.bytes_received
                    self.logged.add(row.round, row.logged)
                self.preview(row)
                self._lift_answered(peer.node, row.round)
        return not repeated

    def preview(self, row: Row) -> None:
        """Process a peer's own row before the record has it: the record waits until all have passed the round."""
        if isinstance(row, PeerRow) and (peer := self.peer(row.peer)) and row.round > peer.round:
            peer.step(row)

    def _network(self, row: NetworkRow) -> None:
        alone, self.network = self.roles.leader is not None, row
        if row.score_averaged is not None or (row.score_mean_peer is not None and not alone):
            others = (None, None) if alone else (row.score_mean_peer, row.score_worst_peer)
            self.curves["score"].add(row.round, row.score_averaged, *others)
        if row.loss is not None or row.test_loss is not None:
            self.curves["loss"].add(row.round, row.loss, row.test_loss)
        if row.measured:
            self.tested = row
        self.logged.add(row.round, row.metrics)
        if row.consensus_distance is not None and not alone:
            self.distance = row
            self._compare_with_forecast(row.round, row.consensus_distance)

    def _compare_with_forecast(self, round: int, distance: float) -> None:
        """Store the distance with its forecast, and with the forecast from the measurements."""
        if self.foretold and self.narrowed is None:
            self.narrowed = NarrowedForecast(self.foretold)
        edges = self.foretold.edges(round) if self.foretold else None
        inner = self.narrowed.edges(round) if self.narrowed else None
        self.curves["distance"].add(round, distance, *(edges or ()), *(inner or ()))
        if self.narrowed:
            self.narrowed.take(round, distance)

    def _event(self, row: EventRow) -> None:
        peer = self.peer(row.peer)
        if peer is None:
            return
        if self.led:
            self.led.event(row)
        match kind_of(row.name).implies:
            case "gone" | "suspected" | "missed" as mark:
                for node in extract_ids(row.value):
                    self._mark(_witness(row), node, mark, row.round)
            case "back" | "there":
                self._mark_present(peer, row)
            case "ended":
                peer.fallen = row.name
            case "asleep" | "awake" as state:
                peer.asleep = state == "asleep"
            case "again":
                peer.returned(_round(row.value))
            case "relayed" | "by_web" | "direct" as way:
                for node in self._select_known(row.value):
                    peer.ways[node] = way
            case "left":
                for node in self._select_known(row.value):
                    self.peers[node].left = True

    def _mark_present(self, peer: Peer, row: EventRow) -> None:
        """Mark a participant as present for `peer`, or, if it reported itself, for all."""
        nodes = self._select_known(row.value)
        itself = not nodes or kind_of(row.name).implies == "there"
        for node in nodes or [peer.node]:
            for by in list(self.peers[node].seen_by) if itself else [peer.node]:
                self._lift(by, node)
            self.peers[node].back()

    def _mark_answered(self, coordinator: int, clients: int) -> None:
        """Mark `clients` clients as present in a coordinator's round; if these are all, none is gone."""
        if self.led and clients == self.led.federation.clients:
            for node in list(self._marked.get(coordinator, ())):
                self._lift(coordinator, node)
                self.peers[node].back()

    def _is_repeated(self, row: EventRow) -> bool:
        """Return whether the same neighbours were missed in the round before."""
        if row.name != "missed":
            return False
        missed = [self.peers[node].seen_by.get(row.peer) for node in self._select_known(row.value)]
        return bool(missed) and all(mark and mark.round in (row.round - 1, row.round) for mark in missed)

    # --- reports on other peers -------------------------------------------------------------------------------------

    def _mark(self, by: int, node: int, name: str, round: int) -> None:
        peer = self.peer(node)
        if peer is None or peer.node == by:
            return
        before = peer.seen_by.get(by)
        if before is None and len(peer.seen_by) >= MOST_WITNESSES:
            return
        if name == "missed" and before is not None and before.name != "missed":
            before.round = max(before.round, round)  # gone, and missed again
        else:
            peer.seen_by[by] = Mark(name, round)
            self._marked.setdefault(by, set()).add(peer.node)
        if name == "gone":
            peer.gone_since = max(round, peer.gone_since or 0)

    def _lift(self, by: int, node: int) -> None:
        self.peers[node].seen_by.pop(by, None)
        self._marked.get(by, set()).discard(node)

    def _lift_answered(self, by: int, round: int) -> None:
        """Remove the marks of `by`, which mixed round `round`, on neighbours not missed in that round or the last.

        Marks on peers that have left and sent nothing since stay: `by` does not wait for those.
        """
        for node in list(self._marked.get(by, ())):
            peer = self.peers[node]
            mark = peer.seen_by[by]
            answered = mark.name == "missed" or (mark.name == "gone" and peer.gone_since is None)
            if answered and round >= mark.round + 2:
                self._lift(by, node)

    # --- consequences -----------------------------------------------------------------------------------------------

    def condition(self, peer: Peer) -> str:
        """Return the state of a peer in a word of SERIOUS."""
        if peer.fallen or peer.ended == "failed":
            return peer.fallen or "failed"
        if peer.ended in ENDED or self._done(peer):
            return "done"
        if peer.gone_since is not None or peer.left:
            return "left" if peer.left else "gone"
        if not peer.known:
            return "elsewhere"
        if peer.ended or self.status:
            return "stopped"
        if peer.witnesses("suspected"):
            return "suspected"
        if peer.asleep:
            return "asleep"
        if not peer.watched:
            return "elsewhere"
        if self.led:
            return self.led.word(peer, self.leading)
        return "training" if peer.round or self._has_begun(peer) else "starting"

    def _done(self, peer: Peer) -> bool:
        """Return whether nothing is left to do."""
        if self.led:
            over = self.status in ENDED or (self.rounds and self.leading >= self.rounds)
            return bool(over) and peer.known and peer.gone_since is None and not peer.left
        if self.status in ENDED and not self.rounds and not peer.left:
            return peer.gone_since is None and peer.known and not peer.ended  # it ended when its loop did
        return (bool(self.rounds) and peer.round >= self.rounds) or (self.status in ENDED and self._is_spectator(peer))

    def _is_spectator(self, peer: Peer) -> bool:
        """Return whether no rounds are expected of it, or it stands for all peers without a row."""
        if peer.node < 0:
            return True
        role = self.roles.get_role(peer.node) if peer.node < self.n else None
        return role is not None and not (role.learns or role.counted)

    def _has_begun(self, peer: Peer) -> bool:
        """Return whether it trains; once a neighbour has completed the first round, all do."""
        return any(self.peers[node].round for node in self.neighbours.get(peer.node, ()))

    def counts(self) -> dict[str, int]:
        """Return the number of peers, or clients, in each state, the most interesting first."""
        found: dict[str, int] = {}
        for peer in self.learners:
            word = self.condition(peer)
            found[word] = found.get(word, 0) + 1
        number, word = self.unlisted
        found[word] = found.get(word, 0) + number
        return {word: found[word] for word in SERIOUS if word in found}

    def sort_by_interest(self) -> list[Peer]:
        """Return all peers: those in trouble first, then the late ones, then those that wait least, as others wait for
        them.

        A coordinator precedes the others.
        """
        order = {word: place for place, word in enumerate(SERIOUS)}

        def key(peer: Peer) -> tuple[bool, int, int, float, int]:
            least = peer.waiting if peer.waiting is not None else 1.0
            follows = peer.node != self.roles.leader
            return follows, order[self.condition(peer)], peer.round, least, peer.node

        return sorted(self.peers.values(), key=key)

    def links(self) -> dict[tuple[int, int], str]:
        """Return the links that do not work: (u, v) with u < v -> "down", "suspected", "missed" or "unknown".

        Down: one end has ended, or reports the other as gone; missed: a round without its model; unknown: no end has
        reported a round.
        """
        found: dict[tuple[int, int], str] = {}
        rank = {"missed": 0, "suspected": 1, "down": 2}
        for u, v, word in self._troubles():
            edge = (min(u, v), max(u, v))
            if rank[word] >= rank[found.get(edge, "missed")]:
                found[edge] = word
        silent = {node for node, peer in self.peers.items() if not peer.heard}
        for u in silent:
            for v in silent.intersection(self.neighbours.get(u, ())):
                found.setdefault((min(u, v), max(u, v)), "unknown")
        return found

    def _troubles(self) -> Iterator[tuple[int, int, str]]:
        for node, peer in self.peers.items():
            near: Iterable[int] = self.neighbours.get(node, ())
            if self.condition(peer) in (*FALLEN, "gone", "left"):
                yield from ((node, other, "down") for other in near)
            elif peer.seen_by:
                for other, mark in peer.seen_by.items():
                    if other in near:
                        yield node, other, "down" if mark.name == "gone" else mark.name


def extract_ids(value: object) -> list[int]:
    """Return the ids in an event: one, a list of them, or those of a mapping under "node" and similar keys."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("node", "unreachable", "back") if key in value), None)
    found = value if isinstance(value, list | tuple) else [value]
    return [one for one in found if isinstance(one, int) and not isinstance(one, bool)]


def _witness(row: EventRow) -> int:
    by = row.value.get("by") if isinstance(row.value, Mapping) else None
    return by if isinstance(by, int) and not isinstance(by, bool) else row.peer


def _round(value: object) -> int | None:
    round = value.get("round") if isinstance(value, Mapping) else None
    return round if isinstance(round, int) and not isinstance(round, bool) and round >= 0 else None
