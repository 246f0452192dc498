"""The common form of all sites' tables: columns by name, their units, categories and bounds.

It follows from the common test file and [data.columns]; a site's own file has no effect.  For `fedgossip data describe`
the module lists cells for a site to check: a number is a code, or in another unit, only if declared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.cells import advise_point, class_name, is_missing, is_number, number_in, shorten
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.data.columns import subset
from fedgossip.data.columns.declarations import (
    OWN,
    DeclaredColumn,
    EncodedColumn,
    TableEncoding,
    declared_columns,
    parted,
)
from fedgossip.data.columns.subset import Subset
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.objectives import CLASSIFICATION
from fedgossip.data.office_tables import query_digest
from fedgossip.data.table_files import OF_TABLES, TableFile, table_file
from fedgossip.data.tables import labels_of

MEAN, REFUSE, AGREED = "mean", "refuse", "agreed"
DROP, INDICATOR = "drop", "indicator"
KEEP = "keep"
"""Option of a table that lists its columns of features; `drop` lists the other columns."""
IMPUTE = "impute"
SETS = (2, 20)
"""Least and greatest K of impute:K: the variance between sets needs two."""
MISSING = {
    REFUSE: "", MEAN: "", DROP: "", INDICATOR: "", f"{IMPUTE}:K": f"K from {SETS[0]} to {SETS[1]}",
}  # fmt: skip
"""Treatments of an empty cell of a feature."""
FEDERATED, TEST = "federated", "test"
LEVELS = 10
"""Maximum number of distinct values of a column that counts as categories by default."""


def read_features(table: CsvColumns, encoding: TableEncoding, besides: Sequence[str] = ()) -> npt.NDArray[np.float64]:
    """Return the features of a table, float64 [m, features]; `besides`: columns with another role.

    Raises ConfigError, naming a missing column, another unit, or an invalid cell.
    """
    table = declared(table, encoding)
    places = find_columns(table, encoding.columns, besides)
    return np.concatenate([_encoded_column(table, places[one.name], one) for one in encoding.columns], axis=1)


def declared(table: CsvColumns, encoding: TableEncoding) -> CsvColumns:
    """Return a table with the columns of an encoding, and its labels, in their declared form."""
    labels = () if encoding.labels is msgspec.UNSET else encoding.labels
    return table.declared({one.name: one.declared for one in (*encoding.columns, *labels)})


def _encoded_column(table: CsvColumns, place: int, column: EncodedColumn) -> npt.NDArray[np.float64]:
    if not column.categories and (numbers := all_numbers(table, place)) is not None:
        found = np.array(numbers, np.float64)[:, None]
        return np.concatenate([found, np.zeros_like(found)], axis=1) if column.indicator else found
    rows: list[Sequence[float]] = []
    for row, cell in enumerate(table.words(place)):
        if table.unread:
            check_read(table, row, place)
        if is_missing(cell):
            if not column.fill:
                raise refused(table, row, place, "nothing there", "Fill the cell.")
            rows.append(column.fill)
        else:
            there = category_of(table, row, place, column) if column.categories else [number_of(table, row, place)]
            rows.append([*there, 0.0] if column.indicator else there)
    return np.array(rows, np.float64)


def categories_in(features: npt.ArrayLike, name: str, columns: Sequence[EncodedColumn]) -> npt.NDArray[np.int64]:
    """Return each record's category as an index, [m], -1 for an empty cell; `features` [m, all] of `columns`.

    Raises ConfigError for an unknown column.
    """
    place, values = 0, np.asarray(features)
    for one in columns:
        if one.name == name:
            known = values[:, place : place + len(one.categories)] == 1
            return np.where(known.any(axis=1), known.argmax(axis=1), -1).astype(np.int64)
        place += len(one.features)
    raise ConfigError(f"there is no column {name!r}", nearest(name, [one.name for one in columns]))


def find_columns(table: CsvColumns, columns: Sequence[EncodedColumn], besides: Sequence[str] = ()) -> Mapping[str, int]:
    """Return the index of each column in the table.

    Raises ConfigError naming all missing columns at once, for a duplicate one, and for another unit.
    """
    table = table.declared({one.name: one.declared for one in columns})
    exact = {name: place for place, name in enumerate(table.header)}
    by_name = {parted(head)[0]: place for place, head in enumerate(table.header)}
    if twice := [head for place, head in enumerate(table.header) if exact[head] != place]:
        raise ConfigError(f"{table.path}: two columns are called {twice[0]!r}", "Give each a name of its own.")
    places = {one.name: exact.get(one.name, by_name.get(one.name, -1)) for one in columns}
    missing = [name for name, place in places.items() if place < 0]
    if missing:
        raise ConfigError(
            f"{table.path}: no column {_several(missing)}", _suggest_names(table, missing[0], places, besides)
        )
    for one in columns:
        unit = "" if one.name in exact else parted(table.header[places[one.name]])[1]
        if unit and unit != one.unit:
            text = f"{table.path}: column {one.name!r} is in {unit}; expected {one.unit or 'no unit'}"
            raise ConfigError(text, "Convert it, and write the unit in the first line: NAME [UNIT].")
    return places


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def _suggest_names(table: CsvColumns, missing: str, places: Mapping[str, int], besides: Sequence[str]) -> str:
    """Return the advice for a missing column: its likely names."""
    known = {place for place in places.values() if place >= 0}
    left = [head for place, head in enumerate(table.header) if place not in known and head not in besides]
    if any(map(is_number, left)):
        return "The first line of the file names the columns."
    if not left:
        return "Every column that the model learned from is needed, by its name."
    return f'{nearest(missing, left)}  Where it has another name, write it {describe_place(missing)} aliases = ["NAME"]'


def describe_place(name: str) -> str:
    """Return the place of a site's declaration for a column of its table."""
    return f"in TABLE.csv{OWN} next to the table: [columns.{json.dumps(name, ensure_ascii=False)}]"


