"""Compare the records of two participants of their messages to each other.

Every message that one participant records as sent, the other must record as received, by session, stage, size and hash;
and the other way round.  Both files may be sound and still differ: then one of them is untrue, or something was lost on
its way; the two files cannot show which.  A client need not record what it received: then that direction is not
compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from fedgossip.audit.entries import Facts, LogEntry, Owner

CLIENT, REFUSED = "client", "refused"

Content = tuple[int, str, int, str]


class Crossing(NamedTuple):
    """A frame or a message that passed to or from `peer`; None: to all."""

    peer: int | None
    session: int
    stage: str
    bytes: int
    sha256: str
    name: str
    """The kind of its entry."""
    fates: str = ""
    """Of a reveal: the owners of the shares by kind, "0-2; 3"."""

    def __str__(self) -> str:
        of = f"stage {self.stage} of session {self.session}"
        return f"{self.name!r}, {of}, {self.bytes:,} bytes, sha256 {self.sha256[:12]}"

    @property
    def content(self) -> Content:
        return self.session, self.stage, self.bytes, self.sha256


@dataclass
class TrafficRecord:
    """All messages of a participant in one file, sent and received, each with its line or record."""

    owner: Owner | None = None
    """None: a transcript, the coordinator's."""
    members: Mapping[int, bytes] = field(default_factory=dict)
    """The keys of the roster, where the file is a transcript."""
    sessions: Set[int] | None = None
    """The sessions that the file speaks of; None: all."""
    sent: dict[Crossing, int] = field(default_factory=dict)
    received: dict[Crossing, int] = field(default_factory=dict)
    """Includes refused frames: they were received."""
    receives: bool = False
    """Whether the file records acceptance of any frame."""
    sums: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The hash of each session's sum, and its line."""

    def take(self, place: int, entry: LogEntry) -> None:
        """Add the message recorded in an entry of a log, if any."""
        facts = entry.facts
        sum_hash, session = facts.get("sum_sha256"), facts.get("session")
        if isinstance(sum_hash, str) and isinstance(session, int):
            self.sums.setdefault(session, (sum_hash, place))
        if found := crossing(entry):
            (self.sent if "to" in facts else self.received).setdefault(found, place)
            self.receives = self.receives or ("to" not in facts and entry.kind != REFUSED)

    def __str__(self) -> str:
        return str(self.owner) if self.owner else "the transcript"

    @property
    def place(self) -> str:
        return "line" if self.owner else "record"


def crossing(entry: LogEntry) -> Crossing | None:
    """Return the message recorded in an entry; None for other entries."""
    facts = entry.facts
    peer, size, sha256 = facts.get("to", facts.get("from")), facts.get("bytes"), facts.get("sha256")
    session, stage = facts.get("session", facts.get("round", -1)), facts.get("stage", entry.kind)
    if type(peer) is not int or type(size) is not int or type(session) is not int or not size:
        return None
    if not isinstance(sha256, str) or not isinstance(stage, str):
        return None
    return Crossing(peer, session, stage, size, sha256, entry.kind, _fates(facts))


def _fates(facts: Facts) -> str:
    alive, dropped = facts.get("alive"), facts.get("dropped")
    return fates_of(alive, dropped) if isinstance(alive, str) and isinstance(dropped, str) else ""


def fates_of(alive: str, dropped: str) -> str:
    """Return which shares were given, ids as ranges: shares of b of the `alive`, of the mask keys of the `dropped`."""
    return f"{alive or 'nobody'}; {dropped or 'nobody'}"


def compare(one: TrafficRecord, other: TrafficRecord) -> list[str]:
    """Return in words each disagreement of a log with another log, or with a transcript."""
    if wrong := _strangers(one, other):
        return [wrong]
    return [*_direction(one, other), *_direction(other, one), *_results(one, other)]


def unheard(one: TrafficRecord, transcripts: Iterable[TrafficRecord]) -> list[str]:
    """Return the sessions with messages of a client but without a transcript of the coordinator."""
    known = {session for other in transcripts for session in other.sessions or ()}
    first: dict[int, tuple[Crossing, int]] = {}
    for found, place in one.sent.items():
        if found.session not in known:
            first.setdefault(found.session, (found, place))
    return [f"{one}, line {place}, sent {found}; no transcript is of that session" for found, place in first.values()]


def _results(one: TrafficRecord, other: TrafficRecord) -> Iterator[str]:
    for session, (sum_hash, place) in one.sums.items():
        if session in other.sums and other.sums[session][0] != sum_hash:
            there, at = other.sums[session]
            text = f"{one}, {one.place} {place}, was told the sum {sum_hash[:12]} of session {session}"
            yield f"{text}; {other}, {other.place} {at}, says {there[:12]}"


def _strangers(one: TrafficRecord, other: TrafficRecord) -> str:
    """Return why two records are not of two partners in one run; an empty text where they are."""
    if one.owner is None:
        return "compared with a transcript is the log of a client"
    if other.owner is None:
        known = other.members.get(one.owner.participant)
        return "" if known == one.owner.key else f"in the roster of the transcript {one} has another key, or none"
    if one.owner.run != other.owner.run:
        return f"logs of two runs: {one.owner.run} and {other.owner.run}"
    return f"both are logs of {one}" if one.owner.participant == other.owner.participant else ""


def _direction(sender: TrafficRecord, receiver: TrafficRecord) -> Iterator[str]:
    """Yield the differences between messages sent by `sender` and received by `receiver`, in their records."""
    if receiver.owner and receiver.owner.role == CLIENT and not receiver.receives:
        return
    if receiver.owner and not receiver.receives and sender.sent:
        yield f"{receiver} says of nothing that it came: compare with the transcripts"
        return
    left, arrived = _between(sender.sent, sender, receiver), _between(receiver.received, receiver, sender)
    named = set()
    for content, (sent, place) in left.items():
        text = f"{sender}, {sender.place} {place}, sent {sent}"
        if content in arrived:
            got, there = arrived[content]
            if sent.fates and got.fates and sent.fates != got.fates:
                yield f"{text}, of shares {sent.fates}; {receiver}, {receiver.place} {there}, says of {got.fates}"
            continue
        others = [one for one in arrived if one[:2] == content[:2] and one not in left and one not in named]
        if others:
            named.add(others[0])
            got, there = arrived[others[0]]
            yield f"{text}; what came to {receiver}, {receiver.place} {there}, was {got}"
        else:
            yield f"{text}; {receiver} does not say that it came: lost on its way, or left out"
    for content, (got, there) in arrived.items():
        if content not in left and content not in named:
            yield f"to {receiver}, {receiver.place} {there}, came {got}; {sender} does not say that it sent that"


def _between(
    crossings: Mapping[Crossing, int], of: TrafficRecord, other: TrafficRecord
) -> dict[Content, tuple[Crossing, int]]:
    """Return the messages between `of` and the other in the records of `of`, by content."""
    sessions = of.sessions if other.sessions is None else other.sessions
    return {
        found.content: (found, place)
        for found, place in crossings.items()
        if (sessions is None or found.session in sessions)
        and (found.peer is None or other.owner is None or found.peer == other.owner.participant)
    }
