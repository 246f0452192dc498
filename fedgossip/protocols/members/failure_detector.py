"""SWIM failure detection: members are pinged in turn; a silent one is also pinged by others before it is suspected.

    asked --no reply in answer_ns--> helpers ping it too --no reply until the end of a period--> silent
          --any message of it, or a helper's acknowledgement--> answered

A member without a link is pinged through helpers at once.  An update goes to every linked member, and from a first
receiver to a few more; digests in pings find lost ones.  A partition is a set of members lost within a window that
return together.

Sources: as `membership`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedgossip.core.machine import Effect, NodeId, Refused, Send, SetTimer
from fedgossip.core.messages import (
    BUCKETS,
    COMPARED_MAX,
    NEWS_MAX,
    Compare,
    CompareBuckets,
    ConfirmDead,
    IndirectAck,
    MembershipUpdate,
    News,
    Ping,
    PingReq,
    Suspicion,
)
from fedgossip.protocols.members.entries import bucket_of
from fedgossip.protocols.members.membership_updates import NewsRefusal
from fedgossip.protocols.members.roster import Roster

ASKED_MAX = 256
"""Maximum number of open pings on behalf of other members."""

BLAMES_KEPT = 4096
"""Maximum number of stored suspicions; each counts once in the time that a suspect has."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Times in nanoseconds.  The defaults are memberlist's for a local network."""

    period_ns: int = 1_000_000_000
    """Interval between two pings; in a network of n every member is pinged once in a period on average."""
    answer_ns: int = 400_000_000
    """Wait for an answer before helpers are asked; above the slowest link's round trip, below the period."""
    helpers: int = 3
    """Number of members requested to ping a silent one."""
    suspicion_ns: int = 4_000_000_000
    """Time for a suspect to refute, times log10(n) above ten members; longer: fewer errors, later verdicts."""
    relays: int = 3
    """Number of links to which a new update is forwarded."""
    links: int = 64
    """Maximum number of members for which all are linked; above it, each links to its partners and O(log n) others."""

    def suspicion_of(self, n: int) -> int:
        """Return the time for a suspect among `n` members to refute, in nanoseconds."""
        return int(self.suspicion_ns * max(1.0, float(np.log10(max(1, n)))))


class Detectable(Protocol):
    """The detector's interface to the members."""

    linked: set[NodeId]

    def word(self) -> tuple[int, str]:
        """Return this member's round and the digest of its roster, which every ping contains."""

    def watched(self) -> set[NodeId]:
        """Return the members to ping."""

    def helpers(self, silent: NodeId) -> Sequence[NodeId]:
        """Return the members that can ping `silent` in this member's place, ascending."""


@dataclass(slots=True)
class _Asking:
    """A ping that waits for its answer."""

    node: NodeId
    began_ns: int


class FailureDetector:
    """Has at most one open query for each member, and each one ends: answered, silent, or dropped."""

    def __init__(self, members: Detectable, settings: MemberSettings, rng: np.random.Generator) -> None:
        self._members, self._settings, self._rng = members, settings, rng
        self.heard: dict[NodeId, int] = {}
        self._number = 0
        self._asking: dict[int, _Asking] = {}
        self._asked: dict[int, tuple[NodeId, int]] = {}  # our ping's number: (asker, its number there)
        self._order: list[NodeId] = []

    def ping(self, node: NodeId) -> Send:
        self._number += 1
        return Send(node, Ping(self._number, *self._members.word()))

    def next(self, there: set[NodeId]) -> NodeId | None:
        """Return the next member to ping: each once before any repeats, in a new random order."""
        while self._order and self._order[-1] not in there:
            self._order.pop()
        if not self._order and there:
            self._order = self._rng.permutation(sorted(there)).tolist()
        return self._order.pop() if self._order else None

    def ask(self, node: NodeId, now_ns: int) -> list[Effect]:
        """Ping `node`; without an answer request helpers' pings, at once if there is no link."""
        if node not in self._members.watched() or any(asking.node == node for asking in self._asking.values()):
            return []
        ping = self.ping(node)
        self._asking[self._number] = _Asking(node, now_ns)
        if node not in self._members.linked:
            return self.late(self._number)
        return [ping, SetTimer(("member", "late", self._number), self._settings.answer_ns)]

    def late(self, number: int) -> list[Effect]:
        """Request helpers' pings of a member that has not answered in time."""
        asking = self._asking.get(number)
        if asking is None or self._answered(asking):
            self._asking.pop(number, None)
            return []
        helpers = some(self._rng, self._members.helpers(asking.node), self._settings.helpers)
        probes: list[Effect] = [Send(helper, PingReq(number, asking.node)) for helper in helpers]
        return [*probes, SetTimer(("member", "end", number), self._settings.period_ns)]

    def ended(self, number: int) -> NodeId | None:
        """End a query; return the silent member, or None if it has answered."""
        asking = self._asking.pop(number, None)
        return None if asking is None or self._answered(asking) else asking.node

    def forget(self) -> None:
        """Drop all open queries, after this member's absence."""
        self._asking.clear()

    def _answered(self, asking: _Asking) -> bool:
        return self.heard.get(asking.node, -1) >= asking.began_ns

    # --- on behalf of others ------------------------------------------------------------------------------------------

    def ask_for(self, asker: NodeId, number: int, node: NodeId) -> list[Effect]:
        """Ping `node` for `asker`, under the asker's `number`."""
        if node not in self._members.linked:
            return []
        if len(self._asked) >= ASKED_MAX:
            self._asked.clear()  # pings that remained unanswered
        ping = self.ping(node)
        self._asked[self._number] = asker, number
        return [ping]

    def answered(self, number: int, sender: NodeId) -> list[Effect]:
        """Handle the answer to a ping; forward it if the ping was for another member."""
        asker = self._asked.pop(number, None)
        return [Send(asker[0], IndirectAck(asker[1], sender))] if asker else []

    def vouched(self, number: int, node: NodeId, now_ns: int) -> None:
        """Record a helper's acknowledgement of `node`, on this member's request."""
        if number in self._asking and self._asking[number].node == node:
            self.heard[node] = now_ns