def all_numbers(table: CsvColumns, place: int) -> list[float] | None:
    """Return the numbers of a column if all its cells are numbers; None if they must be read one by one."""
    if table.unread:
        return None
    found = list(map(number_in, table.words(place)))
    return None if None in found else found  # type: ignore[return-value]


def number_of(table: CsvColumns, row: int, place: int) -> float:
    """Return the number in a cell.  Raises ConfigError for other content."""
    if table.unread:
        check_read(table, row, place)
    cell = table.cell(row, place)
    value = number_in(cell)
    if value is None:
        text = f"{shorten(cell)!r} is not a number that float32 can hold"
        raise refused(table, row, place, text, advise_point(cell) or "Correct the cell.")
    return value


def category_of(table: CsvColumns, row: int, place: int, column: EncodedColumn) -> Sequence[float]:
    """Return the features of a cell with a category.  Raises ConfigError for a category outside the agreed ones."""
    cell = table.cell(row, place)
    if cell not in column.categories:
        known = f"The categories are {', '.join(column.categories[:20])}."
        raise refused(table, row, place, f"{shorten(cell)!r} is none of the {len(column.categories)} categories", known)
    return [float(cell == one) for one in column.categories]


def check_read(table: CsvColumns, row: int, place: int) -> None:
    """Raise ConfigError for a cell that does not fit the declaration of its column."""
    if text := table.unread.get((row, place)):
        raise refused(table, row, place, text, "Correct it, or the declaration of the column.")


def refused(table: CsvColumns, row: int, place: int, what: str, advice: str) -> ConfigError:
    """Return the error of a cell of a table."""
    return ConfigError(f"{table.path}, {table.where(row)}, column {table.header[place]!r}: {what}", advice)


class SchemaColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column in the form required of all sites; a column of numbers if it has no categories."""

    name: str
    unit: str = ""
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    label: bool = False
    declared: DeclaredColumn | None = None
    """Conversion of a site's cells to this form; None if they have it."""

    @property
    def bounded(self) -> bool:
        return self.low is not None and self.high is not None


class TableSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The columns of a table, features first, in the order of the common file."""

    columns: tuple[SchemaColumn, ...]
    missing: str = REFUSE
    """Treatment of an empty cell: "refuse": an error; "mean": its column's; "indicator": the same, with a feature that
    is 1 for it; "drop": rows with an empty cell, or an empty label, are omitted; "impute:K": drawn K times.
    """
    query: str | msgspec.UnsetType = msgspec.UNSET
    """A hash of the text of the query with which sites read their tables."""
    where: Subset | msgspec.UnsetType = msgspec.UNSET
    """The selected records; unset: all."""

    @property
    def features(self) -> tuple[SchemaColumn, ...]:
        return tuple(one for one in self.columns if not one.label)

    @property
    def labels(self) -> tuple[SchemaColumn, ...]:
        return tuple(one for one in self.columns if one.label)

    @property
    def sets(self) -> int:
        """Number of tables with drawn cells in place of empty ones; 0: none is drawn."""
        return sets_of(self.missing)

    @property
    def counts_empty(self) -> bool:
        """Whether the sums of the statistics count the sites with an empty cell in each column."""
        return self.missing == INDICATOR or self.sets > 0

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]


def sets_of(missing: str) -> int:
    """Return K of "impute:K", 0 of another treatment of empty cells.  Raises ConfigError for one that is not known."""
    word, colon, number = missing.partition(":")
    if not colon and word in MISSING:
        return 0
    low, high = SETS
    if word == IMPUTE:
        if number.isascii() and number.isdigit() and low <= int(number) <= high:
            return int(number)
        text = f"data.missing = {missing!r}: K tables, {low} to {high}, are drawn, and the variance between them counts"
        raise ConfigError(text, f'Write data.missing = "{IMPUTE}:5", or another number in place of 5.')
    raise ConfigError(f"data.missing = {missing!r} is not known", nearest(missing, MISSING))


def options_of(source: str) -> tuple[TableFile, Mapping[str, str]]:
    """Return the file and options of "csv:PATH?label=COLUMN".

    Raises ConfigError for other sources and options.
    """
    if source.partition(":")[0] not in OF_TABLES:
        raise ConfigError(f'{source!r}: data.scale = "{FEDERATED}" is for tables', "Write csv:PATH?label=COLUMN.")
    file, options = table_file(source)
    for name in options:
        if name not in ("label", "drop", KEEP):
            text = f'{source!r}: {name} with data.scale = "{FEDERATED}"'
            raise ConfigError(
                text, "Give label and drop alone, or keep for drop: columns are scaled by the agreed statistics."
            )
    if KEEP in options and "drop" in options:
        raise ConfigError(f"{source!r}: keep with drop", "Name the columns of the model, or those left out of it.")
    if "label" not in options:
        raise ConfigError(f"{source!r}: which column is the label?", f"Write {source}?label=COLUMN.")
    return file, options


def schema_of(
    test: str,
    declared: Mapping[str, Any],
    kind: str,
    *,
    missing: str = REFUSE,
    categories: str = REFUSE,
    query: Path | None = None,
    where: str = "",
) -> TableSchema:
    """Return the schema by the common test file and declarations; `kind` of the task, `query` of the tables, `where`:
    the condition on records, "" for all.

    Raises ConfigError for columns of words without `categories` = "agreed", and invalid declarations.
    """
    file, options = options_of(test)
    path, known = file.path, declared_columns(declared)
    table = CsvColumns(check_exists(file)).declared({name: one for name, one in known.items() if one.rewrites})
    labels = [name.strip() for name in options["label"].split(",")]
    dropped = {name for name in options.get("drop", "").split(",") if name} - {*table.left_out}
    heads = {parted(head)[0]: parted(head)[1] for head in table.header}
    kept = [name for name in options.get(KEEP, "").split(",") if name]
    for name in (*labels, *dropped, *kept, *known):
        if name not in heads:
            raise ConfigError(f"{path}: no column {name!r}", nearest(name, heads))
    names = [name for name in heads if name not in dropped and name not in labels and (not kept or name in kept)]
    for name, one in known.items():
        there_are = heads.keys() - {*labels} if one.log else names
        if lost := [of for of in one.made_of if of not in there_are or known.get(of, DeclaredColumn()).made_of]:
            text = f"data.columns: {name!r} is made of {lost[0]!r}, which is dropped, a label, or made itself"
            raise ConfigError(text, "Keep the columns that others are computed from: a product needs its factors.")
    columns = [_column(table, name, heads[name], known.get(name, DeclaredColumn())) for name in names]
    for column in columns:
        if column.categories and categories != AGREED:
            advice = f'Set data.categories = "{AGREED}", or leave it out: &drop={column.name}.'
            raise ConfigError(f"{path}: column {column.name!r} holds words", advice)
    columns += [_label(table, name, heads[name], known.get(name, DeclaredColumn()), kind) for name in labels]
    subset = subset_of(where, table, known, columns) if where else msgspec.UNSET
    return TableSchema(tuple(columns), missing, query_digest(query) if query else msgspec.UNSET, subset)


def subset_of(
    text: str, table: CsvColumns, known: Mapping[str, DeclaredColumn], columns: Sequence[SchemaColumn]
) -> Subset:
    """Return the subset of a condition.  Raises ConfigError for a column or a level that the common file lacks."""
    units, found = dict(map(parted, table.header)), dict[str, EncodedColumn]()
    agreed = {one.name: one.declared for one in columns}
    for one in subset.parsed(text).comparisons():
        name, declared = one.name.text, known.get(one.name.text, DeclaredColumn())
        if name not in units or declared.made_of:
            why, advice = f"the common file has no column {name!r}", nearest(name, units)
            if declared.made_of:
                why, advice = f"{name!r} is made of others", f"Name the columns: {', '.join(declared.made_of)}."
            raise subset.refused(text, one.name, why, advice)
        of = find_columns(table, [EncodedColumn(name, units[name])])[name]
        levels = {*map(class_name, declared.levels)} | {class_name(c) for c in table.words(of) if not is_missing(c)}
        words = sorted(levels) if not declared.is_number and not all(map(is_number, levels)) else []
        if words and one.sign in subset.ORDERS:
            text_of = f"{name!r} holds words, which have no order"
            raise subset.refused(text, one.value, text_of, f"Compare it by =: {name} = {words[0]}.")
        if (words and class_name(one.value.text) not in levels) or (not words and one.value.kind != "number"):
            why = f"{one.value.text!r} is no value of {name!r}"
            raise subset.refused(text, one.value, why, nearest(one.value.text, words) if words else "Give a number.")
        rewritten = declared if declared.rewrites else None
        found[name] = EncodedColumn(name, declared.unit or units[name], declared=agreed.get(name, rewritten))
    return Subset(text, tuple(found.values()))


def selection(table: CsvColumns, where: Subset) -> npt.NDArray[np.bool_]:
    """Return which rows of a table are of a subset, [m].

    Raises ConfigError, naming row and column, for an invalid cell, and for a word that is compared with a number.
    """
    condition = subset.parsed(where.text)
    table = table.declared({one.name: one.declared for one in where.columns})
    places = find_columns(table, where.columns)
    ordered = {one.name.text for one in condition.comparisons() if one.sign in subset.ORDERS}
    for name, place in places.items():
        for row in range(len(table)):
            check_read(table, row, place)
            if name in ordered and not is_missing(table.cell(row, place)):
                number_of(table, row, place)
    return condition.verdicts({name: table.words(place) for name, place in places.items()}).true


def no_file(path: Path, what: str = "file") -> ConfigError:
    """Return the error of a missing `what` at `path`: a file, or a folder."""
    if path.is_dir():
        return ConfigError(f"{path} is a folder, and a table is a file", f"Name the file in it: {path / 'NAME.csv'}")
    return ConfigError(f"there is no {what} {path}", "A relative path starts at the folder of the experiment file.")


def check_exists(file: TableFile | Path) -> TableFile | Path:
    """Return the file.  Raises ConfigError if it does not exist."""
    path = file if isinstance(file, Path) else file.path
    if not path.is_file():
        raise no_file(path)
    return file


def _column(table: CsvColumns, name: str, unit: str, declared: DeclaredColumn) -> SchemaColumn:
    place = find_columns(table, [EncodedColumn(name, unit)])[name]
    cells = [cell for cell in table.words(place) if not is_missing(cell)]
    if unit and declared.unit and unit != declared.unit:
        text = f"{table.path}: column {name!r} is in {unit}, and data.columns declares {declared.unit}"
        raise ConfigError(text, "Give it one unit.")
    for row in range(len(table)):
        check_read(table, row, place)
        if declared.is_number and not is_missing(table.cell(row, place)):
            number_of(table, row, place)
    numbers = declared.is_number or declared.low is not None or all(map(is_number, cells))
    words = () if numbers else tuple(sorted({*cells, *filter(None, [declared.rest])}))
    return _apply_declared(SchemaColumn(name, declared.unit or unit, declared.levels or words), declared)


def _apply_declared(column: SchemaColumn, declared: DeclaredColumn) -> SchemaColumn:
    low, high = (0.0, len(declared.order) - 1.0) if declared.order else (declared.low, declared.high)
    whole = msgspec.structs.replace(declared, categories=column.categories) if declared.rewrites else None
    return msgspec.structs.replace(column, low=low, high=high, declared=whole)


def _label(table: CsvColumns, name: str, unit: str, declared: DeclaredColumn, kind: str) -> SchemaColumn:
    found = _column(table, name, unit, declared)
    if kind != CLASSIFICATION:
        return msgspec.structs.replace(found, categories=(), label=True)
    place = find_columns(table, [EncodedColumn(name, unit)])[name]
    classes = declared.levels or tuple(dict.fromkeys([*sorted_labels(table, place), *filter(None, [declared.rest])]))
    only = _apply_declared(SchemaColumn(found.name, found.unit, classes, label=True), declared)
    return msgspec.structs.replace(only, low=None, high=None)


def sorted_labels(table: CsvColumns, place: int) -> Sequence[str]:
    """Return the classes of a label column, in numeric order if all are numbers: 10 after 2.  Raises ConfigError."""
    cells = set(labels_of(table, place))
    return sorted(cells, key=float) if all(map(is_number, cells)) else sorted(cells)


@dataclass(frozen=True)
class BadCell:
    """A cell that does not fit the common form."""

    column: str
    cell: str
    error: ConfigError


class SiteColumns:
    """A site's own table, checked against the schema on construction.

    Raises ConfigError, naming file, line and column: a missing column, another unit, an invalid or refused empty cell;
    too few records.
    """

    def __init__(
        self, source: Path | TableFile, schema: TableSchema, least: int = 1, bad: list[BadCell] | None = None
    ) -> None:
        """`bad`: collects the cells that do not fit, which then count as empty; without it the first is an error."""
        self.schema, self._bad = schema, bad
        self.table = CsvColumns(check_exists(source)).declared({one.name: one.declared for one in schema.columns})
        self.left_out = 0
        """Number of rows outside of the subset."""
        if schema.where:
            self._select(schema.where)
            self.check_left_out(least)
        rows = self.records = len(self.table)
        if rows < least:
            text = f"{self.table.path}: fewer than {least} records"
            raise ConfigError(text, "A site with so few would be seen in the sums; it takes no part.")
        encoded = [EncodedColumn(one.name, one.unit) for one in schema.columns]
        self.places = find_columns(self.table, encoded)
        self.cells = {
            one.name: self._numbers(one) or [self._checked(one, row) for row in range(rows)] for one in schema.columns
        }
        """A number, a category, or None for an empty cell, of each row, by column."""
        self.dropped = 0
        """Number of omitted rows."""
        if schema.missing == DROP:
            self._drop(least)

    def _select(self, where: Subset) -> None:
        kept = np.flatnonzero(selection(self.table, where)).tolist()
        self.left_out = len(self.table) - len(kept)
        note = f"{self.left_out} rows of {len(self.table)} are not of the subset {where.text} and are left out"
        self.table = self.table.only(kept, note) if self.left_out else self.table

    def check_left_out(self, least: int) -> None:
        """Raise ConfigError if the subset leaves out too few rows: sums over all would disclose them."""
        if self.schema.where and 0 < self.left_out < least:
            text = f"{self.table.path}: data.where leaves out fewer than {least} records"
            raise ConfigError(text, "The sums of a fit of all records would disclose them; this site takes no part.")

    def _drop(self, least: int) -> None:
        """Omit the rows with an empty cell."""
        whole = [None not in row for row in zip(*self.cells.values(), strict=True)]
        kept = [row for row, there in enumerate(whole) if there]
        self.dropped, self.records = self.records - len(kept), len(kept)
        if self.dropped:
            self.table = self.table.only(
                kept, f"{self.dropped} rows of {len(whole)} have an empty cell and are left out"
            )
            self.cells = {name: [cells[row] for row in kept] for name, cells in self.cells.items()}
        if self.records < max(1, least):
            text = f"{self.table.path}: fewer than {max(1, least)} records without an empty cell"
            raise ConfigError(text, 'It takes no part; or set data.missing = "mean".')

    def _numbers(self, column: SchemaColumn) -> list[float | str | None]:
        """Return the numbers of a column if all cells are numbers within its bounds."""
        numbers = None if column.categories else all_numbers(self.table, self.places[column.name])
        inside = numbers and not (column.bounded and (min(numbers) < column.low or max(numbers) > column.high))  # type: ignore[operator]
        return list(numbers) if numbers and inside else []

    def _checked(self, column: SchemaColumn, row: int) -> float | str | None:
        try:
            return self._cell(column, row)
        except ConfigError as error:
            if self._bad is None:
                raise
            self._bad.append(BadCell(column.name, self.table.cell(row, self.places[column.name]), error))
            return None

    def _cell(self, column: SchemaColumn, row: int) -> float | str | None:
        place = self.places[column.name]
        if self.table.unread:
            check_read(self.table, row, place)
        cell = self.table.cell(row, place)
        if is_missing(cell):
            if (column.label and self.schema.missing != DROP) or self.schema.missing == REFUSE:
                other = "leave the row out" if column.label else 'set data.missing = "mean", "drop" or "indicator"'
                raise refused(self.table, row, place, "nothing there", f"Fill the cell, or {other}.")
            return None
        if column.categories:
            name = class_name(cell) if column.label else cell
            if name not in column.categories:
                known = f"The agreed ones are {', '.join(column.categories[:20])}."
                text = f"{shorten(cell)!r} is no category that was agreed on"
                raise refused(self.table, row, place, text, f"{known}  &drop={column.name} leaves the column out.")
            return name
        value = number_of(self.table, row, place)
        if column.bounded and not column.low <= value <= column.high:  # type: ignore[operator]
            text = f"{value:g} is not between {column.low:g} and {column.high:g}"
            raise refused(self.table, row, place, text, "Correct it, or agree on other bounds in [data.columns].")
        return value

    def numbers(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the numbers in the filled cells of a column."""
        return np.array([cell for cell in self.cells[name] if cell is not None], np.float64)


