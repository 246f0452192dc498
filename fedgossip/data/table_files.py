"""Files of tables by their endings, each read as a header and rows of texts; and how a source names one.

csv:ward.csv?label=ill&decimal=,            text; `delimiter`, `decimal`, `encoding`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.data.columns.declarations import FileDeclaration, file_declaration

OF_TABLES = ("csv",)
"""Sources of tables that `CsvColumns` reads."""
OF_FILE = FileDeclaration.__struct_fields__
"""Options of a source that declare the format of its file."""

UNDECLARED = FileDeclaration()


@dataclass(frozen=True)
class TableFile:
    """A file with a table, and the declared part of its format."""

    path: Path
    declared: FileDeclaration = UNDECLARED

    def declared_also(self, own: FileDeclaration) -> TableFile:
        """Return the file with what is declared of it alone in place of what is declared of all."""
        keys = {name: value for name in OF_FILE if (value := getattr(own, name))}
        return replace(self, declared=msgspec.structs.replace(self.declared, **keys))


@dataclass(frozen=True)
class TableRows:
    """The cells of a table as texts; numbers have a point, missing cells are empty."""

    header: list[str]
    rows: list[list[str]]
    lines: Sequence[int]
    """Place of each row in the file, from 1."""
    notes: tuple[str, ...] = ()
    unit: str = field(default="line")
    """What a row is called in messages."""


def table_file(source: str) -> tuple[TableFile, Mapping[str, str]]:
    """Return the table that "csv:PATH?label=COLUMN" names, and the options that are not of its file.

    Raises ConfigError for another source, and for an invalid format.
    """
    kind, _, rest = source.partition(":")
    path, _, query = rest.partition("?")
    if kind not in OF_TABLES:
        raise ConfigError(f"{source!r} is no table", f"Write csv:PATH?label=COLUMN; or one of {', '.join(OF_TABLES)}.")
    options = dict(parse_qsl(query, keep_blank_values=True))
    declared = file_declaration({name: options[name] for name in OF_FILE if name in options}, repr(source))
    return TableFile(Path(path).expanduser(), declared), {k: v for k, v in options.items() if k not in OF_FILE}


def read_rows(file: TableFile) -> TableRows:
    """Return the cells of a table.  Raises ConfigError, naming file and row, for one that cannot be read."""
    from fedgossip.data import csv_text

    return TableRows(*csv_text.read_csv_rows(file.path, file.declared))
