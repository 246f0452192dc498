"""Groups of a site's records by a column, and a digest by which a ledger recognises them under another name."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.cells import class_name, is_missing, number_in, shorten
from fedgossip.base.errors import ConfigError, plural
from fedgossip.data.columns.declarations import DeclaredColumn, EncodedColumn, declared_columns, parted
from fedgossip.data.columns.table_schema import DROP, TableSchema, check_read, find_columns, refused, selection
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.table_files import OF_TABLES, UNDECLARED, TableFile, table_file

GROUPS = 12
"""Maximum number of groups: with more, each is small, and the column is a measurement."""
NO_GROUP = "not said"
"""The group of records with an empty cell."""


def file_of(source: str) -> TableFile:
    """Return the file of "csv:PATH?...".  Raises ConfigError for another source."""
    if source.partition(":")[0] not in OF_TABLES:
        raise ConfigError(f"{source!r}: data.groups is a column of tables", "Leave data.groups out.")
    return table_file(source)[0]


def groups_of(test: TableFile, column: str, declared: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a column's groups: from [data.columns], else from the common file.

    Raises ConfigError for a missing column, and above GROUPS distinct cells.
    """
    if categories := declared_columns(declared).get(column, DeclaredColumn()).levels:
        return _checked(categories, column, "data.columns")
    table = _declared(test, column, declared)
    place = find_columns(table, [EncodedColumn(column, _unit_of(table, column))])[column]
    cells = {class_name(cell) for cell in table.words(place) if not is_missing(cell)}
    return _checked(tuple(sorted(cells)), column, str(test.path))


def _declared(file: TableFile, column: str, declared: Mapping[str, Any]) -> CsvColumns:
    return CsvColumns(file).declared({column: declared_columns(declared).get(column)})


def _unit_of(table: CsvColumns, column: str) -> str:
    return next((unit for name, unit in map(parted, table.header) if name == column), "")


def _checked(groups: tuple[str, ...], column: str, where: str) -> tuple[str, ...]:
    if not 2 <= len(groups) <= GROUPS:
        text = f"{where}: column {column!r} has {plural(len(groups), 'different value')}; groups are 2 to {GROUPS}"
        raise ConfigError(text, f'Declare them: [data.columns] {column} = {{ categories = ["f", "m"] }}.')
    return (*groups, NO_GROUP)


def group_rows(
    file: TableFile, column: str, groups: tuple[str, ...], declared: Mapping[str, Any]
) -> npt.NDArray[np.int64]:
    """Return the index of each row's group, [m].  Raises ConfigError, with line and value, for an unknown group."""
    table = _declared(file, column, declared)
    place = find_columns(table, [EncodedColumn(column, _unit_of(table, column))])[column]
    found = []
    for row, cell in enumerate(table.words(place)):
        check_read(table, row, place)
        name = NO_GROUP if is_missing(cell) else class_name(cell)
        if name not in groups:
            known = f"The groups are {', '.join(groups[:-1])}."
            raise refused(table, row, place, f"{shorten(cell)!r} is no group that all know", known)
        found.append(groups.index(name))
    return np.array(found, np.int64)


BLOCK = 1 << 20
"""Bytes read per block."""


def table_digest(table: CsvColumns) -> str:
    """Return 32 hex digits of a hash of a table's records, in any order of rows and columns, numbers by value."""
    total = hashlib.sha256(repr(sorted(table.header)).encode())
    for row in sorted(_row_digests(table)):
        total.update(row)
    return total.hexdigest()[:32]


def _row_digests(table: CsvColumns) -> Sequence[bytes]:
    order = sorted(range(len(table.header)), key=lambda place: table.header[place])
    cells = [[_same(cell) for cell in table.words(place)] for place in order]
    return [hashlib.sha256("\0".join(row).encode()).digest() for row in zip(*cells, strict=True)]


def selected_rows(file: TableFile, schema: TableSchema) -> str:
    """Return which records of a table are of a schema, as "COUNT:BITS" with hex digits: a bit for each record, in an
    order that the records determine; "" for all.  Raises ConfigError as `selection`.
    """
    table, found = CsvColumns(file), _as_it_is(file)
    rows = selection(table, schema.where) if schema.where else np.ones(len(table), bool)
    digests = _row_digests(found if len(found) == len(table) else table)
    if schema.missing == DROP:
        read = table.declared({one.name: one.declared for one in schema.columns})
        for place in find_columns(read, [EncodedColumn(one.name, one.unit) for one in schema.columns]).values():
            rows = rows & [not is_missing(cell) for cell in read.words(place)]
    if rows.all():
        return ""
    bits = "".join("01"[int(rows[row])] for row in sorted(range(len(rows)), key=digests.__getitem__))
    return f"{len(bits)}:{int(bits, 2):x}"


def fewest_alike(selected: Collection[str]) -> int | None:
    """Return the fewest records that all these subsets of one table select alike, of those that some select; None if
    all select every record.

    Any combination of sums over the subsets is one over whole such classes.
    """
    parts = [one.partition(":") for one in selected if one]
    if not parts:
        return None
    patterns = [f"{int(bits, 16):0{count}b}" for count, _, bits in parts]
    patterns += ["1" * int(parts[0][0])] if "" in selected else []
    classes = Counter(zip(*patterns, strict=True))
    return min((many for one, many in classes.items() if "1" in one), default=0)


def _as_it_is(file: TableFile) -> CsvColumns:
    """Return the table read without the format that a plan declares, if it can be: with another `encoding` than the
    file's the same records would be others.  Raises ConfigError.
    """
    try:
        return CsvColumns(replace(file, declared=UNDECLARED))
    except ConfigError:
        return CsvColumns(file)


def _same(cell: str) -> str:
    value = number_in(cell)
    return cell if value is None else repr(value)


def source_digest(source: str) -> str:
    """Return the digest of a site's source: of a table by its records, else by bytes; "" without a file.  Raises
    ConfigError.
    """
    kind, _, rest = source.partition(":")
    table = table_file(source)[0] if kind in OF_TABLES and rest else None
    path = table.path if table else Path(rest.partition("?")[0]).expanduser()
    if not rest or not path.is_file():
        return ""
    if table:
        return table_digest(_as_it_is(table))
    total = hashlib.sha256()
    with outside_files.open_file(outside_files.resolve(path), outside_files.LARGE) as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.hexdigest()[:32]
