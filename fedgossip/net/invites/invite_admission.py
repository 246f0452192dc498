"""Admission by an invite: requests in, replies out; no socket, no clock.

A secret admits one key per seat; a key that repeats its request keeps its seat.  The organiser signs an admission and
writes it to disk before it is sent.  Before the run a seat without a repeated request for HOLD_SECONDS goes to the next
key.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice

from fedgossip.base.errors import ConfigError
from fedgossip.base.version import __version__
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import (
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
from fedgossip.net.endpoints import Endpoint, check_reachable, is_signed, is_signing_key
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import mark_of, proof_of
from fedgossip.protocols.members.membership_updates import admission_of

HERE_SECONDS = 10.0
"""Maximum seconds since the last request of a present holder of a seat, which repeats it every two seconds."""

HOLD_SECONDS = 300.0
"""Time for which a seat is reserved for an absent holder before the run begins, in seconds."""

UNFIT_MAX = 32
UNFIT = {
    "key": "its key of signatures is not written as one",
    "twin": "it signs with the key of another one",
    "signature": "its keys are not signed by itself",
    "address": "it cannot be reached at its address",
}
"""Reasons why a holder of the secret is not admitted."""

ENDED, EXPIRED, USED, UNKNOWN, PLACE = "ended", "expired", "used", "unknown", "place"
"""Reasons for refusing a caller."""


@dataclass(frozen=True)
class Guest:
    """An admitted guest: its public keys, its address, and its signature of these."""

    key: str
    verify: str
    address: str
    signature: str = ""


@dataclass(frozen=True)
class Seats:
    """Seats of a run: `count` including the organiser's `own`."""

    count: int
    own: NodeId = 0
    fixed: bool = False
    """Whether the run begins only when all seats are taken, and never admits others; otherwise it begins at the latest
    when the invite expires.
    """
    called: bool = True
    """Whether members need an address because others connect to them."""
    folder: bool = False
    """Whether all messages are files of a shared folder: no member has an address, and absent members are
    waited for.
    """
    groups: Mapping[NodeId, tuple[NodeId, ...]] = field(default_factory=dict)
    """For a run with tiers: the members of each coordinator below the organiser.  A guest names its seat there."""

    def addressed(self, node: NodeId) -> bool:
        """Return whether others need the address of a member."""
        return not self.folder and (self.called or node == self.own or node in self.groups)

    def places(self, lead: NodeId, under: NodeId) -> Iterator[NodeId]:
        """Yield the seats that a guest's `Enrol` names; none if it fits nowhere."""
        if not self.groups and not lead and not under:
            yield from (node for node in count() if node != self.own)
        elif lead in self.groups and not under:
            yield lead
        elif under in self.groups and not lead:
            yield from (node for node in self.groups[under] if node not in self.groups)


@dataclass(frozen=True)
class Party:
    """State that must survive a restart of the organiser's process."""

    secret: bytes = field(repr=False)
    expires: int
    seats: Seats
    guests: Mapping[NodeId, Guest] = field(default_factory=dict)
    founders: tuple[NodeId, ...] = ()
    """Members at the start; () before the start."""
    ended: bool = False

    @property
    def mark(self) -> str:
        return mark_of(self.secret)

    def node_of(self, key: str) -> NodeId | None:
        """Return the number of the guest with this key."""
        return next((node for node, guest in self.guests.items() if guest.key == key), None)

    @property
    def full(self) -> bool:
        """Whether all seats are taken."""
        return len(self.guests) >= self.seats.count - 1

    def free(self, lead: NodeId = 0, under: NodeId = 0) -> NodeId | None:
        """Return the first free seat that a guest may take."""
        places = self.seats.places(lead, under)
        return None if self.full else next((node for node in places if node not in self.guests), None)


