"""Who the members are: entries that each signed itself, and verdicts on those that are gone.  Pure and immutable.

What is known of a member is the entry with its highest incarnation and, if there is one, a verdict on just that one, of
two the one with the earlier end.  Nobody has to refute what is said of a life that it has not begun: else it could be
driven to the last incarnation there is.  So the order in which news comes does not matter, nor how often, as long as a
verdict that came before its entry is said again (whoever has it has the entry too, and says both); and a member refutes
what is said of it by an entry with a higher incarnation (as in SWIM).

Who takes part in a round is a function of the roster and the round, and so is the round's graph (`RosterSchedule`).
Changes take effect at the boundaries of blocks of rounds, far enough ahead for the news to get around; peers that hear
of one too late call the round by another name than the others (`view`), and such edges do not count.

Source: Das, Gupta and Motivala, SWIM: scalable weakly-consistent infection-style process group membership, DSN 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

from fedgossip import seeds
from fedgossip.machine import NodeId
from fedgossip.messages import MEMBERS_MAX, Entry, News, Suspicion, Verdict

Sign = Callable[[bytes], str]
Verify = Callable[[str, bytes, str], bool]
"""(public key, what was signed, the signature), texts in hex."""

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


# --- signatures -------------------------------------------------------------------------------------------------------


def content(news: News) -> bytes:
    """Return what is signed: the kind and every field but the signature, each with its length."""
    values = (str(getattr(news, f.name)).encode() for f in fields(news) if f.name != "signature")
    return b"".join(b"%d:%b," % (len(v), v) for v in (type(news).__name__.encode(), *values))


def admission_of(node: NodeId, key: str, verify: str) -> bytes:
    """Return what the organiser signs to let `node` in."""
    return f"fedgossip admission {node} {key} {verify}".encode()


def signed(news: News, sign: Sign) -> News:
    """Return `news` with its signature."""
    return replace(news, signature=sign(content(news)))


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom to believe: the keys that the run began with, the organiser's for later ones, and how to check."""

    founders: Mapping[NodeId, tuple[str, str]]
    """(key of the links, key of the signatures) by id."""
    verify: Verify
    organiser: str = ""
    """Public key whose signature lets others in; without one nobody else comes in."""


# --- the roster -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roster:
    """All members ever known.  Made new by `merge`, never changed."""

    entries: Mapping[NodeId, Entry] = field(default_factory=dict)
    verdicts: Mapping[NodeId, Verdict] = field(default_factory=dict)

    @classmethod
    def founding(cls, endpoints: Mapping[NodeId, tuple[str, str, str]]) -> Roster:
        """Return the roster that a run begins with: {id: (address, key, verify)}, the same at every peer.

        Its entries have incarnation 0, are not signed and never sent: whoever has the same file has them.
        """
        return cls({i: Entry(i, 0, *where, since=0) for i, where in sorted(endpoints.items())})

    def gone(self, node: NodeId) -> bool:
        """Whether there is a verdict on `node` that it has not refuted."""
        verdict = self.verdicts.get(node)
        return verdict is not None and verdict.incarnation == self.entries[node].incarnation

    def end(self, node: NodeId) -> int:
        """Return the first round in which `node` does not take part any more."""
        ends = [self.entries[node].until] if self.entries[node].until >= 0 else []
        if self.gone(node):
            ends.append(self.verdicts[node].until)
        return min(ends, default=LAST_ROUND)

    def takes_part(self, node: NodeId, round: int) -> bool:
        """Whether `node` takes part in `round`."""
        entry = self.entries.get(node)
        return entry is not None and 0 <= entry.since <= round < self.end(node)

    def participants(self, round: int) -> tuple[NodeId, ...]:
        """Return who takes part in `round`, ascending."""
        return tuple(node for node in sorted(self.entries) if self.takes_part(node, round))

    def present(self) -> tuple[NodeId, ...]:
        """Return those that are neither gone nor leaving, ascending."""
        return tuple(i for i in sorted(self.entries) if self.entries[i].until < 0 and not self.gone(i))

    def changes(self) -> tuple[int, ...]:
        """Return the rounds in which somebody comes or goes, ascending."""
        found = {bound for i, entry in self.entries.items() for bound in (entry.since, self.end(i))}
        return tuple(sorted(found - {-1, 0, LAST_ROUND}))

    def known(self) -> tuple[tuple[NodeId, int, int], ...]:
        """Return (node, incarnation, incarnation of the verdict or -1) of all, ascending: what `Compare` tells."""
        verdicts = self.verdicts
        return tuple(
            (i, self.entries[i].incarnation, verdicts[i].incarnation if i in verdicts else -1)
            for i in sorted(self.entries)
        )

    def digest(self) -> str:
        """Return a short hash of all that is known; equal rosters have equal ones."""
        ends = [v for i in sorted(self.verdicts) for v in (i, self.verdicts[i].until)]
        return f"{seeds.integer(0, 'roster', *(number for known in self.known() for number in known), -1, *ends):016x}"

    def newer_than(self, known: Iterable[tuple[NodeId, int, int]]) -> list[News]:
        """Return the news for one who knows as much as `known`."""
        theirs = {node: (incarnation, verdict) for node, incarnation, verdict in known}
        news: list[News] = []
        for node, incarnation, verdict in self.known():
            have, had = theirs.get(node, (-1, -1))
            if incarnation > max(have, 0):
                news.append(self.entries[node])
            if verdict > had or (verdict == had >= 0):  # of two on one incarnation the earlier end counts: say it
                news.append(self.verdicts[node])
        return news


