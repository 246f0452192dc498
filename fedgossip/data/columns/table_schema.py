"""The common form of all sites' tables: columns by name, their units, categories and bounds.

It follows from the common test file, which all sites have, and from the declarations in [data.columns]; a site's own
file has no effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from fedgossip.base.cells import class_name, is_missing, is_number, shown
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.data.columns.encoded_tables import found_columns, number_of, refused
from fedgossip.data.columns.encodings import EncodedColumn, parted
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.objectives import CLASSIFICATION
from fedgossip.data.tables import labels_of

MEAN, REFUSE, AGREED = "mean", "refuse", "agreed"
FEDERATED, TEST = "federated", "test"
LEVELS = 10
"""Maximum number of distinct values of a column that counts as categories by default."""


class DeclaredColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The declaration of a column in [data.columns]."""

    unit: str = ""
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()


class SchemaColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column in the form required of all sites; of numbers where it has no categories."""

    name: str
    unit: str = ""
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    label: bool = False

    @property
    def bounded(self) -> bool:
        return self.low is not None and self.high is not None


class TableSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The columns of a table, features first, in the order of the common file."""

    columns: tuple[SchemaColumn, ...]
    missing: str = REFUSE
    """"mean": an empty cell of a feature counts as the mean of its column; "refuse": empty cells are an error."""

    @property
    def features(self) -> tuple[SchemaColumn, ...]:
        return tuple(one for one in self.columns if not one.label)

    @property
    def labels(self) -> tuple[SchemaColumn, ...]:
        return tuple(one for one in self.columns if one.label)

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]


def options_of(source: str) -> tuple[Path, Mapping[str, str]]:
    """Return the file that "csv:PATH?label=COLUMN" names, and its options.

    Raises ConfigError for another source, and for options that statistics of all sites do not support.
    """
    kind, _, rest = source.partition(":")
    path, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if kind != "csv":
        raise ConfigError(f'{source!r}: data.scale = "{FEDERATED}" is for CSV files', "Write csv:PATH?label=COLUMN.")
    for name in options:
        if name not in ("label", "drop"):
            text = f'{source!r}: {name} beside data.scale = "{FEDERATED}"'
            raise ConfigError(text, "Give label and drop alone: columns are scaled by what the sites have agreed on.")
    if "label" not in options:
        raise ConfigError(f"{source!r}: which column is the label?", f"Write {source}?label=COLUMN.")
    return Path(path).expanduser(), options


def schema_of(
    test: str, declared: Mapping[str, Any], kind: str, *, missing: str = REFUSE, categories: str = REFUSE
) -> TableSchema:
    """Return the schema by the common test file and the declarations; `kind` of the task.

    Raises ConfigError for columns of words without `categories` = "agreed", and for invalid declarations.
    """
    path, options = options_of(test)
    table, known = CsvColumns(_there(path)), declared_columns(declared)
    labels = [name.strip() for name in options["label"].split(",")]
    dropped = {name for name in options.get("drop", "").split(",") if name} - {*table.left_out}
    heads = {parted(head)[0]: parted(head)[1] for head in table.header}
    for name in (*labels, *dropped, *known):
        if name not in heads:
            raise ConfigError(f"{path}: no column {name!r}", nearest(name, heads))
    names = [name for name in heads if name not in dropped and name not in labels]
    columns = [_column(table, name, heads[name], known.get(name, DeclaredColumn())) for name in names]
    for column in columns:
        if column.categories and categories != AGREED:
            advice = f'Set data.categories = "{AGREED}", or leave it out: &drop={column.name}.'
            raise ConfigError(f"{path}: column {column.name!r} holds words", advice)
    columns += [_label(table, name, heads[name], known.get(name, DeclaredColumn()), kind) for name in labels]
    return TableSchema(tuple(columns), missing)


