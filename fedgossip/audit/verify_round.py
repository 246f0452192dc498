"""Verify offline that a round followed the protocol, from its transcript, the roster and the coordinator's key.

Checked up to the first fault: signatures; the descriptor, as by clients; keys signed for this round; session hashes;
senders and receivers of sealed shares; vectors of one length; one list of n_min or more survivors, all with a vector;
consents, enough of each share group for its members; one reveal per client, of the right kinds; t of them for every
secret; the result; the seal.

The file cannot show omissions by the coordinator, nor that the body of a frame with shares matches its outline
(clients' logs do: `verify.compare`).  Only the vectors would prove the sum; each client has checked that its sum has
the signed hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec

from fedgossip.audit.entries import find_owner
from fedgossip.audit.records import content_of, transcripts
from fedgossip.audit.transcript import STAGES, LoggedFrame, Round, WrongError, wrong
from fedgossip.audit.verify import CLIENT, Crossing, Fault, TrafficRecord, Verification, fates_of
from fedgossip.base.errors import ConfigError
from fedgossip.core.run_format import AUDIT_LOG
from fedgossip.secure import frames
from fedgossip.secure.aborts import SUMMED, RoundAbandoned
from fedgossip.secure.encoding import ExactSums, RingEncoding
from fedgossip.secure.fixed_point import FixedPoint
from fedgossip.secure.frames import keys_are_signed
from fedgossip.secure.primitives import digest, small_order, verify
from fedgossip.secure.session import NONE, Descriptor, ParticipantRoster, check_sound, ranges, round_of, sid0_of


def coordinator_of(folder: Path, everybody: ParticipantRoster) -> bytes:
    """Return the key to verify transcripts by: of the coordinator whose log is beside their `folder`; else the root's,
    the last of `everybody`.

    Only coordinators have addresses; in a run by folder nobody has.
    """
    owner, members = find_owner(folder.parent / AUDIT_LOG), everybody.members
    if owner is None or owner.role == CLIENT or not 0 <= owner.participant < len(members):
        return members[-1].identity
    named = members[owner.participant]
    return (named if named.endpoint or not any(one.endpoint for one in members) else members[-1]).identity


def verify_transcript(path: Path, roster: ParticipantRoster, coordinator: bytes) -> Verification:
    """Verify one round; the verdict names the first fault.  Raises AuditError for a file other than a transcript."""
    round = Round(path, roster, coordinator)
    course = Course(round)
    faults: tuple[Fault, ...] = ()
    try:
        round.load()
        course.check()
    except WrongError as error:
        faults = (Fault(error.place, error.what),)
    number = round.begun.session if round.begun else path.stem
    return Verification(path, f"transcript of session {number}", faults, (), course.facts(), course.account(), "record")


def verify_transcripts(folder: Path, roster: ParticipantRoster, coordinator: bytes) -> list[Verification]:
    """Verify every round in `folder`, and that each file has the hash of the previous one."""
    found: list[Verification] = []
    before: Path | None = None
    sessions: set[object] = set()
    for path in transcripts(folder):
        verdict = verify_transcript(path, roster, coordinator)
        found.append(_chained(verdict, before, sessions))
        sessions.add(verdict.facts.get("sid"))
        before = path
    return found


def _chained(verdict: Verification, before: Path | None, sessions: Set[object]) -> Verification:
    facts = verdict.facts
    previous = facts.get("previous file", "")
    if before is None:
        gone = previous not in ("", NONE.hex())
        return replace(verdict, remarks=(f"the file before, with SHA-256 {previous}, is not here",) * gone)
    fault: tuple[Fault, ...] = ()
    if previous != hashlib.sha256(content_of(before)).hexdigest():
        fault = (
            Fault(1, f"it does not follow {before.name} in its present form: changed, or a file between is missing"),
        )
    elif facts.get("keys announced") and facts.get("previous sid") not in sessions:
        fault = (Fault(0, "its keys were announced in a session that no file before it is of"),)
    return replace(verdict, faults=verdict.faults + fault)


# The course of a round, each stage checked against the previous one: the second half of `verify_transcript`.
#
# The rules are those of secure/server.py and secure/frames.py, applied to the signed frames.


SEALED, SHARE = bytes(80), bytes(32)
"""Placeholders of equal length for parts missing in an outline: two sealed shares, a share."""


class Course:
    """One round, stage by stage; each stage uses the results of earlier stages."""

    def __init__(self, round: Round) -> None:
        self.round = round
        self.descriptor: Descriptor | None = None
        self.sid0 = self.sid = b""
        self.keys: dict[int, frames.Keys] = {}
        self.introduced: set[int] = set()
        self.shared: set[int] = set()
        self.delivered: set[int] = set()
        self.masked: set[int] = set()
        self.survivors: tuple[int, ...] = ()
        self.consents: dict[int, bytes] = {}
        self.asked: set[int] = set()
        self.revealed: set[int] = set()
        self.words = 0
        self.result: frames.Result | None = None

    def check(self) -> None:
        d = self._invited()
        self._neighbours = d.neighbours(self.sid0)
        self._keyed(d)
        self._introduced()
        self._shared()
        self._masked(d)
        self._survived(d)
        self._consented(d)
        self._revealed()
        self._summed(d)

    def _group(self, client: int) -> frozenset[int]:
        return frozenset((*self._neighbours[client], client))

    # --- the stages ---------------------------------------------------------------------------------------------------

    def _invited(self) -> Descriptor:
        """S0: clients can check the session against a policy, for at least one policy."""
        invite, begun = self.round.only(frames.SessionInvite), self.round.begun
        assert begun is not None
        if invite is None:
            wrong(0, "nobody was invited")
        place, d = invite[0], invite[1].descriptor
        try:
            check_sound(d, self.round.roster, _describe_encoding(d))
        except (RoundAbandoned, ConfigError) as error:
            wrong(place, f"a session that no client accepts: {error}")
        if d.round != begun.session:
            wrong(place, f"session {d.round} in the transcript of session {begun.session}")
        self.descriptor, self.sid0 = d, sid0_of(d)
        return d

    def _keyed(self, d: Descriptor) -> None:
        """S0: the clients with keys, each signed for this round."""
        cohort = frozenset(d.cohort)
        found: dict[int, tuple[int, frames.Keys]] = {}
        for client, statement, message in self.round.whole(frames.Advertise, cohort, "was not invited"):
            self._same(statement, message.sid, self.sid0)
            if (message.keys.client, message.keys.origin) != (client, self.sid0):
                wrong(statement.place, f"keys of another client or session, from client {client}")
            found[client] = statement.place, message.keys
        for client, (place, keys) in self.round.announced.items():
            if client in found:
                self._agree(place, keys, found[client][1])
            elif client not in cohort or keys.origin != d.previous or d.previous == NONE:
                wrong(place, f"keys of client {client} that were not announced for this session")
            found.setdefault(client, (place, keys))
        seen: set[bytes] = set()
        for client, (place, keys) in sorted(found.items()):
            if not keys_are_signed(keys, d, d.round, self.round.roster):
                wrong(place, f"keys that client {client} did not sign for this round")
            if len(seen | {keys.c_pk, keys.s_pk}) != len(seen) + 2 or small_order(keys.c_pk) or small_order(keys.s_pk):
                wrong(place, f"a key of client {client} occurs twice, or is of small order")
            seen |= {keys.c_pk, keys.s_pk}
        self.keys = {client: found[client][1] for client in sorted(found)}

    @staticmethod
    def _agree(place: int, shown: frames.Keys, statement: frames.Keys) -> None:
        if shown != statement:
            wrong(place, f"keys of client {statement.client} that are not those it sent")

    def _introduced(self) -> None:
        """S1: every client received the keys of its neighbours, and the hash of all."""
        h1 = frames.hash_of_keys(self.keys)
        self.sid = digest("sid", self.sid0, h1)
        for client, statement in self.round.outlines(frames.Neighbourhood, self.keys.keys(), "has no keys"):
            keys = tuple(self.keys[v] for v in sorted(self._group(client) & self.keys.keys()))
            self._exactly(statement, frames.Neighbourhood(self.sid0, client, h1, keys), "the keys of its neighbours")
            self.introduced.add(client)

    def _shared(self) -> None:
        """S1, S2: the clients that sealed shares, the receivers, and the forwarded shares."""
        for client, statement in self.round.outlines(frames.Shares, self.introduced, "was shown no keys"):
            due = tuple(sorted((self._group(client) & self.keys.keys()) - {client}))
            if set(statement.ids) != set(due):
                wrong(
                    statement.place, f"client {client} sealed shares for {_listed(statement.ids)}, not {_listed(due)}"
                )
            self._as_long(statement, frames.Shares(self.sid, tuple((v, SEALED) for v in statement.ids)))
            self.shared.add(client)
        for client, statement in self.round.outlines(frames.Delivery, self.shared, "has not shared"):
            senders = tuple(v for v in self._neighbours[client] if v in self.shared)
            if statement.ids != senders:
                wrong(
                    statement.place,
                    f"client {client} got seals of {_listed(statement.ids)}; there were {_listed(senders)}",
                )
            self._as_long(statement, frames.Delivery(self.sid, client, tuple((v, SEALED) for v in statement.ids)))
            self.delivered.add(client)

    def _masked(self, d: Descriptor) -> None:
        """S2: the masked vectors have one length, and each has the hash that its client signed."""
        for client, statement, head in self.round.whole(frames.MaskedHeader, self.delivered, "was sent no shares"):
            self._same(statement, head.sid, self.sid)
            self.words = self.words or head.length
            if head.length != self.words:
                wrong(statement.place, f"client {client} masked {head.length} words, others {self.words}")
            ahead = head.ahead
            if ahead and not (
                (ahead.client, ahead.origin) == (client, self.sid)
                and keys_are_signed(ahead, d, d.round + 1, self.round.roster)
            ):
                wrong(statement.place, f"keys for the next round that client {client} did not sign")
            self.masked.add(client)

    def _survived(self, d: Descriptor) -> None:
        """S3: there is one list of survivors, all with a vector sent."""
        found = self.round.only(frames.Survivors)
        if found is None:
            return
        place, message = found
        if message.sid != self.sid:
            wrong(place, "survivors of another session")
        if list(message.ids) != sorted(set(message.ids)):
            wrong(place, "survivors that are not in ascending order")
        if others := set(message.ids) - self.masked:
            wrong(place, f"survivors {_listed(others)} sent no vector")
        if len(message.ids) < d.n_min:
            wrong(place, f"{len(message.ids)} survivors; {d.n_min} are needed")
        self.survivors = message.ids

    def _consented(self, d: Descriptor) -> None:
        """S3, S4: the list has signatures, and all received enough of them."""
        content = frames.consent_content(self.sid, frames.hash_of_ids(self.survivors))
        for client, statement, message in self.round.whole(frames.Consent, frozenset(self.survivors), "is no survivor"):
            self._same(statement, message.sid, self.sid)
            if not verify(self.round.roster.identity(client), message.signature, content):
                wrong(statement.place, f"client {client} consents to another list of survivors")
            self.consents[client] = message.signature
        for client, statement in self.round.outlines(frames.Consents, self.consents.keys(), "has not consented"):
            others = set(statement.ids) & self._group(client) & self.consents.keys() - {client}
            if len(others) < len(statement.ids) or len(others) + 1 < d.t:
                what = f"client {client} was shown consents of {_listed(statement.ids)}; {d.t - 1} others of its group"
                wrong(statement.place, f"{what} that have signed this list are needed")
            shown = tuple((v, self.consents[v]) for v in statement.ids)
            self._exactly(statement, frames.Consents(self.sid, client, shown), "these consents")
            self.asked.add(client)

    def _revealed(self) -> None:
        """S4: each member of a share group gave one kind of share of each client, once."""
        for client, statement in self.round.outlines(frames.Reveal, self.asked, "was shown no consents"):
            if len(set(statement.ids)) < len(statement.ids):
                twice = next(v for v in statement.ids if statement.ids.count(v) > 1)
                wrong(statement.place, f"client {client} gave two shares of client {twice}")
            due = [(v, v in self.survivors) for v in sorted(self._group(client) & self.shared)]
            if list(zip(statement.ids, statement.alive, strict=False)) != due or len(statement.alive) != len(
                statement.ids
            ):
                what = f"client {client} gave shares of {_fates(statement)}"
                wrong(statement.place, f"{what}; by this list of survivors due were {_pairs(due)}")
            shares = tuple((v, alive, SHARE) for v, alive in due)
            self._as_long(statement, frames.Reveal(self.sid, shares))
            self.revealed.add(client)

    def _summed(self, d: Descriptor) -> None:
        """S5: there are enough shares of every secret, and a result of these survivors."""
        found, outcome = self.round.only(frames.Result), self.round.outcome
        if (found is None) == (outcome == SUMMED):
            wrong(found[0] if found else 0, f"the outcome is {outcome!r}, and there is {'a' if found else 'no'} result")
        if found is None:
            return
        place, result = found
        for client in sorted(self.shared):
            have = len(self._group(client) & self.revealed)
            if have < d.t:
                wrong(place, f"a result with {have} shares of client {client}; {d.t} are needed")
        if result.sid != self.sid or result.survivors != frames.hash_of_ids(self.survivors) or not self.survivors:
            wrong(place, "a result of other survivors, or of another session")
        self.result = result

    # --- one frame ----------------------------------------------------------------------------------------------------

    def _same(self, statement: LoggedFrame, session: bytes, due: bytes) -> None:
        if session != due:
            wrong(statement.place, f"a {statement.name} of {statement.speaker} of another session")

    def _exactly(self, statement: LoggedFrame, due: frames.Frame, what: str) -> None:
        if statement.digest != hashlib.sha256(msgspec.msgpack.encode(due)).digest():
            wrong(statement.place, f"what client {statement.client} was shown is not {what}, in this session")

    def _as_long(self, statement: LoggedFrame, due: frames.Frame) -> None:
        if statement.size != len(msgspec.msgpack.encode(due)):
            wrong(statement.place, f"a {statement.name} of {statement.size} bytes, which its outline is not of")

    # --- results for people, and for other files -------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        """Return the facts of a round for readers, up to its first fault."""
        begun, d = self.round.begun, self.descriptor
        facts: dict[str, object] = {"outcome": self.round.outcome, "file": self.round.file}
        if begun:
            facts |= {"session": begun.session, "round": round_of(begun.session), "version": begun.version}
            facts |= {"previous file": begun.previous.hex()}
        if d:
            facts |= {"task": d.task_id, "graph": d.graph, "cohort": len(d.cohort), "threshold": d.t, "least": d.n_min}
            facts |= {"survivors": len(self.survivors), "signed": len(self.consents), "revealed": len(self.revealed)}
            facts |= {"dropped": self._dropped(d), "words": self.words}
            facts |= {"previous sid": d.previous.hex(), "sid": self.sid.hex()}
            facts |= {"keys announced": len(self.keys.keys() & self.round.announced.keys())}
            facts |= {"sum": self.result.digest.hex() if self.result else ""}
        return facts

    def _dropped(self, d: Descriptor) -> dict[str, list[int]]:
        stages = {
            "keys": set(d.cohort), "shares": set(self.keys), "vector": self.shared, "consent": set(self.survivors),
            "reveal": set(self.consents), "": self.revealed,
        }  # fmt: skip
        return {name: sorted(stages[name] - stages[after]) for name, after in pairwise(stages)}

    def account(self) -> TrafficRecord:
        """Return the messages of the round, for a comparison with the log of a client."""
        session = self.round.begun.session if self.round.begun else -1
        members = {client: member.identity for client, member in enumerate(self.round.roster.members)}
        account = TrafficRecord(None, members, {session}, receives=True)
        for statement in self.round.every:
            fates = _fates(statement) if statement.name == "Reveal" else ""
            size, stage = frames.SIGNATURE + statement.size, STAGES[statement.name].name
            found = Crossing(
                statement.client, session, stage, size, statement.digest.hex(), statement.name.lower(), fates
            )
            (account.sent if statement.sent else account.received).setdefault(found, statement.place)
        if result := self.round.only(frames.Result):
            account.sums[session] = result[1].digest.hex(), result[0]
        return account


def _listed(ids: Set[int] | Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "nobody"


def _fates(statement: LoggedFrame) -> str:
    return _pairs(list(zip(statement.ids, statement.alive, strict=False)))


def _pairs(fates: Sequence[tuple[int, bool]]) -> str:
    return fates_of(*(ranges([v for v, lives in fates if lives is kind]) for kind in (True, False)))


def _describe_encoding(d: Descriptor) -> RingEncoding:
    if d.width > 1:
        return ExactSums((1,), d.ring_bits)
    return FixedPoint(1, d.clip_l2, d.clip_inf, d.weight_max, d.q_bits)
