"""Pings and suspects: members are pinged in turn, all of them at the first silence; a suspect has a time to refute.

Uses the failure detector; `membership` acts when a suspect's time is over.
"""

from __future__ import annotations

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId, SetTimer
from fedgossip.core.messages import NEWS_MAX, ConfirmDead, Entry, News, Suspicion
from fedgossip.protocols.members.failure_detector import Blames, FailureDetector, MemberSettings
from fedgossip.protocols.members.membership_updates import Sign, Trust, signed
from fedgossip.protocols.members.partition_watch import PartitionWatch
from fedgossip.protocols.members.roster import Roster
from fedgossip.protocols.members.roster_schedule import Make
from fedgossip.protocols.members.self_entry import Outcome, OwnEntry


class SilenceWatch(OwnEntry):
    """Pings, sweeps and suspects of one member; `seed`: of the run, for the draws."""

    def __init__(
        self,
        me: Entry,
        roster: Roster,
        trust: Trust,
        sign: Sign,
        make: Make,
        settings: MemberSettings,
        seed: int,
        rounds: int,
    ) -> None:
        self._rng = seeds.stream(seed, "membership", me.node)
        super().__init__(me, roster, trust, sign, make, settings, rounds, self._rng)
        self._ticks = 0
        self._seen_ns = self._swept_ns = -1
        self._detector = FailureDetector(self, settings, self._rng)
        self._blames = Blames()
        self._partition = PartitionWatch(settings.period_ns)

    def informed(self, now_ns: int) -> bool:
        """Return whether the network's round is known, and the fate of all suspects checked.

        While a member has just connected, two reports of the round are needed; a suspect that never sent a message
        gets its full time.
        """
        just_now = now_ns - 2 * self.settings.period_ns
        to_say = [node for node in self.others() if node not in self.reached and self._came.get(node, 0) > just_now]
        return (len(self.claims()) >= 2 or not to_say) and self.suspects.keys() <= self._detector.heard.keys()

    def _tick(self, now_ns: int) -> list[Outcome]:
        self._ticks += 1
        effects: list[Outcome] = [SetTimer(("member", "tick"), self.settings.period_ns)]
        effects += [*self._contacted(now_ns), *self._refute()]
        there = {node for node in self.watched() if not self._not_begun(node)}
        if (node := self._detector.next(there)) is not None:
            effects += self._detector.ask(node, now_ns)
        gone = [node for node in self.linked if self.roster.gone(node)]
        if gone and self._ticks % 2 == 0:  # it may only have been cut off
            effects.append(self._detector.ping(gone[int(self._rng.integers(len(gone)))]))
        return effects

    def _wake(self, now_ns: int) -> list[Outcome]:
        """Handle our own absence, longer than others wait: drop the suspicions it caused, and ping all."""
        self._detector.forget()
        effects: list[Outcome] = [self._report("slept", (now_ns - self._seen_ns) / 1e9)]
        for node, (suspicion, _) in self.suspects.items():
            self.suspects[node] = suspicion, now_ns
            effects.append(self._verdict_timer(node))
        self._swept_ns = -1
        return effects + self._sweep(now_ns)

    def _sweep(self, now_ns: int) -> list[Outcome]:
        """Ping all linked members, once in the time that a suspect has."""
        if self._swept_ns >= 0 and now_ns - self._swept_ns < self._window_ns():
            return []
        self._swept_ns = now_ns
        return [effect for node in self.others() if node in self.linked for effect in self._detector.ask(node, now_ns)]

    def _suspect(self, node: NodeId, now_ns: int) -> list[Outcome]:
        if node in self.suspects or node not in self.others() or self._judged(node):
            return []
        suspicion = signed(Suspicion(node, self.roster.entries[node].incarnation, self.node), self._sign)
        assert isinstance(suspicion, Suspicion)
        return [*self._suspected(suspicion, now_ns), *self._spread.send(self.linked, [suspicion]), *self._sweep(now_ns)]

    def _suspected(self, suspicion: Suspicion | ConfirmDead, now_ns: int) -> list[Outcome]:
        self.suspects[suspicion.node] = suspicion, now_ns
        report = self._report("suspected", {"node": suspicion.node, "by": suspicion.by})
        return [report, self._verdict_timer(suspicion.node)]

    def _verdict_timer(self, node: NodeId) -> SetTimer:
        return SetTimer(("member", "verdict", node), self._window_ns())

    def _listens(self, suspicion: Suspicion, now_ns: int) -> bool:
        """Return whether the author's suspicions count, and this is its first on the member within a window."""
        if not self.roster.voice(suspicion.by, max(self.round, self.network_round(), 0)):
            return False
        return self._blames.counts(suspicion.by, suspicion.node, now_ns, self._window_ns())

    def _warn(self, node: NodeId) -> list[Outcome]:
        """Send `node` the suspicion and verdicts on it, so that it can refute them."""
        said: list[News] = [*self.roster.standing(node)]
        if node in self.suspects and self.suspects[node][0] not in said:
            said.append(self.suspects[node][0])
        return [*self._spread.send([node], said[:NEWS_MAX])]