QUOTED = 5
"""Maximum number of quoted cells of a column."""
LEAST_OFTEN = 3
"""Minimum number of records with a number that counts as a code; 1 for -9 and below if no other number is negative."""
FAR = 3
"""Minimum distance of a code from the nearest other number, in usual distances between neighbouring numbers."""
_CODE = re.compile(r"-?(9{1,6}|8{1,6}|7{1,6}|-1)|-1")
"""The codes for missing values in questionnaires and statistical packages."""
FACTORS = (10.0, 100.0, 1000.0, 1e4, 1e6, 2.54, 2.2046, 18.016, 38.67, 88.42)
"""Quotients of usual units: powers of ten, inches, pounds, and mg/dl by mmol/l of glucose, cholesterol, creatinine."""
NEAR = 1.15
"""Maximum quotient of two means' quotient and that of two units."""
APART = {True: 0.75, False: 3.0}
"""Minimum distance of two means by the sum of their deviations: for factors from 10, and for smaller ones."""


def describe_bad(bad: Sequence[BadCell]) -> Iterator[str]:
    """Yield, for each column, the number of cells that do not fit, and the first ones by their rows."""
    for name in dict.fromkeys(one.column for one in bad):
        cells = [one for one in bad if one.column == name]
        yield f"column {name!r}: {_counted(len(cells))} not fit{'s' if len(cells) == 1 else ''}; the first:"
        yield from (f"  {str(one.error).rpartition('/')[2]}" for one in cells[:QUOTED])


