"""A followed run as lines of text, for a pipe: one per round and event, none revoked."""

from __future__ import annotations

from collections.abc import Iterator

from fedgossip.base.scores import Score
from fedgossip.base.untrusted_text import line
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.roles import Roles
from fedgossip.report.page.numbers import number
from fedgossip.report.watch.federation import Led
from fedgossip.report.watch.follow import Follower
from fedgossip.report.watch.snapshot import Words, event_line, in_trouble, note
from fedgossip.report.watch.state import State
from fedgossip.report.watch.table import at_clients, disagreement, heading, shown, three


class StatusLines:
    """Formats each row, and each peer's entry into and exit from trouble.

    Rounds are those of the network; without a record of the network, those of a watched peer.
    """

    def __init__(self, follower: Follower, words: Words) -> None:
        self.follower, self.words = follower, words
        self.roles = follower.state.roles
        self._trouble: dict[int, str] = {}

    def heading(self) -> list[str]:
        """The name of the watched run."""
        return heading(self.follower)[:1]

    def of(self, row: Row) -> str:
        """Return the line of a row; empty for one that is part of a later line."""
        score = self.follower.state.score
        match row:
            case EventRow():
                return event_line(row, self.words, self.roles)
            case NetworkRow():
                led = self.follower.state.led
                words = _of_model(row, led, score) if led else _of_all(row, self.follower.state)
                return f"{self._round(row.round)}  {words}".rstrip()
            case PeerRow() if not self.follower.place.folder:
                words = _of_one(row, self.roles, score)
                return f"{self._round(row.round)}, {self.roles.label(row.peer)}  {words}".rstrip()
            case _:
                return ""

    def _round(self, round: int) -> str:
        rounds = self.follower.state.rounds
        return f"round {round} of {rounds}" if rounds else f"round {round}"

    def troubles(self) -> Iterator[str]:
        """Yield a line for each peer with a changed state since the last call, if one of them is bad."""
        state = self.follower.state
        for peer in state.peers.values():
            word = state.condition(peer)
            before, now = self._trouble.get(peer.node, ""), word if in_trouble(word) else ""
            if now != before:
                self._trouble[peer.node] = now
                who = self.roles.label(peer.node)
                yield line(f"{who} is {word}" + (f" ({words})" if (words := note(state, peer)) else ""))


def _of_all(row: NetworkRow, state: State) -> str:
    words, score = [], state.score
    if row.score_averaged is not None:
        words.append(three(score, row))
    elif row.loss is not None or row.test_loss is not None:
        words.append(f"loss {number(row.test_loss if row.loss is None else row.loss)}")
    if row.consensus_distance is not None:
        words.append(disagreement(state, row))
    return ", ".join(words)


def _of_model(row: NetworkRow, led: Led, score: Score) -> str:
    words = []
    if row.score_averaged is not None:
        words += [f"{score.word} {shown(score, row.score_averaged)}", *at_clients(led, row.round, score)]
    if not words and (row.loss is not None or row.test_loss is not None):
        words.append(f"loss {number(row.test_loss if row.loss is None else row.loss)}")
    return ", ".join([*words, *([] if not row.round else [f"{led.contributions or 0} contributions"])])


def _of_one(row: PeerRow, roles: Roles, score: Score) -> str:
    words = [] if row.loss is None else [f"loss {number(row.loss)}"]
    if row.score is not None:
        words.append(f"{score.word} {shown(score, row.score)}")
    if row.peer == roles.leader:
        words.append(f"{row.clients or 0} contributions")
    return ", ".join(words if roles.leader is not None else [*words, f"waited {number(row.seconds_waiting)} s"])
