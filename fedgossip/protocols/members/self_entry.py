"""A member's own entry: announced to all, moved, used to refute, and defended against another life or a twin.

A member with an earlier life learns at its first contact what it announced then, and announces nothing until then.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgossip.core.machine import Effect, Event, Failure, NodeId, Rostered
from fedgossip.core.messages import Entry, Join
from fedgossip.protocols.gossip.failures import sent_away, superseded
from fedgossip.protocols.members.dissemination import Dissemination
from fedgossip.protocols.members.failure_detector import MemberSettings
from fedgossip.protocols.members.known_members import KnownMembers
from fedgossip.protocols.members.membership_updates import NewsRefusal, Sign, Trust, merge, signed
from fedgossip.protocols.members.roster import NOBODY, Roster, boundary_after
from fedgossip.protocols.members.roster_schedule import Make

Outcome = Effect | Event
"""An effect for the driver, or an event for the gossip machine."""


class OwnEntry(KnownMembers):
    """`me` is the first entry of this life; its incarnation is above those of earlier lives."""

    def __init__(
        self,
        me: Entry,
        roster: Roster,
        trust: Trust,
        sign: Sign,
        make: Make,
        settings: MemberSettings,
        rounds: int,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(me, roster, trust, make, settings, rounds)
        self.contact = False
        """Whether a member has sent us its numbers about us."""
        self.returning = False
        """Whether we had an earlier life in this run."""
        self.announced = False
        """Whether this life is announced; before, updates about us are about an earlier one."""
        self.superseded = False
        """Whether another process runs with our id and key, and began later."""
        self.suspected_at = -1
        """The highest incarnation in which a member suspected us."""
        self._sign = sign
        self._claimed_ns = -1  # time of the first report of an earlier life
        self._spread = Dissemination(me.node, settings, rng)
        if me.node not in roster.entries:
            self._announce(me)  # there are no links yet: it is the first message on each

    @property
    def sent_away(self) -> bool:
        """Whether the organiser has revoked our own membership."""
        return self.node in self.roster.revoked

    @property
    def ended(self) -> Failure | None:
        """The reason why we can no longer take part; None while we can."""
        if self.superseded:
            return superseded(self.node)
        return sent_away(self.node) if self.sent_away else None

    def introduction(self) -> Join | None:
        """Return the first message to members without our entry; None for a founder."""
        return None if self.node in self.trust.founders else Join(self.me)

    @property
    def refusals(self) -> dict[str, int]:
        """Number of refused updates per kind."""
        return self._spread.refusals

    def announce(self, since: int, until: int = -1) -> list[Outcome]:
        """Announce to all that we take part from round `since` on, and before `until`."""
        return self._announce(replace(self.me, since=since, until=until))

    def _announce(self, entry: Entry) -> list[Outcome]:
        known = self.roster.entries.get(self.node)
        least = (known.incarnation if known else 0) + 1
        said = signed(replace(entry, incarnation=max(entry.incarnation, least)), self._sign)
        assert isinstance(said, Entry)
        before = self.roster
        self.roster = replace(before, entries={**before.entries, self.node: said})
        self.me, self.announced = said, True
        rostered: list[Outcome] = [Rostered(self.schedule())] if self._changed(before, [said]) else []
        return [*self._spread.send(self.linked, [said]), *rostered]

    def _moved(self, address: str) -> list[Outcome]:
        """Announce a new address; an old one again to all, as members cut off with us have missed it."""
        if address == self.me.address:
            return [*self._spread.send(self.linked, [self.me])]
        moved = self._report("moved", {"node": self.node, "address": address})
        return [moved, *self._announce(replace(self.me, address=address))]

    def _refute(self) -> list[Outcome]:
        """Refute with a higher incarnation; from a later round on if our announced end is too near."""
        if not self.announced or not self._blamed():
            return []
        since, round = self.me.since, max(self.round, self.network_round())
        if since >= 0 and replace(self.roster, own=NOBODY).end(self.node) <= round + 1:  # from the others' view
            since = max(since, boundary_after(round))
        return self._announce(replace(self.me, since=since))

    def _blamed(self) -> bool:
        """Return whether a suspicion or verdict on us is newer than our entry; one for a far round has time."""
        near = boundary_after(boundary_after(max(self.round, self.network_round(), 0)))
        return self.suspected_at >= self.me.incarnation or any(
            said.until <= near for said in self.roster.standing(self.node)
        )

    def _handle_own_entry(self, entry: Entry, sender: NodeId) -> list[Outcome]:
        """Handle an entry of ours: of this life, of an earlier one, or of another process with our key."""
        if entry == self.me or entry.incarnation < self.me.incarnation:
            return []
        if merge(Roster({}, {}), [entry], replace(self.trust, founders={self.node: (self.me.key, self.me.verify)})).new:
            if self.me.since < 0:  # an earlier life with a clock ahead of ours
                self.me = replace(self.me, incarnation=entry.incarnation + 1)
                self.returning = self.contact = True
                return []
            if entry.incarnation == self.me.incarnation:
                self.suspected_at = entry.incarnation
                return [*self._refuse(NewsRefusal("twin", entry), sender), *self._refute()]
            if self.superseded:
                return []
            self.superseded = True
            return [self._report("superseded", {"node": self.node, "address": entry.address})]
        return self._refuse(NewsRefusal("identity", entry), sender)

    def _begin_contact(self) -> list[Outcome]:
        self.contact = True
        return self._announce(self.me) if not self.returning and self.me.since >= 0 else []

    def _contacted(self, now_ns: int) -> list[Outcome]:
        """Begin without the proof of an earlier life, if its reporter has not sent it in time."""
        waited = self._claimed_ns >= 0 and now_ns - self._claimed_ns >= self.settings.answer_ns
        return self._begin_contact() if waited and not self.contact else []

    def _refuse(self, refusal: NewsRefusal, sender: NodeId) -> list[Outcome]:
        return [*self._spread.refuse(refusal, sender, max(self.round, 0))]