class Blames:
    """Suspicions that count: one per author and member within a window; at most BLAMES_KEPT, the newest."""

    def __init__(self) -> None:
        self._at: dict[tuple[NodeId, NodeId], int] = {}

    def counts(self, by: NodeId, node: NodeId, now_ns: int, window_ns: int) -> bool:
        """Record a suspicion; return whether it is the first of `by` on `node` within the window."""
        blame = by, node
        if now_ns - self._at.get(blame, -window_ns) < window_ns:
            return False
        while len(self._at) >= BLAMES_KEPT:
            del self._at[next(iter(self._at))]
        self._at[blame] = now_ns
        return True


def some(rng: np.random.Generator, nodes: Sequence[NodeId], count: int) -> list[NodeId]:
    """Return `count` random ones of `nodes`, or all if they are fewer; `nodes` ascend."""
    return rng.permutation(nodes).tolist()[:count] if nodes else []


PAGES = 4
"""Maximum number of pages of updates in reply to one comparison; the remaining ones follow with the next."""

REFUSALS_REPORTED = 100
"""Maximum number of reported kinds of refused updates; others are only dropped."""


ROWS = 1000
"""Maximum number of members in a comparison of unequal buckets: more than PAGES hold, as most members are equal."""


class Dissemination:
    """Compares with each member at most once per period; `refusals` counts refused updates per kind.

    Up to BUCKETS members are compared one by one; above, the hashes of all buckets first (`entries`).
    """

    def __init__(self, node: NodeId, settings: MemberSettings, rng: np.random.Generator) -> None:
        self._node, self._settings, self._rng = node, settings, rng
        self.refusals: dict[str, int] = {}
        self._compared: dict[NodeId, int] = {}
        self._fetching: dict[NodeId, tuple[Sequence[int], int]] = {}  # (its hashes, number of full pages since)

    def send(self, whom: Iterable[NodeId], news: Sequence[News]) -> list[Effect]:
        """Send updates to all of these members, in pages that fit into a message."""
        pages = [tuple(news[start : start + NEWS_MAX]) for start in range(0, len(news), NEWS_MAX)]
        return [Send(node, MembershipUpdate(page)) for page in pages for node in sorted(whom)]

    def pass_on(self, linked: set[NodeId], sender: NodeId, news: Sequence[News]) -> list[Effect]:
        """Forward new updates: this member's to all linked members, others to a few, except the sender."""
        if sender == self._node:
            return self.send(linked, news)
        return self.send(some(self._rng, sorted(linked - {sender}), self._settings.relays), news)

    def warn(
        self, node: NodeId, roster: Roster, suspects: Mapping[NodeId, tuple[Suspicion | ConfirmDead, int]]
    ) -> list[Effect]:
        """Send `node` the suspicion and verdicts on it, so that it can refute them."""
        news: list[News] = [*roster.standing(node)]
        if node in suspects and suspects[node][0] not in news:
            news.append(suspects[node][0])
        return self.send([node], news[:NEWS_MAX])

    def compare(self, node: NodeId, roster: Roster, now_ns: int) -> Send:
        """Send this roster's numbers or hashes to `node`, so that it sends the missing entries."""
        self._compared[node] = now_ns
        few = len(roster.entries) + len(roster.revoked) <= BUCKETS
        return Send(node, Compare(roster.summarise()) if few else CompareBuckets(roster.hashes))

    def differs(self, node: NodeId, roster: Roster, now_ns: int) -> list[Effect]:
        """Compare with a member with another digest, at most once within a period."""
        recently = now_ns - self._compared.get(node, -self._settings.period_ns) < self._settings.period_ns
        return [] if recently else [self.compare(node, roster, now_ns)]

    def answer_hashes(self, sender: NodeId, roster: Roster, hashes: Sequence[int]) -> list[Effect]:
        """Send the numbers of members in unequal buckets, so that `sender` sends the missing entries."""
        unequal = roster.unequal(hashes)
        self._fetching.pop(sender, None)
        if not unequal:
            return []
        self._fetching[sender] = hashes, 0
        # each side needs the other's number of itself; a random order fetches different buckets from different members
        own, first = {bucket_of(sender), bucket_of(self._node)}, int(self._rng.integers(BUCKETS))
        order = sorted(unequal, key=lambda k: (k not in own, (k - first) % BUCKETS))
        buckets, rows = list[int](), 0
        for k in order:
            rows += len(roster.entries.buckets[k].entries)
            if rows > ROWS and len(buckets) >= 2:
                break
            buckets.append(k)
        return [self._compare_in(sender, roster, buckets)]

    def _compare_in(self, node: NodeId, roster: Roster, buckets: Sequence[int]) -> Send:
        return Send(node, Compare(roster.summarise(buckets)[:COMPARED_MAX], tuple(buckets)))

    def count_page(self, sender: NodeId, roster: Roster, news: Sequence[News]) -> list[Effect]:
        """Request more after the last page of a long answer, without a wait for the next ping."""
        if sender not in self._fetching or len(news) < NEWS_MAX:
            return []
        hashes, pages = self._fetching[sender]
        if pages + 1 == PAGES:
            return self.answer_hashes(sender, roster, hashes)
        self._fetching[sender] = hashes, pages + 1
        return []

    def answer(self, sender: NodeId, roster: Roster, asked: Compare, now_ns: int) -> list[Effect]:
        """Send the entries that `sender`'s numbers lack; request the ones missing here."""
        effects = self.send([sender], roster.newer_than(asked.known, asked.buckets)[: PAGES * NEWS_MAX])
        if (
            roster.lacks(asked.known, asked.buckets)
            and now_ns - self._compared.get(sender, -1) > self._settings.answer_ns
        ):
            self._compared[sender] = now_ns
            effects.append(self._compare_in(sender, roster, asked.buckets))
        return effects

    def refuse(self, refusal: NewsRefusal, sender: NodeId, round: int) -> list[Effect]:
        """Count a refused update, and report it once per kind and member: updates are forwarded, and so repeat."""
        life = getattr(refusal.news, "incarnation", "")
        key = f"{refusal.reason} {refusal.news.node} {life}"
        first = key not in self.refusals and len(self.refusals) < REFUSALS_REPORTED
        if first or key in self.refusals:
            self.refusals[key] = self.refusals.get(key, 0) + 1
        kind, about = type(refusal.news).__name__.lower(), refusal.news.node
        text = f"node {self._node}: {kind} about node {about} from node {sender}: {refusal.reason}"
        return [Refused(sender, refusal.reason, text, round)] if first else []


