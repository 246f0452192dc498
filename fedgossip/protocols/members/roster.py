"""The roster: signed entries of the members, verdicts on gone ones, and revocations.

A member's state is its entry with the highest incarnation, and the verdicts on it.  A verdict is on an announced
incarnation, else a member could be driven to the last incarnation.  The order and repetition of updates do not matter:
a peer sends a verdict together with its judge's entry.  A revocation overrides all updates by or about its member.

The participants of a round are a function of the roster and the round, and so is the round's graph (`RosterSchedule`).
Changes take effect at the boundaries of blocks of rounds, late enough for their dissemination; peers that receive one
too late have another `view` of the round's graph than the others, and such edges do not count.

Source: Das, Gupta and Motivala, SWIM, DSN 2002.

One verdict of each judge on each incarnation is stored; from these and the entries every peer computes the same:

    there      members that take part in the round
    enough     quorum(there) judges, or all that can judge if these are fewer
    can judge  members there, not excluded and not judged by this peer: it receives from them
    counts     a verdict on the current incarnation, by a judge with a voice that this peer has not judged
    excluded   members with enough verdicts that count, each from its round `until` on

`excluded` is the smallest such set.  One false verdict has no effect; half of a partitioned network, or the last of
three, is enough for itself.  This peer's verdicts matter only if it receives from fewer than a quorum; these members
are cut off with it, and judge the same.

A verdict on an earlier incarnation was refuted: if fewer than a quorum gave it, its judges have no voice for
SILENT_ROUNDS around their stated round.  An honest judge may lose its voice through a member that hides from it alone;
others then do not wait for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import BUCKETS, ConfirmDead, Entry, News, Revocation
from fedgossip.protocols.members.entries import Entries, Known, bucket_hash, bucket_of

BLOCK_ROUNDS = 4
"""Number of rounds between changes of the roster: they take effect in multiples of it, so that several coincide."""

LEAD_ROUNDS = 4
"""Minimum rounds between announcement and effect: updates travel one link per round, as peers wait for each other."""

LAST_ROUND = 2**31 - 1

LAST_INCARNATION = 2**53
"""Highest incarnation: far above every start in seconds; below the wire's limit, as a refutation is one higher."""