def _counted(number: int) -> str:
    return "1 cell does" if number == 1 else f"{number} cells do"


def counted_as_rest(site: SiteColumns) -> Iterator[str]:
    """Yield the cells that no declaration names, and that count as the rest."""
    for place, cells in sorted(site.table.rest.items()):
        listed = ", ".join(f"{shorten(cell)!r} ({count})" for cell, count in Counter(cells).most_common(QUOTED))
        name = site.table.header[place]
        yield f"column {name!r}: {len(cells)} cells are none of its levels and count as the rest: {listed}"


def repeated_rows(site: SiteColumns) -> Iterator[str]:
    """Yield the number of rows that equal an earlier one in all columns."""
    if rows := site.table.repeated():
        many = "1 row is" if len(rows) == 1 else f"{len(rows)} rows are"
        yield f"{many} the same as an earlier one in all columns, the first in {site.table.where(rows[0])}"


def likely_codes(site: SiteColumns) -> Iterator[str]:
    """Yield numbers at an end of a column that look like codes for missing values: repeated, and distant from all
    others.
    """
    for one in site.schema.columns:
        if one.categories or one.label:
            continue
        values, counts = np.unique(site.numbers(one.name), return_counts=True)
        if len(values) < 3:
            continue
        for end, next_to in ((0, 1), (-1, -2)):
            value, usual = float(values[end]), float(np.median(np.diff(np.delete(values, end))))
            far = abs(value - float(values[next_to])) > FAR * usual
            least = 1 if value <= -9 and values[1] >= 0 else LEAST_OFTEN
            if far and counts[end] >= least and _CODE.fullmatch(f"{value:g}"):
                cells = "1 cell" if counts[end] == 1 else f"{counts[end]} cells"
                text = f"column {one.name!r}: {value:g} in {cells}, apart from all others: a code for nothing?"
                yield f'{text}  Declare it {describe_place(one.name)} missing = ["{value:g}"]'