def _there(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", "A relative path starts at the folder of the experiment file.")
    return path


def declared_columns(columns: Mapping[str, Any]) -> Mapping[str, DeclaredColumn]:
    """Return the declaration of each column in [data.columns].  Raises ConfigError for an invalid one."""
    found = {}
    for name, keys in columns.items():
        try:
            one = found[name] = msgspec.convert(keys, DeclaredColumn)
        except msgspec.ValidationError as error:
            advice = 'Write { unit = "mm", low = 0, high = 50 } or { categories = ["f", "m"] }.'
            raise ConfigError(f"data.columns: {name!r}: {error}", advice) from None
        if one.categories and (one.low, one.high) != (None, None):
            raise ConfigError(f"data.columns: {name!r} has categories and bounds", "Give one of them.")
        if (one.low is None) != (one.high is None) or (one.low is not None and not one.low < one.high):  # type: ignore[operator]
            raise ConfigError(f"data.columns: {name!r}: low and high bound it from both sides", "Give low below high.")
        if len(set(one.categories)) != len(one.categories) or any(map(is_missing, one.categories)):
            text = f"data.columns: {name!r}: a category that is there twice, or that stands for nothing"
            raise ConfigError(text, "Name each category once; an empty cell is none.")
    return found


def _column(table: CsvColumns, name: str, unit: str, declared: DeclaredColumn) -> SchemaColumn:
    place = found_columns(table, [EncodedColumn(name, unit)])[name]
    cells = [cell for cell in table.words(place) if not is_missing(cell)]
    if unit and declared.unit and unit != declared.unit:
        text = f"{table.path}: column {name!r} is in {unit}, and data.columns declares {declared.unit}"
        raise ConfigError(text, "Give it one unit.")
    words = () if declared.low is not None or all(map(is_number, cells)) else tuple(sorted(set(cells)))
    return SchemaColumn(name, declared.unit or unit, declared.categories or words, declared.low, declared.high)


def _label(table: CsvColumns, name: str, unit: str, declared: DeclaredColumn, kind: str) -> SchemaColumn:
    found = _column(table, name, unit, declared)
    if kind != CLASSIFICATION:
        return SchemaColumn(found.name, found.unit, (), found.low, found.high, label=True)
    place = found_columns(table, [EncodedColumn(name, unit)])[name]
    classes = declared.categories or tuple(sorted_labels(table, place))
    return SchemaColumn(found.name, found.unit, classes, label=True)


def sorted_labels(table: CsvColumns, place: int) -> Sequence[str]:
    """Return the classes of a label column, in numeric order where all are numbers: 10 after 2.  Raises ConfigError."""
    cells = set(labels_of(table, place))
    return sorted(cells, key=float) if all(map(is_number, cells)) else sorted(cells)


class SiteColumns:
    """A site's own table, checked against the schema on construction.

    Raises ConfigError, naming file, line and column, for a missing column, another unit, a cell that is no number, no
    agreed category or out of bounds, an empty one where they are refused, and for too few records.
    """

    def __init__(self, path: Path, schema: TableSchema, least: int = 1) -> None:
        self.table, self.schema = CsvColumns(_there(path)), schema
        rows = self.records = len(self.table.words(0))
        if rows < least:
            text = f"{path}: fewer than {least} records"
            raise ConfigError(text, "A site with so few would be seen in the sums; it takes no part.")
        encoded = [EncodedColumn(one.name, one.unit) for one in schema.columns]
        self._places = found_columns(self.table, encoded)
        self.cells = {one.name: [self._cell(one, row) for row in range(rows)] for one in schema.columns}
        """A number, a category, or None for an empty cell, of each row, by column."""

    def _cell(self, column: SchemaColumn, row: int) -> float | str | None:
        place = self._places[column.name]
        cell = self.table.cell(row, place)
        if is_missing(cell):
            if column.label or self.schema.missing == REFUSE:
                other = "leave the row out" if column.label else 'set data.missing = "mean"'
                raise refused(self.table, row, place, "nothing there", f"Fill the cell, or {other}.")
            return None
        if column.categories:
            name = class_name(cell) if column.label else cell
            if name not in column.categories:
                known = f"The agreed ones are {', '.join(column.categories[:20])}."
                raise refused(self.table, row, place, f"{shown(cell)!r} is no category that was agreed on", known)
            return name
        value = number_of(self.table, row, place)
        if column.bounded and not column.low <= value <= column.high:  # type: ignore[operator]
            text = f"{value:g} is not between {column.low:g} and {column.high:g}"
            raise refused(self.table, row, place, text, "Correct it, or agree on other bounds in [data.columns].")
        return value

    def numbers(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the numbers in the filled cells of a column."""
        return np.array([cell for cell in self.cells[name] if cell is not None], np.float64)