def boundary_after(round: int) -> int:
    """Return the round when a change announced in `round` takes effect."""
    return ((round + LEAD_ROUNDS) // BLOCK_ROUNDS + 1) * BLOCK_ROUNDS


NOBODY = -1

REVOKED = 1
"""The number in `summarise` of a revoked member, regardless of its entry."""

SILENT_ROUNDS = 64
"""Distance in rounds from a refuted verdict within which its judge's verdicts do not count."""

LIVES_KEPT = 2
"""Number of incarnations of each member with stored verdicts, the latest judged ones."""

JUDGES_KEPT = 64
"""Maximum number of stored verdicts on one incarnation; up to this number of members all are linked."""

Verdicts = tuple[ConfirmDead, ...]
"""All verdicts on one member, by (incarnation, judge)."""


def quorum(members: int) -> int:
    """Return the number of judges that must agree in a network of `members`; one less may lie without effect.

    At most 5: in a large network only the O(log n) linked members can judge.
    """
    return max(1, min(members - 1, 2 + members // 8, 5))


def with_verdict(before: Verdicts, verdict: ConfirmDead) -> Verdicts:
    """Return `before` with `verdict`, or `before` itself if it changes nothing; any order has the same result."""
    found = {(one.incarnation, one.by): one for one in before}
    key = verdict.incarnation, verdict.by
    if key in found and found[key].until <= verdict.until:  # of two of one judge the earlier end counts
        return before
    found[key] = verdict
    lives = sorted({life for life, _ in found})[-LIVES_KEPT:]
    kept: list[ConfirmDead] = []
    for life in lives:
        on_it = sorted((one for one in found.values() if one.incarnation == life), key=lambda one: (one.until, one.by))
        kept += sorted(on_it[:JUDGES_KEPT], key=lambda one: one.by)
    return tuple(kept) if verdict in kept else before


def refuted(
    verdicts: Mapping[NodeId, Verdicts], lives: Mapping[NodeId, int], members: int
) -> dict[NodeId, tuple[int, ...]]:
    """Return, by judge, the rounds of its refuted verdicts that fewer than a quorum gave."""
    found: dict[NodeId, list[int]] = {}
    for node, given in verdicts.items():
        earlier = [one for one in given if one.incarnation < lives[node]]
        for life in {one.incarnation for one in earlier}:
            judges = [one for one in earlier if one.incarnation == life]
            for one in judges if len(judges) < quorum(members) else ():
                found.setdefault(one.by, []).append(one.until)
    return {judge: tuple(sorted(rounds)) for judge, rounds in found.items()}


def silent(refuted_rounds: Iterable[int], round: int) -> bool:
    """Return whether a judge with these refuted rounds has no voice about `round`."""
    return any(abs(named - round) < SILENT_ROUNDS for named in refuted_rounds)


def excluded(
    standing: Mapping[NodeId, Verdicts],
    mute: Mapping[NodeId, frozenset[NodeId]],
    members: int,
    there: Callable[[NodeId], bool],
    own: NodeId,
) -> frozenset[NodeId]:
    """Return the excluded members.  `standing`: the valid verdicts; `own`: the viewing peer.

    `members`: the number of participants, of which `there` returns whether a node is one.  `mute`: by member, the
    judges whose verdicts do not count and who can give no other.
    """
    judged = {node for node, verdicts in standing.items() if any(one.by == own for one in verdicts)}
    judges = {node: {one.by for one in verdicts} - judged for node, verdicts in standing.items()}
    found: set[NodeId] = set()

    def enough(node: NodeId) -> int:
        unable = judged | found | {node} | mute.get(node, frozenset())
        return min(quorum(members + (not there(node))), members - sum(map(there, unable)))

    while True:
        more = {node for node in judges.keys() - found if len(judges[node]) >= max(1, enough(node))}
        if not more:
            return frozenset(found)
        found |= more


@dataclass(frozen=True)
class Roster:
    """All members ever known, as seen by `own`.  Immutable; `membership_updates.merge` makes new ones."""

    entries: Entries = field(default_factory=Entries)
    verdicts: Mapping[NodeId, Verdicts] = field(default_factory=dict)
    """The verdicts on each member, including refuted ones."""
    revoked: Mapping[NodeId, Revocation] = field(default_factory=dict)
    own: NodeId = NOBODY

    @classmethod
    def founding(cls, endpoints: Mapping[NodeId, tuple[str, str, str]], own: NodeId = NOBODY) -> Roster:
        """Return the first roster, {id: (address, key, verify)}: entries of incarnation 0, unsigned and never sent."""
        return cls(Entries(Entry(i, 0, *where, since=0) for i, where in endpoints.items()), own=own)

    # --- participants -------------------------------------------------------------------------------------------------

    def without_owner(self) -> Roster:
        """Return this roster as seen by no member: without the weight of this peer's verdicts."""
        return replace(self, own=NOBODY)

    def is_gone(self, node: NodeId) -> bool:
        """Return whether enough verdicts make `node` gone, without a refutation."""
        return node in self._gone

    def excluded(self) -> frozenset[NodeId]:
        """Return the members with enough verdicts, without a refutation."""
        return self._gone

    @cached_property
    def _gone(self) -> frozenset[NodeId]:
        return self.out(LAST_ROUND)

    def end(self, node: NodeId) -> int:
        """Return the first round without `node`."""
        ends = [self.entries[node].until] if self.entries[node].until >= 0 else []
        if node in self._standing:
            ends += [turn for turn in self._turns if node in self.out(turn)][:1]
        return min(ends, default=LAST_ROUND)

    def takes_part(self, node: NodeId, round: int) -> bool:
        return self._is_member(node, round) and node not in self.out(round)

    def participants(self, round: int) -> tuple[NodeId, ...]:
        """Return the participants of `round`, ascending."""
        absent = {*self.out(round), *self.revoked}
        for bucket in self.entries.buckets:  # almost always all of a bucket take part
            if not all(_covers(span, round) for span in bucket.spans):
                spans = ((one.node, (one.since, one.until)) for one in bucket.entries.values())
                absent.update(node for node, span in spans if not _covers(span, round))
        return without(self.entries.ids, absent)

    def present(self) -> tuple[NodeId, ...]:
        """Return the members that are neither gone nor leaving nor revoked, ascending."""
        return tuple(filter(self.is_present, sorted(self.entries)))

    def is_present(self, node: NodeId) -> bool:
        """Return whether `node` is neither gone nor leaving nor revoked, nor unknown."""
        entry = self.entries.get(node)
        return entry is not None and entry.until < 0 and node not in self.revoked and node not in self._gone

    def count_present(self) -> int:
        """Return the number of members that are neither gone nor leaving nor revoked."""
        away = {node for node in self.excluded() | self.revoked.keys() if node in self.entries}
        stay = sum(count for (_, until), count in self._spans.items() if until < 0)
        return stay - sum(self.entries[node].until < 0 for node in away)

    def changes(self) -> tuple[int, ...]:
        """Return the rounds when a member joins or leaves, ascending."""
        return tuple(sorted((self._bounds | set(self._turns)) - {-1, 0, LAST_ROUND}))

    def changes_graph(self, before: Roster, news: Sequence[News]) -> bool:
        """Return whether the graph of any round differs from that of `before`, into which `news` were merged."""
        spans = any(before._span(one.node) != self._span(one.node) for one in news)
        return spans or bool(news and before.lost() != self.lost())

    def _span(self, node: NodeId) -> tuple[int, int] | None:
        return self._span_of(node) if node in self.entries and node not in self.revoked else None

    def _span_of(self, node: NodeId) -> tuple[int, int]:
        return self.entries[node].since, self.entries[node].until

    def _is_member(self, node: NodeId, round: int) -> bool:
        span = self._span(node)
        return span is not None and _covers(span, round)

    # --- verdicts -----------------------------------------------------------------------------------------------------

    def out(self, round: int) -> frozenset[NodeId]:
        """Return the members excluded from `round` by enough verdicts."""
        if not self._standing:
            return frozenset()
        turn = max((turn for turn in self._turns if turn <= round), default=-1)
        if turn not in self._outs:
            self._outs[turn] = self._out(turn)
        return self._outs[turn]

    def _out(self, round: int) -> frozenset[NodeId]:
        def left(node: NodeId) -> bool:
            return node in self.entries and 0 <= self.entries[node].until <= round

        standing = {
            node: tuple(one for one in judges if one.until <= round and not left(one.by))
            for node, judges in self._standing.items()
        }
        # a joiner will be asked for its verdict too
        asked = self.own if self.own in self.entries and not left(self.own) else NOBODY
        members = sum(count for span, count in self._spans.items() if _covers(span, round))
        members -= sum(node in self.entries and _covers(self._span_of(node), round) for node in self.revoked)
        members += asked != NOBODY and not self._is_member(asked, round)
        return excluded(standing, self._mute, members, lambda i: i == asked or self._is_member(i, round), self.own)

    def voice(self, judge: NodeId, round: int) -> bool:
        """Return whether verdicts of `judge` count in or about `round`."""
        return judge not in self.revoked and not silent(self._refuted.get(judge, ()), round)

    def standing(self, node: NodeId) -> Verdicts:
        """Return the verdicts that count on the current incarnation of `node`."""
        return self._standing.get(node, ())

    def has_verdict(self, judge: NodeId, node: NodeId) -> bool:
        """Return whether `judge` has given a verdict on the current incarnation of `node`."""
        life = self.entries[node].incarnation
        return any((one.by, one.incarnation) == (judge, life) for one in self.verdicts.get(node, ()))

    @cached_property
    def _living(self) -> dict[NodeId, Verdicts]:
        lives = {node: self.entries[node].incarnation for node in self.verdicts}
        living = {
            node: tuple(v for v in given if v.incarnation == lives[node]) for node, given in self.verdicts.items()
        }
        return {node: given for node, given in living.items() if given}

    @cached_property
    def _standing(self) -> dict[NodeId, Verdicts]:
        counted = {node: tuple(v for v in given if self.voice(v.by, v.until)) for node, given in self._living.items()}
        return {node: given for node, given in counted.items() if given}

    @cached_property
    def _mute(self) -> dict[NodeId, frozenset[NodeId]]:
        living = self._living.items()
        return {node: frozenset(v.by for v in given if not self.voice(v.by, v.until)) for node, given in living}

    @cached_property
    def _refuted(self) -> dict[NodeId, tuple[int, ...]]:
        lives = {node: self.entries[node].incarnation for node in self.verdicts}
        return refuted(self.verdicts, lives, sum(count for (since, _), count in self._spans.items() if since >= 0))

    @property
    def _spans(self) -> Counter[tuple[int, int]]:
        return self.entries.spans

    @property
    def _bounds(self) -> set[int]:
        return {bound for span in self._spans for bound in span}

    @cached_property
    def _turns(self) -> tuple[int, ...]:
        named = {one.until for given in self._standing.values() for one in given}
        first = min(named, default=LAST_ROUND)
        return tuple(sorted(named | {bound for bound in self._bounds if bound > first}))

    @cached_property
    def _outs(self) -> dict[int, frozenset[NodeId]]:
        return {}

    def lost(self) -> tuple[tuple[int, frozenset[NodeId]], ...]:
        """Return (round, excluded members from that round on) for each round of a possible change."""
        return tuple((turn, self.out(turn)) for turn in self._turns) if self._standing else ()

    # --- comparison with others ---------------------------------------------------------------------------------------

    def summarise(self, buckets: Iterable[int] = ()) -> Known:
        """Return (node, incarnation, hash of the verdicts on it), ascending, of all or of the members in `buckets`.

        The hash is 0 without verdicts; of a revoked member it is REVOKED, and the incarnation 0.
        """
        return tuple(sorted(one for k in buckets or range(BUCKETS) for one in self._summarise_bucket(k)))

    def _summarise_bucket(self, bucket: int) -> Known:
        plain = self.entries.buckets[bucket].known
        if bucket not in self._judged_buckets:
            return plain
        found = {node: (node, life, _hashed(self.verdicts.get(node, ()))) for node, life, _ in plain}
        found |= {node: (node, 0, REVOKED) for node in self.revoked if bucket_of(node) == bucket}
        return tuple(found[node] for node in sorted(found))

    @cached_property
    def _judged_buckets(self) -> frozenset[int]:
        return frozenset(map(bucket_of, self.verdicts.keys() | self.revoked.keys()))

    @cached_property
    def hashes(self) -> tuple[int, ...]:
        """A hash of each bucket of members."""
        judged = self._judged_buckets
        return tuple(
            bucket_hash(self._summarise_bucket(k)) if k in judged else one.hash
            for k, one in enumerate(self.entries.buckets)
        )

    def unequal(self, hashes: Sequence[int]) -> list[int]:
        """Return the buckets, of which another roster with these `hashes` has other members or numbers."""
        return [k for k, (own, their) in enumerate(zip(self.hashes, hashes, strict=True)) if own != their]

    def digest(self) -> str:
        """Return a short hash of the roster; equal rosters have equal ones."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return f"{seeds.integer(0, 'roster', *self.hashes):016x}"

    def newer_than(self, known: Iterable[tuple[NodeId, int, int]], buckets: Sequence[int] = ()) -> list[News]:
        """Return the updates that a member with the numbers `known`, of all or of `buckets`, lacks."""
        theirs = {node: (incarnation, their_hash) for node, incarnation, their_hash in known}
        news: list[News] = []
        for node, incarnation, own_hash in self.summarise(buckets):
            have, their_hash = theirs.get(node, (-1, 0))
            if own_hash == their_hash == REVOKED or (their_hash == REVOKED and own_hash != REVOKED):
                continue
            if own_hash == REVOKED:
                news.append(self.revoked[node])
                continue
            if incarnation > max(have, 0):
                news.append(self.entries[node])
            if own_hash != their_hash:
                news += self.verdicts.get(node, ())
        return news

    def lacks(self, known: Iterable[tuple[NodeId, int, int]], buckets: Sequence[int] = ()) -> bool:
        """Return whether a member with the numbers `known`, of all or of `buckets`, may have updates that are missing
        here.
        """
        ours = {node: (incarnation, own_hash) for node, incarnation, own_hash in self.summarise(buckets)}
        here = ((life, their_hash, *ours.get(node, (0, 0))) for node, life, their_hash in known)
        return any(
            own_hash != REVOKED and (life > own or their_hash not in (0, own_hash))
            for life, their_hash, own, own_hash in here
        )


def _covers(span: tuple[int, int], round: int) -> bool:
    """Return whether a member with this first round and end takes part in `round`."""
    since, until = span
    return 0 <= since <= round and (until < 0 or round < until)


def _hashed(verdicts: Verdicts) -> int:
    """Return a hash of verdicts, from 2 to 2^53 + 1, or 0 without any."""
    numbers = (number for one in verdicts for number in (one.incarnation, one.by, one.until))
    return 2 + seeds.integer(0, "verdicts", *numbers) % 2**53 if verdicts else 0


class PlaceWeights(Protocol):
    def row(self, node: NodeId) -> dict[NodeId, float]: ...
    def targets(self, node: NodeId) -> tuple[NodeId, ...]: ...


class Places(Protocol):
    """A schedule over the indices 0 to m - 1."""

    @property
    def period(self) -> int: ...
    def mixing(self, round: int) -> PlaceWeights: ...
    def partners(self, node: NodeId) -> tuple[NodeId, ...]: ...


Make = Callable[[tuple[NodeId, ...]], Places]
"""Creates the graphs for these members, by their indices in the tuple."""


@dataclass(frozen=True)
class _Named:
    """Weights over indices, returned by id."""

    ids: tuple[NodeId, ...]
    weights: PlaceWeights

    def row(self, node: NodeId) -> dict[NodeId, float]:
        if (place := _place(self.ids, node)) < 0:  # not a participant: it keeps its model
            return {node: 1.0}
        return {self.ids[j]: weight for j, weight in self.weights.row(place).items()}

    def targets(self, node: NodeId) -> tuple[NodeId, ...]:
        place = _place(self.ids, node)
        return tuple(self.ids[j] for j in self.weights.targets(place)) if place >= 0 else ()


def without(ids: tuple[NodeId, ...], absent: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """Return the ascending `ids` without the `absent` ones; the same object if none of them is absent."""
    for node in absent:
        if (place := _place(ids, node)) >= 0:
            ids = ids[:place] + ids[place + 1 :]
    return ids


def _place(ids: Sequence[NodeId], node: NodeId) -> int:
    """Return the index of `node` in the ascending `ids`, or -1."""
    place = bisect_left(ids, node)
    return place if place < len(ids) and ids[place] == node else -1


class RosterSchedule:
    """The mixing of each round: a function of (roster, round), the same at every peer.

    `made` caches the graphs of each set of members, for the next schedule too; `earlier`: one node's partners under
    earlier rosters, whose accounts may be open.
    """

    def __init__(self, roster: Roster, make: Make, made: dict[tuple[NodeId, ...], Places] | None = None) -> None:
        self.roster, self._make = roster, make
        self.earlier: dict[NodeId, tuple[NodeId, ...]] = {}
        self._made = {} if made is None else made
        self._changes = roster.changes()
        self._ids: dict[int, tuple[NodeId, ...]] = {}  # by the round of the last change
        self._views: dict[int, str] = {}

    @property
    def period(self) -> int:
        """Number of rounds after which the mixings of the last participants repeat; 0: never."""
        ids = self.participants(LAST_ROUND - 1)
        return self._places(ids).period if ids else 1

    def _change(self, round: int) -> int:
        return max((change for change in self._changes if change <= round), default=0)

    def participants(self, round: int) -> tuple[NodeId, ...]:
        """Return the participants of `round`, ascending."""
        change = self._change(round)
        if change not in self._ids:
            self._ids[change] = self.roster.participants(change)
        return self._ids[change]

    def mixing(self, round: int) -> PlaceWeights:
        """Return the mixing of `round`, by ids."""
        ids = self.participants(round)
        return _Named(ids, self._places(ids).mixing(round))

    def view(self, round: int) -> str:
        """Return an identifier of the participants of `round`: equal for peers with the same graph."""
        change = self._change(round)
        if change not in self._views:
            self._views[change] = f"{seeds.integer(0, 'view', *self.participants(round)):016x}"
        return self._views[change]

    def partners(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return all nodes that `node` sends to or receives from in any round, or did, ascending."""
        found = set(self.earlier.get(node, ()))
        for change in (0, *self._changes):
            ids = self.participants(change)
            if (place := _place(ids, node)) >= 0:
                found.update(ids[j] for j in self._places(ids).partners(place))
        return tuple(sorted(found))

    def _places(self, ids: tuple[NodeId, ...]) -> Places:
        if ids not in self._made:
            while len(self._made) >= KEPT_GRAPHS:
                del self._made[next(iter(self._made))]
            self._made[ids] = self._make(ids)
        return self._made[ids]


def contacts_of(roster: Roster, node: NodeId, most: int, schedule: Callable[[], RosterSchedule]) -> list[NodeId]:
    """Return the members to link to, also gone ones, ascending.  Symmetric: they link to `node`.

    All, up to `most` members; above, those at distances of powers of two, and the partners in the `schedule`.
    """
    ids = without(roster.entries.ids, roster.revoked)
    own = _place(ids, node)
    if len(ids) <= most or own < 0:
        return [other for other in ids if other != node]
    steps = [1 << k for k in range((len(ids) - 1).bit_length())]
    found = {ids[(own + sign * step) % len(ids)] for step in steps for sign in (1, -1)}
    return sorted((found | set(schedule().partners(node))) - {node})


KEPT_GRAPHS = 16
