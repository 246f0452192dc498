"""Membership without a coordinator: pings, suspicion and refutation (SWIM), dissemination, detection of partitions.

    every period      ping the next member; no answer: ask helpers to ping it; no message from it: suspect it
    a suspicion       is sent to all, also to the suspect, which refutes it by an entry with a higher incarnation
    not refuted       each member without a message of it sends a verdict to all; enough of them: it is gone as of a
                      round (see verdicts); it may still refute them, if it was only cut off
    every ping        carries a digest of the roster; where two differ the peers compare, and send newer entries

Differences from the paper: pings carry no updates.  The author of an update sends it to all linked members, a first
receiver forwards it to a few, and the digests find lost ones.  The first silence triggers a ping of all members, so
that a partition is seen as a whole.  A member that slept (its own timers are late) drops its suspicions and pings
again first, as it was more likely away itself (as in Lifeguard).  A broken link is a silence without a ping.

The state of another member, and its changes (`Membership.state`; a dot: unchanged):

              | suspicion | silence   | answered  | time up   | verdicts  | new life  | leaves    | revoked
    here      | suspected | suspected | .         | .         | gone      | .         | left      | away
    suspected | .         | .         | here      | judged    | gone      | here      | left      | away
    judged    | suspected | .         | .         | .         | gone      | here      | left      | away
    gone      | .         | .         | .         | .         | .         | here      | left      | away
    left      | .         | .         | .         | .         | .         | here      | .         | away
    away      | .         | .         | .         | .         | .         | .         | .         | .

Suspicion: a member suspects it.  Silence: pinged by us and by helpers, it sends no message.  Answered, time up: the
suspect's time is over, with or without a message of it; in the second case we give one verdict, and those of others
may make it gone.  New life: its own entry with a higher incarnation, which refutes everything before.

`handle` returns effects for the driver and events for the gossip machine.  The state of members is in `known_members`,
our own entry in `self_entry`, pings and suspects in `silence_watch`; each uses only those before it.

Sources: Das, Gupta and Motivala, SWIM, DSN 2002.  Dadgar, Phillips and Currey, Lifeguard, DSN-W 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedgossip.core.machine import (
    Event,
    Fired,
    Meet,
    Moved,
    NodeId,
    Part,
    PeerGone,
    PeerJoined,
    Received,
    Rostered,
    Send,
    Started,
)
from fedgossip.core.messages import (
    Compare,
    ConfirmDead,
    Entry,
    IndirectAck,
    Join,
    MembershipUpdate,
    Message,
    News,
    Ping,
    PingReq,
    Pong,
    Revocation,
    Suspicion,
)
from fedgossip.protocols.gossip.refusals import far_ahead
from fedgossip.protocols.members.membership_updates import NewsRefusal, check_suspicion, merge, signed
from fedgossip.protocols.members.roster import LAST_ROUND, NOBODY, Roster, boundary_after
from fedgossip.protocols.members.self_entry import Outcome
from fedgossip.protocols.members.silence_watch import SilenceWatch


class Membership(SilenceWatch):
    """One member's view of all.  `me` is its first entry; its incarnation is above those of its earlier lives.

    `rounds`: of the run; a message with a higher round is refused.
    """

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Outcome]:
        """Handle one event; messages and timers of other machines are ignored."""
        slept = self._seen_ns >= 0 and now_ns - self._seen_ns > 3 * self.settings.period_ns
        woken = self._wake(now_ns) if slept else []
        self._seen_ns = now_ns
        match event:
            case Started():
                return [*self._meet(), *self._tick(now_ns)]
            case Received(sender, Join(entry)):
                known = self.roster.entries.get(entry.node)
                old = known and known.key == entry.key and known.incarnation >= entry.incarnation
                return woken if old else woken + self._take([entry], sender, now_ns)  # sent on every new connection
            case Received(sender, Ping(_, round) | Pong(_, round)) if round > self.rounds:
                return [*woken, far_ahead(sender, round, self.rounds)]
            case Received(sender, message) if sender in self.roster.entries and sender not in self.roster.revoked:
                self._detector.heard[sender] = now_ns
                return woken + self._received(sender, message, now_ns)
            case PeerJoined(node, incarnation):
                return woken + self._linked(node, incarnation, now_ns)
            case PeerGone(node):
                return woken + self._unlinked(node, now_ns)
            case Moved(address):
                return woken + self._moved(address)
            case Fired(("member", *rest)):
                return woken + self._fired(rest, now_ns)
            case _:
                return woken

    def _fired(self, key: Sequence[object], now_ns: int) -> list[Outcome]:
        match key:
            case ["tick"]:
                return self._tick(now_ns)
            case ["late", int(number)]:
                return [*self._detector.late(number)]
            case ["end", int(number)]:
                silent = self._detector.ended(number)
                return [] if silent is None else self._suspect(silent, now_ns)
            case ["verdict", int(node)]:
                return self._judge(node, now_ns)
            case ["partition"]:
                return self._name_partition(now_ns)
            case ["merged"]:
                back = self._partition.merged()
                return [self._report("merged", {"back": back})] if back else []
        return []

    def _received(self, sender: NodeId, message: Message, now_ns: int) -> list[Outcome]:
        match message:
            case Ping(number, round, digest):
                pong = Send(sender, Pong(number, max(self.round, -1), self._digest()))
                return [pong, *self._warn(sender), *self._noted(sender, round, digest, now_ns)]
            case Pong(number, round, digest):
                return [*self._detector.answered(number, sender), *self._noted(sender, round, digest, now_ns)]
            case PingReq(number, node):
                return [*self._detector.ask_for(sender, number, node)]
            case IndirectAck(number, node):
                self._detector.vouched(number, node, now_ns)
                return []
            case MembershipUpdate(news):
                return self._take(news, sender, now_ns)
            case Compare(known):
                return self._compare(sender, known, now_ns)
            case _:
                return []

    # --- links ----------------------------------------------------------------------------------------------------

    def _linked(self, node: NodeId, incarnation: int, now_ns: int) -> list[Outcome]:
        if node not in self.roster.entries or node in self.roster.revoked:
            return []
        self.linked.add(node)
        self.lives[node], self._came[node] = incarnation, now_ns
        self._detector.heard[node] = now_ns
        joined: list[Outcome] = [] if self.roster.gone(node) else [PeerJoined(node, incarnation)]
        ask: list[Outcome] = [self._detector.ping(node)] if self.round < 0 else []  # asks for the others' round
        return [*joined, self._spread.compare(node, self.roster, now_ns), *ask]

    def _unlinked(self, node: NodeId, now_ns: int) -> list[Outcome]:
        if node not in self.linked:
            return []
        self.linked.discard(node)
        return [PeerGone(node), *self._detector.ask(node, now_ns)]

    def _meet(self, new: Iterable[News] = (), *, changed: bool = True) -> list[Outcome]:
        """Return a `Meet` for each contact without a link at its present address."""
        shown = [news.node for news in new if isinstance(news, Entry)]
        if changed:
            shown = self.contacts = self._contacts()
        found: list[Outcome] = []
        for node in shown:
            entry = self.roster.entries[node]
            if node in self.contacts and self._met.get(node) != (entry.address, entry.key):
                self._met[node] = entry.address, entry.key
                found.append(Meet(node, entry.address, entry.key))
        return found

    def _judge(self, node: NodeId, now_ns: int) -> list[Outcome]:
        """End a suspect's time with a verdict, unless it has sent a message since; only contacts are judged."""
        if node not in self.suspects:
            return []
        suspicion, since_ns = self.suspects[node]
        if now_ns - since_ns < self._window_ns() * 3 // 4:  # a timer from before we slept
            return []
        del self.suspects[node]
        if self._detector.heard.get(node, -1) > since_ns:
            return [self._report("refuted", node)]
        if node not in self.contacts:
            return []
        until = boundary_after(max(self.round, self.network_round(), 0))
        verdict = signed(ConfirmDead(node, suspicion.incarnation, until, self.node), self._sign)
        return self._take([verdict], self.node, now_ns)

    # --- updates ------------------------------------------------------------------------------------------------------

    def _take(self, news: Iterable[News], sender: NodeId, now_ns: int) -> list[Outcome]:
        effects: list[Outcome] = []
        fresh: list[News] = []
        told: list[News] = []
        for item in news:
            if isinstance(item, Suspicion):
                effects += self._handle_suspicion(item, sender, fresh, now_ns)
            elif isinstance(item, Entry) and item.node == self.node and self.announced:
                effects += self._handle_own_entry(item, sender)
            else:
                told.append(item)
        before = self.roster
        merged = merge(before, told, self.trust)
        self.roster = merged.roster
        for refusal in merged.refused:
            effects += self._refuse(refusal, sender)
        for item in merged.new:
            effects += self._learned(item, before, now_ns)
        effects += self._gone_and_back(before, now_ns) if merged.new else []
        fresh += filter(self._passed_on, merged.new)
        effects += self._spread.pass_on(self.linked, sender, fresh)
        changed = self._changed(before, merged.new)
        rostered: list[Outcome] = [Rostered(self.schedule())] if changed else []
        return [*self._meet(merged.new, changed=changed), *effects, *rostered]

    def _passed_on(self, item: News) -> bool:
        """Return whether to forward an update at once: a verdict that does not count has time."""
        return not isinstance(item, ConfirmDead) or item in self.roster.standing(item.node)

    def _learned(self, item: News, before: Roster, now_ns: int) -> list[Outcome]:
        match item:
            case Entry():
                return self._entered(item, before)
            case Revocation(node):
                return self._revoked(node, item)
            case ConfirmDead():
                return self._pronounced(item, now_ns)
        return []

    def _entered(self, entry: Entry, before: Roster) -> list[Outcome]:
        """Handle the new entry of a member that joins, returns, moves or leaves."""
        node, known = entry.node, before.entries.get(entry.node)
        effects: list[Outcome] = []
        if node == self.node:  # of an earlier life with a clock ahead of ours
            self.me = replace(self.me, incarnation=max(self.me.incarnation, entry.incarnation + 1))
            self.returning = self.contact = True
            return []
        suspected = self.suspects.pop(node, None)
        if suspected and not before.gone(node):
            effects.append(self._report("refuted", node))
        if entry.until >= 0 and (known is None or known.until < 0):
            if entry.until < self.rounds:  # otherwise its run has ended
                effects.append(self._report("left", {"node": node, "until": entry.until}))
        elif entry.since >= 0 and (known is None or known.since != entry.since):
            effects.append(self._report("joins", {"node": node, "since": entry.since}))
        return effects

    def _pronounced(self, verdict: ConfirmDead, now_ns: int) -> list[Outcome]:
        """Handle another's verdict that a member is gone: ping that member ourselves, as on a suspicion."""
        node = verdict.node
        if node == self.node:
            if not self.announced and replace(self.roster, own=NOBODY).gone(node):  # of an earlier life
                self.returning = self.contact = True
            return self._refute()
        counts = verdict in self.roster.standing(node) and not self.roster.gone(node)
        if verdict.by == self.node or not counts or node in self.suspects or node not in self.others():
            return []
        return [] if self._judged(node) else [*self._suspected(verdict, now_ns), *self._detector.ask(node, now_ns)]

    def _gone_and_back(self, before: Roster, now_ns: int) -> list[Outcome]:
        """Report members that the updates made gone, or present again."""
        effects: list[Outcome] = []
        were, are = before.out(LAST_ROUND), self.roster.out(LAST_ROUND)
        for node in sorted(are - were - {self.node}):
            effects += self._gone(node, now_ns)
        for node in sorted(were - are - {self.node} - self.roster.revoked.keys()):
            refuted = self.roster.entries[node].incarnation > before.entries[node].incarnation
            effects += self._back_again(node, refuted=refuted)
        return effects

    def _gone(self, node: NodeId, now_ns: int) -> list[Outcome]:
        judges = [said.by for said in self.roster.standing(node)]
        report = self._report("gone", {"node": node, "until": self.roster.end(node), "judges": judges})
        return [report, PeerGone(node), self._partition.lost(node, now_ns)]

    def _back_again(self, node: NodeId, *, refuted: bool) -> list[Outcome]:
        effects: list[Outcome] = [self._report("refuted", node)] if refuted else []
        if node in self.linked:
            effects.append(PeerJoined(node, self.lives.get(node, 0)))
        return [*effects, *self._partition.found(node)]

    def _revoked(self, node: NodeId, revocation: Revocation) -> list[Outcome]:
        """Handle a revocation: send it to `node`, and nothing more."""
        if node == self.node:
            return [self._report("sent_away", {"node": node})]
        was_linked = node in self.linked
        self.linked.discard(node)
        self.suspects.pop(node, None)
        self._met.pop(node, None)
        gone: list[Outcome] = [PeerGone(node)] if was_linked else []
        return [self._report("revoked", {"node": node}), *self._spread.send([node], [revocation]), Part(node), *gone]

    def _handle_suspicion(self, suspicion: Suspicion, sender: NodeId, fresh: list[News], now_ns: int) -> list[Outcome]:
        node, known = suspicion.node, self.roster.entries.get(suspicion.node)
        if known and suspicion.incarnation < known.incarnation:
            return []
        if reason := check_suspicion(self.roster, suspicion, self.trust):
            return self._refuse(NewsRefusal(reason, suspicion), sender)
        if not self._listens(suspicion, now_ns):
            return []
        if node == self.node:
            self.suspected_at = max(self.suspected_at, suspicion.incarnation)
            return self._refute()
        if node in self.suspects or node not in self.others():
            return []
        fresh.append(suspicion)
        return [*self._suspected(suspicion, now_ns), *self._detector.ask(node, now_ns)]

    # --- comparing ------------------------------------------------------------------------------------------------

    def _noted(self, sender: NodeId, round: int, digest: str, now_ns: int) -> list[Outcome]:
        self.reached[sender] = round
        return [] if digest == self._digest() else [*self._spread.differs(sender, self.roster, now_ns)]

    def _compare(self, sender: NodeId, known: Sequence[tuple[NodeId, int, int]], now_ns: int) -> list[Outcome]:
        effects: list[Outcome] = []
        life, said = next(((life, said) for node, life, said in known if node == self.node), (0, 0))
        if not self.contact:
            if (life not in (0, self.me.incarnation) or said) and self._claimed_ns < 0:
                self._claimed_ns = now_ns  # an earlier life of ours: its proof follows
            elif self._claimed_ns < 0:
                effects += self._begin_contact()
        return [*effects, *self._spread.answer(sender, self.roster, known, now_ns)]

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _name_partition(self, now_ns: int) -> list[Outcome]:
        lost = self._partition.parted(now_ns, self._window_ns())
        here = sorted([self.node, *self.others()])
        return [self._report("partition", {"unreachable": lost, "here": here})] if lost else []
