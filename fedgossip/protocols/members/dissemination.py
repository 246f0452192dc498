"""Dissemination of membership updates: pushed to a few at once, and found by digests where they were lost.

The author of an update sends it to every linked member; a first receiver forwards it to a few.  Every ping carries a
digest of the roster: where two differ the peers compare their rosters, and each sends the entries that the other
lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedgossip.core.machine import Effect, NodeId, Refused, Send
from fedgossip.core.messages import NEWS_MAX, Compare, MembershipUpdate, News
from fedgossip.protocols.members.failure_detector import MemberSettings, some
from fedgossip.protocols.members.membership_updates import NewsRefusal
from fedgossip.protocols.members.roster import Roster

PAGES = 4
"""Maximum number of pages of updates in reply to one comparison; the rest follows with the next."""

REFUSALS_TOLD = 100
"""Maximum number of kinds of refused updates that are reported; more are only dropped."""


class Dissemination:
    """Compares with each member at most once per period, and reports each kind of refused update once.

    `refusals`: number of refused updates per kind.
    """

    def __init__(self, node: NodeId, settings: MemberSettings, rng: np.random.Generator) -> None:
        self._node, self._settings, self._rng = node, settings, rng
        self.refusals: dict[str, int] = {}
        self._compared: dict[NodeId, int] = {}

    def send(self, whom: Iterable[NodeId], news: Sequence[News]) -> list[Effect]:
        """Send updates, in pages that fit into a message, to all of these."""
        pages = [tuple(news[start : start + NEWS_MAX]) for start in range(0, len(news), NEWS_MAX)]
        return [Send(node, MembershipUpdate(page)) for page in pages for node in sorted(whom)]

    def pass_on(self, linked: set[NodeId], sender: NodeId, news: Sequence[News]) -> list[Effect]:
        """Send new updates: our own to all linked members, others to a few, without the sender."""
        if sender == self._node:
            return self.send(linked, news)
        return self.send(some(self._rng, sorted(linked - {sender}), self._settings.relays), news)

    def compare(self, node: NodeId, roster: Roster, now_ns: int) -> Send:
        """Send our roster's numbers to `node`, so that it sends the entries that we lack."""
        self._compared[node] = now_ns
        return Send(node, Compare(roster.known()))

    def differs(self, node: NodeId, roster: Roster, now_ns: int) -> list[Effect]:
        """Compare with a member with another digest, unless that was done within a period."""
        recently = now_ns - self._compared.get(node, -self._settings.period_ns) < self._settings.period_ns
        return [] if recently else [self.compare(node, roster, now_ns)]

    def answer(
        self, sender: NodeId, roster: Roster, known: Sequence[tuple[NodeId, int, int]], now_ns: int
    ) -> list[Effect]:
        """Send what `sender` lacks by its own numbers; request what we lack."""
        effects = self.send([sender], roster.newer_than(known)[: PAGES * NEWS_MAX])
        if roster.lacks(known) and now_ns - self._compared.get(sender, -1) > self._settings.answer_ns:
            effects.append(self.compare(sender, roster, now_ns))
        return effects

    def refuse(self, refusal: NewsRefusal, sender: NodeId, round: int) -> list[Effect]:
        """Count a refused update, and report it once per kind and member: updates are forwarded, and so repeat."""
        life = getattr(refusal.news, "incarnation", "")
        key = f"{refusal.reason} {refusal.news.node} {life}"
        first = key not in self.refusals and len(self.refusals) < REFUSALS_TOLD
        if first or key in self.refusals:
            self.refusals[key] = self.refusals.get(key, 0) + 1
        kind, about = type(refusal.news).__name__.lower(), refusal.news.node
        text = f"node {self._node}: {kind} about node {about} from node {sender}: {refusal.reason}"
        return [Refused(sender, refusal.reason, text, round)] if first else []