# --- merging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """News that cannot be accepted; `reason` is one word for counting."""

    reason: str
    news: News


@dataclass(frozen=True, slots=True)
class Merged:
    """The roster with the news in it; what of it was new; what was refused, and why."""

    roster: Roster
    new: tuple[News, ...]
    refused: tuple[Refusal, ...]


def merge(roster: Roster, news: Iterable[News], trust: Trust) -> Merged:
    """Take what is new and signed.  The order of news does not matter, except that a verdict needs its judge's entry.

    Refused: "signature", "identity" (another member's id), "unadmitted" (nobody let it in), "twin" (two entries of one
    incarnation: two processes run with one key), "stale" (an older incarnation), "ahead" (of a life that nobody has
    heard of), "stranger" (of or by one who is not in the roster), "range" (no possible round or incarnation), "full".
    Suspicions change no roster; see `check_suspicion`.
    """
    entries, verdicts = dict(roster.entries), dict(roster.verdicts)
    known = Roster(entries, verdicts)
    new: list[News] = []
    refused: list[Refusal] = []
    for item in sorted(news, key=lambda one: not isinstance(one, Entry)):
        reason = _entry_refused(known, item, trust) if isinstance(item, Entry) else _said_refused(known, item, trust)
        if reason:
            refused.append(Refusal(reason, item))
        elif isinstance(item, Entry) and item != entries.get(item.node):
            entries[item.node] = item
            if item.node in verdicts and not known.gone(item.node):  # refuted: nobody needs to hear it any more
                del verdicts[item.node]
            new.append(item)
        elif isinstance(item, Verdict) and _counts(item, verdicts.get(item.node)):
            verdicts[item.node] = item
            new.append(item)
    return Merged(known if new else roster, tuple(new), tuple(refused))


def check_suspicion(roster: Roster, suspicion: Suspicion, trust: Trust) -> str:
    """Return why `suspicion` is refused, or ""."""
    return _said_refused(roster, suspicion, trust)


def _counts(verdict: Verdict, known: Verdict | None) -> bool:
    """Whether `verdict` takes the place of the known one: the later incarnation, then the earlier end."""
    if known is None:
        return True
    return (verdict.incarnation, -verdict.until, -verdict.by) > (known.incarnation, -known.until, -known.by)


def _entry_refused(roster: Roster, entry: Entry, trust: Trust) -> str:
    known = roster.entries.get(entry.node)
    if entry == known:
        return ""
    if not (0 < entry.incarnation <= LAST_INCARNATION and max(entry.since, entry.until) <= LAST_ROUND):
        return "range"
    if known and (entry.key, entry.verify) != (known.key, known.verify):
        return "identity"
    if any(entry.key == other.key for other in roster.entries.values() if other.node != entry.node):
        return "identity"
    if not trust.verify(entry.verify, content(entry), entry.signature):
        return "signature"
    if known and entry.incarnation <= known.incarnation:
        return "stale" if entry.incarnation < known.incarnation else "twin"
    if known:
        return ""
    if entry.node in trust.founders:
        return "" if trust.founders[entry.node] == (entry.key, entry.verify) else "identity"
    statement = admission_of(entry.node, entry.key, entry.verify)
    if not (trust.organiser and trust.verify(trust.organiser, statement, entry.admission)):
        return "unadmitted"
    return "full" if len(roster.entries) >= MEMBERS_MAX else ""


