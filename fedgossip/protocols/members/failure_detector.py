"""Who answers: every member is pinged in turn; a silent one is pinged by others too, before it is suspected (SWIM).

    asked --nothing in answer_ns--> helpers ping it too --nothing to the end of a period--> silent
          --any word of it, or a helper's that it is there--> answered

A member to which there is no link is asked through helpers at once.

Sources: as `membership`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedgossip.core.machine import Effect, NodeId, Send, SetTimer
from fedgossip.core.messages import IndirectAck, Ping, PingReq

ASKED_MAX = 256
"""Maximum number of pings for others that are open here."""

BLAMES_KEPT = 4096
"""Suspicions whose time is remembered; each counts once in the time that a suspect has."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Times in nanoseconds.  The defaults are memberlist's for a local network."""

    period_ns: int = 1_000_000_000
    """Between two pings; in a network of n every member is pinged once in a period on average."""
    answer_ns: int = 400_000_000
    """How long an answer may take before helpers are asked; above the slowest link's round trip, below the period."""
    helpers: int = 3
    """Members that are asked to ping a silent one."""
    suspicion_ns: int = 4_000_000_000
    """How long a suspect has to refute, times log10(n) above ten members; longer: fewer errors, later verdicts."""
    relays: int = 3
    """To how many links news that is new here is passed on."""
    links: int = 64
    """Up to so many members everyone has links to all; above, to its partners and O(log n) others."""

    def suspicion_of(self, n: int) -> int:
        """How long a suspect among `n` members has to refute."""
        return int(self.suspicion_ns * max(1.0, float(np.log10(max(1, n)))))


class Detectable(Protocol):
    """The members, as far as the detector must know them."""

    linked: set[NodeId]

    def word(self) -> tuple[int, str]:
        """Our round and the digest of our roster: every ping carries them."""
        ...

    def watched(self) -> set[NodeId]:
        """Whom to ask."""
        ...

    def helpers(self, silent: NodeId) -> Sequence[NodeId]:
        """Who could ask it in our place, ascending."""
        ...


@dataclass(slots=True)
class _Asking:
    """A ping that waits for its answer."""

    node: NodeId
    began_ns: int


class FailureDetector:
    """Holds at most one open question for each member, and each ends: answered, silent, or forgotten.

    `heard`: when each was last heard of, which only grows.
    """

    def __init__(self, members: Detectable, settings: MemberSettings, rng: np.random.Generator) -> None:
        self._members, self._settings, self._rng = members, settings, rng
        self.heard: dict[NodeId, int] = {}
        self._number = 0
        self._asking: dict[int, _Asking] = {}
        self._asked: dict[int, tuple[NodeId, int]] = {}  # our ping: for whom, and its number there
        self._order: list[NodeId] = []

    def ping(self, node: NodeId) -> Send:
        self._number += 1
        return Send(node, Ping(self._number, *self._members.word()))

    def next(self, there: set[NodeId]) -> NodeId | None:
        """Return the next of these to ask: each comes once before any comes again, in an order drawn anew."""
        while self._order and self._order[-1] not in there:
            self._order.pop()
        if not self._order and there:
            self._order = self._rng.permutation(sorted(there)).tolist()
        return self._order.pop() if self._order else None

    def ask(self, node: NodeId, now_ns: int) -> list[Effect]:
        """Ping `node`; without an answer ask others, at once where we have no link to it."""
        if node not in self._members.watched() or any(asking.node == node for asking in self._asking.values()):
            return []
        ping = self.ping(node)
        self._asking[self._number] = _Asking(node, now_ns)
        if node not in self._members.linked:
            return self.late(self._number)
        return [ping, SetTimer(("member", "late", self._number), self._settings.answer_ns)]

    def late(self, number: int) -> list[Effect]:
        """A ping was not answered in time: ask others to try."""
        asking = self._asking.get(number)
        if asking is None or self._answered(asking):
            self._asking.pop(number, None)
            return []
        helpers = some(self._rng, self._members.helpers(asking.node), self._settings.helpers)
        probes: list[Effect] = [Send(helper, PingReq(number, asking.node)) for helper in helpers]
        return [*probes, SetTimer(("member", "end", number), self._settings.period_ns)]

    def ended(self, number: int) -> NodeId | None:
        """The time of a question is over: return who has been silent, None where it was answered."""
        asking = self._asking.pop(number, None)
        return None if asking is None or self._answered(asking) else asking.node

    def forget(self) -> None:
        """Ask anew: we were away ourselves."""
        self._asking.clear()

    def _answered(self, asking: _Asking) -> bool:
        return self.heard.get(asking.node, -1) >= asking.began_ns

    # --- for others -----------------------------------------------------------------------------------------------

    def ask_for(self, asker: NodeId, number: int, node: NodeId) -> list[Effect]:
        """Ping `node` for another, whose ping has this number there."""
        if node not in self._members.linked:
            return []
        if len(self._asked) >= ASKED_MAX:
            self._asked.clear()  # of pings that nobody will answer any more
        ping = self.ping(node)
        self._asked[self._number] = asker, number
        return [ping]

    def answered(self, number: int, sender: NodeId) -> list[Effect]:
        """`sender` has answered a ping of ours: tell whom it was for, where it was for another."""
        asker = self._asked.pop(number, None)
        return [Send(asker[0], IndirectAck(asker[1], sender))] if asker else []

    def vouched(self, number: int, node: NodeId, now_ns: int) -> None:
        """A helper has heard `node`, which we had asked it to ping."""
        if number in self._asking and self._asking[number].node == node:
            self.heard[node] = now_ns


class Blames:
    """Suspicions that count: each author's of each member once in a while; of at most BLAMES_KEPT, the newest."""

    def __init__(self) -> None:
        self._at: dict[tuple[NodeId, NodeId], int] = {}

    def counts(self, by: NodeId, node: NodeId, now_ns: int, window_ns: int) -> bool:
        """Whether `by` has not blamed `node` within the window; it has now."""
        blame = by, node
        if now_ns - self._at.get(blame, -window_ns) < window_ns:
            return False
        while len(self._at) >= BLAMES_KEPT:
            del self._at[next(iter(self._at))]
        self._at[blame] = now_ns
        return True


def some(rng: np.random.Generator, nodes: Sequence[NodeId], count: int) -> list[NodeId]:
    """Return `count` of these, drawn, or all where they are fewer; `nodes` ascend."""
    return rng.permutation(nodes).tolist()[:count] if nodes else []