def units_unlike(site: SiteColumns, test: str) -> Iterator[str]:
    """Yield columns whose numbers differ from those of the common file by a factor of units."""
    common = SiteColumns(options_of(test)[0], site.schema, bad=[])
    for one in site.schema.columns:
        if not one.categories and len(other := common.numbers(one.name)):
            yield from unlike(
                one.name, site.numbers(one.name), float(other.mean()), float(other.std()), "the common file"
            )


def unlike(name: str, own: npt.NDArray[np.float64], mean: float, deviation: float, whose: str) -> Iterator[str]:
    """Yield a line if numbers seem to have another unit than the others: means apart by both deviations, with a
    quotient of two units.
    """
    if not len(own) or not mean or float(own.mean()) / mean <= 0:
        return
    median, own_mean = float(np.median(own)), float(own.mean())
    times = max(own_mean / mean, mean / own_mean)
    apart = abs(own_mean - mean) / max(float(own.std()) + deviation, 1e-300)
    for factor in FACTORS:
        if max(times / factor, factor / times) < NEAR and apart > APART[factor >= 10]:
            more = abs(own_mean) > abs(mean)
            way = f"{factor:g} times" if more else f"1/{factor:g} of"
            text = f"column {name!r}: its mean {own_mean:.6g} (median {median:.6g}) is about {way} that of {whose}"
            back = 1 / factor if more else factor
            yield f"{text}, {mean:.6g}: another unit?  Declare it for the table: factor = {back:.6g}"
            return
