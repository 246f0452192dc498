"""One member's knowledge of all members, and queries on it without side effects."""

from __future__ import annotations

from collections.abc import Sequence

from fedgossip.core.machine import NodeId, Report
from fedgossip.core.messages import ConfirmDead, Entry, News, Suspicion
from fedgossip.protocols.members.failure_detector import MemberSettings
from fedgossip.protocols.members.membership_updates import Trust
from fedgossip.protocols.members.roster import Roster
from fedgossip.protocols.members.roster_schedule import Make, Places, RosterSchedule


class KnownMembers:
    """All members from the view of `me`.  `rounds`: of the run."""

    def __init__(
        self, me: Entry, roster: Roster, trust: Trust, make: Make, settings: MemberSettings, rounds: int
    ) -> None:
        self.node, self.me, self.roster, self.trust = me.node, me, roster, trust
        self.settings, self.rounds = settings, rounds
        self.round = -1
        """Number of completed rounds; -1: we do not take part yet.  Set by the owner."""
        self.contacts: list[NodeId] = []
        self.linked: set[NodeId] = set()
        self.lives: dict[NodeId, int] = {}
        self.reached: dict[NodeId, int] = {}
        """Number of completed rounds of each."""
        self.suspects: dict[NodeId, tuple[Suspicion | ConfirmDead, int]] = {}  # with the time in nanoseconds
        self._came: dict[NodeId, int] = {}  # time of each last link
        self._met: dict[NodeId, tuple[str, str]] = {}  # (address, key) of each link
        self._make = make
        self._hashed: tuple[Roster, str] = roster, roster.digest()
        self._made: dict[tuple[NodeId, ...], Places] = {}
        self._partners: tuple[NodeId, ...] = ()
        self._watching: tuple[Roster | None, set[NodeId]] = None, set()

    def schedule(self) -> RosterSchedule:
        """Return the graphs of all rounds under the present roster."""
        schedule = RosterSchedule(self.roster, self._make, self._made)
        schedule.earlier[self.node] = self._partners
        self._partners = schedule.partners(self.node)
        return schedule

    def others(self) -> list[NodeId]:
        """Return all other members that are neither gone nor leaving, ascending."""
        return [node for node in self.roster.present() if node != self.node]

    def state(self, node: NodeId) -> str:
        """Return the state of another member: one of the table of `membership`, or "unknown"."""
        if node not in self.roster.entries:
            return "unknown"
        if node in self.roster.revoked:
            return "away"
        if self.roster.entries[node].until >= 0:
            return "left"
        if self.roster.gone(node):
            return "gone"
        if node in self.suspects:
            return "suspected"
        return "judged" if self._judged(node) else "here"

    def claims(self) -> list[int]:
        """Return the completed rounds that the others report, descending."""
        return sorted((self.reached[node] for node in self.others() if node in self.reached), reverse=True)

    def network_round(self) -> int:
        """Return the second highest reported number of rounds, as one report may be false; -1: none has begun."""
        claims = self.claims()
        return claims[min(1, len(claims) - 1)] if claims else -1

    def watched(self) -> set[NodeId]:
        """Return the members to ping: all contacts; where the link is broken, through others."""
        if self._watching[0] is not self.roster:
            self._watching = self.roster, set(self.contacts) & set(self.others())
        return self._watching[1]

    def word(self) -> tuple[int, str]:
        """Return the content of every ping: our round, and the digest of our roster."""
        return self.round, self._digest()

    def helpers(self, silent: NodeId) -> list[NodeId]:
        """Return the members that can ping a silent one in our place, ascending."""
        return [node for node in self.others() if node in self.linked and node not in (silent, *self.suspects)]

    def _digest(self) -> str:
        if self._hashed[0] is not self.roster:
            self._hashed = self.roster, self.roster.digest()
        return self._hashed[1]

    def _not_begun(self, node: NodeId) -> bool:
        """Return whether `node` has never been seen, in a run that has not begun: people start peers minutes apart."""
        begun = self.round > 0 or self.network_round() > 0
        return self.roster.entries[node].incarnation == 0 and node not in self.linked and not begun

    def _judged(self, node: NodeId) -> bool:
        """Return whether we have given a verdict on the present life of `node`."""
        life = self.roster.entries[node].incarnation
        return any((said.by, said.incarnation) == (self.node, life) for said in self.roster.verdicts.get(node, ()))

    def _contacts(self) -> list[NodeId]:
        """Return the members to link to, also gone ones, which may return.  Symmetric: they link to us."""
        ids = sorted(self.roster.entries.keys() - self.roster.revoked.keys())
        if len(ids) <= self.settings.links or self.node not in ids:
            return [node for node in ids if node != self.node]
        own = ids.index(self.node)
        steps = [1 << k for k in range((len(ids) - 1).bit_length())]
        found = {ids[(own + sign * step) % len(ids)] for step in steps for sign in (1, -1)}
        return sorted((found | set(self.schedule().partners(self.node))) - {self.node})

    def _window_ns(self) -> int:
        return self.settings.suspicion_of(len(self.roster.present()))

    def _changed(self, before: Roster, new: Sequence[News]) -> bool:
        """Return whether the graph of any round has changed."""
        spans = any(_span(before, news.node) != _span(self.roster, news.node) for news in new)
        return spans or bool(new and before.lost() != self.roster.lost())

    def _report(self, name: str, value: object) -> Report:
        return Report(name, value, max(self.round, 0))


def _span(roster: Roster, node: NodeId) -> tuple[int, int] | None:
    """Return the first round and the end of `node` by its own entry and the organiser's revocation."""
    entry = roster.entries.get(node)
    return (entry.since, entry.until) if entry and node not in roster.revoked else None