class InviteAdmission:
    """`host`: the organiser's own member; `past`: invites of earlier runs -> the reason of their end; `keep` writes a
    party to disk; if it raises, nothing has changed.
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
        self._seen_at: dict[NodeId, float] = {}
        self._held: dict[NodeId, float] = {}
        self.unfit: dict[str, str] = {}
        """Faults of the first UNFIT_MAX refused callers, by key."""

    # --- for the organiser ----------------------------------------------------------------------------------------

    def list_present(self, now: float) -> tuple[NodeId, ...]:
        """Return the present members, the organiser first."""
        if self.party.seats.folder:
            return (self.party.seats.own, *sorted(self.party.guests))
        seen = [node for node, at in sorted(self._seen_at.items()) if now - at < HERE_SECONDS]
        return (self.party.seats.own, *seen)

    def is_ready(self, now: float) -> bool:
        """Return whether all are present; or, if the seats are not fixed, whether the invite has expired with at least
        one guest present.
        """
        here, seats = len(self.list_present(now)), self.party.seats
        return here == seats.count or (now >= self.party.expires and here > 1 and not seats.fixed)

    def begin(self, now: float) -> tuple[NodeId, ...]:
        """Begin with the present members and return them.  Later members join during the run."""
        if not self.party.founders:
            self._change(replace(self.party, founders=tuple(sorted(self.list_present(now)))))
        return self.party.founders

    def end(self) -> None:
        """Stop admitting."""
        self._change(replace(self.party, ended=True))

    def members(self, node: NodeId | None = None) -> tuple[Entry, ...]:
        """Return the entries of the founders, the organiser's own, and that of `node`, each with its admission."""
        own = self.party.seats.own
        return tuple(self._entry(one) for one in sorted({*self.party.founders, own if node is None else node}))

    def _entry(self, node: NodeId) -> Entry:
        guest = self.host if node == self.party.seats.own else self.party.guests[node]
        admission = self.organiser.sign(admission_of(node, guest.key, guest.verify))
        since = 0 if node in self.party.founders else -1
        about = guest.address, guest.key, guest.verify
        return Entry(node, 0, *about, since=since, admission=admission, signature=guest.signature)

    def _change(self, party: Party) -> None:
        self._keep(party)
        self.party = party

    # --- replies to requests --------------------------------------------------------------------------------------

    def answer(self, key: str, message: AnyMessage | None, now: float) -> Invitations:
        """Return the reply to a request of the holder of `key`; None for an unreadable one."""
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
        if party.full and self._find_absent(now) is None:
            return TurnedAway(USED)
        return TurnedAway(EXPIRED) if now >= party.expires else None

    def _find_absent(self, now: float) -> NodeId | None:
        if self.party.founders or self.party.seats.folder:
            return None
        last = {node: max(self._seen_at.get(node, 0.0), self._held.setdefault(node, now)) for node in self.party.guests}
        return next((node for node in sorted(last) if now - last[node] >= HOLD_SECONDS), None)

    def _place(self, known: NodeId | None, asked: Enrol, now: float) -> NodeId | None:
        """Return a participant's seat, or None if all are taken."""
        fits = list(islice(self.party.seats.places(asked.lead, asked.under), self.party.seats.count))
        left = self._find_absent(now)
        if known is not None:
            return known if known in fits else None
        found = self.party.free(asked.lead, asked.under)
        return left if found is None and left in fits else found

    def _enrolled(self, key: str, asked: Enrol, now: float) -> Invitations:
        party, guest = self.party, Guest(key, asked.who.verify, asked.address, asked.signature)
        known = party.node_of(key)
        if (node := self._place(known, asked, now)) is None:
            return TurnedAway(PLACE)
        if party.guests.get(node) != guest and (known is None or not party.founders):
            if refusal := self._unfit(node, guest):
                self._note(key, refusal)
                return refusal
            self._change(replace(party, guests={**party.guests, node: guest}))
            self._held[node] = now
        self._seen_at[node] = now
        if self.party.founders:
            return Beginning(node, self.organiser.verify, self.members(node))
        seconds = max(0, int(self.party.expires - now))
        return Gathering(node, self.list_present(now), self.party.seats.count, seconds)

    def _note(self, key: str, refusal: TurnedAway) -> None:
        if len(self.unfit) < UNFIT_MAX:
            sent = f": it sent {refusal.about!r}" if refusal.about else ""
            self.unfit.setdefault(key, f"{UNFIT[refusal.reason]}{sent}")

    def _unfit(self, node: NodeId, guest: Guest) -> TurnedAway | None:
        others = (self.host, *(one for other, one in self.party.guests.items() if other != node))
        if not is_signing_key(guest.verify):
            return TurnedAway("key", guest.verify)
        if any(guest.verify == one.verify for one in others):
            return TurnedAway("twin")
        if not is_signed(Endpoint(guest.address, guest.key, guest.verify, signature=guest.signature)):
            return TurnedAway("signature")
        if not guest.address and not self.party.seats.addressed(node):
            return None
        try:
            check_reachable(guest.address, "address")
        except ConfigError:
            return TurnedAway("address", guest.address)
        return None
