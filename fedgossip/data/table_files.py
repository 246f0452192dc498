"""Files of tables: their names in a source, and the reader of each kind.

    csv:ward.csv?label=ill&decimal=,            text; `delimiter`, `decimal`, `encoding`
    excel:ward.xlsx?label=ill&sheet=Data        a sheet of a workbook
    spss:ward.sav   stata:ward.dta   sas:ward.sas7bdat      `encoding`, if the file does not state it
    sql:ward.db?query=cohort.sql&label=ill      a query's result from a SQLite database; or sql:sqlite:///ward.db
    sql:postgresql://host/ward?query=cohort.sql&label=ill      the same from a PostgreSQL server

A path without a kind, for a prediction, is read by its suffix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.data.columns.declarations import FileDeclaration, file_declaration

CSV, EXCEL, SQL, QUERY = "csv", "excel", "sql", "query"
ENDINGS: Mapping[str, tuple[str, ...]] = {
    EXCEL: (".xlsx", ".xlsm"),
    "spss": (".sav", ".zsav"),
    "stata": (".dta",),
    "sas": (".sas7bdat", ".xpt"),
}
"""Kinds of tables recognised by file suffix."""
OF_TABLES = (CSV, *ENDINGS, SQL)
"""Sources of tables that `CsvColumns` reads."""
OF_FILE = FileDeclaration.__struct_fields__
"""Options of a source that declare the format of its file."""
OF_KIND = {CSV: ("delimiter", "decimal", "encoding"), EXCEL: ("sheet", "decimal"), SQL: ()}
"""Options of the format of each kind; other kinds have only the encoding."""
CELLS_MOST = 1 << 28
"""Maximum number of cells of a table in a binary file."""

UNDECLARED = FileDeclaration()


def kind_of(path: str) -> str:
    """Return the kind of table for a file's suffix; "" for none."""
    ending = Path(path).suffix.lower()
    endings = {CSV: (".csv", ".tsv"), **ENDINGS}
    return next((kind for kind, known in endings.items() if ending in known), "")


@dataclass(frozen=True)
class TableFile:
    """A file with a table, and the declared part of its format."""

    path: Path
    declared: FileDeclaration = UNDECLARED
    kind: str = ""
    """Kind as in its source; "": by its suffix."""
    query: Path | None = None
    """The file with the query of a database."""
    server: str = ""
    """The address of a database server; `path` is then that of the query."""

    def declared_also(self, own: FileDeclaration) -> TableFile:
        """Return the file with its own declarations in place of those for all files."""
        keys = {name: value for name in OF_FILE if (value := getattr(own, name))}
        return replace(self, declared=msgspec.structs.replace(self.declared, **keys))


@dataclass(frozen=True)
class TableRows:
    """The cells of a table as texts; numbers have a point, missing cells are empty."""

    header: list[str]
    rows: list[list[str]]
    lines: Sequence[int]
    """Position of each row in the file, from 1."""
    notes: tuple[str, ...] = ()
    unit: str = field(default="line")
    """Word for a row in messages."""


def table_file(source: str) -> tuple[TableFile, Mapping[str, str]]:
    """Return the table of "csv:PATH?label=COLUMN", and the options that do not describe its file.  Raises ConfigError
    for other sources and formats.
    """
    kind, _, rest = source.partition(":")
    path, _, query = rest.partition("?")
    if kind not in OF_TABLES:
        raise ConfigError(f"{source!r} is no table", f"Write csv:PATH?label=COLUMN; or one of {', '.join(OF_TABLES)}.")
    options = dict(parse_qsl(query, keep_blank_values=True))
    path, server = database_in(path, options) if kind == SQL else (path, "")
    return file_of_options(kind, Path(path), options, server), {
        k: v for k, v in options.items() if k not in (*OF_FILE, QUERY)
    }


def file_of_options(kind: str, path: Path, options: Mapping[str, str], server: str = "") -> TableFile:
    """Return the table of a source of this kind; `server`: the address of a database.

    Raises ConfigError for a suffix or a format of another kind.
    """
    declared = file_declaration({name: options[name] for name in OF_FILE if name in options}, f"{kind}:{path}")
    if kind in ENDINGS and path.suffix.lower() not in ENDINGS[kind]:
        raise ConfigError(f"{kind}:{path}: a file of {kind} ends in {' or '.join(ENDINGS[kind])}", "Save it as that.")
    if (QUERY in options) != (kind == SQL) or options.get(QUERY) == "":
        text = f"{kind}:{path}: " + ("no query" if kind == SQL else "a query with a file that is no database")
        raise ConfigError(text, "Write sql:DATABASE?query=FILE&label=COLUMN.")
    query = Path(options[QUERY]).expanduser() if kind == SQL else None
    return TableFile(path.expanduser(), declared, kind, query, server)


def is_table(path: Path) -> bool:
    """Whether a file is a table by its suffix."""
    return path.suffix.lower() in (".csv", *(ending for endings in ENDINGS.values() for ending in endings))


def database_in(name: str, options: Mapping[str, str]) -> tuple[str, str]:
    """Return the path of a database's file and "", or of its query and the address of its server.

    `name`: PATH, sqlite:///PATH or postgresql://HOST/DATABASE.  Raises ConfigError for another system, and for an
    address with a password, which the error omits.
    """
    scheme, mark, rest = name.partition("://")
    if not mark:
        return name, ""
    if scheme == "sqlite" and rest.startswith("/"):
        return rest[1:], ""
    if scheme not in ("postgresql", "postgres"):
        text = f"sql:{name}: {scheme} is not supported; a query is of a SQLite file or a PostgreSQL server"
        raise ConfigError(text, "Export the wanted tables, to SQLite or CSV; or write sql:sqlite:///PATH?query=FILE.")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at and ":" in user:
        text = "sql: a password in the address of a database, which plans, logs and messages contain"
        raise ConfigError(text, "Leave it out; put it into ~/.pgpass or PGPASSWORD on the site's machine.")
    return options.get(QUERY, ""), name


def unnamed(server: str) -> str:
    """Return the address of a database without its user: the same data whoever reads it."""
    _, mark, rest = server.partition("://")
    host, slash, name = rest.partition("/")
    return f"postgresql{mark}{host.rpartition('@')[2].lower()}{slash}{name}"
