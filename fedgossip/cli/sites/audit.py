"""`fedgossip audit`: the data that left a participant, whether its log is unaltered, and an export for auditors."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.text import CommandGroup, columns, echo
from fedgossip.core.run_format import AUDIT_LOG, TRANSCRIPT

if TYPE_CHECKING:
    from fedgossip.audit.verify import Verification
    from fedgossip.secure.session import ParticipantRoster

PATH = click.Path(path_type=Path)
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
"""A hash; its first 12 hex digits are shown."""


@click.group(cls=CommandGroup)
def audit() -> None:
    """Inspect a participant's own log, and the coordinator's transcripts of its rounds.

    A log holds the data that left the participant and its refusals, each line chained to the previous one and signed.
    """


@audit.command()
@click.argument("log", metavar="LOG_OR_FOLDER", type=PATH)
@click.option("--kind", help="Only entries of this kind: masked, reveal, refused, ...")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last N of each log.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per entry.")
def show(log: Path, kind: str | None, last: int | None, as_json: bool) -> None:
    """Print a log as a table, or all logs below a folder.  Nothing is verified."""
    from fedgossip.audit.entries import LogEntry, entries
    from fedgossip.audit.verify import row

    found = sorted(log.rglob(AUDIT_LOG)) if log.is_dir() else [log]
    if not found:
        raise _nothing(log, AUDIT_LOG)
    for path in found:
        chosen: deque[LogEntry] = deque((one for one in entries(path) if kind in (None, one.kind)), maxlen=last)
        if as_json:
            for one in chosen:
                echo(json.dumps({"log": str(path), **{name: getattr(one, name) for name in one.__struct_fields__}}))
            continue
        if len(found) > 1:
            echo(f"{path}:")
        rows = [["time", "kind", "bytes", "with", "round", "sha256", "more"]]
        for one in chosen:
            cells = row(one)
            size = f"{cells['bytes']:,}" if isinstance(cells["bytes"], int) else ""
            shown_cells = [str(cells[name]) for name in ("time", "kind", "with", "round", "sha256", "more")]
            rows.append([*shown_cells[:2], size, *(_HASH.sub(r"\1", one) for one in shown_cells[2:])])
        echo(columns(rows))


@audit.command()
@click.argument("logs", metavar="LOG...", type=PATH, nargs=-1, required=True)
@click.option("--key", help="Public key, 64 hex digits: of the log's participant; of the coordinator for transcripts.")
@click.option("--endpoints", type=PATH, help="endpoints.toml, to take the key from.")
@click.option("--id", "node", type=click.IntRange(min=0), help="Id of the key there.  [default: the id in the log]")
@click.option("--head", help="A hash of an entry, published earlier: it must be in the log.")
@click.option("--against", type=PATH, help="A log, a transcript, or a folder with all of them: do both sides agree?")
@click.option("--roster", type=PATH, help="endpoints.toml of all, coordinator last [default: --endpoints].")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per file.")
def verify(
    logs: tuple[Path, ...], key: str | None, endpoints: Path | None, node: int | None, head: str | None,
    against: Path | None, roster: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Verify logs, and transcripts of rounds.

    LOG is a file, or a folder with all logs below it.  Ends with code 1 for a fault, and names it by line or record.  A
    log cut at its end looks complete: pass --head, or --against the files of the other side.
    """
    for word in (key, head):
        if word is not None and not re.fullmatch("[0-9a-f]{64}", word):
            raise click.UsageError(f"{word!r} are not 64 hex digits")
    if head and len(logs) > 1:
        raise click.UsageError("--head is of one log")
    judge = _Judge(key, endpoints, node, head, roster)
    verdicts = [verdict for path in logs for verdict in judge.all_of(path)]
    if against:
        others = list(replace(judge, key=None, node=None, head=None).all_of(against))
        verdicts = [_compared(verdict, others, every=against.is_dir()) for verdict in verdicts] + others
    for verdict in verdicts:
        echo(json.dumps(_facts(verdict)) if as_json else _lines_of(verdict))
    return 0 if all(verdict.sound for verdict in verdicts) else 1


@audit.command()
@click.argument("log", type=PATH)
@click.option("--out", type=OutputFile(".csv", ".json", mark="participant"), required=True, help="File to write.")
@click.option("--csv/--json", "as_table", default=None, help="[default: by the name of the file, else CSV]")
@click.option("--key", help="The participant's public key, 64 hex digits.  [default: the one in the log]")
def export(log: Path, out: Path, as_table: bool | None, key: str | None) -> int:
    """Write a log for readers, as CSV or JSON.

    First its owner, run, first and last time, totals, and whether it is sound; then every entry.  Ends with code 1 if
    the log is not sound.  The export contains no secrets: entries hold names, numbers and hashes.
    """
    from fedgossip.audit.verify import as_csv, as_json, write

    verdict = _Judge(key, None, None, None, None).log(log)
    table = out.suffix != ".json" if as_table is None else as_table
    write(out, as_csv(verdict) if table else as_json(verdict))
    echo(f"Wrote {out}: {_lines_of(verdict)}")
    return 0 if verdict.sound else 1