class PartitionWatch:
    """The lost members and times, and those reported as on the other side.

    Several must be lost within a window, as one may have crashed; the report follows two periods after the last, so
    that one partition is one event.
    """

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._lost: dict[NodeId, int] = {}
        self._apart: set[NodeId] = set()
        self._back: set[NodeId] = set()

    def lost(self, node: NodeId, now_ns: int) -> Effect:
        self._lost[node] = now_ns
        return SetTimer(("member", "partition"), 2 * self._period_ns)

    def record_return(self, node: NodeId) -> list[Effect]:
        """Record a returned member; if it was reported, set a timer for all that return with it."""
        self._lost.pop(node, None)
        if node not in self._apart:
            return []
        self._back.add(node)
        return [SetTimer(("member", "merged"), 2 * self._period_ns)]

    def parted(self, now_ns: int, window_ns: int) -> list[NodeId]:
        """Return the members on the other side, ascending; empty without new ones."""
        within_ns = window_ns + 3 * self._period_ns
        recent = {node for node, at in self._lost.items() if now_ns - at <= within_ns}
        if len(recent) < 2 or recent <= self._apart:
            return []
        self._apart |= recent
        return sorted(recent)

    def merged(self) -> list[NodeId]:
        """Return the members that returned since the last call, ascending."""
        back, self._back = sorted(self._back), set()
        self._apart -= set(back)
        return back
