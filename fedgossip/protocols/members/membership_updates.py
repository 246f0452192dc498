"""Acceptance of membership updates: signed by their author, about known members and known incarnations.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

from fedgossip.core.machine import NodeId
from fedgossip.core.messages import MEMBERS_MAX, ConfirmDead, Entry, News, Revocation, Suspicion
from fedgossip.protocols.members.roster import LAST_INCARNATION, LAST_ROUND, Roster, with_verdict

Sign = Callable[[bytes], str]
Verify = Callable[[str, bytes, str], bool]
"""(public key, signed bytes, signature), texts in hex."""

# --- signatures -------------------------------------------------------------------------------------------------------


def content(news: News) -> bytes:
    """Return the bytes to sign: the kind and every field but the signature, each with its length."""
    values = (str(getattr(news, f.name)).encode() for f in fields(news) if f.name != "signature")
    return b"".join(b"%d:%b," % (len(v), v) for v in (type(news).__name__.encode(), *values))


def admission_of(node: NodeId, key: str, verify: str) -> bytes:
    """Return the bytes that the organiser signs to admit `node`."""
    return f"fedgossip admission {node} {key} {verify}".encode()


def signed(news: News, sign: Sign) -> News:
    """Return `news` with its signature."""
    return replace(news, signature=sign(content(news)))


@dataclass(frozen=True, slots=True)
class Trust:
    """The accepted keys: the founders', the organiser's for later members, and the signature check."""

    founders: Mapping[NodeId, tuple[str, str]]
    """(key of the links, key of the signatures) by id."""
    verify: Verify
    organiser: str = ""
    """Public key that signs admissions and revocations; "": none are valid."""


# --- merging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewsRefusal:
    """A refused update; `reason` is one word for counting."""

    reason: str
    news: News


@dataclass(frozen=True, slots=True)
class Merged:
    """The roster with the updates in it; the new updates; the refused ones with reasons."""

    roster: Roster
    new: tuple[News, ...]
    refused: tuple[NewsRefusal, ...]


def merge(roster: Roster, news: Iterable[News], trust: Trust) -> Merged:
    """Merge new, signed updates in any order, a verdict after its judge's entry.  Suspicions change no roster
    (`check_suspicion`).

    Refused: "signature", "identity" (another member's id), "unadmitted", "twin" (two entries of one incarnation: two
    processes with one key), "stale" (an older incarnation), "ahead" (an unannounced later incarnation), "stranger" (a
    node outside the roster), "itself" (a judge of itself), "range" (no possible round or incarnation), "full",
    "revoked" (about or by a revoked member).
    """
    new: list[News] = []
    refused: list[NewsRefusal] = []
    for item in sorted(news, key=_precedence):
        reason, known = _refused(roster, item, trust), roster
        if reason:
            refused.append(NewsRefusal(reason, item))
            continue
        match item:
            case Revocation():
                roster = _without(roster, item)
            case Entry() if item != roster.entries.get(item.node):
                roster = replace(roster, entries=roster.entries.with_entry(item))
            case ConfirmDead():
                before = roster.verdicts.get(item.node, ())
                verdicts_ = with_verdict(before, item)
                if verdicts_ is not before:
                    roster = replace(roster, verdicts={**roster.verdicts, item.node: verdicts_})
        if roster is not known:
            new.append(item)
    return Merged(roster, tuple(new), tuple(refused))


def _precedence(news: News) -> int:
    """Return the rank in a merge: revocations, then entries, then verdicts on them."""
    return 0 if isinstance(news, Revocation) else 1 if isinstance(news, Entry) else 2


def _without(roster: Roster, revocation: Revocation) -> Roster:
    node = revocation.node
    if node in roster.revoked:
        return roster
    verdicts_ = {i: tuple(v for v in of if v.by != node) for i, of in roster.verdicts.items() if i != node}
    kept = {i: of for i, of in verdicts_.items() if of}
    return replace(roster, verdicts=kept, revoked={**roster.revoked, node: revocation})


def check_suspicion(roster: Roster, suspicion: Suspicion, trust: Trust) -> str:
    """Return the reason why `suspicion` is refused, or ""."""
    reason = _claim_refused(roster, suspicion, trust)
    if reason or suspicion.incarnation >= roster.entries[suspicion.node].incarnation:
        return reason
    return "stale"


def _refused(roster: Roster, news: News, trust: Trust) -> str:
    match news:
        case Entry():
            return _entry_refused(roster, news, trust)
        case Revocation():
            return _revocation_refused(roster, news, trust)
        case _:
            return _claim_refused(roster, news, trust)


def _entry_refused(roster: Roster, entry: Entry, trust: Trust) -> str:
    known = roster.entries.get(entry.node)
    if entry == known:
        return ""
    if entry.node in roster.revoked:
        return "revoked"
    if not (0 < entry.incarnation <= LAST_INCARNATION and max(entry.since, entry.until) <= LAST_ROUND):
        return "range"
    if known and (entry.key, entry.verify) != (known.key, known.verify):
        return "identity"
    if not known and roster.entries.has_key(entry.key):
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


def _revocation_refused(roster: Roster, revocation: Revocation, trust: Trust) -> str:
    if revocation == roster.revoked.get(revocation.node):
        return ""
    known = roster.entries.get(revocation.node)
    if known and (revocation.key, revocation.verify) != (known.key, known.verify):
        return "identity"
    if not (trust.organiser and trust.verify(trust.organiser, content(revocation), revocation.signature)):
        return "signature"
    return "full" if len(roster.revoked) >= MEMBERS_MAX else ""


def _claim_refused(roster: Roster, verdicts_: Suspicion | ConfirmDead, trust: Trust) -> str:
    if isinstance(verdicts_, ConfirmDead) and verdicts_ in roster.verdicts.get(verdicts_.node, ()):
        return ""
    if verdicts_.node in roster.revoked or verdicts_.by in roster.revoked:
        return "revoked"
    if verdicts_.node not in roster.entries or verdicts_.by not in roster.entries:
        return "stranger"
    if verdicts_.by == verdicts_.node:
        return "itself"
    if verdicts_.incarnation > LAST_INCARNATION or (
        isinstance(verdicts_, ConfirmDead) and verdicts_.until > LAST_ROUND
    ):
        return "range"
    if not trust.verify(roster.entries[verdicts_.by].verify, content(verdicts_), verdicts_.signature):
        return "signature"
    return "ahead" if verdicts_.incarnation > roster.entries[verdicts_.node].incarnation else ""