# --- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judge:
    """The keys by which files are verified."""

    key: str | None
    endpoints: Path | None
    node: int | None
    head: str | None
    roster: Path | None

    def all_of(self, path: Path) -> Iterator[Verification]:
        """Yield the verdict on a file, or on every log and round below a folder."""

        if not path.is_dir():
            yield self.one(path)
            return
        logs, rounds = sorted(path.rglob(AUDIT_LOG)), sorted({one.parent for one in path.rglob(f"*{TRANSCRIPT}")})
        if not logs + rounds:
            raise _nothing(path, f"{AUDIT_LOG} or *{TRANSCRIPT}")
        yield from map(self.log, logs)
        for folder in rounds:
            yield from self.rounds(folder)

    def one(self, path: Path) -> Verification:
        from fedgossip.audit.records import is_transcript
        from fedgossip.audit.verify_round import verify_transcript

        if not is_transcript(path):
            return self.log(path)
        return verify_transcript(path, *self._pinned(path.parent))

    def rounds(self, folder: Path) -> list[Verification]:
        from fedgossip.audit.verify_round import verify_transcripts

        return verify_transcripts(folder, *self._pinned(folder))

    def log(self, path: Path) -> Verification:
        from fedgossip.audit.verify import verify_log

        return verify_log(path, self._key(path), self.head)

    def _key(self, path: Path) -> bytes | None:
        """Return the key to verify a log by: given, of the endpoints, or None for the log's own."""
        from fedgossip.audit.entries import find_owner
        from fedgossip.base.errors import ConfigError
        from fedgossip.net.endpoints import load_blocks

        if self.key:
            return bytes.fromhex(self.key)
        file = self.endpoints or self.roster
        owner = find_owner(path)
        node = owner.participant if owner and self.node is None else self.node
        if file is None or node is None:
            return None
        blocks = load_blocks(file)
        if node not in blocks:
            raise ConfigError(f"{file}: there is no entry for peer {node}", "Name another file, or give --key.")
        return bytes.fromhex(blocks[node].verify)

    def _pinned(self, folder: Path) -> tuple[ParticipantRoster, bytes]:
        """Return the roster of all sessions, and the key of the transcripts' coordinator."""
        from fedgossip.audit.verify_round import coordinator_of
        from fedgossip.net.endpoints import load_blocks, roster_of

        if (file := self.roster or self.endpoints) is None:
            raise click.UsageError("transcripts are verified with --endpoints")
        everybody = roster_of(load_blocks(file))
        key = bytes.fromhex(self.key) if self.key else coordinator_of(folder, everybody)
        return everybody.first(len(everybody.members) - 1), key


def _compared(verdict: Verification, others: list[Verification], *, every: bool) -> Verification:
    """Return the verdict with every disagreement; `every`: whether these are all files."""
    from fedgossip.audit.verify import Fault, compare, without_transcript

    mine, found = verdict.account, list[str]()
    for other in (one.account for one in others):
        found += compare(other, mine) if mine.owner is None else compare(mine, other)
    if every and mine.owner and all(other.account.owner is None for other in others):
        found += without_transcript(mine, (other.account for other in others))
    agreed = () if found else (f"agrees with the other side, {len(others)} files of it",)
    faults = verdict.faults + tuple(Fault(0, what) for what in found)
    return replace(verdict, faults=faults, remarks=verdict.remarks + agreed)


def _nothing(folder: Path, what: str) -> Exception:
    from fedgossip.audit.entries import AuditError

    return AuditError(f"{folder}: no {what} below it", "Name the folder of a participant of a run.")


# --- words ------------------------------------------------------------------------------------------------------------


def _facts(verdict: Verification) -> dict[str, object]:
    return {
        "path": str(verdict.path), "what": verdict.what, "sound": verdict.sound, "faults": verdict.worded(),
        "remarks": verdict.remarks, "facts": verdict.facts,
    }  # fmt: skip


def _lines_of(verdict: Verification) -> str:
    head = f"{verdict.path}: {verdict.what}: {'sound' if verdict.sound else 'NOT sound'}"
    about = _describe_log(verdict) if "entries" in verdict.facts else _describe_round(verdict)
    notes = [f"  note: {remark}" for remark in verdict.remarks]
    return "\n".join([f"{head}, {about}", *(f"  {line}" for line in verdict.worded()), *notes])


def _describe_log(verdict: Verification) -> str:
    facts = verdict.facts
    return f"{facts['entries']} entries, {facts['first']} to {facts['last']}, head {facts['head']}"


def _describe_round(verdict: Verification) -> str:
    facts = verdict.facts
    if "cohort" not in facts:
        return "no session in it"
    dropped = facts["dropped"]
    assert isinstance(dropped, dict)
    gone = [f"{stage}: {', '.join(map(str, who))}" for stage, who in dropped.items() if who]
    text = f"{facts['outcome'] or 'no end'}, {facts['survivors']} of {facts['cohort']} in the sum"
    needed = f"{facts['signed']} signed, {facts['revealed']} revealed, {facts['threshold']} needed"
    return f"{text}, {needed}{'; dropped before ' if gone else ''}{'; '.join(gone)}; sum {facts['sum'] or 'none'}"
