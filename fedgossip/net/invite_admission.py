"""Who is let in by an invite: questions in, answers out; no socket, no clock.

A secret lets in as many keys as there are seats, each once and for ever: one that asks again, after its own crash or
the organiser's, has the place that it had.  Who is let in is on disk before it is told.  The organiser signs the
admission of each, so members know it by its own keys from then on; the invite is of no use beside that.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fedgossip.errors import ConfigError
from fedgossip.machine import NodeId
from fedgossip.messages import (
    FILE_PART,
    AnyMessage,
    Beginning,
    Enrol,
    Entry,
    FilePart,
    FileQuery,
    Gathering,
    Invitations,
    Invited,
    InviteProof,
    Proposal,
    TurnedAway,
)
from fedgossip.net.endpoints import check_reachable
from fedgossip.net.identity import Identity
from fedgossip.net.invitation import mark_of, proof_of
from fedgossip.protocols.news import admission_of
from fedgossip.version import __version__

HERE_SECONDS = 10.0
"""Who was let in is here as long as it asked within so many seconds; it does so every two."""

ENDED, EXPIRED, USED, UNKNOWN = "ended", "expired", "used", "unknown"
"""Why somebody is turned away."""


@dataclass(frozen=True)
class Guest:
    """One that was let in: its public keys, and where it is called."""

    key: str
    verify: str
    address: str


@dataclass(frozen=True)
class Party:
    """What must outlive the organiser's process.  `seats`: members with the organiser's own, which is 0."""

    secret: bytes = field(repr=False)
    expires: int
    seats: int
    guests: Mapping[NodeId, Guest] = field(default_factory=dict)
    founders: tuple[NodeId, ...] = ()
    """With whom it began; () before."""
    ended: bool = False

    @property
    def mark(self) -> str:
        return mark_of(self.secret)

    def node_of(self, key: str) -> NodeId | None:
        """Return the number of the guest with this key."""
        return next((node for node, guest in self.guests.items() if guest.key == key), None)


class InviteAdmission:
    """`host` is the organiser's own member, `past` why invites of earlier runs are of no use any more.

    `keep` puts a party on disk.  What it raises is raised here, and nothing has changed then.
    """

    def __init__(
        self,
        organiser: Identity,
        host: Guest,
        party: Party,
        proposal: Proposal,
        keep: Callable[[Party], None],
        test: bytes = b"",
        past: Mapping[str, str] | None = None,
    ) -> None:
        self.organiser, self.host, self.party, self.proposal = organiser, host, party, proposal
        self._keep, self._test, self._past = keep, test, dict(past or {})
        self._heard: dict[NodeId, float] = {}

    # --- for the organiser ----------------------------------------------------------------------------------------

    def here(self, now: float) -> tuple[NodeId, ...]:
        """Return who is here, the organiser first."""
        heard = [node for node, at in sorted(self._heard.items()) if now - at < HERE_SECONDS]
        return (0, *heard)

    def is_ready(self, now: float) -> bool:
        """Whether all are here, or the time is over and another one is."""
        here = len(self.here(now))
        return here == self.party.seats or (now >= self.party.expires and here > 1)

    def begin(self, now: float) -> tuple[NodeId, ...]:
        """Begin with those who are here; return them.  Who comes later joins what has begun."""
        if not self.party.founders:
            self._change(replace(self.party, founders=self.here(now)))
        return self.party.founders

    def end(self) -> None:
        """Let nobody in any more."""
        self._change(replace(self.party, ended=True))

    def members(self, node: NodeId = 0) -> tuple[Entry, ...]:
        """Return the entries of the founders, and that of `node`, each with its admission."""
        return tuple(self._entry(one) for one in sorted({*self.party.founders, node}))

    def _entry(self, node: NodeId) -> Entry:
        guest = self.host if node == 0 else self.party.guests[node]
        admission = self.organiser.sign(admission_of(node, guest.key, guest.verify))
        since = 0 if node in self.party.founders else -1
        return Entry(node, 0, guest.address, guest.key, guest.verify, since=since, admission=admission)

    def _change(self, party: Party) -> None:
        self._keep(party)
        self.party = party

    # --- for those who ask ----------------------------------------------------------------------------------------

    def answer(self, key: str, message: AnyMessage | None, now: float) -> Invitations:
        """Return the answer to what the holder of `key` asks; None: something that cannot be read."""
        if not isinstance(message, InviteProof | FileQuery | Enrol):
            return TurnedAway("unreadable", __version__)
        if refusal := self._refusal(key, message.who, now):
            return refusal
        match message:
            case FileQuery(_, start):
                return self._part(start)
            case InviteProof(_, version) | Enrol(_, version) if version != __version__:
                return TurnedAway("version", __version__)
            case InviteProof():
                return self.proposal
            case Enrol():
                return self._enrolled(key, message, now)

    def _part(self, start: int) -> Invitations:
        fits = start % FILE_PART == 0 and start < len(self._test)
        return FilePart(start, self._test[start : start + FILE_PART]) if fits else TurnedAway("range")

    def _refusal(self, key: str, who: Invited, now: float) -> TurnedAway | None:
        party = self.party
        if who.mark in self._past:
            return TurnedAway(self._past[who.mark])
        proof = proof_of(party.secret, self.organiser.public, key, who.verify)
        if not hmac.compare_digest(proof, who.proof) or who.mark != party.mark:
            return TurnedAway(UNKNOWN)
        if party.ended:
            return TurnedAway(ENDED)
        if (node := party.node_of(key)) is not None:
            return None if party.guests[node].verify == who.verify else TurnedAway(UNKNOWN)
        if len(party.guests) >= party.seats - 1:
            return TurnedAway(USED)
        return TurnedAway(EXPIRED) if now >= party.expires else None

    def _enrolled(self, key: str, asked: Enrol, now: float) -> Invitations:
        node = self.party.node_of(key)
        if node is None:
            node = max(self.party.guests, default=0) + 1
        guest = Guest(key, asked.who.verify, asked.address)
        if self.party.guests.get(node) != guest and not (self.party.founders and node in self.party.guests):
            try:
                check_reachable(asked.address, "address")
            except ConfigError:
                return TurnedAway("address", asked.address)
            self._change(replace(self.party, guests={**self.party.guests, node: guest}))
        self._heard[node] = now
        if self.party.founders:
            return Beginning(node, self.organiser.verify, self.members(node))
        seconds = max(0, int(self.party.expires - now))
        return Gathering(node, self.here(now), self.party.seats, seconds)
