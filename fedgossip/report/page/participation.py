"""Participation in the rounds of a federated run, accumulated from its rows while they are read.

The coordinator's events of an open round have a number one lower than rows.  Single rounds are stored for at most
FOLLOWED_MOST clients; with more, only each one's number of rounds.  The coordinator's rows list the clients in each
sum; the clients' rows have their other actions.  Missing values of old runs have defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fedgossip.core.records import FOLLOWED_MOST

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Took(IntEnum):
    """The part of one client in one round."""

    NOTHING = 0
    """The client was not invited, according to the rows."""
    COUNTED = 1
    UNCOUNTED = 2
    """The client trained and is not in the sum: it was too late, others were first, or its leaf contributed nothing."""
    ABANDONED = 3
    """The client trained for an abandoned round."""
    SILENT = 4
    """The client was invited and trained nothing."""


class Participation:
    """`contributions[round]` of the rounds that counted; `abandoned[round]` is the reason for one that did not.

    `tiers`: the participants of each coordinator.
    """

    def __init__(self, clients: int, one: str = "client", tiers: Mapping[int, Sequence[int]] | None = None) -> None:
        self.clients, self.one, self._tiers = clients, one, tiers or {}
        self._below: dict[int, set[int]] = {}
        """Clients below each coordinator, in all tiers."""
        for node in sorted(self._tiers) if clients <= FOLLOWED_MOST else ():
            members = [member for member in self._tiers[node] if 0 <= member < node]
            self._below[node] = {one for at in members for one in ({at} if at < clients else self._below.get(at, ()))}
        self.contributions: dict[int, int] = {}
        self.abandoned: dict[int, Mapping[str, Any]] = {}
        self.too_few: Mapping[str, Any] | None = None
        """The event that ended the run early for lack of clients, if any."""
        self.at_clients: dict[int, tuple[float, float | None]] = {}
        """By number of rounds of the model: mean and worst accuracy on the clients' held-out examples."""
        self.epsilon: dict[int, float] = {}
        """Privacy spent by each round; the largest value if clients differ."""
        self.turns = [0] * clients
        """Number of rounds trained by each client."""
        self._trained: list[set[int]] = [set() for _ in range(min(clients, FOLLOWED_MOST))]
        self._missed: list[set[int]] = [set() for _ in self._trained]
        self._counted: dict[int, set[int]] = {}
        """By round, the clients in its sum, according to the coordinator."""
        self._left_out: dict[int, set[int]] = {}
        """By round, the clients below coordinators whose sums are not in it."""

    @property
    def followed(self) -> bool:
        """Whether each client's part in each round is known."""
        return self.clients <= FOLLOWED_MOST and (any(self.turns) or bool(self._counted))

    @property
    def rounds(self) -> int:
        return max([*self.contributions, *self.abandoned], default=0)

    def row(self, row: ReportedPeerRound) -> None:
        """Process a row of a client, or of the coordinator."""
        if row.epsilon is not None:
            self.epsilon[row.round] = max(row.epsilon, self.epsilon.get(row.round, 0.0))
        if row.peer < self.clients:
            self.turns[row.peer] += 1
            if row.peer < len(self._trained):
                self._trained[row.peer].add(row.round)
            return
        if row.clients is not None:
            self.contributions[row.round] = row.clients
            counted = {node for node in row.counted or () if 0 <= node < self.clients}
            if counted or row.counted == ():  # others are coordinators of tiers
                self._counted[row.round] = counted
            elif row.counted:
                self._leave_out(row.round, set(self._tiers.get(row.peer, ())).difference(row.counted))
        if row.score_clients is not None:
            self.at_clients[row.round - 1] = row.score_clients, row.score_worst_client

    def event(self, event: ReportedEvent) -> bool:
        """Process an event; return whether this section shows it in full."""
        facts = event.value if isinstance(event.value, Mapping) else {}
        match event.name:
            case "abandoned":
                self.abandoned[event.round + 1] = facts
            case "too_few":
                self.too_few = facts
            case "missed" if (event.peer or 0) >= self.clients and isinstance(event.value, list):
                for node in event.value:
                    if isinstance(node, int) and 0 <= node < len(self._missed):
                        self._missed[node].add(event.round + 1)
                self._leave_out(event.round + 1, [node for node in event.value if isinstance(node, int)])
            case "contributes_nothing" if event.peer is not None:
                self._leave_out(event.round + 1, [event.peer])
                return False
            case _:
                return False
        return True

    def _leave_out(self, round: int, coordinators: Iterable[int]) -> None:
        for node in coordinators:
            self._left_out.setdefault(round, set()).update(self._below.get(node, ()))

    def table(self) -> NDArray[np.int8]:
        """Return each client's part in each round, as `Took`: [clients, rounds]."""
        found = np.zeros((self.clients, self.rounds), dtype=np.int8)
        for node, (trained, missed) in enumerate(zip(self._trained, self._missed, strict=True)):
            counted = {round for round, nodes in self._counted.items() if node in nodes}
            for round in trained | missed | counted:
                if 0 < round <= self.rounds:
                    out = round in missed or node in self._left_out.get(round, ())
                    took = self._took(round, trained=round in trained, missed=out)
                    found[node, round - 1] = Took.COUNTED if round in counted else took
        return found

    def _took(self, round: int, *, trained: bool, missed: bool) -> Took:
        if not trained:
            return Took.SILENT
        if round in self.abandoned:
            return Took.ABANDONED
        return Took.UNCOUNTED if missed or round in self._counted or round not in self.contributions else Took.COUNTED


class ReportedRound(msgspec.Struct, frozen=True):
    """One round of the whole network; `bytes_sent` and `seconds` count from the start."""

    round: int
    seconds: float = 0.0
    bytes_sent: int = 0
    loss: float | None = None
    test_loss: float | None = None
    score_averaged: float | None = None
    score_mean_peer: float | None = None
    score_worst_peer: float | None = None
    consensus_distance: float | None = None
    consensus_before: float | None = None
    update_spread: float | None = None
    metrics: dict[str, float | None] | None = None


class ReportedPeerRound(msgspec.Struct, frozen=True):
    """One round of one peer; bytes and seconds of only that round."""

    round: int
    peer: int
    seconds: float | None = None
    """From the beginning of the run to the end of the round."""
    loss: float | None = None
    score: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds_training: float | None = None
    payload_sent: int = 0
    payload_received: int = 0
    seconds_communicating: float | None = None
    seconds_waiting: float | None = None
    seconds_mixing: float | None = None
    clients: int | None = None
    counted: tuple[int, ...] | None = None
    score_clients: float | None = None
    score_worst_client: float | None = None
    epsilon: float | None = None
    logged: dict[str, float | None] | None = None
    metrics: dict[str, float | None] | None = None


class ReportedEvent(msgspec.Struct, frozen=True):
    """A report in addition to the numbers of every round: a neighbour missed, a peer gone."""

    round: int
    peer: int | None
    name: str
    value: Any = None
