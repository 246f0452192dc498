"""Reads a table by an encoding: its columns by their names, each cell as features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.cells import is_missing, is_number, number_in, shown, with_point
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding, parted
from fedgossip.data.csv_columns import CsvColumns


def read_features(table: CsvColumns, encoding: TableEncoding, besides: Sequence[str] = ()) -> npt.NDArray[np.float64]:
    """Return the features of a table, float64 [m, features]; `besides`: columns with another role.

    Raises ConfigError, naming the column, for a missing one, for another unit, and for an invalid cell.
    """
    table = declared(table, encoding)
    places = found_columns(table, encoding.columns, besides)
    return np.concatenate([_column(table, places[one.name], one) for one in encoding.columns], axis=1)


def declared(table: CsvColumns, encoding: TableEncoding) -> CsvColumns:
    """Return a table with the columns of an encoding, and its labels, in their declared form."""
    labels = () if encoding.labels is msgspec.UNSET else encoding.labels
    return table.declared({one.name: one.declared for one in (*encoding.columns, *labels)})


def _column(table: CsvColumns, place: int, column: EncodedColumn) -> npt.NDArray[np.float64]:
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
    """Return the place of each record's category in a column of words, [m], -1 for an empty cell.

    `features` [m, all] are those of `columns`, in their order.  Raises ConfigError for an unknown column.
    """
    place, values = 0, np.asarray(features)
    for one in columns:
        if one.name == name:
            known = values[:, place : place + len(one.categories)] == 1
            return np.where(known.any(axis=1), known.argmax(axis=1), -1).astype(np.int64)
        place += len(one.features)
    raise ConfigError(f"there is no column {name!r}", nearest(name, [one.name for one in columns]))


def found_columns(
    table: CsvColumns, columns: Sequence[EncodedColumn], besides: Sequence[str] = ()
) -> Mapping[str, int]:
    """Return the place of each column in the table.

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
        raise ConfigError(f"{table.path}: no column {_several(missing)}", _others(table, missing[0], places, besides))
    for one in columns:
        unit = "" if one.name in exact else parted(table.header[places[one.name]])[1]
        if unit and unit != one.unit:
            text = f"{table.path}: column {one.name!r} is in {unit}; expected {one.unit or 'no unit'}"
            raise ConfigError(text, "Convert it, and write the unit in the first line: NAME [UNIT].")
    return places


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def _others(table: CsvColumns, missing: str, places: Mapping[str, int], besides: Sequence[str]) -> str:
    """Return the advice for a missing column: which of the others it could be."""
    known = {place for place in places.values() if place >= 0}
    left = [head for place, head in enumerate(table.header) if place not in known and head not in besides]
    if any(map(is_number, left)):
        return "The first line of the file names the columns."
    return nearest(missing, left) if left else "Every column that the model learned from is needed, by its name."


def number_of(table: CsvColumns, row: int, place: int) -> float:
    """Return the number in a cell.  Raises ConfigError for another content."""
    if table.unread:
        check_read(table, row, place)
    cell = table.cell(row, place)
    value = number_in(cell)
    if value is None:
        text = f"{shown(cell)!r} is not a number that float32 can hold"
        raise refused(table, row, place, text, with_point(cell) or "Correct the cell.")
    return value


def category_of(table: CsvColumns, row: int, place: int, column: EncodedColumn) -> Sequence[float]:
    """Return the features of a cell with a category.  Raises ConfigError for a category outside the agreed ones."""
    cell = table.cell(row, place)
    if cell not in column.categories:
        known = f"The categories are {', '.join(column.categories[:20])}."
        raise refused(table, row, place, f"{shown(cell)!r} is none of the {len(column.categories)} categories", known)
    return [float(cell == one) for one in column.categories]


def check_read(table: CsvColumns, row: int, place: int) -> None:
    """Raise ConfigError for a cell that does not fit what is declared of its column."""
    if text := table.unread.get((row, place)):
        raise refused(table, row, place, text, "Correct it, or what is declared of the column.")


def refused(table: CsvColumns, row: int, place: int, what: str, advice: str) -> ConfigError:
    """Return the error of a cell of a table."""
    return ConfigError(f"{table.path}, {table.where(row)}, column {table.header[place]!r}: {what}", advice)
