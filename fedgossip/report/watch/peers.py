"""The known state of one peer."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedgossip.core.records import PeerRow

SMOOTHING = 0.3
"""The weight of a peer's newest round in its share of waiting."""


@dataclass(slots=True)
class Mark:
    """One peer's report on another: "gone", "missed" or "suspected", after `round` completed rounds."""

    name: str
    round: int


@dataclass(slots=True)
class Peer:
    """The newest of one peer.  Bytes are sums over the rounds in the record, `waiting` is a share of recent time."""

    node: int
    watched: bool = True
    round: int = 0
    loss: float | None = None
    score: float | None = None
    tested: int = 0
    """The round of that score."""
    bytes_sent: int = 0
    bytes_received: int = 0
    waiting: float | None = None
    fallen: str = ""
    asleep: bool = False
    ended: str = ""
    """Its last word: finished, partial, interrupted, failed."""
    left: bool = False
    """It has said goodbye."""
    gone_since: int | None = None
    """Completed rounds of the reporting peer."""
    counted: int = 0
    """The round up to which bytes are in the sums."""
    turns: int = 0
    """Rounds that are in the record."""
    seen_by: dict[int, Mark] = field(default_factory=dict)
    ways: dict[int, str] = field(default_factory=dict)
    """How it reaches other peers, where it has reported that: direct, relayed or by_web."""

    @property
    def known(self) -> bool:
        """Whether its rows can be read here, or some were."""
        return self.watched or self.turns > 0

    @property
    def heard(self) -> bool:
        """Whether its rows include its links: they do from its first round on."""
        return self.watched and self.round > 0

    def witnesses(self, name: str) -> list[int]:
        """Return the peers that report `name` of this peer, ascending."""
        return sorted(other for other, mark in self.seen_by.items() if mark.name == name)

    def step(self, row: PeerRow) -> None:
        """Apply a row newer than the state."""
        self.round = row.round
        self.loss = row.loss if row.loss is not None else self.loss
        if row.score is not None:
            self.score, self.tested = row.score, row.round
        whole = row.seconds_training + row.seconds_communicating + row.seconds_waiting + row.seconds_mixing
        if whole > 0:
            share = row.seconds_waiting / whole
            self.waiting = share if self.waiting is None else self.waiting + SMOOTHING * (share - self.waiting)
        if self.gone_since is not None and row.round > self.gone_since + 1:  # a neighbour is at most one round ahead
            self.gone_since = None

    def back(self) -> None:
        """Mark it as present again, on a peer's report.  A crashed peer may return; a process that died may not."""
        self.gone_since, self.left = None, False
        if self.fallen == "crashed":
            self.fallen = ""

    def returned(self, round: int | None) -> None:
        """Mark it as alive again, from `round` on if known: its later work is lost."""
        self.gone_since, self.left, self.fallen = None, False, ""
        self.round = self.round if round is None else round
