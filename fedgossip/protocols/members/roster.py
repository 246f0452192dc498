"""Who the members are: entries that each signed itself, verdicts on those that are gone, and who was sent away.

What is known of a member is the entry with its highest incarnation, and the verdicts that others gave on it.  A verdict
is on a life that is known: nobody has to refute what is said of a life that it has not begun, else it could be driven
to the last incarnation there is.  So the order in which news comes does not matter, nor how often, as long as a verdict
that came before its entry is said again (whoever has it has the entry too, and says both); and a member refutes what is
said of it by an entry with a higher incarnation (as in SWIM).  Which verdicts count is said in `verdicts`.

The organiser can send a member away: a revocation outlives all that is said by or of that member.

Who takes part in a round is a function of the roster and the round, and so is the round's graph (`roster_schedule`).
Changes take effect at the boundaries of blocks of rounds, far enough ahead for the news to get around; peers that hear
of one too late call the round by another name (`view`) than the others, and such edges do not count.

Source: Das, Gupta and Motivala, SWIM: scalable weakly-consistent infection-style process group membership, DSN 2002.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Entry, News, Revocation
from fedgossip.protocols.members import verdicts
from fedgossip.protocols.members.verdicts import Said

BLOCK_ROUNDS = 4
"""Changes of the roster take effect in rounds that are multiples of this, so that several take effect together."""

LEAD_ROUNDS = 4
"""At least so many rounds after its announcement: in each the news goes one link further, and peers that wait for each
other are as many rounds apart as there are links between them."""

LAST_ROUND = 2**31 - 1

LAST_INCARNATION = 2**53
"""Far above every second of a start; with room below what the wire holds, for a refutation is one higher."""


def boundary_after(round: int) -> int:
    """Return the round in which a change that is announced in `round` takes effect."""
    return ((round + LEAD_ROUNDS) // BLOCK_ROUNDS + 1) * BLOCK_ROUNDS


NOBODY = -1

REVOKED = 1
"""What `known` says of one that was sent away, whatever else is known of it."""


@dataclass(frozen=True)
class Roster:
    """All members ever known, as `own` sees them.  Made new by `news.merge`, never changed."""

    entries: Mapping[NodeId, Entry] = field(default_factory=dict)
    verdicts: Mapping[NodeId, Said] = field(default_factory=dict)
    """On each, also those that were refuted."""
    revoked: Mapping[NodeId, Revocation] = field(default_factory=dict)
    own: NodeId = NOBODY

    @classmethod
    def founding(cls, endpoints: Mapping[NodeId, tuple[str, str, str]], own: NodeId = NOBODY) -> Roster:
        """Return the roster that a run begins with: {id: (address, key, verify)}, the same at every peer.

        Its entries have incarnation 0, are not signed and never sent: whoever has the same file has them.
        """
        return cls({i: Entry(i, 0, *where, since=0) for i, where in sorted(endpoints.items())}, own=own)

    # --- who is there ---------------------------------------------------------------------------------------------

    def gone(self, node: NodeId) -> bool:
        """Whether enough others say so, and `node` has not refuted it."""
        return node in self.out(LAST_ROUND)

    def end(self, node: NodeId) -> int:
        """Return the first round in which `node` does not take part any more."""
        ends = [self.entries[node].until] if self.entries[node].until >= 0 else []
        if node in self._standing:
            ends += [turn for turn in self._turns if node in self.out(turn)][:1]
        return min(ends, default=LAST_ROUND)

    def takes_part(self, node: NodeId, round: int) -> bool:
        """Whether `node` takes part in `round`."""
        return self._there(node, round) and node not in self.out(round)

    def participants(self, round: int) -> tuple[NodeId, ...]:
        """Return who takes part in `round`, ascending."""
        out = self.out(round)
        return tuple(node for node in sorted(self.entries) if node not in out and self._there(node, round))

    def present(self) -> tuple[NodeId, ...]:
        """Return those that are neither gone nor leaving nor sent away, ascending."""
        gone = self.out(LAST_ROUND) | self.revoked.keys()
        return tuple(i for i in sorted(self.entries) if self.entries[i].until < 0 and i not in gone)

    def changes(self) -> tuple[int, ...]:
        """Return the rounds in which somebody comes or goes, ascending."""
        return tuple(sorted((self._bounds | set(self._turns)) - {-1, 0, LAST_ROUND}))

    def _there(self, node: NodeId, round: int) -> bool:
        entry = self.entries.get(node)
        if entry is None or node in self.revoked:
            return False
        return 0 <= entry.since <= round and (entry.until < 0 or round < entry.until)

    # --- what others say of them ----------------------------------------------------------------------------------

    def out(self, round: int) -> frozenset[NodeId]:
        """Return who takes no part in `round` because enough others say that it is gone."""
        if not self._standing:
            return frozenset()
        turn = max((turn for turn in self._turns if turn <= round), default=-1)
        if turn not in self._outs:
            self._outs[turn] = self._out(turn)
        return self._outs[turn]

    def _out(self, round: int) -> frozenset[NodeId]:
        left = {node for node, entry in self.entries.items() if 0 <= entry.until <= round}
        said = {
            node: tuple(one for one in judges if one.until <= round and one.by not in left)
            for node, judges in self._standing.items()
        }
        there = {node for node in self.entries if self._there(node, round)}
        if self.own in self.entries and self.own not in left:  # who is about to come knows that it will be asked too
            there.add(self.own)
        return verdicts.out(said, self._mute, frozenset(there), self.own)

    def voice(self, judge: NodeId, round: int) -> bool:
        """Whether what `judge` says of others counts in or about `round`."""
        return judge not in self.revoked and not verdicts.silent(self._refuted.get(judge, ()), round)

    def standing(self, node: NodeId) -> Said:
        """Return the verdicts on the present life of `node` that count."""
        return self._standing.get(node, ())

    @cached_property
    def _living(self) -> dict[NodeId, Said]:
        lives = {node: self.entries[node].incarnation for node in self.verdicts}
        living = {node: tuple(v for v in said if v.incarnation == lives[node]) for node, said in self.verdicts.items()}
        return {node: said for node, said in living.items() if said}

    @cached_property
    def _standing(self) -> dict[NodeId, Said]:
        counted = {node: tuple(v for v in said if self.voice(v.by, v.until)) for node, said in self._living.items()}
        return {node: said for node, said in counted.items() if said}

    @cached_property
    def _mute(self) -> dict[NodeId, frozenset[NodeId]]:
        living = self._living.items()
        return {node: frozenset(v.by for v in said if not self.voice(v.by, v.until)) for node, said in living}

    @cached_property
    def _refuted(self) -> dict[NodeId, tuple[int, ...]]:
        lives = {node: self.entries[node].incarnation for node in self.verdicts}
        return verdicts.refuted(self.verdicts, lives, sum(entry.since >= 0 for entry in self.entries.values()))

    @cached_property
    def _bounds(self) -> set[int]:
        return {bound for entry in self.entries.values() for bound in (entry.since, entry.until)}

    @cached_property
    def _turns(self) -> tuple[int, ...]:
        """The rounds in which it may change who is out, ascending."""
        named = {one.until for said in self._standing.values() for one in said}
        first = min(named, default=LAST_ROUND)
        return tuple(sorted(named | {bound for bound in self._bounds if bound > first}))

    @cached_property
    def _outs(self) -> dict[int, frozenset[NodeId]]:
        return {}

    def lost(self) -> tuple[tuple[int, frozenset[NodeId]], ...]:
        """Return who is out, from each round on in which that may change."""
        return tuple((turn, self.out(turn)) for turn in self._turns) if self._standing else ()

    # --- telling others -------------------------------------------------------------------------------------------

    def known(self) -> tuple[tuple[NodeId, int, int], ...]:
        """Return (node, incarnation, hash of the verdicts on it) of all, ascending: what `Compare` tells.

        The hash is 0 where there are none; of one that was sent away it is REVOKED, and the incarnation 0.
        """
        return self._known

    @cached_property
    def _known(self) -> tuple[tuple[NodeId, int, int], ...]:
        there = {i: (i, entry.incarnation, _hashed(self.verdicts.get(i, ()))) for i, entry in self.entries.items()}
        there |= {i: (i, 0, REVOKED) for i in self.revoked}
        return tuple(there[i] for i in sorted(there))

    def digest(self) -> str:
        """Return a short hash of all that is known; equal rosters have equal ones."""
        return f"{seeds.integer(0, 'roster', *(number for known in self.known() for number in known)):016x}"

    def newer_than(self, known: Iterable[tuple[NodeId, int, int]]) -> list[News]:
        """Return the news for one who knows as much as `known`."""
        theirs = {node: (incarnation, said) for node, incarnation, said in known}
        news: list[News] = []
        for node, incarnation, said in self.known():
            have, heard = theirs.get(node, (-1, 0))
            if said == heard == REVOKED or (heard == REVOKED and said != REVOKED):
                continue
            if said == REVOKED:
                news.append(self.revoked[node])
                continue
            if incarnation > max(have, 0):
                news.append(self.entries[node])
            if said != heard:
                news += self.verdicts.get(node, ())
        return news

    def lacks(self, known: Iterable[tuple[NodeId, int, int]]) -> bool:
        """Whether one who knows `known` may have something to tell us."""
        ours = {node: (incarnation, said) for node, incarnation, said in self.known()}
        here = ((life, said, *ours.get(node, (0, 0))) for node, life, said in known)
        return any(heard != REVOKED and (life > own or said not in (0, heard)) for life, said, own, heard in here)


def _hashed(said: Said) -> int:
    """Return a hash of verdicts, from 2 to 2^53 + 1, or 0 where there are none."""
    numbers = (number for one in said for number in (one.incarnation, one.by, one.until))
    return 2 + seeds.integer(0, "verdicts", *numbers) % 2**53 if said else 0
