"""Membership without a coordinator: pings, suspicion and refutation (SWIM), dissemination, detection of partitions.

    every period      ping the next member; no answer: ask helpers to ping it; no message from it: suspect it
    a suspicion       is sent to all, also to the suspect, which refutes it by an entry with a higher incarnation
    not refuted       each member without a message from it sends a verdict to all; with enough of them it is gone as of
                      a round (see `roster`); it may still refute them, if it was only cut off
    every ping        contains a digest of the roster; if two differ, the peers compare (`entries`) and send newer ones

Differences from the paper: pings carry no updates but a digest.  The first silence triggers a ping of all members, so
that a partition is seen as a whole.  A member that slept (its timers are late) drops its suspicions and pings again
first (as in Lifeguard).  A broken link counts as silence without a ping.

The state of another member, and its changes (a dot: unchanged):

              | suspicion | silence   | answered  | time up   | verdicts  | new life  | leaves    | revoked
    here      | suspected | suspected | .         | .         | gone      | .         | left      | away
    suspected | .         | .         | here      | judged    | gone      | here      | left      | away
    judged    | suspected | .         | .         | .         | gone      | here      | left      | away
    gone      | .         | .         | .         | .         | .         | here      | left      | away
    left      | .         | .         | .         | .         | .         | here      | .         | away
    away      | .         | .         | .         | .         | .         | .         | .         | .

Silence: no message after pings by this member and helpers.  Time up: this member's verdict; others' verdicts may make
it gone.  New life: its entry with a higher incarnation, which refutes everything before.  A restarted member announces
nothing until its first contact has sent its earlier announcements.

Sources: Das, Gupta and Motivala, SWIM, DSN 2002.  Dadgar, Phillips and Currey, Lifeguard, DSN-W 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedgossip.base import seeds
from fedgossip.core.machine import (
    Effect,
    Event,
    Failure,
    Fired,
    Meet,
    Moved,
    NodeId,
    Part,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Rostered,
    Send,
    SetTimer,
    Started,
)
from fedgossip.core.messages import (
    Compare,
    CompareBuckets,
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
from fedgossip.protocols.gossip.failures import far_ahead, sent_away, superseded
from fedgossip.protocols.members.entries import bucket_of
from fedgossip.protocols.members.failure_detector import (
    Blames,
    Dissemination,
    FailureDetector,
    MemberSettings,
    PartitionWatch,
)
from fedgossip.protocols.members.membership_updates import NewsRefusal, Sign, Trust, check_suspicion, merge, signed
from fedgossip.protocols.members.roster import Make, Places, Roster, RosterSchedule, boundary_after, contacts_of

Outcome = Effect | Event
"""An effect for the driver, or an event for the gossip machine."""


class Membership:
    """One member's view of all.  `me`: its first entry, with an incarnation above the earlier ones.

    `rounds`: of the run; a higher round is refused.  `seed`: for the draws.
    """

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
        self.node, self.me, self.roster, self.trust = me.node, me, roster, trust
        self.settings, self.rounds = settings, rounds
        self.round = -1
        """Number of completed rounds; -1: this member takes no part so far.  Set by the owner."""
        self.contacts: list[NodeId] = []
        self.linked: set[NodeId] = set()
        self.lives: dict[NodeId, int] = {}
        self.reached: dict[NodeId, int] = {}
        """Number of completed rounds of each member."""
        self.suspects: dict[NodeId, tuple[Suspicion | ConfirmDead, int]] = {}  # with the time in nanoseconds
        self.contact = False
        """Whether a member has sent its numbers about this member."""
        self.returning = False
        """Whether this member had an earlier incarnation in this run."""
        self.announced = False
        """Whether this incarnation is announced; before, updates about this member are about an earlier one."""
        self.superseded = False
        """Whether another process runs with this id and key, and began later."""
        self.suspected_at = -1
        """The highest incarnation of this member that another one suspected."""
        self._sign, self._make = sign, make
        self._rng = seeds.stream(seed, "membership", me.node)
        self._came: dict[NodeId, int] = {}  # time of each last link
        self._met: dict[NodeId, tuple[str, str]] = {}  # (address, key) of each link
        self._made: dict[tuple[NodeId, ...], Places] = {}
        self._partners: tuple[NodeId, ...] = ()
        self._watching: tuple[Roster | None, set[NodeId]] = None, set()
        self._claimed_ns = -1  # time of the first report of an earlier life
        self._ticks = 0
        self._seen_ns = self._swept_ns = -1
        self._spread = Dissemination(me.node, settings, self._rng)
        if me.node not in roster.entries:
            self._announce(me)  # there are no links yet: it is the first message on each
        self._detector = FailureDetector(self, settings, self._rng)
        self._blames = Blames()
        self._partition = PartitionWatch(settings.period_ns)

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
                pong = Send(sender, Pong(number, max(self.round, -1), self.roster.digest()))
                return [
                    pong,
                    *self._spread.warn(sender, self.roster, self.suspects),
                    *self._noted(sender, round, digest, now_ns),
                ]
            case Pong(number, round, digest):
                return [*self._detector.answered(number, sender), *self._noted(sender, round, digest, now_ns)]
            case PingReq(number, node):
                return [*self._detector.ask_for(sender, number, node)]
            case IndirectAck(number, node):
                self._detector.vouched(number, node, now_ns)
                return []
            case MembershipUpdate(news):
                return [*self._take(news, sender, now_ns), *self._spread.count_page(sender, self.roster, news)]
            case Compare():
                return self._compare(sender, message, now_ns)
            case CompareBuckets(hashes):
                return self._compare_buckets(sender, hashes, now_ns)
            case _:
                return []

    # --- links ----------------------------------------------------------------------------------------------------

    def _linked(self, node: NodeId, incarnation: int, now_ns: int) -> list[Outcome]:
        if node not in self.roster.entries or node in self.roster.revoked:
            return []
        self.linked.add(node)
        self.lives[node], self._came[node] = incarnation, now_ns
        self._detector.heard[node] = now_ns
        joined: list[Outcome] = [] if self.roster.is_gone(node) else [PeerJoined(node, incarnation)]
        ask: list[Outcome] = [self._detector.ping(node)] if self.round < 0 else []  # asks for the others' round
        return [*joined, self._spread.compare(node, self.roster, now_ns), *ask]

    def _unlinked(self, node: NodeId, now_ns: int) -> list[Outcome]:
        if node not in self.linked:
            return []
        self.linked.discard(node)
        return [PeerGone(node), *self._detector.ask(node, now_ns)]

    def _meet(self, new: Iterable[News] = (), *, changed: bool = True) -> list[Outcome]:
        shown = [news.node for news in new if isinstance(news, Entry)]
        if changed:
            shown = self.contacts = contacts_of(self.roster, self.node, self.settings.links, self.schedule)
        found: list[Outcome] = []
        for node in shown:
            entry = self.roster.entries[node]
            if node in self.contacts and self._met.get(node) != (entry.address, entry.key):
                self._met[node] = entry.address, entry.key
                found.append(Meet(node, entry.address, entry.key))
        return found

    def _judge(self, node: NodeId, now_ns: int) -> list[Outcome]:
        """End a suspect's time, with a verdict if it has sent nothing; only contacts are judged."""
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
        accepted: list[News] = []
        for item in news:
            if isinstance(item, Suspicion):
                effects += self._handle_suspicion(item, sender, fresh, now_ns)
            elif isinstance(item, Entry) and item.node == self.node and self.announced:
                effects += self._handle_own_entry(item, sender)
            else:
                accepted.append(item)
        before = self.roster
        merged = merge(before, accepted, self.trust)
        self.roster = merged.roster
        for refusal in merged.refused:
            effects += self._refuse(refusal, sender)
        for item in merged.new:
            effects += self._learned(item, before, now_ns)
        effects += self._report_changes(before, now_ns) if merged.new else []
        standing = self.roster.standing  # an ineffective verdict is not forwarded at once
        fresh += [one for one in merged.new if not isinstance(one, ConfirmDead) or one in standing(one.node)]
        effects += self._spread.pass_on(self.linked, sender, fresh)
        changed = self.roster.changes_graph(before, merged.new)
        rostered: list[Outcome] = [Rostered(self.schedule())] if changed else []
        return [*self._meet(merged.new, changed=changed), *effects, *rostered]

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
        node, known = entry.node, before.entries.get(entry.node)
        effects: list[Outcome] = []
        if node == self.node:  # of an earlier life with a clock ahead of ours
            self.me = replace(self.me, incarnation=max(self.me.incarnation, entry.incarnation + 1))
            self.returning = self.contact = True
            return []
        suspected = self.suspects.pop(node, None)
        if suspected and not before.is_gone(node):
            effects.append(self._report("refuted", node))
        if entry.until >= 0 and (known is None or known.until < 0):
            if entry.until < self.rounds:  # otherwise its run has ended
                effects.append(self._report("left", {"node": node, "until": entry.until}))
        elif entry.since >= 0 and (known is None or known.since != entry.since):
            effects.append(self._report("joins", {"node": node, "since": entry.since}))
        return effects

    def _pronounced(self, verdict: ConfirmDead, now_ns: int) -> list[Outcome]:
        """Handle another member's verdict: ping the judged member, as on a suspicion."""
        node = verdict.node
        if node == self.node:
            if not self.announced and self.roster.without_owner().is_gone(node):  # of an earlier life
                self.returning = self.contact = True
            return self._refute()
        counts = verdict in self.roster.standing(node) and not self.roster.is_gone(node)
        if verdict.by == self.node or not counts or node in self.suspects or not self._other(node):
            return []
        return (
            []
            if self.roster.has_verdict(self.node, node)
            else [*self._suspected(verdict, now_ns), *self._detector.ask(node, now_ns)]
        )

    def _report_changes(self, before: Roster, now_ns: int) -> list[Outcome]:
        effects: list[Outcome] = []
        were, are = before.excluded(), self.roster.excluded()
        for node in sorted(are - were - {self.node}):
            effects += self._report_gone(node, now_ns)
        for node in sorted(were - are - {self.node} - self.roster.revoked.keys()):
            refuted = self.roster.entries[node].incarnation > before.entries[node].incarnation
            effects += self._report_return(node, refuted=refuted)
        return effects

    def _report_gone(self, node: NodeId, now_ns: int) -> list[Outcome]:
        judges = [verdict.by for verdict in self.roster.standing(node)]
        report = self._report("gone", {"node": node, "until": self.roster.end(node), "judges": judges})
        return [report, PeerGone(node), self._partition.lost(node, now_ns)]

    def _report_return(self, node: NodeId, *, refuted: bool) -> list[Outcome]:
        effects: list[Outcome] = [self._report("refuted", node)] if refuted else []
        if node in self.linked:
            effects.append(PeerJoined(node, self.lives.get(node, 0)))
        return [*effects, *self._partition.record_return(node)]

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
        if node in self.suspects or not self._other(node):
            return []
        fresh.append(suspicion)
        return [*self._suspected(suspicion, now_ns), *self._detector.ask(node, now_ns)]

    def _noted(self, sender: NodeId, round: int, digest: str, now_ns: int) -> list[Outcome]:
        self.reached[sender] = round
        return [] if digest == self.roster.digest() else [*self._spread.differs(sender, self.roster, now_ns)]

    def _compare(self, sender: NodeId, asked: Compare, now_ns: int) -> list[Outcome]:
        effects: list[Outcome] = []
        if not asked.buckets or bucket_of(self.node) in asked.buckets:
            about = ((life, verdicts) for node, life, verdicts in asked.known if node == self.node)
            life, verdicts = next(about, (0, 0))
            effects += self._contact(life, verdicts, now_ns)
        return [*effects, *self._spread.answer(sender, self.roster, asked, now_ns)]

    def _compare_buckets(self, sender: NodeId, hashes: Sequence[int], now_ns: int) -> list[Outcome]:
        equal = bucket_of(self.node) not in self.roster.unequal(hashes)  # also in its numbers of this member
        answer = self._spread.answer_hashes(sender, self.roster, hashes)
        return [*(self._contact(0, 0, now_ns) if equal else ()), *answer]

    def _contact(self, life: int, verdicts: int, now_ns: int) -> list[Outcome]:
        """Handle a member's first numbers about this one."""
        if self.contact or self._claimed_ns >= 0:
            return []
        if life in (0, self.me.incarnation) and not verdicts:
            return self._begin_contact()
        self._claimed_ns = now_ns  # an earlier life of this member: its proof follows
        return []

    def _name_partition(self, now_ns: int) -> list[Outcome]:
        lost = self._partition.parted(now_ns, self._window_ns())
        here = sorted({self.node, *self.roster.present()}) if lost else []
        return [self._report("partition", {"unreachable": lost, "here": here})] if lost else []

    # --- members ------------------------------------------------------------------------------------------------------

    def schedule(self) -> RosterSchedule:
        """Return the graphs of all rounds under the current roster."""
        schedule = RosterSchedule(self.roster, self._make, self._made)
        schedule.earlier[self.node] = self._partners
        self._partners = schedule.partners(self.node)
        return schedule

    def _other(self, node: NodeId) -> bool:
        return node != self.node and self.roster.is_present(node)

    def claims(self) -> dict[NodeId, int]:
        """Return the other members' reported numbers of completed rounds."""
        return {node: rounds for node, rounds in self.reached.items() if self._other(node)}

    def network_round(self) -> int:
        """Return the second highest reported number of rounds, as one report may be false; -1: none has begun."""
        return next(iter(sorted(self.claims().values())[-2:]), -1)

    def watched(self) -> set[NodeId]:
        """Return the members to ping: all contacts; those with a broken link through others."""
        if self._watching[0] is not self.roster:
            self._watching = self.roster, set(filter(self._other, self.contacts))
        return self._watching[1]

    def word(self) -> tuple[int, str]:
        """Return the content of every ping: this member's round, and its roster's digest."""
        return self.round, self.roster.digest()

    def helpers(self, silent: NodeId) -> list[NodeId]:
        """Return the members that can ping a silent one in this member's place, ascending."""
        away = {silent, self.node, *self.suspects}
        return sorted(node for node in self.linked - away if self.roster.is_present(node))

    def _not_begun(self, node: NodeId) -> bool:
        """Return whether `node` was never seen before the start: people start peers minutes apart."""
        seen = self.roster.entries[node].incarnation or node in self.linked
        return not (seen or self.round > 0 or self.network_round() > 0)

    def _window_ns(self) -> int:
        return self.settings.suspicion_of(self.roster.count_present())

    def _report(self, name: str, value: object) -> Report:
        return Report(name, value, max(self.round, 0))

    # --- pings and suspects -------------------------------------------------------------------------------------------

    def informed(self, now_ns: int) -> bool:
        """Return whether the network's round is known (at first by two), and all suspects are checked."""
        just_now = now_ns - 2 * self.settings.period_ns
        came = [node for node, at_ns in self._came.items() if at_ns > just_now]
        unreported = [node for node in came if node not in self.reached and self._other(node)]
        return (len(self.claims()) >= 2 or not unreported) and self.suspects.keys() <= self._detector.heard.keys()

    def _tick(self, now_ns: int) -> list[Outcome]:
        self._ticks += 1
        effects: list[Outcome] = [SetTimer(("member", "tick"), self.settings.period_ns)]
        effects += [*self._contacted(now_ns), *self._refute()]
        there = {node for node in self.watched() if not self._not_begun(node)}
        if (node := self._detector.next(there)) is not None:
            effects += self._detector.ask(node, now_ns)
        gone = [node for node in self.linked if self.roster.is_gone(node)]
        if gone and self._ticks % 2 == 0:  # it may only have been cut off
            effects.append(self._detector.ping(gone[int(self._rng.integers(len(gone)))]))
        return effects

    def _wake(self, now_ns: int) -> list[Outcome]:
        """After this member's long absence drop the suspicions that it caused, and ping all."""
        self._detector.forget()
        effects: list[Outcome] = [self._report("slept", (now_ns - self._seen_ns) / 1e9)]
        for node, (suspicion, _) in self.suspects.items():
            self.suspects[node] = suspicion, now_ns
            effects.append(self._verdict_timer(node))
        self._swept_ns = -1
        return effects + self._sweep(now_ns)

    def _sweep(self, now_ns: int) -> list[Outcome]:
        if self._swept_ns >= 0 and now_ns - self._swept_ns < self._window_ns():
            return []
        self._swept_ns = now_ns
        return [
            effect for node in filter(self._other, sorted(self.linked)) for effect in self._detector.ask(node, now_ns)
        ]

    def _suspect(self, node: NodeId, now_ns: int) -> list[Outcome]:
        if node in self.suspects or not self._other(node) or self.roster.has_verdict(self.node, node):
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
        if not self.roster.voice(suspicion.by, max(self.round, self.network_round(), 0)):
            return False
        return self._blames.counts(suspicion.by, suspicion.node, now_ns, self._window_ns())

    # --- our own entry ------------------------------------------------------------------------------------------------

    @property
    def sent_away(self) -> bool:
        """Whether the organiser has revoked this member."""
        return self.node in self.roster.revoked

    @property
    def ended(self) -> Failure | None:
        """The reason why this member can no longer take part; None while it can."""
        if self.superseded:
            return superseded(self.node)
        return sent_away(self.node) if self.sent_away else None

    def introduction(self) -> Join | None:
        """Return the first message to members without this member's entry; None for a founder."""
        return None if self.node in self.trust.founders else Join(self.me)

    def announce(self, since: int, until: int = -1) -> list[Outcome]:
        """Announce to all that this member takes part from round `since` on, and before `until`."""
        return self._announce(replace(self.me, since=since, until=until))

    def _announce(self, entry: Entry) -> list[Outcome]:
        known = self.roster.entries.get(self.node)
        least = (known.incarnation if known else 0) + 1
        announcement = signed(replace(entry, incarnation=max(entry.incarnation, least)), self._sign)
        assert isinstance(announcement, Entry)
        before = self.roster
        self.roster = replace(before, entries=before.entries.with_entry(announcement))
        self.me, self.announced = announcement, True
        rostered: list[Outcome] = (
            [Rostered(self.schedule())] if self.roster.changes_graph(before, [announcement]) else []
        )
        return [*self._spread.send(self.linked, [announcement]), *rostered]

    def _moved(self, address: str) -> list[Outcome]:
        """Announce a new address; repeat an old one to all that may have missed it."""
        if address == self.me.address:
            return [*self._spread.send(self.linked, [self.me])]
        moved = self._report("moved", {"node": self.node, "address": address})
        return [moved, *self._announce(replace(self.me, address=address))]

    def _refute(self) -> list[Outcome]:
        """Refute with a higher incarnation; from a later round on if the announced end is near."""
        if not self.announced or not self._blamed():
            return []
        since, round = self.me.since, max(self.round, self.network_round())
        if since >= 0 and self.roster.without_owner().end(self.node) <= round + 1:  # from the others' view
            since = max(since, boundary_after(round))
        return self._announce(replace(self.me, since=since))

    def _blamed(self) -> bool:
        """Return whether a suspicion or verdict on this member is newer than its entry and not for a distant round."""
        near = boundary_after(boundary_after(max(self.round, self.network_round(), 0)))
        return self.suspected_at >= self.me.incarnation or any(
            verdict.until <= near for verdict in self.roster.standing(self.node)
        )

    def _handle_own_entry(self, entry: Entry, sender: NodeId) -> list[Outcome]:
        """Handle an entry of this member: of this incarnation, an earlier one, or another process with its key."""
        if entry == self.me or entry.incarnation < self.me.incarnation:
            return []
        if merge(Roster(), [entry], replace(self.trust, founders={self.node: (self.me.key, self.me.verify)})).new:
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
        waited = self._claimed_ns >= 0 and now_ns - self._claimed_ns >= self.settings.answer_ns
        return self._begin_contact() if waited and not self.contact else []

    def _refuse(self, refusal: NewsRefusal, sender: NodeId) -> list[Outcome]:
        return [*self._spread.refuse(refusal, sender, max(self.round, 0))]
