"""The result of a query of a PostgreSQL database, by psycopg.

    sql:postgresql://host/hospital?query=cohort.sql&label=ill

The text is one SELECT: it is read as a subquery in a read-only transaction, by a protocol of single statements, so that
nothing else is possible, though functions run with the user's rights.  Host, port, user, password and TLS that the
address omits are those of libpq: PGHOST, PGUSER, PGPASSWORD, PGSSLMODE, ~/.pgpass.  A password in the address is
refused, since plans, logs and messages contain the address; and one is sent in clear text only by PGREQUIREAUTH.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from fedgossip.base import untrusted_text
from fedgossip.base.errors import ConfigError, needed
from fedgossip.data.office_tables import CELL_MOST, ONE_SELECT, QUERY_SECONDS, CellMemory, query_text, text_of
from fedgossip.data.table_files import TableFile, TableRows

CONNECT_SECONDS, GRACE_SECONDS = 15, 5.0
"""Maximum time of a connection; and after that of a query, until the connection of a silent server is shut."""
CELLS = str, int, float, Decimal, date, time, UUID
"""Values of cells; a bool is 0 or 1, as in SQLite."""
_BEGIN = re.compile(  # atomic: of comments in other words it would try all
    r"(?>\s+|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*+(?:select|with|values|table)\b", re.IGNORECASE | re.DOTALL
)
_SETTINGS = (
    "SET LOCAL statement_timeout = {milliseconds}",
    "SET LOCAL lock_timeout = {milliseconds}",
    "SET LOCAL timezone = 'UTC'",
    "SET LOCAL datestyle = 'ISO'",
)


def read_query(file: TableFile) -> TableRows:
    """Return the rows of a query.  Raises ConfigError for a query that fails, writes, takes too long or has no rows."""
    assert file.query is not None, "a source sql: has a query"
    psycopg = needed("psycopg", "postgresql", "a PostgreSQL database", "or export to SQLite or CSV")
    text, where = query_text(file.query).rstrip().rstrip(";"), f"{file.query} on {untrusted_text.masked(file.server)}"
    if not _BEGIN.match(text):
        raise ConfigError(f"{where}: only a SELECT is allowed, and this does more", ONE_SELECT)
    memory, found = CellMemory(where, 0), list[tuple[Any, ...]]()
    try:
        with _connected(psycopg, file.server) as database, database.cursor() as answer:
            for setting in _SETTINGS:
                answer.execute(setting.format(milliseconds=int(1000 * QUERY_SECONDS) or 1))
            for row in answer.stream(f"SELECT * FROM (\n{text}\n) AS cohort"):
                memory.take(row)
                found.append(row)
            header = [column.name.strip() for column in answer.description or ()]
    except psycopg.Error as error:
        raise ConfigError(f"{where}: {_reason(psycopg, error)}", _advice(psycopg, error)) from None
    if not found:
        raise ConfigError(f"{where}: no rows", ONE_SELECT)
    rows = [[_text(one, header[k], f"{where}, row {n}") for k, one in enumerate(row)] for n, row in enumerate(found, 1)]
    return TableRows(header, rows, range(1, len(rows) + 1), unit="row")


@contextlib.contextmanager
def _connected(psycopg: Any, server: str) -> Iterator[Any]:
    """Yield a connection in a read-only transaction; it is shut when its time is over, whatever the server does."""
    more = {"require_auth": "!password"} if psycopg.pq.version() >= 160000 and "PGREQUIREAUTH" not in os.environ else {}
    database = psycopg.connect(server, connect_timeout=CONNECT_SECONDS, application_name="fedgossip", **more)
    with contextlib.closing(database), socket.socket(fileno=os.dup(database.fileno())) as line:
        database.read_only, database.isolation_level = True, psycopg.IsolationLevel.REPEATABLE_READ
        end = threading.Timer(QUERY_SECONDS + GRACE_SECONDS, line.shutdown, [socket.SHUT_RDWR])
        end.daemon = True
        end.start()
        try:
            yield database
        finally:
            end.cancel()


def _reason(psycopg: Any, error: Exception) -> str:
    errors = psycopg.errors
    if isinstance(error, (errors.ReadOnlySqlTransaction, errors.FeatureNotSupported)):
        return "only a SELECT is allowed, and this does more"
    if isinstance(error, (errors.QueryCanceled, errors.LockNotAvailable)):
        return "it takes too long"
    if "multiple commands" in str(error):
        return "one statement at a time"
    return untrusted_text.line(str(error).strip().partition("\n")[0] or repr(error))


def _advice(psycopg: Any, error: Exception) -> str:
    if getattr(error, "sqlstate", None) or not isinstance(error, psycopg.OperationalError):
        return ONE_SELECT
    return (
        "Is the server running and reached from here?  PGHOST, PGPORT, PGUSER, PGPASSWORD or ~/.pgpass have what the "
        "address omits; a server that needs a password in clear text, PGREQUIREAUTH=password and PGSSLMODE=verify-full."
    )


def _text(value: object, column: str, where: str) -> str:
    """Return the text of a cell.  Raises ConfigError for a value that is none."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal):
        return f"{value:f}" if value.is_finite() else "" if value.is_nan() else str(value)
    if value is not None and not isinstance(value, CELLS):
        text = f"{where}, column {column!r}: {type(value).__name__}, which is no cell"
        raise ConfigError(text, "Leave it out, or select a number or a text of it.")
    if isinstance(value, datetime) and value.tzinfo:
        value = value.replace(tzinfo=None)  # of UTC, as the session is
    text = text_of(value)
    if len(text) > CELL_MOST:
        raise ConfigError(f"{where}, column {column!r}: a cell of {len(text):,} letters is too big", ONE_SELECT)
    return text
