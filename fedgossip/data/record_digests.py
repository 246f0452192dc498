"""A digest of a site's own records, by which a ledger recognises them under another name or path."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedgossip.base import outside_files
from fedgossip.base.cells import number_in
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.table_files import OF_TABLES, table_file

BLOCK = 1 << 20
"""Bytes read per block."""


def table_digest(table: CsvColumns) -> str:
    """Return 32 hex digits of a hash of a table's records, whatever the order of its rows and of its columns.

    A number enters by value, whatever its notation.  One record more or less changes the digest.
    """
    order = sorted(range(len(table.header)), key=lambda place: table.header[place])
    total = hashlib.sha256(repr([table.header[place] for place in order]).encode())
    cells = [[_same(cell) for cell in table.words(place)] for place in order]
    rows = sorted(hashlib.sha256("\0".join(row).encode()).digest() for row in zip(*cells, strict=True))
    for row in rows:
        total.update(row)
    return total.hexdigest()[:32]


def _same(cell: str) -> str:
    value = number_in(cell)
    return cell if value is None else repr(value)


def source_digest(source: str) -> str:
    """Return the digest of the records behind a source of a site's own: of a table by its records, of another by its
    bytes; "" where it names no file.  Raises ConfigError for an unreadable file.
    """
    kind, _, rest = source.partition(":")
    path = Path(rest.partition("?")[0]).expanduser()
    if not rest or not path.is_file():
        return ""
    if kind in OF_TABLES:
        return table_digest(CsvColumns(table_file(source)[0]))
    total = hashlib.sha256()
    with outside_files.open_file(outside_files.named(path), outside_files.LARGE) as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.hexdigest()[:32]
