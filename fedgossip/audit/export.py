"""Export of a log for readers: a cover of facts, then every entry, as CSV or JSON.

Nothing secret can be in it: entries hold names, numbers and hashes, and take no bytes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fedgossip.audit.entries import LogEntry, bytes_of, entries
from fedgossip.audit.verify import Verification
from fedgossip.base import owner_files
from fedgossip.base.errors import NotWrittenError
from fedgossip.base.untrusted_text import cell_text, printable

COLUMNS = ("number", "time", "kind", "bytes", "with", "round", "session", "sha256", "more", "hash")

_TOLD = {"bytes", "to", "from", "round", "session", "sha256"}


def row(entry: LogEntry) -> dict[str, object]:
    """Return an entry by COLUMNS."""
    facts = entry.facts
    peer = next((f"{word} {facts[word]}" for word in ("to", "from") if word in facts), "")
    more = "; ".join(f"{name} {printable(str(value))}" for name, value in facts.items() if name not in _TOLD)
    size, round = bytes_of(facts), facts.get("round", "")
    return {
        "number": entry.number, "time": entry.time, "kind": entry.kind, "bytes": "" if size is None else size,
        "with": peer, "round": printable(str(round)), "session": printable(str(facts.get("session", ""))),
        "sha256": printable(str(facts.get("sha256", ""))), "more": more, "hash": entry.hash,
    }  # fmt: skip


def cover(verdict: Verification) -> dict[str, object]:
    """Return the facts above the entries: owner of the log, totals, verdict."""
    facts = dict(verdict.facts)
    kinds, sizes = facts.pop("kinds"), facts.pop("bytes")
    assert isinstance(kinds, Mapping) and isinstance(sizes, Mapping)
    totals = {f"{kind}, entries": count for kind, count in kinds.items()}
    totals |= {f"{kind}, bytes": size for kind, size in sizes.items()}
    return {
        **facts,
        **totals,
        "verified": "sound" if verdict.sound else "NOT sound: " + "; ".join(verdict.worded()),
        "remarks": "; ".join(verdict.remarks),
    }


def as_json(verdict: Verification) -> str:
    """Return cover and entries as one JSON object."""
    found = [{name: getattr(entry, name) for name in entry.__struct_fields__} for entry in entries(verdict.path)]
    return json.dumps({"cover": cover(verdict), "entries": found}, indent=1)


def as_csv(verdict: Verification) -> str:
    """Return the cover with a fact in each row, an empty row, the names of the columns, and a row per entry."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerows(map(_cells, cover(verdict).items()))
    writer.writerow([])
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row(entry).values()) for entry in entries(verdict.path))
    return out.getvalue()


def _cells(values: Iterable[object]) -> Iterator[object]:
    for value in values:
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield cell_text(text) if isinstance(text, str) else text


def write(path: Path, text: str) -> None:
    """Write a file whole, or not at all.  Raises NotWrittenError."""
    part = path.with_name(f"{path.name}.part")
    try:
        owner_files.written(part, text.encode())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise NotWrittenError(path, error) from None
