"""Tables as the answer to a query of a SQLite database.

    sql:hospital.db?query=cohort.sql&label=ill

The database is opened for reading alone, and an authorizer refuses every statement but a SELECT: nothing is written,
attached or loaded.  The text of the query is part of the plan and of what sites agree on.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path
from urllib.parse import quote

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError
from fedgossip.data.office_tables import text_of
from fedgossip.data.table_files import CELLS_MOST, TableFile, TableRows

QUERY_MOST = 1 << 20
"""Maximum number of bytes of a query."""
STEPS, STEPS_AT_ONCE = 20_000_000_000, 1_000_000
"""Maximum number of steps of SQLite's machine for a query, minutes of time; and between two checks of it."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


def query_text(query: Path) -> str:
    """Return the text of a query.  Raises ConfigError for a file that cannot be read."""
    try:
        return outside_files.read_bytes(outside_files.named(query), QUERY_MOST).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{query}: no query: {why}", "It is one SELECT, as text in UTF-8; all sites have it."
        ) from None


def query_digest(query: Path) -> str:
    """Return 32 hex digits of a hash of a query's text."""
    return hashlib.sha256(query_text(query).encode()).hexdigest()[:32]


def read_query(file: TableFile) -> TableRows:
    """Return the rows of a query.  Raises ConfigError for a query that fails, writes, takes too long or has no rows."""
    assert file.query is not None, "a source sql: has a query"
    text, path, steps = query_text(file.query), file.path, 0

    def overdue() -> int:
        nonlocal steps
        steps += STEPS_AT_ONCE
        return int(steps > STEPS)

    try:
        outside_files.check_file(outside_files.named(path))
        address = f"file:{quote(str(outside_files.named(path)))}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
            database.set_progress_handler(overdue, STEPS_AT_ONCE)
            answer = database.execute(text)
            header = [str(column[0]).strip() for column in answer.description or ()]
            found = answer.fetchmany(CELLS_MOST // max(1, len(header)) + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", "Is it there, and a file?") from None
    except (sqlite3.Error, sqlite3.Warning) as error:
        what = {"not authorized": "only a SELECT is allowed, and this does more", "interrupted": "it takes too long"}
        said = what.get(str(error), str(error))
        raise ConfigError(f"{file.query} on {path}: {said}", "A query is one SELECT of the wanted columns.") from None
    if not found:
        raise ConfigError(f"{file.query} on {path}: no rows", "A query is one SELECT of the wanted columns.")
    if len(found) * len(header) > CELLS_MOST:
        raise ConfigError(f"{file.query} on {path}: more than {CELLS_MOST} cells", "Select fewer.")
    for number, row in enumerate(found, 1):
        if raw := [header[place] for place, value in enumerate(row) if isinstance(value, bytes)]:
            raise ConfigError(f"{path}, row {number}, column {raw[0]!r}: bytes, which are no cell", "Leave it out.")
    return TableRows(header, [[text_of(one) for one in row] for row in found], range(1, len(found) + 1), unit="row")
