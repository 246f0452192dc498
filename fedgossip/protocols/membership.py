"""Who is there: pings, suspicion and its refutation (SWIM), news of members, partitions named.  No special peer.

    every period      ping the next member; no answer: ask helpers to ping it; nothing from it: suspect it
    a suspicion       is told to all, the suspect too, which refutes it by an entry with a higher incarnation
    not refuted       everyone who has not heard it gives a verdict, told to all; enough of them: it is gone as of a
                      round (see verdicts); it may still refute them, where it was only cut off
    every ping        carries a digest of the roster; where two differ the peers compare, and send what is newer

Where we differ from the paper: news is not carried by pings.  Who has news tells everyone it has a link to, who hears
it first tells a few, and the digests find what was lost.  The first silence makes us ping everybody at once, so that a
partition is seen as a whole.  Who slept (its own timers come late) forgets what it suspected and asks again first, for
it is more likely itself that was away (as in Lifeguard).  A link that breaks is a silence that needs no ping.

What comes back from `handle` is to be done (effects), or to be told to the gossip machine beside (events).

Sources: Das, Gupta and Motivala, SWIM, DSN 2002.  Dadgar, Phillips and Currey, Lifeguard, DSN-W 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgossip import seeds
from fedgossip.machine import (
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
    Refused,
    Report,
    Rostered,
    Send,
    SetTimer,
    Started,
)
from fedgossip.messages import (
    NEWS_MAX,
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
from fedgossip.protocols.failures import sent_away, superseded
from fedgossip.protocols.news import NewsRefusal, Sign, Trust, check_suspicion, merge, signed
from fedgossip.protocols.refusals import far_ahead
from fedgossip.protocols.roster import LAST_ROUND, NOBODY, Roster, boundary_after
from fedgossip.protocols.roster_schedule import Make, Places, RosterSchedule

Outcome = Effect | Event
"""An effect for the driver, or an event for the gossip machine."""

PAGES = 4
"""Tidings sent in answer to one comparison; what is left comes with the next."""

ASKED_MAX = 256
"""Probes of others that are open here."""

BLAMES_KEPT = 4096
"""Suspicions whose time is remembered; each counts once in the time that a suspect has."""

REFUSALS_TOLD = 100
"""Kinds of refused news that are reported; all are counted."""


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


@dataclass(slots=True)
class _Asking:
    """A ping that waits for its answer."""

    node: NodeId
    began_ns: int


class Membership:
    """One member's view of all.  `me` is its first entry; its incarnation is above those of its earlier lives.

    `rounds`: of the run; who says that more are behind it is not heard.
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
        """How many rounds are behind us; -1: we do not take part yet.  Kept by the owner."""
        self.contact = False
        """Whether somebody told us what it knows of us."""
        self.returning = False
        """Whether we were here before, in an earlier life."""
        self.announced = False
        """Whether we have told anybody of this life; before, what is said of us is said of an earlier one."""
        self.superseded = False
        """Whether another process runs with our id and key, and began later."""
        self.refusals: dict[str, int] = {}
        self.contacts: list[NodeId] = []
        self.linked: set[NodeId] = set()
        self.reached: dict[NodeId, int] = {}
        """How many rounds each has behind it."""
        self.suspects: dict[NodeId, tuple[Suspicion | ConfirmDead, int]] = {}  # what is said of them, and since when
        self.suspected_at = -1
        """The highest incarnation in which somebody suspected us."""
        self._sign, self._make = sign, make
        self._hashed: tuple[Roster, str] = roster, roster.digest()
        self._made: dict[tuple[NodeId, ...], Places] = {}
        self._partners: tuple[NodeId, ...] = ()
        self._rng = seeds.stream(seed, "membership", me.node)
        self._watching: tuple[Roster | None, set[NodeId]] = None, set()
        self._number = self._ticks = self._told_refusals = 0
        self._seen_ns = self._swept_ns = -1
        self.lives: dict[NodeId, int] = {}
        self._heard: dict[NodeId, int] = {}
        self._came: dict[NodeId, int] = {}  # when the link to each was last made
        self._asking: dict[int, _Asking] = {}
        self._asked: dict[int, tuple[NodeId, int]] = {}  # our ping: for whom, and its number there
        self._compared: dict[NodeId, int] = {}
        self._order: list[NodeId] = []
        self._met: dict[NodeId, tuple[str, str]] = {}
        self._blames: dict[tuple[NodeId, NodeId], int] = {}  # when each was last suspected by whom
        self._claimed_ns = -1  # when somebody first said that we had been here before
        self._lost: dict[NodeId, int] = {}  # since when each is gone
        self._apart: set[NodeId] = set()  # named as on the other side of a partition
        self._back: set[NodeId] = set()
        if me.node not in roster.entries:
            self._announce(me)  # nobody has a link yet: it goes out with the first word on each

    # --- what others may ask --------------------------------------------------------------------------------------

    def _digest(self) -> str:
        if self._hashed[0] is not self.roster:
            self._hashed = self.roster, self.roster.digest()
        return self._hashed[1]

    def schedule(self) -> RosterSchedule:
        """The graphs of all rounds, as the roster is now."""
        schedule = RosterSchedule(self.roster, self._make, self._made)
        schedule.earlier[self.node] = self._partners
        self._partners = schedule.partners(self.node)
        return schedule

    def others(self) -> list[NodeId]:
        """Everybody who is neither gone nor leaving, but us; ascending."""
        return [node for node in self.roster.present() if node != self.node]

    def claims(self) -> list[int]:
        """How many rounds the others say that they have behind them, the most first."""
        return sorted((self.reached[node] for node in self.others() if node in self.reached), reverse=True)

    def network_round(self) -> int:
        """How many rounds the network has behind it by the second highest claim, for one may lie; -1: none begun."""
        claims = self.claims()
        return claims[min(1, len(claims) - 1)] if claims else -1

    def informed(self, now_ns: int) -> bool:
        """Whether we know where the network is, and whether those are there that others say are gone.

        Two must say where it is, where another has just come; a member that we never heard has the time of a suspect.
        """
        just_now = now_ns - 2 * self.settings.period_ns
        to_say = [node for node in self.others() if node not in self.reached and self._came.get(node, 0) > just_now]
        return (len(self.claims()) >= 2 or not to_say) and self.suspects.keys() <= self._heard.keys()

    @property
    def sent_away(self) -> bool:
        """Whether the organiser has revoked our own membership."""
        return self.node in self.roster.revoked

    @property
    def ended(self) -> Failure | None:
        """Why we can take part no more; None where we can."""
        if self.superseded:
            return superseded(self.node)
        return sent_away(self.node) if self.sent_away else None

    def introduction(self) -> Join | None:
        """The first word to members that do not know us; None where everybody does."""
        return None if self.node in self.trust.founders else Join(self.me)

    def announce(self, since: int, until: int = -1) -> list[Outcome]:
        """Say to all that we take part from round `since` on, and before `until`."""
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
        return [*self._tell(self.linked, [said]), *rostered]

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Outcome]:
        """Take one event; the messages and timers of others are none of ours."""
        slept = self._seen_ns >= 0 and now_ns - self._seen_ns > 3 * self.settings.period_ns
        woken = self._wake(now_ns) if slept else []
        self._seen_ns = now_ns
        match event:
            case Started():
                return [*self._meet(), *self._tick(now_ns)]
            case Received(sender, Join(entry)):
                known = self.roster.entries.get(entry.node)
                old = known and known.key == entry.key and known.incarnation >= entry.incarnation
                return woken if old else woken + self._take([entry], sender, now_ns)  # said on every new connection
            case Received(sender, Ping(_, round) | Pong(_, round)) if round > self.rounds:
                return [*woken, far_ahead(sender, round, self.rounds)]
            case Received(sender, message) if sender in self.roster.entries and sender not in self.roster.revoked:
                self._heard[sender] = now_ns
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
                return self._late(number)
            case ["end", int(number)]:
                return self._end(number, now_ns)
            case ["verdict", int(node)]:
                return self._judge(node, now_ns)
            case ["partition"]:
                return self._name_partition(now_ns)
            case ["merged"]:
                back, self._back = sorted(self._back), set()
                self._apart -= set(back)
                return [self._report("merged", {"back": back})] if back else []
        return []

    def _received(self, sender: NodeId, message: Message, now_ns: int) -> list[Outcome]:
        match message:
            case Ping(number, round, digest):
                pong = Send(sender, Pong(number, max(self.round, -1), self._digest()))
                return [pong, *self._warn(sender), *self._noted(sender, round, digest, now_ns)]
            case Pong(number, round, digest):
                asker = self._asked.pop(number, None)
                vouch: list[Outcome] = [Send(asker[0], IndirectAck(asker[1], sender))] if asker else []
                return vouch + self._noted(sender, round, digest, now_ns)
            case PingReq(number, node):
                return self._probe_for(sender, number, node)
            case IndirectAck(number, node) if number in self._asking and self._asking[number].node == node:
                self._heard[node] = now_ns
                return []
            case MembershipUpdate(news):
                return self._take(news, sender, now_ns)
            case Compare(known):
                return self._compare(sender, known, now_ns)
            case _:
                return []

    def _moved(self, address: str) -> list[Outcome]:
        """Say where we can be called now; again to all, for who was cut off with us has not heard it."""
        if address == self.me.address:
            return self._tell(self.linked, [self.me])
        moved = self._report("moved", {"node": self.node, "address": address})
        return [moved, *self._announce(replace(self.me, address=address))]

    # --- links ----------------------------------------------------------------------------------------------------

    def _linked(self, node: NodeId, incarnation: int, now_ns: int) -> list[Outcome]:
        if node not in self.roster.entries or node in self.roster.revoked:
            return []
        self.linked.add(node)
        self.lives[node], self._came[node] = incarnation, now_ns
        self._heard[node] = now_ns
        joined: list[Outcome] = [] if self.roster.gone(node) else [PeerJoined(node, incarnation)]
        self._compared[node] = now_ns
        ask: list[Outcome] = [self._ping(node)] if self.round < 0 else []  # where are the others?
        return [*joined, Send(node, Compare(self.roster.known())), *ask]

    def _unlinked(self, node: NodeId, now_ns: int) -> list[Outcome]:
        if node not in self.linked:
            return []
        self.linked.discard(node)
        return [PeerGone(node), *self._ask(node, now_ns)]

    def _meet(self, new: Iterable[News] = (), *, changed: bool = True) -> list[Outcome]:
        """Let in, and call, whom we are to have a link to and have not met at this address."""
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

    def _contacts(self) -> list[NodeId]:
        """Whom we have links to, whoever is gone included: it may come back.  Symmetric: they have links to us."""
        ids = sorted(self.roster.entries.keys() - self.roster.revoked.keys())
        if len(ids) <= self.settings.links or self.node not in ids:
            return [node for node in ids if node != self.node]
        own = ids.index(self.node)
        steps = [1 << k for k in range((len(ids) - 1).bit_length())]
        found = {ids[(own + sign * step) % len(ids)] for step in steps for sign in (1, -1)}
        return sorted((found | set(self.schedule().partners(self.node))) - {self.node})

    # --- pings ----------------------------------------------------------------------------------------------------

    def _tick(self, now_ns: int) -> list[Outcome]:
        self._ticks += 1
        effects: list[Outcome] = [SetTimer(("member", "tick"), self.settings.period_ns)]
        effects += [*self._contacted(now_ns), *self._refute()]
        there = {node for node in self._watched() if not self._not_begun(node)}
        while self._order and self._order[-1] not in there:
            self._order.pop()
        if not self._order and there:
            self._order = self._rng.permutation(sorted(there)).tolist()
        if self._order:
            effects += self._ask(self._order.pop(), now_ns)
        gone = [node for node in self.linked if self.roster.gone(node)]
        if gone and self._ticks % 2 == 0:  # it may only have been cut off
            effects.append(self._ping(gone[int(self._rng.integers(len(gone)))]))
        return effects

    def _watched(self) -> set[NodeId]:
        """Whom to ping: those we are to have a link to; where it is broken, through others."""
        if self._watching[0] is not self.roster:
            self._watching = self.roster, set(self.contacts) & set(self.others())
        return self._watching[1]

    def _not_begun(self, node: NodeId) -> bool:
        """Whether `node` has never been heard of, in a run that has not begun: people start peers minutes apart."""
        begun = self.round > 0 or self.network_round() > 0
        return self.roster.entries[node].incarnation == 0 and node not in self.linked and not begun

    def _ping(self, node: NodeId) -> Send:
        self._number += 1
        return Send(node, Ping(self._number, self.round, self._digest()))

    def _ask(self, node: NodeId, now_ns: int) -> list[Outcome]:
        """Ping `node`; without an answer ask others, at once where we have no link to it."""
        if node not in self._watched() or any(asking.node == node for asking in self._asking.values()):
            return []
        ping = self._ping(node)
        self._asking[self._number] = _Asking(node, now_ns)
        if node not in self.linked:
            return self._late(self._number)
        return [ping, SetTimer(("member", "late", self._number), self.settings.answer_ns)]

    def _late(self, number: int) -> list[Outcome]:
        asking = self._asking.get(number)
        if asking is None or self._answered(asking):
            self._asking.pop(number, None)
            return []
        able = [node for node in self.others() if node in self.linked and node not in (asking.node, *self.suspects)]
        helpers = self._some(able, self.settings.helpers)
        probes: list[Outcome] = [Send(helper, PingReq(number, asking.node)) for helper in helpers]
        return [*probes, SetTimer(("member", "end", number), self.settings.period_ns)]

    def _end(self, number: int, now_ns: int) -> list[Outcome]:
        asking = self._asking.pop(number, None)
        return [] if asking is None or self._answered(asking) else self._suspect(asking.node, now_ns)

    def _answered(self, asking: _Asking) -> bool:
        return self._heard.get(asking.node, -1) >= asking.began_ns

    def _probe_for(self, asker: NodeId, number: int, node: NodeId) -> list[Outcome]:
        if node not in self.linked:
            return []
        if len(self._asked) >= ASKED_MAX:
            self._asked.clear()  # of pings that nobody will answer any more
        ping = self._ping(node)
        self._asked[self._number] = asker, number
        return [ping]

    def _wake(self, now_ns: int) -> list[Outcome]:
        """We were away for longer than others wait: suspect nobody for that, and ask them all."""
        self._asking.clear()
        effects: list[Outcome] = [self._report("slept", (now_ns - self._seen_ns) / 1e9)]
        for node, (suspicion, _) in self.suspects.items():
            self.suspects[node] = suspicion, now_ns
            effects.append(self._verdict_timer(node))
        self._swept_ns = -1
        return effects + self._sweep(now_ns)

    def _sweep(self, now_ns: int) -> list[Outcome]:
        """Ping everybody we have a link to, once in the time that a suspect has."""
        if self._swept_ns >= 0 and now_ns - self._swept_ns < self._window_ns():
            return []
        self._swept_ns = now_ns
        return [effect for node in self.others() if node in self.linked for effect in self._ask(node, now_ns)]

    # --- suspicion ------------------------------------------------------------------------------------------------

    def _window_ns(self) -> int:
        return self.settings.suspicion_of(len(self.roster.present()))

    def _verdict_timer(self, node: NodeId) -> SetTimer:
        return SetTimer(("member", "verdict", node), self._window_ns())

    def _suspect(self, node: NodeId, now_ns: int) -> list[Outcome]:
        if node in self.suspects or node not in self.others() or self._judged(node):
            return []
        suspicion = signed(Suspicion(node, self.roster.entries[node].incarnation, self.node), self._sign)
        assert isinstance(suspicion, Suspicion)
        return [*self._suspected(suspicion, now_ns), *self._tell(self.linked, [suspicion]), *self._sweep(now_ns)]

    def _judged(self, node: NodeId) -> bool:
        """Whether we have given a verdict on the present life of `node`."""
        life = self.roster.entries[node].incarnation
        return any((said.by, said.incarnation) == (self.node, life) for said in self.roster.verdicts.get(node, ()))

    def _suspected(self, suspicion: Suspicion | ConfirmDead, now_ns: int) -> list[Outcome]:
        self.suspects[suspicion.node] = suspicion, now_ns
        report = self._report("suspected", {"node": suspicion.node, "by": suspicion.by})
        return [report, self._verdict_timer(suspicion.node)]

    def _judge(self, node: NodeId, now_ns: int) -> list[Outcome]:
        """The suspect had its time.  Who was heard since then is not gone, whoever said so; nor do we judge whom we do
        not ask."""
        if node not in self.suspects:
            return []
        suspicion, since_ns = self.suspects[node]
        if now_ns - since_ns < self._window_ns() * 3 // 4:  # a timer from before we slept
            return []
        del self.suspects[node]
        if self._heard.get(node, -1) > since_ns:
            return [self._report("refuted", node)]
        if node not in self.contacts:
            return []
        until = boundary_after(max(self.round, self.network_round(), 0))
        verdict = signed(ConfirmDead(node, suspicion.incarnation, until, self.node), self._sign)
        return self._take([verdict], self.node, now_ns)

    def _warn(self, node: NodeId) -> list[Outcome]:
        """Tell `node` what is said of it, so that it can refute it."""
        said: list[News] = [*self.roster.standing(node)]
        if node in self.suspects and self.suspects[node][0] not in said:
            said.append(self.suspects[node][0])
        return self._tell([node], said[:NEWS_MAX])

    def _refute(self) -> list[Outcome]:
        """Say with a higher incarnation that we are here; from a later round on where our end came too near."""
        if not self.announced or not self._blamed():
            return []
        since, round = self.me.since, max(self.round, self.network_round())
        if since >= 0 and replace(self.roster, own=NOBODY).end(self.node) <= round + 1:  # as others see it
            since = max(since, boundary_after(round))
        return self._announce(replace(self.me, since=since))

    def _blamed(self) -> bool:
        """Whether the latest that is known of us is not our own word; what is said of a far round has time."""
        near = boundary_after(boundary_after(max(self.round, self.network_round(), 0)))
        return self.suspected_at >= self.me.incarnation or any(
            said.until <= near for said in self.roster.standing(self.node)
        )

    # --- news -----------------------------------------------------------------------------------------------------

    def _take(self, news: Iterable[News], sender: NodeId, now_ns: int) -> list[Outcome]:
        effects: list[Outcome] = []
        fresh: list[News] = []
        told: list[News] = []
        for item in news:
            if isinstance(item, Suspicion):
                effects += self._hear_suspicion(item, sender, fresh, now_ns)
            elif isinstance(item, Entry) and item.node == self.node and self.announced:
                effects += self._hear_of_ourselves(item, sender)
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
        everyone = self.linked if sender == self.node else self._some(self.linked - {sender}, self.settings.relays)
        effects += self._tell(everyone, fresh)
        changed = self._changed(before, merged.new)
        rostered: list[Outcome] = [Rostered(self.schedule())] if changed else []
        return [*self._meet(merged.new, changed=changed), *effects, *rostered]

    def _passed_on(self, item: News) -> bool:
        """Whether others should hear it from us at once: a verdict that does not count has time."""
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
        """A member has come, come back, moved, or is leaving."""
        node, known = entry.node, before.entries.get(entry.node)
        effects: list[Outcome] = []
        if node == self.node:  # of an earlier life, whose clock may have been ahead of ours
            self.me = replace(self.me, incarnation=max(self.me.incarnation, entry.incarnation + 1))
            self.returning = self.contact = True
            return []
        suspected = self.suspects.pop(node, None)
        if suspected and not before.gone(node):
            effects.append(self._report("refuted", node))
        if entry.until >= 0 and (known is None or known.until < 0):
            effects.append(self._report("left", {"node": node, "until": entry.until}))
        elif entry.since >= 0 and (known is None or known.since != entry.since):
            effects.append(self._report("joins", {"node": node, "since": entry.since}))
        return effects

    def _pronounced(self, verdict: ConfirmDead, now_ns: int) -> list[Outcome]:
        """Somebody says that a member is gone: we ask it ourselves, as on a suspicion."""
        node = verdict.node
        if node == self.node:
            if not self.announced and replace(self.roster, own=NOBODY).gone(node):  # so it was said of an earlier life
                self.returning = self.contact = True
            return self._refute()
        counts = verdict in self.roster.standing(node) and not self.roster.gone(node)
        if verdict.by == self.node or not counts or node in self.suspects or node not in self.others():
            return []
        return [] if self._judged(node) else [*self._suspected(verdict, now_ns), *self._ask(node, now_ns)]

    def _gone_and_back(self, before: Roster, now_ns: int) -> list[Outcome]:
        """Say who is gone, or here again, by what was new."""
        effects: list[Outcome] = []
        were, are = before.out(LAST_ROUND), self.roster.out(LAST_ROUND)
        for node in sorted(are - were - {self.node}):
            effects += self._gone(node, now_ns)
        for node in sorted(were - are - {self.node} - self.roster.revoked.keys()):
            refuted = self.roster.entries[node].incarnation > before.entries[node].incarnation
            effects += self._back_again(node, refuted=refuted)
        return effects

    def _gone(self, node: NodeId, now_ns: int) -> list[Outcome]:
        self._lost[node] = now_ns
        judges = [said.by for said in self.roster.standing(node)]
        report = self._report("gone", {"node": node, "until": self.roster.end(node), "judges": judges})
        return [report, PeerGone(node), SetTimer(("member", "partition"), 2 * self.settings.period_ns)]

    def _back_again(self, node: NodeId, *, refuted: bool) -> list[Outcome]:
        self._lost.pop(node, None)
        effects: list[Outcome] = [self._report("refuted", node)] if refuted else []
        if node in self.linked:
            effects.append(PeerJoined(node, self.lives.get(node, 0)))
        if node in self._apart:
            self._back.add(node)
            effects.append(SetTimer(("member", "merged"), 2 * self.settings.period_ns))
        return effects

    def _revoked(self, node: NodeId, revocation: Revocation) -> list[Outcome]:
        """The organiser has sent `node` away: it hears so, and nothing else from us."""
        if node == self.node:
            return [self._report("sent_away", {"node": node})]
        was_linked = node in self.linked
        self.linked.discard(node)
        self.suspects.pop(node, None)
        self._met.pop(node, None)
        gone: list[Outcome] = [PeerGone(node)] if was_linked else []
        return [self._report("revoked", {"node": node}), *self._tell([node], [revocation]), Part(node), *gone]

    def _hear_suspicion(self, suspicion: Suspicion, sender: NodeId, fresh: list[News], now_ns: int) -> list[Outcome]:
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
        return [*self._suspected(suspicion, now_ns), *self._ask(node, now_ns)]

    def _listens(self, suspicion: Suspicion, now_ns: int) -> bool:
        """Whether its author has a voice, and has not suspected the same member just before."""
        if not self.roster.voice(suspicion.by, max(self.round, self.network_round(), 0)):
            return False
        blame = suspicion.by, suspicion.node
        if now_ns - self._blames.get(blame, -self._window_ns()) < self._window_ns():
            return False
        while len(self._blames) >= BLAMES_KEPT:
            del self._blames[next(iter(self._blames))]
        self._blames[blame] = now_ns
        return True

    def _hear_of_ourselves(self, entry: Entry, sender: NodeId) -> list[Outcome]:
        """An entry of ours: of this life, of an earlier one, or of another process that has our key."""
        if entry == self.me or entry.incarnation < self.me.incarnation:
            return []
        if merge(Roster({}, {}), [entry], replace(self.trust, founders={self.node: (self.me.key, self.me.verify)})).new:
            if self.me.since < 0:  # an earlier life, whose clock was ahead of ours
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

    def _refuse(self, refusal: NewsRefusal, sender: NodeId) -> list[Outcome]:
        """Count it, and tell it once for each kind and member: news is passed on, and so comes often."""
        life = getattr(refusal.news, "incarnation", "")
        key = f"{refusal.reason} {refusal.news.node} {life}"
        first = key not in self.refusals and len(self.refusals) < REFUSALS_TOLD
        if first or key in self.refusals:
            self.refusals[key] = self.refusals.get(key, 0) + 1
        kind, about = type(refusal.news).__name__.lower(), refusal.news.node
        text = f"node {self.node}: {kind} about node {about} from node {sender}: {refusal.reason}"
        return [Refused(sender, refusal.reason, text, max(self.round, 0))] if first else []

    def _tell(self, whom: Iterable[NodeId], news: Sequence[News]) -> list[Outcome]:
        pages = [tuple(news[start : start + NEWS_MAX]) for start in range(0, len(news), NEWS_MAX)]
        return [Send(node, MembershipUpdate(page)) for page in pages for node in sorted(whom)]

    def _some(self, nodes: Iterable[NodeId], count: int) -> list[NodeId]:
        ordered = sorted(nodes)
        return self._rng.permutation(ordered).tolist()[:count] if ordered else []

    # --- comparing ------------------------------------------------------------------------------------------------

    def _noted(self, sender: NodeId, round: int, digest: str, now_ns: int) -> list[Outcome]:
        self.reached[sender] = round
        recently = now_ns - self._compared.get(sender, -self.settings.period_ns) < self.settings.period_ns
        if digest == self._digest() or recently:
            return []
        self._compared[sender] = now_ns
        return [Send(sender, Compare(self.roster.known()))]

    def _compare(self, sender: NodeId, known: Sequence[tuple[NodeId, int, int]], now_ns: int) -> list[Outcome]:
        effects: list[Outcome] = []
        life, said = next(((life, said) for node, life, said in known if node == self.node), (0, 0))
        if not self.contact:
            if (life not in (0, self.me.incarnation) or said) and self._claimed_ns < 0:
                self._claimed_ns = now_ns  # that we were here before: who says so shows what we said then, or others
            elif self._claimed_ns < 0:
                effects += self._begin_contact()
        effects += self._tell([sender], self.roster.newer_than(known)[: PAGES * NEWS_MAX])
        if self.roster.lacks(known) and now_ns - self._compared.get(sender, -1) > self.settings.answer_ns:
            self._compared[sender] = now_ns
            effects.append(Send(sender, Compare(self.roster.known())))
        return effects

    def _begin_contact(self) -> list[Outcome]:
        self.contact = True
        return self._announce(self.me) if not self.returning and self.me.since >= 0 else []

    def _contacted(self, now_ns: int) -> list[Outcome]:
        """Whoever says that we were here before, and does not show it, is not waited for."""
        waited = self._claimed_ns >= 0 and now_ns - self._claimed_ns >= self.settings.answer_ns
        return self._begin_contact() if waited and not self.contact else []

    # --- what it means --------------------------------------------------------------------------------------------

    def _changed(self, before: Roster, new: Sequence[News]) -> bool:
        """Whether the graph of some round is another one now."""
        spans = any(_span(before, news.node) != _span(self.roster, news.node) for news in new)
        return spans or bool(new and before.lost() != self.roster.lost())

    def _name_partition(self, now_ns: int) -> list[Outcome]:
        window = self._window_ns() + 3 * self.settings.period_ns
        recent = {node for node, at in self._lost.items() if now_ns - at <= window}
        if len(recent) < 2 or recent <= self._apart:
            return []
        self._apart |= recent
        here = [self.node, *self.others()]
        return [self._report("partition", {"unreachable": sorted(recent), "here": sorted(here)})]

    def _report(self, name: str, value: object) -> Report:
        return Report(name, value, max(self.round, 0))


def _span(roster: Roster, node: NodeId) -> tuple[int, int] | None:
    """When `node` comes and goes by its own word and the organiser's."""
    entry = roster.entries.get(node)
    return (entry.since, entry.until) if entry and node not in roster.revoked else None
