"""Verify offline that a round followed the protocol, from its transcript, the roster and the coordinator's key.

These are checked, up to the first fault: every signature; the descriptor, as clients check it; each client's keys
signed by its roster identity, for this round; both session hashes; senders and receivers of sealed shares; masked
vectors of one length; one list of survivors, n_min clients or more who all sent a vector; consents to that list, as
many of each share group as its members must see before they reveal; one reveal per client, of one kind of share of
each, as the list of survivors determines; t of them for every secret; the result of these survivors; the coordinator's
seal.

The file cannot show omissions by the coordinator; nor that the body of a frame with shares matches its outline: the
client's own log records that too (compare.py).  Only the vectors, which are not stored, would prove the sum; each
client has checked that its received sum has the hash signed here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from fedgossip.audit.records import content_of, transcripts
from fedgossip.audit.round_checks import Course
from fedgossip.audit.transcript_frames import Round, WrongError
from fedgossip.audit.verify import Fault, Verification
from fedgossip.secure.session import NONE, ParticipantRoster


def verify_transcript(path: Path, roster: ParticipantRoster, coordinator: bytes) -> Verification:
    """Verify one round; the verdict names the first fault.  Raises AuditError for a file that is no transcript."""
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
    """Verify every round in `folder`, and that each file names the one before it by its hash."""
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
        fault = (Fault(1, f"it does not follow {before.name} as that is now: changed, or a file between is gone"),)
    elif facts.get("keys announced") and facts.get("previous sid") not in sessions:
        fault = (Fault(0, "its keys were announced in a session that no file before it is of"),)
    return replace(verdict, faults=verdict.faults + fault)