def _said_refused(roster: Roster, said: Suspicion | Verdict, trust: Trust) -> str:
    """Why what one member says of another is refused."""
    if said == roster.verdicts.get(said.node):
        return ""
    if said.node not in roster.entries or said.by not in roster.entries:
        return "stranger"
    if said.incarnation > LAST_INCARNATION or (isinstance(said, Verdict) and said.until > LAST_ROUND):
        return "range"
    if not trust.verify(roster.entries[said.by].verify, content(said), said.signature):
        return "signature"
    life = roster.entries[said.node].incarnation
    return "" if said.incarnation == life else "stale" if said.incarnation < life else "ahead"


# --- the graph of each round ------------------------------------------------------------------------------------------


class Weights(Protocol):
    def row(self, node: NodeId) -> dict[NodeId, float]: ...
    def targets(self, node: NodeId) -> tuple[NodeId, ...]: ...


class Places(Protocol):
    """A schedule over the places 0 to m - 1."""

    @property
    def period(self) -> int: ...
    def mixing(self, round: int) -> Weights: ...
    def partners(self, node: NodeId) -> tuple[NodeId, ...]: ...


Make = Callable[[tuple[NodeId, ...]], Places]
"""Gives the graphs for these members, by their places in the tuple."""


@dataclass(frozen=True)
class _Named:
    """Weights over places, told by id."""

    ids: tuple[NodeId, ...]
    weights: Weights

    def row(self, node: NodeId) -> dict[NodeId, float]:
        if node not in self.ids:  # it takes no part: it keeps what it has
            return {node: 1.0}
        return {self.ids[j]: weight for j, weight in self.weights.row(self.ids.index(node)).items()}

    def targets(self, node: NodeId) -> tuple[NodeId, ...]:
        if node not in self.ids:
            return ()
        return tuple(self.ids[j] for j in self.weights.targets(self.ids.index(node)))


class RosterSchedule:
    """The mixing of each round among those who take part in it: a function of (roster, round), the same at every peer.

    `made` keeps the graphs of each set of members, and may be shared from one schedule to the next; `earlier` are those
    that one node exchanged with under rosters before: they may still have an account to settle.
    """

    def __init__(self, roster: Roster, make: Make, made: dict[tuple[NodeId, ...], Places] | None = None) -> None:
        self.roster, self._make = roster, make
        self.earlier: dict[NodeId, tuple[NodeId, ...]] = {}
        self._made = {} if made is None else made
        self._changes = roster.changes()
        self._ids: dict[int, tuple[NodeId, ...]] = {}  # by the last change before
        self._views: dict[int, str] = {}

    @property
    def period(self) -> int:
        """After how many rounds the mixings of those who take part at last repeat; 0: never."""
        ids = self.participants(LAST_ROUND - 1)
        return self._places(ids).period if ids else 1

    def _change(self, round: int) -> int:
        return max((change for change in self._changes if change <= round), default=0)

    def participants(self, round: int) -> tuple[NodeId, ...]:
        """Return who takes part in `round`, ascending."""
        change = self._change(round)
        if change not in self._ids:
            self._ids[change] = self.roster.participants(change)
        return self._ids[change]

    def mixing(self, round: int) -> Weights:
        """Return the mixing of `round`, by ids."""
        ids = self.participants(round)
        return _Named(ids, self._places(ids).mixing(round))

    def view(self, round: int) -> str:
        """Return a name for who takes part in `round`: peers that use the same graph give it the same."""
        change = self._change(round)
        if change not in self._views:
            self._views[change] = f"{seeds.integer(0, 'view', *self.participants(round)):016x}"
        return self._views[change]

    def partners(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return all that `node` sends to or hears from in any round, or did, ascending."""
        found = set(self.earlier.get(node, ()))
        for change in (0, *self._changes):
            ids = self.participants(change)
            if node in ids:
                found.update(ids[j] for j in self._places(ids).partners(ids.index(node)))
        return tuple(sorted(found))

    def _places(self, ids: tuple[NodeId, ...]) -> Places:
        if ids not in self._made:
            while len(self._made) >= KEPT_GRAPHS:
                del self._made[next(iter(self._made))]
            self._made[ids] = self._make(ids)
        return self._made[ids]


KEPT_GRAPHS = 16
