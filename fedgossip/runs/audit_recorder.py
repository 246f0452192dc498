"""The signed log that a participant of a federated run keeps for others, and the coordinator's transcripts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fedgossip.audit.entries import Facts, Owner
from fedgossip.audit.log import AuditLog
from fedgossip.audit.transcript import Transcript
from fedgossip.base import owner_files
from fedgossip.base.vectors import digest
from fedgossip.base.version import __version__
from fedgossip.core import run_format
from fedgossip.core.machine import Log, NodeId, Witness
from fedgossip.net.identity import Identity
from fedgossip.plans.federated.credentials import Logged
from fedgossip.plans.federated.ledger import SpentLedger
from fedgossip.plans.federated.privacy_budget import SPENT
from fedgossip.secure.session import ParticipantRoster

CONSENT = "consent"
"""Kind of the line written before a client consents to the other clients of a sum by its signature."""

TRANSCRIPT = "transcript"
"""Kind of the line at the end of a session's transcript, with its hash."""


class Recorder:
    """Writes log and transcripts.  A context manager.  Raises NotWrittenError: nothing may be sent that is not
    logged.
    """

    def __init__(self, folder: Path, node: NodeId, role: str, identity: Identity, run: str, *, synced: bool) -> None:
        self.folder, self._identity = folder, identity
        owner = Owner(node, role, bytes.fromhex(identity.verify), run, __version__)
        self._log = AuditLog(folder / run_format.AUDIT_LOG, owner, identity.sign_bytes, time.time_ns, synced=synced)
        self._roster: ParticipantRoster | None = None
        self._open: tuple[int, Transcript] | None = None
        self._ledger: SpentLedger | None = None
        self._companies: SpentLedger | None = None
        self._again, self._transcribed, self._repeats = 0, set[object](), False
        self.lines = len(self._log.past)
        """Number of the participant's lines in the log."""

    def repeat(self, logged: int) -> None:
        """Expect the lines after the first `logged` a second time: neither they nor complete transcripts are written
        twice.
        """
        repeated = self._log.past[logged:]
        self._again, self._repeats = len(repeated), True
        self._transcribed = {facts["session"] for kind, facts in repeated if kind == TRANSCRIPT}

    def account(self, ledger: SpentLedger) -> Sequence[Mapping[str, object]]:
        """Write every spend to the ledger as well, before the log; return the ledger's spends that this log lacks."""
        self._ledger = ledger
        return ledger.take_up(self._log.first, [facts for kind, facts in self._log.past if kind == SPENT])

    def keep_companies(self, ledger: SpentLedger) -> None:
        """Write the clients of exact sums to the ledger as well, before the log."""
        self._companies = ledger

    @property
    def first(self) -> str:
        """Hash of the log's first entry, which is unique to this log."""
        return self._log.first

    @property
    def past(self) -> Sequence[Logged]:
        """The lines of earlier incarnations."""
        return self._log.past

    def transcribe(self, roster: ParticipantRoster) -> None:
        """Write a transcript of every session from now on, with these clients."""
        self._roster = roster

    def log(self, line: Log) -> None:
        if self._again:
            self._again -= 1
            return
        facts = {**line.facts, "sha256": digest(line.hashed)} if line.hashed else line.facts
        if line.kind == SPENT and self._ledger:
            self._ledger.add(facts)
        if line.kind == CONSENT and self._companies and "company" in facts:
            self._companies.note_company(str(facts["layout"]), str(facts["company"]), self.first)
        self._append(line.kind, facts)

    def witness(self, seen: Witness) -> None:
        if self._roster is None:
            return
        if seen.session in self._transcribed:
            self._again -= not seen.frame
            return
        if not seen.frame:
            self._close(seen.session, seen.outcome)
            return
        transcript = self._transcript(seen.session, self._roster)
        if seen.sent:
            transcript.sent(seen.client, seen.frame)
        else:
            assert seen.client is not None, "an accepted frame has a sender"
            transcript.received(seen.client, seen.frame)

    def _transcript(self, session: int, roster: ParticipantRoster) -> Transcript:
        if self._open is None or self._open[0] != session:
            folder = self.folder / run_format.TRANSCRIPTS
            owner_files.make_folder(folder)
            if self._repeats:  # an earlier process has written the beginning
                (folder / f"{session:06d}{run_format.TRANSCRIPT}").unlink(missing_ok=True)
            key = bytes.fromhex(self._identity.verify)
            self._open = session, Transcript(folder, session, roster, key, self._identity.sign_bytes)
        return self._open[1]

    def _close(self, session: int, outcome: str) -> None:
        if self._open and self._open[0] == session:
            digest = self._open[1].close(outcome)
            self._open = None
            self._append(TRANSCRIPT, {"session": session, "outcome": outcome, "sha256": digest.hex()})

    def _append(self, kind: str, facts: Facts) -> None:
        self._log.append(kind, facts)
        self.lines += 1

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(Exception) if error else contextlib.nullcontext():
            self._log.close()
